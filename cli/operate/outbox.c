/* SPDX-License-Identifier: PostgreSQL */
/* outbox.c: pgonce outbox: what the relays have not delivered, for operators. */
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "parked_many.h"
#include "plain.h"

enum {
	NAME_COLUMN = 12
};

static bool is_parked(const json_t *relay)
{
	const char *state = operator_text(relay, "state");
	return strcmp(state, "waiting") == 0 || strcmp(state, "retrying") == 0 || strcmp(state, "dead") == 0;
}

/* ---- list */

static void print_event_state(const json_t *row)
{
	const char *id = operator_text(row, "aggregate_id");
	char *aggregate = cli_format("%s%s%s", operator_text(row, "aggregate_type"), id[0] != '\0' ? " " : "", id);

	operator_print_state(row, aggregate);
	free(aggregate);
}

static void print_list(const cli_invocation *invocation, const json_t *list)
{
	static const operator_column relay_columns[] = {
	    {"RELAY", "relay", COLUMN_TEXT},     {"TOPIC", "topic", COLUMN_TEXT},  {"STATE", "state", COLUMN_TEXT},
	    {"EVENTS", "events", COLUMN_NUMBER}, {"OLDEST", "age_ms", COLUMN_AGE}, {NULL, NULL, COLUMN_TEXT}};
	static const operator_column event_columns[] = {{"EVENT", "event_id", COLUMN_TEXT}, {"STATE", "state", COLUMN_TEXT},
	                                                {"AGE", "age_ms", COLUMN_AGE},      {"RELAY", "relay", COLUMN_TEXT},
	                                                {"TOPIC", "topic", COLUMN_TEXT},    {NULL, NULL, COLUMN_TEXT}};
	static const operator_column untaken_columns[] = {{"NO RELAY TAKES", "topic", COLUMN_TEXT},
	                                                  {"EVENTS", "events", COLUMN_NUMBER},
	                                                  {"OLDEST", "age_ms", COLUMN_AGE},
	                                                  {NULL, NULL, COLUMN_TEXT}};
	static const operator_column delayed_columns[] = {{"DELAYED", "topic", COLUMN_TEXT},
	                                                  {"EVENTS", "events", COLUMN_NUMBER},
	                                                  {"NEXT IN", "next_ms", COLUMN_AGE},
	                                                  {NULL, NULL, COLUMN_TEXT}};
	const json_t *relays = json_object_get(list, "relays");
	const json_t *events = json_object_get(list, "events");
	const json_t *untaken = json_object_get(list, "untaken");
	const json_t *delayed = json_object_get(list, "delayed");

	if (json_array_size(untaken) > 0) {
		operator_print_table(untaken, untaken_columns, NULL);
		puts("  nobody will publish these: start a relay with their topics\n");
	}
	if (json_array_size(delayed) > 0) {
		operator_print_table(delayed, delayed_columns, NULL);
		putchar('\n');
	}
	if (json_array_size(relays) == 0 && json_array_size(events) == 0) {
		puts("no relay has run in this database yet: pgonce relay --config FILE");
		return;
	}
	if (json_array_size(relays) > 0) {
		operator_print_table(relays, relay_columns, NULL);
		putchar('\n');
	}
	if (json_array_size(events) == 0) {
		puts(invocation->given[OPTION_STATE] ? "no event is in this state"
		                                     : "no event is parked: what a relay has passed is delivered");
	} else {
		operator_print_table(events, event_columns, print_event_state);
	}
}

static int list_events(const cli_invocation *invocation, PGconn *connection, const char *operand)
{
	char *taken = operator_take(invocation);
	const char *relay = invocation->text[OPTION_RELAY];
	const char *parameters[] = {relay, invocation->text[OPTION_TOPIC], invocation->text[OPTION_STATE], taken};
	json_t *list = NULL;

	(void)operand;
	int result =
	    operator_query(invocation, connection, SQL_OUTBOX_LIST, 4, parameters, "cannot list the outbox", &list);
	if (result == CLI_OK && relay != NULL && json_array_size(json_object_get(list, "relays")) == 0) {
		result = cli_fail(invocation, CLI_NOT_FOUND, "pgonce outbox list shows all",
		                  "no relay '%s' has run in this database", relay);
	} else if (result == CLI_OK) {
		if (invocation->given[OPTION_JSON]) {
			cli_print_json(json_incref(list));
		} else {
			print_list(invocation, list);
		}
		operator_note_cut(invocation, json_object_get(list, "events"), "events");
	}
	json_decref(list);
	free(taken);
	return result;
}

