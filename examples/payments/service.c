/* SPDX-License-Identifier: PostgreSQL */
/*
 * service.c: see service.h. A thread and a connection to PostgreSQL per client
 * connection, both bounded. It misbehaves on demand: the header X-Behave may contain
 * "delay_ms=N" (slow), "status=N" (fails without charging) and "die" (ends after the
 * charge and before the answer).
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "service.h"
#include "worker.h"

enum {
	CONNECTIONS_MAX = 64,
	/* longer than a proxy keeps a connection: so no request meets a closing one */
	IDLE_SECONDS_MAX = 75,
	BODY_BYTES_MAX = 64 * 1024,
	DELAY_MS_MAX = 60000
};

typedef struct running {
	const service_kind *service;
	const char *dsn;
	int listener;
} running;

/* A request while it arrives. */
typedef struct request {
	char body[BODY_BYTES_MAX];
	size_t length;
	bool too_large;
} request;

typedef struct behaviour {
	long delay_ms;
	unsigned status; /* 0: normally */
	bool die;
} behaviour;

const char *service_header(const charge *charge, const char *name)
{
	return MHD_lookup_connection_value(charge->connection, MHD_HEADER_KIND, name);
}

/* ---- Answers ---- */

reply service_problem(unsigned status, const char *message)
{
	json_t *body = json_pack("{s:s}", "error", message);
	reply made = {.status = status, .body = body == NULL ? NULL : json_dumps(body, JSON_COMPACT)};

	json_decref(body);
	return made;
}

reply service_database_problem(PGconn *database, const PGresult *result)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	fprintf(stderr, "%s", result == NULL ? PQerrorMessage(database) : PQresultErrorMessage(result));
	if (PQstatus(database) != CONNECTION_OK) {
		return (reply){.body = NULL}; /* it may have been charged: no answer is the honest one */
	}
	/* Class 23 (a constraint) and 22 (a value): the charge itself is wrong. */
	if (sqlstate != NULL && (strncmp(sqlstate, "23", 2) == 0 || strncmp(sqlstate, "22", 2) == 0)) {
		return service_problem(422, PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
	}
	return service_problem(503, "the database did not take the charge");
}

static enum MHD_Result answer(struct MHD_Connection *connection, reply reply)
{
	if (reply.body == NULL) {
		return MHD_NO; /* the connection closes */
	}
	struct MHD_Response *response =
	    MHD_create_response_from_buffer(strlen(reply.body), reply.body, MHD_RESPMEM_MUST_FREE);
	if (response == NULL) {
		free(reply.body);
		return MHD_NO;
	}
	MHD_add_response_header(response, "Content-Type", "application/json");
	if (reply.status == MHD_HTTP_SERVICE_UNAVAILABLE) {
		/* Nothing was charged: with this the gateway lets the next attempt run. */
		MHD_add_response_header(response, "Retry-After", "1");
	}
	enum MHD_Result result = MHD_queue_response(connection, reply.status, response);
	MHD_destroy_response(response);
	return result;
}

/* ---- The database: a connection for each of a client's ---- */

static PGresult *run(PGconn *database, enum sql_id id, const char *const *parameters)
{
	return PQexecParams(database, sql_queries[id].text, sql_queries[id].parameter_count, NULL, parameters, NULL, NULL,
	                    0);
}

PGresult *service_charge(PGconn *database, const charge *charge)
{
	char amount[24];

	snprintf(amount, sizeof amount, "%lld", (long long)charge->amount);
	return run(database, SQL_CHARGE, (const char *[]){charge->order, amount, charge->currency});
}

/* Called when a client connects and when it goes. *context is that
 * connection's own place for one to the database. */
static void meet(void *argument, struct MHD_Connection *connection, void **context,
                 enum MHD_ConnectionNotificationCode code)
{
	(void)argument;
	(void)connection;
	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		*context = calloc(1, sizeof(PGconn *));
	} else if (*context != NULL) {
		PQfinish(*(PGconn **)*context);
		free(*context);
		*context = NULL;
	}
}

