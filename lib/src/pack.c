/* SPDX-License-Identifier: PostgreSQL */
/*
 * pack.c: builds a batch: takes operations from a queue, joins those that can share a statement
 * into groups, and arranges the groups in units, which are transactions. All that may share a
 * transaction go into one unit, so that a batch is one commit; an operation that failed in a shared
 * one is sent separately. Called by wire.c and batcher.c; settle.c reads the arrangement.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "evented.h"

bool batch_open(batch *batch, size_t batch_max)
{
	size_t index_size = 2;
	while (index_size < 2 * batch_max) {
		index_size *= 2;
	}
	batch->operations = calloc(batch_max, sizeof(void *));
	batch->groups = calloc(batch_max, sizeof *batch->groups);
	batch->units = calloc(batch_max, sizeof *batch->units);
	batch->index = calloc(index_size, sizeof *batch->index);
	batch->index_size = index_size;
	return batch->operations != NULL && batch->groups != NULL && batch->units != NULL && batch->index != NULL;
}

void batch_clear(batch *batch)
{
	for (size_t i = 0; i < batch->group_count; i++) {
		PQclear(batch->groups[i].result);
	}
	for (size_t i = 0; i < batch->unit_count; i++) {
		PQclear(batch->units[i].failure);
	}
	memset(batch->groups, 0, batch->group_count * sizeof *batch->groups);
	batch->operation_count = batch->group_count = batch->unit_count = 0;
	batch->unit_at = batch->group_at = batch->answer_bytes = 0;
}

void batch_close(batch *batch)
{
	if (batch->groups != NULL) {
		batch_clear(batch);
	}
	free(batch->operations);
	free(batch->groups);
	free(batch->units);
	free(batch->index);
}

kind sends_as(const once_operation *operation)
{
	return operation->peeks ? KIND_PEEK : operation->kind;
}

/*
 * Salts, slots and counts are requested separately: then a refused tenant does not make the claims
 * of others fail.
 */
static sharing sharing_of(const once_operation *operation)
{
	if (operation->kind == KIND_COUNT) {
		return SHARES_NOTHING;
	}
	return operation->kind > KIND_COUNT && operation->sharing == SHARES_BATCH ? SHARES_GROUP : operation->sharing;
}

static bool same_text(const char *left, const char *right)
{
	return strcmp(text_or_empty(left), text_or_empty(right)) == 0;
}

static bool can_share(const once_operation *a, const once_operation *b)
{
	kind kind = sends_as(a);
	if (kind != sends_as(b) || sharing_of(a) != sharing_of(b) || !same_text(a->intent.tenant, b->intent.tenant)) {
		return false;
	}
	if (kind == KIND_CLAIM) {
		return a->lease_ms == b->lease_ms && a->retention_ms == b->retention_ms &&
		       a->intent.on_stale == b->intent.on_stale && same_text(a->owner, b->owner);
	}
	return kind != KIND_RENEW || a->lease_ms == b->lease_ms;
}

static group *group_of(batch *batch, const once_operation *operation)
{
	size_t mask = batch->index_size - 1;
	size_t at = (size_t)(operation->tenant_hash + (uint64_t)sends_as(operation) * 31 + (uint64_t)operation->lease_ms);
	for (at &= mask; batch->index[at] != 0; at = (at + 1) & mask) {
		group *known = &batch->groups[batch->index[at] - 1];
		if (sharing_of(operation) != SHARES_NOTHING && can_share(known->first, operation)) {
			return known;
		}
	}
	batch->index[at] = (uint32_t)++batch->group_count;
	return &batch->groups[batch->group_count - 1];
}

static void join(batch *batch, once_operation *operation)
{
	group *group = group_of(batch, operation);
	if (group->count == 0) {
		group->kind = sends_as(operation);
		group->sharing = sharing_of(operation);
		group->first = operation;
	} else {
		group->last->place_link.next = &operation->place_link;
	}
	operation->place_link.next = NULL;
	group->last = operation;
	group->count++;
}

/*
 * Operations that may share the one transaction come first; then by kind and tenant: two batches
 * that change the same intents lock their rows in one order.
 */
static int compare_groups(const void *left, const void *right)
{
	const group *a = left;
	const group *b = right;
	int a_apart = a->sharing != SHARES_BATCH;
	int b_apart = b->sharing != SHARES_BATCH;
	if (a_apart != b_apart) {
		return a_apart - b_apart;
	}
	if (a->kind != b->kind) {
		return (int)a->kind - (int)b->kind;
	}
	int order = strcmp(a->first->intent.tenant, b->first->intent.tenant);
	if (order == 0) {
		order = a->first->serial < b->first->serial ? -1 : 1;
	}
	return order;
}

/* limited: operations that may be among claims wait for a short time only. */
static void lay_out(batch *batch, bool limited)
{
	qsort(batch->groups, batch->group_count, sizeof *batch->groups, compare_groups);
	for (size_t i = 0; i < batch->group_count; i++) {
		group *group = &batch->groups[i];
		group->start = batch->operation_count;
		for (link *at = &group->first->place_link; at != NULL; at = at->next) {
			batch->operations[batch->operation_count++] = OPERATION_AT(at, place_link);
		}
		if (i == 0 || group->sharing != SHARES_BATCH) {
			batch->units[batch->unit_count++] = (unit){.start = i, .limits = limited && !kind_starts(group->kind)};
		}
		batch->units[batch->unit_count - 1].count++;
	}
}

