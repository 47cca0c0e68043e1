// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** What watches runs: a span for each, with its verdict. Never a key. */
public interface Observer {
    /** An observer that does nothing. */
    Observer NONE = (operation, scope) -> Span.NONE;

    /**
     * An attempt begins.
     *
     * @param operation {@code run}, {@code claim} or {@code receive}
     * @param scope of the intent
     * @return to be closed
     */
    Span start(String operation, String scope);

    /** One that is under way. */
    interface Span extends AutoCloseable {
        /** Nothing. */
        Span NONE = new Span() {
            @Override
            public String traceparent() {
                return null;
            }

            @Override
            public void verdict(String verdict) {
                // there is no listener
            }

            @Override
            public void close() {
                // there is no listener
            }
        };

        /**
         * What is passed on to the contract.
         *
         * @return a W3C traceparent, or null
         */
        String traceparent();

        /**
         * How it ended.
         *
         * @param verdict {@code proceed}, {@code replay}, an exception's code, or {@code error}
         */
        void verdict(String verdict);

        @Override
        void close();
    }

    /**
     * OpenTelemetry where its API is on the class path, else nothing.
     *
     * @return an observer
     */
    static Observer found() {
        try {
            Class.forName("io.opentelemetry.api.GlobalOpenTelemetry", false, Observer.class.getClassLoader());
            return new OpenTelemetryObserver();
        } catch (ClassNotFoundException | LinkageError absent) {
            return NONE;
        }
    }
}
