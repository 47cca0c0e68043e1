// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
)

// forwarder stands between a client and the server, and loses what it is told to lose.
func forwarder(t *testing.T, at place) (*helper, string) {
	t.Helper()
	var where struct {
		Host string
		Port int
	}
	h, err := startHelper(&where, filepath.Join(root, "tests/clients/forwarder.py"), at.Socket, fmt.Sprint(at.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h, fmt.Sprintf("postgresql://%s@%s:%d/%s", at.User, where.Host, where.Port, at.Database)
}

func (h *helper) rule(t *testing.T, format string, args ...any) int {
	t.Helper()
	var said struct{ Rule int }
	if err := h.ask(&said, format, args...); err != nil || said.Rule == 0 {
		t.Fatal(err, said)
	}
	return said.Rule
}

func (h *helper) fired(t *testing.T, rule int) {
	t.Helper()
	var said struct{ Fired bool }
	if err := h.ask(&said, "wait %d", rule); err != nil || !said.Fired {
		t.Fatalf("the rule did not fire (%v)", err)
	}
}

func effects(t *testing.T, pool *pgxpool.Pool, key string) (count int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), "SELECT count(*) FROM effect WHERE key = $1", key).Scan(&count); err != nil {
		t.Fatal(err)
	}
	return count
}

// both runs a test through both doors.
func both(t *testing.T, pgxTest, sqlTest func(*testing.T)) {
	t.Run("pgx", pgxTest)
	t.Run("sql", sqlTest)
}

func TestALostCommitIsAskedForAndNeverGuessed(t *testing.T) {
	both(t, func(t *testing.T) { lostCommit(t, "COMMIT", newPgx, execPgx) }, func(t *testing.T) { lostCommit(t, "commit", newSQL, execSQL) })
}

// Statements go as text, so that the forwarder knows them by it. commit: as the driver spells it.
const asText = "?default_query_exec_mode=exec"

func lostCommit[T any](t *testing.T, commit string, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	for _, fault := range []struct {
		rule      string
		committed bool
	}{{"lose_answer", true}, {"lose_connection_after", true}, {"lose_request", false}} {
		t.Run(fault.rule, func(t *testing.T) {
			at := newDatabase(t)
			pool := owner(t, at)
			lossy, address := forwarder(t, at)
			client := connect(t, address+asText)
			key := "lost/" + fault.rule
			calls := 0
			place := func(ctx context.Context, tx T) (once.Answer, error) {
				calls++
				return once.Text(201, fmt.Sprint("call ", calls)), exec(ctx, tx, "INSERT INTO effect (key) VALUES ($1)", key)
			}
			rule := lossy.rule(t, "%s %s", fault.rule, commit)
			answer, err := client.Run(context.Background(), "lost", key, 1, place)
			lossy.fired(t, rule)
			if err != nil {
				t.Fatal(err)
			}
			if got := effects(t, pool, key); got != 1 {
				t.Fatalf("%d effects", got)
			}
			if fault.rule == "lose_answer" && (calls != 1 || !answer.Replayed) {
				t.Fatalf("%d calls, replayed %v: a COMMIT that happened was made again", calls, answer.Replayed)
			}
			if !fault.committed && (calls != 2 || answer.Replayed) {
				t.Fatalf("%d calls, replayed %v: a COMMIT that did not happen was taken for one", calls, answer.Replayed)
			}
			again, err := client.Run(context.Background(), "lost", key, 1, place)
			if err != nil || !again.Replayed || string(again.Body) != string(answer.Body) {
				t.Fatalf("%q, then %q (%v)", answer.Body, again.Body, err)
			}
		})
	}
}

func TestALostCommitThatCannotBeAskedForIsUnknown(t *testing.T) {
	both(t, func(t *testing.T) { unknownCommit(t, "COMMIT", newPgx) }, func(t *testing.T) { unknownCommit(t, "commit", newSQL) })
}

