/* SPDX-License-Identifier: PostgreSQL */
/* cli_show.c: pgonce show: the story of one intent (once.story), for people. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "connect.h"
#include "plain.h"
#include "replay.h"

enum {
	NAME_COLUMN = 12
};

static const char *text_of(const json_t *story, const char *name)
{
	return json_string_value(json_object_get(story, name));
}

static void print_line(const char *name, const char *value)
{
	if (value != NULL) {
		printf("%-*s ", NAME_COLUMN, name);
		plain_print(value);
		putchar('\n');
	}
}

static void print_run(once_bytes body)
{
	capture_chunk chunk;
	size_t offset = 0;
	uint64_t out_bytes = 0;
	uint64_t err_bytes = 0;

	while (capture_next(body.data, body.length, &offset, &chunk)) {
		switch (chunk.kind) {
		case 'o':
			plain_bytes("out| ", chunk.data, chunk.length);
			break;
		case 'e':
			plain_bytes("err| ", chunk.data, chunk.length);
			break;
		case 't':
			capture_counts(&chunk, &out_bytes, &err_bytes);
			printf("  the output was too large to be stored: %" PRIu64 " bytes of output, %" PRIu64 " of error\n",
			       out_bytes, err_bytes);
			break;
		case 'x':
			printf("  exit status %d\n", chunk.data[0]);
			break;
		default:
			break;
		}
	}
}

static void print_outcome(const json_t *story)
{
	json_t *headers = json_object_get(story, "response_headers");
	const json_t *status = json_object_get(story, "response_status");
	const char *encoded = text_of(story, "response_body");
	char *headers_text = json_is_object(headers) ? json_dumps(headers, JSON_COMPACT) : NULL;

	if (json_is_integer(status)) {
		printf("%-*s %" JSON_INTEGER_FORMAT "\n", NAME_COLUMN, "status", json_integer_value(status));
	}
	print_line("headers", headers_text);
	if (text_of(story, "result_type") != NULL || text_of(story, "result_id") != NULL) {
		printf("%-*s ", NAME_COLUMN, "result");
		plain_print(text_of(story, "result_type") != NULL ? text_of(story, "result_type") : "");
		putchar(' ');
		plain_print(text_of(story, "result_id") != NULL ? text_of(story, "result_id") : "");
		putchar('\n');
	}
	print_line("error", text_of(story, "error_code"));
	print_line("", text_of(story, "error_message"));
	size_t length = 0;
	unsigned char *bytes = encoded != NULL ? plain_decode(encoded, &length) : NULL;
	if (bytes != NULL) {
		printf("%-*s %zu bytes\n", NAME_COLUMN, "body", length);
		once_bytes body = {.data = bytes, .length = length};
		if (replay_is_run(headers_text, body)) {
			print_run(body);
		} else {
			plain_bytes("| ", bytes, length);
		}
	}
	free(bytes);
	free(headers_text);
}

static void print_decisions(const json_t *story)
{
	size_t index = 0;
	json_t *decision = NULL;

	json_array_foreach(json_object_get(story, "decisions"), index, decision)
	{
		printf("%-*s ", NAME_COLUMN, index == 0 ? "decisions" : "");
		plain_print(text_of(decision, "at"));
		fputs(" by ", stdout);
		plain_print(text_of(decision, "by"));
		printf(": %s -> %s: ", text_of(decision, "from"), text_of(decision, "to"));
		plain_print(text_of(decision, "reason"));
		putchar('\n');
	}
}

static void print_events(const json_t *story)
{
	size_t index = 0;
	json_t *event = NULL;

	json_array_foreach(json_object_get(story, "events"), index, event)
	{
		printf("%-*s ", NAME_COLUMN, index == 0 ? "events" : "");
		plain_print(text_of(event, "at"));
		putchar(' ');
		plain_print(text_of(event, "topic"));
		fputs(" (", stdout);
		plain_print(text_of(event, "type"));
		printf(") %s", text_of(event, "id"));
		if (text_of(event, "aggregate_id") != NULL) {
			fputs(" of ", stdout);
			plain_print(text_of(event, "aggregate_type") != NULL ? text_of(event, "aggregate_type") : "");
			putchar(' ');
			plain_print(text_of(event, "aggregate_id"));
		}
		printf("\n%-*s   ", NAME_COLUMN, "");
		/* The text of its JSON, so that its numbers stay as they were written. */
		plain_print(text_of(event, "payload") != NULL ? text_of(event, "payload") : "?");
		putchar('\n');
	}
}

