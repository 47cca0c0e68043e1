/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_sink.h: what the sinks of SQS and SNS share (aws_sink.c): the thread that takes events from
 * the flight, the calls that are out, and what becomes of their events. What a call looks like is
 * said by an aws_sink_class, a row for each of the two. Used by sqs.c and sns.c alone.
 */
#pragma once

#include "aws.h"
#include "aws_attributes.h"
#include "flight.h"

#define AWS_PARCEL_MAX 10

/* Events of one destination that go by one call, each told apart by its number there. */
typedef struct aws_parcel {
	aws_call call;
	flight_item *items[AWS_PARCEL_MAX];
	size_t count;
	size_t bytes; /* of all of them */
	struct aws_parcel *next;
} aws_parcel;

typedef struct aws_sink_class {
	const char *name; /* "sqs" */
	size_t event_bytes_max;
	/* NULL, or why an event can never be sent: all that can be wrong with one event alone. */
	const char *(*refuse)(const sink_message *message);
	/*
	 * Fills the parcel's call; may wait for answers about the destination. AWS_DONE: it is to be
	 * sent. Else problem: the parcel's events, for what they share, are refused (AWS_REFUSED) or
	 * kept for later.
	 */
	aws_result (*build)(aws_client *client, void **own, aws_parcel *parcel, char problem[BROKER_PROBLEM_BYTES]);
	/* What the answer (2xx) says of each event: entries[i] and problems[i]. False: it is none. */
	bool (*read)(const aws_parcel *parcel, aws_entry entries[AWS_PARCEL_MAX],
	             char problems[AWS_PARCEL_MAX][BROKER_PROBLEM_BYTES]);
	void (*free_own)(void *own);
} aws_sink_class;

/* The attributes of an event; clear them. */
void aws_sink_attributes(const sink_message *message, aws_attributes *attributes);
/*
 * What is sent of an event's body: of bytes their base64, since the services take text alone; *made
 * (free it) holds that.
 */
once_bytes aws_sink_body(const sink_message *message, char **made);
/* The MessageGroupId of an event. */
void aws_sink_group(const sink_message *message, char group[AWS_GROUP_BYTES]);

/* The parts of a sink_class. */
bool aws_sink_open(const aws_sink_class *class, const config_option *options, const speaker *speaker,
                   const config *config, const config_section *section, sink **result, char **problem);
bool aws_sink_check(const aws_sink_class *class, const config_option *options, const config *config,
                    const config_section *section, char **problem);
bool aws_sink_send(sink *sink, sink_message *message);
size_t aws_sink_poll(sink *sink, int timeout_ms, sink_result *results, size_t most);
void aws_sink_permit(sink *sink, int64_t until_ms);
void aws_sink_close(sink *sink);
