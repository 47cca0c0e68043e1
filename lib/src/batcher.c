/* SPDX-License-Identifier: PostgreSQL */
/*
 * batcher.c: the functions that a loop calls: opening, readiness, the timer, the flush, closing;
 * the queues; and the known salts. Every entry goes through enter and leave, so that a batcher
 * closed by a callback is freed by the outermost call.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "evented.h"
#include "hash.h"

int64_t batcher_now(const once_batcher *batcher)
{
	return batcher->loop.now_ms(batcher->loop.context);
}

void batcher_defer(once_batcher *batcher)
{
	if (!batcher->deferred && !batcher->closed) {
		batcher->deferred = true;
		batcher->loop.defer(batcher->loop.context);
	}
}

uint64_t hash_text(const char *text)
{
	uint64_t hash = hash_bytes(HASH_START, text, strlen(text));

	/* MurmurHash3's last step (Appleby): the last letters must affect every bit. */
	hash = (hash ^ hash >> 33) * UINT64_C(0xff51afd7ed558ccd);
	return hash ^ hash >> 33;
}

/* ---- Queues ---- */

queue queue_of(const once_operation *operation)
{
	return kind_starts(operation->kind) ? QUEUE_START : operation->patient ? QUEUE_APART : QUEUE_END;
}

/*
 * A report may wait for a row that another session holds, and must not hold up claims for long: on
 * their connection it waits a moment (limit_wait.sql) and is then sent separately. A separate
 * operation may wait, so others do not share its transaction. The further connections are like 0,
 * while that is connected: if it is not, they do no more than it does.
 */
bool wire_takes(const once_batcher *batcher, int connection, queue queue)
{
	if (connection >= CORE_WIRES && (connection >= batcher->pace.connections || !batcher->wires[0].connected)) {
		return false;
	}
	if (connection != 1) {
		return queue != QUEUE_APART;
	}
	return queue == (list_empty(&batcher->queues[QUEUE_APART]) ? QUEUE_END : QUEUE_APART);
}

static void enqueue(once_operation *operation, link *before)
{
	once_batcher *batcher = operation->batcher;
	queue queue = queue_of(operation);
	link_before(before, &operation->place_link);
	operation->place = PLACE_QUEUE;
	batcher->queued[queue]++;
	batcher->queued_bytes[queue] += operation->bytes;
	batcher->queued_asks += kind_asks(operation->kind);
}

void queue_append(once_operation *operation)
{
	enqueue(operation, &operation->batcher->queues[queue_of(operation)]);
}

void queue_prepend(once_operation *operation)
{
	enqueue(operation, operation->batcher->queues[queue_of(operation)].next);
}

void queue_remove(once_operation *operation)
{
	once_batcher *batcher = operation->batcher;
	queue queue = queue_of(operation);
	assert(batcher->queued[queue] > 0 && batcher->queued_bytes[queue] >= operation->bytes);
	link_remove(&operation->place_link);
	batcher->queued[queue]--;
	batcher->queued_bytes[queue] -= operation->bytes;
	batcher->queued_asks -= kind_asks(operation->kind);
}

void operation_rest(once_operation *operation, int64_t pause_ms)
{
	once_batcher *batcher = operation->batcher;
	operation->place = PLACE_PAUSE;
	operation->pause_until_ms = batcher_now(batcher) + pause_ms;
	link_before(&batcher->pausing, &operation->place_link);
}

static void wake_rested(once_batcher *batcher, int64_t now)
{
	for (link *at = batcher->pausing.next, *next; at != &batcher->pausing; at = next) {
		once_operation *operation = OPERATION_AT(at, place_link);
		next = at->next;
		if (operation->pause_until_ms <= now) {
			link_remove(at);
			queue_prepend(operation);
		}
	}
}

/* ---- Salts ---- */

static salt_entry *salt_set(const once_batcher *batcher, uint64_t hash)
{
	return &batcher->salts[(hash >> 32) % SALTS_SETS * SALTS_WAYS];
}

