/* SPDX-License-Identifier: PostgreSQL */
/*
 * pgonce.h: libpgonce, the pgonce contract from C: calls that block. pgonce_batcher.h has the
 * batcher, for servers with an event loop.
 *
 * pgonce makes retries harmless: an intent, named by (tenant, scope, key), has one durable effect
 * and one answer, however often it is attempted. The decisions are taken by functions in
 * PostgreSQL; this library calls them.
 *
 * Conventions, unless a function says otherwise:
 * - A function that can fail returns once_code, ONCE_OK on success, and takes a last parameter
 *   `once_error **error`. On failure *error is a new error that the caller frees with
 *   once_error_free; pass NULL when only the code matters. *error must be NULL on entry. On success
 *   it stays NULL. Results are written only on success.
 * - Functions block on the network until the server answers; set TCP and statement timeouts on the
 *   connection.
 * - Strings are UTF-8 and NUL-terminated, borrowed for the call. Bytes are pointer and length.
 *   Durations carry their unit in the name. Pointers returned by an accessor belong to the object
 *   and live as long as it does.
 * - A session is for one thread at a time; different sessions are independent. The library has no
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
 * unchanged: once_error_retriable answers it per error, since a few depend on the cause.
 */
typedef enum once_code {
	ONCE_OK = 0,
	/* P4000. Retry: no. */
	ONCE_SCOPE_REQUIRED = 1,
	/* P4001. Retry: no. */
	ONCE_KEY_MALFORMED = 2,
	/* P4002: the key was first used with another request. Retry: no. */
	ONCE_MISMATCH = 3,
	/* P4003: no fingerprint, or the tenant is refused. Retry: no. */
	ONCE_REFUSED = 4,
	/* P4010: the fence is lost, or it is finished. Retry: no; discard the result. */
	ONCE_COMPLETION_REFUSED = 5,
	/* P4011: as above, for a failure. */
	ONCE_FAILURE_REFUSED = 6,
	/* P4020: finish_new met a finished intent. Retry: no; peek for its outcome. */
	ONCE_ALREADY_FINISHED = 7,
	/* P4029: another attempt is running. Retry: yes, after a delay. */
	ONCE_ACTIVE = 8,
	/* P4030: the intent failed for good. Retry: no. */
	ONCE_FINAL_FAILURE = 9,
	/* P4031: the outcome is unknown. Retry: no, until it is resolved. */
	ONCE_IN_DOUBT = 10,
	/* P4041: the key is older than what is remembered. Retry: no. */
	ONCE_EXPIRED = 11,
	/* P4050: a message id was reused with another payload. Retry: no. */
	ONCE_MESSAGE_MISMATCH = 12,
	/* P4051: an event was emitted twice with different payloads. Retry: no. */
	ONCE_EVENT_MISMATCH = 13,
	/* P4060: the outcome or the event is too large. Retry: no. */
	ONCE_TOO_LARGE = 14,
	/* P4070: the intent cannot be decided now, or the reason is missing. Retry: no. */
	ONCE_RESOLUTION_REFUSED = 15,
	/* P4098: another transaction is making the partition of this day, or none can. Retry: yes. */
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
	/* Lost during COMMIT, and nobody can be asked. Retry: yes, with the same key. */
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
	/* The call itself is wrong (a NULL that must not be, a session in a wrong state). Retry: no. */
	ONCE_USAGE = 24,
	/* Retry: yes. */
	ONCE_NO_MEMORY = 25,
	/* The caller's effect callback gave up; everything was rolled back. Retry: the caller knows. */
	ONCE_EFFECT = 26,
	/* More operations wait than the batcher's limits allow; nothing was sent. Retry: yes. */
	ONCE_OVERLOADED = 27,
	/*
	 * P4080: the relay's progress came by a restore or by logical replication. Retry: no; see
	 * once.relay_adopt.
	 */
	ONCE_RELAY_OF_ANOTHER_CLUSTER = 28,
	/* P4012: this transaction has not started the intent that it finishes. Retry: no. */
	ONCE_NOT_STARTED = 29,
	/* P4013: COMMIT of a transaction that has started an intent and not finished it. Retry: no. */
	ONCE_UNFINISHED = 30,
	/* P4014: this transaction has started the intent already. Retry: no. */
	ONCE_ALREADY_STARTED = 31,
	/* P4015: finish has another fingerprint than start had. Retry: no. */
	ONCE_ANOTHER_FINGERPRINT = 32
} once_code;

