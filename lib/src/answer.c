/* SPDX-License-Identifier: PostgreSQL */
/*
 * answer.c: what the contract answered, read in place: an answer points into the PGresult that it owns, so nothing is
 * copied. libpq ends every value with a NUL that its length does not count, so text can be lent as a C string.
 */
#include <stdlib.h>

#include "internal.h"
#include "names.h"

struct once_answer {
	PGresult *result; /* owned by a single answer; NULL in a batch, whose once_answers owns it */
	void *storage;    /* owned: the copy of a fresh outcome */
	once_verdict verdict;
	once_state state;
	int fence;
	int attempts;
	int response_status;
	const char *response_headers;
	once_bytes response_body;
	const char *result_type;
	const char *result_id;
	const char *error_code;
	const char *error_message;
	const char *owner;
	const char *lease_until;
	const char *created_at;
	const char *completed_at;
};

struct once_answers {
	PGresult *result;
	size_t count;
	once_answer answers[];
};

/* The place of a column by its name; a query that does not have it simply does not tell. */
static bool find(const PGresult *result, int row, const char *name, int *column)
{
	*column = PQfnumber(result, name);
	return *column >= 0 && !PQgetisnull(result, row, *column);
}

static const char *find_text(const PGresult *result, int row, const char *name)
{
	int column;
	return find(result, row, name, &column) ? PQgetvalue(result, row, column) : NULL;
}

static int find_int(const PGresult *result, int row, const char *name)
{
	int column;
	return find(result, row, name, &column) ? result_int(result, row, column) : 0;
}

static void read_row(once_answer *answer, const PGresult *result, int row)
{
	int column;
	answer->verdict = verdict_of_name(text_or_empty(find_text(result, row, "verdict")));
	answer->state = state_of_name(text_or_empty(find_text(result, row, "state")));
	answer->fence = find_int(result, row, "fence");
	answer->attempts = find_int(result, row, "attempts");
	answer->response_status = find_int(result, row, "response_status");
	answer->response_headers = find_text(result, row, "response_headers");
	if (find(result, row, "response_body", &column)) {
		answer->response_body =
		    (once_bytes){.data = PQgetvalue(result, row, column), .length = (size_t)PQgetlength(result, row, column)};
	}
	answer->result_type = find_text(result, row, "result_type");
	answer->result_id = find_text(result, row, "result_id");
	answer->error_code = find_text(result, row, "error_code");
	answer->error_message = find_text(result, row, "error_message");
	answer->owner = find_text(result, row, "owner");
	answer->lease_until = find_text(result, row, "lease_until");
	answer->created_at = find_text(result, row, "created_at");
	answer->completed_at = find_text(result, row, "completed_at");
}

static once_code error_of_shape(once_error **error)
{
	return error_make(error, ONCE_CONTRACT, NULL, false, "the contract answered in an unknown form", NULL,
	                  "Library and contract are of different versions: run pgonce doctor.");
}

once_code answer_of_result(PGresult *result, once_answer **answer, once_error **error)
{
	if (PQntuples(result) != 1) {
		PQclear(result);
		return error_of_shape(error);
	}
	once_answer *made = calloc(1, sizeof *made);
	if (made == NULL) {
		PQclear(result);
		return error_no_memory(error);
	}
	made->result = result;
	read_row(made, result, 0);
	if (made->verdict == ONCE_VERDICT_NONE) {
		once_answer_free(made);
		return error_of_shape(error);
	}
	*answer = made;
	return ONCE_OK;
}

once_code answers_of_result(PGresult *result, size_t count, once_answers **answers, once_error **error)
{
	if ((size_t)PQntuples(result) != count) {
		PQclear(result);
		return error_of_shape(error);
	}
	once_answers *made = calloc(1, sizeof *made + count * sizeof made->answers[0]);
	if (made == NULL) {
		PQclear(result);
		return error_no_memory(error);
	}
	made->result = result;
	made->count = count;
	for (size_t i = 0; i < count; i++) {
		read_row(&made->answers[i], result, (int)i);
	}
	*answers = made;
	return ONCE_OK;
}

