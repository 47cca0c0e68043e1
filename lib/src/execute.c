/* SPDX-License-Identifier: PostgreSQL */
/*
 * execute.c: runs an effect once, despite all possible failures. One loop for both forms: an
 * attempt ends done, or with an error that says whether another attempt may follow. The state that
 * an attempt leaves is never guessed: after a lost COMMIT the start of the next attempt finds out.
 * It cannot get "proceed" while the old backend lives, because that backend holds the intent's
 * advisory lock until its commit is visible; so "proceed" means that it did not commit. An effect
 * that failed for good is rolled back, and its outcome stored by a second transaction. One that has
 * ended its transaction may be committed: the intent is left in doubt, and nothing runs again.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

enum {
	/* spec: retries */
	/* the longest first pause */
	BACKOFF_FIRST_MS = 5,
	/* the longest pause */
	BACKOFF_MAX_MS = 1000,
	/* the default deadline of a call */
	DEADLINE_MS = 30000,
	/* end of spec */
	STEPS_BESIDE_STATEMENTS = 3, /* BEGIN, finish_new, COMMIT */
	STEPS_TO_START = 4           /* NOTED_START, ROLLBACK, BEGIN, start */
};

/* The arguments of one attempt, in either form. */
typedef struct execution {
	once_session *session;
	const once_intent *intent;
	const once_fingerprint *fingerprint;
	enum sql_id begin;
	/* Form 1: a callback. */
	once_effect effect;
	void *argument;
	/* Form 2: statements with a known outcome. */
	size_t statement_count;
	const once_statement *statements;
	const once_outcome *outcome;
	step *steps;
	/* A prepared statement was missing: the rest of the execution is sent as text. */
	bool as_text;
	/* The effect failed for good, with this outcome: store it, and never run the effect again. */
	bool stores_failure;
	once_outcome failure;
	/*
	 * Set by an attempt: its error is the answer, even if the connection is lost since. The failure
	 * is stored, or the effect gave up.
	 */
	bool settled;
	/* Set by an attempt: the effect has ended its transaction, and must not run again. */
	bool ended;
	/* Set by an attempt: its COMMIT was sent and not answered. */
	bool commit_unanswered;
	/* Set by an attempt: it failed for that reason alone, and was rolled back. */
	bool missed;
	/*
	 * Set by an attempt: run it again, even if its error is not retriable (the callback asked for
	 * it).
	 */
	bool again;
} execution;

static void rollback(once_session *session)
{
	pipeline_abandon(session);
	if (PQstatus(session->connection) == CONNECTION_OK && PQtransactionStatus(session->connection) != PQTRANS_IDLE) {
		PQclear(PQexec(session->connection, "ROLLBACK"));
	}
}

static void open_pipeline(execution *run, pipeline *pipeline, step *steps, size_t room, once_error **error)
{
	pipeline_open(pipeline, run->session, !run->as_text, steps, room, error);
}

static once_code run_pipeline(execution *run, pipeline *pipeline)
{
	once_code code = pipeline_run(pipeline);
	run->commit_unanswered = pipeline->commit_unanswered;
	run->missed = pipeline->missed;
	return code;
}

/*
 * The verdict of a start in this transaction. proceed: *replay is NULL; replay: it is the answer,
 * and the transaction is rolled back.
 */
static once_code take_start(execution *run, PGresult *started, int *fence, once_answer **replay, once_error **error)
{
	once_answer *answer = NULL;
	once_code code = answer_of_started(started, &answer, error);
	if (code != ONCE_OK) {
		return code;
	}
	once_verdict verdict = once_answer_verdict(answer);
	*fence = once_answer_fence(answer);
	if (verdict == ONCE_REPLAY_SUCCESS) {
		rollback(run->session);
		*replay = answer;
		return ONCE_OK;
	}
	once_answer_free(answer);
	return verdict == ONCE_PROCEED ? ONCE_OK : error_of_shape(error);
}

