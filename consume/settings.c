/* SPDX-License-Identifier: PostgreSQL */
/* settings.c: the options of a consumer, and what must hold between them. */
#include "settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "built.h"
#include "http.h"

#define AT(member) offsetof(settings, member)

const config_option consume_options[] = {
    {.name = "dsn",
     .kind = CONFIG_TEXT,
     .offset = AT(dsn),
     .help =
         "the database, as libpq's connection string; default: the file's dsn, then --dsn, then libpq's environment"},
    {.name = "source",
     .kind = CONFIG_TEXT,
     .offset = AT(source),
     .required = true,
     .help = "where the messages come from: kafka, rabbitmq or nats"},
    {.name = "handler",
     .kind = CONFIG_TEXT,
     .offset = AT(handler),
     .help = "the SQL function that applies a message: schema.name, with one argument of type once.message. It runs in "
             "the transaction that "
             "remembers the message, as the role of the dsn. Either this or endpoint"},
    {.name = "endpoint",
     .kind = CONFIG_TEXT,
     .offset = AT(endpoint),
     .help = "an HTTP endpoint that applies a message: each is POSTed under a lease, with Idempotency-Key and the "
             "message's headers. 2xx: "
             "applied. Either this or handler"},
    {.name = "id",
     .kind = CONFIG_TEXT,
     .offset = AT(id),
     .standard = "header:Pgonce-Event-Id",
     .help = "what makes it one message, however often it is delivered: header:NAME, json:/pointer into the payload "
             "(RFC 6901), or "
             "coordinates (its place in the broker's log: no protection from a producer that sends twice). A message "
             "without one is "
             "dead at once; one that is not 1 to 255 printable ASCII characters is hashed to sha256:..."},
    {.name = "ids",
     .kind = CONFIG_CHOICE,
     .offset = AT(ids),
     .choices = "opaque|uuidv7",
     .standard = "opaque",
     .help =
         "opaque: an id is only a name, and a message of any age is applied; uuidv7: an id that is a UUIDv7 carries "
         "its day, which is forgotten as a whole, and a message of a forgotten day is dead. Not to be changed while "
         "the inbox remembers messages"},
    {.name = "order_by",
     .kind = CONFIG_TEXT,
     .offset = AT(order_by),
     .standard = "key",
     .help = "messages with the same key are applied in the order in which the broker gives them: key (the broker's "
             "own, else the header "
             "Pgonce-Key), header:NAME, json:/pointer, or none"},
    {.name = "tenant",
     .kind = CONFIG_TEXT,
     .offset = AT(tenant),
     .standard = "",
     .help = "the tenant of the inbox and of the handler's work"},
    {.name = "batch",
     .kind = CONFIG_NUMBER,
     .offset = AT(batch),
     .minimum = 1,
     .maximum = 10000,
     .standard = "500",
     .applies = "handler",
     .help = "how many messages one transaction applies at most"},
    {.name = "prefetch",
     .kind = CONFIG_NUMBER,
     .offset = AT(prefetch),
     .minimum = 1,
     .maximum = 100000,
     .standard = "2000",
     .help = "how many messages are held in memory at most"},
    {.name = "attempts",
     .kind = CONFIG_NUMBER,
     .offset = AT(attempts),
     .minimum = 1,
     .maximum = 1000,
     .standard = "10",
     .help = "after so many failed attempts a message is dead"},
    {.name = "retry_first",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_first_ms),
     .minimum = 1,
     .maximum = 86400000,
     .standard = "1s",
     .help = "the pause before the second attempt; doubled each time, with jitter"},
    {.name = "retry_most",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_most_ms),
     .minimum = 1,
     .maximum = 86400000,
     .standard = "5m",
     .help = "the longest pause between two attempts"},
    {.name = "on_dead",
     .kind = CONFIG_CHOICE,
     .offset = AT(on_dead),
     .choices = "block|skip",
     .standard = "block",
     .help = "what becomes of the later messages of a dead one's key: block: they wait for pgonce dead retry or "
             "discard; skip: they go on"},
    {.name = "parked_max",
     .kind = CONFIG_NUMBER,
     .offset = AT(parked_max),
     .minimum = 1,
     .maximum = 100000000,
     .standard = "100000",
     .help = "with so many messages parked (waiting, retrying, dead) no more are taken from the broker"},
    {.name = "dead_topic",
     .kind = CONFIG_TEXT,
     .offset = AT(dead_topic),
     .help = "a topic, subject or routing key of the same broker to which a copy of each dead message is sent, at "
             "least once"},
    {.name = "prepare",
     .kind = CONFIG_FLAG,
     .offset = AT(prepare),
     .standard = "yes",
     .help = "prepare statements once per connection; no: behind a pooler in transaction mode"},
    {.name = "lease",
     .kind = CONFIG_DURATION,
     .offset = AT(lease_ms),
     .minimum = 1000,
     .maximum = 3600000,
     .standard = "60s",
     .applies = "endpoint",
     .help =
         "how long a call holds its message before another process may take it over; renewed while the call goes on"},
    {.name = "timeout",
     .kind = CONFIG_DURATION,
     .offset = AT(timeout_ms),
     .minimum = 100,
     .maximum = 3600000,
     .standard = "30s",
     .applies = "endpoint",
     .help = "how long a call may take"},
    {.name = "in_flight",
     .kind = CONFIG_NUMBER,
     .offset = AT(in_flight),
     .minimum = 1,
     .maximum = 10000,
     .standard = "64",
     .applies = "endpoint",
     .help = "calls at once; of one key one at a time"},
    {.name = "response_max",
     .kind = CONFIG_BYTES,
     .offset = AT(response_max),
     .minimum = 0,
     .maximum = 16777216,
     .standard = "64k",
     .applies = "endpoint",
     .help = "how much of an answer's body is stored as the outcome"},
    {.name = "endpoint_ca_file",
     .kind = CONFIG_TEXT,
     .offset = AT(ca_file),
     .applies = "endpoint",
     .help = "the certificates that the endpoint's must be signed by; default: the system's"},
    {.name = "endpoint_certificate_file",
     .kind = CONFIG_TEXT,
     .offset = AT(certificate_file),
     .applies = "endpoint",
     .help = "our own certificate, for an endpoint that asks for one"},
    {.name = "endpoint_key_file",
     .kind = CONFIG_TEXT,
     .offset = AT(key_file),
     .applies = "endpoint",
     .help = "and its key"},
    {.name = NULL},
};

