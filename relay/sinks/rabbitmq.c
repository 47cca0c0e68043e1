/* SPDX-License-Identifier: PostgreSQL */
/*
 * rabbitmq.c: the sink of RabbitMQ: publisher confirms, persistent messages, mandatory routing.
 * librabbitmq blocks when it connects and when the broker does not read, so a separate thread talks
 * to the broker; the pipeline's thread only puts messages into a flight and takes results out. The
 * broker numbers the messages of a channel, and confirms by number; a message that it cannot route
 * is returned first, with its id.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "flight.h"
#include "memory.h"
#include "rabbitmq.h"
#include "route.h"
#include "sink.h"

#define IN_FLIGHT_MAX 8192 /* a power of two: see unconfirmed */
#define BYTES_MAX ((size_t)64 << 20)
#define CONNECT_MS 3000
#define BACKOFF_FIRST_MS 100
#define BACKOFF_MOST_MS 2000
#define LOOK_MS 1000 /* the longest time without a call of librabbitmq: it keeps the heartbeats */
#define PUBLISH_AT_ONCE 64
#define SHORT_TEXT_MAX 255
#define HEADERS_MAX 256
#define HEADERS_BYTES_MAX 100000 /* they must fit into one frame: broker/rabbitmq.c */
#define MESSAGE_ID_BYTES 64
#define GOODBYE_S 2
#define DIGITS_MAX 15

/* Headers that RabbitMQ reads as numbers: see numbers. */
enum {
	PRIORITY,
	EXPIRATION,
	DELAY,
	NUMBERS
};

typedef struct settings {
	rabbitmq_options rabbitmq;
	const char *exchange;
	const char *number_header[NUMBERS];
	int64_t timeout_ms; /* the pipeline's option, known by its table */
} settings;

static const config_option options[] = {
    RABBITMQ_OPTION_ROWS,
    {.name = "exchange",
     .kind = CONFIG_TEXT,
     .offset = offsetof(settings, exchange),
     .standard = "",
     .help = "the exchange to publish to, with the route's destination as routing key; default: the default exchange, "
             "where "
             "the routing key is a queue's name. A route may name another: route = invoice.* -> "
             "/exchanges/NAME/{topic}, or "
             "a queue: -> /queues/NAME"},
    {.name = "priority_header",
     .kind = CONFIG_TEXT,
     .offset = offsetof(settings, number_header[PRIORITY]),
     .help = "the event's header (headers of once.emit) with the message's priority, 0 to 255; an event "
             "without it has no priority"},
    {.name = "expiration_header",
     .kind = CONFIG_TEXT,
     .offset = offsetof(settings, number_header[EXPIRATION]),
     .help =
         "the event's header with the number of milliseconds after which a queue drops or dead-letters the message"},
    {.name = "delay_header",
     .kind = CONFIG_TEXT,
     .offset = offsetof(settings, number_header[DELAY]),
     .help = "the event's header with the number of milliseconds by which an exchange of type x-delayed-message delays "
             "it: it is sent as x-delay, a number. Such an exchange loses the messages it holds if its node is lost"},
    {.name = NULL}};
static const config_option shared_options[] = {{.name = "timeout",
                                                .kind = CONFIG_DURATION,
                                                .offset = offsetof(settings, timeout_ms),
                                                .minimum = 1,
                                                .maximum = INT64_MAX,
                                                .standard = "30s"},
                                               {.name = NULL}};

/* A message that is published and not confirmed yet. */
typedef struct unconfirmed {
	uint64_t ticket; /* 0: confirmed */
	bool returned;
	char event_id[MESSAGE_ID_BYTES];
	char problem[BROKER_PROBLEM_BYTES]; /* where it was returned */
} unconfirmed;

