/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats.c: reads messages of a NATS JetStream stream through a durable pull consumer with explicit
 * acknowledgement. It does not use the library's pull subscription, whose fetch waits for more than
 * the first message and hides what was requested.
 *
 * Order: the server redelivers an unacknowledged message only when its ack_wait is over, and
 * delivers newer messages meanwhile, so a dead member would break the order of its keys. Therefore
 * each new connection first gives back (NAK) everything that is out. The server redelivers that
 * before anything else, and it is put in order here. Messages that this process gives back itself
 * wait here. A dead member's request may still be on its way to the server at that time. This is
 * detected: the consumer numbers its deliveries, and one is missing here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "dead_loop.h"
#include "nats_loop.h"
#include "nats_message.h"
#include "nats_source.h"

enum {
	/* how late a request's end may be before we check that the server is still there */
	GRACE_MS = 2000,
	LOOK_MS = 1000, /* how long to wait for the consumer's state */
	SAMPLE_MS = 500
};

/* A request ends with this text if the next message is larger than its remaining bytes. */
#define TOO_LARGE_TEXT "Message Size Exceeds MaxBytes"

/* clang-format off */
static const config_option options[] = {
	NATS_OPTION_ROWS,
	{.name = "stream", .kind = CONFIG_TEXT, .offset = offsetof(nats_settings, stream), .required = true, .help = "the stream to read; it must exist"},
	{.name = "durable", .kind = CONFIG_TEXT, .offset = offsetof(nats_settings, durable), .help = "the stream's durable consumer, which stores the acknowledgements; default: the section's name"},
	{.name = "subject", .kind = CONFIG_TEXT, .offset = offsetof(nats_settings, subject), .help = "only messages of these subjects, with NATS wildcards; default: all messages of the stream"},
	{.name = "create", .kind = CONFIG_FLAG, .offset = offsetof(nats_settings, create), .standard = "yes", .help = "create the durable consumer if it does not exist"},
	{.name = "deliver", .kind = CONFIG_CHOICE, .offset = offsetof(nats_settings, deliver), .choices = "all|new", .standard = "all", .help = "where a new durable consumer begins: at the stream's first message, or at the next new one"},
	{.name = "forgotten", .kind = CONFIG_CHOICE, .offset = offsetof(nats_settings, forgotten), .choices = "refuse|apply", .standard = "refuse", .help = "what to do if this consumer has run before, its durable consumer is gone, and the stream begins with messages older than the inbox remembers (the scope's retention): refuse to create it again, or apply those messages, perhaps for the second time"},
	{.name = "ack_wait", .kind = CONFIG_DURATION, .offset = offsetof(nats_settings, ack_wait_ms), .minimum = 1000, .maximum = 3600000, .standard = "30s", .help = "for a new durable consumer: how long before the server redelivers a message that was neither acknowledged nor reported as in progress (pgonce reports it every third of this)"},
	STALLED_OPTION_ROW(nats_settings, "a durable consumer"),
	{0}};
/* clang-format on */

/* ---- Messages ---- */

/*
 * One request is open at a time. no_wait with expires: the server waits for the first message, then
 * sends what it has.
 */
static bool ask(source *source, size_t most)
{
	char request[128], bytes[48] = "";
	const size_t prefetch = (size_t)source->bounds.messages;
	size_t here = source->out.count + source->held.count, here_bytes = source->out.bytes + source->held.bytes;
	/* Everything taken back must be here at once; the earlier holder kept it within a smaller
	 * share. */
	bool is_back = source->taken_back_to > 0;
	size_t most_bytes = (size_t)(is_back ? source->bounds.bytes : SOURCE_HERE_SHARE(source->bounds.bytes));
	bool is_full = here_bytes >= most_bytes || (!is_back && 2 * here_bytes > most_bytes);
	size_t room = here < prefetch ? prefetch - here : 0;
	size_t batch = most < room ? most : room;

	/* A request with only the remaining bytes would end before the first message. */
	if (source->asked > 0 || batch == 0 || (here > 0 && (source->too_large || is_full))) {
		return true;
	}
	if (source->too_large) {
		batch = 1;
	} else {
		snprintf(bytes, sizeof bytes, ",\"max_bytes\":%zu", most_bytes - here_bytes);
	}
	snprintf(request, sizeof request, "{\"batch\":%zu,\"no_wait\":true,\"expires\":%" PRId64 "%s}", batch,
	         NATS_ASK_MS * INT64_C(1000000), bytes);
	natsStatus status = natsConnection_PublishRequestString(source->connection, source->next_subject,
	                                                        nats_inbox_subject(source->inbox), request);
	if (status != NATS_OK) {
		return nats_fail(source, "cannot ask for messages at", status);
	}
	source->asked = batch;
	source->came = false;
	source->asked_until_ms = runtime_now_ms() + NATS_ASK_MS;
	return true;
}

