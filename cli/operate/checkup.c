/* SPDX-License-Identifier: PostgreSQL */
/* checkup.c: see checkup.h. */
#include "checkup.h"

#include <string.h>

#include "plain.h"

void checkup_note(checkup *checkup, const char *check, const char *level, const char *found, const char *advice)
{
	bool well = strcmp(level, "ok") == 0;

	checkup->warned += strcmp(level, "warning") == 0;
	checkup->failed += strcmp(level, "failed") == 0;
	checkup->skipped += strcmp(level, "skipped") == 0;
	if (checkup->rows != NULL) {
		json_t *row = json_pack("{s:s, s:s, s:s}", "check", check, "level", level, "found", found);
		json_object_set_new(row, "advice", well ? json_null() : json_string(advice));
		json_array_append_new(checkup->rows, row);
		return;
	}
	/* It contains names of scopes, consumers and relays, which others choose. */
	plain_line("%-7s  %-27s %s", level, check, found);
	if (!well) {
		plain_line("         %-27s -> %s", "", advice);
	}
}
