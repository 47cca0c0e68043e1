/* SPDX-License-Identifier: PostgreSQL */
/* sources.c: finds a source. source.h lists them. */
#include "source.h"

#include <string.h>

#include "built.h"

#define SOURCE_OF(name, built) built(source_##name),
static const source_class *const sources[] = {SOURCES(SOURCE_OF)};

const source_class *source_at(size_t index)
{
	for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
		if (sources[i] != NULL && index-- == 0) {
			return sources[i];
		}
	}
	return NULL;
}

const source_class *source_find(const char *name)
{
	size_t i = 0;
	const source_class *each = source_at(i);

	while (each != NULL && strcmp(each->name, name) != 0) {
		each = source_at(++i);
	}
	return each;
}
