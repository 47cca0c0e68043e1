/* SPDX-License-Identifier: PostgreSQL */
/*
 * pipeline.h: one relay at work, inside relay/: what pipeline.c (the outbox's side: reading,
 * settling, taking over) and delivery.c (the sink's side: sending, results) share. One thread;
 * relay.h is what others call.
 *
 *  outbox --list, fetch--> chunk --schedule--> sink --results--> settlement --> progress
 *               parked events that are due --^
 *
 * A chunk is read, delivered, and settled together with the progress behind it. What holds at each
 * step: an event leaves memory only when it is delivered, or will be parked by the same statement
 * that stores the progress past it. When the session is lost, everything read by it is void; what
 * the sink still has of it is recognised by its number (event.session) and dropped when its result
 * comes.
 *
 * Two processes do not send for one relay at the same time, as far as the sink can hold back what
 * it has (sink.h, permit). The lock alone does not see to that: it ends with its session, which a
 * process that was paused does not notice. So sending is permitted for PERMIT_MS after the session
 * has proved that it is there, and who has just taken the lock waits for so long before the first
 * event.
 */
#pragma once

#include "reader.h"
#include "relay.h"
#include "relay_settings.h"
#include "schedule.h"
#include "settlement.h"

/*
 * So many that wait count as one that retries or is dead, for parked_max: what is put aside for one
 * host that hangs must not soon stop the reading for the others.
 */
enum {
	WAITING_SHARE = 10
};

/* Events that were read together. events[i] NULL: delivered, or parked. */
typedef struct event_list {
	event **events;
	size_t count, room;
	size_t open;     /* not NULL */
	int64_t sent_ms; /* when the last of them was handed to the sink */
} event_list;

/* pgonce_relay_*; each NULL where nobody asks. */
typedef struct relay_metrics {
	metric *delivered, *refused, *parked, *dead, *dead_copies, *dead_unsent, *left_out;
	metric *batches, *batch_at;
	metric *in_flight, *active, *sink_away, *hosts_hanging, *full, *permit_late;
	metric *fenced;
	metric *connects;
} relay_metrics;

/* What was read and is not settled: void without the session that read it. */
typedef struct pipeline_session {
	unsigned number; /* of the session, from 1 */
	reader_progress progress;
	bool unstored; /* progress is ahead of what is stored, over nothing of ours */
	/* the pipeline's items: what is listed between the two snapshots */
	size_t item_count, item_next;
	bool listed_all;
	size_t fetch_count; /* how many events to ask for: fewer if they are large */
	bool in_chunk;
	event_list chunk;
	int64_t chunk_at_ms;
	int64_t chunk_end_id; /* the progress when the chunk is done */
	event_list due;       /* parked events that are being delivered */
	int64_t due_at_ms;
	settlement settlement;
	int64_t look_wait_ms, look_at_ms;
	int64_t release_at_ms; /* delayed events are looked for; 0: at once, there are more */
	int64_t first_ms;      /* nothing is sent before: another may have a permit yet */
} pipeline_session;

/* The sink and what it has: it outlives sessions. delivery.c works on it. */
typedef struct pipeline_delivery {
	sink *sink;
	int64_t permit_ms; /* nothing is sent from then on; 0: no permit */
	bool is_late;      /* the last permit came too late to be used */
	lanes *lanes;
	int hanging; /* how many of them hang, as it was told */
	event *out;  /* those that the sink has, a list */
	size_t in_flight;
	size_t held_count;
	size_t held_bytes; /* of events that are in flight for long */
	bool is_full;      /* the sink did not take the last one */
	int failures;      /* how often in a row it was away */
	int64_t pause_until_ms;
	const event *probe;  /* the one that tries whether it is back */
	bool is_broken;      /* it will not come back */
	bool is_fenced;      /* it takes nothing more of this turn */
	int64_t answered_ms; /* when it last told of a message */
	double latency_ms;   /* of deliveries, smoothed */
} pipeline_delivery;

/* What operators are told, and the parked events, about which they decide. */
typedef struct pipeline_report {
	relay_metrics metrics;
	int64_t delivered, refused, dead;
	int64_t told_second;
	int told_count;
	int64_t parked; /* how many events are parked, by our own count since parked_at_ms */
	/* the same, in parts of which one that waits has one and others WAITING_SHARE */
	int64_t weight;
	int64_t parked_at_ms;
	bool is_full; /* parked_max is reached */
	int64_t left; /* parked when all else was done, with `once` */
	char *problem;
} pipeline_report;

/* Its own members are the relay's: they last as long as it runs. */
typedef struct pipeline {
	speaker speaker;
	relay_settings settings;
	const relay_call *call;
	reader *reader;
	schedule *schedule;
	reader_item *items; /* memory for a list */
	size_t item_room;
	uint64_t reads; /* the number of the last read of events */
	int64_t stored_ms;
	uint64_t stored_end; /* of the snapshot that was stored last */
	pipeline_session session;
	pipeline_delivery delivery;
	pipeline_report report;
} pipeline;

void event_list_add(event_list *list, event *event);

/* delivery.c */
/* Hands over what may go; takes results for at most wait_ms. */
void delivery_send(pipeline *pipeline);
void delivery_collect(pipeline *pipeline, int64_t wait_ms);
/*
 * An event fresh from the outbox or due: to the schedule, or, where it must not go now, parked.
 * Consumes it.
 */
void delivery_accept(pipeline *pipeline, event *event, event_list *list);
/*
 * Is all that is left of the chunk in flight for so long that others should not wait for it? Then
 * it is parked, with what stands behind it, and its results are settled when they come.
 */
bool delivery_detach(pipeline *pipeline);
/*
 * The same for due events: their rows are put off, so that they are not read again while they are
 * in flight.
 */
void delivery_defer(pipeline *pipeline);
/* After the sink is closed: frees what it still had. */
void delivery_forget(pipeline *pipeline);