/* BEGIN and once.start in one round trip. */
static once_code open_transaction(execution *run, int *fence, once_answer **replay, once_error **error)
{
	step steps[STEPS_TO_START];
	pipeline pipeline;
	call start;
	PGresult *started;
	start_fill(&start, run->intent, run->fingerprint);
	open_pipeline(run, &pipeline, steps, STEPS_TO_START, error);
	pipeline_command(&pipeline, run->begin);
	pipeline_call(&pipeline, &start);
	pipeline_keep(&pipeline, &started);
	once_code code = run_pipeline(run, &pipeline);
	return code == ONCE_OK ? take_start(run, started, fence, replay, error) : code;
}

/* leave_in_doubt makes the error. */
static once_code end_for_good(execution *run)
{
	run->ended = true;
	return ONCE_IN_DOUBT;
}

/*
 * Rolls back an effect that failed for good, and starts a second transaction, in one round trip.
 * Asks first whether the effect has committed something itself: is this still the transaction that
 * started the intent? A failed transaction cannot answer that.
 */
static once_code open_second_transaction(execution *run, int *fence, once_answer **replay, once_error **error)
{
	step steps[STEPS_TO_START];
	pipeline pipeline;
	call start;
	PGresult *noted = NULL;
	PGresult *started;
	PGTransactionStatusType status = PQtransactionStatus(run->session->connection);
	start_fill(&start, run->intent, run->fingerprint);
	open_pipeline(run, &pipeline, steps, STEPS_TO_START, error);
	if (status == PQTRANS_INTRANS) {
		pipeline_command(&pipeline, SQL_NOTED_START);
		pipeline_keep(&pipeline, &noted);
	}
	if (status != PQTRANS_IDLE) {
		pipeline_command(&pipeline, SQL_ROLLBACK);
	}
	pipeline_command(&pipeline, run->begin);
	pipeline_call(&pipeline, &start);
	pipeline_keep(&pipeline, &started);
	once_code code = run_pipeline(run, &pipeline);
	if (code != ONCE_OK) {
		return code;
	}
	bool ended = noted != NULL && !result_bool(noted, 0, 0);
	PQclear(noted);
	if (ended) {
		PQclear(started);
		return end_for_good(run);
	}
	return take_start(run, started, fence, replay, error);
}

/* once.finish and COMMIT in one round trip. */
static once_code close_transaction(execution *run, once_state state, const once_outcome *outcome, once_error **error)
{
	enum {
		FINISH,
		COMMIT,
		STEPS
	};
	step steps[STEPS];
	pipeline pipeline;
	call finish;
	finish_fill(&finish, run->intent, run->fingerprint, state, outcome);
	open_pipeline(run, &pipeline, steps, STEPS, error);
	pipeline_call(&pipeline, &finish);
	pipeline_command(&pipeline, SQL_COMMIT);
	return run_pipeline(run, &pipeline);
}

/* Why did the callback ask to run again? `failed` is the result that it returned. */
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

/*
 * Stores the failure in a second transaction. Another attempt may have come in between: what it
 * stored is the answer. If this attempt fails, only it is repeated, and never the effect.
 */
