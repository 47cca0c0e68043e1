// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.newKey;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.List;
import javax.sql.DataSource;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Events and messages, in a run and in the application's own transaction. */
class EventsTest extends WithServer {
    @BeforeEach
    void clear() {
        server.rows("TRUNCATE once.intent, once.outbox, once.delayed_event");
    }

    @Test
    void autocommitIsRefused() throws Exception {
        try (Connection connection = direct.getConnection()) {
            assertThrows(IllegalStateException.class, () -> Once.over(direct).in(connection));
            connection.setAutoCommit(false);
            Tx tx = Once.over(direct).in(connection);
            connection.setAutoCommit(true);
            assertThrows(IllegalStateException.class, () -> tx.emit(Event.of("t", "{}")));
            assertThrows(IllegalStateException.class, () -> tx.receive("stock", newKey(), REQUEST));
            assertThrows(IllegalStateException.class, () -> tx.start("orders", newKey(), REQUEST));
            assertThrows(IllegalStateException.class, () -> tx.lock("r", Duration.ZERO));
        }
    }

    @Test
    void aSwallowedErrorOfAConsumerIsNoticedAtItsCommit() throws Exception {
        String id = newKey();
        try (Connection connection = direct.getConnection()) {
            connection.setAutoCommit(false);
            Tx tx = Once.over(direct).in(connection);
            assertTrue(tx.receive("stock", id, REQUEST));
            try (Statement statement = connection.createStatement()) {
                assertThrows(SQLException.class, () -> statement.execute("SELECT 1/0"));
            }
            assertEquals("swallowed", assertThrows(OnceException.class, tx::commit).code());
            connection.rollback();
            assertTrue(tx.receive("stock", id, REQUEST));
            tx.commit();
            assertFalse(tx.receive("stock", id, REQUEST));
        }
    }

    /** As the README shows it: nobody says whose event it is. */
    @Test
    void anEventIsOfTheIntentInWhoseAttemptItIsEmitted() throws Exception {
        DataSource source = direct;
        Once once = Once.over(source).tenant("acme");
        Once nobody = Once.over(source);
        once.run("orders", "run", REQUEST, tx -> {
            tx.emit(Event.of("run", "1"));
            tx.emit(Event.of("many", "1").apart());
            tx.emit(Event.of("explicit", "1").causedBy("beta", "carts", "7"));
            tx.emit(Event.of("many", "2").apart());
            within(source, nobody, emitting -> emitting.emit(Event.of("helper", "1")));
            within(source, nobody.tenant("beta"), emitting -> emitting.emit(Event.of("of another tenant", "1")));
            nobody.run("parts", "inner", REQUEST, inner -> {
                inner.emit(Event.of("inner", "1"));
                return Answer.of(201);
            });
            within(source, nobody, emitting -> emitting.emit(Event.of("after the inner one", "1")));
            return Answer.of(201);
        });
        once.effect("orders", "effect", REQUEST, () -> {
            within(source, nobody, tx -> tx.emit(Event.of("effect", "1")));
            return Answer.of(201);
        });
        within(source, once, tx -> {
            assertTrue(tx.receive("stock", "m-1", REQUEST));
            tx.emit(Event.of("received", "1"));
            assertTrue(tx.apply("stock", "m-2", REQUEST, applying -> within(source, nobody, other -> other.emit(Event.of("applied", "1")))));
            assertFalse(tx.apply("stock", "m-2", REQUEST, applying -> applying.emit(Event.of("never", "1"))));
        });
        within(source, once, tx -> tx.emit(Event.of("outside", "1")));
        List<String> told = server.rows("SELECT topic || ': ' || concat_ws(' ', nullif(tenant, ''), scope, key) FROM once.outbox ORDER BY topic").stream()
            .map(row -> (String) row.get(0)).toList();
        assertEquals(List.of("after the inner one: acme orders run", "applied: acme stock m-2", "effect: acme orders effect", "explicit: beta carts 7", "helper: acme orders run",
            "inner: parts inner", "many: acme", "many: acme", "of another tenant: beta", "outside: acme", "received: acme stock m-1", "run: acme orders run"), told);
    }

    @Test
    void aDelayedEventIsHeldUntilThen() throws Exception {
        Once once = Once.over(direct).tenant("acme");
        Event event = Event.of("later", "7").notBefore(java.time.Instant.parse("2090-10-29T01:30:00.123456Z")).about("order", "7").typed("told");
        once.run("orders", "run", REQUEST, tx -> {
            tx.emit(event);
            return Answer.of(201);
        });
        assertThrows(NullPointerException.class, () -> event.notBefore(null));
        assertEquals(List.of(List.of("later told order 7 7 acme orders run", "t", "f")), server.rows("SELECT concat_ws(' ', topic, event_type, aggregate_type, aggregate_id, payload, tenant, scope, key),"
            + " (not_before = '2090-10-29 01:30:00.123456+00')::text::char(1), (EXISTS (SELECT FROM once.outbox))::text::char(1) FROM once.delayed_event"));
    }

    @Test
    void anEventOfBytesIsOfItsIntentAndHasEachByte() throws Exception {
        byte[] all = new byte[256];
        for (int n = 0; n < all.length; n++) {
            all[n] = (byte) n;
        }
        Once once = Once.over(direct).tenant("acme");
        once.run("orders", "run", REQUEST, tx -> {
            Event event = Event.ofBytes("encoded").about("order", "7");
            tx.emitBytes(event, all, "application/avro");
            assertThrows(IllegalArgumentException.class, () -> tx.emit(event));
            assertThrows(NullPointerException.class, () -> tx.emitBytes(event, null, "application/avro"));
            assertThrows(NullPointerException.class, () -> tx.emitBytes(event, all, null));
            assertThrows(IllegalArgumentException.class, () -> tx.emitBytes(Event.of("wrong", "7"), all, "application/avro"));
            assertThrows(IllegalArgumentException.class, () -> tx.emitBytes(event.notBefore(java.time.Instant.now()), all, "application/avro"));
            return Answer.of(201);
        });
        assertEquals(List.of(List.of("encoded encoded application/avro order 7 acme orders run " + java.util.HexFormat.of().formatHex(all))),
            server.rows("SELECT concat_ws(' ', topic, event_type, content_type, aggregate_type, aggregate_id, tenant, scope, key, encode(payload_bytes, 'hex')) FROM once.outbox"));
    }

    private static void within(DataSource source, Once once, Tx.Apply<SQLException> work) throws SQLException {
        try (Connection connection = source.getConnection()) {
            connection.setAutoCommit(false);
            Tx tx = once.in(connection);
            work.apply(tx);
            tx.commit();
        }
    }
}
