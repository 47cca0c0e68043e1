// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import io.pgonce.http.StoredReason;

/**
 * What an effect throws whose outcome is unknown: it is taken back as far as it is in the transaction, and the intent
 * is put in doubt there. It comes out of {@code run} as it is.
 */
public class Doubt extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** With which the service answered, or 0. */
    private final int status;
    private final transient StoredReason reason;

    /**
     * A doubt.
     *
     * @param status with which the service answered; 0: it gave no whole answer
     */
    public Doubt(int status) {
        this(status == 0 ? StoredReason.NO_ANSWER : StoredReason.UNCLEAR, status);
    }

    /**
     * A doubt.
     *
     * @param reason that is stored
     * @param status with which the service answered, or 0
     */
    public Doubt(StoredReason reason, int status) {
        super("the service does not know whether the effect happened", null, false, false);
        this.status = status;
        this.reason = java.util.Objects.requireNonNull(reason, "reason");
    }

    /**
     * Why it is in doubt.
     *
     * @return the reason that is stored
     */
    public StoredReason reason() {
        return reason;
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
