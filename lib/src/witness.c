/* SPDX-License-Identifier: PostgreSQL */
/*
 * witness.c: has an effect ended the transaction that it was given? The command tags of its results
 * tell. They do so even if the connection is lost since, or if another transaction has failed, in
 * which nothing can be asked. libpq shows each result to an event procedure. It costs the server
 * nothing, and stays on the connection: libpq cannot remove it. execute.c calls this.
 */
#include <libpq-events.h>

#include "internal.h"

static bool is_one_of(const char *tag, const char *const tags[], size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (strcmp(tag, tags[i]) == 0) {
			return true;
		}
	}
	return false;
}

static void note_success(witness *witness, const char *tag)
{
	static const char *const ends[] = {"COMMIT", "PREPARE TRANSACTION"};
	static const char *const begins[] = {"BEGIN", "START TRANSACTION"};
	if (strcmp(tag, "ROLLBACK") == 0) {
		/* ROLLBACK TO has this tag too, and needs a savepoint. */
		witness->ended = witness->ended || !witness->has_savepoint;
		witness->may_have_ended = true;
		witness->is_aborted = false;
		return;
	}
	/*
	 * An aborted transaction does nothing else: it was a COMMIT that failed. And only outside of a
	 * transaction does BEGIN follow a ROLLBACK.
	 */
	witness->ended = witness->ended || witness->is_aborted || is_one_of(tag, ends, sizeof ends / sizeof ends[0]) ||
	                 (witness->may_have_ended && is_one_of(tag, begins, sizeof begins / sizeof begins[0]));
	witness->has_savepoint = witness->has_savepoint || strcmp(tag, "SAVEPOINT") == 0;
}

static void note(witness *witness, PGresult *result)
{
	switch (PQresultStatus(result)) {
	case PGRES_COMMAND_OK:
	case PGRES_TUPLES_OK:
		/* A preparation and a description have no tag. */
		if (PQcmdStatus(result)[0] != '\0') {
			note_success(witness, PQcmdStatus(result));
		}
		break;
	case PGRES_FATAL_ERROR:
		/* Without an SQLSTATE it is an error of libpq. */
		witness->is_aborted = witness->is_aborted || PQresultErrorField(result, PG_DIAG_SQLSTATE) != NULL;
		break;
	default:
		break;
	}
}

static int on_event(PGEventId event, void *info, void *unused)
{
	(void)unused;
	if (event == PGEVT_RESULTCREATE) {
		const PGEventResultCreate *made = info;
		witness *witness = PQinstanceData(made->conn, on_event);
		if (witness != NULL) {
			note(witness, made->result);
		}
	} else if (event == PGEVT_CONNRESET) {
		witness *witness = PQinstanceData(((const PGEventConnReset *)info)->conn, on_event);
		if (witness != NULL) {
			witness->ended = true;
		}
	}
	return 1;
}

bool witness_open(witness *opened, PGconn *connection)
{
	*opened = (witness){.outer = PQinstanceData(connection, on_event)};
	return PQsetInstanceData(connection, on_event, opened) == 1 ||
	       (PQregisterEventProc(connection, on_event, "pgonce", NULL) == 1 &&
	        PQsetInstanceData(connection, on_event, opened) == 1);
}

void witness_close(const witness *opened, PGconn *connection)
{
	(void)PQsetInstanceData(connection, on_event, opened->outer);
}
