// SPDX-License-Identifier: PostgreSQL

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.ActiveException;
import io.pgonce.Answer;
import io.pgonce.Claim;
import io.pgonce.Event;
import io.pgonce.ExpiredException;
import io.pgonce.FinalFailureException;
import io.pgonce.InDoubtException;
import io.pgonce.MismatchException;
import io.pgonce.Once;
import io.pgonce.OnceException;
import io.pgonce.Request;
import io.pgonce.Tx;
import io.pgonce.UnavailableException;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.regex.Pattern;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/** The orders of the torture (documented in tests/torture/languages.py). All calls are the client's; only the effects are the agent's own SQL. */
final class Door {
    private static final Duration DEADLINE = Duration.ofSeconds(6);
    private static final int SOCKET_TIMEOUT_S = 6;
    private static final String ADVANCE = "SELECT body, step FROM torture.advance(?, ?, ?, ?, ?, 'java')";
    private static final String WRITE = "SELECT torture.write(?, ?, ?, ?, ?, 'java', ?, ?)";
    /** What PostgreSQL says when a statement certainly had no lasting effect. */
    private static final Pattern DEFINITE = Pattern.compile("(P4|40|55|57014|53|25|22|42|23|0A|P0).*");
    private static final Set<String> REFUSED = Set.of("scope_required", "key_malformed", "refused");
    static final Map<String, Integer> LEVELS = Map.of("read committed", Connection.TRANSACTION_READ_COMMITTED,
        "repeatable read", Connection.TRANSACTION_REPEATABLE_READ, "serializable", Connection.TRANSACTION_SERIALIZABLE);
    static final ObjectMapper JSON = new ObjectMapper();

    private final DataSource source;
    private final Once once;
    private final Inside inside;

    Door(DataSource source, Once once) {
        this(source, once, (tenant, level, work) -> inConnection(source, once.tenant(tenant), level, work));
    }

    Door(DataSource source, Once once, Inside inside) {
        this.source = source;
        this.once = once.deadline(DEADLINE);
        this.inside = inside;
    }

    /** What is done in a transaction of the consumer's own. */
    interface Work {
        void in(Tx tx) throws Exception;
    }

    /** Such a transaction, which is committed after the work, or rolled back. */
    interface Inside {
        void run(String tenant, int level, Work work) throws Exception;
    }

    private static void inConnection(DataSource source, Once once, int level, Work work) throws Exception {
        try (Connection connection = source.getConnection()) {
            connection.setAutoCommit(false);
            connection.setTransactionIsolation(level);
            try {
                Tx tx = once.in(connection);
                work.in(tx);
                tx.commit();
            } catch (Exception failure) {
                connection.rollback();
                throw failure;
            }
        }
    }

    /** An ordinary error of an effect: it is taken back, and the next attempt may run. */
    static final class NotNow extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    private record Said(String verdict, String code, int status, byte[] body, boolean replayed, boolean loose) {
        static Said of(String verdict, String code) {
            return new Said(verdict, code, 0, null, false, false);
        }

        static Said stored(Answer answer, String code) {
            return new Said("acknowledged", code, answer.status(), answer.body(), answer.replayed(), false);
        }

        Said loosely(boolean loosely) {
            return new Said(verdict, code, status, body, replayed, loosely);
        }

        String line() {
            ObjectNode node = JSON.createObjectNode().put("verdict", verdict).put("code", code).put("status", status)
                .put("replayed", replayed).put("loose", loose);
            return node.put("body", body == null ? null : Base64.getEncoder().encodeToString(body)).toString();
        }
    }

    private static String codeOnly(Throwable failure) {
        return failure instanceof OnceException known ? known.code() : "";
    }

    /** Null where there is none. Spring wraps what the driver has thrown. */
    private static String stateOf(Throwable failure) {
        String state = failure instanceof OnceException known ? known.sqlState() : failure instanceof SQLException sql ? sql.getSQLState() : null;
        return state != null || failure.getCause() == null ? state : stateOf(failure.getCause());
    }

    private static String codeOf(Throwable failure) {
        if (failure instanceof OnceException known) {
            return known.sqlState() == null ? known.code() : known.sqlState();
        }
        return failure instanceof SQLException sql && sql.getSQLState() != null ? sql.getSQLState() : failure.getClass().getSimpleName();
    }

