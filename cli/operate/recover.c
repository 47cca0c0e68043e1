/* SPDX-License-Identifier: PostgreSQL */
/*
 * recover.c: pgonce recover: goes through all stale intents, or all in doubt (once.recover), with a
 * short transaction for each part, and prints each decision. The contract decides; this file only
 * asks for the next part until there is none.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "plain.h"
#include "story.h"

enum {
	/*
	 * Few at a time: each may cost a call of a verify function, and the rows of a part stay locked
	 * until it commits.
	 */
	PIECE = 20,
	COLUMNS = 8,
	KINDS = 4
};

typedef struct tally {
	const char *decided;
	const char *meaning;
	int64_t count;
} tally;

typedef struct recovery {
	const cli_invocation *invocation;
	const node *node;
	json_t *decisions; /* with --json */
	char *after;       /* NULL: at the beginning, or done */
	tally tallies[KINDS];
	int64_t seen;
	int64_t other; /* decided with a word that this version does not know */
} recovery;

static const char *cell(const PGresult *rows, int row, int column)
{
	return PQgetisnull(rows, row, column) ? "" : PQgetvalue(rows, row, column);
}

static json_t *json_cell(const PGresult *rows, int row, int column)
{
	return PQgetisnull(rows, row, column) ? json_null() : json_string(PQgetvalue(rows, row, column));
}

static void tell_decision(recovery *recovery, const PGresult *rows, int row)
{
	const char *decided = cell(rows, row, 5);
	bool known = false;

	for (int i = 0; i < KINDS; i++) {
		if (strcmp(recovery->tallies[i].decided, decided) == 0) {
			recovery->tallies[i].count++;
			known = true;
		}
	}
	recovery->other += !known;
	recovery->seen++;
	if (recovery->decisions != NULL) {
		json_t *decision = json_pack("{s:o, s:o, s:o, s:i, s:o, s:o, s:o}", "tenant", json_cell(rows, row, 0), "scope",
		                             json_cell(rows, row, 1), "key", json_cell(rows, row, 2), "fence",
		                             atoi(cell(rows, row, 3)), "found", json_cell(rows, row, 4), "decided",
		                             json_cell(rows, row, 5), "reason", json_cell(rows, row, 6));
		if (recovery->node->name != NULL) {
			json_object_set_new(decision, "node", json_string(recovery->node->name));
		}
		json_array_append_new(recovery->decisions, decision);
		return;
	}
	char *named = cli_intent_text(
	    &(once_intent){.tenant = cell(rows, row, 0), .scope = cell(rows, row, 1), .key = cell(rows, row, 2)});
	plain_line("%s%s%s: %s%s%s", recovery->node->name != NULL ? recovery->node->name : "",
	           recovery->node->name != NULL ? ": " : "", named, decided, cell(rows, row, 6)[0] != '\0' ? ": " : "",
	           cell(rows, row, 6));
	free(named);
}

/* One part, in its own transaction; a dry run rolls it back. */
static int recover_piece(recovery *recovery)
{
	const cli_invocation *invocation = recovery->invocation;
	bool dry_run = invocation->given[OPTION_DRY_RUN];
	char *take = cli_format("%d", PIECE);
	const char *parameters[] = {take, invocation->text[OPTION_SCOPE], invocation->text[OPTION_TENANT], recovery->after,
	                            invocation->given[OPTION_RECOVER_IN_DOUBT] ? "true" : "false"};
	PGresult *rows = NULL;
	int result = connect_command(invocation, recovery->node->connection, "BEGIN", "cannot begin");

	if (result == CLI_OK) {
		result =
		    connect_run(invocation, recovery->node->connection, SQL_RECOVER, 5, parameters, "cannot recover", &rows);
	}
	if (result == CLI_OK) {
		result = connect_command(invocation, recovery->node->connection, dry_run ? "ROLLBACK" : "COMMIT",
		                         "these decisions may or may not be stored: run it again");
	}
	char *next = NULL;
	for (int row = 0; result == CLI_OK && row < PQntuples(rows); row++) {
		/* A row without a key only has the cursor. */
		if (!PQgetisnull(rows, row, 2)) {
			tell_decision(recovery, rows, row);
		}
		if (row == PQntuples(rows) - 1 && !PQgetisnull(rows, row, COLUMNS - 1)) {
			next = cli_duplicate(PQgetvalue(rows, row, COLUMNS - 1));
		}
	}
	if (next != NULL && recovery->after != NULL && strcmp(next, recovery->after) == 0) {
		result = cli_fail(invocation, CLI_FAILED, "pgonce doctor", "once.recover does not continue from '%s'", next);
	}
	free(recovery->after);
	recovery->after = next;
	PQclear(rows);
	free(take);
	fflush(stdout);
	return result;
}

