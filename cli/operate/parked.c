/* SPDX-License-Identifier: PostgreSQL */
/*
 * parked.c: pgonce parked: events that the relays have not delivered and messages that the
 * consumers have not applied, for operators. Decisions about many: parked_many.c.
 */
#include <stdlib.h>
#include <string.h>

#include "operator.h"
#include "parked_many.h"
#include "plain.h"

enum {
	NAME_COLUMN = 12
};

static bool is_text(const json_t *object, const char *member, const char *text)
{
	return strcmp(operator_text(object, member), text) == 0;
}

static bool is_message(const json_t *object)
{
	return is_text(object, "kind", "message");
}

/* ---- list */

/* "  event of order 3; 10 attempts: HTTP 422", "  message of tenant a, key 17; ...". */
static void print_item_state(const json_t *row)
{
	const char *tenant = operator_text(row, "tenant");
	const char *type = is_message(row) ? "key" : operator_text(row, "aggregate_type");
	const char *name = operator_text(row, is_message(row) ? "key" : "aggregate_id");
	char *before =
	    cli_format("%s%s%s%s", operator_text(row, "kind"), tenant[0] != '\0' || name[0] != '\0' ? " of " : "",
	               tenant[0] != '\0' ? "tenant " : "", tenant);

	if (name[0] != '\0') {
		cli_append(&before, "%s%s%s%s", tenant[0] != '\0' ? ", " : "", type, type[0] != '\0' ? " " : "", name);
	}
	operator_print_state(row, before);
	free(before);
}

static bool has_state(const json_t *counts, const char *state)
{
	size_t index = 0;
	const json_t *row = NULL;

	json_array_foreach(counts, index, row)
	{
		if (is_text(row, "state", state)) {
			return true;
		}
	}
	return false;
}

static void print_list(const cli_invocation *invocation, const json_t *list)
{
	static const operator_column count_columns[] = {
	    {"KIND", "kind", COLUMN_TEXT},      {"HOLDER", "holder", COLUMN_TEXT}, {"TOPIC", "topic", COLUMN_TEXT},
	    {"STATE", "state", COLUMN_TEXT},    {"COUNT", "items", COLUMN_NUMBER}, {"OLDEST", "age_ms", COLUMN_AGE},
	    {"NEXT IN", "next_ms", COLUMN_AGE}, {NULL, NULL, COLUMN_TEXT}};
	static const operator_column item_columns[] = {{"ID", "id", COLUMN_TEXT},       {"STATE", "state", COLUMN_TEXT},
	                                               {"AGE", "age_ms", COLUMN_AGE},   {"HOLDER", "holder", COLUMN_TEXT},
	                                               {"TOPIC", "topic", COLUMN_TEXT}, {NULL, NULL, COLUMN_TEXT}};
	const json_t *counts = json_object_get(list, "counts"), *parked = json_object_get(list, "parked");

	if (json_array_size(counts) > 0) {
		operator_print_table(counts, count_columns, NULL);
		if (has_state(counts, "untaken")) {
			puts("  untaken: no relay takes this topic, so these will not be published: start a relay with it");
		}
		putchar('\n');
	}
	if (json_array_size(parked) > 0) {
		operator_print_table(parked, item_columns, print_item_state);
	} else {
		puts(invocation->given[OPTION_STATE] ? "nothing is in this state" : "nothing is parked");
	}
}

/* --relay must have run in this database. CLI_OK, or a code after an error message. */
static int check_relay(const cli_invocation *invocation, PGconn *connection)
{
	const char *asked = invocation->text[OPTION_RELAY];
	json_t *relays = NULL;
	bool is_known = asked == NULL;
	size_t index = 0;
	const json_t *name = NULL;
	int result = asked == NULL ? CLI_OK
	                           : operator_query(invocation, connection, SQL_PARKED_RELAYS, 0, NULL,
	                                            "cannot list the relays", &relays);

	json_array_foreach(relays, index, name)
	{
		is_known = is_known || strcmp(asked, json_string_value(name)) == 0;
	}
	if (result == CLI_OK && !is_known) {
		result = cli_fail(invocation, CLI_NOT_FOUND, "pgonce parked list shows all",
		                  "no relay '%s' has run in this database", asked);
	}
	json_decref(relays);
	return result;
}

