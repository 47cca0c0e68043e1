/* SPDX-License-Identifier: PostgreSQL */
/*
 * prepared.c: the prepared statements of a connection, as far as the session knows. Another party
 * may remove one (DISCARD ALL, a pooler that gives the session to another connection) or change its
 * meaning (a table's columns): then the server refuses it, and that is recorded here. A name ends
 * in a hash of its text, so a name never means another statement.
 */
#include <stdio.h>
#include <stdlib.h>

#include <openssl/evp.h>

#include "hash.h"
#include "internal.h"

/* Two different texts must not get one name: so 128 bits of SHA-256. */
static bool name_text(char name[PREPARED_NAME_BYTES], const char *text)
{
	enum {
		DIGEST_BYTES_USED = 16
	};
	unsigned char digest[EVP_MAX_MD_SIZE];
	int length = snprintf(name, PREPARED_NAME_BYTES, "once_text_");
	if (EVP_Digest(text, strlen(text), digest, NULL, EVP_sha256(), NULL) != 1) {
		return false;
	}
	for (int i = 0; i < DIGEST_BYTES_USED; i++) {
		length += snprintf(name + length, (size_t)(PREPARED_NAME_BYTES - length), "%02x", digest[i]);
	}
	return true;
}

static const prepared as_text = {0};

/* A statement that the server refuses, and that is not deallocated yet, is sent as text. */
static prepared unless_outdated(const once_session *session, prepared statement)
{
	return statement.name == session->outdated ? as_text : statement;
}

prepared prepared_query(once_session *session, enum sql_id id)
{
	prepared statement = {.name = sql_queries[id].name, .known = &session->prepared[id]};
	return session->prepares ? unless_outdated(session, statement) : as_text;
}

prepared prepared_text_of(once_session *session, const char *text)
{
	if (!session->prepares) {
		return as_text;
	}
	uint64_t hash = hash_bytes(HASH_START, text, strlen(text));
	for (size_t i = 0; i < PREPARED_TEXTS_MAX; i++) {
		prepared_text *place = &session->texts[i];
		if (place->text == NULL) {
			char *copy = name_text(place->name, text) ? strdup(text) : NULL;
			if (copy == NULL) {
				return as_text;
			}
			place->text = copy;
			place->hash = hash;
			place->known = false;
		}
		if (place->hash == hash && strcmp(place->text, text) == 0) {
			return unless_outdated(session, (prepared){.name = place->name, .known = &place->known});
		}
	}
	return as_text;
}

static void count_miss(once_session *session)
{
	/* A pooler that moves the session, or one that discards after each call: not worth it. */
	if (++session->misses >= PREPARED_MISSES_MAX) {
		session->prepares = false;
	}
}

bool prepared_missed(once_session *session, prepared statement, bool in_parse, bool fresh, const char *sqlstate)
{
	if (in_parse && strcmp(sqlstate, "42P05") == 0) {
		/* It exists already, prepared by another session of a pooler: the same text. */
		*statement.known = true;
		count_miss(session);
		return true;
	}
	if (in_parse || fresh) {
		return false;
	}
	if (strcmp(sqlstate, "26000") == 0) {
		prepared_forget(session);
		count_miss(session);
		return true;
	}
	if (strcmp(sqlstate, "0A000") == 0) {
		/* Perhaps "cached plan must not change result type": a table of it was altered. */
		session->outdated = statement.name;
		session->outdated_known = statement.known;
		return true;
	}
	return false;
}

void prepared_met(once_session *session)
{
	session->misses = 0;
}

void prepared_tidy(once_session *session)
{
	char command[PREPARED_NAME_BYTES + 32];
	/* In the caller's transaction a failure would abort it. */
	if (session->outdated == NULL || PQtransactionStatus(session->connection) != PQTRANS_IDLE) {
		return;
	}
	snprintf(command, sizeof command, "DEALLOCATE \"%s\"", session->outdated);
	/* If it fails, the next preparation or use shows what exists. */
	PGresult *result = PQexec(session->connection, command);
	*session->outdated_known = PQresultStatus(result) != PGRES_COMMAND_OK;
	PQclear(result);
	session->outdated = NULL;
}

void prepared_forget(once_session *session)
{
	memset(session->prepared, 0, sizeof session->prepared);
	for (size_t i = 0; i < PREPARED_TEXTS_MAX; i++) {
		session->texts[i].known = false;
	}
	session->outdated = NULL;
}

void prepared_free(once_session *session)
{
	for (size_t i = 0; i < PREPARED_TEXTS_MAX; i++) {
		free(session->texts[i].text);
	}
}
