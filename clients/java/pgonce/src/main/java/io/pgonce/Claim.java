// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import io.pgonce.OnceException.Reason;
import io.pgonce.OnceException.Stored;
import io.pgonce.http.StoredReason;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * A claim of an intent whose effect is made elsewhere. Its lease is renewed in the background, after a third of it each
 * time; if it is lost, the thread that claimed is interrupted. Close it on that thread: what was not reported by then
 * is reported as in doubt.
 */
public final class Claim implements AutoCloseable {
    private static final int OWNER_CHARACTERS = 200;
    private static final double BEATS_PER_LEASE = 3;

    /**
     * How to claim.
     *
     * @param lease null: the scope's
     * @param retention null: the scope's
     * @param owner who works, for people; or null
     * @param takeover is an attempt that fell silent, and may have had its effect, taken over? null: as the scope's on_stale says
     * @param heartbeat is the lease renewed in the background?
     */
    public record Options(Duration lease, Duration retention, String owner, Boolean takeover, boolean heartbeat) {
        /** The scope's lease and retention. */
        public static final Options DEFAULT = new Options(null, null, null, null, true);

        /**
         * With another lease.
         *
         * @param lease at least long enough for a renewal to come through
         * @return other options
         */
        public Options lease(Duration lease) {
            return new Options(lease, retention, owner, takeover, heartbeat);
        }

        /**
         * Of an attempt that fell silent, and may have had its effect: is it taken over, or in doubt?
         *
         * @param allowed true where a second run is harmless, false where it would do harm
         * @return other options
         */
        public Options takeover(boolean allowed) {
            return new Options(lease, retention, owner, allowed, heartbeat);
        }
    }

    private final Once once;
    private final Sql.Name name;
    private final Options options;
    private final Sql.Claimed claimed;
    private final Thread worker = Thread.currentThread();
    private ScheduledFuture<?> beat;
    private long leaseEndsNs;
    private boolean reported;
    private boolean closed;
    private boolean lost;
    private boolean interrupted;
    private boolean renewing;

    private Claim(Once once, Sql.Name name, Options options, Sql.Claimed claimed, long askedNs) {
        this.once = once;
        this.name = name;
        this.options = options;
        this.claimed = claimed;
        if (mine() && options.heartbeat) {
            long leaseNs = TimeUnit.MILLISECONDS.toNanos(claimed.leaseMs());
            leaseEndsNs = askedNs + leaseNs;
            long everyNs = Math.max(1, (long) (leaseNs / BEATS_PER_LEASE));
            beat = Heart.BEATS.scheduleWithFixedDelay(() -> tick(leaseNs), everyNs, everyNs, TimeUnit.NANOSECONDS);
        }
    }

    /**
     * For all claims, made with the first: one thread that never waits, so that it sees each lease end in time; and those that renew, which a
     * database or a pool may keep waiting, at most one for each claim.
     */
    private static final class Heart {
        static final ScheduledThreadPoolExecutor BEATS = new ScheduledThreadPoolExecutor(1, work -> daemon(work, "pgonce-heartbeat"));
        static final ExecutorService RENEWALS = Executors.newCachedThreadPool(work -> daemon(work, "pgonce-renewal"));

        static Thread daemon(Runnable work, String name) {
            Thread thread = new Thread(work, name);
            thread.setDaemon(true);
            return thread;
        }

        static {
            BEATS.setRemoveOnCancelPolicy(true);
        }
    }

