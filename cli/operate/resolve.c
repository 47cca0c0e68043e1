/* SPDX-License-Identifier: PostgreSQL */
/*
 * resolve.c: pgonce resolve: an operator's decision (once.resolve), in a transaction that a dry run
 * rolls back. It never guesses: without --as it prints what is known and which decisions are
 * possible, and changes nothing. With --all: see resolve_many.c.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "operator.h"
#include "plain.h"
#include "resolve_many.h"
#include "story.h"

/* Of a header's name, RFC 9110 5.6.2. */
#define TOKEN "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

enum {
	BODY_BYTES_MAX = 64 * 1024 * 1024,
	REASON_BYTES_MAX = 4096
};

/* The answer of the scope's verify function. */
typedef struct opinion {
	bool asked;      /* there is such a function, and it answered */
	char answer[16]; /* happened, absent, unknown; "" if it was not asked */
	char *problem;   /* why it did not answer; NULL */
} opinion;

static once_state state_of_word(const char *word)
{
	const once_state states[] = {ONCE_STATE_SUCCEEDED, ONCE_STATE_FAILED_RETRYABLE, ONCE_STATE_FAILED_FINAL};

	for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
		if (strcmp(once_state_name(states[i]), word) == 0) {
			return states[i];
		}
	}
	return ONCE_STATE_NONE; /* the command line was checked against these words */
}

/* ---- possible decisions */

static bool is_decidable(const json_t *told)
{
	const char *verdict = operator_text(told, "verdict");

	return strcmp(verdict, "processing_stale") == 0 || strcmp(verdict, "in_doubt") == 0 ||
	       strcmp(verdict, "retryable_failure") == 0;
}

/* A verify function that fails is reported, but is not a failure of this command. */
static void ask_verify(PGconn *connection, const once_intent *intent, opinion *opinion)
{
	const char *parameters[] = {intent->scope, intent->key, intent->tenant};
	PGresult *answer = connect_query(connection, SQL_VERIFY, 3, parameters);

	if (PQresultStatus(answer) != PGRES_TUPLES_OK) {
		const char *message = PQresultErrorField(answer, PG_DIAG_MESSAGE_PRIMARY);
		opinion->problem = cli_duplicate(message != NULL ? message : PQerrorMessage(connection));
	} else if (PQntuples(answer) == 1 && !PQgetisnull(answer, 0, 0)) {
		opinion->asked = true;
		snprintf(opinion->answer, sizeof opinion->answer, "%s", PQgetvalue(answer, 0, 0));
	}
	PQclear(answer);
}

/* The one decision that matches what is known; NULL: none does. */
static const char *fitting(const opinion *opinion)
{
	return strcmp(opinion->answer, "happened") == 0 ? "succeeded"
	       : strcmp(opinion->answer, "absent") == 0 ? "failed_retryable"
	                                                : NULL;
}

static void tell_opinion(const opinion *opinion)
{
	static const struct {
		const char *answer;
		const char *meaning;
	} meanings[] = {
	    {"happened", "the effect happened"},
	    {"absent", "the effect did not happen"},
	    {"unknown", "it cannot tell"},
	};

	if (opinion->problem != NULL) {
		plain_line("verify       no answer: %s", opinion->problem);
	} else if (!opinion->asked) {
		puts("verify       the scope has no verify function");
	}
	for (size_t i = 0; opinion->asked && i < sizeof meanings / sizeof meanings[0]; i++) {
		if (strcmp(opinion->answer, meanings[i].answer) == 0) {
			printf("verify       the scope's verify function says: %s: %s\n", opinion->answer, meanings[i].meaning);
		}
	}
}

