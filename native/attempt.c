/* SPDX-License-Identifier: PostgreSQL
 * The functions that replace the contract's in plans, each with only its plain path: READ
 * COMMITTED, a caller that may name any tenant, ordinary arguments, an intent that is new or has
 * succeeded, an open day. start and finish are here, the others in claim.c, batch.c, reports.c,
 * outbox.c and salt.c. Any other call goes to the SQL function, with the same arguments and before
 * anything was changed, except that the intent's lock may be taken, which that function takes too.
 */
#include "native.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/primnodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

/* in characters, as once.finish keeps them; as many bytes have no more */
#define ERROR_CODE_MAX 255
#define ERROR_MESSAGE_MAX 4096

/* Kept for a call in a plan, in fn_extra: for as long as an executor runs it. */
typedef struct call_site {
	Oid original;      /* the contract's function */
	FmgrInfo function; /* the same, ready to be called; looked up when first needed */
	bool plain_types;  /* bytes, for a body of any type */
} call_site;

/* The arguments of a finish, checked. */
typedef struct finishing {
	native_outcome outcome;
	Oid state;
	text *traceparent;
} finishing;

/* The arguments' numbers in once.finish and once.finish_new; those of the outcome come before. */
enum finish_argument {
	FINISH_SCOPE,
	FINISH_FINGERPRINT = 2,
	FINISH_STATE = OUTCOME_RESULT_ID + 1,
	FINISH_ERROR_CODE,
	FINISH_ERROR_MESSAGE,
	FINISH_TENANT,
	FINISH_TRACEPARENT
};

/* The columns of once.started. */
enum started_column {
	STARTED_VERDICT,
	STARTED_STATE,
	STARTED_RESPONSE_STATUS,
	STARTED_RESPONSE_BODY,
	STARTED_RESPONSE_HEADERS,
	STARTED_RESULT_TYPE,
	STARTED_RESULT_ID,
	STARTED_ERROR_CODE,
	STARTED_ERROR_MESSAGE,
	STARTED_FENCE,
	STARTED_TRACEPARENT,
	STARTED_COUNT
};

static int64 answered; /* calls answered here */

/* The plan's call of this function, examined when an executor first gets here. In the plan it
 * replaces a function for which the caller needs a right, so that right is checked here. */
static call_site *call_site_of(FunctionCallInfo fcinfo, int function)
{
	call_site *site = fcinfo->flinfo->fn_extra;
	if (site != NULL) {
		return site;
	}
	const native_mirrored *mirrored = &native_mirrored_functions[function];
	Node *expression = fcinfo->flinfo->fn_expr;
	if (expression == NULL || !IsA(expression, FuncExpr) || PG_NARGS() != mirrored->argument_count) {
		elog(ERROR, "once_native.%s is not to be called by name", mirrored->name);
	}
	bool plain_types = true;
	for (int i = 0; i < mirrored->argument_count; i++) {
		Oid type = get_fn_expr_argtype(fcinfo->flinfo, i);
		if (mirrored->argument_types[i] == ANYNONARRAYOID) {
			plain_types = plain_types && type == BYTEAOID;
		} else if (mirrored->argument_types[i] == ANYARRAYOID) {
			plain_types = plain_types && type == BYTEAARRAYOID;
		} else if (type != mirrored->argument_types[i]) {
			elog(ERROR, "once_native.%s is not to be called by name", mirrored->name);
		}
	}
	Oid original = native_function_find(function);
	if (!native_may_execute(original, GetUserId())) {
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(original));
	}
	InvokeFunctionExecuteHook(original);

	site = MemoryContextAllocZero(fcinfo->flinfo->fn_mcxt, sizeof *site);
	site->original = original;
	site->plain_types = plain_types;
	fcinfo->flinfo->fn_extra = site;
	return site;
}

