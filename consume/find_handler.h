/* SPDX-License-Identifier: PostgreSQL */
/*
 * find_handler.h: the function that a section names, looked up on a new connection. Called by
 * handler_sql.c.
 */
#pragma once

#include "database.h"

/*
 * What is wrong with it (free it); NULL: all is well, and *statement (freed before) calls it as
 * sql/handle.sql says. *failure: it could not be asked.
 */
char *find_handler(database *database, const char *handler, char **statement, failure *failure);
