/* SPDX-License-Identifier: PostgreSQL */
/* top_picture.c: see top_picture.h. */
#include "top_picture.h"

#include <stdlib.h>
#include <string.h>

#include "moment.h"
#include "operator.h"
#include "plain.h"

enum {
	NAME_COLUMNS = 36, /* longer values are cut: pgonce find and --json have them complete */
	CELL_BYTES = 64
};

/* ---- the fields of the answers */

static double number_of(const json_t *object, const char *member)
{
	return json_number_value(json_object_get(object, member));
}

void top_join(json_t *now, const json_t *running)
{
	static const char *const members[] = {"in_flight", "stale", "in_doubt"};
	const json_t *scopes = json_object_get(running, "scopes"), *scope = NULL;
	size_t index = 0;

	json_object_update(now, (json_t *)(uintptr_t)running);
	for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
		double sum = 0;
		json_array_foreach(scopes, index, scope)
		{
			sum += number_of(scope, members[i]);
		}
		json_object_set_new(now, members[i], json_integer((json_int_t)sum));
	}
}

/* ---- cells */

static json_t *span_of(const json_t *object, const char *member)
{
	const json_t *seconds = json_object_get(object, member);

	return json_is_number(seconds) ? json_integer((json_int_t)(json_number_value(seconds) * 1000)) : json_null();
}

static json_t *name_of(const json_t *object, const char *member)
{
	char *cut = operator_cut(operator_text(object, member), NAME_COLUMNS);
	json_t *name = json_string(cut);

	free(cut);
	return name;
}

/* ---- rows */

static json_t *row_of_scope(const json_t *scope)
{
	json_t *row = json_copy((json_t *)(uintptr_t)scope);

	json_object_set_new(row, "scope", name_of(scope, "scope"));
	json_object_set_new(row, "oldest", span_of(scope, "oldest_seconds"));
	return row;
}

static json_t *row_of_intent(const json_t *intent)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:O, s:o}", "scope", name_of(intent, "scope"), "key", name_of(intent, "key"),
	                 "age", span_of(intent, "age_seconds"), "lease", span_of(intent, "lease_seconds"), "attempts",
	                 json_object_get(intent, "attempts"), "owner", name_of(intent, "owner"));
}

static json_t *row_of_relay(const json_t *relay)
{
	json_t *row = json_copy((json_t *)(uintptr_t)relay);

	json_object_set_new(row, "relay", name_of(relay, "relay"));
	json_object_set_new(row, "topic", name_of(relay, "topic"));
	json_object_set_new(row, "lag", span_of(relay, "lag_seconds"));
	return row;
}

static json_t *row_of_partition(const json_t *partition)
{
	return json_pack("{s:o, s:s, s:s}", "table", name_of(partition, "table"), "day", operator_text(partition, "day"),
	                 "size", operator_text(partition, "size"));
}

/* ---- sections */

typedef json_t *row_maker(const json_t *item);

typedef struct section {
	const char *member;
	row_maker *make_row;
	const operator_column *columns;
} section;

static const operator_column scope_columns[] = {
    {"SCOPE", "scope", COLUMN_TEXT},      {"RUNNING", "in_flight", COLUMN_NUMBER}, {"STALE", "stale", COLUMN_NUMBER},
    {"DOUBT", "in_doubt", COLUMN_NUMBER}, {"OLDEST", "oldest", COLUMN_AGE},        {NULL, NULL, COLUMN_TEXT}};
static const operator_column intent_columns[] = {{"RUNNING LONGEST", "scope", COLUMN_TEXT},
                                                 {"KEY", "key", COLUMN_TEXT},
                                                 {"AGE", "age", COLUMN_AGE},
                                                 {"LEASE", "lease", COLUMN_AGE},
                                                 {"TRIES", "attempts", COLUMN_NUMBER},
                                                 {"OWNER", "owner", COLUMN_TEXT},
                                                 {NULL, NULL, COLUMN_TEXT}};
