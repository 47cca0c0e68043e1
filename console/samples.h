/* SPDX-License-Identifier: PostgreSQL */
/*
 * samples.h: the figures of the last hours, in memory, for the charts of the overview; and what
 * pgonce doctor says. A separate thread collects both. Of fixed size.
 */
#pragma once

#include "console.h"
#include "runtime.h"

typedef struct samples samples;

/* Starts the thread. NULL: it cannot be started. All is borrowed. */
samples *samples_start(const console_call *call, const speaker *speaker);
/* Waits for the thread: after runtime_stop. */
void samples_end(samples *samples);
/*
 * [{name, label, unit, last, max, points, from, to}]: `points` are those of a polyline, in a box of
 * 600 by 100. Empty until there are two samples. A new reference.
 */
json_t *samples_series(samples *samples);
/* A new reference, or NULL: it has not looked yet, or could not. */
json_t *samples_doctor(samples *samples);
