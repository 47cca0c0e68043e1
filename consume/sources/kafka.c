/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka.c: reads messages of Kafka topics, as a member of a consumer group: its rebalances, its
 * messages and the interface. kafka_source.h names the other files of this source.
 *
 * When a rebalance takes a partition away, its deliveries are void and never committed, since that
 * would overwrite the next owner's offset. Deliveries of the other partitions stay valid.
 *
 * Messages have their own queue, apart from the group's events. So a busy caller serves the group
 * without taking messages, and partitions are never paused: librdkafka does not read a partition
 * again that was paused, went to another member, and came back.
 */
#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"
#include "dead_loop.h"
#include "kafka_source.h"

enum {
	CHECK_MS = 1000, /* time limit of a broker's answer when checking that it is alive */
	CHECK_EVERY_MS = 2000,
	TEXT_BYTES = 64, /* of coordinates, besides the topic's name */
	WAIT_MS = 100,   /* for messages, before the group's events are served again */
	ANSWER_MS = 200, /* how long a look at positions waits for the commit in progress */
	SETTLE_MS = 5000 /* after which the client's end of a new partition is current */
};

typedef kafka_settings settings;

enum {
	FORGOTTEN_APPLY = 1
};

/* clang-format off */
static const config_option options[] = {
	KAFKA_OPTION_ROWS,
	{.name = "topics", .kind = CONFIG_TEXT, .offset = offsetof(settings, topics), .required = true, .help = "the topics to read, separated by commas; one that begins with ^ is a regular expression"},
	{.name = "group", .kind = CONFIG_TEXT, .offset = offsetof(settings, group), .help = "the consumer group, whose members share the partitions; default: the section's name"},
	{.name = "forgotten", .kind = CONFIG_CHOICE, .offset = offsetof(settings, forgotten), .choices = "refuse|apply", .standard = "refuse", .help = "if the group of a consumer that has run before has no offset for a partition, or one beyond its end, and the partition begins with messages older than the inbox remembers (the scope's retention): refuse does not read it; apply applies them, perhaps again"},
	STALLED_OPTION_ROW(settings, "a partition"),
	{0}};

static const kafka_fixed fixed[] = {
	{"enable.auto.commit", "false", "a message is acknowledged when its effect has committed, not when some time has passed"},
	{"auto.commit.enable", NULL, "a message is acknowledged when its effect has committed, not when some time has passed"},
	{"enable.auto.offset.store", "false", "a message is acknowledged when its effect has committed, not when it was read"},
	{"enable.partition.eof", "true", "by it is known that nothing is left to read"},
	{"group.id", NULL, "it is the option group"},
	{0}};

/* Values for properties that the section does not set. */
static const char *const defaults[][2] = {
	{"isolation.level", "read_committed"},
	{"queued.min.messages", "10000"},
	/* so that a topic created later is noticed */
	{"topic.metadata.refresh.interval.ms", "10000"},
	{NULL, NULL}};
/* clang-format on */

/*
 * Properties set to a share of `memory`. All partitions feed one queue, and each partition's limit
 * is the queue's. A fetch starts below the limit and adds its whole answer, decompressed. So
 * fetches are small: an answer compressed to a 500th still fits. A batch larger than a fetch comes
 * alone.
 */
static const struct {
	const char *name, *other_name;
	int64_t part, unit; /* memory / part / unit, but at least the minimum */
	int64_t minimum;
} shares[] = {
    {.name = "queued.max.messages.kbytes", .part = 4, .unit = 1024, .minimum = 1},
    /* librdkafka raises the next one to this one */
    {.name = "message.max.bytes", .part = 512, .unit = 1, .minimum = 1000},
    {.name = "fetch.max.bytes", .part = 512, .unit = 1, .minimum = 1000},
    {.name = "fetch.message.max.bytes",
     .other_name = "max.partition.fetch.bytes",
     .part = 512,
     .unit = 1,
     .minimum = 1000},
};
#define SHARE_MOST INT64_C(100000000) /* below the client's maximum of each */
/* How soon a queue that was full is checked again, in milliseconds; since librdkafka 2.2. */
#define QUEUE_LOOK_MS "10"

