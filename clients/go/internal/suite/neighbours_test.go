// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgonce.internal/once"
)

// What layers outside, tests, and servers that say nothing do around a protected handler.

func TestAnEmptyBodyIsOneHoweverItIsSent(t *testing.T) {
	at := newDatabase(t)
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{AnyHost: true}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, len(body), err)
	})
	chunked := "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
	for i := 0; i < 2; i++ {
		got, err := answerOf(s.open("%s", chunked))
		if err != nil {
			t.Fatal(err)
		}
		s.is(got, 200, "0 <nil>", i > 0)
	}
	// HTTP/2, whose client has not known that there is nothing.
	two := httptest.NewUnstartedServer(s.web.Config.Handler)
	two.EnableHTTP2 = true
	two.StartTLS()
	defer two.Close()
	request, err := http.NewRequest("POST", two.URL, struct{ io.Reader }{strings.NewReader("")})
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Idempotency-Key", "two")
	got, err := two.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(got.Body)
	_ = got.Body.Close()
	if got.ProtoMajor != 2 || got.StatusCode != 200 || string(body) != "0 <nil>" {
		t.Fatal(got, string(body))
	}
	// And a request of a test, which has been on no wire.
	for _, outer := range []layer{func(next http.Handler) http.Handler { return next }, once.KeepBody(100)} {
		recorder := httptest.NewRecorder()
		request, err := http.NewRequest("POST", "/orders", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Idempotency-Key", "none")
		outer(s.web.Config.Handler).ServeHTTP(recorder, request)
		if recorder.Code != 200 || recorder.Body.String() != "0 <nil>" {
			t.Fatal(recorder.Code, recorder.Body)
		}
	}
}

func TestLayersOutsideSeeWhatTheHandlerHasMadeOfTheRequest(t *testing.T) {
	at := newDatabase(t)
	for _, mode := range []once.Mode{once.TransactionMode, once.LeaseMode} {
		s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{Mode: mode}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.FormValue("amount"))
			r.Method = "PUT" // as layers do that take it from a header
		}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ctx, body := r.Context(), r.Body
				next.ServeHTTP(w, r)
				if r.PostForm.Get("amount") != "100" || r.Method != "PUT" || r.Context() != ctx || r.Body != body {
					t.Error(r.PostForm, r.Method)
				}
			})
		})
		s.is(s.post(fmt.Sprint("seen-", mode), "amount=100", "Content-Type", "application/x-www-form-urlencoded"), 200, "100", false)
	}
}

// ending calls a function as soon as a claim is there.
type ending struct{ now func(ctx context.Context) }

func (e ending) Begin(ctx context.Context, kind, _ string) (context.Context, func(once.Observed)) {
	return ctx, func(once.Observed) {
		if kind == "claim" {
			e.now(ctx)
		}
	}
}
func (ending) Traceparent(context.Context) string { return "" }

func TestWorkWhoseTimeIsOverAsItsClaimComesIsNotBegun(t *testing.T) {
	at := newDatabase(t)
	over := errors.New("it is over")
	var end atomic.Pointer[context.CancelCauseFunc]
	observed := once.Observe(ending{func(ctx context.Context) {
		if now := end.Swap(nil); now != nil {
			(*now)(over)
			<-ctx.Done()
		}
	}})
	client := newPgx(t, at.URL, observed)
	runs := 0
	work := func(context.Context) (once.Answer, error) {
		runs++
		return once.Text(201, "charged"), nil
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	end.Store(&cancel)
	if _, err := client.Effect(ctx, "charges", "late", 1, work); !errors.Is(err, over) || runs != 0 {
		t.Fatal(err, runs)
	}
	if got, err := client.Effect(context.Background(), "charges", "late", 1, work); err != nil || got.Replayed || runs != 1 {
		t.Fatal(got, err, runs)
	}
	s := newSite(t, at, client, execPgx, once.HTTP{Mode: once.LeaseMode}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithCancelCause(r.Context())
			defer cancel(nil)
			if r.Header.Get("X-Late") != "" {
				end.Store(&cancel)
			}
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	})
	s.isProblem(s.post("late", "", "X-Late", "yes"), "timed-out")
	s.ran(0)
	s.is(s.post("late", ""), 200, "", false)
	s.ran(1)
}

// hush passes everything on until the client sends the text, and from then on nothing, as a network does
// that has lost its other end.
func hush(t *testing.T, at place, text string) (url string, fell <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	silent := make(chan struct{})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", net.JoinHostPort(at.Host, fmt.Sprint(at.Port)))
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
			go func() { _, _ = io.Copy(client, server) }()
			go func() {
				buffer := make([]byte, 1<<16)
				for {
					n, err := client.Read(buffer)
					if err != nil {
						return
					}
					if strings.Contains(strings.ToLower(string(buffer[:n])), text) {
						close(silent)
						return
					}
					_, _ = server.Write(buffer[:n])
				}
			}()
		}
	}()
	return fmt.Sprintf("postgresql://%s@%s/%s", at.User, listener.Addr(), at.Database), silent
}

func TestAServerThatFallsSilentHoldsNoRequest(t *testing.T) {
	both(t, func(t *testing.T) { silence(t, newPgx, execPgx) }, func(t *testing.T) { silence(t, newSQL, execSQL) })
}

func silence[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	for i, text := range []string{"begin", "try_start", "rollback", "once.finish"} {
		key := fmt.Sprint("silent-", i)
		url, fell := hush(t, at, text)
		s := newSite(t, at, connect(t, url+asText, once.Within(5*time.Second)), exec, once.HTTP{HandlerTimeout: 2 * time.Second}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
			s.write(r)
			if text == "rollback" {
				w.WriteHeader(500)
			}
		})
		began := time.Now()
		got := s.post(key, "")
		<-fell
		switch {
		case text == "rollback" && got.status != 500, text != "rollback" && got.status != 503, time.Since(began) > 45*time.Second:
			t.Fatalf("%s: %d %s after %s", text, got.status, got.body, time.Since(began))
		}
		s.effects(key, 0)
	}
}