/* A status message of the server: the request has ended, successfully or not. */
static bool take_status(source *source, const char *status, natsMsg *message)
{
	const char *text = NULL;

	source->asked = 0;
	if (strcmp(status, "404") == 0 || strcmp(status, "408") == 0) {
		source->taken_back_to = 0; /* nothing more will come: the rest was acknowledged after all */
		return true;
	}
	if (natsMsgHeader_Get(message, "Description", &text) != NATS_OK) {
		text = "";
	}
	if (strcmp(status, "409") == 0 && strcasecmp(text, TOO_LARGE_TEXT) == 0) {
		source->too_large = !source->came;
		return true;
	}
	if (strcmp(status, "503") == 0) {
		snprintf(source->problem, sizeof source->problem,
		         "the server no longer has a stream %.60s with a consumer %.60s", source->settings.stream,
		         source->durable);
		return false;
	}
	snprintf(source->problem, sizeof source->problem, "the server ended the reading of stream %.60s by %.60s: %s %.80s",
	         source->settings.stream, source->durable, status, text);
	return false;
}

/*
 * True unless another connection got messages before this one, such as an ended connection whose
 * request reached the server late. Those would be redelivered after ack_wait, behind this one, so a
 * new connection takes everything back.
 */
static bool follows(source *source, const delivery *delivery)
{
	if (source->ordered && delivery->nth > source->last_nth + 1) {
		snprintf(
		    source->problem, sizeof source->problem,
		    "%" PRId64
		    " messages of the consumer %.60s of stream %.60s went to another connection: all outstanding messages are "
		    "taken back",
		    delivery->nth - source->last_nth - 1, source->durable, source->settings.stream);
		return false;
	}
	source->last_nth = delivery->nth;
	return true;
}

/* True: everything taken back is here, so it is in order, or as much of it as there is. */
static bool is_whole(const source *source)
{
	size_t here = source->out.count + source->held.count;

	return source->taken_back_to == 0 || here >= (size_t)source->bounds.messages ||
	       source->out.bytes + source->held.bytes >= (size_t)source->bounds.bytes || (source->too_large && here > 0);
}

static void count_taken_back(source *source, const delivery *delivery)
{
	if (source->taken_back_to > 0) {
		source->to_come--;
		/* The server delivers newer messages only when nothing taken back is left. */
		if (source->to_come == 0 || delivery->sequence > source->taken_back_to) {
			source->taken_back_to = 0;
		}
	}
}

/*
 * Moves the next message of the inbox to `held`, waiting at most timeout_ms. *came: there was one.
 * False: the connection is unusable.
 */
static bool receive(source *source, int timeout_ms, bool *came)
{
	natsMsg *message = NULL;
	const char *status_text = NULL;
	natsStatus status = nats_inbox_take(source->inbox, timeout_ms, &message);

	*came = status == NATS_OK;
	if (status == NATS_TIMEOUT) {
		return true;
	}
	if (status != NATS_OK) {
		return nats_fail(source, "lost the connection to", status);
	}
	if (natsMsg_GetReply(message) == NULL && natsMsgHeader_Get(message, "Status", &status_text) == NATS_OK) {
		bool goes_on = take_status(source, status_text, message);
		natsMsg_Destroy(message);
		return goes_on;
	}
	if (!nats_message_has_place(message)) {
		natsMsg_Destroy(message);
		return true;
	}
	delivery *made = nats_message_wrap(message, source->settings.stream);
	delivery_add(&source->held, made);
	source->asked -= source->asked > 0;
	source->came = true;
	source->too_large = false;
	count_taken_back(source, made);
	if (!follows(source, made)) {
		return false;
	}
	source->failures = 0;
	return true;
}

/*
 * Checks an overdue request: do the server and the consumer still exist? A server says nothing
 * about a request that it does not know.
 */
static bool answers(source *source)
{
	jsConsumerInfo *info = NULL;

	if (source->asked == 0 || runtime_now_ms() < source->asked_until_ms + GRACE_MS) {
		return true;
	}
	source->asked = 0;
	bool found = nats_find_consumer(source, &info);
	jsConsumerInfo_Destroy(info);
	return found;
}

