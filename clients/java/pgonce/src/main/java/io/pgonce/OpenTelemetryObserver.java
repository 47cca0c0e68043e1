// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.metrics.LongCounter;
import io.opentelemetry.api.metrics.Meter;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.context.Scope;

/** Spans and metrics of the OpenTelemetry that the application has set up. Loaded only where its API is there. */
final class OpenTelemetryObserver implements Observer {
    private static final AttributeKey<String> KIND = AttributeKey.stringKey("pgonce.kind");
    private static final AttributeKey<String> SCOPE = AttributeKey.stringKey("pgonce.scope");
    private static final AttributeKey<String> VERDICT = AttributeKey.stringKey("pgonce.verdict");
    private static final double NS_PER_S = 1e9;

    private static final class Instruments {
        private final Meter meter = GlobalOpenTelemetry.getMeter("io.pgonce");
        private final LongCounter calls = meter.counterBuilder("pgonce.calls").setDescription("Calls, by kind, scope and verdict").build();
        private final DoubleHistogram duration = meter.histogramBuilder("pgonce.duration").setUnit("s").setDescription("How long a call took").build();
    }

    /** Made with the first call: by then the application has set up what it has. */
    private volatile Instruments instruments;

    @Override
    public Span start(String operation, String scope) {
        io.opentelemetry.api.trace.Span span = GlobalOpenTelemetry.getTracer("io.pgonce").spanBuilder("pgonce." + operation)
            .setAttribute(KIND, operation).setAttribute(SCOPE, scope).startSpan();
        Scope current = span.makeCurrent();
        long begunNs = System.nanoTime();
        return new Span() {
            private String said = "error";

            @Override
            public String traceparent() {
                SpanContext context = span.getSpanContext();
                return context.isValid()
                    ? "00-" + context.getTraceId() + "-" + context.getSpanId() + "-" + context.getTraceFlags().asHex()
                    : null;
            }

            @Override
            public void verdict(String verdict) {
                said = verdict;
                if (!"proceed".equals(verdict) && !"replay".equals(verdict)) {
                    span.setStatus(StatusCode.ERROR);
                }
            }

            @Override
            public void close() {
                current.close();
                span.setAttribute(VERDICT, said).end();
                Attributes labels = Attributes.of(KIND, operation, SCOPE, scope, VERDICT, said);
                if (instruments == null) {
                    instruments = new Instruments();
                }
                instruments.calls.add(1, labels);
                instruments.duration.record((System.nanoTime() - begunNs) / NS_PER_S, labels);
            }
        };
    }
}
