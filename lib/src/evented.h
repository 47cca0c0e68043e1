/* SPDX-License-Identifier: PostgreSQL */
/*
 * evented.h: declarations shared by the files of the evented half. An operation (operation.c) waits
 * in a queue for a connection (wire.c, the only file that knows libpq's states), is sent
 * in a batch (pack.c), and ends with what the answer means for it (settle.c). batcher.c has the
 * functions that the loop calls: it keeps the queues and the clock. pace.c decides how many
 * connections there are.
 */
#pragma once

#include "internal.h"
#include "pgonce_batcher.h"

enum {
	/*
	 * 0: for operations that begin attempts and, while the other is busy, for those that end them;
	 * 1: for operations that end attempts; only this one waits without limit for locks of other
	 * sessions
	 */
	CORE_WIRES = 2,
	/*
	 * from CORE_WIRES on: those that come and go (pace.c). They take claims, peeks and operations
	 * that end attempts, as 0 does, while 0 is connected.
	 */
	WIRES = ONCE_CONNECTIONS_MAX,
	/* a further connection that could not be made is tried again after this */
	MORE_PAUSE_MS = 60000,
	GATHER_MAX = 48,   /* operations: enough for one batch, so none waits for more */
	LOST_MAX = 8,      /* how often a claim may be lost before it fails */
	ATTEMPTS_MAX = 5,  /* how often a statement that fails for a passing trouble is sent */
	BATCH_MAX = 10000, /* the contract's own limit */
	/*
	 * bytes of the caller's owner; the unique part follows, and all of it fits into the contract's
	 * 255
	 */
	OWNER_BYTES_MAX = 200,
	SALTS_SETS = 64,
	SALTS_WAYS = 4,
	SALT_TENANT_MAX = NAME_BYTES_MAX,
	CAUSE_BYTES_MAX = 240,
	/* Reports are retried for so many operation timeouts after their submitters got an error. */
	BACKGROUND_TIMEOUTS = 9
};

/* ---- Lists: links inside the operations, so that no list needs memory ---- */

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
 * In the order of a transaction. A renewal goes before the report that ends its attempt. Operations
 * that may wait for a locked row go before claims, which never wait: so nothing waits while it
 * holds the locks of claims. And a claim finds what was reported in its transaction.
 */
typedef enum kind {
	KIND_RENEW,
	KIND_FAIL,
	KIND_COMPLETE,
	KIND_RELEASE,
	KIND_CLAIM,
	KIND_PEEK,
	KIND_COUNT,
	KIND_SLOTS,
	KIND_SLOT_OF,
	KIND_SALT
} kind;

static inline bool kind_starts(kind kind)
{
	return kind >= KIND_CLAIM;
}

/* Does it belong to an intent, which its scope and key name? */
static inline bool kind_names_intent(kind kind)
{
	return kind <= KIND_PEEK;
}

/* Is it asked on connection 0 alone, so that a later answer is never older than an earlier one? */
static inline bool kind_asks(kind kind)
{
	return kind >= KIND_COUNT;
}

/* Does it only look, so that nothing remains of it when it is given up? */
static inline bool kind_looks(kind kind)
{
	return kind == KIND_PEEK || kind >= KIND_SLOTS;
}

/* The queues of a connection. */
typedef enum queue {
	QUEUE_START, /* operations that begin an attempt */
	QUEUE_END,   /* operations that end one, or renew it */
	QUEUE_APART, /* ... and have waited too long for a row: connection 1 alone, without others */
	QUEUES
} queue;

typedef enum place {
	PLACE_QUEUE,
	PLACE_PAUSE,  /* waits for pause_until_ms, then goes back to the head of its queue */
	PLACE_FLIGHT, /* sent; the batch has it, so it must not be freed */
	PLACE_END     /* its callback is running */
} place;

/* How an operation may share a transaction. Raised after failures, never lowered. */
typedef enum sharing {
	SHARES_BATCH,  /* the batch's one transaction */
	SHARES_GROUP,  /* a separate transaction for its group */
	SHARES_NOTHING /* a separate statement and transaction */
} sharing;