/* Reports messages as in progress once a third of their time has passed. */
static bool touch_all(source *source)
{
	const delivery_list *const lists[] = {&source->out, &source->held};
	int64_t now_ms = runtime_now_ms();
	natsStatus status = NATS_OK;

	if (now_ms - source->touched_ms < source->ack_wait_ms / 10) {
		return true;
	}
	source->touched_ms = now_ms;
	for (size_t i = 0; i < 2; i++) {
		for (delivery *each = lists[i]->first; each != NULL && status == NATS_OK; each = each->next) {
			if (!each->is_void && now_ms - each->touched_ms >= source->ack_wait_ms / 3) {
				status = natsConnection_PublishString(source->connection, each->reply, "+WPI");
				each->touched_ms = now_ms;
			}
		}
	}
	return status == NATS_OK || nats_fail(source, "cannot report messages in progress to", status);
}

/* Messages that arrived are taken out of the library, so that they can be touched. */
static bool keep_alive(source *source)
{
	bool came = true;

	for (size_t i = 0; came && i < (size_t)source->bounds.messages; i++) {
		if (!receive(source, 0, &came)) {
			return false;
		}
	}
	return touch_all(source);
}

static bool collect(source *source, size_t most, size_t most_bytes, int timeout_ms)
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;
	bool came = true;

	while (came && ((source->held.count < most && (source->held.count == 0 || source->held.bytes < most_bytes)) ||
	                !is_whole(source))) {
		bool waits = source->held.count == 0 || !is_whole(source);
		if (!ask(source, is_whole(source) ? most - source->held.count : source->to_come)) {
			return false;
		}
		int64_t left_ms = waits ? until_ms - runtime_now_ms() : 0;
		if (!receive(source, left_ms > 0 ? (int)left_ms : 0, &came)) {
			return false;
		}
		came = came || (waits && runtime_now_ms() < until_ms);
	}
	return answers(source);
}

/*
 * Messages held by other members do not stop the server from delivering the rest, unless they reach
 * the limit. How long the others work is unknown here, so while they hold any it is not a stall.
 * False: connect again.
 */
static bool watch(source *source)
{
	jsConsumerInfo *info = NULL;
	jsOptions how;

	if (source->held.count > 0 || source->out.count > 0) {
		stall_moved(&source->stall);
		return true;
	}
	jsOptions_Init(&how);
	how.Wait = LOOK_MS;
	if (stall_waited(&source->stall) &&
	    js_GetConsumerInfo(&info, source->js, source->settings.stream, source->durable, &how, NULL) == NATS_OK) {
		source->pending = info->NumPending;
		stall_answer(&source->stall, info->NumPending > 0 && info->NumAckPending == 0, info->Delivered.Consumer);
	}
	jsConsumerInfo_Destroy(info);
	if (!stall_wants_connection(&source->stall)) {
		return true;
	}
	snprintf(source->problem, sizeof source->problem,
	         "the consumer %.60s of stream %.60s delivers no messages: connecting again", source->durable,
	         source->settings.stream);
	return false;
}

static bool nats_stalled(source *source, char problem[BROKER_PROBLEM_BYTES])
{
	if (!stall_is(&source->stall)) {
		return false;
	}
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "the consumer %.60s of stream %.60s has %" PRIu64 " messages that no member holds, and delivers none",
	         source->durable, source->settings.stream, source->pending);
	return true;
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

static source_state nats_fetch(source *source, size_t most, size_t most_bytes, int timeout_ms,
                               source_message **messages, size_t *count, char problem[BROKER_PROBLEM_BYTES])
{
	*count = 0;
	if (source->connection == NULL &&
	    (runtime_now_ms() < source->retry_at_ms || most == 0 || !nats_reconnect(source))) {
		return unavailable(source, timeout_ms, problem);
	}
	if (source->lost) {
		source->lost = false;
		memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
		return SOURCE_LOST;
	}
	if (!(most == 0 ? keep_alive(source) : touch_all(source) && collect(source, most, most_bytes, timeout_ms))) {
		nats_lose(source);
		return unavailable(source, 0, problem);
	}
	if (most > 0 && !watch(source)) {
		nats_lose(source);
		return unavailable(source, 0, problem);
	}
	*count = is_whole(source) ? delivery_hand_over(&source->held, &source->out, most, most_bytes, messages) : 0;
	if (*count > 0 && !ask(source, most)) {
		nats_lose(source); /* outstanding messages are void: the next call reports it */
	}
	return SOURCE_OK;
}

