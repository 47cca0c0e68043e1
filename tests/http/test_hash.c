/* SPDX-License-Identifier: PostgreSQL */
/*
 * test_hash.c: a fingerprint made from pieces is that of the whole request, wherever it is cut;
 * what the hash covers, byte by byte; canonical JSON for callers without a session. No server: the
 * session is made up, with its salt known.
 */
#include <openssl/evp.h>

#include "support.h"

#include "internal.h"
#include "pgonce_batcher.h"

static const unsigned char salt[ONCE_SALT_BYTES] = {1, 2, 3, 250};

/* Small numbers that are the same in each run. */
static uint32_t random_state = 12345;

static uint32_t pick(uint32_t limit)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % limit;
}

static void random_text(char *out, size_t length_max)
{
	size_t length = pick((uint32_t)length_max);
	for (size_t i = 0; i < length; i++) {
		out[i] = (char)(1 + pick(255));
	}
	out[length] = '\0';
}

static once_fingerprint whole(const char *method, const char *target, const char *content_type, once_bytes body,
                              bool canonical)
{
	once_session session = {.salted = true, .salt_tenant = "t"};
	memcpy(session.salt, salt, sizeof salt);
	once_fingerprint fingerprint;
	once_error *error = NULL;
	assert_int_equal(
	    once_fingerprint_request(&session, "t", method, target, content_type, body, canonical, &fingerprint, &error),
	    ONCE_OK);
	return fingerprint;
}

static once_fingerprint in_pieces(const char *method, const char *target, const char *content_type, once_bytes body)
{
	once_hash *hash = NULL;
	once_error *error = NULL;
	once_fingerprint fingerprint;
	assert_int_equal(once_hash_start(salt, method, target, content_type, body.length, &hash, &error), ONCE_OK);
	const char *at = body.data;
	size_t left = body.length;
	while (left > 0) {
		size_t length = pick(4) == 0 ? 0 : 1 + pick((uint32_t)left);
		assert_int_equal(once_hash_add(hash, (once_bytes){at, length}, &error), ONCE_OK);
		at += length;
		left -= length;
	}
	assert_int_equal(once_hash_finish(hash, &fingerprint, &error), ONCE_OK);
	once_hash_free(hash);
	return fingerprint;
}

static void pieces_give_the_fingerprint_of_the_whole_wherever_they_are_cut(void **state)
{
	(void)state;
	for (int i = 0; i < 3000; i++) {
		char method[20];
		char target[300];
		char content_type[60];
		char body[2000];
		random_text(method, sizeof method);
		random_text(target, sizeof target);
		random_text(content_type, sizeof content_type);
		size_t length = pick(sizeof body);
		for (size_t j = 0; j < length; j++) {
			body[j] = (char)pick(256);
		}
		once_bytes bytes = {body, length};
		const char *type = pick(8) == 0 ? NULL : content_type;
		once_fingerprint a = whole(method, target, type, bytes, false);
		once_fingerprint b = in_pieces(method, target, type, bytes);
		assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
	}
}

/* The hash written down once more, from the words of pgonce.h. */
static void what_is_hashed_is_salt_tag_and_each_part_after_its_length(void **state)
{
	(void)state;
	static const char text[] = "r\0\0\0\0\0\0\0\4POST\0\0\0\0\0\0\0\1t\0\0\0\0\0\0\0\5hello\0\0\0\0\0\0\0\2/a";
	unsigned char expected[ONCE_FINGERPRINT_BYTES];
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	assert_int_equal(EVP_DigestInit_ex(context, EVP_sha256(), NULL), 1);
	assert_int_equal(EVP_DigestUpdate(context, salt, sizeof salt), 1);
	assert_int_equal(EVP_DigestUpdate(context, text, sizeof text - 1), 1);
	assert_int_equal(EVP_DigestFinal_ex(context, expected, NULL), 1);
	EVP_MD_CTX_free(context);
	once_fingerprint found = in_pieces("POST", "/a", "t", (once_bytes){"hello", 5});
	assert_memory_equal(found.bytes, expected, sizeof expected);
}

