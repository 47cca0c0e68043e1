/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_check.c: what nginx -t refuses in a protected location, because an effect could happen twice, an answer could
 * be another's, or it could not be replayed. Each refusal says why and what to write instead; docs/gateway.md lists them.
 * The location's own settings of proxy_pass and its kin are adjusted here too. Called once all configurations are merged.
 */
#include "ngx_http_once.h"

/* Each of these begins with an ngx_http_upstream_conf_t. A module that this nginx was built without is not found. */
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

/* what: format with the sentence; it names the directive. */
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
		REFUSE(cf, core, "once_store must have 2xx: what is done and not stored could not be answered again");
	}
	if (location->lease_ms < 1000) {
		REFUSE(cf, core, "once_lease must be at least 1s: it is renewed after a third of it");
	}
	if (location->lease_ms > GATE_LONGEST_MS) {
		REFUSE(cf, core, "once_lease must be at most 7d: the database grants no longer one");
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

/* A named location gets the request again, with its method and body. */
static char *check_error_pages(ngx_conf_t *cf, const ngx_http_core_loc_conf_t *core)
{
	ngx_http_err_page_t *pages = core->error_pages == NULL ? NULL : core->error_pages->elts;

	for (ngx_uint_t i = 0; pages != NULL && i < core->error_pages->nelts; i++) {
		if (pages[i].status >= 500 && pages[i].value.value.len > 0 && pages[i].value.value.data[0] == '@') {
			REFUSE(cf, core,
			       "error_page %i to the named location %V would run the request again there: name a page by its URI, "
			       "which "
			       "is fetched with GET",
			       pages[i].status, &pages[i].value.value);
		}
	}
	return NGX_CONF_OK;
}

static char *check_upstream(ngx_conf_t *cf, const gate_location *location, const ngx_http_core_loc_conf_t *core,
                            const char *prefix, ngx_http_upstream_conf_t *upstream)
{
	if (upstream->intercept_errors == 1) {
		REFUSE(cf, core,
		       "%s_intercept_errors on puts another answer in place of the upstream's, which would be stored: turn it "
		       "off here",
		       prefix);
	}
	if ((upstream->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT) && !location->doubt_retries) {
		REFUSE(cf, core,
		       "%s_next_upstream non_idempotent sends a request again that may have run: remove it, or, if the "
		       "upstream is "
		       "idempotent itself, write once_in_doubt retry",
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
	/* A client that leaves must not take the answer with it. This conf is the location's own, already merged. */
	upstream->ignore_client_abort = 1;
	return NGX_CONF_OK;
}

static char *check(ngx_conf_t *cf, void **confs)
{
	ngx_http_core_loc_conf_t *core = confs[ngx_http_core_module.ctx_index];
	gate_location *location = confs[ngx_http_once_module.ctx_index];
	size_t *slice = find_conf(cf, confs, "ngx_http_slice_filter_module");
	char *rc = check_values(cf, location, core);

	if (rc == NGX_CONF_OK) {
		rc = check_error_pages(cf, core);
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
		/* A target with variables leaves `upstream` empty, so the settings of each module count where it may be used. */
		if (location->serves && ngx_strcmp(upstreams[i].prefix, "memcached") != 0) {
			rc = check_upstream(cf, location, core, upstreams[i].prefix, upstream);
		}
	}
	return rc;
}

ngx_int_t gate_locations_check(ngx_conf_t *cf, gate_main *conf)
{
	void ***confs = conf->locations.elts;

	for (ngx_uint_t i = 0; i < conf->locations.nelts; i++) {
		if (check(cf, confs[i]) != NGX_CONF_OK) {
			return NGX_ERROR;
		}
	}
	return NGX_OK;
}
