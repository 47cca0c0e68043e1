// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.micrometer.observation.Observation;
import io.micrometer.observation.ObservationRegistry;
import io.pgonce.Observer;

/** Micrometer's observations, which are its metrics and its spans. Inside of each, an OpenTelemetry span where that is there. */
final class ObservationObserver implements Observer {
    // spec: observation
    static final String SPAN_PREFIX = "pgonce.";
    static final String SCOPE_ATTRIBUTE = "pgonce.scope";
    static final String VERDICT_ATTRIBUTE = "pgonce.verdict";
    // end of spec
    private final ObservationRegistry registry;

    ObservationObserver(ObservationRegistry registry) {
        this.registry = registry;
    }

    @Override
    public Span start(String operation, String scope) {
        Observation observation = Observation.start(SPAN_PREFIX + operation, registry).lowCardinalityKeyValue(SCOPE_ATTRIBUTE, scope)
            .lowCardinalityKeyValue(VERDICT_ATTRIBUTE, "unknown");
        Observation.Scope current = observation.openScope();
        return new Span() {
            @Override
            public String traceparent() {
                return null;
            }

            @Override
            public void verdict(String verdict) {
                observation.lowCardinalityKeyValue(VERDICT_ATTRIBUTE, verdict);
            }

            @Override
            public void close() {
                current.close();
                observation.stop();
            }
        };
    }
}
