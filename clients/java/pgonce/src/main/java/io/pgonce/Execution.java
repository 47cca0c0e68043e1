// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import io.pgonce.OnceException.Reason;
import io.pgonce.OnceException.Stored;
import io.pgonce.http.StoredReason;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Objects;

/**
 * Runs an effect once, over all that can go wrong on the way: lib/src/execute.c in Java. What an attempt leaves behind
 * is never guessed: after a lost COMMIT the next attempt's start asks. It cannot be told "proceed" while the old
 * backend lives, because that one holds the intent's advisory lock until its commit is visible; so "proceed" means that
 * it did not commit.
 */
final class Execution<E extends Exception> {
    private static final int VALID_S = 5;
    private static final String FULL = "no connection was free, and the wait for one is over: the pool is full. A handler that takes a second connection of the same "
        + "pool can cause this: see mode LEASE; nothing was done";
    private static final String ROLE = "42501";
    /** As the gateway's once_timeout. */
    private static final Duration FREED_WITHIN = Duration.ofSeconds(5);

    private final Once once;
    private final Sql.Name name;
    private final Request request;
    private final Effect<E> effect;
    private final Observer.Span span;
    private final Retries retries;
    private final String traceparent;

    /** An earlier attempt's COMMIT is unanswered: until start has spoken, the outcome is unknown. */
    private boolean inDoubt;
    /** A connection was lost: its backend may live on, and "active" may mean ourselves. */
    private boolean lostBefore;
    /** Set by an attempt: it had a connection. */
    private boolean connected;
    /** Set by an attempt: its COMMIT was sent and not answered. */
    private boolean commitSent;
    /** The effect was called, by this attempt or an earlier one. */
    private boolean called;
    /** Set by an attempt: its effect is done, and what is left is finish and COMMIT. */
    private boolean finishing;
    /** Set by an attempt: the effect has failed, not a statement of pgonce. */
    private boolean effectFailed;
    /** Set by an attempt: it has computed the fingerprint by a salt that was remembered. */
    private boolean guessed;
    /** Is what is remembered of the salt to be trusted? */
    private boolean trusted = true;
    /** Set by an attempt: its connection is gone. */
    private boolean lost;
    /** Set by an attempt: its framework has ended the transaction, or tried to, and has given the connection back. */
    private boolean ended;
    /**
     * The effect has failed for good, or does not know, and the transaction cannot say so: its framework has doomed it, or has
     * more to do at COMMIT that belongs to the effect. That is recorded in another one.
     */
    private OnceException decidedFailure;
    private Doubt decidedDoubt;
    /** The effect has ended its transaction behind our back, and may have committed a part of itself: what showed it. */
    private Throwable gone;
    /** Set by an attempt: start is asked, and nothing has happened yet. */
    private boolean starting;
    /** The node of the attempt before did not serve the tenant. */
    private SlotClosedException closed;
    /** A refused attempt was sent once more. */
    private boolean rerouted;

    Execution(Once once, Sql.Name name, Request request, Effect<E> effect, Observer.Span span) {
        this.once = once;
        this.name = name;
        this.request = request;
        this.effect = effect;
        this.span = span;
        this.traceparent = once.traceparent == null ? span.traceparent() : once.traceparent;
        this.retries = new Retries(once.deadline);
    }

    Answer run() throws E {
        try {
            Answer answer = loop();
            span.verdict(answer.replayed() ? "replay" : "proceed");
            return answer;
        } catch (OnceException failure) {
            span.verdict(failure.code());
            throw failure;
        } catch (Throwable failure) {
            span.verdict("error");
            throw failure;
        } finally {
            retries.restore();
        }
    }

