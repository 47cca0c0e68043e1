/* SPDX-License-Identifier: PostgreSQL */
/*
 * line.h: which messages wait for each other. What a pgonce relay sends says whose aggregate it is
 * of, and then these are ordered as the relay orders them: by tenant, type and id. Called by
 * identify.c and parked.c.
 */
#pragma once

#include "arena.h"
#include "source.h"

/*
 * The line of a message with this key, which may be NULL: the key itself, unless its headers name a
 * tenant or an aggregate's type: then "TENANT/TYPE/KEY", or "TYPE/KEY" without a tenant.
 */
const char *line_of(const source_header *headers, size_t count, const char *key, arena *arena);
/* The key that line_of made this line of. */
const char *line_key(const source_header *headers, size_t count, const char *line, arena *arena);
