/* SPDX-License-Identifier: PostgreSQL */
/* rabbitmq_publisher.c: see rabbitmq_publisher.h. */
#include "rabbitmq_publisher.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "memory.h"

enum {
	IDLE_MS = 5000, /* so short that the broker has not missed a heartbeat */
	SHORT_STRING_BYTES_MAX = 255
};

void rabbitmq_publisher_stop(rabbitmq_publisher *publisher, bool polite)
{
	rabbitmq_close(publisher->connection, polite);
	publisher->connection = NULL;
}

static bool start(rabbitmq_publisher *publisher, int timeout_ms, char problem[BROKER_PROBLEM_BYTES])
{
	if (publisher->connection != NULL && runtime_now_ms() - publisher->used_ms > IDLE_MS) {
		rabbitmq_publisher_stop(publisher, false);
	}
	if (publisher->connection != NULL) {
		return true;
	}
	/* The limit is for each host. */
	int connect_ms = timeout_ms / (int)publisher->address->host_count;
	publisher->connection =
	    rabbitmq_connect(publisher->address, publisher->name, connect_ms > 0 ? connect_ms : 1, NULL, problem);
	if (publisher->connection == NULL) {
		return false;
	}
	amqp_confirm_select(publisher->connection, RABBITMQ_CHANNEL);
	amqp_rpc_reply_t reply = amqp_get_rpc_reply(publisher->connection);
	if (reply.reply_type != AMQP_RESPONSE_NORMAL) {
		rabbitmq_reply_problem("cannot publish", reply, problem);
		rabbitmq_publisher_stop(publisher, false);
	}
	return publisher->connection != NULL;
}

/*
 * The broker's reply to the one message on its way. False: the reply is no longer expected, or it
 * is a refusal.
 */
static bool take_confirm(rabbitmq_publisher *publisher, const amqp_frame_t *frame, bool *answered,
                         char problem[BROKER_PROBLEM_BYTES])
{
	amqp_method_number_t method = frame->frame_type == AMQP_FRAME_METHOD ? frame->payload.method.id : 0;
	amqp_message_t returned;
	int code;
	bool connection_too;

	if (method == AMQP_BASIC_ACK_METHOD) {
		*answered = true;
		return true;
	}
	if (method == AMQP_BASIC_RETURN_METHOD) {
		amqp_read_message(publisher->connection, RABBITMQ_CHANNEL, &returned, 0);
		amqp_destroy_message(&returned);
		snprintf(problem, BROKER_PROBLEM_BYTES, "there is no such queue");
		return false;
	}
	if (method == AMQP_BASIC_NACK_METHOD) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the broker could not store it (basic.nack)");
		return false;
	}
	return !rabbitmq_frame_closes(publisher->connection, frame, &code, &connection_too, problem);
}

static bool wait_for_confirm(rabbitmq_publisher *publisher, int64_t until_ms, char problem[BROKER_PROBLEM_BYTES])
{
	bool answered = false;

	while (!answered) {
		int64_t left_ms = until_ms - runtime_now_ms();
		struct timeval time = {.tv_sec = left_ms / 1000, .tv_usec = left_ms % 1000 * 1000};
		amqp_frame_t frame;
		int status =
		    left_ms <= 0 ? AMQP_STATUS_TIMEOUT : amqp_simple_wait_frame_noblock(publisher->connection, &frame, &time);
		if (status != AMQP_STATUS_OK) {
			rabbitmq_status_problem("no answer to a published message", status, problem);
			return false;
		}
		if (!take_confirm(publisher, &frame, &answered, problem)) {
			return false;
		}
	}
	return true;
}

static amqp_bytes_t bytes_of(once_bytes bytes)
{
	return (amqp_bytes_t){.len = bytes.length, .bytes = (void *)(uintptr_t)bytes.data};
}

/* True: it can be the property, as it was if the message came from this broker. */
static bool is_content_type(const source_header *header)
{
	return strcasecmp(header->name, "content-type") == 0 && header->value.length > 0 &&
	       header->value.length <= SHORT_STRING_BYTES_MAX;
}

/* Returns how many are copied. With a CC as text, for example, the broker would close the
 * channel. */
