/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_config.c: the configuration file: what is read from it, and what is said of one that is
 * wrong.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "config.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

typedef struct settings {
	const char *dsn, *url, *name;
	int64_t batch, timeout_ms, size, mode, flag;
} settings;

static const config_option table[] = {
    {.name = "dsn", .kind = CONFIG_TEXT, .offset = offsetof(settings, dsn)},
    {.name = "url", .kind = CONFIG_TEXT, .offset = offsetof(settings, url), .required = true, .help = "where to"},
    {.name = "name", .kind = CONFIG_TEXT, .offset = offsetof(settings, name), .standard = "nobody"},
    {.name = "batch",
     .kind = CONFIG_NUMBER,
     .offset = offsetof(settings, batch),
     .minimum = 1,
     .maximum = 10000,
     .standard = "1000"},
    {.name = "timeout",
     .kind = CONFIG_DURATION,
     .offset = offsetof(settings, timeout_ms),
     .minimum = 10,
     .maximum = 7200000,
     .standard = "30s"},
    {.name = "size", .kind = CONFIG_BYTES, .offset = offsetof(settings, size), .minimum = 1, .maximum = 1 << 30},
    {.name = "mode",
     .kind = CONFIG_CHOICE,
     .offset = offsetof(settings, mode),
     .choices = "block|skip",
     .standard = "block"},
    {.name = "flag", .kind = CONFIG_FLAG, .offset = offsetof(settings, flag), .standard = "no"},
    {.name = "route", .kind = CONFIG_REPEATED},
    {.name = "kafka.", .kind = CONFIG_PREFIX},
    {.name = NULL}};
static const config_option *const tables[] = {table};

static config *parse(const char *text)
{
	config *read = NULL;
	char *problem = NULL;

	if (!config_parse("f.conf", text, strlen(text), &read, &problem)) {
		fail_msg("%s", problem);
	}
	assert_null(problem);
	return read;
}

static settings apply(config *read)
{
	settings settings;
	char *problem = NULL;
	const config_section *section = config_find(read, "relay", "r");

	memset(&settings, 0x5a, sizeof settings); /* whatever was there */
	assert_non_null(section);
	if (!config_known(read, section, tables, COUNT(tables), &problem) ||
	    !config_apply(read, section, table, &settings, &problem)) {
		fail_msg("%s", problem);
	}
	return settings;
}

static void test_sections_and_their_entries_come_as_they_are_written(void **state)
{
	config *read = parse("# a comment\n; another\ndsn = host=/tmp dbname='a b'\n\n[relay one]\nurl=a\n  route  =  x -> "
	                     "y  \n\troute = z\n"
	                     "[consume one]\nurl = b\n[relay two.x_y-z]\n");
	const config_section *first = config_find(read, "", ""), *one = config_find(read, "relay", "one");

	(void)state;
	assert_int_equal(config_section_count(read), 4);
	assert_ptr_equal(config_section_at(read, 0), first);
	assert_null(config_section_at(read, 4));
	assert_string_equal(first->entries[0].value, "host=/tmp dbname='a b'");
	assert_int_equal(first->entries[0].line, 3);
	assert_int_equal(one->line, 5);
	assert_int_equal(one->entry_count, 3);
	assert_string_equal(one->entries[1].name, "route");
	assert_string_equal(one->entries[1].value, "x -> y");
	assert_string_equal(one->entries[2].value, "z");
	assert_string_equal(config_find(read, "consume", "one")->entries[0].value, "b");
	assert_int_equal(config_find(read, "relay", "two.x_y-z")->entry_count, 0);
	assert_null(config_find(read, "relay", "three"));
	assert_string_equal(config_path(read), "f.conf");
	config_free(read);
}

static void test_a_value_is_all_that_follows_the_first_equals_sign(void **state)
{
	static const struct {
		const char *written, *read;
	} cases[] = {
	    {"https://host/a;b?c=d#e", "https://host/a;b?c=d#e"},
	    {"a = b", "a = b"},
	    {"header:Name", "header:Name"},
	    {"\"\"", ""},
	    {"\"  kept  \"", "  kept  "},
	    {"\"a # b ; c\"", "a # b ; c"},
	    {"\"\"quoted\"\"", "\"quoted\""},
	    {"it's \"so\"", "it's \"so\""},
	    {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x98", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x98"},
	    {"\\n", "\\n"},
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[256];
		snprintf(text, sizeof text, "[relay r]\nurl = x\nname = %s \t\r\n", cases[i].written);
		config *read = parse(text);
		assert_string_equal(apply(read).name, cases[i].read);
		config_free(read);
	}
}

