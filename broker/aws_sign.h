/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_sign.h: AWS Signature Version 4. Our own and not libcurl's CURLOPT_AWS_SIGV4: in the versions
 * that are supported here (Debian 12's 7.88 too) that one signs with the machine's own clock,
 * whatever X-Amz-Date says, so that a clock that is wrong could not be answered; the oldest leave
 * the session's token out of what is signed.
 */
#pragma once

#include <stdbool.h>

#include "http_client.h"

#define AWS_AUTHORIZATION_BYTES 1024
#define AWS_DATE_BYTES 17 /* "20150830T123600Z" and its end */
#define AWS_SHA256_HEX_BYTES 65

typedef struct aws_signing {
	const char *method;
	const char *path, *query;   /* as they stand in the request, in canonical form */
	const http_header *headers; /* all that is to be signed, in any order; Host is among them */
	size_t header_count;
	once_bytes body;
	const char *date; /* the value of X-Amz-Date */
	const char *region, *service;
	const char *access_key, *secret_key;
} aws_signing;

/* The value of the header Authorization. False: there is no room for it, or OpenSSL fails. */
bool aws_sign(const aws_signing *signing, char authorization[AWS_AUTHORIZATION_BYTES]);
/* Seconds since 1970 as the value of X-Amz-Date. */
void aws_date(int64_t seconds, char date[AWS_DATE_BYTES]);
bool aws_sha256_hex(once_bytes bytes, char hex[AWS_SHA256_HEX_BYTES]);
