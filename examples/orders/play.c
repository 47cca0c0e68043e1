/* SPDX-License-Identifier: PostgreSQL */
/*
 * play.c: plays a file of order requests: each client is a process, all start at once, and
 * some are killed in the middle. Prints the result of each attempt, and then the proof that
 * nothing was done twice and nothing was lost. Exit status: 0 the proof holds, 1 it does
 * not, 2 the file could not be played.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "orders.h"

enum {
	ATTEMPTS_MAX = 10000,
	CLIENTS_MAX = 64,
	LINE_BYTES_MAX = 1 << 20,
	WAIT_MS = 10000, /* for another attempt of the same intent, before it counts as "active" */
	PAUSE_MS = 20,
	EXIT_PROVEN = 0,
	EXIT_DISPROVEN = 1,
	EXIT_NOT_PLAYED = 2
};

/* The attempts, as JSON objects: from the file; and their results, in the order of
 * the table. */
typedef struct play {
	const char *dsn;
	json_t *attempts;
	json_t *results;
	const char *clients[CLIENTS_MAX]; /* borrowed from attempts */
	int client_count;
} play;

static const char *text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	return text == NULL ? "" : text;
}

/* ---- Reading the file ---- */

static const struct {
	const char *name;
	crash_point point;
} crash_points[] = {
    {"", CRASH_NEVER},
    {"mid_effect", CRASH_MID_EFFECT},
    {"before_commit", CRASH_BEFORE_COMMIT},
    {"during_commit", CRASH_DURING_COMMIT},
    {"after_commit", CRASH_AFTER_COMMIT},
};

static bool find_crash_point(const char *name, crash_point *point)
{
	for (size_t i = 0; i < sizeof crash_points / sizeof crash_points[0]; i++) {
		if (strcmp(crash_points[i].name, name) == 0) {
			*point = crash_points[i].point;
			return true;
		}
	}
	return false;
}

static bool add_client(play *play, const char *name)
{
	for (int i = 0; i < play->client_count; i++) {
		if (strcmp(play->clients[i], name) == 0) {
			return true;
		}
	}
	if (play->client_count == CLIENTS_MAX) {
		return false;
	}
	play->clients[play->client_count++] = name;
	return true;
}

/* The problem of a line of the file; NULL: it is valid. */
static const char *add_attempt(play *play, const char *line)
{
	json_error_t where;
	crash_point point;
	json_t *attempt = json_loads(line, JSON_REJECT_DUPLICATES, &where);

	if (attempt == NULL || json_array_append_new(play->attempts, attempt) != 0) {
		return "it is not JSON";
	}
	if (!json_is_string(json_object_get(attempt, "key")) || !json_is_string(json_object_get(attempt, "client")) ||
	    !json_is_object(json_object_get(attempt, "request"))) {
		return "an attempt needs a client, a key and a request";
	}
	if (!find_crash_point(text_of(attempt, "crash"), &point)) {
		return "crash is mid_effect, before_commit, during_commit or after_commit";
	}
	if (!add_client(play, text_of(attempt, "client"))) {
		return "there are too many clients";
	}
	return json_array_size(play->attempts) > ATTEMPTS_MAX ? "there are too many attempts" : NULL;
}

static bool read_attempts(play *play, const char *path)
{
	FILE *file = fopen(path, "r");
	char *line = NULL;
	size_t capacity = 0;
	ssize_t length;
	int number = 0;
	bool good = file != NULL;

	if (!good) {
		fprintf(stderr, "orders-example: %s: %s\n", path, strerror(errno));
	}
	while (good && (length = getline(&line, &capacity, file)) >= 0) {
		number++;
		if (line[strspn(line, " \t\r\n")] == '\0' || line[0] == '#') {
			continue;
		}
		const char *problem = length > LINE_BYTES_MAX ? "the line is too long" : add_attempt(play, line);
		if (problem != NULL) {
			fprintf(stderr, "orders-example: %s line %d: %s\n", path, number, problem);
			good = false;
		}
	}
	free(line);
	if (file != NULL) {
		fclose(file);
	}
	return good;
}

/* ---- One attempt ---- */

/* The answer's bytes as a JSON string; they are JSON text in this example. */
static json_t *body_of(const once_answer *answer)
{
	once_bytes body = once_answer_response_body(answer);
	return body.data == NULL ? json_null() : json_stringn(body.data, body.length);
}

/*
 * What happened: "done" or "replay" with the answer, or the SQLSTATE. A final failure's
 * answer is looked up, as its client would.
 */
