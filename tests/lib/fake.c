/* SPDX-License-Identifier: PostgreSQL */
/* fake.c: see fake.h. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fake.h"

/* ---- Messages out ---- */

static unsigned char *reserve(fake_connection *to, size_t length)
{
	assert_true(to->output_length + length <= sizeof to->output);
	unsigned char *at = to->output + to->output_length;
	to->output_length += length;
	return at;
}

static void put(fake_connection *to, const void *data, size_t length)
{
	memcpy(reserve(to, length), data, length);
}

static void put_number(fake_connection *to, uint32_t number, int bytes)
{
	unsigned char *at = reserve(to, (size_t)bytes);
	for (int i = bytes - 1; i >= 0; i--) {
		at[i] = (unsigned char)number;
		number >>= 8;
	}
}

static size_t start(fake_connection *to, char type)
{
	put(to, &type, 1);
	put_number(to, 0, 4);
	return to->output_length - 4;
}

static void end(fake_connection *to, size_t started)
{
	uint32_t length = (uint32_t)(to->output_length - started);
	for (int i = 3; i >= 0; i--) {
		to->output[started + (size_t)i] = (unsigned char)length;
		length >>= 8;
	}
}

static void put_string(fake_connection *to, const char *text)
{
	put(to, text, strlen(text) + 1);
}

static void send_simple(fake_connection *to, char type)
{
	end(to, start(to, type));
}

static void send_parameter(fake_connection *to, const char *name, const char *value)
{
	size_t at = start(to, 'S');
	put_string(to, name);
	put_string(to, value);
	end(to, at);
}

static void send_ready(fake_connection *to)
{
	size_t at = start(to, 'Z');
	put(to, "I", 1);
	end(to, at);
}

static void send_error(fake_connection *to, const char *sqlstate, const char *message)
{
	size_t at = start(to, 'E');
	put(to, "SERROR", 7);
	put(to, "C", 1);
	put_string(to, sqlstate);
	put(to, "M", 1);
	put_string(to, message);
	put(to, "", 1);
	end(to, at);
	to->failed = true;
}

/* Columns by their names, with a letter for the type: i integer, t text, y bytea, b boolean. */
static void send_columns(fake_connection *to, const char *const *columns, int count)
{
	size_t at = start(to, 'T');
	put_number(to, (uint32_t)count, 2);
	for (int i = 0; i < count; i++) {
		char type = columns[i][0];
		put_string(to, columns[i] + 1);
		put_number(to, 0, 4);
		put_number(to, 0, 2);
		put_number(to, type == 'i' ? 23 : type == 'y' ? 17 : type == 'b' ? 16 : 25, 4);
		put_number(to, UINT16_MAX, 2);
		put_number(to, UINT32_MAX, 4);
		put_number(to, 1, 2);
	}
	end(to, at);
}

static void put_null(fake_connection *to)
{
	put_number(to, UINT32_MAX, 4);
}

static void put_text(fake_connection *to, const char *text)
{
	put_number(to, (uint32_t)strlen(text), 4);
	put(to, text, strlen(text));
}

static void put_int(fake_connection *to, int number)
{
	put_number(to, 4, 4);
	put_number(to, (uint32_t)number, 4);
}

static void put_bool(fake_connection *to, bool value)
{
	put_number(to, 1, 4);
	put_number(to, value, 1);
}

static void send_complete(fake_connection *to)
{
	size_t at = start(to, 'C');
	put_string(to, "SELECT 1");
	end(to, at);
}

/* ---- Parameters in ---- */

typedef fake_parameter parameter;
typedef fake_statement statement;

static uint32_t get_number(const unsigned char *at, int bytes)
{
	uint32_t number = 0;
	for (int i = 0; i < bytes; i++) {
		number = number << 8 | at[i];
	}
	return number;
}

static int array_count(const parameter *array)
{
	return get_number(array->data, 4) == 0 ? 0 : (int)get_number(array->data + 12, 4);
}

static parameter array_at(const parameter *array, int index)
{
	const unsigned char *at = array->data + 20;
	for (;; index--) {
		uint32_t length = get_number(at, 4);
		parameter found = {.data = length == UINT32_MAX ? NULL : at + 4, .length = length == UINT32_MAX ? 0 : length};
		if (index == 0) {
			return found;
		}
		at += 4 + found.length;
	}
}