func unknownCommit[T any](t *testing.T, commit string, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	lossy, address := forwarder(t, at)
	client := connect(t, address+asText, once.Within(1500*time.Millisecond))
	rule := 0
	_, err := client.Run(context.Background(), "unknown", "key", 1, func(ctx context.Context, tx T) (once.Answer, error) {
		rule = lossy.rule(t, "lose_answer %s", commit)
		for i := 0; i < 200; i++ { // nor does any question come through
			lossy.rule(t, "lose_request try_start")
		}
		return once.Text(200, "x"), nil
	})
	if !errors.Is(err, once.ErrOutcomeUnknown) {
		t.Fatalf("%v", err)
	}
	lossy.fired(t, rule)
	var said struct{ Done string }
	if err := lossy.ask(&said, "forget"); err != nil {
		t.Fatal(err)
	}
	answer, err := client.Run(context.Background(), "unknown", "key", 1, func(ctx context.Context, tx T) (once.Answer, error) { return once.Answer{}, errApplication })
	if err != nil || !answer.Replayed {
		t.Fatalf("%v", err)
	}
}

func TestABackendKilledAtEachStepLeavesOneEffect(t *testing.T) {
	both(t, func(t *testing.T) { killed(t, newPgx, execPgx) }, func(t *testing.T) { killed(t, newSQL, execSQL) })
}

func killed[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	name := strings.ReplaceAll(t.Name(), "/", "_")
	client := connect(t, at.URL+"?application_name="+url.QueryEscape(name))
	kill := func() {
		var said struct{ Ended int }
		if err := server.ask(&said, "terminate %s", name); err != nil || said.Ended == 0 {
			t.Fatalf("%v, %d sessions ended", err, said.Ended)
		}
	}
	for _, when := range []string{"before the first statement", "before an effect's statement", "after the effect", "between two calls"} {
		key := "killed " + when
		calls := 0
		run := func() (once.Answer, error) {
			return client.Run(context.Background(), "killed", strings.ReplaceAll(key, " ", "-"), 1, func(ctx context.Context, tx T) (once.Answer, error) {
				calls++
				if calls == 1 && when == "before an effect's statement" {
					kill()
				}
				err := exec(ctx, tx, "INSERT INTO effect (key) VALUES ($1)", key)
				if calls == 1 && when == "after the effect" {
					kill()
				}
				return once.Text(201, "made"), err
			})
		}
		if when == "before the first statement" || when == "between two calls" {
			if _, err := client.Run(context.Background(), "killed", "warm", 1, func(context.Context, T) (once.Answer, error) { return once.Text(200, ""), nil }); err != nil {
				t.Fatal(err)
			}
			kill()
		}
		answer, err := run()
		if err != nil || string(answer.Body) != "made" {
			t.Fatalf("%s: %v", when, err)
		}
		if got := effects(t, pool, key); got != 1 {
			t.Fatalf("%s: %d effects", when, got)
		}
		if again, err := run(); err != nil || !again.Replayed {
			t.Fatalf("%s: %v", when, err)
		}
	}
}

func TestSixtyFourCallersHaveOneEffect(t *testing.T) {
	both(t, func(t *testing.T) { parallel(t, newPgx, execPgx) }, func(t *testing.T) { parallel(t, newSQL, execSQL) })
}

func parallel[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	for _, isolation := range []string{"read committed", "serializable"} {
		client := connect(t, at.URL, once.Wait(30*time.Second), once.Isolation(isolation))
		var all sync.WaitGroup
		var fresh atomic.Int32
		for i := 0; i < 64; i++ {
			all.Add(1)
			go func(i int) {
				defer all.Done()
				answer, err := client.Run(context.Background(), "parallel", "key-of-"+isolation[:4], 1, func(ctx context.Context, tx T) (once.Answer, error) {
					return once.Text(201, "one"), exec(ctx, tx, "INSERT INTO effect (key) VALUES ($1)", isolation)
				})
				if err != nil || string(answer.Body) != "one" {
					t.Errorf("%v %q", err, answer.Body)
				}
				if !answer.Replayed {
					fresh.Add(1)
				}
			}(i)
		}
		all.Wait()
		if got := effects(t, pool, isolation); got != 1 || fresh.Load() != 1 {
			t.Fatalf("%d effects, %d calls were the first", got, fresh.Load())
		}
	}
}

