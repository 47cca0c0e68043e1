/* SPDX-License-Identifier: PostgreSQL */
/* story.c: see story.h. */
#include "story.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "moment.h"
#include "parked.h"
#include "plain.h"
#include "replay.h"

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

int story_absent(const cli_invocation *invocation, once_session *session, const once_intent *intent)
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
	                      "open does not show, nor one that was rolled back; pgonce find searches by other marks"});
	free(detail);
	free(named);
	once_answer_free(peek);
	return CLI_NOT_FOUND;
}

/* ---- words */

/*
 * A word that a shell takes as it is, or in quotes: single ones, and $'...' (POSIX.1-2024, bash) where a character of it must not reach a terminal, by
 * its bytes' numbers.
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

char *story_command(const char *verb, const char *tenant, const char *scope, const char *key)
{
	char *quoted_tenant = quoted(tenant), *quoted_scope = quoted(scope), *quoted_key = quoted(key);
	/* "--key=": a key may begin with a dash. */
	char *text = cli_format("pgonce %s%s%s --scope=%s --key=%s", verb, tenant[0] != '\0' ? " --tenant=" : "",
	                        tenant[0] != '\0' ? quoted_tenant : "", quoted_scope, quoted_key);

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
	    {"replay_success", "done; every attempt gets the stored outcome"},
	    {"final_failure", "failed for good; every attempt gets the stored outcome"},
	    {"retryable_failure", "failed without effect; the next attempt may run"},
	    {"processing_active", "an attempt is running"},
	    {"processing_stale", "its lease has passed without a word; the policy says what the next attempt does"},
	    {"in_doubt", "nobody knows whether the effect happened; find out, then pgonce resolve"},
	    {"expired", "its retention has passed; a late attempt is refused, and not run again"},
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

static void tell(FILE *out, const char *name, const char *value)
{
	if (value != NULL) {
		fprintf(out, "%-*s ", NAME_COLUMN, name);
		plain_write(out, value);
		putc('\n', out);
	}
}

static void tell_time(FILE *out, const json_t *told, const char *name, const char *member)
{
	const char *text = text_of(told, member);
	int64_t at = 0, now = 0;
	char shown[64], relative[64];

	if (text == NULL) {
		return;
	}
	if (!moment_parse(text, &at) || !moment_parse(text_of(told, "now"), &now)) {
		tell(out, name, text);
		return;
	}
	moment_shown(text, shown, sizeof shown);
	moment_relative(at, now, relative, sizeof relative);
	const char *zone = strpbrk(text + 19, "+-");
	fprintf(out, "%-*s %s%s  (%s)\n", NAME_COLUMN, name, shown, zone != NULL ? zone : "", relative);
}

static void tell_run(FILE *out, once_bytes body)
{
	capture_chunk chunk;
	size_t offset = 0;
	uint64_t out_bytes = 0;
	uint64_t err_bytes = 0;

	while (capture_next(body.data, body.length, &offset, &chunk)) {
		switch (chunk.kind) {
		case 'o':
			plain_bytes(out, "out| ", chunk.data, chunk.length);
			break;
		case 'e':
			plain_bytes(out, "err| ", chunk.data, chunk.length);
			break;
		case 't':
			capture_counts(&chunk, &out_bytes, &err_bytes);
			fprintf(out, "  the output was too large to be stored: %" PRIu64 " bytes of output, %" PRIu64 " of error\n",
			        out_bytes, err_bytes);
			break;
		case 'x':
			fprintf(out, "  exit status %d\n", chunk.data[0]);
			break;
		default:
			break;
		}
	}
}

