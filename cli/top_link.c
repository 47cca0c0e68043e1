/* SPDX-License-Identifier: PostgreSQL */
/* top_link.c: see top_link.h. */
#include "top_link.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	AGAIN_MS = 1000,       /* after a connection failed */
	CONNECTING_MS = 10000, /* as long as connecting may take */
	SLOW_MS = 3000         /* a question that is open for so long is told */
};

typedef enum link_state {
	LINK_DOWN, /* until the time comes to try again */
	LINK_CONNECTING,
	LINK_IDLE,
	LINK_ASKED
} link_state;

struct top_link {
	char *conninfo;
	PGconn *connection;
	link_state state;
	PostgresPollingStatusType polling;
	int64_t since_ms; /* it is in this state */
	enum sql_id asked;
	PGresult *answer; /* of the open question, while its end is not there */
	bool answered;    /* it is whole */
	char *problem;    /* why there is no connection, or what the last answer said */
};

int64_t top_link_clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void enter(top_link *link, link_state state)
{
	link->state = state;
	link->since_ms = top_link_clock_ms();
}

void top_link_note(top_link *link, const char *message)
{
	free(link->problem);
	link->problem = message != NULL ? cli_duplicate(message) : NULL;
}

/* What the server said, or the first line of what libpq says: the rest is addresses and advice. */
static void go_down(top_link *link, const char *message)
{
	const char *said = message != NULL ? strstr(message, "FATAL:") : NULL;
	char *text = cli_duplicate(said != NULL ? said + strlen("FATAL:") + strspn(said + strlen("FATAL:"), " ")
	                           : message != NULL && message[0] != '\0' ? message
	                                                                   : "no word why");

	text[strcspn(text, "\n")] = '\0';
	top_link_note(link, text);
	free(text);
	PQclear(link->answer);
	link->answer = NULL;
	link->answered = false;
	PQfinish(link->connection);
	link->connection = NULL;
	enter(link, LINK_DOWN);
}

static void connect_anew(top_link *link)
{
	link->connection = PQconnectStart(link->conninfo);
	enter(link, LINK_CONNECTING);
	link->polling = PGRES_POLLING_WRITING;
	if (link->connection == NULL || PQstatus(link->connection) == CONNECTION_BAD) {
		go_down(link, link->connection != NULL ? PQerrorMessage(link->connection) : "out of memory");
	}
}

top_link *top_link_open(const char *conninfo)
{
	top_link *link = cli_allocate(sizeof *link);

	link->conninfo = cli_duplicate(conninfo);
	connect_anew(link);
	return link;
}

void top_link_close(top_link *link)
{
	if (link == NULL) {
		return;
	}
	PQclear(link->answer);
	PQfinish(link->connection);
	free(link->problem);
	free(link->conninfo);
	free(link);
}

static void read_answer(top_link *link)
{
	if (PQconsumeInput(link->connection) == 0) {
		go_down(link, PQerrorMessage(link->connection));
		return;
	}
	while (!link->answered && PQisBusy(link->connection) == 0) {
		PGresult *part = PQgetResult(link->connection);
		if (part == NULL) {
			link->answered = true;
		} else {
			PQclear(link->answer);
			link->answer = part;
		}
	}
	if (PQstatus(link->connection) == CONNECTION_BAD) {
		go_down(link, PQerrorMessage(link->connection));
	}
}

void top_link_go_on(top_link *link)
{
	int64_t since_ms = top_link_clock_ms() - link->since_ms;

	switch (link->state) {
	case LINK_DOWN:
		if (since_ms >= AGAIN_MS) {
			connect_anew(link);
		}
		break;
	case LINK_CONNECTING:
		link->polling = PQconnectPoll(link->connection);
		if (link->polling == PGRES_POLLING_FAILED) {
			go_down(link, PQerrorMessage(link->connection));
		} else if (link->polling == PGRES_POLLING_OK) {
			PQsetnonblocking(link->connection, 1);
			top_link_note(link, NULL);
			enter(link, LINK_IDLE);
		} else if (since_ms >= CONNECTING_MS) {
			go_down(link, "the server does not answer");
		}
		break;
	case LINK_IDLE:
		/* Readable without a question: the server says that it goes. */
		if (PQconsumeInput(link->connection) == 0 || PQstatus(link->connection) == CONNECTION_BAD) {
			go_down(link, PQerrorMessage(link->connection));
		}
		break;
	case LINK_ASKED:
		if (PQflush(link->connection) < 0) {
			go_down(link, PQerrorMessage(link->connection));
		} else {
			read_answer(link);
		}
		break;
	}
}

void top_link_poll(const top_link *link, struct pollfd *waited, int64_t *wait_ms)
{
	int64_t since_ms = top_link_clock_ms() - link->since_ms;
	int64_t own_ms = link->state == LINK_DOWN         ? AGAIN_MS - since_ms
	                 : link->state == LINK_CONNECTING ? CONNECTING_MS - since_ms
	                 : link->state == LINK_ASKED      ? 1000
	                                                  : *wait_ms;

	*wait_ms = link->state != LINK_IDLE || own_ms < *wait_ms ? own_ms : *wait_ms;
	if (link->connection == NULL) {
		return;
	}
	bool connecting = link->state == LINK_CONNECTING;
	*waited = (struct pollfd){.fd = PQsocket(link->connection),
	                          .events = connecting && link->polling == PGRES_POLLING_WRITING ? POLLOUT : POLLIN};
}

bool top_link_is_idle(const top_link *link)
{
	return link->state == LINK_IDLE;
}

void top_link_ask(top_link *link, enum sql_id id, int parameter_count, const char *const *parameters)
{
	assert(sql_queries[id].parameter_count == parameter_count);
	link->asked = id;
	enter(link, LINK_ASKED);
	if (PQsendQueryParams(link->connection, sql_queries[id].text, parameter_count, NULL, parameters, NULL, NULL, 0) ==
	        0 ||
	    PQflush(link->connection) < 0) {
		go_down(link, PQerrorMessage(link->connection));
	}
}

PGresult *top_link_take(top_link *link, enum sql_id *id, int64_t *took_ms)
{
	if (link->state != LINK_ASKED || !link->answered) {
		return NULL;
	}
	PGresult *answer = link->answer;

	link->answer = NULL;
	link->answered = false;
	*id = link->asked;
	*took_ms = top_link_clock_ms() - link->since_ms;
	if (PQresultStatus(answer) == PGRES_TUPLES_OK) {
		top_link_note(link, NULL);
	}
	enter(link, LINK_IDLE);
	return answer;
}

char *top_link_trouble(const top_link *link)
{
	int64_t since_ms = top_link_clock_ms() - link->since_ms;

	switch (link->state) {
	case LINK_DOWN:
	case LINK_CONNECTING:
		return link->problem != NULL ? cli_format("connection lost, retrying: %s", link->problem) : NULL;
	case LINK_ASKED:
		if (since_ms >= SLOW_MS) {
			return cli_format("the database has not answered for %" PRId64 " s", since_ms / 1000);
		}
		break;
	case LINK_IDLE:
		break;
	}
	return link->problem != NULL ? cli_format("no answer: %s", link->problem) : NULL;
}
