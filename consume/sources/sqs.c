/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs.c: reads messages of an Amazon SQS queue, by long polling. A received message is invisible to
 * other members for `visibility`, which is extended by as much each time, for all messages here or
 * with the caller. One receive call is open while there is room, more if each brings as much as it
 * can. If the answer to a FIFO queue's call is lost, the same call is made again: by its
 * ReceiveRequestAttemptId the queue returns the same messages, which otherwise no member would get
 * until their visibility is over.
 *
 * Order: a FIFO queue delivers no message of a group while another of it is invisible, so members
 * share the order. When one's visibility is over (this process stood still), all messages of its
 * group here are void: the group comes again from its beginning.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "aws_sign.h"
#include "dead_loop.h"
#include "delivery.h"
#include "sqs_errands.h"
#include "sqs_message.h"
#include "sqs_queue.h"

enum {
	RECEIVES_MAX = 8,
	ANSWER_MS = 10000,
	RETRY_FIRST_MS = 100,
	RETRY_MOST_MS = 10000,
	CLOSE_MS = 6000,
	/* SQS remembers an attempt id for five minutes. */
	ATTEMPT_MS = 4 * 60 * 1000
};

typedef struct settings {
	aws_options aws; /* first */
	const char *queue;
	int64_t wait_ms, visibility_ms, redrive;
} settings;

enum {
	REDRIVE_REFUSE,
	REDRIVE_ALLOW
};

/* clang-format off */
static const config_option options[] = {
	AWS_OPTION_ROWS("sqs"),
	{.name = "queue", .kind = CONFIG_TEXT, .offset = offsetof(settings, queue), .required = true, .help = "the queue's name, or its URL; one whose name ends in .fifo keeps the order of its groups. It must exist"},
	{.name = "wait", .kind = CONFIG_DURATION, .offset = offsetof(settings, wait_ms), .minimum = 1000, .maximum = 20000, .standard = "5s", .help = "how long a call waits at the queue for a message (long polling), in whole seconds. A stop waits for the call's end, at most 6 s"},
	{.name = "visibility", .kind = CONFIG_DURATION, .offset = offsetof(settings, visibility_ms), .minimum = 10000, .maximum = 43200000, .standard = "60s", .help = "how long a message is hidden from other members, in whole seconds; extended every third of it while the message is in progress. If a member dies, the others wait this long for its messages. SQS ends it 12 hours after it delivered the message, even if it is extended"},
	{.name = "redrive", .kind = CONFIG_CHOICE, .offset = offsetof(settings, redrive), .choices = "refuse|allow", .standard = "refuse", .help = "what to do with a queue whose redrive policy moves unhandled messages to a dead-letter queue after some deliveries: refuse it, or accept it as it is. A failing message is parked by pgonce, not redriven by the queue"},
	{0}};
/* clang-format on */

struct source {
	const speaker *speaker;
	settings settings;
	aws_address *address;
	char *url; /* NULL: not found yet */
	const char *name;
	const char *dead_topic; /* NULL: not set */
	source_bounds bounds;
	sqs_queue_facts queue;
	delivery_list out, held;
	delivery_list gone; /* acknowledged, and not deleted yet */
	int64_t delete_at_ms;
	errands calls;
	/* with a number appended, the id of an attempt; "": none */
	char attempt[AWS_SHA256_HEX_BYTES];
	uint64_t attempts;
	size_t receives_wanted;
	uint64_t serial;
	int64_t looked_ms; /* when extend_all last ran */
	size_t voided;     /* must be reported */
	bool told;         /* logged that deleting or extending is refused */
	bool wrong;        /* the last receive call failed: `problem` */
	int failures;
	int64_t retry_at_ms;
	char problem[BROKER_PROBLEM_BYTES];
};

/* ---- failures */

static void fail(source *source, const char *problem)
{
	source->wrong = true;
	snprintf(source->problem, sizeof source->problem, "%.255s", problem);
	source->retry_at_ms = runtime_now_ms() + runtime_backoff_ms(++source->failures, RETRY_FIRST_MS, RETRY_MOST_MS);
}

