/* SPDX-License-Identifier: PostgreSQL */
/*
 * internal.h: declarations shared by the files of the library. Arrows: prepared <- session <- call
 * <- contract, batch, fingerprint, pipeline <- doubt <- execute; error, names and witness are below
 * all of them. The evented half (evented.h) is beside session and above call.
 */
#pragma once

#include <string.h>

#include "pgonce.h"
#include "sql.h"

/* The version of the contract that the SQL in lib/sql/ is written for. */
enum {
	CONTRACT_VERSION = 1
};

enum {
	/* spec: name-bytes */
	NAME_BYTES_MAX = 255 * 4, /* of a scope or a tenant: its characters in UTF-8 */
	/* end of spec */
	SESSION_TENANT_MAX = NAME_BYTES_MAX,
	SALT_BYTES = 32,
	CALL_PARAMETERS_MAX = 13,
	/*
	 * The number of different texts of callers' statements that a connection prepares; others are
	 * sent as text.
	 */
	PREPARED_TEXTS_MAX = 64,
	PREPARED_NAME_BYTES = 48,
	/* How often in a row a prepared statement may be missing on a connection. */
	PREPARED_MISSES_MAX = 3
};

/* A caller's statement that is prepared. */
typedef struct prepared_text {
	uint64_t hash;
	char *text; /* owned; NULL: the place is free */
	char name[PREPARED_NAME_BYTES];
	bool known;
} prepared_text;

struct once_session {
	PGconn *connection;
	bool owns_connection;
	bool prepares;            /* send each statement as a prepared one */
	bool prepared[SQL_COUNT]; /* ... those of the library that this connection has prepared */
	prepared_text texts[PREPARED_TEXTS_MAX];
	const char *outdated; /* the name of a statement whose plan the server refuses: to deallocate */
	bool *outdated_known;
	int misses;  /* in a row */
	bool salted; /* salt belongs to salt_tenant */
	char salt_tenant[SESSION_TENANT_MAX + 1];
	unsigned char salt[SALT_BYTES];
	uint64_t random_state; /* for the jitter of backoffs */
};

/* ---- error.c: every way to fail makes one of these ---- */
/*
 * Each returns the code that it stores, so that a function can end with `return
 * once_fail_...(error, ...)`.
 */
once_code error_make(once_error **error, once_code code, const char *sqlstate, bool outcome_unknown,
                     const char *message, const char *detail, const char *hint);
once_code error_usage(once_error **error, const char *message);
/* Can libpq read it? The error repeats no part of a string that may contain a password. */
once_code error_of_conninfo(once_error **error, const char *conninfo);
once_code error_no_memory(once_error **error);
/*
 * From a result of the server; or from the connection if the result says nothing (NULL, or the
 * connection is gone). The meaning of a missing function depends on whose statement failed: the
 * library calls only the contract's functions.
 */
once_code error_of_result(once_error **error, const PGconn *connection, const PGresult *result);
once_code error_of_callers_result(once_error **error, const PGconn *connection, const PGresult *result);
once_code error_of_connection(once_error **error, const PGconn *connection);
/* From a server's message when it refused a connection. */
once_code error_of_refusal(once_error **error, const char *sqlstate, const char *message);
void error_discard(once_error **error);

/* Is this a passing trouble of the server: resources, a lock or a statement that timed out? */
bool error_passes(const char *sqlstate);
/* An answer of a form that this library does not know. */
once_code error_of_shape(once_error **error);

/* ---- answer.c ---- */
struct once_answer {
	PGresult *result; /* owned by a single answer; NULL in a batch, which owns it */
	void *storage;    /* owned: the copy of a fresh outcome */
	once_verdict verdict;
	once_state state;
	int fence;
	int attempts;
	int response_status;
	const char *response_headers;
	once_bytes response_body;
	const char *result_type;
	const char *result_id;
	const char *error_code;
	const char *error_message;
	const char *owner;
	const char *lease_until;
	const char *created_at;
	const char *traceparent;
	int kept_ms;
	int slot;
};

typedef enum answer_column {
	COLUMN_VERDICT,
	COLUMN_STATE,
	COLUMN_FENCE,
	COLUMN_ATTEMPTS,
	COLUMN_RESPONSE_STATUS,
	COLUMN_RESPONSE_HEADERS,
	COLUMN_RESPONSE_BODY,
	COLUMN_RESULT_TYPE,
	COLUMN_RESULT_ID,
	COLUMN_ERROR_CODE,
	COLUMN_ERROR_MESSAGE,
	COLUMN_OWNER,
	COLUMN_LEASE_UNTIL,
	COLUMN_CREATED_AT,
	COLUMN_TRACEPARENT,
	COLUMN_KEPT_MS,
	ANSWER_COLUMNS
} answer_column;
/* The positions of a result's columns, found once for all its rows; -1 for a missing column. */
typedef struct answer_columns {
	int at[ANSWER_COLUMNS];
} answer_columns;
/* The first column of this name; -1: there is none. */
int find_column(const PGresult *result, const char *name);
void answer_find_columns(const PGresult *result, answer_columns *columns);
/* Reads a row into a zeroed answer; it points into the result. */
void answer_read(once_answer *answer, const PGresult *result, const answer_columns *columns, int row);
/*
 * Takes over the result, even if it fails. The answer reads row 0; a result without rows is
 * ONCE_CONTRACT.
 */
