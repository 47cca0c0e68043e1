// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Set;
import java.util.UUID;
import org.postgresql.PGConnection;
import org.postgresql.jdbc.PreferQueryMode;

/** The calls of the contract: their parameters and their results. It decides nothing. */
final class Sql {
    private static final String SAVEPOINT = "; SAVEPOINT pgonce";
    private static final String BACK = "ROLLBACK TO SAVEPOINT pgonce";
    private static final String SAVE = "SAVEPOINT pgonce_store; ";
    private static final String UNSAVE = "ROLLBACK TO SAVEPOINT pgonce_store";
    private static final String NO_SUCH_SAVEPOINT = "3B001";
    private static final Set<String> GONE = Set.of("P4012", NO_SUCH_SAVEPOINT, "25P01");
    private static final String COMMIT = "; COMMIT";

    private Sql() {
    }

    /** Which intent. */
    record Name(String tenant, String scope, String key) {
    }

    record Started(boolean replay, Answer answer, byte[] fingerprint, String traceparent) {
    }

    record Peeked(String verdict, Answer answer, String owner, int fence, int attempts, long leaseMs) {
    }

    record Claimed(String verdict, int fence, Answer answer, long leaseMs) {
    }

    /** In a transaction of the caller's, without a savepoint. */
    static Started start(Connection connection, Name name, Request request, String traceparent) throws SQLException {
        return start(connection, Statements.START, name, request, traceparent);
    }

