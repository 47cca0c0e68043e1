/* SPDX-License-Identifier: PostgreSQL */
/*
 * console.c: the server: libmicrohttpd with one thread per connection, so that a page that waits
 * for the database does not delay others. libmicrohttpd only ends connections that are silent; here
 * the thread that waits for the end limits how long a request may take in all, a silent one too.
 */
#include "console.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "embedded.h"
#include "exchange.h"
#include "listen.h"
#include "memory.h"
#include "notify.h"
#include "prometheus.h"

enum {
	CONNECTIONS_MAX = 64,
	CONNECTION_BYTES = 32768, /* of a request's line and headers, and of an answer's headers */
	REQUEST_MS = 20000,       /* to the end of the answer, since the last one or the connection */
	LOOK_MS = 500,
	ASK_MS = 30000, /* how often it asks itself for its watchdog */
	PROBE_S = 5,
	DATABASE_CONNECTIONS = 4
};

/* A connection that is open. */
typedef struct client {
	struct client *previous, *next;
	int fd;
	int64_t since_ms; /* opened, or the last request ended */
} client;

typedef struct server {
	exchange_world world;
	pool_recent overview;
	atomic_int forms;
	pthread_mutex_t lock;
	client *clients;
	struct MHD_Daemon *daemon;
	char address[LISTEN_ADDRESS_BYTES];
} server;

/* ---- connections, and how long they may take */

static void open_client(server *server, struct MHD_Connection *connection, void **context)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	client *made = memory_take(sizeof *made);

	made->fd = info->connect_fd;
	made->since_ms = runtime_now_ms();
	pthread_mutex_lock(&server->lock);
	made->next = server->clients;
	if (made->next != NULL) {
		made->next->previous = made;
	}
	server->clients = made;
	pthread_mutex_unlock(&server->lock);
	*context = made;
}

static void close_client(server *server, client *client)
{
	pthread_mutex_lock(&server->lock);
	if (client->next != NULL) {
		client->next->previous = client->previous;
	}
	if (client->previous != NULL) {
		client->previous->next = client->next;
	} else {
		server->clients = client->next;
	}
	pthread_mutex_unlock(&server->lock);
	free(client);
}

/* libmicrohttpd tells the end before it closes the socket. */
static void on_connection(void *argument, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		open_client(argument, connection, context);
	} else if (*context != NULL) {
		close_client(argument, *context);
	}
}

/* The thread of a connection that is cut off here reads its end, and closes it. */
static void cut_off_slow(server *server)
{
	int64_t now_ms = runtime_now_ms();

	pthread_mutex_lock(&server->lock);
	for (client *client = server->clients; client != NULL; client = client->next) {
		if (now_ms - client->since_ms > REQUEST_MS) {
			shutdown(client->fd, SHUT_RDWR);
		}
	}
	pthread_mutex_unlock(&server->lock);
}

/* ---- requests */

static enum MHD_Result on_request(void *argument, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data, size_t *length,
                                  void **state)
{
	server *server = argument;

	(void)version;
	if (*state == NULL) {
		*state = exchange_begin(&server->world, connection, path, method);
		return exchange_is_over(*state) ? exchange_answer(*state) : MHD_YES;
	}
	if (*length > 0) {
		exchange_take(*state, data, *length);
		*length = 0;
		return MHD_YES;
	}
	return exchange_answer(*state);
}

static void on_end(void *argument, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode how)
{
	server *server = argument;
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	client *client = info == NULL ? NULL : info->socket_context;

	(void)how;
	exchange_end(*state);
	*state = NULL;
	if (client != NULL) {
		pthread_mutex_lock(&server->lock);
		client->since_ms = runtime_now_ms();
		pthread_mutex_unlock(&server->lock);
	}
}

/* ---- the server */

static templates *read_templates(template_source **sources, char **problem)
{
	*sources = memory_take(embedded_file_count * sizeof **sources);
	size_t count = 0;

	for (size_t i = 0; i < embedded_file_count; i++) {
		const embedded_file *file = &embedded_files[i];
		const char *ending = strstr(file->name, ".html");
		if (ending != NULL) {
			char *name = memory_copy(file->name);
			name[ending - file->name] = '\0';
			(*sources)[count++] = (template_source){.name = name, .text = file->data, .length = file->length};
		}
	}
	return templates_parse(*sources, count, problem);
}

static void free_sources(template_source *sources)
{
	for (size_t i = 0; sources != NULL && i < embedded_file_count; i++) {
		free((char *)(uintptr_t)sources[i].name);
	}
	free(sources);
}

