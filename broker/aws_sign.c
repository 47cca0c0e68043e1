/* SPDX-License-Identifier: PostgreSQL */
/* aws_sign.c: see aws_sign.h. Source: AWS, "Create a signed AWS API request". */
#include "aws_sign.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define ALGORITHM "AWS4-HMAC-SHA256"
#define DAY_BYTES 8
#define HEADERS_MAX 32
#define HASH_BYTES 32

void aws_date(int64_t seconds, char date[AWS_DATE_BYTES])
{
	time_t whole = (time_t)seconds;
	struct tm utc;

	gmtime_r(&whole, &utc);
	if (strftime(date, AWS_DATE_BYTES, "%Y%m%dT%H%M%SZ", &utc) == 0) {
		date[0] = '\0';
	}
}

static void write_hex(const unsigned char hash[HASH_BYTES], char hex[AWS_SHA256_HEX_BYTES])
{
	for (size_t i = 0; i < HASH_BYTES; i++) {
		snprintf(hex + 2 * i, 3, "%02x", hash[i]);
	}
}

bool aws_sha256_hex(once_bytes bytes, char hex[AWS_SHA256_HEX_BYTES])
{
	unsigned char hash[HASH_BYTES];

	if (EVP_Digest(bytes.length > 0 ? bytes.data : "", bytes.length, hash, NULL, EVP_sha256(), NULL) != 1) {
		return false;
	}
	write_hex(hash, hex);
	return true;
}

/* ---- the signed text */

/* In lower case, as the canonical form orders names. */
static int by_name(const void *left, const void *right)
{
	const http_header *a = left, *b = right;

	return strcasecmp(a->name, b->name);
}

static void put_name(FILE *to, const char *name)
{
	for (; *name != '\0'; name++) {
		fputc(tolower((unsigned char)*name), to);
	}
}

/* Without surrounding spaces, and with one space instead of several. */
static void put_value(FILE *to, const char *value)
{
	value += strspn(value, " \t");
	for (const char *at = value; *at != '\0'; at++) {
		size_t spaces = strspn(at, " \t");
		if (spaces > 0 && at[spaces] == '\0') {
			break;
		}
		fputc(spaces > 0 ? ' ' : *at, to);
		at += spaces > 0 ? spaces - 1 : 0;
	}
}

static void put_signed_names(FILE *to, const http_header *sorted, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (i > 0) {
			fputc(';', to);
		}
		put_name(to, sorted[i].name);
	}
}

/* The canonical request's hash. */
static bool hash_request(const aws_signing *signing, const http_header *sorted, char hex[AWS_SHA256_HEX_BYTES])
{
	char body_hex[AWS_SHA256_HEX_BYTES];
	char *text = NULL;
	size_t length = 0;
	FILE *to = open_memstream(&text, &length);

	if (to == NULL) {
		return false;
	}
	fprintf(to, "%s\n%s\n%s\n", signing->method, signing->path, signing->query);
	for (size_t i = 0; i < signing->header_count; i++) {
		put_name(to, sorted[i].name);
		fputc(':', to);
		put_value(to, sorted[i].value);
		fputc('\n', to);
	}
	fputc('\n', to);
	put_signed_names(to, sorted, signing->header_count);
	bool good = aws_sha256_hex(signing->body, body_hex);
	fprintf(to, "\n%s", good ? body_hex : "");
	good = fclose(to) == 0 && good;
	good = good && aws_sha256_hex((once_bytes){.data = text, .length = length}, hex);
	free(text);
	return good;
}

/* ---- the signature */

static bool hmac(const void *key, size_t key_length, const char *text, unsigned char result[HASH_BYTES])
{
	unsigned int length = 0;

	return HMAC(EVP_sha256(), key, (int)key_length, (const unsigned char *)text, strlen(text), result, &length) !=
	           NULL &&
	       length == HASH_BYTES;
}

static bool signing_key(const aws_signing *signing, const char *day, unsigned char key[HASH_BYTES])
{
	char *first = NULL;
	int length = asprintf(&first, "AWS4%s", signing->secret_key);

	if (length < 0) {
		return false;
	}
	bool good = hmac(first, (size_t)length, day, key) && hmac(key, HASH_BYTES, signing->region, key) &&
	            hmac(key, HASH_BYTES, signing->service, key) && hmac(key, HASH_BYTES, "aws4_request", key);
	explicit_bzero(first, (size_t)length);
	free(first);
	return good;
}

bool aws_sign(const aws_signing *signing, char authorization[AWS_AUTHORIZATION_BYTES])
{
	http_header sorted[HEADERS_MAX];
	char day[DAY_BYTES + 1] = "";
	char request_hex[AWS_SHA256_HEX_BYTES];
	unsigned char key[HASH_BYTES], signature[HASH_BYTES];
	char hex[AWS_SHA256_HEX_BYTES];
	char *text = NULL;

	if (signing->header_count > HEADERS_MAX || strlen(signing->date) != AWS_DATE_BYTES - 1) {
		return false;
	}
	for (size_t i = 0; i < signing->header_count; i++) {
		sorted[i] = signing->headers[i];
	}
	qsort(sorted, signing->header_count, sizeof *sorted, by_name);
	memcpy(day, signing->date, DAY_BYTES);
	bool good = hash_request(signing, sorted, request_hex) && signing_key(signing, day, key) &&
	            asprintf(&text, ALGORITHM "\n%s\n%s/%s/%s/aws4_request\n%s", signing->date, day, signing->region,
	                     signing->service, request_hex) >= 0;
	text = good ? text : NULL;
	good = good && hmac(key, HASH_BYTES, text, signature);
	explicit_bzero(key, sizeof key);
	free(text);
	FILE *to = good ? fmemopen(authorization, AWS_AUTHORIZATION_BYTES, "w") : NULL;
	if (to == NULL) {
		return false;
	}
	write_hex(signature, hex);
	fprintf(to, ALGORITHM " Credential=%s/%s/%s/%s/aws4_request, SignedHeaders=", signing->access_key, day,
	        signing->region, signing->service);
	put_signed_names(to, sorted, signing->header_count);
	fprintf(to, ", Signature=%s", hex);
	fputc('\0', to);
	return fclose(to) == 0;
}