static void test_line_ends_and_a_byte_order_mark_mean_nothing(void **state)
{
	config *read = parse("\xef\xbb\xbf"
	                     "dsn = a\r\n\r\n[relay r]\r\nurl = b");
	settings settings = apply(read);

	(void)state;
	assert_string_equal(settings.dsn, "a");
	assert_string_equal(settings.url, "b");
	assert_int_equal(config_find(read, "relay", "r")->entries[0].line, 4);
	config_free(read);
}

static void test_units_are_those_of_the_command_line(void **state)
{
	static const struct {
		const char *written;
		int64_t bytes;
	} sizes[] = {{"7", 7},          {"7B", 7},        {"64kB", 65536},  {"64KiB", 65536},
	             {"64KB", 65536},   {"64K", 65536},   {"1MB", 1 << 20}, {"1MiB", 1 << 20},
	             {"1GiB", 1 << 30}, {"1GB", 1 << 30}, {"1G", 1 << 30}};
	char text[64];
	int64_t value = 0;
	char shown[VALUE_SHOWN_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		snprintf(text, sizeof text, "[relay r]\nurl = u\nsize = %s\n", sizes[i].written);
		config *read = parse(text);
		assert_int_equal(apply(read).size, sizes[i].bytes);
		config_free(read);
	}
	assert_true(value_parse(VALUE_DURATION, "2w", &value));
	assert_int_equal(value, INT64_C(14) * 86400 * 1000);
	assert_string_equal(value_show(VALUE_DURATION, value, shown), "14d");
	assert_string_equal(value_show(VALUE_DURATION, 0, shown), "0ms");
	assert_string_equal(value_show(VALUE_BYTES, 1536, shown), "1536");
	assert_string_equal(value_show(VALUE_BYTES, 3 << 20, shown), "3M");
}

static void test_values_are_typed_and_defaults_filled_in(void **state)
{
	config *read = parse("dsn = ours\n[relay r]\nurl = u\ntimeout = 2m\nsize = 64k\nmode = skip\nflag = "
	                     "yes\nkafka.acks = all\nkafka.x = 1\n"
	                     "route = a\nroute = a\n");
	settings all = apply(read);

	(void)state;
	assert_string_equal(all.dsn, "ours");
	assert_string_equal(all.name, "nobody");
	assert_int_equal(all.batch, 1000);
	assert_int_equal(all.timeout_ms, 120000);
	assert_int_equal(all.size, 65536);
	assert_int_equal(all.mode, 1);
	assert_int_equal(all.flag, 1);
	config_free(read);

	read = parse("dsn = ours\n[relay r]\nurl = u\ndsn = mine\n");
	all = apply(read);
	assert_string_equal(all.dsn, "mine");
	assert_int_equal(all.timeout_ms, 30000);
	assert_int_equal(all.size, 0);
	assert_int_equal(all.mode, 0);
	config_free(read);

	read = parse("[relay r]\nurl = u\n");
	assert_null(apply(read).dsn);
	config_free(read);
}

