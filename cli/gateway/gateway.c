/* SPDX-License-Identifier: PostgreSQL */
/*
 * gateway.c: pgonce gateway: nginx with the module in front of one service, in the foreground. The
 * configuration is written (nginx_conf.c) in a private directory and tested (nginx.c); then this
 * process waits, and passes signals on.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "connect.h"
#include "conninfo.h"
#include "nginx.h"

enum {
	CHECK_TIMEOUT_S = 2 /* a database that is away must not keep the gateway from starting */
};

static void read_settings(const cli_invocation *invocation, gateway *gateway)
{
	*gateway = (struct gateway){
	    .invocation = invocation,
	    .listen = cli_text(invocation, OPTION_LISTEN, "127.0.0.1:8080"),
	    .upstream = invocation->text[OPTION_UPSTREAM],
	    .scope = invocation->text[OPTION_SCOPE],
	    .required = invocation->given[OPTION_REQUIRED],
	    .tenant = cli_text(invocation, OPTION_TENANT_FROM, "none"),
	    .on_5xx = invocation->text[OPTION_ON_5XX],
	    .user = invocation->text[OPTION_USER],
	    .access_log = "/dev/stdout",
	    .json = invocation->given[OPTION_JSON],
	    .directory = "/run/pgonce-gateway",
	};
}

/*
 * Root's workers run as another user: --user, otherwise the user that the packages of nginx
 * created.
 */
static int choose_user(gateway *gateway)
{
	static const char *const usual[] = {"www-data", "nginx", "nobody"};
	const struct passwd *user = NULL;

	if (geteuid() != 0) {
		return gateway->user == NULL ? CLI_OK
		                             : cli_fail(gateway->invocation, CLI_USAGE, "pgonce help gateway",
		                                        "option --user: only root can run nginx's workers as another user");
	}
	if (gateway->user != NULL) {
		user = getpwnam(gateway->user);
		if (user == NULL) {
			return cli_fail(gateway->invocation, CLI_USAGE, "pgonce help gateway",
			                "option --user: there is no user '%s'", gateway->user);
		}
	}
	for (size_t i = 0; user == NULL && i < sizeof usual / sizeof usual[0]; i++) {
		user = getpwnam(usual[i]);
		gateway->user = usual[i];
	}
	gateway->uid = user == NULL ? 0 : user->pw_uid;
	gateway->gid = user == NULL ? 0 : user->pw_gid;
	const struct group *group = user == NULL ? NULL : getgrgid(user->pw_gid);
	gateway->group = group == NULL ? NULL : cli_duplicate(group->gr_name);
	return CLI_OK;
}

/* ---- Its directory ---- */

/*
 * A new one in TMPDIR, which is removed at the end. Root's workers write in it as their own user.
 */
static int make_temporary(gateway *gateway)
{
	const char *wished = getenv("TMPDIR");
	const char *parent = wished != NULL && wished[0] == '/' ? wished : "/tmp";
	char made[PATH_MAX];

	if (snprintf(made, sizeof made, "%s/pgonce-gateway-XXXXXX", parent) >= (int)sizeof made || mkdtemp(made) == NULL ||
	    realpath(made, gateway->directory) == NULL) {
		return cli_fail(gateway->invocation, CLI_FAILED, "give a directory with --dir",
		                "cannot make a directory in %s: %s", parent, strerror(errno));
	}
	if (geteuid() == 0) {
		chmod(gateway->directory, 0711);
	}
	return CLI_OK;
}