/* Nothing is decided: prints the story, the answer of verify, and the commands to type. */
static int explain(const cli_invocation *invocation, const node *node, const once_intent *intent, const story *story)
{
	opinion opinion = {.asked = false};
	bool decidable = is_decidable(story->told);

	if (decidable) {
		ask_verify(node->connection, intent, &opinion);
	}
	const char *fits = fitting(&opinion);
	if (invocation->given[OPTION_JSON]) {
		json_t *known = json_pack("{s:b, s:s?, s:s?, s:s?}", "decidable", decidable, "verify",
		                          opinion.asked ? opinion.answer : NULL, "verify_error", opinion.problem, "fits", fits);
		char *text = json_dumps(known, JSON_PRESERVE_ORDER);
		/* The story's own text, so that no number in it changes. */
		printf("{\"known\": %s, \"story\": %s}\n", text != NULL ? text : "null", story->document);
		free(text);
		json_decref(known);
	} else {
		story_tell(story->told);
		char *command = story_command(invocation, "resolve", intent->tenant == NULL ? "" : intent->tenant,
		                              intent->scope, intent->key);
		if (decidable) {
			putchar('\n');
			tell_opinion(&opinion);
			plain_line("to decide    %s --as %s --reason '...'", command, fits != NULL ? fits : "STATE");
		}
		free(command);
	}
	fflush(stdout);
	free(opinion.problem);
	if (!decidable) {
		return cli_fail(invocation, CLI_REFUSED, "only an intent in doubt, stale, or failed retryably can be decided",
		                "there is nothing to decide: the intent is %s", operator_text(story->told, "verdict"));
	}
	return cli_fail(invocation, CLI_USAGE,
	                "--as succeeded: the effect happened; failed_retryable: it did not, the next attempt may run; "
	                "failed_final: it did not and must not",
	                "nothing was decided: say which with --as%s%s", fits != NULL ? "; what fits is " : "",
	                fits != NULL ? fits : "");
}

/* ---- the decision */

static void tell_side(const char *name, const json_t *told)
{
	const json_t *status = json_object_get(told, "response_status");
	const json_t *bytes = json_object_get(told, "response_bytes");

	printf("  %-8s %s, fence %" JSON_INTEGER_FORMAT, name, operator_text(told, "state"),
	       json_integer_value(json_object_get(told, "fence")));
	if (json_is_integer(status)) {
		printf(", status %" JSON_INTEGER_FORMAT, json_integer_value(status));
	}
	if (json_is_integer(bytes)) {
		printf(", a body of %" JSON_INTEGER_FORMAT " bytes", json_integer_value(bytes));
	}
	if (!json_is_integer(status) && !json_is_integer(bytes)) {
		fputs(", no answer stored", stdout);
	}
	putchar('\n');
}

static const char *following(once_state state)
{
	switch (state) {
	case ONCE_STATE_SUCCEEDED:
		return "every later attempt gets this outcome, and nothing is run again";
	case ONCE_STATE_FAILED_RETRYABLE:
		return "the next attempt runs the effect again";
	case ONCE_STATE_FAILED_FINAL:
		return "every later attempt gets this failure, and nothing is run again";
	default:
		return "";
	}
}

static json_t *side(const json_t *told)
{
	json_t *object = json_object();
	const char *const members[] = {"state", "fence", "attempts", "response_status", "response_bytes"};

	for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
		json_object_set(object, members[i], json_object_get(told, members[i]));
	}
	return object;
}

static void print_decision(const cli_invocation *invocation, const node *node, const once_intent *intent,
                           const char *reason, const opinion *opinion, const json_t *before, const json_t *after)
{
	bool dry_run = invocation->given[OPTION_DRY_RUN];
	const char *as = invocation->text[OPTION_AS];
	const char *follows = following(state_of_word(as));
	const char *fits = fitting(opinion);

	if (invocation->given[OPTION_JSON]) {
		json_t *decision =
		    json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:s, s:s?}", "tenant", intent->tenant, "scope",
		              intent->scope, "key", intent->key, "from", operator_text(before, "state"), "to", as, "reason",
		              reason, "dry_run", dry_run, "before", side(before), "after", side(after), "follows", follows,
		              "verify", opinion->asked ? opinion->answer : NULL);
		if (node->name != NULL) {
			json_object_set_new(decision, "node", json_string(node->name));
		}
		cli_print_json(decision);
		return;
	}
	char *named = cli_intent_text(intent);
	plain_line("%s%s%s: %s -> %s%s", node->name != NULL ? node->name : "", node->name != NULL ? ": " : "", named,
	           operator_text(before, "state"), as, dry_run ? " (dry run: nothing was changed)" : "");
	free(named);
	tell_side("before", before);
	tell_side("after", after);
	printf("  follows  %s; the attempt of fence %" JSON_INTEGER_FORMAT " can report no more\n", follows,
	       json_integer_value(json_object_get(before, "fence")));
	if (dry_run && opinion->asked) {
		printf("  verify   the scope's verify function says: %s%s\n", opinion->answer,
		       fits != NULL && strcmp(fits, as) != 0 &&
		               !(strcmp(fits, "failed_retryable") == 0 && strcmp(as, "failed_final") == 0)
		           ? ", which contradicts your decision"
		           : "");
	}
}

