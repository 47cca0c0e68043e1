/* SPDX-License-Identifier: PostgreSQL */
/*
 * operation.c: an operation from its submission to its end: checked, copied into one block,
 * answered once. Decides what continues after the submitter has gone: reports and releases are
 * retried; a claim that may have been granted is looked up and given back.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "evented.h"
#include "utf8.h"

/* NULL is not a text, so it is valid. */
static bool is_utf8(const char *text)
{
	const char *or_empty = text_or_empty(text);
	return utf8_is_text(or_empty, strlen(or_empty));
}

/* Arguments that would make a whole batch fail, or can be refused without a server. */
static once_code check_texts(const once_operation *wanted, once_error **error)
{
	const once_outcome *outcome = &wanted->outcome;
	const char *const texts[] = {wanted->owner,      outcome->response_headers, outcome->result_type,
	                             outcome->result_id, outcome->error_code,       outcome->error_message};
	if (!is_utf8(wanted->intent.tenant)) {
		return error_make(error, ONCE_REFUSED, "P4003", false, "the tenant is not UTF-8", NULL, NULL);
	}
	if (kind_names_intent(wanted->kind) &&
	    (wanted->intent.scope == NULL || wanted->intent.scope[0] == '\0' || !is_utf8(wanted->intent.scope))) {
		return error_make(error, ONCE_SCOPE_REQUIRED, "P4000", false, "a scope of 1 to 255 characters is required",
		                  NULL, "Name the kind of operation, for example 'orders'.");
	}
	if (kind_names_intent(wanted->kind) &&
	    (wanted->intent.key == NULL || wanted->intent.key[0] == '\0' || !is_utf8(wanted->intent.key))) {
		return error_make(error, ONCE_KEY_MALFORMED, "P4001", false, "the key is missing or malformed", NULL,
		                  "Send 1 to 255 printable ASCII characters.");
	}
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		if (!is_utf8(texts[i])) {
			return error_usage(error, "a text of the owner or of the outcome is not UTF-8");
		}
	}
	return ONCE_OK;
}

static size_t text_bytes(const char *text)
{
	return text == NULL ? 0 : strlen(text) + 1;
}

/* Copies a text to *at and moves *at past it. NULL stays NULL. */
static const char *place_text(char **at, const char *text)
{
	size_t size = text_bytes(text);
	if (text == NULL) {
		return NULL;
	}
	char *copy = memcpy(*at, text, size);
	*at += size;
	return copy;
}

/* The caller's owner, cut between two characters, so that the unique part fits after it. */
static const char *place_owner(char **at, const char *owner)
{
	const char *copy = place_text(at, owner);
	if (copy != NULL && strlen(copy) > OWNER_BYTES_MAX) {
		char *end = (char *)(uintptr_t)copy + OWNER_BYTES_MAX;
		while (((unsigned char)*end & 0xC0) == 0x80) {
			end--;
		}
		*end = '\0';
	}
	return copy;
}

/* One block with everything that the template points to. */
static once_operation *operation_copy(const once_operation *wanted)
{
	const once_outcome *from = &wanted->outcome;
	const char *tenant = text_or_empty(wanted->intent.tenant);
	/* Only a claim is an attempt; elsewhere the member is ignored, so a caller need not set it. */
	const char *traceparent = wanted->kind == KIND_CLAIM ? traceparent_or_null(wanted->intent.traceparent) : NULL;
	size_t bytes = sizeof *wanted + text_bytes(tenant) + text_bytes(wanted->intent.scope) +
	               text_bytes(wanted->intent.key) + text_bytes(wanted->owner) + text_bytes(from->response_headers) +
	               text_bytes(from->result_type) + text_bytes(from->result_id) + text_bytes(from->error_code) +
	               text_bytes(from->error_message) + text_bytes(traceparent) + from->response_body.length + 1;
	once_operation *made = malloc(bytes);
	if (made == NULL) {
		return NULL;
	}
	*made = *wanted;
	char *at = made->text;
	made->bytes = bytes;
	made->intent.tenant = place_text(&at, tenant);
	made->intent.scope = place_text(&at, wanted->intent.scope);
	made->intent.key = place_text(&at, wanted->intent.key);
	made->intent.traceparent = place_text(&at, traceparent);
	made->owner = place_owner(&at, wanted->owner);
	made->outcome.response_headers = place_text(&at, from->response_headers);
	made->outcome.result_type = place_text(&at, from->result_type);
	made->outcome.result_id = place_text(&at, from->result_id);
	made->outcome.error_code = place_text(&at, from->error_code);
	made->outcome.error_message = place_text(&at, from->error_message);
	made->outcome.redirect = NULL;
	if (wanted->kind == KIND_FAIL && from->redirect != NULL) {
		made->fingerprint = *from->redirect;
		made->outcome.redirect = &made->fingerprint;
	}
	if (from->response_body.data != NULL) {
		memcpy(at, from->response_body.data, from->response_body.length);
		made->outcome.response_body.data = at;
	}
	return made;
}

