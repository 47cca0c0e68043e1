/* SPDX-License-Identifier: PostgreSQL */
/*
 * event.h: an event on its way from the outbox to the sink: its row of once.outgoing, its message,
 * and its state. Everything in it is in the event's own memory, and is freed with it when its
 * result comes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sink.h"

#define EVENT_ID_BYTES 37 /* a UUID's text and its end */

typedef enum event_place {
	EVENT_OUTSIDE,  /* not in the schedule */
	EVENT_BEHIND,   /* behind another of its aggregate */
	EVENT_READY,    /* may be handed to the sink */
	EVENT_IN_FLIGHT /* the sink has it */
} event_place;

struct chain;
struct lane;

typedef struct event {
	/* as in the outbox; NULL: no such text */
	int64_t id;
	uint64_t xid;
	int32_t day;
	char event_id[EVENT_ID_BYTES];
	const char *topic, *event_type, *aggregate_type, *aggregate_id, *tenant, *traceparent;
	const sink_header *headers; /* the event's, as PostgreSQL prints their values */
	size_t header_count;
	once_bytes payload;
	const char *content_type; /* of a payload that is bytes; NULL: the payload is JSON */
	int64_t created_us;       /* microseconds since 1970 */
	int attempts;             /* failed ones */
	bool blocked;             /* an earlier event of its aggregate is parked */

	sink_message message;

	/* the pipeline's */
	bool known;    /* it has a row in once.parked_event */
	bool deferred; /* that row's next_at was put off, since the event is in flight for long */
	/* the error it died of: its copy for the dead_topic is sent; NULL: it is not dead */
	const char *death;
	uint64_t fetch; /* the number of the read that brought it */
	/* the number of its session: events of a lost session are void */
	unsigned session;
	int64_t sent_ms;
	int index;                            /* in its batch; -1: it has no batch */
	struct event *out_before, *out_after; /* of the events that the sink has */

	/* the schedule's */
	event_place place;
	struct lane *lane; /* set by the caller that adds it; NULL: the common lane */
	struct chain *chain;
	struct event *chain_before, *chain_after, *ready_before, *ready_after;
	struct event *list_after; /* in a list that is handed over */

	size_t bytes; /* of all its memory */
	struct event_block *blocks;
	char *spare;
	size_t spare_left;
} event;

/* Has room for `bytes` of texts; more are allocated as needed. */
event *event_new(size_t bytes);
void event_free(event *event);
void event_free_list(event *first); /* by list_after */
/*
 * Memory that lives as long as the event; for a text of `bytes` or an array: aligned for pointers.
 * Never NULL.
 */
void *event_get(event *event, size_t bytes);
/* A copy, NUL-terminated. */
const char *event_copy(event *event, const void *data, size_t length);
