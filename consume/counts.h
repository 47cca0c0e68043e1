/* SPDX-License-Identifier: PostgreSQL */
/* counts.h: what a consumer has done: for its asserts, its log and its metrics. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "metrics.h"

typedef enum parked_state {
	PARKED_WAITING,  /* behind another of its key, or for another process */
	PARKED_RETRYING, /* after an attempt that failed */
	PARKED_DEAD,
	PARKED_STATES
} parked_state;

/* What became of messages. But for `mismatched`, which are dead, each message counts once. */
typedef struct tally {
	uint64_t applied, duplicates;
	uint64_t known; /* delivered again while they are parked */
	uint64_t parked[PARKED_STATES];
	uint64_t mismatched;
} tally;

typedef struct counts {
	tally open; /* of the transaction that is open */
	tally committed;
	/* pgonce_consume_*; each NULL where nobody asks. */
	metric *messages, *batches, *message_at;
	metric *applied, *duplicates, *mismatches, *parked[PARKED_STATES];
	metric *active, *source_away, *endpoint_away, *stalled, *full, *dead_unsent, *lost, *connects;
} counts;

void counts_publish(counts *counts, metrics *to, const char *name);
/* The transaction has committed: what is open counts, and nothing is open any more. */
void counts_commit(counts *counts);
uint64_t tally_parked(const tally *tally);
/* How many messages it is of. */
uint64_t tally_messages(const tally *tally);