typedef struct once_error once_error;

ONCE_API void once_error_free(once_error *error); /* NULL is allowed. */
ONCE_API once_code once_error_code(const once_error *error);
/* Five characters; "" where there is none. */
ONCE_API const char *once_error_sqlstate(const once_error *error);
/* What happened, one sentence. */
ONCE_API const char *once_error_message(const once_error *error);
/* To which intent; "" where unknown. */
ONCE_API const char *once_error_detail(const once_error *error);
/* What to do; "" where there is nothing to say. */
ONCE_API const char *once_error_hint(const once_error *error);
/* May the same call succeed later, unchanged? */
ONCE_API bool once_error_retriable(const once_error *error);
/* May the effect be committed all the same? */
ONCE_API bool once_error_outcome_unknown(const once_error *error);

/* "mismatch"; "unknown" for a value that is none. */
ONCE_API const char *once_code_name(once_code code);
/*
 * The code of a SQLSTATE, as the library itself classifies; NULL and "" give ONCE_CONNECTION, an
 * unlisted one ONCE_DATABASE.
 */
ONCE_API once_code once_code_of_sqlstate(const char *sqlstate);

/* ---- Values ---------------------------------------------------------------------------------- */

/*
 * The lease of the last attempt has passed, and nothing says whether it had its effect. A scope
 * with a verify function asks that first, whatever a claim says.
 */
typedef enum once_on_stale {
	ONCE_ON_STALE_POLICY = 0,   /* as the scope's on_stale says: IN_DOUBT_STORED, unless set */
	ONCE_ON_STALE_IN_DOUBT = 1, /* IN_DOUBT_STORED */
	/* PROCESSING_STALE: this work is safe to repeat. Also where the silence was noted as a doubt */
	ONCE_ON_STALE_TAKEOVER = 2
} once_on_stale;

/*
 * The name of an intent, and the trace of this attempt at it. tenant NULL is "". All are borrowed.
 * Use designated initialisers, or zero-initialise it: later versions append members.
 */
typedef struct once_intent {
	const char *tenant;
	const char *scope;
	const char *key;
	/*
	 * W3C Trace Context's header of the same name, or NULL. Stored with the first attempt at the
	 * intent; once_answer_traceparent gives it back to every later one. Read by start, finish,
	 * claim, execute, execute_statements and the batcher's claim, by nothing else. A malformed one
	 * counts as none (W3C Trace Context section 3.2.2.3), never as an error.
	 */
	const char *traceparent;
	/*
	 * What a claim does after an attempt that fell silent. Read by claim, claim_many (the same for
	 * all of its intents) and the batcher's claim, by nothing else.
	 */
	once_on_stale on_stale;
} once_intent;

/*
 * Is it a traceparent that is stored: version 00, lower case, neither identifier all zero? NULL is
 * none.
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

/* What is known of an intent; the values of once.state, in their order. */
typedef enum once_state {
	ONCE_STATE_NONE = 0, /* nothing is stored */
	ONCE_STATE_PROCESSING = 1,
	ONCE_STATE_SUCCEEDED = 2,
	ONCE_STATE_FAILED_RETRYABLE = 3,
	ONCE_STATE_FAILED_FINAL = 4,
	ONCE_STATE_IN_DOUBT = 5
} once_state;

