/* SPDX-License-Identifier: PostgreSQL */
/*
 * http.h: the decisions of the HTTP door, independent of any server: headers, problem documents,
 * and what to do on each verdict and each answer of the upstream. Pure functions; nothing here
 * blocks or uses a database, and the comments say which functions allocate. The gateway calls it;
 * it may call libpgonce's names and json. Sources: RFC 9457 (problem documents), RFC 9110 (HTTP),
 * draft-ietf-httpapi-idempotency-key-header-07.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pgonce_batcher.h"

/* The caller's bytes, not terminated. */
typedef struct http_text {
	const char *data;
	size_t length;
} http_text;

/*
 * What an answer says about the effect: by its header Once-Effect; by its body, if it is another
 * gateway's problem; or by its status.
 */
typedef enum http_effect {
	HTTP_EFFECT_UNSAID = 0,
	HTTP_EFFECT_NONE,   /* it did not happen: the key is released */
	HTTP_EFFECT_DONE,   /* it happened: the answer is stored */
	HTTP_EFFECT_UNKNOWN /* in doubt */
} http_effect;

/* ---- problem.c ---- */

/* The answers that the doors themselves give. */
typedef enum http_problem {
	/* spec: problem-names */
	/* 400: no key, and one is required */
	HTTP_PROBLEM_KEY_MISSING,
	/* 400: the header's value is not a key */
	HTTP_PROBLEM_KEY_MALFORMED,
	/* 400: more than one header line */
	HTTP_PROBLEM_KEY_REPEATED,
	/* 400: the tenant is missing */
	HTTP_PROBLEM_TENANT_MISSING,
	/* 422: the key of another request */
	HTTP_PROBLEM_MISMATCH,
	/* 409: an attempt is running */
	HTTP_PROBLEM_ACTIVE,
	/* 409: it is unknown whether it took effect */
	HTTP_PROBLEM_IN_DOUBT,
	/* 409: a key of a retired day */
	HTTP_PROBLEM_EXPIRED,
	/* 409: done, but its answer was too large to keep */
	HTTP_PROBLEM_TOO_LARGE,
	/* 409: finished for good, with no stored HTTP answer */
	HTTP_PROBLEM_NO_ANSWER,
	/* 413: a request body that is too large to take a fingerprint of */
	HTTP_PROBLEM_BODY_TOO_LARGE,
	/* 403: the tenant or the scope is refused to the door's role */
	HTTP_PROBLEM_REFUSED,
	/* 503: the database cannot be asked. Nothing was done */
	HTTP_PROBLEM_UNAVAILABLE,
	/* 503: there is a stored answer, and no memory to send it now */
	HTTP_PROBLEM_BUSY,
	/* 503: the effect may have happened, and its answer could not be stored */
	HTTP_PROBLEM_NOT_STORED,
	/* 502, or 504: what is behind the door got nothing of the request */
	HTTP_PROBLEM_UNREACHED,
	/* 502, or 504: what is behind the door got the request, and gave no answer */
	HTTP_PROBLEM_UNANSWERED,
	/* 503: a client's middleware ended the attempt in its own transaction */
	HTTP_PROBLEM_TIMED_OUT,
	/* end of spec */
	HTTP_PROBLEMS
} http_problem;

int http_problem_status(http_problem problem);
/* "key-missing": for logs, counters, and the page's anchor */
const char *http_problem_slug(http_problem problem);
const char *http_problem_title(http_problem problem);
/* Is it useful for a program to send the same request with the same key again, and soon? */
bool http_problem_retryable(http_problem problem);
/* seconds, for Retry-After; 0: not retryable */
int http_problem_retry_after(http_problem problem);