struct sink {
	const speaker *speaker;
	broker_address *address;
	char *exchange;
	char *number_header[NUMBERS]; /* NULL: none */
	bool has_exchanges;           /* routes name other exchanges */
	char *client_name;
	flight *flight;
	pthread_t thread;
	bool has_thread;
	atomic_bool stopping;
	sem_t ended;            /* set last by the thread */
	_Atomic int descriptor; /* the connection's, so that close can abort it */
	/* the thread's own */
	amqp_connection_state_t connection;
	bool is_blocked; /* the broker accepts nothing until it says so: connection.blocked */
	int failures;
	unconfirmed *unconfirmed; /* IN_FLIGHT_MAX of them; number n is at n % IN_FLIGHT_MAX */
	/* numbers: all before `first` are confirmed; `next` is published next */
	uint64_t first, next;
	size_t alone; /* how many are sent one at a time: see channel_closed */
	/* a returned message is being read: its head and its body follow */
	bool is_returning;
	uint64_t returning_left;
	char return_problem[BROKER_PROBLEM_BYTES];
};

static const struct {
	const char *option;
	int64_t most;
} numbers[NUMBERS] = {[PRIORITY] = {"priority_header", UINT8_MAX},
                      [EXPIRATION] = {"expiration_header", UINT32_MAX},
                      [DELAY] = {"delay_header", UINT32_MAX}};

/* ---- where to */

static const char to_exchange[] = "/exchanges/"; /* and its name, /, and the routing key */
static const char to_queue[] = "/queues/";       /* and its name */

/*
 * The exchange and the routing key. Only the route can name an exchange: an event's {topic} or
 * {tenant} is never taken for one.
 */
static amqp_bytes_t exchange_of(const sink *sink, const sink_message *message, const char **key)
{
	const char *route = message->route == NULL ? "" : message->route;

	*key = message->destination;
	if (strncmp(route, to_queue, strlen(to_queue)) == 0) {
		*key += strlen(to_queue);
		return amqp_cstring_bytes("");
	}
	if (strncmp(route, to_exchange, strlen(to_exchange)) != 0) {
		return amqp_cstring_bytes(sink->exchange);
	}
	/* Up to the routing key the destination equals the route: see wrong_route. */
	const char *name = *key + strlen(to_exchange);
	size_t length = strcspn(name, "/");
	*key = name + length + 1;
	return (amqp_bytes_t){.len = length, .bytes = (void *)(uintptr_t)name};
}

/* The problem; NULL: it is valid. */
static const char *wrong_route(const char *route)
{
	if (strncmp(route, to_queue, strlen(to_queue)) == 0) {
		return route[strlen(to_queue)] == '\0' ? "a queue's name must stand after /queues/" : NULL;
	}
	if (strncmp(route, to_exchange, strlen(to_exchange)) != 0) {
		return NULL;
	}
	const char *name = route + strlen(to_exchange);
	size_t length = strcspn(name, "/");
	if (length == 0 || name[length] == '\0') {
		return "write it as /exchanges/NAME/ROUTING KEY";
	}
	if (length > SHORT_TEXT_MAX) {
		return "an exchange's name has at most 255 bytes";
	}
	return memchr(name, '{', length) != NULL
	           ? "nothing is put into an exchange's name: {topic} and {tenant} belong behind it"
	           : NULL;
}

static bool read_settings(const config *config, const config_section *section, settings *settings,
                          broker_address **address, char **problem)
{
	if (!config_apply(config, section, options, settings, problem) ||
	    !config_apply(config, section, shared_options, settings, problem)) {
		return false;
	}
	if (strlen(settings->exchange) > SHORT_TEXT_MAX) {
		*problem = config_problem(config, section, NULL, "exchange: the name has more than %d bytes", SHORT_TEXT_MAX);
		return false;
	}
	for (int i = 0; i < NUMBERS; i++) {
		const char *name = settings->number_header[i];
		if (name != NULL && (name[0] == '\0' || broker_header_steers("rabbitmq", name))) {
			*problem =
			    config_problem(config, section, config_entry_of(section, numbers[i].option),
			                   "name another header: RabbitMQ acts on this one, so events have it under another name");
			return false;
		}
	}
	for (size_t i = 0; i < section->entry_count; i++) {
		const char *route = route_entry_target(&section->entries[i]);
		const char *wrong = route == NULL ? NULL : wrong_route(route);
		if (wrong != NULL) {
			*problem = config_problem(config, section, &section->entries[i], "%s", wrong);
			return false;
		}
	}
	return rabbitmq_address_read(config, section, &settings->rabbitmq, address, problem);
}