    /** The verdict of what the client has thrown. */
    private static Said refused(Throwable failure) {
        if (failure instanceof FinalFailureException fatal) {
            return Said.stored(fatal.answer(), "final_failure");
        }
        if (failure instanceof NotNow) {
            return Said.of("failed", "retryable");
        }
        String verdict = failure instanceof MismatchException || "message_mismatch".equals(codeOnly(failure)) ? "mismatch"
            : failure instanceof ActiveException ? "busy"
            : failure instanceof InDoubtException ? "in_doubt" : failure instanceof ExpiredException ? "expired"
            : failure instanceof UnavailableException away && away.outcomeUnknown() ? "unknown"
            : REFUSED.contains(codeOnly(failure)) ? "refused" : "failed";
        return Said.of(verdict, codeOf(failure));
    }

    private static void leaveAt(JsonNode order, String step) {
        if (step.equals(order.path("leave").asText())) {
            Runtime.getRuntime().halt(1);
        }
    }

    private static void pause(JsonNode order, String name) throws InterruptedException {
        Thread.sleep(order.path(name).asLong());
    }

    private static void set(PreparedStatement statement, JsonNode order) throws SQLException {
        statement.setString(1, order.path("tenant").asText());
        statement.setString(2, order.path("scope").asText());
        statement.setString(3, order.path("key").asText());
        statement.setString(4, order.path("payload").asText());
        statement.setInt(5, order.path("attempt").asInt());
    }

