/* SPDX-License-Identifier: PostgreSQL */
/* counts.h: counts of a consumer's work, for its asserts, its log and its metrics. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "metrics.h"

typedef enum parked_state {
	PARKED_WAITING,  /* behind another of its key, or for another process */
	PARKED_RETRYING, /* after a failed attempt */
	PARKED_DEAD,
	PARKED_STATES
} parked_state;

/* Results of messages. Each message counts once, except `mismatched` ones, which count as dead
 * too. */
typedef struct tally {
	uint64_t applied, duplicates;
	uint64_t known; /* delivered again while parked */
	uint64_t parked[PARKED_STATES];
	uint64_t mismatched;
} tally;

typedef struct counts {
	tally open; /* of the open transaction */
	tally committed;
	/* pgonce_consume_*; each is NULL if there are no metrics. */
	metric *messages, *batches, *message_at;
	metric *applied, *duplicates, *mismatches, *parked[PARKED_STATES];
	metric *active, *source_away, *endpoint_away, *stalled, *full, *dead_unsent, *lost, *connects;
} counts;

void counts_publish(counts *counts, metrics *to, const char *name);
/* The transaction has committed: adds what is open, and empties it. */
void counts_commit(counts *counts);
uint64_t tally_parked(const tally *tally);
/* The number of messages counted. */
uint64_t tally_messages(const tally *tally);
