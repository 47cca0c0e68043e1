/* SPDX-License-Identifier: PostgreSQL */
/* page.c: see page.h. */
#include "page.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "value.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ---- the table */

/* clang-format off */
#define STATES "processing|succeeded|failed_retryable|failed_final|in_doubt"
#define TAKE   {.name = "take", .kind = FIELD_NUMBER, .least = 1, .most = 500}
#define TEXT(n) {.name = (n), .kind = FIELD_TEXT}
#define KINDS  "event|message"
#define PARKED "pending|waiting|retrying|dead|delayed"
#define COUNTED(n) {.name = (n), .kind = FIELD_NUMBER, .least = 0, .most = 2147483647}
#define NEEDED(n) {.name = (n), .kind = FIELD_TEXT, .is_required = true}
#define TIME(n) {.name = (n), .kind = FIELD_TIME}
#define AFTER  {.name = "after", .kind = FIELD_CURSOR}

static const page_parameter find[] = {
    TEXT("q"), TEXT("scope"), TEXT("tenant"), {.name = "state", .kind = FIELD_CHOICE, .choices = STATES},
    TIME("since"), TIME("until"), AFTER, TAKE,
};
static const page_parameter intent[] = {
    NEEDED("scope"), NEEDED("key"), TEXT("tenant"), {.name = "body", .kind = FIELD_FLAG},
};
static const page_parameter doubts[] = {TEXT("scope"), TEXT("tenant"), TEXT("error"), AFTER, TAKE};
static const page_parameter doubt[] = {NEEDED("scope"), NEEDED("key"), TEXT("tenant")};
static const page_parameter decide[] = {
    NEEDED("scope"), NEEDED("key"), TEXT("tenant"),
    {.name = "fence", .kind = FIELD_NUMBER, .least = 0, .most = 2147483647, .is_required = true},
    {.name = "state", .kind = FIELD_CHOICE, .choices = STATES, .is_required = true},
    {.name = "decision", .kind = FIELD_CHOICE, .choices = "happened|absent|never|leave", .is_required = true},
    {.name = "status", .kind = FIELD_NUMBER, .least = 0, .most = 999},
    {.name = "body", .kind = FIELD_TEXT, .bytes_max = PAGE_ANSWER_BYTES_MAX},
    TEXT("result_type"), TEXT("result_id"), NEEDED("reason"), {.name = "dry_run", .kind = FIELD_FLAG},
};
static const page_parameter messages[] = {
    {.name = "kind", .kind = FIELD_CHOICE, .choices = KINDS}, TEXT("relay"), TEXT("consumer"), TEXT("tenant"), TEXT("topic"),
    TEXT("event_type"), TEXT("error"), {.name = "state", .kind = FIELD_CHOICE, .choices = PARKED}, TEXT("id"), AFTER, TAKE,
};
static const page_parameter change[] = {
    {.name = "action", .kind = FIELD_CHOICE, .choices = "retry|discard|replay", .is_required = true},
    {.name = "kind", .kind = FIELD_CHOICE, .choices = KINDS}, TEXT("relay"), TEXT("consumer"), TEXT("tenant"), TEXT("topic"),
    TEXT("event_type"), TEXT("error"), {.name = "state", .kind = FIELD_CHOICE, .choices = PARKED},
    {.name = "id", .kind = FIELD_MANY}, NEEDED("reason"), TIME("since"), {.name = "force", .kind = FIELD_FLAG}, AFTER,
    {.name = "dry_run", .kind = FIELD_FLAG},
};
static const page_parameter message[] = {
    NEEDED("id"), {.name = "kind", .kind = FIELD_CHOICE, .choices = KINDS}, TEXT("holder"), TEXT("consumer"), TEXT("tenant"),
    TEXT("scope"), TEXT("key"), {.name = "body", .kind = FIELD_FLAG},
};
static const page_parameter scope[] = {TEXT("scope")};
static const page_parameter set_scope[] = {
    TEXT("scope"), TEXT("lease"), TEXT("retention"), COUNTED("max_attempts"),
    {.name = "on_stale", .kind = FIELD_CHOICE, .choices = "takeover|in_doubt|verify"}, TEXT("verify"),
    COUNTED("response_bytes_max"), COUNTED("event_bytes_max"), {.name = "dry_run", .kind = FIELD_FLAG},
};
/* clang-format on */

#define QUERY(i, p)                                                                                                    \
	{                                                                                                                  \
		.sql = (i), .parameters = (p), .parameter_count = COUNT(p)                                                     \
	}

const page pages[] = {
    {.path = "/", .name = "overview", .section = "overview", .get = {.sql = SQL_OVERVIEW}, .is_overview = true},
    {.path = "/find", .name = "find", .section = "find", .get = QUERY(SQL_FIND, find)},
    {.path = "/intent", .name = "intent", .section = "intent", .get = QUERY(SQL_INTENT, intent)},
    {.path = "/doubts", .name = "doubts", .section = "doubts", .get = QUERY(SQL_DOUBTS, doubts)},
    {.path = "/doubt",
     .name = "doubt",
     .section = "doubts",
     .get = QUERY(SQL_DOUBT, doubt),
     .post = QUERY(SQL_DECIDE, decide),
     .post_template = "decide"},
    {.path = "/messages",
     .name = "messages",
     .section = "messages",
     .get = QUERY(SQL_MESSAGES, messages),
     .post = QUERY(SQL_CHANGE, change),
     .post_template = "messages_preview",
     .is_in_parts = true},
    {.path = "/message", .name = "message", .section = "messages", .get = QUERY(SQL_MESSAGE, message)},
    {.path = "/scopes", .name = "scopes", .section = "scopes", .get = {.sql = SQL_SCOPES}},
    {.path = "/scope",
     .name = "scope",
     .section = "scopes",
     .get = QUERY(SQL_SCOPE, scope),
     .post = QUERY(SQL_SET_SCOPE, set_scope),
     .post_template = "scope_preview"},
};
const int page_count = COUNT(pages);

