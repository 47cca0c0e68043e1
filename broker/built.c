/* SPDX-License-Identifier: PostgreSQL */
/* built.c: see built.h. */
#include "built.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

const char *broker_left_out(const char *name)
{
	static const struct {
		const char *name, *library;
		bool built;
	} brokers[] = {
	    {.name = "kafka", .library = "librdkafka", .built = BROKER_WITH_KAFKA},
	    {.name = "nats", .library = "libnats", .built = BROKER_WITH_NATS},
	    {.name = "rabbitmq", .library = "librabbitmq", .built = BROKER_WITH_RABBITMQ},
	};

	for (size_t i = 0; i < sizeof brokers / sizeof brokers[0]; i++) {
		if (strcmp(brokers[i].name, name) == 0) {
			return brokers[i].built ? NULL : brokers[i].library;
		}
	}
	return NULL;
}
