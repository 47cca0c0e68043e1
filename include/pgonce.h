/* SPDX-License-Identifier: PostgreSQL */
/*
 * pgonce.h: libpgonce, the pgonce contract from C: calls that block. pgonce_batcher.h has the
 * batcher, for servers with an event loop.
 *
 * pgonce makes retries harmless: an intent, named by (tenant, scope, key), has one durable effect
 * and one answer, however often it is attempted. Functions in PostgreSQL make all decisions; this
 * library calls them.
 *
 * Conventions, unless a function says otherwise:
 * - A function that can fail returns once_code, ONCE_OK on success, and takes a last parameter
 *   `once_error **error`. On failure *error is a new error that the caller frees with
 *   once_error_free; pass NULL if you need only the code. *error must be NULL on entry. On success
 *   it stays NULL. Results are written only on success.
 * - Functions block on the network until the server answers; set TCP and statement timeouts on the
 *   connection.
 * - Strings are UTF-8 and NUL-terminated, borrowed for the call. Bytes are pointer and length.
 *   Durations carry their unit in the name. Pointers returned by an accessor belong to the object
 *   and live as long as it does.
 * - Use a session in one thread at a time; different sessions are independent. The library has no
 *   global state, starts no thread, never logs and never exits.
 */
#ifndef PGONCE_H
#define PGONCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libpq-fe.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ONCE_API __attribute__((visibility("default")))
#define ONCE_MUST_CHECK __attribute__((warn_unused_result))
#else
#define ONCE_API
#define ONCE_MUST_CHECK
#endif

/* ---- Errors ---------------------------------------------------------------------------------- */

/*
 * What went wrong. The values are stable. "Retry" says whether the same call may succeed later,
 * unchanged. Some codes depend on the cause: once_error_retriable tells it for an error.
 */
typedef enum once_code {
	ONCE_OK = 0,
	/* P4000. Retry: no. */
	ONCE_SCOPE_REQUIRED = 1,
	/* P4001. Retry: no. */
	ONCE_KEY_MALFORMED = 2,
	/* P4002: the key was first used with another request. Retry: no. */
	ONCE_MISMATCH = 3,
	/* P4003: no fingerprint, or the caller may not use this tenant. Retry: no. */
	ONCE_REFUSED = 4,
	/* P4010: the fence is lost, or the intent is finished. Retry: no; discard the result. */
	ONCE_COMPLETION_REFUSED = 5,
	/* P4011: the same for a failure. */
	ONCE_FAILURE_REFUSED = 6,
	/* P4020: the intent of finish_new is finished already. Retry: no; peek for its outcome. */
	ONCE_ALREADY_FINISHED = 7,
	/* P4029: another attempt is running. Retry: yes, after a delay. */
	ONCE_ACTIVE = 8,
	/* P4030: the intent failed for good. Retry: no. */
	ONCE_FINAL_FAILURE = 9,
	/* P4031: the outcome is unknown. Retry: no, until it is resolved. */
	ONCE_IN_DOUBT = 10,
	/* P4041: the key is older than the retention. Retry: no. */
	ONCE_EXPIRED = 11,
	/* P4050: a message id was reused with another payload. Retry: no. */
	ONCE_MESSAGE_MISMATCH = 12,
	/* P4051: an event was emitted twice with different payloads. Retry: no. */
	ONCE_EVENT_MISMATCH = 13,
	/* P4060: the outcome or the event is too large. Retry: no. */
	ONCE_TOO_LARGE = 14,
	/* P4070: the intent cannot be decided now, or the reason is missing. Retry: no. */
	ONCE_RESOLUTION_REFUSED = 15,
	/*
	 * P4098: another transaction is creating this day's partition, or it cannot be created. Retry:
	 * yes.
	 */
	ONCE_PARTITION_MISSING = 16,
	/* P4099: library and contract differ. Retry: no. */
	ONCE_UNKNOWN_STATE = 17,
	/* 40001, 40P01: rolled back by a race. Retry: yes, the whole transaction. */
	ONCE_SERIALIZATION = 18,
	/*
	 * The connection is lost or cannot be made. Retry: yes, unless the outcome is unknown, or the
	 * server refuses the role, the password or the database (once_error_sqlstate: class 28, 3D000,
	 * 42501).
	 */
	ONCE_CONNECTION = 19,
	/* Lost during COMMIT, and the outcome cannot be found out. Retry: yes, with the same key. */
	ONCE_OUTCOME_UNKNOWN = 20,
	/*
	 * The caller's deadline passed; nothing was committed unless the outcome is unknown. Retry:
	 * yes.
	 */
	ONCE_DEADLINE = 21,
	/* Any other error of the server: see the SQLSTATE. */
	ONCE_DATABASE = 22,
	/* The contract is missing or too old: run pgonce init. Retry: no. */
	ONCE_CONTRACT = 23,
	/* The call is wrong (a NULL that is not allowed, a session in a wrong state). Retry: no. */
	ONCE_USAGE = 24,
	/* Retry: yes. */
	ONCE_NO_MEMORY = 25,
	/*
	 * The caller's effect callback gave up; everything was rolled back. Retry: the caller decides.
	 */
	ONCE_EFFECT = 26,
	/* More operations wait than the batcher's limits allow; nothing was sent. Retry: yes. */
	ONCE_OVERLOADED = 27,
	/*
	 * P4080: the relay's progress was not written in this database: a restore, a copy, a rewritten
	 * row. Retry: no; see once.relay_adopt.
	 */
	ONCE_RELAY_FOREIGN = 28,
	/* P4012: this transaction did not start the intent that it finishes. Retry: no. */
	ONCE_NOT_STARTED = 29,
	/* P4013: COMMIT of a transaction that started an intent and did not finish it. Retry: no. */
	ONCE_UNFINISHED = 30,
	/* P4014: this transaction has started the intent already. Retry: no. */
	ONCE_ALREADY_STARTED = 31,
	/* P4015: the fingerprint of finish differs from that of start. Retry: no. */
	ONCE_ANOTHER_FINGERPRINT = 32,
	/* P4097: this node does not serve the tenant now. Retry: yes, at the node that does. */
	ONCE_SLOT_CLOSED = 33
} once_code;

