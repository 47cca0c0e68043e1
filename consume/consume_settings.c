/* SPDX-License-Identifier: PostgreSQL */
/* consume_settings.c: the options of a consumer, and the rules between them. */
#include "consume_settings.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "built.h"
#include "http_client.h"

#define SOURCE_WORD(name, built) " " #name
#define AT(member) offsetof(settings, member)
#define SOURCES_MAX 8

/* clang-format off */
const config_option consume_options[] = {
	{.name = "dsn", .kind = CONFIG_TEXT, .offset = AT(dsn), .help = "the database, as libpq's connection string; default: the file's dsn, then --dsn, then libpq's environment"},
	{.name = "source", .kind = CONFIG_TEXT, .offset = AT(source), .required = true, .help = "the source of the messages:" SOURCES(SOURCE_WORD)},
	{.name = "handler", .kind = CONFIG_TEXT, .offset = AT(handler), .help = "the SQL function that applies a message: schema.name, with one argument of type once.message. It runs in the transaction that remembers the message, as the role of the dsn. Either this or endpoint"},
	{.name = "endpoint", .kind = CONFIG_TEXT, .offset = AT(endpoint), .help = "an HTTP endpoint that applies a message: each is POSTed under a lease, with Idempotency-Key and the message's headers. 2xx: applied. Either this or handler"},
	{.name = "id", .kind = CONFIG_TEXT, .offset = AT(id), .standard = "header:Pgonce-Event-Id", .help = "where the message's id is: header:NAME, json:/pointer into the payload (RFC 6901), or coordinates (its place in the broker's log: no protection if the producer sends it twice). A message without an id is dead at once; an id that is not 1 to 255 printable ASCII characters is hashed to sha256:..."},
	{.name = "ids", .kind = CONFIG_CHOICE, .offset = AT(ids), .choices = "opaque|uuidv7", .standard = "opaque", .help = "opaque: an id is only a name, and a message of any age is applied; uuidv7: an id that is a UUIDv7 carries its day, days are deleted as a whole, and a message of a deleted day is dead. Do not change it while the inbox holds messages"},
	{.name = "order_by", .kind = CONFIG_TEXT, .offset = AT(order_by), .standard = "key", .help = "messages with the same key are applied in the broker's order. Where the key is: key (the broker's key, else the header Pgonce-Key; with the aggregate's tenant and type, if a relay sent them), header:NAME, json:/pointer, or none"},
	{.name = "tenant", .kind = CONFIG_TEXT, .offset = AT(tenant), .standard = "", .help = "the tenant of the inbox and of the handler's work"},
	{.name = "batch", .kind = CONFIG_NUMBER, .offset = AT(batch), .minimum = 1, .maximum = 10000, .standard = "500", .applies = "handler", .help = "the most messages that one transaction applies"},
	{.name = "prefetch", .kind = CONFIG_NUMBER, .offset = AT(prefetch), .minimum = 1, .maximum = 100000, .standard = "2000", .help = "the most messages held in memory"},
	{.name = "memory", .kind = CONFIG_BYTES, .offset = AT(memory), .minimum = 1048576, .maximum = 68719476736, .standard = "32M", .help = "the most bytes of messages (payload, key, headers) held in memory: read ahead, in progress, and parked ones that are tried again; a larger message is held alone. Temporary copies are extra: with the default the process stays below 128 MB"},
	{.name = "attempts", .kind = CONFIG_NUMBER, .offset = AT(attempts), .minimum = 1, .maximum = 1000, .standard = "10", .help = "the number of failed attempts after which a message is dead"},
	{.name = "retry_first", .kind = CONFIG_DURATION, .offset = AT(retry_first_ms), .minimum = 1, .maximum = 86400000, .standard = "1s", .help = "the pause before the second attempt; doubled each time, with jitter"},
	{.name = "retry_most", .kind = CONFIG_DURATION, .offset = AT(retry_most_ms), .minimum = 1, .maximum = 86400000, .standard = "5m", .help = "the longest pause between two attempts"},
	{.name = "on_dead", .kind = CONFIG_CHOICE, .offset = AT(on_dead), .choices = "block|skip", .standard = "block", .help = "what happens to later messages with a dead message's key: block: they wait for pgonce parked retry or discard; skip: they are applied"},
	{.name = "parked_max", .kind = CONFIG_NUMBER, .offset = AT(parked_max), .minimum = 1, .maximum = 100000000, .standard = "100000", .help = "stop reading from the broker when this many messages are parked (waiting, retrying, dead)"},
	{.name = "dead_topic", .kind = CONFIG_TEXT, .offset = AT(dead_topic), .help = "a topic, subject or routing key of the same broker that gets a copy of each dead message, at least once"},
	{.name = "prepare", .kind = CONFIG_FLAG, .offset = AT(prepare), .standard = "yes", .help = "prepare statements once per connection; no: behind a pooler in transaction mode"},
	{.name = "lease", .kind = CONFIG_DURATION, .offset = AT(lease_ms), .minimum = 1000, .maximum = 3600000, .standard = "60s", .applies = "endpoint", .help = "how long a call holds its message before another process may take it over; renewed while the call runs"},
	{.name = "timeout", .kind = CONFIG_DURATION, .offset = AT(timeout_ms), .minimum = 100, .maximum = 3600000, .standard = "30s", .applies = "endpoint", .help = "how long a call may take"},
	{.name = "in_flight", .kind = CONFIG_NUMBER, .offset = AT(in_flight), .minimum = 1, .maximum = 10000, .standard = "64", .applies = "endpoint", .help = "the most calls at a time; at most one per key"},
	{.name = "response_max", .kind = CONFIG_BYTES, .offset = AT(response_max), .minimum = 0, .maximum = 16777216, .standard = "64k", .applies = "endpoint", .help = "the most bytes of an answer's body that are stored as the outcome"},
	{.name = "endpoint_ca_file", .kind = CONFIG_TEXT, .offset = AT(ca_file), .applies = "endpoint", .help = "the CA certificates for the endpoint's certificate; default: the system's"},
	{.name = "endpoint_certificate_file", .kind = CONFIG_TEXT, .offset = AT(certificate_file), .applies = "endpoint", .help = "the client certificate, for an endpoint that asks for one"},
	{.name = "endpoint_key_file", .kind = CONFIG_TEXT, .offset = AT(key_file), .applies = "endpoint", .help = "the client certificate's key"},
	{.name = NULL},
};
/* clang-format on */

