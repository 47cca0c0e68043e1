/* SPDX-License-Identifier: PostgreSQL */
/*
 * rabbitmq_queue.c: see rabbitmq_queue.h. A quorum queue counts how often a message was returned to
 * it, also by a consumer that crashed. With a delivery limit it then drops unhandled messages. AMQP
 * does not show a queue's arguments, but if a declaration differs, its refusal names the first
 * argument that differs.
 */
#include "rabbitmq_queue.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"

enum {
	ARGUMENTS_MAX = 24, /* of one queue; RabbitMQ has fewer */
	/* the first version with a default limit, where -1 means no limit */
	LIMITED_SINCE = 4,
	LIMIT_STANDARD = 20
};

static const char limit_name[] = "x-delivery-limit";

/* ---- asking the broker ---- */

/* Its version's first number; 0: unknown. */
static int64_t major_version(amqp_connection_state_t connection, const char **version, arena *arena)
{
	const amqp_table_t *properties = amqp_get_server_properties(connection);

	for (int i = 0; i < properties->num_entries; i++) {
		const amqp_table_entry_t *entry = &properties->entries[i];
		if (entry->key.len == strlen("version") && memcmp(entry->key.bytes, "version", entry->key.len) == 0 &&
		    entry->value.kind == AMQP_FIELD_KIND_UTF8) {
			*version = arena_text(arena, entry->value.value.bytes.bytes, entry->value.value.bytes.len);
			return strtoll(*version, NULL, 10);
		}
	}
	*version = "of an unknown version";
	return 0;
}

typedef enum asked {
	ASKED_YES,     /* it exists with these arguments, or was created */
	ASKED_REFUSED, /* *why: the broker's text; the channel is open again */
	ASKED_LOST     /* the connection is unusable */
} asked;

/* After a refusal the channel is opened again. problem begins with `what`. */
static asked declare(amqp_connection_state_t connection, const char *queue, bool passive, amqp_table_t arguments,
                     const char *what, const char **why, arena *arena, char problem[BROKER_PROBLEM_BYTES])
{
	amqp_channel_close_ok_t answer = {0};
	char ignored[BROKER_PROBLEM_BYTES];

	if (amqp_queue_declare(connection, RABBITMQ_CHANNEL, amqp_cstring_bytes(queue), passive, true, false, false,
	                       arguments) != NULL) {
		return ASKED_YES;
	}
	amqp_rpc_reply_t reply = amqp_get_rpc_reply(connection);
	rabbitmq_reply_problem(what, reply, problem);
	if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION || reply.reply.id != AMQP_CHANNEL_CLOSE_METHOD) {
		return ASKED_LOST;
	}
	const amqp_channel_close_t *close = reply.reply.decoded;
	*why = arena_text(arena, close->reply_text.bytes, close->reply_text.len);
	return amqp_send_method(connection, RABBITMQ_CHANNEL, AMQP_CHANNEL_CLOSE_OK_METHOD, &answer) == AMQP_STATUS_OK &&
	               rabbitmq_channel_open(connection, ignored)
	           ? ASKED_REFUSED
	           : ASKED_LOST;
}

static amqp_table_entry_t text_argument(const char *name, const char *value)
{
	return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
	                            .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(value)}};
}

static amqp_table_entry_t number_argument(const char *name, int64_t value)
{
	return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
	                            .value = {.kind = AMQP_FIELD_KIND_I64, .value.i64 = value}};
}

/* ---- reading a refusal */

/* An argument for which the queue has another value than we declared. */
typedef struct clue {
	const char *name, *value, *type; /* value NULL: the queue lacks it; type "": our type */
} clue;

/* The last place of `word`; NULL: not found. */
static const char *last(const char *text, const char *word)
{
	const char *found = NULL;

	for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
		found = at;
	}
	return found;
}

/*
 * "PRECONDITION_FAILED - inequivalent arg 'NAME' for queue 'Q' in vhost 'V': received ... but
 * current is none", or "... is the value 'VALUE' of type 'TYPE'", or "... is 'VALUE'"; names and
 * values may contain quotes. False: another text, or cut off.
 */
static bool read_clue(const char *why, clue *clue, arena *arena)
{
	static const char inequivalent[] = "inequivalent arg '", current[] = " but current is ", typed[] = "the value '",
	                  type[] = "' of type '";
	const char *name = strstr(why, inequivalent);
	const char *is = last(why, current);
	const char *name_end = name == NULL ? NULL : strstr(name, "' for queue '");
	size_t length = strlen(why);

	if (name_end == NULL || is == NULL) {
		return false;
	}
	name += strlen(inequivalent);
	is += strlen(current);
	*clue = (struct clue){.name = arena_text(arena, name, (size_t)(name_end - name)), .type = ""};
	if (strcmp(is, "none") == 0) {
		return true;
	}
	if (why[length - 1] != '\'') {
		return false;
	}
	const char *value = is + 1, *end = why + length - 1;
	if (strncmp(is, typed, strlen(typed)) == 0) {
		const char *of_type = last(is, type);
		if (of_type == NULL) {
			return false;
		}
		value = is + strlen(typed);
		clue->type = arena_text(arena, of_type + strlen(type), (size_t)(end - of_type) - strlen(type));
		end = of_type;
	}
	if (value > end) {
		return false;
	}
	clue->value = arena_text(arena, value, (size_t)(end - value));
	return true;
}

