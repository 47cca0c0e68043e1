/* SPDX-License-Identifier: PostgreSQL */
/* answer.c: see answer.h. */
#include "answer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No script, style or picture but our own, no frame around us, and no form that leads elsewhere. */
static const char *const always[][2] = {
    {"Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
                                "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
};

static bool add(struct MHD_Response *response, const char *name, const char *value)
{
	return value == NULL || MHD_add_response_header(response, name, value) == MHD_YES;
}

static bool add_always(struct MHD_Response *response)
{
	for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) {
		if (!add(response, always[i][0], always[i][1])) {
			return false;
		}
	}
	return true;
}

enum MHD_Result answer_send(struct MHD_Connection *connection, const answer *answer)
{
	struct MHD_Response *response =
	    MHD_create_response_from_buffer(answer->length, answer->body, MHD_RESPMEM_MUST_FREE);
	enum MHD_Result result = MHD_NO;
	char cookie[256] = "";

	if (response == NULL) {
		free(answer->body);
		return MHD_NO;
	}
	if (answer->cookie != NULL) {
		snprintf(cookie, sizeof cookie, "%s; Path=/; HttpOnly; SameSite=%s", answer->cookie, answer->same_site);
	}
	if (add_always(response) && add(response, "Content-Type", answer->type) &&
	    add(response, "Cache-Control", "no-store") && add(response, "Vary", "Accept") &&
	    add(response, "Location", answer->location) && add(response, "Allow", answer->allow) &&
	    add(response, "Retry-After", answer->retry_after) &&
	    add(response, "Set-Cookie", cookie[0] == '\0' ? NULL : cookie)) {
		result = MHD_queue_response(connection, answer->status, response);
	}
	MHD_destroy_response(response);
	return result;
}

enum MHD_Result answer_asset(struct MHD_Connection *connection, const embedded_file *file, unsigned *status)
{
	const char *known = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "If-None-Match");
	bool is_known = known != NULL && strstr(known, file->etag) != NULL;
	struct MHD_Response *response = MHD_create_response_from_buffer(
	    is_known ? 0 : file->length, (void *)(uintptr_t)file->data, MHD_RESPMEM_PERSISTENT);
	enum MHD_Result result = MHD_NO;

	*status = is_known ? MHD_HTTP_NOT_MODIFIED : MHD_HTTP_OK;
	if (response == NULL) {
		return MHD_NO;
	}
	if (add_always(response) && add(response, "Content-Type", file->type) && add(response, "ETag", file->etag) &&
	    add(response, "Cache-Control", "no-cache")) {
		result = MHD_queue_response(connection, *status, response);
	}
	MHD_destroy_response(response);
	return result;
}
