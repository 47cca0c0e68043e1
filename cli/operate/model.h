/* SPDX-License-Identifier: PostgreSQL */
/*
 * model.h: the cost of intents in PostgreSQL: bytes of heap, TOAST, index and WAL. Pure arithmetic:
 * for pgonce plan.
 */
#pragma once

#include <stdbool.h>

typedef enum model_keys {
	MODEL_KEYS_DATED, /* UUIDv7: one partition per day, inserted at its right edge */
	MODEL_KEYS_RANDOM /* any other: partition intent_d0, inserted anywhere */
} model_keys;

/* Sizes in bytes, as stored: bodies are assumed to be incompressible. */
typedef struct model_input {
	double rate; /* intents a second */
	double retention_days;
	double body_bytes;
	double headers_bytes;
	double tenant_bytes;
	double scope_bytes;
	double key_bytes;
	double owner_bytes; /* of leased intents */
	double events_per_intent;
	double event_bytes; /* of an event's payload */
	bool leased;        /* claim and complete, in two transactions; else start and finish, in one */
	model_keys keys;
} model_input;

typedef struct model_intent {
	double row_bytes; /* of one finished row, without line pointer */
	double rows_per_page;
	double heap_bytes;
	double toast_bytes; /* with its index */
	double index_bytes;
	double index_entries_per_leaf;
	double outbox_bytes; /* with its indexes */
	double wal_bytes;    /* without full page images */
	bool toasted;
} model_intent;

typedef struct model_total {
	double days_held;
	double rows_per_day;
	double rows;
	double heap_bytes_per_day;
	double toast_bytes_per_day;
	double index_bytes_per_day;
	double outbox_bytes_per_day;
	double bytes_per_day;
	double bytes; /* everything that is kept */
	double wal_bytes_per_day;
	double full_page_bytes_per_day; /* in addition, at the checkpoint interval below */
	double purge_wal_bytes_per_day; /* of deleting and vacuuming; 0 if days are dropped */
	double hot_index_bytes;         /* what should stay in cache */
	double index_bytes;
	double partitions;
} model_total;

enum {
	MODEL_CHECKPOINT_SECONDS = 300,
	MODEL_HOT_SECONDS = 3600, /* dated keys: how long a key is likely to be used */
	MODEL_DAYS_AHEAD = 2
};

model_intent model_of_intent(const model_input *input);
model_total model_of_all(const model_input *input, const model_intent *intent);
