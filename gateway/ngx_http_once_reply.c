/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_reply.c: replies: answers to a client that are not the upstream's own. Stored
 * answers, and problem documents. Called from the phases, and by the filters if another answer
 * replaces a held one.
 */
#include "ngx_http_once.h"

enum {
	LISTS = 256
};

/* ---- stored answers ---- */

/*
 * A client may ask for many answers and read none: so clients of one answer share it, and all
 * answers together have a limit. Found by the intent's key, then by comparing the answer itself.
 */
struct gate_shared_answer {
	ngx_queue_t queue;
	ngx_uint_t references;
	size_t bytes; /* that count towards the limit */
	ngx_uint_t status;
	const char *text; /* the headers as they are stored */
	http_header *headers;
	size_t header_count;
	once_bytes body;
	char content[]; /* of body, then text */
};

static ngx_queue_t lists[LISTS];
static size_t answer_bytes;

static ngx_queue_t *list_of(const gate_attempt *attempt)
{
	const char *key = attempt->intent.key;
	ngx_queue_t *list = &lists[ngx_hash_key((u_char *)(uintptr_t)key, ngx_strlen(key)) % LISTS];

	if (list->next == NULL) {
		ngx_queue_init(list);
	}
	return list;
}

static gate_shared_answer *find_answer(ngx_queue_t *list, const gate_shared_answer *wanted)
{
	for (ngx_queue_t *at = ngx_queue_head(list); at != ngx_queue_sentinel(list); at = ngx_queue_next(at)) {
		gate_shared_answer *found = ngx_queue_data(at, gate_shared_answer, queue);

		if (found->status == wanted->status && found->body.length == wanted->body.length &&
		    ngx_memcmp(found->body.data, wanted->body.data, wanted->body.length) == 0 &&
		    ngx_strcmp(found->text, wanted->text) == 0) {
			return found;
		}
	}
	return NULL;
}

static void answer_end(gate_shared_answer *answer)
{
	if (--answer->references > 0) {
		return;
	}
	ngx_queue_remove(&answer->queue);
	answer_bytes -= answer->bytes;
	gate_count_replay_bytes(-(ngx_int_t)answer->bytes);
	free(answer->headers);
	ngx_free(answer);
}

/* NULL: no memory. */
static gate_shared_answer *make_answer(const gate_shared_answer *from)
{
	size_t text_bytes = ngx_strlen(from->text) + 1;
	gate_shared_answer *made = ngx_alloc(sizeof(*made) + from->body.length + text_bytes, ngx_cycle->log);

	if (made != NULL) {
		*made = *from;
		ngx_memcpy(made->content, from->body.data, from->body.length);
		ngx_memcpy(made->content + from->body.length, from->text, text_bytes);
		made->body.data = made->content;
		made->text = made->content + from->body.length;
	}
	return made;
}

/* An answer larger than the limit is sent alone. */
static ngx_uint_t has_room(const gate_attempt *attempt, size_t bytes)
{
	const gate_main *conf = ngx_http_get_module_main_conf(attempt->r, ngx_http_once_module);

	return answer_bytes == 0 || (bytes <= conf->replay_bytes_max && answer_bytes <= conf->replay_bytes_max - bytes);
}

static ngx_int_t answer_start(gate_attempt *attempt, gate_shared_answer *wanted, gate_shared_answer **found)
{
	ngx_queue_t *list = list_of(attempt);

	*found = find_answer(list, wanted);
	if (*found != NULL) {
		(*found)->references++;
		return NGX_OK;
	}
	/* Headers exist twice: as stored, and parsed. */
	wanted->bytes = sizeof(*wanted) + wanted->body.length + 2 * ngx_strlen(wanted->text);
	if (!has_room(attempt, wanted->bytes)) {
		return NGX_BUSY;
	}
	if (!http_headers_decode(wanted->text, &wanted->headers, &wanted->header_count)) {
		return NGX_DECLINED;
	}
	*found = make_answer(wanted);
	if (*found == NULL) {
		free(wanted->headers);
		return NGX_BUSY;
	}
	(*found)->references = 1;
	ngx_queue_insert_tail(list, &(*found)->queue);
	answer_bytes += wanted->bytes;
	gate_count_replay_bytes((ngx_int_t)wanted->bytes);
	return NGX_OK;
}