static int decide(const cli_invocation *invocation, const node *node, const once_intent *intent, const char *reason,
                  const once_outcome *outcome, const json_t *before)
{
	PGconn *connection = node->connection;
	bool dry_run = invocation->given[OPTION_DRY_RUN];
	once_state was = ONCE_STATE_NONE;
	once_error *error = NULL;
	opinion opinion = {.asked = false};
	story after = {.document = NULL};

	if (dry_run) {
		ask_verify(connection, intent, &opinion);
	}
	int result = connect_command(invocation, connection, "BEGIN", "cannot begin");
	if (result == CLI_OK && once_resolve(node->session, intent, state_of_word(invocation->text[OPTION_AS]), reason,
	                                     outcome, &was, &error) != ONCE_OK) {
		result = cli_report_error(invocation, error);
	}
	if (result == CLI_OK) {
		result = story_ask(invocation, connection, intent, &after);
	}
	if (result == CLI_OK) {
		result = connect_command(invocation, connection, dry_run ? "ROLLBACK" : "COMMIT",
		                         "the decision may or may not be stored: check with pgonce show");
	}
	if (result == CLI_OK) {
		print_decision(invocation, node, intent, reason, &opinion, before, after.told);
	}
	story_free(&after);
	free(opinion.problem);
	return result;
}

/* ---- the command line */

/*
 * --reason, or the answer typed at the terminal. CLI_OK, with *reason (free it), or CLI_USAGE after
 * saying that it is missing.
 */
static int find_reason(const cli_invocation *invocation, char **reason)
{
	char line[REASON_BYTES_MAX];

	if (invocation->given[OPTION_REASON]) {
		*reason = cli_duplicate(invocation->text[OPTION_REASON]);
		return CLI_OK;
	}
	if (isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && !invocation->given[OPTION_BODY]) {
		once_intent intent = cli_intent(invocation);
		char *named = invocation->given[OPTION_ALL] ? resolve_many_named(invocation) : cli_intent_text(&intent);
		fprintf(stderr, "%s -> %s\nWhy? (recorded with your role and the time) ", named, invocation->text[OPTION_AS]);
		free(named);
		if (fgets(line, sizeof line, stdin) != NULL) {
			line[strcspn(line, "\r\n")] = '\0';
			if (line[strspn(line, " \t")] != '\0') {
				*reason = cli_duplicate(line);
				return CLI_OK;
			}
		} else {
			fputc('\n', stderr);
		}
	}
	return cli_fail(
	    invocation, CLI_USAGE, "pgonce help resolve",
	    "option --reason TEXT is required: it is recorded with your role and the time; nothing was decided");
}

static int read_body(const cli_invocation *invocation, bytes *body, once_outcome *outcome)
{
	if (!invocation->given[OPTION_BODY]) {
		return CLI_OK;
	}
	int problem = bytes_read_file(body, invocation->text[OPTION_BODY]);
	if (problem != 0) {
		return cli_fail(invocation, CLI_USAGE, NULL, "option --body: cannot read %s: %s", invocation->text[OPTION_BODY],
		                strerror(problem));
	}
	outcome->response_body =
	    (once_bytes){.data = body->data != NULL ? (const void *)body->data : "", .length = body->length};
	return CLI_OK;
}

/* A text that is valid in one header line. */
static bool is_header_text(const json_t *value)
{
	const char *text = json_string_value(value);

	return text != NULL && strpbrk(text, "\r\n") == NULL;
}

/* Headers as hand-written SQL stores them: {"Link": ["a", "b"], "Content-Type": "text/plain"}. */
static bool are_headers(json_t *headers)
{
	const char *name;
	json_t *value;
	size_t i;
	json_t *each;

	json_object_foreach(headers, name, value)
	{
		if (name[0] == '\0' || name[strspn(name, TOKEN)] != '\0' ||
		    !(is_header_text(value) || (json_is_array(value) && json_array_size(value) > 0))) {
			return false;
		}
		json_array_foreach(value, i, each)
		{
			if (!is_header_text(each)) {
				return false;
			}
		}
	}
	return json_is_object(headers);
}

