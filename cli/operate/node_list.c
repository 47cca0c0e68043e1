/* SPDX-License-Identifier: PostgreSQL */
/* node_list.c: see node_list.h. */
#include "node_list.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "nodes_file.h"

/* ---- reading ---- */

static char *first_line(const char *message)
{
	char *line = cli_duplicate(message != NULL && message[0] != '\0' ? message : "no answer");

	line[strcspn(line, "\n")] = '\0';
	return line;
}

static PGresult *ask(node *node, enum sql_id id)
{
	PGresult *rows = connect_query(node->connection, id, 0, NULL);

	if (PQresultStatus(rows) == PGRES_TUPLES_OK) {
		return rows;
	}
	const char *message = PQresultErrorField(rows, PG_DIAG_MESSAGE_PRIMARY);
	node->problem = first_line(message != NULL ? message : PQerrorMessage(node->connection));
	PQclear(rows);
	return NULL;
}

static bool read_identity(node *node)
{
	PGresult *rows = ask(node, SQL_NODE_IDENTITY);

	if (rows == NULL) {
		return false;
	}
	node->database = cli_duplicate(PQgetvalue(rows, 0, 0));
	node->started = cli_duplicate(PQgetvalue(rows, 0, 1));
	node->recovers = PQgetvalue(rows, 0, 2)[0] == 't';
	PQclear(rows);
	return true;
}

static bool read_slots(node *node)
{
	PGresult *rows = ask(node, SQL_NODE_SLOTS);

	node->divided = PQntuples(rows) > 0;
	for (int row = 0; row < PQntuples(rows); row++) {
		int slot = atoi(PQgetvalue(rows, row, 0));
		if (slot >= 0 && slot < NODE_SLOTS) {
			node->slots[slot] = (node_slot){.epoch = strtoll(PQgetvalue(rows, row, 1), NULL, 10),
			                                .open = PQgetvalue(rows, row, 2)[0] == 't'};
		}
	}
	PQclear(rows);
	return rows != NULL;
}

static char *name_of(const PGconn *connection, bool with_port)
{
	const char *host = PQhost(connection), *database = PQdb(connection);

	return cli_format("%s%s%s/%s", host != NULL ? host : "", with_port ? ":" : "", with_port ? PQport(connection) : "",
	                  database != NULL ? database : "");
}

typedef struct reading {
	const cli_invocation *invocation;
	node_list *nodes;
} reading;

static node *find_other(const node_list *nodes, const node *node,
                        bool (*same)(const struct node *, const struct node *))
{
	for (size_t i = 0; i < nodes->count; i++) {
		if (&nodes->list[i] != node && same(&nodes->list[i], node)) {
			return &nodes->list[i];
		}
	}
	return NULL;
}

static bool is_same_node(const node *one, const node *other)
{
	return one->database != NULL && other->database != NULL && strcmp(one->database, other->database) == 0 &&
	       strcmp(one->started, other->started) == 0;
}

static bool has_same_name(const node *one, const node *other)
{
	return strcmp(one->name, other->name) == 0;
}

static int take_node(void *argument, int line, const char *conninfo)
{
	const reading *reading = argument;
	node_list *nodes = reading->nodes;
	PGconn *connection = PQconnectdb(conninfo);
	node *grown = realloc(nodes->list, (nodes->count + 1) * sizeof *grown);

	if (grown == NULL || connection == NULL) {
		abort();
	}
	nodes->list = grown;
	node *taken = &nodes->list[nodes->count++];
	*taken = (node){.name = name_of(connection, false), .line = line, .connection = connection};
	if (find_other(nodes, taken, has_same_name) != NULL) {
		free(taken->name);
		taken->name = name_of(connection, true);
	}
	if (PQstatus(connection) != CONNECTION_OK) {
		taken->problem = first_line(PQerrorMessage(connection));
		PQfinish(connection);
		taken->connection = NULL;
	} else if (read_identity(taken)) {
		read_slots(taken);
	}
	nodes->away += taken->problem != NULL;
	const node *other = find_other(nodes, taken, is_same_node);
	return other == NULL ? CLI_OK
	                     : cli_fail(reading->invocation, CLI_USAGE, "remove one of them",
	                                "option --nodes: lines %d and %d of %s name the same node", other->line, line,
	                                reading->invocation->text[OPTION_NODES]);
}

