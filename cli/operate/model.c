/* SPDX-License-Identifier: PostgreSQL */
/*
 * model.c: see model.h. The layouts of tuples and pages are PostgreSQL's (manual: Database Page
 * Layout, TOAST); the columns are those of contract/key/tables.sql. tests/cli/test_plan.py compares
 * it with measured tables.
 */
#include <math.h>

#include "model.h"

enum {
	PAGE = 8192,
	HEAP_ROOM = PAGE - 24,           /* without the page's header */
	LEAF_ROOM = PAGE - 24 - 16,      /* and without the B-tree's own */
	FILLFACTOR_RESERVE = PAGE / 2,   /* once.intent: fillfactor 50 */
	LINE_POINTER = 4,                /* of each tuple in its page */
	HEADER = 32,                     /* of a row with NULLs, up to 72 columns */
	TOAST_THRESHOLD = 2032,          /* longer rows are toasted */
	TOAST_CHUNK = 1996,              /* bytes of a value in one chunk */
	TOAST_CHUNK_HEADER = 24 + 8 + 4, /* header, id and number, length */
	TOAST_POINTER = 18,              /* the part that stays in the row */
	TOAST_INDEX_ENTRY = 8 + 8 + LINE_POINTER,
	/* times, bucket, fence, attempts, status; state; format */
	FIXED_FINISHED = 3 * 8 + 4 * 4 + 4 + 2,
	FIXED_CLAIMED = 3 * 8 + 3 * 4 + 4 + 2,
	FINGERPRINT = 1 + 32,
	FIXED_EVENT = 8 + 8 + 8 + 8 + 16, /* id, day, xid, time, event's id */
	EVENT_NAMES = 1 + 10 + 1 + 10,    /* topic and type, of usual length */
	/* WAL: the cost of a record without its tuple. */
	WAL_HEAP_INSERT = 24 + 20 + 5 + 5 - 23,
	WAL_HEAP_UPDATE = 24 + 20 + 2 + 14 + 5 - 23,
	WAL_INDEX_INSERT = 24 + 20 + 4,
	WAL_COMMIT = 40,
	WAL_PER_INTENT = 48, /* page headers, snapshots of running transactions, new pages */
	WAL_DELETE_AND_VACUUM = 56 + 40
};

#define APPEND_FILL 0.90 /* of a leaf split at its right edge */
#define RANDOM_FILL 0.69 /* ln 2: of leaves split in the middle, again and again */

static double align(double bytes)
{
	return ceil(bytes / 8) * 8;
}

/* A value of variable length after `at` bytes of row. */
static double value_end(double at, double bytes)
{
	return bytes <= 126 ? at + 1 + bytes : ceil(at / 4) * 4 + 4 + bytes;
}

static double name_bytes(const model_input *input, double at)
{
	return value_end(value_end(value_end(at, input->tenant_bytes), input->scope_bytes), input->key_bytes) + FINGERPRINT;
}

static double finished_row(const model_input *input, bool *toasted)
{
	double end = name_bytes(input, HEADER + FIXED_FINISHED);

	if (input->leased) {
		end = value_end(end, input->owner_bytes);
	}
	if (input->headers_bytes > 0) {
		end = value_end(end, input->headers_bytes);
	}
	double whole = input->body_bytes > 0 ? value_end(end, input->body_bytes) : end;
	*toasted = whole > TOAST_THRESHOLD && input->body_bytes > TOAST_POINTER;
	return *toasted ? end + TOAST_POINTER : whole;
}

/* How many rows fit on a page before the half is reached that is left free for their completion. */
static double rows_on_page(const model_input *input, double row, double claimed)
{
	double room = HEAP_ROOM - FILLFACTOR_RESERVE;
	double rows = input->leased ? floor((room - claimed - LINE_POINTER) / (claimed + row + 2 * LINE_POINTER)) + 1
	                            : floor(room / (row + LINE_POINTER));

	return rows < 1 ? 1 : rows;
}

