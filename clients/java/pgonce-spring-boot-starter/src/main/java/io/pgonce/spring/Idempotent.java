// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Requests to this controller method, or to all of the class, are safe to retry: the first attempt of an
 * Idempotency-Key runs, in one transaction with its stored answer; every later one gets that answer. What the
 * method does in this database is rolled back with an answer of 4xx or 5xx. Its answer is held until COMMIT, so it
 * cannot be asynchronous, but for a stream of events.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.METHOD, ElementType.TYPE})
public @interface Idempotent {
    /**
     * What the key names an intent of.
     *
     * @return the scope; a placeholder of Spring's may stand in it
     */
    String value();

    /**
     * Are requests without a key refused? Else they pass unprotected.
     *
     * @return true by default
     */
    boolean required() default true;

    /**
     * For how long a duplicate waits for the attempt that runs; then 409.
     *
     * @return milliseconds
     */
    long waitMs() default 0;

    /**
     * The largest request body; a larger one is a 413.
     *
     * @return bytes
     */
    int bodyMax() default 16 << 20;

    /**
     * The largest answer that is kept; a larger one, and one that the scope does not allow, is sent, and remembered as done.
     *
     * @return bytes
     */
    int responseMax() default 1 << 20;

    /**
     * Are keys without quotes refused?
     *
     * @return false by default
     */
    boolean strictKeys() default false;

    /**
     * The most characters of a key.
     *
     * @return at most 255
     */
    int keyLength() default HttpOnce.KEY_LENGTH;

    /**
     * Is another spelling of the same JSON the same request?
     *
     * @return false by default
     */
    boolean canonicalJson() default false;

    /**
     * Which methods of HTTP are protected.
     *
     * @return by default those that the handler is mapped to, but GET, HEAD, OPTIONS and TRACE
     */
    String[] methods() default {};

    /** Where the effect of a handler is. */
    enum Mode {
        /** As the property {@code pgonce.mode} says: {@code transaction} where it says nothing. */
        DEFAULT,
        /** In the database, in one transaction with its answer. */
        TRANSACTION,
        /**
         * Elsewhere, or in transactions of the handler's own: the key is claimed, the handler runs without a connection of pgonce's, and its
         * answer is reported. An answer that does not say whether it happened, as a 500, leaves a doubt.
         */
        LEASE
    }

    /**
     * Where the effect is.
     *
     * @return what {@code pgonce.mode} says by default
     */
    Mode mode() default Mode.DEFAULT;

    /**
     * How long an attempt may take, from the wait for a connection on. Then it is rolled back, and answered 503.
     *
     * @return milliseconds, or 0: as long as it takes; by default what {@code pgonce.handler-ms} says, 30,000
     */
    long handlerMs() default -1;

    /**
     * The headers that are stored and replayed, instead of the gateway's list.
     *
     * @return names, or prefixes that end in *
     */
    String[] headers() default {};
}
