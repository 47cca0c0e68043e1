/* SPDX-License-Identifier: PostgreSQL */
/*
 * consumer.c: the life of a consumer: connecting to PostgreSQL and checking what it needs there, the source, and the loop: what is parked
 * and due, then a batch from the broker, applied, acknowledged.
 */
#include "consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	BACKOFF_FIRST_MS = 100,
	BACKOFF_MOST_MS = 10000,
	ALIVE_MS = 250, /* see database.c */
	FETCH_MS = 250, /* the wish to stop is heard in between */
	TURN_MS = 1000,
	IDLE_MS = 2000, /* with `once` */
	FULL_MS = 200
};
#define BATCH_BYTES_MAX ((size_t)16 * 1024 * 1024) /* of payloads in one transaction */

void consumer_keep_alive(void *argument)
{
	consumer *consumer = argument;
	source_message *none = NULL;
	size_t count = 0;
	char problem[256];

	if (consumer->source != NULL) {
		/* What it says of lost deliveries changes nothing: their effects are committed or will come again. */
		(void)consumer->settings.class->fetch(consumer->source, 0, 0, &none, &count, problem);
	}
}

bool consumer_pause(consumer *consumer, int failures, const failure *failure)
{
	char quoted[SERVICE_QUOTE_BYTES];
	int64_t until_ms = service_now_ms() + service_backoff_ms(failures, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);

	if (failure->kind == FAILURE_CONNECTION) {
		database_disconnect(&consumer->database);
		metric_set(consumer->metrics.active, 0);
		consumer->has_turn = false;
	} else if (strcmp(failure->sqlstate, CODE_NO_DAY) == 0) {
		struct failure ignored;
		(void)database_run(&consumer->database, SQL_ADD_DAYS, NULL, &ignored);
	}
	/* Each time would fill the log: the first, and then ever more rarely. */
	if ((failures & (failures - 1)) == 0) {
		service_log(&consumer->service, failures > 4 ? SERVICE_ERROR : SERVICE_WARNING, "database",
		            "sqlstate=%s failures=%d problem=%s", failure->sqlstate, failures,
		            service_quote(failure->kind == FAILURE_FAULT ? "see the server's log" : failure->text, quoted));
	}
	for (int64_t left_ms = until_ms - service_now_ms(); left_ms > 0; left_ms = until_ms - service_now_ms()) {
		consumer_keep_alive(consumer);
		if (service_sleep(left_ms < ALIVE_MS ? left_ms : ALIVE_MS)) {
			return false;
		}
	}
	return !service_stopping();
}

/* ---- what the database is asked */

bool consumer_doubts(message *message, const failure *failure)
{
	static const char *const codes[] = {"22P02", "22P05", "22021", "22003", "54000", "54001"};

	for (size_t i = 0; i < sizeof codes / sizeof codes[0] && message->json == JSON_YES && !message->asked; i++) {
		if (strcmp(failure->sqlstate, codes[i]) == 0) {
			message->json = JSON_UNSURE;
			return true;
		}
	}
	return false;
}

bool consumer_ask(consumer *consumer, message *message, failure *failure)
{
	parameters given = {0};

	if (message->json != JSON_UNSURE) {
		return true;
	}
	parameters_bytes(&given, message->payload.data, message->payload.length);
	if (database_run(&consumer->database, SQL_IS_JSONB, &given, failure)) {
		message->json = JSON_YES;
	} else if (failure->kind == FAILURE_FAULT) {
		message->json = JSON_NO;
	} else {
		return false;
	}
	message->asked = true;
	return true;
}

bool consumer_prepare_messages(consumer *consumer, message *messages, size_t count, failure *failure)
{
	for (size_t i = 0; i < count; i++) {
		once_error *error = NULL;
		once_bytes payload =
		    messages[i].payload.data != NULL ? messages[i].payload : (once_bytes){.data = "", .length = 0};
		if (once_fingerprint_bytes(consumer->database.session, consumer->settings.tenant, payload,
		                           &messages[i].fingerprint, &error) != ONCE_OK) {
			failure_of_error(error, failure);
			once_error_free(error);
			failure->kind = failure->kind == FAILURE_FAULT ? FAILURE_PASSING : failure->kind;
			return false;
		}
		if (messages[i].unusable == NULL && !consumer_ask(consumer, &messages[i], failure)) {
			return false;
		}
	}
	return true;
}

