/* SPDX-License-Identifier: PostgreSQL */
/* counts.c: see counts.h. */
#include "counts.h"

void counts_publish(counts *counts, metrics *to, const char *name)
{
	/* clang-format off */
	static const char parked[] = "Messages parked, counted each time: waiting behind another of their key, retrying after a failed attempt, or dead.";
	const struct {
		metric **metric;
		metric_kind kind;
		const char *name, *help, *state;
	} all[] = {
		{&counts->messages, METRIC_COUNTER, "pgonce_consume_messages", "Messages taken from the broker.", NULL},
		{&counts->batches, METRIC_COUNTER, "pgonce_consume_batches", "Batches taken from the broker.", NULL},
		{&counts->message_at, METRIC_GAUGE, "pgonce_consume_last_message_timestamp_seconds", "When the last message arrived, in seconds since 1970; 0: none yet.", NULL},
		{&counts->applied, METRIC_COUNTER, "pgonce_consume_applied", "Messages applied.", NULL},
		{&counts->duplicates, METRIC_COUNTER, "pgonce_consume_duplicates", "Messages that were applied before.", NULL},
		{&counts->mismatches, METRIC_COUNTER, "pgonce_consume_mismatches", "Messages whose id came before with a different payload.", NULL},
		{&counts->parked[PARKED_WAITING], METRIC_COUNTER, "pgonce_consume_parked", parked, "waiting"},
		{&counts->parked[PARKED_RETRYING], METRIC_COUNTER, "pgonce_consume_parked", parked, "retrying"},
		{&counts->parked[PARKED_DEAD], METRIC_COUNTER, "pgonce_consume_parked", parked, "dead"},
		{&counts->active, METRIC_GAUGE, "pgonce_consume_active", "1: this process runs the consumer; 0: it stands by, or has no connection.", NULL},
		{&counts->source_away, METRIC_GAUGE, "pgonce_consume_source_away", "1: the broker cannot be reached.", NULL},
		{&counts->stalled, METRIC_GAUGE, "pgonce_consume_stalled", "1: a partition, a durable consumer or a queue has messages but delivers none while the consumer waits: the log names it.", NULL},
		{&counts->endpoint_away, METRIC_GAUGE, "pgonce_consume_endpoint_away", "1: the last call did not reach the endpoint; it is not counted as an attempt.", NULL},
		{&counts->full, METRIC_GAUGE, "pgonce_consume_full", "1: parked_max messages are parked, and no more are read from the broker.", NULL},
		{&counts->dead_unsent, METRIC_COUNTER, "pgonce_consume_dead_unsent", "Copies of dead messages that the dead_topic did not accept: each is sent again.", NULL},
		{&counts->lost, METRIC_COUNTER, "pgonce_consume_lost", "Upper limit of the messages that the broker deleted (retention) before the consumer read them: the log says which. They are not applied.", NULL},
		{&counts->connects, METRIC_COUNTER, "pgonce_consume_connects", "Connections to PostgreSQL, including reconnections.", NULL},
	};
	/* clang-format on */

	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		const metric_label labels[] = {{.name = "consumer", .value = name}, {.name = "state", .value = all[i].state}};
		*all[i].metric = metrics_add(to, all[i].kind, all[i].name, all[i].help, labels, all[i].state == NULL ? 1 : 2);
	}
}

void counts_commit(counts *counts)
{
	const tally *open = &counts->open;
	tally *committed = &counts->committed;

	metric_count(counts->applied, open->applied);
	metric_count(counts->duplicates, open->duplicates);
	metric_count(counts->mismatches, open->mismatched);
	committed->applied += open->applied;
	committed->duplicates += open->duplicates;
	committed->known += open->known;
	for (int i = 0; i < PARKED_STATES; i++) {
		metric_count(counts->parked[i], open->parked[i]);
		committed->parked[i] += open->parked[i];
	}
	counts->open = (tally){0};
}

uint64_t tally_parked(const tally *tally)
{
	return tally->parked[PARKED_WAITING] + tally->parked[PARKED_RETRYING] + tally->parked[PARKED_DEAD];
}

uint64_t tally_messages(const tally *tally)
{
	return tally->applied + tally->duplicates + tally->known + tally_parked(tally);
}
