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
    // spec: telemetry
    static final String SPAN_PREFIX = "pgonce.";
    static final String KIND_ATTRIBUTE = "pgonce.kind";
    static final String SCOPE_ATTRIBUTE = "pgonce.scope";
    static final String VERDICT_ATTRIBUTE = "pgonce.verdict";
    static final String CALLS_INSTRUMENT = "pgonce.calls";
    static final String CALLS_ABOUT = "Calls, by kind, scope and verdict";
    static final String DURATION_INSTRUMENT = "pgonce.duration";
    static final String DURATION_ABOUT = "How long a call took, its effect included";
    static final String DURATION_UNIT = "s";
    // end of spec
    private static final AttributeKey<String> KIND = AttributeKey.stringKey(KIND_ATTRIBUTE);
    private static final AttributeKey<String> SCOPE = AttributeKey.stringKey(SCOPE_ATTRIBUTE);
    private static final AttributeKey<String> VERDICT = AttributeKey.stringKey(VERDICT_ATTRIBUTE);
    private static final double NS_PER_S = 1e9;

    private static final class Instruments {
        private final Meter meter = GlobalOpenTelemetry.getMeter("io.pgonce");
        private final LongCounter calls = meter.counterBuilder(CALLS_INSTRUMENT).setDescription(CALLS_ABOUT).build();
        private final DoubleHistogram duration = meter.histogramBuilder(DURATION_INSTRUMENT).setUnit(DURATION_UNIT).setDescription(DURATION_ABOUT).build();
    }

    /** Made with the first call: by then the application has set up what it has. */
    private volatile Instruments instruments;

    @Override
    public Span start(String operation, String scope) {
        io.opentelemetry.api.trace.Span span = GlobalOpenTelemetry.getTracer("io.pgonce").spanBuilder(SPAN_PREFIX + operation)
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
