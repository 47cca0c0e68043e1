/* SPDX-License-Identifier: PostgreSQL */
/*
 * runtime.h: shared by all long-running jobs of the command (a relay, a consumer): the name in the
 * log, the request to stop, and the pause before another try. Each job has its own thread; any
 * thread may call everything here.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The job's name: kind "relay", name "orders". Borrowed; the caller keeps it for the job's life. */
typedef struct speaker {
	const char *kind;
	const char *name;
} speaker;

typedef enum runtime_level {
	RUNTIME_ERROR,   /* an operator must act */
	RUNTIME_WARNING, /* the job continues, but check it */
	RUNTIME_INFO,    /* a change of state: started, connected, took over */
	RUNTIME_DEBUG    /* each batch */
} runtime_level;

/* The lowest level that is logged; RUNTIME_INFO by default. Call before the first job starts. */
void runtime_log_level(runtime_level level);
/*
 * One line to stderr, written by one write(2): "2026-11-21T12:00:00.123Z level=info relay=orders
 * event=connected ...". `event` is a short fixed word; the format gives key=value pairs (values
 * with spaces in double quotes: runtime_quote). Never a payload.
 */
__attribute__((format(printf, 4, 5))) void runtime_log(const speaker *speaker, runtime_level level, const char *event,
                                                       const char *format, ...);
/*
 * text in double quotes, with quotes, backslashes and control characters escaped, cut at 1,000
 * bytes; in `buffer`, which is returned.
 */
#define RUNTIME_QUOTE_BYTES 2048
const char *runtime_quote(const char *text, char buffer[RUNTIME_QUOTE_BYTES]);

/*
 * Stopping. After runtime_stop_install, SIGTERM and SIGINT request a stop (a second one ends the
 * process at once), and SIGPIPE is ignored; a job that fails for good requests it with
 * runtime_stop. False: errno says why.
 */
bool runtime_stop_install(void);
void runtime_stop(void);
bool runtime_stopping(void);
/* Becomes readable when stopping, and stays so: for poll(2). */
int runtime_stop_fd(void);
/* Sleeps, but wakes when stopping. True when stopping. */
bool runtime_sleep(int64_t milliseconds);

/*
 * Reloading. After runtime_stop_install, SIGHUP no longer ends the process: it makes
 * runtime_reload_fd readable, for poll(2), until runtime_reload_take has returned true for it. The
 * process decides which thread reloads.
 */
int runtime_reload_fd(void);
bool runtime_reload_take(void);
/* How often it has returned true. */
int runtime_reloads(void);
/* Like runtime_sleep, but also wakes for a reload. */
bool runtime_rest(int64_t milliseconds);
/*
 * Undoes runtime_stop after all jobs have ended, so that they can be started again. False: a signal
 * has requested a stop too, which remains in force.
 */
bool runtime_go_on(void);

/*
 * Readiness, for /once/ready: whether each started job has its database, as far as it knows, and
 * gets the messages it waits for. Not ready until a job has started. +1: it starts, connects,
 * stalls; -1: it ends, loses its connection, is no longer stalled.
 */
void runtime_job(int change);
void runtime_database(int change);
void runtime_stalled(int change);
/*
 * A first attempt has failed, and others follow: for the service manager (notify.h) the start is
 * over, since an operator who starts a machine must not wait for the database of another one.
 */
void runtime_tried(void);
/* NULL: ready; else the reason, in one line. */
const char *runtime_unready(void);

/* A monotonic clock, in milliseconds. */
int64_t runtime_now_ms(void);
/*
 * The pause after `failures` in a row (1 or more): first_ms doubled each time, at most most_ms, and
 * of that a random part between half and the whole. Random, so that many jobs that failed together
 * do not retry together.
 */
int64_t runtime_backoff_ms(int failures, int64_t first_ms, int64_t most_ms);
