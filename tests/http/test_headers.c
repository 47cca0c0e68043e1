/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_headers.c: which headers are replayed, and that what is stored of them comes back byte for
 * byte, in both forms that the contract's response_headers can have; what cannot be sent as a
 * header never gets through.
 */
#include "support.h"

/* ---- Which ---- */

static void credentials_framing_and_hop_by_hop_headers_are_never_kept_whatever_the_list_says(void **state)
{
	(void)state;
	static const char *const never[] = {"Set-Cookie",
	                                    "set-cookie",
	                                    "SET-COOKIE",
	                                    "Set-Cookie2",
	                                    "WWW-Authenticate",
	                                    "Proxy-Authenticate",
	                                    "Authentication-Info",
	                                    "Proxy-Authentication-Info",
	                                    "Authorization",
	                                    "Proxy-Authorization",
	                                    "X-Auth-Token",
	                                    "X-CSRF-Token",
	                                    "Connection",
	                                    "Keep-Alive",
	                                    "Proxy-Connection",
	                                    "TE",
	                                    "X-Auth-Token",
	                                    "X-CSRF-Token",
	                                    "X-Api-Key",
	                                    "Acme-ApiKey",
	                                    "X-Access-Token-Next",
	                                    "X-Client-Secret",
	                                    "X-JWT",
	                                    "Trailer",
	                                    "Transfer-Encoding",
	                                    "Upgrade",
	                                    "Content-Length",
	                                    "Date",
	                                    "Server",
	                                    "Age",
	                                    "Via",
	                                    "Accept-Ranges",
	                                    "X-Accel-Redirect",
	                                    "X-Accel-Expires",
	                                    "Idempotency-Replayed",
	                                    "Idempotency-Traceparent",
	                                    "Idempotency-Key",
	                                    "Once-Key",
	                                    "once-fence",
	                                    "Once-"};
	for (size_t i = 0; i < COUNT(never); i++) {
		http_text name = text_of(never[i]);
		http_text all = text_of("*");
		assert_true(http_header_never(name));
		assert_false(http_header_kept(name, NULL, 0));
		assert_false(http_header_kept(name, &name, 1));
		assert_false(http_header_kept(name, &all, 1));
	}
}

static void what_describes_the_answer_is_kept_by_default_and_nothing_unknown(void **state)
{
	(void)state;
	static const char *const kept[] = {"Content-Type",
	                                   "content-type",
	                                   "CONTENT-ENCODING",
	                                   "Content-Disposition",
	                                   "Location",
	                                   "Link",
	                                   "ETag",
	                                   "Last-Modified",
	                                   "Cache-Control",
	                                   "Vary",
	                                   "Expires",
	                                   "Retry-After",
	                                   "X-Request-Id",
	                                   "x-anything",
	                                   "Access-Control-Allow-Origin",
	                                   "Access-Control-Allow-Credentials",
	                                   "X-Continuation-Token",
	                                   "X-Key"};
	static const char *const dropped[] = {"",  "Unknown",     "Locations", "Locatio",     "Content",
	                                      "X", "Set-Cookies", "Dat",       "Acces-Token", "Secre"};
	for (size_t i = 0; i < COUNT(kept); i++) {
		assert_true(http_header_kept(text_of(kept[i]), NULL, 0));
		assert_false(http_header_never(text_of(kept[i])));
	}
	for (size_t i = 0; i < COUNT(dropped); i++) {
		assert_false(http_header_kept(text_of(dropped[i]), NULL, 0));
		assert_false(http_header_never(text_of(dropped[i])));
	}
}

static void an_allow_list_takes_the_place_of_the_default_one(void **state)
{
	(void)state;
	http_text allowed[] = {text_of("Content-Type"), text_of("my-*")};
	assert_true(http_header_kept(text_of("content-TYPE"), allowed, 2));
	assert_true(http_header_kept(text_of("My-Header"), allowed, 2));
	assert_true(http_header_kept(text_of("my-"), allowed, 2));
	assert_false(http_header_kept(text_of("my"), allowed, 2));
	assert_false(http_header_kept(text_of("Content-Types"), allowed, 2));
	assert_false(http_header_kept(text_of("Location"), allowed, 2));
	assert_false(http_header_kept(text_of(""), allowed, 2));
}

