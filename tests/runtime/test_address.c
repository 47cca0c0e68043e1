/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_address.c: which addresses are public: the first and last of each special range, their
 * neighbours, and IPv6 forms of IPv4 addresses.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

#include "address.h"

static bool is_public(const char *text)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

	if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
		return address_is_public((struct sockaddr *)&v4, sizeof v4);
	}
	assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
	return address_is_public((struct sockaddr *)&v6, sizeof v6);
}

static void test_special_addresses_are_not_public(void **state)
{
	static const char *const addresses[] = {
	    "0.0.0.0",
	    "0.255.255.255",
	    "10.0.0.0",
	    "10.255.255.255",
	    "100.64.0.0",
	    "100.127.255.255",
	    "127.0.0.1",
	    "127.255.255.255",
	    "169.254.169.254",
	    "172.16.0.0",
	    "172.31.255.255",
	    "192.0.0.8",
	    "192.0.2.1",
	    "192.88.99.1",
	    "192.168.0.0",
	    "192.168.255.255",
	    "198.18.0.0",
	    "198.19.255.255",
	    "198.51.100.7",
	    "203.0.113.9",
	    "224.0.0.1",
	    "239.255.255.255",
	    "240.0.0.1",
	    "255.255.255.255",
	    "::",
	    "::1",
	    "::127.0.0.1",
	    "::8.8.8.8",
	    "::ffff:127.0.0.1",
	    "::ffff:10.1.2.3",
	    "::ffff:169.254.169.254",
	    "64:ff9b::127.0.0.1",
	    "64:ff9b::a00:1",
	    "64:ff9b:1::1",
	    "100::1",
	    "2001::1",
	    "2001:1ff:ffff::1",
	    "2001:db8::1",
	    "2002:7f00:1::",
	    "2002:a00:1::1",
	    "2002:a9fe:a9fe::",
	    "3fff::1",
	    "3fff:fff:ffff::1",
	    "5f00::1",
	    "fc00::1",
	    "fdff::1",
	    "fe80::1",
	    "febf::1",
	    "fec0::1",
	    "ff02::1",
	    "4000::1",
	    "1fff::1",
	};
	(void)state;
	for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
		if (is_public(addresses[i])) {
			fail_msg("%s", addresses[i]);
		}
	}
}

static void test_others_are(void **state)
{
	static const char *const addresses[] = {
	    "1.0.0.0",     "9.255.255.255",   "11.0.0.0",        "100.63.255.255", "100.128.0.0",      "126.255.255.255",
	    "128.0.0.1",   "169.253.0.1",     "169.255.0.1",     "172.15.255.255", "172.32.0.0",       "192.0.1.1",
	    "192.0.3.1",   "192.167.255.255", "192.169.0.0",     "198.17.255.255", "198.20.0.0",       "198.51.99.1",
	    "203.0.112.1", "203.0.114.1",     "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::",
	    "2000::1",     "2001:200::1",     "2001:db7::1",     "2001:db9::1",    "2003::1",          "2606:4700::1111",
	    "3ffe::1",     "3fff:1000::1",
	};
	(void)state;
	for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
		if (!is_public(addresses[i])) {
			fail_msg("%s", addresses[i]);
		}
	}
}

static void test_what_is_no_address_of_the_internet_is_not(void **state)
{
	struct sockaddr_un local = {.sun_family = AF_UNIX};
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x08080808)};

	(void)state;
	assert_false(address_is_public((struct sockaddr *)&local, sizeof local));
	assert_true(address_is_public((struct sockaddr *)&v4, sizeof v4));
	assert_false(address_is_public((struct sockaddr *)&v4, sizeof v4 - 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_special_addresses_are_not_public),
	    cmocka_unit_test(test_others_are),
	    cmocka_unit_test(test_what_is_no_address_of_the_internet_is_not),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
