/* SPDX-License-Identifier: PostgreSQL
 * The plain paths of once.claim_many and once.receive_many: all intents are new, of one bucket,
 * none is in the batch twice, and the consumer has no parked message. Work common to all elements
 * is done once: the tables, the index, the snapshot, the policy. See attempt.c. */
#include "batch.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#define BATCH_MAX 10000 /* see once._check_batch */
#define ROWS_AT_ONCE 64 /* rows stored together */
#define NAME_BYTES_MAX 255

enum claim_many_argument {
	CLAIM_MANY_SCOPE,
	CLAIM_MANY_KEY,
	CLAIM_MANY_FINGERPRINT,
	CLAIM_MANY_OWNER,
	CLAIM_MANY_LEASE,
	CLAIM_MANY_RETENTION,
	CLAIM_MANY_TENANT,
	CLAIM_MANY_TRACEPARENTS
};

/* The columns that once.claim_many returns. */
enum claim_many_column {
	CLAIM_MANY_ORD,
	CLAIM_MANY_VERDICT,
	CLAIM_MANY_FENCE,
	CLAIM_MANY_STATE,
	CLAIM_MANY_LEASE_UNTIL = 11,
	CLAIM_MANY_ATTEMPTS,
	CLAIM_MANY_TRACEPARENT,
	CLAIM_MANY_COUNT = 15
};

enum receive_many_argument {
	RECEIVE_MANY_CONSUMER,
	RECEIVE_MANY_IDS,
	RECEIVE_MANY_KEYS,
	RECEIVE_MANY_FINGERPRINTS,
	RECEIVE_MANY_TENANT,
	RECEIVE_MANY_TRACEPARENTS = 6,
	RECEIVE_MANY_BIRTHDAYS
};

/* The columns that once.receive_many returns. */
enum receive_many_column {
	RECEIVE_MANY_ORDINAL,
	RECEIVE_MANY_VERDICT,
	RECEIVE_MANY_COUNT = 3
};

/* Whether the caller takes a set as a whole, with exactly these columns. */
bool native_takes_rows(FunctionCallInfo fcinfo, int function)
{
	ReturnSetInfo *info = (ReturnSetInfo *)fcinfo->resultinfo;
	const native_mirrored *mirrored = &native_mirrored_functions[function];

	if (info == NULL || !IsA(info, ReturnSetInfo) || (info->allowedModes & SFRM_Materialize) == 0 ||
	    info->expectedDesc == NULL || info->expectedDesc->natts != mirrored->result_count) {
		return false;
	}
	for (int i = 0; i < mirrored->result_count; i++) {
		if (TupleDescAttr(info->expectedDesc, i)->atttypid != mirrored->result_types[i]) {
			return false;
		}
	}
	return true;
}

