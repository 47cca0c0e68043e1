/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once.h: declarations shared by the module's files. A file calls only files that come
 * above it here. nginx's part is thin: lib/http decides about keys, problems and steps; libpgonce
 * calls the contract.
 *
 * An answer is what the service gave or the store holds; a reply is what the gateway sends to the
 * client instead of the service's own answer: a stored answer, or a problem document.
 */
#pragma once

#include <ngx_config.h> /* First: it tells the C library what nginx wants of it. */

#undef NDEBUG /* Keep asserts: a crash beats a wrong answer. */
#include <assert.h>

#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

/* --with-compat lets the module into an nginx with both, whose requests it would then misread. */
#if (NGX_COMPAT && !(NGX_HTTP_SSL && NGX_HTTP_V2))
#error "configure nginx with --with-http_ssl_module and --with-http_v2_module, too"
#endif

#include "http.h"
#include "pgonce_batcher.h"

extern ngx_module_t ngx_http_once_module;

/* ---- configuration ---- */

enum {
	GATE_LONGEST_MS = 7 * 24 * 3600 * 1000 /* limit of leases and of the batcher's times */
};

typedef enum gate_mode {
	GATE_OFF = 0,
	GATE_ON = 1, /* where clients send the key */
	GATE_REQUIRED = 2
} gate_mode;

/* once_fingerprint */
enum {
	GATE_PRINT_METHOD = 1,
	GATE_PRINT_TARGET = 2,
	GATE_PRINT_TYPE = 4,
	GATE_PRINT_BODY = 8,
	GATE_PRINT_HOST = 16,
	GATE_PRINT_DEFAULT = 31
};

/* once_database, or a line of once_nodes */
typedef struct gate_node_conf {
	ngx_str_t conninfo; /* NUL-terminated */
	ngx_str_t name;     /* for people, without secrets; data NULL: once_database */
} gate_node_conf;

enum {
	GATE_NODES_MAX = ONCE_SLOTS /* each serves at least one slot */
};

typedef struct gate_main {
	ngx_array_t nodes;    /* of gate_node_conf; empty: neither directive was read */
	ngx_uint_t nodes_set; /* once_nodes was read */
	ngx_msec_t timeout_ms;
	ngx_msec_t batch_age_ms;
	ngx_uint_t batch_max;
	size_t batch_bytes_max;
	size_t replay_bytes_max; /* of a worker */
	ngx_flag_t prepare;
	ngx_flag_t cache_set;       /* once_replay_cache was read */
	ngx_shm_zone_t *cache_zone; /* NULL: off */
	ngx_shm_zone_t *zone;       /* the counters of the status page */
	ngx_array_t locations;      /* the protected locations, of gate_place */
} gate_main;

/* The place of a protected location: the settings of all modules for it, and for its server. */
typedef struct gate_place {
	void **location;
	void **server;
} gate_place;

typedef struct gate_location {
	ngx_uint_t mode;
	ngx_http_complex_value_t *scope; /* NULL: the server's first name and the location's */
	ngx_str_t scope_default;
	ngx_http_complex_value_t *tenant; /* NULL: none, with tenant_none */
	ngx_flag_t tenant_none;
	ngx_http_complex_value_t *key;
	ngx_str_t key_header;       /* if the key is one header: its name, in lower case with '_' */
	ngx_str_t tenant_header;    /* the same for a tenant */
	ngx_uint_t tenant_verified; /* it is in a certificate, which this server verifies */
	ngx_uint_t key_strict;
	ngx_uint_t key_length;
	ngx_uint_t methods; /* bits NGX_HTTP_POST, ... */
	ngx_msec_t lease_ms;
	ngx_msec_t retention_ms; /* 0: the scope's */
	ngx_msec_t wait_ms;
	size_t body_bytes_max;
	size_t response_bytes_max;
	ngx_array_t *headers; /* of http_text; NULL: lib/http's list */
	ngx_uint_t stored;
	ngx_uint_t server_errors; /* an http_effect */
	http_statuses *released;  /* NULL: once_release names none */
	ngx_flag_t asking_ignored;
	ngx_uint_t doubt_retries;
	ngx_uint_t fails_open;
	ngx_uint_t print;
	ngx_array_t *print_values; /* of ngx_http_complex_value_t */
	ngx_flag_t canonical_json;
	ngx_flag_t handoff;
	ngx_uint_t log_clear;
	ngx_str_t problem_base; /* NUL-terminated */
	ngx_uint_t status;      /* this location is the status page */
	/* it has a content handler: its own or, in an if block, the outer location's */
	ngx_uint_t serves;
} gate_location;

