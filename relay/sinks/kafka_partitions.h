/* SPDX-License-Identifier: PostgreSQL */
/*
 * kafka_partitions.h: when each partition of Kafka last had a result. A partition answers in order,
 * so this tells a hanging message from those that wait behind it. For kafka.c.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct kafka_partition {
	struct kafka_partition *next; /* in its bucket */
	uint64_t hash;
	int64_t made_ms;      /* when its first message had a result */
	int64_t result_ms;    /* of the last message with any result; 0: none yet */
	int64_t delivered_ms; /* of the last delivered message; 0: none yet */
	int64_t told_ms;      /* when it was last logged as late; 0: never */
	int32_t number;
	char topic[];
} kafka_partition;

typedef struct kafka_partitions kafka_partitions;

kafka_partitions *kafka_partitions_new(void);
void kafka_partitions_free(kafka_partitions *partitions);
/* Lives as long as they do. Beyond 10,000 several share one. */
kafka_partition *kafka_partition_of(kafka_partitions *partitions, const char *topic, int32_t number);

/* One of its messages has a result. */
void kafka_partition_heard(kafka_partition *partition, bool is_delivered);
/*
 * Of a message that was sent then and has no answer after time_ms: was it for most of that time the
 * first of its partition? Before it is heard.
 */
bool kafka_partition_hung(const kafka_partition *partition, int64_t sent_ms, int64_t time_ms);
/* How long it has accepted nothing. */
int64_t kafka_partition_quiet_ms(const kafka_partition *partition);
/* True: log now that it is late; then false for a while. */
bool kafka_partition_tells(kafka_partition *partition);
