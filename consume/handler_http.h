/* SPDX-License-Identifier: PostgreSQL */
/*
 * handler_http.h: the handler that is an HTTP endpoint, for its files: handler_http.c (its life)
 * calls http_lease.c (what is done under a lease), both http_window.c (the messages at work).
 */
#pragma once

#include "http_client.h"
#include "http_request.h"
#include "parked.h"

typedef enum item_state {
	ITEM_NEW,      /* just come: is it parked, or behind one that is? */
	ITEM_READY,    /* its turn is when none of its key before it is at work */
	ITEM_CALLING,  /* claimed, and sent */
	ITEM_ANSWERED, /* the outcome is to be stored */
	ITEM_PARKING,  /* it is to be parked */
	ITEM_APPLIED,  /* the outcome is stored, now or before */
	ITEM_DONE,     /* it is applied or parked: only now may the broker forget it */
	ITEM_STATES
} item_state;

typedef struct item {
	message message;
	item_state state;
	arena arena;      /* of the message, and of the item itself */
	arena call_arena; /* of the call that is at work, or was the last */
	http_call call;
	size_t bytes; /* of its message */
	answer_kind answer;
	failure failure;
	int fence;
	int64_t renew_at_ms;
	parking parking; /* of ITEM_PARKING */
} item;

/*
 * The messages at work, as they came: from the broker, and, recalled, from those that were parked.
 * Each goes through its states once; the window counts how many are in each.
 */
typedef struct window {
	consumer *consumer;
	item **items;
	size_t count, room;
	size_t in[ITEM_STATES];
	/* of the items, those that were parked: no broker waits for them */
	size_t recalled;
	size_t bytes, recalled_bytes; /* of messages from the broker, and of those */
} window;

/* Its message is the caller's to fill, in the item's arena. There must be room. */
item *window_add(window *window);
void window_move(window *window, item *item, item_state to);
/* Those in this state, in order, in the arena of the round. */
item **window_list(const window *window, item_state state, size_t *count);
/* Is a message of this id at work? */
bool window_has(const window *window, const char *id);
/* At most `most` that can be called: ready, and none of their key before them at work. */
item **window_callable(const window *window, size_t most, size_t *count);
/* It is to be parked, and so are those of its key that came after it and are only ready. */
void window_park(window *window, item *item, parking parking);
/* APPLIED, PARKING -> DONE: parked no more; or parked, in order. */
bool window_store(window *window, failure *failure);
/* Forgets what is done, with all before it, or all; hands back the deliveries, in order. */
size_t window_release(window *window, bool all, source_message **deliveries);

struct handler {
	consumer *consumer;
	arena arena; /* of the handler itself */
	window window;
	http_client *client;
	int64_t calls_from_ms; /* the endpoint is away until then */
	int away;              /* calls in a row that did not arrive */
	char owner[64];        /* of its leases */
};

/* Claims and calls: READY -> CALLING; or APPLIED before, or PARKING. */
bool lease_call(handler *handler, failure *failure);
/* Heartbeats of what is at work. A lease that is lost shows when the outcome is refused. */
bool lease_renew(handler *handler, failure *failure);
/* Stores outcomes: ANSWERED -> APPLIED or PARKING; READY where the call did not arrive. */
bool lease_settle(handler *handler, failure *failure);
