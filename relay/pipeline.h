/* SPDX-License-Identifier: PostgreSQL */
/*
 * pipeline.h: one running relay: shared by pipeline.c (the outbox's side: reading, settling, taking
 * over) and delivery.c (the sink's side: sending, results). It has one thread. Other folders call
 * relay.h.
 *
 *  outbox --list, fetch--> chunk --schedule--> sink --results--> settlement --> progress
 *               parked events that are due --^
 *
 * A chunk is read, delivered, and settled together with the progress past it. At each step, an
 * event leaves memory only when it is delivered, or is parked by the same statement that stores the
 * progress past it. When the session is lost, everything it read is void; events of it that the
 * sink still has are recognised by their number (event.session) and dropped when their result
 * comes.
 *
 * Two processes do not send for one relay at the same time, as far as the sink can hold messages
 * back (sink.h, permit). The lock alone does not prevent it: it ends with its session, and a paused
 * process does not notice that. Therefore sending is permitted for PERMIT_MS after the session has
 * proved that it exists, and a process that has just taken the lock waits that long before the
 * first event.
 */
#pragma once

#include "reader.h"
#include "relay.h"
#include "relay_settings.h"
#include "schedule.h"
#include "settlement.h"

/*
 * For parked_max, this many waiting events count as one that retries or is dead: events put aside
 * for a hanging host must not soon stop the reading for other hosts.
 */
enum {
	WAITING_SHARE = 10
};

/* Events read together. events[i] NULL: it is delivered or parked. */
typedef struct event_list {
	event **events;
	size_t count, room;
	size_t open;     /* not NULL */
	int64_t sent_ms; /* when the last of them was handed to the sink */
} event_list;

/* pgonce_relay_*; each is NULL if there are no metrics. */
typedef struct relay_metrics {
	metric *delivered, *refused, *parked, *dead, *dead_copies, *dead_unsent, *left_out;
	metric *batches, *batch_at;
	metric *in_flight, *active, *sink_away, *hosts_hanging, *full, *permit_late;
	metric *fenced;
	metric *connects;
} relay_metrics;

/* Read and not settled: void without the session that read it. */
typedef struct pipeline_session {
	unsigned number; /* of the session, from 1 */
	reader_progress progress;
	bool unstored; /* progress has passed other relays' events, and is not stored yet */
	/* listed between the two snapshots */
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
	int64_t release_at_ms; /* when to look for delayed events; 0: at once, there are more */
	int64_t first_ms;      /* no event is sent before: another process may still have a permit */
} pipeline_session;

/* The sink and its events: it outlives sessions. Used by delivery.c. */
typedef struct pipeline_delivery {
	sink *sink;
	int64_t permit_ms; /* the end of the permit to send; 0: no permit */
	bool is_late;      /* the last permit came too late to be used */
	lanes *lanes;
	int hanging; /* how many hang, as logged */
	event *out;  /* a list of the events that the sink has */
	size_t in_flight;
	size_t held_count;
	size_t held_bytes; /* of events that are in flight for long */
	bool is_full;      /* the sink did not take the last one */
	int failures;      /* how often in a row the sink was unavailable */
	int64_t pause_until_ms;
	const event *probe;  /* the event that shows whether it is back */
	bool is_broken;      /* it will not come back */
	bool is_fenced;      /* it accepts nothing more in this turn */
	int64_t answered_ms; /* when a message was last logged */
	double latency_ms;   /* of deliveries, smoothed */
} pipeline_delivery;

/* For operators: the metrics, and the number of parked events. */
typedef struct pipeline_report {
	relay_metrics metrics;
	int64_t delivered, refused, dead;
	int64_t told_second;
	int told_count;
	int64_t parked; /* parked events at parked_at_ms, plus the changes since */
	/* the same, weighed: a waiting event counts 1, others WAITING_SHARE */
	int64_t weight;
	int64_t parked_at_ms;
	bool is_full; /* parked_max is reached */
	int64_t left; /* with `once`: events parked when everything else was done */
	char *problem;
} pipeline_report;

/* The other members last as long as the relay runs. */
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
	uint64_t stored_end; /* of the last stored snapshot */
	pipeline_session session;
	pipeline_delivery delivery;
	pipeline_report report;
} pipeline;

void event_list_add(event_list *list, event *event);

/* delivery.c */
/* Hands events to the sink, and takes results for at most wait_ms. */
void delivery_send(pipeline *pipeline);
void delivery_collect(pipeline *pipeline, int64_t wait_ms);
/*
 * Takes over an event that is new from the outbox or due: puts it in the schedule, or parks it if
 * it must not be sent now.
 */
void delivery_accept(pipeline *pipeline, event *event, event_list *list);
/*
 * If all remaining events of the chunk have been in flight for long, they are parked, with the
 * events behind them, so that others need not wait. Their results are settled when they come.
 */
bool delivery_detach(pipeline *pipeline);
/*
 * The same for due events: the next_at of their rows is moved on, so that they are not read again
 * while they are in flight.
 */
void delivery_defer(pipeline *pipeline);
/* After the sink is closed: frees the events it still had. */
void delivery_forget(pipeline *pipeline);