/* ---- show */

static void print_relay(const json_t *relay, const char *name)
{
	const char *state = operator_text(relay, "state");
	const char *next = is_parked(relay) ? operator_text(relay, "next_at") : "";
	char tried[48] = "";

	if (is_parked(relay)) {
		snprintf(tried, sizeof tried, ", %" JSON_INTEGER_FORMAT " attempts",
		         json_integer_value(json_object_get(relay, "attempts")));
	}
	plain_line("%-*s %s: %s%s%s%s%s", NAME_COLUMN, name, operator_text(relay, "relay"), state,
	           strcmp(state, "passed") == 0    ? " (delivered, discarded, or older than the relay)"
	           : strcmp(state, "pending") == 0 ? " (the relay has not reached it yet)"
	                                           : "",
	           tried, next[0] != '\0' ? ", next at " : "", next);
	if (operator_text(relay, "error")[0] != '\0') {
		plain_line("%-*s   %s", NAME_COLUMN, "", operator_text(relay, "error"));
	}
}

/* JSON as it was written; bytes as text if they are text, else in hex. */
static void print_payload(const json_t *event)
{
	const char *encoded = json_string_value(json_object_get(event, "payload_base64"));
	size_t length = 0;
	unsigned char *bytes = encoded != NULL ? plain_decode(encoded, &length) : NULL;

	if (bytes == NULL) {
		operator_print_member(event, "payload", "payload");
		return;
	}
	operator_print_member(event, "content type", "content_type");
	printf("%-*s %zu bytes\n", NAME_COLUMN, "payload", length);
	plain_bytes("| ", bytes, length);
	free(bytes);
}

static void print_event(const json_t *event)
{
	size_t index = 0;
	const json_t *relay = NULL;

	operator_print_member(event, "event", "event_id");
	operator_print_member(event, "emitted", "created_at");
	operator_print_member(event, "delayed to", "not_before");
	operator_print_member(event, "topic", "topic");
	operator_print_member(event, "type", "event_type");
	if (operator_text(event, "tenant")[0] != '\0') {
		operator_print_member(event, "tenant", "tenant");
	}
	operator_print_member(event, "aggregate", "aggregate_type");
	operator_print_member(event, "", "aggregate_id");
	operator_print_member(event, "scope", "scope");
	operator_print_member(event, "key", "key");
	operator_print_member(event, "traceparent", "traceparent");
	operator_print_member(event, "headers", "headers");
	json_array_foreach(json_object_get(event, "relays"), index, relay)
	{
		print_relay(relay, index == 0 ? "relays" : "");
	}
	operator_print_decisions(event);
	print_payload(event);
}

/* The event as once.outbox_event tells it; to be freed by json_decref. */
static int find_event(const cli_invocation *invocation, PGconn *connection, const char *id, json_t **event)
{
	*event = NULL;
	if (!operator_is_uuid(id)) {
		return cli_fail(invocation, CLI_USAGE, "pgonce outbox list", "'%s' is no event's id: it is a UUID", id);
	}
	int result = operator_query(invocation, connection, SQL_OUTBOX_EVENT, 1, &id, "cannot read the event", event);
	if (result == CLI_OK && !json_is_object(*event)) {
		result = cli_fail(invocation, CLI_NOT_FOUND,
		                  "check the id and the database; an event in a transaction that is still open does not show, "
		                  "nor one whose day is retired",
		                  "there is no event %s", id);
	}
	return result;
}

static int show_event(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	json_t *event = NULL;
	int result = find_event(invocation, connection, id, &event);

	if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(event));
	} else if (result == CLI_OK) {
		print_event(event);
	}
	json_decref(event);
	return result;
}

/* ---- retry, discard */

/* "orders: passed, audit: dead": free it. */
static char *relays_text(const json_t *event, bool parked_only)
{
	char *text = cli_duplicate("");
	size_t index = 0;
	const json_t *relay = NULL;

	json_array_foreach(json_object_get(event, "relays"), index, relay)
	{
		if (!parked_only || is_parked(relay)) {
			cli_append(&text, "%s%s: %s", text[0] != '\0' ? ", " : "", operator_text(relay, "relay"),
			           operator_text(relay, "state"));
		}
	}
	return text;
}

/* No relay has it yet. */
static bool is_delayed(const json_t *event)
{
	return json_is_string(json_object_get(event, "not_before"));
}

