/* SPDX-License-Identifier: PostgreSQL */
/*
 * rabbitmq.c: reads messages of a RabbitMQ queue, with manual acknowledgements and a limit on
 * outstanding ones. The broker returns messages that a lost connection had not acknowledged to
 * their old place in the queue. Messages given back while the connection lives wait here, since the
 * broker would deliver the following ones first. A connection is served only inside librabbitmq's
 * calls, heartbeats included; hence fetch's keep-alive.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "amqp_text.h"
#include "arena.h"
#include "dead_loop.h"
#include "delivery.h"
#include "rabbitmq_publisher.h"
#include "rabbitmq_queue.h"
#include "stall.h"

enum {
	CONNECT_MS = 5000, /* for each host */
	RETRY_FIRST_MS = 100,
	RETRY_MOST_MS = 10000,
	PREFETCH_MOST = UINT16_MAX,
	FIRST_BYTES = 128 * 1024, /* a message's size until one is known */
	MEAN_OF = 64,             /* messages in the running mean */
	RESIZE_AFTER = 16,        /* messages, at least, since the last change */
	BEAT_MS = 2000,
	AHEAD_S = 86400, /* how far a producer's clock may be ahead */
	/* how long another member may hold a message: twice the broker's consumer_timeout */
	OTHERS_MS = 3600 * 1000
};

#define CONSUMER_TAG "pgonce"
#define LARGE_BYTES ((size_t)64 * 1024)

typedef struct settings {
	rabbitmq_options rabbitmq; /* first */
	const char *queue, *exchange, *bind;
	int64_t declare, queue_type, delivery_limit, stalled_ms;
} settings;
enum {
	QUEUE_TYPE_QUORUM = 1,
	DELIVERY_LIMIT_ALLOW = 1,
	DELIVERIES_MANY = 3 /* of one message, before a warning is logged */
};

/* clang-format off */
static const config_option options[] = {
	RABBITMQ_OPTION_ROWS,
	{.name = "queue", .kind = CONFIG_TEXT, .offset = offsetof(settings, queue), .required = true, .help = "the queue to read"},
	{.name = "declare", .kind = CONFIG_FLAG, .offset = offsetof(settings, declare), .standard = "no", .help = "create the queue (durable) if it does not exist, and bind it as exchange and bind say; otherwise it must exist"},
	{.name = "queue_type", .kind = CONFIG_CHOICE, .offset = offsetof(settings, queue_type), .choices = "classic|quorum", .standard = "classic", .help = "the type of a queue that is created"},
	{.name = "delivery_limit", .kind = CONFIG_CHOICE, .offset = offsetof(settings, delivery_limit), .choices = "refuse|allow", .standard = "refuse", .help = "what to do with a quorum queue that drops unhandled messages (or moves them to a dead-letter exchange) after some deliveries, RabbitMQ 4's default: refuse it, or accept it as it is. A queue that pgonce creates has no limit; a consumer cannot see a policy's limit"},
	{.name = "exchange", .kind = CONFIG_TEXT, .offset = offsetof(settings, exchange), .help = "with declare: the exchange that the queue is bound to; it must exist"},
	{.name = "bind", .kind = CONFIG_TEXT, .offset = offsetof(settings, bind), .standard = "#", .help = "with exchange: the binding keys, separated by commas"},
	STALLED_OPTION_ROW(settings, "a queue"),
	{0}};
/* clang-format on */