    private Answer loop() throws E {
        long waitUntil = System.nanoTime() + once.wait.toNanos();
        while (true) {
            connected = false;
            finishing = false;
            commitSent = false;
            effectFailed = false;
            lost = false;
            ended = false;
            guessed = false;
            starting = false;
            Throwable failure;
            boolean routed = true;
            try {
                return attempt();
            } catch (Doomed again) {
                continue;
            } catch (Recorded outcome) {
                throw (OnceException) outcome.getCause();
            } catch (RoutedTransactions.Unrouted unrouted) {
                failure = unrouted.own();
                routed = false;
            } catch (Throwable thrown) {
                failure = thrown;
            }
            String sqlState = Retries.sqlState(failure);
            inDoubt = inDoubt || (commitSent && (lost || !Retries.isRolledBack(sqlState)));
            lostBefore = lostBefore || (connected && lost);
            boolean again = Retries.isRace(sqlState) || (connected ? lost || (commitSent && inDoubt) : inDoubt || lostBefore);
            Reason reason = effectFailed || !routed ? null : Reason.ofSqlState(sqlState);
            closed = starting ? once.refusal(failure) : null;
            if (closed != null && !rerouted) {
                rerouted = true;
                continue;
            }
            if (!routed) {
                again = inDoubt;
            }
            if (guessed && reason == Reason.MISMATCH) {
                trusted = false; // or it is the salt that is another: the contract was installed anew
                continue;
            }
            if (reason == Reason.ACTIVE) {
                again = inDoubt || lostBefore || System.nanoTime() - waitUntil < 0;
            } else if (reason == Reason.SLOT_CLOSED && starting) {
                again = inDoubt; // no verdict: this node does not know
            } else if (reason != null) {
                inDoubt = false; // a verdict: it settles what became of an earlier attempt
            }
            if (once.fence > 0 && inDoubt) {
                again = false; // no start tells what became of COMMIT
            } else if (failure instanceof Error || (failure instanceof Doubt && !commitSent)
                || (once.unrepeated && called && gone == null && !inDoubt && reason != Reason.ACTIVE)) {
                again = false;
            } else if (gone != null && (reason == null || reason == Reason.SLOT_CLOSED)) {
                again = true; // that is still to be recorded
            }
            boolean waits = reason == Reason.ACTIVE && !inDoubt && !lostBefore;
            if (again && (waits ? retries.pauseUntil(waitUntil) : retries.pause()) && (inDoubt || !retries.interrupted())) {
                if (inDoubt) {
                    retries.shield();
                }
                continue;
            }
            if (gone != null) {
                throw failure instanceof Doubt ? Reason.IN_DOUBT.exception("the effect has ended its transaction by itself, so it is unknown what of it is committed",
                    gone, null, null) : Reason.OUTCOME_UNKNOWN.exception(gone);
            }
            if (inDoubt) {
                throw (once.fence > 0 && isFreed() ? Reason.UNAVAILABLE : Reason.OUTCOME_UNKNOWN).exception(failure);
            }
            if (again && retries.interrupted()) {
                throw Reason.INTERRUPTED.exception(failure);
            }
            throw this.<RuntimeException>thrown(failure, reason, again, routed);
        }
    }

    /**
     * COMMIT's answer is lost under a gateway's claim: that nothing was done is stored under the same fence. That waits for a COMMIT that is under way,
     * and one that comes later finds the claim taken. False: the outcome is stored, and the gateway sends it; or it is unknown, and the intent is in doubt.
     */
    private boolean isFreed() {
        Once quick = once.deadline(FREED_WITHIN);
        try {
            quick.repeatable(name.tenant(), true, connection -> Sql.fail(connection, name, once.fence, true, StoredReason.COMMIT_LOST.code(), StoredReason.COMMIT_LOST.message(),
                Answer.empty()));
            return true;
        } catch (RuntimeException unsaid) {
            return false;
        }
    }

    /** What comes out; of an effect's own failure, that. */
    @SuppressWarnings("unchecked")
    private <T extends Throwable> RuntimeException thrown(Throwable failure, Reason reason, boolean again, boolean routed) throws T {
        if (!routed || (!connected && failure instanceof IllegalStateException)) {
            throw (T) failure; // a mistake of the application, which no retry mends; or what its function has thrown
        }
        if (!connected) {
            throw Reason.UNAVAILABLE.exception(Retries.isPoolFull(failure) ? FULL : null, failure, null, null);
        }
        if (effectFailed || !(failure instanceof SQLException)) {
            throw (T) failure;
        }
        if (reason == null) {
            String sqlState = Retries.sqlState(failure);
            reason = lost ? Reason.UNAVAILABLE : again || Retries.isRace(sqlState) ? Reason.SERIALIZATION
                : Reason.SWALLOWED.sqlState.equals(sqlState) ? Reason.SWALLOWED
                : finishing && Retries.isRolledBack(sqlState) ? Reason.COMMIT_REFUSED : finishing ? Reason.DATABASE : Reason.ofMissing(sqlState);
            throw reason.exception(ROLE.equals(sqlState) && finishing ? "the database refused to finish what the effect did (42501): has it changed its role? "
                + "RESET ROLE before it ends; nothing was committed" : null, failure, null, null);
        }
        throw switch (reason) {
            case ACTIVE, IN_DOUBT, EXPIRED, FINAL_FAILURE -> refused(reason, failure);
            default -> reason.exception(failure);
        };
    }

