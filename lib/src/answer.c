/* SPDX-License-Identifier: PostgreSQL */
/*
 * answer.c: the contract's answers, read in place: an answer points into the PGresult that it owns,
 * so nothing is copied. libpq ends every value with a NUL that its length does not count, so text
 * can be lent as a C string.
 */
#include <stdlib.h>

#include "internal.h"
#include "names.h"
#include "pgonce_batcher.h"

struct once_answers {
	PGresult *result;
	size_t count;
	once_answer answers[];
};

static const char *const column_names[ANSWER_COLUMNS] = {
    [COLUMN_VERDICT] = "verdict",
    [COLUMN_STATE] = "state",
    [COLUMN_FENCE] = "fence",
    [COLUMN_ATTEMPTS] = "attempts",
    [COLUMN_RESPONSE_STATUS] = "response_status",
    [COLUMN_RESPONSE_HEADERS] = "response_headers",
    [COLUMN_RESPONSE_BODY] = "response_body",
    [COLUMN_RESULT_TYPE] = "result_type",
    [COLUMN_RESULT_ID] = "result_id",
    [COLUMN_ERROR_CODE] = "error_code",
    [COLUMN_ERROR_MESSAGE] = "error_message",
    [COLUMN_OWNER] = "owner",
    [COLUMN_LEASE_UNTIL] = "lease_until",
    [COLUMN_CREATED_AT] = "created_at",
    [COLUMN_TRACEPARENT] = "traceparent",
    [COLUMN_KEPT_MS] = "kept_ms",
};

/*
 * PQfnumber copies and folds the name at each call: with seventeen names that is most of the cost
 * of reading an answer of one row. So this reads the result's names once.
 */
void answer_find_columns(const PGresult *result, answer_columns *columns)
{
	int count = PQnfields(result);
	for (int i = 0; i < ANSWER_COLUMNS; i++) {
		columns->at[i] = -1;
	}
	for (int column = 0; column < count; column++) {
		const char *name = PQfname(result, column);
		for (int i = 0; i < ANSWER_COLUMNS; i++) {
			if (name[0] == column_names[i][0] && columns->at[i] < 0 && strcmp(name, column_names[i]) == 0) {
				columns->at[i] = column;
				break;
			}
		}
	}
}

int find_column(const PGresult *result, const char *name)
{
	int count = PQnfields(result);
	for (int column = 0; column < count; column++) {
		if (strcmp(PQfname(result, column), name) == 0) {
			return column;
		}
	}
	return -1;
}

/* A missing column means that the query does not return it. */
static bool find(const PGresult *result, const answer_columns *columns, int row, answer_column which, int *column)
{
	*column = columns->at[which];
	return *column >= 0 && !PQgetisnull(result, row, *column);
}

static const char *find_text(const PGresult *result, const answer_columns *columns, int row, answer_column which)
{
	int column;
	return find(result, columns, row, which, &column) ? PQgetvalue(result, row, column) : NULL;
}

static int find_int(const PGresult *result, const answer_columns *columns, int row, answer_column which)
{
	int column;
	return find(result, columns, row, which, &column) ? result_int(result, row, column) : 0;
}

void answer_read(once_answer *answer, const PGresult *result, const answer_columns *columns, int row)
{
	int column;
	answer->verdict = verdict_of_name(text_or_empty(find_text(result, columns, row, COLUMN_VERDICT)));
	answer->state = state_of_name(text_or_empty(find_text(result, columns, row, COLUMN_STATE)));
	answer->fence = find_int(result, columns, row, COLUMN_FENCE);
	answer->attempts = find_int(result, columns, row, COLUMN_ATTEMPTS);
	answer->response_status = find_int(result, columns, row, COLUMN_RESPONSE_STATUS);
	answer->response_headers = find_text(result, columns, row, COLUMN_RESPONSE_HEADERS);
	if (find(result, columns, row, COLUMN_RESPONSE_BODY, &column)) {
		answer->response_body =
		    (once_bytes){.data = PQgetvalue(result, row, column), .length = (size_t)PQgetlength(result, row, column)};
	}
	answer->result_type = find_text(result, columns, row, COLUMN_RESULT_TYPE);
	answer->result_id = find_text(result, columns, row, COLUMN_RESULT_ID);
	answer->error_code = find_text(result, columns, row, COLUMN_ERROR_CODE);
	answer->error_message = find_text(result, columns, row, COLUMN_ERROR_MESSAGE);
	answer->owner = find_text(result, columns, row, COLUMN_OWNER);
	answer->lease_until = find_text(result, columns, row, COLUMN_LEASE_UNTIL);
	answer->created_at = find_text(result, columns, row, COLUMN_CREATED_AT);
	answer->traceparent = find_text(result, columns, row, COLUMN_TRACEPARENT);
	answer->kept_ms = find_int(result, columns, row, COLUMN_KEPT_MS);
}

once_code error_of_shape(once_error **error)
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
	answer_columns columns;
	made->result = result;
	answer_find_columns(result, &columns);
	answer_read(made, result, &columns, 0);
	if (made->verdict == ONCE_VERDICT_NONE) {
		once_answer_free(made);
		return error_of_shape(error);
	}
	*answer = made;
	return ONCE_OK;
}

/* ---- once.started, as one value ---- */

typedef enum started_part {
	STARTED_VERDICT,
	STARTED_STATE,
	STARTED_RESPONSE_STATUS,
	STARTED_RESPONSE_BODY,
	STARTED_RESPONSE_HEADERS,
	STARTED_RESULT_TYPE,
	STARTED_RESULT_ID,
	STARTED_ERROR_CODE,
	STARTED_ERROR_MESSAGE,
	STARTED_FENCE,
	STARTED_TRACEPARENT,
	STARTED_PARTS
} started_part;

