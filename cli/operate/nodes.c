/* SPDX-License-Identifier: PostgreSQL */
/* nodes.c: see nodes.h. */
#include "nodes.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "connect.h"

enum {
	SLOTS = 64,
	FILE_BYTES_MAX = 1 << 20
};

typedef struct node {
	char *name;    /* never its connection string, which may contain a password */
	json_t *facts; /* what once._node() returns; NULL: it is away, or has no contract to compare */
	json_t *slots; /* [slot, epoch, open] each; NULL: it is not divided */
} node;

typedef struct nodes {
	node *list;
	size_t count;
} nodes;

static void free_nodes(nodes *nodes)
{
	for (size_t i = 0; i < nodes->count; i++) {
		free(nodes->list[i].name);
		json_decref(nodes->list[i].facts);
		json_decref(nodes->list[i].slots);
	}
	free(nodes->list);
}

/* A list in words: appends to *list, which may be NULL. */
static void add_word(char **list, const char *word)
{
	char *longer = *list == NULL ? cli_duplicate(word) : cli_format("%s, %s", *list, word);

	free(*list);
	*list = longer;
}

static void read_facts(checkup *checkup, node *node, const PGresult *rows)
{
	const char *slots = PQgetvalue(rows, 0, 1);
	int open = 0;

	node->facts = json_loads(PQgetvalue(rows, 0, 0), 0, NULL);
	node->slots = slots[0] == '\0' ? NULL : json_loads(slots, 0, NULL);
	for (size_t i = 0; i < json_array_size(node->slots); i++) {
		open += json_is_true(json_array_get(json_array_get(node->slots, i), 2));
	}
	char *found = node->slots == NULL ? cli_duplicate("it is not divided, and serves every tenant")
	                                  : cli_format("%d of %d slots are open", open, SLOTS);
	bool guarded = json_is_true(json_object_get(node->facts, "divided"));
	char *check = cli_format("node %s", node->name);
	checkup_note(checkup, check, guarded ? "ok" : "failed",
	             node->slots != NULL && !guarded ? "it is divided, and its calls do not ask whether a slot is open"
	                                             : found,
	             node->slots == NULL ? "make it join with pgonce init --join, or remove its line"
	                                 : "there, as the owner of the contract: CALL once.divide()");
	free(check);
	free(found);
}

/* Fills in the node of a connection string. */
static void look_at(checkup *checkup, node *node, const char *conninfo)
{
	PGconn *connection = PQconnectdb(conninfo);
	PGresult *rows = NULL;
	char *check = NULL;

	if (PQstatus(connection) != CONNECTION_OK) {
		char *message = cli_duplicate(connection == NULL ? "out of memory" : PQerrorMessage(connection));
		message[strcspn(message, "\n")] = '\0';
		check = cli_format("node %s", node->name);
		checkup_note(checkup, check, "failed", message,
		             "start it, or correct its line; its slots are unknown until then");
		free(message);
	} else {
		free(node->name);
		node->name = cli_format("%s/%s", PQhost(connection), PQdb(connection));
		rows = connect_query(connection, SQL_NODE_READ, 0, NULL);
		if (PQresultStatus(rows) == PGRES_TUPLES_OK) {
			read_facts(checkup, node, rows);
		} else {
			const char *message = PQresultErrorField(rows, PG_DIAG_MESSAGE_PRIMARY);
			check = cli_format("node %s", node->name);
			checkup_note(checkup, check, "failed", message != NULL ? message : "no answer",
			             "connect as the owner of its contract; if it has no contract: pgonce init --join");
		}
	}
	free(check);
	PQclear(rows);
	PQfinish(connection);
}

static int read_file(const checkup *checkup, const char *path, char **text)
{
	bytes read = {.bytes_max = FILE_BYTES_MAX};
	int error = bytes_read_file(&read, path);

	if (error != 0 || !bytes_append(&read, "", 1)) {
		bytes_free(&read);
		return cli_fail(checkup->invocation, CLI_USAGE, "one connection string per line", "option --nodes: %s: %s",
		                path, strerror(error != 0 ? error : EFBIG));
	}
	*text = (char *)read.data;
	return CLI_OK;
}