struct once_operation {
	link place_link;
	/* all operations, by due_ms: those with a submitter in `live`, the others in `background` */
	link age_link;
	once_batcher *batcher;
	once_done done; /* NULL: no submitter waits, the operation continues */
	void *argument;
	kind kind;
	place place;
	sharing sharing;
	bool background;
	bool peeks;   /* a lost claim: look up whether it is ours */
	bool patient; /* waits for a row without limit */
	unsigned char attempts;
	unsigned char pauses;
	unsigned char lost_count;
	uint64_t serial;         /* the order of submission */
	uint64_t lost[LOST_MAX]; /* the tokens of the statements in which it was lost */
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
	once_operation *first; /* chained by place_link.next until they get their places */
	once_operation *last;
	kind kind;
	sharing sharing;
	size_t start; /* in the batch's operations */
	size_t count;
	once_code unsent; /* not ONCE_OK: the reason why it was not sent */
	uint64_t token;   /* what makes the owner of its claims unique */
	PGresult *result; /* counts only once its transaction has committed */
} group;

/* One transaction: statements up to a Sync. */
typedef struct unit {
	size_t start; /* in the batch's groups */
	size_t count;
	PGresult *failure; /* its first error */
	/* ... and the group of that statement; one past the last if the commit failed */
	size_t failed;
	bool limits; /* it begins with a limit to its waiting, which is not answered yet */
} unit;

typedef struct batch {
	once_operation **operations;
	size_t operation_count;
	group *groups;
	size_t group_count;
	unit *units;
	size_t unit_count;
	uint32_t *index; /* hash -> group + 1, while a batch is built */
	size_t index_size;
	/* The position of the reading. Nothing is settled before all is read: see batch_result. */
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
	int fd; /* watched by the loop; -1: nothing */
	bool watches_read;
	bool watches_write;
	bool prepares; /* this connection has the statements prepared */
	bool version_read;
	bool connected;
	bool wrote;        /* the batch that was answered last */
	bool down;         /* the last attempt to connect has failed */
	unsigned failures; /* in a row */
	unsigned nulls;
	uint64_t server; /* the server's identity, as a number; 0: unknown */
	int64_t due_ms;
	int64_t sent_us;
	size_t answer_bytes;         /* of one recent operation: for the size of batches */
	batch batch;                 /* in flight, or being built */
	batch answered;              /* the one before, whose callbacks are running */
	char cause[CAUSE_BYTES_MAX]; /* why there is no connection */
} wire;

typedef struct salt_entry {
	bool used;
	uint64_t hash;
	char tenant[SALT_TENANT_MAX + 1];
	unsigned char salt[ONCE_SALT_BYTES];
} salt_entry;

/* What decides how many connections there are. */
typedef struct pace {
	int connections;
	int64_t commit_us; /* of the last window; 0: unknown */
	/* this window: */
	int64_t opened_ms;
	int64_t shortest_us;
	size_t batches; /* that wrote something, and their operations */
	size_t operations;
} pace;

struct once_batcher {
	char *conninfo;
	once_loop loop;
	once_batcher_options options;
	once_batcher_statistics statistics;
	int depth; /* depth of calls into the batcher, including callbacks: the outermost frees it */
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
	size_t queued_asks; /* among those of QUEUE_START */
	link pausing;
	link live;
	link background;
	wire wires[WIRES];
	pace pace;
	int64_t more_after_ms; /* no further connection is made before */
	/*
	 * After the answers of a batch the operations that follow them are gathered: until then, or
	 * until so many wait.
	 */
	int64_t gather_until_ms;
	size_t gather_count;
	int64_t slot_epochs[ONCE_SLOTS]; /* 0: unknown */
	bool slots_open[ONCE_SLOTS];
	salt_entry *salts;
	unsigned char salt_hands[SALTS_SETS];
};

/* ---- batcher.c ---- */
int64_t batcher_now(const once_batcher *batcher);
/* Sends the operations that wait for a connection, if it can take them and their time has come. */
void batcher_feed(once_batcher *batcher, int connection);
/*
 * A batch was answered: may change the number of connections, and gathers what follows the answers.
 */
