/* SPDX-License-Identifier: PostgreSQL */
/* kafka_producer.c: see kafka_producer.h. */
#include "kafka_producer.h"

#include <stdio.h>
#include <stdlib.h>

/* clang-format off */
static const char *const properties[][2] = {
	{"enable.idempotence", "true"},
	{"message.timeout.ms", "10000"},
	/* how long a topic may be unknown; librdkafka's default is longer than any caller waits here */
	{"topic.metadata.propagation.max.ms", "3000"},
	{NULL, NULL}};
/* clang-format on */

static void on_report(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque)
{
	kafka_producer *producer = message->_private;

	(void)client;
	(void)opaque;
	producer->reported = true;
	producer->error = message->err;
}

static bool start(kafka_producer *producer, char problem[BROKER_PROBLEM_BYTES])
{
	rd_kafka_conf_t *conf;
	char *wrong = NULL;
	bool set = true;

	producer->watch = (kafka_watch){.speaker = producer->speaker};
	if (!kafka_configure(producer->config, producer->section, producer->options, NULL, &producer->watch, &conf,
	                     &wrong)) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%s", wrong);
		free(wrong);
		return false;
	}
	for (size_t i = 0; set && properties[i][0] != NULL; i++) {
		set = rd_kafka_conf_set(conf, properties[i][0], properties[i][1], problem, BROKER_PROBLEM_BYTES) ==
		      RD_KAFKA_CONF_OK;
	}
	rd_kafka_conf_set_dr_msg_cb(conf, on_report);
	producer->client = set ? rd_kafka_new(RD_KAFKA_PRODUCER, conf, problem, BROKER_PROBLEM_BYTES) : NULL;
	if (producer->client == NULL) {
		rd_kafka_conf_destroy(conf);
	}
	return producer->client != NULL;
}

static void add_copies(rd_kafka_headers_t *copy, const source_header *headers, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		rd_kafka_header_add(copy, headers[i].name, -1, headers[i].value.data, (ssize_t)headers[i].value.length);
	}
}

bool kafka_producer_send(kafka_producer *producer, const char *topic, const source_message *message,
                         const source_header *more, size_t more_count, char problem[BROKER_PROBLEM_BYTES])
{
	if (producer->client == NULL && !start(producer, problem)) {
		return false;
	}
	rd_kafka_headers_t *headers = rd_kafka_headers_new(message->header_count + more_count);
	add_copies(headers, message->headers, message->header_count);
	add_copies(headers, more, more_count);
	producer->reported = false;
	rd_kafka_resp_err_t error =
	    rd_kafka_producev(producer->client, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
	                      RD_KAFKA_V_KEY(message->key.data, message->key.length),
	                      RD_KAFKA_V_VALUE((void *)(uintptr_t)message->payload.data, message->payload.length),
	                      RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_OPAQUE(producer), RD_KAFKA_V_END);
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
		rd_kafka_headers_destroy(headers);
		kafka_problem(&producer->watch, error, problem);
	}
	return error == RD_KAFKA_RESP_ERR_NO_ERROR;
}

bool kafka_producer_poll(kafka_producer *producer)
{
	rd_kafka_poll(producer->client, 100);
	return producer->reported;
}

bool kafka_producer_end(kafka_producer *producer, char problem[BROKER_PROBLEM_BYTES])
{
	if (!producer->reported) {
		rd_kafka_purge(producer->client, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
	}
	/* The report always comes: an unread one would be taken for the next message's. */
	while (!producer->reported) {
		rd_kafka_poll(producer->client, 100);
	}
	rd_kafka_resp_err_t error = producer->error;
	if (error == RD_KAFKA_RESP_ERR__PURGE_QUEUE || error == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT) {
		error = RD_KAFKA_RESP_ERR__MSG_TIMED_OUT; /* we cancelled it */
	}
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
		kafka_problem(&producer->watch, error, problem);
	}
	return error == RD_KAFKA_RESP_ERR_NO_ERROR;
}

void kafka_producer_close(kafka_producer *producer)
{
	if (producer->client != NULL) {
		rd_kafka_destroy(producer->client);
	}
}
