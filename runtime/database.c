/* SPDX-License-Identifier: PostgreSQL */
/*
 * database.c: see database.h. libpq can connect (one host after the other, each with its own limit)
 * and cancel only in blocking calls; these run in their own thread, which is abandoned if the wait
 * for it ends first.
 */
#include "database.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "memory.h"
#include "notify.h"
#include "sql.h"
#include "utf8.h"

enum {
	ALIVE_MS = 250,   /* below a third of the shortest limit of a broker (NATS: ack_wait) */
	CANCEL_MS = 2000, /* how long the server may take to receive a cancel */
	POLL_MOST_MS = 60000,
	FORMAT_BINARY = 1
};

/* ---- failures */

static bool begins_with_one(const char *sqlstate, const char *const *beginnings)
{
	for (; *beginnings != NULL; beginnings++) {
		if (strncmp(sqlstate, *beginnings, strlen(*beginnings)) == 0) {
			return true;
		}
	}
	return false;
}

/* Classes and codes of the manual's appendix "PostgreSQL Error Codes". */
failure_kind failure_kind_of(const char *sqlstate)
{
	static const char *const no_server[] = {"08", "57P", "25006", "53300", "28", "3D000", NULL};
	static const char *const passing[] = {"40001", "40P01", "55P03", "53", "58", "XX", "P4097", "P4098", NULL};
	/*
	 * A missing schema, function, table, type or column: no contract, or an old one. No right to
	 * use it.
	 */
	static const char *const contract[] = {"3F000", "42883", "42P01", "42704", "42703", "42501", NULL};

	if (sqlstate == NULL || sqlstate[0] == '\0' || begins_with_one(sqlstate, no_server)) {
		return FAILURE_CONNECTION;
	}
	return begins_with_one(sqlstate, passing)    ? FAILURE_PASSING
	       : begins_with_one(sqlstate, contract) ? FAILURE_CONTRACT
	       : strcmp(sqlstate, "57014") == 0      ? FAILURE_CANCELED
	                                             : FAILURE_FAULT;
}

/*
 * Ends the text before its first byte that is not UTF-8, such as a message's cut end, and removes
 * white space.
 */
static void trim(char *text)
{
	unsigned char *start = (unsigned char *)text;
	unsigned char *at = start;
	const unsigned char *end = start + strlen(text);

	for (size_t length = 1; at < end && length > 0; at += length) {
		length = utf8_length(at, (size_t)(end - at));
	}
	while (at > start && (at[-1] == '\n' || at[-1] == ' ')) {
		at--;
	}
	*at = '\0';
}

void failure_set(failure *failure, failure_kind kind, const char *format, ...)
{
	va_list arguments;

	failure->kind = kind;
	failure->is_theirs = false;
	failure->sqlstate[0] = '\0';
	va_start(arguments, format);
	vsnprintf(failure->text, sizeof failure->text, format, arguments);
	va_end(arguments);
	trim(failure->text);
}

static void add_text(failure *failure, const char *title, const char *text)
{
	size_t used = strlen(failure->text);

	if (text != NULL && text[0] != '\0') {
		snprintf(failure->text + used, sizeof failure->text - used, "; %s: %s", title, text);
		trim(failure->text);
	}
}

/*
 * Why the server refuses writes, as far as it reports it (since PostgreSQL 14, not through every
 * pooler), and what to do.
 */
static void tell_read_only(const database *database, failure *failure)
{
	const char *is_standby = PQparameterStatus(database->connection, "in_hot_standby");
	const char *by_default = PQparameterStatus(database->connection, "default_transaction_read_only");
	bool standby = is_standby != NULL && strcmp(is_standby, "on") == 0;
	bool setting = !standby && by_default != NULL && strcmp(by_default, "on") == 0;

	snprintf(failure->text, sizeof failure->text, "%s",
	         standby   ? "the server is a standby, which refuses writes"
	         : setting ? "the database refuses writes: default_transaction_read_only is on"
	                   : "the database refuses writes: it is a standby, or default_transaction_read_only is on");
	add_text(failure, "hint",
	         setting ? "turn it off for this role: ALTER ROLE ... SET default_transaction_read_only = off"
	                 : "name the primary, or all servers with target_session_attrs=read-write");
}

