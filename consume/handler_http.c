/* SPDX-License-Identifier: PostgreSQL */
/*
 * handler_http.c: the second way to apply messages: an HTTP endpoint, under a lease. A window of messages is at work: each is looked up
 * (parked? behind one that is?), claimed, POSTed, and its outcome stored; of one key one at a time. The broker is told of a message when
 * its outcome is stored or it is parked, and all before it too.
 */
#include "consumer.h"
#include "http_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	FETCH_MS = 250, /* the wish to stop is heard in between */
	POLL_MS = 20,   /* for answers, while there is other work */
	LOOK_MS = 100,  /* for parked messages that are due */
	COUNT_MS = 5000,
	IDLE_MS = 2000,
	ACTIVE_WAIT_MS = 2000, /* another attempt holds it */
	BACKOFF_FIRST_MS = 200,
	BACKOFF_MOST_MS = 10000
};

typedef enum item_state {
	ITEM_NEW,      /* just come: is it parked, or behind one that is? */
	ITEM_READY,    /* its turn is when none of its key before it is at work */
	ITEM_CALLING,  /* claimed, and sent */
	ITEM_ANSWERED, /* the outcome is to be stored */
	ITEM_DONE
} item_state;

typedef struct item {
	message message;
	item_state state;
	arena arena;
	http_call call;
	failure failure;
	answer_kind answer;
	int fence;
	int64_t renew_at_ms;
	parking parking; /* how it is to be parked, where `parks` */
	bool parks;
} item;

typedef struct window {
	consumer *consumer;
	http_client *client;
	item **items; /* in the order in which they came; those that were parked among them */
	size_t count, room;
	int64_t look_due_ms;
	int64_t calls_from_ms; /* the endpoint is away until then */
	int away;              /* calls in a row that did not arrive */
	char owner[64];
} window;

static bool is_parked(const item *item)
{
	return item->message.delivery == NULL;
}

static bool same_key(const item *a, const item *b)
{
	return a->message.key != NULL && b->message.key != NULL && strcmp(a->message.key, b->message.key) == 0;
}

/* ---- the window */

static item *add_item(window *window)
{
	if (window->count == window->room) {
		window->room = window->room == 0 ? 64 : 2 * window->room;
		window->items = memory_grow(window->items, window->room * sizeof(item *));
	}
	item *added = memory_take(sizeof *added);
	window->items[window->count++] = added;
	return added;
}

static void free_item(item *item)
{
	http_call_clear(&item->call);
	arena_clear(&item->arena);
	free(item);
}

/* Tells the broker of what is done, as far as all before it is; forgets what is done. */
static void acknowledge(window *window)
{
	consumer *consumer = window->consumer;
	source_message **done = memory_take((window->count + 1) * sizeof(source_message *));
	size_t done_count = 0;
	size_t kept = 0;
	bool all_before = true;
	char problem[256];

	for (size_t i = 0; i < window->count; i++) {
		item *item = window->items[i];
		all_before = all_before && (is_parked(item) || item->state == ITEM_DONE);
		if (item->state == ITEM_DONE && (is_parked(item) || all_before)) {
			if (!is_parked(item)) {
				done[done_count++] = item->message.delivery;
			}
			free_item(item);
		} else {
			window->items[kept++] = item;
		}
	}
	window->count = kept;
	if (done_count > 0) {
		(void)consumer->settings.class->acknowledge(consumer->source, done, done_count, problem);
	}
	free(done);
}

/* What is not done goes back to the broker, calls are broken off; leases that are held run out. */
static void drop(window *window)
{
	consumer *consumer = window->consumer;
	source_message **back = memory_take((window->count + 1) * sizeof(source_message *));
	size_t count = 0;

	http_client_free(window->client);
	window->client = NULL;
	for (size_t i = 0; i < window->count; i++) {
		if (!is_parked(window->items[i])) {
			back[count++] = window->items[i]->message.delivery;
		}
		free_item(window->items[i]);
	}
	window->count = 0;
	if (count > 0) {
		consumer->settings.class->give_back(consumer->source, back, count);
	}
	free(back);
}

/* ---- statements */

