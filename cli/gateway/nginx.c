/* SPDX-License-Identifier: PostgreSQL */
/*
 * nginx.c: see nginx.h: the program nginx: finding it and the module, testing a configuration with
 * it, and becoming it.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"
#include "nginx.h"

#define MODULE_NAME "ngx_http_once_module.so"

enum {
	ANSWER_BYTES_MAX = 64 * 1024
};

static bool set_path(char path[PATH_MAX], const char *directory, const char *name)
{
	return snprintf(path, PATH_MAX, "%s/%s", directory, name) < PATH_MAX;
}

/*
 * Runs nginx with one option, and reads its standard error. Returns its exit status; 126 if it
 * cannot be run.
 */
static int ask(const gateway *gateway, const char *const *arguments, bytes *said)
{
	int ends[2];
	int status = 0;
	char block[4096];
	ssize_t got;

	if (pipe2(ends, O_CLOEXEC) != 0) {
		return 126;
	}
	pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		execv(gateway->program, (char *const *)(uintptr_t)arguments);
		_exit(126);
	}
	close(ends[1]);
	while (pid > 0 && ((got = read(ends[0], block, sizeof block)) > 0 || (got < 0 && errno == EINTR))) {
		if (got > 0) {
			bytes_append(said, block, (size_t)got); /* the part beyond its maximum is not needed */
		}
	}
	close(ends[0]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) {
		return 126;
	}
	return WEXITSTATUS(status);
}

static char *ask_version(const gateway *gateway)
{
	const char *arguments[] = {gateway->program, "-V", NULL};
	bytes said = {.bytes_max = ANSWER_BYTES_MAX};

	ask(gateway, arguments, &said);
	char *text = cli_format("%.*s", (int)said.length, said.data != NULL ? (const char *)said.data : "");
	bytes_free(&said);
	return text;
}

/* ---- Paths ---- */

static bool find_program(gateway *gateway)
{
	static const char *const also[] = {"/usr/sbin", "/usr/local/sbin", "/usr/local/nginx/sbin"};
	char *path = cli_duplicate(getenv("PATH") != NULL ? getenv("PATH") : "");
	char *next = path;
	bool found = false;

	for (const char *directory = strsep(&next, ":"); directory != NULL && !found; directory = strsep(&next, ":")) {
		found = directory[0] == '/' && set_path(gateway->program, directory, "nginx") &&
		        access(gateway->program, X_OK) == 0;
	}
	free(path);
	for (size_t i = 0; i < sizeof also / sizeof also[0] && !found; i++) {
		found = set_path(gateway->program, also[i], "nginx") && access(gateway->program, X_OK) == 0;
	}
	return found;
}

/* A module next to this command: in the build tree, or if both were installed. */
static bool find_own_module(gateway *gateway)
{
	static const char *const beside[] = {"../gateway/" MODULE_NAME, "../lib/nginx/modules/" MODULE_NAME};
	char self[PATH_MAX];
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);

	if (length <= 0) {
		return false;
	}
	self[length] = '\0';
	*strrchr(self, '/') = '\0';
	for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
		if (set_path(path, self, beside[i]) && access(path, R_OK) == 0 && realpath(path, gateway->module) != NULL) {
			return true;
		}
	}
	return false;
}

/* The directory in which this nginx keeps its modules: "--modules-path=" of nginx -V. */
static bool find_installed_module(gateway *gateway)
{
	static const char *const also[] = {"/usr/lib/nginx/modules", "/usr/lib64/nginx/modules"};
	static const char word[] = "--modules-path=";
	char *version = ask_version(gateway);
	char *at = strstr(version, word);
	bool found = false;

	if (at != NULL) {
		at += strlen(word);
		at[strcspn(at, " \n'")] = '\0';
		found = set_path(gateway->module, at, MODULE_NAME) && access(gateway->module, R_OK) == 0;
	}
	free(version);
	for (size_t i = 0; i < sizeof also / sizeof also[0] && !found; i++) {
		found = set_path(gateway->module, also[i], MODULE_NAME) && access(gateway->module, R_OK) == 0;
	}
	return found;
}

int nginx_find(gateway *gateway, const char *program, const char *module)
{
	static const char install_nginx[] = "install it (Debian, Ubuntu: apt install nginx), or name it with --nginx";
	static const char install_module[] =
	    "install it (the package libnginx-mod-http-once, or make install), or name it with --module";

	if (program != NULL) {
		if (access(program, X_OK) != 0 || realpath(program, gateway->program) == NULL) {
			return cli_fail(gateway->invocation, CLI_FAILED, install_nginx, "there is no nginx at %s", program);
		}
	} else if (!find_program(gateway)) {
		return cli_fail(gateway->invocation, CLI_FAILED, install_nginx, "nginx is not installed here");
	}
	if (module != NULL) {
		if (access(module, R_OK) != 0 || realpath(module, gateway->module) == NULL) {
			return cli_fail(gateway->invocation, CLI_FAILED, install_module, "there is no module at %s", module);
		}
	} else if (!find_own_module(gateway) && !find_installed_module(gateway)) {
		return cli_fail(gateway->invocation, CLI_FAILED, install_module,
		                "the nginx module " MODULE_NAME " is neither beside this command nor among the modules of %s",
		                gateway->program);
	}
	return CLI_OK;
}

bool nginx_is_here(gateway *gateway)
{
	return find_program(gateway) && (find_own_module(gateway) || find_installed_module(gateway));
}

/* ---- The configuration's test ---- */