static void tell_summary(recovery *recovery)
{
	bool dry_run = recovery->invocation->given[OPTION_DRY_RUN];
	bool in_doubt = recovery->invocation->given[OPTION_RECOVER_IN_DOUBT];

	if (recovery->decisions != NULL) {
		json_t *summary = json_pack("{s:I}", in_doubt ? "judged" : "stale", (json_int_t)recovery->seen);
		for (int i = 0; i < KINDS; i++) {
			json_object_set_new(summary, recovery->tallies[i].decided, json_integer(recovery->tallies[i].count));
		}
		cli_print_json(
		    json_pack("{s:b, s:O, s:o}", "dry_run", dry_run, "decisions", recovery->decisions, "summary", summary));
		return;
	}
	if (recovery->seen == 0) {
		puts(in_doubt ? "nothing is in doubt" : "nothing is stale");
		return;
	}
	printf("%" PRId64 " %s%s:\n", recovery->seen, in_doubt ? "in doubt" : "stale",
	       dry_run ? " (dry run: nothing was changed)" : "");
	for (int i = 0; i < KINDS; i++) {
		if (recovery->tallies[i].count > 0) {
			printf("  %6" PRId64 "  %-9s  %s\n", recovery->tallies[i].count, recovery->tallies[i].decided,
			       recovery->tallies[i].meaning);
		}
	}
	if (recovery->other > 0) {
		printf("  %6" PRId64 "  otherwise\n", recovery->other);
	}
}

int cli_recover(const cli_invocation *invocation)
{
	recovery recovery = {.invocation = invocation,
	                     .tallies = {{.decided = "succeeded", .meaning = "verified: the effect happened"},
	                                 {.decided = "retry", .meaning = "the next attempt runs"},
	                                 {.decided = "in_doubt", .meaning = "find out, then decide: pgonce in-doubt"},
	                                 {.decided = "abandoned", .meaning = "its attempts are used up; failed for good"}}};
	node_list nodes;
	int result = node_list_open(invocation, &nodes);

	if (result == CLI_OK) {
		result = node_list_check_open(invocation, &nodes);
	}
	bool begun = result == CLI_OK;
	recovery.decisions = begun && invocation->given[OPTION_JSON] ? json_array() : NULL;
	recovery.node = begun ? node_list_next(&nodes, NULL) : NULL;
	for (; recovery.node != NULL && result == CLI_OK; recovery.node = node_list_next(&nodes, recovery.node)) {
		do {
			result = recover_piece(&recovery);
		} while (result == CLI_OK && recovery.after != NULL);
	}
	/* A run that failed before it read anything has no counts. */
	if (begun && (result == CLI_OK || recovery.seen > 0)) {
		tell_summary(&recovery);
	}
	if (result == CLI_OK && recovery.tallies[2].count > 0) {
		result = CLI_IN_DOUBT;
	}
	result = node_list_end(invocation, &nodes, result);
	json_decref(recovery.decisions);
	free(recovery.after);
	node_list_close(&nodes);
	return result;
}
