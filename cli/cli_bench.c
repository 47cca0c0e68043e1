/* SPDX-License-Identifier: PostgreSQL */
/*
 * cli_bench.c: pgonce bench: what the contract costs in this database from this machine, through libpgonce. Each measurement is a
 * row of the table below: a function that does one turn, run by some threads for some seconds.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "connect.h"
#include "heartbeat.h"

enum {
	CLIENTS_DEFAULT = 4,
	SECONDS_DEFAULT = 5,
	BATCH = 64,
	KEY_BYTES = 64
};

typedef struct client client;

typedef struct measurement {
	const char *name;
	const char *title;
	int clients; /* 0: as many as asked for */
	int intents; /* of one turn */
	bool (*turn)(client *client);
	const char *against; /* the name of what it is compared with; NULL: nothing */
} measurement;

struct client {
	const measurement *measurement;
	const char *conninfo;
	const char *scope;
	int number;
	int64_t until_ms;
	once_session *session;
	once_fingerprint fingerprint;
	long turns;
	once_error *error; /* of a call of the library that failed */
	char message[256]; /* or of a statement */
};

/* Ctrl-C ends the measurement under way; what was made is removed all the same. */
static atomic_bool interrupted;

static void interrupt(int signal)
{
	(void)signal;
	atomic_store(&interrupted, true);
}

static once_statement statement_of(enum sql_id id, const char *const *parameters)
{
	return (once_statement){
	    .sql = sql_queries[id].text, .parameter_count = sql_queries[id].parameter_count, .parameters = parameters};
}

static const char *const order_parameters[] = {"ann", "1999"};
static const char *const line_parameters[] = {"sku-1", "2"};

static void make_key(char key[KEY_BYTES], const client *client, long number)
{
	snprintf(key, KEY_BYTES, "%s-%d-%ld", client->measurement->name, client->number, number);
}

static bool fail_statement(client *client)
{
	snprintf(client->message, sizeof client->message, "%s", PQerrorMessage(once_session_connection(client->session)));
	return false;
}

/* The order's transaction without the contract, pipelined as once_execute_statements does it. */
static bool turn_bare(client *client)
{
	PGconn *connection = once_session_connection(client->session);
	const once_statement statements[] = {
	    statement_of(SQL_BEGIN_TRANSACTION, NULL), statement_of(SQL_BENCH_INSERT_ORDER, order_parameters),
	    statement_of(SQL_BENCH_INSERT_LINE, line_parameters), statement_of(SQL_COMMIT, NULL)};
	bool good = PQenterPipelineMode(connection) == 1;

	for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
		good = good && PQsendQueryParams(connection, statements[i].sql, statements[i].parameter_count, NULL,
		                                 statements[i].parameters, NULL, NULL, 0) == 1;
	}
	good = good && PQpipelineSync(connection) == 1;
	/* Each statement's result is followed by a NULL; the sync's comes last. */
	for (bool synced = false; good && !synced;) {
		PGresult *result = PQgetResult(connection);
		if (result != NULL) {
			ExecStatusType status = PQresultStatus(result);
			synced = status == PGRES_PIPELINE_SYNC;
			good = synced || status == PGRES_COMMAND_OK;
			PQclear(result);
		} else {
			good = PQstatus(connection) == CONNECTION_OK;
		}
	}
	good = good && PQexitPipelineMode(connection) == 1;
	return good || fail_statement(client);
}

static bool execute(client *client, const char *key)
{
	const once_statement statements[] = {statement_of(SQL_BENCH_INSERT_ORDER, order_parameters),
	                                     statement_of(SQL_BENCH_INSERT_LINE, line_parameters)};
	const once_intent intent = {.scope = client->scope, .key = key};
	const once_outcome outcome = {.response_status = 201, .response_body = {.data = "{\"order\": 1}", .length = 12}};
	once_answer *answer = NULL;
	bool good = once_execute_statements(client->session, &intent, &client->fingerprint, 2, statements, &outcome, NULL,
	                                    &answer, &client->error) == ONCE_OK;

	once_answer_free(answer);
	return good;
}

