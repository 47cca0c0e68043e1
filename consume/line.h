/* SPDX-License-Identifier: PostgreSQL */
/*
 * line.h: which messages wait for each other. A message from a pgonce relay names its aggregate;
 * such messages are ordered as the relay orders them: by tenant, type and id. Called by identify.c
 * and parked.c.
 */
#pragma once

#include "arena.h"
#include "source.h"

/*
 * The line of a message with this key (may be NULL): the key itself, unless its headers name a
 * tenant or an aggregate's type: then "TENANT/TYPE/KEY", or "TYPE/KEY" without a tenant.
 */
const char *line_of(const source_header *headers, size_t count, const char *key, arena *arena);
/* The key from which line_of made this line. */
const char *line_key(const source_header *headers, size_t count, const char *line, arena *arena);