static void release(delivery *delivery)
{
	rd_kafka_message_destroy(delivery->owned);
	free(delivery);
}

/* ---- The group's rebalances ---- */

static bool names(const rd_kafka_topic_partition_list_t *partitions, const delivery *delivery)
{
	return rd_kafka_topic_partition_list_find(partitions, delivery->message.topic, delivery->partition) != NULL;
}

static void lose_partitions(source *source, const rd_kafka_topic_partition_list_t *partitions)
{
	for (delivery *each = source->held.first, *next; each != NULL; each = next) {
		next = each->next;
		if (names(partitions, each)) {
			delivery_remove(&source->held, each);
			release(each);
		}
	}
	for (delivery *each = source->out.first; each != NULL; each = each->next) {
		if (!each->is_void && names(partitions, each)) {
			each->is_void = true;
			source->lost = true;
		}
	}
	for (int i = 0; i < partitions->cnt; i++) {
		progress_forget(&source->progress, partitions->elems[i].topic, partitions->elems[i].partition);
		rd_kafka_topic_partition_list_del(source->wanted, partitions->elems[i].topic, partitions->elems[i].partition);
	}
}

static void assign(source *source, rd_kafka_topic_partition_list_t *partitions, bool incremental)
{
	for (int i = 0; i < partitions->cnt; i++) {
		kafka_lead_messages(source, partitions->elems[i].topic, partitions->elems[i].partition);
		(void)progress_of(&source->progress, partitions->elems[i].topic, partitions->elems[i].partition);
	}
	if (incremental) {
		rd_kafka_error_destroy(rd_kafka_incremental_assign(source->client, partitions));
		source->assigned += partitions->cnt;
	} else {
		rd_kafka_assign(source->client, partitions);
		source->assigned = partitions->cnt;
	}
	if (partitions->cnt > 0) {
		source->trouble[0] = '\0';
	}
}

static void revoke(source *source, rd_kafka_topic_partition_list_t *partitions, bool incremental)
{
	if (!rd_kafka_assignment_lost(source->client)) {
		kafka_commit_all(source); /* else the next owner repeats acknowledged messages */
	}
	lose_partitions(source, partitions);
	if (incremental) {
		rd_kafka_error_destroy(rd_kafka_incremental_unassign(source->client, partitions));
		source->assigned -= partitions->cnt;
	} else {
		rd_kafka_assign(source->client, NULL);
		source->assigned = 0;
	}
}

/* The client calls it only inside our calls. */
static void rebalance(rd_kafka_t *client, rd_kafka_resp_err_t what, rd_kafka_topic_partition_list_t *partitions,
                      void *opaque)
{
	source *source = ((kafka_watch *)opaque)->user;

	(void)client;
	if (what == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
		assign(source, partitions, kafka_is_incremental(source));
	} else {
		revoke(source, partitions, kafka_is_incremental(source));
	}
	runtime_log(source->speaker, RUNTIME_INFO, what == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS ? "assigned" : "revoked",
	            "partitions=%d now=%d", partitions->cnt, source->assigned);
}

/* ---- Messages ---- */

/* Takes all messages of the partition before the offset `after`. */
static void take_up_to(source *source, const char *topic, int32_t partition, int64_t after)
{
	progress *progress = progress_find(source->progress, topic, partition);

	watchdog_read(&source->watchdog, progress, after);
	if (progress != NULL) {
		progress->after = after;
		progress->is_led = true;
	}
}

static void add_headers(delivery *delivery, rd_kafka_headers_t *headers)
{
	for (size_t i = 0; i < delivery->message.header_count; i++) {
		source_header *header = &delivery->headers[i];
		rd_kafka_header_get_all(headers, i, &header->name, &header->value.data, &header->value.length);
	}
}

