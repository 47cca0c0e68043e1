/* SPDX-License-Identifier: PostgreSQL
 * Shared by the files of pgonce_native. hook.c replaces the contract's functions by C functions in
 * plans; known.c says whether the contract is the one that they replace; key.c reads keys, store.c
 * reads and writes intents; started.c knows which intents a transaction has started; attempt.c has
 * start and finish, claim.c claims, reports and messages, batch.c batches of claims and reports.c
 * batches of reports, outbox.c events, salt.c salts; obstacle.c says why SQL decides. PostgreSQL's
 * rules apply: palloc, ereport, and no memory of what a transaction may change without a callback
 * that clears it. */
#ifndef PGONCE_NATIVE_H
#define PGONCE_NATIVE_H

#include "postgres.h"

#include "access/htup.h"
#include "access/skey.h"
#include "datatype/timestamp.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "nodes/execnodes.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
#include "utils/timestamp.h"

/* All other symbols are hidden. Before PostgreSQL 16 this is empty. */
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))

/* The columns of once.intent, in the order of their declaration in contract/key/tables.sql. */
enum native_column {
	COLUMN_CREATED_AT,
	COLUMN_UPDATED_AT,
	COLUMN_COMPLETED_AT,
	COLUMN_EXPIRES_AT,
	COLUMN_LEASE_UNTIL,
	COLUMN_BUCKET,
	COLUMN_FENCE,
	COLUMN_ATTEMPTS,
	COLUMN_RESPONSE_STATUS,
	COLUMN_STATE,
	COLUMN_FORMAT_VERSION,
	COLUMN_TENANT,
	COLUMN_SCOPE,
	COLUMN_KEY,
	COLUMN_FINGERPRINT,
	COLUMN_REDIRECTS,
	COLUMN_OWNER,
	COLUMN_RESULT_TYPE,
	COLUMN_RESULT_ID,
	COLUMN_ERROR_CODE,
	COLUMN_ERROR_MESSAGE,
	COLUMN_TRACEPARENT,
	COLUMN_RESPONSE_BODY,
	COLUMN_RESPONSE_HEADERS,
	COLUMN_COUNT
};

/* The functions that have a substitute; the first entries of mirrored[], in this order
 * (native/mirror.py). */
enum native_function {
	FUNCTION_START,
	FUNCTION_TRY_START,
	FUNCTION_FINISH,
	FUNCTION_FINISH_NEW,
	FUNCTION_CLAIM,
	FUNCTION_COMPLETE,
	FUNCTION_RECEIVE,
	FUNCTION_EMIT,
	FUNCTION_CLAIM_MANY,
	FUNCTION_COMPLETE_MANY,
	FUNCTION_RECEIVE_MANY,
	FUNCTION_SALT,
	FUNCTION_COUNT
};

#define ARGUMENTS_MAX 16
#define RESULTS_MAX 16
#define OWNER_MAX 255
#define NATTS_MAX (COLUMN_COUNT + 32) /* of a partition, including dropped columns */

/* A function of the contract whose decision is mirrored here, as in the files of contract/. */
typedef struct native_mirrored {
	const char *name;
	int argument_count;
	Oid argument_types[ARGUMENTS_MAX]; /* InvalidOid: a type of the contract */
	int result_count;                  /* columns of the returned set; 0: one value */
	Oid result_types[RESULTS_MAX];
	const char *language;
	const char *settings; /* proconfig, one per line */
	const char *source;   /* prosrc */
	bool definer;
	bool strict;
	char volatility;
} native_mirrored;

/* Generated: see native/mirror.py. */
extern const native_mirrored native_mirrored_functions[];
extern const int native_mirrored_count;

/* The order of once.state's labels in native_contract. */
enum native_state {
	STATE_SUCCEEDED,
	STATE_FAILED_RETRYABLE,
	STATE_FAILED_FINAL,
	STATE_PROCESSING,
	STATE_COUNT
};