gate_stored_answer gate_stored_answer_of(const once_answer *answer)
{
	const char *headers = once_answer_response_headers(answer);
	gate_stored_answer stored_answer = {.verdict = once_answer_verdict(answer),
	                                    .state = once_answer_state(answer),
	                                    .status = (ngx_uint_t)once_answer_response_status(answer),
	                                    .headers = headers == NULL ? "{}" : headers,
	                                    .body = once_answer_response_body(answer)};

	if (stored_answer.body.data == NULL) {
		stored_answer.body = (once_bytes){.data = "", .length = 0};
	}
	return stored_answer;
}

ngx_int_t gate_reply_replay(gate_attempt *attempt, const gate_stored_answer *answer)
{
	gate_shared_answer wanted = {.status = answer->status, .text = answer->headers, .body = answer->body};
	gate_shared_answer *found;
	ngx_int_t rc;

	if (wanted.status < 200 || wanted.status > 599) {
		return NGX_DECLINED;
	}
	rc = answer_start(attempt, &wanted, &found);
	if (rc == NGX_OK) {
		assert(found->status == wanted.status && found->body.length == wanted.body.length);
		attempt->reply =
		    (gate_reply){.answer = found,
		                 .status = found->status,
		                 .headers = found->headers,
		                 .header_count = found->header_count,
		                 .body = {.data = (u_char *)(uintptr_t)found->body.data, .length = found->body.length},
		                 .trace = attempt->claim.trace,
		                 .replayed = 1};
	}
	return rc;
}

ngx_int_t gate_reply_own(gate_reply *reply, const once_answer *answer)
{
	once_bytes body = once_answer_response_body(answer);
	int status = once_answer_response_status(answer);

	if (status < 200 || status > 599) {
		return NGX_DECLINED;
	}
	*reply = (gate_reply){.status = (ngx_uint_t)status};
	if (!http_headers_decode(once_answer_response_headers(answer), &reply->headers, &reply->header_count) ||
	    gate_bytes_add(&reply->body, body.data, body.length, NGX_MAX_INT_T_VALUE) != NGX_OK) {
		gate_reply_free(reply);
		return NGX_DECLINED;
	}
	return NGX_OK;
}

void gate_reply_free(gate_reply *reply)
{
	if (reply->answer != NULL) {
		answer_end(reply->answer);
	} else {
		free(reply->headers);
		gate_bytes_free(&reply->body);
	}
	*reply = (gate_reply){0};
}

/* ---- problems ---- */

static ngx_int_t request_id_index;

ngx_int_t gate_reply_variables(ngx_conf_t *cf)
{
	static ngx_str_t request_id = ngx_string("request_id");

	request_id_index = ngx_http_get_variable_index(cf, &request_id);
	return request_id_index == NGX_ERROR ? NGX_ERROR : NGX_OK;
}

/* The access log's $request_id, read by its index: any other way makes a new one. */
static http_text find_request_id(ngx_http_request_t *r)
{
	ngx_http_variable_value_t *value = ngx_http_get_indexed_variable(r, (ngx_uint_t)request_id_index);

	if (value == NULL || value->not_found) {
		return (http_text){0};
	}
	return (http_text){.data = (const char *)value->data, .length = value->len};
}

ngx_int_t gate_reply_problem(gate_attempt *attempt, http_problem problem, ngx_uint_t status, const char *detail)
{
	const gate_location *location = attempt->location;
	gate_reply *reply = &attempt->reply;
	http_occurrence occurrence = {
	    .type_base = location->problem_base.len == 0 ? NULL : (const char *)location->problem_base.data,
	    .status = (int)status,
	    .detail = detail,
	    .request = find_request_id(attempt->r)};
	char text[HTTP_PROBLEM_BYTES_MAX];
	size_t length = http_problem_write(problem, &occurrence, text, sizeof(text));

	gate_reply_free(reply);
	*reply = (gate_reply){.status = status != 0 ? status : (ngx_uint_t)http_problem_status(problem),
	                      .problem = 1,
	                      .trace = attempt->claim.trace,
	                      .retry_after = (ngx_uint_t)http_problem_retry_after(problem)};
	return gate_bytes_add(&reply->body, (const u_char *)text, length, sizeof(text));
}

