/* SPDX-License-Identifier: PostgreSQL */
/*
 * message.h: a message as the contract wants it: with its id, its key, its headers as JSON; and how
 * these are found in what a broker delivers (identify.c). All in the arena that it is made in, but
 * the payload, which stays the broker's.
 */
#pragma once

#include "arena.h"
#include "json_text.h"
#include "pgonce.h"
#include "source.h"

/* Where an id or a key comes from, as `id =` and `order_by =` say. */
typedef enum origin_kind {
	ORIGIN_NONE,
	ORIGIN_HEADER,
	ORIGIN_POINTER,
	ORIGIN_COORDINATES, /* of ids */
	ORIGIN_KEY          /* of keys: the broker's own, else the header Pgonce-Key */
} origin_kind;

typedef struct origin {
	origin_kind kind;
	const char *name; /* of the header; the pointer */
	bool opaque;      /* of ids: a UUIDv7 among them has no birthday, see OPAQUE_ID_PREFIX */
} origin;

/* "header:NAME", "json:/pointer", "coordinates", "key", "none". False: it is none of these. */
bool origin_read(const char *text, origin *origin);

typedef struct message {
	source_message *delivery; /* NULL: it was parked */
	const char *id;           /* in the inbox: 1 to 255 printable ASCII characters, always */
	const char *topic;
	const char *key;         /* NULL: none */
	const char *line;        /* those of one are handled in order: see line.h; NULL: none */
	const char *headers;     /* a JSON object */
	const char *traceparent; /* NULL: none */
	once_bytes payload;
	once_fingerprint fingerprint;
	json_answer json;     /* is the payload jsonb? Never JSON_UNSURE when a handler is called */
	bool asked;           /* the server was asked that */
	int attempts;         /* that failed before */
	const char *unusable; /* why no handler can have it: it is dead at once; NULL: it is fine */
	const char *unusable_code;
} message;

/* An id that begins so is of a message that no handler gets. */
#define UNUSABLE_ID_PREFIX "pgonce:unusable:"
/*
 * What stands in the inbox before an opaque id that the contract might take for a UUIDv7: as a key
 * without a birthday it is never too old to be applied. once.consumer_ids knows it as well.
 */
#define OPAQUE_ID_PREFIX "pgonce:id:"

/* SQLSTATEs of what is wrong with a message itself. */
#define CODE_NO_ID "P4001"
#define CODE_NO_TEXT "22021"   /* character_not_in_repertoire */
#define CODE_UNDECODED "22P03" /* invalid_binary_representation */
#define CODE_REUSED_ID "P4050"
#define CODE_EXPIRED "P4041"
#define CODE_TOO_LARGE "P4060" /* no fault of the message: the answer to its call */
#define CODE_NO_DAY "P4098"    /* no fault of the message: a partition is missing */

/* Everything but the fingerprint. Never fails: what cannot be used is said in `unusable`. */
void message_identify(source_message *delivery, const origin *id, const origin *key, arena *arena, message *message);
/* The id as its producer knows it, without OPAQUE_ID_PREFIX. */
const char *message_own_id(const message *message);
/* Marks it as unusable, under an id that only it has: whatever was wrong with its own. */
__attribute__((format(printf, 4, 5))) void message_refuse(message *message, arena *arena, const char *code,
                                                          const char *format, ...);
/* The one valid traceparent among its headers (W3C Trace Context); NULL: none, or several. */
const char *message_trace(const source_header *headers, size_t count, arena *arena);
/*
 * A message that was parked, as the broker had it (for the dead topic): headers[] and their count.
 */
source_header *message_headers(const char *json, arena *arena, size_t *count);
