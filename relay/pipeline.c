/* SPDX-License-Identifier: PostgreSQL */
/*
 * pipeline.c: the outbox's side of a pipeline, and its life: standing by, taking over, reading,
 * settling, stopping. See pipeline.h.
 */
#include "pipeline.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum {
	LIST_FIRST = 50000, /* ids listed at a time: 24 bytes each */
	LIST_MOST = 400000, /* the same with a long backlog: each list costs a pass over it */
	FETCH_FIRST = 64,   /* events in the first request; doubled while they are small */
	DUE_MOST = 500,
	DUE_HELD_MAX = 10000,
	DUE_SOON_MS = 100, /* between two looks for due events, while any are parked */
	/* and while none are known: an operator may have asked for a replay */
	DUE_LATER_MS = 1000,
	RELEASE_MOST = 500,
	/* between two looks for delayed events, unless one is known to be due sooner */
	RELEASE_MS = 1000,
	/* a look may take this part of the time, even if the index is full of dead rows */
	RELEASE_PART = 20,
	/* with PERMIT_MS, less than the two seconds in which another process takes over */
	STANDBY_MS = 250,
	CONNECT_FIRST_MS = 100,
	CONNECT_MOST_MS = 2000,
	STORE_MS = 10000,   /* how often progress past other relays' events is stored */
	LEFT_MAX = 1000000, /* the most parked events that are counted */
	COUNT_MS = 10000,   /* how often parked events are counted */
	CHUNK_WAIT_MS = 20,
	/* a round trip to the database must be shorter; a process that takes over waits this long */
	PERMIT_MS = 1000,
	FULL_WAIT_MS = 100,
	/* so that two that fence each other do so rarely, and others may take over */
	FENCED_WAIT_MS = 5000
};

/* ---- a session's data */

static void progress_clear(reader_progress *progress)
{
	free(progress->seen);
	free(progress->reading);
	*progress = (reader_progress){0};
}

/* The session is over: all it read is void. Events at the sink are freed with their results. */
static void forget_session(pipeline *pipeline)
{
	pipeline_session *over = &pipeline->session;

	event_free_list(schedule_clear(pipeline->schedule));
	free(over->chunk.events);
	free(over->due.events);
	settlement_clear(&over->settlement);
	progress_clear(&over->progress);
	pipeline->session = (pipeline_session){.number = over->number + 1, .fetch_count = FETCH_FIRST, .look_wait_ms = 1};
}

/* ---- the permit to send */

static void permit(pipeline *pipeline, int64_t until_ms)
{
	pipeline->delivery.permit_ms = until_ms;
	pipeline->settings.sink->permit(pipeline->delivery.sink, until_ms);
}

/*
 * The permit starts when the session was asked: if the answer takes longer than the permit lasts,
 * nothing can ever be sent.
 */
static void tell_late(pipeline *pipeline, int64_t until_ms)
{
	int64_t now = runtime_now_ms();
	bool is_late = now >= until_ms;

	if (is_late && !pipeline->delivery.is_late) {
		runtime_log(&pipeline->speaker, RUNTIME_WARNING, "permit_late",
		            "round_trip_ms=%lld limit_ms=%d; nothing is sent while a round trip to the database takes so long",
		            (long long)(now - reader_proved_ms(pipeline->reader)), PERMIT_MS);
	}
	if (is_late != pipeline->delivery.is_late) {
		metric_set(pipeline->report.metrics.permit_late, is_late);
	}
	pipeline->delivery.is_late = is_late;
}

/*
 * Before an event is sent, and while the sink has events that it may still send, the session must
 * exist.
 */
static bool renew_permit(pipeline *pipeline)
{
	bool wanted = pipeline->delivery.in_flight > 0 || schedule_has_ready(pipeline->schedule);
	int64_t now = runtime_now_ms();
	bool good = true;

	if (!wanted || now < pipeline->session.first_ms) {
		return true;
	}
	if (now - reader_proved_ms(pipeline->reader) > PERMIT_MS / 2) {
		good = reader_prove(pipeline->reader);
	}
	int64_t until_ms = reader_proved_ms(pipeline->reader) + PERMIT_MS;
	if (good && until_ms > pipeline->delivery.permit_ms) {
		permit(pipeline, until_ms);
		tell_late(pipeline, until_ms);
	}
	return good;
}

