/* SPDX-License-Identifier: PostgreSQL */
/*
 * dead_loop.h: finds a dead_topic that the section itself reads: each copy would die again, without
 * end. Used by the sources, which know what they read.
 */
#pragma once

#include "config.h"

/* The section's dead_topic; NULL: not set. */
const char *dead_loop_topic(const config_section *section);
/* Says that the dead_topic equals what the section reads, as that option has it (free it). */
char *dead_loop_problem(const config *config, const config_section *section, const char *option);
