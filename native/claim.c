/* SPDX-License-Identifier: PostgreSQL
 * The plain paths of once.claim (a new intent), once.complete (of a running attempt with this
 * fence) and once.receive (a new message, or one already applied). See attempt.c. */
#include "native.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define LEASE_MAX (7 * USECS_PER_DAY)

enum claim_argument {
	CLAIM_SCOPE,
	CLAIM_FINGERPRINT = 2,
	CLAIM_OWNER,
	CLAIM_LEASE,
	CLAIM_RETENTION,
	CLAIM_TENANT,
	CLAIM_TRACEPARENT
};

enum complete_argument {
	COMPLETE_SCOPE,
	COMPLETE_FENCE = 2,
	COMPLETE_TENANT = OUTCOME_RESULT_ID + 1
};

enum receive_argument {
	RECEIVE_CONSUMER,
	RECEIVE_FINGERPRINT = 2,
	RECEIVE_TENANT,
	RECEIVE_TRACEPARENT,
	RECEIVE_BIRTHDAYS
};

/* The columns of once.claimed that a new claim has. */
enum claimed_column {
	CLAIMED_VERDICT,
	CLAIMED_FENCE,
	CLAIMED_STATE,
	CLAIMED_LEASE_UNTIL = 10,
	CLAIMED_ATTEMPTS,
	CLAIMED_TRACEPARENT,
	CLAIMED_COUNT
};

static void set(native_row *row, int column, Datum value)
{
	row->values[column] = value;
	row->nulls[column] = false;
}

/* A row of once.intent to be stored, all NULL except what every intent has. */
void native_row_begin(native_row *row, const native_intent *intent, int32 fence, Oid state, TimestampTz now,
                      text *traceparent)
{
	memset(row->values, 0, sizeof row->values);
	memset(row->nulls, true, sizeof row->nulls);
	set(row, COLUMN_CREATED_AT, TimestampTzGetDatum(now));
	set(row, COLUMN_UPDATED_AT, TimestampTzGetDatum(now));
	set(row, COLUMN_BUCKET, Int32GetDatum(intent->bucket));
	set(row, COLUMN_FENCE, Int32GetDatum(fence));
	set(row, COLUMN_ATTEMPTS, Int32GetDatum(1));
	set(row, COLUMN_STATE, ObjectIdGetDatum(state));
	set(row, COLUMN_FORMAT_VERSION, Int16GetDatum(1));
	set(row, COLUMN_TENANT, PointerGetDatum(intent->tenant));
	set(row, COLUMN_SCOPE, PointerGetDatum(intent->scope));
	set(row, COLUMN_KEY, PointerGetDatum(intent->key));
	set(row, COLUMN_FINGERPRINT, PointerGetDatum(intent->fingerprint));
	if (traceparent != NULL) {
		set(row, COLUMN_TRACEPARENT, PointerGetDatum(traceparent));
	}
}

bool native_is_open(const native_intent *intent, TimestampTz now)
{
	return intent->bucket == 0 || native_day_has_begun(intent->bucket, now);
}

/* once._claim asks whether a past day was closed although its partition exists; that is left to
 * SQL. */
bool native_is_not_over(const native_intent *intent, TimestampTz now)
{
	return intent->bucket == 0 || !native_day_has_begun(intent->bucket + 1, now);
}

/* A lease that once._check_term accepts, and that has the same length at any time of the year:
 * hours, without days or months. */
bool native_lease_is_plain(const Interval *lease)
{
	return lease->month == 0 && lease->day == 0 && lease->time > 0 && lease->time <= LEASE_MAX;
}

