/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_nodes.c: which of several nodes serves a tenant (once_nodes). The nodes decide:
 * each refuses tenants that it does not serve. This file only knows what they said last, so a
 * mistake costs a round trip, and never an effect. With one node nothing here is asked.
 */
#include "ngx_http_once.h"

#include <stdio.h>

enum {
	LOOK_MS = 1000,
	TENANTS = 4096 /* whose slots a worker remembers */
};

/* Learnt from a node: once.slot_of may be the installation's own function. */
typedef struct gate_tenant {
	ngx_int_t slot;
	size_t length;
	u_char name[];
} gate_tenant;

static struct {
	/* Those that wait: for this round of questions, for the next one, for any node at all. */
	ngx_queue_t now;
	ngx_queue_t next;
	ngx_queue_t any;
	ngx_uint_t unanswered;             /* of this round */
	ngx_uint_t silent[GATE_NODES_MAX]; /* nodes that did not answer last, as logged */
	const gate_node_conf *confs;
	ngx_uint_t wanted; /* another round, even if no attempt waits for it */
	ngx_msec_t looked;
	ngx_event_t turn; /* starts a round: those that wait since this turn of the loop share it */
	gate_tenant *tenants[TENANTS];
} nodes;

/* ---- slots of tenants ---- */

static gate_tenant **place_of(const char *tenant)
{
	return &nodes.tenants[ngx_murmur_hash2((u_char *)(uintptr_t)tenant, ngx_strlen(tenant)) % TENANTS];
}

static ngx_int_t recall(const char *tenant)
{
	const gate_tenant *known = *place_of(tenant);
	size_t length = ngx_strlen(tenant);

	return known != NULL && known->length == length && ngx_memcmp(known->name, tenant, length) == 0 ? known->slot
	                                                                                                : GATE_NO_SLOT;
}

/* In place of another tenant, which is asked for again. */
static void remember(const char *tenant, ngx_int_t slot)
{
	gate_tenant **place = place_of(tenant);
	size_t length = ngx_strlen(tenant);
	gate_tenant *known = ngx_alloc(sizeof(*known) + length, ngx_cycle->log);

	if (known != NULL) {
		known->slot = slot;
		known->length = length;
		ngx_memcpy(known->name, tenant, length);
		ngx_free(*place);
		*place = known;
	}
}

/* ---- the node of a slot ---- */

/*
 * The node that has the slot open with the highest epoch that any node says. If that epoch is
 * closed, a node with a lower one lacks what was done since; if two have it, one is a copy.
 */
ngx_int_t gate_route_node(const gate_attempt *attempt, ngx_uint_t *node, int64_t *epoch)
{
	ngx_uint_t count = gate_node_count(), owners = 0;

	*node = 0;
	*epoch = 0;
	if (count <= 1) {
		return count == 1 ? NGX_OK : NGX_DECLINED;
	}
	for (ngx_uint_t i = 0; i < count; i++) {
		bool open;
		int64_t said = once_batcher_slot_epoch(gate_batcher(i), (int)attempt->route.slot, &open);

		if (said > *epoch) {
			*epoch = said;
			owners = 0;
		}
		if (open && said == *epoch) {
			*node = i;
			owners++;
		}
	}
	return owners == 1 ? NGX_OK : NGX_DECLINED;
}

once_batcher *gate_batcher_of(const gate_attempt *attempt)
{
	ngx_uint_t node;
	int64_t epoch;

	return gate_route_node(attempt, &node, &epoch) == NGX_OK ? gate_batcher(node) : NULL;
}

static ngx_uint_t is_connected(ngx_uint_t node)
{
	once_batcher_statistics statistics;

	once_batcher_count(gate_batcher(node), &statistics);
	return statistics.connected[0];
}

once_code gate_route_fault(const gate_attempt *attempt)
{
	if (attempt->route.slot == GATE_NO_SLOT && attempt->route.fault != ONCE_OK) {
		return attempt->route.fault;
	}
	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		if (!is_connected(i)) {
			return ONCE_CONNECTION; /* the slot may be open there */
		}
	}
	return ONCE_SLOT_CLOSED;
}

/* ---- rounds: all nodes are asked which slots are open ---- */

static void take(ngx_queue_t *from, ngx_queue_t *to)
{
	if (!ngx_queue_empty(from)) {
		ngx_queue_add(to, from);
		ngx_queue_init(from);
	}
}