once_code answer_of_result(PGresult *result, once_answer **answer, once_error **error);
/* The same of SQL_START, whose one column is a once.started. */
once_code answer_of_started(PGresult *result, once_answer **answer, once_error **error);
bool rows_are_in_order(const PGresult *result, size_t count);
once_code answers_of_result(PGresult *result, size_t count, once_answers **answers, once_error **error);
/* A fresh outcome of the intent, copied. */
once_code answer_of_outcome(const once_intent *intent, const once_outcome *outcome, once_state state, int fence,
                            once_answer **answer, once_error **error);

void answer_set_fence(once_answer *answer, int fence);

/* ---- prepared.c: the prepared statements of a connection ---- */
/* name NULL: the statement is sent as text. *known: the connection has it, as far as is known. */
typedef struct prepared {
	const char *name;
	bool *known;
} prepared;
prepared prepared_query(once_session *session, enum sql_id id);
/* For a caller's statement; a new one takes a free place, if there is one. */
prepared prepared_text_of(once_session *session, const char *text);
/*
 * A statement failed: in its preparation (in_parse), or as one prepared just now (fresh) or
 * earlier. Returns true, and notes it, if only the prepared statement is at fault: the same
 * statement sent as text does not fail for this reason.
 */
bool prepared_missed(once_session *session, prepared statement, bool in_parse, bool fresh, const char *sqlstate);
/* A statement prepared earlier still existed. */
void prepared_met(once_session *session);
/* Deallocates a statement that the server refuses to run, once no transaction is open. */
void prepared_tidy(once_session *session);
/* The connection is a new one, or the server has forgotten its statements. */
void prepared_forget(once_session *session);
void prepared_free(once_session *session);

/* ---- call.c: parameters, and one round trip ---- */
typedef struct call {
	enum sql_id id;
	int count;
	const char *values[CALL_PARAMETERS_MAX];
	int lengths[CALL_PARAMETERS_MAX];
	int formats[CALL_PARAMETERS_MAX];
	/* Integers are sent in binary and live here; arrays are allocated. */
	unsigned char numbers[CALL_PARAMETERS_MAX][8];
	void *owned[CALL_PARAMETERS_MAX];
	bool out_of_memory;
	bool too_long;
} call;

/* Types of pg_catalog.pg_type; their OIDs never change. */
enum {
	TYPE_BOOL = 16,
	TYPE_BYTEA = 17,
	TYPE_INT4 = 23,
	TYPE_TEXT = 25
};

/* Values as elements of arrays; NULL data is SQL's NULL. scratch holds the bytes of a number. */
once_bytes bytes_of_text(const char *text);
once_bytes bytes_of_int(int number, bool null, unsigned char scratch[8]);
once_bytes bytes_of_failure(once_failure failure, unsigned char scratch[8]);
once_bytes bytes_of_redirect(const once_outcome *outcome);

void call_start(call *call, enum sql_id id);
void call_add_text(call *call, const char *text);         /* NULL is NULL */
void call_add_trace(call *call, const char *traceparent); /* a malformed one is NULL */
void call_add_bytes(call *call, once_bytes bytes);
void call_add_fingerprint(call *call, const once_fingerprint *fingerprint);
void call_add_int(call *call, int32_t number, bool null);
void call_add_bigint(call *call, int64_t number, bool null);
void call_add_bool(call *call, bool value, bool null);
void call_add_on_stale(call *call, once_on_stale on_stale);
/* A one-dimensional array in PostgreSQL's binary format, made of count elements of at() each. */
typedef once_bytes (*call_element)(const void *context, size_t index, unsigned char scratch[8]);
void call_add_array(call *call, uint32_t element_type, size_t count, call_element at, const void *context);
void call_free(call *call);
/* Sends without reading (pipeline mode). */
once_code call_send_on(PGconn *connection, bool prepared, call *call, once_error **error);
/* Sends, reads, checks; *result is the caller's. Frees the call. */
once_code call_run(once_session *session, call *call, PGresult **result, once_error **error);
/* Does the intent have a name? The contract checks everything else. */
once_code check_intent(const once_session *session, const once_intent *intent, once_error **error);
/* Binary values of results. */
int32_t int_of_bytes(const void *bytes);
int32_t result_int(const PGresult *result, int row, int column);
int64_t result_int64(const PGresult *result, int row, int column);
bool result_bool(const PGresult *result, int row, int column);

/* ---- pipeline.c: several statements, one round trip ---- */
/* A statement of a pipeline, from sending to answer. */
typedef struct step {
	prepared prepared;
	bool parses; /* it is prepared in the same round trip */
	bool parsed; /* ... and the preparation was answered */
	bool is_ours;
	bool commits;
	PGresult **kept; /* the result goes there; NULL: it is dropped */
} step;
/*
 * Open it, fill it, run it; if opening or filling fails, running reports it. After a failed
 * statement the server skips the rest, up to the one Sync at the end.
 */
