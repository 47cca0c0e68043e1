/* SPDX-License-Identifier: PostgreSQL */
/* fake.c: see fake.h. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fake.h"
#include "fake_message.h"

typedef fake_parameter parameter;
typedef fake_statement statement;

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
	parameter_copy(found.scope, parameter_at(&given->parameters[0], index));
	parameter_copy(found.key, parameter_at(&given->parameters[1], index));
	return found;
}

#define CLAIM_COLUMNS                                                                                                  \
	"iord", "tverdict", "ifence", "tstate", "iresponse_status", "tresponse_headers", "yresponse_body", "tresult_type", \
	    "tresult_id", "terror_code", "terror_message"
static const char *const claim_columns[] = {CLAIM_COLUMNS, "tlease_until", "iattempts", "ttraceparent"};
static const char *const peek_columns[] = {CLAIM_COLUMNS, "towner",      "tlease_until",
                                           "iattempts",   "tcreated_at", "ttraceparent"};

/* The eleven columns that claims and peeks have in common. */
static void put_answer(fake_connection *to, int ord, const char *verdict, const fake_intent *intent,
                       const char *error_code)
{
	message_int(to, ord);
	message_text(to, verdict);
	if (intent == NULL) {
		message_null(to);
		message_null(to);
	} else {
		message_int(to, intent->fence);
		message_text(to, once_state_name(intent->state));
	}
	message_null(to);
	message_null(to);
	if (intent != NULL && intent->state == ONCE_STATE_SUCCEEDED) {
		message_text(to, "stored");
	} else {
		message_null(to);
	}
	message_null(to);
	message_null(to);
	if (error_code == NULL) {
		message_null(to);
		message_null(to);
	} else {
		message_text(to, error_code);
		message_text(to, "an element is malformed");
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
		message_null(to);
	} else {
		message_text(to, intent->trace);
	}
}

static void claim(fake *fake, fake_connection *to, const statement *given, int index, const char *tenant)
{
	element named = element_at(given, index);
	fake_intent *intent = find_intent(fake, tenant, named.scope, named.key);
	parameter fingerprint = parameter_at(&given->parameters[2], index);
	const char *verdict = "new_claim";
	const char *code = NULL;
	if (strcmp(named.key, "malformed") == 0) {
		verdict = "invalid";
		code = "P4001";
	} else if (intent == NULL) {
		intent = add_intent(fake, tenant, named.scope, named.key);
		memcpy(intent->fingerprint, fingerprint.data, sizeof intent->fingerprint);
		parameter_copy(intent->owner, given->parameters[3]);
		parameter_copy(intent->trace, parameter_at(&given->parameters[7], index));
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
			parameter_copy(intent->owner, given->parameters[3]);
		}
	}
	put_answer(to, fake->misorders ? 2 - index : index + 1, verdict, intent, code);
	message_null(to);
	message_int(to, intent == NULL ? 0 : intent->attempts);
	put_trace(to, intent);
}

static void peek(fake *fake, fake_connection *to, const statement *given, int index, const char *tenant)
{
	element named = element_at(given, index);
	const fake_intent *intent = find_intent(fake, tenant, named.scope, named.key);
	intent = intent != NULL && intent->hidden ? NULL : intent;
	put_answer(to, index + 1, intent == NULL ? "absent" : verdict_of_state(intent), intent, NULL);
	if (intent == NULL) {
		message_null(to);
	} else {
		message_text(to, intent->owner);
	}
	message_null(to);
	message_int(to, intent == NULL ? 0 : intent->attempts);
	message_text(to, "2026-01-01");
	put_trace(to, intent);
}

/* Finds the element's intent, if this fence still holds it. */
static fake_intent *held(fake *fake, const statement *given, int index, const char *tenant)
{
	element named = element_at(given, index);
	fake_intent *intent = find_intent(fake, tenant, named.scope, named.key);
	int fence = (int)parameter_number(parameter_at(&given->parameters[2], index).data, 4);
	return intent != NULL && intent->fence == fence ? intent : NULL;
}

