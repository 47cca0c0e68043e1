/* SPDX-License-Identifier: PostgreSQL */
/* dead_topic.h: copies of dead messages for the operator's dead_topic. */
#pragma once

#include "consumer.h"

/*
 * Sends the copies of the messages that parked_store found dead since the last call, outside of a
 * transaction: who is sent is dead from now on, who is not is tried again later. Takes a few
 * seconds at most, all together, and nothing while the broker has not been taking any. False: the
 * database's trouble; what was sent is then sent again.
 */
bool dead_topic_send(consumer *consumer, failure *failure);
