/* SPDX-License-Identifier: PostgreSQL */
/* nodes.c: see nodes.h. */
#include "nodes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "node_list.h"

/* What the nodes say of themselves (once._node), in their order; NULL: nothing. */
typedef struct inspection {
	checkup *checkup;
	node_list nodes;
	json_t **facts;
} inspection;

/* A list in words: appends to *list, which may be NULL. */
static void add_word(char **list, const char *word)
{
	char *longer = *list == NULL ? cli_duplicate(word) : cli_format("%s, %s", *list, word);

	free(*list);
	*list = longer;
}

static void note_node(checkup *checkup, const node *node, const char *level, const char *found, const char *advice)
{
	char *check = cli_format("node %s", node->name);

	checkup_note(checkup, check, level, found, advice);
	free(check);
}

static json_t *read_facts(inspection *inspection, const node *node)
{
	PGresult *rows = connect_query(node->connection, SQL_NODE_READ, 0, NULL);
	json_t *facts = NULL;

	if (PQresultStatus(rows) == PGRES_TUPLES_OK) {
		facts = json_loads(PQgetvalue(rows, 0, 0), 0, NULL);
	} else {
		const char *message = PQresultErrorField(rows, PG_DIAG_MESSAGE_PRIMARY);
		note_node(inspection->checkup, node, "failed", message != NULL ? message : "no answer",
		          "connect as the owner of its contract; if it has no contract: pgonce init --join");
	}
	PQclear(rows);
	return facts;
}

static void look_at(inspection *inspection, size_t index)
{
	checkup *checkup = inspection->checkup;
	const node *node = &inspection->nodes.list[index];
	int open = 0;

	if (node->connection == NULL) {
		note_node(checkup, node, "failed", node->problem,
		          "start it, or correct its line; its slots are unknown until then");
		return;
	}
	json_t *facts = read_facts(inspection, node);
	if (facts == NULL) {
		return;
	}
	for (int slot = 0; slot < NODE_SLOTS; slot++) {
		open += node->slots[slot].open;
	}
	char *found = cli_format("%d of %d slots are open", open, NODE_SLOTS);
	if (!node->divided) {
		note_node(checkup, node, "failed", "it is not divided, and serves every tenant",
		          "make it join with pgonce init --join, or remove its line");
	} else if (!json_is_true(json_object_get(facts, "divided"))) {
		note_node(checkup, node, "failed", "it is divided, and its calls do not ask whether a slot is open",
		          "there, as the owner of the contract: CALL once.divide()");
	} else if (node->recovers) {
		note_node(checkup, node, "failed", "it is a standby, which serves no tenant",
		          "write its primary into the line");
	} else {
		note_node(checkup, node, "ok", found, "");
	}
	free(found);
	inspection->facts[index] = facts;
}

/* ---- What all nodes must have in common ---- */

/* A part of a node's facts, as a new reference. */
static json_t *part_of(const json_t *facts, const char *part)
{
	json_t *setting = json_object_get(facts, "setting");

	if (strcmp(part, "salt") == 0) {
		return json_incref(json_object_get(setting, "salt"));
	}
	if (strcmp(part, "setting") == 0) { /* each node's keeper closes days in its own time */
		json_t *rest = json_copy(setting);
		json_object_del(rest, "salt");
		json_object_del(rest, "closed_before");
		return rest;
	}
	return json_incref(json_object_get(facts, part));
}

