/* SPDX-License-Identifier: PostgreSQL */
/*
 * pipeline.c: the benchmark's client: how many order transactions per second reach the server from
 * a client, one after the other on each connection. bench/run.py calls it; the statements of the
 * effect are files, the same in each way:
 *   bare      BEGIN, the statements, COMMIT, in one round trip (libpq's pipeline mode)
 *   once      once_execute_statements: start, the statements, finish, COMMIT, in one round trip
 *   stepwise  the same as `once`, each statement a round trip of its own
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pgonce.h>

enum {
	STATEMENTS_MAX = 8,
	SQL_BYTES_MAX = 4096,
	PARAMETERS = 2 /* of each statement: the order's id, and the key of its intent */
};

typedef struct bench {
	const char *dsn;
	double seconds;
	int statement_count;
	char sql[STATEMENTS_MAX][SQL_BYTES_MAX];
} bench;

typedef struct transaction {
	char order_id[37];
	char key[37];
} transaction;

typedef bool (*way)(once_session *session, const bench *bench, const transaction *transaction);

static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A UUIDv7 of now (RFC 9562). */
static void make_uuid7(char text[37])
{
	struct timespec now;
	uint64_t random[2];
	clock_gettime(CLOCK_REALTIME, &now);
	uint64_t ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
		abort();
	}
	snprintf(text, 37, "%08x-%04x-7%03x-%04x-%012llx", (unsigned)(ms >> 16), (unsigned)(ms & 0xffff),
	         (unsigned)(random[0] & 0xfff), (unsigned)(0x8000 | (random[0] >> 12 & 0x3fff)),
	         (unsigned long long)(random[1] & 0xffffffffffffULL));
}

static bool is_good(PGconn *connection, PGresult *result)
{
	bool good = PQresultStatus(result) == PGRES_TUPLES_OK || PQresultStatus(result) == PGRES_COMMAND_OK;
	if (!good) {
		fprintf(stderr, "bench-pipeline: %s", PQerrorMessage(connection));
	}
	PQclear(result);
	return good;
}

static bool report(once_error *error)
{
	if (error != NULL) {
		fprintf(stderr, "bench-pipeline: %s %s\n", once_error_sqlstate(error), once_error_message(error));
	}
	once_error_free(error);
	return error == NULL;
}

static bool run_bare(once_session *session, const bench *bench, const transaction *transaction)
{
	PGconn *connection = once_session_connection(session);
	const char *parameters[PARAMETERS] = {transaction->order_id, transaction->key};
	bool good = PQenterPipelineMode(connection) == 1 &&
	            PQsendQueryParams(connection, "BEGIN", 0, NULL, NULL, NULL, NULL, 0) == 1;

	for (int i = 0; good && i < bench->statement_count; i++) {
		good = PQsendQueryParams(connection, bench->sql[i], PARAMETERS, NULL, parameters, NULL, NULL, 0) == 1;
	}
	good = good && PQsendQueryParams(connection, "COMMIT", 0, NULL, NULL, NULL, NULL, 0) == 1 &&
	       PQpipelineSync(connection) == 1;
	for (int i = 0; good && i < bench->statement_count + 2; i++) {
		good = is_good(connection, PQgetResult(connection));
		PQclear(PQgetResult(connection));
	}
	PQclear(PQgetResult(connection)); /* the sync */
	return good && PQexitPipelineMode(connection) == 1;
}

static bool run_once(once_session *session, const bench *bench, const transaction *transaction)
{
	const char *parameters[PARAMETERS] = {transaction->order_id, transaction->key};
	const once_intent intent = {.scope = "pipeline", .key = transaction->key};
	const once_fingerprint fingerprint = {.bytes = {1, 2, 3}};
	const once_outcome outcome = {.response_status = 201,
	                              .response_body = {.data = transaction->order_id, .length = 36}};
	once_statement statements[STATEMENTS_MAX];
	once_answer *answer = NULL;
	once_error *error = NULL;

	for (int i = 0; i < bench->statement_count; i++) {
		statements[i] = (once_statement){.sql = bench->sql[i], .parameter_count = PARAMETERS, .parameters = parameters};
	}
	once_code code = once_execute_statements(session, &intent, &fingerprint, (size_t)bench->statement_count, statements,
	                                         &outcome, NULL, &answer, &error);
	bool fresh = code == ONCE_OK && once_answer_verdict(answer) == ONCE_PROCEED;
	once_answer_free(answer);
	return report(error) && fresh;
}

