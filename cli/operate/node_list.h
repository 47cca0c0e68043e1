/* SPDX-License-Identifier: PostgreSQL */
/*
 * node_list.h: the nodes that a command for operators asks: those of --nodes, which share the
 * tenants, or the database of --dsn. Which of them serves a tenant, and whether an answer is
 * complete. For doctor, find, recover, resolve, show and stuck.
 */
#pragma once

#include "connect.h"

enum {
	NODE_SLOTS = 64
};

typedef struct node_slot {
	int64_t epoch;
	bool open;
	bool serves; /* open, and no other node has had it since */
} node_slot;

typedef struct node {
	char *name; /* host/database, never its connection string; NULL: the database of --dsn */
	int line;
	PGconn *connection;    /* NULL: it does not answer, see problem */
	once_session *session; /* not for doctor */
	char *problem;         /* why it does not answer, or cannot be used; NULL: it can */
	char *database;        /* equal for all copies of a database */
	char *started;
	bool recovers; /* a standby */
	bool divided;
	bool asked; /* this command is about it */
	node_slot slots[NODE_SLOTS];
} node;

typedef struct node_list {
	node *list;
	size_t count;
	size_t away;     /* without an answer */
	int tenant_slot; /* of the one tenant that the command is about; -1: all */
} node_list;

/*
 * Connects to each node of --nodes, and reads its slots. Nodes that do not answer are in the list,
 * with their problem. Call node_list_close in any case. CLI_OK, or an exit code after an error
 * message: one node is there twice.
 */
int node_list_read(const cli_invocation *invocation, node_list *nodes);
void node_list_close(node_list *nodes);

/*
 * The nodes that the command is about, with a session each: the database of --dsn; or of --nodes
 * the one that serves --tenant; or all that answer. Call node_list_close in any case. CLI_OK, or an
 * exit code after an error message.
 */
int node_list_open(const cli_invocation *invocation, node_list *nodes);
/* The next node that is asked; after NULL the first. NULL: there is no other. */
node *node_list_next(const node_list *nodes, const node *after);
/*
 * Only the node that serves the tenant is asked from now on, and returned. CLI_OK, or an exit code
 * after an error message: no node serves it, or a node that may serve it is away.
 */
int node_list_serving(const cli_invocation *invocation, node_list *nodes, const char *tenant, node **serving);
/*
 * Before a decision about all tenants: CLI_REFUSED after an error message if a slot is open at a
 * node that does not serve it.
 */
int node_list_check_open(const cli_invocation *invocation, const node_list *nodes);
/*
 * After the answers: `result`, or CLI_INCOMPLETE after a note why, if a node is away, no node
 * serves some slot, or a slot has moved meanwhile.
 */
int node_list_end(const cli_invocation *invocation, const node_list *nodes, int result);

/* The slots that it serves, as an array for a statement; NULL: every tenant. Free it. */
char *node_slots(const node *node);
/* "in database app", or "on node host/app"; free it. */
char *node_text(const node *node);
/* Adds the member "node" to each row of an array, with --nodes. */
void node_mark(const node *node, json_t *rows);
