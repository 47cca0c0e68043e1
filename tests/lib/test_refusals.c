/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_refusals.c: what each function of the library says when it cannot do what it is asked:
 * called wrongly, on a connection that is lost, on a contract that answers in another form, and
 * with values that are too many. Nothing is left behind, and nothing is told that did not happen.
 */
#include <limits.h>

#include "support.h"

#include "internal.h"
#include "sql.h"

static once_session *session;
static const once_fingerprint print = {{1}};
static const once_intent intent = {.scope = "refused", .key = "k"};
static const once_outcome outcome = {.response_status = 200};
static const once_statement nothing = {.sql = "SELECT 1"};

/* What a call put out; each must stay as it was where the call failed. */
typedef struct outputs {
	once_answer *answer;
	once_answers *answers;
	char event_id[37];
	once_fingerprint print;
	bool flag;
} outputs;

static once_effect_result do_nothing(PGconn *connection, void *argument, once_outcome *made, PGresult **failed)
{
	(void)failed;
	(void)connection;
	(void)argument;
	(void)made;
	return ONCE_EFFECT_DONE;
}

/* Each function that asks the database, called on any session and intent. */
#define CALL(name, expression)                                                                                         \
	static once_code name(once_session *on, const once_intent *of, outputs *out, once_error **error)                   \
	{                                                                                                                  \
		(void)of;                                                                                                      \
		(void)out;                                                                                                     \
		return expression;                                                                                             \
	}

CALL(check, once_session_check(on, error))
CALL(start, once_start(on, of, &print, &out->answer, error))
CALL(finish, once_finish(on, of, &print, ONCE_STATE_FAILED_RETRYABLE, &outcome, error))
CALL(claim, once_claim(on, of, &print, "me", 0, 0, &out->answer, error))
CALL(complete, once_complete(on, of, 1, &outcome, error))
CALL(fail_it, once_fail(on, of, 1, ONCE_FAILURE_FINAL, NULL, error))
CALL(renew, once_renew(on, of, 1, 0, &out->flag, error))
CALL(release, once_release(on, of, 1, &out->flag, error))
CALL(peek, once_peek(on, of, &out->answer, error))
CALL(resolve, once_resolve(on, of, ONCE_STATE_FAILED_FINAL, "why", &outcome, NULL, error))
CALL(emit, once_emit(on, NULL, of, &(once_event){.topic = "t", .payload = "{}"}, out->event_id, error))
CALL(emit_bytes, once_emit_bytes(on, NULL, of, &(once_event){.topic = "t"}, (once_bytes){.data = "", .length = 0},
                                 "a/b", out->event_id, error))
CALL(claim_many, once_claim_many(on, NULL, 1, of, &print, NULL, 0, 0, &out->answers, error))
CALL(complete_many, once_complete_many(on, NULL, 1, of, &(int){1}, &outcome, &out->answers, error))
CALL(fail_many,
     once_fail_many(on, NULL, 1, of, &(int){1}, &(once_failure){ONCE_FAILURE_FINAL}, &outcome, &out->answers, error))
CALL(renew_many, once_renew_many(on, NULL, 1, of, &(int){1}, 0, &out->flag, error))
CALL(print_bytes, once_fingerprint_bytes(on, "a tenant", bytes_of("x"), &out->print, error))
CALL(print_json, once_fingerprint_json(on, "a tenant", "{}", &out->print, error))
CALL(print_request,
     once_fingerprint_request(on, "a tenant", "POST", "/", NULL, (once_bytes){.length = 7}, true, &out->print, error))
CALL(execute_effect, once_execute(on, of, &print, do_nothing, NULL, NULL, &out->answer, error))
CALL(execute_statements, once_execute_statements(on, of, &print, 1, &nothing, &outcome, NULL, &out->answer, error))

typedef struct refusable {
	const char *name;
	once_code (*call)(once_session *, const once_intent *, outputs *, once_error **);
	bool takes_intent;
	bool within; /* a transaction of the caller's */
} refusable;

