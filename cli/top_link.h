/* SPDX-License-Identifier: PostgreSQL */
/*
 * top_link.h: one connection that never blocks: questions are sent, answers taken when they are there. One that is lost is made anew, as
 * often as it takes, and what is wrong is told meanwhile. For pgonce top.
 */
#pragma once

#include <poll.h>

#include "connect.h"

typedef struct top_link top_link;

/* Begins to connect. */
top_link *top_link_open(const char *conninfo);
void top_link_close(top_link *link);
/* Does what can be done without waiting. */
void top_link_go_on(top_link *link);
/* What to wait for; shortens *wait_ms to when top_link_go_on has something to do of itself. */
void top_link_poll(const top_link *link, struct pollfd *waited, int64_t *wait_ms);
/* Connected, and no question is open? */
bool top_link_is_idle(const top_link *link);
void top_link_ask(top_link *link, enum sql_id id, int parameter_count, const char *const *parameters);
/* The answer to the open question, whole, and how long it took; NULL: not yet. The caller clears. */
PGresult *top_link_take(top_link *link, enum sql_id *id, int64_t *took_ms);
/* An answer was an error: to be told as trouble until the next good answer. */
void top_link_note(top_link *link, const char *message);
/* "connection lost, retrying: ...", or NULL; free it. */
char *top_link_trouble(const top_link *link);
int64_t top_link_clock_ms(void);