static json_t *result_of(once_session *session, const order *order, once_code code, const once_answer *answer,
                         const once_error *error)
{
	once_intent intent = order_intent(order);
	once_answer *stored = NULL;
	json_t *result = json_object();

	if (code == ONCE_OK) {
		json_object_set_new(result, "verdict",
		                    json_string(once_answer_verdict(answer) == ONCE_REPLAY_SUCCESS ? "replay" : "done"));
	} else {
		const char *sqlstate = once_error_sqlstate(error);
		json_object_set_new(result, "verdict",
		                    json_sprintf("%s%s%s", sqlstate, *sqlstate == '\0' ? "" : " ", once_code_name(code)));
		json_object_set_new(result, "message", json_string(once_error_message(error)));
	}
	if (code == ONCE_FINAL_FAILURE && once_peek(session, &intent, &stored, NULL) == ONCE_OK) {
		answer = stored;
	}
	if (answer != NULL) {
		json_object_set_new(result, "status", json_integer(once_answer_response_status(answer)));
		json_object_set_new(result, "body", body_of(answer));
	}
	once_answer_free(stored);
	return result;
}

static json_t *attempt_once(once_session *session, const json_t *attempt, const order *order, int64_t wait_ms)
{
	bool pipelined = strcmp(text_of(attempt, "by"), "statements") == 0;
	once_answer *answer = NULL;
	once_error *error = NULL;
	once_code code = pipelined ? order_place_pipelined(session, order, wait_ms, &answer, &error)
	                           : order_place(session, order, wait_ms, &answer, &error);

	json_t *result = result_of(session, order, code, answer, error);
	once_answer_free(answer);
	once_error_free(error);
	return result;
}

/* ---- A client that is killed ---- */

/* The child: goes as far as the crash point, says so, and waits to be killed. If it
 * does not get there, it says why. */
static void run_until(const play *play, const order *order, crash_point point, int channel)
{
	once_session *session = NULL;
	once_answer *answer = NULL;
	once_error *error = NULL;

	/* It must not outlive its parent either. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	once_code code = once_session_open(play->dsn, &session, &error);
	if (code == ONCE_OK) {
		code = order_place_until(session, order, point, &answer, &error);
	}
	/* A client that was just killed may still be at work, until its server has noticed. */
	for (int waited_ms = 0; code == ONCE_ACTIVE && waited_ms < WAIT_MS; waited_ms += PAUSE_MS) {
		nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
		once_error_free(error);
		error = NULL;
		code = order_place_until(session, order, point, &answer, &error);
	}
	json_t *result = code == ONCE_OK && answer == NULL ? json_pack("{s:b}", "reached", 1)
	                                                   : result_of(session, order, code, answer, error);
	json_dumpfd(result, channel, JSON_COMPACT);
	close(channel);
	for (;;) {
		pause();
	}
}

/*
 * An attempt by a process that is killed in the middle (SIGKILL: it cannot clean up). If the file
 * asks for it, another client tries the same intent while it hangs, and is told at once that it is
 * running: *meanwhile.
 */
