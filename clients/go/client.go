// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"time"
)

// Client runs intents through a driver's door, whose transactions are of type T. Make one with
// oncepgx.New or oncesql.New. It may be used by many goroutines at once, and owns nothing.
type Client[T any] struct {
	door    Door[T]
	inside  func(tx T) Querier // this and route in place of door: several nodes
	route   Route[Door[T]]
	options options
}

// New makes a client of a door; applications call the driver's package instead. The options hold
// for every call, unless the call has its own.
func New[T any](door Door[T], defaults ...Option) *Client[T] {
	return &Client[T]{door: door, options: options{}.with(defaults)}
}

const (
	// spec: retries
	backoffFirst    = 5 * time.Millisecond     // the longest first pause
	backoffMax      = 1000 * time.Millisecond  // the longest pause
	deadlineDefault = 30000 * time.Millisecond // the default deadline of a call
	// end of spec
)

const (
	rollbackWithin = 5 * time.Second

	savepoint      = "SAVEPOINT once_effect"
	undo           = "ROLLBACK TO SAVEPOINT once_effect"
	savepointStore = "SAVEPOINT once_store"
	undoStore      = "ROLLBACK TO SAVEPOINT once_store"

	// What the contract takes for any scope, of a body and of headers: below it, P4060 cannot come.
	neverTooLarge = 8192

	resultTooLarge = "once.too_large"

	finishHeaders = 6 // among finishQuery's arguments
)

