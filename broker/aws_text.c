/* SPDX-License-Identifier: PostgreSQL */
/* aws_text.c: see aws_text.h. */
#include "aws_text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory.h"

/* ---- forms and XML */

void aws_form_put(FILE *to, once_bytes value)
{
	const unsigned char *at = value.data;

	for (size_t i = 0; i < value.length; i++) {
		if (isalnum(at[i]) || (at[i] != '\0' && strchr("-_.~", at[i]) != NULL)) {
			fputc(at[i], to);
		} else {
			fprintf(to, "%%%02X", at[i]);
		}
	}
}

bool aws_xml_next(once_bytes *rest, const char *element, once_bytes *inner)
{
	char *open = memory_format("<%s>", element), *close = memory_format("</%s>", element);
	const char *end = (const char *)rest->data + rest->length;
	const char *from = rest->length == 0 ? NULL : memmem(rest->data, rest->length, open, strlen(open));
	const char *until = NULL;

	if (from != NULL) {
		from += strlen(open);
		until = memmem(from, (size_t)(end - from), close, strlen(close));
	}
	if (until != NULL) {
		*inner = (once_bytes){.data = from, .length = (size_t)(until - from)};
		until += strlen(close);
		*rest = (once_bytes){.data = until, .length = (size_t)(end - until)};
	}
	free(open);
	free(close);
	return until != NULL;
}

static void read_entity(FILE *to, const char **at, const char *end)
{
	static const struct {
		const char *name;
		char c;
	} entities[] = {{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&apos;", '\''}};

	for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++) {
		size_t length = strlen(entities[i].name);
		if ((size_t)(end - *at) >= length && strncmp(*at, entities[i].name, length) == 0) {
			fputc(entities[i].c, to);
			*at += length;
			return;
		}
	}
	fputc(*(*at)++, to);
}

char *aws_xml_text(once_bytes xml, const char *element)
{
	once_bytes inner;
	char *text = NULL;
	size_t size = 0;
	FILE *to = aws_xml_next(&xml, element, &inner) ? open_memstream(&text, &size) : NULL;

	if (to == NULL) {
		return NULL;
	}
	const char *at = inner.data, *end = at + inner.length;
	while (at < end) {
		read_entity(to, &at, end);
	}
	if (fclose(to) != 0) {
		free(text);
		text = NULL;
	}
	return text;
}

static json_t *json_of(once_bytes text)
{
	return json_loadb(text.length == 0 ? "" : text.data, text.length, 0, NULL);
}

/* ---- errors */

/* Problems are stored as text. */
static void make_printable(char *text)
{
	for (; *text != '\0'; text++) {
		*text = *text < ' ' || *text > '~' ? '?' : *text;
	}
}

/* "com.amazonaws.sqs#QueueDoesNotExist", "Throttling:http://..." -> only the name. */
static void keep_code(char code[AWS_CODE_BYTES], const char *text)
{
	const char *name = strrchr(text, '#');

	snprintf(code, AWS_CODE_BYTES, "%s", name == NULL ? text : name + 1);
	code[strcspn(code, ":")] = '\0';
	make_printable(code);
}

void aws_error_read(once_bytes body, int status, char code[AWS_CODE_BYTES], char problem[BROKER_PROBLEM_BYTES])
{
	json_t *json = json_of(body);
	const char *type = json_string_value(json_object_get(json, "__type"));
	const char *text = json_string_value(json_object_get(json, "message"));
	char *xml_code = json == NULL ? aws_xml_text(body, "Code") : NULL;
	char *xml_text = json == NULL ? aws_xml_text(body, "Message") : NULL;

	text = text != NULL ? text : json_string_value(json_object_get(json, "Message"));
	text = text != NULL ? text : xml_text;
	type = type != NULL ? type : xml_code;
	keep_code(code, type == NULL ? "" : type);
	snprintf(problem, BROKER_PROBLEM_BYTES, "HTTP %d%s%s%s%s", status, code[0] != '\0' ? " " : "", code,
	         text != NULL ? ": " : "", text != NULL ? text : "");
	make_printable(problem);
	json_decref(json);
	free(xml_code);
	free(xml_text);
}

bool aws_is_throttled(const char *code)
{
	return strstr(code, "Throttl") != NULL || strstr(code, "TooManyRequests") != NULL || strcmp(code, "OverLimit") == 0;
}

/* ---- batches */

static aws_entry judge_failed(const char *code, const char *text, bool is_ours, char problem[BROKER_PROBLEM_BYTES])
{
	code = code == NULL || code[0] == '\0' ? "failed" : code;
	snprintf(problem, BROKER_PROBLEM_BYTES, "%.80s%s%.160s", code, text == NULL ? "" : ": ", text == NULL ? "" : text);
	make_printable(problem);
	return is_ours && !aws_is_throttled(code) ? AWS_ENTRY_WRONG : AWS_ENTRY_FAILED;
}

static aws_entry nothing_said(char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES, "the answer to the batch does not mention it");
	return AWS_ENTRY_FAILED;
}