typedef struct once_error once_error;

ONCE_API void once_error_free(once_error *error); /* NULL is allowed. */
ONCE_API once_code once_error_code(const once_error *error);
/* Five characters; "" if there is none. */
ONCE_API const char *once_error_sqlstate(const once_error *error);
/* What happened, one sentence. */
ONCE_API const char *once_error_message(const once_error *error);
/* The intent, and more about the cause; "" if unknown. */
ONCE_API const char *once_error_detail(const once_error *error);
/* What to do; "" if there is no advice. */
ONCE_API const char *once_error_hint(const once_error *error);
/* May the same call succeed later, unchanged? */
ONCE_API bool once_error_retriable(const once_error *error);
/* May the effect be committed nevertheless? */
ONCE_API bool once_error_outcome_unknown(const once_error *error);

/* "mismatch"; "unknown" for an invalid value. */
ONCE_API const char *once_code_name(once_code code);
/*
 * The code that the library gives to an SQLSTATE; NULL and "" give ONCE_CONNECTION, an unlisted one
 * ONCE_DATABASE.
 */
ONCE_API once_code once_code_of_sqlstate(const char *sqlstate);

/* ---- Values ---------------------------------------------------------------------------------- */

/*
 * What a claim does if the last attempt's lease has passed and its effect is unknown. If the scope
 * has a verify function, that is asked first, in all cases.
 */
typedef enum once_on_stale {
	ONCE_ON_STALE_POLICY = 0,   /* the scope's on_stale; IN_DOUBT_STORED by default */
	ONCE_ON_STALE_IN_DOUBT = 1, /* IN_DOUBT_STORED */
	/* PROCESSING_STALE: this work is safe to repeat. Also if the silence was recorded as a doubt */
	ONCE_ON_STALE_TAKEOVER = 2
} once_on_stale;

/*
 * The name of an intent, and the trace of this attempt. tenant NULL is "". All are borrowed. Use
 * designated initialisers, or zero-initialise it: later versions append members.
 */
typedef struct once_intent {
	const char *tenant;
	const char *scope;
	const char *key;
	/*
	 * The traceparent header of W3C Trace Context, or NULL. Stored with the first attempt at the
	 * intent; once_answer_traceparent returns it to all later ones. Used only by start, finish,
	 * claim, execute, execute_statements and the batcher's claim. A malformed one is ignored (W3C
	 * Trace Context section 3.2.2.3), never an error.
	 */
	const char *traceparent;
	/*
	 * What a claim does after an attempt that fell silent. Used only by claim, claim_many (the same
	 * for all of its intents) and the batcher's claim.
	 */
	once_on_stale on_stale;
} once_intent;