func TestAConflictRunsTheEffectAgain(t *testing.T) {
	both(t, func(t *testing.T) { conflict(t, newPgx, execPgx) }, func(t *testing.T) { conflict(t, newSQL, execSQL) })
}

func conflict[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	client := connect(t, at.URL)
	for _, state := range []string{"40001", "40P01"} {
		calls := 0
		_, err := client.Run(context.Background(), "conflict", state, 1, func(ctx context.Context, tx T) (once.Answer, error) {
			calls++
			if err := exec(ctx, tx, "INSERT INTO effect (key) VALUES ($1)", state); err != nil || calls > 2 {
				return once.Text(201, ""), err
			}
			return once.Answer{}, exec(ctx, tx, fmt.Sprintf("DO $$BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '%s'; END$$", state))
		})
		if err != nil || calls != 3 || effects(t, pool, state) != 1 {
			t.Fatalf("%v, %d calls", err, calls)
		}
	}
	began := time.Now()
	_, err := client.Run(context.Background(), "conflict", "for-ever", 1, func(ctx context.Context, tx T) (once.Answer, error) {
		return once.Answer{}, exec(ctx, tx, "DO $$BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END$$")
	}, once.Within(2*time.Second))
	if !errors.Is(err, once.ErrConflict) || time.Since(began) > 30*time.Second {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
}

func TestACancelledContextNeverComesBetweenEffectAndCommit(t *testing.T) {
	both(t, func(t *testing.T) { cancelled(t, newPgx, execPgx) }, func(t *testing.T) { cancelled(t, newSQL, execSQL) })
}

func cancelled[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	client := connect(t, at.URL)
	for _, when := range []string{"before", "before-a-statement", "during-a-statement", "after-the-effect"} {
		ctx, cancel := context.WithCancel(context.Background())
		if when == "before" {
			cancel()
		}
		answer, err := client.Run(ctx, "cancelled", when, 1, func(ctx context.Context, tx T) (once.Answer, error) {
			if when == "before-a-statement" {
				cancel()
			}
			if when == "during-a-statement" {
				time.AfterFunc(50*time.Millisecond, cancel)
				if err := exec(ctx, tx, "SELECT pg_sleep(20)"); err != nil {
					return once.Answer{}, err
				}
			}
			if err := exec(ctx, tx, "INSERT INTO effect (key) VALUES ($1)", when); err != nil {
				return once.Answer{}, err
			}
			cancel()
			return once.Text(201, "made"), nil
		})
		cancel()
		want := 0
		if when == "after-the-effect" {
			want = 1
		}
		if got := effects(t, pool, when); got != want || (err == nil) != (want == 1) {
			t.Fatalf("%s: %d effects, %q, %v", when, got, answer.Body, err)
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: %v does not say that the context was cancelled", when, err)
		}
		// Nothing is left behind that a later call would wait for.
		again, err := client.Run(context.Background(), "cancelled", when, 1, func(ctx context.Context, tx T) (once.Answer, error) {
			return once.Text(201, "made"), exec(ctx, tx, "INSERT INTO effect (key) VALUES ($1)", when)
		}, once.Wait(30*time.Second))
		if err != nil || again.Replayed != (want == 1) || effects(t, pool, when) != 1 {
			t.Fatalf("%s, again: %v %v", when, again.Replayed, err)
		}
	}
}

func TestAPanicRollsBackAndGoesOn(t *testing.T) {
	both(t, func(t *testing.T) { panicking(t, newPgx, execPgx) }, func(t *testing.T) { panicking(t, newSQL, execSQL) })
}

func panicking[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	client := connect(t, at.URL)
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = client.Run(context.Background(), "panic", "key", 1, func(ctx context.Context, tx T) (once.Answer, error) {
			if err := exec(ctx, tx, "INSERT INTO effect (key) VALUES ('panic')"); err != nil {
				t.Error(err)
			}
			panic("boom")
		})
	}()
	answer, err := client.Run(context.Background(), "panic", "key", 1, func(ctx context.Context, tx T) (once.Answer, error) {
		return once.Text(201, ""), exec(ctx, tx, "INSERT INTO effect (key) VALUES ('panic')")
	})
	if err != nil || answer.Replayed || effects(t, pool, "panic") != 1 {
		t.Fatalf("%v", err)
	}
}

