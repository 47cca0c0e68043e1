/* SPDX-License-Identifier: PostgreSQL */
/* exchange.c: see exchange.h. */
#include "exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "answer.h"
#include "buffer.h"
#include "memory.h"
#include "page.h"
#include "runtime.h"

enum {
	BODY_BYTES_MAX = PAGE_ANSWER_BYTES_MAX + 65536, /* an answer, and the rest of the form */
	PARTS_MS = 4000,
	STATUS_TOO_LARGE = 413, /* libmicrohttpd's names for it differ by version */
	FORMS_MAX = 8           /* whose bodies are in memory at once */
};

#define RETRY_S "2"
#define FORM_TYPE "application/x-www-form-urlencoded"

struct exchange {
	const exchange_world *world;
	struct MHD_Connection *connection;
	const char *method; /* "GET", "HEAD", "POST", or "-" */
	const char *shown;  /* the path as it is logged: only one that we know */
	char *path;
	const page *page;
	form form;
	buffer body;
	bool is_too_large, is_answered, wants_json;
	bool is_form;  /* its body is kept */
	bool is_crowd; /* too many of these */
	char person[GUARD_PERSON_BYTES];
	char cookie[GUARD_COOKIE_BYTES];
	char token[GUARD_TOKEN_BYTES];
	char *set_cookie; /* NULL: none */
	answer answer;
	int64_t began_ms;
	long long changed; /* by parts that are committed */
};

