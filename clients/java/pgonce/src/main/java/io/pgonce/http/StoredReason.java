// SPDX-License-Identifier: PostgreSQL
package io.pgonce.http;

/** What is stored as error_code and error_message where it is the client that knows why: the same at every door. */
public enum StoredReason {
    // spec: reasons
    /** The answer does not say whether the effect happened: a 5xx or 408 to the gateway or under a lease, a status that HTTP does not
     * define, Once-Effect: unknown at any door. */
    UNCLEAR("upstream_status", "the answer does not say whether the effect happened"),
    /** The answer refuses the request, and is stored. */
    REFUSED("upstream_status", "the answer refuses the request"),
    /** The answer asks for another attempt: a Retry-After, a redirect, Once-Effect: none. */
    AGAIN("upstream_status", "the answer asks for another attempt"),
    /** No whole answer came: the connection or handler ended early, the body was shorter than declared, or time ran out. */
    NO_ANSWER("no_answer", "the request was sent, and no whole answer came"),
    /** The work was done, and its answer cannot be stored: too large, or not JSON. */
    NOT_KEPT("answer_not_stored", "the answer cannot be stored"),
    /** The handler ended the transaction that it was given, so its changes may be committed. */
    ENDED("transaction_ended", "the handler has ended the transaction that it was given: what it did may be committed"),
    /** A claim ended without complete, fail or release. */
    NOT_REPORTED("not_reported", "the attempt ended without a report"),
    /** Nothing happened: the work said so (NotDone; NothingDone in Java), or behind a gateway it threw and was rolled back. */
    NOT_DONE("not_done", null),
    /** Behind a gateway the reply to COMMIT was lost, and nothing was committed. */
    COMMIT_LOST("commit_lost", "the connection was lost before COMMIT took effect");
    // end of spec

    private final String code;
    private final String message;

    StoredReason(String code, String message) {
        this.code = code;
        this.message = message;
    }

    /**
     * The error_code.
     *
     * @return the code
     */
    public String code() {
        return code;
    }

    /**
     * The error_message.
     *
     * @return the message; null where it comes from elsewhere
     */
    public String message() {
        return message;
    }
}
