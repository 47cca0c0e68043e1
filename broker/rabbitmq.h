/* SPDX-License-Identifier: PostgreSQL */
/* rabbitmq.h: a connection to RabbitMQ, from a section's options, and the reason of a broken
 * one. */
#pragma once

#include "broker.h"
#include "librabbitmq.h"
#include "runtime.h"

#define RABBITMQ_CHANNEL 1
#define RABBITMQ_HEARTBEAT_S 10

/* The struct of a table with these rows begins with this. */
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
 * Connects, logs in, opens channel RABBITMQ_CHANNEL; blocks, for at most about timeout_ms per host,
 * in turn. Heartbeats of RABBITMQ_HEARTBEAT_S: librabbitmq sends and checks them inside its calls,
 * so one must be made every few seconds. The broker announces connection.blocked and consumer
 * cancellation. *descriptor (NULL allowed) is set to the socket once it is open, and to -1 when it
 * is closed: another thread may shutdown(2) it to abort a call. NULL: problem, for people. Close
 * with rabbitmq_close.
 */
amqp_connection_state_t rabbitmq_connect(const broker_address *address, const char *name, int timeout_ms,
                                         _Atomic int *descriptor, char problem[BROKER_PROBLEM_BYTES]);
/* If `polite`, closes the connection properly first (waits at most a second). Accepts NULL. */
void rabbitmq_close(amqp_connection_state_t connection, bool polite);
/*
 * The error in an answer of the library or of the broker: "404 NOT_FOUND - no exchange 'shop' in
 * vhost '/'".
 */
void rabbitmq_reply_problem(const char *what, amqp_rpc_reply_t reply, char problem[BROKER_PROBLEM_BYTES]);
void rabbitmq_status_problem(const char *what, int status, char problem[BROKER_PROBLEM_BYTES]);
/*
 * True: the frame is a channel.close or connection.close; *code is AMQP's (404), problem its text,
 * and the broker gets the required close-ok. After a channel.close the channel is gone and the
 * connection lives; after connection.close the connection is gone.
 */
bool rabbitmq_frame_closes(amqp_connection_state_t connection, const amqp_frame_t *frame, int *code,
                           bool *connection_too, char problem[BROKER_PROBLEM_BYTES]);
/* Opens the channel again after a channel.close. */
bool rabbitmq_channel_open(amqp_connection_state_t connection, char problem[BROKER_PROBLEM_BYTES]);
