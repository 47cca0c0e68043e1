/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats.c: messages of a NATS JetStream stream, by a durable pull consumer with explicit
 * acknowledgement. The library's own pull subscription is not used: its fetch waits for more than
 * the first message, and it hides what is asked for.
 *
 * Order: the server hands out again what was not acknowledged only when its time is up, and
 * meanwhile newer messages: a member that died would break the order of its keys. So whoever
 * connects first gives back (NAK) all that is out; the server then hands that out before anything
 * else, and it is put in order here. What this process gives back itself waits here. A dead
 * member's request may still be on its way to the server then. It shows: the consumer counts its
 * deliveries, and one is missing here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <nats/nats.h>

#include "arena.h"
#include "dead_loop.h"
#include "delivery.h"
#include "nats.h"
#include "nats_inbox.h"
#include "nats_loop.h"
#include "nats_message.h"
#include "stall.h"

enum {
	ASK_MS = 5000, /* so long a request for messages stands at the server */
	/* by which its end may be late, before the server is asked whether it is there at all */
	GRACE_MS = 2000,
	PAUSE_MS = 200,
	ANSWER_MS = 5000,  /* for anything else that is asked of the server */
	CONNECT_MS = 5000, /* for each server */
	/* NAKs at a start; where more may be needed, their time is waited for */
	GIVE_BACK_MAX = 100000,
	RETRY_FIRST_MS = 100,
	RETRY_MOST_MS = 10000,
	LOOK_MS = 1000, /* so long is waited for how far the consumer is */
	SAMPLES = 64,
	SAMPLE_MS = 500
};

/* The server's time of a message that was acknowledged. */
typedef struct sample {
	int64_t sequence, created_ms, taken_ms;
} sample;

/* A request ends so where the next message has more bytes than are left of it. */
#define TOO_LARGE_TEXT "Message Size Exceeds MaxBytes"

typedef struct settings {
	nats_options nats; /* first */
	const char *stream, *durable, *subject;
	int64_t create, ack_wait_ms, deliver, forgotten, stalled_ms;
} settings;
enum {
	DELIVER_ALL = 0,
	FORGOTTEN_APPLY = 1
};

/* clang-format off */
static const config_option options[] = {
	NATS_OPTION_ROWS,
	{.name = "stream", .kind = CONFIG_TEXT, .offset = offsetof(settings, stream), .required = true, .help = "the stream to read; it must exist"},
	{.name = "durable", .kind = CONFIG_TEXT, .offset = offsetof(settings, durable), .help = "the stream's durable consumer, which remembers what was acknowledged; default: the section's name"},
	{.name = "subject", .kind = CONFIG_TEXT, .offset = offsetof(settings, subject), .help = "only messages of these subjects, with the wildcards of NATS; default: all of the stream"},
	{.name = "create", .kind = CONFIG_FLAG, .offset = offsetof(settings, create), .standard = "yes", .help = "make the durable consumer where the stream has none"},
	{.name = "deliver", .kind = CONFIG_CHOICE, .offset = offsetof(settings, deliver), .choices = "all|new", .standard = "all", .help = "where a durable consumer that is made begins: with the stream's first message, or with those to come"},
	{.name = "forgotten", .kind = CONFIG_CHOICE, .offset = offsetof(settings, forgotten), .choices = "refuse|apply", .standard = "refuse", .help = "where the durable consumer of a consumer that has run before is gone, and the stream begins with older messages than the inbox remembers (the scope's retention): refuse to make it anew, or apply those messages, perhaps for the second time"},
	{.name = "ack_wait", .kind = CONFIG_DURATION, .offset = offsetof(settings, ack_wait_ms), .minimum = 1000, .maximum = 3600000, .standard = "30s", .help = "of a durable consumer that is made: after how long the server hands out again what was neither acknowledged nor reported to be at work (pgonce reports it every third of this)"},
	STALLED_OPTION_ROW(settings, "a durable consumer"),
	{0}};
/* clang-format on */

