/* SPDX-License-Identifier: PostgreSQL */
/* dead.c: pgonce dead: messages that the consumers could not apply, for operators. */
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "parked_many.h"
#include "plain.h"

enum {
	NAME_COLUMN = 12
};

static const char never_pending[] =
    "a message is waiting, retrying or dead, never pending or delayed: the broker has it";

/* ---- list */

static void print_message_state(const json_t *row)
{
	const char *tenant = operator_text(row, "tenant"), *key = operator_text(row, "key");
	char *before = cli_format("%s%s%s%s%s", tenant[0] != '\0' ? "tenant " : "", tenant,
	                          tenant[0] != '\0' && key[0] != '\0' ? ", " : "", key[0] != '\0' ? "key " : "", key);

	operator_print_state(row, before);
	free(before);
}

static void print_list(const cli_invocation *invocation, const json_t *list)
{
	static const operator_column consumer_columns[] = {{"CONSUMER", "consumer", COLUMN_TEXT},
	                                                   {"STATE", "state", COLUMN_TEXT},
	                                                   {"MESSAGES", "messages", COLUMN_NUMBER},
	                                                   {"OLDEST", "age_ms", COLUMN_AGE},
	                                                   {NULL, NULL, COLUMN_TEXT}};
	static const operator_column message_columns[] = {
	    {"MESSAGE", "message_id", COLUMN_TEXT}, {"STATE", "state", COLUMN_TEXT}, {"AGE", "age_ms", COLUMN_AGE},
	    {"CONSUMER", "consumer", COLUMN_TEXT},  {"TOPIC", "topic", COLUMN_TEXT}, {NULL, NULL, COLUMN_TEXT}};
	const json_t *messages = json_object_get(list, "messages");

	if (json_array_size(json_object_get(list, "consumers")) == 0) {
		puts(invocation->given[OPTION_CONSUMER] ? "nothing is parked with this consumer"
		                                        : "nothing is parked: every message that was taken is applied");
		return;
	}
	operator_print_table(json_object_get(list, "consumers"), consumer_columns, NULL);
	putchar('\n');
	if (json_array_size(messages) == 0) {
		puts("no message is in this state");
	} else {
		operator_print_table(messages, message_columns, print_message_state);
	}
}

static int list_messages(const cli_invocation *invocation, PGconn *connection, const char *operand)
{
	const char *state = invocation->text[OPTION_STATE];
	char *taken = operator_take(invocation);
	const char *parameters[] = {invocation->text[OPTION_CONSUMER], state, invocation->text[OPTION_PARKED_TENANT],
	                            taken};
	json_t *list = NULL;
	int result = CLI_OK;

	(void)operand;
	if (state != NULL && (strcmp(state, "pending") == 0 || strcmp(state, "delayed") == 0)) {
		result = cli_fail(invocation, CLI_USAGE, "pgonce help dead", "%s", never_pending);
	} else {
		result =
		    operator_query(invocation, connection, SQL_DEAD_LIST, 4, parameters, "cannot list the messages", &list);
	}
	if (result == CLI_OK) {
		if (invocation->given[OPTION_JSON]) {
			cli_print_json(json_incref(list));
		} else {
			print_list(invocation, list);
		}
		operator_note_cut(invocation, json_object_get(list, "messages"), "messages");
	}
	json_decref(list);
	free(taken);
	return result;
}

/* ---- which one is meant */

/* "stock, audit (tenant 'a')": free it. */
static char *places_text(const json_t *places)
{
	char *text = cli_duplicate("");
	size_t index = 0;
	const json_t *place = NULL;

	json_array_foreach(places, index, place)
	{
		const char *tenant = operator_text(place, "tenant");
		cli_append(&text, "%s%s%s%s%s", text[0] != '\0' ? ", " : "", operator_text(place, "consumer"),
		           tenant[0] != '\0' ? " (tenant '" : "", tenant, tenant[0] != '\0' ? "')" : "");
	}
	return text;
}

