/* SPDX-License-Identifier: PostgreSQL */
/*
 * move.h: slots that move from one node to another. rehome.c is the command, copy.c copies the
 * memory while the slots are open, hand_over.c closes one and opens it at the other node.
 */
#pragma once

#include "connect.h"

typedef enum slot_stage {
	STAGE_OPEN,   /* at the source; its memory must be copied */
	STAGE_CLOSED, /* at both nodes: an earlier run left it so; it opens at the source again */
	STAGE_HANDED, /* the source has handed it over, and the target has not opened it yet */
	STAGE_MOVED   /* open at the target */
} slot_stage;

typedef struct moving_slot {
	int number;
	slot_stage stage;
	int64_t epoch;     /* HANDED, MOVED: that of the target; else: that of the source */
	int64_t closed_us; /* for how long it was open nowhere; -1: not in this run */
} moving_slot;

typedef struct node_end {
	PGconn *connection;
	char *conninfo;
	char *name;    /* host/database */
	json_t *node;  /* what once._node() returns */
	json_t *facts; /* what once._move_facts() returns */
} node_end;

typedef struct move {
	const cli_invocation *invocation;
	node_end source;
	node_end target;
	moving_slot *slots;
	int slot_count;
	int64_t wait_ms; /* for how long a slot may be closed */
} move;

/* SIGINT, SIGTERM and SIGHUP ask to stop from now on. */
void move_heed_signals(void);
/* Whether one has. */
bool move_is_stopped(void);
/* The numbers, or the epochs, of the slots in this stage, as an array of PostgreSQL. Free it. */
char *move_numbers(const move *move, slot_stage stage);
char *move_epochs(const move *move, slot_stage stage);
/*
 * Deletes the memory of the slots in this stage at this end, in short transactions, and adds the
 * number of deleted rows to *deleted. CLI_OK, or an exit code after an error message.
 */
int move_forget(move *move, const node_end *end, slot_stage stage, int64_t *deleted);
/*
 * Takes the lock of one end, which its connection holds. CLI_OK, or CLI_ACTIVE after an error
 * message: another run has it.
 */
int move_lock(move *move, const node_end *end);
/* The clock for waits, in microseconds. */
int64_t move_now(void);
/* A signal may end it early. */
void move_sleep_ms(int64_t milliseconds);

/*
 * copy.c: removes what an earlier run has left; begins to copy the memory of all slots in
 * STAGE_OPEN to the target, from when on no keeper deletes; waits until the copy is nearly up to
 * date, which it stays. CLI_OK, or an exit code after an error message.
 */
int copy_end(move *move);
int copy_begin(move *move);
int copy_wait(move *move);

/*
 * hand_over.c: hands an open slot over, whose memory is copied. If that takes longer than --wait,
 * or something fails, the slot opens at the source again: an exit code after an error message, and
 * the stage says what is now true. Blocks for about twice --wait at most.
 */
int hand_over(move *move, moving_slot *slot);
/* Opens a slot in STAGE_HANDED at the target; one in STAGE_CLOSED at the source. */
int hand_over_open(move *move, moving_slot *slot);
int hand_over_back(move *move, moving_slot *slot);
