/* SPDX-License-Identifier: PostgreSQL */
/*
 * execute.c: runs an effect once, over all that can go wrong on the way. One loop for both forms:
 * an attempt ends done, or with an error that says whether another attempt may follow. What an
 * attempt leaves behind is never guessed: after a lost COMMIT the next attempt's start asks. It
 * cannot be told "proceed" while the old backend lives, because that one holds the intent's
 * advisory lock until its commit is visible; so "proceed" means that it did not commit.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

enum {
	DEADLINE_MS_DEFAULT = 30000,
	BACKOFF_MS_DEFAULT = 5,
	BACKOFF_MS_MAX_DEFAULT = 1000
};

/* What one attempt needs, in either form. */
typedef struct execution {
	once_session *session;
	const once_intent *intent;
	const once_fingerprint *fingerprint;
	const char *begin_command;
	/* Form 1: a callback. */
	once_effect effect;
	void *argument;
	/* Form 2: statements with a known outcome. */
	size_t statement_count;
	const once_statement *statements;
	const once_outcome *outcome;
	/* Set by an attempt: its COMMIT was sent and not answered. */
	bool commit_unanswered;
	/* Set by an attempt: run it again, whatever its error says (the callback asked for it). */
	bool again;
} execution;

static void rollback(once_session *session)
{
	if (PQstatus(session->connection) == CONNECTION_OK && PQtransactionStatus(session->connection) != PQTRANS_IDLE) {
		PQclear(PQexec(session->connection, "ROLLBACK"));
	}
}

/*
 * Ends what was sent, so that the server answers all of it. Also after a failed send: without the
 * sync the answers to what did go out would be waited for in vain.
 */
static once_code sync_pipeline(once_session *session, once_code code, once_error **error)
{
	if (PQpipelineSync(session->connection) == 1) {
		return code;
	}
	if (PQstatus(session->connection) == CONNECTION_OK && session->owns_connection) {
		/* Out of memory with the connection in an unusable state: only a new one is clean. */
		PQreset(session->connection);
	}
	return code == ONCE_OK ? error_of_connection(error, session->connection) : code;
}

/* Leaves pipeline mode, whatever is still on its way. */
static void leave_pipeline(once_session *session)
{
	while (PQpipelineStatus(session->connection) != PQ_PIPELINE_OFF && PQstatus(session->connection) == CONNECTION_OK) {
		if (PQexitPipelineMode(session->connection) == 1) {
			return;
		}
		PQclear(PQgetResult(session->connection));
	}
}

/*
 * Reads the result of the next statement of a pipeline. ONCE_OK: *result is it. After an error the
 * rest of the pipeline comes as PGRES_PIPELINE_ABORTED, which is passed over: the first error is
 * the one to report.
 */
static once_code next_result(once_session *session, bool is_ours, PGresult **result, once_error **error)
{
	PGresult *got = PQgetResult(session->connection);
	PGresult *end = got == NULL ? NULL : PQgetResult(session->connection);
	PQclear(end);
	ExecStatusType status = PQresultStatus(got);
	if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) {
		*result = got;
		return ONCE_OK;
	}
	once_code code = is_ours ? error_of_result(error, session->connection, got)
	                         : error_of_callers_result(error, session->connection, got);
	PQclear(got);
	return code;
}

static once_code next_is_good(once_session *session, bool is_ours, once_error **error)
{
	PGresult *result = NULL;
	once_code code = next_result(session, is_ours, &result, error);
	PQclear(result);
	return code;
}

/*
 * BEGIN, once.start and the savepoint in one round trip. A replay leaves the transaction open for
 * the caller to roll back.
 */
