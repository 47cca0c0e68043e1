/* SPDX-License-Identifier: PostgreSQL */
/*
 * consumer.c: a consumer's life: in a loop it takes messages from its source, lets its handler
 * (handler.h) work, and acknowledges settled messages. If the database fails, it tries again after
 * a pause.
 */
#include "consumer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "notify.h"
#include "parked.h"

enum {
	FETCH_MS = 250, /* a request to stop is noticed in between */
	TURN_MS = 1000,
	IDLE_MS = 2000, /* with `once` */
	FULL_MS = 200,
	COUNT_EVERY_MS = 5000 /* other processes park and retry too */
};

/* ---- the source */

static void note_source(consumer *consumer, source_state state, const char *problem)
{
	char quoted[RUNTIME_QUOTE_BYTES];
	const bool away = state == SOURCE_UNAVAILABLE;

	/* A different problem is logged too: a broker that is back may have lost its queue. */
	if (away && (!consumer->away || strcmp(problem, consumer->away_problem) != 0)) {
		runtime_log(&consumer->speaker, RUNTIME_WARNING, "source_away", "problem=%s", runtime_quote(problem, quoted));
		snprintf(consumer->away_problem, sizeof consumer->away_problem, "%s", problem);
	} else if (state == SOURCE_LOST) {
		runtime_log(&consumer->speaker, RUNTIME_INFO, "source_lost", "problem=%s", runtime_quote(problem, quoted));
	} else if (state == SOURCE_OK && consumer->away) {
		runtime_log(&consumer->speaker, RUNTIME_INFO, "source_back", "source=%s", consumer->settings.class->name);
	}
	consumer->away = away;
	metric_set(consumer->counts.source_away, away);
}

static void set_stalled(consumer *consumer, bool stalled)
{
	if (stalled != consumer->stalled) {
		consumer->stalled = stalled;
		metric_set(consumer->counts.stalled, stalled);
		runtime_stalled(stalled ? 1 : -1);
	}
}

/* A stalled source is no reason to end: an operator must act. */
static void look_for_stall(consumer *consumer)
{
	const source_class *class = consumer->settings.class;
	char problem[256] = "";
	char quoted[RUNTIME_QUOTE_BYTES];
	bool stalled = class->stalled != NULL && class->stalled(consumer->source, problem);

	if (stalled && !consumer->stalled) {
		runtime_log(&consumer->speaker, RUNTIME_ERROR, "stalled",
		            "problem=%s hint=\"the broker's log%s may say why; a restart reads again from the last "
		            "acknowledged message\"",
		            runtime_quote(problem, quoted),
		            strcmp(class->name, "kafka") == 0 ? ", or lines of event=kafka," : "");
	} else if (!stalled && consumer->stalled) {
		runtime_log(&consumer->speaker, RUNTIME_INFO, "not_stalled", "source=%s", class->name);
	}
	set_stalled(consumer, stalled);
}

static void close_source(consumer *consumer)
{
	set_stalled(consumer, false);
	if (consumer->source != NULL) {
		consumer->settings.class->close(consumer->source);
		consumer->source = NULL;
	}
}

static bool open_source(consumer *consumer)
{
	const settings *settings = &consumer->settings;
	char *problem = NULL;

	if (consumer->source != NULL) {
		return true;
	}
	const source_bounds bounds = {.messages = settings->prefetch, .bytes = settings->memory};
	if (!settings->class->open(&consumer->speaker, consumer->job->config, consumer->job->section, bounds,
	                           settings->key_from.kind != ORIGIN_NONE, &consumer->source, &problem)) {
		consumer->source = NULL;
		return connection_fail(consumer, CONSUME_FAILED, problem);
	}
	consumer->opened_ms = runtime_now_ms();
	runtime_log(&consumer->speaker, RUNTIME_INFO, "started", "source=%s", settings->class->name);
	return true;
}

/* A consumer on its first run has forgotten nothing until it has run for the whole retention. */
static void remind(consumer *consumer)
{
	bool forgets = consumer->has_run || runtime_now_ms() - consumer->opened_ms >= consumer->remembered_ms;

	if (consumer->settings.class->remember != NULL) {
		consumer->settings.class->remember(consumer->source, forgets ? consumer->remembered_ms : 0);
	}
}

