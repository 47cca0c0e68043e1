/* SPDX-License-Identifier: PostgreSQL */
/*
 * delivery.c: the sink's side of a pipeline: when events are handed to the sink, and what its
 * results mean. See pipeline.h.
 */
#include <stdlib.h>
#include <string.h>

#include "dead_letter.h"
#include "memory.h"
#include "notify.h"
#include "pipeline.h"

enum {
	RESULTS_MAX = 256,
	PAUSE_FIRST_MS = 100,
	PAUSE_MOST_MS = 10000,
	/* the longest wait that a receiver may ask for, even if retry_most is shorter */
	ASKED_MOST_MS = 3600 * 1000,
	HANGING_MS = 1000,
	/* the same if few events are left and a usual delivery takes a twentieth of it */
	HANGING_FEW_MS = 100,
	HANGING_FACTOR = 20,
	HANGING_SHARE = 10,
	/*
	 * If more than this are in flight for long without a single answer, the whole sink hangs, and
	 * further events would only hang too.
	 */
	HANGING_SILENT_MOST = 100,
	/* events for a hanging host are put aside for at least this long */
	ASIDE_FIRST_MS = 1000,
	ASIDE_SPREAD = 1024,
	/* added when a row's next_at is moved on: its result must have come before it is due */
	DEFER_MORE_MS = 2000,
	TOLD_A_SECOND = 20
};

/* Memory for events in flight for long; beyond it the chunk waits. */
#define HELD_BYTES_MAX ((size_t)64 << 20)

void event_list_add(event_list *list, event *event)
{
	if (list->count == list->room) {
		list->room = list->room == 0 ? 1024 : 2 * list->room;
		list->events = memory_array(list->events, list->room, sizeof(void *));
	}
	event->index = (int)list->count;
	list->events[list->count++] = event;
	list->open++;
}

static event_list *list_of(pipeline *pipeline, const event *event)
{
	return event->index < 0 ? NULL : event->known ? &pipeline->session.due : &pipeline->session.chunk;
}

/* Events in flight for long are counted by the memory they take. */
static void held_remove(pipeline *pipeline, const event *event)
{
	if (event->deferred) {
		pipeline->delivery.held_bytes -= event->bytes;
		pipeline->delivery.held_count--;
	}
}

static void batch_remove(pipeline *pipeline, event *event)
{
	event_list *list = list_of(pipeline, event);

	if (list != NULL) {
		list->events[event->index] = NULL;
		list->open--;
		event->index = -1;
	}
	held_remove(pipeline, event);
}

/* ---- parking */

/* Many events may fail at once: a limited number of lines a second, and how many were left out. */
static void tell_parked(pipeline *pipeline, const event *event, const char *state, int attempts, int64_t wait_ms,
                        const char *error)
{
	pipeline_report *report = &pipeline->report;
	char topic[RUNTIME_QUOTE_BYTES], quoted[RUNTIME_QUOTE_BYTES];
	int64_t second = runtime_now_ms() / 1000;
	bool is_dead = strcmp(state, "dead") == 0;

	if (second != report->told_second) {
		if (report->told_count > TOLD_A_SECOND) {
			runtime_log(&pipeline->speaker, RUNTIME_WARNING, "parked", "more=%d", report->told_count - TOLD_A_SECOND);
		}
		report->told_second = second;
		report->told_count = 0;
	}
	if (!is_dead && ++report->told_count > TOLD_A_SECOND) {
		return;
	}
	runtime_log(&pipeline->speaker, RUNTIME_WARNING, is_dead ? "dead" : "parked",
	            "event_id=%s topic=%s attempts=%d retry_in_ms=%lld error=%s", event->event_id,
	            runtime_quote(event->topic, topic), attempts, (long long)wait_ms, runtime_quote(error, quoted));
}

static void park(pipeline *pipeline, const event *event, const char *state, int attempts, int64_t wait_ms,
                 const char *error)
{
	settlement_park(&pipeline->session.settlement, event, state, attempts, wait_ms, error);
	schedule_mark(pipeline->schedule, event, pipeline->reads);
	if (!event->known) {
		pipeline->report.parked++;
		pipeline->report.weight += strcmp(state, "waiting") == 0 ? 1 : WAITING_SHARE;
	}
	metric_count(pipeline->report.metrics.parked, event->known ? 0 : 1);
}

