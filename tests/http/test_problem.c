/* SPDX-License-Identifier: PostgreSQL */
/* test_problem.c: the gateway's own answers: their form, their limits, and that docs/problems.md explains each. */
#include "support.h"

static const int statuses[HTTP_PROBLEMS] = {
    [HTTP_PROBLEM_KEY_MISSING] = 400,    [HTTP_PROBLEM_KEY_MALFORMED] = 400,  [HTTP_PROBLEM_KEY_REPEATED] = 400,
    [HTTP_PROBLEM_TENANT_MISSING] = 400, [HTTP_PROBLEM_MISMATCH] = 422,       [HTTP_PROBLEM_ACTIVE] = 409,
    [HTTP_PROBLEM_IN_DOUBT] = 409,       [HTTP_PROBLEM_EXPIRED] = 409,        [HTTP_PROBLEM_TOO_LARGE] = 409,
    [HTTP_PROBLEM_NO_ANSWER] = 409,      [HTTP_PROBLEM_BODY_TOO_LARGE] = 413, [HTTP_PROBLEM_REFUSED] = 403,
    [HTTP_PROBLEM_UNAVAILABLE] = 503,    [HTTP_PROBLEM_NOT_STORED] = 503,
};

static void each_problem_has_its_status_and_a_slug_of_its_own(void **state)
{
	(void)state;
	for (int i = 0; i < HTTP_PROBLEMS; i++) {
		assert_int_equal(http_problem_status((http_problem)i), statuses[i]);
		for (int j = 0; j < i; j++) {
			assert_string_not_equal(http_problem_slug((http_problem)i), http_problem_slug((http_problem)j));
			assert_string_not_equal(http_problem_title((http_problem)i), http_problem_title((http_problem)j));
		}
	}
}

static void a_document_has_type_title_status_and_detail(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	size_t length = http_problem_write(HTTP_PROBLEM_MISMATCH, NULL, NULL, out, sizeof out);
	assert_string_equal(out,
	                    "{\"type\":\"urn:pgonce:problem:mismatch\",\"title\":\"Idempotency-Key is already used\","
	                    "\"status\":422,\"detail\":\"This key was first used with another request, whose answer is "
	                    "untouched. Use a new key for a new request.\"}");
	assert_int_equal(length, strlen(out));
}

static void a_detail_is_added_escaped_and_cut_whole(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	http_problem_write(HTTP_PROBLEM_KEY_MALFORMED, "https://docs.example/problems#", "a\"b\\c\nd\xc3\xa9\x7f", out,
	                   sizeof out);
	assert_non_null(strstr(out, "\"type\":\"https://docs.example/problems#key-malformed\""));
	assert_non_null(strstr(out, "\"detail\":\"Nothing was done. a\\\"b\\\\c\\u000ad???\"}"));

	/* Each control character becomes six bytes: the last one that fits is whole, wherever the limit falls. */
	for (size_t plain = 0; plain < 6; plain++) {
		char detail[2 * HTTP_PROBLEM_DETAIL_MAX];
		memset(detail, '\x01', sizeof detail);
		memset(detail, 'p', plain);
		detail[sizeof detail - 1] = '\0';
		size_t length = http_problem_write(HTTP_PROBLEM_KEY_MALFORMED, NULL, detail, out, sizeof out);
		const char *added = strstr(out, "Nothing was done. ") + strlen("Nothing was done. ");
		assert_string_equal(out + length - 8, "\\u0001\"}");
		size_t added_bytes = (size_t)(out + length - 2 - added);
		assert_true(added_bytes <= HTTP_PROBLEM_DETAIL_MAX && added_bytes > HTTP_PROBLEM_DETAIL_MAX - 6);
	}
}