static void copy_text(char out[FAKE_NAME], parameter from)
{
	assert_true(from.length < FAKE_NAME);
	if (from.length > 0) {
		memcpy(out, from.data, from.length);
	}
	out[from.length] = '\0';
}

/* ---- A small contract ---- */

static fake_intent *find_intent(fake *fake, const char *tenant, const char *scope, const char *key)
{
	for (size_t i = 0; i < fake->intent_count; i++) {
		fake_intent *intent = &fake->intents[i];
		if (strcmp(intent->tenant, tenant) == 0 && strcmp(intent->scope, scope) == 0 && strcmp(intent->key, key) == 0) {
			return intent;
		}
	}
	return NULL;
}

static fake_intent *add_intent(fake *fake, const char *tenant, const char *scope, const char *key)
{
	assert_true(fake->intent_count < FAKE_INTENTS);
	fake_intent *intent = &fake->intents[fake->intent_count++];
	*intent = (fake_intent){.fence = 1, .attempts = 1, .state = ONCE_STATE_PROCESSING};
	snprintf(intent->tenant, sizeof intent->tenant, "%s", tenant);
	snprintf(intent->scope, sizeof intent->scope, "%s", scope);
	snprintf(intent->key, sizeof intent->key, "%s", key);
	return intent;
}

fake_intent *fake_find(fake *fake, const char *key)
{
	return find_intent(fake, "", "s", key);
}

fake_intent *fake_put(fake *fake, const char *key, once_state state)
{
	fake_intent *intent = add_intent(fake, "", "s", key);
	intent->state = state;
	return intent;
}

typedef struct element {
	char scope[FAKE_NAME];
	char key[FAKE_NAME];
} element;

static element element_at(const statement *given, int index)
{
	element found;
	copy_text(found.scope, array_at(&given->parameters[0], index));
	copy_text(found.key, array_at(&given->parameters[1], index));
	return found;
}

#define CLAIM_COLUMNS                                                                                                  \
	"iord", "tverdict", "ifence", "tstate", "iresponse_status", "tresponse_headers", "yresponse_body", "tresult_type", \
	    "tresult_id", "terror_code", "terror_message"
static const char *const claim_columns[] = {CLAIM_COLUMNS, "tlease_until", "iattempts", "ttraceparent"};
static const char *const peek_columns[] = {CLAIM_COLUMNS, "towner",        "tlease_until", "iattempts",
                                           "tcreated_at", "tcompleted_at", "ttraceparent"};

/* The eleven columns that claims and peeks have in common. */
static void put_answer(fake_connection *to, int ord, const char *verdict, const fake_intent *intent,
                       const char *error_code)
{
	put_int(to, ord);
	put_text(to, verdict);
	if (intent == NULL) {
		put_null(to);
		put_null(to);
	} else {
		put_int(to, intent->fence);
		put_text(to, once_state_name(intent->state));
	}
	put_null(to);
	put_null(to);
	if (intent != NULL && intent->state == ONCE_STATE_SUCCEEDED) {
		put_text(to, "stored");
	} else {
		put_null(to);
	}
	put_null(to);
	put_null(to);
	if (error_code == NULL) {
		put_null(to);
		put_null(to);
	} else {
		put_text(to, error_code);
		put_text(to, "an element is malformed");
	}
}

static const char *verdict_of_state(const fake_intent *intent)
{
	switch (intent->state) {
	case ONCE_STATE_SUCCEEDED:
		return "replay_success";
	case ONCE_STATE_FAILED_RETRYABLE:
		return "retryable_failure";
	case ONCE_STATE_FAILED_FINAL:
		return "final_failure";
	case ONCE_STATE_IN_DOUBT:
		return "in_doubt";
	default:
		return intent->stale ? "processing_stale" : "processing_active";
	}
}

static void put_trace(fake_connection *to, const fake_intent *intent)
{
	if (intent == NULL || intent->trace[0] == '\0') {
		put_null(to);
	} else {
		put_text(to, intent->trace);
	}
}