static json_t *attempt_and_die(const play *play, once_session *session, const json_t *attempt, const order *order,
                               crash_point point, json_t **meanwhile)
{
	int channel[2];
	if (pipe(channel) != 0) {
		return NULL;
	}
	pid_t child = fork();
	if (child < 0) {
		close(channel[0]);
		close(channel[1]);
		return NULL;
	}
	if (child == 0) {
		close(channel[0]);
		run_until(play, order, point, channel[1]);
	}
	close(channel[1]);
	FILE *from_child = fdopen(channel[0], "r");
	json_t *result = from_child == NULL ? NULL : json_loadf(from_child, 0, NULL);
	if (json_is_true(json_object_get(result, "reached"))) {
		if (json_is_true(json_object_get(attempt, "meanwhile"))) {
			*meanwhile = attempt_once(session, attempt, order, 0);
		}
		json_decref(result);
		result = json_pack("{s:o}", "verdict", json_sprintf("killed %s", text_of(attempt, "crash")));
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	if (from_child != NULL) {
		fclose(from_child);
	} else {
		close(channel[0]);
	}
	return result;
}

/* ---- A client ---- */

static void report(FILE *to_parent, size_t number, bool aside, json_t *result)
{
	if (result == NULL) {
		result = json_pack("{s:s}", "verdict", "could not be attempted");
	}
	json_object_set_new(result, "attempt", json_integer((json_int_t)number));
	json_object_set_new(result, "aside", json_boolean(aside));
	json_dumpf(result, to_parent, JSON_COMPACT);
	fputc('\n', to_parent);
	json_decref(result);
}

/* One client's attempts, in the order of the file; its results go to the parent, one line each. */
static int run_client(const play *play, const char *name, int start, FILE *to_parent)
{
	once_session *session = NULL;
	once_error *error = NULL;
	char gate;
	size_t index;
	json_t *attempt;

	if (once_session_open(play->dsn, &session, &error) != ONCE_OK) {
		fprintf(stderr, "orders-example: client=%s error=\"%s\"\n", name, once_error_message(error));
		once_error_free(error);
		return EXIT_NOT_PLAYED;
	}
	/* The parent opens the gate for all by closing its end. */
	while (read(start, &gate, 1) < 0 && errno == EINTR) {
	}
	json_array_foreach(play->attempts, index, attempt)
	{
		if (strcmp(text_of(attempt, "client"), name) != 0) {
			continue;
		}
		char *request = json_dumps(json_object_get(attempt, "request"), JSON_COMPACT | JSON_REAL_PRECISION(15));
		order order = {.key = text_of(attempt, "key"), .request = request};
		crash_point point = CRASH_NEVER;
		json_t *meanwhile = NULL;
		find_crash_point(text_of(attempt, "crash"), &point);
		json_t *result = point == CRASH_NEVER ? attempt_once(session, attempt, &order, WAIT_MS)
		                                      : attempt_and_die(play, session, attempt, &order, point, &meanwhile);
		report(to_parent, index + 1, false, result);
		if (meanwhile != NULL) {
			report(to_parent, index + 1, true, meanwhile);
		}
		free(request);
	}
	once_session_close(session);
	return fflush(to_parent) == 0 ? EXIT_PROVEN : EXIT_NOT_PLAYED;
}

/* ---- All clients ---- */

typedef struct client {
	pid_t pid;
	FILE *results;
} client;

/* Starts a client. `inherited`: the other clients' pipes, which it must not hold open. */
static bool start_client(const play *play, int number, client *clients, const int gate[2])
{
	int channel[2];
	if (pipe(channel) != 0) {
		return false;
	}
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		close(gate[1]);
		close(channel[0]);
		for (int i = 0; i < number; i++) {
			close(fileno(clients[i].results));
		}
		_exit(run_client(play, play->clients[number], gate[0], fdopen(channel[1], "w")));
	}
	close(channel[1]);
	clients[number] = (client){.pid = pid, .results = pid < 0 ? NULL : fdopen(channel[0], "r")};
	if (clients[number].results == NULL) {
		close(channel[0]);
	}
	return clients[number].results != NULL;
}

/* A result and its place in the table: as in the file, an attempt
 * made meanwhile after the one that hung. */
typedef struct ranked {
	json_int_t rank;
	json_t *result;
} ranked;

static int by_rank(const void *left, const void *right)
{
	const ranked *first = left;
	const ranked *second = right;
	return (first->rank > second->rank) - (first->rank < second->rank);
}

static bool keep_results(play *play, json_t *results)
{
	size_t count = json_array_size(results);
	ranked *sorted = calloc(count + 1, sizeof *sorted);
	if (sorted == NULL) {
		return false;
	}
	for (size_t i = 0; i < count; i++) {
		json_t *result = json_array_get(results, i);
		json_int_t attempt = json_integer_value(json_object_get(result, "attempt"));
		sorted[i] = (ranked){.rank = 2 * attempt + json_is_true(json_object_get(result, "aside")), .result = result};
	}
	qsort(sorted, count, sizeof *sorted, by_rank);
	play->results = json_array();
	for (size_t i = 0; i < count; i++) {
		json_array_append(play->results, sorted[i].result);
	}
	free(sorted);
	return true;
}

