/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_inbox.c: see nats_inbox.h. The library's subscription thread puts messages in, the source's
 * thread takes them out.
 */
#include "nats_inbox.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "arena.h"
#include "runtime.h"

enum {
	LOOK_MS = 50 /* between checks that the connection is still there; a subscription is not told */
};

typedef struct entry {
	natsMsg *message;
	struct entry *next;
} entry;

struct nats_inbox {
	natsConnection *connection;
	natsSubscription *subscription;
	pthread_mutex_t mutex; /* of the fields below */
	pthread_cond_t came;
	entry *first, *last;
	int owners; /* the source, and the library's thread, which may end later */
};

static void leave(nats_inbox *inbox)
{
	pthread_mutex_lock(&inbox->mutex);
	bool is_last = --inbox->owners == 0;
	pthread_mutex_unlock(&inbox->mutex);
	if (!is_last) {
		return;
	}
	for (entry *next = NULL, *each = inbox->first; each != NULL; each = next) {
		next = each->next;
		natsMsg_Destroy(each->message);
		free(each);
	}
	pthread_cond_destroy(&inbox->came);
	pthread_mutex_destroy(&inbox->mutex);
	free(inbox);
}

/* ---- in the library's thread */

static void on_message(natsConnection *connection, natsSubscription *subscription, natsMsg *message, void *closure)
{
	nats_inbox *inbox = closure;
	entry *added = memory_take(sizeof *added);

	(void)connection, (void)subscription;
	added->message = message;
	pthread_mutex_lock(&inbox->mutex);
	*(inbox->last == NULL ? &inbox->first : &inbox->last->next) = added;
	inbox->last = added;
	pthread_cond_signal(&inbox->came);
	pthread_mutex_unlock(&inbox->mutex);
}

static void on_end(void *closure)
{
	leave(closure);
}

/* ---- in the source's thread */

static void make_condition(pthread_cond_t *condition)
{
	pthread_condattr_t monotonic;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(condition, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

nats_inbox *nats_inbox_open(natsConnection *connection, natsStatus *status)
{
	nats_inbox *inbox = memory_take(sizeof *inbox);
	natsInbox *subject = NULL;

	inbox->connection = connection;
	inbox->owners = 1;
	pthread_mutex_init(&inbox->mutex, NULL);
	make_condition(&inbox->came);
	*status = natsInbox_Create(&subject);
	if (*status == NATS_OK) {
		*status = natsConnection_Subscribe(&inbox->subscription, connection, subject, on_message, inbox);
	}
	natsInbox_Destroy(subject);
	if (*status == NATS_OK) {
		inbox->owners++; /* no message comes before the subject is known */
		*status = natsSubscription_SetOnCompleteCB(inbox->subscription, on_end, inbox);
		inbox->owners -= *status != NATS_OK;
	}
	if (*status == NATS_OK) {
		/* The requests limit it; the library would drop messages above its own limits. */
		*status = natsSubscription_SetPendingLimits(inbox->subscription, -1, -1);
	}
	if (*status != NATS_OK) {
		nats_inbox_close(inbox);
		return NULL;
	}
	return inbox;
}

const char *nats_inbox_subject(const nats_inbox *inbox)
{
	return natsSubscription_GetSubject(inbox->subscription);
}

/* The first one here, or NULL; the mutex is held. */
static natsMsg *take_first(nats_inbox *inbox)
{
	entry *first = inbox->first;

	if (first == NULL) {
		return NULL;
	}
	natsMsg *message = first->message;
	inbox->first = first->next;
	inbox->last = inbox->first == NULL ? NULL : inbox->last;
	free(first);
	return message;
}

/* The mutex is held. */
static void wait_a_moment(nats_inbox *inbox, int64_t most_ms)
{
	int64_t wait_ms = most_ms < LOOK_MS ? most_ms : LOOK_MS;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += (long)wait_ms * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	(void)pthread_cond_timedwait(&inbox->came, &inbox->mutex, &until);
}

natsStatus nats_inbox_take(nats_inbox *inbox, int timeout_ms, natsMsg **message)
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;
	natsStatus status = NATS_OK;

	*message = NULL;
	pthread_mutex_lock(&inbox->mutex);
	while (status == NATS_OK && *message == NULL) {
		int64_t left_ms = until_ms - runtime_now_ms();
		if (natsConnection_IsClosed(inbox->connection)) {
			status = NATS_CONNECTION_CLOSED; /* messages that came over it are void */
		} else if ((*message = take_first(inbox)) == NULL && left_ms <= 0) {
			status = NATS_TIMEOUT;
		} else if (*message == NULL) {
			wait_a_moment(inbox, left_ms);
		}
	}
	pthread_mutex_unlock(&inbox->mutex);
	return status;
}

void nats_inbox_end(nats_inbox *inbox, int timeout_ms)
{
	if (natsSubscription_DrainTimeout(inbox->subscription, timeout_ms) == NATS_OK) {
		(void)natsSubscription_WaitForDrainCompletion(inbox->subscription, timeout_ms);
	}
}

void nats_inbox_close(nats_inbox *inbox)
{
	if (inbox != NULL) {
		natsSubscription_Destroy(inbox->subscription);
		leave(inbox);
	}
}