/* What an attempt is told. */
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
	/* complete_many, fail_many: this outcome was stored already by this attempt */
	ONCE_REPEATED = 14,
	ONCE_REPORT_REFUSED = 15 /* complete_many, fail_many */
} once_verdict;

ONCE_API const char *once_state_name(once_state state);       /* "succeeded"; "" for NONE */
ONCE_API const char *once_verdict_name(once_verdict verdict); /* "replay_success"; "" for NONE */

/*
 * An outcome to store: what a finished intent answers. Built by the caller; nothing is copied, so
 * all that it points to must live until the call returns. Zero-initialise it: `once_outcome outcome
 * = {0};`. Later versions append members.
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
	 * Of a retryable failure whose answer redirects the request (307, 308): the fingerprint of the
	 * request that it leads to, which is the same intent from then on. NULL: none. Read of failures
	 * only.
	 */
	const once_fingerprint *redirect;
} once_outcome;

/*
 * What the contract answered about one intent. Made by the library, freed by the caller with
 * once_answer_free.
 */
typedef struct once_answer once_answer;

ONCE_API void once_answer_free(once_answer *answer); /* NULL is allowed. */
ONCE_API once_verdict once_answer_verdict(const once_answer *answer);
ONCE_API once_state once_answer_state(const once_answer *answer);
ONCE_API int once_answer_fence(const once_answer *answer);           /* 0: none */
ONCE_API int once_answer_attempts(const once_answer *answer);        /* 0: not told */
ONCE_API int once_answer_response_status(const once_answer *answer); /* 0: none */
/* JSON text, or NULL */
ONCE_API const char *once_answer_response_headers(const once_answer *answer);
ONCE_API once_bytes once_answer_response_body(const once_answer *answer);
/* NULL: none; so all below */
ONCE_API const char *once_answer_result_type(const once_answer *answer);
ONCE_API const char *once_answer_result_id(const once_answer *answer);
ONCE_API const char *once_answer_error_code(const once_answer *answer);
ONCE_API const char *once_answer_error_message(const once_answer *answer);
ONCE_API const char *once_answer_owner(const once_answer *answer);
ONCE_API const char *once_answer_lease_until(
    const once_answer *answer); /* as PostgreSQL prints it, in the session's time zone */
/*
 * The intent's: of its first attempt that had one, not of this attempt, so that one trace finds
 * them all. NULL with MISMATCHED, whose caller must not learn it.
 */
ONCE_API const char *once_answer_traceparent(const once_answer *answer);
/* Is this attempt to do the work? True for PROCEED, NEW_CLAIM, and the two takeovers of a claim. */
ONCE_API bool once_answer_may_run(const once_answer *answer);

/*
 * Answers to a batch, one per element, in order. Freed with once_answers_free; its answers with it.
 */
typedef struct once_answers once_answers;
ONCE_API void once_answers_free(once_answers *answers);
/* NULL past the end */
ONCE_API const once_answer *once_answers_at(const once_answers *answers, size_t index);

/* ---- Sessions -------------------------------------------------------------------------------- */

typedef struct once_session once_session;

ONCE_API const char *once_version(void);  /* of the library, "1.0.0" */
ONCE_API int once_contract_version(void); /* the contract that this library speaks */

/*
 * Opens a connection and a session on it. conninfo NULL or "" takes libpq's environment variables.
 * Errors: ONCE_CONNECTION (the message says which address was tried), ONCE_CONTRACT,
 * ONCE_NO_MEMORY. Such a session can reconnect by itself.
 */
ONCE_API ONCE_MUST_CHECK once_code once_session_open(const char *conninfo, once_session **session, once_error **error);
/*
 * A session on a connection that the caller owns and keeps: blocking mode, idle or inside a
 * transaction. It is never closed or reset by the library, so a connection lost during COMMIT is
 * ONCE_OUTCOME_UNKNOWN: retry with the same key on a new one.
 */