static double chunk_tuple(double bytes)
{
	return align(TOAST_CHUNK_HEADER + bytes);
}

/*
 * Chunks are stored one after the other: the rest of a page that is too small for the next one
 * stays empty.
 */
static double toast_pages(double body_bytes, int bodies)
{
	double pages = 1;
	double room = HEAP_ROOM;

	for (int i = 0; i < bodies; i++) {
		double left = body_bytes;
		while (left > 0) {
			double size = chunk_tuple(fmin(left, TOAST_CHUNK)) + LINE_POINTER;
			if (size > room) {
				pages++;
				room = HEAP_ROOM;
			}
			room -= size;
			left -= TOAST_CHUNK;
		}
	}
	return pages;
}

/* Leaves and the pages above them. */
static double index_entry_bytes(double entry, double fill)
{
	double per_leaf = floor(LEAF_ROOM * fill / entry);

	return PAGE / per_leaf * (1 + 1 / (per_leaf - 1));
}

static double index_tuple(const model_input *input)
{
	double names = value_end(value_end(value_end(8, input->tenant_bytes), input->scope_bytes), input->key_bytes);

	return align(ceil(names / 4) * 4 + 4);
}

static void model_toast(const model_input *input, model_intent *intent)
{
	enum {
		SAMPLE = 1000
	};
	double chunks = ceil(input->body_bytes / TOAST_CHUNK);
	double last = input->body_bytes - (chunks - 1) * TOAST_CHUNK;

	/* A body of more than a page or two needs no sample to be exact. */
	int bodies = input->body_bytes > 64.0 * PAGE ? 1 : SAMPLE;
	intent->toast_bytes = toast_pages(input->body_bytes, bodies) / bodies * PAGE +
	                      chunks * index_entry_bytes(TOAST_INDEX_ENTRY, APPEND_FILL);
	intent->wal_bytes += (chunks - 1) * align(WAL_HEAP_INSERT + TOAST_CHUNK_HEADER + TOAST_CHUNK) +
	                     align(WAL_HEAP_INSERT + TOAST_CHUNK_HEADER + last) + chunks * align(WAL_INDEX_INSERT + 16);
}

static void model_events(const model_input *input, model_intent *intent)
{
	double end =
	    value_end(value_end(value_end(HEADER + FIXED_EVENT + EVENT_NAMES, input->tenant_bytes), input->scope_bytes),
	              input->key_bytes);
	double row = value_end(end, input->event_bytes);
	double unique = align(ceil((index_tuple(input) - 4 + 11) / 4) * 4 + 4);

	/* Longer payloads are toasted; roughly they take their own length. */
	double heap = row > TOAST_THRESHOLD ? row : PAGE / floor(HEAP_ROOM / (align(row) + LINE_POINTER));
	intent->outbox_bytes =
	    input->events_per_intent *
	    (heap + index_entry_bytes(24 + LINE_POINTER, APPEND_FILL) +
	     index_entry_bytes(unique + LINE_POINTER, input->keys == MODEL_KEYS_DATED ? APPEND_FILL : RANDOM_FILL));
	intent->wal_bytes += input->events_per_intent * (align(WAL_HEAP_INSERT + row) + align(WAL_INDEX_INSERT + 24) +
	                                                 align(WAL_INDEX_INSERT + unique));
}

