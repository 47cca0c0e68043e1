/* SPDX-License-Identifier: PostgreSQL */
/*
 * consumer.h: what the files of a running consumer share. They call down only: consumer.c (the
 * loop); connection.c, handler_*.c (see handler.h); retry.c, http_lease.c; apply.c, http_window.c;
 * dead_topic.c; parked.c, prepare.c, positions.c, counts.c.
 */
#pragma once

#include "consume.h"
#include "consume_settings.h"
#include "counts.h"
#include "database.h"
#include "handler.h"
#include "message.h"
#include "sql.h"

/* Of the dead_topic. */
typedef struct graves {
	/* Whose copies are to be sent; while a transaction is open it may yet take them back. */
	struct parking *unsent;
	size_t count, room;
	int failures;      /* in a row of a broker that took nothing */
	int64_t from_ms;   /* when to try again */
	char problem[256]; /* the last one */
} graves;

struct consumer {
	const consume_job *job;
	speaker speaker;
	settings settings;
	database database;
	sql_query queries[SQL_COUNT]; /* sql/, with the handler in its place */
	char *handle_text;            /* of SQL_HANDLE; NULL: none yet */
	source *source;               /* NULL: not open */
	const handler_class *handler_class;
	handler *handler;
	counts counts;
	arena arena; /* of one round of the loop */
	/* deliveries that were fetched, and neither acknowledged nor given back */
	size_t out;
	graves graves;
	int64_t parked;        /* messages, when they were last counted, and the difference since */
	int64_t counted_at_ms; /* when that was */
	int64_t look_due_ms;   /* when to look for parked messages that are due */
	bool full_said;        /* that parked_max is reached */
	bool away;             /* the broker; said so */
	char away_problem[256];
	bool stalled;          /* what is read from; said so */
	bool started;          /* all was well once: from now on what fails is tried again */
	bool has_turn;         /* on this connection, see take_turn.sql */
	bool waits_said;       /* that another process has the turn */
	int64_t remembered_ms; /* so long the inbox remembers what it has applied */
	bool has_run;          /* before */
	int64_t opened_ms;     /* when the source was */
	int64_t reported_ms;   /* positions, to once.consumer_report */
	int report_failures;
	/* What leads to the end of the consumer. */
	consume_result result;
	char *problem;
};

/* ---- connection.c */
/* A good connection, and this process's turn. False: stopping, failed, or another's turn. */
bool connection_ready(consumer *consumer);
/* Waits before another try, the source kept alive; `failures` in a row. False: stopping. */
bool connection_pause(consumer *consumer, int failures, const failure *failure);
/* Keeps the consumer's source alive; the database calls it while it waits. */
void connection_keep_alive(void *argument);
/* Ends the consumer for good; the problem is the consumer's then. Returns false. */
bool connection_fail(consumer *consumer, consume_result result, char *problem);

/* ---- positions.c */
/*
 * Tells the database how far the broker's parts are acknowledged, so that the inbox forgets nothing
 * that can come again: every few seconds; `now`: at once. Outside of a transaction. A failure stops
 * nobody: what is told later says the same.
 */
void positions_report(consumer *consumer, bool now);

/* ---- prepare.c */
/* Finds fingerprints, and asks the server what is jsonb if unsure. Outside of a transaction. */
bool prepare_messages(consumer *consumer, message *messages, size_t count, failure *failure);
/* Asks the server whether the payload is jsonb, if unsure. Outside of a transaction. */
bool prepare_json(consumer *consumer, message *message, failure *failure);
/* Did our belief that the payload is jsonb fail, and not the handler? Then it is unsure. */
bool prepare_doubts(message *message, const failure *failure);
