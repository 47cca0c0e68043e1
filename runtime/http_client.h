/* SPDX-License-Identifier: PostgreSQL */
/*
 * http_client.h: many HTTP calls at a time, with libcurl's multi interface: for webhooks (relay),
 * for handlers outside the database (consume), for SQS and SNS (broker). HTTP/1.1 with persistent
 * connections. Redirects are not followed; TLS is verified; addresses that are not public are
 * refused unless allowed. One client belongs to one thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pgonce.h"

typedef struct http_settings {
	int64_t timeout_ms; /* of a whole call */
	int64_t connect_timeout_ms;
	int64_t calls_max;          /* at a time; http_start refuses more */
	int64_t response_bytes_max; /* of an answer's body that is kept; the rest is read and dropped */
	/*
	 * loopback, link-local, private and other special ranges, checked for the address really used
	 */
	bool allow_private;
	bool allow_plain; /* http:// as well as https:// */
	/*
	 * HTTPS_PROXY and NO_PROXY, as libcurl reads them, route the calls; then the proxy's address is
	 * checked, and not the URL's
	 */
	bool proxy_of_environment;
	const char *ca_file;                     /* NULL: the system's */
	const char *certificate_file, *key_file; /* NULL: none */
} http_settings;

typedef struct http_header {
	const char *name, *value;
} http_header;

typedef enum http_result {
	HTTP_ANSWERED, /* see status */
	HTTP_UNSENT,   /* no connection was made: the request certainly did not arrive */
	HTTP_UNKNOWN,  /* the connection broke or time ran out after it was, or may have been, sent */
	/* refused here: a scheme or an address that is not allowed, a header that cannot be sent */
	HTTP_FORBIDDEN,
	HTTP_WITHHELD /* not sent: http_permit does not allow it */
} http_result;

/*
 * One call. The caller fills the first part, and keeps all of it alive and unmoved until http_poll
 * returns it.
 */
typedef struct http_call {
	const char *method; /* NULL: POST */
	const char *url;
	const http_header *headers;
	size_t header_count;
	once_bytes body;
	void *user;
	/* results */
	http_result result;
	int status;             /* of HTTP_ANSWERED */
	int64_t retry_after_ms; /* from the answer's Retry-After (seconds or a date); -1: none */
	int64_t date_s;         /* from the answer's Date, seconds since 1970; 0: none */
	char *response_body;    /* NULL: not kept; http_call_clear frees it */
	size_t response_length;
	char *content_type; /* NULL: none */
	char problem[256];  /* for people; "" if it was answered */
	void *handle;       /* for the client's use */
} http_call;

/* Whether the URL itself allows a call: "", or the problem, with the option that would allow it. */
const char *http_check_url(const http_settings *settings, const char *url);

typedef struct http_client http_client;

/* NULL: out of memory, or libcurl cannot start. */
http_client *http_client_new(const http_settings *settings);
/* Aborts open calls; they are not handed back. */
void http_client_free(http_client *client);
/* False: calls_max are open, or out of memory. */
bool http_start(http_client *client, http_call *call);
/* The next finished call, waiting at most timeout_ms for one (0: no waiting); NULL: none. */
http_call *http_poll(http_client *client, int timeout_ms);
size_t http_in_flight(const http_client *client);
/* http_poll also waits for this descriptor to become readable, and then returns NULL. -1: none. */
void http_watch(http_client *client, int descriptor);
/*
 * No request is sent after this time (runtime_now_ms); a call without a connection by then is
 * withheld. 0: calls that wait for their connection are withheld too, even if later permitted. If
 * never called, all requests are sent.
 */
void http_permit(http_client *client, int64_t until_ms);
void http_call_clear(http_call *call); /* frees the memory of the results */
