// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static io.pgonce.testing.Effects.insert;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pgonce.testing.Server;
import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;

/** Tests with a private server, one for each class. */
abstract class WithServer {
    static final Request REQUEST = Request.json("{\"cart\": 7}");
    static final Claim.Options UNATTENDED = new Claim.Options(null, null, null, null, false);
    static final Duration PATIENCE = Duration.ofSeconds(20);
    static Server server;
    static DataSource direct;

    @BeforeAll
    static void start() {
        server = new Server();
        direct = Server.plain(server.url());
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    static Answer place(Once once, String key) throws SQLException {
        return once.run("orders", key, REQUEST, tx -> {
            insert(tx.connection(), key);
            return Answer.of(201).text("placed");
        });
    }

    static void await(String sql) throws Exception {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!Boolean.TRUE.equals(server.rows(sql).get(0).get(0))) {
            assertTrue(System.nanoTime() < end, sql);
            TimeUnit.MILLISECONDS.sleep(10);
        }
    }
}
