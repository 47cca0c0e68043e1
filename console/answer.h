/* SPDX-License-Identifier: PostgreSQL */
/* answer.h: an answer of the console, with the headers that each of them has. */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

#include "embedded.h"

typedef struct answer {
	unsigned status;
	const char *type;
	char *body; /* freed with the answer */
	size_t length;
	const char *location; /* of a redirect */
	const char *allow;    /* of a 405 */
	const char *retry_after;
	const char *cookie; /* to be set, with its name; NULL: none */
	const char *same_site;
} answer;

enum MHD_Result answer_send(struct MHD_Connection *connection, const answer *answer);
/* The asset, or 304 if the browser has it. Returns the status at *status. */
enum MHD_Result answer_asset(struct MHD_Connection *connection, const embedded_file *file, unsigned *status);
