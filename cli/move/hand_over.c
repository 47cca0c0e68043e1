/* SPDX-License-Identifier: PostgreSQL */
/*
 * hand_over.c: a slot closes at the source and opens at the target. See move.h. Up to
 * once._move_hand_over the slot can open at the source again; from then on only at the target.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "move.h"

enum {
	POLL_MS = 2,
	RETRY_MS = 100,
	LATE_MS = 1000 /* an event that is older must have been delivered before the slot closes */
};

/* Numbers as parameters. */
typedef struct numbers {
	char text[3][24];
	const char *list[3];
} numbers;

static const char *const *numbers_of(numbers *numbers, int64_t first, int64_t second, int64_t third)
{
	int64_t given[] = {first, second, third};

	for (int i = 0; i < 3; i++) {
		snprintf(numbers->text[i], sizeof numbers->text[i], "%" PRId64, given[i]);
		numbers->list[i] = numbers->text[i];
	}
	return numbers->list;
}

static int64_t left_ms(int64_t until)
{
	int64_t left = (until - move_now()) / 1000;

	return left > 1 ? left : 1;
}

/*
 * Runs a statement that returns one text. CLI_OK, with *answer (NULL: SQL's NULL; the caller frees
 * it), or an exit code after an error message.
 */
static int ask(const move *move, const node_end *end, enum sql_id id, int count, const char *const *parameters,
               char **answer)
{
	PGresult *rows = NULL;
	int result = connect_run(move->invocation, end->connection, id, count, parameters, "a slot does not move", &rows);

	*answer = result == CLI_OK && !PQgetisnull(rows, 0, 0) ? cli_duplicate(PQgetvalue(rows, 0, 0)) : NULL;
	PQclear(rows);
	return result;
}

static int late(const move *move, const moving_slot *slot, const char *why)
{
	return cli_fail(move->invocation, CLI_ACTIVE, "run it again later, or with a longer --wait",
	                "slot %d does not move now: %s", slot->number, why);
}

/* Until the relays of the source have passed the events that are older than this. */
static int wait_for_relays(const move *move, const moving_slot *slot, int64_t older_ms, int64_t until)
{
	for (;;) {
		numbers numbers;
		char *why = NULL;
		int result =
		    ask(move, &move->source, SQL_REHOME_BEHIND, 2, numbers_of(&numbers, slot->number, older_ms, 0), &why);
		if (result != CLI_OK || why == NULL) {
			return result;
		}
		if (move_now() >= until) {
			result = late(move, slot, why);
			free(why);
			return result;
		}
		free(why);
		move_sleep_ms(POLL_MS);
	}
}

static int wait_for_standbys(const move *move, const moving_slot *slot, const node_end *end, int64_t until)
{
	numbers numbers;
	char *behind = NULL;
	int result = ask(move, end, SQL_REHOME_STANDBYS, 1, numbers_of(&numbers, left_ms(until), 0, 0), &behind);

	if (result == CLI_OK && behind != NULL) {
		char *why = cli_format("standbys of %s are behind: %s", end->name, behind);
		result = late(move, slot, why);
		free(why);
	}
	free(behind);
	return result;
}

static int wait_for_memory(const move *move, const moving_slot *slot, int64_t epoch, int64_t until)
{
	numbers numbers;
	char *arrived = NULL;
	int result = ask(move, &move->target, SQL_REHOME_ARRIVED, 3,
	                 numbers_of(&numbers, slot->number, epoch, left_ms(until)), &arrived);

	if (result == CLI_OK && (arrived == NULL || arrived[0] != 't')) {
		result = late(move, slot, "its last changes have not arrived");
	}
	free(arrived);
	return result;
}

/* What is not replicated, because rows of it are also deleted. */
static int copy_rest(const move *move, const moving_slot *slot)
{
	numbers numbers;
	char *memory = NULL;
	char *nothing = NULL;
	int result = ask(move, &move->source, SQL_REHOME_OUT, 1, numbers_of(&numbers, slot->number, 0, 0), &memory);

	if (result == CLI_OK && memory == NULL) {
		result = cli_fail(move->invocation, CLI_REFUSED, "let delayed events become due, decide about parked messages",
		                  "slot %d has more than 64 MB of delayed events and parked messages", slot->number);
	}
	if (result == CLI_OK) {
		const char *parameters[] = {memory};
		result = ask(move, &move->target, SQL_REHOME_IN, 1, parameters, &nothing);
	}
	free(nothing);
	free(memory);
	return result;
}