static int list_parked(const cli_invocation *invocation, PGconn *connection, const char *operand)
{
	const char *parameters[PARKED_FILTERS + 1] = {NULL};
	char *taken = operator_take(invocation), *before = NULL;
	json_t *list = NULL;
	int result = operator_read_time(invocation, connection, OPTION_UNTIL, true, &before);

	(void)operand;
	if (result == CLI_OK) {
		result = check_relay(invocation, connection);
	}
	if (result == CLI_OK) {
		parked_set_filters(invocation, before, parameters);
		parameters[PARKED_FILTERS] = taken;
		result = operator_query(invocation, connection, SQL_PARKED_LIST, PARKED_FILTERS + 1, parameters,
		                        "cannot list the parked events and messages", &list);
	}
	if (result == CLI_OK) {
		if (invocation->given[OPTION_JSON]) {
			cli_print_json(json_incref(list));
		} else {
			print_list(invocation, list);
		}
		operator_note_cut(invocation, json_object_get(list, "parked"), "events and messages");
	}
	json_decref(list);
	free(before);
	free(taken);
	return result;
}

/* ---- finding the right one */

/* "relay audit: dead, consumer stock, tenant 'a': retrying": free it. */
static char *places_text(const json_t *places)
{
	char *text = cli_duplicate("");
	size_t index = 0;
	const json_t *place = NULL;

	json_array_foreach(places, index, place)
	{
		const char *tenant = is_message(place) ? operator_text(place, "tenant") : "";
		cli_append(&text, "%s%s%s%s%s%s: %s", text[0] != '\0' ? ", " : "",
		           is_message(place)                           ? "consumer "
		           : operator_text(place, "holder")[0] != '\0' ? "relay "
		                                                       : "no relay yet",
		           operator_text(place, "holder"), tenant[0] != '\0' ? ", tenant '" : "", tenant,
		           tenant[0] != '\0' ? "'" : "", operator_text(place, "state"));
	}
	return text;
}

/* Where it is parked or delayed, as narrowed by the options: [{kind, holder, tenant, state}]. */
static int find_places(const cli_invocation *invocation, PGconn *connection, const char *id, json_t **places)
{
	const char *parameters[] = {id, invocation->text[OPTION_KIND], invocation->text[OPTION_RELAY],
	                            invocation->text[OPTION_CONSUMER], invocation->text[OPTION_TENANT]};

	return operator_query(invocation, connection, SQL_PARKED_FIND, 5, parameters, "cannot find it", places);
}

static int fail_several(const cli_invocation *invocation, const json_t *places, const char *id)
{
	char *text = places_text(places);
	int result = cli_fail(invocation, CLI_USAGE, "pgonce help parked",
	                      "'%s' is parked more than once: say which with --relay, or with --consumer and --tenant: %s",
	                      id, text);

	free(text);
	return result;
}

/*
 * The event of this id as returned by once.parked_show; JSON's null if there is no such event, or
 * if the options name a message.
 */
static int read_event(const cli_invocation *invocation, PGconn *connection, const char *id, json_t **event)
{
	const char *kind = invocation->text[OPTION_KIND];
	const char *parameters[] = {id, NULL, invocation->text[OPTION_TENANT]};

	if (invocation->given[OPTION_CONSUMER] || (kind != NULL && strcmp(kind, "message") == 0)) {
		*event = json_null();
		return CLI_OK;
	}
	return operator_query(invocation, connection, SQL_PARKED_SHOW, 3, parameters, "cannot read the event", event);
}

static int fail_not_found(const cli_invocation *invocation, const char *id)
{
	return cli_fail(invocation, CLI_NOT_FOUND,
	                "a message may have been applied meanwhile; an event in an open transaction is not visible, nor "
	                "one whose day is retired; pgonce parked list shows all that are parked",
	                "nothing with the id '%s' is parked, and there is no such event", id);
}

/* ---- show */