struct source {
	const speaker *speaker;
	settings settings;
	broker_address *address;
	arena names;
	const char *name; /* of the connection, in the server's lists */
	const char *durable;
	const char *dead_topic; /* NULL: none */
	/* the stream has taken a copy itself, which may be one of the same name elsewhere */
	bool took_copy;
	bool copy_is_elsewhere;
	source_bounds bounds;
	int64_t remembered_ms;      /* the inbox may have forgotten what is older; 0: nothing */
	natsConnection *connection; /* NULL: none; then neither of the next two */
	jsCtx *js;
	nats_inbox *inbox;        /* where messages come in */
	const char *next_subject; /* where they are asked for */
	int64_t ack_wait_ms;      /* as the consumer has it */
	delivery_list out, held;
	bool ordered; /* nobody else is to be handed messages */
	/* of the consumer's deliveries, the last one that came, or that was before this connection */
	int64_t last_nth;
	/*
	 * what was taken back ends with this sequence, and to_come of it is missing yet; 0: nothing
	 * is
	 */
	int64_t taken_back_to;
	size_t to_come;
	size_t asked; /* messages that the standing request may still bring; 0: there is none */
	int64_t asked_until_ms;
	bool came; /* a message, by the last request */
	/* the next message is larger than what was asked for: it is asked for alone, without a bound */
	bool too_large;
	int64_t touched_ms; /* when touch_all last looked */
	/* of what was acknowledged, the latest at sample_count - 1, round and round */
	sample samples[SAMPLES];
	size_t sample_count;
	stall stall;
	uint64_t pending; /* messages of the consumer that nobody has, when it was asked last */
	bool lost;        /* to be told */
	int failures;     /* of connections, in a row */
	/* from when on the connection counts as one that lasts; a message proves it earlier */
	int64_t steady_at_ms;
	int64_t retry_at_ms;
	char problem[BROKER_PROBLEM_BYTES]; /* why there is no connection */
};

/* ---- Losing and making the connection ---- */

static void release(delivery *delivery)
{
	natsMsg_Destroy(delivery->owned);
	free(delivery);
}

/*
 * Nothing that came by this connection may be acknowledged any more: it is given back by the next
 * one.
 */
static void disconnect(source *source)
{
	delivery_release_all(&source->held, release);
	delivery_void_all(&source->out);
	if (source->connection != NULL) {
		stall_disconnected(&source->stall);
	}
	nats_inbox_close(source->inbox);
	jsCtx_Destroy(source->js);
	natsConnection_Destroy(source->connection);
	source->inbox = NULL;
	source->js = NULL;
	source->connection = NULL;
	source->steady_at_ms = INT64_MAX;
	source->asked = 0;
	source->taken_back_to = 0;
}

/* After a failure: `problem` is set. */
static void lose(source *source)
{
	source->lost = source->lost || source->connection != NULL;
	/* One that is lost soon after it was made has mended nothing: the waits grow on. */
	if (source->connection != NULL && source->steady_at_ms <= runtime_now_ms()) {
		source->failures = 0;
	}
	disconnect(source);
	source->failures++;
	source->retry_at_ms = runtime_now_ms() + runtime_backoff_ms(source->failures, RETRY_FIRST_MS, RETRY_MOST_MS);
}

static bool fail(source *source, const char *what, natsStatus status)
{
	nats_problem(source->address, what, status, source->connection, source->problem);
	return false;
}

static bool fail_stream(source *source, const char *what, jsErrCode code, natsStatus status)
{
	const settings *is = &source->settings;

	if (code == JSStreamNotFoundErr) {
		snprintf(source->problem, sizeof source->problem, "the server has no stream %s: make it (nats stream add %s)",
		         is->stream, is->stream);
	} else if (code == JSNotEnabledErr || code == JSNotEnabledForAccountErr || status == NATS_NO_RESPONDERS) {
		snprintf(source->problem, sizeof source->problem,
		         "JetStream is not enabled at the server, or not for this account");
	} else {
		nats_problem(source->address, what, status, source->connection, source->problem);
	}
	return false;
}

