/* SPDX-License-Identifier: PostgreSQL */
/*
 * nginx_conf.c: see nginx.h. Every value from a user is first checked against a short list of
 * characters, so it can only be a value in the configuration. The connection string is not in the
 * configuration, but in a file next to it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conninfo.h"
#include "nginx.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS "0123456789"

static const char name_characters[] = LETTERS DIGITS ".-";
static const char path_characters[] = LETTERS DIGITS "/._-+@~";
static const char scope_characters[] = LETTERS DIGITS "/._-+@~:";
static const char variable_characters[] = LETTERS DIGITS "_";

enum {
	NAME_MAX_BYTES = 253,      /* of a host: RFC 1035 */
	UNIX_PATH_MAX_BYTES = 107, /* sockaddr_un */
	SCOPE_MAX_BYTES = 255,     /* as the contract */
	VARIABLE_MAX_BYTES = 100,
	TIMEOUT_S = 60, /* how long the service may be silent */
	ENDING_S = 10,  /* for the reports of a worker's last requests */
	CONNECTIONS_MAX = 4096,
	FILES_BESIDES = 64 /* logs, sockets, the database's connections, nginx's own files */
};

static bool is_text_of(const char *text, const char *characters, size_t length_max)
{
	size_t length = strlen(text);

	return length > 0 && length <= length_max && strspn(text, characters) == length;
}

static bool is_port(const char *text)
{
	size_t length = strspn(text, DIGITS);

	return length >= 1 && length <= 5 && text[length] == '\0' && atoi(text) >= 1 && atoi(text) <= 65535;
}

/*
 * The length of the host at the start of a text: a name, an IPv4 address, or an IPv6 address in
 * brackets; 0: none.
 */
static size_t host_length(const char *text)
{
	struct in6_addr address;
	char inner[INET6_ADDRSTRLEN];

	if (text[0] != '[') {
		size_t length = strspn(text, name_characters);
		return length <= NAME_MAX_BYTES ? length : 0;
	}
	size_t length = strcspn(text + 1, "]");
	if (text[1 + length] != ']' || length >= sizeof inner) {
		return 0;
	}
	memcpy(inner, text + 1, length);
	inner[length] = '\0';
	return inet_pton(AF_INET6, inner, &address) == 1 ? length + 2 : 0;
}

static bool is_unix_path(const char *text)
{
	return text[0] == '/' && is_text_of(text, path_characters, UNIX_PATH_MAX_BYTES);
}

static bool is_listen(const char *text)
{
	if (strncmp(text, "unix:", 5) == 0) {
		return is_unix_path(text + 5);
	}
	size_t host = text[0] == '*' ? 1 : host_length(text);
	return host > 0 && text[host] == ':' && is_port(text + host + 1);
}

typedef struct upstream {
	bool tls;
	bool is_unix;
	char address[UNIX_PATH_MAX_BYTES + NAME_MAX_BYTES]; /* HOST:PORT or unix:/PATH */
	char name[NAME_MAX_BYTES + 3];                      /* HOST */
} upstream;

static bool parse_upstream(const char *text, upstream *parsed)
{
	char authority[UNIX_PATH_MAX_BYTES + NAME_MAX_BYTES];

	*parsed = (upstream){.tls = strncmp(text, "https://", 8) == 0};
	if (!parsed->tls && strncmp(text, "http://", 7) != 0) {
		return false;
	}
	text += parsed->tls ? 8 : 7;
	parsed->is_unix = strncmp(text, "unix:", 5) == 0;
	if (parsed->is_unix) {
		snprintf(parsed->address, sizeof parsed->address, "%s", text);
		return !parsed->tls && is_unix_path(text + 5);
	}
	size_t length = strlen(text);
	length -= length > 0 && text[length - 1] == '/' ? 1 : 0;
	if (length == 0 || length >= sizeof authority) {
		return false;
	}
	memcpy(authority, text, length);
	authority[length] = '\0';
	size_t host = host_length(authority);
	if (host == 0 || (authority[host] != '\0' && (authority[host] != ':' || !is_port(authority + host + 1)))) {
		return false;
	}
	const char *port = authority[host] == ':' ? authority + host + 1 : parsed->tls ? "443" : "80";
	snprintf(parsed->name, sizeof parsed->name, "%.*s", (int)host, authority);
	snprintf(parsed->address, sizeof parsed->address, "%s:%s", parsed->name, port);
	return true;
}

