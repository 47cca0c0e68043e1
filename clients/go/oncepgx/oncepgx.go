// SPDX-License-Identifier: PostgreSQL

// Package oncepgx is pgonce's door through pgx v5: BEGIN travels with the contract's question, and
// the answer with COMMIT, so that a protected transaction takes two round trips besides its own.
package oncepgx

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"pgonce.internal/once"
)

// Client runs intents whose effects get a pgx.Tx.
type Client = once.Client[pgx.Tx]

// New makes a client over the caller's pool.
func New(pool *pgxpool.Pool, defaults ...once.Option) *Client {
	return once.New[pgx.Tx](poolDoor{pool}, defaults...)
}

// NewConn makes a client over one connection, which nobody else may use meanwhile. Where it is lost,
// what became of a COMMIT is asked on another one that is made like it, for that question alone.
func NewConn(conn *pgx.Conn, defaults ...once.Option) *Client {
	return once.New[pgx.Tx](connDoor{conn}, defaults...)
}

// From runs the contract's statements in a transaction that the caller has.
type from struct {
	db interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
}

func (f from) QueryRow(ctx context.Context, query once.Query, dest ...any) error {
	return f.db.QueryRow(ctx, query.SQL, query.Args...).Scan(dest...)
}

type poolDoor struct{ pool *pgxpool.Pool }

func (d poolDoor) QueryRow(ctx context.Context, query once.Query, dest ...any) error {
	return from{d.pool}.QueryRow(ctx, query, dest...)
}

func (d poolDoor) In(tx pgx.Tx) once.Querier { return from{tx} }

func (d poolDoor) Connect(ctx context.Context) (once.Session[pgx.Tx], error) {
	taken, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return newSession(taken.Conn(), taken.Release), nil
}

type connDoor struct{ conn *pgx.Conn }

func (d connDoor) In(tx pgx.Tx) once.Querier { return from{tx} }

func (d connDoor) QueryRow(ctx context.Context, query once.Query, dest ...any) error {
	session, err := d.Connect(ctx)
	if err != nil {
		return err
	}
	defer session.Release()
	return session.(*connection).QueryRow(ctx, query, dest...)
}

func (d connDoor) Connect(ctx context.Context) (once.Session[pgx.Tx], error) {
	if !d.conn.IsClosed() {
		if d.conn.PgConn().TxStatus() != 'I' {
			return nil, errors.New("oncepgx: the connection is inside a transaction: Run begins and commits its own")
		}
		return newSession(d.conn, func() {}), nil
	}
	fresh, err := pgx.ConnectConfig(ctx, d.conn.Config())
	if err != nil {
		return nil, err
	}
	return newSession(fresh, func() { _ = fresh.Close(context.WithoutCancel(ctx)) }), nil
}

type connection struct {
	from
	conn    *pgx.Conn
	tx      *transaction
	release func()
	open    bool
}

func newSession(conn *pgx.Conn, release func()) *connection {
	return &connection{from: from{conn}, conn: conn, tx: &transaction{conn: conn}, release: release}
}

func (s *connection) Open(ctx context.Context, begin string, query once.Query, savepoint string, dest ...any) error {
	batch := &pgx.Batch{}
	batch.Queue(begin)
	batch.Queue(query.SQL, query.Args...)
	batch.Queue(savepoint)
	s.open = true
	results := s.conn.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		err = results.QueryRow().Scan(dest...)
	}
	if err == nil {
		_, err = results.Exec()
	}
	return errors.Join(err, closed(results, err))
}

const saltsName = "pgonce.salts"

func (s *connection) Salts() once.Salts {
	data := s.conn.PgConn().CustomData()
	salts, there := data[saltsName].(once.Salts)
	if !there {
		salts = once.Salts{}
		data[saltsName] = salts
	}
	return salts
}

// Close repeats an error that has been told already. Where it is that of a row, pgx's first Close only
// takes note of it, and the second frees the connection.
func closed(results pgx.BatchResults, told error) error {
	err := results.Close()
	if told == nil && err == nil {
		return nil
	}
	_ = results.Close()
	if told != nil {
		return nil
	}
	return err
}

func (s *connection) Tx() pgx.Tx { return s.tx }

func (s *connection) status() byte {
	if s.conn.IsClosed() {
		return 0
	}
	return s.conn.PgConn().TxStatus()
}

func (s *connection) Failed() bool { return s.status() == 'E' }

func (s *connection) Ended() bool { return s.tx.refused || s.status() == 'I' }