static void tell_outcome(FILE *out, const json_t *told)
{
	const json_t *status = json_object_get(told, "response_status");
	const char *encoded = text_of(told, "response_body");
	const char *headers = text_of(told, "response_headers");

	if (json_is_integer(status)) {
		fprintf(out, "%-*s %" JSON_INTEGER_FORMAT "\n", NAME_COLUMN, "status", json_integer_value(status));
	}
	tell(out, "headers", headers);
	if (text_of(told, "result_type") != NULL || text_of(told, "result_id") != NULL) {
		char *result = cli_format("%s %s", parked_text(told, "result_type"), parked_text(told, "result_id"));
		tell(out, "result", result);
		free(result);
	}
	tell(out, "error", text_of(told, "error_code"));
	tell(out, "", text_of(told, "error_message"));
	size_t length = 0;
	unsigned char *bytes = encoded != NULL ? plain_decode(encoded, &length) : NULL;
	if (bytes != NULL) {
		fprintf(out, "%-*s %zu bytes\n", NAME_COLUMN, "body", length);
		once_bytes body = {.data = bytes, .length = length};
		if (replay_is_run(headers, body)) {
			tell_run(out, body);
		} else {
			plain_bytes(out, "| ", bytes, length);
		}
	}
	free(bytes);
}

/* "  2026-01-31 12:00:00.123  +3.2s  takeover   the text (by whom, fence 2)" */
static void tell_moment(FILE *out, const json_t *entry, int64_t first)
{
	char shown[64], since[40] = "", span[32];
	const char *by = parked_text(entry, "by"), *text = parked_text(entry, "text"), *what = parked_text(entry, "what");
	json_int_t fence = json_integer_value(json_object_get(entry, "fence"));
	int64_t at = 0;

	moment_shown(text_of(entry, "at"), shown, sizeof shown);
	if (text_of(entry, "at") == NULL) {
		snprintf(shown, sizeof shown, "(time unknown)");
	} else if (moment_parse(text_of(entry, "at"), &at) && at != first) {
		moment_span(at - first, span, sizeof span);
		snprintf(since, sizeof since, "%c%s", at < first ? '-' : '+', span);
	}
	fprintf(out, "  %-23s %9s  ", shown, since);
	plain_write(out, what);
	fprintf(out, "%*s ", WHAT_COLUMN - (int)strlen(what) > 0 ? WHAT_COLUMN - (int)strlen(what) : 0, "");
	plain_write(out, text);
	if (by[0] != '\0' || fence > 0) {
		fputs(text[0] != '\0' ? " (" : "(", out);
		fputs(by[0] != '\0' ? "by " : "", out);
		plain_write(out, by);
		fputs(by[0] != '\0' && fence > 0 ? ", " : "", out);
		if (fence > 0) {
			fprintf(out, "fence %" JSON_INTEGER_FORMAT, fence);
		}
		putc(')', out);
	}
	putc('\n', out);
}

static void tell_timeline(FILE *out, const json_t *told)
{
	const json_t *timeline = json_object_get(told, "timeline");
	const json_t *entry = NULL;
	size_t index = 0;
	int64_t first = 0;
	bool begun = false;

	if (json_array_size(timeline) == 0) {
		return;
	}
	fputs("timeline\n", out);
	json_array_foreach(timeline, index, entry)
	{
		int64_t at = 0;
		if (!begun && moment_parse(text_of(entry, "at"), &at)) {
			first = at;
			begun = true;
		}
		tell_moment(out, entry, first);
	}
}

/* Who decided what and why, and what was before and after where that is known. */
static void tell_decisions(FILE *out, const json_t *told)
{
	const json_t *decision = NULL;
	size_t index = 0;
	char shown[64];
	bool begun = false;

	json_array_foreach(json_object_get(told, "decisions"), index, decision)
	{
		const char *kind = parked_text(decision, "kind");
		bool attempt = strcmp(kind, "takeover") == 0 || strcmp(kind, "retry") == 0;
		if (attempt || (text_of(decision, "before") == NULL && text_of(decision, "after") == NULL)) {
			continue; /* the timeline says all that is known */
		}
		fputs(begun ? "" : "decisions\n", out);
		begun = true;
		moment_shown(text_of(decision, "at"), shown, sizeof shown);
		fprintf(out, "  %s by ", shown);
		plain_write(out, parked_text(decision, "by"));
		fprintf(out, ": %s -> %s: ", parked_text(decision, "from"), parked_text(decision, "to"));
		plain_write(out, parked_text(decision, "reason"));
		putc('\n', out);
		if (text_of(decision, "before") != NULL) {
			fputs("    before ", out);
			plain_write(out, text_of(decision, "before"));
			putc('\n', out);
		}
		if (text_of(decision, "after") != NULL) {
			fputs("    after  ", out);
			plain_write(out, text_of(decision, "after"));
			putc('\n', out);
		}
	}
}

