/* SPDX-License-Identifier: PostgreSQL */
/*
 * wire.c: one connection of the batcher: connecting, checking the contract, sending a batch,
 * reading its answers, closing it. The only file of the evented half that knows libpq's states and
 * the loop's hooks for a socket. Never blocks.
 */
#include <poll.h>
#include <stdio.h>

#include "evented.h"

/* ---- What the loop watches ---- */

/* The loop forgets the socket before libpq closes it, since its number may be reused. */
static void unwatch(wire *wire)
{
	if (wire->fd >= 0) {
		const once_loop *loop = &wire->batcher->loop;
		int fd = wire->fd;
		wire->fd = -1;
		loop->forget(loop->context, wire->number, fd);
	}
}

static void watch(wire *wire, bool read, bool write)
{
	const once_loop *loop = &wire->batcher->loop;
	int fd = PQsocket(wire->connection);
	if (fd < 0 || (fd == wire->fd && read == wire->watches_read && write == wire->watches_write)) {
		return;
	}
	if (wire->fd >= 0 && wire->fd != fd) {
		unwatch(wire);
	}
	wire->fd = fd;
	wire->watches_read = read;
	wire->watches_write = write;
	loop->watch(loop->context, wire->number, fd, read, write);
}

/* ---- Closing ---- */

/* The server that all connections lead to, if it is the same. */
static void tell_server(once_batcher *batcher)
{
	uint64_t server = batcher->wires[0].server;
	for (int i = 0; i < WIRES; i++) {
		const wire *wire = &batcher->wires[i];
		if (i < CORE_WIRES && !wire->connected) {
			server = 0;
		}
		if (wire->connected && wire->server != server) {
			server = 0;
		}
	}
	batcher->statistics.server = server;
}

/*
 * A connection leads to one server as long as it lives, and a restarted server has another
 * identity. If it changes nevertheless, a pooler is in between: it has changed for all.
 */
bool wire_heed(wire *wire, const PGresult *result)
{
	once_batcher *batcher = wire->batcher;
	if (PQntuples(result) != 1 || PQnfields(result) != 2) {
		return false;
	}
	uint64_t server = hash_text(PQgetvalue(result, 0, 0));
	batcher->statistics.retention_ms = result_int(result, 0, 1);
	if (wire->server != 0 && wire->server != server) {
		batcher->statistics.losses++;
		for (int i = 0; i < WIRES; i++) {
			batcher->wires[i].server = server;
		}
	}
	wire->server = server;
	tell_server(batcher);
	return true;
}

static void note_connected(wire *wire, bool connected)
{
	once_batcher_statistics *statistics = &wire->batcher->statistics;
	if (wire->number < CORE_WIRES) {
		statistics->connected[wire->number] = connected;
	} else {
		statistics->more_connections -= wire->connected;
		statistics->more_connections += connected;
	}
	wire->connected = connected;
	tell_server(wire->batcher);
}

static void disconnect(wire *wire)
{
	unwatch(wire);
	PQfinish(wire->connection);
	wire->connection = NULL;
	wire->prepares = false;
	wire->server = 0;
	note_connected(wire, false);
}

/* One line without control characters: libpq's messages have several. */
static void note_cause(wire *wire, const char *cause)
{
	size_t length = 0;
	for (const char *at = cause; *at != '\0' && length < sizeof wire->cause - 1; at++) {
		if ((unsigned char)*at >= 0x20) {
			wire->cause[length++] = *at;
		} else if (length > 0 && wire->cause[length - 1] != ' ') {
			wire->cause[length++] = ' ';
		}
	}
	while (length > 0 && (wire->cause[length - 1] == ' ' || ((unsigned char)wire->cause[length - 1] & 0x80) != 0)) {
		length--; /* and no half character */
	}
	wire->cause[length] = '\0';
}

void wire_lose(wire *wire, const char *cause)
{
	once_batcher *batcher = wire->batcher;
	const once_batcher_options *options = &batcher->options;
	bool was_busy = wire->state == WIRE_BUSY;
	note_cause(wire, cause == NULL ? PQerrorMessage(wire->connection) : cause);
	if (wire->state == WIRE_CONNECTING || wire->state == WIRE_CHECKING) {
		batcher->statistics.connect_failures++;
		wire->down = true;
		batcher_defer(batcher);
		if (wire->number >= CORE_WIRES) {
			batcher_shrink(batcher, wire->number); /* perhaps the server has no more */
		}
	}
	batcher->statistics.losses += wire->connected;
	/* Full jitter: many processes that lost one server must not return to it at once. */
	int64_t limit = options->backoff_ms << (wire->failures < 20 ? wire->failures : 20);
	wire->failures++;
	wire->due_ms =
	    batcher_now(batcher) +
	    random_below(&batcher->random, (limit > options->backoff_max_ms ? options->backoff_max_ms : limit) + 1);
	wire->state = WIRE_PAUSE;
	disconnect(wire);
	if (was_busy && batch_lost(wire)) {
		batch_clear(&wire->batch);
	}
}

