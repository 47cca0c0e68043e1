/* SPDX-License-Identifier: PostgreSQL */
/* test_schedule.c: which event may go next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "schedule.h"

static event *make(int64_t id, const char *tenant, const char *type, const char *aggregate)
{
	event *made = event_new(0);

	made->id = id;
	snprintf(made->event_id, sizeof made->event_id, "%lld", (long long)id);
	made->tenant = tenant;
	made->aggregate_type = type;
	made->aggregate_id = aggregate;
	made->topic = made->event_type = "t";
	made->fetch = 1;
	return made;
}

static event *add(schedule *schedule, int64_t id, const char *aggregate)
{
	event *made = make(id, "", "order", aggregate);

	schedule_add(schedule, made);
	return made;
}

static int64_t next_id(schedule *schedule)
{
	event *next = schedule_next(schedule, 100);
	return next == NULL ? 0 : next->id;
}

static void done(schedule *schedule, event *event)
{
	schedule_remove(schedule, event);
	event_free(event);
}

static void one_event_of_an_aggregate_is_out_at_a_time(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	event *first = add(schedule, 1, "a");
	event *second = add(schedule, 2, "a");
	event *other = add(schedule, 3, "b");
	assert_int_equal(next_id(schedule), 1);
	assert_int_equal(next_id(schedule), 3);
	assert_int_equal(next_id(schedule), 0);
	done(schedule, first);
	assert_int_equal(next_id(schedule), 2);
	assert_int_equal(next_id(schedule), 0);
	done(schedule, second);
	done(schedule, other);
	assert_int_equal(schedule_chains(schedule), 0);
	schedule_free(schedule);
}

static void events_without_aggregate_wait_for_nobody(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	add(schedule, 1, NULL);
	add(schedule, 2, NULL);
	assert_int_equal(schedule_waiting(schedule), 2);
	event *first = schedule_next(schedule, 100), *second = schedule_next(schedule, 100);
	assert_int_equal(first->id + second->id, 3);
	done(schedule, first);
	done(schedule, second);
	assert_int_equal(schedule_chains(schedule), 0);
	schedule_free(schedule);
}

static void aggregates_are_told_apart_by_all_three_parts(void **state)
{
	static const char *const names[][3] = {{"", "t", "a"},  {"x", "t", "a"}, {"", "u", "a"},
	                                       {"", NULL, "a"}, {"", "", "a"},   {"", "t", ""},
	                                       {"", "t", "b"},  {"t", "", "a"},  {"", "ta", ""}};
	(void)state;
	schedule *schedule = schedule_new();
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		schedule_add(schedule, make((int64_t)i + 1, names[i][0], names[i][1], names[i][2]));
	}
	/* An event without an aggregate is not one whose aggregate has the event's id for a name. */
	schedule_add(schedule, make(100, "", NULL, NULL));
	schedule_add(schedule, make(101, "", NULL, "100"));
	size_t out = 0;
	event *events[sizeof names / sizeof names[0] + 2];
	for (event *event = schedule_next(schedule, 100); event != NULL; event = schedule_next(schedule, 100)) {
		events[out++] = event;
	}
	assert_int_equal(out, sizeof events / sizeof events[0]);
	for (size_t i = 0; i < out; i++) {
		done(schedule, events[i]);
	}
	schedule_free(schedule);
}

/* Adds so many events to a host, the first with this id. */
static void add_to(schedule *schedule, lane *lane, int64_t id, int count)
{
	for (int64_t each = id; each < id + count; each++) {
		event *made = make(each, "", NULL, NULL);
		made->lane = lane;
		schedule_add(schedule, made);
	}
}

/* What is in flight, to be ended at the end. */
typedef struct taken {
	event *events[128];
	size_t count;
} taken;

static int64_t take(schedule *schedule, size_t room, taken *taken)
{
	event *next = schedule_next(schedule, room);

	if (next == NULL) {
		return 0;
	}
	taken->events[taken->count++] = next;
	lane_sent(next->lane, 1);
	return next->id;
}

