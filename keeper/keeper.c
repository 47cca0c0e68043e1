/* SPDX-License-Identifier: PostgreSQL */
/*
 * keeper.c: a keeper's life: connecting, the lease, rounds of steps, the pause between pieces. It
 * decides nothing about rows: after a crash at any instruction the contract finds the work again.
 */
#include "keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "database.h"
#include "memory.h"
#include "notify.h"
#include "sql.h"

enum {
	CONNECT_MS = 10000,
	ASK_MS = 30000,     /* for immediate answers */
	PIECE_MS = 120000,  /* for one piece: a longer one is canceled, and noted as a failure */
	COMMAND_MS = 20000, /* for DETACH .. CONCURRENTLY; well within the lease */
	RELEASE_MS = 3000,
	LEASE_LEAST_MS = 60000,
	LEASE_INTERVALS = 3,   /* longer than the sleep between two rounds */
	SLICE_MOST_MS = 15000, /* for one step in one round, with its pauses */
	SLICE_LEAST_MS = 1000,
	SLICE_SHARE = 4, /* of the interval */
	PAUSE_FACTOR = 19,
	PAUSE_MOST_MS = 5000,
	PAUSE_PATIENCE = 4, /* intervals without a finished round, after which the pauses are halved */
	STANDBY_MS = 5000,
	BACKOFF_FIRST_MS = 100,
	BACKOFF_MOST_MS = 10000,
	NAME_BYTES = 200,
	DETAIL_BYTES = 1000,
	STEPS_MAX = 64,
	STEP_BYTES = 64,
	EMPTY_MOST = 1000 /* pieces in a row that say "more" but do nothing */
};

/* Remembered for a step from round to round. */
typedef struct step {
	char name[STEP_BYTES];
	int failures;            /* in a row */
	char told[DETAIL_BYTES]; /* the detail last logged */
	metric *pieces, *done, *failed;
} step;

typedef struct keeper {
	const keeper_call *call;
	speaker speaker;
	char name[NAME_BYTES]; /* the holder of the lease: this process, and no other */
	database database;
	failure failure; /* of the last request */
	bool may_detach; /* by a separate statement */
	int64_t lease_ms, lease_taken_ms, slice_ms;
	step steps[STEPS_MAX];
	int step_count;
	int go_on_at;            /* after the step that ended the last connection; 0: none did */
	int64_t behind_since_ms; /* start of the first of the unfinished rounds in a row; 0: none */
	bool stood_by;
	bool anew;        /* over a new connection */
	int failed_steps; /* of this round */
	metric *active, *rounds, *round_at, *connects;
	char *problem;
} keeper;

/* The result of a piece of work, a step or a round. */
typedef enum outcome {
	GO_ON,
	UNFINISHED,  /* there is more to do than its time allowed */
	STEP_FAILED, /* noted; the other steps go on */
	LEASE_LOST,
	SESSION_ENDED /* see keeper->code */
} outcome;

/* ---- asking */

/*
 * Runs a statement of sql/ in its own transaction, in READ COMMITTED even if the database's default
 * differs: BEGIN sets it, since a pooler would pass a session's setting to other clients. The
 * caller clears *result (NULL allowed: not wanted).
 */
static failure_kind ask(keeper *keeper, enum sql_id id, parameters *parameters, int64_t answer_ms, PGresult **result)
{
	PGresult *answer = NULL;

	keeper->database.answer_ms = answer_ms;
	if (!database_begin(&keeper->database, &keeper->failure)) {
		if (parameters != NULL) {
			parameters_free(parameters);
		}
	} else if ((answer = database_query(&keeper->database, id, parameters, &keeper->failure)) == NULL) {
		database_rollback(&keeper->database);
	} else if (!database_commit(&keeper->database, &keeper->failure)) {
		PQclear(answer);
		answer = NULL;
	}
	if (result != NULL) {
		*result = answer;
	} else {
		PQclear(answer);
	}
	return keeper->failure.kind;
}

/* The server has answered with an error, and will answer the next request. */
static bool is_refusal(failure_kind kind)
{
	return kind == FAILURE_FAULT || kind == FAILURE_PASSING || kind == FAILURE_CANCELED;
}

