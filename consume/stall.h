/* SPDX-License-Identifier: PostgreSQL */
/*
 * stall.h: does the broker have messages that no consumer holds, and that do not come although they
 * are waited for? Only waiting time counts: a stopped or busy process adds none. Used by the
 * sources.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Advances by a limited step, however long ago it was last read. */
typedef struct wait_clock {
	int64_t now_ms, looked_ms;
} wait_clock;

void wait_clock_go_on(wait_clock *clock);

#define STALLED_OPTION_ROW(struct_name, what)                                                                          \
	{                                                                                                                  \
		.name = "stalled_after", .kind = CONFIG_DURATION, .offset = offsetof(struct_name, stalled_ms),                 \
		.minimum = 1000, .maximum = 86400000, .standard = "60s",                                                       \
		.help = what " that has messages but delivers none for this long while the consumer waits is logged, "         \
		             "counted in pgonce_consume_stalled, and named by /once/ready, which answers 503"                  \
	}

/* For a source that reads one thing, and asks the broker about its backlog. */
typedef struct stall {
	int64_t after_ms; /* stalled_after; the other fields are private */
	wait_clock clock;
	int64_t asked_ms; /* on the clock */
	bool behind;
	uint64_t mark;
	int64_t behind_ms; /* on the clock: behind since then, at this mark */
	int answers;       /* that said so */
	int64_t anew_ms;   /* on the clock: when a new connection was last wanted */
	bool is_anew;      /* the connection was ended for that */
} stall;

/* A message came, or is held. */
void stall_moved(stall *stall);
/* The connection has ended: the state is unknown, unless it was ended because of the stall. */
void stall_disconnected(stall *stall);
/* Messages were waited for, and none is held. True: it is time to ask the broker. */
bool stall_waited(stall *stall);
/*
 * The broker's answer: behind: it has messages that no consumer holds. mark: changes when it
 * delivers something. Without an answer, the state is unknown.
 */
void stall_answer(stall *stall, bool behind, uint64_t mark);
bool stall_is(const stall *stall);
/*
 * True, once per stalled_after of a stall: a new connection may help, and no message is held here
 * that it would make void. The stall lasts until a message comes.
 */
bool stall_wants_connection(stall *stall);
