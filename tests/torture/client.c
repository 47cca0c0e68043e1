/* SPDX-License-Identifier: PostgreSQL */
/*
 * client.c: a caller of libpgonce that does what standard input says, for the torture
 * (tests/torture/doors.py). torture_client CONNINFO. An order is a line and one line for each of
 * its attempts, an answer a line for each attempt; fields are separated by tabs:
 *
 *   MODE COUNT BEFORE_MS AFTER_MS LEAVE ISOLATION      execute, statements, fenced, verified, batch
 *   ATTEMPT END TENANT SCOPE KEY PAYLOAD         END: effect, final (a stored failure), retry (a retryable one)
 *   INDEX VERDICT CODE STATUS REPLAYED BODY      in any order; BODY in hexadecimal, - for none
 *
 * LEAVE: the step at which the process is gone, as if it had been killed: begun, claimed, written,
 * done; - for none.
 *
 * Like every caller of torture it says "failed" only of an attempt that certainly had no effect and
 * left no claim.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pgonce.h"

enum {
	MANY = 32, /* attempts in an order */
	BODY_BYTES = 33
};

typedef struct attempt {
	const char *number;
	const char *end;
	once_intent intent;
	const char *payload;
	once_fingerprint fingerprint;
	size_t index; /* in its order */
	bool said;    /* its answer is written */
} attempt;

static struct {
	const char *conninfo;
	once_session *session; /* NULL: to be opened */
	const char *mode;
	long before_ms;
	long after_ms;
	const char *leave;
	const char *isolation;
} client;

static void leave_at(const char *step)
{
	if (strcmp(client.leave, step) == 0) {
		_Exit(EXIT_FAILURE);
	}
}

static void pause_ms(long ms)
{
	const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	if (ms > 0) {
		nanosleep(&time, NULL);
	}
}

static void say(attempt *attempt, const char *verdict, const char *code, int status, bool replayed, once_bytes body)
{
	const unsigned char *bytes = body.data;

	printf("%zu\t%s\t%s\t%d\t%d\t", attempt->index, verdict, code, status, replayed);
	if (bytes == NULL) {
		putchar('-');
	}
	for (size_t i = 0; bytes != NULL && i < body.length; i++) {
		printf("%02x", bytes[i]);
	}
	putchar('\n');
	attempt->said = true;
}

static void say_short(attempt *attempt, const char *verdict, const char *code)
{
	say(attempt, verdict, code, 0, false, (once_bytes){.data = NULL});
}

static void say_stored(attempt *attempt, const once_answer *answer)
{
	say(attempt, "acknowledged", once_verdict_name(once_answer_verdict(answer)), once_answer_response_status(answer),
	    true, once_answer_response_body(answer));
}

/* No two are equal. */
static const char *nonce(char body[BODY_BYTES])
{
	unsigned char random[(BODY_BYTES - 1) / 2];
	FILE *source = fopen("/dev/urandom", "rb");

	if (source == NULL || fread(random, 1, sizeof random, source) != sizeof random) {
		abort();
	}
	fclose(source);
	for (size_t i = 0; i < sizeof random; i++) {
		snprintf(body + 2 * i, 3, "%02x", random[i]);
	}
	return body;
}

/*
 * The verdict of an error. loose: something of the attempt may be left in the database, unless the
 * error excludes it.
 */
static void say_error(attempt *attempt, once_code code, once_error *error, bool loose)
{
	const char *verdict = code == ONCE_MISMATCH   ? "mismatch"
	                      : code == ONCE_ACTIVE   ? "busy"
	                      : code == ONCE_IN_DOUBT ? "in_doubt"
	                      : code == ONCE_EXPIRED  ? "expired"
	                      : code == ONCE_REFUSED || code == ONCE_SCOPE_REQUIRED || code == ONCE_KEY_MALFORMED
	                          ? "refused"
	                      : loose || once_error_outcome_unknown(error) ? "unknown"
	                                                                   : "failed";
	const char *state = once_error_sqlstate(error);

	say_short(attempt, verdict, state[0] != '\0' ? state : once_code_name(code));
	if (code == ONCE_CONNECTION || code == ONCE_OUTCOME_UNKNOWN || code == ONCE_DEADLINE || code == ONCE_USAGE) {
		once_session_close(client.session);
		client.session = NULL;
	}
	once_error_free(error);
}