static void claim(fake *fake, fake_connection *to, const statement *given, int index, const char *tenant)
{
	element named = element_at(given, index);
	fake_intent *intent = find_intent(fake, tenant, named.scope, named.key);
	parameter fingerprint = array_at(&given->parameters[2], index);
	const char *verdict = "new_claim";
	const char *code = NULL;
	if (strcmp(named.key, "malformed") == 0) {
		verdict = "invalid";
		code = "P4001";
	} else if (intent == NULL) {
		intent = add_intent(fake, tenant, named.scope, named.key);
		memcpy(intent->fingerprint, fingerprint.data, sizeof intent->fingerprint);
		copy_text(intent->owner, given->parameters[3]);
		copy_text(intent->trace, array_at(&given->parameters[7], index));
		intent->granted++;
	} else if (intent->hidden) {
		verdict = "processing_active";
		intent = NULL;
	} else if (memcmp(intent->fingerprint, fingerprint.data, sizeof intent->fingerprint) != 0) {
		verdict = "mismatch";
		intent = NULL;
	} else {
		verdict = verdict_of_state(intent);
		intent->stale = intent->stale || fake->ages;
		if (intent->state == ONCE_STATE_FAILED_RETRYABLE || strcmp(verdict, "processing_stale") == 0) {
			intent->state = ONCE_STATE_PROCESSING;
			intent->stale = false;
			intent->fence++;
			intent->attempts++;
			intent->granted++;
			copy_text(intent->owner, given->parameters[3]);
		}
	}
	put_answer(to, fake->misorders ? 2 - index : index + 1, verdict, intent, code);
	put_null(to);
	put_int(to, intent == NULL ? 0 : intent->attempts);
	put_trace(to, intent);
}

static void peek(fake *fake, fake_connection *to, const statement *given, int index, const char *tenant)
{
	element named = element_at(given, index);
	const fake_intent *intent = find_intent(fake, tenant, named.scope, named.key);
	intent = intent != NULL && intent->hidden ? NULL : intent;
	put_answer(to, index + 1, intent == NULL ? "absent" : verdict_of_state(intent), intent, NULL);
	if (intent == NULL) {
		put_null(to);
	} else {
		put_text(to, intent->owner);
	}
	put_null(to);
	put_int(to, intent == NULL ? 0 : intent->attempts);
	put_text(to, "2026-01-01");
	put_null(to);
	put_trace(to, intent);
}

/* Finds the element's intent, if this fence still holds it. */
static fake_intent *held(fake *fake, const statement *given, int index, const char *tenant)
{
	element named = element_at(given, index);
	fake_intent *intent = find_intent(fake, tenant, named.scope, named.key);
	int fence = (int)get_number(array_at(&given->parameters[2], index).data, 4);
	return intent != NULL && intent->fence == fence ? intent : NULL;
}

static const char *report(fake *fake, const statement *given, int index, const char *tenant, bool fails)
{
	fake_intent *intent = held(fake, given, index, tenant);
	once_state next = ONCE_STATE_SUCCEEDED;
	if (fails) {
		parameter retryable = array_at(&given->parameters[3], index);
		next = retryable.data == NULL ? ONCE_STATE_IN_DOUBT
		       : retryable.data[0]    ? ONCE_STATE_FAILED_RETRYABLE
		                              : ONCE_STATE_FAILED_FINAL;
	}
	if (intent == NULL || (intent->state != ONCE_STATE_PROCESSING && intent->state != next)) {
		return "refused";
	}
	const char *verdict = intent->state == next ? "repeated" : "stored";
	intent->state = next;
	return verdict;
}

static void answer_reports(fake *fake, fake_connection *to, const statement *given, const char *tenant, bool fails)
{
	static const char *const columns[] = {"iord", "tverdict", "terror_code", "terror_message"};
	send_columns(to, columns, 4);
	for (int i = 0; i < array_count(&given->parameters[0]); i++) {
		size_t at = start(to, 'D');
		put_number(to, 4, 2);
		put_int(to, fake->misorders ? 2 - i : i + 1);
		put_text(to, report(fake, given, i, tenant, fails));
		put_null(to);
		put_null(to);
		end(to, at);
	}
}

static void answer_claims(fake *fake, fake_connection *to, const statement *given, const char *tenant, bool claims)
{
	int columns = claims ? 14 : 17;
	send_columns(to, claims ? claim_columns : peek_columns, columns);
	for (int i = 0; i < array_count(&given->parameters[0]); i++) {
		size_t at = start(to, 'D');
		put_number(to, (uint32_t)columns, 2);
		if (claims) {
			claim(fake, to, given, i, tenant);
		} else {
			peek(fake, to, given, i, tenant);
		}
		end(to, at);
	}
}