static void succeed(source *source)
{
	source->wrong = false;
	source->failures = 0;
	source->problem[0] = '\0';
}

/*
 * The deliveries of its group, here and with the caller, are void; in a standard queue only itself.
 */
static void make_void(source *source, delivery *first)
{
	const delivery_list *const lists[] = {&source->out, &source->held};
	const char *group = sqs_message_group(first);

	for (size_t i = 0; i < 2; i++) {
		for (delivery *each = lists[i]->first; each != NULL; each = each->next) {
			if (!each->is_void &&
			    (each == first || (group[0] != '\0' && strcmp(sqs_message_group(each), group) == 0))) {
				each->is_void = true;
				source->voided++;
			}
		}
	}
}

/* Void messages that wait here are dropped without a report. */
static void drop_void(source *source)
{
	for (delivery *next = NULL, *each = source->held.first; each != NULL; each = next) {
		next = each->next;
		if (each->is_void) {
			delivery_remove(&source->held, each);
			sqs_message_release(each);
		}
	}
}

/* ---- calls */

/* How many messages may be requested now; each may be as large as the queue allows. */
static size_t room(const source *source)
{
	const size_t most_bytes = (size_t)SOURCE_HERE_SHARE(source->bounds.bytes);
	size_t bytes = source->out.bytes + source->held.bytes, asked = source->calls.asked;
	size_t here = source->out.count + source->held.count + asked;
	size_t most = here < (size_t)source->bounds.messages ? (size_t)source->bounds.messages - here : 0;
	size_t fit = bytes < most_bytes ? (most_bytes - bytes) / (size_t)source->queue.message_bytes : 0;

	fit = fit > asked ? fit - asked : 0;
	/* A message larger than the limit comes alone. */
	fit = fit == 0 && here == 0 ? 1 : fit;
	fit = fit < most ? fit : most;
	return fit < SQS_BATCH_MAX ? fit : SQS_BATCH_MAX;
}

static void receive_more(source *source)
{
	/* After this time the queue has forgotten a lost call, or shows its messages again, perhaps to
	 * others. */
	const int64_t visibility_ms = source->settings.visibility_ms;
	const int64_t known_ms = visibility_ms < ATTEMPT_MS ? visibility_ms : ATTEMPT_MS;

	while (source->calls.counts[ERRAND_RECEIVE] < source->receives_wanted && runtime_now_ms() >= source->retry_at_ms) {
		if (!errands_make_again(&source->calls, source->receives_wanted, known_ms)) {
			return;
		}
		if (source->calls.counts[ERRAND_RECEIVE] >= source->receives_wanted) {
			return;
		}
		size_t most = room(source);
		if (most == 0) {
			return;
		}
		errand *errand = errand_new(&source->calls, ERRAND_RECEIVE);
		errand_ask(&source->calls, errand, most);
		/* Only one call waits: the others fetch more of the messages already in the queue. */
		json_int_t wait_s = source->calls.counts[ERRAND_RECEIVE] == 1 ? source->settings.wait_ms / 1000 : 0;
		json_t *request = json_pack(
		    "{s:s, s:i, s:I, s:I, s:[s], s:[s, s]}", "QueueUrl", source->url, "MaxNumberOfMessages", (int)most,
		    "VisibilityTimeout", (json_int_t)(source->settings.visibility_ms / 1000), "WaitTimeSeconds", wait_s,
		    "MessageAttributeNames", "All", "AttributeNames", "MessageGroupId", "SentTimestamp");
		if (source->attempt[0] != '\0') {
			char id[AWS_SHA256_HEX_BYTES + 24];
			snprintf(id, sizeof id, "%s-%" PRIu64, source->attempt, ++source->attempts);
			json_object_set_new(request, "ReceiveRequestAttemptId", json_string(id));
		}
		if (!errand_send(&source->calls, errand, "AmazonSQS.ReceiveMessage", request)) {
			return;
		}
	}
}

