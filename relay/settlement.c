/* SPDX-License-Identifier: PostgreSQL */
/* settlement.c: see settlement.h. */
#include "settlement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"

static void set(json_t *object, const char *name, json_t *value)
{
	if (json_object_set_new(object, name, value) != 0) {
		memory_out();
	}
}

/* A text from a sink may be in any encoding. */
static json_t *text_of(const char *text)
{
	json_t *json = text == NULL ? json_null() : json_string(text);

	if (json != NULL) {
		return json;
	}
	char *ascii = memory_copy(text);
	for (char *at = ascii; *at != '\0'; at++) {
		*at = *at < ' ' || *at > '~' ? '?' : *at;
	}
	json = json_string(ascii);
	free(ascii);
	return json;
}

void settlement_delivered(settlement *settlement, const event *event)
{
	if (settlement->delivered_count == settlement->delivered_room) {
		settlement->delivered_room = settlement->delivered_room == 0 ? 64 : 2 * settlement->delivered_room;
		settlement->delivered =
		    memory_array(settlement->delivered, settlement->delivered_room, sizeof *settlement->delivered);
	}
	settlement->delivered[settlement->delivered_count++] = event->id;
}

void settlement_park(settlement *settlement, const event *event, const char *state, int attempts, int64_t wait_ms,
                     const char *error)
{
	json_t **list = event->known ? &settlement->known : &settlement->fresh;
	json_t *parking = json_object();
	char xid[24];

	snprintf(xid, sizeof xid, "%llu", (unsigned long long)event->xid);
	set(parking, "id", json_integer(event->id));
	set(parking, "xid", json_string(xid));
	set(parking, "day", json_integer(event->day));
	set(parking, "event_id", json_string(event->event_id));
	set(parking, "topic", text_of(event->topic));
	set(parking, "tenant", text_of(event->tenant));
	set(parking, "aggregate_type", text_of(event->aggregate_type));
	set(parking, "aggregate_id", text_of(event->aggregate_id));
	set(parking, "state", json_string(state));
	set(parking, "attempts", json_integer(attempts));
	set(parking, "wait_ms", json_integer(wait_ms));
	set(parking, "error", text_of(error));
	set(parking, "known", json_boolean(event->known));
	if (*list == NULL) {
		*list = json_array();
	}
	if (json_array_append_new(*list, parking) != 0) {
		memory_out();
	}
}

bool settlement_has_known(const settlement *settlement)
{
	return settlement->delivered_count > 0 || json_array_size(settlement->known) > 0;
}

bool settlement_has_fresh(const settlement *settlement)
{
	return json_array_size(settlement->fresh) > 0;
}

char *settlement_parked(const settlement *settlement, bool fresh)
{
	json_t *all = json_array();

	if ((settlement->known != NULL && json_array_extend(all, settlement->known) != 0) ||
	    (fresh && settlement->fresh != NULL && json_array_extend(all, settlement->fresh) != 0)) {
		memory_out();
	}
	char *text = json_dumps(all, JSON_COMPACT);
	json_decref(all);
	if (text == NULL) {
		memory_out();
	}
	return text;
}

void settlement_done(settlement *settlement, bool fresh)
{
	settlement->delivered_count = 0;
	json_decref(settlement->known);
	settlement->known = NULL;
	if (fresh) {
		json_decref(settlement->fresh);
		settlement->fresh = NULL;
	}
}

void settlement_clear(settlement *settlement)
{
	settlement_done(settlement, true);
	free(settlement->delivered);
	*settlement = (struct settlement){0};
}