/* ---- what is remembered about a step */

static step *find_step(keeper *keeper, const char *name)
{
	for (int i = 0; i < keeper->step_count; i++) {
		if (strcmp(keeper->steps[i].name, name) == 0) {
			return &keeper->steps[i];
		}
	}
	if (keeper->step_count == STEPS_MAX || strlen(name) >= STEP_BYTES) {
		return NULL;
	}
	step *made = &keeper->steps[keeper->step_count++];
	snprintf(made->name, sizeof made->name, "%s", name);
	made->pieces = metrics_add_labelled(keeper->call->metrics, METRIC_COUNTER, "pgonce_keeper_pieces",
	                                    "Pieces of a step that this process has done.", "step", name);
	made->done = metrics_add_labelled(keeper->call->metrics, METRIC_COUNTER, "pgonce_keeper_done",
	                                  "Rows or partitions that this process has worked on in a step.", "step", name);
	made->failed = metrics_add_labelled(keeper->call->metrics, METRIC_COUNTER, "pgonce_keeper_failures",
	                                    "Failures of a step in this process.", "step", name);
	return made;
}

static void add_metrics(keeper *keeper)
{
	metrics *to = keeper->call->metrics;

	keeper->active =
	    metrics_add(to, METRIC_GAUGE, "pgonce_keeper_active",
	                "1: this process has the keeper's lease; 0: it stands by, or has no connection.", NULL, 0);
	keeper->rounds =
	    metrics_add(to, METRIC_COUNTER, "pgonce_keeper_rounds", "Rounds that this process has finished.", NULL, 0);
	keeper->round_at =
	    metrics_add(to, METRIC_GAUGE, "pgonce_keeper_last_round_timestamp_seconds",
	                "When this process last finished a round, in seconds since 1970; 0: none yet.", NULL, 0);
	keeper->connects = metrics_add(to, METRIC_COUNTER, "pgonce_keeper_connects",
	                               "Connections to PostgreSQL, including reconnections.", NULL, 0);
}

/*
 * The step has failed, with the last failure: notes it in the log, more and more rarely, and in the
 * database, if that can be written.
 */
static failure_kind note_failure(keeper *keeper, step *step)
{
	const failure *failure = &keeper->failure;
	bool has_code = failure->sqlstate[0] != '\0';
	char quoted[RUNTIME_QUOTE_BYTES];
	parameters given = {0};

	keeper->failed_steps++;
	step->failures++;
	metric_count(step->failed, 1);
	if ((step->failures & (step->failures - 1)) == 0) {
		runtime_log(&keeper->speaker, step->failures > 4 ? RUNTIME_ERROR : RUNTIME_WARNING, "step_failed",
		            "step=%s failures=%d sqlstate=%s problem=%s", step->name, step->failures, failure->sqlstate,
		            runtime_quote(failure->text, quoted));
	}
	if (keeper->call->once && keeper->problem == NULL) {
		keeper->problem = memory_format("step %s failed%s%s%s: %s", step->name, has_code ? " (" : "", failure->sqlstate,
		                                has_code ? ")" : "", failure->text);
	}
	if (keeper->database.connection == NULL) {
		return FAILURE_CONNECTION; /* it was canceled, and the connection closed */
	}
	parameters_text(&given, keeper->name);
	parameters_text(&given, step->name);
	parameters_text(&given, failure->sqlstate);
	parameters_text(&given, failure->text);
	failure_kind kind = ask(keeper, SQL_KEEP_FAILED, &given, ASK_MS, NULL);
	/* A full disk accepts no notes. */
	return is_refusal(kind) ? FAILURE_NONE : kind;
}

static void tell(keeper *keeper, step *step, int64_t done, int pieces, int64_t took_ms, const char *detail)
{
	char quoted[RUNTIME_QUOTE_BYTES];
	bool is_news = done > 0 || (detail[0] != '\0' && strcmp(detail, step->told) != 0);

	if (step->failures > 0) {
		runtime_log(&keeper->speaker, RUNTIME_INFO, "step_mended", "step=%s failures=%d", step->name, step->failures);
	}
	step->failures = 0;
	if (done == 0) {
		snprintf(step->told, sizeof step->told, "%s", detail);
	}
	runtime_log(&keeper->speaker, is_news ? RUNTIME_INFO : RUNTIME_DEBUG, "step",
	            "step=%s done=%lld pieces=%d took_ms=%lld detail=%s", step->name, (long long)done, pieces,
	            (long long)took_ms, runtime_quote(detail, quoted));
}

