/* SPDX-License-Identifier: PostgreSQL */
/*
 * pgonce.h: libpgonce, the pgonce contract from C. The one public header.
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
	 * claim, execute, execute_statements, receive_intent and the batcher's claim, by nothing else.
	 * A malformed one counts as none (W3C Trace Context section 3.2.2.3), never as an error.
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
ONCE_API const char *once_answer_created_at(const once_answer *answer);
ONCE_API const char *once_answer_completed_at(const once_answer *answer);
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
ONCE_API size_t once_answers_count(const once_answers *answers);
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
 * docs/fingerprint.md says in full what is a key, what is hashed, and in which form; tests/vectors
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
 * besides.
 */

/*
 * In a transaction that the caller has opened, else ONCE_USAGE: nothing would guard the effect. So
 * for finish (which says ONCE_NOT_STARTED), receive and the locks. Verdict PROCEED or REPLAY; every
 * other case is an error.
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
/*
 * *process true: apply the message in this transaction, which the caller has opened; false: it was
 * applied before.
 */
ONCE_API ONCE_MUST_CHECK once_code once_receive(once_session *session, const char *tenant, const char *consumer,
                                                const char *message_id, const once_fingerprint *fingerprint,
                                                bool *process, once_error **error);
/*
 * once_receive for a message that comes with a trace: its scope is the consumer, its key the
 * message's id.
 */
