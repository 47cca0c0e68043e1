// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import io.pgonce.http.StoredReason;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.Callable;
import javax.sql.DataSource;

/**
 * Retries made harmless: one durable effect and one answer for each (tenant, scope, key). The contract in the database
 * decides; this calls it, in transactions of the application's own pool. Safe for use by many threads.
 *
 * <pre>{@code
 * Once once = Once.over(dataSource);
 * Answer answer = once.run("orders", key, Request.json(body), tx -> {
 *     try (var insert = tx.connection().prepareStatement("INSERT INTO orders (cart) VALUES (7)")) { insert.execute(); }
 *     return Answer.of(201).json("{\"order\": 1}");
 * });
 * }</pre>
 */
public final class Once {
    private static final Duration DEADLINE = Duration.ofMillis(Retries.DEADLINE_MS);
    private static final int ALL = -1;
    private static final int CAUSES_MAX = 8;
    private static final int REASON_MAX = 1000;

    final Transactions transactions;
    final Observer observer;
    final Duration deadline;
    final Duration wait;
    final int isolation;
    final String traceparent;
    /** Null: not set. */
    private final String tenant;
    private final int keptMax;
    /** Is an effect called at most once by a run? */
    final boolean unrepeated;
    /** Of a claim that somebody in front has made; 0: none. */
    final int fence;

    private Once(Transactions transactions, Observer observer, Duration deadline, Duration wait, int isolation, String tenant, String traceparent,
                 int keptMax, boolean unrepeated, int fence) {
        this.transactions = Objects.requireNonNull(transactions);
        this.observer = Objects.requireNonNull(observer);
        this.deadline = deadline;
        this.wait = wait;
        this.isolation = isolation;
        this.tenant = tenant;
        this.traceparent = traceparent;
        this.keptMax = keptMax;
        this.unrepeated = unrepeated;
        this.fence = fence;
    }

    /**
     * Over a pool of the application's. OpenTelemetry's spans are made where its API is there.
     *
     * @param source gives a connection for each attempt, and gets it back
     * @return with a deadline of 30 s, no wait, the tenant {@code ''}
     */
    public static Once over(DataSource source) {
        return over(new JdbcTransactions(Objects.requireNonNull(source)), Observer.found());
    }

    /**
     * Over several nodes that share the tenants.
     *
     * @param route gives the DataSource of a tenant's node: {@link Nodes#of}, or a function of the application's
     * @return with a deadline of 30 s, no wait, the tenant {@code ''}
     */
    public static Once over(Route route) {
        return over(new RoutedTransactions(route), Observer.found());
    }

    /**
     * Over a framework's transactions.
     *
     * @param transactions where they come from
     * @param observer who watches, or {@link Observer#NONE}
     * @return with a deadline of 30 s, no wait, the tenant {@code ''}
     */
    public static Once over(Transactions transactions, Observer observer) {
        return new Once(transactions, observer, DEADLINE, Duration.ZERO, Connection.TRANSACTION_NONE, null, null, ALL, false, 0);
    }

    /**
     * For another tenant: whose keys these are. Never what a client can choose freely.
     *
     * @param name the tenant's
     * @return another one, over the same transactions
     */
    public Once tenant(String name) {
        return new Once(transactions, observer, deadline, wait, isolation, Objects.requireNonNull(name, "tenant"), traceparent, keptMax, unrepeated, fence);
    }

    /**
     * With another deadline: for how long races are retried, and a lost COMMIT is asked for.
     *
     * @param limit more than zero
     * @return another one, over the same transactions
     */
    public Once deadline(Duration limit) {
        return new Once(transactions, observer, limit, wait, isolation, tenant, traceparent, keptMax, unrepeated, fence);
    }

    /**
     * With a wait: for how long a duplicate waits for the attempt that runs, to get its answer.
     *
     * @param limit zero: not at all
     * @return another one, over the same transactions
     */
    public Once waiting(Duration limit) {
        return new Once(transactions, observer, deadline, limit, isolation, tenant, traceparent, keptMax, unrepeated, fence);
    }

    /**
     * With another isolation level.
     *
     * @param level one of {@link Connection}'s
     * @return another one, over the same transactions
     */
    public Once isolation(int level) {
        return new Once(transactions, observer, deadline, wait, level, tenant, traceparent, keptMax, unrepeated, fence);
    }

    /**
     * In a trace: what is stored with the intent and passed on to its events. Else that of the span that is current.
     *
     * @param value a W3C traceparent, or null
     * @return another one, over the same transactions
     */
    public Once traceparent(String value) {
        return new Once(transactions, observer, deadline, wait, isolation, tenant, value, keptMax, unrepeated, fence);
    }

