/* SPDX-License-Identifier: PostgreSQL */
/* story.c: see story.h. */
#include "story.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moment.h"
#include "operator.h"
#include "plain.h"
#include "run/capture.h"
#include "run/replay.h"

enum {
	NAME_COLUMN = 12,
	WHAT_COLUMN = 9 /* "delivered" */
};

/* ---- asking */

bool story_read(const PGresult *answer, story *story)
{
	*story = (struct story){.document = NULL};
	if (PQntuples(answer) != 1 || PQnfields(answer) != 2) {
		return false;
	}
	if (PQgetisnull(answer, 0, 0)) {
		return true;
	}
	story->document = cli_duplicate(PQgetvalue(answer, 0, 0));
	story->told = json_loads(PQgetvalue(answer, 0, 1), 0, NULL);
	return json_is_object(story->told);
}

int story_ask(const cli_invocation *invocation, PGconn *connection, const once_intent *intent, story *story)
{
	const char *parameters[] = {intent->scope, intent->key, intent->tenant};
	PGresult *answer = NULL;
	int result =
	    connect_run(invocation, connection, SQL_STORY, 3, parameters, "cannot read the story of the intent", &answer);

	*story = (struct story){.document = NULL};
	if (result == CLI_OK && !story_read(answer, story)) {
		result = cli_fail(invocation, CLI_FAILED, "pgonce doctor", "once.story answered in an unknown form");
	}
	if (result == CLI_OK) {
		PQclear(answer);
	}
	return result;
}

void story_free(story *story)
{
	free(story->document);
	json_decref(story->told);
	*story = (struct story){.document = NULL};
}

void story_mark(const node *node, story *story)
{
	size_t length = story->document == NULL ? 0 : strlen(story->document);

	if (node->name == NULL || length == 0 || story->document[length - 1] != '}') {
		return;
	}
	json_t *name = json_string(node->name);
	char *quoted = json_dumps(name, JSON_ENCODE_ANY);
	/* Its text, so that its numbers stay as written. */
	while (length > 0 && strchr("}\n ", story->document[length - 1]) != NULL) {
		length--;
	}
	char *longer =
	    cli_format("%.*s,\n    \"node\": %s\n}", (int)length, story->document, quoted != NULL ? quoted : "null");
	free(story->document);
	story->document = longer;
	free(quoted);
	json_decref(name);
}

int story_absent(const cli_invocation *invocation, const node *node, const once_intent *intent)
{
	once_session *session = node->session;
	once_answer *peek = NULL;
	char *named = cli_intent_text(intent);
	bool expired = once_peek(session, intent, &peek, NULL) == ONCE_OK && once_answer_verdict(peek) == ONCE_EXPIRED_KEY;
	char *detail = cli_format("%s; %s=%s", named, node->name != NULL ? "node" : "database",
	                          node->name != NULL ? node->name : PQdb(node->connection));

	cli_report(
	    invocation,
	    &(cli_problem){
	        .exit_code = CLI_NOT_FOUND,
	        .message = expired ? "the day of this key is retired: its intent was deleted" : "there is no such intent",
	        .detail = detail,
	        .hint = expired ? "look for the effect itself"
	                        : "check the spelling, --tenant and the database; an attempt in an open transaction is not "
	                          "visible, nor one that was rolled back; pgonce find searches in other ways"});
	free(detail);
	free(named);
	once_answer_free(peek);
	return CLI_NOT_FOUND;
}

/* ---- words */

/*
 * A word for a shell: unquoted, or in single quotes, or as $'...' (POSIX.1-2024, bash) with numeric
 * escapes if one of its characters must not reach a terminal.
 */
