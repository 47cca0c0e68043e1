/* SPDX-License-Identifier: PostgreSQL */
/* sources.c: the list of sources. A new one is added here and nowhere else. */
#include "source.h"

#include <string.h>

static const source_class *const sources[] = {&source_kafka, &source_rabbitmq, &source_nats};

const source_class *source_at(size_t index)
{
	return index < sizeof sources / sizeof sources[0] ? sources[index] : NULL;
}

const source_class *source_find(const char *name)
{
	for (size_t i = 0; source_at(i) != NULL; i++) {
		if (strcmp(source_at(i)->name, name) == 0) {
			return source_at(i);
		}
	}
	return NULL;
}
