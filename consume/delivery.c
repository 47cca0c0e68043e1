/* SPDX-License-Identifier: PostgreSQL */
/* delivery.c: see delivery.h. */
#include "delivery.h"

#include <stdlib.h>

delivery *delivery_new(size_t header_count, size_t text_bytes, char **text)
{
	size_t head_bytes = sizeof(delivery) + header_count * sizeof(source_header);
	delivery *made = calloc(1, head_bytes + text_bytes);

	if (made != NULL) {
		made->message.headers = made->headers;
		made->message.header_count = header_count;
		*text = (char *)made + head_bytes;
	}
	return made;
}

void delivery_add(delivery_list *list, delivery *delivery)
{
	struct delivery *before = list->last;

	while (before != NULL && before->serial > delivery->serial) {
		before = before->previous;
	}
	delivery->previous = before;
	delivery->next = before == NULL ? list->first : before->next;
	*(before == NULL ? &list->first : &before->next) = delivery;
	*(delivery->next == NULL ? &list->last : &delivery->next->previous) = delivery;
	list->count++;
}

void delivery_remove(delivery_list *list, delivery *delivery)
{
	*(delivery->previous == NULL ? &list->first : &delivery->previous->next) = delivery->next;
	*(delivery->next == NULL ? &list->last : &delivery->next->previous) = delivery->previous;
	delivery->previous = delivery->next = NULL;
	list->count--;
}

delivery *delivery_take(delivery_list *list)
{
	delivery *first = list->first;

	if (first != NULL) {
		delivery_remove(list, first);
	}
	return first;
}

void delivery_void_all(delivery_list *list)
{
	for (delivery *each = list->first; each != NULL; each = each->next) {
		each->is_void = true;
	}
}