/* Those that these calls add wait for another round. */
static void wake(ngx_queue_t *waiting)
{
	ngx_queue_t awake;

	ngx_queue_init(&awake);
	take(waiting, &awake);
	while (!ngx_queue_empty(&awake)) {
		gate_attempt *attempt = ngx_queue_data(ngx_queue_head(&awake), gate_attempt, route.queue);

		ngx_queue_remove(&attempt->route.queue);
		attempt->route.queued = 0;
		attempt->route.woken(attempt);
	}
}

static void end_round(void)
{
	wake(&nodes.now);
	wake(&nodes.any);
	if (gate_node_count() == 0) {
		wake(&nodes.next); /* the worker ends */
	} else if (nodes.wanted || !ngx_queue_empty(&nodes.next)) {
		ngx_post_event(&nodes.turn, &ngx_posted_events);
	}
}

/*
 * A node has opened the slot after the one that refused it had closed it: so a node that is slow to
 * answer holds up no other's tenants.
 */
static ngx_uint_t is_found(const gate_attempt *attempt)
{
	ngx_uint_t node;
	int64_t epoch;

	return attempt->route.closed > 0 && gate_route_node(attempt, &node, &epoch) == NGX_OK &&
	       epoch > attempt->route.closed;
}

static void wake_found(void)
{
	ngx_queue_t found, *next;

	ngx_queue_init(&found);
	for (ngx_queue_t *at = ngx_queue_head(&nodes.now); at != ngx_queue_sentinel(&nodes.now); at = next) {
		next = ngx_queue_next(at);
		if (is_found(ngx_queue_data(at, gate_attempt, route.queue))) {
			ngx_queue_remove(at);
			ngx_queue_insert_tail(&found, at);
		}
	}
	wake(&found);
}

/* Once when it falls silent, and once when it is back: requests for its tenants say no more. */
static void note(ngx_uint_t node, const once_error *error)
{
	if (gate_node_count() == 0 || nodes.silent[node] == (error != NULL)) {
		return;
	}
	nodes.silent[node] = error != NULL;
	if (error == NULL) {
		ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0, "once: node %V answers again", &nodes.confs[node].name);
	} else {
		ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0, "once: node %V does not answer: %s", &nodes.confs[node].name,
		              once_error_message(error));
	}
}

static void on_slots(void *argument, const once_answer *answer, const once_error *error)
{
	note((ngx_uint_t)(uintptr_t)argument, error);
	assert(nodes.unanswered > 0);
	if (--nodes.unanswered == 0) {
		end_round();
	} else if (answer != NULL) {
		wake_found();
		wake(&nodes.any);
	}
}

static void on_turn(ngx_event_t *event)
{
	(void)event;
	if (nodes.unanswered > 0) {
		return; /* its end posts this again */
	}
	take(&nodes.next, &nodes.now);
	nodes.wanted = 0;
	nodes.looked = ngx_current_msec;
	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		/* A node that is known to be away ends this at once. */
		nodes.unanswered += once_batcher_slots(gate_batcher(i), on_slots, (void *)(uintptr_t)i, NULL, NULL) == ONCE_OK;
	}
	if (nodes.unanswered == 0) {
		end_round();
	}
}

void gate_nodes_refresh(void)
{
	if (gate_node_count() > 1) {
		nodes.wanted = 1;
		ngx_post_event(&nodes.turn, &ngx_posted_events);
	}
}

void gate_nodes_look(void)
{
	if (ngx_current_msec - nodes.looked >= LOOK_MS) {
		gate_nodes_refresh();
	}
}

void gate_nodes_start(const gate_main *conf)
{
	nodes.confs = conf->nodes.elts;
	ngx_queue_init(&nodes.now);
	ngx_queue_init(&nodes.next);
	ngx_queue_init(&nodes.any);
	gate_event_init(&nodes.turn, on_turn);
	gate_nodes_refresh();
}

/* An answer that is under way may be older than the question: it waits for the next round. */
static void wait_in(ngx_queue_t *queue, gate_attempt *attempt, gate_then woken)
{
	assert(!attempt->route.queued && attempt->route.operation == NULL);
	attempt->route.woken = woken;
	attempt->route.queued = 1;
	ngx_queue_insert_tail(queue, &attempt->route.queue);
	ngx_post_event(&nodes.turn, &ngx_posted_events);
}

void gate_route_ask(gate_attempt *attempt, gate_then then)
{
	if (gate_node_count() == 0) {
		then(attempt); /* the worker ends */
	} else {
		wait_in(&nodes.next, attempt, then);
	}
}