/* What the checks below read, and where they report problems. */
typedef struct look {
	const config *config;
	const config_section *section;
	settings *settings;
	char *problems; /* NULL: no problem so far */
} look;

/* Reports a problem with an option (NULL: with the section). */
__attribute__((format(printf, 3, 4))) static void refuse(look *look, const char *option, const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	config_problem_add(&look->problems,
	                   config_problem(look->config, look->section,
	                                  option == NULL ? NULL : config_entry_of(look->section, option), "%s", text));
}

static void find_class(look *look)
{
	settings *settings = look->settings;
	const char *library = broker_left_out(settings->source);
	arena arena = {0};
	const char *names = "";

	settings->class = source_find(settings->source);
	if (library != NULL) {
		refuse(look, "source", "this pgonce was built without %s: install %s and build it again", settings->source,
		       library);
	} else if (settings->class == NULL) {
		for (size_t i = 0; source_at(i) != NULL; i++) {
			names = arena_format(&arena, "%s%s%s", names, i == 0 ? "" : ", ", source_at(i)->name);
		}
		refuse(look, "source", "source: '%s' is not one of %s", settings->source, names);
	}
	arena_clear(&arena);
}

/* Every option must be known to the source or, if the source is unknown, to any source. */
static void check_names(look *look)
{
	const config_option *tables[1 + SOURCES_MAX] = {consume_options};
	size_t count = 1;
	char *problem = NULL;

	for (size_t i = 0; source_at(i) != NULL; i++) {
		if (look->settings->class == NULL || look->settings->class == source_at(i)) {
			assert(count <= SOURCES_MAX);
			tables[count++] = source_at(i)->options;
		}
	}
	(void)config_known(look->config, look->section, tables, count, &problem);
	config_problem_add(&look->problems, problem);
}

static bool check_endpoint(look *look)
{
	const settings *settings = look->settings;
	const http_settings http = {.allow_plain = true};
	/* The part before an @ may contain a password. */
	const char *at = strrchr(settings->endpoint, '@');

	if (http_check_url(&http, settings->endpoint)[0] != '\0') {
		refuse(look, "endpoint", "endpoint: '%s' is not a URL: http://HOST/PATH or https://HOST/PATH",
		       at == NULL ? settings->endpoint : at + 1);
		return false;
	}
	if ((settings->certificate_file == NULL) != (settings->key_file == NULL)) {
		refuse(look, settings->key_file == NULL ? "endpoint_certificate_file" : "endpoint_key_file",
		       "endpoint_certificate_file and endpoint_key_file belong together: give both");
		return false;
	}
	const struct {
		const char *name, *path;
	} files[] = {{"endpoint_ca_file", settings->ca_file},
	             {"endpoint_certificate_file", settings->certificate_file},
	             {"endpoint_key_file", settings->key_file}};
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		if (files[i].path != NULL && access(files[i].path, R_OK) != 0) {
			refuse(look, files[i].name, "%s: cannot read %s: %s", files[i].name, files[i].path, strerror(errno));
			return false;
		}
	}
	return true;
}