/* Takes over the message. */
static void wrap(source *source, rd_kafka_message_t *message)
{
	const char *topic = rd_kafka_topic_name(message->rkt);
	rd_kafka_headers_t *headers = NULL;
	size_t text_bytes = strlen(topic) + TEXT_BYTES;
	char *text;

	if (rd_kafka_message_headers(message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR) {
		headers = NULL;
	}
	delivery *made = delivery_new(headers == NULL ? 0 : rd_kafka_header_cnt(headers), text_bytes, &text);
	made->owned = message;
	made->serial = ++source->serial;
	made->sequence = message->offset;
	made->partition = message->partition;
	rd_kafka_timestamp_type_t kind;
	int64_t created_ms = rd_kafka_message_timestamp(message, &kind);
	made->created_ms = kind == RD_KAFKA_TIMESTAMP_NOT_AVAILABLE || created_ms < 0 ? 0 : created_ms;
	made->message.topic = topic;
	made->message.key = (once_bytes){.data = message->key, .length = message->key_len};
	made->message.payload = (once_bytes){.data = message->payload, .length = message->len};
	snprintf(text, text_bytes, "%s/%" PRId32 "/%" PRId64, topic, message->partition, message->offset);
	made->message.coordinates = text;
	add_headers(made, headers);
	delivery_add(&source->held, made);
	take_up_to(source, topic, message->partition, message->offset + 1);
	source->trouble[0] = '\0';
	kafka_watch_clear(&source->watch);
}

/* librdkafka reports a problem once; it lasts until partitions are assigned. */
static void take_error(source *source, const rd_kafka_message_t *message)
{
	const char *text = rd_kafka_message_errstr(message);

	if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
		const char *topic = rd_kafka_topic_name(message->rkt);
		take_up_to(source, topic, message->partition, message->offset);
		return;
	}
	if (message->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET) {
		kafka_lose_place(source, message);
		return;
	}
	if (message->err == RD_KAFKA_RESP_ERR__MAX_POLL_EXCEEDED) {
		return; /* a rebalance follows and shows its effect */
	}
	kafka_say_trouble(source, text != NULL ? text : rd_kafka_err2str(message->err));
}

/* Moves it to `held`, if it is a message. False: it was not. */
static bool take(source *source, rd_kafka_message_t *message)
{
	if (message != NULL && message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
		take_error(source, message);
		rd_kafka_message_destroy(message);
	} else if (message != NULL) {
		wrap(source, message);
	}
	return message != NULL;
}

/* Serves the group's events: rebalances, through the callback, and problems. */
static void serve_group(source *source)
{
	while (take(source, rd_kafka_consumer_poll(source->client, 0))) {
	}
	kafka_find_places(source);
}

static void collect(source *source, size_t most, size_t most_bytes, int timeout_ms)
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;
	int64_t left_ms = timeout_ms;
	bool came = true;

	serve_group(source);
	/* A turn may bring an error, or the end of a partition, instead of a message. */
	while (came && source->held.count < most && (source->held.count == 0 || source->held.bytes < most_bytes) &&
	       !source->lost) {
		int wait_ms = source->held.count > 0 ? 0 : left_ms > WAIT_MS ? WAIT_MS : (int)left_ms;
		came = take(source, rd_kafka_consume_queue(source->messages, wait_ms));
		left_ms = until_ms > runtime_now_ms() ? until_ms - runtime_now_ms() : 0;
		if (!came && source->held.count == 0 && left_ms > 0) {
			serve_group(source);
			came = true;
		}
	}
	if (!source->lost) {
		watchdog_look(&source->watchdog, source->progress, source->client, rd_kafka_queue_length(source->messages));
	}
}

static bool are_all_refused(const source *source)
{
	const progress *each = source->progress;

	while (each != NULL && each->state == PROGRESS_REFUSED) {
		each = each->next;
	}
	return each == NULL;
}

/*
 * True: a problem stops messages. If a connection failed, asks the brokers whether they are alive.
 */