static void a_client_may_not_send_what_the_gateway_says_to_the_upstream_in_any_spelling(void **state)
{
	(void)state;
	static const char *const reserved[] = {"Once-Tenant",
	                                       "once-key",
	                                       "ONCE-FENCE",
	                                       "Once-",
	                                       "Once_Key",
	                                       "once_scope",
	                                       "Idempotency-Replayed",
	                                       "Idempotency-Traceparent",
	                                       "idempotency_replayed",
	                                       "Idempotency_Replayed"};
	static const char *const free_names[] = {"",
	                                         "Once",
	                                         "Onc",
	                                         "Oncekey",
	                                         "X-Once-Key",
	                                         "Idempotency-Key",
	                                         "Idempotency-Replaye",
	                                         "Idempotency-Replayed2",
	                                         "Idempotency-Traceparents",
	                                         "Idempotency-Trace",
	                                         "Content-Type"};
	for (size_t i = 0; i < COUNT(reserved); i++) {
		assert_true(http_header_reserved(text_of(reserved[i])));
	}
	for (size_t i = 0; i < COUNT(free_names); i++) {
		assert_false(http_header_reserved(text_of(free_names[i])));
	}
}

/* ---- Stored and read again ---- */

static void check_header(const http_header *header, const char *name, const char *value, size_t value_length)
{
	assert_int_equal(header->name.length, strlen(name));
	assert_memory_equal(header->name.data, name, header->name.length);
	assert_int_equal(header->value.length, value_length);
	assert_memory_equal(header->value.data, value, value_length);
}

static void order_repetition_and_every_byte_survive(void **state)
{
	(void)state;
	char bytes[256];
	size_t length = 0;
	for (int c = 1; c < 256; c++) {
		if (c != '\r' && c != '\n') {
			bytes[length++] = (char)c;
		}
	}
	const http_header headers[] = {
	    {text_of("X-B"), text_of("2")},
	    {text_of("x-a"), text_of("1")},
	    {text_of("X-B"), text_of("1")},
	    {text_of("X-Empty"), text_of("")},
	    {text_of("X-Quotes"), text_of("\"a\" \\ \t b")},
	    {text_of("X-Utf8"), text_of("caf\xc3\xa9")},
	    {text_of("X-Latin1"), text_of("caf\xe9")},
	    {text_of("X-Bytes"), {bytes, length}},
	    {text_of("x-b"), text_of("2")},
	};
	char *json = NULL;
	http_header *decoded = NULL;
	size_t count = 0;
	assert_true(http_headers_encode(headers, COUNT(headers), &json));
	assert_true(http_headers_decode(json, &decoded, &count));
	assert_int_equal(count, COUNT(headers));
	for (size_t i = 0; i < count; i++) {
		check_header(&decoded[i], headers[i].name.data, headers[i].value.data, headers[i].value.length);
	}
	/* Whatever the database's encoding is, it takes this. */
	for (const char *at = json; *at != '\0'; at++) {
		assert_true(*at >= ' ' && *at <= '~');
	}
	free(decoded);
	free(json);
}

static void the_stored_form_is_an_object_of_pairs(void **state)
{
	(void)state;
	const http_header headers[] = {{text_of("Content-Type"), text_of("text/plain")},
	                               {text_of("X-Name"), text_of("caf\xe9")}};
	char *json = NULL;
	assert_true(http_headers_encode(headers, 2, &json));
	assert_string_equal(json, "{\"h\": [[\"Content-Type\", \"text/plain\"], [\"X-Name\", null, \"636166e9\"]]}");
	free(json);
	assert_true(http_headers_encode(NULL, 0, &json));
	assert_string_equal(json, "{\"h\": []}");
	free(json);
}

static void a_header_that_could_end_the_head_early_is_not_stored(void **state)
{
	(void)state;
	const http_header headers[] = {
	    {text_of("X-A"), text_of("a\r\nSet-Cookie: b")},
	    {text_of("X-A"), text_of("a\nb")},
	    {text_of("X-A"), text_of("a\rb")},
	    {text_of("X-A"), {"a\0b", 3}},
	    {text_of("X A"), text_of("a")},
	    {text_of("X:A"), text_of("a")},
	    {text_of(""), text_of("a")},
	    {text_of("X\nA"), text_of("a")},
	    {{"X\0A", 3}, text_of("a")},
	    {text_of("X-\xc3\xa9"), text_of("a")},
	    {text_of("X-Good"), text_of("a")},
	};
	char *json = NULL;
	assert_true(http_headers_encode(headers, COUNT(headers), &json));
	assert_string_equal(json, "{\"h\": [[\"X-Good\", \"a\"]]}");
	free(json);
}

typedef struct decode_case {
	const char *json;
	const char *lines; /* "name=value\n" each; NULL: refused */
} decode_case;

