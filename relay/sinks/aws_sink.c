/* SPDX-License-Identifier: PostgreSQL */
/* aws_sink.c: see aws_sink.h. */
#include "aws_sink.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define IN_FLIGHT_MAX 8192
#define BYTES_MAX ((size_t)64 << 20)
/* the most bytes of a call, unless it has one larger event */
#define PARCEL_BYTES ((size_t)256 << 10)
#define CALLS_MAX 32
#define LOOK_MS 200

typedef struct settings {
	aws_options aws;
	int64_t timeout_ms; /* the pipeline's option, known by its table */
} settings;

static const config_option shared_options[] = {{.name = "timeout",
                                                .kind = CONFIG_DURATION,
                                                .offset = offsetof(settings, timeout_ms),
                                                .minimum = 1,
                                                .maximum = INT64_MAX,
                                                .standard = "30s"},
                                               {.name = NULL}};

struct sink {
	const aws_sink_class *class;
	const speaker *speaker;
	aws_address *address;
	flight *flight;
	pthread_t thread;
	bool has_thread;
	atomic_bool stopping;
	_Atomic int64_t permit_ms;
	/* the thread's own */
	aws_client *client;
	void *own;                 /* the class's */
	aws_parcel *first, *last;  /* events that wait to be sent */
	aws_parcel *out;           /* events that are on their way */
	size_t waiting, calls_out; /* parcels */
};

static bool read_settings(const aws_sink_class *class, const config_option *options, const config *config,
                          const config_section *section, settings *settings, aws_address **address, char **problem)
{
	return config_apply(config, section, options, settings, problem) &&
	       config_apply(config, section, shared_options, settings, problem) &&
	       aws_address_read(config, section, &settings->aws, class->name, address, problem);
}

bool aws_sink_check(const aws_sink_class *class, const config_option *options, const config *config,
                    const config_section *section, char **problem)
{
	settings settings;
	aws_address *address;

	if (!read_settings(class, options, config, section, &settings, &address, problem)) {
		return false;
	}
	aws_address_free(address);
	return true;
}

/* ---- an event */

static aws_header header_of(const char *name, const char *value)
{
	return (aws_header){.name = name, .value = {.data = value, .length = strlen(value)}};
}

void aws_sink_attributes(const sink_message *message, aws_attributes *attributes)
{
	aws_header *headers = memory_take((message->header_count + 2) * sizeof *headers);
	size_t count = 0;

	/* First, so that none is left out: a consumer needs them to read the body. */
	if (message->is_bytes) {
		headers[count++] = header_of("Pgonce-Body-Encoding", "base64");
		headers[count++] = header_of("content-type", message->content_type);
	}
	for (size_t i = 0; i < message->header_count; i++) {
		headers[count++] = header_of(message->headers[i].name, message->headers[i].value);
	}
	aws_attributes_make(headers, count, attributes);
	free(headers);
}

static size_t body_bytes(const sink_message *message)
{
	return message->is_bytes ? (message->body.length + 2) / 3 * 4 : message->body.length;
}

once_bytes aws_sink_body(const sink_message *message, char **made)
{
	*made = NULL;
	if (!message->is_bytes) {
		return message->body;
	}
	*made = memory_take(body_bytes(message) + 1);
	EVP_EncodeBlock((unsigned char *)*made, message->body.data, (int)message->body.length);
	return (once_bytes){.data = *made, .length = body_bytes(message)};
}

void aws_sink_group(const sink_message *message, char group[AWS_GROUP_BYTES])
{
	const char *key = message->key;

	aws_group((once_bytes){.data = key, .length = key == NULL ? 0 : strlen(key)}, message->event_id, group);
}

static size_t bytes_of(const sink_message *message)
{
	aws_attributes attributes;

	aws_sink_attributes(message, &attributes);
	size_t bytes = body_bytes(message) + aws_attributes_bytes(&attributes);
	aws_attributes_clear(&attributes);
	return bytes;
}

/* ---- parcels */

static void answer_all(sink *sink, const aws_parcel *parcel, sink_verdict verdict, const char *problem)
{
	for (size_t i = 0; i < parcel->count; i++) {
		flight_answer(sink->flight, parcel->items[i]->ticket, verdict, problem);
	}
}

static void parcel_free(aws_parcel *parcel)
{
	for (size_t i = 0; i < parcel->count; i++) {
		flight_item_free(parcel->items[i]);
	}
	aws_call_clear(&parcel->call);
	free(parcel);
}

static void append(sink *sink, aws_parcel *parcel)
{
	parcel->next = NULL;
	*(sink->last == NULL ? &sink->first : &sink->last->next) = parcel;
	sink->last = parcel;
	sink->waiting++;
}

