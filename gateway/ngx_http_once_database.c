/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_database.c: a worker's batchers on nginx's events and timers: one for the database,
 * or for each of several nodes. libpq opens and closes its sockets itself, so nginx gets each only
 * between watch and forget.
 */
#include "ngx_http_once.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum {
	CONNECTIONS = 4 /* two, and two more where commits take long */
};

typedef struct gate_node gate_node;

typedef struct gate_link {
	ngx_connection_t *watched; /* NULL: none */
	gate_node *node;
	int number;
} gate_link;

struct gate_node {
	once_batcher *batcher;
	gate_link links[CONNECTIONS];
	ngx_event_t timer;
	ngx_event_t deferred;
	uint64_t losses; /* those reported */
};

/* A process has one worker; nginx has no other place for state of a process. */
static struct {
	gate_node *nodes;
	ngx_uint_t made;  /* how many have a batcher, */
	ngx_uint_t count; /* and may be used: 0 when the worker ends */
	char owner[128];
	ngx_log_t *log;
	void (*lost)(void);
} worker;

#define NODE_AT(event, member) ((gate_node *)((u_char *)(event)-offsetof(gate_node, member)))

void gate_database_on_loss(void (*lost)(void))
{
	worker.lost = lost;
}

/* Connections are lost in the events below, and nowhere else. */
static void heed_losses(gate_node *node)
{
	once_batcher_statistics statistics;

	if (worker.count == 0 || worker.lost == NULL) {
		return;
	}
	once_batcher_count(node->batcher, &statistics);
	if (statistics.losses != node->losses) {
		node->losses = statistics.losses;
		worker.lost();
	}
}

static void on_ready(ngx_event_t *event)
{
	ngx_connection_t *c = event->data;
	gate_link *link = c->data;

	once_batcher_ready(link->node->batcher, link->number, !event->write, event->write);
	heed_losses(link->node);
}

static void on_timer(ngx_event_t *event)
{
	gate_node *node = NODE_AT(event, timer);

	once_batcher_tick(node->batcher);
	heed_losses(node);
}

static void on_deferred(ngx_event_t *event)
{
	gate_node *node = NODE_AT(event, deferred);

	once_batcher_flush(node->batcher);
	heed_losses(node);
}

static void unwatch(gate_link *link)
{
	ngx_connection_t *c = link->watched;

	if (c == NULL) {
		return;
	}
	link->watched = NULL;
	if (fcntl(c->fd, F_GETFD) == -1) {
		/* libpq has closed it at the end of the connection, and the kernel has removed it. */
		c->read->active = 0;
		c->write->active = 0;
	} else if (ngx_del_conn) {
		ngx_del_conn(c, 0);
	} else {
		if (c->read->active) {
			ngx_del_event(c->read, NGX_READ_EVENT, 0);
		}
		if (c->write->active) {
			ngx_del_event(c->write, NGX_WRITE_EVENT, 0);
		}
	}
	if (c->read->posted) {
		ngx_delete_posted_event(c->read);
	}
	if (c->write->posted) {
		ngx_delete_posted_event(c->write);
	}
	/* Never ngx_close_connection: the descriptor belongs to libpq. */
	ngx_free_connection(c);
	c->fd = (ngx_socket_t)-1;
}

static void unwatch_all(gate_node *node)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		unwatch(&node->links[i]);
	}
}

static void forget(void *context, int connection, int fd)
{
	gate_node *node = context;

	(void)fd;
	unwatch(&node->links[connection]);
}

static ngx_int_t set_event(ngx_event_t *event, ngx_int_t kind, bool wanted)
{
	if (wanted && !event->active) {
		return ngx_add_event(event, kind, NGX_LEVEL_EVENT);
	}
	if (!wanted && event->active) {
		return ngx_del_event(event, kind, 0);
	}
	return NGX_OK;
}

/*
 * Nothing is watched if nginx has no connection left or epoll no memory. The batcher's timeout then
 * ends the waiting operations, and it connects again.
 */
static void watch(void *context, int connection, int fd, bool read, bool write)
{
	gate_node *node = context;
	gate_link *link = &node->links[connection];
	ngx_connection_t *c = link->watched;

	if (c != NULL && c->fd != fd) {
		unwatch(link);
		c = NULL;
	}
	if (c == NULL) {
		c = ngx_get_connection(fd, worker.log);
		if (c == NULL) {
			return;
		}
		c->data = link;
		c->log = worker.log;
		c->read->log = worker.log;
		c->write->log = worker.log;
		c->read->handler = on_ready;
		c->write->handler = on_ready;
		link->watched = c;
	}
	if (set_event(c->read, NGX_READ_EVENT, read) != NGX_OK || set_event(c->write, NGX_WRITE_EVENT, write) != NGX_OK) {
		ngx_log_error(NGX_LOG_ALERT, worker.log, 0, "once: the database's socket cannot be watched");
	}
}