static void compare(const inspection *inspection)
{
	static const struct {
		const char *part;
		const char *check;
		const char *level;
		const char *advice;
	} parts[] = {
	    {"contract", "contracts", "failed", "pgonce init of one version on each node"},
	    {"salt", "salts", "failed",
	     "a fingerprint of one node is a mismatch on the other: install the node again with pgonce init --join"},
	    {"slot_of", "hash of tenants", "failed",
	     "the nodes do not agree on the slot of a tenant: replace once.slot_of where it is wrong, before it serves"},
	    {"setting", "settings", "warning", "once.set_keeping on the nodes that differ"},
	    {"scopes", "policies", "failed", "once.set_scope on the nodes that differ"},
	    {"bindings", "bindings", "failed", "once.bind and once.unbind on the nodes that differ"},
	};

	const node_list *nodes = &inspection->nodes;

	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		size_t first = nodes->count;
		char *differ = NULL;
		for (size_t n = 0; n < nodes->count; n++) {
			if (inspection->facts[n] == NULL) {
				continue;
			}
			if (first == nodes->count) {
				first = n;
				continue;
			}
			json_t *one = part_of(inspection->facts[first], parts[i].part);
			json_t *other = part_of(inspection->facts[n], parts[i].part);
			if (!json_equal(one, other)) {
				add_word(&differ, nodes->list[n].name);
			}
			json_decref(one);
			json_decref(other);
		}
		if (first < nodes->count) {
			char *found = differ == NULL ? cli_duplicate("the same on each node")
			                             : cli_format("other than on %s: %s", nodes->list[first].name, differ);
			checkup_note(inspection->checkup, parts[i].check, differ == NULL ? "ok" : parts[i].level, found,
			             parts[i].advice);
			free(found);
		}
		free(differ);
	}
}

/* ---- Where the slots are open ---- */

typedef struct findings {
	char *nowhere;
	char *twice;
	bool is_tie; /* of two that have a slot open, neither is newer */
	char *old;
} findings;

static void check_slot(const node_list *nodes, int slot, findings *findings)
{
	const node *newest = &nodes->list[0];
	char *open = NULL;
	int count = 0, serving = 0;

	for (size_t n = 0; n < nodes->count; n++) {
		const node *node = &nodes->list[n];
		newest = node->slots[slot].epoch > newest->slots[slot].epoch ? node : newest;
		if (node->slots[slot].open) {
			char *word = cli_format("%s (epoch %" PRId64 ")", node->name, node->slots[slot].epoch);
			add_word(&open, word);
			free(word);
			count++;
			serving += node->slots[slot].serves;
		}
	}
	char *number = count == 0   ? cli_format("%d", slot)
	               : count == 1 ? cli_format("%d on %s, but %s has had epoch %" PRId64, slot, open, newest->name,
	                                         newest->slots[slot].epoch)
	                            : cli_format("%d on %s", slot, open);
	if (count == 0) {
		add_word(&findings->nowhere, number);
	} else if (count > 1) {
		add_word(&findings->twice, number);
		findings->is_tie = findings->is_tie || serving == 0;
	} else if (serving == 0) {
		add_word(&findings->old, number);
	}
	free(number);
	free(open);
}

static void check_slots(checkup *checkup, const node_list *nodes)
{
	findings found = {.nowhere = NULL};
	bool away = nodes->away > 0;

	for (int slot = 0; slot < NODE_SLOTS; slot++) {
		check_slot(nodes, slot, &found);
	}
	checkup_note(checkup, "slots open nowhere",
	             found.nowhere == NULL ? "ok"
	             : away                ? "warning"
	                                   : "failed",
	             found.nowhere == NULL ? "none" : found.nowhere,
	             away ? "they may be open on a node that is away"
	                  : "their tenants are refused: run an interrupted pgonce rehome again, or "
	                    "once_job.open_slot(slot, epoch) on the "
	                    "node with their memory");
	checkup_note(
	    checkup, "slots open twice", found.twice == NULL ? "ok" : "failed", found.twice == NULL ? "none" : found.twice,
	    found.is_tie ? "an effect can happen twice: a node of the same epoch is a copy of the other: stop the copy at "
	                   "once"
	                 : "an effect can happen twice: once_job.close_slot(slot) where the epoch is lower, at once");
	checkup_note(checkup, "slots open with an old epoch", found.old == NULL ? "ok" : "failed",
	             found.old == NULL ? "none" : found.old,
	             "it was promoted or restored from before the slot moved: once_job.close_slot(slot) there, at once");
	free(found.nowhere);
	free(found.twice);
	free(found.old);
}