/* Deletes acknowledged messages, ten at a time. */
static void delete_more(source *source)
{
	while (source->gone.first != NULL && errands_count(&source->calls) < ERRANDS_MAX &&
	       runtime_now_ms() >= source->delete_at_ms) {
		errand *errand = errand_new(&source->calls, ERRAND_DELETE);
		json_t *entries = json_array();
		while (source->gone.first != NULL && errand->count < SQS_BATCH_MAX) {
			delivery *each = delivery_take(&source->gone);
			char id[24];
			snprintf(id, sizeof id, "%zu", errand->count);
			errand->gone[errand->count++] = each;
			json_array_append_new(entries, json_pack("{s:s, s:s}", "Id", id, "ReceiptHandle", each->reply));
		}
		if (!errand_send(&source->calls, errand, "AmazonSQS.DeleteMessageBatch",
		                 json_pack("{s:s, s:o}", "QueueUrl", source->url, "Entries", entries))) {
			return; /* they come again, and are then known */
		}
	}
}

/* Sets their remaining visibility, in seconds; 0: visible to others at once. */
static bool set_visibility(source *source, delivery *const *deliveries, size_t count, int64_t seconds)
{
	errand *errand = errand_new(&source->calls, ERRAND_EXTEND);
	json_t *entries = json_array();

	for (size_t i = 0; i < count; i++) {
		char id[24];
		snprintf(id, sizeof id, "%zu", i);
		errand->serials[errand->count++] = deliveries[i]->serial;
		json_array_append_new(entries, json_pack("{s:s, s:s, s:I}", "Id", id, "ReceiptHandle", deliveries[i]->reply,
		                                         "VisibilityTimeout", (json_int_t)seconds));
	}
	return errand_send(&source->calls, errand, "AmazonSQS.ChangeMessageVisibilityBatch",
	                   json_pack("{s:s, s:o}", "QueueUrl", source->url, "Entries", entries));
}

/*
 * Extends those for which a third of the time has passed. touched_ms is when the last request for
 * one was begun, or when the message came.
 */
static void extend_all(source *source)
{
	const delivery_list *const lists[] = {&source->out, &source->held};
	const int64_t visibility_ms = source->settings.visibility_ms;
	int64_t now_ms = runtime_now_ms();
	delivery *due[SQS_BATCH_MAX];
	size_t count = 0;

	if (now_ms - source->looked_ms < visibility_ms / 20) {
		return;
	}
	source->looked_ms = now_ms;
	for (size_t i = 0; i < 2; i++) {
		for (delivery *each = lists[i]->first; each != NULL; each = each->next) {
			if (each->is_void || now_ms - each->touched_ms < visibility_ms / 3) {
				continue;
			}
			if (now_ms - each->touched_ms >= visibility_ms) {
				make_void(source, each);
				continue;
			}
			due[count++] = each;
			if (count == SQS_BATCH_MAX) {
				if (errands_count(&source->calls) >= ERRANDS_MAX ||
				    !set_visibility(source, due, count, visibility_ms / 1000)) {
					source->looked_ms = 0; /* the rest at the next call */
					drop_void(source);
					return;
				}
				count = 0;
			}
		}
	}
	if (count > 0 && !set_visibility(source, due, count, visibility_ms / 1000)) {
		source->looked_ms = 0;
	}
	drop_void(source);
}

/* ---- answers */

