/* SPDX-License-Identifier: PostgreSQL */
/*
 * reader.h: the relay's session with PostgreSQL: the contract's relay_* functions from C. One session, which holds the relay's lock while it
 * lives; when it is lost, so is all that was read by it. Every call waits for its answer, but reader_fetch_start.
 */
#pragma once

#include "event.h"
#include "settings.h"

typedef enum reader_code {
	READER_OK,
	READER_LOST,     /* the connection, the lock, or the server's patience: connect anew; passes by itself */
	READER_STOPPED,  /* the wish to stop came while waiting for too long */
	READER_CONTRACT, /* the contract is missing, too old, too new, or this role may not use it */
	READER_REFUSED,  /* the relay's progress means nothing in this database (P4080) */
	READER_POOLER    /* a pooler stands between: no session to hold a lock */
} reader_code;

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
reader *reader_new(const service *service, const relay_settings *settings, const char *conninfo);
void reader_free(reader *reader);
/* What went wrong last, for people: one line, with what to do. */
const char *reader_problem(const reader *reader);

reader_code reader_connect(reader *reader);
void reader_disconnect(reader *reader); /* gives the lock back */
/* *taken false: another session has the relay. progress: free its texts. */
reader_code reader_take(reader *reader, bool *taken, reader_progress *progress);
/* *reading: free it. */
reader_code reader_look(reader *reader, const char *seen, char **reading, bool *changed, bool *flushed);
reader_code reader_flush(reader *reader);
/* Asks for nothing but an answer. */
reader_code reader_prove(reader *reader);
/* When (service_now_ms) the session, and with it the lock, was certainly there: when what it answered last was asked. */
int64_t reader_proved_ms(const reader *reader);
/* At most `most` into items; *count says how many. */
reader_code reader_list(reader *reader, const char *seen, const char *reading, int64_t after_id, size_t most,
                        reader_item *items, size_t *count);
/*
 * Asks for the events of `items` and returns at once; reader_fetch_finish gives them, and no other call may come in between. *first: a list
 * by list_after, in the items' order; an item whose event is gone has none. What comes is kept up to READER_BYTES_MAX, but one event at least:
 * *read says how many of the items that covers; ask again for the rest.
 */
#define READER_BYTES_MAX ((size_t)16 << 20)
reader_code reader_fetch_start(reader *reader, const reader_item *items, size_t count);
reader_code reader_fetch_finish(reader *reader, event **first, size_t *read);
bool reader_fetching(const reader *reader);
/* Parked events that are due, as above. */
reader_code reader_due(reader *reader, size_t most, event **first);
/* reading NULL: the batch is done. parked: a JSON array of once.parking. */
reader_code reader_settle(reader *reader, const char *seen, const char *reading, int64_t after_id,
                          const int64_t *delivered, size_t delivered_count, const char *parked);
/* Counted up to `most`. */
reader_code reader_parked(reader *reader, int64_t most, int64_t *parked);
