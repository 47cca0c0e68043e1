// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** Another attempt of the intent is running (P4029): call again after a short delay, with the same key. */
public final class ActiveException extends OnceException {
    private static final long serialVersionUID = 1L;

    ActiveException(Reason reason, String message, Throwable cause, Stored stored) {
        super(reason, message, cause, stored);
    }
}
