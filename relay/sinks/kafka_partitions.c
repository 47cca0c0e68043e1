/* SPDX-License-Identifier: PostgreSQL */
/* kafka_partitions.c: see kafka_partitions.h. */
#include "kafka_partitions.h"

#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "memory.h"
#include "runtime.h"

enum {
	BUCKETS = 1024,
	PARTITIONS_MAX = 10000,
	TELL_MS = 60000
};

struct kafka_partitions {
	kafka_partition *buckets[BUCKETS];
	size_t count;
};

kafka_partitions *kafka_partitions_new(void)
{
	return memory_take(sizeof(struct kafka_partitions));
}

void kafka_partitions_free(kafka_partitions *partitions)
{
	for (size_t i = 0; partitions != NULL && i < BUCKETS; i++) {
		for (kafka_partition *at = partitions->buckets[i], *next = NULL; at != NULL; at = next) {
			next = at->next;
			free(at);
		}
	}
	free(partitions);
}

kafka_partition *kafka_partition_of(kafka_partitions *partitions, const char *topic, int32_t number)
{
	uint64_t hash = hash_bytes(hash_bytes(HASH_START, topic, strlen(topic)), &number, sizeof number);
	hash ^= hash >> 32;
	kafka_partition **bucket = &partitions->buckets[hash % BUCKETS];

	for (kafka_partition *at = *bucket; at != NULL; at = at->next) {
		if (at->hash == hash && at->number == number && strcmp(at->topic, topic) == 0) {
			return at;
		}
	}
	if (partitions->count >= PARTITIONS_MAX && *bucket != NULL) {
		return *bucket; /* unknown partitions blame no message */
	}
	size_t bytes = strlen(topic) + 1;
	kafka_partition *made = memory_take(sizeof *made + bytes);
	memcpy(made->topic, topic, bytes);
	made->made_ms = runtime_now_ms();
	made->number = number;
	made->hash = hash;
	made->next = *bucket;
	*bucket = made;
	partitions->count++;
	return made;
}

void kafka_partition_heard(kafka_partition *partition, bool is_delivered)
{
	partition->result_ms = runtime_now_ms();
	partition->delivered_ms = is_delivered ? partition->result_ms : partition->delivered_ms;
}

bool kafka_partition_hung(const kafka_partition *partition, int64_t sent_ms, int64_t time_ms)
{
	int64_t first_ms = partition->result_ms > sent_ms ? partition->result_ms : sent_ms;

	return runtime_now_ms() - first_ms >= time_ms - time_ms / 4;
}

int64_t kafka_partition_quiet_ms(const kafka_partition *partition)
{
	return runtime_now_ms() - (partition->delivered_ms != 0 ? partition->delivered_ms : partition->made_ms);
}

bool kafka_partition_tells(kafka_partition *partition)
{
	int64_t now_ms = runtime_now_ms();
	bool tells = partition->told_ms == 0 || now_ms - partition->told_ms >= TELL_MS;

	partition->told_ms = tells ? now_ms : partition->told_ms;
	return tells;
}
