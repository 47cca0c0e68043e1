/* SPDX-License-Identifier: PostgreSQL */
/* find_handler.c: see find_handler.h. */
#include "find_handler.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "sql.h"

#define HANDLER_PLACE "pgonce_handler"

/* sql/handle.sql with the handler's name filled in. */
static char *statement_with(const char *name)
{
	const char *text = sql_queries[SQL_HANDLE].text;
	const char *place = strstr(text, HANDLER_PLACE);

	assert(place != NULL && name[0] != '\0');
	return memory_format("%.*s%s%s", (int)(place - text), text, name, place + strlen(HANDLER_PLACE));
}

bool find_handler(database *database, const char *handler, char **statement, failure *failure)
{
	parameters named = {0};

	parameters_text(&named, handler);
	bool found = false;
	PGresult *result = database_query(database, SQL_FIND_HANDLER, &named, failure);
	if (result == NULL) {
		if (failure->kind == FAILURE_FAULT || failure->kind == FAILURE_CONTRACT) {
			char *said = memory_format("%s", failure->text);
			failure_set(failure, FAILURE_FAULT,
			            "'%s' cannot be looked up as a function's name (schema.name, quoted where SQL would): %s",
			            handler, said);
			free(said);
		}
		return false;
	}
	const char *name = PQgetvalue(result, 0, 0);
	const char *others = PQgetvalue(result, 0, 4);
	const char *encoding = PQgetvalue(result, 0, 5);
	const char *role = PQgetvalue(result, 0, 6);
	if (strcmp(encoding, "UTF8") != 0) {
		failure_set(failure, FAILURE_FAULT, "the database's encoding is %s: messages need one in UTF8", encoding);
	} else if (PQgetisnull(result, 0, 0) && others[0] != '\0') {
		failure_set(
		    failure, FAILURE_FAULT,
		    "there is no function %s(once.message), only %s: a handler takes one argument, of type once.message",
		    handler, others);
	} else if (PQgetisnull(result, 0, 0)) {
		failure_set(failure, FAILURE_FAULT,
		            "there is no function %s(once.message) visible to the role %s: create it, or name it "
		            "with its schema",
		            handler, role);
	} else if (!result_is_true(result, 0, 1)) {
		failure_set(failure, FAILURE_FAULT,
		            "%s is a procedure, an aggregate or a window function: a handler is a function, which "
		            "cannot commit",
		            handler);
	} else if (result_is_true(result, 0, 2)) {
		failure_set(failure, FAILURE_FAULT, "%s returns a set: a handler returns void or one value, which is ignored",
		            handler);
	} else if (!result_is_true(result, 0, 3)) {
		failure_set(failure, FAILURE_FAULT,
		            "the role %s may not execute %s: GRANT EXECUTE on it, and USAGE on its schema", role, handler);
	} else {
		free(*statement);
		*statement = statement_with(name);
		found = true;
	}
	PQclear(result);
	return found;
}
