/* SPDX-License-Identifier: PostgreSQL */
/* row.c: see row.h. The formats are those of the send and receive functions of the types (src/backend/utils/adt). */
#include "row.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

/* pg_type.dat */
enum {
	OID_INT8 = 20,
	OID_INT4 = 23,
	OID_XID8 = 5069
};

enum {
	ARRAY_HEAD_BYTES = 20, /* dimensions, has NULLs, type, length, lower bound */
	UUID_BYTES = 16
};

/* From PostgreSQL's epoch, 2000-01-01, to that of Unix. */
#define EPOCH_US INT64_C(946684800000000)

/* The columns of relay_fetch.sql and relay_due.sql. */
enum {
	COLUMN_ID,
	COLUMN_XID,
	COLUMN_DAY,
	COLUMN_EVENT_ID,
	COLUMN_TOPIC,
	COLUMN_EVENT_TYPE,
	COLUMN_AGGREGATE_TYPE,
	COLUMN_AGGREGATE_ID,
	COLUMN_TENANT,
	COLUMN_TRACEPARENT,
	COLUMN_HEADERS,
	COLUMN_PAYLOAD,
	COLUMN_CREATED_AT,
	COLUMN_ATTEMPTS,
	COLUMN_BLOCKED
};

static uint32_t get_u32(const char *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof value);
	return be32toh(value);
}

static char *put_u32(char *at, uint32_t value)
{
	value = htobe32(value);
	memcpy(at, &value, sizeof value);
	return at + sizeof value;
}

static char *put_u64(char *at, uint64_t value)
{
	value = htobe64(value);
	memcpy(at, &value, sizeof value);
	return at + sizeof value;
}

/* ---- reading */

int64_t row_int8(const PGresult *result, int row, int column)
{
	uint64_t value = 0;

	if (PQgetlength(result, row, column) == sizeof value) {
		memcpy(&value, PQgetvalue(result, row, column), sizeof value);
	}
	return (int64_t)be64toh(value);
}

int32_t row_int4(const PGresult *result, int row, int column)
{
	return PQgetlength(result, row, column) == 4 ? (int32_t)get_u32(PQgetvalue(result, row, column)) : 0;
}

bool row_bool(const PGresult *result, int row, int column)
{
	return PQgetlength(result, row, column) == 1 && PQgetvalue(result, row, column)[0] != 0;
}

char *row_text(const PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NULL : memory_copy(PQgetvalue(result, row, column));
}

static const char *copy_text(event *event, const PGresult *result, int column)
{
	if (PQgetisnull(result, 0, column)) {
		return NULL;
	}
	return event_copy(event, PQgetvalue(result, 0, column), (size_t)PQgetlength(result, 0, column));
}

static void read_uuid(const PGresult *result, int column, char text[EVENT_ID_BYTES])
{
	static const char digits[] = "0123456789abcdef";
	const unsigned char *bytes = (const unsigned char *)PQgetvalue(result, 0, column);
	char *to = text;

	for (int i = 0; i < UUID_BYTES && PQgetlength(result, 0, column) == UUID_BYTES; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10) {
			*to++ = '-';
		}
		*to++ = digits[bytes[i] >> 4];
		*to++ = digits[bytes[i] & 15];
	}
	*to = '\0';
}

/* A text[] of names and values in turn, without NULLs. */
static void read_headers(event *event, const PGresult *result, int column)
{
	const char *at = PQgetvalue(result, 0, column);
	const char *end = at + PQgetlength(result, 0, column);

	if (PQgetisnull(result, 0, column) || end - at < ARRAY_HEAD_BYTES) {
		return;
	}
	size_t count = get_u32(at + 12) / 2;
	at += ARRAY_HEAD_BYTES;
	if (count > (size_t)(end - at) / 8) {
		return; /* each text has its length before it */
	}
	sink_header *headers = event_get(event, count * sizeof *headers);
	for (size_t i = 0; i < count; i++) {
		const char *texts[2] = {"", ""};
		for (int part = 0; part < 2 && end - at >= 4; part++) {
			size_t length = get_u32(at);
			at += 4;
			if (length > (size_t)(end - at)) {
				return;
			}
			texts[part] = event_copy(event, at, length);
			at += length;
		}
		headers[i] = (sink_header){.name = texts[0], .value = texts[1]};
	}
	event->headers = headers;
	event->header_count = count;
}

