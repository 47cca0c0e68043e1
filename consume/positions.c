/* SPDX-License-Identifier: PostgreSQL */
/* positions.c: reports how far the broker's parts are acknowledged. Called by consumer.c. */
#include "consumer.h"

enum {
	EVERY_MS = 5000,
	PARTS_MAX = 4096 /* partitions of one member */
};

static bool store(consumer *consumer, const source_position *positions, size_t count, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, consumer->settings.tenant);
	int parts = parameters_array(&given, PARAMETER_TEXT);
	int times = parameters_array(&given, PARAMETER_BIGINT);
	int behinds = parameters_array(&given, PARAMETER_BIGINT);
	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, parts, positions[i].part);
		if (positions[i].at_ms == SOURCE_AT_END) {
			parameters_add(&given, times, NULL, 0);
		} else {
			parameters_add_number(&given, times, positions[i].at_ms);
		}
		parameters_add_number(&given, behinds, positions[i].behind_ms);
	}
	return database_run(&consumer->database, SQL_REPORT, &given, failure);
}

void positions_report(consumer *consumer, bool now)
{
	const source_class *class = consumer->settings.class;
	char quoted[RUNTIME_QUOTE_BYTES];
	failure failure = {0};

	if (class->positions == NULL || consumer->source == NULL || consumer->database.connection == NULL ||
	    (!now && runtime_now_ms() < consumer->reported_ms + EVERY_MS)) {
		return;
	}
	source_position *positions = arena_take(&consumer->arena, PARTS_MAX * sizeof *positions);
	size_t count = class->positions(consumer->source, positions, PARTS_MAX);
	if (count == 0 || store(consumer, positions, count, &failure)) {
		consumer->report_failures = 0;
	} else if (consumer->report_failures++ == 0) {
		runtime_log(&consumer->speaker, RUNTIME_WARNING, "report",
		            "sqlstate=%s problem=%s hint=\"until positions are stored again, the inbox keeps all messages "
		            "since the last ones\"",
		            failure.sqlstate, runtime_quote(failure.text, quoted));
	}
	consumer->reported_ms = runtime_now_ms();
}