static bool names_exchanges(const config_section *section)
{
	for (size_t i = 0; i < section->entry_count; i++) {
		const char *route = route_entry_target(&section->entries[i]);
		if (route != NULL && route[0] == '/') {
			return true;
		}
	}
	return false;
}

static bool check(const config *config, const config_section *section, char **problem)
{
	settings settings;
	broker_address *address;

	if (!read_settings(config, section, &settings, &address, problem)) {
		return false;
	}
	broker_address_free(address);
	return true;
}

/* ---- publishing */

/*
 * The numbers in the event's headers; -1: the header is missing. False: a header is not such a
 * number, and the broker would close the channel.
 */
static bool read_numbers(const sink *sink, const sink_message *message, int64_t values[NUMBERS],
                         char problem[BROKER_PROBLEM_BYTES])
{
	for (int i = 0; i < NUMBERS; i++) {
		const char *text = NULL;
		values[i] = -1;
		bool looks = sink->number_header[i] != NULL && !message->is_dead_copy;
		for (size_t j = 0; looks && j < message->header_count; j++) {
			text = strcasecmp(message->headers[j].name, sink->number_header[i]) == 0 ? message->headers[j].value : text;
		}
		if (text == NULL) {
			continue;
		}
		size_t digits = strspn(text, "0123456789");
		values[i] = digits > 0 && digits <= DIGITS_MAX && text[digits] == '\0' ? strtoll(text, NULL, 10) : -1;
		if (values[i] < 0 || values[i] > numbers[i].most) {
			snprintf(problem, BROKER_PROBLEM_BYTES, "header %.60s: '%.60s' is no number from 0 to %lld",
			         sink->number_header[i], text, (long long)numbers[i].most);
			return false;
		}
	}
	return true;
}

/*
 * False: the message can never be sent. librabbitmq would notice only while sending it, and leave
 * half of it in the connection.
 */
static bool message_fits(const sink *sink, const sink_message *message, char problem[BROKER_PROBLEM_BYTES])
{
	const char *key;
	size_t bytes = 0;

	(void)exchange_of(sink, message, &key);

	for (size_t i = 0; i < message->header_count; i++) {
		size_t name_bytes = strlen(message->headers[i].name);
		bytes += name_bytes + strlen(message->headers[i].value) + 16;
		if (name_bytes > SHORT_TEXT_MAX) {
			snprintf(problem, BROKER_PROBLEM_BYTES, "a header's name has %zu bytes, and AMQP allows %d", name_bytes,
			         SHORT_TEXT_MAX);
			return false;
		}
	}
	if (strlen(key) > SHORT_TEXT_MAX) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the routing key has %zu bytes, and AMQP allows %d", strlen(key),
		         SHORT_TEXT_MAX);
		return false;
	}
	if (message->header_count > HEADERS_MAX || bytes > HEADERS_BYTES_MAX) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%zu headers of about %zu bytes, and %d of %d bytes can be sent",
		         message->header_count, bytes, HEADERS_MAX, HEADERS_BYTES_MAX);
		return false;
	}
	return true;
}

