// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Nodes;
import io.pgonce.Once;
import io.pgonce.Route;
import io.pgonce.SlotClosedException;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.SQLFeatureNotSupportedException;
import java.util.Objects;
import java.util.function.Supplier;
import javax.sql.DataSource;
import org.springframework.jdbc.datasource.AbstractDataSource;

/**
 * Several nodes that share the tenants, as the one DataSource of an application: its transaction manager, JdbcTemplate and JPA use it. While an attempt of pgonce runs,
 * the connections of its thread are those of its tenant's node.
 *
 * <pre>{@code
 * @Bean
 * DataSource nodes() {
 *     return new NodesDataSource(Nodes.of(first, second), () -> currentUser());
 * }
 * }</pre>
 */
public final class NodesDataSource extends AbstractDataSource {
    private final Route route;
    private final Supplier<String> others;
    private final ThreadLocal<DataSource> current = new ThreadLocal<>();

    /**
     * Over nodes.
     *
     * @param route {@link Nodes#of}, or a function of the application's
     * @param others whose connection it is where no attempt of pgonce runs on the thread: a tenant, or null: that is refused
     */
    public NodesDataSource(Route route, Supplier<String> others) {
        this.route = Objects.requireNonNull(route);
        this.others = Objects.requireNonNull(others);
    }

    /** Beneath what an application wraps around it, too; null: this is another one. */
    static NodesDataSource of(DataSource source) {
        try {
            return source.isWrapperFor(NodesDataSource.class) ? source.unwrap(NodesDataSource.class) : null;
        } catch (SQLException none) {
            return null;
        }
    }

    DataSource node(String tenant, SlotClosedException closed) {
        return Objects.requireNonNull(route.node(tenant, closed), "the function gave no DataSource for the tenant");
    }

    /** From now on the thread's; null: no node. Returns which it was. */
    DataSource bind(DataSource node) {
        DataSource before = current.get();
        if (node == null) {
            current.remove();
        } else {
            current.set(node);
        }
        return before;
    }

    @Override
    public Connection getConnection() throws SQLException {
        DataSource node = current.get();
        if (node == null) {
            String tenant = Once.tenantHere() == null ? others.get() : Once.tenantHere();
            if (tenant == null) {
                throw new IllegalStateException("whose connection is it? Several nodes share the tenants, and no attempt of pgonce runs on this thread");
            }
            node = node(tenant, null);
        }
        return node.getConnection();
    }

    @Override
    public Connection getConnection(String username, String password) throws SQLException {
        throw new SQLFeatureNotSupportedException("each node has its own users");
    }
}
