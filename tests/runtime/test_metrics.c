/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_metrics.c: the registry of metrics: what it refuses, what it writes, and counting from
 * several threads. `test_metrics sample` prints a text for tests/runtime/test_metrics.py, which
 * reads it as a scraper does.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "metrics.h"

static char *write_all(metrics *metrics, struct metrics *more)
{
	size_t length = 0;
	char *text = metrics_write(metrics, more, &length);

	assert_non_null(text);
	assert_int_equal(strlen(text), length);
	return text;
}

static void test_a_family_has_its_type_its_help_and_its_samples(void **state)
{
	metrics *metrics = metrics_new();
	(void)state;

	metric_count(metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", "a"), 3);
	metric_set(metrics_add(metrics, METRIC_GAUGE, "depth", "Depth.", NULL, 0), 1.5);
	metric_count(metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", "b"), 1);
	char *text = write_all(metrics, NULL);
	assert_string_equal(text,
	                    "# TYPE jobs counter\n# HELP jobs Jobs.\njobs_total{kind=\"a\"} 3\njobs_total{kind=\"b\"} 1\n"
	                    "# TYPE depth gauge\n# HELP depth Depth.\ndepth 1.5\n# EOF\n");
	free(text);
	metrics_free(metrics);
}

static void test_the_same_name_and_labels_are_the_same_figure(void **state)
{
	metrics *metrics = metrics_new();
	(void)state;

	metric *first = metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", "a");
	assert_ptr_equal(first, metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", "a"));
	assert_ptr_not_equal(first, metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", "b"));
	metrics_free(metrics);
}

static void test_what_would_spoil_the_text_is_not_added(void **state)
{
	metrics *metrics = metrics_new();
	(void)state;

	assert_non_null(metrics_add(metrics, METRIC_COUNTER, "jobs", "Jobs.", NULL, 0));
	assert_null(metrics_add(metrics, METRIC_GAUGE, "jobs", "Jobs.", NULL, 0));
	assert_null(metrics_add(metrics, METRIC_GAUGE, "", "", NULL, 0));
	assert_null(metrics_add(metrics, METRIC_GAUGE, "1st", "", NULL, 0));
	assert_null(metrics_add(metrics, METRIC_GAUGE, "a b", "", NULL, 0));
	assert_null(metrics_add_labelled(metrics, METRIC_GAUGE, "good", "", "a-b", "x"));
	char *text = write_all(metrics, NULL);
	assert_string_equal(text, "# TYPE jobs counter\n# HELP jobs Jobs.\njobs_total 0\n# EOF\n");
	free(text);
	metrics_free(metrics);
}

static void test_without_a_registry_nothing_is_counted_and_nothing_breaks(void **state)
{
	(void)state;
	assert_null(metrics_add(NULL, METRIC_COUNTER, "jobs", "Jobs.", NULL, 0));
	metric_count(NULL, 1);
	metric_set(NULL, 1);
	metric_set_now(NULL);
	assert_true(metric_value(NULL) == 0);
	metrics_free(NULL);
}

static void test_a_family_of_the_second_registry_gives_way_to_the_first(void **state)
{
	metrics *metrics = metrics_new();
	struct metrics *more = metrics_new();
	(void)state;

	metric_set(metrics_add(metrics, METRIC_GAUGE, "up", "Up.", NULL, 0), 1);
	metric_set(metrics_add(more, METRIC_GAUGE, "up", "Another.", NULL, 0), 0);
	metric_set(metrics_add(more, METRIC_GAUGE, "more", "More.", NULL, 0), 2);
	char *text = write_all(metrics, more);
	assert_string_equal(text,
	                    "# TYPE up gauge\n# HELP up Up.\nup 1\n# TYPE more gauge\n# HELP more More.\nmore 2\n# EOF\n");
	free(text);
	metrics_free(more);
	metrics_free(metrics);
}

static void test_labels_are_escaped_and_stay_utf8(void **state)
{
	metrics *metrics = metrics_new();
	(void)state;

	(void)metrics_add_labelled(metrics, METRIC_GAUGE, "a", "Of \\ and\nlines.", "l",
	                           "q\" b\\ n\n t\t \xc3\xa4 \xe9 \xed\xa0\x80");
	char *text = write_all(metrics, NULL);
	assert_string_equal(text, "# TYPE a gauge\n# HELP a Of \\\\ and\\nlines.\n"
	                          "a{l=\"q\\\" b\\\\ n\\n t\t \xc3\xa4 ? ???\"} 0\n# EOF\n");
	free(text);
	metrics_free(metrics);
}

static void test_numbers_are_written_as_openmetrics_has_them(void **state)
{
	static const struct {
		double number;
		const char *text;
	} all[] = {{0, "0"},
	           {-3, "-3"},
	           {1763769600.123, "1763769600.123"},
	           {9007199254740991.0, "9007199254740991"},
	           {INFINITY, "+Inf"},
	           {-INFINITY, "-Inf"},
	           {NAN, "NaN"},
	           {1e300, "1e+300"}};
	(void)state;

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		metrics *metrics = metrics_new();
		char wanted[128];
		metric_set(metrics_add(metrics, METRIC_GAUGE, "a", "A.", NULL, 0), all[i].number);
		char *text = write_all(metrics, NULL);
		snprintf(wanted, sizeof wanted, "\na %s\n", all[i].text);
		if (strstr(text, wanted) == NULL) {
			fail_msg("no %s in %s", wanted, text);
		}
		free(text);
		metrics_free(metrics);
	}
}

enum {
	THREADS = 4,
	ROUNDS = 20000
};

static void *count_much(void *argument)
{
	metrics *metrics = argument;

	for (int i = 0; i < ROUNDS; i++) {
		metric_count(metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", i % 2 == 0 ? "a" : "b"), 1);
		if (i % 1000 == 0) {
			free(write_all(metrics, NULL));
		}
	}
	return NULL;
}

static void test_threads_that_count_at_once_lose_nothing(void **state)
{
	metrics *metrics = metrics_new();
	pthread_t threads[THREADS];
	(void)state;

	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_create(&threads[i], NULL, count_much, metrics), 0);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	double a = metric_value(metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", "a"));
	double b = metric_value(metrics_add_labelled(metrics, METRIC_COUNTER, "jobs", "Jobs.", "kind", "b"));
	assert_true(a == THREADS * ROUNDS / 2 && b == a);
	metrics_free(metrics);
}

/* Figures of all kinds, for a strict reader. */
static int print_sample(void)
{
	metrics *metrics = metrics_new();
	struct metrics *more = metrics_new();

	metric_count(metrics_add_labelled(metrics, METRIC_COUNTER, "pgonce_jobs", "Jobs\nof \"all\" \\ kinds.", "kind",
	                                  "a\"b\\c\nd"),
	             3);
	metric_set(metrics_add(metrics, METRIC_GAUGE, "pgonce_up", "Up.", NULL, 0), NAN);
	metric_set_now(metrics_add(metrics, METRIC_GAUGE, "pgonce_now_seconds", "Now.", NULL, 0));
	metric_set(metrics_add_labelled(more, METRIC_GAUGE, "pgonce_depth", "Depth.", "topic", "\xc3\xa4\xe9"), 1e-9);
	(void)metrics_add_labelled(more, METRIC_GAUGE, "pgonce_up", "Up.", "second", "time");
	char *text = write_all(metrics, more);
	fputs(text, stdout);
	free(text);
	metrics_free(more);
	metrics_free(metrics);
	return 0;
}

int main(int count, char **arguments)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_a_family_has_its_type_its_help_and_its_samples),
	    cmocka_unit_test(test_the_same_name_and_labels_are_the_same_figure),
	    cmocka_unit_test(test_what_would_spoil_the_text_is_not_added),
	    cmocka_unit_test(test_without_a_registry_nothing_is_counted_and_nothing_breaks),
	    cmocka_unit_test(test_a_family_of_the_second_registry_gives_way_to_the_first),
	    cmocka_unit_test(test_labels_are_escaped_and_stay_utf8),
	    cmocka_unit_test(test_numbers_are_written_as_openmetrics_has_them),
	    cmocka_unit_test(test_threads_that_count_at_once_lose_nothing),
	};

	return count > 1 && strcmp(arguments[1], "sample") == 0 ? print_sample()
	                                                        : cmocka_run_group_tests(tests, NULL, NULL);
}