/* Bytes as text if they are text, else in hex. */
static void print_bytes(const char *encoded)
{
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

static void print_tenant(const json_t *object)
{
	if (operator_text(object, "tenant")[0] != '\0') {
		operator_print_member(object, "tenant", "tenant");
	}
}

static void print_message(const json_t *message)
{
	operator_print_member(message, "message", "message_id");
	operator_print_member(message, "consumer", "consumer");
	print_tenant(message);
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
	print_bytes(json_string_value(json_object_get(message, "payload")));
}

static bool is_parked(const json_t *relay)
{
	return is_text(relay, "state", "waiting") || is_text(relay, "state", "retrying") || is_text(relay, "state", "dead");
}

static void print_relay(const json_t *relay, const char *name)
{
	const char *next = is_parked(relay) ? operator_text(relay, "next_at") : "";
	char tried[48] = "";

	if (is_parked(relay)) {
		snprintf(tried, sizeof tried, ", %" JSON_INTEGER_FORMAT " attempts",
		         json_integer_value(json_object_get(relay, "attempts")));
	}
	plain_line("%-*s %s: %s%s%s%s%s", NAME_COLUMN, name, operator_text(relay, "relay"), operator_text(relay, "state"),
	           is_text(relay, "state", "passed")    ? " (delivered, discarded, or older than the relay)"
	           : is_text(relay, "state", "pending") ? " (the relay has not reached it yet)"
	                                                : "",
	           tried, next[0] != '\0' ? ", next at " : "", next);
	if (operator_text(relay, "error")[0] != '\0') {
		plain_line("%-*s   %s", NAME_COLUMN, "", operator_text(relay, "error"));
	}
}

static void print_event(const json_t *event)
{
	const char *encoded = json_string_value(json_object_get(event, "payload_base64"));
	size_t index = 0;
	const json_t *relay = NULL;

	operator_print_member(event, "event", "event_id");
	operator_print_member(event, "emitted", "created_at");
	operator_print_member(event, "delayed to", "not_before");
	operator_print_member(event, "topic", "topic");
	operator_print_member(event, "type", "event_type");
	print_tenant(event);
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
	if (encoded == NULL) {
		operator_print_member(event, "payload", "payload");
	} else {
		operator_print_member(event, "content type", "content_type");
		print_bytes(encoded);
	}
}

/* It is one event, even if several relays have it parked: they are all shown. */
static bool is_one(const json_t *places)
{
	size_t index = 0;
	const json_t *place = NULL;

	json_array_foreach(places, index, place)
	{
		if (index > 0 && (is_message(place) || is_message(json_array_get(places, 0)))) {
			return false;
		}
	}
	return true;
}

static int show_one(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	json_t *places = NULL, *item = NULL;
	int result = find_places(invocation, connection, id, &places);
	const json_t *place = json_array_get(places, 0);

	if (result == CLI_OK && !is_one(places)) {
		result = fail_several(invocation, places, id);
	} else if (result == CLI_OK && place != NULL && is_message(place)) {
		const char *parameters[] = {id, operator_text(place, "holder"), operator_text(place, "tenant")};
		result =
		    operator_query(invocation, connection, SQL_PARKED_SHOW, 3, parameters, "cannot read the message", &item);
	} else if (result == CLI_OK) {
		result = read_event(invocation, connection, id, &item);
	}
	if (result == CLI_OK && !json_is_object(item)) {
		result = fail_not_found(invocation, id);
	} else if (result == CLI_OK && invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(item));
	} else if (result == CLI_OK) {
		(place != NULL && is_message(place) ? print_message : print_event)(item);
	}
	json_decref(item);
	json_decref(places);
	return result;
}

/* ---- retry, discard */

/* "orders: passed, audit: dead": free it. */
static char *relays_text(const json_t *event)
{
	char *text = cli_duplicate("");
	size_t index = 0;
	const json_t *relay = NULL;

	json_array_foreach(json_object_get(event, "relays"), index, relay)
	{
		cli_append(&text, "%s%s: %s", text[0] != '\0' ? ", " : "", operator_text(relay, "relay"),
		           operator_text(relay, "state"));
	}
	return text;
}

static bool is_relay_of(const json_t *event, const char *name)
{
	size_t index = 0;
	const json_t *relay = NULL;

	json_array_foreach(json_object_get(event, "relays"), index, relay)
	{
		if (is_text(relay, "relay", name)) {
			return true;
		}
	}
	return false;
}