/* A slot is served by the one node that has it open with the greatest epoch that any node knows. */
static void settle(node_list *nodes)
{
	for (int slot = 0; slot < NODE_SLOTS; slot++) {
		int64_t newest = 0;
		node *serving = NULL;
		for (size_t i = 0; i < nodes->count; i++) {
			node_slot *state = &nodes->list[i].slots[slot];
			if (state->epoch > newest) {
				newest = state->epoch;
				serving = NULL;
			}
			if (state->open && state->epoch == newest) {
				state->serves = serving == NULL; /* the second one shows that none is known to */
				if (serving != NULL) {
					serving->slots[slot].serves = false;
				}
				serving = &nodes->list[i];
			}
		}
		for (size_t i = 0; i < nodes->count; i++) {
			node_slot *state = &nodes->list[i].slots[slot];
			state->serves = state->serves && state->epoch == newest;
		}
	}
}

int node_list_read(const cli_invocation *invocation, node_list *nodes)
{
	int result = nodes_file_read(invocation, take_node, &(reading){.invocation = invocation, .nodes = nodes});

	settle(nodes);
	return result;
}

void node_list_close(node_list *nodes)
{
	for (size_t i = 0; i < nodes->count; i++) {
		node *node = &nodes->list[i];
		once_session_close(node->session);
		if (node->name != NULL) {
			PQfinish(node->connection); /* of --dsn it is the session's own */
		}
		free(node->name);
		free(node->problem);
		free(node->database);
		free(node->started);
	}
	free(nodes->list);
	*nodes = (node_list){.count = 0};
}

/* ---- opening ---- */

/* A list in words: appends to *list, which may be NULL. */
static void add_word(char **list, const char *format, const char *word)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	char *shown = cli_format(format, word);
#pragma GCC diagnostic pop
	char *longer = *list == NULL ? cli_duplicate(shown) : cli_format("%s, %s", *list, shown);

	free(shown);
	free(*list);
	*list = longer;
}

static int open_one(const cli_invocation *invocation, node_list *nodes)
{
	once_session *session = NULL;
	int result = connect_open(invocation, &session);

	if (result == CLI_OK) {
		nodes->list = cli_allocate(sizeof *nodes->list);
		nodes->list[0] = (node){.session = session, .connection = once_session_connection(session), .asked = true};
		nodes->count = 1;
	}
	return result;
}

/* Its session, which checks that this program knows its contract. */
static void attach(node_list *nodes, node *node)
{
	once_error *error = NULL;

	if (node->problem == NULL && once_session_attach(node->connection, &node->session, &error) != ONCE_OK) {
		node->problem = first_line(once_error_message(error));
		nodes->away++;
	}
	once_error_free(error);
	node->asked = node->problem == NULL;
}

int node_list_open(const cli_invocation *invocation, node_list *nodes)
{
	*nodes = (node_list){.tenant_slot = -1};
	if (!invocation->given[OPTION_NODES]) {
		return open_one(invocation, nodes);
	}
	int result = node_list_read(invocation, nodes);
	for (size_t i = 0; i < nodes->count && result == CLI_OK; i++) {
		node *node = &nodes->list[i];
		attach(nodes, node);
		if (node->asked && !node->divided && nodes->count > 1) {
			result = cli_fail(invocation, CLI_USAGE, "make it join with pgonce init --join, or remove its line",
			                  "option --nodes: %s is not divided, and serves every tenant", node->name);
		}
	}
	for (size_t i = 0; result == CLI_OK && nodes->away == nodes->count && i < nodes->count; i++) {
		cli_note(invocation, "%s does not answer: %s", nodes->list[i].name, nodes->list[i].problem);
	}
	if (result == CLI_OK && nodes->away == nodes->count) {
		return cli_fail(invocation, CLI_NO_SERVER, "start them, or correct the file", "no node of %s answers",
		                invocation->text[OPTION_NODES]);
	}
	node *serving = NULL;
	return result != CLI_OK || !invocation->given[OPTION_TENANT]
	           ? result
	           : node_list_serving(invocation, nodes, invocation->text[OPTION_TENANT], &serving);
}