    /**
     * With a limit for stored answers: for a door that passes the answer on itself, as a middleware does. A larger
     * one, and one that its scope does not allow, is remembered as done, without its body and its headers: its result type is
     * {@link Answer#TOO_LARGE}. Else an answer that the scope does not allow is an error, and nothing is done.
     *
     * @param bytes of the largest body that is kept
     * @return another one, over the same transactions
     */
    public Once keeping(int bytes) {
        if (bytes < 0) {
            throw new IllegalArgumentException("a limit is not negative");
        }
        return new Once(transactions, observer, deadline, wait, isolation, tenant, traceparent, bytes, unrepeated, fence);
    }

    /**
     * With an effect that a run calls at most once: for the handler of a request, as a middleware runs it. Its exceptions come out also
     * after a race or a lost connection; if a race rolls back its work, that is an {@link UnavailableException}.
     *
     * @return another one, over the same transactions
     */
    public Once unrepeated() {
        return new Once(transactions, observer, deadline, wait, isolation, tenant, traceparent, keptMax, true, fence);
    }

    /**
     * Under the claim of a gateway in front, which has told its fence: a run begins no intent and checks no fingerprint. It finishes
     * that claim, in the transaction of the effect. Where the claim is lost, or its outcome was stored by another run, the effect is rolled back:
     * {@link LeaseLostException}. A doubt is the gateway's to report.
     *
     * @param claimFence of the claim, more than 0
     * @return another one, over the same transactions
     */
    public Once finishing(int claimFence) {
        if (claimFence <= 0) {
            throw new IllegalArgumentException("a fence is more than 0");
        }
        return new Once(transactions, observer, deadline, wait, isolation, tenant, traceparent, keptMax, unrepeated, claimFence);
    }

    /**
     * Whose attempt runs on this thread: for a DataSource that leads to several nodes.
     *
     * @return the tenant of its intent, or null: no attempt runs
     */
    public static String tenantHere() {
        Sql.Name running = Attempt.current();
        return running == null ? null : running.tenant();
    }

    /** Is a scope's own limit no error? */
    boolean keepsLess() {
        return keptMax != ALL;
    }

    boolean keeps(Answer answer) {
        return keptMax == ALL || !answer.isLargerThan(keptMax);
    }

    /**
     * Runs an effect once: start, the effect, finish, COMMIT in one transaction. Races (40001, 40P01) are retried with
     * full jitter under the deadline. Where COMMIT's acknowledgement is lost, the database is asked on another
     * connection. A {@link FinalFailureException} of {@link Answer#failure} rolls back to a savepoint and stores that
     * outcome; any other exception rolls back and comes out as it is.
     *
     * @param <E> what the effect throws besides
     * @param scope what the key names an intent of
     * @param key the intent's: 1 to 255 printable ASCII characters
     * @param request what it asks for
     * @param effect may run again where the run before was rolled back
     * @return the answer: of this call, or the stored one ({@link Answer#replayed()})
     * @throws E what the effect threw
     * @throws OnceException where it may not run: mismatch, active, in doubt, expired, final failure, unavailable
     */
    public <E extends Exception> Answer run(String scope, String key, Request request, Effect<E> effect) throws E {
        Sql.Name name = name(scope, key, request);
        Objects.requireNonNull(effect, "effect");
        try (Observer.Span span = observer.start("run", scope)) {
            return new Execution<>(this, name, request, effect, span).run();
        }
    }

    /**
     * The caller's own transaction, for emit, receive and lock.
     *
     * @param connection with autocommit off; end it with {@link Tx#commit()}, which notices an error that was swallowed
     * @return the transaction
     */
    public Tx in(Connection connection) {
        Tx.refuseAutoCommit(connection);
        return new Tx(connection, connection, null, tenant, traceparent);
    }

    /**
     * Claims an intent whose effect is made elsewhere, and renews its lease in the background until it is closed.
     *
     * @param scope what the key names an intent of
     * @param key the intent's
     * @param request what it asks for
     * @return the claim: look at {@link Claim#mine()}
     * @throws OnceException mismatch, active, in doubt, expired, unavailable
     */
    public Claim claim(String scope, String key, Request request) {
        return claim(scope, key, request, Claim.Options.DEFAULT);
    }

    /**
     * Claims an intent whose effect is made elsewhere.
     *
     * @param scope what the key names an intent of
     * @param key the intent's
     * @param request what it asks for
     * @param options lease, retention, owner, takeover
     * @return the claim: look at {@link Claim#mine()}
     * @throws OnceException mismatch, active, in doubt, expired, unavailable
     */
    public Claim claim(String scope, String key, Request request, Claim.Options options) {
        Sql.Name name = name(scope, key, request);
        try (Observer.Span span = observer.start("claim", scope)) {
            return Claim.take(this, name, request, options, span);
        }
    }