enum {
	HTTP_PROBLEM_BYTES_MAX = 1664,
	HTTP_PROBLEM_BASE_MAX = 256,
	HTTP_PROBLEM_DETAIL_MAX = 300,
	HTTP_PROBLEM_REQUEST_MAX = 64
};
/* Details of this occurrence; all zero: none. */
typedef struct http_occurrence {
	/*
	 * The base of the type, before the slug, so that types can lead to the operator's copy of
	 * docs/reference/problems.md ("https://docs.example/pgonce/problems#"). NULL, or one that
	 * http_problem_base_good refuses: "urn:pgonce:problem:".
	 */
	const char *type_base;
	int status; /* instead of the problem's own; 0: the problem's own */
	/* one more sentence. ASCII; any other byte becomes '?'; cut at HTTP_PROBLEM_DETAIL_MAX */
	const char *detail;
	/* the request's id, for instance; if not letters and digits, instance is left out */
	http_text request;
} http_occurrence;
/*
 * Writes application/problem+json (RFC 9457: type, title, status, detail, instance; and retryable)
 * and returns its length; at most size bytes with a NUL, and always the complete document: 0 and ""
 * if it does not fit; HTTP_PROBLEM_BYTES_MAX is always enough.
 */
size_t http_problem_write(http_problem problem, const http_occurrence *occurrence, char *out, size_t size);
/*
 * Is it 1 to HTTP_PROBLEM_BASE_MAX characters that are allowed in a URI, without quote and
 * backslash?
 */
bool http_problem_base_good(const char *type_base);

/*
 * What a problem document says about the effect of its request, if another gateway behind this one
 * wrote it: its type has the default base, or, with another base, its instance is a request of a
 * gateway. HTTP_EFFECT_UNSAID: any other text. HTTP_EFFECT_DONE is returned if the effect happened
 * and has no answer to store.
 */
http_effect http_problem_effect(http_text document);

/* ---- headers.c ---- */

typedef struct http_header {
	http_text name;
	http_text value;
} http_header;

enum {
	HTTP_HEADERS_MAX = 1024 /* of one answer */
};

/*
 * Is this response header stored and replayed? http_header_never excludes a header in any case.
 * Others by the allow list: names, or prefixes that end in '*'; count 0 takes the default list of
 * headers.c. Case does not matter.
 */
bool http_header_kept(http_text name, const http_text *allowed, size_t count);
/*
 * A header that is never replayed: credentials (Set-Cookie, WWW-Authenticate, ...), hop-by-hop
 * headers (RFC 9110 section 7.6.1), framing (Content-Length, ...), headers that the server adds to
 * each answer (Date, Server, Age, ...), instructions to the proxy (X-Accel-*), and the gateway's
 * own (Idempotency-Replayed, Once-*). An allow list that names one is a mistake.
 */
bool http_header_never(http_text name);
/*
 * Is it forbidden to clients, because the gateway sends it to the upstream? Once-*,
 * Idempotency-Replayed; also with '_' for '-', since CGI, WSGI and similar interfaces read both as
 * the same name.
 */
bool http_header_reserved(http_text name);
/*
 * Headers as the contract stores them, a JSON object that keeps order, repetition and bytes:
 *   {"h": [["Content-Type", "text/plain"], ["X-Name", null, "636166e9"]]}
 * A value with bytes outside printable ASCII (and tab) is null, followed by its bytes in
 * hexadecimal: which text beyond ASCII jsonb accepts depends on the database's encoding, and one
 * refused value would make a whole batch fail. A header that cannot be sent again (its name is not
 * a token; CR, LF or NUL in its value) is left out.
 * Encode: the caller frees *json. False if memory is short or there are more than HTTP_HEADERS_MAX:
 * the effect has happened nevertheless, so report HTTP_REPORT_TOO_LARGE.
 * Decode: *headers and all their text are one block that the caller frees (NULL if *count is 0).
 * The flat form that hand-written SQL stores is decoded too, its text as UTF-8:
 *   {"Content-Type": "text/plain", "Link": ["a", "b"]}
 * NULL and "{}" are no headers. False if the text has neither form, names something that cannot be
 * sent as a header, or memory is short: send nothing of it. Decoded headers are not filtered: check
 * each with http_header_never, since a service that completes its own intent may store anything.
 */
bool http_headers_encode(const http_header *headers, size_t count, char **json);
bool http_headers_decode(const char *json, http_header **headers, size_t *count);

/* ---- redirect.c ---- */

/*
 * The request that a client sends when it follows a redirect: the reference of a Location (RFC
 * 3986, section 5) resolved against the request's Host and target (path and query). *to_host, as
 * its Host header will be, and *to_target point into out, one after the other and not terminated.
 * False if that is not certain (a scheme other than HTTP's, a path that is not absolute, characters
 * that clients encode in different ways) or it does not fit.
 */
