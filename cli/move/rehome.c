/* SPDX-License-Identifier: PostgreSQL */
/* rehome.c: pgonce rehome: moves the memory of slots from one node to another. See move.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "move.h"
#include "operate/pooling.h"
#include "plain.h"

enum {
	SLOTS = 64,
	WAIT_MS = 5000,
	SERVER_MIN = 150000
};

/* ---- The command line ---- */

static void add_slot(move *move, int number)
{
	for (int i = 0; i < move->slot_count; i++) {
		if (move->slots[i].number == number) {
			return;
		}
	}
	move->slots[move->slot_count++] = (moving_slot){.number = number, .closed_us = -1};
}

/* Operands are "17" and "0-15". */
static int read_slots(move *move)
{
	const cli_invocation *invocation = move->invocation;

	move->slots = cli_allocate(SLOTS * sizeof *move->slots);
	for (int i = 0; i < invocation->operand_count; i++) {
		const char *word = invocation->operands[i];
		int first = -1;
		int last = -1;
		int length = 0;
		if (sscanf(word, "%2d%n-%2d%n", &first, &length, &last, &length) < 2) {
			last = first;
		}
		if (word[length] != '\0' || strspn(word, "0123456789-") != strlen(word) || first < 0 || last < first ||
		    last >= SLOTS) {
			return cli_fail(invocation, CLI_USAGE, "0 to 63, or a range: pgonce rehome 17 40-47 --from DSN --to DSN",
			                "'%s' is not a slot", word);
		}
		for (int number = first; number <= last; number++) {
			add_slot(move, number);
		}
	}
	return move->slot_count > 0
	           ? CLI_OK
	           : cli_fail(invocation, CLI_USAGE, "pgonce rehome 17 --from DSN --to DSN", "no slot is named");
}

/* ---- The two nodes ---- */

static int connect_end(move *move, node_end *end, option_id option)
{
	const cli_invocation *invocation = move->invocation;

	end->conninfo = connect_conninfo_of(invocation, option);
	int result = end->conninfo == NULL ? CLI_USAGE : connect_plain(invocation, end->conninfo, &end->connection);
	if (result != CLI_OK) {
		return result;
	}
	end->name = cli_format("%s/%s", PQhost(end->connection), PQdb(end->connection));
	if (pooling_of(end->connection, end->conninfo) != POOLING_NONE) {
		return cli_fail(invocation, CLI_FAILED, "name the server itself, since a lock and replication need it",
		                "option --%s: there is a pooler before %s", cli_options[option].name, end->name);
	}
	return CLI_OK;
}

static int read_end(move *move, node_end *end)
{
	PGresult *rows = NULL;
	int result = connect_run(move->invocation, end->connection, SQL_REHOME_FACTS, 0, NULL,
	                         "connect as the owner of its contract; nothing was changed", &rows);

	if (result == CLI_OK) {
		json_decref(end->node);
		json_decref(end->facts);
		end->node = json_loads(PQgetvalue(rows, 0, 0), 0, NULL);
		end->facts = json_loads(PQgetvalue(rows, 0, 1), 0, NULL);
	}
	PQclear(rows);
	return result;
}

static json_int_t number_of(const json_t *object, const char *member)
{
	return json_integer_value(json_object_get(object, member));
}

/* What each node must be able to do. */
static int check_end(const move *move, const node_end *end, bool is_source)
{
	const json_t *facts = end->facts;

	if (json_is_true(json_object_get(facts, "standby"))) {
		return cli_fail(move->invocation, CLI_REFUSED, "name the primary", "%s is a standby", end->name);
	}
	if (!json_is_true(json_object_get(end->node, "divided"))) {
		return cli_fail(move->invocation, CLI_REFUSED,
		                "there: CALL once.divide(true); pgonce init --join makes the other node", "%s is not divided",
		                end->name);
	}
	if (number_of(facts, "server_version") < SERVER_MIN) {
		return cli_fail(move->invocation, CLI_REFUSED, "upgrade it: older servers cannot replicate a part of a table",
		                "%s has a PostgreSQL before 15", end->name);
	}
	if (is_source && strcmp(json_string_value(json_object_get(facts, "wal_level")), "logical") != 0) {
		return cli_fail(move->invocation, CLI_REFUSED, "set wal_level = logical there, and restart it",
		                "%s has no logical replication", end->name);
	}
	if (is_source && !json_is_true(json_object_get(facts, "replicates"))) {
		return cli_fail(move->invocation, CLI_REFUSED, "an administrator must give it REPLICATION (ALTER ROLE)",
		                "this role may not replicate from %s", end->name);
	}
	if (!is_source && !json_is_true(json_object_get(facts, "subscribes"))) {
		return cli_fail(move->invocation, CLI_REFUSED,
		                "a superuser may; from PostgreSQL 16 on also a member of pg_create_subscription",
		                "this role may not subscribe on %s", end->name);
	}
	if (!json_is_true(json_object_get(facts, "sees_standbys"))) {
		return cli_fail(move->invocation, CLI_REFUSED, "it must be a member of pg_read_all_stats",
		                "this role does not see whether the standbys of %s are up to date", end->name);
	}
	return CLI_OK;
}

