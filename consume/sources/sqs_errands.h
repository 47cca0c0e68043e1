/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs_errands.h: the calls that a source of SQS has on their way, what each is about, and those
 * whose answer was lost, to be made again as they were. Used by sqs.c alone.
 */
#pragma once

#include "delivery.h"
#include "sqs.h"

/* Of all kinds. */
#define ERRANDS_MAX 32

typedef enum errand_kind {
	ERRAND_RECEIVE,
	ERRAND_DELETE,
	ERRAND_EXTEND, /* and its opposite, giving back */
	ERRAND_KINDS
} errand_kind;

typedef struct errand {
	aws_call call;
	errand_kind kind;
	int64_t started_ms; /* of RECEIVE: when it was first made */
	bool is_again;      /* made once more, since its answer was lost */
	int failures;       /* answers that it failed */
	size_t asked;       /* of RECEIVE: messages that it may bring */
	struct errand *next, *previous;
	size_t count;
	uint64_t serials[SQS_BATCH_MAX]; /* of EXTEND */
	delivery *gone[SQS_BATCH_MAX];   /* of DELETE: its own */
} errand;

typedef struct errands {
	aws_client *client;
	errand *first;
	size_t counts[ERRAND_KINDS];
	size_t asked; /* messages that those that are out may bring */
	errand *lost; /* receives to be made again, singly linked */
} errands;

/* Counted from here on; send it, or free it. */
errand *errand_new(errands *errands, errand_kind kind);
/* It may bring so many messages. */
void errand_ask(errands *errands, errand *errand, size_t most);
/* Takes the request, of which a text may be missing (NULL). False: it did not go, and is freed. */
bool errand_send(errands *errands, errand *errand, const char *target, json_t *request);
/* With the deliveries that are its own. */
void errand_free(errands *errands, errand *errand);
size_t errands_count(const errands *errands);
/*
 * Is the answer lost of a call that may have been done? Then nobody gets what it was to bring, nor
 * the rest of its groups: it is kept here to be made again. Not without end where the server
 * answers each time that it fails: others may be well. False: it is not, and is the caller's yet.
 */
bool errands_keep_lost(errands *errands, errand *errand);
/*
 * Makes lost calls again while fewer than `most` are out to receive; what was first made known_ms
 * ago or earlier is dropped. False: none goes.
 */
bool errands_make_again(errands *errands, size_t most, int64_t known_ms);
/* All of them, and the client. */
void errands_clear(errands *errands);
