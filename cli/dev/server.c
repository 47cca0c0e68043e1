/* SPDX-License-Identifier: PostgreSQL */
/* server.c: see server.h. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "hash.h"
#include "server.h"

enum {
	/* sockaddr_un holds 107 bytes; ".s.PGSQL.5432" must fit after this. */
	SOCKET_PATH_MAX = 92,
	START_SECONDS = 60
};

static int fail_errno(const server *server, const char *what, const char *path)
{
	return cli_fail(server->invocation, CLI_FAILED, NULL, "%s %s: %s", what, path, strerror(errno));
}

/* The path of a name in a directory; name NULL: the directory. False if it is too long. */
static bool set_path(char path[PATH_MAX], const char *directory, const char *name)
{
	return snprintf(path, PATH_MAX, "%s%s%s", directory, name != NULL ? "/" : "", name != NULL ? name : "") < PATH_MAX;
}

/* ---- Processes with the rights of the server's user ---- */

void server_become_user(const server *server)
{
	if (geteuid() == 0 && server->user != 0) {
		const struct passwd *user = getpwuid(server->user);
		if (user == NULL || initgroups(user->pw_name, server->group) != 0 || setgid(server->group) != 0 ||
		    setuid(server->user) != 0) {
			_exit(126);
		}
	}
}

typedef int server_task(const server *server);

/* Runs it in a process of the server's user: its exit status, or 126. */
static int as_user(const server *server, server_task *task)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		server_become_user(server);
		_exit(task(server));
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status)) {
		return 126;
	}
	return WEXITSTATUS(status);
}

/*
 * Runs arguments[0], a program of the server, as its user, output to the log. Returns its exit
 * status. It is called by its full path: with a bare name PostgreSQL's programs look for
 * themselves, and for each other, in PATH, where most packages do not put them.
 */
static int run_program(const server *server, const char *arguments[])
{
	char *path = cli_format("%s/%s", server->bindir, arguments[0]);
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		/*
		 * Not in the terminal's process group: pgonce handles Ctrl-C and stops the server cleanly.
		 */
		setsid();
		server_become_user(server);
		int log = open(server->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
		int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
		sigset_t none;
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		/*
		 * Not in pgonce's working directory: this user may have no access. In the home, because
		 * pg_ctl passes its paths to a shell between plain double quotes: as "data" and "log" they
		 * contain nothing that a shell would interpret.
		 */
		if (log < 0 || nothing < 0 || chdir(server->home) != 0 || dup2(nothing, 0) < 0 || dup2(log, 1) < 0 ||
		    dup2(log, 2) < 0) {
			_exit(126);
		}
		setenv("LC_ALL", "C", 1);
		/* The server must not take settings meant for clients. */
		unsetenv("PGDATA");
		unsetenv("PGOPTIONS");
		unsetenv("PGPORT");
		unsetenv("PGHOST");
		arguments[0] = path;
		/* execv changes nothing; its type is older than const */
		execv(path, (char *const *)(uintptr_t)arguments);
		_exit(127);
	}
	free(path);
	if (pid < 0 || waitpid(pid, &status, 0) < 0) {
		return 126;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}

/* ---- Paths ---- */

/* Names a directory elsewhere after this one. */
static unsigned long long name_of(const char *directory)
{
	return hash_bytes(HASH_START, directory, strlen(directory));
}

static bool has_programs(const char *bindir)
{
	static const char *const programs[] = {"postgres", "initdb", "pg_ctl"};

	for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
		char *path = cli_format("%s/%s", bindir, programs[i]);
		bool found = access(path, X_OK) == 0;
		free(path);
		if (!found) {
			return false;
		}
	}
	return true;
}

