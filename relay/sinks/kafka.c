/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka.c: the sink of Kafka, with librdkafka's idempotent producer and acks=all. librdkafka
 * repeats a message until `timeout`, and the broker recognises the copies by their numbers; no
 * other code sends a message whose result is unknown. After `timeout` librdkafka sends it no more,
 * and its result is "unavailable". The broker may still have it, or read it later from a stuck
 * connection: then the pipeline's next try makes a second copy (at least once), which consumers
 * recognise by Pgonce-Event-Id.
 *
 * Versions before 2.3.0 end the producer for good ("rewound sequence number", "sequence
 * desynchronization": issue 3584) if a request that had timed out is repeated and refused, for
 * example by a broker that was stuck and is no longer the leader. Another producer replaces it, and
 * then too the next try can make a second copy.
 *
 * It does not keep the order: if one message of a partition fails alone (too large, timed out),
 * librdkafka continues with later ones, under a new epoch. Its gapless mode would end the producer
 * instead, but it is experimental, and ignores messages that never got into the queue. So the
 * pipeline hands over one message of an aggregate at a time; other aggregates fill the batches.
 *
 * Kafka accepts or refuses whole batches. One bad event, or a batch that is too large although its
 * events are not, would fail all its events. So the events of a refused batch are withheld, and
 * their topic is narrow for a while: its events are sent by a second producer with batches of one
 * message, and get their results there. The order is kept: no other event of their aggregates is
 * out.
 *
 * A message that times out while Kafka accepts later ones is at fault only if Kafka had it and it
 * was the first of its partition (kafka_partitions.h). The others waited behind it, behind a slow
 * broker, or for a partition's leader: they are withheld too.
 *
 * If Kafka accepts nothing meanwhile, it may be away, or hang on this message and let no other
 * pass, for example because each request with it ends the connection. The message is suspect: from
 * now on it is sent only while librdkafka has no other. It is at fault if Kafka hangs on it again,
 * has accepted others in between, and its partition's leader answers then. Kafka that is away, or
 * accepts nothing, blames none.
 *
 * fence = broker: each turn of the relay is a transactional producer with the same id, and Kafka
 * refuses the earlier ones. Events sent together are a transaction, and get their results when it
 * has ended. A turn begins with its first event: a relay that stands by must not fence others. The
 * id has only one producer, so while a topic is narrow, all its batches have one message.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "envelope.h"
#include "kafka_sink.h"

#define HEADERS_EXTRA 1
#define UNKNOWN_TOPIC_MS 5000
#define BACKOFF_FIRST_MS 500
#define BACKOFF_MOST_MS 10000
#define TRANSACTION_LEAST_MS 10000 /* Kafka itself aborts an older one */
#define AGAIN_MOST_MS 600000
#define ASK_MS 1000
#define ID_BYTES 512

enum {
	TIME_SENT,
	TIME_EMITTED
};

enum {
	NULL_JSON,
	NULL_TOMBSTONE
};

typedef kafka_sink_settings settings;

static const config_option options[] = {
    KAFKA_OPTION_ROWS,
    {.name = "fence",
     .kind = CONFIG_CHOICE,
     .offset = offsetof(settings, fence),
     .choices = "none|broker",
     .standard = "none",
     .help = "broker: Kafka refuses events from a relay after another has taken over, by transactions with the id "
             "pgonce.NAME "
             "(kafka.transactional.id); slower, see docs/how/kafka.md"},
    {.name = "time",
     .kind = CONFIG_CHOICE,
     .offset = offsetof(settings, time),
     .choices = "sent|emitted",
     .standard = "sent",
     .help = "the record's time, which Kafka's retention uses; emitted: when the event was emitted: a topic whose "
             "retention is shorter than an outage of the relay then deletes events as soon as it gets them"},
    {.name = "key",
     .kind = CONFIG_TEXT,
     .offset = offsetof(settings, key),
     .standard = "aggregate",
     .help =
         "the record's key, which chooses the partition: aggregate (its id), tenant, event (its id), header:NAME (of "
         "the event), none. With any other than aggregate and tenant, the events of one aggregate go to several "
         "partitions, and Kafka does not keep their order"},
    {.name = "null_payload",
     .kind = CONFIG_CHOICE,
     .offset = offsetof(settings, null_payload),
     .choices = "json|tombstone",
     .standard = "json",
     .help = "the record of an event whose payload is JSON null: with the text null, or without a value, which makes a "
             "compacted topic delete the key"},
    {.name = "partition_header",
     .kind = CONFIG_TEXT,
     .offset = offsetof(settings, partition_header),
     .help = "the event's own header (headers of once.emit) that holds the number of the partition; without it the key "
             "chooses. Events of one aggregate with different numbers lose their order"},
    {.name = NULL}};
static const config_option shared_options[] = {{.name = "timeout",
                                                .kind = CONFIG_DURATION,
                                                .offset = offsetof(settings, timeout_ms),
                                                .minimum = 1,
                                                .maximum = INT32_MAX, /* librdkafka's name */
                                                .standard = "30s"},
                                               {.name = NULL}};

/* ---- its properties */

#define EVENT_COULD_BE_LOST "an event could be lost, or stored twice or out of order"

/* watch NULL: checks only whether it could be created. */
static bool configure(const config *config, const config_section *section, const settings *settings, kafka_watch *watch,
                      rd_kafka_conf_t **result, char **problem)
{
	bool fences = settings->fence == FENCE_BROKER;
	char timeout[24], unknown_topic[24], transaction[24], id[ID_BYTES];
	int64_t message_ms = kafka_message_ms(settings);
	const kafka_fixed fixed[] = {
	    {"enable.idempotence", "true", EVENT_COULD_BE_LOST},
	    {"acks", "all", EVENT_COULD_BE_LOST},
	    {"request.required.acks", NULL, EVENT_COULD_BE_LOST ": acks is all"},
	    {"enable.gapless.guarantee", NULL, "the relay keeps the order itself"},
	    {"transactional.id", fences ? id : NULL,
	     fences ? NULL : "the relay uses transactions only with fence = broker"},
	    {"transaction.timeout.ms", fences ? transaction : NULL, NULL},
	    {"delivery.report.only.error", NULL, "a delivery would not be known"},
	    {"message.timeout.ms", timeout, "the option timeout says it"},
	    {"delivery.timeout.ms", NULL, "the option timeout says it"},
	    {"topic.metadata.propagation.max.ms", unknown_topic, NULL},
	    /*
	     * As Java's clients and most others do: an aggregate is in one partition for all writers.
	     */
	    {"partitioner", "murmur2_random", NULL},
	    {"linger.ms", "0", NULL},
	    {"reconnect.backoff.max.ms", "2000", NULL},
	    {NULL, NULL, NULL},
	};

	snprintf(timeout, sizeof timeout, "%lld", (long long)message_ms);
	snprintf(unknown_topic, sizeof unknown_topic, "%lld",
	         (long long)(message_ms / 2 < UNKNOWN_TOPIC_MS ? message_ms / 2 : UNKNOWN_TOPIC_MS));
	snprintf(transaction, sizeof transaction, "%lld",
	         (long long)(message_ms > TRANSACTION_LEAST_MS ? message_ms : TRANSACTION_LEAST_MS));
	snprintf(id, sizeof id, "pgonce.%s", section->name);
	return watch == NULL ? kafka_check(config, section, &settings->kafka, fixed, RD_KAFKA_PRODUCER, problem)
	                     : kafka_configure(config, section, &settings->kafka, fixed, watch, result, problem);
}

static bool read_settings(const config *config, const config_section *section, settings *settings, char **problem)
{
	return config_apply(config, section, options, settings, problem) &&
	       config_apply(config, section, shared_options, settings, problem);
}

static bool check_keys(const config *config, const config_section *section, const settings *settings, char **problem)
{
	envelope_key key;
	const char *header = NULL;

	if (!envelope_read_key(settings->key, &key, &header)) {
		*problem = config_problem(config, section, config_entry_of(section, "key"),
		                          "key: '%s' must be aggregate, tenant, event, header:NAME or none", settings->key);
		return false;
	}
	if (settings->partition_header != NULL && settings->partition_header[0] == '\0') {
		*problem = config_problem(config, section, config_entry_of(section, "partition_header"), "must name a header");
		return false;
	}
	return true;
}

/* A setting that loses the order of an aggregate. */
static char *note(const config *config, const config_section *section)
{
	settings settings;
	envelope_key key = ENVELOPE_KEY_AGGREGATE;
	const char *header = NULL;
	char *problem = NULL;

	if (!read_settings(config, section, &settings, &problem) || !envelope_read_key(settings.key, &key, &header)) {
		free(problem);
		return NULL;
	}
	if (settings.partition_header != NULL) {
		return config_problem(config, section, config_entry_of(section, "partition_header"),
		                      "events of one aggregate whose header has different numbers lose their order");
	}
	if (key == ENVELOPE_KEY_AGGREGATE || key == ENVELOPE_KEY_TENANT) {
		return NULL;
	}
	return config_problem(config, section, config_entry_of(section, "key"),
	                      "events of one aggregate may go to several partitions, and lose their order");
}

static bool check(const config *config, const config_section *section, char **problem)
{
	settings settings;

	return read_settings(config, section, &settings, problem) && check_keys(config, section, &settings, problem) &&
	       configure(config, section, &settings, NULL, NULL, problem);
}

/* At most once a minute for a partition. */
static void tell_late(sink *sink, kafka_partition *partition)
{
	if (kafka_partition_tells(partition)) {
		runtime_log(sink->watch.speaker, RUNTIME_WARNING, "sink-late",
		            "sink=kafka topic=%s partition=%d timeout_ms=%lld; Kafka takes others, so its events are sent "
		            "again, and no attempt is counted",
		            partition->topic, (int)partition->number, (long long)sink->settings.timeout_ms);
	}
}

static rd_kafka_t *make(sink *sink, bool single, char **problem);

/* Through a new connection: Kafka may hang on the producer's. Waits for at most ASK_MS. */
static bool leader_answers(sink *sink, const kafka_partition *partition)
{
	int64_t low = 0, high = 0;
	char *problem = NULL;
	rd_kafka_t *asks = make(sink, false, &problem);

	if (asks == NULL) {
		free(problem);
		return false;
	}
	rd_kafka_resp_err_t error =
	    rd_kafka_query_watermark_offsets(asks, partition->topic, partition->number, &low, &high, ASK_MS);
	rd_kafka_destroy(asks);
	return error == RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* Called by librdkafka within rd_kafka_poll, once for each message that it accepted. */
static void on_delivery(rd_kafka_t *producer, const rd_kafka_message_t *report, void *opaque)
{
	sink *sink = ((kafka_watch *)opaque)->user;
	place *place = report->_private;
	kafka_partition *partition =
	    kafka_partition_of(sink->partitions, rd_kafka_topic_name(report->rkt), report->partition);
	bool hung = kafka_partition_hung(partition, place->sent_ms, kafka_message_ms(&sink->settings));

	bool had_it = rd_kafka_message_status(report) != RD_KAFKA_MSG_STATUS_NOT_PERSISTED;
	bool is_at_fault = false;

	sink->in_flight--;
	sink->singles_in_flight -= producer == sink->singles;
	place->is_out = false;
	sink->accepted += report->err == RD_KAFKA_RESP_ERR_NO_ERROR;
	/* With a fence, the first that times out ends the transaction, and the others with it. */
	bool is_timeout = report->err == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT;
	if ((is_timeout || report->err == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT) && had_it && hung &&
	    !kafka_is_late(sink, place, report->err)) {
		is_at_fault = kafka_suspect(sink, place) && is_timeout && leader_answers(sink, partition);
	}
	if (sink->settings.fence == FENCE_BROKER) {
		kafka_transacted(sink, place, report->err, is_at_fault, partition);
		kafka_partition_heard(partition, report->err == RD_KAFKA_RESP_ERR_NO_ERROR);
		return;
	}
	kafka_partition_heard(partition, report->err == RD_KAFKA_RESP_ERR_NO_ERROR);
	if (report->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
		if (place->order > sink->delivered_order[place->is_single]) {
			sink->delivered_order[place->is_single] = place->order;
		}
		kafka_watch_clear(&sink->watch);
		sink->fatal_count = 0;
		kafka_finish(sink, place, report->err, SINK_DELIVERED);
		return;
	}
	if (report->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE || report->err == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT) {
		/* By librdkafka itself or by producer_free: both only when the producer has ended. */
		(void)rd_kafka_fatal_error(producer, place->problem, sizeof place->problem);
	}
	if (kafka_is_of_batch(report->err) && !place->is_single) {
		kafka_note_narrow(sink, place->message->destination, report->err);
		kafka_finish(sink, place, report->err, SINK_WITHHELD);
		return;
	}
	if (kafka_is_late(sink, place, report->err) && !(had_it && hung)) {
		tell_late(sink, partition);
		/* While it accepts nothing, its messages leave room for others. */
		int64_t quiet_ms = kafka_partition_quiet_ms(partition);
		place->again_ms = quiet_ms < AGAIN_MOST_MS ? quiet_ms : AGAIN_MOST_MS;
		kafka_finish(sink, place, report->err, SINK_WITHHELD);
		return;
	}
	bool alone = is_at_fault || kafka_is_late(sink, place, report->err);
	kafka_finish(sink, place, report->err, alone || kafka_is_refusal(report->err) ? SINK_REFUSED : SINK_UNAVAILABLE);
}

/* ---- the producer */

static rd_kafka_t *make(sink *sink, bool single, char **problem)
{
	rd_kafka_conf_t *conf;
	char error[512];

	if (!configure(sink->config, sink->section, &sink->settings, &sink->watch, &conf, problem)) {
		return NULL;
	}
	rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
	if (single) {
		(void)rd_kafka_conf_set(conf, "batch.num.messages", "1", error, sizeof error);
	}
	rd_kafka_t *producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
	if (producer == NULL) {
		rd_kafka_conf_destroy(conf);
		*problem = config_problem(sink->config, sink->section, NULL, "librdkafka: %s", error);
	}
	return producer;
}

static bool producer_new(sink *sink, char **problem)
{
	sink->is_single = sink->settings.fence == FENCE_BROKER && runtime_now_ms() < sink->narrow_ms;
	sink->producer = make(sink, sink->is_single, problem);
	return sink->producer != NULL;
}

static void purge(rd_kafka_t *producer)
{
	if (producer != NULL) {
		rd_kafka_purge(producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
	}
}

/* Waits for reports of either producer. */
static void hear(sink *sink, int timeout_ms)
{
	int64_t until_ms = runtime_now_ms() + timeout_ms;
	bool both = sink->singles_in_flight > 0 && sink->singles_in_flight < sink->in_flight;
	bool single = sink->singles_in_flight > 0 && !both;
	int served = 0;

	do {
		int64_t left_ms = until_ms - runtime_now_ms();
		int wait_ms = left_ms < 0 ? 0 : both && left_ms > 1 ? 1 : (int)left_ms;
		served = sink->producer == NULL ? 0 : rd_kafka_poll(sink->producer, single ? 0 : wait_ms);
		served += sink->singles == NULL ? 0 : rd_kafka_poll(sink->singles, single ? wait_ms : 0);
	} while (both && served == 0 && runtime_now_ms() < until_ms);
}

/* All messages that they still have get results; later answers are ignored. */
static void producer_free(sink *sink)
{
	if (sink->producer == NULL) {
		return;
	}
	purge(sink->producer);
	purge(sink->singles);
	for (int64_t until_ms = runtime_now_ms() + 1000; sink->in_flight > 0 && runtime_now_ms() < until_ms;) {
		hear(sink, 10);
	}
	rd_kafka_destroy(sink->producer);
	if (sink->singles != NULL) {
		rd_kafka_destroy(sink->singles);
	}
	sink->producer = sink->singles = NULL;
	for (size_t i = 0; sink->in_flight > 0 && i < KAFKA_IN_FLIGHT_MAX; i++) {
		if (sink->places[i].is_out) {
			sink->places[i].is_out = false;
			sink->in_flight--;
			kafka_finish(sink, &sink->places[i], RD_KAFKA_RESP_ERR__PURGE_INFLIGHT, SINK_UNAVAILABLE);
		}
	}
	sink->singles_in_flight = 0;
	kafka_turn_ended(sink);
}

/*
 * An idempotent producer ends for good if it cannot keep its promise (the broker forgot its
 * numbers), or may not write at all. After a pause, another one replaces it.
 */
static void replace_where_fatal(sink *sink)
{
	char quoted[RUNTIME_QUOTE_BYTES];
	char *problem = NULL;
	rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_NO_ERROR;

	if (sink->producer != NULL) {
		error = rd_kafka_fatal_error(sink->producer, sink->fatal, sizeof sink->fatal);
	}
	if (sink->singles != NULL && error == RD_KAFKA_RESP_ERR_NO_ERROR) {
		error = rd_kafka_fatal_error(sink->singles, sink->fatal, sizeof sink->fatal);
	}
	if (kafka_is_fence(error)) {
		sink->is_fenced = true;
		producer_free(sink);
	} else if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
		sink->again_ms = runtime_now_ms() + runtime_backoff_ms(++sink->fatal_count, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
		runtime_log(sink->watch.speaker, RUNTIME_WARNING, "sink-unavailable", "sink=kafka action=new-producer error=%s",
		            runtime_quote(sink->fatal, quoted));
		producer_free(sink);
	}
	if (sink->producer == NULL && !sink->is_fenced && runtime_now_ms() >= sink->again_ms &&
	    !producer_new(sink, &problem)) {
		snprintf(sink->fatal, sizeof sink->fatal, "%s", problem == NULL ? "memory is out" : problem);
		sink->again_ms = runtime_now_ms() + BACKOFF_MOST_MS;
		free(problem);
	}
}

/* With a fence: the next transaction has batches, or single messages if a topic is narrow now. */
static void replace_where_narrow(sink *sink)
{
	bool single = runtime_now_ms() < sink->narrow_ms;

	if (sink->settings.fence == FENCE_BROKER && sink->producer != NULL && !sink->is_open && single != sink->is_single) {
		producer_free(sink);
		replace_where_fatal(sink);
	}
}

/* The producer for a message; NULL: it has ended, see `fatal`. */
static rd_kafka_t *producer_for(sink *sink, const sink_message *message, bool *single)
{
	char *problem = NULL;

	*single = sink->is_single;
	if (sink->settings.fence == FENCE_BROKER || sink->producer == NULL ||
	    !kafka_is_narrow(sink, message->destination)) {
		return sink->producer;
	}
	*single = true;
	if (sink->singles == NULL) {
		sink->singles = make(sink, true, &problem);
		if (sink->singles == NULL) {
			snprintf(sink->fatal, sizeof sink->fatal, "%s", problem == NULL ? "memory is out" : problem);
			free(problem);
		}
	}
	return sink->singles;
}

/* ---- the interface */

static void sink_close(sink *sink)
{
	if (sink == NULL) {
		return;
	}
	producer_free(sink);
	kafka_partitions_free(sink->partitions);
	free(sink->places);
	free(sink);
}

static bool sink_open(const speaker *speaker, const config *config, const config_section *section, sink **result,
                      char **problem)
{
	sink *sink = calloc(1, sizeof *sink);

	*problem = NULL;
	if (sink != NULL) {
		sink->config = config;
		sink->section = section;
		sink->watch = (kafka_watch){.speaker = speaker, .user = sink};
		sink->finished_end = &sink->finished;
		sink->permit_ms = INT64_MAX;
		sink->partitions = kafka_partitions_new();
		sink->places = calloc(KAFKA_IN_FLIGHT_MAX, sizeof *sink->places);
	}
	if (sink != NULL && sink->places != NULL && read_settings(config, section, &sink->settings, problem) &&
	    producer_new(sink, problem)) {
		for (size_t i = 0; i < KAFKA_IN_FLIGHT_MAX; i++) {
			sink->places[i].next = sink->unused;
			sink->unused = &sink->places[i];
		}
		*result = sink;
		return true;
	}
	if (*problem == NULL) {
		*problem = config_problem(config, section, NULL, "memory is out");
	}
	sink_close(sink);
	return false;
}

/* A copy of a dead event is for people. */
static bool is_tombstone(const sink *sink, const sink_message *message)
{
	static const char null[] = "null";

	return sink->settings.null_payload == NULL_TOMBSTONE && !message->is_dead_copy && !message->is_bytes &&
	       message->body.length == strlen(null) && memcmp(message->body.data, null, strlen(null)) == 0;
}

static rd_kafka_headers_t *headers_of(const sink_message *message, bool has_value)
{
	rd_kafka_headers_t *headers = rd_kafka_headers_new(message->header_count + HEADERS_EXTRA);

	if (message->content_type != NULL && has_value) {
		rd_kafka_header_add(headers, "content-type", -1, message->content_type, -1);
	}
	for (size_t i = 0; i < message->header_count; i++) {
		rd_kafka_header_add(headers, message->headers[i].name, -1, message->headers[i].value, -1);
	}
	return headers;
}

/* From the event's header, or the partitioner. False: the header is not a number. */
static bool partition_of(const sink *sink, const sink_message *message, int32_t *partition)
{
	*partition = RD_KAFKA_PARTITION_UA;
	bool looks = sink->settings.partition_header != NULL && !message->is_dead_copy;
	for (size_t i = 0; looks && i < message->header_count; i++) {
		const char *value = message->headers[i].value;
		if (strcasecmp(message->headers[i].name, sink->settings.partition_header) == 0) {
			size_t digits = strspn(value, "0123456789");
			*partition = (int32_t)strtol(value, NULL, 10);
			return digits > 0 && digits < 10 && value[digits] == '\0';
		}
	}
	return true;
}

static rd_kafka_resp_err_t produce(const sink *sink, rd_kafka_t *producer, const sink_message *message, place *place)
{
	int32_t partition;
	if (!partition_of(sink, message, &partition)) {
		return RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION;
	}
	int64_t time_ms = sink->settings.time == TIME_EMITTED ? message->created_ms : 0; /* 0: now */
	bool has_value = !is_tombstone(sink, message);
	rd_kafka_headers_t *headers = headers_of(message, has_value);
	once_bytes value = has_value ? message->body : (once_bytes){0};
	size_t key_bytes = message->key == NULL ? 0 : strlen(message->key);
	rd_kafka_resp_err_t error =
	    rd_kafka_producev(producer, RD_KAFKA_V_TOPIC(message->destination), RD_KAFKA_V_PARTITION(partition),
	                      RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_KEY(message->key, key_bytes),
	                      RD_KAFKA_V_VALUE((void *)(uintptr_t)value.data, value.length), RD_KAFKA_V_TIMESTAMP(time_ms),
	                      RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_OPAQUE(place), RD_KAFKA_V_END);

	if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
		rd_kafka_headers_destroy(headers);
	}
	return error;
}

/* Kafka's rule; librdkafka would wait for such a topic to appear. */
static bool topic_fits(const char *topic)
{
	size_t length = strlen(topic);

	return length > 0 && length <= 249 && strcmp(topic, ".") != 0 && strcmp(topic, "..") != 0 &&
	       strspn(topic, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == length;
}

static bool sink_send(sink *sink, sink_message *message)
{
	place *place = sink->unused;
	bool is_full = false;

	replace_where_fatal(sink);
	replace_where_narrow(sink);
	bool is_apart = kafka_suspect_of(sink, message->event_id) != NULL;
	if (place == NULL || ((is_apart || sink->is_apart) && (sink->in_flight > 0 || sink->is_open))) {
		return false;
	}
	place->is_apart = sink->is_apart = is_apart;
	place->message = message;
	place->problem[0] = '\0';
	place->order = ++sink->sends;
	place->sent_ms = runtime_now_ms();
	place->again_ms = -1;
	rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION;
	rd_kafka_t *producer = producer_for(sink, message, &place->is_single);
	if (producer == NULL) {
		error = RD_KAFKA_RESP_ERR__FATAL;
	} else if (topic_fits(message->destination)) {
		error =
		    sink->settings.fence == FENCE_BROKER ? kafka_open_transaction(sink, &is_full) : RD_KAFKA_RESP_ERR_NO_ERROR;
		error = error == RD_KAFKA_RESP_ERR_NO_ERROR && !is_full ? produce(sink, producer, message, place) : error;
	}
	/* A failed transaction accepts no more, for any reason. */
	if (is_full || (error == RD_KAFKA_RESP_ERR__QUEUE_FULL && sink->in_flight > 0) ||
	    (error == RD_KAFKA_RESP_ERR__STATE && sink->is_open)) {
		return false;
	}
	sink->unused = place->next;
	if (error == RD_KAFKA_RESP_ERR_NO_ERROR) {
		sink->in_flight++;
		sink->singles_in_flight += producer == sink->singles;
		place->is_out = true;
		return true;
	}
	if (error == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
		snprintf(place->problem, sizeof place->problem,
		         "%zu bytes are more than kafka.queue.buffering.max.kbytes allows", message->body.length);
	} else if (error == RD_KAFKA_RESP_ERR__FATAL) {
		snprintf(place->problem, sizeof place->problem, "%s", sink->fatal);
	} else if (error == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION) {
		snprintf(place->problem, sizeof place->problem, "the header %.100s is not a partition of the topic",
		         sink->settings.partition_header);
	} else if (error == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE) {
		snprintf(place->problem, sizeof place->problem,
		         "%zu bytes and headers are more than kafka.message.max.bytes allows", message->body.length);
	}
	bool is_away = error == RD_KAFKA_RESP_ERR__FATAL || error == RD_KAFKA_RESP_ERR__STATE || kafka_is_fence(error);
	kafka_finish(sink, place, error, sink->is_fenced ? SINK_FENCED : is_away ? SINK_UNAVAILABLE : SINK_REFUSED);
	return true;
}

/* A producer whose turn has failed ends; after a pause, another one replaces it. */
static void serve_turn(sink *sink, int timeout_ms)
{
	if (!kafka_serve_turn(sink, timeout_ms)) {
		sink->again_ms = runtime_now_ms() + runtime_backoff_ms(++sink->fatal_count, BACKOFF_FIRST_MS, BACKOFF_MOST_MS);
		producer_free(sink);
	}
}

static size_t sink_poll(sink *sink, int timeout_ms, sink_result *results, size_t most)
{
	size_t count = 0;
	int wait_ms = sink->finished == NULL ? timeout_ms : 0;

	if (sink->producer != NULL && sink->settings.fence == FENCE_BROKER) {
		serve_turn(sink, wait_ms);
	} else if (sink->producer != NULL) {
		hear(sink, wait_ms);
	} else if (sink->finished == NULL) {
		runtime_sleep(timeout_ms);
	}
	replace_where_fatal(sink);
	while (count < most && sink->finished != NULL) {
		place *place = sink->finished;
		sink_result *result = &results[count++];
		result->message = place->message;
		result->verdict = place->verdict;
		result->retry_after_ms = place->again_ms;
		result->problem[0] = '\0';
		if (place->problem[0] != '\0') {
			memcpy(result->problem, place->problem, sizeof result->problem);
		} else if (place->verdict != SINK_DELIVERED) {
			kafka_problem(&sink->watch, place->error, result->problem);
		}
		sink->finished = place->next;
		if (sink->finished == NULL) {
			sink->finished_end = &sink->finished;
		}
		place->next = sink->unused;
		sink->unused = place;
	}
	return count;
}

/*
 * librdkafka cannot hold back messages that it has. But a producer that has ended sends nothing
 * more: the next one begins empty.
 */
static void sink_permit(sink *sink, int64_t until_ms)
{
	sink->permit_ms = until_ms;
	if (until_ms == 0) {
		producer_free(sink);
		sink->is_fenced = false;
	}
}

const sink_class sink_kafka = {
    .name = "kafka",
    .options = options,
    .in_flight = 4000,
    .open = sink_open,
    .check = check,
    .note = note,
    .send = sink_send,
    .poll = sink_poll,
    .permit = sink_permit,
    .close = sink_close,
};
