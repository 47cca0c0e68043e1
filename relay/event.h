/* SPDX-License-Identifier: PostgreSQL */
/*
 * event.h: an event on its way from the outbox to the sink: what once.outgoing says of it, the
 * message made of it, and where it stands. All that belongs to it lies in its own memory and is
 * freed with it, whenever its result comes.
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
	/* as the outbox has it; texts are NULL where there is none */
	int64_t id;
	uint64_t xid;
	int32_t day;
	char event_id[EVENT_ID_BYTES];
	const char *topic, *event_type, *aggregate_type, *aggregate_id, *tenant, *traceparent;
	const sink_header *headers; /* its own, as PostgreSQL prints their values */
	size_t header_count;
	once_bytes payload;
	const char *content_type; /* of a payload of bytes; NULL: it is JSON */
	int64_t created_us;       /* microseconds since 1970 */
	int attempts;             /* that failed before */
	bool blocked;             /* an earlier event of its aggregate is parked */

	sink_message message;

	/* the pipeline's */
	bool known;    /* once.parked_event has a row of it */
	bool deferred; /* that row's next_at was put off, since the event is in flight for long */
	/* what it died of: what is sent now is its copy for the dead_topic; NULL: it lives */
	const char *death;
	uint64_t fetch; /* the number of the read that brought it */
	/* the number of the session that it belongs to: those of a lost one are void */
	unsigned session;
	int64_t sent_ms;
	int index;                            /* in its batch; -1: in none */
	struct event *out_before, *out_after; /* of those that the sink has */

	/* the schedule's */
	event_place place;
	struct lane *lane; /* set by whom adds it; NULL: that of all */
	struct chain *chain;
	struct event *chain_before, *chain_after, *ready_before, *ready_after;
	struct event *list_after; /* of lists that are handed over */

	size_t bytes; /* that it takes in all */
	struct event_block *blocks;
	char *spare;
	size_t spare_left;
} event;

/* A new one with room for `bytes` of texts before more has to be fetched. */
event *event_new(size_t bytes);
void event_free(event *event);
void event_free_list(event *first); /* by list_after */
/*
 * Memory that lives as long as the event; for a text of `bytes` or an array: aligned for pointers.
 * Never NULL.
 */
void *event_get(event *event, size_t bytes);
/* data's copy with a NUL behind it. */
const char *event_copy(event *event, const void *data, size_t length);