/* ---- an attempt, and its parts ---- */

typedef struct gate_attempt gate_attempt;

/* The stage of an attempt, in the order of its life. Only _walk.c changes it. */
typedef enum gate_stage {
	GATE_REQUEST, /* the body is read and hashed */
	GATE_CLAIM,   /* the intent is being claimed, or waited for */
	GATE_DECIDED, /* `step` says what to do; the phases continue */
	GATE_ANSWER,  /* the upstream works */
	GATE_REPORT,  /* the outcome is reported to the contract */
	GATE_DONE     /* the module has nothing more to do with the request */
} gate_stage;

/*
 * The event that a part gives to the walk, as its last action: the attempt may be gone afterwards.
 */
typedef enum gate_event {
	GATE_HASHED,   /* the request has its fingerprint */
	GATE_STEP,     /* `step` is set */
	GATE_RELEASED, /* a claim that is no longer needed was given back */
	GATE_ENDED,    /* the answer has ended as `ending` says */
	GATE_UNSTORED, /* the report continues; the client no longer waits for it */
	GATE_REPORTED, /* the report has ended */
	GATE_LEFT      /* nginx frees the request */
} gate_event;
typedef void (*gate_walk)(gate_attempt *attempt, gate_event event);
typedef void (*gate_then)(gate_attempt *attempt);

/* A growing buffer with a maximum; its memory outlives the request. */
typedef struct gate_bytes {
	u_char *data;
	size_t length;
	size_t room;
} gate_bytes;

enum {
	GATE_TRACE_BYTES = 56 /* a traceparent, and a NUL */
};

/* A stored answer that is being sent, to one client or several. */
typedef struct gate_shared_answer gate_shared_answer;

/* An answer as the contract stores it, borrowed from its owner. */
typedef struct gate_stored_answer {
	once_verdict verdict;
	once_state state;
	ngx_uint_t status;
	const char *headers;
	once_bytes body;
	const char *trace;
} gate_stored_answer;

/* Whether a claim was answered from the cache. */
typedef enum gate_cached {
	GATE_CACHE_UNASKED,
	GATE_CACHE_MISS,
	GATE_CACHE_HIT
} gate_cached;

/* A reply: a stored answer, or a problem. Its memory is its own, unless an answer owns it. */
typedef struct gate_reply {
	gate_shared_answer *answer; /* the owner of these headers and this body; NULL: the reply */
	ngx_uint_t status;
	http_header *headers; /* one block, freed with free() */
	size_t header_count;
	gate_bytes body;
	const char *trace;      /* the attempt's, for its header; NULL: no such header */
	ngx_uint_t replayed;    /* mark it */
	ngx_uint_t retry_after; /* seconds; 0: no such header */
	ngx_uint_t problem;     /* the body is a problem document */
} gate_reply;

enum {
	GATE_NO_SLOT = -1
};

/* _nodes.c: which of several nodes serves the tenant. */
typedef struct gate_route {
	ngx_int_t slot;            /* of the tenant; GATE_NO_SLOT: not known, or not needed */
	once_operation *operation; /* asks for the slot; NULL: none */
	ngx_uint_t first;          /* the node that was asked for it first, */
	ngx_uint_t asked;          /* and how many did not answer */
	once_code fault;           /* of the last that did not */
	ngx_queue_t queue;         /* among those that wait for the nodes' answers, */
	ngx_uint_t queued;
	gate_then woken;  /* ... and then continue here */
	gate_then then;   /* with the slot */
	ngx_uint_t moved; /* sent again since the last answer, because the slot was closed */
	int64_t closed;   /* with this epoch; 0: not known */
} gate_route;

