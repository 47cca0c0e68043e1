/* SPDX-License-Identifier: PostgreSQL */
/* plan.c: pgonce plan: prints what a rate of intents will need, by model.c. Connects to nothing. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "model.h"

#define DAY_MS (INT64_C(24) * 60 * 60 * 1000)

static double number_or(const cli_invocation *invocation, option_id id, int64_t standard)
{
	return (double)cli_number(invocation, id, standard);
}

/* "uuidv7", "uuidv4", or a length. */
static int read_keys(const cli_invocation *invocation, model_input *input)
{
	const char *word = cli_text(invocation, OPTION_KEY_FORM, "uuidv7");
	char *end = NULL;
	long length = 36;

	input->keys = strcmp(word, "uuidv7") == 0 ? MODEL_KEYS_DATED : MODEL_KEYS_RANDOM;
	if (input->keys == MODEL_KEYS_RANDOM && strcmp(word, "uuidv4") != 0) {
		length = strtol(word, &end, 10);
		if (*word == '\0' || *end != '\0' || length < 1 || length > 255) {
			return cli_fail(invocation, CLI_USAGE, "pgonce help plan",
			                "option --key-form: '%s' is neither uuidv7 nor uuidv4 nor a length of 1 to 255", word);
		}
	}
	input->key_bytes = (double)length;
	return CLI_OK;
}

static int read_input(const cli_invocation *invocation, model_input *input)
{
	if (invocation->given[OPTION_LEASED] && invocation->given[OPTION_SAME_TRANSACTION]) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help plan",
		                "--leased and --same-transaction: only one of them can be");
	}
	*input = (model_input){
	    .rate = (double)invocation->number[OPTION_RATE],
	    .retention_days = number_or(invocation, OPTION_RETENTION, 7 * DAY_MS) / (double)DAY_MS,
	    .body_bytes = number_or(invocation, OPTION_BODY_BYTES, 0),
	    .headers_bytes = number_or(invocation, OPTION_HEADER_BYTES, 0),
	    .tenant_bytes = number_or(invocation, OPTION_TENANT_BYTES, 0),
	    .scope_bytes = number_or(invocation, OPTION_SCOPE_BYTES, 10),
	    .owner_bytes = invocation->given[OPTION_LEASED] ? 10 : 0,
	    .events_per_intent = number_or(invocation, OPTION_EVENTS_PER_INTENT, 0),
	    .event_bytes = number_or(invocation, OPTION_EVENT_BYTES, 256),
	    .leased = invocation->given[OPTION_LEASED],
	};
	return read_keys(invocation, input);
}

static json_t *whole(double value)
{
	return json_integer((json_int_t)(value + 0.5));
}

typedef struct figure {
	const char *name;
	double value;
} figure;

static json_t *figures_json(const figure *figures, int count)
{
	json_t *object = json_object();

	for (int i = 0; i < count; i++) {
		json_object_set_new(object, figures[i].name, whole(figures[i].value));
	}
	return object;
}

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static void print_plan_json(const model_input *input, const model_intent *one, const model_total *all)
{
	const figure intent[] = {{"heap_bytes", one->heap_bytes},
	                         {"toast_bytes", one->toast_bytes},
	                         {"index_bytes", one->index_bytes},
	                         {"outbox_bytes", one->outbox_bytes},
	                         {"wal_bytes", one->wal_bytes}};
	const figure day[] = {{"rows", all->rows_per_day},
	                      {"heap_bytes", all->heap_bytes_per_day},
	                      {"toast_bytes", all->toast_bytes_per_day},
	                      {"index_bytes", all->index_bytes_per_day},
	                      {"outbox_bytes", all->outbox_bytes_per_day},
	                      {"wal_bytes", all->wal_bytes_per_day},
	                      {"full_page_bytes", all->full_page_bytes_per_day},
	                      {"purge_wal_bytes", all->purge_wal_bytes_per_day}};
	const figure held[] = {{"rows", all->rows},
	                       {"bytes", all->bytes},
	                       {"index_bytes", all->index_bytes},
	                       {"hot_index_bytes", all->hot_index_bytes},
	                       {"partitions", all->partitions}};
	json_t *longer = json_array();

	for (int factor = 2; factor <= 8; factor *= 2) {
		model_input later = *input;
		later.retention_days *= factor;
		model_total total = model_of_all(&later, one);
		const figure row[] = {{"bytes", total.bytes},
		                      {"hot_index_bytes", total.hot_index_bytes},
		                      {"partitions", total.partitions},
		                      {"full_page_bytes_per_day", total.full_page_bytes_per_day}};
		json_t *line = figures_json(row, COUNT(row));
		json_object_set_new(line, "retention_days", json_real(later.retention_days));
		json_array_append_new(longer, line);
	}
	cli_print_json(json_pack("{s:o, s:o, s:o, s:o}", "per_intent", figures_json(intent, COUNT(intent)), "per_day",
	                         figures_json(day, COUNT(day)), "held", figures_json(held, COUNT(held)), "longer", longer));
}

