// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.execute;
import static io.pgonce.testing.Effects.insert;
import static io.pgonce.testing.Effects.newKey;

import io.pgonce.testing.Server;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.postgresql.PGConnection;

/** An effect cannot end its transaction; and where it finds a way all the same, nobody says that nothing was done. */
class TransactionControlTest {
    private static final Request REQUEST = Request.text("x");
    private static Server server;
    private static DataSource direct;

    @BeforeAll
    static void start() {
        server = new Server();
        direct = Server.plain(server.url());
        server.rows("CREATE TABLE late (id text UNIQUE DEFERRABLE INITIALLY DEFERRED)");
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    @ParameterizedTest
    @ValueSource(strings = {"COMMIT", " commit", "Begin", "ROLLBACK", "rollback work", "END", "ABORT", "START  TRANSACTION", "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'", "SELECT 1; COMMIT", "/* a /* b */ ; */ COMMIT", "-- a\nCOMMIT", ";;COMMIT",
        "SELECT E'\\';COMMIT'; COMMIT", "SELECT $$;$$; COMMIT", "SELECT $a$ $$ $a$; COMMIT", "CREATE TABLE x (); COMMIT", "COMMIT AND CHAIN",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; COMMIT", "SELECT ($1); ROLLBACK TRANSACTION"})
    void whatEndsATransactionIsKnownByItsText(String sql) {
        assertThrows(IllegalStateException.class, () -> TransactionControl.refuse(sql));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", ";", "SELECT 1", "SELECT 'x; COMMIT'", "SELECT \"a; COMMIT\" FROM t", "SELECT 1 -- ; COMMIT", "SELECT $$; COMMIT$$",
        "SELECT E'\\'; COMMIT'", "ROLLBACK TO a", "ROLLBACK WORK TO SAVEPOINT a", "SAVEPOINT a", "RELEASE a", "PREPARE a AS SELECT 1", "SET LOCAL x = 1",
        "INSERT INTO begin VALUES (?)", "UPDATE t SET commit = 1", "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END",
        "DO $x$ BEGIN NULL; END $x$", "SELECT 1 /* ; COMMIT */", "SELECT $1; SELECT 2", "SELECT 'unfinished; COMMIT"})
    void whatDoesNotIsLeftAlone(String sql) {
        assertDoesNotThrow(() -> TransactionControl.refuse(sql));
    }

    @ParameterizedTest
    @ValueSource(strings = {"statement", "prepared", "call", "batch", "through the statement"})
    void aTextIsRefusedHoweverItIsSent(String how) {
        String key = newKey();
        AtomicInteger runs = new AtomicInteger();
        for (int i = 0; i < 2; i++) {
            assertThrows(IllegalStateException.class, () -> Once.over(direct).run("texts", key, REQUEST, tx -> {
                runs.incrementAndGet();
                Connection connection = tx.connection();
                insert(connection, key);
                switch (how) {
                    case "statement" -> execute(connection, "COMMIT");
                    case "prepared" -> connection.prepareStatement("COMMIT").execute();
                    case "call" -> connection.prepareCall("COMMIT").execute();
                    case "batch" -> connection.createStatement().addBatch("COMMIT");
                    default -> connection.createStatement().getConnection().commit();
                }
                return Answer.of(201);
            }));
        }
        assertEquals(2, runs.get());
        assertEquals(0, server.count(key));
    }

    @Test
    void savepointsAndWhatReadsTheConnectionWork() throws Exception {
        String key = newKey();
        Once.over(direct).run("savepoints", key, REQUEST, tx -> {
            Connection connection = tx.connection();
            connection.setAutoCommit(false);
            insert(connection, key);
            Savepoint here = connection.setSavepoint();
            insert(connection, key);
            connection.rollback(here);
            execute(connection, "SAVEPOINT a; SELECT 1; ROLLBACK TO SAVEPOINT a");
            try (Statement statement = connection.createStatement()) {
                assertSame(connection, statement.getConnection());
            }
            assertSame(connection, connection.unwrap(Connection.class));
            return Answer.of(201);
        });
        assertEquals(1, server.count(key));
    }

    /** Behind our back, as by a driver's own connection: each attempt would do it again. */
    @ParameterizedTest
    @CsvSource({"false,false", "false,true", "true,false", "true,true"})
    void whatEndsItsTransactionByItselfLeavesADoubt(boolean throwing, boolean unrepeated) {
        String key = newKey();
        AtomicInteger runs = new AtomicInteger();
        Once once = unrepeated ? Once.over(direct).unrepeated() : Once.over(direct);
        for (int i = 0; i < 2; i++) {
            assertThrows(InDoubtException.class, () -> once.run("gone", key, REQUEST, tx -> {
                runs.incrementAndGet();
                insert(tx.connection(), key);
                execute((Connection) tx.connection().unwrap(PGConnection.class), "COMMIT");
                if (throwing) {
                    throw new IllegalArgumentException("after its COMMIT");
                }
                return Answer.of(201);
            }));
        }
        assertEquals(1, runs.get());
        assertEquals(1, server.count(key));
        assertEquals("in_doubt", server.rows("SELECT state::text FROM once.peek('gone', '" + key + "')").get(0).get(0));
    }

    /** The same in a transaction that its framework has doomed, so that only ROLLBACK is left: it says nothing of the one before. */
    @ParameterizedTest
    @ValueSource(strings = {"answer", "failure", "doubt"})
    void whatEndsADoomedTransactionByItselfLeavesADoubt(String end) {
        String key = newKey();
        AtomicInteger begun = new AtomicInteger();
        AtomicInteger runs = new AtomicInteger();
        Transactions own = new JdbcTransactions(direct);
        Once once = Once.over((Transactions) isolation -> begun.getAndIncrement() == 0 ? new RollbackOnly(own.begin(isolation)) : own.begin(isolation), Observer.NONE);
        for (int i = 0; i < 2; i++) {
            assertThrows(InDoubtException.class, () -> once.run("gone", key, REQUEST, tx -> {
                runs.incrementAndGet();
                insert(tx.connection(), key);
                execute((Connection) tx.connection().unwrap(PGConnection.class), "COMMIT");
                switch (end) {
                    case "failure" -> throw Answer.of(422).failure("refused", "after its COMMIT");
                    case "doubt" -> throw new Doubt(502);
                    default -> {
                        return Answer.of(201);
                    }
                }
            }));
        }
        assertEquals(1, runs.get());
        assertEquals(1, server.count(key));
        assertEquals(List.of(List.of("in_doubt", "transaction_ended")), server.rows("SELECT state::text, error_code FROM once.peek('gone', '" + key + "')"));
    }

    /** As of a framework in which a part of the work has asked for ROLLBACK. */
    private record RollbackOnly(Transactions.Open open) implements Transactions.Open {
        @Override
        public Connection connection() throws SQLException {
            return open.connection();
        }

        @Override
        public boolean commitTravels() {
            return open.commitTravels();
        }

        @Override
        public void flush() {
            open.flush();
        }

        @Override
        public boolean doomed() {
            return true;
        }

        @Override
        public void commit() throws SQLException {
            open.commit();
        }

        @Override
        public void close() {
            open.close();
        }
    }

    @Test
    void anErrorAtCommitIsTheApplicationsAndSaysWhich() {
        String key = newKey();
        OnceException refused = assertThrows(OnceException.class, () -> Once.over(direct).run("late", key, REQUEST, tx -> {
            execute(tx.connection(), "INSERT INTO late VALUES ('a'), ('a')");
            return Answer.of(201);
        }));
        assertEquals("commit_refused", refused.code());
        assertEquals(500, refused.status());
        assertFalse(refused.retryable());
        assertEquals("23505", assertInstanceOf(SQLException.class, refused.getCause()).getSQLState());
    }

    /** What finishes the intent is not the effect's role's to call; where the client cannot see that it has changed, the error says so. */
    @Test
    void anEffectMayChangeItsRole() throws Exception {
        server.rows("CREATE ROLE weak; GRANT ALL ON effect TO weak");
        String key = newKey();
        Answer done = Once.over(direct).run("roles", key, REQUEST, tx -> {
            execute(tx.connection(), "SET LOCAL ROLE weak");
            insert(tx.connection(), key);
            return Answer.of(201);
        });
        assertEquals(201, done.status());
        assertEquals(1, server.count(key));
        OnceException refused = assertThrows(OnceException.class, () -> Once.over(direct).run("roles", newKey(), REQUEST, tx -> {
            execute(tx.connection(), "SELECT set_config('role', 'weak', true)");
            return Answer.of(201);
        }));
        assertEquals("commit_refused", refused.code());
        assertTrue(refused.getMessage().contains("RESET ROLE"), refused.getMessage());
    }

    /** The handler of a request is called once, whatever it meets: what runs it twice is not what the unprotected one does. */
    @ParameterizedTest
    @ValueSource(strings = {"40001", "40P01"})
    void aRaceOfTheEffectsOwnComesOutWhereItIsCalledOnce(String state) {
        AtomicInteger runs = new AtomicInteger();
        SQLException failure = assertThrows(SQLException.class, () -> Once.over(direct).unrepeated().run("races", newKey(), REQUEST, tx -> {
            runs.incrementAndGet();
            throw new SQLException("deadlock detected", state);
        }));
        assertEquals(state, failure.getSQLState());
        assertEquals(1, runs.get());
    }

    @ParameterizedTest
    @ValueSource(strings = {"lose_request", "lose_answer"})
    void aLostCommitIsAskedForAlsoWhereTheEffectIsCalledOnce(String how) throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            forwarder.lose(how, "COMMIT");
            String key = newKey();
            AtomicInteger runs = new AtomicInteger();
            Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port()))).unrepeated();
            Effect<SQLException> effect = tx -> {
                runs.incrementAndGet();
                insert(tx.connection(), key);
                return Answer.of(201);
            };
            if ("lose_answer".equals(how)) {
                assertTrue(once.run("lost", key, REQUEST, effect).replayed());
            } else {
                assertEquals("unavailable", assertThrows(UnavailableException.class, () -> once.run("lost", key, REQUEST, effect)).code());
            }
            assertEquals(1, runs.get());
            assertEquals("lose_answer".equals(how) ? 1 : 0, server.count(key));
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
}
