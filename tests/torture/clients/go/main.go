// SPDX-License-Identifier: PostgreSQL

// A caller of the Go client that does what standard input says, for the torture
// (tests/torture/languages.py, which has the words): door CLIENT NUMBER DSN [PORT]. An order is a
// line of JSON, an answer another. Whatever the client can do it does; only the effects are SQL of
// its own. Odd numbers go through pgx, even ones through database/sql. With a port it serves HTTP
// there (service.go).
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
	"pgonce.internal/once/oncesql"
)

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

// As what the answer is given. What is no JSON is given as text.
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

// A door through one driver, whose transactions are of type T.
type door[T any] struct {
	client *once.Client[T]
	// A row in a transaction, and one in a transaction of its own.
	query func(ctx context.Context, tx T, text string, args []any, into ...any) error
	alone func(ctx context.Context, text string, args []any, into ...any) error
	// All that the function does is committed, or nothing. Which it is an error of COMMIT does not say.
	inside func(ctx context.Context, isolation string, do func(tx T) error) error
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

// The effect and its outcome in one transaction. What became of it the fence decides: where it is committed, a failure is refused.
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

func (d *door[T]) serve() {
	lines := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var o order
		if err := json.Unmarshal(line, &o); err != nil {
			panic(err)
		}
		var said answer
		switch o.Mode {
		case "transaction":
			said = d.transaction(context.Background(), &o)
		case "receive":
			said = d.receive(context.Background(), &o)
		default:
			said = d.leased(context.Background(), &o)
		}
		if said.Body != nil && *said.Body == nil {
			said.Body = nil
		}
		text, err := json.Marshal(said)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}

func overPgx(dsn, port string) error {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	d := door[pgx.Tx]{
		client: oncepgx.New(pool, once.Within(deadline)),
		query: func(ctx context.Context, tx pgx.Tx, text string, args []any, into ...any) error {
			return tx.QueryRow(ctx, text, args...).Scan(into...)
		},
		alone: func(ctx context.Context, text string, args []any, into ...any) error {
			return pool.QueryRow(ctx, text, args...).Scan(into...)
		},
		inside: func(ctx context.Context, isolation string, do func(tx pgx.Tx) error) error {
			tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(isolation)})
			if err != nil {
				return err
			}
			if err := do(tx); err != nil {
				_ = tx.Rollback(ctx)
				return err
			}
			return tx.Commit(ctx)
		},
	}
	return d.work(port)
}

var levels = map[string]sql.IsolationLevel{
	"read committed": sql.LevelReadCommitted, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
}

func overSQL(dsn, port string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return err
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(4)
	d := door[*sql.Tx]{
		client: oncesql.New(db, once.Within(deadline)),
		query: func(ctx context.Context, tx *sql.Tx, text string, args []any, into ...any) error {
			return tx.QueryRowContext(ctx, text, args...).Scan(into...)
		},
		alone: func(ctx context.Context, text string, args []any, into ...any) error {
			return db.QueryRowContext(ctx, text, args...).Scan(into...)
		},
		inside: func(ctx context.Context, isolation string, do func(tx *sql.Tx) error) error {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: levels[isolation]})
			if err != nil {
				return err
			}
			if err := do(tx); err != nil {
				_ = tx.Rollback()
				return err
			}
			return tx.Commit()
		},
	}
	return d.work(port)
}

// What pgx knows of libpq's words: it takes any other for a setting of the server's.
func forPgx(dsn string) string {
	var kept []string
	for _, pair := range strings.Fields(dsn) {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "hostaddr":
			kept = append(kept, "host="+value)
		case "port", "dbname", "user", "connect_timeout", "application_name":
			kept = append(kept, pair)
		}
	}
	return strings.Join(append(kept, "sslmode=disable"), " ")
}

func main() {
	port := ""
	if len(os.Args) > 4 {
		port = os.Args[4]
	}
	number, err := strconv.Atoi(os.Args[2])
	if err == nil && number%2 == 1 {
		err = overPgx(forPgx(os.Args[3]), port)
	} else if err == nil {
		err = overSQL(forPgx(os.Args[3]), port)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