bool http_redirect(http_text host, http_text target, http_text location, char *out, size_t size, http_text *to_host,
                   http_text *to_target);

/* ---- decide.c: the state machine ---- */

#define HTTP_EFFECT_HEADER "Once-Effect"
/* The header's value: none, done or unknown, in any case. Anything else is HTTP_EFFECT_UNSAID. */
http_effect http_effect_parse(http_text value);

/* Statuses of HTTP, from 300 to 599. */
typedef struct http_statuses {
	uint64_t bits[10];
} http_statuses;
/* "503", or "4xx" for all of them. False: it is neither, or out of range. */
bool http_statuses_add(http_statuses *statuses, http_text word);
bool http_statuses_have(const http_statuses *statuses, int status);

/*
 * Does a header of this name, in an answer with this status, ask for the same request again?
 * Retry-After of a 4xx or a 503 (RFC 9110, section 10.2.3), the challenge of a 401 or a 407, and
 * the Location of a 307 or a 308.
 */
bool http_header_asks(int status, http_text name);
/*
 * Can it be the answer of a proxy, or of a timer, that gave up while the service behind it may
 * still be working?
 */
bool http_status_gives_up(int status);

/* The settings of a location; the directives of the same names. */
typedef struct http_policy {
	/* once_in_doubt retry: the upstream is idempotent itself, so run again */
	bool doubt_retries;
	bool waits;      /* once_wait is not 0, and has not passed yet for this request */
	bool fails_open; /* once_fail open: without the database, requests pass unprotected */
	uint32_t stored; /* once_store: bits of HTTP_STORED_* */
	/* once_on_5xx: release is NONE, store is DONE; otherwise in doubt */
	http_effect server_errors;
	const http_statuses *released; /* once_release; NULL: no status */
	bool asking_ignored;           /* once_release none: a request to try again proves nothing */
	size_t response_bytes_max;
} http_policy;

enum {
	HTTP_STORED_2XX = 1, /* always: it is done, so it must not run again */
	HTTP_STORED_3XX = 2, /* but not what is released earlier: see http_decide_ending */
	HTTP_STORED_4XX = 4,
	HTTP_STORED_DEFAULT = 7
};

/* What to do with a request, after its claim. */
typedef enum http_step {
	HTTP_RUN,    /* pass it to the upstream, under the answer's fence */
	HTTP_REPLAY, /* send the stored answer */
	HTTP_WAIT,   /* another attempt runs: ask again later */
	HTTP_REFUSE, /* send *problem */
	HTTP_PASS,   /* unprotected (fail open): pass it, store nothing */
	HTTP_STEPS
} http_step;
const char *http_step_name(http_step step); /* "run", ...: for logs and counters */
/*
 * answer NULL: the claim failed with code. *problem is set with HTTP_REFUSE. A takeover of a stale
 * lease (PROCESSING_STALE) runs only if doubt_retries is set, since the lost worker may have sent
 * the request: without it the claim does not ask for a takeover, and never gets this verdict.
 * RETRYABLE_FAILURE runs. Nothing runs without a fence and the state PROCESSING, and nothing is
 * replayed without a status of 200 to 599: a contradictory answer is refused. Failing open applies
 * if the database cannot be asked (lost, late, overloaded, an internal error), but neither to its
 * decision about this request, nor if the contract is missing or has another version: that would
 * leave a whole deployment unprotected, unnoticed.
 */
http_step http_decide_claim(const http_policy *policy, const once_answer *answer, once_code code,
                            http_problem *problem);

/* How the upstream's answer ended. */
typedef struct http_ending {
	int status;         /* of the answer that the client gets */
	http_effect effect; /* the upstream's statement about it */
	bool asks;          /* a header asks for the same request again: http_header_asks */
	/* the upstream's own status, not one that the server made (502, 504, error_page) */
	bool from_upstream;
	bool request_sent; /* any byte of the request was sent to any upstream that was tried */
	bool complete;     /* all of the answer came */
	bool too_large;    /* more than response_bytes_max */
	bool lease_lost;   /* a renewal was refused: another attempt may run it or has completed it */
} http_ending;

