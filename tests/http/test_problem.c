/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_problem.c: the gateway's own answers: their form, their limits, and that docs/reference/problems.md
 * explains each.
 */
#include "support.h"

static size_t write_plain(http_problem problem, const char *base, const char *detail, char *out, size_t size)
{
	return http_problem_write(problem, &(http_occurrence){.type_base = base, .detail = detail}, out, size);
}

static void each_problem_has_a_status_and_a_slug_and_a_title_of_its_own(void **state)
{
	(void)state;
	for (int i = 0; i < HTTP_PROBLEMS; i++) {
		assert_in_range(http_problem_status((http_problem)i), 400, 599);
		for (int j = 0; j < i; j++) {
			assert_string_not_equal(http_problem_slug((http_problem)i), http_problem_slug((http_problem)j));
			assert_string_not_equal(http_problem_title((http_problem)i), http_problem_title((http_problem)j));
		}
	}
}

static void a_document_has_type_title_status_detail_and_whether_to_retry(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	size_t length = write_plain(HTTP_PROBLEM_MISMATCH, NULL, NULL, out, sizeof out);
	assert_string_equal(out,
	                    "{\"type\":\"urn:pgonce:problem:mismatch\",\"title\":\"Idempotency-Key is already used\","
	                    "\"status\":422,\"detail\":\"This key was first used with another request, whose answer is "
	                    "untouched. Use a new key for a new request.\",\"retryable\":false}");
	assert_int_equal(length, strlen(out));
}

static void an_occurrence_has_its_own_status_and_the_request_that_it_is_about(void **state)
{
	static const char id[] = "0123456789abcdef0123456789abcdef";
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	char long_id[HTTP_PROBLEM_REQUEST_MAX + 1];
	http_occurrence occurrence = {.status = 504, .request = {.data = id, .length = 32}};
	http_problem_write(HTTP_PROBLEM_UNANSWERED, &occurrence, out, sizeof out);
	assert_non_null(strstr(out, "\"status\":504,"));
	assert_non_null(
	    strstr(out, ",\"instance\":\"urn:pgonce:request:0123456789abcdef0123456789abcdef\",\"retryable\":true}"));
	/* A proxy may have given it: what does not belong into a URN makes no instance. */
	memset(long_id, 'a', sizeof long_id);
	const http_text bad[] = {
	    {.data = "", .length = 0}, {.data = "a\"b", .length = 3}, {.data = long_id, .length = sizeof long_id}};
	for (size_t i = 0; i < COUNT(bad); i++) {
		occurrence.request = bad[i];
		http_problem_write(HTTP_PROBLEM_UNANSWERED, &occurrence, out, sizeof out);
		assert_null(strstr(out, "instance"));
	}
}

static void a_retry_is_worth_it_where_time_alone_helps(void **state)
{
	(void)state;
	for (int i = 0; i < HTTP_PROBLEMS; i++) {
		bool expected = i == HTTP_PROBLEM_ACTIVE || i == HTTP_PROBLEM_UNAVAILABLE || i == HTTP_PROBLEM_NOT_STORED ||
		                i == HTTP_PROBLEM_UNREACHED || i == HTTP_PROBLEM_UNANSWERED || i == HTTP_PROBLEM_BUSY ||
		                i == HTTP_PROBLEM_TIMED_OUT;
		assert_int_equal(http_problem_retryable((http_problem)i), expected);
	}
}

