// SPDX-License-Identifier: PostgreSQL
package io.pgonce.http;

import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.UnaryOperator;

/** What a whole answer of the service means for its intent: the gateway's table (docs/reference/gateway.md), where each 5xx is rolled back. */
public enum Ending {
    /** The effect and the answer are stored. */
    STORED,
    /** The answer is stored as a final failure; an effect in the transaction is taken back to the savepoint. */
    FAILED,
    /** ROLLBACK: nothing was done here, and a retry runs. */
    RELEASED,
    /** Unknown: the intent is put in doubt. */
    IN_DOUBT;

    /** The header with which the service says what it knows. Clients never get it. */
    public static final String HEADER = "Once-Effect";
    private static final Set<Integer> REFUSALS = Set.of(
        // spec: statuses-rolled-back
        // In a transaction of the client's. By HTTP nothing was done, and the same request may well be answered otherwise soon. So is a
        // 4xx with Retry-After, each 5xx, and what is no final status of HTTP (below 200, above 599).
        307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429
        // end of spec
    );
    private static final Map<Integer, String> ASKING = Map.ofEntries(
        // spec: statuses-asking
        // Elsewhere: the header with which a status asks for the same request once more, so that nothing was done. A 4xx or a 503 asks
        // with Retry-After.
        Map.entry(307, "Location"),
        Map.entry(308, "Location"),
        Map.entry(401, "WWW-Authenticate"),
        Map.entry(407, "Proxy-Authenticate")
        // end of spec
    );
    private static final Set<Integer> ASKING_ALWAYS = Set.of(
        // spec: statuses-asking-always
        // Elsewhere: HTTP itself says of these that the same request is sent again: over another connection (RFC 9110, 15.5.20), or
        // after the handshake (RFC 8470, 5.2).
        421, 425
        // end of spec
    );

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
        boolean later = (status == 503 || (status >= 400 && status < 500)) && header.apply("Retry-After") != null;
        return later || ASKING_ALWAYS.contains(status) || (ASKING.containsKey(status) && header.apply(ASKING.get(status)) != null);
    }
}
