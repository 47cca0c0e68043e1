/* SPDX-License-Identifier: PostgreSQL */
/*
 * metrics.c: the counters of all workers and the two texts of the status page. Called by the
 * gateway: each worker counts into memory that all share; any of them writes the page. It uses no
 * locks: a worker may be killed at any instruction, and its lock would stay held.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "openmetrics.h"

/* ---- Counting ---- */

void http_metrics_add(uint64_t *counter, uint64_t increment)
{
	__atomic_fetch_add(counter, increment, __ATOMIC_RELAXED);
}

static uint64_t get(const uint64_t *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void set(uint64_t *gauge, uint64_t number)
{
	__atomic_store_n(gauge, number, __ATOMIC_RELAXED);
}

static bool is_present(const http_metrics_worker *worker)
{
	return __atomic_load_n(&worker->present, __ATOMIC_ACQUIRE) != 0;
}

/* Does any worker know this node? In *connected, how many have each of its connections. */
static bool node_known(const http_metrics *metrics, size_t row, uint64_t connected[2])
{
	bool known = false;

	connected[0] = connected[1] = 0;
	for (size_t i = 0; get(&metrics->nodes[row].ready) && i < HTTP_METRICS_WORKERS_MAX; i++) {
		const http_metrics_worker *worker = &metrics->workers[i];
		unsigned said = is_present(worker) ? __atomic_load_n(&worker->nodes[row], __ATOMIC_RELAXED) : 0;
		known = known || (said & HTTP_METRICS_NODE_KNOWN) != 0;
		connected[0] += (said & HTTP_METRICS_NODE_CLAIMS) != 0;
		connected[1] += (said & HTTP_METRICS_NODE_REPORTS) != 0;
	}
	return known;
}

void http_metrics_init(http_metrics *metrics)
{
	uint64_t connected[2];

	if (metrics->bytes != sizeof *metrics) {
		memset(metrics, 0, sizeof *metrics);
		metrics->bytes = sizeof *metrics;
	}
	for (size_t row = 0; row < HTTP_METRICS_NODES_MAX; row++) {
		if (!node_known(metrics, row, connected)) {
			memset(&metrics->nodes[row], 0, sizeof metrics->nodes[row]);
		}
	}
}

http_metrics_worker *http_metrics_enter(http_metrics *metrics, size_t slot, uint64_t process_id)
{
	http_metrics_worker *worker = &metrics->workers[slot % HTTP_METRICS_WORKERS_MAX];
	http_metrics_leave(worker); /* a killed predecessor's gauges */
	memset(&worker->counted, 0, sizeof worker->counted);
	memset(worker->nodes, 0, sizeof worker->nodes);
	set(&worker->running, 0);
	set(&worker->waiting, 0);
	set(&worker->held, 0);
	set(&worker->replay_bytes, 0);
	__atomic_store_n(&worker->present, process_id, __ATOMIC_RELEASE);
	return worker;
}

void http_metrics_leave(http_metrics_worker *worker)
{
	__atomic_store_n(&worker->present, 0, __ATOMIC_RELEASE);
}

/* Never 0. */
static uint64_t hash_of(http_text name)
{
	uint64_t hash = hash_bytes(HASH_START, name.data, name.length);

	return hash == 0 ? 1 : hash;
}

/*
 * The name of a row is written by each worker that finds it empty: all write the same bytes, so it
 * does not matter if one is killed halfway, or if many write at once.
 */
static void write_name(char *place, uint64_t *ready, http_text name)
{
	size_t length = name.length < HTTP_METRICS_SCOPE_BYTES - 1 ? name.length : HTTP_METRICS_SCOPE_BYTES - 1;
	while (length > 0 && length < name.length && ((unsigned char)name.data[length] & 0xC0) == 0x80) {
		length--; /* no half character */
	}
	memcpy(place, name.data, length);
	__atomic_store_n(ready, 1, __ATOMIC_RELEASE);
}

/* Is this row the name's, perhaps since now? */
static bool take_row(uint64_t *hash_of_row, uint64_t *ready, char *place, uint64_t hash, http_text name)
{
	uint64_t found = 0;
	if (!__atomic_compare_exchange_n(hash_of_row, &found, hash, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) &&
	    found != hash) {
		return false;
	}
	if (!get(ready)) {
		write_name(place, ready, name);
	}
	return true;
}

size_t http_metrics_scope_row(http_metrics *metrics, http_text name)
{
	uint64_t hash = hash_of(name);
	for (size_t row = 1; row < HTTP_METRICS_SCOPES_MAX; row++) {
		http_metrics_scope *scope = &metrics->scopes[row];
		if (take_row(&scope->hash, &scope->ready, scope->name, hash, name)) {
			return row;
		}
	}
	return 0;
}

size_t http_metrics_node_row(http_metrics *metrics, http_text name)
{
	uint64_t hash = hash_of(name);
	size_t row = 0;
	while (row < HTTP_METRICS_NODES_MAX &&
	       !take_row(&metrics->nodes[row].hash, &metrics->nodes[row].ready, metrics->nodes[row].name, hash, name)) {
		row++;
	}
	return row;
}

void http_metrics_connected(http_metrics_worker *worker, size_t row, const bool connected[2])
{
	if (row < HTTP_METRICS_NODES_MAX) {
		unsigned char said = (unsigned char)(HTTP_METRICS_NODE_KNOWN | (connected[0] ? HTTP_METRICS_NODE_CLAIMS : 0) |
		                                     (connected[1] ? HTTP_METRICS_NODE_REPORTS : 0));
		__atomic_store_n(&worker->nodes[row], said, __ATOMIC_RELAXED);
	}
}

void http_metrics_decided(http_metrics *metrics, size_t row, http_step step, http_problem problem)
{
	size_t decision = step == HTTP_REFUSE ? HTTP_STEPS + (size_t)problem : (size_t)step;
	if (row < HTTP_METRICS_SCOPES_MAX && decision < HTTP_METRICS_DECISIONS) {
		http_metrics_add(&metrics->scopes[row].decisions[decision], 1);
	}
}

/* The difference since then; everything if the count restarted. */
static void add_since(uint64_t *total, uint64_t before, uint64_t now)
{
	http_metrics_add(total, now >= before ? now - before : now);
}

void http_metrics_batched(http_metrics *metrics, http_metrics_worker *worker, const once_batcher_statistics *statistics)
{
	const once_batcher_statistics *before = &worker->counted;
	add_since(&metrics->connects, before->connects, statistics->connects);
	add_since(&metrics->connect_failures, before->connect_failures, statistics->connect_failures);
	for (int i = 0; i < 2; i++) {
		add_since(&metrics->batches[i], before->batches[i], statistics->batches[i]);
		add_since(&metrics->operations[i], before->operations[i], statistics->operations[i]);
	}
	add_since(&metrics->resolved_claims, before->resolved_claims, statistics->resolved_claims);
	add_since(&metrics->resent, before->resent, statistics->resent);
	add_since(&metrics->timeouts, before->timeouts, statistics->timeouts);
	for (int i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
		add_since(&metrics->latency[i], before->latency[i], statistics->latency[i]);
	}
	add_since(&metrics->latency_sum_us, before->latency_sum_us, statistics->latency_sum_us);
	worker->counted = *statistics;
}

/* ---- The gauges of all workers ---- */

typedef struct gauges {
	uint64_t workers;
	uint64_t running;
	uint64_t waiting;
	uint64_t held;
	uint64_t replay_bytes;
	uint64_t pending;
	uint64_t pending_bytes;
	uint64_t connected[2];
	uint64_t more_connections;
} gauges;

static gauges sum_gauges(const http_metrics *metrics)
{
	gauges sum = {0};
	for (size_t i = 0; i < HTTP_METRICS_WORKERS_MAX; i++) {
		const http_metrics_worker *worker = &metrics->workers[i];
		if (!is_present(worker)) {
			continue;
		}
		sum.workers++;
		sum.running += get(&worker->running);
		sum.waiting += get(&worker->waiting);
		sum.held += get(&worker->held);
		sum.replay_bytes += get(&worker->replay_bytes);
		sum.pending += worker->counted.pending;
		sum.pending_bytes += worker->counted.pending_bytes;
		sum.connected[0] += worker->counted.connected[0];
		sum.connected[1] += worker->counted.connected[1];
		sum.more_connections += worker->counted.more_connections;
	}
	for (size_t row = 0; row < HTTP_METRICS_NODES_MAX; row++) {
		uint64_t connected[2];
		if (node_known(metrics, row, connected)) {
			sum.connected[0] += connected[0];
			sum.connected[1] += connected[1];
		}
	}
	return sum;
}

static const char *const connection_names[] = {"claims", "reports"};

static const char *const cache_names[HTTP_CACHE_EVENTS] = {
    [HTTP_CACHE_HIT] = "hit",   [HTTP_CACHE_MISMATCH] = "mismatch", [HTTP_CACHE_MISS] = "miss",
    [HTTP_CACHE_KEPT] = "kept", [HTTP_CACHE_EVICTED] = "evicted",   [HTTP_CACHE_EMPTIED] = "emptied"};

/* NULL: a decision counted under another name. */
static const char *decision_name(size_t decision)
{
	if (decision == HTTP_REFUSE) {
		return NULL;
	}
	return decision < HTTP_STEPS ? http_step_name((http_step)decision)
	                             : http_problem_slug((http_problem)(decision - HTTP_STEPS));
}

/* Is the row in use? Row 0 has no name, and is shown once it has counted something. */
static bool scope_shown(const http_metrics *metrics, size_t row)
{
	const http_metrics_scope *scope = &metrics->scopes[row];
	if (row > 0) {
		return __atomic_load_n(&scope->ready, __ATOMIC_ACQUIRE) != 0;
	}
	for (size_t i = 0; i < HTTP_METRICS_DECISIONS; i++) {
		if (get(&scope->decisions[i]) > 0) {
			return true;
		}
	}
	return false;
}

static http_text name_of(const char *name)
{
	return (http_text){.data = name, .length = strnlen(name, HTTP_METRICS_SCOPE_BYTES - 1)};
}

static http_text scope_name(const http_metrics *metrics, size_t row)
{
	return name_of(row == 0 ? "(other)" : metrics->scopes[row].name);
}

static void write_seconds(buffer *out, uint64_t us)
{
	buffer_format(out, "%" PRIu64 ".%06" PRIu64, us / 1000000, us % 1000000);
}

static uint64_t bucket_below_us(int bucket)
{
	return (uint64_t)100 << bucket;
}

/* ---- JSON ---- */

static void json_number(buffer *out, const char *name, uint64_t number)
{
	buffer_format(out, "\"%s\":%" PRIu64 ",", name, number);
}

static void json_pair(buffer *out, const char *name, uint64_t claims, uint64_t reports)
{
	buffer_format(out, "\"%s\":{\"claims\":%" PRIu64 ",\"reports\":%" PRIu64 "},", name, claims, reports);
}

/* Cumulative, as in OpenMetrics; the last bucket is the count. */
static void json_latency(const http_metrics *metrics, buffer *out)
{
	uint64_t count = 0;
	buffer_text(out, "\"database_seconds\":{\"buckets\":[");
	for (int i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
		count += get(&metrics->latency[i]);
		if (i < ONCE_LATENCY_BUCKETS - 1) {
			buffer_text(out, i == 0 ? "{\"le\":" : ",{\"le\":");
			write_seconds(out, bucket_below_us(i));
			buffer_format(out, ",\"count\":%" PRIu64 "}", count);
		}
	}
	buffer_format(out, "],\"count\":%" PRIu64 ",\"sum\":", count);
	write_seconds(out, get(&metrics->latency_sum_us));
	buffer_text(out, "},");
}

static void json_scopes(const http_metrics *metrics, buffer *out)
{
	bool first_scope = true;
	buffer_text(out, "\"scopes\":{");
	for (size_t row = 0; row < HTTP_METRICS_SCOPES_MAX; row++) {
		if (!scope_shown(metrics, row)) {
			continue;
		}
		buffer_text(out, first_scope ? "" : ",");
		first_scope = false;
		buffer_json_utf8(out, scope_name(metrics, row));
		for (size_t i = 0; i < HTTP_METRICS_DECISIONS; i++) {
			if (decision_name(i) != NULL) {
				buffer_format(out, "%s\"%s\":%" PRIu64, i == 0 ? ":{" : ",", decision_name(i),
				              get(&metrics->scopes[row].decisions[i]));
			}
		}
		buffer_text(out, "}");
	}
	buffer_text(out, "}");
}

/* Only if there are several. */
static void json_nodes(const http_metrics *metrics, buffer *out)
{
	bool first = true;
	for (size_t row = 0; row < HTTP_METRICS_NODES_MAX; row++) {
		uint64_t connected[2];
		if (node_known(metrics, row, connected)) {
			buffer_text(out, first ? "\"nodes\":{" : ",");
			first = false;
			buffer_json_utf8(out, name_of(metrics->nodes[row].name));
			buffer_format(out, ":{\"claims\":%" PRIu64 ",\"reports\":%" PRIu64 "}", connected[0], connected[1]);
		}
	}
	buffer_text(out, first ? "" : "},");
}

bool http_metrics_json(const http_metrics *metrics, char **text, size_t *length)
{
	buffer out = {.length_max = HTTP_METRICS_TEXT_MAX};
	gauges sum = sum_gauges(metrics);
	buffer_text(&out, "{");
	json_number(&out, "workers", sum.workers);
	json_number(&out, "running", sum.running);
	json_number(&out, "waiting", sum.waiting);
	json_number(&out, "held", sum.held);
	json_number(&out, "replay_bytes", sum.replay_bytes);
	json_number(&out, "pending", sum.pending);
	json_number(&out, "pending_bytes", sum.pending_bytes);
	json_pair(&out, "connected", sum.connected[0], sum.connected[1]);
	json_number(&out, "more_connections", sum.more_connections);
	json_number(&out, "connects", get(&metrics->connects));
	json_number(&out, "connect_failures", get(&metrics->connect_failures));
	json_pair(&out, "batches", get(&metrics->batches[0]), get(&metrics->batches[1]));
	json_pair(&out, "operations", get(&metrics->operations[0]), get(&metrics->operations[1]));
	json_number(&out, "resolved_claims", get(&metrics->resolved_claims));
	json_number(&out, "resent", get(&metrics->resent));
	json_number(&out, "rerouted", get(&metrics->rerouted));
	json_number(&out, "timeouts", get(&metrics->timeouts));
	json_latency(metrics, &out);
	buffer_text(&out, "\"reports\":{");
	for (int i = 0; i < HTTP_REPORTS; i++) {
		buffer_format(&out, "%s\"%s\":%" PRIu64, i == 0 ? "" : ",", http_report_name((http_report)i),
		              get(&metrics->reports[i]));
	}
	buffer_text(&out, "},");
	json_number(&out, "reports_refused", get(&metrics->reports_refused));
	json_number(&out, "reports_unstored", get(&metrics->reports_unstored));
	buffer_text(&out, "\"cache\":{");
	for (int i = 0; i < HTTP_CACHE_EVENTS; i++) {
		buffer_format(&out, "%s\"%s\":%" PRIu64, i == 0 ? "" : ",", cache_names[i], get(&metrics->cache[i]));
	}
	buffer_text(&out, "},");
	json_nodes(metrics, &out);
	json_scopes(metrics, &out);
	buffer_text(&out, "}\n");
	*text = buffer_take(&out, length);
	return *text != NULL;
}

/* ---- OpenMetrics ---- */

static void gauge(buffer *out, const char *name, const char *help, uint64_t number)
{
	openmetrics_family(out, "gauge", name, help);
	buffer_format(out, "%s %" PRIu64 "\n", name, number);
}

static void counter(buffer *out, const char *name, const char *help, const uint64_t *number)
{
	openmetrics_family(out, "counter", name, help);
	buffer_format(out, "%s_total %" PRIu64 "\n", name, get(number));
}

static void counter_pair(buffer *out, const char *name, const char *help, const uint64_t numbers[2])
{
	openmetrics_family(out, "counter", name, help);
	for (int i = 0; i < 2; i++) {
		buffer_format(out, "%s_total{connection=\"%s\"} %" PRIu64 "\n", name, connection_names[i], get(&numbers[i]));
	}
}

static void openmetrics_decisions(const http_metrics *metrics, buffer *out)
{
	openmetrics_family(out, "counter", "pgonce_decisions",
	                   "Decisions about requests: a step (run, replay, wait, pass, give-up), or the problem that "
	                   "refused one. A request "
	                   "that waits is decided again.");
	for (size_t row = 0; row < HTTP_METRICS_SCOPES_MAX; row++) {
		for (size_t i = 0; scope_shown(metrics, row) && i < HTTP_METRICS_DECISIONS; i++) {
			if (decision_name(i) == NULL) {
				continue;
			}
			buffer_text(out, "pgonce_decisions_total{scope=\"");
			openmetrics_label(out, scope_name(metrics, row));
			buffer_format(out, "\",decision=\"%s\"} %" PRIu64 "\n", decision_name(i),
			              get(&metrics->scopes[row].decisions[i]));
		}
	}
}

static void openmetrics_reports(const http_metrics *metrics, buffer *out)
{
	openmetrics_family(
	    out, "counter", "pgonce_reports",
	    "How attempts ended: complete, final (stored as a failure), too-large, release, retryable, in-doubt, "
	    "nothing.");
	for (int i = 0; i < HTTP_REPORTS; i++) {
		buffer_format(out, "pgonce_reports_total{report=\"%s\"} %" PRIu64 "\n", http_report_name((http_report)i),
		              get(&metrics->reports[i]));
	}
	counter(out, "pgonce_reports_refused", "Reports that were refused, since the attempt no longer held its intent.",
	        &metrics->reports_refused);
	counter(out, "pgonce_reports_unstored", "Reports that could not be stored.", &metrics->reports_unstored);
}

static void openmetrics_cache(const http_metrics *metrics, buffer *out)
{
	openmetrics_family(
	    out, "counter", "pgonce_cache",
	    "Copies of stored answers (once_replay_cache): hit, mismatch (422), miss (the database was asked), kept (a "
	    "copy was made), evicted (one was removed before its time), emptied (all were removed).");
	for (int i = 0; i < HTTP_CACHE_EVENTS; i++) {
		buffer_format(out, "pgonce_cache_total{event=\"%s\"} %" PRIu64 "\n", cache_names[i], get(&metrics->cache[i]));
	}
}

/* Only if there are several. */
static void openmetrics_nodes(const http_metrics *metrics, buffer *out)
{
	bool first = true;
	for (size_t row = 0; row < HTTP_METRICS_NODES_MAX; row++) {
		uint64_t connected[2];
		if (!node_known(metrics, row, connected)) {
			continue;
		}
		if (first) {
			openmetrics_family(out, "gauge", "pgonce_node_connections",
			                   "Connections to each of several nodes; 0: the node is away.");
			first = false;
		}
		for (int i = 0; i < 2; i++) {
			buffer_text(out, "pgonce_node_connections{node=\"");
			openmetrics_label(out, name_of(metrics->nodes[row].name));
			buffer_format(out, "\",connection=\"%s\"} %" PRIu64 "\n", connection_names[i], connected[i]);
		}
	}
}

static void openmetrics_database(const http_metrics *metrics, const gauges *sum, buffer *out)
{
	openmetrics_family(out, "gauge", "pgonce_connections",
	                   "Connections to the database: for claims, for reports, and more on a slow disk.");
	for (int i = 0; i < 2; i++) {
		buffer_format(out, "pgonce_connections{connection=\"%s\"} %" PRIu64 "\n", connection_names[i],
		              sum->connected[i]);
	}
	buffer_format(out, "pgonce_connections{connection=\"more\"} %" PRIu64 "\n", sum->more_connections);
	openmetrics_nodes(metrics, out);
	counter(out, "pgonce_connects", "Connections made, reconnections included.", &metrics->connects);
	counter(out, "pgonce_connect_failures", "Connections that could not be made.", &metrics->connect_failures);
	counter_pair(out, "pgonce_batches", "Batches sent with claims, and with reports; one with both counts as both.",
	             metrics->batches);
	counter_pair(out, "pgonce_operations", "Operations in those batches.", metrics->operations);
	counter(out, "pgonce_resolved_claims",
	        "Claims that a lost connection left open, and that turned out to be granted.", &metrics->resolved_claims);
	counter(out, "pgonce_resent_operations", "Operations sent again after a lost connection.", &metrics->resent);
	counter(out, "pgonce_rerouted_operations", "Operations sent to another node because the slot had moved.",
	        &metrics->rerouted);
	counter(out, "pgonce_timeouts", "Batches, and attempts to connect, that took longer than once_timeout.",
	        &metrics->timeouts);
	gauge(out, "pgonce_pending_operations", "Operations that wait for the database.", sum->pending);
	gauge(out, "pgonce_pending_bytes", "The size of the operations that wait for the database.", sum->pending_bytes);
	openmetrics_family(out, "histogram", "pgonce_database_seconds",
	                   "How long the database took for a batch, from sending to answer.");
	buffer_text(out, "# UNIT pgonce_database_seconds seconds\n");
	uint64_t count = 0;
	for (int i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
		count += get(&metrics->latency[i]);
		buffer_text(out, "pgonce_database_seconds_bucket{le=\"");
		if (i < ONCE_LATENCY_BUCKETS - 1) {
			write_seconds(out, bucket_below_us(i));
		} else {
			buffer_text(out, "+Inf");
		}
		buffer_format(out, "\"} %" PRIu64 "\n", count);
	}
	buffer_format(out, "pgonce_database_seconds_count %" PRIu64 "\npgonce_database_seconds_sum ", count);
	write_seconds(out, get(&metrics->latency_sum_us));
	buffer_text(out, "\n");
}

bool http_metrics_openmetrics(const http_metrics *metrics, char **text, size_t *length)
{
	buffer out = {.length_max = HTTP_METRICS_TEXT_MAX};
	gauges sum = sum_gauges(metrics);
	openmetrics_decisions(metrics, &out);
	openmetrics_reports(metrics, &out);
	openmetrics_cache(metrics, &out);
	gauge(&out, "pgonce_workers", "Worker processes.", sum.workers);
	gauge(&out, "pgonce_running", "Requests that the service works on, under a lease.", sum.running);
	gauge(&out, "pgonce_waiting", "Duplicates that wait for their original.", sum.waiting);
	gauge(&out, "pgonce_held", "Answers held back until they are stored.", sum.held);
	gauge(&out, "pgonce_replay_bytes", "Memory used by stored answers that are being sent.", sum.replay_bytes);
	openmetrics_database(metrics, &sum, &out);
	buffer_text(&out, "# EOF\n");
	*text = buffer_take(&out, length);
	return *text != NULL;
}
