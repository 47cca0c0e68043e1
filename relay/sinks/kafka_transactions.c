/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_transactions.c: the turn of a relay at Kafka and its transactions, with fence = broker. The
 * first lines of kafka.c say what they are for.
 */
#include <stdio.h>

#include "kafka_sink.h"

#define STEP_MS 1000

void kafka_transacted(sink *sink, place *place, rd_kafka_resp_err_t error, bool is_at_fault,
                      const kafka_partition *partition)
{
	bool purged = error == RD_KAFKA_RESP_ERR__PURGE_QUEUE || error == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT;
	/*
	 * A partition that accepts nothing would fail every transaction: its messages must wait.
	 */
	bool alone = kafka_is_late(sink, place, error) &&
	             (partition->delivered_ms < place->sent_ms ||
	              kafka_partition_hung(partition, place->sent_ms, kafka_message_ms(&sink->settings)));

	sink->is_failed = sink->is_failed || error != RD_KAFKA_RESP_ERR_NO_ERROR;
	if (kafka_is_of_batch(error) && !place->is_single) {
		sink->is_guilty = true;
		kafka_note_narrow(sink, place->message->destination, error);
		kafka_finish(sink, place, error, SINK_WITHHELD);
		return;
	}
	if (alone || is_at_fault || kafka_is_refusal(error)) {
		sink->is_guilty = true;
		kafka_finish(sink, place, error, SINK_REFUSED);
		return;
	}
	if (error == RD_KAFKA_RESP_ERR_NO_ERROR && place->order > sink->delivered_order[place->is_single]) {
		sink->delivered_order[place->is_single] = place->order;
	}
	if (error == RD_KAFKA_RESP_ERR_NO_ERROR || purged || kafka_is_fence(error)) {
		place->error = error;
		place->next = sink->open;
		sink->open = place;
		return;
	}
	sink->is_guilty = true;
	kafka_finish(sink, place, error, SINK_UNAVAILABLE);
}

/* All its messages get its result. */
static void transaction_ended(sink *sink, sink_verdict verdict, const char *problem)
{
	while (sink->open != NULL) {
		place *place = sink->open;
		sink->open = place->next;
		snprintf(place->problem, sizeof place->problem, "%s", problem);
		kafka_finish(sink, place, place->error, verdict);
	}
	sink->is_open = sink->is_failed = sink->is_guilty = false;
	sink->ending = END_UNASKED;
	sink->cause = RD_KAFKA_RESP_ERR_NO_ERROR;
}

/*
 * Messages that were not at fault come again. If the broker refused the transaction and none of its
 * messages, for example because a permission is missing, the faulty one is unknown: the pipeline
 * then tries one alone, which is refused.
 */
static void aborted(sink *sink)
{
	char problem[BROKER_PROBLEM_BYTES] = "an event beside it failed";
	bool is_alone = sink->open != NULL && sink->open->next == NULL;

	if (sink->is_guilty || sink->cause == RD_KAFKA_RESP_ERR_NO_ERROR) {
		transaction_ended(sink, SINK_WITHHELD, problem);
		return;
	}
	kafka_problem(&sink->watch, sink->cause, problem);
	for (place *place = sink->open; place != NULL; place = place->next) {
		place->error = sink->cause;
	}
	transaction_ended(sink, is_alone && kafka_is_refusal(sink->cause) ? SINK_REFUSED : SINK_UNAVAILABLE, problem);
}

void kafka_turn_ended(sink *sink)
{
	if (sink->cause != RD_KAFKA_RESP_ERR_NO_ERROR && !sink->is_fenced) {
		aborted(sink); /* the broker may not even know of it */
	} else {
		transaction_ended(sink, sink->is_fenced ? SINK_FENCED : SINK_UNAVAILABLE, sink->fatal);
	}
	sink->has_turn = sink->is_wanted = false;
}

static void begin(sink *sink)
{
	sink->begun_ms = runtime_now_ms();
}

/* Not fatal (replace_where_fatal handles those), and must not be called again. */
static bool is_hopeless(const sink *sink, const rd_kafka_error_t *error)
{
	return !rd_kafka_error_is_fatal(error) &&
	       (!rd_kafka_error_is_retriable(error) || runtime_now_ms() - sink->begun_ms >= sink->settings.timeout_ms);
}

/*
 * When it succeeds, all earlier producers are fenced, and their transactions have ended. If it
 * takes longer, it is called again.
 */
static bool take_turn(sink *sink)
{
	rd_kafka_error_t *error = rd_kafka_init_transactions(sink->producer, STEP_MS);
	bool is_over = error != NULL && is_hopeless(sink, error);

	sink->has_turn = error == NULL;
	if (is_over) {
		kafka_problem(&sink->watch, rd_kafka_error_code(error), sink->fatal);
	}
	rd_kafka_error_destroy(error);
	return !is_over;
}

static bool end_transaction(sink *sink)
{
	bool is_over = false;

	if (sink->ending == END_UNASKED) {
		sink->ending = sink->is_guilty ? END_ABORT : END_COMMIT;
	}
	bool aborts = sink->ending == END_ABORT;
	rd_kafka_error_t *error = aborts ? rd_kafka_abort_transaction(sink->producer, STEP_MS)
	                                 : rd_kafka_commit_transaction(sink->producer, STEP_MS);

	if (error == NULL && aborts) {
		aborted(sink);
	} else if (error == NULL) {
		kafka_watch_clear(&sink->watch);
		sink->fatal_count = 0;
		transaction_ended(sink, SINK_DELIVERED, "");
	} else if (!aborts && rd_kafka_error_txn_requires_abort(error)) {
		sink->ending = END_ABORT;
		sink->cause = rd_kafka_error_code(error);
	} else if (is_hopeless(sink, error)) {
		is_over = true;
		kafka_problem(&sink->watch, rd_kafka_error_code(error), sink->fatal);
	}
	rd_kafka_error_destroy(error);
	return !is_over;
}

/*
 * Waits longer than it is asked to: librdkafka loses track if the end of a transaction is requested
 * again and again within milliseconds.
 */
bool kafka_serve_turn(sink *sink, int timeout_ms)
{
	bool may_begin = sink->is_wanted && !sink->has_turn && runtime_now_ms() < sink->permit_ms;

	if (sink->is_open) {
		return end_transaction(sink);
	}
	if (may_begin) {
		return take_turn(sink);
	}
	rd_kafka_poll(sink->producer, timeout_ms);
	return true;
}

rd_kafka_resp_err_t kafka_open_transaction(sink *sink, bool *is_full)
{
	rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;

	if (!sink->has_turn && !sink->is_wanted) {
		sink->is_wanted = true;
		begin(sink);
	}
	*is_full = sink->ending != END_UNASKED || sink->is_failed || !sink->has_turn;
	if (!*is_full && !sink->is_open) {
		rd_kafka_error_t *error = rd_kafka_begin_transaction(sink->producer);
		code = error == NULL ? code : rd_kafka_error_code(error);
		rd_kafka_error_destroy(error);
		sink->is_open = code == RD_KAFKA_RESP_ERR_NO_ERROR;
		begin(sink);
	}
	return code;
}