typedef enum http_report {
	HTTP_REPORT_COMPLETE, /* once.complete with the answer */
	HTTP_REPORT_FINAL,    /* once.fail for good, with the answer */
	/*
	 * once.complete without the answer: result_type HTTP_RESULT_TOO_LARGE, which once.fail does not
	 * have
	 */
	HTTP_REPORT_TOO_LARGE,
	HTTP_REPORT_RELEASE, /* nothing was sent: once.release */
	/* once.fail, retryable: no lasting effect, by the answer's or the location's word */
	HTTP_REPORT_RETRYABLE,
	HTTP_REPORT_IN_DOUBT, /* once.fail, in doubt */
	HTTP_REPORT_NOTHING,  /* the lease is lost, and this attempt knows nothing useful */
	HTTP_REPORTS
} http_report;
#define HTTP_RESULT_TOO_LARGE "once.too_large"
/*
 * An unknown outcome is in doubt (or retryable, with doubt_retries). The first line that matches:
 *   nothing sent, no answer of the upstream's        RELEASE
 *   sent, and no whole answer of the upstream's own  in doubt
 *   effect NONE: Once-Effect: none, or a problem     RETRYABLE, whatever the status is
 *   effect DONE                                      COMPLETE, or TOO_LARGE: no replay
 *   effect UNKNOWN                                   in doubt
 *   no final status (1xx, 600 and more)              in doubt
 *   2xx                                              COMPLETE, or TOO_LARGE
 *   a status that `released` lists                   RETRYABLE: the location is responsible
 *   421, 425, and one that `asks`                    RETRYABLE, unless asking_ignored
 *   408                                              in doubt: a timeout undoes nothing
 *   3xx, if the class is stored                      COMPLETE, or TOO_LARGE
 *   4xx, if the class is stored                      FINAL, or TOO_LARGE
 *   3xx, 4xx, not stored                             in doubt
 *   5xx, server_errors DONE                          FINAL, or TOO_LARGE
 *   502, 503, 504                                    in doubt: a proxy behind it gave up
 *   5xx, server_errors NONE                          RETRYABLE
 *   5xx otherwise                                    in doubt: it may have committed
 * With a lost lease the known outcome is still reported, since the fence guards the row: an intent
 * that a duplicate has found stale and put in doubt accepts the report of its own attempt. If that
 * report is refused, peek: the stored outcome is the answer.
 */
http_report http_decide_ending(const http_policy *policy, const http_ending *ending);
const char *http_report_name(http_report report); /* "complete", ...: for logs and counters */

/* What happens to the copies of stored answers that the workers share. */
typedef enum http_cache_event {
	HTTP_CACHE_HIT,      /* a replay was answered from it */
	HTTP_CACHE_MISMATCH, /* another request with the key of a copy */
	HTTP_CACHE_MISS,     /* the database was asked */
	HTTP_CACHE_KEPT,     /* an answer was copied into it */
	HTTP_CACHE_EVICTED,  /* one was removed early, to make room for another */
	HTTP_CACHE_EMPTIED,  /* all were removed: the server may have lost what they contain */
	HTTP_CACHE_EVENTS
} http_cache_event;

/* ---- metrics.c: the status page ---- */
/*
 * Counters for all workers, in memory that they share: integers only, no pointers, a fixed size;
 * all bytes are zero except those that http_metrics_init writes. Counters only grow and are added
 * to atomically; a killed worker leaves them consistent. Gauges belong to a worker's slot and
 * disappear with it.
 */
enum {
	HTTP_METRICS_SCOPES_MAX = 64,    /* counted separately; row 0 has the others */
	HTTP_METRICS_SCOPE_BYTES = 256,  /* a name with its NUL */
	HTTP_METRICS_WORKERS_MAX = 1024, /* as many processes as nginx can have (NGX_MAX_PROCESSES) */
	HTTP_METRICS_NODES_MAX = 128,    /* those of a configuration, and of the one before a reload */
	HTTP_METRICS_DECISIONS = HTTP_STEPS + HTTP_PROBLEMS,
	HTTP_METRICS_TEXT_MAX = 4 << 20
};

typedef struct http_metrics_scope {
	uint64_t hash;  /* of the name; 0: free */
	uint64_t ready; /* the name is written */
	char name[HTTP_METRICS_SCOPE_BYTES];
	uint64_t decisions[HTTP_METRICS_DECISIONS]; /* by step, but HTTP_REFUSE by its problem */
} http_metrics_scope;