/* What is wrong with the shape. */
static void test_a_file_that_is_wrong_is_refused_with_its_line(void **state)
{
	static const struct {
		const char *text, *problem;
	} cases[] = {
	    {"x\n", "f.conf:1: 'x' is neither a [section] nor option = value"},
	    {"password: hunter2\n", "f.conf:1: 'password' is neither a [section] nor option = value"},
	    {"password: hunter2=\n", "f.conf:1: 'password' is not a valid option name"},
	    {"\n\n= 1", "f.conf:3: '' is not a valid option name"},
	    {"a b = 1", "f.conf:1: 'a b' is not a valid option name"},
	    {"batch = 1", "f.conf:1: batch: only dsn is allowed before the first section"},
	    {"[relay r]\nurl =\n", "f.conf:2: url has no value"},
	    {"[relay r]\nurl = \"abc\n", "f.conf:2: url: the value begins with a double quote and does not end with one"},
	    {"[relay r]\nurl = \"\n", "f.conf:2: url: the value begins with a double quote and does not end with one"},
	    {"[relay r]\nurl = a # b\n", "f.conf:2: url: is the text after '#' a comment?"},
	    {"[relay r]\nurl = a\t; b\n", "f.conf:2: url: is the text after ';' a comment?"},
	    {"[relay r]\nurl = # b\n", "f.conf:2: url: is the text after '#' a comment?"},
	    {"[relay r\n", "f.conf:1: write a section as [relay NAME]"},
	    {"[relay r] # x\n", "f.conf:1: write a section as [relay NAME]"},
	    {"[\n", "f.conf:1: write a section as"},
	    {"[]\n", "f.conf:1: []: unknown kind of section"},
	    {"[relais r]\n", "f.conf:1: [relais r]: unknown kind of section; use [relay NAME] or [consume NAME]"},
	    {"[relay]\n", "f.conf:1: [relay] has no name: write [relay NAME]"},
	    {"[ relay  ]\n", "f.conf:1: [relay] has no name"},
	    {"[relay a b]\n", "f.conf:1: [relay a b]: a name has at most 63 letters"},
	    {"[relay r\xc3\xa9]\n", "f.conf:1: [relay r\xc3\xa9]: a name has at most 63 letters"},
	    {"[relay a123456789b123456789c123456789d123456789e123456789f123456789ghij]\n", "a name has at most 63 letters"},
	    {"[relay r]\n[consume r]\n[relay  r]\n", "f.conf:3: [relay r] already exists, in line 1"},
	    {"[relay r]\nname = a\x01z\n", "f.conf:2: byte 9 of this line (0x01) is a control character"},
	    {"[relay r]\nname = a\rb\n", "f.conf:2: byte 9 of this line (0x0d) is a control character"},
	    {"[relay r]\nname = \xff\n", "f.conf:2: byte 8 of this line (0xff) is not UTF-8"},
	    {"name = \xc0\xaf\n", "(0xc0) is not UTF-8"},
	    {"name = \xed\xa0\x80\n", "(0xed) is not UTF-8"},
	    {"name = \xf4\x90\x80\x80\n", "(0xf4) is not UTF-8"},
	    {"name = \xe2\x82", "(0xe2) is not UTF-8"},
	    {"\xff\xfe[\0r\0", "f.conf:1: byte 1 of this line (0xff) is not UTF-8"},
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		config *read = NULL;
		char *problem = NULL;
		assert_false(config_parse("f.conf", cases[i].text, strlen(cases[i].text), &read, &problem));
		assert_null(read);
		if (strstr(problem, cases[i].problem) == NULL || strncmp(problem, "f.conf:", 7) != 0) {
			fail_msg("case %zu: %s", i, problem);
		}
		free(problem);
	}
}

static void test_a_nul_byte_is_refused_with_its_line(void **state)
{
	static const char text[] = "[relay r]\nurl = a\0b\n";
	config *read = NULL;
	char *problem = NULL;

	(void)state;
	assert_false(config_parse("f.conf", text, sizeof text - 1, &read, &problem));
	assert_string_equal(problem, "f.conf:2: byte 8 of this line (0x00) is a control character: remove it");
	free(problem);
}

static void test_a_line_without_end_is_refused(void **state)
{
	config *read = NULL;
	char *problem = NULL;
	char *text = malloc(20000);

	(void)state;
	memset(text, 'x', 20000);
	assert_false(config_parse("f.conf", text, 20000, &read, &problem));
	assert_string_equal(problem, "f.conf:1: this line has 20000 bytes; at most 16384 are read");
	free(problem);
	memcpy(text, "[relay r]\nname = ", 17);
	assert_true(config_parse("f.conf", text, 10 + 16384, &read, &problem));
	config_free(read);
	free(text);
}

