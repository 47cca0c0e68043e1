// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.testing.Cases;
import io.pgonce.testing.Server;
import io.pgonce.testing.SqlCase;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** clients/conformance/sql.json through the JDBC door. */
class ConformanceTest {
    private static Server server;
    private static HikariDataSource pool;

    @BeforeAll
    static void start() {
        server = new Server();
        pool = Server.pool(server.url(), 8);
    }

    @AfterAll
    static void stop() {
        pool.close();
        server.close();
    }

    @TestFactory
    Stream<DynamicTest> sql() {
        return Cases.of("sql.json", "java").stream().map(each -> DynamicTest.dynamicTest(each.get("name").asText(), () -> {
            try (SqlCase running = new SqlCase(server, Once.over(pool), pool, each)) {
                running.run();
            }
            Cases.passed("java", "sql/" + each.get("name").asText());
        }));
    }
}
