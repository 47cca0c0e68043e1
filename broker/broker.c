/* SPDX-License-Identifier: PostgreSQL */
/*
 * broker.c: reads and checks a broker's address and credentials: the url, the one source of each
 * credential, the TLS files. Makes no connection.
 */
#include "broker.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define HOSTS_MAX 64
#define PASSWORD_BYTES_MAX 4096

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* Percent-decoded and new. NULL: invalid (a bad escape, or a NUL), or out of memory. */
static char *decoded(const char *text, size_t length)
{
	char *result = malloc(length + 1);
	size_t used = 0;

	if (result == NULL) {
		return NULL;
	}
	for (size_t i = 0; i < length; i++) {
		char c = text[i];
		if (c == '%') {
			int high = i + 2 < length ? hex_digit(text[i + 1]) : -1;
			int low = i + 2 < length ? hex_digit(text[i + 2]) : -1;
			c = (char)(high * 16 + low);
			if (high < 0 || low < 0 || c == '\0') {
				free(result);
				return NULL;
			}
			i += 2;
		}
		result[used++] = c;
	}
	result[used] = '\0';
	return result;
}

/* The text in brackets: an IPv6 address, perhaps with a zone. */
static bool is_six(const char *name, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (!isalnum((unsigned char)name[i]) && strchr(":.%-_", name[i]) == NULL) {
			return false;
		}
	}
	return memchr(name, ':', length) != NULL;
}

/* "host", "host:port", "[::1]:port". False: anything else. */
static bool host_read(const char *text, size_t length, int standard_port, broker_host *host)
{
	const char *name = text;
	const char *end = text + length;
	const char *colon;
	size_t name_length;

	if (length > 0 && *text == '[') {
		const char *bracket = memchr(text, ']', length);
		if (bracket == NULL || (bracket + 1 < end && bracket[1] != ':')) {
			return false;
		}
		name = text + 1;
		name_length = (size_t)(bracket - name);
		colon = bracket + 1 < end ? bracket + 1 : NULL;
		if (!is_six(name, name_length)) {
			return false;
		}
	} else {
		colon = memchr(text, ':', length);
		name_length = colon == NULL ? length : (size_t)(colon - text);
	}
	if (name_length == 0) {
		return false;
	}
	host->port = standard_port;
	if (colon != NULL) {
		long port = 0;
		if (colon + 1 == end) {
			return false;
		}
		for (const char *digit = colon + 1; digit < end; digit++) {
			if (*digit < '0' || *digit > '9' || (port = port * 10 + (*digit - '0')) > 65535) {
				return false;
			}
		}
		if (port == 0) {
			return false;
		}
		host->port = (int)port;
	}
	host->name = strndup(name, name_length);
	return host->name != NULL;
}

/* The hosts between the credentials and the path. */
static bool hosts_read(broker_address *address, const char *text, size_t length, int standard_port)
{
	const char *end = text + length;

	address->hosts = calloc(HOSTS_MAX, sizeof *address->hosts);
	while (address->hosts != NULL && address->host_count < HOSTS_MAX) {
		const char *comma = memchr(text, ',', (size_t)(end - text));
		const char *stop = comma == NULL ? end : comma;
		if (!host_read(text, (size_t)(stop - text), standard_port, &address->hosts[address->host_count])) {
			return false;
		}
		address->host_count++;
		if (comma == NULL) {
			return true;
		}
		text = comma + 1;
	}
	return false;
}

/* False: not a valid url; the caller reports it. */
static bool url_read(const char *url, const broker_scheme *scheme, broker_address *address)
{
	const char *rest = strstr(url, "://");
	size_t length = rest == NULL ? 0 : (size_t)(rest - url);

	if (rest == NULL) {
		return false;
	}
	if (length == strlen(scheme->tls) && strncmp(url, scheme->tls, length) == 0) {
		address->tls = true;
	} else if (length != strlen(scheme->plain) || strncmp(url, scheme->plain, length) != 0) {
		return false;
	}
	rest += strlen("://");
	size_t authority = strcspn(rest, "/?#");
	const char *tail = rest + authority;
	const char *at = memrchr(rest, '@', authority);
	const char *hosts = rest;
	if (at != NULL) {
		const char *colon = memchr(rest, ':', (size_t)(at - rest));
		address->user = decoded(rest, (size_t)((colon == NULL ? at : colon) - rest));
		address->password = colon == NULL ? NULL : decoded(colon + 1, (size_t)(at - colon - 1));
		if (address->user == NULL || (colon != NULL && address->password == NULL)) {
			return false;
		}
		hosts = at + 1;
	}
	if (!hosts_read(address, hosts, (size_t)(tail - hosts), address->tls ? scheme->tls_port : scheme->plain_port)) {
		return false;
	}
	if (*tail == '\0') {
		return true;
	}
	if (*tail != '/' || strpbrk(tail, "?#") != NULL || (!scheme->has_path && tail[1] != '\0')) {
		return false;
	}
	address->path = decoded(tail + 1, strlen(tail + 1));
	return address->path != NULL;
}

