// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"errors"
	"testing"
	"time"

	"pgonce.internal/once"
)

// How an effect ends that nobody waits for, or that panics. Lost connections are in spec/cases/faults.json.

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

func TestAConflictThatLastsIsErrConflictWithWhatTheDatabaseSaid(t *testing.T) {
	both(t, func(t *testing.T) { lasting(t, newPgx, execPgx) }, func(t *testing.T) { lasting(t, newSQL, execSQL) })
}

func lasting[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	client := connect(t, newDatabase(t).URL, once.Within(200*time.Millisecond))
	for _, state := range []string{"40001", "40P01"} {
		_, err := client.Run(context.Background(), "conflict", state, 1, func(ctx context.Context, tx T) (once.Answer, error) {
			return once.Answer{}, exec(ctx, tx, "DO $$BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '"+state+"'; END$$")
		})
		var conflict *once.Error
		if !errors.Is(err, once.ErrConflict) || !errors.As(err, &conflict) || conflict.SQLState != state || !conflict.Retryable {
			t.Fatalf("%s: %v", state, err)
		}
	}
}
