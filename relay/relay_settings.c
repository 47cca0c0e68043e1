/* SPDX-License-Identifier: PostgreSQL */
/* relay_settings.c: see relay_settings.h. */
#include "relay_settings.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "built.h"
#include "memory.h"

enum {
	NAME_BYTES_MAX = 63, /* once.relay */
	SINKS_MAX = 8
};

static bool find_sink(const config *config, const config_section *section, relay_settings *settings, char **problem)
{
	settings->sink = sink_find(settings->sink_name);
	if (settings->sink != NULL) {
		return true;
	}
	const char *library = broker_left_out(settings->sink_name);
	if (library != NULL) {
		*problem = config_problem(config, section, config_entry_of(section, "sink"),
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
	*problem = config_problem(config, section, config_entry_of(section, "sink"), "there is no sink '%s'; there are: %s",
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
			*problem = config_problem(config, section, config_entry_of(section, "ce_source"),
			                          "must be a URI reference: printable ASCII without spaces; '%s' is not",
			                          settings->source);
			return false;
		}
	}
	return true;
}

/* An option of the sink that the envelope needs too; the sink checks it. */
static bool read_key(const config *config, const config_section *section, relay_settings *settings, char **problem)
{
	const config_option *option = settings->sink->options;
	const char *text = NULL;

	while (option->name != NULL && strcmp(option->name, "key") != 0) {
		option++;
	}
	if (option->name == NULL) {
		return true;
	}
	config_option table[] = {*option, {.name = NULL}};
	table[0].offset = 0;
	return config_apply(config, section, table, &text, problem) &&
	       envelope_read_key(text, &settings->envelope.key, &settings->envelope.key_header);
}

static bool check_waits(const config *config, const config_section *section, const relay_settings *settings,
                        char **problem)
{
	if (settings->retry_first_ms <= settings->retry_most_ms) {
		return true;
	}
	const config_entry *entry = config_entry_of(section, "retry_first");
	*problem = config_problem(config, section, entry != NULL ? entry : config_entry_of(section, "retry_most"),
	                          "the first wait is longer than the longest: retry_first is at most retry_most");
	return false;
}

/* Copies of dead events need a destination that no other event of this relay has. */
static bool read_dead_topic(const config *config, const config_section *section, relay_settings *settings,
                            char **problem)
{
	const char *dead_topic = settings->dead_topic;

	if (dead_topic == NULL) {
		return true;
	}
	const char *wrong = dead_topic[0] == '\0' ? "name a destination" : route_wrong_destination(dead_topic);
	if (strcmp(dead_topic, ROUTE_NOWHERE) == 0) {
		wrong = "a copy cannot go nowhere: leave the option out";
	} else if (settings->sink == &sink_stdout) {
		wrong = "standard output refuses no event: leave the option out";
	}
	for (size_t i = 0; i < settings->routes.count && wrong == NULL; i++) {
		if (strcmp(settings->routes.items[i].destination, dead_topic) == 0) {
			wrong = "the events themselves go there: name another destination";
		}
	}
	settings->dead_route = (route){.destination = (char *)(uintptr_t)dead_topic};
	if (wrong != NULL) {
		*problem = config_problem(config, section, config_entry_of(section, "dead_topic"), "%s", wrong);
	}
	return wrong == NULL;
}

/* True: the sink knows every option; if the sink is unknown, some sink does. */
static bool check_names(const config *config, const config_section *section, const sink_class *sink, char **problem)
{
	const config_option *tables[1 + SINKS_MAX] = {relay_options};
	size_t count = 1;

	for (size_t i = 0; sink_at(i) != NULL; i++) {
		if (sink == NULL || sink == sink_at(i)) {
			assert(count <= SINKS_MAX);
			tables[count++] = sink_at(i)->options;
		}
	}
	return config_known(config, section, tables, count, problem);
}

/* Another check of the section: its problems are reported with the others. */
static bool look(bool good, char **problems, char **problem)
{
	config_problem_add(problems, *problem);
	*problem = NULL;
	return good;
}

bool relay_settings_read(const config *config, const config_section *section, relay_settings *result, char **problem)
{
	relay_settings settings = {.name = section->name};
	char *problems = NULL, *own = NULL;

	if (section->name[0] == '\0' || strlen(section->name) > NAME_BYTES_MAX) {
		*problem = config_problem(config, section, NULL, "a relay's name has 1 to %d bytes", NAME_BYTES_MAX);
		return false;
	}
	bool good = look(config_apply(config, section, relay_options, &settings, &own), &problems, &own);
	/* Rules between values are not checked if the values could not be read. */
	if (good) {
		good = look(check_waits(config, section, &settings, &own), &problems, &own);
		good = look(read_source(config, section, &settings, &own), &problems, &own) && good;
	}
	if (settings.sink_name != NULL && settings.sink_name[0] != '\0') {
		good = look(find_sink(config, section, &settings, &own), &problems, &own) && good;
	}
	good = look(check_names(config, section, settings.sink, &own), &problems, &own) && good;
	const bool is_webhook = settings.sink != NULL && strcmp(settings.sink->name, "webhook") == 0;
	const config_entry *url = is_webhook ? config_entry_of(section, "url") : NULL;
	good = look(routes_read(config, section, url == NULL ? "{topic}" : url->value, &settings.routes, &own), &problems,
	            &own) &&
	       good;
	good = look(read_dead_topic(config, section, &settings, &own), &problems, &own) && good;
	if (settings.sink != NULL) {
		good = look(settings.sink->check(config, section, &own), &problems, &own) && good;
	}
	*problem = problems;
	if (!good || settings.sink == NULL) {
		relay_settings_free(&settings);
		return false;
	}
	settings.in_flight = settings.in_flight > 0 ? settings.in_flight : settings.sink->in_flight;
	settings.envelope = envelope_for(settings.sink->name, (envelope_form)settings.envelope_form, settings.source);
	if (!read_key(config, section, &settings, problem)) {
		relay_settings_free(&settings);
		return false;
	}
	*result = settings;
	return true;
}

void relay_settings_free(relay_settings *settings)
{
	routes_free(&settings->routes);
	free(settings->source);
	settings->source = NULL;
}