/*
 * An ERROR raised by a user's code, or by a deferred trigger at COMMIT, only ends the statement,
 * with any SQLSTATE: postgres_fdw raises 08001 if the foreign server is away, and a handler may
 * RAISE 25006. The end of this connection is FATAL. And a missing object in a user's code is not a
 * missing contract.
 */
static failure_kind kind_of_theirs(failure_kind kind, const PGresult *result)
{
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);

	if (kind == FAILURE_CONNECTION && severity != NULL && strcmp(severity, "ERROR") == 0) {
		return FAILURE_PASSING;
	}
	return kind == FAILURE_CONTRACT ? FAILURE_FAULT : kind;
}

/* result NULL: the connection failed. */
static void set_from_result(const database *database, const PGresult *result, bool is_theirs, failure *failure)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
	bool is_connected = PQstatus(database->connection) == CONNECTION_OK;
	failure_kind kind = is_connected ? failure_kind_of(sqlstate) : FAILURE_CONNECTION;

	if (is_connected && is_theirs) {
		kind = kind_of_theirs(kind, result);
	}
	failure_set(failure, kind, "%s", message != NULL ? message : PQerrorMessage(database->connection));
	failure->is_theirs = is_theirs;
	snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", sqlstate == NULL ? "" : sqlstate);
	if (kind == FAILURE_CONNECTION && strcmp(failure->sqlstate, "25006") == 0) {
		tell_read_only(database, failure);
		return;
	}
	add_text(failure, "detail", PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL));
	add_text(failure, "hint", hint);
	if (kind == FAILURE_CONTRACT && hint == NULL) {
		bool no_right = strcmp(failure->sqlstate, "42501") == 0;
		char grant[128];
		snprintf(grant, sizeof grant, "grant %s to the role", database->role);
		add_text(failure, "hint", no_right ? grant : "run pgonce init");
	}
	if (is_theirs) {
		add_text(failure, "context", PQresultErrorField(result, PG_DIAG_CONTEXT));
	}
}

void failure_of_error(const once_error *error, failure *failure)
{
	const char *sqlstate = once_error_sqlstate(error);
	once_code code = once_error_code(error);
	bool is_connection = code == ONCE_CONNECTION || code == ONCE_OUTCOME_UNKNOWN || code == ONCE_DEADLINE;

	assert(code != ONCE_OK);
	failure_set(failure,
	            code == ONCE_CONTRACT ? FAILURE_CONTRACT
	            : sqlstate[0] != '\0' ? failure_kind_of(sqlstate)
	            : is_connection       ? FAILURE_CONNECTION
	                                  : FAILURE_PASSING,
	            "%s", once_error_message(error));
	add_text(failure, "detail", once_error_detail(error));
	add_text(failure, "hint", once_error_hint(error));
	snprintf(failure->sqlstate, sizeof failure->sqlstate, "%s", sqlstate);
}

void failure_set_pooler(failure *failure, const char *job, const char *otherwise)
{
	failure_set(
	    failure, FAILURE_FAULT,
	    "a connection pooler is between the %s and PostgreSQL; hint: connect to PostgreSQL directly (dsn)%s: the "
	    "%s holds a session lock, and a pooler would give that session to other clients",
	    job, otherwise, job);
}

void failure_log(const failure *failure, const speaker *speaker, int failures)
{
	bool may_hold_payload = failure->is_theirs && failure->kind == FAILURE_FAULT;
	char quoted[RUNTIME_QUOTE_BYTES];

	assert(failures > 0);
	runtime_tried();
	if ((failures & (failures - 1)) == 0) {
		runtime_log(speaker, failures > 4 ? RUNTIME_ERROR : RUNTIME_WARNING, "database",
		            "sqlstate=%s failures=%d problem=%s", failure->sqlstate, failures,
		            runtime_quote(may_hold_payload ? "see the server's log" : failure->text, quoted));
	}
}

/* ---- results */

int32_t result_integer(const PGresult *result, int row, int column)
{
	const unsigned char *at = (const unsigned char *)PQgetvalue(result, row, column);

	if (PQgetlength(result, row, column) != 4) {
		return 0;
	}
	return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
}