static bool troubled(source *source, char problem[BROKER_PROBLEM_BYTES])
{
	const struct rd_kafka_metadata *metadata = NULL;

	if (rd_kafka_fatal_error(source->client, problem, BROKER_PROBLEM_BYTES) != RD_KAFKA_RESP_ERR_NO_ERROR) {
		/*
		 * for example, another member has this one's group.instance.id: an operator must act and
		 * restart it
		 */
		return true;
	}
	problem[0] = '\0';
	if (source->watch.error != 0 && runtime_now_ms() - source->checked_ms >= CHECK_EVERY_MS) {
		if (rd_kafka_metadata(source->client, 0, NULL, &metadata, CHECK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
			kafka_watch_clear(&source->watch);
			rd_kafka_metadata_destroy(metadata);
		}
		source->checked_ms = runtime_now_ms();
	}
	if (source->watch.error != 0) {
		kafka_watch_problem(&source->watch, problem);
	} else if (source->assigned == 0 && source->trouble[0] != '\0') {
		memcpy(problem, source->trouble, BROKER_PROBLEM_BYTES);
	} else if (source->progress != NULL && are_all_refused(source)) {
		kafka_say_refused(source, source->progress, problem);
	}
	return problem[0] != '\0';
}

static source_state kafka_fetch(source *source, size_t most, size_t most_bytes, int timeout_ms,
                                source_message **messages, size_t *count, char problem[BROKER_PROBLEM_BYTES])
{
	*count = 0;
	if (most == 0) {
		serve_group(source);
	} else {
		collect(source, most, most_bytes, timeout_ms);
	}
	kafka_commit(source);
	if (source->lost) {
		source->lost = false;
		snprintf(problem, BROKER_PROBLEM_BYTES, "the group has given partitions to another member");
		return SOURCE_LOST;
	}
	*count = delivery_hand_over(&source->held, &source->out, most, most_bytes, messages);
	return *count == 0 && most > 0 && troubled(source, problem) ? SOURCE_UNAVAILABLE : SOURCE_OK;
}

static source_state kafka_acknowledge(source *source, source_message *const *messages, size_t count,
                                      char problem[BROKER_PROBLEM_BYTES])
{
	(void)problem;
	for (size_t i = 0; i < count; i++) {
		delivery_remove(&source->out, delivery_of(messages[i]));
	}
	for (size_t i = count; i > 0; i--) {
		const delivery *each = delivery_of(messages[i - 1]);
		const char *topic = each->message.topic;
		/*
		 * The last of each partition is enough: earlier ones find its row, and unacknowledged
		 * messages below it limit the offset for all.
		 */
		if (!each->is_void &&
		    rd_kafka_topic_partition_list_find(source->acknowledged, topic, each->partition) == NULL) {
			int64_t offset = kafka_lowest(&source->out, topic, each->partition, each->sequence + 1);
			offset = kafka_lowest(&source->held, topic, each->partition, offset);
			progress *progress = progress_of(&source->progress, topic, each->partition);
			if (offset == each->sequence + 1 && each->created_ms > 0) {
				progress->acknowledged = each->created_ms;
			}
			kafka_want(source->acknowledged, topic, each->partition, offset);
			kafka_want(source->wanted, topic, each->partition, offset);
		}
	}
	for (size_t i = 0; i < count; i++) {
		release(delivery_of(messages[i]));
	}
	rd_kafka_topic_partition_list_destroy(source->acknowledged);
	source->acknowledged = rd_kafka_topic_partition_list_new(16);
	kafka_commit(source);
	return SOURCE_OK;
}

/*
 * For partitions that have been ours for a while without a message, asks once for the group's
 * offset.
 */
static void ask_committed(source *source)
{
	rd_kafka_topic_partition_list_t *unknown = rd_kafka_topic_partition_list_new(16);
	int64_t now_ms = runtime_now_ms();

	for (progress *each = source->progress; each != NULL; each = each->next) {
		if (each->committed < 0 && now_ms - each->since_ms >= SETTLE_MS) {
			rd_kafka_topic_partition_list_add(unknown, each->topic, each->partition);
		}
	}
	if (unknown->cnt > 0 && rd_kafka_committed(source->client, unknown, CHECK_MS) == RD_KAFKA_RESP_ERR_NO_ERROR) {
		progress_committed(source->progress, unknown);
	}
	rd_kafka_topic_partition_list_destroy(unknown);
}

/* True: the group's offset is at the partition's known end. An empty partition needs no offset. */
static bool is_at_end(source *source, const progress *progress)
{
	int64_t low, high;

	if (runtime_now_ms() - progress->since_ms < SETTLE_MS ||
	    rd_kafka_get_watermark_offsets(source->client, progress->topic, progress->partition, &low, &high) !=
	        RD_KAFKA_RESP_ERR_NO_ERROR ||
	    high < 0) {
		return false;
	}
	return progress->committed >= high || low == high;
}

/*
 * Only the group's offset counts: messages whose commit has not arrived come again. Times are the
 * broker's or the producers', as the topic is configured.
 */
static size_t kafka_positions(source *source, source_position *positions, size_t most)
{
	size_t count = 0;

	kafka_take_answer(source, ANSWER_MS);
	ask_committed(source);
	for (const progress *each = source->progress; each != NULL && count < most; each = each->next) {
		int64_t at_ms = is_at_end(source, each) ? SOURCE_AT_END : each->committed_ms;
		if (at_ms != 0) {
			positions[count++] = (source_position){.part = each->part, .at_ms = at_ms};
		}
	}
	return count;
}

static uint64_t kafka_unread(source *source)
{
	uint64_t unread = source->unread;

	source->unread = 0;
	return unread;
}

static bool kafka_stalled(source *source, char problem[BROKER_PROBLEM_BYTES])
{
	for (const progress *each = source->progress; each != NULL; each = each->next) {
		if (each->state == PROGRESS_REFUSED) {
			kafka_say_refused(source, each, problem);
			return true;
		}
		if (each->state == PROGRESS_PLACELESS && runtime_now_ms() - each->placeless_ms >= source->settings.stalled_ms) {
			snprintf(problem, BROKER_PROBLEM_BYTES, "%.120s is not read: the broker does not say where it begins",
			         each->part);
			return true;
		}
	}
	return watchdog_stalled(&source->watchdog, source->progress, problem, BROKER_PROBLEM_BYTES);
}

static void kafka_give_back(source *source, source_message *const *messages, size_t count)
{
	delivery_give_back(&source->out, &source->held, messages, count, release);
}

static bool kafka_publish(source *source, const char *topic, const source_message *message, const source_header *more,
                          size_t more_count, int timeout_ms, char problem[BROKER_PROBLEM_BYTES])
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;

	if (!kafka_producer_send(&source->producer, topic, message, more, more_count, problem)) {
		return false;
	}
	while (!kafka_producer_poll(&source->producer) && runtime_now_ms() < until_ms) {
		serve_group(source);
	}
	return kafka_producer_end(&source->producer, problem);
}

