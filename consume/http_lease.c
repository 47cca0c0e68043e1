/* SPDX-License-Identifier: PostgreSQL */
/* http_lease.c: claims messages, calls, renews, stores the outcomes. Called by handler_http.c. */
#include "handler_http.h"

#include <stdio.h>
#include <string.h>

enum {
	ACTIVE_WAIT_MS = 2000,
	BACKOFF_FIRST_MS = 200,
	BACKOFF_MOST_MS = 10000
};

/* Another attempt holds its lease. */
static const parking waiting = {.state = PARKED_WAITING, .wait_ms = ACTIVE_WAIT_MS};

/* The endpoint is called at least once and gets the message's id: if a consumer is lost, its call
 * is repeated. */
static once_intent intent_of(const consumer *consumer, const item *item)
{
	return (once_intent){.tenant = consumer->settings.tenant,
	                     .scope = consumer->speaker.name,
	                     .key = item->message.id,
	                     .on_stale = ONCE_ON_STALE_TAKEOVER,
	                     .traceparent = item->message.traceparent};
}

static once_intent *intents_of(consumer *consumer, item *const *items, size_t count, int **fences)
{
	once_intent *intents = arena_take(&consumer->arena, count * sizeof *intents);

	*fences = arena_take(&consumer->arena, count * sizeof **fences);
	for (size_t i = 0; i < count; i++) {
		intents[i] = intent_of(consumer, items[i]);
		(*fences)[i] = items[i]->fence;
	}
	return intents;
}

/* The library's answer. True, or false with *failure; the error is freed. */
static bool is_done(once_code code, once_error *const *error, failure *failure)
{
	if (code != ONCE_OK) {
		failure_of_error(*error, failure);
		once_error_free(*error);
	}
	return code == ONCE_OK;
}

/* ---- claiming and calling */

static void start_call(handler *handler, item *item, const once_answer *answer)
{
	const settings *settings = &handler->consumer->settings;

	item->fence = once_answer_fence(answer);
	item->renew_at_ms = runtime_now_ms() + settings->lease_ms / 3;
	http_call_clear(&item->call);
	arena_clear(&item->call_arena);
	http_request_make(&item->message, settings->endpoint, &item->call_arena, &item->call);
	item->call.user = item;
	window_move(&handler->window, item, ITEM_CALLING);
	if (!http_start(handler->client, &item->call)) {
		item->call.result = HTTP_UNSENT;
		snprintf(item->call.problem, sizeof item->call.problem, "the call could not be started");
		window_move(&handler->window, item, ITEM_ANSWERED);
	}
}

/* The contract refuses the claim. False: *failure, not the message's fault. */
static bool heed_refusal(const message *message, const once_answer *answer, parking *parking, failure *failure)
{
	const char *code = once_answer_error_code(answer);
	const char *text = once_answer_error_message(answer);

	if (code != NULL && strcmp(code, CODE_NO_DAY) == 0) {
		failure_set(failure, FAILURE_PASSING, "the day of the id %s has no partition yet", message->id);
		snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", code);
		return false;
	}
	*parking = (struct parking){
	    .state = PARKED_RETRYING, .counted = true, .error = text == NULL ? "" : text, .sqlstate = code};
	return true;
}

/* READY -> CALLING, APPLIED or PARKING. */
static bool heed_claim(handler *handler, item *item, const once_answer *answer, failure *failure)
{
	consumer *consumer = handler->consumer;
	message *message = &item->message;
	parking parking = {.state = PARKED_DEAD};

	switch (once_answer_verdict(answer)) {
	case ONCE_REPLAY_SUCCESS:
		consumer->counts.open.duplicates++;
		window_move(&handler->window, item, ITEM_APPLIED);
		return true;
	case ONCE_PROCESSING_ACTIVE:
		parking = waiting;
		break;
	case ONCE_FINAL_FAILURE_STORED:
		parking.sqlstate = "P4030";
		parking.error = "its intent failed for good: see pgonce show, pgonce resolve";
		break;
	case ONCE_IN_DOUBT_STORED:
		parking.sqlstate = "P4031";
		parking.error = "the endpoint may or may not have applied it: find out, then decide with pgonce resolve";
		break;
	case ONCE_MISMATCHED:
		message_refuse(message, &item->arena, CODE_REUSED_ID,
		               "its id came before with another payload: its producer reuses ids");
		parking.sqlstate = CODE_REUSED_ID;
		parking.error = message->unusable;
		break;
	case ONCE_EXPIRED_KEY:
		parking.sqlstate = CODE_EXPIRED;
		parking.error = EXPIRED_ID;
		break;
	default:
		if (once_answer_may_run(answer)) {
			start_call(handler, item, answer);
			return true;
		}
		if (!heed_refusal(message, answer, &parking, failure)) {
			return false;
		}
	}
	window_park(&handler->window, item, parking);
	return true;
}

