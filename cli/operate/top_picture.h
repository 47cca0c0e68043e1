/* SPDX-License-Identifier: PostgreSQL */
/*
 * top_picture.h: the output of pgonce top: text, from answers of the database. Knows neither the
 * terminal nor the database, and no clock but the database's.
 */
#pragma once

#include <jansson.h>

/* Joins an answer of SQL_TOP_RUNNING to one of SQL_TOP: what runs, by scope and in total. */
void top_join(json_t *now, const json_t *running);
/* Prints it, with the attempts since the counters began. */
void top_print(const json_t *now);