/* It is parked nowhere, but such an event may exist. */
static int fail_not_parked(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	const char *asked = invocation->text[OPTION_RELAY];
	json_t *event = NULL;
	int result = read_event(invocation, connection, id, &event);

	if (result == CLI_OK && !json_is_object(event)) {
		result = fail_not_found(invocation, id);
	} else if (result == CLI_OK) {
		char *relays = relays_text(event);
		if (asked != NULL && !is_relay_of(event, asked)) {
			result = cli_fail(invocation, CLI_NOT_FOUND, "pgonce parked list", "no relay '%s' takes event %s (%s)",
			                  asked, id, relays[0] != '\0' ? relays : "no relay does");
		} else {
			result = cli_fail(invocation, CLI_REFUSED,
			                  "only an event that waits, is retried, is dead or delayed can be retried or discarded; "
			                  "pgonce parked replay delivers again",
			                  "event %s is not parked%s%s (%s)", id, asked != NULL ? " with relay " : "",
			                  asked != NULL ? asked : "", relays[0] != '\0' ? relays : "no relay takes it");
		}
		free(relays);
	}
	json_decref(event);
	return result;
}

/* The place that the options name, or the only one. A delayed event has no relay to name. */
static int find_place(const cli_invocation *invocation, PGconn *connection, const char *id, json_t **place)
{
	json_t *places = NULL;
	int result = find_places(invocation, connection, id, &places);

	*place = NULL;
	if (result == CLI_OK && json_array_size(places) == 0) {
		result = fail_not_parked(invocation, connection, id);
	} else if (result == CLI_OK && json_array_size(places) > 1) {
		result = fail_several(invocation, places, id);
	} else if (result == CLI_OK) {
		*place = json_incref(json_array_get(places, 0));
	}
	if (*place != NULL && is_text(*place, "state", "delayed") && invocation->given[OPTION_RELAY]) {
		result = cli_fail(invocation, CLI_REFUSED, "leave --relay out", "event %s is delayed: no relay has it yet", id);
	}
	json_decref(places);
	return result;
}

/* The meaning of the decision, for an event, a delayed one, a message, and for many. */
typedef struct decision {
	enum sql_id one, many;
	const char *event, *delayed, *message, *all;
} decision;

static void tell_decision(const cli_invocation *invocation, const decision *decision, const json_t *place,
                          const char *id)
{
	const char *holder = operator_text(place, "holder");

	if (invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:s, s:s, s:O, s:O, s:s}", "kind", operator_text(place, "kind"), "id", id, "holder",
		                         json_object_get(place, "holder"), "tenant", json_object_get(place, "tenant"), "done",
		                         invocation->operands[0]));
	} else if (is_message(place)) {
		plain_line("message %s, consumer %s: %s", id, holder, decision->message);
	} else {
		plain_line("event %s, %s%s: %s", id, holder[0] != '\0' ? "relay " : "delayed", holder,
		           holder[0] != '\0' ? decision->event : decision->delayed);
	}
}

static int decide(const cli_invocation *invocation, PGconn *connection, const decision *decision, const char *id)
{
	json_t *place = NULL, *answer = NULL;

	if (id == NULL) {
		return parked_many(invocation, connection, decision->many, decision->all);
	}
	int result = find_place(invocation, connection, id, &place);
	if (result == CLI_OK) {
		const char *holder = json_string_value(json_object_get(place, "holder"));
		const char *parameters[] = {id, invocation->text[OPTION_REASON], is_message(place) ? NULL : holder,
		                            is_message(place) ? holder : NULL, operator_text(place, "tenant")};
		result = operator_query(invocation, connection, decision->one, 5, parameters, "cannot decide", &answer);
	}
	if (result == CLI_OK && !json_is_true(answer)) {
		result =
		    cli_fail(invocation, CLI_REFUSED, "it has just been delivered, applied or discarded: pgonce parked show",
		             "'%s' is no longer parked", id);
	} else if (result == CLI_OK) {
		tell_decision(invocation, decision, place, id);
	}
	json_decref(answer);
	json_decref(place);
	return result;
}