    /** What else is known of an intent that may not run: its answer, its trace. The verdict stands without it. */
    private OnceException refused(Reason reason, Throwable failure) {
        try (Transactions.Open open = once.at(name.tenant(), null).begin(once.isolation)) {
            Answer stored = Sql.peek(open.connection(), name).answer();
            return reason.exception(null, failure, new Stored(stored.status(), stored.traceparent()), stored);
        } catch (SQLException | RuntimeException unavailable) {
            failure.addSuppressed(unavailable);
            return reason == Reason.FINAL_FAILURE ? Reason.UNAVAILABLE.exception(failure) : reason.exception(null, failure, null, null);
        }
    }

    private Answer attempt() throws SQLException, E {
        SlotClosedException refused = closed;
        closed = null;
        try (Transactions.Open open = once.at(name.tenant(), refused).begin(once.isolation)) {
            connected = true;
            Connection connection = open.connection();
            try {
                Tx.refuseAutoCommit(connection);
                if (once.fence > 0) {
                    Sql.join(connection);
                    return close(open, connection, new Sql.Started(false, null, null, traceparent));
                }
                byte[] salt = trusted && request.hashed != null ? Salts.of(connection, name.tenant()) : null;
                guessed = salt != null;
                starting = true;
                Sql.Started started = Sql.start(connection, name, request, traceparent, salt);
                starting = false;
                if (started.replay()) {
                    return started.answer();
                }
                inDoubt = false;
                lostBefore = false;
                return close(open, connection, started);
            } catch (Throwable failure) {
                boolean told = Retries.isLost(Retries.sqlState(failure));
                // What the effect met may be of another server: ours is asked. One that was given back is closed to us, and that says nothing.
                lost = ended ? told : Retries.isClosed(connection) || (told && !connection.isValid(VALID_S));
                throw failure;
            }
        }
    }

    private Answer close(Transactions.Open open, Connection connection, Sql.Started started) throws SQLException, E {
        FinalFailureException failed = null;
        Doubt doubt = null;
        Answer given;
        boolean decided = decidedFailure != null || decidedDoubt != null;
        if (once.unrepeated && called && !decided) {
            throw Reason.UNAVAILABLE.exception(null); // what became of the COMMIT is known now: nothing
        }
        try {
            if (decidedFailure != null) {
                throw decidedFailure;
            } else if (decidedDoubt != null) {
                throw decidedDoubt;
            }
            called = true;
            TransactionControl control = new TransactionControl(connection);
            Tx tx = new Tx(connection, control.connection(), name, name.tenant(), started.traceparent());
            given = Objects.requireNonNull(Attempt.<Answer, E>of(name, () -> effect.apply(tx)), "the effect must return an answer");
            open.flush();
            control.restoreRole();
        } catch (FinalFailureException failure) {
            if (!failure.declared) {
                effectFailed = true; // of another intent
                throw failure;
            }
            failed = failure;
            given = failure.answer();
        } catch (Doubt unknown) {
            doubt = unknown;
            given = null;
        } catch (Throwable failure) {
            effectFailed = true;
            if (!(failure instanceof Error) && Sql.gone(connection) != null) {
                throw lost(failure);
            }
            throw failure;
        }
        if (doubt != null && once.fence > 0) {
            throw doubt;
        }
        boolean back = failed != null || doubt != null;
        if (open.doomed() || (back && !decided && !open.commitTravels())) {
            SQLException other = Sql.gone(connection);
            if (other != null) {
                throw lost(other);
            }
            decidedFailure = failed;
            decidedDoubt = doubt;
            if (!back || decided) {
                throw Reason.SWALLOWED.exception("the effect went on after a part of it had marked the transaction as rollback-only; nothing was committed",
                    null, null, null);
            }
            throw new Doomed();
        }
        finishing = true;
        // From here to COMMIT's answer an interrupt would cut the effect off from its outcome.
        retries.shield();
        try {
            return finish(open, connection, started, given, failed, doubt);
        } catch (SQLException failure) {
            // An aborted transaction is known by its savepoint alone, unless our COMMIT has come behind the error, and has ended it.
            boolean asks = !ended && Reason.SWALLOWED.sqlState.equals(failure.getSQLState())
                && (once.fence > 0 || !open.commitTravels() || !Sql.goesOnAfterAnError(connection));
            SQLException other = asks ? Sql.gone(connection) : failure;
            if (other != null && Sql.isGone(other)) {
                throw lost(other);
            }
            throw failure;
        }
    }