static void answer_held(fake *fake, fake_connection *to, const statement *given, const char *tenant, bool releases)
{
	static const char *const columns[] = {"iord", "breleased"};
	static const char *const renewed[] = {"brenewed"};
	int count = array_count(&given->parameters[0]);
	send_columns(to, releases ? columns : renewed, releases ? 2 : 1);
	/* Releases come in another order than they were sent in. */
	for (int i = 0; i < count; i++) {
		int index = releases ? count - 1 - i : i;
		fake_intent *intent = held(fake, given, index, tenant);
		bool holds = intent != NULL && intent->state == ONCE_STATE_PROCESSING;
		/* A lease of a millisecond has passed before anybody can look. */
		if (holds && !releases && given->parameters[3].data != NULL) {
			intent->stale = get_number(given->parameters[3].data + 4, 4) == 1;
		}
		if (holds && releases) {
			intent->state = ONCE_STATE_FAILED_RETRYABLE;
			intent->attempts--;
		}
		fake->renewals += !releases;
		size_t at = start(to, 'D');
		put_number(to, releases ? 2 : 1, 2);
		if (releases) {
			put_int(to, index + 1);
		}
		put_bool(to, holds);
		end(to, at);
	}
}

static void answer_salt(fake_connection *to, const char *tenant)
{
	static const char *const columns[] = {"ysalt"};
	unsigned char salt[ONCE_SALT_BYTES] = {0};
	memcpy(salt, tenant, strlen(tenant) < sizeof salt ? strlen(tenant) : sizeof salt);
	send_columns(to, columns, 1);
	size_t at = start(to, 'D');
	put_number(to, 1, 2);
	put_number(to, sizeof salt, 4);
	put(to, salt, sizeof salt);
	end(to, at);
}

static bool names_key(const char *key, const statement *given)
{
	for (int i = 0; key[0] != '\0' && given->count > 2 && i < array_count(&given->parameters[0]); i++) {
		if (strcmp(element_at(given, i).key, key) == 0) {
			return true;
		}
	}
	return false;
}

static void answer_count(fake *fake, fake_connection *to, const statement *given)
{
	static const char *const columns[] = {"tserver", "iretention_ms"};
	fake->cached.replays += get_number(given->parameters[0].data + 4, 4);
	fake->cached.finals += get_number(given->parameters[1].data + 4, 4);
	fake->cached.mismatches += get_number(given->parameters[2].data + 4, 4);
	send_columns(to, columns, 2);
	size_t at = start(to, 'D');
	put_number(to, 2, 2);
	put_text(to, fake->server == NULL ? "a server" : fake->server);
	put_int(to, 5000);
	end(to, at);
}

/* Does the statement report on an intent whose row somebody holds? */
static bool meets_lock(const fake *fake, const fake_connection *connection, const statement *given)
{
	bool reports = strstr(connection->text, "claim_many") == NULL && strstr(connection->text, "peek_many") == NULL;
	size_t length = strlen(fake->locked_key);
	for (int i = 0; length > 0 && reports && given->count > 2 && i < array_count(&given->parameters[0]); i++) {
		if (strncmp(element_at(given, i).key, fake->locked_key, length) == 0) {
			return true;
		}
	}
	return false;
}

static void note_statement(fake *fake, const char *text)
{
	size_t length = strlen(fake->order);
	if (length < sizeof fake->order - 1) {
		fake->order[length] = text[0];
	}
}