static void take_sample(source *source, const delivery *delivery)
{
	const nats_sample *last = &source->samples[(source->sample_count + NATS_SAMPLES - 1) % NATS_SAMPLES];
	int64_t now_ms = runtime_now_ms();

	if (delivery->created_ms > 0 &&
	    (source->sample_count == 0 || now_ms - last->taken_ms >= SAMPLE_MS || delivery->sequence < last->sequence)) {
		source->samples[source->sample_count++ % NATS_SAMPLES] =
		    (nats_sample){.sequence = delivery->sequence, .created_ms = delivery->created_ms, .taken_ms = now_ms};
	}
}

/*
 * Everything below the consumer's floor is acknowledged, by any member. In a stream, times rise
 * with sequences: no message older than one at or below the floor is delivered again.
 */
static size_t nats_positions(source *source, source_position *positions, size_t most)
{
	jsConsumerInfo *info = NULL;
	jsOptions how;
	int64_t at_ms = 0;

	/* Outstanding messages are not reported as in progress meanwhile. */
	jsOptions_Init(&how);
	how.Wait = source->ack_wait_ms / 4 < LOOK_MS ? source->ack_wait_ms / 4 : LOOK_MS;
	if (source->connection == NULL || most == 0 ||
	    js_GetConsumerInfo(&info, source->js, source->settings.stream, source->durable, &how, NULL) != NATS_OK) {
		return 0;
	}
	for (size_t i = 0; i < NATS_SAMPLES && i < source->sample_count; i++) {
		const nats_sample *each = &source->samples[i];
		if ((uint64_t)each->sequence <= info->AckFloor.Stream && each->created_ms > at_ms) {
			at_ms = each->created_ms;
		}
	}
	if (info->NumPending == 0 && info->NumAckPending == 0) {
		at_ms = SOURCE_AT_END;
	}
	jsConsumerInfo_Destroy(info);
	positions[0] = (source_position){.part = source->settings.stream, .at_ms = at_ms};
	return at_ms != 0;
}

/* A lost acknowledgement only causes a redelivery, so no reply is awaited. */
static source_state nats_acknowledge(source *source, source_message *const *messages, size_t count,
                                     char problem[BROKER_PROBLEM_BYTES])
{
	natsStatus status = NATS_OK;

	for (size_t i = 0; i < count; i++) {
		delivery *each = delivery_of(messages[i]);
		if (!each->is_void && status == NATS_OK) {
			status = natsConnection_PublishString(source->connection, each->reply, "+ACK");
			take_sample(source, each);
		}
		delivery_remove(&source->out, each);
		nats_release(each);
	}
	if (status == NATS_OK) {
		return SOURCE_OK;
	}
	nats_fail(source, "cannot acknowledge to", status);
	nats_lose(source);
	memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
	return SOURCE_LOST;
}

static void nats_give_back(source *source, source_message *const *messages, size_t count)
{
	delivery_give_back(&source->out, &source->held, messages, count, nats_release);
}

/* ---- Publishing, for dead messages ---- */

/* The stream may have changed since the look, or the server did not tell. */
static void note_taker(source *source, const char *stream, const char *topic)
{
	const char *filter = source->settings.subject;

	if (source->dead_topic != NULL && !source->copy_is_elsewhere && strcmp(stream, source->settings.stream) == 0 &&
	    (filter == NULL || nats_subject_takes(filter, topic))) {
		source->took_copy = true;
		snprintf(source->problem, sizeof source->problem, "stream %.60s has taken a copy for dead_topic itself",
		         source->settings.stream);
		nats_lose(source); /* the next connection asks */
	}
}

static bool nats_publish(source *source, const char *topic, const source_message *message, const source_header *more,
                         size_t more_count, int timeout_ms, char problem[BROKER_PROBLEM_BYTES])
{
	natsMsg *copy = NULL;
	jsPubAck *taken = NULL;
	jsPubOptions how;
	jsErrCode code = 0;

	if (source->connection == NULL) {
		memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
		return false;
	}
	natsStatus status = nats_message_copy(&copy, topic, message, more, more_count);
	if (status == NATS_OK) {
		jsPubOptions_Init(&how);
		how.MaxWait = timeout_ms;
		status = js_PublishMsg(&taken, source->js, copy, &how, &code);
	}
	if (status == NATS_NO_RESPONDERS) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "no stream on the server takes messages for %.100s", topic);
	} else if (status != NATS_OK) {
		nats_problem(source->address, "cannot publish to", status, source->connection, problem);
	}
	if (status == NATS_OK) {
		note_taker(source, taken->Stream, topic);
	}
	jsPubAck_Destroy(taken);
	natsMsg_Destroy(copy);
	return status == NATS_OK;
}