static once_code open_transaction(execution *run, once_answer **answer, once_error **error)
{
	once_session *session = run->session;
	PGresult *started = NULL;
	call start;
	once_code code = call_prepare(session, SQL_START, error);
	if (code != ONCE_OK) {
		return code;
	}
	start_fill(&start, run->intent, run->fingerprint);
	if (PQenterPipelineMode(session->connection) != 1) {
		return error_of_connection(error, session->connection);
	}
	code = command_send(session, run->begin_command, error);
	if (code == ONCE_OK) {
		code = call_send(session, &start, error);
	}
	if (code == ONCE_OK) {
		code = command_send(session, "SAVEPOINT once_effect", error);
	}
	code = sync_pipeline(session, code, error);
	if (code == ONCE_OK) {
		code = next_is_good(session, true, error);
	}
	if (code == ONCE_OK) {
		code = next_result(session, true, &started, error);
	}
	if (code == ONCE_OK) {
		code = next_is_good(session, true, error);
	}
	leave_pipeline(session);
	if (code != ONCE_OK) {
		PQclear(started);
		return code;
	}
	return answer_of_result(started, answer, error);
}

/* once.finish and COMMIT in one round trip. */
static once_code close_transaction(execution *run, once_state state, const once_outcome *outcome, once_error **error)
{
	once_session *session = run->session;
	call finish;
	once_code code = call_prepare(session, SQL_FINISH, error);
	if (code != ONCE_OK) {
		return code;
	}
	finish_fill(&finish, run->intent, run->fingerprint, state, outcome);
	if (PQenterPipelineMode(session->connection) != 1) {
		return error_of_connection(error, session->connection);
	}
	code = call_send(session, &finish, error);
	if (code == ONCE_OK) {
		/* From here on the server may commit without our hearing of it. */
		run->commit_unanswered = true;
		code = command_send(session, "COMMIT", error);
	}
	code = sync_pipeline(session, code, error);
	if (code == ONCE_OK) {
		code = next_is_good(session, true, error);
	}
	if (code == ONCE_OK) {
		code = next_is_good(session, false, error);
	}
	/* Any answer of the server settles it; only silence does not. */
	run->commit_unanswered = run->commit_unanswered && code == ONCE_CONNECTION;
	leave_pipeline(session);
	return code;
}

/* Why did the callback want to run again? `failed` is what it handed over. */
static once_code error_of_effect(execution *run, const PGresult *failed, once_error **error)
{
	PGconn *connection = run->session->connection;
	if (PQstatus(connection) != CONNECTION_OK) {
		return error_of_connection(error, connection);
	}
	if (PQtransactionStatus(connection) != PQTRANS_INERROR) {
		run->again = true;
		return error_make(error, ONCE_EFFECT, NULL, false, "the effect asked to run again until the deadline passed",
		                  NULL, NULL);
	}
	if (failed == NULL) {
		return error_make(error, ONCE_EFFECT, NULL, false,
		                  "a statement of the effect failed, and its error is not known", NULL,
		                  "Set *failed to its result before you return ONCE_EFFECT_RETRY.");
	}
	return error_of_callers_result(error, connection, failed);
}

