/* SPDX-License-Identifier: PostgreSQL */
/*
 * evented.h: what the files of the evented half share. An operation (operation.c) waits in a queue
 * for one of two connections (wire.c, which alone knows libpq's states), goes out in a batch
 * (pack.c), and ends by what the answer means for it (settle.c). batcher.c is what the loop
 * calls: it keeps the queues and the clock.
 */
#pragma once

#include "internal.h"
#include "pgonce_batcher.h"

enum {
	/*
	 * 0: what starts an attempt and, where the other is busy, what ends one; 1: what ends one, and
	 * it alone waits for as long as it takes for what others have locked
	 */
	WIRES = 2,
	LOST_MAX = 8,      /* how often a claim may be lost before it is given up */
	ATTEMPTS_MAX = 5,  /* how often a statement that fails by a passing trouble is sent */
	BATCH_MAX = 10000, /* the contract's own limit */
	/* of the caller's; what makes it unique comes behind, and all of
	 * it fits into the contract's 255 */
	OWNER_BYTES_MAX = 200,
	SALTS_SETS = 64,
	SALTS_WAYS = 4,
	SALT_TENANT_MAX = 255 * 4, /* bytes: the contract's 255 characters in UTF-8 */
	CAUSE_BYTES_MAX = 240,
	/* Reports are tried on for so many operation timeouts after their
	 * submitters were told that it is too late. */
	BACKGROUND_TIMEOUTS = 9
};

/* ---- Lists: links inside the operations, so that no list ever needs memory ---- */

typedef struct link {
	struct link *next;
	struct link *previous;
} link;

static inline void list_start(link *list)
{
	list->next = list;
	list->previous = list;
}

static inline bool list_empty(const link *list)
{
	return list->next == list;
}

static inline void link_before(link *place, link *added)
{
	added->next = place;
	added->previous = place->previous;
	place->previous->next = added;
	place->previous = added;
}

static inline void link_remove(link *removed)
{
	removed->previous->next = removed->next;
	removed->next->previous = removed->previous;
	list_start(removed);
}

/* ---- Operations ---- */

/*
 * In the order in which a transaction has them. A renewal goes before the report that ends its
 * attempt. What may wait for a locked row goes before claims, which never wait: so nobody who waits
 * holds the locks of claims. And a claim finds what was reported with it.
 */
typedef enum kind {
	KIND_RENEW,
	KIND_FAIL,
	KIND_COMPLETE,
	KIND_RELEASE,
	KIND_CLAIM,
	KIND_PEEK,
	KIND_COUNT,
	KIND_SALT
} kind;

static inline bool kind_starts(kind kind)
{
	return kind >= KIND_CLAIM;
}

/* What waits for a connection. */
typedef enum queue {
	QUEUE_START, /* what starts an attempt */
	QUEUE_END,   /* what ends one, or renews it */
	QUEUE_APART, /* ... and has waited too long for a row: connection 1 alone, without others */
	QUEUES
} queue;

typedef enum place {
	PLACE_QUEUE,
	PLACE_PAUSE,  /* waits for pause_until_ms, then goes back to the head of its queue */
	PLACE_FLIGHT, /* sent; the batch has it, and it must not be freed */
	PLACE_END     /* its callback is running */
} place;

/* With whom an operation may share a transaction. Raised after failures, never lowered. */
typedef enum sharing {
	SHARES_BATCH,  /* the batch's one transaction */
	SHARES_GROUP,  /* a transaction of its group's own */
	SHARES_NOTHING /* a statement and a transaction of its own */
} sharing;