static void take_received(source *source, const errand *errand)
{
	json_t *answer = json_loadb(errand->call.answer, errand->call.answer_length, 0, NULL);
	json_t *messages = json_object_get(answer, "Messages");
	size_t at;
	json_t *each;

	if (!json_is_object(answer)) {
		char problem[BROKER_PROBLEM_BYTES];
		snprintf(problem, sizeof problem, "the server at %.120s is not SQS", source->address->url);
		fail(source, problem);
		json_decref(answer);
		return;
	}
	succeed(source);
	/* With a repeated call, visibility may have begun at the first one: it is extended next. */
	int64_t now_ms = runtime_now_ms(), third_ms = source->settings.visibility_ms / 3;
	int64_t touched_ms = errand->is_again ? now_ms - third_ms : now_ms;
	json_array_foreach(messages, at, each)
	{
		delivery *made = sqs_message_wrap(each, source->name);
		if (made != NULL) {
			made->serial = ++source->serial;
			made->touched_ms = touched_ms;
			delivery_add(&source->held, made);
		}
	}
	size_t count = json_array_size(messages);
	json_decref(answer);
	if (count == errand->asked && source->receives_wanted < RECEIVES_MAX) {
		source->receives_wanted++;
	} else if (count == 0 || count < errand->asked / 2) {
		source->receives_wanted = 1;
	}
}

static delivery *find_serial(const source *source, uint64_t serial)
{
	const delivery_list *const lists[] = {&source->out, &source->held};

	for (size_t i = 0; i < 2; i++) {
		for (delivery *each = lists[i]->first; each != NULL; each = each->next) {
			if (each->serial == serial) {
				return each;
			}
		}
	}
	return NULL;
}

/* A message that could not be extended belongs to another member by now, or the call failed and is
 * repeated. */
static void take_extended(source *source, const errand *errand)
{
	json_t *answer = json_loadb(errand->call.answer, errand->call.answer_length, 0, NULL);
	char problem[BROKER_PROBLEM_BYTES];

	for (size_t i = 0; i < errand->count; i++) {
		delivery *each = find_serial(source, errand->serials[i]);
		aws_entry entry = aws_batch_read(answer, i, NULL, problem);
		if (each != NULL && entry == AWS_ENTRY_WRONG) {
			make_void(source, each);
		} else if (each != NULL && entry == AWS_ENTRY_DONE) {
			each->touched_ms = errand->started_ms;
		}
	}
	drop_void(source);
	json_decref(answer);
}

/* Failed deletes are retried for as long as the message is ours. */
static void take_deleted(source *source, errand *errand)
{
	json_t *answer = json_loadb(errand->call.answer, errand->call.answer_length, 0, NULL);
	char problem[BROKER_PROBLEM_BYTES];
	int64_t now_ms = runtime_now_ms();

	for (size_t i = 0; i < errand->count; i++) {
		delivery *each = errand->gone[i];
		bool later = errand->call.result != AWS_REFUSED && aws_batch_read(answer, i, NULL, problem) == AWS_ENTRY_FAILED;
		if (later && now_ms - each->touched_ms < source->settings.visibility_ms) {
			delivery_add(&source->gone, each);
			source->delete_at_ms = now_ms + runtime_backoff_ms(1, 2 * RETRY_FIRST_MS, RETRY_MOST_MS);
		} else {
			sqs_message_release(each);
		}
	}
	errand->count = 0;
	json_decref(answer);
}

/* Messages would come again and again: an operator has to act, so it is logged once. */
static void note_refusal(source *source, const errand *errand)
{
	char quoted[RUNTIME_QUOTE_BYTES];

	if (errand->kind != ERRAND_RECEIVE && errand->call.result == AWS_REFUSED && !source->told) {
		runtime_log(source->speaker, RUNTIME_ERROR, errand->kind == ERRAND_DELETE ? "delete" : "extend",
		            "queue=%s problem=%s", source->name, runtime_quote(errand->call.problem, quoted));
		source->told = true;
	} else if (errand->kind != ERRAND_RECEIVE && errand->call.result == AWS_DONE) {
		source->told = false;
	}
}

static void take_answer(source *source, errand *errand)
{
	const aws_call *call = &errand->call;

	note_refusal(source, errand);
	switch (errand->kind) {
	case ERRAND_RECEIVE:
		if (call->result == AWS_DONE) {
			take_received(source, errand);
		} else {
			fail(source, call->problem);
			source->receives_wanted = 1;
			if (source->attempt[0] != '\0' && errands_keep_lost(&source->calls, errand)) {
				return;
			}
		}
		break;
	case ERRAND_EXTEND:
		take_extended(source, errand);
		break;
	case ERRAND_DELETE:
		take_deleted(source, errand);
		break;
	case ERRAND_KINDS:
		break;
	}
	errand_free(&source->calls, errand);
}