static const char *header(const exchange *exchange, const char *name)
{
	return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

static bool is_post(const exchange *exchange)
{
	return strcmp(exchange->method, "POST") == 0;
}

/* ---- the document of a page, and of a problem */

typedef struct problem {
	unsigned status;
	const char *title;
	const char *code; /* a SQLSTATE, or "" */
	char *detail;     /* freed with it */
	bool is_away;     /* the database is */
} problem;

/* What was typed, for the form that sends it again after a preview. */
/* The fields of a form, for a preview that sends them again: all but the token and dry_run. */
static json_t *fields_of(const exchange *exchange)
{
	json_t *fields = json_array();

	for (size_t i = 0; i < exchange->form.count; i++) {
		const form_field *field = &exchange->form.fields[i];
		if (strcmp(field->name, "token") != 0 && strcmp(field->name, "dry_run") != 0) {
			json_array_append_new(fields, json_pack("{s:s, s:s}", "name", field->name, "value", field->value));
		}
	}
	return fields;
}

/* What templates know besides the page's document. */
static json_t *surroundings(const exchange *exchange, const char *away)
{
	const exchange_world *world = exchange->world;
	const page *page = exchange->page;
	pool_facts facts;

	pool_tell(world->pool, &facts);
	return json_pack("{s:s, s:{s:b}, s:s, s:s, s:s, s:s, s:s, s:b, s:s, s:s?, s:s}", "page",
	                 page == NULL ? "" : page->name, "at", page == NULL ? "nothing" : page->section, 1, "database",
	                 facts.database, "host", facts.host, "role", facts.role, "person", exchange->person, "version",
	                 PGONCE_RELEASE, "can_decide", world->call->allow_decisions && facts.may_decide, "token",
	                 exchange->token, "away", away, "path", page == NULL ? "/" : page->path);
}

static void write_page(exchange *exchange, const char *template, json_t *document, const char *away)
{
	json_object_set_new(document, "console", surroundings(exchange, away));
	json_object_set_new(document, "fields", fields_of(exchange));
	exchange->answer.type = "text/html; charset=utf-8";
	exchange->answer.body = templates_render(exchange->world->templates, template, document, &exchange->answer.length);
	if (exchange->answer.body == NULL) {
		exchange->answer.status = MHD_HTTP_INTERNAL_SERVER_ERROR;
		exchange->answer.body = memory_copy("the page is too large\n");
		exchange->answer.length = strlen(exchange->answer.body);
		exchange->answer.type = "text/plain; charset=utf-8";
	}
}

static void write_json(exchange *exchange, const char *type, const json_t *document)
{
	exchange->answer.type = type;
	exchange->answer.body = json_dumps(document, JSON_COMPACT | JSON_REAL_PRECISION(15));
	if (exchange->answer.body == NULL) {
		memory_out();
	}
	exchange->answer.length = strlen(exchange->answer.body);
}

static void write_problem(exchange *exchange, problem *problem)
{
	json_t *document = json_pack("{s:i, s:s, s:s, s:s}", "status", (int)problem->status, "title", problem->title,
	                             "detail", problem->detail == NULL ? "" : problem->detail, "code", problem->code);

	exchange->answer.status = problem->status;
	exchange->answer.retry_after = problem->status == MHD_HTTP_SERVICE_UNAVAILABLE ? RETRY_S : NULL;
	if (exchange->wants_json) {
		write_json(exchange, "application/problem+json", document);
	} else {
		write_page(exchange, "error", document, problem->is_away ? problem->detail : NULL);
	}
	json_decref(document);
	free(problem->detail);
}

static void say(exchange *exchange, unsigned status, const char *text)
{
	exchange->answer.status = status;
	exchange->answer.type = "text/plain; charset=utf-8";
	exchange->answer.body = memory_copy(text);
	exchange->answer.length = strlen(text);
}

static void refuse(exchange *exchange, unsigned status, const char *title, char *detail)
{
	struct problem problem = {.status = status, .title = title, .code = "", .detail = detail};

	write_problem(exchange, &problem);
}

/* ---- what the database could not do */

static bool is_one_of(const char *sqlstate, const char *const *list)
{
	while (*list != NULL && strcmp(*list, sqlstate) != 0) {
		list++;
	}
	return *list != NULL;
}

static problem problem_of(const failure *failure)
{
	static const char *const wrong[] = {"22023", "22P02", "22007", "22008", "22003",
	                                    "23514", "P4000", "P4001", "P4003", NULL};
	static const char *const refused[] = {"P4010", "P4011", "P4020", "P4060", "P4070", NULL};
	const char *code = failure->sqlstate;

	if (failure->kind == FAILURE_CONNECTION) {
		return (problem){.status = MHD_HTTP_SERVICE_UNAVAILABLE, .title = "The database is away", .is_away = true};
	}
	if (failure->kind == FAILURE_CANCELED || failure->kind == FAILURE_STOPPED) {
		return (problem){.status = MHD_HTTP_SERVICE_UNAVAILABLE, .title = "It took too long"};
	}
	if (failure->kind == FAILURE_PASSING) {
		return (problem){.status = MHD_HTTP_SERVICE_UNAVAILABLE, .title = "The database could not do it now"};
	}
	if (strcmp(code, "42501") == 0) {
		return (problem){.status = MHD_HTTP_FORBIDDEN, .title = "The console's role may not do this"};
	}
	if (failure->kind == FAILURE_CONTRACT) {
		return (problem){.status = MHD_HTTP_SERVICE_UNAVAILABLE, .title = "The database has no contract to show"};
	}
	return is_one_of(code, wrong) ? (problem){.status = MHD_HTTP_BAD_REQUEST, .title = "A parameter is wrong"}
	       : is_one_of(code, refused)
	           ? (problem){.status = MHD_HTTP_CONFLICT, .title = "Refused"}
	           : (problem){.status = MHD_HTTP_INTERNAL_SERVER_ERROR, .title = "The database could not answer"};
}

static void fail(exchange *exchange, const page_query *query, pool_mode mode, const failure *failure)
{
	problem problem = problem_of(failure);
	char *blamed = page_blame(query, &exchange->form, failure->sqlstate);

	problem.code = failure->sqlstate;
	char *before =
	    exchange->changed == 0 ? memory_copy("") : memory_format(". %lld were changed before that", exchange->changed);
	problem.detail = memory_format("%s%s%s%s", blamed, failure->text, before,
	                               mode == POOL_WRITE && failure->kind == FAILURE_CONNECTION
	                                   ? ". It is unknown whether this was done: look again before you repeat it"
	                                   : "");
	free(before);
	free(blamed);
	write_problem(exchange, &problem);
}

/* ---- asking */

/* A number that no 64 bits hold is a number nevertheless. */
static json_t *read_document(const char *text)
{
	json_t *document = json_loads(text, JSON_ALLOW_NUL, NULL);

	if (document == NULL) {
		document = json_loads(text, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
	}
	return document;
}

static void add_figures(exchange *exchange, json_t *document)
{
	json_t *doctor = samples_doctor(exchange->world->samples);

	json_object_set_new(document, "series", samples_series(exchange->world->samples));
	json_object_set_new(document, "doctor", doctor == NULL ? json_null() : doctor);
}

static void write_document(exchange *exchange, unsigned status, const char *template, json_t *document)
{
	exchange->answer.status = status;
	if (exchange->wants_json) {
		write_json(exchange, "application/json", document);
	} else {
		write_page(exchange, template, document, NULL);
	}
}

/* The document, or NULL after an answer. */
static json_t *ask(exchange *exchange, const page_query *query, const page_values *values, pool_mode mode)
{
	failure failure = {0};
	const exchange_world *world = exchange->world;
	char *text = exchange->page->is_overview ? pool_ask_recent(world->pool, world->overview, query->sql, &failure)
	                                         : pool_ask(world->pool, query->sql, values->list, mode, &failure);
	json_t *document = text == NULL ? NULL : read_document(text);

	if (text == NULL) {
		fail(exchange, query, mode, &failure);
	} else if (!json_is_object(document)) {
		refuse(exchange, MHD_HTTP_INTERNAL_SERVER_ERROR, "The database's answer cannot be read", NULL);
		json_decref(document);
		document = NULL;
	}
	free(text);
	return document;
}

static void show(exchange *exchange)
{
	const page *page = exchange->page;
	page_values values;
	char *wrong = page_check(&page->get, &exchange->form, &values);

	if (wrong != NULL) {
		refuse(exchange, MHD_HTTP_BAD_REQUEST, "A parameter is wrong", wrong);
	} else {
		json_t *document = ask(exchange, &page->get, &values, POOL_READ);
		if (document != NULL && page->is_overview) {
			add_figures(exchange, document);
		}
		if (document != NULL) {
			bool is_missing = json_is_true(json_object_get(document, "missing"));
			write_document(exchange, is_missing ? MHD_HTTP_NOT_FOUND : MHD_HTTP_OK, page->name, document);
		}
		json_decref(document);
	}
	page_values_free(&values);
}

/* ---- decisions */

/* A form of the console itself, that may decide. False after an answer. */
static bool may_post(exchange *exchange)
{
	const exchange_world *world = exchange->world;
	const char *type = header(exchange, "Content-Type");
	char *token = form_take(&exchange->form, "token");
	bool is_ours =
	    guard_is_token(world->guard, exchange->cookie, exchange->person, token) &&
	    guard_is_own_origin(header(exchange, "Sec-Fetch-Site"), header(exchange, "Origin"), header(exchange, "Host"));

	free(token);
	if (!world->call->allow_decisions) {
		refuse(exchange, MHD_HTTP_FORBIDDEN, "This console only shows",
		       memory_copy("To decide, start it with --allow-decisions. Nothing was changed."));
	} else if (type == NULL || strncasecmp(type, FORM_TYPE, sizeof FORM_TYPE - 1) != 0) {
		refuse(exchange, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "A form is sent as " FORM_TYPE, NULL);
	} else if (!is_ours) {
		refuse(exchange, MHD_HTTP_FORBIDDEN, "This form is not the console's",
		       memory_copy("It was opened before the console was started, or by another person, or it comes from "
		                   "another page: load the page again. Nothing was changed."));
	} else if (world->call->user_header != NULL && exchange->person[0] == '\0') {
		refuse(exchange, MHD_HTTP_FORBIDDEN, "It is unknown who decides",
		       memory_format("No trusted proxy has named the person (%s). Nothing was changed.",
		                     world->call->user_header));
	} else {
		return true;
	}
	return false;
}

/* The reason as it is stored: the database knows the role only. */
static char *signed_reason(const exchange *exchange, const char *reason)
{
	return exchange->person[0] == '\0' ? memory_format("%s (console)", reason)
	                                   : memory_format("%s (by %s, console)", reason, exchange->person);
}

static bool is_same_part(const json_t *a, const json_t *b)
{
	static const char *const names[] = {"kind", "holder", "topic", "state", "skipped"};

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		if (!json_equal(json_object_get(a, names[i]), json_object_get(b, names[i]))) {
			return false;
		}
	}
	return true;
}

static void add_items(json_t *to, const json_t *from)
{
	json_int_t sum =
	    json_integer_value(json_object_get(to, "items")) + json_integer_value(json_object_get(from, "items"));

	json_object_set_new(to, "items", json_integer(sum));
}

/* What an earlier part has touched, to what this one has. */
static void add_part(json_t *sum, json_t *part)
{
	json_t *rows = json_object_get(sum, "parts");
	json_t *found;
	size_t i, j;

	add_items(sum, part);
	json_array_foreach(json_object_get(part, "parts"), i, found)
	{
		json_t *row = NULL;
		json_array_foreach(rows, j, row)
		{
			if (is_same_part(row, found)) {
				break;
			}
		}
		if (j < json_array_size(rows)) {
			add_items(row, found);
		} else {
			json_array_append(rows, found);
		}
	}
	json_object_set(sum, "next", json_object_get(part, "next"));
	json_object_set(sum, "done", json_object_get(part, "done"));
}

/*
 * Part after part, each in its own transaction, for PARTS_MS: then the answer has the place of the
 * next one. NULL: the first one failed, which has been answered; if a later one does, the same.
 */
static json_t *ask_parts(exchange *exchange, const page_query *query, page_values *values, pool_mode mode)
{
	int64_t until_ms = runtime_now_ms() + PARTS_MS;
	json_t *sum = ask(exchange, query, values, mode);

	while (sum != NULL && json_is_string(json_object_get(sum, "next")) && runtime_now_ms() < until_ms) {
		page_values_set(query, values, "after", memory_copy(json_string_value(json_object_get(sum, "next"))));
		exchange->changed = mode == POOL_WRITE ? json_integer_value(json_object_get(sum, "items")) : 0;
		json_t *part = ask(exchange, query, values, mode);
		if (part == NULL) {
			json_decref(sum);
			return NULL;
		}
		add_part(sum, part);
		json_decref(part);
	}
	return sum;
}

static void decide(exchange *exchange)
{
	const page *page = exchange->page;
	const char *reason = form_value(&exchange->form, "reason");
	bool is_trial = form_value(&exchange->form, "dry_run") != NULL;
	page_values values;
	char *wrong = page_check(&page->post, &exchange->form, &values);

	if (wrong != NULL) {
		refuse(exchange, MHD_HTTP_BAD_REQUEST, "A parameter is wrong", wrong);
	} else {
		if (reason != NULL && !is_trial) {
			page_values_set(&page->post, &values, "reason", signed_reason(exchange, reason));
		}
		pool_mode mode = is_trial ? POOL_TRY : POOL_WRITE;
		json_t *document = page->is_in_parts ? ask_parts(exchange, &page->post, &values, mode)
		                                     : ask(exchange, &page->post, &values, mode);
		if (document != NULL) {
			bool is_refused = json_is_string(json_object_get(document, "why"));
			write_document(exchange, is_refused ? MHD_HTTP_CONFLICT : MHD_HTTP_OK, page->post_template, document);
		}
		json_decref(document);
	}
	page_values_free(&values);
}

/* ---- what comes with every request */

static void read_person(exchange *exchange)
{
	const union MHD_ConnectionInfo *peer =
	    MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	const exchange_world *world = exchange->world;
	const char *person = world->call->user_header == NULL ? NULL : header(exchange, world->call->user_header);

	if (person != NULL && peer != NULL && guard_trusts(world->guard, peer->client_addr) && guard_is_person(person)) {
		snprintf(exchange->person, sizeof exchange->person, "%s", person);
	}
}

/* False after an answer: a redirection to the pages, or what to do. */
static bool has_access(exchange *exchange)
{
	const char *access = exchange->world->call->access;
	const char *given = MHD_lookup_connection_value(exchange->connection, MHD_GET_ARGUMENT_KIND, "access");

	if (access == NULL || (given == NULL && guard_has_access(access, header(exchange, "Cookie")))) {
		return true;
	}
	if (!guard_is_access(access, given)) {
		say(exchange, MHD_HTTP_FORBIDDEN,
		    "Open the address that pgonce dev has printed: it has a key. pgonce dev --check prints it again.\n");
		return false;
	}
	exchange->set_cookie = guard_access_cookie(access);
	/* Strict would leave it out when a link in another program leads here. */
	exchange->answer.same_site = "Lax";
	exchange->answer.location = "/";
	say(exchange, MHD_HTTP_SEE_OTHER, "");
	return false;
}

static void read_cookie(exchange *exchange)
{
	if (!guard_find_cookie(header(exchange, "Cookie"), exchange->cookie)) {
		guard_new_cookie(exchange->cookie);
		exchange->set_cookie = memory_format("%s=%s", guard_cookie_name, exchange->cookie);
		exchange->answer.same_site = "Strict";
	}
	guard_token(exchange->world->guard, exchange->cookie, exchange->person, exchange->token);
}

static enum MHD_Result add_parameter(void *argument, enum MHD_ValueKind kind, const char *name, size_t name_length,
                                     const char *value, size_t value_length)
{
	exchange *exchange = argument;

	(void)kind;
	form_add(&exchange->form, name, name_length, value == NULL ? "" : value, value == NULL ? 0 : value_length);
	return MHD_YES;
}

static bool knows_host(const exchange *exchange)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(exchange->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct sockaddr_storage own = {0};
	socklen_t length = sizeof own;
	bool has_own = info != NULL && getsockname(info->connect_fd, (struct sockaddr *)&own, &length) == 0;

	return guard_knows_host(exchange->world->guard, header(exchange, "Host"),
	                        has_own ? (const struct sockaddr *)&own : NULL);
}

/* ---- the ways to an answer */

static void answer_ready(exchange *exchange)
{
	failure failure = {0};
	char *text = pool_ask(exchange->world->pool, SQL_WHO, NULL, POOL_READ, &failure);

	say(exchange, text == NULL ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
	    text == NULL ? "no database\n" : "ready\n");
	free(text);
}

static void answer_page(exchange *exchange)
{
	const page *page = exchange->page;

	if (page == NULL) {
		refuse(exchange, MHD_HTTP_NOT_FOUND, "There is no such page", NULL);
	} else if (strcmp(exchange->method, "-") == 0 || (is_post(exchange) && page->post_template == NULL)) {
		exchange->answer.allow = page->post_template == NULL ? "GET, HEAD" : "GET, HEAD, POST";
		refuse(exchange, MHD_HTTP_METHOD_NOT_ALLOWED, "This page does not take that method", NULL);
	} else if (!is_post(exchange)) {
		MHD_get_connection_values_n(exchange->connection, MHD_GET_ARGUMENT_KIND, add_parameter, exchange);
		show(exchange);
	} else {
		form_read(&exchange->form, exchange->body.data, exchange->body.length);
		if (may_post(exchange)) {
			decide(exchange);
		}
	}
}

/* All but what is the same for everyone: probes and assets. */
static void answer_guarded(exchange *exchange)
{
	if (!has_access(exchange)) {
		return;
	}
	read_person(exchange);
	read_cookie(exchange);
	if (exchange->is_too_large) {
		refuse(exchange, STATUS_TOO_LARGE, "The request is too large",
		       memory_format("its body may have %d bytes", BODY_BYTES_MAX));
	} else if (exchange->is_crowd) {
		refuse(exchange, MHD_HTTP_SERVICE_UNAVAILABLE, "Too many forms are sent at once",
		       memory_copy("Send it again. Nothing was changed."));
	} else {
		answer_page(exchange);
	}
}

static const embedded_file *find_asset(const char *path)
{
	static const char folder[] = "/assets/";
	const char *name = path + sizeof folder - 1;

	for (size_t i = 0; i < embedded_file_count && strncmp(path, folder, sizeof folder - 1) == 0; i++) {
		/* The pages are templates, which are not served as they are. */
		if (strcmp(embedded_files[i].name, name) == 0 && strncmp(embedded_files[i].type, "text/html", 9) != 0) {
			return &embedded_files[i];
		}
	}
	return NULL;
}

enum MHD_Result exchange_answer(exchange *exchange)
{
	const embedded_file *asset = find_asset(exchange->path);

	exchange->is_answered = true;
	if (strcmp(exchange->path, "/live") == 0) {
		exchange->shown = "/live";
		say(exchange, MHD_HTTP_OK, "live\n");
	} else if (!guard_admits(exchange->world->guard)) {
		exchange->answer.retry_after = "1";
		say(exchange, MHD_HTTP_TOO_MANY_REQUESTS, "too many requests\n");
	} else if (strcmp(exchange->path, "/ready") == 0) {
		exchange->shown = "/ready";
		answer_ready(exchange);
	} else if (!knows_host(exchange)) {
		say(exchange, MHD_HTTP_MISDIRECTED_REQUEST,
		    "this is not a name of the console: start it with --public-host NAME\n");
	} else if (asset != NULL && !is_post(exchange)) {
		exchange->shown = "/assets";
		return answer_asset(exchange->connection, asset, &exchange->answer.status);
	} else {
		answer_guarded(exchange);
	}
	exchange->answer.cookie = exchange->set_cookie;
	return answer_send(exchange->connection, &exchange->answer);
}

/* ---- its life */

static const char *known_method(const char *method)
{
	static const char *const known[] = {"GET", "HEAD", "POST"};

	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
		if (strcmp(known[i], method) == 0) {
			return known[i];
		}
	}
	return "-";
}

