// SPDX-License-Identifier: PostgreSQL

// Package oncesql is pgonce's door through database/sql, with any driver for PostgreSQL whose errors
// tell their SQLSTATE (a method SQLState() string: pgx's stdlib, lib/pq). database/sql cannot send
// several statements at once, so BEGIN, the contract's question and COMMIT are a round trip each:
// oncepgx takes two for all of them.
package oncesql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"

	"pgonce.internal/once"
)

// Client runs intents whose effects get a *sql.Tx. It is committed with its answer: Commit, Rollback
// and the like as text are refused. Statements that were prepared with the pool (*sql.Stmt) cannot be
// used in it: prepare them with the transaction.
type Client = once.Client[*sql.Tx]

// New makes a client over the caller's pool.
func New(db *sql.DB, defaults ...once.Option) *Client {
	return once.New[*sql.Tx](door{db: db, lent: lent(db)}, defaults...)
}

// NewRouted makes a client over several nodes that share the tenants. route gives the pool of a tenant's
// node: Nodes, or a function of the application's, which gives the same few pools again and again.
func NewRouted(route once.Route[*sql.DB], defaults ...once.Option) *Client {
	var made sync.Map // a door for each pool
	return once.NewRouted(func(tx *sql.Tx) once.Querier { return from{tx} }, once.Doors(route, func(db *sql.DB) once.Door[*sql.Tx] {
		known, isKnown := made.Load(db)
		if !isKnown {
			known, _ = made.LoadOrStore(db, door{db: db, lent: lent(db)})
		}
		return known.(door)
	}), defaults...)
}

// Nodes routes each tenant to the node where its slot is open, and asks the nodes for that: first, and
// again after each refusal. It closes no pool.
func Nodes(pools ...*sql.DB) once.Route[*sql.DB] {
	each := make([]once.Node[*sql.DB], len(pools))
	for i, db := range pools {
		each[i] = once.Node[*sql.DB]{Pool: db, Query: from{db}} // database/sql does not tell where it leads
	}
	return once.NewNodes(each...)
}

type queries interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

type from struct{ db queries }

func (f from) QueryRow(ctx context.Context, query once.Query, dest ...any) error {
	return f.db.QueryRowContext(ctx, query.SQL, query.Args...).Scan(dest...)
}

type door struct{ db, lent *sql.DB }

func (d door) QueryRow(ctx context.Context, query once.Query, dest ...any) error {
	return from{d.db}.QueryRow(ctx, query, dest...)
}

func (d door) In(tx *sql.Tx) once.Querier { return from{tx} }

func (d door) Connect(ctx context.Context) (once.Session[*sql.Tx], error) {
	conn, err := d.lent.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn}
	return s, conn.Raw(func(made any) error {
		s.guard = made.(*guard)
		return nil
	})
}

type session struct {
	conn  *sql.Conn
	guard *guard
	tx    *sql.Tx
	begun context.CancelFunc // frees the context of the transaction
	lost  bool
	// Something has not returned yet that uses the connection, so that it cannot be given back.
	stuck bool
}

var levels = map[string]sql.IsolationLevel{
	"BEGIN":                                 sql.LevelDefault,
	"BEGIN ISOLATION LEVEL read committed":  sql.LevelReadCommitted,
	"BEGIN ISOLATION LEVEL repeatable read": sql.LevelRepeatableRead,
	"BEGIN ISOLATION LEVEL serializable":    sql.LevelSerializable,
}

func (s *session) QueryRow(ctx context.Context, query once.Query, dest ...any) error {
	return from{s.conn}.QueryRow(ctx, query, dest...)
}

// The transaction has a separate context, which the caller's ends only until it has begun: else
// database/sql would roll it back in the background as soon as that is cancelled, between the effect and
// its answer too.
func (s *session) Open(ctx context.Context, begin string, query once.Query, savepoint string, dest ...any) error {
	var own context.Context
	own, s.begun = context.WithCancel(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, s.begun)
	tx, err := s.conn.BeginTx(own, &sql.TxOptions{Isolation: levels[begin]})
	if !unwatch() && err == nil {
		s.tx = tx
		return s.heed(context.Cause(ctx))
	}
	if err != nil {
		return s.heed(err)
	}
	s.tx = tx
	if err := (from{tx}).QueryRow(ctx, query, dest...); err != nil {
		return s.heed(err)
	}
	_, err = tx.ExecContext(ctx, savepoint)
	return s.heed(err)
}