/* ---- the lease */

/* *taken: this process has the lease from now on. */
static failure_kind take(keeper *keeper, bool *taken)
{
	parameters given = {0};
	PGresult *result = NULL;
	int64_t now = runtime_now_ms();

	parameters_text(&given, keeper->name);
	parameters_bigint(&given, keeper->lease_ms);
	failure_kind kind = ask(keeper, SQL_KEEP_TAKE, &given, ASK_MS, &result);
	*taken = kind == FAILURE_NONE && result_is_true(result, 0, 0);
	if (*taken) {
		keeper->lease_taken_ms = now;
	}
	metric_set(keeper->active, *taken);
	PQclear(result);
	return kind;
}

/* Renews the lease when a third of it has passed. */
static outcome hold(keeper *keeper, failure_kind *code)
{
	bool taken = true;

	*code = FAILURE_NONE;
	if (runtime_now_ms() - keeper->lease_taken_ms >= keeper->lease_ms / 3) {
		*code = take(keeper, &taken);
	}
	return *code != FAILURE_NONE ? SESSION_ENDED : taken ? GO_ON : LEASE_LOST;
}

static void release(keeper *keeper)
{
	parameters given = {0};

	/* This statement is sent even if the process is stopping, with a short wait for its answer. */
	keeper->database.stop_ms = DATABASE_PATIENT;
	parameters_text(&given, keeper->name);
	(void)ask(keeper, SQL_KEEP_RELEASE, &given, RELEASE_MS, NULL);
	keeper->database.stop_ms = 0;
	metric_set(keeper->active, 0);
}

/* ---- a step */

typedef struct piece {
	int64_t done;
	bool more;
	char detail[DETAIL_BYTES];
} piece;

/* A statement provided by the contract, which must not be in a transaction. */
static failure_kind run_command(keeper *keeper, const step *step, const char *command)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	runtime_log(&keeper->speaker, RUNTIME_INFO, "command", "step=%s command=%s", step->name,
	            runtime_quote(command, quoted));
	keeper->database.answer_ms = COMMAND_MS;
	(void)database_command(&keeper->database, command, &keeper->failure);
	return keeper->failure.kind;
}

static failure_kind run_piece(keeper *keeper, const step *step, piece *piece)
{
	parameters given = {0};
	PGresult *result = NULL;

	*piece = (struct piece){0};
	parameters_text(&given, keeper->name);
	parameters_text(&given, step->name);
	parameters_boolean(&given, keeper->may_detach);
	failure_kind kind = ask(keeper, SQL_KEEP_STEP, &given, PIECE_MS, &result);
	if (kind != FAILURE_NONE) {
		return kind;
	}
	piece->done = result_bigint(result, 0, 0);
	piece->more = result_is_true(result, 0, 1);
	snprintf(piece->detail, sizeof piece->detail, "%s", PQgetvalue(result, 0, 3));
	if (!PQgetisnull(result, 0, 2)) {
		piece->more = true;
		kind = run_command(keeper, step, PQgetvalue(result, 0, 2));
	}
	PQclear(result);
	return kind;
}

/* After the server refused a statement: checks whether another keeper has the lease. */
static outcome judge(keeper *keeper, step *step, failure_kind *code)
{
	if (strcmp(keeper->failure.sqlstate, "55000") == 0) {
		failure cause = keeper->failure;
		bool taken = false;
		*code = take(keeper, &taken);
		if (*code != FAILURE_NONE || !taken) {
			return *code != FAILURE_NONE ? SESSION_ENDED : LEASE_LOST;
		}
		keeper->failure = cause;
	}
	*code = note_failure(keeper, step);
	return *code == FAILURE_NONE ? STEP_FAILED : SESSION_ENDED;
}

