// SPDX-License-Identifier: PostgreSQL

// The agent of the Go client (spec/cases/README.md): agent CLIENT DRIVER DSN [PORT]. It says
// `ready`, and answers each line of JSON with another. DRIVER is pgx or sql. With a PORT it serves HTTP
// there, for the torture: net-http-pgx or net-http-sql.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
	"pgonce.internal/once/oncesql"
)

const absent = "postgresql://postgres@127.0.0.1:1/nothing"

// A door through one driver, whose transactions are of type T.
type door[T any] struct {
	client *once.Client[T]
	// One whose database is not there.
	away *once.Client[T]
	// A statement in a transaction.
	exec func(ctx context.Context, tx T, text string, args ...any) error
	// A statement in a transaction past the client: of the driver's own connection.
	behind func(ctx context.Context, tx T, text string) error
	// A row in a transaction, and one in a separate transaction.
	query func(ctx context.Context, tx T, text string, args []any, into ...any) error
	alone func(ctx context.Context, text string, args []any, into ...any) error
	// All that the function does is committed, or nothing. Which it is an error of COMMIT does not say.
	inside func(ctx context.Context, isolation string, do func(tx T) error) error
	// A client over several nodes, and what closes its pools.
	share func(dsns []string, router string, own ownRouter) (*once.Client[T], func(), error)
}

func (d *door[T]) serve() {
	lines := bufio.NewReader(os.Stdin)
	say := func(said any) {
		text, err := json.Marshal(said)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
	calls := &calls[T]{door: d, leases: map[string]*once.Lease{}, converse: func(said any) {
		say(said)
		if _, err := lines.ReadBytes('\n'); err != nil {
			panic(err)
		}
	}}
	fmt.Println("ready")
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var s step
		var o order
		if err := json.Unmarshal(line, &s); err != nil {
			panic(err)
		}
		if s.Call != "" {
			say(calls.answer(s))
		} else if err := json.Unmarshal(line, &o); err == nil {
			say(d.ordered(&o))
		} else {
			panic(err)
		}
	}
}

// A function of the tenant, in place of a pool: the number of its node.
type ownRouter func(tenant string, closed *once.Error) int

// router: as the cases name it.
func over[T any, P any](pools []P, router string, own ownRouter, plain func(P, ...once.Option) *once.Client[T], nodes func(...P) once.Route[P],
	routed func(once.Route[P], ...once.Option) *once.Client[T]) *once.Client[T] {
	within := once.Within(deadline)
	switch router {
	case "pool":
		return plain(pools[0], within)
	case "own":
		return routed(func(_ context.Context, tenant string, closed *once.Error) (P, error) {
			return pools[own(tenant, closed)], nil
		}, within)
	default:
		return routed(nodes(pools...), within)
	}
}

// Statements go as text, so that the forwarder counts them.
const asText = " default_query_exec_mode=exec"

func overPgx(dsn, port string) error {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	nowhere, err := pgxpool.New(context.Background(), absent)
	if err != nil {
		return err
	}
	d := door[pgx.Tx]{
		client: oncepgx.New(pool, once.Within(deadline)),
		away:   oncepgx.New(nowhere, once.Within(deadline)),
		exec: func(ctx context.Context, tx pgx.Tx, text string, args ...any) error {
			_, err := tx.Exec(ctx, text, args...)
			return err
		},
		behind: func(ctx context.Context, tx pgx.Tx, text string) error {
			_, err := tx.Conn().Exec(ctx, text)
			return err
		},
		query: func(ctx context.Context, tx pgx.Tx, text string, args []any, into ...any) error {
			return tx.QueryRow(ctx, text, args...).Scan(into...)
		},
		alone: func(ctx context.Context, text string, args []any, into ...any) error {
			return pool.QueryRow(ctx, text, args...).Scan(into...)
		},
		inside: func(ctx context.Context, isolation string, do func(tx pgx.Tx) error) error {
			tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(isolation)})
			if err != nil {
				return err
			}
			if err := do(tx); err != nil {
				_ = tx.Rollback(ctx)
				return err
			}
			return tx.Commit(ctx)
		},
		share: func(dsns []string, router string, own ownRouter) (*once.Client[pgx.Tx], func(), error) {
			var pools []*pgxpool.Pool
			for _, dsn := range dsns {
				pool, err := pgxpool.New(context.Background(), forPgx(dsn)+asText)
				if err != nil {
					return nil, nil, err
				}
				pools = append(pools, pool)
			}
			return over(pools, router, own, oncepgx.New, oncepgx.Nodes, oncepgx.NewRouted), func() {
				for _, pool := range pools {
					pool.Close()
				}
			}, nil
		},
	}
	return d.work(port)
}