static once_code attempt_effect(execution *run, once_answer **answer, once_error **error)
{
	once_session *session = run->session;
	once_answer *started = NULL;
	once_outcome outcome = {0};
	once_code code = open_transaction(run, &started, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (once_answer_verdict(started) == ONCE_REPLAY) {
		rollback(session);
		*answer = started;
		return ONCE_OK;
	}
	once_verdict verdict = once_answer_verdict(started);
	int fence = once_answer_fence(started);
	once_answer_free(started);
	if (verdict != ONCE_PROCEED) {
		return error_of_shape(error);
	}

	PGresult *failed = NULL;
	once_effect_result done = run->effect(session->connection, run->argument, &outcome, &failed);
	once_code reason = done == ONCE_EFFECT_RETRY ? error_of_effect(run, failed, error) : ONCE_OK;
	PQclear(failed);
	switch (done) {
	case ONCE_EFFECT_DONE:
		/* Made before the commit: afterwards nothing may fail. */
		code = answer_of_outcome(run->intent, &outcome, ONCE_STATE_SUCCEEDED, fence, answer, error);
		if (code == ONCE_OK) {
			code = close_transaction(run, ONCE_STATE_SUCCEEDED, &outcome, error);
			if (code != ONCE_OK) {
				once_answer_free(*answer);
				*answer = NULL;
			}
		}
		return code;
	case ONCE_EFFECT_FAILED:
		code = command_run(session, "ROLLBACK TO SAVEPOINT once_effect", error);
		if (code == ONCE_OK) {
			code = close_transaction(run, ONCE_STATE_FAILED_FINAL, &outcome, error);
		}
		if (code != ONCE_OK) {
			return code;
		}
		return error_make(error, ONCE_FINAL_FAILURE, "P4030", false,
		                  "the effect failed for good; its outcome is recorded", outcome.error_message,
		                  "The stored outcome is in once_peek. A new intent needs a new key.");
	case ONCE_EFFECT_RETRY:
		return reason;
	case ONCE_EFFECT_ABORT:
	default:
		return error_make(error, ONCE_EFFECT, NULL, false, "the effect gave up; nothing was committed", NULL, NULL);
	}
}

/*
 * Everything in one round trip: BEGIN, finish_new (which raises for a replay and so stops the
 * rest), the effect, COMMIT. The outcome is stored before the effect, since it is known by then:
 * one call fewer; they commit together or not at all.
 */
static once_code attempt_statements(execution *run, once_answer **answer, once_error **error)
{
	once_session *session = run->session;
	PGresult *started = NULL;
	call start;
	once_answer *fresh = NULL;
	once_code code = answer_of_outcome(run->intent, run->outcome, ONCE_STATE_SUCCEEDED, 0, &fresh, error);
	if (code == ONCE_OK) {
		code = call_prepare(session, SQL_FINISH_NEW, error);
	}
	if (code != ONCE_OK) {
		once_answer_free(fresh);
		return code;
	}
	finish_fill(&start, run->intent, run->fingerprint, ONCE_STATE_SUCCEEDED, run->outcome);
	start.id = SQL_FINISH_NEW; /* the parameters are those of finish */
	if (PQenterPipelineMode(session->connection) != 1) {
		once_answer_free(fresh);
		return error_of_connection(error, session->connection);
	}
	code = command_send(session, run->begin_command, error);
	if (code == ONCE_OK) {
		code = call_send(session, &start, error);
	}
	for (size_t i = 0; i < run->statement_count && code == ONCE_OK; i++) {
		const once_statement *statement = &run->statements[i];
		if (PQsendQueryParams(session->connection, statement->sql, statement->parameter_count, NULL,
		                      statement->parameters, NULL, NULL, 0) != 1) {
			code = error_of_connection(error, session->connection);
		}
	}
	if (code == ONCE_OK) {
		run->commit_unanswered = true;
		code = command_send(session, "COMMIT", error);
	}
	code = sync_pipeline(session, code, error);
	if (code == ONCE_OK) {
		code = next_is_good(session, true, error);
	}
	if (code == ONCE_OK) {
		code = next_result(session, true, &started, error);
	}
	if (code == ONCE_OK) {
		answer_set_fence(fresh, result_int(started, 0, 0));
		PQclear(started);
	}
	for (size_t i = 0; i < run->statement_count + 1 && code == ONCE_OK; i++) {
		code = next_is_good(session, false, error);
	}
	run->commit_unanswered = run->commit_unanswered && code == ONCE_CONNECTION;
	leave_pipeline(session);
	if (code == ONCE_OK) {
		*answer = fresh;
		return ONCE_OK;
	}
	once_answer_free(fresh);
	if (code != ONCE_ALREADY_FINISHED) {
		return code;
	}
	/* finish_new has compared the fingerprint; a second round trip reads what it found. */
	error_discard(error);
	rollback(session);
	start_fill(&start, run->intent, run->fingerprint);
	PGresult *stored = NULL;
	code = call_run(session, &start, &stored, error);
	return code == ONCE_OK ? answer_of_result(stored, answer, error) : code;
}

/*
 * How long to pause before attempt number `tries` + 1: exponential, capped, full jitter (Brooker,
 * "Exponential Backoff And Jitter").
 */
static int64_t backoff(once_session *session, const once_options *options, int tries)
{
	int64_t ceiling = options->backoff_ms;
	for (int i = 0; i < tries && ceiling < options->backoff_max_ms; i++) {
		ceiling *= 2;
	}
	return session_random(session, (ceiling < options->backoff_max_ms ? ceiling : options->backoff_max_ms) + 1);
}

static once_options options_with_defaults(const once_options *given)
{
	once_options options = given == NULL ? (once_options){0} : *given;
	options.deadline_ms = options.deadline_ms == 0 ? DEADLINE_MS_DEFAULT : options.deadline_ms;
	options.backoff_ms = options.backoff_ms == 0 ? BACKOFF_MS_DEFAULT : options.backoff_ms;
	options.backoff_max_ms = options.backoff_max_ms == 0 ? BACKOFF_MS_MAX_DEFAULT : options.backoff_max_ms;
	return options;
}

static const char *begin_command(const char *isolation)
{
	static const char *const commands[][2] = {
	    {"read committed", "BEGIN ISOLATION LEVEL READ COMMITTED"},
	    {"repeatable read", "BEGIN ISOLATION LEVEL REPEATABLE READ"},
	    {"serializable", "BEGIN ISOLATION LEVEL SERIALIZABLE"},
	};
	if (isolation == NULL) {
		return "BEGIN";
	}
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		if (strcmp(isolation, commands[i][0]) == 0) {
			return commands[i][1];
		}
	}
	return NULL;
}

