/* SPDX-License-Identifier: PostgreSQL */
/*
 * broker.h: what relay/ and consume/ share of Kafka, RabbitMQ and NATS: where the broker is, TLS,
 * and as whom. A broker's own header (kafka.h, rabbitmq.h, nats.h) makes a connection of it. SQS
 * and SNS have their own (aws.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "config.h"

/*
 * The options that all brokers have. A reader's struct begins with one, so that the rows below fit
 * its table.
 */
typedef struct broker_options {
	const char *url;
	const char *user;
	const char *password;
	const char *password_file;
	const char *ca_file;
	const char *certificate_file;
	const char *key_file;
} broker_options;

/* Rows for a config_option table. url_help: the forms that the broker's url takes. */
/* clang-format off */
#define BROKER_OPTION_ROWS(url_help) \
	{.name = "url", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, url), .required = true, .help = url_help}, \
	{.name = "user", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, user), .help = "the user, where the url names none"}, \
	{.name = "password", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, password), \
	 .help = "the password, where the url has none; the file must then be closed to others"}, \
	{.name = "password_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, password_file), \
	 .help = "a file whose first line is the password; read at each start"}, \
	{.name = "ca_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, ca_file), \
	 .help = "PEM: who may have signed the broker's certificate; default: the system's"}, \
	{.name = "certificate_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, certificate_file), \
	 .help = "PEM: the certificate to show to the broker"}, \
	{.name = "key_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, key_file), .help = "PEM: the key of certificate_file"}
/* clang-format on */

/*
 * What a broker's url may look like:
 * scheme://[user[:password]@]host[:port][,host[:port]...][/path].
 */
typedef struct broker_scheme {
	const char *plain, *tls; /* "amqp", "amqps" */
	int plain_port, tls_port;
	bool has_path;
} broker_scheme;

typedef struct broker_host {
	char *name; /* an IPv6 address without its brackets */
	int port;
} broker_host;

/* Where a broker is and as whom, checked. Everything is the address's own; NULL: not given. */
typedef struct broker_address {
	bool tls;
	broker_host *hosts; /* at least one */
	size_t host_count;
	char *user, *password; /* percent-decoded, as path */
	char *path;            /* what follows the host's "/"; NULL: there is no "/" */
	char *shown;           /* the url for people: without user and password */
	char *ca_file, *certificate_file, *key_file;
} broker_address;

/*
 * Reads and checks the options of a section: the url's form, one source of each credential, files
 * that are there. False: *problem (free it). The password's file is read here. broker_address_free
 * takes NULL.
 */
bool broker_address_read(const config *config, const config_section *section, const broker_options *options,
                         const broker_scheme *scheme, broker_address **result, char **problem);
void broker_address_free(broker_address *address);
/*
 * "host:port,host:port" of all hosts, with `prefix` before each ("nats://"); free it. NULL: memory
 * is out.
 */
char *broker_address_hosts(const broker_address *address, const char *prefix);

/*
 * Whether a broker ("nats", "rabbitmq", ...) or its client libraries act on a header of this name
 * instead of passing it on: it deletes, routes, delays, drops or refuses the message. Whoever sends
 * a message of somebody else's must not pass such a name on as it is.
 */
bool broker_header_steers(const char *broker, const char *name);

/* Texts of problems have this size here, as those of sinks and sources. */
#define BROKER_PROBLEM_BYTES 256
