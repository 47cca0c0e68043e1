/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_sqs.c: what SQS answers to ReceiveMessage. Any answer's messages are whole deliveries or
 * none: with a handle, coordinates of the queue and the message's id, a body that is text, as many
 * headers as there are attributes and packed ones, each with a name and, unless it was damaged, a
 * value. What our own sink makes of headers comes out as they were, in ten attributes at most; a
 * key is the group that it was, or its hash with the key beside it. Any body's copy is text, and
 * comes out as the body again. tests/fuzz/test_fuzz.py builds and runs it. Input: 'm' and an answer;
 * else a key, a body and headers, name and value each.
 */
#include <stdio.h>

#include "aws_attributes.h"
#include "fuzz.h"
#include "sources/sqs_message.h"
#include "sqs.h"

enum {
	HEADERS_MAX = 16
};

static void check_delivery(json_t *message)
{
	json_t *attributes = json_incref(json_object_get(message, "MessageAttributes"));
	size_t most = json_object_size(attributes) + 4096;
	delivery *made = sqs_message_wrap(message, "orders");

	if (made == NULL) {
		json_decref(attributes);
		return;
	}
	must(made->reply != NULL && made->message.payload.data != NULL && made->message.header_count <= most);
	must(strncmp(made->message.coordinates, "orders/", 7) == 0 &&
	     strcmp(made->message.coordinates + 7, json_string_value(json_object_get(message, "MessageId"))) == 0);
	size_t seen = 0;
	for (size_t i = 0; i < made->message.header_count; i++) {
		const source_header *each = &made->message.headers[i];
		must(each->name != NULL && (each->value.data != NULL || each->value.length == 0));
		for (size_t n = 0; n < each->value.length; n++) {
			seen += ((const unsigned char *)each->value.data)[n]; /* all of it is there to be read */
		}
	}
	must(seen < SIZE_MAX && sqs_message_group(made) != NULL);
	json_t *copy = sqs_message_copy(&made->message, NULL, 0, true);
	must(json_object_size(json_object_get(copy, "MessageAttributes")) <= AWS_ATTRIBUTES_MAX);
	json_decref(copy);
	sqs_message_release(made);
	json_decref(attributes);
}

static void check_answer(const char *text, size_t length)
{
	json_t *answer = json_loadb(text, length, 0, NULL);
	size_t at;
	json_t *each;

	json_array_foreach(json_object_get(answer, "Messages"), at, each)
	{
		check_delivery(each);
	}
	json_decref(answer);
}

static const source_header *find(const delivery *made, const char *name)
{
	for (size_t i = 0; i < made->message.header_count; i++) {
		if (strcmp(made->message.headers[i].name, name) == 0) {
			return &made->message.headers[i];
		}
	}
	return NULL;
}

static bool is_text(const char *name)
{
	json_t *text = json_string(name);

	json_decref(text);
	return text != NULL;
}

static delivery *received_of(json_t *message, const char *group)
{
	json_t *received = json_pack("{s:s, s:s, s:O, s:O*, s:{s:s}}", "MessageId", "m", "ReceiptHandle", "h", "Body",
	                             json_object_get(message, "MessageBody"), "MessageAttributes",
	                             json_object_get(message, "MessageAttributes"), "Attributes", "MessageGroupId", group);
	delivery *made = sqs_message_wrap(received, "orders");

	json_decref(received);
	return made;
}

/* The copy of a message with any body, which the source takes. */
static void check_body(once_bytes body)
{
	json_t *copy = sqs_message_copy(&(source_message){.payload = body}, NULL, 0, false);
	delivery *made = received_of(copy, "g");

	must(made != NULL && made->message.undecoded == NULL && made->message.header_count == 0);
	must(made->message.payload.length == body.length &&
	     (body.length == 0 || memcmp(made->message.payload.data, body.data, body.length) == 0));
	sqs_message_release(made);
	json_decref(copy);
}

/* As the sink sends a message, and the source takes it. */
static void check_round(input *in)
{
	size_t key_length = 0, body_length = 0, lengths[HEADERS_MAX], count = 0;
	char *key = take_text(in, &key_length), *body = take_text(in, &body_length);
	char *names[HEADERS_MAX], *values[HEADERS_MAX], group[AWS_GROUP_BYTES];
	aws_header headers[HEADERS_MAX];
	aws_attributes attributes;

	while (count < HEADERS_MAX && in->size > 0) {
		names[count] = take_text(in, NULL);
		values[count] = take_text(in, &lengths[count]);
		bool known = !is_text(names[count]) || strcmp(names[count], AWS_REST_NAME) == 0;
		for (size_t i = 0; i < count; i++) {
			known = known || strcmp(names[i], names[count]) == 0;
		}
		headers[count] = (aws_header){.name = names[count], .value = {.data = values[count], .length = lengths[count]}};
		if (known) {
			free(names[count]);
			free(values[count]);
		} else {
			count++;
		}
	}
	check_body((once_bytes){.data = body, .length = body_length});
	const once_bytes key_bytes = {.data = key, .length = key_length};
	aws_group(key_bytes, "id", group);
	aws_attributes_make(headers, count, &attributes);
	must(attributes.count <= AWS_ATTRIBUTES_MAX);
	json_t *message = sqs_message((once_bytes){.data = "{}", .length = 2}, &attributes, group, "id");
	must(message != NULL);
	delivery *made = received_of(message, group);
	must(made != NULL && made->message.header_count == count);
	for (size_t i = 0; i < count; i++) {
		const source_header *found = find(made, names[i]);
		must(found != NULL && found->value.length == lengths[i] &&
		     (lengths[i] == 0 || memcmp(found->value.data, values[i], lengths[i]) == 0));
	}
	if (strncmp(group, AWS_GROUP_HASHED, strlen(AWS_GROUP_HASHED)) != 0) {
		must(made->message.key.length == key_length && memcmp(made->message.key.data, key, key_length) == 0);
	}
	sqs_message_release(made);
	json_decref(message);
	aws_attributes_clear(&attributes);
	for (size_t i = 0; i < count; i++) {
		free(names[i]);
		free(values[i]);
	}
	free(key);
	free(body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};

	if (size > 0 && data[0] == 'm') {
		take_byte(&in);
		size_t length = in.size;
		char *text = take_bytes(&in, length);
		check_answer(text, length);
		free(text);
	} else {
		check_round(&in);
	}
	return 0;
}