native_answer native_answer_begin(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *info = (ReturnSetInfo *)fcinfo->resultinfo;
	MemoryContext before = MemoryContextSwitchTo(info->econtext->ecxt_per_query_memory);
	native_answer rows;

	rows.shape = CreateTupleDescCopy(info->expectedDesc);
	rows.store = tuplestore_begin_heap((info->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
	MemoryContextSwitchTo(before);
	info->returnMode = SFRM_Materialize;
	info->setResult = rows.store;
	info->setDesc = rows.shape;
	fcinfo->isnull = true; /* the function's value, which a set function does not have */
	return rows;
}

/* An argument's elements. The first array sets their number; false if another array has a different
 * number, or an unusual shape. */
bool native_elements_get(FunctionCallInfo fcinfo, int argument, bool may_be_absent, int *size, native_elements *found)
{
	found->values = NULL;
	found->nulls = NULL;
	if (PG_ARGISNULL(argument)) {
		return may_be_absent;
	}
	ArrayType *array = PG_GETARG_ARRAYTYPE_P(argument);
	if (ARR_NDIM(array) != 1 || ARR_LBOUND(array)[0] != 1 || ARR_DIMS(array)[0] > BATCH_MAX ||
	    (*size > 0 && ARR_DIMS(array)[0] != *size)) {
		return false;
	}
	int16 length;
	bool by_value;
	char alignment;
	get_typlenbyvalalign(ARR_ELEMTYPE(array), &length, &by_value, &alignment);
	deconstruct_array(array, ARR_ELEMTYPE(array), length, by_value, alignment, &found->values, &found->nulls, size);
	return *size > 0;
}

static int place_order(const void *one, const void *other)
{
	const native_intent *a = *(native_intent *const *)one, *b = *(native_intent *const *)other;
	int order = native_intent_order(a, b);

	return order != 0 ? order : a < b ? -1 : a > b;
}

/* Ordinary names and fingerprints, all of one bucket. scope: of all, if scopes is NULL. */
bool native_batch_make(native_batch *made, text *tenant, text *scope, const native_elements *scopes,
                       const native_elements *keys, const native_elements *fingerprints, bool opaque)
{
	if (VARSIZE_ANY_EXHDR(tenant) > NAME_BYTES_MAX) {
		return false;
	}
	made->intents = palloc(sizeof *made->intents * (size_t)made->size);
	for (int i = 0; i < made->size; i++) {
		native_intent *intent = &made->intents[i];
		if (keys->nulls[i] || (scopes != NULL && scopes->nulls[i]) ||
		    (fingerprints != NULL && fingerprints->nulls[i])) {
			return false;
		}
		intent->tenant = tenant;
		intent->scope = scopes == NULL ? scope : DatumGetTextPP(scopes->values[i]);
		intent->key = DatumGetTextPP(keys->values[i]);
		intent->fingerprint = fingerprints == NULL ? NULL : DatumGetByteaPP(fingerprints->values[i]);
		intent->bucket = native_bucket(intent->key);
		if (opaque) {
			native_make_opaque(intent);
		}
		size_t scope_bytes = VARSIZE_ANY_EXHDR(intent->scope);
		if (intent->bucket < 0 || intent->bucket != made->intents[0].bucket || scope_bytes == 0 ||
		    scope_bytes > NAME_BYTES_MAX ||
		    (fingerprints != NULL &&
		     (VARSIZE_ANY_EXHDR(intent->fingerprint) < 16 || VARSIZE_ANY_EXHDR(intent->fingerprint) > 64))) {
			return false;
		}
	}
	made->bucket = made->intents[0].bucket;
	made->ordered = palloc(sizeof(native_intent *) * (size_t)made->size);
	for (int i = 0; i < made->size; i++) {
		made->ordered[i] = &made->intents[i];
	}
	qsort(made->ordered, (size_t)made->size, sizeof(native_intent *), place_order);
	return true;
}

static bool is_any_twice(const native_batch *given)
{
	for (int i = 1; i < given->size; i++) {
		if (native_intent_order(given->ordered[i - 1], given->ordered[i]) == 0) {
			return true;
		}
	}
	return false;
}

/* Takes each intent's lock, without waiting. If one fails, SQL takes the others. */
static bool batch_lock(const native_batch *given)
{
	for (int i = 0; i < given->size; i++) {
		CHECK_FOR_INTERRUPTS();
		if (!native_lock(&given->intents[i], false)) {
			return false;
		}
	}
	return true;
}

/* Whether no intent has a row, committed or in progress. */
static bool all_are_new(native_tables *tables, const native_batch *given)
{
	SnapshotData dirty;
	bool new = true;

	InitDirtySnapshot(dirty);
	native_search *search = native_search_begin(tables, &dirty);
	for (int i = 0; new &&i < given->size; i++) {
		CHECK_FOR_INTERRUPTS();
		new = native_search_next(search, given->ordered[i]) == NULL;
	}
	native_search_end(search);
	return new;
}

/* Opens the table of a batch whose intents are all new. Like SQL: for bucket 0 it locks for writing
 * only the partition, which an INSERT names; otherwise the parent, and its partition
 * (native_tables_lock) when there are rows to store. */
static bool tables_open(const native_contract *contract, const native_batch *given, native_tables *tables)
{
	bool alone = given->bucket == 0;

	if (!alone) {
		LockRelationOid(contract->intent, RowExclusiveLock);
	}
	if (!native_leaf_find(contract, given->bucket, alone ? RowExclusiveLock : AccessShareLock, alone, tables)) {
		return false;
	}
	TimestampTz now = GetCurrentTimestamp();
	if (native_is_open(&given->intents[0], now) && native_is_not_over(&given->intents[0], now) &&
	    all_are_new(tables, given)) {
		return true;
	}
	native_tables_close(tables);
	return false;
}

/* A row for each intent, as native_insert stores one: `first` has the common columns, `traces` the
 * given traces. */
static void insert_all(native_tables *tables, const native_batch *given, const native_row *first, text *const *traces)
{
	Relation leaf = tables->leaf, index = index_open(tables->known.primary_key, RowExclusiveLock);
	TupleDesc shape = RelationGetDescr(leaf);
	IndexInfo *about = BuildIndexInfo(index);
	const AttrNumber *columns = tables->known.columns;
	CommandId command = GetCurrentCommandId(true);
	TupleTableSlot *slots[ROWS_AT_ONCE];
	int slot_count = Min(given->size, ROWS_AT_ONCE);
	Datum row[NATTS_MAX] = {0};
	bool nulls[NATTS_MAX];

	memset(nulls, true, sizeof nulls);
	for (int i = 0; i < COLUMN_COUNT; i++) {
		row[columns[i] - 1] = first->values[i];
		nulls[columns[i] - 1] = first->nulls[i];
	}
	for (int i = 0; i < slot_count; i++) {
		slots[i] = MakeSingleTupleTableSlot(shape, &TTSOpsHeapTuple);
	}
	for (int done = 0; done < given->size; done += slot_count) {
		int count = Min(given->size - done, slot_count);
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < count; i++) {
			const native_intent *intent = &given->intents[done + i];
			text *trace = traces[done + i];
			row[columns[COLUMN_SCOPE] - 1] = PointerGetDatum(intent->scope);
			row[columns[COLUMN_KEY] - 1] = PointerGetDatum(intent->key);
			row[columns[COLUMN_FINGERPRINT] - 1] = PointerGetDatum(intent->fingerprint);
			row[columns[COLUMN_TRACEPARENT] - 1] = PointerGetDatum(trace);
			nulls[columns[COLUMN_TRACEPARENT] - 1] = trace == NULL;
			ExecStoreHeapTuple(heap_form_tuple(shape, row, nulls), slots[i], true);
		}
		table_multi_insert(leaf, slots, count, command, 0, NULL);
		for (int i = 0; i < count; i++) {
			const native_intent *intent = &given->intents[done + i];
			Datum key[] = {PointerGetDatum(intent->scope), PointerGetDatum(intent->key),
			               PointerGetDatum(intent->tenant), Int32GetDatum(intent->bucket)};
			bool key_nulls[lengthof(key)] = {false};
#if PG_VERSION_NUM >= 140000
			(void)index_insert(index, key, key_nulls, &slots[i]->tts_tid, leaf, UNIQUE_CHECK_YES, false, about);
#else
			(void)index_insert(index, key, key_nulls, &slots[i]->tts_tid, leaf, UNIQUE_CHECK_YES, about);
#endif
		}
	}
	for (int i = 0; i < slot_count; i++) {
		ExecDropSingleTupleTableSlot(slots[i]);
	}
#if PG_VERSION_NUM >= 170000
	index_insert_cleanup(index, about);
#endif
	index_close(index, NoLock);
	CommandCounterIncrement();
}

/* A batch's traces, NULL where none was given. */
static text **traces_of(const native_elements *given, int size)
{
	text **traces = palloc0(sizeof(text *) * (size_t)size);

	for (int i = 0; given->nulls != NULL && i < size; i++) {
		traces[i] = given->nulls[i] ? NULL : native_trace_of(DatumGetTextPP(given->values[i]));
	}
	return traces;
}

/* The lease of the scope, if all have the same; NULL: they do not, or its policy is not plain. */
static const Interval *lease_of(const native_contract *contract, const native_batch *given)
{
	text *scope = given->intents[0].scope;

	for (int i = 1; i < given->size; i++) {
		if (!native_same_bytes(given->intents[i].scope, scope)) {
			return NULL;
		}
	}
	CommandCounterIncrement();
	return native_lease(contract, scope);
}

static void claims_answer(FunctionCallInfo fcinfo, const native_batch *given, int32 fence, Datum until,
                          text *const *traces)
{
	Datum values[CLAIM_MANY_COUNT] = {0};
	bool nulls[CLAIM_MANY_COUNT];
	native_answer rows = native_answer_begin(fcinfo);

	memset(nulls, true, sizeof nulls);
#define SET(column, value) (values[column] = (value), nulls[column] = false)
	SET(CLAIM_MANY_VERDICT, CStringGetTextDatum("new_claim"));
	SET(CLAIM_MANY_FENCE, Int32GetDatum(fence));
	SET(CLAIM_MANY_STATE, CStringGetTextDatum("processing"));
	SET(CLAIM_MANY_LEASE_UNTIL, until);
	SET(CLAIM_MANY_ATTEMPTS, Int32GetDatum(1));
	for (int i = 0; i < given->size; i++) {
		SET(CLAIM_MANY_ORD, Int32GetDatum(i + 1));
		values[CLAIM_MANY_TRACEPARENT] = PointerGetDatum(traces[i]);
		nulls[CLAIM_MANY_TRACEPARENT] = traces[i] == NULL;
		tuplestore_putvalues(rows.store, rows.shape, values, nulls);
	}
#undef SET
}

bool native_do_claim_many(FunctionCallInfo fcinfo, const native_contract *contract)
{
	native_elements scopes, keys, fingerprints, trace_texts;
	native_batch given = {0};
	native_tables tables;
	const Interval *lease = NULL;
	text *owner = NULL;
	TimestampTz now = GetCurrentTimestamp();

	if (!native_takes_rows(fcinfo, FUNCTION_CLAIM_MANY) || !native_session_is_plain(contract) ||
	    PG_ARGISNULL(CLAIM_MANY_TENANT) || !PG_ARGISNULL(CLAIM_MANY_RETENTION) ||
	    !native_elements_get(fcinfo, CLAIM_MANY_KEY, false, &given.size, &keys) ||
	    !native_elements_get(fcinfo, CLAIM_MANY_SCOPE, false, &given.size, &scopes) ||
	    !native_elements_get(fcinfo, CLAIM_MANY_FINGERPRINT, false, &given.size, &fingerprints) ||
	    !native_elements_get(fcinfo, CLAIM_MANY_TRACEPARENTS, true, &given.size, &trace_texts) ||
	    !native_batch_make(&given, PG_GETARG_TEXT_PP(CLAIM_MANY_TENANT), NULL, &scopes, &keys, &fingerprints, false) ||
	    is_any_twice(&given)) {
		return false;
	}
	if (!PG_ARGISNULL(CLAIM_MANY_OWNER)) {
		owner = PG_GETARG_TEXT_PP(CLAIM_MANY_OWNER);
		if (VARSIZE_ANY_EXHDR(owner) > OWNER_MAX) { /* SQL cuts it, by characters */
			return false;
		}
	}
	if (!PG_ARGISNULL(CLAIM_MANY_LEASE)) {
		lease = PG_GETARG_INTERVAL_P(CLAIM_MANY_LEASE);
		if (!native_lease_is_plain(lease)) {
			return false;
		}
	}
	if (!batch_lock(&given) || (lease == NULL && (lease = lease_of(contract, &given)) == NULL)) {
		return false;
	}
	CommandCounterIncrement();
	if (!tables_open(contract, &given, &tables)) {
		return false;
	}
	if (!native_tables_lock(&tables, RowExclusiveLock)) {
		native_tables_close(&tables);
		return false;
	}
	int32 fence = given.bucket > 0 ? 1 : native_first_fence(contract);
	Datum until = DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(now), IntervalPGetDatum(lease));
	text **traces = traces_of(&trace_texts, given.size);
	native_row row;

	native_row_begin(&row, &given.intents[0], fence, contract->states[STATE_PROCESSING], now, NULL);
	row.values[COLUMN_LEASE_UNTIL] = until;
	row.nulls[COLUMN_LEASE_UNTIL] = false;
	if (owner != NULL) {
		row.values[COLUMN_OWNER] = PointerGetDatum(owner);
		row.nulls[COLUMN_OWNER] = false;
	}
	insert_all(&tables, &given, &row, traces);
	native_tables_close(&tables);
	native_count(contract->counted_new, given.size);
	claims_answer(fcinfo, &given, fence, until, traces);
	return true;
}