/* The SQL function decides. It finds the types of its arguments in the expression, as usual. */
static Datum leave_to_sql(FunctionCallInfo fcinfo, call_site *site)
{
	LOCAL_FCINFO(original, ARGUMENTS_MAX);

	if (!OidIsValid(site->function.fn_oid)) {
		MemoryContext before = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		FuncExpr *expression = copyObject((FuncExpr *)fcinfo->flinfo->fn_expr);
		FmgrInfo function;
		fmgr_info_cxt(site->original, &function, fcinfo->flinfo->fn_mcxt);
		expression->funcid = site->original;
		fmgr_info_set_expr((Node *)expression, &function);
		site->function = function;
		MemoryContextSwitchTo(before);
	}
	native_forget_absent();
	InitFunctionCallInfoData(*original, &site->function, PG_NARGS(), fcinfo->fncollation, fcinfo->context,
	                         fcinfo->resultinfo);
	memcpy(original->args, fcinfo->args, sizeof fcinfo->args[0] * (size_t)PG_NARGS());
	Datum result = FunctionCallInvoke(original);
	fcinfo->isnull = original->isnull;
	return result;
}

static Datum started_make(TupleDesc shape, Datum *values, bool *nulls)
{
	return HeapTupleGetDatum(heap_form_tuple(shape, values, nulls));
}

/* Whether this row is a plain replay; fills its answer. */
static bool replay(native_tables *tables, HeapTuple row, const native_contract *contract, const native_intent *intent,
                   Datum *values, bool *nulls)
{
	static const int columns[STARTED_COUNT] = {[STARTED_RESPONSE_STATUS] = COLUMN_RESPONSE_STATUS,
	                                           [STARTED_RESPONSE_BODY] = COLUMN_RESPONSE_BODY,
	                                           [STARTED_RESPONSE_HEADERS] = COLUMN_RESPONSE_HEADERS,
	                                           [STARTED_RESULT_TYPE] = COLUMN_RESULT_TYPE,
	                                           [STARTED_RESULT_ID] = COLUMN_RESULT_ID,
	                                           [STARTED_ERROR_CODE] = COLUMN_ERROR_CODE,
	                                           [STARTED_ERROR_MESSAGE] = COLUMN_ERROR_MESSAGE,
	                                           [STARTED_FENCE] = COLUMN_FENCE,
	                                           [STARTED_TRACEPARENT] = COLUMN_TRACEPARENT};
	const AttrNumber *at = tables->known.columns;
	Datum stored[NATTS_MAX];
	bool none[NATTS_MAX];

	heap_deform_tuple(row, RelationGetDescr(tables->leaf), stored, none);
	if (none[at[COLUMN_STATE] - 1] || none[at[COLUMN_FINGERPRINT] - 1] ||
	    DatumGetObjectId(stored[at[COLUMN_STATE] - 1]) != contract->states[STATE_SUCCEEDED] ||
	    !native_same_bytes(DatumGetByteaPP(stored[at[COLUMN_FINGERPRINT] - 1]), intent->fingerprint)) {
		return false;
	}
	values[STARTED_VERDICT] = CStringGetTextDatum("replay_success");
	values[STARTED_STATE] = CStringGetTextDatum("succeeded");
	nulls[STARTED_VERDICT] = nulls[STARTED_STATE] = false;
	for (int i = STARTED_RESPONSE_STATUS; i < STARTED_COUNT; i++) {
		values[i] = stored[at[columns[i]] - 1];
		nulls[i] = none[at[columns[i]] - 1];
	}
	return true;
}