/* ---- the slot of an attempt ---- */

static void ask_slot(gate_attempt *attempt);

/* With the slot, or without it if no node has said it. */
static void go_on(gate_attempt *attempt)
{
	if (attempt->route.slot != GATE_NO_SLOT && gate_batcher_of(attempt) == NULL) {
		gate_route_ask(attempt, attempt->route.then);
	} else {
		attempt->route.then(attempt);
	}
}

static void on_slot(void *argument, const once_answer *answer, const once_error *error)
{
	gate_attempt *attempt = argument;

	attempt->route.operation = NULL;
	if (answer != NULL) {
		attempt->route.slot = once_answer_slot(answer);
		remember(attempt->intent.tenant, attempt->route.slot);
		go_on(attempt);
		return;
	}
	attempt->route.fault = error == NULL ? ONCE_NO_MEMORY : once_error_code(error);
	attempt->route.asked++;
	if (attempt->route.fault == ONCE_CONNECTION && attempt->route.asked < gate_node_count()) {
		ask_slot(attempt);
		return;
	}
	ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0, "once: no node told the slot of a tenant: %s",
	              once_error_message(error));
	go_on(attempt);
}

static void ask_slot(gate_attempt *attempt)
{
	ngx_uint_t node = (attempt->route.first + attempt->route.asked) % gate_node_count();
	once_error *error = NULL;

	if (once_batcher_slot_of(gate_batcher(node), attempt->intent.tenant, on_slot, attempt, &attempt->route.operation,
	                         &error) != ONCE_OK) {
		on_slot(attempt, NULL, error);
		once_error_free(error);
	}
}

/* The one with the least to do, since a node that no longer answers has ever more. */
static ngx_uint_t find_connected(void)
{
	ngx_uint_t node = gate_node_count();
	size_t least = 0;

	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		once_batcher_statistics statistics;

		once_batcher_count(gate_batcher(i), &statistics);
		if (statistics.connected[0] && (node == gate_node_count() || statistics.pending < least)) {
			node = i;
			least = statistics.pending;
		}
	}
	return node;
}

/* A node has answered, or none does. */
static void ask_first(gate_attempt *attempt)
{
	ngx_uint_t node = find_connected();

	attempt->route.first = node < gate_node_count() ? node : 0;
	attempt->route.asked = 0;
	if (gate_node_count() == 0) {
		attempt->route.then(attempt);
	} else {
		ask_slot(attempt);
	}
}

void gate_route_find(gate_attempt *attempt, gate_then then)
{
	gate_route *route = &attempt->route;

	if (gate_node_count() <= 1) {
		then(attempt);
		return;
	}
	route->then = then;
	route->fault = ONCE_OK;
	if (route->slot == GATE_NO_SLOT) {
		route->slot = recall(attempt->intent.tenant);
	}
	if (route->slot != GATE_NO_SLOT) {
		go_on(attempt);
	} else if (find_connected() < gate_node_count()) {
		ask_first(attempt);
	} else {
		wait_in(&nodes.any, attempt, ask_first);
	}
}

/*
 * The slot and its epoch that the node itself says: the last of the detail, since a tenant's name
 * may look like them. An installation may have been divided again, with another hash.
 */
static void learn(gate_attempt *attempt, const char *detail)
{
	const char *at = NULL;
	int slot = GATE_NO_SLOT;
	long long epoch = 0;

	attempt->route.closed = 0;
	for (const char *next = detail; (next = strstr(next, "; slot=")) != NULL; next++) {
		at = next;
	}
	if (at == NULL || sscanf(at, "; slot=%d epoch=%lld", &slot, &epoch) != 2 || slot < 0 || slot >= ONCE_SLOTS) {
		return;
	}
	attempt->route.closed = epoch;
	if (slot != attempt->route.slot) {
		attempt->route.slot = slot;
		remember(attempt->intent.tenant, slot);
	}
}

ngx_uint_t gate_route_moved(gate_attempt *attempt, const once_error *error)
{
	if (gate_node_count() <= 1 || once_error_code(error) != ONCE_SLOT_CLOSED || attempt->route.moved) {
		return 0;
	}
	attempt->route.moved = 1;
	learn(attempt, once_error_detail(error));
	return 1;
}

void gate_route_stop(gate_attempt *attempt)
{
	if (attempt->route.queued) {
		ngx_queue_remove(&attempt->route.queue);
		attempt->route.queued = 0;
	}
	once_operation_forget(attempt->route.operation);
	attempt->route.operation = NULL;
}
