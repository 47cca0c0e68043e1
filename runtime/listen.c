/* SPDX-License-Identifier: PostgreSQL */
/* listen.c: see listen.h. */
#include "listen.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BACKLOG = 64
};

typedef struct address {
	struct sockaddr_storage storage;
	socklen_t length;
} address;

/* Numbers, and localhost as 127.0.0.1: nothing that needs a name server. */
static bool parse(const char *text, address *result)
{
	struct addrinfo hints = {
	    .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	char host[INET6_ADDRSTRLEN + 16];
	const char *colon = strrchr(text, ':');
	size_t length = colon == NULL ? 0 : (size_t)(colon - text);
	bool brackets = length >= 2 && text[0] == '[' && text[length - 1] == ']';

	if (length == 0 || length >= sizeof host || colon[1] == '\0' ||
	    strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5 || atoi(colon + 1) > 65535) {
		return false;
	}
	snprintf(host, sizeof host, "%.*s", (int)(brackets ? length - 2 : length), brackets ? text + 1 : text);
	if (brackets != (strchr(host, ':') != NULL) || strcmp(host, "*") == 0) {
		return false;
	}
	if (getaddrinfo(strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, colon + 1, &hints, &found) != 0) {
		return false;
	}
	memcpy(&result->storage, found->ai_addr, found->ai_addrlen);
	result->length = found->ai_addrlen;
	freeaddrinfo(found);
	return true;
}

bool listen_address_is_good(const char *text)
{
	address ignored;

	return parse(text, &ignored);
}

/* The bound address: with the real port if port 0 was given. */
static bool shown(int fd, char text[LISTEN_ADDRESS_BYTES])
{
	struct sockaddr_storage storage = {0};
	socklen_t length = sizeof storage;
	char host[INET6_ADDRSTRLEN + 2];
	char port[8];

	if (getsockname(fd, (struct sockaddr *)&storage, &length) != 0 ||
	    getnameinfo((struct sockaddr *)&storage, length, host, sizeof host, port, sizeof port,
	                NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
		return false;
	}
	snprintf(text, LISTEN_ADDRESS_BYTES, storage.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
	return true;
}

/* -1: errno. */
static int listen_at(const address *address)
{
	int one = 1;
	int fd = socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 &&
	    (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
	     bind(fd, (const struct sockaddr *)&address->storage, address->length) != 0 || listen(fd, BACKLOG) != 0)) {
		int problem = errno;
		close(fd);
		errno = problem;
		fd = -1;
	}
	return fd;
}

int listen_open(const char *text, char address[LISTEN_ADDRESS_BYTES])
{
	struct address parsed;
	int fd = -1;

	if (!parse(text, &parsed)) {
		errno = EINVAL;
		return -1;
	}
	fd = listen_at(&parsed);
	if (fd >= 0 && !shown(fd, address)) {
		int problem = errno;
		close(fd);
		errno = problem;
		fd = -1;
	}
	return fd;
}