static salt_entry *find_salt(const once_batcher *batcher, const char *tenant, uint64_t hash)
{
	salt_entry *set = salt_set(batcher, hash);
	for (int i = 0; i < SALTS_WAYS; i++) {
		if (set[i].used && set[i].hash == hash && strcmp(set[i].tenant, tenant) == 0) {
			return &set[i];
		}
	}
	return NULL;
}

void salt_remember(once_batcher *batcher, const char *tenant, const unsigned char *salt)
{
	uint64_t hash = hash_text(tenant);
	if (strlen(tenant) > SALT_TENANT_MAX) {
		return;
	}
	salt_entry *entry = find_salt(batcher, tenant, hash);
	if (entry == NULL) {
		unsigned char *hand = &batcher->salt_hands[(hash >> 32) % SALTS_SETS];
		entry = &salt_set(batcher, hash)[*hand];
		*hand = (unsigned char)((*hand + 1) % SALTS_WAYS);
	}
	entry->used = true;
	entry->hash = hash;
	memcpy(entry->tenant, tenant, strlen(tenant) + 1);
	memcpy(entry->salt, salt, ONCE_SALT_BYTES);
}

void salts_forget(once_batcher *batcher)
{
	for (int i = 0; i < SALTS_SETS * SALTS_WAYS; i++) {
		batcher->salts[i].used = false;
	}
}

bool once_batcher_known_salt(const once_batcher *batcher, const char *tenant, unsigned char salt[ONCE_SALT_BYTES])
{
	tenant = text_or_empty(tenant);
	const salt_entry *entry = find_salt(batcher, tenant, hash_text(tenant));
	if (entry != NULL) {
		memcpy(salt, entry->salt, ONCE_SALT_BYTES);
	}
	return entry != NULL;
}

/* ---- Slots ---- */

bool slots_fit(const PGresult *result)
{
	int rows = PQntuples(result);
	if (PQnfields(result) != 3 || (rows != 0 && rows != ONCE_SLOTS)) {
		return false;
	}
	for (int i = 0; i < rows; i++) {
		if (result_int(result, i, 0) != i) {
			return false;
		}
	}
	return true;
}

void slots_remember(once_batcher *batcher, const PGresult *result)
{
	memset(batcher->slot_epochs, 0, sizeof batcher->slot_epochs);
	memset(batcher->slots_open, 0, sizeof batcher->slots_open);
	for (int i = 0; i < PQntuples(result); i++) {
		batcher->slot_epochs[i] = result_int64(result, i, 1);
		batcher->slots_open[i] = result_bool(result, i, 2);
	}
}

int64_t once_batcher_slot_epoch(const once_batcher *batcher, int slot, bool *open)
{
	bool known = slot >= 0 && slot < ONCE_SLOTS;
	*open = known && batcher->slots_open[slot];
	return known ? batcher->slot_epochs[slot] : 0;
}

/* ---- Opening and closing ---- */

static void or_default(int64_t *value, int64_t fallback)
{
	*value = *value == 0 ? fallback : *value;
}

static void or_default_size(size_t *value, size_t fallback)
{
	*value = *value == 0 ? fallback : *value;
}

static void fill_options(once_batcher_options *options)
{
	or_default(&options->connect_timeout_ms, 5000);
	or_default(&options->answer_timeout_ms, 5000);
	or_default(&options->operation_timeout_ms, 10000);
	or_default(&options->backoff_ms, 50);
	or_default(&options->backoff_max_ms, 2000);
	or_default_size(&options->batch_max, 256);
	or_default_size(&options->batch_bytes_max, (size_t)8 << 20);
	or_default_size(&options->pending_max, 65536);
	or_default_size(&options->pending_bytes_max, (size_t)256 << 20);
	options->batch_max = options->batch_max > BATCH_MAX ? BATCH_MAX : options->batch_max;
	options->connections_max = options->connections_max == 0 ? CORE_WIRES : options->connections_max;
}