model_intent model_of_intent(const model_input *input)
{
	model_intent intent = {0};
	double fill = input->keys == MODEL_KEYS_DATED ? APPEND_FILL : RANDOM_FILL;
	double entry = index_tuple(input) + LINE_POINTER;
	double finished = finished_row(input, &intent.toasted);
	double claimed = value_end(name_bytes(input, HEADER + FIXED_CLAIMED), input->owner_bytes);

	intent.row_bytes = align(finished);
	intent.rows_per_page = rows_on_page(input, intent.row_bytes, align(claimed));
	intent.heap_bytes = PAGE / intent.rows_per_page;
	intent.index_bytes = index_entry_bytes(entry, fill);
	intent.index_entries_per_leaf = floor(LEAF_ROOM * fill / entry);
	/*
	 * A split logs the part that moves to the new leaf: a tenth at the right edge, half elsewhere.
	 */
	double split =
	    LEAF_ROOM * (input->keys == MODEL_KEYS_DATED ? 1 - APPEND_FILL : 0.5) / intent.index_entries_per_leaf;
	intent.wal_bytes = align(WAL_INDEX_INSERT + index_tuple(input)) + split + WAL_COMMIT + WAL_PER_INTENT;
	if (input->leased) {
		/* The unchanged end of the row is not logged again; headers and a body come after it. */
		double same = input->headers_bytes > 0 || input->body_bytes > 0 ? 0 : name_bytes(input, 0) + input->owner_bytes;
		intent.wal_bytes += align(WAL_HEAP_INSERT + claimed) + align(WAL_HEAP_UPDATE + finished - same) + WAL_COMMIT;
	} else {
		intent.wal_bytes += align(WAL_HEAP_INSERT + finished);
	}
	if (intent.toasted) {
		model_toast(input, &intent);
	}
	if (input->events_per_intent > 0) {
		model_events(input, &intent);
	}
	return intent;
}

/* How many of `pages` are touched by n random visits. */
static double touched(double pages, double visits)
{
	return pages <= 0 ? 0 : pages * (1 - exp(-visits / pages));
}

model_total model_of_all(const model_input *input, const model_intent *intent)
{
	const double day = 86400;
	bool dated = input->keys == MODEL_KEYS_DATED;
	model_total total = {.days_held = dated ? ceil(input->retention_days) + 1 : input->retention_days,
	                     .rows_per_day = input->rate * day};
	double visits = input->rate * MODEL_CHECKPOINT_SECONDS;

	total.rows = total.rows_per_day * total.days_held;
	total.heap_bytes_per_day = total.rows_per_day * intent->heap_bytes;
	total.toast_bytes_per_day = total.rows_per_day * intent->toast_bytes;
	total.index_bytes_per_day = total.rows_per_day * intent->index_bytes;
	total.outbox_bytes_per_day = total.rows_per_day * intent->outbox_bytes;
	total.bytes_per_day = total.heap_bytes_per_day + total.toast_bytes_per_day + total.index_bytes_per_day;
	/*
	 * The outbox's days are dropped when all relays have passed them: yesterday's and today's
	 * remain.
	 */
	total.bytes = total.bytes_per_day * total.days_held + 2 * total.outbox_bytes_per_day;
	total.index_bytes = total.index_bytes_per_day * total.days_held;
	total.wal_bytes_per_day = total.rows_per_day * intent->wal_bytes;
	/*
	 * Dated keys fill new pages, which need no image; random ones visit old leaves, each logged as
	 * an image once per checkpoint.
	 */
	double leaves = dated ? 16 : total.index_bytes / PAGE;
	/* filled again, and emptied */
	double heap_pages = dated ? 0 : 2 * visits / intent->rows_per_page;
	total.full_page_bytes_per_day =
	    day / MODEL_CHECKPOINT_SECONDS *
	    (touched(leaves, visits) * PAGE * (dated ? 1 : RANDOM_FILL) + heap_pages * PAGE / 2);
	total.purge_wal_bytes_per_day = dated ? 0 : total.rows_per_day * WAL_DELETE_AND_VACUUM;
	total.hot_index_bytes = dated
	                            ? fmin(total.index_bytes_per_day, input->rate * MODEL_HOT_SECONDS * intent->index_bytes)
	                            : total.index_bytes;
	/*
	 * The retained days (the contract keeps a week of them for all kinds of keys), today, those
	 * ahead, and intent_d0.
	 */
	total.partitions = (dated ? fmax(total.days_held, 8) : 8) + MODEL_DAYS_AHEAD + 1;
	return total;
}