/* The first line of a file. */
static bool password_read(const char *path, char **password)
{
	char buffer[PASSWORD_BYTES_MAX];
	FILE *file = fopen(path, "re");
	bool read = file != NULL && fgets(buffer, sizeof buffer, file) != NULL;

	if (file != NULL && !read && errno == 0) {
		errno = ENODATA;
	}
	if (read) {
		buffer[strcspn(buffer, "\r\n")] = '\0';
		*password = strdup(buffer);
	}
	if (file != NULL) {
		fclose(file);
	}
	explicit_bzero(buffer, sizeof buffer);
	return read && *password != NULL;
}

static bool copied(const char *text, char **copy)
{
	*copy = text == NULL ? NULL : strdup(text);
	return text == NULL || *copy != NULL;
}

/* Each credential from one place only: a second, ignored one would surprise the user. */
static bool credentials_read(const config *config, const config_section *section, const broker_options *options,
                             broker_address *address, char **problem)
{
	if (options->user != NULL && address->user != NULL) {
		*problem = config_problem(config, section, config_entry_of(section, "user"),
		                          "the url already names a user: remove one of them");
		return false;
	}
	if (options->user != NULL && !copied(options->user, &address->user)) {
		return false;
	}
	int sources = (options->password != NULL) + (options->password_file != NULL) + (address->password != NULL);
	if (sources > 1) {
		*problem = config_problem(
		    config, section, config_entry_of(section, options->password_file == NULL ? "password" : "password_file"),
		    "the password is set twice (url, password, password_file): keep one");
		return false;
	}
	if (options->password_file != NULL) {
		errno = 0;
		if (!password_read(options->password_file, &address->password)) {
			*problem = config_problem(config, section, config_entry_of(section, "password_file"),
			                          "cannot read a line of %s: %s", options->password_file, strerror(errno));
			return false;
		}
		return true;
	}
	return options->password == NULL || copied(options->password, &address->password);
}

static bool file_there(const config *config, const config_section *section, const char *name, const char *path,
                       char **problem)
{
	if (path != NULL && access(path, R_OK) != 0) {
		*problem = config_problem(config, section, config_entry_of(section, name), "cannot read %s: %s", path,
		                          strerror(errno));
		return false;
	}
	return true;
}

static bool tls_read(const config *config, const config_section *section, const broker_options *options,
                     const broker_scheme *scheme, broker_address *address, char **problem)
{
	static const char *const names[] = {"ca_file", "certificate_file", "key_file"};
	const char *const paths[] = {options->ca_file, options->certificate_file, options->key_file};

	for (size_t i = 0; i < 3; i++) {
		if (paths[i] != NULL && !address->tls) {
			*problem = config_problem(config, section, config_entry_of(section, names[i]),
			                          "the url is without TLS: write %s:// instead of %s://, or remove %s", scheme->tls,
			                          scheme->plain, names[i]);
			return false;
		}
		if (!file_there(config, section, names[i], paths[i], problem)) {
			return false;
		}
	}
	if ((options->certificate_file == NULL) != (options->key_file == NULL)) {
		const char *given = options->certificate_file == NULL ? "key_file" : "certificate_file";
		*problem = config_problem(config, section, config_entry_of(section, given),
		                          "certificate_file and key_file belong together: give both");
		return false;
	}
	return copied(options->ca_file, &address->ca_file) &&
	       copied(options->certificate_file, &address->certificate_file) &&
	       copied(options->key_file, &address->key_file);
}

