/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_module.c: the directives, how they are inherited, and where nginx calls the module.
 * tools/directives.py makes docs/reference/directives.md of it and of spec/directives.json.
 */
#include "ngx_http_once.h"

enum {
	METHODS_DEFAULT = NGX_HTTP_POST | NGX_HTTP_PATCH
};

static ngx_conf_enum_t modes[] = {{ngx_string("off"), GATE_OFF},
                                  {ngx_string("on"), GATE_ON},
                                  {ngx_string("required"), GATE_REQUIRED},
                                  {ngx_null_string, 0}};
static ngx_conf_enum_t syntaxes[] = {{ngx_string("lenient"), 0}, {ngx_string("strict"), 1}, {ngx_null_string, 0}};
static ngx_conf_enum_t doubts[] = {{ngx_string("hold"), 0}, {ngx_string("retry"), 1}, {ngx_null_string, 0}};
static ngx_conf_enum_t server_errors[] = {{ngx_string("in_doubt"), HTTP_EFFECT_UNKNOWN},
                                          {ngx_string("release"), HTTP_EFFECT_NONE},
                                          {ngx_string("store"), HTTP_EFFECT_DONE},
                                          {ngx_null_string, 0}};
static ngx_conf_enum_t fails[] = {{ngx_string("closed"), 0}, {ngx_string("open"), 1}, {ngx_null_string, 0}};
static ngx_conf_enum_t shown[] = {{ngx_string("hash"), 0}, {ngx_string("clear"), 1}, {ngx_null_string, 0}};
static ngx_conf_bitmask_t methods[] = {{ngx_string("POST"), NGX_HTTP_POST},
                                       {ngx_string("PUT"), NGX_HTTP_PUT},
                                       {ngx_string("PATCH"), NGX_HTTP_PATCH},
                                       {ngx_string("DELETE"), NGX_HTTP_DELETE},
                                       {ngx_null_string, 0}};
/* One bit higher than lib/http's: nginx needs the lowest one (NGX_CONF_BITMASK_SET). */
static ngx_conf_bitmask_t stored[] = {{ngx_string("2xx"), HTTP_STORED_2XX << 1},
                                      {ngx_string("3xx"), HTTP_STORED_3XX << 1},
                                      {ngx_string("4xx"), HTTP_STORED_4XX << 1},
                                      {ngx_null_string, 0}};

/* ---- one directive each ---- */

static ngx_http_complex_value_t *compile(ngx_conf_t *cf, ngx_str_t *text)
{
	ngx_http_complex_value_t *value = ngx_palloc(cf->pool, sizeof(*value));
	ngx_http_compile_complex_value_t compiling = {.cf = cf, .value = text, .complex_value = value};

	return value == NULL || ngx_http_compile_complex_value(&compiling) != NGX_OK ? NULL : value;
}

static char *set_value(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	ngx_http_complex_value_t **field = (ngx_http_complex_value_t **)((char *)conf + command->offset);
	ngx_str_t *value = cf->args->elts;

	if (*field != NGX_CONF_UNSET_PTR) {
		return "is duplicate";
	}
	if (value[1].len == 0) {
		return "must not be empty";
	}
	*field = compile(cf, &value[1]);
	return *field == NULL ? NGX_CONF_ERROR : NGX_CONF_OK;
}

static char *set_tenant(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	gate_location *location = conf;
	ngx_str_t *value = cf->args->elts;

	if (location->tenant_none != NGX_CONF_UNSET) {
		return "is duplicate";
	}
	location->tenant_none = ngx_strcmp(value[1].data, "none") == 0;
	if (location->tenant_none) {
		location->tenant = NULL;
		return NGX_CONF_OK;
	}
	return set_value(cf, command, conf);
}

