// SPDX-License-Identifier: PostgreSQL
package io.pgonce.testing;

import com.fasterxml.jackson.databind.JsonNode;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import javax.sql.DataSource;
import org.postgresql.ds.PGSimpleDataSource;

/** A private PostgreSQL with the contract and the table effect. */
public final class Server extends Child {
    public Server(String... arguments) {
        super("server.py", arguments);
    }

    public String url() {
        return url(said.get("host").asText(), said.get("port").asInt());
    }

    public String url(String host, int port) {
        return "jdbc:postgresql://" + host + ":" + port + "/" + said.get("database").asText() + "?sslmode=disable&gssEncMode=disable";
    }

    public Forwarder forwarder() {
        return new Forwarder(said.get("socket").asText(), said.get("port").asInt());
    }

    public static DataSource plain(String url) {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setUrl(url);
        source.setUser("postgres");
        return source;
    }

    public static HikariDataSource pool(String url, int size) {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(url);
        config.setUsername("postgres");
        config.setMaximumPoolSize(size);
        config.setMinimumIdle(0);
        config.setConnectionTimeout(10_000);
        return new HikariDataSource(config);
    }

    public List<List<Object>> rows(String sql) {
        try (Connection connection = plain(url()).getConnection(); Statement statement = connection.createStatement()) {
            List<List<Object>> rows = new ArrayList<>();
            if (statement.execute(sql)) {
                ResultSet result = statement.getResultSet();
                while (result.next()) {
                    List<Object> row = new ArrayList<>();
                    for (int i = 1; i <= result.getMetaData().getColumnCount(); i++) {
                        row.add(result.getObject(i));
                    }
                    rows.add(row);
                }
            }
            return rows;
        } catch (SQLException failure) {
            throw new IllegalStateException(sql, failure);
        }
    }

    public long count(String key) {
        return ((Number) rows("SELECT count(*) FROM effect WHERE key = '" + key + "'").get(0).get(0)).longValue();
    }

    /** Loses what it is told to lose. */
    public static final class Forwarder extends Child {
        Forwarder(String directory, int port) {
            super("forwarder.py", directory, String.valueOf(port));
        }

        public int port() {
            return said.get("port").asInt();
        }

        public JsonNode lose(String how, String text) {
            return tell(how + " " + text);
        }
    }
}