static const decode_case decode_cases[] = {
    /* No headers. */
    {"{}", ""},
    {" { } ", ""},
    {"{\"h\": []}", ""},
    {"{\"h\":[ ] }", ""},
    /* Pairs, with and without spaces. */
    {"{\"h\": [[\"A\", \"1\"], [\"B\", \"2\"], [\"A\", \"3\"]]}", "A=1\nB=2\nA=3\n"},
    {" {\"h\":[[\"A\",\"1\"]]} ", "A=1\n"},
    {"{ \"h\" : [ [ \"A\" , \"1\" ] , [ \"B\" , null , \"6162\" ] ] }", "A=1\nB=ab\n"},
    {"{\"\\u0068\": [[\"A\", \"1\"]]}", NULL}, /* jsonb writes an h as an h */
    {"{\"h\": [[\"A\", null, \"\"]]}", "A=\n"},
    {"{\"h\": [[\"A\", null, \"fFFf\"]]}", "A=\xff\xff\n"},
    {"{\"h\": [[\"A\", \"1\"]], \"B\": \"2\"}", NULL},
    {"{\"B\": \"2\", \"h\": [[\"A\", \"1\"]]}", NULL},
    {"{\"h\": [[\"A\", \"1\"], \"B\"]}", NULL},
    {"{\"h\": [[\"A\"]]}", NULL},
    {"{\"h\": [[]]}", NULL},
    {"{\"h\": [[\"A\", \"1\", \"2\"]]}", NULL},
    {"{\"h\": [[\"A\", 1]]}", NULL},
    {"{\"h\": [[\"A\", null]]}", NULL},
    {"{\"h\": [[\"A\", null, \"6\"]]}", NULL},
    {"{\"h\": [[\"A\", null, \"6g\"]]}", NULL},
    {"{\"h\": [[\"A\", null, 61]]}", NULL},
    {"{\"h\": [[\"A\", null \"61\"]]}", NULL},
    {"{\"h\": [[\"A\", \"1\"],]}", NULL},
    {"{\"h\": [[\"A\", \"1\"]", NULL},
    {"{\"h\": [[\"A\", \"1\"]]", NULL},
    {"{\"h\": [[\"A\", \"1\"]]} x", NULL},
    /* Flat. */
    {"{\"Content-Type\": \"text/plain\"}", "Content-Type=text/plain\n"},
    {"{\"Link\": [\"a\", \"b\"], \"X\": \"c\"}", "Link=a\nLink=b\nX=c\n"},
    {"{\"Link\": []}", ""},
    {"{\"Location\": null, \"X\": \"c\"}", "X=c\n"},
    {"{\"Retry-After\": 5, \"X\": [-1.5, \"b\"]}", "Retry-After=5\nX=-1.5\nX=b\n"},
    {"{\"h\": \"a\"}", "h=a\n"},
    {"{\"h\": [\"a\"]}", "h=a\n"},
    {"{\"h\": [\"a\"], \"X\": \"c\"}", "h=a\nX=c\n"},
    {"{\"X\": \"caf\xc3\xa9 \\u00e9 \\ud83d\\ude00 \\u20ac\"}",
     "X=caf\xc3\xa9 \xc3\xa9 \xf0\x9f\x98\x80 \xe2\x82\xac\n"},
    {"{\"X\": \"\\\"\\\\\\/\\t\\b\\f\"}", "X=\"\\/\t\b\f\n"},
    {"{\"\\u0058\": \"a\"}", "X=a\n"},
    {"{\"X\": true}", NULL},
    {"{\"X\": {}}", NULL},
    {"{\"X\": [[\"a\"]]}", NULL},
    {"{\"X\": [null]}", NULL},
    {"{\"X\": nul}", NULL},
    {"{\"X\": nulll}", NULL},
    {"{\"X\": \"a\",}", NULL},
    {"{\"X\" \"a\"}", NULL},
    {"{\"X\"}", NULL},
    {"{X: \"a\"}", NULL},
    {"{\"X\": \"a}", NULL},
    {"{\"X\": \"a\\\"}", NULL},
    {"{\"X\": \"a\\", NULL},
    {"{\"X\": \"\\x\"}", NULL},
    {"{\"X\": \"\\u12\"}", NULL},
    {"{\"X\": \"\\u12g4\"}", NULL},
    {"{\"X\": \"\\ud83d\"}", NULL},
    {"{\"X\": \"\\ud83d\\u0041\"}", NULL},
    {"{\"X\": \"\\ud83dx\"}", NULL},
    {"{\"X\": \"\\ude00\"}", NULL},
    {"{\"X\": \"a\tb\"}", NULL},
    /* Could end the head early. */
    {"{\"X\": \"a\\r\\nSet-Cookie: b\"}", NULL},
    {"{\"X\": \"a\\nb\"}", NULL},
    {"{\"X\": \"a\\u000db\"}", NULL},
    {"{\"X\": \"a\\u0000b\"}", NULL},
    {"{\"X Y\": \"a\"}", NULL},
    {"{\"X\\r\\nY\": \"a\"}", NULL},
    {"{\"\": \"a\"}", NULL},
    {"{\"h\": [[\"X\", null, \"0d0a\"]]}", NULL},
    {"{\"h\": [[\"X\", null, \"00\"]]}", NULL},
    {"{\"h\": [[\"X:\", \"a\"]]}", NULL},
    /* No object. */
    {"", NULL},
    {" ", NULL},
    {"{", NULL},
    {"{} {}", NULL},
    {"[]", NULL},
    {"null", NULL},
    {"\"h\"", NULL},
};