/* What both must have in common, so that an intent means the same on each. */
static int check_both(const move *move)
{
	static const struct {
		const char *part;
		const char *what;
	} parts[] = {{"contract", "versions of the contract"},
	             {"setting", "settings, or salts"},
	             {"scopes", "policies"},
	             {"slot_of", "functions once.slot_of"}};
	const node_end *source = &move->source;
	const node_end *target = &move->target;
	const node_end *ends[] = {source, target};

	/*
	 * Only after resume() has removed what a killed run has left: its publication holds the keeper,
	 * so the day would never be through.
	 */
	for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
		if (json_array_size(json_object_get(ends[i]->facts, "closing")) > 0) {
			return cli_fail(move->invocation, CLI_REFUSED, "wait until its keeper has retired the day: pgonce keep",
			                "a day is closing on %s", ends[i]->name);
		}
	}
	if (number_of(source->facts, "closed_before") != number_of(target->facts, "closed_before")) {
		return cli_fail(move->invocation, CLI_REFUSED, "wait until both keepers have closed the same days: pgonce keep",
		                "the nodes have not closed the same days");
	}
	json_object_del(json_object_get(source->node, "setting"), "closed_before");
	json_object_del(json_object_get(target->node, "setting"), "closed_before");
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		if (!json_equal(json_object_get(source->node, parts[i].part), json_object_get(target->node, parts[i].part))) {
			return cli_fail(move->invocation, CLI_REFUSED, "pgonce doctor --nodes FILE, with both nodes, says more",
			                "the nodes have different %s", parts[i].what);
		}
	}
	double apart = json_number_value(json_object_get(source->facts, "now")) -
	               json_number_value(json_object_get(target->facts, "now"));
	double skew = json_number_value(json_object_get(source->facts, "skew"));
	if (apart > skew || apart < -skew) {
		return cli_fail(move->invocation, CLI_REFUSED,
		                "leases and retention would end at other times: check time synchronisation",
		                "the clocks of the nodes differ by more than once.setting.clock_skew");
	}
	return CLI_OK;
}

/* ---- Where each slot is ---- */

typedef struct slot_state {
	json_int_t epoch;
	bool open;
	const char *handed_to; /* NULL: to no one */
} slot_state;

static slot_state state_of(const node_end *end, int number)
{
	const json_t *state = json_array_get(json_object_get(end->facts, "slots"), (size_t)number);

	return (slot_state){.epoch = json_integer_value(json_array_get(state, 0)),
	                    .open = json_is_true(json_array_get(state, 1)),
	                    .handed_to = json_string_value(json_array_get(state, 2))};
}

static int classify(const move *move, moving_slot *slot)
{
	slot_state source = state_of(&move->source, slot->number);
	slot_state target = state_of(&move->target, slot->number);

	if (source.open && target.open) {
		return cli_fail(move->invocation, CLI_REFUSED, "close it where its epoch is lower: once_job.close_slot",
		                "slot %d is open on both nodes, with epochs %lld and %lld", slot->number,
		                (long long)source.epoch, (long long)target.epoch);
	}
	if (target.open && target.epoch >= source.epoch) {
		slot->stage = STAGE_MOVED;
		slot->epoch = target.epoch;
		return CLI_OK;
	}
	if (target.open || source.epoch < target.epoch || source.epoch == 0) {
		return cli_fail(move->invocation, CLI_REFUSED, "find the node that serves it: pgonce doctor --nodes FILE",
		                "the memory of slot %d is not on %s", slot->number, move->source.name);
	}
	slot->stage = source.open ? STAGE_OPEN : source.handed_to != NULL ? STAGE_HANDED : STAGE_CLOSED;
	slot->epoch = source.epoch;
	return CLI_OK;
}

/* ---- The command ---- */

static int prepare(move *move)
{
	int result = read_slots(move);

	result = result != CLI_OK ? result : connect_end(move, &move->source, OPTION_FROM);
	result = result != CLI_OK ? result : connect_end(move, &move->target, OPTION_TO);
	result = result != CLI_OK ? result : move_lock(move, &move->source);
	result = result != CLI_OK ? result : move_lock(move, &move->target);
	result = result != CLI_OK ? result : read_end(move, &move->source);
	result = result != CLI_OK ? result : read_end(move, &move->target);
	result = result != CLI_OK ? result : check_end(move, &move->source, true);
	result = result != CLI_OK ? result : check_end(move, &move->target, false);
	for (int i = 0; result == CLI_OK && i < move->slot_count; i++) {
		result = classify(move, &move->slots[i]);
	}
	return result;
}

