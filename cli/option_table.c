/* SPDX-License-Identifier: PostgreSQL */
/*
 * option_table.c: every option of every command, as data, in the order of option_id. commands.c
 * lists which command takes which. A name and a letter mean the same in all of them
 * (tests/cli/test_options.py).
 */
#include <string.h>

#include "cli.h"

#define HOURS_MS (INT64_C(60) * 60 * 1000)
#define DAYS_MS (24 * HOURS_MS)

/* The kinds of options: letter (0: none), name, allowed values, help. */
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
    [OPTION_TENANT] = TEXT('t', "tenant", "TENANT", "the tenant; default: the empty one"),
    [OPTION_SCOPE] =
        TEXT('s', "scope", "SCOPE", "the scope, which is the kind of operation, for example nightly-invoices"),
    [OPTION_KEY] = TEXT('k', "key", "KEY",
                        "names the intent in its scope, for example 2026-01-31; 1 to 255 printable ASCII characters"),
    [OPTION_PRINT] = FLAG(0, "print", "print the SQL of a new installation, for review, and connect to nothing"),
    [OPTION_NO_NATIVE] = FLAG(0, "no-native", "leave pgonce_native, the hot functions in C, out of this database"),
    [OPTION_ACCEPT_NEWER] =
        FLAG(0, "accept-newer",
             "succeed, and change nothing, if the contract is newer than this command: for an installer that may go "
             "back to an older release, whose programs work with the newer contract"),
    [OPTION_JOIN] =
        TEXT(0, "join", "DSN",
             "make this database a node that shares the tenants with the node at DSN, which is divided "
             "(once.divide): with its salt, settings, policies and bindings, and no slot open. DSN names the "
             "owner of that node's contract"),
    [OPTION_DIR] = TEXT(0, "dir", "DIR", "the directory of the private PostgreSQL; default: .pgonce"),
    [OPTION_DETACH] = FLAG(0, "detach", "start, print, and leave the server running"),
    [OPTION_STOP] = FLAG(0, "stop", "stop the server; its data stays"),
    [OPTION_CHECK] = FLAG(0, "check", "print whether the server runs, and where (exit 3: it does not)"),
    [OPTION_NO_CONSOLE] = FLAG(0, "no-console", "without the web console"),
    [OPTION_LEASE] = DURATION(0, "lease", 100, 7 * DAYS_MS,
                              "how long the claim holds without a renewal; while CMD runs, it is renewed every third "
                              "of that time; default: the scope's policy (60s unless set)"),
    [OPTION_RETENTION] = DURATION(0, "retention", 1, 36500 * DAYS_MS,
                                  "how long outcomes are kept; default: the scope's policy (7d unless set)"),
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
    [OPTION_VERBOSE] = FLAG('v', "verbose", "report each batch"),
    [OPTION_ALL] =
        FLAG(0, "all", "instead of --key: all intents of the scope that are in doubt, of --tenant or of all tenants"),
    [OPTION_AS] = CHOICE("as", "STATE", "succeeded|failed_retryable|failed_final",
                         "succeeded: the effect happened; failed_retryable: it did not, the next attempt may run; "
                         "failed_final: it did not and must not"),
    [OPTION_REASON] = TEXT(0, "reason", "TEXT", "why; recorded with your role and the time; needed for each change"),
    [OPTION_STATUS] =
        NUMBER(0, "status", 0, 999, "the status of replays (an exit status, an HTTP status); 0 and default: none"),
    [OPTION_BODY] = TEXT(0, "body", "FILE", "the body of replays; \"-\" reads standard input"),
    [OPTION_HEADERS] = TEXT(0, "headers", "JSON",
                            "the HTTP headers of replays, an object: '{\"Content-Type\": \"application/json\"}'"),
    [OPTION_RESULT] =
        TEXT(0, "result", "TYPE:ID", "the effect's result (result_type, result_id), for example charge:17"),
    [OPTION_ERROR_CODE] =
        TEXT(0, "error-code", "CODE", "with --all: only those that were put in doubt with this error code"),
    [OPTION_UNTIL] = TEXT(0, "until", "WHEN", "only those that were first tried before then; in the form of --since"),
    [OPTION_DRY_RUN] = FLAG(0, "dry-run", "print what would change, and change nothing"),
    [OPTION_LISTEN] = TEXT('l', "listen", "ADDRESS", "ADDRESS:PORT or unix:/PATH; default: 127.0.0.1:8080"),
    [OPTION_UPSTREAM] =
        TEXT('u', "upstream", "URL", "the service: http://HOST:PORT, https://HOST:PORT or http://unix:/PATH"),
    [OPTION_REQUIRED] =
        FLAG(0, "required", "refuse a POST or PATCH without a key (400); without it such a request passes unprotected"),
    [OPTION_TENANT_FROM] = TEXT(0, "tenant-from", "VARIABLE",
                                "the owner of the keys: a variable of nginx that clients cannot choose (http_x_tenant: "
                                "a header that the proxy in front sets in every request), or none: all callers share "
                                "their keys; default: none, on addresses of this machine only"),
    [OPTION_ON_5XX] =
        CHOICE("on-5xx", "WHAT", "in_doubt|release|store",
               "what a 5xx of the service says about the effect. in_doubt: nothing; release: it was rolled "
               "back, so a retry runs (except after 502, 503, 504, which a proxy may have sent); store: it is the "
               "outcome; default: in_doubt"),
    [OPTION_USER] =
        TEXT(0, "user", "NAME", "the workers' user, if root starts it; default: www-data, else nginx, else nobody"),
    [OPTION_PRINT_CONFIG] =
        FLAG(0, "print-config", "print nginx's configuration, as a start for your own, and run nothing"),
    [OPTION_NGINX] = TEXT(0, "nginx", "FILE", "the program nginx; default: found in PATH, else in /usr/sbin"),
    [OPTION_MODULE] = TEXT(0, "module", "FILE",
                           "ngx_http_once_module.so; default: found next to this command, else among nginx's modules"),
    [OPTION_CONFIG] =
        TEXT('c', "config", "FILE",
             "the configuration file (pgonce.conf(5), docs/reference/configuration.md); default: pgonce.conf"),
    [OPTION_CHECK_CONFIG] =
        FLAG(0, "check-config", "read the whole file, print all its mistakes, and connect to nothing"),
    [OPTION_ONCE] = FLAG(0, "once", "do the present work, without pauses, and stop"),
    [OPTION_METRICS] = TEXT(0, "metrics", "ADDRESS:PORT",
                            "serve metrics there for Prometheus (/metrics), /health and /once/ready, for example "
                            "127.0.0.1:9187 or [::1]:9187; port 0: any free port, see the log"),
    [OPTION_INTERVAL] = DURATION('i', "interval", 1000, HOURS_MS,
                                 "how long to pause after a round that left nothing to do; default: 1m"),
    [OPTION_KEEPER_NAME] =
        TEXT(0, "name", "NAME", "the keeper's name in the log and in the database; default: the machine's name"),
    [OPTION_KIND] = CHOICE("kind", "KIND", "event|message", "only events (of relays), or only messages (of consumers)"),
    [OPTION_RELAY] = TEXT(0, "relay", "NAME", "only events of this relay; replay: the relay; default: the only one"),
    [OPTION_CONSUMER] = TEXT(0, "consumer", "NAME", "only messages of this consumer"),
    [OPTION_TOPIC] = TEXT(0, "topic", "TOPIC", "only events and messages of this topic"),
    [OPTION_SINCE] =
        TEXT(0, "since", "WHEN",
             "only those that were first tried from then on; a span before now (2h, 7d), or a time as PostgreSQL "
             "reads it (2026-01-31 12:00+00, yesterday)"),
    [OPTION_FORCE] =
        FLAG(0, "force", "replay: also events older than an inbox remembers, which would be applied again"),
    [OPTION_STATE] = CHOICE("state", "STATE", NULL, "only those in this state"),
    [OPTION_TYPE] = TEXT(0, "type", "TYPE",
                         "only events of this type, and messages with this type in a header (Pgonce-Event-Type, a "
                         "CloudEvent's type, AMQP's type)"),
    [OPTION_ERROR] =
        TEXT(0, "error", "TEXT", "only those whose error contains this text, ignoring case, or is this SQLSTATE"),
    [OPTION_YES] = FLAG(0, "yes", "retry, discard of many: do it; without it they are only counted"),
    [OPTION_TAKE] = NUMBER('n', "limit", 1, 1000000, "list at most N; default: 100"),
    [OPTION_RESULT_ID] = TEXT(0, "result-id", "ID", "a result of any type"),
    [OPTION_EVENT] = TEXT(0, "event", "UUID", "the intent that emitted this event"),
    [OPTION_TRACE] =
        TEXT(0, "trace", "TRACE", "intents of this trace: its 32 hexadecimal digits, or a complete traceparent"),
    [OPTION_OWNER] = TEXT(0, "owner", "OWNER", "the owner of its latest attempt"),
    [OPTION_LONGER_THAN] =
        DURATION(0, "longer-than", 0, 3650 * DAYS_MS, "list a running attempt after this long; default: 10m"),
    [OPTION_RECOVER_IN_DOUBT] =
        FLAG(0, "in-doubt", "go through the intents in doubt instead: only the scope's verify function decides"),
    [OPTION_RATE] = NUMBER(0, "rate", 1, 100000000, "intents a second, on the average of a day"),
    [OPTION_BODY_BYTES] = BYTES(0, "body-bytes", 0, INT64_C(64) * 1024 * 1024,
                                "the stored answer's body (k, kB, M, MB allowed); default: none"),
    [OPTION_HEADER_BYTES] = BYTES(0, "header-bytes", 0, 65536, "the stored answer's headers; default: none"),
    [OPTION_KEY_FORM] = TEXT(0, "key-form", "uuidv7|uuidv4|LENGTH",
                             "the form of the keys: uuidv7 contains its day; others are random; default: uuidv7"),
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
                               "how many transactions a replication slot or a standby may hold back vacuum before "
                               "doctor warns; default: 5000000"),
    [OPTION_NODES] = TEXT(0, "nodes", "FILE",
                          "ask the nodes that share the tenants, instead of one database: FILE has a connection string "
                          "per line; '-': standard input"),
    [OPTION_FROM] = TEXT(0, "from", "DSN", "the node that serves the slots: the owner of its contract"),
    [OPTION_TO] = TEXT(0, "to", "DSN", "the node that shall serve them: the owner of its contract"),
    [OPTION_VIA] = TEXT(0, "via", "DSN",
                        "how the server of --to reaches the node of --from; default: as this command does. The server "
                        "keeps it until the move has ended, with its password, where only superusers can read it"),
    [OPTION_WAIT] = DURATION(0, "wait", 1, 60 * 60 * INT64_C(1000),
                             "for how long a slot may be closed; if that is not enough, it opens again where it "
                             "was; default: 5s"),
    [OPTION_ALLOW_DECISIONS] = FLAG(0, "allow-decisions",
                                    "the console's pages have forms that decide, as far as its role may (once_admin); "
                                    "without it they only show"),
    [OPTION_USER_HEADER] = TEXT(0, "user-header", "NAME",
                                "the header in which a proxy names the person, who is recorded with each decision, for "
                                "example X-Forwarded-User; needs --trusted-address"),
    [OPTION_TRUSTED_ADDRESS] = TEXT(0, "trusted-address", "ADDRESSES",
                                    "the proxies that may send --user-header: addresses or ranges, by commas "
                                    "(127.0.0.1,10.0.0.0/8); from others the header is ignored"),
    [OPTION_PUBLIC_HOST] = TEXT(0, "public-host", "NAMES",
                                "the names, by commas, by which browsers reach the console behind a proxy; default: "
                                "only localhost, and the address of --listen"),
    [OPTION_PROMETHEUS] =
        TEXT(0, "prometheus", "URL",
             "a Prometheus server that scrapes pgonce keep, for example http://127.0.0.1:9090: the "
             "overview's charts show its figures; default: those of the time since the console began, "
             "from its memory"),
    [OPTION_PROMETHEUS_JOB] =
        TEXT(0, "prometheus-job", "JOB", "the job of --prometheus that scrapes this database; default: all jobs"),
    [OPTION_MAN] = TEXT(0, "man", "DIR", "write the man pages into this directory"),
    [OPTION_MARKDOWN] = FLAG(0, "markdown", "print docs/reference/command.md"),
    [OPTION_COMPLETION] =
        CHOICE("completion", "SHELL", "bash|zsh|fish", "print the completion of command lines for this shell"),
};

