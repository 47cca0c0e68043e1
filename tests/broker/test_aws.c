/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_aws.c: signatures against those of the test suite that AWS publishes (aws-sig-v4-test-suite);
 * attributes, groups, and XML.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aws.h"
#include "aws_attributes.h"
#include "aws_sign.h"
#include "sqs.h"

#define DATE "20150830T123600Z"
#define TOKEN                                                                                                          \
	"AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuw"  \
	"thAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHN"  \
	"VXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/"      \
	"oLxBA=="

typedef struct vector {
	const char *name, *method, *query, *body;
	http_header headers[4];
	size_t count;
	const char *names, *signature;
} vector;

#define HOST                                                                                                           \
	{                                                                                                                  \
		"Host", "example.amazonaws.com"                                                                                \
	}
#define DATED                                                                                                          \
	{                                                                                                                  \
		"X-Amz-Date", DATE                                                                                             \
	}

static const vector vectors[] = {
    {"get-vanilla",
     "GET",
     "",
     "",
     {HOST, DATED},
     2,
     "host;x-amz-date",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-vanilla-query-order-key-case",
     "GET",
     "Param1=value1&Param2=value2",
     "",
     {HOST, DATED},
     2,
     "host;x-amz-date",
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-header-value-trim",
     "GET",
     "",
     "",
     {HOST, {"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}, DATED},
     4,
     "host;my-header1;my-header2;x-amz-date",
     "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
    {"post-vanilla",
     "POST",
     "",
     "",
     {DATED, HOST},
     2,
     "host;x-amz-date",
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
    {"post-header-value-case",
     "POST",
     "",
     "",
     {HOST, DATED, {"My-Header1", "VALUE1"}},
     3,
     "host;my-header1;x-amz-date",
     "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
    {"post-sts-header-before",
     "POST",
     "",
     "",
     {{"X-Amz-Security-Token", TOKEN}, HOST, DATED},
     3,
     "host;x-amz-date;x-amz-security-token",
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"},
    {"post-x-www-form-urlencoded",
     "POST",
     "",
     "Param1=value1",
     {{"Content-Type", "application/x-www-form-urlencoded"}, HOST, DATED},
     3,
     "content-type;host;x-amz-date",
     "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
};

static void signatures_are_those_that_aws_publishes(void **state)
{
	char given[AWS_AUTHORIZATION_BYTES], expected[AWS_AUTHORIZATION_BYTES];

	(void)state;
	for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
		const vector *each = &vectors[i];
		const aws_signing signing = {.method = each->method,
		                             .path = "/",
		                             .query = each->query,
		                             .headers = each->headers,
		                             .header_count = each->count,
		                             .body = {.data = each->body, .length = strlen(each->body)},
		                             .date = DATE,
		                             .region = "us-east-1",
		                             .service = "service",
		                             .access_key = "AKIDEXAMPLE",
		                             .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
		snprintf(expected, sizeof expected,
		         "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=%s, "
		         "Signature=%s",
		         each->names, each->signature);
		print_message("%s\n", each->name);
		assert_true(aws_sign(&signing, given));
		assert_string_equal(given, expected);
	}
}

static void a_date_is_written_as_the_signature_wants_it(void **state)
{
	char date[AWS_DATE_BYTES];

	(void)state;
	aws_date(1440938160, date);
	assert_string_equal(date, DATE);
}

static void what_is_too_long_to_be_signed_is_refused(void **state)
{
	char given[AWS_AUTHORIZATION_BYTES];
	char key[2 * AWS_AUTHORIZATION_BYTES];
	aws_signing signing = {.method = "POST",
	                       .path = "/",
	                       .query = "",
	                       .date = DATE,
	                       .region = "r",
	                       .service = "s",
	                       .secret_key = "x",
	                       .access_key = key};

	(void)state;
	memset(key, 'k', sizeof key);
	key[sizeof key - 1] = '\0';
	assert_false(aws_sign(&signing, given));
	signing.access_key = "k";
	assert_true(aws_sign(&signing, given));
	signing.date = "2015";
	assert_false(aws_sign(&signing, given));
}

/* ---- attributes */

static aws_header header_of(const char *name, const char *value)
{
	return (aws_header){.name = name, .value = {.data = value, .length = strlen(value)}};
}

static void ten_headers_are_ten_attributes_and_of_eleven_two_share_the_tenth(void **state)
{
	static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
	aws_header headers[11];
	aws_attributes attributes;

	(void)state;
	for (size_t i = 0; i < 11; i++) {
		headers[i] = header_of(names[i], "1");
	}
	aws_attributes_make(headers, 10, &attributes);
	assert_int_equal(attributes.count, 10);
	assert_null(attributes.rest);
	assert_string_equal(attributes.items[9].name, "j");
	assert_int_equal(aws_attributes_bytes(&attributes), 10 * (1 + 6 + 1));
	aws_attributes_clear(&attributes);
	aws_attributes_make(headers, 11, &attributes);
	assert_int_equal(attributes.count, 10);
	assert_string_equal(attributes.items[9].name, AWS_REST_NAME);
	assert_string_equal(attributes.rest, "{\"j\":\"1\",\"k\":\"1\"}");
	aws_attributes_clear(&attributes);
	aws_attributes_make(NULL, 0, &attributes);
	assert_int_equal(attributes.count, 0);
}

static void what_can_be_no_attribute_is_in_the_one_that_is_shared(void **state)
{
	const aws_header headers[] = {header_of("good", "1"),        header_of("good", "2"),     header_of("a b", "3"),
	                              header_of("empty", ""),        header_of("AWS.x", "4"),    header_of("..", "5"),
	                              header_of(AWS_REST_NAME, "6"), header_of("binary", "\xff")};
	aws_attributes attributes;

	(void)state;
	aws_attributes_make(headers, sizeof headers / sizeof headers[0], &attributes);
	assert_int_equal(attributes.count, 3);
	assert_string_equal(attributes.items[0].name, "good");
	assert_string_equal(attributes.items[1].name, "binary");
	assert_true(aws_attribute_is_binary(&attributes.items[1]));
	assert_string_equal(attributes.rest,
	                    "{\"good\":\"2\",\"a b\":\"3\",\"empty\":\"\",\"AWS.x\":\"4\",\"..\":\"5\",\"" AWS_REST_NAME
	                    "\":\"6\"}");
	json_t *json = aws_attributes_json(&attributes);
	assert_string_equal(json_string_value(json_object_get(json_object_get(json, "binary"), "BinaryValue")), "/w==");
	assert_string_equal(json_string_value(json_object_get(json_object_get(json, "good"), "StringValue")), "1");
	json_decref(json);
	aws_attributes_clear(&attributes);
}

static void a_control_character_makes_a_value_bytes(void **state)
{
	const aws_header control = header_of("x", "a\x01"), line = header_of("x", "a\nb\t\r");

	(void)state;
	assert_true(aws_attribute_is_binary(&control));
	assert_false(aws_attribute_is_binary(&line));
}

static once_bytes key_of(const char *text)
{
	return (once_bytes){.data = text, .length = text == NULL ? 0 : strlen(text)};
}

static void a_group_is_the_key_or_its_hash_or_the_message_alone(void **state)
{
	char group[AWS_GROUP_BYTES], other[AWS_GROUP_BYTES];
	char longest[130];

	(void)state;
	memset(longest, 'k', sizeof longest);
	longest[128] = '\0';
	aws_group(key_of("order-7/x"), "id", group);
	assert_string_equal(group, "order-7/x");
	aws_group(key_of(longest), "id", group);
	assert_string_equal(group, longest);
	aws_group(key_of(NULL), "id", group);
	assert_string_equal(group, AWS_GROUP_OF_ONE "id");
	aws_group(key_of(""), "id", group);
	aws_group(key_of(" "), "id", other);
	assert_int_equal(strncmp(group, AWS_GROUP_HASHED, strlen(AWS_GROUP_HASHED)), 0);
	assert_string_not_equal(group, other);
	aws_group(key_of(AWS_GROUP_OF_ONE "x"), "id", group);
	assert_int_equal(strncmp(group, AWS_GROUP_HASHED, strlen(AWS_GROUP_HASHED)), 0);
}

/* ---- names and XML */

static void a_queue_is_a_name_or_a_url(void **state)
{
	static const char *const right[] = {"orders", "Orders_1-x", "orders.fifo",
	                                    "https://sqs.eu-central-1.amazonaws.com/1/orders.fifo"};
	static const char *const wrong[] = {"", ".fifo", "a.b", "a b", "a/b", "https://h/", "https://h/a.b"};

	(void)state;
	for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
		assert_true(sqs_is_queue(right[i]));
	}
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		assert_false(sqs_is_queue(wrong[i]));
	}
	assert_true(sqs_is_fifo(right[3]));
	assert_false(sqs_is_fifo(right[0]));
	assert_string_equal(sqs_name(right[3]), "orders.fifo");
}

static void assert_xml(const char *xml, const char *expected)
{
	char *text = aws_xml_text((once_bytes){.data = xml, .length = strlen(xml)}, "Code");

	if (expected == NULL) {
		assert_null(text);
	} else {
		assert_non_null(text);
		assert_string_equal(text, expected);
	}
	free(text);
}

static void an_elements_text_is_found_in_xml(void **state)
{
	(void)state;
	assert_xml("<E><Code>Throttling</Code></E>", "Throttling");
	assert_xml("<Code></Code>", "");
	assert_xml("<Code>a &lt;b&gt; &amp;amp; &quot;c&apos; &unknown; &</Code>", "a <b> &amp; \"c' &unknown; &");
	assert_xml("<Code>open", NULL);
	assert_xml("</Code><Code>", NULL);
	assert_xml("", NULL);
	assert_xml("<Codes>x</Codes>", NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(signatures_are_those_that_aws_publishes),
	    cmocka_unit_test(a_date_is_written_as_the_signature_wants_it),
	    cmocka_unit_test(what_is_too_long_to_be_signed_is_refused),
	    cmocka_unit_test(ten_headers_are_ten_attributes_and_of_eleven_two_share_the_tenth),
	    cmocka_unit_test(what_can_be_no_attribute_is_in_the_one_that_is_shared),
	    cmocka_unit_test(a_control_character_makes_a_value_bytes),
	    cmocka_unit_test(a_group_is_the_key_or_its_hash_or_the_message_alone),
	    cmocka_unit_test(a_queue_is_a_name_or_a_url),
	    cmocka_unit_test(an_elements_text_is_found_in_xml),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
