// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.sql.Connection;
import java.sql.SQLException;

/**
 * Where transactions come from: the application's own pool, or the transaction manager of its framework. This library
 * has neither.
 */
public interface Transactions {
    /**
     * Begins a transaction.
     *
     * @param isolation one of {@link Connection}'s, or {@link Connection#TRANSACTION_NONE} for the default
     * @return to be closed by the caller
     * @throws SQLException where there is no connection
     */
    Open begin(int isolation) throws SQLException;

    /**
     * Does {@link #at} look at the tenant? Then a call that a node refuses, because it does not serve the tenant, is sent once more.
     *
     * @return false where all tenants have the same transactions
     */
    default boolean routes() {
        return false;
    }

    /**
     * The transactions of the node that serves a tenant. The caller gets its exceptions unchanged, and nothing was done.
     *
     * @param tenant whose intent, claim or message it is
     * @param closed null, or with what the node has just refused this call that was given before
     * @return whose {@link #begin} is called
     */
    default Transactions at(String tenant, SlotClosedException closed) {
        return this;
    }

    /** A transaction that is open. */
    interface Open extends AutoCloseable {
        /**
         * Its connection, with autocommit off.
         *
         * @return not to be closed, committed or rolled back by the caller
         * @throws SQLException where it is lost
         */
        Connection connection() throws SQLException;

        /**
         * May COMMIT travel with the last statement, in one round trip? Not if a framework has work to do
         * before it.
         *
         * @return whether {@link #commit()} is told of a COMMIT that was sent already
         */
        boolean commitTravels();

        /** Sends what the framework still holds back (JPA's flush). */
        void flush();

        /**
         * Has the framework doomed the transaction, so that only ROLLBACK is left?
         *
         * @return true where {@link #commit()} would fail
         */
        boolean doomed();

        /**
         * COMMIT; where {@link #commitTravels()}, it has been sent.
         *
         * @throws SQLException where it failed, or its acknowledgement was lost
         */
        void commit() throws SQLException;

        /**
         * Has {@link #commit()}, which has thrown, come so far as COMMIT?
         *
         * @return false where work of the framework's before it has failed, so that nothing was committed for certain
         */
        default boolean committing() {
            return true;
        }

        /** ROLLBACK where it was not committed, and gives the connection back. Never throws. */
        @Override
        void close();
    }
}