/* A consumer that somebody made differently would break the promise, or read something else. */
static bool fits(source *source, const jsConsumerConfig *is)
{
	const settings *wanted = &source->settings;
	const char *filter = is->FilterSubject == NULL ? "" : is->FilterSubject;
	const char *wanted_filter = wanted->subject == NULL ? "" : wanted->subject;
	char what[BROKER_PROBLEM_BYTES / 2] = "";

	if (is->DeliverSubject != NULL) {
		snprintf(what, sizeof what, "it pushes, and this is for one that is pulled from");
	} else if (is->AckPolicy != js_AckExplicit) {
		snprintf(what, sizeof what, "its acknowledgement policy is not explicit");
	} else if (is->MaxDeliver > 0) {
		snprintf(what, sizeof what, "it gives a message up after %" PRId64 " deliveries", is->MaxDeliver);
	} else if (strcmp(filter, wanted_filter) != 0) {
		snprintf(what, sizeof what, "its subject is \"%.40s\", not \"%.40s\"", filter, wanted_filter);
	}
	if (what[0] != '\0') {
		snprintf(source->problem, sizeof source->problem,
		         "the durable consumer %.40s of stream %.40s: %.110s; change it, or choose another", source->durable,
		         wanted->stream, what);
	}
	return what[0] == '\0';
}

/* Where the server does not say so, a copy that the stream has taken itself does. */
static bool dead_topic_leads_away(source *source)
{
	char quoted[RUNTIME_QUOTE_BYTES], problem[BROKER_PROBLEM_BYTES] = "";

	if (source->dead_topic == NULL) {
		return true;
	}
	nats_loop loop =
	    nats_loop_find(source->js, source->settings.stream, source->settings.subject, source->dead_topic, problem);
	if (loop == NATS_LOOP_UNKNOWN && source->took_copy) {
		snprintf(problem, sizeof problem,
		         "dead_topic: stream %.60s, which is read, has taken a copy to %.80s itself: it would die again",
		         source->settings.stream, source->dead_topic);
		loop = NATS_LOOP_YES;
	} else if (loop == NATS_LOOP_UNKNOWN) {
		runtime_log(source->speaker, RUNTIME_WARNING, "dead_topic",
		            "problem=%s hint=\"whether copies would come back is not known: let the user ask for "
		            "$JS.API.STREAM.INFO.%s and $JS.API.STREAM.NAMES\"",
		            runtime_quote(problem, quoted), source->settings.stream);
	}
	source->copy_is_elsewhere = loop == NATS_LOOP_NO && source->took_copy;
	if (loop == NATS_LOOP_YES) {
		memcpy(source->problem, problem, sizeof problem);
	}
	return loop != NATS_LOOP_YES;
}

/*
 * A durable consumer that is made anew hands out what an earlier one had acknowledged, and what the
 * inbox has forgotten would be applied again.
 */
