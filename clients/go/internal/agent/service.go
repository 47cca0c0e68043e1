// SPDX-License-Identifier: PostgreSQL

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"pgonce.internal/once"
)

type location struct {
	Once, Scope, Tenant, Database, Mode string
	KeySyntax                           string `json:"key_syntax"`
	WaitMs                              int    `json:"wait_ms"`
	ResponseMax                         int    `json:"response_max"`
	BodyMax                             int    `json:"body_max"`
	KeyLength                           int    `json:"key_length"`
	Methods, Headers                    []string
	CanonicalJSON                       bool `json:"canonical_json"`
}

func (l location) settings() once.HTTP {
	settings := once.HTTP{Scope: "conformance", Optional: l.Once == "on", Methods: l.Methods, StrictKeys: l.KeySyntax == "strict", KeyLengthMax: l.KeyLength,
		Wait: time.Duration(l.WaitMs) * time.Millisecond, BodyMax: l.BodyMax, AnswerMax: l.ResponseMax, Headers: l.Headers, CanonicalJSON: l.CanonicalJSON}
	if l.Scope != "" {
		settings.Scope = l.Scope
	}
	if l.Mode == "lease" {
		settings.Mode = once.LeaseMode
	}
	if l.Tenant == "none" {
		settings.SingleTenant = true
	} else {
		settings.Tenant = func(r *http.Request) string { return r.Header.Get("X-Tenant") }
	}
	return settings
}

// What an execution of a case's service does.
type execution struct {
	content
	Status  int
	Headers [][2]string
	Effect  *bool
	Pieces  int
	Hold    bool
	Throw   string
	Behind  []string
}

type service[T any] struct {
	*door[T]
	name     string
	script   []execution
	web      *httptest.Server
	counting sync.Mutex
	runs     int
	begun    chan bool
	let      chan bool
	letting  sync.Once
}

func serving[T any](d *door[T], s step) *service[T] {
	served := &service[T]{door: d, name: s.Name, script: s.Service, begun: make(chan bool, 10), let: make(chan bool)}
	client := d.client
	if s.Location.Database == "away" {
		client = d.away
	}
	served.web = httptest.NewServer(recovering(client.Middleware(s.Location.settings())(served)))
	return served
}

func (s *service[T]) port() int { return s.web.Listener.Addr().(*net.TCPAddr).Port }

func (s *service[T]) release() { s.letting.Do(func() { close(s.let) }) }

func (s *service[T]) stop() int {
	s.release()
	s.web.Close()
	return s.runs
}

func (s *service[T]) next() (int, execution) {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.runs++
	return s.runs, s.script[min(s.runs, len(s.script))-1]
}

func (s *service[T]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, told := s.next()
	if _, err := io.ReadAll(r.Body); err != nil {
		panic(err)
	}
	if told.Hold {
		s.begun <- true
		<-s.let
	}
	if tx, within := s.client.TxIn(r.Context()); within && (told.Effect == nil || *told.Effect) {
		if err := s.exec(r.Context(), tx, "INSERT INTO effect (key, attempt) VALUES ($1, $2)", s.name, number); err != nil {
			panic(err)
		}
		for _, text := range told.Behind {
			if err := s.behind(r.Context(), tx, text); err != nil {
				panic(err)
			}
		}
	}
	if told.Throw != "" {
		panic(thrown(told.Throw))
	}
	if told.Headers == nil {
		told.Headers = [][2]string{{"Content-Type", "application/json"}}
	}
	for _, pair := range told.Headers {
		w.Header().Add(pair[0], pair[1])
	}
	body, given := told.bytes()
	if !given {
		body = []byte(fmt.Sprintf(`{"execution": %d}`, number))
	}
	if told.Status == 0 {
		told.Status = 201
	}
	w.WriteHeader(told.Status)
	for pieces := max(told.Pieces, 1); pieces > 0 && len(body) > 0; pieces-- {
		size := max(len(body)/pieces, 1)
		if pieces == 1 {
			size = len(body)
		}
		if _, err := w.Write(body[:size]); err != nil {
			return
		}
		body = body[size:]
	}
}

// As a framework answers what a handler throws.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				http.Error(w, "Internal Server Error", 500)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