/* The plain path of once.start and once.try_start. False: not plain. */
static bool start(FunctionCallInfo fcinfo, const native_contract *contract, Datum *result)
{
	static const Oid types[STARTED_COUNT] = {TEXTOID, TEXTOID, INT4OID, BYTEAOID, JSONBOID, TEXTOID,
	                                         TEXTOID, TEXTOID, TEXTOID, INT4OID,  TEXTOID};
	native_intent intent;
	native_tables tables;
	TupleDesc shape;
	Datum values[STARTED_COUNT] = {0};
	bool nulls[STARTED_COUNT];
	bool plain = false;

	if (!native_quick_check(fcinfo, contract, &intent, 0, 2, 3) ||
	    (shape = native_shape(fcinfo, contract->started_type, types, STARTED_COUNT)) == NULL) {
		return false;
	}
	memset(nulls, true, sizeof nulls);
	/* Makes this transaction's earlier changes visible, as each statement of the SQL function
	 * does. */
	CommandCounterIncrement();
	/* The lock comes before the look, which then sees everything that the last holder committed. A
	 * row that another transaction is inserting or deleting is not plain. The row found stays as
	 * long as the statement's own snapshot, so that large values can be fetched. */
	if (ActiveSnapshotSet() && native_lock(&intent, false) &&
	    native_leaf_find(contract, intent.bucket, AccessShareLock, false, &tables)) {
		bool changing;
		HeapTuple row = native_look_dirty(&tables, &intent, &changing);
		if (row != NULL) {
			if (!changing && replay(&tables, row, contract, &intent, values, nulls)) {
				*result = started_make(shape, values, nulls);
				native_count(contract->counted_replay, 1);
				plain = true;
			}
			heap_freetuple(row);
		} else if (intent.bucket == 0 || native_day_has_begun(intent.bucket, GetCurrentTimestamp())) {
			int32 fence = intent.bucket > 0 ? 1 : native_first_fence(contract);
			plain = native_note_start(&intent, fence);
			if (plain) {
				native_remember_absent(&intent);
				text *traceparent = native_trace(fcinfo, 4);
				values[STARTED_VERDICT] = CStringGetTextDatum("proceed");
				values[STARTED_FENCE] = Int32GetDatum(fence);
				values[STARTED_TRACEPARENT] = PointerGetDatum(traceparent);
				nulls[STARTED_VERDICT] = nulls[STARTED_FENCE] = false;
				nulls[STARTED_TRACEPARENT] = traceparent == NULL;
				*result = started_make(shape, values, nulls);
			}
		}
		native_tables_close(&tables);
	}
	ReleaseTupleDesc(shape);
	return plain;
}

/* The arguments that once.finish stores unchanged. */
static bool finish_is_plain(FunctionCallInfo fcinfo, const native_contract *contract, finishing *given)
{
	static const struct {
		const char *name;
		int state;
	} states[] = {{"succeeded", STATE_SUCCEEDED},
	              {"failed_final", STATE_FAILED_FINAL},
	              {"failed_retryable", STATE_FAILED_RETRYABLE}};

	if (PG_ARGISNULL(FINISH_STATE)) {
		return false;
	}
	given->state = InvalidOid;
	text *state = PG_GETARG_TEXT_PP(FINISH_STATE);
	for (size_t i = 0; i < lengthof(states); i++) {
		if (VARSIZE_ANY_EXHDR(state) == strlen(states[i].name) &&
		    memcmp(VARDATA_ANY(state), states[i].name, strlen(states[i].name)) == 0) {
			given->state = contract->states[states[i].state];
		}
	}
	if (!OidIsValid(given->state) || !native_outcome_is_plain(fcinfo->args, &given->outcome) ||
	    native_is_longer(fcinfo->args[FINISH_ERROR_CODE], ERROR_CODE_MAX) ||
	    native_is_longer(fcinfo->args[FINISH_ERROR_MESSAGE], ERROR_MESSAGE_MAX)) {
		return false;
	}
	given->traceparent = native_trace(fcinfo, FINISH_TRACEPARENT);
	return true;
}

