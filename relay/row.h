/* SPDX-License-Identifier: PostgreSQL */
/* row.h: an event as PostgreSQL sends it, in its binary formats. Used by reader.c alone. */
#pragma once

#include <libpq-fe.h>

#include "event.h"

/* The event in row 0, with the columns of relay_fetch.sql. */
event *row_event(const PGresult *result);
