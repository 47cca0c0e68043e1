/* SPDX-License-Identifier: PostgreSQL */
/*
 * stall.h: has the broker messages that nobody has, which do not come although they are waited for?
 * Time counts while messages are waited for: a process that is stopped, or busy, has none. Used by
 * the sources.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Goes on by a limited step, however long ago it was looked at. */
typedef struct wait_clock {
	int64_t now_ms, looked_ms;
} wait_clock;

void wait_clock_go_on(wait_clock *clock);

#define STALLED_OPTION_ROW(struct_name, what)                                                                          \
	{                                                                                                                  \
		.name = "stalled_after", .kind = CONFIG_DURATION, .offset = offsetof(struct_name, stalled_ms),                 \
		.minimum = 1000, .maximum = 86400000, .standard = "60s",                                                       \
		.help =                                                                                                        \
		    what " that has messages, and gives none for so long although the consumer waits for them, is logged, "    \
		         "counted in pgonce_consume_stalled, and named by /once/ready, which answers 503"                      \
	}

/* Of a source that reads one thing, and asks the broker how far that is. */
typedef struct stall {
	int64_t after_ms; /* stalled_after; the rest is its own */
	wait_clock clock;
	int64_t asked_ms; /* on the clock */
	bool behind;
	uint64_t mark;
	int64_t behind_ms; /* on the clock: since when it is, at this mark */
	int answers;       /* that said so */
	int64_t anew_ms;   /* on the clock: when a new connection was wanted last */
	bool is_anew;      /* the connection ends for that */
} stall;

/* A message came, or is here. */
void stall_moved(stall *stall);
/* The connection has ended: nothing is known of a stall, but for one that it was ended for. */
void stall_disconnected(stall *stall);
/* Messages were waited for, and none is here. True: it is time to ask the broker. */
bool stall_waited(stall *stall);
/*
 * What it says: has it messages that nobody has? mark: another one when it has handed something
 * out. Without an answer nothing is known.
 */
void stall_answer(stall *stall, bool behind, uint64_t mark);
bool stall_is(const stall *stall);
/*
 * True, once in each stalled_after of a stall: a new connection may bring what this one does not,
 * and nothing is here that it would make void. It is a stall until something comes.
 */
bool stall_wants_connection(stall *stall);
