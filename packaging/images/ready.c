/* SPDX-License-Identifier: PostgreSQL */
/*
 * ready.c: the health check of the images, which have no curl. once-ready PORT [PATH] asks this
 * machine for PATH (/once/ready) at PORT, and exits with 0 if the answer is 200.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
	WAIT_S = 3
};

static int ask(int port, const char *path)
{
	const struct timeval limit = {.tv_sec = WAIT_S};
	const struct sockaddr_in here = {
	    .sin_family = AF_INET, .sin_port = htons((unsigned short)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char text[512];
	size_t length = 0;

	if (peer < 0 || setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
	    setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
	    connect(peer, (const struct sockaddr *)&here, sizeof here) != 0) {
		perror("once-ready");
		return 1;
	}
	int wanted = snprintf(text, sizeof text, "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", path);

	if (wanted < 0 || (size_t)wanted >= sizeof text || send(peer, text, (size_t)wanted, MSG_NOSIGNAL) != wanted) {
		fputs("once-ready: the question could not be sent\n", stderr);
		return 1;
	}
	while (length < sizeof text - 1) {
		ssize_t read_now = recv(peer, text + length, sizeof text - 1 - length, 0);

		if (read_now <= 0) {
			break;
		}
		length += (size_t)read_now;
	}
	text[length] = '\0';
	close(peer);
	if (strncmp(text, "HTTP/1.", 7) == 0 && length > 12 && strncmp(text + 8, " 200", 4) == 0) {
		return 0;
	}
	/* The health log shows it. */
	fprintf(stderr, "once-ready: %.*s\n", length == 0 ? 9 : (int)strcspn(text, "\r\n"),
	        length == 0 ? "no answer" : text);
	return 1;
}

int main(int argc, char **argv)
{
	long port = argc < 2 ? 0 : strtol(argv[1], NULL, 10);
	const char *path = argc < 3 ? "/once/ready" : argv[2];

	if (argc > 3 || port < 1 || port > 65535 || path[0] != '/') {
		fputs("usage: once-ready PORT [/PATH]\n", stderr);
		return 2;
	}
	return ask((int)port, path);
}