/* It is delivered or left out: it keeps no row. */
static void unpark(pipeline *pipeline, const event *event)
{
	if (event->known) {
		settlement_delivered(&pipeline->session.settlement, event);
		pipeline->report.parked--;
		pipeline->report.weight -= event->attempts == 0 ? 1 : WAITING_SHARE;
	}
}

/* The events behind a parked one: new ones are parked too, the others are parked already. */
static void park_behind(pipeline *pipeline, event *first)
{
	for (event *at = first, *next = NULL; at != NULL; at = next) {
		next = at->list_after;
		if (!at->known) {
			park(pipeline, at, "waiting", at->attempts, 0, NULL);
		}
		batch_remove(pipeline, at);
		event_free(at);
	}
}

static void park_dead(pipeline *pipeline, event *event, const char *error)
{
	pipeline->report.dead++;
	metric_count(pipeline->report.metrics.dead, 1);
	tell_parked(pipeline, event, "dead", event->attempts, 0, error);
	park(pipeline, event, "dead", event->attempts, 0, error);
}

/* With all events behind it. */
static void bury(pipeline *pipeline, event *event, const char *error)
{
	struct event *behind = schedule_remove_chain(pipeline->schedule, event);

	park_dead(pipeline, event, error);
	batch_remove(pipeline, event);
	event_free(event);
	park_behind(pipeline, behind);
}

/* ---- events come in */

/*
 * Its lane. If the sink knows no hosts, copies of dead events have their own lane, so that a
 * dead_topic that accepts nothing delays no other events.
 */
static lane *lane_for(pipeline *pipeline, const event *event)
{
	char name[SINK_LANE_BYTES] = "";

	if (pipeline->settings.sink->lane != NULL) {
		pipeline->settings.sink->lane(pipeline->delivery.sink, &event->message, name);
	}
	if (event->death != NULL && name[0] == '\0') {
		return lanes_find(pipeline->delivery.lanes, "dead_topic");
	}
	return lanes_find(pipeline->delivery.lanes, name);
}

/* It is finished without an attempt. */
static void leave_out(pipeline *pipeline, event *event)
{
	metric_count(pipeline->report.metrics.left_out, 1);
	unpark(pipeline, event);
	event_free(event);
}

void delivery_accept(pipeline *pipeline, event *event, event_list *list)
{
	/* Parked by a relay with other routes. */
	static const char no_route[] = "no route of this relay matches its topic";

	event->session = pipeline->session.number;
	event->fetch = pipeline->reads;
	if (event->known && schedule_busy(pipeline->schedule, event)) {
		event_free(event); /* it, or an earlier one, is in flight */
		return;
	}
	const route *route = routes_find(&pipeline->settings.routes, event);
	if (route != NULL && route->leaves_out) {
		leave_out(pipeline, event);
		return;
	}
	if (event->blocked || schedule_marked(pipeline->schedule, event)) {
		if (!event->known) {
			park(pipeline, event, "waiting", 0, 0, NULL);
		}
		event_free(event);
		return;
	}
	if (route == NULL && pipeline->settings.dead_topic == NULL) {
		park_dead(pipeline, event, no_route);
		event_free(event);
		return;
	}
	envelope_fill(&pipeline->settings.envelope, event);
	if (route == NULL) {
		dead_letter_write(&pipeline->settings, event, no_route);
	} else {
		event->message.destination = route_destination(route, event);
		event->message.route = route->destination;
	}
	event->lane = lane_for(pipeline, event);
	event_list_add(list, event);
	schedule_add(pipeline->schedule, event);
}

/* ---- sending */

static void out_add(pipeline *pipeline, event *event)
{
	pipeline_delivery *delivery = &pipeline->delivery;
	event->out_before = NULL;
	event->out_after = delivery->out;
	if (delivery->out != NULL) {
		delivery->out->out_before = event;
	}
	delivery->out = event;
	delivery->in_flight++;
	if (event->lane != NULL) {
		lane_sent(event->lane, event->sent_ms);
	}
	metric_set(pipeline->report.metrics.in_flight, (double)delivery->in_flight);
}

static void out_remove(pipeline *pipeline, event *event)
{
	*(event->out_before == NULL ? &pipeline->delivery.out : &event->out_before->out_after) = event->out_after;
	if (event->out_after != NULL) {
		event->out_after->out_before = event->out_before;
	}
	pipeline->delivery.in_flight--;
	metric_set(pipeline->report.metrics.in_flight, (double)pipeline->delivery.in_flight);
}

