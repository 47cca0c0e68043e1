/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_sign.h: AWS Signature Version 4. We do not use libcurl's CURLOPT_AWS_SIGV4: in the supported
 * versions (such as Debian 12's 7.88) it signs with the machine's clock and ignores X-Amz-Date, so
 * a wrong clock could not be corrected; the oldest versions do not sign the session token.
 */
#pragma once

#include <stdbool.h>

#include "http_client.h"

#define AWS_AUTHORIZATION_BYTES 1024
#define AWS_DATE_BYTES 17 /* "20150830T123600Z" and its NUL */
#define AWS_SHA256_HEX_BYTES 65

typedef struct aws_signing {
	const char *method;
	const char *path, *query;   /* as in the request, in canonical form */
	const http_header *headers; /* all headers to be signed, in any order; Host is among them */
	size_t header_count;
	once_bytes body;
	const char *date; /* the value of X-Amz-Date */
	const char *region, *service;
	const char *access_key, *secret_key;
} aws_signing;

/* The value of the header Authorization. False: no room for it, or OpenSSL fails. */
bool aws_sign(const aws_signing *signing, char authorization[AWS_AUTHORIZATION_BYTES]);
/* Seconds since 1970 as the value of X-Amz-Date. */
void aws_date(int64_t seconds, char date[AWS_DATE_BYTES]);
bool aws_sha256_hex(once_bytes bytes, char hex[AWS_SHA256_HEX_BYTES]);