static bool send(pipeline *pipeline)
{
	bool good = renew_permit(pipeline);

	if (good) {
		delivery_send(pipeline);
	}
	return good;
}

/* ---- settling */

/* The end of a snapshot, "10:20:10,14": it does not see later transactions. */
static uint64_t snapshot_end(const char *snapshot)
{
	const char *colon = strchr(snapshot, ':');

	return colon == NULL ? 0 : strtoull(colon + 1, NULL, 10);
}

static bool store(pipeline *pipeline, const char *seen, const char *reading, int64_t after_id, bool fresh)
{
	settlement *settlement = &pipeline->session.settlement;
	char *parked = settlement_parked(settlement, fresh);
	bool good = reader_settle(pipeline->reader, seen, reading, after_id, settlement->delivered,
	                          settlement->delivered_count, parked);

	free(parked);
	if (good) {
		settlement_done(settlement, fresh);
		pipeline->stored_ms = runtime_now_ms();
		pipeline->stored_end = snapshot_end(seen);
	}
	return good;
}

/* The results of events that were parked before; the stored progress is unchanged. */
static bool settle_known(pipeline *pipeline)
{
	const reader_progress *progress = &pipeline->session.progress;

	if (!settlement_has_known(&pipeline->session.settlement)) {
		return true;
	}
	return store(pipeline, progress->seen, progress->reading, progress->after_id, false);
}

static void finish_reading(reader_progress *progress)
{
	free(progress->seen);
	progress->seen = progress->reading;
	progress->reading = NULL;
	progress->after_id = 0;
}

static bool settle_chunk(pipeline *pipeline)
{
	pipeline_session *session = &pipeline->session;
	reader_progress *progress = &session->progress;
	bool is_last = session->listed_all && session->item_next == session->item_count;

	/* Progress only moves forward: all before it is delivered, or parked by this statement. */
	assert(session->in_chunk && progress->reading != NULL && session->chunk_end_id > progress->after_id);
	bool good = is_last ? store(pipeline, progress->reading, NULL, 0, true)
	                    : store(pipeline, progress->seen, progress->reading, session->chunk_end_id, true);

	if (!good) {
		return false;
	}
	metric_count(pipeline->report.metrics.batches, 1);
	metric_set_now(pipeline->report.metrics.batch_at);
	runtime_log(&pipeline->speaker, RUNTIME_DEBUG, "batch", "events=%zu took_ms=%lld parked=%lld", session->chunk.count,
	            (long long)(runtime_now_ms() - session->chunk_at_ms), (long long)pipeline->report.parked);
	if (is_last) {
		finish_reading(progress);
	} else {
		progress->after_id = session->chunk_end_id;
	}
	session->in_chunk = false;
	session->unstored = false;
	session->chunk.count = 0;
	return true;
}

/*
 * Stopping within a chunk: its finished events are settled and the others are parked, so that no
 * finished event is delivered again. If none is finished, the chunk is read again.
 */
static bool settle_part(pipeline *pipeline)
{
	event_list *chunk = &pipeline->session.chunk;

	if (chunk->open == chunk->count && !settlement_has_fresh(&pipeline->session.settlement)) {
		return settle_known(pipeline);
	}
	for (size_t i = 0; i < chunk->count; i++) {
		if (chunk->events[i] != NULL) {
			settlement_park(&pipeline->session.settlement, chunk->events[i], "waiting", chunk->events[i]->attempts, 0,
			                NULL);
		}
	}
	return settle_chunk(pipeline);
}

/* ---- reading */

/* Lists the events between the snapshots; *idle: none is for this relay. */
static bool list(pipeline *pipeline, bool flushed, bool *idle)
{
	pipeline_session *session = &pipeline->session;
	reader_progress *progress = &session->progress;
	bool goes_on = session->item_count == pipeline->item_room;

	/* After a full list the next one is longer. */
	if (pipeline->item_room == 0 || (goes_on && pipeline->item_room < LIST_MOST)) {
		pipeline->item_room = pipeline->item_room == 0 ? LIST_FIRST : 2 * pipeline->item_room;
		pipeline->items = memory_array(pipeline->items, pipeline->item_room, sizeof *pipeline->items);
	}
	session->item_count = session->item_next = 0;
	bool good = reader_list(pipeline->reader, progress->seen, progress->reading, progress->after_id,
	                        pipeline->item_room, pipeline->items, &session->item_count);
	if (!good) {
		return false;
	}
	session->listed_all = session->item_count < pipeline->item_room;
	*idle = session->item_count == 0;
	if (*idle) {
		finish_reading(progress);
		session->unstored = true;
		return true;
	}
	/*
	 * Visible events may not be on disk yet (synchronous_commit = off): they are flushed before any
	 * receiver gets them.
	 */
	return flushed || reader_flush(pipeline->reader);
}

