/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_sink.h: shared by the files of the sink of Kafka. kafka.c has the producers and the
 * interface, and explains how it works; kafka_results.c interprets results; kafka_transactions.c
 * has the turn and its transactions, with fence = broker. For these three alone.
 */
#pragma once

#include "event.h"
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
	KAFKA_NARROW_TOPICS = 32,
	KAFKA_SUSPECTS = 64
};

/* A message that librdkafka has, and its result. */
typedef struct place {
	sink_message *message;
	uint64_t order; /* of send */
	int64_t sent_ms;
	int64_t again_ms; /* how long it was withheld; -1: it was not */
	bool is_out;      /* librdkafka has it */
	bool is_single;   /* it is a batch of one message */
	bool is_apart;    /* librdkafka has had no other meanwhile */
	rd_kafka_resp_err_t error;
	sink_verdict verdict;
	char problem[BROKER_PROBLEM_BYTES]; /* if librdkafka's text of the error does not say it */
	struct place *next;
} place;

/* Each is repeated until it has an answer: librdkafka accepts no other meanwhile. */
typedef enum transaction_end {
	END_UNASKED,
	END_COMMIT,
	END_ABORT
} transaction_end;

/* An event on which Kafka hung while it accepted no other. */
typedef struct suspect {
	char event_id[EVENT_ID_BYTES]; /* "": none */
	uint64_t accepted;             /* how many messages Kafka had accepted then */
} suspect;

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
	rd_kafka_t *producer; /* NULL: create it again */
	rd_kafka_t *singles;  /* with batches of one message; NULL: not needed yet */
	narrow_topic narrow[KAFKA_NARROW_TOPICS];
	int64_t narrow_ms;     /* until then some topics are narrow */
	int64_t all_narrow_ms; /* until then all are: there was no room for another */
	place *places;
	place *unused;
	place *finished, **finished_end;
	size_t in_flight;         /* librdkafka has them */
	size_t singles_in_flight; /* ... of them by `singles` */
	uint64_t sends;
	uint64_t delivered_order[2]; /* the last delivered message, in batches and single ones */
	kafka_partitions *partitions;
	uint64_t accepted; /* messages that Kafka has accepted */
	suspect suspects[KAFKA_SUSPECTS];
	size_t suspect_count, suspect_next;
	bool is_apart; /* the message that it has is a suspect: it accepts no other */
	/* with fence = broker */
	int64_t permit_ms;
	bool is_wanted;         /* there are messages to send, so the turn may begin */
	bool has_turn;          /* the producer is the newest of its id */
	bool is_fenced;         /* another is newer: nothing is sent until the next turn */
	bool is_single;         /* the producer's batches have one message */
	bool is_open;           /* a transaction is open */
	bool is_failed;         /* one of its messages failed: it accepts no more */
	bool is_guilty;         /* ... because of the message or its batch, not of the end */
	place *open;            /* its messages that librdkafka has reported */
	transaction_end ending; /* its end was requested: it accepts no more */
	/* why it cannot be committed, if no message's result says so */
	rd_kafka_resp_err_t cause;
	int64_t begun_ms; /* when the turn was wanted, or the transaction began */
	/* without a producer: why, and when to try again */
	char fatal[BROKER_PROBLEM_BYTES];
	int fatal_count;
	int64_t again_ms;
};

/* ---- kafka_results.c */
/* How long librdkafka may try, so that the result comes within `timeout`. */
int64_t kafka_message_ms(const kafka_sink_settings *settings);
/* Notes the message's result. */
void kafka_finish(sink *sink, place *place, rd_kafka_resp_err_t error, sink_verdict verdict);
/* True: librdkafka or the broker refused the message because of the message itself. */
bool kafka_is_refusal(rd_kafka_resp_err_t error);
/*
 * True: the error of a message in a batch says nothing about the message itself. (A broker refuses
 * the whole batch; newer versions of librdkafka have a separate error for the other messages.)
 */
bool kafka_is_of_batch(rd_kafka_resp_err_t error);
/* Another producer of the id has begun. */
bool kafka_is_fence(rd_kafka_resp_err_t error);
/* It timed out, although Kafka is there: it has accepted later ones. */
bool kafka_is_late(const sink *sink, const place *place, rd_kafka_resp_err_t error);
/*
 * Kafka hung on this message, and accepted no other meanwhile. True: it also hung on it before, has
 * accepted others since, and had no other message now.
 */
bool kafka_suspect(sink *sink, const place *place);
/* NULL: it is not suspect. It stays suspect until it is delivered or refused. */
suspect *kafka_suspect_of(sink *sink, const char *event_id);
/* A batch of the topic was refused; and: was one lately? */
void kafka_note_narrow(sink *sink, const char *topic, rd_kafka_resp_err_t error);
bool kafka_is_narrow(sink *sink, const char *topic);

/* ---- kafka_transactions.c */
/*
 * librdkafka has reported a message: the transaction's end decides its result, or it makes the
 * transaction fail. is_at_fault: kafka_suspect has said so.
 */
void kafka_transacted(sink *sink, place *place, rd_kafka_resp_err_t error, bool is_at_fault,
                      const kafka_partition *partition);
/* Its producer has ended, and the transaction with it. */
void kafka_turn_ended(sink *sink);
/* Opens a transaction if none is open; *is_full: not possible now. */
rd_kafka_resp_err_t kafka_open_transaction(sink *sink, bool *is_full);
/*
 * Takes the turn, or ends the transaction. May wait longer than it is asked to. False: it has not
 * ended in time, or its end is unknown: the producer must end, and the next one with the id ends
 * the transaction.
 */
bool kafka_serve_turn(sink *sink, int timeout_ms);