static ngx_uint_t is_header_name(const ngx_str_t *name)
{
	for (size_t i = 0; i < name->len; i++) {
		u_char c = name->data[i];
		ngx_uint_t star = c == '*' && i + 1 == name->len;

		if (!isalnum(c) && c != '-' && c != '_' && c != '.' && !star) {
			return 0;
		}
	}
	return name->len > 0;
}

static char *set_headers(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	gate_location *location = conf;
	ngx_str_t *value = cf->args->elts;

	(void)command;
	if (location->headers != NGX_CONF_UNSET_PTR) {
		return "is duplicate";
	}
	location->headers = ngx_array_create(cf->pool, cf->args->nelts, sizeof(http_text));
	if (location->headers == NULL) {
		return NGX_CONF_ERROR;
	}
	for (ngx_uint_t i = 1; i < cf->args->nelts; i++) {
		http_text *name = ngx_array_push(location->headers);
		http_text text = {.data = (const char *)value[i].data, .length = value[i].len};

		if (name == NULL) {
			return NGX_CONF_ERROR;
		}
		if (!is_header_name(&value[i])) {
			ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
			                   "once_headers: \"%V\" is neither a header name nor a prefix that ends in '*'",
			                   &value[i]);
			return NGX_CONF_ERROR;
		}
		if (value[i].data[value[i].len - 1] != '*' && http_header_never(text)) {
			ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
			                   "once_headers: \"%V\" is never stored: it belongs to one answer only", &value[i]);
			return NGX_CONF_ERROR;
		}
		*name = text;
	}
	return NGX_CONF_OK;
}

static char *set_fingerprint(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	static const struct {
		ngx_str_t name;
		ngx_uint_t bit;
	} parts[] = {{ngx_string("method"), GATE_PRINT_METHOD},
	             {ngx_string("host"), GATE_PRINT_HOST},
	             {ngx_string("target"), GATE_PRINT_TARGET},
	             {ngx_string("content_type"), GATE_PRINT_TYPE},
	             {ngx_string("body"), GATE_PRINT_BODY}};
	gate_location *location = conf;
	ngx_str_t *value = cf->args->elts;

	(void)command;
	if (location->print != NGX_CONF_UNSET_UINT) {
		return "is duplicate";
	}
	location->print = 0;
	location->print_values = ngx_array_create(cf->pool, 2, sizeof(ngx_http_complex_value_t));
	for (ngx_uint_t i = 1; i < cf->args->nelts; i++) {
		ngx_uint_t bit = 0;

		for (ngx_uint_t n = 0; n < sizeof(parts) / sizeof(parts[0]); n++) {
			if (value[i].len == parts[n].name.len && ngx_strcmp(value[i].data, parts[n].name.data) == 0) {
				bit = parts[n].bit;
			}
		}
		if (bit == 0) {
			ngx_http_complex_value_t *compiled = compile(cf, &value[i]), *slot;

			if (compiled == NULL || compiled->lengths == NULL) {
				ngx_conf_log_error(
				    NGX_LOG_EMERG, cf, 0,
				    "once_fingerprint: \"%V\" is neither method, host, target, content_type, body nor a variable",
				    &value[i]);
				return NGX_CONF_ERROR;
			}
			slot = location->print_values == NULL ? NULL : ngx_array_push(location->print_values);
			if (slot == NULL) {
				return NGX_CONF_ERROR;
			}
			*slot = *compiled;
		}
		location->print |= bit;
	}
	return NGX_CONF_OK;
}

static char *set_release(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	gate_location *location = conf;
	ngx_str_t *value = cf->args->elts;

	(void)command;
	if (location->asking_ignored != NGX_CONF_UNSET) {
		return "is duplicate";
	}
	location->asking_ignored = cf->args->nelts == 2 && ngx_strcmp(value[1].data, "none") == 0;
	location->released = NULL;
	if (location->asking_ignored) {
		return NGX_CONF_OK;
	}
	location->released = ngx_pcalloc(cf->pool, sizeof(*location->released));
	if (location->released == NULL) {
		return NGX_CONF_ERROR;
	}
	for (ngx_uint_t i = 1; i < cf->args->nelts; i++) {
		if (!http_statuses_add(location->released, gate_text(value[i]))) {
			ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
			                   "once_release: \"%V\" is neither a status from 300 to 599, nor 4xx, nor, alone, none",
			                   &value[i]);
			return NGX_CONF_ERROR;
		}
	}
	return NGX_CONF_OK;
}

