// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"time"
)

// Option of a client, or of one call.
type Option func(*options)

type options struct {
	tenant      string
	within      time.Duration
	wait        time.Duration
	isolation   string
	traceparent string
	owner       string
	lease       time.Duration
	retention   time.Duration
	noTakeover  bool
	isTakeover  bool
	observer    Observer
	// Of the middleware: the largest answer that is kept; that the effect is called once at most; and
	// what ends the wait for a connection, for a reason that is an *Error.
	responseMax int
	single      bool
	connecting  context.Context
}

// Tenant says whose key it is; "" where there is only one.
func Tenant(tenant string) Option { return func(o *options) { o.tenant = tenant } }

// Within is how long a call may try again after conflicts and lost connections, and how long finish
// and COMMIT may take: 30 s unless set. It does not end the effect: that is the context's business.
func Within(d time.Duration) Option { return func(o *options) { o.within = d } }

// Wait is how long a call waits for a running attempt, to get its answer, before it returns
// ErrActive; 0, the default: not at all.
func Wait(d time.Duration) Option { return func(o *options) { o.wait = d } }

// Isolation is "read committed", "repeatable read" or "serializable"; the database's unless set.
func Isolation(level string) Option { return func(o *options) { o.isolation = level } }

// Traceparent (W3C) of the attempt, if no Observer supplies it.
func Traceparent(traceparent string) Option { return func(o *options) { o.traceparent = traceparent } }

// Owner says who works under a lease, for people.
func Owner(owner string) Option { return func(o *options) { o.owner = owner } }

// LeaseFor is a claim's lease; the scope's unless set. It is renewed after each third of it.
func LeaseFor(d time.Duration) Option { return func(o *options) { o.lease = d } }

// Retention of a claim's outcome; the scope's unless set.
func Retention(d time.Duration) Option { return func(o *options) { o.retention = d } }

// Takeover says whether a claim takes over from an attempt that fell silent and may have had its
// effect: true where a repetition is harmless; false: ErrInDoubt. The scope's on_stale unless set.
func Takeover(allowed bool) Option {
	return func(o *options) { o.isTakeover, o.noTakeover = allowed, !allowed }
}

func (o options) takeover() any {
	if !o.isTakeover && !o.noTakeover {
		return nil
	}
	return o.isTakeover
}

// Observe has every call told to an Observer: metrics, traces.
func Observe(observer Observer) Option { return func(o *options) { o.observer = observer } }

// Observer is told of every call; package onceotel has one for OpenTelemetry. It is never told a
// key, a tenant or a body.
type Observer interface {
	// Begin is called before the first attempt; the effect gets the context that it returns.
	Begin(ctx context.Context, kind, scope string) (context.Context, func(Observed))
	// Traceparent of the context, to be stored with the intent; "" for none.
	Traceparent(ctx context.Context) string
}

// Observed is how a call ended.
type Observed struct {
	// Verdict is "proceed", "replay", "error", or an Error's Code: "mismatch", "active", ...
	Verdict string
	// Attempts is how many transactions it took.
	Attempts int
	// Traceparent of the attempt that made the effect, if it is not this attempt.
	Traceparent string
	Err         error
}

type noObserver struct{}

func (noObserver) Begin(ctx context.Context, _, _ string) (context.Context, func(Observed)) {
	return ctx, func(Observed) {}
}
func (noObserver) Traceparent(context.Context) string { return "" }

func (o options) with(more []Option) options {
	for _, each := range more {
		each(&o)
	}
	if o.within <= 0 {
		o.within = deadlineDefault
	}
	if o.observer == nil {
		o.observer = noObserver{}
	}
	return o
}

func (o options) trace(ctx context.Context) any {
	if told := o.observer.Traceparent(ctx); told != "" {
		return told
	}
	return orNull(o.traceparent)
}
