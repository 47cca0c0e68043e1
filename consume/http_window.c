/* SPDX-License-Identifier: PostgreSQL */
/* http_window.c: the messages in progress over HTTP. Called by handler_http.c and http_lease.c. */
#include "handler_http.h"

#include <assert.h>
#include <string.h>

#include "dead_topic.h"
#include "hash.h"

static bool is_recalled(const item *item)
{
	return item->message.delivery == NULL;
}

item *window_add(window *window)
{
	arena arena = {0};
	item *added = arena_take(&arena, sizeof *added);

	assert(window->count < window->room);
	*added = (item){.state = ITEM_NEW, .arena = arena};
	window->items[window->count++] = added;
	window->in[ITEM_NEW]++;
	return added;
}

void window_move(window *window, item *item, item_state to)
{
	/* No state follows ITEM_DONE: a message is settled once. */
	static const unsigned char from[ITEM_STATES] = {
	    [ITEM_READY] = 1 << ITEM_NEW | 1 << ITEM_ANSWERED, /* ANSWERED: the call did not arrive */
	    [ITEM_CALLING] = 1 << ITEM_READY,
	    [ITEM_ANSWERED] = 1 << ITEM_CALLING,
	    [ITEM_PARKING] = 1 << ITEM_READY | 1 << ITEM_ANSWERED,
	    /* READY: applied before, as the claim says */
	    [ITEM_APPLIED] = 1 << ITEM_READY | 1 << ITEM_ANSWERED,
	    /* NEW: parked before */
	    [ITEM_DONE] = 1 << ITEM_NEW | 1 << ITEM_APPLIED | 1 << ITEM_PARKING,
	};

	assert((from[to] & 1 << item->state) != 0 && window->in[item->state] > 0);
	window->in[item->state]--;
	window->in[to]++;
	item->state = to;
}

item **window_list(const window *window, item_state state, size_t *count)
{
	item **list = arena_take(&window->consumer->arena, (window->in[state] + 1) * sizeof(item *));

	*count = 0;
	for (size_t i = 0; i < window->count && *count < window->in[state]; i++) {
		if (window->items[i]->state == state) {
			list[(*count)++] = window->items[i];
		}
	}
	assert(*count == window->in[state]);
	return list;
}

bool window_has(const window *window, const char *id)
{
	for (size_t i = 0; i < window->count; i++) {
		if (window->items[i]->state != ITEM_DONE && strcmp(window->items[i]->message.id, id) == 0) {
			return true;
		}
	}
	return false;
}

/* Marks the key as in progress; true if it was. Two keys with one hash only wait for each other. */
static bool is_busy(uint64_t *keys, size_t room, const char *key)
{
	uint64_t hash = hash_bytes(HASH_START, key, strlen(key)) | 1;
	size_t at = (size_t)(hash % room);

	for (; keys[at] != 0; at = (at + 1) % room) {
		if (keys[at] == hash) {
			return true;
		}
	}
	keys[at] = hash;
	return false;
}

item **window_callable(const window *window, size_t most, size_t *count)
{
	arena *arena = &window->consumer->arena;
	size_t room = 2 * window->count + 1;
	uint64_t *keys = arena_take(arena, room * sizeof *keys);
	item **callable = arena_take(arena, (most + 1) * sizeof(item *));

	memset(keys, 0, room * sizeof *keys);
	*count = 0;
	for (size_t i = 0; i < window->count && *count < most; i++) {
		item *item = window->items[i];
		if (item->state != ITEM_DONE && (item->message.line == NULL || !is_busy(keys, room, item->message.line)) &&
		    item->state == ITEM_READY) {
			callable[(*count)++] = item;
		}
	}
	return callable;
}