static bool turn_execute(client *client)
{
	char key[KEY_BYTES];

	make_key(key, client, client->turns);
	return execute(client, key);
}

static bool turn_select(client *client)
{
	PGresult *result = connect_query(once_session_connection(client->session), SQL_BENCH_SELECT, 0, NULL);
	bool good = PQresultStatus(result) == PGRES_TUPLES_OK;

	PQclear(result);
	return good || fail_statement(client);
}

/* One key per client: the first turn does it, all others are answered from what is stored. */
static bool turn_replay(client *client)
{
	char key[KEY_BYTES];

	make_key(key, client, 0);
	return execute(client, key);
}

static bool turn_lease(client *client)
{
	char key[KEY_BYTES];
	const once_intent intent = {.scope = client->scope, .key = key};
	const once_outcome outcome = {.response_status = 200, .response_body = {.data = "ok", .length = 2}};
	once_answer *answer = NULL;

	make_key(key, client, client->turns);
	bool good = once_claim(client->session, &intent, &client->fingerprint, "pgonce bench", 60000, 0, &answer,
	                       &client->error) == ONCE_OK;
	good =
	    good && once_complete(client->session, &intent, once_answer_fence(answer), &outcome, &client->error) == ONCE_OK;
	once_answer_free(answer);
	return good;
}

static bool turn_batch(client *client)
{
	char keys[BATCH][KEY_BYTES];
	once_intent intents[BATCH];
	once_fingerprint fingerprints[BATCH];
	once_outcome outcomes[BATCH];
	int fences[BATCH];
	once_answers *claims = NULL;
	once_answers *reports = NULL;

	for (int i = 0; i < BATCH; i++) {
		make_key(keys[i], client, client->turns * BATCH + i);
		intents[i] = (once_intent){.scope = client->scope, .key = keys[i]};
		fingerprints[i] = client->fingerprint;
		outcomes[i] = (once_outcome){.response_status = 200, .response_body = {.data = "ok", .length = 2}};
	}
	bool good = once_claim_many(client->session, NULL, BATCH, intents, fingerprints, "pgonce bench", 60000, 0, &claims,
	                            &client->error) == ONCE_OK;
	for (size_t i = 0; good && i < BATCH; i++) {
		fences[i] = once_answer_fence(once_answers_at(claims, i));
	}
	good = good && once_complete_many(client->session, NULL, BATCH, intents, fences, outcomes, &reports,
	                                  &client->error) == ONCE_OK;
	for (size_t i = 0; good && i < BATCH; i++) {
		if (once_answer_verdict(once_answers_at(reports, i)) != ONCE_STORED) {
			snprintf(client->message, sizeof client->message, "an outcome was not stored: %s",
			         once_verdict_name(once_answer_verdict(once_answers_at(reports, i))));
			good = false;
		}
	}
	once_answers_free(claims);
	once_answers_free(reports);
	return good;
}

static const measurement measurements[] = {
    {.name = "bare", .title = "order transaction, bare", .intents = 1, .turn = turn_bare},
    {.name = "execute",
     .title = "order transaction, start and finish",
     .intents = 1,
     .turn = turn_execute,
     .against = "bare"},
    {.name = "select", .title = "select 1", .intents = 1, .turn = turn_select},
    {.name = "replay", .title = "replay", .intents = 1, .turn = turn_replay, .against = "select"},
    {.name = "lease", .title = "claim and complete, one connection", .clients = 1, .intents = 1, .turn = turn_lease},
    {.name = "batch",
     .title = "claim and complete, one connection, batches of 64",
     .clients = 1,
     .intents = BATCH,
     .turn = turn_batch,
     .against = "lease"},
};
enum {
	MEASUREMENT_COUNT = sizeof measurements / sizeof measurements[0]
};