int64_t result_bigint(const PGresult *result, int row, int column)
{
	const unsigned char *at = (const unsigned char *)PQgetvalue(result, row, column);
	uint64_t number = 0;

	for (int i = 0; i < 8 && PQgetlength(result, row, column) == 8; i++) {
		number = number << 8 | at[i];
	}
	return (int64_t)number;
}

bool result_is_true(const PGresult *result, int row, int column)
{
	return PQgetlength(result, row, column) == 1 && PQgetvalue(result, row, column)[0] != 0;
}

char *result_text(const PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NULL : memory_copy(PQgetvalue(result, row, column));
}

static bool is_good(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
}

/* ---- waiting */

typedef struct waiting {
	int64_t until_ms, patience_ms;
	bool is_stopping; /* the request to stop has set the end */
} waiting;

static waiting waiting_for(int64_t limit_ms, int64_t patience_ms)
{
	return (waiting){.until_ms = limit_ms == 0 ? INT64_MAX : runtime_now_ms() + limit_ms, .patience_ms = patience_ms};
}

/* Waits until the descriptor may be readable. False: the time is up. */
static bool wait_readable(const database *database, int fd, waiting *waiting)
{
	bool stopping = runtime_stopping();
	int64_t now = runtime_now_ms();

	if (stopping && !waiting->is_stopping && waiting->patience_ms != DATABASE_PATIENT &&
	    now + waiting->patience_ms < waiting->until_ms) {
		waiting->is_stopping = true;
		waiting->until_ms = now + waiting->patience_ms;
	}
	if (now >= waiting->until_ms) {
		return false;
	}
	int64_t most_ms = database->alive != NULL ? ALIVE_MS : POLL_MOST_MS;
	int64_t left_ms = waiting->until_ms - now;
	struct pollfd wait[2] = {{.fd = fd, .events = POLLIN}, {.fd = stopping ? -1 : runtime_stop_fd(), .events = POLLIN}};
	notify_alive();
	if (poll(wait, 2, notify_wait_ms(left_ms < most_ms ? left_ms : most_ms)) == 0 && database->alive != NULL) {
		database->alive(database->argument);
	}
	return true;
}

static bool start_thread(void *(*run)(void *), void *argument)
{
	pthread_attr_t detached;
	pthread_t thread;

	if (pthread_attr_init(&detached) != 0) {
		return false;
	}
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	bool started = pthread_create(&thread, &detached, run, argument) == 0;
	pthread_attr_destroy(&detached);
	return started;
}

/* ---- connecting */

typedef struct dialing {
	char *conninfo;
	PGconn *connection;
	int done_fd;
	atomic_flag left; /* set by the first of the two users to leave; the second frees it */
} dialing;

static void dialing_free(dialing *dialing)
{
	PQfinish(dialing->connection);
	if (dialing->done_fd >= 0) {
		close(dialing->done_fd);
	}
	free(dialing->conninfo);
	free(dialing);
}

static void leave(dialing *dialing)
{
	if (atomic_flag_test_and_set(&dialing->left)) {
		dialing_free(dialing);
	}
}

static void *dial(void *argument)
{
	dialing *dialing = argument;

	dialing->connection = PQconnectdb(dialing->conninfo);
	(void)eventfd_write(dialing->done_fd, 1);
	leave(dialing);
	return NULL;
}

/* NULL: *failure. */
static PGconn *connect_within(const database *database, failure *failure)
{
	waiting waiting = waiting_for(database->connect_ms, 0);
	dialing *dialing = memory_take(sizeof *dialing);
	PGconn *made = NULL;
	eventfd_t done = 0;

	dialing->conninfo = memory_copy(database->conninfo);
	dialing->done_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (dialing->done_fd < 0 || !start_thread(dial, dialing)) {
		failure_set(failure, FAILURE_CONNECTION, "too many files or threads to connect");
		dialing_free(dialing);
		return NULL;
	}
	while (done == 0 && wait_readable(database, dialing->done_fd, &waiting)) {
		(void)eventfd_read(dialing->done_fd, &done);
	}
	if (done != 0) {
		made = dialing->connection;
		dialing->connection = NULL;
	} else {
		failure_set(failure, waiting.is_stopping ? FAILURE_STOPPED : FAILURE_CONNECTION,
		            "PostgreSQL did not answer in time");
	}
	leave(dialing);
	return made;
}

