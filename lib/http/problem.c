/* SPDX-License-Identifier: PostgreSQL */
/*
 * problem.c: the answers that the doors themselves give, as problem documents (RFC 9457). Pure.
 */
#include "http.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* spec: problem-base */
#define DEFAULT_BASE "urn:pgonce:problem:"
#define BASE_REFUSED "\"\\<>^`{|}"
/* end of spec */
#define INSTANCE "urn:pgonce:request:"

typedef struct row {
	int status;
	const char *slug;
	const char *title;
	const char *detail; /* what to do */
	int retry_after;    /* seconds; 0: the same request will not succeed */
	http_effect effect; /* about the request, as a gateway in front reads it */
} row;

/* clang-format off */
static const row rows[HTTP_PROBLEMS] = {
    /* spec: problems */
    [HTTP_PROBLEM_KEY_MISSING] = {400, "key-missing", "Idempotency-Key is missing", "This operation needs an Idempotency-Key header. Nothing was done.", 0, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_KEY_MALFORMED] = {400, "key-malformed", "Idempotency-Key is malformed", "Nothing was done.", 0, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_KEY_REPEATED] = {400, "key-repeated", "Idempotency-Key is sent more than once", "Send one Idempotency-Key header with one key. Nothing was done.", 0, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_TENANT_MISSING] = {400, "tenant-missing", "The request does not say whose key this is", "What tells callers apart (a header, a claim, a certificate) is empty. Nothing was done.", 0, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_MISMATCH] = {422, "mismatch", "Idempotency-Key is already used", "This key was first used with another request, whose answer is untouched. Use a new key for a new request.", 0, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_ACTIVE] = {409, "active", "A request with this Idempotency-Key is outstanding", "The first request with this key is still running. Send the same request again later.", 1, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_IN_DOUBT] = {409, "in-doubt", "The outcome of this request is unknown", "An earlier attempt ended, and it is unknown whether it took effect. A retry does not run until that is known. Do not send it under a new key.", 0, HTTP_EFFECT_UNKNOWN},
    [HTTP_PROBLEM_EXPIRED] = {409, "expired", "Idempotency-Key is too old", "This key is older than the keys that are kept, so it is unknown whether it was used. Nothing was done now. Find out before you use a new key.", 0, HTTP_EFFECT_UNKNOWN},
    [HTTP_PROBLEM_TOO_LARGE] = {409, "too-large", "Done, but its answer was too large to keep", "The request with this key was carried out, and its answer was passed on once. It will not be run again while this key is kept.", 0, HTTP_EFFECT_DONE},
    [HTTP_PROBLEM_NO_ANSWER] = {409, "no-answer", "Finished, without an answer to repeat", "The request with this key is finished, and no HTTP answer is stored for it. It will not be run again while this key is kept.", 0, HTTP_EFFECT_UNKNOWN},
    [HTTP_PROBLEM_BODY_TOO_LARGE] = {413, "body-too-large", "The request body is too large", "A body of this size cannot be protected here. Nothing was done.", 0, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_REFUSED] = {403, "refused", "The tenant or the scope is refused", "No key may be kept for this caller. Nothing was done.", 0, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_UNAVAILABLE] = {503, "unavailable", "Idempotency keys cannot be checked right now", "Nothing was done. Send the same request with the same key again later.", 5, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_BUSY] = {503, "busy", "Too many stored answers are being sent", "The answer of this request is stored, and there is no room to send it now. Send the same request with the same key again later.", 5, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_NOT_STORED] = {503, "not-stored", "The answer could not be stored", "The request may have taken effect. Send it again with the same key, never with a new one, to learn its outcome.", 5, HTTP_EFFECT_UNKNOWN},
    [HTTP_PROBLEM_UNREACHED] = {502, "unreached", "The service could not be reached", "Nothing was done. Send the same request with the same key again later.", 5, HTTP_EFFECT_NONE},
    [HTTP_PROBLEM_UNANSWERED] = {502, "unanswered", "The service gave no answer", "The request may have taken effect. Send it again with the same key, never with a new one, to learn its outcome.", 5, HTTP_EFFECT_UNKNOWN},
    [HTTP_PROBLEM_TIMED_OUT] = {503, "timed-out", "The request took too long", "It was stopped, and its changes were rolled back. Nothing was done. Send the same request with the same key again later.", 5, HTTP_EFFECT_NONE},
    /* end of spec */
};
/* clang-format on */

static const row *row_of(http_problem problem)
{
	return &rows[(unsigned)problem < HTTP_PROBLEMS ? problem : HTTP_PROBLEM_UNAVAILABLE];
}

int http_problem_status(http_problem problem)
{
	return row_of(problem)->status;
}

const char *http_problem_slug(http_problem problem)
{
	return row_of(problem)->slug;
}

const char *http_problem_title(http_problem problem)
{
	return row_of(problem)->title;
}

bool http_problem_retryable(http_problem problem)
{
	return http_problem_retry_after(problem) > 0;
}

