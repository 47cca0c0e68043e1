/* SPDX-License-Identifier: PostgreSQL */
/*
 * keeper.c: the life of a keeper: connecting, the lease, rounds of steps, the pause between pieces. It decides nothing about rows: a crash at any
 * instruction leaves what the contract finds again.
 */
#include "keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "session.h"

enum {
	CONNECT_MS = 10000,
	ASK_MS = 30000,     /* of what is answered at once */
	PIECE_MS = 120000,  /* of one piece: what takes longer is canceled, and noted as a failure */
	COMMAND_MS = 20000, /* of DETACH .. CONCURRENTLY, which waits for older transactions: well within the lease */
	RELEASE_MS = 3000,
	LEASE_LEAST_MS = 60000,
	LEASE_INTERVALS = 3,   /* it outlives the sleep between two rounds */
	SLICE_MOST_MS = 15000, /* of one step in one round, the pauses included */
	SLICE_LEAST_MS = 1000,
	SLICE_SHARE = 4, /* of the interval */
	PAUSE_FACTOR = 9,
	PAUSE_MOST_MS = 5000,
	STANDBY_MS = 5000,
	BACKOFF_FIRST_MS = 100,
	BACKOFF_MOST_MS = 10000,
	NAME_BYTES = 200,
	STEPS_MAX = 64,
	STEP_BYTES = 64,
	EMPTY_MOST = 1000 /* pieces in a row that say "more" and do nothing */
};

/* What is remembered of a step from round to round. */
typedef struct step {
	char name[STEP_BYTES];
	int failures;                     /* in a row */
	char told[SESSION_PROBLEM_BYTES]; /* the detail that was logged last */
	metric *pieces, *done, *failed;
} step;

typedef struct keeper {
	const keeper_call *call;
	service service;
	char name[NAME_BYTES]; /* the holder of the lease: this process, and no other */
	keeper_session session;
	bool may_detach; /* by a statement of its own */
	int64_t lease_ms, lease_taken_ms, slice_ms;
	step steps[STEPS_MAX];
	int step_count;
	int go_on_at;            /* the step after the one in which the last connection ended; 0: none did */
	int pause_factor_halved; /* how often: rounds in a row that could not finish */
	bool stood_by;
	int failed_steps; /* of this round */
	metric *active, *rounds, *round_at, *connects;
	char *problem;
} keeper;

/* How a piece of work, a step or a round went. */
typedef enum outcome {
	GO_ON,
	UNFINISHED,  /* there is more to do than its time allowed */
	STEP_FAILED, /* noted; the others go on */
	LEASE_LOST,
	SESSION_ENDED /* keeper->code says how */
} outcome;

/* ---- what is kept of a step */

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
	    metrics_add(to, METRIC_COUNTER, "pgonce_keeper_rounds", "Rounds that this process has ended.", NULL, 0);
	keeper->round_at =
	    metrics_add(to, METRIC_GAUGE, "pgonce_keeper_last_round_timestamp_seconds",
	                "When this process ended a round last, in seconds since 1970; 0: none yet.", NULL, 0);
	keeper->connects = metrics_add(to, METRIC_COUNTER, "pgonce_keeper_connects",
	                               "Connections made to PostgreSQL, reconnections included.", NULL, 0);
}

/* The step has failed, with what the session says: in the log, ever more rarely, and in the database, where that can be written. */
static session_code note_failure(keeper *keeper, step *step)
{
	char quoted[SERVICE_QUOTE_BYTES];
	char sqlstate[sizeof keeper->session.sqlstate];
	char problem[SESSION_PROBLEM_BYTES];

	memcpy(sqlstate, keeper->session.sqlstate, sizeof sqlstate);
	memcpy(problem, keeper->session.problem, sizeof problem);
	keeper->failed_steps++;
	step->failures++;
	metric_count(step->failed, 1);
	if ((step->failures & (step->failures - 1)) == 0) {
		service_log(&keeper->service, step->failures > 4 ? SERVICE_ERROR : SERVICE_WARNING, "step_failed",
		            "step=%s failures=%d sqlstate=%s problem=%s", step->name, step->failures, sqlstate,
		            service_quote(problem, quoted));
	}
	if (keeper->call->once && keeper->problem == NULL &&
	    asprintf(&keeper->problem, "step %s failed: %s%s%s%s", step->name, problem, sqlstate[0] == '\0' ? "" : " (",
	             sqlstate, sqlstate[0] == '\0' ? "" : ")") < 0) {
		keeper->problem = NULL;
	}
	if (keeper->session.connection == NULL) {
		return SESSION_LOST; /* it was canceled, and the connection given up */
	}
	const char *values[] = {keeper->name, step->name, sqlstate, problem};
	session_code code = keeper_session_ask(&keeper->session, SQL_KEEP_FAILED, values, 4, ASK_MS, NULL);
	/* A disk that is full takes no notes. */
	return code == SESSION_REFUSED || code == SESSION_LATE ? SESSION_OK : code;
}