static int publish(sink *sink, const sink_message *message, const int64_t values[NUMBERS])
{
	amqp_table_entry_t headers[HEADERS_MAX + 1];
	char expiration[24];
	const char *key;
	amqp_bytes_t exchange = exchange_of(sink, message, &key);
	amqp_basic_properties_t properties = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG |
	                                                AMQP_BASIC_APP_ID_FLAG | AMQP_BASIC_TIMESTAMP_FLAG |
	                                                AMQP_BASIC_HEADERS_FLAG,
	                                      /* survives a restart of the broker, in a durable queue */
	                                      .delivery_mode = 2,
	                                      .message_id = amqp_cstring_bytes(message->event_id),
	                                      .app_id = amqp_cstring_bytes("pgonce"),
	                                      .timestamp = (uint64_t)(message->created_ms / 1000)};

	if (message->content_type != NULL) {
		properties._flags |= AMQP_BASIC_CONTENT_TYPE_FLAG;
		properties.content_type = amqp_cstring_bytes(message->content_type);
	}
	for (size_t i = 0; i < message->header_count; i++) {
		headers[i] = (amqp_table_entry_t){
		    .key = amqp_cstring_bytes(message->headers[i].name),
		    .value = {.kind = AMQP_FIELD_KIND_UTF8, .value = {.bytes = amqp_cstring_bytes(message->headers[i].value)}}};
	}
	properties.headers = (amqp_table_t){.num_entries = (int)message->header_count, .entries = headers};
	if (values[PRIORITY] >= 0) {
		properties._flags |= AMQP_BASIC_PRIORITY_FLAG;
		properties.priority = (uint8_t)values[PRIORITY];
	}
	if (values[EXPIRATION] >= 0) {
		snprintf(expiration, sizeof expiration, "%lld", (long long)values[EXPIRATION]);
		properties._flags |= AMQP_BASIC_EXPIRATION_FLAG;
		properties.expiration = amqp_cstring_bytes(expiration);
	}
	if (values[DELAY] >= 0) {
		headers[properties.headers.num_entries++] =
		    (amqp_table_entry_t){.key = amqp_cstring_bytes("x-delay"),
		                         .value = {.kind = AMQP_FIELD_KIND_I64, .value = {.i64 = values[DELAY]}}};
	}
	return amqp_basic_publish(
	    sink->connection, RABBITMQ_CHANNEL, exchange, amqp_cstring_bytes(key), 1, 0, &properties,
	    (amqp_bytes_t){.len = message->body.length, .bytes = (void *)(uintptr_t)message->body.data});
}

static unconfirmed *unconfirmed_of(const sink *sink, uint64_t number)
{
	return &sink->unconfirmed[number % IN_FLIGHT_MAX];
}

static bool may_publish(const sink *sink)
{
	uint64_t out = sink->next - sink->first;

	return !sink->is_blocked && out < (sink->alone > 0 ? 1 : IN_FLIGHT_MAX) && !atomic_load(&sink->stopping);
}

/*
 * Publishes waiting messages, but not so many that answers wait long. False: the connection is
 * unusable. *more: some still wait.
 */
static bool publish_waiting(sink *sink, bool *more, char problem[BROKER_PROBLEM_BYTES])
{
	int status = AMQP_STATUS_OK;

	*more = true;
	flight_woken(sink->flight);
	for (int i = 0; i < PUBLISH_AT_ONCE && status == AMQP_STATUS_OK && may_publish(sink); i++) {
		flight_item *item = flight_take(sink->flight);
		if (item == NULL) {
			*more = false;
			return true;
		}
		int64_t values[NUMBERS];
		if (!message_fits(sink, &item->message, problem) || !read_numbers(sink, &item->message, values, problem)) {
			flight_answer(sink->flight, item->ticket, SINK_REFUSED, problem);
		} else if (flight_waits(sink->flight, item->ticket)) {
			unconfirmed *entry = unconfirmed_of(sink, sink->next++);
			entry->ticket = item->ticket;
			entry->returned = false;
			snprintf(entry->event_id, sizeof entry->event_id, "%s", item->message.event_id);
			status = publish(sink, &item->message, values);
		}
		flight_item_free(item);
	}
	if (status != AMQP_STATUS_OK) {
		rabbitmq_status_problem("cannot send", status, problem);
	}
	return status == AMQP_STATUS_OK;
}

/* ---- the broker's answers */

static void confirm_one(sink *sink, uint64_t number, bool taken)
{
	unconfirmed *entry = unconfirmed_of(sink, number);

	if (entry->ticket == 0) {
		return;
	}
	if (entry->returned) {
		flight_answer(sink->flight, entry->ticket, SINK_REFUSED, entry->problem);
	} else if (taken) {
		flight_answer(sink->flight, entry->ticket, SINK_DELIVERED, NULL);
	} else {
		flight_answer(sink->flight, entry->ticket, SINK_REFUSED,
		              "the broker refused it (basic.nack): a queue is full, or it could not be stored");
	}
	entry->ticket = 0;
	sink->alone -= sink->alone > 0;
}

static void confirm(sink *sink, uint64_t number, bool multiple, bool taken)
{
	if (number < sink->first || number >= sink->next) {
		return;
	}
	for (uint64_t each = multiple ? sink->first : number; each <= number; each++) {
		confirm_one(sink, each, taken);
	}
	while (sink->first < sink->next && unconfirmed_of(sink, sink->first)->ticket == 0) {
		sink->first++;
	}
	sink->failures = 0;
}