/* A person's browser asks for HTML, among other types. */
static bool asks_for_json(const char *accept)
{
	return accept != NULL && strstr(accept, "text/html") == NULL &&
	       (strstr(accept, "application/json") != NULL || strstr(accept, "application/problem+json") != NULL);
}

exchange *exchange_begin(const exchange_world *world, struct MHD_Connection *connection, const char *path,
                         const char *method)
{
	exchange *made = memory_take(sizeof *made);
	const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
	const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Accept");

	*made = (exchange){.world = world,
	                   .connection = connection,
	                   .method = known_method(method),
	                   .path = memory_copy(path),
	                   .page = page_find(path),
	                   .body = {.length_max = BODY_BYTES_MAX + 1},
	                   .is_too_large = length != NULL && strtoull(length, NULL, 10) > BODY_BYTES_MAX,
	                   .wants_json = asks_for_json(accept),
	                   .began_ms = runtime_now_ms()};
	made->shown = made->page == NULL ? "-" : made->page->path;
	if (is_post(made) && world->call->allow_decisions && made->page != NULL && made->page->post_template != NULL) {
		made->is_crowd = atomic_fetch_add(world->forms, 1) >= FORMS_MAX;
		made->is_form = !made->is_crowd;
		if (made->is_crowd) {
			atomic_fetch_sub(world->forms, 1);
		}
	}
	return made;
}

void exchange_take(exchange *exchange, const char *data, size_t length)
{
	if (exchange->is_form && !exchange->is_too_large) {
		buffer_add(&exchange->body, data, length);
		exchange->is_too_large = exchange->body.failed;
	}
}

bool exchange_is_over(const exchange *exchange)
{
	return exchange->is_too_large && !exchange->is_answered;
}

void exchange_end(exchange *exchange)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	if (exchange == NULL) {
		return;
	}
	/* A status of 0: it was cut off. */
	runtime_log(exchange->world->speaker, RUNTIME_INFO, "request", "method=%s path=%s status=%u ms=%lld person=%s",
	            exchange->method, exchange->shown, exchange->answer.status,
	            (long long)(runtime_now_ms() - exchange->began_ms), runtime_quote(exchange->person, quoted));
	if (exchange->is_form) {
		atomic_fetch_sub(exchange->world->forms, 1);
	}
	form_free(&exchange->form);
	free(exchange->set_cookie);
	free(exchange->body.data);
	free(exchange->path);
	free(exchange);
}
