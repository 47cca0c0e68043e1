/* SPDX-License-Identifier: PostgreSQL */
/* sources.c: the list of sources. A new one is added here and nowhere else. */
#include "source.h"

#include <string.h>

#include "built.h"

static const source_class *const sources[] = {BUILT_KAFKA(source_kafka), BUILT_RABBITMQ(source_rabbitmq),
                                              BUILT_NATS(source_nats), &source_sqs};

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
