/* SPDX-License-Identifier: PostgreSQL */
/*
 * show.c: pgonce show: the story of one intent, for people or as its JSON document. With --nodes it
 * asks the node that serves the tenant, or, without --tenant, all nodes whose it is.
 */
#include <stdlib.h>

#include "operator.h"
#include "plain.h"
#include "story.h"

/*
 * If the slot closes meanwhile, once.story refuses (P4097): only the node that serves the tenant
 * says that there is no such intent.
 */
static int tell(const cli_invocation *invocation, const node *node, const once_intent *intent)
{
	story story = {.document = NULL};
	int result = story_ask(invocation, node->connection, intent, &story);

	if (result == CLI_OK && story.told == NULL) {
		result = story_absent(invocation, node, intent);
	} else if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		story_mark(node, &story);
		puts(story.document);
	} else if (result == CLI_OK) {
		if (node->name != NULL) {
			plain_line("%-12s %s", "node", node->name);
		}
		story_tell(story.told);
	}
	story_free(&story);
	return result;
}

/* The intents of this name: {"tenant": ..., "scope": ..., "key": ..., "node": ...} each. */
static int search_node(const cli_invocation *invocation, const node *node, const once_intent *intent, json_t *found)
{
	char *slots = node_slots(node);
	const char *parameters[] = {intent->scope, intent->key, slots};
	json_t *here = json_array();
	PGresult *rows = NULL;
	int result = connect_run(invocation, node->connection, SQL_NODE_TENANTS, 3, parameters,
	                         "cannot look for the key without --tenant", &rows);

	for (int row = 0; result == CLI_OK && row < PQntuples(rows); row++) {
		json_array_append_new(here, json_pack("{s:s, s:s, s:s}", "tenant", PQgetvalue(rows, row, 0), "scope",
		                                      intent->scope, "key", intent->key));
	}
	node_mark(node, here);
	json_array_extend(found, here);
	json_decref(here);
	PQclear(rows);
	free(slots);
	return result;
}

static int tell_none(const cli_invocation *invocation, const once_intent *intent)
{
	char *named = cli_format("scope='%s' key='%s'", intent->scope, intent->key);

	cli_report(invocation,
	           &(cli_problem){.exit_code = CLI_NOT_FOUND,
	                          .message = "no tenant of the nodes that answered has such an intent",
	                          .detail = named,
	                          .hint = "check the spelling; an attempt in an open transaction is not visible, nor one "
	                                  "that was rolled back; pgonce find searches in other ways"});
	free(named);
	return CLI_NOT_FOUND;
}

static int tell_several(const cli_invocation *invocation, json_t *found)
{
	const json_t *row = NULL;
	size_t index = 0;

	if (invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(found));
	} else {
		json_array_foreach(found, index, row)
		{
			char *command = story_command(invocation, "show", operator_text(row, "tenant"), operator_text(row, "scope"),
			                              operator_text(row, "key"));
			plain_line("%s", command);
			free(command);
		}
		fflush(stdout);
	}
	return cli_fail(invocation, CLI_USAGE, "say which with --tenant", "several tenants have an intent of this name");
}

static int search(const cli_invocation *invocation, const node_list *nodes, once_intent *intent)
{
	json_t *found = json_array();
	const node *holder = NULL;
	int result = CLI_OK;

	for (node *node = node_list_next(nodes, NULL); node != NULL && result == CLI_OK;
	     node = node_list_next(nodes, node)) {
		result = search_node(invocation, node, intent, found);
		holder = holder == NULL && json_array_size(found) > 0 ? node : holder;
	}
	if (result == CLI_OK && holder != NULL && json_array_size(found) == 1) {
		intent->tenant = operator_text(json_array_get(found, 0), "tenant");
		result = tell(invocation, holder, intent);
	} else if (result == CLI_OK) {
		result = holder == NULL ? tell_none(invocation, intent) : tell_several(invocation, found);
	}
	json_decref(found);
	return result;
}

int cli_show(const cli_invocation *invocation)
{
	once_intent intent = cli_intent(invocation);
	node_list nodes;
	int result = node_list_open(invocation, &nodes);

	if (result == CLI_OK && invocation->given[OPTION_NODES] && !invocation->given[OPTION_TENANT]) {
		result = node_list_end(invocation, &nodes, search(invocation, &nodes, &intent));
	} else if (result == CLI_OK) {
		result = tell(invocation, node_list_next(&nodes, NULL), &intent);
	}
	node_list_close(&nodes);
	return result;
}