static int retry_parked(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	static const decision retry = {
	    .one = SQL_PARKED_RETRY,
	    .many = SQL_PARKED_RETRY_MANY,
	    .event = "it is tried again now, with a full set of attempts",
	    .delayed = "it is due now",
	    .message = "it is tried again now, with a full set of attempts",
	    .all = "tried again now, with a full set of attempts, in the order of each aggregate or key"};

	return decide(invocation, connection, &retry, id);
}

static int discard_parked(const cli_invocation *invocation, PGconn *connection, const char *id)
{
	static const decision discard = {
	    .one = SQL_PARKED_DISCARD,
	    .many = SQL_PARKED_DISCARD_MANY,
	    .event = "given up; those behind it continue",
	    .delayed = "cancelled: it will not be published",
	    .message = "given up; those behind it continue, and a redelivery of it is a duplicate",
	    .all = "given up; those behind them continue, and a redelivery of a message is a duplicate"};

	return decide(invocation, connection, &discard, id);
}

/* ---- replay */

/* The relay that --relay names, or the only one; free *relay. */
static int find_relay(const cli_invocation *invocation, PGconn *connection, char **relay)
{
	const char *asked = invocation->text[OPTION_RELAY];
	json_t *relays = NULL;
	size_t index = 0;
	const json_t *name = NULL;
	int result = operator_query(invocation, connection, SQL_PARKED_RELAYS, 0, NULL, "cannot list the relays", &relays);

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
		result = cli_fail(invocation, CLI_NOT_FOUND, "pgonce parked list",
		                  "no relay '%s' has run in this database: there are %s", asked, names);
	} else if (result == CLI_OK && *relay == NULL) {
		result = cli_fail(invocation, CLI_USAGE, "pgonce help parked",
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
	if (!invocation->given[OPTION_SINCE]) {
		result = cli_fail(invocation, CLI_USAGE, "pgonce help parked",
		                  "replay needs --since WHEN: events emitted since then are delivered again");
	} else {
		result = operator_read_time(invocation, connection, OPTION_SINCE, true, &from);
	}
	if (result == CLI_OK) {
		result = find_relay(invocation, connection, &relay);
	}
	if (result == CLI_OK) {
		const char *parameters[] = {relay, from, invocation->text[OPTION_TOPIC], invocation->text[OPTION_REASON],
		                            invocation->given[OPTION_FORCE] ? "true" : "false"};
		result = operator_query(invocation, connection, SQL_PARKED_REPLAY, 5, parameters, "cannot replay", &answer);
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

#define FILTERS                                                                                                        \
	OPTION_KIND, OPTION_RELAY, OPTION_CONSUMER, OPTION_TENANT, OPTION_TOPIC, OPTION_TYPE, OPTION_ERROR, OPTION_STATE,  \
	    OPTION_UNTIL

int cli_parked(const cli_invocation *invocation)
{
	static const option_id of_list[] = {FILTERS, OPTION_TAKE, OPTION_COUNT};
	static const option_id of_show[] = {OPTION_KIND, OPTION_CONSUMER, OPTION_TENANT, OPTION_COUNT};
	static const option_id of_decision[] = {FILTERS, OPTION_YES, OPTION_DRY_RUN, OPTION_REASON, OPTION_COUNT};
	static const option_id of_replay[] = {OPTION_RELAY, OPTION_TOPIC, OPTION_SINCE, OPTION_FORCE, OPTION_COUNT};
	static const operator_verb verbs[] = {
	    {.name = "list", .options = of_list, .check = parked_check_filters, .run = list_parked},
	    {.name = "show", .operand = "ID", .options = of_show, .check = parked_check_filters, .run = show_one},
	    {.name = "retry",
	     .operand = "ID",
	     .is_operand_optional = true,
	     .options = of_decision,
	     .check = parked_check_decision,
	     .run = retry_parked},
	    {.name = "discard",
	     .operand = "ID",
	     .is_operand_optional = true,
	     .options = of_decision,
	     .check = parked_check_decision,
	     .run = discard_parked},
	    {.name = "replay", .needs_reason = true, .options = of_replay, .run = replay_events},
	    {.name = NULL}};

	return operator_run(invocation, verbs);
}
