// SPDX-License-Identifier: PostgreSQL

// Package onceotel tells OpenTelemetry of every call: a span with its verdict, and counters. It is a
// separate module, so that other programs need not depend on OpenTelemetry.
//
//	db := oncepgx.New(pool, once.Observe(onceotel.New()))
package onceotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"pgonce.internal/once"
)

const name = "pgonce.internal/once"

const (
	// spec: telemetry
	spanPrefix                = "pgonce."
	kindAttribute             = "pgonce.kind"
	scopeAttribute            = "pgonce.scope"
	verdictAttribute          = "pgonce.verdict"
	attemptsAttribute         = "pgonce.attempts"
	firstTraceparentAttribute = "pgonce.first_traceparent"
	callsInstrument           = "pgonce.calls"
	callsAbout                = "Calls, by kind, scope and verdict"
	durationInstrument        = "pgonce.duration"
	durationAbout             = "How long a call took, its effect included"
	durationUnit              = "s"
	attemptsInstrument        = "pgonce.attempts"
	attemptsAbout             = "Transactions that the calls took"
	// end of spec
)

type observer struct {
	tracer   trace.Tracer
	calls    metric.Int64Counter
	attempts metric.Int64Counter
	duration metric.Float64Histogram
}

// New makes an Observer of the global providers, as they are when it is called.
func New() once.Observer {
	meter := otel.GetMeterProvider().Meter(name, metric.WithInstrumentationVersion(once.Version))
	// An instrument that cannot be made is one that does nothing.
	calls, _ := meter.Int64Counter(callsInstrument, metric.WithDescription(callsAbout))
	attempts, _ := meter.Int64Counter(attemptsInstrument, metric.WithDescription(attemptsAbout))
	duration, _ := meter.Float64Histogram(durationInstrument, metric.WithUnit(durationUnit), metric.WithDescription(durationAbout))
	return &observer{tracer: otel.GetTracerProvider().Tracer(name, trace.WithInstrumentationVersion(once.Version)), calls: calls, attempts: attempts, duration: duration}
}

func (o *observer) Begin(ctx context.Context, kind, scope string) (context.Context, func(once.Observed)) {
	began := time.Now()
	common := []attribute.KeyValue{attribute.String(kindAttribute, kind), attribute.String(scopeAttribute, scope)}
	ctx, span := o.tracer.Start(ctx, spanPrefix+kind, trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(common...))
	return ctx, func(seen once.Observed) {
		labels := metric.WithAttributes(append(common, attribute.String(verdictAttribute, seen.Verdict))...)
		o.calls.Add(ctx, 1, labels)
		o.attempts.Add(ctx, int64(seen.Attempts), labels)
		o.duration.Record(ctx, time.Since(began).Seconds(), labels)
		span.SetAttributes(attribute.String(verdictAttribute, seen.Verdict), attribute.Int(attemptsAttribute, seen.Attempts))
		if seen.Traceparent != "" {
			span.SetAttributes(attribute.String(firstTraceparentAttribute, seen.Traceparent))
		}
		if seen.Err != nil {
			span.SetStatus(codes.Error, seen.Verdict) // never the error's text: it may be the application's
		}
		span.End()
	}
}

func (o *observer) Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}