/* What is wrong with an option. */
static void test_an_option_that_is_wrong_is_refused_with_what_would_be_right(void **state)
{
	static const struct {
		const char *text, *problem;
	} cases[] = {
	    {"", "f.conf:1: [relay r]: option url is missing: where to"},
	    {"url = \"\"", "f.conf:2: [relay r] url: is empty: where to"},
	    {"url = a\nbatch = x", "f.conf:3: [relay r] batch: 'x': write a whole number of 1 to 10000"},
	    {"url = a\nbatch = -1", "f.conf:3: [relay r] batch: '-1': write a whole number of 1 to 10000"},
	    {"url = a\nbatch = 1k", "write a whole number of 1 to 10000"},
	    {"url = a\nbatch = 99999999999999999999", "write a whole number of 1 to 10000"},
	    {"url = a\nbatch = 0", "f.conf:3: [relay r] batch: '0': write a whole number of 1 to 10000"},
	    {"url = a\nbatch = 10001", "write a whole number of 1 to 10000"},
	    {"url = a\ntimeout = 30", "f.conf:3: [relay r] timeout: '30': write a duration of 10ms to 2h: a whole number "
	                              "with its unit (ms, s, m, h, d, w)"},
	    {"url = a\ntimeout = 1 s", "write a duration of 10ms to 2h"},
	    {"url = a\ntimeout = 3h", "f.conf:3: [relay r] timeout: '3h': write a duration of 10ms to 2h: a whole number "
	                              "with its unit (ms, s, m, h, d, w)"},
	    {"url = a\ntimeout = 9223372036854775807d", "write a duration of 10ms to 2h"},
	    {"url = a\nsize = 1T",
	     "f.conf:3: [relay r] size: '1T': write a size of 1 to 1G: a whole number, also with k, M or G"},
	    {"url = a\nsize = 2G", "write a size of 1 to 1G"},
	    {"url = a\ntimeout = 1w", "f.conf:3: [relay r] timeout: '1w': write a duration of 10ms to 2h"},
	    {"url = a\nmode = blok", "f.conf:3: [relay r] mode: 'blok': write one of block|skip"},
	    {"url = a\nmode = block|skip", "write one of block|skip"},
	    {"url = a\nflag = true", "f.conf:3: [relay r] flag: 'true': write yes or no"},
	    {"url = a\nbatches = 1", "f.conf:3: [relay r] batches: unknown option; did you mean batch?"},
	    {"url = a\nuri = 1", "did you mean url?"},
	    {"url = a\nnothing_like_it = 1",
	     "unknown option; the options are dsn, url, name, batch, timeout, size, mode, flag, route, kafka.*"},
	    {"url = a\nkafka. = 1", "unknown option"},
	    {"url = a\n\nurl = b", "f.conf:4: [relay r] url: is already set in line 2: remove one of them"},
	    {"url = a\nkafka.x = 1\nkafka.x = 2", "f.conf:4: [relay r] kafka.x: is already set in line 3"},
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[256];
		settings settings;
		char *problem = NULL;
		snprintf(text, sizeof text, "[relay r]\n%s\n", cases[i].text);
		config *read = parse(text);
		const config_section *section = config_find(read, "relay", "r");
		assert_false(config_known(read, section, tables, COUNT(tables), &problem) &&
		             config_apply(read, section, table, &settings, &problem));
		if (strstr(problem, cases[i].problem) == NULL) {
			fail_msg("case %zu: %s", i, problem);
		}
		free(problem);
		config_free(read);
	}
}

static char directory[] = "/tmp/pgonce-config-XXXXXX";

static int make_directory(void **state)
{
	(void)state;
	return mkdtemp(directory) == NULL ? -1 : chdir(directory);
}

static int remove_directory(void **state)
{
	(void)state;
	unlink("f.conf");
	unlink("text");
	return chdir("/") == 0 ? rmdir(directory) : -1;
}

static void write_file(const char *name, const char *text, size_t length, mode_t mode)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0 && write(fd, text, length) == (ssize_t)length && fchmod(fd, mode) == 0 && close(fd) == 0);
}

static void test_a_file_that_cannot_be_read_is_named(void **state)
{
	static const struct {
		const char *path, *problem;
	} cases[] = {
	    {"missing.conf", "missing.conf: cannot be opened: No such file or directory"},
	    {".", ".: is a directory; name the file in it"},
	    {"/dev/zero", "/dev/zero: has more than 1048576 bytes: is this the configuration file?"},
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		config *read = NULL;
		char *problem = NULL;
		assert_false(config_read(cases[i].path, &read, &problem));
		assert_null(read);
		assert_string_equal(problem, cases[i].problem);
		free(problem);
	}
}

static config *read_file(const char *text, mode_t mode)
{
	config *read = NULL;
	char *problem = NULL;

	write_file("f.conf", text, strlen(text), mode);
	if (!config_read("f.conf", &read, &problem)) {
		fail_msg("%s", problem);
	}
	return read;
}