/* All that must have happened while it is closed. */
static int complete(const move *move, const moving_slot *slot, int64_t epoch, int64_t until)
{
	int result = wait_for_memory(move, slot, epoch, until);

	result = result != CLI_OK ? result : wait_for_relays(move, slot, 0, until);
	result = result != CLI_OK ? result : copy_rest(move, slot);
	result = result != CLI_OK ? result : wait_for_standbys(move, slot, &move->source, until);
	return result != CLI_OK ? result : wait_for_standbys(move, slot, &move->target, until);
}

int hand_over_open(move *move, moving_slot *slot)
{
	numbers numbers;
	char *nothing = NULL;
	int result =
	    ask(move, &move->target, SQL_REHOME_OPEN, 2, numbers_of(&numbers, slot->number, slot->epoch, 0), &nothing);

	free(nothing);
	if (result == CLI_OK) {
		slot->stage = STAGE_MOVED;
	} else {
		cli_note(move->invocation, "slot %d is open nowhere: run it again", slot->number);
	}
	return result;
}

int hand_over_back(move *move, moving_slot *slot)
{
	int64_t until = move_now() + move->wait_ms * 1000;

	for (;;) {
		numbers numbers;
		PGresult *rows =
		    connect_query(move->source.connection, SQL_REHOME_BACK, 1, numbers_of(&numbers, slot->number, 0, 0));
		bool answered = PQresultStatus(rows) == PGRES_TUPLES_OK;
		if (answered && !PQgetisnull(rows, 0, 0)) {
			slot->stage = STAGE_OPEN;
			slot->epoch = strtoll(PQgetvalue(rows, 0, 0), NULL, 10);
			cli_note(move->invocation, "slot %d is open on %s again", slot->number, move->source.name);
		} else if (answered) {
			slot->stage = STAGE_HANDED;
			slot->epoch++;
		} else if (move_now() >= until) {
			int result = cli_report_result(move->invocation, move->source.connection, rows,
			                               "a slot is closed on both nodes: run it again");
			slot->stage = STAGE_CLOSED;
			PQclear(rows);
			return result;
		}
		PQclear(rows);
		if (answered) {
			return slot->stage == STAGE_OPEN ? CLI_OK : hand_over_open(move, slot);
		}
		move_sleep_ms(RETRY_MS);
		if (PQstatus(move->source.connection) != CONNECTION_OK) {
			PQreset(move->source.connection);
			if (PQstatus(move->source.connection) == CONNECTION_OK) {
				int result = move_lock(move, &move->source);
				if (result != CLI_OK) { /* it goes on, and this run must not undo its work */
					PQfinish(move->source.connection);
					move->source.connection = NULL;
					return result;
				}
			}
		}
	}
}

int hand_over(move *move, moving_slot *slot)
{
	numbers numbers;
	char *answer = NULL;
	/* First while the slot is open. */
	int result = wait_for_relays(move, slot, LATE_MS, move_now() + move->wait_ms * 1000);

	if (result != CLI_OK) {
		return result;
	}
	int64_t began = move_now();
	int64_t until = began + move->wait_ms * 1000;
	result =
	    ask(move, &move->source, SQL_REHOME_CLOSE, 2, numbers_of(&numbers, slot->number, move->wait_ms, 0), &answer);
	if (result == CLI_OK && answer == NULL) {
		return late(move, slot, "transactions of its tenants are open, or prepared");
	}
	int64_t epoch = result == CLI_OK ? strtoll(answer, NULL, 10) : 0;
	free(answer);
	answer = NULL;
	result = result != CLI_OK ? result : complete(move, slot, epoch, until);
	if (result == CLI_OK) {
		numbers_of(&numbers, slot->number, epoch, 0);
		numbers.list[2] = move->target.name;
		result = ask(move, &move->source, SQL_REHOME_HAND_OVER, 3, numbers.list, &answer);
		free(answer);
	}
	if (result == CLI_OK) {
		slot->stage = STAGE_HANDED;
		slot->epoch = epoch;
		result = hand_over_open(move, slot);
	} else {
		int back = hand_over_back(move, slot);
		result = slot->stage == STAGE_MOVED ? back : result;
	}
	slot->closed_us = slot->stage == STAGE_MOVED ? move_now() - began : -1;
	return result;
}
