// SPDX-License-Identifier: PostgreSQL

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"syscall"
	"time"

	"pgonce.internal/once"
)

// The orders of the torture (documented in tests/torture/languages.py). All calls are the client's;
// only the effects are the agent's own SQL. With a port it serves HTTP there (torture_service.go).

const (
	deadline = 6 * time.Second
	advance  = "SELECT body, step FROM torture.advance($1, $2, $3, $4, $5, 'go', $6::integer)"
	write    = "SELECT torture.write($1, $2, $3, $4, $5, 'go', $6::integer, $7)"
)

type order struct {
	Mode, Tenant, Scope, Key, Payload, End, Leave, Isolation, Way string
	Attempt                                                       int
	BeforeMs                                                      int `json:"before_ms"`
	AfterMs                                                       int `json:"after_ms"`
	DoubtMs                                                       int `json:"doubt_ms"`
	Swallow                                                       bool
	Neighbour                                                     string
}

type answer struct {
	Verdict  string  `json:"verdict"`
	Code     string  `json:"code"`
	Status   int     `json:"status"`
	Body     *[]byte `json:"body"` // encoding/json writes it in base64
	Replayed bool    `json:"replayed"`
	Loose    bool    `json:"loose"`
}

type payload struct {
	Aggregate string
	Events    int
	Caused    bool
}

// What PostgreSQL says when a statement certainly had no lasting effect.
var definite = regexp.MustCompile("^(P4|40|55|57014|53|25|22|42|23|0A|P0)")

// An ordinary error of an effect: it is taken back, and the next attempt may run.
var errNotNow = errors.New("not now")

