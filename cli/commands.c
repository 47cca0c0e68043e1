/* SPDX-License-Identifier: PostgreSQL */
/*
 * commands.c: the command table: every command, option and exit code, as data. Parsing (options.c), help, man pages and
 * docs/command.md (help.c) are made from it and from nothing else.
 */
#include "cli.h"

#define HOURS_MS (INT64_C(60) * 60 * 1000)
#define DAYS_MS (24 * HOURS_MS)

const exit_code exit_codes[] = {
    {.code = CLI_OK, .shown = "0", .meaning = "done"},
    {.code = CLI_FAILED, .shown = "1", .meaning = "it failed: the message says why; a check of doctor failed"},
    {.code = CLI_USAGE, .shown = "2", .meaning = "the command line is wrong; nothing was done"},
    {.code = CLI_NO_SERVER, .shown = "3", .meaning = "no connection to PostgreSQL could be made"},
    {.code = CLI_CONTRACT, .shown = "4", .meaning = "the contract is missing, too old, too new, or not pgonce's"},
    {.code = CLI_NOT_FOUND, .shown = "5", .meaning = "there is no such intent"},
    {.code = CLI_REFUSED,
     .shown = "10",
     .meaning = "the contract refused the call (scope, key, tenant, size, decision)"},
    {.code = CLI_ACTIVE, .shown = "11", .meaning = "another attempt of this intent is running (P4029)"},
    {.code = CLI_IN_DOUBT, .shown = "12", .meaning = "the intent is in doubt (P4031): decide with pgonce resolve"},
    {.code = CLI_MISMATCH, .shown = "13", .meaning = "the key was first used with another command or input (P4002)"},
    {.code = CLI_EXPIRED,
     .shown = "14",
     .meaning = "the key is older than what is remembered (P4041); nothing was run"},
    {.code = CLI_LEASE_LOST,
     .shown = "15",
     .meaning = "the lease was lost; CMD was told (SIGTERM), its outcome not recorded"},
    {.code = CLI_OUTCOME_UNKNOWN,
     .shown = "16",
     .meaning = "CMD ended, but its outcome could not be recorded: the next attempt may run it again"},
    {.code = CLI_NOT_EXECUTABLE, .shown = "126", .meaning = "CMD cannot be executed; the claim was released"},
    {.code = CLI_COMMAND_NOT_FOUND, .shown = "127", .meaning = "CMD was not found; the claim was released"},
    {.code = CLI_SIGNAL_BASE, .shown = "128+n", .meaning = "CMD was killed by signal n"},
};
const int exit_code_count = (int)(sizeof exit_codes / sizeof exit_codes[0]);