static bool may_begin_anew(source *source)
{
	const settings *is = &source->settings;
	jsStreamInfo *stream = NULL;
	jsErrCode code = 0;
	struct timespec now;

	if (source->remembered_ms == 0 || is->deliver != DELIVER_ALL || is->forgotten == FORGOTTEN_APPLY) {
		return true;
	}
	natsStatus status = js_GetStreamInfo(&stream, source->js, is->stream, NULL, &code);
	if (status != NATS_OK) {
		return fail_stream(source, "cannot ask about the stream at", code, status);
	}
	clock_gettime(CLOCK_REALTIME, &now);
	int64_t age_ms = stream->State.Msgs == 0
	                     ? 0
	                     : (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - stream->State.FirstTime / 1000000;
	jsStreamInfo_Destroy(stream);
	if (age_ms >= source->remembered_ms) {
		snprintf(source->problem, sizeof source->problem,
		         "stream %.40s has lost its durable consumer %.40s, and begins with messages that the inbox may have "
		         "forgotten: make it with the right start, or say forgotten = apply",
		         is->stream, source->durable);
		return false;
	}
	return true;
}

/* The durable consumer, made where it is missing. */
static bool find_consumer(source *source, jsConsumerInfo **info)
{
	const settings *is = &source->settings;
	jsErrCode code = 0;
	natsStatus status = js_GetConsumerInfo(info, source->js, is->stream, source->durable, NULL, &code);

	if (status == NATS_NOT_FOUND && code == JSConsumerNotFoundErr && is->create) {
		if (!may_begin_anew(source)) {
			return false;
		}
		jsConsumerConfig config;
		jsConsumerConfig_Init(&config);
		config.Durable = source->durable;
		config.FilterSubject = is->subject;
		config.AckPolicy = js_AckExplicit;
		config.DeliverPolicy = is->deliver == DELIVER_ALL ? js_DeliverAll : js_DeliverNew;
		config.AckWait = is->ack_wait_ms * 1000000;
		config.MaxAckPending = source->bounds.messages;
		status = js_AddConsumer(info, source->js, is->stream, &config, NULL, &code);
		if (status == NATS_OK) {
			runtime_log(source->speaker, RUNTIME_INFO, "made", "stream=%s consumer=%s", is->stream, source->durable);
		}
	} else if (status == NATS_NOT_FOUND && code == JSConsumerNotFoundErr) {
		snprintf(source->problem, sizeof source->problem,
		         "stream %.60s has no durable consumer %.60s: make it, or say create = yes", is->stream,
		         source->durable);
		return false;
	}
	return status == NATS_OK || fail_stream(source, "cannot find or make the consumer at", code, status);
}

/*
 * A request of an earlier connection may still stand at the server, where that has not noticed its
 * end: it would get what is taken back, and nobody would have it. It ends by itself; so do those of
 * other members, which order_by = none allows.
 */
static bool outwait_requests(source *source, jsConsumerInfo **info)
{
	int64_t until_ms = runtime_now_ms() + ASK_MS + PAUSE_MS;
	bool found = true;

	while (found && (*info)->NumAckPending > 0 && (*info)->NumWaiting > 0 && runtime_now_ms() < until_ms) {
		if (runtime_sleep(PAUSE_MS)) {
			return false;
		}
		jsConsumerInfo_Destroy(*info);
		*info = NULL;
		found = find_consumer(source, info);
	}
	return found;
}

/*
 * What an earlier connection, of this process or of another, left unacknowledged is handed out
 * again at once. The server knows which of the sequences between its two marks that is; the others
 * it ignores. The last one asks for an answer: then all are done. As a rule they come in this
 * order, but what the server could not deliver to a connection that had ended is before them.
 */
static bool take_back(source *source, const jsConsumerInfo *info)
{
	uint64_t first = info->AckFloor.Stream + 1, last = info->Delivered.Stream;
	char subject[512];
	natsStatus status = NATS_OK;
	natsMsg *answer = NULL;

	if (info->NumAckPending == 0 || first > last) {
		return true;
	}
	if (source->ordered) {
		source->taken_back_to = (int64_t)last;
		source->to_come = (size_t)info->NumAckPending;
	}
	if (last - first >= GIVE_BACK_MAX) {
		runtime_log(source->speaker, RUNTIME_INFO, "waiting", "for=%" PRId64 "ms messages=%" PRId64,
		            source->ack_wait_ms, info->NumAckPending);
		return !runtime_sleep(source->ack_wait_ms + 100);
	}
	for (uint64_t sequence = first; sequence <= last && status == NATS_OK; sequence++) {
		snprintf(subject, sizeof subject, "$JS.ACK.%s.%s.1.%" PRIu64 ".%" PRIu64 ".0.0", source->settings.stream,
		         source->durable, sequence, info->Delivered.Consumer);
		status = sequence < last
		             ? natsConnection_PublishString(source->connection, subject, "-NAK")
		             : natsConnection_RequestString(&answer, source->connection, subject, "-NAK", ANSWER_MS);
	}
	natsMsg_Destroy(answer);
	return status == NATS_OK || fail(source, "cannot take back what was not acknowledged at", status);
}

static bool prepare(source *source)
{
	jsConsumerInfo *info = NULL;
	natsStatus status = NATS_OK;

	source->inbox = nats_inbox_open(source->connection, &status);
	if (source->inbox == NULL) {
		return fail(source, "cannot subscribe at", status);
	}
	bool prepared = find_consumer(source, &info) && fits(source, info->Config) && dead_topic_leads_away(source);
	if (prepared) {
		source->ack_wait_ms = info->Config->AckWait / 1000000;
		prepared = outwait_requests(source, &info) && take_back(source, info);
	}
	if (prepared) {
		source->last_nth = (int64_t)info->Delivered.Consumer;
	}
	jsConsumerInfo_Destroy(info);
	return prepared;
}

static bool connect_to_server(source *source)
{
	natsOptions *how = NULL;

	if (!nats_prepare(source->address, source->settings.nats.credentials_file, source->name, CONNECT_MS, &how,
	                  source->problem)) {
		return false;
	}
	natsStatus status = natsConnection_Connect(&source->connection, how);
	natsOptions_Destroy(how);
	if (status != NATS_OK) {
		source->connection = NULL;
		return fail(source, "cannot connect to", status);
	}
	return true;
}

static bool reconnect(source *source)
{
	jsOptions js_options;

	if (!connect_to_server(source)) {
		lose(source);
		return false;
	}
	jsOptions_Init(&js_options);
	js_options.Wait = ANSWER_MS;
	natsStatus status = natsConnection_JetStream(&source->js, source->connection, &js_options);
	bool prepared = status == NATS_OK ? prepare(source) : fail(source, "cannot use JetStream at", status);
	if (!prepared) {
		lose(source);
		return false;
	}
	source->touched_ms = runtime_now_ms();
	source->steady_at_ms = source->touched_ms + RETRY_MOST_MS;
	runtime_log(source->speaker, RUNTIME_INFO, "connected", "source=nats stream=%s consumer=%s",
	            source->settings.stream, source->durable);
	return true;
}

/* ---- Messages ---- */

/*
 * One request stands at the server at a time. no_wait with expires: it waits for the first message,
 * and gives what it has.
 */
static bool ask(source *source, size_t most)
{
	char request[128], bytes[48] = "";
	const size_t prefetch = (size_t)source->bounds.messages;
	size_t here = source->out.count + source->held.count, here_bytes = source->out.bytes + source->held.bytes;
	/* What was taken back is to be here as a whole; who had it kept within a smaller share. */
	bool is_back = source->taken_back_to > 0;
	size_t most_bytes = (size_t)(is_back ? source->bounds.bytes : SOURCE_HERE_SHARE(source->bounds.bytes));
	bool is_full = here_bytes >= most_bytes || (!is_back && 2 * here_bytes > most_bytes);
	size_t room = here < prefetch ? prefetch - here : 0;
	size_t batch = most < room ? most : room;

	/* A request for the rest alone would end before the first message. */
	if (source->asked > 0 || batch == 0 || (here > 0 && (source->too_large || is_full))) {
		return true;
	}
	if (source->too_large) {
		batch = 1;
	} else {
		snprintf(bytes, sizeof bytes, ",\"max_bytes\":%zu", most_bytes - here_bytes);
	}
	snprintf(request, sizeof request, "{\"batch\":%zu,\"no_wait\":true,\"expires\":%" PRId64 "%s}", batch,
	         ASK_MS * INT64_C(1000000), bytes);
	natsStatus status = natsConnection_PublishRequestString(source->connection, source->next_subject,
	                                                        nats_inbox_subject(source->inbox), request);
	if (status != NATS_OK) {
		return fail(source, "cannot ask for messages at", status);
	}
	source->asked = batch;
	source->came = false;
	source->asked_until_ms = runtime_now_ms() + ASK_MS;
	return true;
}

/* A message of the server itself: the request has ended, well or badly. */
static bool take_status(source *source, const char *status, natsMsg *message)
{
	const char *text = NULL;

	source->asked = 0;
	if (strcmp(status, "404") == 0 || strcmp(status, "408") == 0) {
		source->taken_back_to = 0; /* there is no more of it: it was acknowledged after all */
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
		         "the server has no stream %.60s with a consumer %.60s (any more)", source->settings.stream,
		         source->durable);
		return false;
	}
	snprintf(source->problem, sizeof source->problem, "the server ends the reading of stream %.60s by %.60s: %s %.80s",
	         source->settings.stream, source->durable, status, text);
	return false;
}

