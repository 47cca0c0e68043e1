/* SPDX-License-Identifier: PostgreSQL */
/* kafka_producer.h: sends one dead message at a time to a topic. Used by kafka.c alone. */
#pragma once

#include "kafka.h"
#include "source.h"

typedef struct kafka_producer {
	const speaker *speaker;
	const config *config;
	const config_section *section;
	const kafka_options *options;
	/* Its own. */
	rd_kafka_t *client; /* NULL: not needed yet */
	kafka_watch watch;
	bool reported;
	rd_kafka_resp_err_t error; /* the reported error */
} kafka_producer;

/* Sends a copy; then call poll, and end. False: it cannot be sent. */
bool kafka_producer_send(kafka_producer *producer, const char *topic, const source_message *message,
                         const source_header *more, size_t more_count, char problem[BROKER_PROBLEM_BYTES]);
/* Waits for a moment. True: the result is known. */
bool kafka_producer_poll(kafka_producer *producer);
/* Cancels the message if its result is unknown. True: the broker has acknowledged it. */
bool kafka_producer_end(kafka_producer *producer, char problem[BROKER_PROBLEM_BYTES]);
void kafka_producer_close(kafka_producer *producer);