/* The contract in this database, if it is the one that this library was built for. */
typedef struct native_contract {
	Oid schema;
	Oid owner;
	Oid functions[FUNCTION_COUNT];
	Oid any_tenant;
	Oid check_finished;
	Oid intent;
	Oid state_type;
	Oid states[STATE_COUNT];
	Oid started_type;
	Oid claimed_type;
	Oid counted_new;
	Oid counted_replay;
	Oid counted_process;
	Oid counted_duplicate;
	Oid fence_floor;
	Oid scope; /* the table of policies */
	Oid parked_message;
	Oid outbox;
	Oid outbox_day;
	Oid setting;
} native_contract;

/* A partition of once.intent. */
typedef struct native_leaf {
	Oid relation; /* InvalidOid: a free entry */
	Oid primary_key;
	int32 bucket;
	int natts;
	AttrNumber columns[COLUMN_COUNT];
} native_leaf;

/* An intent's names, from detoasted arguments. */
typedef struct native_intent {
	text *tenant;
	text *scope;
	text *key;
	bytea *fingerprint;
	int32 bucket;
	uint64 lock; /* its advisory lock's number, once native_lock has computed it */
} native_intent;

/* A row of once.intent. */
typedef struct native_row {
	Datum values[COLUMN_COUNT];
	bool nulls[COLUMN_COUNT];
} native_row;

/* A row of a partition, in the order of its columns. */
typedef struct native_stored {
	const ItemPointerData *at;
	const Datum *values;
	const bool *nulls;
} native_stored;

/* The elements of a batch that are left to SQL. */
typedef struct native_rest {
	int size;
	int count;
	bool *left;
} native_rest;

/* An attempt's outcome, checked. */
typedef struct native_outcome {
	Datum body;
	bool body_is_null;
} native_outcome;

/* Both tables, open and locked until the transaction ends. */
typedef struct native_tables {
	Relation intent; /* NULL: only the partition */
	Relation leaf;
	native_leaf known; /* a copy: any lock may clear the original */
	uint64 changes;    /* the value of native_changes then */
} native_tables;

typedef struct native_search native_search;     /* look-ups of one intent after another */
typedef struct native_updating native_updating; /* UPDATEs of one row after another */

extern bool native_on; /* once.native */

/* known.c */
extern void native_known_init(void);
extern const native_contract *native_known(void); /* NULL: not known, so SQL decides everything */
extern Oid native_substitute(int function);       /* InvalidOid: none */
extern Oid native_function_find(int function);
extern bool native_leaf_find(const native_contract *contract, int32 bucket, LOCKMODE mode, bool alone,
                             native_tables *tables);
extern bool native_tables_lock(native_tables *tables, LOCKMODE mode);
extern void native_tables_close(native_tables *tables);
extern bool native_is_bare(Relation relation);
extern bool native_is_leaf(const native_contract *contract, Relation relation, Oid parent, const char *name,
                           int32 number);
extern bool native_has_next_day(const native_contract *contract, int32 day);
extern bool native_still_known(void); /* nothing in the contract has changed */
extern uint64 native_changes(void);   /* counts invalidations */
extern bool native_is_plain_index(Relation index, int keys);
extern bool native_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern const char *native_refused(void); /* the last reason */

/* key.c */
extern int32 native_bucket(const text *key); /* -1: not for this library */
extern void native_make_opaque(native_intent *intent);

/* store.c */
extern bool native_lock(native_intent *intent, bool held_already);
extern uint64 native_lock_number(const native_intent *intent);
extern uint64 native_event_lock_number(const native_intent *intent, const text *kind);
extern bool native_lock_id(uint64 id);
extern HeapTuple native_look_up(Relation table, Oid index, ScanKey keys, int count, Snapshot snapshot);
extern void native_key_of_text(ScanKey key, AttrNumber column, text *value);
extern Datum native_last_value(Oid sequence, bool *is_null);
extern HeapTuple native_look(native_tables *tables, const native_intent *intent, Snapshot snapshot);
extern HeapTuple native_look_dirty(native_tables *tables, const native_intent *intent, bool *changing);
extern Datum native_column_get(native_tables *tables, HeapTuple row, int column, bool *is_null);
extern native_search *native_search_begin(native_tables *tables, Snapshot snapshot);
extern TupleTableSlot *native_search_next(native_search *search, const native_intent *intent);
extern int native_intent_order(const native_intent *one, const native_intent *other);
extern void native_search_end(native_search *search);
extern bool native_insert(native_tables *tables, const Datum *values, const bool *nulls);
extern void native_remember_absent(const native_intent *intent);
extern bool native_was_absent(const native_intent *intent, const native_tables *tables);
extern void native_forget_absent(void);
extern native_updating *native_updating_begin(native_tables *tables);
extern bool native_updating_next(native_updating *updating, const native_stored *row, const native_row *changed,
                                 const bool *replaces);
