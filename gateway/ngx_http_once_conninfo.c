/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_conninfo.c: once_database and once_nodes: the connection strings, which nginx reads
 * with its configuration. A string may contain a password, so none of it is ever shown.
 */
#include "ngx_http_once.h"

enum {
	FILE_BYTES_MAX = 1024 * 1024
};

static ngx_uint_t is_address(const char *host)
{
	return host[0] == '/' || host[0] == '@' ||
	       ngx_inet_addr((u_char *)(uintptr_t)host, ngx_strlen(host)) != INADDR_NONE || ngx_strchr(host, ':') != NULL;
}

/* "" if it is not given. */
static const char *value_of(const PQconninfoOption *options, const char *keyword)
{
	for (; options->keyword != NULL; options++) {
		if (ngx_strcmp(options->keyword, keyword) == 0) {
			return options->val == NULL ? "" : options->val;
		}
	}
	return "";
}

/* For a host name libpq calls the resolver at each connect, and all the worker's requests wait. */
static void warn_of_names(ngx_conf_t *cf, const PQconninfoOption *options, const char *place)
{
	const char *host = value_of(options, "host");

	if (host[0] != '\0' && value_of(options, "hostaddr")[0] == '\0' && !is_address(host)) {
		ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
		                   "%s: looking up the name \"%s\" blocks the whole worker: add hostaddr=, "
		                   "or name a socket directory",
		                   place, host);
	}
}

/* NULL: refused, as logged. place: how the log names it. */
static PQconninfoOption *parse(ngx_conf_t *cf, const ngx_str_t *conninfo, const char *place, const char *advice)
{
	char *fault = NULL;
	PQconninfoOption *options = PQconninfoParse((const char *)conninfo->data, &fault);

	if (options == NULL) {
		/* The full message may quote the string. */
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s: libpq cannot read this connection string%s: %s", place,
		                   fault == NULL ? " (no memory)" : "", advice);
		PQfreemem(fault);
		return NULL;
	}
	warn_of_names(cf, options, place);
	return options;
}

/* A terminated copy of what the file contains. data NULL: refused, as logged. */
static ngx_str_t read_file(ngx_conf_t *cf, const ngx_str_t *path, const char *directive, size_t bytes_max)
{
	ngx_str_t text = ngx_null_string;
	ngx_fd_t fd = ngx_open_file(path->data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);
	ssize_t length = 0;

	if (fd == NGX_INVALID_FILE) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno, "%s: the file \"%V\" cannot be opened", directive, path);
		return text;
	}
	text.data = ngx_pnalloc(cf->pool, bytes_max + 1);
	while (text.data != NULL && text.len < bytes_max &&
	       (length = ngx_read_fd(fd, text.data + text.len, bytes_max - text.len)) > 0) {
		text.len += (size_t)length;
	}
	if (length < 0) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno, "%s: the file \"%V\" cannot be read", directive, path);
		text.data = NULL;
	}
	(void)ngx_close_file(fd);
	if (text.data != NULL) {
		text.data[text.len] = '\0';
	}
	return text;
}

/* NULL: no memory. */
static gate_node_conf *push_node(gate_main *main, ngx_str_t conninfo)
{
	gate_node_conf *node = ngx_array_push(&main->nodes);

	if (node != NULL) {
		*node = (gate_node_conf){.conninfo = conninfo};
	}
	return node;
}

/* ---- once_database ---- */

/* A connection string, or a file that contains one: a path that begins with a slash. */
static char *read_conninfo(ngx_conf_t *cf, const ngx_str_t *value, ngx_str_t *conninfo)
{
	enum {
		BYTES_MAX = 4096
	};

	if (value->len == 0) {
		return "is empty: write a connection string, or the path of a file with one";
	}
	if (value->data[0] != '/') {
		*conninfo = *value; /* the parser of the configuration has terminated it */
		return NGX_CONF_OK;
	}
	*conninfo = read_file(cf, value, "once_database", BYTES_MAX);
	if (conninfo->data == NULL) {
		return NGX_CONF_ERROR;
	}
	while (conninfo->len > 0 && ngx_strchr("\n\r ", conninfo->data[conninfo->len - 1]) != NULL) {
		conninfo->data[--conninfo->len] = '\0';
	}
	if (conninfo->len == 0 || conninfo->len == BYTES_MAX || ngx_strlen(conninfo->data) != conninfo->len) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
		                   "once_database: the file \"%V\" must contain one connection string of less than %d bytes",
		                   value, BYTES_MAX);
		return NGX_CONF_ERROR;
	}
	return NGX_CONF_OK;
}

char *gate_database_set(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	gate_main *main = conf;
	ngx_str_t *value = cf->args->elts, conninfo;
	PQconninfoOption *options;
	char *rc;

	(void)command;
	if (main->nodes.nelts > 0) {
		return main->nodes_set ? "and once_nodes exclude each other" : "is duplicate";
	}
	rc = read_conninfo(cf, &value[1], &conninfo);
	if (rc != NGX_CONF_OK) {
		return rc;
	}
	options =
	    parse(cf, &conninfo, "once_database",
	          "write keyword=value pairs or a postgresql:// URI, or the absolute path of a file that contains one");
	if (options == NULL) {
		return NGX_CONF_ERROR;
	}
	PQconninfoFree(options);
	return push_node(main, conninfo) == NULL ? NGX_CONF_ERROR : NGX_CONF_OK;
}