/* "$http_x_tenant" and "http_x_tenant" are the same variable. */
static const char *variable_name(const char *text)
{
	return text[0] == '$' ? text + 1 : text;
}

static bool is_variable(const char *text)
{
	return is_text_of(variable_name(text), variable_characters, VARIABLE_MAX_BYTES);
}

/*
 * Text for double quotes: no control characters, and no '$', which nginx would replace in some
 * places.
 */
static bool is_file_name(const char *text)
{
	for (const char *at = text; *at != '\0'; at++) {
		if ((unsigned char)*at < ' ' || *at == 0x7f || *at == '$') {
			return false;
		}
	}
	return text[0] == '/';
}

static int refuse(const gateway *gateway, const char *option, const char *value, const char *wanted)
{
	return cli_fail(gateway->invocation, CLI_USAGE, "pgonce help gateway", "option --%s: '%s' is not %s", option, value,
	                wanted);
}

int gateway_validate(const gateway *gateway)
{
	upstream parsed;

	if (!is_listen(gateway->listen)) {
		return refuse(gateway, "listen", gateway->listen, "ADDRESS:PORT or unix:/PATH, in plain characters");
	}
	if (!parse_upstream(gateway->upstream, &parsed)) {
		return refuse(gateway, "upstream", gateway->upstream,
		              "http://HOST:PORT, https://HOST:PORT or http://unix:/PATH (and no path of a resource)");
	}
	if (gateway->scope != NULL && !is_text_of(gateway->scope, scope_characters, SCOPE_MAX_BYTES)) {
		return refuse(gateway, "scope", gateway->scope, "1 to 255 letters, digits and /._-+@~:");
	}
	if (!is_variable(gateway->tenant)) {
		return refuse(gateway, "tenant-from", gateway->tenant,
		              "the name of a variable of nginx (http_x_tenant), or none");
	}
	if (gateway->user != NULL && !is_text_of(gateway->user, path_characters, VARIABLE_MAX_BYTES)) {
		return refuse(gateway, "user", gateway->user, "the name of a user");
	}
	if (!is_file_name(gateway->directory)) {
		return refuse(gateway, "dir", gateway->directory, "an absolute path without control characters and '$'");
	}
	return CLI_OK;
}

bool gateway_is_local(const gateway *gateway)
{
	static const char *const local[] = {"unix:", "[::1]:", "localhost:"};
	char host[INET_ADDRSTRLEN];
	struct in_addr address;

	for (size_t i = 0; i < sizeof local / sizeof local[0]; i++) {
		if (strncmp(gateway->listen, local[i], strlen(local[i])) == 0) {
			return true;
		}
	}
	size_t length = strcspn(gateway->listen, ":");
	if (length >= sizeof host) {
		return false;
	}
	snprintf(host, sizeof host, "%.*s", (int)length, gateway->listen);
	return inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == IN_LOOPBACKNET;
}

/* ---- The configuration ---- */

/* A value in double quotes, with the two special characters escaped. */
static void put_quoted(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text != '\0'; text++) {
		if (*text == '"' || *text == '\\') {
			fputc('\\', out);
		}
		fputc(*text, out);
	}
	fputc('"', out);
}

/* "NAME "DIRECTORY/FILE";" */
static void put_path(FILE *out, const char *indent, const char *name, const gateway *gateway, const char *file)
{
	char *path = cli_format("%s/%s", gateway->directory, file);

	fprintf(out, "%s%s ", indent, name);
	put_quoted(out, path);
	fputs(";\n", out);
	free(path);
}