/* Looks for new events. */
static bool look(pipeline *pipeline, bool *idle)
{
	reader_progress *progress = &pipeline->session.progress;
	bool changed = true, flushed = true;

	*idle = true;
	if (progress->reading == NULL) {
		char *reading = NULL;
		bool good = reader_look(pipeline->reader, progress->seen, &reading, &changed, &flushed);
		if (!good) {
			return false;
		}
		if (!changed) {
			free(reading);
			return true;
		}
		progress->reading = reading;
		progress->after_id = 0;
	}
	return list(pipeline, flushed, idle);
}

static bool fetch(pipeline *pipeline)
{
	pipeline_session *session = &pipeline->session;
	size_t left = session->item_count - session->item_next;
	size_t count = session->fetch_count < left ? session->fetch_count : left;
	size_t most = (size_t)pipeline->settings.batch;
	size_t read = 0;
	event *first = NULL;

	assert(!session->in_chunk && left > 0);
	count = count < most ? count : most;
	if (!reader_fetch(pipeline->reader, pipeline->items + session->item_next, count, &first, &read)) {
		return false;
	}
	session->fetch_count = read < count ? read : session->fetch_count >= most / 2 ? most : 2 * session->fetch_count;
	pipeline->reads++;
	schedule_forget_marks(pipeline->schedule, pipeline->reads);
	assert(read > 0 && read <= count);
	session->item_next += read;
	session->chunk_end_id = pipeline->items[session->item_next - 1].id;
	session->chunk_at_ms = runtime_now_ms();
	session->in_chunk = true;
	for (event *at = first, *next = NULL; at != NULL; at = next) {
		next = at->list_after;
		delivery_accept(pipeline, at, &session->chunk);
	}
	return true;
}

/* Parked events that are due. */
static bool read_due(pipeline *pipeline, bool *found)
{
	pipeline_session *session = &pipeline->session;
	event *first = NULL;
	bool good = settle_known(pipeline);

	if (good) {
		good = reader_due(pipeline->reader, DUE_MOST, &first);
	}
	if (!good) {
		return false;
	}
	if (session->due.open == 0) {
		session->due.count = 0;
	}
	pipeline->reads++;
	size_t open_before = session->due.open;
	for (event *at = first, *next = NULL; at != NULL; at = next) {
		next = at->list_after;
		delivery_accept(pipeline, at, &session->due);
	}
	*found = session->due.open > open_before;
	session->due_at_ms = runtime_now_ms() + (pipeline->report.parked > 0 ? DUE_SOON_MS : DUE_LATER_MS);
	return true;
}

/* Delayed events that are due are moved to the outbox, and read there like all others. */
static bool release(pipeline *pipeline)
{
	pipeline_session *session = &pipeline->session;
	int64_t begun_ms = runtime_now_ms();
	int64_t released = 0, wait_ms = 0;

	if (begun_ms < session->release_at_ms) {
		return true;
	}
	if (!reader_release(pipeline->reader, RELEASE_MOST, &released, &wait_ms)) {
		return false;
	}
	if (released > 0) {
		session->look_at_ms = 0;
		runtime_log(&pipeline->speaker, RUNTIME_DEBUG, "released", "events=%lld", (long long)released);
	}
	if (wait_ms == 0) {
		session->release_at_ms = 0;
		return true;
	}
	int64_t now = runtime_now_ms();
	int64_t least_ms = RELEASE_PART * (now - begun_ms);
	wait_ms = wait_ms < 0 || wait_ms > RELEASE_MS ? RELEASE_MS : wait_ms;
	session->release_at_ms = now + (wait_ms < least_ms ? least_ms : wait_ms);
	return true;
}

/* ---- back-pressure by parked events */

