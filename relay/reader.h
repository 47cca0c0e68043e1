/* SPDX-License-Identifier: PostgreSQL */
/*
 * reader.h: the contract's relay_* functions from C. One session, which holds the relay's lock.
 * When it is lost, everything it read is void. Every call waits for its answer. False:
 * reader_failure says why; connect again before the next call.
 */
#pragma once

#include "database.h"
#include "event.h"
#include "relay_settings.h"

/* How far the relay has come (once.relay). */
typedef struct reader_progress {
	char *seen;
	char *reading; /* NULL: no batch is under way */
	int64_t after_id;
} reader_progress;

typedef struct reader_item {
	int64_t id;
	uint64_t xid;
	int32_t day;
} reader_item;

typedef struct reader reader;

/* conninfo and settings are borrowed for its life. */
reader *reader_new(const relay_settings *settings, const char *conninfo);
void reader_free(reader *reader);
/*
 * The last failure. FAILURE_FAULT of reader_connect: a pooler is in between (failure_set_pooler).
 */
const failure *reader_failure(const reader *reader);

bool reader_connect(reader *reader);
void reader_disconnect(reader *reader); /* gives the lock back */
/* *taken false: another session has the relay. progress: free its texts. */
bool reader_take(reader *reader, bool *taken, reader_progress *progress);
/* *reading: free it. */
bool reader_look(reader *reader, const char *seen, char **reading, bool *changed, bool *flushed);
bool reader_flush(reader *reader);
/* Proves that the session exists. */
bool reader_prove(reader *reader);
/*
 * When (runtime_now_ms) the session, and its lock, certainly existed: when the last answered
 * request was sent.
 */
int64_t reader_proved_ms(const reader *reader);
/* Fills at most `most` items; *count: how many. */
bool reader_list(reader *reader, const char *seen, const char *reading, int64_t after_id, size_t most,
                 reader_item *items, size_t *count);
/*
 * The events of `items`, a list by list_after in the items' order, without those that are gone. It
 * stops at READER_BYTES_MAX, after at least one event: *read says how many of the items are read;
 * ask again for the rest.
 */
#define READER_BYTES_MAX ((size_t)16 << 20)
bool reader_fetch(reader *reader, const reader_item *items, size_t count, event **first, size_t *read);
/* Parked events that are due, a list as above. */
bool reader_due(reader *reader, size_t most, event **first);
/*
 * Moves delayed events that are due to the outbox, where they are read like all others. *released:
 * how many. *wait_ms: when to ask again; -1: no delayed event is known.
 */
bool reader_release(reader *reader, size_t most, int64_t *released, int64_t *wait_ms);
/* reading NULL: the batch is finished. parked: a JSON array of once.parking. */
bool reader_settle(reader *reader, const char *seen, const char *reading, int64_t after_id, const int64_t *delivered,
                   size_t delivered_count, const char *parked);
/* Counts up to `most`; weighed: ten waiting events count as one. */
bool reader_parked(reader *reader, int64_t most, bool weighed, int64_t *parked);