/* The connection is lost. A session's own is made anew; a caller's is not ours to touch. */
static once_code recover_connection(execution *run, bool in_doubt, int64_t deadline, const once_options *options,
                                    once_error **error)
{
	static const char hint[] = "Ask again with the same key: once_execute, or once_peek on a new connection.";
	int tries = 0;
	while (run->session->owns_connection && now_ms() < deadline) {
		if (session_reconnect(run->session, NULL) == ONCE_OK) {
			error_discard(error);
			return ONCE_OK;
		}
		int64_t pause = backoff(run->session, options, ++tries);
		int64_t left = deadline - now_ms();
		sleep_ms(pause < left ? pause : left > 0 ? left : 0);
	}
	if (!in_doubt) {
		return ONCE_CONNECTION;
	}
	error_discard(error);
	return error_make(error, ONCE_OUTCOME_UNKNOWN, NULL, true,
	                  "the connection was lost during COMMIT, and the database cannot be asked",
	                  PQerrorMessage(run->session->connection), hint);
}

/*
 * What only start or finish can say, having looked: it settles what became of an earlier attempt.
 */
static bool is_verdict(once_code code)
{
	return code >= ONCE_SCOPE_REQUIRED && code <= ONCE_UNKNOWN_STATE && code != ONCE_ACTIVE;
}

/*
 * The database answers, and still does not tell whether the lost COMMIT happened. Keeps the reason
 * as the detail.
 */
static once_code still_unknown(once_error **error)
{
	once_error *cause = *error;
	*error = NULL;
	once_code code = error_make(error, ONCE_OUTCOME_UNKNOWN, NULL, true,
	                            "the connection was lost during COMMIT, and what became of it cannot be learnt now",
	                            once_error_message(cause), "Ask again with the same key.");
	once_error_free(cause);
	return code;
}

