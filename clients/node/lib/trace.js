// SPDX-License-Identifier: PostgreSQL
// OpenTelemetry, where its API is installed; else nothing. A span bears the scope and the verdict, never a key.
'use strict';

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

/** Runs work(verdict) within a span of this name; it calls verdict(text) once it knows. */
function traced(name, scope, work) {
  if (!api) return work(() => {});
  return api.trace.getTracer('pgonce').startActiveSpan(name, {attributes: {'once.scope': scope}}, async (span) => {
    try {
      return await work((verdict) => span.setAttribute('once.verdict', verdict));
    } catch (error) {
      if (error?.code) span.setAttribute('once.verdict', String(error.code));
      span.setStatus({code: api.SpanStatusCode.ERROR});
      throw error;
    } finally {
      span.end();
    }
  });
}

module.exports = {traceparent, traced};