/* The major version of the programs in a directory, from "postgres --version"; 0 if that fails. */
static int version_of(const char *bindir)
{
	char line[128] = "";
	int ends[2];
	int version = 0;

	if (pipe2(ends, O_CLOEXEC) != 0) {
		return 0;
	}
	char *path = cli_format("%s/postgres", bindir);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		execl(path, path, "--version", (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	ssize_t got = pid > 0 ? read(ends[0], line, sizeof line - 1) : -1;
	close(ends[0]);
	if (pid > 0) {
		waitpid(pid, NULL, 0);
	}
	if (got > 0) {
		/* "postgres (PostgreSQL) 15.4 (Debian ...)" */
		const char *after = strstr(line, ") ");
		version = after != NULL ? atoi(after + 2) : 0;
	}
	free(path);
	return version;
}

/* The major version of the cluster in data; 0 if there is none. Read as root if pgonce is root. */
static int version_of_cluster(const server *server)
{
	char *path = cli_format("%s/PG_VERSION", server->data);
	FILE *file = fopen(path, "re");
	int version = 0;

	if (file != NULL) {
		char line[16] = "";
		version = fgets(line, sizeof line, file) != NULL ? atoi(line) : 0;
		fclose(file);
	}
	free(path);
	return version;
}

static bool ask_pg_config(char bindir[PATH_MAX])
{
	FILE *answer = popen("pg_config --bindir 2>/dev/null", "re");
	bool found = answer != NULL && fgets(bindir, PATH_MAX, answer) != NULL;

	if (answer != NULL) {
		pclose(answer);
	}
	if (found) {
		bindir[strcspn(bindir, "\n")] = '\0';
	}
	/* libpq's development package has a pg_config without a server. */
	return found && has_programs(bindir);
}

/* Where packages put a server's programs. */
static const char *const places[] = {
    "/usr/lib/postgresql/*/bin",        /* Debian, Ubuntu */
    "/usr/pgsql-*/bin",                 /* PostgreSQL's own packages for Fedora and RHEL */
    "/usr/lib/postgresql[0-9]*/bin",    /* openSUSE */
    "/usr/libexec/postgresql[0-9]*",    /* Alpine */
    "/usr/lib64/postgresql-[0-9]*/bin", /* Gentoo */
    "/usr/local/pgsql/bin",             /* built from source */
    "/usr/local/bin",
    "/usr/bin",
};

enum {
	PLACE_COUNT = sizeof places / sizeof places[0]
};

/* The newest version that is installed in one of the places, or the requested one (0: any). */
static bool search_places(char bindir[PATH_MAX], int wanted)
{
	int newest = 0;

	for (size_t place = 0; place < PLACE_COUNT; place++) {
		glob_t found = {.gl_pathc = 0};
		if (glob(places[place], 0, NULL, &found) == 0) {
			for (size_t i = 0; i < found.gl_pathc; i++) {
				int version = has_programs(found.gl_pathv[i]) ? version_of(found.gl_pathv[i]) : 0;
				if (version > newest && (wanted == 0 || version == wanted)) {
					newest = version;
					set_path(bindir, found.gl_pathv[i], NULL);
				}
			}
		}
		globfree(&found);
	}
	return newest != 0;
}

static int fail_no_programs(const server *server)
{
	char *searched = cli_duplicate("what pg_config --bindir names");

	for (size_t i = 0; i < PLACE_COUNT; i++) {
		cli_append(&searched, ", %s", places[i]);
	}
	int result = cli_fail(server->invocation, CLI_FAILED,
	                      "install it (Debian, Ubuntu: apt install postgresql), or set PGONCE_PG_BINDIR to the "
	                      "directory that holds postgres, initdb and pg_ctl",
	                      "no PostgreSQL server is installed here; searched: %s", searched);
	free(searched);
	return result;
}

static int find_programs(server *server)
{
	const char *chosen = getenv("PGONCE_PG_BINDIR");
	int cluster = version_of_cluster(server);

	if (chosen != NULL && chosen[0] != '\0') {
		if (!has_programs(chosen)) {
			return cli_fail(server->invocation, CLI_FAILED, "name a directory that holds postgres, initdb and pg_ctl",
			                "PGONCE_PG_BINDIR: there is no PostgreSQL server in %s", chosen);
		}
		set_path(server->bindir, chosen, NULL);
	} else if (!ask_pg_config(server->bindir) && !search_places(server->bindir, 0)) {
		return fail_no_programs(server);
	}
	int version = version_of(server->bindir);
	if (cluster == 0 || version == cluster || (chosen == NULL && search_places(server->bindir, cluster))) {
		return CLI_OK;
	}
	char *hint = cli_format("install PostgreSQL %d again, or move %s away to start anew", cluster, server->data);
	int result =
	    cli_fail(server->invocation, CLI_FAILED, hint, "the data in %s is of PostgreSQL %d, the server in %s is %d",
	             server->data, cluster, server->bindir, version);
	free(hint);
	return result;
}

/*
 * The user that runs the server: the owner of the cluster; for a new one, this user, or for root
 * another.
 */
static int choose_user(server *server)
{
	struct stat status;

	if (stat(server->data, &status) == 0) {
		server->user = status.st_uid;
		server->group = status.st_gid;
		if (geteuid() != 0 && status.st_uid != geteuid()) {
			const struct passwd *owner = getpwuid(status.st_uid);
			return cli_fail(server->invocation, CLI_FAILED,
			                "run pgonce dev as that user or as root, or give another --dir", "%s belongs to user %s",
			                server->data, owner != NULL ? owner->pw_name : "?");
		}
		if (status.st_uid != 0) {
			return CLI_OK;
		}
	}
	server->user = geteuid();
	server->group = getegid();
	if (server->user != 0) {
		return CLI_OK;
	}
	const struct passwd *user = getpwnam("postgres");
	user = user != NULL ? user : getpwnam("nobody");
	if (user == NULL) {
		return cli_fail(server->invocation, CLI_FAILED, "make a user postgres, or run pgonce dev as an ordinary user",
		                "PostgreSQL does not run as root, and there is neither a user postgres nor nobody");
	}
	server->user = user->pw_uid;
	server->group = user->pw_gid;
	return CLI_OK;
}

static int can_reach(const server *server)
{
	return chdir(server->directory) == 0 ? 0 : 1;
}

/*
 * A directory that only the server's user may enter. An existing one must be exactly that: anyone
 * can write to /tmp.
 */
static int make_private(const server *server, const char *path)
{
	struct stat status;

	if (mkdir(path, 0700) == 0) {
		if (geteuid() == 0 && lchown(path, server->user, server->group) != 0) {
			return fail_errno(server, "cannot give away directory", path);
		}
		return CLI_OK;
	}
	if (errno != EEXIST || lstat(path, &status) != 0) {
		return fail_errno(server, "cannot make directory", path);
	}
	if (!S_ISDIR(status.st_mode) || status.st_uid != server->user || (status.st_mode & 0077) != 0) {
		return cli_fail(server->invocation, CLI_FAILED, "remove it, or give another --dir",
		                "%s is there already, and is not a directory that only the server's user may enter", path);
	}
	return CLI_OK;
}

/* DIR/name -> target, for people who look in DIR. */
static void link_to(const server *server, const char *name, const char *target)
{
	char *link = cli_format("%s/%s", server->directory, name);

	if (symlink(target, link) != 0 && errno == EEXIST) {
		struct stat status;
		if (lstat(link, &status) == 0 && S_ISLNK(status.st_mode) && unlink(link) == 0) {
			(void)!symlink(target, link);
		}
	}
	free(link);
}

/*
 * The socket goes to DIR/run, or to a directory in /tmp if that path is too long for a socket, or
 * contains characters that need quoting: libpq's list of hosts allows no comma, and the lines that
 * people type should stay simple.
 */
static int place_socket(server *server, bool create)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@~";
	bool fits = set_path(server->socket, server->home, "run") && strlen(server->socket) <= SOCKET_PATH_MAX &&
	            server->socket[strspn(server->socket, plain)] == '\0';

	if (!fits) {
		snprintf(server->socket, sizeof server->socket, "/tmp/pgonce-%016llx", name_of(server->directory));
	}
	if (!create) {
		return CLI_OK;
	}
	int result = make_private(server, server->socket);
	if (result == CLI_OK && (!fits || strcmp(server->home, server->directory) != 0)) {
		link_to(server, "run", server->socket);
	}
	return result;
}

/*
 * If the server's user cannot reach DIR (for example in root's home), the data lives in /var/tmp.
 */
static int place_home(server *server, bool create)
{
	char elsewhere[PATH_MAX];
	struct stat status;

	set_path(server->home, server->directory, NULL);
	snprintf(elsewhere, sizeof elsewhere, "/var/tmp/pgonce-%016llx", name_of(server->directory));
	bool moved = geteuid() == 0 && as_user(server, can_reach) != 0;
	if (!moved && stat(server->data, &status) != 0 && geteuid() == 0 && lstat(elsewhere, &status) == 0 &&
	    status.st_uid == server->user) {
		moved = true; /* it went there before, when DIR could not be reached */
	}
	if (!moved) {
		return CLI_OK;
	}
	set_path(server->home, elsewhere, NULL);
	if (!create) {
		return CLI_OK;
	}
	bool is_new = lstat(elsewhere, &status) != 0;
	int result = make_private(server, elsewhere);
	if (result == CLI_OK) {
		char *data = cli_format("%s/data", elsewhere);
		link_to(server, "data", data);
		free(data);
	}
	if (result == CLI_OK && is_new) {
		const struct passwd *user = getpwuid(server->user);
		cli_note(server->invocation,
		         "user %s, who runs the server, cannot reach %s: the data is in %s, linked from there",
		         user != NULL ? user->pw_name : "?", server->directory, elsewhere);
	}
	return result;
}

int server_locate(server *server, const cli_invocation *invocation, const char *directory, bool create)
{
	*server = (struct server){.invocation = invocation, .lock = -1};
	if (create && mkdir(directory, 0755) != 0 && errno != EEXIST) {
		return fail_errno(server, "cannot make directory", directory);
	}
	if (realpath(directory, server->directory) == NULL) {
		return create ? fail_errno(server, "cannot find directory", directory)
		              : cli_fail(invocation, CLI_NO_SERVER, "pgonce dev starts one", "there is no server in %s",
		                         directory);
	}
	char *lock_path = cli_format("%s/lock", server->directory);
	server->lock = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (server->lock < 0 || flock(server->lock, LOCK_EX) != 0) {
		int result = fail_errno(server, "cannot lock", lock_path);
		free(lock_path);
		return result;
	}
	free(lock_path);
	bool fits = set_path(server->data, server->directory, "data");
	int result = fits ? choose_user(server)
	                  : cli_fail(invocation, CLI_FAILED, NULL, "the path %s is too long", server->directory);
	if (result == CLI_OK && create && geteuid() == 0) {
		/* The server's user passes through here; the directories inside are closed to others. */
		chmod(server->directory, 0755);
	}
	if (result == CLI_OK) {
		result = place_home(server, create);
	}
	if (result == CLI_OK &&
	    (!set_path(server->data, server->home, "data") || !set_path(server->log, server->home, "log"))) {
		result = cli_fail(invocation, CLI_FAILED, NULL, "the path %s is too long", server->home);
	}
	return result == CLI_OK ? place_socket(server, create) : result;
}

void server_unlock(server *server)
{
	flock(server->lock, LOCK_UN);
}

void server_lock(server *server)
{
	flock(server->lock, LOCK_EX);
}

void server_release(server *server)
{
	if (server->lock >= 0) {
		close(server->lock);
		server->lock = -1;
	}
}

/* ---- The cluster ---- */

/* *mistaken: the lock file names a live process that is not a server of this directory. */
static bool read_lock_file(const server *server, pid_t *pid, bool *mistaken)
{
	char *path = cli_format("%s/postmaster.pid", server->data);
	FILE *file = fopen(path, "re");
	long number = 0;

	free(path);
	if (file == NULL) {
		return false;
	}
	bool read = fscanf(file, "%ld", &number) == 1;
	fclose(file);
	if (!read || number <= 1) {
		return false;
	}
	/*
	 * After a crash the number may belong to another process: it must be a server, and one in this
	 * directory.
	 */
	char *link = cli_format("/proc/%ld/cwd", number);
	char *data = realpath(server->data, NULL);
	char *directory = realpath(link, NULL);
	bool running = data != NULL && directory != NULL && strcmp(data, directory) == 0;
	*mistaken = data != NULL && directory != NULL && !running;
	free(directory);
	free(data);
	free(link);
	if (pid != NULL) {
		*pid = (pid_t)number;
	}
	return running;
}

bool server_is_running(const server *server, pid_t *pid)
{
	bool mistaken = false;

	return read_lock_file(server, pid, &mistaken);
}

/* The settings that differ from the defaults. Written at each start, since DIR may have moved. */
static int write_settings(const server *server)
{
	char *path = cli_format("%s/pgonce.conf", server->data);
	FILE *out = fopen(path, "we");

	free(path);
	if (out == NULL) {
		return 1;
	}
	fprintf(
	    out,
	    "# Written by pgonce dev at each start.\nlisten_addresses = ''\nport = 5432\nunix_socket_directories = '%s'\n"
	    "log_destination = 'stderr'\nlogging_collector = off\n",
	    server->socket);
	return fclose(out) == 0 ? 0 : 1;
}

/*
 * After a crash of the machine postmaster.pid may name a live process of another program, and the
 * server would mistake that for one of its own. Its number is replaced by one that no process has;
 * the rest stays, since the server uses it to find out whether processes of the crashed one still
 * use its memory.
 */
static int disown_lock_file(const server *server)
{
	enum {
		NO_PROCESS = 2147483646
	};
	char *path = cli_format("%s/postmaster.pid", server->data);
	char *new_path = cli_format("%s/pgonce.pid", server->data);
	bytes old = {.bytes_max = 65536};
	int result = bytes_read_file(&old, path) == 0 ? 0 : 1;
	FILE *out = result == 0 ? fopen(new_path, "we") : NULL;

	if (out == NULL) {
		result = 1;
	} else {
		const char *rest = old.length > 0 ? memchr(old.data, '\n', old.length) : NULL;
		fprintf(out, "%d", NO_PROCESS);
		if (rest != NULL) {
			fwrite(rest, 1, old.length - (size_t)(rest - (const char *)old.data), out);
		}
		result = fclose(out) == 0 && rename(new_path, path) == 0 ? 0 : 1;
	}
	bytes_free(&old);
	free(new_path);
	free(path);
	return result;
}

static int include_settings(const server *server)
{
	char *path = cli_format("%s/postgresql.conf", server->data);
	FILE *out = fopen(path, "ae");

	free(path);
	if (out == NULL) {
		return 1;
	}
	fputs("\ninclude_if_exists = 'pgonce.conf'\n", out);
	return fclose(out) == 0 ? 0 : 1;
}

static int remove_leftover(const server *server)
{
	char *path = cli_format("%s.new", server->data);

	execlp("rm", "rm", "-rf", "--", path, (char *)NULL);
	return 127;
}

static int fail_log(const server *server, const char *what)
{
	char *hint = cli_format("the reason is in %s", server->log);
	int result = cli_fail(server->invocation, CLI_FAILED, hint, "%s", what);

	free(hint);
	return result;
}

/*
 * Created under another name and then renamed, so that an interrupted one is never mistaken for a
 * cluster.
 */
static int make_cluster(server *server)
{
	char *new_data = cli_format("%s.new", server->data);
	const char *arguments[] = {"initdb", "-D", new_data, "-U",         "postgres", "-A",
	                           "trust",  "-E", "UTF8",   "--locale=C", NULL};
	char data[PATH_MAX];
	int result = CLI_OK;

	/*
	 * If the home belongs to root, the server's user can empty its directory there, but neither
	 * create nor remove it.
	 */
	as_user(server, remove_leftover);
	if (rmdir(new_data) != 0 && errno != ENOENT) {
		result = fail_errno(server, "cannot remove what an interrupted start left:", new_data);
	} else {
		result = make_private(server, new_data);
	}
	if (result == CLI_OK && run_program(server, arguments) != 0) {
		result = fail_log(server, "initdb failed");
	}
	set_path(data, server->data, NULL);
	set_path(server->data, new_data, NULL);
	if (result == CLI_OK && as_user(server, include_settings) != 0) {
		result = fail_log(server, "cannot write postgresql.conf");
	}
	set_path(server->data, data, NULL);
	if (result == CLI_OK && rename(new_data, server->data) != 0) {
		result = fail_errno(server, "cannot rename", new_data);
	}
	free(new_data);
	return result;
}

/* The server's user must be able to write the log, in a home that may belong to root. */
static int open_log(const server *server)
{
	int log = open(server->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (log < 0 || (geteuid() == 0 && fchown(log, server->user, server->group) != 0)) {
		return fail_errno(server, "cannot open", server->log);
	}
	close(log);
	return CLI_OK;
}

/*
 * A server that was left running may still be starting, after a crash for a while; nothing signals
 * when it is done, so it is polled.
 */
static int wait_until_ready(const server *server)
{
	char *dsn = server_dsn(server, "postgres");
	const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
	PGPing ping = PQPING_REJECT;

	for (int tries = 0; tries < START_SECONDS * 20 && server_is_running(server, NULL); tries++) {
		ping = PQping(dsn);
		if (ping == PQPING_OK) {
			break;
		}
		nanosleep(&pause, NULL);
	}
	free(dsn);
	return ping == PQPING_OK ? CLI_OK : fail_log(server, "the server that is running there accepts no connections");
}

int server_start(server *server, bool *reused)
{
	char seconds[12];
	bool mistaken = false;
	int result = CLI_OK;

	*reused = read_lock_file(server, NULL, &mistaken);
	if (*reused) {
		return wait_until_ready(server);
	}
	result = find_programs(server);
	if (result == CLI_OK) {
		result = open_log(server);
	}
	if (result == CLI_OK && version_of_cluster(server) == 0) {
		result = make_cluster(server);
	}
	if (result == CLI_OK && mistaken && as_user(server, disown_lock_file) != 0) {
		result = fail_log(server, "cannot rewrite postmaster.pid, which names a process that is no server");
	}
	if (result == CLI_OK && as_user(server, write_settings) != 0) {
		result = fail_log(server, "cannot write pgonce.conf");
	}
	snprintf(seconds, sizeof seconds, "%d", START_SECONDS);
	const char *arguments[] = {"pg_ctl", "start", "-D", "data", "-l", "log", "-w", "-s", "-t", seconds, NULL};
	if (result == CLI_OK && run_program(server, arguments) != 0) {
		result = fail_log(server, "the server did not start");
	}
	return result;
}

int server_stop(server *server)
{
	char seconds[12];

	if (!server_is_running(server, NULL)) {
		return CLI_OK;
	}
	int result = find_programs(server);
	snprintf(seconds, sizeof seconds, "%d", START_SECONDS);
	const char *arguments[] = {"pg_ctl", "stop", "-D", "data", "-m", "fast", "-w", "-s", "-t", seconds, NULL};
	if (result == CLI_OK && run_program(server, arguments) != 0) {
		result = fail_log(server, "the server did not stop");
	}
	return result;
}

char *server_dsn(const server *server, const char *database)
{
	return cli_format("host=%s dbname=%s user=postgres", server->socket, database);
}
