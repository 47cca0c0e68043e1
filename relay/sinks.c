/* SPDX-License-Identifier: PostgreSQL */
/* sinks.c: the list of sinks. A new one is added here and nowhere else. */
#include "sink.h"

#include <string.h>

#include "built.h"

static const sink_class *const sinks[] = {BUILT_KAFKA(sink_kafka),
                                          BUILT_NATS(sink_nats),
                                          BUILT_RABBITMQ(sink_rabbitmq),
                                          &sink_sns,
                                          &sink_sqs,
                                          &sink_stdout,
                                          &sink_webhook};

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
