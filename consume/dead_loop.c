/* SPDX-License-Identifier: PostgreSQL */
/* dead_loop.c: see dead_loop.h. */
#include "dead_loop.h"

#include <stddef.h>

const char *dead_loop_topic(const config_section *section)
{
	const config_entry *entry = config_entry_of(section, "dead_topic");

	return entry == NULL ? NULL : entry->value;
}

char *dead_loop_problem(const config *config, const config_section *section, const char *option)
{
	return config_problem(
	    config, section, config_entry_of(section, "dead_topic"),
	    "dead_topic: '%s' is also read, by %s: a copy of a dead message would die there again, and its "
	    "copy too, without end; name another topic",
	    dead_loop_topic(section), option);
}