bool lease_call(handler *handler, failure *failure)
{
	consumer *consumer = handler->consumer;
	size_t most = (size_t)consumer->settings.in_flight - http_in_flight(handler->client);
	bool rests = runtime_stopping() || runtime_now_ms() < handler->calls_from_ms;
	size_t count = 0;
	once_answers *answers = NULL;
	once_error *error = NULL;

	item **items = window_callable(&handler->window, rests ? 0 : most, &count);
	if (count == 0) {
		return true;
	}
	once_fingerprint *fingerprints = arena_take(&consumer->arena, count * sizeof *fingerprints);
	int *no_fences = NULL; /* none yet */
	const once_intent *intents = intents_of(consumer, items, count, &no_fences);
	for (size_t i = 0; i < count; i++) {
		fingerprints[i] = items[i]->message.fingerprint;
	}
	bool good = is_done(once_claim_many(consumer->database.session, consumer->settings.tenant, count, intents,
	                                    fingerprints, handler->owner, consumer->settings.lease_ms, 0, &answers, &error),
	                    &error, failure);
	/* Each answer is processed, even if another fails: each claim made is ours. */
	for (size_t i = 0; answers != NULL && i < count; i++) {
		good = heed_claim(handler, items[i], once_answers_at(answers, i), failure) && good;
	}
	once_answers_free(answers);
	counts_commit(&consumer->counts);
	return good;
}

bool lease_renew(handler *handler, failure *failure)
{
	consumer *consumer = handler->consumer;
	const window *window = &handler->window;
	item **due = arena_take(&consumer->arena, (window->count + 1) * sizeof(item *));
	int64_t now_ms = runtime_now_ms();
	size_t count = 0;
	once_error *error = NULL;

	for (size_t i = 0; i < window->count; i++) {
		item *item = window->items[i];
		if ((item->state == ITEM_CALLING || item->state == ITEM_ANSWERED) && item->renew_at_ms <= now_ms) {
			due[count++] = item;
		}
	}
	bool *held = arena_take(&consumer->arena, (count + 1) * sizeof *held);
	int *fences = NULL;
	const once_intent *intents = intents_of(consumer, due, count, &fences);
	if (count > 0 && !is_done(once_renew_many(consumer->database.session, consumer->settings.tenant, count, intents,
	                                          fences, consumer->settings.lease_ms, held, &error),
	                          &error, failure)) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		due[i]->renew_at_ms = now_ms + consumer->settings.lease_ms / 3;
	}
	return true;
}

/* ---- answers */