/* ---- What should not be there ---- */

static bool share_a_slot(const node *one, const node *other)
{
	for (int slot = 0; slot < NODE_SLOTS; slot++) {
		if (one->slots[slot].open && other->slots[slot].open && one->slots[slot].epoch == other->slots[slot].epoch) {
			return true;
		}
	}
	return false;
}

static void check_copies(checkup *checkup, const node_list *nodes)
{
	char *copies = NULL;

	for (size_t i = 0; i < nodes->count; i++) {
		for (size_t n = 0; n < i; n++) {
			const node *one = &nodes->list[n], *other = &nodes->list[i];
			if (one->database != NULL && other->database != NULL && strcmp(one->database, other->database) == 0 &&
			    share_a_slot(one, other)) {
				char *pair = cli_format("%s%s and %s%s", one->name, one->recovers ? " (a standby)" : "", other->name,
				                        other->recovers ? " (a standby)" : "");
				add_word(&copies, pair);
				free(pair);
			}
		}
	}
	checkup_note(
	    checkup, "copies of a node", copies == NULL ? "ok" : "failed", copies == NULL ? "none" : copies,
	    "both have the same slots open: remove the line of a standby; stop a clone at once, or a standby that was "
	    "promoted while its primary runs");
	free(copies);
}

static void check_leftovers(const inspection *inspection)
{
	char *remembered = NULL, *made = NULL;

	for (size_t i = 0; i < inspection->nodes.count; i++) {
		const node *node = &inspection->nodes.list[i];
		if (inspection->facts[i] == NULL || !node->divided) {
			continue;
		}
		PGresult *rows = connect_query(node->connection, SQL_NODE_LEFTOVERS, 0, NULL);
		char *of_node[2] = {NULL, NULL};
		for (int column = 0; column < 2 && PQntuples(rows) == 1; column++) {
			of_node[column] =
			    PQgetisnull(rows, 0, column) ? NULL : cli_format("%s: %s", node->name, PQgetvalue(rows, 0, column));
		}
		if (PQresultStatus(rows) != PGRES_TUPLES_OK) {
			const char *message = PQresultErrorField(rows, PG_DIAG_MESSAGE_PRIMARY);
			of_node[0] = cli_format("%s: unknown: %s", node->name, message != NULL ? message : "no answer");
		}
		if (of_node[0] != NULL) {
			add_word(&remembered, of_node[0]);
		}
		if (of_node[1] != NULL) {
			add_word(&made, of_node[1]);
		}
		free(of_node[0]);
		free(of_node[1]);
		PQclear(rows);
	}
	checkup_note(
	    inspection->checkup, "memory of closed slots", remembered == NULL ? "ok" : "warning",
	    remembered == NULL ? "none" : remembered,
	    "no call sees it; pgonce rehome deletes it when the slot has moved: run it again if it was interrupted");
	checkup_note(inspection->checkup, "unfinished moves", made == NULL ? "ok" : "warning", made == NULL ? "none" : made,
	             "if no pgonce rehome is at work, run it again: it continues, and removes them");
	free(remembered);
	free(made);
}

int nodes_check(checkup *checkup)
{
	inspection inspection = {.checkup = checkup};
	node_list *nodes = &inspection.nodes;
	int result = node_list_read(checkup->invocation, nodes);

	inspection.facts = cli_allocate(nodes->count * sizeof(void *));
	for (size_t i = 0; i < nodes->count && result == CLI_OK; i++) {
		look_at(&inspection, i);
	}
	if (result == CLI_OK) {
		compare(&inspection);
		check_slots(checkup, nodes);
		check_copies(checkup, nodes);
		check_leftovers(&inspection);
	}
	for (size_t i = 0; i < nodes->count; i++) {
		json_decref(inspection.facts[i]);
	}
	free(inspection.facts);
	node_list_close(nodes);
	return result;
}
