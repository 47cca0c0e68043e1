/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_metrics.c: counting from several processes at once, and the figures of the status page. That
 * its texts are valid JSON and OpenMetrics is tests/http/test_http.py's business: `test_metrics
 * json` and `test_metrics openmetrics` print a sample.
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static http_metrics *new_metrics(void)
{
	void *shared = mmap(NULL, sizeof(http_metrics), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
	http_metrics_init(shared);
	return shared;
}

static void drop_metrics(http_metrics *metrics)
{
	munmap(metrics, sizeof *metrics);
}

static char *openmetrics(const http_metrics *metrics)
{
	char *text = NULL;
	size_t length = 0;
	assert_true(http_metrics_openmetrics(metrics, &text, &length));
	assert_int_equal(strlen(text), length);
	return text;
}

/* Has the text this line? */
static void assert_line(const char *text, const char *line)
{
	char wanted[512];
	snprintf(wanted, sizeof wanted, "\n%s\n", line);
	if (strstr(text, wanted) == NULL) {
		fail_msg("no line %s in\n%s", line, text);
	}
}

static once_batcher_statistics some_statistics(void)
{
	once_batcher_statistics statistics = {.pending = 3,
	                                      .pending_bytes = 900,
	                                      .connected = {true, false},
	                                      .connects = 4,
	                                      .connect_failures = 5,
	                                      .batches = {10, 20},
	                                      .operations = {100, 200},
	                                      .resolved_claims = 6,
	                                      .resent = 7,
	                                      .timeouts = 8,
	                                      .latency_sum_us = 2500001,
	                                      .more_connections = 2};
	for (int i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
		statistics.latency[i] = 1;
	}
	return statistics;
}

static void fill(http_metrics *metrics)
{
	size_t row = http_metrics_scope_row(metrics, text_of("payments"));
	http_metrics_decided(metrics, row, HTTP_RUN, HTTP_PROBLEMS);
	http_metrics_decided(metrics, row, HTTP_RUN, HTTP_PROBLEMS);
	http_metrics_decided(metrics, row, HTTP_REPLAY, HTTP_PROBLEMS);
	http_metrics_decided(metrics, row, HTTP_REFUSE, HTTP_PROBLEM_MISMATCH);
	http_metrics_decided(metrics, http_metrics_scope_row(metrics, text_of("a\"b\\c\nd\xe9")), HTTP_PASS, HTTP_PROBLEMS);
	http_metrics_add(&metrics->reports[HTTP_REPORT_IN_DOUBT], 1);
	http_metrics_add(&metrics->reports_refused, 2);
	http_metrics_add(&metrics->reports_unstored, 3);
	http_metrics_worker *worker = http_metrics_enter(metrics, 2, 4711);
	worker->running = 9;
	worker->waiting = 5;
	worker->held = 6;
	worker->replay_bytes = 12;
	once_batcher_statistics statistics = some_statistics();
	http_metrics_batched(metrics, worker, &statistics);
}

static void each_figure_stands_in_its_line(void **state)
{
	(void)state;
	static const char *const lines[] = {
	    "pgonce_decisions_total{scope=\"payments\",decision=\"run\"} 2",
	    "pgonce_decisions_total{scope=\"payments\",decision=\"replay\"} 1",
	    "pgonce_decisions_total{scope=\"payments\",decision=\"wait\"} 0",
	    "pgonce_decisions_total{scope=\"payments\",decision=\"mismatch\"} 1",
	    "pgonce_decisions_total{scope=\"payments\",decision=\"active\"} 0",
	    "pgonce_decisions_total{scope=\"a\\\"b\\\\c\\nd?\",decision=\"pass\"} 1",
	    "pgonce_reports_total{report=\"in-doubt\"} 1",
	    "pgonce_reports_total{report=\"complete\"} 0",
	    "pgonce_reports_refused_total 2",
	    "pgonce_reports_unstored_total 3",
	    "pgonce_workers 1",
	    "pgonce_running 9",
	    "pgonce_waiting 5",
	    "pgonce_held 6",
	    "pgonce_replay_bytes 12",
	    "pgonce_connections{connection=\"claims\"} 1",
	    "pgonce_connections{connection=\"reports\"} 0",
	    "pgonce_connections{connection=\"more\"} 2",
	    "pgonce_connects_total 4",
	    "pgonce_connect_failures_total 5",
	    "pgonce_batches_total{connection=\"claims\"} 10",
	    "pgonce_operations_total{connection=\"reports\"} 200",
	    "pgonce_resolved_claims_total 6",
	    "pgonce_resent_operations_total 7",
	    "pgonce_rerouted_operations_total 0",
	    "pgonce_timeouts_total 8",
	    "pgonce_pending_operations 3",
	    "pgonce_pending_bytes 900",
	    "pgonce_database_seconds_bucket{le=\"0.000100\"} 1",
	    "pgonce_database_seconds_bucket{le=\"1.638400\"} 15",
	    "pgonce_database_seconds_bucket{le=\"+Inf\"} 16",
	    "pgonce_database_seconds_count 16",
	    "pgonce_database_seconds_sum 2.500001",
	};
	http_metrics *metrics = new_metrics();
	fill(metrics);
	char *text = openmetrics(metrics);
	for (size_t i = 0; i < COUNT(lines); i++) {
		assert_line(text, lines[i]);
	}
	assert_null(strstr(text, "refuse\"")); /* counted by its problem */
	free(text);
	drop_metrics(metrics);
}

static void totals_only_grow_and_gauges_go_with_their_worker(void **state)
{
	(void)state;
	http_metrics *metrics = new_metrics();
	http_metrics_worker *worker = http_metrics_enter(metrics, 0, 1);
	once_batcher_statistics statistics = some_statistics();
	http_metrics_batched(metrics, worker, &statistics);
	http_metrics_batched(metrics, worker, &statistics); /* nothing new */
	assert_int_equal(metrics->operations[0], 100);
	statistics.operations[0] = 150;
	http_metrics_batched(metrics, worker, &statistics);
	assert_int_equal(metrics->operations[0], 150);
	/* Another batcher in this worker begins at zero. */
	statistics = (once_batcher_statistics){.operations = {7, 0}};
	http_metrics_batched(metrics, worker, &statistics);
	assert_int_equal(metrics->operations[0], 157);
	assert_int_equal(metrics->latency_sum_us, 2500001);
	/* The worker is killed; its successor takes the slot. */
	worker->held = 99;
	worker->replay_bytes = 99;
	worker = http_metrics_enter(metrics, 0, 2);
	assert_int_equal(worker->held, 0);
	assert_int_equal(worker->replay_bytes, 0);
	statistics.operations[0] = 3;
	http_metrics_batched(metrics, worker, &statistics);
	assert_int_equal(metrics->operations[0], 160);
	worker->waiting = 4;
	http_metrics_leave(worker);
	char *text = openmetrics(metrics);
	assert_line(text, "pgonce_workers 0");
	assert_line(text, "pgonce_waiting 0");
	assert_line(text, "pgonce_operations_total{connection=\"claims\"} 160");
	free(text);
	drop_metrics(metrics);
}

static void a_reload_keeps_what_was_counted_and_another_layout_does_not(void **state)
{
	(void)state;
	http_metrics *metrics = new_metrics();
	fill(metrics);
	http_metrics_init(metrics);
	assert_int_equal(metrics->reports_refused, 2);
	metrics->bytes--;
	http_metrics_init(metrics);
	assert_int_equal(metrics->reports_refused, 0);
	assert_int_equal(metrics->bytes, sizeof *metrics);
	drop_metrics(metrics);
}

static void scopes_beyond_the_table_are_counted_together(void **state)
{
	(void)state;
	http_metrics *metrics = new_metrics();
	char name[300];
	for (int i = 1; i < HTTP_METRICS_SCOPES_MAX; i++) {
		snprintf(name, sizeof name, "scope %d", i);
		assert_int_equal(http_metrics_scope_row(metrics, text_of(name)), i);
	}
	char *text = openmetrics(metrics);
	assert_null(strstr(text, "(other)"));
	free(text);
	assert_int_equal(http_metrics_scope_row(metrics, text_of("one more")), 0);
	assert_int_equal(http_metrics_scope_row(metrics, text_of("scope 5")), 5);
	http_metrics_decided(metrics, 0, HTTP_RUN, HTTP_PROBLEMS);
	text = openmetrics(metrics);
	assert_line(text, "pgonce_decisions_total{scope=\"(other)\",decision=\"run\"} 1");
	free(text);
	drop_metrics(metrics);
}

static void of_several_nodes_each_shows_its_connections_while_a_worker_knows_it(void **state)
{
	(void)state;
	static const bool both[2] = {true, true};
	static const bool claims[2] = {true, false};
	http_metrics *metrics = new_metrics();
	http_metrics_worker *workers[] = {http_metrics_enter(metrics, 0, 1), http_metrics_enter(metrics, 1, 2)};
	size_t first = http_metrics_node_row(metrics, text_of("db\"1"));
	size_t second = http_metrics_node_row(metrics, text_of("db2"));
	assert_int_equal(http_metrics_node_row(metrics, text_of("db2")), second);
	http_metrics_connected(workers[0], first, both);
	http_metrics_connected(workers[1], first, claims);
	http_metrics_connected(workers[1], second, claims);
	http_metrics_connected(workers[1], HTTP_METRICS_NODES_MAX, both);
	http_metrics_add(&metrics->rerouted, 7);
	char *text = openmetrics(metrics);
	assert_line(text, "pgonce_node_connections{node=\"db\\\"1\",connection=\"claims\"} 2");
	assert_line(text, "pgonce_node_connections{node=\"db\\\"1\",connection=\"reports\"} 1");
	assert_line(text, "pgonce_node_connections{node=\"db2\",connection=\"reports\"} 0");
	assert_line(text, "pgonce_connections{connection=\"claims\"} 3");
	assert_line(text, "pgonce_connections{connection=\"reports\"} 1");
	assert_line(text, "pgonce_rerouted_operations_total 7");
	free(text);
	size_t length;
	assert_true(http_metrics_json(metrics, &text, &length));
	assert_non_null(
	    strstr(text, "\"nodes\":{\"db\\\"1\":{\"claims\":2,\"reports\":1},\"db2\":{\"claims\":1,\"reports\":0}},"));
	free(text);
	/* A reload: only the first worker is still there, and others begin. */
	http_metrics_leave(workers[1]);
	http_metrics_init(metrics);
	assert_int_equal(http_metrics_node_row(metrics, text_of("db3")), second);
	assert_int_equal(http_metrics_node_row(metrics, text_of("db\"1")), first);
	text = openmetrics(metrics);
	assert_null(strstr(text, "db2"));
	assert_null(strstr(text, "db3")); /* no worker knows it yet */
	free(text);
	/* No row is left: it is not shown. */
	for (int i = 0; i < HTTP_METRICS_NODES_MAX; i++) {
		char name[32];
		snprintf(name, sizeof name, "node %d", i);
		(void)http_metrics_node_row(metrics, text_of(name));
	}
	assert_int_equal(http_metrics_node_row(metrics, text_of("one more")), HTTP_METRICS_NODES_MAX);
	drop_metrics(metrics);
}

static void the_longest_names_fit(void **state)
{
	(void)state;
	http_metrics *metrics = new_metrics();
	char name[400];
	memset(name, '\x01', sizeof name); /* six bytes each in JSON */
	for (int i = 1; i < HTTP_METRICS_SCOPES_MAX; i++) {
		name[0] = (char)i;
		assert_int_equal(http_metrics_scope_row(metrics, (http_text){name, sizeof name}), i);
	}
	char *text = NULL;
	size_t length = 0;
	assert_true(http_metrics_json(metrics, &text, &length));
	free(text);
	free(openmetrics(metrics));
	drop_metrics(metrics);
}

static void a_name_keeps_its_characters_and_is_valid_json_whatever_its_bytes(void **state)
{
	(void)state;
	http_metrics *metrics = new_metrics();
	char name[300], *text = NULL;
	size_t length = 0;
	/* Cut, it ends between two characters. */
	memset(name, 'a', sizeof name);
	memcpy(name + HTTP_METRICS_SCOPE_BYTES - 3, "\xe2\x82\xac", 3);
	http_metrics_scope_row(metrics, (http_text){name, sizeof name});
	http_metrics_scope_row(metrics, text_of("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\x91"));
	http_metrics_scope_row(metrics, text_of("\xff \xc3 \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82"));
	assert_true(http_metrics_json(metrics, &text, &length));
	assert_non_null(strstr(text, "aaa\":{"));
	assert_non_null(strstr(text, "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x94\x91\":{"));
	assert_non_null(strstr(
	    text,
	    "\"\\u00ff \\u00c3 \\u00c0\\u00af \\u00ed\\u00a0\\u0080 \\u00f4\\u0090\\u0080\\u0080 \\u00e2\\u0082\":{"));
	free(text);
	drop_metrics(metrics);
}

static void out_of_range_counts_nothing(void **state)
{
	(void)state;
	http_metrics *metrics = new_metrics();
	static http_metrics before;
	memcpy(&before, metrics, sizeof before);
	http_metrics_decided(metrics, HTTP_METRICS_SCOPES_MAX, HTTP_RUN, HTTP_PROBLEMS);
	http_metrics_decided(metrics, 0, HTTP_REFUSE, HTTP_PROBLEMS);
	http_metrics_decided(metrics, 0, (http_step)1000, HTTP_PROBLEMS);
	assert_memory_equal(&before, metrics, sizeof before);
	drop_metrics(metrics);
}

static void count_a_lot(http_metrics *metrics, int child)
{
	char name[32];
	for (int i = 0; i < 20000; i++) {
		snprintf(name, sizeof name, "scope %d", (i + child) % 8);
		http_metrics_decided(metrics, http_metrics_scope_row(metrics, text_of(name)), HTTP_RUN, HTTP_PROBLEMS);
	}
}

static void processes_that_count_at_once_lose_nothing_and_share_rows(void **state)
{
	(void)state;
	enum {
		CHILDREN = 4
	};
	http_metrics *metrics = new_metrics();
	pid_t children[CHILDREN];
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			count_a_lot(metrics, i);
			_exit(0);
		}
	}
	for (int i = 0; i < CHILDREN; i++) {
		int status;
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_int_equal(status, 0);
	}
	for (int i = 1; i <= 8; i++) {
		assert_int_equal(metrics->scopes[i].decisions[HTTP_RUN], CHILDREN * 20000 / 8);
	}
	assert_int_equal(metrics->scopes[9].hash, 0);
	drop_metrics(metrics);
}

static void without_memory_there_is_no_text_and_nothing_leaks(void **state)
{
	(void)state;
	http_metrics *metrics = new_metrics();
	fill(metrics);
	int fails = 0;
	for (;; fails++) {
		char *text = NULL;
		size_t length;
		memory_countdown = fails + 1;
		bool good = http_metrics_json(metrics, &text, &length);
		memory_countdown = -1;
		free(text);
		if (good) {
			break;
		}
		assert_null(text);
	}
	assert_true(fails > 2);
	drop_metrics(metrics);
}

static int print(const char *form)
{
	http_metrics *metrics = new_metrics();
	char *text = NULL;
	size_t length = 0;
	fill(metrics);
	bool good = strcmp(form, "json") == 0 ? http_metrics_json(metrics, &text, &length)
	                                      : http_metrics_openmetrics(metrics, &text, &length);
	fwrite(text, 1, length, stdout);
	free(text);
	drop_metrics(metrics);
	return good ? 0 : 1;
}

int main(int count, char **arguments)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_figure_stands_in_its_line),
	    cmocka_unit_test(totals_only_grow_and_gauges_go_with_their_worker),
	    cmocka_unit_test(a_reload_keeps_what_was_counted_and_another_layout_does_not),
	    cmocka_unit_test(scopes_beyond_the_table_are_counted_together),
	    cmocka_unit_test(of_several_nodes_each_shows_its_connections_while_a_worker_knows_it),
	    cmocka_unit_test(the_longest_names_fit),
	    cmocka_unit_test(a_name_keeps_its_characters_and_is_valid_json_whatever_its_bytes),
	    cmocka_unit_test(out_of_range_counts_nothing),
	    cmocka_unit_test(processes_that_count_at_once_lose_nothing_and_share_rows),
	    cmocka_unit_test(without_memory_there_is_no_text_and_nothing_leaks),
	};
	return count > 1 ? print(arguments[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