/* ---- sending ---- */

/* As nginx parses an upstream's: filters such as charset use the parts. */
static void set_type(ngx_http_request_t *r, http_text value)
{
	u_char *text = (u_char *)(uintptr_t)value.data, *end = text + value.length, *at;

	r->headers_out.content_type.data = text;
	r->headers_out.content_type.len = value.length;
	r->headers_out.content_type_len = value.length;
	r->headers_out.content_type_lowcase = NULL;
	for (u_char *p = text; (p = ngx_strlchr(p, end, ';')) != NULL; p++) {
		for (at = p + 1; at < end && *at == ' '; at++) {
			/* up to the parameter */
		}
		if (end - at < 8 || ngx_strncasecmp(at, (u_char *)"charset=", 8) != 0) {
			continue;
		}
		at += 8;
		r->headers_out.content_type_len = (size_t)(p - text);
		at += at < end && *at == '"';
		r->headers_out.charset.data = at;
		r->headers_out.charset.len = (size_t)(end - at - (end > at && end[-1] == '"'));
		return;
	}
}

/* There may be several: an array in older versions of nginx, a linked list since 1.23. */
static ngx_int_t add_cache_control(ngx_http_request_t *r, ngx_table_elt_t *element)
{
#if (nginx_version >= 1023000)
	ngx_table_elt_t **last = &r->headers_out.cache_control;

	while (*last != NULL) {
		last = &(*last)->next;
	}
	*last = element;
#else
	ngx_array_t *all = &r->headers_out.cache_control;
	ngx_table_elt_t **slot;

	if (all->elts == NULL && ngx_array_init(all, r->pool, 1, sizeof(ngx_table_elt_t *)) != NGX_OK) {
		return NGX_ERROR;
	}
	slot = ngx_array_push(all);
	if (slot == NULL) {
		return NGX_ERROR;
	}
	*slot = element;
#endif
	return NGX_OK;
}

/* nginx's filters look for some headers elsewhere: gzip must see that a body is compressed. */
static ngx_int_t set_header(ngx_http_request_t *r, const http_header *header)
{
	ngx_table_elt_t *element;
	ngx_str_t *charset;

	if (gate_text_is(header->name, GATE_CHARSET)) {
		charset = ngx_palloc(r->pool, sizeof(*charset));
		if (charset == NULL) {
			return NGX_ERROR;
		}
		*charset = (ngx_str_t){.len = header->value.length, .data = (u_char *)(uintptr_t)header->value.data};
		r->headers_out.override_charset = charset;
		return NGX_OK;
	}
	if (http_header_never(header->name)) {
		return NGX_OK;
	}
	if (gate_text_is(header->name, "content-type")) {
		set_type(r, header->value);
		return NGX_OK;
	}
	element = gate_header_push(&r->headers_out.headers, header->name, header->value);
	if (element == NULL) {
		return NGX_ERROR;
	}
	if (gate_text_is(header->name, "content-encoding")) {
		r->headers_out.content_encoding = element;
	} else if (gate_text_is(header->name, "etag")) {
		r->headers_out.etag = element;
	} else if (gate_text_is(header->name, "last-modified")) {
		r->headers_out.last_modified = element;
		r->headers_out.last_modified_time = ngx_parse_http_time(element->value.data, element->value.len);
	} else if (gate_text_is(header->name, "expires")) {
		r->headers_out.expires = element;
	} else if (gate_text_is(header->name, "cache-control")) {
		return add_cache_control(r, element);
	}
	return NGX_OK;
}