/* DIR, locked as long as this process lives: one gateway per directory. */
static int take_directory(gateway *gateway, const char *directory)
{
	struct stat status;

	if ((mkdir(directory, geteuid() == 0 ? 0711 : 0700) != 0 && errno != EEXIST) ||
	    realpath(directory, gateway->directory) == NULL || stat(gateway->directory, &status) != 0) {
		return cli_fail(gateway->invocation, CLI_FAILED, NULL, "cannot make directory %s: %s", directory,
		                strerror(errno));
	}
	if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 0022) != 0) {
		return cli_fail(gateway->invocation, CLI_FAILED, "give another --dir",
		                "%s is not a directory that only its owner, who runs pgonce, can write to", directory);
	}
	int lock = open(gateway->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
		return cli_fail(gateway->invocation, CLI_FAILED, "stop it, or give another --dir",
		                "a gateway runs in %s already", directory);
	}
	return CLI_OK;
}

/*
 * nginx opens a file, and not a stream: if standard output is a socket or another user's terminal,
 * another file.
 */
static void choose_access_log(gateway *gateway)
{
	int fd = open("/dev/stdout", O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd >= 0) {
		close(fd);
		return;
	}
	gateway->access_log = cli_format("%s/access.log", gateway->directory);
	cli_note(gateway->invocation, "standard output cannot be opened as a file: the access log is %s",
	         gateway->access_log);
}

/*
 * nginx opens its access log a second time if that is the same file as its messages. So both only
 * append, otherwise each would overwrite the other's lines.
 */
static void append_only(int fd)
{
	struct stat status;
	int flags = fcntl(fd, F_GETFL);

	if (flags >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
		fcntl(fd, F_SETFL, flags | O_APPEND);
	}
}

/* ---- The process ---- */

typedef struct signals {
	sigset_t taken;
	sigset_t before; /* the signal mask of pgonce's parent, and of its children */
} signals;

/* After this process has ended, no file with the database's password is left behind. */
static void take_signals(signals *signals)
{
	sigemptyset(&signals->taken);
	for (size_t i = 0; i < 6; i++) {
		sigaddset(&signals->taken, (const int[]){SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGCHLD}[i]);
	}
	sigprocmask(SIG_BLOCK, &signals->taken, &signals->before);
}

/* False: a signal arrived before the child's end, and has ended it. */
static bool await(pid_t pid, const signals *signals, int *status)
{
	siginfo_t info;

	while (waitpid(pid, status, WNOHANG) == 0) {
		if (sigwaitinfo(&signals->taken, &info) > 0 && info.si_signo != SIGCHLD) {
			kill(pid, SIGTERM);
			waitpid(pid, status, 0);
			return false;
		}
	}
	return true;
}

static pid_t start_nginx(const gateway *gateway, const sigset_t *mask)
{
	pid_t parent = getpid();
	pid_t pid = fork();

	if (pid == 0) {
		/*
		 * Its own process group: pgonce passes Ctrl-C on, as a request to finish the current
		 * requests.
		 */
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGQUIT);
		sigprocmask(SIG_SETMASK, mask, NULL);
		if (getppid() == parent) {
			nginx_become(gateway);
		}
		_exit(127);
	}
	return pid;
}

/* The signal for nginx that a signal to pgonce becomes. A second request to end means fast. */
static int translate(int signal, bool ending)
{
	switch (signal) {
	case SIGHUP:
	case SIGUSR1:
		return signal;
	default:
		return ending ? SIGTERM : SIGQUIT;
	}
}

static int wait_for_nginx(const gateway *gateway, pid_t pid, int signals)
{
	struct signalfd_siginfo info;
	bool ending = false;
	int status = 0;

	while (waitpid(pid, &status, WNOHANG) != pid) {
		if (read(signals, &info, sizeof info) != (ssize_t)sizeof info || info.ssi_signo == SIGCHLD) {
			continue;
		}
		int passed = translate((int)info.ssi_signo, ending);
		if (passed == SIGHUP) {
			bool copied = false;
			(void)gateway_copy_passwords(gateway, &copied); /* it prints the error */
		}
		ending = ending || passed == SIGQUIT;
		kill(pid, passed);
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		return CLI_OK;
	}
	kill(-pid, SIGTERM); /* workers whose master was killed */
	return WIFEXITED(status)
	           ? cli_fail(gateway->invocation, CLI_FAILED, NULL, "nginx has ended with status %d", WEXITSTATUS(status))
	           : cli_fail(gateway->invocation, CLI_FAILED, NULL, "nginx was killed by signal %d", WTERMSIG(status));
}

