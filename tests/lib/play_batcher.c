/* SPDX-License-Identifier: PostgreSQL */
/*
 * play_batcher.c: clients of a batcher, for tests that break what is below it.
 *   play_batcher DSN KEYS SERIES [CONNECTIONS]
 * Each of KEYS intents is attempted by three clients at a time, who come again until they get the
 * answer; whoever is told to run it reports it done. Prints one line when all have their answers.
 * Exit status 1 where an intent was given to two, or an answer is another one's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pgonce_batcher.h"

enum {
	CLIENTS = 3, /* per intent */
	WINDOW = 300 /* attempts at a time */
};

typedef struct attempt {
	char key[64];
	int number; /* of the intent */
	struct attempt *next;
} attempt;

static once_poll *loop;
static int *granted;   /* per intent: how often somebody was told to run it */
static attempt *again; /* those who come again in the next round */
static int errors[32];
static int at_work;
static int answered;
static int refused;
static size_t more; /* the most connections besides the two */
static bool wrong;

static void claim(attempt *attempt);

static void come_again(attempt *attempt)
{
	attempt->next = again;
	again = attempt;
}

static void reported(void *argument, const once_answer *answer, const once_error *error)
{
	errors[once_error_code(error)]++;
	refused += answer != NULL && once_answer_verdict(answer) != ONCE_STORED;
	/* The client heard nothing of it, and asks. */
	come_again(argument);
}

static void check_replay(const attempt *attempt, const once_answer *answer)
{
	once_bytes body = once_answer_response_body(answer);
	if (body.length != strlen(attempt->key) || memcmp(body.data, attempt->key, body.length) != 0) {
		printf("%s was answered with another answer\n", attempt->key);
		wrong = true;
	}
}

static void run(attempt *attempt, int fence)
{
	const once_intent intent = {.scope = "play", .key = attempt->key};
	const once_outcome outcome = {.response_status = 201,
	                              .response_body = {.data = attempt->key, .length = strlen(attempt->key)}};
	if (++granted[attempt->number] > 1) {
		printf("%s was given to two\n", attempt->key);
		wrong = true;
	}
	if (once_batcher_complete(once_poll_batcher(loop), &intent, fence, &outcome, reported, attempt, NULL, NULL) !=
	    ONCE_OK) {
		abort();
	}
}

static void claimed(void *argument, const once_answer *answer, const once_error *error)
{
	attempt *attempt = argument;
	errors[once_error_code(error)]++;
	if (answer != NULL && once_answer_may_run(answer)) {
		run(attempt, once_answer_fence(answer));
	} else if (answer != NULL && once_answer_verdict(answer) == ONCE_REPLAY_SUCCESS) {
		check_replay(attempt, answer);
		free(attempt);
		at_work--;
		answered++;
	} else {
		come_again(attempt);
	}
}

static void claim(attempt *attempt)
{
	const once_intent intent = {.scope = "play", .key = attempt->key};
	once_fingerprint fingerprint = {{(unsigned char)attempt->number}};
	if (once_batcher_claim(once_poll_batcher(loop), &intent, &fingerprint, "play", 0, 0, claimed, attempt, NULL,
	                       NULL) != ONCE_OK) {
		abort();
	}
}

static void start(int number, const char *series)
{
	for (int i = 0; i < CLIENTS; i++) {
		attempt *made = calloc(1, sizeof *made);
		if (made == NULL) {
			abort();
		}
		snprintf(made->key, sizeof made->key, "%s %d", series, number);
		made->number = number;
		at_work++;
		claim(made);
	}
}

static void print_end(int keys)
{
	once_batcher_statistics counted;
	once_batcher_count(once_poll_batcher(loop), &counted);
	int once = 0;
	for (int i = 0; i < keys; i++) {
		once += granted[i] == 1;
	}
	printf("granted_once=%d answered=%d refused=%d reconnects=%d resent=%d resolved=%d released=%d pending=%d "
	       "errors=%d more=%d\n",
	       once, answered, refused, (int)counted.connects - 2, (int)counted.resent, (int)counted.resolved_claims,
	       (int)counted.released_claims, (int)counted.pending,
	       errors[ONCE_DATABASE] + errors[ONCE_CONTRACT] + errors[ONCE_SERIALIZATION], (int)more);
}

int main(int count, char **arguments)
{
	if (count != 4 && count != 5) {
		return 2;
	}
	int keys = atoi(arguments[2]);
	int next = 0;
	granted = calloc((size_t)keys, sizeof *granted);
	const once_batcher_options options = {.connections_max = count == 5 ? atoi(arguments[4]) : 0};
	if (granted == NULL || once_poll_open(arguments[1], &options, &loop, NULL) != ONCE_OK) {
		return 2;
	}
	printf("started\n");
	fflush(stdout);
	once_batcher_statistics counted = {.pending = 1};
	while (next < keys || at_work > 0 || counted.pending > 0) {
		while (next < keys && at_work < WINDOW) {
			start(next++, arguments[3]);
		}
		if (once_poll_run(loop, again == NULL ? -1 : 2, NULL) != ONCE_OK) {
			return 2;
		}
		attempt *all = again;
		again = NULL;
		while (all != NULL) {
			attempt *one = all;
			all = one->next;
			claim(one);
		}
		once_batcher_count(once_poll_batcher(loop), &counted);
		more = counted.more_connections > more ? counted.more_connections : more;
	}
	print_end(keys);
	once_poll_close(loop);
	free(granted);
	return wrong ? 1 : 0;
}
