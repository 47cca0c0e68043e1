/* SPDX-License-Identifier: PostgreSQL */
/* aws_profile.c: see aws_profile.h. Source: AWS SDKs and Tools Reference Guide. */
#include "aws_profile.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aws_text.h"
#include "memory.h"
#include "runtime.h"

enum {
	TEXT_BYTES_MAX = 64 * 1024,
	PROGRAM_MS = 10 * 1000,
	LOOK_MS = 5
};

/* ---- files */

char *aws_shared_path(const char *variable, const char *name)
{
	const char *given = getenv(variable), *home = getenv("HOME");

	if (given != NULL && given[0] != '\0') {
		return memory_copy(given);
	}
	return home != NULL && home[0] != '\0' ? memory_format("%s/.aws/%s", home, name) : NULL;
}

static char *trimmed(char *text)
{
	text += strspn(text, " \t\r\n");
	for (char *end = text + strlen(text); end > text && strchr(" \t\r\n", end[-1]) != NULL;) {
		*--end = '\0';
	}
	return text;
}

/* True: the line is the profile's "[name]". In the file `config`, all except default are [profile
 * NAME]. */
static bool is_profile(char *line, bool is_config, const char *profile)
{
	char *end = strchr(line, ']');

	if (end == NULL) {
		return false;
	}
	*end = '\0';
	char *name = trimmed(line + 1);
	bool prefixed = is_config && strncmp(name, "profile", 7) == 0 && (name[7] == ' ' || name[7] == '\t');
	if (is_config && !prefixed && strcmp(profile, "default") != 0) {
		return false;
	}
	return strcmp(prefixed ? trimmed(name + 7) : name, profile) == 0;
}

char *aws_profile_entry(const char *path, bool is_config, const char *profile, const char *name)
{
	FILE *file = fopen(path, "re");
	char *line = NULL, *found = NULL;
	size_t room = 0;
	bool inside = false;

	while (file != NULL && getline(&line, &room, file) >= 0) {
		bool is_nested = line[0] == ' ' || line[0] == '\t';
		char *text = trimmed(line);
		char *equals = strchr(text, '=');
		if (text[0] == '[') {
			inside = is_profile(text, is_config, profile);
		} else if (inside && !is_nested && equals != NULL && text[0] != '#' && text[0] != ';') {
			*equals = '\0';
			if (strcasecmp(trimmed(text), name) == 0) {
				aws_wipe(found);
				found = memory_copy(trimmed(equals + 1));
			}
		}
	}
	if (line != NULL) {
		explicit_bzero(line, room);
	}
	free(line);
	if (file != NULL) {
		fclose(file);
	}
	return found;
}

char *aws_shared_entry(const char *profile, const char *name)
{
	char *path = aws_shared_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
	char *found = path == NULL ? NULL : aws_profile_entry(path, false, profile, name);

	free(path);
	if (found == NULL && (path = aws_shared_path("AWS_CONFIG_FILE", "config")) != NULL) {
		found = aws_profile_entry(path, true, profile, name);
		free(path);
	}
	return found;
}

/* The trimmed text of a buffer of TEXT_BYTES_MAX, which is wiped and freed; NULL: it is empty. */
static char *keep_text(char *buffer)
{
	const char *text = trimmed(buffer);
	char *copy = text[0] == '\0' ? NULL : memory_copy(text);

	explicit_bzero(buffer, TEXT_BYTES_MAX);
	free(buffer);
	return copy;
}

char *aws_token_read(const char *path, char problem[BROKER_PROBLEM_BYTES])
{
	FILE *file = fopen(path, "re");
	char *text = memory_take(TEXT_BYTES_MAX);

	if (file != NULL) {
		(void)!fread(text, 1, TEXT_BYTES_MAX - 1, file);
		fclose(file);
	}
	char *token = keep_text(text);
	if (token == NULL) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the token file %.150s cannot be read, or is empty", path);
	}
	return token;
}

/* ---- programs */

/*
 * Starts it in its own process group, so that its children can be ended with it, and with a shell's
 * default signals: this process blocks and ignores some. Its stderr is ours. 0: errno says why.
 */
static pid_t start(const char *command, int output)
{
	char *const words[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", (char *)(uintptr_t)command, NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, usual;
	pid_t pid = 0;

	sigemptyset(&none);
	sigemptyset(&usual);
	sigaddset(&usual, SIGPIPE);
	sigaddset(&usual, SIGTERM);
	sigaddset(&usual, SIGINT);
	sigaddset(&usual, SIGHUP);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	int failed = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	failed = failed != 0 ? failed : posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
	failed = failed != 0 ? failed : posix_spawnattr_setsigmask(&attributes, &none);
	failed = failed != 0 ? failed : posix_spawnattr_setsigdefault(&attributes, &usual);
	failed = failed != 0 ? failed
	                     : posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
	                                                                 POSIX_SPAWN_SETPGROUP);
	failed = failed != 0 ? failed : posix_spawn(&pid, "/bin/sh", &actions, &attributes, words, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	errno = failed;
	return failed == 0 ? pid : 0;
}

/* Its output, until it closes it, or until time or room is used up. */
static void read_output(int input, int64_t until_ms, char *text)
{
	struct pollfd watched = {.fd = input, .events = POLLIN};
	size_t length = 0;
	ssize_t count = 1;

	while (count > 0 && length < TEXT_BYTES_MAX - 1) {
		int64_t left_ms = until_ms - runtime_now_ms();
		int ready = left_ms > 0 ? poll(&watched, 1, (int)left_ms) : 0;
		if (ready <= 0 && !(ready < 0 && errno == EINTR)) {
			return;
		}
		count = ready > 0 ? read(input, text + length, TEXT_BYTES_MAX - 1 - length) : 1;
		length += ready > 0 && count > 0 ? (size_t)count : 0;
	}
}

/* Its status as from waitpid, -1 if it had to be ended. No process of its group is left. */
static int end(pid_t pid, int64_t until_ms)
{
	int status = 0;
	pid_t ended = 0;

	while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && runtime_now_ms() < until_ms) {
		(void)poll(NULL, 0, LOOK_MS);
	}
	kill(-pid, SIGKILL);
	if (ended == 0) {
		waitpid(pid, NULL, 0);
	}
	return ended == pid ? status : -1;
}

char *aws_program_run(const char *command, char problem[BROKER_PROBLEM_BYTES])
{
	int ends[2];
	int64_t until_ms = runtime_now_ms() + PROGRAM_MS;
	pid_t pid = 0;

	if (pipe2(ends, O_CLOEXEC) != 0) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the credential_process cannot be started: %s", strerror(errno));
		return NULL;
	}
	pid = start(command, ends[1]);
	int failed = errno;
	close(ends[1]);
	if (pid == 0) {
		close(ends[0]);
		snprintf(problem, BROKER_PROBLEM_BYTES, "the credential_process cannot be started: %s", strerror(failed));
		return NULL;
	}
	char *text = memory_take(TEXT_BYTES_MAX);
	read_output(ends[0], until_ms, text);
	close(ends[0]);
	int status = end(pid, until_ms);
	char *output = keep_text(text);
	if (status == 0 && output != NULL) {
		return output;
	}
	aws_wipe(output);
	if (status == -1) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the credential_process did not end within %d s", PROGRAM_MS / 1000);
	} else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the credential_process wrote nothing");
	} else if (WIFEXITED(status)) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the credential_process failed with status %d: try it by hand",
		         WEXITSTATUS(status));
	} else {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the credential_process was ended by signal %d", WTERMSIG(status));
	}
	return NULL;
}
