// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// holding is the transaction while an effect has it. One of three ends it: the attempt, after the
// effect has returned; the effect, which needs its COMMIT sooner (settle); or whoever waits no longer
// for an effect that does not return (abandon).
type holding[T any] struct {
	tx T
	// settle stores the answer and commits. Later statements of the effect have no transaction.
	settle func(Answer) error
	// abandon rolls back from another goroutine. false: the effect has returned, or settled.
	abandon func() bool
}

type effectOf[T any] func(ctx context.Context, held holding[T]) (Answer, ending, error)

type attempt[T any] struct {
	client             *Client[T]
	options            options
	begin              string
	scope, key         string
	start              *starter
	trusted            bool // what is remembered of the salt
	guessed            bool // the fingerprint was computed by a salt that was remembered
	effect             effectOf[T]
	spent              bool   // the effect was called by an earlier attempt, and is not called again
	undone             bool   // being spent, it was told to proceed: the lost COMMIT did not happen
	unknown            bool   // its COMMIT was sent and not answered
	lost               bool   // its connection is gone
	proceeded, applied bool   // the effect was called; it returned
	isGone             bool   // the effect has ended the transaction
	gone               []byte // the fingerprint then
	closed             *Error // the node of the attempt before did not serve the tenant
	refused            *Error // nor does that of this one: nothing was done
}

// starter asks whether an intent may run. hashed: what is hashed after the salt; nil: the database
// computes the fingerprint, and whole is the question. fence: a gateway in front has asked, and holds it.
type starter struct {
	scope, key, tenant string
	traceparent        any
	hashed             []byte
	whole              Query
	fence              int32
	message            bool // whole calls once.receive, which tells whether to apply the message
	thrown             bool // the effect has ended its transaction, and then with a panic
}

func newStarter(scope, key string, request any, o options, traceparent any) (*starter, error) {
	s := &starter{scope: scope, key: key, tenant: o.tenant, traceparent: traceparent, hashed: hashedOf(request)}
	if s.hashed != nil {
		return s, nil
	}
	kind, args, err := printed(request, o.tenant)
	if err != nil {
		return nil, err
	}
	s.whole = Query{SQL: sqlStart[kind], Args: append(args, scope, key, traceparent)}
	return s, nil
}

// Its first column is the fingerprint, or the salt where that was not known.
func (s *starter) query(salt []byte) Query {
	switch {
	case s.hashed == nil:
		return s.whole
	case salt == nil:
		return Query{SQL: sqlStartSalted, Args: []any{s.scope, s.key, s.hashed, s.tenant, s.traceparent}}
	default:
		return Query{SQL: sqlStartKnown, Args: []any{s.scope, s.key, fingerprintOf(salt, s.hashed), s.tenant, s.traceparent}}
	}
}

func (a *attempt[T]) finishQuery(fingerprint []byte, answer Answer, state, code, message string, traceparent any) (Query, error) {
	if answer.kind == asInvalid {
		return Query{}, answer.invalid()
	}
	if a.start.fence > 0 {
		return a.reported(answer, state, code, message)
	}
	headers, err := encodeHeaders(answer.Header)
	if err != nil {
		return Query{}, err
	}
	text, bytes := answer.body()
	return Query{
		SQL: sqlFinish,
		Args: []any{a.scope, a.key, fingerprint, statusOrNull(answer.Status), text, nil, bytes, headers, orNull(answer.ResultType), orNull(answer.ResultID),
			state, orNull(code), orNull(message), a.options.tenant, traceparent},
	}, nil
}

