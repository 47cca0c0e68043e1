/* SPDX-License-Identifier: PostgreSQL */
/*
 * event.c: see event.h. Usually one allocation per event: its texts and its message fit in the
 * first block.
 */
#include "event.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

enum {
	ENVELOPE_BYTES = 512, /* of a usual event's envelope */
	BLOCK_BYTES = 1024
};

typedef struct event_block {
	struct event_block *next;
} event_block;

static size_t aligned(size_t bytes)
{
	return (bytes + sizeof(void *) - 1) & ~(sizeof(void *) - 1);
}

event *event_new(size_t bytes)
{
	size_t room = aligned(bytes) + ENVELOPE_BYTES;
	size_t head = aligned(sizeof(event));
	event *made = memory_array(NULL, 1, head + room);

	memset(made, 0, sizeof *made);
	made->index = -1;
	made->spare = (char *)made + head;
	made->spare_left = room;
	made->bytes = head + room;
	return made;
}

void event_free(event *event)
{
	if (event == NULL) {
		return;
	}
	for (event_block *block = event->blocks, *next = NULL; block != NULL; block = next) {
		next = block->next;
		free(block);
	}
	free(event);
}

void event_free_list(event *first)
{
	for (event *at = first, *next = NULL; at != NULL; at = next) {
		next = at->list_after;
		event_free(at);
	}
}

void *event_get(event *event, size_t bytes)
{
	bytes = aligned(bytes);
	if (bytes > event->spare_left) {
		size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
		event_block *block = memory_array(NULL, 1, sizeof *block + room);
		block->next = event->blocks;
		event->blocks = block;
		event->bytes += sizeof *block + room;
		event->spare = (char *)(block + 1);
		event->spare_left = room;
	}
	void *memory = event->spare;
	event->spare += bytes;
	event->spare_left -= bytes;
	return memory;
}

const char *event_copy(event *event, const void *data, size_t length)
{
	char *copy = event_get(event, length + 1);

	if (length > 0) {
		memcpy(copy, data, length);
	}
	copy[length] = '\0';
	return copy;
}