static void tell(keeper *keeper, step *step, int64_t done, int pieces, int64_t took_ms, const char *detail)
{
	char quoted[SERVICE_QUOTE_BYTES];
	bool is_news = done > 0 || (detail[0] != '\0' && strcmp(detail, step->told) != 0);

	if (step->failures > 0) {
		service_log(&keeper->service, SERVICE_INFO, "step_mended", "step=%s failures=%d", step->name, step->failures);
	}
	step->failures = 0;
	if (done == 0) {
		snprintf(step->told, sizeof step->told, "%s", detail);
	}
	service_log(&keeper->service, is_news ? SERVICE_INFO : SERVICE_DEBUG, "step",
	            "step=%s done=%lld pieces=%d took_ms=%lld detail=%s", step->name, (long long)done, pieces,
	            (long long)took_ms, service_quote(detail, quoted));
}

/* ---- the lease */

/* *taken: the lease is ours, from now on. */
static session_code take(keeper *keeper, bool *taken)
{
	char lease[32];
	const char *values[] = {keeper->name, lease};
	PGresult *result = NULL;
	int64_t now = service_now_ms();

	snprintf(lease, sizeof lease, "%lld", (long long)keeper->lease_ms);
	session_code code = keeper_session_ask(&keeper->session, SQL_KEEP_TAKE, values, 2, ASK_MS, &result);
	*taken = code == SESSION_OK && strcmp(PQgetvalue(result, 0, 0), "t") == 0;
	if (*taken) {
		keeper->lease_taken_ms = now;
	}
	metric_set(keeper->active, *taken);
	PQclear(result);
	return code;
}

/* The lease is renewed when a third of it has passed. */
static outcome hold(keeper *keeper, session_code *code)
{
	bool taken = true;

	*code = SESSION_OK;
	if (service_now_ms() - keeper->lease_taken_ms >= keeper->lease_ms / 3) {
		*code = take(keeper, &taken);
	}
	return *code != SESSION_OK ? SESSION_ENDED : taken ? GO_ON : LEASE_LOST;
}

static void release(keeper *keeper)
{
	/* service_stopping would end the wait at once: this one statement is sent, and its answer not waited for long. */
	const char *values[] = {keeper->name};

	if (keeper->session.connection != NULL) {
		(void)keeper_session_tell(&keeper->session, SQL_KEEP_RELEASE, values, 1, RELEASE_MS);
	}
	metric_set(keeper->active, 0);
}

/* ---- a step */

typedef struct piece {
	int64_t done;
	bool more;
	char *command;
	char detail[SESSION_PROBLEM_BYTES];
} piece;

static session_code run_piece(keeper *keeper, const step *step, piece *piece)
{
	const char *values[] = {keeper->name, step->name, keeper->may_detach ? "t" : "f"};
	PGresult *result = NULL;

	*piece = (struct piece){0};
	session_code code = keeper_session_ask(&keeper->session, SQL_KEEP_STEP, values, 3, PIECE_MS, &result);
	if (code != SESSION_OK) {
		return code;
	}
	piece->done = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	piece->more = strcmp(PQgetvalue(result, 0, 1), "t") == 0;
	piece->command = PQgetisnull(result, 0, 2) ? NULL : strdup(PQgetvalue(result, 0, 2));
	snprintf(piece->detail, sizeof piece->detail, "%s", PQgetvalue(result, 0, 3));
	PQclear(result);
	if (piece->command == NULL) {
		return SESSION_OK;
	}
	char quoted[SERVICE_QUOTE_BYTES];
	service_log(&keeper->service, SERVICE_INFO, "command", "step=%s command=%s", step->name,
	            service_quote(piece->command, quoted));
	code = keeper_session_command(&keeper->session, piece->command, COMMAND_MS);
	free(piece->command);
	piece->command = NULL;
	piece->more = true;
	return code;
}

/* After what the server refused: is it that the lease is another's? */
static outcome judge(keeper *keeper, step *step, session_code *code)
{
	if (strcmp(keeper->session.sqlstate, "55000") == 0) {
		char problem[SESSION_PROBLEM_BYTES];
		bool taken = false;
		memcpy(problem, keeper->session.problem, sizeof problem);
		*code = take(keeper, &taken);
		if (*code != SESSION_OK || !taken) {
			return *code != SESSION_OK ? SESSION_ENDED : LEASE_LOST;
		}
		snprintf(keeper->session.sqlstate, sizeof keeper->session.sqlstate, "55000");
		memcpy(keeper->session.problem, problem, sizeof problem);
	}
	*code = note_failure(keeper, step);
	return *code == SESSION_OK ? STEP_FAILED : SESSION_ENDED;
}