    /**
     * Runs work that is elsewhere (a payment provider, a tool of an agent) at most once: claim, the work under a lease
     * that renews itself, complete. Work that throws leaves the intent in doubt, but for
     * {@link Answer#failure} (failed for good) and {@link NothingDone} (a retry may run): this call and its retries throw
     * {@link InDoubtException} then (of a {@link Doubt} this call throws that), until that is decided; what the work threw is its cause, and is
     * stored as the reason. An attempt
     * that fell silent leaves a doubt, too, because it is unknown whether it did the work.
     *
     * @param scope what the key names an intent of
     * @param key the intent's
     * @param request what it asks for
     * @param work interrupted where the lease is lost
     * @return the answer: of this call, or the stored one
     * @throws OnceException where it may not run, or has failed: mismatch, active, in doubt, expired, final failure, unavailable
     * @throws NothingDone of the work
     */
    public Answer effect(String scope, String key, Request request, Callable<Answer> work) {
        Objects.requireNonNull(work, "work");
        try (Claim claim = claim(scope, key, request, Claim.Options.DEFAULT.takeover(false))) {
            if (!claim.mine()) {
                return claim.outcome();
            }
            Answer answer;
            try {
                answer = Objects.requireNonNull(Attempt.of(claim.name(), work::call), "the work must return an answer");
            } catch (Exception failure) {
                throw report(claim, failure);
            }
            return complete(claim, answer);
        }
    }

    /** The work is done, even if its answer cannot be stored. */
    private Answer complete(Claim claim, Answer answer) {
        try {
            store(claim, answer, false);
        } catch (OnceException failure) {
            throw "too_large".equals(failure.code()) ? report(claim, failure) : failure;
        }
        return answer;
    }

    /** What is too large to keep is remembered as done, a failure for good too: once.fail has no result_type. */
    private void store(Claim claim, Answer answer, boolean failed) {
        if (keeps(answer)) {
            try {
                if (failed) {
                    claim.fail(answer);
                } else {
                    claim.complete(answer);
                }
                return;
            } catch (OnceException failure) {
                if (!"too_large".equals(failure.code()) || !keepsLess()) {
                    throw failure;
                }
            }
        }
        claim.complete(answer.tooLarge());
    }

    /** What is stored of a failure, and what is thrown: what each retry throws. */
    private RuntimeException report(Claim claim, Exception failure) {
        if (failure instanceof InterruptedException) {
            Thread.currentThread().interrupt();
        }
        try {
            if (failure instanceof NothingDone none) {
                claim.retryable(none.reason.code(), none.reason.message() == null ? reason(failure) : none.reason.message(), none.status);
                return none;
            } else if (failure instanceof FinalFailureException known && known.declared) {
                store(claim, known.answer(), true);
                return known;
            }
            if (failure instanceof Doubt unknown) {
                claim.doubt(unknown.reason().code(), unknown.reason().message(), unknown.status());
                return unknown;
            }
            String kind = failure.getClass().getSimpleName();
            boolean unkept = failure instanceof NotKept || failure instanceof OnceException known && "too_large".equals(known.code());
            claim.doubt(unkept ? StoredReason.NOT_KEPT.code() : kind.isEmpty() ? failure.getClass().getName() : kind, reason(failure));
            return OnceException.Reason.IN_DOUBT.exception(failure);
        } catch (OnceException unreported) {
            unreported.addSuppressed(failure);
            throw unreported;
        }
    }

    /** A failure's text as one that PostgreSQL takes, and of no more than a screen; its causes' as well. */
    private static String reason(Throwable failure) {
        StringBuilder text = new StringBuilder();
        int left = CAUSES_MAX;
        for (Throwable each = failure; each != null && left-- > 0; each = each.getCause()) {
            if (each.getMessage() != null && text.indexOf(each.getMessage()) < 0) {
                text.append(text.length() == 0 ? "" : ": ").append(each.getMessage());
            }
        }
        byte[] bytes = text.toString().replace('\0', '?').getBytes(StandardCharsets.UTF_8); // half a character becomes ?
        String whole = new String(bytes, StandardCharsets.UTF_8);
        return whole.isEmpty() ? null : whole.substring(0, whole.offsetByCodePoints(0, Math.min(REASON_MAX, whole.codePointCount(0, whole.length()))));
    }