/* ---- Opening and closing ---- */

static void kafka_close(source *source)
{
	if (source->client != NULL) {
		/* It revokes the partitions, which commits acknowledged messages. */
		rd_kafka_consumer_close(source->client);
	}
	delivery_release_all(&source->out, release);
	delivery_release_all(&source->held, release);
	progress_free(&source->progress);
	if (source->client != NULL) {
		rd_kafka_topic_partition_list_destroy(source->wanted);
		rd_kafka_topic_partition_list_destroy(source->acknowledged);
		rd_kafka_queue_destroy(source->messages);
		rd_kafka_queue_destroy(source->answers);
		rd_kafka_destroy(source->client);
	}
	kafka_producer_close(&source->producer);
	free(source);
}

/* The section's last value, as librdkafka takes it; NULL: not set. */
static const char *said(const config_section *section, const char *property)
{
	const char *value = NULL;

	for (size_t i = 0; i < section->entry_count; i++) {
		const char *name = section->entries[i].name;
		if (strncmp(name, "kafka.", 6) == 0 && strcmp(name + 6, property) == 0) {
			value = section->entries[i].value;
		}
	}
	return value;
}

static bool set_default(const source *source, rd_kafka_conf_t *conf, const char *name, const char *value,
                        char **problem)
{
	char error[512];

	if (said(source->section, name) != NULL ||
	    rd_kafka_conf_set(conf, name, value, error, sizeof error) == RD_KAFKA_CONF_OK) {
		return true;
	}
	*problem = config_problem(source->config, source->section, NULL, "librdkafka refuses it: %s", error);
	return false;
}

