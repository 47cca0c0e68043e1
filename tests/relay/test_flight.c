/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_flight.c: what sinks with a thread of their own hold (relay/flight.h): bounds, one result
 * each, in time, and late answers unheard.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "flight.h"

enum {
	CAPACITY = 4,
	BYTES_MAX = 10000,
	SHORT_MS = 30,
	LONG_MS = 60000
};

static const sink_header headers[] = {{"A", "1"}, {"B", "two"}};

static sink_message message_of(const char *body)
{
	return (sink_message){.destination = "topic",
	                      .event_id = "id",
	                      .headers = headers,
	                      .header_count = 2,
	                      .content_type = "text/plain",
	                      .body = {.data = body, .length = strlen(body)}};
}

static sink_result only_result(flight *flight)
{
	sink_result results[CAPACITY];

	assert_int_equal(flight_poll(flight, LONG_MS, results, CAPACITY), 1);
	return results[0];
}

static void an_answer_is_the_messages_result(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, LONG_MS);
	sink_message message = message_of("body");
	sink_result none;

	assert_true(flight_put(flight, &message));
	assert_int_equal(flight_poll(flight, 0, &none, 1), 0);
	flight_item *item = flight_take(flight);
	assert_non_null(item);
	assert_string_equal(item->message.destination, "topic");
	assert_string_equal(item->message.headers[1].value, "two");
	assert_null(item->message.key);
	assert_memory_equal(item->message.body.data, "body", 4);
	assert_true(item->message.body.data != message.body.data);
	assert_null(flight_take(flight));
	assert_true(flight_waits(flight, item->ticket));
	flight_answer(flight, item->ticket, SINK_REFUSED, "too large");
	assert_false(flight_waits(flight, item->ticket));
	sink_result result = only_result(flight);
	assert_ptr_equal(result.message, &message);
	assert_int_equal(result.verdict, SINK_REFUSED);
	assert_string_equal(result.problem, "too large");
	flight_item_free(item);
	flight_free(flight);
}

static void no_more_is_taken_than_fits(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, LONG_MS);
	sink_message messages[CAPACITY + 1];
	static char large[BYTES_MAX + 1];

	memset(large, 'x', BYTES_MAX);
	sink_message one = message_of(large);
	for (int i = 0; i <= CAPACITY; i++) {
		messages[i] = message_of("x");
		assert_int_equal(flight_put(flight, &messages[i]), i < CAPACITY);
	}
	flight_lost(flight, "gone");
	sink_result results[CAPACITY + 1];
	assert_int_equal(flight_poll(flight, 0, results, CAPACITY + 1), CAPACITY);
	/* by bytes: a large one only when nothing else is held */
	assert_true(flight_put(flight, &messages[0]));
	assert_false(flight_put(flight, &one));
	flight_lost(flight, "gone");
	assert_int_equal(only_result(flight).verdict, SINK_UNAVAILABLE);
	assert_true(flight_put(flight, &one));
	assert_false(flight_put(flight, &messages[0]));
	flight_free(flight);
}

static void a_late_answer_does_not_hit_the_next_message(void **state)
{
	(void)state;
	flight *flight = flight_new(1, BYTES_MAX, SHORT_MS);
	sink_message first = message_of("first");
	sink_message second = message_of("second");

	assert_true(flight_put(flight, &first));
	flight_item *late = flight_take(flight);
	sink_result result = only_result(flight);
	assert_ptr_equal(result.message, &first);
	assert_int_equal(result.verdict, SINK_UNAVAILABLE);
	assert_true(flight_put(flight, &second));
	flight_answer(flight, late->ticket, SINK_DELIVERED, NULL);
	result = only_result(flight);
	assert_ptr_equal(result.message, &second);
	assert_int_equal(result.verdict, SINK_UNAVAILABLE);
	flight_item_free(late);
	flight_free(flight);
}

