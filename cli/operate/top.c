/* SPDX-License-Identifier: PostgreSQL */
/*
 * top.c: pgonce top: what the contract does, as text: once, or again and again until a signal
 * ends it. What is printed is in top_picture.c.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "connect.h"
#include "top_picture.h"

enum {
	INTERVAL_MS = 2000,
	AGAIN_MS = 1000, /* after a connection failed */
	SLOW_MS = 3000,  /* a question that is open for so long is told */
	REST = 10,       /* what takes long is asked again after that many times as long */
	ROWS = 10,       /* of each list, where there is no terminal that says how many fit */
	HEAD_ROWS = 4,
	SECTIONS = 4,
	SECTION_ROWS = 2, /* besides its list */
	STREAM_BYTES = 65536
};

typedef struct top {
	const cli_invocation *invocation;
	const char *conninfo;
	once_session *session;
	json_t *now;
	json_t *before;
	char *trouble; /* what was said last */
} top;

/* ---- questions */

/* The answer to one question; the caller clears. One that does not come is said, and waited for. */
static PGresult *ask(const top *top, enum sql_id id)
{
	PGconn *connection = once_session_connection(top->session);
	PGresult *answer = NULL, *next = NULL;

	if (PQsendQueryParams(connection, sql_queries[id].text, 0, NULL, NULL, NULL, NULL, 0) == 1) {
		struct pollfd waited = {.fd = PQsocket(connection), .events = POLLIN};
		if (poll(&waited, 1, SLOW_MS) == 0) {
			cli_note(top->invocation, "the database has not answered for %d s", SLOW_MS / 1000);
		}
	}
	while ((next = PQgetResult(connection)) != NULL) {
		PQclear(answer);
		answer = next;
	}
	return answer;
}

static json_t *ask_json(const top *top, enum sql_id id, PGresult **failed)
{
	PGresult *answer = ask(top, id);

	if (PQresultStatus(answer) != PGRES_TUPLES_OK || PQntuples(answer) != 1) {
		*failed = answer;
		return NULL;
	}
	json_t *json = json_loads(PQgetvalue(answer, 0, 0), 0, NULL);
	PQclear(answer);
	return json;
}

/*
 * False: one question failed: its answer (NULL: the connection, or memory, was lost) is in *failed.
 */
static bool look(top *top, PGresult **failed)
{
	*failed = NULL;
	json_t *running = ask_json(top, SQL_TOP_RUNNING, failed);
	json_t *fresh = running != NULL ? ask_json(top, SQL_TOP, failed) : NULL;

	if (fresh != NULL) {
		top_join(fresh, running);
		json_decref(top->before);
		top->before = top->now;
		top->now = fresh;
	}
	json_decref(running);
	return fresh != NULL;
}

/* ---- once */

static int print_once(top *top)
{
	PGresult *failed = NULL;

	if (!look(top, &failed)) {
		int result = cli_report_result(top->invocation, once_session_connection(top->session), failed, "cannot look");
		PQclear(failed);
		return result;
	}
	if (top->invocation->given[OPTION_JSON]) {
		cli_print_json(json_incref(top->now));
	} else {
		top_print(top->now, NULL, SIZE_MAX);
	}
	return CLI_OK;
}

/* ---- again and again */

static int64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void rest(int64_t milliseconds)
{
	nanosleep(&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000}, NULL);
}

/* What is wrong is said when it begins and when it changes, not at each attempt. */
static void say(top *top, const char *what, const char *message)
{
	char *trouble = cli_format("%s: %s", what, message);

	if (top->trouble == NULL || strcmp(trouble, top->trouble) != 0) {
		cli_note(top->invocation, "%s", trouble);
		free(top->trouble);
		top->trouble = trouble;
	} else {
		free(trouble);
	}
}

static void reconnect(top *top)
{
	once_error *error = NULL;

	once_session_close(top->session);
	top->session = NULL;
	while (once_session_open(top->conninfo, &top->session, &error) != ONCE_OK) {
		say(top, "connection lost, retrying", once_error_message(error));
		once_error_free(error);
		error = NULL;
		rest(AGAIN_MS);
	}
}

static void recover(top *top, PGresult *failed)
{
	PGconn *connection = once_session_connection(top->session);
	const char *message = PQresultErrorField(failed, PG_DIAG_MESSAGE_PRIMARY);
	bool lost = PQstatus(connection) != CONNECTION_OK;

	say(top, lost ? "connection lost, retrying" : "no answer", message != NULL ? message : PQerrorMessage(connection));
	if (lost) {
		reconnect(top);
	}
}

/* A terminal that knows how to clear itself: its rows; 0: it is none. */
static int screen_rows(void)
{
	const char *term = getenv("TERM");
	struct winsize size;

	return term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0 && isatty(STDOUT_FILENO) == 1 &&
	               ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0
	           ? size.ws_row
	           : 0;
}

static int print_again(top *top)
{
	int screen = screen_rows();
	int rows = screen > 0 ? (screen - HEAD_ROWS) / SECTIONS - SECTION_ROWS : ROWS;

	if (screen > 0) {
		fputs("\x1b[H\x1b[2J", stdout);
	}
	top_print(top->now, top->before, rows > 1 ? (size_t)rows : 1);
	if (screen == 0) {
		putchar('\n');
	}
	return fflush(stdout) == 0 ? CLI_OK
	                           : cli_fail(top->invocation, CLI_FAILED, NULL, "cannot write to standard output: %m");
}

/* No signal is taken: what ends a process ends this one, and nothing has to be put back. */
static int print_on(top *top)
{
	int64_t interval_ms =
	    top->invocation->given[OPTION_REFRESH] ? top->invocation->number[OPTION_REFRESH] : INTERVAL_MS;
	int result = CLI_OK;

	setvbuf(stdout, NULL, _IOFBF, STREAM_BYTES); /* a picture comes at once */
	while (result == CLI_OK) {
		PGresult *failed = NULL;
		int64_t from_ms = clock_ms();
		bool good = look(top, &failed);
		int64_t took_ms = clock_ms() - from_ms;
		if (good) {
			free(top->trouble);
			top->trouble = NULL;
			result = print_again(top);
		} else {
			recover(top, failed);
		}
		PQclear(failed);
		rest(REST * took_ms > interval_ms ? REST * took_ms : interval_ms - took_ms);
	}
	return result;
}

int cli_top(const cli_invocation *invocation)
{
	top top = {.invocation = invocation};
	char *conninfo = connect_conninfo(invocation);

	if (conninfo == NULL) {
		return CLI_USAGE;
	}
	top.conninfo = conninfo;
	int result = connect_session(invocation, conninfo, &top.session);
	if (result == CLI_OK) {
		result =
		    invocation->given[OPTION_SNAPSHOT] || invocation->given[OPTION_JSON] ? print_once(&top) : print_on(&top);
	}
	once_session_close(top.session);
	json_decref(top.now);
	json_decref(top.before);
	free(top.trouble);
	free(conninfo);
	return result;
}
