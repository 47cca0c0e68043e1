// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

// LeaseMode: the handler has no connection of ours, and its answer means what the gateway reads in it. And the leases of Claim.

func TestAHandlerUnderALeaseIsReadAsTheGatewayReadsIt(t *testing.T) {
	at := newDatabase(t)
	pool := poolOf(t, at, 1)
	for name, each := range map[string]struct {
		status int
		header []string
		again  string // what a retry gets: "replay", "run", "doubt"
	}{
		"done": {201, nil, "replay"}, "see-other": {303, []string{"Location", "/x"}, "replay"}, "moved": {308, []string{"Location", "/x"}, "run"}, "refused": {422, nil, "replay"},
		"conflict": {409, nil, "replay"}, "later": {409, []string{"Retry-After", "1"}, "run"}, "unavailable": {503, nil, "doubt"}, "comes-again": {503, []string{"Retry-After", "1"}, "run"},
		"failed": {500, nil, "doubt"}, "late": {500, []string{"Retry-After", "1"}, "doubt"}, "timeout": {408, nil, "doubt"}, "early": {425, nil, "run"}, "misdirected": {421, nil, "run"},
		"who": {401, nil, "replay"}, "token": {401, []string{"WWW-Authenticate", "Bearer"}, "run"}, "proxy": {407, []string{"Proxy-Authenticate", "Basic"}, "run"},
		"none": {500, []string{"Once-Effect", "none"}, "run"}, "did": {500, []string{"Once-Effect", "done"}, "replay"}, "unknown": {200, []string{"Once-Effect", "unknown"}, "doubt"},
		"short": {200, []string{"Content-Length", "99"}, "doubt"}, "panic": {0, nil, "doubt"},
	} {
		s := newSite(t, at, oncepgx.New(pool), execPgx, once.HTTP{Mode: once.LeaseMode}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
			if _, within := s.client.TxIn(r.Context()); within {
				t.Error("a transaction")
			}
			// The only connection of the pool is free, with a transaction of the handler's own.
			err := pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error {
				return execPgx(r.Context(), tx, "INSERT INTO effect (key) VALUES ($1)", r.Header.Get("Idempotency-Key"))
			})
			if err != nil {
				t.Error(err)
			}
			for i := 0; i < len(each.header); i += 2 {
				w.Header().Set(each.header[i], each.header[i+1])
			}
			if each.status == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(each.status)
			fmt.Fprint(w, name)
		}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Header.Set("X-Redirects", "none")
				next.ServeHTTP(w, r)
			})
		})
		s.web.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		first, err := answerOf(s.opened(name))
		switch {
		case name == "short" || name == "panic":
			if err == nil {
				t.Fatal(name, first)
			}
		case err != nil || first.status != each.status || string(first.body) != name || first.header.Get("Once-Effect") != "":
			t.Fatalf("%s: %v %v", name, first, err)
		}
		switch each.again {
		case "doubt":
			awaits(t, "the doubt is stored", func() bool { return !strings.HasPrefix(reason(t, at, name), "processing") })
			s.isProblem(s.post(name, ""), "in-doubt")
			s.ran(1)
		case "replay":
			s.is(s.post(name, ""), each.status, name, true)
			s.ran(1)
		default:
			s.is(s.post(name, ""), each.status, name, false)
			s.ran(2)
		}
		s.web.Close()
	}
}

func TestAHandlerUnderALeaseWhoseTimeIsOverLeavesADoubt(t *testing.T) {
	at := newDatabase(t)
	let := make(chan struct{})
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{Mode: once.LeaseMode, HandlerTimeout: 2 * time.Second}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		if !errors.Is(context.Cause(r.Context()), once.ErrTimedOut) {
			t.Error(context.Cause(r.Context()))
		}
		if r.Header.Get("Idempotency-Key") == "ignores" {
			<-let
		}
	})
	defer close(let)
	for _, key := range []string{"heeds", "ignores"} {
		s.isProblem(s.post(key, ""), "in-doubt")
		s.isProblem(s.post(key, ""), "in-doubt")
		if said := reason(t, at, key); !strings.HasPrefix(said, "in_doubt no_answer ") {
			t.Fatal(said)
		}
		s.ran(1)
	}
}

func TestAFailureForGoodWhoseAnswerIsTooLargeIsOneAllTheSame(t *testing.T) {
	both(t, func(t *testing.T) { largeFailure(t, newPgx) }, func(t *testing.T) { largeFailure(t, newSQL) })
}

func largeFailure[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	client := connect(t, at.URL)
	for i := 0; i < 2; i++ {
		_, err := client.Effect(context.Background(), "charges", "large", 1, func(context.Context) (once.Answer, error) {
			return once.Answer{}, once.Fail("declined", "no", once.Text(402, strings.Repeat("x", 2<<20)))
		})
		var final *once.FinalError
		if !errors.As(err, &final) || final.Status != 402 || final.Code != "declined" || (i == 1 && (!final.Answer.Replayed || len(final.Answer.Body) > 0)) {
			t.Fatalf("%v", err)
		}
	}
}

func TestALeaseThatIsClosedRunsOutAndReportsNothing(t *testing.T) {
	both(t, func(t *testing.T) { closedLease(t, newPgx) }, func(t *testing.T) { closedLease(t, newSQL) })
}

func closedLease[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	client := connect(t, newDatabase(t).URL, once.LeaseFor(300*time.Millisecond), once.Wait(20*time.Second))
	ctx := context.Background()
	lease, _, err := client.Claim(ctx, "leases", "key", 1)
	if err != nil {
		t.Fatal(err)
	}
	lease.Close()
	lease.Close()
	if !errors.Is(context.Cause(lease.Context()), context.Canceled) {
		t.Fatalf("%v", context.Cause(lease.Context()))
	}
	// With a heartbeat this would wait for all of its 20 seconds.
	next, _, err := client.Claim(ctx, "leases", "key", 1, once.Takeover(true))
	if err != nil || next.Verdict != "processing_stale" || next.Fence <= lease.Fence {
		t.Fatalf("%+v, %v", next, err)
	}
	defer next.Close()
	if stored, err := next.Complete(ctx, once.Text(201, "done")); err != nil || !stored {
		t.Fatal(stored, err)
	}
}
