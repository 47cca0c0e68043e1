/* SPDX-License-Identifier: PostgreSQL */
/*
 * settle.c: ends the operations of a batch: their transaction committed, or failed, or its outcome
 * is unknown because the connection was lost. Called by wire.c. Every callback may close the
 * batcher, and so end every operation: after each, check `closed` before touching anything.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "evented.h"

enum {
	PAUSE_MS_FIRST = 10, /* before the next look-up of a claim that may still be in progress */
	PAUSE_MS_MAX = 1000
};

static int64_t next_rest(once_operation *operation)
{
	int64_t pause_ms = (int64_t)PAUSE_MS_FIRST << (operation->pauses < 16 ? operation->pauses : 16);
	operation->pauses = operation->pauses < 16 ? operation->pauses + 1 : 16;
	return pause_ms > PAUSE_MS_MAX ? PAUSE_MS_MAX : pause_ms;
}

/* ---- Claims ---- */

/*
 * A claim was granted after its submitter had gone: gives it back. If certainly no attempt before
 * it ran, by a release: the next one may run. A takeover from a lost attempt must not become that:
 * its lease is ended at once, so that the next attempt also takes over from a lost one and gets
 * that verdict. Needs no memory: the operation itself becomes the release or the renewal.
 */
static void give_back(once_operation *operation, int fence, bool unrun)
{
	once_batcher *batcher = operation->batcher;
	assert(operation->kind == KIND_CLAIM && operation->done == NULL);
	operation->kind = unrun ? KIND_RELEASE : KIND_RENEW;
	operation->lease_ms = 1;
	operation->fence = fence;
	operation->peeks = false;
	operation->lost_count = 0;
	operation->attempts = 0;
	operation->sharing = SHARES_BATCH;
	batcher->statistics.released_claims++;
	queue_append(operation);
	batcher_defer(batcher);
}

static bool is_invalid(once_operation *operation, const once_answer *answer)
{
	if (answer->verdict != ONCE_INVALID) {
		return false;
	}
	once_error *error = NULL;
	if (operation->done != NULL) {
		char detail[256];
		const once_intent *intent = &operation->intent;
		snprintf(detail, sizeof detail, "tenant='%.60s' scope='%.60s' key='%.60s'", intent->tenant,
		         text_or_empty(intent->scope), text_or_empty(intent->key));
		error_make(&error, once_code_of_sqlstate(answer->error_code), answer->error_code, false, answer->error_message,
		           detail, NULL);
	}
	operation_end(operation, NULL, error);
	once_error_free(error);
	return true;
}

static void settle_claim(once_operation *operation, const once_answer *answer)
{
	if (once_answer_may_run(answer) && operation->done == NULL) {
		give_back(operation, answer->fence, answer->verdict != ONCE_PROCESSING_STALE);
	} else if (answer->verdict == ONCE_PROCESSING_ACTIVE && operation->lost_count > 0) {
		/* Perhaps it is this very operation, in a statement whose answer was lost. */
		operation->peeks = true;
		queue_prepend(operation);
		batcher_defer(operation->batcher);
	} else if (!is_invalid(operation, answer)) {
		operation_end(operation, answer, NULL);
	}
}

static bool is_ours(const once_operation *operation, const once_answer *answer)
{
	for (int i = 0; i < operation->lost_count; i++) {
		if (owner_has_token(answer->owner, operation->batcher->nonce, operation->lost[i])) {
			return answer->state == ONCE_STATE_PROCESSING;
		}
	}
	return false;
}

/* spec: lost-claim */
/*
 * The verdict of a claim whose reply was lost, if a look shows that this caller holds it. first:
 * the intent has had one attempt, so no work began before; a released attempt is not counted.
 * without_takeover: the claim takes over from no silent attempt, so the earlier ones had no
 * effect. otherwise: it may have taken over from one.
 */
static const once_verdict lost_first = ONCE_NEW_CLAIM;
static const once_verdict lost_without_takeover = ONCE_RETRYABLE_FAILURE;
static const once_verdict lost_otherwise = ONCE_PROCESSING_STALE;
/* end of spec */