/* ---- Same transaction */

/* torture.act or torture.write; *body stays owned by the result. */
static PGresult *effect(PGconn *connection, const attempt *attempt, int fence, const char *query)
{
	char number[12];
	const once_intent *intent = &attempt->intent;

	snprintf(number, sizeof number, "%d", fence);
	const char *const parameters[] = {intent->tenant,   intent->scope,   intent->key,
	                                  attempt->payload, attempt->number, fence == 0 ? NULL : number};
	return PQexecParams(connection, query, 6, NULL, parameters, NULL, NULL, 1);
}

static bool has_row(const PGresult *result)
{
	return PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1;
}

static once_bytes body_of(const PGresult *result)
{
	return (once_bytes){.data = PQgetvalue(result, 0, 0), .length = (size_t)PQgetlength(result, 0, 0)};
}

#define ACT "SELECT torture.act($1, $2, $3, $4, $5::integer, 'lib', $6::integer)"
#define WRITE "SELECT torture.write($1, $2, $3, $4, $5::integer, 'lib', $6::integer, false)"
#define WRITE_GATED "SELECT torture.write($1, $2, $3, $4, $5::integer, 'lib', $6::integer, true)"

typedef struct doing {
	attempt *attempt;
	PGresult *result;
	char body[BODY_BYTES];
} doing;

static once_effect_result run_effect(PGconn *connection, void *argument, once_outcome *outcome, PGresult **failed)
{
	doing *doing = argument;

	leave_at("begun");
	pause_ms(client.before_ms);
	if (strcmp(doing->attempt->end, "retry") == 0) {
		return ONCE_EFFECT_ABORT;
	}
	if (strcmp(doing->attempt->end, "final") == 0) {
		outcome->response_status = 422;
		outcome->response_body = (once_bytes){.data = nonce(doing->body), .length = BODY_BYTES - 1};
		return ONCE_EFFECT_FAILED;
	}
	PQclear(doing->result);
	doing->result = effect(connection, doing->attempt, 0, ACT);
	if (!has_row(doing->result)) {
		*failed = doing->result;
		doing->result = NULL;
		return ONCE_EFFECT_RETRY;
	}
	outcome->response_status = 201;
	outcome->response_body = body_of(doing->result);
	pause_ms(client.after_ms);
	leave_at("written");
	return ONCE_EFFECT_DONE;
}

static void execute(attempt *attempt)
{
	const once_options options = {.deadline_ms = 6000, .isolation = client.isolation};
	once_answer *answer = NULL;
	once_error *error = NULL;
	once_code code;
	doing doing = {.attempt = attempt};

	if (strcmp(client.mode, "statements") == 0 && strcmp(attempt->end, "effect") == 0) {
		const once_intent *intent = &attempt->intent;
		const char *const parameters[] = {intent->tenant,   intent->scope,   intent->key,
		                                  attempt->payload, attempt->number, NULL};
		const once_statement statement = {.sql = ACT, .parameter_count = 6, .parameters = parameters};
		const once_outcome outcome = {
		    .response_status = 201,
		    .response_body = {.data = nonce(doing.body), .length = BODY_BYTES - 1},
		};
		code = once_execute_statements(client.session, intent, &attempt->fingerprint, 1, &statement, &outcome, &options,
		                               &answer, &error);
	} else {
		code = once_execute(client.session, &attempt->intent, &attempt->fingerprint, run_effect, &doing, &options,
		                    &answer, &error);
	}
	if (code == ONCE_OK) {
		bool replayed = once_answer_verdict(answer) == ONCE_REPLAY_SUCCESS;
		say(attempt, "acknowledged", once_verdict_name(once_answer_verdict(answer)),
		    once_answer_response_status(answer), replayed, once_answer_response_body(answer));
	} else if (code == ONCE_FINAL_FAILURE) {
		/* Now or earlier: what is stored is the answer. */
		once_error_free(error);
		error = NULL;
		code = once_peek(client.session, &attempt->intent, &answer, &error);
		if (code == ONCE_OK) {
			say_stored(attempt, answer);
		} else {
			say_error(attempt, code, error, true);
		}
	} else if (code == ONCE_EFFECT) {
		once_error_free(error);
		say_short(attempt, "failed", "retryable");
	} else {
		say_error(attempt, code, error, false);
	}
	once_answer_free(answer);
	PQclear(doing.result);
}