/*
 * Nine times as long as the piece took, so that keeping takes a tenth of what it would; half of that with each round that could not end its work. True: it
 * is time to stop.
 */
static bool pause_after(const keeper *keeper, int64_t took_ms)
{
	int64_t pause_ms =
	    (took_ms + 1) * PAUSE_FACTOR >> (keeper->pause_factor_halved > 30 ? 30 : keeper->pause_factor_halved);

	return service_sleep(pause_ms < PAUSE_MOST_MS ? pause_ms : PAUSE_MOST_MS);
}

/* Piece by piece, until there is no more, its slice of the round is over, or it fails. */
static outcome run_step(keeper *keeper, step *step, session_code *code)
{
	int64_t started_ms = service_now_ms();
	int64_t done = 0, worked_ms = 0;
	int pieces = 0, empty = 0;
	piece piece;
	outcome outcome = GO_ON;

	for (;;) {
		outcome = hold(keeper, code);
		if (outcome != GO_ON) {
			return outcome;
		}
		int64_t piece_ms = service_now_ms();
		*code = run_piece(keeper, step, &piece);
		piece_ms = service_now_ms() - piece_ms;
		if (*code == SESSION_REFUSED || *code == SESSION_LATE) {
			return judge(keeper, step, code);
		}
		if (*code != SESSION_OK) {
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
		if (empty >= EMPTY_MOST || (!keeper->call->once && service_now_ms() - started_ms >= keeper->slice_ms)) {
			outcome = UNFINISHED;
			break;
		}
		if (service_stopping() || (!keeper->call->once && pause_after(keeper, piece_ms))) {
			*code = SESSION_STOPPED;
			return SESSION_ENDED;
		}
	}
	tell(keeper, step, done, pieces, worked_ms, piece.detail);
	return outcome;
}

/* ---- a round */

static outcome run_round(keeper *keeper, session_code *code)
{
	PGresult *steps = NULL;
	bool unfinished = false;
	outcome outcome = GO_ON;

	keeper->failed_steps = 0;
	*code = keeper_session_ask(&keeper->session, SQL_KEEP_STEPS, NULL, 0, ASK_MS, &steps);
	if (*code != SESSION_OK) {
		return SESSION_ENDED;
	}
	/*
	 * The first step, the days to come, always. A step in which the connection has ended is passed over once, or one that ends it each time would
	 * keep the later ones from ever being run.
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
	keeper->pause_factor_halved = unfinished ? keeper->pause_factor_halved + 1 : 0;
	return unfinished ? UNFINISHED : GO_ON;
}

/* Around the interval, so that keepers of many databases do not come together. True: it is time to stop. */
static bool sleep_between(const keeper *keeper)
{
	int64_t interval_ms = keeper->call->interval_ms;

	return service_sleep(service_backoff_ms(1, interval_ms / 5, interval_ms / 5) + interval_ms * 17 / 20);
}

/* ---- standing by */

static void tell_standby(keeper *keeper)
{
	char quoted[SERVICE_QUOTE_BYTES];
	PGresult *result = NULL;

	if (!keeper->stood_by &&
	    keeper_session_ask(&keeper->session, SQL_KEEP_HOLDER, NULL, 0, ASK_MS, &result) == SESSION_OK) {
		const char *holder = PQntuples(result) == 1 ? PQgetvalue(result, 0, 0) : "";
		service_log(&keeper->service, SERVICE_INFO, "standby", "holder=%s", service_quote(holder, quoted));
		if (keeper->call->once && asprintf(&keeper->problem, "another keeper has the lease: %s", holder) < 0) {
			keeper->problem = NULL;
		}
	}
	PQclear(result);
	keeper->stood_by = true;
}

/* Until the lease is ours. *held: it is another's, and that is the end. */
static session_code take_turn(keeper *keeper, bool *held)
{
	*held = false;
	for (;;) {
		bool taken = false;
		session_code code = take(keeper, &taken);
		if (code == SESSION_REFUSED) {
			return keeper_session_refused(&keeper->session);
		}
		if (code != SESSION_OK) {
			return code;
		}
		if (taken) {
			service_log(&keeper->service, SERVICE_INFO, "active", "lease_ms=%lld", (long long)keeper->lease_ms);
			keeper->stood_by = false;
			return SESSION_OK;
		}
		tell_standby(keeper);
		*held = keeper->call->once;
		int64_t interval_ms = keeper->call->interval_ms < STANDBY_MS ? keeper->call->interval_ms : STANDBY_MS;
		if (*held || service_sleep(interval_ms)) {
			return SESSION_STOPPED;
		}
	}
}

/* ---- the life */

static session_code look(keeper *keeper)
{
	PGresult *result = NULL;
	session_code code = keeper_session_ask(&keeper->session, SQL_KEEP_OWNER, NULL, 0, ASK_MS, &result);

	keeper->may_detach = code == SESSION_OK && PQntuples(result) == 1 && strcmp(PQgetvalue(result, 0, 0), "t") == 0;
	PQclear(result);
	return code;
}

/* Over one connection. SESSION_STOPPED: as asked, or with `once` because the round is done (or *held). */
static session_code work(keeper *keeper, bool *held)
{
	session_code code = look(keeper);

	while (code == SESSION_OK) {
		code = take_turn(keeper, held);
		outcome outcome = GO_ON;
		while (code == SESSION_OK && outcome != LEASE_LOST) {
			outcome = run_round(keeper, &code);
			if (code != SESSION_OK || outcome == LEASE_LOST) {
				break;
			}
			if (keeper->call->once || service_stopping() || (outcome == GO_ON && sleep_between(keeper))) {
				code = SESSION_STOPPED;
				break;
			}
			outcome = hold(keeper, &code);
		}
		if (outcome == LEASE_LOST) {
			metric_set(keeper->active, 0);
			service_log(&keeper->service, SERVICE_WARNING, "lease_lost", "%s", "another=yes");
		}
	}
	if (code == SESSION_STOPPED && !*held) {
		release(keeper);
	}
	return code;
}

static keeper_end run(keeper *keeper)
{
	char quoted[SERVICE_QUOTE_BYTES];
	int failures = 0;

	while (!service_stopping()) {
		bool held = false;
		session_code code = keeper_session_open(&keeper->session, CONNECT_MS);
		if (code == SESSION_OK) {
			int64_t since_ms = service_now_ms();
			service_log(&keeper->service, SERVICE_INFO, "connected", "database=%s", PQdb(keeper->session.connection));
			metric_count(keeper->connects, 1);
			service_database(1);
			code = work(keeper, &held);
			service_database(-1);
			failures = service_now_ms() - since_ms < BACKOFF_MOST_MS ? failures : 0;
			keeper_session_close(&keeper->session);
			metric_set(keeper->active, 0);
		}
		if (held) {
			return KEEPER_HELD;
		}
		if (code == SESSION_STOPPED) {
			break;
		}
		if (code == SESSION_CONTRACT || keeper->call->once) {
			free(keeper->problem);
			keeper->problem = strdup(keeper->session.problem);
			return code == SESSION_CONTRACT ? KEEPER_CONTRACT : code == SESSION_LOST ? KEEPER_NO_SERVER : KEEPER_FAILED;
		}
		/* Each time would fill the log: the first, and then ever more rarely. */
		failures++;
		if ((failures & (failures - 1)) == 0) {
			service_log(&keeper->service, SERVICE_WARNING, "lost", "failures=%d problem=%s", failures,
			            service_quote(keeper->session.problem, quoted));
		}
		(void)service_sleep(service_backoff_ms(failures, BACKOFF_FIRST_MS, BACKOFF_MOST_MS));
	}
	return keeper->call->once && keeper->failed_steps > 0 ? KEEPER_FAILED : KEEPER_STOPPED;
}

/* "NAME/PID-RANDOM": two processes never take themselves for one another, whatever they are called. */
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
		random = (uint32_t)service_now_ms();
	}
	snprintf(keeper->name, sizeof keeper->name, "%s/%d-%08x", name, (int)getpid(), random);
	keeper->service = (service){.kind = "keep", .name = name};
}