/* "12.3 GB"; three digits, since more are not known. */
static const char *size_text(double bytes, char *text, size_t text_size)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
	size_t unit = 0;

	for (; bytes >= 1000 && unit + 1 < sizeof units / sizeof units[0]; unit++) {
		bytes /= 1024;
	}
	snprintf(text, text_size, "%.*f %s", bytes >= 100 || unit == 0 ? 0 : 1, bytes, units[unit]);
	return text;
}

static void print_size(const char *what, double bytes, const char *remark)
{
	char text[32];

	printf("  %-34s %10s%s%s\n", what, size_text(bytes, text, sizeof text), remark[0] != '\0' ? "   " : "", remark);
}

static void print_longer(const model_input *input, const model_intent *one)
{
	printf("\nA longer retention\n  %-14s %10s %18s %12s %22s\n", "days", "in all", "index in memory", "partitions",
	       "page images per day");
	for (int factor = 1; factor <= 8; factor *= 2) {
		char bytes[32];
		char hot[32];
		char images[32];
		model_input later = *input;
		later.retention_days *= factor;
		model_total total = model_of_all(&later, one);
		printf("  %-14.1f %10s %18s %12.0f %22s\n", later.retention_days, size_text(total.bytes, bytes, sizeof bytes),
		       size_text(total.hot_index_bytes, hot, sizeof hot), total.partitions,
		       size_text(total.full_page_bytes_per_day, images, sizeof images));
	}
}

static void print_plan(const model_input *input, const model_intent *one, const model_total *all)
{
	bool dated = input->keys == MODEL_KEYS_DATED;
	/* as sql/doctor_settings.sql expects them */
	double locks = 2 * all->partitions + 4 * (2 + MODEL_DAYS_AHEAD);

	printf("One intent (%s, %s keys)\n",
	       input->leased ? "leased: claim and complete" : "start and finish in one transaction",
	       dated ? "UUIDv7" : "random");
	print_size("table", one->heap_bytes, one->toasted ? "the body is beside it, in TOAST" : "");
	print_size("TOAST", one->toast_bytes, "");
	print_size("primary key", one->index_bytes, "");
	print_size("outbox", one->outbox_bytes, "");
	print_size("WAL", one->wal_bytes, "");
	printf("\nOne day of %.0f a second: %.0f rows\n", input->rate, all->rows_per_day);
	print_size("table", all->heap_bytes_per_day, "");
	print_size("TOAST", all->toast_bytes_per_day, "");
	print_size("primary key", all->index_bytes_per_day, "");
	print_size("outbox", all->outbox_bytes_per_day, "two days are kept if the relays keep up");
	print_size("WAL", all->wal_bytes_per_day, "");
	print_size("WAL: page images", all->full_page_bytes_per_day,
	           dated ? "new pages need none" : "random keys touch old pages after each checkpoint");
	print_size("WAL: purging", all->purge_wal_bytes_per_day,
	           dated ? "none: a passed day is dropped whole" : "rows are deleted one by one, and vacuumed");
	printf("\nHeld for %.1f days: %.0f rows\n", input->retention_days, all->rows);
	print_size("in all", all->bytes, dated ? "with the day that is passing" : "");
	print_size("primary keys", all->index_bytes, "");
	print_size("index that should stay in memory", all->hot_index_bytes,
	           dated ? "keys of the last hour" : "all of it: a random key falls anywhere");
	printf("  %-34s %10.0f   a look-up locks each and its index: max_locks_per_transaction at least %.0f\n",
	       "partitions of intents", all->partitions, locks > 64 ? locks : 64);
	print_longer(input, one);
	printf(
	    "\nBodies are counted as incompressible; page images at a checkpoint each %d s; a traceparent adds 56 bytes\n"
	    "to a row, so add it to the headers. Workers that claim many before they complete need up to a half more\n"
	    "table.\n",
	    MODEL_CHECKPOINT_SECONDS);
}

int cli_plan(const cli_invocation *invocation)
{
	model_input input = {0};
	int result = read_input(invocation, &input);

	if (result != CLI_OK) {
		return result;
	}
	model_intent one = model_of_intent(&input);
	model_total all = model_of_all(&input, &one);
	if (invocation->given[OPTION_JSON]) {
		print_plan_json(&input, &one, &all);
	} else {
		print_plan(&input, &one, &all);
	}
	return CLI_OK;
}