struct source {
	const speaker *speaker;
	settings settings;
	broker_address *address;
	arena names;
	const char *name; /* of the connection, in the broker's lists */
	source_bounds bounds;
	int64_t window;    /* the prefetch set at the broker */
	bool has_mean;     /* a message has come */
	double mean_bytes; /* mean size of recent messages */
	int64_t seen;      /* messages since the window was set */
	/*
	 * The broker was told to send no more, until it replies; then `ended`, until enough messages
	 * are settled to start reading again.
	 */
	bool resizing, ended;
	int64_t beaten_ms;                  /* when a heartbeat was last sent while nothing was read */
	amqp_connection_state_t connection; /* NULL: not connected */
	text_buffer headers;
	int64_t limit;           /* of deliveries; RABBITMQ_NO_LIMIT: none known */
	int64_t deliveries_said; /* the most deliveries that a message had */
	delivery_list out, held;
	uint64_t serial;
	/* time of the last message acknowledged together with all before it; 0: unknown */
	int64_t acknowledged_ms;
	stall stall;
	uint32_t ready, readers; /* the queue's, when last asked */
	bool lost;               /* must be reported */
	int failures;
	int64_t retry_at_ms;
	char problem[BROKER_PROBLEM_BYTES]; /* why there is no connection */
	rabbitmq_publisher publisher;       /* for dead messages */
};

static void release(delivery *delivery)
{
	amqp_destroy_envelope(delivery->owned);
	free(delivery->owned);
	free(delivery);
}

/* ---- The connection ---- */

static void disconnect(source *source, bool polite)
{
	delivery_release_all(&source->held, release);
	delivery_void_all(&source->out);
	if (source->connection != NULL) {
		stall_disconnected(&source->stall);
	}
	rabbitmq_close(source->connection, polite);
	source->connection = NULL;
	source->resizing = source->ended = false;
}

/* After a failure: `problem` is set. */
static void lose(source *source)
{
	source->lost = source->lost || source->connection != NULL;
	disconnect(source, false);
	source->failures++;
	source->retry_at_ms = runtime_now_ms() + runtime_backoff_ms(source->failures, RETRY_FIRST_MS, RETRY_MOST_MS);
}

/* True: the connection's last call succeeded. */
static bool succeeded(source *source, const char *what)
{
	amqp_rpc_reply_t reply = amqp_get_rpc_reply(source->connection);

	if (reply.reply_type != AMQP_RESPONSE_NORMAL) {
		rabbitmq_reply_problem(what, reply, source->problem);
	}
	return reply.reply_type == AMQP_RESPONSE_NORMAL;
}

static bool find_queue(source *source)
{
	const settings *is = &source->settings;
	const rabbitmq_queue_want want = {.speaker = source->speaker,
	                                  .queue = is->queue,
	                                  .exchange = is->exchange,
	                                  .bind = is->bind,
	                                  .declare = is->declare != 0,
	                                  .is_quorum = is->queue_type == QUEUE_TYPE_QUORUM,
	                                  .allows_limit = is->delivery_limit == DELIVERY_LIMIT_ALLOW};

	return rabbitmq_queue_find(source->connection, &want, &source->limit, source->problem);
}

/* ---- The window: the broker limits the number of messages, not their bytes ---- */

static size_t here_bytes(const source *source)
{
	return source->out.bytes + source->held.bytes;
}

/* No more is read than this; the rest waits in the socket and at the broker. */
static size_t most_here(const source *source)
{
	return (size_t)SOURCE_HERE_SHARE(source->bounds.bytes);
}

/* The size of a message, judged by recent ones. */
static double typical_bytes(const source *source)
{
	double held = source->held.count == 0 ? 0 : (double)source->held.bytes / (double)source->held.count;
	double bytes = held > source->mean_bytes ? held : source->mean_bytes;

	return source->has_mean ? bytes + 1 : FIRST_BYTES;
}

static int64_t most_window(const source *source)
{
	return source->bounds.messages < PREFETCH_MOST ? source->bounds.messages : PREFETCH_MOST;
}

/* As many as fill half of the space for messages here. */
static int64_t fitting_window(const source *source)
{
	int64_t most = most_window(source);
	double fit = (double)most_here(source) / 2 / typical_bytes(source);

	return fit < 1 ? 1 : fit > (double)most ? most : (int64_t)fit;
}

static void measure(source *source, const delivery *delivery)
{
	double bytes = (double)delivery->bytes;

	source->mean_bytes = source->has_mean ? source->mean_bytes + (bytes - source->mean_bytes) / MEAN_OF : bytes;
	source->has_mean = true;
	source->seen++;
}