static bool run_stepwise(once_session *session, const bench *bench, const transaction *transaction)
{
	PGconn *connection = once_session_connection(session);
	const char *parameters[PARAMETERS] = {transaction->order_id, transaction->key};
	const once_intent intent = {.scope = "pipeline", .key = transaction->key};
	const once_fingerprint fingerprint = {.bytes = {1, 2, 3}};
	const once_outcome outcome = {.response_status = 201,
	                              .response_body = {.data = transaction->order_id, .length = 36}};
	once_answer *answer = NULL;
	once_error *error = NULL;

	bool good = is_good(connection, PQexecParams(connection, "BEGIN", 0, NULL, NULL, NULL, NULL, 0));
	once_code code = once_start(session, &intent, &fingerprint, &answer, &error);
	once_answer_free(answer);
	for (int i = 0; good && code == ONCE_OK && i < bench->statement_count; i++) {
		good =
		    is_good(connection, PQexecParams(connection, bench->sql[i], PARAMETERS, NULL, parameters, NULL, NULL, 0));
	}
	if (good && code == ONCE_OK) {
		code = once_finish(session, &intent, &fingerprint, ONCE_STATE_SUCCEEDED, &outcome, &error);
	}
	good = report(error) && good && code == ONCE_OK;
	return good && is_good(connection, PQexecParams(connection, "COMMIT", 0, NULL, NULL, NULL, NULL, 0));
}

/*
 * One client: transactions for the given time; returns how many, or -1 where one failed.
 * The first is not counted: it prepares.
 */
static long run_client(const bench *bench, way way)
{
	once_session *session = NULL;
	once_error *error = NULL;
	transaction transaction;
	long done = -1;

	if (once_session_open(bench->dsn, &session, &error) != ONCE_OK) {
		report(error);
		return -1;
	}
	once_session_prepare(session, true); /* no pooler stands between */
	double end = now_s() + bench->seconds;
	do {
		make_uuid7(transaction.order_id);
		make_uuid7(transaction.key);
		if (!way(session, bench, &transaction)) {
			done = -1;
			break;
		}
		done++;
	} while (now_s() < end);
	once_session_close(session);
	return done;
}

static way find_way(const char *name)
{
	return strcmp(name, "bare") == 0       ? run_bare
	       : strcmp(name, "once") == 0     ? run_once
	       : strcmp(name, "stepwise") == 0 ? run_stepwise
	                                       : NULL;
}

static bool read_sql(bench *bench, const char *path)
{
	FILE *file = bench->statement_count < STATEMENTS_MAX ? fopen(path, "r") : NULL;
	if (file == NULL) {
		return false;
	}
	size_t length = fread(bench->sql[bench->statement_count], 1, SQL_BYTES_MAX - 1, file);
	bool good = feof(file) && length > 0;
	fclose(file);
	bench->statement_count++;
	return good;
}

/* Runs all clients at once, each a process; prints transactions per second. */
static int run_clients(const bench *bench, way way, int clients)
{
	int channel[2];
	long total = 0;
	bool good = pipe(channel) == 0;

	for (int i = 0; good && i < clients; i++) {
		pid_t pid = fork();
		good = pid >= 0;
		if (pid == 0) {
			long done = run_client(bench, way);
			_exit(write(channel[1], &done, sizeof done) == (ssize_t)sizeof done ? 0 : 1);
		}
	}
	close(channel[1]);
	for (long done; good && read(channel[0], &done, sizeof done) == (ssize_t)sizeof done; total += done) {
		good = done >= 0;
	}
	while (wait(NULL) > 0) {
	}
	if (!good || total == 0) {
		fprintf(stderr, "bench-pipeline: a client failed\n");
		return 1;
	}
	printf("%.1f\n", (double)total / bench->seconds);
	return 0;
}

int main(int argc, char **argv)
{
	bench bench = {0};
	if (argc < 6) {
		fprintf(stderr, "usage: bench-pipeline DSN bare|once|stepwise CLIENTS SECONDS STATEMENT.sql...\n");
		return 2;
	}
	bench.dsn = argv[1];
	bench.seconds = strtod(argv[4], NULL);
	way way = find_way(argv[2]);
	int clients = (int)strtol(argv[3], NULL, 10);
	for (int i = 5; i < argc; i++) {
		if (!read_sql(&bench, argv[i])) {
			fprintf(stderr, "bench-pipeline: %s cannot be read, or is too long\n", argv[i]);
			return 2;
		}
	}
	if (way == NULL || clients < 1 || !(bench.seconds > 0)) {
		fprintf(stderr, "bench-pipeline: bare, once or stepwise; at least one client; some seconds\n");
		return 2;
	}
	return run_clients(&bench, way, clients);
}
