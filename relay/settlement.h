/* SPDX-License-Identifier: PostgreSQL */
/*
 * settlement.h: the results of events since the last once_job.relay_settle, for the next one.
 * "Known" events have a row in once.parked_event already, and can be settled at any time; the
 * results of a chunk's new events are stored together with its progress, so that no event is ever
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
/* True: there are results of known events. */
bool settlement_has_known(const settlement *settlement);
bool settlement_has_fresh(const settlement *settlement);
/* The parkings as JSON text, those of new events only if wanted; free it. */
char *settlement_parked(const settlement *settlement, bool fresh);
/* They are stored: removes them. */
void settlement_done(settlement *settlement, bool fresh);
/* Removes all, and frees the memory. */
void settlement_clear(settlement *settlement);
