/* SPDX-License-Identifier: PostgreSQL */
/*
 * consumer.h: what the files of a running consumer share: its state (consumer.c), the batch in one transaction (apply.c), the messages
 * that wait (parked.c), the way over HTTP (handler_http.c).
 */
#pragma once

#include "consume.h"
#include "database.h"
#include "message.h"
#include "settings.h"

/* What a transaction has put aside: counted when it is committed. */
typedef struct consumer_tally {
	uint64_t waiting, retrying, dead, mismatched;
} consumer_tally;

/* pgonce_consume_*; each NULL where nobody asks. */
typedef struct consumer_metrics {
	metric *messages, *batches, *message_at;
	metric *applied, *duplicates, *mismatches;
	metric *waiting, *retrying, *dead;
	metric *active, *source_away, *connects;
} consumer_metrics;

typedef struct consumer {
	const consume_job *job;
	service service;
	settings settings;
	database database;
	source *source;
	arena arena;    /* of what is at work now */
	int64_t parked; /* messages, when they were last counted */
	int64_t counted_at_ms;
	int due_take;        /* how many that are due to ask for */
	int64_t look_due_ms; /* when to look for parked messages that are due */
	bool full_said;      /* that parked_max is reached */
	bool away;           /* the broker; said so */
	char away_problem[256];
	bool started;        /* all was well once: from now on what fails is tried again */
	bool has_turn;       /* on this connection, see take_turn.sql */
	bool waits_said;     /* that another process has the turn */
	int64_t reported_ms; /* positions, to once.consumer_report */
	int report_failures;
	uint64_t applied, duplicates;
	consumer_tally tally; /* of the transaction that is open */
	consumer_metrics metrics;
	/* What leads to the end of the consumer. */
	consume_result result;
	char *problem;
} consumer;

/* ---- consumer.c */
/* A connection on which everything is as it must be, tried again until there is one. False: stopping, or failed for good. */
bool consumer_connected(consumer *consumer);
/* The connection, this process's turn, the source, opened. False: stopping, or failed for good. */
bool consumer_ready(consumer *consumer);
/* Waits before another try, the source kept alive; `failures` in a row. False: stopping. */
bool consumer_pause(consumer *consumer, int failures, const failure *failure);
void consumer_keep_alive(void *consumer);
/* Is the payload jsonb, where only the server knows? Outside of a transaction: the answer may be an error. */
bool consumer_ask(consumer *consumer, message *message, failure *failure);
/* Was it perhaps our belief that the payload is jsonb that failed, and not the handler? Then it is to be asked: JSON_UNSURE. */
bool consumer_doubts(message *message, const failure *failure);
/* Finds the fingerprints, and asks the server where that is needed. Outside of a transaction. */
bool consumer_prepare_messages(consumer *consumer, message *messages, size_t count, failure *failure);

/* ---- counting */
/* A batch came from the broker. */
void consumer_took(consumer *consumer, size_t count);
/* What is committed: so many applied and duplicates, and what the tally says, which is empty then. */
void consumer_count(consumer *consumer, uint64_t applied, uint64_t duplicates);
/* What the source said: to the log, where that is news, and to the metrics. */
void consumer_note_source(consumer *consumer, source_state state, const char *problem);

/*
 * Tells the database how far the broker's parts are acknowledged, so that the inbox forgets nothing that can come again: every few seconds;
 * `now`: at once. Outside of a transaction. A failure stops nobody: what is told later says the same.
 */
void consumer_report(consumer *consumer, bool now);

/* ---- apply.c */
/*
 * Applies a batch: all that can be is committed when it returns true, all else parked: acknowledge it. False: stopping, or failed for good;
 * nothing is known to be done: give it back.
 */
bool apply_batch(consumer *consumer, message *messages, size_t count);
/* The handler for messages in order, in a transaction that is open. */
bool apply_handle(consumer *consumer, message *const *messages, size_t count, failure *failure);

/* ---- parked.c */
typedef struct parking {
	const message *message;
	const char *state; /* "waiting", "retrying", "dead" */
	int attempts;
	int64_t wait_ms;
	const char *error, *sqlstate; /* NULL: none */
} parking;

#define EXPIRED_ID                                                                                                     \
	"its id is older than what is remembered: it cannot be known whether it was applied. Discard it, or apply it by "  \
	"hand; a consumer with ids = opaque takes ids of any age"

/* What becomes of a message whose attempt has failed: `counted` is whether the attempt counts. Sends to dead_topic what is dead. */
parking parked_after_failure(consumer *consumer, message *message, const failure *failure, bool counted,
                             int64_t at_least_ms);
parking parked_dead(consumer *consumer, message *message, const char *sqlstate, const char *error);
parking parked_waiting(const message *message, int64_t wait_ms);
/* Stores them, in a transaction that is open, or as one. */
bool parked_store(consumer *consumer, const parking *parkings, size_t count, failure *failure);
/* Counts anew. */
bool parked_count(consumer *consumer, failure *failure);
/* Tries those that are due, for a while. False: stopping, or failed for good. */
bool parked_work(consumer *consumer);
/* Up to `most` messages that are due, into the arena; in a transaction that is open. */
bool parked_due(consumer *consumer, int most, message **messages, size_t *count, failure *failure);
bool parked_applied(consumer *consumer, const message *const *messages, size_t count, failure *failure);

/* ---- handler_http.c */
/* The whole loop of a consumer with an endpoint, until stopping, idle (with once), or failed for good. */
void http_work(consumer *consumer);