/* Adds one argument with the queue's value. False: its type is unknown here. */
static bool agree(const clue *clue, amqp_table_entry_t *entry)
{
	char *end = NULL;

	if (strcmp(clue->type, "longstr") == 0) {
		*entry = text_argument(clue->name, clue->value);
		return true;
	}
	if (strcmp(clue->type, "bool") == 0) {
		*entry = (amqp_table_entry_t){
		    .key = amqp_cstring_bytes(clue->name),
		    .value = {.kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = strcmp(clue->value, "true") == 0}};
		return true;
	}
	*entry = number_argument(clue->name, strtoll(clue->value, &end, 10));
	return end != clue->value && *end == '\0';
}

typedef enum queue_kind {
	QUEUE_OTHER,  /* it does not count deliveries */
	QUEUE_QUORUM, /* *limit is its argument's value; *has_limit: it has one */
	QUEUE_STREAM,
	QUEUE_UNKNOWN /* problem says why */
} queue_kind;

/*
 * Declares the queue with a limit that no queue has, until the refusal names it. Arguments refused
 * before it are declared with the queue's values the next time. Nothing is created: x-max-age is
 * not an argument of quorum queues, and "?" is not a valid value for any queue.
 */
static asked look(amqp_connection_state_t connection, const char *queue, queue_kind *kind, bool *has_limit,
                  int64_t *limit, arena *arena, char problem[BROKER_PROBLEM_BYTES])
{
	amqp_table_entry_t entries[ARGUMENTS_MAX] = {text_argument("x-queue-type", "quorum"),
	                                             text_argument(limit_name, "?"), text_argument("x-max-age", "?")};
	asked asked = ASKED_REFUSED;
	clue clue;

	*kind = QUEUE_UNKNOWN;
	for (int count = 3; count < ARGUMENTS_MAX; count++) {
		const char *why = "";
		asked = declare(connection, queue, false, (amqp_table_t){.num_entries = count, .entries = entries},
		                "cannot see the queue's arguments", &why, arena, problem);
		if (asked != ASKED_REFUSED || !read_clue(why, &clue, arena)) {
			return asked;
		}
		if (strcmp(clue.name, limit_name) == 0) {
			*kind = QUEUE_QUORUM;
			*has_limit = clue.value != NULL;
			*limit = clue.value == NULL ? 0 : strtoll(clue.value, NULL, 10);
			return asked;
		}
		/* Another type; or not durable, or auto-delete, which quorum queues cannot be. */
		if (strcmp(clue.name, "x-queue-type") == 0 || strncmp(clue.name, "x-", 2) != 0) {
			bool is_stream =
			    clue.value != NULL && strcmp(clue.name, "x-queue-type") == 0 && strcmp(clue.value, "stream") == 0;
			*kind = is_stream ? QUEUE_STREAM : QUEUE_OTHER;
			return asked;
		}
		if (clue.value == NULL || !agree(&clue, &entries[count])) {
			return asked;
		}
	}
	return asked;
}

/* ---- finding and creating ---- */

static bool bind_queue(amqp_connection_state_t connection, const rabbitmq_queue_want *want,
                       char problem[BROKER_PROBLEM_BYTES])
{
	static const char between[] = ", \t";

	for (const char *at = want->bind + strspn(want->bind, between); *at != '\0'; at += strspn(at, between)) {
		amqp_bytes_t key = {.len = strcspn(at, between), .bytes = (void *)(uintptr_t)at};
		amqp_queue_bind(connection, RABBITMQ_CHANNEL, amqp_cstring_bytes(want->queue),
		                amqp_cstring_bytes(want->exchange), key, amqp_empty_table);
		amqp_rpc_reply_t reply = amqp_get_rpc_reply(connection);
		if (reply.reply_type != AMQP_RESPONSE_NORMAL) {
			rabbitmq_reply_problem("cannot bind the queue", reply, problem);
			return false;
		}
		at += key.len;
	}
	return true;
}

/*
 * A quorum queue is created without a limit. Before RabbitMQ 4 that needs no argument, and -1 would
 * drop each message that is returned once.
 */