/*
 * Is it a valid traceparent, which is stored: version 00, lower case, neither identifier all zero?
 * False for NULL.
 */
ONCE_API bool once_traceparent_valid(const char *traceparent);

typedef struct once_bytes {
	const void *data; /* NULL is SQL's NULL; an empty value has a non-NULL pointer and length 0. */
	size_t length;
} once_bytes;

#define ONCE_FINGERPRINT_BYTES 32
typedef struct once_fingerprint {
	unsigned char bytes[ONCE_FINGERPRINT_BYTES];
} once_fingerprint;

/* What is known about an intent; the values of once.state, in their order. */
typedef enum once_state {
	ONCE_STATE_NONE = 0, /* nothing is stored */
	ONCE_STATE_PROCESSING = 1,
	ONCE_STATE_SUCCEEDED = 2,
	ONCE_STATE_FAILED_RETRYABLE = 3,
	ONCE_STATE_FAILED_FINAL = 4,
	ONCE_STATE_IN_DOUBT = 5
} once_state;

/* The answer to an attempt. */
typedef enum once_verdict {
	ONCE_VERDICT_NONE = 0,
	ONCE_PROCEED = 1,           /* start: do the effect, then finish */
	ONCE_NEW_CLAIM = 2,         /* claim: do the work under the fence */
	ONCE_REPLAY_SUCCESS = 3,    /* finished; the outcome is stored */
	ONCE_PROCESSING_ACTIVE = 4, /* another attempt is at work */
	ONCE_PROCESSING_STALE = 5,  /* claim: taken over, do the work; peek: its lease has passed */
	ONCE_RETRYABLE_FAILURE = 6, /* claim: taken over, do the work; peek: the next attempt may run */
	ONCE_FINAL_FAILURE_STORED = 7,
	ONCE_IN_DOUBT_STORED = 8,
	ONCE_EXPIRED_KEY = 9,
	ONCE_MISMATCHED = 10, /* batches */
	ONCE_INVALID = 11,    /* batches: once_answer_error_code has the SQLSTATE */
	ONCE_ABSENT = 12,     /* peek */
	ONCE_STORED = 13,     /* complete_many, fail_many */
	/* complete_many, fail_many: this attempt had stored this outcome already */
	ONCE_REPEATED = 14,
	ONCE_REPORT_REFUSED = 15 /* complete_many, fail_many */
} once_verdict;

ONCE_API const char *once_state_name(once_state state);       /* "succeeded"; "" for NONE */
ONCE_API const char *once_verdict_name(once_verdict verdict); /* "replay_success"; "" for NONE */

/*
 * An outcome to store: the answer of a finished intent. Built by the caller; nothing is copied, so
 * everything that it points to must live until the call returns. Zero-initialise it: `once_outcome
 * outcome = {0};`. Later versions append members.
 */
typedef struct once_outcome {
	int response_status;          /* 0: none (NULL) */
	const char *response_headers; /* a JSON object as text, or NULL */
	once_bytes response_body;
	const char *result_type; /* NULL: none */
	const char *result_id;
	const char *error_code;
	const char *error_message;
	/*
	 * For a retryable failure whose answer redirects the request (307, 308): the fingerprint of the
	 * new request, which is the same intent from then on. NULL: none. Used for failures only.
	 */
	const once_fingerprint *redirect;
} once_outcome;

/*
 * The contract's answer about one intent. Made by the library, freed by the caller with
 * once_answer_free.
 */
typedef struct once_answer once_answer;

ONCE_API void once_answer_free(once_answer *answer); /* NULL is allowed. */
ONCE_API once_verdict once_answer_verdict(const once_answer *answer);
ONCE_API once_state once_answer_state(const once_answer *answer);
ONCE_API int once_answer_fence(const once_answer *answer);           /* 0: none */
ONCE_API int once_answer_attempts(const once_answer *answer);        /* 0: unknown */
ONCE_API int once_answer_response_status(const once_answer *answer); /* 0: none */
/* JSON text, or NULL */
ONCE_API const char *once_answer_response_headers(const once_answer *answer);
ONCE_API once_bytes once_answer_response_body(const once_answer *answer);
/* NULL: none; also below */
ONCE_API const char *once_answer_result_type(const once_answer *answer);
ONCE_API const char *once_answer_result_id(const once_answer *answer);
ONCE_API const char *once_answer_error_code(const once_answer *answer);
ONCE_API const char *once_answer_error_message(const once_answer *answer);
ONCE_API const char *once_answer_owner(const once_answer *answer);
ONCE_API const char *once_answer_lease_until(
    const once_answer *answer); /* as PostgreSQL prints it, in the session's time zone */
