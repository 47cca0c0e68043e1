/* SPDX-License-Identifier: PostgreSQL */
/*
 * flight.c: see flight.h. Each message has a slot. A ticket is a slot and how often it was used, so
 * that a late answer cannot hit the slot's next message. A slot is in one of three lists: free;
 * waiting, oldest first, which is also the order of the deadlines; or finished.
 */
#include "flight.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

typedef struct slot {
	sink_message *message;
	flight_item *item; /* not taken yet; NULL: taken */
	size_t bytes;
	uint32_t uses;
	bool waits;
	uint64_t order; /* of put */
	int64_t deadline_ms;
	int64_t held_ms; /* since when its answer is held; 0: it is not held */
	sink_verdict verdict;
	struct slot *previous, *next; /* in its list */
	char problem[256];
} slot;

typedef struct list {
	slot *first, *last;
} list;

struct flight {
	pthread_mutex_t mutex;
	pthread_cond_t finished_one;
	int descriptor;
	slot *slots;
	size_t capacity, bytes_max, bytes;
	int64_t timeout_ms;
	int64_t permit_ms;
	list unused, waiting, finished;
	size_t held;   /* of `waiting` */
	slot *untaken; /* in `waiting`: the first that was not taken yet; NULL: all were taken */
	uint64_t puts;
	uint64_t delivered_order; /* the latest put of a message that the broker has acknowledged */
};

/* ---- lists */

static void append(list *list, slot *slot)
{
	slot->previous = list->last;
	slot->next = NULL;
	*(list->last == NULL ? &list->first : &list->last->next) = slot;
	list->last = slot;
}

static void take_out(list *list, slot *slot)
{
	*(slot->previous == NULL ? &list->first : &slot->previous->next) = slot->next;
	*(slot->next == NULL ? &list->last : &slot->next->previous) = slot->previous;
}

/* ---- copies */

static char *copied(char **place, const char *text)
{
	if (text == NULL) {
		return NULL;
	}
	char *copy = *place;
	*place = stpcpy(copy, text) + 1;
	return copy;
}

static size_t text_bytes(const char *text)
{
	return text == NULL ? 0 : strlen(text) + 1;
}

/* One block: the item, its headers, its texts, its body. */
static flight_item *item_new(const sink_message *message, size_t *bytes)
{
	size_t size = sizeof(flight_item) + message->header_count * sizeof(sink_header) + text_bytes(message->destination) +
	              text_bytes(message->route) + text_bytes(message->event_id) + text_bytes(message->key) +
	              text_bytes(message->content_type) + message->body.length;

	for (size_t i = 0; i < message->header_count; i++) {
		size += text_bytes(message->headers[i].name) + text_bytes(message->headers[i].value);
	}
	flight_item *item = malloc(size);
	if (item == NULL) {
		return NULL;
	}
	sink_header *headers = (sink_header *)(item + 1);
	char *place = (char *)(headers + message->header_count);
	item->message = *message;
	item->message.user = item->message.own = NULL;
	item->message.headers = headers;
	for (size_t i = 0; i < message->header_count; i++) {
		headers[i] = (sink_header){copied(&place, message->headers[i].name), copied(&place, message->headers[i].value)};
	}
	item->message.destination = copied(&place, message->destination);
	item->message.route = copied(&place, message->route);
	item->message.event_id = copied(&place, message->event_id);
	item->message.key = copied(&place, message->key);
	item->message.content_type = copied(&place, message->content_type);
	if (message->body.length > 0) {
		memcpy(place, message->body.data, message->body.length);
	}
	item->message.body.data = (void *)place;
	*bytes = size;
	return item;
}

void flight_item_free(flight_item *item)
{
	free(item);
}

/* ---- making */

flight *flight_new(size_t capacity, size_t bytes_max, int64_t timeout_ms)
{
	flight *flight = calloc(1, sizeof *flight);
	pthread_condattr_t clock;

	if (flight == NULL) {
		return NULL;
	}
	flight->slots = calloc(capacity, sizeof *flight->slots);
	flight->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (flight->slots == NULL || flight->descriptor < 0) {
		if (flight->descriptor >= 0) {
			close(flight->descriptor);
		}
		free(flight->slots);
		free(flight);
		return NULL;
	}
	flight->capacity = capacity;
	flight->bytes_max = bytes_max;
	flight->timeout_ms = timeout_ms;
	flight->permit_ms = INT64_MAX;
	for (size_t i = 0; i < capacity; i++) {
		append(&flight->unused, &flight->slots[i]);
	}
	pthread_mutex_init(&flight->mutex, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&flight->finished_one, &clock);
	pthread_condattr_destroy(&clock);
	return flight;
}

