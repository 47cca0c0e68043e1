/* SPDX-License-Identifier: PostgreSQL */
/* signature.c: see signature.h. */
#include "signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES_MIN 24

bool signature_read_key(const char *text, signature_key *key)
{
	static const char prefix[] = "whsec_";
	unsigned char bytes[SIGNATURE_KEY_BYTES_MAX + 3];
	size_t length = strlen(text);

	if (strncmp(text, prefix, sizeof prefix - 1) != 0) {
		return false;
	}
	text += sizeof prefix - 1;
	length -= sizeof prefix - 1;
	if (length == 0 || length % 4 != 0 || length / 4 * 3 > sizeof bytes) {
		return false;
	}
	int decoded = EVP_DecodeBlock(bytes, (const unsigned char *)text, (int)length);
	/* It counts the padding as bytes. */
	for (size_t i = 1; i <= 2 && text[length - i] == '='; i++) {
		decoded--;
	}
	if (decoded < KEY_BYTES_MIN || decoded > SIGNATURE_KEY_BYTES_MAX) {
		return false;
	}
	memcpy(key->bytes, bytes, (size_t)decoded);
	key->length = (size_t)decoded;
	return true;
}

bool signature_make(const signature_key *keys, size_t count, const char *id, const char *timestamp, once_bytes body,
                    char *text)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned int digest_length = 0;
	size_t id_length = strlen(id), timestamp_length = strlen(timestamp);
	size_t length = id_length + 1 + timestamp_length + 1 + body.length;
	unsigned char *content = malloc(length);
	unsigned char *at = content;
	bool good = content != NULL;

	if (good) {
		at = (unsigned char *)memcpy(at, id, id_length) + id_length;
		*at++ = '.';
		at = (unsigned char *)memcpy(at, timestamp, timestamp_length) + timestamp_length;
		*at++ = '.';
		if (body.length > 0) {
			memcpy(at, body.data, body.length);
		}
	}
	for (size_t i = 0; good && i < count; i++) {
		good = HMAC(EVP_sha256(), keys[i].bytes, (int)keys[i].length, content, length, digest, &digest_length) != NULL;
		if (good) {
			memcpy(text, "v1,", 3);
			text += 3 + EVP_EncodeBlock((unsigned char *)text + 3, digest, (int)digest_length);
			*text++ = i + 1 < count ? ' ' : '\0';
		}
	}
	free(content);
	return good;
}