static int look_at_all(checkup *checkup, const char *path, char *text, nodes *nodes)
{
	char *rest = text;
	int number = 0;

	for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n")) {
		char problem[CONNINFO_PROBLEM_BYTES];
		number++;
		while (isspace((unsigned char)*line)) {
			line++;
		}
		if (*line == '\0' || *line == '#') {
			continue;
		}
		char *conninfo = connect_settled(line, problem);
		if (conninfo == NULL) {
			return cli_fail(checkup->invocation, CLI_USAGE, "the PostgreSQL manual: Connection Strings",
			                "option --nodes: line %d of %s: %s", number, path, problem);
		}
		node *grown = realloc(nodes->list, (nodes->count + 1) * sizeof *grown);
		if (grown == NULL) {
			abort();
		}
		nodes->list = grown;
		nodes->list[nodes->count] = (node){.name = cli_format("in line %d", number)};
		look_at(checkup, &nodes->list[nodes->count++], conninfo);
		free(conninfo);
	}
	return nodes->count > 0 ? CLI_OK
	                        : cli_fail(checkup->invocation, CLI_USAGE, "one connection string per line",
	                                   "option --nodes: %s names no node", path);
}

/* ---- What all nodes must have in common ---- */

/* A borrowed part of a node's facts, or a new reference: the caller gives it back. */
static json_t *part_of(const node *node, const char *part)
{
	json_t *setting = json_object_get(node->facts, "setting");

	if (strcmp(part, "salt") == 0) {
		return json_incref(json_object_get(setting, "salt"));
	}
	if (strcmp(part, "setting") == 0) { /* each node's keeper closes days in its own time */
		json_t *rest = json_copy(setting);
		json_object_del(rest, "salt");
		json_object_del(rest, "closed_before");
		return rest;
	}
	return json_incref(json_object_get(node->facts, part));
}

static void compare(checkup *checkup, const nodes *nodes)
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

	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		const node *first = NULL;
		char *differ = NULL;
		for (size_t n = 0; n < nodes->count; n++) {
			const node *each = &nodes->list[n];
			if (each->facts == NULL) {
				continue;
			}
			if (first == NULL) {
				first = each;
				continue;
			}
			json_t *one = part_of(first, parts[i].part);
			json_t *other = part_of(each, parts[i].part);
			if (!json_equal(one, other)) {
				add_word(&differ, each->name);
			}
			json_decref(one);
			json_decref(other);
		}
		if (first != NULL) {
			char *found = differ == NULL ? cli_duplicate("the same on each node")
			                             : cli_format("other than on %s: %s", first->name, differ);
			checkup_note(checkup, parts[i].check, differ == NULL ? "ok" : parts[i].level, found, parts[i].advice);
			free(found);
		}
		free(differ);
	}
}

/* ---- Where the slots are open ---- */

static void check_slots(checkup *checkup, const nodes *nodes)
{
	char *nowhere = NULL;
	char *twice = NULL;
	bool away = false;

	for (size_t n = 0; n < nodes->count; n++) {
		away = away || nodes->list[n].facts == NULL;
	}
	for (int slot = 0; slot < SLOTS; slot++) {
		char *open = NULL;
		int count = 0;
		for (size_t n = 0; n < nodes->count; n++) {
			const json_t *state = json_array_get(nodes->list[n].slots, (size_t)slot);
			if (json_is_true(json_array_get(state, 2))) {
				char *word = cli_format("%s (epoch %lld)", nodes->list[n].name,
				                        (long long)json_integer_value(json_array_get(state, 1)));
				add_word(&open, word);
				free(word);
				count++;
			}
		}
		char *number = count > 1 ? cli_format("%d on %s", slot, open) : cli_format("%d", slot);
		if (count != 1) {
			add_word(count == 0 ? &nowhere : &twice, number);
		}
		free(number);
		free(open);
	}
	checkup_note(checkup, "slots open nowhere",
	             nowhere == NULL ? "ok"
	             : away          ? "warning"
	                             : "failed",
	             nowhere == NULL ? "none" : nowhere,
	             away ? "they may be open on a node that is away"
	                  : "their tenants are refused: once_job.open_slot(slot, epoch) on the node with their memory");
	checkup_note(checkup, "slots open twice", twice == NULL ? "ok" : "failed", twice == NULL ? "none" : twice,
	             "an effect can happen twice: once_job.close_slot(slot) where the epoch is lower, at once");
	free(nowhere);
	free(twice);
}

int nodes_check(checkup *checkup, const char *path)
{
	nodes nodes = {.count = 0};
	char *text = NULL;
	int result = read_file(checkup, path, &text);

	if (result == CLI_OK) {
		result = look_at_all(checkup, path, text, &nodes);
	}
	if (result == CLI_OK) {
		compare(checkup, &nodes);
		check_slots(checkup, &nodes);
	}
	free_nodes(&nodes);
	free(text);
	return result;
}
