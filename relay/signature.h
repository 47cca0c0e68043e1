/* SPDX-License-Identifier: PostgreSQL */
/*
 * signature.h: signs a webhook as www.standardwebhooks.com specifies (symmetric signatures, v1).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "pgonce.h"

#define SIGNATURE_KEY_BYTES_MAX 64
/* "v1,", 32 bytes in base64, and a space or the NUL */
#define SIGNATURE_BYTES_EACH (3 + 44 + 1)

typedef struct signature_key {
	unsigned char bytes[SIGNATURE_KEY_BYTES_MAX];
	size_t length;
} signature_key;

/* "whsec_" and 24 to 64 bytes in base64. False: the text is no such key. */
bool signature_read_key(const char *text, signature_key *key);
/*
 * One signature for each key, separated by spaces, over "id.timestamp.body". The receiver accepts
 * the call if one of them is right, so a secret can be replaced while both are valid. `text` has
 * room for count * SIGNATURE_BYTES_EACH. False: out of memory.
 */
bool signature_make(const signature_key *keys, size_t count, const char *id, const char *timestamp, once_bytes body,
                    char *text);
