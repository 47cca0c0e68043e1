// SPDX-License-Identifier: PostgreSQL
package io.pgonce.http;

import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.UnaryOperator;

/** What a whole answer of the service means for its intent: the gateway's table (docs/gateway.md), where each 5xx is rolled back. */
public enum Ending {
    /** The effect and the answer are stored. */
    STORED,
    /** The effect is taken back to the savepoint; the answer is stored as a final failure. */
    FAILED,
    /** ROLLBACK: nothing was done here, and a retry runs. */
    RELEASED,
    /** Nobody knows: the intent is put in doubt. */
    IN_DOUBT;

    /** The header with which the service says what it knows. Clients never get it. */
    public static final String HEADER = "Once-Effect";
    /** By HTTP nothing was done, and the same request may well be answered otherwise soon. */
    private static final Set<Integer> REFUSALS = Set.of(307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429);

    /**
     * Decides.
     *
     * @param status of the answer
     * @param said the value of Once-Effect, or null
     * @return what to do
     */
    public static Ending of(int status, String said) {
        if ("none".equalsIgnoreCase(said)) {
            return RELEASED;
        } else if ("done".equalsIgnoreCase(said)) {
            return STORED;
        } else if ("unknown".equalsIgnoreCase(said) || status < 200 || status > 599) {
            return IN_DOUBT;
        } else if (REFUSALS.contains(status) || status >= 500) {
            return RELEASED;
        }
        return status < 400 ? STORED : FAILED;
    }

    /**
     * Decides where the effect is not in the transaction, so that nothing can be rolled back: the gateway's table as it is by default.
     *
     * @param status of the answer
     * @param said the value of Once-Effect, or null
     * @param header gives the first value of a header of the answer, or null
     * @return what to do; never FAILED
     */
    public static Ending ofElsewhere(int status, String said, UnaryOperator<String> header) {
        if (List.of("none", "done", "unknown").contains(String.valueOf(said).toLowerCase(Locale.ROOT)) || status < 200 || status > 599) {
            return of(status, said);
        } else if (asksAgain(status, header)) {
            return RELEASED;
        }
        return status >= 500 || status == 408 ? IN_DOUBT : STORED;
    }

    /** Who writes such an answer knows that nothing was done, and clients follow it anyway. */
    private static boolean asksAgain(int status, UnaryOperator<String> header) {
        return switch (status) {
            case 307, 308 -> header.apply("Location") != null;
            case 401 -> header.apply("WWW-Authenticate") != null || header.apply("Retry-After") != null;
            case 407 -> header.apply("Proxy-Authenticate") != null || header.apply("Retry-After") != null;
            case 421, 425 -> true;
            default -> (status == 503 || (status >= 400 && status < 500)) && header.apply("Retry-After") != null;
        };
    }
}
