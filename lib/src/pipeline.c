/* SPDX-License-Identifier: PostgreSQL */
/*
 * pipeline.c: several statements in one round trip, by libpq's pipeline mode on a blocking
 * connection. There is one Sync, at the end: after a failed statement the server skips the rest,
 * including a COMMIT. A statement that must be prepared is prepared right before its first use, in
 * the same round trip. execute.c calls it.
 */
#include <assert.h>
#include <sys/socket.h>

#include "internal.h"

static void fail_to_send(pipeline *pipeline)
{
	pipeline->code = error_of_connection(pipeline->error, pipeline->session->connection);
}

void pipeline_open(pipeline *pipeline, once_session *session, bool prepares, step *steps, size_t room,
                   once_error **error)
{
	*pipeline = (struct pipeline){
	    .session = session, .steps = steps, .room = room, .prepares = prepares, .code = ONCE_OK, .error = error};
	if (PQpipelineStatus(session->connection) != PQ_PIPELINE_OFF && PQstatus(session->connection) == CONNECTION_OK) {
		/* Answers to an effect's statements would be mistaken for those to the library's. */
		pipeline->code = error_usage(error, "the effect has left the connection in pipeline mode");
		return;
	}
	prepared_tidy(session);
	pipeline->is_open = PQenterPipelineMode(session->connection) == 1;
	if (!pipeline->is_open) {
		fail_to_send(pipeline);
	}
}

/* Prepares the next statement, if it should be. NULL: nothing more is sent. */
static step *next_step(pipeline *pipeline, prepared prepared, const char *text, bool is_ours)
{
	if (pipeline->code != ONCE_OK) {
		return NULL;
	}
	assert(pipeline->count < pipeline->room);
	step *step = &pipeline->steps[pipeline->count];
	*step = (struct step){.prepared = prepared, .is_ours = is_ours};
	if (prepared.name != NULL && !*prepared.known) {
		if (PQsendPrepare(pipeline->session->connection, prepared.name, text, 0, NULL) != 1) {
			fail_to_send(pipeline);
			return NULL;
		}
		step->parses = true;
		*prepared.known = true; /* for the next one with this text */
	}
	pipeline->count++;
	return step;
}

void pipeline_call(pipeline *pipeline, call *call)
{
	once_session *session = pipeline->session;
	prepared prepared = {0};
	if (pipeline->prepares) {
		prepared = prepared_query(session, call->id);
	}
	step *step = next_step(pipeline, prepared, sql_queries[call->id].text, true);
	if (step == NULL) {
		return;
	}
	if (call->id == SQL_COMMIT) {
		/* From here on the server may commit although no answer arrives. */
		step->commits = true;
		pipeline->commit_unanswered = true;
	}
	pipeline->code = call_send_on(session->connection, prepared.name != NULL, call, pipeline->error);
}

void pipeline_command(pipeline *pipeline, enum sql_id id)
{
	call command;
	call_start(&command, id);
	pipeline_call(pipeline, &command);
}

void pipeline_keep(pipeline *pipeline, PGresult **kept)
{
	*kept = NULL;
	if (pipeline->code == ONCE_OK) {
		pipeline->steps[pipeline->count - 1].kept = kept;
	}
}

void pipeline_statement(pipeline *pipeline, const once_statement *statement)
{
	PGconn *connection = pipeline->session->connection;
	prepared prepared = {0};
	if (pipeline->prepares) {
		prepared = prepared_text_of(pipeline->session, statement->sql);
	}
	if (next_step(pipeline, prepared, statement->sql, false) == NULL) {
		return;
	}
	int sent = prepared.name != NULL ? PQsendQueryPrepared(connection, prepared.name, statement->parameter_count,
	                                                       statement->parameters, NULL, NULL, 0)
	                                 : PQsendQueryParams(connection, statement->sql, statement->parameter_count, NULL,
	                                                     statement->parameters, NULL, NULL, 0);
	if (sent != 1) {
		fail_to_send(pipeline);
	}
}

/* ---- Reading ---- */

/* The connection cannot be made usable again: it is lost, also for its owner. */
static void break_connection(PGconn *connection)
{
	shutdown(PQsocket(connection), SHUT_RDWR);
	for (int i = 0; i < 3 && PQstatus(connection) == CONNECTION_OK; i++) {
		(void)PQconsumeInput(connection);
	}
}

/*
 * Ends the pipeline, so that the server answers all of it. Also after a failed send: without the
 * Sync, waiting for the answers to the sent part would never end.
 */
static bool sync_pipeline(PGconn *connection)
{
	if (PQpipelineSync(connection) == 1) {
		return true;
	}
	/* Without memory even for that. */
	break_connection(connection);
	return false;
}

/*
 * Is it an error of libpq itself, without SQLSTATE: no memory for a result? The result is lost,
 * maybe the Sync, and waiting for it would never end. COPY waits for data that is never sent.
 */
static bool derails(const PGresult *result)
{
	switch (PQresultStatus(result)) {
	case PGRES_FATAL_ERROR:
		return result == NULL || PQresultErrorField(result, PG_DIAG_SQLSTATE) == NULL;
	case PGRES_COPY_IN:
	case PGRES_COPY_OUT:
	case PGRES_COPY_BOTH:
		return true;
	default:
		return false;
	}
}