/* ---- counting */

static void add_metrics(consumer_metrics *metrics, struct metrics *to, const char *name)
{
	static const char parked[] =
	    "Messages put aside, each time: waiting behind another of their key, retrying after an "
	    "attempt that failed, or dead.";
	const struct {
		metric **metric;
		metric_kind kind;
		const char *name, *help, *state;
	} all[] = {
	    {&metrics->messages, METRIC_COUNTER, "pgonce_consume_messages", "Messages taken from the broker.", NULL},
	    {&metrics->batches, METRIC_COUNTER, "pgonce_consume_batches", "Batches taken from the broker.", NULL},
	    {&metrics->message_at, METRIC_GAUGE, "pgonce_consume_last_message_timestamp_seconds",
	     "When a message came last, in seconds since 1970; 0: none yet.", NULL},
	    {&metrics->applied, METRIC_COUNTER, "pgonce_consume_applied", "Messages applied.", NULL},
	    {&metrics->duplicates, METRIC_COUNTER, "pgonce_consume_duplicates", "Messages that had been applied before.",
	     NULL},
	    {&metrics->mismatches, METRIC_COUNTER, "pgonce_consume_mismatches",
	     "Messages whose id came before with another payload.", NULL},
	    {&metrics->waiting, METRIC_COUNTER, "pgonce_consume_parked", parked, "waiting"},
	    {&metrics->retrying, METRIC_COUNTER, "pgonce_consume_parked", parked, "retrying"},
	    {&metrics->dead, METRIC_COUNTER, "pgonce_consume_parked", parked, "dead"},
	    {&metrics->active, METRIC_GAUGE, "pgonce_consume_active",
	     "1: this process is at work for the consumer; 0: it stands by, or has no connection.", NULL},
	    {&metrics->source_away, METRIC_GAUGE, "pgonce_consume_source_away", "1: the broker cannot be reached.", NULL},
	    {&metrics->connects, METRIC_COUNTER, "pgonce_consume_connects",
	     "Connections made to PostgreSQL, reconnections included.", NULL},
	};

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		const metric_label labels[] = {{.name = "consumer", .value = name}, {.name = "state", .value = all[i].state}};
		*all[i].metric = metrics_add(to, all[i].kind, all[i].name, all[i].help, labels, all[i].state == NULL ? 1 : 2);
	}
}

void consumer_took(consumer *consumer, size_t count)
{
	metric_count(consumer->metrics.batches, 1);
	metric_count(consumer->metrics.messages, count);
	metric_set_now(consumer->metrics.message_at);
}

void consumer_count(consumer *consumer, uint64_t applied, uint64_t duplicates)
{
	const consumer_tally *tally = &consumer->tally;

	consumer->applied += applied;
	consumer->duplicates += duplicates;
	metric_count(consumer->metrics.applied, applied);
	metric_count(consumer->metrics.duplicates, duplicates);
	metric_count(consumer->metrics.mismatches, tally->mismatched);
	metric_count(consumer->metrics.waiting, tally->waiting);
	metric_count(consumer->metrics.retrying, tally->retrying);
	metric_count(consumer->metrics.dead, tally->dead);
	consumer->tally = (consumer_tally){0};
}

