// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/** What the contract says of an intent, and what a caller does with it. */
enum Verdict {
    // spec: verdicts
    /** Do the effect, then once.finish, in this transaction. */
    PROCEED("proceed", Then.RUN, "proceed", null),
    /** The first claim: do the work, then report under its fence. */
    NEW_CLAIM("new_claim", Then.RUN, "proceed", null),
    /** The intent succeeded: return the stored answer. */
    REPLAY_SUCCESS("replay_success", Then.REPLAY, "replay", null),
    /** Another attempt is running: try again later. */
    PROCESSING_ACTIVE("processing_active", Then.WAIT, "active", OnceException.Reason.ACTIVE),
    /** The claim takes over from a silent attempt that may have had its effect: do the work if it is safe to repeat. */
    PROCESSING_STALE("processing_stale", Then.RUN, "proceed", null),
    /** The claim takes over, and no earlier attempt had an effect: do the work. */
    RETRYABLE_FAILURE("retryable_failure", Then.RUN, "proceed", null),
    /** The intent failed for good: return the stored failure. */
    FINAL_FAILURE("final_failure", Then.FAIL, "final_failure", OnceException.Reason.FINAL_FAILURE),
    /** The outcome is unknown: find out, then decide with once.resolve. */
    IN_DOUBT("in_doubt", Then.REFUSE, "in_doubt", OnceException.Reason.IN_DOUBT),
    /** The key is too old: its intent has been deleted, or never was. */
    EXPIRED("expired", Then.REFUSE, "expired", OnceException.Reason.EXPIRED),
    /** The key was first used with another request. */
    MISMATCH("mismatch", Then.REFUSE, "mismatch", OnceException.Reason.MISMATCH);
    // end of spec

    /** What a caller does. */
    enum Then { RUN, REPLAY, FAIL, WAIT, REFUSE }

    final String word;
    final Then then;
    final String told;
    /** The reason of the exception; null if the work may run or the answer is replayed. */
    final OnceException.Reason reason;

    Verdict(String word, Then then, String told, OnceException.Reason reason) {
        this.word = word;
        this.then = then;
        this.told = told;
        this.reason = reason;
    }

    // spec: lost-claim
    // The verdict of a claim whose reply was lost, if a look shows that this caller holds it. first: the intent has had one attempt, so
    // no work began before; a released attempt is not counted. without_takeover: the claim takes over from no silent attempt, so the
    // earlier ones had no effect. otherwise: it may have taken over from one.
    static final Verdict LOST_FIRST = NEW_CLAIM;
    static final Verdict LOST_WITHOUT_TAKEOVER = RETRYABLE_FAILURE;
    static final Verdict LOST_OTHERWISE = PROCESSING_STALE;
    // end of spec

    /** Of a claim whose reply was lost. attempts: of the intent, as a look shows them; takeover: the option of the claim, or null. */
    static Verdict ofLost(int attempts, Boolean takeover) {
        if (attempts == 1) {
            return LOST_FIRST;
        }
        return Boolean.FALSE.equals(takeover) ? LOST_WITHOUT_TAKEOVER : LOST_OTHERWISE;
    }

    /** Null: this version does not know the word. */
    static Verdict of(String word) {
        for (Verdict verdict : values()) {
            if (verdict.word.equals(word)) {
                return verdict;
            }
        }
        return null;
    }
}
