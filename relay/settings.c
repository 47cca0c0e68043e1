/* SPDX-License-Identifier: PostgreSQL */
/* settings.c: see settings.h. */
#include "settings.h"

#include <stdlib.h>
#include <string.h>

#include "built.h"
#include "conninfo.h"
#include "memory.h"

enum {
	NAME_BYTES_MAX = 63 /* once.relay */
};

#define AT(member) offsetof(relay_settings, member)

const config_option relay_options[] = {
    {.name = "dsn",
     .kind = CONFIG_TEXT,
     .offset = AT(dsn),
     .help = "the database, as libpq reads it; default: the file's dsn, then --dsn, then libpq's environment. Not "
             "through a pooler in "
             "transaction mode: a relay holds a lock of its session"},
    {.name = "sink",
     .kind = CONFIG_TEXT,
     .offset = AT(sink_name),
     .required = true,
     .help = "where to: kafka, rabbitmq, nats, webhook, or stdout"},
    {.name = "route",
     .kind = CONFIG_REPEATED,
     .help = "TOPIC -> DESTINATION; may come more than once, the first that matches wins. TOPIC is one topic, or ends "
             "in *. {topic} and {tenant} "
             "are put into DESTINATION. An event that no route matches is not this relay's. Default: every topic, to a "
             "destination of its name"},
    {.name = "envelope",
     .kind = CONFIG_CHOICE,
     .offset = AT(envelope_form),
     .choices = "plain|cloudevents",
     .standard = "plain",
     .help = "the headers: pgonce's own, or CloudEvents 1.0 in the binary mode of the sink's protocol"},
    {.name = "ce_source",
     .kind = CONFIG_TEXT,
     .offset = AT(ce_source),
     .help = "CloudEvents' source, a URI reference; default: /pgonce/ and the relay's name"},
    {.name = "batch",
     .kind = CONFIG_NUMBER,
     .offset = AT(batch),
     .minimum = 1,
     .maximum = 10000,
     .standard = "1000",
     .help =
         "how many events are read, delivered and settled together; after a crash at most so many are delivered again"},
    {.name = "in_flight",
     .kind = CONFIG_NUMBER,
     .offset = AT(in_flight),
     .minimum = 1,
     .maximum = 10000,
     .help = "how many events the sink has at a time at most, of each aggregate one; no more than batch come together. "
             "Default: the sink's "
             "own: kafka 4000, nats and rabbitmq 1000, stdout 1000, webhook 64"},
    {.name = "attempts",
     .kind = CONFIG_NUMBER,
     .offset = AT(attempts),
     .minimum = 1,
     .maximum = 1000000,
     .standard = "10",
     .help = "how often an event is tried before it is dead; a sink that is away as a whole does not count, one of a "
             "webhook's several hosts does (docs/events.md)"},
    {.name = "retry_first",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_first_ms),
     .minimum = 1,
     .maximum = INT64_C(7) * 86400 * 1000,
     .standard = "1s",
     .help =
         "the wait after an event's first failure; doubled with each further one, and random between half and whole"},
    {.name = "retry_most",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_most_ms),
     .minimum = 1,
     .maximum = INT64_C(30) * 86400 * 1000,
     .standard = "5m",
     .help = "the longest wait between two attempts; a receiver that asks for a time (Retry-After) gets it, up to this "
             "or an hour"},
    {.name = "timeout",
     .kind = CONFIG_DURATION,
     .offset = AT(timeout_ms),
     .minimum = 10,
     .maximum = INT64_C(3600) * 1000,
     .standard = "30s",
     .help = "how long a delivery may take; it has failed then. Also how long stopping waits for what is in flight"},
    {.name = "on_dead",
     .kind = CONFIG_CHOICE,
     .offset = AT(on_dead),
     .choices = "block|skip",
     .standard = "block",
     .help = "what a dead event does to later ones of its aggregate: they wait until an operator decides (pgonce "
             "outbox), or go on without it"},
    {.name = "parked_max",
     .kind = CONFIG_NUMBER,
     .offset = AT(parked_max),
     .minimum = 1,
     .maximum = INT64_C(100000000),
     .standard = "100000",
     .help = "with more parked events than this the relay reads nothing new, only retries"},
    {.name = "poll_most",
     .kind = CONFIG_DURATION,
     .offset = AT(poll_most_ms),
     .minimum = 1,
     .maximum = 60000,
     .standard = "50ms",
     .help = "the longest wait between two looks at the outbox; while events come it looks each millisecond"},
    {.name = "start",
     .kind = CONFIG_CHOICE,
     .offset = AT(start),
     .choices = "oldest|now",
     .standard = "oldest",
     .help = "where a relay begins that the database does not know yet: with the oldest event that is kept, or with "
             "those to come"},
    {.name = NULL}};

