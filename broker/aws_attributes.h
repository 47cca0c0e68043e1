/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_attributes.h: headers as message attributes of SQS and SNS, at most ten per message; what
 * happens to the other headers; and a message's group in a FIFO queue.
 */
#pragma once

#include <jansson.h>

#include "broker.h"
#include "pgonce.h"

#define AWS_ATTRIBUTES_MAX 10
/* The attribute that holds all other headers, as a JSON object: {"name": "value"}. */
#define AWS_REST_NAME "Pgonce-Headers"
#define AWS_GROUP_BYTES 130

typedef struct aws_header {
	const char *name;
	once_bytes value;
} aws_header;

typedef struct aws_attributes {
	aws_header items[AWS_ATTRIBUTES_MAX];
	size_t count;
	char *rest; /* memory for the last item's value; NULL: all headers have an attribute */
} aws_attributes;

/*
 * Uses the first headers, in order; if not all fit, the tenth attribute is AWS_REST_NAME. Values
 * are borrowed. Clear it.
 */
void aws_attributes_make(const aws_header *headers, size_t count, aws_attributes *attributes);
void aws_attributes_clear(aws_attributes *attributes);
/* The bytes that they add to a message's size. */
size_t aws_attributes_bytes(const aws_attributes *attributes);
/* True: it is not text and must be sent as bytes. */
bool aws_attribute_is_binary(const aws_header *header);
/* {"X": {"DataType": "String", "StringValue": "..."}}, as in SQS; NULL: out of memory. */
json_t *aws_attributes_json(const aws_attributes *attributes);

/*
 * The attribute of a message whose body is not text; SQS and SNS accept only text, so the body is
 * sent in base64 (RFC 4648, section 4).
 */
#define AWS_BODY_ENCODING_NAME "Pgonce-Body-Encoding"
#define AWS_BODY_ENCODING "base64"
/* True: the body can be sent unchanged. An empty one cannot. */
bool aws_body_is_text(once_bytes body);
/* Free it. */
char *aws_base64(once_bytes bytes);

/* The group of a message without a key, which has it alone: this and the message's id. */
#define AWS_GROUP_OF_ONE "pgonce:event:"
/* The group for a key that is not valid as one: this and the key's hash. */
#define AWS_GROUP_HASHED "pgonce:sha256:"
/* The MessageGroupId for a key (data NULL: no key; then for the message's id, which is ASCII). */
void aws_group(once_bytes key, const char *id, char group[AWS_GROUP_BYTES]);
