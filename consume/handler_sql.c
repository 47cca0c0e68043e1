/* SPDX-License-Identifier: PostgreSQL */
/*
 * handler_sql.c: the handler that is a SQL function. Messages are applied in the transaction that
 * remembers them, one batch at a time (apply.c). It takes at most a batch, and no more until all of
 * it is settled.
 */
#include "handler.h"

#include <assert.h>
#include <string.h>

#include "apply.h"
#include "dead_topic.h"
#include "find_handler.h"
#include "transaction.h"

struct handler {
	consumer *consumer;
	arena arena;            /* of the handler itself */
	source_message **taken; /* at most a batch */
	size_t count, settled;  /* first the settled ones, then the batch */
	message_batch batch;    /* empty between two batches */
	int due_most;
};

static handler *sql_open(consumer *consumer)
{
	arena arena = {0};
	handler *opened = arena_take(&arena, sizeof *opened);

	*opened = (handler){.consumer = consumer, .due_most = 1};
	opened->taken = arena_take(&arena, (size_t)consumer->settings.batch * sizeof(source_message *));
	opened->arena = arena;
	return opened;
}

static bool sql_check(consumer *consumer, failure *failure)
{
	bool found = find_handler(&consumer->database, consumer->settings.handler, &consumer->handle_text, failure);

	consumer->queries[SQL_HANDLE].text = consumer->handle_text;
	/* Fails if the role may not call what a batch calls. */
	PGresult *allowed = found ? transaction_receive(consumer, NULL, 0, true, failure) : NULL;
	PQclear(allowed);
	return allowed != NULL;
}

static handler_load sql_load(const handler *handler)
{
	const settings *settings = &handler->consumer->settings;
	bool is_empty = handler->count == 0;

	return (handler_load){.room = is_empty ? (size_t)settings->batch : 0,
	                      .room_bytes = is_empty ? (size_t)SOURCE_TRANSACTION_SHARE(settings->memory) : 0,
	                      .out = handler->count,
	                      .held = handler->count};
}

static void sql_take(handler *handler, source_message *const *deliveries, size_t count)
{
	assert(handler->count == 0 && count <= (size_t)handler->consumer->settings.batch);
	memcpy(handler->taken, deliveries, count * sizeof(source_message *));
	handler->count = count;
}

static bool sql_work(handler *handler, failure *failure)
{
	if (!retry_due(handler->consumer, &handler->due_most, failure)) {
		return false;
	}
	if (handler->count == 0) {
		return true;
	}
	if (handler->batch.count == 0) {
		apply_open(&handler->batch, handler->consumer, handler->taken, handler->count);
	}
	if (!apply_batch(&handler->batch, failure)) {
		return false;
	}
	handler->settled = handler->batch.count;
	bool good = dead_topic_send(handler->consumer, failure);
	apply_close(&handler->batch);
	return good;
}

static size_t sql_hand_back_settled(handler *handler, source_message **deliveries)
{
	size_t count = handler->settled;

	assert(count <= handler->count && (count == 0 || handler->batch.count == 0));
	memcpy(deliveries, handler->taken, count * sizeof(source_message *));
	handler->count -= count;
	memmove(handler->taken, handler->taken + count, handler->count * sizeof(source_message *));
	handler->settled = 0;
	return count;
}

static size_t sql_hand_back_undone(handler *handler, source_message **deliveries)
{
	assert(handler->settled == 0);
	apply_close(&handler->batch);
	handler->settled = handler->count;
	return sql_hand_back_settled(handler, deliveries);
}

static void sql_close(handler *handler)
{
	arena arena = handler->arena;

	assert(handler->count == 0);
	arena_clear(&arena);
}

const handler_class handler_sql = {
    .open = sql_open,
    .check = sql_check,
    .load = sql_load,
    .take = sql_take,
    .work = sql_work,
    .hand_back_settled = sql_hand_back_settled,
    .hand_back_undone = sql_hand_back_undone,
    .close = sql_close,
};
