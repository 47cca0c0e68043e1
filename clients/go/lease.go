// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lease is an intent that this attempt holds, for an effect that is made elsewhere. It is renewed in
// the background until it is reported, released, closed or lost.
type Lease struct {
	// Verdict is new_claim, retryable_failure (earlier attempts certainly had no effect) or
	// processing_stale (the last one fell silent, and may have had one).
	Verdict string
	// Fence is the lease's number: a later holder's is higher.
	Fence int
	// Traceparent of the intent's first attempt.
	Traceparent string

	door       Querier
	options    options
	scope, key string
	context    context.Context
	cancel     context.CancelCauseFunc
	stop       chan struct{}
	stopped    sync.WaitGroup
	once       sync.Once
}

// Claim takes an intent whose effect is made elsewhere. Exactly one of three comes back: a lease,
// under which the work is done and then reported; the stored answer of an intent that is finished;
// or an error: ErrActive, ErrInDoubt, ErrExpired, ErrMismatch, *FinalError.
//
//	lease, answer, err := db.Claim(ctx, "payments", key, request)
//	if lease == nil {
//		return answer, err
//	}
//	charge, err := provider.Charge(lease.Context(), ...)
//	...
//	return lease.Complete(ctx, once.JSON(201, charge))
//
// A claim whose answer was lost with the connection is found again by its owner's mark.
func (c *Client[T]) Claim(ctx context.Context, scope, key string, request any, opts ...Option) (*Lease, *Answer, error) {
	return c.claimed(ctx, scope, key, request, c.options.with(opts))
}

// A claim that its observer is told of.
func (c *Client[T]) claimed(ctx context.Context, scope, key string, request any, o options) (*Lease, *Answer, error) {
	ctx, end := o.observer.Begin(ctx, "claim", scope)
	lease, answer, attempts, err := c.claim(ctx, scope, key, request, o)
	seen := observed("claim", value(answer), err, attempts)
	if lease != nil {
		seen.Traceparent = lease.Traceparent
	}
	end(seen)
	return lease, answer, err
}

func (c *Client[T]) claim(ctx context.Context, scope, key string, request any, o options) (*Lease, *Answer, int, error) {
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, nil, 1, err
	}
	owner := hex.EncodeToString(nonce[:])
	if o.owner != "" {
		owner = o.owner + " " + owner
	}
	kind, args, err := printed(request, o.tenant)
	if err != nil {
		return nil, nil, 1, err
	}
	query := Query{SQL: sqlClaim[kind], Args: append(args, scope, key, owner, seconds(o.lease), seconds(o.retention), o.trace(ctx), o.takeover())}

	began := time.Now()
	lost := false
	var closed *Error // the node that was asked before does not serve the tenant
	rerouted := false
	for tries := 0; ; tries++ {
		var found row
		var left *float64
		asked := time.Now()
		err := c.alone(ctx, o, closed, query, append(found.outcome(), &left)...)
		if own, is := err.(unrouted); is {
			return nil, nil, tries + 1, own.error
		}
		if closed = c.refusal(err); closed != nil && !rerouted {
			rerouted = true
			continue
		}
		if err = named(ofContractItself(err)); err == nil {
			if verdicts[found.verdict].then == toRun {
				return newLease(ctx, c.of(o.tenant), o, scope, key, &found, asked, value(left)), nil, tries + 1, nil
			}
			answer, decided := found.decide()
			if decided == nil {
				return nil, &answer, tries + 1, nil
			}
			err = decided
		}
		if lost && errors.Is(err, ErrActive) {
			if lease := c.adopt(ctx, o, scope, key, owner); lease != nil {
				return lease, nil, tries + 1, nil
			}
		}
		state := SQLStateOf(err)
		noAnswer := state == "" && !isVerdict(err) && !errors.Is(err, ErrActive)
		lost = lost || noAnswer
		wait := errors.Is(err, ErrActive) && (lost || time.Since(began) < o.wait)
		if errors.Is(err, errLeft) {
			return nil, nil, tries + 1, err
		}
		if ctx.Err() != nil {
			return nil, nil, tries + 1, fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
		if !wait && !isConflict(err) && !noAnswer {
			return nil, nil, tries + 1, err
		}
		pause := backoff(tries)
		limit := began.Add(o.within)
		if wait && !lost {
			limit = began.Add(o.wait)
		}
		// Without a single connection there is nothing to wait for.
		if !time.Now().Add(pause).Before(limit) || (noAnswer && tries >= 8) {
			if noAnswer {
				err = ErrUnavailable.because(err)
			}
			return nil, nil, tries + 1, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, nil, tries + 1, err
		}
	}
}

