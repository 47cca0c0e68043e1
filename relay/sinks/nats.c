/* SPDX-License-Identifier: PostgreSQL */
/*
 * nats.c: the sink of NATS JetStream. Each message has its own reply subject for the stream's
 * acknowledgement; one subscription gets them all. A thread connects and publishes, since both may
 * block; the subscription's thread brings the answers. cnats must not reconnect: a lost connection
 * ends here, so that it is clear which messages were lost with it. Nats-Msg-Id is the event's id
 * and the subject: a message repeated within the stream's duplicate window is stored once. A stream
 * compares ids across all its subjects, so with the event's id alone it would drop, and
 * acknowledge, another relay's message for another subject.
 *
 * "No responders" means that the subject has no subscriber now: JetStream is away, the stream has
 * no leader, or there is no such stream. So JetStream is asked for each such message: only if it
 * says that no stream takes the subject, the message is refused. Otherwise the sink is away.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "flight.h"
#include "nats.h"
#include "sink.h"

#define IN_FLIGHT_MAX 8192
#define BYTES_MAX ((size_t)64 << 20)
#define CONNECT_MS 2000
#define BACKOFF_FIRST_MS 100
#define BACKOFF_MOST_MS 2000
#define LOOK_MS 1000
#define ASK_MS 2000 /* JetStream answers within it, or is away */
#define ASKED_LOOK_MS 100
#define FLUSH_MS 100 /* a stuck server must not keep the thread */
#define HEADER_LINE "NATS/1.0\r\n"

typedef struct settings {
	nats_options nats;
	int64_t timeout_ms; /* the pipeline's option, known by its table */
} settings;

static const config_option options[] = {NATS_OPTION_ROWS, {.name = NULL}};
static const config_option shared_options[] = {{.name = "timeout",
                                                .kind = CONFIG_DURATION,
                                                .offset = offsetof(settings, timeout_ms),
                                                .minimum = 1,
                                                .maximum = INT64_MAX,
                                                .standard = "30s"},
                                               {.name = NULL}};

struct sink {
	const speaker *speaker;
	broker_address *address;
	char *credentials_file;
	char *client_name;
	flight *flight;
	pthread_t thread;
	bool has_thread;
	atomic_bool stopping;
	/* the thread's own; the subscription's thread reads the inbox */
	natsConnection *connection;
	natsSubscription *answers;
	char inbox[64]; /* "_INBOX.<unique>."; a ticket follows, or QUESTION and a ticket */
	bool is_subscribed;
	int failures;
	/* of this connection: its user may not ask which streams take a subject */
	atomic_bool is_denied;
	/* said by the subscription's thread */
	atomic_bool lost;
	sem_t complete;
};

#define NO_LISTENER_UNASKED                                                                                            \
	"the subject has no subscriber, and this user may not publish to " NATS_STREAM_NAMES ", so it counts as no stream"