    private Answer finish(Transactions.Open open, Connection connection, Sql.Started started, Answer given, FinalFailureException failed, Doubt doubt)
        throws SQLException {
        if (failed != null || doubt != null) {
            Sql.back(connection);
        }
        boolean travels = once.fence == 0 && open.commitTravels();
        if (doubt != null) {
            commitSent = travels;
            Sql.doubt(connection, name, started, doubt, travels);
            commit(open);
            commitSent = false;
            throw doubt;
        }
        commitSent = travels;
        byte[] body = once.fence > 0 ? storeJoined(connection, given, failed != null) : store(connection, started, given, failed != null, travels);
        Answer answer = given.stored(body, started.traceparent());
        commit(open);
        if (failed != null) {
            commitSent = false;
            throw new Recorded(Reason.FINAL_FAILURE.exception(null, null, new Stored(answer.status(), answer.traceparent()), answer));
        }
        return answer;
    }

    /** The transaction of the effect is gone, so its outcome is unknown: that is recorded, in another transaction or by the owner of the claim. */
    private RuntimeException lost(Throwable failure) {
        gone = failure;
        decidedFailure = null;
        if (once.fence > 0) {
            return new Doubt(StoredReason.ENDED, 0);
        }
        decidedDoubt = new Doubt(StoredReason.ENDED, 0);
        return new Doomed();
    }

    private void commit(Transactions.Open open) throws SQLException {
        commitSent = true;
        try {
            open.commit();
        } catch (Throwable failure) {
            ended = true;
            if (!open.committing()) {
                commitSent = false;
                effectFailed = true;
            }
            throw failure;
        }
    }

    /** Finish. Returns the body of the answer, also where that is too large to be kept. */
    private byte[] store(Connection connection, Sql.Started started, Answer given, boolean failed, boolean travels) throws SQLException {
        if (once.keeps(given)) {
            if (!once.keepsLess() || !given.mayBeTooLarge()) {
                return Sql.finish(connection, name, started, given, failed, travels);
            }
            try {
                return Sql.trial(connection, name, started, given, failed);
            } catch (SQLException refused) {
                if (Reason.ofSqlState(refused.getSQLState()) != Reason.TOO_LARGE) {
                    throw refused;
                }
                Sql.untried(connection); // the scope keeps less than this door
            }
        }
        Sql.finish(connection, name, started, given.tooLarge(), failed, travels);
        return given.body();
    }

    /** Under a claim: COMMIT only if this call has stored the outcome. Else another run under the same fence has had its effect, even if its answer is the same. */
    private byte[] storeJoined(Connection connection, Answer given, boolean failed) throws SQLException {
        Answer answer = given.asGiven();
        boolean tries = once.keepsLess() && answer.mayBeTooLarge();
        boolean large = !once.keeps(answer);
        boolean stored = false;
        if (!failed) {
            Sql.keep(connection);
        }
        if (!large && tries) {
            Sql.save(connection);
        }
        try {
            stored = !large && (failed ? Sql.fail(connection, name, once.fence, false, answer.errorCode(), answer.errorMessage(), answer)
                : Sql.complete(connection, name, once.fence, answer));
        } catch (SQLException refused) {
            if (!tries || Reason.ofSqlState(refused.getSQLState()) != Reason.TOO_LARGE) {
                throw refused;
            }
            Sql.untried(connection);
            large = true;
        }
        if (large) {
            stored = Sql.complete(connection, name, once.fence, answer.tooLarge());
        }
        if (!stored) {
            throw Reason.COMPLETION_REFUSED.exception("another run has stored the outcome of this claim; what this one did is rolled back", null, null, null);
        }
        return answer.body();
    }

    /** See decidedFailure. */
    private static final class Doomed extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Doomed() {
            super(null, null, false, false);
        }
    }

    /** Carries what was stored past the handlers of failures. */
    static final class Recorded extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Recorded(OnceException outcome) {
            super(null, outcome, false, false);
        }
    }
}