/* ---- Leased */

/* Says what is known already. True: this attempt is to do the work. */
static bool may_run(attempt *attempt, const once_answer *answer)
{
	switch (once_answer_verdict(answer)) {
	case ONCE_NEW_CLAIM:
	case ONCE_RETRYABLE_FAILURE:
	case ONCE_PROCESSING_STALE:
		return true;
	case ONCE_REPLAY_SUCCESS:
	case ONCE_FINAL_FAILURE_STORED:
		say_stored(attempt, answer);
		return false;
	case ONCE_PROCESSING_ACTIVE:
		say_short(attempt, "busy", "active");
		return false;
	case ONCE_IN_DOUBT_STORED:
		say_short(attempt, "in_doubt", "in_doubt");
		return false;
	case ONCE_EXPIRED_KEY:
		say_short(attempt, "expired", "expired");
		return false;
	case ONCE_MISMATCHED:
		say_short(attempt, "mismatch", "mismatch");
		return false;
	case ONCE_INVALID: {
		const char *state = once_answer_error_code(answer);
		say_short(attempt, once_code_of_sqlstate(state) == ONCE_PARTITION_MISSING ? "failed" : "refused", state);
		return false;
	}
	default:
		say_short(attempt, "unknown", once_verdict_name(once_answer_verdict(answer)));
		return false;
	}
}

/* Reports a failure of an attempt that certainly had no effect, and says so. */
static void fail(attempt *attempt, int fence, const char *why)
{
	once_error *error = NULL;
	bool final = strcmp(attempt->end, "final") == 0;
	char body[BODY_BYTES];
	const once_outcome outcome = {
	    .response_status = 422,
	    .response_body = {.data = nonce(body), .length = BODY_BYTES - 1},
	};

	once_code code = once_fail(client.session, &attempt->intent, fence,
	                           final ? ONCE_FAILURE_FINAL : ONCE_FAILURE_RETRYABLE, final ? &outcome : NULL, &error);
	if (code != ONCE_OK) {
		say_error(attempt, code, error, true);
	} else if (final) {
		say(attempt, "acknowledged", why, 422, false, outcome.response_body);
	} else {
		say_short(attempt, "failed", why);
	}
}

static bool command(PGconn *connection, const char *words)
{
	PGresult *result = PQexec(connection, words);
	bool good = PQresultStatus(result) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(result), words) == 0;

	PQclear(result);
	return good;
}

static void complete(attempt *attempt, int fence, const once_outcome *outcome)
{
	once_error *error = NULL;

	once_code code = once_complete(client.session, &attempt->intent, fence, outcome, &error);
	if (code != ONCE_OK) {
		say_error(attempt, code, error, true);
	} else {
		say(attempt, "acknowledged", "", outcome->response_status, false, outcome->response_body);
	}
}

