/* SPDX-License-Identifier: PostgreSQL */
/* test_render.c: the templates of the console, and what its filters write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "render.h"

#define SOURCE(n, t)                                                                                                   \
	{                                                                                                                  \
		.name = (n), .text = (t), .length = sizeof(t) - 1                                                              \
	}

/* The first source, with the document in it. */
static void renders(const template_source *sources, size_t count, const char *json, const char *wanted)
{
	char *problem = NULL;
	size_t length = 0;
	templates *templates = templates_parse(sources, count, &problem);
	json_t *document = json_loads(json, JSON_ALLOW_NUL, NULL);

	assert_null(problem);
	assert_non_null(document);
	char *text = templates_render(templates, sources[0].name, document, &length);
	assert_non_null(text);
	assert_int_equal(length, strlen(text));
	assert_string_equal(text, wanted);
	free(text);
	json_decref(document);
	templates_free(templates);
}

static void gives(const char *text, const char *json, const char *wanted)
{
	const template_source source = {.name = "page", .text = text, .length = strlen(text)};

	renders(&source, 1, json, wanted);
}

static void refuses(const char *text, const char *wanted)
{
	const template_source source = {.name = "page", .text = text, .length = strlen(text)};
	char *problem = NULL;

	assert_null(templates_parse(&source, 1, &problem));
	assert_string_equal(problem, wanted);
	free(problem);
}

static void every_value_is_escaped(void **state)
{
	(void)state;
	gives("<a title=\"{{v}}\">{{v}}</a>", "{\"v\": \"<b a='1' c=\\\"2\\\">&\"}",
	      "<a title=\"&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\">&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;</a>");
	gives("{{v|json}}", "{\"v\": {\"<i>\": \"&\"}}", "{\n  &quot;&lt;i&gt;&quot;: &quot;&amp;&quot;\n}");
	gives("{{v|time}} {{v|age}} {{v|bytes}} {{v|number}}", "{\"v\": \"<\"}", "&lt; &lt; &lt; &lt;");
	gives("{{v}}", "{\"v\": [\"<\"]}", "[&quot;&lt;&quot;]");
	gives("{{v}}", "{\"v\": \"a\\u0000b\"}",
	      "a\xEF\xBF\xBD"
	      "b");
}

static void there_is_no_form_that_is_not_escaped(void **state)
{
	(void)state;
	refuses("{{{v}}}", "page:1: not a name: {v");
	refuses("\n{{&v}}", "page:2: not a name: &v");
	refuses("{{=<% %>=}}", "page:1: not a name: =<% %>=");
}

static void names_are_looked_up_outwards_and_the_rest_inwards(void **state)
{
	(void)state;
	gives("{{#a}}{{b}}{{c}}{{/a}}", "{\"a\": {\"b\": 1}, \"b\": 2, \"c\": 3}", "13");
	gives("{{a.b.c}}|{{a.x.c}}|{{x.b}}", "{\"a\": {\"b\": {\"c\": true}}, \"b\": 2}", "true||");
	/* A null hides what is outside, as a value that is there. */
	gives("{{#a}}{{b}}{{/a}}", "{\"a\": {\"b\": null, \"c\": 1}, \"b\": 2}", "");
	gives("{{ a }}{{\na\n}}", "{\"a\": 1}", "11");
	gives("{{missing}}", "{}", "");
}

static void a_section_runs_for_each_element_once_for_what_is_true_and_not_for_what_is_false(void **state)
{
	static const char *const falses[] = {"null", "false", "0", "0.0", "\"\"", "[]", "{}"};
	static const char *const trues[] = {"true", "1", "0.5", "-1", "\"x\"", "{\"a\": 0}"};
	char json[64];

	(void)state;
	gives("{{#a}}[{{.}}]{{/a}}", "{\"a\": [1, \"x\", false, null, 0]}", "[1][x][false][][0]");
	gives("{{#a}}{{#b}}{{.}}{{n}} {{/b}}{{/a}}", "{\"a\": [{\"b\": [1, 2], \"n\": \"x\"}, {\"b\": [3], \"n\": \"y\"}]}",
	      "1x 2x 3y ");
	for (size_t i = 0; i < sizeof falses / sizeof falses[0]; i++) {
		snprintf(json, sizeof json, "{\"a\": %s}", falses[i]);
		gives("{{#a}}yes{{/a}}{{^a}}no{{/a}}", json, "no");
	}
	for (size_t i = 0; i < sizeof trues / sizeof trues[0]; i++) {
		snprintf(json, sizeof json, "{\"a\": %s}", trues[i]);
		gives("{{#a}}yes{{/a}}{{^a}}no{{/a}}", json, "yes");
	}
	gives("{{^a}}{{b}}{{/a}}", "{\"b\": 1}", "1");
	gives("{{#a}}{{^b}}{{c}}{{/b}}{{/a}}", "{\"a\": [{\"c\": 1}, {\"b\": 1, \"c\": 2}]}", "1");
}

