/* SPDX-License-Identifier: PostgreSQL */
/* console_process.c: see console_process.h. */
#include "console_process.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "connect.h"
#include "console.h"
#include "listen.h"
#include "operate/checkup.h"
#include "runtime.h"

enum {
	KEY_BYTES = 24,
	LINE_BYTES = 512
};

/* The file. *is_free: it is locked now, since no console runs. -1: it cannot be opened. */
static int open_file(const server *server, bool *is_free)
{
	char *path = cli_format("%s/console", server->directory);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	free(path);
	*is_free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
	return fd;
}

/* "PID ADDRESS\n". False: there is no whole line. */
static bool read_line(int fd, pid_t *pid, char address[LINE_BYTES])
{
	char line[LINE_BYTES];
	ssize_t length = pread(fd, line, sizeof line - 1, 0);
	int number = 0;

	if (length <= 0 || line[length - 1] != '\n') {
		return false;
	}
	line[length] = '\0';
	bool good = sscanf(line, "%d %511s", &number, address) == 2;
	*pid = number;
	return good;
}

char *dev_console_address(const server *server)
{
	char address[LINE_BYTES];
	bool is_free = true;
	pid_t pid = 0;
	int fd = open_file(server, &is_free);
	char *found = fd >= 0 && !is_free && read_line(fd, &pid, address) ? cli_duplicate(address) : NULL;

	if (fd >= 0) {
		close(fd);
	}
	return found;
}

void dev_console_stop(const server *server)
{
	char address[LINE_BYTES];
	bool is_free = true;
	pid_t pid = 0;
	int fd = open_file(server, &is_free);

	/* The process holds the lock: so it is still the process of that number. */
	if (fd >= 0 && !is_free && read_line(fd, &pid, address) && kill(pid, SIGTERM) == 0) {
		flock(fd, LOCK_EX);
	}
	if (fd >= 0) {
		close(fd);
	}
}

/* ---- the process */

static json_t *doctor(void *argument)
{
	return doctor_look(argument);
}

static int serve(const server *server, const char *address, int listen_fd, const char *key)
{
	char *dsn = server_dsn(server, SERVER_DATABASE);
	cli_invocation invocation = *server->invocation;
	char *problem = NULL;

	invocation.given[OPTION_DSN] = true;
	invocation.text[OPTION_DSN] = dsn;
	char *conninfo = connect_conninfo(&invocation);
	const console_call call = {.conninfo = conninfo,
	                           .listen = address,
	                           .listen_fd = listen_fd,
	                           .access = key,
	                           .allow_decisions = true,
	                           .doctor = doctor,
	                           .argument = &invocation};
	bool good = conninfo != NULL && runtime_stop_install() && console_run(&call, &problem);
	free(problem);
	free(conninfo);
	free(dsn);
	return good ? 0 : 1;
}

/* Not in the terminal's process group, and without the streams of the command. */
static void detach(const server *server)
{
	char *path = cli_format("%s/console.log", server->directory);
	int log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	sigset_t none;

	free(path);
	setsid();
	close(server->lock); /* it would be held as long as this process lives */
	if (log < 0 || nothing < 0 || dup2(nothing, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) {
		_exit(1);
	}
	server_become_user(server);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool make_key(char key[2 * KEY_BYTES + 1])
{
	unsigned char bytes[KEY_BYTES];
	bool good = RAND_bytes(bytes, sizeof bytes) == 1;

	for (size_t i = 0; i < sizeof bytes && good; i++) {
		snprintf(key + 2 * i, 3, "%02x", bytes[i]);
	}
	return good;
}

/* By the process itself, which knows its number. */
static bool write_line(int fd, const char *address, const char *key)
{
	char *line = cli_format("%d http://%s/?access=%s\n", (int)getpid(), address, key);
	size_t length = strlen(line);
	bool good = ftruncate(fd, 0) == 0 && pwrite(fd, line, length, 0) == (ssize_t)length;

	free(line);
	return good;
}

static int launch(const server *server, int fd, const char *address, int listen_fd)
{
	char key[2 * KEY_BYTES + 1];
	char ready = 0;
	int told[2];

	if (!make_key(key) || pipe2(told, O_CLOEXEC) != 0) {
		return cli_fail(server->invocation, CLI_FAILED, NULL, "cannot prepare the console: %m");
	}
	pid_t pid = fork();
	if (pid == 0) {
		close(told[0]);
		detach(server);
		if (!write_line(fd, address, key) || write(told[1], "r", 1) != 1) {
			_exit(1);
		}
		close(told[1]);
		_exit(serve(server, address, listen_fd, key));
	}
	close(told[1]);
	bool good = pid > 0 && read(told[0], &ready, 1) == 1;
	close(told[0]);
	return good ? CLI_OK
	            : cli_fail(server->invocation, CLI_FAILED, NULL, "the console did not start: see %s/console.log",
	                       server->directory);
}

int dev_console_start(const server *server)
{
	char address[LISTEN_ADDRESS_BYTES];
	bool is_free = false;
	int fd = open_file(server, &is_free);
	int result = CLI_OK;

	if (fd < 0) {
		return cli_fail(server->invocation, CLI_FAILED, NULL, "cannot open %s/console: %m", server->directory);
	}
	if (is_free) {
		int listen_fd = listen_open("127.0.0.1:9480", address);
		if (listen_fd < 0) {
			listen_fd = listen_open("127.0.0.1:0", address);
		}
		result = listen_fd < 0 ? cli_fail(server->invocation, CLI_FAILED, NULL, "the console cannot listen: %m")
		                       : launch(server, fd, address, listen_fd);
		if (listen_fd >= 0) {
			close(listen_fd);
		}
	}
	close(fd); /* the console has its own */
	return result;
}
