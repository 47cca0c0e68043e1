/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_results.c: what Kafka's results mean for a message, its batch and its topic. See
 * kafka_sink.h.
 */
#include <stdio.h>
#include <string.h>

#include "kafka_sink.h"

#define TIMEOUT_LATE_MS 2000 /* librdkafka looks for late messages about once a second */
#define NARROW_MS 60000      /* until batches are tried again */
/* RD_KAFKA_RESP_ERR__INVALID_DIFFERENT_RECORD, which older headers do not have */
#define INVALID_DIFFERENT_RECORD (-138)

int64_t kafka_message_ms(const kafka_sink_settings *settings)
{
	int64_t early_ms = settings->timeout_ms / 2 < TIMEOUT_LATE_MS ? settings->timeout_ms / 2 : TIMEOUT_LATE_MS;
	int64_t message_ms = settings->timeout_ms - early_ms;

	return message_ms < 1 ? 1 : message_ms;
}

suspect *kafka_suspect_of(sink *sink, const char *event_id)
{
	for (size_t i = 0; i < KAFKA_SUSPECTS && sink->suspect_count > 0; i++) {
		if (strcmp(sink->suspects[i].event_id, event_id) == 0) {
			return &sink->suspects[i];
		}
	}
	return NULL;
}

bool kafka_suspect(sink *sink, const place *place)
{
	suspect *suspect = kafka_suspect_of(sink, place->message->event_id);
	bool is_at_fault = suspect != NULL && place->is_apart && suspect->accepted < sink->accepted;

	if (suspect == NULL) { /* the oldest makes room */
		suspect = &sink->suspects[sink->suspect_next];
		sink->suspect_next = (sink->suspect_next + 1) % KAFKA_SUSPECTS;
		sink->suspect_count += suspect->event_id[0] == '\0';
		snprintf(suspect->event_id, sizeof suspect->event_id, "%s", place->message->event_id);
	}
	suspect->accepted = sink->accepted;
	return is_at_fault;
}

static void suspect_clear(sink *sink, const char *event_id)
{
	suspect *suspect = kafka_suspect_of(sink, event_id);

	if (suspect != NULL) {
		suspect->event_id[0] = '\0';
		sink->suspect_count--;
	}
}

void kafka_finish(sink *sink, place *place, rd_kafka_resp_err_t error, sink_verdict verdict)
{
	place->error = error;
	place->verdict = verdict;
	place->next = NULL;
	if (verdict == SINK_DELIVERED || verdict == SINK_REFUSED) {
		suspect_clear(sink, place->message->event_id);
	}
	*sink->finished_end = place;
	sink->finished_end = &place->next;
}

bool kafka_is_refusal(rd_kafka_resp_err_t error)
{
	switch (error) {
	case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
	case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
	case RD_KAFKA_RESP_ERR__INVALID_ARG:
	case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
	case RD_KAFKA_RESP_ERR_INVALID_MSG:
	case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
	case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
	case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
	case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
	case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
	case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
	case RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT:
	case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
	case RD_KAFKA_RESP_ERR_INVALID_RECORD:
		return true;
	default:
		return false;
	}
}

bool kafka_is_of_batch(rd_kafka_resp_err_t error)
{
	switch ((int)error) {
	case RD_KAFKA_RESP_ERR_INVALID_MSG:
	case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
	case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
	case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
	case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
	case RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT:
	case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
	case RD_KAFKA_RESP_ERR_INVALID_RECORD:
	case INVALID_DIFFERENT_RECORD:
		return true;
	default:
		return false;
	}
}

static narrow_topic *narrow_find(sink *sink, const char *topic)
{
	for (size_t i = 0; i < KAFKA_NARROW_TOPICS; i++) {
		if (strcmp(sink->narrow[i].name, topic) == 0) {
			return &sink->narrow[i];
		}
	}
	return NULL;
}

bool kafka_is_narrow(sink *sink, const char *topic)
{
	int64_t now = runtime_now_ms();

	if (now >= sink->narrow_ms) {
		return false;
	}
	const narrow_topic *narrow = narrow_find(sink, topic);
	return now < sink->all_narrow_ms || (narrow != NULL && now < narrow->until_ms);
}

void kafka_note_narrow(sink *sink, const char *topic, rd_kafka_resp_err_t error)
{
	char quoted[RUNTIME_QUOTE_BYTES], problem[BROKER_PROBLEM_BYTES];
	int64_t now = runtime_now_ms();
	narrow_topic *narrow = narrow_find(sink, topic);

	if (now < sink->all_narrow_ms || (narrow != NULL && now < narrow->until_ms)) {
		return;
	}
	for (size_t i = 0; narrow == NULL && i < KAFKA_NARROW_TOPICS; i++) {
		narrow = now >= sink->narrow[i].until_ms ? &sink->narrow[i] : NULL;
	}
	sink->narrow_ms = now + NARROW_MS;
	if (narrow == NULL) {
		sink->all_narrow_ms = sink->narrow_ms;
	} else {
		snprintf(narrow->name, sizeof narrow->name, "%s", topic);
		narrow->until_ms = sink->narrow_ms;
	}
	kafka_problem(&sink->watch, error, problem);
	runtime_log(sink->watch.speaker, RUNTIME_WARNING, "sink-refused",
	            "sink=kafka topic=%s single_s=%d error=%s; a batch was refused, and its events are sent one by one",
	            topic, NARROW_MS / 1000, runtime_quote(problem, quoted));
}

bool kafka_is_fence(rd_kafka_resp_err_t error)
{
	return error == RD_KAFKA_RESP_ERR__FENCED || error == RD_KAFKA_RESP_ERR_PRODUCER_FENCED ||
	       error == RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH;
}

bool kafka_is_late(const sink *sink, const place *place, rd_kafka_resp_err_t error)
{
	return error == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT && place->order < sink->delivered_order[place->is_single];
}