static once_code attempt_failure(execution *run, once_answer **answer, once_error **error)
{
	int fence;
	once_answer *replay = NULL;
	once_code code = open_second_transaction(run, &fence, &replay, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (replay != NULL) {
		*answer = replay;
		return ONCE_OK;
	}
	code = close_transaction(run, ONCE_STATE_FAILED_FINAL, &run->failure, error);
	if (code != ONCE_OK) {
		return code;
	}
	run->settled = true;
	return error_make(error, ONCE_FINAL_FAILURE, "P4030", false, "the effect failed for good; its outcome is recorded",
	                  run->failure.error_message, "The stored outcome is in once_peek. A new intent needs a new key.");
}

static once_code fail_effect(execution *run, const once_outcome *outcome, once_answer **answer, once_error **error)
{
	PGconn *connection = run->session->connection;
	if (PQstatus(connection) != CONNECTION_OK) {
		/* Perhaps it failed for this reason alone: it runs again. */
		return error_of_connection(error, connection);
	}
	run->failure = *outcome;
	run->stores_failure = true;
	return attempt_failure(run, answer, error);
}

/*
 * Rolls back an effect that is not to stay. Asks first, in the same round trip, whether this is
 * still the transaction that started the intent. Sent as text: a missing prepared statement is no
 * answer.
 */
static bool take_back(execution *run)
{
	enum {
		NOTED,
		ROLLBACK,
		STEPS
	};
	step steps[STEPS];
	pipeline pipeline;
	PGresult *noted;
	bool ended = false;
	if (PQtransactionStatus(run->session->connection) == PQTRANS_INTRANS) {
		pipeline_open(&pipeline, run->session, false, steps, STEPS, NULL);
		pipeline_command(&pipeline, SQL_NOTED_START);
		pipeline_keep(&pipeline, &noted);
		pipeline_command(&pipeline, SQL_ROLLBACK);
		if (pipeline_run(&pipeline) == ONCE_OK) {
			ended = !result_bool(noted, 0, 0);
			PQclear(noted);
		}
	}
	rollback(run->session);
	return ended;
}

/*
 * Reads what the effect has left unread: it may be the end of its transaction, and answers to its
 * statements would be mistaken for those to the library's.
 */
static once_code read_rest(execution *run, once_error **error)
{
	PGconn *connection = run->session->connection;
	if (PQpipelineStatus(connection) != PQ_PIPELINE_OFF) {
		pipeline_abandon(run->session);
		return error_usage(error, "the effect has left the connection in pipeline mode");
	}
	if (PQtransactionStatus(connection) == PQTRANS_ACTIVE) {
		PQclear(PQexec(connection, ""));
		return error_usage(error, "the effect has left the result of a statement unread");
	}
	return ONCE_OK;
}

/* Calls the effect. Not ONCE_OK: its result is not followed. */
static once_code call_effect(execution *run, once_effect_result *done, once_outcome *outcome, PGresult **failed,
                             once_error **error)
{
	PGconn *connection = run->session->connection;
	witness witness;
	if (!witness_open(&witness, connection)) {
		return error_no_memory(error);
	}
	*done = run->effect(connection, run->argument, outcome, failed);
	once_code code = read_rest(run, error);
	witness_close(&witness, connection);
	bool ended = witness.ended || PQtransactionStatus(connection) == PQTRANS_IDLE;
	if (!ended && (*done == ONCE_EFFECT_DONE || *done == ONCE_EFFECT_FAILED)) {
		return code;
	}
	error_discard(error);
	return ended ? end_for_good(run) : ONCE_OK;
}

/* once.finish knows whether its transaction has started the intent. */
static once_code finish_effect(execution *run, const once_outcome *outcome, int fence, once_answer **answer,
                               once_error **error)
{
	/* Made before the commit: afterwards nothing may fail. */
	once_code code = answer_of_outcome(run->intent, outcome, ONCE_STATE_SUCCEEDED, fence, answer, error);
	if (code != ONCE_OK) {
		return code;
	}
	code = close_transaction(run, ONCE_STATE_SUCCEEDED, outcome, error);
	if (code == ONCE_OK) {
		return code;
	}
	once_answer_free(*answer);
	*answer = NULL;
	if (code != ONCE_NOT_STARTED && code != ONCE_ANOTHER_FINGERPRINT) {
		return code;
	}
	error_discard(error);
	return end_for_good(run);
}

static once_code give_up(execution *run, once_error **error)
{
	if (take_back(run)) {
		return end_for_good(run);
	}
	run->settled = true;
	return error_make(error, ONCE_EFFECT, NULL, false, "the effect gave up; nothing was committed", NULL, NULL);
}

static once_code run_again(execution *run, const PGresult *failed, once_error **error)
{
	once_code code = error_of_effect(run, failed, error);
	if (!take_back(run)) {
		return code;
	}
	error_discard(error);
	return end_for_good(run);
}

static once_code attempt_effect(execution *run, once_answer **answer, once_error **error)
{
	once_answer *replay = NULL;
	once_outcome outcome = {0};
	PGresult *failed = NULL;
	once_effect_result done = ONCE_EFFECT_ABORT;
	int fence;
	once_code code = open_transaction(run, &fence, &replay, error);
	if (code != ONCE_OK) {
		return code;
	}
	if (replay != NULL) {
		*answer = replay;
		return ONCE_OK;
	}

	code = call_effect(run, &done, &outcome, &failed, error);
	if (code == ONCE_OK) {
		switch (done) {
		case ONCE_EFFECT_DONE:
			code = finish_effect(run, &outcome, fence, answer, error);
			break;
		case ONCE_EFFECT_FAILED:
			code = fail_effect(run, &outcome, answer, error);
			break;
		case ONCE_EFFECT_RETRY:
			code = run_again(run, failed, error);
			break;
		case ONCE_EFFECT_ABORT:
		default:
			code = give_up(run, error);
			break;
		}
	}
	PQclear(failed);
	return code;
}

/*
 * finish_new found an outcome, and has compared the fingerprint; a second round trip reads it. If
 * it has gone meanwhile (past its retention), the next attempt runs.
 */
static once_code read_outcome(execution *run, once_answer **answer, once_error **error)
{
	enum {
		ROLLBACK,
		START,
		STEPS
	};
	step steps[STEPS];
	pipeline pipeline;
	call start;
	PGresult *stored;
	start_fill(&start, run->intent, run->fingerprint);
	open_pipeline(run, &pipeline, steps, STEPS, error);
	pipeline_command(&pipeline, SQL_ROLLBACK);
	pipeline_call(&pipeline, &start);
	pipeline_keep(&pipeline, &stored);
	once_code code = run_pipeline(run, &pipeline);
	code = code == ONCE_OK ? answer_of_started(stored, answer, error) : code;
	if (code != ONCE_OK || once_answer_verdict(*answer) == ONCE_REPLAY_SUCCESS) {
		return code;
	}
	once_verdict verdict = once_answer_verdict(*answer);
	once_answer_free(*answer);
	*answer = NULL;
	if (verdict != ONCE_PROCEED) {
		return error_of_shape(error);
	}
	return error_make(error, ONCE_SERIALIZATION, NULL, false, "the stored outcome went away while it was read", NULL,
	                  "Try again with the same key.");
}

/*
 * Everything in one round trip: BEGIN, finish_new (which raises an error for a replay and so stops
 * the rest), the effect, COMMIT. The outcome is stored before the effect, since it is known by
 * then, which saves a call; they commit together or not at all.
 */
static once_code attempt_statements(execution *run, once_answer **answer, once_error **error)
{
	pipeline pipeline;
	call start;
	PGresult *started;
	once_answer *fresh = NULL;
	/* Made before the commit: afterwards nothing may fail. */
	once_code code = answer_of_outcome(run->intent, run->outcome, ONCE_STATE_SUCCEEDED, 0, &fresh, error);
	if (code != ONCE_OK) {
		return code;
	}
	finish_fill(&start, run->intent, run->fingerprint, ONCE_STATE_SUCCEEDED, run->outcome);
	start.id = SQL_FINISH_NEW; /* the parameters are those of finish */
	open_pipeline(run, &pipeline, run->steps, run->statement_count + STEPS_BESIDE_STATEMENTS, error);
	pipeline_command(&pipeline, run->begin);
	pipeline_call(&pipeline, &start);
	pipeline_keep(&pipeline, &started);
	for (size_t i = 0; i < run->statement_count; i++) {
		pipeline_statement(&pipeline, &run->statements[i]);
	}
	pipeline_command(&pipeline, SQL_COMMIT);
	code = run_pipeline(run, &pipeline);
	if (code == ONCE_OK) {
		answer_set_fence(fresh, result_int(started, 0, 0));
		PQclear(started);
		*answer = fresh;
		return ONCE_OK;
	}
	once_answer_free(fresh);
	if (code != ONCE_ALREADY_FINISHED) {
		return code;
	}
	error_discard(error);
	return read_outcome(run, answer, error);
}

/*
 * The pause before attempt number `tries` + 1: exponential, capped, full jitter (Brooker,
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
	options.deadline_ms = options.deadline_ms == 0 ? DEADLINE_MS : options.deadline_ms;
	options.backoff_ms = options.backoff_ms == 0 ? BACKOFF_FIRST_MS : options.backoff_ms;
	options.backoff_max_ms = options.backoff_max_ms == 0 ? BACKOFF_MAX_MS : options.backoff_max_ms;
	return options;
}

/* SQL_COUNT: there is no such isolation level. */
static enum sql_id begin_of(const once_options *options)
{
	static const struct {
		const char *isolation;
		enum sql_id begin;
	} commands[] = {
	    {"read committed", SQL_BEGIN_READ_COMMITTED},
	    {"repeatable read", SQL_BEGIN_REPEATABLE_READ},
	    {"serializable", SQL_BEGIN_SERIALIZABLE},
	};
	if (options == NULL || options->isolation == NULL) {
		return SQL_BEGIN;
	}
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		if (strcmp(options->isolation, commands[i].isolation) == 0) {
			return commands[i].begin;
		}
	}
	return SQL_COUNT;
}

