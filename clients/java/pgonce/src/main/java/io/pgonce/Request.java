// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Objects;

/**
 * The request that a key is first used with. The database computes its fingerprint, in the statement that starts the
 * intent: one rule for all languages and doors, and no salt leaves it.
 */
public final class Request {
    /** The SQL that computes it, and what its parameters are. */
    final String sql;
    private final Object[] values;

    private Request(String sql, Object... values) {
        this.sql = sql;
        this.values = values;
    }

    /**
     * Exactly these bytes.
     *
     * @param bytes not copied: do not change them
     * @return the request
     */
    public static Request bytes(byte[] bytes) {
        return new Request("once.fingerprint(?::bytea, ?::text)", Objects.requireNonNull(bytes), TENANT);
    }

    /**
     * Exactly this text: its UTF-8. Equal to {@link #bytes(byte[])} of that.
     *
     * @param text a text
     * @return the request
     */
    public static Request text(String text) {
        return new Request("once.fingerprint(?::text, ?::text)", Objects.requireNonNull(text), TENANT);
    }

    /**
     * A JSON value, however it is spelled.
     *
     * @param json a JSON text
     * @return the request
     */
    public static Request json(String json) {
        return new Request("once.fingerprint(?::jsonb, ?::text)", Objects.requireNonNull(json), TENANT);
    }

    /**
     * A request of HTTP, as the gateway sees it (docs/fingerprint.md).
     *
     * @param method as in the request line
     * @param target the Host header in lower case, then path and query as they came
     * @param contentType the header's value, or null
     * @param body its bytes; not copied
     * @param canonicalJson is another spelling of the same JSON the same request?
     * @return the request
     */
    public static Request http(String method, String target, String contentType, byte[] body, boolean canonicalJson) {
        return new Request("once.request_fingerprint(?::text, ?::text, ?::text, ?::bytea, ?::text, ?::boolean)", method, target,
            contentType, body == null ? new byte[0] : body, TENANT, canonicalJson);
    }

    /**
     * A fingerprint that is known already.
     *
     * @param fingerprint 16 to 64 bytes, as the contract takes them
     * @return the request
     */
    public static Request fingerprint(byte[] fingerprint) {
        return new Request("?::bytea", Objects.requireNonNull(fingerprint));
    }

    /** Stands for the tenant, which is not known yet. */
    private static final Object TENANT = new Object();

    /** Sets its parameters, from `at` on; returns the number of the next one. */
    int bind(PreparedStatement statement, int at, String tenant) throws SQLException {
        for (Object value : values) {
            if (value == TENANT) {
                statement.setString(at++, tenant);
            } else if (value instanceof byte[] bytes) {
                statement.setBytes(at++, bytes);
            } else if (value instanceof Boolean flag) {
                statement.setBoolean(at++, flag);
            } else {
                statement.setString(at++, (String) value);
            }
        }
        return at;
    }
}