/* The first waiting parcel with this destination that has room. */
static aws_parcel *parcel_for(sink *sink, const sink_message *message, size_t bytes)
{
	for (aws_parcel *each = sink->first; each != NULL; each = each->next) {
		if (each->count < AWS_PARCEL_MAX && each->bytes + bytes <= PARCEL_BYTES &&
		    strcmp(each->items[0]->message.destination, message->destination) == 0) {
			return each;
		}
	}
	aws_parcel *made = memory_take(sizeof *made);
	made->call.answer = "";
	append(sink, made);
	return made;
}

/* Why it can never be sent, in buffer; NULL: it can. */
static const char *refusal(const sink *sink, const sink_message *message, size_t bytes,
                           char buffer[BROKER_PROBLEM_BYTES])
{
	const char *wrong = sink->class->refuse(message);

	if (wrong != NULL) {
		snprintf(buffer, BROKER_PROBLEM_BYTES, "%.100s %s", message->destination, wrong);
		return buffer;
	}
	if (message->body.length == 0) {
		snprintf(buffer, BROKER_PROBLEM_BYTES, "an empty payload, and %s takes no message without a body",
		         sink->class->name);
		return buffer;
	}
	if (bytes > sink->class->event_bytes_max) {
		snprintf(
		    buffer, BROKER_PROBLEM_BYTES,
		    "%zu bytes with its attributes, and a message of %s has at most %zu: send a reference to the large part",
		    bytes, sink->class->name, sink->class->event_bytes_max);
		return buffer;
	}
	return NULL;
}

/* Only as many as can be sent at once: the flight can hold the rest back. */
static void take(sink *sink)
{
	char buffer[BROKER_PROBLEM_BYTES];
	size_t most = sink->waiting == 0 ? (CALLS_MAX - sink->calls_out) * AWS_PARCEL_MAX : 0;

	for (size_t i = 0; i < most; i++) {
		flight_item *item = flight_take(sink->flight);
		if (item == NULL) {
			return;
		}
		size_t bytes = bytes_of(&item->message);
		const char *wrong = refusal(sink, &item->message, bytes, buffer);
		if (wrong != NULL) {
			flight_answer(sink->flight, item->ticket, SINK_REFUSED, wrong);
			flight_item_free(item);
			continue;
		}
		aws_parcel *parcel = parcel_for(sink, &item->message, bytes);
		parcel->items[parcel->count++] = item;
		parcel->bytes += bytes;
	}
}

/* Events that have a result already (their time is over) are not sent. */
static void drop_answered(sink *sink, aws_parcel *parcel)
{
	size_t kept = 0;

	for (size_t i = 0; i < parcel->count; i++) {
		if (flight_waits(sink->flight, parcel->items[i]->ticket)) {
			parcel->items[kept++] = parcel->items[i];
		} else {
			flight_item_free(parcel->items[i]);
		}
	}
	parcel->count = kept;
}

static sink_verdict verdict_of(aws_result result)
{
	return result == AWS_REFUSED ? SINK_REFUSED : result == AWS_WITHHELD ? SINK_WITHHELD : SINK_UNAVAILABLE;
}

static void send_waiting(sink *sink)
{
	char problem[BROKER_PROBLEM_BYTES];

	while (sink->first != NULL && sink->calls_out < CALLS_MAX && !atomic_load(&sink->stopping)) {
		aws_parcel *parcel = sink->first;
		sink->first = parcel->next;
		sink->last = sink->first == NULL ? NULL : sink->last;
		sink->waiting--;
		drop_answered(sink, parcel);
		if (parcel->count == 0) {
			parcel_free(parcel);
			continue;
		}
		aws_result built = sink->class->build(sink->client, &sink->own, parcel, problem);
		parcel->call.user = parcel;
		if (built == AWS_DONE && !aws_start(sink->client, &parcel->call)) {
			built = AWS_AWAY;
			snprintf(problem, sizeof problem, "memory is out");
		}
		if (built != AWS_DONE) {
			answer_all(sink, parcel, verdict_of(built), problem);
			parcel_free(parcel);
			continue;
		}
		parcel->next = sink->out;
		sink->out = parcel;
		sink->calls_out++;
	}
}

/* ---- answers */

