/* SPDX-License-Identifier: PostgreSQL */
/*
 * dead_letter.h: the copy of a dead event for the relay's dead_topic. The event is dead only when
 * the sink has its copy; until then it is parked as one that retries. Used by delivery.c alone.
 */
#pragma once

#include "event.h"
#include "relay_settings.h"

/*
 * The event dies of `error`, and what is sent for it from now on is its copy: what would have been
 * sent, with headers that tell what happened.
 */
void dead_letter_write(const relay_settings *settings, event *event, const char *error);
/*
 * Its copy was refused, perhaps for its size: the next one has `null` in place of the payload.
 * False: the payload is small, or left out already.
 */
bool dead_letter_strip(event *event);
/* What is wrong with one whose copy is not sent. In the event's memory. */
const char *dead_letter_unsent(event *event, const char *problem);