/* The entry with this number in a list of the answer; NULL: it is missing. */
static const json_t *find_entry(const json_t *list, size_t number)
{
	size_t at;
	json_t *each;
	char id[24];

	snprintf(id, sizeof id, "%zu", number);
	json_array_foreach(list, at, each)
	{
		const char *its = json_string_value(json_object_get(each, "Id"));
		if (its != NULL && strcmp(its, id) == 0) {
			return each;
		}
	}
	return NULL;
}

bool aws_batch_is(const json_t *answer)
{
	return json_is_array(json_object_get(answer, "Successful")) || json_is_array(json_object_get(answer, "Failed"));
}

aws_entry aws_batch_read(const json_t *answer, size_t number, const char *proof, char problem[BROKER_PROBLEM_BYTES])
{
	const json_t *failed = find_entry(json_object_get(answer, "Failed"), number);
	const json_t *done = find_entry(json_object_get(answer, "Successful"), number);

	problem[0] = '\0';
	if (failed != NULL) {
		return judge_failed(json_string_value(json_object_get(failed, "Code")),
		                    json_string_value(json_object_get(failed, "Message")),
		                    json_is_true(json_object_get(failed, "SenderFault")), problem);
	}
	bool proven = done != NULL && (proof == NULL || json_string_length(json_object_get(done, proof)) > 0);
	return proven ? AWS_ENTRY_DONE : nothing_said(problem);
}

/* The <member> with this number in a list of the answer. */
static bool find_member(once_bytes answer, const char *list, size_t number, once_bytes *member)
{
	once_bytes members;
	char id[24];
	bool found = false;

	snprintf(id, sizeof id, "%zu", number);
	if (!aws_xml_next(&answer, list, &members)) {
		return false;
	}
	while (!found && aws_xml_next(&members, "member", member)) {
		char *its = aws_xml_text(*member, "Id");
		found = its != NULL && strcmp(its, id) == 0;
		free(its);
	}
	return found;
}

bool aws_batch_is_xml(once_bytes answer)
{
	once_bytes inner;

	return aws_xml_next(&answer, "Successful", &inner) || aws_xml_next(&answer, "Failed", &inner);
}

aws_entry aws_batch_read_xml(once_bytes answer, size_t number, const char *proof, char problem[BROKER_PROBLEM_BYTES])
{
	once_bytes member;

	problem[0] = '\0';
	if (find_member(answer, "Failed", number, &member)) {
		char *code = aws_xml_text(member, "Code"), *text = aws_xml_text(member, "Message");
		char *is_ours = aws_xml_text(member, "SenderFault");
		aws_entry entry = judge_failed(code, text, is_ours != NULL && strcmp(is_ours, "true") == 0, problem);
		free(code);
		free(text);
		free(is_ours);
		return entry;
	}
	once_bytes proven;
	bool done = find_member(answer, "Successful", number, &member) &&
	            (proof == NULL || (aws_xml_next(&member, proof, &proven) && proven.length > 0));
	return done ? AWS_ENTRY_DONE : nothing_said(problem);
}

/* ---- credentials */

void aws_wipe(char *text)
{
	if (text != NULL) {
		explicit_bzero(text, strlen(text));
		free(text);
	}
}

void aws_credentials_wipe(aws_credentials *credentials)
{
	aws_wipe(credentials->access_key);
	aws_wipe(credentials->secret_key);
	aws_wipe(credentials->token);
	*credentials = (aws_credentials){0};
}

/* "2026-01-31T12:00:00Z"; 0: another format. */
static int64_t time_of(const char *text)
{
	struct tm utc = {0};

	return text == NULL || strptime(text, "%Y-%m-%dT%H:%M:%S", &utc) == NULL ? 0 : (int64_t)timegm(&utc);
}

bool aws_credentials_read(once_bytes json, aws_credentials *to)
{
	json_t *object = json_of(json);
	const char *access_key = json_string_value(json_object_get(object, "AccessKeyId"));
	const char *secret_key = json_string_value(json_object_get(object, "SecretAccessKey"));
	const char *token = json_string_value(json_object_get(object, "Token"));
	bool good = access_key != NULL && secret_key != NULL;

	/* Programs and STS use this name. */
	token = token != NULL ? token : json_string_value(json_object_get(object, "SessionToken"));
	if (good) {
		to->access_key = memory_copy(access_key);
		to->secret_key = memory_copy(secret_key);
		to->token = memory_copy(token);
		to->expires_s = time_of(json_string_value(json_object_get(object, "Expiration")));
	}
	json_decref(object);
	return good;
}

bool aws_credentials_read_xml(once_bytes xml, aws_credentials *to)
{
	char *expires = aws_xml_text(xml, "Expiration");

	to->access_key = aws_xml_text(xml, "AccessKeyId");
	to->secret_key = aws_xml_text(xml, "SecretAccessKey");
	to->token = aws_xml_text(xml, "SessionToken");
	to->expires_s = time_of(expires);
	free(expires);
	if (to->access_key == NULL || to->secret_key == NULL || to->token == NULL) {
		aws_credentials_wipe(to);
		return false;
	}
	return true;
}