static bool start(server *server, char **problem)
{
	const exchange_world *world = &server->world;
	int fd = world->call->listen_fd;

	snprintf(server->address, sizeof server->address, "%s", world->call->listen);
	if (fd == 0) {
		fd = listen_open(world->call->listen, server->address);
	}

	if (fd < 0) {
		*problem = memory_format("cannot listen at %s: %s", world->call->listen, strerror(errno));
		return false;
	}
	server->daemon = MHD_start_daemon(
	    MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, on_request,
	    server, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
	    MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
	    server, MHD_OPTION_NOTIFY_COMPLETED, on_end, server, MHD_OPTION_END);
	if (server->daemon == NULL) {
		close(fd);
		*problem = memory_copy("the server's thread cannot be started");
	}
	return server->daemon != NULL;
}

/*
 * For the watchdog: whether a request still gets an answer. The threads that work are
 * libmicrohttpd's, and this one would go on without them.
 */
static bool answers(server *server)
{
	static const char request[] = "GET /live HTTP/1.0\r\nHost: localhost\r\n\r\n";
	const struct timeval limit = {.tv_sec = PROBE_S};
	struct sockaddr_storage address = {0};
	socklen_t length = sizeof address;
	char byte;
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_LISTEN_FD);

	if (info == NULL || getsockname(info->listen_fd, (struct sockaddr *)&address, &length) != 0) {
		return false;
	}
	int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool good = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
	            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
	            connect(fd, (struct sockaddr *)&address, length) == 0 &&
	            send(fd, request, sizeof request - 1, MSG_NOSIGNAL) > 0 && recv(fd, &byte, 1, 0) == 1;
	if (fd >= 0) {
		close(fd);
	}
	return good;
}

/* This thread works only here: its pauses are no sign of life. */
static void feed(server *server)
{
	if (answers(server)) {
		notify_work_begin();
		notify_alive();
		notify_work_end();
	}
}

static bool serve(server *server, char **problem)
{
	char status[sizeof server->address + 32];
	int64_t asked_ms = runtime_now_ms();

	if (!start(server, problem)) {
		return false;
	}
	runtime_log(server->world.speaker, RUNTIME_INFO, "listening", "address=http://%s", server->address);
	snprintf(status, sizeof status, "listening at http://%s", server->address);
	notify_ready(status);
	while (!runtime_sleep(LOOK_MS)) {
		cut_off_slow(server);
		if (notify_is_watched() && runtime_now_ms() - asked_ms >= notify_wait_ms(ASK_MS)) {
			asked_ms = runtime_now_ms();
			feed(server);
		}
		if (runtime_reload_take()) { /* each connection is made anew when it is needed next */
			notify_reloading();
			notify_ready(status);
			runtime_log(server->world.speaker, RUNTIME_INFO, "reloaded",
			            "hint=\"options stay in use until a restart\"");
		}
	}
	MHD_stop_daemon(server->daemon); /* closes the socket too; waits for answers in progress */
	return true;
}

char *console_mistake(const console_call *call)
{
	char *problem = NULL;
	guard *guard = NULL;

	if (!listen_address_is_good(call->listen)) {
		return memory_format("option --listen: '%s' is not an ADDRESS:PORT (numbers, or localhost)", call->listen);
	}
	if (call->user_header != NULL && call->trusted_addresses == NULL) {
		return memory_copy("option --user-header: --trusted-address must say who may send it");
	}
	if (call->prometheus != NULL && prometheus_mistake(call->prometheus)[0] != '\0') {
		return memory_format("option --prometheus: %s", prometheus_mistake(call->prometheus));
	}
	guard = guard_new(call->trusted_addresses, call->public_hosts, &problem);
	if (guard == NULL) {
		char *whole = memory_format("option --trusted-address: %s", problem);
		free(problem);
		return whole;
	}
	guard_free(guard);
	return NULL;
}

bool console_run(const console_call *call, char **problem)
{
	const speaker speaker = {.kind = "console", .name = "*"};
	template_source *sources = NULL;
	server server = {.world = {.call = call, .speaker = &speaker}};
	bool good = false;

	server.world.forms = &server.forms;
	server.world.overview = &server.overview;
	pthread_mutex_init(&server.overview.lock, NULL);
	pthread_mutex_init(&server.lock, NULL);
	server.world.guard = guard_new(call->trusted_addresses, call->public_hosts, problem);
	server.world.templates = server.world.guard == NULL ? NULL : read_templates(&sources, problem);
	if (server.world.templates != NULL) {
		server.world.pool = pool_new(call->conninfo, &speaker, DATABASE_CONNECTIONS);
		server.world.samples = samples_start(call, &speaker);
		good = serve(&server, problem);
		runtime_stop();
		samples_end(server.world.samples);
		pool_free(server.world.pool);
		free(server.overview.text);
	}
	templates_free(server.world.templates);
	free_sources(sources);
	guard_free(server.world.guard);
	pthread_mutex_destroy(&server.overview.lock);
	pthread_mutex_destroy(&server.lock);
	return good;
}
