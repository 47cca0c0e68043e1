/* SPDX-License-Identifier: PostgreSQL */
/* options.c: the options of a [relay NAME] section, besides its sink's. Sinks read them too. */
#include <stddef.h>

#include "relay_settings.h"
#include "sink.h"

#define SINK_WORD(name, built) " " #name
#define AT(member) offsetof(relay_settings, member)

const config_option relay_options[] = {
    {.name = "dsn",
     .kind = CONFIG_TEXT,
     .offset = AT(dsn),
     .help = "the database, as a libpq connection string; default: the file's dsn, then --dsn, then libpq's "
             "environment. Not "
             "through a pooler in "
             "transaction mode: a relay holds a session lock"},
    {.name = "sink",
     .kind = CONFIG_TEXT,
     .offset = AT(sink_name),
     .required = true,
     .help = "where events go:" SINKS(SINK_WORD)},
    {.name = "route",
     .kind = CONFIG_REPEATED,
     .help =
         "TOPIC -> DESTINATION; may be given more than once, and the first that matches wins. TOPIC is one topic, or "
         "ends "
         "in *. {topic} and {tenant} "
         "are put into DESTINATION. An event that no route matches is not for this relay. Default: every topic, to a "
         "destination with its name. TOPIC if CONDITION and CONDITION -> DESTINATION: type = ..., aggregate = ... (its "
         "type) or header NAME = ..., a value or its beginning and *. A route without conditions must follow, for the "
         "rest "
         "of "
         "TOPIC; -> /dev/null leaves events out"},
    {.name = "envelope",
     .kind = CONFIG_CHOICE,
     .offset = AT(envelope_form),
     .choices = "plain|cloudevents",
     .standard = "plain",
     .help = "the headers: pgonce's own, or CloudEvents 1.0 in the binary mode of the sink's protocol"},
    {.name = "ce_source",
     .kind = CONFIG_TEXT,
     .offset = AT(ce_source),
     .help = "CloudEvents' source, a URI reference; default: /pgonce/ and the relay's name"},
    {.name = "batch",
     .kind = CONFIG_NUMBER,
     .offset = AT(batch),
     .minimum = 1,
     .maximum = 10000,
     .standard = "1000",
     .help = "how many events are read, delivered and settled together; after a crash at most this many are delivered "
             "again"},
    {.name = "in_flight",
     .kind = CONFIG_NUMBER,
     .offset = AT(in_flight),
     .minimum = 1,
     .maximum = 10000,
     .help = "the most events that the sink has at a time, one of each aggregate; at most batch are sent together. "
             "The hosts of a webhook share it. Default: see the sink"},
    {.name = "attempts",
     .kind = CONFIG_NUMBER,
     .offset = AT(attempts),
     .minimum = 1,
     .maximum = 1000000,
     .standard = "10",
     .help =
         "how often an event is tried before it is dead. If the whole sink is away, that does not count; if one of a "
         "webhook's several hosts is away, it does (docs/how/when-delivery-fails.md)"},
    {.name = "retry_first",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_first_ms),
     .minimum = 1,
     .maximum = INT64_C(7) * 86400 * 1000,
     .standard = "1s",
     .help = "the pause after an event's first failure; doubles with each further one, with 50 to 100% jitter"},
    {.name = "retry_most",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_most_ms),
     .minimum = 1,
     .maximum = INT64_C(30) * 86400 * 1000,
     .standard = "5m",
     .help =
         "the longest pause between two attempts; a receiver may ask for a time (Retry-After), up to this or an hour, "
         "whichever is longer"},
    {.name = "timeout",
     .kind = CONFIG_DURATION,
     .offset = AT(timeout_ms),
     .minimum = 10,
     .maximum = INT64_C(3600) * 1000,
     .standard = "30s",
     .help =
         "how long a delivery may take before it counts as failed. Also how long a stop waits for events in flight"},
    {.name = "on_dead",
     .kind = CONFIG_CHOICE,
     .offset = AT(on_dead),
     .choices = "block|skip",
     .standard = "block",
     .help = "what happens to later events of a dead event's aggregate: they wait until an operator decides (pgonce "
             "parked), or are delivered without it"},
    {.name = "dead_topic",
     .kind = CONFIG_TEXT,
     .offset = AT(dead_topic),
     .help =
         "a destination of the same sink, as after the -> of a route, to which a copy of each dead event is sent, at "
         "least once; the event is dead once the sink has accepted the copy"},
    {.name = "parked_max",
     .kind = CONFIG_NUMBER,
     .offset = AT(parked_max),
     .minimum = 1,
     .maximum = INT64_C(100000000),
     .standard = "100000",
     .help = "with more parked events than this the relay only retries, and reads no new events; ten that wait behind "
             "another event or for a hanging host count as one"},
    {.name = "poll_most",
     .kind = CONFIG_DURATION,
     .offset = AT(poll_most_ms),
     .minimum = 1,
     .maximum = 60000,
     .standard = "50ms",
     .help = "the longest pause between two looks at the outbox; while events come, it looks every millisecond"},
    {.name = "start",
     .kind = CONFIG_CHOICE,
     .offset = AT(start),
     .choices = "oldest|now",
     .standard = "oldest",
     .help = "where a new relay starts: at the oldest event that is kept, or at the next new one"},
    {.name = NULL}};
