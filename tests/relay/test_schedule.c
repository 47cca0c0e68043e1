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
	event *next = schedule_next(schedule);
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
	event *first = schedule_next(schedule), *second = schedule_next(schedule);
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
	for (event *event = schedule_next(schedule); event != NULL; event = schedule_next(schedule)) {
		events[out++] = event;
	}
	assert_int_equal(out, sizeof events / sizeof events[0]);
	for (size_t i = 0; i < out; i++) {
		done(schedule, events[i]);
	}
	schedule_free(schedule);
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
			event *event = schedule_next(schedule);
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
				schedule_put_back(schedule, event);
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
	    cmocka_unit_test(a_failed_event_takes_those_behind_it_along),
	    cmocka_unit_test(a_mark_holds_for_reads_that_could_not_know),
	    cmocka_unit_test(an_aggregate_is_busy_with_events_of_another_read),
	    cmocka_unit_test(order_holds_in_a_crowd),
	    cmocka_unit_test(clearing_gives_back_what_is_not_in_flight),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
