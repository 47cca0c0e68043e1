// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.insert;
import static io.pgonce.testing.Effects.newKey;

import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.testing.Server;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;

/** An interrupt is the application's business until the effect is done, and never comes between the effect and its COMMIT. */
class InterruptsTest extends WithServer {
    @Test
    void anInterruptNeverLandsBetweenTheEffectAndItsCommit() throws Exception {
        server.rows("CREATE TABLE IF NOT EXISTS slow (key text)");
        server.rows("CREATE OR REPLACE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS "
            + "'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END'");
        server.rows("CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_for_test()");
        String key = newKey();
        boolean[] flag = new boolean[1];
        Answer[] answer = new Answer[1];
        try (HikariDataSource pool = Server.pool(server.url(), 2); Connection holder = direct.getConnection(); Statement hold = holder.createStatement()) {
            hold.execute("SELECT pg_advisory_lock(4711)");
            Thread caller = new Thread(() -> {
                try {
                    answer[0] = Once.over(pool).run("orders", key, REQUEST, tx -> {
                        insert(tx.connection(), key);
                        try (Statement statement = tx.connection().createStatement()) {
                            statement.execute("INSERT INTO slow VALUES ('x')");
                        }
                        Thread.currentThread().interrupt(); // at the effect's very end
                        return Answer.of(201);
                    });
                } catch (SQLException failure) {
                    throw new IllegalStateException(failure);
                }
                flag[0] = Thread.currentThread().isInterrupted();
            });
            caller.start();
            await("SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
            caller.interrupt(); // while COMMIT is under way
            hold.execute("SELECT pg_advisory_unlock(4711)");
            caller.join(PATIENCE.toMillis());
        }
        assertEquals(201, answer[0].status());
        assertTrue(flag[0]);
        assertEquals(1, server.count(key));
    }

    /** A DataSource as on a virtual thread, or on an interruptible channel: an interrupt closes its socket at the next use. */
    private static DataSource interruptible() {
        return (DataSource) Proxy.newProxyInstance(InterruptsTest.class.getClassLoader(), new Class<?>[] {DataSource.class}, (source, method, arguments) -> {
            Connection connection = direct.getConnection();
            return Proxy.newProxyInstance(InterruptsTest.class.getClassLoader(), new Class<?>[] {Connection.class}, (proxy, called, given) -> {
                if ("prepareStatement".equals(called.getName()) && Thread.currentThread().isInterrupted()) {
                    connection.close();
                    throw new SQLException("closed by interrupt", "08006");
                }
                return called.invoke(connection, given);
            });
        });
    }

    @Test
    void whereAnInterruptClosesSocketsTheEffectIsNotCutOffFromItsOutcome() throws Exception {
        String key = newKey();
        AtomicInteger runs = new AtomicInteger();
        Answer answer = Once.over(interruptible()).run("orders", key, REQUEST, tx -> {
            runs.incrementAndGet();
            insert(tx.connection(), key);
            Thread.currentThread().interrupt();
            return Answer.of(201);
        });
        assertTrue(Thread.interrupted());
        assertFalse(answer.replayed());
        assertEquals(1, runs.get());
        assertEquals(1, server.count(key));
    }

    @Test
    void anInterruptDoesNotKeepALostCommitFromBeingAskedFor() throws Exception {
        try (Server.Forwarder forwarder = server.forwarder(); HikariDataSource pool = Server.pool(server.url("127.0.0.1", forwarder.port()), 2)) {
            String key = newKey();
            forwarder.lose("lose_answer", "COMMIT");
            Answer answer = Once.over(pool).run("orders", key, REQUEST, tx -> {
                insert(tx.connection(), key);
                Thread.currentThread().interrupt();
                return Answer.of(201);
            });
            assertTrue(Thread.interrupted());
            assertTrue(answer.replayed());
            assertEquals(1, server.count(key));
        }
    }

    @Test
    void anInterruptInTheEffectRollsBackAndIsTheApplications() throws Exception {
        String key = newKey();
        assertThrows(InterruptedException.class, () -> Once.over(direct).<Exception>run("orders", key, REQUEST, tx -> {
            insert(tx.connection(), key);
            Thread.currentThread().interrupt();
            Thread.sleep(1000);
            return Answer.of(201);
        }));
        assertEquals(0, server.count(key));
        assertFalse(place(Once.over(direct), key).replayed());
    }

    @Test
    void anInterruptWhileWaitingForAnotherAttemptEndsTheWait() throws Exception {
        String key = newKey();
        try (Connection other = direct.getConnection()) {
            other.setAutoCommit(false);
            Once.over(direct).in(other).start("orders", key, REQUEST);
            Thread.currentThread().interrupt();
            OnceException failure = assertThrows(OnceException.class, () -> place(Once.over(direct).waiting(PATIENCE), key));
            assertTrue(Thread.interrupted());
            assertEquals("interrupted", failure.code());
        }
        assertEquals(0, server.count(key));
    }
}