/* A user's RAISE NOTICE belongs in the server's log: here it could reveal a payload. */
static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

static bool open_connection(database *database, failure *failure)
{
	once_error *error = NULL;

	database->connection = connect_within(database, failure);
	if (database->connection == NULL && failure->kind != FAILURE_NONE) {
		return false;
	}
	if (PQstatus(database->connection) != CONNECTION_OK) {
		failure_set(failure, FAILURE_CONNECTION, "%s", PQerrorMessage(database->connection));
		return false;
	}
	PQsetNoticeReceiver(database->connection, ignore_notice, NULL);
	if (once_session_attach(database->connection, &database->session, &error) != ONCE_OK) {
		failure_of_error(error, failure);
		once_error_free(error);
		return false;
	}
	once_session_prepare(database->session, database->prepares);
	return true;
}

void database_disconnect(database *database)
{
	if (database->is_counted) {
		database->is_counted = false;
		runtime_database(-1);
	}
	once_session_close(database->session);
	PQfinish(database->connection);
	database->session = NULL;
	database->connection = NULL;
	database->in_transaction = false;
	memset(database->prepared, 0, sizeof database->prepared);
}

/* ---- asking */

typedef struct question {
	const char *name; /* of a prepared statement; NULL: text */
	const char *text;
	parameters *parameters;
	bool is_theirs;
	bool is_patient; /* neither a limit nor a request to stop ends it */
	int64_t limit_ms;
	database_taker *take; /* NULL: all rows in one result */
	void *argument;
} question;

/* A cancel in progress, in a thread: PQcancel blocks. */
typedef struct canceling {
	PGcancel *handle;
	int done_fd;
	atomic_flag left; /* like a dialing's */
} canceling;

static void canceling_free(canceling *canceling)
{
	PQfreeCancel(canceling->handle);
	if (canceling->done_fd >= 0) {
		close(canceling->done_fd);
	}
	free(canceling);
}

static void canceling_leave(canceling *canceling)
{
	if (atomic_flag_test_and_set(&canceling->left)) {
		canceling_free(canceling);
	}
}

static void *send_cancel(void *argument)
{
	char ignored[256];
	canceling *canceling = argument;

	(void)PQcancel(canceling->handle, ignored, sizeof ignored);
	(void)eventfd_write(canceling->done_fd, 1);
	canceling_leave(canceling);
	return NULL;
}

/*
 * Returns when the server has received the cancel: a late one would hit the next statement. False:
 * that is not certain, and the connection must not be used any more.
 */
static bool tell_cancel(const database *database, waiting *waiting)
{
	canceling *canceling = memory_take(sizeof *canceling);
	eventfd_t done = 0;

	canceling->handle = PQgetCancel(database->connection);
	canceling->done_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (canceling->handle == NULL || canceling->done_fd < 0 || !start_thread(send_cancel, canceling)) {
		canceling_free(canceling);
		return false;
	}
	while (done == 0 && wait_readable(database, canceling->done_fd, waiting)) {
		(void)eventfd_read(canceling->done_fd, &done);
	}
	canceling_leave(canceling);
	return done != 0;
}

/*
 * Asks the server to stop the statement and reads its answer, so that the connection stays usable;
 * otherwise closes it.
 */
static void cancel(database *database)
{
	waiting waiting = waiting_for(CANCEL_MS, DATABASE_PATIENT);
	bool told = tell_cancel(database, &waiting);

	while (told) {
		while (PQisBusy(database->connection)) {
			if (!wait_readable(database, PQsocket(database->connection), &waiting) ||
			    PQconsumeInput(database->connection) == 0) {
				database_disconnect(database);
				return;
			}
		}
		PGresult *result = PQgetResult(database->connection);
		if (result == NULL) {
			return;
		}
		PQclear(result);
	}
	database_disconnect(database);
}