/*
 * The intent's traceparent: that of its first attempt that had one, not of this attempt, so that
 * one trace finds all attempts. NULL with MISMATCHED, whose caller must not learn it.
 */
ONCE_API const char *once_answer_traceparent(const once_answer *answer);
/*
 * Should this attempt do the work? True for PROCEED, NEW_CLAIM, and the two takeovers of a claim.
 */
ONCE_API bool once_answer_may_run(const once_answer *answer);

/*
 * Answers to a batch, one per element, in order. once_answers_free frees them, including each
 * answer.
 */
typedef struct once_answers once_answers;
ONCE_API void once_answers_free(once_answers *answers);
/* NULL past the end */
ONCE_API const once_answer *once_answers_at(const once_answers *answers, size_t index);

/* ---- Sessions -------------------------------------------------------------------------------- */

typedef struct once_session once_session;

ONCE_API const char *once_version(void);  /* of the library: "MAJOR.MINOR.PATCH" */
ONCE_API int once_contract_version(void); /* the version of the contract that this library uses */

/*
 * Opens a connection and a session on it. conninfo NULL or "" takes libpq's environment variables.
 * Errors: ONCE_CONNECTION (the message says which address was tried), ONCE_CONTRACT,
 * ONCE_NO_MEMORY. Such a session can reconnect.
 */
ONCE_API ONCE_MUST_CHECK once_code once_session_open(const char *conninfo, once_session **session, once_error **error);
/*
 * A session on a connection that the caller owns and keeps: in blocking mode, idle or inside a
 * transaction. The library never closes or resets it, so a connection lost during COMMIT gives
 * ONCE_OUTCOME_UNKNOWN: retry with the same key on a new one.
 */
ONCE_API ONCE_MUST_CHECK once_code once_session_attach(PGconn *connection, once_session **session, once_error **error);
ONCE_API void once_session_close(
    once_session *session); /* NULL is allowed. Closes only a connection that the session opened. */
ONCE_API PGconn *once_session_connection(
    const once_session *session); /* for the caller's own statements; owned by the session */
/*
 * Whether statements are prepared, in the round trip of their first execution: the library's own,
 * BEGIN and COMMIT, and the first 64 different texts of once_execute_statements (a parameter keeps
 * its first type). A statement that is gone (DISCARD ALL) or whose result has changed (ALTER TABLE)
 * is prepared again; the call that hit this runs again as text, but fails inside the caller's
 * transaction (26000, 0A000). Off by default, and turned off after three such failures in a row, as
 * behind a pooler that moves sessions.
 */
ONCE_API void once_session_prepare(once_session *session, bool prepare);
/*
 * Checks that the contract in the database has the library's version or a later one, which is
 * compatible. Errors: ONCE_CONTRACT (missing, too old), ONCE_CONNECTION.
 */
ONCE_API ONCE_MUST_CHECK once_code once_session_check(once_session *session, once_error **error);

/* ---- Keys and fingerprints ------------------------------------------------------------------- */
/*
 * docs/reference/fingerprint.md specifies keys, and what is hashed in which form; spec/vectors has
 * examples.
 */

#define ONCE_KEY_BYTES_MAX 255
/*
 * once.key_of_header: the key in the value of an Idempotency-Key header. That is a Structured Field
 * String (RFC 8941 section 3.3.3), its parameters checked and ignored; unless strict, also a bare
 * key: visible ASCII without space, quote, backslash, comma and semicolon, so that neither a list
 * nor a broken string is ever a key. `abc` and `"abc"` are one key. Spaces around the value are
 * ignored; a tab is refused, as RFC 8941 allows only SP. A valid key has 1 to length_max printable
 * ASCII characters. length_max: at most ONCE_KEY_BYTES_MAX; a greater value means that. key: room
 * for ONCE_KEY_BYTES_MAX + 1 bytes; terminated; "" on failure. Fails with ONCE_KEY_MALFORMED, whose
 * detail is a sentence for the client. Never blocks.
 */
