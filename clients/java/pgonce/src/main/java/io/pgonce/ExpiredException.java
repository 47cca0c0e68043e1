// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** The key is a UUIDv7 of a day that is retired (P4041): it was not run, and whether it ever was is no longer known. */
public final class ExpiredException extends OnceException {
    private static final long serialVersionUID = 1L;

    ExpiredException(Reason reason, String message, Throwable cause, Stored stored) {
        super(reason, message, cause, stored);
    }
}