/* Takes a new operation into the batcher. */
static void enroll(once_batcher *batcher, once_operation *made)
{
	made->batcher = batcher;
	made->serial = ++batcher->serials;
	made->tenant_hash = hash_text(made->intent.tenant);
	made->submitted_ms = batcher_now(batcher);
	made->due_ms = made->submitted_ms + batcher->options.operation_timeout_ms;
	list_start(&made->place_link);
	list_start(&made->age_link);
	link_before(&batcher->live, &made->age_link);
	batcher->statistics.pending++;
	batcher->statistics.pending_bytes += made->bytes;
	queue_append(made);
	batcher_defer(batcher);
}

static once_code submit(once_batcher *batcher, const once_operation *wanted, once_operation **operation,
                        once_error **error)
{
	if (batcher == NULL) {
		return error_usage(error, "batcher must not be NULL");
	}
	if (wanted->done == NULL && kind_starts(wanted->kind)) {
		return error_usage(error, "a claim, a peek, a count, a salt and a slot take a callback");
	}
	if (batcher->closed) {
		return error_make(error, ONCE_CONNECTION, NULL, false, "the batcher is closed", NULL, NULL);
	}
	once_code code = check_texts(wanted, error);
	if (code != ONCE_OK) {
		return code;
	}
	const once_batcher_options *options = &batcher->options;
	const once_batcher_statistics *now = &batcher->statistics;
	if (now->pending >= options->pending_max || now->pending_bytes >= options->pending_bytes_max ||
	    wanted->outcome.response_body.length > options->pending_bytes_max - now->pending_bytes) {
		return error_make(error, ONCE_OVERLOADED, NULL, false, "too many operations wait for the database", NULL,
		                  "Try again later; if this persists, the database is too slow for this load.");
	}
	once_operation *made = operation_copy(wanted);
	if (made == NULL) {
		return error_no_memory(error);
	}
	enroll(batcher, made);
	if (operation != NULL) {
		*operation = made;
	}
	return ONCE_OK;
}

bool operation_spawn(const once_operation *from, kind kind, int fence)
{
	once_operation wanted = {.kind = kind, .intent = from->intent, .lease_ms = from->lease_ms, .fence = fence};
	once_operation *made = operation_copy(&wanted);
	if (made != NULL) {
		enroll(from->batcher, made);
	}
	return made != NULL;
}

/* ---- Ending ---- */

static void leave_place(once_operation *operation)
{
	if (operation->place == PLACE_QUEUE) {
		queue_remove(operation);
	} else if (operation->place == PLACE_PAUSE) {
		link_remove(&operation->place_link);
	}
	operation->place = PLACE_END;
}

void operation_end(once_operation *operation, const once_answer *answer, const once_error *error)
{
	once_batcher *batcher = operation->batcher;
	leave_place(operation);
	link_remove(&operation->age_link);
	batcher->statistics.pending--;
	batcher->statistics.pending_bytes -= operation->bytes;
	if (operation->done != NULL) {
		operation->done(operation->argument, answer, error);
	}
	free(operation);
}

void operation_fail(once_operation *operation, once_code code, bool outcome_unknown, const char *message,
                    const char *detail, const char *hint)
{
	once_error *error = NULL;
	if (operation->done != NULL) {
		error_make(&error, code, NULL, outcome_unknown, message, detail, hint);
	}
	operation_end(operation, NULL, error);
	once_error_free(error);
}

void operation_move_to_background(once_operation *operation)
{
	once_batcher *batcher = operation->batcher;
	operation->done = NULL;
	operation->background = true;
	/* A claim without a submitter is not sent; but one that may have been granted is looked up. */
	operation->peeks = operation->kind == KIND_CLAIM;
	operation->due_ms = batcher_now(batcher) + BACKGROUND_TIMEOUTS * batcher->options.operation_timeout_ms;
	link_remove(&operation->age_link);
	link_before(&batcher->background, &operation->age_link);
}

