/* SPDX-License-Identifier: PostgreSQL */
/*
 * address.c: the special-purpose ranges of IPv4 and IPv6 (RFC 6890 and the registries that it
 * created). An IPv6 address is public only within 2000::/3, the one block assigned as global
 * unicast, so an unknown range is not public.
 */
#include "address.h"

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct range {
	uint8_t prefix[16];
	uint8_t bits;
} range;

static const range special_v4[] = {
    {{0}, 8},             /* this network */
    {{10}, 8},            /* private */
    {{100, 64}, 10},      /* shared: carriers' NAT */
    {{127}, 8},           /* loopback */
    {{169, 254}, 16},     /* link-local; clouds' metadata */
    {{172, 16}, 12},      /* private */
    {{192, 0, 0}, 24},    /* protocol assignments */
    {{192, 0, 2}, 24},    /* documentation */
    {{192, 88, 99}, 24},  /* 6to4 relays, withdrawn */
    {{192, 168}, 16},     /* private */
    {{198, 18}, 15},      /* benchmarks */
    {{198, 51, 100}, 24}, /* documentation */
    {{203, 0, 113}, 24},  /* documentation */
    {{224}, 4},           /* multicast */
    {{240}, 4},           /* reserved; broadcast */
};

/* Within 2000::/3. */
static const range special_v6[] = {
    {{0x20, 0x01, 0x00}, 23},       /* protocol assignments: Teredo, ORCHID, benchmarks */
    {{0x20, 0x01, 0x0d, 0xb8}, 32}, /* documentation */
    {{0x3f, 0xff, 0x00}, 20},       /* documentation */
};
static const range global_v6 = {{0x20}, 3};

/* Forms that carry an IPv4 address, at that byte. */
static const struct {
	range range;
	size_t at;
} carriers[] = {
    {{{[10] = 0xff, [11] = 0xff}, 96}, 12}, /* ::ffff:a.b.c.d, mapped */
    {{{0x00, 0x64, 0xff, 0x9b}, 96}, 12},   /* 64:ff9b::a.b.c.d, NAT64 */
    {{{0x20, 0x02}, 16}, 2},                /* 2002:ab:cd::, 6to4 */
};

static bool is_within(const uint8_t *address, const range *range)
{
	size_t whole = range->bits / 8;
	unsigned rest = range->bits % 8;

	if (memcmp(address, range->prefix, whole) != 0) {
		return false;
	}
	return rest == 0 || ((address[whole] ^ range->prefix[whole]) >> (8 - rest)) == 0;
}

static bool is_one_of(const uint8_t *address, const range *ranges, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (is_within(address, &ranges[i])) {
			return true;
		}
	}
	return false;
}

static bool is_public_v4(const uint8_t *address)
{
	return !is_one_of(address, special_v4, sizeof special_v4 / sizeof special_v4[0]);
}

static bool is_public_v6(const uint8_t *address)
{
	for (size_t i = 0; i < sizeof carriers / sizeof carriers[0]; i++) {
		if (is_within(address, &carriers[i].range)) {
			return is_public_v4(address + carriers[i].at);
		}
	}
	return is_within(address, &global_v6) && !is_one_of(address, special_v6, sizeof special_v6 / sizeof special_v6[0]);
}

bool address_is_public(const struct sockaddr *address, socklen_t length)
{
	if (address->sa_family == AF_INET && length >= sizeof(struct sockaddr_in)) {
		struct sockaddr_in v4;
		memcpy(&v4, address, sizeof v4);
		return is_public_v4((const uint8_t *)&v4.sin_addr);
	}
	if (address->sa_family == AF_INET6 && length >= sizeof(struct sockaddr_in6)) {
		struct sockaddr_in6 v6;
		memcpy(&v6, address, sizeof v6);
		return is_public_v6(v6.sin6_addr.s6_addr);
	}
	return false;
}
