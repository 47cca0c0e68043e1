/* SPDX-License-Identifier: PostgreSQL */
/*
 * option_table.c: every option of every command, as data, in the order of option_id. Which command
 * takes which is in commands.c. One name may stand for several options (--scope of the gateway and
 * of show): each has a row of its own, with the help that fits.
 */
#include "cli.h"

#define HOURS_MS (INT64_C(60) * 60 * 1000)
#define DAYS_MS (24 * HOURS_MS)

/* The kinds of options: letter (0: none), name, what its value may be, help. */
#define FLAG(l, n, h)                                                                                                  \
	{                                                                                                                  \
		.kind = KIND_FLAG, .letter = (l), .name = (n), .help = (h)                                                     \
	}
#define TEXT(l, n, a, h)                                                                                               \
	{                                                                                                                  \
		.kind = KIND_TEXT, .letter = (l), .name = (n), .argument = (a), .help = (h)                                    \
	}
#define CHOICE(n, a, c, h)                                                                                             \
	{                                                                                                                  \
		.kind = KIND_CHOICE, .name = (n), .argument = (a), .choices = (c), .help = (h)                                 \
	}
#define AMOUNT(k, l, n, a, least, most, h)                                                                             \
	{                                                                                                                  \
		.kind = (k), .letter = (l), .name = (n), .argument = (a), .minimum = (least), .maximum = (most), .help = (h)   \
	}
#define NUMBER(l, n, least, most, h) AMOUNT(KIND_NUMBER, l, n, "N", least, most, h)
#define DURATION(l, n, least, most, h) AMOUNT(KIND_DURATION, l, n, "DURATION", least, most, h)
#define BYTES(l, n, least, most, h) AMOUNT(KIND_BYTES, l, n, "BYTES", least, most, h)

