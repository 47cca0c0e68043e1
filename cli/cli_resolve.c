/* SPDX-License-Identifier: PostgreSQL */
/* cli_resolve.c: pgonce resolve: an operator's decision (once.resolve), in a transaction that a dry run rolls back. */
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "connect.h"

enum {
	BODY_BYTES_MAX = 64 * 1024 * 1024
};

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

/* P4070 says that it is refused; that there is nothing to decide on has an exit code of its own. */
static int check_exists(const cli_invocation *invocation, once_session *session, const once_intent *intent)
{
	once_answer *peek = NULL;
	once_error *error = NULL;

	if (once_peek(session, intent, &peek, &error) != ONCE_OK) {
		return cli_report_error(invocation, error);
	}
	bool absent = once_answer_verdict(peek) == ONCE_ABSENT || once_answer_verdict(peek) == ONCE_EXPIRED_KEY;
	once_answer_free(peek);
	if (!absent) {
		return CLI_OK;
	}
	char *detail = cli_intent_text(intent);
	cli_report(invocation, &(cli_problem){.exit_code = CLI_NOT_FOUND,
	                                      .message = "there is no such intent: nothing was decided",
	                                      .detail = detail,
	                                      .hint = "check the spelling, --tenant and the database"});
	free(detail);
	return CLI_NOT_FOUND;
}

static void print_decision(const cli_invocation *invocation, const once_intent *intent, once_state before)
{
	bool dry_run = invocation->given[OPTION_DRY_RUN];
	const char *after = invocation->text[OPTION_AS];

	if (invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b}", "tenant", intent->tenant, "scope",
		                         intent->scope, "key", intent->key, "from", once_state_name(before), "to", after,
		                         "reason", invocation->text[OPTION_REASON], "dry_run", dry_run));
		return;
	}
	char *named = cli_intent_text(intent);
	printf("%s: %s -> %s%s\n", named, once_state_name(before), after, dry_run ? " (dry run: nothing was changed)" : "");
	free(named);
}

static int decide(const cli_invocation *invocation, once_session *session, const once_intent *intent,
                  const once_outcome *outcome)
{
	PGconn *connection = once_session_connection(session);
	once_state before = ONCE_STATE_NONE;
	once_error *error = NULL;
	int result = connect_run(invocation, connection, SQL_BEGIN_TRANSACTION, 0, NULL, "cannot begin", NULL);

	if (result != CLI_OK) {
		return result;
	}
	if (once_resolve(session, intent, state_of_word(invocation->text[OPTION_AS]), invocation->text[OPTION_REASON],
	                 outcome, &before, &error) != ONCE_OK) {
		return cli_report_error(invocation, error);
	}
	result = connect_run(invocation, connection, invocation->given[OPTION_DRY_RUN] ? SQL_ROLLBACK : SQL_COMMIT, 0, NULL,
	                     "the decision may or may not be stored, look with pgonce show", NULL);
	if (result == CLI_OK) {
		print_decision(invocation, intent, before);
	}
	return result;
}

int cli_resolve(const cli_invocation *invocation)
{
	once_intent intent = cli_intent(invocation);
	once_outcome outcome = {.response_status = (int)invocation->number[OPTION_STATUS]};
	buffer body = {.bytes_max = BODY_BYTES_MAX};
	once_session *session = NULL;
	int result = CLI_USAGE;

	if (invocation->given[OPTION_BODY]) {
		int problem = buffer_read_file(&body, invocation->text[OPTION_BODY]);
		if (problem != 0) {
			buffer_free(&body);
			return cli_fail(invocation, CLI_USAGE, NULL, "option --body: cannot read %s: %s",
			                invocation->text[OPTION_BODY], strerror(problem));
		}
		outcome.response_body =
		    (once_bytes){.data = body.data != NULL ? (const void *)body.data : "", .length = body.length};
	}
	char *conninfo = connect_conninfo(invocation);
	if (conninfo != NULL) {
		result = connect_session(invocation, conninfo, &session);
	}
	if (result == CLI_OK) {
		result = check_exists(invocation, session, &intent);
	}
	if (result == CLI_OK) {
		result = decide(invocation, session, &intent, &outcome);
	}
	once_session_close(session);
	free(conninfo);
	buffer_free(&body);
	return result;
}