static void tell(const gateway *gateway)
{
	const char *form = gateway->json
	                       ? "{\"listen\": \"%s\", \"upstream\": \"%s\", \"configuration\": \"%s/nginx.conf\"}\n"
	                       : "%s -> %s, each intent once. Configuration: %s/nginx.conf. Ctrl-C finishes what is "
	                         "at work and stops.\n";

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	printf(form, gateway->listen, gateway->upstream, gateway->directory);
#pragma GCC diagnostic pop
	fflush(stdout);
}

static int run(const gateway *gateway, const signals *signals)
{
	int fd = signalfd(-1, &signals->taken, SFD_CLOEXEC);
	pid_t pid = fd < 0 ? -1 : start_nginx(gateway, &signals->before);
	if (pid < 0) {
		return cli_fail(gateway->invocation, CLI_FAILED, NULL, "cannot start nginx: %s", strerror(errno));
	}
	tell(gateway);
	int result = wait_for_nginx(gateway, pid, fd);
	close(fd);
	return result;
}

/*
 * Is the contract where the gateway will look for it? Reported now, and not at each request. A
 * database that is away is not a mistake: the gateway starts closed, and works when it is back. A
 * database that refuses the connection (its name, a role, a password) is a mistake, and so is a
 * user who cannot reach it.
 */
static int check_contract(const gateway *gateway, const char *conninfo, bool is_there)
{
	const cli_invocation *invocation = gateway->invocation;
	once_session *session = NULL;
	once_error *error = NULL;
	int result = CLI_OK;

	if (once_session_open(conninfo, &session, &error) != ONCE_OK) {
		PGPing answer = cli_exit_of_code(once_error_code(error)) == CLI_NO_SERVER ? PQping(conninfo) : PQPING_OK;
		bool is_away = answer == PQPING_NO_RESPONSE || answer == PQPING_REJECT;
		if (is_away && is_there) {
			result = cli_fail(invocation, CLI_NO_SERVER,
			                  "--user NAME: one who can reach the socket and its directory; or run pgonce as that user",
			                  "nginx's workers run as %s, who cannot get to the database: %s", gateway->user,
			                  once_error_message(error));
			once_error_free(error);
		} else if (is_away) {
			cli_note(invocation,
			         "starting closed: every request with a key gets 503 until the database is there, and /once/ready "
			         "says so: %s",
			         once_error_message(error));
			once_error_free(error);
		} else {
			result = cli_report_error(invocation, error);
		}
	}
	once_session_close(session);
	return result;
}

/* Connects as a worker will: as the same user, and without the environment, which nginx clears. */
static int check_as_worker(const gateway *gateway, const char *conninfo, const signals *signals)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		sigprocmask(SIG_SETMASK, &signals->before, NULL);
		char *soon = cli_format("%s connect_timeout='%d'", conninfo, CHECK_TIMEOUT_S);
		bool is_there = gateway->uid != 0 && PQping(soon) == PQPING_OK;
		if (gateway->uid != 0 &&
		    (initgroups(gateway->user, gateway->gid) != 0 || setgid(gateway->gid) != 0 || setuid(gateway->uid) != 0)) {
			_exit(cli_fail(gateway->invocation, CLI_FAILED, NULL, "cannot become user %s: %s", gateway->user,
			               strerror(errno)));
		}
		clearenv();
		int result = check_contract(gateway, soon, is_there);
		fflush(NULL);
		_exit(result);
	}
	if (pid > 0 && !await(pid, signals, &status)) {
		return cli_fail(gateway->invocation, CLI_FAILED, NULL, "told to stop before the database had answered");
	}
	if (pid < 0 || !WIFEXITED(status)) {
		return cli_fail(gateway->invocation, CLI_FAILED, NULL, "cannot look for the contract: %s", strerror(errno));
	}
	return WEXITSTATUS(status);
}