static bool set_defaults(const source *source, rd_kafka_conf_t *conf, char **problem)
{
	bool good = true;

	for (size_t i = 0; good && defaults[i][0] != NULL; i++) {
		good = set_default(source, conf, defaults[i][0], defaults[i][1], problem);
	}
	for (size_t i = 0; good && i < sizeof shares / sizeof shares[0]; i++) {
		int64_t share = source->bounds.bytes / shares[i].part / shares[i].unit;
		char value[24];
		share = share < shares[i].minimum ? shares[i].minimum : share > SHARE_MOST ? SHARE_MOST : share;
		snprintf(value, sizeof value, "%" PRId64, share);
		good = (shares[i].other_name != NULL && said(source->section, shares[i].other_name) != NULL) ||
		       set_default(source, conf, shares[i].name, value, problem);
	}
	if (said(source->section, "fetch.queue.backoff.ms") == NULL) {
		(void)rd_kafka_conf_set(conf, "fetch.queue.backoff.ms", QUEUE_LOOK_MS, NULL, 0);
	}
	return good;
}

/* The topics of the option; NULL: it names none. */
static rd_kafka_topic_partition_list_t *split_topics(const char *text)
{
	static const char between[] = ", \t";
	rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(4);
	char name[256];

	for (text += strspn(text, between); *text != '\0'; text += strspn(text, between)) {
		size_t length = strcspn(text, between);
		snprintf(name, sizeof name, "%.*s", (int)length, text);
		rd_kafka_topic_partition_list_add(topics, name, RD_KAFKA_PARTITION_UA);
		text += length;
	}
	if (topics->cnt == 0) {
		rd_kafka_topic_partition_list_destroy(topics);
		return NULL;
	}
	return topics;
}

/* Reads the list as the client does: an entry with a leading ^ is an extended regular
 * expression. */
static bool names_topic(const char *text, const char *topic)
{
	rd_kafka_topic_partition_list_t *topics = split_topics(text);
	bool found = false;

	for (int i = 0; topics != NULL && i < topics->cnt && !found; i++) {
		const char *name = topics->elems[i].topic;
		regex_t pattern;
		if (name[0] != '^') {
			found = strcmp(name, topic) == 0;
		} else if (regcomp(&pattern, name, REG_EXTENDED | REG_NOSUB) == 0) {
			found = regexec(&pattern, topic, 0, NULL, 0) == 0;
			regfree(&pattern);
		}
	}
	if (topics != NULL) {
		rd_kafka_topic_partition_list_destroy(topics);
	}
	return found;
}

static bool read_settings(const config *config, const config_section *section, settings *settings, char **problem)
{
	if (!config_apply(config, section, options, settings, problem)) {
		return false;
	}
	rd_kafka_topic_partition_list_t *topics = split_topics(settings->topics);
	if (topics == NULL) {
		*problem = config_problem(config, section, NULL, "topics: names no topic");
		return false;
	}
	rd_kafka_topic_partition_list_destroy(topics);
	const char *dead_topic = dead_loop_topic(section);
	const config_entry *left_out = config_entry_of(section, "kafka.topic.blacklist");
	if (dead_topic != NULL && names_topic(settings->topics, dead_topic) &&
	    (left_out == NULL || !names_topic(left_out->value, dead_topic))) {
		*problem = dead_loop_problem(config, section, "topics");
		return false;
	}
	return true;
}

