/* SPDX-License-Identifier: PostgreSQL */
/* nats.h: a connection to NATS, from a section's options. */
#pragma once

#include <nats/nats.h>

#include "broker.h"
#include "runtime.h"

/* The struct of a table with these rows begins with this. */
typedef struct nats_options {
	broker_options broker;
	const char *credentials_file;
} nats_options;

/* clang-format off */
#define NATS_OPTION_ROWS \
	BROKER_OPTION_ROWS("nats://host:4222,host:4222, or tls:// with TLS; a password without a user is a token"), \
	{.name = "credentials_file", .kind = CONFIG_TEXT, .offset = offsetof(nats_options, credentials_file), \
	 .help = "a user's .creds file (JWT and key)"}
/* clang-format on */

/* The section's address and credentials, checked. False: *problem (free it). */
bool nats_address_read(const config *config, const config_section *section, const nats_options *options,
                       broker_address **result, char **problem);
/*
 * Options for natsConnection_Connect; the caller adds to them and destroys them: servers in turn,
 * TLS with host name check, credentials, a ping every 5 s, connecting within connect_timeout_ms per
 * server, writing within 2 s, and no reconnecting (after a loss the caller connects again, and so
 * knows what is void); the caller may change them. False: problem, for people.
 */
bool nats_prepare(const broker_address *address, const char *credentials_file, const char *name, int connect_timeout_ms,
                  natsOptions **result, char problem[BROKER_PROBLEM_BYTES]);
/*
 * "cannot connect to nats://h:4222: Authorization Violation": the action, the server, and cnats's
 * reason (this thread's last error, or the connection's).
 */
void nats_problem(const broker_address *address, const char *what, natsStatus status, natsConnection *connection,
                  char problem[BROKER_PROBLEM_BYTES]);
/*
 * The answer to a published message. False: JetStream stored it ({"stream":"SHOP","seq":7}). True
 * and the text if it is an error ({"error":{"code":503,"err_code":10077,"description":"maximum
 * messages exceeded"}}; code: its HTTP-like code, 0: none) or not from JetStream at all.
 */
bool nats_answer_error(const char *data, size_t length, int *code, char problem[BROKER_PROBLEM_BYTES]);
/*
 * For such an error: true if the cause is JetStream's own state, or that of a stream's files, and
 * not the message or the stream's limits.
 */
bool nats_answer_is_absence(const char *data, size_t length);
/*
 * Which streams take a subject: the request to NATS_STREAM_NAMES (free it; NULL: it cannot be
 * asked). nats_no_stream reads the answer. True: JetStream says that no stream does. False: one
 * does, or the answer does not tell; problem has the details.
 */
#define NATS_STREAM_NAMES "$JS.API.STREAM.NAMES"
char *nats_ask_streams(const char *subject);
bool nats_no_stream(const char *data, size_t length, char problem[BROKER_PROBLEM_BYTES]);