/* All answers that are here, waiting at most timeout_ms for the first. */
static void take_answers(source *source, int timeout_ms)
{
	aws_call *call = aws_poll(source->calls.client, timeout_ms);

	while (call != NULL) {
		take_answer(source, call->user);
		call = aws_poll(source->calls.client, 0);
	}
}

/* ---- the queue */

static bool find_queue(source *source)
{
	char problem[BROKER_PROBLEM_BYTES];
	const sqs_queue_want want = {.speaker = source->speaker,
	                             .client = source->calls.client,
	                             .queue = source->settings.queue,
	                             .dead_topic = source->dead_topic,
	                             .allows_redrive = source->settings.redrive == REDRIVE_ALLOW};

	if (!sqs_queue_find(&want, &source->url, &source->queue, problem)) {
		fail(source, problem);
		return false;
	}
	runtime_log(source->speaker, RUNTIME_INFO, "connected", "source=sqs queue=%s region=%s", source->name,
	            source->address->region);
	return true;
}

/* ---- the interface */

static source_state unavailable(source *source, int timeout_ms, char problem[BROKER_PROBLEM_BYTES])
{
	int64_t wait_ms = source->retry_at_ms - runtime_now_ms();

	memcpy(problem, source->problem, BROKER_PROBLEM_BYTES);
	if (wait_ms > 0 && timeout_ms > 0 && errands_count(&source->calls) == 0) {
		runtime_sleep(wait_ms < timeout_ms ? wait_ms : timeout_ms);
	}
	return SOURCE_UNAVAILABLE;
}

static void collect(source *source, size_t most, size_t most_bytes, int timeout_ms)
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;

	for (bool first = true; first || (source->held.count == 0 && runtime_now_ms() < until_ms); first = false) {
		delete_more(source);
		if (source->held.count < most && source->held.bytes < most_bytes) {
			receive_more(source);
		}
		int64_t left_ms =
		    source->held.count > 0 || errands_count(&source->calls) == 0 ? 0 : until_ms - runtime_now_ms();
		take_answers(source, left_ms > 0 ? (int)left_ms : 0);
		if (source->wrong || errands_count(&source->calls) == 0) {
			return;
		}
	}
}

static source_state sqs_fetch(source *source, size_t most, size_t most_bytes, int timeout_ms, source_message **messages,
                              size_t *count, char problem[BROKER_PROBLEM_BYTES])
{
	*count = 0;
	if (source->url == NULL && (most == 0 || runtime_now_ms() < source->retry_at_ms || !find_queue(source))) {
		return unavailable(source, timeout_ms, problem);
	}
	extend_all(source);
	if (most > 0) {
		collect(source, most, most_bytes, timeout_ms);
	} else {
		delete_more(source);
		take_answers(source, 0);
	}
	if (source->voided > 0) {
		snprintf(problem, BROKER_PROBLEM_BYTES,
		         "the visibility of %zu messages of %.80s is over: the queue delivers them again", source->voided,
		         source->name);
		source->voided = 0;
		return SOURCE_LOST;
	}
	*count = delivery_hand_over(&source->held, &source->out, most, most_bytes, messages);
	if (*count == 0 && source->wrong) {
		return unavailable(source, timeout_ms, problem);
	}
	return SOURCE_OK;
}

/*
 * Deleted in the background: messages that cannot be deleted come again, and are then known. Void
 * ones are deleted too: their effects are committed.
 */
static source_state sqs_acknowledge(source *source, source_message *const *messages, size_t count,
                                    char problem[BROKER_PROBLEM_BYTES])
{
	(void)problem;
	for (size_t i = 0; i < count; i++) {
		delivery *each = delivery_of(messages[i]);
		delivery_remove(&source->out, each);
		sqs_message_empty(each);
		delivery_add(&source->gone, each);
	}
	delete_more(source);
	take_answers(source, 0); /* which also sends */
	return SOURCE_OK;
}