/*
 * As many connections as open files: nginx raises its limit (1,024 for most users) as far as the
 * system allows, and warns if it has more connections than that.
 */
static void put_connections(FILE *out)
{
	const rlim_t wanted = CONNECTIONS_MAX + FILES_BESIDES;
	struct rlimit limit = {.rlim_cur = wanted, .rlim_max = wanted};

	getrlimit(RLIMIT_NOFILE, &limit);
	rlim_t files = limit.rlim_max > wanted ? wanted : limit.rlim_max;
	if (limit.rlim_cur < files) {
		fprintf(out, "worker_rlimit_nofile %llu;\n", (unsigned long long)files);
	}
	fprintf(out, "\nevents {\n    worker_connections %llu;\n}\n\n",
	        (unsigned long long)(files > 2 * FILES_BESIDES ? files - FILES_BESIDES : FILES_BESIDES));
}

static void put_main(const gateway *gateway, FILE *out)
{
	fputs("# Written by pgonce gateway. With --print-config it is yours to change: "
	      "docs/reference/gateway.md.\nload_module ",
	      out);
	put_quoted(out, gateway->module);
	fputs(";\n", out);
	if (gateway->user != NULL) {
		fprintf(out, "user %s %s;\n", gateway->user, gateway->group != NULL ? gateway->group : "");
	}
	fprintf(
	    out,
	    "# One worker makes fuller batches than several, and is enough for tens of thousands of requests a second.\n"
	    "worker_processes 1;\n"
	    "# A worker that ends lets its requests end first: longer than proxy_read_timeout.\n"
	    "worker_shutdown_timeout %ds;\n"
	    "daemon off;\n"
	    "error_log stderr warn;\n",
	    TIMEOUT_S + ENDING_S);
	put_path(out, "", "pid", gateway, "nginx.pid");
	put_path(out, "", "lock_file", gateway, "nginx.lock");
	put_connections(out);
}

/* The path without its query, which may contain secrets. */
static void put_log_format(bool json, FILE *out)
{
	static const char *const fields[][2] = {
	    {"time", "$time_iso8601"},
	    {"client", "$remote_addr"},
	    {"method", "$request_method"},
	    {"uri", "$uri"},
	    {"status", "$status"},
	    {"verdict", "$once_verdict"},
	    {"fence", "$once_fence"},
	    {"cache", "$once_cache"},
	    {"upstream", "$upstream_status"},
	    {"seconds", "$request_time"},
	    {"request", "$request_id"},
	};

	fprintf(out, "    log_format once escape=%s '%s", json ? "json" : "default", json ? "{" : "");
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
		fprintf(out, json ? "%s\"%s\":\"%s\"" : "%s%s=\"%s\"",
		        i == 0 ? ""
		        : json ? ","
		               : " ",
		        fields[i][0], fields[i][1]);
	}
	fprintf(out, "%s';\n", json ? "}" : "");
}

static void put_http(const gateway *gateway, FILE *out)
{
	static const char *const temporary[] = {"client_body", "proxy", "fastcgi", "uwsgi", "scgi"};

	put_path(out, "    ", "once_database", gateway, "database");
	fputs("    once_replay_cache zone=once_replays:32m;\n", out);
	put_log_format(gateway->json, out);
	fputs("    access_log ", out);
	if (gateway->access_log != NULL) {
		put_quoted(out, gateway->access_log);
		fputs(" once;\n", out);
	} else {
		fputs("off;\n", out);
	}
	for (size_t i = 0; i < sizeof temporary / sizeof temporary[0]; i++) {
		char *name = cli_format("%s_temp_path", temporary[i]);
		put_path(out, "    ", name, gateway, temporary[i]);
		free(name);
	}
	fputs("    server_tokens off;\n\n", out);
}

/*
 * WebSocket, with GET only: through a connection that a service has switched to HTTP/2 or TLS,
 * requests would pass unseen. Without a regular expression, which not every nginx supports.
 */