typedef struct remedy {
	const char *said;
	const char *hint;
} remedy;

static const remedy remedies[] = {
    {"Permission denied)", "ports below 1024 need root; a socket needs a directory that may be written"},
    {"Cannot assign requested address", "--listen names an address that this machine does not have"},
    {"is not binary compatible",
     "the module was built for another nginx: build it for this one (make), or give --module"},
    {"instead of", "the module was built for another nginx: build it for this one (make), or give --module"},
    {"dlopen()", "the module cannot be loaded: build it again (make), or give another with --module"},
    {"host not found in upstream", "the host of --upstream cannot be resolved here"},
    {"host not found in", "the host of --listen cannot be resolved here"},
    {"unknown \"", "--tenant-from names a variable of nginx, such as http_x_tenant"},
    {"getpwnam", "--user names a user of this system"},
    {"unknown directive \"once", "the module is older than this command: build it again (make), or give --module"},
};

static const char *remedy_of(const char *said)
{
	for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++) {
		if (strstr(said, remedies[i].said) != NULL) {
			return remedies[i].hint;
		}
	}
	return "pgonce gateway --print-config shows the configuration";
}

/* "nginx: [emerg] text" -> "text"; of several lines the one with the reason. */
static char *reason_in(char *said)
{
	char *next = said;
	char *reason = NULL;

	for (char *line = strsep(&next, "\n"); line != NULL; line = strsep(&next, "\n")) {
		char *emergency = strstr(line, "[emerg]");
		if (emergency != NULL) {
			reason = emergency + strlen("[emerg]");
			reason += strspn(reason, " 0123456789#:"); /* "12#12: " */
			break;
		}
	}
	return reason;
}

/*
 * -e exists since 1.19.5; an older nginx complains on standard error that it cannot open its
 * default log, and continues.
 */
static bool has_error_log_option(const gateway *gateway)
{
	int major = 0;
	int minor = 0;
	int patch = 0;
	char *version = ask_version(gateway);
	const char *at = strstr(version, "nginx/");

	bool has = at != NULL && sscanf(at, "nginx/%d.%d.%d", &major, &minor, &patch) == 3 &&
	           major * 1000000 + minor * 1000 + patch >= 1019005;
	free(version);
	return has;
}

/* A process listens at the socket; a socket that a killed nginx left behind is removed. */
static bool unix_is_taken(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool taken = probe >= 0 && connect(probe, (struct sockaddr *)&address, sizeof address) == 0;
	if (!taken && probe >= 0 && errno == ECONNREFUSED) {
		unlink(path);
	}
	if (probe >= 0) {
		close(probe);
	}
	return taken;
}

static bool port_is_taken(const char *listen_at)
{
	struct addrinfo wanted = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	const char *port = strrchr(listen_at, ':') + 1;
	char *host = cli_duplicate(listen_at[0] == '[' ? listen_at + 1 : listen_at);
	int one = 1;

	host[strcspn(host, listen_at[0] == '[' ? "]" : ":")] = '\0';
	int failed = getaddrinfo(strcmp(host, "*") == 0 ? "0.0.0.0" : host, port, &wanted, &found);
	int probe = failed != 0 ? -1 : socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool taken = false;
	if (probe >= 0) {
		setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		taken = bind(probe, found->ai_addr, found->ai_addrlen) != 0 && errno == EADDRINUSE;
		close(probe);
	}
	if (failed == 0) {
		freeaddrinfo(found);
	}
	free(host);
	return taken;
}

int nginx_test(const gateway *gateway)
{
	char *configuration = cli_format("%s/nginx.conf", gateway->directory);
	bool option = has_error_log_option(gateway);
	const char *arguments[] = {gateway->program,     "-t",     "-p", gateway->directory, "-c", configuration,
	                           option ? "-e" : NULL, "stderr", NULL};
	bytes said = {.bytes_max = ANSWER_BYTES_MAX};
	int result = CLI_OK;

	/* nginx -t accepts an address in use, and nginx itself retries for seconds. */
	if (strncmp(gateway->listen, "unix:", 5) == 0 ? unix_is_taken(gateway->listen + 5)
	                                              : port_is_taken(gateway->listen)) {
		free(configuration);
		return cli_fail(gateway->invocation, CLI_FAILED, "stop it, or give another --listen",
		                "something listens at %s already", gateway->listen);
	}
	int status = ask(gateway, arguments, &said);
	if (status != 0) {
		char *text = cli_format("%.*s", (int)said.length, said.data != NULL ? (const char *)said.data : "");
		const char *hint = remedy_of(text);
		const char *reason = reason_in(text);
		result = cli_fail(gateway->invocation, CLI_FAILED, hint, "nginx does not take the configuration: %s",
		                  reason != NULL    ? reason
		                  : text[0] != '\0' ? text
		                                    : "it cannot be run");
		free(text);
	}
	bytes_free(&said);
	free(configuration);
	return result;
}

/* ---- The process ---- */

/* By its full path: with a bare name nginx could not execute itself again for
 * an upgrade of its program (SIGUSR2). */
void nginx_become(const gateway *gateway)
{
	char *configuration = cli_format("%s/nginx.conf", gateway->directory);

	if (has_error_log_option(gateway)) {
		execl(gateway->program, gateway->program, "-p", gateway->directory, "-c", configuration, "-e", "stderr",
		      (char *)NULL);
	} else {
		execl(gateway->program, gateway->program, "-p", gateway->directory, "-c", configuration, (char *)NULL);
	}
	free(configuration);
}