static void sqs_give_back(source *source, source_message *const *messages, size_t count)
{
	delivery_give_back(&source->out, &source->held, messages, count, sqs_message_release);
}

/*
 * The queue deletes messages older than its retention period: none sent before that comes again.
 * More is not known of a queue that others read too.
 */
static size_t sqs_positions(source *source, source_position *positions, size_t most)
{
	if (most == 0 || source->url == NULL) {
		return 0;
	}
	positions[0] =
	    (source_position){.part = source->name, .at_ms = SOURCE_AT_END, .behind_ms = source->queue.retention_ms};
	return 1;
}

static bool sqs_publish(source *source, const char *topic, const source_message *message, const source_header *more,
                        size_t more_count, int timeout_ms, char problem[BROKER_PROBLEM_BYTES])
{
	aws_call call = {0};
	char *url = NULL;

	(void)timeout_ms; /* an errand takes no longer */
	if (!sqs_is_queue(topic)) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "%.100s is neither a queue's name nor its URL", topic);
		return false;
	}
	if (sqs_find(source->calls.client, topic, &url, problem) != AWS_DONE) {
		return false;
	}
	json_t *request = sqs_message_copy(message, more, more_count, sqs_is_fifo(topic));
	if (request != NULL) {
		json_object_set_new(request, "QueueUrl", json_string(url));
	}
	bool sent = false;
	if (!sqs_call(&call, "AmazonSQS.SendMessage", request)) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the message is not UTF-8 text; SQS accepts nothing else");
	} else {
		aws_do(source->calls.client, &call);
		sent = call.result == AWS_DONE;
		snprintf(problem, BROKER_PROBLEM_BYTES, "%s", call.problem);
	}
	aws_call_clear(&call);
	free(url);
	return sent;
}

/* ---- Opening and closing ---- */

/*
 * Makes all messages here visible to others at once; a FIFO queue keeps their order itself. An
 * answer that comes in between may make messages here void, and drop them.
 */
static void return_all(source *source)
{
	for (delivery *each; (each = delivery_take(&source->out)) != NULL;) {
		delivery_add(&source->held, each);
	}
	while (source->held.first != NULL) {
		delivery *some[SQS_BATCH_MAX];
		delivery *each;
		size_t count = 0;
		while (errands_count(&source->calls) >= ERRANDS_MAX) {
			take_answers(source, ANSWER_MS);
		}
		while (count < SQS_BATCH_MAX && (each = delivery_take(&source->held)) != NULL) {
			if (each->is_void) {
				sqs_message_release(each);
			} else {
				some[count++] = each;
			}
		}
		if (count > 0) {
			(void)set_visibility(source, some, count, 0);
		}
		for (size_t i = 0; i < count; i++) {
			sqs_message_release(some[i]);
		}
	}
}

/*
 * Open requests may still bring messages, which no member would get until their visibility is over:
 * waits for them.
 */
static void finish(source *source)
{
	int64_t until_ms = runtime_now_ms() + CLOSE_MS;

	while ((errands_count(&source->calls) > 0 || source->gone.first != NULL) && runtime_now_ms() < until_ms) {
		delete_more(source);
		if (errands_count(&source->calls) == 0) {
			(void)poll(NULL, 0, RETRY_FIRST_MS / 2); /* before they are tried again */
		}
		take_answers(source, RETRY_FIRST_MS);
	}
	return_all(source);
	until_ms = runtime_now_ms() + ANSWER_MS / 4;
	while (errands_count(&source->calls) > source->calls.counts[ERRAND_RECEIVE] && runtime_now_ms() < until_ms) {
		take_answers(source, (int)(until_ms - runtime_now_ms()));
	}
}

static void sqs_close(source *source)
{
	if (source->url != NULL && source->calls.client != NULL) {
		finish(source);
	}
	errands_clear(&source->calls);
	delivery_release_all(&source->out, sqs_message_release);
	delivery_release_all(&source->held, sqs_message_release);
	delivery_release_all(&source->gone, sqs_message_release);
	aws_address_free(source->address);
	free(source->url);
	free(source);
}