/* The connection is lost. A session's own is opened again; the caller's is not touched. */
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

static once_code error_of_end(bool stored, const char *cause, once_error **error)
{
	static const char in_doubt[] =
	    "the effect has ended its transaction: what it did may be committed, and the intent is in doubt";
	static const char not_stored[] =
	    "the effect has ended its transaction: what it did may be committed, and the doubt is not stored";
	return error_make(error, ONCE_IN_DOUBT, "P4031", true, stored ? in_doubt : not_stored, cause,
	                  stored ? "The effect sends no COMMIT and no ROLLBACK: once_execute does. once.resolve decides."
	                         : "A retry may run the effect again: find out first whether it happened.");
}

/* The effect has ended its transaction. Stores that, and tries again until the deadline. */
static once_code leave_in_doubt(execution *run, int64_t deadline, const once_options *options, once_error **error)
{
	once_session *session = run->session;
	once_error *cause = NULL;
	once_code code;
	for (int tries = 0;; tries++) {
		rollback(session);
		code = doubt_store(session, run->intent, run->fingerprint, &cause);
		bool lost = PQstatus(session->connection) != CONNECTION_OK;
		int64_t pause = backoff(session, options, tries);
		if (code == ONCE_OK || (lost && !session->owns_connection) || (!lost && !once_error_retriable(cause)) ||
		    now_ms() + pause >= deadline) {
			break;
		}
		error_discard(&cause);
		sleep_ms(pause);
		if (lost) {
			(void)session_reconnect(session, NULL);
		}
	}
	error_discard(error);
	code = error_of_end(code == ONCE_OK, once_error_message(cause), error);
	once_error_free(cause);
	return code;
}

