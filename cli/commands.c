/* SPDX-License-Identifier: PostgreSQL */
/*
 * commands.c: the command table: every command and exit code, as data. With the options (option_table.c) it is all that parsing
 * (options.c), help, man pages and docs/command.md (help.c) are made from.
 */
#include "cli.h"

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
    {.code = CLI_ACTIVE,
     .shown = "11",
     .meaning = "another attempt of this intent is running (P4029); another keeper is at work"},
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

ABOUT(
    dev_about,
    "Starts a private PostgreSQL in DIR with the contract in database \"app\": a unix socket in DIR/run that only "
    "its owner (and "
    "root) can reach, no port, no password. Data is kept between runs. It stays in the foreground and stops "
    "everything on "
    "Ctrl-C; what was left running is used as it is.",
    "Where nginx and its module are there, a gateway listens on a free port of 127.0.0.1 (8080 or above), before a "
    "payments service that knows nothing of retries and one that uses the hand-off; the lines to try are printed.",
    "Server programs are taken from PGONCE_PG_BINDIR, else from pg_config --bindir, else the newest where packages put "
    "them (/usr/lib/postgresql/*/bin on Debian); PATH need not name them. "
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
      "CMD and what it has started are told (SIGTERM), and killed ten seconds later; nobody knows how far they came. "
      "So the next "
      "call finds the intent in doubt once the lease has passed (12), says which processes of it still run on this "
      "host, and "
      "runs nothing until pgonce resolve has decided; --on-stale takeover runs CMD again. If "
      "the lease is "
      "lost, CMD gets SIGTERM and its outcome is not recorded (15). If the database cannot be reached when CMD ends, "
      "pgonce keeps "
      "trying until three leases have passed since the last renewal, then says that the outcome is unknown (16): the "
      "next call "
      "finds it in doubt, too.",
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
      "PGONCE_ATTEMPT in its environment, the trace of this call as TRACEPARENT, and that of the intent's first "
      "attempt, by which pgonce find finds "
      "it, as PGONCE_TRACEPARENT. Output that its children write after CMD has ended is waited for one second. "
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
     {OPTION_TTL, false}, {OPTION_RETRY_FAILED, false}, {OPTION_ON_STALE, false}, {OPTION_INPUT, false},
     {OPTION_OUTPUT_MAX, false}, {OPTION_TRACEPARENT, false}, {OPTION_VERBOSE, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(run_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED, CLI_ACTIVE, CLI_IN_DOUBT, CLI_MISMATCH, CLI_EXPIRED,
      CLI_LEASE_LOST, CLI_OUTCOME_UNKNOWN, CLI_NOT_EXECUTABLE, CLI_COMMAND_NOT_FOUND, CLI_SIGNAL_BASE);

ABOUT(show_about,
      "Tells the story of one intent: its state, attempts, owner and lease, its outcome (a body that is text is shown "
      "as text, "
      "another as the beginning of a hex dump), and a timeline: when it was created, each takeover, what operators, "
      "verify functions and the keeper decided (who, why), its outcome, and its events with what each relay has done "
      "with them. Times are the database's. --json prints the whole document of once.story.",
      "  pgonce show --scope invoices --key 2026-01");
USES(show_uses, {OPTION_SCOPE, true}, {OPTION_KEY, true}, {OPTION_TENANT, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(show_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED);

ABOUT(find_about,
      ("Finds intents by their marks, newest first: what they made (--result), the event they emitted, their trace, "
       "who ran them, where and when. All marks that are given must fit. A customer says \"I was charged twice\": ask "
       "for the charge, the order or the customer's trace, and see how many intents there were. Two intents: the "
       "caller used two keys. One: pgonce show tells what each attempt did."),
      "  pgonce find --result charge:ch_17", "  pgonce find --scope payments --tenant acme --since 2h",
      "  pgonce find --trace 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
USES(find_uses, {OPTION_RESULT, false}, {OPTION_RESULT_ID, false}, {OPTION_EVENT, false}, {OPTION_TRACE, false},
     {OPTION_FIND_TENANT, false}, {OPTION_FIND_SCOPE, false}, {OPTION_INTENT_STATE, false}, {OPTION_OWNER, false},
     {OPTION_SINCE, false}, {OPTION_UNTIL, false}, {OPTION_TAKE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(find_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED);

ABOUT(stuck_about,
      "Lists what does not come to an end: stale intents (their lease passed without a word), attempts that run "
      "unusually long, intents that were retried often, and counts events and messages that are parked. With each "
      "comes what to type next. Changes nothing.",
      "  pgonce stuck", "  pgonce stuck --scope payments --longer-than 1m");
USES(stuck_uses, {OPTION_FIND_SCOPE, false}, {OPTION_FIND_TENANT, false}, {OPTION_LONGER_THAN, false},
     {OPTION_TAKE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(stuck_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(in_doubt_about,
      "Lists the intents of which nobody knows whether their effect happened, oldest first, with what to type next. "
      "No attempt of them runs until it is decided. Changes nothing.",
      "  pgonce in-doubt");
USES(in_doubt_uses, {OPTION_FIND_SCOPE, false}, {OPTION_FIND_TENANT, false}, {OPTION_TAKE, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(in_doubt_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(resolve_about,
      "Decides about an intent that is in doubt, stale (its lease passed) or failed retryably, once you have found out "
      "whether "
      "its effect happened. Raises the fence, so that the old attempt can report no more. Recorded with who, when and "
      "why.",
      "It does not guess: without --as it tells the story, asks the scope's verify function where there is one, says "
      "which decision would fit, and changes nothing (2). With --dry-run it shows what is before and after, and what "
      "would follow. At a terminal it asks for a reason that is not given.",
      "After an outage: --all decides about all intents of the scope that are in doubt, narrowed by --tenant, --error, "
      "--since and --until; with --dry-run it counts them and changes nothing. A short transaction for each few; one "
      "that somebody else decides about, or that is just reported, is skipped and counted, and the exit code is 12. "
      "Interrupted anywhere, or with some skipped, start it again.",
      "  pgonce resolve --scope payments --key p-17 --as succeeded --reason 'found at the provider' --status 201 \\\n"
      "      --body answer.json --headers '{\"Content-Type\": \"application/json\"}' --result charge:17",
      "  pgonce resolve --scope payments --key p-18 --as failed_retryable --reason 'the provider has no trace of it'",
      "  pgonce resolve --scope payments --all --since '2026-01-31 12:00+00' --until '2026-01-31 12:20+00' \\\n"
      "      --as failed_retryable --reason 'the provider was down and took nothing' --dry-run");
USES(resolve_uses, {OPTION_SCOPE, true}, {OPTION_KEY, false}, {OPTION_ALL, false}, {OPTION_TENANT, false},
     {OPTION_ERROR, false}, {OPTION_SINCE, false}, {OPTION_DOUBT_UNTIL, false}, {OPTION_AS, false},
     {OPTION_REASON, false}, {OPTION_STATUS, false}, {OPTION_BODY, false}, {OPTION_HEADERS, false},
     {OPTION_RESOLVED_RESULT, false}, {OPTION_DRY_RUN, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(resolve_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED, CLI_IN_DOUBT);

ABOUT(
    recover_about,
    ("Goes through the stale intents, those whose attempt let its lease pass, and judges each by its scope's policy "
     "and verify function: it succeeded, it is safe to retry, it is in doubt, or it is given up because its attempts "
     "are used up. Prints each decision with its reason, and counts. A short transaction for each few; it may be "
     "interrupted anywhere and run again. pgonce keep does the same all the time."),
    ("With --in-doubt it goes through what is in doubt instead, and asks the scope's verify function: what happened "
     "has "
     "succeeded, with the answer that it gives; what did not may run again; of what it does not know, nothing changes. "
     "The keeper leaves that to you: a verify function that does not know would be asked for ever."),
    "Exits with 12 where it left an intent in doubt: pgonce in-doubt lists what to decide.",
    "  pgonce recover --once --dry-run", "  pgonce recover --once --scope payments",
    "  pgonce recover --once --in-doubt");
USES(recover_uses, {OPTION_RECOVER_ONCE, false}, {OPTION_RECOVER_IN_DOUBT, false}, {OPTION_FIND_SCOPE, false},
     {OPTION_FIND_TENANT, false}, {OPTION_RECOVER_DRY_RUN, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(recover_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED, CLI_IN_DOUBT);

ABOUT(top_about,
      "Shows what the contract does, live: for each scope how many attempts are new, replayed, refused because another "
      "is running, failed, or a mismatch, how many intents run, are stale and in doubt; the attempts that run longest, "
      "one of them with its story; what relays have still to deliver; the largest partitions; when the keeper last "
      "succeeded. Reads only. A connection that is lost is made anew.",
      "Keys: up and down choose an intent, Enter opens its story, b goes back, s sorts, t shows totals, f filters by "
      "scope, p pauses, r asks now, h helps, q quits. It works at 80x24 and without colour (NO_COLOR, TERM=dumb).",
      "  pgonce top", "  pgonce top --interval 500ms", "  pgonce top --once --json");
USES(top_uses, {OPTION_REFRESH, false}, {OPTION_SNAPSHOT, false}, {OPTION_NO_COLOR, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(top_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(
    doctor_about,
    "Looks at the installation and says, check by check, what is well and what is not, and what to do: the server and "
    "its settings, the clock, the way in (poolers), the contract (version, owner, grants), partitions, indexes and "
    "vacuum, what holds back cleaning (transactions, slots, standbys), the keeper, relays and consumers, and keys that "
    "look wrong (made anew for each attempt, or too coarse). Changes nothing.",
    "A failed check wants repair, and makes the exit status 1; a warning does not. What this role may not look at is "
    "skipped: the owner of the contract, with pg_monitor, sees everything.",
    "  pgonce doctor --json | jq '.checks[] | select(.level == \"failed\")'");
USES(doctor_uses, {OPTION_TRANSACTION_MAX, false}, {OPTION_HELD_MAX, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(doctor_exits, CLI_NO_SERVER);

ABOUT(
    plan_about,
    "Says what so many intents a second will need: rows and bytes per day and in all, WAL, the index that should stay "
    "in memory, partitions, and what a longer retention costs. Arithmetic from PostgreSQL's page layout, which a test "
    "holds against measured tables to within 15%; it connects to nothing.",
    "  pgonce plan --rate 10000 --retention 7d --body 2kB",
    "  pgonce plan --rate 500 --retention 30d --body 600 --headers 120 --key uuidv4 --leased");
USES(plan_uses, {OPTION_RATE, true}, {OPTION_PLAN_RETENTION, false}, {OPTION_PLAN_BODY, false},
     {OPTION_PLAN_HEADERS, false}, {OPTION_PLAN_KEY, false}, {OPTION_SCOPE_BYTES, false}, {OPTION_TENANT_BYTES, false},
     {OPTION_EVENTS_PER_INTENT, false}, {OPTION_EVENT_BYTES, false}, {OPTION_LEASED, false},
     {OPTION_SAME_TRANSACTION, false}, {OPTION_JSON, false});
EXITS(plan_exits, 0);

ABOUT(
    version_about,
    "Prints the versions of the command, of the contract that it speaks, and of libpq; and, where a database is named "
    "(--dsn, or PGHOST and its like), those of the server and of the contract in it.");
USES(version_uses, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(version_exits, CLI_NO_SERVER);

ABOUT(bench_about, "Measures what the contract costs in this database, from this machine: an order transaction (two "
                   "inserts) bare and with start and "
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
      "The contract must be in the database (pgonce init). Without the database it starts closed, and answers 503 "
      "until that is "
      "there; with --fail open requests pass WITHOUT protection until then. /once/ready says 200 or 503. The access "
      "log, with a verdict for each request, goes to "
      "standard "
      "output, nginx's messages to standard error. /once/status, for this machine only, counts verdicts, batches and "
      "latencies.",
      "INT, TERM and QUIT finish what is at work and stop, a second one stops at once; HUP reads the configuration "
      "again.",
      "  pgonce gateway --listen 127.0.0.1:8080 --upstream http://127.0.0.1:3000 --scope payments --required",
      "  pgonce gateway --listen '*:8080' --upstream http://unix:/run/app.sock --tenant ssl_client_s_dn --wait 10s");
USES(gateway_uses, {OPTION_LISTEN, false}, {OPTION_UPSTREAM, true}, {OPTION_GATEWAY_SCOPE, false},
     {OPTION_REQUIRED, false}, {OPTION_TENANT_FROM, false}, {OPTION_KEY_FROM, false}, {OPTION_STRICT, false},
     {OPTION_WAIT, false}, {OPTION_GATEWAY_LEASE, false}, {OPTION_RETENTION, false}, {OPTION_TIMEOUT, false},
     {OPTION_ON_5XX, false}, {OPTION_IN_DOUBT, false}, {OPTION_FAIL, false}, {OPTION_BODY_MAX, false},
     {OPTION_RESPONSE_MAX, false}, {OPTION_PREPARE, false}, {OPTION_WORKERS, false}, {OPTION_USER, false},
     {OPTION_PRINT_CONFIG, false}, {OPTION_NGINX, false}, {OPTION_MODULE, false}, {OPTION_GATEWAY_DIR, false},
     {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(gateway_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(
    keep_about,
    "Keeps the database in order, so that nobody has to: makes the partitions of the days to come, retires those that "
    "have passed, moves what has to outlive them to the archive, deletes what has expired, recovers stale intents by "
    "their scope's policy, and drops the outbox's days that every relay has passed. It works in short pieces with "
    "pauses between them, in rounds; a step that fails is noted and tried again, and holds up no other.",
    "One keeper works at a time, by a lease in the database; others stand by and take over. Killed at any moment, the "
    "next one goes on. It works through a pooler in transaction mode. The role needs once_keeper; one that is also a "
    "member of the contract's owner detaches partitions CONCURRENTLY, others with a short exclusive lock.",
    "--metrics serves what the database has to tell (counts per scope, backlogs, sizes, days ahead, how the steps "
    "fared) and what the process has done. INT and TERM stop it at once and give the lease back; one that was killed "
    "keeps it for three times --interval, at least a minute (once.keeper_lease). With --once: exit 11 "
    "where another keeper is at work.",
    "  pgonce keep --metrics 127.0.0.1:9187", "  pgonce keep --once");
USES(keep_uses, {OPTION_ONE_ROUND, false}, {OPTION_METRICS, false}, {OPTION_INTERVAL, false},
     {OPTION_KEEPER_NAME, false}, {OPTION_LOG_BATCHES, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(keep_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_ACTIVE);

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
USES(relay_uses, {OPTION_CONFIG, false}, {OPTION_CHECK_CONFIG, false}, {OPTION_ONCE, false}, {OPTION_METRICS, false},
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
USES(consume_uses, {OPTION_CONFIG, false}, {OPTION_CHECK_CONFIG, false}, {OPTION_ONCE, false}, {OPTION_METRICS, false},
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
    {.name = "keep",
     .summary = "keep the database in order: retention, recovery, metrics",
     .usage = "[--once] [--metrics ADDRESS:PORT] [--interval DURATION] [--name NAME]",
     .about = keep_about,
     .uses = keep_uses,
     .use_count = COUNT(keep_uses),
     .operands = OPERANDS_NONE,
     .exits = keep_exits,
     .run = cli_keep},
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
    {.name = "find",
     .summary = "find intents by result, event, trace, tenant, time, state",
     .usage = "[--result TYPE:ID] [--event UUID] [--trace TRACE] [OPTIONS]",
     .about = find_about,
     .uses = find_uses,
     .use_count = COUNT(find_uses),
     .operands = OPERANDS_NONE,
     .exits = find_exits,
     .run = cli_find},
    {.name = "stuck",
     .summary = "what does not come to an end, and what to type",
     .usage = "[--scope S] [--tenant T] [--longer-than DURATION]",
     .about = stuck_about,
     .uses = stuck_uses,
     .use_count = COUNT(stuck_uses),
     .operands = OPERANDS_NONE,
     .exits = stuck_exits,
     .run = cli_stuck},
    {.name = "in-doubt",
     .summary = "intents of which nobody knows whether their effect happened",
     .usage = "[--scope S] [--tenant T]",
     .about = in_doubt_about,
     .uses = in_doubt_uses,
     .use_count = COUNT(in_doubt_uses),
     .operands = OPERANDS_NONE,
     .exits = in_doubt_exits,
     .run = cli_in_doubt},
    {.name = "resolve",
     .summary = "decide about an intent that is stale or in doubt, or about all in doubt",
     .usage = "--scope S (--key K | --all) [--as STATE --reason TEXT] [OPTIONS]",
     .about = resolve_about,
     .uses = resolve_uses,
     .use_count = COUNT(resolve_uses),
     .operands = OPERANDS_NONE,
     .exits = resolve_exits,
     .run = cli_resolve},
    {.name = "recover",
     .summary = "judge all stale intents, or all in doubt, by policy and verify function",
     .usage = "--once [--in-doubt] [--scope S] [--dry-run]",
     .about = recover_about,
     .uses = recover_uses,
     .use_count = COUNT(recover_uses),
     .operands = OPERANDS_NONE,
     .exits = recover_exits,
     .run = cli_recover},
    {.name = "top",
     .summary = "what the contract does, live in a terminal",
     .usage = "[--interval DURATION] [--once [--json]]",
     .about = top_about,
     .uses = top_uses,
     .use_count = COUNT(top_uses),
     .operands = OPERANDS_NONE,
     .exits = top_exits,
     .run = cli_top},
    {.name = "doctor",
     .summary = "check the installation, and say what to do",
     .usage = "[--transaction-max DURATION] [--held-max N]",
     .about = doctor_about,
     .uses = doctor_uses,
     .use_count = COUNT(doctor_uses),
     .operands = OPERANDS_NONE,
     .exits = doctor_exits,
     .run = cli_doctor},
    {.name = "plan",
     .summary = "what a rate of intents will need: disk, WAL, memory",
     .usage = "--rate N [OPTIONS]",
     .about = plan_about,
     .uses = plan_uses,
     .use_count = COUNT(plan_uses),
     .operands = OPERANDS_NONE,
     .exits = plan_exits,
     .run = cli_plan},
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
