/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once_cache.c: stored answers, cached in memory that all workers share
 * (once_replay_cache). Only answers that no transition can change, and only while the workers are
 * certain of the server that holds them and, of several nodes, serves their tenant. Called by
 * _claim.c, before it asks, and by the files that get an answer from the database.
 */
#include "ngx_http_once.h"

#include <openssl/sha.h>

enum {
	BODY_BYTES_MAX = 64 * 1024,
	HEADERS_BYTES_MAX = 32 * 1024,
	KEPT_MS_MAX = 60 * 1000,
	TELL_MS = 1000,  /* how often hits are reported to the database, and its identity checked */
	EVICTED_MAX = 32 /* to make room for one answer: the lock is held meanwhile */
};

/* One answer. After it: tenant, scope and key, then the headers, each with its NUL; the body. */
typedef struct gate_cached_answer {
	ngx_rbtree_node_t node; /* by a hash of the intent's names */
	ngx_queue_t queue;      /* the most recently used first */
	ngx_uint_t source;      /* the node that has it, */
	int64_t epoch;          /* since its slot was opened there so */
	ngx_msec_t until;
	unsigned char fingerprint[ONCE_FINGERPRINT_BYTES];
	once_verdict verdict;
	once_state state;
	ngx_uint_t status;
	char trace[GATE_TRACE_BYTES];
	size_t names_length;
	size_t headers_length;
	size_t body_length;
	u_char content[];
} gate_cached_answer;

/*
 * The state that workers share. It lies after the pool's end, so that the pool can be created again
 * without it. A worker may be killed at any instruction: nginx's master then unlocks the pool, and
 * the next worker finds `locked` still set.
 */
typedef struct gate_zone {
	volatile ngx_uint_t locked; /* by a worker that is alive, or was killed */
	uint64_t generation;        /* increased each time that all answers are dropped; never 0 */
	ngx_msec_t until;           /* the latest end of an answer */
	ngx_uint_t count;
	ngx_rbtree_t tree;
	ngx_rbtree_node_t sentinel;
	ngx_queue_t queue;
	uint64_t servers[GATE_NODES_MAX]; /* the servers of these answers, by node; 0: none yet */
} gate_zone;

/* What a node is told. */
typedef struct gate_news {
	once_operation *operation; /* that reports hits to the database */
	once_cached told;          /* by it */
	once_cached untold;
} gate_news;

/* The state of one worker. */
static struct {
	gate_zone *zone; /* NULL: off */
	ngx_slab_pool_t *pool;
	ngx_event_t timer;
	gate_news news[GATE_NODES_MAX]; /* by node */
} cache;

/* ---- the zone ---- */

/* In any state. */
static void empty(gate_zone *zone, ngx_slab_pool_t *pool)
{
	zone->generation++;
	ngx_memzero(zone->servers, sizeof(zone->servers));
	zone->until = 0;
	zone->count = 0;
	ngx_slab_init(pool);
	pool->log_nomem = 0;
	ngx_rbtree_init(&zone->tree, &zone->sentinel, ngx_rbtree_insert_value);
	ngx_queue_init(&zone->queue);
}

/* A reload keeps what is there. */
static ngx_int_t zone_init(ngx_shm_zone_t *zone, void *old)
{
	ngx_slab_pool_t *pool = (ngx_slab_pool_t *)zone->shm.addr;

	if (old == NULL && !zone->shm.exists) {
		pool->end -= ngx_align(sizeof(gate_zone), NGX_ALIGNMENT * 8);
		pool->data = pool->end;
		ngx_memzero(pool->data, sizeof(gate_zone));
		empty(pool->data, pool);
	}
	zone->data = pool->data;
	return NGX_OK;
}