static void a_partial_sees_what_its_place_sees(void **state)
{
	static const template_source sources[] = {
	    SOURCE("page", "{{#a}}<{{>one}}>{{/a}}{{! a comment, {{ with braces }}"),
	    SOURCE("one", "{{b}}{{>two}}"),
	    SOURCE("two", "{{c}}"),
	};

	(void)state;
	renders(sources, 3, "{\"a\": [{\"b\": 1}, {\"b\": 2}], \"c\": \"&\"}", "<1&amp;><2&amp;>");
}

static void a_template_that_is_wrong_is_refused_with_its_line(void **state)
{
	(void)state;
	refuses("a\n{{#b}}", "page:2: it does not end: #b");
	refuses("{{#b}}\n{{/c}}", "page:2: another section is open: /c");
	refuses("{{/c}}", "page:1: no section is open: /c");
	refuses("{{a", "page:1: a tag does not end");
	refuses("{{}}", "page:1: not a name: ");
	refuses("{{a b}}", "page:1: not a name: a b");
	refuses("{{a|html}}", "page:1: an unknown filter: html");
	refuses("{{#a|url}}{{/a}}", "page:1: not a name: a|url");
	refuses("{{>none}}", "page:1: no such partial: none");
}

static void what_would_not_end_or_not_fit_gives_nothing(void **state)
{
	static const template_source endless = SOURCE("page", "x{{>page}}");
	static const template_source loops = SOURCE("page", "{{#a}}{{#a}}{{#a}}{{#a}}{{.}}{{/a}}{{/a}}{{/a}}{{/a}}");
	char *problem = NULL;
	size_t length = 0;
	json_t *document = json_loads("{\"a\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,"
	                              "29,30,31,32,33,34,35,36,37,38,39,40]}",
	                              0, NULL);

	(void)state;
	templates *templates = templates_parse(&endless, 1, &problem);
	assert_null(templates_render(templates, "page", document, &length));
	assert_null(templates_render(templates, "other", document, &length));
	templates_free(templates);
	templates = templates_parse(&loops, 1, &problem);
	assert_null(templates_render(templates, "page", document, &length));
	templates_free(templates);
	json_decref(document);
}

static void filters_say_values_as_people_do(void **state)
{
	(void)state;
	gives("{{v|age}}", "{\"v\": 200000}", "3 m 20 s");
	gives("{{v|age}}", "{\"v\": 250}", "250 ms");
	gives("{{v|age}}", "{\"v\": 59999.9}", "59 s");
	gives("{{v|age}}", "{\"v\": 3600000}", "1 h");
	gives("{{v|age}}", "{\"v\": 90061000}", "1 d 1 h");
	gives("{{v|age}}", "{\"v\": -5000}", "-5 s");
	gives("{{v|bytes}}", "{\"v\": 0}", "0 B");
	gives("{{v|bytes}}", "{\"v\": 1572864}", "1.5 MiB");
	gives("{{v|bytes}}", "{\"v\": 20480}", "20 KiB");
	gives("{{v|number}}", "{\"v\": 1234567}", "1,234,567");
	gives("{{v|number}}", "{\"v\": -123}", "-123");
	gives("{{v|number}}", "{\"v\": -1234.5}", "-1,234.50");
	gives("{{v|number}}", "{\"v\": 1e300}", "1e300");
	gives("{{v|time}}", "{\"v\": \"2026-11-30T19:20:01.25+00:00\"}", "2026-11-30 19:20:01Z");
	gives("{{v|time}}", "{\"v\": \"2026-11-30T19:20:01-03:30\"}", "2026-11-30 22:50:01Z");
	gives("{{v|time}}", "{\"v\": \"2026-01-01T00:20:01+05:30\"}", "2025-12-31 18:50:01Z");
	gives("{{v|time}}", "{\"v\": \"infinity\"}", "infinity");
	gives("{{v|url}}", "{\"v\": \"a b&c=\xC3\xA4/<?\"}", "a%20b%26c%3D%C3%A4%2F%3C%3F");
	gives("{{v|url}}", "{\"v\": 17}", "17");
	gives("{{#v}}{{.|number}} {{/v}}", "{\"v\": [1000, 2]}", "1,000 2 ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_value_is_escaped),
	    cmocka_unit_test(there_is_no_form_that_is_not_escaped),
	    cmocka_unit_test(names_are_looked_up_outwards_and_the_rest_inwards),
	    cmocka_unit_test(a_section_runs_for_each_element_once_for_what_is_true_and_not_for_what_is_false),
	    cmocka_unit_test(a_partial_sees_what_its_place_sees),
	    cmocka_unit_test(a_template_that_is_wrong_is_refused_with_its_line),
	    cmocka_unit_test(what_would_not_end_or_not_fit_gives_nothing),
	    cmocka_unit_test(filters_say_values_as_people_do),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
