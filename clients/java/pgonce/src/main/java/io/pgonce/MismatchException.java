// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** The key was first used with another request (P4002). That request and its answer are untouched. */
public final class MismatchException extends OnceException {
    private static final long serialVersionUID = 1L;

    MismatchException(Reason reason, String message, Throwable cause) {
        super(reason, message, cause, null);
    }
}