void delivery_forget(pipeline *pipeline)
{
	while (pipeline->delivery.out != NULL) {
		event *event = pipeline->delivery.out;
		out_remove(pipeline, event);
		/* Of the present session: it is still in the schedule. */
		if (event->place != EVENT_OUTSIDE) {
			schedule_remove(pipeline->schedule, event);
		}
		event_free(event);
	}
}

/* ---- hosts that hang */

/*
 * How long events for a hanging host are put aside: as long as it has been hanging, so that rows
 * are not written again and again; spread, so that they do not all come back at once.
 */
static int64_t aside_ms(const pipeline *pipeline, const event *event, int64_t now)
{
	int64_t most =
	    pipeline->settings.retry_most_ms > ASIDE_FIRST_MS ? pipeline->settings.retry_most_ms : ASIDE_FIRST_MS;
	int64_t wait_ms = now - event->lane->silent_ms;

	wait_ms = wait_ms < ASIDE_FIRST_MS ? ASIDE_FIRST_MS : wait_ms > most ? most : wait_ms;
	return wait_ms - wait_ms / 2 * (event->id % ASIDE_SPREAD) / ASIDE_SPREAD;
}

/* No attempt is counted. */
static void put_aside(pipeline *pipeline, event *event, int64_t now)
{
	struct event *behind = schedule_remove_chain(pipeline->schedule, event);
	const char *problem =
	    event->death == NULL ? "not sent: its host hangs" : dead_letter_unsent(event, "it does not answer");

	park(pipeline, event, "waiting", event->attempts, aside_ms(pipeline, event, now), problem);
	batch_remove(pipeline, event);
	event_free(event);
	park_behind(pipeline, behind);
}

static void tell_lane(pipeline *pipeline, lane *lane, bool hangs)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	if (hangs != lane->told) {
		runtime_log(&pipeline->speaker, hangs ? RUNTIME_WARNING : RUNTIME_INFO, hangs ? "host_hangs" : "host_answers",
		            "host=%s in_flight=%zu", runtime_quote(lane->name, quoted), lane->in_flight);
		pipeline->delivery.hanging += hangs ? 1 : -1;
		metric_set(pipeline->report.metrics.hosts_hanging, pipeline->delivery.hanging);
	}
	lane->told = hangs;
}

/*
 * Ready events for a hanging host are put aside, so that they do not delay the chunk. One remains
 * if the host may be tried.
 */
static void put_hanging_aside(pipeline *pipeline, size_t room, int64_t now)
{
	for (lane *lane = schedule_turns(pipeline->schedule), *next = NULL; lane != NULL; lane = next) {
		next = lane->turn_after;
		if (!lane_hangs(lane, now)) {
			continue;
		}
		tell_lane(pipeline, lane, true);
		event *tried = lane_may_try(lane, room, (size_t)pipeline->settings.in_flight, now) ? lane->ready_first : NULL;
		for (event *event = lane->ready_first, *after = NULL; event != NULL; event = after) {
			after = event->ready_after;
			if (event != tried) {
				put_aside(pipeline, event, now);
			}
		}
	}
}

static size_t room_of(const pipeline *pipeline)
{
	const pipeline_delivery *delivery = &pipeline->delivery;
	size_t most = (size_t)pipeline->settings.in_flight;

	if (delivery->failures > 0) {
		return delivery->probe != NULL ? 0 : 1; /* one event shows whether the sink is back */
	}
	return delivery->in_flight < most ? most - delivery->in_flight : 0;
}

void delivery_send(pipeline *pipeline)
{
	pipeline_delivery *delivery = &pipeline->delivery;
	int64_t now = runtime_now_ms();

	delivery->is_full = false;
	if (now < delivery->pause_until_ms || delivery->is_broken) {
		return;
	}
	put_hanging_aside(pipeline, room_of(pipeline), now);
	for (size_t room = room_of(pipeline); room > 0 && runtime_now_ms() < delivery->permit_ms; room--) {
		event *event = schedule_next(pipeline->schedule, room);
		if (event == NULL) {
			return;
		}
		if (!pipeline->settings.sink->send(delivery->sink, &event->message)) {
			schedule_put_back(pipeline->schedule, event);
			delivery->is_full = true;
			return;
		}
		event->sent_ms = now;
		event_list *list = list_of(pipeline, event);
		if (list != NULL) { /* NULL: the copy of an event that was in flight for long */
			list->sent_ms = now;
		}
		out_add(pipeline, event);
		delivery->probe = delivery->failures > 0 ? event : delivery->probe;
	}
}

