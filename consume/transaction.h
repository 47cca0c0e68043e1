/* SPDX-License-Identifier: PostgreSQL */
/*
 * transaction.h: the statements of an open transaction that applies messages: the inbox's verdicts,
 * then the call of the handler. Called by apply.c and retry.c.
 */
#pragma once

#include "consumer.h"

/*
 * The inbox's verdicts on messages, one row each (clear the result). NULL: *failure. ordered: a
 * message waits behind a parked message of its key.
 */
PGresult *transaction_receive(consumer *consumer, message *const *messages, size_t count, bool ordered,
                              failure *failure);
/*
 * The same for one parked message. *process: it must be applied; false: it was applied before. A
 * refusal by the inbox is an error.
 */
bool transaction_receive_parked(consumer *consumer, const message *message, bool *process, failure *failure);
/* Calls the handler for messages, in order. */
bool transaction_handle(consumer *consumer, message *const *messages, size_t count, failure *failure);
