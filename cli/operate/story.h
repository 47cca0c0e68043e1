/* SPDX-License-Identifier: PostgreSQL */
/*
 * story.h: the story of one intent (once.story): asking for it, and printing it for people. For
 * show, resolve and top.
 */
#pragma once

#include "node_list.h"

typedef struct story {
	char *
	    /*
	     * the complete story, as JSON text by the server: a reader of numbers as doubles would show
	     * other amounts
	     */
	    document;
	json_t *
	    /*
	     * the same for printing: users' data is text in it, never parsed; {"now": ..., ...}; NULL:
	     * no such intent
	     */
	    told;
} story;

/*
 * Reads the answer of the statement SQL_STORY. False: it is in an unknown form. Call story_free in
 * any case.
 */
bool story_read(const PGresult *answer, story *story);
/* Asks, and waits. CLI_OK (told may be NULL), or an exit code after an error message. */
int story_ask(const cli_invocation *invocation, PGconn *connection, const once_intent *intent, story *story);
void story_free(story *story);

/* Header, outcome, timeline and events. */
void story_tell(const json_t *told);
/* What the next attempt would get, as a sentence. */
const char *story_meaning(const char *verdict);
/* Reports that there is none, or that its day is retired; CLI_NOT_FOUND. */
int story_absent(const cli_invocation *invocation, const node *node, const once_intent *intent);
/* Adds the member "node" to a document of the server, with --nodes. */
void story_mark(const node *node, story *story);
/*
 * "pgonce VERB --nodes FILE --tenant T --scope S --key K", quoted for a shell; --nodes only if it
 * is given. Free it.
 */
char *story_command(const cli_invocation *invocation, const char *verb, const char *tenant, const char *scope,
                    const char *key);