/* The consumer and tenant that the options name, or the only ones that have the
 * message parked: {consumer, tenant, state}. */
static int find_message(const cli_invocation *invocation, PGconn *connection, const char *id, json_t **place)
{
	const char *consumer = invocation->text[OPTION_CONSUMER];
	const char *parameters[] = {id, consumer, invocation->text[OPTION_PARKED_TENANT]};
	json_t *places = NULL;
	int result =
	    operator_query(invocation, connection, SQL_DEAD_FIND, 3, parameters, "cannot find the message", &places);

	*place = NULL;
	if (result == CLI_OK && json_array_size(places) == 0) {
		result = cli_fail(invocation, CLI_NOT_FOUND,
		                  "it may have been applied meanwhile; pgonce dead list shows what is parked",
		                  "no message '%s' is parked%s%s", id, consumer != NULL ? " with consumer " : "",
		                  consumer != NULL ? consumer : "");
	} else if (result == CLI_OK && json_array_size(places) > 1) {
		char *text = places_text(places);
		result =
		    cli_fail(invocation, CLI_USAGE, "pgonce help dead",
		             "message '%s' is parked more than once: say which with --consumer and --tenant: %s", id, text);
		free(text);
	} else if (result == CLI_OK) {
		*place = json_incref(json_array_get(places, 0));
	}
	json_decref(places);
	return result;
}

/* ---- show */

static void print_payload(const json_t *message)
{
	const char *encoded = json_string_value(json_object_get(message, "payload"));
	size_t length = 0;
	unsigned char *bytes = encoded != NULL ? plain_decode(encoded, &length) : NULL;

	if (bytes == NULL) {
		printf("%-*s none\n", NAME_COLUMN, "payload");
		return;
	}
	printf("%-*s %zu bytes\n", NAME_COLUMN, "payload", length);
	plain_bytes("| ", bytes, length);
	free(bytes);
}

static void print_message(const json_t *message)
{
	operator_print_member(message, "message", "message_id");
	operator_print_member(message, "consumer", "consumer");
	if (operator_text(message, "tenant")[0] != '\0') {
		operator_print_member(message, "tenant", "tenant");
	}
	operator_print_member(message, "topic", "topic");
	operator_print_member(message, "key", "key");
	operator_print_member(message, "state", "state");
	operator_print_member(message, "attempts", "attempts");
	operator_print_member(message, "next", "next_at");
	operator_print_member(message, "error", "error");
	operator_print_member(message, "sqlstate", "sqlstate");
	operator_print_member(message, "parked", "parked_at");
	operator_print_member(message, "updated", "updated_at");
	operator_print_member(message, "headers", "headers");
	operator_print_decisions(message);
	print_payload(message);
}

static int show_message(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	json_t *place = NULL, *message = NULL;
	int result = find_message(invocation, connection, id, &place);

	if (result == CLI_OK) {
		const char *parameters[] = {operator_text(place, "consumer"), id, operator_text(place, "tenant")};
		result =
		    operator_query(invocation, connection, SQL_DEAD_SHOW, 3, parameters, "cannot read the message", &message);
	}
	if (result == CLI_OK && !json_is_object(message)) {
		result = cli_fail(invocation, CLI_NOT_FOUND, "it was applied or discarded just now",
		                  "message '%s' is not parked any more", id);
	} else if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(message));
	} else if (result == CLI_OK) {
		print_message(message);
	}
	json_decref(message);
	json_decref(place);
	return result;
}

/* ---- retry, discard */

