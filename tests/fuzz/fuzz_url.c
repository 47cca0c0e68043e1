/* SPDX-License-Identifier: PostgreSQL */
/*
 * fuzz_url.c: a broker's url, of each kind. What is taken has hosts with ports; what is shown of it
 * has neither user nor password, and is read again as the same hosts and path; a password put in by
 * percent-encoding comes out as it was. tests/fuzz/test_fuzz.py builds and runs it. Input: which
 * broker and what to do, then the url, or a password.
 */
#include <stdio.h>

#include "broker.h"
#include "fuzz.h"

static const broker_scheme schemes[] = {
    {.plain = "amqp", .tls = "amqps", .plain_port = 5672, .tls_port = 5671, .has_path = true},
    {.plain = "nats", .tls = "tls", .plain_port = 4222, .tls_port = 4222},
    {.plain = "kafka", .tls = "kafkas", .plain_port = 9092, .tls_port = 9093},
};

static broker_address *read_url(const config *config, const broker_scheme *scheme, const char *url)
{
	broker_address *address = NULL;
	char *problem = NULL;
	broker_options options = {.url = url};

	if (!broker_address_read(config, config_section_at(config, 0), &options, scheme, &address, &problem)) {
		must(address == NULL && problem != NULL);
		/* What is wrong is said without what was written: it may hold a password. */
		must(strlen(url) < 12 || strstr(problem, url) == NULL);
		free(problem);
	}
	return address;
}

static bool same(const char *a, const char *b)
{
	return (a == NULL && b == NULL) || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static void check_address(const config *config, const broker_scheme *scheme, const broker_address *address)
{
	must(address->host_count >= 1 && address->shown != NULL);
	for (size_t i = 0; i < address->host_count; i++) {
		must(address->hosts[i].name[0] != '\0' && address->hosts[i].port > 0 && address->hosts[i].port <= 65535);
	}
	broker_address *again = read_url(config, scheme, address->shown);
	must(again != NULL && again->user == NULL && again->password == NULL && again->tls == address->tls);
	must(again->host_count == address->host_count && same(again->path, address->path) &&
	     same(again->shown, address->shown));
	for (size_t i = 0; i < address->host_count; i++) {
		must(strcmp(again->hosts[i].name, address->hosts[i].name) == 0 &&
		     again->hosts[i].port == address->hosts[i].port);
	}
	broker_address_free(again);
}

/* Any password without a NUL, each of its bytes encoded. */
static void check_password(const config *config, const broker_scheme *scheme, const char *password)
{
	size_t length = strlen(password);
	char *url = malloc(3 * length + 64);
	must(url != NULL);
	char *to = url + sprintf(url, "%s://user:", scheme->plain);

	for (size_t i = 0; i < length; i++) {
		to += sprintf(to, "%%%02x", (unsigned char)password[i]);
	}
	strcpy(to, "@127.0.0.1:4");
	broker_address *address = read_url(config, scheme, url);
	must(address != NULL && strcmp(address->user, "user") == 0 && strcmp(address->password, password) == 0);
	must(length < 12 || strstr(address->shown, password) == NULL);
	check_address(config, scheme, address);
	broker_address_free(address);
	free(url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char text[] = "dsn = x\n";
	config *config = NULL;
	char *problem = NULL;
	input in = {data, size};
	uint8_t what = take_byte(&in);
	char *url = take_bytes(&in, in.size);
	const broker_scheme *scheme = &schemes[what % 3];

	must(config_parse("f.conf", text, sizeof text - 1, &config, &problem));
	if (what & 0x80) {
		check_password(config, scheme, url);
	} else {
		broker_address *address = read_url(config, scheme, url);
		if (address != NULL) {
			check_address(config, scheme, address);
		}
		broker_address_free(address);
	}
	config_free(config);
	free(url);
	return 0;
}
