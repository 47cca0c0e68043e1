/* SPDX-License-Identifier: PostgreSQL
 * The plain path of once.complete_many: reports of running attempts with their fences, in one
 * bucket. Like once._store_many it takes the rows in one order, so that two batches over the same
 * intents cannot deadlock. Elements in another state, or changed since, are left: SQL is called for
 * these alone, as once._report_many is, and the answers are merged. See attempt.c. */
#include "batch.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

enum complete_many_argument {
	COMPLETE_MANY_SCOPE,
	COMPLETE_MANY_KEY,
	COMPLETE_MANY_FENCE,
	COMPLETE_MANY_TENANT = OUTCOME_RESULT_ID + 1
};

/* The columns that once.complete_many returns. */
enum complete_many_column {
	COMPLETE_MANY_ORD,
	COMPLETE_MANY_VERDICT,
	COMPLETE_MANY_COUNT = 4
};

/* One report, with its attempt's outcome, by the arguments' numbers. */
typedef struct report {
	int32 fence;
	NullableDatum given[OUTCOME_RESULT_ID + 1];
	native_outcome outcome;
} report;

/* The reports, if each has a fence and an outcome that can be stored unchanged. */
static report *reports_get(FunctionCallInfo fcinfo, native_batch *batch)
{
	native_elements scopes, keys, fences, outcomes[OUTCOME_RESULT_ID + 1];

	if (PG_ARGISNULL(COMPLETE_MANY_TENANT) ||
	    !native_elements_get(fcinfo, COMPLETE_MANY_KEY, false, &batch->size, &keys) ||
	    !native_elements_get(fcinfo, COMPLETE_MANY_SCOPE, false, &batch->size, &scopes) ||
	    !native_elements_get(fcinfo, COMPLETE_MANY_FENCE, false, &batch->size, &fences)) {
		return NULL;
	}
	for (int argument = OUTCOME_STATUS; argument <= OUTCOME_RESULT_ID; argument++) {
		if (!native_elements_get(fcinfo, argument, true, &batch->size, &outcomes[argument])) {
			return NULL;
		}
	}
	if (!native_batch_make(batch, PG_GETARG_TEXT_PP(COMPLETE_MANY_TENANT), NULL, &scopes, &keys, NULL, false)) {
		return NULL;
	}
	report *reports = palloc0(sizeof *reports * (size_t)batch->size);
	for (int i = 0; i < batch->size; i++) {
		report *each = &reports[i];
		for (int argument = OUTCOME_STATUS; argument <= OUTCOME_RESULT_ID; argument++) {
			each->given[argument].isnull = outcomes[argument].nulls == NULL || outcomes[argument].nulls[i];
			if (!each->given[argument].isnull) {
				each->given[argument].value = outcomes[argument].values[i];
			}
		}
		if (fences.nulls[i] || !native_outcome_is_plain(each->given, &each->outcome)) {
			return NULL;
		}
		each->fence = DatumGetInt32(fences.values[i]);
	}
	return reports;
}

/* Stores a report in the row found; false: the row is not its running attempt's, or has changed. */
static bool store(native_tables *tables, native_updating *updating, const native_contract *contract,
                  const report *stored, TupleTableSlot *found, TimestampTz now)
{
	native_stored row = {&found->tts_tid, found->tts_values, found->tts_isnull};
	native_row changed;
	bool replaces[COLUMN_COUNT];

	slot_getallattrs(found);
	if (!native_is_attempt(tables, contract, &row, stored->fence)) {
		return false;
	}
	native_row_succeeds(&changed, replaces, contract, stored->given, &stored->outcome, now);
	return native_updating_next(updating, &row, &changed, replaces);
}

/* Stores all plain ones, in one statement. rest: the others; false: all were stored. */
static bool store_all(native_tables *tables, const native_contract *contract, const native_batch *batch,
                      const report *reports, native_rest *rest)
{
	TimestampTz now = GetCurrentTimestamp();

	rest->size = batch->size;
	rest->left = palloc0(sizeof *rest->left * (size_t)batch->size);
	Snapshot snapshot = RegisterSnapshot(GetLatestSnapshot());
	native_updating *updating = native_updating_begin(tables);
	native_search *search = native_search_begin(tables, snapshot);
	for (int i = 0; i < batch->size; i++) {
		CHECK_FOR_INTERRUPTS();
		TupleTableSlot *found = native_search_next(search, batch->ordered[i]);
		ptrdiff_t place = batch->ordered[i] - batch->intents;
		if (found == NULL || !store(tables, updating, contract, &reports[place], found, now)) {
			rest->left[place] = true;
			rest->count++;
		}
	}
	native_search_end(search);
	native_updating_end(updating);
	UnregisterSnapshot(snapshot);
	return rest->count < rest->size;
}

