// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.TransactionControl;
import java.sql.SQLException;
import org.springframework.jdbc.UncategorizedSQLException;
import org.springframework.jdbc.datasource.ConnectionHolder;

/** What Spring gives its connection from while an effect runs: one that cannot end the transaction. The manager keeps its own. */
final class GuardedHolder extends ConnectionHolder {
    private final ConnectionHolder own;
    private final TransactionControl control;

    GuardedHolder(ConnectionHolder own) {
        this(own, new TransactionControl(own.getConnection()));
    }

    private GuardedHolder(ConnectionHolder own, TransactionControl control) {
        super(control.connection(), true);
        this.own = own;
        this.control = control;
        setSynchronizedWithTransaction(own.isSynchronizedWithTransaction());
        if (own.hasTimeout()) {
            setTimeoutInMillis(own.getTimeToLiveInMillis());
        }
        if (own.isRollbackOnly()) {
            super.setRollbackOnly();
        }
    }

    void restoreRole() {
        try {
            control.restoreRole();
        } catch (SQLException failure) {
            throw new UncategorizedSQLException("SET LOCAL ROLE", null, failure);
        }
    }

    @Override
    public void setRollbackOnly() {
        super.setRollbackOnly();
        own.setRollbackOnly();
    }
}