/* NULL, or an error message. */
static const char *read_zone(ngx_str_t text, ngx_str_t *name, ssize_t *size)
{
	static const ngx_str_t prefix = ngx_string("zone=");
	u_char *colon;
	ngx_str_t rest;

	if (text.len <= prefix.len || ngx_strncmp(text.data, prefix.data, prefix.len) != 0) {
		return "takes zone=NAME:SIZE, or off";
	}
	name->data = text.data + prefix.len;
	name->len = text.len - prefix.len;
	colon = ngx_strlchr(name->data, name->data + name->len, ':');
	if (colon == NULL || colon == name->data) {
		return "takes zone=NAME:SIZE with a name and a size, such as zone=replays:16m";
	}
	rest.data = colon + 1;
	rest.len = (size_t)(name->data + name->len - rest.data);
	name->len = (size_t)(colon - name->data);
	*size = ngx_parse_size(&rest);
	if (*size == NGX_ERROR) {
		return "has no valid size: write it as 512k or 16m";
	}
	if (*size < (ssize_t)(8 * ngx_pagesize)) {
		return "needs a zone of at least 8 pages of memory (32k if a page has 4k)";
	}
	return ngx_strncmp(name->data, "once_status", name->len) == 0 && name->len == ngx_strlen("once_status")
	           ? "needs another name: once_status is the zone of the counters"
	           : NULL;
}

char *gate_cache_set(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	gate_main *main = conf;
	ngx_str_t *value = cf->args->elts, name;
	const char *fault;
	ssize_t size;

	(void)command;
	if (main->cache_set) {
		return "is duplicate";
	}
	main->cache_set = 1;
	if (ngx_strcmp(value[1].data, "off") == 0) {
		return NGX_CONF_OK;
	}
	fault = read_zone(value[1], &name, &size);
	if (fault != NULL) {
		return (char *)(uintptr_t)fault;
	}
	main->cache_zone = ngx_shared_memory_add(cf, &name, (size_t)size, &ngx_http_once_module);
	if (main->cache_zone == NULL) {
		return NGX_CONF_ERROR;
	}
	main->cache_zone->init = zone_init;
	return NGX_CONF_OK;
}

/* ---- under the lock ---- */

static void throw_away(void)
{
	if (cache.zone->count > 0) {
		gate_count_cache(HTTP_CACHE_EMPTIED);
	}
	empty(cache.zone, cache.pool);
}

static void lock(void)
{
	ngx_shmtx_lock(&cache.pool->mutex);
	if (cache.zone->locked) {
		throw_away(); /* a worker was killed here, and may have left it inconsistent */
	}
	cache.zone->locked = 1;
	ngx_memory_barrier();
}

static void unlock(void)
{
	ngx_memory_barrier();
	cache.zone->locked = 0;
	ngx_shmtx_unlock(&cache.pool->mutex);
}

/*
 * Do the cached answers come from this worker's server? A worker whose connections were lost
 * empties the cache. Others may still be connected to a server that is no longer primary, so all
 * must lead to the same one. If they do not, it is emptied each time.
 */
static void heed_server(ngx_uint_t node, uint64_t server)
{
	if (cache.zone->servers[node] != server) {
		if (cache.zone->servers[node] != 0) {
			throw_away();
		}
		cache.zone->servers[node] = server;
	}
}

static void forget(gate_cached_answer *cached)
{
	ngx_queue_remove(&cached->queue);
	ngx_rbtree_delete(&cache.zone->tree, &cached->node);
	ngx_slab_free_locked(cache.pool, cached);
	cache.zone->count--;
}

/* Two with the same hash are equal here: the names tell whether it is the right one. */
static gate_cached_answer *find_cached(ngx_rbtree_key_t hash)
{
	ngx_rbtree_node_t *node = cache.zone->tree.root;

	while (node != &cache.zone->sentinel) {
		if (node->key == hash) {
			return ngx_rbtree_data(node, gate_cached_answer, node);
		}
		node = hash < node->key ? node->left : node->right;
	}
	return NULL;
}

