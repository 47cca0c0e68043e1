/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats_connection.c: the connection to the server and the durable consumer there. See
 * nats_source.h, and nats.c about the order that a new connection restores.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nats_loop.h"
#include "nats_source.h"
#include "notify.h"

enum {
	PAUSE_MS = 200,
	CONNECT_MS = 5000, /* for each server */
	/* NAKs at a start; if more could be needed, their ack_wait is awaited */
	GIVE_BACK_MAX = 100000,
	RETRY_FIRST_MS = 100,
	RETRY_MOST_MS = 10000
};
enum {
	DELIVER_ALL = 0,
	FORGOTTEN_APPLY = 1
};

void nats_release(delivery *delivery)
{
	natsMsg_Destroy(delivery->owned);
	free(delivery);
}

void nats_disconnect(source *source)
{
	delivery_release_all(&source->held, nats_release);
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

void nats_lose(source *source)
{
	source->lost = source->lost || source->connection != NULL;
	/* A connection lost soon after it was made fixed nothing: the waits keep growing. */
	if (source->connection != NULL && source->steady_at_ms <= runtime_now_ms()) {
		source->failures = 0;
	}
	nats_disconnect(source);
	source->failures++;
	source->retry_at_ms = runtime_now_ms() + runtime_backoff_ms(source->failures, RETRY_FIRST_MS, RETRY_MOST_MS);
}

bool nats_fail(source *source, const char *what, natsStatus status)
{
	nats_problem(source->address, what, status, source->connection, source->problem);
	return false;
}

static bool fail_stream(source *source, const char *what, jsErrCode code, natsStatus status)
{
	const nats_settings *is = &source->settings;

	if (code == JSStreamNotFoundErr) {
		snprintf(source->problem, sizeof source->problem, "the server has no stream %s: create it (nats stream add %s)",
		         is->stream, is->stream);
	} else if (code == JSNotEnabledErr || code == JSNotEnabledForAccountErr || status == NATS_NO_RESPONDERS) {
		snprintf(source->problem, sizeof source->problem,
		         "JetStream is not enabled on the server, or not for this account");
	} else {
		nats_problem(source->address, what, status, source->connection, source->problem);
	}
	return false;
}

/* A consumer created with other settings could break the promise, or read something else. */
static bool fits(source *source, const jsConsumerConfig *is)
{
	const nats_settings *wanted = &source->settings;
	const char *filter = is->FilterSubject == NULL ? "" : is->FilterSubject;
	const char *wanted_filter = wanted->subject == NULL ? "" : wanted->subject;
	char what[BROKER_PROBLEM_BYTES / 2] = "";

	if (is->DeliverSubject != NULL) {
		snprintf(what, sizeof what, "it is a push consumer; a pull consumer is needed");
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

/* If the server does not tell, a copy that the stream has taken itself does. */
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
		         "dead_topic: stream %.60s, which is read, has taken a copy to %.80s itself: the copy would die again",
		         source->settings.stream, source->dead_topic);
		loop = NATS_LOOP_YES;
	} else if (loop == NATS_LOOP_UNKNOWN) {
		runtime_log(source->speaker, RUNTIME_WARNING, "dead_topic",
		            "problem=%s hint=\"pgonce cannot see whether copies would come back: allow the user to request "
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
 * A recreated durable consumer delivers again what an earlier one had acknowledged, and messages
 * that the inbox has deleted would be applied again.
 */
static bool may_begin_anew(source *source)
{
	const nats_settings *is = &source->settings;
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
		         "deleted: create it with the right start, or set forgotten = apply",
		         is->stream, source->durable);
		return false;
	}
	return true;
}

bool nats_find_consumer(source *source, jsConsumerInfo **info)
{
	const nats_settings *is = &source->settings;
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
		         "stream %.60s has no durable consumer %.60s: create it, or set create = yes", is->stream,
		         source->durable);
		return false;
	}
	return status == NATS_OK || fail_stream(source, "cannot find or create the consumer at", code, status);
}