/* How full a batch is. */
typedef struct fill {
	size_t count;
	size_t bytes;
} fill;

static void take(wire *wire, queue from, fill *filling)
{
	const once_batcher_options *options = &wire->batcher->options;
	link *queue = &wire->batcher->queues[from];
	for (link *at = queue->next, *next; at != queue && filling->count < options->batch_max; at = next) {
		once_operation *operation = OPERATION_AT(at, place_link);
		next = at->next;
		if (kind_asks(operation->kind) && wire->number != 0) {
			continue;
		}
		/*
		 * Answers are as large as the outcomes that they replay; recent ones give the expected
		 * size.
		 */
		size_t size = operation->bytes > wire->answer_bytes ? operation->bytes : wire->answer_bytes;
		if (filling->count > 0 &&
		    (size > options->batch_bytes_max || filling->bytes > options->batch_bytes_max - size)) {
			break;
		}
		filling->bytes += size;
		filling->count++;
		queue_remove(operation);
		operation->place = PLACE_FLIGHT;
		join(&wire->batch, operation);
	}
}

void batch_fill(once_batcher *batcher, int connection)
{
	wire *wire = &batcher->wires[connection];
	batch *batch = &wire->batch;
	fill filling = {0};
	assert(batch->operation_count == 0 && batch->group_count == 0 && batch->unit_count == 0);
	memset(batch->index, 0, batch->index_size * sizeof *batch->index);
	for (queue queue = QUEUE_START; queue < QUEUES; queue++) {
		if (wire_takes(batcher, connection, queue)) {
			take(wire, queue, &filling);
		}
	}
	lay_out(batch, connection != 1);
	/* Each operation is sent once: in one statement, in one transaction. */
	assert(batch->operation_count == filling.count && batch->group_count <= filling.count &&
	       batch->unit_count <= batch->group_count);
}

/* ---- Statements ---- */

#define ELEMENT(name, expression)                                                                                      \
	static once_bytes name(const void *context, size_t index, unsigned char scratch[8])                                \
	{                                                                                                                  \
		const once_operation *at = ((once_operation *const *)context)[index];                                          \
		(void)scratch;                                                                                                 \
		return expression;                                                                                             \
	}

ELEMENT(scope_at, bytes_of_text(at->intent.scope))
ELEMENT(key_at, bytes_of_text(at->intent.key))
ELEMENT(trace_at, bytes_of_text(at->intent.traceparent))
ELEMENT(fingerprint_at, ((once_bytes){.data = at->fingerprint.bytes, .length = ONCE_FINGERPRINT_BYTES}))
ELEMENT(fence_at, bytes_of_int(at->fence, false, scratch))
ELEMENT(failure_at, bytes_of_failure(at->failure, scratch))
ELEMENT(status_at, bytes_of_int(at->outcome.response_status, at->outcome.response_status == 0, scratch))
ELEMENT(body_at, at->outcome.response_body)
ELEMENT(headers_at, bytes_of_text(at->outcome.response_headers))
ELEMENT(result_type_at, bytes_of_text(at->outcome.result_type))
ELEMENT(result_id_at, bytes_of_text(at->outcome.result_id))
ELEMENT(error_code_at, bytes_of_text(at->outcome.error_code))
ELEMENT(error_message_at, bytes_of_text(at->outcome.error_message))
ELEMENT(redirect_at, bytes_of_redirect(&at->outcome))

enum sql_id sql_of_kind(kind kind)
{
	static const enum sql_id ids[] = {
	    [KIND_CLAIM] = SQL_CLAIM_MANY,    [KIND_PEEK] = SQL_PEEK_MANY, [KIND_COUNT] = SQL_COUNT_CACHED,
	    [KIND_SALT] = SQL_SALT,           [KIND_SLOTS] = SQL_SLOTS,    [KIND_SLOT_OF] = SQL_SLOT_OF,
	    [KIND_RENEW] = SQL_RENEW_MANY,    [KIND_FAIL] = SQL_FAIL_MANY, [KIND_COMPLETE] = SQL_COMPLETE_MANY,
	    [KIND_RELEASE] = SQL_RELEASE_MANY};
	return ids[kind];
}

bool kind_is_used(kind kind, const once_batcher_options *options)
{
	return kind == KIND_COUNT ? options->caches : kind == KIND_SLOTS || kind == KIND_SLOT_OF ? options->divided : true;
}

enum {
	TOKEN_BYTES = 40 /* '#', 16 hexadecimal digits, '.', 20 decimal ones, NUL */
};

static void write_token(char token[TOKEN_BYTES], uint64_t nonce, uint64_t number)
{
	snprintf(token, TOKEN_BYTES, "#%016" PRIx64 ".%" PRIu64, nonce, number);
}