void window_park(window *window, item *item, parking wanted)
{
	consumer *consumer = window->consumer;
	const char *line = item->message.line;
	bool passed = false;

	/* A new item may itself be parked already: parking it here would lose its state. */
	assert(window->in[ITEM_NEW] == 0);
	wanted.message = &item->message;
	/* In the item's arena: storing it may take more than this round. */
	item->parking = parked_decide(consumer, wanted, &item->arena);
	bool frees_key = item->parking.state == PARKED_DEAD && consumer->settings.on_dead == ON_DEAD_SKIP;
	window_move(window, item, ITEM_PARKING);
	for (size_t i = 0; i < window->count && !frees_key; i++) {
		struct item *other = window->items[i];
		if (passed && other->state == ITEM_READY && line != NULL && other->message.line != NULL &&
		    strcmp(line, other->message.line) == 0) {
			const parking waiting = {.message = &other->message, .state = PARKED_WAITING};
			other->parking = parked_decide(consumer, waiting, &other->arena);
			window_move(window, other, ITEM_PARKING);
		}
		passed = passed || other == item;
	}
}

/* All items in one state are stored: moves them to DONE. */
static void move_all(window *window, item *const *items, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		window_move(window, items[i], ITEM_DONE);
	}
}

/* Parks some in one statement: their bytes are copied for it. */
static bool park_some(window *window, item *const *items, size_t count, failure *failure)
{
	parking *parkings = arena_take(&window->consumer->arena, count * sizeof *parkings);
	size_t fresh = 0;

	for (size_t i = 0; i < count; i++) {
		parkings[i] = items[i]->parking;
		fresh += !is_recalled(items[i]);
	}
	if (!parked_store(window->consumer, parkings, count, failure)) {
		return false;
	}
	window->consumer->parked += (int64_t)fresh;
	move_all(window, items, count);
	return dead_topic_send(window->consumer, failure);
}

static bool store_parked(window *window, failure *failure)
{
	const size_t most_bytes = (size_t)SOURCE_RECALLED_SHARE(window->consumer->settings.memory);
	size_t count = 0;
	item **items = window_list(window, ITEM_PARKING, &count);
	bool good = true;

	for (size_t done = 0, some = 0; done < count && good; done += some) {
		size_t bytes = 0;
		for (some = 0; done + some < count && (some == 0 || bytes < most_bytes); some++) {
			bytes += items[done + some]->bytes;
		}
		good = park_some(window, items + done, some, failure);
	}
	return good && dead_topic_send(window->consumer, failure);
}

bool window_store(window *window, failure *failure)
{
	consumer *consumer = window->consumer;
	size_t count = 0;
	size_t recalled_count = 0;
	item **items = window_list(window, ITEM_APPLIED, &count);
	const message **recalled = arena_take(&consumer->arena, (count + 1) * sizeof(message *));

	for (size_t i = 0; i < count; i++) {
		if (is_recalled(items[i])) {
			recalled[recalled_count++] = &items[i]->message;
		}
	}
	if (recalled_count > 0 && !parked_remove(consumer, recalled, recalled_count, failure)) {
		return false;
	}
	consumer->parked -= consumer->parked > (int64_t)recalled_count ? (int64_t)recalled_count : consumer->parked;
	if (recalled_count > 0) {
		consumer->look_due_ms = 0; /* messages that waited behind them are due now */
	}
	move_all(window, items, count);
	return store_parked(window, failure);
}

size_t window_release(window *window, bool all, source_message **deliveries)
{
	size_t released = 0;
	size_t kept = 0;
	size_t in = 0;
	bool done_before = true;

	for (size_t i = 0; i < window->count; i++) {
		item *item = window->items[i];
		bool recalled = is_recalled(item);
		done_before = done_before && (recalled || item->state == ITEM_DONE);
		if (!all && (item->state != ITEM_DONE || !(recalled || done_before))) {
			window->items[kept++] = item;
			continue;
		}
		window->in[item->state]--;
		window->recalled -= recalled;
		*(recalled ? &window->recalled_bytes : &window->bytes) -= item->bytes;
		if (!recalled) {
			deliveries[released++] = item->message.delivery;
		}
		arena arena = item->arena;
		http_call_clear(&item->call);
		arena_clear(&item->call_arena);
		arena_clear(&arena);
	}
	window->count = kept;
	for (int i = 0; i < ITEM_STATES; i++) {
		in += window->in[i];
	}
	assert(in == kept && window->recalled <= kept);
	return released;
}