event *row_event(const PGresult *result)
{
	size_t bytes = 0;

	for (int column = COLUMN_TOPIC; column <= COLUMN_PAYLOAD; column++) {
		bytes += (size_t)PQgetlength(result, 0, column) + 2 * sizeof(void *);
	}
	event *event = event_new(bytes);
	event->id = row_int8(result, 0, COLUMN_ID);
	event->xid = (uint64_t)row_int8(result, 0, COLUMN_XID);
	event->day = row_int4(result, 0, COLUMN_DAY);
	read_uuid(result, COLUMN_EVENT_ID, event->event_id);
	event->topic = copy_text(event, result, COLUMN_TOPIC);
	event->event_type = copy_text(event, result, COLUMN_EVENT_TYPE);
	event->aggregate_type = copy_text(event, result, COLUMN_AGGREGATE_TYPE);
	event->aggregate_id = copy_text(event, result, COLUMN_AGGREGATE_ID);
	event->tenant = copy_text(event, result, COLUMN_TENANT);
	event->traceparent = copy_text(event, result, COLUMN_TRACEPARENT);
	read_headers(event, result, COLUMN_HEADERS);
	/* jsonb is sent as a version, one byte, and its text. */
	int length = PQgetlength(result, 0, COLUMN_PAYLOAD);
	size_t payload = length > 0 ? (size_t)length - 1 : 0;
	event->payload = (once_bytes){
	    .data = event_copy(event, PQgetvalue(result, 0, COLUMN_PAYLOAD) + (length > 0), payload), .length = payload};
	/* "infinity" is the largest number. */
	if (__builtin_add_overflow(row_int8(result, 0, COLUMN_CREATED_AT), EPOCH_US, &event->created_us)) {
		event->created_us = INT64_MAX;
	}
	event->attempts = row_int4(result, 0, COLUMN_ATTEMPTS);
	event->blocked = row_bool(result, 0, COLUMN_BLOCKED);
	return event;
}

/* ---- writing */

static char *put_head(char *at, uint32_t type, size_t count)
{
	at = put_u32(at, 1);
	at = put_u32(at, 0);
	at = put_u32(at, type);
	at = put_u32(at, (uint32_t)count);
	return put_u32(at, 1);
}

static char *put_int8(char *at, uint64_t value)
{
	return put_u64(put_u32(at, sizeof value), value);
}

void row_arrays_fill(row_arrays *arrays, const reader_item *items, size_t count)
{
	if (count > arrays->room) {
		arrays->room = count;
		arrays->ids = memory_array(arrays->ids, 1, ARRAY_HEAD_BYTES + count * 12);
		arrays->xids = memory_array(arrays->xids, 1, ARRAY_HEAD_BYTES + count * 12);
		arrays->days = memory_array(arrays->days, 1, ARRAY_HEAD_BYTES + count * 8);
	}
	char *ids = put_head(arrays->ids, OID_INT8, count);
	char *xids = put_head(arrays->xids, OID_XID8, count);
	char *days = put_head(arrays->days, OID_INT4, count);
	for (size_t i = 0; i < count; i++) {
		ids = put_int8(ids, (uint64_t)items[i].id);
		xids = put_int8(xids, items[i].xid);
		days = put_u32(put_u32(days, 4), (uint32_t)items[i].day);
	}
	arrays->ids_length = (size_t)(ids - arrays->ids);
	arrays->xids_length = (size_t)(xids - arrays->xids);
	arrays->days_length = (size_t)(days - arrays->days);
}

char *row_int8_array(const int64_t *numbers, size_t count, size_t *length)
{
	char *array = memory_get(ARRAY_HEAD_BYTES + count * 12);
	char *at = put_head(array, OID_INT8, count);

	for (size_t i = 0; i < count; i++) {
		at = put_int8(at, (uint64_t)numbers[i]);
	}
	*length = (size_t)(at - array);
	return array;
}

void row_arrays_free(row_arrays *arrays)
{
	free(arrays->ids);
	free(arrays->xids);
	free(arrays->days);
	*arrays = (row_arrays){0};
}