ONCE_API ONCE_MUST_CHECK once_code once_key_of_header(once_bytes value, bool strict, size_t length_max, char *key,
                                                      once_error **error);

/*
 * once.fingerprint(bytea), the same as once.fingerprint(text): of exactly these bytes. The tenant's
 * salt is fetched once per session and tenant.
 */
ONCE_API ONCE_MUST_CHECK once_code once_fingerprint_bytes(once_session *session, const char *tenant, once_bytes bytes,
                                                          once_fingerprint *fingerprint, once_error **error);
/*
 * once.fingerprint(jsonb): of the value's canonical form, computed by the server. ONCE_DATABASE
 * (22P02) if json is not JSON. Of two members with one name jsonb keeps the last.
 */
ONCE_API ONCE_MUST_CHECK once_code once_fingerprint_json(once_session *session, const char *tenant, const char *json,
                                                         once_fingerprint *fingerprint, once_error **error);
/*
 * once.request_fingerprint, as the gateway computes it: of method, content type, body and target,
 * each length-prefixed, so that two different requests never give the same bytes. target: the Host
 * header in lower case, then path and query ("shop.test/pay?dry=0"). content_type NULL is "".
 * canonical_json: the body is hashed in canonical form if it has one (see once_json_canonical),
 * otherwise unchanged.
 */
ONCE_API ONCE_MUST_CHECK once_code once_fingerprint_request(once_session *session, const char *tenant,
                                                            const char *method, const char *target,
                                                            const char *content_type, once_bytes body,
                                                            bool canonical_json, once_fingerprint *fingerprint,
                                                            once_error **error);

/* ---- The contract, function by function ------------------------------------------------------ */
/*
 * See docs/reference/sql.md: each call below is the SQL function of the same name, with its
 * SQLSTATEs. All may also fail with ONCE_CONNECTION, ONCE_CONTRACT, ONCE_DATABASE, ONCE_NO_MEMORY
 * and ONCE_USAGE. Call the other functions of the contract (once.receive, once.try_lock,
 * once.story, ...) as SQL, on once_session_connection.
 */

/*
 * Call it in a transaction that you have opened, otherwise it fails with ONCE_USAGE: nothing would
 * guard the effect. The same for finish (which fails with ONCE_NOT_STARTED). Verdict PROCEED or
 * REPLAY; every other case is an error.
 */
ONCE_API ONCE_MUST_CHECK once_code once_start(once_session *session, const once_intent *intent,
                                              const once_fingerprint *fingerprint, once_answer **answer,
                                              once_error **error);
/* state: SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE. The caller commits. */
ONCE_API ONCE_MUST_CHECK once_code once_finish(once_session *session, const once_intent *intent,
                                               const once_fingerprint *fingerprint, once_state state,
                                               const once_outcome *outcome, once_error **error);
/* owner NULL: none. lease_ms, retention_ms 0: those of the scope. */
ONCE_API ONCE_MUST_CHECK once_code once_claim(once_session *session, const once_intent *intent,
                                              const once_fingerprint *fingerprint, const char *owner, int64_t lease_ms,
                                              int64_t retention_ms, once_answer **answer, once_error **error);
/*
 * ONCE_OK if this outcome is stored under this fence: by this call, or by an earlier one, so a
 * report whose answer was lost can be sent again. Any other stored state, or another fence, gives
 * ONCE_COMPLETION_REFUSED; in once_fail ONCE_FAILURE_REFUSED.
 */
ONCE_API ONCE_MUST_CHECK once_code once_complete(once_session *session, const once_intent *intent, int fence,
                                                 const once_outcome *outcome, once_error **error);
/* What an attempt that failed knows about its effect. */
typedef enum once_failure {
	ONCE_FAILURE_RETRYABLE = 1, /* certainly no effect: the next attempt may run */
	ONCE_FAILURE_FINAL = 2,     /* failed for good: retries get this outcome */
	ONCE_FAILURE_IN_DOUBT = 3   /* the outcome is unknown */
} once_failure;
ONCE_API ONCE_MUST_CHECK once_code once_fail(once_session *session, const once_intent *intent, int fence,
                                             once_failure failure, const once_outcome *outcome, once_error **error);
