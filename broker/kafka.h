/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka.h: librdkafka's configuration, out of a section's options: servers, TLS, SASL, and what
 * passes through as kafka.NAME.
 */
#pragma once

#include <librdkafka/rdkafka.h>

#include "broker.h"
#include "runtime.h"

/* A struct that a table belongs to begins with this. */
typedef struct kafka_options {
	broker_options broker;
} kafka_options;

/* clang-format off */
#define KAFKA_OPTION_ROWS \
	BROKER_OPTION_ROWS("kafka://host:9092,host:9092, or kafkas:// with TLS; " \
	                   "with a user: SASL, PLAIN unless kafka.sasl.mechanism says otherwise"), \
	{.name = "kafka.", .kind = CONFIG_PREFIX, \
	 .help = "kafka.NAME = VALUE: a property of librdkafka, as its own list names them, but for those that the promises rest on"}
/* clang-format on */

/*
 * A property that we set, and whether the section may say otherwise. Aliases need rows of their
 * own.
 */
typedef struct kafka_fixed {
	const char *name;
	const char *value; /* it is set to this; NULL: it is not set at all */
	/* why it cannot be set: "an event could be lost ..."; NULL: it can, the value is our default */
	const char *reason;
} kafka_fixed;

/*
 * What is known of a client's troubles. Its address is the client's opaque; used by the thread that
 * polls the client, alone.
 */
typedef struct kafka_watch {
	const speaker *speaker;
	void *user;                         /* the owner's */
	int error;                          /* librdkafka's code of the last trouble; 0: none */
	char problem[BROKER_PROBLEM_BYTES]; /* and its text; "" */
} kafka_watch;

/*
 * A configuration ready for rd_kafka_new, which takes it over: what the section says, with
 * callbacks for logs and errors that go to the watch (the opaque: set by the caller's kafka_watch,
 * which must outlive the client). `fixed` ends with name NULL. False: *problem (free it) names the
 * entry's line and what librdkafka said of it. watch NULL: as kafka_check, but each property alone;
 * there is no result.
 */
bool kafka_configure(const config *config, const config_section *section, const kafka_options *options,
                     const kafka_fixed *fixed, kafka_watch *watch, rd_kafka_conf_t **result, char **problem);
/*
 * Would a client be made of it? Also what librdkafka finds only when it sees all properties, and
 * the files of TLS. Connects to nothing.
 */
bool kafka_check(const config *config, const config_section *section, const kafka_options *options,
                 const kafka_fixed *fixed, rd_kafka_type_t type, char **problem);
/*
 * "Broker: Unknown topic or partition (UNKNOWN_TOPIC_OR_PART)", followed by what the watch knows,
 * where that says more.
 */
void kafka_problem(kafka_watch *watch, rd_kafka_resp_err_t error, char problem[BROKER_PROBLEM_BYTES]);
/*
 * The last thing that went wrong with a connection ("ssl://...: Disconnected"); "" where all is
 * well. kafka_watch_clear: all is well again.
 */
void kafka_watch_problem(kafka_watch *watch, char problem[BROKER_PROBLEM_BYTES]);
void kafka_watch_clear(kafka_watch *watch);