/* ---- results */

static void sink_answers(pipeline *pipeline)
{
	pipeline_delivery *delivery = &pipeline->delivery;

	if (delivery->failures > 0) {
		runtime_log(&pipeline->speaker, RUNTIME_INFO, "available", "after_failures=%d", delivery->failures);
	}
	delivery->failures = 0;
	metric_set(pipeline->report.metrics.sink_away, 0);
	delivery->pause_until_ms = 0;
	delivery->answered_ms = runtime_now_ms();
}

static void on_delivered(pipeline *pipeline, event *event)
{
	double took_ms = (double)(runtime_now_ms() - event->sent_ms);

	sink_answers(pipeline);
	pipeline->delivery.latency_ms += (took_ms - pipeline->delivery.latency_ms) / 16;
	pipeline->report.delivered++;
	metric_count(pipeline->report.metrics.delivered, 1);
	unpark(pipeline, event);
	batch_remove(pipeline, event);
	schedule_remove(pipeline->schedule, event);
	event_free(event);
}

static void retry_later(pipeline *pipeline, event *event, int64_t wait_ms, const char *problem)
{
	struct event *behind = schedule_remove_chain(pipeline->schedule, event);

	tell_parked(pipeline, event, "retrying", event->attempts, wait_ms, problem);
	park(pipeline, event, "retrying", event->attempts, wait_ms, problem);
	batch_remove(pipeline, event);
	event_free(event);
	park_behind(pipeline, behind);
}

/* Its last attempt failed: it is dead now, or once the dead_topic has its copy. */
static void die(pipeline *pipeline, event *event, const char *error)
{
	if (pipeline->settings.dead_topic == NULL) {
		bury(pipeline, event, error);
		return;
	}
	dead_letter_write(&pipeline->settings, event, error);
	event->lane = lane_for(pipeline, event);
	if (event->deferred) {
		/* Its row's next_at is moved on, so that it is not read again meanwhile. */
		park(pipeline, event, "waiting", event->attempts, pipeline->settings.timeout_ms + DEFER_MORE_MS, error);
	}
	schedule_put_back(pipeline->schedule, event);
}

/*
 * The result of a copy. It says nothing about the sink as a whole, and counts as no attempt. If the
 * copy was not accepted, the event comes again after its wait, and is delivered or dies again.
 */
static void on_copy(pipeline *pipeline, event *event, const sink_result *result)
{
	const relay_settings *settings = &pipeline->settings;
	bool is_refused = result->verdict == SINK_REFUSED || result->verdict == SINK_FINAL;

	if (result->verdict == SINK_DELIVERED) {
		metric_count(pipeline->report.metrics.dead_copies, 1);
		bury(pipeline, event, event->death);
	} else if (is_refused && dead_letter_strip(event)) {
		schedule_put_back(pipeline->schedule, event);
	} else {
		metric_count(pipeline->report.metrics.dead_unsent, 1);
		retry_later(pipeline, event,
		            runtime_backoff_ms(event->attempts, settings->retry_first_ms, settings->retry_most_ms),
		            dead_letter_unsent(event, result->problem));
	}
}

static void on_refused(pipeline *pipeline, event *event, const sink_result *result)
{
	const relay_settings *settings = &pipeline->settings;
	int attempts = event->attempts + 1;
	int64_t asked_most = settings->retry_most_ms > ASKED_MOST_MS ? settings->retry_most_ms : ASKED_MOST_MS;
	int64_t wait_ms = result->retry_after_ms >= 0
	                      ? (result->retry_after_ms < asked_most ? result->retry_after_ms : asked_most)
	                      : runtime_backoff_ms(attempts, settings->retry_first_ms, settings->retry_most_ms);

	sink_answers(pipeline);
	pipeline->report.refused++;
	metric_count(pipeline->report.metrics.refused, 1);
	event->attempts = attempts;
	if (attempts >= settings->attempts || result->verdict == SINK_FINAL) {
		die(pipeline, event, result->problem);
	} else {
		retry_later(pipeline, event, wait_ms, result->problem);
	}
}

