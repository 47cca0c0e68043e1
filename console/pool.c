/* SPDX-License-Identifier: PostgreSQL */
/* pool.c: see pool.h. */
#include "pool.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory.h"

enum {
	CONNECTIONS_MAX = 8,
	CONNECT_MS = 3000,
	ANSWER_MS = 6000, /* above the server's own limit, in sql/limit.sql */
	STOP_MS = 1000,
	TURN_MS = 5000, /* how long a request waits for a connection */
	AWAY_MS = 500,  /* how long no other attempt is made after a failed one */
	RECENT_MS = 1000,
	JSONB_OID = 3802
};

typedef struct member {
	database database;
	bool is_taken;
	int reloads; /* runtime_reloads when it connected */
} member;

struct pool {
	const speaker *speaker;
	pthread_mutex_t lock;
	pthread_cond_t freed;
	member members[CONNECTIONS_MAX];
	int count;
	pool_facts facts;
	failure away; /* why the last attempt to connect failed */
	int64_t away_until_ms;
	int failures; /* in a row */
};

pool *pool_new(const char *conninfo, const speaker *speaker, int connections)
{
	pool *made = memory_take(sizeof *made);
	pthread_condattr_t attributes;

	pthread_mutex_init(&made->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&made->freed, &attributes);
	pthread_condattr_destroy(&attributes);
	made->speaker = speaker;
	made->count = connections;
	for (int i = 0; i < connections; i++) {
		made->members[i].database = (database){.conninfo = conninfo,
		                                       .role = "once_reader",
		                                       .queries = sql_queries,
		                                       .connect_ms = CONNECT_MS,
		                                       .answer_ms = ANSWER_MS,
		                                       .stop_ms = STOP_MS};
	}
	return made;
}

void pool_free(pool *pool)
{
	for (int i = 0; pool != NULL && i < pool->count; i++) {
		database_disconnect(&pool->members[i].database);
	}
	if (pool != NULL) {
		pthread_cond_destroy(&pool->freed);
		pthread_mutex_destroy(&pool->lock);
		free(pool);
	}
}

/* ---- taking turns */

/* An idle one, connected ones first. */
static member *find_idle(pool *pool)
{
	member *found = NULL;

	for (int i = 0; i < pool->count; i++) {
		member *member = &pool->members[i];
		if (!member->is_taken && (found == NULL || found->database.connection == NULL)) {
			found = member;
		}
	}
	return found;
}

/* NULL: *failure. */
static member *take(pool *pool, failure *failure)
{
	struct timespec until;
	member *taken = NULL;
	int waited = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += TURN_MS / 1000;
	pthread_mutex_lock(&pool->lock);
	while ((taken = find_idle(pool)) == NULL && waited == 0) {
		waited = pthread_cond_timedwait(&pool->freed, &pool->lock, &until);
	}
	if (taken == NULL) {
		failure_set(failure, FAILURE_CANCELED, "all connections of the console are in use");
	} else if (taken->database.connection == NULL && runtime_now_ms() < pool->away_until_ms) {
		*failure = pool->away;
		taken = NULL;
	} else {
		taken->is_taken = true;
	}
	pthread_mutex_unlock(&pool->lock);
	return taken;
}

static void give_back(pool *pool, member *member)
{
	pthread_mutex_lock(&pool->lock);
	member->is_taken = false;
	pthread_cond_broadcast(&pool->freed); /* if the database is away, each of them learns it now */
	pthread_mutex_unlock(&pool->lock);
}

/* ---- connecting */

/* One text of one row, which ends up in *text (free it). */
static bool ask_text(database *database, enum sql_id query, parameters *parameters, char **text, failure *failure)
{
	PGresult *result = database_query(database, (int)query, parameters, failure);

	if (result != NULL && PQntuples(result) == 1 && PQnfields(result) == 1 && !PQgetisnull(result, 0, 0)) {
		/* The binary form of jsonb begins with its version. */
		*text = memory_copy(PQgetvalue(result, 0, 0) + (PQftype(result, 0) == JSONB_OID));
	} else if (result != NULL) {
		failure_set(failure, FAILURE_PASSING, "the statement did not return one value");
	}
	PQclear(result);
	return *text != NULL;
}