static bool outcome_insert(FunctionCallInfo fcinfo, const native_contract *contract, native_tables *tables,
                           const native_intent *intent, const finishing *given, int32 fence, TimestampTz now)
{
	static const struct {
		int column;
		int argument;
	} passed[] = {{COLUMN_RESPONSE_STATUS, OUTCOME_STATUS},  {COLUMN_RESPONSE_HEADERS, OUTCOME_HEADERS},
	              {COLUMN_RESULT_TYPE, OUTCOME_RESULT_TYPE}, {COLUMN_RESULT_ID, OUTCOME_RESULT_ID},
	              {COLUMN_ERROR_CODE, FINISH_ERROR_CODE},    {COLUMN_ERROR_MESSAGE, FINISH_ERROR_MESSAGE}};
	Datum values[COLUMN_COUNT] = {0};
	bool nulls[COLUMN_COUNT];

	memset(nulls, true, sizeof nulls);
#define SET(column, value) (values[column] = (value), nulls[column] = false)
	SET(COLUMN_CREATED_AT, TimestampTzGetDatum(now));
	SET(COLUMN_UPDATED_AT, TimestampTzGetDatum(now));
	SET(COLUMN_COMPLETED_AT, TimestampTzGetDatum(now));
	SET(COLUMN_BUCKET, Int32GetDatum(intent->bucket));
	SET(COLUMN_FENCE, Int32GetDatum(fence));
	SET(COLUMN_ATTEMPTS, Int32GetDatum(1));
	SET(COLUMN_STATE, ObjectIdGetDatum(given->state));
	SET(COLUMN_FORMAT_VERSION, Int16GetDatum(1));
	SET(COLUMN_TENANT, PointerGetDatum(intent->tenant));
	SET(COLUMN_SCOPE, PointerGetDatum(intent->scope));
	SET(COLUMN_KEY, PointerGetDatum(intent->key));
	SET(COLUMN_FINGERPRINT, PointerGetDatum(intent->fingerprint));
	if (given->traceparent != NULL) {
		SET(COLUMN_TRACEPARENT, PointerGetDatum(given->traceparent));
	}
	if (!given->outcome.body_is_null) {
		SET(COLUMN_RESPONSE_BODY, given->outcome.body);
	}
	for (size_t i = 0; i < lengthof(passed); i++) {
		if (!PG_ARGISNULL(passed[i].argument)) {
			SET(passed[i].column, PG_GETARG_DATUM(passed[i].argument));
		}
	}
#undef SET
	if (!native_insert(tables, values, nulls)) {
		return false;
	}
	native_count(contract->counted_new, 1);
	return true;
}

/* The plain path of once.finish; with `starting`, that of once.finish_new. */
static bool finish(FunctionCallInfo fcinfo, const native_contract *contract, bool starting, Datum *result)
{
	native_intent intent;
	native_tables tables;
	finishing given;
	int32 noted = 1;
	bool plain = false;

	if (!native_quick_check(fcinfo, contract, &intent, FINISH_SCOPE, FINISH_FINGERPRINT, FINISH_TENANT) ||
	    !finish_is_plain(fcinfo, contract, &given)) {
		return false;
	}
	TimestampTz now = GetCurrentTimestamp();
	if (starting ? !native_has_started_none() : (noted = native_noted_start(&intent)) < 0) {
		return false;
	}
	if (intent.bucket > 0 && !native_day_has_begun(intent.bucket, now)) {
		return false;
	}
	int32 fence = intent.bucket > 0 ? 1 : noted;
	CommandCounterIncrement();
	/* A transaction that inserts this intent holds its lock, so nothing can come between the look
	 * and the INSERT. A note without the lock is forged: the SQL function handles that. finish_new
	 * looks before it locks for writing, since it may have nothing to write. */
	if (native_lock(&intent, !starting) &&
	    native_leaf_find(contract, intent.bucket, starting ? AccessShareLock : RowExclusiveLock, false, &tables)) {
		/* A row being inserted or deleted right now is not plain either. */
		bool changing;
		HeapTuple row =
		    !starting && native_was_absent(&intent, &tables) ? NULL : native_look_dirty(&tables, &intent, &changing);
		if (row != NULL) {
			heap_freetuple(row);
		} else if (!starting || native_tables_lock(&tables, RowExclusiveLock)) {
			if (starting && intent.bucket == 0) {
				fence = native_first_fence(contract);
			}
			plain = outcome_insert(fcinfo, contract, &tables, &intent, &given, fence, now);
			if (starting) {
				*result = Int32GetDatum(fence);
			} else {
				*result = given.outcome.body;
				fcinfo->isnull = given.outcome.body_is_null;
				if (plain) {
					native_remember_finish(&intent, noted);
				}
			}
		}
		native_tables_close(&tables);
	}
	return plain;
}

/* Calls the SQL function for the rest of a batch, without the other elements, and merges the
 * answers. */
