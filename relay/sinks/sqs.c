/* SPDX-License-Identifier: PostgreSQL */
/*
 * sqs.c: the sink of Amazon SQS: SendMessageBatch, ten events at a time, each with its own result.
 * For a FIFO queue the aggregate is the group, which keeps its order, and the event's id is the
 * deduplication id: an event sent again within five minutes is stored once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aws_sink.h"
#include "memory.h"
#include "route.h"
#include "sink.h"
#include "sqs.h"

static const config_option options[] = {AWS_OPTION_ROWS("sqs"), {.name = NULL}};

/* A queue whose URL is known. */
typedef struct queue {
	char *name, *url;
	struct queue *next;
} queue;

static void free_queues(void *own)
{
	for (queue *next = NULL, *each = own; each != NULL; each = next) {
		next = each->next;
		free(each->name);
		free(each->url);
		free(each);
	}
}

static aws_result url_of(aws_client *client, void **own, const char *name, const char **url,
                         char problem[BROKER_PROBLEM_BYTES])
{
	for (const queue *each = *own; each != NULL; each = each->next) {
		if (strcmp(each->name, name) == 0) {
			*url = each->url;
			return AWS_DONE;
		}
	}
	char *found = NULL;
	aws_result result = sqs_find(client, name, &found, problem);
	if (result == AWS_DONE) {
		queue *made = memory_take(sizeof *made);
		*made = (queue){.name = memory_copy(name), .url = found, .next = *own};
		*own = made;
		*url = made->url;
	}
	return result;
}

/* A database whose encoding is SQL_ASCII may hold other bytes. */
static bool is_text(once_bytes body)
{
	json_t *made = sqs_message(body, &(aws_attributes){0}, NULL, NULL);

	json_decref(made);
	return made != NULL;
}

/* Problems of a single event are found here, before it shares a call with others. */
static const char *refuse(const sink_message *message)
{
	if (!sqs_is_queue(message->destination)) {
		return "is neither a name nor the URL of a queue: change the route";
	}
	return message->is_bytes || is_text(message->body) ? NULL
	                                                   : "takes text in UTF-8 alone, which the event's body is not";
}

static json_t *entry_of(const sink_message *message, size_t number, bool fifo)
{
	char group[AWS_GROUP_BYTES], id[24];
	char *made;
	aws_attributes attributes;

	aws_sink_attributes(message, &attributes);
	aws_sink_group(message, group);
	json_t *entry = sqs_message(aws_sink_body(message, &made), &attributes, fifo ? group : NULL, message->event_id);
	aws_attributes_clear(&attributes);
	free(made);
	snprintf(id, sizeof id, "%zu", number);
	if (entry != NULL) {
		json_object_set_new(entry, "Id", json_string(id));
	}
	return entry;
}

static aws_result build(aws_client *client, void **own, aws_parcel *parcel, char problem[BROKER_PROBLEM_BYTES])
{
	const char *name = parcel->items[0]->message.destination;
	const char *url = NULL;
	aws_result found = url_of(client, own, name, &url, problem);

	if (found != AWS_DONE) {
		return found;
	}
	json_t *entries = json_array();
	for (size_t i = 0; i < parcel->count; i++) {
		/* Out of memory: it is left out, and the answer then does not contain it. */
		(void)json_array_append_new(entries, entry_of(&parcel->items[i]->message, i, sqs_is_fifo(name)));
	}
	if (!sqs_call(&parcel->call, "AmazonSQS.SendMessageBatch",
	              json_pack("{s:s, s:o}", "QueueUrl", url, "Entries", entries))) {
		snprintf(problem, BROKER_PROBLEM_BYTES, "the URL of the queue is not UTF-8: change the route");
		return AWS_REFUSED;
	}
	return AWS_DONE;
}

static bool read_answer(const aws_parcel *parcel, aws_entry entries[AWS_PARCEL_MAX],
                        char problems[AWS_PARCEL_MAX][BROKER_PROBLEM_BYTES])
{
	json_t *answer = json_loadb(parcel->call.answer, parcel->call.answer_length, 0, NULL);
	bool is_answer = aws_batch_is(answer);

	for (size_t i = 0; is_answer && i < parcel->count; i++) {
		entries[i] = aws_batch_read(answer, i, "MessageId", problems[i]);
	}
	json_decref(answer);
	return is_answer;
}

static const aws_sink_class class = {
    .name = "sqs",
    .event_bytes_max = SQS_MESSAGE_BYTES_MAX,
    .refuse = refuse,
    .build = build,
    .read = read_answer,
    .free_own = free_queues,
};

/* ---- notes for people */

static void put_note(FILE *to, char *note)
{
	fprintf(to, "%s%s", ftell(to) > 0 ? "\n" : "", note);
	free(note);
}

/* The queues of the routes; without a route, every topic goes to a queue with its name. */
static char *note_sqs(const config *config, const config_section *section)
{
	char *notes = NULL;
	size_t length = 0;
	FILE *to = open_memstream(&notes, &length);
	bool any = false, fifo = false;

	for (size_t i = 0; to != NULL && i < section->entry_count; i++) {
		const config_entry *entry = &section->entries[i];
		const char *arrow = route_entry_destination(entry);
		if (arrow == NULL) {
			continue;
		}
		any = true;
		fifo = fifo || sqs_is_fifo(arrow);
		if (!sqs_is_fifo(arrow)) {
			put_note(to, config_problem(config, section, entry,
			                            "a queue without FIFO delivers events in any order, and sometimes twice"));
		}
	}
	if (to != NULL && !any) {
		put_note(
		    to, config_problem(config, section, NULL,
		                       "without a route each topic goes to a queue with its name, without FIFO: in any order"));
	}
	if (to != NULL && fifo) {
		put_note(to, config_problem(
		                 config, section, NULL,
		                 "a FIFO queue drops a repeat within five minutes, a replay too; a later one it stores again"));
	}
	if (to == NULL || fclose(to) != 0) {
		free(notes);
		return NULL;
	}
	return notes;
}

static bool open_sqs(const speaker *speaker, const config *config, const config_section *section, sink **result,
                     char **problem)
{
	return aws_sink_open(&class, options, speaker, config, section, result, problem);
}

static bool check_sqs(const config *config, const config_section *section, char **problem)
{
	return aws_sink_check(&class, options, config, section, problem);
}

const sink_class sink_sqs = {
    .name = "sqs",
    .options = options,
    .in_flight = 1000,
    .open = open_sqs,
    .check = check_sqs,
    .note = note_sqs,
    .send = aws_sink_send,
    .poll = aws_sink_poll,
    .permit = aws_sink_permit,
    .close = aws_sink_close,
};
