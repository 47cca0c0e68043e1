/* SPDX-License-Identifier: PostgreSQL */
/* lane.c: see lane.h. */
#include "lane.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "hash.h"
#include "memory.h"

enum {
	BUCKETS = 1024,
	LANES_MAX = 10000,
	FREE_FACTOR = 3,
	HANGS_MS = 1000,
	HANGS_FACTOR = 3, /* a host that is always slow does not hang */
	TRY_MS = 1000,    /* between two calls to a hanging host */
	TRY_MOST = 4,     /* the most open calls to it: the first may hang for another reason */
	TRY_FREE_SHARE = 4
};

struct lanes {
	lane *buckets[BUCKETS];
	size_t count;
};

lanes *lanes_new(void)
{
	return memory_take(sizeof(struct lanes));
}

void lanes_free(lanes *lanes)
{
	for (size_t i = 0; lanes != NULL && i < BUCKETS; i++) {
		for (lane *at = lanes->buckets[i], *next = NULL; at != NULL; at = next) {
			next = at->next;
			free(at);
		}
	}
	free(lanes);
}

static uint64_t hash_of(const char *name)
{
	uint64_t hash = HASH_START;

	for (; *name != '\0'; name++) {
		char lower = (char)tolower((unsigned char)*name);
		hash = hash_bytes(hash, &lower, 1);
	}
	return hash ^ hash >> 32;
}

lane *lanes_find(lanes *lanes, const char *name)
{
	if (name[0] == '\0') {
		return NULL;
	}
	uint64_t hash = hash_of(name);
	lane **bucket = &lanes->buckets[hash % BUCKETS];
	for (lane *at = *bucket; at != NULL; at = at->next) {
		if (at->hash == hash && strcasecmp(at->name, name) == 0) {
			return at;
		}
	}
	if (lanes->count >= LANES_MAX && *bucket != NULL) {
		return *bucket;
	}
	size_t bytes = strlen(name) + 1;
	lane *made = memory_take(sizeof *made + bytes);
	memcpy(made->name, name, bytes);
	made->hash = hash;
	made->next = *bucket;
	*bucket = made;
	lanes->count++;
	return made;
}

void lane_sent(lane *lane, int64_t now_ms)
{
	lane->in_flight++;
	lane->sent_ms = now_ms;
	if (lane->silent_ms == 0) {
		lane->silent_ms = now_ms;
	}
}

void lane_answered(lane *lane, int64_t sent_ms, bool silent, int64_t now_ms)
{
	lane->in_flight--;
	/* A call that fails at once takes no room: that host does not hang. */
	if (silent && now_ms - sent_ms >= HANGS_MS) {
		return;
	}
	lane->latency_ms += ((double)(now_ms - sent_ms) - lane->latency_ms) / 4;
	lane->silent_ms = lane->in_flight > 0 ? now_ms : 0;
}

void lane_withheld(lane *lane, int64_t now_ms)
{
	lane->in_flight--;
	if (lane->in_flight == 0 && !lane_hangs(lane, now_ms)) {
		lane->silent_ms = 0;
	}
}

bool lane_hangs(const lane *lane, int64_t now_ms)
{
	int64_t usual = (int64_t)(lane->latency_ms * HANGS_FACTOR);

	return lane->silent_ms != 0 && now_ms - lane->silent_ms > (usual > HANGS_MS ? usual : HANGS_MS);
}

bool lane_may_try(const lane *lane, size_t free, size_t most, int64_t now_ms)
{
	return lane->in_flight < TRY_MOST && now_ms - lane->sent_ms >= TRY_MS &&
	       (lane->in_flight == 0 || free > most / TRY_FREE_SHARE) && free > 0;
}

bool lane_has_room(const lane *lane, size_t free)
{
	return free > 0 && (lane->name[0] == '\0' || lane->in_flight == 0 || lane->in_flight < FREE_FACTOR * (free - 1));
}