static void ask_about_rest(FunctionCallInfo fcinfo, call_site *site, const native_rest *rest)
{
	LOCAL_FCINFO(asked, ARGUMENTS_MAX);
	ReturnSetInfo told = *(ReturnSetInfo *)fcinfo->resultinfo;

	InitFunctionCallInfoData(*asked, fcinfo->flinfo, PG_NARGS(), fcinfo->fncollation, fcinfo->context, (Node *)&told);
	native_rest_arguments(fcinfo, asked, rest);
	(void)leave_to_sql(asked, site);
	native_rest_answer(fcinfo, &told, rest);
}

/* Runs the plain path as the contract's owner, as SECURITY DEFINER does; after an error the end of
 * the transaction restores the role. */
static Datum answer(FunctionCallInfo fcinfo, int function)
{
	call_site *site = call_site_of(fcinfo, function);
	const native_contract *contract = site->plain_types ? native_known() : NULL;
	native_rest rest = {0};
	Datum result = (Datum)0;
	bool plain = false;

	CHECK_FOR_INTERRUPTS();
	fcinfo->isnull = false;
	if (contract != NULL && contract->functions[function] == site->original) {
		Oid role;
		int context;
		GetUserIdAndSecContext(&role, &context);
		SetUserIdAndSecContext(contract->owner, context | SECURITY_LOCAL_USERID_CHANGE);
		switch (function) {
		case FUNCTION_START:
		case FUNCTION_TRY_START:
			plain = start(fcinfo, contract, &result);
			break;
		case FUNCTION_FINISH:
		case FUNCTION_FINISH_NEW:
			plain = finish(fcinfo, contract, function == FUNCTION_FINISH_NEW, &result);
			break;
		case FUNCTION_CLAIM:
			plain = native_do_claim(fcinfo, contract, &result);
			break;
		case FUNCTION_COMPLETE:
			plain = native_do_complete(fcinfo, contract, &result);
			break;
		case FUNCTION_RECEIVE:
			plain = native_do_receive(fcinfo, contract, &result);
			break;
		case FUNCTION_EMIT:
			plain = native_do_emit(fcinfo, contract, &result);
			break;
		case FUNCTION_SALT:
			plain = native_do_salt(fcinfo, contract, &result);
			break;
		case FUNCTION_CLAIM_MANY:
			plain = native_do_claim_many(fcinfo, contract);
			break;
		case FUNCTION_RECEIVE_MANY:
			plain = native_do_receive_many(fcinfo, contract);
			break;
		case FUNCTION_COMPLETE_MANY:
			plain = native_do_complete_many(fcinfo, contract, &rest);
			break;
		default:
			break;
		}
		SetUserIdAndSecContext(role, context);
	}
	if (plain) {
		answered++;
		if (rest.count > 0) {
			ask_about_rest(fcinfo, site, &rest);
		}
		return result;
	}
	fcinfo->isnull = false;
	return leave_to_sql(fcinfo, site);
}

#define SUBSTITUTE(name, function)                                                                                     \
	PG_FUNCTION_INFO_V1(name);                                                                                         \
	PGDLLEXPORT Datum name(PG_FUNCTION_ARGS)                                                                           \
	{                                                                                                                  \
		return answer(fcinfo, function);                                                                               \
	}

SUBSTITUTE(native_start, FUNCTION_START)
SUBSTITUTE(native_try_start, FUNCTION_TRY_START)
SUBSTITUTE(native_finish, FUNCTION_FINISH)
SUBSTITUTE(native_finish_new, FUNCTION_FINISH_NEW)
SUBSTITUTE(native_claim, FUNCTION_CLAIM)
SUBSTITUTE(native_complete, FUNCTION_COMPLETE)
SUBSTITUTE(native_receive, FUNCTION_RECEIVE)
SUBSTITUTE(native_emit, FUNCTION_EMIT)
SUBSTITUTE(native_claim_many, FUNCTION_CLAIM_MANY)
SUBSTITUTE(native_complete_many, FUNCTION_COMPLETE_MANY)
SUBSTITUTE(native_receive_many, FUNCTION_RECEIVE_MANY)
SUBSTITUTE(native_salt, FUNCTION_SALT)

PG_FUNCTION_INFO_V1(native_answered);
PGDLLEXPORT Datum native_answered(PG_FUNCTION_ARGS)
{
	(void)fcinfo;
	PG_RETURN_INT64(answered);
}
