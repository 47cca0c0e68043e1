// SPDX-License-Identifier: PostgreSQL

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgonce.internal/once"
)

// The calls of spec/cases/sql.json and faults.json.

type content struct {
	Text   *string
	JSON   json.RawMessage
	Base64 *string
	Repeat *string
	Count  int
}

func (c content) bytes() ([]byte, bool) {
	switch {
	case c.Text != nil:
		return []byte(*c.Text), true
	case c.Base64 != nil:
		decoded, _ := base64.StdEncoding.DecodeString(*c.Base64)
		return decoded, true
	case c.Repeat != nil:
		return bytes.Repeat([]byte(*c.Repeat), c.Count), true
	}
	return nil, false
}

// An answer, as a case gives it.
type outcome struct {
	content
	Status     int
	Headers    map[string]string
	ResultType string `json:"result_type"`
	ResultID   string `json:"result_id"`
	Code       string
	Message    string
}

func (o outcome) made() (made once.Answer) {
	switch {
	case o.JSON != nil:
		made = once.JSON(o.Status, o.JSON)
	case o.Text != nil:
		made = once.Text(o.Status, *o.Text)
	default:
		body, _ := o.bytes()
		made = once.Bytes(o.Status, body)
	}
	made.ResultType, made.ResultID = o.ResultType, o.ResultID
	if o.Headers != nil {
		made.Header = http.Header{}
		for name, value := range o.Headers {
			made.Header.Set(name, value)
		}
	}
	return made
}