static void put_upgrade(FILE *out)
{
	fputs("    # A GET may switch to WebSocket.\n"
	      "    map $request_method $once_wanted_upgrade {\n"
	      "        default \"\";\n"
	      "        GET $http_upgrade;\n"
	      "    }\n"
	      "    map $once_wanted_upgrade $once_upgrade {\n"
	      "        default \"\";\n"
	      "        websocket websocket;\n"
	      "    }\n"
	      "    map $once_upgrade $once_connection {\n"
	      "        default upgrade;\n"
	      "        \"\" \"\"; # nothing: the connection to the service is kept\n"
	      "    }\n\n",
	      out);
}

static void put_upstream(const gateway *gateway, FILE *out)
{
	upstream parsed;

	if (!parse_upstream(gateway->upstream, &parsed)) {
		return; /* gateway_validate has refused it */
	}
	fprintf(out,
	        "    upstream once_upstream {\n"
	        "        server %s;\n"
	        "        keepalive 64;\n"
	        "        # Shorter than what servers keep (5 s and more): a request that meets a closing connection is in "
	        "doubt.\n"
	        "        keepalive_timeout 4s;\n"
	        "    }\n\n",
	        parsed.address);
}

static void put_once(const gateway *gateway, FILE *out)
{
	bool none = strcmp(gateway->tenant, "none") == 0;

	fprintf(out, "            once %s;\n", gateway->required ? "required" : "on");
	if (gateway->scope != NULL) {
		fputs("            once_scope ", out);
		put_quoted(out, gateway->scope);
		fputs(";\n", out);
	}
	fprintf(out, "            once_tenant %s%s;\n", none ? "" : "$", variable_name(gateway->tenant));
	if (gateway->on_5xx != NULL) {
		fprintf(out, "            once_on_5xx %s;\n", gateway->on_5xx);
	}
}

static void put_proxy(const gateway *gateway, FILE *out)
{
	upstream parsed;

	if (!parse_upstream(gateway->upstream, &parsed)) {
		return;
	}
	fprintf(out,
	        "            proxy_pass %s://once_upstream;\n"
	        "            # A client that leaves must not cancel what it began, nor the storing of its answer.\n"
	        "            proxy_ignore_client_abort on;\n"
	        "            proxy_http_version 1.1;\n"
	        "            proxy_set_header Upgrade $once_upgrade;\n"
	        "            proxy_set_header Connection $once_connection;\n"
	        "            proxy_set_header Host $http_host;\n"
	        "            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n"
	        "            proxy_set_header X-Forwarded-Proto $scheme;\n"
	        "            proxy_connect_timeout 5s;\n"
	        "            proxy_send_timeout 30s;\n"
	        "            proxy_read_timeout %ds;\n",
	        parsed.tls ? "https" : "http", TIMEOUT_S);
	if (parsed.tls) {
		fprintf(out,
		        "            proxy_ssl_server_name on;\n"
		        "            proxy_ssl_name %s;\n"
		        "            proxy_ssl_verify on;\n"
		        "            proxy_ssl_verify_depth 5;\n"
		        "            proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;\n",
		        parsed.name);
	}
}

void gateway_print(const gateway *gateway, FILE *out)
{
	put_main(gateway, out);
	fputs("http {\n", out);
	put_http(gateway, out);
	put_upgrade(out);
	put_upstream(gateway, out);
	fprintf(out, "    server {\n        listen %s;\n\n        location / {\n", gateway->listen);
	put_once(gateway, out);
	put_proxy(gateway, out);
	fputs("        }\n\n"
	      "        # For load balancers: 200 with the database, 503 without.\n"
	      "        location = /once/ready {\n"
	      "            once_status ready;\n"
	      "            access_log off;\n"
	      "        }\n\n"
	      "        # JSON, or OpenMetrics text if the client asks for it. For this machine only.\n"
	      "        location = /once/status {\n"
	      "            once_status;\n"
	      "            access_log off;\n"
	      "            allow unix:;\n"
	      "            allow 127.0.0.0/8;\n"
	      "            allow ::1;\n"
	      "            deny all;\n"
	      "        }\n"
	      "    }\n"
	      "}\n",
	      out);
}

