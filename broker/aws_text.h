/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_text.h: requests to AWS's services and their answers, as text: forms, XML, errors, answers to
 * batches, credentials. Sends nothing. Used by broker/ and by the sinks and the source of SQS and
 * SNS.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "broker.h"
#include "pgonce.h"

#define AWS_CODE_BYTES 80

/* As a value of a form: percent-encodes everything except RFC 3986's unreserved characters. */
void aws_form_put(FILE *to, once_bytes value);

/*
 * The raw content of the next element with this name in *rest, which advances past it. False: no
 * more. A nested element with the same name would end it; AWS's answers do not nest so.
 */
bool aws_xml_next(once_bytes *rest, const char *element, once_bytes *inner);
/*
 * The text of the first XML element with this name, which contains no element, with entities
 * decoded (free it); NULL: none.
 */
char *aws_xml_text(once_bytes xml, const char *element);

/*
 * The error in an answer that is not 2xx, in JSON or XML: the code ("QueueDoesNotExist"; "": none),
 * and a sentence of printable ASCII that begins with the status.
 */
void aws_error_read(once_bytes body, int status, char code[AWS_CODE_BYTES], char problem[BROKER_PROBLEM_BYTES]);
/* True: this code asks for fewer requests. */
bool aws_is_throttled(const char *code);

typedef enum aws_entry {
	AWS_ENTRY_DONE,
	AWS_ENTRY_WRONG, /* the service rejects the entry */
	AWS_ENTRY_FAILED /* repeat it later; also an entry that the answer does not mention */
} aws_entry;

/* True: the answer to a batch. */
bool aws_batch_is(const json_t *answer);
bool aws_batch_is_xml(once_bytes answer);
/*
 * The result in a batch's answer of the entry whose id is this number, in decimal. proof: a member
 * that a successful entry must have ("MessageId"), since another server may answer; NULL: only its
 * id. problem: "", or the reason.
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
 * Reads the JSON of containers, machines and programs, or the XML of STS, into a zeroed struct.
 * False: it has no credentials. Wipe them.
 */
bool aws_credentials_read(once_bytes json, aws_credentials *to);
bool aws_credentials_read_xml(once_bytes xml, aws_credentials *to);
/* Overwrites and frees; `credentials` is then zeroed. */
void aws_credentials_wipe(aws_credentials *credentials);
void aws_wipe(char *text); /* the same for one text; NULL is allowed */