static gate_cached_answer *make_room(size_t bytes)
{
	gate_cached_answer *cached;

	cached = ngx_slab_alloc_locked(cache.pool, bytes);
	for (ngx_uint_t i = 0; cached == NULL && i < EVICTED_MAX && !ngx_queue_empty(&cache.zone->queue); i++) {
		gate_cached_answer *last = ngx_queue_data(ngx_queue_last(&cache.zone->queue), gate_cached_answer, queue);

		if ((ngx_msec_int_t)(last->until - ngx_current_msec) > 0) {
			gate_count_cache(HTTP_CACHE_EVICTED);
		}
		forget(last);
		cached = ngx_slab_alloc_locked(cache.pool, bytes);
	}
	return cached;
}

/* ---- the names ---- */

/* Tenant, scope and key, each with its NUL. */
enum {
	/* spec: name-bytes */
	NAME_BYTES_MAX = 255 * 4, /* of a scope or a tenant: its characters in UTF-8 */
	/* end of spec */
	NAMES_BYTES_MAX = 3 * (NAME_BYTES_MAX + 1)
};

typedef struct gate_names {
	u_char text[NAMES_BYTES_MAX];
	size_t length;
	ngx_rbtree_key_t hash;
} gate_names;

static ngx_uint_t put_name(gate_names *names, const char *text)
{
	size_t length = ngx_strlen(text) + 1;

	if (length > sizeof(names->text) - names->length) {
		return 0;
	}
	ngx_memcpy(names->text + names->length, text, length);
	names->length += length;
	return 1;
}

/* By a hash for which finding two intents takes too long. 0: it has no place for them. */
static ngx_uint_t take_names(gate_names *names, const once_intent *intent)
{
	u_char digest[SHA256_DIGEST_LENGTH];

	names->length = 0;
	if (!put_name(names, intent->tenant) || !put_name(names, intent->scope) || !put_name(names, intent->key)) {
		return 0;
	}
	SHA256(names->text, names->length, digest);
	ngx_memcpy(&names->hash, digest, sizeof(names->hash));
	return 1;
}

static ngx_uint_t is_of(const gate_cached_answer *cached, const gate_names *names)
{
	return cached->names_length == names->length && ngx_memcmp(cached->content, names->text, names->length) == 0;
}

/* ---- reporting to the database ---- */

static ngx_uint_t has_news(void)
{
	int64_t untold = 0;

	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		const once_cached *news = &cache.news[i].untold;

		untold += news->replays + news->finals + news->mismatches;
	}
	return untold > 0;
}

/* An ending worker waits until its hits are reported. */
static void stay_for_news(void)
{
	cache.timer.cancelable = !has_news();
}

static void on_told(void *argument, const once_answer *answer, const once_error *error)
{
	gate_news *news = argument;

	news->operation = NULL;
	/* An ending worker tries once. */
	if (answer == NULL && !ngx_exiting && (error == NULL || !once_error_outcome_unknown(error))) {
		news->untold.replays += news->told.replays;
		news->untold.finals += news->told.finals;
		news->untold.mismatches += news->told.mismatches;
	}
	news->told = (once_cached){0};
	stay_for_news();
}

static void tell(ngx_uint_t node)
{
	gate_news *news = &cache.news[node];

	if (news->operation == NULL) {
		news->told = news->untold;
		news->untold = (once_cached){0};
		if (once_batcher_count_cached(gate_batcher(node), &news->told, on_told, news, &news->operation, NULL) !=
		    ONCE_OK) {
			on_told(news, NULL, NULL);
		}
	}
}

/*
 * Once a second while there are answers, so that a lost server, another one behind a pooler, or a
 * slot that has moved, is noticed even if no request asks it anything.
 */
static void on_timer(ngx_event_t *event)
{
	if (gate_node_count() == 0 || (!has_news() && (ngx_msec_int_t)(cache.zone->until - ngx_current_msec) <= 0)) {
		return;
	}
	ngx_add_timer(event, TELL_MS);
	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		tell(i);
	}
	gate_nodes_refresh();
	stay_for_news();
}

static void tell_later(void)
{
	if (!cache.timer.timer_set) {
		ngx_add_timer(&cache.timer, TELL_MS);
	}
	stay_for_news();
}