var levels = map[string]sql.IsolationLevel{
	"read committed": sql.LevelReadCommitted, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
}

func overSQL(dsn, port string) error {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return err
	}
	nowhere, err := pgx.ParseConfig(absent)
	if err != nil {
		return err
	}
	var beneath sync.Map // the driver's connections, by their process
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(_ context.Context, conn *pgx.Conn) error {
		beneath.Store(conn.PgConn().PID(), conn)
		return nil
	}))
	db.SetMaxOpenConns(4)
	d := door[*sql.Tx]{
		client: oncesql.New(db, once.Within(deadline)),
		away:   oncesql.New(stdlib.OpenDB(*nowhere), once.Within(deadline)),
		exec: func(ctx context.Context, tx *sql.Tx, text string, args ...any) error {
			_, err := tx.ExecContext(ctx, text, args...)
			return err
		},
		behind: func(ctx context.Context, tx *sql.Tx, text string) error {
			var pid uint32
			if err := tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				return err
			}
			conn, _ := beneath.Load(pid)
			_, err := conn.(*pgx.Conn).Exec(ctx, text)
			return err
		},
		query: func(ctx context.Context, tx *sql.Tx, text string, args []any, into ...any) error {
			return tx.QueryRowContext(ctx, text, args...).Scan(into...)
		},
		alone: func(ctx context.Context, text string, args []any, into ...any) error {
			return db.QueryRowContext(ctx, text, args...).Scan(into...)
		},
		inside: func(ctx context.Context, isolation string, do func(tx *sql.Tx) error) error {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: levels[isolation]})
			if err != nil {
				return err
			}
			if err := do(tx); err != nil {
				_ = tx.Rollback()
				return err
			}
			return tx.Commit()
		},
		share: func(dsns []string, router string, own ownRouter) (*once.Client[*sql.Tx], func(), error) {
			var pools []*sql.DB
			for _, dsn := range dsns {
				config, err := pgx.ParseConfig(forPgx(dsn) + asText)
				if err != nil {
					return nil, nil, err
				}
				db := stdlib.OpenDB(*config)
				db.SetMaxOpenConns(4)
				pools = append(pools, db)
			}
			return over(pools, router, own, oncesql.New, oncesql.Nodes, oncesql.NewRouted), func() {
				for _, db := range pools {
					_ = db.Close()
				}
			}, nil
		},
	}
	return d.work(port)
}

// What pgx knows of libpq's words: it takes any other for a setting of the server's.
func forPgx(dsn string) string {
	var kept []string
	for _, pair := range strings.Fields(dsn) {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "hostaddr":
			kept = append(kept, "host="+value)
		case "port", "dbname", "user", "connect_timeout", "application_name":
			kept = append(kept, pair)
		}
	}
	return strings.Join(append(kept, "sslmode=disable"), " ")
}

func main() {
	port := ""
	if len(os.Args) > 4 {
		port = os.Args[4]
	}
	over := overSQL
	if strings.HasSuffix(os.Args[2], "pgx") {
		over = overPgx
	}
	if err := over(forPgx(os.Args[3]), port); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