static void hosts_take_turns_and_none_takes_all_the_room(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	lanes *lanes = lanes_new();
	lane *a = lanes_find(lanes, "https://a.example"), *b = lanes_find(lanes, "https://b.example");
	lane *c = lanes_find(lanes, "https://c.example");
	taken taken = {0};
	assert_ptr_equal(lanes_find(lanes, "HTTPS://A.example"), a);
	assert_ptr_not_equal(a, b);
	assert_null(lanes_find(lanes, ""));
	add_to(schedule, a, 1, 100);
	size_t room = 64;
	while (take(schedule, room, &taken) != 0) {
		room--;
	}
	assert_int_equal(room, 16);
	add_to(schedule, b, 201, 3);
	for (int64_t id = 201; id <= 203; id++, room--) {
		assert_int_equal(take(schedule, room, &taken), id);
	}
	/* The last one is nobody's who has one. */
	add_to(schedule, b, 204, 1);
	assert_int_equal(take(schedule, 1, &taken), 0);
	add_to(schedule, c, 301, 2);
	assert_int_equal(take(schedule, 1, &taken), 301);
	/* In turn, if all have room. */
	assert_int_equal(take(schedule, 64, &taken), 49);
	assert_int_equal(take(schedule, 64, &taken), 204);
	assert_int_equal(take(schedule, 64, &taken), 302);
	assert_int_equal(take(schedule, 64, &taken), 50);
	for (size_t i = 0; i < taken.count; i++) {
		done(schedule, taken.events[i]);
	}
	schedule_free(schedule);
	lanes_free(lanes);
}

static void a_host_hangs_when_nothing_is_heard_and_is_tried_now_and_then(void **state)
{
	(void)state;
	lanes *lanes = lanes_new();
	lane *host = lanes_find(lanes, "https://a.example");
	lane_sent(host, 1000);
	assert_false(lane_hangs(host, 2000));
	assert_true(lane_hangs(host, 2001));
	/* Its first event may hang by its own fault: others are tried, but not many. */
	int tried = 0;
	for (int64_t now = 2001; now < 30000; now += 100) {
		if (lane_may_try(host, 60, 64, now)) {
			lane_sent(host, now);
			tried++;
		}
	}
	assert_int_equal(tried, 3);
	assert_false(lane_may_try(host, 16, 64, 40000));
	lane_answered(host, 30000, false, 30005);
	assert_false(lane_hangs(host, 30005));
	assert_true(lane_hangs(host, 31006)); /* the three that still hang */
	for (int i = 0; i < 3; i++) {
		lane_answered(host, 1000, true, 31006);
	}
	assert_true(lane_hangs(host, 31006)); /* timed out: nothing was heard */
	assert_true(lane_may_try(host, 1, 64, 31006));
	lane_sent(host, 31006);
	lane_answered(host, 31006, true, 31007); /* refused at once: that is no hanging */
	assert_false(lane_hangs(host, 99999));
	/* One that always takes long does not hang. */
	for (int64_t now = 100000; now < 200000; now += 5000) {
		lane_sent(host, now);
		lane_answered(host, now, false, now + 5000);
	}
	lane_sent(host, 200000);
	assert_false(lane_hangs(host, 210000));
	assert_true(lane_hangs(host, 220000));
	lanes_free(lanes);
}

static void what_was_withheld_tells_nothing_of_a_host(void **state)
{
	(void)state;
	lanes *lanes = lanes_new();
	lane *host = lanes_find(lanes, "https://a.example");
	lane_sent(host, 1000);
	lane_withheld(host, 1500);
	assert_false(lane_hangs(host, 99999));
	lane_sent(host, 1000);
	lane_withheld(host, 3000);
	assert_true(lane_hangs(host, 99999));
	lanes_free(lanes);
}

static void a_failed_event_takes_those_behind_it_along(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	event *first = add(schedule, 1, "a");
	add(schedule, 2, "a");
	add(schedule, 3, "a");
	add(schedule, 4, "b");
	assert_int_equal(next_id(schedule), 1);
	event *behind = schedule_remove_chain(schedule, first);
	assert_int_equal(behind->id, 2);
	assert_int_equal(behind->list_after->id, 3);
	assert_null(behind->list_after->list_after);
	event_free_list(behind);
	event_free(first);
	assert_int_equal(schedule_chains(schedule), 1);
	assert_int_equal(schedule_waiting(schedule), 1);
	schedule_free(schedule);
}

static void a_mark_holds_for_reads_that_could_not_know(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	event *parked = make(1, "", "order", "a");
	event *later = make(2, "", "order", "a");
	schedule_mark(schedule, parked, 5);
	later->fetch = 5;
	assert_true(schedule_marked(schedule, later));
	later->fetch = 6;
	assert_false(schedule_marked(schedule, later));
	later->fetch = 5;
	schedule_forget_marks(schedule, 5);
	assert_true(schedule_marked(schedule, later));
	schedule_forget_marks(schedule, 6);
	assert_false(schedule_marked(schedule, later));
	assert_int_equal(schedule_chains(schedule), 0);
	event_free(parked);
	event_free(later);
	schedule_free(schedule);
}

static void an_aggregate_is_busy_with_events_of_another_read(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	event *later = make(2, "", "order", "a");
	add(schedule, 1, "a");
	later->fetch = 1;
	assert_false(schedule_busy(schedule, later));
	later->fetch = 2;
	assert_true(schedule_busy(schedule, later));
	event_free(later);
	schedule_free(schedule);
}

