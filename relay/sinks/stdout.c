/* SPDX-License-Identifier: PostgreSQL */
/*
 * stdout.c: events as JSON lines on standard output, for pipes, files and trying things out. An
 * event is delivered when its line has been written. When the reader is gone, the relay ends
 * (pipeline.c): this sink never becomes available again.
 */
#include "sink.h"

#include <errno.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory.h"

enum {
	TAKEN_MAX = 4096,
	BUFFER_BYTES_MAX = 4 << 20,
	/* A pipe that polls as writable accepts this much without blocking (pipe(7): PIPE_BUF). */
	PIECE_BYTES = 4096
};

typedef struct taken {
	sink_message *message;
	size_t end; /* of its line in the buffer */
} taken;

struct sink {
	char *buffer;
	size_t length, room, written;
	taken taken[TAKEN_MAX];
	size_t first, count; /* a ring */
	int64_t permit_ms;
	bool within_line; /* the last written byte is not the end of a line */
	int broken;       /* errno of a write that failed */
};

static const config_option options[] = {{.name = NULL}};

/* The lines of two writers would mix. */
static atomic_bool is_open = false;
/*
 * The rest of a line that was begun when its sink was closed: after a reload, the next sink writes
 * it first.
 */
static char *begun;
static size_t begun_length;

static bool stdout_check(const config *config, const config_section *section, char **problem)
{
	(void)config;
	(void)section;
	(void)problem;
	return true;
}

static bool stdout_open(const speaker *speaker, const config *config, const config_section *section, sink **result,
                        char **problem)
{
	(void)speaker;
	if (atomic_exchange(&is_open, true)) {
		*problem = config_problem(config, section, NULL,
		                          "another relay of this process writes to standard output already; run it alone");
		return false;
	}
	*result = memory_take(sizeof **result);
	(*result)->permit_ms = INT64_MAX;
	(*result)->buffer = begun;
	(*result)->length = (*result)->room = begun_length;
	(*result)->within_line = begun != NULL;
	begun = NULL;
	begun_length = 0;
	return true;
}

/*
 * The end of the partly written line; without such a line, the end of the written part. JSON
 * contains no line ends.
 */
static size_t line_end(const sink *sink)
{
	const char *end =
	    sink->within_line ? memchr(sink->buffer + sink->written, '\n', sink->length - sink->written) : NULL;

	return end == NULL ? sink->written : (size_t)(end - sink->buffer) + 1;
}

static void stdout_close(sink *sink)
{
	begun_length = sink->broken == 0 ? line_end(sink) - sink->written : 0;
	if (begun_length > 0) {
		begun = memory_array(NULL, begun_length, 1);
		memcpy(begun, sink->buffer + sink->written, begun_length);
	}
	free(sink->buffer);
	free(sink);
	atomic_store(&is_open, false);
}

static void append(sink *sink, const char *data, size_t length)
{
	if (sink->room - sink->length < length) {
		sink->room = 2 * sink->room + length + 4096;
		sink->buffer = memory_array(sink->buffer, sink->room, 1);
	}
	memcpy(sink->buffer + sink->length, data, length);
	sink->length += length;
}

static void append_text(sink *sink, const char *text)
{
	append(sink, text, strlen(text));
}

/*
 * The text as a JSON string. Text from PostgreSQL is UTF-8, of which only quotes, backslashes and
 * control characters must be escaped.
 */
static void append_string(sink *sink, const char *text)
{
	char escape[8];

	append(sink, "\"", 1);
	for (const char *from = text; *from != '\0';) {
		size_t plain = 0;
		while ((unsigned char)from[plain] >= ' ' && from[plain] != '"' && from[plain] != '\\') {
			plain++;
		}
		append(sink, from, plain);
		from += plain;
		if (*from != '\0') {
			snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)*from++);
			append_text(sink, escape);
		}
	}
	append(sink, "\"", 1);
}

static void append_payload(sink *sink, const sink_message *message)
{
	if (!message->is_bytes) {
		append_text(sink, "\"payload\": ");
		append(sink, message->body.data, message->body.length);
		return;
	}
	char *base64 = memory_array(NULL, message->body.length / 3 * 4 + 5, 1);
	EVP_EncodeBlock((unsigned char *)base64, message->body.data, (int)message->body.length);
	append_text(sink, "\"payload_base64\": \"");
	append_text(sink, base64);
	append_text(sink, "\", \"content_type\": ");
	append_string(sink, message->content_type);
	free(base64);
}