    /** The answer, in the type that the order names. Text that is no JSON stays text. */
    private static Answer given(String way, byte[] body) {
        String text = new String(body, StandardCharsets.UTF_8);
        if ("body".equals(way)) {
            return Answer.of(201).bytes(body);
        }
        try {
            return "json".equals(way) && !text.isEmpty() && JSON.readTree(text) != null ? Answer.of(201).json(text) : Answer.of(201).text(text);
        } catch (java.io.IOException none) {
            return Answer.of(201).text(text);
        }
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Another connection of the pool is taken, and given back. */
    private static void takeSecond(JsonNode order, DataSource source) throws SQLException {
        if ("second".equals(order.path("neighbour").asText())) {
            try (Connection second = source.getConnection(); Statement statement = second.createStatement()) {
                statement.execute("SELECT 1");
            }
        }
    }

    /** What an order is about, in a transaction: the bytes of its answer. */
    static byte[] advance(JsonNode order, Tx tx, DataSource source) throws Exception {
        leaveAt(order, "begun");
        pause(order, "before_ms");
        if ("retry".equals(order.path("end").asText())) {
            throw new NotNow();
        }
        takeSecond(order, source);
        JsonNode said = JSON.readTree(order.path("payload").asText());
        byte[] body;
        int step;
        try (PreparedStatement statement = tx.connection().prepareStatement(ADVANCE)) {
            set(statement, order);
            ResultSet row = statement.executeQuery();
            row.next();
            body = row.getBytes(1);
            step = row.getInt(2);
        }
        String aggregate = said.path("aggregate").asText();
        for (int nth = 1; nth <= said.path("events").asInt(); nth++) {
            ObjectNode event = JSON.createObjectNode();
            for (String name : new String[] {"tenant", "scope", "key"}) {
                event.put(name, order.path(name).asText());
            }
            event.put("aggregate", aggregate).put("step", step).put("nth", nth);
            tx.emit(Event.of(nth == 1 ? "torture.done" : "torture.checked", event.toString()).about("account", aggregate));
        }
        if (order.path("swallow").asBoolean()) {
            try (PreparedStatement wrong = tx.connection().prepareStatement("SELECT 1/0")) {
                wrong.execute();
            } catch (SQLException swallowed) {
                // as ordered
            }
        }
        pause(order, "after_ms");
        leaveAt(order, "written");
        if ("commit".equals(order.path("neighbour").asText())) {
            try (Statement wrong = tx.connection().createStatement()) {
                wrong.execute("COMMIT");
            }
        }
        return body;
    }

    /** The same, with the effect on another connection. */
    static Answer elsewhere(JsonNode order, DataSource source) throws Exception {
        leaveAt(order, "begun");
        pause(order, "before_ms");
        if ("retry".equals(order.path("end").asText())) {
            throw new Once.NothingDone("as ordered", null);
        } else if ("final".equals(order.path("end").asText())) {
            throw Answer.of(422).text(UUID.randomUUID().toString()).failure("torture", "as ordered");
        }
        byte[] body;
        try {
            takeSecond(order, source);
        } catch (SQLException failure) {
            throw new Once.NothingDone("no second connection", failure);
        }
        try (Connection connection = source.getConnection(); PreparedStatement statement = connection.prepareStatement(WRITE)) {
            set(statement, order);
            statement.setNull(6, Types.INTEGER);
            statement.setBoolean(7, false);
            ResultSet row = statement.executeQuery();
            row.next();
            body = row.getBytes(1);
        } catch (SQLException failure) {
            if (failure.getSQLState() != null && DEFINITE.matcher(failure.getSQLState()).matches()) {
                throw new Once.NothingDone("no effect", failure);
            }
            throw failure;
        }
        pause(order, "after_ms");
        leaveAt(order, "written");
        return Answer.of(201).header("Content-Type", "application/octet-stream").bytes(body);
    }

    private Answer effect(JsonNode order, Tx tx) throws Exception {
        byte[] body = advance(order, tx, source);
        if ("final".equals(order.path("end").asText())) {
            throw Answer.of(422).text(UUID.randomUUID().toString()).failure("torture", "as ordered");
        }
        return given(order.path("way").asText(), body);
    }

    private Said transaction(JsonNode order) {
        try {
            Once mine = once.tenant(order.path("tenant").asText()).isolation(LEVELS.get(order.path("isolation").asText()));
            return Said.stored(mine.<Exception>run(order.path("scope").asText(), order.path("key").asText(),
                Request.bytes(utf8(order.path("payload").asText())), tx -> effect(order, tx)), "");
        } catch (Exception failure) {
            return refused(failure);
        }
    }

    /** A message, in a transaction of the consumer's own. */
    private Said received(JsonNode order) {
        AtomicBoolean process = new AtomicBoolean();
        AtomicBoolean committing = new AtomicBoolean();
        try {
            inside.run(order.path("tenant").asText(), LEVELS.get(order.path("isolation").asText()), tx -> {
                process.set(tx.receive(order.path("scope").asText(), order.path("key").asText(), Request.bytes(utf8(order.path("payload").asText()))));
                if (process.get()) {
                    advance(order, tx, source);
                }
                committing.set(true);
            });
        } catch (Exception failure) {
            String state = stateOf(failure);
            return committing.get() && (state == null || !DEFINITE.matcher(state).matches()) ? Said.of("unknown", codeOf(failure)) : refused(failure);
        }
        leaveAt(order, "done");
        return new Said("acknowledged", process.get() ? "process" : "duplicate", 0, null, !process.get(), false);
    }

    private Said leased(JsonNode order) {
        Claim claim;
        try {
            claim = once.tenant(order.path("tenant").asText()).claim(order.path("scope").asText(), order.path("key").asText(),
                Request.bytes(utf8(order.path("payload").asText())), new Claim.Options(null, null, "attempt " + order.path("attempt"), null, true));
        } catch (RuntimeException failure) {
            Said said = refused(failure);
            return said.loosely("failed".equals(said.verdict)); // its claim may have been granted, and the answer lost
        }
        try (claim) {
            return claim.mine() ? work(order, claim) : Said.stored(claim.outcome(), "replay_success");
        } catch (Ended ended) {
            return ended.said;
        }
    }

    /** Leaves a claim without a report that was heard, and with this answer: the claim then reports a doubt, if it still can. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1L;
        final transient Said said;

        Ended(Said said, Throwable cause) {
            super(cause);
            this.said = said;
        }
    }

    /** Under a claim. An interrupt says that its lease is lost. */
    private Said work(JsonNode order, Claim claim) {
        int attempt = order.path("attempt").asInt();
        boolean odd = attempt % 2 == 1;
        String end = order.path("end").asText();
        leaveAt(order, "claimed");
        boolean lost = false;
        try {
            pause(order, "before_ms");
        } catch (InterruptedException interrupt) {
            lost = true;
        }
        try {
            if ("retry".equals(end) || lost || claim.lost()) {
                if (!odd || !claim.release()) {
                    claim.retryable("torture", "as ordered");
                }
                return Said.of("failed", "retryable");
            }
            if ("final".equals(end)) {
                Answer answer = Answer.of(422).text(UUID.randomUUID().toString());
                claim.fail(answer.failure("torture", "as ordered").answer());
                return Said.stored(answer, "");
            }
            if (order.path("doubt_ms").asInt() > 0) {
                claim.doubt("torture", "as ordered");
                pause(order, "doubt_ms");
            }
        } catch (OnceException | InterruptedException failure) {
            if ("final".equals(end) && failure instanceof UnavailableException away && away.outcomeUnknown()) {
                throw new Ended(Said.of("unknown", codeOf(failure)), failure);
            }
            throw new Ended(Said.of("failed", codeOf(failure)).loosely(!"P4011".equals(codeOf(failure))), failure);
        }
        byte[] body;
        try (Connection connection = source.getConnection(); PreparedStatement statement = connection.prepareStatement(WRITE)) {
            set(statement, order);
            statement.setInt(6, claim.fence());
            statement.setBoolean(7, "verified".equals(order.path("mode").asText()));
            ResultSet row = statement.executeQuery();
            row.next();
            body = row.getBytes(1);
        } catch (SQLException failure) {
            Ended unknown = new Ended(Said.of("unknown", codeOf(failure)), failure);
            if (failure.getSQLState() == null || !DEFINITE.matcher(failure.getSQLState()).matches()) {
                throw unknown;
            }
            try {
                claim.retryable("torture", "no effect");
            } catch (OnceException unheard) {
                throw unknown;
            }
            return Said.of("failed", codeOf(failure));
        }
        leaveAt(order, "done");
        try {
            pause(order, "after_ms");
        } catch (InterruptedException interrupt) {
            // The effect is there: what its report says the fence decides.
        }
        if (order.path("doubt_ms").asInt() > 0 && odd) {
            return Said.of("unknown", "doubt");
        }
        Answer answer = "body".equals(order.path("way").asText()) ? Answer.of(201).bytes(body)
            : Answer.of(201).text(new String(body, StandardCharsets.UTF_8));
        try {
            claim.complete(answer);
        } catch (OnceException failure) { // somebody else has decided meanwhile: what is stored says the next attempt
            throw new Ended(Said.of("unknown", codeOf(failure)), failure);
        }
        return Said.stored(answer, "");
    }

    static DataSource source(int connections, String dsn) {
        return source(connections, plain(dsn));
    }

    /** Statements go as text, so that a forwarder counts them. */
    static DataSource countable(int connections, String dsn) {
        PGSimpleDataSource plain = plain(dsn);
        plain.setPrepareThreshold(0);
        return source(connections, plain);
    }

    private static PGSimpleDataSource plain(String dsn) {
        Map<String, String> said = new HashMap<>();
        for (String pair : dsn.split(" ")) {
            said.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        PGSimpleDataSource plain = new PGSimpleDataSource();
        plain.setServerNames(new String[] {said.get("hostaddr")});
        plain.setPortNumbers(new int[] {Integer.parseInt(said.get("port"))});
        plain.setDatabaseName(said.get("dbname"));
        plain.setUser(said.get("user"));
        plain.setConnectTimeout(3);
        plain.setLoginTimeout(3);
        plain.setSocketTimeout(SOCKET_TIMEOUT_S);
        return plain;
    }

    private static DataSource source(int connections, PGSimpleDataSource plain) {
        if (connections == 0) {
            return plain;
        }
        HikariConfig config = new HikariConfig();
        config.setDataSource(plain);
        config.setMaximumPoolSize(connections);
        config.setMinimumIdle(0);
        config.setConnectionTimeout(3000);
        config.setInitializationFailTimeout(-1);
        // Else HikariCP asks the first connection for its level; if that one is lost meanwhile, it takes -1 for it, and gives no connection ever after.
        config.setTransactionIsolation("TRANSACTION_READ_COMMITTED");
        return new HikariDataSource(config);
    }

    String answer(JsonNode order) {
        String mode = order.path("mode").asText();
        return ("transaction".equals(mode) ? transaction(order) : "receive".equals(mode) ? received(order) : leased(order)).line();
    }
}
