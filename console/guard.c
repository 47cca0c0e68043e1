/* SPDX-License-Identifier: PostgreSQL */
/*
 * guard.c: see guard.h. No session is kept: a form's token is an HMAC of the browser's cookie and
 * the person, with a secret of this process.
 */
#include "guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "memory.h"
#include "runtime.h"
#include "utf8.h"

enum {
	SECRET_BYTES = 32,
	RANGES_MAX = 64,
	PER_SECOND = 500,
	AT_ONCE = 1000
};

const char guard_cookie_name[] = "pgonce_console";

typedef struct range {
	struct in6_addr prefix; /* IPv4 as ::ffff:a.b.c.d */
	int bits;
} range;

struct guard {
	unsigned char secret[SECRET_BYTES];
	range ranges[RANGES_MAX];
	size_t range_count;
	char *public_hosts; /* by commas */
	pthread_mutex_t lock;
	double left; /* requests that may come at once */
	int64_t counted_ms;
};

/* ---- addresses */

static bool read_address(const char *text, struct in6_addr *address)
{
	struct in_addr v4;

	if (inet_pton(AF_INET, text, &v4) == 1) {
		*address = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
		memcpy(&address->s6_addr[12], &v4, sizeof v4);
		return true;
	}
	return inet_pton(AF_INET6, text, address) == 1;
}

static bool address_of(const struct sockaddr *from, struct in6_addr *address)
{
	if (from != NULL && from->sa_family == AF_INET) {
		struct sockaddr_in v4;
		memcpy(&v4, from, sizeof v4);
		*address = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
		memcpy(&address->s6_addr[12], &v4.sin_addr, sizeof v4.sin_addr);
		return true;
	}
	if (from != NULL && from->sa_family == AF_INET6) {
		struct sockaddr_in6 v6;
		memcpy(&v6, from, sizeof v6);
		*address = v6.sin6_addr;
		return true;
	}
	return false;
}

/* 10.0.0.0/8, ::1 */
static bool read_range(const char *text, range *range)
{
	char address[INET6_ADDRSTRLEN];
	const char *slash = strchr(text, '/');
	size_t length = slash == NULL ? strlen(text) : (size_t)(slash - text);
	char *end = NULL;

	if (length >= sizeof address) {
		return false;
	}
	snprintf(address, sizeof address, "%.*s", (int)length, text);
	if (!read_address(address, &range->prefix)) {
		return false;
	}
	int width = strchr(address, ':') == NULL ? 32 : 128;
	long bits = slash == NULL ? width : strtol(slash + 1, &end, 10);
	range->bits = (int)bits + 128 - width;
	return slash == NULL || (slash[1] >= '0' && slash[1] <= '9' && *end == '\0' && bits <= width);
}

static bool is_within(const struct in6_addr *address, const range *range)
{
	int whole = range->bits / 8, rest = range->bits % 8;

	return memcmp(address, &range->prefix, (size_t)whole) == 0 &&
	       (rest == 0 || (address->s6_addr[whole] ^ range->prefix.s6_addr[whole]) >> (8 - rest) == 0);
}

bool guard_trusts(const guard *guard, const struct sockaddr *peer)
{
	struct in6_addr address;

	if (!address_of(peer, &address)) {
		return false;
	}
	for (size_t i = 0; i < guard->range_count; i++) {
		if (is_within(&address, &guard->ranges[i])) {
			return true;
		}
	}
	return false;
}

/* ---- making one */

static bool read_ranges(guard *guard, const char *trusted, char **problem)
{
	char *copy = memory_copy(trusted == NULL ? "" : trusted);
	char *at = copy;

	for (const char *text; *problem == NULL && (text = strsep(&at, ",")) != NULL;) {
		if (text[0] == '\0') {
			continue;
		}
		if (guard->range_count == RANGES_MAX || !read_range(text, &guard->ranges[guard->range_count])) {
			*problem = memory_format("'%s' is not an address or a range, such as 10.0.0.0/8 or ::1", text);
		}
		guard->range_count++;
	}
	free(copy);
	return *problem == NULL;
}

guard *guard_new(const char *trusted_addresses, const char *public_hosts, char **problem)
{
	guard *made = memory_take(sizeof *made);

	*problem = NULL;
	pthread_mutex_init(&made->lock, NULL);
	made->public_hosts = memory_copy(public_hosts == NULL ? "" : public_hosts);
	made->left = AT_ONCE;
	made->counted_ms = runtime_now_ms();
	if (read_ranges(made, trusted_addresses, problem) && RAND_bytes(made->secret, SECRET_BYTES) != 1) {
		*problem = memory_copy("there are no random bytes");
	}
	if (*problem != NULL) {
		guard_free(made);
		return NULL;
	}
	return made;
}

void guard_free(guard *guard)
{
	if (guard != NULL) {
		OPENSSL_cleanse(guard->secret, SECRET_BYTES);
		free(guard->public_hosts);
		pthread_mutex_destroy(&guard->lock);
		free(guard);
	}
}

/* ---- how many */

bool guard_admits(guard *guard)
{
	pthread_mutex_lock(&guard->lock);
	int64_t now_ms = runtime_now_ms();
	guard->left += (double)(now_ms - guard->counted_ms) * PER_SECOND / 1000;
	guard->left = guard->left > AT_ONCE ? AT_ONCE : guard->left;
	guard->counted_ms = now_ms;
	bool admits = guard->left >= 1;
	guard->left -= admits ? 1 : 0;
	pthread_mutex_unlock(&guard->lock);
	return admits;
}

/* ---- from where */

