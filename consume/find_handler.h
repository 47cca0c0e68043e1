/* SPDX-License-Identifier: PostgreSQL */
/*
 * find_handler.h: the function that a section names, looked up on a new connection. Called by
 * handler_sql.c.
 */
#pragma once

#include "database.h"

/*
 * True: *statement (freed before) calls it as sql/handle.sql says. False: *failure; FAILURE_FAULT
 * says what is wrong with the function.
 */
bool find_handler(database *database, const char *handler, char **statement, failure *failure);