static void read_facts(const char *text, const PGconn *connection, pool_facts *facts)
{
	json_t *json = json_loads(text, 0, NULL);
	const char *host = PQhost(connection);
	const char *database = json_string_value(json_object_get(json, "database"));
	const char *role = json_string_value(json_object_get(json, "role"));

	snprintf(facts->database, sizeof facts->database, "%s", database == NULL ? "" : database);
	snprintf(facts->role, sizeof facts->role, "%s", role == NULL ? "" : role);
	/* A socket's directory says nothing to a person. */
	snprintf(facts->host, sizeof facts->host, "%s", host == NULL || host[0] == '/' ? "" : host);
	facts->may_decide = json_is_true(json_object_get(json, "may_decide"));
	json_decref(json);
}

static bool connect_member(pool *pool, member *member, failure *failure)
{
	char *text = NULL;
	bool good =
	    database_connect(&member->database, failure) && ask_text(&member->database, SQL_WHO, NULL, &text, failure);

	member->reloads = runtime_reloads();
	pthread_mutex_lock(&pool->lock);
	if (good) {
		read_facts(text, member->database.connection, &pool->facts);
		pool->failures = 0;
		pool->away_until_ms = 0;
	} else {
		database_disconnect(&member->database);
		pool->away = *failure;
		pool->away_until_ms = runtime_now_ms() + AWAY_MS;
		pool->failures++;
		if (failure->kind != FAILURE_STOPPED) {
			failure_log(failure, pool->speaker, pool->failures);
		}
	}
	pthread_mutex_unlock(&pool->lock);
	free(text);
	return good;
}

void pool_tell(pool *pool, pool_facts *facts)
{
	pthread_mutex_lock(&pool->lock);
	*facts = pool->facts;
	pthread_mutex_unlock(&pool->lock);
}

/* ---- asking */

static char *ask_within(database *database, enum sql_id query, const char *const *values, pool_mode mode,
                        failure *failure)
{
	parameters parameters = {0};
	char *text = NULL;

	database->begin = mode == POOL_READ ? "BEGIN READ ONLY" : "BEGIN";
	if (!database_begin(database, failure)) {
		return NULL;
	}
	for (int i = 0; i < sql_queries[query].parameter_count; i++) {
		parameters_text(&parameters, values == NULL ? NULL : values[i]);
	}
	bool good =
	    database_run(database, SQL_LIMIT, NULL, failure) && ask_text(database, query, &parameters, &text, failure);
	parameters_free(&parameters);
	if (good && mode != POOL_TRY && !database_commit(database, failure)) {
		free(text);
		text = NULL;
	}
	database_rollback(database);
	return text;
}

char *pool_ask(pool *pool, enum sql_id query, const char *const *values, pool_mode mode, failure *failure)
{
	char *text = NULL;
	member *member = take(pool, failure);

	if (member == NULL) {
		return NULL;
	}
	if (member->reloads != runtime_reloads()) { /* it may be another database now */
		database_disconnect(&member->database);
	}
	bool was_open = member->database.connection != NULL;
	if (was_open || connect_member(pool, member, failure)) {
		text = ask_within(&member->database, query, values, mode, failure);
		/* The connection may have been lost at any time since the last request. */
		if (text == NULL && was_open && failure->kind == FAILURE_CONNECTION && mode == POOL_READ &&
		    connect_member(pool, member, failure)) {
			text = ask_within(&member->database, query, values, mode, failure);
		}
		if (text == NULL && failure->kind == FAILURE_CONNECTION) {
			database_disconnect(&member->database);
		}
	}
	give_back(pool, member);
	return text;
}

char *pool_ask_recent(pool *pool, pool_recent *recent, enum sql_id query, failure *failure)
{
	pthread_mutex_lock(&recent->lock);
	if (recent->asked_ms == 0 || runtime_now_ms() - recent->asked_ms > RECENT_MS) {
		free(recent->text);
		recent->text = pool_ask(pool, query, NULL, POOL_READ, &recent->failure);
		recent->asked_ms = runtime_now_ms();
	}
	char *text = memory_copy(recent->text);
	*failure = recent->failure;
	pthread_mutex_unlock(&recent->lock);
	return text;
}