struct once_operation {
	link place_link;
	/* all operations, by due_ms: those with somebody waiting in
	 * `live`, the others in `background` */
	link age_link;
	once_batcher *batcher;
	once_done done; /* NULL: nobody waits, the operation goes on by itself */
	void *argument;
	kind kind;
	place place;
	sharing sharing;
	bool background;
	bool peeks;   /* a claim that was lost: peek, whether it is ours */
	bool patient; /* waits for a row for as long as it takes */
	unsigned char attempts;
	unsigned char pauses;
	unsigned char lost_count;
	uint64_t serial;         /* the order of submission */
	uint64_t lost[LOST_MAX]; /* the tokens of the statements that it was lost in */
	int64_t submitted_ms;
	int64_t due_ms;
	int64_t pause_until_ms;
	size_t bytes;
	uint64_t tenant_hash;
	once_intent intent;
	const char *owner;
	int64_t lease_ms;
	int64_t retention_ms;
	int fence;
	once_failure failure;
	once_fingerprint fingerprint;
	once_outcome outcome;
	once_cached cached; /* to be counted */
	char text[];        /* what the pointers above point to */
};

#define OPERATION_AT(address, member) ((once_operation *)(void *)((char *)(address)-offsetof(once_operation, member)))

/* ---- Batches ---- */

/* One statement: operations that can share a call of the contract. */
typedef struct group {
	once_operation *first; /* chained by place_link.next until they are laid out */
	once_operation *last;
	kind kind;
	sharing sharing;
	size_t start; /* in the batch's operations */
	size_t count;
	once_code unsent; /* not ONCE_OK: it was not sent, and why */
	uint64_t token;   /* what makes the owner of its claims unique */
	PGresult *result; /* until its transaction has committed, it counts for nothing */
} group;

/* One transaction: statements up to a Sync. */
typedef struct unit {
	size_t start; /* in the batch's groups */
	size_t count;
	PGresult *failure; /* its first error */
	/* ... and the group whose statement that is; one past the last where the commit failed */
	size_t failed;
	bool limits; /* it begins with a limit to its waiting, whose answer has not come yet */
} unit;

typedef struct batch {
	once_operation **operations;
	size_t operation_count;
	group *groups;
	size_t group_count;
	unit *units;
	size_t unit_count;
	uint32_t *index; /* hash -> group + 1, while a batch is made */
	size_t index_size;
	/* Where the reading is. Nothing is settled before all is read: see batch_result. */
	size_t unit_at;
	size_t group_at;
	size_t answer_bytes;
} batch;

/* ---- Connections ---- */

typedef enum wire_state {
	WIRE_CLOSED, /* nothing was submitted yet */
	WIRE_PAUSE,  /* until due_ms, then connect again */
	WIRE_CONNECTING,
	WIRE_CHECKING, /* connected; asks for the contract's version, and prepares */
	WIRE_IDLE,
	WIRE_BUSY /* a batch is in flight */
} wire_state;

typedef struct wire {
	once_batcher *batcher;
	int number;
	wire_state state;
	PGconn *connection;
	int fd; /* what the loop watches; -1: nothing */
	bool watches_read;
	bool watches_write;
	bool prepares; /* this connection has the statements prepared */
	bool version_read;
	bool down;         /* the last attempt to connect has failed */
	unsigned failures; /* in a row */
	unsigned nulls;
	uint64_t server; /* what the server has said of itself, as a number; 0: nothing */
	int64_t due_ms;
	int64_t sent_us;
	size_t answer_bytes;         /* of one operation, of late: for sizing batches */
	batch batch;                 /* in flight, or being made */
	batch answered;              /* the one before, whose operations are being told */
	char cause[CAUSE_BYTES_MAX]; /* why there is no connection */
} wire;

typedef struct salt_entry {
	bool used;
	uint64_t hash;
	char tenant[SALT_TENANT_MAX + 1];
	unsigned char salt[ONCE_SALT_BYTES];
} salt_entry;