// A statement in a separate transaction.
func (c *Client[T]) alone(ctx context.Context, o options, closed *Error, query Query, dest ...any) error {
	session, err := c.connect(ctx, o.connecting, o, closed)
	if err != nil {
		return err
	}
	defer session.Release()
	return session.QueryRow(ctx, query, dest...)
}

// seconds is a parameter of the contract's, in whole milliseconds; nil: the scope's.
func seconds(d time.Duration) any {
	if d <= 0 {
		return nil
	}
	return d.Truncate(time.Millisecond).Seconds()
}

// adopt looks whether a claim of ours whose reply was lost has been granted.
func (c *Client[T]) adopt(ctx context.Context, o options, scope, key, owner string) *Lease {
	var found row
	var left *float64
	var asked = time.Now()
	var who *string
	var attempts *int32
	err := c.of(o.tenant).QueryRow(ctx, Query{SQL: sqlPeek, Args: []any{scope, key, o.tenant}}, append(found.outcome(), &left, &who, &attempts)...)
	if err != nil || value(who) != owner || found.verdict != "processing_active" {
		return nil
	}
	found.verdict = verdictOfLost(value(attempts), o.noTakeover)
	return newLease(ctx, c.of(o.tenant), o, scope, key, &found, asked, value(left))
}

func newLease(ctx context.Context, door Querier, o options, scope, key string, found *row, asked time.Time, leftSeconds float64) *Lease {
	lease := &Lease{Verdict: found.verdict, Fence: int(value(found.fence)), Traceparent: value(found.tra), door: door, options: o,
		scope: scope, key: key, stop: make(chan struct{})}
	lease.context, lease.cancel = context.WithCancelCause(within(ctx, intent{scope, key, o.tenant}))
	lease.stopped.Add(1)
	go lease.beat(asked, time.Duration(leftSeconds*float64(time.Second)))
	return lease
}

// Close stops the heartbeat without a report: nothing after one, and nothing twice. The lease runs
// out by itself; until then others get ErrActive, and afterwards the scope's policy decides. For a
// way out on which nothing can be said: defer lease.Close().
func (l *Lease) Close() { l.end() }

// Context is cancelled when the lease is lost (context.Cause gives ErrLeaseLost), when it is
// reported, released or closed, and with the context of the claim. Events that are emitted with it
// are the intent's.
func (l *Lease) Context() context.Context { return l.context }

// Renews after each third of the lease. When no renewal has been heard of for a whole lease, another
// attempt may hold the intent, so the work is told to stop; what it reports is decided by the fence.
func (l *Lease) beat(since time.Time, lease time.Duration) {
	defer l.stopped.Done()
	for {
		timer := time.NewTimer(max(lease/3, 10*time.Millisecond))
		select {
		case <-l.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		asked := time.Now()
		until, cancel := context.WithDeadline(context.Background(), since.Add(lease))
		held, err := l.renew(until)
		cancel()
		switch {
		case err == nil && !held:
			l.cancel(ErrLeaseLost)
			return
		case err == nil:
			since = asked
		case !time.Now().Before(since.Add(lease)):
			l.cancel(ErrLeaseLost.because(err))
			return
		}
	}
}

func (l *Lease) renew(ctx context.Context) (bool, error) {
	var held bool
	err := l.door.QueryRow(ctx, Query{SQL: sqlRenew,
		Args: []any{l.scope, l.key, int32(l.Fence), seconds(l.options.lease), l.options.tenant}}, &held)
	return held, named(err)
}

// Renew renews it now; the heartbeat renews it regularly. false: the lease is lost.
func (l *Lease) Renew(ctx context.Context) (held bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.options.within)
	defer cancel()
	for tries := 0; ; tries++ {
		if held, err = l.renew(ctx); !isClosed(err) || sleep(ctx, backoff(tries)) != nil {
			return held, err
		}
	}
}

func (l *Lease) end() {
	l.once.Do(func() {
		close(l.stop)
		l.stopped.Wait()
		l.cancel(context.Canceled)
	})
}

// A report is the same however often it is sent, so it is sent again after a lost connection, and while
// the tenant's slot is closed. The caller's cancellation does not stop it: the work is done.
func (l *Lease) report(ctx context.Context, query Query) (stored bool, err error) {
	l.end()
	return insist(context.WithoutCancel(ctx), l.options.within, l.door, query)
}

// A try has at least this long, however near the deadline it begins: if the deadline cut it off, it
// would be unknown what an answer that is on its way says.
const tryAtLeast = time.Second

