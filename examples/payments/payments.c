/* SPDX-License-Identifier: PostgreSQL */
/*
 * payments.c: a payments service that knows nothing about retries: every POST /payments charges.
 * Called twice, it charges twice; the gateway prevents that. The program `payments-example`;
 * examples/demo.py runs it behind the gateway.
 */
#include <stdlib.h>
#include <string.h>

#include "service.h"

static reply make(PGconn *database, const charge *charge)
{
	PGresult *result = service_charge(database, charge);
	reply made = {.status = 201};

	if (PQresultStatus(result) == PGRES_TUPLES_OK) {
		made.body = strdup(PQgetvalue(result, 0, 0));
	} else {
		made = service_database_problem(database, result);
	}
	PQclear(result);
	return made;
}

int main(int argc, char **argv)
{
	static const service_kind payments = {.name = "payments-example", .path = "/payments", .make = make};

	return service_main(&payments, argc, argv);
}
