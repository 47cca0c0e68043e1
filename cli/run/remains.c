/* SPDX-License-Identifier: PostgreSQL */
/*
 * remains.c: see remains.h. CMD finds its intent in its environment (run.c), and so do the
 * processes that it starts: so they can be recognised without a record that could be out of date.
 */
#include "remains.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "cli.h"

enum {
	ENVIRONMENT_BYTES_MAX = 1024 * 1024,
	TOLD_MAX = 20
};

/* A file of /proc/PID, terminated by an additional NUL. Empty if it cannot be read. */
static bytes read_file(const char *pid, const char *name)
{
	char *path = cli_format("/proc/%s/%s", pid, name);
	bytes content = {.bytes_max = ENVIRONMENT_BYTES_MAX};

	(void)bytes_read_file(&content, path);
	content.bytes_max++;
	(void)bytes_append(&content, "", 1);
	free(path);
	return content;
}

static bool has_variable(const bytes *environment, const char *name, const char *value)
{
	size_t length = strlen(name);

	for (const char *at = (const char *)environment->data, *end = at + environment->length; at < end;
	     at += strlen(at) + 1) {
		if (strncmp(at, name, length) == 0 && at[length] == '=') {
			return strcmp(at + length + 1, value) == 0;
		}
	}
	return false;
}

static bool is_of(const char *pid, const once_intent *intent)
{
	bytes environment = read_file(pid, "environ");
	bool is = has_variable(&environment, "PGONCE_KEY", intent->key) &&
	          has_variable(&environment, "PGONCE_SCOPE", intent->scope) &&
	          has_variable(&environment, "PGONCE_TENANT", intent->tenant);

	bytes_free(&environment);
	return is;
}

char *remains_find(const once_intent *intent)
{
	DIR *processes = opendir("/proc");
	char *told = NULL;
	int count = 0;

	for (const struct dirent *at = processes == NULL ? NULL : readdir(processes); at != NULL && count < TOLD_MAX;
	     at = readdir(processes)) {
		if (strspn(at->d_name, "0123456789") != strlen(at->d_name) || atoi(at->d_name) == getpid() ||
		    !is_of(at->d_name, intent)) {
			continue;
		}
		bytes name = read_file(at->d_name, "comm");
		((char *)name.data)[strcspn((char *)name.data, "\n")] = '\0';
		told = told != NULL ? told : cli_duplicate("still running here: ");
		cli_append(&told, "%s%s (%s)", count == 0 ? "" : ", ", at->d_name, (char *)name.data);
		bytes_free(&name);
		count++;
	}
	if (processes != NULL) {
		closedir(processes);
	}
	return told;
}
