/* SPDX-License-Identifier: PostgreSQL */
/*
 * fake.h: a PostgreSQL inside the test: it speaks protocol 3 on a unix socket, knows the statements
 * of the batcher, and keeps a small contract of its own. It runs only when the test turns it
 * (fake_turn), allocates nothing, and loses, delays and refuses whatever the test says. Beside it a
 * loop whose clock the test sets.
 */
#pragma once

#include "pgonce_batcher.h"
#include "support.h"

enum {
	FAKE_CONNECTIONS = 16,
	FAKE_INTENTS = 1024,
	FAKE_BUFFER = 1 << 20,
	FAKE_NAME = 320
};

/* Where the server loses a connection. */
typedef enum fake_step {
	STEP_NONE,
	STEP_ACCEPT,         /* taken, and closed */
	STEP_STARTUP,        /* the startup packet has come */
	STEP_NOT_YET,        /* 57P03: the server is starting up */
	STEP_AUTHENTICATION, /* half of the answer to it is sent */
	STEP_CHECK,          /* the contract's version is asked for */
	STEP_CHECK_HALF,     /* half of the answer to that is sent */
	STEP_STATEMENT,      /* a batch has come: nothing is done */
	STEP_COMMITTED,      /* it is committed: nothing is answered */
	STEP_HALF,           /* ... half of the answer is sent */
	STEP_LAST_BYTE,      /* ... all but the last byte */
	STEP_ANSWERED,       /* ... all of it */
	STEP_TERMINATED,     /* nothing is done, and 57P01 says why */
	STEP_BETWEEN         /* ... before the second statement of a transaction */
} fake_step;

typedef struct fake_intent {
	char tenant[FAKE_NAME];
	char scope[FAKE_NAME];
	char key[FAKE_NAME];
	char owner[FAKE_NAME];
	char trace[FAKE_NAME];
	unsigned char fingerprint[ONCE_FINGERPRINT_BYTES];
	int fence;
	int attempts;
	int granted; /* how often somebody was told to run it: in a commit, whether or not he heard */
	once_state state;
	bool stale;  /* its lease has passed */
	bool hidden; /* written by a backend that has not committed: others see its lock only */
} fake_intent;

typedef struct fake_parameter {
	const unsigned char *data; /* NULL: NULL */
	size_t length;
} fake_parameter;

typedef struct fake_statement {
	fake_parameter parameters[12];
	int count;
} fake_statement;

typedef struct fake_connection {
	int fd; /* 0: none */
	bool started;
	bool spoiled; /* its commit will fail */
	bool failed;  /* skips to the next Sync */
	bool checks;  /* what it has been sent is the check */
	bool limited; /* until the next Sync it does not wait */
	bool waiting; /* for a row that somebody holds */
	bool closing; /* when all is sent */
	size_t input_length;
	size_t output_length;
	size_t output_sent;
	size_t statements; /* since the last Sync */
	char names[16][32];
	char texts[16][600];
	int prepared;
	char text[600]; /* of the statement that is being bound */
	fake_intent before[FAKE_INTENTS];
	size_t before_count;
	fake_statement given;
	unsigned char bound[FAKE_BUFFER]; /* what it points to */
	unsigned char input[FAKE_BUFFER];
	unsigned char output[FAKE_BUFFER];
} fake_connection;

/* What the loop does for the batcher, and what the test sees of it. */
typedef struct fake {
	/* The server. */
	char directory[64];
	char conninfo[160];
	int listener;
	fake_step lose;   /* at the next such step ... */
	int lose_count;   /* ... and so many more times */
	int lost;         /* how often it did */
	bool silent;      /* accepts, reads, does nothing */
	bool deafens;     /* after a loss it is deaf ... */
	bool deaf;        /* ... and accepts no connection, until this is reset */
	bool trickles;    /* sends one byte in a turn */
	bool slow_reader; /* reads few bytes in a turn */
	int version;
	char missing[64]; /* a function that is not there */
	char refused_tenant[64];
	char bad_key[64];       /* a statement with this key fails ... */
	char bad_sqlstate[6];   /* ... with this */
	int bad_count;          /* ... so many times; -1: always */
	bool bad_sync;          /* ... and not before the commit */
	int bad_limits;         /* the limit to waiting fails so, so many times */
	char locked_key[64];    /* somebody holds the rows of the keys that begin so */
	bool misorders;         /* rows of a batch come in another order */
	once_on_stale on_stale; /* of the claims that are submitted */
	bool ages;              /* a lease that a claim meets has passed when the next one looks */
	int renewals;           /* elements */
	once_cached cached;     /* what was counted */
	const char *server;     /* what it says of itself */
	int accepted;
	int syncs;   /* transactions that did something */
	int largest; /* the most elements in one statement */
	int statements;
	int prepares;
	int limits; /* to waiting */
	/* the statements of batches: the third letter of each function, and a point for each Sync */
	char order[256];
	fake_intent intents[FAKE_INTENTS];
	size_t intent_count;
	fake_connection connections[FAKE_CONNECTIONS];
	/* The loop. */
	once_batcher *batcher;
	int64_t now;
	int64_t due;
	bool idle;
	bool deferred;
	int flushes;
	struct {
		int fd;
		uint64_t inode; /* another socket under the same number has another one */
		bool read;
		bool write;
	} watched[ONCE_CONNECTIONS_MAX];
	int forgotten;
} fake;

/* A server that listens, and a batcher on it. options NULL: the defaults. */
void fake_open(fake *fake, const once_batcher_options *options);
/* Another batcher in place of the one that there is. */
void fake_attach(fake *fake, const char *conninfo, const once_batcher_options *options);
void fake_close(fake *fake);
/* One turn of the server: false where it has nothing to do. */
bool fake_serve(fake *fake);
/* No connection is accepted any more; those that there are stay. */
void fake_refuse(fake *fake);
void fake_listen(fake *fake);
void fake_lose(fake *fake, fake_step step, int times);
/* Every connection is closed. */
void fake_cut(fake *fake);
/* Loop and server, until neither has anything to do. */
void fake_turn(fake *fake);
/* As above, with the clock moved forward, timer by timer. */
void fake_pass(fake *fake, int64_t ms);
fake_intent *fake_find(fake *fake, const char *key);
fake_intent *fake_put(fake *fake, const char *key, once_state state);

/* ---- What an operation was told ---- */

typedef struct seen {
	int calls;
	once_code code;
	bool unknown;
	char sqlstate[6];
	char message[400];
	once_verdict verdict;
	int fence;
	bool may_run;
	char trace[56];
} seen;

void note(void *seen, const once_answer *answer, const once_error *error);
/*
 * On the intent (tenant '', scope 's', key), for note. Claims come with FAKE_TRACE; that of the key
 * "b" with bytes that are no text.
 */
#define FAKE_TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
once_operation *submit_claim(fake *fake, const char *key, seen *seen);
once_operation *submit_complete(fake *fake, const char *key, int fence, seen *seen);
once_operation *submit_release(fake *fake, const char *key, int fence, seen *seen);
once_operation *submit_peek(fake *fake, const char *key, seen *seen);
once_batcher_statistics count(const fake *fake);