/*
 * Was somebody else handed messages before this one? A connection that has ended, for example,
 * whose request came to the server late. They would come again after ack_wait, behind this one: so
 * all is taken back, by a new connection.
 */
static bool follows(source *source, const delivery *delivery)
{
	if (source->ordered && delivery->nth > source->last_nth + 1) {
		snprintf(source->problem, sizeof source->problem,
		         "%" PRId64
		         " messages of the consumer %.60s of stream %.60s went to another connection: all that is out is "
		         "taken back",
		         delivery->nth - source->last_nth - 1, source->durable, source->settings.stream);
		return false;
	}
	source->last_nth = delivery->nth;
	return true;
}

/* Is all here that was taken back, so that it is in order? Or as much of it as there may be. */
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
		/* The server hands out what is newer only when there is no more of it. */
		if (source->to_come == 0 || delivery->sequence > source->taken_back_to) {
			source->taken_back_to = 0;
		}
	}
}

/*
 * The next of the inbox into `held`, waiting at most timeout_ms. *came: there was one. False: the
 * connection is of no use any more.
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
		return fail(source, "lost the connection to", status);
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
 * A request whose end is overdue: is the server still there, and the consumer? Of what it does not
 * know it says nothing.
 */
static bool answers(source *source)
{
	jsConsumerInfo *info = NULL;

	if (source->asked == 0 || runtime_now_ms() < source->asked_until_ms + GRACE_MS) {
		return true;
	}
	source->asked = 0;
	bool found = find_consumer(source, &info);
	jsConsumerInfo_Destroy(info);
	return found;
}

