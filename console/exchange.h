/* SPDX-License-Identifier: PostgreSQL */
/*
 * exchange.h: one request and its answer. console.c, which has the connections, feeds it; it checks
 * the request, asks the database, and writes the page.
 */
#pragma once

#include <microhttpd.h>
#include <stdatomic.h>

#include "console.h"
#include "guard.h"
#include "pool.h"
#include "render.h"
#include "samples.h"

/* What all exchanges share. */
typedef struct exchange_world {
	const console_call *call;
	const speaker *speaker;
	guard *guard;
	pool *pool;
	templates *templates;
	samples *samples;
	pool_recent *overview;
	atomic_int *forms; /* that are being received or answered */
} exchange_world;

typedef struct exchange exchange;

/* The headers are in. */
exchange *exchange_begin(const exchange_world *world, struct MHD_Connection *connection, const char *path,
                         const char *method);
/* A piece of the body. */
void exchange_take(exchange *exchange, const char *data, size_t length);
/* The answer can be given before the body is in: the body is too large. */
bool exchange_is_over(const exchange *exchange);
enum MHD_Result exchange_answer(exchange *exchange);
/* Logs it, and frees it. NULL: nothing. */
void exchange_end(exchange *exchange);
