/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_status.c: counters that all workers share, and the page that shows them
 * (once_status). lib/http counts and writes them (metrics.c).
 */
#include "ngx_http_once.h"
#include "openmetrics.h"

#define JSON_TYPE "application/json"

enum {
	COUNT_MS = 1000, /* how old the batcher's figures of another worker may be */
	ZONE_SPARE = 16 * 4096
};

static http_metrics *metrics; /* in shared memory; NULL outside of workers */
static http_metrics_worker *mine;
static const gate_main *main_conf;
static size_t rows[GATE_NODES_MAX]; /* of the nodes, if there are several */
static ngx_event_t ticker;

/* A reload keeps what was counted. */
static ngx_int_t zone_init(ngx_shm_zone_t *zone, void *old)
{
	ngx_slab_pool_t *pool = (ngx_slab_pool_t *)zone->shm.addr;

	if (old == NULL && !zone->shm.exists) {
		old = ngx_slab_calloc(pool, sizeof(http_metrics));
		if (old == NULL) {
			return NGX_ERROR;
		}
		pool->data = old;
	}
	zone->data = old == NULL ? pool->data : old;
	http_metrics_init(zone->data);
	return NGX_OK;
}

ngx_int_t gate_status_zone(ngx_conf_t *cf, gate_main *conf)
{
	ngx_str_t name = ngx_string("once_status");

	conf->zone = ngx_shared_memory_add(cf, &name, ngx_align(sizeof(http_metrics) * 9 / 8, 4096) + ZONE_SPARE,
	                                   &ngx_http_once_module);
	if (conf->zone == NULL) {
		return NGX_ERROR;
	}
	conf->zone->init = zone_init;
	return NGX_OK;
}

static void add(once_batcher_statistics *sum, const once_batcher_statistics *node)
{
	sum->pending += node->pending;
	sum->pending_bytes += node->pending_bytes;
	sum->connects += node->connects;
	sum->connect_failures += node->connect_failures;
	for (int i = 0; i < 2; i++) {
		sum->batches[i] += node->batches[i];
		sum->operations[i] += node->operations[i];
	}
	sum->resolved_claims += node->resolved_claims;
	sum->resent += node->resent;
	sum->timeouts += node->timeouts;
	for (int i = 0; i < ONCE_LATENCY_BUCKETS; i++) {
		sum->latency[i] += node->latency[i];
	}
	sum->latency_sum_us += node->latency_sum_us;
	sum->more_connections += node->more_connections;
}

static void count_batchers(void)
{
	ngx_uint_t count = gate_node_count();
	once_batcher_statistics sum = {0}, node;

	if (mine == NULL || count == 0) {
		return;
	}
	if (count == 1) {
		once_batcher_count(gate_batcher(0), &sum);
	}
	for (ngx_uint_t i = 0; count > 1 && i < count; i++) {
		once_batcher_count(gate_batcher(i), &node);
		http_metrics_connected(mine, rows[i], node.connected);
		add(&sum, &node); /* without the two connections: they are counted by node */
	}
	http_metrics_batched(metrics, mine, &sum);
}

static void on_tick(ngx_event_t *event)
{
	count_batchers();
	ngx_add_timer(event, COUNT_MS);
}

void gate_status_start(gate_main *conf)
{
	gate_node_conf *nodes = conf->nodes.elts;

	main_conf = conf;
	metrics = conf->zone->data;
	mine = http_metrics_enter(metrics, (size_t)ngx_process_slot, (uint64_t)ngx_pid);
	for (ngx_uint_t i = 0; conf->nodes.nelts > 1 && i < conf->nodes.nelts; i++) {
		rows[i] = http_metrics_node_row(metrics, gate_text(nodes[i].name));
	}
	count_batchers(); /* shows the nodes before they are connected */
	gate_event_init(&ticker, on_tick);
	ticker.cancelable = 1;
	ngx_add_timer(&ticker, COUNT_MS);
}

void gate_status_stop(void)
{
	if (mine == NULL) {
		return;
	}
	count_batchers();
	http_metrics_leave(mine);
	mine = NULL;
	if (ticker.timer_set) {
		ngx_del_timer(&ticker);
	}
}

void gate_count_step(const char *scope, http_step step, http_problem problem)
{
	if (metrics != NULL) {
		size_t row = http_metrics_scope_row(metrics, (http_text){.data = scope, .length = ngx_strlen(scope)});

		http_metrics_decided(metrics, row, step, problem);
	}
}

void gate_count_report(http_report report)
{
	if (metrics != NULL) {
		http_metrics_add(&metrics->reports[report], 1);
	}
}

void gate_count_trouble(ngx_uint_t refused)
{
	if (metrics != NULL) {
		http_metrics_add(refused ? &metrics->reports_refused : &metrics->reports_unstored, 1);
	}
}

/* Adding a negative number wraps to a subtraction. */
void gate_count_gauge(ngx_int_t running, ngx_int_t waiting, ngx_int_t held)
{
	if (mine != NULL) {
		http_metrics_add(&mine->running, (uint64_t)running);
		http_metrics_add(&mine->waiting, (uint64_t)waiting);
		http_metrics_add(&mine->held, (uint64_t)held);
	}
}