static bool check_section(const config *config, const config_section *section, char **problem)
{
	settings settings;

	return read_settings(config, section, &settings, problem) &&
	       kafka_check(config, section, &settings.kafka, fixed, RD_KAFKA_CONSUMER, problem);
}

static bool start_client(source *source, char **problem)
{
	const config *config = source->config;
	const config_section *section = source->section;
	const char *group = source->settings.group == NULL ? section->name : source->settings.group;
	rd_kafka_conf_t *conf;
	char error[512];

	if (!kafka_configure(config, section, &source->settings.kafka, fixed, &source->watch, &conf, problem)) {
		return false;
	}
	if (!set_defaults(source, conf, problem)) {
		rd_kafka_conf_destroy(conf);
		return false;
	}
	rd_kafka_conf_set_rebalance_cb(conf, rebalance);
	/* The client asks us instead: see kafka_lose_place. */
	(void)rd_kafka_conf_set(conf, "auto.offset.reset", "error", NULL, 0);
	source->rules.reset = starts_reset(said(section, "auto.offset.reset"));
	if (rd_kafka_conf_set(conf, "group.id", group, error, sizeof error) == RD_KAFKA_CONF_OK) {
		source->client = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof error);
	}
	if (source->client == NULL) {
		*problem = config_problem(config, section, NULL, "librdkafka refuses it: %s", error);
		rd_kafka_conf_destroy(conf);
		return false;
	}
	rd_kafka_poll_set_consumer(source->client);
	return true;
}

static bool subscribe(source *source, char **problem)
{
	rd_kafka_topic_partition_list_t *topics = split_topics(source->settings.topics);
	rd_kafka_resp_err_t error = rd_kafka_subscribe(source->client, topics);

	rd_kafka_topic_partition_list_destroy(topics);
	if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
		*problem = config_problem(source->config, source->section, NULL, "topics: librdkafka refuses it: %s",
		                          rd_kafka_err2str(error));
	}
	return error == RD_KAFKA_RESP_ERR_NO_ERROR;
}

static bool kafka_open(const speaker *speaker, const config *config, const config_section *section,
                       source_bounds bounds, bool ordered, source **result, char **problem)
{
	source *made = memory_take(sizeof *made);

	(void)ordered; /* a partition's messages come to one member, in order */
	*made = (source){.speaker = speaker, .config = config, .section = section, .bounds = bounds};
	made->watch = (kafka_watch){.speaker = speaker, .user = made};
	if (!read_settings(config, section, &made->settings, problem) || !start_client(made, problem)) {
		kafka_close(made);
		return false;
	}
	made->producer =
	    (kafka_producer){.speaker = speaker, .config = config, .section = section, .options = &made->settings.kafka};
	made->wanted = rd_kafka_topic_partition_list_new(16);
	made->acknowledged = rd_kafka_topic_partition_list_new(16);
	made->messages = rd_kafka_queue_new(made->client);
	made->answers = rd_kafka_queue_new(made->client);
	made->watchdog.after_ms = made->settings.stalled_ms;
	if (!subscribe(made, problem)) {
		kafka_close(made);
		return false;
	}
	*result = made;
	return true;
}

static void kafka_remember(source *source, int64_t remembered_ms)
{
	source->rules.remembered_ms = source->settings.forgotten == FORGOTTEN_APPLY ? 0 : remembered_ms;
}

const source_class source_kafka = {
    .name = "kafka",
    .options = options,
    .has_coordinates = true,
    .shares_order = true,
    .open = kafka_open,
    .check = check_section,
    .remember = kafka_remember,
    .fetch = kafka_fetch,
    .acknowledge = kafka_acknowledge,
    .give_back = kafka_give_back,
    .positions = kafka_positions,
    .stalled = kafka_stalled,
    .unread = kafka_unread,
    .publish = kafka_publish,
    .close = kafka_close,
};
