/* SPDX-License-Identifier: PostgreSQL */
/* options.c: what a [relay NAME] section may say, besides its sink's options. Sinks read it too. */
#include <stddef.h>

#include "relay_settings.h"
#include "sink.h"

#define SINK_WORD(name, built) " " #name
#define AT(member) offsetof(relay_settings, member)

const config_option relay_options[] = {
    {.name = "dsn",
     .kind = CONFIG_TEXT,
     .offset = AT(dsn),
     .help = "the database, as libpq reads it; default: the file's dsn, then --dsn, then libpq's environment. Not "
             "through a pooler in "
             "transaction mode: a relay holds a lock of its session"},
    {.name = "sink",
     .kind = CONFIG_TEXT,
     .offset = AT(sink_name),
     .required = true,
     .help = "where to:" SINKS(SINK_WORD)},
    {.name = "route",
     .kind = CONFIG_REPEATED,
     .help =
         "TOPIC -> DESTINATION; may come more than once, the first that matches wins. TOPIC is one topic, or ends "
         "in *. {topic} and {tenant} "
         "are put into DESTINATION. An event that no route matches is not this relay's. Default: every topic, to a "
         "destination of its name. TOPIC if CONDITION and CONDITION -> DESTINATION: type = ..., aggregate = ... (its "
         "type) or header NAME = ..., a value or its beginning and *. A route without conditions follows, for the rest "
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
     .help =
         "how many events are read, delivered and settled together; after a crash at most so many are delivered again"},
    {.name = "in_flight",
     .kind = CONFIG_NUMBER,
     .offset = AT(in_flight),
     .minimum = 1,
     .maximum = 10000,
     .help = "how many events the sink has at a time at most, of each aggregate one; no more than batch come together. "
             "The hosts of a webhook share it. Default: the sink's own, see there"},
    {.name = "attempts",
     .kind = CONFIG_NUMBER,
     .offset = AT(attempts),
     .minimum = 1,
     .maximum = 1000000,
     .standard = "10",
     .help = "how often an event is tried before it is dead; a sink that is away as a whole does not count, one of a "
             "webhook's several hosts does (docs/events.md)"},
    {.name = "retry_first",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_first_ms),
     .minimum = 1,
     .maximum = INT64_C(7) * 86400 * 1000,
     .standard = "1s",
     .help =
         "the wait after an event's first failure; doubled with each further one, and random between half and whole"},
    {.name = "retry_most",
     .kind = CONFIG_DURATION,
     .offset = AT(retry_most_ms),
     .minimum = 1,
     .maximum = INT64_C(30) * 86400 * 1000,
     .standard = "5m",
     .help = "the longest wait between two attempts; a receiver that asks for a time (Retry-After) gets it, up to this "
             "or an hour"},
    {.name = "timeout",
     .kind = CONFIG_DURATION,
     .offset = AT(timeout_ms),
     .minimum = 10,
     .maximum = INT64_C(3600) * 1000,
     .standard = "30s",
     .help = "how long a delivery may take; it has failed then. Also how long stopping waits for what is in flight"},
    {.name = "on_dead",
     .kind = CONFIG_CHOICE,
     .offset = AT(on_dead),
     .choices = "block|skip",
     .standard = "block",
     .help = "what a dead event does to later ones of its aggregate: they wait until an operator decides (pgonce "
             "parked), or go on without it"},
    {.name = "dead_topic",
     .kind = CONFIG_TEXT,
     .offset = AT(dead_topic),
     .help =
         "a destination of the same sink, as behind the -> of a route, to which a copy of each dead event is sent, at "
         "least once; the event is dead when it was taken"},
    {.name = "parked_max",
     .kind = CONFIG_NUMBER,
     .offset = AT(parked_max),
     .minimum = 1,
     .maximum = INT64_C(100000000),
     .standard = "100000",
     .help = "with more parked events than this the relay reads nothing new, only retries; ten that wait, behind "
             "another or "
             "for a host that hangs, count as one"},
    {.name = "poll_most",
     .kind = CONFIG_DURATION,
     .offset = AT(poll_most_ms),
     .minimum = 1,
     .maximum = 60000,
     .standard = "50ms",
     .help = "the longest wait between two looks at the outbox; while events come it looks each millisecond"},
    {.name = "start",
     .kind = CONFIG_CHOICE,
     .offset = AT(start),
     .choices = "oldest|now",
     .standard = "oldest",
     .help = "where a relay begins that the database does not know yet: with the oldest event that is kept, or with "
             "those to come"},
    {.name = NULL}};
