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

/** The current span's, as W3C Trace Context writes it; undefined where there is none. */
function traceparent() {
  const context = api?.trace.getActiveSpan?.()?.spanContext();
  return context && api.isSpanContextValid(context)
    ? `00-${context.traceId}-${context.spanId}-${context.traceFlags.toString(16).padStart(2, '0')}` : undefined;
}

let made = {};

/** Made anew where the application sets up its metrics after the first call. */
function instruments() {
  const provider = api.metrics.getMeterProvider();
  if (made.provider !== provider) {
    const meter = provider.getMeter('pgonce');
    made = {
      provider,
      calls: meter.createCounter('pgonce.calls', {description: 'Calls, by kind, scope and verdict'}),
      duration: meter.createHistogram('pgonce.duration', {unit: 's', description: 'How long a call took'}),
    };
  }
  return made;
}

/** Runs work(verdict) within a span of this kind, and counts it; it calls verdict(text) once it knows. */
function traced(kind, scope, work) {
  if (!api) return work(() => {});
  const labels = {'pgonce.kind': kind, 'pgonce.scope': scope};
  const begun = performance.now();
  return api.trace.getTracer('pgonce').startActiveSpan(`pgonce.${kind}`, {attributes: labels}, async (span) => {
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
      span.setAttribute('pgonce.verdict', verdict);
      span.end();
      const {calls, duration} = instruments();
      calls.add(1, {...labels, 'pgonce.verdict': verdict});
      duration.record((performance.now() - begun) / 1000, {...labels, 'pgonce.verdict': verdict});
    }
  });
}

module.exports = {traceparent, traced};
