/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka.c: see kafka.h. librdkafka makes the connections; here its properties are set, and its
 * messages collected.
 */
#include "kafka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define PREFIX "kafka."

static const broker_scheme scheme = {.plain = "kafka", .tls = "kafkas", .plain_port = 9092, .tls_port = 9093};

/* Set by other options, or needed for the library's reports to this program. */
static const kafka_fixed common[] = {
    {.name = "bootstrap.servers", .reason = "the option url sets it"},
    {.name = "metadata.broker.list", .reason = "the option url sets it"},
    {.name = "security.protocol", .reason = "the option url sets it: kafkas:// is TLS, a user is SASL"},
    {.name = "sasl.username", .reason = "the option user sets it"},
    {.name = "sasl.password", .reason = "the option password_file or password sets it"},
    {.name = "ssl.ca.location", .reason = "the option ca_file sets it"},
    {.name = "ssl.certificate.location", .reason = "the option certificate_file sets it"},
    {.name = "ssl.key.location", .reason = "the option key_file sets it"},
    {.name = "enabled_events", .reason = "it would suppress the brokers' answers"},
    {.name = "opaque", .reason = "pgonce uses it itself"},
    {.name = NULL},
};

/* ---- what the library says */

static void on_log(const rd_kafka_t *client, int level, const char *facility, const char *text)
{
	const kafka_watch *watch = rd_kafka_opaque(client);
	char quoted[RUNTIME_QUOTE_BYTES];

	if (watch == NULL) {
		return;
	}
	/* on_error gets a connection's failures too. */
	level = strcmp(facility, "FAIL") == 0 ? LOG_DEBUG : level;
	runtime_log(watch->speaker,
	            level <= LOG_ERR       ? RUNTIME_WARNING
	            : level <= LOG_WARNING ? RUNTIME_INFO
	                                   : RUNTIME_DEBUG,
	            "kafka", "facility=%s text=%s", facility, runtime_quote(text, quoted));
}

/* Called in the thread that polls the client, which also reads the problem. */
static void on_error(rd_kafka_t *client, int error, const char *reason, void *opaque)
{
	kafka_watch *watch = opaque;
	char quoted[RUNTIME_QUOTE_BYTES];
	bool repeated = watch->error == error;

	(void)client;
	/* That all are down follows from the error of each, which is more specific. */
	if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && watch->problem[0] != '\0') {
		return;
	}
	watch->error = error;
	snprintf(watch->problem, sizeof watch->problem, "%s", reason);
	runtime_log(watch->speaker, repeated ? RUNTIME_DEBUG : RUNTIME_WARNING, "kafka", "error=%s text=%s",
	            rd_kafka_err2name(error), runtime_quote(reason, quoted));
}

void kafka_watch_problem(kafka_watch *watch, char problem[BROKER_PROBLEM_BYTES])
{
	snprintf(problem, BROKER_PROBLEM_BYTES, "%s", watch->problem);
}

void kafka_watch_clear(kafka_watch *watch)
{
	watch->error = 0;
	watch->problem[0] = '\0';
}

void kafka_problem(kafka_watch *watch, rd_kafka_resp_err_t error, char problem[BROKER_PROBLEM_BYTES])
{
	/* After a timeout or a broken connection, the connection's last error is the reason. */
	bool why = error == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT || error == RD_KAFKA_RESP_ERR__TIMED_OUT ||
	           error == RD_KAFKA_RESP_ERR__TRANSPORT || error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN;

	snprintf(problem, BROKER_PROBLEM_BYTES, "%s (%s)%s%.150s", rd_kafka_err2str(error), rd_kafka_err2name(error),
	         why && watch->problem[0] != '\0' ? ": " : "", why ? watch->problem : "");
}

/* ---- its properties */

typedef struct making {
	const config *config;
	const config_section *section;
	rd_kafka_conf_t *conf;
	char **problem;
} making;

static bool set(const making *making, const config_entry *entry, const char *name, const char *value)
{
	char error[512];

	if (value == NULL || rd_kafka_conf_set(making->conf, name, value, error, sizeof error) == RD_KAFKA_CONF_OK) {
		return true;
	}
	*making->problem = config_problem(making->config, making->section, entry, "librdkafka refuses it: %s", error);
	return false;
}

static const kafka_fixed *fixed_find(const kafka_fixed *fixed, const char *name)
{
	for (; fixed != NULL && fixed->name != NULL; fixed++) {
		if (strcmp(fixed->name, name) == 0) {
			return fixed;
		}
	}
	return NULL;
}