const cli_option cli_options[OPTION_COUNT] = {
    [OPTION_DSN] = TEXT('d', "dsn", "CONNINFO",
                        "the database, as a connection string of libpq (\"host=... dbname=...\" or postgresql://...); "
                        "default: libpq's environment variables (PGHOST, PGDATABASE, PGUSER, PGSERVICE ...)"),
    [OPTION_JSON] = FLAG('j', "json", "print JSON; messages on stderr become one JSON object per line"),
    [OPTION_HELP] = FLAG('h', "help", "print this help"),
    [OPTION_TENANT] = TEXT('t', "tenant", "TENANT", "the tenant of the intent; default: the empty one"),
    [OPTION_SCOPE] = TEXT('s', "scope", "SCOPE", "the kind of operation, for example nightly-invoices"),
    [OPTION_KEY] = TEXT('k', "key", "KEY",
                        "names the intent in its scope, for example 2026-01-31; 1 to 255 printable ASCII characters"),
    [OPTION_PRINT] = FLAG(0, "print", "print the SQL of a new installation, for review, and connect to nothing"),
    [OPTION_NO_NATIVE] = FLAG(0, "no-native", "leave pgonce_native, the hot functions in C, out of this database"),
    [OPTION_DIR] = TEXT(0, "dir", "DIR", "where the private PostgreSQL lives; default: .pgonce"),
    [OPTION_DETACH] = FLAG(0, "detach", "start, print, and leave the server running"),
    [OPTION_STOP] = FLAG(0, "stop", "stop the server; its data stays"),
    [OPTION_STATUS_OF_SERVER] = FLAG(0, "status", "say whether the server runs, and where (3: it does not)"),
    [OPTION_LEASE] = DURATION(0, "lease", 100, 7 * DAYS_MS,
                              "how long the claim holds without a renewal; while CMD runs, it is renewed every third "
                              "of that time; default: the scope's policy (60s unless set)"),
    [OPTION_TTL] = DURATION(0, "ttl", 1, 36500 * DAYS_MS,
                            "how long the outcome is kept; default: the scope's policy (7d unless set)"),
    [OPTION_RETRY_FAILED] =
        FLAG(0, "retry-failed",
             "if CMD fails, let the next call run it again; without it a failure is final and is replayed"),
    [OPTION_ON_STALE] = CHOICE("on-stale", "WHAT", "in_doubt|takeover",
                               "what to do after an earlier call whose lease passed without a report: its outcome is "
                               "unknown, and CMD may still run. in_doubt: nothing runs until it is decided; takeover: "
                               "CMD runs again; default: in_doubt. If the scope has a verify function, that decides"),
    [OPTION_INPUT] = TEXT(
        0, "input", "FILE",
        "standard input of CMD (\"-\": that of pgonce), covered by the fingerprint; without it CMD reads /dev/null"),
    [OPTION_OUTPUT_MAX] =
        BYTES(0, "output-max", 64, INT64_C(64) * 1024 * 1024,
              "how much output is stored for replays (k, M, G allowed); a larger output is passed on, but replays "
              "print only a note; default: 1M, never above the scope's response_bytes_max"),
    [OPTION_TRACEPARENT] = TEXT(0, "traceparent", "TRACEPARENT",
                                "the trace that this call belongs to (W3C Trace Context), stored with the intent and "
                                "given to CMD; default: the environment variable TRACEPARENT"),
    [OPTION_VERBOSE] = FLAG('v', "verbose", "print each decision (run, replayed) on stderr, not only problems"),
    [OPTION_ALL] =
        FLAG(0, "all", "instead of --key: all intents of the scope that are in doubt, of --tenant or of all tenants"),
    [OPTION_AS] = CHOICE("as", "STATE", "succeeded|failed_retryable|failed_final",
                         "succeeded: the effect happened; failed_retryable: it did not, the next attempt may run; "
                         "failed_final: it did not and shall not"),
    [OPTION_REASON] = TEXT(0, "reason", "TEXT", "why; recorded with your role and the time"),
    [OPTION_STATUS] =
        NUMBER(0, "status", 0, 999, "the status of replays (an exit status, an HTTP status); 0 and default: none"),
    [OPTION_BODY] = TEXT(0, "body", "FILE", "the body of replays; \"-\" reads standard input"),
    [OPTION_HEADERS] = TEXT(0, "headers", "JSON",
                            "the HTTP headers of replays, an object: '{\"Content-Type\": \"application/json\"}'"),
    [OPTION_RESOLVED_RESULT] =
        TEXT(0, "result", "TYPE:ID",
             "what the effect made (result_type, result_id), for example charge:17; pgonce find looks for it"),
    [OPTION_ERROR] = TEXT('e', "error", "CODE", "with --all: only those that were put in doubt with this error code"),
    [OPTION_DOUBT_UNTIL] =
        TEXT(0, "until", "WHEN", "in doubt before then, so that none of its attempts was later; as --since"),
    [OPTION_DRY_RUN] =
        FLAG(0, "dry-run", "decide, print what would change, and roll back; with --all: count, and change nothing"),
    [OPTION_LISTEN] = TEXT('l', "listen", "ADDRESS", "ADDRESS:PORT or unix:/PATH; default: 127.0.0.1:8080"),
    [OPTION_UPSTREAM] =
        TEXT('u', "upstream", "URL", "the service: http://HOST:PORT, https://HOST:PORT or http://unix:/PATH"),
    [OPTION_GATEWAY_SCOPE] = TEXT('s', "scope", "SCOPE", "the scope of its intents, for example payments; default: /"),
    [OPTION_REQUIRED] = FLAG(
        'r', "required", "refuse a POST or PATCH without a key (400); without it such a request passes unprotected"),
    [OPTION_TENANT_FROM] = TEXT('t', "tenant", "VARIABLE",
                                "whose keys these are: a variable of nginx that clients cannot choose (http_x_tenant: "
                                "a header that the proxy in front sets in every request), or none: all callers are "
                                "one; default: none, on addresses of this machine only"),
    [OPTION_ON_5XX] =
        CHOICE("on-5xx", "WHAT", "in_doubt|release|store",
               "what a 5xx of the service says of the effect. in_doubt: nothing; release: it was rolled "
               "back, so a retry runs (but 502, 503, 504, which a proxy may have given); store: it is the "
               "outcome; default: in_doubt"),
    [OPTION_USER] = TEXT(0, "user", "NAME",
                         "whom the workers run as, if root starts it; default: www-data, else nginx, else nobody"),
    [OPTION_PRINT_CONFIG] =
        FLAG(0, "print-config", "print nginx's configuration, to start your own from, and run nothing"),
    [OPTION_NGINX] = TEXT(0, "nginx", "FILE", "the program nginx; default: found in PATH, else in /usr/sbin"),
    [OPTION_MODULE] = TEXT(0, "module", "FILE",
                           "ngx_http_once_module.so; default: found beside this command, else among nginx's modules"),
    [OPTION_GATEWAY_DIR] = TEXT(0, "dir", "DIR",
                                "where the configuration and nginx's temporary files go; default: a new directory, "
                                "which is removed at the end (with --print-config: /run/pgonce-gateway)"),
    [OPTION_CONFIG] = TEXT('c', "config", "FILE",
                           "the configuration file (pgonce.conf(5), docs/configuration.md); default: pgonce.conf"),
    [OPTION_CHECK_CONFIG] =
        FLAG(0, "check-config", "read the whole file, print all its mistakes, and connect to nothing"),
    [OPTION_ONCE] =
        FLAG(0, "once", "stop when there is nothing left to do, and exit 0; a relay exits 1 if events are left parked"),
    [OPTION_LOG_BATCHES] = FLAG('v', "verbose", "log each batch; of keep, each step"),
    [OPTION_METRICS] = TEXT(0, "metrics", "ADDRESS:PORT",
                            "serve metrics there for Prometheus (/metrics), /health and /once/ready, for example "
                            "127.0.0.1:9187 or [::1]:9187; port 0: any that is free, see the log"),
    [OPTION_ONE_ROUND] = FLAG(0, "once", "do one round without pauses, and stop; exit 1 if a step failed"),
    [OPTION_INTERVAL] = DURATION('i', "interval", 1000, HOURS_MS,
                                 "how long to pause after a round that left nothing to do; default: 1m"),
    [OPTION_KEEPER_NAME] = TEXT(
        0, "name", "NAME", "what the keeper is called in the log and in the database; default: the machine's name"),
    [OPTION_KIND] = CHOICE("kind", "KIND", "event|message", "only events (of relays), or only messages (of consumers)"),
    [OPTION_RELAY] = TEXT('r', "relay", "NAME", "only events of this relay; replay: the relay; default: the only one"),
    [OPTION_CONSUMER] = TEXT(0, "consumer", "NAME", "only messages of this consumer"),
    [OPTION_TOPIC] = TEXT(0, "topic", "TOPIC", "only events and messages of this topic"),
    [OPTION_FROM] = TEXT(0, "from", "TIME",
                         "replay: from when on, as PostgreSQL reads a timestamp (2026-01-31 12:00+00, yesterday)"),
    [OPTION_FORCE] =
        FLAG(0, "force", "replay: also events that are older than an inbox remembers, which would be applied again"),
    [OPTION_STATE] = CHOICE("state", "STATE", "pending|waiting|retrying|dead|delayed",
                            "only what is in this state; pending and delayed: events that are not parked"),
    [OPTION_PARKED_TYPE] = TEXT(0, "type", "TYPE",
                                "only events of this type, and messages with a header that says so "
                                "(Pgonce-Event-Type, a CloudEvent's type, AMQP's type)"),
    [OPTION_PARKED_ERROR] = TEXT('e', "error", "TEXT",
                                 "only those whose error has this text in it, in capitals or not, or is this SQLSTATE"),
    [OPTION_OLDER_THAN] = TEXT(0, "older-than", "WHEN",
                               "only events that were emitted, and messages that were parked, before then: a span "
                               "before now (2h, 7d), or a time as PostgreSQL reads it"),
    [OPTION_YES] = FLAG(0, "yes", "retry, discard of many: do it; without it they are only counted"),
    [OPTION_DRY_RUN_MANY] = FLAG(0, "dry-run", "retry, discard of many: count them, and change nothing; the default"),
    [OPTION_TAKE] = NUMBER('n', "limit", 1, 1000000, "list at most N; default: 100"),
    [OPTION_PARKED_REASON] =
        TEXT(0, "reason", "TEXT", "why; recorded with your role and the time; needed for each change"),
    [OPTION_PARKED_TENANT] = TEXT('t', "tenant", "TENANT",
                                  "only events and messages of this tenant (\"\": those without one); default: all"),
    [OPTION_FIND_TENANT] =
        TEXT('t', "tenant", "TENANT", "only intents of this tenant (\"\": those without one); default: all"),
    [OPTION_FIND_SCOPE] = TEXT('s', "scope", "SCOPE", "only intents of this scope"),
    [OPTION_INTENT_STATE] = CHOICE("state", "STATE", "processing|succeeded|failed_retryable|failed_final|in_doubt",
                                   "only intents in this state"),
    [OPTION_RESULT] =
        TEXT('r', "result", "TYPE:ID", "the result of its outcome (result_type, result_id), for example order:17"),
    [OPTION_RESULT_ID] = TEXT(0, "result-id", "ID", "a result of any type"),
    [OPTION_EVENT] = TEXT('e', "event", "UUID", "the intent that emitted this event"),
    [OPTION_TRACE] =
        TEXT(0, "trace", "TRACE", "intents of this trace: its 32 hexadecimal digits, or a whole traceparent"),
    [OPTION_OWNER] = TEXT(0, "owner", "OWNER", "whose attempt holds it, or last held it"),
    [OPTION_SINCE] = TEXT(0, "since", "WHEN",
                          "first tried since then: a span before now (2h, 7d), or a time as PostgreSQL reads it "
                          "(2026-01-31 12:00+00, yesterday)"),
    [OPTION_UNTIL] = TEXT(0, "until", "WHEN", "first tried before then; as --since"),
    [OPTION_LONGER_THAN] =
        DURATION(0, "longer-than", 0, 3650 * DAYS_MS, "list a running attempt after this long; default: 10m"),
    [OPTION_RECOVER_IN_DOUBT] =
        FLAG(0, "in-doubt", "go through what is in doubt instead: the scope's verify function alone decides"),
    [OPTION_RECOVER_DRY_RUN] =
        FLAG(0, "dry-run", "decide, print what would change, and roll back; verify functions are still asked"),
    [OPTION_RATE] = NUMBER(0, "rate", 1, 100000000, "intents a second, on the average of a day"),
    [OPTION_PLAN_RETENTION] = DURATION(0, "retention", 1000, 3650 * DAYS_MS, "how long outcomes are kept; default: 7d"),
    [OPTION_PLAN_BODY] = BYTES(0, "body", 0, INT64_C(64) * 1024 * 1024,
                               "the stored answer's body (k, kB, M, MB allowed); default: none"),
    [OPTION_PLAN_HEADERS] = BYTES(0, "headers", 0, 65536, "the stored answer's headers; default: none"),
    [OPTION_PLAN_KEY] = TEXT(0, "key", "uuidv7|uuidv4|LENGTH",
                             "what the keys are: uuidv7 carries its day; others are random; default: uuidv7"),
    [OPTION_SCOPE_BYTES] = NUMBER(0, "scope-bytes", 1, 255, "length of a scope's name; default: 10"),
    [OPTION_TENANT_BYTES] = NUMBER(0, "tenant-bytes", 0, 255, "length of a tenant's name; default: 0"),
    [OPTION_EVENTS_PER_INTENT] = NUMBER(0, "events-per-intent", 0, 1000, "events that an intent emits; default: 0"),
    [OPTION_EVENT_BYTES] = BYTES(0, "event-bytes", 1, INT64_C(64) * 1024 * 1024, "an event's payload; default: 256"),
    [OPTION_LEASED] =
        FLAG(0, "leased", "intents are claimed and completed, in two transactions (the gateway, workers)"),
    [OPTION_SAME_TRANSACTION] =
        FLAG(0, "same-transaction", "intents start and finish in their effect's transaction; this is the default"),
    [OPTION_TRANSACTION_MAX] = DURATION(0, "transaction-max", 0, 365 * DAYS_MS,
                                        "how long a transaction may be open before doctor warns; default: 5m"),
    [OPTION_HELD_MAX] = NUMBER(0, "held-max", 0, INT64_C(2000000000),
                               "how many transactions a replication slot or a standby may hold back cleaning before "
                               "doctor warns; default: 5000000"),
    [OPTION_MAN] = TEXT(0, "man", "DIR", "write the man pages into this directory"),
    [OPTION_MARKDOWN] = FLAG(0, "markdown", "print docs/command.md"),
};