/* A new consumer does not count messages that an earlier one left unacknowledged. */
static int64_t left_out(const source *source)
{
	return (int64_t)(source->out.count + source->held.count);
}

static bool start_reading(source *source)
{
	int64_t fit = fitting_window(source);

	source->window = fit > left_out(source) ? fit - left_out(source) : 1;
	source->seen = 0;
	source->resizing = source->ended = false;
	amqp_basic_qos(source->connection, RABBITMQ_CHANNEL, 0, (uint16_t)source->window, false);
	if (!succeeded(source, "cannot set the prefetch")) {
		return false;
	}
	amqp_basic_consume(source->connection, RABBITMQ_CHANNEL, amqp_cstring_bytes(source->settings.queue),
	                   amqp_cstring_bytes(CONSUMER_TAG), false, false, false, amqp_empty_table);
	return succeeded(source, "cannot read the queue");
}

/*
 * A prefetch applies to consumers started later, so the old one is cancelled, without waiting:
 * messages on their way are read as usual, then comes the broker's reply (take_frame).
 * Unacknowledged messages stay ours. Done rarely, since it interrupts the flow.
 */
static bool resize(source *source)
{
	int64_t fit = fitting_window(source), enough = source->window < RESIZE_AFTER ? source->window : RESIZE_AFTER;
	bool too_small = source->seen >= enough &&
	                 (fit >= 2 * source->window || (fit == most_window(source) && 3 * fit > 4 * source->window));
	amqp_basic_cancel_t cancel = {.consumer_tag = amqp_cstring_bytes(CONSUMER_TAG)};

	if (source->resizing || !(too_small || 2 * fit <= source->window)) {
		return true;
	}
	int status = amqp_send_method(source->connection, RABBITMQ_CHANNEL, AMQP_BASIC_CANCEL_METHOD, &cancel);
	if (status != AMQP_STATUS_OK) {
		rabbitmq_status_problem("cannot change the prefetch", status, source->problem);
		return false;
	}
	source->resizing = true;
	return true;
}

/* Once at most a quarter of the space for messages is in use. */
static bool begin_anew(source *source)
{
	return !source->ended || 4 * left_out(source) > fitting_window(source) || start_reading(source);
}

/* librabbitmq sends heartbeats when it reads. */
static bool beat(source *source)
{
	const amqp_frame_t frame = {.frame_type = AMQP_FRAME_HEARTBEAT};
	int64_t now_ms = runtime_now_ms();

	if (now_ms - source->beaten_ms < BEAT_MS) {
		return true;
	}
	source->beaten_ms = now_ms;
	int status = amqp_send_frame(source->connection, &frame);
	if (status != AMQP_STATUS_OK) {
		rabbitmq_status_problem("the connection is lost", status, source->problem);
	}
	return status == AMQP_STATUS_OK;
}

static bool reconnect(source *source)
{
	source->connection = rabbitmq_connect(source->address, source->name, CONNECT_MS, NULL, source->problem);
	bool prepared = source->connection != NULL && find_queue(source);
	prepared = prepared && start_reading(source);
	if (!prepared) {
		lose(source);
		return false;
	}
	source->failures = 0;
	runtime_log(source->speaker, RUNTIME_INFO, "connected", "source=rabbitmq queue=%s", source->settings.queue);
	return true;
}

/* ---- Messages ---- */

/*
 * A producer's timestamp, in seconds. In other units, or from a wrong clock, it would let the inbox
 * delete too soon: then 0, unknown.
 */
static int64_t milliseconds_of(uint64_t timestamp)
{
	uint64_t latest = (uint64_t)time(NULL) + AHEAD_S;

	return timestamp <= latest ? (int64_t)timestamp * 1000 : 0;
}

/*
 * A crash returns all of the consumer's messages to the queue, and a quorum queue counts that. A
 * message it drops is never seen again, so the warning comes before.
 */