/* What the next attempt would be told. */
static const char *explain(const char *verdict)
{
	static const struct {
		const char *verdict;
		const char *meaning;
	} meanings[] = {
	    {"replay_success", "done; every attempt gets the stored outcome"},
	    {"final_failure", "failed for good; every attempt gets the stored outcome"},
	    {"retryable_failure", "failed without effect; the next attempt may run"},
	    {"processing_active", "an attempt is running"},
	    {"processing_stale", "its lease has passed without a word; the next attempt takes it over"},
	    {"in_doubt", "nobody knows whether the effect happened; find out, then pgonce resolve"},
	};

	for (size_t i = 0; verdict != NULL && i < sizeof meanings / sizeof meanings[0]; i++) {
		if (strcmp(meanings[i].verdict, verdict) == 0) {
			return meanings[i].meaning;
		}
	}
	return "unknown to this version";
}

static void print_story(const json_t *story)
{
	printf("%-*s tenant='", NAME_COLUMN, "intent");
	plain_print(text_of(story, "tenant"));
	fputs("' scope='", stdout);
	plain_print(text_of(story, "scope"));
	fputs("' key='", stdout);
	plain_print(text_of(story, "key"));
	printf("'%s\n", json_is_true(json_object_get(story, "archived")) ? " (archived)" : "");
	printf("%-*s %s: %s\n", NAME_COLUMN, "state", text_of(story, "state"), explain(text_of(story, "verdict")));
	printf("%-*s %" JSON_INTEGER_FORMAT ", fence %" JSON_INTEGER_FORMAT "\n", NAME_COLUMN, "attempts",
	       json_integer_value(json_object_get(story, "attempts")), json_integer_value(json_object_get(story, "fence")));
	print_line("owner", text_of(story, "owner"));
	print_line("lease until", text_of(story, "lease_until"));
	print_line("created", text_of(story, "created_at"));
	print_line("updated", text_of(story, "updated_at"));
	print_line("completed", text_of(story, "completed_at"));
	print_line("expires", text_of(story, "expires_at"));
	print_line("key's day", text_of(story, "day"));
	print_line("traceparent", text_of(story, "traceparent"));
	print_outcome(story);
	print_decisions(story);
	print_events(story);
}

static int not_found(const cli_invocation *invocation, once_session *session, const once_intent *intent)
{
	once_answer *peek = NULL;
	char *named = cli_intent_text(intent);
	bool expired = once_peek(session, intent, &peek, NULL) == ONCE_OK && once_answer_verdict(peek) == ONCE_EXPIRED_KEY;
	char *detail = cli_format("%s; database=%s", named, PQdb(once_session_connection(session)));

	cli_report(
	    invocation,
	    &(cli_problem){
	        .exit_code = CLI_NOT_FOUND,
	        .message = expired ? "the day of this key is retired: what was stored is gone" : "there is no such intent",
	        .detail = detail,
	        .hint = expired
	                    ? "look for the effect itself"
	                    : "check the spelling, --tenant and the database; an attempt in a transaction that is still "
	                      "open does not show, nor one that was rolled back"});
	free(detail);
	free(named);
	once_answer_free(peek);
	return CLI_NOT_FOUND;
}

int cli_show(const cli_invocation *invocation)
{
	once_intent intent = cli_intent(invocation);
	once_session *session = NULL;
	once_error *error = NULL;
	char *text = NULL;
	int result = CLI_USAGE;

	char *conninfo = connect_conninfo(invocation);
	if (conninfo != NULL) {
		result = connect_session(invocation, conninfo, &session);
	}
	if (result == CLI_OK && once_story(session, &intent, &text, &error) != ONCE_OK) {
		result = cli_report_error(invocation, error);
	} else if (result == CLI_OK && text == NULL) {
		result = not_found(invocation, session, &intent);
	} else if (result == CLI_OK) {
		json_t *story = json_loads(text, 0, NULL);
		if (story == NULL) {
			result = cli_fail(invocation, CLI_FAILED, "pgonce doctor", "once.story answered in an unknown form");
		} else if (invocation->given[OPTION_JSON]) {
			cli_print_json(json_incref(story));
		} else {
			print_story(story);
		}
		json_decref(story);
	}
	free(text);
	once_session_close(session);
	free(conninfo);
	return result;
}
