/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_redirect.c: which request a client sends that follows a redirect. The first table is RFC
 * 3986's own (section 5.4), without what it calls other schemes.
 */
#include "support.h"

typedef struct redirect {
	const char *location;
	const char *leads_to; /* NULL: nobody knows */
} redirect;

static void check(const char *host, const char *target, const redirect *redirect)
{
	char out[512];
	char found[512] = "";
	http_text to_host;
	http_text to_target;
	bool known = http_redirect(text_of(host), text_of(target), text_of(redirect->location), out, sizeof out, &to_host,
	                           &to_target);
	if (known) {
		snprintf(found, sizeof found, "%.*s %.*s", (int)to_host.length, to_host.data, (int)to_target.length,
		         to_target.data);
	}
	assert_string_equal(found, redirect->leads_to == NULL ? "" : redirect->leads_to);
	for (size_t size = 0; known && size < to_host.length + to_target.length; size++) {
		char *tight = malloc(size + 1);
		(void)http_redirect(text_of(host), text_of(target), text_of(redirect->location), tight, size, &to_host,
		                    &to_target);
		free(tight);
	}
}

static void a_reference_is_resolved_as_the_rfc_does(void **state)
{
	static const redirect redirects[] = {
	    {"http://g/x", "g /x"},
	    {"g", "a /b/c/g"},
	    {"./g", "a /b/c/g"},
	    {"g/", "a /b/c/g/"},
	    {"/g", "a /g"},
	    {"//g", "g /"},
	    {"?y", "a /b/c/d;p?y"},
	    {"g?y", "a /b/c/g?y"},
	    {"#s", "a /b/c/d;p?q"},
	    {"g#s", "a /b/c/g"},
	    {"g?y#s", "a /b/c/g?y"},
	    {";x", "a /b/c/;x"},
	    {"g;x", "a /b/c/g;x"},
	    {"g;x?y#s", "a /b/c/g;x?y"},
	    {"", "a /b/c/d;p?q"},
	    {".", "a /b/c/"},
	    {"./", "a /b/c/"},
	    {"..", "a /b/"},
	    {"../", "a /b/"},
	    {"../g", "a /b/g"},
	    {"../..", "a /"},
	    {"../../", "a /"},
	    {"../../g", "a /g"},
	    {"../../../g", "a /g"},
	    {"../../../../g", "a /g"},
	    {"/./g", "a /g"},
	    {"/../g", "a /g"},
	    {"g.", "a /b/c/g."},
	    {".g", "a /b/c/.g"},
	    {"g..", "a /b/c/g.."},
	    {"..g", "a /b/c/..g"},
	    {"./../g", "a /b/g"},
	    {"./g/.", "a /b/c/g/"},
	    {"g/./h", "a /b/c/g/h"},
	    {"g/../h", "a /b/c/h"},
	    {"g;x=1/./y", "a /b/c/g;x=1/y"},
	    {"g;x=1/../y", "a /b/c/y"},
	    {"g?y/./x", "a /b/c/g?y/./x"},
	    {"g?y/../x", "a /b/c/g?y/../x"},
	    {"g#s/../x", "a /b/c/g"},
	    {"/a//b", "a /a//b"},
	    {"/?a=b", "a /?a=b"},
	    {"?", "a /b/c/d;p?"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof redirects / sizeof redirects[0]; i++) {
		check("a", "/b/c/d;p?q", &redirects[i]);
	}
	check("a", "/", &(redirect){"g", "a /g"});
	check("", "/b", &(redirect){"/g", " /g"});
	check("a:8080", "/b", &(redirect){"/g", "a:8080 /g"});
}

static void another_host_is_as_a_client_will_name_it(void **state)
{
	static const redirect redirects[] = {
	    {"HTTP://G.Test/X", "g.test /X"},
	    {"https://g:443/x", "g /x"},
	    {"http://g:80/x", "g /x"},
	    {"http://g:443/x", "g:443 /x"},
	    {"http://g:8080?y", "g:8080 /?y"},
	    {"http://g", "g /"},
	    {"//g:80/x", "g:80 /x"},
	    {"http://[::1]:80/x", "[::1] /x"},
	    {"http://[2001:db8::80]/x", "[2001:db8::80] /x"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof redirects / sizeof redirects[0]; i++) {
		check("a", "/b/c", &redirects[i]);
	}
}

static void what_is_not_certain_is_not_guessed(void **state)
{
	static const char *const locations[] = {
	    "ftp://g/x",    "mailto:a@b", "http:g",      "http:/g",   "http:///g", "http://u@g/x",
	    "http://g:/x",  "/a b",       "/a\tb",       "/\xc3\xa9", "/<a>",      "/a\\b",
	    "javascript:x", "/a\x01",     "http://:80/", "/\"",       " /a",       "//"};
	(void)state;
	for (size_t i = 0; i < sizeof locations / sizeof locations[0]; i++) {
		check("a", "/b/c", &(redirect){locations[i], NULL});
	}
	check("a", "*", &(redirect){"/g", NULL});
	check("a", "", &(redirect){"/g", NULL});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_reference_is_resolved_as_the_rfc_does),
	    cmocka_unit_test(another_host_is_as_a_client_will_name_it),
	    cmocka_unit_test(what_is_not_certain_is_not_guessed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