static PGconn *database_of(const running *running, struct MHD_Connection *connection)
{
	PGconn **kept = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;

	if (kept == NULL) {
		return NULL; /* out of memory */
	}
	if (*kept == NULL) {
		*kept = PQconnectdb(running->dsn);
	} else if (PQstatus(*kept) != CONNECTION_OK || PQtransactionStatus(*kept) != PQTRANS_IDLE) {
		PQreset(*kept);
	}
	if (PQstatus(*kept) != CONNECTION_OK) {
		fprintf(stderr, "%s", PQerrorMessage(*kept));
		return NULL;
	}
	return *kept;
}

/* ---- Requests ---- */

static bool starts(const char *word, const char *with, const char **rest)
{
	size_t length = strlen(with);

	*rest = word + length;
	return strncmp(word, with, length) == 0;
}

static behaviour read_behaviour(const char *header)
{
	behaviour wanted = {0};
	char words[128];
	const char *rest = NULL;
	char *next = words;

	snprintf(words, sizeof words, "%s", header == NULL ? "" : header);
	for (const char *word = strsep(&next, ", "); word != NULL; word = strsep(&next, ", ")) {
		if (starts(word, "delay_ms=", &rest)) {
			wanted.delay_ms = strtol(rest, NULL, 10);
		} else if (starts(word, "status=", &rest)) {
			wanted.status = (unsigned)strtoul(rest, NULL, 10);
		} else if (strcmp(word, "die") == 0) {
			wanted.die = true;
		}
	}
	wanted.delay_ms = wanted.delay_ms < 0 ? 0 : wanted.delay_ms > DELAY_MS_MAX ? DELAY_MS_MAX : wanted.delay_ms;
	wanted.status = wanted.status < 400 || wanted.status > 599 ? 0 : wanted.status;
	return wanted;
}

static reply list(PGconn *database, struct MHD_Connection *connection)
{
	const char *order = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "order");
	PGresult *result = run(database, SQL_CHARGES, &order);
	reply made = {.status = 200};

	if (PQresultStatus(result) == PGRES_TUPLES_OK) {
		made.body = strdup(PQgetvalue(result, 0, 0));
	} else {
		made = service_database_problem(database, result);
	}
	PQclear(result);
	return made;
}

static reply make_charge(const running *running, PGconn *database, struct MHD_Connection *connection,
                         const request *request)
{
	charge charge = {.connection = connection};
	behaviour behaviour = read_behaviour(service_header(&charge, "X-Behave"));
	json_int_t amount = 0;

	if (request->too_large) {
		return service_problem(413, "the body is larger than 64 KiB");
	}
	json_t *body = json_loadb(request->body, request->length, JSON_REJECT_DUPLICATES, NULL);
	if (json_unpack(body, "{s:s, s:I, s:s}", "order", &charge.order, "amount", &amount, "currency", &charge.currency) !=
	    0) {
		json_decref(body);
		return service_problem(400, "a charge is {\"order\": TEXT, \"amount\": INTEGER, \"currency\": TEXT}");
	}
	charge.amount = amount;
	const struct timespec delay = {.tv_sec = behaviour.delay_ms / 1000, .tv_nsec = behaviour.delay_ms % 1000 * 1000000};
	nanosleep(&delay, NULL);
	reply made = behaviour.status != 0 ? service_problem(behaviour.status, "as the header X-Behave asks for")
	                                   : running->service->make(database, &charge);
	json_decref(body);
	if (behaviour.die) {
		fprintf(stderr, "dying after the charge and before the answer, as the header X-Behave asks for\n");
		_exit(1);
	}
	return made;
}

static enum MHD_Result finish(const running *running, struct MHD_Connection *connection, const char *method,
                              const request *request)
{
	PGconn *database = database_of(running, connection);

	if (database == NULL) {
		return answer(connection, service_problem(503, "the database cannot be reached"));
	}
	return answer(connection, strcmp(method, "POST") == 0 ? make_charge(running, database, connection, request)
	                                                      : list(database, connection));
}