ONCE_API ONCE_MUST_CHECK once_code once_session_attach(PGconn *connection, once_session **session, once_error **error);
ONCE_API void once_session_close(
    once_session *session); /* NULL is allowed. Closes only a connection that the session opened. */
ONCE_API PGconn *once_session_connection(
    const once_session *session); /* for the caller's own statements; owned by the session */
/*
 * Whether statements are prepared, in the round trip of their first execution: ours, BEGIN and
 * COMMIT, and the first 64 different texts of once_execute_statements (a parameter keeps its first
 * type). One that is gone (DISCARD ALL) or whose result has changed (ALTER TABLE) is prepared anew;
 * what met that runs again as text, but fails in a transaction of the caller's (26000, 0A000).
 * Off at first, and after three such misses in a row, as behind a pooler that moves sessions.
 */
ONCE_API void once_session_prepare(once_session *session, bool prepare);
/*
 * Whether the contract in the database is the library's or a later one, which keeps all that this
 * one has. Errors: ONCE_CONTRACT (missing, too old), ONCE_CONNECTION.
 */
ONCE_API ONCE_MUST_CHECK once_code once_session_check(once_session *session, once_error **error);

/* ---- Keys and fingerprints ------------------------------------------------------------------- */
/*
 * docs/fingerprint.md says in full what is a key, what is hashed, and in which form; spec/vectors
 * has examples.
 */

#define ONCE_KEY_BYTES_MAX 255
/*
 * once.key_of_header: the key in the value of an Idempotency-Key header. That is a Structured Field
 * String (RFC 8941 section 3.3.3), its parameters checked and ignored; unless strict, a bare key
 * too: visible ASCII without space, quote, backslash, comma and semicolon, so that neither a list
 * nor a broken string is ever a key. `abc` and `"abc"` are one key. Spaces around the value are
 * ignored; a tab is refused, as RFC 8941 knows only SP. A good key has 1 to length_max printable
 * ASCII characters. length_max: more than ONCE_KEY_BYTES_MAX counts as that. key: room for
 * ONCE_KEY_BYTES_MAX + 1 bytes; terminated; "" unless good. Fails with ONCE_KEY_MALFORMED, whose
 * detail is a sentence for the client. Never blocks.
 */
ONCE_API ONCE_MUST_CHECK once_code once_key_of_header(once_bytes value, bool strict, size_t length_max, char *key,
                                                      once_error **error);

/*
 * once.fingerprint(bytea), which is once.fingerprint(text) too: of exactly these bytes. The
 * tenant's salt is fetched once per session and tenant.
 */
ONCE_API ONCE_MUST_CHECK once_code once_fingerprint_bytes(once_session *session, const char *tenant, once_bytes bytes,
                                                          once_fingerprint *fingerprint, once_error **error);
/*
 * once.fingerprint(jsonb): of the value's canonical form, computed by the server. ONCE_DATABASE
 * (22P02) where json is not JSON. Of two members with one name jsonb keeps the last.
 */
ONCE_API ONCE_MUST_CHECK once_code once_fingerprint_json(once_session *session, const char *tenant, const char *json,
                                                         once_fingerprint *fingerprint, once_error **error);
/*
 * once.request_fingerprint, the gateway's: of method, content type, body and target, each
 * length-prefixed, so that no two requests run together. target: the Host header in lower case,
 * then path and query ("shop.test/pay?dry=0"). content_type NULL is "". canonical_json: the body is
 * hashed in canonical form where it has one (see once_json_canonical), else as it is.
 */
ONCE_API ONCE_MUST_CHECK once_code once_fingerprint_request(once_session *session, const char *tenant,
                                                            const char *method, const char *target,
                                                            const char *content_type, once_bytes body,
                                                            bool canonical_json, once_fingerprint *fingerprint,
                                                            once_error **error);