enum {
	INT_BYTES = 4
};

/*
 * The parts of a row in PostgreSQL's binary format (record_send): their number, then of each its
 * type, its length (-1: NULL) and its bytes. A later contract may append parts.
 */
static bool split_row(char *at, size_t left, once_bytes parts[STARTED_PARTS])
{
	if (left < INT_BYTES || int_of_bytes(at) < STARTED_PARTS) {
		return false;
	}
	at += INT_BYTES;
	left -= INT_BYTES;
	for (int i = 0; i < STARTED_PARTS; i++) {
		if (left < 2 * INT_BYTES) {
			return false;
		}
		int32_t length = int_of_bytes(at + INT_BYTES);
		at += 2 * INT_BYTES;
		left -= 2 * INT_BYTES;
		if (length >= 0) {
			if ((size_t)length > left) {
				return false;
			}
			parts[i] = (once_bytes){.data = at, .length = (size_t)length};
			at += length;
			left -= (size_t)length;
		}
	}
	return true;
}

/* Ends it with NUL, in place of the next part's type, which has been read. */
static const char *text_of_part(once_bytes part)
{
	if (part.data != NULL) {
		((char *)(uintptr_t)part.data)[part.length] = '\0';
	}
	return part.data;
}

static int int_of_part(once_bytes part)
{
	return part.length == INT_BYTES ? int_of_bytes(part.data) : 0;
}

/* jsonb in binary: a version, and its text. */
static bool headers_of_part(once_bytes part, const char **headers)
{
	const char *text = text_of_part(part);
	*headers = text == NULL ? NULL : text + 1;
	return text == NULL || (part.length > 0 && text[0] == 1);
}

once_code answer_of_started(PGresult *result, once_answer **answer, once_error **error)
{
	once_bytes parts[STARTED_PARTS] = {{0}};
	if (PQntuples(result) != 1 || PQnfields(result) != 1 ||
	    !split_row(PQgetvalue(result, 0, 0), (size_t)PQgetlength(result, 0, 0), parts)) {
		PQclear(result);
		return error_of_shape(error);
	}
	once_answer *made = calloc(1, sizeof *made);
	if (made == NULL) {
		PQclear(result);
		return error_no_memory(error);
	}
	made->result = result;
	made->verdict = verdict_of_name(text_or_empty(text_of_part(parts[STARTED_VERDICT])));
	made->state = state_of_name(text_or_empty(text_of_part(parts[STARTED_STATE])));
	made->response_status = int_of_part(parts[STARTED_RESPONSE_STATUS]);
	made->response_body = parts[STARTED_RESPONSE_BODY];
	bool good = headers_of_part(parts[STARTED_RESPONSE_HEADERS], &made->response_headers);
	made->result_type = text_of_part(parts[STARTED_RESULT_TYPE]);
	made->result_id = text_of_part(parts[STARTED_RESULT_ID]);
	made->error_code = text_of_part(parts[STARTED_ERROR_CODE]);
	made->error_message = text_of_part(parts[STARTED_ERROR_MESSAGE]);
	made->fence = int_of_part(parts[STARTED_FENCE]);
	made->traceparent = text_of_part(parts[STARTED_TRACEPARENT]);
	if (!good || made->verdict == ONCE_VERDICT_NONE) {
		once_answer_free(made);
		return error_of_shape(error);
	}
	*answer = made;
	return ONCE_OK;
}

/*
 * The statements of batches have no ORDER BY, which would sort sixteen columns for nothing: a
 * set-returning function returns its rows in order. SQL does not promise that, so it is checked.
 */
bool rows_are_in_order(const PGresult *result, size_t count)
{
	int ordinal = find_column(result, "ord");
	for (int row = 0; ordinal >= 0 && row < PQntuples(result); row++) {
		if (result_int(result, row, ordinal) != row + 1) {
			return false;
		}
	}
	return (size_t)PQntuples(result) == count;
}

once_code answers_of_result(PGresult *result, size_t count, once_answers **answers, once_error **error)
{
	if (!rows_are_in_order(result, count)) {
		PQclear(result);
		return error_of_shape(error);
	}
	once_answers *made = calloc(1, sizeof *made + count * sizeof made->answers[0]);
	if (made == NULL) {
		PQclear(result);
		return error_no_memory(error);
	}
	answer_columns columns;
	made->result = result;
	made->count = count;
	answer_find_columns(result, &columns);
	for (size_t i = 0; i < count; i++) {
		answer_read(&made->answers[i], result, &columns, (int)i);
	}
	*answers = made;
	return ONCE_OK;
}

/* Copies a text to *at, moves *at past it, and returns the copy; NULL stays NULL. */
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

once_code answer_of_outcome(const once_intent *intent, const once_outcome *outcome, once_state state, int fence,
                            once_answer **answer, once_error **error)
{
	const char *traceparent = traceparent_or_null(intent->traceparent);
	size_t size = outcome->response_body.length + 1 + text_size(outcome->response_headers) +
	              text_size(outcome->result_type) + text_size(outcome->result_id) + text_size(outcome->error_code) +
	              text_size(outcome->error_message) + text_size(traceparent);
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
	made->traceparent = place_text(&storage, traceparent);
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

const once_answer *once_answers_at(const once_answers *answers, size_t index)
{
	return index < answers->count ? &answers->answers[index] : NULL;
}

bool once_answer_may_run(const once_answer *answer)
{
	/*
	 * A takeover returns a processing row; the same verdicts from peek describe a row that was not
	 * claimed for this caller.
	 */
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

int once_answer_kept_ms(const once_answer *answer)
{
	return answer->kept_ms;
}

int once_answer_slot(const once_answer *answer)
{
	return answer->slot;
}

/* The text columns of an answer. */
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
ANSWER_TEXT(traceparent)