static void on_lost(void)
{
	lock();
	throw_away();
	unlock();
}

void gate_cache_start(gate_main *conf)
{
	if (conf->cache_zone == NULL) {
		return;
	}
	cache.zone = conf->cache_zone->data;
	cache.pool = (ngx_slab_pool_t *)conf->cache_zone->shm.addr;
	gate_event_init(&cache.timer, on_timer);
	gate_database_on_loss(on_lost);
}

void gate_cache_stop(void)
{
	gate_database_on_loss(NULL);
	if (cache.timer.timer_set) {
		ngx_del_timer(&cache.timer);
	}
	for (ngx_uint_t i = 0; i < gate_node_count(); i++) {
		once_operation_forget(cache.news[i].operation);
		cache.news[i].operation = NULL;
	}
	cache.zone = NULL;
}

/* ---- functions for the other files ---- */

/* The node that serves an attempt's tenant, and the server that all connections to it lead to. */
typedef struct gate_source {
	ngx_uint_t node;
	int64_t epoch;
	uint64_t server; /* 0: none, or not certain */
	int64_t kept_ms;
} gate_source;

static gate_source source_of(const gate_attempt *attempt)
{
	gate_source source = {0};
	once_batcher_statistics statistics = {0};

	if (gate_route_node(attempt, &source.node, &source.epoch) == NGX_OK) {
		once_batcher_count(gate_batcher(source.node), &statistics);
	}
	source.server = statistics.server;
	source.kept_ms = statistics.server == 0 ? 0 : statistics.retention_ms;
	return source;
}

int64_t gate_cache_kept_ms(const gate_attempt *attempt)
{
	return source_of(attempt).kept_ms;
}

/* Copied: the zone's content may be gone as soon as it is unlocked. */
static void lend(const gate_cached_answer *cached, gate_stored_answer *found)
{
	static u_char content[HEADERS_BYTES_MAX + BODY_BYTES_MAX];
	static char trace[GATE_TRACE_BYTES];

	ngx_memcpy(content, cached->content + cached->names_length, cached->headers_length + cached->body_length);
	ngx_memcpy(trace, cached->trace, sizeof(trace));
	*found = (gate_stored_answer){.verdict = cached->verdict,
	                              .state = cached->state,
	                              .status = cached->status,
	                              .headers = (const char *)content,
	                              .body = {.data = content + cached->headers_length, .length = cached->body_length},
	                              .trace = trace};
}

static ngx_int_t find(const gate_names *names, const gate_source *source, const once_fingerprint *fingerprint,
                      gate_stored_answer *found)
{
	gate_cached_answer *cached = find_cached(names->hash);

	if (cached == NULL || !is_of(cached, names)) {
		return NGX_DECLINED;
	}
	if (cached->source != source->node || cached->epoch != source->epoch) {
		return NGX_DECLINED; /* the slot has moved, or this worker does not know yet that it has */
	}
	if ((ngx_msec_int_t)(cached->until - ngx_current_msec) <= 0) {
		forget(cached);
		return NGX_DECLINED;
	}
	ngx_queue_remove(&cached->queue);
	ngx_queue_insert_head(&cache.zone->queue, &cached->queue);
	if (ngx_memcmp(cached->fingerprint, fingerprint->bytes, ONCE_FINGERPRINT_BYTES) != 0) {
		return NGX_ABORT;
	}
	lend(cached, found);
	return NGX_OK;
}

static void count(ngx_int_t rc, const gate_stored_answer *found, once_cached *untold)
{
	if (rc == NGX_DECLINED) {
		gate_count_cache(HTTP_CACHE_MISS);
		return;
	}
	gate_count_cache(rc == NGX_OK ? HTTP_CACHE_HIT : HTTP_CACHE_MISMATCH);
	if (rc == NGX_ABORT) {
		untold->mismatches++;
	} else if (found->verdict == ONCE_FINAL_FAILURE_STORED) {
		untold->finals++;
	} else {
		untold->replays++;
	}
	tell_later();
}