const page *page_find(const char *path)
{
	for (int i = 0; i < page_count; i++) {
		if (strcmp(pages[i].path, path) == 0) {
			return &pages[i];
		}
	}
	return NULL;
}

/* ---- parameters */

static const page_parameter *parameter_of(const page_query *query, const char *name)
{
	for (int i = 0; i < query->parameter_count; i++) {
		if (strcmp(query->parameters[i].name, name) == 0) {
			return &query->parameters[i];
		}
	}
	return NULL;
}

static char *check_names(const page_query *query, const form *form)
{
	for (size_t i = 0; i < form->count; i++) {
		const char *name = form->fields[i].name;
		const page_parameter *parameter = parameter_of(query, name);
		size_t most = parameter == NULL || parameter->bytes_max == 0 ? PAGE_TEXT_BYTES_MAX : parameter->bytes_max;
		if (parameter == NULL) {
			return memory_format("parameter '%s': this page does not have it", name);
		}
		if (parameter->kind != FIELD_MANY && form_count(form, name) > 1) {
			return memory_format("parameter '%s': given more than once", name);
		}
		if (strlen(form->fields[i].value) > most) {
			return memory_format("parameter '%s': longer than %zu bytes", name, most);
		}
	}
	return NULL;
}

static bool is_number(const char *text, long least, long most)
{
	int64_t number = 0;

	return value_parse(VALUE_NUMBER, text, &number) && number >= least && number <= most;
}

static char *check_value(const page_parameter *parameter, const char *value)
{
	int64_t index = 0;

	if (parameter->kind == FIELD_NUMBER && !is_number(value, parameter->least, parameter->most)) {
		return memory_format("parameter '%s': not a number from %ld to %ld", parameter->name, parameter->least,
		                     parameter->most);
	}
	if (parameter->kind == FIELD_CHOICE && !value_choose(parameter->choices, value, &index)) {
		return memory_format("parameter '%s': not one of %s", parameter->name, parameter->choices);
	}
	if (parameter->kind == FIELD_FLAG && strcmp(value, "1") != 0) {
		return memory_format("parameter '%s': 1, or nothing", parameter->name);
	}
	return NULL;
}

/* All values of this name; NULL: no value. */
static char *array_of(const form *form, const char *name)
{
	json_t *array = json_array();
	char *text = NULL;

	for (size_t i = 0; i < form->count; i++) {
		if (strcmp(form->fields[i].name, name) == 0 && form->fields[i].value[0] != '\0') {
			json_array_append_new(array, json_string(form->fields[i].value));
		}
	}
	if (json_array_size(array) > 0) {
		text = json_dumps(array, JSON_COMPACT);
	}
	json_decref(array);
	return text;
}

/* Browsers end each line in CR LF. */
static char *with_plain_lines(const char *text)
{
	char *made = memory_copy(text);
	size_t to = 0;

	for (size_t from = 0; made[from] != '\0'; from++) {
		if (made[from] != '\r' || made[from + 1] != '\n') {
			made[to++] = made[from];
		}
	}
	made[to] = '\0';
	return made;
}

char *page_check(const page_query *query, const form *form, page_values *values)
{
	char *wrong = form->wrong != NULL ? memory_copy(form->wrong) : check_names(query, form);

	*values = (page_values){0};
	for (int i = 0; i < query->parameter_count && wrong == NULL; i++) {
		const page_parameter *parameter = &query->parameters[i];
		const char *value = form_value(form, parameter->name);
		if (parameter->kind == FIELD_MANY) {
			values->made[i] = array_of(form, parameter->name);
		} else if (value != NULL && value[0] != '\0') {
			wrong = check_value(parameter, value);
			values->made[i] = with_plain_lines(value);
		}
		if (wrong == NULL && values->made[i] == NULL && parameter->is_required) {
			wrong = memory_format("parameter '%s': missing", parameter->name);
		}
		values->list[i] = values->made[i];
	}
	return wrong;
}

void page_values_set(const page_query *query, page_values *values, const char *name, char *value)
{
	for (int i = 0; i < query->parameter_count; i++) {
		if (strcmp(query->parameters[i].name, name) == 0) {
			free(values->made[i]);
			values->list[i] = values->made[i] = value;
			return;
		}
	}
	free(value);
}

void page_values_free(page_values *values)
{
	for (int i = 0; i < PAGE_PARAMETERS_MAX; i++) {
		free(values->made[i]);
	}
	*values = (page_values){0};
}

char *page_blame(const page_query *query, const form *form, const char *sqlstate)
{
	bool is_time = strcmp(sqlstate, "22007") == 0 || strcmp(sqlstate, "22008") == 0;
	bool is_cursor = strcmp(sqlstate, "22P02") == 0 || strcmp(sqlstate, "22023") == 0;
	char *names = memory_copy("");

	for (int i = 0; i < query->parameter_count; i++) {
		const page_parameter *parameter = &query->parameters[i];
		const char *value = form_value(form, parameter->name);
		if (value != NULL && value[0] != '\0' &&
		    ((is_time && parameter->kind == FIELD_TIME) || (is_cursor && parameter->kind == FIELD_CURSOR))) {
			char *more = memory_format("%s%s'%s'", names, names[0] == '\0' ? "parameter " : " or ", parameter->name);
			free(names);
			names = more;
		}
	}
	char *blamed = memory_format("%s%s", names, names[0] == '\0' ? "" : ": ");
	free(names);
	return blamed;
}
