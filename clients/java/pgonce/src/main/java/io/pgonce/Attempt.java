// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** The intent that a thread works for: whose events are that say nothing else. */
final class Attempt {
    private static final ThreadLocal<Sql.Name> CURRENT = new ThreadLocal<>();

    private Attempt() {
    }

    /** Null: of none. */
    static Sql.Name current() {
        return CURRENT.get();
    }

    interface Work<T, E extends Exception> {
        T run() throws E;
    }

    /** An attempt may be within another one. */
    static <T, E extends Exception> T of(Sql.Name intent, Work<T, E> work) throws E {
        Sql.Name outer = CURRENT.get();
        CURRENT.set(intent);
        try {
            return work.run();
        } finally {
            if (outer == null) {
                CURRENT.remove();
            } else {
                CURRENT.set(outer);
            }
        }
    }
}
