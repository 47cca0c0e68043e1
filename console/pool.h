/* SPDX-License-Identifier: PostgreSQL */
/*
 * pool.h: the console's connections: few, made when they are needed, each used by one request at a
 * time. Any thread may ask. After a failed connection attempt no other is made for a moment: the
 * requests that come meanwhile fail at once, and do not pile up.
 */
#pragma once

#include <pthread.h>

#include "database.h"
#include "sql.h"

typedef enum pool_mode {
	POOL_READ, /* READ ONLY, at most 5 s */
	POOL_TRY,  /* what it changes is rolled back */
	POOL_WRITE
} pool_mode;

/* What is known about the database: as of the last connection. */
typedef struct pool_facts {
	char database[64], host[256], role[64]; /* of PostgreSQL's names: at most 63 bytes */
	bool may_decide;                        /* the role may call once.resolve */
} pool_facts;

typedef struct pool pool;

/* `connections`: how many at most. The speaker and the string are borrowed. */
pool *pool_new(const char *conninfo, const speaker *speaker, int connections);
void pool_free(pool *pool);
/*
 * Runs a statement that returns one row of one text (or json, jsonb), in its own transaction. The
 * parameters are texts, or NULL. The text (free it), or NULL: *failure. A write whose connection is
 * lost at its end may have happened: FAILURE_CONNECTION.
 */
char *pool_ask(pool *pool, enum sql_id query, const char *const *values, pool_mode mode, failure *failure);
/*
 * The same for a read without parameters that costs much: the answer, or the failure, that another
 * request got less than a second ago. One request asks at a time.
 */
typedef struct pool_recent {
	pthread_mutex_t lock;
	char *text;
	failure failure;
	int64_t asked_ms;
} pool_recent;
char *pool_ask_recent(pool *pool, pool_recent *recent, enum sql_id query, failure *failure);
void pool_tell(pool *pool, pool_facts *facts);
