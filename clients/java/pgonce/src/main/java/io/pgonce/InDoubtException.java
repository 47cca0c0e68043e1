// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** The outcome of the intent is unknown (P4031), and no attempt runs until it is known. Never take a new key. */
public final class InDoubtException extends OnceException {
    private static final long serialVersionUID = 1L;

    InDoubtException(Reason reason, String message, Throwable cause, Stored stored) {
        super(reason, message, cause, stored);
    }

    /**
     * With which status the service answered the attempt that left the doubt.
     *
     * @return the status, or 0 where no answer is known
     */
    public int answeredStatus() {
        return stored().responseStatus();
    }
}