/* The call never arrived: READY again; the endpoint gets a pause. */
static bool give_claim_back(handler *handler, item *item, failure *failure)
{
	const once_intent intent = intent_of(handler->consumer, item);
	char quoted[RUNTIME_QUOTE_BYTES];
	once_error *error = NULL;
	bool held = false;

	if (!is_done(once_release(handler->consumer->database.session, &intent, item->fence, &held, &error), &error,
	             failure)) {
		return false;
	}
	window_move(&handler->window, item, ITEM_READY);
	handler->away++;
	metric_set(handler->consumer->counts.endpoint_away, 1);
	handler->calls_from_ms = runtime_now_ms() + runtime_backoff_ms(handler->away, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
	if ((handler->away & (handler->away - 1)) == 0) {
		runtime_log(&handler->consumer->speaker, RUNTIME_WARNING, "endpoint", "failures=%d problem=%s", handler->away,
		            runtime_quote(item->call.problem, quoted));
	}
	return true;
}

/* The body is larger than the scope stores: the outcome is reported again without it. */
static bool drop_body(const consumer *consumer, item *item, const once_answer *answer)
{
	const char *code = once_answer_error_code(answer);
	char quoted[RUNTIME_QUOTE_BYTES];

	if (code == NULL || strcmp(code, CODE_TOO_LARGE) != 0 || item->call.response_length == 0) {
		return false;
	}
	runtime_log(
	    &consumer->speaker, RUNTIME_WARNING, "answer_dropped",
	    "message=%s bytes=%zu hint=\"its scope stores less: set_scope's response_bytes_max, or response_max here\"",
	    runtime_quote(item->message.id, quoted), item->call.response_length);
	item->call.response_length = 0;
	return true;
}

/* ANSWERED -> APPLIED or PARKING; or it is reported again. */
static void heed_report(handler *handler, item *item, const once_answer *answer)
{
	const once_verdict verdict = once_answer_verdict(answer);
	int64_t wait_ms = item->call.retry_after_ms;

	if (drop_body(handler->consumer, item, answer)) {
		return;
	}
	if (verdict != ONCE_STORED && verdict != ONCE_REPEATED) {
		/* The lease was lost meanwhile. The next claim shows what happened to the message. */
		window_park(&handler->window, item, waiting);
		return;
	}
	if (handler->away > 0) {
		handler->away = 0;
		metric_set(handler->consumer->counts.endpoint_away, 0);
	}
	if (item->answer == ANSWER_APPLIED) {
		handler->consumer->counts.open.applied++;
		window_move(&handler->window, item, ITEM_APPLIED);
	} else {
		window_park(&handler->window, item,
		            (parking){.state = PARKED_RETRYING,
		                      .counted = item->answer == ANSWER_FAILED,
		                      .wait_ms = wait_ms > 0 ? wait_ms : 0,
		                      .error = item->failure.text,
		                      .sqlstate = item->failure.sqlstate});
	}
}

/* Stores the outcomes of applied messages, or of the others, in one statement. */
static bool report(handler *handler, bool applied, failure *failure)
{
	consumer *consumer = handler->consumer;
	arena *arena = &consumer->arena;
	size_t answered = 0;
	size_t count = 0;
	item **items = window_list(&handler->window, ITEM_ANSWERED, &answered);
	once_outcome *outcomes = arena_take(arena, (answered + 1) * sizeof *outcomes);
	once_failure *failures = arena_take(arena, (answered + 1) * sizeof *failures);
	once_answers *answers = NULL;
	once_error *error = NULL;

	for (size_t i = 0; i < answered; i++) {
		if ((items[i]->answer == ANSWER_APPLIED) == applied) {
			items[count] = items[i];
			outcomes[count] = http_request_outcome(&items[i]->call, &items[i]->failure, &items[i]->call_arena);
			/* the endpoint knows the key: sending it again is safe */
			failures[count++] = ONCE_FAILURE_RETRYABLE;
		}
	}
	if (count == 0) {
		return true;
	}
	int *fences = NULL;
	const once_intent *intents = intents_of(consumer, items, count, &fences);
	once_session *session = consumer->database.session;
	const char *tenant = consumer->settings.tenant;
	once_code code =
	    applied ? once_complete_many(session, tenant, count, intents, fences, outcomes, &answers, &error)
	            : once_fail_many(session, tenant, count, intents, fences, failures, outcomes, &answers, &error);
	if (!is_done(code, &error, failure)) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		heed_report(handler, items[i], once_answers_at(answers, i));
	}
	once_answers_free(answers);
	counts_commit(&consumer->counts);
	return true;
}

bool lease_settle(handler *handler, failure *failure)
{
	size_t count = 0;
	item **items = window_list(&handler->window, ITEM_ANSWERED, &count);

	for (size_t i = 0; i < count; i++) {
		items[i]->answer = http_request_result(&items[i]->call, &items[i]->failure);
		if (items[i]->answer == ANSWER_UNSENT && !give_claim_back(handler, items[i], failure)) {
			return false;
		}
	}
	return report(handler, true, failure) && report(handler, false, failure);
}
