/* SPDX-License-Identifier: PostgreSQL */
/*
 * aws_sink.h: shared by the sinks of SQS and SNS (aws_sink.c): the thread that takes events from
 * the flight, the open calls, and the results of their events. An aws_sink_class, one for each of
 * the two, makes the calls. Used by sqs.c and sns.c alone.
 */
#pragma once

#include "aws.h"
#include "aws_attributes.h"
#include "flight.h"

#define AWS_PARCEL_MAX 10

/* Events of one destination in one call, where each has a number. */
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
	/* Why an event can never be sent, checked without the others; NULL: it can. */
	const char *(*refuse)(const sink_message *message);
	/*
	 * Fills the parcel's call; may wait for answers about the destination. AWS_DONE: send it. Else
	 * problem: all events of the parcel are refused (AWS_REFUSED) or kept for later.
	 */
	aws_result (*build)(aws_client *client, void **own, aws_parcel *parcel, char problem[BROKER_PROBLEM_BYTES]);
	/*
	 * Reads each event's result from an answer (2xx): entries[i], problems[i]. False: it is
	 * malformed.
	 */
	bool (*read)(const aws_parcel *parcel, aws_entry entries[AWS_PARCEL_MAX],
	             char problems[AWS_PARCEL_MAX][BROKER_PROBLEM_BYTES]);
	void (*free_own)(void *own);
} aws_sink_class;

/* The attributes of an event; clear them. */
void aws_sink_attributes(const sink_message *message, aws_attributes *attributes);
/*
 * An event's body as sent: bytes in base64, since the services only accept text; *made (free it)
 * holds that.
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