/* Stores all that are to be parked, in the order in which they came. */
static bool stored(window *window, failure *failure)
{
	parking *parkings = memory_take((window->count + 1) * sizeof *parkings);
	size_t count = 0;

	for (size_t i = 0; i < window->count; i++) {
		if (window->items[i]->parks && window->items[i]->state != ITEM_DONE) {
			parkings[count++] = window->items[i]->parking;
		}
	}
	bool good = count == 0 || parked_store(window->consumer, parkings, count, failure);
	for (size_t i = 0; i < window->count && good && count > 0; i++) {
		item *item = window->items[i];
		if (item->parks && item->state != ITEM_DONE) {
			window->consumer->parked += !is_parked(item);
			item->state = ITEM_DONE;
		}
	}
	free(parkings);
	return good;
}

/* It waits: and so do those of its key that came after it. */
static void park(window *window, item *item, parking parking)
{
	bool passed = false;
	bool frees_key = strcmp(parking.state, "dead") == 0 && window->consumer->settings.on_dead == ON_DEAD_SKIP;

	item->parking = parking;
	item->parking.message = &item->message;
	item->parks = true;
	for (size_t i = 0; i < window->count && !frees_key; i++) {
		struct item *other = window->items[i];
		if (passed && same_key(item, other) && (other->state == ITEM_NEW || other->state == ITEM_READY) &&
		    !other->parks) {
			other->parking = parked_waiting(&other->message, 0);
			other->parks = true;
		}
		passed = passed || other == item;
	}
}

static void refuse(window *window, item *item, const char *code, const char *text)
{
	message_refuse(&item->message, &item->arena, code, "%s", text);
	park(window, item, parked_dead(window->consumer, &item->message, code, item->message.unusable));
}

/* New ones: those that are parked are done, those behind a parked one are parked. */
static bool look(window *window, failure *failure)
{
	consumer *consumer = window->consumer;
	parameters given = {0};
	size_t count = 0;

	parameters_text(&given, consumer->service.name);
	parameters_text(&given, consumer->settings.tenant);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int keys = parameters_array(&given, PARAMETER_TEXT);
	parameters_boolean(&given, consumer->settings.on_dead == ON_DEAD_SKIP);
	for (size_t i = 0; i < window->count; i++) {
		if (window->items[i]->state == ITEM_NEW) {
			parameters_add_text(&given, ids, window->items[i]->message.id);
			parameters_add_text(&given, keys, window->items[i]->message.key);
			count++;
		}
	}
	if (count == 0) {
		parameters_free(&given);
		return true;
	}
	PGresult *result = database_query(&consumer->database, SQL_LOOK, &given, failure);
	if (result == NULL) {
		return false;
	}
	int row = 0;
	for (size_t i = 0; i < window->count && row < PQntuples(result); i++) {
		item *item = window->items[i];
		if (item->state != ITEM_NEW) {
			continue;
		}
		const char *verdict = PQgetvalue(result, row++, 1);
		if (strcmp(verdict, "parked") == 0) {
			item->state = ITEM_DONE;
			continue;
		}
		item->state = ITEM_READY;
		if (item->parks) {
			continue; /* behind one of the window */
		}
		if (strcmp(verdict, "blocked") == 0) {
			park(window, item, parked_waiting(&item->message, 0));
		} else if (item->message.unusable != NULL) {
			park(window, item,
			     parked_dead(consumer, &item->message, item->message.unusable_code, item->message.unusable));
		}
	}
	PQclear(result);
	return true;
}

/* ---- claiming and calling */

static uint64_t hash_of(const char *text)
{
	uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */

	for (; *text != '\0'; text++) {
		hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
	}
	return hash;
}

/* Marks the key as at work; true where it was already. Two keys of one hash only wait for each other. */
static bool is_busy(uint64_t *keys, size_t room, const char *key)
{
	uint64_t hash = hash_of(key) | 1;
	size_t at = (size_t)(hash % room);

	for (; keys[at] != 0; at = (at + 1) % room) {
		if (keys[at] == hash) {
			return true;
		}
	}
	keys[at] = hash;
	return false;
}

/* Those that can be called now: ready, and none of their key before them at work. */
static size_t choose(const window *window, item **chosen, size_t most)
{
	size_t room = 2 * window->count + 1;
	uint64_t *keys = memory_take(room * sizeof *keys);
	size_t count = 0;

	for (size_t i = 0; i < window->count && count < most; i++) {
		item *item = window->items[i];
		if (item->state == ITEM_DONE) {
			continue;
		}
		bool waits = item->message.key != NULL && is_busy(keys, room, item->message.key);
		if (!waits && item->state == ITEM_READY && !item->parks) {
			chosen[count++] = item;
		}
	}
	free(keys);
	return count;
}