static int decide(const cli_invocation *invocation, PGconn *connection, const char *id, enum sql_id statement,
                  const char *what, const char *done)
{
	json_t *place = NULL, *answer = NULL;
	int result = find_message(invocation, connection, id, &place);

	if (result == CLI_OK) {
		const char *parameters[] = {operator_text(place, "consumer"), id, operator_text(place, "tenant"),
		                            invocation->text[OPTION_PARKED_REASON]};
		result = operator_query(invocation, connection, statement, 4, parameters, what, &answer);
	}
	if (result == CLI_OK && !json_is_true(answer)) {
		result = cli_fail(invocation, CLI_REFUSED, "it was applied or discarded just now",
		                  "message '%s' is not parked any more", id);
	} else if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:s, s:s, s:s, s:s}", "message_id", id, "consumer", operator_text(place, "consumer"),
		                         "tenant", operator_text(place, "tenant"), "done", invocation->operands[0]));
	} else if (result == CLI_OK) {
		plain_line("message %s, consumer %s: %s", id, operator_text(place, "consumer"), done);
	}
	json_decref(answer);
	json_decref(place);
	return result;
}

static const option_id narrowing[] = {OPTION_CONSUMER,     OPTION_PARKED_TENANT, OPTION_TOPIC,      OPTION_PARKED_TYPE,
                                      OPTION_PARKED_ERROR, OPTION_STATE,         OPTION_OLDER_THAN, OPTION_COUNT};
static const option_id narrowing_one[] = {OPTION_CONSUMER, OPTION_PARKED_TENANT, OPTION_COUNT};
static const parked_kind messages = {.one = "message",
                                     .many = "messages",
                                     .operand = "ID",
                                     .narrowing = narrowing,
                                     .of_one = narrowing_one,
                                     .holder = "consumer",
                                     .title = "CONSUMER",
                                     .counted = "MESSAGES",
                                     .pending = never_pending,
                                     .delayed = never_pending};

static int check_decision(const cli_invocation *invocation)
{
	return parked_check_decision(invocation, &messages);
}

static int retry_message(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	if (id == NULL) {
		return parked_many(invocation, connection, &messages, SQL_DEAD_RETRY_MANY,
		                   "tried again now, with all attempts before them, in the order of each key");
	}
	return decide(invocation, connection, id, SQL_DEAD_RETRY, "cannot retry the message",
	              "it is tried again now, with all its attempts before it");
}

static int discard_message(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	if (id == NULL) {
		return parked_many(invocation, connection, &messages, SQL_DEAD_DISCARD_MANY,
		                   "given up; what waited behind them goes on, and a redelivery of one is a duplicate");
	}
	return decide(invocation, connection, id, SQL_DEAD_DISCARD, "cannot discard the message",
	              "given up; what waited behind it goes on, and a redelivery of it is a duplicate");
}

int cli_dead(const cli_invocation *invocation)
{
	static const option_id of_list[] = {OPTION_CONSUMER, OPTION_PARKED_TENANT, OPTION_STATE, OPTION_TAKE, OPTION_COUNT};
	static const option_id of_one[] = {OPTION_CONSUMER, OPTION_PARKED_TENANT, OPTION_COUNT};
	static const option_id of_decision[] = {OPTION_CONSUMER,      OPTION_PARKED_TENANT, OPTION_TOPIC,
	                                        OPTION_PARKED_TYPE,   OPTION_PARKED_ERROR,  OPTION_STATE,
	                                        OPTION_OLDER_THAN,    OPTION_YES,           OPTION_DRY_RUN_MANY,
	                                        OPTION_PARKED_REASON, OPTION_COUNT};
	static const operator_verb verbs[] = {{.name = "list", .options = of_list, .run = list_messages},
	                                      {.name = "show", .operand = "ID", .options = of_one, .run = show_message},
	                                      {.name = "retry",
	                                       .operand = "ID",
	                                       .is_operand_optional = true,
	                                       .options = of_decision,
	                                       .check = check_decision,
	                                       .run = retry_message},
	                                      {.name = "discard",
	                                       .operand = "ID",
	                                       .is_operand_optional = true,
	                                       .options = of_decision,
	                                       .check = check_decision,
	                                       .run = discard_message},
	                                      {.name = NULL}};

	return operator_run(invocation, verbs);
}
