/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs_errands.h: an SQS source's open calls, what each is for, and those whose answer was lost,
 * which are repeated unchanged. Used by sqs.c alone.
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
	bool is_again;      /* repeated because its answer was lost */
	int failures;       /* answers that reported a failure */
	size_t asked;       /* of RECEIVE: messages that it may bring */
	struct errand *next, *previous;
	size_t count;
	uint64_t serials[SQS_BATCH_MAX]; /* of EXTEND */
	delivery *gone[SQS_BATCH_MAX];   /* of DELETE: owned by it */
} errand;

typedef struct errands {
	aws_client *client;
	errand *first;
	size_t counts[ERRAND_KINDS];
	size_t asked; /* messages that the open ones may bring */
	errand *lost; /* receives to repeat, singly linked */
} errands;

/* Counted from here on; send it, or free it. */
errand *errand_new(errands *errands, errand_kind kind);
/* It may bring this many messages. */
void errand_ask(errands *errands, errand *errand, size_t most);
/* Takes the request; a text in it may be missing (NULL). False: not sent, and freed. */
bool errand_send(errands *errands, errand *errand, const char *target, json_t *request);
/* Frees the deliveries that it owns too. */
void errand_free(errands *errands, errand *errand);
size_t errands_count(const errands *errands);
/*
 * True: the answer to a call that may have been executed is lost. Otherwise no member would get its
 * messages, nor the rest of their groups, so the call is kept here to be repeated. Not endlessly if
 * the server reports a failure each time: other calls may succeed. False: not lost; the caller
 * keeps it.
 */
bool errands_keep_lost(errands *errands, errand *errand);
/*
 * Repeats lost calls while fewer than `most` receives are open; calls first made known_ms ago or
 * earlier are dropped. False: none can be sent.
 */
bool errands_make_again(errands *errands, size_t most, int64_t known_ms);
/* Frees all of them, and the client. */
void errands_clear(errands *errands);