/* Tells the server of those whose time has run for a third. */
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
	return status == NATS_OK || fail(source, "cannot report what is at work to", status);
}

/* What came in is taken out of the library, so that it can be touched. */
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
 * What others hold keeps nobody from being handed the rest, unless it is all that may be out. How
 * long they work is not known here, so while they hold anything it is no stall. False: to be
 * connected anew.
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
	         "the consumer %.60s of stream %.60s gives no messages: connecting anew", source->durable,
	         source->settings.stream);
	return false;
}

static bool nats_stalled(source *source, char problem[BROKER_PROBLEM_BYTES])
{
	if (!stall_is(&source->stall)) {
		return false;
	}
	snprintf(problem, BROKER_PROBLEM_BYTES,
	         "the consumer %.60s of stream %.60s has %" PRIu64 " messages that nobody has, and gives none",
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
	if (source->connection == NULL && (runtime_now_ms() < source->retry_at_ms || most == 0 || !reconnect(source))) {
		return unavailable(source, timeout_ms, problem);
	}
	if (source->lost) {
		source->lost = false;
		memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
		return SOURCE_LOST;
	}
	if (!(most == 0 ? keep_alive(source) : touch_all(source) && collect(source, most, most_bytes, timeout_ms))) {
		lose(source);
		return unavailable(source, 0, problem);
	}
	if (most > 0 && !watch(source)) {
		lose(source);
		return unavailable(source, 0, problem);
	}
	*count = is_whole(source) ? delivery_hand_over(&source->held, &source->out, most, most_bytes, messages) : 0;
	if (*count > 0 && !ask(source, most)) {
		lose(source); /* what was handed over is void: the next call says so */
	}
	return SOURCE_OK;
}

static void take_sample(source *source, const delivery *delivery)
{
	const sample *last = &source->samples[(source->sample_count + SAMPLES - 1) % SAMPLES];
	int64_t now_ms = runtime_now_ms();

	if (delivery->created_ms > 0 &&
	    (source->sample_count == 0 || now_ms - last->taken_ms >= SAMPLE_MS || delivery->sequence < last->sequence)) {
		source->samples[source->sample_count++ % SAMPLES] =
		    (sample){.sequence = delivery->sequence, .created_ms = delivery->created_ms, .taken_ms = now_ms};
	}
}

/*
 * Below the consumer's floor all is acknowledged, by whichever member. A stream's times rise with
 * its sequences, so the time of a message at or below the floor is none that anything is older than
 * which comes again.
 */
static size_t nats_positions(source *source, source_position *positions, size_t most)
{
	jsConsumerInfo *info = NULL;
	jsOptions how;
	int64_t at_ms = 0;

	/* Meanwhile nobody tells the server that what is out is at work. */
	jsOptions_Init(&how);
	how.Wait = source->ack_wait_ms / 4 < LOOK_MS ? source->ack_wait_ms / 4 : LOOK_MS;
	if (source->connection == NULL || most == 0 ||
	    js_GetConsumerInfo(&info, source->js, source->settings.stream, source->durable, &how, NULL) != NATS_OK) {
		return 0;
	}
	for (size_t i = 0; i < SAMPLES && i < source->sample_count; i++) {
		const sample *each = &source->samples[i];
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

/* An acknowledgement that gets lost is only a redelivery, so none is waited for. */
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
		release(each);
	}
	if (status == NATS_OK) {
		return SOURCE_OK;
	}
	fail(source, "cannot acknowledge to", status);
	lose(source);
	memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
	return SOURCE_LOST;
}

static void nats_give_back(source *source, source_message *const *messages, size_t count)
{
	delivery_give_back(&source->out, &source->held, messages, count, release);
}

/* ---- Publishing, for dead messages ---- */

/* The stream may have been changed since it was asked about, or it did not tell. */
static void note_taker(source *source, const char *stream, const char *topic)
{
	const char *filter = source->settings.subject;

	if (source->dead_topic != NULL && !source->copy_is_elsewhere && strcmp(stream, source->settings.stream) == 0 &&
	    (filter == NULL || nats_subject_takes(filter, topic))) {
		source->took_copy = true;
		snprintf(source->problem, sizeof source->problem, "stream %.60s has taken a copy for dead_topic itself",
		         source->settings.stream);
		lose(source); /* the next connection asks */
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
		snprintf(problem, BROKER_PROBLEM_BYTES, "no stream of the server takes messages to %.100s", topic);
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

/* So that another member need not wait for what is here: all that came, given back in its order. */
static void return_all(source *source)
{
	jsConsumerInfo *info = NULL;
	bool came = true;

	/*
	 * The request that still stands at the server would get what is given back, or put it behind
	 * what is newer when it finds that nobody listens. Asking about the consumer makes the server
	 * forget requests whose asker is gone. What comes in between the next member takes back.
	 */
	nats_inbox_end(source->inbox, ANSWER_MS);
	(void)natsConnection_FlushTimeout(source->connection, ANSWER_MS);
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
	natsConnection_FlushTimeout(source->connection, ANSWER_MS);
}

static void nats_close(source *source)
{
	if (source->connection != NULL) {
		return_all(source);
	}
	disconnect(source);
	delivery_release_all(&source->out, release);
	broker_address_free(source->address);
	arena_clear(&source->names);
	free(source);
}

/* Names become part of subjects. */
static bool is_name(const char *text)
{
	return text[0] != '\0' && strpbrk(text, ".*> \t/\\") == NULL;
}

static bool check_names(const config *config, const config_section *section, const settings *settings, char **problem)
{
	const char *durable = settings->durable == NULL ? section->name : settings->durable;

	if (!is_name(settings->stream)) {
		*problem = config_problem(config, section, NULL, "stream: \"%s\" is no name of a stream", settings->stream);
		return false;
	}
	if (!is_name(durable)) {
		*problem =
		    config_problem(config, section, NULL,
		                   "durable: \"%s\" is no name of a consumer: it must not have . * > / or spaces", durable);
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