func (s *session) heed(err error) error {
	if errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		s.lost = true
	}
	return err
}

// database/sql hides which connection it is.
func (s *session) Salts() once.Salts { return nil }

func (s *session) Tx() *sql.Tx { return s.tx }

// database/sql does not tell; the first statement of Close fails then (25P02).
func (s *session) Failed() bool { return false }

func (s *session) Refused() bool { return s.guard.refused.Load() }

// Nor this; Close learns it.
func (s *session) Gone() bool { return false }

func (s *session) Close(ctx context.Context, commands []string, query once.Query, dest ...any) (bool, error) {
	if s.guard.role.Load() {
		commands = append(commands, once.OwnRole)
	}
	for _, command := range commands {
		if _, err := s.tx.ExecContext(ctx, command); err != nil {
			return false, s.heed(err)
		}
	}
	if err := (from{s.tx}).QueryRow(ctx, query, dest...); err != nil {
		return false, s.heed(err)
	}
	err := s.commit(ctx)
	if err == nil {
		s.tx = nil
		return false, nil
	}
	state := once.SQLStateOf(err)
	unknown := state == "" || state[:2] == "08" || state[:2] == "57"
	return unknown, s.heed(err)
}

func (s *session) commit(ctx context.Context) error {
	s.guard.commits.Store(true)
	return s.bounded(ctx, s.tx.Commit)
}

// sql.Tx's Commit and Rollback have no context, so a server that is silent would hold them for good: where
// the time is over the answer is unknown, and the connection is not used again.
func (s *session) bounded(ctx context.Context, end func() error) error {
	done := make(chan error, 1)
	go func() { done <- end() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		s.lost, s.stuck = true, true
		return context.Cause(ctx)
	}
}

func (s *session) Undo(ctx context.Context, command string) error {
	if s.tx == nil || s.stuck {
		return nil
	}
	_, err := s.tx.ExecContext(ctx, command)
	return s.heed(err)
}

// Of a lost connection, too: until then database/sql keeps it for its transaction. Where the effect
// has called Commit, that *sql.Tx is of no use any more, and the driver's is there still.
func (s *session) Rollback(ctx context.Context) {
	if s.tx == nil || s.stuck {
		return
	}
	tx := s.tx
	s.tx = nil
	s.guard.rollsBack.Store(true)
	err := s.bounded(ctx, func() error {
		err := tx.Rollback()
		if errors.Is(err, sql.ErrTxDone) {
			err = s.guard.rollback()
		}
		return err
	})
	s.lost = s.lost || err != nil
}

// An empty statement is one that a failed transaction takes, too. Within a transaction it must be
// its own: Conn's Ping would wait for the transaction's end where the connection is bad.
func (s *session) Lost(ctx context.Context) bool {
	if s.lost {
		return true
	}
	err := sql.ErrTxDone
	if s.tx != nil {
		_, err = s.tx.ExecContext(ctx, "")
	}
	if errors.Is(err, sql.ErrTxDone) {
		err = s.conn.PingContext(ctx)
	}
	s.lost = err != nil
	return s.lost
}

func (s *session) Release() {
	if s.stuck {
		go s.giveBack()
	} else {
		s.giveBack()
	}
}

// database/sql cannot close a connection beneath a statement: Rollback waits until that ends.
func (s *session) Abandon(ctx context.Context) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.Rollback(ctx)
		s.giveBack()
	}()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

func (s *session) giveBack() {
	if s.begun != nil {
		s.begun()
	}
	if s.lost {
		// Not back into the pool.
		_ = s.conn.Raw(func(made any) error {
			made.(*guard).lost = true
			return nil
		})
	}
	_ = s.conn.Close()
}