keeper_end keeper_run(const keeper_call *call, char **problem)
{
	keeper *keeper = calloc(1, sizeof *keeper);
	char name[NAME_BYTES / 2];

	*problem = NULL;
	if (keeper == NULL) {
		return KEEPER_FAILED;
	}
	keeper->call = call;
	keeper->session.conninfo = call->conninfo;
	keeper->lease_ms = call->interval_ms * LEASE_INTERVALS;
	keeper->lease_ms = keeper->lease_ms > LEASE_LEAST_MS ? keeper->lease_ms : LEASE_LEAST_MS;
	keeper->slice_ms = call->interval_ms / SLICE_SHARE;
	keeper->slice_ms = keeper->slice_ms > SLICE_MOST_MS    ? SLICE_MOST_MS
	                   : keeper->slice_ms < SLICE_LEAST_MS ? SLICE_LEAST_MS
	                                                       : keeper->slice_ms;
	set_names(keeper, name);
	add_metrics(keeper);
	service_log(&keeper->service, SERVICE_INFO, "started", "keeper=%s interval_ms=%lld", keeper->name,
	            (long long)call->interval_ms);
	service_job(1);
	keeper_end end = run(keeper);
	service_job(-1);
	service_log(&keeper->service, SERVICE_INFO, "stopped", "failed_steps=%d", keeper->failed_steps);
	*problem = keeper->problem;
	free(keeper);
	return end;
}