static void *work(void *argument)
{
	client *client = argument;

	while (monotonic_ms() < client->until_ms && !atomic_load(&interrupted)) {
		if (!client->measurement->turn(client)) {
			break;
		}
		client->turns++;
	}
	return NULL;
}

static int report_failure(const cli_invocation *invocation, client *client)
{
	if (client->error != NULL) {
		once_error *error = client->error;
		client->error = NULL;
		return cli_report_error(invocation, error);
	}
	return cli_fail(invocation, CLI_FAILED, NULL, "%s", client->message);
}

/* Runs one measurement; *rate is intents per second. */
static int measure(const cli_invocation *invocation, const char *conninfo, const char *scope,
                   const measurement *measurement, double *rate)
{
	int asked = invocation->given[OPTION_CLIENTS] ? (int)invocation->number[OPTION_CLIENTS] : CLIENTS_DEFAULT;
	int64_t seconds = invocation->given[OPTION_SECONDS] ? invocation->number[OPTION_SECONDS] : SECONDS_DEFAULT;
	int count = measurement->clients > 0 ? measurement->clients : asked;
	client *clients = cli_allocate((size_t)count * sizeof *clients);
	pthread_t *threads = cli_allocate((size_t)count * sizeof *threads);
	int result = CLI_OK;
	int started = 0;
	long turns = 0;

	for (int i = 0; i < count && result == CLI_OK; i++) {
		clients[i] = (client){.measurement = measurement, .conninfo = conninfo, .scope = scope, .number = i};
		result = connect_session(invocation, conninfo, &clients[i].session);
		if (result == CLI_OK &&
		    once_fingerprint_bytes(clients[i].session, NULL, (once_bytes){.data = "bench", .length = 5},
		                           &clients[i].fingerprint, &clients[i].error) != ONCE_OK) {
			result = report_failure(invocation, &clients[i]);
		}
	}
	int64_t started_ms = monotonic_ms();
	for (; started < count && result == CLI_OK; started++) {
		clients[started].until_ms = started_ms + seconds * 1000;
		if (pthread_create(&threads[started], NULL, work, &clients[started]) != 0) {
			result = cli_fail(invocation, CLI_FAILED, "give fewer --clients", "cannot make a thread");
			atomic_store(&interrupted, true);
			break;
		}
	}
	for (int i = 0; i < started; i++) {
		pthread_join(threads[i], NULL);
	}
	int64_t took_ms = monotonic_ms() - started_ms;
	for (int i = 0; i < count; i++) {
		turns += clients[i].turns;
		if (result == CLI_OK && (clients[i].error != NULL || clients[i].message[0] != '\0')) {
			result = report_failure(invocation, &clients[i]);
		}
		once_error_free(clients[i].error);
		once_session_close(clients[i].session);
	}
	*rate = took_ms > 0 ? (double)turns * measurement->intents * 1000 / (double)took_ms : 0;
	free(threads);
	free(clients);
	return result;
}

static double rate_of(const double rates[MEASUREMENT_COUNT], const char *name)
{
	for (int i = 0; i < MEASUREMENT_COUNT; i++) {
		if (strcmp(measurements[i].name, name) == 0) {
			return rates[i];
		}
	}
	return 0;
}

static void print_rates(const cli_invocation *invocation, const double rates[MEASUREMENT_COUNT])
{
	json_t *rows = invocation->given[OPTION_JSON] ? json_array() : NULL;

	if (rows == NULL) {
		printf("%-52s %12s  %s\n", "", "per second", "compared");
	}
	for (int i = 0; i < MEASUREMENT_COUNT; i++) {
		const measurement *measurement = &measurements[i];
		double against = measurement->against != NULL ? rate_of(rates, measurement->against) : 0;
		double ratio = against > 0 ? rates[i] / against : 0;
		if (rows != NULL) {
			json_t *row = json_pack("{s:s, s:s, s:f}", "name", measurement->name, "title", measurement->title,
			                        "per_second", rates[i]);
			if (against > 0) {
				json_object_set_new(row, "against", json_string(measurement->against));
				json_object_set_new(row, "ratio", json_real(ratio));
			}
			json_array_append_new(rows, row);
		} else if (against > 0) {
			printf("%-52s %12.0f  %.2f of %s\n", measurement->title, rates[i], ratio, measurement->against);
		} else {
			printf("%-52s %12.0f\n", measurement->title, rates[i]);
		}
	}
	if (rows != NULL) {
		cli_print_json(rows);
	}
}