const cli_option cli_options[OPTION_COUNT] = {
    [OPTION_DSN] =
        {.name = "dsn",
         .letter = 'd',
         .kind = KIND_TEXT,
         .argument = "CONNINFO",
         .help = "which database, as libpq says it (\"host=... dbname=...\" or postgresql://...); default: libpq's "
                 "environment variables (PGHOST, PGDATABASE, PGUSER, PGSERVICE ...)"},
    [OPTION_JSON] = {.name = "json",
                     .letter = 'j',
                     .kind = KIND_FLAG,
                     .help = "print JSON; messages on stderr become one JSON object per line"},
    [OPTION_HELP] = {.name = "help", .letter = 'h', .kind = KIND_FLAG, .help = "print this help"},
    [OPTION_TENANT] = {.name = "tenant",
                       .letter = 't',
                       .kind = KIND_TEXT,
                       .argument = "TENANT",
                       .help = "the tenant of the intent; default: the empty one"},
    [OPTION_SCOPE] = {.name = "scope",
                      .letter = 's',
                      .kind = KIND_TEXT,
                      .argument = "SCOPE",
                      .help = "the kind of operation, for example nightly-invoices"},
    [OPTION_KEY] = {.name = "key",
                    .letter = 'k',
                    .kind = KIND_TEXT,
                    .argument = "KEY",
                    .help =
                        "names the intent in its scope, for example 2026-01-31; 1 to 255 printable ASCII characters"},
    [OPTION_PRINT] = {.name = "print",
                      .kind = KIND_FLAG,
                      .help = "print the SQL of a new installation, for those who review it, and connect to nothing"},
    [OPTION_DIR] = {.name = "dir",
                    .kind = KIND_TEXT,
                    .argument = "DIR",
                    .help = "where the private PostgreSQL lives; default: .pgonce"},
    [OPTION_DETACH] = {.name = "detach", .kind = KIND_FLAG, .help = "start, print, and leave the server running"},
    [OPTION_STOP] = {.name = "stop", .kind = KIND_FLAG, .help = "stop the server; its data stays"},
    [OPTION_STATUS_OF_SERVER] = {.name = "status",
                                 .kind = KIND_FLAG,
                                 .help = "say whether the server runs, and where (3: it does not)"},
    [OPTION_LEASE] = {.name = "lease",
                      .kind = KIND_DURATION,
                      .argument = "DURATION",
                      .minimum = 100,
                      .maximum = 7 * DAYS_MS,
                      .help =
                          "how long the claim holds without a sign of life; it is renewed at a third of that while CMD "
                          "runs; default: the scope's policy (60s unless set)"},
    [OPTION_TTL] = {.name = "ttl",
                    .kind = KIND_DURATION,
                    .argument = "DURATION",
                    .minimum = 1,
                    .maximum = 36500 * DAYS_MS,
                    .help = "how long the outcome is remembered; default: the scope's policy (7d unless set)"},
    [OPTION_RETRY_FAILED] =
        {.name = "retry-failed",
         .kind = KIND_FLAG,
         .help = "if CMD fails, let the next call run it again; without it a failure is final and is replayed"},
    [OPTION_INPUT] = {.name = "input",
                      .kind = KIND_TEXT,
                      .argument = "FILE",
                      .help = "standard input of CMD (\"-\": that of pgonce), covered by the fingerprint; without it "
                              "CMD reads /dev/null"},
    [OPTION_OUTPUT_MAX] =
        {.name = "output-max",
         .kind = KIND_BYTES,
         .argument = "BYTES",
         .minimum = 64,
         .maximum = INT64_C(64) * 1024 * 1024,
         .help = "how much output is stored for replays (k, M allowed); more is passed on, but a replay gives only "
                 "a note of it; default: 1M, never above the scope's response_bytes_max"},
    [OPTION_VERBOSE] = {.name = "verbose",
                        .letter = 'v',
                        .kind = KIND_FLAG,
                        .help = "say on stderr what was decided (run, replayed), also when all is well"},
    [OPTION_AS] = {.name = "as",
                   .kind = KIND_CHOICE,
                   .argument = "STATE",
                   .choices = "succeeded|failed_retryable|failed_final",
                   .help = "succeeded: the effect happened; failed_retryable: it did not, the next attempt may run; "
                           "failed_final: it did "
                           "not and shall not"},
    [OPTION_REASON] = {.name = "reason",
                       .kind = KIND_TEXT,
                       .argument = "TEXT",
                       .help = "why; recorded with your role and the time"},
    [OPTION_STATUS] = {.name = "status",
                       .kind = KIND_NUMBER,
                       .argument = "N",
                       .minimum = 0,
                       .maximum = 999,
                       .help = "the status that replays answer (an exit status, an HTTP status); 0 and default: none"},
    [OPTION_BODY] = {.name = "body",
                     .kind = KIND_TEXT,
                     .argument = "FILE",
                     .help = "the body that replays answer; \"-\" reads standard input"},
    [OPTION_DRY_RUN] = {.name = "dry-run", .kind = KIND_FLAG, .help = "decide, say what would change, and roll back"},
    [OPTION_CLIENTS] = {.name = "clients",
                        .letter = 'c',
                        .kind = KIND_NUMBER,
                        .argument = "N",
                        .minimum = 1,
                        .maximum = 256,
                        .help = "connections at once; default: 4"},
    [OPTION_SECONDS] = {.name = "seconds",
                        .kind = KIND_NUMBER,
                        .argument = "N",
                        .minimum = 1,
                        .maximum = 3600,
                        .help = "how long each measurement lasts; default: 5"},
    [OPTION_LISTEN] = {.name = "listen",
                       .letter = 'l',
                       .kind = KIND_TEXT,
                       .argument = "ADDRESS",
                       .help = "ADDRESS:PORT or unix:/PATH; default: 127.0.0.1:8080"},
    [OPTION_UPSTREAM] = {.name = "upstream",
                         .letter = 'u',
                         .kind = KIND_TEXT,
                         .argument = "URL",
                         .help = "the service: http://HOST:PORT, https://HOST:PORT or http://unix:/PATH"},
    [OPTION_GATEWAY_SCOPE] = {.name = "scope",
                              .letter = 's',
                              .kind = KIND_TEXT,
                              .argument = "SCOPE",
                              .help = "the scope of its intents, for example payments; default: /"},
    [OPTION_REQUIRED] =
        {.name = "required",
         .letter = 'r',
         .kind = KIND_FLAG,
         .help = "refuse a POST or PATCH without a key (400); without it such a request passes unprotected"},
    [OPTION_TENANT_FROM] =
        {.name = "tenant",
         .letter = 't',
         .kind = KIND_TEXT,
         .argument = "VARIABLE",
         .help = "whose keys these are: a variable of nginx (http_x_tenant, remote_user, ssl_client_s_dn), "
                 "or none: all callers are one; default: none, on addresses of this machine only"},
    [OPTION_KEY_FROM] = {.name = "key-from",
                         .kind = KIND_TEXT,
                         .argument = "VARIABLE",
                         .help =
                             "where the key is: a variable of nginx, for example http_webhook_id; default: the header "
                             "Idempotency-Key"},
    [OPTION_STRICT] = {.name = "strict",
                       .kind = KIND_FLAG,
                       .help = "take a key only as the draft says, in double quotes; without it a bare key too"},
    [OPTION_GATEWAY_LEASE] = {.name = "lease",
                              .kind = KIND_DURATION,
                              .argument = "DURATION",
                              .minimum = 1000,
                              .maximum = 7 * DAYS_MS,
                              .help =
                                  "how long a claim holds should the gateway be lost; it is renewed while the service "
                                  "works; default: 30s"},
    [OPTION_RETENTION] = {.name = "retention",
                          .kind = KIND_DURATION,
                          .argument = "DURATION",
                          .minimum = 1000,
                          .maximum = 3650 * DAYS_MS,
                          .help = "how long an outcome is remembered; default: the scope's policy (7d unless set)"},
    [OPTION_WAIT] = {.name = "wait",
                     .kind = KIND_DURATION,
                     .argument = "DURATION",
                     .minimum = 0,
                     .maximum = 10 * 60 * 1000,
                     .help = "how long an attempt waits for another one of its intent that is running; default: not at "
                             "all (409)"},
    [OPTION_TIMEOUT] = {.name = "timeout",
                        .kind = KIND_DURATION,
                        .argument = "DURATION",
                        .minimum = 100,
                        .maximum = HOURS_MS,
                        .help = "how long the service may be silent; then its intent is in doubt (504); default: 60s"},
    [OPTION_IN_DOUBT] = {.name = "in-doubt",
                         .kind = KIND_CHOICE,
                         .argument = "WHAT",
                         .choices = "hold|retry",
                         .help = "hold: an intent in doubt stays so until it is decided (409); retry: the service is "
                                 "idempotent itself, so run it again; default: hold"},
    [OPTION_FAIL] = {.name = "fail",
                     .kind = KIND_CHOICE,
                     .argument = "HOW",
                     .choices = "closed|open",
                     .help = "without the database, closed: refuse (503); open: pass unprotected; default: closed"},
    [OPTION_BODY_MAX] = {.name = "body-max",
                         .kind = KIND_BYTES,
                         .argument = "BYTES",
                         .minimum = 1,
                         .maximum = INT64_C(1024) * 1024 * 1024,
                         .help = "the largest request body (k, M allowed); default: 1M"},
    [OPTION_RESPONSE_MAX] = {.name = "response-max",
                             .kind = KIND_BYTES,
                             .argument = "BYTES",
                             .minimum = 1,
                             .maximum = INT64_C(512) * 1024 * 1024,
                             .help =
                                 "the largest answer that is kept; a larger one is passed on and cannot be replayed; "
                                 "default: 1M"},
    [OPTION_PREPARE] = {.name = "prepare",
                        .kind = KIND_FLAG,
                        .help =
                            "use prepared statements, which cost PostgreSQL far less; not behind a pooler that moves a "
                            "session between connections"},
    [OPTION_WORKERS] = {.name = "workers",
                        .kind = KIND_NUMBER,
                        .argument = "N",
                        .minimum = 1,
                        .maximum = 64,
                        .help = "nginx's worker processes; default: 1, whose batches are the fullest"},
    [OPTION_USER] = {.name = "user",
                     .kind = KIND_TEXT,
                     .argument = "NAME",
                     .help = "started by root: whom the workers run as; default: www-data, else nginx, else nobody"},
    [OPTION_PRINT_CONFIG] = {.name = "print-config",
                             .kind = KIND_FLAG,
                             .help = "print nginx's configuration, to start your own from, and run nothing"},
    [OPTION_NGINX] = {.name = "nginx",
                      .kind = KIND_TEXT,
                      .argument = "FILE",
                      .help = "the program nginx; default: found in PATH, else in /usr/sbin"},
    [OPTION_MODULE] = {.name = "module",
                       .kind = KIND_TEXT,
                       .argument = "FILE",
                       .help =
                           "ngx_http_once_module.so; default: found beside this command, else among nginx's modules"},
    [OPTION_GATEWAY_DIR] = {.name = "dir",
                            .kind = KIND_TEXT,
                            .argument = "DIR",
                            .help = "where the configuration and nginx's temporary files go; default: a new directory, "
                                    "which is removed at the end"},
    [OPTION_CONFIG] = {.name = "config",
                       .letter = 'c',
                       .kind = KIND_TEXT,
                       .argument = "FILE",
                       .help = "the configuration file (docs/configuration.md); default: pgonce.conf"},
    [OPTION_CHECK_CONFIG] = {.name = "check-config",
                             .kind = KIND_FLAG,
                             .help = "read the whole file, say what is wrong, and connect to nothing"},
    [OPTION_ONCE] = {.name = "once", .kind = KIND_FLAG, .help = "stop when there is nothing left to do, and exit 0"},
    [OPTION_LOG_BATCHES] = {.name = "verbose", .letter = 'v', .kind = KIND_FLAG, .help = "log each batch"},
    [OPTION_RELAY] = {.name = "relay",
                      .letter = 'r',
                      .kind = KIND_TEXT,
                      .argument = "NAME",
                      .help = "the relay; default: all, or the only one"},
    [OPTION_CONSUMER] = {.name = "consumer",
                         .kind = KIND_TEXT,
                         .argument = "NAME",
                         .help = "the consumer; default: all, or the only one that has the message"},
    [OPTION_TOPIC] = {.name = "topic", .kind = KIND_TEXT, .argument = "TOPIC", .help = "only events of this topic"},
    [OPTION_FROM] = {.name = "from",
                     .kind = KIND_TEXT,
                     .argument = "TIME",
                     .help = "replay: from when on, as PostgreSQL reads a timestamp (2026-01-31 12:00+00, yesterday)"},
    [OPTION_STATE] = {.name = "state",
                      .kind = KIND_CHOICE,
                      .argument = "STATE",
                      .choices = "pending|waiting|retrying|dead",
                      .help = "only what is in this state"},
    [OPTION_TAKE] = {.name = "limit",
                     .letter = 'n',
                     .kind = KIND_NUMBER,
                     .argument = "N",
                     .minimum = 1,
                     .maximum = 1000000,
                     .help = "list at most N; default: 100"},
    [OPTION_PARKED_REASON] = {.name = "reason",
                              .kind = KIND_TEXT,
                              .argument = "TEXT",
                              .help = "why; recorded with your role and the time; discard, retry and replay need it"},
    [OPTION_PARKED_TENANT] = {.name = "tenant",
                              .letter = 't',
                              .kind = KIND_TEXT,
                              .argument = "TENANT",
                              .help = "the tenant of the message; default: the only one that has the message"},
    [OPTION_MAN] = {.name = "man",
                    .kind = KIND_TEXT,
                    .argument = "DIR",
                    .help = "write the man pages into this directory"},
    [OPTION_MARKDOWN] = {.name = "markdown", .kind = KIND_FLAG, .help = "print docs/command.md"},
};