/* May it have an effect, or have one later, after its submitter has got an error? */
static bool goes_on(const once_operation *operation)
{
	switch (operation->kind) {
	case KIND_FAIL:
	case KIND_COMPLETE:
	case KIND_RELEASE:
		return true;
	case KIND_CLAIM:
		return operation->place == PLACE_FLIGHT || operation->lost_count > 0;
	default:
		return operation->place == PLACE_FLIGHT;
	}
}

static void expire_in_background(once_operation *operation)
{
	if (operation->place == PLACE_FLIGHT) {
		/* The batch still has it, for at most the answer's timeout. */
		operation->due_ms = batcher_now(operation->batcher) + operation->batcher->options.operation_timeout_ms;
		link_remove(&operation->age_link);
		link_before(&operation->batcher->background, &operation->age_link);
		return;
	}
	operation_end(operation, NULL, NULL);
}

void operation_expire(once_operation *operation)
{
	if (operation->background) {
		expire_in_background(operation);
		return;
	}
	const once_batcher *batcher = operation->batcher;
	bool lives = goes_on(operation);
	bool unknown = lives && !kind_looks(operation->kind);
	once_code code = unknown && operation->kind == KIND_CLAIM ? ONCE_OUTCOME_UNKNOWN : ONCE_DEADLINE;
	once_done done = operation->done;
	void *argument = operation->argument;
	once_error *error = NULL;
	if (done != NULL) {
		char message[96 + CAUSE_BYTES_MAX];
		/*
		 * Empty if the connection is good: libpq's own words, which name a server and a role, never
		 * a password.
		 */
		const char *cause = batcher->wires[kind_starts(operation->kind) ? 0 : 1].cause;
		snprintf(message, sizeof message, "the database has not answered within %lld ms%s%s",
		         (long long)batcher->options.operation_timeout_ms,
		         cause[0] == '\0' ? "" : "; the last connection failed: ", cause);
		error_make(&error, code, NULL, unknown, message, NULL, "Try again, with the same key.");
	}
	if (lives) {
		operation_move_to_background(operation);
		if (done != NULL) {
			done(argument, NULL, error);
		}
	} else {
		operation_end(operation, NULL, error);
	}
	once_error_free(error);
}

void once_operation_forget(once_operation *operation)
{
	if (operation == NULL || operation->place == PLACE_END || operation->done == NULL) {
		return;
	}
	operation->done = NULL;
	if (kind_starts(operation->kind) && operation->place != PLACE_FLIGHT) {
		if (operation->lost_count == 0) {
			operation_end(operation, NULL, NULL);
			return;
		}
		assert(operation->kind == KIND_CLAIM); /* only this is counted as lost */
		operation->peeks = true;
	}
}

/* ---- Submitting ---- */

once_code once_batcher_claim(once_batcher *batcher, const once_intent *intent, const once_fingerprint *fingerprint,
                             const char *owner, int64_t lease_ms, int64_t retention_ms, once_done done, void *argument,
                             once_operation **operation, once_error **error)
{
	if (intent == NULL || fingerprint == NULL || lease_ms < 0 || retention_ms < 0) {
		return error_usage(error, "a claim takes an intent, a fingerprint, and a lease and a retention of 0 or more");
	}
	once_operation wanted = {.kind = KIND_CLAIM,
	                         .done = done,
	                         .argument = argument,
	                         .intent = *intent,
	                         .fingerprint = *fingerprint,
	                         .owner = text_or_empty(owner),
	                         .lease_ms = lease_ms,
	                         .retention_ms = retention_ms};
	return submit(batcher, &wanted, operation, error);
}

once_code once_batcher_complete(once_batcher *batcher, const once_intent *intent, int fence,
                                const once_outcome *outcome, once_done done, void *argument, once_operation **operation,
                                once_error **error)
{
	if (intent == NULL || outcome == NULL) {
		return error_usage(error, "complete takes an intent and an outcome");
	}
	once_operation wanted = {.kind = KIND_COMPLETE,
	                         .done = done,
	                         .argument = argument,
	                         .intent = *intent,
	                         .fence = fence,
	                         .outcome = *outcome};
	return submit(batcher, &wanted, operation, error);
}

