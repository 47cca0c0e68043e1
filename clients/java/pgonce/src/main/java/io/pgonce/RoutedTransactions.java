// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.util.Objects;

/** Transactions on connections of the DataSource that a function gives for the tenant. */
final class RoutedTransactions implements Transactions {
    private final Route route;

    RoutedTransactions(Route route) {
        this.route = Objects.requireNonNull(route);
    }

    @Override
    public Open begin(int isolation) {
        throw new IllegalStateException("whose transaction is it? Several nodes share the tenants");
    }

    @Override
    public boolean routes() {
        return true;
    }

    @Override
    public Transactions at(String tenant, SlotClosedException closed) {
        return new JdbcTransactions(Objects.requireNonNull(route.node(tenant, closed), "the function gave no DataSource for the tenant"));
    }

    /** Carries what a function has thrown: no node has seen the call. */
    static final class Unrouted extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Unrouted(RuntimeException own) {
            super(null, own, false, false);
        }

        RuntimeException own() {
            return (RuntimeException) getCause();
        }
    }
}
