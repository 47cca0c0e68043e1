// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Transactions;
import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.TransactionException;
import org.springframework.transaction.TransactionStatus;
import org.springframework.transaction.support.DefaultTransactionDefinition;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;

/**
 * Transactions of Spring's own manager, JDBC's or JPA's: what JdbcTemplate, repositories and @Transactional services do
 * in the effect joins them.
 */
public final class SpringTransactions implements Transactions {
    private final PlatformTransactionManager manager;
    private final DataSource source;

    /**
     * Over a manager.
     *
     * @param manager that of the effect
     * @param source the DataSource that the manager's transactions are on
     */
    public SpringTransactions(PlatformTransactionManager manager, DataSource source) {
        this.manager = manager;
        this.source = source;
    }

    @Override
    public Open begin(int isolation) throws SQLException {
        if (TransactionSynchronizationManager.isActualTransactionActive()) {
            throw new IllegalStateException(
                "a transaction is open: run begins its own, since it has to repeat and to commit it. Call run from outside of @Transactional");
        }
        DefaultTransactionDefinition definition = new DefaultTransactionDefinition();
        definition.setName("pgonce");
        definition.setIsolationLevel(isolation == Connection.TRANSACTION_NONE ? TransactionDefinition.ISOLATION_DEFAULT : isolation);
        TransactionStatus status;
        try {
            status = manager.getTransaction(definition);
        } catch (TransactionException failure) {
            throw asSql(failure, "08001");
        }
        try {
            Connection connection = DataSourceUtils.getConnection(source);
            if (!DataSourceUtils.isConnectionTransactional(connection, source)) {
                DataSourceUtils.releaseConnection(connection, source);
                throw new IllegalStateException("the transaction manager's transactions are not on this DataSource");
            }
            return new Spring(status, connection);
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
        private final Connection connection;
        private boolean committing = true;

        Spring(TransactionStatus status, Connection connection) {
            this.status = status;
            this.connection = connection;
        }

        @Override
        public Connection connection() {
            return connection;
        }

        @Override
        public boolean commitTravels() {
            // Not where something is to happen before it that the manager knows of: a synchronization, a listener, JPA's flush.
            return manager instanceof DataSourceTransactionManager jdbc && jdbc.getTransactionExecutionListeners().isEmpty()
                && (!TransactionSynchronizationManager.isSynchronizationActive() || TransactionSynchronizationManager.getSynchronizations().isEmpty());
        }

        @Override
        public void flush() {
            status.flush();
        }

        @Override
        public boolean doomed() {
            return status.isRollbackOnly();
        }

        @Override
        public void commit() throws SQLException {
            if (!commitTravels() && TransactionSynchronizationManager.isSynchronizationActive()) {
                committing = false;
                // Behind all others: where it is called, none of them has thrown.
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
            DataSourceUtils.releaseConnection(connection, source);
            if (!status.isCompleted()) {
                try {
                    manager.rollback(status);
                } catch (RuntimeException lost) {
                    // The transaction ends with its connection.
                    return;
                }
            }
        }
    }
}
