/* SPDX-License-Identifier: PostgreSQL */
/* services.c: see services.h. Their files are in HOME/gateway: locks with process numbers, the log, nginx's configuration. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "built.h"
#include "gateway.h"
#include "services.h"
#include "warehouse.h"

enum {
	GATEWAY_PORT = 8080,
	NATS_PORT = 4222,
	METRICS_PORT = 9187,
	PORTS = 65535,
	PORT_COUNT = 100, /* so many are tried, from these on */
	PATIENCE_MS = 10000,
	WAIT_MS = 10000, /* of a retry for the attempt that is running */
	PAUSE_MS = 20
};

/* In the order in which they are started. */
enum service_index {
	PAYMENTS,
	HANDOFF,
	GATEWAY,
	KEEP,
	NATS,
	RELAY,
	CONSUME,
	SERVICE_COUNT
};

typedef struct service {
	const char *name;
	const char *path;    /* at the gateway; NULL: it is not behind it */
	const char *program; /* of an example, beside this command */
	int end_signal;
} service;

static const service services[SERVICE_COUNT] = {
    [PAYMENTS] = {.name = "payments", .path = "/payments", .program = "payments-example", .end_signal = SIGTERM},
    [HANDOFF] = {.name = "handoff", .path = "/handoff", .program = "handoff-example", .end_signal = SIGTERM},
    [GATEWAY] = {.name = "gateway", .end_signal = SIGQUIT},
    [KEEP] = {.name = "keep", .end_signal = SIGTERM},
    [NATS] = {.name = "nats", .end_signal = SIGTERM},
    [RELAY] = {.name = "relay", .end_signal = SIGTERM},
    [CONSUME] = {.name = "consume", .end_signal = SIGTERM},
};

static int fail_errno(const server *server, const char *what, const char *path)
{
	return cli_fail(server->invocation, CLI_FAILED, NULL, "%s %s: %s", what, path, strerror(errno));
}

static char *file_of(const server *server, const char *name, const char *suffix)
{
	return cli_format("%s/gateway/%s%s", server->home, name, suffix);
}

static char *socket_of(const server *server, const service *service)
{
	return cli_format("%s/%s.sock", server->socket, service->name);
}

static void pause_briefly(void)
{
	nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000 * 1000}, NULL);
}

/* ---- Is it running? ---- */

/* Its lock, taken; -1 where somebody holds it (EWOULDBLOCK: it runs) or it cannot be opened. */
static int take_lock(const server *server, const service *service, bool create)
{
	char *path = file_of(server, service->name, ".lock");
	int lock = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), 0600);

	free(path);
	if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0) {
		int problem = errno;
		close(lock);
		errno = problem;
		lock = -1;
	}
	return lock;
}

static bool is_running(const server *server, const service *service)
{
	int lock = take_lock(server, service, false);

	if (lock >= 0) {
		close(lock);
		return false;
	}
	return errno == EWOULDBLOCK;
}

/* The leader of its processes; only of use while it is running. 0: unknown. */
static pid_t leader_of(const server *server, const service *service)
{
	char *path = file_of(server, service->name, ".lock");
	FILE *file = fopen(path, "re");
	long pid = 0;

	free(path);
	if (file != NULL) {
		if (fscanf(file, "%ld", &pid) != 1) {
			pid = 0;
		}
		fclose(file);
	}
	return pid > 1 ? (pid_t)pid : 0;
}

static bool wait_for_end(const server *server, const service *service)
{
	for (int waited_ms = 0; waited_ms < PATIENCE_MS; waited_ms += PAUSE_MS) {
		if (!is_running(server, service)) {
			return true;
		}
		pause_briefly();
	}
	return false;
}

/* The lock is held, so its group exists, and its number is nobody else's. */
static int stop(const server *server, const service *service)
{
	pid_t leader = is_running(server, service) ? leader_of(server, service) : 0;

	if (leader == 0) {
		return CLI_OK;
	}
	kill(-leader, service->end_signal);
	if (wait_for_end(server, service)) {
		return CLI_OK;
	}
	kill(-leader, SIGKILL);
	return wait_for_end(server, service) ? CLI_OK
	                                     : cli_fail(server->invocation, CLI_FAILED, NULL,
	                                                "%s (process %d) does not end", service->name, (int)leader);
}

