/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_progress.h: how far each of our partitions is: what was acknowledged, and what of it the
 * group's offset covers. For kafka.c.
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
	PROGRESS_PLACELESS, /* where to begin must be found: see kafka_start.h */
	PROGRESS_FOUND,     /* found: at `after` */
	PROGRESS_REFUSED    /* not read: it begins with messages that the inbox may have deleted */
} progress_state;

typedef struct progress {
	struct progress *next;
	int32_t partition;
	int64_t since_ms; /* since when it is ours */
	/* the time of the last message acknowledged together with all before it; 0: none */
	int64_t acknowledged;
	int64_t sent_ms;      /* the same for the commit on its way */
	int64_t committed;    /* our offset at the broker; -1: unknown */
	int64_t committed_ms; /* and the time of the last message before it; 0: unknown */
	int64_t after;        /* the offset after the last message taken; below 0: none was taken */
	progress_state state;
	bool is_led;          /* a message came since we assigned it again */
	int64_t place;        /* PROGRESS_PLACELESS: the offset that is not in the log; below 0: none */
	int64_t placeless_ms; /* since then */
	int64_t ask_at_ms;    /* then: where to begin; not asked before this time */
	/* Of kafka_watchdog.c. */
	int64_t read;           /* the offset read up to */
	int64_t end;            /* the partition's end; at most `read`: nothing is known to be left */
	int64_t behind_ms;      /* on its clock: when `end` was found to be above `read` */
	uint64_t behind_rounds; /* and the number of its rounds then */
	bool moved;             /* since ends were last asked for */
	char part[PROGRESS_PART_BYTES];
	char topic[];
} progress;

/* The partition's progress, added if it is missing. */
progress *progress_of(progress **list, const char *topic, int32_t partition);
/* NULL: the partition is not ours. */
progress *progress_find(progress *list, const char *topic, int32_t partition);
void progress_forget(progress **list, const char *topic, int32_t partition);
/* A commit is sent; and has arrived. */
void progress_sent(progress *list);
void progress_committed(progress *list, const rd_kafka_topic_partition_list_t *committed);
void progress_free(progress **list);
