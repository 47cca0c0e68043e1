/* SPDX-License-Identifier: PostgreSQL */
/* sinks.c: the list of sinks. A new one is added here and nowhere else. */
#include "sink.h"

#include <string.h>

static const sink_class *const sinks[] = {&sink_kafka, &sink_nats, &sink_rabbitmq, &sink_stdout, &sink_webhook};

const sink_class *sink_at(size_t index)
{
	return index < sizeof sinks / sizeof sinks[0] ? sinks[index] : NULL;
}

const sink_class *sink_find(const char *name)
{
	for (size_t i = 0; sink_at(i) != NULL; i++) {
		if (strcmp(sink_at(i)->name, name) == 0) {
			return sink_at(i);
		}
	}
	return NULL;
}