static char *set_problem_base(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	gate_location *location = conf;
	ngx_str_t *value = cf->args->elts;

	(void)command;
	if (location->problem_base.data != NULL) {
		return "is duplicate";
	}
	if (!http_problem_base_good((const char *)value[1].data)) {
		return "must be 1 to 256 characters that are allowed in a URI";
	}
	location->problem_base = value[1];
	return NGX_CONF_OK;
}

static char *set_status(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	ngx_http_core_loc_conf_t *core = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
	gate_location *location = conf;
	ngx_str_t *value = cf->args->elts;

	(void)command;
	if (location->status != NGX_CONF_UNSET_UINT) {
		return "is duplicate";
	}
	location->status = 1;
	if (cf->args->nelts == 2) {
		if (ngx_strcmp(value[1].data, "json") == 0) {
			location->status = 2;
		} else if (ngx_strcmp(value[1].data, "metrics") == 0) {
			location->status = 3;
		} else if (ngx_strcmp(value[1].data, "ready") == 0) {
			core->handler = gate_ready_handler;
			return NGX_CONF_OK;
		} else {
			return "takes json, metrics or ready, or nothing: then the request's Accept header decides";
		}
	}
	core->handler = gate_status_handler;
	return NGX_CONF_OK;
}

static ngx_conf_num_bounds_t key_length_bounds = {ngx_conf_check_num_bounds, 1, ONCE_KEY_BYTES_MAX};
static ngx_conf_num_bounds_t batch_max_bounds = {ngx_conf_check_num_bounds, 1, 65536};

#define EVERYWHERE (NGX_HTTP_MAIN_CONF | NGX_HTTP_SRV_CONF | NGX_HTTP_LOC_CONF)
#define MAIN_DIRECTIVE(name, arguments, set, field, post)                                                              \
	{                                                                                                                  \
		ngx_string(name), NGX_HTTP_MAIN_CONF | (arguments), set, NGX_HTTP_MAIN_CONF_OFFSET,                            \
		    offsetof(gate_main, field), post                                                                           \
	}
#define DIRECTIVE(name, arguments, set, field, post)                                                                   \
	{                                                                                                                  \
		ngx_string(name), EVERYWHERE | (arguments), set, NGX_HTTP_LOC_CONF_OFFSET, offsetof(gate_location, field),     \
		    post                                                                                                       \
	}

