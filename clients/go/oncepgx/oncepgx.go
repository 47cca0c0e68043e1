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

// NewRouted makes a client over several nodes that share the tenants. route gives the pool of a tenant's
// node: Nodes, or a function of the application's.
func NewRouted(route once.Route[*pgxpool.Pool], defaults ...once.Option) *Client {
	in := func(tx pgx.Tx) once.Querier { return from{tx} }
	return once.NewRouted(in, once.Doors(route, func(pool *pgxpool.Pool) once.Door[pgx.Tx] { return poolDoor{pool} }), defaults...)
}

// Nodes routes each tenant to the node where its slot is open, and asks the nodes for that: first, and
// again after each refusal. It closes no pool.
func Nodes(pools ...*pgxpool.Pool) once.Route[*pgxpool.Pool] {
	each := make([]once.Node[*pgxpool.Pool], len(pools))
	for i, pool := range pools {
		at := pool.Config().ConnConfig
		each[i] = once.Node[*pgxpool.Pool]{Pool: pool, Query: poolDoor{pool}, Name: fmt.Sprintf("%s:%d/%s", at.Host, at.Port, at.Database)}
	}
	return once.NewNodes(each...)
}

// NewConn makes a client over one connection, which no other code may use meanwhile. If it is lost,
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
		if seen := d.pool.Stat(); ctx.Err() != nil && seen.AcquiredConns() >= seen.MaxConns() {
			err = once.FullPool(int(seen.MaxConns()), err)
		}
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

func (s *connection) Refused() bool { return s.tx.refused.Load() }

func (s *connection) Gone() bool { return s.status() == 'I' }

func (s *connection) Close(ctx context.Context, commands []string, query once.Query, dest ...any) (bool, error) {
	if s.tx.role.Load() {
		commands = append(commands, once.OwnRole)
	}
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
	// COMMIT was sent with the rest: the outcome is unknown, unless the server is up and has reported an error.
	return s.conn.IsClosed(), err
}

func (s *connection) Undo(ctx context.Context, command string) error {
	if s.status() == 0 || s.status() == 'I' {
		return nil
	}
	_, err := s.conn.Exec(ctx, command+"; ROLLBACK")
	return err
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

// A statement that does not end has its connection closed beneath it; that wakes it up.
func (s *connection) Abandon(ctx context.Context) {
	defer s.release()
	s.tx.done.Store(true)
	if !s.tx.running.TryLock() {
		_ = s.conn.PgConn().Conn().Close()
		s.tx.running.Lock()
	}
	defer s.tx.running.Unlock()
	s.Rollback(ctx)
}

func (s *connection) Release() {
	s.tx.done.Store(true)
	s.release()
}