    private static Started start(Connection connection, String text, Name name, Request request, String traceparent) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(String.format(text, request.sql))) {
            int at = request.bind(statement, 1, name.tenant);
            setAll(statement, at, name.scope, name.key, name.tenant, traceparent);
            ResultSet row = first(statement);
            return started(row, row.getBytes("print"));
        }
    }

    /** salt: the tenant's, null where it is not known; it is remembered then. */
    static Started start(Connection connection, Name name, Request request, String traceparent, byte[] salt) throws SQLException {
        if (request.hashed == null) {
            return start(connection, Statements.START + SAVEPOINT, name, request, traceparent);
        }
        try (PreparedStatement statement = connection.prepareStatement((salt == null ? Statements.START_SALTED : Statements.START_KNOWN) + SAVEPOINT)) {
            int at = 1;
            byte[] known = request.hashed;
            if (salt == null) {
                setAll(statement, at++, name.tenant);
            } else {
                known = Salts.fingerprint(salt, request.hashed);
            }
            setAll(statement, at, name.scope, name.key);
            statement.setBytes(at + 2, known);
            setAll(statement, at + 3, name.tenant, traceparent);
            ResultSet row = first(statement);
            if (salt == null) {
                byte[] told = row.getBytes("salt");
                Salts.remember(connection, name.tenant, told);
                known = Salts.fingerprint(told, request.hashed);
            }
            return started(row, known);
        }
    }

    private static Started started(ResultSet row, byte[] fingerprint) throws SQLException {
        Verdict verdict = Verdict.of(row.getString("verdict"));
        if (verdict != Verdict.PROCEED && verdict != Verdict.REPLAY_SUCCESS) {
            throw new SQLException("unknown verdict of once.start", "P4099");
        }
        boolean replay = verdict == Verdict.REPLAY_SUCCESS;
        return new Started(replay, replay ? answer(row) : null, fingerprint, row.getString("traceparent"));
    }

    /** In place of start, under a claim of somebody else. */
    static void join(Connection connection) throws SQLException {
        command(connection, "SAVEPOINT pgonce");
    }

    /** The effect is whole. Fails if its transaction is not the one that join was called in. */
    static void keep(Connection connection) throws SQLException {
        command(connection, "RELEASE SAVEPOINT pgonce");
    }

    /** What comes can be taken back: untried. */
    static void save(Connection connection) throws SQLException {
        command(connection, "SAVEPOINT pgonce_store");
    }

    /** Rolls the effect back. Sent alone: with autosave the driver sets another savepoint before a statement of several parts. */
    static void back(Connection connection) throws SQLException {
        command(connection, BACK);
    }

    /** Takes back what trial has tried. */
    static void untried(Connection connection) throws SQLException {
        try {
            command(connection, UNSAVE);
        } catch (SQLException done) {
            // With autosave the driver has rolled back itself, to before that savepoint. In any other transaction finish fails (P4012).
            if (!NO_SUCH_SAVEPOINT.equals(done.getSQLState())) {
                throw done;
            }
        }
    }

    /** What shows that the transaction that start was called in is over, by somebody else's COMMIT or ROLLBACK. Null: it is not, and the effect is taken back. */
    static SQLException gone(Connection connection) {
        try {
            back(connection);
            return null;
        } catch (SQLException failure) {
            return isGone(failure) ? failure : null;
        }
    }

    /** What back, or finish, meets in a transaction that has not started the intent. */
    static boolean isGone(SQLException failure) {
        return GONE.contains(String.valueOf(failure.getSQLState()));
    }

    /** Are the statements behind one that fails sent all the same? */
    static boolean goesOnAfterAnError(Connection connection) throws SQLException {
        return connection.unwrap(PGConnection.class).getPreferQueryMode() == PreferQueryMode.SIMPLE;
    }

    private static void command(Connection connection, String text) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(text);
        }
    }

    /** A finish that can be taken back. COMMIT does not travel with it: with preferQueryMode=simple it would come after an error, too. */
    static byte[] trial(Connection connection, Name name, Started started, Answer answer, boolean failed) throws SQLException {
        return finish(connection, SAVE + Statements.FINISH, name, started, answer, failed);
    }

    /** Returns the body as it is stored. */
    static byte[] finish(Connection connection, Name name, Started started, Answer answer, boolean failed, boolean commit) throws SQLException {
        return finish(connection, Statements.FINISH + (commit ? COMMIT : ""), name, started, answer, failed);
    }

    private static byte[] finish(Connection connection, String text, Name name, Started started, Answer answer, boolean failed) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            setAll(statement, 1, name.scope, name.key);
            statement.setBytes(3, started.fingerprint);
            int at = setOutcome(statement, 4, answer);
            setAll(statement, at, answer.resultType(), answer.resultId(), failed ? "failed_final" : "succeeded", answer.errorCode(),
                answer.errorMessage(), name.tenant, started.traceparent);
            return first(statement).getBytes(1);
        }
    }

    static void doubt(Connection connection, Name name, Started started, Doubt doubt, boolean commit) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(Statements.DOUBT + (commit ? COMMIT : ""))) {
            setAll(statement, 1, name.scope, name.key, name.tenant);
            statement.setBytes(4, started.fingerprint);
            setAll(statement, 5, started.traceparent, doubt.reason().code(), doubt.reason().message(), doubt.status() == 0 ? null : doubt.status());
            first(statement);
        }
    }

    static Peeked peek(Connection connection, Name name) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(Statements.PEEK)) {
            setAll(statement, 1, name.scope, name.key, name.tenant);
            ResultSet row = first(statement);
            return new Peeked(row.getString("verdict"), answer(row), row.getString("owner"), row.getInt("fence"), row.getInt("attempts"),
                leaseMs(row));
        }
    }

    static Claimed claim(Connection connection, Name name, Request request, String owner, Double lease, Double retention,
                         String traceparent, Boolean takeover) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(String.format(Statements.CLAIM, request.sql))) {
            int at = request.bind(statement, 1, name.tenant);
            setAll(statement, at, name.scope, name.key, owner, lease, retention, name.tenant, traceparent, takeover);
            ResultSet row = first(statement);
            return new Claimed(row.getString("verdict"), row.getInt("fence"), answer(row), leaseMs(row));
        }
    }

    static boolean complete(Connection connection, Name name, int fence, Answer answer) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(Statements.COMPLETE)) {
            setAll(statement, 1, name.scope, name.key, fence);
            int at = setOutcome(statement, 4, answer);
            setAll(statement, at, answer.resultType(), answer.resultId(), name.tenant);
            return first(statement).getBoolean(1);
        }
    }

    /** retryable null: the outcome is unknown. */
    static boolean fail(Connection connection, Name name, int fence, Boolean retryable, String code, String message, Answer answer)
        throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(Statements.FAIL)) {
            setAll(statement, 1, name.scope, name.key, fence, retryable, code, message);
            int at = setOutcome(statement, 7, answer);
            setAll(statement, at, name.tenant);
            return first(statement).getBoolean(1);
        }
    }

    static boolean renew(Connection connection, Name name, int fence, Double lease) throws SQLException {
        return ask(connection, Statements.RENEW, name.scope, name.key, fence, lease, name.tenant);
    }

    static boolean release(Connection connection, Name name, int fence) throws SQLException {
        return ask(connection, Statements.RELEASE, name.scope, name.key, fence, name.tenant);
    }

    static boolean tryLock(Connection connection, String resource) throws SQLException {
        return ask(connection, Statements.TRY_LOCK, resource);
    }

    static boolean lock(Connection connection, String resource, double seconds) throws SQLException {
        return ask(connection, Statements.LOCK, resource, seconds);
    }

    static UUID emit(Connection connection, Event event, Name intent, String tenant, String traceparent) throws SQLException {
        boolean isLater = event.notBefore() != null;
        try (PreparedStatement statement = connection.prepareStatement(isLater ? Statements.EMIT_LATER : Statements.EMIT)) {
            setAll(statement, 1, event.topic(), event.payload());
            int at = setEvent(statement, event, intent, tenant, traceparent);
            if (isLater) {
                statement.setString(at, event.notBefore().toString());
            }
            return UUID.fromString(first(statement).getString(1));
        }
    }

    static UUID emitBytes(Connection connection, Event event, byte[] payload, String contentType, Name intent, String tenant, String traceparent)
        throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(Statements.EMIT_BYTES)) {
            statement.setString(1, event.topic());
            statement.setBytes(2, payload);
            statement.setString(setEvent(statement, event, intent, tenant, traceparent), contentType);
            return UUID.fromString(first(statement).getString(1));
        }
    }

    /** The parameters after the payload; returns the number of the next one. */
    private static int setEvent(PreparedStatement statement, Event event, Name intent, String tenant, String traceparent) throws SQLException {
        setAll(statement, 3, event.aggregateType(), event.aggregateId(), event.type(), intent == null ? null : intent.scope,
            intent == null ? null : intent.key, event.headers(), tenant, traceparent);
        return 11;
    }

    static boolean receive(Connection connection, Name name, Request request, String traceparent) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(String.format(Statements.RECEIVE, request.sql))) {
            int at = request.bind(statement, 1, name.tenant);
            setAll(statement, at, name.scope, name.key, name.tenant, traceparent);
            return switch (first(statement).getString(1)) {
                case "process" -> true;
                case "duplicate" -> false;
                default -> throw new SQLException("unknown verdict of once.receive", "P4099");
            };
        }
    }

    private static boolean ask(Connection connection, String text, Object... values) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(text)) {
            setAll(statement, 1, values);
            return first(statement).getBoolean(1);
        }
    }

    /** The first row of the first statement that has rows; nothing of what stands beside it is left unread. */
    private static ResultSet first(PreparedStatement statement) throws SQLException {
        boolean rows = statement.execute();
        while (!rows && statement.getUpdateCount() >= 0) {
            rows = statement.getMoreResults();
        }
        ResultSet result = statement.getResultSet();
        if (result == null || !result.next()) {
            throw new SQLException("the contract gave no row: is it of another version?", "P4099");
        }
        return result;
    }

    private static int setOutcome(PreparedStatement statement, int at, Answer answer) throws SQLException {
        setAll(statement, at, answer.status() == 0 ? null : answer.status(), answer.textOf(Answer.Kind.TEXT), answer.textOf(Answer.Kind.JSON));
        statement.setBytes(at + 3, answer.bytesOrNull());
        statement.setString(at + 4, StoredHeaders.write(answer.headers()));
        return at + 5;
    }

    private static void setAll(PreparedStatement statement, int at, Object... values) throws SQLException {
        for (Object value : values) {
            if (value instanceof Integer number) {
                statement.setInt(at++, number);
            } else if (value instanceof Double number) {
                statement.setDouble(at++, number);
            } else if (value instanceof Boolean flag) {
                statement.setBoolean(at++, flag);
            } else {
                statement.setString(at++, (String) value);
            }
        }
    }

    private static long leaseMs(ResultSet row) throws SQLException {
        return (long) (row.getDouble("lease_left_s") * 1000);
    }

    private static Answer answer(ResultSet row) throws SQLException {
        // Unreadable headers are dropped; the middleware checks for that, since it must not send such an answer.
        java.util.List<Answer.Header> headers = StoredHeaders.read(row.getString("response_headers"));
        return Answer.replay(headers == null ? 0 : row.getInt("response_status"), row.getBytes("response_body"),
            headers == null ? java.util.List.of() : headers, row.getString("result_type"), row.getString("result_id"),
            row.getString("error_code"), row.getString("error_message"), row.getString("traceparent"));
    }
}
