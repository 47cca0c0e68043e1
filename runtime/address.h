/* SPDX-License-Identifier: PostgreSQL */
/*
 * address.h: whether an address is on the public Internet. Code that calls URLs checks the address
 * it really connects to.
 */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

/*
 * False for loopback, link-local, private, shared, multicast, documentation and all other special
 * ranges (IANA's special-purpose registries), for IPv6 forms that carry such an IPv4 address, and
 * for other address families.
 */
bool address_is_public(const struct sockaddr *address, socklen_t length);