/* Copies a text to *at, moves *at behind it, and returns the copy; NULL stays NULL. */
static const char *place_text(char **at, const char *text)
{
	if (text == NULL) {
		return NULL;
	}
	size_t size = strlen(text) + 1;
	char *copy = memcpy(*at, text, size);
	*at += size;
	return copy;
}

static size_t text_size(const char *text)
{
	return text == NULL ? 0 : strlen(text) + 1;
}

once_code answer_of_outcome(const once_outcome *outcome, once_state state, int fence, once_answer **answer,
                            once_error **error)
{
	size_t size = outcome->response_body.length + 1 + text_size(outcome->response_headers) +
	              text_size(outcome->result_type) + text_size(outcome->result_id) + text_size(outcome->error_code) +
	              text_size(outcome->error_message);
	once_answer *made = calloc(1, sizeof *made);
	char *storage = malloc(size);
	if (made == NULL || storage == NULL) {
		free(made);
		free(storage);
		return error_no_memory(error);
	}
	made->storage = storage;
	made->verdict = ONCE_PROCEED;
	made->state = state;
	made->fence = fence;
	made->response_status = outcome->response_status;
	made->response_headers = place_text(&storage, outcome->response_headers);
	made->result_type = place_text(&storage, outcome->result_type);
	made->result_id = place_text(&storage, outcome->result_id);
	made->error_code = place_text(&storage, outcome->error_code);
	made->error_message = place_text(&storage, outcome->error_message);
	if (outcome->response_body.data != NULL) {
		memcpy(storage, outcome->response_body.data, outcome->response_body.length);
		storage[outcome->response_body.length] = '\0';
		made->response_body = (once_bytes){.data = storage, .length = outcome->response_body.length};
	}
	*answer = made;
	return ONCE_OK;
}

void answer_set_fence(once_answer *answer, int fence)
{
	answer->fence = fence;
}

void once_answer_free(once_answer *answer)
{
	if (answer == NULL) {
		return;
	}
	PQclear(answer->result);
	free(answer->storage);
	free(answer);
}

void once_answers_free(once_answers *answers)
{
	if (answers == NULL) {
		return;
	}
	PQclear(answers->result);
	free(answers);
}

size_t once_answers_count(const once_answers *answers)
{
	return answers->count;
}

const once_answer *once_answers_at(const once_answers *answers, size_t index)
{
	return index < answers->count ? &answers->answers[index] : NULL;
}

bool once_answer_may_run(const once_answer *answer)
{
	/* A takeover hands out a processing row; the same words from peek describe a row that nobody claimed for us. */
	switch (answer->verdict) {
	case ONCE_PROCEED:
		return answer->state == ONCE_STATE_NONE;
	case ONCE_NEW_CLAIM:
		return true;
	case ONCE_RETRYABLE_FAILURE:
	case ONCE_PROCESSING_STALE:
		return answer->state == ONCE_STATE_PROCESSING && answer->created_at == NULL;
	default:
		return false;
	}
}

once_verdict once_answer_verdict(const once_answer *answer)
{
	return answer->verdict;
}

once_state once_answer_state(const once_answer *answer)
{
	return answer->state;
}

int once_answer_fence(const once_answer *answer)
{
	return answer->fence;
}

int once_answer_attempts(const once_answer *answer)
{
	return answer->attempts;
}

int once_answer_response_status(const once_answer *answer)
{
	return answer->response_status;
}

once_bytes once_answer_response_body(const once_answer *answer)
{
	return answer->response_body;
}

/* The texts of an answer, all alike. */
#define ANSWER_TEXT(field)                                                                                             \
	const char *once_answer_##field(const once_answer *answer)                                                         \
	{                                                                                                                  \
		return answer->field;                                                                                          \
	}
ANSWER_TEXT(response_headers)
ANSWER_TEXT(result_type)
ANSWER_TEXT(result_id)
ANSWER_TEXT(error_code)
ANSWER_TEXT(error_message)
ANSWER_TEXT(owner)
ANSWER_TEXT(lease_until)
ANSWER_TEXT(created_at)
ANSWER_TEXT(completed_at)