/*
 * No attempt is counted. wait_ms: not before then; 0 or less: at once. is_last: after the others
 * that are ready.
 */
static void try_again(pipeline *pipeline, event *event, int64_t wait_ms, bool is_last, const char *problem)
{
	if (wait_ms <= 0 && !event->known && !schedule_marked(pipeline->schedule, event)) {
		(is_last ? schedule_put_last : schedule_put_back)(pipeline->schedule, event);
		return;
	}
	/*
	 * A parked event is read again when it is due: an operator may decide about it meanwhile. A new
	 * one is behind a parked one.
	 */
	struct event *behind = schedule_remove_chain(pipeline->schedule, event);
	if (wait_ms > 0) {
		park(pipeline, event, "waiting", event->attempts, wait_ms, problem);
	} else if (!event->known || event->deferred) {
		park(pipeline, event, "waiting", event->attempts, 0, event->known ? problem : NULL);
	}
	batch_remove(pipeline, event);
	event_free(event);
	park_behind(pipeline, behind);
}

static void on_unavailable(pipeline *pipeline, event *event, const sink_result *result, bool is_probe)
{
	pipeline_delivery *delivery = &pipeline->delivery;
	char quoted[RUNTIME_QUOTE_BYTES];

	/*
	 * Of many that fail together only the first counts, then only the events that show whether the
	 * sink is back.
	 */
	if (delivery->failures == 0 || is_probe) {
		delivery->failures++;
		metric_set(pipeline->report.metrics.sink_away, 1);
		int64_t pause_ms = runtime_backoff_ms(delivery->failures, PAUSE_FIRST_MS, PAUSE_MOST_MS);
		delivery->pause_until_ms = runtime_now_ms() + pause_ms;
		if (delivery->failures == 1) {
			runtime_log(&pipeline->speaker, RUNTIME_WARNING, "unavailable",
			            "sink=%s error=%s; it is tried again until it is back", pipeline->settings.sink->name,
			            runtime_quote(result->problem, quoted));
		}
	}
	/*
	 * The next event that shows it is another one: the sink may hang on this one alone. A parked
	 * event is read again only when no others are ready.
	 */
	try_again(pipeline, event, 0, is_probe || delivery->in_flight == 0, result->problem);
}

/* The process that has taken over reads again everything that is not settled. */
static void tell_fenced(pipeline *pipeline, const char *problem)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	metric_count(pipeline->report.metrics.fenced, 1);
	runtime_log(
	    &pipeline->speaker, RUNTIME_WARNING, "fenced",
	    "sink=%s error=%s; another relay of this name has begun its turn at the broker, and this one ends its own",
	    pipeline->settings.sink->name, runtime_quote(problem, quoted));
}

static void hear_lane(pipeline *pipeline, const event *event, const sink_result *result)
{
	lane *lane = event->lane;
	int64_t now = runtime_now_ms();

	if (result->verdict == SINK_WITHHELD) {
		lane_withheld(lane, now);
		return;
	}
	/* If the sink knows no hosts, it is the dead_topic's lane. */
	bool silent = pipeline->settings.sink->lane != NULL ? result->silent : result->verdict != SINK_DELIVERED;
	lane_answered(lane, event->sent_ms, silent, now);
	if (!lane_hangs(lane, now)) {
		tell_lane(pipeline, lane, false);
	}
}

static void on_result(pipeline *pipeline, const sink_result *result)
{
	pipeline_delivery *delivery = &pipeline->delivery;
	event *event = result->message->user;
	bool is_probe = delivery->probe == event;

	out_remove(pipeline, event);
	if (event->lane != NULL) {
		hear_lane(pipeline, event, result);
	}
	delivery->probe = is_probe ? NULL : delivery->probe;
	if (event->session != pipeline->session.number) {
		/* Of a lost session: it was or will be read again. */
		held_remove(pipeline, event);
		event_free(event);
		return;
	}
	if (event->death != NULL && result->verdict != SINK_FENCED && result->verdict != SINK_WITHHELD) {
		on_copy(pipeline, event, result);
		return;
	}
	switch (result->verdict) {
	case SINK_DELIVERED:
		on_delivered(pipeline, event);
		break;
	case SINK_REFUSED:
	case SINK_FINAL:
		on_refused(pipeline, event, result);
		break;
	case SINK_UNAVAILABLE:
		if (pipeline->settings.sink == &sink_stdout && !delivery->is_broken) {
			delivery->is_broken = true;
			pipeline->report.problem = memory_format("%s; the reader of the events is gone", result->problem);
		}
		on_unavailable(pipeline, event, result, is_probe);
		break;
	case SINK_FENCED:
		if (!delivery->is_fenced) {
			delivery->is_fenced = true;
			tell_fenced(pipeline, result->problem);
		}
		try_again(pipeline, event, 0, false, result->problem);
		break;
	case SINK_WITHHELD:
		try_again(pipeline, event, result->retry_after_ms, false, result->problem);
		break;
	}
}

