// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.util.Objects;

/**
 * An event for the outbox.
 *
 * @param topic where it goes
 * @param payload a JSON text
 * @param aggregateType what it is about, or null
 * @param aggregateId which one; events of one aggregate are published in order; or null
 * @param type the topic where it is null. An intent emits one event of a type
 * @param headers a JSON object of texts, or null
 */
public record Event(String topic, String payload, String aggregateType, String aggregateId, String type, String headers) {
    /**
     * Checks that there are a topic and a payload.
     *
     * @param topic where it goes
     * @param payload a JSON text
     * @param aggregateType what it is about, or null
     * @param aggregateId which one, or null
     * @param type the topic where it is null
     * @param headers a JSON object of texts, or null
     */
    public Event {
        Objects.requireNonNull(topic);
        Objects.requireNonNull(payload);
    }

    /**
     * An event about nothing in particular.
     *
     * @param topic where it goes
     * @param payload a JSON text
     * @return the event
     */
    public static Event of(String topic, String payload) {
        return new Event(topic, payload, null, null, null, null);
    }

    /**
     * About an aggregate.
     *
     * @param aggregateType its type
     * @param aggregateId its id
     * @return another event
     */
    public Event about(String aggregateType, String aggregateId) {
        return new Event(topic, payload, aggregateType, aggregateId, type, headers);
    }

    /**
     * Of a type of its own.
     *
     * @param type its name
     * @return another event
     */
    public Event typed(String type) {
        return new Event(topic, payload, aggregateType, aggregateId, type, headers);
    }
}