/*
 * Errors that only start or finish can return, after a look: they settle the state of an earlier
 * attempt.
 */
static bool is_verdict(once_code code)
{
	return code >= ONCE_SCOPE_REQUIRED && code <= ONCE_UNKNOWN_STATE && code != ONCE_ACTIVE;
}

/*
 * The database answers, and does not tell whether the lost COMMIT happened. Keeps the reason as the
 * detail.
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

/* The deadline passes before another attempt. */
static once_code end_at_deadline(const execution *run, once_code code, bool in_doubt, once_error **error)
{
	if (in_doubt) {
		return still_unknown(error);
	}
	if (!run->again) {
		return code;
	}
	error_discard(error);
	return error_make(error, ONCE_DEADLINE, NULL, false,
	                  "the deadline passed before the effect succeeded; nothing was committed", NULL,
	                  "Try again with the same key, or allow more time in once_options.deadline_ms.");
}

/*
 * Did another transaction stand in the way? After a lock_timeout (55P03) only the storing of a
 * failure is repeated: an effect decides that itself.
 */
static bool is_race(const execution *run, once_code code, const once_error *error)
{
	return code == ONCE_SERIALIZATION ||
	       (run->stores_failure && code == ONCE_DATABASE && strcmp(once_error_sqlstate(error), "55P03") == 0);
}