/* ---- Connecting ---- */

/* Notices would go to standard error, which belongs to the program. */
static void ignore_notice(void *context, const PGresult *result)
{
	(void)context;
	(void)result;
}

static void follow_poll(wire *wire, PostgresPollingStatusType status);

void wire_start(wire *wire)
{
	once_batcher *batcher = wire->batcher;
	const char *const keywords[] = {"fallback_application_name", "dbname", "client_encoding", NULL};
	const char *const values[] = {"pgonce", batcher->conninfo, "UTF8", NULL};
	if (wire->state != WIRE_CLOSED && wire->state != WIRE_PAUSE) {
		return;
	}
	wire->state = WIRE_CONNECTING;
	wire->due_ms = batcher_now(batcher) + batcher->options.connect_timeout_ms;
	wire->connection = PQconnectStartParams(keywords, values, 1);
	if (PQstatus(wire->connection) == CONNECTION_BAD) {
		wire_lose(wire, wire->connection == NULL ? "out of memory" : NULL);
		return;
	}
	PQsetNoticeReceiver(wire->connection, ignore_notice, NULL);
	follow_poll(wire, PGRES_POLLING_WRITING);
}

static bool send_preparation(const wire *wire, enum sql_id id)
{
	const sql_query *query = &sql_queries[id];
	return PQsendPrepare(wire->connection, query->name, query->text, 0, NULL) == 1;
}

/* The statements that a connection sends, prepared in the round trip of the check. */
static bool send_preparations(wire *wire)
{
	kind last = wire->number == 0 ? KIND_SALT : wire->number == 1 ? KIND_RELEASE : KIND_PEEK;
	for (kind kind = KIND_RENEW; kind <= last; kind++) {
		if (kind_is_used(kind, &wire->batcher->options) && !send_preparation(wire, sql_of_kind(kind))) {
			return false;
		}
	}
	return wire->number == 1 || send_preparation(wire, SQL_LIMIT_WAIT);
}

static void send_check(wire *wire)
{
	call call, server, slots;
	wire->state = WIRE_CHECKING;
	wire->version_read = false;
	wire->nulls = 0;
	call_start(&call, SQL_CONTRACT_VERSION);
	call_start(&server, SQL_COUNT_CACHED);
	fill_count(&server, &(once_cached){0});
	call_start(&slots, SQL_SLOTS);
	if (PQsetnonblocking(wire->connection, 1) != 0 || PQenterPipelineMode(wire->connection) != 1 ||
	    call_send_on(wire->connection, false, &call, NULL) != ONCE_OK ||
	    (wire->batcher->options.caches && call_send_on(wire->connection, false, &server, NULL) != ONCE_OK) ||
	    (wire->batcher->options.divided && call_send_on(wire->connection, false, &slots, NULL) != ONCE_OK) ||
	    (wire->batcher->options.prepare && !send_preparations(wire)) || PQpipelineSync(wire->connection) != 1) {
		wire_lose(wire, NULL);
		return;
	}
	wire_ready(wire, false, true);
}

static void follow_poll(wire *wire, PostgresPollingStatusType status)
{
	switch (status) {
	case PGRES_POLLING_READING:
		watch(wire, true, false);
		break;
	case PGRES_POLLING_WRITING:
		watch(wire, false, true);
		break;
	case PGRES_POLLING_OK:
		send_check(wire);
		break;
	default:
		wire_lose(wire, NULL);
		break;
	}
}

/*
 * Is the event from the loop this socket's? It may be for an earlier socket of that number, and
 * libpq would believe it.
 */
static bool is_ready(const wire *wire)
{
	struct pollfd ready = {.fd = wire->fd,
	                       .events = (short)((wire->watches_read ? POLLIN : 0) | (wire->watches_write ? POLLOUT : 0))};
	return wire->fd >= 0 && poll(&ready, 1, 0) == 1;
}

static void connect_on(wire *wire)
{
	if (is_ready(wire)) {
		/*
		 * libpq may close the socket and open another with the same number: the loop must not
		 * confuse them.
		 */
		unwatch(wire);
		follow_poll(wire, PQconnectPoll(wire->connection));
	}
}