func (o *order) leaveAt(step string) {
	if o.Leave == step {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func pause(ms int) { time.Sleep(time.Duration(ms) * time.Millisecond) }

func nonce() string {
	var bytes [16]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes[:])
}

func stored(a once.Answer, code string) answer {
	return answer{Verdict: "acknowledged", Code: code, Status: a.Status, Body: &a.Body, Replayed: a.Replayed}
}

func codeOf(err error) string {
	if state := once.SQLStateOf(err); state != "" {
		return state
	}
	var known *once.Error
	if errors.As(err, &known) {
		if known.SQLState != "" {
			return known.SQLState
		}
		return known.Code
	}
	return "lost"
}

// The verdict of an error that the client has returned.
func refused(err error) answer {
	var final *once.FinalError
	if errors.As(err, &final) {
		return stored(final.Answer, "final_failure")
	}
	if errors.Is(err, errNotNow) {
		return answer{Verdict: "failed", Code: "retryable"}
	}
	for verdict, kinds := range map[string][]error{
		"mismatch": {once.ErrMismatch, once.ErrMessageMismatch}, "busy": {once.ErrActive}, "in_doubt": {once.ErrInDoubt}, "expired": {once.ErrExpired},
		"refused": {once.ErrScopeRequired, once.ErrKeyMalformed, once.ErrRefused}, "unknown": {once.ErrOutcomeUnknown},
	} {
		for _, kind := range kinds {
			if errors.Is(err, kind) {
				return answer{Verdict: verdict, Code: codeOf(err)}
			}
		}
	}
	return answer{Verdict: "failed", Code: codeOf(err)}
}

// The answer, in the type that the order names. Text that is no JSON stays text.
func given(way string, body []byte) once.Answer {
	switch {
	case way == "body":
		return once.Bytes(201, body)
	case way == "json" && json.Valid(body):
		return once.JSON(201, json.RawMessage(body))
	default:
		return once.Text(201, string(body))
	}
}

func (o *order) options() []once.Option {
	options := []once.Option{once.Tenant(o.Tenant), once.Within(deadline)}
	if o.Mode == "transaction" || o.Mode == "receive" {
		options = append(options, once.Isolation(o.Isolation))
	}
	return options
}

// The effect that commits with its outcome, and its events. fence: nil, or the lease's.
func (d *door[T]) effect(ctx context.Context, tx T, o *order, fence any) ([]byte, error) {
	var said payload
	if err := json.Unmarshal([]byte(o.Payload), &said); err != nil {
		return nil, err
	}
	var body []byte
	var step int
	err := d.query(ctx, tx, advance, []any{o.Tenant, o.Scope, o.Key, o.Payload, o.Attempt, fence}, &body, &step)
	if err != nil {
		return nil, err
	}
	for nth := 1; nth <= said.Events; nth++ {
		event := once.Event{Topic: "torture.done", AggregateType: "account", AggregateID: said.Aggregate, Tenant: o.Tenant, Payload: map[string]any{
			"tenant": o.Tenant, "scope": o.Scope, "key": o.Key, "aggregate": said.Aggregate, "step": step, "nth": nth,
		}}
		if nth > 1 {
			event.Topic = "torture.checked"
		}
		if said.Caused {
			event.Scope, event.Key = o.Scope, o.Key
		}
		if _, err := d.client.Emit(ctx, tx, event); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// What an order is about, in a transaction: the bytes of its answer.
func (d *door[T]) advance(ctx context.Context, tx T, o *order) ([]byte, error) {
	o.leaveAt("begun")
	pause(o.BeforeMs)
	if o.End == "retry" {
		return nil, errNotNow
	}
	var nothing int
	if o.Neighbour == "second" {
		if err := d.alone(ctx, "SELECT 1", nil, &nothing); err != nil {
			return nil, err
		}
	}
	body, err := d.effect(ctx, tx, o, nil)
	if err != nil {
		return nil, err
	}
	if o.Swallow {
		_ = d.query(ctx, tx, "SELECT 1/0", nil, &nothing)
	}
	pause(o.AfterMs)
	o.leaveAt("written")
	if o.Neighbour == "commit" { // refused; what was sent has no row
		return nil, d.query(ctx, tx, "COMMIT", nil, &nothing)
	}
	return body, nil
}

// A message: by Consume, or by hand in a transaction of the consumer's own.
func (d *door[T]) receive(ctx context.Context, o *order) answer {
	if o.Attempt%2 == 1 {
		process, err := d.client.Consume(ctx, o.Scope, o.Key, []byte(o.Payload), func(ctx context.Context, tx T) error {
			_, err := d.advance(ctx, tx, o)
			return err
		}, o.options()...)
		if err != nil {
			return refused(err)
		}
		return o.applied(process)
	}
	process, committing := false, false
	err := d.inside(ctx, o.Isolation, func(tx T) (err error) {
		if process, err = d.client.Receive(ctx, tx, o.Scope, o.Key, []byte(o.Payload), once.Tenant(o.Tenant)); err != nil {
			return err
		}
		if process {
			_, err = d.advance(ctx, tx, o)
		}
		committing = err == nil
		return err
	})
	switch {
	case err != nil && committing && !definite.MatchString(once.SQLStateOf(err)):
		return answer{Verdict: "unknown", Code: codeOf(err)}
	case err != nil:
		return refused(err)
	}
	return o.applied(process)
}

func (o *order) applied(process bool) answer {
	o.leaveAt("done")
	code := "duplicate"
	if process {
		code = "process"
	}
	return answer{Verdict: "acknowledged", Code: code, Replayed: !process}
}

func (d *door[T]) transaction(ctx context.Context, o *order) answer {
	made, err := d.client.Run(ctx, o.Scope, o.Key, []byte(o.Payload), func(ctx context.Context, tx T) (once.Answer, error) {
		body, err := d.advance(ctx, tx, o)
		if err != nil {
			return once.Answer{}, err
		}
		if o.End == "final" {
			return once.Answer{}, once.Fail("torture", "as ordered", once.Text(422, nonce()))
		}
		return given(o.Way, body), nil
	}, o.options()...)
	if err != nil {
		return refused(err)
	}
	return stored(made, "")
}

func (d *door[T]) leased(ctx context.Context, o *order) answer {
	lease, known, err := d.client.Claim(ctx, o.Scope, o.Key, []byte(o.Payload), append(o.options(), once.Owner(fmt.Sprint("attempt ", o.Attempt)))...)
	if err != nil {
		said := refused(err)
		said.Loose = said.Verdict == "failed" // its claim may have been granted, and the answer lost
		return said
	}
	if lease == nil {
		return stored(*known, "replay_success")
	}
	o.leaveAt("claimed")
	pause(o.BeforeMs)
	if said, over := d.before(ctx, o, lease); over {
		return said
	}
	if o.Mode == "fenced" {
		return d.fenced(ctx, o, lease)
	}
	var body []byte
	args := []any{o.Tenant, o.Scope, o.Key, o.Payload, o.Attempt, lease.Fence, o.Mode == "verified"}
	if err := d.alone(ctx, write, args, &body); err != nil {
		return d.without(ctx, lease, err, !definite.MatchString(once.SQLStateOf(err)))
	}
	o.leaveAt("done")
	pause(o.AfterMs)
	if o.DoubtMs > 0 && o.Attempt%2 == 1 {
		return answer{Verdict: "unknown", Code: "doubt"}
	}
	made := once.Bytes(201, body)
	if o.Way != "body" {
		made = once.Text(201, string(body))
	}
	if _, err := lease.Complete(ctx, made); err != nil {
		return answer{Verdict: "unknown", Code: codeOf(err)} // somebody else has decided meanwhile: what is stored says the next attempt
	}
	return stored(made, "")
}

// What is reported instead of the effect, or before it. over: with that the attempt is over.
func (d *door[T]) before(ctx context.Context, o *order, lease *once.Lease) (answer, bool) {
	var err error
	said := answer{Verdict: "failed", Code: "retryable"}
	over := true
	switch {
	case o.End == "retry" || lease.Context().Err() != nil:
		released := false
		if o.Attempt%2 == 1 {
			released, err = lease.Release(ctx)
		}
		if !released && err == nil {
			_, err = lease.FailRetryable(ctx, "torture", "as ordered")
		}
	case o.End == "final":
		final := once.Text(422, nonce())
		said = stored(final, "")
		_, err = lease.Fail(ctx, once.Fail("torture", "as ordered", final))
	case o.DoubtMs > 0:
		over = false
		_, err = lease.Doubt(ctx, "torture", "as ordered")
		pause(o.DoubtMs)
	default:
		over = false
	}
	switch {
	case err == nil:
		return said, over
	case o.End == "final" && errors.Is(err, once.ErrOutcomeUnknown):
		return answer{Verdict: "unknown", Code: codeOf(err)}, true
	default:
		return answer{Verdict: "failed", Code: codeOf(err), Loose: codeOf(err) != "P4011"}, true
	}
}

// The effect and its outcome in one transaction. The fence decides its outcome: after its commit a failure is refused.
func (d *door[T]) fenced(ctx context.Context, o *order, lease *once.Lease) answer {
	var made once.Answer
	err := d.inside(ctx, "read committed", func(tx T) error {
		body, err := d.effect(ctx, tx, o, lease.Fence)
		if err != nil {
			return err
		}
		pause(o.AfterMs)
		made = once.Bytes(201, body)
		if _, err = once.CompleteIn(ctx, d.client, tx, lease, made); err != nil {
			return err
		}
		o.leaveAt("written")
		return nil
	})
	if err != nil {
		return d.without(ctx, lease, err, false)
	}
	if _, err := lease.Complete(ctx, made); err != nil { // ends the heartbeat; it is stored already
		return answer{Verdict: "unknown", Code: codeOf(err)}
	}
	return stored(made, "")
}

// The effect has failed, and certainly so unless unknown.
func (d *door[T]) without(ctx context.Context, lease *once.Lease, failed error, unknown bool) answer {
	if unknown {
		_, _ = lease.Doubt(ctx, "torture", "no answer")
		return answer{Verdict: "unknown", Code: codeOf(failed)}
	}
	if _, err := lease.FailRetryable(ctx, "torture", "no effect"); err != nil {
		return answer{Verdict: "unknown", Code: codeOf(failed)}
	}
	return answer{Verdict: "failed", Code: codeOf(failed)}
}

func (d *door[T]) ordered(o *order) answer {
	var said answer
	switch o.Mode {
	case "transaction":
		said = d.transaction(context.Background(), o)
	case "receive":
		said = d.receive(context.Background(), o)
	default:
		said = d.leased(context.Background(), o)
	}
	if said.Body != nil && *said.Body == nil {
		said.Body = nil
	}
	return said
}
