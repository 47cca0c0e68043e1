/* SPDX-License-Identifier: PostgreSQL */
/*
 * play_execute.c: one call of once_execute for a test that breaks the connection under it.
 * play_execute DSN MODE KEY [DEADLINE_MS [prepared]]; MODE is effect, failing (an effect that fails
 * for good), ending (one that ends its transaction, goes on in another one, and asks to run again),
 * again (one that asks to run again, once), or statements, or one of these behind attached_.
 * prepared: all is, by a first execution of the key "warm-up". Prints "ok VERDICT BODY" or "error
 * NAME retriable=R outcome_unknown=U"; for an effect that does not succeed at once, also how often
 * it ran.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pgonce.h"

static once_effect_result insert(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	const char *const parameters[] = {argument};
	PGresult *result =
	    PQexecParams(connection, "INSERT INTO play_effect VALUES ($1)", 1, NULL, parameters, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_COMMAND_OK) {
		*failed = result;
		return ONCE_EFFECT_RETRY;
	}
	PQclear(result);
	outcome->response_body = (once_bytes){.data = "answer", .length = 6};
	return ONCE_EFFECT_DONE;
}

static int runs;

static once_effect_result refuse(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	runs++;
	if (insert(connection, argument, outcome, failed) == ONCE_EFFECT_RETRY) {
		return ONCE_EFFECT_RETRY;
	}
	outcome->response_status = 422;
	outcome->error_message = "declined";
	return ONCE_EFFECT_FAILED;
}

static once_effect_result end(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	runs++;
	if (insert(connection, argument, outcome, failed) == ONCE_EFFECT_DONE) {
		PQclear(PQexec(connection, "COMMIT; BEGIN"));
	}
	return ONCE_EFFECT_RETRY;
}

static once_effect_result ask_again(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	once_effect_result done = insert(connection, argument, outcome, failed);
	return ++runs == 1 ? ONCE_EFFECT_RETRY : done;
}

typedef enum form {
	EFFECT,
	FAILING,
	ENDING,
	AGAIN,
	STATEMENTS
} form;

static const once_effect effects[] = {[EFFECT] = insert, [FAILING] = refuse, [ENDING] = end, [AGAIN] = ask_again};

static form form_of(const char *mode)
{
	static const char *const names[] = {
	    [FAILING] = "failing", [ENDING] = "ending", [AGAIN] = "again", [STATEMENTS] = "statements"};
	for (form form = FAILING; form <= STATEMENTS; form++) {
		if (strstr(mode, names[form]) != NULL) {
			return form;
		}
	}
	return EFFECT;
}

static once_code execute(once_session *session, const char *key, form form, const once_options *options,
                         once_answer **answer, once_error **error)
{
	const once_fingerprint fingerprint = {{7}};
	const once_intent intent = {.scope = "play", .key = key};
	const once_statement statement = {
	    .sql = "INSERT INTO play_effect VALUES ($1)", .parameter_count = 1, .parameters = &key};
	const once_outcome outcome = {.response_body = {.data = "answer", .length = 6}};
	return form == STATEMENTS ? once_execute_statements(session, &intent, &fingerprint, 1, &statement, &outcome,
	                                                    options, answer, error)
	                          : once_execute(session, &intent, &fingerprint, effects[form], (void *)(uintptr_t)key,
	                                         options, answer, error);
}

/* Twice: the replay prepares what only a replay needs. */
static once_code warm_up(once_session *session, form form, const once_options *options, once_error **error)
{
	once_code code = ONCE_OK;
	once_session_prepare(session, true);
	for (int i = 0; i < 2 && code == ONCE_OK; i++) {
		once_answer *answer = NULL;
		code = execute(session, "warm-up", form, options, &answer, error);
		once_answer_free(answer);
		if (form == FAILING && code == ONCE_FINAL_FAILURE) {
			once_error_free(*error);
			*error = NULL;
			code = ONCE_OK;
		}
	}
	runs = 0;
	return code;
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(
		    stderr,
		    "usage: play_execute DSN [attached_]effect|failing|ending|again|statements KEY [DEADLINE_MS [prepared]]\n");
		return 2;
	}
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_session *session = NULL;
	PGconn *connection = NULL;
	once_options options = {.deadline_ms = argc > 4 ? atoll(argv[4]) : 10000};
	form form = form_of(argv[2]);
	once_code code;
	if (strncmp(argv[2], "attached", strlen("attached")) == 0) {
		connection = PQconnectdb(argv[1]);
		code = once_session_attach(connection, &session, &error);
	} else {
		code = once_session_open(argv[1], &session, &error);
	}
	if (code == ONCE_OK && argc > 5) {
		code = warm_up(session, form, &options, &error);
	}
	if (code == ONCE_OK) {
		code = execute(session, argv[3], form, &options, &answer, &error);
	}
	if (code == ONCE_OK) {
		once_bytes body = once_answer_response_body(answer);
		printf("ok %s %.*s", once_verdict_name(once_answer_verdict(answer)), (int)body.length, (const char *)body.data);
	} else {
		printf("error %s retriable=%d outcome_unknown=%d", once_code_name(code), once_error_retriable(error),
		       once_error_outcome_unknown(error));
	}
	if (form == FAILING || form == ENDING || form == AGAIN) {
		printf(" runs=%d", runs);
	}
	printf("\n");
	once_answer_free(answer);
	once_error_free(error);
	once_session_close(session);
	PQfinish(connection);
	return 0;
}