/* _request.c: the names of the intent, and the body until it is hashed. */
typedef struct gate_request {
	u_char *names;
	ngx_uint_t refused;        /* before its body was read */
	ngx_uint_t reading;        /* the body is being read; */
	ngx_uint_t nested;         /* the phase that reads it is on the stack */
	ngx_int_t refusal;         /* nginx's status for a refused body */
	once_operation *operation; /* the look-up of the tenant's salt; NULL: none in progress */
	ngx_uint_t node;           /* that knows the salt */
	once_fingerprint fingerprint;
	once_hash *hash;    /* kept when it is finished: an answer may redirect the request */
	ngx_chain_t *piece; /* of the body: the next to hash, */
	off_t piece_offset; /* and from where */
	ngx_str_t *values;  /* of once_fingerprint's variables */
	ngx_uint_t value_count;
	gate_bytes whole_body; /* once_canonical_json */
	ngx_event_t turn;
	ngx_event_t guard; /* keeps an ending worker alive while a request is at work */
} gate_request;

/* _claim.c: the claim, the wait, and the contract's answer. */
typedef struct gate_claim {
	once_operation *operation; /* the claim, a look-up while waiting, or a release; NULL: none */
	ngx_event_t timer;         /* of the wait */
	ngx_queue_t queue;         /* among those that wait */
	ngx_uint_t queued;
	ngx_msec_t wait_step_ms;
	ngx_msec_t started; /* ngx_current_msec at the first claim */
	ngx_msec_t asked;   /* and at the last */
	ngx_msec_t waited_ms;
	gate_cached cached;
	uint64_t generation; /* of the cache, when the database was asked; 0: none */
	ngx_uint_t node;     /* ... and the node that was asked, */
	int64_t epoch;       /* with the epoch of the tenant's slot there */
	once_verdict verdict;
	once_state state;
	int fence;                    /* 0: this attempt holds nothing */
	char trace[GATE_TRACE_BYTES]; /* the intent's traceparent; "": none, or not for this request */
} gate_claim;

/* The state of the upstream's answer. */
typedef enum gate_answer_state {
	GATE_NO_ANSWER, /* this attempt has none, or not yet */
	GATE_RUNNING,   /* at the upstream; no header came yet */
	GATE_HOLDING,   /* it is arriving and is kept */
	GATE_STREAMING, /* it is too large or not storable: it passes, only its end is kept */
	GATE_WHOLE,     /* it is complete, and waits for its report */
	GATE_SENDABLE,  /* it may be sent */
	GATE_PASSED     /* it is being sent, or its client has gone */
} gate_answer_state;

/* _answer.c: the upstream's answer. */
typedef struct gate_answer {
	gate_answer_state state;
	void **ran_in; /* loc_conf of the location that passed the request on */
	ngx_uint_t redirected;
	ngx_uint_t accelerated;    /* by X-Accel-Redirect: at the upstream's request */
	ngx_uint_t aside;          /* redirected to a page: the request for it is not the client's */
	ngx_http_upstream_t *left; /* of the location that the last redirect came from */
	ngx_int_t (*process_header)(ngx_http_request_t *r); /* proxy_pass's own, */
	ngx_int_t (*reinit_request)(ngx_http_request_t *r); /* of this attempt's upstream */
	void (*finalize_request)(ngx_http_request_t *r, ngx_int_t rc);
	ngx_uint_t method; /* the request's own, while nginx sees another */
	http_ending ending;
	ngx_uint_t behind;         /* it is another gateway's own answer: the service did not make it */
	once_fingerprint redirect; /* of the request to which it redirects, */
	ngx_uint_t redirects;      /* if it does */
	char *headers;             /* as the contract stores them */
	gate_bytes body;
	ngx_uint_t held; /* counted as held */
	ngx_uint_t header_sent;
	ngx_uint_t client_gone; /* a streamed answer is still read to its end */
	off_t streamed_bytes;
	gate_bytes tail; /* of a streamed answer: its end, which waits for the report */
} gate_answer;

/* _report.c: the lease, and the report. */
typedef struct gate_report {
	once_operation *renewal; /* the one in progress; NULL: none */
	ngx_event_t renew_timer;
	ngx_uint_t leased; /* counted as running */
	ngx_uint_t lease_lost;
	ngx_uint_t decided; /* `kind` says something */
	http_report kind;
	once_operation *operation; /* the report or the look-up after it; NULL: none in progress */
	ngx_event_t timer;         /* of the next try */
	ngx_uint_t awaited;        /* a client waits for it */
	ngx_msec_t started;
	ngx_uint_t tried;
	ngx_uint_t lost; /* no further try can help */
} gate_report;