static ngx_command_t commands[] = {
    MAIN_DIRECTIVE("once_database", NGX_CONF_TAKE1, gate_database_set, nodes, NULL),
    MAIN_DIRECTIVE("once_nodes", NGX_CONF_TAKE1, gate_nodes_set, nodes, NULL),
    MAIN_DIRECTIVE("once_timeout", NGX_CONF_TAKE1, ngx_conf_set_msec_slot, timeout_ms, NULL),
    MAIN_DIRECTIVE("once_prepare", NGX_CONF_FLAG, ngx_conf_set_flag_slot, prepare, NULL),
    MAIN_DIRECTIVE("once_batch_max", NGX_CONF_TAKE1, ngx_conf_set_num_slot, batch_max, &batch_max_bounds),
    MAIN_DIRECTIVE("once_batch_bytes", NGX_CONF_TAKE1, ngx_conf_set_size_slot, batch_bytes_max, NULL),
    MAIN_DIRECTIVE("once_replay_memory", NGX_CONF_TAKE1, ngx_conf_set_size_slot, replay_bytes_max, NULL),
    MAIN_DIRECTIVE("once_replay_cache", NGX_CONF_TAKE1, gate_cache_set, cache_zone, NULL),
    MAIN_DIRECTIVE("once_batch_age", NGX_CONF_TAKE1, ngx_conf_set_msec_slot, batch_age_ms, NULL),
    DIRECTIVE("once", NGX_CONF_TAKE1, ngx_conf_set_enum_slot, mode, &modes),
    DIRECTIVE("once_scope", NGX_CONF_TAKE1, set_value, scope, NULL),
    DIRECTIVE("once_tenant", NGX_CONF_TAKE1, set_tenant, tenant, NULL),
    DIRECTIVE("once_key", NGX_CONF_TAKE1, set_value, key, NULL),
    DIRECTIVE("once_key_syntax", NGX_CONF_TAKE1, ngx_conf_set_enum_slot, key_strict, &syntaxes),
    DIRECTIVE("once_key_length", NGX_CONF_TAKE1, ngx_conf_set_num_slot, key_length, &key_length_bounds),
    DIRECTIVE("once_methods", NGX_CONF_1MORE, ngx_conf_set_bitmask_slot, methods, &methods),
    DIRECTIVE("once_lease", NGX_CONF_TAKE1, ngx_conf_set_msec_slot, lease_ms, NULL),
    DIRECTIVE("once_retention", NGX_CONF_TAKE1, ngx_conf_set_msec_slot, retention_ms, NULL),
    DIRECTIVE("once_wait", NGX_CONF_TAKE1, ngx_conf_set_msec_slot, wait_ms, NULL),
    DIRECTIVE("once_body_max", NGX_CONF_TAKE1, ngx_conf_set_size_slot, body_bytes_max, NULL),
    DIRECTIVE("once_response_max", NGX_CONF_TAKE1, ngx_conf_set_size_slot, response_bytes_max, NULL),
    DIRECTIVE("once_headers", NGX_CONF_1MORE, set_headers, headers, NULL),
    DIRECTIVE("once_store", NGX_CONF_1MORE, ngx_conf_set_bitmask_slot, stored, &stored),
    DIRECTIVE("once_on_5xx", NGX_CONF_TAKE1, ngx_conf_set_enum_slot, server_errors, &server_errors),
    DIRECTIVE("once_release", NGX_CONF_1MORE, set_release, released, NULL),
    DIRECTIVE("once_in_doubt", NGX_CONF_TAKE1, ngx_conf_set_enum_slot, doubt_retries, &doubts),
    DIRECTIVE("once_fail", NGX_CONF_TAKE1, ngx_conf_set_enum_slot, fails_open, &fails),
    DIRECTIVE("once_fingerprint", NGX_CONF_1MORE, set_fingerprint, print, NULL),
    DIRECTIVE("once_canonical_json", NGX_CONF_FLAG, ngx_conf_set_flag_slot, canonical_json, NULL),
    DIRECTIVE("once_handoff", NGX_CONF_FLAG, ngx_conf_set_flag_slot, handoff, NULL),
    DIRECTIVE("once_log_keys", NGX_CONF_TAKE1, ngx_conf_set_enum_slot, log_clear, &shown),
    DIRECTIVE("once_problem_base", NGX_CONF_TAKE1, set_problem_base, problem_base, NULL),
    {ngx_string("once_status"), NGX_HTTP_LOC_CONF | NGX_CONF_TAKE1 | NGX_CONF_NOARGS, set_status,
     NGX_HTTP_LOC_CONF_OFFSET, 0, NULL},
    ngx_null_command};

/* ---- configuration ---- */

