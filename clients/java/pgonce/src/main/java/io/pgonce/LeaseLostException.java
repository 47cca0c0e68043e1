// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** This attempt no longer holds the intent (P4010, P4011): its result must be discarded. */
public final class LeaseLostException extends OnceException {
    private static final long serialVersionUID = 1L;

    LeaseLostException(Reason reason, String message, Throwable cause) {
        super(reason, message, cause, null);
    }
}