node *node_list_next(const node_list *nodes, const node *after)
{
	for (size_t i = after == NULL ? 0 : (size_t)(after - nodes->list) + 1; i < nodes->count; i++) {
		if (nodes->list[i].asked) {
			return &nodes->list[i];
		}
	}
	return NULL;
}

/* ---- the node of a tenant ---- */

/* All nodes must agree on the slot of a tenant: otherwise each may serve it, or none. */
static int find_slot(const cli_invocation *invocation, const node_list *nodes, const char *tenant, int *slot)
{
	const node *first = NULL;
	int result = CLI_OK;

	for (size_t i = 0; i < nodes->count && result == CLI_OK; i++) {
		const node *node = &nodes->list[i];
		PGresult *rows = NULL;
		if (node->problem != NULL) {
			continue;
		}
		result = connect_run(invocation, node->connection, SQL_NODE_SLOT_OF, 1, &tenant,
		                     "cannot ask for the slot of the tenant", &rows);
		if (result != CLI_OK) {
			return result;
		}
		int here = atoi(PQgetvalue(rows, 0, 0));
		PQclear(rows);
		if (here < 0 || here >= NODE_SLOTS || (first != NULL && here != *slot)) {
			return cli_fail(invocation, CLI_FAILED, "pgonce doctor --nodes compares once.slot_of",
			                "the nodes do not agree on the slot of tenant='%s': %d on %s", tenant, here, node->name);
		}
		first = node;
		*slot = here;
	}
	return result;
}

/* Says why no node is known to serve the slot. */
static int refuse_slot(const cli_invocation *invocation, const node_list *nodes, const char *tenant, int slot)
{
	char *away = NULL, *open = NULL;
	int result = CLI_OK;

	for (size_t i = 0; i < nodes->count; i++) {
		const node *node = &nodes->list[i];
		if (node->problem != NULL) {
			char *why = cli_format("%s does not answer (%s)", node->name, node->problem);
			add_word(&away, "%s", why);
			free(why);
		} else if (node->slots[slot].open) {
			char *where = cli_format("%s (epoch %" PRId64 ")", node->name, node->slots[slot].epoch);
			add_word(&open, "%s", where);
			free(where);
		}
	}
	if (open != NULL) {
		result = cli_fail(invocation, CLI_REFUSED, "pgonce doctor --nodes",
		                  "it is unknown which node serves slot %d of tenant='%s': it is open on %s%s%s", slot, tenant,
		                  open, away != NULL ? "; " : "", away != NULL ? away : "");
	} else if (away != NULL) {
		result = cli_fail(invocation, CLI_NO_SERVER, "start the node, or correct its line",
		                  "slot %d of tenant='%s' is open on no node that answers: %s", slot, tenant, away);
	} else {
		result = cli_fail(invocation, CLI_REFUSED, "if it is moving, try again; else pgonce doctor --nodes",
		                  "slot %d of tenant='%s' is open on no node", slot, tenant);
	}
	free(away);
	free(open);
	return result;
}

int node_list_serving(const cli_invocation *invocation, node_list *nodes, const char *tenant, node **serving)
{
	int slot = 0;

	*serving = NULL;
	if (nodes->count == 1 && nodes->list[0].problem == NULL && !nodes->list[0].divided) {
		*serving = &nodes->list[0]; /* it serves every tenant, or the contract will say */
		return CLI_OK;
	}
	int result = find_slot(invocation, nodes, tenant, &slot);
	nodes->tenant_slot = slot;
	for (size_t i = 0; i < nodes->count && result == CLI_OK; i++) {
		node *node = &nodes->list[i];
		node->asked = node->problem == NULL && node->slots[slot].serves;
		*serving = node->asked ? node : *serving;
	}
	return result != CLI_OK || *serving != NULL ? result : refuse_slot(invocation, nodes, tenant, slot);
}

/* ---- whole answers ---- */