    static Claim take(Once once, Sql.Name name, Request request, Options options, Observer.Span span) {
        // By this a claim whose answer was lost is recognised as ours.
        String own = options.owner == null ? "java" : options.owner;
        String owner = own.substring(0, Math.min(own.length(), OWNER_CHARACTERS)) + " " + UUID.randomUUID();
        Retries retries = new Retries(once.deadline);
        long waitUntil = System.nanoTime() + once.wait.toNanos();
        int[] tries = new int[1];
        int answered = 0;
        try {
            while (true) {
                long[] askedNs = new long[1];
                boolean[] another = new boolean[1];
                Sql.Claimed claimed = once.repeatable(name.tenant(), false, connection -> {
                    askedNs[0] = System.nanoTime();
                    tries[0]++;
                    Sql.Claimed answer = Sql.claim(connection, name, request, owner, seconds(options.lease), seconds(options.retention),
                        once.traceparent == null ? span.traceparent() : once.traceparent, options.takeover);
                    if ("processing_active".equals(answer.verdict())) {
                        Sql.Peeked there = Sql.peek(connection, name);
                        another[0] = "processing_active".equals(there.verdict());
                        if (another[0] && owner.equals(there.owner())) {
                            return new Sql.Claimed(Verdict.ofLost(there.attempts(), options.takeover).word, there.fence(), answer.answer(), there.leaseMs());
                        }
                    }
                    return answer;
                });
                answered++;
                Verdict verdict = Verdict.of(claimed.verdict());
                if (verdict == null) {
                    throw Reason.UNKNOWN_STATE.exception(null);
                }
                switch (verdict.then) {
                    case RUN, REPLAY -> {
                        span.verdict(verdict.told);
                        return new Claim(once, name, options, claimed, askedNs[0]);
                    }
                    case WAIT -> {
                        // A try without an answer may still be at work in its backend: then "active" means ourselves, and no look-up sees it yet.
                        boolean ourselves = tries[0] > answered && !another[0];
                        boolean again = ourselves ? retries.pause() : System.nanoTime() - waitUntil < 0 && retries.pauseUntil(waitUntil);
                        if (!again || retries.interrupted()) {
                            throw refusal(verdict.reason, claimed, null);
                        }
                    }
                    case FAIL -> throw refusal(verdict.reason, claimed, claimed.answer());
                    case REFUSE -> throw refusal(verdict.reason, claimed, null);
                }
            }
        } catch (OnceException failure) {
            span.verdict(failure.code());
            throw failure;
        } finally {
            retries.restore();
        }
    }

    private static OnceException refusal(Reason reason, Sql.Claimed claimed, Answer answer) {
        return reason.exception(null, null, new Stored(claimed.answer().status(), claimed.answer().traceparent()), answer);
    }

    private static Double seconds(Duration duration) {
        return duration == null ? null : duration.toMillis() / 1000.0;
    }

    Sql.Name name() {
        return name;
    }

    /**
     * Is the work this claim's to do? Else {@link #outcome()} is the stored answer.
     *
     * @return true: do the work, then report
     */
    public boolean mine() {
        return Verdict.of(claimed.verdict()).then == Verdict.Then.RUN;
    }

    /**
     * What the contract said.
     *
     * @return {@code new_claim}, {@code retryable_failure}, {@code processing_stale} (an attempt before fell silent, and may
     *     have had an effect) or {@code replay_success}
     */
    public String verdict() {
        return claimed.verdict();
    }

    /**
     * The fence of this attempt: pass it to systems that can compare it.
     *
     * @return above that of every attempt before
     */
    public int fence() {
        return claimed.fence();
    }

    /**
     * The stored answer.
     *
     * @return null where {@link #mine()}
     */
    public Answer outcome() {
        return mine() ? null : claimed.answer();
    }

    /**
     * Has the lease been lost? Then another attempt may run: stop the work if that is possible.
     *
     * @return true where the contract said so, or nothing was heard of it until the lease was over
     */
    public synchronized boolean lost() {
        return lost;
    }

    /**
     * The heartbeat, by hand.
     *
     * @return false: the intent is no longer this attempt's
     */
    public boolean renew() {
        return once.repeatable(name.tenant(), true, connection -> Sql.renew(connection, name, claimed.fence(), seconds(options.lease)));
    }

    private void tick(long leaseNs) {
        synchronized (this) {
            if (closed || reported || lost) {
                return;
            }
            if (leaseEndsNs - System.nanoTime() <= 0) {
                lose();
                return;
            }
            if (renewing) {
                return;
            }
            renewing = true;
        }
        Heart.RENEWALS.execute(() -> {
            try {
                beat(leaseNs);
            } finally {
                synchronized (this) {
                    renewing = false;
                }
            }
        });
    }