static void execute(fake *fake, fake_connection *to, const statement *given)
{
	char tenant[FAKE_NAME] = "";
	const char *text = to->text;
	fake->statements++;
	if (fake->missing[0] != '\0' && strstr(text, fake->missing) != NULL) {
		send_error(to, "42883", "function once.contract_version() does not exist");
		return;
	}
	if (strstr(text, "lock_timeout") != NULL) {
		if (fake->bad_limits > 0) {
			fake->bad_limits--;
			send_error(to, fake->bad_sqlstate, "the limit cannot be set");
			return;
		}
		static const char *const columns[] = {"tset_config"};
		send_columns(to, columns, 1);
		size_t at = start(to, 'D');
		put_number(to, 1, 2);
		put_text(to, "50ms");
		end(to, at);
		send_complete(to);
		to->limited = true;
		fake->limits++;
		return;
	}
	if (strstr(text, "contract_version") != NULL) {
		static const char *const columns[] = {"icontract_version"};
		send_columns(to, columns, 1);
		size_t at = start(to, 'D');
		put_number(to, 1, 2);
		put_int(to, fake->version);
		end(to, at);
		send_complete(to);
		return;
	}
	if (strstr(text, "count_cached") != NULL) {
		to->statements++;
		answer_count(fake, to, given);
		send_complete(to);
		return;
	}
	copy_text(tenant, given->parameters[strstr(text, "claim_many") != NULL ? 6 : given->count - 1]);
	if (fake->refused_tenant[0] != '\0' && strcmp(fake->refused_tenant, tenant) == 0) {
		send_error(to, "P4003", "pgonce: the fingerprint is missing or the tenant is refused");
		return;
	}
	if (meets_lock(fake, to, given)) {
		send_error(to, "55P03", "canceling statement due to lock timeout");
		return;
	}
	bool bad = fake->bad_count != 0 && names_key(fake->bad_key, given);
	fake->bad_count -= bad && fake->bad_count > 0;
	to->spoiled = to->spoiled || (bad && fake->bad_sync);
	if (bad && !fake->bad_sync) {
		send_error(to, fake->bad_sqlstate, "an element spoils the statement");
		return;
	}
	to->statements++;
	note_statement(fake, strstr(text, "once.") + strlen("once.") + 2);
	if (given->count > 1 && array_count(&given->parameters[0]) > fake->largest) {
		fake->largest = array_count(&given->parameters[0]);
	}
	if (strstr(text, "claim_many") != NULL) {
		answer_claims(fake, to, given, tenant, true);
	} else if (strstr(text, "peek_many") != NULL) {
		answer_claims(fake, to, given, tenant, false);
	} else if (strstr(text, "renew_many") != NULL) {
		answer_held(fake, to, given, tenant, false);
	} else if (strstr(text, "once.release") != NULL) {
		answer_held(fake, to, given, tenant, true);
	} else if (strstr(text, "complete_many") != NULL) {
		answer_reports(fake, to, given, tenant, false);
	} else if (strstr(text, "fail_many") != NULL) {
		answer_reports(fake, to, given, tenant, true);
	} else {
		answer_salt(to, tenant);
	}
	send_complete(to);
}

/* ---- The protocol ---- */

static void close_connection(fake_connection *connection)
{
	close(connection->fd);
	connection->fd = 0;
}

static bool loses(fake *fake, fake_step step)
{
	if (fake->lose != step || fake->lose_count == 0) {
		return false;
	}
	fake->lose_count--;
	fake->lost++;
	fake->deaf = fake->deafens;
	return true;
}

static void parse(fake_connection *connection, const unsigned char *body)
{
	const char *name = (const char *)body;
	const char *text = name + strlen(name) + 1;
	snprintf(connection->text, sizeof connection->text, "%s", text);
	if (name[0] != '\0') {
		assert_true(connection->prepared < 16);
		snprintf(connection->names[connection->prepared], sizeof connection->names[0], "%s", name);
		snprintf(connection->texts[connection->prepared++], sizeof connection->texts[0], "%s", text);
	}
	send_simple(connection, '1');
}

static bool bind_statement(fake_connection *connection, const unsigned char *body, statement *given)
{
	const char *name = (const char *)body + strlen((const char *)body) + 1;
	const unsigned char *at = (const unsigned char *)name + strlen(name) + 1;
	if (name[0] != '\0') {
		int found = -1;
		for (int i = 0; i < connection->prepared; i++) {
			found = strcmp(connection->names[i], name) == 0 ? i : found;
		}
		if (found < 0) {
			send_error(connection, "26000", "prepared statement does not exist");
			return false;
		}
		memcpy(connection->text, connection->texts[found], sizeof connection->text);
	}
	at += 2 + 2 * get_number(at, 2);
	given->count = (int)get_number(at, 2);
	at += 2;
	for (int i = 0; i < given->count; i++) {
		uint32_t length = get_number(at, 4);
		at += 4;
		given->parameters[i] =
		    (parameter){.data = length == UINT32_MAX ? NULL : at, .length = length == UINT32_MAX ? 0 : length};
		at += given->parameters[i].length;
	}
	send_simple(connection, '2');
	return true;
}

