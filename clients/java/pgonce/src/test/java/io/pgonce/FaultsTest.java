// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.insert;
import static io.pgonce.testing.Effects.newKey;

import com.fasterxml.jackson.databind.JsonNode;
import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.testing.Cases;
import io.pgonce.testing.Server;
import io.pgonce.testing.Trips;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What goes wrong on the way, with a real server: connections lost at each step, backends killed, interrupts, leases lost. */
class FaultsTest {
    private static final Request REQUEST = Request.json("{\"cart\": 7}");
    private static final Claim.Options UNATTENDED = new Claim.Options(null, null, null, null, false);
    private static final Duration PATIENCE = Duration.ofSeconds(20);
    private static Server server;
    private static DataSource direct;

    @BeforeAll
    static void start() {
        server = new Server();
        direct = Server.plain(server.url());
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    private static Answer place(Once once, String key) throws SQLException {
        return once.run("orders", key, REQUEST, tx -> {
            insert(tx.connection(), key);
            return Answer.of(201).text("placed");
        });
    }

    private static void await(String sql) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!Boolean.TRUE.equals(server.rows(sql).get(0).get(0))) {
            assertTrue(System.nanoTime() < end, sql);
            TimeUnit.MILLISECONDS.sleep(10);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "lose_request,once.start", "lose_answer,once.start", "lose_request,INSERT INTO effect", "lose_answer,INSERT INTO effect",
        "lose_request,once.finish", "lose_answer,once.finish", "lose_connection_after,once.finish",
        "lose_request,COMMIT", "lose_answer,COMMIT", "lose_connection_after,COMMIT"})
    void aConnectionLostAtAnyStepIsOneEffectAndOneAnswer(String how, String step) throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            for (boolean pooled : new boolean[] {false, true}) {
                String url = server.url("127.0.0.1", forwarder.port());
                HikariDataSource pool = pooled ? Server.pool(url, 2) : null;
                String key = newKey();
                int rule = forwarder.lose(how, step).get("rule").asInt();
                Once once = Once.over(pooled ? pool : Server.plain(url));
                Answer answer = place(once, key);
                assertTrue(forwarder.tell("wait " + rule).get("fired").asBoolean());
                assertEquals("placed", answer.bodyText());
                assertEquals(1, server.count(key));
                assertTrue(place(once, key).replayed());
                assertEquals(1, server.count(key));
                if (pooled) {
                    pool.close();
                }
            }
        }
    }

    @Test
    void aLostCommitOfAFinalFailureIsAskedForToo() throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            String key = newKey();
            forwarder.lose("lose_answer", "COMMIT");
            Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port())));
            FinalFailureException failure = assertThrows(FinalFailureException.class, () -> once.run("orders", key, REQUEST, tx -> {
                insert(tx.connection(), key);
                throw Answer.of(402).text("no funds").failure("no_funds", "not enough money");
            }));
            assertEquals("no funds", failure.answer().bodyText());
            assertEquals(402, failure.status());
            assertEquals(0, server.count(key));
        }
    }

    @ParameterizedTest
    @CsvSource({"lose_request,once.complete,false", "lose_answer,once.complete,false", "lose_request,COMMIT,false", "lose_answer,COMMIT,true"})
    void underAClaimOfAGatewayALostConnectionIsOneEffectAtMost(String how, String step, boolean unknown) throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            for (boolean unrepeated : new boolean[] {true, false}) {
                String key = newKey();
                int fence = Once.over(direct).claim("orders", key, REQUEST, UNATTENDED).fence();
                int rule = forwarder.lose(how, step).get("rule").asInt();
                Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port()))).finishing(fence);
                boolean commit = "COMMIT".equals(step);
                if (commit || unrepeated) {
                    UnavailableException failure = assertThrows(UnavailableException.class, () -> place(unrepeated ? once.unrepeated() : once, key));
                    assertEquals(unknown, failure.outcomeUnknown());
                } else {
                    assertEquals("placed", place(once, key).bodyText());
                }
                assertTrue(forwarder.tell("wait " + rule).get("fired").asBoolean());
                await("SELECT count(*) = 0 FROM pg_stat_activity WHERE state LIKE 'idle in%'");
                if (commit && !unknown) { // the key is free, and the claim over
                    assertThrows(LeaseLostException.class, () -> place(Once.over(direct).finishing(fence), key));
                    assertEquals(0, server.count(key));
                    assertEquals("placed", place(Once.over(direct), key).bodyText());
                } else if (server.count(key) == 0) {
                    assertEquals("placed", place(Once.over(direct).finishing(fence), key).bodyText());
                }
                assertThrows(LeaseLostException.class, () -> place(Once.over(direct).finishing(fence), key)); // done: what this one does is rolled back
                assertEquals(1, server.count(key));
                assertTrue(place(Once.over(direct), key).replayed());
            }
        }
    }

    @Test
    void underAClaimOfAGatewayAnEffectIsDoneWithItsOutcomeOrNotAtAll() throws Exception {
        String key = newKey();
        int fence = Once.over(direct).claim("orders", key, REQUEST, UNATTENDED).fence();
        assertThrows(IllegalArgumentException.class, () -> Once.over(direct).finishing(0));
        assertThrows(LeaseLostException.class, () -> place(Once.over(direct).finishing(fence + 1), key));
        assertThrows(Doubt.class, () -> Once.over(direct).finishing(fence).run("orders", key, REQUEST, tx -> {
            insert(tx.connection(), key);
            throw new Doubt(502);
        }));
        assertEquals(0, server.count(key));
        assertEquals("processing_active", server.rows("SELECT verdict FROM once.peek('orders', '" + key + "', '')").get(0).get(0)); // the doubt is the gateway's to report
        assertEquals("{\"order\": 1}", Once.over(direct).finishing(fence).run("orders", key, REQUEST, tx -> {
            insert(tx.connection(), key);
            return Answer.of(201).json("{\"order\": 1}");
        }).bodyText());
        assertEquals("{\"order\": 1}", place(Once.over(direct), key).bodyText());
        assertEquals(1, server.count(key));
    }

    @Test
    void whereTheDatabaseCannotBeAskedAfterALostCommitTheOutcomeIsSaidToBeUnknown() throws Exception {
        try (Server own = new Server(); Server.Forwarder forwarder = own.forwarder()) {
            String key = newKey();
            forwarder.lose("lose_answer", "COMMIT");
            DataSource lossy = Server.plain(own.url("127.0.0.1", forwarder.port()));
            Once once = Once.over(lossy).deadline(Duration.ofSeconds(3));
            AtomicInteger runs = new AtomicInteger();
            UnavailableException failure = assertThrows(UnavailableException.class, () -> once.run("orders", key, REQUEST, tx -> {
                runs.incrementAndGet();
                insert(tx.connection(), key);
                forwarder.lose("lose_request", "once.start");
                for (int i = 0; i < 50; i++) {
                    forwarder.lose("lose_request", "once.start");
                }
                return Answer.of(201).text("placed");
            }));
            assertTrue(failure.outcomeUnknown());
            assertTrue(failure.retryable());
            forwarder.tell("forget");
            assertTrue(place(Once.over(lossy), key).replayed());
            assertEquals(1, runs.get());
            assertEquals(1, own.count(key));
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aBackendThatIsKilledInTheEffectLeavesNothingAndItRunsAgain(boolean before) throws Exception {
        String name = "killed_" + before;
        DataSource named = Server.plain(server.url() + "&ApplicationName=" + name);
        String key = newKey();
        AtomicInteger runs = new AtomicInteger();
        Answer answer = Once.over(named).run("orders", key, REQUEST, tx -> {
            if (before && runs.incrementAndGet() == 1) {
                assertEquals(1, server.tell("terminate " + name).get("ended").asInt());
            }
            insert(tx.connection(), key);
            if (!before && runs.incrementAndGet() == 1) {
                assertEquals(1, server.tell("terminate " + name).get("ended").asInt());
            }
            return Answer.of(201).text("placed");
        });
        assertFalse(answer.replayed());
        assertEquals(2, runs.get());
        assertEquals(1, server.count(key));
    }

    @ParameterizedTest
    @ValueSource(strings = {"lose_request", "lose_answer", "lose_connection_after"})
    void aConnectionLostWhileATooLargeAnswerIsMadeSmallerIsOneEffect(String how) throws Exception {
        server.rows("SELECT once.set_scope('kept-8192', response_bytes_max => 8192)");
        try (Server.Forwarder forwarder = server.forwarder()) {
            String key = newKey();
            int rule = forwarder.lose(how, "ROLLBACK TO SAVEPOINT pgonce_store").get("rule").asInt();
            Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port()))).keeping(1 << 20);
            Effect<SQLException> effect = tx -> {
                insert(tx.connection(), key);
                return Answer.of(201).bytes(new byte[8193]);
            };
            Answer first = once.run("kept-8192", key, REQUEST, effect);
            assertTrue(forwarder.tell("wait " + rule).get("fired").asBoolean());
            // It was rolled back with its connection, and made anew.
            assertEquals(8193, first.body().length);
            Answer again = once.run("kept-8192", key, REQUEST, effect);
            assertTrue(again.replayed());
            assertEquals(Answer.TOO_LARGE, again.resultType());
            assertEquals(201, again.status());
            assertEquals(1, server.count(key));
        }
    }

    @Test
    void whatIsKeptOfATextOrOfJsonIsDecidedByItsBytes() throws Exception {
        server.rows("SELECT once.set_scope('kept-8192', response_bytes_max => 8192)");
        Once once = Once.over(direct).keeping(1 << 20);
        // As text 8190 bytes; as jsonb, with a space after each comma, more.
        String json = "[" + "1,".repeat(4094) + "1]";
        // 4097 characters of two bytes.
        String text = "\u00fc".repeat(4097);
        for (Answer large : List.of(Answer.of(201).json(json), Answer.of(201).text(text))) {
            String key = newKey();
            Answer first = once.run("kept-8192", key, REQUEST, tx -> large);
            assertEquals(large.bodyText(), first.bodyText());
            assertEquals(Answer.TOO_LARGE, once.run("kept-8192", key, REQUEST, tx -> large).resultType());
        }
        String key = newKey();
        assertEquals(json, once.run("kept-8192", key, REQUEST, tx -> Answer.of(201).text(json)).bodyText());
        assertEquals(json, once.run("kept-8192", key, REQUEST, tx -> Answer.of(201)).bodyText());
        assertEquals("too_large", assertThrows(OnceException.class,
            () -> Once.over(direct).run("kept-8192", newKey(), REQUEST, tx -> Answer.of(201).text(text))).code());
    }

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
    void sixtyFourCallersAreOneEffectAndOneAnswer() throws Exception {
        String key = newKey();
        try (HikariDataSource pool = Server.pool(server.url(), 16)) {
            Once once = Once.over(pool).waiting(PATIENCE);
            CountDownLatch go = new CountDownLatch(1);
            ExecutorService callers = Executors.newFixedThreadPool(64);
            List<Future<Answer>> answers = new ArrayList<>();
            for (int i = 0; i < 64; i++) {
                answers.add(callers.submit(() -> {
                    go.await();
                    return place(once, key);
                }));
            }
            go.countDown();
            int fresh = 0;
            for (Future<Answer> each : answers) {
                assertEquals("placed", each.get().bodyText());
                fresh += each.get().replayed() ? 0 : 1;
            }
            assertEquals(1, fresh);
            assertEquals(1, server.count(key));
            callers.shutdown();
        }
    }

    @Test
    void aRaceAboveReadCommittedIsRetriedWithJitterUnderTheDeadline() throws Exception {
        String key = newKey();
        AtomicInteger runs = new AtomicInteger();
        Once once = Once.over(direct).isolation(Connection.TRANSACTION_SERIALIZABLE);
        server.rows("CREATE TABLE IF NOT EXISTS counter AS SELECT 0 AS n");
        Answer answer = once.run("orders", key, REQUEST, tx -> {
            try (Statement statement = tx.connection().createStatement()) {
                statement.executeQuery("SELECT n FROM counter").close();
                if (runs.incrementAndGet() < 3) {
                    server.rows("UPDATE counter SET n = n + 1");
                }
                statement.execute("UPDATE counter SET n = n + 1");
            }
            insert(tx.connection(), key);
            return Answer.of(201);
        });
        assertFalse(answer.replayed());
        assertEquals(3, runs.get());
        assertEquals(1, server.count(key));
        SQLException last = assertThrows(SQLException.class, () -> once.deadline(Duration.ofMillis(100)).run("orders", newKey(), REQUEST, tx -> {
            throw new SQLException("always", "40001");
        }));
        assertEquals("40001", last.getSQLState());
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
    void onceStartHasSaidProceedALostCommitIsNoDoubtAnyMore() throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            forwarder.lose("lose_request", "COMMIT");
            AtomicInteger runs = new AtomicInteger();
            assertThrows(IllegalArgumentException.class, () -> Once.over(Server.plain(server.url("127.0.0.1", forwarder.port())))
                .run("orders", newKey(), REQUEST, tx -> {
                    if (runs.incrementAndGet() == 2) {
                        throw new IllegalArgumentException();
                    }
                    return Answer.of(201);
                }));
        }
    }

    @Test
    void aRunTakesTwoRoundTripsBesidesTheEffects() throws Exception {
        try (Trips trips = new Trips(server); HikariDataSource pool = Server.pool(server.url("127.0.0.1", trips.port()), 1)) {
            Once once = Once.over(pool);
            once.run("orders", newKey(), REQUEST, tx -> Answer.of(201).text("warm"));
            int before = trips.made();
            once.run("orders", newKey(), REQUEST, tx -> Answer.of(201).text("counted"));
            assertEquals(2, trips.made() - before);
        }
    }

    /** As by a contract that is installed anew, under a client that has connections still. */
    @Test
    void aSaltThatWasReplacedMakesNoRetryAMismatch() throws Exception {
        try (Server own = new Server(); HikariDataSource pool = Server.pool(own.url(), 1)) {
            Once once = Once.over(pool);
            Request request = Request.text("request");
            once.run("orders", "before", request, tx -> Answer.of(201));
            own.rows("UPDATE once.setting SET salt = sha256(salt)");
            assertFalse(Once.over(Server.plain(own.url())).run("orders", "after", request, tx -> Answer.of(201)).replayed());
            assertTrue(once.run("orders", "after", request, tx -> Answer.of(201)).replayed());
            assertThrows(MismatchException.class, () -> once.run("orders", "after", Request.text("other"), tx -> Answer.of(201)));
        }
    }

    @Test
    void anEffectCannotEndItsTransaction() throws Exception {
        String key = newKey();
        for (String end : List.of("commit", "rollback", "close", "autocommit")) {
            assertThrows(IllegalStateException.class, () -> Once.over(direct).run("orders", key, REQUEST, tx -> {
                insert(tx.connection(), key);
                switch (end) {
                    case "commit" -> tx.connection().commit();
                    case "rollback" -> tx.connection().rollback();
                    case "close" -> tx.connection().close();
                    default -> tx.connection().setAutoCommit(true);
                }
                return Answer.of(201);
            }), end);
        }
        assertEquals(0, server.count(key));
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
        return (DataSource) Proxy.newProxyInstance(FaultsTest.class.getClassLoader(), new Class<?>[] {DataSource.class}, (source, method, arguments) -> {
            Connection connection = direct.getConnection();
            return Proxy.newProxyInstance(FaultsTest.class.getClassLoader(), new Class<?>[] {Connection.class}, (proxy, called, given) -> {
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
    void aLeaseRenewsItselfAndWhereItIsLostTheWorkIsInterrupted() throws Exception {
        String key = newKey();
        Once once = Once.over(direct);
        Claim.Options options = Claim.Options.DEFAULT.lease(Duration.ofSeconds(3));
        try (Claim claim = once.claim("pay", key, REQUEST, options)) {
            Object first = server.rows("SELECT lease_until FROM once.peek('pay', '" + key + "')").get(0).get(0);
            await("SELECT lease_until > '" + first + "' FROM once.peek('pay', '" + key + "')");
            assertFalse(claim.lost());
            server.rows("UPDATE once.intent SET fence = fence + 1 WHERE key = '" + key + "'");
            assertThrows(InterruptedException.class, () -> TimeUnit.SECONDS.sleep(20));
            assertTrue(claim.lost());
            assertThrows(LeaseLostException.class, () -> claim.complete(Answer.of(201)));
        }
        assertFalse(Thread.currentThread().isInterrupted());
    }

    @Test
    void aRenewalThatHangsLosesItsOwnLeaseInTimeAndNoOther() throws Exception {
        Claim.Options options = Claim.Options.DEFAULT.lease(Duration.ofSeconds(3));
        String other = newKey();
        CountDownLatch silence = new CountDownLatch(1);
        AtomicBoolean silent = new AtomicBoolean();
        DataSource far = (DataSource) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {DataSource.class}, (proxy, method, arguments) -> {
            if (silent.get()) {
                silence.await();
            }
            return method.invoke(direct, arguments);
        });
        try (Claim healthy = Once.over(direct).claim("pay", other, REQUEST, options);
                Claim hung = Once.over(far).claim("pay", newKey(), REQUEST, options)) {
            silent.set(true);
            try {
                assertThrows(InterruptedException.class, () -> TimeUnit.SECONDS.sleep(20));
            } finally {
                silent.set(false);
                silence.countDown();
            }
            assertTrue(hung.lost());
            assertFalse(healthy.lost());
            await("SELECT lease_until > clock_timestamp() FROM once.peek('pay', '" + other + "')");
            assertTrue(healthy.complete(Answer.of(201)));
        }
        assertFalse(Thread.currentThread().isInterrupted());
    }

    @Test
    void aClaimWhoseAnswerIsLostIsFoundAgain() throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            for (String how : List.of("lose_request", "lose_answer", "lose_connection_after")) {
                String key = newKey();
                forwarder.lose(how, "COMMIT");
                Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port())));
                AtomicInteger runs = new AtomicInteger();
                Answer answer = once.effect("pay", key, REQUEST, () -> {
                    runs.incrementAndGet();
                    forwarder.lose("lose_answer", "COMMIT"); // of complete
                    return Answer.of(201).text("charged");
                });
                assertEquals("charged", answer.bodyText());
                assertEquals("charged", once.effect("pay", key, REQUEST, () -> Answer.of(500)).bodyText());
                assertEquals(1, runs.get(), how);
            }
        }
    }

    @Test
    void workThatThrowsLeavesADoubtAndWorkThatDidNothingRunsAgain() throws Exception {
        Once once = Once.over(direct);
        String doubt = newKey();
        InDoubtException first = assertThrows(InDoubtException.class, () -> once.effect("pay", doubt, REQUEST, () -> Answer.of(1 / Integer.parseInt("0"))));
        assertInstanceOf(ArithmeticException.class, first.getCause());
        assertEquals(List.of("in_doubt", "ArithmeticException", "/ by zero"), reason(doubt));
        assertThrows(InDoubtException.class, () -> once.effect("pay", doubt, REQUEST, () -> Answer.of(201)));
        String wordy = newKey();
        assertThrows(InDoubtException.class, () -> once.effect("pay", wordy, REQUEST, () -> {
            throw new java.io.IOException("broken \0 off" + "\ud83d\ude00".repeat(2000), new IllegalStateException("beneath"));
        }));
        assertEquals("IOException", reason(wordy).get(1));
        assertTrue(((String) reason(wordy).get(2)).startsWith("broken ? off\ud83d\ude00"));
        assertEquals(1000, ((String) reason(wordy).get(2)).codePointCount(0, ((String) reason(wordy).get(2)).length()));
        String nothing = newKey();
        assertThrows(Once.NothingDone.class, () -> once.effect("pay", nothing, REQUEST, () -> {
            throw new Once.NothingDone("refused at the door", null);
        }));
        assertEquals(List.of("failed_retryable", "not_done", "refused at the door"), reason(nothing));
        assertEquals(201, once.effect("pay", nothing, REQUEST, () -> Answer.of(201)).status());
        String finalOne = newKey();
        for (int i = 0; i < 2; i++) {
            FinalFailureException failure = assertThrows(FinalFailureException.class, () -> once.effect("pay", finalOne, REQUEST, () -> {
                throw Answer.of(402).text("declined").failure("declined", "card declined");
            }));
            assertEquals(List.of("declined", "declined", "card declined", 402, i == 1), List.of(failure.answer().bodyText(), failure.errorCode(),
                failure.getMessage(), failure.status(), failure.answer().replayed()));
        }
        String unreported = newKey();
        once.claim("pay", unreported, REQUEST).close();
        assertThrows(InDoubtException.class, () -> once.claim("pay", unreported, REQUEST));
        assertEquals(List.of("in_doubt", "not_reported", "the attempt ended without a report"), reason(unreported));
    }

    @Test
    void aClaimWhoseReplyIsLostSaysWhatWasBeforeIt() {
        try (Server.Forwarder forwarder = server.forwarder()) {
            Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port())));
            for (JsonNode fault : Cases.faults("claims")) {
                String name = fault.get("name").asText();
                fault.get("arrange").forEach(sql -> server.rows(sql.asText()));
                int rule = forwarder.lose("lose_answer", "COMMIT").get("rule").asInt(); // before it the claim is not made
                Claim.Options options = fault.has("takeover") ? Claim.Options.DEFAULT.takeover(fault.get("takeover").asBoolean()) : Claim.Options.DEFAULT;
                try (Claim claim = once.claim("faults", name, Request.json("{}"), options)) {
                    assertTrue(forwarder.tell("wait " + rule).get("fired").asBoolean());
                    assertEquals(fault.get("verdict").asText(), claim.verdict(), name);
                    assertEquals(fault.get("fence").asInt(), claim.fence(), name);
                    assertTrue(claim.complete(Answer.of(201)));
                }
            }
        }
    }

    private static List<Object> reason(String key) {
        return server.rows("SELECT state::text, error_code, error_message FROM once.intent WHERE key = '" + key + "'").get(0);
    }

    /** As the README shows it: nobody says whose event it is. */
    @Test
    void anEventIsOfTheIntentInWhoseAttemptItIsEmitted() throws Exception {
        try (Server own = new Server()) {
            DataSource source = Server.plain(own.url());
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
            List<String> told = own.rows("SELECT topic || ': ' || concat_ws(' ', nullif(tenant, ''), scope, key) FROM once.outbox ORDER BY topic").stream()
                .map(row -> (String) row.get(0)).toList();
            assertEquals(List.of("after the inner one: acme orders run", "applied: acme stock m-2", "effect: acme orders effect", "explicit: beta carts 7", "helper: acme orders run",
                "inner: parts inner", "many: acme", "many: acme", "of another tenant: beta", "outside: acme", "received: acme stock m-1", "run: acme orders run"), told);
        }
    }

    @Test
    void aDelayedEventIsHeldUntilThen() throws Exception {
        try (Server own = new Server()) {
            Once once = Once.over(Server.plain(own.url())).tenant("acme");
            Event event = Event.of("later", "7").notBefore(java.time.Instant.parse("2090-10-29T01:30:00.123456Z")).about("order", "7").typed("told");
            once.run("orders", "run", REQUEST, tx -> {
                tx.emit(event);
                return Answer.of(201);
            });
            assertThrows(NullPointerException.class, () -> event.notBefore(null));
            assertEquals(List.of(List.of("later told order 7 7 acme orders run", "t", "f")), own.rows("SELECT concat_ws(' ', topic, event_type, aggregate_type, aggregate_id, payload, tenant, scope, key),"
                + " (not_before = '2090-10-29 01:30:00.123456+00')::text::char(1), (EXISTS (SELECT FROM once.outbox))::text::char(1) FROM once.delayed_event"));
        }
    }

    @Test
    void anEventOfBytesIsOfItsIntentAndHasEachByte() throws Exception {
        byte[] all = new byte[256];
        for (int n = 0; n < all.length; n++) {
            all[n] = (byte) n;
        }
        try (Server own = new Server()) {
            Once once = Once.over(Server.plain(own.url())).tenant("acme");
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
                own.rows("SELECT concat_ws(' ', topic, event_type, content_type, aggregate_type, aggregate_id, tenant, scope, key, encode(payload_bytes, 'hex')) FROM once.outbox"));
        }
    }

    private static void within(DataSource source, Once once, Tx.Apply<SQLException> work) throws SQLException {
        try (Connection connection = source.getConnection()) {
            connection.setAutoCommit(false);
            Tx tx = once.in(connection);
            work.apply(tx);
            tx.commit();
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

    /** As after SIGKILL: its work may have been done. */
    @Test
    void workWhoseLastAttemptFellSilentIsInDoubtAndNotDoneAgain() throws Exception {
        String key = newKey();
        Once once = Once.over(direct);
        once.claim("pay", key, REQUEST, new Claim.Options(Duration.ofMillis(20), null, null, true, false));
        await("SELECT lease_until < clock_timestamp() FROM once.peek('pay', '" + key + "')");
        AtomicInteger runs = new AtomicInteger();
        assertThrows(InDoubtException.class, () -> once.effect("pay", key, REQUEST, () -> Answer.of(200 + runs.incrementAndGet())));
        assertEquals(0, runs.get());
    }

    @Test
    void theFirstAnswerOfWorkHasTheBytesOfEachReplay() throws Exception {
        Once once = Once.over(direct);
        String key = newKey();
        Answer first = once.effect("pay", key, REQUEST, () -> Answer.of(201).json("{\"b\":1,\"a\":[1,2]}"));
        assertEquals(first.bodyText(), once.effect("pay", key, REQUEST, () -> Answer.of(500)).bodyText());
        String failed = newKey();
        List<String> told = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            told.add(assertThrows(FinalFailureException.class, () -> once.effect("pay", failed, REQUEST, () -> {
                throw Answer.of(402).json("{\"b\":1,\"a\":[1,2]}").failure("declined", null);
            })).answer().bodyText());
        }
        assertEquals(told.get(0), told.get(1));
    }

    @Test
    void workThatIsDoneIsNeverReportedAsAnythingElse() throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            String key = newKey();
            DataSource lossy = Server.plain(server.url("127.0.0.1", forwarder.port()));
            AtomicInteger left = new AtomicInteger(Integer.MAX_VALUE);
            DataSource away = (DataSource) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {DataSource.class}, (proxy, method, given) -> {
                if (left.getAndDecrement() <= 0) {
                    throw new SQLException("away", "08001");
                }
                return method.invoke(lossy, given);
            });
            Once once = Once.over(away).deadline(Duration.ofSeconds(3));
            UnavailableException unknown = assertThrows(UnavailableException.class, () -> once.effect("pay", key, REQUEST, () -> {
                forwarder.lose("lose_answer", "COMMIT");
                left.set(1);
                return Answer.of(201).text("charged");
            }));
            assertTrue(unknown.outcomeUnknown());
            left.set(Integer.MAX_VALUE);
            assertEquals("charged", once.effect("pay", key, REQUEST, () -> Answer.of(500)).bodyText());
        }
    }

    @Test
    void aFailureOfWorkThatCannotBeReportedIsToldBesides() throws Exception {
        String key = newKey();
        LeaseLostException lost = assertThrows(LeaseLostException.class, () -> Once.over(direct).effect("pay", key, REQUEST, () -> {
            server.rows("UPDATE once.intent SET fence = fence + 1 WHERE key = '" + key + "'");
            throw new IllegalArgumentException("of the work");
        }));
        assertEquals("of the work", lost.getSuppressed()[0].getMessage());
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

    @Test
    void whereThereIsNoDatabaseNothingRuns() {
        Once once = Once.over(Server.plain(server.url("127.0.0.1", 1)));
        AtomicInteger runs = new AtomicInteger();
        UnavailableException failure = assertThrows(UnavailableException.class, () -> once.run("orders", newKey(), REQUEST, tx -> {
            runs.incrementAndGet();
            return Answer.of(201);
        }));
        assertFalse(failure.outcomeUnknown());
        assertEquals(0, runs.get());
    }
}