int http_problem_retry_after(http_problem problem)
{
	return row_of(problem)->retry_after;
}

bool http_problem_base_good(const char *type_base)
{
	size_t length = strlen(type_base);
	if (length == 0 || length > HTTP_PROBLEM_BASE_MAX) {
		return false;
	}
	for (size_t i = 0; i < length; i++) {
		if (type_base[i] <= ' ' || type_base[i] > '~' || strchr(BASE_REFUSED, type_base[i]) != NULL) {
			return false;
		}
	}
	return true;
}

/* For use inside a JSON string; cut between characters if out is full. */
static void escape(const char *text, char *out, size_t size)
{
	size_t length = 0;
	for (; *text != '\0'; text++) {
		char piece[8];
		unsigned char c = (unsigned char)*text;
		int piece_length;
		if (c == '"' || c == '\\') {
			piece_length = snprintf(piece, sizeof piece, "\\%c", c);
		} else if (c < ' ') {
			piece_length = snprintf(piece, sizeof piece, "\\u%04x", c);
		} else {
			piece_length = snprintf(piece, sizeof piece, "%c", c <= '~' ? c : '?');
		}
		if (length + (size_t)piece_length >= size) {
			break;
		}
		memcpy(out + length, piece, (size_t)piece_length);
		length += (size_t)piece_length;
	}
	out[length] = '\0';
}

static bool is_id(http_text text)
{
	for (size_t i = 0; i < text.length; i++) {
		if (!isalnum((unsigned char)text.data[i])) {
			return false;
		}
	}
	return text.length > 0 && text.length <= HTTP_PROBLEM_REQUEST_MAX;
}

size_t http_problem_write(http_problem problem, const http_occurrence *occurrence, char *out, size_t size)
{
	const row *row = row_of(problem);
	const char *base = occurrence->type_base;
	char more[HTTP_PROBLEM_DETAIL_MAX + 1];
	char instance[HTTP_PROBLEM_REQUEST_MAX + 64] = "";

	base = base != NULL && http_problem_base_good(base) ? base : DEFAULT_BASE;
	escape(occurrence->detail == NULL ? "" : occurrence->detail, more, sizeof more);
	if (is_id(occurrence->request)) {
		snprintf(instance, sizeof instance, ",\"instance\":\"" INSTANCE "%.*s\"", (int)occurrence->request.length,
		         occurrence->request.data);
	}
	int length = snprintf(
	    out, size, "{\"type\":\"%s%s\",\"title\":\"%s\",\"status\":%d,\"detail\":\"%s%s%s\"%s,\"retryable\":%s}", base,
	    row->slug, row->title, occurrence->status != 0 ? occurrence->status : row->status, row->detail,
	    more[0] == '\0' ? "" : " ", more, instance, http_problem_retryable(problem) ? "true" : "false");
	if (length < 0 || (size_t)length >= size) {
		if (size > 0) {
			out[0] = '\0';
		}
		return 0;
	}
	return (size_t)length;
}

/*
 * The problem of the longest slug that ends the type: body-too-large ends in another slug.
 * HTTP_PROBLEMS: none.
 */
static http_problem problem_of_type(const char *type, size_t length)
{
	http_problem found = HTTP_PROBLEMS;
	size_t found_length = 0;
	for (int i = 0; i < HTTP_PROBLEMS; i++) {
		size_t slug_length = strlen(rows[i].slug);
		if (slug_length <= length && slug_length > found_length &&
		    memcmp(type + length - slug_length, rows[i].slug, slug_length) == 0) {
			found = (http_problem)i;
			found_length = slug_length;
		}
	}
	return found;
}

http_effect http_problem_effect(http_text document)
{
	static const char type[] = "{\"type\": \"";
	char *canonical = NULL;
	size_t length = 0;
	http_effect effect = HTTP_EFFECT_UNSAID;

	if (once_json_canonical((once_bytes){.data = document.data, .length = document.length}, &canonical, &length,
	                        NULL) != ONCE_OK) {
		return HTTP_EFFECT_UNKNOWN; /* no memory */
	}
	if (canonical == NULL) {
		return HTTP_EFFECT_UNSAID;
	}
	char *text = strndup(canonical, length); /* it is not terminated */
	free(canonical);
	if (text == NULL) {
		return HTTP_EFFECT_UNKNOWN;
	}
	/*
	 * In canonical form the shortest name comes first, and a quote inside a text follows a
	 * backslash.
	 */
	if (strncmp(text, type, strlen(type)) == 0) {
		const char *value = text + strlen(type);
		if (strncmp(value, DEFAULT_BASE, strlen(DEFAULT_BASE)) == 0 ||
		    strstr(value, ", \"instance\": \"" INSTANCE) != NULL) {
			http_problem problem = problem_of_type(value, strcspn(value, "\""));
			effect = problem == HTTP_PROBLEMS ? HTTP_EFFECT_UNSAID : rows[problem].effect;
		}
	}
	free(text);
	return effect;
}
