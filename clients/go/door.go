// SPDX-License-Identifier: PostgreSQL

package once

import "context"

// Query is one statement of the contract's, with its parameters.
type Query struct {
	SQL  string
	Args []any
}

// Querier runs a statement that returns one row, and scans it.
type Querier interface {
	QueryRow(ctx context.Context, query Query, dest ...any) error
}

// Door is what a driver's package brings: oncepgx, oncesql, or your own package. It owns no pool.
// QueryRow runs a statement in a separate transaction (autocommit).
type Door[T any] interface {
	Querier
	// Connect takes a connection of the caller's pool.
	Connect(ctx context.Context) (Session[T], error)
	// In runs statements in a transaction that the caller has.
	In(tx T) Querier
}

// OwnRole is a command for Session's Close, after an effect that may have set another role: the contract
// is called as the session's.
const OwnRole = "SET LOCAL ROLE NONE"

// Session is one connection, for one attempt. After Release it is the pool's again.
type Session[T any] interface {
	// QueryRow runs a statement in a separate transaction, before Open.
	Querier
	// Open sends begin, the query and savepoint, in one round trip where the driver can.
	Open(ctx context.Context, begin string, query Query, savepoint string, dest ...any) error
	// Salts are kept with the connection itself, and go with it; nil where the driver cannot do that.
	Salts() Salts
	// Tx is the open transaction, for the effect.
	Tx() T
	// Failed says that a statement has failed, so that COMMIT would roll back. False where the
	// driver cannot tell: then the first statement of Close fails.
	Failed() bool
	// Refused says that the effect has tried to end the transaction, and was not let.
	Refused() bool
	// Gone says that the effect has ended it all the same. False where the driver cannot tell: then
	// Close fails (P4012), or Undo (3B001, 25P01).
	Gone() bool
	// Close sends the commands, the query and COMMIT, in one round trip where the driver can.
	// unknown: COMMIT may have succeeded, and its reply was lost.
	Close(ctx context.Context, commands []string, query Query, dest ...any) (unknown bool, err error)
	// Undo sends the command, which takes the effect back and fails where the transaction is another one.
	// It may send ROLLBACK behind it; Rollback follows in any case.
	Undo(ctx context.Context, command string) error
	// Rollback ends the transaction, if there is one.
	Rollback(ctx context.Context)
	// Abandon does what Rollback and Release do, from another goroutine, while the effect may be in the
	// middle of a statement: what it does next fails.
	Abandon(ctx context.Context)
	// Lost says, after an error, that the connection is gone.
	Lost(ctx context.Context) bool
	Release()
}
