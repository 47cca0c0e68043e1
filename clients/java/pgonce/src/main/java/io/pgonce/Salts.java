// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.Collections;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The salts of tenants, for fingerprints that this library computes itself (docs/reference/fingerprint.md): in the database they
 * cost as much as half of start. Remembered by connection: another one may lead to another database, as after a restore.
 */
final class Salts {
    private static final int TENANTS_MAX = 1000;

    private static final Map<Connection, Map<String, byte[]>> KNOWN = Collections.synchronizedMap(new WeakHashMap<>());

    private Salts() {
    }

    /** Beneath a pool's proxy, which is another one each time, is the driver's. */
    private static Connection own(Connection connection) throws SQLException {
        return connection.isWrapperFor(Connection.class) ? connection.unwrap(Connection.class) : connection;
    }

    static byte[] of(Connection connection, String tenant) throws SQLException {
        Map<String, byte[]> salts = KNOWN.get(own(connection));
        return salts == null ? null : salts.get(tenant);
    }

    static void remember(Connection connection, String tenant, byte[] salt) throws SQLException {
        Map<String, byte[]> salts = KNOWN.computeIfAbsent(own(connection), any -> new ConcurrentHashMap<>());
        if (salts.size() >= TENANTS_MAX) {
            salts.clear();
        }
        salts.put(tenant, salt);
    }

    static byte[] fingerprint(byte[] salt, byte[] hashed) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update(salt);
            return digest.digest(hashed);
        } catch (NoSuchAlgorithmException absent) {
            throw new IllegalStateException(absent); // every Java has it
        }
    }
}