static void the_longest_document_fits_and_a_smaller_room_gets_none_of_it(void **state)
{
	(void)state;
	char base[HTTP_PROBLEM_BASE_MAX + 1];
	char detail[2 * HTTP_PROBLEM_DETAIL_MAX];
	memset(base, 'b', sizeof base);
	base[sizeof base - 1] = '\0';
	memset(detail, 'd', sizeof detail);
	detail[sizeof detail - 1] = '\0';
	for (int i = 0; i < HTTP_PROBLEMS; i++) {
		/* On the heap, so that the sanitizer sees a byte too many. */
		char *out = malloc(HTTP_PROBLEM_BYTES_MAX);
		size_t length = http_problem_write((http_problem)i, base, detail, out, HTTP_PROBLEM_BYTES_MAX);
		assert_true(length > sizeof base + HTTP_PROBLEM_DETAIL_MAX && length < HTTP_PROBLEM_BYTES_MAX);
		assert_int_equal(out[length - 1], '}');
		out = realloc(out, length + 1);
		assert_int_equal(http_problem_write((http_problem)i, base, detail, out, length + 1), length);
		out = realloc(out, length);
		assert_int_equal(http_problem_write((http_problem)i, base, detail, out, length), 0);
		assert_string_equal(out, "");
		free(out);
	}
	char nothing = 'x';
	assert_int_equal(http_problem_write(HTTP_PROBLEM_ACTIVE, NULL, NULL, &nothing, 0), 0);
	assert_int_equal(nothing, 'x');
}

static void a_base_that_would_break_the_document_is_not_used(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "a b", "a\"", "a\\", "<a>", "a\n", "a\x7f", "caf\xc3\xa9", "{a}"};
	char out[HTTP_PROBLEM_BYTES_MAX];
	char long_base[HTTP_PROBLEM_BASE_MAX + 2];
	memset(long_base, 'b', sizeof long_base);
	long_base[sizeof long_base - 1] = '\0';
	assert_false(http_problem_base_good(long_base));
	assert_true(http_problem_base_good(long_base + 1));
	for (size_t i = 0; i < COUNT(bad); i++) {
		assert_false(http_problem_base_good(bad[i]));
		http_problem_write(HTTP_PROBLEM_ACTIVE, bad[i], NULL, out, sizeof out);
		assert_non_null(strstr(out, "\"type\":\"urn:pgonce:problem:active\""));
	}
	assert_true(http_problem_base_good("https://docs.example/pgonce/problems?lang=en#"));
}

/* ---- docs/problems.md ---- */

static char *read_page(void)
{
	FILE *file = fopen(PROBLEMS_PAGE, "r");
	assert_non_null(file);
	char *page = calloc(1, 1 << 16);
	size_t length = fread(page, 1, (1 << 16) - 1, file);
	assert_true(feof(file) && length > 0);
	fclose(file);
	return page;
}

static void the_page_has_a_section_for_each_problem_in_its_order_and_no_other(void **state)
{
	(void)state;
	char *page = read_page();
	const char *at = page;
	for (int i = 0; i < HTTP_PROBLEMS; i++) {
		char head[256];
		snprintf(head, sizeof head, "\n## %s\n\n%d: %s.\n", http_problem_slug((http_problem)i),
		         http_problem_status((http_problem)i), http_problem_title((http_problem)i));
		at = strstr(at, "\n## ");
		if (at == NULL || strncmp(at, head, strlen(head)) != 0) {
			fail_msg("expected in docs/problems.md: %s\nfound: %.80s", head, at == NULL ? "its end" : at);
		}
		at += strlen(head);
		const char *next = strstr(at, "\n## ");
		const char *client = strstr(at, "\n**Client.** ");
		const char *advice = strstr(at, "\n**Operator.** ");
		assert_non_null(strstr(at, "\n**What happened.** "));
		assert_true(client != NULL && advice != NULL && client < advice && (next == NULL || advice < next));
	}
	assert_null(strstr(at, "\n## "));
	free(page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_problem_has_its_status_and_a_slug_of_its_own),
	    cmocka_unit_test(a_document_has_type_title_status_and_detail),
	    cmocka_unit_test(a_detail_is_added_escaped_and_cut_whole),
	    cmocka_unit_test(the_longest_document_fits_and_a_smaller_room_gets_none_of_it),
	    cmocka_unit_test(a_base_that_would_break_the_document_is_not_used),
	    cmocka_unit_test(the_page_has_a_section_for_each_problem_in_its_order_and_no_other),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