/*
 * {"destination": ..., "id": ..., "key": ..., "headers": {...}, "payload": ...}: the payload is its
 * JSON; for bytes there are "payload_base64" and "content_type" instead.
 */
static bool stdout_send(sink *sink, sink_message *message)
{
	if (sink->count == TAKEN_MAX || sink->length - sink->written > BUFFER_BYTES_MAX) {
		return false;
	}
	append_text(sink, "{\"destination\": ");
	append_string(sink, message->destination);
	append_text(sink, ", \"id\": ");
	append_string(sink, message->event_id);
	append_text(sink, ", \"key\": ");
	if (message->key == NULL) {
		append_text(sink, "null");
	} else {
		append_string(sink, message->key);
	}
	append_text(sink, ", \"headers\": {");
	for (size_t i = 0; i < message->header_count; i++) {
		append_text(sink, i == 0 ? "" : ", ");
		append_string(sink, message->headers[i].name);
		append_text(sink, ": ");
		append_string(sink, message->headers[i].value);
	}
	append_text(sink, "}, ");
	append_payload(sink, message);
	append_text(sink, "}\n");
	sink->taken[(sink->first + sink->count++) % TAKEN_MAX] = (taken){.message = message, .end = sink->length};
	return true;
}

static void stdout_permit(sink *sink, int64_t until_ms)
{
	sink->permit_ms = until_ms;
	if (until_ms == 0) {
		sink->length = line_end(sink);
	}
}

/*
 * Writes as much as standard output accepts, waiting at most timeout_ms until it accepts some. A
 * line that was begun is finished.
 */
static void write_out(sink *sink, int timeout_ms)
{
	while (sink->written < sink->length && sink->broken == 0) {
		struct pollfd ready = {.fd = STDOUT_FILENO, .events = POLLOUT};
		if (poll(&ready, 1, timeout_ms) <= 0) {
			return;
		}
		size_t left = (runtime_now_ms() < sink->permit_ms ? sink->length : line_end(sink)) - sink->written;
		if (left == 0) {
			return;
		}
		ssize_t done = write(STDOUT_FILENO, sink->buffer + sink->written, left < PIECE_BYTES ? left : PIECE_BYTES);
		if (done < 0 && errno != EINTR && errno != EAGAIN) {
			sink->broken = errno;
		}
		sink->written += done < 0 ? 0 : (size_t)done;
		sink->within_line = done > 0 ? sink->buffer[sink->written - 1] != '\n' : sink->within_line;
		timeout_ms = 0;
	}
}

/* Written lines make room: the remaining lines move to the front. */
static void shift(sink *sink)
{
	if (sink->written == 0 || (sink->written < sink->length && sink->written < BUFFER_BYTES_MAX / 2)) {
		return;
	}
	memmove(sink->buffer, sink->buffer + sink->written, sink->length - sink->written);
	for (size_t i = 0; i < sink->count; i++) {
		/* Lines that are written and not reported yet stay written. */
		size_t *end = &sink->taken[(sink->first + i) % TAKEN_MAX].end;
		*end -= *end < sink->written ? *end : sink->written;
	}
	sink->length -= sink->written;
	sink->written = 0;
}

static size_t stdout_poll(sink *sink, int timeout_ms, sink_result *results, size_t most)
{
	size_t count = 0;

	write_out(sink, timeout_ms);
	while (count < most && sink->count > 0) {
		const taken *next = &sink->taken[sink->first];
		bool delivered = next->end <= sink->written;
		bool withheld = next->end > sink->length;
		if (!delivered && !withheld && sink->broken == 0) {
			break;
		}
		results[count] = (sink_result){.message = next->message,
		                               .verdict = delivered  ? SINK_DELIVERED
		                                          : withheld ? SINK_WITHHELD
		                                                     : SINK_UNAVAILABLE,
		                               .retry_after_ms = -1};
		if (!delivered && !withheld) {
			snprintf(results[count].problem, sizeof results[count].problem, "standard output cannot be written: %s",
			         strerror(sink->broken));
		}
		count++;
		sink->first = (sink->first + 1) % TAKEN_MAX;
		sink->count--;
	}
	shift(sink);
	return count;
}

const sink_class sink_stdout = {
    .name = "stdout",
    .options = options,
    .in_flight = 1000,
    .open = stdout_open,
    .check = stdout_check,
    .send = stdout_send,
    .poll = stdout_poll,
    .permit = stdout_permit,
    .close = stdout_close,
};