/* The effect and its outcome in one transaction. */
static void do_fenced(attempt *attempt, int fence)
{
	PGconn *connection = once_session_connection(client.session);
	once_error *error = NULL;
	once_outcome outcome = {.response_status = 201};
	PGresult *result = NULL;

	if (!command(connection, "BEGIN")) {
		say_short(attempt, "unknown", "begin");
		return;
	}
	result = effect(connection, attempt, fence, ACT);
	if (!has_row(result)) {
		command(connection, "ROLLBACK");
		fail(attempt, fence, "effect");
		PQclear(result);
		return;
	}
	outcome.response_body = body_of(result);
	pause_ms(client.after_ms);
	once_code code = once_complete(client.session, &attempt->intent, fence, &outcome, &error);
	if (code != ONCE_OK) {
		command(connection, "ROLLBACK");
		say_error(attempt, code, error, code != ONCE_COMPLETION_REFUSED);
		PQclear(result);
		return;
	}
	leave_at("written");
	if (!command(connection, "COMMIT")) {
		say_short(attempt, "unknown", "commit");
	} else {
		say(attempt, "acknowledged", "", 201, false, outcome.response_body);
	}
	PQclear(result);
}

/* The effect elsewhere; while it lasts the lease is renewed. */
static void do_verified(attempt *attempt, int fence)
{
	PGconn *connection = once_session_connection(client.session);
	bool held = false;

	if (once_renew(client.session, &attempt->intent, fence, 0, &held, NULL) == ONCE_OK && !held) {
		say_short(attempt, "failed", "lost");
		return;
	}
	PGresult *result = effect(connection, attempt, fence, WRITE_GATED);
	if (has_row(result)) {
		const once_outcome outcome = {.response_status = 201, .response_body = body_of(result)};
		leave_at("done");
		pause_ms(client.after_ms);
		complete(attempt, fence, &outcome);
	} else if (PQresultErrorField(result, PG_DIAG_SQLSTATE) != NULL && PQstatus(connection) == CONNECTION_OK) {
		fail(attempt, fence, "effect");
	} else {
		say_short(attempt, "unknown", "effect");
	}
	PQclear(result);
}

static void leased(attempt *attempt)
{
	once_answer *answer = NULL;
	once_error *error = NULL;

	once_code code =
	    once_claim(client.session, &attempt->intent, &attempt->fingerprint, "torture_client", 0, 0, &answer, &error);
	if (code != ONCE_OK) {
		say_error(attempt, code, error, true);
		return;
	}
	if (may_run(attempt, answer)) {
		int fence = once_answer_fence(answer);
		leave_at("claimed");
		pause_ms(client.before_ms);
		if (strcmp(attempt->end, "effect") != 0) {
			fail(attempt, fence, "as ordered");
		} else if (strcmp(client.mode, "fenced") == 0) {
			do_fenced(attempt, fence);
		} else {
			do_verified(attempt, fence);
		}
	}
	once_answer_free(answer);
}

/* ---- Batches: many claims in one statement, effects one by one, many reports in one */

/* The attempts of a batch whose effect is there, or those that had none. */
typedef struct chosen {
	attempt *attempts[MANY];
	once_intent intents[MANY];
	int fences[MANY];
	once_failure failures[MANY]; /* of those that had none */
	PGresult *results[MANY];     /* of those whose effect is there */
	size_t count;
} chosen;

static void choose(chosen *chosen, attempt *attempt, int fence)
{
	chosen->attempts[chosen->count] = attempt;
	chosen->intents[chosen->count] = attempt->intent;
	chosen->fences[chosen->count++] = fence;
}

/* One attempt that may run. */
static void do_one(attempt *attempt, int fence, chosen *done, chosen *failed)
{
	if (strcmp(attempt->end, "effect") != 0) {
		bool final = strcmp(attempt->end, "final") == 0;
		failed->failures[failed->count] = final ? ONCE_FAILURE_FINAL : ONCE_FAILURE_RETRYABLE;
		choose(failed, attempt, fence);
		return;
	}
	PGresult *result = effect(once_session_connection(client.session), attempt, fence, WRITE);
	if (has_row(result)) {
		done->results[done->count] = result;
		choose(done, attempt, fence);
	} else {
		say_short(attempt, "unknown", "effect");
		PQclear(result);
	}
}

