/* SPDX-License-Identifier: PostgreSQL */
/*
 * built.h: which brokers this build can speak to. meson says it (BROKER_WITH_KAFKA,
 * BROKER_WITH_NATS, BROKER_WITH_RABBITMQ: 1 or 0): one whose client library was not there is left
 * out.
 */
#pragma once

/*
 * The address of what a broker's file defines; NULL where the file is left out. An initialiser: the
 * name is then not linked.
 */
#define BUILT_KAFKA(object) (BROKER_WITH_KAFKA ? &(object) : NULL)
#define BUILT_NATS(object) (BROKER_WITH_NATS ? &(object) : NULL)
#define BUILT_RABBITMQ(object) (BROKER_WITH_RABBITMQ ? &(object) : NULL)

/* Of what needs no client library that could be missing. */
#define BUILT_ALWAYS(object) (&(object))

/*
 * The library that a broker of this name wants ("librdkafka") where it was left out; NULL: it is
 * built in, or no broker.
 */
const char *broker_left_out(const char *name);
