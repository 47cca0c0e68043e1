/* SPDX-License-Identifier: PostgreSQL */
/* replay.c: see replay.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture.h"
#include "replay.h"

bool replay_is_run(const char *response_headers, once_bytes body)
{
	json_t *headers = response_headers == NULL ? NULL : json_loads(response_headers, 0, NULL);
	const char *type = json_string_value(json_object_get(headers, "content-type"));
	int status = 0;
	bool is_run = type != NULL && strcmp(type, CAPTURE_CONTENT_TYPE) == 0 && body.data != NULL &&
	              capture_check(body.data, body.length, &status);

	json_decref(headers);
	return is_run;
}

static bool write_all(int fd, const void *data, size_t length)
{
	const char *at = data;

	while (length > 0) {
		ssize_t put = write(fd, at, length);
		if (put < 0 && errno == EINTR) {
			continue;
		}
		if (put < 0) {
			return false;
		}
		at += put;
		length -= (size_t)put;
	}
	return true;
}

/* A stream whose reader has gone, or that is full, gets nothing more; the other one does. */
typedef struct outlet {
	int fd;
	bool ended;
	int error; /* the errno; 0: none, or its reader has gone */
} outlet;

static void write_to(outlet *outlet, const void *data, size_t length)
{
	if (!outlet->ended && !write_all(outlet->fd, data, length)) {
		outlet->ended = true;
		outlet->error = errno == EPIPE ? 0 : errno;
	}
}

static void replay_chunks(const cli_invocation *invocation, once_bytes body, outlet *out, outlet *err)
{
	capture_chunk chunk;
	size_t offset = 0;
	uint64_t out_bytes = 0;
	uint64_t err_bytes = 0;

	while (capture_next(body.data, body.length, &offset, &chunk)) {
		switch (chunk.kind) {
		case 'o':
			write_to(out, chunk.data, chunk.length);
			break;
		case 'e':
			write_to(err, chunk.data, chunk.length);
			break;
		case 't':
			capture_counts(&chunk, &out_bytes, &err_bytes);
			cli_note(invocation,
			         "done before; its output was too large to be stored (%" PRIu64 " bytes of output, %" PRIu64
			         " of error)",
			         out_bytes, err_bytes);
			break;
		default:
			break;
		}
	}
}

int replay_outcome(const cli_invocation *invocation, const once_intent *intent, const once_answer *answer,
                   int *write_error)
{
	once_bytes body = once_answer_response_body(answer);
	const char *error_code = once_answer_error_code(answer);
	bool failed = once_answer_verdict(answer) == ONCE_FINAL_FAILURE_STORED;
	outlet out = {.fd = STDOUT_FILENO}, err = {.fd = STDERR_FILENO};
	int status = 0;

	if (replay_is_run(once_answer_response_headers(answer), body)) {
		capture_check(body.data, body.length, &status);
		replay_chunks(invocation, body, &out, &err);
	} else {
		/*
		 * Not CMD's exit status: an operator decided. A value that is not an exit status still must
		 * not turn a failure into a success.
		 */
		status = once_answer_response_status(answer);
		status = status >= 0 && status <= 255 ? status : 0;
		status = failed && status == 0 ? CLI_FAILED : status;
		write_to(&out, body.data, body.length);
	}
	/* Not written by CMD: that it was given up, or why an operator closed it. */
	if (failed && error_code != NULL && strcmp(error_code, "exit") != 0 && strcmp(error_code, "signal") != 0) {
		char *detail = cli_intent_text(intent);
		cli_note(invocation, "the intent failed for good (SQLSTATE P4030, %s): %s: %s", error_code, detail,
		         once_answer_error_message(answer) == NULL ? "" : once_answer_error_message(answer));
		free(detail);
	}
	*write_error = out.error != 0 ? out.error : err.error;
	return status;
}
