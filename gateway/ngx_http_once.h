/* SPDX-License-Identifier: PostgreSQL */
/*
 * ngx_http_once.h: what the module's files share: its configuration, an attempt, and who offers what. nginx's part is
 * thin: keys, headers, problems and decisions come from lib/http, intents from libpgonce's batcher.
 */
#pragma once

#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include "http.h"
#include "pgonce.h"

extern ngx_module_t ngx_http_once_module;

/* ---- configuration ---- */

enum {
	GATE_LONGEST_MS = 7 * 24 * 3600 * 1000 /* the contract's longest lease, and the batcher's longest time */
};

typedef enum gate_mode {
	GATE_OFF = 0,
	GATE_ON = 1, /* where a key is sent */
	GATE_REQUIRED = 2
} gate_mode;

/* once_fingerprint */
enum {
	GATE_PRINT_METHOD = 1,
	GATE_PRINT_TARGET = 2,
	GATE_PRINT_TYPE = 4,
	GATE_PRINT_BODY = 8,
	GATE_PRINT_DEFAULT = 15
};

typedef struct gate_main {
	ngx_str_t conninfo; /* NUL-terminated; data NULL: no once_database */
	ngx_msec_t timeout_ms;
	ngx_msec_t batch_age_ms;
	ngx_uint_t batch_max;
	size_t batch_bytes_max;
	ngx_flag_t prepare;
	ngx_shm_zone_t *zone;  /* the counters of the status page */
	ngx_array_t locations; /* that protect something: each one's loc_conf array (void **) */
} gate_main;

typedef struct gate_location {
	ngx_uint_t mode;
	ngx_http_complex_value_t *scope; /* NULL: the location's name */
	ngx_str_t scope_default;
	ngx_http_complex_value_t *tenant; /* NULL: none, where tenant_none is set */
	ngx_flag_t tenant_none;
	ngx_http_complex_value_t *key;
	ngx_str_t key_header; /* of a key that is exactly one header: its name, lower case with '_'; else empty */
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
	ngx_uint_t doubt_retries;
	ngx_uint_t fails_open;
	ngx_uint_t print;
	ngx_array_t *print_values; /* of ngx_http_complex_value_t */
	ngx_flag_t canonical_json;
	ngx_flag_t handoff;
	ngx_uint_t log_clear;
	ngx_str_t problem_base; /* NUL-terminated */
	ngx_uint_t status;      /* this location is the status page */
	ngx_uint_t serves; /* a content handler runs here: its own, or, in an if block, that of the location around it */
} gate_location;

/* ---- an attempt ---- */

/* Where an attempt is. The order is the order of its life. */
typedef enum gate_stage {
	GATE_READING,   /* the request's body */
	GATE_SALTING,   /* asking for the tenant's salt */
	GATE_HASHING,   /* the body, piece by piece */
	GATE_CLAIMING,  /* asking for the intent */
	GATE_WAITING,   /* another attempt runs: asking again later */
	GATE_YIELDING,  /* a takeover that must not run: reporting in doubt */
	GATE_DECIDED,   /* `step` says what to do; the phases go on */
	GATE_RUNNING,   /* at the upstream; no header came yet */
	GATE_HOLDING,   /* the answer comes and is kept */
	GATE_STREAMING, /* the answer is too large or not storable: it passes, only its end is kept */
	GATE_REPORTING, /* the answer is whole; its report is under way, and it waits for that */
	GATE_REPORTED,  /* it may be sent */
	GATE_DONE       /* what happens now is no business of the module */
} gate_stage;

/* A growing buffer with a maximum; its memory outlives the request. */
typedef struct gate_bytes {
	u_char *data;
	size_t length;
	size_t room;
} gate_bytes;

enum {
	GATE_TRACE_BYTES = 56 /* a traceparent, and a NUL */
};

/* An answer to send: stored, or a problem. Its memory is its owner's. */
typedef struct gate_reply {
	ngx_uint_t status;
	http_header *headers; /* one block, freed with free() */
	size_t header_count;
	gate_bytes body;
	ngx_uint_t replayed;    /* mark it */
	ngx_uint_t retry_after; /* seconds; 0: no such header */
	ngx_uint_t problem;     /* the body is a problem document */
} gate_reply;

