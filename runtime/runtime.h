/* SPDX-License-Identifier: PostgreSQL */
/*
 * runtime.h: what every long-running job of the command (a relay, a consumer) shares: its name in
 * the log, the wish that it stop, and how long to wait before trying again. Jobs run one to a
 * thread; everything here may be called from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Who speaks: kind "relay", name "orders". Borrowed; the caller keeps it for the job's life. */
typedef struct speaker {
	const char *kind;
	const char *name;
} speaker;

typedef enum runtime_level {
	RUNTIME_ERROR,   /* somebody has to act */
	RUNTIME_WARNING, /* it goes on, but look */
	RUNTIME_INFO,    /* a change of state: started, connected, took over */
	RUNTIME_DEBUG    /* each batch */
} runtime_level;

/*
 * From which level on lines are written; RUNTIME_INFO at first. Call before the first job starts.
 */
void runtime_log_level(runtime_level level);
/*
 * One line to stderr, written by one write(2): "2026-11-21T12:00:00.123Z level=info relay=orders
 * event=connected ...". `event` is a short fixed word; the format gives key=value pairs (values
 * with spaces in double quotes: runtime_quote). Never a payload.
 */
__attribute__((format(printf, 4, 5))) void runtime_log(const speaker *speaker, runtime_level level, const char *event,
                                                       const char *format, ...);
/*
 * text in double quotes, quotes, backslashes and control characters escaped, cut at 1,000 bytes; in
 * `buffer`, which is returned.
 */
#define RUNTIME_QUOTE_BYTES 2048
const char *runtime_quote(const char *text, char buffer[RUNTIME_QUOTE_BYTES]);

/*
 * Stopping. runtime_stop_install makes SIGTERM and SIGINT ask for it (a second one ends the process
 * at once) and ignores SIGPIPE; a job that fails for good asks for it by runtime_stop. False: errno
 * says why.
 */
bool runtime_stop_install(void);
void runtime_stop(void);
bool runtime_stopping(void);
/* Becomes readable, and stays so, when stopping: for poll(2). */
int runtime_stop_fd(void);
/* Sleeps, but wakes when stopping. True when stopping. */
bool runtime_sleep(int64_t milliseconds);

/*
 * Reloading. Once runtime_stop_install was called SIGHUP ends nothing: it makes runtime_reload_fd
 * readable, for poll(2), until runtime_reload_take has said true for it. Who reloads is the
 * process's own business.
 */
int runtime_reload_fd(void);
bool runtime_reload_take(void);
/* How often it has said true. */
int runtime_reloads(void);
/* runtime_sleep, which wakes for a reload as well. */
bool runtime_rest(int64_t milliseconds);
/*
 * Takes runtime_stop back, after all jobs have ended by it, so that they can be started anew.
 * False: a signal has asked for the end, too, which then is it.
 */
bool runtime_go_on(void);

/*
 * Readiness, for /once/ready: does each job that has begun have its database, as far as it knows,
 * and get what it waits for? No, until one has begun. +1: it begins, is connected, is stalled; -1:
 * it has ended, has no connection any more, goes on.
 */
void runtime_job(int change);
void runtime_database(int change);
void runtime_stalled(int change);
/* NULL: it is ready; else why not, in a line. */
const char *runtime_unready(void);

/* A clock that only goes forward, in milliseconds. */
int64_t runtime_now_ms(void);
/*
 * How long to wait after `failures` in a row (1 or more): a random time between half of and the
 * whole of first_ms doubled each time, at most most_ms. Random, so that many who failed together do
 * not come back together.
 */
int64_t runtime_backoff_ms(int failures, int64_t first_ms, int64_t most_ms);
