/* SPDX-License-Identifier: PostgreSQL */
/*
 * consumer.h: shared by the files of a running consumer. Calls go downwards only: consumer.c (the
 * loop); connection.c, handler_*.c (see handler.h); apply.c, retry.c, http_lease.c; http_window.c;
 * dead_topic.c; transaction.c, parked.c, prepare.c, positions.c, counts.c.
 */
#pragma once

#include "consume.h"
#include "consume_settings.h"
#include "counts.h"
#include "database.h"
#include "handler.h"
#include "message.h"
#include "sql.h"

/* The dead_topic's copies. */
typedef struct graves {
	/*
	 * Messages whose copies must be sent; an open transaction may still roll them back. Their texts
	 * live for a round.
	 */
	struct parking *unsent;
	size_t count, room;
	int failures;      /* in a row, while the broker accepts nothing */
	int64_t from_ms;   /* when to try again */
	char problem[256]; /* the last one */
} graves;

struct consumer {
	const consume_job *job;
	speaker speaker;
	settings settings;
	database database;
	sql_query queries[SQL_COUNT]; /* sql/, with the handler's name filled in */
	char *handle_text;            /* of SQL_HANDLE; NULL: not made yet */
	source *source;               /* NULL: not open */
	const handler_class *handler_class;
	handler *handler;
	counts counts;
	arena arena; /* of one round of the loop */
	/* deliveries fetched and neither acknowledged nor given back */
	size_t out;
	graves graves;
	int64_t parked;        /* parked messages at the last count, plus the changes since */
	int64_t counted_at_ms; /* when they were counted */
	int64_t look_due_ms;   /* when to look for parked messages that are due */
	bool full_said;        /* logged that parked_max is reached */
	bool away;             /* the broker is away; logged */
	char away_problem[256];
	bool stalled;          /* the source is stalled; logged */
	bool started;          /* everything worked once: from now on failures are retried */
	bool has_turn;         /* on this connection, see take_turn.sql */
	bool waits_said;       /* logged that another process has the turn */
	int64_t remembered_ms; /* how long the inbox remembers applied messages */
	bool has_run;          /* the consumer ran before */
	int64_t opened_ms;     /* when the source was opened */
	int64_t reported_ms;   /* when positions were last sent to once.consumer_report */
	int report_failures;
	/* Why the consumer ends. */
	consume_result result;
	char *problem;
};

/* ---- connection.c */
/* A good connection, and this process's turn. False: stopping, failed, or another process's
 * turn. */
bool connection_ready(consumer *consumer);
/* Waits before the next try and keeps the source alive; `failures` in a row. False: stopping. */
bool connection_pause(consumer *consumer, int failures, const failure *failure);
/* Keeps the consumer's source alive; the database calls it while it waits. */
void connection_keep_alive(void *argument);
/* Ends the consumer for good and takes over the problem. Returns false. */
bool connection_fail(consumer *consumer, consume_result result, char *problem);

/* ---- positions.c */
/*
 * Tells the database how far the broker's parts are acknowledged, so that the inbox deletes nothing
 * that can be delivered again. Every few seconds, or at once with `now`. Outside a transaction. A
 * failure is harmless: the next report says the same.
 */
void positions_report(consumer *consumer, bool now);

/* ---- prepare.c */
/* Finds fingerprints, and asks the server whether payloads are jsonb if unsure. Outside a
 * transaction. */
bool prepare_messages(consumer *consumer, message *messages, size_t count, failure *failure);
/* Asks the server whether the payload is jsonb, if unsure. Outside a transaction. */
bool prepare_json(consumer *consumer, message *message, failure *failure);
/* True: our belief that the payload is jsonb failed, not the handler. The payload is then
 * unsure. */
bool prepare_doubts(message *message, const failure *failure);