/*
 * One attempt at an intent: from the request's key to the stored answer. Allocated apart from the request, since a report
 * outlives its client: `request` is NULL then. Freed when neither a request nor an operation nor a timer knows it.
 */
typedef struct gate_attempt {
	ngx_http_request_t *request;
	gate_location *location;
	gate_stage stage;
	http_step step;
	http_policy policy;

	once_intent intent; /* points into names */
	u_char *names;
	char
	    trace[GATE_TRACE_BYTES]; /* the intent's traceparent, as the claim told it; "": none, or not for this request */
	once_fingerprint fingerprint;
	once_hash *hash;
	ngx_chain_t *piece; /* of the body: the next to hash, */
	off_t piece_offset; /* and from where */
	ngx_array_t *print_values;
	gate_bytes whole_body; /* once_canonical_json */
	ngx_event_t post;
	ngx_uint_t reading; /* the phase that reads the body is on the stack */

	once_operation *operation; /* the one under way; NULL: none */
	ngx_event_t timer;         /* of the wait, or of the next renewal, or of the next try to report */
	ngx_queue_t queue;         /* among those that wait */
	ngx_uint_t queued;
	ngx_msec_t wait_step_ms;
	ngx_msec_t started; /* ngx_current_msec at the first claim */
	ngx_msec_t waited_ms;

	once_verdict verdict;
	once_state state;
	int fence; /* 0: this attempt holds nothing */
	ngx_http_handler_pt content;
	once_operation *renewal;
	void *
	    *ran_in; /* loc_conf of the location that passed the request on: an error of nginx is in place of its answer */
	ngx_uint_t redirected;
	ngx_uint_t accelerated;    /* by X-Accel-Redirect: the upstream's own wish */
	ngx_uint_t aside;          /* redirected to a page: what is asked for it is not the request */
	ngx_http_upstream_t *left; /* of the location that the last redirect came from */
	ngx_int_t (*process_header)(ngx_http_request_t *r); /* proxy_pass's own, */
	ngx_int_t (*reinit_request)(ngx_http_request_t *r); /* of the upstream that this attempt went to */
	http_ending ending;
	ngx_uint_t behind; /* the answer is another gateway's own, of which the service behind it knows nothing */

	http_problem problem; /* where step is HTTP_REFUSE or HTTP_GIVE_UP */
	http_report report;
	int status; /* of the answer, and its headers as the contract stores them */
	char *headers;
	gate_bytes body; /* held; or of a stored answer or a problem that takes its place */
	gate_reply reply;
	ngx_uint_t replaced; /* reply goes out instead of the held answer */
	ngx_uint_t header_sent;
	ngx_uint_t client_gone; /* a streamed answer's: the upstream is heard to its end all the same */
	ngx_msec_t report_started;
	ngx_uint_t report_tries;
	ngx_uint_t reported;    /* `report` says something */
	ngx_uint_t report_lost; /* no further try can help */
	ngx_uint_t running;     /* counted as running; */
	ngx_uint_t held;        /* counted as held */
	off_t streamed_bytes;
	gate_bytes tail; /* of a streamed answer: its end, which waits for the report */
} gate_attempt;

/* ---- _check.c: combinations that nginx -t refuses ---- */
ngx_int_t gate_locations_check(ngx_conf_t *cf, gate_main *conf);

/* ---- _variables.c ---- */
ngx_int_t gate_variables_add(ngx_conf_t *cf);
http_text gate_request_id(ngx_http_request_t *r);

/* ---- _database.c: one batcher per worker ---- */
ngx_int_t gate_database_start(ngx_cycle_t *cycle, gate_main *conf);
void gate_database_stop(void);
once_batcher *gate_batcher(void); /* NULL: cannot be made, or not in a worker */
const char *gate_owner(void);