static void note_deliveries(source *source, const amqp_basic_properties_t *properties)
{
	int64_t deliveries = rabbitmq_deliveries(properties);
	bool is_limited = source->limit != RABBITMQ_NO_LIMIT;
	bool is_last = is_limited && deliveries >= source->limit;
	char limit[24] = "unknown";

	if (deliveries <= source->deliveries_said) {
		return;
	}
	source->deliveries_said = deliveries;
	if (is_limited) {
		snprintf(limit, sizeof limit, "%" PRId64, source->limit);
	}
	runtime_log(source->speaker,
	            is_last                                       ? RUNTIME_ERROR
	            : is_limited || deliveries >= DELIVERIES_MANY ? RUNTIME_WARNING
	                                                          : RUNTIME_INFO,
	            "redelivered", "queue=%s deliveries=%" PRId64 " limit=%s hint=\"%s\"", source->settings.queue,
	            deliveries, limit,
	            is_last ? "the queue drops the message if it is returned once more: do not stop this process before "
	                      "it is applied, and remove the limit"
	                    : "the queue counts how often a message came back from a consumer that ended; a delivery limit "
	                      "(an argument or a policy) would drop it unhandled: make sure that the queue has no limit");
}

/* Takes over the envelope. */
static void wrap(source *source, amqp_envelope_t *envelope)
{
	size_t header_count = amqp_text_headers(&envelope->message.properties, &source->headers);
	size_t topic_length = envelope->routing_key.len, at = 0;
	char *text = NULL;
	delivery *made = delivery_new(header_count, topic_length + 1 + source->headers.length, &text);
	amqp_envelope_t *owned = memory_take(sizeof *owned);

	*owned = *envelope;
	note_deliveries(source, &owned->message.properties);
	made->owned = owned;
	made->serial = ++source->serial;
	made->sequence = (int64_t)envelope->delivery_tag;
	if ((envelope->message.properties._flags & AMQP_BASIC_TIMESTAMP_FLAG) != 0) {
		made->created_ms = milliseconds_of(envelope->message.properties.timestamp);
	}
	memcpy(text, topic_length == 0 ? "" : envelope->routing_key.bytes, topic_length);
	made->message.topic = text;
	made->message.payload = (once_bytes){.data = owned->message.body.len == 0 ? "" : owned->message.body.bytes,
	                                     .length = owned->message.body.len};
	text_buffer copy = {.data = text + topic_length + 1, .length = source->headers.length};
	if (copy.length > 0) {
		memcpy(copy.data, source->headers.data, copy.length);
	}
	for (size_t i = 0; i < header_count; i++) {
		at = amqp_text_pair(&copy, at, &made->headers[i]);
	}
	delivery_add(&source->held, made);
	measure(source, made);
	if (made->bytes > LARGE_BYTES) {
		/* The frames that it came in. */
		amqp_maybe_release_buffers(source->connection);
	}
}

/* A frame that is not a message. False: the connection has ended. */
static bool take_frame(source *source)
{
	const struct timeval now = {0};
	amqp_frame_t frame;
	int code;
	bool connection_too;
	int status = amqp_simple_wait_frame_noblock(source->connection, &frame, &now);

	if (status == AMQP_STATUS_TIMEOUT) {
		return true;
	}
	if (status != AMQP_STATUS_OK) {
		rabbitmq_status_problem("the connection is lost", status, source->problem);
		return false;
	}
	if (rabbitmq_frame_closes(source->connection, &frame, &code, &connection_too, source->problem)) {
		return false;
	}
	if (frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == AMQP_BASIC_CANCEL_METHOD) {
		snprintf(source->problem, sizeof source->problem,
		         "the broker ended the reading of queue %.100s: the queue was deleted, or its node is gone",
		         source->settings.queue);
		return false;
	}
	if (frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == AMQP_BASIC_CANCEL_OK_METHOD) {
		source->ended = true;
		return begin_anew(source);
	}
	return true; /* connection.blocked, for example, which concerns publishers */
}

/*
 * Moves the next message to `held`, waiting at most timeout_ms. *came: a frame came. False: the
 * connection is unusable.
 */
