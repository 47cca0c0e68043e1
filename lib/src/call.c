/* SPDX-License-Identifier: PostgreSQL */
/*
 * call.c: one call of a contract function: its parameters in PostgreSQL's binary format, sent and
 * read. Binary, so that bytes are sent unchanged and no text needs quoting. The files above decide
 * what to call; they never touch libpq's parameter arrays.
 */
#include <limits.h>
#include <stdlib.h>
#include <time.h>

#include "internal.h"

enum {
	FORMAT_TEXT = 0,
	FORMAT_BINARY = 1
};

static void put_int32(unsigned char *at, uint32_t number)
{
	at[0] = (unsigned char)(number >> 24);
	at[1] = (unsigned char)(number >> 16);
	at[2] = (unsigned char)(number >> 8);
	at[3] = (unsigned char)number;
}

static uint32_t get_int32(const unsigned char *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

int32_t int_of_bytes(const void *bytes)
{
	return (int32_t)get_int32(bytes);
}

int32_t result_int(const PGresult *result, int row, int column)
{
	if (PQgetlength(result, row, column) != 4) {
		return 0;
	}
	return (int32_t)get_int32((const unsigned char *)PQgetvalue(result, row, column));
}

int64_t result_int64(const PGresult *result, int row, int column)
{
	if (PQgetlength(result, row, column) != 8) {
		return 0;
	}
	const unsigned char *at = (const unsigned char *)PQgetvalue(result, row, column);
	return (int64_t)((uint64_t)(uint32_t)get_int32(at) << 32 | (uint32_t)get_int32(at + 4));
}

bool result_bool(const PGresult *result, int row, int column)
{
	return PQgetlength(result, row, column) == 1 && PQgetvalue(result, row, column)[0] != 0;
}

once_bytes bytes_of_text(const char *text)
{
	return (once_bytes){.data = text, .length = text == NULL ? 0 : strlen(text)};
}

once_bytes bytes_of_int(int number, bool null, unsigned char scratch[8])
{
	put_int32(scratch, (uint32_t)number);
	return (once_bytes){.data = null ? NULL : scratch, .length = 4};
}

once_bytes bytes_of_failure(once_failure failure, unsigned char scratch[8])
{
	scratch[0] = failure == ONCE_FAILURE_RETRYABLE;
	return (once_bytes){.data = failure == ONCE_FAILURE_RETRYABLE || failure == ONCE_FAILURE_FINAL ? scratch : NULL,
	                    .length = 1};
}

once_bytes bytes_of_redirect(const once_outcome *outcome)
{
	return (once_bytes){.data = outcome->redirect == NULL ? NULL : outcome->redirect->bytes,
	                    .length = outcome->redirect == NULL ? 0 : ONCE_FINGERPRINT_BYTES};
}

void call_start(call *call, enum sql_id id)
{
	memset(call, 0, sizeof *call);
	call->id = id;
}

static void add(call *call, const void *value, size_t length, int format)
{
	if (call->count == CALL_PARAMETERS_MAX) {
		call->too_long = true;
		return;
	}
	if (length > INT_MAX) {
		call->too_long = true;
		length = 0;
	}
	call->values[call->count] = value;
	call->lengths[call->count] = (int)length;
	call->formats[call->count] = format;
	call->count++;
}

void call_add_text(call *call, const char *text)
{
	add(call, text, text == NULL ? 0 : strlen(text), FORMAT_TEXT);
}

void call_add_trace(call *call, const char *traceparent)
{
	call_add_text(call, traceparent_or_null(traceparent));
}

void call_add_bytes(call *call, once_bytes bytes)
{
	add(call, bytes.data, bytes.length, FORMAT_BINARY);
}

void call_add_fingerprint(call *call, const once_fingerprint *fingerprint)
{
	add(call, fingerprint == NULL ? NULL : fingerprint->bytes, fingerprint == NULL ? 0 : ONCE_FINGERPRINT_BYTES,
	    FORMAT_BINARY);
}

void call_add_int(call *call, int32_t number, bool null)
{
	unsigned char *at = call->numbers[call->count];
	put_int32(at, (uint32_t)number);
	add(call, null ? NULL : at, 4, FORMAT_BINARY);
}

void call_add_bigint(call *call, int64_t number, bool null)
{
	unsigned char *at = call->numbers[call->count];
	put_int32(at, (uint32_t)((uint64_t)number >> 32));
	put_int32(at + 4, (uint32_t)number);
	add(call, null ? NULL : at, 8, FORMAT_BINARY);
}

void call_add_bool(call *call, bool value, bool null)
{
	unsigned char *at = call->numbers[call->count];
	at[0] = value;
	add(call, null ? NULL : at, 1, FORMAT_BINARY);
}

void call_add_on_stale(call *call, once_on_stale on_stale)
{
	call_add_bool(call, on_stale == ONCE_ON_STALE_TAKEOVER, on_stale == ONCE_ON_STALE_POLICY);
}

/*
 * array_recv: dimensions, has-nulls flag, element type, then size and lower bound of the one
 * dimension, then each element with its length.
 */
void call_add_array(call *call, uint32_t element_type, size_t count, call_element at, const void *context)
{
	enum {
		HEADER_BYTES = 20
	};
	unsigned char scratch[8];
	size_t size = HEADER_BYTES;
	bool nulls = false;
	for (size_t i = 0; i < count; i++) {
		once_bytes element = at(context, i, scratch);
		size += 4 + (element.data == NULL ? 0 : element.length);
		nulls = nulls || element.data == NULL;
	}
	if (size > INT_MAX || call->count == CALL_PARAMETERS_MAX) {
		call->too_long = true;
		return;
	}
	unsigned char *array = malloc(size);
	if (array == NULL) {
		call->out_of_memory = true;
		return;
	}
	/* An empty array has no dimension. */
	put_int32(array, count > 0);
	put_int32(array + 4, nulls);
	put_int32(array + 8, element_type);
	put_int32(array + 12, (uint32_t)count);
	put_int32(array + 16, 1);
	unsigned char *to = array + HEADER_BYTES;
	for (size_t i = 0; i < count; i++) {
		once_bytes element = at(context, i, scratch);
		put_int32(to, element.data == NULL ? UINT32_MAX : (uint32_t)element.length);
		to += 4;
		if (element.data != NULL && element.length > 0) {
			memcpy(to, element.data, element.length);
			to += element.length;
		}
	}
	call->owned[call->count] = array;
	add(call, array, count > 0 ? size : 12, FORMAT_BINARY);
}

void call_free(call *call)
{
	for (int i = 0; i < CALL_PARAMETERS_MAX; i++) {
		free(call->owned[i]);
		call->owned[i] = NULL;
	}
}

static once_code call_check(const call *call, once_error **error)
{
	if (call->out_of_memory) {
		return error_no_memory(error);
	}
	if (call->too_long) {
		return error_make(error, ONCE_TOO_LARGE, NULL, false, "a parameter is larger than PostgreSQL can take", NULL,
		                  "A value has at most 1 GB; store a reference to it.");
	}
	if (call->count != sql_queries[call->id].parameter_count) {
		return error_usage(error, "the library passes another number of parameters than the query has");
	}
	return ONCE_OK;
}

once_code call_send_on(PGconn *connection, bool prepared, call *call, once_error **error)
{
	const sql_query *query = &sql_queries[call->id];
	once_code code = call_check(call, error);
	if (code != ONCE_OK) {
		return code;
	}
	int sent = prepared ? PQsendQueryPrepared(connection, query->name, call->count, call->values, call->lengths,
	                                          call->formats, FORMAT_BINARY)
	                    : PQsendQueryParams(connection, query->text, call->count, NULL, call->values, call->lengths,
	                                        call->formats, FORMAT_BINARY);
	return sent == 1 ? ONCE_OK : error_of_connection(error, connection);
}

/* Prepares it on the connection. */
static once_code prepare(once_session *session, enum sql_id id, prepared prepared, once_error **error)
{
	PGresult *result = PQprepare(session->connection, prepared.name, sql_queries[id].text, 0, NULL);
	const char *sqlstate = text_or_empty(PQresultErrorField(result, PG_DIAG_SQLSTATE));
	once_code code = ONCE_OK;
	*prepared.known = PQresultStatus(result) == PGRES_COMMAND_OK;
	/*
	 * It may exist already: that is equally good, unless the error has aborted the caller's
	 * transaction.
	 */
	if (!*prepared.known && (!prepared_missed(session, prepared, true, false, sqlstate) ||
	                         PQtransactionStatus(session->connection) != PQTRANS_IDLE)) {
		code = error_of_result(error, session->connection, result);
	}
	PQclear(result);
	return code;
}

static PGresult *execute(once_session *session, const call *call, bool prepared)
{
	const sql_query *query = &sql_queries[call->id];
	return prepared ? PQexecPrepared(session->connection, query->name, call->count, call->values, call->lengths,
	                                 call->formats, FORMAT_BINARY)
	                : PQexecParams(session->connection, query->text, call->count, NULL, call->values, call->lengths,
	                               call->formats, FORMAT_BINARY);
}

/* A statement prepared earlier may be gone. Outside of a transaction that does no harm. */
static PGresult *execute_prepared(once_session *session, const call *call, prepared prepared, bool fresh)
{
	bool alone = PQtransactionStatus(session->connection) == PQTRANS_IDLE;
	PGresult *got = execute(session, call, true);
	if (PQresultStatus(got) == PGRES_TUPLES_OK) {
		if (!fresh) {
			prepared_met(session);
		}
		return got;
	}
	const char *sqlstate = text_or_empty(PQresultErrorField(got, PG_DIAG_SQLSTATE));
	if (prepared_missed(session, prepared, false, fresh, sqlstate) && alone) {
		PQclear(got);
		got = execute(session, call, false);
	}
	return got;
}

once_code call_run(once_session *session, call *call, PGresult **result, once_error **error)
{
	PGresult *got = NULL;
	once_code code = call_check(call, error);
	prepared_tidy(session);
	prepared prepared = prepared_query(session, call->id);
	bool fresh = prepared.name != NULL && !*prepared.known;
	if (code == ONCE_OK && fresh) {
		code = prepare(session, call->id, prepared, error);
	}
	if (code == ONCE_OK) {
		got = prepared.name != NULL ? execute_prepared(session, call, prepared, fresh) : execute(session, call, false);
		if (PQresultStatus(got) != PGRES_TUPLES_OK) {
			code = error_of_result(error, session->connection, got);
			PQclear(got);
			got = NULL;
		}
	}
	call_free(call);
	*result = got;
	return code;
}

once_code check_intent(const once_session *session, const once_intent *intent, once_error **error)
{
	if (session == NULL || intent == NULL) {
		return error_usage(error, "session and intent must not be NULL");
	}
	return ONCE_OK;
}

int64_t now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t now_ms(void)
{
	return now_us() / 1000;
}

void sleep_ms(int64_t duration_ms)
{
	struct timespec left = {.tv_sec = (time_t)(duration_ms / 1000), .tv_nsec = (long)(duration_ms % 1000) * 1000000};
	while (nanosleep(&left, &left) != 0) {
		/* A signal came: its handler has run; continue the pause. */
	}
}
