// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.context.Scope;

/** Spans of the OpenTelemetry that the application has set up. Loaded only where its API is there. */
final class OpenTelemetryObserver implements Observer {
    @Override
    public Span start(String operation, String scope) {
        io.opentelemetry.api.trace.Span span = GlobalOpenTelemetry.getTracer("io.pgonce").spanBuilder("pgonce." + operation)
            .setAttribute("pgonce.scope", scope).startSpan();
        Scope current = span.makeCurrent();
        return new Span() {
            @Override
            public String traceparent() {
                SpanContext context = span.getSpanContext();
                return context.isValid()
                    ? "00-" + context.getTraceId() + "-" + context.getSpanId() + "-" + context.getTraceFlags().asHex()
                    : null;
            }

            @Override
            public void verdict(String verdict) {
                span.setAttribute("pgonce.verdict", verdict);
                if (!"proceed".equals(verdict) && !"replay".equals(verdict)) {
                    span.setStatus(StatusCode.ERROR);
                }
            }

            @Override
            public void close() {
                current.close();
                span.end();
            }
        };
    }
}