static once_code execute(execution *run, once_code (*attempt)(execution *, once_answer **, once_error **),
                         const once_options *given, once_answer **answer, once_error **error)
{
	once_options options = options_with_defaults(given);
	once_error *own = NULL;
	once_error **failure = error == NULL ? &own : error;
	int64_t start = now_ms();
	int64_t deadline = options.deadline_ms > INT64_MAX - start ? INT64_MAX : start + options.deadline_ms;
	/* An earlier attempt's COMMIT is unanswered: until start has spoken, the outcome is unknown. */
	bool in_doubt = false;
	/*
	 * A connection of ours was lost: its backend may live on for a moment, and "active" may mean
	 * ourselves.
	 */
	bool haunted = false;
	once_code code;
	for (int tries = 0;; tries++) {
		run->commit_unanswered = false;
		run->again = false;
		code = attempt(run, answer, failure);
		if (code == ONCE_OK) {
			break;
		}
		bool lost = PQstatus(run->session->connection) != CONNECTION_OK;
		in_doubt = in_doubt || run->commit_unanswered;
		haunted = haunted || lost;
		if (lost) {
			code = recover_connection(run, in_doubt, deadline, &options, failure);
			if (code != ONCE_OK) {
				break;
			}
			continue;
		}
		rollback(run->session);
		/*
		 * "Active" may still be the lost backend in its COMMIT, and an error is no answer: only a
		 * verdict is.
		 */
		bool waits = code == ONCE_ACTIVE && (in_doubt || haunted || now_ms() - start < options.wait_ms);
		in_doubt = in_doubt && !is_verdict(code);
		if (!waits && code != ONCE_SERIALIZATION && !run->again) {
			code = in_doubt ? still_unknown(failure) : code;
			break;
		}
		int64_t pause = backoff(run->session, &options, tries);
		if (now_ms() + pause >= deadline) {
			if (in_doubt) {
				code = still_unknown(failure);
			} else if (run->again) {
				error_discard(failure);
				code = error_make(failure, ONCE_DEADLINE, NULL, false,
				                  "the deadline passed before the effect succeeded; nothing was committed", NULL,
				                  "Try again with the same key, or allow more time in once_options.deadline_ms.");
			}
			break;
		}
		error_discard(failure);
		sleep_ms(pause);
	}
	if (error == NULL) {
		error_discard(failure);
	}
	assert(code != ONCE_OK || *answer != NULL);
	return code;
}

static once_code check_execution(const execution *run, once_error **error)
{
	once_code code = check_intent(run->session, run->intent, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (run->begin_command == NULL) {
		return error_usage(error, "isolation is one of \"read committed\", \"repeatable read\", \"serializable\"");
	}
	if (PQstatus(run->session->connection) == CONNECTION_OK &&
	    PQtransactionStatus(run->session->connection) != PQTRANS_IDLE) {
		return error_usage(error, "the session is inside a transaction: once_execute begins and commits its own");
	}
	return ONCE_OK;
}

once_code once_execute(once_session *session, const once_intent *intent, const once_fingerprint *fingerprint,
                       once_effect effect, void *argument, const once_options *options, once_answer **answer,
                       once_error **error)
{
	execution run = {.session = session,
	                 .intent = intent,
	                 .fingerprint = fingerprint,
	                 .begin_command = begin_command(options == NULL ? NULL : options->isolation),
	                 .effect = effect,
	                 .argument = argument};
	once_code code = check_execution(&run, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (effect == NULL || answer == NULL) {
		return error_usage(error, "effect and answer must not be NULL");
	}
	return execute(&run, attempt_effect, options, answer, error);
}

once_code once_execute_statements(once_session *session, const once_intent *intent, const once_fingerprint *fingerprint,
                                  size_t count, const once_statement *statements, const once_outcome *outcome,
                                  const once_options *options, once_answer **answer, once_error **error)
{
	execution run = {.session = session,
	                 .intent = intent,
	                 .fingerprint = fingerprint,
	                 .begin_command = begin_command(options == NULL ? NULL : options->isolation),
	                 .statement_count = count,
	                 .statements = statements,
	                 .outcome = outcome};
	once_code code = check_execution(&run, error);
	if (code != ONCE_OK) {
		return code;
	}
	if ((count > 0 && statements == NULL) || outcome == NULL || answer == NULL) {
		return error_usage(error, "statements, outcome and answer must not be NULL");
	}
	return execute(&run, attempt_statements, options, answer, error);
}
