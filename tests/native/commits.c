/* SPDX-License-Identifier: PostgreSQL
 * Stops this backend in the middle of its COMMIT: others see what it has done, and have not been told yet that a catalogue has
 * changed; it has all of its locks. SIGCONT lets it go on. */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"

#include <signal.h>

#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))

PG_MODULE_MAGIC;

static bool known, armed; /* armed: for the next COMMIT */

static void at_end(XactEvent event, void *unused)
{
	(void)unused;
	if (armed && event == XACT_EVENT_COMMIT) {
		armed = false;
		raise(SIGSTOP);
	}
}

/* In the transaction whose COMMIT is meant. */
PG_FUNCTION_INFO_V1(stop_in_commit);
PGDLLEXPORT Datum stop_in_commit(PG_FUNCTION_ARGS)
{
	(void)fcinfo;
	if (!known) {
		RegisterXactCallback(at_end, NULL);
		known = true;
	}
	armed = true;
	PG_RETURN_VOID();
}
