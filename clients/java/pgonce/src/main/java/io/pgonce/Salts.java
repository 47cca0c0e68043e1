// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The salts of tenants, for fingerprints that this library computes itself (docs/fingerprint.md): in the database they
 * cost as much as half of start. Remembered until a connection is lost: the next one may lead to another database, as
 * after a restore.
 */
final class Salts {
    private static final int TENANTS_MAX = 1000;

    private volatile Map<String, byte[]> byTenant = new ConcurrentHashMap<>();

    byte[] of(String tenant) {
        return byTenant.get(tenant);
    }

    void remember(String tenant, byte[] salt) {
        if (byTenant.size() >= TENANTS_MAX) {
            forget();
        }
        byTenant.put(tenant, salt);
    }

    void forget() {
        byTenant = new ConcurrentHashMap<>();
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