static void timer(void *context, int64_t due_ms, bool idle)
{
	int64_t now = (int64_t)ngx_current_msec;
	gate_node *node = context;

	/* Deleted first: nginx keeps a timer that differs by less than 300 ms. */
	if (node->timer.timer_set) {
		ngx_del_timer(&node->timer);
	}
	if (due_ms == ONCE_NEVER) {
		return;
	}
	/* An ending worker waits for timers that cannot be cancelled, so a reload loses no report. */
	node->timer.cancelable = idle;
	/* due_ms may be INT64_MIN, from which nothing can be subtracted. */
	ngx_add_timer(&node->timer, due_ms <= now ? 0 : (ngx_msec_t)(due_ms - now));
}

static void defer(void *context)
{
	gate_node *node = context;

	ngx_post_event(&node->deferred, &ngx_posted_events);
}

static int64_t now_ms(void *context)
{
	(void)context;
	return (int64_t)ngx_current_msec;
}

void gate_event_init(ngx_event_t *event, ngx_event_handler_pt handler)
{
	static ngx_connection_t nobody = {.fd = (ngx_socket_t)-1};

	event->handler = handler;
	event->log = ngx_cycle->log;
	event->data = &nobody; /* nginx's debug messages look for a descriptor there */
}

static ngx_int_t start_node(gate_node *node, const gate_main *conf, const char *conninfo)
{
	once_loop loop = {
	    .context = node, .watch = watch, .forget = forget, .timer = timer, .defer = defer, .now_ms = now_ms};
	once_batcher_options options = {.operation_timeout_ms = (int64_t)conf->timeout_ms,
	                                .answer_timeout_ms = (int64_t)conf->timeout_ms,
	                                .connect_timeout_ms = (int64_t)conf->timeout_ms,
	                                .batch_age_ms = (int64_t)conf->batch_age_ms,
	                                .batch_max = conf->batch_max,
	                                .batch_bytes_max = conf->batch_bytes_max,
	                                .prepare = conf->prepare == 1,
	                                .impatient = true,
	                                .caches = conf->cache_zone != NULL,
	                                .divided = conf->nodes.nelts > 1,
	                                .connections_max = CONNECTIONS};
	once_error *error = NULL;

	gate_event_init(&node->timer, on_timer);
	gate_event_init(&node->deferred, on_deferred);
	for (int i = 0; i < CONNECTIONS; i++) {
		node->links[i] = (gate_link){.node = node, .number = i};
	}
	if (once_batcher_open(conninfo, &loop, &options, &node->batcher, &error) != ONCE_OK) {
		ngx_log_error(NGX_LOG_EMERG, worker.log, 0, "once: %s", once_error_message(error));
		once_error_free(error);
		return NGX_ERROR;
	}
	return NGX_OK;
}

ngx_int_t gate_database_start(ngx_cycle_t *cycle, gate_main *conf)
{
	gate_node_conf *nodes = conf->nodes.elts;

	worker.log = cycle->log;
	snprintf(worker.owner, sizeof(worker.owner), "%.*s:%d", (int)ngx_min(cycle->hostname.len, 100),
	         (const char *)cycle->hostname.data, (int)ngx_pid);
	worker.nodes = ngx_calloc(conf->nodes.nelts * sizeof(gate_node), cycle->log);
	if (worker.nodes == NULL) {
		return NGX_ERROR;
	}
	for (; worker.made < conf->nodes.nelts; worker.made++) {
		if (start_node(&worker.nodes[worker.made], conf, (const char *)nodes[worker.made].conninfo.data) != NGX_OK) {
			return NGX_ERROR;
		}
	}
	worker.count = worker.made;
	return NGX_OK;
}

static void stop_node(gate_node *node)
{
	unwatch_all(node); /* before libpq closes the descriptors */
	once_batcher_close(node->batcher);
	unwatch_all(node);
	if (node->timer.timer_set) {
		ngx_del_timer(&node->timer);
	}
	if (node->deferred.posted) {
		ngx_delete_posted_event(&node->deferred);
	}
}

void gate_database_stop(void)
{
	worker.count = 0; /* the callbacks of operations that end now submit no others */
	for (ngx_uint_t i = 0; i < worker.made; i++) {
		stop_node(&worker.nodes[i]);
	}
	worker.made = 0;
	ngx_free(worker.nodes);
	worker.nodes = NULL;
}

ngx_uint_t gate_node_count(void)
{
	return worker.count;
}

once_batcher *gate_batcher(ngx_uint_t node)
{
	return node < worker.count ? worker.nodes[node].batcher : NULL;
}

const char *gate_owner(void)
{
	return worker.owner;
}
