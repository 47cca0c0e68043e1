/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_progress.h: how far each partition is that is ours: what was acknowledged, and what of that
 * the group's offset says. For kafka.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <librdkafka/rdkafka.h>

enum {
	PROGRESS_PART_BYTES = 272 /* a topic's name has at most 249 */
};

typedef enum progress_state {
	PROGRESS_READ,
	PROGRESS_PLACELESS, /* it is to be found where to begin: see kafka_start.h */
	PROGRESS_FOUND,     /* it was: at `after` */
	PROGRESS_REFUSED    /* it is not read: it begins with what the inbox may have forgotten */
} progress_state;

typedef struct progress {
	struct progress *next;
	int32_t partition;
	int64_t since_ms;     /* it became ours */
	int64_t acknowledged; /* the time of the last message that was, all before it too; 0: none */
	int64_t sent_ms;      /* that, as of the commit on its way */
	int64_t committed;    /* the offset that the broker has of us; -1: unknown */
	int64_t committed_ms; /* and the time of the last message before it; 0: unknown */
	int64_t after;        /* the offset that comes after what was taken; below 0: nothing was */
	progress_state state;
	bool is_led;          /* something has come since it was assigned by us again */
	int64_t place;        /* PROGRESS_PLACELESS: the offset that the log has not; below 0: none */
	int64_t placeless_ms; /* since then */
	int64_t ask_at_ms;    /* then: where to begin; not before */
	/* Of kafka_watchdog.c. */
	int64_t read;           /* the offset that was read up to */
	int64_t end;            /* the partition's; at most `read`: nothing is known to be left */
	int64_t behind_ms;      /* on its clock: when `end` was found to be above `read` */
	uint64_t behind_rounds; /* and how many rounds it had then */
	bool moved;             /* since ends were asked for last */
	char part[PROGRESS_PART_BYTES];
	char topic[];
} progress;

/* The partition's, made where there is none. */
progress *progress_of(progress **list, const char *topic, int32_t partition);
/* NULL: it is not ours. */
progress *progress_find(progress *list, const char *topic, int32_t partition);
void progress_forget(progress **list, const char *topic, int32_t partition);
/* A commit goes out; and has arrived. */
void progress_sent(progress *list);
void progress_committed(progress *list, const rd_kafka_topic_partition_list_t *committed);
void progress_free(progress **list);