static const refusable calls[] = {
    {"session_check", check, false, false},
    {"start", start, true, true},
    {"finish", finish, true, false},
    {"claim", claim, true, false},
    {"complete", complete, true, false},
    {"fail", fail_it, true, false},
    {"renew", renew, true, false},
    {"release", release, true, false},
    {"peek", peek, true, false},
    {"resolve", resolve, true, false},
    {"emit", emit, false, false},
    {"emit_bytes", emit_bytes, false, false},
    {"claim_many", claim_many, true, false},
    {"complete_many", complete_many, true, false},
    {"fail_many", fail_many, true, false},
    {"renew_many", renew_many, true, false},
    {"fingerprint_bytes", print_bytes, false, false},
    {"fingerprint_json", print_json, false, false},
    {"fingerprint_request", print_request, false, false},
    {"execute", execute_effect, true, false},
    {"execute_statements", execute_statements, true, false},
};
enum {
	CALLS = sizeof calls / sizeof calls[0]
};

static void refuse(const refusable *at, once_session *on, const once_intent *of, once_code expected)
{
	outputs out = {0};
	once_error *error = NULL;
	once_code code = at->call(on, of, &out, &error);
	/* Where the COMMIT went out with all the rest, its loss is said. */
	if (expected == ONCE_CONNECTION && at->call == execute_statements && code == ONCE_OUTCOME_UNKNOWN) {
		expected = code;
	}
	if (code != expected) {
		fail_msg("%s said %s, not %s: %s", at->name, once_code_name(code), once_code_name(expected),
		         once_error_message(error));
	}
	assert_int_equal(once_error_code(error), expected);
	assert_true(once_error_message(error)[0] != '\0');
	assert_null(out.answer);
	assert_null(out.answers);
	assert_false(out.flag);
	once_error_free(error);
}

static void each_function_refuses_a_missing_session_or_intent(void **state)
{
	(void)state;
	for (int i = 0; i < CALLS; i++) {
		refuse(&calls[i], NULL, &intent, ONCE_USAGE);
		if (calls[i].takes_intent) {
			refuse(&calls[i], session, NULL, ONCE_USAGE);
		}
	}
}

static void what_guards_a_transaction_is_refused_where_none_is_open(void **state)
{
	(void)state;
	for (int i = 0; i < CALLS; i++) {
		if (calls[i].within) {
			refuse(&calls[i], session, &intent, ONCE_USAGE);
		}
	}
	assert_int_equal(query_int(session, "SELECT count(*) FROM once.intent WHERE scope IN ('refused', 'consumer')"), 0);
}

