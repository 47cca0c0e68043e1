// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Arrays;
import java.util.Objects;

/**
 * The request that a key is first used with. Its fingerprint is that of docs/reference/fingerprint.md, one rule for all languages
 * and doors. That of JSON is computed by the database, which has the canonical form.
 */
public final class Request {
    /** The SQL that computes it, and what its parameters are. */
    final String sql;
    /** What is hashed after the tenant's salt; null: only the database can tell. */
    final byte[] hashed;
    private final Object[] values;

    private Request(byte[] hashed, String sql, Object... values) {
        this.hashed = hashed;
        this.sql = sql;
        this.values = values;
    }

    private static byte[] hashed(char kind, byte[] bytes) {
        return ByteBuffer.allocate(1 + bytes.length).put((byte) kind).put(bytes).array();
    }

    /**
     * Exactly these bytes.
     *
     * @param bytes not copied: do not change them
     * @return the request
     */
    public static Request bytes(byte[] bytes) {
        return new Request(hashed('b', bytes), Statements.PRINT_BYTES, Objects.requireNonNull(bytes), TENANT);
    }

    /**
     * Exactly this text: its UTF-8. Equal to {@link #bytes(byte[])} of that.
     *
     * @param text a text
     * @return the request
     */
    public static Request text(String text) {
        return new Request(hashed('b', text.getBytes(StandardCharsets.UTF_8)), Statements.PRINT_TEXT, Objects.requireNonNull(text), TENANT);
    }

    /**
     * A JSON value, however it is spelled.
     *
     * @param json a JSON text
     * @return the request
     */
    public static Request json(String json) {
        return new Request(null, Statements.PRINT_JSON, Objects.requireNonNull(json), TENANT);
    }

    /**
     * A request of HTTP, as the gateway sees it (docs/reference/fingerprint.md).
     *
     * @param method as in the request line
     * @param target the Host header in lower case, then path and query as they came
     * @param contentType the header's value, or null
     * @param body its bytes; not copied
     * @param canonicalJson is another spelling of the same JSON the same request?
     * @return the request
     */
    public static Request http(String method, String target, String contentType, byte[] body, boolean canonicalJson) {
        byte[] bytes = body == null ? new byte[0] : body;
        byte[][] parts = {method.getBytes(StandardCharsets.UTF_8), (contentType == null ? "" : contentType).getBytes(StandardCharsets.UTF_8), bytes,
            target.getBytes(StandardCharsets.UTF_8)};
        ByteBuffer hashed = ByteBuffer.allocate(1 + Arrays.stream(parts).mapToInt(part -> Long.BYTES + part.length).sum()).put((byte) 'r');
        for (byte[] part : parts) {
            hashed.putLong(part.length).put(part);
        }
        return new Request(canonicalJson ? null : hashed.array(), Statements.PRINT_HTTP,
            method, target, contentType, bytes, TENANT, canonicalJson);
    }

    /**
     * A fingerprint that is known already.
     *
     * @param fingerprint 16 to 64 bytes, as the contract takes them
     * @return the request
     */
    public static Request fingerprint(byte[] fingerprint) {
        return new Request(null, "?::bytea", Objects.requireNonNull(fingerprint));
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