static void *create_main(ngx_conf_t *cf)
{
	gate_main *conf = ngx_pcalloc(cf->pool, sizeof(*conf));

	if (conf != NULL) {
		conf->timeout_ms = NGX_CONF_UNSET_MSEC;
		conf->batch_age_ms = NGX_CONF_UNSET_MSEC;
		conf->batch_max = NGX_CONF_UNSET_UINT;
		conf->batch_bytes_max = conf->replay_bytes_max = NGX_CONF_UNSET_SIZE;
		conf->prepare = NGX_CONF_UNSET;
		if (ngx_array_init(&conf->locations, cf->pool, 8, sizeof(gate_place)) != NGX_OK ||
		    ngx_array_init(&conf->nodes, cf->pool, 1, sizeof(gate_node_conf)) != NGX_OK) {
			return NULL;
		}
	}
	return conf;
}

static char *init_main(ngx_conf_t *cf, void *main)
{
	gate_main *conf = main;

	ngx_conf_init_msec_value(conf->timeout_ms, 5000);
	ngx_conf_init_msec_value(conf->batch_age_ms, 0);
	ngx_conf_init_uint_value(conf->batch_max, 256);
	ngx_conf_init_size_value(conf->batch_bytes_max, 8 * 1024 * 1024);
	ngx_conf_init_size_value(conf->replay_bytes_max, 64 * 1024 * 1024);
	ngx_conf_init_value(conf->prepare, 0);
	if (conf->timeout_ms == 0) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "once_timeout must not be 0: every request would fail");
		return NGX_CONF_ERROR;
	}
	if (conf->timeout_ms > GATE_LONGEST_MS || conf->batch_age_ms > GATE_LONGEST_MS) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s must be at most 7d",
		                   conf->timeout_ms > GATE_LONGEST_MS ? "once_timeout" : "once_batch_age");
		return NGX_CONF_ERROR;
	}
	return NGX_CONF_OK;
}

static void *create_location(ngx_conf_t *cf)
{
	gate_location *conf = ngx_pcalloc(cf->pool, sizeof(*conf));

	if (conf != NULL) {
		conf->mode = conf->key_strict = conf->key_length = NGX_CONF_UNSET_UINT;
		conf->doubt_retries = conf->fails_open = conf->print = conf->log_clear = conf->status = NGX_CONF_UNSET_UINT;
		conf->server_errors = NGX_CONF_UNSET_UINT;
		conf->scope = conf->tenant = conf->key = NGX_CONF_UNSET_PTR;
		conf->headers = NGX_CONF_UNSET_PTR;
		conf->asking_ignored = NGX_CONF_UNSET;
		conf->lease_ms = conf->retention_ms = conf->wait_ms = NGX_CONF_UNSET_MSEC;
		conf->body_bytes_max = conf->response_bytes_max = NGX_CONF_UNSET_SIZE;
		conf->tenant_none = conf->canonical_json = conf->handoff = NGX_CONF_UNSET;
	}
	return conf;
}

/*
 * The name, in lower case with '_', if the value is exactly one header; else empty. A key or a
 * tenant must come in one header line: the name is needed to count the lines.
 */
static ngx_int_t find_header(ngx_conf_t *cf, const ngx_http_complex_value_t *value, ngx_str_t *header)
{
	ngx_str_t name;

	ngx_str_null(header);
	if (value == NULL) {
		return NGX_OK;
	}
	name = value->value;
	if (name.len > 2 && name.data[1] == '{' && name.data[name.len - 1] == '}') {
		/* ${name} */
		name.data++;
		name.len -= 2;
	}
	if (value->value.data[0] != '$' || name.len <= 6 || ngx_strncasecmp(name.data + 1, (u_char *)"http_", 5) != 0) {
		return NGX_OK;
	}
	for (size_t i = 6; i < name.len; i++) {
		u_char c = name.data[i];

		if (!isalnum(c) && c != '_') {
			return NGX_OK;
		}
	}
	header->len = name.len - 6;
	header->data = ngx_pnalloc(cf->pool, header->len);
	if (header->data == NULL) {
		return NGX_ERROR;
	}
	ngx_strlow(header->data, name.data + 6, header->len);
	return NGX_OK;
}