static void each_function_refuses_what_else_it_needs_and_does_not_get(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_answers *answers = NULL;
	once_session *none = NULL;
	bool flag = false;
	char id[37];
	once_fingerprint made;
	const int fence = 1;
	const once_failure failure = ONCE_FAILURE_FINAL;
	const once_event event = {.topic = "t", .payload = "{}"};
	assert_code(ONCE_USAGE, once_finish(session, &intent, &print, ONCE_STATE_SUCCEEDED, NULL, &error), error);
	assert_code(ONCE_USAGE, once_finish(session, &intent, &print, ONCE_STATE_PROCESSING, &outcome, &error), error);
	run_sql(session, "BEGIN");
	assert_code(ONCE_USAGE, once_start(session, &intent, &print, NULL, &error), error);
	run_sql(session, "COMMIT");
	assert_code(ONCE_USAGE, once_claim(session, &intent, &print, NULL, 0, 0, NULL, &error), error);
	assert_code(ONCE_USAGE, once_peek(session, &intent, NULL, &error), error);
	assert_code(ONCE_USAGE, once_claim_many(session, NULL, 1, &intent, &print, NULL, 0, 0, NULL, &error), error);
	assert_code(ONCE_USAGE, once_complete_many(session, NULL, 1, &intent, &fence, &outcome, NULL, &error), error);
	assert_code(ONCE_USAGE, once_fail_many(session, NULL, 1, &intent, &fence, &failure, &outcome, NULL, &error), error);
	assert_code(ONCE_USAGE, once_renew_many(session, NULL, 1, &intent, &fence, 0, NULL, &error), error);
	assert_code(ONCE_USAGE, once_complete(session, &intent, 1, NULL, &error), error);
	assert_code(ONCE_USAGE, once_fail(session, &intent, 1, (once_failure)0, NULL, &error), error);
	assert_code(ONCE_USAGE, once_emit(session, NULL, NULL, NULL, id, &error), error);
	assert_code(ONCE_USAGE, once_emit(session, NULL, NULL, &event, NULL, &error), error);
	const once_event later = {.topic = "t", .not_before = "2090-10-29 02:30+01"}, plain = {.topic = "t"};
	const once_bytes payload = {.data = "", .length = 0};
	assert_code(ONCE_USAGE, once_emit_bytes(session, NULL, NULL, NULL, payload, "a/b", id, &error), error);
	assert_code(ONCE_USAGE, once_emit_bytes(session, NULL, NULL, &plain, payload, "a/b", NULL, &error), error);
	assert_code(ONCE_USAGE, once_emit_bytes(session, NULL, NULL, &event, payload, "a/b", id, &error), error);
	assert_code(ONCE_USAGE, once_emit_bytes(session, NULL, NULL, &later, payload, "a/b", id, &error), error);
	assert_code(ONCE_USAGE, once_claim_many(session, NULL, 1, &intent, NULL, NULL, 0, 0, &answers, &error), error);
	assert_code(ONCE_USAGE, once_complete_many(session, NULL, 1, &intent, &fence, NULL, &answers, &error), error);
	assert_code(ONCE_USAGE, once_complete_many(session, NULL, 1, &intent, NULL, &outcome, &answers, &error), error);
	assert_code(ONCE_USAGE, once_fail_many(session, NULL, 1, &intent, NULL, &failure, &outcome, &answers, &error),
	            error);
	assert_code(ONCE_USAGE, once_fail_many(session, NULL, 1, &intent, &fence, NULL, &outcome, &answers, &error), error);
	assert_code(ONCE_USAGE, once_fail_many(session, NULL, 1, &intent, &fence, &failure, NULL, &answers, &error), error);
	assert_code(ONCE_USAGE,
	            once_claim_many(session, NULL, (size_t)INT_MAX + 1, &intent, &print, NULL, 0, 0, &answers, &error),
	            error);
	assert_code(ONCE_USAGE, once_fingerprint_bytes(session, NULL, bytes_of("x"), NULL, &error), error);
	assert_code(ONCE_USAGE, once_fingerprint_json(session, NULL, NULL, &made, &error), error);
	assert_code(ONCE_USAGE, once_fingerprint_json(session, NULL, "{}", NULL, &error), error);
	assert_code(ONCE_USAGE, once_fingerprint_request(session, NULL, NULL, "/", NULL, bytes_of(""), true, &made, &error),
	            error);
	assert_code(ONCE_USAGE,
	            once_fingerprint_request(session, NULL, "GET", NULL, NULL, bytes_of(""), true, &made, &error), error);
	assert_code(ONCE_USAGE, once_fingerprint_request(session, NULL, "GET", "/", NULL, bytes_of(""), true, NULL, &error),
	            error);
	assert_code(ONCE_USAGE, once_execute(session, &intent, &print, NULL, NULL, NULL, &answer, &error), error);
	assert_code(ONCE_USAGE, once_execute(session, &intent, &print, do_nothing, NULL, NULL, NULL, &error), error);
	assert_code(ONCE_USAGE, once_execute_statements(session, &intent, &print, 1, NULL, &outcome, NULL, &answer, &error),
	            error);
	assert_code(ONCE_USAGE, once_execute_statements(session, &intent, &print, 1, &nothing, NULL, NULL, &answer, &error),
	            error);
	assert_code(ONCE_USAGE, once_execute_statements(session, &intent, &print, 0, NULL, &outcome, NULL, NULL, &error),
	            error);
	assert_code(ONCE_USAGE, once_session_open("", NULL, &error), error);
	assert_code(ONCE_USAGE, once_session_attach(NULL, &none, &error), error);
	assert_code(ONCE_USAGE, once_session_attach(once_session_connection(session), NULL, &error), error);
	assert_int_equal(query_int(session, "SELECT count(*) FROM once.intent WHERE scope = 'refused'"), 0);
	assert_null(answer);
	assert_null(answers);
	assert_null(none);
	assert_false(flag);
}

static void a_connection_that_is_not_idle_is_not_taken(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_session *other = open_session(), *attached = NULL;
	PGconn *connection = once_session_connection(other);
	assert_int_equal(PQenterPipelineMode(connection), 1);
	assert_code(ONCE_USAGE, once_session_attach(connection, &attached, &error), error);
	assert_int_equal(PQexitPipelineMode(connection), 1);
	assert_int_equal(PQsetnonblocking(connection, 1), 0);
	assert_code(ONCE_USAGE, once_session_attach(connection, &attached, &error), error);
	assert_null(attached);
	once_session_close(other);
	once_session_close(NULL);
}

