/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_database.c: a worker's batcher on nginx's events and timers. libpq opens and closes
 * its sockets itself, so nginx gets each only between watch and forget.
 */
#include "ngx_http_once.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum {
	CONNECTIONS = 2
};

typedef struct gate_link {
	ngx_connection_t *watched; /* NULL: none */
	int number;
} gate_link;

/* A process has one worker; nginx has no other place for state of a process. */
static struct {
	once_batcher *batcher;
	gate_link links[CONNECTIONS];
	ngx_event_t timer;
	ngx_event_t deferred;
	char owner[128];
	ngx_log_t *log;
	uint64_t losses; /* those reported */
	void (*lost)(void);
} worker;

void gate_database_on_loss(void (*lost)(void))
{
	worker.lost = lost;
}

/* Connections are lost in the events below, and nowhere else. */
static void heed_losses(void)
{
	once_batcher_statistics statistics;

	if (worker.batcher == NULL || worker.lost == NULL) {
		return;
	}
	once_batcher_count(worker.batcher, &statistics);
	if (statistics.losses != worker.losses) {
		worker.losses = statistics.losses;
		worker.lost();
	}
}

static void on_ready(ngx_event_t *event)
{
	ngx_connection_t *c = event->data;
	gate_link *link = c->data;

	once_batcher_ready(worker.batcher, link->number, !event->write, event->write);
	heed_losses();
}

static void on_timer(ngx_event_t *event)
{
	(void)event;
	once_batcher_tick(worker.batcher);
	heed_losses();
}

static void on_deferred(ngx_event_t *event)
{
	(void)event;
	once_batcher_flush(worker.batcher);
	heed_losses();
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

static void unwatch_all(void)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		unwatch(&worker.links[i]);
	}
}

static void forget(void *context, int connection, int fd)
{
	(void)context, (void)fd;
	unwatch(&worker.links[connection]);
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
	gate_link *link = &worker.links[connection];
	ngx_connection_t *c = link->watched;

	(void)context;
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

	(void)context;
	/* Deleted first: nginx keeps a timer that differs by less than 300 ms. */
	if (worker.timer.timer_set) {
		ngx_del_timer(&worker.timer);
	}
	if (due_ms == ONCE_NEVER) {
		return;
	}
	/* An ending worker waits for timers that cannot be cancelled, so a reload loses no report. */
	worker.timer.cancelable = idle;
	/* due_ms may be INT64_MIN, from which nothing can be subtracted. */
	ngx_add_timer(&worker.timer, due_ms <= now ? 0 : (ngx_msec_t)(due_ms - now));
}

static void defer(void *context)
{
	(void)context;
	ngx_post_event(&worker.deferred, &ngx_posted_events);
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

ngx_int_t gate_database_start(ngx_cycle_t *cycle, gate_main *conf)
{
	once_loop loop = {
	    .context = &worker, .watch = watch, .forget = forget, .timer = timer, .defer = defer, .now_ms = now_ms};
	once_batcher_options options = {.operation_timeout_ms = (int64_t)conf->timeout_ms,
	                                .answer_timeout_ms = (int64_t)conf->timeout_ms,
	                                .connect_timeout_ms = (int64_t)conf->timeout_ms,
	                                .batch_age_ms = (int64_t)conf->batch_age_ms,
	                                .batch_max = conf->batch_max,
	                                .batch_bytes_max = conf->batch_bytes_max,
	                                .prepare = conf->prepare == 1,
	                                .impatient = true,
	                                .caches = conf->cache_zone != NULL};
	once_error *error = NULL;

	worker.log = cycle->log;
	gate_event_init(&worker.timer, on_timer);
	gate_event_init(&worker.deferred, on_deferred);
	for (int i = 0; i < CONNECTIONS; i++) {
		worker.links[i] = (gate_link){.number = i};
	}
	snprintf(worker.owner, sizeof(worker.owner), "%.*s:%d", (int)ngx_min(cycle->hostname.len, 100),
	         (const char *)cycle->hostname.data, (int)ngx_pid);
	if (once_batcher_open((const char *)conf->conninfo.data, &loop, &options, &worker.batcher, &error) != ONCE_OK) {
		ngx_log_error(NGX_LOG_EMERG, cycle->log, 0, "once: %s", once_error_message(error));
		once_error_free(error);
		return NGX_ERROR;
	}
	return NGX_OK;
}

void gate_database_stop(void)
{
	once_batcher *batcher = worker.batcher;

	if (batcher == NULL) {
		return;
	}
	worker.batcher = NULL;
	unwatch_all(); /* before libpq closes the descriptors */
	once_batcher_close(batcher);
	unwatch_all();
	if (worker.timer.timer_set) {
		ngx_del_timer(&worker.timer);
	}
	if (worker.deferred.posted) {
		ngx_delete_posted_event(&worker.deferred);
	}
}

once_batcher *gate_batcher(void)
{
	return worker.batcher;
}

const char *gate_owner(void)
{
	return worker.owner;
}