/* Not so a process that has ended and that nobody has waited for yet. */
static bool is_alive(pid_t pid)
{
	char line[512] = "";
	char *path = cli_format("/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "re");
	const char *name_end = NULL;

	free(path);
	if (file != NULL) {
		name_end = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL; /* "4711 (nginx) S ..." */
		fclose(file);
	}
	return name_end != NULL && strlen(name_end) > 2 && name_end[2] != 'Z';
}

/* Running, and not merely the children of one that was killed. */
static bool is_whole(const server *server, const service *service)
{
	pid_t leader = is_running(server, service) ? leader_of(server, service) : 0;

	return leader != 0 && is_alive(leader);
}

/* ---- Starting ---- */

/* The program of an example: in the build tree, or where it was installed. -1: neither. */
static int open_program(const service *service)
{
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

	if (length <= 0) {
		return -1;
	}
	self[length] = '\0';
	*strrchr(self, '/') = '\0';
	char *built = cli_format("%s/../examples/%s/%s", self, service->name, service->program);
	char *installed = cli_format("%s/../libexec/pgonce/%s", self, service->program);
	int fd = open(built, O_RDONLY | O_CLOEXEC);
	fd = fd >= 0 ? fd : open(installed, O_RDONLY | O_CLOEXEC);
	free(built);
	free(installed);
	return fd;
}

/* In the new process: a session of its own, no terminal, output to the log, the lock kept open across exec. */
static void detach(const server *server, int lock)
{
	char *path = file_of(server, "log", "");
	int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	sigset_t none;

	free(path);
	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (log < 0 || nothing < 0 || chdir("/") != 0 || dup2(nothing, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 ||
	    fcntl(lock, F_SETFD, 0) != 0) {
		_exit(126);
	}
}

/* Opened before the rights are given up: the server's user may not get to where the program is. */
static void become_example(const server *server, const service *service, int program)
{
	char *socket = socket_of(server, service);
	char *listen_at = cli_format("unix:%s", socket);
	char *dsn = server_dsn(server, SERVER_DATABASE);
	const char *arguments[] = {service->program, "--listen", listen_at, "--dsn", dsn, NULL};

	server_become_user(server);
	fexecve(program, (char *const *)(uintptr_t)arguments, environ);
	_exit(127);
}

static bool accepts(const struct sockaddr *address, socklen_t length)
{
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool accepted = fd >= 0 && connect(fd, address, length) == 0;

	if (fd >= 0) {
		close(fd);
	}
	return accepted;
}

/* Until it accepts connections, or has ended. */
static int wait_until_it_accepts(const server *server, const service *service, pid_t pid,
                                 const struct sockaddr *address, socklen_t length)
{
	char *log = file_of(server, "log", "");
	int result = CLI_FAILED;
	bool ended = false;

	for (int waited_ms = 0; waited_ms < PATIENCE_MS && result != CLI_OK && !ended; waited_ms += PAUSE_MS) {
		ended = waitpid(pid, NULL, WNOHANG) == pid;
		if (!ended && accepts(address, length)) {
			result = CLI_OK;
		} else if (!ended) {
			pause_briefly();
		}
	}
	if (result != CLI_OK) {
		char *hint = cli_format("the reason is in %s", log);
		result = cli_fail(server->invocation, CLI_FAILED, hint, "%s did not start", service->name);
		free(hint);
	}
	free(log);
	return result;
}

/* Forks with the lock held by the child. The child gets 0. */
static pid_t launch(const server *server, const service *service)
{
	int lock = take_lock(server, service, true);
	pid_t pid = lock < 0 ? -1 : fork();

	if (pid == 0) {
		detach(server, lock);
		return 0;
	}
	if (pid > 0 && (ftruncate(lock, 0) != 0 || dprintf(lock, "%d\n", (int)pid) < 0)) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		pid = -1;
	}
	if (pid < 0) {
		fail_errno(server, "cannot start", service->name);
	}
	if (lock >= 0) {
		close(lock);
	}
	return pid;
}

static int start_example(const server *server, const service *service)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char *socket = socket_of(server, service);
	int program = open_program(service);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", socket);
	free(socket);
	pid_t pid = launch(server, service);
	if (pid == 0) {
		become_example(server, service, program);
	}
	close(program);
	return pid < 0 ? CLI_FAILED
	               : wait_until_it_accepts(server, service, pid, (struct sockaddr *)&address, sizeof address);
}