/*
 * A caller's connection whose server process is gone: the library neither connects anew nor waits.
 */
static void refuse_on_a_lost_one(const refusable *at, bool prepare, bool known)
{
	once_error *error = NULL;
	once_session *opened = open_session(), *attached = NULL;
	assert_ok(once_session_attach(once_session_connection(opened), &attached, &error), error);
	once_session_prepare(attached, prepare);
	if (known) {
		/* Whatever it answers, the statement is prepared. */
		outputs out = {0};
		(void)at->call(attached, &intent, &out, &error);
		once_error_free(error);
		once_answer_free(out.answer);
		once_answers_free(out.answers);
	}
	if (at->within) {
		run_sql(attached, "BEGIN");
	}
	char end[64];
	snprintf(end, sizeof end, "SELECT pg_terminate_backend(%d)", PQbackendPID(once_session_connection(attached)));
	run_sql(session, end);
	refuse(at, attached, &intent, ONCE_CONNECTION);
	/* And where libpq knows of it, so that nothing is sent. */
	refuse(at, attached, &intent, ONCE_CONNECTION);
	once_session_close(attached);
	once_session_close(opened);
}

static void each_function_says_that_the_connection_is_lost(void **state)
{
	(void)state;
	for (int i = 0; i < CALLS; i++) {
		refuse_on_a_lost_one(&calls[i], false, false);
		refuse_on_a_lost_one(&calls[i], true, false);
	}
	refuse_on_a_lost_one(&calls[2], true, true);
}

/* Puts a function in the place of the contract's until the transaction ends. */
static void replace(const char *name, const char *returns, const char *body)
{
	char sql[4096];
	snprintf(
	    sql, sizeof sql,
	    "DO $do$ DECLARE old record; BEGIN "
	    "SELECT oid::regprocedure AS name, (SELECT string_agg(format('%%I %%s DEFAULT NULL', proargnames[n], "
	    "type::regtype), ', ' "
	    "  ORDER BY n) FROM unnest(proargtypes::oid[]) WITH ORDINALITY AS argument (type, n)) AS arguments INTO STRICT "
	    "old "
	    "  FROM pg_proc WHERE pronamespace = 'once'::regnamespace AND proname = '%s'; "
	    "EXECUTE format('ALTER FUNCTION %%s RENAME TO replaced', old.name); "
	    "EXECUTE format('CREATE FUNCTION once.%s(%%s) RETURNS %s LANGUAGE sql AS %%L', old.arguments, $body$%s$body$); "
	    "END $do$",
	    name, name, returns, body);
	run_sql(session, sql);
}

typedef struct strange {
	const char *name; /* of the call, and where that is another: of the function */
	const char *function;
	const char *returns;
	const char *body;
	once_code code;
} strange;

#define PEEK_ROW                                                                                                       \
	"TABLE (verdict text, fence integer, state once.state, response_status integer, response_headers jsonb, "          \
	"response_body bytea, "                                                                                            \
	"result_type text, result_id text, error_code text, error_message text, owner text, lease_until timestamptz, "     \
	"attempts integer, "                                                                                               \
	"created_at timestamptz, completed_at timestamptz, traceparent text)"
#define RESULT_PEEK                                                                                                    \
	"NULL::int, NULL::once.state, NULL::int, NULL::jsonb, NULL::bytea, NULL::text, NULL::text, NULL::text, "           \
	"NULL::text, "                                                                                                     \
	"NULL::text, NULL::timestamptz, NULL::int, NULL::timestamptz, NULL::timestamptz, NULL::text"

static const strange forms[] = {
    {"session_check", "contract_version", "integer", "SELECT 0", ONCE_CONTRACT},
    {"session_check", "contract_version", "integer", "SELECT -1", ONCE_CONTRACT},
    {"session_check", "contract_version", "bigint", "SELECT 4::bigint", ONCE_CONTRACT},
    {"session_check", "contract_version", "integer", "SELECT (1 / (random() * 0))::int", ONCE_DATABASE},
    {"peek", "peek", PEEK_ROW, "SELECT 'a new word', " RESULT_PEEK, ONCE_CONTRACT},
    {"peek", "peek", PEEK_ROW, "SELECT 'absent', " RESULT_PEEK " WHERE false", ONCE_CONTRACT},
    {"emit", "emit", "SETOF uuid", "SELECT gen_random_uuid() WHERE false", ONCE_CONTRACT},
    {"emit", "emit", "text", "SELECT 'short'", ONCE_CONTRACT},
    {"emit_bytes", "emit_bytes", "text", "SELECT 'short'", ONCE_CONTRACT},
    {"fingerprint_bytes", "salt", "bytea", "SELECT 'short'::bytea", ONCE_CONTRACT},
    {"fingerprint_request", "salt", "bytea", "SELECT 'short'::bytea", ONCE_CONTRACT},
    {"try_lock", "try_lock", "void", "SELECT", ONCE_OK},
    {"try_lock", "try_lock", "SETOF boolean", "SELECT true WHERE false", ONCE_OK},
};