static void what_ran_out_of_time_is_not_sent_any_more(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, SHORT_MS);
	sink_message message = message_of("late");
	sink_message next = message_of("next");

	assert_true(flight_put(flight, &message));
	assert_int_equal(only_result(flight).verdict, SINK_UNAVAILABLE);
	assert_true(flight_put(flight, &next));
	flight_item *item = flight_take(flight);
	assert_non_null(item);
	assert_memory_equal(item->message.body.data, "next", 4);
	assert_null(flight_take(flight));
	flight_item_free(item);
	flight_free(flight);
}

/* While later ones are delivered the broker is there; it is this one's own fault then. */
static void time_run_out_counts_as_an_attempt_only_where_later_ones_are_delivered(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, SHORT_MS);
	sink_message silent = message_of("silent");
	sink_message later = message_of("later");

	for (int delivered = 0; delivered < 2; delivered++) {
		assert_true(flight_put(flight, &silent));
		assert_true(flight_put(flight, &later));
		flight_item *items[] = {flight_take(flight), flight_take(flight)};
		flight_answer(flight, items[1]->ticket, delivered ? SINK_DELIVERED : SINK_REFUSED, "no");
		assert_ptr_equal(only_result(flight).message, &later);
		sink_result result = only_result(flight);
		assert_ptr_equal(result.message, &silent);
		assert_int_equal(result.verdict, delivered ? SINK_REFUSED : SINK_UNAVAILABLE);
		flight_item_free(items[0]);
		flight_item_free(items[1]);
	}
	flight_free(flight);
}

/* The broker was asked about it: only what it says counts. */
static void time_run_out_is_no_attempt_of_what_is_held(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, SHORT_MS);
	sink_message silent = message_of("silent");
	sink_message later = message_of("later");

	assert_true(flight_put(flight, &silent));
	assert_true(flight_put(flight, &later));
	flight_item *items[] = {flight_take(flight), flight_take(flight)};
	char *destination = flight_hold(flight, items[0]->ticket);
	assert_string_equal(destination, "topic");
	flight_answer(flight, items[1]->ticket, SINK_DELIVERED, NULL);
	assert_ptr_equal(only_result(flight).message, &later);
	assert_null(flight_hold(flight, items[1]->ticket));
	sink_result result = only_result(flight);
	assert_ptr_equal(result.message, &silent);
	assert_int_equal(result.verdict, SINK_UNAVAILABLE);
	assert_int_equal(flight_answer_held(flight, 0, SINK_REFUSED, "none"), 0);
	free(destination);
	flight_item_free(items[0]);
	flight_item_free(items[1]);
	flight_free(flight);
}

static void what_is_held_is_answered_by_how_long_and_nothing_else_is(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, LONG_MS);
	sink_message held = message_of("held");
	sink_message other = message_of("other");

	assert_true(flight_put(flight, &held));
	assert_true(flight_put(flight, &other));
	flight_item *items[] = {flight_take(flight), flight_take(flight)};
	for (int times = 0; times < 2; times++) {
		free(flight_hold(flight, items[0]->ticket));
	}
	assert_int_equal(flight_answer_held(flight, LONG_MS, SINK_UNAVAILABLE, "early"), 1);
	assert_int_equal(flight_answer_held(flight, 0, SINK_UNAVAILABLE, "late"), 0);
	sink_result result = only_result(flight);
	assert_ptr_equal(result.message, &held);
	assert_string_equal(result.problem, "late");
	assert_true(flight_waits(flight, items[1]->ticket));
	flight_item_free(items[0]);
	flight_item_free(items[1]);
	flight_free(flight);
}

static void the_other_side_is_woken_once_for_many(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, LONG_MS);
	struct pollfd work = {.fd = flight_descriptor(flight), .events = POLLIN};
	sink_message message = message_of("body");

	assert_int_equal(poll(&work, 1, 0), 0);
	for (int round = 0; round < 2; round++) {
		assert_true(flight_put(flight, &message));
		assert_true(flight_put(flight, &message));
		assert_int_equal(poll(&work, 1, 0), 1);
		flight_woken(flight);
		assert_int_equal(poll(&work, 1, 0), 0);
		for (flight_item *item; (item = flight_take(flight)) != NULL; flight_item_free(item)) {
			flight_answer(flight, item->ticket, SINK_DELIVERED, NULL);
		}
		sink_result results[2];
		assert_int_equal(flight_poll(flight, 0, results, 2), 2);
	}
	flight_free(flight);
}

