/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws.h: signed calls to a service of AWS (SQS, SNS), out of a section's options: where it is, as
 * whom (aws_credentials.h), and what its answers mean. One client belongs to one thread.
 */
#pragma once

#include <stdio.h>

#include "aws_text.h"
#include "broker.h"
#include "http_client.h"
#include "runtime.h"

/* A struct that a table belongs to begins with this. */
typedef struct aws_options {
	const char *region, *url, *profile, *ca_file;
} aws_options;

/* clang-format off */
#define AWS_OPTION_ROWS(service_name) \
	{.name = "region", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, region), \
	 .help = "the region (eu-central-1); default: AWS_REGION, AWS_DEFAULT_REGION, or what ~/.aws/config says for the profile"}, \
	{.name = "url", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, url), \
	 .help = "the endpoint, where it is not AWS's own for the region: https://HOST[:PORT], or http:// for a server in a private network; " \
	         "default: https://" service_name ".REGION.amazonaws.com"}, \
	{.name = "profile", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, profile), \
	 .help = "the section of ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE); default: AWS_PROFILE, " \
	         "or default. Given here, it goes before the credentials of the environment"}, \
	{.name = "ca_file", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, ca_file), \
	 .help = "PEM: who may have signed the endpoint's certificate; default: the system's"}
/* clang-format on */

/* Where the service is, checked. All its own. */
typedef struct aws_address {
	char *url;  /* "https://sqs.eu-central-1.amazonaws.com/" */
	char *host; /* as the header Host has it */
	char *region, *profile, *ca_file;
	bool profile_given; /* by the section */
} aws_address;

/* service_name: "sqs". Reads ~/.aws/config for the region. False: *problem (free it). */
bool aws_address_read(const config *config, const config_section *section, const aws_options *options,
                      const char *service_name, aws_address **result, char **problem);
void aws_address_free(aws_address *address);

typedef enum aws_result {
	AWS_DONE,    /* 2xx */
	AWS_REFUSED, /* the service says that the call is wrong; `code` says how */
	AWS_BUSY,    /* throttled, or the service's own failure: the same call again later */
	AWS_AWAY,    /* no answer, or no credentials that are valid: the same call again later */
	AWS_WITHHELD /* not sent, for want of a permit */
} aws_result;

/* A call and its answer. Zeroed and filled by the caller, kept unmoved until aws_poll gives it. */
typedef struct aws_call {
	/* "AmazonSQS.SendMessage": the JSON protocol; NULL: a form (query protocol) */
	const char *target;
	char *body; /* aws_call_clear frees it */
	size_t body_length;
	void *user;
	/* results */
	aws_result result;
	char code[AWS_CODE_BYTES];          /* of REFUSED and BUSY: "QueueDoesNotExist"; "" : none */
	char problem[BROKER_PROBLEM_BYTES]; /* for people; "" when DONE */
	const char *answer;                 /* the body of DONE, as long as the call; never NULL */
	size_t answer_length;
	/* the client's own */
	http_call http;
	http_header headers[6];
	char date[AWS_CODE_BYTES];
	char authorization[1024];
	char *token;
	int64_t signed_at_s; /* by the clock that it was signed with */
	int tries;
	struct aws_call *next;
} aws_call;

typedef struct aws_client aws_client;

/* calls_max: at once. timeout_ms: of a call. NULL: memory is out. The address outlives it. */
aws_client *aws_client_new(const speaker *speaker, const aws_address *address, const char *service_name,
                           int64_t calls_max, int64_t timeout_ms);
/* Breaks off what is in flight; those calls are not handed back: the caller clears them. */
void aws_client_free(aws_client *client);
/*
 * Signs and sends. May wait a moment for credentials. False: calls_max are in flight. A wrong clock
 * and credentials that have been replaced are answered here, by one more try.
 */
bool aws_start(aws_client *client, aws_call *call);
/* The next finished call, waiting at most timeout_ms; NULL: none. */
aws_call *aws_poll(aws_client *client, int timeout_ms);
/* Sends, and waits for the answer, while those of aws_start go on. */
void aws_do(aws_client *client, aws_call *call);
/* As http_permit and http_watch. */
void aws_permit(aws_client *client, int64_t until_ms);
void aws_watch(aws_client *client, int descriptor);
/* A call that was handed back, with its body: ready to be started again as it was. */
void aws_call_again(aws_call *call);
void aws_call_clear(aws_call *call);
