// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.Objects;
import java.util.UUID;
import java.util.regex.Pattern;
import org.postgresql.PGConnection;

/** A transaction that is open: what an effect works in, and what {@link Once#in(Connection)} makes of the caller's own. */
public final class Tx {
    /** Of a message it is only a name, without a birthday: once.receive gives its intent another key. */
    private static final Pattern UUID_V7 = Pattern.compile("(?i)[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}");

    /** As it is; the other one is what the effect is shown. */
    private final Connection own;
    private final Connection connection;
    private final Sql.Name intent;
    /** Null: not set. */
    private final String tenant;
    private final String traceparent;
    /** Of the caller's own transaction: the message that it applies. */
    private Sql.Name message;

    Tx(Connection own, Connection connection, Sql.Name intent, String tenant, String traceparent) {
        this.own = own;
        this.connection = connection;
        this.intent = intent;
        this.tenant = tenant;
        this.traceparent = traceparent;
    }

    static void refuseAutoCommit(Connection connection) {
        try {
            if (connection.getAutoCommit()) {
                throw new IllegalStateException("autocommit is on: what this call guards would not be in its transaction");
            }
        } catch (SQLException failure) {
            throw failed(failure);
        }
    }

    /** The error of a statement of pgonce. */
    static OnceException failed(SQLException failure) {
        OnceException.Reason reason = OnceException.Reason.ofSqlState(failure.getSQLState());
        return (reason == null ? OnceException.Reason.ofMissing(failure.getSQLState()) : reason).exception(failure);
    }

    /**
     * The connection that the transaction is on. It refuses to commit, to roll back (but to a savepoint) and to be
     * closed, also as the text of a statement: throw to roll back.
     *
     * @return valid until the effect ends
     */
    public Connection connection() {
        return connection;
    }

    /**
     * Cuts its connection off, from any thread, and gives it back: a statement that runs fails, and the server rolls back. For who watches
     * over an effect that takes too long.
     */
    public void abort() {
        try (own) {
            own.unwrap(PGConnection.class).cancelQuery(); // which alone ends a statement that does not look at its client
            own.abort(Runnable::run);
        } catch (SQLException gone) {
            return; // its pool has it already
        }
    }

    /**
     * The trace that the effect belongs to: that of the first attempt where it is known.
     *
     * @return a W3C traceparent, or null
     */
    public String traceparent() {
        return traceparent;
    }

    /**
     * Appends an event to the outbox: it exists if and only if the effect does. It is of the intent and the tenant in whose
     * attempt it is emitted: of the effect that this transaction or this thread runs, or of the message that was received last.
     * A second one of its type is the same event then. {@link Event#apart()} and {@link Event#causedBy} say otherwise.
     *
     * @param event what happened
     * @return the event's id
     */
    public UUID emit(Event event) {
        if (event.payload() == null) {
            throw new IllegalArgumentException("this event has no JSON payload: an event of bytes goes by emitBytes");
        }
        refuseAutoCommit(connection);
        try {
            return Sql.emit(connection, event, causeOf(event), ownerOf(event), traceparent);
        } catch (SQLException failure) {
            throw failed(failure);
        }
    }

    /**
     * As {@link #emit(Event)}, for a payload of bytes with a content type of the application's, such as Avro or Protobuf.
     *
     * @param event of {@link Event#ofBytes}: it has no payload in it, and is published at once
     * @param payload as it is sent
     * @param contentType 1 to 255 characters of visible ASCII
     * @return the event's id
     */
    public UUID emitBytes(Event event, byte[] payload, String contentType) {
        if (event.payload() != null || event.notBefore() != null) {
            throw new IllegalArgumentException("emitBytes gets its payload beside the event, and publishes at once: take Event.ofBytes, without notBefore");
        }
        Objects.requireNonNull(payload, "payload");
        Objects.requireNonNull(contentType, "contentType");
        refuseAutoCommit(connection);
        try {
            return Sql.emitBytes(connection, event, payload, contentType, causeOf(event), ownerOf(event), traceparent);
        } catch (SQLException failure) {
            throw failed(failure);
        }
    }

    /** The intent that an event is of; null: none. */
    private Sql.Name causeOf(Event event) {
        Event.Cause said = event.cause();
        return said == null ? cause() : said.scope() == null ? null : new Sql.Name(said.tenant(), said.scope(), said.key());
    }

    private String ownerOf(Event event) {
        Event.Cause said = event.cause();
        Sql.Name running = cause();
        return said != null && said.tenant() != null ? said.tenant() : running == null ? tenant() : running.tenant();
    }

    private String tenant() {
        return tenant == null ? "" : tenant;
    }

    /** The intent whose events are emitted here; null: none. */
    private Sql.Name cause() {
        if (intent != null || message != null) {
            return intent != null ? intent : message;
        }
        Sql.Name running = Attempt.current();
        return running == null || (tenant != null && !tenant.equals(running.tenant())) ? null : running;
    }