static bool run_clients(play *play)
{
	client clients[CLIENTS_MAX];
	json_t *results = json_array();
	int gate[2];
	int started = 0;
	bool good = pipe(gate) == 0;

	if (!good) {
		json_decref(results);
		return false;
	}
	while (started < play->client_count && start_client(play, started, clients, gate)) {
		started++;
	}
	good = started == play->client_count;
	close(gate[0]);
	close(gate[1]);
	for (int i = 0; i < started; i++) {
		json_t *result;
		int status = 0;
		while ((result = json_loadf(clients[i].results, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
			json_array_append_new(results, result);
		}
		fclose(clients[i].results);
		waitpid(clients[i].pid, &status, 0);
		good = good && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_PROVEN;
	}
	good = keep_results(play, results) && good;
	json_decref(results);
	return good;
}

/* ---- What happened ---- */

static void print_table(const play *play)
{
	size_t index;
	json_t *result;

	printf("%7s  %-7s %-38s %-23s %6s  %s\n", "attempt", "client", "key", "verdict", "status", "answer");
	json_array_foreach(play->results, index, result)
	{
		const json_t *attempt =
		    json_array_get(play->attempts, (size_t)json_integer_value(json_object_get(result, "attempt")) - 1);
		bool aside = json_is_true(json_object_get(result, "aside"));
		json_int_t status = json_integer_value(json_object_get(result, "status"));
		const char *answer = status == 0 ? text_of(result, "message") : text_of(result, "body");
		char status_text[16] = "";
		if (status != 0) {
			snprintf(status_text, sizeof status_text, "%d", (int)status);
		}
		printf("%6d%s  %-7s %-38.38s %-23s %6s  %.60s\n", (int)json_integer_value(json_object_get(result, "attempt")),
		       aside ? "'" : " ", aside ? "another" : text_of(attempt, "client"), text_of(attempt, "key"),
		       text_of(result, "verdict"), status_text, answer);
	}
}

/* ---- The proof ---- */

typedef struct proof {
	json_t *stored;    /* key -> the answer that the database has now */
	json_t *customers; /* a JSON array, without repetitions; so are the ids */
	json_t *placed_ids;
	json_t *answer_ids;
	int intents;  /* that have an answer */
	int refused;  /* whose key was refused: malformed, or too old */
	int lost;     /* without an answer, and should have one */
	int failed;   /* for good */
	int placed;   /* that placed an order */
	int compared; /* answers of attempts */
	int differing;
	long orders;
	long answered_orders;
} proof;

static bool contains(const json_t *array, const char *text)
{
	size_t index;
	json_t *element;
	json_array_foreach(array, index, element)
	{
		if (strcmp(json_string_value(element), text) == 0) {
			return true;
		}
	}
	return false;
}

static void add_new(json_t *array, const char *text)
{
	if (!contains(array, text)) {
		json_array_append_new(array, json_string(text));
	}
}

/* Looks up the answer of one intent; each key once. */
static void look_up(once_session *session, proof *proof, const char *key)
{
	order order = {.key = key};
	once_intent intent = order_intent(&order);
	once_answer *answer = NULL;

	if (json_object_get(proof->stored, key) != NULL) {
		return;
	}
	json_object_set_new(proof->stored, key, json_null());
	if (once_peek(session, &intent, &answer, NULL) != ONCE_OK || once_answer_verdict(answer) == ONCE_EXPIRED_KEY) {
		proof->refused++;
	} else if (once_answer_verdict(answer) == ONCE_REPLAY_SUCCESS ||
	           once_answer_verdict(answer) == ONCE_FINAL_FAILURE_STORED) {
		const char *id = once_answer_result_id(answer);
		proof->intents++;
		json_object_set_new(proof->stored, key, body_of(answer));
		if (id == NULL) {
			proof->failed++;
		} else {
			add_new(proof->answer_ids, id);
		}
		if (once_answer_response_status(answer) == 201) {
			proof->placed++;
			add_new(proof->placed_ids, id == NULL ? "" : id);
		}
	} else {
		proof->lost++;
	}
	once_answer_free(answer);
}

static bool count_orders(once_session *session, proof *proof)
{
	char *customers = json_dumps(proof->customers, JSON_COMPACT);
	char *ids = json_dumps(proof->answer_ids, JSON_COMPACT);
	const char *parameters[] = {customers, ids};
	PGresult *counted = order_query(once_session_connection(session), SQL_COUNT_ORDERS, 2, parameters);
	bool good = PQresultStatus(counted) == PGRES_TUPLES_OK;

	if (good) {
		proof->orders = strtol(PQgetvalue(counted, 0, 0), NULL, 10);
		proof->answered_orders = strtol(PQgetvalue(counted, 0, 1), NULL, 10);
	} else {
		fprintf(stderr, "orders-example: %s", PQerrorMessage(once_session_connection(session)));
	}
	PQclear(counted);
	free(customers);
	free(ids);
	return good;
}

static void compare_answers(const play *play, proof *proof)
{
	size_t index;
	json_t *result;

	json_array_foreach(play->results, index, result)
	{
		const json_t *attempt =
		    json_array_get(play->attempts, (size_t)json_integer_value(json_object_get(result, "attempt")) - 1);
		const json_t *body = json_object_get(result, "body");
		if (body != NULL) {
			proof->compared++;
			proof->differing += !json_equal(body, json_object_get(proof->stored, text_of(attempt, "key")));
		}
	}
}

static const char *say(bool holds)
{
	return holds ? "holds" : "DOES NOT HOLD";
}

/* Counts what is in the database now and compares it with what the attempts were told. */
static bool prove(const play *play, once_session *session)
{
	proof proof = {
	    .stored = json_object(), .customers = json_array(), .placed_ids = json_array(), .answer_ids = json_array()};
	size_t index;
	json_t *attempt;

	json_array_foreach(play->attempts, index, attempt)
	{
		const char *customer = text_of(json_object_get(attempt, "request"), "customer");
		if (*customer != '\0') {
			add_new(proof.customers, customer);
		}
		look_up(session, &proof, text_of(attempt, "key"));
	}
	compare_answers(play, &proof);
	bool counted = count_orders(session, &proof);
	int distinct = (int)json_array_size(proof.answer_ids);
	bool one_effect = counted && proof.orders == distinct && proof.answered_orders == distinct;
	bool one_intent = (int)json_array_size(proof.placed_ids) == proof.placed;
	bool one_answer = proof.differing == 0;
	bool none_lost = proof.lost == 0;

	printf("\n%zu attempts of %zu intents: %d answered (%d placed an order, %d failed for good, %d got an order that "
	       "was there), %d refused\n",
	       json_array_size(play->results), json_object_size(proof.stored), proof.intents, proof.placed, proof.failed,
	       proof.intents - proof.placed - proof.failed, proof.refused);
	printf("one effect:  %ld orders in the table, %d different orders in the answers of all intents: %s\n",
	       proof.orders, distinct, say(one_effect));
	printf("             %d intents placed an order, %zu different orders: %s\n", proof.placed,
	       json_array_size(proof.placed_ids), say(one_intent));
	printf("one answer:  %d answers were given, %d differ from the stored bytes of their intent: %s\n", proof.compared,
	       proof.differing, say(one_answer));
	printf("none lost:   %d intents were left without an answer: %s\n", proof.lost, say(none_lost));
	json_decref(proof.stored);
	json_decref(proof.customers);
	json_decref(proof.placed_ids);
	json_decref(proof.answer_ids);
	return one_effect && one_intent && one_answer && none_lost;
}

/* ---- main ---- */

/* True: the database is ready for the example. Else it says what to do. */
static bool check(once_session *session)
{
	const char *no_request[] = {"{}"};
	PGresult *tried = order_query(once_session_connection(session), SQL_FIND_PROBLEM, 1, no_request);
	bool good = PQresultStatus(tried) == PGRES_TUPLES_OK;
	if (!good) {
		fprintf(stderr,
		        "orders-example: the schema of the example is not there: psql -f examples/orders/orders.sql (%.5s)\n",
		        PQresultErrorField(tried, PG_DIAG_SQLSTATE) == NULL ? "" : PQresultErrorField(tried, PG_DIAG_SQLSTATE));
	}
	PQclear(tried);
	return good;
}

static int play_file(play *play, const char *path)
{
	once_session *session = NULL;
	once_error *error = NULL;
	int status = EXIT_NOT_PLAYED;

	if (!read_attempts(play, path)) {
		return EXIT_NOT_PLAYED;
	}
	if (once_session_open(play->dsn, &session, &error) != ONCE_OK || once_session_check(session, &error) != ONCE_OK) {
		fprintf(stderr, "orders-example: %s %s\n", once_error_message(error), once_error_hint(error));
	} else if (check(session)) {
		bool played = run_clients(play);
		print_table(play);
		status = !played ? EXIT_NOT_PLAYED : prove(play, session) ? EXIT_PROVEN : EXIT_DISPROVEN;
	}
	once_error_free(error);
	once_session_close(session);
	return status;
}

static int usage(FILE *to)
{
	fprintf(
	    to,
	    "usage: orders-example [--dsn DSN] FILE\n\n"
	    "Plays a file of order requests, one JSON object per line:\n"
	    "  {\"client\": \"a\", \"key\": \"...\", \"request\": {\"customer\": \"...\", \"cart\": \"...\", \"total\": "
	    "12.5}}\n"
	    "and optionally \"crash\": mid_effect, before_commit, during_commit or after_commit (the client is killed "
	    "there),\n"
	    "\"meanwhile\": true (another client tries while that one hangs), \"by\": \"statements\" (one round trip).\n"
	    "Without --dsn, libpq's environment variables say where.\n");
	return to == stdout ? EXIT_PROVEN : EXIT_NOT_PLAYED;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
	    {"dsn", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
	play play = {.dsn = NULL, .attempts = json_array()};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'h') {
			return usage(stdout);
		} else if (option != 'd') {
			return usage(stderr);
		}
		play.dsn = optarg;
	}
	if (optind != argc - 1) {
		return usage(stderr);
	}
	signal(SIGPIPE, SIG_IGN);
	int status = play_file(&play, argv[optind]);
	json_decref(play.attempts);
	json_decref(play.results);
	return status;
}