static void test_an_empty_file_has_no_sections(void **state)
{
	config *read = read_file("", 0600);

	(void)state;
	assert_int_equal(config_section_count(read), 1);
	assert_int_equal(config_find(read, "", "")->entry_count, 0);
	config_free(read);
}

static void test_a_secret_that_everybody_may_read_is_warned_of(void **state)
{
	static const struct {
		const char *line;
		mode_t mode;
		bool warned;
	} cases[] = {
	    {"secret = whsec_x", 0644, true},
	    {"secret = whsec_x", 0600, false},
	    {"secret = whsec_x", 0640, false},
	    {"password = x", 0644, true},
	    {"kafka.sasl.password = x", 0644, true},
	    {"url = nats://u:p@h", 0644, true},
	    {"url = nats://h:4222/@x", 0644, true}, /* better once too often */
	    {"url = nats://h:4222", 0644, false},
	    {"dsn = host=h password=p", 0644, true},
	    {"header = Authorization: Bearer x", 0644, true},
	    {"header = Accept: x", 0644, false},
	    {"secret_file = x", 0644, false},
	    {"kafka.ssl.key.location = x", 0644, false},
	};
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char text[128];
		snprintf(text, sizeof text, "[relay r]\n%s\n", cases[i].line);
		config *read = read_file(text, cases[i].mode);
		char *warning = config_exposed(read);
		if (cases[i].warned != (warning != NULL)) {
			fail_msg("case %zu: %s", i, warning != NULL ? warning : "no warning");
		}
		assert_true(warning == NULL ||
		            (strstr(warning, "f.conf:2: [relay r] ") && strstr(warning, "chmod o-r f.conf")));
		free(warning);
		config_free(read);
	}
}

static void test_the_text_of_a_named_file_is_read(void **state)
{
	static const struct {
		const char *text;
		size_t length;
		const char *read, *problem;
	} cases[] = {
	    {"whsec_x\r\n\n", 10, "whsec_x", NULL},
	    {"a\nb", 3, "a\nb", NULL},
	    {"", 0, NULL, "f.conf:2: [relay r] secret_file: the file 'text' cannot be used: it is empty"},
	    {"\n\n", 2, NULL, "it is empty"},
	    {"a\0b", 3, NULL, "it holds a NUL byte"},
	};
	config *read = read_file("[relay r]\nsecret_file = text\n", 0600);
	const config_section *section = config_find(read, "relay", "r");
	char *problem = NULL;

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		write_file("text", cases[i].text, cases[i].length, 0600);
		char *text = config_file_text(read, section, section->entries, &problem);
		if (cases[i].read != NULL) {
			assert_string_equal(text, cases[i].read);
		} else {
			assert_null(text);
			assert_non_null(strstr(problem, cases[i].problem));
		}
		free(problem);
		free(text);
	}
	char *large = calloc(1, 70000);
	memset(large, 'x', 70000);
	write_file("text", large, 70000, 0600);
	assert_null(config_file_text(read, section, section->entries, &problem));
	assert_non_null(strstr(problem, "it has more than 64 kB"));
	free(problem);
	free(large);
	unlink("text");
	assert_null(config_file_text(read, section, section->entries, &problem));
	assert_non_null(strstr(problem, "No such file"));
	free(problem);
	config_free(read);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_sections_and_their_entries_come_as_they_are_written),
	    cmocka_unit_test(test_a_value_is_all_that_follows_the_first_equals_sign),
	    cmocka_unit_test(test_line_ends_and_a_byte_order_mark_mean_nothing),
	    cmocka_unit_test(test_units_are_those_of_the_command_line),
	    cmocka_unit_test(test_values_are_typed_and_defaults_filled_in),
	    cmocka_unit_test(test_a_file_that_is_wrong_is_refused_with_its_line),
	    cmocka_unit_test(test_a_nul_byte_is_refused_with_its_line),
	    cmocka_unit_test(test_a_line_without_end_is_refused),
	    cmocka_unit_test(test_an_option_that_is_wrong_is_refused_with_what_would_be_right),
	    cmocka_unit_test(test_a_file_that_cannot_be_read_is_named),
	    cmocka_unit_test(test_an_empty_file_has_no_sections),
	    cmocka_unit_test(test_a_secret_that_everybody_may_read_is_warned_of),
	    cmocka_unit_test(test_the_text_of_a_named_file_is_read),
	};
	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
