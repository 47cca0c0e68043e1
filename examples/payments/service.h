/* SPDX-License-Identifier: PostgreSQL */
/*
 * service.h: shared by the two example services: an HTTP server on libmicrohttpd that
 * reads a charge, has it made, and answers JSON. Each service makes charges in its own
 * way: payments.c and ../handoff/handoff.c.
 */
#pragma once

#include <libpq-fe.h>
#include <stdbool.h>
#include <stdint.h>

#include <microhttpd.h>

#include "sql.h"

/* POST {"order": "A-17", "amount": 1999, "currency": "EUR"} */
typedef struct charge {
	const char *order;
	int64_t amount;
	const char *currency;
	struct MHD_Connection *connection; /* for service_header */
} charge;

/* An answer; body is JSON text that service.c frees. NULL: the connection is closed. */
typedef struct reply {
	unsigned status;
	char *body;
} reply;

typedef struct service_kind {
	const char *name; /* of the program */
	const char *path; /* served: POST charges, GET lists */
	reply (*make)(PGconn *database, const charge *charge);
} service_kind;

/* The service's main: reads the options, keeps a worker running, ends on SIGTERM. */
int service_main(const service_kind *service, int argc, char **argv);

/* A header of the request; NULL: it is missing. */
const char *service_header(const charge *charge, const char *name);
/* Inserts the charge: one row with its JSON and its id, or an error.
 * The caller clears the result. */
PGresult *service_charge(PGconn *database, const charge *charge);
/* {"error": "..."} */
reply service_problem(unsigned status, const char *message);
/*
 * The answer after a failed statement: 422 for a charge that can never be made; no answer if the
 * connection was lost, since the outcome is unknown; else 503.
 */
reply service_database_problem(PGconn *database, const PGresult *result);
