/* SPDX-License-Identifier: PostgreSQL */
/* remains.h: processes that an earlier pgonce run has left running. For run.c. */
#pragma once

#include <pgonce.h>

/*
 * The processes on this host that a CMD of this intent has left, as far as this user may see them:
 * "still running here: 4711 (import), ..."; the caller frees it. NULL: none is visible.
 */
char *remains_find(const once_intent *intent);