    /** The caller holds this claim's monitor. */
    private void lose() {
        lost = true;
        interrupted = true;
        worker.interrupt();
    }

    private void beat(long leaseNs) {
        boolean mine;
        long askedNs = System.nanoTime();
        try {
            Once quick = once.deadline(Duration.ofNanos(Math.max(1, leaseNs / 6)));
            mine = quick.repeatable(name.tenant(), false, connection -> Sql.renew(connection, name, claimed.fence(), seconds(options.lease)));
        } catch (RuntimeException unheard) {
            synchronized (this) {
                mine = leaseEndsNs - System.nanoTime() > 0;
            }
            if (mine) {
                return; // the next beat tries again
            }
        }
        synchronized (this) {
            if (closed || reported || lost) {
                return;
            }
            if (mine) {
                leaseEndsNs = askedNs + leaseNs;
            } else {
                lose();
            }
        }
    }

    /**
     * The work is done: stores its answer.
     *
     * @param answer for every later attempt
     * @return true: stored now; false: this very outcome was stored already by this attempt (a report sent twice)
     * @throws LeaseLostException where the fence is lost: discard the result
     */
    public boolean complete(Answer answer) {
        return report(() -> once.repeatable(name.tenant(), true, connection -> Sql.complete(connection, name, claimed.fence(), answer.asGiven())));
    }

    /**
     * The work failed for good: every later attempt gets this.
     *
     * @param answer as made by {@link Answer#failure}: see {@link FinalFailureException#answer()}
     * @return as {@link #complete}
     */
    public boolean fail(Answer answer) {
        return report(() -> once.repeatable(name.tenant(), true,
            connection -> Sql.fail(connection, name, claimed.fence(), false, answer.errorCode(), answer.errorMessage(), answer.asGiven())));
    }

    /**
     * The work certainly had no effect: the next attempt may run.
     *
     * @param code for programs
     * @param message for people, or null
     * @return as {@link #complete}
     */
    public boolean retryable(String code, String message) {
        return retryable(code, message, 0);
    }

    /** With the status that the work has answered, or 0. */
    boolean retryable(String code, String message, int status) {
        return unsaid(true, code, message, status);
    }

    /**
     * Whether the work had an effect is unknown: no attempt runs until that is known.
     *
     * @param code for programs
     * @param message for people, or null
     * @return as {@link #complete}
     */
    public boolean doubt(String code, String message) {
        return doubt(code, message, 0);
    }

    /** With the status that the work has answered, or 0. */
    boolean doubt(String code, String message, int status) {
        return unsaid(null, code, message, status);
    }

    private boolean unsaid(Boolean retryable, String code, String message, int status) {
        Answer answer = status < 100 || status > 599 ? Answer.empty() : Answer.of(status);
        return report(() -> once.repeatable(name.tenant(), true, connection -> Sql.fail(connection, name, claimed.fence(), retryable, code, message, answer)));
    }

    /**
     * The work certainly never started: gives the claim back, and this attempt is not counted.
     *
     * @return false: the intent is no longer this attempt's
     */
    public boolean release() {
        return report(() -> once.repeatable(name.tenant(), true, connection -> Sql.release(connection, name, claimed.fence())));
    }

    private boolean report(java.util.function.BooleanSupplier statement) {
        if (!mine()) {
            throw new IllegalStateException("the intent is finished: there is nothing to report");
        }
        synchronized (this) {
            reported = true; // from here on pgonce does not interrupt
            if (interrupted) {
                Thread.interrupted();
                interrupted = false;
            }
        }
        return statement.getAsBoolean();
    }

    /** Ends the heartbeat. A claim without a report is reported as in doubt. */
    @Override
    public void close() {
        boolean silent;
        synchronized (this) {
            silent = mine() && !reported && !closed;
            closed = true;
            if (beat != null) {
                beat.cancel(false);
            }
            if (interrupted) {
                Thread.interrupted();
                interrupted = false;
            }
        }
        if (silent && options.heartbeat) {
            doubt(StoredReason.NOT_REPORTED.code(), StoredReason.NOT_REPORTED.message());
        }
    }
}