// One transaction. inDoubt: it is there to learn what became of an earlier COMMIT, so the context
// does not stop it from asking.
func (a *attempt[T]) once(ctx context.Context, inDoubt bool) (answer Answer, err error) {
	asking := ctx
	if inDoubt {
		patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.options.within)
		defer cancel()
		asking = patient
	}
	connecting := a.options.connecting
	if inDoubt {
		connecting = nil
	}
	session, err := a.client.connect(asking, connecting, a.options, a.closed)
	if err != nil {
		return Answer{}, err
	}
	settled := false
	end := func() {
		defer session.Release() // also if a driver panics over a connection that the server has closed
		if !settled {           // an error, or a panic of the effect
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
			defer cancel()
			session.Rollback(ending)
		}
	}
	// Of the session: the effect has it until somebody takes it.
	var taken atomic.Bool
	ours := true
	defer func() {
		if !ours && !taken.CompareAndSwap(false, true) {
			return
		}
		thrown := false
		func() {
			defer end()
			thrown = !ours && !a.applied && a.isElsewhere(ctx, session) // a panic, which goes on
		}()
		if thrown {
			a.start.thrown = true
			_ = a.doubtGone(ctx, ErrTransactionEnded)
		}
	}()

	if a.start.message {
		answer, settled, err = a.apply(ctx, asking, session)
		return answer, err
	}
	ask := a.ask
	if a.start.fence > 0 {
		ask = a.take
	}
	found, err := ask(asking, session)
	if err != nil {
		return Answer{}, err
	}
	if found.verdict != "proceed" {
		return found.decide()
	}
	if a.spent {
		a.undone = true
		return Answer{}, ErrUnavailable.because(errUndone)
	}
	a.proceeded, a.gone = true, found.fingerprint
	if ctx.Err() != nil {
		return Answer{}, context.Cause(ctx)
	}

	var early error
	isEarly := false
	ours = false
	answer, how, cause := a.effect(within(ctx, intent{a.scope, a.key, a.options.tenant}), holding[T]{
		tx: session.Tx(),
		settle: func(done Answer) error {
			if !taken.CompareAndSwap(false, true) {
				return ErrTransactionEnded
			}
			isEarly, early = true, a.end(ctx, session, found, &done, endDone, nil)
			settled = early == nil
			end()
			return early
		},
		abandon: func() bool {
			if !taken.CompareAndSwap(false, true) {
				return false
			}
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
			defer cancel()
			session.Abandon(ending)
			return true
		},
	})
	a.applied = true
	switch {
	case taken.CompareAndSwap(false, true):
		ours = true
	case isEarly:
		return answer, early
	default:
		return Answer{}, cause // abandoned
	}
	if cause != nil && how == endAbort && !session.Gone() {
		err := a.failed(ctx, session, cause)
		if !a.lost && a.isElsewhere(ctx, session) {
			err = ErrTransactionEnded.because(undeclared(cause))
		}
		return Answer{}, err
	}
	err = a.end(ctx, session, found, &answer, how, cause)
	settled = err == nil && how != endRelease
	if err == nil && how == endFinal {
		final := *asFinal(cause)
		final.Answer = answer
		return answer, &final
	}
	return answer, err
}

var errUndone = errors.New("the connection was lost before COMMIT, and nothing is done twice")

// No wait for a connection is endless: connecting ends it, or the time that a call has.
func (c *Client[T]) connect(asking, connecting context.Context, o options, closed *Error) (Session[T], error) {
	if connecting == nil {
		bounded, cancel := context.WithTimeout(asking, o.within)
		defer cancel()
		connecting = bounded
	}
	began := time.Now()
	door, err := c.doorOf(connecting, o.tenant, closed)
	isRouted := err == nil
	if isRouted {
		var session Session[T]
		if session, err = door.Connect(connecting); err == nil {
			return session, nil
		}
	}
	var known *Error
	switch {
	case errors.As(context.Cause(connecting), &known): // the middleware says why
	case asking.Err() != nil:
		return nil, context.Cause(asking)
	case !isRouted && connecting.Err() == nil:
		return nil, err
	default:
		known = ErrUnavailable
	}
	if isRouted && connecting.Err() != nil {
		err = fmt.Errorf("no connection was free within %d ms: %w", time.Since(began).Milliseconds(), err)
	}
	return nil, known.because(err)
}

// FullPool is what a door makes of an error that taking a connection ended with, where all of them
// were taken.
func FullPool(max int, err error) error {
	return fmt.Errorf("the pool of %d is full, and a handler that takes a second connection from the same pool can be the cause (see LeaseMode): %w", max, err)
}