static bool read_settings(const config *config, const config_section *section, settings *settings,
                          broker_address **address, char **problem)
{
	return config_apply(config, section, options, settings, problem) &&
	       config_apply(config, section, shared_options, settings, problem) &&
	       nats_address_read(config, section, &settings->nats, address, problem);
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

/* ---- answers: on the subscription's own thread, which cnats starts */

#define QUESTION 'q' /* no hexadecimal digit */

/* The message's subject has no subscriber. */
static void ask(sink *sink, natsConnection *connection, uint64_t ticket)
{
	char reply[96];
	char *subject = flight_hold(sink->flight, ticket);
	char *request = subject == NULL ? NULL : nats_ask_streams(subject);

	if (atomic_load(&sink->is_denied)) {
		flight_answer(sink->flight, ticket, SINK_REFUSED, NO_LISTENER_UNASKED);
	} else if (request != NULL) {
		snprintf(reply, sizeof reply, "%s%c%llx", sink->inbox, QUESTION, (unsigned long long)ticket);
		/* If it fails, the connection is lost, which is noticed elsewhere. */
		(void)natsConnection_PublishRequestString(connection, NATS_STREAM_NAMES, reply, request);
		flight_wake(sink->flight); /* the thread looks how long the answer takes */
	}
	free(subject);
	free(request);
}

static void on_streams(sink *sink, uint64_t ticket, natsMsg *message)
{
	char problem[BROKER_PROBLEM_BYTES];

	if (natsMsg_IsNoResponders(message)) {
		flight_answer(sink->flight, ticket, SINK_UNAVAILABLE,
		              "the subject has no subscriber, and there is no JetStream in this account now");
		return;
	}
	bool none = nats_no_stream(natsMsg_GetData(message), (size_t)natsMsg_GetDataLength(message), problem);
	flight_answer(sink->flight, ticket, none ? SINK_REFUSED : SINK_UNAVAILABLE, problem);
}

static void on_stored(sink *sink, uint64_t ticket, natsMsg *message)
{
	char problem[BROKER_PROBLEM_BYTES];
	const char *data = natsMsg_GetData(message);
	size_t length = (size_t)natsMsg_GetDataLength(message);
	int code;

	if (!nats_answer_error(data, length, &code, problem)) {
		flight_answer(sink->flight, ticket, SINK_DELIVERED, NULL);
	} else {
		flight_answer(sink->flight, ticket, nats_answer_is_absence(data, length) ? SINK_UNAVAILABLE : SINK_REFUSED,
		              problem);
	}
}

static void on_answer(natsConnection *connection, natsSubscription *subscription, natsMsg *message, void *closure)
{
	sink *sink = closure;
	const char *to = natsMsg_GetSubject(message) + strlen(sink->inbox);
	bool is_question = *to == QUESTION;
	uint64_t ticket = strtoull(is_question ? to + 1 : to, NULL, 16);

	(void)subscription;
	if (is_question) {
		on_streams(sink, ticket, message);
	} else if (natsMsg_IsNoResponders(message)) {
		ask(sink, connection, ticket);
	} else {
		on_stored(sink, ticket, message);
	}
	natsMsg_Destroy(message);
}

/* The last call of that thread: the connection was lost, or is being closed. */
static void on_complete(void *closure)
{
	sink *sink = closure;

	atomic_store(&sink->lost, true);
	flight_wake(sink->flight);
	sem_post(&sink->complete);
}

/* ---- what may be sent */

/*
 * Visible ASCII, in tokens that are not empty; wildcards are for subscribers, and "$..." is how the
 * server itself is spoken to.
 */
static bool subject_fits(const char *subject)
{
	bool token_starts = true;

	if (*subject == '$' || strncmp(subject, "_INBOX", 6) == 0) {
		return false;
	}
	for (const char *c = subject;; c++) {
		bool ends = *c == '.' || *c == '\0';
		if (ends && token_starts) {
			return false;
		}
		if (*c == '\0') {
			return true;
		}
		if ((unsigned char)*c <= ' ' || *c == 0x7f || *c == '*' || *c == '>') {
			return false;
		}
		token_starts = ends;
	}
}

/* A line end in a header would begin a second header. */
static bool header_fits(const sink_header *header)
{
	for (const char *c = header->name; *c != '\0'; c++) {
		if (*c <= ' ' || *c >= 0x7f || *c == ':') {
			return false;
		}
	}
	return *header->name != '\0' && strpbrk(header->value, "\r\n") == NULL;
}

/* False: the message can never be sent as it is. */
static bool message_fits(const sink *sink, const sink_message *message, char problem[BROKER_PROBLEM_BYTES])
{
	int64_t most = natsConnection_GetMaxPayload(sink->connection);
	size_t bytes = message->body.length + strlen(HEADER_LINE) + strlen(message->destination) + 128 +
	               (message->content_type == NULL ? 0 : strlen(message->content_type));

	if (!subject_fits(message->destination)) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.100s is not a subject that can be published to: change the route",
		         message->destination);
		return false;
	}
	for (size_t i = 0; i < message->header_count; i++) {
		if (!header_fits(&message->headers[i])) {
			snprintf(problem, BROKER_PROBLEM_BYTES,
			         "the header %.100s cannot be sent: a name of visible ASCII, a value without line ends",
			         message->headers[i].name);
			return false;
		}
		bytes += strlen(message->headers[i].name) + strlen(message->headers[i].value) + 4;
	}
	if (most > 0 && bytes > (size_t)most) {
		/* The server would end the connection, with all its messages. */
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "about %zu bytes with its headers, and the server's max_payload is %lld", bytes, (long long)most);
		return false;
	}
	return true;
}