/* The relay that --relay names, or the only one that has the event parked; NULL: it is delayed. */
static int choose_relay(const cli_invocation *invocation, const json_t *event, const char *id, const char **chosen)
{
	const char *asked = invocation->text[OPTION_RELAY];
	int parked = 0, known = 0;
	size_t index = 0;
	const json_t *relay = NULL;
	int result = CLI_OK;

	*chosen = NULL;
	json_array_foreach(json_object_get(event, "relays"), index, relay)
	{
		bool meant = asked == NULL || strcmp(asked, operator_text(relay, "relay")) == 0;
		known += meant;
		if (meant && is_parked(relay)) {
			parked++;
			*chosen = operator_text(relay, "relay");
		}
	}
	if (is_delayed(event)) {
		return asked == NULL ? CLI_OK
		                     : cli_fail(invocation, CLI_REFUSED, "leave --relay out",
		                                "event %s is delayed: no relay has it yet", id);
	}
	char *all = relays_text(event, false), *some = relays_text(event, true);
	if (parked > 1) {
		result = cli_fail(invocation, CLI_USAGE, "pgonce help outbox",
		                  "event %s is parked with several relays (%s): say which with --relay", id, some);
	} else if (asked != NULL && known == 0) {
		result = cli_fail(invocation, CLI_NOT_FOUND, "pgonce outbox list", "no relay '%s' takes event %s (%s)", asked,
		                  id, all[0] != '\0' ? all : "no relay does");
	} else if (parked == 0) {
		result = cli_fail(invocation, CLI_REFUSED,
		                  "only an event that waits, is retried, is dead or delayed can be retried or discarded; "
		                  "pgonce outbox replay delivers again",
		                  "event %s is not parked%s%s (%s)", id, asked != NULL ? " with relay " : "",
		                  asked != NULL ? asked : "", all[0] != '\0' ? all : "no relay takes it");
	}
	free(all);
	free(some);
	return result;
}

static int decide(const cli_invocation *invocation, PGconn *connection, const char *id, enum sql_id statement,
                  const char *what, const char *done, const char *delayed_done)
{
	const char *relay = NULL;
	json_t *event = NULL, *answer = NULL;
	int result = find_event(invocation, connection, id, &event);

	if (result == CLI_OK) {
		result = choose_relay(invocation, event, id, &relay);
	}
	if (result == CLI_OK) {
		const char *parameters[] = {id, relay, invocation->text[OPTION_PARKED_REASON]};
		result = operator_query(invocation, connection, statement, 3, parameters, what, &answer);
	}
	if (result == CLI_OK && !json_is_true(answer)) {
		result = cli_fail(invocation, CLI_REFUSED, "pgonce outbox show", "event %s is not %s%s any more", id,
		                  relay != NULL ? "parked with relay " : "delayed", relay != NULL ? relay : "");
	} else if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:s, s:s?, s:s}", "event_id", operator_text(event, "event_id"), "relay", relay,
		                         "done", invocation->operands[0]));
	} else if (result == CLI_OK) {
		plain_line("event %s, %s%s: %s", operator_text(event, "event_id"), relay != NULL ? "relay " : "delayed",
		           relay != NULL ? relay : "", relay != NULL ? done : delayed_done);
	}
	json_decref(answer);
	json_decref(event);
	return result;
}

static const option_id narrowing[] = {OPTION_RELAY, OPTION_TOPIC, OPTION_STATE, OPTION_OLDER_THAN, OPTION_COUNT};
static const option_id narrowing_one[] = {OPTION_RELAY, OPTION_COUNT};
static const parked_kind events = {.one = "event",
                                   .many = "events",
                                   .operand = "EVENT",
                                   .narrowing = narrowing,
                                   .of_one = narrowing_one,
                                   .holder = "relay",
                                   .title = "RELAY",
                                   .counted = "EVENTS",
                                   .pending = "a pending event is not parked: its relay has not come to it yet"};

static int check_decision(const cli_invocation *invocation)
{
	return parked_check_decision(invocation, &events);
}

static int retry_event(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	if (id == NULL) {
		return parked_many(invocation, connection, &events, SQL_OUTBOX_RETRY_MANY,
		                   "tried again now, with all attempts before them, in the order of each aggregate");
	}
	return decide(invocation, connection, id, SQL_OUTBOX_RETRY, "cannot retry the event",
	              "it is tried again now, with all its attempts before it", "it is due now");
}

static int discard_event(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	if (id == NULL) {
		return parked_many(invocation, connection, &events, SQL_OUTBOX_DISCARD_MANY,
		                   "given up; what waited behind them goes on");
	}
	return decide(invocation, connection, id, SQL_OUTBOX_DISCARD, "cannot discard the event",
	              "given up; what waited behind it goes on", "cancelled: it will not be published");
}

