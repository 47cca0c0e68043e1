// SPDX-License-Identifier: PostgreSQL
/** Retries made harmless: one durable effect and one answer for each idempotency key, over JDBC. {@link io.pgonce.Once} is the door. */
package io.pgonce;
