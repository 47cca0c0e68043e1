// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static io.pgonce.testing.Effects.insert;
import static io.pgonce.testing.Effects.newKey;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.pgonce.testing.Server;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import javax.sql.DataSource;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.postgresql.ds.PGSimpleDataSource;

/** What spec/cases/nodes.json cannot show of a client with several nodes: functions of the application's own, interrupts, and nodes that hang. */
class NodesTest extends WithServer {
    private static final String SLOT = "to_regclass('once.slot_' || once.slot_of('acme') || '_seq')";
    private static final String CLOSE = "SELECT once_job.close_slot(once.slot_of('acme'))";
    private static final String REOPEN = "SELECT once_job.open_slot(once.slot_of('acme'), 2)";
    private static DataSource other;

    @BeforeAll
    static void divide() {
        server.rows("CALL once.divide(true)");
        JsonNode second = server.tell("database");
        other = Server.plain("jdbc:postgresql://" + second.get("host").asText() + ":" + second.get("port").asText() + "/" + second.get("database").asText()
            + "?sslmode=disable&gssEncMode=disable");
        rows(other, "CALL once.divide(false)");
    }

    @BeforeEach
    void open() {
        server.rows("SELECT setval(" + SLOT + ", 3)");
    }

    private static void rows(DataSource at, String sql) {
        try (Connection connection = at.getConnection(); var statement = connection.createStatement()) {
            statement.execute(sql);
        } catch (SQLException failure) {
            throw new IllegalStateException(failure);
        }
    }

    /** Does something before each connection. */
    private static DataSource before(DataSource source, Runnable what) {
        return (DataSource) Proxy.newProxyInstance(NodesTest.class.getClassLoader(), new Class<?>[] {DataSource.class}, (proxy, method, arguments) -> {
            what.run();
            try {
                return method.invoke(source, arguments);
            } catch (InvocationTargetException failure) {
                throw failure.getCause();
            }
        });
    }

    @Test
    void whatTheFunctionThrowsComesOutAsItIsAndNothingRuns() {
        AtomicReference<RuntimeException> fails = new AtomicReference<>();
        AtomicReference<DataSource> gives = new AtomicReference<>(direct);
        Once once = Once.over((tenant, closed) -> {
            if (fails.get() != null) {
                throw fails.get();
            }
            return gives.get();
        });
        Claim claim = once.claim("orders", newKey(), REQUEST, UNATTENDED);
        for (RuntimeException failure : new RuntimeException[] {new IllegalArgumentException("no such tenant"),
            new RuntimeException("wrapped", new SQLException("of its own database", "40001"))}) {
            fails.set(failure);
            assertSame(failure, assertThrows(RuntimeException.class, () -> once.run("orders", newKey(), REQUEST, tx -> {
                throw new AssertionError("the effect has run");
            })));
            assertSame(failure, assertThrows(RuntimeException.class, () -> once.claim("orders", newKey(), REQUEST)));
            assertSame(failure, assertThrows(RuntimeException.class, claim::renew));
            assertSame(failure, assertThrows(RuntimeException.class, () -> claim.complete(Answer.of(201))));
            assertSame(failure, assertThrows(RuntimeException.class, () -> once.effect("orders", newKey(), REQUEST, () -> {
                throw new AssertionError("the work has run");
            })));
        }
        fails.set(null);
        gives.set(null);
        assertTrue(assertThrows(NullPointerException.class, () -> place(once, newKey())).getMessage().contains("no DataSource"));
    }

    @Test
    void aRefusalNamesTheSlotAndItsEpochAndIsCaughtAsItWasBefore() throws SQLException {
        rows(direct, CLOSE);
        int slot = ((Number) server.rows("SELECT once.slot_of('acme')").get(0).get(0)).intValue();
        Once once = Once.over(direct).tenant("acme");
        String key = "slot=7 epoch=9"; // what the DETAIL has of it stands before the slot
        for (SlotClosedException refused : new SlotClosedException[] {assertThrows(SlotClosedException.class, () -> place(once, key)),
            assertThrows(SlotClosedException.class, () -> once.claim("orders", key, REQUEST))}) {
            assertEquals(slot, refused.slot());
            assertEquals(1, refused.epoch());
            assertEquals("P4097", refused.sqlState());
            assertEquals(503, refused.status());
            assertTrue(refused.retryable());
            assertFalse(assertInstanceOf(UnavailableException.class, refused).outcomeUnknown());
        }
        try (Connection connection = direct.getConnection()) {
            connection.setAutoCommit(false);
            assertEquals(slot, assertThrows(SlotClosedException.class, () -> once.in(connection).receive("stock", "m-1", REQUEST)).slot());
        }
    }

