/* SPDX-License-Identifier: PostgreSQL */
/* checkup.h: the checks of pgonce doctor: how one is reported. For doctor.c and nodes.c. */
#pragma once

#include "cli.h"

typedef struct checkup {
	const cli_invocation *invocation;
	PGconn *connection; /* NULL with --nodes */
	json_t *rows;       /* with --json */
	int warned;
	int failed;
	int skipped;
} checkup;

/*
 * Prints or collects a check. level: "ok", "warning", "failed" or "skipped". advice is shown for
 * all levels but "ok".
 */
void checkup_note(checkup *checkup, const char *check, const char *level, const char *found, const char *advice);

/*
 * The document that pgonce doctor --json prints, about the database of --dsn, for the console. NULL
 * after an error message.
 */
json_t *doctor_look(const cli_invocation *invocation);