static void check_decoding(const decode_case *tried)
{
	char *copy = malloc(strlen(tried->json) + 1);
	strcpy(copy, tried->json);
	http_header *headers = NULL;
	size_t count = 0;
	bool good = http_headers_decode(copy, &headers, &count);
	free(copy); /* the result does not lean on it */
	if (good != (tried->lines != NULL)) {
		fail_msg("%s was %s", tried->json, good ? "taken" : "refused");
	}
	char lines[1024] = "";
	size_t at = 0;
	for (size_t i = 0; i < count; i++) {
		at += (size_t)snprintf(lines + at, sizeof lines - at, "%.*s=%.*s\n", (int)headers[i].name.length,
		                       headers[i].name.data, (int)headers[i].value.length, headers[i].value.data);
	}
	assert_string_equal(lines, good ? tried->lines : "");
	assert_int_equal(headers != NULL, count > 0);
	free(headers);
}

static void each_stored_text_gives_its_headers_or_is_refused_whole(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(decode_cases); i++) {
		check_decoding(&decode_cases[i]);
	}
}

static void nothing_stored_is_no_headers(void **state)
{
	(void)state;
	http_header *headers = (http_header *)state;
	size_t count = 1;
	assert_true(http_headers_decode(NULL, &headers, &count));
	assert_null(headers);
	assert_int_equal(count, 0);
}

static void headers_have_a_limit_both_ways(void **state)
{
	(void)state;
	static http_header headers[HTTP_HEADERS_MAX + 1];
	for (size_t i = 0; i < COUNT(headers); i++) {
		headers[i] = (http_header){text_of("X-Many"), text_of("v")};
	}
	char *json = NULL;
	http_header *decoded = NULL;
	size_t count = 0;
	assert_false(http_headers_encode(headers, HTTP_HEADERS_MAX + 1, &json));
	assert_true(http_headers_encode(headers, HTTP_HEADERS_MAX, &json));
	assert_true(http_headers_decode(json, &decoded, &count));
	assert_int_equal(count, HTTP_HEADERS_MAX);
	free(decoded);
	/* One more, by hand. */
	size_t length = strlen(json);
	json = realloc(json, length + 32);
	strcpy(json + length - 2, ", [\"X\", \"y\"]]}");
	assert_false(http_headers_decode(json, &decoded, &count));
	free(json);
}

static void without_memory_nothing_is_encoded_or_decoded_and_nothing_leaks(void **state)
{
	(void)state;
	static char big[5000];
	memset(big, 'b', sizeof big - 1);
	const http_header headers[] = {{text_of("X-Big"), text_of(big)}, {text_of("X-Small"), text_of("s")}};
	char *json = NULL;
	http_header *decoded = NULL;
	size_t count = 0;
	int fails = 0;
	for (memory_countdown = 1;; fails++, memory_countdown = fails + 1) {
		bool good = http_headers_encode(headers, 2, &json);
		memory_countdown = -1;
		if (good) {
			break;
		}
		assert_null(json);
	}
	assert_true(fails > 1);
	memory_countdown = 1;
	assert_false(http_headers_decode(json, &decoded, &count));
	memory_countdown = -1;
	assert_null(decoded);
	assert_int_equal(count, 0);
	free(json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(credentials_framing_and_hop_by_hop_headers_are_never_kept_whatever_the_list_says),
	    cmocka_unit_test(what_describes_the_answer_is_kept_by_default_and_nothing_unknown),
	    cmocka_unit_test(an_allow_list_takes_the_place_of_the_default_one),
	    cmocka_unit_test(a_client_may_not_send_what_the_gateway_says_to_the_upstream_in_any_spelling),
	    cmocka_unit_test(order_repetition_and_every_byte_survive),
	    cmocka_unit_test(the_stored_form_is_an_object_of_pairs),
	    cmocka_unit_test(a_header_that_could_end_the_head_early_is_not_stored),
	    cmocka_unit_test(each_stored_text_gives_its_headers_or_is_refused_whole),
	    cmocka_unit_test(nothing_stored_is_no_headers),
	    cmocka_unit_test(headers_have_a_limit_both_ways),
	    cmocka_unit_test(without_memory_nothing_is_encoded_or_decoded_and_nothing_leaks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
