// SPDX-License-Identifier: PostgreSQL

package oncesql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"

	"pgonce.internal/once"
	"pgonce.internal/once/internal/control"
)

// lent makes a pool without own connections: each belongs to the caller, for as long as an
// attempt needs it. So the effect gets an ordinary *sql.Tx, and what it sends passes through here.
func lent(db *sql.DB) *sql.DB {
	pool := sql.OpenDB(lender{db})
	pool.SetMaxIdleConns(-1)
	return pool
}

type lender struct{ db *sql.DB }

func (l lender) Driver() driver.Driver { return l.db.Driver() }

func (l lender) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		if seen := l.db.Stats(); ctx.Err() != nil && seen.MaxOpenConnections > 0 && seen.InUse >= seen.MaxOpenConnections {
			err = once.FullPool(seen.MaxOpenConnections, err)
		}
		return nil, err
	}
	return &guard{conn: conn}, nil
}

// guard passes everything on to the driver's connection, but what would begin or end a transaction
// while an effect has one.
type guard struct {
	conn *sql.Conn
	tx   driver.Tx
	// How the attempt itself ends the transaction now. All else is the effect's, and refused.
	commits, rollsBack, refused atomic.Bool
	role                        atomic.Bool // it may have set another role
	lost                        bool
}

func (g *guard) raw(do func(conn any) error) error { return g.conn.Raw(do) }

func (g *guard) check(text string) error {
	if g.tx == nil {
		return nil
	}
	kind := control.Of(text)
	if kind.Ends {
		return g.refuse()
	}
	if kind.Role {
		g.role.Store(true)
	}
	return nil
}

func (g *guard) refuse() error {
	g.refused.Store(true)
	return once.ErrTransactionControl
}

// Close gives the connection back to the caller's pool; one that is lost is closed there.
func (g *guard) Close() error {
	if g.lost {
		_ = g.raw(func(any) error { return driver.ErrBadConn })
	}
	return g.conn.Close()
}

func (g *guard) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	err := g.raw(func(conn any) (err error) {
		if able, ok := conn.(driver.ConnBeginTx); ok {
			g.tx, err = able.BeginTx(ctx, opts)
			return err
		}
		if opts.Isolation != driver.IsolationLevel(sql.LevelDefault) || opts.ReadOnly {
			return errors.New("oncesql: the driver has no isolation levels")
		}
		g.tx, err = conn.(driver.Conn).Begin() //nolint:staticcheck // of a driver that has nothing newer
		return err
	})
	return guarded{g}, err
}

func (g *guard) Begin() (driver.Tx, error) {
	return g.BeginTx(context.Background(), driver.TxOptions{})
}

func (g *guard) rollback() error {
	if g.tx == nil {
		return nil
	}
	tx := g.tx
	g.tx = nil
	return g.raw(func(any) error { return tx.Rollback() })
}

// guarded is the transaction as *sql.Tx ends it.
type guarded struct{ *guard }

func (t guarded) Commit() error {
	if !t.commits.Load() {
		return t.refuse()
	}
	tx := t.tx
	t.tx = nil
	return t.raw(func(any) error { return tx.Commit() })
}

func (t guarded) Rollback() error {
	if !t.rollsBack.Load() {
		return t.refuse()
	}
	return t.rollback()
}

func (g *guard) Prepare(text string) (driver.Stmt, error) {
	return g.PrepareContext(context.Background(), text)
}

func (g *guard) PrepareContext(ctx context.Context, text string) (stmt driver.Stmt, err error) {
	if err := g.check(text); err != nil {
		return nil, err
	}
	err = g.raw(func(conn any) (err error) {
		if able, ok := conn.(driver.ConnPrepareContext); ok {
			stmt, err = able.PrepareContext(ctx, text)
		} else {
			stmt, err = conn.(driver.Conn).Prepare(text)
		}
		return err
	})
	return stmt, err
}

func (g *guard) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (result driver.Result, err error) {
	if err := g.check(text); err != nil {
		return nil, err
	}
	err = g.raw(func(conn any) (err error) {
		able, ok := conn.(driver.ExecerContext)
		if !ok {
			return driver.ErrSkip
		}
		result, err = able.ExecContext(ctx, text, args)
		return err
	})
	return result, err
}

func (g *guard) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (rows driver.Rows, err error) {
	if err := g.check(text); err != nil {
		return nil, err
	}
	err = g.raw(func(conn any) (err error) {
		able, ok := conn.(driver.QueryerContext)
		if !ok {
			return driver.ErrSkip
		}
		rows, err = able.QueryContext(ctx, text, args)
		return err
	})
	return rows, err
}

func (g *guard) CheckNamedValue(value *driver.NamedValue) error {
	return g.raw(func(conn any) error {
		if able, ok := conn.(driver.NamedValueChecker); ok {
			return able.CheckNamedValue(value)
		}
		return driver.ErrSkip
	})
}

func (g *guard) Ping(ctx context.Context) error { return g.conn.PingContext(ctx) }