static bool count_parked(pipeline *pipeline)
{
	pipeline_report *report = &pipeline->report;
	int64_t now = runtime_now_ms();
	int64_t most = pipeline->settings.parked_max;
	int64_t since = now - report->parked_at_ms;

	/* Operators change it too: while it matters, it is counted again from time to time. */
	if (since < (report->is_full ? DUE_LATER_MS : COUNT_MS) ||
	    (report->parked <= most / 2 && report->parked_at_ms != 0)) {
		return true;
	}
	report->parked_at_ms = now;
	bool good = reader_parked(pipeline->reader, most + 1, false, &report->parked);
	if (good && report->parked > most) {
		good = reader_parked(pipeline->reader, most + 1, true, &report->weight);
		report->weight *= WAITING_SHARE;
	}
	return good;
}

static bool check_full(pipeline *pipeline)
{
	pipeline_report *report = &pipeline->report;
	bool good = count_parked(pipeline);
	int64_t most = pipeline->settings.parked_max;
	bool is_full = report->parked > most && report->weight > most * WAITING_SHARE;

	if (good && is_full != report->is_full) {
		report->is_full = is_full;
		metric_set(report->metrics.full, is_full);
		if (is_full) {
			runtime_log(
			    &pipeline->speaker, RUNTIME_WARNING, "parked_max",
			    "parked=%lld parked_max=%lld; nothing new is read until fewer are parked: see pgonce parked list",
			    (long long)(report->weight / WAITING_SHARE), (long long)most);
		} else {
			runtime_log(&pipeline->speaker, RUNTIME_INFO, "reading", "parked=%lld", (long long)report->parked);
		}
	}
	return good;
}

/* ---- one step */

/*
 * Progress past other transactions is stored now and then, for once.retire_outbox. Storing it is
 * itself a transaction: if there was no transaction since the last store, nothing is stored, or an
 * idle server would never rest.
 */
static bool store_idle(pipeline *pipeline)
{
	pipeline_session *session = &pipeline->session;

	if (!session->unstored || runtime_now_ms() - pipeline->stored_ms < STORE_MS ||
	    snapshot_end(session->progress.seen) <= pipeline->stored_end + 1) {
		return true;
	}
	session->unstored = false;
	return store(pipeline, session->progress.seen, NULL, 0, false);
}

static bool due_is_due(const pipeline *pipeline)
{
	const pipeline_session *session = &pipeline->session;
	int64_t now = runtime_now_ms();

	if (now < pipeline->delivery.pause_until_ms ||
	    (pipeline->delivery.failures > 0 && schedule_has_ready(pipeline->schedule)) ||
	    session->due.count >= DUE_HELD_MAX) {
		return false;
	}
	return now >= session->due_at_ms || (session->due.open == 0 && session->due.count > 0);
}

/*
 * Reads more if there is no chunk. *wait_ms: until there is more to do here; *idle: there is
 * nothing now.
 */
static bool read_on(pipeline *pipeline, int64_t *wait_ms, bool *idle)
{
	pipeline_session *session = &pipeline->session;
	bool good = check_full(pipeline);

	if (!good || pipeline->report.is_full) {
		*wait_ms = FULL_WAIT_MS;
		return good;
	}
	if (session->item_next < session->item_count) {
		*wait_ms = 0;
		return fetch(pipeline);
	}
	int64_t now = runtime_now_ms();
	if (now < session->look_at_ms) {
		*wait_ms = session->look_at_ms - now;
		return true;
	}
	good = look(pipeline, idle);
	if (good && *idle) {
		good = store_idle(pipeline);
	}
	session->look_wait_ms = !*idle ? 1 : 2 * session->look_wait_ms;
	if (session->look_wait_ms > pipeline->settings.poll_most_ms) {
		session->look_wait_ms = pipeline->settings.poll_most_ms;
	}
	*wait_ms = *idle ? session->look_wait_ms : 0;
	session->look_at_ms = runtime_now_ms() + *wait_ms;
	return good;
}

/*
 * One step of the outbox's side. *wait_ms: how long it may wait for the sink before the next step;
 * *idle: there is nothing to do now.
 */