/*
 * Pauses nineteen times as long as the piece took, so that the keeper uses a twentieth of one CPU;
 * half of that, and half again, if it cannot keep up. True: it is time to stop.
 */
static bool pause_after(const keeper *keeper, int64_t took_ms)
{
	int64_t behind_ms = keeper->behind_since_ms == 0 ? 0 : runtime_now_ms() - keeper->behind_since_ms;
	int64_t halved = behind_ms / (keeper->call->interval_ms * PAUSE_PATIENCE);
	int64_t pause_ms = (took_ms + 1) * PAUSE_FACTOR >> (halved > 30 ? 30 : halved);

	return runtime_sleep(pause_ms < PAUSE_MOST_MS ? pause_ms : PAUSE_MOST_MS);
}

/* Runs pieces until there are no more, its slice of the round is over, or one fails. */
static outcome run_step(keeper *keeper, step *step, failure_kind *code)
{
	int64_t started_ms = runtime_now_ms();
	int64_t done = 0, worked_ms = 0;
	int pieces = 0, empty = 0;
	piece piece;
	outcome outcome = GO_ON;

	for (;;) {
		outcome = hold(keeper, code);
		if (outcome != GO_ON) {
			return outcome;
		}
		int64_t piece_ms = runtime_now_ms();
		*code = run_piece(keeper, step, &piece);
		piece_ms = runtime_now_ms() - piece_ms;
		if (is_refusal(*code)) {
			return judge(keeper, step, code);
		}
		if (*code != FAILURE_NONE) {
			return SESSION_ENDED;
		}
		worked_ms += piece_ms;
		pieces++;
		done += piece.done;
		empty = piece.done > 0 ? 0 : empty + 1;
		metric_count(step->pieces, 1);
		metric_count(step->done, (uint64_t)(piece.done > 0 ? piece.done : 0));
		if (!piece.more) {
			break;
		}
		if (empty >= EMPTY_MOST || (!keeper->call->once && runtime_now_ms() - started_ms >= keeper->slice_ms)) {
			outcome = UNFINISHED;
			break;
		}
		if (runtime_stopping() || (!keeper->call->once && pause_after(keeper, piece_ms))) {
			*code = FAILURE_STOPPED;
			return SESSION_ENDED;
		}
	}
	tell(keeper, step, done, pieces, worked_ms, piece.detail);
	return outcome;
}

/* ---- a round */

static outcome run_round(keeper *keeper, failure_kind *code)
{
	PGresult *steps = NULL;
	bool unfinished = false;
	outcome outcome = GO_ON;
	int64_t began_ms = runtime_now_ms();

	keeper->failed_steps = 0;
	*code = ask(keeper, SQL_KEEP_STEPS, NULL, ASK_MS, &steps);
	if (*code != FAILURE_NONE) {
		return SESSION_ENDED;
	}
	/*
	 * The first step, which creates coming days, always runs. A step in which the connection ended
	 * is skipped once: if it ended the connection each time, the later steps would never run.
	 */
	int go_on_at = keeper->go_on_at;
	keeper->go_on_at = 0;
	unfinished = go_on_at > 0;
	for (int i = 0; i < PQntuples(steps); i = i == 0 && go_on_at > 0 ? go_on_at : i + 1) {
		step *step = find_step(keeper, PQgetvalue(steps, i, 0));
		outcome = step == NULL ? GO_ON : run_step(keeper, step, code);
		if (outcome == LEASE_LOST || outcome == SESSION_ENDED) {
			keeper->go_on_at = outcome == SESSION_ENDED ? i + 1 : 0;
			break;
		}
		unfinished = unfinished || outcome == UNFINISHED;
	}
	PQclear(steps);
	if (outcome == LEASE_LOST || outcome == SESSION_ENDED) {
		return outcome;
	}
	metric_count(keeper->rounds, 1);
	metric_set_now(keeper->round_at);
	if (!unfinished) {
		keeper->behind_since_ms = 0;
	} else if (keeper->behind_since_ms == 0) {
		keeper->behind_since_ms = began_ms;
	}
	return unfinished ? UNFINISHED : GO_ON;
}

/*
 * About one interval, so that keepers of many databases do not run at the same time. True: it is
 * time to stop.
 */