func TestAnEffectThatEndsTheTransactionIsAnError(t *testing.T) {
	at := newDatabase(t)
	pool := owner(t, at)
	client := newPgx(t, at.URL)
	for _, how := range []string{"Commit", "Rollback"} {
		_, err := client.Run(context.Background(), "ended", how, 1, func(ctx context.Context, tx pgx.Tx) (once.Answer, error) {
			if err := execPgx(ctx, tx, "INSERT INTO effect (key) VALUES ('ended')"); err != nil {
				t.Error(err)
			}
			ended := tx.Commit
			if how == "Rollback" {
				ended = tx.Rollback
			}
			if err := ended(ctx); !errors.Is(err, once.ErrTransactionControl) {
				t.Errorf("%v", err)
			}
			return once.Text(201, ""), nil
		})
		if !errors.Is(err, once.ErrTransactionControl) || effects(t, pool, "ended") != 0 {
			t.Fatalf("%v", err)
		}
	}
	plain := newSQL(t, at.URL)
	_, err := plain.Run(context.Background(), "ended", "sql", 1, func(ctx context.Context, tx sqlTx) (once.Answer, error) {
		return once.Text(201, ""), tx.Rollback()
	})
	if !errors.Is(err, once.ErrTransactionControl) {
		t.Fatalf("%v", err)
	}
	// A savepoint is the effect's own business.
	_, err = client.Run(context.Background(), "ended", "nested", 1, func(ctx context.Context, tx pgx.Tx) (once.Answer, error) {
		inner, err := tx.Begin(ctx)
		if err == nil {
			err = execPgx(ctx, inner, "INSERT INTO effect (key) VALUES ('nested')")
		}
		if err == nil {
			err = inner.Rollback(ctx)
		}
		return once.Text(201, ""), err
	})
	if err != nil || effects(t, pool, "nested") != 0 {
		t.Fatalf("%v", err)
	}
}

func TestALeaseRenewsItselfAndItsContextEndsWhenItIsLost(t *testing.T) {
	both(t, func(t *testing.T) { leases(t, newPgx) }, func(t *testing.T) { leases(t, newSQL) })
}