once_code once_batcher_fail(once_batcher *batcher, const once_intent *intent, int fence, once_failure failure,
                            const once_outcome *outcome, once_done done, void *argument, once_operation **operation,
                            once_error **error)
{
	static const once_outcome nothing = {0};
	if (intent == NULL || failure < ONCE_FAILURE_RETRYABLE || failure > ONCE_FAILURE_IN_DOUBT) {
		return error_usage(error, "fail takes an intent, and one of retryable, final and in doubt");
	}
	once_operation wanted = {.kind = KIND_FAIL,
	                         .done = done,
	                         .argument = argument,
	                         .intent = *intent,
	                         .fence = fence,
	                         .failure = failure,
	                         .outcome = outcome == NULL ? nothing : *outcome};
	return submit(batcher, &wanted, operation, error);
}

once_code once_batcher_renew(once_batcher *batcher, const once_intent *intent, int fence, int64_t lease_ms,
                             once_done done, void *argument, once_operation **operation, once_error **error)
{
	if (intent == NULL || lease_ms < 0) {
		return error_usage(error, "renew takes an intent, and a lease of 0 or more");
	}
	once_operation wanted = {.kind = KIND_RENEW,
	                         .done = done,
	                         .argument = argument,
	                         .intent = *intent,
	                         .fence = fence,
	                         .lease_ms = lease_ms};
	return submit(batcher, &wanted, operation, error);
}

once_code once_batcher_release(once_batcher *batcher, const once_intent *intent, int fence, once_done done,
                               void *argument, once_operation **operation, once_error **error)
{
	if (intent == NULL) {
		return error_usage(error, "release takes an intent");
	}
	once_operation wanted = {
	    .kind = KIND_RELEASE, .done = done, .argument = argument, .intent = *intent, .fence = fence};
	return submit(batcher, &wanted, operation, error);
}

once_code once_batcher_peek(once_batcher *batcher, const once_intent *intent, once_done done, void *argument,
                            once_operation **operation, once_error **error)
{
	if (intent == NULL) {
		return error_usage(error, "peek takes an intent");
	}
	once_operation wanted = {.kind = KIND_PEEK, .done = done, .argument = argument, .intent = *intent};
	return submit(batcher, &wanted, operation, error);
}

once_code once_batcher_salt(once_batcher *batcher, const char *tenant, once_done done, void *argument,
                            once_operation **operation, once_error **error)
{
	once_operation wanted = {.kind = KIND_SALT, .done = done, .argument = argument, .intent = {.tenant = tenant}};
	return submit(batcher, &wanted, operation, error);
}

once_code once_batcher_count_cached(once_batcher *batcher, const once_cached *cached, once_done done, void *argument,
                                    once_operation **operation, once_error **error)
{
	if (batcher != NULL && !batcher->options.caches) {
		return error_usage(error, "a count takes a batcher whose options.caches is set");
	}
	if (cached == NULL || cached->replays < 0 || cached->finals < 0 || cached->mismatches < 0) {
		return error_usage(error, "what is counted is 0 or more");
	}
	once_operation wanted = {.kind = KIND_COUNT, .done = done, .argument = argument, .cached = *cached};
	return submit(batcher, &wanted, operation, error);
}

/* Only of a batcher that asks each connection about its slots. */
static once_code check_divided(const once_batcher *batcher, once_error **error)
{
	return batcher != NULL && !batcher->options.divided
	           ? error_usage(error, "slots take a batcher whose options.divided is set")
	           : ONCE_OK;
}

once_code once_batcher_slots(once_batcher *batcher, once_done done, void *argument, once_operation **operation,
                             once_error **error)
{
	once_operation wanted = {.kind = KIND_SLOTS, .done = done, .argument = argument};
	once_code code = check_divided(batcher, error);
	return code == ONCE_OK ? submit(batcher, &wanted, operation, error) : code;
}

once_code once_batcher_slot_of(once_batcher *batcher, const char *tenant, once_done done, void *argument,
                               once_operation **operation, once_error **error)
{
	once_operation wanted = {.kind = KIND_SLOT_OF, .done = done, .argument = argument, .intent = {.tenant = tenant}};
	once_code code = check_divided(batcher, error);
	return code == ONCE_OK ? submit(batcher, &wanted, operation, error) : code;
}
