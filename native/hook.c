/* SPDX-License-Identifier: PostgreSQL
 * Replaces the contract's functions by the library's when a statement is planned. Only plans
 * change: stored objects (views, rules, bodies of functions) name the contract's functions, so a
 * database is complete without this library. A plan depends on both functions, and is made again
 * when either changes. */
#include "native.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/planner.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/plancache.h"
#include "utils/syscache.h"

PG_MODULE_MAGIC;

#define SETTING "once.native"

static char *setting;
static planner_hook_type planner_before;

extern PGDLLEXPORT void _PG_init(void);

static int function_of(const native_contract *contract, Oid oid)
{
	for (int i = 0; i < FUNCTION_COUNT; i++) {
		if (contract->functions[i] == oid) {
			return i;
		}
	}
	return -1;
}

/* The right is checked as the executor checks it for a function in the plan: if it is missing, the
 * executor reports it. */
static void replace_call(FuncExpr *call, const native_contract *contract)
{
	int function = function_of(contract, call->funcid);
	Oid substitute = function < 0 ? InvalidOid : native_substitute(function);
	if (!OidIsValid(substitute) || FmgrHookIsNeeded(call->funcid) || !native_may_execute(call->funcid, GetUserId()) ||
	    !native_may_execute(substitute, GetUserId())) {
		return;
	}
	HeapTuple tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(call->funcid));
	if (!HeapTupleIsValid(tuple)) {
		return;
	}
	/* Names and defaults of arguments come from the contract's function, so they are filled in here
	 * and not by the planner. */
#if PG_VERSION_NUM >= 140000
	call->args = expand_function_arguments(call->args, false, call->funcresulttype, tuple);
#else
	call->args = expand_function_arguments(call->args, call->funcresulttype, tuple);
#endif
	ReleaseSysCache(tuple);
	call->funcid = substitute;
}

/* The known contract, asked for by the first call of a function that may belong to it. */
typedef struct planning {
	bool asked;
	bool known;
	/* a copy: a catalogue look-up may make the library forget the original */
	native_contract contract;
} planning;

static bool replace_calls(Node *node, void *context)
{
	planning *at = context;

	if (node == NULL) {
		return false;
	}
	if (IsA(node, Query)) {
		return query_tree_walker((Query *)node, replace_calls, context, 0);
	}
	if (IsA(node, FuncExpr) && ((FuncExpr *)node)->funcid >= FirstNormalObjectId) {
		if (!at->asked) {
			/* Within a transaction, other sessions' drops may not have been noticed yet. */
			AcceptInvalidationMessages();
			const native_contract *known = native_known();
			at->asked = true;
			at->known = known != NULL;
			if (known != NULL) {
				at->contract = *known;
			}
		}
		if (at->known) {
			replace_call((FuncExpr *)node, &at->contract);
		}
	}
	return expression_tree_walker(node, replace_calls, context);
}

static PlannedStmt *plan(Query *query, const char *text, int options, ParamListInfo parameters)
{
	planning at = {.asked = false};

	if (native_on) {
		(void)replace_calls((Node *)query, &at);
	}
	return planner_before != NULL ? planner_before(query, text, options, parameters)
	                              : standard_planner(query, text, options, parameters);
}

static void setting_changed(const char *value, void *extra)
{
	(void)extra;
	bool on = value == NULL || strcmp(value, "off") != 0;
	if (on != native_on) {
		native_on = on;
		ResetPlanCache();
	}
}

void _PG_init(void)
{
	static bool done;
	if (done) {
		return;
	}
	done = true;
	DefineCustomStringVariable(SETTING, "Whether this library may answer calls of pgonce's functions.",
	                           "off: only the contract's SQL answers. Anything else: on.", &setting, "on", PGC_USERSET,
	                           0, NULL, setting_changed, NULL);
	native_known_init();
	native_outbox_init();
	native_rights_init();
	native_started_init();
	planner_before = planner_hook;
	planner_hook = plan;
}

/* Called once a session by once._find_native, which loads the library. Existing plans are made
 * again. */
PG_FUNCTION_INFO_V1(native_load);
PGDLLEXPORT Datum native_load(PG_FUNCTION_ARGS)
{
	(void)fcinfo;
	ResetPlanCache();
	PG_RETURN_VOID();
}