static void tell_event(FILE *out, const json_t *event)
{
	const json_t *relay = NULL;
	size_t index = 0;
	char shown[64];

	moment_shown(text_of(event, "at"), shown, sizeof shown);
	fprintf(out, "  %s  ", shown);
	plain_write(out, parked_text(event, "topic"));
	fputs(" (", out);
	plain_write(out, parked_text(event, "type"));
	fprintf(out, ") %s", parked_text(event, "id"));
	if (text_of(event, "aggregate_id") != NULL) {
		fputs(" of ", out);
		plain_write(out, parked_text(event, "aggregate_type"));
		putc(' ', out);
		plain_write(out, parked_text(event, "aggregate_id"));
	}
	fputs("\n    ", out);
	/* The text of its JSON, so that its numbers stay as they were written. */
	plain_write(out, text_of(event, "payload") != NULL ? text_of(event, "payload") : "?");
	putc('\n', out);
	json_array_foreach(json_object_get(event, "relays"), index, relay)
	{
		const char *state = parked_text(relay, "state");
		fputs("    relay ", out);
		plain_write(out, parked_text(relay, "relay"));
		fprintf(out, ": %s",
		        strcmp(state, "passed") == 0    ? "delivered (or discarded, or older than the relay)"
		        : strcmp(state, "pending") == 0 ? "pending: the relay has not come to it yet"
		                                        : state);
		if (json_is_integer(json_object_get(relay, "attempts"))) {
			fprintf(out, ", %" JSON_INTEGER_FORMAT " attempts", json_integer_value(json_object_get(relay, "attempts")));
		}
		if (text_of(relay, "error") != NULL) {
			fputs(": ", out);
			plain_write(out, parked_text(relay, "error"));
		}
		putc('\n', out);
	}
}

void story_tell(FILE *out, const json_t *told)
{
	const json_t *event = NULL;
	size_t index = 0;
	char *named = cli_intent_text(&(once_intent){
	    .tenant = parked_text(told, "tenant"), .scope = parked_text(told, "scope"), .key = parked_text(told, "key")});
	char *where = cli_format("%s%s", named, json_is_true(json_object_get(told, "archived")) ? " (archived)" : "");

	tell(out, "intent", where);
	free(where);
	free(named);
	fprintf(out, "%-*s %s: %s\n", NAME_COLUMN, "state", parked_text(told, "state"),
	        story_meaning(text_of(told, "verdict")));
	fprintf(out, "%-*s %" JSON_INTEGER_FORMAT ", fence %" JSON_INTEGER_FORMAT "\n", NAME_COLUMN, "attempts",
	        json_integer_value(json_object_get(told, "attempts")), json_integer_value(json_object_get(told, "fence")));
	tell(out, "owner", text_of(told, "owner"));
	tell_time(out, told, "lease until", "lease_until");
	tell_time(out, told, "created", "created_at");
	tell_time(out, told, "completed", "completed_at");
	tell_time(out, told, "expires", "expires_at");
	tell(out, "key's day", text_of(told, "day"));
	tell(out, "traceparent", text_of(told, "traceparent"));
	tell_outcome(out, told);
	tell_timeline(out, told);
	tell_decisions(out, told);
	if (json_array_size(json_object_get(told, "events")) > 0) {
		fputs("events\n", out);
	}
	json_array_foreach(json_object_get(told, "events"), index, event)
	{
		tell_event(out, event);
	}
}
