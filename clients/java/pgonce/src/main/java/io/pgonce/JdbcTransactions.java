// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;

/** Transactions on connections of a DataSource, each given back as it came. */
final class JdbcTransactions implements Transactions {
    private final DataSource source;

    JdbcTransactions(DataSource source) {
        this.source = source;
    }

    @Override
    public Open begin(int isolation) throws SQLException {
        Connection connection = source.getConnection();
        try {
            return new Jdbc(connection, isolation);
        } catch (SQLException | RuntimeException failure) {
            try {
                connection.close();
            } catch (SQLException second) {
                failure.addSuppressed(second);
            }
            throw failure;
        }
    }

    private static final class Jdbc implements Open {
        private final Connection connection;
        private final boolean autoCommit;
        private final int isolation;
        private boolean committed;

        Jdbc(Connection connection, int wanted) throws SQLException {
            this.connection = connection;
            autoCommit = connection.getAutoCommit();
            connection.setAutoCommit(false);
            isolation = wanted == Connection.TRANSACTION_NONE ? wanted : connection.getTransactionIsolation();
            if (wanted != isolation) {
                connection.setTransactionIsolation(wanted);
            }
        }

        @Override
        public Connection connection() {
            return connection;
        }

        @Override
        public boolean commitTravels() {
            return true;
        }

        @Override
        public void flush() {
            // Nothing is held back.
        }

        @Override
        public boolean doomed() {
            return false;
        }

        @Override
        public void commit() throws SQLException {
            committed = true;
            connection.commit(); // no round trip where COMMIT has travelled
        }

        @Override
        public void close() {
            // The pool checks returned connections, and closes a connection that cannot be reset.
            try (connection) {
                if (!connection.isClosed()) {
                    if (!committed) {
                        connection.rollback();
                    }
                    if (isolation != Connection.TRANSACTION_NONE) {
                        connection.setTransactionIsolation(isolation);
                    }
                    connection.setAutoCommit(autoCommit);
                }
            } catch (SQLException lost) {
                // The transaction ends with its connection.
                return;
            }
        }
    }
}
