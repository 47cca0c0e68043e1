/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_headers.c: headers of requests and answers: finding them, and an answer's headers
 * as the contract stores them. lib/http decides which are stored (http_header_kept).
 */
#include "ngx_http_once.h"

ngx_table_elt_t *gate_headers_next(gate_headers *at)
{
	while (at->part != NULL && at->index == at->part->nelts) {
		*at = (gate_headers){.part = at->part->next};
	}
	return at->part == NULL ? NULL : (ngx_table_elt_t *)at->part->elts + at->index++;
}

const ngx_str_t *gate_header_only(ngx_list_t *headers, const char *name, ngx_uint_t *lines)
{
	gate_headers at = {.part = &headers->part};
	const ngx_str_t *found = NULL;
	ngx_table_elt_t *header;

	*lines = 0;
	while ((header = gate_headers_next(&at)) != NULL) {
		if (header->hash != 0 && gate_text_is(gate_text(header->key), name)) {
			found = ++*lines == 1 ? &header->value : NULL;
		}
	}
	return found;
}

ngx_table_elt_t *gate_header_push(ngx_list_t *headers, http_text name, http_text value)
{
	ngx_table_elt_t *header = ngx_list_push(headers);

	if (header != NULL) {
		*header = (ngx_table_elt_t){.hash = 1,
		                            .key = {.len = name.length, .data = (u_char *)(uintptr_t)name.data},
		                            .value = {.len = value.length, .data = (u_char *)(uintptr_t)value.data}};
	}
	return header;
}

/* ---- as the contract stores them ---- */

static ngx_int_t add(ngx_array_t *headers, http_text name, http_text value)
{
	http_header *header = ngx_array_push(headers);

	if (header == NULL) {
		return NGX_ERROR;
	}
	*header = (http_header){.name = name, .value = value};
	return NGX_OK;
}

static ngx_int_t add_type(ngx_http_request_t *r, ngx_array_t *headers)
{
	const ngx_http_headers_out_t *out = &r->headers_out;
	ngx_str_t value = out->content_type;

	if (out->charset.len > 0 && out->content_type_len == value.len) { /* not in the type yet */
		value.data = ngx_pnalloc(r->pool, value.len + out->charset.len + sizeof("; charset="));
		if (value.data == NULL) {
			return NGX_ERROR;
		}
		value.len = (size_t)(ngx_sprintf(value.data, "%V; charset=%V", &out->content_type, &out->charset) - value.data);
	}
	return add(headers, GATE_TEXT("Content-Type"), gate_text(value));
}

/* For its own files nginx has only a time, which its header filter writes. */
static ngx_int_t add_modified(ngx_http_request_t *r, ngx_array_t *headers)
{
	ngx_str_t value = {.data = ngx_pnalloc(r->pool, sizeof("Mon, 28 Sep 1970 06:00:00 GMT"))};

	if (value.data == NULL) {
		return NGX_ERROR;
	}
	value.len = (size_t)(ngx_http_time(value.data, r->headers_out.last_modified_time) - value.data);
	return add(headers, GATE_TEXT("Last-Modified"), gate_text(value));
}

static ngx_int_t collect(ngx_http_request_t *r, const ngx_array_t *list, ngx_array_t *headers)
{
	const http_text *allowed = list == NULL ? NULL : list->elts;
	size_t count = list == NULL ? 0 : list->nelts;
	ngx_http_headers_out_t *out = &r->headers_out;
	gate_headers at = {.part = &out->headers.part};
	ngx_table_elt_t *header;
	ngx_int_t rc = ngx_array_init(headers, r->pool, 16, sizeof(http_header));

	if (rc == NGX_OK && out->content_type.len > 0 && http_header_kept(GATE_TEXT("Content-Type"), allowed, count)) {
		rc = add_type(r, headers);
	}
	/* The charset that nginx got from the service; gate_reply_head sets it again. */
	if (rc == NGX_OK && out->override_charset != NULL && out->override_charset->len > 0) {
		rc = add(headers, GATE_TEXT(GATE_CHARSET), gate_text(*out->override_charset));
	}
	if (rc == NGX_OK && out->last_modified == NULL && out->last_modified_time != -1) {
		rc = add_modified(r, headers);
	}
	while (rc == NGX_OK && (header = gate_headers_next(&at)) != NULL) {
		if (header->hash != 0 && http_header_kept(gate_text(header->key), allowed, count)) {
			rc = add(headers, gate_text(header->key), gate_text(header->value));
		}
	}
	return rc;
}

/*
 * nginx makes its own redirect absolute while it sends the header (ngx_http_header_filter), from
 * the request's Host among others. Done here, so that the stored answer is the one that the client
 * gets.
 */
static ngx_int_t settle_location(ngx_http_request_t *r)
{
	ngx_http_core_loc_conf_t *core = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
	ngx_http_core_srv_conf_t *server = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
	ngx_table_elt_t *location = r->headers_out.location;
	ngx_uint_t port = core->port_in_redirect ? ngx_inet_get_port(r->connection->local_sockaddr) : 0, tls = 0;
	u_char address[NGX_SOCKADDR_STRLEN], *text;
	ngx_str_t host = core->server_name_in_redirect ? server->server_name : r->headers_in.server;

	if (location == NULL || location->value.len == 0 || location->value.data[0] != '/' || !core->absolute_redirect) {
		return NGX_OK;
	}
	if (host.len == 0 && !core->server_name_in_redirect) {
		host = (ngx_str_t){.len = sizeof(address), .data = address};
		if (ngx_connection_local_sockaddr(r->connection, &host, 0) != NGX_OK) {
			return NGX_ERROR;
		}
	}
#if (NGX_HTTP_SSL)
	tls = r->connection->ssl != NULL;
#endif
	text = ngx_pnalloc(r->pool, sizeof("https://:65535") + host.len + location->value.len);
	if (text == NULL) {
		return NGX_ERROR;
	}
	host.data = ngx_sprintf(text, "http%s://%V", tls ? "s" : "", &host);
	if (port != 0 && port != (tls ? 443 : 80)) {
		host.data = ngx_sprintf(host.data, ":%ui", port);
	}
	location->value.len = (size_t)(ngx_sprintf(host.data, "%V", &location->value) - text);
	location->value.data = text;
	return NGX_OK;
}

ngx_int_t gate_headers_store(ngx_http_request_t *r, const ngx_array_t *allowed, char **json)
{
	ngx_array_t headers;

	*json = NULL;
	if (settle_location(r) != NGX_OK || collect(r, allowed, &headers) != NGX_OK ||
	    !http_headers_encode(headers.elts, headers.nelts, json)) {
		*json = NULL;
		return NGX_ERROR;
	}
	return NGX_OK;
}