/* Leaves pipeline mode, discarding all answers up to the Sync. */
static void leave_pipeline(PGconn *connection)
{
	/* Ends of statements in a row: one each. More of them mean that libpq waits for nothing. */
	int ends = 0;
	while (PQpipelineStatus(connection) != PQ_PIPELINE_OFF && PQstatus(connection) == CONNECTION_OK &&
	       PQexitPipelineMode(connection) != 1) {
		PGresult *result = PQgetResult(connection);
		ends = result == NULL ? ends + 1 : 0;
		if (ends > 2 || (result != NULL && derails(result))) {
			break_connection(connection);
		}
		PQclear(result);
	}
}

void pipeline_abandon(once_session *session)
{
	if (PQpipelineStatus(session->connection) != PQ_PIPELINE_OFF && sync_pipeline(session->connection)) {
		leave_pipeline(session->connection);
	}
}

static void take_failure(pipeline *pipeline, step *step, const PGresult *result, bool in_parse)
{
	once_session *session = pipeline->session;
	const char *sqlstate = text_or_empty(PQresultErrorField(result, PG_DIAG_SQLSTATE));
	pipeline->code = step->is_ours ? error_of_result(pipeline->error, session->connection, result)
	                               : error_of_callers_result(pipeline->error, session->connection, result);
	/*
	 * Any answer of the server settles it, except its farewell: a COMMIT that it could not end
	 * (FATAL, PANIC) may be on disk. Silence settles nothing.
	 */
	const char *severity = text_or_empty(PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED));
	bool farewell =
	    once_code_of_sqlstate(sqlstate) == ONCE_CONNECTION || (step->commits && strcmp(severity, "ERROR") != 0);
	if (!farewell) {
		pipeline->commit_unanswered = false;
	}
	pipeline->missed =
	    step->prepared.name != NULL && prepared_missed(session, step->prepared, in_parse, step->parses, sqlstate);
	step->parsed = step->parsed || (in_parse && pipeline->missed); /* it exists already */
}

/* The next answer. NULL: it is a failure, which is recorded. */
static PGresult *next_result(pipeline *pipeline, step *step, bool in_parse)
{
	PGconn *connection = pipeline->session->connection;
	PGresult *result = PQgetResult(connection);
	PGresult *end = result == NULL ? NULL : PQgetResult(connection);
	ExecStatusType status = PQresultStatus(result);
	bool is_whole = end == NULL && !derails(result);
	PQclear(end);
	/* An empty statement is not an error: the server continues, to the COMMIT after it. */
	if (is_whole && (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_EMPTY_QUERY)) {
		return result;
	}
	take_failure(pipeline, step, result, in_parse);
	if (!is_whole) {
		break_connection(connection);
	}
	PQclear(result);
	return NULL;
}

/* The answer to a statement, NULL after a failure. */
static PGresult *read_step(pipeline *pipeline, step *step)
{
	if (step->parses) {
		PGresult *prepared = next_result(pipeline, step, true);
		if (prepared == NULL) {
			return NULL;
		}
		PQclear(prepared);
		step->parsed = true;
	}
	PGresult *result = next_result(pipeline, step, false);
	if (result == NULL || !step->commits) {
		return result;
	}
	/* COMMIT succeeds in a failed transaction, too: its tag then says ROLLBACK. */
	pipeline->commit_unanswered = false;
	if (strcmp(PQcmdStatus(result), "COMMIT") != 0) {
		PQclear(result);
		pipeline->code = error_make(pipeline->error, ONCE_DATABASE, "25P02", false,
		                            "the transaction had failed before its COMMIT, which rolled it back", NULL, NULL);
		return NULL;
	}
	return result;
}

/* Of the statements to prepare: those that were. */
static void note_prepared(const pipeline *pipeline)
{
	bool met = false;
	for (size_t i = 0; i < pipeline->count; i++) {
		const step *step = &pipeline->steps[i];
		if (step->parses) {
			*step->prepared.known = step->parsed;
		}
		met = met || (step->prepared.name != NULL && !step->parses);
	}
	if (met && pipeline->code == ONCE_OK) {
		prepared_met(pipeline->session);
	}
}

static void drop_kept(const pipeline *pipeline)
{
	for (size_t i = 0; i < pipeline->count; i++) {
		PGresult **kept = pipeline->steps[i].kept;
		if (kept != NULL) {
			PQclear(*kept);
			*kept = NULL;
		}
	}
}

once_code pipeline_run(pipeline *pipeline)
{
	PGconn *connection = pipeline->session->connection;
	if (!pipeline->is_open) {
		return pipeline->code;
	}
	if (!sync_pipeline(connection) && pipeline->code == ONCE_OK) {
		fail_to_send(pipeline);
	}
	for (size_t i = 0; i < pipeline->count && pipeline->code == ONCE_OK; i++) {
		step *step = &pipeline->steps[i];
		PGresult *result = read_step(pipeline, step);
		if (step->kept != NULL) {
			*step->kept = result;
		} else {
			PQclear(result);
		}
	}
	leave_pipeline(connection);
	note_prepared(pipeline);
	if (pipeline->code != ONCE_OK) {
		drop_kept(pipeline);
	}
	return pipeline->code;
}
