/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_check.c: configurations of a protected location that nginx -t refuses, because an
 * effect could happen twice, an answer could be another caller's or not be replayed. Each refusal
 * gives the reason and what to write instead; docs/reference/gateway.md lists them. Called once all
 * configurations are merged.
 */
#include "ngx_http_once.h"

#if (NGX_HTTP_SSL)
#include <ngx_http_ssl_module.h>
#endif

/* Each begins with an ngx_http_upstream_conf_t. nginx may be built without some. */
static const struct {
	const char *module;
	const char *prefix;
} upstreams[] = {{"ngx_http_proxy_module", "proxy"}, {"ngx_http_fastcgi_module", "fastcgi"},
                 {"ngx_http_uwsgi_module", "uwsgi"}, {"ngx_http_scgi_module", "scgi"},
                 {"ngx_http_grpc_module", "grpc"},   {"ngx_http_memcached_module", "memcached"}};

static void *find_conf(ngx_conf_t *cf, void **confs, const char *name)
{
	for (ngx_uint_t i = 0; cf->cycle->modules[i] != NULL; i++) {
		if (ngx_strcmp(cf->cycle->modules[i]->name, name) == 0) {
			return confs[cf->cycle->modules[i]->ctx_index];
		}
	}
	return NULL;
}

/* what: format of the sentence, which names the directive. */
#define REFUSE(cf, core, ...)                                                                                          \
	do {                                                                                                               \
		u_char sentence[512];                                                                                          \
                                                                                                                       \
		*ngx_snprintf(sentence, sizeof(sentence) - 1, __VA_ARGS__) = '\0';                                             \
		ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "once in location \"%V\": %s", &(core)->name, sentence);              \
		return NGX_CONF_ERROR;                                                                                         \
	} while (0)

static char *check_values(ngx_conf_t *cf, const gate_location *location, const ngx_http_core_loc_conf_t *core)
{
	gate_main *main = ngx_http_conf_get_module_main_conf(cf, ngx_http_once_module);

	if (location->tenant == NULL && location->tenant_none != 1) {
		REFUSE(cf, core,
		       "whose keys are these? Write once_tenant with a variable that names the authenticated caller, or "
		       "once_tenant none if there is only one: in a shared key space one client could read another's answer");
	}
	if (!((location->stored >> 1) & HTTP_STORED_2XX)) {
		REFUSE(cf, core, "once_store must have 2xx: a success that is not stored could not be replayed");
	}
	if (location->lease_ms < 1000) {
		REFUSE(cf, core, "once_lease must be at least 1s: it is renewed after a third of it");
	}
	if (location->lease_ms > GATE_LONGEST_MS) {
		REFUSE(cf, core, "once_lease must be at most 7d, which is the longest that the database grants");
	}
	if (location->response_bytes_max > 64 * 1024 * 1024 || location->response_bytes_max == 0) {
		REFUSE(cf, core,
		       "once_response_max must be between 1 and 64m: an answer is held in memory, and no scope stores a larger "
		       "one");
	}
	if (location->canonical_json && location->body_bytes_max > 64 * 1024 * 1024) {
		REFUSE(cf, core, "once_canonical_json needs once_body_max of at most 64m: the body is sorted in memory");
	}
	if (core->send_timeout <= 3 * main->timeout_ms) {
		REFUSE(cf, core,
		       "send_timeout (%M ms) must be more than three times once_timeout: it runs while an answer waits to be "
		       "stored",
		       core->send_timeout);
	}
	return NGX_CONF_OK;
}

/* ---- whose keys these are ---- */

/*
 * Strangers can write these into certificates that they make. The certificate itself, or its
 * fingerprint, cannot be copied: it needs the key.
 */
static ngx_uint_t is_written_in_certificate(const ngx_str_t *name)
{
	static const ngx_str_t prefixes[] = {ngx_string("ssl_client_s_dn"), ngx_string("ssl_client_i_dn"),
	                                     ngx_string("ssl_client_serial"), ngx_string("ssl_client_v_")};

	for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
		if (name->len >= prefixes[i].len && ngx_strncasecmp(name->data, prefixes[i].data, prefixes[i].len) == 0) {
			return 1;
		}
	}
	return 0;
}

/* Is a certificate that reaches a request of this server always issued by a known authority? */
static ngx_uint_t verifies_certificates(ngx_conf_t *cf, const gate_place *place)
{
#if (NGX_HTTP_SSL)
	enum {
		VERIFY_ON = 1,
		VERIFY_OPTIONAL = 2
	}; /* ngx_http_ssl_module.c: ngx_http_ssl_verify */
	ngx_http_ssl_srv_conf_t *ssl = find_conf(cf, place->server, "ngx_http_ssl_module");

	return ssl != NULL && (ssl->verify == VERIFY_ON || ssl->verify == VERIFY_OPTIONAL);
#else
	return 0;
#endif
}