static void a_contract_that_answers_in_another_form_is_not_believed(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
		run_sql(session, "BEGIN");
		replace(forms[i].function, forms[i].returns, forms[i].body);
		for (int n = 0; n < CALLS; n++) {
			if (strcmp(calls[n].name, forms[i].name) != 0) {
				continue;
			}
			if (forms[i].code == ONCE_OK) {
				/* Not told that it holds a lock. */
				outputs out = {0};
				once_error *error = NULL;
				assert_ok(calls[n].call(session, &intent, &out, &error), error);
				assert_false(out.flag);
			} else {
				once_session *fresh = NULL;
				once_error *error = NULL;
				assert_ok(once_session_attach(once_session_connection(session), &fresh, &error), error);
				refuse(&calls[n], fresh, &intent, forms[i].code);
				once_session_close(fresh);
			}
		}
		run_sql(session, "ROLLBACK");
	}
}

static void a_batch_whose_answers_are_too_few_or_of_another_kind_is_not_believed(void **state)
{
	(void)state;
	outputs out = {0};
	once_error *error = NULL;
	run_sql(session, "BEGIN");
	replace("renew_many", "TABLE (ord integer, renewed boolean)", "SELECT 1, true WHERE false");
	assert_ok(renew_many(session, &intent, &out, &error), error);
	assert_false(out.flag);
	run_sql(session, "ROLLBACK");
	run_sql(session, "BEGIN");
	replace("complete_many", "TABLE (ord integer, verdict text, error_code text, error_message text)",
	        "SELECT 1, 'stored', NULL::text, NULL::text WHERE false");
	assert_code(ONCE_CONTRACT, complete_many(session, &intent, &out, &error), error);
	run_sql(session, "ROLLBACK");
	run_sql(session, "BEGIN");
	replace("complete_many", "TABLE (ord integer, verdict text, error_code text, error_message text)",
	        "SELECT 1, 'a new word', NULL::text, NULL::text");
	assert_ok(complete_many(session, &intent, &out, &error), error);
	assert_int_equal(once_answer_verdict(once_answers_at(out.answers, 0)), ONCE_VERDICT_NONE);
	assert_false(once_answer_may_run(once_answers_at(out.answers, 0)));
	once_answers_free(out.answers);
	run_sql(session, "ROLLBACK");
}

/* The caller's own functions may be missing too, which says nothing of the contract. */
static void a_missing_function_is_the_contracts_only_where_it_is_the_contracts(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answer *answer = NULL;
	once_statement missing = {.sql = "SELECT nobody_has_me()"};
	assert_code(ONCE_DATABASE,
	            once_execute_statements(session, &intent, &print, 1, &missing, &outcome, NULL, &answer, &error), error);
	run_sql(session, "BEGIN");
	run_sql(session, "DO $$ DECLARE old text; BEGIN SELECT oid::regprocedure INTO STRICT old FROM pg_proc"
	                 "  WHERE pronamespace = 'once'::regnamespace AND proname = 'release';"
	                 "  EXECUTE format('ALTER FUNCTION %s RENAME TO replaced', old); END $$");
	bool flag = false;
	once_code code = once_release(session, &intent, 1, &flag, &error);
	assert_int_equal(code, ONCE_CONTRACT);
	assert_non_null(strstr(once_error_hint(error), "pgonce init"));
	once_error_free(error);
	error = NULL;
	run_sql(session, "ROLLBACK");
	/* Where there is no error object, the code alone tells. */
	assert_int_equal(once_execute_statements(session, &intent, &print, 1, &missing, &outcome, NULL, &answer, NULL),
	                 ONCE_DATABASE);
	assert_int_equal(once_release(NULL, &intent, 1, &flag, NULL), ONCE_USAGE);
	assert_null(answer);
}

