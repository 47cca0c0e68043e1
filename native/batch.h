/* SPDX-License-Identifier: PostgreSQL
 * Shared by the functions that take arrays: the elements of their arguments, and the rows that they
 * return. */
#ifndef PGONCE_NATIVE_BATCH_H
#define PGONCE_NATIVE_BATCH_H

#include "native.h"

#include "utils/tuplestore.h"

/* An argument's elements. */
typedef struct native_elements {
	Datum *values;
	bool *nulls; /* NULL: no array was given */
} native_elements;

/* The intents of a batch. */
typedef struct native_batch {
	int size;
	int32 bucket;
	native_intent *intents;
	native_intent **ordered; /* by native_intent_order, then by position */
} native_batch;

/* The returned rows. */
typedef struct native_answer {
	Tuplestorestate *store;
	TupleDesc shape;
} native_answer;

extern bool native_takes_rows(FunctionCallInfo fcinfo, int function);
extern native_answer native_answer_begin(FunctionCallInfo fcinfo);
extern bool native_elements_get(FunctionCallInfo fcinfo, int argument, bool may_be_absent, int *size,
                                native_elements *found);
extern bool native_batch_make(native_batch *made, text *tenant, text *scope, const native_elements *scopes,
                              const native_elements *keys, const native_elements *fingerprints, bool opaque);

#endif