static const operator_column relay_columns[] = {{"RELAY", "relay", COLUMN_TEXT},
                                                {"TOPIC", "topic", COLUMN_TEXT},
                                                {"WAITING", "pending", COLUMN_NUMBER},
                                                {"PARKED", "parked", COLUMN_NUMBER},
                                                {"DEAD", "dead", COLUMN_NUMBER},
                                                {"OLDEST", "lag", COLUMN_AGE},
                                                {NULL, NULL, COLUMN_TEXT}};
static const operator_column partition_columns[] = {{"PARTITION", "table", COLUMN_TEXT},
                                                    {"DAY", "day", COLUMN_TEXT},
                                                    {"SIZE", "size", COLUMN_NUMBER},
                                                    {NULL, NULL, COLUMN_TEXT}};

static void print_section(const section *section, const json_t *now)
{
	const json_t *items = json_object_get(now, section->member), *item = NULL;
	json_t *rows = json_array();
	size_t index = 0;

	if (json_array_size(items) == 0) {
		json_decref(rows);
		return;
	}
	json_array_foreach(items, index, item)
	{
		json_array_append_new(rows, section->make_row(item));
	}
	operator_print_table(rows, section->columns, NULL);
	json_decref(rows);
}

/* ---- the picture */

static void print_span(const char *before, const json_t *now, const char *member, const char *after)
{
	char span[CELL_BYTES];

	moment_span((int64_t)(number_of(now, member) * 1e6), span, sizeof span);
	printf("%s%s%s", before, span, after);
}

static void print_list(const char *before, const char *text)
{
	if (text[0] != '\0') {
		fputs(before, stdout);
		plain_print(text);
	}
}

static void print_head(const json_t *now)
{
	char clock[CELL_BYTES];

	moment_shown(operator_text(now, "now"), clock, sizeof clock);
	printf("%.19s", clock); /* whole seconds */
	print_list("  pgonce top  ", operator_text(now, "database"));
	print_list(" on PostgreSQL ", operator_text(now, "server"));
	print_list(" as ", operator_text(now, "role"));
	putchar('\n');
	if (json_is_number(json_object_get(now, "keeper_seconds"))) {
		print_span("keeper ", now, "keeper_seconds", " ago");
	} else {
		fputs("keeper: none has run", stdout);
	}
	print_list(", failing: ", operator_text(now, "keeper_failing"));
	printf("  days ahead %.0f", number_of(now, "days_ahead"));
	print_span("  oldest transaction ", now, "oldest_transaction_seconds", "");
	print_list("  held: ", operator_text(now, "held"));
	printf("\nrunning %.0f  stale %.0f  in doubt %.0f  events %.0f waiting", number_of(now, "in_flight"),
	       number_of(now, "stale"), number_of(now, "in_doubt"), number_of(now, "pending"));
	if (number_of(now, "pending") > 0) {
		print_span(" (", now, "lag_seconds", ")");
	}
	printf(", %.0f parked, %.0f dead", number_of(now, "parked"), number_of(now, "dead"));
	if (number_of(now, "untaken") > 0) {
		printf(", %.0f that no relay takes", number_of(now, "untaken"));
		print_list(": ", operator_text(now, "untaken_topics"));
	}
	putchar('\n');
}

/* Since the counters began. */
static void print_attempts(const json_t *now)
{
	static const char *const verdicts[] = {"new", "replay", "active", "refused", "mismatch"};
	const json_t *counts = json_object_get(now, "attempts");

	fputs("attempts", stdout);
	for (size_t i = 0; i < sizeof verdicts / sizeof verdicts[0]; i++) {
		printf("  %s %.0f", verdicts[i], number_of(counts, verdicts[i]));
	}
	putchar('\n');
}

void top_print(const json_t *now)
{
	const section sections[] = {
	    {"scopes", row_of_scope, scope_columns},
	    {"running", row_of_intent, intent_columns},
	    {"relays", row_of_relay, relay_columns},
	    {"partitions", row_of_partition, partition_columns},
	};

	print_head(now);
	print_attempts(now);
	for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
		print_section(&sections[i], now);
	}
}