static void return_begins(sink *sink, const amqp_basic_return_t *method)
{
	sink->is_returning = true;
	sink->returning_left = 0;
	snprintf(sink->return_problem, sizeof sink->return_problem,
	         "unroutable (%d %.*s): no queue of exchange '%.*s' takes the routing key '%.*s'", method->reply_code,
	         (int)(method->reply_text.len < 40 ? method->reply_text.len : 40), (const char *)method->reply_text.bytes,
	         (int)(method->exchange.len < 80 ? method->exchange.len : 80), (const char *)method->exchange.bytes,
	         (int)(method->routing_key.len < 100 ? method->routing_key.len : 100),
	         (const char *)method->routing_key.bytes);
}

/* The returned message's head. The confirm that follows gives its result. */
static void return_head(sink *sink, const amqp_frame_t *frame)
{
	const amqp_basic_properties_t *properties = frame->payload.properties.decoded;
	const amqp_bytes_t id = properties->message_id;

	sink->returning_left = frame->payload.properties.body_size;
	sink->is_returning = sink->returning_left > 0;
	for (uint64_t each = sink->first; each < sink->next; each++) {
		unconfirmed *entry = unconfirmed_of(sink, each);
		if (entry->ticket != 0 && !entry->returned && strlen(entry->event_id) == id.len &&
		    memcmp(entry->event_id, id.bytes, id.len) == 0) {
			entry->returned = true;
			memcpy(entry->problem, sink->return_problem, sizeof entry->problem);
			return;
		}
	}
}

static void return_body(sink *sink, const amqp_frame_t *frame)
{
	uint64_t length = frame->payload.body_fragment.len;

	sink->returning_left = length < sink->returning_left ? sink->returning_left - length : 0;
	sink->is_returning = sink->returning_left > 0;
}

/* All unconfirmed messages get this result. */
static void give_up(sink *sink, sink_verdict verdict, const char *problem)
{
	for (uint64_t each = sink->first; each < sink->next; each++) {
		unconfirmed *entry = unconfirmed_of(sink, each);
		if (entry->ticket != 0) {
			flight_answer(sink->flight, entry->ticket, verdict, problem);
			entry->ticket = 0;
		}
	}
	sink->first = sink->next = 1;
	sink->is_returning = false;
}

static bool confirms_on(sink *sink, char problem[BROKER_PROBLEM_BYTES])
{
	sink->first = sink->next = 1;
	if (amqp_confirm_select(sink->connection, RABBITMQ_CHANNEL) != NULL) {
		return true;
	}
	rabbitmq_reply_problem("cannot switch publisher confirms on", amqp_get_rpc_reply(sink->connection), problem);
	return false;
}

/*
 * The broker closes a channel because of one message (it is too large, its exchange is missing),
 * does not say which, and forgets the others. So they are sent again one at a time, which finds the
 * faulty one. If an exchange is missing, all its messages are faulty.
 */
static bool channel_closed(sink *sink, int code, char problem[BROKER_PROBLEM_BYTES])
{
	size_t out = 0;
	char quoted[RUNTIME_QUOTE_BYTES];

	for (uint64_t each = sink->first; each < sink->next; each++) {
		out += unconfirmed_of(sink, each)->ticket != 0;
	}
	bool guilty = out == 1 || (code == AMQP_NOT_FOUND && !sink->has_exchanges);
	sink->alone = guilty ? sink->alone - (sink->alone > 0) : out;
	give_up(sink, guilty ? SINK_REFUSED : SINK_UNAVAILABLE, problem);
	runtime_log(sink->speaker, RUNTIME_WARNING, "sink-refused", "sink=rabbitmq messages=%zu error=%s", out,
	            runtime_quote(problem, quoted));
	return rabbitmq_channel_open(sink->connection, problem) && confirms_on(sink, problem);
}

