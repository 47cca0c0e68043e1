/* SPDX-License-Identifier: PostgreSQL */
/* transaction.c: see transaction.h. */
#include "transaction.h"

#include <string.h>

PGresult *transaction_receive(consumer *consumer, message *const *messages, size_t count, bool ordered,
                              failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int keys = parameters_array(&given, PARAMETER_TEXT);
	int fingerprints = parameters_array(&given, PARAMETER_BYTEA);
	parameters_text(&given, consumer->settings.tenant);
	parameters_boolean(&given, consumer->settings.on_dead == ON_DEAD_SKIP);
	int traces = parameters_array(&given, PARAMETER_TEXT);
	for (size_t i = 0; i < count; i++) {
		parameters_add_text(&given, ids, messages[i]->id);
		parameters_add_text(&given, keys, ordered ? messages[i]->line : NULL);
		parameters_add(&given, fingerprints, messages[i]->fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
		parameters_add_text(&given, traces, messages[i]->traceparent);
	}
	return database_query(&consumer->database, SQL_RECEIVE, &given, failure);
}

bool transaction_receive_parked(consumer *consumer, const message *message, bool *process, failure *failure)
{
	parameters given = {0};

	parameters_text(&given, consumer->speaker.name);
	parameters_text(&given, message->id);
	parameters_bytes(&given, message->fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
	parameters_text(&given, consumer->settings.tenant);
	parameters_text(&given, message->traceparent);
	PGresult *result = database_query(&consumer->database, SQL_RECEIVE_PARKED, &given, failure);
	*process = result != NULL && strcmp(PQgetvalue(result, 0, 0), "process") == 0;
	PQclear(result);
	return result != NULL;
}

bool transaction_handle(consumer *consumer, message *const *messages, size_t count, failure *failure)
{
	parameters given = {0};
	int ids = parameters_array(&given, PARAMETER_TEXT);
	int topics = parameters_array(&given, PARAMETER_TEXT);
	int keys = parameters_array(&given, PARAMETER_TEXT);
	int headers = parameters_array(&given, PARAMETER_JSONB);
	int payloads = parameters_array(&given, PARAMETER_BYTEA);
	int are_json = parameters_array(&given, PARAMETER_BOOLEAN);

	for (size_t i = 0; i < count; i++) {
		const message *message = messages[i];
		const char *id = message_own_id(message);
		parameters_add_text(&given, ids, id);
		parameters_add_text(&given, topics, message->topic);
		parameters_add_text(&given, keys, message->key);
		parameters_add_text(&given, headers, message->headers);
		parameters_add(&given, payloads, message->payload.data, message->payload.length);
		parameters_add_number(&given, are_json, message->json == JSON_YES);
	}
	return database_run(&consumer->database, SQL_HANDLE, &given, failure);
}
