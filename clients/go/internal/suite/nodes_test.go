// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
	"pgonce.internal/once/oncesql"
)

// What spec/cases/nodes.json cannot show of a client with several nodes: functions of the application's own.

type routed[T, P any] struct {
	pool func(testing.TB, string) P
	new  func(once.Route[P], ...once.Option) *once.Client[T]
	exec execer[T]
}

var overPgx = routed[pgx.Tx, *pgxpool.Pool]{
	pool: func(t testing.TB, url string) *pgxpool.Pool {
		pool, err := pgxpool.New(context.Background(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	},
	new: oncepgx.NewRouted, exec: execPgx,
}

var overSQL = routed[*sql.Tx, *sql.DB]{
	pool: func(t testing.TB, url string) *sql.DB {
		db, err := sql.Open("pgx", url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		return db
	},
	new: oncesql.NewRouted, exec: execSQL,
}

func divided(t *testing.T) (place, *pgxpool.Pool) {
	t.Helper()
	at := newDatabase(t)
	pool := owner(t, at)
	do(t, pool, "CALL once.divide(true)")
	return at, pool
}

func do(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		t.Fatal(err)
	}
}

const (
	closeSlot  = "SELECT once_job.close_slot(once.slot_of('acme'))"
	reopenSlot = "SELECT once_job.open_slot(once.slot_of('acme'), 2)"
)

func TestAnErrorOfTheFunctionComesOutAsItIsAndNothingRuns(t *testing.T) {
	both(t, func(t *testing.T) { own(t, overPgx) }, func(t *testing.T) { own(t, overSQL) })
}

func own[T, P any](t *testing.T, over routed[T, P]) {
	at := newDatabase(t)
	pool := over.pool(t, at.URL)
	var none P
	var fails error
	gives := pool
	db := over.new(func(context.Context, string, *once.Error) (P, error) { return gives, fails })
	ctx := context.Background()
	run := func() error {
		_, err := db.Run(ctx, "orders", "key", 1, func(context.Context, T) (once.Answer, error) {
			t.Error("the effect has run")
			return once.Answer{}, nil
		})
		return err
	}
	held, _, err := db.Claim(ctx, "orders", "claim", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	fails = errors.New("no such tenant")
	began := time.Now()
	if err := run(); err != fails {
		t.Error(err)
	}
	if _, _, err := db.Claim(ctx, "orders", "another", 1); err != fails {
		t.Error(err)
	}
	if _, err := held.Renew(ctx); err != fails {
		t.Error(err)
	}
	if _, err := held.Complete(ctx, once.Text(201, "")); err != fails {
		t.Error(err)
	}
	if _, err := db.Effect(ctx, "orders", "work", 1, func(context.Context) (once.Answer, error) {
		t.Error("the work has run")
		return once.Answer{}, nil
	}); err != fails {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it was tried again for %v", took)
	}
	fails, gives = nil, none
	if err := run(); err == nil || !strings.Contains(err.Error(), "no pool") {
		t.Error(err)
	}
}

// The slot closes after the COMMIT, whose answer is lost: a refusal does not say what became of it.
func TestALostCommitIsNotSettledByARefusal(t *testing.T) {
	both(t, func(t *testing.T) { unsettled(t, overPgx, "COMMIT") }, func(t *testing.T) { unsettled(t, overSQL, "commit") })
}

func unsettled[T, P any](t *testing.T, over routed[T, P], commit string) {
	for _, reopens := range []bool{true, false} {
		at, owner := divided(t)
		between, url := forwarder(t, at)
		pool := over.pool(t, url+asText)
		calls, refusals := 0, 0
		db := over.new(func(_ context.Context, tenant string, closed *once.Error) (P, error) {
			if calls++; calls == 2 {
				do(t, owner, closeSlot)
			}
			if closed == nil {
				return pool, nil
			}
			if refusals++; !errors.Is(closed, once.ErrSlotClosed) || closed.Epoch != 1 || closed.Slot < 0 {
				t.Error(closed, closed.Slot, closed.Epoch)
			}
			if reopens && refusals == 3 {
				do(t, owner, reopenSlot)
			}
			return pool, nil
		}, once.Tenant("acme"), once.Within(2*time.Second))
		lost := between.rule(t, "lose_answer %s", commit)
		answer, err := db.Run(context.Background(), "orders", "key", 1, func(ctx context.Context, tx T) (once.Answer, error) {
			return once.Text(201, "done"), over.exec(ctx, tx, "INSERT INTO effect (key) VALUES ('key')")
		})
		between.fired(t, lost)
		if effects(t, owner, "key") != 1 || refusals < 3 {
			t.Fatal(err, refusals)
		}
		if reopens && (err != nil || !answer.Replayed) || !reopens && !errors.Is(err, once.ErrOutcomeUnknown) {
			t.Fatal(err, answer)
		}
	}
}

func TestARefusalOfAnotherCallWithinTheEffectIsTheEffectsOwnError(t *testing.T) {
	both(t, func(t *testing.T) { inner(t, overPgx) }, func(t *testing.T) { inner(t, overSQL) })
}

func inner[T, P any](t *testing.T, over routed[T, P]) {
	at, owner := divided(t)
	do(t, owner, closeSlot)
	pool := over.pool(t, at.URL)
	db := over.new(func(context.Context, string, *once.Error) (P, error) { return pool, nil })
	runs := 0
	_, err := db.Run(context.Background(), "orders", "outer", 1, func(ctx context.Context, tx T) (once.Answer, error) {
		runs++
		_, err := db.Run(ctx, "orders", "inner", 1, func(context.Context, T) (once.Answer, error) { return once.Text(201, ""), nil }, once.Tenant("acme"))
		return once.Text(201, ""), err
	}, once.Tenant(another(t, owner)))
	if !errors.Is(err, once.ErrSlotClosed) || runs != 1 {
		t.Fatal(runs, err)
	}
}

// A tenant of another slot than acme's.
func another(t *testing.T, owner *pgxpool.Pool) (tenant string) {
	t.Helper()
	err := owner.QueryRow(context.Background(), "SELECT t FROM (VALUES ('a'), ('b'), ('c'), ('d')) AS v(t) WHERE once.slot_of(t) <> once.slot_of('acme') LIMIT 1").Scan(&tenant)
	if err != nil {
		t.Fatal(err)
	}
	return tenant
}

func TestTheErrorOfANodeThatIsAwaySaysWhereItIsAndNoPassword(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := closed.Addr().String()
	_ = closed.Close()
	const secret = "swordfish"
	away := "postgresql://postgres:" + secret + "@" + address + "/app"
	said := func(err error) string {
		t.Helper()
		if !errors.Is(err, once.ErrUnavailable) {
			t.Fatal(err)
		}
		text := ""
		for ; err != nil; err = errors.Unwrap(err) {
			text += err.Error() + "\n"
		}
		if strings.Contains(text, secret) {
			t.Error(text)
		}
		return text
	}
	at, owner := divided(t)
	do(t, owner, closeSlot)
	ctx := context.Background()
	first, second := overPgx.pool(t, at.URL), overPgx.pool(t, away)
	_, err = oncepgx.NewRouted(oncepgx.Nodes(first, second)).Run(ctx, "orders", "key", 1, nil, once.Tenant("acme"))
	if text := said(err); !strings.Contains(text, "node 2 ("+address+"/app)") {
		t.Error(text)
	}
	_, err = oncesql.NewRouted(oncesql.Nodes(overSQL.pool(t, at.URL), overSQL.pool(t, away))).Run(ctx, "orders", "key", 1, nil, once.Tenant("acme"))
	if text := said(err); !strings.Contains(text, "node 2 did not answer") {
		t.Error(text)
	}
}
