// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Once;
import io.pgonce.Tx;
import javax.sql.DataSource;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/** pgonce in the transaction that Spring has open: emit, receive and lock in a @Transactional method. */
public final class OnceTransaction {
    private final Once once;
    private final DataSource source;

    OnceTransaction(Once once, DataSource source) {
        this.once = once;
        this.source = source;
    }

    /**
     * The transaction that is open. Before it commits it is looked at, so that an SQL error which somebody has swallowed
     * is an error and not a ROLLBACK in silence. Its events are of the intent and the tenant whose attempt runs on this thread.
     *
     * @return valid until it ends
     */
    public Tx current() {
        return current(once);
    }

    /**
     * The transaction that is open, for a tenant.
     *
     * @param tenant whose keys and events these are
     * @return valid until it ends
     */
    public Tx current(String tenant) {
        return current(once.tenant(tenant));
    }

    private Tx current(Once door) {
        if (!TransactionSynchronizationManager.isActualTransactionActive()) {
            throw new IllegalStateException("no transaction is open: what this guards would not be in it. Is @Transactional missing?");
        }
        Tx tx = door.in(DataSourceUtils.getConnection(source));
        TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
            @Override
            public void beforeCommit(boolean readOnly) {
                tx.check();
            }
        });
        return tx;
    }
}