static char *quoted(const char *word)
{
	static const char harmless[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
	bool hides = false;

	if (word[0] != '\0' && word[strspn(word, harmless)] == '\0') {
		return cli_duplicate(word);
	}
	for (const char *at = word; *at != '\0' && !hides; at++) {
		hides = plain_hidden(at) > 0;
	}
	char *text = cli_allocate(4 * strlen(word) + 4);
	char *to = text;
	to = stpcpy(to, hides ? "$'" : "'");
	while (*word != '\0') {
		size_t hidden = plain_hidden(word);
		for (; hidden > 0; hidden--, word++) {
			to += sprintf(to, "\\%03o", (unsigned)(unsigned char)*word);
		}
		if (*word == '\'') {
			to = stpcpy(to, hides ? "\\'" : "'\\''");
			word++;
		} else if (*word == '\\' && hides) {
			to = stpcpy(to, "\\\\");
			word++;
		} else if (*word != '\0' && plain_hidden(word) == 0) {
			*to++ = *word++;
		}
	}
	stpcpy(to, "'");
	return text;
}

char *story_command(const cli_invocation *invocation, const char *verb, const char *tenant, const char *scope,
                    const char *key)
{
	const char *nodes = invocation->text[OPTION_NODES];
	bool names_tenant = tenant[0] != '\0' || nodes != NULL; /* with --nodes none means any tenant */
	char *quoted_nodes = quoted(nodes != NULL ? nodes : ""), *quoted_tenant = quoted(tenant);
	char *quoted_scope = quoted(scope), *quoted_key = quoted(key);
	/* "--key=": a key may begin with a dash. */
	char *text = cli_format("pgonce %s%s%s%s%s --scope=%s --key=%s", verb, nodes != NULL ? " --nodes=" : "",
	                        nodes != NULL ? quoted_nodes : "", names_tenant ? " --tenant=" : "",
	                        names_tenant ? quoted_tenant : "", quoted_scope, quoted_key);

	free(quoted_nodes);
	free(quoted_tenant);
	free(quoted_scope);
	free(quoted_key);
	return text;
}

const char *story_meaning(const char *verdict)
{
	static const struct {
		const char *verdict;
		const char *meaning;
	} meanings[] = {
	    /* spec: verdicts-shown */
	    {"replay_success", "done; every attempt gets the stored outcome"},
	    {"processing_active", "an attempt is running"},
	    {"processing_stale",
	     "its lease has passed and it reported nothing; the policy says what the next attempt does"},
	    {"retryable_failure", "failed without effect; the next attempt may run"},
	    {"final_failure", "failed for good; every attempt gets the stored outcome"},
	    {"in_doubt", "its outcome is unknown; find out, then pgonce resolve"},
	    {"expired", "its retention has ended; a late attempt is refused, and not run again"},
	    {"absent", "nothing is stored"},
	    /* end of spec */
	};

	for (size_t i = 0; verdict != NULL && i < sizeof meanings / sizeof meanings[0]; i++) {
		if (strcmp(meanings[i].verdict, verdict) == 0) {
			return meanings[i].meaning;
		}
	}
	return "unknown to this version";
}

/* ---- telling */

static const char *text_of(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

static void tell(const char *name, const char *value)
{
	if (value != NULL) {
		plain_line("%-*s %s", NAME_COLUMN, name, value);
	}
}

static void tell_time(const json_t *told, const char *name, const char *member)
{
	const char *text = text_of(told, member);
	int64_t at = 0, now = 0;
	char shown[64], relative[64];

	if (text == NULL) {
		return;
	}
	if (!moment_parse(text, &at) || !moment_parse(text_of(told, "now"), &now)) {
		tell(name, text);
		return;
	}
	moment_shown(text, shown, sizeof shown);
	moment_relative(at, now, relative, sizeof relative);
	const char *zone = strpbrk(text + 19, "+-");
	printf("%-*s %s%s  (%s)\n", NAME_COLUMN, name, shown, zone != NULL ? zone : "", relative);
}

static void tell_run(once_bytes body)
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

static void tell_outcome(const json_t *told)
{
	const json_t *status = json_object_get(told, "response_status");
	const char *encoded = text_of(told, "response_body");
	const char *headers = text_of(told, "response_headers");

	if (json_is_integer(status)) {
		printf("%-*s %" JSON_INTEGER_FORMAT "\n", NAME_COLUMN, "status", json_integer_value(status));
	}
	tell("headers", headers);
	if (text_of(told, "result_type") != NULL || text_of(told, "result_id") != NULL) {
		char *result = cli_format("%s %s", operator_text(told, "result_type"), operator_text(told, "result_id"));
		tell("result", result);
		free(result);
	}
	tell("error", text_of(told, "error_code"));
	tell("", text_of(told, "error_message"));
	size_t length = 0;
	unsigned char *bytes = encoded != NULL ? plain_decode(encoded, &length) : NULL;
	if (bytes != NULL) {
		printf("%-*s %zu bytes\n", NAME_COLUMN, "body", length);
		once_bytes body = {.data = bytes, .length = length};
		if (replay_is_run(headers, body)) {
			tell_run(body);
		} else {
			plain_bytes("| ", bytes, length);
		}
	}
	free(bytes);
}

/* "  2026-01-31 12:00:00.123  +3.2s  takeover   the text (by whom, fence 2)" */
static void tell_moment(const json_t *entry, int64_t first)
{
	char shown[64], since[40] = "", span[32], of[40] = "";
	const char *by = operator_text(entry, "by"), *text = operator_text(entry, "text"),
	           *what = operator_text(entry, "what");
	json_int_t fence = json_integer_value(json_object_get(entry, "fence"));
	int64_t at = 0;

	moment_shown(text_of(entry, "at"), shown, sizeof shown);
	if (text_of(entry, "at") == NULL) {
		snprintf(shown, sizeof shown, "(time unknown)");
	} else if (moment_parse(text_of(entry, "at"), &at) && at != first) {
		moment_span(at - first, span, sizeof span);
		snprintf(since, sizeof since, "%c%s", at < first ? '-' : '+', span);
	}
	if (fence > 0) {
		snprintf(of, sizeof of, "%sfence %" JSON_INTEGER_FORMAT, by[0] != '\0' ? ", " : "", fence);
	}
	bool is_known = by[0] != '\0' || fence > 0;
	plain_line("  %-23s %9s  %-*s %s%s%s%s%s%s%s", shown, since, WHAT_COLUMN, what, text,
	           is_known && text[0] != '\0' ? " " : "", is_known ? "(" : "", by[0] != '\0' ? "by " : "", by, of,
	           is_known ? ")" : "");
}

static void tell_timeline(const json_t *told)
{
	const json_t *timeline = json_object_get(told, "timeline");
	const json_t *entry = NULL;
	size_t index = 0;
	int64_t first = 0;
	bool begun = false;

	if (json_array_size(timeline) == 0) {
		return;
	}
	fputs("timeline\n", stdout);
	json_array_foreach(timeline, index, entry)
	{
		int64_t at = 0;
		if (!begun && moment_parse(text_of(entry, "at"), &at)) {
			first = at;
			begun = true;
		}
		tell_moment(entry, first);
	}
}

/* Who decided what and why, and the states before and after if known. */
static void tell_decisions(const json_t *told)
{
	const json_t *decision = NULL;
	size_t index = 0;
	char shown[64];
	bool begun = false;

	json_array_foreach(json_object_get(told, "decisions"), index, decision)
	{
		const char *kind = operator_text(decision, "kind");
		bool attempt = strcmp(kind, "takeover") == 0 || strcmp(kind, "retry") == 0;
		if (attempt || (text_of(decision, "before") == NULL && text_of(decision, "after") == NULL)) {
			continue; /* the timeline has everything that is known */
		}
		fputs(begun ? "" : "decisions\n", stdout);
		begun = true;
		moment_shown(text_of(decision, "at"), shown, sizeof shown);
		plain_line("  %s by %s: %s -> %s: %s", shown, operator_text(decision, "by"), operator_text(decision, "from"),
		           operator_text(decision, "to"), operator_text(decision, "reason"));
		if (text_of(decision, "before") != NULL) {
			plain_line("    before %s", text_of(decision, "before"));
		}
		if (text_of(decision, "after") != NULL) {
			plain_line("    after  %s", text_of(decision, "after"));
		}
	}
}

static void tell_payload(const json_t *event)
{
	const char *encoded = text_of(event, "payload_base64");
	size_t length = 0;
	unsigned char *bytes = encoded != NULL ? plain_decode(encoded, &length) : NULL;

	if (bytes != NULL) {
		plain_line("    %zu bytes of %s", length, operator_text(event, "content_type"));
		plain_bytes("  | ", bytes, length);
		free(bytes);
		return;
	}
	/* The text of its JSON, so that its numbers stay as written. */
	plain_line("    %s", text_of(event, "payload") != NULL ? text_of(event, "payload") : "?");
}

static void tell_event(const json_t *event)
{
	const json_t *relay = NULL;
	size_t index = 0;
	char shown[64];
	bool has_aggregate = text_of(event, "aggregate_id") != NULL;

	moment_shown(text_of(event, "at"), shown, sizeof shown);
	plain_line("  %s  %s (%s) %s%s%s%s%s", shown, operator_text(event, "topic"), operator_text(event, "type"),
	           operator_text(event, "id"), has_aggregate ? " of " : "",
	           has_aggregate ? operator_text(event, "aggregate_type") : "", has_aggregate ? " " : "",
	           operator_text(event, "aggregate_id"));
	tell_payload(event);
	json_array_foreach(json_object_get(event, "relays"), index, relay)
	{
		const char *state = operator_text(relay, "state");
		const json_t *attempts = json_object_get(relay, "attempts");
		char tried[48] = "";
		if (json_is_integer(attempts)) {
			snprintf(tried, sizeof tried, ", %" JSON_INTEGER_FORMAT " attempts", json_integer_value(attempts));
		}
		plain_line("    relay %s: %s%s%s%s", operator_text(relay, "relay"),
		           strcmp(state, "passed") == 0    ? "delivered (or discarded, or older than the relay)"
		           : strcmp(state, "pending") == 0 ? "pending: the relay has not reached it yet"
		                                           : state,
		           tried, text_of(relay, "error") != NULL ? ": " : "", operator_text(relay, "error"));
	}
}

void story_tell(const json_t *told)
{
	const json_t *event = NULL;
	size_t index = 0;
	char *named = cli_intent_text(&(once_intent){.tenant = operator_text(told, "tenant"),
	                                             .scope = operator_text(told, "scope"),
	                                             .key = operator_text(told, "key")});
	char *where = cli_format("%s%s", named, json_is_true(json_object_get(told, "archived")) ? " (archived)" : "");

	tell("intent", where);
	free(where);
	free(named);
	printf("%-*s %s: %s\n", NAME_COLUMN, "state", operator_text(told, "state"),
	       story_meaning(text_of(told, "verdict")));
	printf("%-*s %" JSON_INTEGER_FORMAT ", fence %" JSON_INTEGER_FORMAT "\n", NAME_COLUMN, "attempts",
	       json_integer_value(json_object_get(told, "attempts")), json_integer_value(json_object_get(told, "fence")));
	tell("owner", text_of(told, "owner"));
	tell_time(told, "lease until", "lease_until");
	tell_time(told, "created", "created_at");
	tell_time(told, "completed", "completed_at");
	tell_time(told, "expires", "expires_at");
	tell("key's day", text_of(told, "day"));
	tell("traceparent", text_of(told, "traceparent"));
	tell_outcome(told);
	tell_timeline(told);
	tell_decisions(told);
	if (json_array_size(json_object_get(told, "events")) > 0) {
		fputs("events\n", stdout);
	}
	json_array_foreach(json_object_get(told, "events"), index, event)
	{
		tell_event(event);
	}
}
