/* SPDX-License-Identifier: PostgreSQL */
/*
 * pipeline.c: the benchmark's client: how many order transactions per second reach the server from
 * a client, one after the other on each connection, and how many round trips one takes.
 * bench/run.py calls it; the statements of the effect are files, the same in each way:
 *   bare       BEGIN, the statements, COMMIT, in one round trip (libpq's pipeline mode)
 *   once       once_execute_statements: start, the statements, finish, COMMIT, in one round trip
 *   stepwise   the same as `once`, each statement a round trip of its own
 *   bare_steps BEGIN, the statements, COMMIT, each a round trip of its own
 *   callback   once_execute, whose callback sends the statements one by one
 * Every statement is prepared; with "text" behind the way (bare_text) none is.
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
	bool prepares;
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

/* Statements of the driver's own: the bare ways, and the effect of a callback. */
static const char *const names[STATEMENTS_MAX] = {"bench_0", "bench_1", "bench_2", "bench_3",
                                                  "bench_4", "bench_5", "bench_6", "bench_7"};

static bool prepare(PGconn *connection, const bench *bench)
{
	bool good = is_good(connection, PQprepare(connection, "bench_begin", "BEGIN", 0, NULL)) &&
	            is_good(connection, PQprepare(connection, "bench_commit", "COMMIT", 0, NULL));
	for (int i = 0; good && i < bench->statement_count; i++) {
		good = is_good(connection, PQprepare(connection, names[i], bench->sql[i], 0, NULL));
	}
	return good;
}

static bool send(PGconn *connection, const bench *bench, const char *name, const char *sql, int count,
                 const char *const *parameters)
{
	return (bench->prepares ? PQsendQueryPrepared(connection, name, count, parameters, NULL, NULL, 0)
	                        : PQsendQueryParams(connection, sql, count, NULL, parameters, NULL, NULL, 0)) == 1;
}

static bool step(PGconn *connection, const bench *bench, const char *name, const char *sql, int count,
                 const char *const *parameters)
{
	return is_good(connection, bench->prepares ? PQexecPrepared(connection, name, count, parameters, NULL, NULL, 0)
	                                           : PQexecParams(connection, sql, count, NULL, parameters, NULL, NULL, 0));
}

static bool step_statements(PGconn *connection, const bench *bench, const transaction *transaction)
{
	const char *parameters[PARAMETERS] = {transaction->order_id, transaction->key};
	bool good = true;
	for (int i = 0; good && i < bench->statement_count; i++) {
		good = step(connection, bench, names[i], bench->sql[i], PARAMETERS, parameters);
	}
	return good;
}

static bool run_bare(once_session *session, const bench *bench, const transaction *transaction)
{
	PGconn *connection = once_session_connection(session);
	const char *parameters[PARAMETERS] = {transaction->order_id, transaction->key};
	bool good = PQenterPipelineMode(connection) == 1 && send(connection, bench, "bench_begin", "BEGIN", 0, NULL);

	for (int i = 0; good && i < bench->statement_count; i++) {
		good = send(connection, bench, names[i], bench->sql[i], PARAMETERS, parameters);
	}
	good = good && send(connection, bench, "bench_commit", "COMMIT", 0, NULL) && PQpipelineSync(connection) == 1;
	for (int i = 0; good && i < bench->statement_count + 2; i++) {
		good = is_good(connection, PQgetResult(connection));
		PQclear(PQgetResult(connection));
	}
	PQclear(PQgetResult(connection)); /* the sync */
	return good && PQexitPipelineMode(connection) == 1;
}

static bool run_bare_steps(once_session *session, const bench *bench, const transaction *transaction)
{
	PGconn *connection = once_session_connection(session);
	return step(connection, bench, "bench_begin", "BEGIN", 0, NULL) &&
	       step_statements(connection, bench, transaction) &&
	       step(connection, bench, "bench_commit", "COMMIT", 0, NULL);
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
	const once_intent intent = {.scope = "pipeline", .key = transaction->key};
	const once_fingerprint fingerprint = {.bytes = {1, 2, 3}};
	const once_outcome outcome = {.response_status = 201,
	                              .response_body = {.data = transaction->order_id, .length = 36}};
	once_answer *answer = NULL;
	once_error *error = NULL;

	bool good = step(connection, bench, "bench_begin", "BEGIN", 0, NULL);
	once_code code = once_start(session, &intent, &fingerprint, &answer, &error);
	once_answer_free(answer);
	good = good && code == ONCE_OK && step_statements(connection, bench, transaction);
	if (good) {
		code = once_finish(session, &intent, &fingerprint, ONCE_STATE_SUCCEEDED, &outcome, &error);
	}
	good = report(error) && good && code == ONCE_OK;
	return good && step(connection, bench, "bench_commit", "COMMIT", 0, NULL);
}

typedef struct effect {
	const bench *bench;
	const transaction *transaction;
} effect;

static once_effect_result run_effect(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	const effect *effect = argument;
	(void)failed;
	outcome->response_status = 201;
	outcome->response_body = (once_bytes){.data = effect->transaction->order_id, .length = 36};
	return step_statements(connection, effect->bench, effect->transaction) ? ONCE_EFFECT_DONE : ONCE_EFFECT_ABORT;
}

