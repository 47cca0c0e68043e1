/* SPDX-License-Identifier: PostgreSQL */
/*
 * broker.h: shared by relay/ and consume/ for Kafka, RabbitMQ and NATS: the broker's address, TLS,
 * and credentials. Each broker's own header (kafka.h, rabbitmq.h, nats.h) connects with them. SQS
 * and SNS have aws.h.
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

/* Rows for a config_option table. url_help: the accepted forms of the broker's url. */
/* clang-format off */
#define BROKER_OPTION_ROWS(url_help) \
	{.name = "url", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, url), .required = true, .help = url_help}, \
	{.name = "user", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, user), .help = "the user, if the url names none"}, \
	{.name = "password", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, password), \
	 .help = "the password, if it is not in the url; other users must then not be able to read the file"}, \
	{.name = "password_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, password_file), \
	 .help = "a file whose first line is the password; read at each start"}, \
	{.name = "ca_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, ca_file), \
	 .help = "PEM: the CA certificates for the broker's certificate; default: the system's"}, \
	{.name = "certificate_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, certificate_file), \
	 .help = "PEM: the client certificate for the broker"}, \
	{.name = "key_file", .kind = CONFIG_TEXT, .offset = offsetof(broker_options, key_file), .help = "PEM: the key of certificate_file"}
/* clang-format on */

/* The form of a broker's url: scheme://[user[:password]@]host[:port][,host[:port]...][/path]. */
typedef struct broker_scheme {
	const char *plain, *tls; /* "amqp", "amqps" */
	int plain_port, tls_port;
	bool has_path;
} broker_scheme;

typedef struct broker_host {
	char *name; /* an IPv6 address without its brackets */
	int port;
} broker_host;

/* A broker's address and credentials, checked. It owns all its strings; NULL: not given. */
typedef struct broker_address {
	bool tls;
	broker_host *hosts; /* at least one */
	size_t host_count;
	char *user, *password; /* percent-decoded, like path */
	char *path;            /* the text after the host's "/"; NULL: there is no "/" */
	char *shown;           /* the url for people: without user and password */
	char *ca_file, *certificate_file, *key_file;
} broker_address;

/*
 * Reads and checks a section's options: the url's form, one source of each credential, existing
 * files. False: *problem (free it). The password's file is read here. broker_address_free accepts
 * NULL.
 */
bool broker_address_read(const config *config, const config_section *section, const broker_options *options,
                         const broker_scheme *scheme, broker_address **result, char **problem);
void broker_address_free(broker_address *address);
/*
 * "host:port,host:port" of all hosts, with `prefix` before each ("nats://"); free it. NULL: out of
 * memory.
 */
char *broker_address_hosts(const broker_address *address, const char *prefix);

/*
 * True: a broker ("nats", "rabbitmq", ...) or its client libraries act on a header of this name
 * instead of only passing it on: it deletes, routes, delays, drops or refuses the message. A
 * program that forwards another producer's message must not pass such a header on unchanged.
 */
bool broker_header_steers(const char *broker, const char *name);

/* The size of problem texts, as in sinks and sources. */
#define BROKER_PROBLEM_BYTES 256