static void what_the_sink_hangs_on_lets_others_go_first_and_none_of_its_aggregate(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	event *first = add(schedule, 1, "a"), *second = add(schedule, 2, "a"), *other = add(schedule, 3, "b");
	event *free = add(schedule, 4, NULL);
	assert_ptr_equal(schedule_next(schedule, 100), first);
	schedule_put_last(schedule, first);
	assert_int_equal(schedule_waiting(schedule), 4);
	assert_ptr_equal(schedule_next(schedule, 100), other);
	schedule_put_last(schedule, other);
	assert_ptr_equal(schedule_next(schedule, 100), free);
	assert_ptr_equal(schedule_next(schedule, 100), first);
	assert_ptr_equal(schedule_next(schedule, 100), other);
	assert_null(schedule_next(schedule, 100));
	done(schedule, first);
	assert_ptr_equal(schedule_next(schedule, 100), second);
	done(schedule, second);
	done(schedule, other);
	done(schedule, free);
	schedule_free(schedule);
}

/*
 * Against a model: random steps on 5,000 events of 300 aggregates; each aggregate's events go out
 * in order, one at a time.
 */
static void order_holds_in_a_crowd(void **state)
{
	enum {
		EVENTS = 5000,
		AGGREGATES = 300
	};
	static char names[AGGREGATES][8];
	static event *out[EVENTS];
	int64_t last[AGGREGATES] = {0};
	bool is_out[AGGREGATES] = {0};
	size_t out_count = 0;
	size_t finished = 0;
	(void)state;
	schedule *schedule = schedule_new();
	srand(1);
	for (int i = 0; i < AGGREGATES; i++) {
		snprintf(names[i], sizeof names[i], "%d", i);
	}
	for (int64_t id = 1; finished < EVENTS;) {
		int step = rand() % 3;
		if (step == 0 && id <= EVENTS) {
			add(schedule, id, names[rand() % AGGREGATES]);
			id++;
		} else if (step == 1) {
			event *event = schedule_next(schedule, 100);
			if (event != NULL) {
				int aggregate = atoi(event->aggregate_id);
				assert_false(is_out[aggregate]);
				assert_true(event->id > last[aggregate]);
				is_out[aggregate] = true;
				out[out_count++] = event;
			}
		} else if (out_count > 0) {
			size_t at = (size_t)rand() % out_count;
			event *event = out[at];
			int aggregate = atoi(event->aggregate_id);
			out[at] = out[--out_count];
			is_out[aggregate] = false;
			if (rand() % 4 == 0) {
				(rand() % 2 == 0 ? schedule_put_back : schedule_put_last)(schedule, event);
				continue;
			}
			last[aggregate] = event->id;
			finished++;
			done(schedule, event);
		}
	}
	assert_int_equal(schedule_chains(schedule), 0);
	assert_int_equal(schedule_waiting(schedule), 0);
	assert_false(schedule_has_ready(schedule));
	schedule_free(schedule);
}

static void clearing_gives_back_what_is_not_in_flight(void **state)
{
	(void)state;
	schedule *schedule = schedule_new();
	event *flying = add(schedule, 1, "a");
	add(schedule, 2, "a");
	add(schedule, 3, NULL);
	schedule_mark(schedule, flying, 9);
	assert_int_equal(next_id(schedule), 1);
	event *rest = schedule_clear(schedule);
	assert_int_equal(rest->id + rest->list_after->id, 5);
	assert_null(rest->list_after->list_after);
	assert_int_equal(flying->place, EVENT_OUTSIDE);
	assert_int_equal(schedule_chains(schedule), 0);
	event_free_list(rest);
	event_free(flying);
	schedule_free(schedule);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_event_of_an_aggregate_is_out_at_a_time),
	    cmocka_unit_test(events_without_aggregate_wait_for_nobody),
	    cmocka_unit_test(aggregates_are_told_apart_by_all_three_parts),
	    cmocka_unit_test(hosts_take_turns_and_none_takes_all_the_room),
	    cmocka_unit_test(a_host_hangs_when_nothing_is_heard_and_is_tried_now_and_then),
	    cmocka_unit_test(what_was_withheld_tells_nothing_of_a_host),
	    cmocka_unit_test(a_failed_event_takes_those_behind_it_along),
	    cmocka_unit_test(a_mark_holds_for_reads_that_could_not_know),
	    cmocka_unit_test(an_aggregate_is_busy_with_events_of_another_read),
	    cmocka_unit_test(what_the_sink_hangs_on_lets_others_go_first_and_none_of_its_aggregate),
	    cmocka_unit_test(order_holds_in_a_crowd),
	    cmocka_unit_test(clearing_gives_back_what_is_not_in_flight),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