/* Goes on where an earlier run has stopped. */
static int resume(move *move)
{
	int result = CLI_OK;

	for (int i = 0; result == CLI_OK && i < move->slot_count; i++) {
		moving_slot *slot = &move->slots[i];
		if (slot->stage == STAGE_HANDED) {
			result = hand_over_open(move, slot);
		} else if (slot->stage == STAGE_CLOSED) {
			result = hand_over_back(move, slot);
		}
	}
	return result != CLI_OK ? result : copy_end(move);
}

static bool has_stage(const move *move, slot_stage stage)
{
	for (int i = 0; i < move->slot_count; i++) {
		if (move->slots[i].stage == stage) {
			return true;
		}
	}
	return false;
}

/* Copies the slots that are open at the source and hands them over, one after the other. */
static int move_open_slots(move *move)
{
	int64_t leftovers = 0;
	int result = check_both(move);

	result = result != CLI_OK ? result : move_forget(move, &move->target, STAGE_OPEN, &leftovers);
	result = result != CLI_OK ? result : copy_begin(move);
	/* From here on no day closes; before, a keeper may have closed one on one node. */
	result = result != CLI_OK ? result : read_end(move, &move->source);
	result = result != CLI_OK ? result : read_end(move, &move->target);
	result = result != CLI_OK ? result : check_both(move);
	result = result != CLI_OK ? result : copy_wait(move);
	for (int i = 0; i < move->slot_count && (result == CLI_OK || result == CLI_ACTIVE) &&
	                PQstatus(move->source.connection) == CONNECTION_OK;
	     i++) {
		if (move->slots[i].stage == STAGE_OPEN) {
			int one = move_is_stopped() ? cli_fail(move->invocation, CLI_FAILED, "run it again",
			                                       "stopped before slot %d", move->slots[i].number)
			                            : hand_over(move, &move->slots[i]);
			result = one != CLI_OK ? one : result;
		}
	}
	if (PQstatus(move->source.connection) == CONNECTION_OK && PQstatus(move->target.connection) == CONNECTION_OK) {
		int ended = copy_end(move);
		result = result != CLI_OK ? result : ended;
		/* Those that could not move have left a copy. */
		int forgotten = ended == CLI_OK ? move_forget(move, &move->target, STAGE_OPEN, &leftovers) : CLI_OK;
		result = result != CLI_OK ? result : forgotten;
	}
	return result;
}

static void tell(const move *move, int64_t deleted)
{
	json_t *list = json_array();

	for (int i = 0; i < move->slot_count; i++) {
		const moving_slot *slot = &move->slots[i];
		bool moved = slot->stage == STAGE_MOVED;
		json_array_append_new(list,
		                      json_pack("{s:i, s:b, s:I, s:o}", "slot", slot->number, "moved", moved, "epoch",
		                                (json_int_t)slot->epoch, "closed_ms",
		                                slot->closed_us < 0 ? json_null() : json_real((double)slot->closed_us / 1000)));
		if (!moved || move->invocation->given[OPTION_JSON]) {
			continue;
		}
		if (slot->closed_us < 0) {
			plain_line("slot %d: on %s since an earlier run, epoch %" PRId64, slot->number, move->target.name,
			           slot->epoch);
		} else {
			plain_line("slot %d: moved to %s, epoch %" PRId64 "; closed for %.3f s", slot->number, move->target.name,
			           slot->epoch, (double)slot->closed_us / 1000000);
		}
	}
	if (move->invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:o, s:I}", "slots", list, "deleted", (json_int_t)deleted));
		return;
	}
	json_decref(list);
	if (has_stage(move, STAGE_MOVED)) {
		plain_line("%" PRId64 " rows deleted on %s", deleted, move->source.name);
	}
}

static void free_end(node_end *end)
{
	PQfinish(end->connection);
	free(end->conninfo);
	free(end->name);
	json_decref(end->node);
	json_decref(end->facts);
}

int cli_rehome(const cli_invocation *invocation)
{
	move move = {.invocation = invocation, .wait_ms = cli_number(invocation, OPTION_WAIT, WAIT_MS)};
	int64_t deleted = 0;

	move_heed_signals();
	int result = prepare(&move);
	if (result == CLI_OK) {
		result = resume(&move);
		if (result == CLI_OK && has_stage(&move, STAGE_OPEN)) {
			result = move_open_slots(&move);
		}
		/* Also if some could not move: what has moved is complete. */
		if (has_stage(&move, STAGE_MOVED) && PQstatus(move.source.connection) == CONNECTION_OK) {
			int forgotten = move_forget(&move, &move.source, STAGE_MOVED, &deleted);
			result = result != CLI_OK ? result : forgotten;
		}
		tell(&move, deleted);
	}
	free_end(&move.source);
	free_end(&move.target);
	free(move.slots);
	return result;
}
