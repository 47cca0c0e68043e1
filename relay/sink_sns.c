/* SPDX-License-Identifier: PostgreSQL */
/*
 * sink_sns.c: the sink of Amazon SNS: each event by a call of its own (Publish, of the query
 * protocol), as many as may be at once. For a FIFO topic group and deduplication are those of SQS
 * (sink_sqs.c).
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "sink.h"
#include "sink_aws.h"

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
	return is_arn ? NULL : "is no ARN of a topic (arn:aws:sns:REGION:ACCOUNT:NAME): change the route";
}

static void put(FILE *to, const char *name, const char *value)
{
	fprintf(to, "&%s=", name);
	aws_form_put(to, (once_bytes){.data = value, .length = strlen(value)});
}

static void put_attribute(FILE *to, size_t number, const aws_header *attribute)
{
	bool binary = aws_attribute_is_binary(attribute);

	fprintf(to, "&MessageAttributes.entry.%zu.Name=", number);
	aws_form_put(to, (once_bytes){.data = attribute->name, .length = strlen(attribute->name)});
	fprintf(to, "&MessageAttributes.entry.%zu.Value.DataType=%s", number, binary ? "Binary" : "String");
	fprintf(to, "&MessageAttributes.entry.%zu.Value.%s=", number, binary ? "BinaryValue" : "StringValue");
	if (binary) {
		char *base64 = memory_take((attribute->value.length + 2) / 3 * 4 + 1);
		EVP_EncodeBlock((unsigned char *)base64, attribute->value.data, (int)attribute->value.length);
		aws_form_put(to, (once_bytes){.data = base64, .length = strlen(base64)});
		free(base64);
	} else {
		aws_form_put(to, attribute->value);
	}
}

static aws_result build(aws_client *client, void **own, aws_parcel *parcel, char problem[BROKER_PROBLEM_BYTES])
{
	const sink_message *message = &parcel->items[0]->message;
	char group[AWS_GROUP_BYTES];
	aws_attributes attributes;
	FILE *to = open_memstream(&parcel->call.body, &parcel->call.body_length);

	(void)client, (void)own;
	if (to == NULL) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "memory is out");
		return AWS_AWAY;
	}
	fputs("Action=Publish&Version=2010-03-31", to);
	put(to, "TopicArn", message->destination);
	fputs("&Message=", to);
	aws_form_put(to, message->body);
	aws_sink_attributes(message, &attributes);
	for (size_t i = 0; i < attributes.count; i++) {
		put_attribute(to, i + 1, &attributes.items[i]);
	}
	aws_attributes_clear(&attributes);
	if (is_fifo(message->destination)) {
		aws_sink_group(message, group);
		put(to, "MessageGroupId", group);
		put(to, "MessageDeduplicationId", message->event_id);
	}
	if (fclose(to) != 0) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "memory is out");
		return AWS_AWAY;
	}
	return AWS_DONE;
}

static bool read_answer(const aws_parcel *parcel, sink_verdict verdicts[AWS_PARCEL_MAX],
                        char problems[AWS_PARCEL_MAX][BROKER_PROBLEM_BYTES])
{
	char *id = aws_xml_text(parcel->call.answer, parcel->call.answer_length, "MessageId");
	bool is_answer = id != NULL && id[0] != '\0';

	verdicts[0] = SINK_DELIVERED;
	problems[0][0] = '\0';
	free(id);
	return is_answer;
}

static const aws_sink_class class = {
    .name = "sns",
    .events_max = 1,
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

static bool open_sns(const service *service, const config *config, const config_section *section, sink **result,
                     char **problem)
{
	return aws_sink_open(&class, options, service, config, section, result, problem);
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
