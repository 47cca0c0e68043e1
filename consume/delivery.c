/* SPDX-License-Identifier: PostgreSQL */
/* delivery.c: see delivery.h. */
#include "delivery.h"

#include "arena.h"

delivery *delivery_new(size_t header_count, size_t text_bytes, char **text)
{
	size_t head_bytes = sizeof(delivery) + header_count * sizeof(source_header);
	delivery *made = memory_take(head_bytes + text_bytes);

	made->message.headers = made->headers;
	made->message.header_count = header_count;
	*text = (char *)made + head_bytes;
	return made;
}

void delivery_add(delivery_list *list, delivery *delivery)
{
	struct delivery *before = list->last;

	delivery->bytes = source_message_bytes(&delivery->message);
	while (before != NULL && before->serial > delivery->serial) {
		before = before->previous;
	}
	delivery->previous = before;
	delivery->next = before == NULL ? list->first : before->next;
	*(before == NULL ? &list->first : &before->next) = delivery;
	*(delivery->next == NULL ? &list->last : &delivery->next->previous) = delivery;
	list->count++;
	list->bytes += delivery->bytes;
}

void delivery_remove(delivery_list *list, delivery *delivery)
{
	*(delivery->previous == NULL ? &list->first : &delivery->previous->next) = delivery->next;
	*(delivery->next == NULL ? &list->last : &delivery->next->previous) = delivery->previous;
	delivery->previous = delivery->next = NULL;
	list->count--;
	list->bytes -= delivery->bytes;
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

size_t delivery_hand_over(delivery_list *held, delivery_list *out, size_t most, size_t most_bytes,
                          source_message **messages)
{
	size_t count = 0, bytes = 0;

	for (; count < most && held->first != NULL; count++) {
		bytes += held->first->bytes;
		if (bytes > most_bytes && out->count > 0) {
			break;
		}
		delivery *each = delivery_take(held);
		delivery_add(out, each);
		messages[count] = &each->message;
	}
	return count;
}

void delivery_give_back(delivery_list *out, delivery_list *held, source_message *const *messages, size_t count,
                        void (*release)(delivery *delivery))
{
	for (size_t i = 0; i < count; i++) {
		delivery *each = delivery_of(messages[i]);
		delivery_remove(out, each);
		if (each->is_void) {
			release(each);
		} else {
			delivery_add(held, each);
		}
	}
}

void delivery_release_all(delivery_list *list, void (*release)(delivery *delivery))
{
	for (delivery *each; (each = delivery_take(list)) != NULL;) {
		release(each);
	}
}
