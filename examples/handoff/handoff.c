/* SPDX-License-Identifier: PostgreSQL */
/*
 * handoff.c: a payments service that completes the gateway's intent in the transaction of its
 * charge: the charge and its answer exist together or not at all. If it dies after COMMIT and
 * before it answers, the retry still gets the answer. make() is the function to copy. The program
 * `handoff-example`; examples/demo.py runs it behind the gateway.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pgonce.h>

#include "../payments/service.h"

enum {
	NAME_BYTES_MAX = 255 /* the contract's limit for a tenant, a scope, a key */
};

typedef struct names {
	char tenant[NAME_BYTES_MAX + 1];
	char scope[NAME_BYTES_MAX + 1];
	char key[NAME_BYTES_MAX + 1];
} names;

static int digit_of(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	                              : -1;
}

/* Decodes a header's value as the gateway writes it: %XX stands for a byte that a
 * header cannot contain. False: the value is malformed. */
static bool decode(const char *value, char name[NAME_BYTES_MAX + 1])
{
	size_t length = 0;

	for (; value != NULL && *value != '\0' && length < NAME_BYTES_MAX; length++) {
		int high = value[0] == '%' ? digit_of(value[1]) : -1;
		int low = high >= 0 ? digit_of(value[2]) : -1;
		if (value[0] == '%' && (low < 0 || high + low == 0)) {
			return false;
		}
		name[length] = value[0] == '%' ? (char)(high * 16 + low) : value[0];
		value += value[0] == '%' ? 3 : 1;
	}
	name[length] = '\0';
	return value != NULL && *value == '\0';
}

/* From the gateway's headers: the intent, and its fence. False: the request did not
 * come through the gateway. */
static bool read_intent(const charge *charge, names *names, once_intent *intent, int *fence)
{
	const char *tenant = service_header(charge, "Once-Tenant");
	const char *number = service_header(charge, "Once-Fence");
	char *end = NULL;
	bool named = decode(tenant == NULL ? "" : tenant, names->tenant) &&
	             decode(service_header(charge, "Once-Scope"), names->scope) &&
	             decode(service_header(charge, "Once-Key"), names->key);

	*intent = (once_intent){.tenant = names->tenant, .scope = names->scope, .key = names->key};
	errno = 0;
	long value = number == NULL ? 0 : strtol(number, &end, 10);
	*fence = (int)value;
	return named && errno == 0 && value >= 1 && value <= INT32_MAX && *end == '\0';
}

static bool run(PGconn *database, const char *command)
{
	PGresult *result = PQexec(database, command);
	bool good = PQresultStatus(result) == PGRES_COMMAND_OK;

	PQclear(result);
	return good;
}

/* Nothing was charged. If the fence is lost, another attempt has this intent now,
 * and only that one may charge. */
static reply refuse(once_error *error)
{
	fprintf(stderr, "%s: %s\n", once_error_message(error), once_error_detail(error));
	once_error_free(error);
	return service_problem(503, "the intent is not this attempt's to complete");
}

static reply make(PGconn *database, const charge *charge)
{
	once_session *session = NULL;
	once_error *error = NULL;
	once_intent intent;
	names names;
	PGresult *charged = NULL;
	reply made = {.body = NULL};
	int fence = 0;

	if (!read_intent(charge, &names, &intent, &fence)) {
		return service_problem(400, "this service answers the gateway: Once-Scope, Once-Key or Once-Fence is missing");
	}
	once_code code = once_session_attach(database, &session, &error);
	if (code != ONCE_OK || !run(database, "BEGIN")) {
		made = code != ONCE_OK ? refuse(error) : service_database_problem(database, NULL);
		goto done;
	}
	charged = service_charge(database, charge);
	if (PQresultStatus(charged) != PGRES_TUPLES_OK) {
		made = service_database_problem(database, charged);
		run(database, "ROLLBACK");
		goto done;
	}
	const char *body = PQgetvalue(charged, 0, 0);
	const once_outcome outcome = {
	    .response_status = 201,
	    .response_headers = "{\"Content-Type\": \"application/json\"}",
	    .response_body = {.data = body, .length = strlen(body)},
	    .result_type = "charge",
	    .result_id = PQgetvalue(charged, 0, 1),
	};
	code = once_complete(session, &intent, fence, &outcome, &error);
	if (code != ONCE_OK) {
		made = refuse(error);
		run(database, "ROLLBACK");
	} else if (!run(database, "COMMIT")) {
		/* Committed or not, 503 is safe: the gateway frees the intent for
		 * a retry only if it is not completed. */
		made = service_problem(503, "the charge was not committed, as far as is known");
	} else {
		made = (reply){.status = 201, .body = strdup(body)};
	}

done:
	PQclear(charged);
	once_session_close(session);
	return made;
}

int main(int argc, char **argv)
{
	static const service_kind handoff = {.name = "handoff-example", .path = "/handoff", .make = make};

	return service_main(&handoff, argc, argv);
}
