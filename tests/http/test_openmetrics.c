/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_openmetrics.c: labels and numbers as a scraper must be able to read them, whatever text they
 * come from.
 */
#include <math.h>

#include "support.h"

#include "openmetrics.h"

static char *label(const char *text, size_t given)
{
	buffer out = {.length_max = 4096};
	size_t length;
	openmetrics_label(&out, (http_text){.data = text, .length = given});
	char *made = buffer_take(&out, &length);
	assert_non_null(made);
	assert_int_equal(strlen(made), length);
	return made;
}

static void a_label_keeps_characters_and_has_a_mark_in_the_place_of_each_byte_that_is_none(void **state)
{
	(void)state;
	static const struct {
		const char *in;
		const char *out;
	} cases[] = {
	    {"", ""},
	    {"plain", "plain"},
	    {"a\"b\\c\nd", "a\\\"b\\\\c\\nd"},
	    {"\x01\x1f\x7f\r", "\x01\x1f\x7f\r"},
	    {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
	    {"\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
	     "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"},
	    /* Cut, alone, longer than need be, a surrogate, beyond the last one. */
	    {"\xc3", "?"},
	    {"\xc3x", "?x"},
	    {"\xe2\x82", "??"},
	    {"\x80", "?"},
	    {"\xc1\xbf", "??"},
	    {"\xe0\x9f\xbf", "???"},
	    {"\xed\xa0\x80", "???"},
	    {"\xf0\x8f\xbf\xbf", "????"},
	    {"\xf4\x90\x80\x80", "????"},
	    {"\xf5\x80\x80\x80", "????"},
	    {"\xff", "?"},
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		char *made = label(cases[i].in, strlen(cases[i].in));
		assert_string_equal(made, cases[i].out);
		free(made);
	}
	char *zero = label("a\0b", 3);
	assert_string_equal(zero, "a?b");
	free(zero);
}

static void a_number_is_read_back_as_it_was(void **state)
{
	(void)state;
	static const struct {
		double in;
		const char *out;
	} cases[] = {{0, "0"},
	             {-0.0, "-0"},
	             {1, "1"},
	             {-17, "-17"},
	             {9007199254740991.0, "9007199254740991"},
	             {9007199254740992.0, "9007199254740992"},
	             {0.5, "0.5"},
	             {0.1, "0.1"},
	             {1.0 / 3, "0.33333333333333331"},
	             {1e300, "1e+300"},
	             {INFINITY, "+Inf"},
	             {-INFINITY, "-Inf"},
	             {NAN, "NaN"}};
	for (size_t i = 0; i < COUNT(cases); i++) {
		buffer out = {.length_max = 64};
		size_t length;
		openmetrics_number(&out, cases[i].in);
		char *made = buffer_take(&out, &length);
		assert_string_equal(made, cases[i].out);
		assert_true(isnan(cases[i].in) || strtod(made, NULL) == cases[i].in);
		free(made);
	}
}

static void a_family_has_its_type_and_a_help_on_one_line(void **state)
{
	(void)state;
	buffer out = {.length_max = 256};
	size_t length;
	openmetrics_family(&out, "gauge", "pgonce_x", "One\nline");
	char *made = buffer_take(&out, &length);
	assert_string_equal(made, "# TYPE pgonce_x gauge\n# HELP pgonce_x One\\nline\n");
	free(made);
}

static void the_older_format_says_the_same_in_its_own_way(void **state)
{
	(void)state;
	static const char open[] = "# TYPE a counter\n# HELP a Of \\\"a\\\", \\\\ and \\n.\na_total{x=\"\\\"\\\\\"} 1\n"
	                           "# TYPE b gauge\n# HELP b B.\nb 2\n"
	                           "# TYPE c histogram\n# HELP c C.\n# UNIT c seconds\nc_bucket{le=\"+Inf\"} 3\n# EOF\n";
	size_t length = 0;
	char *text = openmetrics_to_prometheus(strdup(open), &length);
	assert_string_equal(text,
	                    "# TYPE a_total counter\n# HELP a_total Of \"a\", \\\\ and \\n.\na_total{x=\"\\\"\\\\\"} 1\n"
	                    "# TYPE b gauge\n# HELP b B.\nb 2\n"
	                    "# TYPE c histogram\n# HELP c C.\nc_bucket{le=\"+Inf\"} 3\n");
	assert_int_equal(length, strlen(text));
	free(text);
	text = openmetrics_to_prometheus(strdup("# EOF\n"), &length);
	assert_non_null(text);
	assert_int_equal(length, 0);
	free(text);
	assert_null(openmetrics_to_prometheus(NULL, &length));
}

static void openmetrics_is_for_who_asks_for_it(void **state)
{
	(void)state;
	static const struct {
		const char *accept;
		bool open;
	} cases[] = {{"", false},
	             {"*/*", false},
	             {"text/plain;version=0.0.4", false},
	             {"application/openmetrics", false},
	             {"application/openmetrics-text", true},
	             {"Application/OpenMetrics-Text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", true}};
	for (size_t i = 0; i < COUNT(cases); i++) {
		http_text accept = {.data = cases[i].accept, .length = strlen(cases[i].accept)};
		assert_true(openmetrics_accepted(accept) == cases[i].open);
	}
}

static void a_buffer_that_is_full_or_finds_no_memory_gives_nothing(void **state)
{
	(void)state;
	size_t length = 0;
	for (size_t max = 0; max < 5; max++) {
		buffer small = {.length_max = max};
		buffer_text(&small, "four");
		buffer_text(&small, "");
		assert_null(buffer_take(&small, &length));
	}
	buffer exact = {.length_max = 5};
	buffer_text(&exact, "four");
	char *made = buffer_take(&exact, &length);
	assert_string_equal(made, "four");
	free(made);
	buffer poor = {.length_max = 64};
	memory_countdown = 1;
	buffer_text(&poor, "four");
	buffer_text(&poor, "more");
	memory_countdown = -1;
	assert_null(buffer_take(&poor, &length));
	buffer formatted = {.length_max = 1024};
	buffer_format(&formatted, "%300d", 1);
	assert_null(buffer_take(&formatted, &length));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_label_keeps_characters_and_has_a_mark_in_the_place_of_each_byte_that_is_none),
	    cmocka_unit_test(a_number_is_read_back_as_it_was),
	    cmocka_unit_test(a_family_has_its_type_and_a_help_on_one_line),
	    cmocka_unit_test(the_older_format_says_the_same_in_its_own_way),
	    cmocka_unit_test(openmetrics_is_for_who_asks_for_it),
	    cmocka_unit_test(a_buffer_that_is_full_or_finds_no_memory_gives_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
