/* SPDX-License-Identifier: PostgreSQL */
/*
 * dev.c: pgonce dev: the private PostgreSQL (server.c) with a database "app" and the contract in
 * it, in the foreground or in the background.
 */
#include <errno.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "connect.h"
#include "console_process.h"
#include "install/install.h"
#include "install/native.h"
#include "server.h"

/*
 * One connection attempt to the server's database, for objects that must exist before it can be
 * used.
 */
static int open_database(const server *server, const char *database, PGconn **connection)
{
	char *dsn = server_dsn(server, database);
	int result = connect_plain(server->invocation, dsn, connection);

	free(dsn);
	return result;
}

static int make_database(const server *server)
{
	PGconn *connection = NULL;
	PGresult *found = NULL;
	const char *name = SERVER_DATABASE;
	int result = open_database(server, "postgres", &connection);

	if (result == CLI_OK) {
		result = connect_run(server->invocation, connection, SQL_DATABASE_EXISTS, 1, &name,
		                     "cannot look for the database", &found);
	}
	if (result == CLI_OK && PQntuples(found) == 0) {
		result =
		    connect_run(server->invocation, connection, SQL_CREATE_APP, 0, NULL, "cannot create the database", NULL);
	}
	PQclear(found);
	PQfinish(connection);
	return result;
}

/* psql, and any program that names no role, uses the role with its user's name. */
static int make_role(const server *server)
{
	const struct passwd *user = getpwuid(getuid());
	PGconn *connection = NULL;
	PGresult *command = NULL;

	if (user == NULL || strncmp(user->pw_name, "pg_", 3) == 0) {
		return CLI_OK; /* PostgreSQL reserves such names */
	}
	const char *name = user->pw_name;
	int result = open_database(server, "postgres", &connection);
	if (result == CLI_OK) {
		result = connect_run(server->invocation, connection, SQL_CREATE_ROLE, 1, &name, "cannot look for your role",
		                     &command);
	}
	if (result == CLI_OK && PQntuples(command) == 1) {
		result = connect_command(server->invocation, connection, PQgetvalue(command, 0, 0), "cannot create your role");
	}
	PQclear(command);
	PQfinish(connection);
	return result;
}

static int init_database(const server *server)
{
	PGconn *connection = NULL;
	install_result installed;
	int result = open_database(server, SERVER_DATABASE, &connection);

	if (result == CLI_OK) {
		result = install_contract(server->invocation, connection, &installed);
	}
	if (result == CLI_OK) {
		(void)native_install(server->invocation, connection);
	}
	PQfinish(connection);
	return result;
}

/* Root's gateway has workers of another user, which need access to the socket's directory. */
static char *gateway_user(const server *server)
{
	const struct passwd *user = geteuid() == 0 ? getpwuid(server->user) : NULL;

	return user == NULL ? cli_duplicate("") : cli_format(" --user %s", user->pw_name);
}

static void print_lines(const server *server, const char *dsn, const char *console)
{
	char *user = gateway_user(server);

	printf("  psql \"%s\"\n", dsn);
	printf("  pgonce run --dsn \"%s\" --scope demo --key 1 -- date\n", dsn);
	printf("  pgonce show --dsn \"%s\" --scope demo --key 1\n", dsn);
	printf(
	    "  pgonce gateway --dsn \"%s\"%s --upstream http://127.0.0.1:3000   # in front of your service: at port 8080\n",
	    dsn, user);
	printf("  pgonce keep --dsn \"%s\"   # if it runs for longer than a day\n", dsn);
	if (console != NULL) {
		printf("\nThe console: %s\n", console);
	}
	putchar('\n');
	free(user);
}

static void print_place(const server *server, bool running)
{
	char *dsn = server_dsn(server, SERVER_DATABASE);
	char *console = dev_console_address(server);
	pid_t pid = 0;

	running = running && server_is_running(server, &pid);
	if (server->invocation->given[OPTION_JSON]) {
		cli_print_json(json_pack("{s:b, s:s, s:s, s:s, s:s, s:s, s:i, s:s?}", "running", running, "dsn", dsn, "host",
		                         server->socket, "database", SERVER_DATABASE, "data", server->data, "log", server->log,
		                         "pid", (int)pid, "console", running ? console : NULL));
	} else if (running) {
		printf("PostgreSQL is running (pid %d), with the contract in database " SERVER_DATABASE
		       ". Data and log: %s\n\n",
		       (int)pid, server->home);
		print_lines(server, dsn, console);
	} else {
		printf("no server is running in %s\n", server->directory);
	}
	fflush(stdout);
	free(console);
	free(dsn);
}