static bool sleep_between(const keeper *keeper)
{
	int64_t interval_ms = keeper->call->interval_ms;

	return runtime_rest(runtime_backoff_ms(1, interval_ms / 5, interval_ms / 5) + interval_ms * 17 / 20);
}

/* ---- standing by */

static void tell_standby(keeper *keeper)
{
	char quoted[RUNTIME_QUOTE_BYTES];
	PGresult *result = NULL;

	if (!keeper->stood_by && ask(keeper, SQL_KEEP_HOLDER, NULL, ASK_MS, &result) == FAILURE_NONE) {
		const char *holder = PQntuples(result) == 1 ? PQgetvalue(result, 0, 0) : "";
		runtime_log(&keeper->speaker, RUNTIME_INFO, "standby", "holder=%s", runtime_quote(holder, quoted));
		if (keeper->call->once) {
			keeper->problem = memory_format("another keeper has the lease: %s", holder);
		}
	}
	PQclear(result);
	keeper->stood_by = true;
}

/*
 * SIGHUP, between two rounds: the keeper has no file, but a new connection reads libpq's files
 * (services, passwords, certificates) again, and may lead to another database.
 */
static bool is_reloading(keeper *keeper)
{
	if (!keeper->call->once && runtime_reload_take()) {
		notify_reloading();
		keeper->anew = true;
		runtime_log(&keeper->speaker, RUNTIME_INFO, "reloaded",
		            "connection=new hint=\"the command line and the environment take effect only at a restart\"");
	}
	return keeper->anew;
}

/*
 * Waits until this process has the lease, or a new connection is wanted. *held: another keeper has
 * it, and the caller ends.
 */
static failure_kind take_turn(keeper *keeper, bool *held)
{
	*held = false;
	for (;;) {
		bool taken = false;
		failure_kind code = take(keeper, &taken);
		if (code != FAILURE_NONE) {
			return code;
		}
		if (taken) {
			runtime_log(&keeper->speaker, RUNTIME_INFO, "active", "lease_ms=%lld", (long long)keeper->lease_ms);
			keeper->stood_by = false;
			return FAILURE_NONE;
		}
		tell_standby(keeper);
		*held = keeper->call->once;
		int64_t interval_ms = keeper->call->interval_ms < STANDBY_MS ? keeper->call->interval_ms : STANDBY_MS;
		if (*held || runtime_rest(interval_ms)) {
			return FAILURE_STOPPED;
		}
		if (is_reloading(keeper)) {
			return FAILURE_NONE;
		}
	}
}

/* ---- running */

static failure_kind look(keeper *keeper)
{
	PGresult *result = NULL;
	failure_kind code = ask(keeper, SQL_KEEP_OWNER, NULL, ASK_MS, &result);

	keeper->may_detach = code == FAILURE_NONE && PQntuples(result) == 1 && result_is_true(result, 0, 0);
	PQclear(result);
	return code;
}

/*
 * Works over one connection. FAILURE_STOPPED: on request, or with `once` because the round is done
 * (or *held); FAILURE_NONE: a new connection is wanted.
 */
static failure_kind work(keeper *keeper, bool *held)
{
	failure_kind code = look(keeper);

	while (code == FAILURE_NONE) {
		code = take_turn(keeper, held);
		outcome outcome = GO_ON;
		while (code == FAILURE_NONE && outcome != LEASE_LOST && !keeper->anew) {
			outcome = run_round(keeper, &code);
			if (code != FAILURE_NONE || outcome == LEASE_LOST) {
				break;
			}
			if (keeper->call->once || runtime_stopping() || (outcome == GO_ON && sleep_between(keeper))) {
				code = FAILURE_STOPPED;
				break;
			}
			if (!is_reloading(keeper)) {
				outcome = hold(keeper, &code);
			}
		}
		if (outcome == LEASE_LOST) {
			metric_set(keeper->active, 0);
			runtime_log(&keeper->speaker, RUNTIME_WARNING, "lease_lost", "%s", "another=yes");
		}
		if (keeper->anew) {
			break;
		}
	}
	if ((code == FAILURE_STOPPED || keeper->anew) && !*held) {
		release(keeper);
	}
	return code;
}