/* ---- Checking ---- */

/*
 * The contract has another version than the library: waiting callers get that error, and the
 * connection is tried again later.
 */
static void refuse_all(wire *wire, once_error *error)
{
	once_batcher *batcher = wire->batcher;
	uint64_t last = batcher->serials;
	queue queue = wire->number == 0 ? QUEUE_START : QUEUE_END;
	wire_lose(wire, once_error_message(error));
	wire->down = false; /* the server is up; callers get its error */
	/* Of a further connection: the operations have the others. */
	for (; wire->number < CORE_WIRES && queue <= (wire->number == 0 ? QUEUE_START : QUEUE_APART); queue++) {
		const link *at = &batcher->queues[queue];
		/* Not those that a callback submits: they would be refused, and submitted, for ever. */
		while (!batcher->closed && !list_empty(at) && OPERATION_AT(at->next, place_link)->serial <= last) {
			operation_end(OPERATION_AT(at->next, place_link), NULL, error);
		}
	}
	once_error_free(error);
}

/* The first that was never sent, and was queued before the first callback; NULL: none. */
static once_operation *find_unsent(const link *queue, uint64_t last)
{
	for (const link *at = queue->next; at != queue; at = at->next) {
		once_operation *operation = OPERATION_AT((link *)(uintptr_t)at, place_link);
		if (operation->lost_count == 0 && operation->serial <= last) {
			return operation;
		}
	}
	return NULL;
}

void wire_refuse(wire *wire)
{
	once_batcher *batcher = wire->batcher;
	uint64_t last = batcher->serials; /* as in refuse_all */
	char message[96 + CAUSE_BYTES_MAX];
	once_operation *operation = NULL;
	snprintf(message, sizeof message, "the database cannot be reached; the last connection failed: %s", wire->cause);
	/* From the beginning each time: a callback may end any of them. */
	while (!batcher->closed && (operation = find_unsent(&batcher->queues[QUEUE_START], last)) != NULL) {
		operation_fail(operation, ONCE_CONNECTION, false, message, NULL, "Try again, with the same key.");
	}
}

/*
 * NULL, or why the connection is of no use. A node that is not divided would serve every tenant,
 * and so tenants of other nodes.
 */
static const char *heed_slots(wire *wire, const PGresult *result)
{
	if (!slots_fit(result)) {
		return "the server does not say which slots are open";
	}
	if (PQntuples(result) == 0) {
		return "this node is not divided, so it cannot share the tenants with others";
	}
	/* Questions go over 0 too: what came over another connection could be older, and come later. */
	if (wire->number == 0) {
		slots_remember(wire->batcher, result);
	}
	return NULL;
}

/* A result of the check. Returns false if the connection is gone. */
static bool check_result(wire *wire, const PGresult *result)
{
	once_error *error = NULL;
	switch (PQresultStatus(result)) {
	case PGRES_TUPLES_OK:
		if (wire->version_read) {
			const char *fault = wire->batcher->options.divided && PQnfields(result) == 3 ? heed_slots(wire, result)
			                    : wire_heed(wire, result)                                ? NULL
			                                              : "the server does not say which it is";
			if (fault != NULL) {
				wire_lose(wire, fault);
			}
			return fault == NULL;
		}
		wire->version_read = contract_version_fits(PQntuples(result) == 1 ? result_int(result, 0, 0) : 0, &error);
		if (!wire->version_read) {
			refuse_all(wire, error);
		}
		return wire->version_read;
	case PGRES_COMMAND_OK:
		return true;
	case PGRES_PIPELINE_SYNC:
		wire->state = WIRE_IDLE;
		wire->down = false;
		wire->prepares = wire->batcher->options.prepare;
		wire->batcher->statistics.connects++;
		note_connected(wire, true);
		wire->cause[0] = '\0';
		if (wire->number == 0) {
			salts_forget(wire->batcher); /* it may be another server than before */
		}
		batcher_defer(wire->batcher);
		return true;
	default:
		break;
	}
	once_code code = error_of_result(&error, wire->connection, result);
	/*
	 * Class 42: something is missing or not granted. That does not pass, and must not look like a
	 * slow server.
	 */
	if (code == ONCE_CONTRACT || strncmp(once_error_sqlstate(error), "42", 2) == 0) {
		refuse_all(wire, error);
	} else {
		wire_lose(wire, once_error_message(error));
		once_error_free(error);
	}
	return false;
}

/* ---- Reading ---- */