static const config_entry *entry_of(const config_section *section, const char *name)
{
	for (size_t i = 0; i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, name) == 0) {
			return &section->entries[i];
		}
	}
	return NULL;
}

static bool refuse(char **problem, char *text)
{
	*problem = text;
	return false;
}

static char *source_names(void)
{
	char *names = strdup("");

	for (size_t i = 0; source_at(i) != NULL && names != NULL; i++) {
		char *longer = NULL;
		if (asprintf(&longer, "%s%s%s", names, i == 0 ? "" : ", ", source_at(i)->name) < 0) {
			longer = NULL;
		}
		free(names);
		names = longer;
	}
	return names;
}

static bool check_source(const config *config, const config_section *section, settings *settings, char **problem)
{
	const char *library = broker_left_out(settings->source);

	if (library != NULL) {
		*problem = config_problem(config, section, entry_of(section, "source"),
		                          "this pgonce was built without %s: install %s and build it again", settings->source,
		                          library);
		return false;
	}
	settings->class = source_find(settings->source);
	if (settings->class == NULL) {
		char *names = source_names();
		*problem = config_problem(config, section, entry_of(section, "source"), "source: '%s' is none of %s",
		                          settings->source, names == NULL ? "" : names);
		free(names);
		return false;
	}
	const config_option *const tables[] = {consume_options, settings->class->options};
	return config_known(config, section, tables, sizeof tables / sizeof tables[0], problem) &&
	       settings->class->check(config, section, problem);
}

static bool check_file(const config *config, const config_section *section, const char *name, const char *path,
                       char **problem)
{
	return path == NULL || access(path, R_OK) == 0 ||
	       refuse(problem, config_problem(config, section, entry_of(section, name), "%s: cannot read %s: %s", name,
	                                      path, strerror(errno)));
}

static bool check_endpoint(const config *config, const config_section *section, const settings *settings,
                           char **problem)
{
	const http_settings http = {.allow_plain = true};
	/* What is before an @ may be a password. */
	const char *at = strrchr(settings->endpoint, '@');

	if (http_check_url(&http, settings->endpoint)[0] != '\0') {
		return refuse(problem, config_problem(config, section, entry_of(section, "endpoint"),
		                                      "endpoint: '%s' is no URL: http://HOST/PATH or https://HOST/PATH",
		                                      at == NULL ? settings->endpoint : at + 1));
	}
	if ((settings->certificate_file == NULL) != (settings->key_file == NULL)) {
		const char *given = settings->key_file == NULL ? "endpoint_certificate_file" : "endpoint_key_file";
		return refuse(problem,
		              config_problem(config, section, entry_of(section, given),
		                             "endpoint_certificate_file and endpoint_key_file belong together: give both"));
	}
	return check_file(config, section, "endpoint_ca_file", settings->ca_file, problem) &&
	       check_file(config, section, "endpoint_certificate_file", settings->certificate_file, problem) &&
	       check_file(config, section, "endpoint_key_file", settings->key_file, problem);
}