/* ---- replay */

/* The relay that --relay names, or the only one that there is; *relay is to be freed. */
static int find_relay(const cli_invocation *invocation, PGconn *connection, char **relay)
{
	const char *asked = invocation->text[OPTION_RELAY];
	json_t *relays = NULL;
	size_t index = 0;
	const json_t *name = NULL;
	int result = operator_query(invocation, connection, SQL_OUTBOX_RELAYS, 0, NULL, "cannot list the relays", &relays);

	json_array_foreach(relays, index, name)
	{
		if (asked != NULL ? strcmp(asked, json_string_value(name)) == 0 : json_array_size(relays) == 1) {
			*relay = cli_duplicate(json_string_value(name));
		}
	}
	char *names = json_dumps(relays, 0);
	if (result == CLI_OK && json_array_size(relays) == 0) {
		result =
		    cli_fail(invocation, CLI_NOT_FOUND, "pgonce relay --config FILE", "no relay has run in this database yet");
	} else if (result == CLI_OK && *relay == NULL && asked != NULL) {
		result = cli_fail(invocation, CLI_NOT_FOUND, "pgonce outbox list",
		                  "no relay '%s' has run in this database: there are %s", asked, names);
	} else if (result == CLI_OK && *relay == NULL) {
		result = cli_fail(invocation, CLI_USAGE, "pgonce help outbox",
		                  "there are several relays: say which with --relay: %s", names);
	}
	free(names);
	json_decref(relays);
	return result;
}

static int replay_events(const cli_invocation *invocation, PGconn *connection, const char *operand)
{
	char *relay = NULL, *from = NULL;
	json_t *answer = NULL;
	int result = CLI_OK;

	(void)operand;
	if (!invocation->given[OPTION_FROM]) {
		result = cli_fail(invocation, CLI_USAGE, "pgonce help outbox",
		                  "replay needs --from TIME: what was emitted since then is delivered again");
	} else {
		result = operator_read_time(invocation, connection, OPTION_FROM, false, &from);
	}
	if (result == CLI_OK) {
		result = find_relay(invocation, connection, &relay);
	}
	if (result == CLI_OK) {
		const char *parameters[] = {relay, from, invocation->text[OPTION_TOPIC], invocation->text[OPTION_PARKED_REASON],
		                            invocation->given[OPTION_FORCE] ? "true" : "false"};
		result = operator_query(invocation, connection, SQL_OUTBOX_REPLAY, 5, parameters, "cannot replay", &answer);
	}
	if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(answer));
	} else if (result == CLI_OK) {
		json_int_t count = json_integer_value(json_object_get(answer, "replayed"));
		plain_line("%" JSON_INTEGER_FORMAT " event%s since %s %s delivered again by relay %s", count,
		           count == 1 ? "" : "s", operator_text(answer, "from"), count == 1 ? "is" : "are", relay);
	}
	json_decref(answer);
	free(from);
	free(relay);
	return result;
}

int cli_outbox(const cli_invocation *invocation)
{
	static const option_id of_list[] = {OPTION_RELAY, OPTION_TOPIC, OPTION_STATE, OPTION_TAKE, OPTION_COUNT};
	static const option_id of_show[] = {OPTION_COUNT};
	static const option_id of_decision[] = {OPTION_RELAY, OPTION_TOPIC,        OPTION_STATE,         OPTION_OLDER_THAN,
	                                        OPTION_YES,   OPTION_DRY_RUN_MANY, OPTION_PARKED_REASON, OPTION_COUNT};
	static const option_id of_replay[] = {OPTION_RELAY, OPTION_TOPIC, OPTION_FROM, OPTION_FORCE, OPTION_COUNT};
	static const operator_verb verbs[] = {
	    {.name = "list", .options = of_list, .run = list_events},
	    {.name = "show", .operand = "EVENT", .options = of_show, .run = show_event},
	    {.name = "retry",
	     .operand = "EVENT",
	     .is_operand_optional = true,
	     .options = of_decision,
	     .check = check_decision,
	     .run = retry_event},
	    {.name = "discard",
	     .operand = "EVENT",
	     .is_operand_optional = true,
	     .options = of_decision,
	     .check = check_decision,
	     .run = discard_event},
	    {.name = "replay", .needs_reason = true, .options = of_replay, .run = replay_events},
	    {.name = NULL}};

	return operator_run(invocation, verbs);
}