/* ---- Opening and closing ---- */

/* Gives back everything that arrived, in order, so that another member need not wait for it. */
static void return_all(source *source)
{
	jsConsumerInfo *info = NULL;
	bool came = true;

	/*
	 * The open request would receive the returned messages, or put them behind newer ones when the
	 * server finds no listener. Asking about the consumer makes the server drop requests whose
	 * requester is gone. The next member takes back what arrives in between.
	 */
	nats_inbox_end(source->inbox, NATS_ANSWER_MS);
	(void)natsConnection_FlushTimeout(source->connection, NATS_ANSWER_MS);
	(void)js_GetConsumerInfo(&info, source->js, source->settings.stream, source->durable, NULL, NULL);
	jsConsumerInfo_Destroy(info);
	while (came && receive(source, 0, &came)) {
	}
	for (delivery *each; (each = delivery_take(&source->out)) != NULL;) {
		delivery_add(&source->held, each);
	}
	for (delivery *each = source->held.first; each != NULL; each = each->next) {
		if (!each->is_void) {
			natsConnection_PublishString(source->connection, each->reply, "-NAK");
		}
	}
	natsConnection_FlushTimeout(source->connection, NATS_ANSWER_MS);
}

static void nats_close(source *source)
{
	if (source->connection != NULL) {
		return_all(source);
	}
	nats_disconnect(source);
	delivery_release_all(&source->out, nats_release);
	broker_address_free(source->address);
	arena_clear(&source->names);
	free(source);
}

/* Names become part of subjects. */
static bool is_name(const char *text)
{
	return text[0] != '\0' && strpbrk(text, ".*> \t/\\") == NULL;
}

static bool check_names(const config *config, const config_section *section, const nats_settings *settings,
                        char **problem)
{
	const char *durable = settings->durable == NULL ? section->name : settings->durable;

	if (!is_name(settings->stream)) {
		*problem = config_problem(config, section, NULL, "stream: \"%s\" is not a valid stream name", settings->stream);
		return false;
	}
	if (!is_name(durable)) {
		*problem = config_problem(config, section, NULL,
		                          "durable: \"%s\" is not a valid consumer name: it must not contain . * > / or spaces",
		                          durable);
		return false;
	}
	const char *dead_topic = dead_loop_topic(section);
	if (dead_topic != NULL && settings->subject != NULL && strcmp(dead_topic, settings->subject) == 0) {
		*problem = dead_loop_problem(config, section, "subject");
		return false;
	}
	return true;
}

/* Connects at the first fetch. */
static bool nats_open(const speaker *speaker, const config *config, const config_section *section, source_bounds bounds,
                      bool ordered, source **result, char **problem)
{
	source *made = memory_take(sizeof *made);

	if (!config_apply(config, section, options, &made->settings, problem) ||
	    !check_names(config, section, &made->settings, problem) ||
	    !nats_address_read(config, section, &made->settings.nats, &made->address, problem)) {
		free(made);
		return false;
	}
	made->speaker = speaker;
	made->bounds = bounds;
	made->ordered = ordered;
	made->stall.after_ms = made->settings.stalled_ms;
	made->durable = made->settings.durable == NULL ? section->name : made->settings.durable;
	made->dead_topic = dead_loop_topic(section);
	made->name = arena_format(&made->names, "pgonce consume %s", section->name);
	made->next_subject =
	    arena_format(&made->names, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", made->settings.stream, made->durable);
	*result = made;
	return true;
}

static void nats_remember(source *source, int64_t remembered_ms)
{
	source->remembered_ms = remembered_ms;
}

static bool nats_check(const config *config, const config_section *section, char **problem)
{
	source *made = NULL;
	bool right = nats_open(NULL, config, section, (source_bounds){0}, false, &made, problem);

	if (right) {
		nats_close(made);
	}
	return right;
}

const source_class source_nats = {
    .name = "nats",
    .options = options,
    .has_coordinates = true,
    .open = nats_open,
    .check = nats_check,
    .remember = nats_remember,
    .fetch = nats_fetch,
    .acknowledge = nats_acknowledge,
    .give_back = nats_give_back,
    .positions = nats_positions,
    .stalled = nats_stalled,
    .publish = nats_publish,
    .close = nats_close,
};