/* The claim was granted, but the reply with its verdict was lost, and no row has it. */
static once_verdict verdict_of_lost(const once_operation *operation, const once_answer *answer)
{
	if (answer->attempts == 1) {
		return lost_first;
	}
	return operation->intent.on_stale == ONCE_ON_STALE_IN_DOUBT ? lost_without_takeover : lost_otherwise;
}

static void adopt(once_operation *operation, const once_answer *answer)
{
	/* An attempt that may run goes only to its waiting submitter. */
	assert(operation->kind == KIND_CLAIM && operation->done != NULL && is_ours(operation, answer));
	once_answer granted = {.verdict = verdict_of_lost(operation, answer),
	                       .state = ONCE_STATE_PROCESSING,
	                       .fence = answer->fence,
	                       .attempts = answer->attempts,
	                       .lease_until = answer->lease_until,
	                       .traceparent = answer->traceparent};
	operation->batcher->statistics.resolved_claims++;
	/* Its lease has been running since. If there is no memory for this, it is only shorter. */
	operation_spawn(operation, KIND_RENEW, answer->fence);
	operation_end(operation, &granted, NULL);
}

/* Still unknown: the old backend may be at work, and a look-up does not see uncommitted rows. */
static void ask_again(once_operation *operation)
{
	operation->peeks = operation->done == NULL;
	operation_rest(operation, next_rest(operation));
}

/* The answer to the look-up of a lost claim. */
static void settle_question(once_operation *operation, const once_answer *answer)
{
	assert(operation->peeks);
	bool ours = is_ours(operation, answer);
	bool nobody = operation->done == NULL;
	bool unrun = verdict_of_lost(operation, answer) != lost_otherwise;
	if (ours && nobody) {
		give_back(operation, answer->fence, unrun);
	} else if (ours && answer->verdict == ONCE_PROCESSING_ACTIVE) {
		adopt(operation, answer);
	} else if (ours) {
		/* Its lease is over, so another attempt may be taking over: it must not run. */
		if (unrun) {
			operation_spawn(operation, KIND_RELEASE, answer->fence);
		}
		ask_again(operation);
	} else if (answer->verdict == ONCE_PROCESSING_ACTIVE) {
		once_answer active = {.verdict = ONCE_PROCESSING_ACTIVE,
		                      .state = answer->state,
		                      .fence = answer->fence,
		                      .attempts = answer->attempts,
		                      .lease_until = answer->lease_until,
		                      .traceparent = answer->traceparent};
		operation_end(operation, &active, NULL);
	} else if (nobody && answer->verdict != ONCE_ABSENT && answer->verdict != ONCE_PROCESSING_STALE &&
	           answer->verdict != ONCE_RETRYABLE_FAILURE) {
		operation_end(operation, NULL, NULL);
	} else {
		ask_again(operation);
	}
}

/* ---- A committed unit ---- */

static void end_with_verdict(once_operation *operation, once_verdict verdict)
{
	once_answer answer = {.verdict = verdict};
	operation_end(operation, &answer, NULL);
}

static void settle_salt(once_operation *operation, const PGresult *result)
{
	salt_remember(operation->batcher, operation->intent.tenant, (const unsigned char *)PQgetvalue(result, 0, 0));
	end_with_verdict(operation, ONCE_STORED);
}

static void settle_count(once_operation *operation, const PGresult *result)
{
	/*
	 * For this connection alone: do the others lead to the same server? If not, a pooler is in
	 * between.
	 */
	(void)wire_heed(&operation->batcher->wires[0], result);
	end_with_verdict(operation, ONCE_STORED);
}