func (s *connection) Close(ctx context.Context, commands []string, query once.Query, dest ...any) (bool, error) {
	if s.Failed() {
		// pgx prepares what this connection has not seen yet, and a failed transaction refuses that: what
		// heals it goes ahead.
		for _, command := range commands {
			if _, err := s.conn.Exec(ctx, command); err != nil {
				return false, err
			}
		}
		commands = nil
	}
	batch := &pgx.Batch{}
	for _, command := range commands {
		batch.Queue(command)
	}
	batch.Queue(query.SQL, query.Args...)
	batch.Queue("COMMIT")
	results := s.conn.SendBatch(ctx, batch)
	var err error
	for range commands {
		if err == nil {
			_, err = results.Exec()
		}
	}
	if err == nil {
		err = results.QueryRow().Scan(dest...)
	}
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = results.Exec()
	}
	err = errors.Join(err, closed(results, err))
	if err == nil && tag.String() == "ROLLBACK" {
		return false, once.ErrSwallowed
	}
	if err == nil {
		s.open = false
		return false, nil
	}
	// COMMIT went with the rest: unless the server lives and said what failed, nobody knows.
	return s.conn.IsClosed(), err
}

func (s *connection) Rollback(ctx context.Context) {
	if s.open && !s.conn.IsClosed() && s.conn.PgConn().TxStatus() != 'I' {
		if _, err := s.conn.Exec(ctx, "ROLLBACK"); err != nil {
			_ = s.conn.Close(ctx) // never back into the pool with a transaction
		}
	}
	s.open = false
}

func (s *connection) Lost(context.Context) bool { return s.conn.IsClosed() }

func (s *connection) Release() {
	s.tx.done = true
	s.release()
}

// ErrNotYours is what Commit and Rollback of an effect's transaction return.
var ErrNotYours = errors.New("oncepgx: the transaction is committed with its answer: return from the effect, with an error to roll back")

// transaction is the effect's. Its Begin is a savepoint, as pgx's is.
type transaction struct {
	pgx.Tx
	conn    *pgx.Conn
	depth   int
	done    bool
	refused bool
}

func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	t.depth++
	name := fmt.Sprintf("once_inner_%d", t.depth)
	if _, err := t.Exec(ctx, "SAVEPOINT "+name); err != nil {
		return nil, err
	}
	return &nested{transaction: t, name: name}, nil
}

func (t *transaction) Commit(context.Context) error   { t.refused = true; return ErrNotYours }
func (t *transaction) Rollback(context.Context) error { t.refused = true; return ErrNotYours }

func (t *transaction) check() error {
	if t.done {
		return pgx.ErrTxClosed
	}
	return nil
}

func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.check(); err != nil {
		return 0, err
	}
	return t.conn.CopyFrom(ctx, table, columns, rows)
}

// The interfaces of pgx may grow, and this must be built with versions to come: hence what is
// embedded, here and in transaction.
type noResults struct {
	pgx.BatchResults
	err error
}

func (n noResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, n.err }
func (n noResults) Query() (pgx.Rows, error)         { return nil, n.err }
func (n noResults) QueryRow() pgx.Row                { return noRow{n.err} }
func (n noResults) Close() error                     { return n.err }

type noRow struct{ err error }

func (n noRow) Scan(...any) error { return n.err }

func (t *transaction) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if err := t.check(); err != nil {
		return noResults{err: err}
	}
	return t.conn.SendBatch(ctx, batch)
}

// LargeObjects needs a transaction of pgx's own, which a savepoint makes.
func (t *transaction) LargeObjects() pgx.LargeObjects {
	inner, err := t.conn.BeginTx(context.Background(), pgx.TxOptions{BeginQuery: "SAVEPOINT once_large_objects"})
	if err != nil {
		return pgx.LargeObjects{}
	}
	return inner.LargeObjects()
}

func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	return t.conn.Prepare(ctx, name, sql)
}

func (t *transaction) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.check(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.conn.Exec(ctx, sql, args...)
}

func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	return t.conn.Query(ctx, sql, args...)
}

func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.check(); err != nil {
		return noRow{err}
	}
	return t.conn.QueryRow(ctx, sql, args...)
}

func (t *transaction) Conn() *pgx.Conn { return t.conn }

type nested struct {
	*transaction
	name  string
	ended bool
}

func (n *nested) end(ctx context.Context, sql string) error {
	if n.ended {
		return pgx.ErrTxClosed
	}
	n.ended = true
	_, err := n.transaction.Exec(ctx, sql+n.name)
	return err
}

func (n *nested) Commit(ctx context.Context) error { return n.end(ctx, "RELEASE SAVEPOINT ") }
func (n *nested) Rollback(ctx context.Context) error {
	return n.end(ctx, "ROLLBACK TO SAVEPOINT ")
}
