/* SPDX-License-Identifier: PostgreSQL */
/* sqs.c: see sqs.h. */
#include "sqs.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define FIFO ".fifo"
#define NAME_BYTES_MAX 80

bool sqs_is_fifo(const char *queue)
{
	size_t length = strlen(queue);

	return length > strlen(FIFO) && strcmp(queue + length - strlen(FIFO), FIFO) == 0;
}

static bool is_url(const char *text)
{
	return strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0;
}

const char *sqs_name(const char *queue)
{
	const char *slash = strrchr(queue, '/');

	return is_url(queue) && slash != NULL ? slash + 1 : queue;
}

bool sqs_is_queue(const char *text)
{
	const char *name = sqs_name(text);
	size_t length = strlen(name);
	size_t plain = length - (sqs_is_fifo(name) ? strlen(FIFO) : 0);

	for (size_t i = 0; i < plain; i++) {
		if (!isalnum((unsigned char)name[i]) && name[i] != '-' && name[i] != '_') {
			return false;
		}
	}
	return plain > 0 && length <= NAME_BYTES_MAX;
}

bool sqs_call(aws_call *call, const char *target, json_t *request)
{
	call->target = target;
	call->body = request == NULL ? NULL : json_dumps(request, JSON_COMPACT);
	call->body_length = call->body == NULL ? 0 : strlen(call->body);
	json_decref(request);
	return call->body != NULL;
}

aws_result sqs_find(aws_client *client, const char *queue, char **url, char problem[BROKER_PROBLEM_BYTES])
{
	aws_call call = {0};

	if (is_url(queue)) {
		*url = memory_copy(queue);
		return AWS_DONE;
	}
	if (!sqs_call(&call, "AmazonSQS.GetQueueUrl", json_pack("{s:s}", "QueueName", queue))) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.100s is not a queue name", queue);
		return AWS_REFUSED;
	}
	aws_do(client, &call);
	aws_result result = call.result;
	if (result == AWS_DONE) {
		json_t *answer = json_loadb(call.answer, call.answer_length, 0, NULL);
		*url = memory_copy(json_string_value(json_object_get(answer, "QueueUrl")));
		json_decref(answer);
		if (*url == NULL) {
			snprintf(problem, BROKER_PROBLEM_BYTES, "the server there is not SQS: it returns no QueueUrl");
			result = AWS_AWAY;
		}
	} else if (strstr(call.code, "QueueDoesNotExist") != NULL || strstr(call.code, "NonExistentQueue") != NULL) {
		snprintf(
		    problem, BROKER_PROBLEM_BYTES,
		    "there is no queue %.80s in this account and region: create it (for another account's queue, give its URL)",
		    queue);
	} else {
		snprintf(problem, BROKER_PROBLEM_BYTES, "cannot find the queue %.50s: %.170s", queue, call.problem);
	}
	aws_call_clear(&call);
	return result;
}

json_t *sqs_message(once_bytes body, const aws_attributes *attributes, const char *group, const char *deduplication)
{
	json_t *text = json_stringn(body.length == 0 ? "" : body.data, body.length);
	json_t *message = text == NULL ? NULL : json_pack("{s:o}", "MessageBody", text);

	if (message != NULL && attributes->count > 0) {
		json_object_set_new(message, "MessageAttributes", aws_attributes_json(attributes));
	}
	if (message != NULL && group != NULL) {
		json_object_set_new(message, "MessageGroupId", json_string(group));
		json_object_set_new(message, "MessageDeduplicationId", json_string(deduplication));
	}
	return message;
}
