/* SPDX-License-Identifier: PostgreSQL */
/* nats_message.c: see nats_message.h. */
#include "nats_message.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "broker.h"
#include "runtime.h"

/*
 * "$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE...", or with a domain and an account before the
 * stream. Sequence 0: another format.
 */
static void read_reply(delivery *delivery, const char *reply, const char *stream, char *coordinates,
                       size_t coordinates_bytes)
{
	const char *words[16];
	int count = 0;

	for (const char *at = reply; at != NULL && count < 16; at = strchr(at, '.')) {
		at += count > 0;
		words[count++] = at;
	}
	int sequence_at = count == 9 ? 5 : 7;
	delivery->sequence = count > sequence_at ? strtoll(words[sequence_at], NULL, 10) : 0;
	delivery->nth = count > sequence_at + 1 ? strtoll(words[sequence_at + 1], NULL, 10) : 0;
	delivery->created_ms = count > sequence_at + 2 ? strtoll(words[sequence_at + 2], NULL, 10) / 1000000 : 0;
	snprintf(coordinates, coordinates_bytes, "%s/%" PRId64, stream, delivery->sequence);
}

bool nats_message_has_place(natsMsg *message)
{
	delivery read;
	char coordinates[1];

	read_reply(&read, natsMsg_GetReply(message), "", coordinates, sizeof coordinates);
	return read.sequence > 0 && read.nth > 0;
}

static void add_headers(delivery *delivery, natsMsg *message, const char *const *names, int name_count)
{
	source_header *header = delivery->headers;
	size_t left = delivery->message.header_count;

	for (int i = 0; i < name_count; i++) {
		const char **values = NULL;
		int count = 0;
		if (natsMsgHeader_Values(message, names[i], &values, &count) != NATS_OK) {
			continue;
		}
		for (int j = 0; j < count && left > 0; j++, left--) {
			const char *value = values[j] == NULL ? "" : values[j];
			*header++ = (source_header){.name = names[i], .value = {.data = value, .length = strlen(value)}};
		}
		free((void *)values);
	}
	delivery->message.header_count -= left;
}

delivery *nats_message_wrap(natsMsg *message, const char *stream)
{
	const char **names = NULL;
	const char *reply = natsMsg_GetReply(message);
	size_t coordinates_bytes = strlen(stream) + 32;
	size_t header_count = 0;
	int name_count = 0, value_count;
	char *text;

	if (natsMsgHeader_Keys(message, &names, &name_count) != NATS_OK) {
		name_count = 0;
	}
	for (int i = 0; i < name_count; i++) {
		const char **values = NULL;
		header_count +=
		    natsMsgHeader_Values(message, names[i], &values, &value_count) == NATS_OK ? (size_t)value_count : 0;
		free((void *)values);
	}
	delivery *made = delivery_new(header_count, coordinates_bytes, &text);
	made->owned = message;
	made->reply = reply;
	made->touched_ms = runtime_now_ms();
	made->message.topic = natsMsg_GetSubject(message);
	made->message.payload = (once_bytes){.data = natsMsg_GetDataLength(message) > 0 ? natsMsg_GetData(message) : "",
	                                     .length = (size_t)natsMsg_GetDataLength(message)};
	add_headers(made, message, names, name_count);
	read_reply(made, reply, stream, text, coordinates_bytes);
	made->serial = (uint64_t)made->sequence;
	made->message.coordinates = text;
	free((void *)names);
	return made;
}

/*
 * The relay's spelling: NATS clients distinguish upper and lower case, and parked messages have the
 * handler's name for it.
 */
static const char *name_of(const source_header *header)
{
	return strcasecmp(header->name, "content-type") == 0 ? "Content-Type" : header->name;
}

/* A header's value must be one line. */
static natsStatus copy_header(natsMsg *copy, const source_header *header)
{
	char *value = strndup(header->value.data == NULL ? "" : header->value.data, header->value.length);

	for (char *at = value; at != NULL && (at = strpbrk(at, "\r\n")) != NULL;) {
		*at = ' ';
	}
	natsStatus status = value == NULL ? NATS_NO_MEMORY : natsMsgHeader_Add(copy, name_of(header), value);
	free(value);
	return status;
}

static natsStatus copy_headers(natsMsg *copy, const source_header *headers, size_t count)
{
	natsStatus status = NATS_OK;

	for (size_t i = 0; i < count && status == NATS_OK; i++) {
		/*
		 * With the message's Nats-Msg-Id the server would take the copy for a duplicate of the
		 * message, and with its Nats-Expected-Stream refuse it.
		 */
		if (!broker_header_steers("nats", headers[i].name)) {
			status = copy_header(copy, &headers[i]);
		}
	}
	return status;
}

natsStatus nats_message_copy(natsMsg **copy, const char *topic, const source_message *message,
                             const source_header *more, size_t more_count)
{
	natsStatus status = natsMsg_Create(copy, topic, NULL, message->payload.data, (int)message->payload.length);

	if (status == NATS_OK) {
		status = copy_headers(*copy, message->headers, message->header_count);
	}
	return status == NATS_OK ? copy_headers(*copy, more, more_count) : status;
}