static void messages_answer(FunctionCallInfo fcinfo, const native_batch *given)
{
	Datum values[RECEIVE_MANY_COUNT] = {0};
	bool nulls[RECEIVE_MANY_COUNT] = {false, false, true};
	native_answer rows = native_answer_begin(fcinfo);

	values[RECEIVE_MANY_VERDICT] = CStringGetTextDatum("process");
	for (int i = 0; i < given->size; i++) {
		values[RECEIVE_MANY_ORDINAL] = Int32GetDatum(i + 1);
		tuplestore_putvalues(rows.store, rows.shape, values, nulls);
	}
}

/* The keys, by which messages wait behind others, do not matter if all are new and nothing is
 * parked. */
bool native_do_receive_many(FunctionCallInfo fcinfo, const native_contract *contract)
{
	native_elements ids, keys, fingerprints, trace_texts;
	native_batch given = {0};
	native_tables tables;
	TimestampTz now = GetCurrentTimestamp();

	if (!native_takes_rows(fcinfo, FUNCTION_RECEIVE_MANY) || !native_session_is_plain(contract) ||
	    PG_ARGISNULL(RECEIVE_MANY_CONSUMER) || PG_ARGISNULL(RECEIVE_MANY_TENANT) ||
	    !native_elements_get(fcinfo, RECEIVE_MANY_IDS, false, &given.size, &ids) ||
	    !native_elements_get(fcinfo, RECEIVE_MANY_KEYS, true, &given.size, &keys) ||
	    !native_elements_get(fcinfo, RECEIVE_MANY_FINGERPRINTS, false, &given.size, &fingerprints) ||
	    !native_elements_get(fcinfo, RECEIVE_MANY_TRACEPARENTS, true, &given.size, &trace_texts)) {
		return false;
	}
	text *tenant = PG_GETARG_TEXT_PP(RECEIVE_MANY_TENANT), *consumer = PG_GETARG_TEXT_PP(RECEIVE_MANY_CONSUMER);
	bool opaque = PG_ARGISNULL(RECEIVE_MANY_BIRTHDAYS) || !PG_GETARG_BOOL(RECEIVE_MANY_BIRTHDAYS);
	if (!native_batch_make(&given, tenant, consumer, NULL, &ids, &fingerprints, opaque) || is_any_twice(&given) ||
	    !batch_lock(&given)) {
		return false;
	}
	CommandCounterIncrement();
	if (!tables_open(contract, &given, &tables)) {
		return false;
	}
	if (!native_nothing_is_parked(contract, consumer, tenant) || !native_tables_lock(&tables, RowExclusiveLock)) {
		native_tables_close(&tables);
		return false;
	}
	int32 fence = given.bucket > 0 ? 1 : native_first_fence(contract);
	native_row row;

	native_row_begin(&row, &given.intents[0], fence, contract->states[STATE_SUCCEEDED], now, NULL);
	row.values[COLUMN_COMPLETED_AT] = TimestampTzGetDatum(now);
	row.nulls[COLUMN_COMPLETED_AT] = false;
	insert_all(&tables, &given, &row, traces_of(&trace_texts, given.size));
	native_tables_close(&tables);
	native_count(contract->counted_process, given.size);
	messages_answer(fcinfo, &given);
	return true;
}
