// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/**
 * What an effect throws whose outcome is unknown: it is taken back as far as it is in the transaction, and the intent
 * is put in doubt there. It comes out of {@code run} as it is.
 */
public class Doubt extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** With which the service answered, or 0. */
    private final int status;

    /**
     * A doubt.
     *
     * @param status with which the service answered, or 0
     */
    public Doubt(int status) {
        super("the service does not know whether the effect happened", null, false, false);
        this.status = status;
    }

    /**
     * With which status the service answered.
     *
     * @return the status, or 0
     */
    public int status() {
        return status;
    }
}