/* Locations of two servers may share a name: the server's first name, if any, comes first. */
static ngx_int_t name_scope(ngx_conf_t *cf, gate_location *conf, const ngx_http_core_loc_conf_t *core)
{
	ngx_http_core_srv_conf_t *server = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

	conf->scope_default.data = ngx_pnalloc(cf->pool, server->server_name.len + core->name.len);
	if (conf->scope_default.data == NULL) {
		return NGX_ERROR;
	}
	conf->scope_default.len =
	    (size_t)(ngx_sprintf(conf->scope_default.data, "%V%V", &server->server_name, &core->name) -
	             conf->scope_default.data);
	return NGX_OK;
}

static ngx_int_t find_headers(ngx_conf_t *cf, gate_location *conf)
{
	static ngx_str_t text = ngx_string("$http_idempotency_key");

	if (conf->key == NULL) {
		conf->key = compile(cf, &text);
	}
	return conf->key == NULL || find_header(cf, conf->key, &conf->key_header) != NGX_OK
	           ? NGX_ERROR
	           : find_header(cf, conf->tenant, &conf->tenant_header);
}

static char *merge_location(ngx_conf_t *cf, void *parent, void *child)
{
	ngx_http_core_loc_conf_t *core = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
	gate_location *prev = parent, *conf = child;
	gate_main *main = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);
	ngx_http_conf_ctx_t *context = cf->ctx;
	gate_place *place;
	ngx_uint_t explicit = conf->mode != NGX_CONF_UNSET_UINT;

	ngx_conf_merge_uint_value(conf->mode, prev->mode, GATE_OFF);
	ngx_conf_merge_ptr_value(conf->scope, prev->scope, NULL);
	if (conf->tenant_none == NGX_CONF_UNSET) {
		conf->tenant_none = prev->tenant_none;
		conf->tenant = prev->tenant;
	}
	ngx_conf_merge_ptr_value(conf->tenant, prev->tenant, NULL);
	ngx_conf_merge_ptr_value(conf->key, prev->key, NULL);
	ngx_conf_merge_uint_value(conf->key_strict, prev->key_strict, 0);
	ngx_conf_merge_uint_value(conf->key_length, prev->key_length, ONCE_KEY_BYTES_MAX);
	ngx_conf_merge_bitmask_value(conf->methods, prev->methods, (NGX_CONF_BITMASK_SET | METHODS_DEFAULT));
	ngx_conf_merge_msec_value(conf->lease_ms, prev->lease_ms, 30000);
	ngx_conf_merge_msec_value(conf->retention_ms, prev->retention_ms, 0);
	ngx_conf_merge_msec_value(conf->wait_ms, prev->wait_ms, 0);
	ngx_conf_merge_size_value(conf->body_bytes_max, prev->body_bytes_max, 16 * 1024 * 1024);
	ngx_conf_merge_size_value(conf->response_bytes_max, prev->response_bytes_max, 1024 * 1024);
	ngx_conf_merge_ptr_value(conf->headers, prev->headers, NULL);
	ngx_conf_merge_bitmask_value(conf->stored, prev->stored, (NGX_CONF_BITMASK_SET | HTTP_STORED_DEFAULT << 1));
	ngx_conf_merge_uint_value(conf->server_errors, prev->server_errors, HTTP_EFFECT_UNKNOWN);
	if (conf->asking_ignored == NGX_CONF_UNSET) {
		conf->asking_ignored = prev->asking_ignored;
		conf->released = prev->released;
	}
	ngx_conf_merge_uint_value(conf->doubt_retries, prev->doubt_retries, 0);
	ngx_conf_merge_uint_value(conf->fails_open, prev->fails_open, 0);
	if (conf->print == NGX_CONF_UNSET_UINT) {
		conf->print = prev->print == NGX_CONF_UNSET_UINT ? GATE_PRINT_DEFAULT : prev->print;
		conf->print_values = prev->print_values;
	}
	ngx_conf_merge_value(conf->canonical_json, prev->canonical_json, 0);
	ngx_conf_merge_value(conf->handoff, prev->handoff, 1);
	ngx_conf_merge_uint_value(conf->log_clear, prev->log_clear, 0);
	ngx_conf_merge_str_value(conf->problem_base, prev->problem_base, "");
	if (conf->status == NGX_CONF_UNSET_UINT) {
		conf->status = 0;
	}
	if (name_scope(cf, conf, core) != NGX_OK) {
		return NGX_CONF_ERROR;
	}
	/* if and limit_except are separate locations that keep the outer one's handler. */
	conf->serves = core->handler != NULL || (core->noname && prev->serves);
	if (conf->mode == GATE_OFF || find_headers(cf, conf) != NGX_OK) {
		return conf->mode == GATE_OFF ? NGX_CONF_OK : NGX_CONF_ERROR;
	}
	/* Without a content handler nothing runs here that needs protection. */
	if (core->name.len == 0 || (!explicit && !conf->serves)) {
		return NGX_CONF_OK;
	}
	/* Checked when all modules have merged inherited settings: some come after this one. */
	place = ngx_array_push(&main->locations);
	if (place == NULL) {
		return NGX_CONF_ERROR;
	}
	*place = (gate_place){.location = context->loc_conf, .server = context->srv_conf};
	return NGX_CONF_OK;
}