static bool step(pipeline *pipeline, int64_t *wait_ms, bool *idle)
{
	pipeline_session *session = &pipeline->session;
	bool found = false;
	bool good = true;

	*idle = false;
	*wait_ms = 0;
	delivery_defer(pipeline);
	if (session->in_chunk && session->chunk.open > 0) {
		delivery_detach(pipeline);
	}
	if (session->in_chunk && session->chunk.open == 0) {
		return settle_chunk(pipeline);
	}
	if (!release(pipeline)) {
		return false;
	}
	if (due_is_due(pipeline)) {
		good = read_due(pipeline, &found);
		if (!good || found) {
			return good;
		}
	}
	if (session->in_chunk) {
		*wait_ms = CHUNK_WAIT_MS;
		return true;
	}
	/* Parked events that are delivered one after the other share a commit. */
	if (session->due.open == 0 || runtime_now_ms() - pipeline->stored_ms >= DUE_SOON_MS) {
		good = settle_known(pipeline);
	}
	if (good) {
		good = read_on(pipeline, wait_ms, idle);
	}
	if (good && *idle && session->release_at_ms == 0) {
		*idle = false;
		*wait_ms = 0;
	}
	if (good && *idle && pipeline->call->once) {
		/* Events that waited behind the settled ones are due now. */
		good = read_due(pipeline, &found);
		*idle = !found && pipeline->delivery.in_flight == 0 && session->due.open == 0;
	}
	return good;
}

/* ---- a session */

/* Stopping: waits for the events in flight, at most for `timeout`, and sends no others. */
static bool drain(pipeline *pipeline)
{
	pipeline_session *session = &pipeline->session;
	int64_t until_ms = runtime_now_ms() + pipeline->settings.timeout_ms;

	bool good = true;
	while (good && pipeline->delivery.in_flight > 0 && !pipeline->delivery.is_broken && runtime_now_ms() < until_ms) {
		delivery_collect(pipeline, CHUNK_WAIT_MS);
		good = renew_permit(pipeline);
	}
	if (!good) {
		return false;
	}
	if (session->in_chunk) {
		return session->chunk.open == 0 ? settle_chunk(pipeline) : settle_part(pipeline);
	}
	good = settle_known(pipeline);
	if (good && session->unstored) {
		good = store(pipeline, session->progress.seen, NULL, 0, false);
	}
	return good;
}

/* Waits, but serves the sink. */
static void wait(pipeline *pipeline, int64_t milliseconds)
{
	int64_t until_ms = runtime_now_ms() + milliseconds;

	while (!runtime_stopping() && runtime_now_ms() < until_ms) {
		int64_t left_ms = until_ms - runtime_now_ms();
		delivery_collect(pipeline, left_ms < CHUNK_WAIT_MS ? left_ms : CHUNK_WAIT_MS);
	}
}

/* Becomes the active process of this relay. */
static bool take(pipeline *pipeline)
{
	pipeline_session *session = &pipeline->session;
	bool stood_by = false;
	bool taken = false;

	while (!runtime_stopping()) {
		progress_clear(&session->progress);
		bool good = reader_take(pipeline->reader, &taken, &session->progress);
		if (!good) {
			return false;
		}
		if (taken) {
			session->first_ms = runtime_now_ms() + PERMIT_MS;
			runtime_log(&pipeline->speaker, RUNTIME_INFO, stood_by ? "took_over" : "active", "%s", "");
			if (snapshot_end(session->progress.seen) < pipeline->stored_end) {
				/* Restored to an earlier point, or a standby was promoted that lacked it. */
				runtime_log(&pipeline->speaker, RUNTIME_WARNING, "rewound", "reason=%s",
				            "\"the database lacks progress that was stored; what came after is published again\"");
			}
			return true;
		}
		if (!stood_by) {
			runtime_log(&pipeline->speaker, RUNTIME_INFO, "standby", "reason=%s",
			            "\"another process is active for this relay\"");
		}
		stood_by = true;
		wait(pipeline, STANDBY_MS);
	}
	return false;
}

/* Works until it ends. True: it was asked to end. */
static bool work(pipeline *pipeline)
{
	pipeline_delivery *delivery = &pipeline->delivery;
	bool good = take(pipeline);
	bool is_done = false;

	pipeline->report.parked_at_ms = 0;
	metric_set(pipeline->report.metrics.active, good);
	while (good && !runtime_stopping() && !delivery->is_broken && !delivery->is_fenced && !is_done) {
		int64_t wait_ms = 0;
		bool idle = false;
		good = send(pipeline);
		if (good) {
			good = step(pipeline, &wait_ms, &idle);
		}
		if (good) {
			good = send(pipeline);
		}
		if (good) {
			bool waits = delivery->in_flight > 0 && wait_ms > PERMIT_MS / 4;
			delivery_collect(pipeline, waits ? PERMIT_MS / 4 : wait_ms);
		}
		is_done = pipeline->call->once && idle && delivery->in_flight == 0;
	}
	if (good && !delivery->is_fenced) {
		good = drain(pipeline);
	}
	return good && is_done ? reader_parked(pipeline->reader, LEFT_MAX, false, &pipeline->report.left) : good;
}