type emission struct {
	Topic         string
	Payload       json.RawMessage
	Base64        []byte
	ContentType   string `json:"content_type"`
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`

	Scope, Key, Tenant string
}

func (e emission) event() once.Event {
	event := once.Event{Topic: e.Topic, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Scope: e.Scope, Key: e.Key, Tenant: e.Tenant}
	if e.Payload != nil {
		event.Payload = e.Payload
	}
	return event
}

// What an effect does, or the work of Effect.
type effect struct {
	Do []struct {
		SQL, Swallow, Behind string
		Emit                 *emission
		EmitBytes            *emission `json:"emit_bytes"`
		Lock                 struct {
			Resource string
			WaitMs   int `json:"wait_ms"`
		}
		Is        bool
		Meanwhile json.RawMessage
		Keep      bool
		First     int32
	}
	Answer  outcome
	Fail    *outcome
	Throw   string
	NotDone string `json:"not_done"`
}

type step struct {
	Call, Scope, Key, Tenant, As, Of, Consumer, Message, Code string

	Request struct {
		content
		HTTP *struct {
			Method, Target, Text string
			ContentType          string `json:"content_type"`
		}
	}
	Effect, Work effect
	Answer       outcome
	Result       content
	LeaseMs      int `json:"lease_ms"`
	RetentionMs  int `json:"retention_ms"`
	Takeover     *bool
	Retryable    *bool

	WaitMs         int `json:"wait_ms"`
	DeadlineMs     int `json:"deadline_ms"`
	Isolation, SQL string
	Callers        int

	Name     string
	Location location
	Service  []execution

	DSNs   []string
	Router string
}

func (s step) request() any {
	body, _ := s.Request.bytes()
	switch asked := s.Request; {
	case asked.HTTP != nil:
		return once.HTTPRequest{Method: asked.HTTP.Method, Target: asked.HTTP.Target, ContentType: asked.HTTP.ContentType, Body: []byte(asked.HTTP.Text)}
	case asked.Text != nil:
		return *asked.Text
	case asked.JSON != nil:
		return asked.JSON
	}
	return body
}

func (s step) options() []once.Option {
	opts := []once.Option{once.Tenant(s.Tenant), once.Wait(milliseconds(s.WaitMs)), once.Isolation(s.Isolation)}
	if s.DeadlineMs > 0 {
		opts = append(opts, once.Within(milliseconds(s.DeadlineMs)))
	}
	return opts
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// What an effect throws where it is told to.
type thrown string

func (t thrown) Error() string { return string(t) }

type nothingDone string

func (n nothingDone) Error() string { return string(n) }

type calls[T any] struct {
	*door[T]
	leases  map[string]*once.Lease
	service *service[T]
	// Says a line, and waits for one.
	converse func(said any)
	// The transaction of an effect, after it.
	kept T
	// Several nodes: what closes their pools, and what their own router was called with.
	unshare func()
	routed  said
	routing sync.Mutex
}

// From now on over these nodes.
func (c *calls[T]) share(s step) (err error) {
	if c.unshare != nil {
		c.unshare()
	}
	tenants, refusals := []string{}, [][2]int64{}
	c.client, c.unshare, err = c.door.share(s.DSNs, s.Router, func(tenant string, closed *once.Error) (node int) {
		c.routing.Lock()
		defer c.routing.Unlock()
		tenants = append(tenants, tenant)
		if closed != nil {
			refusals, node = append(refusals, [2]int64{int64(closed.Slot), closed.Epoch}), 1
		}
		c.routed = said{"tenants": tenants, "refusals": refusals}
		return node
	})
	return err
}

// number: which execution of it this is.
func (c *calls[T]) do(ctx context.Context, tx T, e effect, number int32) (once.Answer, error) {
	for _, each := range e.Do {
		if each.First > 0 && number > each.First {
			continue
		}
		var err error
		switch {
		case each.SQL != "":
			err = c.exec(ctx, tx, each.SQL)
		case each.Swallow != "":
			_ = c.exec(ctx, tx, each.Swallow)
		case each.Behind != "":
			err = c.behind(ctx, tx, each.Behind)
		case each.Meanwhile != nil:
			c.converse(said{"meanwhile": each.Meanwhile})
		case each.Keep:
			c.kept = tx
		case each.Emit != nil:
			_, err = c.client.Emit(ctx, tx, each.Emit.event())
		case each.EmitBytes != nil:
			_, err = c.client.EmitBytes(ctx, tx, each.EmitBytes.event(), each.EmitBytes.Base64, each.EmitBytes.ContentType)
		default:
			var taken bool
			taken, err = c.client.Lock(ctx, tx, each.Lock.Resource, milliseconds(each.Lock.WaitMs))
			if err == nil && taken != each.Is {
				err = fmt.Errorf("the lock is %v", taken)
			}
		}
		if err != nil {
			return once.Answer{}, err
		}
	}
	switch {
	case e.Throw != "":
		return once.Answer{}, thrown(e.Throw)
	case e.NotDone != "":
		return once.Answer{}, once.NotDone(nothingDone(e.NotDone))
	case e.Fail != nil:
		return once.Answer{}, once.Fail(e.Fail.Code, e.Fail.Message, e.Fail.made())
	}
	return e.Answer.made(), nil
}

type said map[string]any

func answered(a once.Answer) said {
	told := said{"replayed": a.Replayed, "status": a.Status, "body": a.Body, "result_type": a.ResultType, "result_id": a.ResultID}
	headers := map[string]any{}
	for name, values := range a.Header {
		headers[name] = values[0]
		if len(values) > 1 {
			headers[name] = values
		}
	}
	told["headers"] = headers
	return told
}

func (c *calls[T]) claim(ctx context.Context, s step, opts []once.Option) (said, error) {
	if s.LeaseMs > 0 {
		opts = append(opts, once.LeaseFor(milliseconds(s.LeaseMs)))
	}
	if s.RetentionMs > 0 {
		opts = append(opts, once.Retention(milliseconds(s.RetentionMs)))
	}
	if s.Takeover != nil {
		opts = append(opts, once.Takeover(*s.Takeover))
	}
	lease, known, err := c.client.Claim(ctx, s.Scope, s.Key, s.request(), opts...)
	switch {
	case err != nil:
		return nil, err
	case lease == nil:
		return answered(*known), nil
	}
	c.leases[s.As] = lease
	return said{"verdict": lease.Verdict, "fence": lease.Fence}, nil
}

func (c *calls[T]) report(ctx context.Context, s step) (is bool, err error) {
	lease := c.leases[s.Of]
	switch {
	case s.Call == "complete":
		return lease.Complete(ctx, s.Answer.made())
	case s.Call == "release":
		return lease.Release(ctx)
	case s.Call == "renew":
		return lease.Renew(ctx)
	case s.Retryable == nil:
		return lease.Doubt(ctx, s.Code, s.Message)
	case *s.Retryable:
		return lease.FailRetryable(ctx, s.Code, s.Message)
	}
	return lease.Fail(ctx, once.Fail(s.Code, s.Message, s.Answer.made()))
}

func (c *calls[T]) receive(ctx context.Context, s step, opts []once.Option, called *atomic.Int32) (said, error) {
	verdict := map[bool]string{true: "process", false: "duplicate"}
	applied, err := c.client.Consume(ctx, s.Consumer, s.Message, s.request(), func(ctx context.Context, tx T) error {
		_, err := c.do(ctx, tx, s.Effect, called.Add(1))
		return err
	}, opts...)
	if err != nil || c.unshare != nil {
		return said{"verdict": verdict[applied]}, err
	}
	// The same in a transaction of the caller's own.
	var again bool
	err = c.inside(ctx, "read committed", func(tx T) (err error) {
		again, err = c.client.Receive(ctx, tx, s.Consumer, s.Message, s.request(), opts...)
		return err
	})
	return said{"verdict": verdict[applied], "again": verdict[again]}, err
}

// called: how often the effect was, or the work.
func (c *calls[T]) call(s step, called *atomic.Int32) (said, error) {
	ctx, opts := context.Background(), s.options()
	switch s.Call {
	case "run":
		got, err := c.client.Run(ctx, s.Scope, s.Key, s.request(), func(ctx context.Context, tx T) (once.Answer, error) {
			return c.do(ctx, tx, s.Effect, called.Add(1))
		}, opts...)
		return answered(got), err
	case "effect":
		got, err := c.client.Effect(ctx, s.Scope, s.Key, s.request(), func(ctx context.Context) (once.Answer, error) {
			var none T
			if _, err := c.do(ctx, none, s.Work, called.Add(1)); err != nil {
				return once.Answer{}, err
			}
			result, _ := s.Result.bytes()
			return once.JSON(0, string(result)), nil
		}, opts...)
		return answered(got), err
	case "claim":
		return c.claim(ctx, s, opts)
	case "receive":
		return c.receive(ctx, s, opts, called)
	case "complete", "fail", "release", "renew":
		is, err := c.report(ctx, s)
		return said{"is": is}, err
	case "lost":
		lease := c.leases[s.Of].Context()
		<-lease.Done()
		return said{"is": errors.Is(context.Cause(lease), once.ErrLeaseLost)}, nil
	case "late":
		return said{}, c.exec(ctx, c.kept, s.SQL)
	case "forget":
		clear(c.leases)
		return said{}, nil
	case "nodes":
		return said{}, c.share(s)
	case "routed":
		return c.routed, nil
	case "serve":
		c.service = serving(c.door, s)
		return said{"port": c.service.port()}, nil
	case "begun":
		<-c.service.begun
		return said{}, nil
	case "let":
		c.service.release()
		return said{}, nil
	case "stop":
		return said{"runs": c.service.stop()}, nil
	}
	return nil, fmt.Errorf("no such call: %s", s.Call)
}

// By the names that the cases have for them, where these are not the Code.
var named = map[*once.Error]string{once.ErrTransactionControl: "usage", once.ErrUnavailable: "connection", once.ErrNotDivided: "usage"}

func init() {
	for _, each := range []*once.Error{once.ErrScopeRequired, once.ErrKeyMalformed, once.ErrMismatch, once.ErrRefused, once.ErrCompletionRefused, once.ErrFailureRefused,
		once.ErrActive, once.ErrInDoubt, once.ErrExpired, once.ErrMessageMismatch, once.ErrEventMismatch, once.ErrTooLarge, once.ErrSlotClosed, once.ErrSwallowed, once.ErrOutcomeUnknown, once.ErrConflict} {
		named[each] = each.Code
	}
}

func failed(err error) said {
	var final *once.FinalError
	var known *once.Error
	var none nothingDone
	var driver *pgconn.PgError
	if _, is := err.(thrown); is {
		return said{"code": "application"}
	}
	switch {
	case errors.As(err, &final):
		return said{"code": "final_failure", "sqlstate": final.SQLState, "status": final.Status, "retryable": final.Retryable, "answer": answered(final.Answer), "text": err.Error()}
	case errors.As(err, &known):
		for each, name := range named {
			if errors.Is(err, each) && each.Code == known.Code {
				return said{"code": name, "sqlstate": known.SQLState, "status": known.Status, "retryable": known.Retryable, "text": err.Error()}
			}
		}
		return said{"code": "none of the Err values", "text": err.Error()}
	case errors.As(err, &none):
		return said{"code": "not_done"}
	case errors.As(err, &driver):
		return said{"code": "database", "sqlstate": driver.Code, "text": err.Error()}
	}
	return said{"code": "none of the client", "text": err.Error()}
}

func (c *calls[T]) one(s step, called *atomic.Int32) said {
	result, err := c.call(s, called)
	if err != nil {
		return said{"error": failed(err)}
	}
	return said{"result": result}
}

func (c *calls[T]) answer(s step) said {
	var called atomic.Int32
	if s.Callers == 0 {
		answer := c.one(s, &called)
		answer["calls"] = called.Load()
		return answer
	}
	each := make([]said, s.Callers)
	var all sync.WaitGroup
	all.Add(s.Callers)
	for i := range each {
		go func(i int) {
			defer all.Done()
			own := s
			own.Tenant = strings.ReplaceAll(s.Tenant, "{n}", strconv.Itoa(i))
			each[i] = c.one(own, &called)
		}(i)
	}
	all.Wait()
	return said{"each": each, "calls": called.Load()}
}
