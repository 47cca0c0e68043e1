/* SPDX-License-Identifier: PostgreSQL */
/*
 * flight.h: what a sink holds whose broker is spoken to by a thread of its own (RabbitMQ, NATS,
 * SQS, SNS): the messages that wait to be sent and those that wait for their answer, in bounded
 * memory. One side, the pipeline's thread, puts messages in and gets results; the other, the
 * sink's own threads, takes copies and answers by ticket. A message that has no answer in time
 * gets its result here, whatever the other side is stuck in; an answer that comes later is no
 * longer heard.
 */
#pragma once

#include "sink.h"

typedef struct flight flight;

/* A copy of a message, the taker's own: free it with flight_item_free. */
typedef struct flight_item {
	sink_message message; /* user and own are NULL */
	uint64_t ticket;      /* never 0 */
} flight_item;

/*
 * capacity: messages that may be held; bytes_max: the bytes of their copies (one message is always
 * taken). timeout_ms: from put to the result. NULL: memory or descriptors are out.
 */
flight *flight_new(size_t capacity, size_t bytes_max, int64_t timeout_ms);
/* Only when the other side's threads have ended, or never again call here. */
void flight_free(flight *flight);

/* ---- the pipeline's side: send and poll of sink_class */
bool flight_put(flight *flight, sink_message *message);
size_t flight_poll(flight *flight, int timeout_ms, sink_result *results, size_t most);
void flight_permit(flight *flight, int64_t until_ms);

/* ---- the other side, any thread */
/*
 * The next message to send that still waits for its result, in the order of put; NULL: none, or
 * none may be sent now.
 */
flight_item *flight_take(flight *flight);
void flight_item_free(flight_item *item);
/* Does it still wait for its result? */
bool flight_waits(flight *flight, uint64_t ticket);
/*
 * Its answer is put off until the broker has been asked more: from now on time that runs out is no
 * attempt. Its destination (free it), to ask about; NULL: it does not wait, or memory is out.
 */
char *flight_hold(flight *flight, uint64_t ticket);
/* Answers those that have been held for `held_ms` or longer; how many are held yet. */
size_t flight_answer_held(flight *flight, int64_t held_ms, sink_verdict verdict, const char *problem);
void flight_answer(flight *flight, uint64_t ticket, sink_verdict verdict, const char *problem);
/*
 * The connection is gone: all that wait for an answer, and all that wait to be sent, are
 * UNAVAILABLE.
 */
void flight_lost(flight *flight, const char *problem);
/*
 * Becomes readable when there is something to take, or by flight_wake; flight_woken makes it
 * unreadable again: before the taking.
 */
int flight_descriptor(const flight *flight);
void flight_wake(flight *flight);
void flight_woken(flight *flight);
