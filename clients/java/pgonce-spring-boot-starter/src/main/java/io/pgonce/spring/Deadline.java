// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Tx;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Ends an attempt that takes too long: tells the client, cuts the transaction's connection off and interrupts the handler's thread. What
 * the handler has finished in time is not cut any more.
 */
final class Deadline implements AutoCloseable {
    /** One thread that never waits, and those that tell. */
    private static final ScheduledThreadPoolExecutor CLOCK = new ScheduledThreadPoolExecutor(1, work -> daemon(work, "pgonce-clock"));
    private static final ExecutorService TELLERS = Executors.newCachedThreadPool(work -> daemon(work, "pgonce-deadline"));

    static {
        CLOCK.setRemoveOnCancelPolicy(true);
    }

    private final Thread worker = Thread.currentThread();
    private final Runnable tell;
    private final ScheduledFuture<?> alarm;
    private boolean done;
    private boolean over;
    private Tx tx;

    /** ms 0: none. */
    Deadline(long ms, Runnable tell) {
        this.tell = tell;
        alarm = ms <= 0 ? null : CLOCK.schedule(() -> TELLERS.execute(this::end), ms, TimeUnit.MILLISECONDS);
    }

    private static Thread daemon(Runnable work, String name) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        return thread;
    }

    private synchronized void end() {
        if (done) {
            return;
        }
        over = true;
        try {
            tell.run();
        } finally {
            worker.interrupt();
            if (tx != null) {
                tx.abort();
            }
        }
    }

    /** The transaction that the handler works in; null: it has no transaction of pgonce. */
    synchronized void guards(Tx running) {
        tx = over ? null : running;
    }

    /** The handler has finished. False: too late. */
    synchronized boolean inTime() {
        done = true;
        return !over;
    }

    synchronized boolean isOver() {
        return over;
    }

    /** On the handler's thread, whose interrupt was ours. */
    @Override
    public void close() {
        if (alarm != null) {
            alarm.cancel(false);
        }
        if (!inTime()) {
            Thread.interrupted();
        }
    }
}