static bool hear_method(sink *sink, const amqp_frame_t *frame, char problem[BROKER_PROBLEM_BYTES])
{
	const void *method = frame->payload.method.decoded;
	int code;
	bool connection_too;

	switch (frame->payload.method.id) {
	case AMQP_BASIC_ACK_METHOD:
		confirm(sink, ((const amqp_basic_ack_t *)method)->delivery_tag, ((const amqp_basic_ack_t *)method)->multiple,
		        true);
		return true;
	case AMQP_BASIC_NACK_METHOD:
		confirm(sink, ((const amqp_basic_nack_t *)method)->delivery_tag, ((const amqp_basic_nack_t *)method)->multiple,
		        false);
		return true;
	case AMQP_BASIC_RETURN_METHOD:
		return_begins(sink, method);
		return true;
	case AMQP_CONNECTION_BLOCKED_METHOD:
	case AMQP_CONNECTION_UNBLOCKED_METHOD:
		sink->is_blocked = frame->payload.method.id == AMQP_CONNECTION_BLOCKED_METHOD;
		runtime_log(sink->speaker, sink->is_blocked ? RUNTIME_WARNING : RUNTIME_INFO,
		            sink->is_blocked ? "sink-blocked" : "sink-unblocked", "sink=rabbitmq reason=%s",
		            sink->is_blocked ? "\"the broker is short of memory or disk\"" : "none");
		return true;
	default:
		if (!rabbitmq_frame_closes(sink->connection, frame, &code, &connection_too, problem)) {
			return true;
		}
		return !connection_too && channel_closed(sink, code, problem);
	}
}

/* Reads all that has arrived. False: the connection is unusable. */
static bool hear(sink *sink, char problem[BROKER_PROBLEM_BYTES])
{
	const struct timeval no_time = {0};
	amqp_frame_t frame;
	int status;

	while ((status = amqp_simple_wait_frame_noblock(sink->connection, &frame, &no_time)) == AMQP_STATUS_OK) {
		bool goes_on = true;
		if (frame.frame_type == AMQP_FRAME_METHOD) {
			goes_on = hear_method(sink, &frame, problem);
		} else if (frame.frame_type == AMQP_FRAME_HEADER && sink->is_returning) {
			return_head(sink, &frame);
		} else if (frame.frame_type == AMQP_FRAME_BODY && sink->is_returning) {
			return_body(sink, &frame);
		}
		if (!goes_on) {
			return false;
		}
		amqp_maybe_release_buffers(sink->connection);
	}
	if (status != AMQP_STATUS_TIMEOUT) {
		rabbitmq_status_problem("lost the connection", status, problem);
	}
	return status == AMQP_STATUS_TIMEOUT;
}

/* ---- the thread */

static void wait_for_work(sink *sink, int timeout_ms)
{
	struct pollfd work[] = {{.fd = sink->connection == NULL ? -1 : amqp_get_sockfd(sink->connection), .events = POLLIN},
	                        {.fd = flight_descriptor(sink->flight), .events = POLLIN}};

	(void)poll(work, 2, timeout_ms);
}

static void back_off(sink *sink)
{
	int64_t until_ms = runtime_now_ms() + runtime_backoff_ms(++sink->failures, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
	int64_t left_ms;

	while (!atomic_load(&sink->stopping) && (left_ms = until_ms - runtime_now_ms()) > 0) {
		flight_woken(sink->flight);
		wait_for_work(sink, (int)left_ms);
	}
}

static void lose(sink *sink, const char *problem)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	atomic_store(&sink->descriptor, -1);
	rabbitmq_close(sink->connection, false);
	sink->connection = NULL;
	give_up(sink, SINK_UNAVAILABLE, problem);
	flight_lost(sink->flight, problem);
	runtime_log(sink->speaker, sink->failures == 0 ? RUNTIME_WARNING : RUNTIME_DEBUG, "sink-unavailable",
	            "sink=rabbitmq error=%s", runtime_quote(problem, quoted));
	back_off(sink);
}

static bool sink_connect(sink *sink, char problem[BROKER_PROBLEM_BYTES])
{
	sink->connection = rabbitmq_connect(sink->address, sink->client_name, CONNECT_MS, &sink->descriptor, problem);
	sink->is_blocked = sink->is_returning = false;
	return sink->connection != NULL && confirms_on(sink, problem);
}

