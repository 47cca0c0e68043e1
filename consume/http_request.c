/* SPDX-License-Identifier: PostgreSQL */
/* http_request.c: see http_request.h. */
#include "http_request.h"

#include "reasons.h"
#include "utf8.h"

#include <stdio.h>
#include <string.h>

enum {
	SHOWN_BODY_BYTES = 300, /* of an answer, in the text of a failure */
	OWN_HEADERS = 5
};

/* RFC 9110, 5.6.2: the characters of a header's name. */
static bool is_token(const char *name)
{
	static const char characters[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

	return name[0] != '\0' && name[strspn(name, characters)] == '\0';
}

static bool is_value(const char *value, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)value[i];
		if ((c < ' ' && c != '\t') || c == 0x7f) {
			return false;
		}
	}
	return length > 0;
}

/* Headers of the connection, or set by us: the broker's values are not passed on. */
static bool is_ours(const char *name)
{
	/* clang-format off */
	static const char *const names[] = {
		"Connection", "Content-Length", "Expect", "Host", "Idempotency-Key", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "TE",
		"Trailer", "Transfer-Encoding", "Upgrade", "Content-Encoding", "Pgonce-Message-Id", "Pgonce-Message-Topic", "Pgonce-Message-Key"};
	/* clang-format on */

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		if (strcasecmp(names[i], name) == 0) {
			return true;
		}
	}
	return false;
}

void http_request_make(const message *message, const char *url, arena *arena, http_call *call)
{
	size_t count = 0;
	const source_header *theirs = message_headers(message->headers, arena, &count);
	http_header *headers = arena_take(arena, (count + OWN_HEADERS) * sizeof *headers);
	size_t used = 0;
	bool has_type = false;

	for (size_t i = 0; i < count; i++) {
		if (is_token(theirs[i].name) && !is_ours(theirs[i].name) &&
		    is_value(theirs[i].value.data, theirs[i].value.length)) {
			headers[used++] = (http_header){.name = theirs[i].name, .value = theirs[i].value.data};
			has_type = has_type || strcasecmp(theirs[i].name, "Content-Type") == 0;
		}
	}
	/* An RFC 8941 string; for printable ASCII, such as an id, it is the same as a JSON string. */
	headers[used++] = (http_header){.name = "Idempotency-Key", .value = json_text_quote(arena, message->id)};
	headers[used++] = (http_header){.name = "Pgonce-Message-Id", .value = message_own_id(message)};
	if (is_value(message->topic, strlen(message->topic))) {
		headers[used++] = (http_header){.name = "Pgonce-Message-Topic", .value = message->topic};
	}
	if (message->key != NULL && is_value(message->key, strlen(message->key))) {
		headers[used++] = (http_header){.name = "Pgonce-Message-Key", .value = message->key};
	}
	if (!has_type) {
		headers[used++] =
		    (http_header){.name = "Content-Type",
		                  .value = message->json != JSON_NO ? "application/json" : "application/octet-stream"};
	}
	*call = (http_call){.url = url, .headers = headers, .header_count = used, .body = message->payload};
}

answer_kind http_request_result(const http_call *call, failure *failure)
{
	failure_set(failure, FAILURE_FAULT, "%s", call->problem);
	switch (call->result) {
	case HTTP_UNSENT:
	case HTTP_FORBIDDEN:
	case HTTP_WITHHELD:
		return ANSWER_UNSENT;
	case HTTP_UNKNOWN:
		return ANSWER_FAILED;
	case HTTP_ANSWERED:
		break;
	}
	if (call->status >= 200 && call->status < 300) {
		return ANSWER_APPLIED;
	}
	size_t length = call->response_body == NULL ? 0 : call->response_length;
	length = length < SHOWN_BODY_BYTES ? length : SHOWN_BODY_BYTES;
	if (length == 0 || memchr(call->response_body, '\0', length) != NULL) {
		failure_set(failure, FAILURE_FAULT, "the endpoint answered %d", call->status);
	} else {
		failure_set(failure, FAILURE_FAULT, "the endpoint answered %d: %.*s", call->status, (int)length,
		            call->response_body);
	}
	return call->status == 429 || call->status == 503 ? ANSWER_LATER : ANSWER_FAILED;
}

once_outcome http_request_outcome(const http_call *call, const failure *failure, arena *arena)
{
	once_outcome outcome = {0};

	if (call->result != HTTP_ANSWERED) {
		outcome.error_code = HTTP_REASON_NO_ANSWER;
		outcome.error_message = failure->text;
		return outcome;
	}
	outcome.response_status = call->status;
	if (call->response_body != NULL) {
		outcome.response_body = (once_bytes){.data = call->response_body, .length = call->response_length};
	}
	if (call->content_type != NULL && utf8_is_text(call->content_type, strlen(call->content_type))) {
		outcome.response_headers =
		    arena_format(arena, "{\"content-type\": %s}", json_text_quote(arena, call->content_type));
	}
	if (call->status < 200 || call->status >= 300) {
		outcome.error_code = HTTP_REASON_REFUSED;
		outcome.error_message = failure->text;
	}
	return outcome;
}
