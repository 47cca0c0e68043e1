/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_answer.c: what an endpoint answers to a webhook or to a message's handler, through libcurl.
 * Whatever it sends: a request that was sent is never taken for unsent; an answer has a status, a
 * body within its bounds, and a wait that is -1 or more than nothing; what is stored of it is text
 * and JSON. tests/fuzz/test_fuzz.py builds and runs it. Input: the bytes on the connection; or,
 * after 'r', a number to wait that comes out as it went in; after 'd', a date that does.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"
#include "http_client.h"
#include "http_request.h"
#include "utf8.h"

enum {
	BODY_MAX = 256
};

static int endpoint = -1;

/* libcurl's connection is one end of a pair of ours, so that thousands of them take no port. */
int connect(int fd, const struct sockaddr *address, socklen_t length)
{
	int pair[2];

	(void)address;
	(void)length;
	must(endpoint < 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	must(dup2(pair[0], fd) == fd && fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	close(pair[0]);
	endpoint = pair[1];
	return 0;
}

static void check_answered(const http_call *call)
{
	must(call->status >= 100 && call->status <= 999 && call->problem[0] == '\0');
	must(call->retry_after_ms == -1 || call->retry_after_ms > 0);
	must(call->response_length <= BODY_MAX && (call->response_length == 0 || call->response_body != NULL));
	must(call->content_type == NULL || strpbrk(call->content_type, "\r\n") == NULL);
}

static void check_problem(const http_call *call)
{
	must(call->problem[0] != '\0');
	for (const char *at = call->problem; *at != '\0'; at++) {
		must(*at >= ' ' && *at <= '~');
	}
}

/* What a handler's answer means, and what is stored of it. */
static void check_meaning(const http_call *call)
{
	arena arena = {0};
	failure failure;
	answer_kind kind = http_request_result(call, &failure);
	once_outcome outcome = http_request_outcome(call, &failure, &arena);

	must((kind == ANSWER_APPLIED) == (call->result == HTTP_ANSWERED && call->status >= 200 && call->status <= 299));
	must((kind == ANSWER_UNSENT) == (call->result == HTTP_UNSENT || call->result == HTTP_FORBIDDEN));
	must(utf8_is_text(failure.text, strlen(failure.text)));
	must((outcome.error_code == NULL) == (kind == ANSWER_APPLIED));
	if (outcome.response_headers != NULL) {
		json_t *headers = json_loads(outcome.response_headers, 0, NULL);
		must(json_is_object(headers));
		json_decref(headers);
	}
	arena_clear(&arena);
}

static http_call *call_with(http_client *client, http_call *call, const char *answer, size_t length)
{
	char request[4096];

	*call = (http_call){.url = "http://127.0.0.1:9/", .body = {.data = "{}", .length = 2}};
	must(http_start(client, call));
	/* It is on its way at the first look; then all of the answer is there. */
	http_call *done = http_poll(client, 0);
	must(done == NULL && endpoint >= 0);
	must(read(endpoint, request, sizeof request) > 0);
	must(send(endpoint, answer, length, MSG_NOSIGNAL) == (ssize_t)length);
	must(shutdown(endpoint, SHUT_WR) == 0);
	done = http_poll(client, 10000);
	close(endpoint);
	endpoint = -1;
	return done;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const http_settings settings = {.timeout_ms = 10000,
	                                       .connect_timeout_ms = 10000,
	                                       .calls_max = 1,
	                                       .response_bytes_max = BODY_MAX,
	                                       .allow_private = true,
	                                       .allow_plain = true};
	http_client *client = http_client_new(&settings);
	input in = {data, size};
	char number[160] = "";
	uint64_t seconds = 0;
	time_t date = 0;
	http_call call;

	must(client != NULL);
	if (size > 0 && data[0] == 'r') {
		take_byte(&in);
		seconds = take_number(&in) >> (take_byte(&in) & 63);
		snprintf(number, sizeof number, "HTTP/1.1 503 Busy\r\nRetry-After: %" PRIu64 "\r\nContent-Length: 0\r\n\r\n",
		         seconds);
	} else if (size > 0 && data[0] == 'd') {
		struct tm utc;
		take_byte(&in);
		date = (time_t)(take_number(&in) % UINT64_C(253370764800)) + 1; /* to the end of year 9998 */
		must(gmtime_r(&date, &utc) != NULL);
		must(strftime(number, sizeof number,
		              "HTTP/1.1 403 No\r\nDate: %a, %d %b %Y %H:%M:%S GMT\r\nContent-Length: 0\r\n\r\n", &utc) > 0);
	}
	http_call *done = number[0] != '\0' ? call_with(client, &call, number, strlen(number))
	                                    : call_with(client, &call, (const char *)data, size);
	must(done == &call && (call.result == HTTP_ANSWERED || call.result == HTTP_UNKNOWN));
	if (call.result == HTTP_ANSWERED) {
		check_answered(&call);
	} else {
		check_problem(&call);
	}
	must(date == 0 || call.date_s == (int64_t)date);
	if (number[0] != '\0' && seconds > 0 && seconds < UINT32_MAX) {
		must(call.retry_after_ms == (int64_t)seconds * 1000);
	}
	check_meaning(&call);
	http_call_clear(&call);
	http_client_free(client);
	return 0;
}
