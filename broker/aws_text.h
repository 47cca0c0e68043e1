/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_text.h: what goes to AWS's services and comes from them, as text: forms, XML, errors, the
 * answers to batches, credentials. Nothing here asks anybody. Used by broker/ and the sinks and the
 * source of SQS and SNS.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "broker.h"
#include "pgonce.h"

#define AWS_CODE_BYTES 80

/* As a value of a form: all but what RFC 3986 leaves alone is percent-encoded. */
void aws_form_put(FILE *to, once_bytes value);

/*
 * The next element of this name in *rest, which moves on behind it: what is in it, as it stands.
 * False: there is none. An element of the same name in it would end it; AWS's answers have none.
 */
bool aws_xml_next(once_bytes *rest, const char *element, once_bytes *inner);
/*
 * The text of the first XML element of this name, which has no other in it, entities decoded (free
 * it); NULL: there is none.
 */
char *aws_xml_text(once_bytes xml, const char *element);

/*
 * What an answer that is no 2xx says, in JSON or XML: the code ("QueueDoesNotExist"; "": none), and
 * a sentence of printable ASCII, which begins with the status.
 */
void aws_error_read(once_bytes body, int status, char code[AWS_CODE_BYTES], char problem[BROKER_PROBLEM_BYTES]);
/* Does this code say that less is to be asked for? */
bool aws_is_throttled(const char *code);

typedef enum aws_entry {
	AWS_ENTRY_DONE,
	AWS_ENTRY_WRONG, /* the service says that the entry is wrong */
	AWS_ENTRY_FAILED /* the same again later; so it is of what the answer says nothing */
} aws_entry;

/* Is it the answer to a batch? */
bool aws_batch_is(const json_t *answer);
bool aws_batch_is_xml(once_bytes answer);
/*
 * What the answer to a batch says of the entry whose id is this number, in decimal. proof: what an
 * entry that is done has ("MessageId"), lest anybody's answer be believed; NULL: only its id.
 * problem: "", or why not.
 */
aws_entry aws_batch_read(const json_t *answer, size_t number, const char *proof, char problem[BROKER_PROBLEM_BYTES]);
aws_entry aws_batch_read_xml(once_bytes answer, size_t number, const char *proof, char problem[BROKER_PROBLEM_BYTES]);

typedef struct aws_credentials {
	char *access_key, *secret_key;
	char *token;       /* of a session; NULL: none */
	int64_t expires_s; /* seconds since 1970; 0: never */
	const char *from;  /* "environment" */
} aws_credentials;

/*
 * What containers, machines and programs give out in JSON, and STS in XML, into what is zeroed.
 * False: it gives none. Wipe them.
 */
bool aws_credentials_read(once_bytes json, aws_credentials *to);
bool aws_credentials_read_xml(once_bytes xml, aws_credentials *to);
/* Overwrites and frees; `credentials` is zeroed then. */
void aws_credentials_wipe(aws_credentials *credentials);
void aws_wipe(char *text); /* of one text; NULL: nothing */