/* libmicrohttpd calls it when the head of a request has come, for
 * each piece of its body, and at its end. */
static enum MHD_Result take(void *argument, struct MHD_Connection *connection, const char *url, const char *method,
                            const char *version, const char *data, size_t *data_length, void **context)
{
	const running *running = argument;
	request *request = *context;

	(void)version;
	if (request == NULL) {
		*context = request = calloc(1, sizeof *request);
		return request == NULL ? MHD_NO : MHD_YES;
	}
	if (*data_length > 0) {
		request->too_large = request->too_large || *data_length > BODY_BYTES_MAX - request->length;
		if (!request->too_large) {
			memcpy(request->body + request->length, data, *data_length);
			request->length += *data_length;
		}
		*data_length = 0;
		return MHD_YES;
	}
	if (strcmp(url, running->service->path) != 0) {
		return answer(connection, service_problem(404, "there is nothing here"));
	}
	if (strcmp(method, "POST") != 0 && strcmp(method, "GET") != 0) {
		return answer(connection, service_problem(405, "POST charges, GET lists"));
	}
	return finish(running, connection, method, request);
}

static void forget(void *argument, struct MHD_Connection *connection, void **context,
                   enum MHD_RequestTerminationCode code)
{
	(void)argument;
	(void)connection;
	(void)code;
	free(*context);
	*context = NULL;
}

/* ---- The program ---- */

static int serve(void *argument)
{
	running *running = argument;
	sigset_t endings;
	int signal = 0;

	struct MHD_Daemon *daemon = MHD_start_daemon(
	    MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, take, running,
	    MHD_OPTION_LISTEN_SOCKET, running->listener, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
	    MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS_MAX, MHD_OPTION_NOTIFY_CONNECTION, meet, NULL,
	    MHD_OPTION_NOTIFY_COMPLETED, forget, NULL, MHD_OPTION_END);
	if (daemon == NULL) {
		fprintf(stderr, "cannot start the HTTP server\n");
		return 1;
	}
	sigemptyset(&endings);
	sigaddset(&endings, SIGTERM);
	sigaddset(&endings, SIGINT);
	sigwait(&endings, &signal);
	MHD_stop_daemon(daemon);
	return 0;
}

/* Ignores "already exists, skipping". */
static void ignore_notice(void *argument, const char *message)
{
	(void)argument;
	(void)message;
}

static int make_schema(const char *dsn)
{
	PGconn *database = PQconnectdb(dsn);
	PGresult *result = NULL;

	PQsetNoticeProcessor(database, ignore_notice, NULL);
	if (PQstatus(database) == CONNECTION_OK) {
		result = PQexec(database, sql_queries[SQL_SCHEMA].text);
	}
	int status = PQresultStatus(result) == PGRES_COMMAND_OK ? 0 : 1;

	if (status != 0) {
		fprintf(stderr, "cannot make the schema payments: %s", PQerrorMessage(database));
	}
	PQclear(result);
	PQfinish(database);
	return status;
}

int service_main(const service_kind *service, int argc, char **argv)
{
	static const struct option options[] = {
	    {"listen", required_argument, NULL, 'l'}, {"dsn", required_argument, NULL, 'd'}, {NULL, 0, NULL, 0}};
	running running = {.service = service, .dsn = ""};
	const char *listen_at = NULL;

	for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (option == 'l') {
			listen_at = optarg;
		} else if (option == 'd') {
			running.dsn = optarg;
		} else {
			listen_at = NULL;
			break;
		}
	}
	if (listen_at == NULL || optind < argc) {
		fprintf(stderr, "usage: %s --listen unix:PATH|IPv4:PORT [--dsn CONNINFO]\n", service->name);
		return 2;
	}
	if (make_schema(running.dsn) != 0) {
		return 1;
	}
	running.listener = worker_listen(listen_at);
	return running.listener < 0 ? 1 : worker_keep(serve, &running);
}