static keeper_end run(keeper *keeper)
{
	int failures = 0;

	while (!runtime_stopping()) {
		bool held = false;
		(void)is_reloading(keeper);
		keeper->anew = false;
		(void)database_connect(&keeper->database, &keeper->failure);
		failure_kind code = keeper->failure.kind;
		if (code == FAILURE_NONE) {
			int64_t since_ms = runtime_now_ms();
			runtime_log(&keeper->speaker, RUNTIME_INFO, "connected", "database=%s", PQdb(keeper->database.connection));
			metric_count(keeper->connects, 1);
			code = work(keeper, &held);
			failures = runtime_now_ms() - since_ms < BACKOFF_MOST_MS ? failures : 0;
			database_disconnect(&keeper->database);
			metric_set(keeper->active, 0);
		}
		if (held) {
			return KEEPER_HELD;
		}
		if (code == FAILURE_STOPPED) {
			break;
		}
		if (code == FAILURE_NONE) {
			continue;
		}
		if (code == FAILURE_CONTRACT || keeper->call->once) {
			free(keeper->problem);
			keeper->problem = memory_copy(keeper->failure.text);
			return code == FAILURE_CONTRACT     ? KEEPER_CONTRACT
			       : code == FAILURE_CONNECTION ? KEEPER_NO_SERVER
			                                    : KEEPER_FAILED;
		}
		failure_log(&keeper->failure, &keeper->speaker, ++failures);
		(void)runtime_rest(runtime_backoff_ms(failures, BACKOFF_FIRST_MS, BACKOFF_MOST_MS));
	}
	return keeper->call->once && keeper->failed_steps > 0 ? KEEPER_FAILED : KEEPER_STOPPED;
}

/* "NAME/PID-RANDOM": two processes never have the same name. */
static void set_names(keeper *keeper, char name[NAME_BYTES / 2])
{
	uint32_t random = 0;

	if (keeper->call->name != NULL) {
		snprintf(name, NAME_BYTES / 2, "%s", keeper->call->name);
	} else if (gethostname(name, NAME_BYTES / 2) != 0 || name[0] == '\0') {
		snprintf(name, NAME_BYTES / 2, "keeper");
	}
	name[NAME_BYTES / 2 - 1] = '\0';
	if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) {
		random = (uint32_t)runtime_now_ms();
	}
	snprintf(keeper->name, sizeof keeper->name, "%s/%d-%08x", name, (int)getpid(), random);
	keeper->speaker = (speaker){.kind = "keep", .name = name};
}

keeper_end keeper_run(const keeper_call *call, char **problem)
{
	keeper *keeper = memory_take(sizeof *keeper);
	char name[NAME_BYTES / 2];

	*problem = NULL;
	keeper->call = call;
	keeper->database = (database){.conninfo = call->conninfo,
	                              .role = "once_keeper",
	                              .queries = sql_queries,
	                              .theirs = SQL_KEEP_STEP + 1,
	                              .begin = "BEGIN ISOLATION LEVEL READ COMMITTED",
	                              .is_jobs = true,
	                              .connect_ms = CONNECT_MS};
	keeper->lease_ms = call->interval_ms * LEASE_INTERVALS;
	keeper->lease_ms = keeper->lease_ms > LEASE_LEAST_MS ? keeper->lease_ms : LEASE_LEAST_MS;
	keeper->slice_ms = call->interval_ms / SLICE_SHARE;
	keeper->slice_ms = keeper->slice_ms > SLICE_MOST_MS    ? SLICE_MOST_MS
	                   : keeper->slice_ms < SLICE_LEAST_MS ? SLICE_LEAST_MS
	                                                       : keeper->slice_ms;
	set_names(keeper, name);
	add_metrics(keeper);
	runtime_log(&keeper->speaker, RUNTIME_INFO, "started", "keeper=%s interval_ms=%lld", keeper->name,
	            (long long)call->interval_ms);
	runtime_job(1);
	keeper_end end = run(keeper);
	runtime_job(-1);
	runtime_log(&keeper->speaker, RUNTIME_INFO, "stopped", "failed_steps=%d", keeper->failed_steps);
	*problem = keeper->problem;
	free(keeper);
	return end;
}
