/* SPDX-License-Identifier: PostgreSQL */
/*
 * dead_letter.h: the copy of a dead event for the relay's dead_topic. The event is dead only when
 * the sink has its copy; until then it is parked as one that retries. Used by delivery.c alone.
 */
#pragma once

#include "event.h"
#include "relay_settings.h"

/*
 * The event dies of `error`. From now on its copy is sent: the same message, with headers that say
 * what happened.
 */
void dead_letter_write(const relay_settings *settings, event *event, const char *error);
/*
 * Its copy was refused, perhaps because of its size: the next copy has the payload `null`. False:
 * the payload is small, or was replaced before.
 */
bool dead_letter_strip(event *event);
/* The error of a dead event whose copy is not sent yet. In the event's memory. */
const char *dead_letter_unsent(event *event, const char *problem);