func leases[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	client := connect(t, at.URL, once.LeaseFor(3*time.Second))
	ctx := context.Background()
	lease, _, err := client.Claim(ctx, "leases", "key", 1)
	if err != nil {
		t.Fatal(err)
	}
	// Its term grows.
	until := func() (at time.Time) {
		if err := pool.QueryRow(ctx, "SELECT lease_until FROM once.intent WHERE key = 'key'").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	first := until()
	awaits(t, "the lease is renewed", func() bool { return until().After(first) })
	if lease.Context().Err() != nil {
		t.Fatalf("lost: %v", context.Cause(lease.Context()))
	}
	if _, _, err := client.Claim(ctx, "leases", "key", 1); !errors.Is(err, once.ErrActive) {
		t.Fatalf("%v", err)
	}
	// Somebody takes it away: an attempt of a later fence, as if it had fallen silent.
	if _, err := pool.Exec(ctx, "UPDATE once.intent SET fence = fence + 1 WHERE key = 'key'"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("nobody told the work that its lease is lost")
	}
	if !errors.Is(context.Cause(lease.Context()), once.ErrLeaseLost) {
		t.Fatalf("%v", context.Cause(lease.Context()))
	}
	if _, err := lease.Complete(ctx, once.Text(201, "late")); !errors.Is(err, once.ErrCompletionRefused) {
		t.Fatalf("%v", err)
	}
}

func TestASaltThatWasReplacedMakesNoRetryAMismatch(t *testing.T) {
	both(t, func(t *testing.T) { anotherSalt(t, newPgx) }, func(t *testing.T) { anotherSalt(t, newSQL) })
}

// As by a contract that is installed anew, under a client that has connections still.
func anotherSalt[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	ctx := context.Background()
	run := func(client *once.Client[T], key string) once.Answer {
		t.Helper()
		answer, err := client.Run(ctx, "orders", key, []byte("request"), func(context.Context, T) (once.Answer, error) { return once.Text(201, ""), nil })
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	client := connect(t, at.URL)
	run(client, "before")
	if _, err := owner(t, at).Exec(ctx, "UPDATE once.setting SET salt = sha256(salt)"); err != nil {
		t.Fatal(err)
	}
	run(connect(t, at.URL), "after")
	if answer := run(client, "after"); !answer.Replayed {
		t.Fatalf("%+v", answer)
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

func TestAClaimWhoseAnswerIsLostIsFoundAgain(t *testing.T) {
	both(t, func(t *testing.T) { lostClaim(t, newPgx) }, func(t *testing.T) { lostClaim(t, newSQL) })
}

func lostClaim[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	lossy, address := forwarder(t, at)
	client := connect(t, address+asText)
	rule := lossy.rule(t, "lose_answer once.claim")
	lease, answer, err := client.Claim(context.Background(), "claims", "key", 1)
	lossy.fired(t, rule)
	if err != nil || answer != nil || lease.Verdict != "new_claim" {
		t.Fatalf("%v %v", answer, err)
	}
	rule = lossy.rule(t, "lose_answer once.complete")
	if _, err := lease.Complete(context.Background(), once.Text(201, "done")); err != nil {
		t.Fatal(err)
	}
	lossy.fired(t, rule)
}

// faults are those of spec/cases, which every client runs.
type faults struct {
	Commits []struct {
		Name, Commit, Reports, Problem, State string
		Effects                               int
	} `json:"commits_under_a_claim"`
	Claims []struct {
		Name, Verdict string
		Arrange       []string
		Takeover      *bool
		Fence         int
	}
}

func allFaults(t *testing.T) (found faults) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "spec/cases/faults.json"))
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil || len(found.Commits) == 0 || len(found.Claims) == 0 {
		t.Fatal(err)
	}
	return found
}

func TestAClaimWhoseReplyIsLostSaysWhatWasBeforeIt(t *testing.T) {
	both(t, func(t *testing.T) { lostClaims(t, newPgx) }, func(t *testing.T) { lostClaims(t, newSQL) })
}

func lostClaims[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	at := newDatabase(t)
	lossy, address := forwarder(t, at)
	client := connect(t, address+asText)
	pool, err := pgxpool.New(context.Background(), at.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, each := range allFaults(t).Claims {
		for _, sql := range each.Arrange {
			if _, err := pool.Exec(context.Background(), sql); err != nil {
				t.Fatal(err)
			}
		}
		rule := lossy.rule(t, "lose_answer once.claim")
		var options []once.Option
		if each.Takeover != nil {
			options = append(options, once.Takeover(*each.Takeover))
		}
		lease, answer, err := client.Claim(context.Background(), "faults", each.Name, struct{}{}, options...)
		lossy.fired(t, rule)
		if err != nil || answer != nil || lease.Verdict != each.Verdict || lease.Fence != each.Fence {
			t.Fatalf("%s: %+v %v %v", each.Name, lease, answer, err)
		}
		if stored, err := lease.Complete(context.Background(), once.Text(201, "done")); err != nil || !stored {
			t.Fatal(each.Name, stored, err)
		}
	}
}