    private Sql.Name named(String scope, String what, String key, String which) {
        return new Sql.Name(tenant(), Objects.requireNonNull(scope, what), Objects.requireNonNull(key, which));
    }

    /**
     * Is this message to be applied, in this transaction? Then the memory of it commits with its effect.
     *
     * @param consumer who applies it
     * @param messageId its natural business id, never a broker's offset
     * @param payload to recognise the same id with another payload
     * @return true: apply it, then COMMIT; false: it was applied before, acknowledge it
     */
    public boolean receive(String consumer, String messageId, Request payload) {
        refuseAutoCommit(connection);
        try {
            Sql.Name name = named(consumer, "consumer", messageId, "messageId");
            message = UUID_V7.matcher(messageId).matches() ? new Sql.Name(name.tenant(), consumer, "pgonce:id:" + messageId) : name;
            return Sql.receive(connection, name, Objects.requireNonNull(payload, "payload"), traceparent);
        } catch (SQLException failure) {
            throw failed(failure);
        }
    }

    /**
     * Applies a message if {@link #receive} says so. All events emitted on this thread belong to the message.
     *
     * @param <E> what the effect throws
     * @param consumer who applies it
     * @param messageId its natural business id, never a broker's offset
     * @param payload to recognise the same id with another payload
     * @param effect in this transaction, which is the caller's to end
     * @return false: it was applied before, acknowledge it
     * @throws E what the effect threw: roll back
     */
    public <E extends Exception> boolean apply(String consumer, String messageId, Request payload, Apply<E> effect) throws E {
        if (!receive(consumer, messageId, payload)) {
            return false;
        }
        return Attempt.of(message, () -> {
            effect.apply(this);
            return true;
        });
    }

    /**
     * What applies a message.
     *
     * @param <E> what it throws
     */
    @FunctionalInterface
    public interface Apply<E extends Exception> {
        /**
         * Applies it.
         *
         * @param tx the transaction
         * @throws E to roll back
         */
        void apply(Tx tx) throws E;
    }

    /**
     * Takes a lock that has no row, until the transaction ends.
     *
     * @param resource its name
     * @param wait at most a day; zero: not at all
     * @return false where another has it
     */
    public boolean lock(String resource, Duration wait) {
        refuseAutoCommit(connection);
        try {
            return wait.isZero() ? Sql.tryLock(connection, resource) : Sql.lock(connection, resource, wait.toMillis() / 1000.0);
        } catch (SQLException failure) {
            throw failed(failure);
        }
    }

    /**
     * Starts an intent in the caller's own transaction: for frameworks. {@link Once#run} does all of it.
     *
     * @param scope what the key names an intent of
     * @param key the intent's
     * @param request what it asks for
     * @return the intent: look whether it is a replay
     */
    public Intent start(String scope, String key, Request request) {
        refuseAutoCommit(connection);
        Sql.Name name = named(scope, "scope", key, "key");
        try {
            return new Intent(name, Sql.start(connection, name, request, traceparent));
        } catch (SQLException failure) {
            throw failed(failure);
        }
    }

    /**
     * COMMIT, for the caller's own transaction: it fails if a statement has failed and its error was ignored. Without this the
     * server would roll back then, and pgjdbc's {@code commit()} would say nothing of it.
     */
    public void commit() {
        end("SELECT 1; COMMIT");
        try {
            connection.commit(); // sends nothing: the driver knows that the transaction is over
        } catch (SQLException failure) {
            throw failed(failure);
        }
    }

    /** The look that {@link #commit()} takes, where somebody else commits. */
    public void check() {
        end("SELECT 1");
    }

    private void end(String sql) {
        refuseAutoCommit(connection);
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        } catch (SQLException failure) {
            throw OnceException.Reason.SWALLOWED.sqlState.equals(failure.getSQLState())
                ? OnceException.Reason.SWALLOWED.exception(failure) : failed(failure);
        }
    }

    /** An intent that was started in this transaction. */
    public final class Intent {
        private final Sql.Name name;
        private final Sql.Started started;

        private Intent(Sql.Name name, Sql.Started started) {
            this.name = name;
            this.started = started;
        }

        /**
         * The stored answer, if the intent has one: then the effect must not be done.
         *
         * @return the answer, or null: do the effect, then {@link #finish(Answer)}, then COMMIT
         */
        public Answer replay() {
            return started.answer();
        }

        /**
         * Stores the outcome. COMMIT is the caller's.
         *
         * @param answer of the effect
         * @return the answer with the bytes that are stored
         */
        public Answer finish(Answer answer) {
            try {
                return answer.stored(Sql.finish(connection, name, started, answer, false, false), started.traceparent());
            } catch (SQLException failure) {
                throw failed(failure);
            }
        }
    }
}
