/* SPDX-License-Identifier: PostgreSQL */
/*
 * flight.h: the messages of a sink that has its own threads (RabbitMQ, NATS, SQS, SNS): those that
 * wait to be sent and those that wait for an answer, in bounded memory. The pipeline's thread puts
 * messages in and gets results; the sink's threads take copies and answer by ticket. A message
 * without an answer in time gets its result here, even if the sink's thread hangs; a later answer
 * is ignored.
 */
#pragma once

#include "sink.h"

typedef struct flight flight;

/* A copy of a message: the caller frees it with flight_item_free. */
typedef struct flight_item {
	sink_message message; /* user and own are NULL */
	uint64_t ticket;      /* never 0 */
} flight_item;

/*
 * capacity: the most messages; bytes_max: the most bytes of their copies (one message is always
 * accepted). timeout_ms: from put to the result. NULL: out of memory or descriptors.
 */
flight *flight_new(size_t capacity, size_t bytes_max, int64_t timeout_ms);
/* Call it only when the sink's threads have ended, or never call here again. */
void flight_free(flight *flight);

/* ---- the pipeline's side: send and poll of sink_class */
bool flight_put(flight *flight, sink_message *message);
size_t flight_poll(flight *flight, int timeout_ms, sink_result *results, size_t most);
void flight_permit(flight *flight, int64_t until_ms);

/* ---- the sink's threads */
/*
 * The next message to send, in the order of put, that still waits for its result. NULL: none may be
 * sent now.
 */
flight_item *flight_take(flight *flight);
void flight_item_free(flight_item *item);
/* True: it still waits for its result. */
bool flight_waits(flight *flight, uint64_t ticket);
/*
 * Holds its answer until the broker has been asked about its destination: a timeout from now on is
 * not an attempt. Returns the destination (free it); NULL: it does not wait, or out of memory.
 */
char *flight_hold(flight *flight, uint64_t ticket);
/* Answers those that were held for `held_ms` or longer. Returns how many are still held. */
size_t flight_answer_held(flight *flight, int64_t held_ms, sink_verdict verdict, const char *problem);
void flight_answer(flight *flight, uint64_t ticket, sink_verdict verdict, const char *problem);
/*
 * The connection is lost: all messages that wait for an answer or wait to be sent are UNAVAILABLE.
 */
void flight_lost(flight *flight, const char *problem);
/*
 * Becomes readable when there is a message to take, or after flight_wake. Call flight_woken before
 * taking: it makes the descriptor unreadable again.
 */
int flight_descriptor(const flight *flight);
void flight_wake(flight *flight);
void flight_woken(flight *flight);