struct once_batcher {
	char *conninfo;
	once_loop loop;
	once_batcher_options options;
	once_batcher_statistics statistics;
	int depth; /* of calls into the batcher, callbacks included: it is freed by the outermost */
	bool closed;
	bool deferred;    /* the loop will call flush */
	int64_t armed_ms; /* the loop's timer */
	bool armed_idle;
	uint64_t nonce;
	uint64_t random;
	uint64_t serials;
	uint64_t tokens;
	link queues[QUEUES];
	size_t queued[QUEUES];
	size_t queued_bytes[QUEUES];
	link pausing;
	link live;
	link background;
	wire wires[WIRES];
	salt_entry *salts;
	unsigned char salt_hands[SALTS_SETS];
};

/* ---- batcher.c ---- */
int64_t batcher_now(const once_batcher *batcher);
/* Sends what waits for a connection, if it can take it and the time for it has come. */
void batcher_feed(once_batcher *batcher, int connection);
/* Has the loop call flush. */
void batcher_defer(once_batcher *batcher);
/* May this connection send what waits there? */
bool wire_takes(const once_batcher *batcher, int connection, queue queue);
queue queue_of(const once_operation *operation);
void queue_append(once_operation *operation);
/* Ahead of all others; several are put back in reverse. */
void queue_prepend(once_operation *operation);
void queue_remove(once_operation *operation);
/* Out of any batch; comes back to the head of its queue after a pause. */
void operation_rest(once_operation *operation, int64_t pause_ms);
void salt_remember(once_batcher *batcher, const char *tenant, const unsigned char *salt);
void salts_forget(once_batcher *batcher);
uint64_t hash_text(const char *text);

/* ---- operation.c ---- */
/* The one way to end: unlinks, tells who waits, frees. Its callback may do anything,
 * so look at batcher->closed after it. */
void operation_end(once_operation *operation, const once_answer *answer, const once_error *error);
void operation_fail(once_operation *operation, once_code code, bool outcome_unknown, const char *message,
                    const char *detail, const char *hint);
/* Its time has passed: tells who waits; ends it, or lets it go on in the background. */
void operation_expire(once_operation *operation);
/* Nobody waits for it any more. */
void operation_move_to_background(once_operation *operation);
/* Something to do for an operation's intent under this fence, for
 * nobody. False where there is no memory. */
bool operation_spawn(const once_operation *from, kind kind, int fence);

/* ---- pack.c ---- */
bool batch_open(batch *batch, size_t batch_max);
void batch_close(batch *batch);
/* Forgets its results, and the operations that it had. */
void batch_clear(batch *batch);
/* Takes from its queues what fits, and lays it out in units and groups. */
void batch_fill(once_batcher *batcher, int connection);
/* The parameters of once.count_cached. */
void fill_count(call *call, const once_cached *cached);
/* Sends it. False where the connection is not usable any more. */
bool batch_send(wire *wire);
/* The kind of statement that an operation goes out as. */
kind sends_as(const once_operation *operation);
enum sql_id sql_of_kind(kind kind);
/* Is the owner that the contract tells the one of this statement? */
bool owner_has_token(const char *owner, uint64_t nonce, uint64_t token);

/* ---- settle.c ---- */
/* All is read: tells everybody. Returns false where the batcher was closed by a callback. */
bool batch_settle(wire *wire);
/* The connection went: all of the batch goes back into its queue. False as above. */
bool batch_lost(wire *wire);

/* ---- wire.c ---- */
void wire_start(wire *wire); /* connects, unless it is or tries to be connected */
void wire_ready(wire *wire, bool readable, bool writable);
void wire_tick(wire *wire, int64_t now);
/* Gives the connection up; it is made anew after a pause. */
void wire_lose(wire *wire, const char *cause);
/* Sends what is laid out in its batch; reads nothing. */
void wire_send(wire *wire);
/* Ends what waits for the connection and was never sent: there is none, and that is known. */
void wire_refuse(wire *wire);
void wire_forget(wire *wire);
/* What a server says of itself, in a row of once.count_cached. False where it is none. */
bool wire_heed(wire *wire, const PGresult *result);
void wire_close(wire *wire);