static void settle_row(wire *wire, once_operation *operation, kind kind, const PGresult *result,
                       const answer_columns *columns, int row)
{
	once_answer answer = {0};
	switch (kind) {
	case KIND_SALT:
		settle_salt(operation, result);
		return;
	case KIND_COUNT:
		settle_count(operation, result);
		return;
	case KIND_SLOTS:
		slots_remember(operation->batcher, result);
		end_with_verdict(operation, ONCE_STORED);
		return;
	case KIND_SLOT_OF:
		answer.verdict = ONCE_STORED;
		answer.slot = result_int(result, 0, 0);
		operation_end(operation, &answer, NULL);
		return;
	case KIND_RENEW:
	case KIND_RELEASE: {
		bool stored = result_bool(result, row, kind == KIND_RENEW ? 0 : 1);
		wire->wrote = wire->wrote || stored;
		end_with_verdict(operation, stored ? ONCE_STORED : ONCE_REPORT_REFUSED);
		return;
	}
	default:
		break;
	}
	answer_read(&answer, result, columns, row);
	wire->wrote = wire->wrote || answer.verdict == ONCE_STORED || (kind == KIND_CLAIM && once_answer_may_run(&answer));
	if (kind == KIND_CLAIM) {
		settle_claim(operation, &answer);
	} else if (operation->kind == KIND_CLAIM) {
		settle_question(operation, &answer);
	} else if (!is_invalid(operation, &answer)) {
		if (answer.verdict == ONCE_REPEATED) {
			answer.verdict = ONCE_STORED;
		}
		operation_end(operation, &answer, NULL);
	}
}

/* Does the result have the form of the statement's result? */
static bool fits(const group *group, const PGresult *result)
{
	int rows = PQntuples(result);
	switch (group->kind) {
	case KIND_SALT:
		return rows == 1 && PQnfields(result) == 1 && PQgetlength(result, 0, 0) == ONCE_SALT_BYTES;
	case KIND_COUNT:
		return rows == 1 && PQnfields(result) == 2;
	case KIND_SLOTS:
		return slots_fit(result);
	case KIND_SLOT_OF:
		return rows == 1 && PQnfields(result) == 1 && result_int(result, 0, 0) >= 0 &&
		       result_int(result, 0, 0) < ONCE_SLOTS;
	case KIND_RENEW:
		return (size_t)rows == group->count && PQnfields(result) == 1;
	case KIND_RELEASE:
		for (int i = 0; i < rows; i++) {
			int element = PQnfields(result) == 2 ? result_int(result, i, 0) : 0;
			if (element < 1 || (size_t)element > group->count) {
				return false;
			}
		}
		return (size_t)rows == group->count;
	default:
		return rows_are_in_order(result, group->count) && find_column(result, "verdict") >= 0;
	}
}

static bool group_fails(wire *wire, const group *group, once_error *error)
{
	for (size_t i = 0; i < group->count; i++) {
		operation_end(wire->answered.operations[group->start + i], NULL, error);
		if (wire->batcher->closed) {
			break;
		}
	}
	once_error_free(error);
	return !wire->batcher->closed;
}

/* A group that was never sent. */
static bool group_unsent(wire *wire, const group *group)
{
	once_error *error = NULL;
	if (group->unsent == ONCE_NO_MEMORY) {
		error_no_memory(&error);
	} else {
		error_make(&error, group->unsent, NULL, false, "a parameter is larger than PostgreSQL can take", NULL,
		           "A value has at most 1 GB; store a reference to it.");
	}
	return group_fails(wire, group, error);
}

static bool group_committed(wire *wire, const group *group)
{
	const PGresult *result = group->result;
	answer_columns columns;
	if (group->unsent != ONCE_OK) {
		return group_unsent(wire, group);
	}
	if (result == NULL || !fits(group, result)) {
		once_error *error = NULL;
		error_of_shape(&error);
		return group_fails(wire, group, error);
	}
	answer_find_columns(result, &columns);
	for (size_t i = 0; i < group->count; i++) {
		/* Releases come back in the order in which they were made. */
		size_t element = group->kind == KIND_RELEASE ? (size_t)result_int(result, (int)i, 0) - 1 : i;
		assert(element < group->count);
		settle_row(wire, wire->answered.operations[group->start + element], group->kind, result, &columns, (int)i);
		if (wire->batcher->closed) {
			return false;
		}
	}
	return true;
}

