// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Request;
import io.pgonce.Tx;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/**
 * For a {@code @KafkaListener}: applies each record once, for as long as the inbox remembers it. The effect and the
 * memory of the message commit together; what throws is rolled back, and delivered again by Spring Kafka's error
 * handler, whose default skips a record after ten deliveries. Offsets stay Kafka's.
 *
 * <pre>{@code
 * @KafkaListener(topics = "orders")
 * void onOrder(ConsumerRecord<String, byte[]> record) {
 *     kafkaOnce.apply("stock", record, tx -> jdbc.update("UPDATE stock SET n = n - 1 WHERE item = ?", record.key()));
 * }
 * }</pre>
 */
public final class KafkaOnce {
    /** The header in which pgonce's relay sends an event's id. */
    public static final String ID_HEADER = "Pgonce-Event-Id";

    private final OnceTransaction transaction;
    private final TransactionTemplate template;

    KafkaOnce(OnceTransaction transaction, PlatformTransactionManager manager) {
        this.transaction = transaction;
        this.template = new TransactionTemplate(manager);
    }

    /**
     * Applies a record whose id is in its header {@link #ID_HEADER}.
     *
     * @param consumer who applies it
     * @param record as bytes or text
     * @param effect in the consumer's transaction
     * @return false: it was applied before
     */
    public boolean apply(String consumer, ConsumerRecord<?, ?> record, Consumer<Tx> effect) {
        Header id = record.headers().lastHeader(ID_HEADER);
        if (id == null) {
            throw new IllegalArgumentException("the record has no header " + ID_HEADER + ": name the message by its own business id");
        }
        return apply(consumer, new String(id.value(), StandardCharsets.UTF_8), record, effect);
    }

    /**
     * Applies a record.
     *
     * @param consumer who applies it
     * @param messageId its natural business id, never an offset
     * @param record as bytes or text
     * @param effect in the consumer's transaction
     * @return false: it was applied before
     */
    public boolean apply(String consumer, String messageId, ConsumerRecord<?, ?> record, Consumer<Tx> effect) {
        Request payload = payload(record.value());
        return Boolean.TRUE.equals(template.execute(status -> transaction.current().apply(consumer, messageId, payload, effect::accept)));
    }

    /** Any other value has no defined bytes, and its toString may differ between deliveries. */
    private static Request payload(Object value) {
        if (value == null) {
            return Request.bytes(new byte[0]);
        } else if (value instanceof byte[] bytes) {
            return Request.bytes(bytes);
        } else if (value instanceof CharSequence text) {
            return Request.text(text.toString());
        }
        throw new IllegalArgumentException("the record's value is a " + value.getClass().getName() + ", and two deliveries of it are compared by their bytes: "
            + "let the listener take bytes or text, and read them in the effect");
    }
}