void consumer_note_source(consumer *consumer, source_state state, const char *problem)
{
	char quoted[SERVICE_QUOTE_BYTES];
	const bool away = state == SOURCE_UNAVAILABLE;

	/* Another problem is said as well: a broker that is there again may have lost its queue. */
	if (away && (!consumer->away || strcmp(problem, consumer->away_problem) != 0)) {
		service_log(&consumer->service, SERVICE_WARNING, "source_away", "problem=%s", service_quote(problem, quoted));
		snprintf(consumer->away_problem, sizeof consumer->away_problem, "%s", problem);
	} else if (state == SOURCE_LOST) {
		service_log(&consumer->service, SERVICE_INFO, "source_lost", "problem=%s", service_quote(problem, quoted));
	} else if (state == SOURCE_OK && consumer->away) {
		service_log(&consumer->service, SERVICE_INFO, "source_back", "source=%s", consumer->settings.class->name);
	}
	consumer->away = away;
	metric_set(consumer->metrics.source_away, away);
}

/* ---- connecting */

static bool fail(consumer *consumer, consume_result result, char *problem)
{
	consumer->result = result;
	consumer->problem = problem;
	database_disconnect(&consumer->database);
	return false;
}

static bool may_receive(consumer *consumer, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	parameters_array(&given, PARAMETER_TEXT);
	parameters_array(&given, PARAMETER_TEXT);
	parameters_array(&given, PARAMETER_BYTEA);
	parameters_text(&given, consumer->settings.tenant);
	parameters_boolean(&given, false);
	parameters_array(&given, PARAMETER_TEXT);
	return database_run(&consumer->database, SQL_RECEIVE, &given, failure);
}

/* The same message under another id would be applied again. *problem (free it) where the inbox holds ids of the other kind. */
static bool keeps_its_ids(consumer *consumer, char **problem, failure *failure)
{
	bool opaque = consumer->settings.ids == IDS_OPAQUE;
	const char *other = opaque ? "uuidv7" : "opaque";
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	parameters_text(&given, other);
	PGresult *result = database_query(&consumer->database, SQL_IS_INBOX_OF, &given, failure);
	bool changed = result != NULL && result_is_true(result, 0, 0);
	if (changed && result_is_true(result, 0, 1)) {
		/* Set to either, it would be told to take the other. */
		*problem =
		    strdup("the inbox remembers messages of this consumer by both kinds of ids, opaque and uuidv7: with "
		           "either it would apply those of the other kind again. See that nothing else calls once.receive "
		           "for it with the other kind; start it when the inbox has forgotten that kind (the scope's "
		           "retention; what is parked: pgonce dead discard), or give it another name, with which it applies "
		           "whatever its broker delivers");
	} else if (changed &&
	           asprintf(problem,
	                    "the inbox remembers messages of this consumer by ids = %s: under other ids it would apply "
	                    "them again. Set ids = %s",
	                    other, other) < 0) {
		*problem = NULL;
	}
	PQclear(result);
	return result != NULL && !changed;
}

/* On a new connection. False: *failure, and *problem where trying again will not help (free it). */
static bool check_database(consumer *consumer, char **problem, failure *failure)
{
	*problem = NULL;
	if (consumer->settings.endpoint == NULL) {
		*problem = database_find_handler(&consumer->database, consumer->settings.handler, failure);
		if (*problem != NULL || failure->kind != FAILURE_NONE) {
			return false;
		}
	}
	if (parked_count(consumer, failure) && (consumer->settings.endpoint != NULL || may_receive(consumer, failure)) &&
	    keeps_its_ids(consumer, problem, failure)) {
		return true;
	}
	if (*problem == NULL && failure->kind == FAILURE_FAULT &&
	    asprintf(problem, "PostgreSQL refuses: %s (%s)", failure->text, failure->sqlstate) < 0) {
		*problem = NULL;
	}
	return false;
}

static bool needs_turn(const consumer *consumer)
{
	return !consumer->settings.class->shares_order && consumer->settings.key_from.kind != ORIGIN_NONE;
}

static bool take_turn(consumer *consumer, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	PGresult *result = database_query(&consumer->database, SQL_TAKE_TURN, &given, failure);
	consumer->has_turn = result != NULL && result_is_true(result, 0, 0);
	PQclear(result);
	return result != NULL;
}

