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
	options options
}

// New makes a client of a door; applications call the driver's package instead. The options hold
// for every call, unless the call has its own.
func New[T any](door Door[T], defaults ...Option) *Client[T] {
	return &Client[T]{door: door, options: options{}.with(defaults)}
}

const (
	backoffFirst   = 5 * time.Millisecond
	backoffMax     = time.Second
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
	return c.run(ctx, "run", scope, key, start, o, func(ctx context.Context, tx T) (Answer, ending, error) {
		answer, err := effect(ctx, tx)
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

type effectOf[T any] func(ctx context.Context, tx T) (Answer, ending, error)

type attempt[T any] struct {
	client             *Client[T]
	options            options
	begin              string
	scope, key         string
	start              *starter
	trusted            bool // what is remembered of the salt
	guessed            bool // the fingerprint was computed by a salt that was remembered
	effect             effectOf[T]
	unknown            bool // its COMMIT was sent and not answered
	lost               bool // its connection is gone
	unreached          bool // there was no connection to be had
	proceeded, applied bool // the effect was called; it returned
}

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
	inDoubt, haunted := false, false
	trusted := true
	for ; ; tries++ {
		try := &attempt[T]{client: c, options: o, begin: begin, scope: scope, key: key, start: start, trusted: trusted, effect: effect}
		answer, err = try.once(ctx, inDoubt)
		if try.guessed && !try.proceeded && errors.Is(err, ErrMismatch) {
			trusted = false // or it is the salt that is another: the contract was installed anew
			continue
		}
		inDoubt = inDoubt || try.unknown
		haunted = haunted || try.lost
		if err == nil {
			return answer, nil
		}
		err = named(err)
		var again retry
		active := errors.Is(err, ErrActive)
		switch {
		case active && (inDoubt || haunted || time.Since(began) < o.wait):
			// A lost connection's backend may live on: "active" may mean ourselves.
		case inDoubt && isVerdict(err):
			return Answer{}, err // the contract has looked: the lost COMMIT did not happen
		case inDoubt:
			// Only a verdict settles it.
			if ctx.Err() != nil && try.proceeded {
				return Answer{}, err // it was told to proceed: the lost COMMIT did not happen
			}
		case errors.As(err, &again):
			err = again.error
		default:
			return Answer{}, err
		}
		pause := backoff(tries)
		limit := deadline
		if active && !inDoubt && !haunted {
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

// What only the contract can say, having looked.
func isVerdict(err error) bool {
	var known *Error
	var final *FinalError
	return errors.As(err, &final) || (errors.As(err, &known) && known.SQLState != "" && bySQLState[known.SQLState] != nil && known.Code != ErrActive.Code)
}

func giveUp(err error, inDoubt bool) error {
	switch {
	case inDoubt:
		return ErrOutcomeUnknown.because(err)
	case isConflict(err):
		return ErrConflict.because(err)
	default:
		return err
	}
}

// starter asks whether an intent may run. hashed: what is hashed after the salt; nil: the database
// computes the fingerprint, and whole is the question.
type starter struct {
	scope, key, tenant string
	traceparent        any
	hashed             []byte
	whole              Query
	message            bool // whole is the inbox's question, and says whether it is to be applied
}

// The row comes in one value, which costs PostgreSQL and the driver less than a column for each.
const (
	startKnown  = `SELECT $4::bytea, record_send(once.try_start($1::text, $2::text, $4::bytea, $3::text, traceparent => $5::text))`
	startSalted = `SELECT f.salt, record_send(once.try_start($1::text, $2::text, sha256(f.salt || $4::bytea), $3::text, traceparent => $5::text))
  FROM (SELECT once.salt($3::text) AS salt OFFSET 0) AS f`
)

func newStarter(scope, key string, request any, o options, traceparent any) (*starter, error) {
	s := &starter{scope: scope, key: key, tenant: o.tenant, traceparent: traceparent, hashed: hashedOf(request)}
	if s.hashed != nil {
		return s, nil
	}
	p := parameters{}
	fingerprint, err := p.fingerprint(request, o.tenant)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`SELECT f.f, record_send(once.try_start(%s, %s, f.f, %s, traceparent => %s)) FROM (SELECT %s AS f OFFSET 0) AS f`,
		p.add(scope, "text"), p.add(key, "text"), p.add(o.tenant, "text"), p.add(traceparent, "text"), fingerprint)
	s.whole = Query{SQL: text, Args: p.args}
	return s, nil
}

// Its first column is the fingerprint, or the salt where that was not known.
func (s *starter) query(salt []byte) Query {
	switch {
	case s.hashed == nil:
		return s.whole
	case salt == nil:
		return Query{SQL: startSalted, Args: []any{s.scope, s.key, s.tenant, s.hashed, s.traceparent}}
	default:
		return Query{SQL: startKnown, Args: []any{s.scope, s.key, s.tenant, fingerprintOf(salt, s.hashed), s.traceparent}}
	}
}

func (a *attempt[T]) finishQuery(fingerprint []byte, answer Answer, state, code, message string, traceparent any) (Query, error) {
	if answer.kind == asInvalid {
		return Query{}, answer.invalid()
	}
	headers, err := encodeHeaders(answer.Header)
	if err != nil {
		return Query{}, err
	}
	text, bytes := answer.body()
	return Query{
		SQL: `SELECT once.finish($1::text, $2::text, $3::bytea, $4::integer, response_text => $5::text, response_body => $6::bytea,
    response_headers => $7::text::jsonb, result_type => $8::text, result_id => $9::text, state => $10::text,
    error_code => $11::text, error_message => $12::text, tenant => $13::text, traceparent => $14::text) IS NULL`, // the body need not come back
		Args: []any{a.scope, a.key, fingerprint, statusOrNull(answer.Status), text, bytes, headers, orNull(answer.ResultType), orNull(answer.ResultID),
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
	session, err := a.client.door.Connect(asking)
	if err != nil {
		a.unreached = true
		if asking.Err() != nil {
			return Answer{}, context.Cause(asking)
		}
		return Answer{}, ErrUnavailable.because(err)
	}
	defer session.Release()
	settled := false
	defer func() {
		if !settled { // an error, or a panic of the effect
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
			defer cancel()
			session.Rollback(ending)
		}
	}()

	if a.start.message {
		answer, settled, err = a.apply(ctx, asking, session)
		return answer, err
	}
	var found row
	var salt []byte
	if a.trusted && a.start.hashed != nil {
		salt = session.Salts()[a.options.tenant]
	}
	a.guessed = salt != nil
	var sent []byte
	err = session.Open(asking, a.begin, a.start.query(salt), savepoint, &found.fingerprint, &sent)
	if err == nil {
		err = found.read(sent)
	}
	if err != nil {
		return Answer{}, a.failed(asking, session, err)
	}
	if a.start.hashed != nil && salt == nil {
		salt = found.fingerprint
		session.Salts().remember(a.options.tenant, salt)
		found.fingerprint = fingerprintOf(salt, a.start.hashed)
	}
	if found.verdict != "proceed" {
		return found.decide()
	}
	if ctx.Err() != nil {
		a.proceeded = true
		return Answer{}, context.Cause(ctx)
	}

	a.proceeded = true
	answer, how, cause := a.effect(within(ctx, intent{a.scope, a.key, a.options.tenant}), session.Tx())
	a.applied = true
	if session.Ended() {
		return Answer{}, ErrTransactionEnded.because(cause)
	}
	if cause != nil && how == endAbort {
		return Answer{}, a.failed(ctx, session, cause)
	}
	if how == endRelease {
		return answer, nil
	}
	if how == endDone && session.Failed() {
		return Answer{}, ErrSwallowed
	}

	// From here on the caller's cancellation cannot come in between.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.options.within)
	defer cancel()
	if how == endDoubt {
		settled, err = a.doubt(closing, session, found.fingerprint, answer)
		return answer, err
	}
	err = a.store(closing, session, &found, &answer, how, cause)
	settled = err == nil
	if err != nil {
		return Answer{}, err
	}
	answer.Traceparent, answer.Fence, answer.Replayed = value(found.tra), int(value(found.fence)), false
	if how == endFinal {
		final := *asFinal(cause)
		final.Answer = answer
		return answer, &final
	}
	return answer, nil
}

// A message of the inbox: the effect, and the memory of it. Replayed: it was applied before.
func (a *attempt[T]) apply(ctx, asking context.Context, session Session[T]) (answer Answer, settled bool, err error) {
	var process bool
	if err := session.Open(asking, a.begin, a.start.whole, savepoint, &process); err != nil {
		return answer, false, a.failed(asking, session, err)
	}
	if !process {
		return Answer{Replayed: true}, false, nil
	}
	a.proceeded = true
	if ctx.Err() != nil {
		return answer, false, context.Cause(ctx)
	}
	_, _, err = a.effect(within(ctx, intent{a.scope, keyOfMessage(a.key), a.options.tenant}), session.Tx())
	a.applied = true
	switch {
	case session.Ended():
		return answer, false, ErrTransactionEnded.because(err)
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
	spared := forgiving && max(len(stored.Body), len(headers)) > neverTooLarge
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
	var empty bool
	unknown, err := session.Close(ctx, commands, query, &empty)
	if err == nil {
		return nil
	}
	a.unknown = unknown
	if SQLStateOf(err) == "25P02" {
		return ErrSwallowed.because(err)
	}
	return a.failed(ctx, session, err)
}

// What the application says of its own answer: nobody knows. The effect is taken back, and the
// intent in doubt.
func (a *attempt[T]) doubt(ctx context.Context, session Session[T], fingerprint []byte, answer Answer) (bool, error) {
	var stored bool
	unknown, err := session.Close(ctx, []string{undo}, Query{
		SQL: `SELECT once.fail($1::text, $2::text, (once.claim($1::text, $2::text, $3::bytea, tenant => $4::text)).fence, NULL,
    error_code => 'upstream_status', error_message => 'the answer does not say whether the effect happened', response_status => $5::integer,
    tenant => $4::text)`,
		Args: []any{a.scope, a.key, fingerprint, a.options.tenant, statusOrNull(answer.Status)},
	}, &stored)
	if err == nil {
		return true, nil
	}
	a.unknown = unknown
	return false, a.failed(ctx, session, err)
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
	return err
}
