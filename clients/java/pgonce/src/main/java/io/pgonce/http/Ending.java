// SPDX-License-Identifier: PostgreSQL
package io.pgonce.http;

import java.util.Locale;
import java.util.Set;
import java.util.function.UnaryOperator;

/** What a whole answer of the service means for its intent: the gateway's table (docs/gateway.md), where each 5xx is rolled back. */
public enum Ending {
    /** The effect and the answer are stored. */
    STORED,
    /** The answer is stored as a final failure; an effect in the transaction is taken back to the savepoint. */
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
     * Decides where the effect is in the transaction, which ROLLBACK takes back.
     *
     * @param status of the answer
     * @param said the value of Once-Effect, or null
     * @param header gives the first value of a header of the answer, or null
     * @return what to do
     */
    public static Ending of(int status, String said, UnaryOperator<String> header) {
        Ending known = ofWord(said);
        if (known != null) {
            return known;
        } else if (!isFinal(status) || status >= 500 || REFUSALS.contains(status) || asksAgain(status, header)) {
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
     * @return what to do
     */
    public static Ending ofElsewhere(int status, String said, UnaryOperator<String> header) {
        Ending known = ofWord(said);
        if (known != null) {
            return known;
        } else if (!isFinal(status)) {
            return IN_DOUBT;
        } else if (asksAgain(status, header)) {
            return RELEASED;
        }
        return status >= 500 || status == 408 ? IN_DOUBT : status < 400 ? STORED : FAILED;
    }

    /**
     * Is this the status of a whole answer of HTTP, which can be stored?
     *
     * @param status of an answer
     * @return true for 200 to 599
     */
    public static boolean isFinal(int status) {
        return status >= 200 && status <= 599;
    }

    /** What Once-Effect says; null where it says nothing, or nothing known. */
    private static Ending ofWord(String said) {
        return switch (String.valueOf(said).toLowerCase(Locale.ROOT)) {
            case "none" -> RELEASED;
            case "done" -> STORED;
            case "unknown" -> IN_DOUBT;
            default -> null;
        };
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
