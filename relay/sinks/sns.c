/* SPDX-License-Identifier: PostgreSQL */
/*
 * sns.c: the sink of Amazon SNS: PublishBatch of the query protocol, ten events at a time, each
 * with its own result. For a FIFO topic, group and deduplication are those of SQS (sqs.c).
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aws_sink.h"
#include "memory.h"
#include "sink.h"

#define EVENT_BYTES_MAX ((size_t)256 << 10)
#define FIFO ".fifo"

static const config_option options[] = {AWS_OPTION_ROWS("sns"), {.name = NULL}};

static bool is_fifo(const char *topic)
{
	size_t length = strlen(topic);

	return length > strlen(FIFO) && strcmp(topic + length - strlen(FIFO), FIFO) == 0;
}

/* "arn:aws:sns:REGION:ACCOUNT:NAME" */
static const char *refuse(const sink_message *message)
{
	const char *at = message->destination;
	int colons = 0;

	for (; *at != '\0' && colons < 5; at++) {
		colons += *at == ':';
	}
	bool is_arn = strncmp(message->destination, "arn:", 4) == 0 && strstr(message->destination, ":sns:") != NULL &&
	              colons == 5 && *at != '\0' && strpbrk(at, ": \t/") == NULL;
	return is_arn ? NULL : "is not the ARN of a topic (arn:aws:sns:REGION:ACCOUNT:NAME): change the route";
}

/* A parameter of the entry with this number, which the service counts from 1. */
static void put(FILE *to, size_t number, const char *name, once_bytes value)
{
	fprintf(to, "&PublishBatchRequestEntries.member.%zu.%s=", number, name);
	aws_form_put(to, value);
}

static void put_text(FILE *to, size_t number, const char *name, const char *value)
{
	put(to, number, name, (once_bytes){.data = value, .length = strlen(value)});
}

static void put_attribute(FILE *to, size_t number, size_t at, const aws_header *attribute)
{
	bool binary = aws_attribute_is_binary(attribute);
	char name[64];

	snprintf(name, sizeof name, "MessageAttributes.entry.%zu.Name", at);
	put_text(to, number, name, attribute->name);
	snprintf(name, sizeof name, "MessageAttributes.entry.%zu.Value.DataType", at);
	put_text(to, number, name, binary ? "Binary" : "String");
	snprintf(name, sizeof name, "MessageAttributes.entry.%zu.Value.%s", at, binary ? "BinaryValue" : "StringValue");
	if (binary) {
		char *base64 = memory_take((attribute->value.length + 2) / 3 * 4 + 1);
		EVP_EncodeBlock((unsigned char *)base64, attribute->value.data, (int)attribute->value.length);
		put_text(to, number, name, base64);
		free(base64);
	} else {
		put(to, number, name, attribute->value);
	}
}

static void put_entry(FILE *to, size_t number, const sink_message *message)
{
	char group[AWS_GROUP_BYTES], id[24];
	char *made;
	aws_attributes attributes;

	snprintf(id, sizeof id, "%zu", number - 1);
	put_text(to, number, "Id", id);
	put(to, number, "Message", aws_sink_body(message, &made));
	free(made);
	aws_sink_attributes(message, &attributes);
	for (size_t i = 0; i < attributes.count; i++) {
		put_attribute(to, number, i + 1, &attributes.items[i]);
	}
	aws_attributes_clear(&attributes);
	if (is_fifo(message->destination)) {
		aws_sink_group(message, group);
		put_text(to, number, "MessageGroupId", group);
		put_text(to, number, "MessageDeduplicationId", message->event_id);
	}
}

static aws_result build(aws_client *client, void **own, aws_parcel *parcel, char problem[BROKER_PROBLEM_BYTES])
{
	const char *topic = parcel->items[0]->message.destination;
	FILE *to = open_memstream(&parcel->call.body, &parcel->call.body_length);

	(void)client, (void)own;
	if (to != NULL) {
		fputs("Action=PublishBatch&Version=2010-03-31&TopicArn=", to);
		aws_form_put(to, (once_bytes){.data = topic, .length = strlen(topic)});
		for (size_t i = 0; i < parcel->count; i++) {
			put_entry(to, i + 1, &parcel->items[i]->message);
		}
	}
	if (to == NULL || fclose(to) != 0) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "memory is out");
		return AWS_AWAY;
	}
	return AWS_DONE;
}

static bool read_answer(const aws_parcel *parcel, aws_entry entries[AWS_PARCEL_MAX],
                        char problems[AWS_PARCEL_MAX][BROKER_PROBLEM_BYTES])
{
	const once_bytes answer = {.data = parcel->call.answer, .length = parcel->call.answer_length};
	bool is_answer = aws_batch_is_xml(answer);

	for (size_t i = 0; is_answer && i < parcel->count; i++) {
		entries[i] = aws_batch_read_xml(answer, i, "MessageId", problems[i]);
	}
	return is_answer;
}

static const aws_sink_class class = {
    .name = "sns",
    .event_bytes_max = EVENT_BYTES_MAX,
    .refuse = refuse,
    .build = build,
    .read = read_answer,
};

static char *note_sns(const config *config, const config_section *section)
{
	return config_problem(
	    config, section, NULL,
	    "subscriptions of queues need raw message delivery, or messages come wrapped and without headers; "
	    "a topic without FIFO delivers in any order");
}

static bool open_sns(const speaker *speaker, const config *config, const config_section *section, sink **result,
                     char **problem)
{
	return aws_sink_open(&class, options, speaker, config, section, result, problem);
}

static bool check_sns(const config *config, const config_section *section, char **problem)
{
	return aws_sink_check(&class, options, config, section, problem);
}

const sink_class sink_sns = {
    .name = "sns",
    .options = options,
    .in_flight = 1000,
    .open = open_sns,
    .check = check_sns,
    .note = note_sns,
    .send = aws_sink_send,
    .poll = aws_sink_poll,
    .permit = aws_sink_permit,
    .close = aws_sink_close,
};
