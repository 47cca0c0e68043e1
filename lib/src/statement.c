/* SPDX-License-Identifier: PostgreSQL */
/*
 * statement.c: statements that cannot be in a list that runs inside one transaction and one round
 * trip: they would end the transaction, and commit a part of it, or wait for the client's data. The
 * extended protocol takes one command at a time, so its first words suffice.
 */
#include <strings.h>

#include "internal.h"

/* The position after the comment that starts here, or the same position if none does. */
static const char *skip_comment(const char *at)
{
	if (strncmp(at, "--", 2) == 0) {
		return at + strcspn(at, "\r\n");
	}
	if (strncmp(at, "/*", 2) != 0) {
		return at;
	}
	/* They nest (PostgreSQL manual, "Comments"). */
	int depth = 0;
	do {
		if (strncmp(at, "/*", 2) == 0) {
			depth++;
			at += 2;
		} else if (strncmp(at, "*/", 2) == 0) {
			depth--;
			at += 2;
		} else {
			at += *at != '\0';
		}
	} while (depth > 0 && *at != '\0');
	return at;
}

/* The position after spaces, comments and empty commands. */
static const char *skip_to_word(const char *at)
{
	for (;;) {
		const char *next = skip_comment(at + strspn(at, " \t\r\n\f\v;"));
		if (next == at) {
			return at;
		}
		at = next;
	}
}

/* The position after the word, or NULL if another word is here. */
static const char *skip_word(const char *at, const char *word)
{
	size_t length = strlen(word);
	size_t letters = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_$");
	return letters == length && strncasecmp(at, word, length) == 0 ? at + length : NULL;
}

bool statement_fits_list(const char *sql)
{
	static const char *const misfits[] = {"abort", "begin", "commit", "copy", "end", "rollback", "start"};
	const char *at = skip_to_word(sql);
	for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
		if (skip_word(at, misfits[i]) != NULL) {
			return false;
		}
	}
	const char *behind = skip_word(at, "prepare");
	return behind == NULL || skip_word(skip_to_word(behind), "transaction") == NULL;
}