static bool unit_committed(wire *wire, const unit *unit)
{
	assert(unit->failure == NULL && unit->start + unit->count <= wire->answered.group_count);
	for (size_t i = 0; i < unit->count; i++) {
		if (!group_committed(wire, &wire->answered.groups[unit->start + i])) {
			return false;
		}
	}
	return true;
}

/* ---- A failed unit: it was rolled back, all of it ---- */

/*
 * Ends operations that were rolled back and have no submitter. A claim that was lost before must
 * still be looked up.
 */
static bool end_if_for_nobody(once_operation *operation)
{
	if (operation->done != NULL || !kind_starts(operation->kind)) {
		return false;
	}
	operation->peeks = operation->kind == KIND_CLAIM;
	if (operation->lost_count > 0) {
		return false;
	}
	operation_end(operation, NULL, NULL);
	return true;
}

/*
 * Back to the head of the queue. The operations of one batch are put back from the last to the
 * first.
 */
static void put_back(once_operation *operation)
{
	if (!end_if_for_nobody(operation)) {
		queue_prepend(operation);
	}
}

static void share_less(once_operation *operation, sharing sharing)
{
	operation->sharing = operation->sharing > sharing ? operation->sharing : sharing;
}

static int compare_serials(const void *left, const void *right)
{
	const once_operation *a = *(once_operation *const *)left;
	const once_operation *b = *(once_operation *const *)right;
	return a->serial < b->serial ? -1 : a->serial > b->serial;
}

/* A failed commit belongs to no statement. */
#define NO_CULPRIT SIZE_MAX

/* All groups of a unit except one are sent again, each in a separate transaction. */
static void spare_others(wire *wire, const unit *unit, size_t culprit)
{
	batch *batch = &wire->answered;
	for (size_t i = unit->start + unit->count; i-- > unit->start;) {
		const group *group = &batch->groups[i];
		for (size_t j = i == culprit || group->unsent != ONCE_OK ? 0 : group->count; j-- > 0;) {
			once_operation *operation = batch->operations[group->start + j];
			share_less(operation, SHARES_GROUP);
			put_back(operation);
		}
	}
}

/* What the error of a statement means for the operations in it. */
typedef struct judgement {
	const once_error *error;
	bool alone;       /* there is only one */
	bool passes;      /* a passing trouble */
	bool waited;      /* because of a lock */
	int64_t pause_ms; /* ... after this; the same for all, so that they stay together */
} judgement;

static void judge(once_operation *operation, const judgement *judgement)
{
	if (judgement->passes && operation->attempts + 1 < ATTEMPTS_MAX) {
		if (end_if_for_nobody(operation)) {
			return;
		}
		operation->attempts++;
		operation->patient = operation->patient || judgement->waited;
		share_less(operation, SHARES_GROUP);
		operation_rest(operation, judgement->pause_ms);
	} else if (!judgement->alone && !judgement->passes && once_error_code(judgement->error) != ONCE_REFUSED &&
	           once_error_code(judgement->error) != ONCE_SLOT_CLOSED) {
		/*
		 * One element makes the statement fail: sent separately, in one round trip, they show
		 * which. A refused tenant, or one that this node does not serve, is all of them.
		 */
		share_less(operation, SHARES_NOTHING);
		put_back(operation);
	} else {
		operation_end(operation, NULL, judgement->error);
	}
}

static bool judge_group(wire *wire, const group *culprit, const once_error *error)
{
	int attempts = wire->answered.operations[culprit->start]->attempts;
	assert(culprit->count > 0 && attempts < ATTEMPTS_MAX);
	judgement judgement = {.error = error,
	                       .alone = culprit->count == 1,
	                       .passes =
	                           once_error_code(error) == ONCE_SERIALIZATION || error_passes(once_error_sqlstate(error)),
	                       .waited = strcmp(once_error_sqlstate(error), "55P03") == 0,
	                       .pause_ms = 1 + random_below(&wire->batcher->random, (int64_t)PAUSE_MS_FIRST << attempts)};
	/* From the last to the first, so that they return to the queue in order. */
	for (size_t i = culprit->count; i-- > 0;) {
		judge(wire->answered.operations[culprit->start + i], &judgement);
		if (wire->batcher->closed) {
			return false;
		}
	}
	return true;
}