/* ---- The contract, function by function ------------------------------------------------------ */
/*
 * See docs/sql.md: each call below is the SQL function of the same name, with its SQLSTATEs. All
 * may fail with ONCE_CONNECTION, ONCE_CONTRACT, ONCE_DATABASE, ONCE_NO_MEMORY and ONCE_USAGE
 * besides. Call the other functions of the contract (once.receive, once.try_lock, once.story, ...)
 * as SQL, on once_session_connection.
 */

/*
 * In a transaction that the caller has opened, else ONCE_USAGE: nothing would guard the effect. So
 * for finish (which says ONCE_NOT_STARTED). Verdict PROCEED or REPLAY; every other case is an
 * error.
 */
ONCE_API ONCE_MUST_CHECK once_code once_start(once_session *session, const once_intent *intent,
                                              const once_fingerprint *fingerprint, once_answer **answer,
                                              once_error **error);
/* state: SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE. The caller commits. */
ONCE_API ONCE_MUST_CHECK once_code once_finish(once_session *session, const once_intent *intent,
                                               const once_fingerprint *fingerprint, once_state state,
                                               const once_outcome *outcome, once_error **error);
/* owner NULL: none. lease_ms, retention_ms 0: the scope's. */
ONCE_API ONCE_MUST_CHECK once_code once_claim(once_session *session, const once_intent *intent,
                                              const once_fingerprint *fingerprint, const char *owner, int64_t lease_ms,
                                              int64_t retention_ms, once_answer **answer, once_error **error);
/*
 * ONCE_OK where the outcome is stored under this very fence: by this call, or by one before it with
 * the same outcome, so a report whose answer was lost can be sent again. Everything else that is
 * stored, another fence too, is ONCE_COMPLETION_REFUSED; in once_fail ONCE_FAILURE_REFUSED.
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
	const char *aggregate_type; /* NULL: none; so all below */
	const char *aggregate_id;
	const char *event_type;  /* NULL: the topic */
	const char *headers;     /* a JSON object as text */
	const char *traceparent; /* NULL: that of the intent which caused it */
	/*
	 * A timestamptz as text, with its zone: it is published then and not sooner. NULL: at once. See
	 * once.emit_later.
	 */
	const char *not_before;
} once_event;
/*
 * cause NULL: no intent (then only tenant matters, and two emits are two events). event_id takes 36
 * characters and a NUL.
 */
ONCE_API ONCE_MUST_CHECK once_code once_emit(once_session *session, const char *tenant, const once_intent *cause,
                                             const once_event *event, char event_id[37], once_error **error);
/*
 * once_emit for a payload of bytes with a content type of the application's (1 to 255 characters of
 * visible ASCII, with spaces within), such as Avro or Protobuf. payload and not_before of the event
 * are NULL: it is published at once.
 */
ONCE_API ONCE_MUST_CHECK once_code once_emit_bytes(once_session *session, const char *tenant, const once_intent *cause,
                                                   const once_event *event, once_bytes payload,
                                                   const char *content_type, char event_id[37], once_error **error);
/* *before is the state that was decided on. */
ONCE_API ONCE_MUST_CHECK once_code once_resolve(once_session *session, const once_intent *intent, once_state as_state,
                                                const char *reason, const once_outcome *outcome, once_state *before,
                                                once_error **error);
/*
 * Batches: one statement, one commit. All elements are of one tenant; intents[i].tenant is not
 * read.
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

/* What an effect callback says. */
typedef enum once_effect_result {
	ONCE_EFFECT_DONE = 0, /* commit, with state SUCCEEDED and *outcome */
	/* it failed for good: roll the effect back, record *outcome as FAILED_FINAL, commit that */
	ONCE_EFFECT_FAILED = 1,
	ONCE_EFFECT_RETRY = 2, /* roll everything back and run the callback again, as after 40001 */
	ONCE_EFFECT_ABORT = 3  /* roll everything back and record nothing: ONCE_EFFECT */
} once_effect_result;