/* Waits for the next result. False: it was canceled, *failure. */
static bool wait_result(database *database, waiting *waiting, failure *failure)
{
	while (PQisBusy(database->connection)) {
		if (!wait_readable(database, PQsocket(database->connection), waiting)) {
			cancel(database);
			failure_set(failure, waiting->is_stopping ? FAILURE_STOPPED : FAILURE_CANCELED,
			            "it took too long, and was canceled");
			snprintf(failure->sqlstate, sizeof failure->sqlstate, "57014");
			return false;
		}
		if (PQconsumeInput(database->connection) == 0) {
			return true; /* PQgetResult reports the error */
		}
	}
	return true;
}

/* The answer to the request, or its first error. NULL: *failure, or the connection is gone. */
static PGresult *collect(database *database, const question *question, failure *failure)
{
	waiting waiting = waiting_for(question->limit_ms, question->is_patient ? DATABASE_PATIENT : database->stop_ms);
	PGresult *kept = NULL;
	bool takes = true;

	for (;;) {
		if (!wait_result(database, &waiting, failure)) {
			PQclear(kept);
			return NULL;
		}
		PGresult *next = PQgetResult(database->connection);
		if (next == NULL) {
			break;
		}
		if (PQresultStatus(next) == PGRES_SINGLE_TUPLE) {
			assert(question->take != NULL);
			bool ends = takes && !question->take(question->argument, next);
			PQclear(next);
			if (ends) {
				struct waiting patience = waiting_for(CANCEL_MS, DATABASE_PATIENT);
				takes = false;
				if (!tell_cancel(database, &patience)) {
					failure_set(failure, FAILURE_CONNECTION, "the server did not receive a cancel in time");
					database_disconnect(database);
					return NULL;
				}
			}
		} else if (PQresultStatus(kept) == PGRES_FATAL_ERROR && kept != NULL) {
			PQclear(next);
		} else {
			PQclear(kept);
			kept = next;
		}
	}
	if (!takes && PQstatus(database->connection) == CONNECTION_OK) {
		PQclear(kept); /* we canceled it ourselves */
		kept = PQmakeEmptyPGresult(database->connection, PGRES_TUPLES_OK);
	}
	return kept;
}

static PGresult *ask(database *database, const question *question, failure *failure)
{
	parameters none = {0};
	parameters *given = question->parameters != NULL ? question->parameters : &none;
	PGresult *result = NULL;
	int sent = 0;

	failure->kind = FAILURE_NONE; /* only the kind: a caller may still refer to an earlier text */
	if (database->connection == NULL) {
		failure_set(failure, FAILURE_CONNECTION, "there is no connection");
	} else if (!parameters_seal(given)) {
		failure_set(failure, FAILURE_FAULT, "the messages are too large for one statement");
	} else {
		database->asked_ms = runtime_now_ms();
		sent = question->name != NULL
		           ? PQsendQueryPrepared(database->connection, question->name, given->count, given->values,
		                                 given->lengths, given->formats, FORMAT_BINARY)
		           : PQsendQueryParams(database->connection, question->text, given->count, given->types, given->values,
		                               given->lengths, given->formats, FORMAT_BINARY);
		if (sent && question->take != NULL) {
			(void)PQsetSingleRowMode(database->connection);
		}
		result = sent ? collect(database, question, failure) : NULL;
	}
	parameters_free(given);
	if (failure->kind == FAILURE_NONE && !is_good(result)) {
		set_from_result(database, result, question->is_theirs, failure);
	}
	if (failure->kind != FAILURE_NONE) {
		PQclear(result);
		return NULL;
	}
	database->answered_ms = database->asked_ms;
	return result;
}

/* Once per connection. */
static bool prepare(database *database, int query, parameters *parameters, failure *failure)
{
	const sql_query *statement = &database->queries[query];
	const question question = {.limit_ms = database->answer_ms};

	failure->kind = FAILURE_NONE;
	if (database->connection == NULL || database->prepared[query] || !parameters_seal(parameters)) {
		return true; /* or ask reports the problem */
	}
	PGresult *result =
	    PQsendPrepare(database->connection, statement->name, statement->text, parameters->count, parameters->types)
	        ? collect(database, &question, failure)
	        : NULL;
	database->prepared[query] = is_good(result);
	if (failure->kind != FAILURE_NONE) {
		database_disconnect(database); /* the name may or may not be taken */
	} else if (!database->prepared[query]) {
		set_from_result(database, result, query + 1 == database->theirs, failure);
		/* The server cannot run pgonce's own statement: not a message's fault. */
		failure->kind = failure->kind == FAILURE_FAULT ? FAILURE_PASSING : failure->kind;
	}
	PQclear(result);
	return database->prepared[query];
}

