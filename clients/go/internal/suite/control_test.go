// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgonce.internal/once"
)

// Handlers that end their transaction by themselves.

var controlTexts = []string{"COMMIT", "ROLLBACK", "BEGIN", "START TRANSACTION", "END", "ABORT", "/* done */ commit", "SELECT 1; COMMIT", "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'"}

func TestTransactionControlIsRefusedBeforeItIsSent(t *testing.T) {
	both(t, func(t *testing.T) {
		refusedControl(t, newPgx, execPgx, map[string]func(ctx context.Context, tx pgx.Tx, text string) error{
			"exec": func(ctx context.Context, tx pgx.Tx, text string) error { return execPgx(ctx, tx, text) },
			"query": func(ctx context.Context, tx pgx.Tx, text string) error {
				rows, err := tx.Query(ctx, text)
				rows.Close()
				return err
			},
			"row": func(ctx context.Context, tx pgx.Tx, text string) error {
				return tx.QueryRow(ctx, text).Scan(new(int))
			},
			"batch": func(ctx context.Context, tx pgx.Tx, text string) error {
				batch := &pgx.Batch{}
				batch.Queue("SELECT 1")
				batch.Queue(text)
				return tx.SendBatch(ctx, batch).Close()
			},
			"prepare": func(ctx context.Context, tx pgx.Tx, text string) error {
				_, err := tx.Prepare(ctx, "x", text)
				return err
			},
			"nested": func(ctx context.Context, tx pgx.Tx, text string) error {
				return pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { return execPgx(ctx, inner, text) })
			},
			"method":   func(ctx context.Context, tx pgx.Tx, _ string) error { return tx.Commit(ctx) },
			"rollback": func(ctx context.Context, tx pgx.Tx, _ string) error { return tx.Rollback(ctx) },
		})
	}, func(t *testing.T) {
		refusedControl(t, newSQL, execSQL, map[string]func(ctx context.Context, tx *sql.Tx, text string) error{
			"exec": func(ctx context.Context, tx *sql.Tx, text string) error { return execSQL(ctx, tx, text) },
			"query": func(ctx context.Context, tx *sql.Tx, text string) error {
				rows, err := tx.QueryContext(ctx, text)
				if err == nil {
					rows.Close()
				}
				return err
			},
			"row": func(ctx context.Context, tx *sql.Tx, text string) error { return tx.QueryRow(text).Scan(new(int)) },
			"prepare": func(ctx context.Context, tx *sql.Tx, text string) error {
				_, err := tx.PrepareContext(ctx, text)
				return err
			},
			"method":   func(ctx context.Context, tx *sql.Tx, _ string) error { return tx.Commit() },
			"rollback": func(ctx context.Context, tx *sql.Tx, _ string) error { return tx.Rollback() },
		})
	})
}

func refusedControl[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T], ways map[string]func(ctx context.Context, tx T, text string) error) {
	at := newDatabase(t)
	var way func(ctx context.Context, tx T, text string) error
	var text string
	var heeds bool
	s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		err := way(r.Context(), s.client.Tx(r.Context()), text)
		if !errors.Is(err, once.ErrTransactionControl) {
			t.Errorf("%s: %v", text, err)
		}
		if heeds {
			http.Error(w, "not committed", 500)
		} else {
			w.WriteHeader(201)
		}
	})
	for name, each := range ways {
		for i, next := range controlTexts {
			way, text, heeds = each, next, i%2 == 1
			got := s.post("controlled", "")
			if got.status != 500 || !s.log.has("ERROR", "transaction is committed with its answer") {
				t.Fatalf("%s: %s: %d %s\n%s", name, text, got.status, got.body, s.log.out.String())
			}
			s.effects("controlled", 0)
			if name == "method" || name == "rollback" {
				break
			}
		}
	}
	// Savepoints are the handler's own, and nothing is left behind.
	way = func(ctx context.Context, tx T, _ string) error {
		for _, text := range []string{"SAVEPOINT a", "INSERT INTO effect (key) VALUES ('undone')", "ROLLBACK TO SAVEPOINT a", "RELEASE a", "SELECT 'COMMIT; BEGIN'"} {
			if err := exec(ctx, tx, text); err != nil {
				return err
			}
		}
		return once.ErrTransactionControl
	}
	heeds = false
	s.is(s.post("controlled", ""), 201, "", false)
	s.effects("undone", 0)
	s.effects("controlled", 1)
}

func TestATransactionThatIsGoneLeavesADoubtAndNoSecondEffect(t *testing.T) {
	at := newDatabase(t)
	client := newPgx(t, at.URL)
	for name, texts := range map[string][]string{"committed": {"COMMIT"}, "rolled-back": {"ROLLBACK"}, "another": {"COMMIT", "BEGIN"}} {
		s := newSite(t, at, client, execPgx, once.HTTP{}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
			s.write(r)
			for _, text := range texts {
				if _, err := s.client.Tx(r.Context()).Conn().Exec(r.Context(), text); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(201)
		})
		s.isProblem(s.post(name, ""), "in-doubt")
		if !s.log.has("ERROR", "ended the transaction by itself") {
			t.Fatal(s.log.out.String())
		}
		s.isProblem(s.post(name, ""), "in-doubt")
		s.ran(1)
		if said := reason(t, at, name); said != "in_doubt transaction_ended the handler has ended the transaction that it was given: what it did may be committed" {
			t.Fatal(said)
		}
		if name != "rolled-back" {
			s.effects(name, 1)
		}
		// By Run, too.
		_, err := client.Run(context.Background(), "web", name+"-run", 1, func(ctx context.Context, tx pgx.Tx) (once.Answer, error) {
			for _, text := range texts {
				if _, err := tx.Conn().Exec(ctx, text); err != nil {
					t.Error(err)
				}
			}
			return once.Text(201, ""), nil
		})
		if !errors.Is(err, once.ErrInDoubt) || !errors.Is(err, once.ErrTransactionEnded) {
			t.Fatal(err)
		}
	}
}

func TestATransactionIsOfNoUseAfterItsAnswer(t *testing.T) {
	both(t, func(t *testing.T) { afterwards(t, newPgx, execPgx, pgx.ErrTxClosed) }, func(t *testing.T) { afterwards(t, newSQL, execSQL, sql.ErrTxDone) })
}

func afterwards[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T], closed error) {
	at := newDatabase(t)
	var kept T
	s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		kept = s.client.Tx(r.Context())
	})
	s.is(s.post("kept", ""), 200, "", false)
	if err := exec(context.Background(), kept, "INSERT INTO effect (key) VALUES ('late')"); !errors.Is(err, closed) {
		t.Fatal(err)
	}
	s.effects("late", 0)
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