/* once.claim and once._claim, for an intent without a row. */
bool native_do_claim(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result)
{
	static const Oid types[CLAIMED_COUNT] = {TEXTOID, INT4OID, TEXTOID, INT4OID,        BYTEAOID, JSONBOID, TEXTOID,
	                                         TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID,  TEXTOID};
	native_intent intent;
	native_tables tables;
	text *owner = NULL;
	const Interval *lease = NULL;
	bool plain = false;

	if (!native_quick_check(fcinfo, contract, &intent, CLAIM_SCOPE, CLAIM_FINGERPRINT, CLAIM_TENANT) ||
	    !PG_ARGISNULL(CLAIM_RETENTION)) {
		return false;
	}
	if (!PG_ARGISNULL(CLAIM_OWNER)) {
		owner = PG_GETARG_TEXT_PP(CLAIM_OWNER);
		if (VARSIZE_ANY_EXHDR(owner) > OWNER_MAX) { /* SQL cuts it, by characters */
			return false;
		}
	}
	if (!PG_ARGISNULL(CLAIM_LEASE)) {
		lease = PG_GETARG_INTERVAL_P(CLAIM_LEASE);
		if (!native_lease_is_plain(lease)) {
			return false;
		}
	}
	TupleDesc shape = native_shape(fcinfo, contract->claimed_type, types, CLAIMED_COUNT);
	if (shape == NULL) {
		return false;
	}
	CommandCounterIncrement();
	if (lease == NULL) {
		lease = native_lease(contract, intent.scope);
	}
	/* It looks before it locks for writing, since it may have nothing to write. */
	if (lease != NULL && native_lock(&intent, false) &&
	    native_leaf_find(contract, intent.bucket, AccessShareLock, false, &tables)) {
		bool changing;
		HeapTuple row = native_look_dirty(&tables, &intent, &changing);
		TimestampTz now = GetCurrentTimestamp();
		if (row != NULL) {
			heap_freetuple(row);
		} else if (native_is_open(&intent, now) && native_is_not_over(&intent, now) &&
		           native_tables_lock(&tables, RowExclusiveLock)) {
			int32 fence = intent.bucket > 0 ? 1 : native_first_fence(contract);
			text *traceparent = native_trace(fcinfo, CLAIM_TRACEPARENT);
			Datum until =
			    DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(now), IntervalPGetDatum(lease));
			Datum values[CLAIMED_COUNT] = {0};
			bool nulls[CLAIMED_COUNT];
			native_row made;

			native_row_begin(&made, &intent, fence, contract->states[STATE_PROCESSING], now, traceparent);
			set(&made, COLUMN_LEASE_UNTIL, until);
			if (owner != NULL) {
				set(&made, COLUMN_OWNER, PointerGetDatum(owner));
			}
			plain = native_insert(&tables, made.values, made.nulls);
			if (plain) {
				native_count(contract->counted_new, 1);
			}

			memset(nulls, true, sizeof nulls);
			values[CLAIMED_VERDICT] = CStringGetTextDatum("new_claim");
			values[CLAIMED_FENCE] = Int32GetDatum(fence);
			values[CLAIMED_STATE] = CStringGetTextDatum("processing");
			values[CLAIMED_LEASE_UNTIL] = until;
			values[CLAIMED_ATTEMPTS] = Int32GetDatum(1);
			values[CLAIMED_TRACEPARENT] = PointerGetDatum(traceparent);
			nulls[CLAIMED_VERDICT] = nulls[CLAIMED_FENCE] = nulls[CLAIMED_STATE] = false;
			nulls[CLAIMED_LEASE_UNTIL] = nulls[CLAIMED_ATTEMPTS] = false;
			nulls[CLAIMED_TRACEPARENT] = traceparent == NULL;
			*result = HeapTupleGetDatum(heap_form_tuple(shape, values, nulls));
		}
		native_tables_close(&tables);
	}
	ReleaseTupleDesc(shape);
	return plain;
}

/* The changes of a succeeded attempt in its row. given: by the arguments' numbers. */
void native_row_succeeds(native_row *changed, bool *replaces, const native_contract *contract,
                         const NullableDatum *given, const native_outcome *outcome, TimestampTz now)
{
	static const struct {
		int column;
		int argument;
	} passed[] = {{COLUMN_RESPONSE_STATUS, OUTCOME_STATUS},
	              {COLUMN_RESPONSE_HEADERS, OUTCOME_HEADERS},
	              {COLUMN_RESULT_TYPE, OUTCOME_RESULT_TYPE},
	              {COLUMN_RESULT_ID, OUTCOME_RESULT_ID}};
	/* The columns of other outcomes are emptied. */
	static const int emptied[] = {COLUMN_LEASE_UNTIL, COLUMN_RESPONSE_BODY, COLUMN_ERROR_CODE, COLUMN_ERROR_MESSAGE};

	memset(changed->values, 0, sizeof changed->values);
	memset(changed->nulls, true, sizeof changed->nulls);
	memset(replaces, false, sizeof *replaces * COLUMN_COUNT);
	set(changed, COLUMN_STATE, ObjectIdGetDatum(contract->states[STATE_SUCCEEDED]));
	set(changed, COLUMN_UPDATED_AT, TimestampTzGetDatum(now));
	set(changed, COLUMN_COMPLETED_AT, TimestampTzGetDatum(now));
	replaces[COLUMN_STATE] = replaces[COLUMN_UPDATED_AT] = replaces[COLUMN_COMPLETED_AT] = true;
	for (size_t i = 0; i < lengthof(emptied); i++) {
		replaces[emptied[i]] = true;
	}
	if (!outcome->body_is_null) {
		set(changed, COLUMN_RESPONSE_BODY, outcome->body);
	}
	for (size_t i = 0; i < lengthof(passed); i++) {
		replaces[passed[i].column] = true;
		if (!given[passed[i].argument].isnull) {
			set(changed, passed[i].column, given[passed[i].argument].value);
		}
	}
}

