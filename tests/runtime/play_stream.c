/* SPDX-License-Identifier: PostgreSQL */
/*
 * play_stream.c: streams of which the reader has enough, each followed by another statement.
 * play_stream DSN ENOUGH ROUNDS: of 66 large rows the reader takes ENOUGH. Prints how many of the
 * next statements failed, and the first one's failure.
 */
#include <stdio.h>
#include <stdlib.h>

#include "database.h"
#include "sql.h"

enum {
	ROWS,
	NEXT
};

typedef struct reading {
	int rows, enough;
} reading;

static bool take(void *argument, const PGresult *row)
{
	reading *reading = argument;

	(void)row;
	return ++reading->rows < reading->enough;
}

int main(int argc, char **argv)
{
	static const sql_query queries[] = {
	    [ROWS] = {.name = "rows",
	              .text = "SELECT i, repeat('x', $1::integer) FROM generate_series(1, 66) AS i",
	              .parameter_count = 1},
	    [NEXT] = {.name = "next", .text = "SELECT pg_sleep($1::integer / 1000.0)", .parameter_count = 1}};
	failure failure = {0};
	int failed = 0;

	if (argc != 4) {
		fprintf(stderr, "usage: play_stream DSN ENOUGH ROUNDS\n");
		return 2;
	}
	database database = {.conninfo = argv[1], .role = "nobody", .queries = queries, .prepares = true, .stop_ms = 5000};
	if (!database_connect(&database, &failure)) {
		fprintf(stderr, "%s\n", failure.text);
		return 1;
	}
	for (int i = 0; i < atoi(argv[3]); i++) {
		reading reading = {.enough = atoi(argv[2])};
		parameters size = {0}, sleep = {0};
		parameters_integer(&size, 256000);
		parameters_integer(&sleep, 5);
		bool good = database_stream(&database, ROWS, &size, take, &reading, &failure);
		if (!good) {
			parameters_free(&sleep);
		}
		if (!good || !database_run(&database, NEXT, &sleep, &failure)) {
			failed++;
			fprintf(stderr, "%s %s\n", failure.sqlstate, failure.text);
		}
	}
	printf("%d\n", failed);
	database_disconnect(&database);
	return 0;
}
