/* SPDX-License-Identifier: PostgreSQL */
/*
 * built.h: the brokers that this build supports. meson sets it (BROKER_WITH_KAFKA,
 * BROKER_WITH_NATS, BROKER_WITH_RABBITMQ: 1 or 0): a broker without its client library is left out.
 */
#pragma once

/*
 * The address of an object in a broker's file; NULL if the file is left out. As an initialiser, so
 * that the name is then not linked.
 */
#define BUILT_KAFKA(object) (BROKER_WITH_KAFKA ? &(object) : NULL)
#define BUILT_NATS(object) (BROKER_WITH_NATS ? &(object) : NULL)
#define BUILT_RABBITMQ(object) (BROKER_WITH_RABBITMQ ? &(object) : NULL)

/* Of what needs no client library that could be missing. */
#define BUILT_ALWAYS(object) (&(object))

/*
 * The missing library ("librdkafka") of a broker that was left out; NULL: it is built in, or is not
 * a broker.
 */
const char *broker_left_out(const char *name);