// Also while the tenant's slot is closed: while it moves, it is open on no node. ctx: never cancelled.
func insist(ctx context.Context, within time.Duration, door Querier, query Query) (stored bool, err error) {
	pausing, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	end, _ := pausing.Deadline()
	isUnknown := false // a try has ended without an answer
	var refused error
	for tries := 0; ; tries++ {
		trying, cancel := context.WithTimeout(ctx, max(tryAtLeast, time.Until(end)))
		err = door.QueryRow(trying, query, &stored)
		isLate := trying.Err() != nil
		cancel()
		if own, is := err.(unrouted); is && !errors.Is(own, ErrUnavailable) {
			if refused == nil || !isLate {
				return false, own.error
			}
			err = refused // the time was up while the nodes were asked
		}
		if err = named(err); err == nil || (SQLStateOf(err) != "" && !isConflict(err) && !isDown(err) && !isClosed(err)) {
			return stored, err
		}
		if isClosed(err) {
			refused = err
		}
		isUnknown = isUnknown || !isClosed(err)
		if sleep(pausing, backoff(tries)) == nil {
			continue
		}
		if isUnknown {
			return false, ErrOutcomeUnknown.because(err)
		}
		return false, err
	}
}

func isClosed(err error) bool { return SQLStateOf(err) == ErrSlotClosed.SQLState }

// The server stops or starts: the error is not about the statement.
func isDown(err error) bool {
	state := SQLStateOf(err)
	return len(state) == 5 && (state[:2] == "08" || state[:3] == "57P")
}

// Complete stores the answer of work that succeeded. true: stored now; false: this very answer was
// stored by this attempt before. ErrCompletionRefused: the lease is lost; discard the result.
func (l *Lease) Complete(ctx context.Context, answer Answer) (bool, error) {
	query, err := l.completeQuery(answer)
	if err != nil {
		return false, err
	}
	return l.report(ctx, query)
}

func (l *Lease) completeQuery(answer Answer) (Query, error) {
	if answer.kind == asInvalid {
		return Query{}, answer.invalid()
	}
	headers, err := encodeHeaders(answer.Header)
	text, bytes := answer.body()
	return Query{SQL: sqlComplete,
		Args: []any{l.scope, l.key, int32(l.Fence), statusOrNull(answer.Status), text, nil, bytes, headers, orNull(answer.ResultType), orNull(answer.ResultID), l.options.tenant}}, err
}

// CompleteIn is Complete in a transaction of the caller's: the answer exists if and only if what
// else that transaction did does.
func CompleteIn[T any](ctx context.Context, client *Client[T], tx T, lease *Lease, answer Answer) (stored bool, err error) {
	query, err := lease.completeQuery(answer)
	if err != nil {
		return false, err
	}
	err = named(client.in(tx).QueryRow(ctx, query, &stored))
	return stored, err
}

// Fail stores a failure for good: every later attempt gets it.
func (l *Lease) Fail(ctx context.Context, failure *FinalError) (bool, error) {
	return l.fail(ctx, false, failure.Code, failure.Message, failure.Answer)
}

// FailRetryable says that the work certainly had no effect: the next attempt may run.
func (l *Lease) FailRetryable(ctx context.Context, code, message string) (bool, error) {
	return l.fail(ctx, true, code, message, Answer{})
}

// Doubt says that it is unknown whether the work had an effect: no attempt runs until the scope's
// verify function, or an operator, has decided.
func (l *Lease) Doubt(ctx context.Context, code, message string) (bool, error) {
	return l.fail(ctx, nil, code, message, Answer{})
}

func (l *Lease) fail(ctx context.Context, retryable any, code, message string, answer Answer) (bool, error) {
	query, err := l.failQuery(retryable, code, message, answer)
	if err != nil {
		return false, err
	}
	return l.report(ctx, query)
}

func (l *Lease) failQuery(retryable any, code, message string, answer Answer) (Query, error) {
	headers, err := encodeHeaders(answer.Header)
	text, bytes := answer.body()
	return Query{SQL: sqlFail,
		Args: []any{l.scope, l.key, int32(l.Fence), retryable, orNull(code), orNull(message), statusOrNull(answer.Status), text, nil, bytes, headers, l.options.tenant}}, err
}

// Release gives back a claim whose work certainly never started. false: the lease is lost.
func (l *Lease) Release(ctx context.Context) (bool, error) {
	return l.report(ctx, Query{SQL: sqlRelease,
		Args: []any{l.scope, l.key, int32(l.Fence), l.options.tenant}})
}
