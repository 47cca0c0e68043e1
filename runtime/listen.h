/* SPDX-License-Identifier: PostgreSQL */
/*
 * listen.h: the socket of a server inside the command: we open it ourselves, to know its port or
 * why it cannot be opened. Below metrics_server.h.
 */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#define LISTEN_ADDRESS_BYTES (INET6_ADDRSTRLEN + 16)

/* "127.0.0.1:9187", "[::1]:9187", "localhost:9187". */
bool listen_address_is_good(const char *address);
/*
 * The socket, which listens; `shown` gets its address, with the real port if port 0 was given. -1:
 * errno.
 */
int listen_open(const char *address, char shown[LISTEN_ADDRESS_BYTES]);