typedef struct pipeline {
	once_session *session;
	step *steps; /* the caller's, of `room` */
	size_t room;
	size_t count;
	bool prepares;
	bool is_open;
	once_code code;
	once_error **error;
	/*
	 * A COMMIT was sent, and neither it nor an earlier statement was refused: it may have happened.
	 */
	bool commit_unanswered;
	/* It failed because of a prepared statement: the same again, unprepared, does not. */
	bool missed;
} pipeline;
void pipeline_open(pipeline *pipeline, once_session *session, bool prepares, step *steps, size_t room,
                   once_error **error);
void pipeline_call(pipeline *pipeline, call *call);
/* A statement of the library without parameters. */
void pipeline_command(pipeline *pipeline, enum sql_id id);
void pipeline_statement(pipeline *pipeline, const once_statement *statement);
/* The caller gets the result of the latest step; NULL if the pipeline fails. */
void pipeline_keep(pipeline *pipeline, PGresult **kept);
/* The round trip: reads all answers, and leaves the connection as it was before, or lost. */
once_code pipeline_run(pipeline *pipeline);
/* Leaves a pipeline that the caller has left open. */
void pipeline_abandon(once_session *session);

/* ---- statement.c ---- */
/* May it be in a list? Not if it ends the transaction, or waits for data. */
bool statement_fits_list(const char *sql);

/* ---- witness.c: has an effect ended its transaction? ---- */
typedef struct witness {
	bool ended;            /* for certain, or its connection was reset */
	bool may_have_ended;   /* ROLLBACK, or ROLLBACK TO */
	bool has_savepoint;    /* without one it was not ROLLBACK TO */
	bool is_aborted;       /* a statement has failed */
	struct witness *outer; /* of an execution inside of an effect */
} witness;
/* False: no memory. The witness must live until witness_close. */
bool witness_open(witness *opened, PGconn *connection);
void witness_close(const witness *opened, PGconn *connection);

/* ---- trace.c ---- */
enum {
	TRACEPARENT_BYTES = 55
};
/*
 * The traceparent if it is valid, else NULL: a malformed one must neither be stored nor make a
 * batch fail.
 */
const char *traceparent_or_null(const char *traceparent);

/* ---- contract.c ---- */
void start_fill(call *call, const once_intent *intent, const once_fingerprint *fingerprint);
void finish_fill(call *call, const once_intent *intent, const once_fingerprint *fingerprint, once_state state,
                 const once_outcome *outcome);

/* ---- doubt.c ---- */
/* An error: the intent is not in doubt. */
once_code doubt_store(once_session *session, const once_intent *intent, const once_fingerprint *fingerprint,
                      once_error **error);

/* ---- session.c ---- */
/*
 * Is this the version of the contract that the library uses, or a later one? If not: ONCE_CONTRACT.
 */
bool contract_version_fits(int version, once_error **error);
/* Reconnects a session that owns its connection after a loss. ONCE_CONNECTION if that fails. */
once_code session_reconnect(once_session *session, once_error **error);

/* ---- json.c ---- */
/*
 * The canonical form of a JSON text, as docs/reference/fingerprint.md specifies it. The caller
 * frees *out. False if it has none. *no_memory distinguishes that case.
 */
bool json_canonical(const char *text, size_t length, char **out, size_t *out_length, bool *no_memory);

/* ---- key.c ---- */
/* What is wrong with a key. key_fault_text has the sentences for people. */
typedef enum key_fault {
	KEY_GOOD = 0,
	KEY_EMPTY,        /* no value, or an empty string */
	KEY_UNTERMINATED, /* a string without its closing quote */
	KEY_BAD_ESCAPE,   /* a backslash before anything but a quote or a backslash */
	KEY_BAD_BYTE,     /* a control character, or one that is not ASCII */
	KEY_TRAILING,     /* bytes after the item; also a list */
	KEY_BAD_PARAMETER,
	/* strict: a token, a number, ...; lenient: a bare key with a
	 * space, quote, comma or semicolon in it */
	KEY_NOT_A_STRING,
	KEY_TOO_LONG
} key_fault;
/* once_key_of_header; its comment defines a key. *key_length: 0 on failure. */
key_fault key_parse(once_bytes value, bool strict, size_t length_max, char *key, size_t *key_length);
const char *key_fault_text(key_fault fault);

/* ---- time ---- */
int64_t now_ms(void); /* a monotonic clock: differences only */
int64_t now_us(void);
void sleep_ms(int64_t duration_ms);
/* A random number below limit. */
int64_t session_random(once_session *session, int64_t limit);
int64_t random_below(uint64_t *state, int64_t limit);
uint64_t random_seed(const void *address);

static inline const char *text_or_empty(const char *text)
{
	return text == NULL ? "" : text;
}