/* One of several nodes that share the tenants. */
typedef struct http_metrics_node {
	uint64_t hash; /* as of a scope */
	uint64_t ready;
	char name[HTTP_METRICS_SCOPE_BYTES];
} http_metrics_node;

/* What a worker says about a node. */
enum {
	HTTP_METRICS_NODE_CLAIMS = 1,  /* the connection for claims is there, */
	HTTP_METRICS_NODE_REPORTS = 2, /* and the one for reports */
	HTTP_METRICS_NODE_KNOWN = 4    /* the node is in the worker's configuration */
};

/*
 * One process. Only that process writes here; the statistics are those already included in the
 * totals.
 */
typedef struct http_metrics_worker {
	uint64_t present;      /* its process id; 0: free */
	uint64_t running;      /* requests at the upstream, under a lease */
	uint64_t waiting;      /* duplicates that wait for their original */
	uint64_t held;         /* answers held back until they are stored */
	uint64_t replay_bytes; /* of stored answers that are being sent */
	once_batcher_statistics counted;
	unsigned char nodes[HTTP_METRICS_NODES_MAX]; /* by row; all 0: there is one database */
} http_metrics_worker;

typedef struct http_metrics {
	uint64_t bytes; /* sizeof this: memory of another version is not read */
	uint64_t reports[HTTP_REPORTS];
	uint64_t reports_refused;  /* the fence was lost, or it was finished otherwise */
	uint64_t reports_unstored; /* not stored in the database */
	uint64_t cache[HTTP_CACHE_EVENTS];
	uint64_t connects;
	uint64_t connect_failures;
	uint64_t batches[2];
	uint64_t operations[2];
	uint64_t resolved_claims;
	uint64_t resent;
	uint64_t rerouted; /* to another node, since the slot had moved */
	uint64_t timeouts;
	uint64_t latency[ONCE_LATENCY_BUCKETS];
	uint64_t latency_sum_us;
	http_metrics_node nodes[HTTP_METRICS_NODES_MAX];
	http_metrics_scope scopes[HTTP_METRICS_SCOPES_MAX];
	http_metrics_worker workers[HTTP_METRICS_WORKERS_MAX];
} http_metrics;

/*
 * Called before workers start. Keeps the counts of a predecessor of the same layout (a reload),
 * otherwise starts at zero. Forgets nodes that no worker knows any more.
 */
void http_metrics_init(http_metrics *metrics);
/*
 * A worker's slot, its gauges at zero. slot: unique among living processes (ngx_process_slot),
 * below HTTP_METRICS_WORKERS_MAX.
 */
http_metrics_worker *http_metrics_enter(http_metrics *metrics, size_t slot, uint64_t process_id);
void http_metrics_leave(http_metrics_worker *worker);
/* The row of a scope, for http_metrics_decided; worth keeping if the scope is constant. */
size_t http_metrics_scope_row(http_metrics *metrics, http_text scope);
/* The row of a node, for http_metrics_connected. HTTP_METRICS_NODES_MAX: no row is left. */
size_t http_metrics_node_row(http_metrics *metrics, http_text name);
/* Does nothing without a row. */
void http_metrics_connected(http_metrics_worker *worker, size_t row, const bool connected[2]);
/* problem is used with HTTP_REFUSE only. */
void http_metrics_decided(http_metrics *metrics, size_t row, http_step step, http_problem problem);
/*
 * Adds what a batcher has counted since the last call. Also after its statistics restarted (another
 * batcher).
 */
void http_metrics_batched(http_metrics *metrics, http_metrics_worker *worker,
                          const once_batcher_statistics *statistics);
/* Any of the struct's counters: http_metrics_add(&metrics->reports[report], 1). */
void http_metrics_add(uint64_t *counter, uint64_t increment);
/*
 * *text: terminated, freed by the caller; false if memory is short. JSON: one object. OpenMetrics
 * 1.0.
 */
bool http_metrics_json(const http_metrics *metrics, char **text, size_t *length);
bool http_metrics_openmetrics(const http_metrics *metrics, char **text, size_t *length);
