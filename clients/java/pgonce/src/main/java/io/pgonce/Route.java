// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import javax.sql.DataSource;

/**
 * In place of a DataSource, where several nodes share the tenants (docs/how/scale.md): gives that of the node which serves a tenant.
 * {@link Nodes} is one that asks the nodes.
 */
@FunctionalInterface
public interface Route {
    /**
     * Called for each transaction and each call, by any thread. The caller gets its exceptions unchanged, and nothing was done.
     *
     * @param tenant whose intent, claim or message it is
     * @param closed null, or with what the node has just refused this call whose DataSource this function gave before
     * @return never null
     */
    DataSource node(String tenant, SlotClosedException closed);
}
