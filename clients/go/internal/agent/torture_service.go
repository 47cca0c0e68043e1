// SPDX-License-Identifier: PostgreSQL

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"pgonce.internal/once"
)

// By orders on standard input, or with a port over HTTP (tests/torture/services.py).
func (d *door[T]) work(port string) error {
	if port == "" {
		d.serve()
		return nil
	}
	protect := d.client.Middleware(once.HTTP{Scope: "requests", HandlerTimeout: 4 * time.Second, Tenant: func(r *http.Request) string { return orderOf(r).Tenant }})
	mux := http.NewServeMux()
	mux.Handle("/requests", protect(http.HandlerFunc(d.handle)))
	elsewhere := once.HTTP{Scope: "endpoints", HandlerTimeout: 4 * time.Second, Tenant: func(r *http.Request) string { return orderOf(r).Tenant }}
	mux.Handle("/endpoints", d.client.EffectHandler(elsewhere, func(r *http.Request) (once.Answer, error) {
		answer, err := d.elsewhere(r)
		answer.Header = http.Header{"Content-Type": {"application/octet-stream"}}
		if errors.Is(err, errNothing) {
			err = once.NotDone(err)
		}
		return answer, err
	}))
	elsewhere.Scope, elsewhere.Mode = "leases", once.LeaseMode
	mux.Handle("/leases", d.client.Middleware(elsewhere)(http.HandlerFunc(d.leaseHeld)))
	return http.ListenAndServe("127.0.0.1:"+port, telling(mux))
}

// telling says of each answer whether its handler was called: an attempt may leave a doubt, or learn of one.
func telling(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ran := &atomic.Bool{}
		next.ServeHTTP(teller{w, ran}, r.WithContext(context.WithValue(r.Context(), ranKey{}, ran)))
	})
}

type ranKey struct{}

type teller struct {
	http.ResponseWriter
	ran *atomic.Bool
}

func (t teller) WriteHeader(status int) {
	if t.ran.Load() {
		t.Header().Set("X-Ran", "yes")
	}
	t.ResponseWriter.WriteHeader(status)
}

func (t teller) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func orderOf(r *http.Request) (o order) {
	if err := json.Unmarshal([]byte(r.Header.Get("X-Orders")), &o); err != nil {
		panic(err)
	}
	return o
}

// A request that the middleware has let in.
func (d *door[T]) handle(w http.ResponseWriter, r *http.Request) {
	o := orderOf(r)
	text, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	o.Payload = string(text)
	body, err := d.advance(r.Context(), d.client.Tx(r.Context()), &o)
	switch {
	case errors.Is(err, errNotNow) && o.Attempt%2 == 1:
		w.Header().Set("X-Done", "no")
		w.WriteHeader(http.StatusServiceUnavailable)
	case errors.Is(err, errNotNow):
		panic(http.ErrAbortHandler)
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
	case o.End == "final":
		written(w, o.Neighbour, http.StatusUnprocessableEntity, []byte(nonce()))
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		written(w, o.Neighbour, http.StatusCreated, body)
	}
}

// What is wrapped in it had no effect.
var errNothing = errors.New("nothing was done")

// An effect that is elsewhere: on another connection.
func (d *door[T]) elsewhere(r *http.Request) (answer once.Answer, err error) {
	o := orderOf(r)
	r.Context().Value(ranKey{}).(*atomic.Bool).Store(true)
	text, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	o.leaveAt("begun")
	pause(o.BeforeMs)
	switch o.End {
	case "retry":
		return answer, fmt.Errorf("%w: %w", errNothing, errNotNow)
	case "final":
		return answer, once.Fail("torture", "as ordered", once.Text(http.StatusUnprocessableEntity, nonce()))
	}
	if o.Neighbour == "second" {
		var nothing int
		if err := d.alone(r.Context(), "SELECT 1", nil, &nothing); err != nil {
			return answer, fmt.Errorf("%w: %w", errNothing, err)
		}
	}
	var body []byte
	err = d.alone(r.Context(), write, []any{o.Tenant, o.Scope, o.Key, string(text), o.Attempt, nil, false}, &body)
	switch {
	case err != nil && definite.MatchString(once.SQLStateOf(err)):
		return answer, fmt.Errorf("%w: %w", errNothing, err)
	case err != nil:
		return answer, err
	}
	pause(o.AfterMs)
	o.leaveAt("written")
	return once.Bytes(http.StatusCreated, body), nil
}

// The same under a lease, as an answer that the gateway would read so.
func (d *door[T]) leaseHeld(w http.ResponseWriter, r *http.Request) {
	answer, err := d.elsewhere(r)
	var final *once.FinalError
	switch {
	case errors.As(err, &final):
		written(w, "", final.Answer.Status, final.Answer.Body)
	case errors.Is(err, errNothing):
		w.Header().Set("X-Done", "no")
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		written(w, orderOf(r).Neighbour, answer.Status, answer.Body)
	}
}

// An answer, and what is around it.
func written(w http.ResponseWriter, neighbour string, status int, body []byte) {
	if neighbour == "trailers" {
		w.Header().Set("Trailer", "X-Sum")
	}
	w.WriteHeader(status)
	half := len(body) / 2
	_, _ = w.Write(body[:half])
	switch neighbour {
	case "pieces":
		_ = http.NewResponseController(w).Flush()
		pause(10)
	case "destroy", "cut":
		panic(http.ErrAbortHandler)
	case "trailers":
		w.Header().Set("X-Sum", strconv.Itoa(len(body)))
	}
	_, _ = w.Write(body[half:])
}