ONCE_API ONCE_MUST_CHECK once_code once_receive_intent(once_session *session, const once_intent *message,
                                                       const once_fingerprint *fingerprint, bool *process,
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
/*
 * For the transaction that the caller has opened: the lock ends with it. *locked false: another
 * transaction has it.
 */
ONCE_API ONCE_MUST_CHECK once_code once_try_lock(once_session *session, const char *resource, bool *locked,
                                                 once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_lock(once_session *session, const char *resource, int64_t wait_ms, bool *locked,
                                             once_error **error);
/* *before is the state that was decided on. */
ONCE_API ONCE_MUST_CHECK once_code once_resolve(once_session *session, const once_intent *intent, once_state as_state,
                                                const char *reason, const once_outcome *outcome, once_state *before,
                                                once_error **error);
/* once.story as JSON text, freed by the caller with free(); NULL where nothing is stored. */
ONCE_API ONCE_MUST_CHECK once_code once_story(once_session *session, const once_intent *intent, char **json,
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
ONCE_API ONCE_MUST_CHECK once_code once_peek_many(once_session *session, const char *tenant, size_t count,
                                                  const once_intent *intents, once_answers **answers,
                                                  once_error **error);

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

/* ---- Fingerprints without a session ---------------------------------------------------------- */

#define ONCE_SALT_BYTES 32
/*
 * once_fingerprint_request for a body that comes in pieces, with a salt that the caller has
 * (once_batcher_salt): the same request gives the same fingerprint both ways. body_bytes is the
 * length of the whole body; finish fails with ONCE_USAGE if the pieces add up to another one. Never
 * blocks.
 */
typedef struct once_hash once_hash;
ONCE_API ONCE_MUST_CHECK once_code once_hash_start(const unsigned char salt[ONCE_SALT_BYTES], const char *method,
                                                   const char *target, const char *content_type, uint64_t body_bytes,
                                                   once_hash **hash, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_hash_add(once_hash *hash, once_bytes piece, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_hash_finish(once_hash *hash, once_fingerprint *fingerprint, once_error **error);
/*
 * After once_hash_finish: of the same request at another target, which an answer has redirected it
 * to. See once_outcome.
 */
ONCE_API ONCE_MUST_CHECK once_code once_hash_redirect(const once_hash *hash, const char *target,
                                                      once_fingerprint *fingerprint, once_error **error);
ONCE_API void once_hash_free(once_hash *hash); /* NULL is allowed. */
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

/* ---- The evented half: a batcher ------------------------------------------------------------- */
/*
 * For servers with an event loop: many requests submit operations, each with a callback; the
 * batcher joins them into the *_many functions, one batch in flight per connection, the next one
 * growing meanwhile. It has two connections: 0 for what starts an attempt (claims, peeks, salts), 1
 * for what ends it (completions, failures, renewals, releases). While 1 is busy, what ends attempts
 * shares the transactions of 0; there it waits at most 50 ms for a row that somebody has locked,
 * and goes by 1 then, so it never holds up claims for long. It is a state machine: it never blocks,
 * sleeps or starts a thread, and it knows the loop only through once_loop. One batcher belongs to
 * one thread.
 *
 * An operation ends exactly once, in its callback, with an answer or an error; never inside the
 * call that submits it. A callback may submit, forget, or close the batcher. Operations that wait
 * together may be carried out in any order: where the order matters, submit one from the callback
 * of the other.
 *
 * A batch is one transaction. One operation's failure never spoils its neighbours: what failed
 * together goes again apart. Serialization failures, deadlocks and timeouts of the server are
 * retried a few times.
 *
 * When a connection is lost, the batcher reconnects with backoff. Reports, renewals and releases in
 * flight are sent again (the fence makes that safe: a report that had arrived is answered REPEATED,
 * which the batcher passes on as STORED; a release or a retryable failure that had arrived may be
 * answered REPORT_REFUSED: either way the intent is no longer this attempt's). A claim in flight is
 * resolved by asking: each statement's claims carry an owner of its own (the caller's, '#', and a
 * number that is used once), so an intent that turns out to be processing under it is this very
 * attempt's, with its fence. Its verdict is NEW_CLAIM; of a later attempt RETRYABLE_FAILURE where
 * its claim takes nothing over (on_stale), and else PROCESSING_STALE: it may have been a takeover.
 *
 * When an operation's time is over, its submitter is told, and what may have an effect goes on
 * without him: a report or a release is tried on for 9 more operation timeouts (ONCE_DEADLINE,
 * outcome unknown); a claim that was sent (ONCE_OUTCOME_UNKNOWN) is found out about, and given back
 * if it was granted, since nobody will run it: with once.release; a takeover from an attempt that
 * was lost by ending its lease, so that the next attempt takes over from a lost one too. So is a
 * claim that was forgotten. For a graceful end wait until nothing is pending, then close.
 *
 * In conninfo, tcp_user_timeout and keepalives (PostgreSQL manual, "Parameter Key Words") find a
 * dead network sooner than answer_timeout_ms does; target_session_attrs=read-write finds the
 * primary. A server that says it is a standby is left.
 */
typedef struct once_batcher once_batcher;
typedef struct once_operation once_operation;

#define ONCE_NEVER INT64_MAX
/*
 * What a loop does for a batcher. Each hook may be called again with what it was called with last,
 * and must bear that. `connection` is 0 or 1. A hook must not call the batcher.
 */
typedef struct once_loop {
	void *context; /* first argument of each hook */
	/*
	 * Watch fd, level-triggered (libpq need not drain the socket), and call once_batcher_ready when
	 * it is ready. Both false: watch for nothing, but know it. Another fd than before: the old one
	 * was forgotten first.
	 */
	void (*watch)(void *context, int connection, int fd, bool read, bool write);
	/*
	 * Forget fd, which libpq is about to close, or at the connection's end has just closed: that
	 * the kernel does not know it any more is no error. Never close it.
	 */
	void (*forget)(void *context, int connection, int fd);
	/*
	 * Call once_batcher_tick when now_ms reaches due_ms; ONCE_NEVER: not at all. One timer; the
	 * last call counts. idle: no operation waits for it, so a loop that is about to end need not
	 * stay for it. A tick that comes too soon does no harm.
	 */
	void (*timer)(void *context, int64_t due_ms, bool idle);
	/*
	 * Call once_batcher_flush once, after the events of this round: what one round brings goes out
	 * as one batch.
	 */
	void (*defer)(void *context);
	int64_t (*now_ms)(void *context); /* a monotonic clock */
} once_loop;

/* Zero-initialise; a zero takes the default. Later versions append members. */
typedef struct once_batcher_options {
	int64_t connect_timeout_ms; /* one attempt to connect; default 5,000 */
	/* a batch in flight; then its connection is given up; default 5,000 */
	int64_t answer_timeout_ms;
	/* an operation from submission to callback; then ONCE_DEADLINE; default 10,000 */
	int64_t operation_timeout_ms;
	/* first pause before reconnecting, doubled each time, full jitter; default 50 */
	int64_t backoff_ms;
	int64_t backoff_max_ms; /* default 2,000 */
	/* how long a batch may wait to grow while none is in flight; default 0: not at all */
	int64_t batch_age_ms;
	size_t batch_max; /* operations in a batch; default 256, at most 10,000 */
	/* their bytes, or those of the answers to expect; default 8 MiB. A larger one goes alone. */
	size_t batch_bytes_max;
	/* operations submitted and not ended; beyond: ONCE_OVERLOADED; default 65,536 */
	size_t pending_max;
	size_t pending_bytes_max; /* their bytes; default 256 MiB */
	/* prepared statements; given up for good where a pooler turns out not to know them */
	bool prepare;
	/*
	 * For who must not keep others waiting: connects at once and not with the first operation; and
	 * once an attempt to connect has failed, until one succeeds, a claim, a peek and a salt end at
	 * once with ONCE_CONNECTION. What may be under way, and every report, is tried on all the same.
	 */
	bool impatient;
	/* to learn statistics.server and .retention_ms with each connection: once.count_cached */
	bool caches;
} once_batcher_options;

/*
 * conninfo NULL or "" takes libpq's environment variables. Copies what it is given, contacts nobody
 * before the first operation or, with impatient, flush. Name look-up in libpq blocks: use a socket
 * directory or hostaddr. Errors: ONCE_USAGE (a conninfo that libpq cannot read, a hook missing, a
 * time below 0 or above 7 days), ONCE_NO_MEMORY.
 */
ONCE_API ONCE_MUST_CHECK once_code once_batcher_open(const char *conninfo, const once_loop *loop,
                                                     const once_batcher_options *options, once_batcher **batcher,
                                                     once_error **error);
/*
 * Ends every operation with ONCE_CONNECTION (outcome unknown where it was in flight), within this
 * call. The hooks are not called any more afterwards, and the loop must not call the batcher: drop
 * what it holds for flush and tick. From a callback: it takes effect at once, the memory goes when
 * the callback has returned. NULL is allowed.
 */
ONCE_API void once_batcher_close(once_batcher *batcher);

/* What the loop calls; not from a callback. Callbacks run inside these three, and inside close. */
ONCE_API void once_batcher_ready(once_batcher *batcher, int connection, bool readable, bool writable);
ONCE_API void once_batcher_tick(once_batcher *batcher);
ONCE_API void once_batcher_flush(once_batcher *batcher);

/*
 * How an operation ends. answer: NULL where error is not; both are borrowed for the call. A verdict
 * such as MISMATCHED or REPORT_REFUSED is an answer; INVALID is turned into the error of its
 * SQLSTATE. The operation is no more: do not forget it afterwards (in its own callback that does
 * nothing).
 */
typedef void (*once_done)(void *argument, const once_answer *answer, const once_error *error);

/*
 * Submitting: everything is copied. operation: NULL where it will never be forgotten. done may be
 * NULL for reports, renewals and releases. owner: NULL is ""; the first 200 bytes of it are kept.
 * lease_ms, retention_ms 0: the scope's. Errors, at once and without a callback: ONCE_USAGE;
 * ONCE_REFUSED, ONCE_SCOPE_REQUIRED and ONCE_KEY_MALFORMED (a tenant, scope or key that is missing
 * or not UTF-8: it would spoil a batch); ONCE_OVERLOADED; ONCE_NO_MEMORY; ONCE_CONNECTION (the
 * batcher is closed).
 */
ONCE_API ONCE_MUST_CHECK once_code once_batcher_claim(once_batcher *batcher, const once_intent *intent,
                                                      const once_fingerprint *fingerprint, const char *owner,
                                                      int64_t lease_ms, int64_t retention_ms, once_done done,
                                                      void *argument, once_operation **operation, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_complete(once_batcher *batcher, const once_intent *intent, int fence,
                                                         const once_outcome *outcome, once_done done, void *argument,
                                                         once_operation **operation, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_fail(once_batcher *batcher, const once_intent *intent, int fence,
                                                     once_failure failure, const once_outcome *outcome, once_done done,
                                                     void *argument, once_operation **operation, once_error **error);
/*
 * Answer: verdict STORED where the lease is still this attempt's, REPORT_REFUSED where not. So for
 * release.
 */
ONCE_API ONCE_MUST_CHECK once_code once_batcher_renew(once_batcher *batcher, const once_intent *intent, int fence,
                                                      int64_t lease_ms, once_done done, void *argument,
                                                      once_operation **operation, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_release(once_batcher *batcher, const once_intent *intent, int fence,
                                                        once_done done, void *argument, once_operation **operation,
                                                        once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_peek(once_batcher *batcher, const once_intent *intent, once_done done,
                                                     void *argument, once_operation **operation, once_error **error);
/*
 * The salt of a tenant's fingerprints. True and the salt where the batcher knows it (it remembers a
 * bounded number of tenants); else false: fetch it with once_batcher_salt, whose answer has it as
 * once_answer_salt.
 */
ONCE_API bool once_batcher_known_salt(const once_batcher *batcher, const char *tenant,
                                      unsigned char salt[ONCE_SALT_BYTES]);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_salt(once_batcher *batcher, const char *tenant, once_done done,
                                                     void *argument, once_operation **operation, once_error **error);
/*
 * Attempts that were answered from copies of stored outcomes, for once.counts(). The answer,
 * STORED, says no more; statistics.server and statistics.retention_ms are as of then. Goes by the
 * connection of the claims. After a lost connection it is sent again, so it may count twice.
 * ONCE_USAGE where options.caches is not set.
 */
typedef struct once_cached {
	int64_t replays;
	int64_t finals; /* replays of failures that are final */
	int64_t mismatches;
} once_cached;
ONCE_API ONCE_MUST_CHECK once_code once_batcher_count_cached(once_batcher *batcher, const once_cached *cached,
                                                             once_done done, void *argument, once_operation **operation,
                                                             once_error **error);
/*
 * Of a batcher's claim that is a replay: for how long its outcome is kept at least, at most a day;
 * a copy may be given for so long from when the claim was submitted. 0: not known.
 */
ONCE_API int once_answer_kept_ms(const once_answer *answer);
/* of once_batcher_salt; else NULL */
ONCE_API once_bytes once_answer_salt(const once_answer *answer);

/*
 * The submitter goes away: the callback will not run. A report, renewal or release goes on, so that
 * a completion outlives its client; a claim, peek or salt that was not sent is dropped, and a claim
 * that was sent and is granted is given back. Not after the callback has run. NULL is allowed.
 */
ONCE_API void once_operation_forget(once_operation *operation);

/* Counted since the batcher was opened. Later versions append members. */
#define ONCE_LATENCY_BUCKETS 16
typedef struct once_batcher_statistics {
	size_t pending; /* operations not ended, the forgotten included */
	size_t pending_bytes;
	bool connected[2];
	uint64_t connects; /* successful ones, the contract checked, so reconnects are this less 2 */
	uint64_t connect_failures;
	/* sent: with what starts attempts, and with what ends them; one with both counts in both */
	uint64_t batches[2];
	uint64_t operations[2];       /* in them */
	uint64_t resolved_claims;     /* claims found to be ours after a lost connection */
	uint64_t resent;              /* operations sent again after one */
	uint64_t timeouts;            /* of connecting and of batches */
	uint64_t released_claims;     /* granted when nobody waited any more, and given back */
	uint64_t failed_transactions; /* rolled back by the server; what shared one goes again apart */
	/*
	 * Batches by their time from sending to answer: below 2^i * 100 microseconds; the last bucket
	 * has the rest.
	 */
	uint64_t latency[ONCE_LATENCY_BUCKETS];
	uint64_t latency_sum_us;
	uint64_t losses; /* connections that were lost after they had been made */
	/*
	 * Where options.caches is set: the server that all connections lead to, as a number that is
	 * another one after a restart, a failover or a restore, in another database and for another
	 * role; 0: it is not known, or not one. And the shortest retention of all scopes, of at most a
	 * day.
	 */
	uint64_t server;
	int64_t retention_ms;
} once_batcher_statistics;
ONCE_API void once_batcher_count(const once_batcher *batcher, once_batcher_statistics *statistics);

/* ---- A loop on poll(2) ----------------------------------------------------------------------- */
/* For programs without a loop of their own, and as an example of an adapter. */
typedef struct once_poll once_poll;
ONCE_API ONCE_MUST_CHECK once_code once_poll_open(const char *conninfo, const once_batcher_options *options,
                                                  once_poll **poll, once_error **error);
ONCE_API once_batcher *once_poll_batcher(once_poll *poll);
/*
 * Waits for events at most timeout_ms (-1: until one comes) and handles them. ONCE_USAGE where
 * poll(2) fails, and in a callback.
 */
ONCE_API ONCE_MUST_CHECK once_code once_poll_run(once_poll *poll, int64_t timeout_ms, once_error **error);
/* And its batcher; as once_batcher_close, from a callback too. NULL is allowed. */
ONCE_API void once_poll_close(once_poll *poll);

#ifdef __cplusplus
}
#endif

#endif
