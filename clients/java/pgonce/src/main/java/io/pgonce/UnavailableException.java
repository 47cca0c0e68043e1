// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** The database cannot be asked, or did not tell what became of COMMIT: see {@link #outcomeUnknown()}. */
public sealed class UnavailableException extends OnceException permits SlotClosedException {
    private static final long serialVersionUID = 1L;

    UnavailableException(Reason reason, String message, Throwable cause) {
        super(reason, message, cause, null);
    }

    /**
     * Was COMMIT sent, and its outcome stayed unknown after asking? Else nothing was committed.
     *
     * @return true where the effect may have happened: ask again with the same key, never with a new one
     */
    public boolean outcomeUnknown() {
        return Reason.OUTCOME_UNKNOWN.code.equals(code());
    }
}