/* ---- once_nodes ---- */

/* HOST/DATABASE, for logs and the status page; if two lines have the same, with the line. */
static ngx_int_t name_node(ngx_conf_t *cf, gate_main *main, gate_node_conf *node, const PQconninfoOption *options,
                           ngx_uint_t line)
{
	const char *host = value_of(options, "host"), *port = value_of(options, "port");
	const char *dbname = value_of(options, "dbname");
	gate_node_conf *others = main->nodes.elts;
	size_t room;

	host = host[0] != '\0' ? host : value_of(options, "hostaddr");
	room = ngx_strlen(host) + ngx_strlen(port) + ngx_strlen(dbname) + sizeof(":/ (line )") + NGX_INT_T_LEN;
	node->name.data = ngx_pnalloc(cf->pool, room);
	if (node->name.data == NULL) {
		return NGX_ERROR;
	}
	*ngx_sprintf(node->name.data, "%s%s%s/%s", host, port[0] == '\0' ? "" : ":", port, dbname) = '\0';
	/* A name of one line only hints at the database of a service file. */
	for (ngx_uint_t i = 0; &others[i] != node; i++) {
		if (ngx_strcmp(others[i].name.data, node->name.data) == 0) {
			*ngx_sprintf(node->name.data + ngx_strlen(node->name.data), " (line %ui)", line) = '\0';
			break;
		}
	}
	node->name.len = ngx_strlen(node->name.data);
	return NGX_OK;
}

static ngx_int_t add_node(ngx_conf_t *cf, gate_main *main, const ngx_str_t *path, ngx_uint_t line, ngx_str_t conninfo)
{
	u_char place[512];
	PQconninfoOption *options;
	gate_node_conf *node, *nodes = main->nodes.elts;
	ngx_int_t rc;

	*ngx_snprintf(place, sizeof(place) - 1, "once_nodes: line %ui of \"%V\"", line, path) = '\0';
	if (main->nodes.nelts == GATE_NODES_MAX) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s: a file has at most %d nodes: the tenants have only so many slots",
		                   place, GATE_NODES_MAX);
		return NGX_ERROR;
	}
	while (isspace(conninfo.data[conninfo.len - 1])) {
		conninfo.data[--conninfo.len] = '\0';
	}
	for (ngx_uint_t i = 0; i < main->nodes.nelts; i++) {
		if (ngx_strcmp(nodes[i].conninfo.data, conninfo.data) == 0) {
			ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s is there twice: remove one of them", place);
			return NGX_ERROR;
		}
	}
	options = parse(cf, &conninfo, (const char *)place, "write keyword=value pairs or a postgresql:// URI");
	node = options == NULL ? NULL : push_node(main, conninfo);
	rc = node == NULL ? NGX_ERROR : name_node(cf, main, node, options, line);
	PQconninfoFree(options);
	return rc;
}

/* As pgonce doctor --nodes reads it: a connection string per line, blank lines, comments. */
char *gate_nodes_set(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	gate_main *main = conf;
	ngx_str_t *value = cf->args->elts, path = value[1], text;
	ngx_uint_t line = 1;
	u_char *at, *next;

	(void)command;
	if (main->nodes.nelts > 0) {
		return main->nodes_set ? "is duplicate" : "and once_database exclude each other";
	}
	if (path.len == 0) {
		return "is empty: write the path of a file with a connection string per line";
	}
	if (ngx_conf_full_name(cf->cycle, &path, 1) != NGX_OK) {
		return NGX_CONF_ERROR;
	}
	text = read_file(cf, &path, "once_nodes", FILE_BYTES_MAX);
	if (text.data == NULL) {
		return NGX_CONF_ERROR;
	}
	if (text.len == FILE_BYTES_MAX || ngx_strlen(text.data) != text.len) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "once_nodes: the file \"%V\" %s", &path,
		                   text.len == FILE_BYTES_MAX ? "is too large: at most 1 MB" : "contains a zero byte");
		return NGX_CONF_ERROR;
	}
	for (at = text.data; at != NULL; at = next, line++) {
		next = (u_char *)ngx_strchr(at, '\n');
		if (next != NULL) {
			*next++ = '\0';
		}
		while (isspace(*at)) {
			at++;
		}
		if (*at != '\0' && *at != '#' &&
		    add_node(cf, main, &path, line, (ngx_str_t){.data = at, .len = ngx_strlen(at)}) != NGX_OK) {
			return NGX_CONF_ERROR;
		}
	}
	if (main->nodes.nelts == 0) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
		                   "once_nodes: the file \"%V\" names no node: write one connection string per line", &path);
		return NGX_CONF_ERROR;
	}
	main->nodes_set = 1;
	return NGX_CONF_OK;
}