/* Statuses without a phrase in this nginx (RFC 9110, section 15, and the registry). */
static void set_status(ngx_http_request_t *r, ngx_uint_t status)
{
	static const struct {
		ngx_uint_t status;
		ngx_str_t line;
	} lines[] = {{203, ngx_string("203 Non-Authoritative Information")},
	             {205, ngx_string("205 Reset Content")},
	             {207, ngx_string("207 Multi-Status")},
	             {208, ngx_string("208 Already Reported")},
	             {226, ngx_string("226 IM Used")},
	             {300, ngx_string("300 Multiple Choices")},
	             {417, ngx_string("417 Expectation Failed")},
	             {418, ngx_string("418 I'm a teapot")},
	             {422, ngx_string("422 Unprocessable Content")},
	             {423, ngx_string("423 Locked")},
	             {424, ngx_string("424 Failed Dependency")},
	             {426, ngx_string("426 Upgrade Required")},
	             {428, ngx_string("428 Precondition Required")},
	             {431, ngx_string("431 Request Header Fields Too Large")},
	             {451, ngx_string("451 Unavailable For Legal Reasons")},
	             {506, ngx_string("506 Variant Also Negotiates")},
	             {508, ngx_string("508 Loop Detected")},
	             {511, ngx_string("511 Network Authentication Required")}};

	r->headers_out.status = status;
	ngx_str_null(&r->headers_out.status_line);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		if (lines[i].status == status) {
			r->headers_out.status_line = lines[i].line;
		}
	}
}

static ngx_int_t push(ngx_http_request_t *r, const char *name, const char *value)
{
	http_text text = {.data = value, .length = ngx_strlen(value)};

	return gate_header_push(&r->headers_out.headers, (http_text){.data = name, .length = ngx_strlen(name)}, text) ==
	               NULL
	           ? NGX_ERROR
	           : NGX_OK;
}

/* The headers that the gateway itself adds. */
static ngx_int_t push_own(ngx_http_request_t *r, const gate_reply *reply)
{
	ngx_int_t rc = NGX_OK;
	u_char *seconds;

	if (reply->replayed) {
		rc = push(r, "Idempotency-Replayed", "true");
	}
	if (rc == NGX_OK && reply->problem) {
		rc = push(r, "Cache-Control", "no-store");
	}
	if (rc == NGX_OK && reply->trace != NULL && reply->trace[0] != '\0') {
		rc = push(r, "Idempotency-Traceparent", reply->trace);
	}
	if (rc == NGX_OK && reply->retry_after != 0) {
		seconds = ngx_pnalloc(r->pool, NGX_INT_T_LEN + 1);
		if (seconds == NULL) {
			return NGX_ERROR;
		}
		*ngx_sprintf(seconds, "%ui", reply->retry_after) = '\0';
		rc = push(r, "Retry-After", (const char *)seconds);
	}
	return rc;
}

ngx_int_t gate_reply_head(ngx_http_request_t *r, gate_reply *reply)
{
	if (reply->status == 0) {
		return NGX_ERROR;
	}
	ngx_http_clean_header(r);
	/* which that keeps */
	ngx_memzero(&r->headers_out.cache_control, sizeof(r->headers_out.cache_control));
	r->err_status = 0;
	r->allow_ranges = 0;
	r->disable_not_modified = 1;
	set_status(r, reply->status);
	r->headers_out.content_length_n = (off_t)reply->body.length;
	if (reply->status == NGX_HTTP_NO_CONTENT || reply->status == NGX_HTTP_NOT_MODIFIED) {
		r->headers_out.content_length_n = -1;
	}
	if (reply->problem) {
		set_type(r, GATE_TEXT("application/problem+json"));
	}
	for (size_t i = 0; i < reply->header_count; i++) {
		if (set_header(r, &reply->headers[i]) != NGX_OK) {
			return NGX_ERROR;
		}
	}
	return push_own(r, reply);
}

ngx_int_t gate_reply_send(ngx_http_request_t *r, gate_reply *reply)
{
	ngx_chain_t out;
	ngx_int_t rc = ngx_http_discard_request_body(r);

	if (rc != NGX_OK) {
		return rc;
	}
	if (gate_reply_head(r, reply) != NGX_OK) {
		return NGX_HTTP_INTERNAL_SERVER_ERROR;
	}
	rc = ngx_http_send_header(r);
	if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
		return rc;
	}
	return gate_bytes_chain(r, &reply->body, &out) == NGX_OK ? ngx_http_output_filter(r, &out) : NGX_ERROR;
}