/* Does a subrequest decide about access? With satisfy any, it may not have been asked. */
static ngx_uint_t asks_elsewhere(ngx_conf_t *cf, const gate_place *place, const ngx_http_core_loc_conf_t *core)
{
	/* its first member */
	ngx_str_t *uri = find_conf(cf, place->location, "ngx_http_auth_request_module");

	return uri != NULL && uri->len > 0 && core->satisfy != NGX_HTTP_SATISFY_ANY;
}

static ngx_uint_t checks_passwords(ngx_conf_t *cf, const gate_place *place)
{
	ngx_http_complex_value_t **realm =
	    find_conf(cf, place->location, "ngx_http_auth_basic_module"); /* its first member */

	return realm != NULL && *realm != NULL &&
	       ((*realm)->value.len != 3 || ngx_strncmp((*realm)->value.data, "off", 3) != 0);
}

static char *check_user(ngx_conf_t *cf, const gate_place *place, const gate_location *location,
                        const ngx_http_core_loc_conf_t *core)
{
	if (core->satisfy == NGX_HTTP_SATISFY_ANY) {
		REFUSE(cf, core,
		       "with satisfy any, a client from an allowed address may write any name into $remote_user: write "
		       "satisfy all, or another once_tenant");
	}
	/* All protected methods may be in a limit_except block, which is a separate location here. */
	if (!checks_passwords(cf, place) && !asks_elsewhere(cf, place, core) &&
	    (location->methods & ~core->limit_except) > 1) {
		ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
		                   "once in location \"%V\": nginx checks no password here, and without that $remote_user is "
		                   "any name that a client writes: a client that writes another's name gets that caller's "
		                   "stored answers. Add auth_basic, unless another module checks it",
		                   &core->name);
	}
	return NGX_CONF_OK;
}

/* The next variable of a text, without '$' and braces. 0: no more. */
static ngx_uint_t next_variable(ngx_str_t *text, ngx_str_t *name)
{
	while (text->len > 0) {
		u_char c = *text->data++;

		text->len--;
		if (c != '$') {
			continue;
		}
		if (text->len > 0 && *text->data == '{') {
			text->data++;
			text->len--;
		}
		name->data = text->data;
		for (name->len = 0;
		     name->len < text->len && (isalnum(name->data[name->len]) || name->data[name->len] == '_');) {
			name->len++;
		}
		return 1;
	}
	return 0;
}

/* The caller's name must come from a proof. A variable set by map or set is not checked further. */
static char *check_tenant(ngx_conf_t *cf, const gate_place *place, gate_location *location,
                          const ngx_http_core_loc_conf_t *core)
{
	static const ngx_str_t user = ngx_string("remote_user");
	const ngx_http_complex_value_t *value = location->tenant != NULL ? location->tenant : location->scope;
	ngx_str_t text, name;
	char *rc = NGX_CONF_OK;

	if (value == NULL) {
		return NGX_CONF_OK;
	}
	text = value->value;
	while (rc == NGX_CONF_OK && next_variable(&text, &name)) {
		ngx_uint_t is_written = is_written_in_certificate(&name);

		location->tenant_verified |= is_written && verifies_certificates(cf, place);
		if (is_written && !verifies_certificates(cf, place) && !asks_elsewhere(cf, place, core)) {
			REFUSE(cf, core,
			       "anyone can make a certificate with another's $%V: write ssl_verify_client on or optional, or take "
			       "$caller of map $ssl_client_verify $caller { SUCCESS $%V; }, or $ssl_client_fingerprint",
			       &name, &name);
		}
		if (name.len == user.len && ngx_strncasecmp(name.data, user.data, user.len) == 0) {
			rc = check_user(cf, place, location, core);
		}
	}
	return rc;
}

/* A named location gets the request again, with its method and body. */
static char *check_error_pages(ngx_conf_t *cf, const ngx_http_core_loc_conf_t *core)
{
	ngx_http_err_page_t *pages = core->error_pages == NULL ? NULL : core->error_pages->elts;

	for (ngx_uint_t i = 0; pages != NULL && i < core->error_pages->nelts; i++) {
		if (pages[i].status >= 500 && pages[i].value.value.len > 0 && pages[i].value.value.data[0] == '@') {
			REFUSE(cf, core,
			       "error_page %i to the named location %V would run the request again there: name a page by its URI, "
			       "which is fetched with GET",
			       pages[i].status, &pages[i].value.value);
		}
	}
	return NGX_CONF_OK;
}

