// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.SlotClosedException;
import io.pgonce.Transactions;
import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;
import org.springframework.jdbc.datasource.ConnectionHolder;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.TransactionException;
import org.springframework.transaction.TransactionStatus;
import org.springframework.transaction.TransactionUsageException;
import org.springframework.transaction.support.DefaultTransactionDefinition;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/**
 * Transactions of Spring's own manager, JDBC's or JPA's: what JdbcTemplate, repositories and @Transactional services do
 * in the effect joins them, and cannot end them. Over a {@link NodesDataSource} they are those of the tenant's node. In a test that is {@code @Transactional} they are savepoints in that test's own.
 */
public final class SpringTransactions implements Transactions {
    private final PlatformTransactionManager manager;
    private final DataSource source;
    /** Null: one database. */
    private final NodesDataSource nodes;

    /**
     * Over a manager.
     *
     * @param manager that of the effect
     * @param source the DataSource that the manager's transactions are on
     */
    public SpringTransactions(PlatformTransactionManager manager, DataSource source) {
        this.manager = manager;
        this.source = source;
        this.nodes = NodesDataSource.of(source);
    }

    @Override
    public boolean routes() {
        return nodes != null;
    }

    @Override
    public Transactions at(String tenant, SlotClosedException closed) {
        if (nodes == null) {
            return this;
        }
        DataSource node = nodes.node(tenant, closed);
        return isolation -> {
            DataSource outer = nodes.bind(node);
            boolean begun = false;
            try {
                Open open = begin(isolation, () -> nodes.bind(outer));
                begun = true;
                return open;
            } finally {
                if (!begun) {
                    nodes.bind(outer);
                }
            }
        };
    }

    @Override
    public Open begin(int isolation) throws SQLException {
        return begin(isolation, () -> { });
    }

    private Open begin(int isolation, Runnable afterwards) throws SQLException {
        boolean joins = TransactionSynchronizationManager.isActualTransactionActive();
        if (joins && !TestManaged.isActive()) {
            throw new IllegalStateException(
                "a transaction is open: run begins its own, since it has to repeat and to commit it. Call run from outside of @Transactional");
        }
        DefaultTransactionDefinition definition = new DefaultTransactionDefinition();
        definition.setName("pgonce");
        if (joins) {
            definition.setPropagationBehavior(TransactionDefinition.PROPAGATION_NESTED);
        } else if (isolation != Connection.TRANSACTION_NONE) {
            definition.setIsolationLevel(isolation);
        }
        TransactionStatus status;
        try {
            status = manager.getTransaction(definition);
        } catch (TransactionUsageException mistake) {
            throw new IllegalStateException(mistake);
        } catch (TransactionException failure) {
            throw asSql(failure, "08001");
        }
        if (!(TransactionSynchronizationManager.getResource(source) instanceof ConnectionHolder own)) {
            manager.rollback(status);
            throw new IllegalStateException("the transaction manager's transactions are not on this DataSource");
        }
        try {
            return new Spring(status, own, joins, afterwards);
        } catch (RuntimeException failure) {
            manager.rollback(status);
            throw failure;
        }
    }

    private static SQLException asSql(Throwable failure, String otherwise) {
        for (Throwable each = failure; each != null; each = each.getCause()) {
            if (each instanceof SQLException sql && sql.getSQLState() != null) {
                return new SQLException(failure.getMessage(), sql.getSQLState(), failure);
            }
        }
        return new SQLException(failure.getMessage(), otherwise, failure);
    }

    private final class Spring implements Open {
        private final TransactionStatus status;
        private final ConnectionHolder own;
        private final GuardedHolder guarded;
        private final Connection connection;
        private final boolean joined;
        private final Runnable afterwards;
        private boolean committing = true;

        Spring(TransactionStatus status, ConnectionHolder own, boolean joined, Runnable afterwards) {
            this.afterwards = afterwards;
            this.status = status;
            this.own = own;
            this.connection = own.getConnection();
            this.joined = joined;
            this.guarded = new GuardedHolder(own);
            rebind(guarded);
        }

        /** Code that asks Spring for the connection of this transaction gets this connection. */
        private void rebind(ConnectionHolder holder) {
            TransactionSynchronizationManager.unbindResource(source);
            TransactionSynchronizationManager.bindResource(source, holder);
        }

        @Override
        public Connection connection() {
            return connection;
        }

        @Override
        public boolean commitTravels() {
            // Not where something is to happen before it that the manager knows of: a synchronization, a listener, JPA's flush.
            return !joined && manager instanceof DataSourceTransactionManager jdbc && jdbc.getTransactionExecutionListeners().isEmpty()
                && (!TransactionSynchronizationManager.isSynchronizationActive() || TransactionSynchronizationManager.getSynchronizations().isEmpty());
        }

        @Override
        public void flush() {
            status.flush();
            guarded.restoreRole();
        }

        @Override
        public boolean doomed() {
            return status.isRollbackOnly();
        }

        @Override
        public void commit() throws SQLException {
            if (!joined && !commitTravels() && TransactionSynchronizationManager.isSynchronizationActive()) {
                committing = false;
                // After all others: if it is called, no other one has thrown.
                TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
                    @Override
                    public void beforeCommit(boolean readOnly) {
                        committing = true;
                    }
                });
            }
            try {
                manager.commit(status);
            } catch (TransactionException failure) {
                throw asSql(failure, null);
            }
        }

        @Override
        public boolean committing() {
            return committing;
        }

        @Override
        public void close() {
            try {
                if (!status.isCompleted()) {
                    manager.rollback(status);
                }
            } catch (RuntimeException lost) {
                return; // the transaction ends with its connection
            } finally {
                if (joined) {
                    rebind(own);
                }
                afterwards.run();
            }
        }
    }
}