static void a_redirected_request_has_the_fingerprint_of_one_that_began_there(void **state)
{
	(void)state;
	once_hash *hash = NULL;
	once_error *error = NULL;
	once_fingerprint here;
	once_fingerprint there;
	assert_int_equal(once_hash_start(salt, "POST", "/here", "t", 5, &hash, &error), ONCE_OK);
	assert_int_equal(once_hash_add(hash, (once_bytes){"hello", 5}, &error), ONCE_OK);
	assert_int_equal(once_hash_finish(hash, &here, &error), ONCE_OK);
	static const char *const targets[] = {"/there", "/here", "", "/a/much/longer/target?than=the&first"};
	for (size_t i = 0; i < COUNT(targets); i++) {
		once_fingerprint wanted = in_pieces("POST", targets[i], "t", (once_bytes){"hello", 5});
		assert_int_equal(once_hash_redirect(hash, targets[i], &there, &error), ONCE_OK);
		assert_memory_equal(there.bytes, wanted.bytes, sizeof wanted.bytes);
		assert_int_equal(memcmp(there.bytes, here.bytes, sizeof here.bytes) == 0, i == 1);
	}
	once_hash_free(hash);
}

static void no_two_requests_run_together(void **state)
{
	(void)state;
	once_fingerprint all[] = {
	    in_pieces("POST", "/a", "t", (once_bytes){"b", 1}),   in_pieces("POST/", "a", "t", (once_bytes){"b", 1}),
	    in_pieces("POST", "/at", "", (once_bytes){"b", 1}),   in_pieces("POST", "/a", "tb", (once_bytes){"", 0}),
	    in_pieces("POST", "/a", NULL, (once_bytes){"b", 1}),  in_pieces("PATCH", "/a", "t", (once_bytes){"b", 1}),
	    in_pieces("POST", "/a", "t", (once_bytes){"b\0", 2}),
	};
	for (size_t i = 0; i < COUNT(all); i++) {
		for (size_t j = 0; j < i; j++) {
			assert_memory_not_equal(all[i].bytes, all[j].bytes, sizeof all[i].bytes);
		}
	}
}

static void check_usage(once_code code, once_error **error)
{
	assert_int_equal(code, ONCE_USAGE);
	assert_non_null(*error);
	once_error_free(*error);
	*error = NULL;
}

static void pieces_must_add_up_to_what_was_announced(void **state)
{
	(void)state;
	once_hash *hash = NULL;
	once_error *error = NULL;
	once_fingerprint fingerprint;
	assert_int_equal(once_hash_start(salt, "POST", "/", NULL, 3, &hash, &error), ONCE_OK);
	check_usage(once_hash_finish(hash, &fingerprint, &error), &error);
	assert_int_equal(once_hash_add(hash, (once_bytes){"ab", 2}, &error), ONCE_OK);
	check_usage(once_hash_finish(hash, &fingerprint, &error), &error);
	check_usage(once_hash_add(hash, (once_bytes){"cd", 2}, &error), &error);
	check_usage(once_hash_add(hash, (once_bytes){"c", SIZE_MAX}, &error), &error);
	check_usage(once_hash_add(hash, (once_bytes){NULL, 1}, &error), &error);
	check_usage(once_hash_redirect(hash, "/", &fingerprint, &error), &error);
	/* A refused piece has left no trace. */
	assert_int_equal(once_hash_add(hash, (once_bytes){"c", 1}, &error), ONCE_OK);
	assert_int_equal(once_hash_finish(hash, &fingerprint, &error), ONCE_OK);
	once_fingerprint expected = whole("POST", "/", NULL, (once_bytes){"abc", 3}, false);
	assert_memory_equal(fingerprint.bytes, expected.bytes, sizeof expected.bytes);
	/* Finished: nothing more. */
	check_usage(once_hash_add(hash, (once_bytes){"", 0}, &error), &error);
	check_usage(once_hash_finish(hash, &fingerprint, &error), &error);
	check_usage(once_hash_redirect(NULL, "/", &fingerprint, &error), &error);
	check_usage(once_hash_redirect(hash, NULL, &fingerprint, &error), &error);
	check_usage(once_hash_redirect(hash, "/", NULL, &error), &error);
	once_hash_free(hash);
	once_hash_free(NULL);
	hash = NULL;
	check_usage(once_hash_start(NULL, "POST", "/", NULL, 0, &hash, &error), &error);
	check_usage(once_hash_start(salt, NULL, "/", NULL, 0, &hash, &error), &error);
	check_usage(once_hash_start(salt, "POST", NULL, NULL, 0, &hash, &error), &error);
	check_usage(once_hash_add(NULL, (once_bytes){"", 0}, &error), &error);
	check_usage(once_hash_finish(NULL, &fingerprint, &error), &error);
	assert_null(hash);
}

