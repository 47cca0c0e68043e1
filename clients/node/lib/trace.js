// SPDX-License-Identifier: PostgreSQL
// OpenTelemetry, where its API is installed; else nothing: a span, a count and a duration for each call, with kind, scope and verdict. Never a key.
'use strict';

const {OnceError} = require('./errors');
const {VERDICTS} = require('./verdicts');

let api = null;
try {
  api = require('@opentelemetry/api');
} catch {
  // not installed
}

/** The traceparent of the current span (W3C Trace Context); undefined without a span. */
function traceparent() {
  const context = api?.trace.getActiveSpan?.()?.spanContext();
  return context && api.isSpanContextValid(context)
    ? `00-${context.traceId}-${context.spanId}-${context.traceFlags.toString(16).padStart(2, '0')}` : undefined;
}

// spec: telemetry
const SPAN_PREFIX = 'pgonce.';
const KIND_ATTRIBUTE = 'pgonce.kind';
const SCOPE_ATTRIBUTE = 'pgonce.scope';
const VERDICT_ATTRIBUTE = 'pgonce.verdict';
const CALLS_INSTRUMENT = 'pgonce.calls';
const CALLS_ABOUT = 'Calls, by kind, scope and verdict';
const DURATION_INSTRUMENT = 'pgonce.duration';
const DURATION_ABOUT = 'How long a call took, its effect included';
const DURATION_UNIT = 's';
// end of spec

let made = {};

/** Made anew where the application sets up its metrics after the first call. */
function instruments() {
  const provider = api.metrics.getMeterProvider();
  if (made.provider !== provider) {
    const meter = provider.getMeter('pgonce');
    made = {
      provider,
      calls: meter.createCounter(CALLS_INSTRUMENT, {description: CALLS_ABOUT}),
      duration: meter.createHistogram(DURATION_INSTRUMENT, {unit: DURATION_UNIT, description: DURATION_ABOUT}),
    };
  }
  return made;
}

/** Runs work(verdict) within a span of this kind, and counts it; it calls verdict(text) once it knows. */
function traced(kind, scope, work) {
  if (!api) return work(() => {});
  const labels = {[KIND_ATTRIBUTE]: kind, [SCOPE_ATTRIBUTE]: scope};
  const begun = performance.now();
  return api.trace.getTracer('pgonce').startActiveSpan(SPAN_PREFIX + kind, {attributes: labels}, async (span) => {
    let verdict = 'error';
    try {
      return await work((said) => {
        verdict = VERDICTS[said]?.told ?? said;
      });
    } catch (error) {
      if (error instanceof OnceError) verdict = error.code;
      span.setStatus({code: api.SpanStatusCode.ERROR});
      throw error;
    } finally {
      span.setAttribute(VERDICT_ATTRIBUTE, verdict);
      span.end();
      const {calls, duration} = instruments();
      calls.add(1, {...labels, [VERDICT_ATTRIBUTE]: verdict});
      duration.record((performance.now() - begun) / 1000, {...labels, [VERDICT_ATTRIBUTE]: verdict});
    }
  });
}

module.exports = {traceparent, traced};