static int prepare(const cli_invocation *invocation, PGconn *connection)
{
	PGresult *made = connect_query(connection, SQL_BENCH_SCHEMA, 0, NULL);
	const char *sqlstate = PQresultErrorField(made, PG_DIAG_SQLSTATE);
	int result = CLI_OK;

	if (sqlstate != NULL && strcmp(sqlstate, "42P06") == 0) {
		result = cli_fail(invocation, CLI_FAILED, "if none is running: DROP SCHEMA pgonce_bench CASCADE",
		                  "schema pgonce_bench is there already: another measurement is running, or one was killed");
	} else if (PQresultStatus(made) != PGRES_COMMAND_OK) {
		result = cli_report_result(invocation, connection, made, "cannot make schema pgonce_bench");
	}
	PQclear(made);
	return result;
}

/* DROP ... CASCADE tells what it drops, which is this command's own business. */
static void ignore_notice(void *argument, const PGresult *notice)
{
	(void)argument;
	(void)notice;
}

/* What a measurement leaves: its schema, and its intents, which only the contract's owner can remove; others wait for retention. */
static void clean_up(const cli_invocation *invocation, PGconn *connection, const char *scope)
{
	PQsetNoticeReceiver(connection, ignore_notice, NULL);
	connect_run(invocation, connection, SQL_BENCH_DROP, 0, NULL, "schema pgonce_bench could not be dropped", NULL);
	PGresult *forgotten = connect_query(connection, SQL_BENCH_FORGET, 1, &scope);
	if (PQresultStatus(forgotten) != PGRES_COMMAND_OK) {
		cli_note(invocation, "this role may not remove the intents of scope '%s'; they go when their retention ends",
		         scope);
	}
	PQclear(forgotten);
}

int cli_bench(const cli_invocation *invocation)
{
	double rates[MEASUREMENT_COUNT] = {0};
	once_session *session = NULL;
	struct sigaction action = {.sa_handler = interrupt};
	int result = CLI_USAGE;

	char *conninfo = connect_conninfo(invocation);
	if (conninfo != NULL) {
		result = connect_session(invocation, conninfo, &session);
	}
	if (result != CLI_OK) {
		free(conninfo);
		return result;
	}
	PGconn *connection = once_session_connection(session);
	char *scope = cli_format("pgonce bench %d.%lld", (int)getpid(), (long long)monotonic_ms());
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	result = prepare(invocation, connection);
	if (result == CLI_OK) {
		result = connect_run(invocation, connection, SQL_BENCH_ORDERS, 0, NULL, "cannot make a table", NULL);
		if (result == CLI_OK) {
			result = connect_run(invocation, connection, SQL_BENCH_LINES, 0, NULL, "cannot make a table", NULL);
		}
		for (int i = 0; i < MEASUREMENT_COUNT && result == CLI_OK && !atomic_load(&interrupted); i++) {
			result = measure(invocation, conninfo, scope, &measurements[i], &rates[i]);
		}
		clean_up(invocation, connection, scope);
	}
	if (result == CLI_OK && atomic_load(&interrupted)) {
		result = cli_fail(invocation, CLI_FAILED, NULL, "interrupted");
	} else if (result == CLI_OK) {
		print_rates(invocation, rates);
	}
	free(scope);
	once_session_close(session);
	free(conninfo);
	return result;
}
