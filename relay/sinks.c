/* SPDX-License-Identifier: PostgreSQL */
/* sinks.c: finds a sink. sink.h lists them. */
#include "sink.h"

#include <string.h>

#include "built.h"

#define SINK_OF(name, built) built(sink_##name),
static const sink_class *const sinks[] = {SINKS(SINK_OF)};

const sink_class *sink_at(size_t index)
{
	for (size_t i = 0; i < sizeof sinks / sizeof sinks[0]; i++) {
		if (sinks[i] != NULL && index-- == 0) {
			return sinks[i];
		}
	}
	return NULL;
}

const sink_class *sink_find(const char *name)
{
	size_t i = 0;
	const sink_class *each = sink_at(i);

	while (each != NULL && strcmp(each->name, name) != 0) {
		each = sink_at(++i);
	}
	return each;
}