static bool run_callback(once_session *session, const bench *bench, const transaction *transaction)
{
	const once_intent intent = {.scope = "pipeline", .key = transaction->key};
	const once_fingerprint fingerprint = {.bytes = {1, 2, 3}};
	effect effect = {.bench = bench, .transaction = transaction};
	once_answer *answer = NULL;
	once_error *error = NULL;

	once_code code = once_execute(session, &intent, &fingerprint, run_effect, &effect, NULL, &answer, &error);
	bool fresh = code == ONCE_OK && once_answer_verdict(answer) == ONCE_PROCEED;
	once_answer_free(answer);
	return report(error) && fresh;
}

/* Runs one transaction; the round trips that it took, by libpq's own trace; -1 where it failed. */
static long count_trips(once_session *session, const bench *bench, way way)
{
	static const char mark[] = "\tReadyForQuery\t";
	transaction transaction;
	char *text = NULL;
	size_t length = 0;
	long trips = 0;

	FILE *file = open_memstream(&text, &length);
	if (file == NULL) {
		return -1;
	}
	make_uuid7(transaction.order_id);
	make_uuid7(transaction.key);
	PQtrace(once_session_connection(session), file);
	bool good = way(session, bench, &transaction);
	PQuntrace(once_session_connection(session));
	fclose(file);
	for (const char *at = strstr(text, mark); at != NULL; at = strstr(at + 1, mark)) {
		trips++;
	}
	free(text);
	return good ? trips : -1;
}

typedef struct measured {
	long done; /* transactions; -1: one failed */
	long trips;
} measured;

/* One client: transactions for the given time. The first ones are not counted: they prepare. */
static measured run_client(const bench *bench, way way)
{
	once_session *session = NULL;
	once_error *error = NULL;
	transaction transaction;
	measured measured = {.done = -1};

	if (once_session_open(bench->dsn, &session, &error) != ONCE_OK) {
		report(error);
		return measured;
	}
	once_session_prepare(session, bench->prepares); /* no pooler stands between */
	if (!bench->prepares || prepare(once_session_connection(session), bench)) {
		measured.done = count_trips(session, bench, way) < 0 ? -1 : 0;
		measured.trips = count_trips(session, bench, way);
	}
	double end = now_s() + bench->seconds;
	while (measured.done >= 0 && now_s() < end) {
		make_uuid7(transaction.order_id);
		make_uuid7(transaction.key);
		measured.done = way(session, bench, &transaction) ? measured.done + 1 : -1;
	}
	once_session_close(session);
	return measured;
}

/* "bare_text": the way, with nothing prepared. */
static way find_way(const char *name, bool *prepares)
{
	static const struct {
		const char *name;
		way way;
	} ways[] = {{"bare_steps", run_bare_steps},
	            {"bare", run_bare},
	            {"once", run_once},
	            {"stepwise", run_stepwise},
	            {"callback", run_callback}};
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
		size_t length = strlen(ways[i].name);
		if (strncmp(name, ways[i].name, length) == 0) {
			*prepares = name[length] == '\0';
			if (*prepares || strcmp(name + length, "_text") == 0) {
				return ways[i].way;
			}
		}
	}
	return NULL;
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

/* All clients at once, each a process. Prints transactions per second, and round trips of one. */
static int run_clients(const bench *bench, way way, int clients)
{
	int channel[2];
	long total = 0;
	measured measured = {0};
	bool good = pipe(channel) == 0;

	for (int i = 0; good && i < clients; i++) {
		pid_t pid = fork();
		good = pid >= 0;
		if (pid == 0) {
			measured = run_client(bench, way);
			_exit(write(channel[1], &measured, sizeof measured) == (ssize_t)sizeof measured ? 0 : 1);
		}
	}
	close(channel[1]);
	while (good && read(channel[0], &measured, sizeof measured) == (ssize_t)sizeof measured) {
		good = measured.done >= 0 && measured.trips > 0;
		total += measured.done;
	}
	while (wait(NULL) > 0) {
	}
	if (!good || total == 0) {
		fprintf(stderr, "bench-pipeline: a client failed\n");
		return 1;
	}
	printf("%.1f %ld\n", (double)total / bench->seconds, measured.trips);
	return 0;
}

int main(int argc, char **argv)
{
	bench bench = {0};
	if (argc < 6) {
		fprintf(stderr, "usage: bench-pipeline DSN WAY[_text] CLIENTS SECONDS STATEMENT.sql...\n");
		return 2;
	}
	bench.dsn = argv[1];
	bench.seconds = strtod(argv[4], NULL);
	way way = find_way(argv[2], &bench.prepares);
	int clients = (int)strtol(argv[3], NULL, 10);
	for (int i = 5; i < argc; i++) {
		if (!read_sql(&bench, argv[i])) {
			fprintf(stderr, "bench-pipeline: %s cannot be read, or is too long\n", argv[i]);
			return 2;
		}
	}
	if (way == NULL || clients < 1 || !(bench.seconds > 0)) {
		fprintf(stderr,
		        "bench-pipeline: bare, once, stepwise, bare_steps or callback; at least one client; some seconds\n");
		return 2;
	}
	return run_clients(&bench, way, clients);
}
