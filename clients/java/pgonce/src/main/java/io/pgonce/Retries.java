// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.SQLTransientConnectionException;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/** What an error means for a retry, and how long to pause before it. Decides by SQLSTATE alone. */
final class Retries {
    // spec: retries
    /** The longest first pause. */
    static final long BACKOFF_FIRST_MS = 5;
    /** The longest pause. */
    static final long BACKOFF_MAX_MS = 1000;
    /** The default deadline of a call. */
    static final long DEADLINE_MS = 30000;
    // end of spec
    private static final int CAUSES_MAX = 64;

    private final long deadlineNs;
    private int tries;
    private boolean interrupted;

    Retries(Duration deadline) {
        deadlineNs = System.nanoTime() + deadline.toNanos();
    }

    boolean over() {
        return deadlineNs - System.nanoTime() <= 0;
    }

    /** A pause before another attempt. False: the deadline passes first. */
    boolean pause() {
        long pauseMs = nextMs();
        return (deadlineNs - System.nanoTime()) / 1_000_000 > pauseMs && sleep(pauseMs);
    }

    /** A pause of a duplicate that waits for a running attempt, at most until then (System.nanoTime()), even past the deadline. */
    boolean pauseUntil(long endNs) {
        long leftNs = endNs - System.nanoTime();
        return leftNs > 0 && sleep(Math.min(nextMs(), (leftNs + 999_999) / 1_000_000));
    }

    /** Exponential, capped, full jitter (Brooker, "Exponential Backoff And Jitter"). */
    private long nextMs() {
        long ceiling = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << Math.min(tries++, 20));
        return ThreadLocalRandom.current().nextLong(ceiling + 1);
    }

    /** An interrupt ends it, and is kept: see {@link #interrupted()}. */
    private boolean sleep(long pauseMs) {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException stop) {
            interrupted = true;
        }
        return true;
    }

    /** Takes the thread's interrupt away, so that it does not meet a socket or a pool; {@link #restore()} gives it back. */
    void shield() {
        interrupted |= Thread.interrupted();
    }

    boolean interrupted() {
        return interrupted;
    }

    void restore() {
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** The SQLSTATE in a chain of causes, since frameworks wrap; null without one. */
    static String sqlState(Throwable failure) {
        int left = CAUSES_MAX;
        for (Throwable each = failure; each != null && left-- > 0; each = each.getCause()) {
            if (each instanceof SQLException sql && sql.getSQLState() != null) {
                return sql.getSQLState();
            }
        }
        return null;
    }

    /** Has a pool given no connection in time, though the database is there? */
    static boolean isPoolFull(Throwable failure) {
        int left = CAUSES_MAX;
        for (Throwable each = failure; each != null && left-- > 0; each = each.getCause()) {
            if (each instanceof SQLTransientConnectionException full) {
                return full.getSQLState() == null;
            }
        }
        return false;
    }

    static boolean isRace(String sqlState) {
        return "40001".equals(sqlState) || "40P01".equals(sqlState);
    }

    /** The connection is gone, or the server is ending it. */
    static boolean isLost(String sqlState) {
        return sqlState != null && (sqlState.startsWith("08") || sqlState.startsWith("57P"));
    }

    static boolean isClosed(Connection connection) {
        try {
            return connection.isClosed();
        } catch (SQLException failure) {
            return true;
        }
    }

    /**
     * Does an error in answer to COMMIT say for certain that nothing was committed? What the server says of a statement
     * does; what it says of the session (57), the system (58), its resources (53) or itself (XX) need not.
     */
    static boolean isRolledBack(String sqlState) {
        return sqlState != null && !sqlState.startsWith("08") && !sqlState.startsWith("57") && !sqlState.startsWith("58")
            && !sqlState.startsWith("53") && !sqlState.startsWith("XX");
    }
}