static void what_a_statement_is_refused_for_names_the_statements_own_reason(void **state)
{
	(void)state;
	const once_intent stated = {.scope = "refused", .key = "stated"};
	once_error *error = NULL;
	once_answer *answer = NULL;
	static const struct {
		const char *sql;
		once_code code;
		bool retriable;
	} refused[] = {{"SELECT 1 / 0", ONCE_DATABASE, false},
	               {"COPY once.meta TO STDOUT", ONCE_USAGE, false},
	               {"DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", ONCE_DATABASE, true},
	               {"DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$", ONCE_DATABASE, true},
	               {"DO $$ BEGIN RAISE SQLSTATE '3F000' USING MESSAGE = 'schema \"twice\" does not exist'; END $$",
	                ONCE_DATABASE, false},
	               {"DO $$ BEGIN RAISE SQLSTATE '3F000' USING MESSAGE = 'schema \"once\" does not exist'; END $$",
	                ONCE_DATABASE, false}};
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
		const once_statement statement = {.sql = refused[i].sql};
		once_options options = {.deadline_ms = 1};
		once_session *own = open_session();
		once_code code =
		    once_execute_statements(own, &stated, &print, 1, &statement, &outcome, &options, &answer, &error);
		if (code != refused[i].code && code != ONCE_DEADLINE) {
			fail_msg("%s: %s: %s", refused[i].sql, once_code_name(code), once_error_message(error));
		}
		assert_true(once_error_retriable(error) == refused[i].retriable);
		assert_null(answer);
		once_error_free(error);
		error = NULL;
		once_session_close(own);
	}
	assert_int_equal(query_int(session, "SELECT count(*) FROM once.intent WHERE scope = 'refused' AND key = 'stated'"),
	                 0);
}

static void a_value_larger_than_postgresql_takes_is_refused_before_it_is_sent(void **state)
{
	(void)state;
	once_error *error = NULL;
	once_answers *answers = NULL;
	/* Nothing reads it: the length alone is looked at. */
	const once_outcome large = {.response_body = {.data = "x", .length = (size_t)INT_MAX + 1}};
	const int fence = 1;
	assert_code(ONCE_TOO_LARGE, once_complete(session, &intent, 1, &large, &error), error);
	assert_code(ONCE_TOO_LARGE, once_complete_many(session, NULL, 1, &intent, &fence, &large, &answers, &error), error);
	assert_null(answers);
}

static void a_call_with_another_number_of_parameters_than_its_query_is_not_sent(void **state)
{
	(void)state;
	once_error *error = NULL;
	PGresult *result = NULL;
	call call;
	call_start(&call, SQL_PEEK);
	call_add_text(&call, "one of three");
	assert_code(ONCE_USAGE, call_run(session, &call, &result, &error), error);
	assert_null(result);
	call_start(&call, SQL_PEEK);
	for (int i = 0; i <= CALL_PARAMETERS_MAX; i++) {
		call_add_text(&call, "too many");
	}
	call_add_array(&call, TYPE_TEXT, 0, NULL, NULL);
	assert_code(ONCE_TOO_LARGE, call_send_on(once_session_connection(session), false, &call, &error), error);
}

int main(void)
{
	session = open_session();
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_function_refuses_a_missing_session_or_intent),
	    cmocka_unit_test(what_guards_a_transaction_is_refused_where_none_is_open),
	    cmocka_unit_test(each_function_refuses_what_else_it_needs_and_does_not_get),
	    cmocka_unit_test(a_connection_that_is_not_idle_is_not_taken),
	    cmocka_unit_test(each_function_says_that_the_connection_is_lost),
	    cmocka_unit_test(a_contract_that_answers_in_another_form_is_not_believed),
	    cmocka_unit_test(a_batch_whose_answers_are_too_few_or_of_another_kind_is_not_believed),
	    cmocka_unit_test(a_missing_function_is_the_contracts_only_where_it_is_the_contracts),
	    cmocka_unit_test(what_a_statement_is_refused_for_names_the_statements_own_reason),
	    cmocka_unit_test(a_value_larger_than_postgresql_takes_is_refused_before_it_is_sent),
	    cmocka_unit_test(a_call_with_another_number_of_parameters_than_its_query_is_not_sent),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	once_session_close(session);
	return failed;
}