void batcher_pace(once_batcher *batcher, size_t answered);
/* A further connection could not be made. */
void batcher_shrink(once_batcher *batcher, int connection);
/* Has the loop call flush. */
void batcher_defer(once_batcher *batcher);
/* May this connection send its waiting operations? */
bool wire_takes(const once_batcher *batcher, int connection, queue queue);
queue queue_of(const once_operation *operation);
void queue_append(once_operation *operation);
/* To the head of the queue; several are put back in reverse. */
void queue_prepend(once_operation *operation);
void queue_remove(once_operation *operation);
/* Out of its batch; returns to the head of its queue after a pause. */
void operation_rest(once_operation *operation, int64_t pause_ms);
void salt_remember(once_batcher *batcher, const char *tenant, const unsigned char *salt);
void salts_forget(once_batcher *batcher);
/* Are these all slots of a divided node, or, if it is not divided, none? */
bool slots_fit(const PGresult *result);
/* Remembers which slots are open. */
void slots_remember(once_batcher *batcher, const PGresult *result);
uint64_t hash_text(const char *text);

/* ---- pace.c ---- */
void pace_start(pace *pace, int64_t now_ms);
/* A batch of so many operations that wrote something was answered. */
void pace_took(pace *pace, int64_t took_us, size_t operations);
/* The number of connections after this window. */
int pace_decide(const pace *pace, int most);
/* Decides, if the window is over: true. */
bool pace_turn(pace *pace, int most, int64_t now_ms);
/* When pace_turn must be called, even without a batch. */
int64_t pace_due(const pace *pace);
/* How long after the answers of a batch the operations that follow them are gathered. */
int64_t pace_gather_ms(const pace *pace);

/* ---- operation.c ---- */
/*
 * The only way to end: unlinks, calls the callback, frees. The callback may do anything, so check
 * batcher->closed afterwards.
 */
void operation_end(once_operation *operation, const once_answer *answer, const once_error *error);
void operation_fail(once_operation *operation, once_code code, bool outcome_unknown, const char *message,
                    const char *detail, const char *hint);
/* Its time has passed: calls the callback; ends it, or lets it continue in the background. */
void operation_expire(once_operation *operation);
/* Its submitter has gone. */
void operation_move_to_background(once_operation *operation);
/*
 * A new operation for an intent under this fence, without a submitter. False if there is no memory.
 */
bool operation_spawn(const once_operation *from, kind kind, int fence);

/* ---- pack.c ---- */
bool batch_open(batch *batch, size_t batch_max);
void batch_close(batch *batch);
/* Forgets its results and its operations. */
void batch_clear(batch *batch);
/* Takes from its queues as many operations as fit, and arranges them in units and groups. */
void batch_fill(once_batcher *batcher, int connection);
/* The parameters of once.count_cached. */
void fill_count(call *call, const once_cached *cached);
/* Sends it. False if the connection can no longer be used. */
bool batch_send(wire *wire);
/* The kind of statement with which an operation is sent. */
kind sends_as(const once_operation *operation);
enum sql_id sql_of_kind(kind kind);
/* Does a batcher with these options use it? */
bool kind_is_used(kind kind, const once_batcher_options *options);
/* Is the owner that the contract returns that of this statement? */
bool owner_has_token(const char *owner, uint64_t nonce, uint64_t token);

/* ---- settle.c ---- */
/* All is read: calls the callbacks. Returns false if a callback closed the batcher. */
bool batch_settle(wire *wire);
/* The connection is lost: the whole batch returns to its queue. False as above. */
bool batch_lost(wire *wire);

/* ---- wire.c ---- */
void wire_start(wire *wire); /* connects, unless it is connected or connecting */
void wire_ready(wire *wire, bool readable, bool writable);
void wire_tick(wire *wire, int64_t now);
/* Closes the connection; it is opened again after a pause. */
void wire_lose(wire *wire, const char *cause);
/* Sends the batch as arranged; reads nothing. */
void wire_send(wire *wire);
/* Closes one that is no longer wanted, and has no batch in flight. */
void wire_retire(wire *wire);
/* Fails queued operations that were never sent: no connection. */
void wire_refuse(wire *wire);
void wire_forget(wire *wire);
/* The server's identity, from a row of once.count_cached. False if it has none. */
bool wire_heed(wire *wire, const PGresult *result);
void wire_close(wire *wire);