/* ---- the thread */

static void disconnect(sink *sink)
{
	natsConnection_Close(sink->connection);
	while (sink->is_subscribed && sem_wait(&sink->complete) != 0) {
		/* a signal */
	}
	sink->is_subscribed = false;
	natsSubscription_Destroy(sink->answers);
	natsConnection_Destroy(sink->connection);
	sink->answers = NULL;
	sink->connection = NULL;
}

static natsStatus subscribe(sink *sink)
{
	natsInbox *inbox = NULL;
	char subject[72];
	natsStatus status = natsInbox_Create(&inbox);

	if (status != NATS_OK) {
		return status;
	}
	snprintf(sink->inbox, sizeof sink->inbox, "%.60s.", inbox);
	snprintf(subject, sizeof subject, "%s*", sink->inbox);
	natsInbox_Destroy(inbox);
	status = natsConnection_Subscribe(&sink->answers, sink->connection, subject, on_answer, sink);
	if (status == NATS_OK) {
		status = natsSubscription_SetOnCompleteCB(sink->answers, on_complete, sink);
		sink->is_subscribed = status == NATS_OK;
	}
	return status;
}

static bool sink_connect(sink *sink, char problem[BROKER_PROBLEM_BYTES])
{
	natsOptions *options;

	if (!nats_prepare(sink->address, sink->credentials_file, sink->client_name, CONNECT_MS, &options, problem)) {
		return false;
	}
	atomic_store(&sink->lost, false);
	atomic_store(&sink->is_denied, false);
	natsStatus status = natsConnection_Connect(&sink->connection, options);
	natsOptions_Destroy(options);
	status = status == NATS_OK ? subscribe(sink) : status;
	if (status != NATS_OK) {
		nats_problem(sink->address, "cannot connect to", status, NULL, problem);
		disconnect(sink);
		return false;
	}
	return true;
}

static natsStatus publish(sink *sink, const flight_item *item)
{
	const sink_message *message = &item->message;
	char reply[96];
	char *id = NULL;
	natsMsg *copy = NULL;

	if (asprintf(&id, "%s:%s", message->event_id, message->destination) < 0) {
		return NATS_NO_MEMORY;
	}
	snprintf(reply, sizeof reply, "%s%llx", sink->inbox, (unsigned long long)item->ticket);
	natsStatus status =
	    natsMsg_Create(&copy, message->destination, reply, message->body.data, (int)message->body.length);
	status = status == NATS_OK ? natsMsgHeader_Set(copy, "Nats-Msg-Id", id) : status;
	free(id);
	if (status == NATS_OK && message->content_type != NULL) {
		status = natsMsgHeader_Set(copy, "Content-Type", message->content_type);
	}
	for (size_t i = 0; status == NATS_OK && i < message->header_count; i++) {
		status = natsMsgHeader_Add(copy, message->headers[i].name, message->headers[i].value);
	}
	status = status == NATS_OK ? natsConnection_PublishMsg(sink->connection, copy) : status;
	natsMsg_Destroy(copy);
	return status;
}

/* False: the connection is unusable. */
static bool publish_waiting(sink *sink, char problem[BROKER_PROBLEM_BYTES])
{
	flight_item *item;
	bool any = false;

	flight_woken(sink->flight);
	while (!atomic_load(&sink->stopping) && !atomic_load(&sink->lost) && (item = flight_take(sink->flight)) != NULL) {
		natsStatus status = NATS_OK;
		if (!message_fits(sink, &item->message, problem)) {
			flight_answer(sink->flight, item->ticket, SINK_REFUSED, problem);
		} else if (flight_waits(sink->flight, item->ticket)) {
			status = publish(sink, item);
			any = true;
		}
		flight_item_free(item);
		if (status != NATS_OK) {
			nats_problem(sink->address, "cannot send to", status, NULL, problem);
			return false;
		}
	}
	if (any) {
		/*
		 * cnats' thread would do it a millisecond later: by then the relay may be paused, and
		 * another may have sent.
		 */
		(void)natsConnection_FlushTimeout(sink->connection, FLUSH_MS);
	}
	return true;
}

/* The server reports a forbidden subject on the connection, not on the reply's subject. */
static bool may_not_ask(sink *sink)
{
	const char *text = NULL;

	return natsConnection_GetLastError(sink->connection, &text) == NATS_NOT_PERMITTED && text != NULL &&
	       strstr(text, NATS_STREAM_NAMES) != NULL;
}

