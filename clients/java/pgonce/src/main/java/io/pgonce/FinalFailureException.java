// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

/**
 * The intent failed for good (P4030): every attempt gets this outcome. An effect throws one, made by
 * {@link Answer#failure(String, String)}, to fail so: what the effect has done is rolled back to a savepoint, and the
 * outcome is stored in the same transaction.
 */
public final class FinalFailureException extends OnceException {
    private static final long serialVersionUID = 1L;

    private final transient Answer answer;
    /** Made by an effect that wants to fail so; else it is what is stored. */
    final boolean declared;

    FinalFailureException(Answer answer, Stored stored, Throwable cause, boolean declared) {
        super(Reason.FINAL_FAILURE, answer.errorMessage(), cause, stored);
        this.answer = answer;
        this.declared = declared;
    }

    /**
     * The answer that is stored, or will be stored.
     *
     * @return the answer of every attempt
     */
    public Answer answer() {
        return answer;
    }

    /**
     * Why it failed, for programs.
     *
     * @return the error code, or null
     */
    public String errorCode() {
        return answer.errorCode();
    }

    @Override
    public int status() {
        return answer.status() == 0 ? super.status() : answer.status();
    }
}