// Begins, and asks whether the intent may run.
func (a *attempt[T]) ask(asking context.Context, session Session[T]) (*row, error) {
	var found row
	var salt []byte
	if a.trusted && a.start.hashed != nil {
		salt = session.Salts()[a.options.tenant]
	}
	a.guessed = salt != nil
	var sent []byte
	err := session.Open(asking, a.begin, a.start.query(salt), savepoint, &found.fingerprint, &sent)
	if err == nil {
		err = found.read(sent)
	}
	if err != nil {
		return nil, a.failed(asking, session, err)
	}
	if a.start.hashed != nil && salt == nil {
		salt = found.fingerprint
		session.Salts().remember(a.options.tenant, salt)
		found.fingerprint = fingerprintOf(salt, a.start.hashed)
	}
	return &found, nil
}

// What follows from how the effect has ended. From here on the caller's cancellation cannot come in
// between.
func (a *attempt[T]) end(ctx context.Context, session Session[T], found *row, answer *Answer, how ending, cause error) error {
	refused, swallowed := session.Refused(), how == endDone && session.Failed()
	switch {
	case (session.Gone() || refused || swallowed || how == endRelease) && a.isElsewhere(ctx, session):
		return ErrTransactionEnded.because(undeclared(cause))
	case refused:
		return ErrTransactionControl.because(undeclared(cause))
	case how == endRelease:
		return nil
	case swallowed:
		return ErrSwallowed
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.options.within)
	defer cancel()
	var err error
	if how == endDoubt {
		err = a.doubt(closing, session, found, *answer)
	} else {
		err = a.store(closing, session, found, answer, how, cause)
	}
	switch {
	case isAnother(err), errors.Is(err, ErrSwallowed) && a.isElsewhere(ctx, session):
		a.isGone = true // there is no transaction, or another one
		return ErrTransactionEnded.because(err)
	case err != nil || how == endDoubt:
		return err
	}
	answer.Traceparent, answer.Fence, answer.Replayed = value(found.tra), int(value(found.fence)), false
	return nil
}

// Has the effect ended the transaction, and perhaps begun another one? Nothing is stored then, and the
// effect is taken back where it has not.
func (a *attempt[T]) isElsewhere(ctx context.Context, session Session[T]) bool {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	a.isGone = session.Gone() || isAnother(session.Undo(closing, undo))
	return a.isGone
}

// Of statements that end an attempt: the transaction has not started it, and has not set its savepoint.
func isAnother(err error) bool {
	switch SQLStateOf(err) {
	case ErrNotStarted.SQLState, ErrAlreadyStarted.SQLState, ErrAnotherFingerprint.SQLState, "25P01", "3B001":
		return true
	default:
		return false
	}
}

// A failure for good that is not the outcome: as the cause of an error it must not be found.
func undeclared(cause error) error {
	if asFinal(cause) == nil {
		return cause
	}
	return errors.New(cause.Error())
}

// The effect has ended the transaction, perhaps by COMMIT: the outcome is unknown, and no attempt may
// run. The transaction and its lock are gone, so another attempt may have begun.
func (a *attempt[T]) doubtGone(ctx context.Context, cause error) error {
	if a.start.fence > 0 {
		return inDoubt(cause) // the gateway in front notes it
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.options.within)
	defer cancel()
	var stored *bool
	err := a.client.of(a.options.tenant).QueryRow(closing, Query{
		SQL:  sqlDoubt,
		Args: []any{a.scope, a.key, a.options.tenant, a.gone, a.start.traceparent, reasonEnded.code, reasonEnded.message, nil},
	}, &stored)
	if err != nil {
		return inDoubt(fmt.Errorf("%w: the doubt could not be stored: %w", cause, err))
	}
	return inDoubt(cause)
}