/* *held false: the intent is no longer this attempt's. */
ONCE_API ONCE_MUST_CHECK once_code once_renew(once_session *session, const once_intent *intent, int fence,
                                              int64_t lease_ms, bool *held, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_release(once_session *session, const once_intent *intent, int fence, bool *held,
                                                once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_peek(once_session *session, const once_intent *intent, once_answer **answer,
                                             once_error **error);
/* Zero-initialise it; later versions append members. */
typedef struct once_event {
	const char *topic;
	const char *payload;        /* JSON text */
	const char *aggregate_type; /* NULL: none; also below */
	const char *aggregate_id;
	const char *event_type;  /* NULL: the topic */
	const char *headers;     /* a JSON object as text */
	const char *traceparent; /* NULL: that of the intent that caused it */
	/*
	 * A timestamptz as text, with its zone: the event is published then and not sooner. NULL: at
	 * once. See once.emit_later.
	 */
	const char *not_before;
} once_event;
/*
 * cause NULL: no intent (then only tenant matters, and two emits are two events). event_id holds 36
 * characters and a NUL.
 */
ONCE_API ONCE_MUST_CHECK once_code once_emit(once_session *session, const char *tenant, const once_intent *cause,
                                             const once_event *event, char event_id[37], once_error **error);
/*
 * once_emit for a payload of bytes with a content type that the application chooses (1 to 255
 * visible ASCII characters and inner spaces), such as Avro or Protobuf. payload and not_before of
 * the event are NULL: it is published at once.
 */
ONCE_API ONCE_MUST_CHECK once_code once_emit_bytes(once_session *session, const char *tenant, const once_intent *cause,
                                                   const once_event *event, once_bytes payload,
                                                   const char *content_type, char event_id[37], once_error **error);
/* *before is the state before the decision. */
ONCE_API ONCE_MUST_CHECK once_code once_resolve(once_session *session, const once_intent *intent, once_state as_state,
                                                const char *reason, const once_outcome *outcome, once_state *before,
                                                once_error **error);
/*
 * Batches: one statement, one commit. All elements are of one tenant; intents[i].tenant is ignored.
 */
ONCE_API ONCE_MUST_CHECK once_code once_claim_many(once_session *session, const char *tenant, size_t count,
                                                   const once_intent *intents, const once_fingerprint *fingerprints,
                                                   const char *owner, int64_t lease_ms, int64_t retention_ms,
                                                   once_answers **answers, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_complete_many(once_session *session, const char *tenant, size_t count,
                                                      const once_intent *intents, const int *fences,
                                                      const once_outcome *outcomes, once_answers **answers,
                                                      once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_fail_many(once_session *session, const char *tenant, size_t count,
                                                  const once_intent *intents, const int *fences,
                                                  const once_failure *failures, const once_outcome *outcomes,
                                                  once_answers **answers, once_error **error);
/* held[i] for each element; the array is the caller's, of count elements. */
ONCE_API ONCE_MUST_CHECK once_code once_renew_many(once_session *session, const char *tenant, size_t count,
                                                   const once_intent *intents, const int *fences, int64_t lease_ms,
                                                   bool *held, once_error **error);

/* ---- Executing an effect once ---------------------------------------------------------------- */

/* The result of an effect callback. */
typedef enum once_effect_result {
	ONCE_EFFECT_DONE = 0, /* commit, with state SUCCEEDED and *outcome */
	/*
	 * it failed for good: roll the effect back, and store *outcome as FAILED_FINAL in a second
	 * transaction
	 */
	ONCE_EFFECT_FAILED = 1,
	ONCE_EFFECT_RETRY = 2, /* roll everything back and run the callback again, as after 40001 */
	ONCE_EFFECT_ABORT = 3  /* roll everything back and store nothing: ONCE_EFFECT */
} once_effect_result;

/*
 * The effect: statements on `connection`, inside the transaction, without COMMIT or ROLLBACK. It
 * may run more than once (each time after a rollback), so it must tolerate repetition of anything
 * that it does outside the database. What *outcome points to must live until once_execute returns
 * or the callback runs again. If a statement fails, set *failed to its result, which the library
 * clears, and return ONCE_EFFECT_RETRY: 40001 and 40P01 run again, any other SQLSTATE becomes the
 * error. Without a failed statement ONCE_EFFECT_RETRY runs the callback again until the deadline.
 */
typedef once_effect_result (*once_effect)(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed);

/* Zero-initialise; a zero takes the default. Later versions append members. */
typedef struct once_options {
	int64_t deadline_ms; /* for the whole call, including retries and waits; default 30,000 */
	/* how long to wait for another running attempt before ONCE_ACTIVE; default: not at all */
	int64_t wait_ms;
	int64_t backoff_ms;     /* first backoff; doubled each time, full jitter; default 5 */
	int64_t backoff_max_ms; /* default 1,000 */
	/* "read committed", "repeatable read", "serializable"; NULL: the database's default */
	const char *isolation;
} once_options;

/*
 * Runs an effect once: BEGIN and once.start in one round trip, the effect, once.finish and COMMIT
 * in one; for a replay: ROLLBACK. *answer is the outcome, fresh (PROCEED) or stored (REPLAY): the
 * same bytes. Retries 40001 and 40P01 with backoff until the deadline. If the connection is lost
 * during COMMIT, it reconnects and reads the intent's row, which tells whether it committed. An
 * effect that failed for good does not run again in this call: it is rolled back and a second
 * transaction started (a round trip), which stores the failure (another one); only this
 * transaction is retried. If another attempt finishes in between, the call returns what that
 * stored. If the failure cannot be stored, the call returns why, and nothing of the effect
 * remains. The session must not be in a transaction; the callback leaves no pipeline open and no
 * result unread (ONCE_USAGE), and does not end its transaction. If it does, what it did may be
 * committed: with any result it does not run again, the intent is put in doubt (error_code
 * transaction_ended), and the call returns ONCE_IN_DOUBT with once_error_outcome_unknown. Its
 * message says if the doubt could not be stored before the deadline: then a retry may run the
 * effect again. A savepoint and ROLLBACK TO it are no end. To see an end, the library registers an
 * event procedure on the connection (PQregisterEventProc), which stays: do not unload the library
 * before PQfinish. Errors in addition to those of start and finish: ONCE_SERIALIZATION or
 * ONCE_DEADLINE after the last retry, ONCE_OUTCOME_UNKNOWN, ONCE_EFFECT. ONCE_FINAL_FAILURE for an
 * intent that failed for good, now or before: once_peek has its outcome.
 */
ONCE_API ONCE_MUST_CHECK once_code once_execute(once_session *session, const once_intent *intent,
                                                const once_fingerprint *fingerprint, once_effect effect, void *argument,
                                                const once_options *options, once_answer **answer, once_error **error);

/*
 * Parameters ($1..$n) are text, NULL is SQL's NULL. No COPY, and no statement that begins or ends a
 * transaction.
 */
typedef struct once_statement {
	const char *sql;
	int parameter_count;
	const char *const *parameters;
} once_statement;

/*
 * once_execute for a list of statements with a known outcome: all in one round trip, from BEGIN to
 * COMMIT. once.finish_new goes first and raises an error unless the effect may run: the server then
 * skips the following statements, and a replay is read in a second round trip.
 */
ONCE_API ONCE_MUST_CHECK once_code once_execute_statements(once_session *session, const once_intent *intent,
                                                           const once_fingerprint *fingerprint, size_t count,
                                                           const once_statement *statements,
                                                           const once_outcome *outcome, const once_options *options,
                                                           once_answer **answer, once_error **error);

/* ---- JSON in canonical form ------------------------------------------------------------------ */

/*
 * The canonical form of a JSON text: as PostgreSQL's jsonb writes it, its numbers without trailing
 * zeros (docs/reference/fingerprint.md), of *length bytes and not terminated, in memory that the
 * caller frees with free(). *canonical stays NULL if there is no canonical form, which is not an
 * error: the text is not JSON (RFC 8259), is longer than ONCE_CANONICAL_BYTES_MAX, nested deeper
 * than 64, names a member twice, or contains U+0000, half a surrogate pair, a number of more than
 * 100 characters (as written, or in plain notation), or an exponent beyond 99.
 */
#define ONCE_CANONICAL_BYTES_MAX (1024 * 1024)
ONCE_API ONCE_MUST_CHECK once_code once_json_canonical(once_bytes json, char **canonical, size_t *length,
                                                       once_error **error);

#ifdef __cplusplus
}
#endif

#endif
