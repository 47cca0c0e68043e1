// SPDX-License-Identifier: PostgreSQL
package io.pgonce.testing;

import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.UUID;

/** What the effects of tests do. */
public final class Effects {
    private Effects() {
    }

    public static String newKey() {
        return "k-" + UUID.randomUUID();
    }

    public static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    public static void insert(Connection connection, String key) throws SQLException {
        execute(connection, "INSERT INTO effect (key) VALUES ('" + key + "')");
    }
}
