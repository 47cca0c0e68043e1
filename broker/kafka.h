/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka.h: librdkafka's configuration, from a section's options: servers, TLS, SASL, and the
 * properties passed on as kafka.NAME.
 */
#pragma once

#include <librdkafka/rdkafka.h>

#include "broker.h"
#include "runtime.h"

/* The struct of a table with these rows begins with this. */
typedef struct kafka_options {
	broker_options broker;
} kafka_options;

/* clang-format off */
#define KAFKA_OPTION_ROWS \
	BROKER_OPTION_ROWS("kafka://host:9092,host:9092, or kafkas:// with TLS; " \
	                   "with a user: SASL, PLAIN unless kafka.sasl.mechanism says otherwise"), \
	{.name = "kafka.", .kind = CONFIG_PREFIX, \
	 .help = "kafka.NAME = VALUE: a property of librdkafka, by its own name, except those that pgonce's promises depend on"}
/* clang-format on */

/* A property that we set, and whether the section may override it. Aliases need their own rows. */
typedef struct kafka_fixed {
	const char *name;
	const char *value; /* its value; NULL: it is not set */
	/* why it cannot be set: "an event could be lost ..."; NULL: it can, the value is our default */
	const char *reason;
} kafka_fixed;

/*
 * The state of a client's connections. The client's opaque is its address; used only by the thread
 * that polls the client.
 */
typedef struct kafka_watch {
	const speaker *speaker;
	void *user;                         /* the owner's */
	int error;                          /* librdkafka's code of the last error; 0: none */
	char problem[BROKER_PROBLEM_BYTES]; /* and its text; "" */
} kafka_watch;

/*
 * A configuration for rd_kafka_new, which takes it over: the section's properties, with callbacks
 * for logs and errors that write to the watch (the opaque: set by the caller's kafka_watch, which
 * must outlive the client). `fixed` ends with name NULL. False: *problem (free it) has the entry's
 * line and librdkafka's reason. watch NULL: as kafka_check, but each property alone; there is no
 * result.
 */
bool kafka_configure(const config *config, const config_section *section, const kafka_options *options,
                     const kafka_fixed *fixed, kafka_watch *watch, rd_kafka_conf_t **result, char **problem);
/*
 * True: a client could be created with it. This includes checks that librdkafka makes only with all
 * properties, and the TLS files. Connects to nothing.
 */
bool kafka_check(const config *config, const config_section *section, const kafka_options *options,
                 const kafka_fixed *fixed, rd_kafka_type_t type, char **problem);
/*
 * "Broker: Unknown topic or partition (UNKNOWN_TOPIC_OR_PART)", followed by the watch's error if
 * that is more specific.
 */
void kafka_problem(kafka_watch *watch, rd_kafka_resp_err_t error, char problem[BROKER_PROBLEM_BYTES]);
/*
 * The last error of a connection ("ssl://...: Disconnected"); "": no error.
 * kafka_watch_clear: removes it.
 */
void kafka_watch_problem(kafka_watch *watch, char problem[BROKER_PROBLEM_BYTES]);
void kafka_watch_clear(kafka_watch *watch);