static const config_entry *entry_of(const config_section *section, const char *name)
{
	for (size_t i = 0; i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, name) == 0) {
			return &section->entries[i];
		}
	}
	return NULL;
}

static bool find_sink(const config *config, const config_section *section, relay_settings *settings, char **problem)
{
	settings->sink = sink_find(settings->sink_name);
	if (settings->sink != NULL) {
		return true;
	}
	const char *library = broker_left_out(settings->sink_name);
	if (library != NULL) {
		*problem = config_problem(config, section, entry_of(section, "sink"),
		                          "this pgonce was built without %s: install %s and build it again",
		                          settings->sink_name, library);
		return false;
	}
	char *names = memory_copy("");
	for (size_t i = 0; sink_at(i) != NULL; i++) {
		char *longer = memory_format("%s%s%s", names, i == 0 ? "" : ", ", sink_at(i)->name);
		free(names);
		names = longer;
	}
	*problem = config_problem(config, section, entry_of(section, "sink"), "there is no sink '%s'; there are: %s",
	                          settings->sink_name, names);
	free(names);
	return false;
}

static bool read_source(const config *config, const config_section *section, relay_settings *settings, char **problem)
{
	settings->source =
	    settings->ce_source != NULL ? memory_copy(settings->ce_source) : memory_format("/pgonce/%s", section->name);
	for (const char *at = settings->source; *at != '\0'; at++) {
		if ((unsigned char)*at <= ' ' || (unsigned char)*at >= 0x7f) {
			*problem = config_problem(config, section, entry_of(section, "ce_source"),
			                          "must be a URI reference: printable ASCII without spaces; '%s' is none",
			                          settings->source);
			return false;
		}
	}
	return true;
}

static bool check_dsn(const config *config, const config_section *section, const relay_settings *settings,
                      char **problem)
{
	char wrong[CONNINFO_PROBLEM_BYTES];

	if (settings->dsn == NULL || conninfo_good(settings->dsn, wrong)) {
		return true;
	}
	*problem = config_problem(config, section, entry_of(section, "dsn"), "%s", wrong);
	return false;
}

static bool check_waits(const config *config, const config_section *section, const relay_settings *settings,
                        char **problem)
{
	if (settings->retry_first_ms <= settings->retry_most_ms) {
		return true;
	}
	const config_entry *entry = entry_of(section, "retry_first");
	*problem = config_problem(config, section, entry != NULL ? entry : entry_of(section, "retry_most"),
	                          "the first wait is longer than the longest: retry_first is at most retry_most");
	return false;
}

bool relay_settings_read(const config *config, const config_section *section, relay_settings *result, char **problem)
{
	relay_settings settings = {.name = section->name};

	if (section->name[0] == '\0' || strlen(section->name) > NAME_BYTES_MAX) {
		*problem = config_problem(config, section, NULL, "a relay's name has 1 to %d bytes", NAME_BYTES_MAX);
		return false;
	}
	if (!config_apply(config, section, relay_options, &settings, problem) ||
	    !find_sink(config, section, &settings, problem)) {
		return false;
	}
	const config_option *tables[] = {relay_options, settings.sink->options};
	const config_entry *url = strcmp(settings.sink->name, "webhook") == 0 ? entry_of(section, "url") : NULL;
	bool good = config_known(config, section, tables, 2, problem) && check_dsn(config, section, &settings, problem) &&
	            check_waits(config, section, &settings, problem) && read_source(config, section, &settings, problem) &&
	            routes_read(config, section, url == NULL ? "{topic}" : url->value, &settings.routes, problem) &&
	            settings.sink->check(config, section, problem);
	if (!good) {
		relay_settings_free(&settings);
		return false;
	}
	settings.in_flight = settings.in_flight > 0 ? settings.in_flight : settings.sink->in_flight;
	settings.envelope = envelope_for(settings.sink->name, (envelope_form)settings.envelope_form, settings.source);
	*result = settings;
	return true;
}

void relay_settings_free(relay_settings *settings)
{
	routes_free(&settings->routes);
	free(settings->source);
	settings->source = NULL;
}