/* The url without credentials: for messages and the log. */
static char *shown_url(const char *url, const broker_address *address, const broker_scheme *scheme)
{
	const char *tail = strchr(strstr(url, "://") + strlen("://"), '/');
	char *hosts = broker_address_hosts(address, "");
	char *shown = NULL;

	if (hosts != NULL && asprintf(&shown, "%s://%s%s", address->tls ? scheme->tls : scheme->plain, hosts,
	                              tail == NULL ? "" : tail) < 0) {
		shown = NULL;
	}
	free(hosts);
	return shown;
}

bool broker_address_read(const config *config, const config_section *section, const broker_options *options,
                         const broker_scheme *scheme, broker_address **result, char **problem)
{
	broker_address *address = calloc(1, sizeof *address);

	*problem = NULL;
	if (address != NULL && !url_read(options->url, scheme, address)) {
		*problem =
		    config_problem(config, section, config_entry_of(section, "url"),
		                   "not of the form %s://[user[:password]@]host[:port][,host[:port]...]%s, or %s:// with TLS",
		                   scheme->plain, scheme->has_path ? "[/path]" : "", scheme->tls);
	} else if (address != NULL && credentials_read(config, section, options, address, problem) &&
	           tls_read(config, section, options, scheme, address, problem)) {
		address->shown = shown_url(options->url, address, scheme);
	}
	if (address != NULL && address->shown != NULL) {
		*result = address;
		return true;
	}
	if (*problem == NULL) {
		*problem = config_problem(config, section, NULL, "out of memory");
	}
	broker_address_free(address);
	return false;
}

void broker_address_free(broker_address *address)
{
	if (address == NULL) {
		return;
	}
	for (size_t i = 0; i < address->host_count; i++) {
		free(address->hosts[i].name);
	}
	if (address->password != NULL) {
		explicit_bzero(address->password, strlen(address->password));
	}
	free(address->hosts);
	free(address->user);
	free(address->password);
	free(address->path);
	free(address->shown);
	free(address->ca_file);
	free(address->certificate_file);
	free(address->key_file);
	free(address);
}

char *broker_address_hosts(const broker_address *address, const char *prefix)
{
	char *text = NULL;
	size_t size = 0;
	FILE *stream = open_memstream(&text, &size);

	if (stream == NULL) {
		return NULL;
	}
	for (size_t i = 0; i < address->host_count; i++) {
		const broker_host *host = &address->hosts[i];
		bool six = strchr(host->name, ':') != NULL;
		fprintf(stream, "%s%s%s%s%s:%d", i == 0 ? "" : ",", prefix, six ? "[" : "", host->name, six ? "]" : "",
		        host->port);
	}
	if (fclose(stream) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- headers that brokers act on */

/* A name that ends in '*' is a prefix. */
typedef struct steering {
	const char *broker;
	const char *names[24];
} steering;

/*
 * Sources: NATS "JetStream headers" (all begin with Nats-), and cnats, which takes the header
 * Status of an empty message for the server's own; RabbitMQ "Sender-selected distribution" (CC,
 * BCC), "Dead lettering", "Quorum queues", "Streams", "Federation", "Shovel", and the plugins for
 * delayed messages, deduplication and recent history.
 */
static const steering steerings[] = {
    {"nats", {"Nats-*", "Status", "Description"}},
    {"rabbitmq",
     {"CC", "BCC", "x-delay", "x-death", "x-first-death-*", "x-last-death-*", "x-delivery-count", "x-acquired-count",
      "x-opt-*", "x-stream-*", "x-received-from", "x-shovelled*", "x-deduplication-header", "x-cache-ttl",
      "x-recent-history-no-store"}}};

bool broker_header_steers(const char *broker, const char *name)
{
	for (size_t i = 0; i < sizeof steerings / sizeof steerings[0]; i++) {
		if (strcmp(steerings[i].broker, broker) != 0) {
			continue;
		}
		for (const char *const *known = steerings[i].names; *known != NULL; known++) {
			size_t length = strlen(*known);
			bool is_prefix = (*known)[length - 1] == '*';
			if (strncasecmp(*known, name, is_prefix ? length - 1 : length + 1) == 0) {
				return true;
			}
		}
	}
	return false;
}