/* Exactly one of the two handlers, and no option that only the other uses. */
static void check_handler(look *look)
{
	const settings *settings = look->settings;
	bool has_handler = settings->handler != NULL && settings->handler[0] != '\0';
	bool has_endpoint = settings->endpoint != NULL && settings->endpoint[0] != '\0';

	if (has_handler == has_endpoint) {
		refuse(look, NULL, "one of handler (a SQL function) and endpoint (an HTTP URL) is required%s",
		       has_handler ? ", not both" : "");
		return;
	}
	if (has_endpoint && !check_endpoint(look)) {
		return;
	}
	for (const config_option *option = consume_options; option->name != NULL; option++) {
		if (config_entry_of(look->section, option->name) != NULL && option->applies != NULL &&
		    strcmp(option->applies, has_handler ? "handler" : "endpoint") != 0) {
			refuse(look, option->name, "%s: only with %s", option->name, option->applies);
			return;
		}
	}
}

static void check_origins(look *look)
{
	settings *settings = look->settings;

	if (!origin_read(settings->id, &settings->id_from) || settings->id_from.kind == ORIGIN_NONE ||
	    settings->id_from.kind == ORIGIN_KEY) {
		refuse(look, "id", "id: '%s' is not one of header:NAME, json:/pointer, coordinates", settings->id);
		return;
	}
	settings->id_from.opaque = settings->ids == IDS_OPAQUE;
	if (!origin_read(settings->order_by, &settings->key_from) || settings->key_from.kind == ORIGIN_COORDINATES) {
		refuse(look, "order_by", "order_by: '%s' is not one of key, header:NAME, json:/pointer, none",
		       settings->order_by);
	} else if (settings->id_from.kind == ORIGIN_COORDINATES && !settings->class->has_coordinates) {
		refuse(look, "id", "id: a message of %s has no coordinates; use header:NAME or json:/pointer",
		       settings->class->name);
	} else if (!settings->prepare && !settings->class->shares_order && settings->key_from.kind != ORIGIN_NONE) {
		refuse(look, "prepare",
		       "prepare: with %s the order of a key is kept by one process at a time, under a session lock, "
		       "which a pooler in transaction mode loses; connect directly, or set order_by = none",
		       settings->class->name);
	}
}

static void check_numbers(look *look)
{
	const settings *settings = look->settings;

	if (settings->batch > settings->prefetch) {
		refuse(look, config_entry_of(look->section, "batch") != NULL ? "batch" : "prefetch",
		       "batch: is more than prefetch (%lld)", (long long)settings->prefetch);
	} else if (settings->retry_first_ms > settings->retry_most_ms) {
		refuse(look, "retry_first", "retry_first: is more than retry_most");
	} else if (settings->dead_topic != NULL && settings->class->publish == NULL) {
		refuse(look, "dead_topic", "dead_topic: %s cannot send", settings->class->name);
	} else if (strlen(look->section->name) > 200) {
		refuse(look, NULL, "the name of a consumer has at most 200 bytes");
	}
}

bool settings_read(const config *config, const config_section *section, settings *settings, char **problem)
{
	look look = {.config = config, .section = section, .settings = settings};
	char *own = NULL;

	*settings = (struct settings){0};
	bool applied = config_apply(config, section, consume_options, settings, &own);
	config_problem_add(&look.problems, own);
	if (settings->source != NULL && settings->source[0] != '\0') {
		find_class(&look);
	}
	check_names(&look);
	own = NULL;
	if (settings->class != NULL && !settings->class->check(config, section, &own)) {
		config_problem_add(&look.problems, own);
	}
	/* Rules between values are checked only if the values could be read. */
	if (applied && settings->class != NULL) {
		check_handler(&look);
		check_origins(&look);
		check_numbers(&look);
	}
	*problem = look.problems;
	return look.problems == NULL;
}

bool consume_check(const config *config, const config_section *section, char **problem)
{
	settings settings;

	return settings_read(config, section, &settings, problem);
}

char *consume_note(const config *config, const config_section *section)
{
	settings settings;
	char *problem = NULL;
	bool right = settings_read(config, section, &settings, &problem);

	free(problem);
	return right && settings.class->note != NULL ? settings.class->note(config, section) : NULL;
}