/* Acknowledges what the handler has finished: it and everything before it is committed or
 * parked. */
static void acknowledge(consumer *consumer)
{
	source_message **settled = arena_take(&consumer->arena, (consumer->out + 1) * sizeof(source_message *));
	size_t count = consumer->handler_class->hand_back_settled(consumer->handler, settled);
	char problem[256] = "";

	assert(count <= consumer->out && !consumer->database.in_transaction);
	consumer->out -= count;
	assert(consumer->out == consumer->handler_class->load(consumer->handler).out);
	if (count > 0) {
		source_state state = consumer->settings.class->acknowledge(consumer->source, settled, count, problem);
		if (state != SOURCE_OK) {
			note_source(consumer, state, problem);
		}
	}
}

/* Returns all outstanding deliveries, undone. */
static void give_back(consumer *consumer)
{
	arena_clear(&consumer->arena);
	source_message **undone = arena_take(&consumer->arena, (consumer->out + 1) * sizeof(source_message *));
	size_t count = consumer->handler_class->hand_back_undone(consumer->handler, undone);

	assert(count == consumer->out);
	consumer->out = 0;
	if (count > 0) {
		consumer->settings.class->give_back(consumer->source, undone, count);
	}
}

static bool is_full(consumer *consumer)
{
	bool full = consumer->parked >= consumer->settings.parked_max;

	if (full && !consumer->full_said) {
		runtime_log(&consumer->speaker, RUNTIME_ERROR, "full",
		            "parked=%lld parked_max=%lld hint=\"no messages are read from the broker until fewer are parked: "
		            "pgonce parked list\"",
		            (long long)consumer->parked, (long long)consumer->settings.parked_max);
	} else if (!full && consumer->full_said) {
		runtime_log(&consumer->speaker, RUNTIME_INFO, "not_full", "parked=%lld", (long long)consumer->parked);
	}
	consumer->full_said = full;
	metric_set(consumer->counts.full, full);
	return full;
}

/* Fetches as many as the handler has room for, or keeps the source alive. False: nothing came. */
static bool take(consumer *consumer)
{
	const handler_load load = consumer->handler_class->load(consumer->handler);
	bool full = is_full(consumer);
	size_t most = full || runtime_stopping() ? 0 : load.room;
	bool at_once = most == 0 || load.held > 0 || parked_goes_on(consumer);
	int wait_ms = at_once ? 0 : consumer->parked > 0 ? FETCH_MS / 2 : FETCH_MS;
	source_message **deliveries = arena_take(&consumer->arena, (most + 1) * sizeof(source_message *));
	size_t count = 0;
	char problem[256] = "";

	remind(consumer);
	source_state state =
	    consumer->settings.class->fetch(consumer->source, most, load.room_bytes, wait_ms, deliveries, &count, problem);
	/* A source that never connected, because nothing was asked of it yet, has no problem to
	 * report. */
	if (most > 0 || (state != SOURCE_OK && problem[0] != '\0')) {
		note_source(consumer, state, problem);
	}
	assert(count <= most);
	if (consumer->settings.class->unread != NULL) {
		metric_count(consumer->counts.lost, consumer->settings.class->unread(consumer->source));
	}
	if (count > 0) {
		metric_count(consumer->counts.batches, 1);
		metric_count(consumer->counts.messages, count);
		metric_set_now(consumer->counts.message_at);
		consumer->handler_class->take(consumer->handler, deliveries, count);
		consumer->out += count;
	}
	if (full && load.held == 0) {
		(void)runtime_sleep(FULL_MS);
	}
	/* With `once`, a full consumer has nothing to do, whether or not its source is connected. */
	return count > 0 || (full ? !consumer->job->once : state != SOURCE_OK);
}

/* ---- the loop */

