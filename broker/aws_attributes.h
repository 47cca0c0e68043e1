/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_attributes.h: headers as message attributes of SQS and SNS, of which a message has ten at
 * most; what the others, and those that cannot be one, become; and in which group of a FIFO queue a
 * message stands.
 */
#pragma once

#include <jansson.h>

#include "broker.h"
#include "pgonce.h"

#define AWS_ATTRIBUTES_MAX 10
/* The attribute that holds what has none of its own, as a JSON object: {"name": "value"}. */
#define AWS_REST_NAME "Pgonce-Headers"
#define AWS_GROUP_BYTES 130

typedef struct aws_header {
	const char *name;
	once_bytes value;
} aws_header;

typedef struct aws_attributes {
	aws_header items[AWS_ATTRIBUTES_MAX];
	size_t count;
	char *rest; /* its own, the last item's value; NULL: all have an attribute */
} aws_attributes;

/*
 * The first ones, in their order; where not all can be, the tenth is AWS_REST_NAME. Values are
 * borrowed. Clear it.
 */
void aws_attributes_make(const aws_header *headers, size_t count, aws_attributes *attributes);
void aws_attributes_clear(aws_attributes *attributes);
/* The bytes by which they count towards a message's size. */
size_t aws_attributes_bytes(const aws_attributes *attributes);
/* Is it to go as bytes, since it is no text? */
bool aws_attribute_is_binary(const aws_header *header);
/* {"X": {"DataType": "String", "StringValue": "..."}}, as SQS has it; NULL: memory is out. */
json_t *aws_attributes_json(const aws_attributes *attributes);

/*
 * The attribute of a message whose body is not text, which SQS and SNS take alone: the body is its
 * base64 (RFC 4648, section 4).
 */
#define AWS_BODY_ENCODING_NAME "Pgonce-Body-Encoding"
#define AWS_BODY_ENCODING "base64"
/* May a body go as it is? Not an empty one. */
bool aws_body_is_text(once_bytes body);
/* Free it. */
char *aws_base64(once_bytes bytes);

/* Of a message with no key, which no other shares: this and its id. */
#define AWS_GROUP_OF_ONE "pgonce:event:"
/* Of a key that can be no group: this and its hash. */
#define AWS_GROUP_HASHED "pgonce:sha256:"
/* The MessageGroupId of a key (data NULL: none; then of the message's id, which is ASCII). */
void aws_group(once_bytes key, const char *id, char group[AWS_GROUP_BYTES]);