void flight_free(flight *flight)
{
	if (flight == NULL) {
		return;
	}
	for (size_t i = 0; i < flight->capacity; i++) {
		flight_item_free(flight->slots[i].item);
	}
	pthread_cond_destroy(&flight->finished_one);
	pthread_mutex_destroy(&flight->mutex);
	close(flight->descriptor);
	free(flight->slots);
	free(flight);
}

/* ---- results; under the mutex */

static void finish(flight *flight, slot *slot, sink_verdict verdict, const char *problem)
{
	if (slot == flight->untaken) {
		flight->untaken = slot->next;
	}
	take_out(&flight->waiting, slot);
	flight_item_free(slot->item);
	slot->item = NULL;
	slot->waits = false;
	flight->held -= slot->held_ms != 0;
	slot->verdict = verdict;
	snprintf(slot->problem, sizeof slot->problem, "%s", verdict == SINK_DELIVERED || problem == NULL ? "" : problem);
	if (verdict == SINK_DELIVERED && slot->order > flight->delivered_order) {
		flight->delivered_order = slot->order;
	}
	append(&flight->finished, slot);
	pthread_cond_signal(&flight->finished_one);
}

/*
 * If a later message was delivered meanwhile, the broker is there and does not answer for this one.
 * That counts as an attempt, so that one silent destination cannot block all others for ever.
 */
static void expire(flight *flight, int64_t now_ms)
{
	char problem[256];

	while (flight->waiting.first != NULL && flight->waiting.first->deadline_ms <= now_ms) {
		slot *slot = flight->waiting.first;
		snprintf(problem, sizeof problem, "%s within %lld ms", slot->item == NULL ? "no answer" : "could not be sent",
		         (long long)flight->timeout_ms);
		bool is_at_fault = slot->order < flight->delivered_order && slot->held_ms == 0;
		finish(flight, slot, is_at_fault ? SINK_REFUSED : SINK_UNAVAILABLE, problem);
	}
}

static slot *slot_of(flight *flight, uint64_t ticket)
{
	size_t index = (size_t)(ticket & UINT32_MAX);
	slot *slot = index < flight->capacity ? &flight->slots[index] : NULL;

	return slot != NULL && slot->waits && slot->uses == (uint32_t)(ticket >> 32) ? slot : NULL;
}

/* ---- the pipeline's side */

bool flight_put(flight *flight, sink_message *message)
{
	size_t bytes;
	const uint64_t one = 1;

	pthread_mutex_lock(&flight->mutex);
	slot *slot = flight->unused.first;
	flight_item *item = NULL;
	if (slot != NULL && (flight->bytes == 0 || flight->bytes + message->body.length <= flight->bytes_max)) {
		item = item_new(message, &bytes);
	}
	if (item == NULL) {
		pthread_mutex_unlock(&flight->mutex);
		return false;
	}
	take_out(&flight->unused, slot);
	slot->message = message;
	slot->item = item;
	slot->bytes = bytes;
	slot->waits = true;
	slot->held_ms = 0;
	slot->uses++;
	slot->order = ++flight->puts;
	slot->deadline_ms = runtime_now_ms() + flight->timeout_ms;
	item->ticket = (uint64_t)slot->uses << 32 | (uint64_t)(slot - flight->slots);
	flight->bytes += bytes;
	append(&flight->waiting, slot);
	bool first = flight->untaken == NULL;
	if (first) {
		flight->untaken = slot;
	}
	pthread_mutex_unlock(&flight->mutex);
	if (first) {
		ssize_t written = write(flight->descriptor, &one, sizeof one);
		(void)written; /* it is readable already */
	}
	return true;
}