static ngx_int_t push_handler(ngx_http_core_main_conf_t *core, ngx_http_phases phase, ngx_http_handler_pt handler)
{
	ngx_http_handler_pt *slot = ngx_array_push(&core->phases[phase].handlers);

	if (slot == NULL) {
		return NGX_ERROR;
	}
	*slot = handler;
	return NGX_OK;
}

static ngx_int_t hook(ngx_conf_t *cf)
{
	ngx_http_core_main_conf_t *core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
	gate_main *conf = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);

	if (conf->locations.nelts == 0 && conf->nodes.nelts == 0) {
		return NGX_OK;
	}
	if (conf->nodes.nelts == 0) {
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
		                   "once is on, but there is no once_database, the database of the intents: add it to http");
		return NGX_ERROR;
	}
	if (gate_locations_check(cf, conf) != NGX_OK) {
		return NGX_ERROR;
	}
	/* A replay needs the same rights as its original. Strip headers before anything reads them. */
	if (push_handler(core, NGX_HTTP_POST_READ_PHASE, gate_request_strip) != NGX_OK ||
	    push_handler(core, NGX_HTTP_PRECONTENT_PHASE, gate_walk_phase) != NGX_OK ||
	    gate_status_zone(cf, conf) != NGX_OK) {
		return NGX_ERROR;
	}
	gate_answer_filters();
	return NGX_OK;
}

static ngx_int_t start(ngx_cycle_t *cycle)
{
	gate_main *conf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_once_module);

	if (conf == NULL || conf->nodes.nelts == 0 ||
	    (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)) {
		return NGX_OK;
	}
	if (gate_database_start(cycle, conf) != NGX_OK) {
		return NGX_ERROR;
	}
	gate_nodes_start(conf);
	gate_status_start(conf);
	gate_cache_start(conf);
	return NGX_OK;
}

static void stop(ngx_cycle_t *cycle)
{
	(void)cycle;
	gate_cache_stop();
	gate_status_stop();
	gate_database_stop();
}

static ngx_http_module_t context = {
    .preconfiguration = gate_variables_add,
    .postconfiguration = hook,
    .create_main_conf = create_main,
    .init_main_conf = init_main,
    .create_loc_conf = create_location,
    .merge_loc_conf = merge_location,
};

ngx_module_t ngx_http_once_module = {
    NGX_MODULE_V1, &context,
    commands,      NGX_HTTP_MODULE,
    NULL,  /* init master */
    NULL,  /* init module */
    start, /* init process */
    NULL,          NULL,
    stop, /* exit process */
    NULL,          NGX_MODULE_V1_PADDING,
};