static size_t copy_headers(amqp_table_entry_t *entries, const source_header *headers, size_t count,
                           amqp_basic_properties_t *properties)
{
	size_t copied = 0;

	for (size_t i = 0; i < count; i++) {
		if (broker_header_steers("rabbitmq", headers[i].name)) {
			continue;
		}
		if (is_content_type(&headers[i])) {
			properties->_flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
			properties->content_type = bytes_of(headers[i].value);
			continue;
		}
		entries[copied].key = amqp_cstring_bytes(headers[i].name);
		entries[copied].value.kind = AMQP_FIELD_KIND_UTF8;
		entries[copied++].value.value.bytes = bytes_of(headers[i].value);
	}
	return copied;
}

/*
 * librabbitmq sends without a time limit, and a broker short of memory reads nothing, while the
 * caller's transaction is open: this thread breaks the connection from outside.
 */
typedef struct guard {
	int descriptor;
	struct timespec until;
	pthread_mutex_t mutex;
	pthread_cond_t ended;
	bool is_sent;
} guard;

static void *break_off_late(void *argument)
{
	guard *guard = argument;
	int waited = 0;

	pthread_mutex_lock(&guard->mutex);
	while (!guard->is_sent && waited == 0) {
		waited = pthread_cond_timedwait(&guard->ended, &guard->mutex, &guard->until);
	}
	if (!guard->is_sent) {
		shutdown(guard->descriptor, SHUT_RDWR);
	}
	pthread_mutex_unlock(&guard->mutex);
	return NULL;
}

/* amqp_basic_publish, within timeout_ms. */
static int send_within(rabbitmq_publisher *publisher, const char *topic, const amqp_basic_properties_t *properties,
                       once_bytes payload, int timeout_ms)
{
	guard guard = {.descriptor = amqp_get_sockfd(publisher->connection), .mutex = PTHREAD_MUTEX_INITIALIZER};
	pthread_condattr_t monotonic;
	pthread_t thread;

	clock_gettime(CLOCK_MONOTONIC, &guard.until);
	guard.until.tv_sec += timeout_ms / 1000 + 1; /* at least that long */
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&guard.ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	int status = AMQP_STATUS_NO_MEMORY;
	if (pthread_create(&thread, NULL, break_off_late, &guard) == 0) {
		status = amqp_basic_publish(publisher->connection, RABBITMQ_CHANNEL, amqp_empty_bytes,
		                            amqp_cstring_bytes(topic), true, false, properties, bytes_of(payload));
		pthread_mutex_lock(&guard.mutex);
		guard.is_sent = true;
		pthread_cond_signal(&guard.ended);
		pthread_mutex_unlock(&guard.mutex);
		pthread_join(thread, NULL);
	}
	pthread_cond_destroy(&guard.ended);
	pthread_mutex_destroy(&guard.mutex);
	return status;
}

bool rabbitmq_publisher_send(rabbitmq_publisher *publisher, const char *topic, const source_message *message,
                             const source_header *more, size_t more_count, int timeout_ms,
                             char problem[BROKER_PROBLEM_BYTES])
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;

	if (!start(publisher, timeout_ms, problem)) {
		return false;
	}
	amqp_table_entry_t *entries = memory_take((message->header_count + more_count + 1) * sizeof *entries);
	amqp_basic_properties_t properties = {._flags = AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG,
	                                      .delivery_mode = AMQP_DELIVERY_PERSISTENT,
	                                      .headers = {.entries = entries}};
	size_t count = copy_headers(entries, message->headers, message->header_count, &properties);
	count += copy_headers(entries + count, more, more_count, &properties);
	properties.headers.num_entries = (int)count;
	int64_t left_ms = until_ms - runtime_now_ms();
	int status = send_within(publisher, topic, &properties, message->payload, left_ms > 0 ? (int)left_ms : 0);
	free(entries);
	bool published = status == AMQP_STATUS_OK && wait_for_confirm(publisher, until_ms, problem);
	if (status != AMQP_STATUS_OK) {
		rabbitmq_status_problem("cannot publish (a broker that is short of memory or disk accepts nothing)", status,
		                        problem);
	}
	publisher->used_ms = runtime_now_ms();
	amqp_maybe_release_buffers(publisher->connection);
	if (!published) {
		rabbitmq_publisher_stop(publisher, false);
	}
	return published;
}