/* One row per element: stored, or SQL's answer. */
static void answer(FunctionCallInfo fcinfo, const native_rest *rest, Tuplestorestate *told, TupleDesc told_shape)
{
	Datum values[COMPLETE_MANY_COUNT] = {0};
	bool nulls[COMPLETE_MANY_COUNT] = {false, false, true, true};
	Datum stored = CStringGetTextDatum("stored");
	native_answer rows = native_answer_begin(fcinfo);
	TupleTableSlot *slot = told == NULL ? NULL : MakeSingleTupleTableSlot(told_shape, &TTSOpsMinimalTuple);

	values[COMPLETE_MANY_VERDICT] = stored;
	for (int i = 0; i < rest->size; i++) {
		if (!rest->left[i]) {
			values[COMPLETE_MANY_ORD] = Int32GetDatum(i + 1);
			tuplestore_putvalues(rows.store, rows.shape, values, nulls);
			continue;
		}
		if (!tuplestore_gettupleslot(told, true, false, slot)) {
			elog(ERROR, "once.complete_many has answered fewer elements than it was given");
		}
		slot_getallattrs(slot);
		Datum one[COMPLETE_MANY_COUNT];
		memcpy(one, slot->tts_values, sizeof one);
		one[COMPLETE_MANY_ORD] = Int32GetDatum(i + 1);
		tuplestore_putvalues(rows.store, rows.shape, one, slot->tts_isnull);
	}
	if (slot != NULL) {
		ExecDropSingleTupleTableSlot(slot);
	}
}

bool native_do_complete_many(FunctionCallInfo fcinfo, const native_contract *contract, native_rest *rest)
{
	native_batch batch = {0};
	native_tables tables;

	if (!native_takes_rows(fcinfo, FUNCTION_COMPLETE_MANY) || !native_session_is_plain(contract)) {
		return false;
	}
	report *reports = reports_get(fcinfo, &batch);
	if (reports == NULL) {
		return false;
	}
	CommandCounterIncrement();
	if (!native_leaf_find(contract, batch.bucket, RowExclusiveLock, batch.bucket == 0, &tables)) {
		return false;
	}
	bool plain = store_all(&tables, contract, &batch, reports, rest);
	native_tables_close(&tables);
	if (plain) {
		CommandCounterIncrement();
	}
	if (plain && rest->count == 0) {
		answer(fcinfo, rest, NULL, NULL);
	}
	return plain;
}

/* The remaining elements of each array. */
void native_rest_arguments(FunctionCallInfo fcinfo, FunctionCallInfo asked, const native_rest *rest)
{
	Datum *values = palloc(sizeof *values * (size_t)rest->count);
	bool *nulls = palloc(sizeof *nulls * (size_t)rest->count);
	int dimensions[] = {rest->count}, bounds[] = {1};

	memcpy(asked->args, fcinfo->args, sizeof fcinfo->args[0] * (size_t)PG_NARGS());
	for (int argument = 0; argument < COMPLETE_MANY_TENANT; argument++) {
		native_elements all;
		int size = 0, count = 0;
		if (!native_elements_get(fcinfo, argument, true, &size, &all) || all.nulls == NULL) {
			continue;
		}
		Oid type = ARR_ELEMTYPE(PG_GETARG_ARRAYTYPE_P(argument));
		int16 length;
		bool by_value;
		char alignment;
		for (int i = 0; i < size; i++) {
			if (rest->left[i]) {
				values[count] = all.values[i];
				nulls[count++] = all.nulls[i];
			}
		}
		get_typlenbyvalalign(type, &length, &by_value, &alignment);
		asked->args[argument].value = PointerGetDatum(
		    construct_md_array(values, nulls, 1, dimensions, bounds, type, length, by_value, alignment));
	}
}

/* Merges the stored elements and SQL's answers for the rest. */
void native_rest_answer(FunctionCallInfo fcinfo, const ReturnSetInfo *told, const native_rest *rest)
{
	if (told->returnMode != SFRM_Materialize || told->setResult == NULL || told->setDesc == NULL) {
		elog(ERROR, "once.complete_many has answered nothing");
	}
	tuplestore_rescan(told->setResult);
	answer(fcinfo, rest, told->setResult, told->setDesc);
	tuplestore_end(told->setResult);
}