static bool is_readable(flight *flight)
{
	struct pollfd work = {.fd = flight_descriptor(flight), .events = POLLIN};
	return poll(&work, 1, 0) == 1;
}

static void without_a_permit_nothing_is_taken_until_there_is_one(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, LONG_MS);
	sink_message message = message_of("body");

	flight_permit(flight, runtime_now_ms());
	assert_true(flight_put(flight, &message));
	flight_woken(flight);
	assert_null(flight_take(flight));
	assert_false(is_readable(flight));
	flight_permit(flight, runtime_now_ms() + LONG_MS);
	assert_true(is_readable(flight));
	flight_item *item = flight_take(flight);
	assert_non_null(item);
	flight_answer(flight, item->ticket, SINK_DELIVERED, NULL);
	assert_int_equal(only_result(flight).verdict, SINK_DELIVERED);
	flight_item_free(item);
	flight_free(flight);
}

static void when_the_permit_is_gone_for_good_what_waits_is_withheld(void **state)
{
	(void)state;
	flight *flight = flight_new(CAPACITY, BYTES_MAX, LONG_MS);
	sink_message sent = message_of("sent"), waits = message_of("waits");

	assert_true(flight_put(flight, &sent));
	flight_item *item = flight_take(flight);
	assert_true(flight_put(flight, &waits));
	flight_permit(flight, 0);
	sink_result result = only_result(flight);
	assert_ptr_equal(result.message, &waits);
	assert_int_equal(result.verdict, SINK_WITHHELD);
	assert_null(flight_take(flight));
	/* What the broker has already has its answer to come. */
	flight_answer(flight, item->ticket, SINK_DELIVERED, NULL);
	result = only_result(flight);
	assert_ptr_equal(result.message, &sent);
	assert_int_equal(result.verdict, SINK_DELIVERED);
	flight_item_free(item);
	flight_free(flight);
}

enum {
	MANY = 20000
};

static void *answer_all(void *closure)
{
	flight *flight = closure;
	int answered = 0;

	while (answered < MANY) {
		struct pollfd work = {.fd = flight_descriptor(flight), .events = POLLIN};
		poll(&work, 1, 1000);
		flight_woken(flight);
		for (flight_item *item; (item = flight_take(flight)) != NULL; flight_item_free(item), answered++) {
			flight_answer(flight, item->ticket, SINK_DELIVERED, NULL);
		}
	}
	return NULL;
}

static void two_threads_lose_nothing(void **state)
{
	(void)state;
	flight *flight = flight_new(64, BYTES_MAX, LONG_MS);
	sink_message message = message_of("body");
	sink_result results[16];
	pthread_t thread;
	size_t sent = 0, done = 0;

	assert_int_equal(pthread_create(&thread, NULL, answer_all, flight), 0);
	while (done < MANY) {
		while (sent < MANY && flight_put(flight, &message)) {
			sent++;
		}
		size_t count = flight_poll(flight, 10000, results, 16);
		assert_true(count > 0);
		done += count;
	}
	pthread_join(thread, NULL);
	assert_int_equal(flight_poll(flight, 0, results, 16), 0);
	flight_free(flight);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_answer_is_the_messages_result),
	    cmocka_unit_test(no_more_is_taken_than_fits),
	    cmocka_unit_test(a_late_answer_does_not_hit_the_next_message),
	    cmocka_unit_test(what_ran_out_of_time_is_not_sent_any_more),
	    cmocka_unit_test(time_run_out_counts_as_an_attempt_only_where_later_ones_are_delivered),
	    cmocka_unit_test(time_run_out_is_no_attempt_of_what_is_held),
	    cmocka_unit_test(what_is_held_is_answered_by_how_long_and_nothing_else_is),
	    cmocka_unit_test(the_other_side_is_woken_once_for_many),
	    cmocka_unit_test(without_a_permit_nothing_is_taken_until_there_is_one),
	    cmocka_unit_test(when_the_permit_is_gone_for_good_what_waits_is_withheld),
	    cmocka_unit_test(two_threads_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
