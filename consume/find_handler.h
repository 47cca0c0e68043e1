/* SPDX-License-Identifier: PostgreSQL */
/*
 * find_handler.h: looks up the function that a section names, on a new connection. Called by
 * handler_sql.c.
 */
#pragma once

#include "database.h"

/*
 * True: *statement (the old one is freed) calls the function as sql/handle.sql says. False:
 * *failure; FAILURE_FAULT describes what is wrong with the function.
 */
bool find_handler(database *database, const char *handler, char **statement, failure *failure);