/* Exactly one of the two, and nothing that is only the other's. */
static bool check_way(const config *config, const config_section *section, const settings *settings, char **problem)
{
	bool has_handler = settings->handler != NULL && settings->handler[0] != '\0';
	bool has_endpoint = settings->endpoint != NULL && settings->endpoint[0] != '\0';

	if (has_handler == has_endpoint) {
		return refuse(problem,
		              config_problem(config, section, NULL,
		                             "one of handler (a SQL function) and endpoint (an HTTP URL) is required%s",
		                             has_handler ? ", not both" : ""));
	}
	if (has_endpoint && !check_endpoint(config, section, settings, problem)) {
		return false;
	}
	for (const config_option *option = consume_options; option->name != NULL; option++) {
		const config_entry *entry = entry_of(section, option->name);
		if (entry != NULL && option->applies != NULL &&
		    strcmp(option->applies, has_handler ? "handler" : "endpoint") != 0) {
			return refuse(problem,
			              config_problem(config, section, entry, "%s: only with %s", option->name, option->applies));
		}
	}
	return true;
}

static bool check_origins(const config *config, const config_section *section, settings *settings, char **problem)
{
	if (!origin_read(settings->id, &settings->id_from) || settings->id_from.kind == ORIGIN_NONE ||
	    settings->id_from.kind == ORIGIN_KEY) {
		return refuse(problem,
		              config_problem(config, section, entry_of(section, "id"),
		                             "id: '%s' is none of header:NAME, json:/pointer, coordinates", settings->id));
	}
	settings->id_from.opaque = settings->ids == IDS_OPAQUE;
	if (!origin_read(settings->order_by, &settings->key_from) || settings->key_from.kind == ORIGIN_COORDINATES) {
		return refuse(problem, config_problem(config, section, entry_of(section, "order_by"),
		                                      "order_by: '%s' is none of key, header:NAME, json:/pointer, none",
		                                      settings->order_by));
	}
	if (settings->id_from.kind == ORIGIN_COORDINATES && !settings->class->has_coordinates) {
		return refuse(problem,
		              config_problem(config, section, entry_of(section, "id"),
		                             "id: a message of %s has no coordinates; use header:NAME or json:/pointer",
		                             settings->class->name));
	}
	if (!settings->prepare && !settings->class->shares_order && settings->key_from.kind != ORIGIN_NONE) {
		return refuse(
		    problem,
		    config_problem(
		        config, section, entry_of(section, "prepare"),
		        "prepare: with %s the order of a key is kept by one process at a time, under a lock of its session, "
		        "which a pooler in transaction mode does not keep; connect directly, or set order_by = none",
		        settings->class->name));
	}
	return true;
}

static bool check_numbers(const config *config, const config_section *section, const settings *settings, char **problem)
{
	if (settings->batch > settings->prefetch) {
		const config_entry *entry = entry_of(section, "batch");
		return refuse(problem, config_problem(config, section, entry != NULL ? entry : entry_of(section, "prefetch"),
		                                      "batch: is more than prefetch (%lld)", (long long)settings->prefetch));
	}
	if (settings->retry_first_ms > settings->retry_most_ms) {
		return refuse(problem, config_problem(config, section, entry_of(section, "retry_first"),
		                                      "retry_first: is more than retry_most"));
	}
	if (settings->dead_topic != NULL && settings->class->publish == NULL) {
		return refuse(problem, config_problem(config, section, entry_of(section, "dead_topic"),
		                                      "dead_topic: %s cannot send", settings->class->name));
	}
	if (strlen(section->name) > 200) {
		return refuse(problem, config_problem(config, section, NULL, "the name of a consumer has at most 200 bytes"));
	}
	return true;
}

bool settings_read(const config *config, const config_section *section, settings *settings, char **problem)
{
	*settings = (struct settings){0};
	return config_apply(config, section, consume_options, settings, problem) &&
	       check_source(config, section, settings, problem) && check_way(config, section, settings, problem) &&
	       check_origins(config, section, settings, problem) && check_numbers(config, section, settings, problem);
}

bool consume_check(const config *config, const config_section *section, char **problem)
{
	settings settings;

	return settings_read(config, section, &settings, problem);
}