static const char *report(fake *fake, const statement *given, int index, const char *tenant, bool fails)
{
	fake_intent *intent = held(fake, given, index, tenant);
	once_state next = ONCE_STATE_SUCCEEDED;
	if (fails) {
		parameter retryable = parameter_at(&given->parameters[3], index);
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
	message_columns(to, columns, 4);
	for (int i = 0; i < parameter_count(&given->parameters[0]); i++) {
		size_t at = message_start(to, 'D');
		message_number(to, 4, 2);
		message_int(to, fake->misorders ? 2 - i : i + 1);
		message_text(to, report(fake, given, i, tenant, fails));
		message_null(to);
		message_null(to);
		message_end(to, at);
	}
}

static void answer_claims(fake *fake, fake_connection *to, const statement *given, const char *tenant, bool claims)
{
	int columns = claims ? 14 : 16;
	message_columns(to, claims ? claim_columns : peek_columns, columns);
	for (int i = 0; i < parameter_count(&given->parameters[0]); i++) {
		size_t at = message_start(to, 'D');
		message_number(to, (uint32_t)columns, 2);
		if (claims) {
			claim(fake, to, given, i, tenant);
		} else {
			peek(fake, to, given, i, tenant);
		}
		message_end(to, at);
	}
}

static void answer_held(fake *fake, fake_connection *to, const statement *given, const char *tenant, bool releases)
{
	static const char *const columns[] = {"iord", "breleased"};
	static const char *const renewed[] = {"brenewed"};
	int count = parameter_count(&given->parameters[0]);
	message_columns(to, releases ? columns : renewed, releases ? 2 : 1);
	/* Releases come in another order than they were sent in. */
	for (int i = 0; i < count; i++) {
		int index = releases ? count - 1 - i : i;
		fake_intent *intent = held(fake, given, index, tenant);
		bool holds = intent != NULL && intent->state == ONCE_STATE_PROCESSING;
		/* A lease of a millisecond has passed before anybody can look. */
		if (holds && !releases && given->parameters[3].data != NULL) {
			intent->stale = parameter_number(given->parameters[3].data + 4, 4) == 1;
		}
		if (holds && releases) {
			intent->state = ONCE_STATE_FAILED_RETRYABLE;
			intent->attempts--;
		}
		fake->renewals += !releases;
		size_t at = message_start(to, 'D');
		message_number(to, releases ? 2 : 1, 2);
		if (releases) {
			message_int(to, index + 1);
		}
		message_bool(to, holds);
		message_end(to, at);
	}
}

static void answer_salt(fake_connection *to, const char *tenant)
{
	static const char *const columns[] = {"ysalt"};
	unsigned char salt[ONCE_SALT_BYTES] = {0};
	memcpy(salt, tenant, strlen(tenant) < sizeof salt ? strlen(tenant) : sizeof salt);
	message_columns(to, columns, 1);
	size_t at = message_start(to, 'D');
	message_number(to, 1, 2);
	message_number(to, sizeof salt, 4);
	message_put(to, salt, sizeof salt);
	message_end(to, at);
}

static bool names_key(const char *key, const statement *given)
{
	for (int i = 0; key[0] != '\0' && given->count > 2 && i < parameter_count(&given->parameters[0]); i++) {
		if (strcmp(element_at(given, i).key, key) == 0) {
			return true;
		}
	}
	return false;
}

static void answer_count(fake *fake, fake_connection *to, const statement *given)
{
	static const char *const columns[] = {"tserver", "iretention_ms"};
	fake->cached.replays += parameter_number(given->parameters[0].data + 4, 4);
	fake->cached.finals += parameter_number(given->parameters[1].data + 4, 4);
	fake->cached.mismatches += parameter_number(given->parameters[2].data + 4, 4);
	message_columns(to, columns, 2);
	size_t at = message_start(to, 'D');
	message_number(to, 2, 2);
	message_text(to, fake->server == NULL ? "a server" : fake->server);
	message_int(to, 5000);
	message_end(to, at);
}

/* Does the statement report on an intent whose row somebody holds? */
static bool meets_lock(const fake *fake, const fake_connection *connection, const statement *given)
{
	bool reports = strstr(connection->text, "claim_many") == NULL && strstr(connection->text, "peek_many") == NULL;
	size_t length = strlen(fake->locked_key);
	for (int i = 0; length > 0 && reports && given->count > 2 && i < parameter_count(&given->parameters[0]); i++) {
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
		message_error(to, "42883", "function once.contract_version() does not exist");
		return;
	}
	if (strstr(text, "lock_timeout") != NULL) {
		if (fake->bad_limits > 0) {
			fake->bad_limits--;
			message_error(to, fake->bad_sqlstate, "the limit cannot be set");
			return;
		}
		static const char *const columns[] = {"tset_config"};
		message_columns(to, columns, 1);
		size_t at = message_start(to, 'D');
		message_number(to, 1, 2);
		message_text(to, "50ms");
		message_end(to, at);
		message_complete(to);
		to->limited = true;
		fake->limits++;
		return;
	}
	if (strstr(text, "contract_version") != NULL) {
		static const char *const columns[] = {"icontract_version"};
		message_columns(to, columns, 1);
		size_t at = message_start(to, 'D');
		message_number(to, 1, 2);
		message_int(to, fake->version);
		message_end(to, at);
		message_complete(to);
		return;
	}
	if (strstr(text, "count_cached") != NULL) {
		to->statements++;
		answer_count(fake, to, given);
		message_complete(to);
		return;
	}
	parameter_copy(tenant, given->parameters[strstr(text, "claim_many") != NULL ? 6 : given->count - 1]);
	if (fake->refused_tenant[0] != '\0' && strcmp(fake->refused_tenant, tenant) == 0) {
		message_error(to, "P4003", "pgonce: the fingerprint is missing or the tenant is refused");
		return;
	}
	if (meets_lock(fake, to, given)) {
		message_error(to, "55P03", "canceling statement due to lock timeout");
		return;
	}
	bool bad = fake->bad_count != 0 && names_key(fake->bad_key, given);
	fake->bad_count -= bad && fake->bad_count > 0;
	to->spoiled = to->spoiled || (bad && fake->bad_sync);
	if (bad && !fake->bad_sync) {
		message_error(to, fake->bad_sqlstate, "an element spoils the statement");
		return;
	}
	to->statements++;
	note_statement(fake, strstr(text, "once.") + strlen("once.") + 2);
	if (given->count > 1 && parameter_count(&given->parameters[0]) > fake->largest) {
		fake->largest = parameter_count(&given->parameters[0]);
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
	message_complete(to);
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
	message_simple(connection, '1');
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
			message_error(connection, "26000", "prepared statement does not exist");
			return false;
		}
		memcpy(connection->text, connection->texts[found], sizeof connection->text);
	}
	at += 2 + 2 * parameter_number(at, 2);
	given->count = (int)parameter_number(at, 2);
	at += 2;
	for (int i = 0; i < given->count; i++) {
		uint32_t length = parameter_number(at, 4);
		at += 4;
		given->parameters[i] =
		    (parameter){.data = length == UINT32_MAX ? NULL : at, .length = length == UINT32_MAX ? 0 : length};
		at += given->parameters[i].length;
	}
	message_simple(connection, '2');
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
		message_error(connection, "57P01", "terminating connection due to administrator command");
		connection->closing = true;
		return true;
	}
	if (!connection->failed && connection->spoiled) {
		message_error(connection, fake->bad_sqlstate, "a deferred constraint fails the commit");
	}
	if (connection->failed) {
		roll_back(fake, connection);
	} else if (batch) {
		fake->syncs++;
	}
	if (batch) {
		note_statement(fake, ".");
	}
	message_ready(connection);
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
		message_error(connection, "57P03", "the database system is starting up");
		connection->closing = true;
		return true;
	}
	size_t at = message_start(connection, 'R');
	message_number(connection, 0, 4);
	message_end(connection, at);
	message_parameter(connection, "server_version", "15.0");
	message_parameter(connection, "client_encoding", "UTF8");
	message_parameter(connection, "standard_conforming_strings", "on");
	at = message_start(connection, 'K');
	message_number(connection, 1, 4);
	message_number(connection, 2, 4);
	message_end(connection, at);
	message_ready(connection);
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
		size_t length = parameter_number(connection->input + at + head, 4);
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