static once_fingerprint canonical_first(const char *json)
{
	once_error *error = NULL;
	char *canonical = NULL;
	size_t length = 0;
	once_bytes body = {json, strlen(json)};
	assert_int_equal(once_json_canonical(body, &canonical, &length, &error), ONCE_OK);
	if (canonical != NULL) {
		body = (once_bytes){canonical, length};
	}
	once_fingerprint fingerprint = in_pieces("POST", "/", "application/json", body);
	free(canonical);
	return fingerprint;
}

static void canonical_json_gives_the_same_fingerprint_both_ways(void **state)
{
	(void)state;
	static const char *const texts[] = {"{\"b\": 1, \"a\": [1.0, {\"d\": null, \"c\": \"\\u0041\"}]}", "[]", "no JSON",
	                                    "{\"a\":1,\"a\":2}", ""};
	for (size_t i = 0; i < COUNT(texts); i++) {
		once_fingerprint a = whole("POST", "/", "application/json", (once_bytes){texts[i], strlen(texts[i])}, true);
		once_fingerprint b = canonical_first(texts[i]);
		assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
	}
	once_fingerprint a = canonical_first("{\"a\":1,\"b\":[true]}");
	once_fingerprint b = canonical_first(" { \"b\" : [ true ] , \"a\" : 1 } ");
	once_fingerprint c = canonical_first("{\"a\":1.0,\"b\":[true]}");
	once_fingerprint d = canonical_first("{\"a\":1.01,\"b\":[true]}");
	assert_memory_equal(a.bytes, b.bytes, sizeof a.bytes);
	assert_memory_equal(a.bytes, c.bytes, sizeof a.bytes);
	assert_memory_not_equal(a.bytes, d.bytes, sizeof a.bytes);
}

static void what_is_no_json_has_no_canonical_form_and_is_no_error(void **state)
{
	(void)state;
	once_error *error = NULL;
	char *canonical = (char *)"x";
	size_t length = 1;
	assert_int_equal(once_json_canonical((once_bytes){"{", 1}, &canonical, &length, &error), ONCE_OK);
	assert_null(canonical);
	assert_int_equal(length, 0);
	assert_int_equal(once_json_canonical((once_bytes){NULL, 0}, &canonical, &length, &error), ONCE_OK);
	assert_null(canonical);
	check_usage(once_json_canonical((once_bytes){"{}", 2}, NULL, &length, &error), &error);
	check_usage(once_json_canonical((once_bytes){"{}", 2}, &canonical, NULL, &error), &error);
}

static void without_memory_it_says_so_and_nothing_leaks(void **state)
{
	(void)state;
	static const char json[] = "{\"b\":[1,2,{\"c\":\"d\"}],\"a\":{\"e\":null}}";
	int fails = 0;
	for (;; fails++) {
		once_hash *hash = NULL;
		char *canonical = NULL;
		size_t length = 0;
		memory_countdown = fails + 1;
		once_code code = once_json_canonical((once_bytes){json, sizeof json - 1}, &canonical, &length, NULL);
		if (code == ONCE_OK) {
			assert_non_null(canonical);
			code = once_hash_start(salt, "POST", "/", NULL, 0, &hash, NULL);
		}
		memory_countdown = -1;
		once_hash_free(hash);
		free(canonical);
		if (code == ONCE_OK) {
			break;
		}
		assert_int_equal(code, ONCE_NO_MEMORY);
	}
	assert_true(fails > 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(pieces_give_the_fingerprint_of_the_whole_wherever_they_are_cut),
	    cmocka_unit_test(what_is_hashed_is_salt_tag_and_each_part_after_its_length),
	    cmocka_unit_test(a_redirected_request_has_the_fingerprint_of_one_that_began_there),
	    cmocka_unit_test(no_two_requests_run_together),
	    cmocka_unit_test(pieces_must_add_up_to_what_was_announced),
	    cmocka_unit_test(canonical_json_gives_the_same_fingerprint_both_ways),
	    cmocka_unit_test(what_is_no_json_has_no_canonical_form_and_is_no_error),
	    cmocka_unit_test(without_memory_it_says_so_and_nothing_leaks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