/* ---- Files ---- */

/* A new file in the directory. Its mode is set before anything is written to it. */
static FILE *create(const gateway *gateway, const char *name, mode_t mode)
{
	char *path = cli_format("%s/%s", gateway->directory, name);

	unlink(path);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
	if (file == NULL) {
		cli_fail(gateway->invocation, CLI_FAILED, NULL, "cannot write %s: %s", path, strerror(errno));
	}
	free(path);
	return file;
}

#define PASSFILE_NEW "passfile.new"

/* Under a temporary name until it is complete: a worker may connect at any time. */
static int copy_to_workers(const gateway *gateway, FILE *from)
{
	FILE *to = create(gateway, PASSFILE_NEW, 0600);
	char block[4096];
	size_t length;

	if (to == NULL) {
		return CLI_FAILED;
	}
	while ((length = fread(block, 1, sizeof block, from)) > 0) {
		fwrite(block, 1, length, to);
	}
	char *made = cli_format("%s/" PASSFILE_NEW, gateway->directory);
	char *path = cli_format("%s/passfile", gateway->directory);
	bool failed = ferror(from) || fchown(fileno(to), gateway->uid, gateway->gid) != 0;
	failed = fclose(to) != 0 || failed || rename(made, path) != 0;
	int result =
	    failed ? cli_fail(gateway->invocation, CLI_FAILED, NULL, "cannot write %s: %s", path, strerror(errno)) : CLI_OK;
	if (failed) {
		unlink(made);
	}
	free(path);
	free(made);
	return result;
}

int gateway_copy_passwords(const gateway *gateway, bool *copied)
{
	FILE *file = gateway->uid == 0 || gateway->passfile == NULL ? NULL : fopen(gateway->passfile, "re");
	struct stat status;
	int result = CLI_OK;

	/*
	 * The workers read their own password file themselves, at each connect. A file that libpq would
	 * refuse from root, because others can read it, is not copied either.
	 */
	*copied = file != NULL && fstat(fileno(file), &status) == 0 && status.st_uid != gateway->uid &&
	          S_ISREG(status.st_mode) && (status.st_mode & 0077) == 0;
	if (*copied) {
		result = copy_to_workers(gateway, file);
	}
	if (file != NULL) {
		fclose(file);
	}
	return result;
}

int gateway_write(const gateway *gateway, const char *conninfo)
{
	FILE *database = create(gateway, "database", 0600);
	FILE *configuration = database == NULL ? NULL : create(gateway, "nginx.conf", 0644);
	int result = CLI_FAILED;

	if (configuration != NULL) {
		fprintf(database, "%s\n", conninfo);
		gateway_print(gateway, configuration);
		result = CLI_OK;
	}
	if ((database != NULL && fclose(database) != 0) || (configuration != NULL && fclose(configuration) != 0)) {
		result = cli_fail(gateway->invocation, CLI_FAILED, NULL, "cannot write the configuration to %s: %s",
		                  gateway->directory, strerror(errno));
	}
	return result;
}

static void remove_files(const gateway *gateway, const char *const *names)
{
	for (; *names != NULL; names++) {
		char *path = cli_format("%s/%s", gateway->directory, *names);
		unlink(path);
		free(path);
	}
}

void gateway_forget(const gateway *gateway)
{
	remove_files(gateway, (const char *const[]){"database", "passfile", PASSFILE_NEW, NULL});
}

void gateway_remove(const gateway *gateway)
{
	static const char *const directories[] = {"client_body", "proxy", "fastcgi", "uwsgi", "scgi", "."};

	gateway_forget(gateway);
	remove_files(gateway, (const char *const[]){"nginx.conf", "nginx.pid", "nginx.lock", "access.log", NULL});
	for (size_t i = 0; i + 1 < sizeof directories / sizeof directories[0]; i++) {
		char *path = cli_format("%s/%s", gateway->directory, directories[i]);
		rmdir(path);
		free(path);
	}
	rmdir(gateway->directory);
}
