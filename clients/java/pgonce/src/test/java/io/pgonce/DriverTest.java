// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.insert;
import static io.pgonce.testing.Effects.newKey;

import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.testing.Server;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** JDBC's own: the settings of the driver, connections of a pool, exceptions. Lost connections are in spec/cases/faults.json. */
class DriverTest extends WithServer {
    /** What an application may have set on its driver. */
    @ParameterizedTest
    @ValueSource(strings = {"autosave=always", "autosave=conservative", "preferQueryMode=simple",
        "preferQueryMode=extendedForPrepared", "prepareThreshold=0", "prepareThreshold=1", "defaultRowFetchSize=1", "binaryTransfer=false",
        "reWriteBatchedInserts=true"})
    void theDriversSettingsChangeNothing(String settings) throws Exception {
        server.rows("SELECT once.set_scope('kept-8192', response_bytes_max => 8192)");
        try (HikariDataSource pool = Server.pool(server.url() + "&" + settings, 1)) {
            Once once = Once.over(pool).keeping(1 << 20);
            for (int i = 0; i < 3; i++) {
                String key = newKey();
                assertFalse(place(once, key).replayed());
                assertTrue(place(once, key).replayed());
                assertEquals(1, server.count(key));
                String large = newKey();
                for (boolean replayed : new boolean[] {false, true}) {
                    assertEquals(replayed, once.run("kept-8192", large, REQUEST, tx -> {
                        insert(tx.connection(), large);
                        return Answer.of(201).bytes(new byte[8193]);
                    }).replayed());
                }
                assertEquals(1, server.count(large));
                String failed = newKey();
                for (int j = 0; j < 2; j++) {
                    assertThrows(FinalFailureException.class, () -> once.run("orders", failed, REQUEST, tx -> {
                        insert(tx.connection(), failed);
                        try (Statement statement = tx.connection().createStatement()) {
                            statement.execute("SELECT 1/0");
                        } catch (SQLException noticed) {
                            throw Answer.of(422).failure("refused", null);
                        }
                        return Answer.of(201);
                    }));
                }
                assertEquals(0, server.count(failed));
                String swallowed = newKey();
                Effect<SQLException> careless = tx -> {
                    insert(tx.connection(), swallowed);
                    try (Statement statement = tx.connection().createStatement()) {
                        statement.execute("SELECT 1/0");
                    } catch (SQLException ignored) {
                        return Answer.of(201);
                    }
                    return Answer.of(500);
                };
                if (settings.startsWith("autosave=always")) {
                    once.run("orders", swallowed, REQUEST, careless); // the driver itself has rolled back to before that statement
                    assertEquals(1, server.count(swallowed));
                } else {
                    assertEquals("swallowed", assertThrows(OnceException.class, () -> once.run("orders", swallowed, REQUEST, careless)).code());
                    assertEquals(0, server.count(swallowed));
                }
            }
        }
    }

    @Test
    void aFreshConnectionIsGivenBackAsItCame() throws Exception {
        try (HikariDataSource pool = Server.pool(server.url(), 1)) {
            Once once = Once.over(pool).isolation(Connection.TRANSACTION_REPEATABLE_READ);
            place(once, newKey());
            assertThrows(IllegalArgumentException.class, () -> once.run("orders", newKey(), REQUEST, tx -> {
                throw new IllegalArgumentException();
            }));
            try (Connection connection = pool.getConnection()) {
                assertTrue(connection.getAutoCommit());
                assertEquals(Connection.TRANSACTION_READ_COMMITTED, connection.getTransactionIsolation());
            }
        }
    }

    @Test
    void whatAnotherServerMetIsTheApplicationsAndIsNotRetried() {
        AtomicInteger runs = new AtomicInteger();
        SQLException failure = assertThrows(SQLException.class, () -> Once.over(direct).run("orders", newKey(), REQUEST, tx -> {
            runs.incrementAndGet();
            throw new SQLException("the other server is away", "08006");
        }));
        assertEquals("08006", failure.getSQLState());
        assertEquals(1, runs.get());
    }

    @Test
    void aDuplicateWaitsForAsLongAsItIsTold() throws Exception {
        String key = newKey();
        AtomicInteger asked = new AtomicInteger();
        DataSource counting = (DataSource) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {DataSource.class}, (proxy, method, given) -> {
            asked.incrementAndGet();
            return method.invoke(direct, given);
        });
        try (Connection other = direct.getConnection()) {
            other.setAutoCommit(false);
            Tx running = Once.over(direct).in(other);
            Tx.Intent intent = running.start("orders", key, REQUEST);
            // The deadline is for what goes wrong, and no end of the wait.
            Once waiting = Once.over(counting).deadline(Duration.ofMillis(1)).waiting(PATIENCE);
            CompletableFuture<Answer> duplicate = CompletableFuture.supplyAsync(() -> waiting.run("orders", key, REQUEST, tx -> Answer.of(500)));
            while (asked.get() < 3 && !duplicate.isDone()) {
                Thread.onSpinWait();
            }
            intent.finish(Answer.of(201).text("placed"));
            running.commit();
            Answer answer = duplicate.get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
            assertTrue(answer.replayed());
            assertEquals("placed", answer.bodyText());
        }
        try (Connection other = direct.getConnection()) {
            other.setAutoCommit(false);
            String never = newKey();
            Once.over(direct).in(other).start("orders", never, REQUEST);
            long began = System.nanoTime();
            assertThrows(ActiveException.class, () -> place(Once.over(direct).waiting(Duration.ofMillis(100)), never));
            assertTrue(System.nanoTime() - began >= Duration.ofMillis(100).toNanos());
        }
    }

    @Test
    void whatIsMissingIsNamedBeforeAnythingRuns() {
        Once once = Once.over(direct);
        List<org.junit.jupiter.api.function.Executable> calls = List.of(() -> once.tenant(null), () -> once.run(null, "k", REQUEST, tx -> Answer.of(201)),
            () -> once.run("orders", null, REQUEST, tx -> Answer.of(201)), () -> once.run("orders", "k", null, tx -> Answer.of(201)),
            () -> once.run("orders", "k", REQUEST, null), () -> once.claim("orders", null, REQUEST), () -> once.effect("orders", "k", REQUEST, null));
        List<String> named = List.of("tenant", "scope", "key", "request", "effect", "key", "work");
        for (int i = 0; i < named.size(); i++) {
            assertEquals(named.get(i), assertThrows(NullPointerException.class, calls.get(i)).getMessage());
        }
    }

    @Test
    void noExceptionTellsTheKey() throws Exception {
        String key = newKey();
        Once once = Once.over(direct);
        place(once, key);
        OnceException mismatch = assertThrows(MismatchException.class, () -> once.run("orders", key, Request.json("1"), tx -> Answer.of(201)));
        StringWriter text = new StringWriter();
        mismatch.printStackTrace(new PrintWriter(text));
        assertFalse(text.toString().contains(key), text.toString());
        assertInstanceOf(SQLException.class, mismatch.getCause());
    }
}