static bool unit_failed(wire *wire, const unit *unit)
{
	const batch *batch = &wire->answered;
	once_error *error = NULL;
	assert(unit->failure != NULL && unit->start + unit->count <= batch->group_count);
	error_of_result(&error, wire->connection, unit->failure);
	/* If the commit of a single statement failed, it is that statement's. */
	size_t end = unit->start + unit->count;
	size_t culprit = unit->failed < end ? unit->failed : unit->count == 1 ? unit->start : NO_CULPRIT;
	wire->batcher->statistics.failed_transactions++;
	spare_others(wire, unit, culprit);
	bool open = culprit == NO_CULPRIT || judge_group(wire, &batch->groups[culprit], error);
	for (size_t i = unit->start; i < end && open; i++) {
		const group *group = &batch->groups[i];
		open = i == culprit || group->unsent == ONCE_OK || group_unsent(wire, group);
	}
	once_error_free(error);
	return open;
}

bool batch_settle(wire *wire)
{
	const batch *batch = &wire->answered;
	for (size_t i = 0; i < batch->unit_count; i++) {
		const unit *unit = &batch->units[i];
		if (!(unit->failure == NULL ? unit_committed(wire, unit) : unit_failed(wire, unit))) {
			return false;
		}
	}
	return true;
}

/* ---- A lost connection: it is unknown what was committed ---- */

static int compare_keys(const void *left, const void *right)
{
	const once_operation *a = *(once_operation *const *)left;
	const once_operation *b = *(once_operation *const *)right;
	int order = strcmp(a->intent.scope, b->intent.scope);
	order = order != 0 ? order : strcmp(a->intent.key, b->intent.key);
	return order != 0 ? order : compare_serials(left, right);
}

/*
 * Records in which statement its claims were lost. Of several claims of one intent in one statement
 * only the first can have been granted, so only that one may recognise itself.
 */
static void mark_lost_claims(wire *wire, const group *group)
{
	once_operation **at = &wire->batch.operations[group->start];
	assert(group->kind == KIND_CLAIM);
	qsort(at, group->count, sizeof(void *), compare_keys);
	for (size_t i = 0; i < group->count; i++) {
		assert(at[i]->lost_count <= LOST_MAX);
		bool first = i == 0 || strcmp(at[i]->intent.key, at[i - 1]->intent.key) != 0 ||
		             strcmp(at[i]->intent.scope, at[i - 1]->intent.scope) != 0;
		if (first && at[i]->lost_count < LOST_MAX) {
			at[i]->lost[at[i]->lost_count] = group->token;
		}
		at[i]->lost_count = (unsigned char)(at[i]->lost_count + (first ? 1 : 0));
	}
}

static void put_back_or_give_up(const wire *wire, once_operation *operation)
{
	if (operation->lost_count > LOST_MAX) {
		operation->lost_count = LOST_MAX;
		operation_fail(operation, ONCE_OUTCOME_UNKNOWN, true, "the connection was lost too often while this was asked",
		               wire->cause, "Try again, with the same key.");
		return;
	}
	put_back(operation);
}

bool batch_lost(wire *wire)
{
	batch *batch = &wire->batch;
	for (size_t i = 0; i < batch->group_count; i++) {
		if (batch->groups[i].token != 0 && batch->groups[i].unsent == ONCE_OK) {
			mark_lost_claims(wire, &batch->groups[i]);
		}
	}
	for (size_t i = batch->operation_count; i-- > 0;) {
		wire->batcher->statistics.resent++;
		put_back_or_give_up(wire, batch->operations[i]);
		if (wire->batcher->closed) {
			return false;
		}
	}
	return true;
}