// Full jitter: anything from nothing to a ceiling that doubles.
func backoff(tries int) time.Duration {
	ceiling := backoffMax
	if tries < 8 {
		ceiling = min(backoffMax, backoffFirst<<tries)
	}
	return time.Duration(rand.Int63n(int64(ceiling) + 1))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func beginOf(isolation string) (string, error) {
	switch isolation {
	case "":
		return "BEGIN", nil
	case "read committed", "repeatable read", "serializable":
		return "BEGIN ISOLATION LEVEL " + isolation, nil
	}
	return "", fmt.Errorf("pgonce: there is no isolation level %q", isolation)
}

// Run makes the effect happen once for (tenant, scope, key), and gives every call the same answer.
//
// It begins a transaction, asks the contract, calls the effect with that transaction, stores its
// answer and commits: two round trips besides the effect's own with pgx. Where the intent is
// finished, the stored answer comes back, Replayed, and the effect is not called.
//
// The request is what makes two calls the same: an HTTPRequest, a string, []byte, or anything that
// encoding/json writes, compared in canonical form. The same key with another one is ErrMismatch.
//
// An effect that returns a *FinalError (see Fail) is taken back, and its failure stored for good in
// the same transaction. Any other error comes out as it is, and nothing is committed. 40001 and
// 40P01 run the effect again, so it must do everything in the transaction. A COMMIT whose
// acknowledgement is lost is asked for on another connection.
//
// Until the effect has returned, the context may cancel. After that it cannot come between the
// effect and its COMMIT.
func (c *Client[T]) Run(ctx context.Context, scope, key string, request any, effect func(ctx context.Context, tx T) (Answer, error), opts ...Option) (Answer, error) {
	o := c.options.with(opts)
	start, err := newStarter(scope, key, request, o, o.trace(ctx))
	if err != nil {
		return Answer{}, err
	}
	return c.run(ctx, "run", scope, key, start, o, func(ctx context.Context, held holding[T]) (Answer, ending, error) {
		answer, err := effect(ctx, held.tx)
		var final *FinalError
		switch {
		case err == nil:
			return answer, endDone, nil
		case errors.As(err, &final):
			return answer, endFinal, final
		default:
			return answer, endAbort, err
		}
	})
}

// How an effect ended.
type ending int

const (
	endDone    ending = iota // store the answer with the effect
	endFinal                 // take the effect back, and store the failure
	endRelease               // nothing was done: ROLLBACK, and hand the answer on
	endDoubt                 // take the effect back, and put the intent in doubt
	endAbort                 // ROLLBACK, and hand the error on
)

// retry marks what another attempt may follow.
type retry struct{ error }

func (r retry) Unwrap() error { return r.error }

// intent is what an attempt is of: its effect's context has it, for the events that the effect emits.
type intent struct{ scope, key, tenant string }

type intentKey struct{}

func within(ctx context.Context, of intent) context.Context {
	return context.WithValue(ctx, intentKey{}, of)
}

func intentOf(ctx context.Context) (intent, bool) {
	of, ok := ctx.Value(intentKey{}).(intent)
	return of, ok
}

func (c *Client[T]) run(ctx context.Context, kind, scope, key string, start *starter, o options, effect effectOf[T]) (answer Answer, err error) {
	ctx, end := o.observer.Begin(ctx, kind, scope)
	tries := 0
	defer func() {
		end(observed(kind, answer, err, tries+1))
	}()
	begin, err := beginOf(o.isolation)
	if err != nil {
		return Answer{}, err
	}
	began := time.Now()
	deadline := began.Add(o.within)
	inDoubt, lostBefore := false, false
	trusted, spent := true, false
	var closed *Error // the node of the attempt before has refused it
	rerouted := false
	for ; ; tries++ {
		try := &attempt[T]{client: c, options: o, begin: begin, scope: scope, key: key, start: start, trusted: trusted, effect: effect, spent: spent, closed: closed}
		answer, err = try.once(ctx, inDoubt)
		closed = try.refused
		if try.guessed && !try.proceeded && errors.Is(err, ErrMismatch) {
			trusted = false // or it is the salt that is another: the contract was installed anew
			continue
		}
		if try.unknown && start.fence > 0 {
			return Answer{}, try.lostCommit(ctx, err)
		}
		switch {
		case try.unknown:
			inDoubt = true
		case try.proceeded: // start has looked: an earlier COMMIT that was lost did not happen
			inDoubt, lostBefore = false, false
		}
		lostBefore = lostBefore || try.lost
		spent = spent || (try.proceeded && o.single)
		if err == nil {
			return answer, nil
		}
		if try.isGone {
			return Answer{}, try.doubtGone(ctx, err)
		}
		if !try.proceeded {
			err = ofContractItself(err)
		}
		err = named(err)
		if closed != nil && !rerouted {
			rerouted = true
			continue
		}
		var again retry
		active := errors.Is(err, ErrActive)
		switch {
		case active && (inDoubt || lostBefore || time.Since(began) < o.wait):
			// A lost connection's backend may live on: "active" may mean ourselves.
		case inDoubt && (isVerdict(err) || try.undone):
			return Answer{}, err // the contract has looked: the lost COMMIT did not happen
		case inDoubt: // only a verdict settles it
		case errors.As(err, &again):
			err = again.error
			if spent {
				return Answer{}, giveUp(err, false)
			}
		default:
			return Answer{}, err
		}
		pause := backoff(tries)
		limit := deadline
		if active && !inDoubt && !lostBefore {
			limit = began.Add(o.wait)
			pause = min(pause, time.Until(limit))
		}
		if !time.Now().Add(pause).Before(limit) && !(active && pause > 0) {
			return Answer{}, giveUp(err, inDoubt)
		}
		pausing := ctx
		if inDoubt {
			pausing = context.WithoutCancel(ctx)
		}
		if cancelled := sleep(pausing, pause); cancelled != nil {
			return Answer{}, cancelled
		}
	}
}

func observed(kind string, answer Answer, err error, attempts int) Observed {
	ran, replayed := "proceed", "replay"
	if kind == consuming {
		ran, replayed = "process", "duplicate"
	}
	seen := Observed{Verdict: ran, Attempts: attempts, Err: err, Traceparent: answer.Traceparent}
	var known *Error
	var final *FinalError
	switch {
	case errors.As(err, &final):
		seen.Verdict = ErrFinal.Code
	case errors.As(err, &known):
		seen.Verdict, seen.Traceparent = known.Code, known.Traceparent
	case err != nil:
		seen.Verdict = "error"
	case answer.Replayed:
		seen.Verdict = replayed
	}
	return seen
}

// What only the contract can say, having looked. A node that does not serve the tenant has not.
func isVerdict(err error) bool {
	var known *Error
	var final *FinalError
	return errors.As(err, &final) || (errors.As(err, &known) && known.SQLState != "" && bySQLState[known.SQLState] != nil && known.Code != ErrActive.Code && known.Code != ErrSlotClosed.Code)
}

func giveUp(err error, inDoubt bool) error {
	switch {
	case inDoubt:
		return ErrOutcomeUnknown.because(err)
	case isConflict(err):
		conflict := ErrConflict.because(err)
		conflict.SQLState = SQLStateOf(err)
		return conflict
	default:
		return err
	}
}
