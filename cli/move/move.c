/* SPDX-License-Identifier: PostgreSQL */
/* move.c: see move.h. */
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "move.h"

enum {
	PAUSE = 3 /* for so many times as long as a step of deleting took, the node is left to others */
};

static volatile sig_atomic_t stopped;

static void note_signal(int signal)
{
	(void)signal;
	stopped = 1;
}

void move_heed_signals(void)
{
	struct sigaction action = {.sa_handler = note_signal};

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

bool move_is_stopped(void)
{
	return stopped != 0;
}

int64_t move_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void move_sleep_ms(int64_t milliseconds)
{
	struct timespec pause = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};

	nanosleep(&pause, NULL);
}

static char *list_of(const move *move, slot_stage stage, bool epochs)
{
	char *list = cli_duplicate("{");

	for (int i = 0; i < move->slot_count; i++) {
		const moving_slot *slot = &move->slots[i];
		if (slot->stage == stage) {
			cli_append(&list, "%s%" PRId64, list[1] == '\0' ? "" : ",", epochs ? slot->epoch : (int64_t)slot->number);
		}
	}
	cli_append(&list, "}");
	return list;
}

char *move_numbers(const move *move, slot_stage stage)
{
	return list_of(move, stage, false);
}

char *move_epochs(const move *move, slot_stage stage)
{
	return list_of(move, stage, true);
}

int move_forget(move *move, const node_end *end, slot_stage stage, int64_t *deleted)
{
	char *numbers = move_numbers(move, stage);
	char *epochs = move_epochs(move, stage);
	char *leaf = NULL;
	char *block = NULL;
	int result = CLI_OK;

	while (result == CLI_OK && numbers[1] != '}') {
		const char *parameters[] = {numbers, epochs, leaf, block};
		PGresult *rows = NULL;
		int64_t began = move_now();
		result = connect_run(move->invocation, end->connection, SQL_REHOME_FORGET, 4, parameters,
		                     "memory that has moved is not deleted completely: run it again", &rows);
		free(leaf);
		free(block);
		leaf = block = NULL;
		if (result == CLI_OK && !PQgetisnull(rows, 0, 0)) {
			leaf = cli_duplicate(PQgetvalue(rows, 0, 0));
			block = cli_duplicate(PQgetvalue(rows, 0, 1));
		}
		*deleted += result == CLI_OK ? strtoll(PQgetvalue(rows, 0, 2), NULL, 10) : 0;
		PQclear(rows);
		if (leaf == NULL) {
			break;
		}
		move_sleep_ms((move_now() - began) / 1000 * PAUSE);
		if (move_is_stopped()) {
			result = cli_fail(move->invocation, CLI_FAILED, "run it again: it deletes the rest",
			                  "stopped while memory that has moved is deleted on %s", end->name);
		}
	}
	free(leaf);
	free(block);
	free(epochs);
	free(numbers);
	return result;
}

/* The locks end with the connections. */
int move_lock(move *move, const node_end *end)
{
	PGresult *rows = NULL;
	int result = connect_run(move->invocation, end->connection, SQL_REHOME_LOCK, 0, NULL, "nothing was changed", &rows);

	if (result == CLI_OK && PQgetvalue(rows, 0, 0)[0] != 't') {
		result = cli_fail(move->invocation, CLI_ACTIVE, "let it end; or --from and --to name one database",
		                  "another pgonce rehome works with %s", end->name);
	}
	PQclear(rows);
	return result;
}