/* The connection, this process's turn, and the source. False: stopping, or failed for good. */
static bool get_ready(consumer *consumer)
{
	while (!connection_ready(consumer)) {
		give_back(consumer); /* another process may have the turn now */
		if (runtime_stopping() || consumer->problem != NULL) {
			return false;
		}
		close_source(consumer);
		metric_set(consumer->counts.active, 0);
		if (!consumer->waits_said && consumer->database.connection != NULL) {
			runtime_log(&consumer->speaker, RUNTIME_INFO, "standby", "another process is at work for this consumer");
			consumer->waits_said = true;
		}
		if (runtime_sleep(TURN_MS)) {
			return false;
		}
	}
	consumer->waits_said = false;
	metric_set(consumer->counts.active, 1);
	return open_source(consumer);
}

static void run(consumer *consumer)
{
	const handler_class *class = consumer->handler_class;
	int64_t busy_ms = runtime_now_ms();
	int failures = 0;

	while ((!runtime_stopping() || class->load(consumer->handler).calls > 0) && get_ready(consumer)) {
		failure failure = {0};
		notify_alive();
		arena_clear(&consumer->arena);
		bool busy = take(consumer);
		look_for_stall(consumer);
		bool counted = consumer->counted_at_ms + COUNT_EVERY_MS > runtime_now_ms() || parked_count(consumer, &failure);
		bool good = counted && class->work(consumer->handler, &failure);
		acknowledge(consumer);
		if (good) {
			failures = 0;
			positions_report(consumer, false);
		} else if (!connection_pause(consumer, ++failures, &failure)) {
			break;
		}
		if (busy || class->load(consumer->handler).held > 0 || parked_goes_on(consumer)) {
			busy_ms = runtime_now_ms();
		} else if (consumer->job->once && runtime_now_ms() - busy_ms >= IDLE_MS) {
			break;
		}
	}
	positions_report(consumer, true);
	give_back(consumer);
}

consume_result consume_run(const consume_job *job, char **problem)
{
	consumer it = {
	    .job = job, .reported_ms = runtime_now_ms(), .speaker = {.kind = "consume", .name = job->section->name}};
	consumer *consumer = &it;

	if (!settings_read(job->config, job->section, &consumer->settings, problem)) {
		return CONSUME_FAILED;
	}
	consumer->handler_class = consumer->settings.endpoint != NULL ? &handler_http : &handler_sql;
	consumer->handler = consumer->handler_class->open(consumer);
	memcpy(consumer->queries, sql_queries, sizeof consumer->queries);
	consumer->database = (database){.conninfo = job->conninfo,
	                                .role = "once_consumer",
	                                .queries = consumer->queries,
	                                .theirs = SQL_HANDLE + 1,
	                                .prepares = consumer->settings.prepare != 0,
	                                .is_jobs = true,
	                                .stop_ms = DATABASE_PATIENT,
	                                .alive = connection_keep_alive,
	                                .argument = consumer};
	/* Each handler parks at most the messages that it has. */
	const settings *settings = &consumer->settings;
	size_t most = (size_t)(settings->endpoint != NULL ? settings->prefetch + settings->in_flight : settings->batch);
	consumer->graves.room = settings->dead_topic == NULL ? 0 : most;
	consumer->graves.unsent = memory_take((consumer->graves.room + 1) * sizeof(parking));
	counts_publish(&consumer->counts, job->metrics, job->section->name);
	if (consumer->settings.id_from.kind == ORIGIN_COORDINATES) {
		runtime_log(
		    &consumer->speaker, RUNTIME_WARNING, "id",
		    "hint=\"id = coordinates: a message that its producer sends twice is applied twice; use a header or "
		    "a field of the payload as its id\"");
	}
	runtime_job(1);
	run(consumer);
	runtime_job(-1);
	consumer->handler_class->close(consumer->handler);
	close_source(consumer);
	database_disconnect(&consumer->database);
	runtime_log(&consumer->speaker, RUNTIME_INFO, "stopped", "applied=%llu duplicates=%llu",
	            (unsigned long long)consumer->counts.committed.applied,
	            (unsigned long long)consumer->counts.committed.duplicates);
	*problem = consumer->problem;
	free(consumer->handle_text);
	free(consumer->graves.unsent);
	arena_clear(&consumer->arena);
	return consumer->result;
}
