// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.pgonce.Answer;
import io.pgonce.FinalFailureException;
import io.pgonce.Nodes;
import io.pgonce.Observer;
import io.pgonce.Once;
import io.pgonce.Request;
import io.pgonce.SlotClosedException;
import io.pgonce.UnavailableException;
import io.pgonce.testing.Server;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DelegatingDataSource;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;

/** Spring's transactions over several nodes. */
class NodesDataSourceTest {
    private static final Request REQUEST = Request.text("x");
    private static Server server;
    private static DataSource first;
    private static DataSource second;
    private static String secondName;
    private final AtomicReference<String> nobody = new AtomicReference<>();
    private final NodesDataSource nodes = new NodesDataSource(Nodes.of(first, second), nobody::get);

    @BeforeAll
    static void start() {
        server = new Server();
        first = Server.plain(server.url());
        JsonNode other = server.tell("database");
        secondName = other.get("database").asText();
        second = Server.plain("jdbc:postgresql://" + other.get("host").asText() + ":" + other.get("port").asText() + "/" + secondName + "?sslmode=disable&gssEncMode=disable");
        new JdbcTemplate(first).execute("CALL once.divide(true)");
        new JdbcTemplate(second).execute("CALL once.divide(false)");
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    private static void set(DataSource at, int state) {
        new JdbcTemplate(at).queryForObject("SELECT setval(to_regclass('once.slot_' || once.slot_of('acme') || '_seq'), ?)", Long.class, state);
    }

    @BeforeEach
    void atTheSecond() {
        set(first, 2);
        set(second, 5);
    }

    private static String key() {
        return UUID.randomUUID().toString();
    }

    private static String where(DataSource source) {
        return new JdbcTemplate(source).queryForObject("SELECT current_database()", String.class);
    }

    private static Once over(DataSource source) {
        return Once.over(new SpringTransactions(new JdbcTransactionManager(source), source), Observer.NONE).tenant("acme");
    }

    @Test
    void whatAnAttemptDoesOnItsThreadIsDoneAtTheNodeOfItsTenant() {
        TransactionTemplate apart = new TransactionTemplate(new JdbcTransactionManager(nodes));
        apart.setPropagationBehavior(TransactionDefinition.PROPAGATION_REQUIRES_NEW);
        List<String> seen = new ArrayList<>();
        over(nodes).run("orders", key(), REQUEST, tx -> {
            seen.add(where(nodes));
            seen.add(apart.execute(status -> where(nodes)));
            return Answer.of(201);
        });
        over(nodes).effect("orders", key(), REQUEST, () -> {
            seen.add(where(nodes)); // without a transaction of pgonce
            return Answer.of(201);
        });
        assertEquals(List.of(secondName, secondName, secondName), seen);
        // And no longer.
        assertTrue(assertThrows(IllegalStateException.class, nodes::getConnection).getMessage().contains("whose connection"));
        nobody.set("acme");
        assertEquals(secondName, where(nodes));
    }

    @Test
    void aNodeThatCannotBeReachedLeavesNothingOnTheThread() {
        NodesDataSource away = new NodesDataSource((tenant, closed) -> Server.plain("jdbc:postgresql://127.0.0.1:1/nothing"), nobody::get);
        assertThrows(UnavailableException.class, () -> over(away).run("orders", key(), REQUEST, tx -> Answer.of(201)));
        assertThrows(IllegalStateException.class, away::getConnection);
    }

    @Test
    void aCallThatIsRefusedIsSentOnceMoreAlsoIfTheDataSourceIsWrapped() {
        Once once = over(new DelegatingDataSource(nodes));
        once.run("orders", key(), REQUEST, tx -> Answer.of(201));
        set(second, 4);
        set(first, 7);
        List<String> seen = new ArrayList<>();
        once.run("orders", key(), REQUEST, tx -> {
            seen.add(where(nodes));
            return Answer.of(201);
        });
        assertEquals(List.of(where(first)), seen);
        once.claim("orders", key(), REQUEST).close();
        // Open nowhere: what the application gets says so.
        set(first, 6);
        assertThrows(SlotClosedException.class, () -> once.run("orders", key(), REQUEST, tx -> Answer.of(201)));
    }

    /** The failure is stored by another transaction, since the effect has planned work for before COMMIT. */
    @Test
    void theFunctionGetsARefusalOnceAndNotWithLaterTransactionsOfTheCall() {
        List<SlotClosedException> refusals = new ArrayList<>();
        Once once = over(new NodesDataSource((tenant, closed) -> {
            refusals.add(closed);
            return closed == null && refusals.size() == 1 ? first : second;
        }, nobody::get));
        assertThrows(FinalFailureException.class, () -> once.run("orders", key(), REQUEST, tx -> {
            TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
            });
            throw Answer.of(402).text("no").failure("refused", "no funds");
        }));
        assertEquals(3, refusals.size());
        assertNull(refusals.get(0));
        assertNotNull(refusals.get(1));
        assertNull(refusals.get(2));
    }

    @Test
    void oneDataSourceIsAskedForNoTenant() {
        Once once = over(second);
        once.run("orders", key(), REQUEST, tx -> Answer.of(201));
        set(second, 4);
        assertThrows(SlotClosedException.class, () -> once.run("orders", key(), REQUEST, tx -> Answer.of(201)));
    }
}
