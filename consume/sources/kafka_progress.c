/* SPDX-License-Identifier: PostgreSQL */
/* kafka_progress.c: see kafka_progress.h. */
#include "kafka_progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "runtime.h"

static progress **place_of(progress **list, const char *topic, int32_t partition)
{
	progress **at = list;

	while (*at != NULL && ((*at)->partition != partition || strcmp((*at)->topic, topic) != 0)) {
		at = &(*at)->next;
	}
	return at;
}

progress *progress_of(progress **list, const char *topic, int32_t partition)
{
	progress **at = place_of(list, topic, partition);

	if (*at == NULL) {
		progress *made = memory_take(sizeof *made + strlen(topic) + 1);
		made->partition = partition;
		made->since_ms = runtime_now_ms();
		made->committed = made->after = made->place = -1;
		memcpy(made->topic, topic, strlen(topic) + 1);
		snprintf(made->part, sizeof made->part, "%s/%" PRId32, topic, partition);
		*at = made;
	}
	return *at;
}

progress *progress_find(progress *list, const char *topic, int32_t partition)
{
	return *place_of(&list, topic, partition);
}

void progress_forget(progress **list, const char *topic, int32_t partition)
{
	progress **at = place_of(list, topic, partition);
	progress *gone = *at;

	if (gone != NULL) {
		*at = gone->next;
		free(gone);
	}
}

void progress_sent(progress *list)
{
	for (progress *each = list; each != NULL; each = each->next) {
		each->sent_ms = each->acknowledged;
	}
}

void progress_committed(progress *list, const rd_kafka_topic_partition_list_t *committed)
{
	for (int i = 0; committed != NULL && i < committed->cnt; i++) {
		progress *each = *place_of(&list, committed->elems[i].topic, committed->elems[i].partition);
		if (each != NULL && committed->elems[i].err == RD_KAFKA_RESP_ERR_NO_ERROR) {
			each->committed = committed->elems[i].offset;
			each->committed_ms = each->sent_ms;
		}
	}
}

void progress_free(progress **list)
{
	while (*list != NULL) {
		progress *next = (*list)->next;
		free(*list);
		*list = next;
	}
}