/* Questions that JetStream has not answered. Returns when to look again. */
static int see_to_questions(sink *sink)
{
	size_t held =
	    flight_answer_held(sink->flight, ASK_MS, SINK_UNAVAILABLE,
	                       "the subject has no subscriber, and JetStream does not answer which stream takes it");

	if (held == 0) {
		return LOOK_MS;
	}
	if (may_not_ask(sink)) {
		if (!atomic_exchange(&sink->is_denied, true)) {
			runtime_log(sink->speaker, RUNTIME_WARNING, "sink-may-not-ask",
			            "sink=nats subject=%s; an event whose subject has no subscriber counts as failed, also while "
			            "JetStream is away",
			            NATS_STREAM_NAMES);
		}
		(void)flight_answer_held(sink->flight, 0, SINK_REFUSED, NO_LISTENER_UNASKED);
	}
	return ASKED_LOOK_MS;
}

static void wait_for_work(sink *sink, int timeout_ms)
{
	struct pollfd work = {.fd = flight_descriptor(sink->flight), .events = POLLIN};

	(void)poll(&work, 1, timeout_ms);
}

/* Before the next try; ends early when the sink is closed. */
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

	disconnect(sink);
	flight_lost(sink->flight, problem);
	runtime_log(sink->speaker, sink->failures == 0 ? RUNTIME_WARNING : RUNTIME_DEBUG, "sink-unavailable",
	            "sink=nats error=%s", runtime_quote(problem, quoted));
}

static void *run(void *closure)
{
	sink *sink = closure;
	char problem[BROKER_PROBLEM_BYTES];

	while (!atomic_load(&sink->stopping)) {
		if (sink->connection == NULL) {
			if (!sink_connect(sink, problem)) {
				lose(sink, problem);
				back_off(sink);
				continue;
			}
			runtime_log(sink->speaker, RUNTIME_INFO, "sink-connected", "sink=nats url=%s", sink->address->shown);
			sink->failures = 0;
		}
		if (!publish_waiting(sink, problem)) {
			lose(sink, problem);
		} else if (atomic_load(&sink->lost)) {
			nats_problem(sink->address, "lost the connection to", NATS_CONNECTION_CLOSED, sink->connection, problem);
			lose(sink, problem);
		} else {
			wait_for_work(sink, see_to_questions(sink));
			continue;
		}
		back_off(sink);
	}
	disconnect(sink);
	return NULL;
}

/* ---- the interface */

static void sink_close(sink *sink)
{
	if (sink == NULL) {
		return;
	}
	if (sink->has_thread) {
		atomic_store(&sink->stopping, true);
		flight_wake(sink->flight);
		pthread_join(sink->thread, NULL);
	}
	flight_free(sink->flight);
	broker_address_free(sink->address);
	free(sink->credentials_file);
	free(sink->client_name);
	free(sink);
}

static bool sink_open(const speaker *speaker, const config *config, const config_section *section, sink **result,
                      char **problem)
{
	settings settings;
	sink *sink = calloc(1, sizeof *sink);

	*problem = NULL;
	if (sink != NULL && !read_settings(config, section, &settings, &sink->address, problem)) {
		sink_close(sink);
		return false;
	}
	if (sink != NULL) {
		const char *credentials_file = settings.nats.credentials_file;
		sink->speaker = speaker;
		sem_init(&sink->complete, 0, 0);
		sink->flight = flight_new(IN_FLIGHT_MAX, BYTES_MAX, settings.timeout_ms);
		sink->credentials_file = credentials_file == NULL ? NULL : strdup(credentials_file);
		if (asprintf(&sink->client_name, "pgonce %s %s", section->kind, section->name) < 0) {
			sink->client_name = NULL;
		}
		if (sink->flight != NULL && sink->client_name != NULL &&
		    (credentials_file == NULL || sink->credentials_file != NULL) &&
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

const sink_class sink_nats = {
    .name = "nats",
    .options = options,
    .in_flight = 1000,
    .open = sink_open,
    .check = check,
    .send = sink_send,
    .poll = sink_poll,
    .permit = sink_permit,
    .close = sink_close,
};