/* The section's kafka.NAME entries. */
static bool set_passed(const making *making, const kafka_fixed *fixed)
{
	for (size_t i = 0; i < making->section->entry_count; i++) {
		const config_entry *entry = &making->section->entries[i];
		if (strncmp(entry->name, PREFIX, strlen(PREFIX)) != 0) {
			continue;
		}
		const char *name = entry->name + strlen(PREFIX);
		const kafka_fixed *row = fixed_find(common, name);
		row = row != NULL ? row : fixed_find(fixed, name);
		if (row != NULL && row->reason != NULL && (row->value == NULL || strcmp(row->value, entry->value) != 0)) {
			*making->problem = config_problem(making->config, making->section, entry, "cannot be set%s%s: %s",
			                                  row->value == NULL ? "" : " to anything but ",
			                                  row->value == NULL ? "" : row->value, row->reason);
			return false;
		}
		if (!set(making, entry, name, entry->value)) {
			return false;
		}
	}
	return true;
}

static bool set_fixed(const making *making, const kafka_fixed *fixed)
{
	for (; fixed != NULL && fixed->name != NULL; fixed++) {
		if (!set(making, NULL, fixed->name, fixed->value)) {
			return false;
		}
	}
	return true;
}

static bool set_address(const making *making, const broker_address *address)
{
	char *hosts = broker_address_hosts(address, "");
	bool sasl = address->user != NULL;
	const char *protocol = address->tls ? (sasl ? "SASL_SSL" : "SSL") : (sasl ? "SASL_PLAINTEXT" : "PLAINTEXT");
	bool done = hosts != NULL && set(making, NULL, "bootstrap.servers", hosts) &&
	            set(making, NULL, "security.protocol", protocol) && set(making, NULL, "client.id", "pgonce");

	free(hosts);
	if (done && sasl) {
		done = set(making, NULL, "sasl.mechanism", "PLAIN") && set(making, NULL, "sasl.username", address->user) &&
		       set(making, NULL, "sasl.password", address->password);
	}
	return done && set(making, NULL, "ssl.ca.location", address->ca_file) &&
	       set(making, NULL, "ssl.certificate.location", address->certificate_file) &&
	       set(making, NULL, "ssl.key.location", address->key_file);
}

bool kafka_configure(const config *config, const config_section *section, const kafka_options *options,
                     const kafka_fixed *fixed, kafka_watch *watch, rd_kafka_conf_t **result, char **problem)
{
	broker_address *address;

	*problem = NULL;
	if (!broker_address_read(config, section, &options->broker, &scheme, &address, problem)) {
		return false;
	}
	making making = {.config = config, .section = section, .conf = rd_kafka_conf_new(), .problem = problem};
	bool done = set_address(&making, address) && set_fixed(&making, fixed) && set_passed(&making, fixed);
	broker_address_free(address);
	if (done && watch == NULL) {
		rd_kafka_conf_destroy(making.conf);
		return true;
	}
	if (done) {
		kafka_watch_clear(watch);
		rd_kafka_conf_set_opaque(making.conf, watch);
		rd_kafka_conf_set_log_cb(making.conf, on_log);
		rd_kafka_conf_set_error_cb(making.conf, on_error);
		*result = making.conf;
		return true;
	}
	if (*problem == NULL) {
		*problem = config_problem(config, section, NULL, "memory is out");
	}
	rd_kafka_conf_destroy(making.conf);
	return false;
}

bool kafka_check(const config *config, const config_section *section, const kafka_options *options,
                 const kafka_fixed *fixed, rd_kafka_type_t type, char **problem)
{
	static const speaker checking = {.kind = "check", .name = "kafka"};
	kafka_watch watch = {.speaker = &checking};
	rd_kafka_conf_t *conf;
	char error[512];

	if (!kafka_configure(config, section, options, fixed, &watch, &conf, problem)) {
		return false;
	}
	/* A client without servers: librdkafka checks everything, and connects to nothing. */
	rd_kafka_conf_set_log_cb(conf, NULL);
	rd_kafka_conf_set(conf, "bootstrap.servers", "", error, sizeof error);
	rd_kafka_t *client = rd_kafka_new(type, conf, error, sizeof error);
	if (client == NULL) {
		rd_kafka_conf_destroy(conf);
		*problem = config_problem(config, section, NULL, "librdkafka refuses this: %s", error);
		return false;
	}
	rd_kafka_destroy(client);
	return true;
}
