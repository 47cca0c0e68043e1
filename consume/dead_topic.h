/* SPDX-License-Identifier: PostgreSQL */
/* dead_topic.h: sends copies of dead messages to the operator's dead_topic. */
#pragma once

#include "consumer.h"

/*
 * Sends copies of the messages that parked_store found dead since the last call. Outside a
 * transaction. A message is dead once its copy is sent; the others are tried again later. Takes a
 * few seconds at most in total, and does nothing while the broker is not accepting. False: the
 * database failed; the copies are then sent again.
 */
bool dead_topic_send(consumer *consumer, failure *failure);