void gate_count_replay_bytes(ngx_int_t bytes)
{
	if (mine != NULL) {
		http_metrics_add(&mine->replay_bytes, (uint64_t)bytes);
	}
}

void gate_count_cache(http_cache_event event)
{
	if (metrics != NULL) {
		http_metrics_add(&metrics->cache[event], 1);
	}
}

void gate_count_rerouted(void)
{
	if (metrics != NULL) {
		http_metrics_add(&metrics->rerouted, 1);
	}
}

/* ---- the page ---- */

/* The format that the request's Accept header asks for, if it has one. */
static http_text accepted(ngx_http_request_t *r)
{
	static ngx_str_t name = ngx_string("http_accept");
	ngx_http_variable_value_t *accept;
	u_char lower[16];

	accept = ngx_http_get_variable(r, &name, ngx_hash_strlow(lower, name.data, name.len));
	return accept == NULL || accept->not_found ? (http_text){.data = "", .length = 0}
	                                           : (http_text){.data = (char *)accept->data, .length = accept->len};
}

static ngx_uint_t wants_text(http_text accept)
{
	u_char *end = (u_char *)accept.data + accept.length;

	return ngx_strlcasestrn((u_char *)accept.data, end, (u_char *)"text/plain", 9) != NULL;
}

static void free_text(void *text)
{
	free(text);
}

/* Its text stays in place until the request is over. */
static ngx_int_t send_page(ngx_http_request_t *r, ngx_uint_t status, const char *type, char *text, size_t length)
{
	ngx_http_complex_value_t page = {.value = {.len = length, .data = (u_char *)text}};
	ngx_str_t content_type = {.len = ngx_strlen(type), .data = (u_char *)(uintptr_t)type};

	return ngx_http_send_response(r, status, &content_type, &page);
}

static ngx_uint_t is_connected(ngx_uint_t node)
{
	once_batcher_statistics statistics;

	once_batcher_count(gate_batcher(node), &statistics);
	return statistics.connected[0];
}

/* Which of several nodes are away, by their names. */
static void list_away(buffer *out)
{
	const gate_node_conf *nodes = main_conf->nodes.elts;
	ngx_uint_t away = 0;

	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		if (!is_connected(i)) {
			buffer_text(out, away++ == 0 ? ", \"away\": [" : ", ");
			buffer_json_utf8(out, gate_text(nodes[i].name));
		}
	}
	buffer_text(out, away == 0 ? "" : "]");
}

/*
 * Is this worker connected to the database, or to any of several nodes, so that it serves its
 * tenants? Answered from memory: cheap, and right if the database is away.
 */
ngx_int_t gate_ready_handler(ngx_http_request_t *r)
{
	ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool, 0);
	buffer out = {.length_max = HTTP_METRICS_TEXT_MAX};
	ngx_uint_t ready = 0;
	size_t length = 0;

	if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD))) {
		return NGX_HTTP_NOT_ALLOWED;
	}
	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		ready |= is_connected(i);
	}
	buffer_text(&out, ready ? "{\"ready\": true" : "{\"ready\": false, \"reason\": \"no connection to the database\"");
	if (gate_node_count() > 1) {
		list_away(&out);
	}
	buffer_text(&out, "}\n");
	if (cleanup == NULL || (cleanup->data = buffer_take(&out, &length)) == NULL ||
	    gate_header_push(&r->headers_out.headers, GATE_TEXT("Cache-Control"), GATE_TEXT("no-store")) == NULL) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	cleanup->handler = free_text;
	return send_page(r, ready ? NGX_HTTP_OK : NGX_HTTP_SERVICE_UNAVAILABLE, JSON_TYPE, cleanup->data, length);
}

ngx_int_t gate_status_handler(ngx_http_request_t *r)
{
	gate_location *location = ngx_http_get_module_loc_conf(r, ngx_http_once_module);
	ngx_pool_cleanup_t *cleanup = ngx_pool_cleanup_add(r->pool, 0);
	http_text accept = accepted(r);
	ngx_uint_t open = openmetrics_accepted(accept);
	ngx_uint_t json = location->status == 2 || (location->status == 1 && !open && !wants_text(accept));
	char *text = NULL;
	size_t length = 0;

	if (!(r->method & (NGX_HTTP_GET | NGX_HTTP_HEAD))) {
		return NGX_HTTP_NOT_ALLOWED;
	}
	if (cleanup == NULL || metrics == NULL) {
		return NGX_HTTP_SERVICE_UNAVAILABLE;
	}
	count_batchers();
	if (json) {
		(void)http_metrics_json(metrics, &text, &length);
	} else if (http_metrics_openmetrics(metrics, &text, &length) && !open) {
		text = openmetrics_to_prometheus(text, &length);
	}
	if (text == NULL) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	cleanup->handler = free_text;
	cleanup->data = text;
	return send_page(r, NGX_HTTP_OK, json ? JSON_TYPE : open ? OPENMETRICS_TYPE : PROMETHEUS_TYPE, text, length);
}