/* Whether this row belongs to a running attempt with this fence. */
bool native_is_attempt(const native_tables *tables, const native_contract *contract, const native_stored *row,
                       int32 fence)
{
	int state = tables->known.columns[COLUMN_STATE] - 1, its_fence = tables->known.columns[COLUMN_FENCE] - 1;

	return !row->nulls[state] && !row->nulls[its_fence] &&
	       DatumGetObjectId(row->values[state]) == contract->states[STATE_PROCESSING] &&
	       DatumGetInt32(row->values[its_fence]) == fence;
}

/* once.complete and once._report, for a running attempt with its fence. The fence is the guard, so
 * no lock is needed: if the row has changed since the look, nothing was done yet. */
bool native_do_complete(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result)
{
	native_intent intent;
	native_tables tables;
	native_outcome outcome;
	bool plain = false;

	if (PG_ARGISNULL(COMPLETE_FENCE) ||
	    !native_quick_check(fcinfo, contract, &intent, COMPLETE_SCOPE, -1, COMPLETE_TENANT) ||
	    !native_outcome_is_plain(fcinfo->args, &outcome)) {
		return false;
	}
	CommandCounterIncrement();
	if (native_leaf_find(contract, intent.bucket, RowExclusiveLock, false, &tables)) {
		TimestampTz now = GetCurrentTimestamp();
		Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
		HeapTuple row = native_look(&tables, &intent, snapshot);
		UnregisterSnapshot(snapshot);
		if (row != NULL) {
			Datum values[NATTS_MAX];
			bool nulls[NATTS_MAX];
			native_stored stored = {&row->t_self, values, nulls};
			heap_deform_tuple(row, RelationGetDescr(tables.leaf), values, nulls);
			if (native_is_attempt(&tables, contract, &stored, PG_GETARG_INT32(COMPLETE_FENCE))) {
				native_row changed;
				bool replaces[COLUMN_COUNT];
				native_row_succeeds(&changed, replaces, contract, fcinfo->args, &outcome, now);
				plain = native_update(&tables, &stored, &changed, replaces);
				*result = BoolGetDatum(true);
			}
			heap_freetuple(row);
		}
		native_tables_close(&tables);
	}
	return plain;
}

/* once.receive, for a message that is new, or was applied by an ended transaction. */
bool native_do_receive(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result)
{
	native_intent intent;
	native_tables tables;
	bool plain = false;

	if (!native_quick_check(fcinfo, contract, &intent, RECEIVE_CONSUMER, RECEIVE_FINGERPRINT, RECEIVE_TENANT)) {
		return false;
	}
	if (PG_ARGISNULL(RECEIVE_BIRTHDAYS) || !PG_GETARG_BOOL(RECEIVE_BIRTHDAYS)) {
		native_make_opaque(&intent);
	}
	TimestampTz now = GetCurrentTimestamp();
	if (!native_is_open(&intent, now)) {
		return false;
	}
	CommandCounterIncrement();
	/* For writing only once the partition is found: without it, SQL writes nothing. */
	if (!native_lock(&intent, false) || !native_leaf_find(contract, intent.bucket, AccessShareLock, false, &tables)) {
		return false;
	}
	if (native_tables_lock(&tables, RowExclusiveLock)) {
		bool changing;
		HeapTuple row = native_look_dirty(&tables, &intent, &changing);
		if (row != NULL) {
			bool state_null, print_null;
			Datum state = native_column_get(&tables, row, COLUMN_STATE, &state_null);
			Datum print = native_column_get(&tables, row, COLUMN_FINGERPRINT, &print_null);
			if (!changing && !state_null && !print_null &&
			    DatumGetObjectId(state) == contract->states[STATE_SUCCEEDED] &&
			    native_same_bytes(DatumGetByteaPP(print), intent.fingerprint)) {
				native_count(contract->counted_duplicate, 1);
				*result = CStringGetTextDatum("duplicate");
				plain = true;
			}
			heap_freetuple(row);
		} else {
			native_row made;
			native_row_begin(&made, &intent, intent.bucket > 0 ? 1 : native_first_fence(contract),
			                 contract->states[STATE_SUCCEEDED], now, native_trace(fcinfo, RECEIVE_TRACEPARENT));
			set(&made, COLUMN_COMPLETED_AT, TimestampTzGetDatum(now));
			plain = native_insert(&tables, made.values, made.nulls);
			if (plain) {
				native_count(contract->counted_process, 1);
				*result = CStringGetTextDatum("process");
			}
		}
	}
	native_tables_close(&tables);
	return plain;
}
