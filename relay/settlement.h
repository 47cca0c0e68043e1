/* SPDX-License-Identifier: PostgreSQL */
/*
 * settlement.h: what became of events since the last once_job.relay_settle: what the next one is to
 * store. "Known" events have a row in once.parked_event already, and can be settled at any time;
 * the fate of a chunk's own events is told together with its progress, so that no event is ever
 * both parked and unread.
 */
#pragma once

#include <jansson.h>

#include "event.h"

typedef struct settlement {
	int64_t *delivered; /* ids of known events */
	size_t delivered_count, delivered_room;
	json_t *known, *fresh; /* arrays of once.parking */
} settlement;

void settlement_delivered(settlement *settlement, const event *event);
/* state: waiting, retrying, dead. error may be NULL; it need not be UTF-8. */
void settlement_park(settlement *settlement, const event *event, const char *state, int attempts, int64_t wait_ms,
                     const char *error);
/* Is there anything to tell of known events? */
bool settlement_has_known(const settlement *settlement);
bool settlement_has_fresh(const settlement *settlement);
/* The parkings as JSON text, those of fresh events only if wanted; free it. */
char *settlement_parked(const settlement *settlement, bool fresh);
/* They are stored: forgets them. */
void settlement_done(settlement *settlement, bool fresh);
/* Forgets all, and frees. */
void settlement_clear(settlement *settlement);
