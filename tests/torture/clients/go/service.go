// SPDX-License-Identifier: PostgreSQL

package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
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
	return http.ListenAndServe("127.0.0.1:"+port, mux)
}

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
		answered(w, o.Neighbour, http.StatusUnprocessableEntity, []byte(nonce()))
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		answered(w, o.Neighbour, http.StatusCreated, body)
	}
}

// An answer, and what is around it.
func answered(w http.ResponseWriter, neighbour string, status int, body []byte) {
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
	case "destroy":
		panic(http.ErrAbortHandler)
	case "trailers":
		w.Header().Set("X-Sum", strconv.Itoa(len(body)))
	}
	_, _ = w.Write(body[half:])
}