static void roll_back(fake *fake, fake_connection *connection)
{
	memcpy(fake->intents, connection->before, connection->before_count * sizeof fake->intents[0]);
	fake->intent_count = connection->before_count;
}

/* The end of a transaction. False where the connection is lost. */
static bool end_transaction(fake *fake, fake_connection *connection)
{
	bool batch = connection->statements > 0;
	if (batch && loses(fake, STEP_STATEMENT)) {
		roll_back(fake, connection);
		return false;
	}
	if (batch && loses(fake, STEP_TERMINATED)) {
		roll_back(fake, connection);
		connection->output_length = connection->output_sent;
		send_error(connection, "57P01", "terminating connection due to administrator command");
		connection->closing = true;
		return true;
	}
	if (!connection->failed && connection->spoiled) {
		send_error(connection, fake->bad_sqlstate, "a deferred constraint fails the commit");
	}
	if (connection->failed) {
		roll_back(fake, connection);
	} else if (batch) {
		fake->syncs++;
	}
	if (batch) {
		note_statement(fake, ".");
	}
	send_ready(connection);
	connection->failed = connection->spoiled = connection->limited = false;
	connection->statements = 0;
	if (batch) {
		size_t new_bytes = connection->output_length - connection->output_sent;
		if (loses(fake, STEP_COMMITTED)) {
			return false;
		}
		if (loses(fake, STEP_HALF)) {
			connection->output_length -= new_bytes / 2;
			connection->closing = true;
		} else if (loses(fake, STEP_LAST_BYTE)) {
			connection->output_length--;
			connection->closing = true;
		} else if (loses(fake, STEP_ANSWERED)) {
			connection->closing = true;
		}
	} else {
		if (connection->checks && loses(fake, STEP_CHECK)) {
			return false;
		}
		if (connection->checks && loses(fake, STEP_CHECK_HALF)) {
			connection->output_length -= (connection->output_length - connection->output_sent) / 2;
			connection->closing = true;
		}
		connection->checks = false;
	}
	memcpy(connection->before, fake->intents, fake->intent_count * sizeof fake->intents[0]);
	connection->before_count = fake->intent_count;
	return true;
}

static bool startup(fake *fake, fake_connection *connection)
{
	if (loses(fake, STEP_STARTUP)) {
		return false;
	}
	if (loses(fake, STEP_NOT_YET)) {
		send_error(connection, "57P03", "the database system is starting up");
		connection->closing = true;
		return true;
	}
	size_t at = start(connection, 'R');
	put_number(connection, 0, 4);
	end(connection, at);
	send_parameter(connection, "server_version", "15.0");
	send_parameter(connection, "client_encoding", "UTF8");
	send_parameter(connection, "standard_conforming_strings", "on");
	at = start(connection, 'K');
	put_number(connection, 1, 4);
	put_number(connection, 2, 4);
	end(connection, at);
	send_ready(connection);
	if (loses(fake, STEP_AUTHENTICATION)) {
		connection->output_length /= 2;
		connection->closing = true;
	}
	connection->started = true;
	connection->checks = true;
	return true;
}

/* A frontend message. False where the connection is lost. */
static bool take_message(fake *fake, fake_connection *connection, char type, const unsigned char *body, size_t length)
{
	statement *given = &connection->given; /* bound, and executed by the message after the next */
	if (type == 'S') {
		return end_transaction(fake, connection);
	}
	if (type == 'X') {
		return false;
	}
	if (connection->failed) {
		return true;
	}
	if (connection->statements == 0 && type == 'B') {
		memcpy(connection->before, fake->intents, fake->intent_count * sizeof fake->intents[0]);
		connection->before_count = fake->intent_count;
	}
	if (type == 'P') {
		fake->prepares += body[0] != '\0';
		parse(connection, body);
	} else if (type == 'B') {
		memcpy(connection->bound, body, length);
		bind_statement(connection, connection->bound, given);
	} else if (type == 'E') {
		if (connection->statements == 1 && loses(fake, STEP_BETWEEN)) {
			roll_back(fake, connection);
			return false;
		}
		execute(fake, connection, given);
	}
	return true;
}