ngx_int_t gate_cache_find(gate_attempt *attempt, gate_stored_answer *found)
{
	ngx_int_t rc = NGX_DECLINED;
	gate_names names;
	gate_source source;

	attempt->claim.generation = 0;
	if (cache.zone == NULL) {
		return NGX_DECLINED;
	}
	source = source_of(attempt);
	attempt->claim.node = source.node;
	attempt->claim.epoch = source.epoch;
	if (source.server != 0 && take_names(&names, &attempt->intent)) {
		lock();
		heed_server(source.node, source.server);
		attempt->claim.generation = cache.zone->generation;
		rc = find(&names, &source, &attempt->request.fingerprint, found);
		unlock();
	}
	attempt->claim.cached = rc == NGX_DECLINED ? GATE_CACHE_MISS : GATE_CACHE_HIT;
	count(rc, found, &cache.news[source.node].untold);
	return rc;
}

static void fill(gate_cached_answer *cached, const gate_attempt *attempt, const gate_names *names,
                 const gate_stored_answer *answer)
{
	u_char *at = ngx_cpymem(cached->content, names->text, names->length);

	cached->node.key = names->hash;
	ngx_memcpy(cached->fingerprint, attempt->request.fingerprint.bytes, ONCE_FINGERPRINT_BYTES);
	cached->source = attempt->claim.node;
	cached->epoch = attempt->claim.epoch;
	cached->verdict = answer->verdict;
	cached->state = answer->state;
	cached->status = answer->status;
	ngx_cpystrn((u_char *)cached->trace, (u_char *)(uintptr_t)answer->trace, sizeof(cached->trace));
	cached->names_length = names->length;
	cached->headers_length = ngx_strlen(answer->headers) + 1;
	cached->body_length = answer->body.length;
	at = ngx_cpymem(at, answer->headers, cached->headers_length);
	ngx_memcpy(at, answer->body.data, answer->body.length);
}

static void keep(const gate_attempt *attempt, const gate_names *names, const gate_stored_answer *answer,
                 ngx_msec_t until)
{
	gate_cached_answer *cached = find_cached(names->hash);

	if (cached != NULL) {
		forget(cached);
	}
	cached = make_room(sizeof(*cached) + names->length + ngx_strlen(answer->headers) + 1 + answer->body.length);
	if (cached == NULL) {
		return;
	}
	fill(cached, attempt, names, answer);
	cached->until = until;
	ngx_rbtree_insert(&cache.zone->tree, &cached->node);
	ngx_queue_insert_head(&cache.zone->queue, &cached->queue);
	cache.zone->count++;
	if ((ngx_msec_int_t)(until - cache.zone->until) > 0 || cache.zone->until == 0) {
		cache.zone->until = until;
	}
	gate_count_cache(HTTP_CACHE_KEPT);
}

void gate_cache_keep(const gate_attempt *attempt, const gate_stored_answer *answer, ngx_msec_t then, int64_t kept_ms)
{
	ngx_msec_t until = then + (ngx_msec_t)ngx_min(kept_ms, KEPT_MS_MAX);
	gate_names names;
	gate_source source;

	if (cache.zone == NULL || attempt->claim.generation == 0 || kept_ms <= 0 ||
	    (ngx_msec_int_t)(until - ngx_current_msec) <= 0 || answer->body.length > BODY_BYTES_MAX ||
	    ngx_strlen(answer->headers) >= HEADERS_BYTES_MAX || !take_names(&names, &attempt->intent)) {
		return;
	}
	source = source_of(attempt);
	lock();
	/* Since the request no connection was lost, and the node and its server are the same. */
	if (attempt->claim.generation == cache.zone->generation && source.node == attempt->claim.node &&
	    source.epoch == attempt->claim.epoch && source.server != 0 &&
	    source.server == cache.zone->servers[source.node]) {
		keep(attempt, &names, answer, until);
	}
	unlock();
	tell_later();
}
