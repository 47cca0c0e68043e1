// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/**
 * The durable change that an intent makes, once.
 *
 * @param <E> what it throws besides; it comes out of {@code run} as it is, after ROLLBACK
 */
@FunctionalInterface
public interface Effect<E extends Exception> {
    /**
     * Runs in the transaction. It may run again, where the one before was rolled back by a race or a lost connection.
     *
     * @param tx the transaction
     * @return the answer; not null
     * @throws E to roll back; a {@link FinalFailureException} fails for good
     */
    Answer apply(Tx tx) throws E;
}