/*
 * One attempt at an intent: from the request's key to the stored answer. Allocated separately from
 * the request, since a report outlives its client. Freed when no request, operation or timer refers
 * to it.
 */
struct gate_attempt {
	ngx_http_request_t *r; /* NULL: nginx has freed it */
	gate_location *location;
	gate_walk walk;
	gate_stage stage;
	once_intent intent; /* points into request.names */
	http_policy policy;
	http_step step;
	http_problem problem; /* if step is HTTP_REFUSE */
	gate_reply reply;
	ngx_uint_t replaced;         /* reply is sent instead of the upstream's answer */
	int status;                  /* of the sent answer, for logs */
	ngx_http_handler_pt content; /* the location's own content handler */
	gate_route route;
	gate_request request;
	gate_claim claim;
	gate_answer answer;
	gate_report report;
};

/* ---- _check.c: combinations that nginx -t refuses ---- */
ngx_int_t gate_locations_check(ngx_conf_t *cf, gate_main *conf);

/* ---- _conninfo.c: the connection strings ---- */
char *gate_database_set(ngx_conf_t *cf, ngx_command_t *command, void *conf); /* once_database */
char *gate_nodes_set(ngx_conf_t *cf, ngx_command_t *command, void *conf);    /* once_nodes */

/* ---- _bytes.c: memory that outlives a request ---- */
/* NGX_DECLINED: it would exceed length_max. NGX_ERROR: no memory. */
ngx_int_t gate_bytes_add(gate_bytes *bytes, const u_char *data, size_t length, size_t length_max);
void gate_bytes_free(gate_bytes *bytes);
/* borrows them */
ngx_int_t gate_bytes_chain(ngx_http_request_t *r, const gate_bytes *bytes, ngx_chain_t *out);

/* ---- _headers.c: headers of requests and answers ---- */
#define GATE_TEXT(literal) ((http_text){.data = (literal), .length = sizeof(literal) - 1})
static inline http_text gate_text(ngx_str_t text)
{
	return (http_text){.data = (const char *)text.data, .length = text.len};
}

static inline ngx_uint_t gate_text_is(http_text text, const char *name) /* in any case */
{
	return text.length == ngx_strlen(name) &&
	       ngx_strncasecmp((u_char *)(uintptr_t)text.data, (u_char *)(uintptr_t)name, text.length) == 0;
}

/* A position in a list of headers; it starts as {.part = &list->part}. */
typedef struct gate_headers {
	ngx_list_part_t *part;
	ngx_uint_t index;
} gate_headers;
ngx_table_elt_t *gate_headers_next(gate_headers *at); /* NULL: no more */
/* The value of the only line with this name, and how many there are. NULL: none, or several. */
const ngx_str_t *gate_header_only(ngx_list_t *headers, const char *name, ngx_uint_t *lines);
/* NULL: no memory */
ngx_table_elt_t *gate_header_push(ngx_list_t *headers, http_text name, http_text value);
/*
 * *json: the answer's headers as the contract stores them; the caller frees it. NGX_ERROR: no
 * memory.
 */
ngx_int_t gate_headers_store(ngx_http_request_t *r, const ngx_array_t *allowed, char **json);

/* ---- _database.c: one batcher per worker and node ---- */
ngx_int_t gate_database_start(ngx_cycle_t *cycle, gate_main *conf);
void gate_database_stop(void);
ngx_uint_t gate_node_count(void);            /* 0: the worker ends, or this is no worker */
once_batcher *gate_batcher(ngx_uint_t node); /* NULL: no such node, or count is 0 */
const char *gate_owner(void);
void gate_event_init(ngx_event_t *event, ngx_event_handler_pt handler); /* of no connection */
/* Called after any event in which a connection was lost. NULL: not called. */
void gate_database_on_loss(void (*lost)(void));

