/* SPDX-License-Identifier: PostgreSQL */
/* key_again.c: for fuzz_message.c: does the gateway read this Idempotency-Key as that key? In a file of its own: two headers are called http.h. */
#include <string.h>

#include "../../lib/http/http.h"

bool key_again(const char *value, const char *key);

bool key_again(const char *value, const char *key)
{
	char read[HTTP_KEY_MAX + 1];
	size_t length = 0;

	return http_key_parse((http_text){value, strlen(value)}, true, HTTP_KEY_MAX, read, &length) == HTTP_KEY_GOOD &&
	       strcmp(read, key) == 0;
}