/* Whether a report is stored; else that is said. */
static bool is_stored(attempt *attempt, once_code code, const once_answers *reports, size_t index)
{
	once_verdict verdict = code == ONCE_OK ? once_answer_verdict(once_answers_at(reports, index)) : ONCE_VERDICT_NONE;
	bool stored = verdict == ONCE_STORED || verdict == ONCE_REPEATED;

	if (!stored) {
		say_short(attempt, "unknown", code == ONCE_OK ? once_verdict_name(verdict) : once_code_name(code));
	}
	return stored;
}

static void complete_all(const char *tenant, const chosen *done)
{
	once_outcome outcomes[MANY];
	once_answers *reports = NULL;
	once_error *error = NULL;
	once_code code = ONCE_OK;

	for (size_t i = 0; i < done->count; i++) {
		outcomes[i] = (once_outcome){.response_status = 201, .response_body = body_of(done->results[i])};
	}
	if (done->count > 0) {
		code = once_complete_many(client.session, tenant, done->count, done->intents, done->fences, outcomes, &reports,
		                          &error);
	}
	for (size_t i = 0; i < done->count; i++) {
		if (is_stored(done->attempts[i], code, reports, i)) {
			say(done->attempts[i], "acknowledged", "", 201, false, outcomes[i].response_body);
		}
		PQclear(done->results[i]);
	}
	once_answers_free(reports);
	once_error_free(error);
}

static void fail_all(const char *tenant, const chosen *failed)
{
	char bodies[MANY][BODY_BYTES];
	once_outcome outcomes[MANY];
	once_answers *reports = NULL;
	once_error *error = NULL;
	once_code code = ONCE_OK;

	for (size_t i = 0; i < failed->count; i++) {
		outcomes[i] = (once_outcome){
		    .response_status = 422,
		    .response_body = {.data = nonce(bodies[i]), .length = BODY_BYTES - 1},
		};
	}
	if (failed->count > 0) {
		code = once_fail_many(client.session, tenant, failed->count, failed->intents, failed->fences, failed->failures,
		                      outcomes, &reports, &error);
	}
	for (size_t i = 0; i < failed->count; i++) {
		if (!is_stored(failed->attempts[i], code, reports, i)) {
			continue;
		}
		if (failed->failures[i] == ONCE_FAILURE_FINAL) {
			say(failed->attempts[i], "acknowledged", "", 422, false, outcomes[i].response_body);
		} else {
			say_short(failed->attempts[i], "failed", "retryable");
		}
	}
	once_answers_free(reports);
	once_error_free(error);
}

static void batch(attempt *attempts, size_t count)
{
	once_intent intents[MANY];
	once_fingerprint fingerprints[MANY];
	chosen done = {.count = 0};
	chosen failed = {.count = 0};
	once_answers *claims = NULL;
	once_error *error = NULL;
	const char *tenant = attempts[0].intent.tenant;

	for (size_t i = 0; i < count; i++) {
		intents[i] = attempts[i].intent;
		fingerprints[i] = attempts[i].fingerprint;
	}
	once_code code =
	    once_claim_many(client.session, tenant, count, intents, fingerprints, "torture_client", 0, 0, &claims, &error);
	if (code != ONCE_OK) {
		say_error(&attempts[0], code, error, true);
		return;
	}
	leave_at("claimed");
	pause_ms(client.before_ms);
	for (size_t i = 0; i < count; i++) {
		const once_answer *answer = once_answers_at(claims, i);
		if (may_run(&attempts[i], answer)) {
			do_one(&attempts[i], once_answer_fence(answer), &done, &failed);
		}
	}
	once_answers_free(claims);
	leave_at("done");
	pause_ms(client.after_ms);
	complete_all(tenant, &done);
	fail_all(tenant, &failed);
}

