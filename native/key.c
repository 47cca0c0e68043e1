/* SPDX-License-Identifier: PostgreSQL
 * A key: its once._bucket, and whether the plain paths may take it. */
#include "native.h"

#define DAY_MS INT64CONST(86400000)

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* Whether once._respelled would look closer: ^(urn:uuid:|[{])?01[89a-f], ignoring case. */
static bool may_be_respelled(const char *key, int length)
{
	if (length > 45) {
		return false;
	}
	if (length > 9 && pg_strncasecmp(key, "urn:uuid:", 9) == 0) {
		key += 9;
		length -= 9;
	} else if (length > 1 && key[0] == '{') {
		key++;
		length--;
	}
	return length >= 3 && key[0] == '0' && key[1] == '1' && hex_digit(key[2]) >= 8;
}

int32 native_bucket(const text *key)
{
	int length = (int)VARSIZE_ANY_EXHDR(key);
	const char *at = VARDATA_ANY(key);

	if (length < 1 || length > 255) {
		return -1;
	}
	for (int i = 0; i < length; i++) {
		if (at[i] < ' ' || at[i] > '~') {
			return -1;
		}
	}
	if (length == 36 && at[8] == '-' && at[13] == '-' && at[14] == '7' && at[18] == '-' && at[23] == '-') {
		int64 ms = 0;
		int i = 0;
		for (; i < 36; i++) {
			if (i == 8 || i == 13 || i == 18 || i == 23) {
				continue;
			}
			int digit = hex_digit(at[i]);
			if (digit < 0) {
				break;
			}
			if (i < 13) {
				ms = ms * 16 + digit;
			}
		}
		if (i == 36) {
			return (int32)Max(ms / DAY_MS, 1);
		}
	}
	return may_be_respelled(at, length) ? -1 : 0;
}

/* The key of a message whose id is a UUIDv7 used only as a name: see once.receive. */
void native_make_opaque(native_intent *intent)
{
	static const char prefix[] = "pgonce:id:";
	size_t prefix_bytes = sizeof prefix - 1, id_bytes = VARSIZE_ANY_EXHDR(intent->key);

	if (intent->bucket <= 0) {
		return;
	}
	text *key = palloc(VARHDRSZ + prefix_bytes + id_bytes);
	SET_VARSIZE(key, (int)(VARHDRSZ + prefix_bytes + id_bytes));
	memcpy(VARDATA(key), prefix, prefix_bytes);
	memcpy(VARDATA(key) + prefix_bytes, VARDATA_ANY(intent->key), id_bytes);
	intent->key = key;
	intent->bucket = 0;
}