/* ---- the relay */

/* RELAY_STOPPED: trying again may help. */
static relay_end end_of(const failure *failure)
{
	if (failure->kind == FAILURE_CONTRACT) {
		return RELAY_CONTRACT;
	}
	if (strcmp(failure->sqlstate, "P4080") == 0) {
		return RELAY_REFUSED;
	}
	/* A fault without an SQLSTATE is not the server's: a pooler is in between. */
	return failure->kind == FAILURE_FAULT && failure->sqlstate[0] == '\0' ? RELAY_FAILED : RELAY_STOPPED;
}

/* Connects and works, again and again, until it ends for good. */
static relay_end run(pipeline *pipeline)
{
	pipeline_delivery *delivery = &pipeline->delivery;
	pipeline_report *report = &pipeline->report;
	const failure *failure = reader_failure(pipeline->reader);
	int failures = 0;

	while (!runtime_stopping()) {
		bool good = reader_connect(pipeline->reader);
		if (good) {
			int64_t since_ms = runtime_now_ms();
			runtime_log(&pipeline->speaker, RUNTIME_INFO, "connected", "%s", "");
			metric_count(report->metrics.connects, 1);
			good = work(pipeline);
			metric_set(report->metrics.active, 0);
			failures = runtime_now_ms() - since_ms < CONNECT_MOST_MS ? failures : 0;
			permit(pipeline, 0);
			reader_disconnect(pipeline->reader);
			forget_session(pipeline);
		}
		if (delivery->is_broken) {
			return RELAY_FAILED;
		}
		if (delivery->is_fenced && !pipeline->call->once) {
			delivery->is_fenced = false;
			wait(pipeline, FENCED_WAIT_MS);
			continue;
		}
		if (delivery->is_fenced) {
			report->problem = memory_copy("another relay of this name has begun its turn at the broker");
			return RELAY_FAILED;
		}
		if (good && report->left > 0) {
			report->problem = memory_format("%s%lld events are not delivered but parked: pgonce parked list says why",
			                                report->left < LEFT_MAX ? "" : "at least ", (long long)report->left);
			return RELAY_UNDELIVERED;
		}
		if (good || failure->kind == FAILURE_NONE || failure->kind == FAILURE_STOPPED) {
			return RELAY_STOPPED;
		}
		if (end_of(failure) != RELAY_STOPPED || pipeline->call->once) {
			report->problem = memory_copy(failure->text);
			return end_of(failure) != RELAY_STOPPED ? end_of(failure) : RELAY_NO_SERVER;
		}
		failure_log(failure, &pipeline->speaker, ++failures);
		wait(pipeline, runtime_backoff_ms(failures, CONNECT_FIRST_MS, CONNECT_MOST_MS));
	}
	return RELAY_STOPPED;
}

bool relay_check(const config *config, const config_section *section, char **problem)
{
	relay_settings settings = {0};

	if (!relay_settings_read(config, section, &settings, problem)) {
		return false;
	}
	relay_settings_free(&settings);
	return true;
}

char *relay_note(const config *config, const config_section *section)
{
	relay_settings settings = {0};
	char *problem = NULL;

	if (!relay_settings_read(config, section, &settings, &problem)) {
		free(problem);
		return NULL;
	}
	char *notes = settings.sink->note != NULL ? settings.sink->note(config, section) : NULL;
	relay_settings_free(&settings);
	return notes;
}

