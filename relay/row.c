/* SPDX-License-Identifier: PostgreSQL */
/*
 * row.c: see row.h. The formats are those of the send functions of the types
 * (src/backend/utils/adt).
 */
#include "row.h"

#include <endian.h>
#include <string.h>

#include "database.h"

enum {
	ARRAY_HEAD_BYTES = 20, /* dimensions, has NULLs, type, length, lower bound */
	UUID_BYTES = 16
};

/* From PostgreSQL's epoch, 2000-01-01, to Unix's. */
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
	COLUMN_PAYLOAD_BYTES,
	COLUMN_CONTENT_TYPE,
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
		return; /* each text follows its length */
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

static void read_payload(event *event, const PGresult *result)
{
	bool is_bytes = !PQgetisnull(result, 0, COLUMN_PAYLOAD_BYTES);
	int column = is_bytes ? COLUMN_PAYLOAD_BYTES : COLUMN_PAYLOAD;
	size_t length = (size_t)PQgetlength(result, 0, column);
	/* jsonb is sent as a version, one byte, and its text. */
	size_t version = !is_bytes && length > 0 ? 1 : 0;

	event->payload = (once_bytes){.data = event_copy(event, PQgetvalue(result, 0, column) + version, length - version),
	                              .length = length - version};
	if (is_bytes) {
		/* once.emit_bytes requires one; a row written by hand may lack it. */
		const char *type = copy_text(event, result, COLUMN_CONTENT_TYPE);
		event->content_type = type == NULL ? "application/octet-stream" : type;
	}
}

event *row_event(const PGresult *result)
{
	size_t bytes = 0;

	for (int column = COLUMN_TOPIC; column <= COLUMN_CONTENT_TYPE; column++) {
		bytes += (size_t)PQgetlength(result, 0, column) + 2 * sizeof(void *);
	}
	event *event = event_new(bytes);
	event->id = result_bigint(result, 0, COLUMN_ID);
	event->xid = (uint64_t)result_bigint(result, 0, COLUMN_XID);
	event->day = result_integer(result, 0, COLUMN_DAY);
	read_uuid(result, COLUMN_EVENT_ID, event->event_id);
	event->topic = copy_text(event, result, COLUMN_TOPIC);
	event->event_type = copy_text(event, result, COLUMN_EVENT_TYPE);
	event->aggregate_type = copy_text(event, result, COLUMN_AGGREGATE_TYPE);
	event->aggregate_id = copy_text(event, result, COLUMN_AGGREGATE_ID);
	event->tenant = copy_text(event, result, COLUMN_TENANT);
	event->traceparent = copy_text(event, result, COLUMN_TRACEPARENT);
	read_headers(event, result, COLUMN_HEADERS);
	read_payload(event, result);
	/* "infinity" is the largest number. */
	if (__builtin_add_overflow(result_bigint(result, 0, COLUMN_CREATED_AT), EPOCH_US, &event->created_us)) {
		event->created_us = INT64_MAX;
	}
	event->attempts = result_integer(result, 0, COLUMN_ATTEMPTS);
	event->blocked = result_is_true(result, 0, COLUMN_BLOCKED);
	return event;
}