static void answer_each(sink *sink, const aws_parcel *parcel)
{
	static const sink_verdict verdicts[] = {
	    [AWS_ENTRY_DONE] = SINK_DELIVERED, [AWS_ENTRY_WRONG] = SINK_REFUSED, [AWS_ENTRY_FAILED] = SINK_UNAVAILABLE};
	aws_entry entries[AWS_PARCEL_MAX];
	char problems[AWS_PARCEL_MAX][BROKER_PROBLEM_BYTES];

	if (!sink->class->read(parcel, entries, problems)) {
		char problem[BROKER_PROBLEM_BYTES];
		snprintf(problem, sizeof problem, "what answers at %.120s is not %s", sink->address->url, sink->class->name);
		answer_all(sink, parcel, SINK_UNAVAILABLE, problem);
		return;
	}
	for (size_t i = 0; i < parcel->count; i++) {
		flight_answer(sink->flight, parcel->items[i]->ticket, verdicts[entries[i]], problems[i]);
	}
}

/*
 * The whole call was refused: each event is sent alone, before the unsent ones, to find the cause.
 */
static void part(sink *sink, aws_parcel *parcel)
{
	for (size_t i = 0; i < parcel->count; i++) {
		aws_parcel *alone = memory_take(sizeof *alone);
		alone->call.answer = "";
		alone->items[alone->count++] = parcel->items[i];
		alone->next = sink->first;
		sink->first = alone;
		sink->last = sink->last == NULL ? alone : sink->last;
		sink->waiting++;
	}
	parcel->count = 0;
}

static void judge(sink *sink, aws_parcel *parcel)
{
	aws_parcel **at = &sink->out;
	const aws_call *call = &parcel->call;

	while (*at != parcel) {
		at = &(*at)->next;
	}
	*at = parcel->next;
	sink->calls_out--;
	if (call->result == AWS_DONE) {
		answer_each(sink, parcel);
	} else if (call->result == AWS_REFUSED && parcel->count > 1) {
		part(sink, parcel);
	} else {
		answer_all(sink, parcel, verdict_of(call->result), call->problem);
	}
	parcel_free(parcel);
}

/* ---- the thread */

static void *run(void *closure)
{
	sink *sink = closure;

	while (!atomic_load(&sink->stopping)) {
		flight_woken(sink->flight);
		aws_permit(sink->client, atomic_load(&sink->permit_ms));
		take(sink);
		send_waiting(sink);
		aws_call *call = aws_poll(sink->client, LOOK_MS);
		while (call != NULL) {
			judge(sink, call->user);
			call = aws_poll(sink->client, 0);
		}
	}
	return NULL;
}

/* ---- the interface */

static void free_parcels(aws_parcel *first)
{
	for (aws_parcel *next = NULL, *each = first; each != NULL; each = next) {
		next = each->next;
		parcel_free(each);
	}
}

void aws_sink_close(sink *sink)
{
	if (sink == NULL) {
		return;
	}
	if (sink->has_thread) {
		atomic_store(&sink->stopping, true);
		flight_wake(sink->flight);
		pthread_join(sink->thread, NULL);
	}
	aws_client_free(sink->client);
	free_parcels(sink->first);
	free_parcels(sink->out);
	if (sink->own != NULL) {
		sink->class->free_own(sink->own);
	}
	flight_free(sink->flight);
	aws_address_free(sink->address);
	free(sink);
}

bool aws_sink_open(const aws_sink_class *class, const config_option *options, const speaker *speaker,
                   const config *config, const config_section *section, sink **result, char **problem)
{
	settings settings;
	sink *sink = memory_take(sizeof *sink);

	*problem = NULL;
	sink->class = class;
	sink->speaker = speaker;
	atomic_init(&sink->permit_ms, INT64_MAX);
	if (!read_settings(class, options, config, section, &settings, &sink->address, problem)) {
		free(sink);
		return false;
	}
	sink->flight = flight_new(IN_FLIGHT_MAX, BYTES_MAX, settings.timeout_ms);
	sink->client = aws_client_new(speaker, sink->address, class->name, CALLS_MAX, settings.timeout_ms);
	if (sink->flight != NULL && sink->client != NULL) {
		aws_watch(sink->client, flight_descriptor(sink->flight));
		sink->has_thread = pthread_create(&sink->thread, NULL, run, sink) == 0;
	}
	if (!sink->has_thread) {
		*problem =
		    config_problem(config, section, NULL, "cannot start the sink: out of memory, descriptors or threads");
		aws_sink_close(sink);
		return false;
	}
	*result = sink;
	return true;
}

bool aws_sink_send(sink *sink, sink_message *message)
{
	return flight_put(sink->flight, message);
}

size_t aws_sink_poll(sink *sink, int timeout_ms, sink_result *results, size_t most)
{
	return flight_poll(sink->flight, timeout_ms, results, most);
}

void aws_sink_permit(sink *sink, int64_t until_ms)
{
	atomic_store(&sink->permit_ms, until_ms);
	flight_permit(sink->flight, until_ms);
	if (until_ms == 0) {
		flight_wake(sink->flight);
	}
}