static bool receive(source *source, int timeout_ms, bool *came)
{
	const struct timeval time = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
	amqp_envelope_t envelope;

	*came = true;
	amqp_rpc_reply_t reply = amqp_consume_message(source->connection, &envelope, &time, 0);
	if (reply.reply_type == AMQP_RESPONSE_NORMAL) {
		wrap(source, &envelope);
		return true;
	}
	if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) {
		if (reply.library_error == AMQP_STATUS_TIMEOUT) {
			*came = false;
			return true;
		}
		if (reply.library_error == AMQP_STATUS_UNEXPECTED_STATE) {
			return take_frame(source);
		}
	}
	rabbitmq_reply_problem("the connection is lost", reply, source->problem);
	return false;
}

static bool collect(source *source, size_t most, size_t most_bytes, int timeout_ms)
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;
	bool came = true;

	/* Decoded data is in the messages themselves: the library's other memory can be freed. */
	amqp_maybe_release_buffers(source->connection);
	if (!begin_anew(source)) {
		return false;
	}
	while (came && source->held.count < most && (source->held.count == 0 || source->held.bytes < most_bytes)) {
		if (here_bytes(source) >= most_here(source)) {
			return beat(source) && resize(source);
		}
		int64_t left_ms = source->held.count > 0 ? 0 : until_ms - runtime_now_ms();
		if (!receive(source, left_ms > 0 ? (int)left_ms : 0, &came)) {
			return false;
		}
	}
	return resize(source);
}

static source_state unavailable(source *source, int timeout_ms, char problem[BROKER_PROBLEM_BYTES])
{
	int64_t wait_ms = source->retry_at_ms - runtime_now_ms();

	memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
	if (wait_ms > 0 && timeout_ms > 0) {
		runtime_sleep(wait_ms < timeout_ms ? wait_ms : timeout_ms);
	}
	return SOURCE_UNAVAILABLE;
}

/*
 * The broker's reply comes after the messages it has already sent, which must be read and kept.
 * True: there is room for them.
 */
static bool may_ask(const source *source)
{
	size_t here = source->out.count + source->held.count;
	double unread = (double)source->window - (double)(here < (size_t)source->window ? here : (size_t)source->window);

	return !source->resizing &&
	       (double)here_bytes(source) + unread * typical_bytes(source) <= (double)source->bounds.bytes;
}

/* The queue's state, asked behind the acknowledgements on the channel. NULL: `problem`. */
static const amqp_queue_declare_ok_t *ask_queue(source *source)
{
	const amqp_queue_declare_ok_t *queue =
	    amqp_queue_declare(source->connection, RABBITMQ_CHANNEL, amqp_cstring_bytes(source->settings.queue), true, true,
	                       false, false, amqp_empty_table);

	return succeeded(source, "cannot ask about the queue") ? queue : NULL;
}

/*
 * Messages waiting in a queue with other readers may be for them: for the single active consumer,
 * or for a consumer with higher priority. Messages they hold do not count as waiting. False: the
 * connection is unusable.
 */
static bool watch(source *source)
{
	if (source->held.count > 0 || source->out.count > 0 || source->ended) {
		stall_moved(&source->stall);
		return true;
	}
	if (!stall_waited(&source->stall) || !may_ask(source)) {
		return true;
	}
	const amqp_queue_declare_ok_t *queue = ask_queue(source);
	if (queue != NULL) {
		source->ready = queue->message_count;
		source->readers = queue->consumer_count;
		stall_answer(&source->stall, queue->message_count > 0 && queue->consumer_count <= 1, 0);
	}
	if (queue == NULL || !stall_wants_connection(&source->stall)) {
		return queue != NULL;
	}
	snprintf(source->problem, sizeof source->problem, "the queue %.100s delivers no messages: connecting again",
	         source->settings.queue);
	return false;
}