static bool take_messages(fake *fake, fake_connection *connection)
{
	size_t at = 0;
	bool open = true;
	while (open && !connection->closing) {
		size_t head = connection->started ? 1 : 0;
		if (connection->input_length - at < head + 4) {
			break;
		}
		size_t length = get_number(connection->input + at + head, 4);
		if (connection->input_length - at < head + length) {
			break;
		}
		connection->waiting = connection->started && connection->input[at] == 'E' && !connection->failed &&
		                      !connection->limited && meets_lock(fake, connection, &connection->given);
		if (connection->waiting) {
			break;
		}
		open = connection->started ? take_message(fake, connection, (char)connection->input[at],
		                                          connection->input + at + head + 4, length - 4)
		                           : startup(fake, connection);
		at += head + length;
	}
	memmove(connection->input, connection->input + at, connection->input_length - at);
	connection->input_length -= at;
	return open;
}

static bool serve(fake *fake, fake_connection *connection)
{
	bool worked = false;
	size_t room = sizeof connection->input - connection->input_length;
	assert_true(room > 0);
	ssize_t got = fake->silent ? -1
	                           : read(connection->fd, connection->input + connection->input_length,
	                                  fake->slow_reader && room > 100 ? 100 : room);
	if (got == 0) {
		close_connection(connection);
		return true;
	}
	if (got > 0 || (connection->waiting && !meets_lock(fake, connection, &connection->given))) {
		worked = true;
		connection->input_length += got > 0 ? (size_t)got : 0;
		if (!take_messages(fake, connection)) {
			close_connection(connection);
			return true;
		}
	}
	size_t left = connection->output_length - connection->output_sent;
	if (left > 0 && !fake->silent) {
		ssize_t sent =
		    send(connection->fd, connection->output + connection->output_sent, fake->trickles ? 1 : left, MSG_NOSIGNAL);
		worked = worked || sent > 0;
		connection->output_sent += sent > 0 ? (size_t)sent : 0;
		left = connection->output_length - connection->output_sent;
	}
	if (left == 0) {
		connection->output_length = connection->output_sent = 0;
		if (connection->closing) {
			close_connection(connection);
			return true;
		}
	}
	return worked;
}

static bool accept_one(fake *fake)
{
	int fd = fake->listener < 0 || fake->deaf ? -1 : accept4(fake->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		return false;
	}
	fake->accepted++;
	if (loses(fake, STEP_ACCEPT)) {
		close(fd);
		return true;
	}
	for (int i = 0; i < FAKE_CONNECTIONS; i++) {
		fake_connection *connection = &fake->connections[i];
		if (connection->fd == 0) {
			int small = 4096;
			connection->fd = fd;
			connection->started = connection->failed = connection->closing = connection->spoiled = false;
			connection->limited = connection->waiting = false;
			connection->input_length = connection->output_length = connection->output_sent = 0;
			connection->statements = connection->before_count = 0;
			connection->prepared = 0;
			if (fake->slow_reader) {
				setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
			}
			return true;
		}
	}
	fail_msg("too many connections");
	return false;
}

bool fake_serve(fake *fake)
{
	bool worked = accept_one(fake);
	for (int i = 0; i < FAKE_CONNECTIONS; i++) {
		if (fake->connections[i].fd != 0) {
			worked = serve(fake, &fake->connections[i]) || worked;
		}
	}
	return worked;
}

/* ---- Listening ---- */

void fake_listen(fake *fake)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof address.sun_path, "%s/.s.PGSQL.5432", fake->directory);
	unlink(address.sun_path);
	fake->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fake->listener, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(listen(fake->listener, 16), 0);
}

void fake_refuse(fake *fake)
{
	close(fake->listener);
	fake->listener = -1;
}

void fake_lose(fake *fake, fake_step step, int times)
{
	fake->lose = step;
	fake->lose_count = times;
}

void fake_cut(fake *fake)
{
	for (int i = 0; i < FAKE_CONNECTIONS; i++) {
		if (fake->connections[i].fd != 0) {
			close_connection(&fake->connections[i]);
		}
	}
}
