// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.time.Instant;
import java.util.Objects;

/**
 * An event for the outbox.
 *
 * @param topic where it goes
 * @param payload a JSON text; null: it is given to {@link Tx#emitBytes}
 * @param aggregateType what it is about, or null
 * @param aggregateId which one; events of one aggregate are published in order; or null
 * @param type the topic where it is null. An intent emits one event of a type
 * @param headers a JSON object of texts, or null
 * @param cause the intent that it is of; null: that in whose attempt it is emitted
 * @param notBefore it is published then and not sooner; null: at once
 */
public record Event(String topic, String payload, String aggregateType, String aggregateId, String type, String headers, Cause cause,
    Instant notBefore) {
    private static final Cause NONE = new Cause(null, null, null);

    /**
     * An intent.
     *
     * @param tenant whose it is; null: as where it is emitted
     * @param scope null: of no intent
     * @param key null: of no intent
     */
    public record Cause(String tenant, String scope, String key) {
    }

    /**
     * Checks that there is a topic.
     *
     * @param topic where it goes
     * @param payload a JSON text; null: it is given to {@link Tx#emitBytes}
     * @param aggregateType what it is about, or null
     * @param aggregateId which one, or null
     * @param type the topic where it is null
     * @param headers a JSON object of texts, or null
     * @param cause the intent that it is of; null: that in whose attempt it is emitted
     * @param notBefore it is published then and not sooner; null: at once
     */
    public Event {
        Objects.requireNonNull(topic, "topic");
    }

    /**
     * An event that is published at once.
     *
     * @param topic where it goes
     * @param payload a JSON text
     * @param aggregateType what it is about, or null
     * @param aggregateId which one, or null
     * @param type the topic where it is null
     * @param headers a JSON object of texts, or null
     * @param cause the intent that it is of; null: that in whose attempt it is emitted
     */
    public Event(String topic, String payload, String aggregateType, String aggregateId, String type, String headers, Cause cause) {
        this(topic, payload, aggregateType, aggregateId, type, headers, cause, null);
    }

    /**
     * An event of the intent in whose attempt it is emitted.
     *
     * @param topic where it goes
     * @param payload a JSON text
     * @param aggregateType what it is about, or null
     * @param aggregateId which one, or null
     * @param type the topic where it is null
     * @param headers a JSON object of texts, or null
     */
    public Event(String topic, String payload, String aggregateType, String aggregateId, String type, String headers) {
        this(topic, payload, aggregateType, aggregateId, type, headers, null);
    }

    /**
     * An event about nothing in particular.
     *
     * @param topic where it goes
     * @param payload a JSON text
     * @return the event
     */
    public static Event of(String topic, String payload) {
        return new Event(topic, Objects.requireNonNull(payload, "payload"), null, null, null, null, null, null);
    }

    /**
     * An event whose payload is bytes, which {@link Tx#emitBytes} gets beside it.
     *
     * @param topic where it goes
     * @return the event
     */
    public static Event ofBytes(String topic) {
        return new Event(topic, null, null, null, null, null, null, null);
    }

    /**
     * About an aggregate.
     *
     * @param aggregateType its type
     * @param aggregateId its id
     * @return another event
     */
    public Event about(String aggregateType, String aggregateId) {
        return new Event(topic, payload, aggregateType, aggregateId, type, headers, cause, notBefore);
    }

    /**
     * With a type that differs from the topic.
     *
     * @param type its name
     * @return another event
     */
    public Event typed(String type) {
        return new Event(topic, payload, aggregateType, aggregateId, type, headers, cause, notBefore);
    }

    /**
     * Of no intent: one of many of its type in an attempt.
     *
     * @return another event
     */
    public Event apart() {
        return new Event(topic, payload, aggregateType, aggregateId, type, headers, NONE, notBefore);
    }

    /**
     * Of an intent that is not the one in whose attempt it is emitted.
     *
     * @param tenant whose intent it is
     * @param scope what the key names an intent of
     * @param key the intent's
     * @return another event
     */
    public Event causedBy(String tenant, String scope, String key) {
        return new Event(topic, payload, aggregateType, aggregateId, type, headers, new Cause(Objects.requireNonNull(tenant, "tenant"),
            Objects.requireNonNull(scope, "scope"), Objects.requireNonNull(key, "key")), notBefore);
    }

    /**
     * Delayed: it is published then and not sooner, and has its place in the order of its aggregate then.
     *
     * @param notBefore when
     * @return another event
     */
    public Event notBefore(Instant notBefore) {
        return new Event(topic, payload, aggregateType, aggregateId, type, headers, cause, Objects.requireNonNull(notBefore, "notBefore"));
    }
}