static bool rabbitmq_stalled(source *source, char problem[BROKER_PROBLEM_BYTES])
{
	if (!stall_is(&source->stall)) {
		return false;
	}
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "the queue %.100s has %" PRIu32 " messages that no consumer holds, and delivers none%s",
	         source->settings.queue, source->ready,
	         source->readers == 0 ? ": the broker no longer knows this consumer" : "");
	return true;
}

static source_state rabbitmq_fetch(source *source, size_t most, size_t most_bytes, int timeout_ms,
                                   source_message **messages, size_t *count, char problem[BROKER_PROBLEM_BYTES])
{
	*count = 0;
	if (source->connection == NULL && (runtime_now_ms() < source->retry_at_ms || most == 0 || !reconnect(source))) {
		return unavailable(source, timeout_ms, problem);
	}
	if (source->lost) {
		source->lost = false;
		memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
		return SOURCE_LOST;
	}
	/*
	 * Keeping alive reads everything there is room for: the broker sends no more than the window,
	 * and heartbeats are sent while reading.
	 */
	if (!collect(source, most == 0 ? SIZE_MAX : most, most == 0 ? SIZE_MAX : most_bytes, timeout_ms) ||
	    (most > 0 && !watch(source))) {
		lose(source);
		return unavailable(source, 0, problem);
	}
	*count = delivery_hand_over(&source->held, &source->out, most, most_bytes, messages);
	return SOURCE_OK;
}

static uint64_t lowest(const delivery_list *list, uint64_t tag)
{
	for (const delivery *each = list->first; each != NULL; each = each->next) {
		if (!each->is_void) {
			return (uint64_t)each->sequence < tag ? (uint64_t)each->sequence : tag;
		}
	}
	return tag;
}

/* One acknowledgement for all up to the highest, if nothing below it is still here; else one
 * each. */
static int acknowledge_tags(source *source, const uint64_t *tags, size_t count)
{
	uint64_t highest = 0;
	int status = AMQP_STATUS_OK;

	for (size_t i = 0; i < count; i++) {
		highest = tags[i] > highest ? tags[i] : highest;
	}
	uint64_t below = lowest(&source->out, lowest(&source->held, highest));
	if (below == highest) {
		return count == 0 ? status : amqp_basic_ack(source->connection, RABBITMQ_CHANNEL, highest, true);
	}
	for (size_t i = 0; i < count && status == AMQP_STATUS_OK; i++) {
		status = amqp_basic_ack(source->connection, RABBITMQ_CHANNEL, tags[i], false);
	}
	return status;
}

static source_state rabbitmq_acknowledge(source *source, source_message *const *messages, size_t count,
                                         char problem[BROKER_PROBLEM_BYTES])
{
	uint64_t *tags = memory_take((count + 1) * sizeof *tags);
	size_t tag_count = 0;

	for (size_t i = 0; i < count; i++) {
		delivery *each = delivery_of(messages[i]);
		if (!each->is_void) {
			tags[tag_count++] = (uint64_t)each->sequence;
		}
		bool is_next = source->out.first == each;
		delivery_remove(&source->out, each);
		if (is_next && !each->is_void && each->created_ms > 0) {
			source->acknowledged_ms = each->created_ms;
		}
		release(each);
	}
	int status = acknowledge_tags(source, tags, tag_count);
	free(tags);
	if (status == AMQP_STATUS_OK) {
		return SOURCE_OK;
	}
	rabbitmq_status_problem("cannot acknowledge", status, source->problem);
	lose(source);
	memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
	return SOURCE_LOST;
}

/*
 * The question follows the acknowledgements on the same channel, so the broker has those when it
 * replies. It does not tell what other members hold: with several members only an empty queue tells
 * something, since no member may hold a message longer than consumer_timeout. If messages wait,
 * everything older than the last acknowledged one is applied, by the producers' clocks.
 */