/* The files that nginx reads. */
static int prepare(gateway *gateway, char **conninfo)
{
	bool copied = false;

	gateway->passfile = conninfo_value(*conninfo, "passfile");
	int result = gateway_copy_passwords(gateway, &copied);
	if (result == CLI_OK && copied) {
		char *path = cli_format("%s/passfile", gateway->directory);
		char *with_copy = conninfo_with(*conninfo, "passfile", path);
		free(path);
		free(*conninfo);
		*conninfo = with_copy;
		result = with_copy == NULL ? cli_fail(gateway->invocation, CLI_FAILED, NULL, "out of memory") : CLI_OK;
	}
	return result == CLI_OK ? gateway_write(gateway, *conninfo) : result;
}

static int serve(gateway *gateway)
{
	const cli_invocation *invocation = gateway->invocation;
	signals signals;
	int result = nginx_find(gateway, invocation->text[OPTION_NGINX], invocation->text[OPTION_MODULE]);
	char *conninfo = result == CLI_OK ? connect_fixed_conninfo(invocation) : NULL;

	if (result == CLI_OK) {
		result = conninfo == NULL ? CLI_USAGE : CLI_OK;
	}
	if (result == CLI_OK) {
		const char *directory = invocation->text[OPTION_DIR];
		take_signals(&signals);
		result = directory != NULL ? take_directory(gateway, directory) : make_temporary(gateway);
	}
	if (result == CLI_OK) {
		append_only(STDOUT_FILENO);
		append_only(STDERR_FILENO);
		choose_access_log(gateway);
		result = gateway_validate(gateway); /* again, with the directory */
		result = result == CLI_OK ? prepare(gateway, &conninfo) : result;
		result = result == CLI_OK ? check_as_worker(gateway, conninfo, &signals) : result;
		result = result == CLI_OK ? nginx_test(gateway) : result;
		result = result == CLI_OK ? run(gateway, &signals) : result;
		if (invocation->given[OPTION_DIR]) {
			gateway_forget(gateway);
		} else {
			gateway_remove(gateway);
		}
	}
	free(conninfo);
	return result;
}

int cli_gateway(const cli_invocation *invocation)
{
	gateway gateway;
	const char *directory = invocation->text[OPTION_DIR];

	read_settings(invocation, &gateway);
	if (invocation->given[OPTION_PRINT_CONFIG] && directory != NULL) {
		snprintf(gateway.directory, sizeof gateway.directory, "%s", directory);
	}
	int result = gateway_validate(&gateway);
	if (result == CLI_OK && !invocation->given[OPTION_TENANT_FROM] && !gateway_is_local(&gateway)) {
		result = cli_fail(
		    invocation, CLI_USAGE,
		    "--tenant-from http_x_tenant (a header that your authentication sets), or --tenant-from none for one "
		    "caller",
		    "option --tenant-from: beyond this machine, say who owns the keys: callers who share a key space "
		    "can read each other's answers");
	}
	if (result == CLI_OK) {
		result = choose_user(&gateway);
	}
	if (result == CLI_OK && invocation->given[OPTION_PRINT_CONFIG]) {
		const char *module = invocation->text[OPTION_MODULE];
		if (module != NULL || !nginx_is_here(&gateway)) {
			snprintf(gateway.module, sizeof gateway.module, "%s",
			         module != NULL ? module : "modules/ngx_http_once_module.so");
		}
		gateway_print(&gateway, stdout);
	} else if (result == CLI_OK) {
		result = serve(&gateway);
	}
	free(gateway.group);
	free(gateway.passfile);
	return result;
}