/*
 * Does the error mean that this connection is no longer usable: it ends, the server is a standby, a
 * statement is not known?
 */
static bool spoils_connection(wire *wire, const PGresult *result)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (once_code_of_sqlstate(sqlstate) == ONCE_CONNECTION || strcmp(sqlstate, "25006") == 0) {
		return true;
	}
	if (wire->prepares && (strcmp(sqlstate, "26000") == 0 || strcmp(sqlstate, "42P05") == 0)) {
		/* A pooler has switched to another connection than the one that prepared. */
		wire->batcher->options.prepare = false;
		return true;
	}
	return wire->prepares && strcmp(sqlstate, "0A000") == 0;
}

static void count_answer(wire *wire)
{
	once_batcher_statistics *statistics = &wire->batcher->statistics;
	uint64_t took_us = (uint64_t)(now_us() - wire->sent_us);
	int bucket = 0;
	while (bucket < ONCE_LATENCY_BUCKETS - 1 && took_us >= UINT64_C(100) << bucket) {
		bucket++;
	}
	statistics->latency[bucket]++;
	statistics->latency_sum_us += took_us;
	/* A batch of large answers makes the next ones smaller at once; small ones
	 * let them grow again. */
	size_t each = wire->batch.operation_count == 0 ? 0 : wire->batch.answer_bytes / wire->batch.operation_count;
	wire->answer_bytes = each > wire->answer_bytes ? each : wire->answer_bytes - (wire->answer_bytes - each) / 8;
}

/*
 * The last Sync has arrived. The next batch is sent before the callbacks of this one, so that the
 * server works during the callbacks. False if the batcher was closed.
 */
static bool batch_answered(wire *wire)
{
	once_batcher *batcher = wire->batcher;
	batch answered = wire->batch;
	count_answer(wire);
	wire->batch = wire->answered;
	wire->answered = answered;
	wire->failures = 0;
	wire->wrote = false;
	wire->state = WIRE_IDLE;
	int64_t took_us = now_us() - wire->sent_us;
	batcher_pace(batcher, answered.operation_count);
	batcher_feed(batcher, wire->number);
	if (batcher->closed || !batch_settle(wire)) {
		return false;
	}
	if (wire->wrote) {
		pace_took(&batcher->pace, took_us, answered.operation_count);
	}
	batch_clear(&wire->answered);
	batcher_defer(batcher);
	return true;
}

/* A Sync. False if it is unexpected, or the batcher was closed. */
static bool unit_ends(wire *wire)
{
	batch *batch = &wire->batch;
	const unit *unit = &batch->units[batch->unit_at];
	if (unit->failure == NULL && (unit->limits || batch->group_at != unit->start + unit->count)) {
		wire_lose(wire, "the server left a statement unanswered");
		return false;
	}
	batch->unit_at++;
	if (batch->unit_at < batch->unit_count) {
		batch->group_at = batch->units[batch->unit_at].start;
		return true;
	}
	return batch_answered(wire);
}

static void skip_unsent(batch *batch, size_t end)
{
	while (batch->group_at < end && batch->groups[batch->group_at].unsent != ONCE_OK) {
		batch->group_at++;
	}
}

/*
 * A result of a batch. Takes it over. Returns false if the connection is gone, or the batcher
 * closed. Results are identified by their order alone, and libpq, out of memory, may lose one (even
 * a Sync): so each unit's results are counted, and nothing counts before the last Sync has arrived.
 */
static bool batch_result(wire *wire, PGresult *result)
{
	batch *batch = &wire->batch;
	unit *unit = &batch->units[batch->unit_at];
	size_t end = unit->start + unit->count;
	ExecStatusType status = PQresultStatus(result);
	skip_unsent(batch, end);
	if (status == PGRES_PIPELINE_SYNC) {
		PQclear(result);
		return unit_ends(wire);
	}
	if (status == PGRES_FATAL_ERROR
	        ? spoils_connection(wire, result)
	        : (batch->group_at == end && !unit->limits) ||
	              status != (unit->failure == NULL ? PGRES_TUPLES_OK : PGRES_PIPELINE_ABORTED)) {
		const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
		wire_lose(wire, message != NULL ? message : "the server's answers do not fit what it was asked");
		PQclear(result);
		return false;
	}
	if (status == PGRES_TUPLES_OK && !unit->limits) {
		batch->answer_bytes += PQresultMemorySize(result);
		batch->groups[batch->group_at].result = result;
	} else if (status == PGRES_FATAL_ERROR && unit->failure == NULL) {
		unit->failure = result;
		unit->failed = unit->limits ? end : batch->group_at;
	} else {
		PQclear(result); /* the limit is set, or was skipped by the server after a failure */
	}
	batch->group_at += batch->group_at < end && !unit->limits;
	unit->limits = false;
	skip_unsent(batch, end);
	return true;
}