void delivery_collect(pipeline *pipeline, int64_t wait_ms)
{
	sink_result results[RESULTS_MAX];
	bool asks = pipeline->delivery.in_flight > 0 || pipeline->delivery.is_full;

	notify_alive();
	size_t count = pipeline->settings.sink->poll(pipeline->delivery.sink, asks ? notify_wait_ms(wait_ms) : 0, results,
	                                             RESULTS_MAX);

	for (size_t i = 0; i < count; i++) {
		on_result(pipeline, &results[i]);
	}
	if (!asks && count == 0 && wait_ms > 0) {
		runtime_sleep(wait_ms);
	}
}

/* ---- events that hang */

static int64_t hanging_ms(const pipeline *pipeline)
{
	int64_t usual = (int64_t)(pipeline->delivery.latency_ms * HANGING_FACTOR);

	if (pipeline->session.chunk.open > pipeline->session.chunk.count / HANGING_SHARE + 1 || usual > HANGING_MS) {
		return HANGING_MS;
	}
	return usual > HANGING_FEW_MS ? usual : HANGING_FEW_MS;
}

/* The event stays in flight; its row's next_at is set to when its result must have come. */
static void put_off(pipeline *pipeline, event *event)
{
	park(pipeline, event, "waiting", event->attempts, pipeline->settings.timeout_ms + DEFER_MORE_MS,
	     "in flight for long");
	batch_remove(pipeline, event);
	event->known = true;
	event->deferred = true;
	pipeline->delivery.held_bytes += event->bytes;
	pipeline->delivery.held_count++;
}

bool delivery_detach(pipeline *pipeline)
{
	const event_list *chunk = &pipeline->session.chunk;
	size_t bytes = pipeline->delivery.held_bytes;

	if (schedule_has_ready(pipeline->schedule) || runtime_now_ms() - chunk->sent_ms < hanging_ms(pipeline)) {
		return false;
	}
	if (pipeline->delivery.answered_ms < chunk->sent_ms &&
	    pipeline->delivery.held_count + chunk->open > HANGING_SILENT_MOST) {
		return false;
	}
	for (size_t i = 0; i < chunk->count; i++) {
		bytes += chunk->events[i] != NULL && chunk->events[i]->place == EVENT_IN_FLIGHT ? chunk->events[i]->bytes : 0;
	}
	if (bytes > HELD_BYTES_MAX) {
		return false;
	}
	for (size_t i = 0; i < chunk->count; i++) {
		event *event = chunk->events[i];
		if (event == NULL) {
			continue;
		}
		if (event->place == EVENT_IN_FLIGHT) {
			put_off(pipeline, event);
			continue;
		}
		park(pipeline, event, "waiting", event->attempts, 0, NULL);
		schedule_remove(pipeline->schedule, event);
		batch_remove(pipeline, event);
		event_free(event);
	}
	return true;
}

void delivery_defer(pipeline *pipeline)
{
	event_list *due = &pipeline->session.due;
	int64_t now = runtime_now_ms();

	for (size_t i = 0; i < due->count; i++) {
		event *event = due->events[i];
		if (event == NULL || event->place != EVENT_IN_FLIGHT || now - event->sent_ms < HANGING_MS ||
		    pipeline->delivery.held_bytes + event->bytes > HELD_BYTES_MAX) {
			continue;
		}
		/* The events behind it have rows, and come again after it. */
		struct event *behind = NULL;
		while (event->chain_after != NULL && event->chain_after->place == EVENT_BEHIND) {
			behind = event->chain_after;
			schedule_remove(pipeline->schedule, behind);
			batch_remove(pipeline, behind);
			event_free(behind);
		}
		put_off(pipeline, event);
	}
}
