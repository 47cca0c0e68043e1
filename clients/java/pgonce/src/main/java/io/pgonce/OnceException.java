// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.sql.SQLException;

/**
 * What the contract refused, or what kept it from being asked. Each reason that a caller may want to tell apart is a
 * class of its own. Branch on the class, {@link #code()} or {@link #sqlState()}, never on the text. No message holds a
 * key.
 */
public class OnceException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** The reason's name. */
    private final String code;
    /** The contract's SQLSTATE, or null. */
    private final String sqlState;
    /** As the gateway answers it. */
    private final int status;
    /** May the same call be made again? */
    private final boolean retryable;
    private final transient Stored stored;

    /**
     * Made by this library.
     *
     * @param reason what happened
     * @param message for people
     * @param cause the driver's exception, or null
     * @param stored the stored state of the intent, if it is known
     */
    OnceException(Reason reason, String message, Throwable cause, Stored stored) {
        super(message == null ? reason.message : message, withoutKey(cause));
        this.code = reason.code;
        this.sqlState = reason.sqlState;
        this.status = reason.status;
        this.retryable = reason.retryable;
        this.stored = stored == null ? Stored.NOTHING : stored;
    }

    /** The server's DETAIL names the intent, key included, and a driver puts it into the message: one line of it is kept. */
    private static Throwable withoutKey(Throwable cause) {
        if (!(cause instanceof SQLException failure) || failure.getMessage() == null || !failure.getMessage().contains("\n")) {
            return cause;
        }
        SQLException bare = new SQLException(failure.getMessage().lines().findFirst().orElse(""), failure.getSQLState());
        bare.setStackTrace(failure.getStackTrace());
        return bare;
    }

    /**
     * The name of the reason: that of {@code once.errors()}, or this library's own.
     *
     * @return for example {@code mismatch}
     */
    public String code() {
        return code;
    }

    /**
     * The contract's SQLSTATE.
     *
     * @return for example {@code P4002}, or null where the contract did not speak
     */
    public String sqlState() {
        return sqlState;
    }

    /**
     * The status with which the gateway answers for it; of a final failure the stored one.
     *
     * @return a status of HTTP
     */
    public int status() {
        return status;
    }

    /**
     * May the same call be made again as it is, soon?
     *
     * @return true where a retry can end otherwise
     */
    public boolean retryable() {
        return retryable;
    }

    /**
     * The trace that the intent was first attempted in.
     *
     * @return a traceparent, or null if it is missing or unknown
     */
    public String traceparent() {
        return stored().traceparent();
    }

    /**
     * What is stored of the intent.
     *
     * @return never null
     */
    Stored stored() {
        return stored == null ? Stored.NOTHING : stored;
    }

    /** What an exception knows of the intent's row. */
    record Stored(int responseStatus, String traceparent) {
        static final Stored NOTHING = new Stored(0, null);
    }

    /** Every reason: one row each. */
    enum Reason {
        // spec: errors
        SCOPE_REQUIRED("scope_required", "P4000", 403, false, "a scope of 1 to 255 characters is required"),
        KEY_MALFORMED("key_malformed", "P4001", 400, false, "the key is missing or malformed"),
        MISMATCH("mismatch", "P4002", 422, false, "the key was first used with another request"),
        REFUSED("refused", "P4003", 403, false, "the fingerprint or the tenant is refused"),
        COMPLETION_REFUSED("completion_refused", "P4010", 409, false, "the attempt no longer holds the intent: discard its result"),
        FAILURE_REFUSED("failure_refused", "P4011", 409, false, "the attempt no longer holds the intent: discard its result"),
        NOT_STARTED("not_started", "P4012", 500, false, "the transaction has not started the intent: did the effect end it?"),
        UNFINISHED("unfinished", "P4013", 500, false, "the transaction has started an intent and not finished it: nothing was committed"),
        ALREADY_STARTED("already_started", "P4014", 500, false, "this transaction has started this intent already"),
        ANOTHER_FINGERPRINT("another_fingerprint", "P4015", 500, false, "this transaction has started the intent with another fingerprint"),
        ALREADY_FINISHED("already_finished", "P4020", 409, false, "the intent is finished and has an outcome"),
        ACTIVE("active", "P4029", 409, true, "another attempt of this intent is running"),
        FINAL_FAILURE("final_failure", "P4030", 409, false, "the intent failed for good"),
        IN_DOUBT("in_doubt", "P4031", 409, false, "the outcome of this intent is unknown"),
        EXPIRED("expired", "P4041", 409, false, "the key is older than what is remembered"),
        MESSAGE_MISMATCH("message_mismatch", "P4050", 422, false, "the message id was first used with another payload"),
        EVENT_MISMATCH("event_mismatch", "P4051", 422, false, "this intent has already emitted this event with another payload"),
        TOO_LARGE("too_large", "P4060", 500, false, "the outcome or the event is too large"),
        RESOLUTION_REFUSED("resolution_refused", "P4070", 409, false, "the decision is refused"),
        SLOT_CLOSED("slot_closed", "P4097", 503, true, "this node does not serve the tenant now"),
        PARTITION_MISSING("partition_missing", "P4098", 503, true, "the partition for this day is missing"),
        UNKNOWN_STATE("unknown_state", "P4099", 503, false, "the intent is in a state that this function does not know"),
        // end of spec
        SERIALIZATION("serialization", "40001", 503, true, "a race rolled the transaction back until the deadline passed; nothing was committed"),
        SWALLOWED("swallowed", "25P02", 500, false, "a statement of the effect failed and the effect went on; nothing was committed"),
        COMMIT_REFUSED("commit_refused", null, 500, false, "the database refused to finish or to commit what the effect did; nothing was committed"),
        DATABASE("database", null, 503, false, "the database refused a statement of this library; nothing was committed"),
        CONTRACT("contract", null, 503, false, "the database has no contract, or one that this client does not know: run pgonce init, or pgonce.sql"),
        UNAVAILABLE("unavailable", null, 503, true, "the database cannot be asked; nothing was committed"),
        OUTCOME_UNKNOWN("outcome_unknown", null, 503, true, "COMMIT was sent, and what became of it cannot be learnt now: ask again with the same key"),
        INTERRUPTED("interrupted", null, 503, true, "the thread was interrupted before the effect was committed; nothing was committed");

        final String code;
        final String sqlState;
        final int status;
        final boolean retryable;
        final String message;

        Reason(String code, String sqlState, int status, boolean retryable, String message) {
            this.code = code;
            this.sqlState = sqlState;
            this.status = status;
            this.retryable = retryable;
            this.message = message;
        }

        /** Of a statement of this library, before anything of the application ran: a missing schema or function can only be the contract's. */
        static Reason ofMissing(String sqlState) {
            return "3F000".equals(sqlState) || "42883".equals(sqlState) ? CONTRACT : DATABASE;
        }

        static Reason ofSqlState(String sqlState) {
            for (Reason reason : values()) {
                if (sqlState != null && sqlState.startsWith("P4") && sqlState.equals(reason.sqlState)) {
                    return reason;
                }
            }
            return null;
        }

        OnceException exception(String message, Throwable cause, Stored stored, Answer answer) {
            return switch (this) {
                case MISMATCH -> new MismatchException(this, message, cause);
                case ACTIVE -> new ActiveException(this, message, cause, stored);
                case IN_DOUBT -> new InDoubtException(this, message, cause, stored);
                case EXPIRED -> new ExpiredException(this, message, cause, stored);
                case FINAL_FAILURE -> new FinalFailureException(answer, stored, cause, false);
                case COMPLETION_REFUSED, FAILURE_REFUSED -> new LeaseLostException(this, message, cause);
                case UNAVAILABLE, OUTCOME_UNKNOWN, PARTITION_MISSING, SERIALIZATION ->
                    new UnavailableException(this, message, cause);
                case SLOT_CLOSED -> new SlotClosedException(this, message, cause);
                default -> new OnceException(this, message, cause, stored);
            };
        }

        OnceException exception(Throwable cause) {
            return exception(null, cause, null, null);
        }
    }
}
