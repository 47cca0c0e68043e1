/* SPDX-License-Identifier: PostgreSQL */
/*
 * pgonce_batcher.h: libpgonce for servers with an event loop: the batcher, which never blocks, and
 * the fingerprint of a request whose body comes in pieces. The conventions of pgonce.h hold, except
 * that only once_poll_run waits for the network.
 */
#ifndef PGONCE_BATCHER_H
#define PGONCE_BATCHER_H

#include "pgonce.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Fingerprints without a session ---------------------------------------------------------- */

#define ONCE_SALT_BYTES 32
/*
 * once_fingerprint_request for a body that comes in pieces, with a salt that the caller has
 * (once_batcher_salt): both give the same fingerprint for the same request. body_bytes is the
 * length of the whole body; finish fails with ONCE_USAGE if the pieces have another total length.
 * Never blocks.
 */
typedef struct once_hash once_hash;
ONCE_API ONCE_MUST_CHECK once_code once_hash_start(const unsigned char salt[ONCE_SALT_BYTES], const char *method,
                                                   const char *target, const char *content_type, uint64_t body_bytes,
                                                   once_hash **hash, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_hash_add(once_hash *hash, once_bytes piece, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_hash_finish(once_hash *hash, once_fingerprint *fingerprint, once_error **error);
/*
 * After once_hash_finish: the fingerprint of the same request at another target, to which an answer
 * has redirected it. See once_outcome.
 */
ONCE_API ONCE_MUST_CHECK once_code once_hash_redirect(const once_hash *hash, const char *target,
                                                      once_fingerprint *fingerprint, once_error **error);
ONCE_API void once_hash_free(once_hash *hash); /* NULL is allowed. */

/* ---- The batcher ----------------------------------------------------------------------------- */
/*
 * For servers with an event loop: many requests submit operations, each with a callback; the
 * batcher joins them into the *_many functions, one batch in flight per connection, the next one
 * growing meanwhile. It has two connections: 0 for operations that begin an attempt (claims, peeks,
 * salts), 1 for those that end it (completions, failures, renewals, releases). While 1 is busy,
 * operations that end attempts share the transactions of 0; there they wait at most 50 ms for a
 * locked row, and then move to 1, so they never hold up claims for long. Where commits take long,
 * it uses more connections if it may (options.connections_max), for claims, peeks and, in the same
 * way as 0, for operations that end attempts; see statistics.commit_us. The batcher is a state
 * machine: it never blocks, sleeps or starts a thread, and it uses the loop only through once_loop.
 * One batcher belongs to one thread.
 *
 * An operation ends exactly once, in its callback, with an answer or an error; never inside the
 * call that submits it. A callback may submit, forget, or close the batcher. Operations that wait
 * together may run in any order: if the order matters, submit the second from the callback of the
 * first.
 *
 * A batch is one transaction. One operation's failure never affects its neighbours: operations that
 * failed together are sent again separately. Serialization failures, deadlocks and timeouts of the
 * server are retried a few times.
 *
 * When a connection is lost, the batcher reconnects with backoff. Reports, renewals and releases in
 * flight are sent again. The fence makes that safe: a report that had arrived is answered REPEATED,
 * which the batcher passes on as STORED; a release or a retryable failure that had arrived may be
 * answered REPORT_REFUSED: in both cases the intent is no longer this attempt's. A claim in flight
 * is looked up: each statement's claims have a unique owner (the caller's, '#', and a number that
 * is used once), so an intent that is processing under this owner belongs to this attempt, with its
 * fence. Its verdict is NEW_CLAIM. For a later attempt it is RETRYABLE_FAILURE if its claim never
 * takes over (on_stale), otherwise PROCESSING_STALE: it may have been a takeover.
 *
 * When an operation's time is over, its submitter gets an error, and an operation that may have an
 * effect continues: a report or a release is retried for 9 more operation timeouts (ONCE_DEADLINE,
 * outcome unknown); a claim that was sent (ONCE_OUTCOME_UNKNOWN) is looked up, and given back if it
 * was granted, since it will not run: with once.release, or, if it took over from a lost attempt,
 * by ending its lease, so that the next attempt takes over from a lost one too. The same for a
 * claim that was forgotten. For a graceful end wait until nothing is pending, then close.
 *
 * In conninfo, tcp_user_timeout and keepalives (PostgreSQL manual, "Parameter Key Words") detect a
 * dead network sooner than answer_timeout_ms does; target_session_attrs=read-write finds the
 * primary. The batcher leaves a server that says it is a standby.
 */
typedef struct once_batcher once_batcher;
typedef struct once_operation once_operation;

#define ONCE_NEVER INT64_MAX
/*
 * What a loop does for a batcher. The batcher may call a hook again with the same arguments, which
 * must do no harm. `connection` is below options.connections_max. A hook must not call the batcher.
 */
typedef struct once_loop {
	void *context; /* first argument of each hook */
	/*
	 * Watch fd, level-triggered (libpq need not drain the socket), and call once_batcher_ready when
	 * it is ready. Both false: keep it registered, without events. If the fd differs from the one
	 * before, that one was forgotten first.
	 */
	void (*watch)(void *context, int connection, int fd, bool read, bool write);
	/*
	 * Forget fd, which libpq is about to close, or, at the connection's end, has just closed: it is
	 * not an error if the kernel no longer knows it. Never close it.
	 */
	void (*forget)(void *context, int connection, int fd);
	/*
	 * Call once_batcher_tick when now_ms reaches due_ms; ONCE_NEVER: not at all. There is one
	 * timer; the last call counts. idle: no operation waits for it, so a loop that is about to end
	 * need not stay for it. A tick that comes too soon does no harm.
	 */
	void (*timer)(void *context, int64_t due_ms, bool idle);
	/*
	 * Call once_batcher_flush once, after the events of this round: operations submitted in one
	 * round are sent as one batch.
	 */
	void (*defer)(void *context);
	int64_t (*now_ms)(void *context); /* a monotonic clock */
} once_loop;

/* Zero-initialise; a zero takes the default. Later versions append members. */
typedef struct once_batcher_options {
	int64_t connect_timeout_ms; /* one attempt to connect; default 5,000 */
	/* for a batch in flight; then its connection is closed; default 5,000 */
	int64_t answer_timeout_ms;
	/* for an operation from submission to callback; then ONCE_DEADLINE; default 10,000 */
	int64_t operation_timeout_ms;
	/* first pause before reconnecting, doubled each time, full jitter; default 50 */
	int64_t backoff_ms;
	int64_t backoff_max_ms; /* default 2,000 */
	/* how long a batch may wait to grow while none is in flight; default 0: not at all */
	int64_t batch_age_ms;
	size_t batch_max; /* operations in a batch; default 256, at most 10,000 */
	/*
	 * their bytes, or those of the expected answers; default 8 MiB. A larger operation goes alone.
	 */
	size_t batch_bytes_max;
	/* operations submitted and not ended; beyond: ONCE_OVERLOADED; default 65,536 */
	size_t pending_max;
	size_t pending_bytes_max; /* their bytes; default 256 MiB */
	/* use prepared statements; turned off for good if a pooler turns out not to keep them */
	bool prepare;
	/*
	 * Fail fast while disconnected: connects at once and not with the first operation; and after a
	 * failed attempt to connect, until one succeeds, a claim, a peek and a salt end at once with
	 * ONCE_CONNECTION. Claims that may be under way, and all reports, are still retried.
	 */
	bool impatient;
	/* read statistics.server and .retention_ms with each connection: once.count_cached */
	bool caches;
	/*
	 * One of several nodes that share the tenants: read the slots with each connection
	 * (once_batcher_slot_epoch), and leave a server that is not divided, as if it could not be
	 * reached.
	 */
	bool divided;
	/*
	 * The most connections that it uses, 2 to 8; default 2. The numbers of a loop's hooks are below
	 * it. More than two are used while commits take 1.5 ms and more and several operations wait for
	 * them. Then a batch also waits a quarter of that time for the operations that follow the
	 * answers of the last one. One that cannot be made is tried again after a minute.
	 */
	int connections_max;
} once_batcher_options;

#define ONCE_CONNECTIONS_MAX 8

/*
 * conninfo NULL or "" takes libpq's environment variables. Copies its arguments; connects with the
 * first operation or, with impatient, at the first flush. Name look-up in libpq blocks: use a
 * socket directory or hostaddr. Errors: ONCE_USAGE (a conninfo that libpq cannot read, a hook
 * missing, a time below 0 or above 7 days, more than 8 connections), ONCE_NO_MEMORY.
 */
ONCE_API ONCE_MUST_CHECK once_code once_batcher_open(const char *conninfo, const once_loop *loop,
                                                     const once_batcher_options *options, once_batcher **batcher,
                                                     once_error **error);
/*
 * Ends every operation with ONCE_CONNECTION (outcome unknown if it was in flight), within this
 * call. It calls no hook afterwards, and the loop must not call the batcher: drop pending calls of
 * flush and tick. From a callback: it takes effect at once, and the memory is freed when the
 * callback returns. NULL is allowed.
 */
ONCE_API void once_batcher_close(once_batcher *batcher);

/* The loop calls these; not from a callback. Callbacks run inside these three, and inside close. */
ONCE_API void once_batcher_ready(once_batcher *batcher, int connection, bool readable, bool writable);
ONCE_API void once_batcher_tick(once_batcher *batcher);
ONCE_API void once_batcher_flush(once_batcher *batcher);

/*
 * How an operation ends. Either answer or error is NULL; both are borrowed for the call. A verdict
 * such as MISMATCHED or REPORT_REFUSED is an answer; INVALID is turned into the error of its
 * SQLSTATE. The operation no longer exists: do not forget it afterwards (in its own callback that
 * does nothing).
 */
typedef void (*once_done)(void *argument, const once_answer *answer, const once_error *error);

/*
 * Submitting: everything is copied. operation: NULL if you will never forget it. done may be NULL
 * for reports, renewals and releases. owner: NULL is ""; the first 200 bytes of it are kept.
 * lease_ms, retention_ms 0: those of the scope. Errors, at once and without a callback: ONCE_USAGE;
 * ONCE_REFUSED, ONCE_SCOPE_REQUIRED and ONCE_KEY_MALFORMED (a tenant, scope or key that is missing
 * or not UTF-8, which would make the whole batch fail); ONCE_OVERLOADED; ONCE_NO_MEMORY;
 * ONCE_CONNECTION (the batcher is closed).
 */
ONCE_API ONCE_MUST_CHECK once_code once_batcher_claim(once_batcher *batcher, const once_intent *intent,
                                                      const once_fingerprint *fingerprint, const char *owner,
                                                      int64_t lease_ms, int64_t retention_ms, once_done done,
                                                      void *argument, once_operation **operation, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_complete(once_batcher *batcher, const once_intent *intent, int fence,
                                                         const once_outcome *outcome, once_done done, void *argument,
                                                         once_operation **operation, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_fail(once_batcher *batcher, const once_intent *intent, int fence,
                                                     once_failure failure, const once_outcome *outcome, once_done done,
                                                     void *argument, once_operation **operation, once_error **error);
/*
 * Answer: verdict STORED if the lease is still this attempt's, otherwise REPORT_REFUSED. The same
 * for release.
 */
ONCE_API ONCE_MUST_CHECK once_code once_batcher_renew(once_batcher *batcher, const once_intent *intent, int fence,
                                                      int64_t lease_ms, once_done done, void *argument,
                                                      once_operation **operation, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_release(once_batcher *batcher, const once_intent *intent, int fence,
                                                        once_done done, void *argument, once_operation **operation,
                                                        once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_peek(once_batcher *batcher, const once_intent *intent, once_done done,
                                                     void *argument, once_operation **operation, once_error **error);
/*
 * The salt of a tenant's fingerprints. Returns true and the salt if the batcher knows it; it keeps
 * a bounded number of tenants. If false, fetch it with once_batcher_salt. When its callback runs
 * with an answer, the batcher knows the salt; the answer itself has no data.
 */
ONCE_API bool once_batcher_known_salt(const once_batcher *batcher, const char *tenant,
                                      unsigned char salt[ONCE_SALT_BYTES]);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_salt(once_batcher *batcher, const char *tenant, once_done done,
                                                     void *argument, once_operation **operation, once_error **error);
/*
 * If several nodes share the tenants (options.divided, else ONCE_USAGE; one batcher for each node):
 * which node serves a tenant. once_batcher_slot_of: the tenant's slot, which every node knows; its
 * answer, STORED, has the slot (once_answer_slot, 0 to 63). once_batcher_slots asks which slots are
 * open at this node, as each new connection for claims does; its answer has no data.
 * once_batcher_slot_epoch: the epoch of a slot, and whether it was open, when the node was asked
 * last, also if its connections were lost since; 0: unknown. The node that has a slot open with the
 * highest epoch that any node says serves it. An operation that ends with ONCE_SLOT_CLOSED has done
 * nothing: ask for the slots again.
 */
#define ONCE_SLOTS 64
ONCE_API ONCE_MUST_CHECK once_code once_batcher_slots(once_batcher *batcher, once_done done, void *argument,
                                                      once_operation **operation, once_error **error);
ONCE_API ONCE_MUST_CHECK once_code once_batcher_slot_of(once_batcher *batcher, const char *tenant, once_done done,
                                                        void *argument, once_operation **operation, once_error **error);
ONCE_API int once_answer_slot(const once_answer *answer);
ONCE_API int64_t once_batcher_slot_epoch(const once_batcher *batcher, int slot, bool *open);
/*
 * Attempts that were answered from copies of stored outcomes, for once.counts(). The answer,
 * STORED, has no data; statistics.server and statistics.retention_ms are current as of then. Uses
 * the connection of the claims. After a lost connection it is sent again, so it may count twice.
 * ONCE_USAGE if options.caches is not set.
 */
typedef struct once_cached {
	int64_t replays;
	int64_t finals; /* replays of final failures */
	int64_t mismatches;
} once_cached;
ONCE_API ONCE_MUST_CHECK once_code once_batcher_count_cached(once_batcher *batcher, const once_cached *cached,
                                                             once_done done, void *argument, once_operation **operation,
                                                             once_error **error);
/*
 * For a batcher's claim that is a replay: how long its outcome is kept at least, at most a day; a
 * copy may be served for that time, counted from when the claim was submitted. 0: unknown.
 */
ONCE_API int once_answer_kept_ms(const once_answer *answer);

/*
 * The submitter goes away: the callback will not run. A report, renewal or release continues, so
 * that a completion outlives its client; a claim, peek, salt or slot that was not sent is dropped,
 * and a claim that was sent and is granted is given back. Do not call it after the callback has
 * run. NULL is allowed.
 */
ONCE_API void once_operation_forget(once_operation *operation);

/* Counted since the batcher was opened. Later versions append members. */
#define ONCE_LATENCY_BUCKETS 16
typedef struct once_batcher_statistics {
	size_t pending; /* operations not ended, including forgotten ones */
	size_t pending_bytes;
	bool connected[2];
	uint64_t connects; /* successful, with the contract checked; also those of more_connections */
	uint64_t connect_failures;
	/*
	 * sent, with operations that begin attempts, and with those that end them; a batch with both
	 * counts in both
	 */
	uint64_t batches[2];
	uint64_t operations[2];       /* in them */
	uint64_t resolved_claims;     /* claims found to be ours after a lost connection */
	uint64_t resent;              /* operations sent again after a lost connection */
	uint64_t timeouts;            /* of connecting and of batches */
	uint64_t released_claims;     /* granted after their submitter had gone, and given back */
	uint64_t failed_transactions; /* by the server; their operations go again separately */
	/*
	 * Batches by their time from sending to answer: below 2^i * 100 microseconds; the last bucket
	 * has the rest.
	 */
	uint64_t latency[ONCE_LATENCY_BUCKETS];
	uint64_t latency_sum_us;
	uint64_t losses; /* connections that were lost after they had been made */
	/*
	 * If options.caches is set: the server of all connections, as a number that changes after a
	 * restart, a failover or a restore, in another database and for another role; 0: unknown, or
	 * the connections differ. And the shortest retention of all scopes, of at most a day.
	 */
	uint64_t server;
	int64_t retention_ms;
	size_t more_connections; /* that there are besides the two */
	/*
	 * How long a commit took lately: the shortest time of a batch that wrote something, without
	 * what its operations take; 0: unknown. Known if options.connections_max is above 2.
	 */
	int64_t commit_us;
} once_batcher_statistics;
ONCE_API void once_batcher_count(const once_batcher *batcher, once_batcher_statistics *statistics);

/* ---- A loop on poll(2) ----------------------------------------------------------------------- */
/* For programs without an event loop, and as an example of an adapter. */
typedef struct once_poll once_poll;
ONCE_API ONCE_MUST_CHECK once_code once_poll_open(const char *conninfo, const once_batcher_options *options,
                                                  once_poll **poll, once_error **error);
ONCE_API once_batcher *once_poll_batcher(once_poll *poll);
/*
 * Waits for events at most timeout_ms (-1: until one comes) and handles them. ONCE_USAGE if poll(2)
 * fails, and in a callback.
 */
ONCE_API ONCE_MUST_CHECK once_code once_poll_run(once_poll *poll, int64_t timeout_ms, once_error **error);
/* Also closes its batcher, like once_batcher_close, from a callback too. NULL is allowed. */
ONCE_API void once_poll_close(once_poll *poll);

#ifdef __cplusplus
}
#endif

#endif