static PGresult *ask_query(database *database, int query, question *question, failure *failure)
{
	const sql_query *statement = &database->queries[query];
	int count = question->parameters == NULL ? 0 : question->parameters->count;

	assert(query >= 0 && query < DATABASE_QUERIES_MAX && statement->parameter_count == count);
	question->text = statement->text;
	question->is_theirs = query + 1 == database->theirs;
	question->limit_ms = database->answer_ms;
	if (database->prepares && count > 0) {
		if (!prepare(database, query, question->parameters, failure)) {
			parameters_free(question->parameters);
			return NULL;
		}
		question->name = statement->name;
	}
	return ask(database, question, failure);
}

PGresult *database_query(database *database, int query, parameters *parameters, failure *failure)
{
	question question = {.parameters = parameters};

	return ask_query(database, query, &question, failure);
}

bool database_run(database *database, int query, parameters *parameters, failure *failure)
{
	PGresult *result = database_query(database, query, parameters, failure);

	PQclear(result);
	return result != NULL;
}

bool database_stream(database *database, int query, parameters *parameters, database_taker *take, void *argument,
                     failure *failure)
{
	question question = {.parameters = parameters, .take = take, .argument = argument};
	PGresult *result = ask_query(database, query, &question, failure);

	PQclear(result);
	return result != NULL;
}

bool database_command(database *database, const char *command, failure *failure)
{
	const question question = {.text = command, .is_theirs = true, .limit_ms = database->answer_ms};
	PGresult *result = ask(database, &question, failure);

	PQclear(result);
	return result != NULL;
}

static bool check_contract(database *database, failure *failure)
{
	const question question = {.text = sql_queries[SQL_CONTRACT_VERSION].text, .limit_ms = database->connect_ms};
	PGresult *result = ask(database, &question, failure);

	if (result == NULL) {
		failure->kind = failure->kind == FAILURE_CANCELED ? FAILURE_CONNECTION : failure->kind;
		return false;
	}
	int version = result_integer(result, 0, 0);
	PQclear(result);
	if (version < once_contract_version()) {
		failure_set(failure, FAILURE_CONTRACT,
		            "the contract in the database has version %d, but this command needs version %d: run pgonce init "
		            "to upgrade it",
		            version, once_contract_version());
		return false;
	}
	return true;
}

bool database_connect(database *database, failure *failure)
{
	failure->kind = FAILURE_NONE;
	database_disconnect(database);
	if (!open_connection(database, failure) || !check_contract(database, failure)) {
		assert(failure->kind != FAILURE_NONE);
		database_disconnect(database);
		return false;
	}
	if (database->is_jobs) {
		database->is_counted = true;
		runtime_database(1);
	}
	return true;
}

/* ---- transactions */

/* Never canceled from here: its result would be unknown. */
static PGresult *ask_patiently(database *database, const char *command, failure *failure)
{
	const question question = {.text = command, .is_theirs = true, .is_patient = true};

	return ask(database, &question, failure);
}

bool database_begin(database *database, failure *failure)
{
	assert(!database->in_transaction);
	PGresult *result = ask_patiently(database, database->begin != NULL ? database->begin : "BEGIN", failure);
	database->in_transaction = result != NULL;
	PQclear(result);
	return database->in_transaction;
}

bool database_commit(database *database, failure *failure)
{
	PGresult *result = ask_patiently(database, "COMMIT", failure);
	bool committed = result != NULL && strcmp(PQcmdStatus(result), "COMMIT") == 0;

	database->in_transaction = false;
	if (result != NULL && !committed) {
		failure_set(failure, FAILURE_PASSING, "COMMIT was answered with %s", PQcmdStatus(result));
	}
	PQclear(result);
	return committed;
}

void database_rollback(database *database)
{
	failure failure;

	if (database->in_transaction) {
		PGresult *result = ask_patiently(database, "ROLLBACK", &failure);
		if (result == NULL) {
			database_disconnect(database);
		}
		PQclear(result);
	}
	database->in_transaction = false;
}