/*
 * Waits for a signal (CLI_OK), or for the server to end. The loss of a connection shows its end,
 * without polling.
 */
static int wait_in_foreground(const server *server, int signals)
{
	for (;;) {
		PGconn *connection = NULL;
		int result = open_database(server, "postgres", &connection);
		if (result != CLI_OK) {
			return result;
		}
		struct pollfd fds[2] = {{.fd = signals, .events = POLLIN}, {.fd = PQsocket(connection), .events = POLLIN}};
		while (PQstatus(connection) == CONNECTION_OK && fds[0].revents == 0) {
			if (poll(fds, 2, -1) < 0 && errno != EINTR) {
				break;
			}
			if (fds[1].revents != 0 && PQconsumeInput(connection) == 0) {
				break;
			}
		}
		PQfinish(connection);
		if (fds[0].revents != 0) {
			return CLI_OK;
		}
		/* Perhaps only this connection was ended. */
		if (!server_is_running(server, NULL)) {
			return cli_fail(server->invocation, CLI_FAILED, server->log, "the server has stopped");
		}
	}
}

static int run_in_foreground(server *server, int signals)
{
	if (!server->invocation->given[OPTION_JSON]) {
		puts("Ctrl-C stops it; its data stays. (pgonce dev --detach leaves it running.)");
		fflush(stdout);
	}
	server_unlock(server); /* other commands may check or stop it */
	int result = wait_in_foreground(server, signals);
	server_lock(server);
	dev_console_stop(server);
	int stopped = server_stop(server);
	if (result == CLI_OK && stopped == CLI_OK && !server->invocation->given[OPTION_JSON]) {
		puts("stopped");
	}
	return result != CLI_OK ? result : stopped;
}

static int start(server *server)
{
	bool reused = false;
	sigset_t taken;

	/* From here on Ctrl-C waits until the server is up, and then stops it cleanly. */
	sigemptyset(&taken);
	sigaddset(&taken, SIGINT);
	sigaddset(&taken, SIGTERM);
	sigaddset(&taken, SIGHUP);
	sigprocmask(SIG_BLOCK, &taken, NULL);
	int signals = signalfd(-1, &taken, SFD_CLOEXEC);
	if (signals < 0) {
		return cli_fail(server->invocation, CLI_FAILED, NULL, "cannot take signals: %s", strerror(errno));
	}
	int result = server_start(server, &reused);
	if (result == CLI_OK && reused) {
		cli_note(server->invocation, "a server is running in %s already, and is used", server->directory);
	}
	if (result == CLI_OK) {
		result = make_database(server);
	}
	if (result == CLI_OK) {
		result = make_role(server);
	}
	if (result == CLI_OK) {
		result = init_database(server);
	}
	if (result == CLI_OK && !server->invocation->given[OPTION_NO_CONSOLE]) {
		(void)dev_console_start(server); /* the server is of use without it */
	}
	if (result == CLI_OK) {
		print_place(server, true);
	} else if (!reused) {
		server_stop(server);
	}
	if (result == CLI_OK && !server->invocation->given[OPTION_DETACH]) {
		result = run_in_foreground(server, signals);
	}
	close(signals);
	return result;
}

int cli_dev(const cli_invocation *invocation)
{
	const char *directory = cli_text(invocation, OPTION_DIR, ".pgonce");
	bool stop = invocation->given[OPTION_STOP];
	bool status = invocation->given[OPTION_CHECK];
	server server;

	if (stop + status + invocation->given[OPTION_DETACH] > 1) {
		return cli_fail(invocation, CLI_USAGE, "pgonce help dev",
		                "only one of --detach, --stop and --check can be given");
	}
	int result = server_locate(&server, invocation, directory, !stop && !status);
	if (stop && result == CLI_NO_SERVER) {
		result = CLI_OK; /* reported, and as requested */
	} else if (result == CLI_OK && stop) {
		bool running = server_is_running(&server, NULL);
		dev_console_stop(&server);
		result = server_stop(&server);
		if (result == CLI_OK && invocation->given[OPTION_JSON]) {
			cli_print_json(json_pack("{s:b, s:b}", "running", 0, "stopped", running));
		} else if (result == CLI_OK) {
			puts(running ? "stopped" : "no server was running");
		}
	} else if (result == CLI_OK && status) {
		bool running = server_is_running(&server, NULL);
		print_place(&server, running);
		result = running ? CLI_OK : CLI_NO_SERVER;
	} else if (result == CLI_OK) {
		result = start(&server);
	}
	server_release(&server);
	return result;
}
