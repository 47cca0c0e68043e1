/* SPDX-License-Identifier: PostgreSQL */
/* sqs_queue.c: see sqs_queue.h. */
#include "sqs_queue.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sqs.h"

#define RETENTION_MOST_MS (INT64_C(14) * 86400000)
#define MESSAGE_BYTES_MOST (INT64_C(1024) * 1024)

/* NULL: not received; *forbidden: we may not read them. */
static json_t *ask_attributes(const sqs_queue_want *want, const char *url, bool *forbidden,
                              char problem[BROKER_PROBLEM_BYTES])
{
	aws_call call = {0};
	json_t *attributes = NULL;

	if (sqs_call(&call, "AmazonSQS.GetQueueAttributes",
	             json_pack("{s:s, s:[s]}", "QueueUrl", url, "AttributeNames", "All"))) {
		aws_do(want->client, &call);
		json_t *answer = call.result == AWS_DONE ? json_loadb(call.answer, call.answer_length, 0, NULL) : NULL;
		attributes = json_incref(json_object_get(answer, "Attributes"));
		json_decref(answer);
	}
	snprintf(problem, BROKER_PROBLEM_BYTES, "%s",
	         call.problem[0] != '\0' ? call.problem : "the server there is not SQS: it returns no attributes");
	*forbidden = call.result == AWS_REFUSED && strncmp(call.code, "AccessDenied", strlen("AccessDenied")) == 0;
	aws_call_clear(&call);
	return attributes;
}

static void say_redrive(const sqs_queue_want *want, const char *redrive, char problem[BROKER_PROBLEM_BYTES])
{
	json_t *policy = json_loads(redrive, 0, NULL);
	const json_t *most = json_object_get(policy, "maxReceiveCount");
	char number[24];

	snprintf(number, sizeof number, "%" PRId64, (int64_t)json_integer_value(most));
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "the queue %.80s has a redrive policy: after %.20s deliveries it moves an unhandled message; "
	         "remove the policy, or set redrive = allow",
	         sqs_name(want->queue), json_is_string(most) ? json_string_value(most) : number);
	json_decref(policy);
}

/* A role that may not read the attributes gets the values that are safe without them. */
static bool fits(const sqs_queue_want *want, const char *url, sqs_queue_facts *facts,
                 char problem[BROKER_PROBLEM_BYTES])
{
	char quoted[RUNTIME_QUOTE_BYTES];
	bool forbidden = false;
	json_t *attributes = ask_attributes(want, url, &forbidden, problem);
	const char *retention = json_string_value(json_object_get(attributes, "MessageRetentionPeriod"));
	const char *largest = json_string_value(json_object_get(attributes, "MaximumMessageSize"));
	const char *redrive = json_string_value(json_object_get(attributes, "RedrivePolicy"));
	bool good = attributes != NULL || forbidden;

	facts->retention_ms = retention == NULL ? RETENTION_MOST_MS : strtoll(retention, NULL, 10) * 1000;
	facts->message_bytes = largest == NULL ? MESSAGE_BYTES_MOST : strtoll(largest, NULL, 10);
	facts->message_bytes = facts->message_bytes < 1 ? MESSAGE_BYTES_MOST : facts->message_bytes;
	if (forbidden) {
		runtime_log(want->speaker, RUNTIME_WARNING, "attributes",
		            "problem=%s hint=\"pgonce cannot see whether the queue has a redrive policy\"",
		            runtime_quote(problem, quoted));
	} else if (redrive != NULL && redrive[0] != '\0' && !want->allows_redrive) {
		say_redrive(want, redrive, problem);
		good = false;
	}
	json_decref(attributes);
	return good;
}

/* "/123456789012/orders": what identifies a queue at an endpoint; the host has several names. */
static const char *path_of(const char *url)
{
	const char *host = strstr(url, "://");

	return host == NULL ? url : host + 3 + strcspn(host + 3, "/");
}

/*
 * A queue may be given by its name or its URL, and other accounts may have a queue with that name:
 * if the names are alike, the URLs are compared. A queue that is not found takes no copies.
 */
static bool leads_away(const sqs_queue_want *want, const char *url, char problem[BROKER_PROBLEM_BYTES])
{
	char *dead_url = NULL;

	if (want->dead_topic == NULL || strcmp(sqs_name(want->dead_topic), sqs_name(url)) != 0) {
		return true;
	}
	aws_result result = sqs_find(want->client, want->dead_topic, &dead_url, problem);
	if (result != AWS_DONE) {
		return result == AWS_REFUSED;
	}
	bool is_same = strcmp(path_of(dead_url), path_of(url)) == 0;
	if (is_same) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "dead_topic: %.100s is the queue being read: a copy of a dead message would die there again; name "
		         "another",
		         want->dead_topic);
	}
	free(dead_url);
	return !is_same;
}

bool sqs_queue_find(const sqs_queue_want *want, char **url, sqs_queue_facts *facts, char problem[BROKER_PROBLEM_BYTES])
{
	char *found = NULL;

	if (sqs_find(want->client, want->queue, &found, problem) != AWS_DONE || !fits(want, found, facts, problem) ||
	    !leads_away(want, found, problem)) {
		free(found);
		return false;
	}
	*url = found;
	return true;
}