static size_t rabbitmq_positions(source *source, source_position *positions, size_t most)
{
	source_position position = {.part = source->settings.queue};

	if (source->connection == NULL || most == 0 || !may_ask(source)) {
		return 0;
	}
	const amqp_queue_declare_ok_t *queue = ask_queue(source);
	if (queue == NULL) {
		lose(source);
		return 0;
	}
	if (queue->message_count == 0 && source->out.count == 0 && source->held.count == 0) {
		position.at_ms = SOURCE_AT_END;
		position.behind_ms = queue->consumer_count > 1 ? OTHERS_MS : 0;
	} else if (queue->consumer_count == 1) {
		position.at_ms = source->acknowledged_ms;
	}
	positions[0] = position;
	return position.at_ms != 0;
}

static void rabbitmq_give_back(source *source, source_message *const *messages, size_t count)
{
	delivery_give_back(&source->out, &source->held, messages, count, release);
}

static bool rabbitmq_publish(source *source, const char *topic, const source_message *message,
                             const source_header *more, size_t more_count, int timeout_ms,
                             char problem[BROKER_PROBLEM_BYTES])
{
	return rabbitmq_publisher_send(&source->publisher, topic, message, more, more_count, timeout_ms, problem);
}

/* ---- Opening and closing ---- */

static void rabbitmq_source_close(source *source)
{
	disconnect(source, true);
	rabbitmq_publisher_stop(&source->publisher, true);
	delivery_release_all(&source->out, release);
	text_buffer_free(&source->headers);
	broker_address_free(source->address);
	arena_clear(&source->names);
	free(source);
}

static bool is_given(const config_section *section, const char *name)
{
	for (size_t i = 0; i < section->entry_count; i++) {
		if (strcmp(section->entries[i].name, name) == 0) {
			return true;
		}
	}
	return false;
}

static bool read_settings(const config *config, const config_section *section, settings *settings,
                          broker_address **address, char **problem)
{
	if (!config_apply(config, section, options, settings, problem)) {
		return false;
	}
	const char *wrong =
	    settings->exchange != NULL && !settings->declare ? "exchange: the queue is bound only with declare = yes"
	    : settings->exchange == NULL && is_given(section, "bind") ? "bind: the queue is bound only with exchange"
	    : !settings->declare && is_given(section, "queue_type")
	        ? "queue_type: the queue is created only with declare = yes"
	        : NULL;
	if (wrong != NULL) {
		*problem = config_problem(config, section, NULL, "%s", wrong);
		return false;
	}
	const char *dead_topic = dead_loop_topic(section);
	if (dead_topic != NULL && strcmp(dead_topic, settings->queue) == 0) {
		*problem = dead_loop_problem(config, section, "queue");
		return false;
	}
	return rabbitmq_address_read(config, section, &settings->rabbitmq, address, problem);
}

/* Connects at the first fetch. */
static bool rabbitmq_open(const speaker *speaker, const config *config, const config_section *section,
                          source_bounds bounds, bool ordered, source **result, char **problem)
{
	source *made = memory_take(sizeof *made);

	/* the queue has a single active consumer, and delivers returned messages first */
	(void)ordered;
	if (!read_settings(config, section, &made->settings, &made->address, problem)) {
		free(made);
		return false;
	}
	made->speaker = speaker;
	made->bounds = bounds;
	made->stall.after_ms = made->settings.stalled_ms;
	made->name = arena_format(&made->names, "pgonce consume %s", section->name);
	made->publisher = (rabbitmq_publisher){.address = made->address, .name = made->name};
	*result = made;
	return true;
}

static bool rabbitmq_check(const config *config, const config_section *section, char **problem)
{
	source *made = NULL;
	bool right = rabbitmq_open(NULL, config, section, (source_bounds){0}, false, &made, problem);

	if (right) {
		rabbitmq_source_close(made);
	}
	return right;
}

const source_class source_rabbitmq = {
    .name = "rabbitmq",
    .options = options,
    .open = rabbitmq_open,
    .check = rabbitmq_check,
    .fetch = rabbitmq_fetch,
    .acknowledge = rabbitmq_acknowledge,
    .give_back = rabbitmq_give_back,
    .positions = rabbitmq_positions,
    .stalled = rabbitmq_stalled,
    .publish = rabbitmq_publish,
    .close = rabbitmq_source_close,
};