static bool options_are_sane(const once_batcher_options *options)
{
	const int64_t longest = INT64_C(1000) * 86400 * 7;
	const int64_t times[] = {options->connect_timeout_ms, options->answer_timeout_ms, options->operation_timeout_ms,
	                         options->backoff_ms,         options->backoff_max_ms,    options->batch_age_ms};
	for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
		if (times[i] < 0 || times[i] > longest) {
			return false;
		}
	}
	return true;
}

static once_code check_open(const char *conninfo, const once_loop *loop, const once_batcher_options *options,
                            once_error **error)
{
	if (loop == NULL || loop->watch == NULL || loop->forget == NULL || loop->timer == NULL || loop->defer == NULL ||
	    loop->now_ms == NULL) {
		return error_usage(error, "a batcher takes a loop with all its hooks");
	}
	if (options != NULL && !options_are_sane(options)) {
		return error_usage(error, "the times of a batcher are 0 to 7 days");
	}
	if (options != NULL && options->connections_max != 0 &&
	    (options->connections_max < CORE_WIRES || options->connections_max > WIRES)) {
		return error_usage(error, "a batcher has 2 to 8 connections");
	}
	return error_of_conninfo(error, text_or_empty(conninfo));
}

static void destroy(once_batcher *batcher)
{
	for (int i = 0; i < WIRES; i++) {
		wire_close(&batcher->wires[i]);
	}
	free(batcher->salts);
	free(batcher->conninfo);
	free(batcher);
}

once_code once_batcher_open(const char *conninfo, const once_loop *loop, const once_batcher_options *options,
                            once_batcher **batcher, once_error **error)
{
	once_code code =
	    batcher == NULL ? error_usage(error, "batcher must not be NULL") : check_open(conninfo, loop, options, error);
	if (code != ONCE_OK) {
		return code;
	}
	once_batcher *made = calloc(1, sizeof *made);
	if (made == NULL) {
		return error_no_memory(error);
	}
	made->loop = *loop;
	if (options != NULL) {
		made->options = *options;
	}
	fill_options(&made->options);
	made->random = random_seed(made);
	made->nonce = random_seed(&made->nonce) ^ (uint64_t)now_us();
	made->armed_ms = ONCE_NEVER;
	made->armed_idle = true;
	list_start(&made->pausing);
	list_start(&made->live);
	list_start(&made->background);
	made->conninfo = strdup(text_or_empty(conninfo));
	made->salts = calloc((size_t)SALTS_SETS * SALTS_WAYS, sizeof *made->salts);
	bool good = made->conninfo != NULL && made->salts != NULL;
	for (int i = 0; i < QUEUES; i++) {
		list_start(&made->queues[i]);
	}
	pace_start(&made->pace, batcher_now(made));
	for (int i = 0; i < WIRES; i++) {
		made->wires[i] = (wire){.batcher = made, .number = i, .fd = -1, .due_ms = ONCE_NEVER};
	}
	for (int i = 0; i < made->options.connections_max; i++) {
		good = good && batch_open(&made->wires[i].batch, made->options.batch_max) &&
		       batch_open(&made->wires[i].answered, made->options.batch_max);
	}
	if (!good) {
		destroy(made);
		return error_no_memory(error);
	}
	*batcher = made;
	if (made->options.impatient) {
		batcher_defer(made);
	}
	return ONCE_OK;
}

static void end_all(once_batcher *batcher, link *list)
{
	while (!list_empty(list)) {
		once_operation *operation = OPERATION_AT(list->next, age_link);
		bool unknown = operation->place == PLACE_FLIGHT || operation->lost_count > 0;
		(void)batcher;
		operation_fail(operation, ONCE_CONNECTION, unknown, "the batcher was closed", NULL,
		               "Try again, with the same key.");
	}
}

void once_batcher_close(once_batcher *batcher)
{
	if (batcher == NULL || batcher->closed) {
		return;
	}
	batcher->closed = true;
	batcher->depth++;
	for (int i = 0; i < WIRES; i++) {
		wire_forget(&batcher->wires[i]);
	}
	batcher->loop.timer(batcher->loop.context, ONCE_NEVER, true);
	end_all(batcher, &batcher->live);
	end_all(batcher, &batcher->background);
	/* All operations have an answer. */
	assert(batcher->statistics.pending == 0 && list_empty(&batcher->queues[QUEUE_START]) &&
	       list_empty(&batcher->queues[QUEUE_END]) && list_empty(&batcher->queues[QUEUE_APART]));
	if (--batcher->depth == 0) {
		destroy(batcher);
	}
}