/* clang-format off */
static const struct {
	http_problem problem;
	const char *more;
	const char *document;
} cases[] = {
    /* spec: problem-cases */
    {HTTP_PROBLEM_ACTIVE, "", "{\"type\":\"urn:pgonce:problem:active\",\"title\":\"A request with this Idempotency-Key is outstanding\",\"status\":409,\"detail\":\"The first request with this key is still running. Send the same request again later.\",\"instance\":\"urn:pgonce:request:0123456789abcdef0123456789abcdef\",\"retryable\":true}"},
    {HTTP_PROBLEM_KEY_MALFORMED, "The key is empty.", "{\"type\":\"urn:pgonce:problem:key-malformed\",\"title\":\"Idempotency-Key is malformed\",\"status\":400,\"detail\":\"Nothing was done. The key is empty.\",\"instance\":\"urn:pgonce:request:0123456789abcdef0123456789abcdef\",\"retryable\":false}"},
    {HTTP_PROBLEM_KEY_MALFORMED, "a\"b\\c\012d\303\251\177\360\237\230\200~", "{\"type\":\"urn:pgonce:problem:key-malformed\",\"title\":\"Idempotency-Key is malformed\",\"status\":400,\"detail\":\"Nothing was done. a\\\"b\\\\c\\u000ad???????~\",\"instance\":\"urn:pgonce:request:0123456789abcdef0123456789abcdef\",\"retryable\":false}"},
    {HTTP_PROBLEM_KEY_MALFORMED, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxyz", "{\"type\":\"urn:pgonce:problem:key-malformed\",\"title\":\"Idempotency-Key is malformed\",\"status\":400,\"detail\":\"Nothing was done. xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxy\",\"instance\":\"urn:pgonce:request:0123456789abcdef0123456789abcdef\",\"retryable\":false}"},
    {HTTP_PROBLEM_KEY_MALFORMED, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"z", "{\"type\":\"urn:pgonce:problem:key-malformed\",\"title\":\"Idempotency-Key is malformed\",\"status\":400,\"detail\":\"Nothing was done. xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"instance\":\"urn:pgonce:request:0123456789abcdef0123456789abcdef\",\"retryable\":false}"},
    {HTTP_PROBLEM_KEY_MALFORMED, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\001z", "{\"type\":\"urn:pgonce:problem:key-malformed\",\"title\":\"Idempotency-Key is malformed\",\"status\":400,\"detail\":\"Nothing was done. xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\",\"instance\":\"urn:pgonce:request:0123456789abcdef0123456789abcdef\",\"retryable\":false}"},
    /* end of spec */
};

/* What may stand before a problem's name, and what may not. */
static const struct {
	const char *base;
	bool good;
} bases[] = {
    /* spec: problem-bases */
    {"urn:pgonce:problem:", true},
    {"https://docs.example/pgonce/problems?lang=en#", true},
    {"!", true},
    {"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", true},
    {"", false},
    {"a b", false},
    {"a\"", false},
    {"a\\", false},
    {"<a", false},
    {"a>", false},
    {"a^", false},
    {"a`", false},
    {"{a", false},
    {"a|", false},
    {"a}", false},
    {"a\012", false},
    {"a\177", false},
    {"caf\303\251", false},
    {"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb", false},
    /* end of spec */
};
/* clang-format on */

static void a_document_is_that_of_all_doors(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		http_occurrence occurrence = {.detail = cases[i].more,
		                              .request = {.data = "0123456789abcdef0123456789abcdef", .length = 32}};
		http_problem_write(cases[i].problem, &occurrence, out, sizeof out);
		assert_string_equal(out, cases[i].document);
	}
}

static void a_detail_is_added_escaped_and_cut_whole(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	write_plain(HTTP_PROBLEM_KEY_MALFORMED, "https://docs.example/problems#", "a\"b\\c\nd\xc3\xa9\x7f", out,
	            sizeof out);
	assert_non_null(strstr(out, "\"type\":\"https://docs.example/problems#key-malformed\""));
	assert_non_null(strstr(out, "\"detail\":\"Nothing was done. a\\\"b\\\\c\\u000ad???\",\"retryable\":false}"));

	/*
	 * Each control character becomes six bytes: the last one that fits is whole, wherever the limit
	 * falls.
	 */
	for (size_t plain = 0; plain < 6; plain++) {
		char detail[2 * HTTP_PROBLEM_DETAIL_MAX];
		memset(detail, '\x01', sizeof detail);
		memset(detail, 'p', plain);
		detail[sizeof detail - 1] = '\0';
		write_plain(HTTP_PROBLEM_KEY_MALFORMED, NULL, detail, out, sizeof out);
		const char *added = strstr(out, "Nothing was done. ") + strlen("Nothing was done. ");
		const char *end = strstr(added, "\",\"retryable\"");
		assert_memory_equal(end - 6, "\\u0001", 6);
		size_t added_bytes = (size_t)(end - added);
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
		size_t length = write_plain((http_problem)i, base, detail, out, HTTP_PROBLEM_BYTES_MAX);
		assert_true(length > sizeof base + HTTP_PROBLEM_DETAIL_MAX && length < HTTP_PROBLEM_BYTES_MAX);
		assert_int_equal(out[length - 1], '}');
		out = realloc(out, length + 1);
		assert_int_equal(write_plain((http_problem)i, base, detail, out, length + 1), length);
		out = realloc(out, length);
		assert_int_equal(write_plain((http_problem)i, base, detail, out, length), 0);
		assert_string_equal(out, "");
		free(out);
	}
	char nothing = 'x';
	assert_int_equal(write_plain(HTTP_PROBLEM_ACTIVE, NULL, NULL, &nothing, 0), 0);
	assert_int_equal(nothing, 'x');
}

static void a_base_that_would_break_the_document_is_not_used(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	char expected[HTTP_PROBLEM_BASE_MAX + 32];
	for (size_t i = 0; i < COUNT(bases); i++) {
		assert_int_equal(http_problem_base_good(bases[i].base), bases[i].good);
		write_plain(HTTP_PROBLEM_ACTIVE, bases[i].base, NULL, out, sizeof out);
		snprintf(expected, sizeof expected, "{\"type\":\"%sactive\"",
		         bases[i].good ? bases[i].base : "urn:pgonce:problem:");
		assert_memory_equal(out, expected, strlen(expected));
	}
}

/* ---- A problem of another gateway ---- */

/* What must not be taken for "nothing was done": a gateway in front would release the key. */
static http_effect effect_of(http_problem problem)
{
	switch (problem) {
	case HTTP_PROBLEM_TOO_LARGE:
		return HTTP_EFFECT_DONE;
	case HTTP_PROBLEM_IN_DOUBT:
	case HTTP_PROBLEM_EXPIRED:
	case HTTP_PROBLEM_NO_ANSWER:
	case HTTP_PROBLEM_NOT_STORED:
	case HTTP_PROBLEM_UNANSWERED:
		return HTTP_EFFECT_UNKNOWN;
	default:
		return HTTP_EFFECT_NONE;
	}
}

static void another_gateways_problem_says_what_became_of_the_request(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	for (int i = 0; i < HTTP_PROBLEMS; i++) {
		http_occurrence occurrence = {.detail = "\"type\": \"", .request = text_of("0123abcd")};
		http_problem_write((http_problem)i, &occurrence, out, sizeof out);
		assert_int_equal(http_problem_effect(text_of(out)), effect_of((http_problem)i));
		occurrence.type_base = "https://docs.example/problems?lang=en#";
		http_problem_write((http_problem)i, &occurrence, out, sizeof out);
		assert_int_equal(http_problem_effect(text_of(out)), effect_of((http_problem)i));
		/* Without a request's id only the default base tells it from a document of anybody's. */
		occurrence.request = (http_text){0};
		http_problem_write((http_problem)i, &occurrence, out, sizeof out);
		assert_int_equal(http_problem_effect(text_of(out)), HTTP_EFFECT_UNSAID);
		occurrence.type_base = NULL;
		http_problem_write((http_problem)i, &occurrence, out, sizeof out);
		assert_int_equal(http_problem_effect(text_of(out)), effect_of((http_problem)i));
		/* Not terminated, and cut. */
		assert_int_equal(http_problem_effect((http_text){.data = out, .length = strlen(out) - 1}), HTTP_EFFECT_UNSAID);
	}
}

static void any_other_text_says_nothing_of_the_effect(void **state)
{
	static const char *const texts[] = {
	    "",
	    "{}",
	    "[]",
	    "\"urn:pgonce:problem:active\"",
	    "urn:pgonce:problem:active",
	    "{\"type\":\"about:blank\"}",
	    "{\"type\":\"https://example.com/active\",\"instance\":\"urn:example:1\"}",
	    "{\"type\":\"https://example.com/active\",\"detail\":\", \\\"instance\\\": \\\"urn:pgonce:request:1\"}",
	    "{\"detail\":\"\\\"type\\\": \\\"urn:pgonce:problem:active\"}",
	    "{\"type\":\"urn:pgonce:problem:\"}",
	    "{\"type\":\"urn:pgonce:problem:soon\"}",
	    "{\"type\":[\"urn:pgonce:problem:active\"]}"};
	(void)state;
	for (size_t i = 0; i < COUNT(texts); i++) {
		assert_int_equal(http_problem_effect(text_of(texts[i])), HTTP_EFFECT_UNSAID);
	}
	static const char *const spelled[] = {" { \"status\" : 409 , \"type\" : \"urn:pgonce:problem:active\" }\n",
	                                      "{\"t\\u0079pe\":\"urn:pgonce:problem:\\u0061ctive\"}"};
	for (size_t i = 0; i < COUNT(spelled); i++) {
		assert_int_equal(http_problem_effect(text_of(spelled[i])), HTTP_EFFECT_NONE);
	}
}

static void without_memory_another_gateways_problem_leaves_doubt(void **state)
{
	(void)state;
	char out[HTTP_PROBLEM_BYTES_MAX];
	write_plain(HTTP_PROBLEM_ACTIVE, NULL, NULL, out, sizeof out);
	memory_countdown = 1;
	http_effect effect = http_problem_effect(text_of(out));
	memory_countdown = -1;
	assert_int_equal(effect, HTTP_EFFECT_UNKNOWN);
}

/* ---- docs/reference/problems.md ---- */

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
			fail_msg("expected in docs/reference/problems.md: %s\nfound: %.80s", head, at == NULL ? "its end" : at);
		}
		at += strlen(head);
		const char *next = strstr(at, "\n## ");
		const char *happened = strstr(at, "\n**What happened.** ");
		const char *advice = strstr(at, "\n**What to do.** ");
		assert_true(happened != NULL && advice != NULL && happened < advice && (next == NULL || advice < next));
	}
	assert_null(strstr(at, "\n## "));
	free(page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(each_problem_has_a_status_and_a_slug_and_a_title_of_its_own),
	    cmocka_unit_test(a_document_has_type_title_status_detail_and_whether_to_retry),
	    cmocka_unit_test(an_occurrence_has_its_own_status_and_the_request_that_it_is_about),
	    cmocka_unit_test(a_retry_is_worth_it_where_time_alone_helps),
	    cmocka_unit_test(a_document_is_that_of_all_doors),
	    cmocka_unit_test(a_detail_is_added_escaped_and_cut_whole),
	    cmocka_unit_test(the_longest_document_fits_and_a_smaller_room_gets_none_of_it),
	    cmocka_unit_test(a_base_that_would_break_the_document_is_not_used),
	    cmocka_unit_test(another_gateways_problem_says_what_became_of_the_request),
	    cmocka_unit_test(any_other_text_says_nothing_of_the_effect),
	    cmocka_unit_test(without_memory_another_gateways_problem_leaves_doubt),
	    cmocka_unit_test(the_page_has_a_section_for_each_problem_in_its_order_and_no_other),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