/* Set if worker_shutdown_timeout comes before http {}. */
static void warn_of_shutdown(ngx_conf_t *cf, const ngx_http_core_loc_conf_t *core, const char *prefix,
                             const ngx_http_upstream_conf_t *upstream)
{
	const ngx_core_conf_t *process = (ngx_core_conf_t *)ngx_get_conf(cf->cycle->conf_ctx, ngx_core_module);

	if (upstream->upstream != NULL && process->shutdown_timeout != NGX_CONF_UNSET_MSEC &&
	    process->shutdown_timeout > 0 && process->shutdown_timeout < upstream->read_timeout) {
		ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
		                   "once in location \"%V\": worker_shutdown_timeout (%M ms) is shorter than %s_read_timeout "
		                   "(%M ms): a reload breaks off requests that take longer, and leaves them in doubt",
		                   &core->name, process->shutdown_timeout, prefix, upstream->read_timeout);
	}
}

static char *check_upstream(ngx_conf_t *cf, const gate_location *location, const ngx_http_core_loc_conf_t *core,
                            const char *prefix, ngx_http_upstream_conf_t *upstream)
{
	if (upstream->intercept_errors == 1) {
		REFUSE(cf, core,
		       "%s_intercept_errors on replaces the upstream's answer by another one, which would be stored: turn it "
		       "off here",
		       prefix);
	}
	if ((upstream->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT) && !location->doubt_retries) {
		REFUSE(cf, core,
		       "%s_next_upstream non_idempotent sends a request again that may have run: remove it, or, if the "
		       "upstream is idempotent itself, write once_in_doubt retry",
		       prefix);
	}
#if (NGX_HTTP_CACHE)
	if (upstream->cache == 1 && (upstream->cache_methods & location->methods & ~(ngx_uint_t)NGX_CONF_BITMASK_SET)) {
		REFUSE(cf, core,
		       "%s_cache would answer one request with the answer of another: take the method out of %s_cache_methods",
		       prefix, prefix);
	}
#endif
	if (upstream->pass_request_headers == 0 && location->handoff) {
		REFUSE(cf, core,
		       "%s_pass_request_headers off drops the Once- headers too: remove it, or write once_handoff off", prefix);
	}
	warn_of_shutdown(cf, core, prefix, upstream);
	/*
	 * A client that leaves must not end the request before its answer. These settings are already
	 * merged.
	 */
	upstream->ignore_client_abort = 1;
	return NGX_CONF_OK;
}

static char *check(ngx_conf_t *cf, const gate_place *place)
{
	void **confs = place->location;
	ngx_http_core_loc_conf_t *core = confs[ngx_http_core_module.ctx_index];
	gate_location *location = confs[ngx_http_once_module.ctx_index];
	size_t *slice = find_conf(cf, confs, "ngx_http_slice_filter_module");
	char *rc = check_values(cf, location, core);

	if (rc == NGX_CONF_OK) {
		rc = check_tenant(cf, place, location, core);
	}
	if (rc == NGX_CONF_OK) {
		rc = check_error_pages(cf, core);
	}
	if (rc == NGX_CONF_OK && core->post_action.data != NULL) {
		REFUSE(cf, core,
		       "post_action sends the request again after each answer, a replay too: remove it, or copy "
		       "requests with mirror");
	}
	if (rc == NGX_CONF_OK && slice != NULL && *slice != 0) {
		REFUSE(cf, core, "slice asks the upstream for one answer in many requests: write slice 0 here");
	}
	for (ngx_uint_t i = 0; rc == NGX_CONF_OK && i < sizeof(upstreams) / sizeof(upstreams[0]); i++) {
		ngx_http_upstream_conf_t *upstream = find_conf(cf, confs, upstreams[i].module);

		if (upstream == NULL) {
			continue;
		}
		if (upstream->upstream != NULL && ngx_strcmp(upstreams[i].prefix, "grpc") == 0) {
			REFUSE(cf, core, "grpc_pass cannot be protected: a gRPC answer ends in trailers, which are not stored");
		}
		if (upstream->upstream != NULL && ngx_strcmp(upstreams[i].prefix, "memcached") == 0) {
			REFUSE(cf, core, "memcached_pass only reads: there is nothing to protect");
		}
		/* A target with variables leaves `upstream` empty: any module may serve. */
		if (location->serves && ngx_strcmp(upstreams[i].prefix, "memcached") != 0) {
			rc = check_upstream(cf, location, core, upstreams[i].prefix, upstream);
		}
	}
	return rc;
}

ngx_int_t gate_locations_check(ngx_conf_t *cf, gate_main *conf)
{
	gate_place *place = conf->locations.elts;

	for (ngx_uint_t i = 0; i < conf->locations.nelts; i++) {
		if (check(cf, &place[i]) != NGX_CONF_OK) {
			return NGX_ERROR;
		}
	}
	return NGX_OK;
}