/* ---- Orders */

/* Splits a line at its tabs; the last field is the rest. False: there are too few. */
static bool split(char *line, const char **fields, size_t count)
{
	line[strcspn(line, "\n")] = '\0';
	for (size_t i = 0; i < count; i++) {
		fields[i] = line;
		char *tab = strchr(line, '\t');
		if (i + 1 < count) {
			if (tab == NULL) {
				return false;
			}
			*tab = '\0';
			line = tab + 1;
		}
	}
	return true;
}

/* A session that works; what does not keeps every attempt from beginning. */
static bool ready(attempt *attempts, size_t count)
{
	once_error *error = NULL;
	once_code code = ONCE_OK;

	if (client.session != NULL && PQstatus(once_session_connection(client.session)) != CONNECTION_OK) {
		once_session_close(client.session);
		client.session = NULL;
	}
	if (client.session == NULL) {
		code = once_session_open(client.conninfo, &client.session, &error);
	}
	for (size_t i = 0; code == ONCE_OK && i < count; i++) {
		const char *payload = attempts[i].payload;
		code = once_fingerprint_bytes(client.session, attempts[i].intent.tenant,
		                              (once_bytes){.data = payload, .length = strlen(payload)},
		                              &attempts[i].fingerprint, &error);
	}
	if (code == ONCE_OK) {
		return true;
	}
	once_session_close(client.session);
	client.session = NULL;
	for (size_t i = 0; i < count; i++) {
		say_short(&attempts[i], "failed", once_code_name(code));
	}
	once_error_free(error);
	return false;
}

static void obey(attempt *attempts, size_t count)
{
	if (!ready(attempts, count)) {
		return;
	}
	if (strcmp(client.mode, "batch") == 0) {
		batch(attempts, count);
	} else if (strcmp(client.mode, "fenced") == 0 || strcmp(client.mode, "verified") == 0) {
		leased(&attempts[0]);
	} else {
		execute(&attempts[0]);
	}
	for (size_t i = 0; i < count; i++) {
		if (!attempts[i].said) {
			say_short(&attempts[i], "unknown", "unsaid");
		}
	}
	/* Nothing of an order is left open for the next. */
	if (client.session != NULL && PQtransactionStatus(once_session_connection(client.session)) != PQTRANS_IDLE) {
		once_session_close(client.session);
		client.session = NULL;
	}
}

int main(int argc, char **argv)
{
	char *head = NULL;
	size_t head_size = 0;
	char *lines[MANY] = {NULL};
	size_t sizes[MANY] = {0};

	if (argc != 2) {
		fprintf(stderr, "usage: torture_client CONNINFO\n");
		return 2;
	}
	client.conninfo = argv[1];
	while (getline(&head, &head_size, stdin) > 0) {
		const char *fields[6];
		attempt attempts[MANY] = {{.number = NULL}};
		if (!split(head, fields, 6)) {
			return 2;
		}
		client.mode = fields[0];
		size_t count = (size_t)strtoul(fields[1], NULL, 10);
		client.before_ms = strtol(fields[2], NULL, 10);
		client.after_ms = strtol(fields[3], NULL, 10);
		client.leave = fields[4];
		client.isolation = fields[5];
		if (count < 1 || count > MANY) {
			return 2;
		}
		for (size_t i = 0; i < count; i++) {
			const char *words[6];
			if (getline(&lines[i], &sizes[i], stdin) <= 0 || !split(lines[i], words, 6)) {
				return 2;
			}
			attempts[i] = (attempt){
			    .number = words[0],
			    .end = words[1],
			    .intent = {.tenant = words[2], .scope = words[3], .key = words[4]},
			    .payload = words[5],
			    .index = i,
			};
		}
		obey(attempts, count);
		fflush(stdout);
	}
	once_session_close(client.session);
	free(head);
	for (size_t i = 0; i < MANY; i++) {
		free(lines[i]);
	}
	return 0;
}