#define ABOUT(name, ...) static const char *const name[] = {__VA_ARGS__, NULL}
#define USES(name, ...) static const option_use name[] = {__VA_ARGS__}
#define EXITS(name, ...) static const int name[] = {__VA_ARGS__, 0}
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

ABOUT(init_about,
      "Installs the contract, schema \"once\", in the database, or upgrades it: in one transaction, under a lock. "
      "Running it again "
      "changes nothing; two at once both succeed; one that fails leaves nothing behind. Versions and checksums are "
      "kept in "
      "once.migration.",
      "It refuses a database whose contract is newer than this command, a schema \"once\" that is not pgonce's, a "
      "migration "
      "that was changed after it ran, and a contract that was made by CREATE EXTENSION (use ALTER EXTENSION pgonce "
      "UPDATE).",
      "  pgonce init --dsn 'host=db dbname=app'", "  pgonce init --print > review.sql");
USES(init_uses, {OPTION_PRINT, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(init_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(dev_about,
      "Starts a private PostgreSQL in DIR with the contract in database \"app\": a unix socket in DIR/run that only "
      "its owner (and "
      "root) can reach, no port, no password. Data is kept between runs. It stays in the foreground and stops "
      "everything on "
      "Ctrl-C; what was left running is used as it is.",
      "Where nginx and its module are there, a gateway listens on a free port of 127.0.0.1 (8080 or above), before a "
      "payments service that knows nothing of retries and one that uses the hand-off; the lines to try are printed.",
      "Server programs are taken from PGONCE_PG_BINDIR, else from pg_config --bindir, else the newest "
      "/usr/lib/postgresql/*/bin. "
      "PostgreSQL does not run as root: started by root, it runs as user postgres, else nobody; where that user cannot "
      "reach DIR, the "
      "data lives in /var/tmp, with a link from DIR.",
      "  pgonce dev", "  pgonce dev --detach", "  pgonce dev --stop");
USES(dev_uses, {OPTION_DIR, false}, {OPTION_DETACH, false}, {OPTION_STOP, false}, {OPTION_STATUS_OF_SERVER, false},
     {OPTION_JSON, false});
EXITS(dev_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(run_about,
      "Runs CMD to success at most once for an intent, however often it is called, from however many machines. The "
      "first call "
      "claims the intent, runs CMD and stores its output and exit status; later calls replay them, byte for byte, to "
      "the same "
      "streams, without running anything. Standard output and error are passed on live and replayed in the order in "
      "which they were read.",
      "A running attempt is reported (11), not waited for. The lease is renewed while CMD runs. If pgonce is killed, "
      "CMD is told "
      "(SIGTERM) where the system can do that, and the next call takes the intent over once the lease has passed. If "
      "the lease is "
      "lost, CMD gets SIGTERM and its outcome is not recorded (15). If the database cannot be reached when CMD ends, "
      "pgonce keeps "
      "trying until three leases have passed since the last renewal, then says that the outcome is unknown (16).",
      "A CMD that fails (exit status other than 0, or a signal) has failed for good, and later calls replay the "
      "failure: nobody but "
      "CMD knows whether its effect half happened. Give --retry-failed where CMD may safely run again after a failure: "
      "then the "
      "next call runs it anew.",
      "The fingerprint covers CMD and its arguments, each length-prefixed, and the content of --input; the environment "
      "and "
      "the working directory are not part of it. The same key with another fingerprint is a mismatch (13).",
      "HUP, INT, QUIT, TERM, USR1 and USR2 are passed on to CMD. CMD finds PGONCE_TENANT, PGONCE_SCOPE, PGONCE_KEY, "
      "PGONCE_FENCE and "
      "PGONCE_ATTEMPT in its environment. Output that its children write after CMD has ended is waited for one second. "
      "The exit "
      "status is CMD's own where it ran or is replayed; the codes below are pgonce's, and come with a line on stderr "
      "that starts "
      "with \"pgonce run:\".",
      "Outcomes are stored as content type application/vnd.pgonce.run.v1: chunks of {1 byte kind, 4 bytes length, "
      "big-endian, "
      "data}. Kinds: 'o' and 'e', bytes of standard output and error, in order; 't', output too large, not stored: two "
      "8-byte counts, of output and error; 'x', always last: 1 byte, the exit status.",
      "  pgonce run --scope invoices --key 2026-01 -- ./send-invoices 2026-01",
      "  pgonce run --scope import --key file-17 --input file-17.csv --lease 5m -- ./import");
USES(run_uses, {OPTION_SCOPE, true}, {OPTION_KEY, true}, {OPTION_TENANT, false}, {OPTION_LEASE, false},
     {OPTION_TTL, false}, {OPTION_RETRY_FAILED, false}, {OPTION_INPUT, false}, {OPTION_OUTPUT_MAX, false},
     {OPTION_VERBOSE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(run_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED, CLI_ACTIVE, CLI_IN_DOUBT, CLI_MISMATCH, CLI_EXPIRED,
      CLI_LEASE_LOST, CLI_OUTCOME_UNKNOWN, CLI_NOT_EXECUTABLE, CLI_COMMAND_NOT_FOUND, CLI_SIGNAL_BASE);

ABOUT(show_about,
      "Tells the story of one intent: its state, attempts, owner and lease, its outcome (a body that is text is shown "
      "as text, "
      "another as the beginning of a hex dump), what operators decided about it, and the events that it emitted.",
      "  pgonce show --scope invoices --key 2026-01");
USES(show_uses, {OPTION_SCOPE, true}, {OPTION_KEY, true}, {OPTION_TENANT, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(show_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED);

ABOUT(resolve_about,
      "Decides about an intent that is in doubt, stale (its lease passed) or failed retryably, once you have found out "
      "whether "
      "its effect happened. Raises the fence, so that the old attempt can report no more. Recorded with who, when and "
      "why.",
      "  pgonce resolve --scope payments --key p-17 --as succeeded --reason 'found at the provider' --status 201 "
      "--body answer.json",
      "  pgonce resolve --scope payments --key p-18 --as failed_retryable --reason 'the provider has no trace of it'");
USES(resolve_uses, {OPTION_SCOPE, true}, {OPTION_KEY, true}, {OPTION_TENANT, false}, {OPTION_AS, true},
     {OPTION_REASON, true}, {OPTION_STATUS, false}, {OPTION_BODY, false}, {OPTION_DRY_RUN, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(resolve_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED);

ABOUT(doctor_about, "Looks at the installation and says, check by check, what is well, what to mind, and what to do: "
                    "the server's version, the "
                    "contract (installed, current, unchanged, of one owner, granted), partitions, settings that do not "
                    "fit, the connection "
                    "(clock, pooling), vacuum. Changes nothing. Run it as the owner of the contract: other roles may "
                    "not see everything.");
USES(doctor_uses, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(doctor_exits, CLI_NO_SERVER);

ABOUT(
    version_about,
    "Prints the versions of the command, of the contract that it speaks, and of libpq; and, where a database is named "
    "(--dsn, or PGHOST and its like), those of the server and of the contract in it.");
USES(version_uses, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(version_exits, CLI_NO_SERVER);

ABOUT(bench_about, "Measures what the contract costs in this database, from this machine: an order transaction (two "
                   "inserts) bare and with begin and "
                   "finish, both pipelined; replays against \"select 1\"; claim and complete one by one and in batches "
                   "of 64. It works in a "
                   "schema of its own, which it drops afterwards, and removes its intents where the role may.");
USES(bench_uses, {OPTION_CLIENTS, false}, {OPTION_SECONDS, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(bench_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(gateway_about,
      "Makes a service that knows nothing of idempotency safe to retry: runs nginx with pgonce's module before it, in "
      "the "
      "foreground. A POST or PATCH with a key runs once; every retry gets the stored answer, byte for byte, marked "
      "Idempotency-Replayed: true. docs/gateway.md has the rules. For TLS, more services or limits, take "
      "--print-config as the "
      "beginning of an nginx configuration of your own.",
      "The contract must be in the database (pgonce init). The access log, with a verdict for each request, goes to "
      "standard "
      "output, nginx's messages to standard error. /once/status, for this machine only, counts verdicts, batches and "
      "latencies.",
      "INT, TERM and QUIT finish what is at work and stop, a second one stops at once; HUP reads the configuration "
      "again.",
      "  pgonce gateway --listen 127.0.0.1:8080 --upstream http://127.0.0.1:3000 --scope payments --required",
      "  pgonce gateway --listen '*:8080' --upstream http://unix:/run/app.sock --tenant http_x_tenant --wait 10s");
USES(gateway_uses, {OPTION_LISTEN, false}, {OPTION_UPSTREAM, true}, {OPTION_GATEWAY_SCOPE, false},
     {OPTION_REQUIRED, false}, {OPTION_TENANT_FROM, false}, {OPTION_KEY_FROM, false}, {OPTION_STRICT, false},
     {OPTION_WAIT, false}, {OPTION_GATEWAY_LEASE, false}, {OPTION_RETENTION, false}, {OPTION_TIMEOUT, false},
     {OPTION_IN_DOUBT, false}, {OPTION_FAIL, false}, {OPTION_BODY_MAX, false}, {OPTION_RESPONSE_MAX, false},
     {OPTION_PREPARE, false}, {OPTION_WORKERS, false}, {OPTION_USER, false}, {OPTION_PRINT_CONFIG, false},
     {OPTION_NGINX, false}, {OPTION_MODULE, false}, {OPTION_GATEWAY_DIR, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(gateway_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(relay_about,
      "Publishes what once.emit has written: each [relay NAME] section of the configuration file reads the outbox and "
      "delivers to "
      "its sink: Kafka, RabbitMQ, NATS JetStream, webhooks, or standard output. Every event whose effect is committed "
      "is delivered "
      "at least once, events of one aggregate in order. One process is active for each relay; others stand by and take "
      "over within "
      "two seconds. Progress is stored when the sink itself has acknowledged.",
      "An event that the sink refuses blocks its own aggregate only: it is tried again with backoff, and after the "
      "last attempt it is dead: "
      "visible, and retried or discarded with pgonce outbox. A sink that is away is waited for.",
      "INT and TERM finish what is in flight and stop, a second one stops at once.",
      "  pgonce relay --config pgonce.conf", "  pgonce relay --config pgonce.conf --check-config");
USES(relay_uses, {OPTION_CONFIG, false}, {OPTION_CHECK_CONFIG, false}, {OPTION_ONCE, false},
     {OPTION_LOG_BATCHES, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(relay_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED);

ABOUT(outbox_about,
      "Shows and mends what the relays have not delivered. list: what waits, by relay and topic with its age, then the "
      "events that are "
      "parked: waiting behind another of their aggregate, retrying, or dead, with their error. show EVENT: one event, "
      "whole. "
      "retry EVENT: try it again now. discard EVENT: give it up, which frees the rest of its aggregate. replay --from "
      "TIME: deliver "
      "again what was emitted since then. What is changed is recorded with who, when and why.",
      "  pgonce outbox list",
      "  pgonce outbox retry 0193b2a0-5f3e-8c11-9d2a-3f1b6a0c7e55 --reason 'the endpoint is mended'",
      "  pgonce outbox replay --relay orders --from '2026-01-31 12:00+00' --reason 'the broker lost its disk'");
USES(outbox_uses, {OPTION_RELAY, false}, {OPTION_TOPIC, false}, {OPTION_STATE, false}, {OPTION_FROM, false},
     {OPTION_PARKED_REASON, false}, {OPTION_TAKE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(outbox_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED);

ABOUT(consume_about,
      "Applies messages exactly once: each [consume NAME] section of the configuration file takes messages from Kafka, "
      "RabbitMQ or NATS "
      "JetStream and calls a SQL function with each that is new, in the transaction that remembers it; only then is it "
      "acknowledged. "
      "Redeliveries, duplicates and rebalances change nothing. Where the work is outside the database, an HTTP "
      "endpoint is called under a "
      "lease instead, with the intent's key.",
      "A message whose handler fails is tried again with backoff, and after the last attempt it is dead: pgonce dead "
      "shows it with its error. "
      "Later messages of its key wait behind it; all others go on.",
      "INT and TERM finish the batch at work and stop, a second one stops at once.",
      "  pgonce consume --config pgonce.conf", "  pgonce consume --config pgonce.conf --check-config");
USES(consume_uses, {OPTION_CONFIG, false}, {OPTION_CHECK_CONFIG, false}, {OPTION_ONCE, false},
     {OPTION_LOG_BATCHES, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(consume_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED);

ABOUT(
    dead_about,
    "Shows and mends the messages that the consumers could not apply. list: those that are parked: waiting behind "
    "another of their key, "
    "retrying, or dead, with their error. show ID: one message, whole. retry ID: try it again now. discard ID: give it "
    "up, which frees "
    "the rest of its key; a redelivery of it is a duplicate then. What is changed is recorded with who, when and why.",
    "  pgonce dead list", "  pgonce dead retry order-17 --consumer stock --reason 'the handler is mended'");
USES(dead_uses, {OPTION_CONSUMER, false}, {OPTION_PARKED_TENANT, false}, {OPTION_STATE, false},
     {OPTION_PARKED_REASON, false}, {OPTION_TAKE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(dead_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED);

ABOUT(help_about, "Prints the list of commands, or the help of one.", "  pgonce help run",
      "  pgonce help --man /usr/local/share/man/man1");
USES(help_uses, {OPTION_MAN, false}, {OPTION_MARKDOWN, false});
EXITS(help_exits, 0);

const cli_command cli_commands[] = {
    {.name = "init",
     .summary = "install or upgrade the contract in a database",
     .usage = "[--print] [--dsn CONNINFO]",
     .about = init_about,
     .uses = init_uses,
     .use_count = COUNT(init_uses),
     .operands = OPERANDS_NONE,
     .exits = init_exits,
     .run = cli_init},
    {.name = "dev",
     .summary = "a private PostgreSQL with the contract, and a gateway, to try things",
     .usage = "[--dir DIR] [--detach | --stop | --status]",
     .about = dev_about,
     .uses = dev_uses,
     .use_count = COUNT(dev_uses),
     .operands = OPERANDS_NONE,
     .exits = dev_exits,
     .run = cli_dev},
    {.name = "run",
     .summary = "run a command to success at most once, and replay its outcome",
     .usage = "--scope S --key K [OPTIONS] -- CMD [ARG...]",
     .about = run_about,
     .uses = run_uses,
     .use_count = COUNT(run_uses),
     .operands = OPERANDS_COMMAND,
     .exits = run_exits,
     .run = cli_run},
    {.name = "gateway",
     .summary = "nginx with the module before a service: its POSTs run once",
     .usage = "--upstream URL [--listen ADDRESS] [OPTIONS]",
     .about = gateway_about,
     .uses = gateway_uses,
     .use_count = COUNT(gateway_uses),
     .operands = OPERANDS_NONE,
     .exits = gateway_exits,
     .run = cli_gateway},
    {.name = "relay",
     .summary = "publish the outbox to Kafka, RabbitMQ, NATS or webhooks",
     .usage = "[NAME...] [--config FILE] [OPTIONS]",
     .about = relay_about,
     .uses = relay_uses,
     .use_count = COUNT(relay_uses),
     .operands = OPERANDS_WORDS,
     .exits = relay_exits,
     .run = cli_relay},
    {.name = "outbox",
     .summary = "events that were not delivered: list, show, retry, discard, replay",
     .usage = "list | show EVENT | retry EVENT | discard EVENT | replay --from TIME [OPTIONS]",
     .about = outbox_about,
     .uses = outbox_uses,
     .use_count = COUNT(outbox_uses),
     .operands = OPERANDS_WORDS,
     .exits = outbox_exits,
     .run = cli_outbox},
    {.name = "consume",
     .summary = "apply messages from Kafka, RabbitMQ or NATS exactly once",
     .usage = "[NAME...] [--config FILE] [OPTIONS]",
     .about = consume_about,
     .uses = consume_uses,
     .use_count = COUNT(consume_uses),
     .operands = OPERANDS_WORDS,
     .exits = consume_exits,
     .run = cli_consume},
    {.name = "dead",
     .summary = "messages that were not applied: list, show, retry, discard",
     .usage = "list | show ID | retry ID | discard ID [OPTIONS]",
     .about = dead_about,
     .uses = dead_uses,
     .use_count = COUNT(dead_uses),
     .operands = OPERANDS_WORDS,
     .exits = dead_exits,
     .run = cli_dead},
    {.name = "show",
     .summary = "the story of one intent",
     .usage = "--scope S --key K [--tenant T]",
     .about = show_about,
     .uses = show_uses,
     .use_count = COUNT(show_uses),
     .operands = OPERANDS_NONE,
     .exits = show_exits,
     .run = cli_show},
    {.name = "resolve",
     .summary = "decide about an intent that is stale or in doubt",
     .usage = "--scope S --key K --as STATE --reason TEXT [OPTIONS]",
     .about = resolve_about,
     .uses = resolve_uses,
     .use_count = COUNT(resolve_uses),
     .operands = OPERANDS_NONE,
     .exits = resolve_exits,
     .run = cli_resolve},
    {.name = "doctor",
     .summary = "check the installation, and say what to do",
     .usage = "[--dsn CONNINFO]",
     .about = doctor_about,
     .uses = doctor_uses,
     .use_count = COUNT(doctor_uses),
     .operands = OPERANDS_NONE,
     .exits = doctor_exits,
     .run = cli_doctor},
    {.name = "bench",
     .summary = "measure what the contract costs in a database",
     .usage = "[--clients N] [--seconds N]",
     .about = bench_about,
     .uses = bench_uses,
     .use_count = COUNT(bench_uses),
     .operands = OPERANDS_NONE,
     .exits = bench_exits,
     .run = cli_bench},
    {.name = "version",
     .summary = "print versions",
     .usage = "[--dsn CONNINFO]",
     .about = version_about,
     .uses = version_uses,
     .use_count = COUNT(version_uses),
     .operands = OPERANDS_NONE,
     .exits = version_exits,
     .run = cli_version},
    {.name = "help",
     .summary = "print help, man pages, or the reference",
     .usage = "[COMMAND] [--man DIR | --markdown [configuration]]",
     .about = help_about,
     .uses = help_uses,
     .use_count = COUNT(help_uses),
     .operands = OPERANDS_ONE_OPTIONAL,
     .exits = help_exits,
     .run = cli_help},
};
const int cli_command_count = COUNT(cli_commands);