/* Takes all available results. */
static void read_results(wire *wire)
{
	while ((wire->state == WIRE_CHECKING || wire->state == WIRE_BUSY) && !PQisBusy(wire->connection)) {
		PGresult *result = PQgetResult(wire->connection);
		if (result == NULL) {
			/*
			 * One ends each statement; several in a row mean that libpq waits for nothing, while
			 * the batcher does.
			 */
			if (++wire->nulls > 2) {
				wire_lose(wire, "the server's answers do not fit what it was asked");
				return;
			}
			continue;
		}
		wire->nulls = 0;
		if (wire->state == WIRE_BUSY) {
			if (!batch_result(wire, result)) {
				return;
			}
		} else {
			bool usable = check_result(wire, result);
			PQclear(result);
			if (!usable) {
				return;
			}
		}
	}
}

static bool is_connected(const wire *wire)
{
	return wire->state == WIRE_CHECKING || wire->state == WIRE_IDLE || wire->state == WIRE_BUSY;
}

void wire_ready(wire *wire, bool readable, bool writable)
{
	(void)writable;
	if (wire->state == WIRE_CONNECTING) {
		connect_on(wire);
		return;
	}
	if (!is_connected(wire)) {
		return;
	}
	/* At the connection's end there may still be answers that arrived before it. */
	bool ended = readable && PQconsumeInput(wire->connection) != 1;
	int unsent = ended ? 0 : PQflush(wire->connection);
	read_results(wire);
	if (wire->batcher->closed || !is_connected(wire)) {
		return;
	}
	if (ended || unsent < 0 || PQstatus(wire->connection) != CONNECTION_OK) {
		wire_lose(wire, NULL);
		return;
	}
	watch(wire, true, unsent > 0);
}

/* ---- Sending ---- */

static void count_sent(wire *wire)
{
	once_batcher_statistics *statistics = &wire->batcher->statistics;
	size_t counts[2] = {0};
	for (size_t i = 0; i < wire->batch.group_count; i++) {
		const group *group = &wire->batch.groups[i];
		counts[kind_starts(group->kind) ? 0 : 1] += group->count;
	}
	for (int i = 0; i < 2; i++) {
		statistics->batches[i] += counts[i] > 0;
		statistics->operations[i] += counts[i];
	}
}

void wire_send(wire *wire)
{
	once_batcher *batcher = wire->batcher;
	wire->state = WIRE_BUSY;
	wire->nulls = 0;
	wire->sent_us = now_us();
	wire->due_ms = batcher_now(batcher) + batcher->options.answer_timeout_ms;
	count_sent(wire);
	if (!batch_send(wire)) {
		wire_lose(wire, PQstatus(wire->connection) == CONNECTION_OK ? "out of memory" : NULL);
		return;
	}
	int unsent = PQflush(wire->connection);
	if (unsent < 0 || PQstatus(wire->connection) != CONNECTION_OK) {
		wire_lose(wire, NULL);
		return;
	}
	watch(wire, true, unsent > 0);
}

void wire_tick(wire *wire, int64_t now)
{
	if (wire->state == WIRE_CLOSED || wire->state == WIRE_IDLE || now < wire->due_ms) {
		return;
	}
	if (wire->state == WIRE_PAUSE) {
		/* One of them checks whether the database is back. */
		if (wire->number > 0 && (wire->batcher->wires[0].down || wire->number >= wire->batcher->pace.connections)) {
			wire->state = WIRE_CLOSED;
		} else {
			wire_start(wire);
		}
		return;
	}
	wire->batcher->statistics.timeouts++;
	wire_lose(wire, wire->state == WIRE_BUSY ? "the server did not answer in time" : "connecting took too long");
}

void wire_retire(wire *wire)
{
	if (wire->state != WIRE_BUSY && wire->state != WIRE_CLOSED) {
		wire->state = WIRE_CLOSED;
		wire->failures = 0;
		disconnect(wire); /* and no loss: the server is where it was */
	}
}

void wire_forget(wire *wire)
{
	unwatch(wire);
}

void wire_close(wire *wire)
{
	PQfinish(wire->connection);
	wire->connection = NULL;
	batch_close(&wire->batch);
	batch_close(&wire->answered);
}