bool owner_has_token(const char *owner, uint64_t nonce, uint64_t token)
{
	char wanted[TOKEN_BYTES];
	const char *found = owner == NULL ? NULL : strrchr(owner, '#');
	write_token(wanted, nonce, token);
	return found != NULL && strcmp(found, wanted) == 0;
}

static void fill_outcome(call *call, size_t count, once_operation *const *at)
{
	call_add_array(call, TYPE_INT4, count, status_at, at);
	call_add_array(call, TYPE_BYTEA, count, body_at, at);
	call_add_array(call, TYPE_TEXT, count, headers_at, at);
}

void fill_count(call *call, const once_cached *cached)
{
	call_add_bigint(call, cached->replays, false);
	call_add_bigint(call, cached->finals, false);
	call_add_bigint(call, cached->mismatches, false);
}

/* owner: room for the owner of the group's claims, which the call borrows. */
static void fill_call(call *call, const group *group, once_operation *const *at, uint64_t nonce,
                      char owner[OWNER_BYTES_MAX + TOKEN_BYTES])
{
	size_t count = group->count;
	call_start(call, sql_of_kind(group->kind));
	if (group->kind == KIND_COUNT) {
		fill_count(call, &at[0]->cached);
		return;
	}
	if (group->kind == KIND_SLOTS) {
		return;
	}
	if (kind_names_intent(group->kind)) {
		call_add_array(call, TYPE_TEXT, count, scope_at, at);
		call_add_array(call, TYPE_TEXT, count, key_at, at);
	}
	if (group->kind <= KIND_RELEASE) {
		call_add_array(call, TYPE_INT4, count, fence_at, at);
	}
	switch (group->kind) {
	case KIND_CLAIM: {
		char token[TOKEN_BYTES];
		write_token(token, nonce, group->token);
		snprintf(owner, OWNER_BYTES_MAX + TOKEN_BYTES, "%s%s", at[0]->owner, token);
		call_add_array(call, TYPE_BYTEA, count, fingerprint_at, at);
		call_add_text(call, owner);
		call_add_bigint(call, at[0]->lease_ms, at[0]->lease_ms == 0);
		call_add_bigint(call, at[0]->retention_ms, at[0]->retention_ms == 0);
		break;
	}
	case KIND_RENEW:
		call_add_bigint(call, at[0]->lease_ms, at[0]->lease_ms == 0);
		break;
	case KIND_FAIL:
		call_add_array(call, TYPE_BOOL, count, failure_at, at);
		call_add_array(call, TYPE_TEXT, count, error_code_at, at);
		call_add_array(call, TYPE_TEXT, count, error_message_at, at);
		fill_outcome(call, count, at);
		break;
	case KIND_COMPLETE:
		fill_outcome(call, count, at);
		call_add_array(call, TYPE_TEXT, count, result_type_at, at);
		call_add_array(call, TYPE_TEXT, count, result_id_at, at);
		break;
	default:
		break;
	}
	call_add_text(call, at[0]->intent.tenant);
	if (group->kind == KIND_CLAIM) {
		call_add_array(call, TYPE_TEXT, count, trace_at, at);
		call_add_on_stale(call, at[0]->intent.on_stale);
	} else if (group->kind == KIND_FAIL) {
		call_add_array(call, TYPE_BYTEA, count, redirect_at, at);
	}
}

/* False if the connection must be closed. */
static bool send_group(wire *wire, group *group)
{
	once_batcher *batcher = wire->batcher;
	char owner[OWNER_BYTES_MAX + TOKEN_BYTES];
	call call;
	bool usable = true;
	assert(group->count > 0 && group->token == 0 && group->result == NULL);
	if (group->kind == KIND_CLAIM) {
		group->token = ++batcher->tokens;
	}
	fill_call(&call, group, &wire->batch.operations[group->start], batcher->nonce, owner);
	if (call.out_of_memory || call.too_long) {
		/* The connection was not used: its neighbours continue. */
		group->unsent = call.out_of_memory ? ONCE_NO_MEMORY : ONCE_TOO_LARGE;
	} else if (call_send_on(wire->connection, wire->prepares, &call, NULL) != ONCE_OK) {
		/*
		 * Lost, or no memory: half a statement may have been sent. No Sync follows, so nothing of
		 * its transaction remains.
		 */
		usable = false;
	}
	call_free(&call);
	return usable;
}

static bool send_limit(const wire *wire)
{
	call call;
	call_start(&call, SQL_LIMIT_WAIT);
	return call_send_on(wire->connection, wire->prepares, &call, NULL) == ONCE_OK;
}

bool batch_send(wire *wire)
{
	const batch *batch = &wire->batch;
	for (size_t i = 0; i < batch->unit_count; i++) {
		const unit *unit = &batch->units[i];
		if (unit->limits && !send_limit(wire)) {
			return false;
		}
		for (size_t j = 0; j < unit->count; j++) {
			if (!send_group(wire, &batch->groups[unit->start + j])) {
				return false;
			}
		}
		if (PQpipelineSync(wire->connection) != 1) {
			return false;
		}
	}
	return true;
}