/* What an option says where the text above would not tell enough: it means the same there. */
static const struct {
	const char *commands;
	option_id id;
	const char *help;
} own_words[] = {
    {"find stuck in-doubt recover parked", OPTION_TENANT,
     "only this tenant (\"\": those without a tenant); default: all"},
    {"resolve", OPTION_TENANT, "the tenant; default: the empty one. With --all: only this tenant; default: all"},
    {"find stuck in-doubt recover", OPTION_SCOPE, "only this scope; default: all"},
    {"gateway", OPTION_SCOPE, "the scope, which is the kind of operation, for example payments; default: /"},
    {"gateway", OPTION_DIR,
     "the directory of the configuration and of nginx's temporary files; default: a new one, which is removed at the "
     "end (with --print-config: /run/pgonce-gateway)"},
    {"run", OPTION_VERBOSE, "report each decision (run, replayed)"},
    {"keep", OPTION_VERBOSE, "report each step"},
    {"resolve", OPTION_UNTIL, "with --all: only those that were put in doubt before then; in the form of --since"},
    {"parked", OPTION_UNTIL, "only those that were emitted or parked before then; in the form of --since"},
    {"parked", OPTION_SINCE,
     "replay: only those that were emitted from then on; a span before now (2h, 7d), or a time as PostgreSQL reads it "
     "(2026-01-31 12:00+00, yesterday)"},
    {"recover", OPTION_DRY_RUN, "print what would change, and change nothing; verify functions are asked all the same"},
    {"parked", OPTION_DRY_RUN, "print what would change, and change nothing; the default if many are chosen"},
    {"console", OPTION_LISTEN, "ADDRESS:PORT; default: 127.0.0.1:9480"},
    {"keep", OPTION_ONCE, "do the present work, without pauses, and stop; exit 1 if a step failed"},
    {"relay", OPTION_ONCE, "do the present work, without pauses, and stop; exit 1 if events stay parked"},
};

static bool names(const char *words, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
		size_t here = strcspn(at, " ");
		if (here == length && strncmp(at, word, length) == 0) {
			return true;
		}
		at += here;
	}
	return false;
}

const char *cli_option_help(const cli_command *command, option_id id)
{
	for (size_t i = 0; i < sizeof own_words / sizeof own_words[0]; i++) {
		if (own_words[i].id == id && names(own_words[i].commands, command->name)) {
			return own_words[i].help;
		}
	}
	return cli_options[id].help;
}

const char *cli_choices(const cli_command *command, option_id id)
{
	return id == OPTION_STATE ? command->states : cli_options[id].choices;
}
