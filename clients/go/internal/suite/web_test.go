// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
)

// What the tests of the middleware stand on: services of net/http, over real connections.

const patience = 60 * time.Second

// logged keeps what slog is told.
type logged struct {
	sync.Mutex
	out bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.Lock()
	defer l.Unlock()
	return l.out.Write(line)
}

func (l *logged) forget() {
	l.Lock()
	defer l.Unlock()
	l.out.Reset()
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logged) standard() *log.Logger {
	return slog.NewLogLogger(l.logger().Handler(), slog.LevelWarn)
}

// has says whether a line of this level has all of the texts.
func (l *logged) has(level string, texts ...string) bool {
	l.Lock()
	defer l.Unlock()
	for _, line := range strings.Split(l.out.String(), "\n") {
		found := strings.Contains(line, `"level":"`+level+`"`)
		for _, text := range texts {
			found = found && strings.Contains(line, text)
		}
		if found {
			return true
		}
	}
	return false
}

// site is a protected handler, and what it is seen by.
type site[T any] struct {
	t      *testing.T
	at     place
	client *once.Client[T]
	exec   execer[T]
	web    *httptest.Server
	pool   *pgxpool.Pool // of the suite's own
	log    *logged
	runs   atomic.Int32
}

type layer = func(http.Handler) http.Handler

// newSite serves a handler that gets its site, too. outer: the layers outside, the outermost first.
func newSite[T any](t *testing.T, at place, client *once.Client[T], exec execer[T], settings once.HTTP, handler func(s *site[T], w http.ResponseWriter, r *http.Request), outer ...layer) *site[T] {
	t.Helper()
	s := &site[T]{t: t, at: at, client: client, exec: exec, pool: owner(t, at), log: &logged{}}
	settings.SingleTenant, settings.Logger = settings.Tenant == nil, s.log.logger()
	if settings.Scope == "" {
		settings.Scope = "web"
	}
	var served http.Handler = client.Middleware(settings)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		handler(s, w, r)
	}))
	for i := len(outer) - 1; i >= 0; i-- {
		served = outer[i](served)
	}
	s.web = httptest.NewUnstartedServer(served)
	s.web.Config.ErrorLog = s.log.standard()
	s.web.Start()
	t.Cleanup(s.web.Close)
	return s
}

// write leaves an effect, in the transaction of the request.
func (s *site[T]) write(r *http.Request) {
	if err := s.exec(r.Context(), s.client.Tx(r.Context()), "INSERT INTO effect (key) VALUES ($1)", r.Header.Get("Idempotency-Key")); err != nil {
		panic(err)
	}
}

func (s *site[T]) post(key, body string, headers ...string) *response {
	s.t.Helper()
	got, err := s.try(key, body, headers...)
	if err != nil {
		s.t.Fatalf("%s: %v", key, err)
	}
	return got
}

func (s *site[T]) try(key, body string, headers ...string) (*response, error) {
	request, err := http.NewRequest("POST", s.web.URL+"/orders", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Idempotency-Key", key)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	got, err := s.web.Client().Do(request)
	if err != nil {
		return nil, err
	}
	defer got.Body.Close()
	read, err := io.ReadAll(got.Body)
	return &response{got.StatusCode, got.Header, read}, err
}

// open sends the text of a request over a connection of its own.
func (s *site[T]) open(format string, args ...any) net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.web.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(conn, format, args...); err != nil {
		s.t.Fatal(err)
	}
	return conn
}

func (s *site[T]) opened(key string) net.Conn {
	s.t.Helper()
	return s.open("POST /orders HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: %s\r\nContent-Length: 0\r\n\r\n", s.web.Listener.Addr(), key)
}

func answerOf(conn net.Conn) (*response, error) {
	read, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "POST"})
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(read.Body)
	return &response{read.StatusCode, read.Header, body}, err
}

func (s *site[T]) effects(key string, want int) {
	s.t.Helper()
	if got := effects(s.t, s.pool, key); got != want {
		s.t.Fatalf("%s: %d effects, want %d", key, got, want)
	}
}

func (s *site[T]) ran(want int32) {
	s.t.Helper()
	if got := s.runs.Swap(0); got != want {
		s.t.Fatalf("the handler ran %d times, want %d", got, want)
	}
}

func (s *site[T]) isProblem(got *response, slug string) {
	s.t.Helper()
	var document struct{ Type string }
	if err := json.Unmarshal(got.body, &document); err != nil || document.Type != "urn:pgonce:problem:"+slug || got.status != problems[slug].Status {
		s.t.Fatalf("%d %s, want %s\n%s", got.status, got.body, slug, s.log.out.String())
	}
}

func (s *site[T]) is(got *response, status int, body string, replayed bool) {
	s.t.Helper()
	if got.status != status || string(got.body) != body || (got.header.Get("Idempotency-Replayed") == "true") != replayed {
		s.t.Fatalf("%d %q %v, want %d %q\n%s", got.status, got.body, got.header, status, body, s.log.out.String())
	}
}

// awaits a state that comes by itself.
func awaits(t testing.TB, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("it does not happen: ", what)
		}
	}
}

// withLeaving hands each request's own context on, which ends when the client leaves.
func withLeaving(into chan<- context.Context) layer {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			into <- r.Context()
			next.ServeHTTP(w, r)
		})
	}
}

func poolOf(t testing.TB, at place, conns int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(at.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}
