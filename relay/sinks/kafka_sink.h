/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_sink.h: the sink of Kafka as its files share it. kafka.c has the producers and the
 * interface, and says how all of it works; kafka_results.c says what a result means;
 * kafka_transactions.c has the turn and its transactions, with fence = broker. For these three
 * alone.
 */
#pragma once

#include "kafka.h"
#include "kafka_partitions.h"
#include "sink.h"

enum {
	FENCE_NONE,
	FENCE_BROKER
};

typedef struct kafka_sink_settings {
	kafka_options kafka;
	int64_t fence;
	int64_t time;
	int64_t null_payload;
	const char *key;              /* read by the envelope */
	const char *partition_header; /* NULL: none */
	int64_t timeout_ms;           /* the pipeline's option, known by its table */
} kafka_sink_settings;

enum {
	KAFKA_IN_FLIGHT_MAX = 16384,
	KAFKA_TOPIC_BYTES = 250,
	KAFKA_NARROW_TOPICS = 32
};

/* What is known of a message that librdkafka has, and of its result. */
typedef struct place {
	sink_message *message;
	uint64_t order; /* of send */
	int64_t sent_ms;
	int64_t again_ms; /* withheld for so long; -1: not at all */
	bool is_out;      /* librdkafka has it */
	bool is_single;   /* it is a batch of its own */
	rd_kafka_resp_err_t error;
	sink_verdict verdict;
	char problem[BROKER_PROBLEM_BYTES]; /* where librdkafka's text of the error would not say it */
	struct place *next;
} place;

/* Each is asked for again until it has an answer: librdkafka takes no other meanwhile. */
typedef enum transaction_end {
	END_UNASKED,
	END_COMMIT,
	END_ABORT
} transaction_end;

/* A topic that has refused a batch. */
typedef struct narrow_topic {
	char name[KAFKA_TOPIC_BYTES];
	int64_t until_ms;
} narrow_topic;

struct sink {
	const config *config;
	const config_section *section;
	kafka_sink_settings settings;
	kafka_watch watch;
	rd_kafka_t *producer; /* NULL: it has to be made anew */
	rd_kafka_t *singles;  /* its batches are of one message; NULL: none is wanted yet */
	narrow_topic narrow[KAFKA_NARROW_TOPICS];
	int64_t narrow_ms;     /* until then there are any */
	int64_t all_narrow_ms; /* until then all are: there was no place for one more */
	place *places;
	place *unused;
	place *finished, **finished_end;
	size_t in_flight;         /* librdkafka has them */
	size_t singles_in_flight; /* ... of them by `singles` */
	uint64_t sends;
	uint64_t delivered_order[2]; /* the last that was delivered, in batches and single ones */
	kafka_partitions *partitions;
	/* with fence = broker */
	int64_t permit_ms;
	bool is_wanted;         /* something is to be sent, so the turn may begin */
	bool has_turn;          /* the producer is the newest of its id */
	bool is_fenced;         /* it was, and another is: until the next turn nothing is sent */
	bool is_single;         /* the producer's batches are of one message */
	bool is_open;           /* a transaction is */
	bool is_failed;         /* a message of it has: it takes no more */
	bool is_guilty;         /* ... by itself or its batch, and not the transaction's end */
	place *open;            /* those of it of which librdkafka has reported */
	transaction_end ending; /* has been asked for: it takes no more */
	/* why it cannot be committed, where that is no message's own result */
	rd_kafka_resp_err_t cause;
	int64_t begun_ms; /* when the turn was wanted, or the transaction began */
	/* where there is no producer: why, and when to try again */
	char fatal[BROKER_PROBLEM_BYTES];
	int fatal_count;
	int64_t again_ms;
};

/* ---- kafka_results.c */
/* So long librdkafka may try, so that the result is there within `timeout`. */
int64_t kafka_message_ms(const kafka_sink_settings *settings);
/* The message has its result. */
void kafka_finish(sink *sink, place *place, rd_kafka_resp_err_t error, sink_verdict verdict);
/* Of a message that librdkafka or the broker would not take: is it the message's own fault? */
bool kafka_is_refusal(rd_kafka_resp_err_t error);
/*
 * Of a message in a batch: does it say nothing of the message itself? (A broker says why of a
 * batch; a librdkafka that asks for more has an error for those beside the one at fault.)
 */
bool kafka_is_of_batch(rd_kafka_resp_err_t error);
/* Another producer of the id has begun. */
bool kafka_is_fence(rd_kafka_resp_err_t error);
/* Its time has run out, and Kafka is there: it has taken later ones. */
bool kafka_is_late(const sink *sink, const place *place, rd_kafka_resp_err_t error);
/* A batch of the topic was refused; and: was one lately? */
void kafka_note_narrow(sink *sink, const char *topic, rd_kafka_resp_err_t error);
bool kafka_is_narrow(sink *sink, const char *topic);

/* ---- kafka_transactions.c */
/*
 * librdkafka has reported of a message: the transaction's end decides about it, or it makes the
 * transaction fail.
 */
void kafka_transacted(sink *sink, place *place, rd_kafka_resp_err_t error, const kafka_partition *partition);
/* Its producer has ended, and the transaction with it. */
void kafka_turn_ended(sink *sink);
/* Sees to it that there is an open transaction; *is_full: not now. */
rd_kafka_resp_err_t kafka_open_transaction(sink *sink, bool *is_full);
/*
 * Takes the turn, or ends the transaction. May wait longer than it is asked to. False: what began
 * has not ended in time, or nobody knows how: the producer is to end, and the next one of the id
 * sees to it.
 */
bool kafka_serve_turn(sink *sink, int timeout_ms);
