/* SPDX-License-Identifier: PostgreSQL */
/*
 * address.h: is an address on the public Internet? What calls out by URLs asks this for the address
 * that is really used.
 */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

/*
 * False for loopback, link-local, private, shared, multicast, documentation and all other special
 * ranges (IANA's special-purpose registries), for IPv6 forms that carry such an IPv4 address, and
 * for what is neither IPv4 nor IPv6.
 */
bool address_is_public(const struct sockaddr *address, socklen_t length);