/*
 * A request of an earlier connection may still be open at a server that has not noticed its end: it
 * would receive the messages taken back, and no member would hold them. It expires; so do requests
 * of other members, which order_by = none allows.
 */
static bool outwait_requests(source *source, jsConsumerInfo **info)
{
	int64_t until_ms = runtime_now_ms() + NATS_ASK_MS + PAUSE_MS;
	bool found = true;

	while (found && (*info)->NumAckPending > 0 && (*info)->NumWaiting > 0 && runtime_now_ms() < until_ms) {
		if (runtime_sleep(PAUSE_MS)) {
			return false;
		}
		jsConsumerInfo_Destroy(*info);
		*info = NULL;
		found = nats_find_consumer(source, info);
	}
	return found;
}

/*
 * Messages that an earlier connection, of this process or another, left unacknowledged are
 * redelivered at once. A NAK is sent for each sequence between the server's two marks; it ignores
 * those that are not out. The last one asks for a reply: then all are done. They usually come in
 * this order, but messages that the server could not deliver to an ended connection come first.
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
		             : natsConnection_RequestString(&answer, source->connection, subject, "-NAK", NATS_ANSWER_MS);
	}
	natsMsg_Destroy(answer);
	return status == NATS_OK || nats_fail(source, "cannot take back unacknowledged messages at", status);
}

static bool prepare(source *source)
{
	jsConsumerInfo *info = NULL;
	natsStatus status = NATS_OK;

	source->inbox = nats_inbox_open(source->connection, &status);
	if (source->inbox == NULL) {
		return nats_fail(source, "cannot subscribe at", status);
	}
	bool prepared = nats_find_consumer(source, &info) && fits(source, info->Config) && dead_topic_leads_away(source);
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

/* A host name can take the system's resolver most of a minute, and a silent server CONNECT_MS. */
static natsStatus connect_to(source *source, broker_host *host)
{
	broker_address one = *source->address;
	natsOptions *how = NULL;

	one.hosts = host;
	one.host_count = 1;
	if (!nats_prepare(&one, source->settings.nats.credentials_file, source->name, CONNECT_MS, &how, source->problem)) {
		return NATS_INVALID_ARG;
	}
	natsStatus status = natsConnection_Connect(&source->connection, how);
	natsOptions_Destroy(how);
	if (status != NATS_OK) {
		source->connection = NULL;
		/* Of several, the one that could be reached has more to say. */
		if (status != NATS_NO_SERVER || source->problem[0] == '\0') {
			(void)nats_fail(source, "cannot connect to", status);
		}
	}
	return status;
}

/*
 * The servers in turn, from any, so that members spread over them. The library would do the same,
 * but in one call: many silent servers would keep it longer than a service manager waits.
 */
static bool connect_to_server(source *source)
{
	const broker_address *all = source->address;
	size_t first = (size_t)runtime_now_ms() % all->host_count;

	source->problem[0] = '\0';
	for (size_t i = 0; i < all->host_count && (i == 0 || !runtime_stopping()); i++) {
		notify_alive();
		if (connect_to(source, &all->hosts[(first + i) % all->host_count]) == NATS_OK) {
			return true;
		}
	}
	return false;
}

bool nats_reconnect(source *source)
{
	jsOptions js_options;

	if (!connect_to_server(source)) {
		nats_lose(source);
		return false;
	}
	jsOptions_Init(&js_options);
	js_options.Wait = NATS_ANSWER_MS;
	natsStatus status = natsConnection_JetStream(&source->js, source->connection, &js_options);
	bool prepared = status == NATS_OK ? prepare(source) : nats_fail(source, "cannot use JetStream at", status);
	if (!prepared) {
		nats_lose(source);
		return false;
	}
	source->touched_ms = runtime_now_ms();
	source->steady_at_ms = source->touched_ms + RETRY_MOST_MS;
	runtime_log(source->speaker, RUNTIME_INFO, "connected", "source=nats stream=%s consumer=%s",
	            source->settings.stream, source->durable);
	return true;
}