static once_intent *intents_of(window *window, item *const *items, size_t count)
{
	once_intent *intents = memory_take((count + 1) * sizeof *intents);

	for (size_t i = 0; i < count; i++) {
		intents[i] = (once_intent){.tenant = window->consumer->settings.tenant,
		                           .scope = window->consumer->service.name,
		                           .key = items[i]->message.id,
		                           .traceparent = items[i]->message.traceparent};
	}
	return intents;
}

static bool forget_parked(window *window, item *item, failure *failure)
{
	const message *const done = &item->message;

	if (is_parked(item)) {
		if (!parked_applied(window->consumer, &done, 1, failure)) {
			return false;
		}
		window->consumer->parked -= window->consumer->parked > 0;
	}
	item->state = ITEM_DONE;
	return true;
}

static void start_call(window *window, item *item, const once_answer *answer)
{
	const settings *settings = &window->consumer->settings;

	item->fence = once_answer_fence(answer);
	item->renew_at_ms = service_now_ms() + settings->lease_ms / 3;
	http_call_clear(&item->call);
	http_request_make(&item->message, settings->endpoint, &item->arena, &item->call);
	item->call.user = item;
	item->state = ITEM_CALLING;
	if (!http_start(window->client, &item->call)) {
		item->call.result = HTTP_UNSENT;
		snprintf(item->call.problem, sizeof item->call.problem, "the call could not be started");
		item->state = ITEM_ANSWERED;
	}
}

static bool took(window *window, item *item, const once_answer *answer, failure *failure)
{
	failure_set(&item->failure, FAILURE_FAULT, "%s",
	            once_answer_error_message(answer) == NULL ? "" : once_answer_error_message(answer));
	switch (once_answer_verdict(answer)) {
	case ONCE_REPLAY_SUCCESS:
		consumer_count(window->consumer, 0, 1);
		return forget_parked(window, item, failure);
	case ONCE_PROCESSING_ACTIVE:
		park(window, item, parked_waiting(&item->message, ACTIVE_WAIT_MS));
		return true;
	case ONCE_FINAL_FAILURE_STORED:
		park(window, item,
		     parked_dead(window->consumer, &item->message, "P4030",
		                 "its intent failed for good: pgonce show; pgonce resolve"));
		return true;
	case ONCE_IN_DOUBT_STORED:
		park(window, item,
		     parked_dead(window->consumer, &item->message, "P4031",
		                 "nobody knows whether it was applied: find out, then pgonce resolve"));
		return true;
	case ONCE_MISMATCHED:
		refuse(window, item, CODE_REUSED_ID, "its id came before with another payload: its producer reuses ids");
		return true;
	case ONCE_EXPIRED_KEY:
		park(window, item, parked_dead(window->consumer, &item->message, CODE_EXPIRED, EXPIRED_ID));
		return true;
	default:
		break;
	}
	if (once_answer_may_run(answer)) {
		start_call(window, item, answer);
		return true;
	}
	const char *code = once_answer_error_code(answer) == NULL ? "" : once_answer_error_code(answer);
	if (strcmp(code, CODE_NO_DAY) == 0) {
		failure_set(failure, FAILURE_PASSING, "the day of the id %s has no partition: run the keeper",
		            item->message.id);
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", code);
		return false;
	}
	snprintf(item->failure.sqlstate, sizeof item->failure.sqlstate, "%s", code);
	park(window, item, parked_after_failure(window->consumer, &item->message, &item->failure, true, 0));
	return true;
}

static bool claim(window *window, failure *failure)
{
	consumer *consumer = window->consumer;
	size_t flying = http_in_flight(window->client);
	size_t most = (size_t)consumer->settings.in_flight > flying ? (size_t)consumer->settings.in_flight - flying : 0;
	item **chosen = memory_take((most + 1) * sizeof(item *));
	size_t count = service_stopping() || service_now_ms() < window->calls_from_ms ? 0 : choose(window, chosen, most);
	once_fingerprint *fingerprints = memory_take((count + 1) * sizeof *fingerprints);
	once_intent *intents = intents_of(window, chosen, count);
	once_answers *answers = NULL;
	once_error *error = NULL;
	bool good = true;

	for (size_t i = 0; i < count; i++) {
		fingerprints[i] = chosen[i]->message.fingerprint;
	}
	if (count > 0 &&
	    once_claim_many(consumer->database.session, consumer->settings.tenant, count, intents, fingerprints,
	                    window->owner, consumer->settings.lease_ms, 0, &answers, &error) != ONCE_OK) {
		failure_of_error(error, failure);
		once_error_free(error);
		good = false;
	}
	for (size_t i = 0; i < count && good; i++) {
		good = took(window, chosen[i], once_answers_at(answers, i), failure);
	}
	once_answers_free(answers);
	free(intents);
	free(fingerprints);
	free(chosen);
	return good;
}

