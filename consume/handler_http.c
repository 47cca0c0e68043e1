/* SPDX-License-Identifier: PostgreSQL */
/*
 * handler_http.c: the handler that is an HTTP endpoint. Each message is looked up (is it parked, or
 * behind a parked one?), claimed, POSTed under the lease, and its outcome is stored. Messages of
 * one key go one at a time, different keys in parallel.
 */
#include "handler_http.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
	LOOK_MOST = 1000, /* messages per look-up; once_job.message_look takes 10,000 */
	POLL_MS = 20,     /* for answers, while there is other work */
	REST_MS = 5       /* if all wait: for the endpoint, or for their turn */
};

static bool start_client(handler *handler, failure *failure)
{
	const settings *settings = &handler->consumer->settings;
	const http_settings http = {.timeout_ms = settings->timeout_ms,
	                            .connect_timeout_ms = settings->timeout_ms < 10000 ? settings->timeout_ms : 10000,
	                            .calls_max = settings->in_flight,
	                            .response_bytes_max = settings->response_max,
	                            .allow_private = true, /* the operator wrote the address */
	                            .allow_plain = true,
	                            .ca_file = settings->ca_file,
	                            .certificate_file = settings->certificate_file,
	                            .key_file = settings->key_file};

	handler->client = http_client_new(&http);
	if (handler->client == NULL) {
		failure_set(failure, FAILURE_PASSING, "libcurl cannot start");
	}
	return handler->client != NULL;
}

static handler *http_open(consumer *consumer)
{
	/* Recalled parked messages come on top of those from the broker. */
	size_t room = (size_t)(consumer->settings.prefetch + consumer->settings.in_flight);
	arena arena = {0};
	handler *opened = arena_take(&arena, sizeof *opened);

	*opened = (handler){.consumer = consumer, .window = {.consumer = consumer, .room = room}};
	opened->window.items = arena_take(&arena, room * sizeof(item *));
	snprintf(opened->owner, sizeof opened->owner, "pgonce consume %.40s %d", consumer->speaker.name, (int)getpid());
	opened->arena = arena;
	return opened;
}

static handler_load http_load(const handler *handler)
{
	const window *window = &handler->window;
	size_t prefetch = (size_t)handler->consumer->settings.prefetch;
	size_t share = (size_t)SOURCE_OUT_SHARE(handler->consumer->settings.memory);
	/* A message larger than the share goes alone. */
	bool has_room = window->count < prefetch && (window->bytes < share || window->count == window->recalled);

	return (handler_load){.room = has_room ? prefetch - window->count : 0,
	                      .room_bytes = has_room && window->bytes < share ? share - window->bytes : 0,
	                      .out = window->count - window->recalled,
	                      .held = window->count,
	                      .calls = window->in[ITEM_CALLING] + window->in[ITEM_ANSWERED]};
}

static void http_take(handler *handler, source_message *const *deliveries, size_t count)
{
	const settings *settings = &handler->consumer->settings;

	for (size_t i = 0; i < count; i++) {
		item *item = window_add(&handler->window);
		message_identify(deliveries[i], &settings->id_from, &settings->key_from, &item->arena, &item->message);
		item->bytes = source_message_bytes(deliveries[i]);
		handler->window.bytes += item->bytes;
	}
}

/* The database's verdict on some messages, one row each. NULL: *failure. */
static PGresult *look(consumer *consumer, item *const *items, size_t count, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int keys = parameters_array(&given, PARAMETER_TEXT);
	parameters_boolean(&given, consumer->settings.on_dead == ON_DEAD_SKIP);
	for (size_t i = 0; i < count; i++) {
		if (!prepare_messages(consumer, &items[i]->message, 1, failure)) {
			parameters_free(&given);
			return NULL;
		}
		parameters_add_text(&given, ids, items[i]->message.id);
		parameters_add_text(&given, keys, items[i]->message.line);
	}
	PGresult *result = database_query(&consumer->database, SQL_LOOK, &given, failure);
	assert(result == NULL || (size_t)PQntuples(result) == count);
	return result;
}

/*
 * The verdicts for all of `items`, in as many statements as needed. Nothing is decided before all
 * are known, since a parked message affects those behind it. NULL: *failure.
 */
static const char **look_at_all(consumer *consumer, item *const *items, size_t count, failure *failure)
{
	const char **words = arena_take(&consumer->arena, (count + 1) * sizeof *words);

	for (size_t done = 0, some = 0; done < count; done += some) {
		some = count - done < LOOK_MOST ? count - done : LOOK_MOST;
		PGresult *result = look(consumer, items + done, some, failure);
		if (result == NULL) {
			return NULL;
		}
		for (size_t i = 0; i < some; i++) {
			const char *word = PQgetvalue(result, (int)i, 1);
			words[done + i] = arena_text(&consumer->arena, word, strlen(word));
		}
		PQclear(result);
	}
	return words;
}