// A message of the inbox: the effect, and the memory of it. Replayed: it was applied before.
func (a *attempt[T]) apply(ctx, asking context.Context, session Session[T]) (answer Answer, settled bool, err error) {
	var verdict string
	if err := session.Open(asking, a.begin, a.start.whole, savepoint, &verdict); err != nil {
		return answer, false, a.failed(asking, session, err)
	}
	if verdict != toProcess {
		return Answer{Replayed: true}, false, nil
	}
	a.proceeded = true
	if ctx.Err() != nil {
		return answer, false, context.Cause(ctx)
	}
	_, _, err = a.effect(within(ctx, intent{a.scope, keyOfMessage(a.key), a.options.tenant}), holding[T]{tx: session.Tx()})
	a.applied = true
	switch {
	case session.Gone():
		return answer, false, ErrTransactionEnded.because(err)
	case session.Refused():
		return answer, false, ErrTransactionControl.because(err)
	case err != nil:
		return answer, false, a.failed(ctx, session, err)
	case session.Failed():
		return answer, false, ErrSwallowed
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.options.within)
	defer cancel()
	err = a.close(closing, session, nil, Query{SQL: "SELECT true"})
	return answer, err == nil, err
}

func asFinal(err error) *FinalError {
	var final *FinalError
	errors.As(err, &final)
	return final
}

// Finish and COMMIT.
func (a *attempt[T]) store(ctx context.Context, session Session[T], found *row, answer *Answer, how ending, cause error) error {
	state, code, message := "succeeded", "", ""
	var commands []string
	if how == endFinal {
		final := asFinal(cause)
		*answer, state, code, message = final.Answer, "failed_final", final.Code, final.Message
		commands = append(commands, undo)
	}
	stored, large := *answer, Answer{Status: answer.Status, ResultType: resultTooLarge}
	forgiving := a.options.responseMax > 0
	if forgiving && len(stored.Body) > a.options.responseMax {
		stored = large
	}
	query, err := a.finishQuery(found.fingerprint, stored, state, code, message, found.trace())
	if err != nil {
		return err
	}
	headers, _ := query.Args[finishHeaders].(string)
	spared := forgiving && (a.start.fence > 0 || max(len(stored.Body), len(headers)) > neverTooLarge)
	if spared {
		commands = append(commands, savepointStore)
	}
	err = a.close(ctx, session, commands, query)
	if spared && SQLStateOf(err) == ErrTooLarge.SQLState {
		// The scope keeps less than this location: done, and too large to keep.
		query, err = a.finishQuery(found.fingerprint, large, state, code, message, found.trace())
		if err == nil {
			err = a.close(ctx, session, []string{undoStore}, query)
		}
	}
	return err
}

func (a *attempt[T]) close(ctx context.Context, session Session[T], commands []string, query Query) error {
	var stored bool
	unknown, err := session.Close(ctx, commands, query, &stored)
	if err == nil {
		return nil
	}
	a.unknown = unknown
	if a.start.fence > 0 && !stored && SQLStateOf(err) == divisionByZero {
		return ErrCompletionRefused.because(err)
	}
	if SQLStateOf(err) == "25P02" {
		return ErrSwallowed.because(err)
	}
	return a.failed(ctx, session, err)
}

// The application declares its outcome unknown. The effect is rolled back, and the intent is put in
// doubt.
func (a *attempt[T]) doubt(ctx context.Context, session Session[T], found *row, answer Answer) error {
	var stored *bool
	unknown, err := session.Close(ctx, []string{undo}, Query{
		SQL: sqlDoubt,
		Args: []any{a.scope, a.key, a.options.tenant, found.fingerprint, found.trace(), reasonUnclear.code, reasonUnclear.message,
			statusOrNull(finalStatus(answer.Status))},
	}, &stored)
	if err == nil {
		return nil
	}
	a.unknown = unknown
	return a.failed(ctx, session, err)
}

// May another attempt follow this error?
func (a *attempt[T]) failed(ctx context.Context, session Session[T], err error) error {
	checking, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
	defer cancel()
	if session.Lost(checking) {
		a.lost = true
		if ctx.Err() != nil && !a.unknown {
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		return retry{ErrUnavailable.because(err)}
	}
	if isConflict(err) {
		return retry{err}
	}
	if !a.proceeded {
		a.refused = a.client.refusal(err)
	}
	return err
}