/* ---- What the loop calls ---- */

static int64_t sooner(int64_t left, int64_t right)
{
	return left < right ? left : right;
}

/* Are the operations that follow the last answers still gathered? */
static bool is_gathering(const once_batcher *batcher)
{
	return batcher->queued[QUEUE_START] + batcher->queued[QUEUE_END] < batcher->gather_count &&
	       batcher->gather_until_ms > batcher_now(batcher);
}

static int64_t queue_due(const once_batcher *batcher, queue queue)
{
	if (queue != QUEUE_APART && is_gathering(batcher)) {
		return batcher->gather_until_ms;
	}
	const once_operation *first = OPERATION_AT(batcher->queues[queue].next, place_link);
	if (batcher->options.batch_age_ms == 0 || batcher->queued[queue] >= batcher->options.batch_max ||
	    batcher->queued_bytes[queue] >= batcher->options.batch_bytes_max) {
		return first->submitted_ms;
	}
	return first->submitted_ms + batcher->options.batch_age_ms;
}

/* When the batch that a connection could send must be sent; never if there is none. */
static int64_t batch_due(const once_batcher *batcher, int connection)
{
	int64_t due = ONCE_NEVER;
	for (queue queue = QUEUE_START; queue < QUEUES; queue++) {
		size_t left = queue == QUEUE_START && connection != 0 ? batcher->queued_asks : 0;
		if (batcher->queued[queue] > left && wire_takes(batcher, connection, queue)) {
			due = sooner(due, queue_due(batcher, queue));
		}
	}
	return due;
}

void batcher_feed(once_batcher *batcher, int connection)
{
	wire *wire = &batcher->wires[connection];
	if (!batcher->closed && wire->state == WIRE_IDLE && batch_due(batcher, connection) <= batcher_now(batcher)) {
		batch_fill(batcher, connection);
		wire_send(wire);
	}
}

static bool is_wanted(const once_batcher *batcher, int connection)
{
	return (batcher->options.impatient || batcher->statistics.pending > 0) &&
	       (connection == 0 || !batcher->wires[0].down) &&
	       (connection < CORE_WIRES || (connection < batcher->pace.connections && batcher->wires[0].connected));
}

static void turn_pace(once_batcher *batcher)
{
	int64_t now = batcher_now(batcher);
	int most = now < batcher->more_after_ms ? batcher->pace.connections : batcher->options.connections_max;
	if (batcher->options.connections_max > CORE_WIRES && pace_turn(&batcher->pace, most, now)) {
		batcher->statistics.commit_us = batcher->pace.commit_us;
		batcher_defer(batcher);
	}
}

void batcher_pace(once_batcher *batcher, size_t answered)
{
	turn_pace(batcher);
	int64_t gather_ms = pace_gather_ms(&batcher->pace);
	if (gather_ms > 0) {
		size_t expected = answered + batcher->queued[QUEUE_START] + batcher->queued[QUEUE_END];
		batcher->gather_count = expected > GATHER_MAX ? GATHER_MAX : expected;
		batcher->gather_until_ms = batcher_now(batcher) + gather_ms;
	}
}

void batcher_shrink(once_batcher *batcher, int connection)
{
	assert(connection >= CORE_WIRES);
	batcher->more_after_ms = batcher_now(batcher) + MORE_PAUSE_MS;
	if (batcher->pace.connections > connection) {
		batcher->pace.connections = connection;
	}
}