bool consumer_connected(consumer *consumer)
{
	for (int failures = 0; consumer->database.connection == NULL;) {
		failure failure = {0};
		char *problem = NULL;
		if (database_connect(&consumer->database, &failure) && check_database(consumer, &problem, &failure)) {
			consumer->started = true;
			metric_count(consumer->metrics.connects, 1);
			service_log(&consumer->service, SERVICE_INFO, "connected", "database=%s parked=%lld",
			            PQdb(consumer->database.connection), (long long)consumer->parked);
			break;
		}
		if (problem != NULL && !consumer->started) {
			return fail(consumer, CONSUME_FAILED, problem);
		}
		if (problem != NULL) {
			failure_set(&failure, FAILURE_CONNECTION, "%s", problem);
			free(problem);
		}
		if (!consumer->started && strstr(failure.text, "pgonce init") != NULL) {
			return fail(consumer, CONSUME_CONTRACT, strdup(failure.text));
		}
		if (!consumer->started && consumer->job->once && failure.kind == FAILURE_CONNECTION) {
			return fail(consumer, CONSUME_NO_SERVER, strdup(failure.text));
		}
		if (!consumer->started && failure.kind == FAILURE_FAULT) {
			return fail(consumer, CONSUME_FAILED, strdup(failure.text));
		}
		failure.kind = FAILURE_CONNECTION;
		if (!consumer_pause(consumer, ++failures, &failure)) {
			return false;
		}
	}
	if (!needs_turn(consumer) || consumer->has_turn) {
		return true;
	}
	failure failure = {0};
	if (!take_turn(consumer, &failure)) {
		(void)consumer_pause(consumer, 1, &failure);
	}
	/* Without the turn the deliveries that are out are another's: the caller gives them back. */
	return consumer->has_turn;
}

/* ---- the loop */

static void close_source(consumer *consumer)
{
	if (consumer->source != NULL) {
		consumer->settings.class->close(consumer->source);
		consumer->source = NULL;
	}
}

bool consumer_ready(consumer *consumer)
{
	while (!consumer_connected(consumer)) {
		if (service_stopping() || consumer->problem != NULL) {
			return false;
		}
		close_source(consumer);
		metric_set(consumer->metrics.active, 0);
		if (!consumer->waits_said && consumer->database.connection != NULL) {
			service_log(&consumer->service, SERVICE_INFO, "standby", "another process is at work for this consumer");
			consumer->waits_said = true;
		}
		if (service_sleep(TURN_MS)) {
			return false;
		}
	}
	consumer->waits_said = false;
	metric_set(consumer->metrics.active, 1);
	if (consumer->source != NULL) {
		return true;
	}
	char *problem = NULL;
	if (!consumer->settings.class->open(&consumer->service, consumer->job->config, consumer->job->section,
	                                    consumer->settings.prefetch, consumer->settings.key_from.kind != ORIGIN_NONE,
	                                    &consumer->source, &problem)) {
		consumer->source = NULL;
		return fail(consumer, CONSUME_FAILED, problem);
	}
	service_log(&consumer->service, SERVICE_INFO, "started", "source=%s", consumer->settings.class->name);
	return true;
}

/* So many of the deliveries that their payloads fit into one transaction; at least one. */
static size_t fitting(source_message *const *deliveries, size_t count)
{
	size_t bytes = 0;
	size_t taken = 0;

	for (; taken < count; taken++) {
		bytes += deliveries[taken]->payload.length;
		if (taken > 0 && bytes > BATCH_BYTES_MAX) {
			break;
		}
	}
	return taken;
}

/* Applies and acknowledges all, or gives back what it did not come to. */
static void work(consumer *consumer, source_message *const *deliveries, size_t count)
{
	const settings *settings = &consumer->settings;
	char problem[256] = "";

	for (size_t done = 0; done < count;) {
		size_t size = fitting(deliveries + done, count - done);
		arena_clear(&consumer->arena);
		message *messages = arena_take(&consumer->arena, size * sizeof *messages);
		for (size_t i = 0; i < size; i++) {
			message_identify(deliveries[done + i], &settings->id_from, &settings->key_from, &consumer->arena,
			                 &messages[i]);
		}
		if ((done > 0 && service_stopping()) || !apply_batch(consumer, messages, size)) {
			settings->class->give_back(consumer->source, deliveries + done, count - done);
			return;
		}
		consumer_note_source(consumer, settings->class->acknowledge(consumer->source, deliveries + done, size, problem),
		                     problem);
		done += size;
	}
}