static void *run(void *closure)
{
	sink *sink = closure;
	char problem[BROKER_PROBLEM_BYTES];
	bool more;

	while (!atomic_load(&sink->stopping)) {
		if (sink->connection == NULL) {
			if (!sink_connect(sink, problem)) {
				lose(sink, problem);
				continue;
			}
			runtime_log(sink->speaker, RUNTIME_INFO, "sink-connected", "sink=rabbitmq url=%s", sink->address->shown);
		}
		if (!publish_waiting(sink, &more, problem) || !hear(sink, problem)) {
			lose(sink, problem);
		} else if (!more || !may_publish(sink)) {
			wait_for_work(sink, LOOK_MS);
		}
	}
	rabbitmq_close(sink->connection, sink->first == sink->next);
	sem_post(&sink->ended);
	return NULL;
}

/* ---- the interface */

/*
 * A call of librabbitmq that blocks because the broker does not read or answer ends when its
 * connection is shut down.
 */
static void thread_end(sink *sink)
{
	struct timespec until;

	atomic_store(&sink->stopping, true);
	flight_wake(sink->flight);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += GOODBYE_S;
	while (sem_timedwait(&sink->ended, &until) != 0) {
		if (errno == ETIMEDOUT) {
			int descriptor = atomic_load(&sink->descriptor);
			if (descriptor >= 0) {
				shutdown(descriptor, SHUT_RDWR);
			}
			break;
		}
	}
	pthread_join(sink->thread, NULL);
}

static void sink_close(sink *sink)
{
	if (sink == NULL) {
		return;
	}
	if (sink->has_thread) {
		thread_end(sink);
	}
	flight_free(sink->flight);
	broker_address_free(sink->address);
	sem_destroy(&sink->ended);
	free(sink->unconfirmed);
	free(sink->exchange);
	for (int i = 0; i < NUMBERS; i++) {
		free(sink->number_header[i]);
	}
	free(sink->client_name);
	free(sink);
}

static bool sink_open(const speaker *speaker, const config *config, const config_section *section, sink **result,
                      char **problem)
{
	settings settings;
	sink *sink = calloc(1, sizeof *sink);

	*problem = NULL;
	if (sink != NULL) {
		sem_init(&sink->ended, 0, 0);
		sink->speaker = speaker;
		sink->descriptor = -1;
		sink->first = sink->next = 1;
		if (!read_settings(config, section, &settings, &sink->address, problem)) {
			sink_close(sink);
			return false;
		}
		sink->flight = flight_new(IN_FLIGHT_MAX, BYTES_MAX, settings.timeout_ms);
		sink->unconfirmed = calloc(IN_FLIGHT_MAX, sizeof *sink->unconfirmed);
		sink->exchange = strdup(settings.exchange);
		sink->has_exchanges = names_exchanges(section);
		for (int i = 0; i < NUMBERS; i++) {
			sink->number_header[i] = memory_copy(settings.number_header[i]);
		}
		if (asprintf(&sink->client_name, "pgonce %s %s", section->kind, section->name) < 0) {
			sink->client_name = NULL;
		}
		if (sink->flight != NULL && sink->unconfirmed != NULL && sink->exchange != NULL && sink->client_name != NULL &&
		    pthread_create(&sink->thread, NULL, run, sink) == 0) {
			sink->has_thread = true;
			*result = sink;
			return true;
		}
	}
	*problem = config_problem(config, section, NULL, "cannot start the sink: out of memory, descriptors or threads");
	sink_close(sink);
	return false;
}

static bool sink_send(sink *sink, sink_message *message)
{
	return flight_put(sink->flight, message);
}

static size_t sink_poll(sink *sink, int timeout_ms, sink_result *results, size_t most)
{
	return flight_poll(sink->flight, timeout_ms, results, most);
}

static void sink_permit(sink *sink, int64_t until_ms)
{
	flight_permit(sink->flight, until_ms);
}

const sink_class sink_rabbitmq = {
    .name = "rabbitmq",
    .options = options,
    .in_flight = 1000,
    .open = sink_open,
    .check = check,
    .send = sink_send,
    .poll = sink_poll,
    .permit = sink_permit,
    .close = sink_close,
};