static void send_due(once_batcher *batcher)
{
	for (int i = 0; i < WIRES && !batcher->closed; i++) {
		wire *wire = &batcher->wires[i];
		if (wire->state == WIRE_CLOSED && is_wanted(batcher, i)) {
			wire_start(wire);
		} else if (i >= batcher->pace.connections) {
			wire_retire(wire);
		}
		if (i == 0 && wire->down && batcher->options.impatient) {
			wire_refuse(wire);
		}
	}
	/* From the last: reports use their own connection if it is free. */
	for (int i = WIRES; i-- > 0 && !batcher->closed;) {
		wire *wire = &batcher->wires[i];
		batcher_feed(batcher, i);
		if (!batcher->closed && wire->state == WIRE_BUSY) {
			/* Sending may have read input that no later event announces. */
			wire_ready(wire, false, true);
		}
	}
}

static int64_t next_due(const once_batcher *batcher)
{
	int64_t due = ONCE_NEVER;
	for (int i = 0; i < WIRES; i++) {
		const wire *wire = &batcher->wires[i];
		if (wire->state != WIRE_CLOSED && wire->state != WIRE_IDLE) {
			due = sooner(due, wire->due_ms);
		} else if (wire->state == WIRE_IDLE && !batcher->deferred) {
			due = sooner(due, batch_due(batcher, i));
		}
	}
	if (!list_empty(&batcher->live)) {
		due = sooner(due, OPERATION_AT(batcher->live.next, age_link)->due_ms);
	}
	if (!list_empty(&batcher->background)) {
		due = sooner(due, OPERATION_AT(batcher->background.next, age_link)->due_ms);
	}
	due = sooner(due, pace_due(&batcher->pace));
	for (const link *at = batcher->pausing.next; at != &batcher->pausing; at = at->next) {
		due = sooner(due, OPERATION_AT(at, place_link)->pause_until_ms);
	}
	return due;
}

/*
 * A timer that fires too soon costs less than setting it for each operation: it is only moved
 * towards now.
 */
static void arm(once_batcher *batcher)
{
	int64_t due = next_due(batcher);
	bool idle = batcher->statistics.pending == 0;
	if (due < batcher->armed_ms || idle != batcher->armed_idle || (due == ONCE_NEVER && batcher->armed_ms != due)) {
		batcher->armed_ms = due;
		batcher->armed_idle = idle;
		batcher->loop.timer(batcher->loop.context, due, idle);
	}
}

/* False for a call from inside another one: the outermost does the work. */
static bool enter(once_batcher *batcher)
{
	if (batcher->depth > 0 || batcher->closed) {
		return false;
	}
	batcher->depth++;
	return true;
}

static void leave(once_batcher *batcher)
{
	if (!batcher->closed) {
		arm(batcher);
	}
	assert(batcher->depth == 1); /* enter admits only the outermost */
	batcher->depth--;
	if (batcher->closed) {
		destroy(batcher);
	}
}

void once_batcher_ready(once_batcher *batcher, int connection, bool readable, bool writable)
{
	if (connection >= 0 && connection < WIRES && enter(batcher)) {
		wire_ready(&batcher->wires[connection], readable, writable);
		leave(batcher);
	}
}

void once_batcher_flush(once_batcher *batcher)
{
	batcher->deferred = false;
	if (enter(batcher)) {
		send_due(batcher);
		leave(batcher);
	}
}

static void expire(once_batcher *batcher, link *list, int64_t now)
{
	while (!batcher->closed && !list_empty(list) && OPERATION_AT(list->next, age_link)->due_ms <= now) {
		operation_expire(OPERATION_AT(list->next, age_link));
	}
}

void once_batcher_tick(once_batcher *batcher)
{
	if (!enter(batcher)) {
		return;
	}
	int64_t now = batcher_now(batcher);
	batcher->armed_ms = ONCE_NEVER;
	wake_rested(batcher, now);
	expire(batcher, &batcher->live, now);
	expire(batcher, &batcher->background, now);
	for (int i = 0; i < WIRES && !batcher->closed; i++) {
		wire_tick(&batcher->wires[i], now);
	}
	turn_pace(batcher);
	send_due(batcher);
	leave(batcher);
}

void once_batcher_count(const once_batcher *batcher, once_batcher_statistics *statistics)
{
	*statistics = batcher->statistics;
}