    /** What work throws that certainly has done nothing: a retry may run. */
    public static class NothingDone extends RuntimeException {
        private static final long serialVersionUID = 1L;
        private final transient StoredReason reason;
        /** With which the service answered, or 0. */
        private final int status;

        /**
         * Nothing was done.
         *
         * @param message why
         * @param cause or null
         */
        public NothingDone(String message, Throwable cause) {
            super(message, cause);
            this.reason = StoredReason.NOT_DONE;
            this.status = 0;
        }

        /**
         * The answer asks for another attempt.
         *
         * @param status of the answer
         */
        protected NothingDone(int status) {
            super("the service answered " + status, null);
            this.reason = StoredReason.AGAIN;
            this.status = status;
        }
    }

    /** What work throws that is done, and whose answer cannot be stored, since it is no JSON for example: in doubt, and {@code answer_not_stored} says why. */
    public static class NotKept extends RuntimeException {
        private static final long serialVersionUID = 1L;

        /**
         * The work is done.
         *
         * @param cause why its answer cannot be stored
         */
        public NotKept(Throwable cause) {
            super(cause.getMessage(), cause);
        }
    }

    private Sql.Name name(String scope, String key, Request request) {
        Objects.requireNonNull(request, "request");
        return new Sql.Name(tenant == null ? "" : tenant, Objects.requireNonNull(scope, "scope"), Objects.requireNonNull(key, "key"));
    }

    /** Those of a tenant's node. */
    Transactions at(String name, SlotClosedException closed) {
        if (!transactions.routes()) {
            return transactions;
        }
        try {
            return transactions.at(name, closed);
        } catch (RuntimeException own) {
            throw new RoutedTransactions.Unrouted(own);
        }
    }

    /** What a node has said that does not serve the tenant, where another can be asked for; else null. */
    SlotClosedException refusal(Throwable failure) {
        OnceException.Reason closed = OnceException.Reason.SLOT_CLOSED;
        return transactions.routes() && closed.sqlState.equals(Retries.sqlState(failure)) ? (SlotClosedException) closed.exception(failure) : null;
    }

    /**
     * A short transaction of pgonce that may be sent again: repeating it has no further effect. report: what it reports has happened, so it is also repeated while the
     * tenant's slot is closed, which is open on no node while it moves.
     */
    <T> T repeatable(String name, boolean report, Repeatable<T> statement) {
        Retries retries = new Retries(deadline);
        boolean sent = false;
        boolean rerouted = false;
        SlotClosedException closed = null;
        try {
            while (true) {
                retries.shield();
                SQLException failure;
                boolean connected = false;
                Transactions there;
                try {
                    there = at(name, closed);
                } catch (RoutedTransactions.Unrouted unrouted) {
                    RuntimeException own = unrouted.own();
                    boolean away = own instanceof UnavailableException && !(own instanceof SlotClosedException);
                    boolean interrupted = own instanceof OnceException known && OnceException.Reason.INTERRUPTED.code.equals(known.code());
                    if (report && (interrupted || (away && retries.pause()))) {
                        continue;
                    }
                    throw report && away && sent ? OnceException.Reason.OUTCOME_UNKNOWN.exception(own) : own;
                }
                closed = null;
                try (Transactions.Open open = there.begin(isolation)) {
                    connected = true;
                    T result = statement.run(open.connection());
                    sent = true;
                    open.flush();
                    open.commit();
                    return result;
                } catch (SQLException thrown) {
                    failure = thrown;
                } catch (RuntimeException thrown) {
                    if (Retries.sqlState(thrown) == null) {
                        throw thrown;
                    }
                    failure = new SQLException(thrown.getMessage(), Retries.sqlState(thrown), thrown);
                }
                String state = failure.getSQLState();
                boolean moving = report && OnceException.Reason.SLOT_CLOSED.sqlState.equals(state);
                if (!rerouted || moving) {
                    closed = refusal(failure);
                }
                if (!rerouted && closed != null) {
                    rerouted = true;
                    continue;
                }
                boolean again = Retries.isRace(state) || !connected || !Retries.isRolledBack(state) || moving;
                if (!again) {
                    throw Tx.failed(failure);
                }
                if (!retries.pause()) {
                    if (moving && !sent) {
                        throw Tx.failed(failure);
                    }
                    throw (sent ? OnceException.Reason.OUTCOME_UNKNOWN : OnceException.Reason.UNAVAILABLE).exception(failure);
                }
            }
        } finally {
            retries.restore();
        }
    }

    /** See {@link #repeatable}. */
    interface Repeatable<T> {
        T run(Connection connection) throws SQLException;
    }
}