static bool check_queue(const config *config, const config_section *section, const settings *settings, char **problem)
{
	if (!sqs_is_queue(settings->queue)) {
		*problem =
		    config_problem(config, section, NULL, "queue: '%s' is neither a queue's name nor its URL", settings->queue);
	} else if (settings->wait_ms % 1000 != 0 || settings->visibility_ms % 1000 != 0) {
		*problem = config_problem(config, section, NULL, "wait and visibility must be whole seconds");
	}
	return *problem == NULL;
}

/* Compares the text only; if the names are alike, find_queue asks. */
static bool check_dead_topic(const config *config, const config_section *section, const settings *settings,
                             char **problem)
{
	const char *dead_topic = dead_loop_topic(section);

	if (dead_topic != NULL && strcmp(dead_topic, settings->queue) == 0) {
		*problem = dead_loop_problem(config, section, "queue");
	}
	return *problem == NULL;
}

/* Connects at the first fetch. */
static bool sqs_open(const speaker *speaker, const config *config, const config_section *section, source_bounds bounds,
                     bool ordered, source **result, char **problem)
{
	source *made = memory_take(sizeof *made);

	(void)ordered; /* the queue keeps the order, or nothing does */
	*problem = NULL;
	if (!config_apply(config, section, options, &made->settings, problem) ||
	    !check_queue(config, section, &made->settings, problem) ||
	    !check_dead_topic(config, section, &made->settings, problem) ||
	    !aws_address_read(config, section, &made->settings.aws, "sqs", &made->address, problem)) {
		free(made);
		return false;
	}
	made->speaker = speaker;
	made->bounds = bounds;
	made->name = sqs_name(made->settings.queue);
	made->dead_topic = dead_loop_topic(section);
	made->receives_wanted = 1;
	/* Without an id, a lost answer costs one visibility period and nothing else. */
	if (sqs_is_fifo(made->name) && !sqs_message_id(made->attempt)) {
		made->attempt[0] = '\0';
	}
	made->calls.client = aws_client_new(speaker, made->address, "sqs", ERRANDS_MAX, made->settings.wait_ms + ANSWER_MS);
	if (made->calls.client == NULL) {
		*problem = config_problem(config, section, NULL, "libcurl cannot start: out of memory");
		sqs_close(made);
		return false;
	}
	*result = made;
	return true;
}

static bool sqs_check(const config *config, const config_section *section, char **problem)
{
	source *made = NULL;
	bool right = sqs_open(NULL, config, section, (source_bounds){0}, false, &made, problem);

	if (right) {
		sqs_close(made);
	}
	return right;
}

static char *sqs_note(const config *config, const config_section *section)
{
	settings settings;
	char *problem = NULL, *notes = NULL;

	if (!config_apply(config, section, options, &settings, &problem)) {
		free(problem);
		return NULL;
	}
	if (!sqs_is_fifo(sqs_name(settings.queue))) {
		config_problem_add(
		    &notes, config_problem(config, section, config_entry_of(section, "queue"),
		                           "a standard queue (not FIFO) has no order: messages of one key are applied as "
		                           "they arrive, by all members at the same time"));
	}
	config_problem_add(&notes,
	                   config_problem(config, section, NULL,
	                                  "a message that is neither applied nor parked 12 hours after SQS delivered it "
	                                  "is delivered again, even if its visibility was extended"));
	return notes;
}

const source_class source_sqs = {
    .name = "sqs",
    .options = options,
    .has_coordinates = true,
    .shares_order = true,
    .open = sqs_open,
    .check = sqs_check,
    .note = sqs_note,
    .fetch = sqs_fetch,
    .acknowledge = sqs_acknowledge,
    .give_back = sqs_give_back,
    .positions = sqs_positions,
    .publish = sqs_publish,
    .close = sqs_close,
};