static void park_unusable(window *window, item *item)
{
	const message *message = &item->message;

	window_park(window, item,
	            (parking){.state = PARKED_DEAD, .error = message->unusable, .sqlstate = message->unusable_code});
}

/* NEW -> READY; DONE if parked; PARKING if behind a parked one, or unusable. */
static bool look_up_new(window *window, failure *failure)
{
	consumer *consumer = window->consumer;
	size_t count = 0;
	item **items = window_list(window, ITEM_NEW, &count);
	const char **words = look_at_all(consumer, items, count, failure);

	if (words == NULL) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		const bool is_parked = strcmp(words[i], "parked") == 0;
		if (is_parked) {
			parked_came_again(consumer, &items[i]->message);
		}
		window_move(window, items[i], is_parked ? ITEM_DONE : ITEM_READY);
	}
	for (size_t i = 0; i < count; i++) {
		if (items[i]->state != ITEM_READY) {
			continue; /* parked before, or behind a message of the window */
		}
		if (strcmp(words[i], "blocked") == 0) {
			window_park(window, items[i], (parking){.state = PARKED_WAITING});
		} else if (items[i]->message.unusable != NULL) {
			park_unusable(window, items[i]);
		}
	}
	return true;
}

/* Adds due parked messages to the window, as READY. */
static bool recall_due(window *window, failure *failure)
{
	consumer *consumer = window->consumer;
	const int64_t most = consumer->settings.in_flight;
	const size_t most_bytes = (size_t)SOURCE_RECALLED_SHARE(consumer->settings.memory);
	PGresult *due = NULL;

	if (runtime_stopping() || !parked_is_due(consumer) || window->recalled_bytes >= most_bytes) {
		return true;
	}
	if (!parked_look(consumer, (int)most, false, &due, failure)) {
		return false;
	}
	for (int i = 0; i < PQntuples(due) && window->recalled < (size_t)most; i++) {
		if (window_has(window, PQgetvalue(due, i, 0))) {
			continue;
		}
		item *item = window_add(window);
		window->recalled++;
		parked_read(due, i, &consumer->settings.key_from, &item->arena, &item->message);
		item->bytes = item->message.payload.length;
		window->recalled_bytes += item->bytes;
		window_move(window, item, ITEM_READY);
		if (item->message.unusable != NULL) {
			park_unusable(window, item);
		}
	}
	PQclear(due);
	return true;
}

/* CALLING -> ANSWERED, with or without an answer. */
static void collect_answers(handler *handler, int timeout_ms)
{
	for (http_call *call = http_poll(handler->client, timeout_ms); call != NULL; call = http_poll(handler->client, 0)) {
		window_move(&handler->window, call->user, ITEM_ANSWERED);
	}
}

/* Runs the states of the window's messages from first to last. */
static bool http_work(handler *handler, failure *failure)
{
	window *window = &handler->window;

	if (handler->client == NULL && !start_client(handler, failure)) {
		return false;
	}
	bool good = look_up_new(window, failure) && recall_due(window, failure) && window_store(window, failure) &&
	            lease_call(handler, failure) && window_store(window, failure) && lease_renew(handler, failure);

	collect_answers(handler, good && http_load(handler).calls > 0 ? POLL_MS : 0);
	good = good && lease_settle(handler, failure) && window_store(window, failure);
	if (good && http_load(handler).calls == 0 && window->in[ITEM_READY] > 0) {
		(void)runtime_sleep(REST_MS);
	}
	return good;
}

static size_t http_hand_back_settled(handler *handler, source_message **deliveries)
{
	return window_release(&handler->window, false, deliveries);
}

static size_t http_hand_back_undone(handler *handler, source_message **deliveries)
{
	http_client_free(handler->client);
	handler->client = NULL;
	return window_release(&handler->window, true, deliveries);
}

static void http_close(handler *handler)
{
	arena arena = handler->arena;

	assert(handler->window.count == 0);
	http_client_free(handler->client);
	arena_clear(&arena);
}

const handler_class handler_http = {
    .open = http_open,
    .load = http_load,
    .take = http_take,
    .work = http_work,
    .hand_back_settled = http_hand_back_settled,
    .hand_back_undone = http_hand_back_undone,
    .close = http_close,
};
