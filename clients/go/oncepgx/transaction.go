// SPDX-License-Identifier: PostgreSQL

package oncepgx

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgonce.internal/once"
	"pgonce.internal/once/internal/control"
)

// transaction is the effect's. Its Begin is a savepoint, as pgx's is; all that would begin or end a
// transaction is refused before it is sent. Statements sent through Conn are not checked.
type transaction struct {
	pgx.Tx
	conn    *pgx.Conn
	depth   int
	done    atomic.Bool
	refused atomic.Bool
	role    atomic.Bool // it may have set another role
	// Held while a statement is sent, so that whoever abandons the effect knows.
	running sync.Mutex
}

// May this be sent? Where it may, it runs until end is called.
func (t *transaction) begin(texts ...string) error {
	for _, text := range texts {
		kind := control.Of(text)
		if kind.Ends {
			return t.refuse()
		}
		if kind.Role {
			t.role.Store(true)
		}
	}
	t.running.Lock()
	if t.done.Load() {
		t.running.Unlock()
		return pgx.ErrTxClosed
	}
	return nil
}

func (t *transaction) end() { t.running.Unlock() }

func (t *transaction) refuse() error {
	t.refused.Store(true)
	return once.ErrTransactionControl
}

func (t *transaction) Commit(context.Context) error   { return t.refuse() }
func (t *transaction) Rollback(context.Context) error { return t.refuse() }

func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	t.depth++
	name := fmt.Sprintf("once_inner_%d", t.depth)
	if _, err := t.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &nested{transaction: t, name: name}, nil
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.begin(); err != nil {
		return 0, err
	}
	defer t.end()
	return t.conn.CopyFrom(ctx, table, columns, rows)
}

func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	texts := make([]string, 0, batch.Len())
	for _, each := range batch.QueuedQueries {
		texts = append(texts, each.SQL)
	}
	if err := t.begin(texts...); err != nil {
		return noResults{err: err}
	}
	defer t.end()
	return t.conn.SendBatch(ctx, batch)
}

// LargeObjects needs a transaction of pgx's own, which a savepoint makes.
func (t *transaction) LargeObjects() pgx.LargeObjects {
	if t.begin() != nil {
		return pgx.LargeObjects{}
	}
	defer t.end()
	inner, err := t.conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: "SAVEPOINT once_large_objects"})
	if err != nil {
		return pgx.LargeObjects{}
	}
	return inner.LargeObjects()
}

func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.begin(sql); err != nil {
		return nil, err
	}
	defer t.end()
	return t.conn.Prepare(ctx, name, sql)
}

func (t *transaction) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.begin(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer t.end()
	return t.conn.Exec(ctx, sql, args...)
}

func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(sql); err != nil {
		return noRows{err: err}, err
	}
	defer t.end()
	return t.conn.Query(ctx, sql, args...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.begin(sql); err != nil {
		return noRow{err}
	}
	defer t.end()
	return t.conn.QueryRow(ctx, sql, args...)
}

func (t *transaction) Conn() *pgx.Conn { return t.conn }

// nested is a savepoint, which its Commit releases.
type nested struct {
	*transaction
	name  string
	ended bool
}

func (n *nested) close(ctx context.Context, sql string) error {
	if n.ended {
		return pgx.ErrTxClosed
	}
	n.ended = true
	_, err := n.transaction.Exec(ctx, sql+n.name)
	return err
}

func (n *nested) Commit(ctx context.Context) error { return n.close(ctx, "RELEASE SAVEPOINT ") }
func (n *nested) Rollback(ctx context.Context) error {
	return n.close(ctx, "ROLLBACK TO SAVEPOINT ")
}

// The interfaces of pgx may grow, and this must be built with versions to come: hence what is
// embedded, here and in transaction.
type noResults struct {
	pgx.BatchResults
	err error
}

func (n noResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, n.err }
func (n noResults) Query() (pgx.Rows, error)         { return noRows{err: n.err}, n.err }
func (n noResults) QueryRow() pgx.Row                { return noRow{n.err} }
func (n noResults) Close() error                     { return n.err }

type noRow struct{ err error }

func (n noRow) Scan(...any) error { return n.err }

// As pgx gives them with an error, so that they can be closed.
type noRows struct {
	pgx.Rows
	err error
}

func (n noRows) Close()                                       {}
func (n noRows) Err() error                                   { return n.err }
func (n noRows) Next() bool                                   { return false }
func (n noRows) Scan(...any) error                            { return n.err }
func (n noRows) Values() ([]any, error)                       { return nil, n.err }
func (n noRows) RawValues() [][]byte                          { return nil }
func (n noRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (n noRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (n noRows) Conn() *pgx.Conn                              { return nil }
