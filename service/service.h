/* SPDX-License-Identifier: PostgreSQL */
/*
 * service.h: what every long-running job of the command (a relay, a consumer) shares: its name in
 * the log, the wish that it stop, and how long to wait before trying again. Jobs run one to a
 * thread; everything here may be called from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Who speaks: kind "relay", name "orders". Borrowed; the caller keeps it for the job's life. */
typedef struct service {
	const char *kind;
	const char *name;
} service;

typedef enum service_level {
	SERVICE_ERROR,   /* somebody has to act */
	SERVICE_WARNING, /* it goes on, but look */
	SERVICE_INFO,    /* a change of state: started, connected, took over */
	SERVICE_DEBUG    /* each batch */
} service_level;

/*
 * From which level on lines are written; SERVICE_INFO at first. Call before the first job starts.
 */
void service_log_level(service_level level);
/*
 * One line to stderr, written by one write(2): "2026-11-21T12:00:00.123Z level=info relay=orders
 * event=connected ...". `event` is a short fixed word; the format gives key=value pairs (values
 * with spaces in double quotes: service_quote). Never a payload.
 */
__attribute__((format(printf, 4, 5))) void service_log(const service *service, service_level level, const char *event,
                                                       const char *format, ...);
/*
 * text in double quotes, quotes, backslashes and control characters escaped, cut at 1,000 bytes; in
 * `buffer`, which is returned.
 */
#define SERVICE_QUOTE_BYTES 2048
const char *service_quote(const char *text, char buffer[SERVICE_QUOTE_BYTES]);

/*
 * Stopping. service_stop_install makes SIGTERM and SIGINT ask for it (a second one ends the process
 * at once) and ignores SIGPIPE; a job that fails for good asks for it by service_stop. False: errno
 * says why.
 */
bool service_stop_install(void);
void service_stop(void);
bool service_stopping(void);
/* Becomes readable, and stays so, when stopping: for poll(2). */
int service_stop_fd(void);
/* Sleeps, but wakes when stopping. True when stopping. */
bool service_sleep(int64_t milliseconds);

/*
 * Reloading. Once service_stop_install was called SIGHUP ends nothing: it makes service_reload_fd
 * readable, for poll(2), until service_reload_take has said true for it. Who reloads is the
 * process's own business.
 */
int service_reload_fd(void);
bool service_reload_take(void);
/* How often it has said true. */
int service_reloads(void);
/* service_sleep, which wakes for a reload as well. */
bool service_rest(int64_t milliseconds);
/*
 * Takes service_stop back, after all jobs have ended by it, so that they can be started anew.
 * False: a signal has asked for the end, too, which then is it.
 */
bool service_go_on(void);

/*
 * Readiness, for /once/ready: does each job that has begun have its database, as far as it knows,
 * and get what it waits for? No, until one has begun. +1: it begins, is connected, is stalled; -1:
 * it has ended, has no connection any more, goes on.
 */
void service_job(int change);
void service_database(int change);
void service_stalled(int change);
/* NULL: it is ready; else why not, in a line. */
const char *service_unready(void);

/* A clock that only goes forward, in milliseconds. */
int64_t service_now_ms(void);
/*
 * How long to wait after `failures` in a row (1 or more): a random time between half of and the
 * whole of first_ms doubled each time, at most most_ms. Random, so that many who failed together do
 * not come back together.
 */
int64_t service_backoff_ms(int failures, int64_t first_ms, int64_t most_ms);
