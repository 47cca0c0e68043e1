// SPDX-License-Identifier: PostgreSQL

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.Nodes;
import io.pgonce.Once;
import io.pgonce.Route;
import io.pgonce.SlotClosedException;
import java.util.ArrayList;
import java.util.List;
import javax.sql.DataSource;

/** Several nodes of spec/cases/nodes.json, and the router that a case asks for. */
final class Shared implements Route, AutoCloseable {
    private static final int CONNECTIONS = 8;

    private final List<DataSource> nodes = new ArrayList<>();
    private final String router;
    private final Route asking;
    private final ObjectNode routed = Door.JSON.createObjectNode();

    private Shared(JsonNode order) {
        order.get("dsns").forEach(dsn -> nodes.add(Door.countable(CONNECTIONS, dsn.asText())));
        router = order.get("router").asText();
        asking = Nodes.of(nodes.toArray(new DataSource[0]));
        routed.putArray("tenants");
        routed.putArray("refusals");
    }

    static Shared of(JsonNode order) {
        return new Shared(order);
    }

    /** Is it made with one pool, as if there were no other node? */
    boolean isPlain() {
        return router.equals("pool");
    }

    DataSource first() {
        return nodes.get(0);
    }

    /** What an application hands to the client. */
    Route route() {
        return router.equals("nodes") ? asking : this;
    }

    Once once() {
        return isPlain() ? Once.over(first()) : Once.over(route());
    }

    /** A function of the agent's own. */
    @Override
    public synchronized DataSource node(String tenant, SlotClosedException closed) {
        routed.withArray("tenants").add(tenant);
        if (closed == null) {
            return first();
        }
        routed.withArray("refusals").addArray().add(closed.slot()).add(closed.epoch());
        return nodes.get(1);
    }

    synchronized ObjectNode routed() {
        return routed;
    }

    @Override
    public void close() {
        for (DataSource node : nodes) {
            ((HikariDataSource) node).close();
        }
    }
}
