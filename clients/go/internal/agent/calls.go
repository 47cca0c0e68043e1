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
	"time"

	"pgonce.internal/once"
)

// The calls of spec/cases/sql.json.

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

type step struct {
	Call, Scope, Key, Tenant, As, Of, Consumer, Message, Code string

	Request struct {
		content
		HTTP *struct {
			Method, Target, Text string
			ContentType          string `json:"content_type"`
		}
	}
	Effect struct {
		Do []struct {
			SQL, Swallow string
			Emit         *emission
			EmitBytes    *emission `json:"emit_bytes"`
			Lock         struct {
				Resource string
				WaitMs   int `json:"wait_ms"`
			}
			Is bool
		}
		Answer outcome
		Fail   *outcome
		Throw  string
	}
	Answer      outcome
	Result      content
	LeaseMs     int `json:"lease_ms"`
	RetentionMs int `json:"retention_ms"`
	Takeover    *bool
	Retryable   *bool

	Name     string
	Location location
	Service  []execution
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

// What an effect throws where it is told to.
var errThrown = errors.New("as ordered")

type calls[T any] struct {
	*door[T]
	leases  map[string]*once.Lease
	service *service[T]
}

func (c *calls[T]) do(ctx context.Context, tx T, s step) (once.Answer, error) {
	for _, each := range s.Effect.Do {
		var err error
		switch {
		case each.SQL != "":
			err = c.exec(ctx, tx, each.SQL)
		case each.Swallow != "":
			_ = c.exec(ctx, tx, each.Swallow)
		case each.Emit != nil:
			_, err = c.client.Emit(ctx, tx, each.Emit.event())
		case each.EmitBytes != nil:
			_, err = c.client.EmitBytes(ctx, tx, each.EmitBytes.event(), each.EmitBytes.Base64, each.EmitBytes.ContentType)
		default:
			var taken bool
			taken, err = c.client.Lock(ctx, tx, each.Lock.Resource, time.Duration(each.Lock.WaitMs)*time.Millisecond)
			if err == nil && taken != each.Is {
				err = fmt.Errorf("the lock is %v", taken)
			}
		}
		if err != nil {
			return once.Answer{}, err
		}
	}
	switch {
	case s.Effect.Throw != "":
		return once.Answer{}, errThrown
	case s.Effect.Fail != nil:
		return once.Answer{}, once.Fail(s.Effect.Fail.Code, s.Effect.Fail.Message, s.Effect.Fail.made())
	}
	return s.Effect.Answer.made(), nil
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
		opts = append(opts, once.LeaseFor(time.Duration(s.LeaseMs)*time.Millisecond))
	}
	if s.RetentionMs > 0 {
		opts = append(opts, once.Retention(time.Duration(s.RetentionMs)*time.Millisecond))
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

func (c *calls[T]) receive(ctx context.Context, s step, opts []once.Option) (said, error) {
	verdict := map[bool]string{true: "process", false: "duplicate"}
	applied, err := c.client.Consume(ctx, s.Consumer, s.Message, s.request(), func(ctx context.Context, tx T) error {
		_, err := c.do(ctx, tx, s)
		return err
	}, opts...)
	if err != nil {
		return nil, err
	}
	// The same in a transaction of the caller's own.
	var again bool
	err = c.inside(ctx, "read committed", func(tx T) (err error) {
		again, err = c.client.Receive(ctx, tx, s.Consumer, s.Message, s.request(), opts...)
		return err
	})
	return said{"verdict": verdict[applied], "again": verdict[again]}, err
}

func (c *calls[T]) call(s step) (said, error) {
	ctx := context.Background()
	opts := []once.Option{once.Tenant(s.Tenant)}
	switch s.Call {
	case "run":
		got, err := c.client.Run(ctx, s.Scope, s.Key, s.request(), func(ctx context.Context, tx T) (once.Answer, error) { return c.do(ctx, tx, s) }, opts...)
		return answered(got), err
	case "effect":
		got, err := c.client.Effect(ctx, s.Scope, s.Key, s.request(), func(context.Context) (once.Answer, error) {
			result, _ := s.Result.bytes()
			return once.JSON(0, string(result)), nil
		}, opts...)
		return answered(got), err
	case "claim":
		return c.claim(ctx, s, opts)
	case "receive":
		return c.receive(ctx, s, opts)
	case "complete", "fail", "release", "renew":
		is, err := c.report(ctx, s)
		return said{"is": is}, err
	case "forget":
		clear(c.leases)
		return said{}, nil
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

var named = []*once.Error{once.ErrScopeRequired, once.ErrKeyMalformed, once.ErrMismatch, once.ErrRefused, once.ErrCompletionRefused, once.ErrFailureRefused,
	once.ErrActive, once.ErrInDoubt, once.ErrExpired, once.ErrMessageMismatch, once.ErrEventMismatch, once.ErrTooLarge, once.ErrSwallowed}

func failed(err error) said {
	var final *once.FinalError
	var known *once.Error
	switch {
	case err == errThrown:
		return said{"code": "application"}
	case errors.As(err, &final):
		return said{"code": "final_failure", "sqlstate": final.SQLState, "status": final.Status, "retryable": final.Retryable, "answer": answered(final.Answer), "text": err.Error()}
	case errors.As(err, &known):
		for _, each := range named {
			if errors.Is(err, each) && each.Code == known.Code {
				return said{"code": known.Code, "sqlstate": known.SQLState, "status": known.Status, "retryable": known.Retryable, "text": err.Error()}
			}
		}
		return said{"code": "none of the Err values", "text": err.Error()}
	}
	return said{"code": "none of the client", "text": err.Error()}
}

func (c *calls[T]) answer(s step) said {
	result, err := c.call(s)
	if err != nil {
		return said{"error": failed(err)}
	}
	return said{"result": result}
}