/* Heartbeats of what is at work. A lease that is lost shows when the outcome is refused. */
static bool renew(window *window, failure *failure)
{
	consumer *consumer = window->consumer;
	item **due = memory_take((window->count + 1) * sizeof(item *));
	size_t count = 0;
	int64_t now_ms = service_now_ms();

	for (size_t i = 0; i < window->count; i++) {
		item *item = window->items[i];
		if ((item->state == ITEM_CALLING || item->state == ITEM_ANSWERED) && item->renew_at_ms <= now_ms) {
			due[count++] = item;
		}
	}
	once_intent *intents = intents_of(window, due, count);
	int *fences = memory_take((count + 1) * sizeof *fences);
	bool *held = memory_take((count + 1) * sizeof *held);
	once_error *error = NULL;
	for (size_t i = 0; i < count; i++) {
		fences[i] = due[i]->fence;
	}
	bool good = count == 0 || once_renew_many(consumer->database.session, consumer->settings.tenant, count, intents,
	                                          fences, consumer->settings.lease_ms, held, &error) == ONCE_OK;
	if (!good) {
		failure_of_error(error, failure);
		once_error_free(error);
	}
	for (size_t i = 0; i < count && good; i++) {
		due[i]->renew_at_ms = now_ms + consumer->settings.lease_ms / 3;
	}
	free(held);
	free(fences);
	free(intents);
	free(due);
	return good;
}

/* ---- answers */

static void collect(window *window, int timeout_ms)
{
	for (http_call *call = http_poll(window->client, timeout_ms); call != NULL; call = http_poll(window->client, 0)) {
		item *item = call->user;
		item->state = ITEM_ANSWERED;
	}
}

/* The report was not taken: the lease was lost meanwhile. What became of it shows at the next claim. */
static bool is_taken(const once_answer *answer)
{
	return once_answer_verdict(answer) == ONCE_STORED || once_answer_verdict(answer) == ONCE_REPEATED;
}