/* Until when to wait for a result: the earlier of the caller's time and the next deadline. */
static struct timespec wait_until(const flight *flight, int64_t until_ms)
{
	if (flight->waiting.first != NULL && flight->waiting.first->deadline_ms < until_ms) {
		until_ms = flight->waiting.first->deadline_ms;
	}
	return (struct timespec){.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
}

void flight_permit(flight *flight, int64_t until_ms)
{
	pthread_mutex_lock(&flight->mutex);
	/* Only then may the sink's threads have found nothing to take. */
	bool lapsed = flight->permit_ms <= runtime_now_ms();
	flight->permit_ms = until_ms;
	while (until_ms == 0 && flight->untaken != NULL) {
		finish(flight, flight->untaken, SINK_WITHHELD, "not sent: the relay has lost its session");
	}
	bool wakes = lapsed && flight->untaken != NULL;
	pthread_mutex_unlock(&flight->mutex);
	if (wakes) {
		flight_wake(flight);
	}
}

size_t flight_poll(flight *flight, int timeout_ms, sink_result *results, size_t most)
{
	int64_t now_ms = runtime_now_ms();
	int64_t until_ms = now_ms + timeout_ms;
	size_t count = 0;

	pthread_mutex_lock(&flight->mutex);
	expire(flight, now_ms);
	while (flight->finished.first == NULL && now_ms < until_ms && most > 0) {
		struct timespec until = wait_until(flight, until_ms);
		(void)pthread_cond_timedwait(&flight->finished_one, &flight->mutex, &until);
		now_ms = runtime_now_ms();
		expire(flight, now_ms);
	}
	while (count < most && flight->finished.first != NULL) {
		slot *slot = flight->finished.first;
		sink_result *result = &results[count++];
		take_out(&flight->finished, slot);
		result->message = slot->message;
		result->verdict = slot->verdict;
		result->retry_after_ms = -1;
		memcpy(result->problem, slot->problem, sizeof result->problem);
		flight->bytes -= slot->bytes;
		append(&flight->unused, slot);
	}
	pthread_mutex_unlock(&flight->mutex);
	return count;
}

/* ---- the sink's threads */

flight_item *flight_take(flight *flight)
{
	flight_item *item = NULL;

	pthread_mutex_lock(&flight->mutex);
	if (flight->untaken != NULL && runtime_now_ms() < flight->permit_ms) {
		item = flight->untaken->item;
		flight->untaken->item = NULL;
		flight->untaken = flight->untaken->next;
	}
	pthread_mutex_unlock(&flight->mutex);
	return item;
}

bool flight_waits(flight *flight, uint64_t ticket)
{
	pthread_mutex_lock(&flight->mutex);
	bool waits = slot_of(flight, ticket) != NULL;
	pthread_mutex_unlock(&flight->mutex);
	return waits;
}

char *flight_hold(flight *flight, uint64_t ticket)
{
	char *destination = NULL;

	pthread_mutex_lock(&flight->mutex);
	slot *slot = slot_of(flight, ticket);
	if (slot != NULL) {
		flight->held += slot->held_ms == 0;
		slot->held_ms = runtime_now_ms();
		destination = strdup(slot->message->destination);
	}
	pthread_mutex_unlock(&flight->mutex);
	return destination;
}

size_t flight_answer_held(flight *flight, int64_t held_ms, sink_verdict verdict, const char *problem)
{
	int64_t now_ms = runtime_now_ms();

	pthread_mutex_lock(&flight->mutex);
	for (slot *slot = flight->waiting.first, *next = NULL; slot != NULL && flight->held > 0; slot = next) {
		next = slot->next;
		if (slot->held_ms != 0 && now_ms - slot->held_ms >= held_ms) {
			finish(flight, slot, verdict, problem);
		}
	}
	size_t held = flight->held;
	pthread_mutex_unlock(&flight->mutex);
	return held;
}

void flight_answer(flight *flight, uint64_t ticket, sink_verdict verdict, const char *problem)
{
	pthread_mutex_lock(&flight->mutex);
	slot *slot = slot_of(flight, ticket);
	if (slot != NULL) {
		finish(flight, slot, verdict, problem);
	}
	pthread_mutex_unlock(&flight->mutex);
}

void flight_lost(flight *flight, const char *problem)
{
	pthread_mutex_lock(&flight->mutex);
	while (flight->waiting.first != NULL) {
		finish(flight, flight->waiting.first, SINK_UNAVAILABLE, problem);
	}
	pthread_mutex_unlock(&flight->mutex);
}

int flight_descriptor(const flight *flight)
{
	return flight->descriptor;
}

void flight_wake(flight *flight)
{
	const uint64_t one = 1;
	ssize_t written = write(flight->descriptor, &one, sizeof one);
	(void)written; /* it is readable already */
}

void flight_woken(flight *flight)
{
	uint64_t count;
	ssize_t taken = read(flight->descriptor, &count, sizeof count);
	(void)taken; /* it was not readable */
}
