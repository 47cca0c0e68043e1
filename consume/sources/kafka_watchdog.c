/* SPDX-License-Identifier: PostgreSQL */
/* kafka_watchdog.c: see kafka_watchdog.h. */
#include "kafka_watchdog.h"

#include <inttypes.h>
#include <stdio.h>

enum {
	ASK_MS = 1000,
	/* One for messages fetched before the end was known, one for those fetched meanwhile. */
	ROUNDS_MIN = 3
};

void watchdog_read(watchdog *watchdog, progress *progress, int64_t offset)
{
	watchdog->ahead -= watchdog->ahead > 0;
	if (progress != NULL) {
		progress->read = offset;
		progress->end = 0;
		progress->moved = true;
	}
}

static void take_end(const watchdog *watchdog, progress *progress, int64_t end)
{
	if (progress->end <= progress->read && end > progress->read) {
		progress->behind_ms = watchdog->clock.now_ms;
		progress->behind_rounds = watchdog->rounds;
	}
	progress->end = end;
}

/* Asks about all partitions that delivered nothing since the last time, at once. Without an answer,
 * the state is unknown. */
static void ask_ends(const watchdog *watchdog, progress *list, rd_kafka_t *client)
{
	rd_kafka_topic_partition_list_t *quiet = rd_kafka_topic_partition_list_new(16);

	for (progress *each = list; each != NULL; each = each->next) {
		if (!each->moved && each->state != PROGRESS_REFUSED) {
			rd_kafka_topic_partition_list_add(quiet, each->topic, each->partition)->offset = RD_KAFKA_OFFSET_END;
		}
		each->moved = false;
	}
	if (quiet->cnt > 0 && rd_kafka_offsets_for_times(client, quiet, ASK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
		for (int i = 0; i < quiet->cnt; i++) {
			progress *each = progress_find(list, quiet->elems[i].topic, quiet->elems[i].partition);
			if (each != NULL && quiet->elems[i].err == RD_KAFKA_RESP_ERR_NO_ERROR) {
				take_end(watchdog, each, quiet->elems[i].offset);
			}
		}
	}
	rd_kafka_topic_partition_list_destroy(quiet);
}

void watchdog_look(watchdog *watchdog, progress *list, rd_kafka_t *client, size_t fetched)
{
	wait_clock_go_on(&watchdog->clock);
	if (watchdog->ahead == 0 || fetched == 0) {
		watchdog->rounds++;
		watchdog->ahead = fetched;
	}
	if (watchdog->clock.now_ms - watchdog->asked_ms >= watchdog->after_ms / 2) {
		watchdog->asked_ms = watchdog->clock.now_ms;
		ask_ends(watchdog, list, client);
	}
}

bool watchdog_stalled(const watchdog *watchdog, const progress *list, char *problem, size_t bytes)
{
	const progress *first = NULL;
	int more = 0;

	for (const progress *each = list; each != NULL; each = each->next) {
		if (each->end > each->read && watchdog->clock.now_ms - each->behind_ms >= watchdog->after_ms &&
		    watchdog->rounds - each->behind_rounds >= ROUNDS_MIN) {
			more += first != NULL;
			first = first == NULL ? each : first;
		}
	}
	if (first != NULL) {
		int used = snprintf(problem, bytes,
		                    "%.200s has messages up to the offset %" PRId64 ", but delivers none from %" PRId64 " on",
		                    first->part, first->end, first->read);
		if (more > 0 && used > 0 && (size_t)used < bytes) {
			snprintf(problem + used, bytes - (size_t)used, "; %d more", more);
		}
	}
	return first != NULL;
}
