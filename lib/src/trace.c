/* SPDX-License-Identifier: PostgreSQL */
/*
 * trace.c: which traceparent is stored (W3C Trace Context, section 3.2.2). The contract applies the
 * same rule (once._trace); it is applied here too so that bytes that are not text never reach a
 * batch.
 */
#include "internal.h"

/* Lower-case hexadecimal digits, not all of them zero unless that is allowed. */
static bool is_hex(const char *text, size_t length, bool may_be_zero)
{
	bool zero = true;
	for (size_t i = 0; i < length; i++) {
		if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f'))) {
			return false;
		}
		zero = zero && text[i] == '0';
	}
	return may_be_zero || !zero;
}

bool once_traceparent_valid(const char *traceparent)
{
	return traceparent != NULL && strnlen(traceparent, TRACEPARENT_BYTES + 1) == TRACEPARENT_BYTES &&
	       memcmp(traceparent, "00-", 3) == 0 && is_hex(traceparent + 3, 32, false) && traceparent[35] == '-' &&
	       is_hex(traceparent + 36, 16, false) && traceparent[52] == '-' && is_hex(traceparent + 53, 2, true);
}

const char *traceparent_or_null(const char *traceparent)
{
	return once_traceparent_valid(traceparent) ? traceparent : NULL;
}