/* ---- _attempt.c: the life of an attempt ---- */
gate_attempt *gate_attempt_new(ngx_http_request_t *r, gate_location *location);
gate_attempt *gate_attempt_of(ngx_http_request_t *r); /* of the main request, redirected or not; NULL: none */
void gate_attempt_settle(gate_attempt *attempt);      /* frees it where nobody knows it any more */
void gate_attempt_resume(gate_attempt *attempt);      /* runs the phases again */
void gate_attempt_log(gate_attempt *attempt, const char *event, const once_error *error);
void gate_attempt_refuse(gate_attempt *attempt, http_problem problem,
                         const char *detail); /* decides, does not resume */
/* An event of an attempt; its handler finds it by gate_attempt_at. */
void gate_event_init(ngx_event_t *event, ngx_event_handler_pt handler);
#define gate_attempt_at(event, member) ((gate_attempt *)((u_char *)(event)-offsetof(gate_attempt, member)))
ngx_int_t gate_bytes_add(gate_bytes *bytes, const u_char *data, size_t length, size_t length_max);
void gate_bytes_free(gate_bytes *bytes);
/* The key for logs and variables: a hash, unless once_log_keys says clear. out: room for 256 bytes. */
size_t gate_key_shown(const gate_location *location, const char *text, u_char *out);

/* ---- _request.c: phases, key, body, fingerprint ---- */
ngx_int_t gate_request_strip(ngx_http_request_t *r);
ngx_int_t gate_request_handler(ngx_http_request_t *r);

/* ---- _claim.c: the claim, the wait, and what they decide ---- */
void gate_claim(gate_attempt *attempt);
void gate_claim_failed(gate_attempt *attempt, const once_error *error, once_code code);
void gate_claim_abandon(gate_attempt *attempt); /* the request is gone before anything was sent */
void gate_wait_end(gate_attempt *attempt);      /* takes it off the list and stops its timer */
void gate_wait_wake(const once_intent *intent);

/* ---- _answer.c: the upstream's answer ---- */
ngx_int_t gate_answer_content(ngx_http_request_t *r); /* in place of the location's content handler */
ngx_int_t gate_answer_redirected(gate_attempt *attempt);
void gate_answer_filters(void);
ngx_uint_t gate_request_sent(const gate_attempt *attempt, const ngx_http_request_t *r);

/* ---- _report.c: telling the contract how it ended ---- */
void gate_report(gate_attempt *attempt);
void gate_report_ready(gate_attempt *attempt); /* the held answer may go */
void gate_renew_start(gate_attempt *attempt);
void gate_renew_stop(gate_attempt *attempt);

/* ---- _replay.c: stored answers and problems ---- */
ngx_int_t gate_reply_stored(gate_reply *reply, const once_answer *answer); /* NGX_DECLINED: nothing is stored */
/* The problem in place of an answer. status 0: its own. */
ngx_int_t gate_reply_problem(gate_attempt *attempt, http_problem problem, ngx_uint_t status, const char *detail);
void gate_reply_free(gate_reply *reply);
ngx_int_t gate_reply_head(ngx_http_request_t *r, gate_reply *reply);                  /* fills headers_out */
ngx_int_t gate_reply_body(ngx_http_request_t *r, gate_bytes *body, ngx_chain_t *out); /* borrows it */
ngx_int_t gate_reply_send(ngx_http_request_t *r, gate_reply *reply);                  /* from a phase */
/* ---- _status.c: counters in shared memory, and the page that shows them ---- */
ngx_int_t gate_status_zone(ngx_conf_t *cf, gate_main *conf);
ngx_int_t gate_status_handler(ngx_http_request_t *r);
ngx_int_t gate_ready_handler(ngx_http_request_t *r);
void gate_status_start(gate_main *conf);
void gate_status_stop(void);
void gate_count_step(const char *scope, http_step step, http_problem problem);
void gate_count_problem(const char *scope, http_problem problem);
void gate_count_report(const gate_attempt *attempt);
void gate_count_refused(void);  /* a report that was refused */
void gate_count_unstored(void); /* one that did not get through */
void gate_count_gauge(ngx_int_t running, ngx_int_t waiting, ngx_int_t held);