/* ---- _nodes.c: which of several nodes serves a tenant ---- */
void gate_nodes_start(const gate_main *conf);
void gate_nodes_refresh(void); /* asks all nodes which slots are open, and waits for nothing; */
void gate_nodes_look(void);    /* ... unless that was done within a second */
/*
 * Finds the node of the attempt's tenant, then calls `then`, perhaps at once. Afterwards
 * gate_batcher_of may still be NULL: see gate_route_fault.
 */
void gate_route_find(gate_attempt *attempt, gate_then then);
/*
 * The operation that ended with this error has done nothing, because the node has closed the slot,
 * and may be sent once more: use gate_route_ask.
 */
ngx_uint_t gate_route_moved(gate_attempt *attempt, const once_error *error);
void gate_route_ask(gate_attempt *attempt, gate_then then); /* all nodes, about their slots */
void gate_route_stop(gate_attempt *attempt);                /* then is not called */
/* The node, as far as is known. NULL: none, or the worker ends. */
once_batcher *gate_batcher_of(const gate_attempt *attempt);
/* The same, with the slot's epoch there (0 if there is only one node). NGX_DECLINED: none. */
ngx_int_t gate_route_node(const gate_attempt *attempt, ngx_uint_t *node, int64_t *epoch);
/* Why no node serves it: one is away (ONCE_CONNECTION), or all have closed the slot. */
once_code gate_route_fault(const gate_attempt *attempt);

/* ---- _status.c: counters in shared memory, and the page that shows them ---- */
ngx_int_t gate_status_zone(ngx_conf_t *cf, gate_main *conf);
ngx_int_t gate_status_handler(ngx_http_request_t *r);
ngx_int_t gate_ready_handler(ngx_http_request_t *r);
void gate_status_start(gate_main *conf);
void gate_status_stop(void);
void gate_count_step(const char *scope, http_step step, http_problem problem);
void gate_count_report(http_report report);
void gate_count_trouble(ngx_uint_t refused); /* a report, refused or otherwise not stored */
void gate_count_gauge(ngx_int_t running, ngx_int_t waiting, ngx_int_t held);
void gate_count_replay_bytes(ngx_int_t bytes);
void gate_count_cache(http_cache_event event);
void gate_count_rerouted(void);

/* ---- _cache.c: stored answers, in memory that all workers share ---- */
char *gate_cache_set(ngx_conf_t *cf, ngx_command_t *command, void *conf); /* once_replay_cache */
void gate_cache_start(gate_main *conf);
void gate_cache_stop(void);
/*
 * NGX_OK: *found is the answer to this request, until the next call. NGX_ABORT: the key was used
 * for another request. NGX_DECLINED: ask the database.
 */
ngx_int_t gate_cache_find(gate_attempt *attempt, gate_stored_answer *found);
/*
 * For an answer that the database has, and which no transition can change. kept_ms: how long it is
 * kept there at least, from now on.
 */
void gate_cache_keep(const gate_attempt *attempt, const gate_stored_answer *answer, ngx_msec_t then, int64_t kept_ms);
/* of an intent without its own retention; 0: unknown */
int64_t gate_cache_kept_ms(const gate_attempt *attempt);

/* ---- _reply.c: stored answers and problems ---- */
#define GATE_CHARSET "X-Accel-Charset" /* among stored headers: for nginx, never for a client */
ngx_int_t gate_reply_variables(ngx_conf_t *cf);
/* NGX_DECLINED: no answer is stored that could be sent. */
ngx_int_t gate_reply_own(gate_reply *reply, const once_answer *answer);
/* For attempt->reply, with a shared body: do not write to it. NGX_BUSY: no room now. */
ngx_int_t gate_reply_replay(gate_attempt *attempt, const gate_stored_answer *answer);
gate_stored_answer gate_stored_answer_of(const once_answer *answer); /* without its trace */
/* The problem that replaces an answer, as attempt->reply. status 0: the problem's own. */
ngx_int_t gate_reply_problem(gate_attempt *attempt, http_problem problem, ngx_uint_t status, const char *detail);
void gate_reply_free(gate_reply *reply);
ngx_int_t gate_reply_head(ngx_http_request_t *r, gate_reply *reply); /* fills headers_out */
ngx_int_t gate_reply_send(ngx_http_request_t *r, gate_reply *reply); /* from a phase */

