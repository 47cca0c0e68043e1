/* SPDX-License-Identifier: PostgreSQL */
/*
 * handler_http.h: for the files of the HTTP handler: handler_http.c (its life) calls http_lease.c
 * (work under a lease); both call http_window.c (the messages in progress).
 */
#pragma once

#include "http_client.h"
#include "http_request.h"
#include "parked.h"

typedef enum item_state {
	ITEM_NEW,      /* just arrived: is it parked, or behind a parked one? */
	ITEM_READY,    /* has its turn when no earlier message of its key is in progress */
	ITEM_CALLING,  /* claimed, and sent */
	ITEM_ANSWERED, /* the outcome must be stored */
	ITEM_PARKING,  /* it must be parked */
	ITEM_APPLIED,  /* the outcome is stored, now or before */
	ITEM_DONE,     /* applied or parked: only now may the broker delete it */
	ITEM_STATES
} item_state;

typedef struct item {
	message message;
	item_state state;
	arena arena;      /* of the message, and of the item itself */
	arena call_arena; /* of the current or last call */
	http_call call;
	size_t bytes; /* of its message */
	answer_kind answer;
	failure failure;
	int fence;
	int64_t renew_at_ms;
	parking parking; /* of ITEM_PARKING */
} item;

/*
 * The messages in progress, in order of arrival: from the broker, and recalled parked ones. Each
 * passes through its states once; the window counts the items in each state.
 */
typedef struct window {
	consumer *consumer;
	item **items;
	size_t count, room;
	size_t in[ITEM_STATES];
	/* of the items, those that were parked: no broker waits for them */
	size_t recalled;
	size_t bytes, recalled_bytes; /* of messages from the broker, and of recalled ones */
} window;

/* The caller fills its message, in the item's arena. There must be room. */
item *window_add(window *window);
void window_move(window *window, item *item, item_state to);
/* The items in this state, in order, in the arena of the round. */
item **window_list(const window *window, item_state state, size_t *count);
/* True: a message with this id is in progress. */
bool window_has(const window *window, const char *id);
/* At most `most` items that can be called: ready, and no earlier item of their key in progress. */
item **window_callable(const window *window, size_t most, size_t *count);
/*
 * Decides what becomes of it, and parks it and the later ready items of its key. `wanted` needs no
 * message.
 */
void window_park(window *window, item *item, parking wanted);
/* APPLIED, PARKING -> DONE: stored as applied, or as parked, in order. */
bool window_store(window *window, failure *failure);
/* Removes finished items, up to the first unfinished one, or all; hands back the deliveries, in
 * order. */
size_t window_release(window *window, bool all, source_message **deliveries);

struct handler {
	consumer *consumer;
	arena arena; /* of the handler itself */
	window window;
	http_client *client;
	int64_t calls_from_ms; /* no calls until then: the endpoint is away */
	int away;              /* calls in a row that did not arrive */
	char owner[64];        /* of its leases */
};

/* Claims and calls: READY -> CALLING; or APPLIED if applied before, or PARKING. */
bool lease_call(handler *handler, failure *failure);
/* Renews the leases of running calls. A lost lease shows when the outcome is refused. */
bool lease_renew(handler *handler, failure *failure);
/* Stores outcomes: ANSWERED -> APPLIED or PARKING; READY if the call did not arrive. */
bool lease_settle(handler *handler, failure *failure);