    /** The slot closes after the COMMIT, whose answer is lost: a refusal does not say what became of it. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aLostCommitIsNotSettledByARefusal(boolean reopens) throws SQLException {
        try (Server.Forwarder forwarder = server.forwarder()) {
            DataSource far = Server.plain(server.url("127.0.0.1", forwarder.port()));
            AtomicInteger calls = new AtomicInteger();
            AtomicInteger refusals = new AtomicInteger();
            Once once = Once.over((tenant, closed) -> {
                if (calls.incrementAndGet() == 2) {
                    rows(direct, CLOSE);
                }
                if (closed != null && refusals.incrementAndGet() == 3 && reopens) {
                    rows(direct, REOPEN);
                }
                return far;
            }).tenant("acme").deadline(Duration.ofSeconds(2));
            String key = newKey();
            forwarder.lose("lose_answer", "COMMIT");
            if (reopens) {
                assertTrue(place(once, key).replayed());
            } else {
                assertTrue(assertThrows(UnavailableException.class, () -> place(once, key)).outcomeUnknown());
            }
            assertTrue(refusals.get() >= 3);
            assertEquals(1, server.count(key));
        }
    }

    @Test
    void aRefusalOfAnotherCallWithinTheEffectIsTheEffectsOwnException() {
        rows(direct, CLOSE);
        Once once = Once.over((tenant, closed) -> direct);
        String another = (String) server.rows("SELECT t FROM (VALUES ('a'), ('b'), ('c'), ('d')) AS v(t) WHERE once.slot_of(t) <> once.slot_of('acme') LIMIT 1").get(0).get(0);
        AtomicInteger runs = new AtomicInteger();
        assertThrows(SlotClosedException.class, () -> once.tenant(another).run("orders", newKey(), REQUEST, tx -> {
            runs.incrementAndGet();
            return place(once.tenant("acme"), newKey());
        }));
        assertEquals(1, runs.get());
    }

    @Test
    void anInterruptEndsTheWaitForAnInquiryAndNotTheInquiry() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch gate = new CountDownLatch(1);
        AtomicInteger times = new AtomicInteger();
        DataSource slow = before(other, () -> {
            times.incrementAndGet();
            asked.countDown();
            try {
                gate.await();
            } catch (InterruptedException nobodys) {
                throw new IllegalStateException(nobodys);
            }
        });
        Once once = Once.over(Nodes.of(direct, slow)).tenant("acme");
        CompletableFuture<Object> left = new CompletableFuture<>();
        Thread first = new Thread(() -> {
            try {
                left.complete(place(once, newKey()));
            } catch (OnceException | SQLException failure) {
                left.complete(Thread.currentThread().isInterrupted() ? failure : "the interrupt is lost");
            }
        });
        first.start();
        assertTrue(asked.await(PATIENCE.toSeconds(), TimeUnit.SECONDS));
        String key = newKey();
        CompletableFuture<Answer> stays = CompletableFuture.supplyAsync(() -> {
            try {
                return place(once, key);
            } catch (SQLException failure) {
                throw new IllegalStateException(failure);
            }
        });
        first.interrupt();
        assertEquals("interrupted", assertInstanceOf(OnceException.class, left.get(PATIENCE.toSeconds(), TimeUnit.SECONDS)).code());
        gate.countDown();
        assertEquals("placed", stays.get(PATIENCE.toSeconds(), TimeUnit.SECONDS).bodyText());
        assertEquals(1, times.get());
        assertEquals(1, server.count(key));
    }

    /** What it reports has happened, so nothing comes between. */
    @Test
    void anInterruptDoesNotEndTheReportOfAClaimThatAsksTheNodes() throws Exception {
        Nodes nodes = Nodes.of(direct, other);
        AtomicInteger refusals = new AtomicInteger();
        Once once = Once.over((tenant, closed) -> {
            if (closed != null && refusals.incrementAndGet() == 1) {
                rows(direct, REOPEN);
                Thread.currentThread().interrupt();
            }
            return nodes.node(tenant, closed);
        }).tenant("acme");
        Claim claim = once.claim("orders", newKey(), REQUEST, UNATTENDED);
        rows(direct, CLOSE);
        assertTrue(claim.complete(Answer.of(201)));
        assertTrue(Thread.interrupted());
        assertEquals(2, refusals.get());
    }

