/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws.h: signed calls to an AWS service (SQS, SNS), from a section's options: the address, the
 * credentials (aws_credentials.h), and the meaning of its answers. One client belongs to one
 * thread.
 */
#pragma once

#include <stdio.h>

#include "aws_text.h"
#include "broker.h"
#include "http_client.h"
#include "runtime.h"

/* The struct of a table with these rows begins with this. */
typedef struct aws_options {
	const char *region, *url, *profile, *ca_file;
} aws_options;

/* clang-format off */
#define AWS_OPTION_ROWS(service_name) \
	{.name = "region", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, region), \
	 .help = "the region (eu-central-1); default: AWS_REGION, AWS_DEFAULT_REGION, or the profile's region in ~/.aws/config"}, \
	{.name = "url", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, url), \
	 .help = "the endpoint, if it is not AWS's own for the region: https://HOST[:PORT], or http:// for a server in a private network; " \
	         "default: https://" service_name ".REGION.amazonaws.com"}, \
	{.name = "profile", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, profile), \
	 .help = "the section of ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE); default: AWS_PROFILE, " \
	         "or default. If set here, it overrides the credentials of the environment"}, \
	{.name = "ca_file", .kind = CONFIG_TEXT, .offset = offsetof(aws_options, ca_file), \
	 .help = "PEM: the CA certificates for the endpoint's certificate; default: the system's"}
/* clang-format on */

/* The service's address, checked. It owns its strings. */
typedef struct aws_address {
	char *url;  /* "https://sqs.eu-central-1.amazonaws.com/" */
	char *host; /* the value of the header Host */
	char *region, *profile, *ca_file;
	bool profile_given; /* the section sets it */
} aws_address;

/* service_name: "sqs". Reads ~/.aws/config for the region. False: *problem (free it). */
bool aws_address_read(const config *config, const config_section *section, const aws_options *options,
                      const char *service_name, aws_address **result, char **problem);
void aws_address_free(aws_address *address);

typedef enum aws_result {
	AWS_DONE,    /* 2xx */
	AWS_REFUSED, /* the service rejects the call; see `code` */
	AWS_BUSY,    /* throttled, or the service's own failure: repeat the call later */
	AWS_AWAY,    /* no answer, or no valid credentials: repeat the call later */
	AWS_WITHHELD /* not sent: aws_permit does not allow it */
} aws_result;

/* A call and its answer. The caller zeroes and fills it, and keeps it unmoved until aws_poll
 * returns it. */
typedef struct aws_call {
	/* "AmazonSQS.SendMessage": the JSON protocol; NULL: a form (query protocol) */
	const char *target;
	char *body; /* aws_call_clear frees it */
	size_t body_length;
	void *user;
	/* results */
	aws_result result;
	char code[AWS_CODE_BYTES];          /* of REFUSED and BUSY: "QueueDoesNotExist"; "": none */
	char problem[BROKER_PROBLEM_BYTES]; /* for people; "" when DONE */
	/* the body of DONE, valid as long as the call; never NULL */
	const char *answer;
	size_t answer_length;
	/* for the client's use */
	http_call http;
	http_header headers[6];
	char date[AWS_CODE_BYTES];
	char authorization[1024];
	char *token;
	int64_t signed_at_s; /* by the clock that signed it */
	int tries;
	struct aws_call *next;
} aws_call;

typedef struct aws_client aws_client;

/* calls_max: at a time. timeout_ms: of a call. NULL: out of memory. The address must outlive the
 * client. */
aws_client *aws_client_new(const speaker *speaker, const aws_address *address, const char *service_name,
                           int64_t calls_max, int64_t timeout_ms);
/* Aborts open calls; they are not handed back: the caller clears them. */
void aws_client_free(aws_client *client);
/*
 * Signs and sends. May wait a moment for credentials. False: calls_max are open. If the clock is
 * wrong or the credentials were replaced, it is retried once here.
 */
bool aws_start(aws_client *client, aws_call *call);
/* The next finished call, waiting at most timeout_ms; NULL: none. */
aws_call *aws_poll(aws_client *client, int timeout_ms);
/* Sends, and waits for the answer, while those of aws_start continue. */
void aws_do(aws_client *client, aws_call *call);
/* Like http_permit and http_watch. */
void aws_permit(aws_client *client, int64_t until_ms);
void aws_watch(aws_client *client, int descriptor);
/* Makes a call that was handed back, with its body, ready to be started again. */
void aws_call_again(aws_call *call);
void aws_call_clear(aws_call *call);
