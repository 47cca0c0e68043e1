/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_nats.c: what NATS sends: where a message is to be acknowledged, which says its place in the
 * stream; its headers and their copy for the dead topic; and what JetStream answers to one that is
 * published. A place that JetStream could have written is read as it was; what is read never has a
 * sequence below 1; only an answer that names stream and sequence counts as stored.
 * tests/fuzz/test_fuzz.py builds and runs it. Input: 'r' and a reply subject; 'p' and four numbers;
 * 'h' and names and values; 'a' and an answer.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <strings.h>

#include "../../broker/broker.h"
#include "../../broker/nats.h"
#include "fuzz.h"
#include "sources/nats_message.h"

enum {
	HEADERS_MAX = 8
};

static natsMsg *message_with(const char *reply)
{
	natsMsg *message = NULL;

	must(natsMsg_Create(&message, "orders.created", reply, "{}", 2) == NATS_OK);
	return message;
}

static void end(delivery *delivery)
{
	natsMsg_Destroy(delivery->owned);
	free(delivery);
}

static void check_any_reply(const char *reply)
{
	natsMsg *message = message_with(reply[0] == '\0' ? NULL : reply);
	char coordinates[64];

	if (!nats_message_has_place(message)) {
		natsMsg_Destroy(message);
		return;
	}
	delivery *made = nats_message_wrap(message, "ORDERS");
	must(made != NULL && made->sequence > 0 && made->nth > 0);
	snprintf(coordinates, sizeof coordinates, "ORDERS/%" PRId64, made->sequence);
	must(strcmp(made->message.coordinates, coordinates) == 0);
	end(made);
}

static void check_own_reply(input *in)
{
	uint8_t form = take_byte(in);
	int64_t sequence = (int64_t)(take_number(in) >> 1), nth = (int64_t)(take_number(in) >> 1),
	        time_ns = (int64_t)(take_number(in) >> 1);
	char reply[256];

	snprintf(reply, sizeof reply, "$JS.ACK.%sORDERS.durable.%d.%" PRId64 ".%" PRId64 ".%" PRId64 ".7%s",
	         form & 1 ? "domain.account." : "", form, sequence, nth, time_ns, form & 1 ? ".token" : "");
	natsMsg *message = message_with(reply);
	must(nats_message_has_place(message) == (sequence > 0 && nth > 0));
	delivery *made = nats_message_wrap(message, "ORDERS");
	must(made->sequence == sequence && made->nth == nth && made->created_ms == time_ns / 1000000);
	end(made);
}

/*
 * What is copied has every header but those that steer the server, each on a line of its own; the
 * content type by the name that the relay gives it.
 */
static void check_headers(input *in)
{
	natsMsg *message = message_with("$JS.ACK.ORDERS.durable.1.1.1.1.0"), *copy = NULL;
	char *texts[2 * HEADERS_MAX];
	size_t count = 0;

	while (count < HEADERS_MAX && in->size > 0) {
		texts[2 * count] = take_text(in, NULL);
		texts[2 * count + 1] = take_text(in, NULL);
		natsMsgHeader_Add(message, texts[2 * count], texts[2 * count + 1]);
		count++;
	}
	delivery *made = nats_message_wrap(message, "ORDERS");
	/*
	 * How many there are is cnats's affair: it loses one now and then of those that were added
	 * twice, and hands others out twice.
	 */
	if (nats_message_copy(&copy, "dead", &made->message, NULL, 0) == NATS_OK) {
		const char *value = NULL;
		for (size_t i = 0; i < made->message.header_count; i++) {
			const char *name = made->message.headers[i].name;
			if (broker_header_steers("nats", name)) {
				must(natsMsgHeader_Get(copy, name, &value) != NATS_OK);
				continue;
			}
			name = strcasecmp(name, "content-type") == 0 ? "Content-Type" : name;
			must(natsMsgHeader_Get(copy, name, &value) == NATS_OK);
			must(strpbrk(value, "\r\n") == NULL);
		}
	}
	natsMsg_Destroy(copy);
	end(made);
	for (size_t i = 0; i < 2 * count; i++) {
		free(texts[i]);
	}
}

static void check_answer(const char *data, size_t length)
{
	char problem[BROKER_PROBLEM_BYTES];
	int code = 0;

	memset(problem, 'x', sizeof problem);
	bool refused = nats_answer_error(data, length, &code, problem);
	json_t *answer = json_loadb(data, length, 0, NULL);
	bool stored = json_object_get(answer, "error") == NULL && json_is_string(json_object_get(answer, "stream")) &&
	              json_integer_value(json_object_get(answer, "seq")) > 0;
	must(refused == !stored);
	must(!refused || memchr(problem, '\0', sizeof problem) != NULL);
	json_decref(answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	input in = {data, size};
	uint8_t what = take_byte(&in);
	size_t length = in.size;

	must(nats_Open(-1) == NATS_OK);
	if (what == 'p') {
		check_own_reply(&in);
	} else if (what == 'h') {
		check_headers(&in);
	} else {
		char *text = take_bytes(&in, length);
		if (what == 'a') {
			check_answer(text, length);
		} else {
			check_any_reply(text);
		}
		free(text);
	}
	return 0;
}
