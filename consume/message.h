/* SPDX-License-Identifier: PostgreSQL */
/*
 * message.h: a message as the contract wants it, with its id, its key and its headers as JSON, and
 * how these are found in a delivery (identify.c). Everything is in the arena it was made in, except
 * the payload, which belongs to the broker's delivery.
 */
#pragma once

#include "arena.h"
#include "json_text.h"
#include "pgonce.h"
#include "source.h"

/* Where an id or a key comes from, as set by `id =` and `order_by =`. */
typedef enum origin_kind {
	ORIGIN_NONE,
	ORIGIN_HEADER,
	ORIGIN_POINTER,
	ORIGIN_COORDINATES, /* ids only */
	ORIGIN_KEY          /* keys only: the broker's key, else the header Pgonce-Key */
} origin_kind;

typedef struct origin {
	origin_kind kind;
	const char *name; /* the header's name, or the pointer */
	bool opaque;      /* ids only: a UUIDv7 has no birthday, see OPAQUE_ID_PREFIX */
} origin;

/* "header:NAME", "json:/pointer", "coordinates", "key", "none". False: anything else. */
bool origin_read(const char *text, origin *origin);

typedef struct message {
	source_message *delivery; /* NULL: it was parked */
	const char *id;           /* in the inbox: always 1 to 255 printable ASCII characters */
	const char *topic;
	const char *key; /* NULL: no key */
	/* messages of one line are handled in order: see line.h; NULL: no line */
	const char *line;
	const char *headers;     /* a JSON object */
	const char *traceparent; /* NULL: no trace */
	once_bytes payload;
	once_fingerprint fingerprint;
	json_answer json;     /* is the payload jsonb? Never JSON_UNSURE when a handler is called */
	bool asked;           /* the server was asked about json */
	int attempts;         /* failed attempts so far */
	const char *unusable; /* why no handler can have it: it is dead at once; NULL: it is fine */
	const char *unusable_code;
} message;

/* Ids with this prefix belong to messages that no handler gets. */
#define UNUSABLE_ID_PREFIX "pgonce:unusable:"
/*
 * Put in the inbox before an opaque id that the contract might take for a UUIDv7: as a key without
 * a birthday it is never too old to be applied. once.consumer_ids knows the prefix too.
 */
#define OPAQUE_ID_PREFIX "pgonce:id:"

/* SQLSTATEs of faults of a message itself. */
#define CODE_NO_ID "P4001"
#define CODE_NO_TEXT "22021"   /* character_not_in_repertoire */
#define CODE_UNDECODED "22P03" /* invalid_binary_representation */
#define CODE_REUSED_ID "P4050"
#define CODE_EXPIRED "P4041"
#define CODE_TOO_LARGE "P4060"  /* not a fault of the message: of the answer to its call */
#define CODE_NO_DAY "P4098"     /* not a fault of the message: a partition is missing */
#define CODE_UNFINISHED "P4099" /* its id belongs to an attempt under a lease */

/* Everything except the fingerprint. Never fails: problems are put in `unusable`. */
void message_identify(source_message *delivery, const origin *id, const origin *key, arena *arena, message *message);
/* The producer's id, without OPAQUE_ID_PREFIX. */
const char *message_own_id(const message *message);
/* Marks it as unusable, under an id that only it has, so its original id does not matter. */
__attribute__((format(printf, 4, 5))) void message_refuse(message *message, arena *arena, const char *code,
                                                          const char *format, ...);
/* The one valid traceparent in its headers (W3C Trace Context); NULL: none, or several. */
const char *message_trace(const source_header *headers, size_t count, arena *arena);
/*
 * A parked message's headers as the broker had them (for the dead topic): headers[] and their
 * count.
 */
source_header *message_headers(const char *json, arena *arena, size_t *count);