/* ---- The gateway ---- */

static struct sockaddr_in loopback(int port)
{
	return (struct sockaddr_in){
	    .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
}

static bool is_free(int port)
{
	struct sockaddr_in address = loopback(port);
	int one = 1;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0) {
		return false;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	bool bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
	close(fd);
	return bound;
}

/* Where it listens, or listened last, which the file says; 0: nowhere yet. */
static int kept_port(const server *server, const char *name, int first, int count)
{
	char *path = file_of(server, name, "");
	FILE *file = fopen(path, "re");
	int port = 0;

	free(path);
	if (file != NULL) {
		if (fscanf(file, "%d", &port) != 1 || port < first || port >= first + count) {
			port = 0;
		}
		fclose(file);
	}
	return port;
}

/* The one of last time, so that lines that were copied stay true; else the first that is free. */
static int choose_port(const server *server, const char *name, int first)
{
	int port = kept_port(server, name, first, PORT_COUNT);
	int chosen = port != 0 && is_free(port) ? port : 0;

	for (int i = 0; i < PORT_COUNT && chosen == 0; i++) {
		chosen = is_free(first + i) ? first + i : 0;
	}
	if (chosen == 0) {
		cli_fail(server->invocation, CLI_FAILED, NULL, "no port from %d to %d is free", first, first + PORT_COUNT - 1);
		return 0;
	}
	char *path = file_of(server, name, "");
	FILE *file = fopen(path, "we");
	if (file == NULL || fprintf(file, "%d\n", chosen) < 0 || fclose(file) != 0) {
		fail_errno(server, "cannot write", path);
		chosen = 0;
	}
	free(path);
	return chosen;
}

static int start_nginx(gateway *gateway, const server *server, int port)
{
	struct sockaddr_in address = loopback(port);
	char *conninfo = server_dsn(server, SERVER_DATABASE);
	int result = gateway_validate(gateway);

	result = result == CLI_OK ? gateway_write(gateway, conninfo) : result;
	result = result == CLI_OK ? nginx_test(gateway) : result;
	free(conninfo);
	if (result != CLI_OK) {
		return result;
	}
	pid_t pid = launch(server, &services[GATEWAY]);
	if (pid == 0) {
		nginx_become(gateway);
		_exit(127);
	}
	return pid < 0
	           ? CLI_FAILED
	           : wait_until_it_accepts(server, &services[GATEWAY], pid, (struct sockaddr *)&address, sizeof address);
}

static int start_gateway(gateway *gateway, const server *server)
{
	const struct passwd *user = geteuid() == 0 ? getpwuid(server->user) : NULL;
	const struct group *group = geteuid() == 0 ? getgrgid(server->group) : NULL;
	int port = choose_port(server, "port", GATEWAY_PORT);

	if (port == 0) {
		return CLI_FAILED;
	}
	char *listen_at = cli_format("127.0.0.1:%d", port);
	char *access_log = file_of(server, "access.log", "");
	char *upstreams[GATEWAY] = {NULL};
	for (int i = 0; i < GATEWAY; i++) {
		char *socket = socket_of(server, &services[i]);
		upstreams[i] = cli_format("http://unix:%s", socket);
		gateway->routes[i] =
		    (gateway_route){.location = services[i].path, .upstream = upstreams[i], .scope = services[i].name};
		free(socket);
	}
	gateway->route_count = GATEWAY;
	gateway->listen = listen_at;
	gateway->access_log = access_log;
	gateway->required = true;
	gateway->prepare = true;
	gateway->tenant = "none";
	gateway->wait_ms = WAIT_MS;
	gateway->user = user == NULL ? NULL : user->pw_name;
	gateway->group = group == NULL ? NULL : group->gr_name;
	bool fits = snprintf(gateway->directory, PATH_MAX, "%s/gateway", server->home) < PATH_MAX;
	int result = fits ? start_nginx(gateway, server, port)
	                  : cli_fail(server->invocation, CLI_FAILED, NULL, "the path %s is too long", server->home);
	for (int i = 0; i < GATEWAY; i++) {
		free(upstreams[i]);
	}
	free(access_log);
	free(listen_at);
	return result;
}

/* ---- NATS, the relay and the consumer ---- */

/* NATS's server, as an open file; -1: it is not installed. */
static int open_nats(void)
{
	static const char also[] = ":/usr/sbin:/usr/local/sbin:/usr/local/bin";
	const char *path = getenv("PATH");
	char *directories = cli_format("%s%s", path == NULL ? "" : path, also);
	char *rest = NULL;
	int fd = -1;

	for (char *each = strtok_r(directories, ":", &rest); each != NULL && fd < 0; each = strtok_r(NULL, ":", &rest)) {
		char *name = cli_format("%s/nats-server", each);
		fd = each[0] == '/' && access(name, X_OK) == 0 ? open(name, O_RDONLY | O_CLOEXEC) : -1;
		free(name);
	}
	free(directories);
	return fd;
}

static char *nats_url(const server *server)
{
	return cli_format("nats://127.0.0.1:%d", kept_port(server, "nats.port", NATS_PORT, PORT_COUNT));
}

/* Where NATS keeps its streams: the server's user's alone. */
static int make_store(const server *server, const char *path)
{
	if ((mkdir(path, 0700) != 0 && errno != EEXIST) ||
	    (geteuid() == 0 && lchown(path, server->user, server->group) != 0)) {
		return fail_errno(server, "cannot make directory", path);
	}
	return CLI_OK;
}

static int start_nats(const server *server)
{
	int port = choose_port(server, "nats.port", NATS_PORT);
	struct sockaddr_in address = loopback(port);
	char *store = file_of(server, "nats", "");
	int program = open_nats();
	int result = port == 0 ? CLI_FAILED : make_store(server, store);
	pid_t pid = result == CLI_OK ? launch(server, &services[NATS]) : -1;

	if (pid == 0) {
		char *number = cli_format("%d", port);
		const char *arguments[] = {"nats-server", "-a", "127.0.0.1", "-p", number, "-js", "-sd", store, NULL};
		server_become_user(server);
		fexecve(program, (char *const *)(uintptr_t)arguments, environ);
		_exit(127);
	}
	free(store);
	close(program);
	return pid < 0 ? CLI_FAILED
	               : wait_until_it_accepts(server, &services[NATS], pid, (struct sockaddr *)&address, sizeof address);
}

/* This command itself: pgonce relay, pgonce consume. */
static int start_job(const server *server, const service *service)
{
	char *config = file_of(server, "pgonce.conf", "");
	int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	pid_t pid = program < 0 ? -1 : launch(server, service);

	if (pid == 0) {
		const char *arguments[] = {"pgonce", service->name, "--config", config, NULL};
		server_become_user(server);
		fexecve(program, (char *const *)(uintptr_t)arguments, environ);
		_exit(127);
	}
	if (program >= 0) {
		close(program);
	}
	free(config);
	return pid < 0 ? CLI_FAILED : CLI_OK;
}

/* The port that the keeper says it serves metrics at, in the log from that place on; 0: it has not said so. */
static int told_port(const char *log, long from)
{
	FILE *file = fopen(log, "re");
	char line[512];
	int port = 0;

	if (file == NULL) {
		return 0;
	}
	if (fseek(file, from, SEEK_SET) == 0) {
		while (port == 0 && fgets(line, sizeof line, file) != NULL) {
			const char *told = strstr(line, " event=metrics address=127.0.0.1:");
			port = told != NULL && strstr(line, " keep=") != NULL && strchr(told, '\n') != NULL
			           ? atoi(strrchr(told, ':') + 1)
			           : 0;
		}
	}
	fclose(file);
	return port;
}

/* With its metrics at that port, 0: any. The port; 0: it has ended, or says nothing. */
static int try_keeper(const server *server, int port)
{
	char *log = file_of(server, "log", "");
	struct stat status = {0};
	long from = stat(log, &status) == 0 ? (long)status.st_size : 0;
	int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	pid_t pid = program < 0 ? -1 : launch(server, &services[KEEP]);
	int told = 0;

	if (pid == 0) {
		char *dsn = server_dsn(server, SERVER_DATABASE);
		char *metrics = cli_format("127.0.0.1:%d", port);
		const char *arguments[] = {"pgonce", "keep", "--dsn", dsn, "--metrics", metrics, NULL};
		server_become_user(server);
		fexecve(program, (char *const *)(uintptr_t)arguments, environ);
		_exit(127);
	}
	if (program >= 0) {
		close(program);
	}
	for (int waited_ms = 0; pid > 0 && waited_ms < PATIENCE_MS && told == 0; waited_ms += PAUSE_MS) {
		if (waitpid(pid, NULL, WNOHANG) == pid) {
			break;
		}
		pause_briefly();
		told = told_port(log, from);
	}
	free(log);
	return told;
}

/* At the port of last time, or the usual one; where somebody else has that, at any. What it says tells, so that no other's port is taken for its own. */
static int start_keeper(const server *server)
{
	int port = kept_port(server, "metrics.port", 1, PORTS);
	char *path = file_of(server, "metrics.port", "");
	int result = is_whole(server, &services[KEEP]) ? CLI_OK : stop(server, &services[KEEP]);

	if (result == CLI_OK && !is_whole(server, &services[KEEP])) {
		port = try_keeper(server, port == 0 ? METRICS_PORT : port);
		if (port == 0) {
			result = stop(server, &services[KEEP]);
			port = result == CLI_OK ? try_keeper(server, 0) : 0;
		}
		FILE *file = port == 0 ? NULL : fopen(path, "we");
		if (port == 0) {
			char *hint = cli_format("the reason is in %s/gateway/log", server->home);
			result = cli_fail(server->invocation, CLI_FAILED, hint, "keep did not start");
			free(hint);
		} else if (file == NULL || fprintf(file, "%d\n", port) < 0 || fclose(file) != 0) {
			result = fail_errno(server, "cannot write", path);
		}
	}
	free(path);
	return result;
}

/* What the jobs need of the two servers. */
static int prepare_jobs(const server *server)
{
	char *url = nats_url(server);
	char *config = file_of(server, "pgonce.conf", "");
	int result = warehouse_make_database(server);

	if (result == CLI_OK && BROKER_WITH_NATS) {
		result = warehouse_make_stream(server, url);
	}
	result = result == CLI_OK ? warehouse_write_config(server, config, url) : result;
	free(config);
	free(url);
	return result;
}

static int start_events(const server *server)
{
	bool all_run = true;
	int nats = open_nats();
	int result = CLI_OK;

	if (nats >= 0) {
		close(nats);
	}
	if (nats < 0 || broker_left_out("nats") != NULL) {
		cli_note(server->invocation, "without the relay and the consumer: %s",
		         nats < 0 ? "nats-server is not installed" : "this pgonce was built without NATS (libnats)");
		return CLI_OK;
	}
	for (int i = NATS; i < SERVICE_COUNT; i++) {
		all_run = all_run && is_whole(server, &services[i]);
	}
	for (int i = SERVICE_COUNT - 1; i >= NATS && !all_run && result == CLI_OK; i--) {
		result = stop(server, &services[i]);
	}
	if (all_run || result != CLI_OK) {
		return result;
	}
	result = start_nats(server);
	result = result == CLI_OK ? prepare_jobs(server) : result;
	for (int i = RELAY; i <= CONSUME && result == CLI_OK; i++) {
		result = start_job(server, &services[i]);
	}
	return result;
}

/* ---- All of them ---- */

/* What is missing for the gateway and the services; NULL: nothing. */
static const char *find_missing(gateway *gateway)
{
	for (int i = 0; i < GATEWAY; i++) {
		int program = open_program(&services[i]);
		if (program < 0) {
			return "the example services are not beside this command";
		}
		close(program);
	}
	return nginx_is_here(gateway) ? NULL : "nginx or its module ngx_http_once_module.so is not here";
}

/* Entered by all, since nginx's workers are another user where this is root; what is secret in it is closed by itself. */
static int make_directory(const server *server)
{
	struct stat status;
	char *path = cli_format("%s/gateway", server->home);
	int result = CLI_OK;

	if (mkdir(path, 0755) != 0 && errno != EEXIST) {
		result = fail_errno(server, "cannot make directory", path);
	} else if (lstat(path, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
		result = cli_fail(server->invocation, CLI_FAILED, "remove it, or run pgonce dev as its owner",
		                  "%s is not a directory of this user", path);
	}
	free(path);
	return result;
}

static int start_payments(const server *server)
{
	gateway gateway = {.invocation = server->invocation};
	const char *missing = find_missing(&gateway);
	int result = CLI_OK;

	if (missing != NULL) {
		cli_note(server->invocation, "without the gateway and the payments service: %s", missing);
		return CLI_OK;
	}
	for (int i = 0; i <= GATEWAY && result == CLI_OK; i++) {
		if (is_whole(server, &services[i])) {
			continue;
		}
		result = stop(server, &services[i]);
		if (result == CLI_OK) {
			result = i == GATEWAY ? start_gateway(&gateway, server) : start_example(server, &services[i]);
		}
	}
	return result;
}

/* Made when an ordinary user ran it. Root writes nothing where that user can exchange what it opens. */
static bool is_the_servers_users(const server *server)
{
	struct stat status;
	char *path = cli_format("%s/gateway", server->home);
	bool is_theirs = geteuid() == 0 && server->user != 0 && lstat(path, &status) == 0 && S_ISDIR(status.st_mode) &&
	                 status.st_uid == server->user;

	free(path);
	return is_theirs;
}

int services_start(const server *server)
{
	if (is_the_servers_users(server)) {
		cli_note(server->invocation,
		         "only the server: the gateway, the relay and the consumer of this directory are an "
		         "ordinary user's; run pgonce dev as that user");
		return CLI_OK;
	}
	int result = make_directory(server);

	result = result == CLI_OK ? start_keeper(server) : result;
	result = result == CLI_OK ? start_payments(server) : result;
	return result == CLI_OK ? start_events(server) : result;
}

int services_stop(const server *server)
{
	int result = CLI_OK;

	for (int i = SERVICE_COUNT - 1; i >= 0; i--) {
		int stopped = stop(server, &services[i]);
		result = result == CLI_OK ? stopped : result;
	}
	return result;
}

json_t *services_describe(const server *server)
{
	int port = kept_port(server, "port", GATEWAY_PORT, PORT_COUNT);

	if (port == 0 || !is_running(server, &services[GATEWAY])) {
		return json_null();
	}
	char *url = cli_format("http://127.0.0.1:%d", port);
	char *status = cli_format("%s/once/status", url);
	char *configuration = file_of(server, "nginx.conf", "");
	char *log = file_of(server, "log", "");
	json_t *behind = json_object();
	for (int i = 0; i < GATEWAY; i++) {
		char *at = cli_format("%s%s", url, services[i].path);
		char *socket = socket_of(server, &services[i]);
		json_object_set_new(behind, services[i].name,
		                    json_pack("{s:s, s:s, s:i, s:b}", "url", at, "socket", socket, "pid",
		                              (int)leader_of(server, &services[i]), "running",
		                              is_running(server, &services[i])));
		free(socket);
		free(at);
	}
	json_t *gateway =
	    json_pack("{s:s, s:s, s:s, s:s, s:i, s:o}", "url", url, "status", status, "configuration", configuration, "log",
	              log, "pid", (int)leader_of(server, &services[GATEWAY]), "services", behind);
	free(log);
	free(configuration);
	free(status);
	free(url);
	return gateway;
}

json_t *services_describe_keeper(const server *server)
{
	if (!is_running(server, &services[KEEP])) {
		return json_null();
	}
	char *url = cli_format("http://127.0.0.1:%d/metrics", kept_port(server, "metrics.port", 1, PORTS));
	json_t *keeper = json_pack("{s:s, s:i}", "metrics", url, "pid", (int)leader_of(server, &services[KEEP]));
	free(url);
	return keeper;
}

json_t *services_describe_events(const server *server)
{
	if (!is_running(server, &services[NATS])) {
		return json_null();
	}
	char *url = nats_url(server);
	char *warehouse = server_dsn(server, WAREHOUSE_DATABASE);
	char *configuration = file_of(server, "pgonce.conf", "");
	char *log = file_of(server, "log", "");
	json_t *events =
	    json_pack("{s:s, s:s, s:s, s:s, s:s, s:i}", "url", url, "stream", WAREHOUSE_STREAM, "warehouse", warehouse,
	              "configuration", configuration, "log", log, "pid", (int)leader_of(server, &services[NATS]));
	for (int i = RELAY; i <= CONSUME; i++) {
		json_object_set_new(events, services[i].name,
		                    json_pack("{s:i, s:b}", "pid", (int)leader_of(server, &services[i]), "running",
		                              is_running(server, &services[i])));
	}
	free(log);
	free(configuration);
	free(warehouse);
	free(url);
	return events;
}