/* ---- _attempt.c: an attempt as a whole ---- */
gate_attempt *gate_attempt_new(ngx_http_request_t *r, gate_location *location, gate_walk walk);
gate_attempt *gate_attempt_of(ngx_http_request_t *r); /* of the main request; NULL: none */
void gate_attempt_free(gate_attempt *attempt);
void gate_attempt_log(gate_attempt *attempt, const char *event, const once_error *error);
/* The attempt that has this event. */
#define gate_attempt_at(event, member) ((gate_attempt *)((u_char *)(event)-offsetof(gate_attempt, member)))
/* The key for logs: a hash, unless once_log_keys is clear. out: room for 256 bytes. */
size_t gate_key_shown(const gate_location *location, const char *text, u_char *out);

/* ---- _step.c: what happens to the request. Only this file sets `step` ---- */
void gate_step_refuse(gate_attempt *attempt, http_problem problem, const char *detail);
void gate_step_failed(gate_attempt *attempt, const once_error *error);   /* NULL: no memory */
void gate_step_unserved(gate_attempt *attempt, once_code code);          /* no node serves it */
void gate_step_decide(gate_attempt *attempt, const once_answer *answer); /* by its verdict alone */
/* Then, unless it waits: the reply to a request that is replayed or refused. */
void gate_step_finish(gate_attempt *attempt, const once_answer *answer);
/* Both at once, for an answer in the cache. NULL: it belongs to another request. */
void gate_step_cached(gate_attempt *attempt, const gate_stored_answer *answer);

/* ---- _variables.c ---- */
ngx_int_t gate_variables_add(ngx_conf_t *cf);

/* ---- _target.c: the target, for the fingerprint ---- */
/* The parts that once_fingerprint names, in the request's pool. NULL: no memory. */
const char *gate_target(ngx_http_request_t *r, ngx_uint_t print);
/* by an answer with 307 or 308 */
void gate_target_redirected(gate_attempt *attempt, ngx_http_request_t *r);

/* ---- _request.c: key, body, fingerprint ---- */
ngx_int_t gate_request_strip(ngx_http_request_t *r);
ngx_uint_t gate_request_protected(ngx_http_request_t *r, const gate_location *location);
/* *attempt for a request without one. NGX_DECLINED: it needs none. Otherwise a status of nginx. */
ngx_int_t gate_request_open(ngx_http_request_t *r, gate_location *location, gate_walk walk, gate_attempt **attempt);
/* NGX_OK: refused, its body unread. NGX_DONE: it continues later. Otherwise a status of nginx. */
ngx_int_t gate_request_read(gate_attempt *attempt);
ngx_int_t gate_request_refused(gate_attempt *attempt); /* with nginx's status */
void gate_request_stop(gate_attempt *attempt);
void gate_request_free(gate_attempt *attempt);

/* ---- _claim.c: the claim, and the wait ---- */
void gate_claim_start(gate_attempt *attempt);
void gate_claim_stop(gate_attempt *attempt);    /* a wait; a claim that was sent goes on */
void gate_claim_release(gate_attempt *attempt); /* nothing was sent under it */
void gate_claim_wake(const once_intent *intent);

/* ---- _answer.c: the upstream's answer ---- */
void gate_answer_filters(void);
ngx_int_t gate_answer_prepare(gate_attempt *attempt); /* the headers that the upstream gets */
ngx_int_t gate_answer_start(gate_attempt *attempt);   /* runs the location's content handler */
ngx_int_t gate_answer_redirected(gate_attempt *attempt);
void gate_answer_send(gate_attempt *attempt);                        /* or its replacement */
void gate_answer_stop(gate_attempt *attempt, ngx_http_request_t *r); /* its client is gone */
void gate_answer_free(gate_attempt *attempt);

/* ---- _report.c: reporting the outcome to the contract ---- */
void gate_lease_start(gate_attempt *attempt);
void gate_lease_stop(gate_attempt *attempt);
void gate_report_start(gate_attempt *attempt);
void gate_report_leave(gate_attempt *attempt); /* its client is gone */

/* ---- _walk.c: from the request to the end ---- */
ngx_int_t gate_walk_phase(ngx_http_request_t *r);