extern void native_updating_end(native_updating *updating);
extern bool native_update(native_tables *tables, const native_stored *row, const native_row *changed,
                          const bool *replaces);
extern const Interval *native_lease(const native_contract *contract, text *scope);
extern bool native_nothing_is_parked(const native_contract *contract, text *consumer, text *tenant);
extern void native_count(Oid counter, int times);
extern int32 native_first_fence(const native_contract *contract);
extern bool native_day_has_begun(int32 bucket, TimestampTz now);

/* started.c */
extern void native_started_init(void);
extern bool native_has_started_none(void);
/* false, and -1: not plain */
extern bool native_note_start(const native_intent *intent, int32 fence);
extern int32 native_noted_start(const native_intent *intent);
extern void native_remember_finish(const native_intent *intent, int32 fence);

/* arguments.c */
extern void native_rights_init(void);
extern bool native_may_execute(Oid function, Oid role);
extern bool native_quick_check(FunctionCallInfo fcinfo, const native_contract *contract, native_intent *intent,
                               int scope, int fingerprint, int tenant);
extern bool native_session_is_plain(const native_contract *contract);
extern text *native_trace(FunctionCallInfo fcinfo, int argument); /* NULL: not a trace */
extern text *native_trace_of(text *given);
extern TupleDesc native_shape(FunctionCallInfo fcinfo, Oid type, const Oid *columns, int count);
extern bool native_outcome_is_plain(const NullableDatum *given, native_outcome *outcome);
extern bool native_same_bytes(const void *one, const void *other);
extern bool native_is_longer(NullableDatum given, int bytes);
extern int native_json_length(Jsonb *json);
extern bool native_headers_are_plain(NullableDatum given);

/* claim.c; false: not plain */
extern bool native_do_claim(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result);
extern bool native_do_complete(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result);
extern bool native_do_receive(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result);

extern void native_row_begin(native_row *row, const native_intent *intent, int32 fence, Oid state, TimestampTz now,
                             text *traceparent);
extern void native_row_succeeds(native_row *changed, bool *replaces, const native_contract *contract,
                                const NullableDatum *given, const native_outcome *outcome, TimestampTz now);
extern bool native_is_attempt(const native_tables *tables, const native_contract *contract, const native_stored *row,
                              int32 fence);
extern bool native_is_open(const native_intent *intent, TimestampTz now);
extern bool native_is_not_over(const native_intent *intent, TimestampTz now);
extern bool native_lease_is_plain(const Interval *lease);

/* batch.c; false: not plain */
extern bool native_do_claim_many(FunctionCallInfo fcinfo, const native_contract *contract);
extern bool native_do_receive_many(FunctionCallInfo fcinfo, const native_contract *contract);

/* reports.c */
extern bool native_do_complete_many(FunctionCallInfo fcinfo, const native_contract *contract, native_rest *rest);
extern void native_rest_arguments(FunctionCallInfo fcinfo, FunctionCallInfo asked, const native_rest *rest);
extern void native_rest_answer(FunctionCallInfo fcinfo, const ReturnSetInfo *told, const native_rest *rest);

/* salt.c; false: not plain */
extern bool native_do_salt(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result);
extern bytea *native_salt_of(const native_contract *contract, const text *tenant); /* or NULL */

/* outbox.c */
extern void native_outbox_init(void);
extern bool native_outbox_fits(const native_contract *contract, int32 day);
extern int32 native_day(TimestampTz now);
extern bool native_do_emit(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result);

/* The outcome's argument numbers in once.finish, once.finish_new and once.complete. */
enum native_outcome_argument {
	OUTCOME_STATUS = 3,
	OUTCOME_TEXT,
	OUTCOME_JSON,
	OUTCOME_BODY,
	OUTCOME_HEADERS,
	OUTCOME_RESULT_TYPE,
	OUTCOME_RESULT_ID
};

#endif
