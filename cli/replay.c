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

static bool replay_chunks(const cli_invocation *invocation, once_bytes body)
{
	capture_chunk chunk;
	size_t offset = 0;
	uint64_t out_bytes = 0;
	uint64_t err_bytes = 0;
	bool written = true;

	while (written && capture_next(body.data, body.length, &offset, &chunk)) {
		switch (chunk.kind) {
		case 'o':
			written = write_all(STDOUT_FILENO, chunk.data, chunk.length);
			break;
		case 'e':
			written = write_all(STDERR_FILENO, chunk.data, chunk.length);
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
	return written;
}

int replay_outcome(const cli_invocation *invocation, const once_intent *intent, const once_answer *answer)
{
	once_bytes body = once_answer_response_body(answer);
	const char *error_code = once_answer_error_code(answer);
	bool failed = once_answer_verdict(answer) == ONCE_FINAL_FAILURE_STORED;
	int status = 0;
	bool written = true;

	if (replay_is_run(once_answer_response_headers(answer), body)) {
		capture_check(body.data, body.length, &status);
		written = replay_chunks(invocation, body);
	} else {
		/* Nobody's exit status: an operator decided. What is no exit status still must not turn a failure into a success. */
		status = once_answer_response_status(answer);
		status = status >= 0 && status <= 255 ? status : 0;
		status = failed && status == 0 ? CLI_FAILED : status;
		written = write_all(STDOUT_FILENO, body.data, body.length);
	}
	/* What CMD itself did not say: that it was given up, or why an operator closed it. */
	if (failed && error_code != NULL && strcmp(error_code, "exit") != 0 && strcmp(error_code, "signal") != 0) {
		char *detail = cli_intent_text(intent);
		cli_note(invocation, "the intent failed for good (SQLSTATE P4030, %s): %s: %s", error_code, detail,
		         once_answer_error_message(answer) == NULL ? "" : once_answer_error_message(answer));
		free(detail);
	}
	if (!written && errno != EPIPE) {
		return cli_fail(invocation, CLI_FAILED, NULL, "cannot write the stored output: %s", strerror(errno));
	}
	return status;
}