static void unsent(window *window, item *item)
{
	char quoted[SERVICE_QUOTE_BYTES];

	window->away++;
	window->calls_from_ms = service_now_ms() + service_backoff_ms(window->away, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
	if ((window->away & (window->away - 1)) == 0) {
		service_log(&window->consumer->service, SERVICE_WARNING, "endpoint", "failures=%d problem=%s", window->away,
		            service_quote(item->call.problem, quoted));
	}
}

/* It never arrived: the claim is given back, and the message is as before. */
static bool release(window *window, item *item, failure *failure)
{
	const once_intent intent = {
	    .tenant = window->consumer->settings.tenant, .scope = window->consumer->service.name, .key = item->message.id};
	once_error *error = NULL;
	bool held = false;

	if (once_release(window->consumer->database.session, &intent, item->fence, &held, &error) != ONCE_OK) {
		failure_of_error(error, failure);
		once_error_free(error);
		return false;
	}
	unsent(window, item);
	item->state = ITEM_READY;
	return true;
}

/* The answer's body is more than the scope stores: the outcome is what counts, and is reported again without it. */
static bool drop_body(window *window, item *item, const once_answer *answer)
{
	const char *code = once_answer_error_code(answer);
	char quoted[SERVICE_QUOTE_BYTES];

	if (code == NULL || strcmp(code, CODE_TOO_LARGE) != 0 || item->call.response_length == 0) {
		return false;
	}
	service_log(
	    &window->consumer->service, SERVICE_WARNING, "answer_dropped",
	    "message=%s bytes=%zu hint=\"its scope stores less: set_scope's response_bytes_max, or response_max here\"",
	    service_quote(item->message.id, quoted), item->call.response_length);
	item->call.response_length = 0;
	return true;
}

static bool settle_one(window *window, item *item, const once_answer *answer, failure *failure)
{
	int64_t wait_ms = item->call.retry_after_ms;

	if (drop_body(window, item, answer)) {
		return true;
	}
	if (!is_taken(answer)) {
		park(window, item, parked_waiting(&item->message, ACTIVE_WAIT_MS));
		return true;
	}
	window->away = 0;
	if (item->answer == ANSWER_APPLIED) {
		consumer_count(window->consumer, 1, 0);
		return forget_parked(window, item, failure);
	}
	park(window, item,
	     parked_after_failure(window->consumer, &item->message, &item->failure, item->answer == ANSWER_FAILED,
	                          wait_ms > 0 ? wait_ms : 0));
	return true;
}

/* Stores the outcomes of those with this kind of answer, in one statement. */
static bool report(window *window, bool applied, failure *failure)
{
	consumer *consumer = window->consumer;
	item **items = memory_take((window->count + 1) * sizeof(item *));
	once_outcome *outcomes = memory_take((window->count + 1) * sizeof *outcomes);
	int *fences = memory_take((window->count + 1) * sizeof *fences);
	once_failure *failures = memory_take((window->count + 1) * sizeof *failures);
	once_answers *answers = NULL;
	once_error *error = NULL;
	size_t count = 0;

	for (size_t i = 0; i < window->count; i++) {
		item *item = window->items[i];
		if (item->state == ITEM_ANSWERED && !item->parks && (item->answer == ANSWER_APPLIED) == applied) {
			outcomes[count] = http_request_outcome(&item->call, &item->failure, &item->arena);
			fences[count] = item->fence;
			failures[count] = ONCE_FAILURE_RETRYABLE; /* the endpoint knows the key: to send it again is safe */
			items[count++] = item;
		}
	}
	once_intent *intents = intents_of(window, items, count);
	once_code code = count == 0 ? ONCE_OK
	                 : applied  ? once_complete_many(consumer->database.session, consumer->settings.tenant, count,
	                                                 intents, fences, outcomes, &answers, &error)
	                            : once_fail_many(consumer->database.session, consumer->settings.tenant, count, intents,
	                                             fences, failures, outcomes, &answers, &error);
	bool good = code == ONCE_OK;
	if (!good) {
		failure_of_error(error, failure);
		once_error_free(error);
	}
	for (size_t i = 0; i < count && good; i++) {
		good = settle_one(window, items[i], once_answers_at(answers, i), failure);
	}
	once_answers_free(answers);
	free(intents);
	free(failures);
	free(fences);
	free(outcomes);
	free(items);
	return good;
}

static bool settle(window *window, failure *failure)
{
	for (size_t i = 0; i < window->count; i++) {
		item *item = window->items[i];
		if (item->state == ITEM_ANSWERED && !item->parks) {
			item->answer = http_request_result(&item->call, &item->failure);
			if (item->answer == ANSWER_UNSENT && !release(window, item, failure)) {
				return false;
			}
		}
	}
	return report(window, true, failure) && report(window, false, failure);
}

/* ---- what comes */

static bool is_at_work(const window *window, const char *id)
{
	for (size_t i = 0; i < window->count; i++) {
		if (window->items[i]->state != ITEM_DONE && strcmp(window->items[i]->message.id, id) == 0) {
			return true;
		}
	}
	return false;
}

/* A copy that lives as long as the item. */
static void keep_message(item *item, const message *from)
{
	arena *arena = &item->arena;

	item->message = *from;
	item->message.id = arena_text(arena, from->id, strlen(from->id));
	item->message.topic = arena_text(arena, from->topic, strlen(from->topic));
	item->message.key = from->key == NULL ? NULL : arena_text(arena, from->key, strlen(from->key));
	item->message.headers = arena_text(arena, from->headers, strlen(from->headers));
	item->message.traceparent =
	    from->traceparent == NULL ? NULL : arena_text(arena, from->traceparent, strlen(from->traceparent));
	item->message.payload.data =
	    from->payload.data == NULL ? NULL : arena_text(arena, from->payload.data, from->payload.length);
	item->state = ITEM_READY;
	if (from->unusable != NULL) {
		item->parks = true;
	}
}

static bool take_due(window *window, failure *failure)
{
	consumer *consumer = window->consumer;
	message *messages = NULL;
	size_t count = 0;
	int64_t asked_ms = service_now_ms();

	if (asked_ms - consumer->counted_at_ms >= COUNT_MS && !parked_count(consumer, failure)) {
		return false;
	}
	if (consumer->parked == 0 || asked_ms < window->look_due_ms || service_stopping()) {
		return true;
	}
	if (!parked_due(consumer, (int)consumer->settings.in_flight, &messages, &count, failure)) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		if (!is_at_work(window, messages[i].id)) {
			item *item = add_item(window);
			keep_message(item, &messages[i]);
			if (item->parks) {
				item->parking = parked_dead(consumer, &item->message, messages[i].unusable_code, messages[i].unusable);
				item->parking.message = &item->message;
			}
		}
	}
	window->look_due_ms = service_now_ms() + LOOK_MS + 10 * (service_now_ms() - asked_ms);
	return true;
}