int node_list_check_open(const cli_invocation *invocation, const node_list *nodes)
{
	for (const node *node = node_list_next(nodes, NULL); node != NULL; node = node_list_next(nodes, node)) {
		for (int slot = 0; slot < NODE_SLOTS; slot++) {
			if (node->slots[slot].open && !node->slots[slot].serves) {
				return cli_fail(invocation, CLI_REFUSED, "pgonce doctor --nodes",
				                "slot %d is open on %s, and another node may serve it; nothing was decided", slot,
				                node->name);
			}
		}
	}
	return CLI_OK;
}

/* The slots that no node is known to serve, in words; NULL: each slot is served. */
static char *unserved(const node_list *nodes)
{
	char *list = NULL;

	for (int slot = 0; slot < NODE_SLOTS; slot++) {
		bool served = false;
		for (size_t i = 0; i < nodes->count; i++) {
			served = served || nodes->list[i].slots[slot].serves;
		}
		if (!served) {
			char *number = cli_format("%d", slot);
			add_word(&list, "%s", number);
			free(number);
		}
	}
	return list;
}

/* Whether the slots that the command is about are as they were; otherwise after a note. */
static bool is_unchanged(const cli_invocation *invocation, const node_list *nodes, const node *node)
{
	struct node now = {.connection = node->connection};
	bool same = read_slots(&now);

	for (int slot = 0; slot < NODE_SLOTS && same; slot++) {
		bool counts = nodes->tenant_slot < 0 || slot == nodes->tenant_slot;
		same = !counts ||
		       (node->slots[slot].epoch == now.slots[slot].epoch && node->slots[slot].open == now.slots[slot].open);
	}
	if (now.problem != NULL) {
		cli_note(invocation, "the answer may be incomplete: %s no longer answers: %s", node->name, now.problem);
	} else if (!same) {
		cli_note(invocation, "the answer is incomplete: a slot of %s has moved meanwhile; run it again", node->name);
	}
	free(now.problem);
	return same;
}

static bool note_unserved(const cli_invocation *invocation, const node_list *nodes)
{
	char *slots = unserved(nodes);

	for (size_t i = 0; i < nodes->count; i++) {
		const node *node = &nodes->list[i];
		if (node->problem != NULL) {
			cli_note(invocation, "the answer is incomplete: %s does not answer: %s", node->name, node->problem);
		}
	}
	if (slots != NULL && nodes->away == 0) {
		cli_note(invocation,
		         "the answer is incomplete: it is unknown which node serves these slots: %s; pgonce doctor --nodes",
		         slots);
	}
	bool complete = nodes->away == 0 && slots == NULL;
	free(slots);
	return !complete;
}

int node_list_end(const cli_invocation *invocation, const node_list *nodes, int result)
{
	bool tenant = invocation->given[OPTION_TENANT];

	if (!invocation->given[OPTION_NODES] || (result != CLI_OK && result != CLI_NOT_FOUND && result != CLI_IN_DOUBT)) {
		return result;
	}
	bool incomplete = !tenant && (nodes->count > 1 || nodes->list[0].divided) && note_unserved(invocation, nodes);
	for (const node *node = node_list_next(nodes, NULL); node != NULL; node = node_list_next(nodes, node)) {
		incomplete = !is_unchanged(invocation, nodes, node) || incomplete;
	}
	return incomplete ? CLI_INCOMPLETE : result;
}

/* ---- one node ---- */

char *node_slots(const node *node)
{
	char *list = NULL;

	if (node->name == NULL || !node->divided) {
		return NULL;
	}
	for (int slot = 0; slot < NODE_SLOTS; slot++) {
		if (node->slots[slot].serves) {
			char *longer = list == NULL ? cli_format("%d", slot) : cli_format("%s,%d", list, slot);
			free(list);
			list = longer;
		}
	}
	char *array = cli_format("{%s}", list != NULL ? list : "");
	free(list);
	return array;
}

char *node_text(const node *node)
{
	return node->name == NULL ? cli_format("in database %s", PQdb(node->connection))
	                          : cli_format("on node %s", node->name);
}

void node_mark(const node *node, json_t *rows)
{
	json_t *row = NULL;
	size_t index = 0;

	json_array_foreach(rows, index, row)
	{
		if (node->name != NULL) {
			json_object_set_new(row, "node", json_string(node->name));
		}
	}
}
