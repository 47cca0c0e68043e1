/* SPDX-License-Identifier: PostgreSQL
 * Where pgonce_native calls the server, a test may have something happen instead: see
 * harness.native.with_points, which links this and a trampoline for each such function into
 * a library. Memory runs out, a cancel arrives, or all that is known of catalogues is
 * forgotten, at the n-th of these calls. */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/inval.h"

#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))

enum action {
	NOTHING,
	OUT_OF_MEMORY,
	FORGET,
	FORGET_ALWAYS
};

static enum action action;
static int64 at;
static int64 count;
static int statements; /* for so many after the one that armed it */
static TimestampTz statement;

extern void native_point(const char *name, int may_forget);

void native_point(const char *name, int may_forget)
{
	if (action == NOTHING || (action >= FORGET && !may_forget)) {
		return;
	}
	if (GetCurrentStatementStartTimestamp() != statement) {
		statement = GetCurrentStatementStartTimestamp();
		statements--;
	}
	if (statements < 0) {
		return;
	}
	count++;
	if (action == FORGET_ALWAYS) {
		action = NOTHING; /* it calls nothing of the library's, but what it sets off may */
		InvalidateSystemCaches();
		action = FORGET_ALWAYS;
	} else if (count == at) {
		bool forget = action == FORGET;
		action = NOTHING;
		if (forget) {
			InvalidateSystemCaches();
			return;
		}
		ereport(ERROR, errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"), errdetail("At %s, on purpose.", name));
	}
}

/* native_arm(action, at, statements): from the next statement on; returns how many calls there were since the last time. */
PG_FUNCTION_INFO_V1(native_arm);
PGDLLEXPORT Datum native_arm(PG_FUNCTION_ARGS)
{
	int64 counted = count;

	action = (enum action)PG_GETARG_INT32(0);
	at = PG_GETARG_INT64(1);
	statements = PG_GETARG_INT32(2);
	statement = GetCurrentStatementStartTimestamp();
	count = 0;
	PG_RETURN_INT64(counted);
}
