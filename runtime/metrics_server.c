/* SPDX-License-Identifier: PostgreSQL */
/*
 * metrics_server.c: see metrics_server.h. libmicrohttpd with one thread per connection: a scrape
 * that waits for the database does not delay /health.
 */
#include "metrics_server.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "listen.h"
#include "openmetrics.h"
#include "runtime.h"

enum {
	CONNECTIONS_MAX = 16,
	TIMEOUT_S = 10, /* of a silent connection */
	CONNECTION_BYTES = 16384
};

struct metrics_server {
	struct MHD_Daemon *daemon;
	metrics *metrics;
	metrics_source source;
	char address[LISTEN_ADDRESS_BYTES];
};

/* ---- answering */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type, char *text,
                              size_t length, enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(length, text, mode);

	if (response == NULL) {
		if (mode == MHD_RESPMEM_MUST_FREE) {
			free(text);
		}
		return MHD_NO;
	}
	enum MHD_Result result = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (result == MHD_YES && status == MHD_HTTP_METHOD_NOT_ALLOWED) {
		result = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	}
	if (result == MHD_YES) {
		result = MHD_queue_response(connection, status, response);
	}
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result say(struct MHD_Connection *connection, unsigned status, const char *text)
{
	return answer(connection, status, "text/plain; charset=utf-8", (char *)(uintptr_t)text, strlen(text),
	              MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result answer_metrics(const metrics_server *server, struct MHD_Connection *connection)
{
	size_t length = 0;
	metrics *more = server->source.collect == NULL ? NULL : server->source.collect(server->source.argument);
	char *text = metrics_write(server->metrics, more, &length);

	metrics_free(more);
	const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
	bool open = accept != NULL && openmetrics_accepted((http_text){.data = accept, .length = strlen(accept)});
	text = open ? text : openmetrics_to_prometheus(text, &length);
	if (text == NULL) {
		return say(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
	}
	return answer(connection, MHD_HTTP_OK, open ? OPENMETRICS_TYPE : PROMETHEUS_TYPE, text, length,
	              MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result on_request(void *argument, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload, size_t *upload_length,
                                  void **state)
{
	static int seen;

	(void)version;
	(void)upload;
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
		return say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only\n");
	}
	if (*state == NULL) {
		/* the headers are in; the next call answers, and any body is ignored */
		*state = &seen;
		return MHD_YES;
	}
	if (*upload_length > 0) {
		*upload_length = 0;
		return MHD_YES;
	}
	if (strcmp(url, "/metrics") == 0) {
		return answer_metrics(argument, connection);
	}
	if (strcmp(url, "/health") == 0) {
		return say(connection, MHD_HTTP_OK, "ok\n");
	}
	if (strcmp(url, "/once/ready") == 0) {
		const char *problem = runtime_unready();
		return problem == NULL ? say(connection, MHD_HTTP_OK, "ready\n")
		                       : say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, problem);
	}
	return say(connection, MHD_HTTP_NOT_FOUND, "/metrics, /health and /once/ready\n");
}

/* ---- the server */

static char *format_problem(const char *address, const char *reason)
{
	char *text = NULL;

	return asprintf(&text, "cannot serve metrics at %s: %s", address, reason) < 0 ? NULL : text;
}

metrics_server *metrics_server_start(const char *text, metrics *metrics, const metrics_source *source, char **problem)
{
	metrics_server *server = calloc(1, sizeof *server);
	int fd = -1;

	if (server == NULL || !listen_address_is_good(text)) {
		*problem = format_problem(text, server == NULL ? strerror(ENOMEM) : "it is no ADDRESS:PORT");
		goto failed;
	}
	fd = listen_open(text, server->address);
	if (fd < 0) {
		*problem = format_problem(text, strerror(errno));
		goto failed;
	}
	server->metrics = metrics;
	server->source = source == NULL ? (metrics_source){0} : *source;
	server->daemon =
	    MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL,
	                     on_request, server, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
	                     (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
	                     MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
	if (server->daemon == NULL) {
		*problem = format_problem(text, "its thread cannot be started");
		goto failed;
	}
	return server;

failed:
	if (fd >= 0) {
		close(fd);
	}
	free(server);
	return NULL;
}

const char *metrics_server_address(const metrics_server *server)
{
	return server->address;
}

void metrics_server_stop(metrics_server *server)
{
	if (server != NULL) {
		MHD_stop_daemon(server->daemon); /* closes the socket too */
		free(server);
	}
}
