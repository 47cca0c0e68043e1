/* SPDX-License-Identifier: PostgreSQL */
/* prepare.c: a message's fingerprint, and whether it is jsonb. Called by everything that applies
 * messages. */
#include "consumer.h"

#include <string.h>

bool prepare_doubts(message *message, const failure *failure)
{
	static const char *const codes[] = {"22P02", "22P05", "22021", "22003", "54000", "54001"};

	for (size_t i = 0; i < sizeof codes / sizeof codes[0] && message->json == JSON_YES && !message->asked; i++) {
		if (strcmp(failure->sqlstate, codes[i]) == 0) {
			message->json = JSON_UNSURE;
			return true;
		}
	}
	return false;
}

bool prepare_json(consumer *consumer, message *message, failure *failure)
{
	parameters given = {0};

	if (message->json != JSON_UNSURE) {
		return true;
	}
	parameters_bytes(&given, message->payload.data, message->payload.length);
	if (database_run(&consumer->database, SQL_IS_JSONB, &given, failure)) {
		message->json = JSON_YES;
	} else if (failure->kind == FAILURE_FAULT) {
		message->json = JSON_NO;
	} else {
		return false;
	}
	message->asked = true;
	return true;
}

bool prepare_messages(consumer *consumer, message *messages, size_t count, failure *failure)
{
	for (size_t i = 0; i < count; i++) {
		once_error *error = NULL;
		once_bytes payload =
		    messages[i].payload.data != NULL ? messages[i].payload : (once_bytes){.data = "", .length = 0};
		if (once_fingerprint_bytes(consumer->database.session, consumer->settings.tenant, payload,
		                           &messages[i].fingerprint, &error) != ONCE_OK) {
			failure_of_error(error, failure);
			once_error_free(error);
			failure->kind = failure->kind == FAILURE_FAULT ? FAILURE_PASSING : failure->kind;
			return false;
		}
		if (messages[i].unusable == NULL && !prepare_json(consumer, &messages[i], failure)) {
			return false;
		}
	}
	return true;
}