/* --headers and --result. The caller frees *type. */
static int read_rest(const cli_invocation *invocation, once_outcome *outcome, char **type)
{
	if (invocation->given[OPTION_RESULT]) {
		int result = cli_result(invocation, OPTION_RESULT, "--result charge:17", type, &outcome->result_id);
		outcome->result_type = *type;
		if (result != CLI_OK) {
			return result;
		}
	}
	if (invocation->given[OPTION_HEADERS]) {
		outcome->response_headers = invocation->text[OPTION_HEADERS];
		json_t *headers = json_loads(outcome->response_headers, JSON_REJECT_DUPLICATES, NULL);
		bool good = are_headers(headers);
		json_decref(headers);
		if (!good) {
			return cli_fail(
			    invocation, CLI_USAGE, "--headers '{\"Content-Type\": \"application/json\"}'",
			    "option --headers: not a JSON object of header names, each with a text or an array of texts");
		}
	}
	return CLI_OK;
}

/* One intent, by its key, or all in doubt: leaving out the key must not decide about all. */
static int check_which(const cli_invocation *invocation)
{
	const option_id of_one[] = {OPTION_KEY, OPTION_RESULT}, of_all[] = {OPTION_ERROR_CODE, OPTION_SINCE, OPTION_UNTIL};
	bool all = invocation->given[OPTION_ALL];
	const char *hint = "pgonce help resolve";

	if (!all && !invocation->given[OPTION_KEY]) {
		return cli_fail(invocation, CLI_USAGE, hint,
		                "option --key KEY is required; or --all, for all intents of the scope that are in doubt");
	}
	if (!all && invocation->given[OPTION_NODES] && !invocation->given[OPTION_TENANT]) {
		return cli_fail(invocation, CLI_USAGE,
		                "--tenant '' for intents without a tenant; pgonce show --nodes finds the tenant",
		                "option --tenant T is required with --nodes and --key");
	}
	for (size_t i = 0; i < sizeof of_one / sizeof of_one[0]; i++) {
		if (all && invocation->given[of_one[i]]) {
			return cli_fail(invocation, CLI_USAGE, hint, "option --%s is for one intent, not with --all",
			                cli_options[of_one[i]].name);
		}
	}
	for (size_t i = 0; i < sizeof of_all / sizeof of_all[0]; i++) {
		if (!all && invocation->given[of_all[i]]) {
			return cli_fail(invocation, CLI_USAGE, hint, "option --%s needs --all", cli_options[of_all[i]].name);
		}
	}
	return all && !invocation->given[OPTION_AS]
	           ? cli_fail(invocation, CLI_USAGE,
	                      "pgonce in-doubt lists them, pgonce recover --in-doubt asks the verify function",
	                      "nothing was decided: give their state with --as")
	           : CLI_OK;
}

static int resolve_one(const cli_invocation *invocation, const node_list *nodes, const char *reason,
                       const once_outcome *outcome)
{
	once_intent intent = cli_intent(invocation);
	const node *node = node_list_next(nodes, NULL);
	story story = {.document = NULL};
	int result = story_ask(invocation, node->connection, &intent, &story);

	if (result == CLI_OK && story.told == NULL) {
		result = story_absent(invocation, node, &intent);
	} else if (result == CLI_OK && !invocation->given[OPTION_AS]) {
		story_mark(node, &story);
		result = explain(invocation, node, &intent, &story);
	} else if (result == CLI_OK) {
		result = decide(invocation, node, &intent, reason, outcome, story.told);
	}
	story_free(&story);
	return result;
}

int cli_resolve(const cli_invocation *invocation)
{
	once_outcome outcome = {.response_status = (int)invocation->number[OPTION_STATUS]};
	bytes body = {.bytes_max = BODY_BYTES_MAX};
	node_list nodes = {.count = 0};
	char *reason = NULL, *result_type = NULL;
	int result = check_which(invocation);

	if (result == CLI_OK) {
		result = read_rest(invocation, &outcome, &result_type);
	}
	if (result == CLI_OK) {
		result = read_body(invocation, &body, &outcome);
	}
	/* Asked for before connecting: nothing in the database waits while the operator thinks. */
	if (result == CLI_OK && invocation->given[OPTION_AS]) {
		result = find_reason(invocation, &reason);
	}
	if (result == CLI_OK) {
		result = node_list_open(invocation, &nodes);
	}
	if (result == CLI_OK && invocation->given[OPTION_ALL]) {
		result = resolve_many(invocation, &nodes, reason, &outcome);
	} else if (result == CLI_OK) {
		result = resolve_one(invocation, &nodes, reason, &outcome);
	}
	node_list_close(&nodes);
	free(reason);
	free(result_type);
	bytes_free(&body);
	return result;
}