static bool is_full(consumer *consumer)
{
	bool full = consumer->parked >= consumer->settings.parked_max;

	if (full && !consumer->full_said) {
		service_log(&consumer->service, SERVICE_ERROR, "full",
		            "parked=%lld parked_max=%lld hint=\"nothing is taken from the broker until fewer are parked: "
		            "pgonce dead list\"",
		            (long long)consumer->parked, (long long)consumer->settings.parked_max);
	} else if (!full && consumer->full_said) {
		service_log(&consumer->service, SERVICE_INFO, "not_full", "parked=%lld", (long long)consumer->parked);
	}
	consumer->full_said = full;
	return full;
}

static void loop(consumer *consumer)
{
	int64_t busy_ms = service_now_ms();
	source_message **deliveries = memory_take((size_t)consumer->settings.batch * sizeof(source_message *));

	while (!service_stopping() && consumer_ready(consumer) && parked_work(consumer)) {
		size_t count = 0;
		char problem[256] = "";
		if (is_full(consumer)) {
			consumer_keep_alive(consumer);
			(void)service_sleep(FULL_MS);
			busy_ms = service_now_ms();
			continue;
		}
		int wait_ms = consumer->parked > 0 ? FETCH_MS / 2 : FETCH_MS;
		source_state state = consumer->settings.class->fetch(consumer->source, (size_t)consumer->settings.batch,
		                                                     wait_ms, deliveries, &count, problem);
		consumer_note_source(consumer, state, problem);
		if (count > 0 || state != SOURCE_OK) {
			busy_ms = service_now_ms();
		}
		if (count > 0) {
			consumer_took(consumer, count);
			work(consumer, deliveries, count);
			consumer_report(consumer, false);
		} else if (consumer->job->once && service_now_ms() - busy_ms >= IDLE_MS) {
			break;
		} else {
			consumer_report(consumer, false);
		}
	}
	consumer_report(consumer, true);
	free(deliveries);
}

consume_result consume_run(const consume_job *job, char **problem)
{
	consumer *consumer = memory_take(sizeof *consumer);

	consumer->job = job;
	consumer->reported_ms = service_now_ms();
	consumer->service = (service){.kind = "consume", .name = job->section->name};
	if (!settings_read(job->config, job->section, &consumer->settings, problem)) {
		free(consumer);
		return CONSUME_FAILED;
	}
	consumer->database = (database){.service = &consumer->service,
	                                .conninfo = job->conninfo,
	                                .prepares = consumer->settings.prepare != 0,
	                                .alive = consumer_keep_alive,
	                                .argument = consumer};
	add_metrics(&consumer->metrics, job->metrics, job->section->name);
	if (consumer->settings.id_from.kind == ORIGIN_COORDINATES) {
		service_log(&consumer->service, SERVICE_WARNING, "id",
		            "hint=\"id = coordinates: a message that its producer sends twice is applied twice; use an id of "
		            "its own\"");
	}
	service_job(1);
	if (consumer->settings.endpoint != NULL) {
		http_work(consumer);
	} else {
		loop(consumer);
	}
	service_job(-1);
	close_source(consumer);
	database_disconnect(&consumer->database);
	service_log(&consumer->service, SERVICE_INFO, "stopped", "applied=%llu duplicates=%llu",
	            (unsigned long long)consumer->applied, (unsigned long long)consumer->duplicates);
	consume_result result = consumer->result;
	*problem = consumer->problem;
	free(consumer->database.handle_text);
	arena_clear(&consumer->arena);
	free(consumer);
	return result;
}