static once_code execute(execution *run, once_code (*attempt)(execution *, once_answer **, once_error **),
                         const once_options *given, once_answer **answer, once_error **error)
{
	once_options options = options_with_defaults(given);
	once_error *own = NULL;
	once_error **failure = error == NULL ? &own : error;
	int64_t start = now_ms();
	int64_t deadline = options.deadline_ms > INT64_MAX - start ? INT64_MAX : start + options.deadline_ms;
	/* An earlier attempt's COMMIT is unanswered: until start answers, the outcome is unknown. */
	bool in_doubt = false;
	/*
	 * A connection of this session was lost: its backend may still run, and be the "active"
	 * attempt.
	 */
	bool lost_before = false;
	once_code code;
	for (int tries = 0;; tries++) {
		run->commit_unanswered = false;
		run->again = false;
		run->missed = false;
		code = run->stores_failure ? attempt_failure(run, answer, failure) : attempt(run, answer, failure);
		if (code == ONCE_OK || run->settled) {
			break; /* even if the connection was lost since */
		}
		if (run->ended) {
			code = leave_in_doubt(run, deadline, &options, failure);
			break;
		}
		bool lost = PQstatus(run->session->connection) != CONNECTION_OK;
		in_doubt = in_doubt || run->commit_unanswered;
		lost_before = lost_before || lost;
		if (lost) {
			code = recover_connection(run, in_doubt, deadline, &options, failure);
			if (code != ONCE_OK) {
				break;
			}
			continue;
		}
		rollback(run->session);
		if (run->missed) {
			run->as_text = true; /* so it cannot be missed again */
			error_discard(failure);
			continue;
		}
		/*
		 * "Active" may still be the lost backend in its COMMIT, and an error tells nothing: only a
		 * verdict does.
		 */
		bool waits = code == ONCE_ACTIVE && (in_doubt || lost_before || now_ms() - start < options.wait_ms);
		in_doubt = in_doubt && !is_verdict(code);
		if (!waits && !is_race(run, code, *failure) && !run->again) {
			code = in_doubt ? still_unknown(failure) : code;
			break;
		}
		int64_t pause = backoff(run->session, &options, tries);
		if (now_ms() + pause >= deadline) {
			code = end_at_deadline(run, code, in_doubt, failure);
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
	if (run->begin == SQL_COUNT) {
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
	                 .begin = begin_of(options),
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
	                 .begin = begin_of(options),
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
	for (size_t i = 0; i < count; i++) {
		if (statements[i].sql == NULL || !statement_fits_list(statements[i].sql)) {
			return error_usage(error, "a statement of the list is missing, is a COPY, or begins or ends a transaction");
		}
	}
	run.steps = calloc(count + STEPS_BESIDE_STATEMENTS, sizeof *run.steps);
	if (run.steps == NULL) {
		return error_no_memory(error);
	}
	code = execute(&run, attempt_statements, options, answer, error);
	free(run.steps);
	return code;
}