static bool find(amqp_connection_state_t connection, const rabbitmq_queue_want *want, int64_t major, arena *arena,
                 char problem[BROKER_PROBLEM_BYTES])
{
	amqp_table_entry_t entries[] = {text_argument("x-queue-type", want->is_quorum ? "quorum" : "classic"),
	                                number_argument(limit_name, RABBITMQ_NO_LIMIT)};
	amqp_table_t arguments = {.num_entries = want->is_quorum && major >= LIMITED_SINCE ? 2 : 1, .entries = entries};
	const char *what = want->declare
	                       ? "cannot create the queue (to use an existing one with other settings: declare = no)"
	                       : "cannot read the queue (to create it: declare = yes)";
	const char *why = "";
	clue clue;
	asked asked = declare(connection, want->queue, !want->declare, want->declare ? arguments : amqp_empty_table, what,
	                      &why, arena, problem);

	/* It exists with another limit, or none: `look` decides what that means. */
	return asked == ASKED_YES || (asked == ASKED_REFUSED && want->declare && read_clue(why, &clue, arena) &&
	                              strcmp(clue.name, limit_name) == 0);
}

/* The argument's meaning at this broker. */
static int64_t limit_of(int64_t major, bool has_limit, int64_t argument)
{
	if (!has_limit) {
		return major >= LIMITED_SINCE ? LIMIT_STANDARD : RABBITMQ_NO_LIMIT;
	}
	return argument >= 0 ? argument : major >= LIMITED_SINCE ? RABBITMQ_NO_LIMIT : 0;
}

static void say_limit(const rabbitmq_queue_want *want, int64_t limit, bool has_limit, int64_t major,
                      const char *version, char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "the queue %.60s drops messages that were delivered %" PRId64
	         " times, unhandled (%s; RabbitMQ %.12s): create it "
	         "with %s, or set delivery_limit = allow",
	         want->queue, limit + 1, has_limit ? limit_name : "the default", version,
	         major >= LIMITED_SINCE ? "x-delivery-limit -1" : "no x-delivery-limit");
}

/* A reader of a stream begins at the next new message, and the broker does not store its
 * position. */
static void say_stream(const rabbitmq_queue_want *want, char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "the queue %.60s is a stream: messages that arrive while no consumer reads would be lost; bind a quorum "
	         "or classic "
	         "queue to the exchange and read that queue",
	         want->queue);
}

bool rabbitmq_queue_find(amqp_connection_state_t connection, const rabbitmq_queue_want *want, int64_t *limit,
                         char problem[BROKER_PROBLEM_BYTES])
{
	arena arena = {0};
	char quote[RUNTIME_QUOTE_BYTES], looked[BROKER_PROBLEM_BYTES] = "";
	const char *version = "";
	queue_kind kind = QUEUE_UNKNOWN;
	bool has_limit = false;
	int64_t argument = 0;
	int64_t major = major_version(connection, &version, &arena);

	*limit = RABBITMQ_NO_LIMIT;
	bool found = find(connection, want, major, &arena, problem);
	/* Refusals are expected here: `problem` keeps the reason why the last connection was lost. */
	if (found && look(connection, want->queue, &kind, &has_limit, &argument, &arena, looked) == ASKED_LOST) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%s", looked);
		found = false;
	}
	if (found && kind == QUEUE_STREAM) {
		say_stream(want, problem);
		found = false;
	}
	if (found && kind == QUEUE_UNKNOWN) {
		runtime_log(
		    want->speaker, RUNTIME_WARNING, "delivery_limit",
		    "problem=%s hint=\"pgonce cannot see whether the queue drops messages after some deliveries: allow the "
		    "user to configure it, or check that it has no delivery limit and is not a stream\"",
		    runtime_quote(looked, quote));
	} else if (found && kind == QUEUE_QUORUM) {
		*limit = limit_of(major, has_limit, argument);
		if (*limit != RABBITMQ_NO_LIMIT && !want->allows_limit) {
			say_limit(want, *limit, has_limit, major, version, problem);
			found = false;
		}
	}
	arena_clear(&arena);
	return found && (!want->declare || want->exchange == NULL || bind_queue(connection, want, problem));
}

int64_t rabbitmq_deliveries(const amqp_basic_properties_t *properties)
{
	static const char name[] = "x-delivery-count";

	if ((properties->_flags & AMQP_BASIC_HEADERS_FLAG) == 0) {
		return 0;
	}
	for (int i = 0; i < properties->headers.num_entries; i++) {
		const amqp_table_entry_t *entry = &properties->headers.entries[i];
		if (entry->key.len != strlen(name) || memcmp(entry->key.bytes, name, entry->key.len) != 0) {
			continue;
		}
		switch (entry->value.kind) {
		case AMQP_FIELD_KIND_I64:
			return entry->value.value.i64;
		case AMQP_FIELD_KIND_I32:
			return entry->value.value.i32;
		case AMQP_FIELD_KIND_I16:
			return entry->value.value.i16;
		case AMQP_FIELD_KIND_I8:
			return entry->value.value.i8;
		default:
			return 0;
		}
	}
	return 0;
}