    /** As a pool whose server is silent. */
    private static final class Silent extends PGSimpleDataSource {
        private static final long serialVersionUID = 1L;
        private final transient CountDownLatch gate = new CountDownLatch(1);
        private final transient AtomicInteger times = new AtomicInteger();

        @Override
        public Connection getConnection() throws SQLException {
            times.incrementAndGet();
            try {
                gate.await();
            } catch (InterruptedException nobodys) {
                throw new SQLException(nobodys);
            }
            throw new SQLException("silent", "08006");
        }
    }

    @Test
    void aNodeThatHangsIsWaitedForInTimeAndNamedAndNotAskedBesides() throws Exception {
        Silent silent = new Silent();
        silent.setUrl("jdbc:postgresql://db2.test:5432/app?user=postgres&password=swordfish");
        try {
            Nodes nodes = Nodes.of(direct, silent);
            assertSame(direct, nodes.node("acme", null));
            rows(direct, CLOSE);
            SlotClosedException closed = assertThrows(SlotClosedException.class, () -> place(Once.over(direct).tenant("acme"), newKey()));
            UnavailableException unknown = assertThrows(UnavailableException.class, () -> nodes.node("acme", closed));
            assertTrue(unknown.getMessage().contains("slot " + closed.slot() + ": node 2 (db2.test:5432/app) did not answer"), unknown.getMessage());
            assertFalse((unknown + " " + unknown.getCause()).contains("swordfish"));
            assertEquals(1, silent.times.get());
        } finally {
            silent.gate.countDown();
        }
    }

    /** As of a standby that was promoted without the close of a move: its memory is older. */
    @Test
    void aSlotThatIsClosedWithAHigherEpochIsServedNowhere() {
        rows(other, "SELECT setval(" + SLOT + ", 4)"); // closed, with epoch 2; open at the first one, with epoch 1
        try {
            SlotClosedException closed = assertThrows(SlotClosedException.class, () -> place(Once.over(Nodes.of(direct, other)).tenant("acme"), newKey()));
            assertEquals(2, closed.epoch());
        } finally {
            rows(other, "SELECT setval(" + SLOT + ", 2)");
        }
    }

    @Test
    void noMoreThan10000TenantsAreRemembered() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        Nodes nodes = Nodes.of(before(direct, asked::incrementAndGet), before(other, asked::incrementAndGet));
        rows(direct, CLOSE);
        SlotClosedException closed = assertThrows(SlotClosedException.class, () -> place(Once.over(direct).tenant("acme"), newKey()));
        rows(direct, REOPEN);
        nodes.node("acme", null);
        int before = asked.get();
        for (int i = 0; i <= Nodes.TENANTS_MAX; i++) {
            nodes.node("tenant " + i, closed); // which names the slot
        }
        assertEquals(before, asked.get(), "what is known is newer than the refusal");
        nodes.node("tenant " + Nodes.TENANTS_MAX, null);
        nodes.node("tenant 1", null);
        assertEquals(before, asked.get());
        nodes.node("tenant 0", null);
        assertEquals(before + 1, asked.get());
    }

    @Test
    void ofAUrlNothingIsToldButHostAndDatabase() {
        PGSimpleDataSource plain = new PGSimpleDataSource();
        plain.setUrl("jdbc:postgresql://db1,db2:5433/app?user=me&password=swordfish");
        String told = Nodes.where(plain);
        assertTrue(told.contains("db1") && told.endsWith("/app") && !told.contains("swordfish"), told);
        assertNull(Nodes.where(before(direct, () -> { })));
    }
}