static void add_metrics(relay_metrics *metrics, struct metrics *to, const char *name)
{
	const struct {
		metric **metric;
		metric_kind kind;
		const char *name, *help;
	} all[] = {
	    {&metrics->delivered, METRIC_COUNTER, "pgonce_relay_delivered", "Events that the sink has acknowledged."},
	    {&metrics->refused, METRIC_COUNTER, "pgonce_relay_refused", "Attempts that the sink has refused."},
	    {&metrics->parked, METRIC_COUNTER, "pgonce_relay_parked",
	     "Events parked: to be tried again, or waiting behind an earlier parked event."},
	    {&metrics->dead, METRIC_COUNTER, "pgonce_relay_dead", "Events that failed their last attempt."},
	    {&metrics->dead_copies, METRIC_COUNTER, "pgonce_relay_dead_copies",
	     "Copies of dead events that the dead_topic has accepted."},
	    {&metrics->dead_unsent, METRIC_COUNTER, "pgonce_relay_dead_unsent",
	     "Copies of dead events that the dead_topic did not accept: each is sent again."},
	    {&metrics->left_out, METRIC_COUNTER, "pgonce_relay_left_out", "Events that a route to /dev/null has left out."},
	    {&metrics->batches, METRIC_COUNTER, "pgonce_relay_batches", "Batches that were read, delivered and settled."},
	    {&metrics->batch_at, METRIC_GAUGE, "pgonce_relay_last_batch_timestamp_seconds",
	     "When the last batch was settled, in seconds since 1970; 0: none yet."},
	    {&metrics->in_flight, METRIC_GAUGE, "pgonce_relay_in_flight",
	     "Events that were sent and that the sink has not answered yet."},
	    {&metrics->active, METRIC_GAUGE, "pgonce_relay_active",
	     "1: this process runs the relay; 0: it stands by, or has no connection."},
	    {&metrics->sink_away, METRIC_GAUGE, "pgonce_relay_sink_away", "1: the sink cannot be reached."},
	    {&metrics->hosts_hanging, METRIC_GAUGE, "pgonce_relay_hosts_hanging",
	     "Hosts of webhooks that accept connections and do not answer: their events are parked."},
	    {&metrics->full, METRIC_GAUGE, "pgonce_relay_full",
	     "1: parked_max events are parked, and no new events are read."},
	    {&metrics->permit_late, METRIC_GAUGE, "pgonce_relay_permit_late",
	     "1: nothing is sent, because a round trip to PostgreSQL takes longer than a permit to send lasts."},
	    {&metrics->fenced, METRIC_COUNTER, "pgonce_relay_fenced",
	     "Turns that ended because another process of this relay began a turn at the broker (fence = broker)."},
	    {&metrics->connects, METRIC_COUNTER, "pgonce_relay_connects",
	     "Connections to PostgreSQL, including reconnections."},
	};

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		*all[i].metric = metrics_add_labelled(to, all[i].kind, all[i].name, all[i].help, "relay", name);
	}
}

relay_end relay_run(const config *config, const config_section *section, const relay_call *call, char **problem)
{
	pipeline pipeline = {.call = call, .delivery = {.latency_ms = 10}};

	pipeline.speaker = (speaker){.kind = "relay", .name = section->name};
	if (!relay_settings_read(config, section, &pipeline.settings, problem)) {
		return RELAY_FAILED;
	}
	if (!pipeline.settings.sink->open(&pipeline.speaker, config, section, &pipeline.delivery.sink, problem)) {
		relay_settings_free(&pipeline.settings);
		return RELAY_FAILED;
	}
	pipeline.schedule = schedule_new();
	pipeline.delivery.lanes = lanes_new();
	pipeline.reader = reader_new(&pipeline.settings, call->conninfo);
	add_metrics(&pipeline.report.metrics, call->metrics, section->name);
	forget_session(&pipeline);
	runtime_log(&pipeline.speaker, RUNTIME_INFO, "started", "sink=%s batch=%lld", pipeline.settings.sink->name,
	            (long long)pipeline.settings.batch);
	runtime_job(1);
	relay_end end = run(&pipeline);
	runtime_job(-1);
	runtime_log(&pipeline.speaker, end == RELAY_STOPPED ? RUNTIME_INFO : RUNTIME_ERROR, "stopped",
	            "delivered=%lld refused=%lld dead=%lld", (long long)pipeline.report.delivered,
	            (long long)pipeline.report.refused, (long long)pipeline.report.dead);
	/* The sink goes first: it refers to the messages. */
	pipeline.settings.sink->close(pipeline.delivery.sink);
	delivery_forget(&pipeline);
	schedule_free(pipeline.schedule);
	lanes_free(pipeline.delivery.lanes);
	reader_free(pipeline.reader);
	free(pipeline.items);
	relay_settings_free(&pipeline.settings);
	*problem = pipeline.report.problem;
	return end;
}