/*
 * The effect: statements on `connection`, inside the transaction, without COMMIT or ROLLBACK. May
 * run more than once (each time after a rollback), so whatever it does outside the database must
 * bear that. What *outcome points to must live until once_execute returns or the callback runs
 * again. If a statement fails, set *failed to its result, which the library clears, and return
 * ONCE_EFFECT_RETRY: 40001 and 40P01 run again, anything else becomes an error with that
 * statement's SQLSTATE. Without a failed statement ONCE_EFFECT_RETRY runs again until the deadline.
 */
typedef once_effect_result (*once_effect)(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed);

/* Zero-initialise; a zero takes the default. Later versions append members. */
typedef struct once_options {
	int64_t deadline_ms; /* for the whole call, retries and waits included; default 30,000 */
	/*
	 * how long to wait for another attempt that is running, before ONCE_ACTIVE; default: not at all
	 */
	int64_t wait_ms;
	int64_t backoff_ms;     /* first backoff; doubled each time, full jitter; default 5 */
	int64_t backoff_max_ms; /* default 1,000 */
	/* "read committed", "repeatable read", "serializable"; NULL: the database's default */
	const char *isolation;
} once_options;

/*
 * Runs an effect once: BEGIN and once.start in one round trip, the effect, once.finish and COMMIT
 * in one; a replay: ROLLBACK. *answer is the outcome, fresh (PROCEED) or stored (REPLAY): the same
 * bytes. Retries 40001 and 40P01 with backoff until the deadline. If the connection is lost during
 * COMMIT, reconnects and asks: the intent's row says whether it committed. The session must not be
 * in a transaction; the callback leaves no pipeline open. Errors besides those of start and finish:
 * ONCE_SERIALIZATION or ONCE_DEADLINE after the last retry, ONCE_OUTCOME_UNKNOWN, ONCE_EFFECT.
 * ONCE_FINAL_FAILURE for an intent that failed for good, now or before: once_peek has its outcome.
 */
ONCE_API ONCE_MUST_CHECK once_code once_execute(once_session *session, const once_intent *intent,
                                                const once_fingerprint *fingerprint, once_effect effect, void *argument,
                                                const once_options *options, once_answer **answer, once_error **error);

/* Parameters ($1..$n) are text, NULL is SQL's. Not COPY, nor what begins or ends a transaction. */
typedef struct once_statement {
	const char *sql;
	int parameter_count;
	const char *const *parameters;
} once_statement;

/*
 * once_execute for a list of statements with a known outcome: all in one round trip, from BEGIN to
 * COMMIT. once.finish_new goes first and raises unless the effect is to run: the server then skips
 * what stands behind it, and a replay is read in a second round trip.
 */
ONCE_API ONCE_MUST_CHECK once_code once_execute_statements(once_session *session, const once_intent *intent,
                                                           const once_fingerprint *fingerprint, size_t count,
                                                           const once_statement *statements,
                                                           const once_outcome *outcome, const once_options *options,
                                                           once_answer **answer, once_error **error);

/* ---- JSON in canonical form ------------------------------------------------------------------ */

/*
 * The canonical form of a JSON text: the text that PostgreSQL's jsonb has, its numbers without
 * trailing zeros (docs/fingerprint.md), of *length bytes and not terminated, in memory that the
 * caller frees with free(). *canonical stays NULL where there is none, which is not an error: the
 * text is not JSON (RFC 8259), is longer than ONCE_CANONICAL_BYTES_MAX, nested deeper than 64,
 * names a member twice, or holds U+0000, half a surrogate pair, a number of more than 100
 * characters (as written, or in plain notation), or an exponent beyond 99.
 */
#define ONCE_CANONICAL_BYTES_MAX (1024 * 1024)
ONCE_API ONCE_MUST_CHECK once_code once_json_canonical(once_bytes json, char **canonical, size_t *length,
                                                       once_error **error);

#ifdef __cplusplus
}
#endif

#endif