static source_state take_new(window *window, bool *came)
{
	consumer *consumer = window->consumer;
	const settings *settings = &consumer->settings;
	size_t space = (size_t)settings->prefetch > window->count ? (size_t)settings->prefetch - window->count : 0;
	size_t most = consumer->parked >= settings->parked_max || service_stopping() ? 0 : space;
	source_message **deliveries = memory_take((most + 1) * sizeof(source_message *));
	size_t count = 0;
	char problem[256] = "";

	source_state state = settings->class->fetch(consumer->source, most, window->count == 0 && most > 0 ? FETCH_MS : 0,
	                                            deliveries, &count, problem);
	for (size_t i = 0; i < count; i++) {
		item *item = add_item(window);
		message_identify(deliveries[i], &settings->id_from, &settings->key_from, &item->arena, &item->message);
	}
	free(deliveries);
	consumer_note_source(consumer, state, problem);
	*came = count > 0;
	if (*came) {
		consumer_took(consumer, count);
	}
	return state;
}

static bool fingerprints(window *window, failure *failure)
{
	for (size_t i = 0; i < window->count; i++) {
		item *item = window->items[i];
		if (item->state == ITEM_NEW && !consumer_prepare_messages(window->consumer, &item->message, 1, failure)) {
			return false;
		}
	}
	return true;
}

static size_t calls_open(const window *window)
{
	size_t count = 0;

	for (size_t i = 0; i < window->count; i++) {
		count += window->items[i]->state == ITEM_CALLING || window->items[i]->state == ITEM_ANSWERED;
	}
	return count;
}

static bool start_client(window *window)
{
	const settings *settings = &window->consumer->settings;
	const http_settings http = {.timeout_ms = settings->timeout_ms,
	                            .connect_timeout_ms = settings->timeout_ms < 10000 ? settings->timeout_ms : 10000,
	                            .calls_max = settings->in_flight,
	                            .response_bytes_max = settings->response_max,
	                            .allow_private = true, /* the address is the operator's own words */
	                            .allow_plain = true,
	                            .ca_file = settings->ca_file,
	                            .certificate_file = settings->certificate_file,
	                            .key_file = settings->key_file};

	window->client = http_client_new(&http);
	return window->client != NULL;
}

/* One round. False: *failure, of the database. */
static bool round_of(window *window, failure *failure)
{
	bool good = take_due(window, failure) && fingerprints(window, failure) && look(window, failure) &&
	            stored(window, failure) && claim(window, failure) && stored(window, failure) && renew(window, failure);

	collect(window, good && calls_open(window) > 0 ? POLL_MS : 0);
	good = good && settle(window, failure) && stored(window, failure);
	if (good) {
		arena_clear(&window->consumer->arena); /* nothing waits to be stored any more */
	}
	acknowledge(window);
	return good;
}

void http_work(consumer *consumer)
{
	window window = {.consumer = consumer};
	int failures = 0;
	int64_t busy_ms = service_now_ms();

	snprintf(window.owner, sizeof window.owner, "pgonce consume %.40s %d", consumer->service.name, (int)getpid());
	while (!service_stopping() || calls_open(&window) > 0) {
		failure failure = {0};
		bool came = false;
		if (!consumer_connected(consumer)) {
			drop(&window); /* the turn may be another's now */
		}
		if (!consumer_ready(consumer)) {
			break;
		}
		if (window.client == NULL && !start_client(&window)) {
			consumer->result = CONSUME_FAILED;
			consumer->problem = strdup("libcurl cannot start");
			break;
		}
		source_state state = take_new(&window, &came);
		if (came || window.count > 0 || state != SOURCE_OK) {
			busy_ms = service_now_ms();
		}
		if (round_of(&window, &failure)) {
			failures = 0;
			consumer_report(consumer, false);
		} else if (!consumer_pause(consumer, ++failures, &failure)) {
			break;
		}
		if (window.count > 0 && calls_open(&window) == 0) {
			(void)service_sleep(POLL_MS / 4); /* all wait: for the endpoint, or for their turn */
		}
		if (consumer->job->once && window.count == 0 && service_now_ms() - busy_ms >= IDLE_MS) {
			break;
		}
	}
	acknowledge(&window);
	consumer_report(consumer, true);
	drop(&window);
	free(window.items);
}
