/* SPDX-License-Identifier: PostgreSQL */
/*
 * prometheus.c: see prometheus.h. The HTTP API: "Querying basics" and "HTTP API" of Prometheus's
 * manual.
 */
#include "prometheus.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_client.h"
#include "memory.h"

enum {
	TIMEOUT_MS = 3000,
	ANSWER_BYTES_MAX = 1024 * 1024
};

struct prometheus {
	const char *url, *job;
	http_client *client;
};

/* It is the operator's own server, mostly on this machine or beside it. */
static const http_settings settings = {.timeout_ms = TIMEOUT_MS,
                                       .connect_timeout_ms = TIMEOUT_MS,
                                       .calls_max = 1,
                                       .response_bytes_max = ANSWER_BYTES_MAX,
                                       .allow_private = true,
                                       .allow_plain = true};

const char *prometheus_mistake(const char *url)
{
	return http_check_url(&settings, url);
}

prometheus *prometheus_new(const char *url, const char *job)
{
	prometheus *made = memory_take(sizeof *made);

	*made = (prometheus){.url = url, .job = job, .client = http_client_new(&settings)};
	if (made->client == NULL) {
		memory_out();
	}
	return made;
}

void prometheus_free(prometheus *prometheus)
{
	if (prometheus != NULL) {
		http_client_free(prometheus->client);
		free(prometheus);
	}
}

/* job="...", as PromQL writes a string; "" without a job. Free it. */
static char *condition_of(const char *job)
{
	char *quoted = memory_take(2 * strlen(job == NULL ? "" : job) + 1);
	size_t length = 0;

	for (const char *at = job; at != NULL && *at != '\0'; at++) {
		if (*at == '"' || *at == '\\') {
			quoted[length++] = '\\';
		}
		quoted[length++] = *at;
	}
	char *condition = job == NULL ? memory_copy("") : memory_format("job=\"%s\"", quoted);
	free(quoted);
	return condition;
}

/* With the condition in each of its places. Free it. */
static char *expression_for(const char *expression, const char *job)
{
	char *condition = condition_of(job);
	char *whole = memory_copy(expression);

	size_t at = 0;

	for (char *mark; (mark = strstr(whole + at, "%J")) != NULL;) {
		at = (size_t)(mark - whole) + strlen(condition);
		char *more = memory_format("%.*s%s%s", (int)(mark - whole), whole, condition, mark + 2);
		free(whole);
		whole = more;
	}
	free(condition);
	return whole;
}

/* Each byte encoded: that is allowed, if not pretty. Free it. */
static char *encode(const char *text)
{
	char *encoded = memory_take(3 * strlen(text) + 1);

	for (size_t i = 0; text[i] != '\0'; i++) {
		snprintf(encoded + 3 * i, 4, "%%%02X", (unsigned char)text[i]);
	}
	return encoded;
}

static char *url_of(const prometheus *prometheus, const char *expression, int64_t from, int step_s, size_t count)
{
	char *whole = expression_for(expression, prometheus->job);
	char *query = encode(whole);
	size_t length = strlen(prometheus->url);

	length -= length > 0 && prometheus->url[length - 1] == '/';
	char *url =
	    memory_format("%.*s/api/v1/query_range?start=%lld&end=%lld&step=%d&query=%s", (int)length, prometheus->url,
	                  (long long)from, (long long)from + (long long)(count - 1) * step_s, step_s, query);
	free(query);
	free(whole);
	return url;
}

/* [[seconds, "value"], ...]; what is not of our steps, or not a number, is left out. */
static void read_values(const json_t *pairs, int64_t from, int step_s, float *values, size_t count)
{
	size_t i;
	json_t *pair;

	json_array_foreach((json_t *)(uintptr_t)pairs, i, pair)
	{
		double at = (json_number_value(json_array_get(pair, 0)) - (double)from) / step_s;
		const char *text = json_string_value(json_array_get(pair, 1));
		double value = text == NULL ? NAN : strtod(text, NULL);
		if (at >= 0 && at < (double)count && isfinite(value)) {
			values[(size_t)at] = (float)value;
		}
	}
}

static bool read_answer(const http_call *call, int64_t from, int step_s, float *values, size_t count, char **problem)
{
	json_t *json = json_loadb(call->response_body == NULL ? "" : call->response_body, call->response_length, 0, NULL);
	const json_t *result = json_object_get(json_object_get(json, "data"), "result");
	const char *error = json_string_value(json_object_get(json, "error"));
	bool good = call->result == HTTP_ANSWERED && call->status == 200 && json_is_array(result);

	if (good) {
		read_values(json_object_get(json_array_get(result, 0), "values"), from, step_s, values, count);
	} else if (call->result != HTTP_ANSWERED) {
		*problem = memory_copy(call->problem);
	} else {
		*problem = memory_format("status %d%s%s", call->status, error == NULL ? "" : ": ", error == NULL ? "" : error);
	}
	json_decref(json);
	return good;
}

bool prometheus_ask(prometheus *prometheus, const char *expression, int64_t from, int step_s, float *values,
                    size_t count, char **problem)
{
	char *url = url_of(prometheus, expression, from, step_s, count);
	http_call call = {.method = "GET", .url = url};
	bool good = false;

	for (size_t i = 0; i < count; i++) {
		values[i] = NAN;
	}
	if (!http_start(prometheus->client, &call)) {
		*problem = memory_copy("the request cannot be sent");
	} else {
		while (http_poll(prometheus->client, TIMEOUT_MS) == NULL && http_in_flight(prometheus->client) > 0) {
		}
		good = read_answer(&call, from, step_s, values, count, problem);
		http_call_clear(&call);
	}
	free(url);
	return good;
}
