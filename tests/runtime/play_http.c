/* SPDX-License-Identifier: PostgreSQL */
/*
 * play_http.c: runtime/http_client.c by the command line, for test_http_calls.py: POSTs, and a line of
 * JSON for each result, in the order in which they come.
 *
 *   play_http [timeout=MS] [connect=MS] [keep=BYTES] [at_once=N] [private] [plain] [ca=FILE] [certificate=FILE] [key=FILE] [body=BYTES]
 *             [header=NAME:VALUE] [one_by_one] [times=N] [break_off=N] URL...
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_client.h"
#include "runtime.h"

enum {
	HEADERS_MAX = 8,
	URLS_MAX = 64
};

typedef struct play {
	http_settings settings;
	http_header headers[HEADERS_MAX];
	size_t header_count;
	size_t body_bytes;
	bool one_by_one, withheld;
	long times, break_off;
	const char *urls[URLS_MAX];
	size_t url_count;
} play;

static const char *after(const char *word, const char *name)
{
	size_t length = strlen(name);
	return strncmp(word, name, length) == 0 && word[length] == '=' ? word + length + 1 : NULL;
}

static void read_word(play *play, char *word)
{
	static const struct {
		const char *name;
		size_t offset;
	} numbers[] = {{"timeout", offsetof(http_settings, timeout_ms)},
	               {"connect", offsetof(http_settings, connect_timeout_ms)},
	               {"keep", offsetof(http_settings, response_bytes_max)},
	               {"at_once", offsetof(http_settings, calls_max)}},
	  texts[] = {{"ca", offsetof(http_settings, ca_file)},
	             {"certificate", offsetof(http_settings, certificate_file)},
	             {"key", offsetof(http_settings, key_file)}};
	const char *value = NULL;

	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
		if ((value = after(word, numbers[i].name)) != NULL) {
			int64_t number = atoll(value);
			memcpy((char *)&play->settings + numbers[i].offset, &number, sizeof number);
			return;
		}
	}
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		if ((value = after(word, texts[i].name)) != NULL) {
			memcpy((char *)&play->settings + texts[i].offset, &value, sizeof value);
			return;
		}
	}
	play->settings.allow_private |= strcmp(word, "private") == 0;
	play->settings.allow_plain |= strcmp(word, "plain") == 0;
	play->one_by_one |= strcmp(word, "one_by_one") == 0;
	play->withheld |= strcmp(word, "withheld") == 0;
	if ((value = after(word, "times")) != NULL) {
		play->times = atol(value);
	} else if ((value = after(word, "break_off")) != NULL) {
		play->break_off = atol(value);
	} else if ((value = after(word, "body")) != NULL) {
		play->body_bytes = (size_t)atol(value);
	} else if ((value = after(word, "header")) != NULL && play->header_count < HEADERS_MAX) {
		char *colon = strchr(word, ':');
		*colon = '\0';
		play->headers[play->header_count++] = (http_header){.name = value, .value = colon + 1};
	} else if (strstr(word, "://") != NULL || word[0] == '/') {
		play->urls[play->url_count++] = word;
	}
}

static void print_result(const http_call *call)
{
	static const char *const names[] = {[HTTP_ANSWERED] = "answered",
	                                    [HTTP_UNSENT] = "unsent",
	                                    [HTTP_UNKNOWN] = "unknown",
	                                    [HTTP_FORBIDDEN] = "forbidden",
	                                    [HTTP_WITHHELD] = "withheld"};
	json_t *body = call->response_body != NULL ? json_stringn(call->response_body, call->response_length) : json_null();
	json_t *line = json_pack("{s:s, s:s, s:i, s:I, s:o, s:s?, s:s}", "url", call->url, "result", names[call->result],
	                         "status", call->status, "retry_after_ms", (json_int_t)call->retry_after_ms, "body", body,
	                         "content_type", call->content_type, "problem", call->problem);

	json_dumpf(line, stdout, JSON_COMPACT);
	putchar('\n');
	fflush(stdout);
	json_decref(line);
}

/* Hands back the next result, at the latest after a minute. */
static void take_one(http_client *client)
{
	http_call *call = http_poll(client, 60000);

	if (call == NULL) {
		fputs("play_http: no result within a minute\n", stderr);
		exit(1);
	}
	print_result(call);
	http_call_clear(call);
}

int main(int argc, char **argv)
{
	play play = {
	    .settings = {.timeout_ms = 10000, .connect_timeout_ms = 5000, .calls_max = 64, .response_bytes_max = 65536},
	    .times = 1};
	long begun = 0;

	for (int i = 1; i < argc; i++) {
		read_word(&play, argv[i]);
	}
	char *body = calloc(1, play.body_bytes + 1);
	http_client *client = http_client_new(&play.settings);
	if (body == NULL || client == NULL) {
		return 1;
	}
	memset(body, 'b', play.body_bytes);
	if (play.withheld) {
		http_permit(client, runtime_now_ms());
	}
	http_call *calls = calloc((size_t)play.times * play.url_count, sizeof *calls);
	for (long i = 0; calls != NULL && i < play.times; i++) {
		for (size_t j = 0; j < play.url_count; j++) {
			http_call *call = &calls[begun++];
			*call = (http_call){.url = play.urls[j],
			                    .headers = play.headers,
			                    .header_count = play.header_count,
			                    .body = {.data = body, .length = play.body_bytes}};
			while (!http_start(client, call)) {
				take_one(client);
			}
			while (play.one_by_one && http_in_flight(client) > 0) {
				take_one(client);
			}
		}
	}
	/* break_off: so many results, then no more; 0: all of them. */
	for (long i = 0; http_in_flight(client) > 0 && (play.break_off == 0 || i < play.break_off); i++) {
		take_one(client);
	}
	http_client_free(client);
	free(calls);
	free(body);
	return 0;
}
