/* SPDX-License-Identifier: PostgreSQL */
/* rabbitmq.h: a connection to RabbitMQ, out of a section's options, and what a broken one said. */
#pragma once

#include "broker.h"
#include "librabbitmq.h"
#include "runtime.h"

#define RABBITMQ_CHANNEL 1
#define RABBITMQ_HEARTBEAT_S 10

/* A struct that a table belongs to begins with this. */
typedef struct rabbitmq_options {
	broker_options broker;
} rabbitmq_options;

/* clang-format off */
#define RABBITMQ_OPTION_ROWS \
	BROKER_OPTION_ROWS("amqp://host:5672,host:5672/vhost, or amqps:// with TLS; %2f or no path is the virtual host /")
/* clang-format on */

/* The section's address and credentials, checked. False: *problem (free it). */
bool rabbitmq_address_read(const config *config, const config_section *section, const rabbitmq_options *options,
                           broker_address **result, char **problem);
/*
 * Connects, logs in, opens channel RABBITMQ_CHANNEL; blocks, for at most about timeout_ms for each
 * host, in turn. Heartbeats of RABBITMQ_HEARTBEAT_S: librabbitmq sends and checks them in its own
 * calls, so that one of them must be made each few seconds. connection.blocked and consumer
 * cancellation are announced by the broker. *descriptor (NULL allowed) is set to the socket as soon
 * as there is one, and to -1 when it is gone: another thread may shutdown(2) it to break a call
 * off. NULL: problem, for people. Close with rabbitmq_close.
 */
amqp_connection_state_t rabbitmq_connect(const broker_address *address, const char *name, int timeout_ms,
                                         _Atomic int *descriptor, char problem[BROKER_PROBLEM_BYTES]);
/* Says goodbye if `polite` (waits for at most a second), then closes. Takes NULL. */
void rabbitmq_close(amqp_connection_state_t connection, bool polite);
/*
 * What an answer of the library or of the broker says: "404 NOT_FOUND - no exchange 'shop' in vhost
 * '/'".
 */
void rabbitmq_reply_problem(const char *what, amqp_rpc_reply_t reply, char problem[BROKER_PROBLEM_BYTES]);
void rabbitmq_status_problem(const char *what, int status, char problem[BROKER_PROBLEM_BYTES]);
/*
 * Is this frame a channel.close or connection.close? Then true, *code is AMQP's (404), problem its
 * text, and the broker is answered as it wants (close-ok). After a channel.close the channel is
 * gone and the connection lives; after connection.close all is over.
 */
bool rabbitmq_frame_closes(amqp_connection_state_t connection, const amqp_frame_t *frame, int *code,
                           bool *connection_too, char problem[BROKER_PROBLEM_BYTES]);
/* Opens the channel again after a channel.close. */
bool rabbitmq_channel_open(amqp_connection_state_t connection, char problem[BROKER_PROBLEM_BYTES]);