/* Without the port and the brackets of IPv6. False: it is not a host. */
static bool read_host(const char *host, char name[256])
{
	const char *end = host[0] == '[' ? strchr(host, ']') : host + strcspn(host, ":");
	const char *from = host[0] == '[' ? host + 1 : host;

	if (end == NULL || end == from || end - from >= 256) {
		return false;
	}
	snprintf(name, 256, "%.*s", (int)(end - from), from);
	end += *end == ']';
	return *end == '\0' || (*end == ':' && end[1 + strspn(end + 1, "0123456789")] == '\0');
}

static bool is_listed(const char *list, const char *name)
{
	size_t length = strlen(name);

	while (*list != '\0') {
		size_t item = strcspn(list, ",");
		if (item == length && strncasecmp(list, name, length) == 0) {
			return true;
		}
		list += item + (list[item] == ',');
	}
	return false;
}

bool guard_knows_host(const guard *guard, const char *host, const struct sockaddr *arrived)
{
	struct in6_addr named, own;
	char name[256];

	if (host == NULL || !read_host(host, name)) {
		return false;
	}
	if (strcasecmp(name, "localhost") == 0 || is_listed(guard->public_hosts, name)) {
		return true;
	}
	return read_address(name, &named) && address_of(arrived, &own) && memcmp(&named, &own, sizeof own) == 0;
}

/*
 * With Referrer-Policy: no-referrer a browser sends Origin: null even to ourselves (the Fetch
 * standard, "append a request Origin header"), so that only Sec-Fetch-Site can vouch for it.
 */
bool guard_is_own_origin(const char *site, const char *origin, const char *host)
{
	const char *scheme_end = origin == NULL ? NULL : strstr(origin, "://");
	bool is_host = scheme_end != NULL && strcasecmp(scheme_end + 3, host) == 0;

	if (site != NULL) {
		return strcmp(site, "same-origin") == 0 && (origin == NULL || strcmp(origin, "null") == 0 || is_host);
	}
	return origin == NULL || is_host;
}

/* ---- the person */

bool guard_is_person(const char *person)
{
	const unsigned char *at = (const unsigned char *)person;
	const unsigned char *end = at + strlen(person);

	if (at == end || end - at >= GUARD_PERSON_BYTES) {
		return false;
	}
	for (size_t length; at < end; at += length) {
		length = utf8_length(at, (size_t)(end - at));
		if (length == 0 || *at < ' ' || *at == 0x7f) {
			return false;
		}
	}
	return true;
}

/* ---- the token of a form */

static void write_hex(const unsigned char *bytes, size_t length, char *text)
{
	for (size_t i = 0; i < length; i++) {
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	}
}

void guard_new_cookie(char cookie[GUARD_COOKIE_BYTES])
{
	unsigned char bytes[(GUARD_COOKIE_BYTES - 1) / 2];

	if (RAND_bytes(bytes, sizeof bytes) != 1) {
		memory_out();
	}
	write_hex(bytes, sizeof bytes, cookie);
}

bool guard_find_cookie(const char *header, char cookie[GUARD_COOKIE_BYTES])
{
	size_t name_length = sizeof guard_cookie_name - 1;
	const char *at = header;

	while (at != NULL && *at != '\0') {
		at += strspn(at, " ;");
		const char *value = at + name_length + 1;
		if (strncmp(at, guard_cookie_name, name_length) == 0 && at[name_length] == '=' &&
		    strspn(value, "0123456789abcdef") == GUARD_COOKIE_BYTES - 1) {
			snprintf(cookie, GUARD_COOKIE_BYTES, "%s", value);
			return true;
		}
		at = strchr(at, ';');
	}
	return false;
}

/* Browsers keep the cookies of all ports of a host together: hence the name. */
char *guard_access_cookie(const char *access)
{
	return memory_format("pgonce_access_%.8s=%s", access, access);
}

bool guard_is_access(const char *access, const char *given)
{
	return given != NULL && strlen(given) == strlen(access) && CRYPTO_memcmp(given, access, strlen(access)) == 0;
}

bool guard_has_access(const char *access, const char *cookies)
{
	char *wanted = guard_access_cookie(access);
	size_t length = strlen(wanted);
	bool found = false;

	for (const char *at = cookies; at != NULL && !found; at = strchr(at, ';')) {
		at += strspn(at, " ;");
		found = strcspn(at, ";") == length && CRYPTO_memcmp(at, wanted, length) == 0;
	}
	free(wanted);
	return found;
}

void guard_token(const guard *guard, const char *cookie, const char *person, char token[GUARD_TOKEN_BYTES])
{
	char text[GUARD_COOKIE_BYTES + GUARD_PERSON_BYTES];
	unsigned char bytes[(GUARD_TOKEN_BYTES - 1) / 2];
	unsigned length = sizeof bytes;

	int text_length = snprintf(text, sizeof text, "%s %s", cookie, person);
	if (HMAC(EVP_sha256(), guard->secret, SECRET_BYTES, (unsigned char *)text, (size_t)text_length, bytes, &length) ==
	    NULL) {
		memory_out();
	}
	write_hex(bytes, sizeof bytes, token);
}

bool guard_is_token(const guard *guard, const char *cookie, const char *person, const char *token)
{
	char wanted[GUARD_TOKEN_BYTES];

	guard_token(guard, cookie, person, wanted);
	return token != NULL && strlen(token) == GUARD_TOKEN_BYTES - 1 &&
	       CRYPTO_memcmp(token, wanted, GUARD_TOKEN_BYTES - 1) == 0;
}
