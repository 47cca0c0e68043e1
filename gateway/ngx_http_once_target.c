/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_target.c: the target of a request in its fingerprint: its Host, then path and
 * query; and the target of the request to which an answer's Location leads.
 */
#include "ngx_http_once.h"

/*
 * The authority of an absolute target takes precedence over the Host header (RFC 9112, section
 * 3.2.2), and nginx has chosen the server by it. HTTP/2's :authority is a Host header here.
 */
static http_text find_host(ngx_http_request_t *r)
{
	u_char *end = r->host_end;

	if (r->host_start != NULL && end != NULL) {
		/* Not port_end: nginx does not update it when it moves the line to a larger buffer. */
		if (r->http_version < NGX_HTTP_VERSION_20 && *end == ':') {
			for (end++; isdigit(*end); end++) {
				/* up to the path */
			}
		}
		return (http_text){.data = (char *)r->host_start, .length = (size_t)(end - r->host_start)};
	}
	if (r->headers_in.host != NULL) {
		return gate_text(r->headers_in.host->value);
	}
	return (http_text){.data = "", .length = 0};
}

/* In lower case, since host names are case-insensitive. */
static const char *join(ngx_http_request_t *r, ngx_uint_t print, http_text host, http_text target)
{
	size_t host_bytes = print & GATE_PRINT_HOST ? host.length : 0;
	size_t target_bytes = print & GATE_PRINT_TARGET ? target.length : 0;
	u_char *text = ngx_pnalloc(r->pool, host_bytes + target_bytes + 1);

	if (text != NULL) {
		ngx_strlow(text, (u_char *)(uintptr_t)host.data, host_bytes);
		*ngx_cpymem(text + host_bytes, target.data, target_bytes) = '\0';
	}
	return (const char *)text;
}

const char *gate_target(ngx_http_request_t *r, ngx_uint_t print)
{
	return join(r, print, find_host(r), gate_text(r->unparsed_uri));
}

/* NULL: none, or several. */
static const ngx_str_t *find_location(ngx_http_request_t *r)
{
	ngx_uint_t lines;

	return r->headers_out.location != NULL ? &r->headers_out.location->value
	                                       : gate_header_only(&r->headers_out.headers, "Location", &lines);
}

/*
 * A client that follows sends the same request to that target with the same key. The contract must
 * know beforehand that it is the same intent. If that is not certain, it is another request and
 * gets 422.
 */
void gate_target_redirected(gate_attempt *attempt, ngx_http_request_t *r)
{
	const ngx_str_t *location = find_location(r);
	http_text host = find_host(r), target = gate_text(r->unparsed_uri), to_host, to_target, reference;
	size_t size;
	char *out;
	const char *joined;

	if (location == NULL) {
		return;
	}
	reference = gate_text(*location);
	size = host.length + target.length + reference.length + 1;
	out = ngx_pnalloc(r->pool, size);
	if (out == NULL || !http_redirect(host, target, reference, out, size, &to_host, &to_target)) {
		return;
	}
	joined = join(r, attempt->location->print, to_host, to_target);
	attempt->answer.redirects =
	    joined != NULL && once_hash_redirect(attempt->request.hash, joined, &attempt->answer.redirect, NULL) == ONCE_OK;
}
