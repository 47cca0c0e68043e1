/* SPDX-License-Identifier: PostgreSQL */
/*
 * commands.c: the command table: every command and exit code, as data. Parsing (options.c), help,
 * man pages and docs/reference/command.md (help.c) are made only from this table and the options
 * (option_table.c).
 */
#include <string.h>

#include "cli.h"
#include "value.h"

#define EXIT(c, s, m)                                                                                                  \
	{                                                                                                                  \
		.code = (c), .shown = (s), .meaning = (m)                                                                      \
	}

const exit_code exit_codes[] = {
    EXIT(CLI_OK, "0", "done"),
    EXIT(CLI_FAILED, "1", "it failed: the message says why; a check of doctor failed"),
    EXIT(CLI_USAGE, "2", "the command line is wrong; nothing was done"),
    EXIT(CLI_NO_SERVER, "3", "PostgreSQL cannot be reached; pgonce keep: it is read-only (a standby)"),
    EXIT(CLI_CONTRACT, "4", "the contract is missing, too old, too new, or not pgonce's"),
    EXIT(CLI_NOT_FOUND, "5", "there is no such intent"),
    EXIT(
        CLI_INCOMPLETE, "6",
        "with --nodes: the answer is printed, but it is incomplete: a node is away, or it is unknown which node serves "
        "some slot"),
    EXIT(CLI_REFUSED, "10", "the contract refused the call (scope, key, tenant, size, decision)"),
    EXIT(CLI_ACTIVE, "11",
         "another attempt of this intent is running (P4029); another keeper is at work; pgonce rehome: a slot "
         "could not move now"),
    EXIT(CLI_IN_DOUBT, "12", "the intent is in doubt (P4031): decide with pgonce resolve"),
    EXIT(CLI_MISMATCH, "13", "the key was first used with another command or input (P4002)"),
    EXIT(CLI_EXPIRED, "14", "the key is older than its retention (P4041); nothing was run"),
    EXIT(CLI_LEASE_LOST, "15", "the lease was lost: CMD got SIGTERM, and its outcome is not stored"),
    EXIT(CLI_OUTCOME_UNKNOWN, "16",
         "CMD ended, but its outcome could not be stored: the next attempt may run it again"),
    EXIT(CLI_OUTPUT_LOST, "17",
         "CMD has ended and its outcome is stored, but its output could not be written (a full disk): run it again to "
         "get it"),
    EXIT(CLI_NOT_EXECUTABLE, "126", "CMD cannot be executed; the claim was released"),
    EXIT(CLI_COMMAND_NOT_FOUND, "127", "CMD was not found; the claim was released"),
    EXIT(CLI_SIGNAL_BASE, "128+n", "CMD was killed by signal n"),
};
const int exit_code_count = (int)(sizeof exit_codes / sizeof exit_codes[0]);

#define ABOUT(name, ...) static const char *const name[] = {__VA_ARGS__, NULL}
#define USES(name, ...) static const option_use name[] = {__VA_ARGS__}
#define EXITS(name, ...) static const int name[] = {__VA_ARGS__, 0}
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

ABOUT(init_about,
      "Installs the contract (schemas \"once\" and \"once_job\") in the database, or upgrades it. It works in one "
      "transaction, under a lock. A second run changes nothing, two at once both succeed, and a failed run leaves "
      "nothing behind. once.migration records versions and checksums.",
      "It refuses: a contract newer than this command (unless --accept-newer is given); a schema \"once\" or "
      "\"once_job\" that is not pgonce's; a "
      "migration that was changed after it ran; and a contract made by CREATE EXTENSION (use ALTER EXTENSION pgonce "
      "UPDATE).",
      "If the server has the extension pgonce_native and this role is a superuser, it installs or updates that, too. "
      "Nothing else depends on it: if it fails, init succeeds and says why.",
      "With --join the database becomes a node that shares the tenants with another one. It must remember nothing yet, "
      "and both contracts must be of this pgonce. A second run changes nothing.",
      "  pgonce init --dsn 'host=db dbname=app'", "  pgonce init --print > review.sql",
      "  pgonce init --dsn 'host=db2 dbname=app' --join 'host=db1 dbname=app'");
USES(init_uses, {OPTION_PRINT, false}, {OPTION_NO_NATIVE, false}, {OPTION_ACCEPT_NEWER, false}, {OPTION_JOIN, false},
     {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(init_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(
    dev_about,
    "Starts a private PostgreSQL in DIR with the contract in database \"app\". Only its owner and root can reach it, "
    "by a unix socket in DIR/run: it has no port and no password. Data is kept between runs. The command stays in "
    "the foreground, and Ctrl-C stops the server. A server that is already running is used.",
    "It prints the commands to type next, including one that puts a gateway in front of your service, and the address "
    "of the web console (pgonce console), which may decide. The console listens on 127.0.0.1, at port 9480 or any "
    "free one. Its address has a key: without it other users of this machine get no page.",
    "Server programs come from PGONCE_PG_BINDIR, else from pg_config --bindir, else from the newest installed "
    "package (/usr/lib/postgresql/*/bin on Debian). They need not be in PATH. PostgreSQL does not run as root. "
    "Started by root, it runs as user postgres, else nobody. If that user cannot reach DIR, the data lives in "
    "/var/tmp, with a link from DIR.",
    "  pgonce dev", "  pgonce dev --detach", "  pgonce dev --stop");
USES(dev_uses, {OPTION_DIR, false}, {OPTION_DETACH, false}, {OPTION_STOP, false}, {OPTION_CHECK, false},
     {OPTION_NO_CONSOLE, false}, {OPTION_JSON, false});
EXITS(dev_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(run_about,
      "Runs CMD to success at most once for an intent, however often it is called and from however many machines. The "
      "first call claims the intent, runs CMD, and stores its output and exit status. Later calls run nothing: they "
      "replay both, byte for byte, to the same streams. Output is passed on live, and replayed in the order in which "
      "it was read.",
      "A running attempt is reported (11), not waited for. The lease is renewed while CMD runs. If pgonce is killed, "
      "CMD and everything it started get SIGTERM, and SIGKILL ten seconds later. Its outcome is then unknown: once the "
      "lease has passed, the next call finds the intent in doubt (12). It lists the processes that still run on this "
      "host, and runs nothing until pgonce resolve has decided; with --on-stale takeover it runs CMD again. If the "
      "lease is lost, CMD gets SIGTERM and its outcome is not stored (15). If the database is unreachable when CMD "
      "ends, pgonce retries until three leases have passed since the last renewal. Then it reports an unknown outcome "
      "(16), and the next call finds the intent in doubt.",
      "A CMD that fails (an exit status other than 0, or a signal) has failed for good, and later calls replay the "
      "failure: only CMD knows whether half of its effect happened. Pass --retry-failed if CMD can safely run again "
      "after a failure; the next call then runs it again.",
      "The fingerprint covers CMD and its arguments, each length-prefixed, and the content of --input. The environment "
      "and the working directory are not part of it. The same key with another fingerprint is a mismatch (13).",
      "HUP, INT, QUIT, TERM, USR1 and USR2 are passed on to CMD. Its environment has PGONCE_TENANT, PGONCE_SCOPE, "
      "PGONCE_KEY, PGONCE_FENCE and PGONCE_ATTEMPT. TRACEPARENT is the trace of this call; PGONCE_TRACEPARENT is that "
      "of the intent's first attempt; pgonce find finds the intent by it.",
      "After CMD has ended, its children have one second to write their last output. Exit status 17 means that output "
      "could not be written, in a first call or a replay: CMD has run, and another call prints it again. A reader that "
      "goes away (a closed pipe) is not a failure. The exit status is CMD's own, whether it ran or is replayed. The "
      "codes "
      "below are pgonce's, and come with a line on stderr that starts with \"pgonce run:\".",
      "Outcomes are stored as content type application/vnd.pgonce.run.v1: chunks of {1 byte kind, 4 bytes length, "
      "big-endian, data}. Kinds: 'o' and 'e', bytes of standard output and error, in order; 't', output too large, not "
      "stored: two 8-byte counts, of output and error; 'x', always last: 1 byte, the exit status.",
      "  pgonce run --scope invoices --key 2026-01 -- ./send-invoices 2026-01",
      "  pgonce run --scope import --key file-17 --input file-17.csv --lease 5m -- ./import");
USES(run_uses, {OPTION_SCOPE, true}, {OPTION_KEY, true}, {OPTION_TENANT, false}, {OPTION_LEASE, false},
     {OPTION_RETENTION, false}, {OPTION_RETRY_FAILED, false}, {OPTION_ON_STALE, false}, {OPTION_INPUT, false},
     {OPTION_OUTPUT_MAX, false}, {OPTION_TRACEPARENT, false}, {OPTION_VERBOSE, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(run_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED, CLI_ACTIVE, CLI_IN_DOUBT, CLI_MISMATCH, CLI_EXPIRED,
      CLI_LEASE_LOST, CLI_OUTCOME_UNKNOWN, CLI_OUTPUT_LOST, CLI_NOT_EXECUTABLE, CLI_COMMAND_NOT_FOUND, CLI_SIGNAL_BASE);

/* For the lists. */
#define NODES_LISTED                                                                                                   \
	"With --nodes the lists of all nodes are merged, each row with its node, or the node that serves --tenant is "     \
	"asked. A node shows only tenants that it serves. If a node is away, the rest is shown and the exit status is 6."

ABOUT(
    show_about,
    "Prints the story of one intent: its state, attempts, owner, lease and outcome. A body is shown as text, or as "
    "the beginning of a hex dump. The timeline has its creation, each takeover, doubts, who decided what and why "
    "(operators, "
    "verify functions, the keeper), and its outcome. Its events follow, with their state at each relay. Times are "
    "the database's. --json prints the complete document of once.story.",
    "With --nodes it asks the node that serves the tenant, and prints its name. Without --tenant it looks for the key "
    "among all tenants of all nodes, for which the role must own the contract. If the slot may be open on a node that "
    "is away, it names both and exits with 3; without --tenant it exits with 6 while a node is away. It never takes "
    "that for a missing intent.",
    "  pgonce show --scope invoices --key 2026-01",
    "  pgonce show --nodes nodes.txt --tenant acme --scope payments --key p-17");
USES(show_uses, {OPTION_SCOPE, true}, {OPTION_KEY, true}, {OPTION_TENANT, false}, {OPTION_DSN, false},
     {OPTION_NODES, false}, {OPTION_JSON, false});
EXITS(show_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_INCOMPLETE, CLI_REFUSED);

ABOUT(find_about,
      "Finds intents, newest first, by their result (--result), an event they emitted, their trace, their owner, "
      "tenant, scope and time. An intent must match all given options. If a customer says \"I was charged twice\", "
      "search for the charge, the order or the customer's trace, and see how many intents there were. Two intents: the "
      "caller used two keys. One: pgonce show prints what each attempt did.",
      "Results are printed as they arrive, so a large --limit needs little memory. If the connection is lost "
      "meanwhile, the exit status is 3 and the JSON is incomplete.",
      NODES_LISTED, "  pgonce find --result charge:ch_17", "  pgonce find --scope payments --tenant acme --since 2h",
      "  pgonce find --trace 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
USES(find_uses, {OPTION_RESULT, false}, {OPTION_RESULT_ID, false}, {OPTION_EVENT, false}, {OPTION_TRACE, false},
     {OPTION_TENANT, false}, {OPTION_SCOPE, false}, {OPTION_STATE, false}, {OPTION_OWNER, false}, {OPTION_SINCE, false},
     {OPTION_UNTIL, false}, {OPTION_TAKE, false}, {OPTION_DSN, false}, {OPTION_NODES, false}, {OPTION_JSON, false});
EXITS(find_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_INCOMPLETE, CLI_REFUSED);

ABOUT(stuck_about,
      "Lists intents that do not finish: stale intents (their lease has passed and nothing was reported), attempts "
      "that run unusually long, and intents that were retried often. It counts parked events and messages. Each comes "
      "with the next command. Changes nothing.",
      NODES_LISTED " Parked events and messages are counted for each node.", "  pgonce stuck",
      "  pgonce stuck --scope payments --longer-than 1m");
USES(stuck_uses, {OPTION_SCOPE, false}, {OPTION_TENANT, false}, {OPTION_LONGER_THAN, false}, {OPTION_TAKE, false},
     {OPTION_DSN, false}, {OPTION_NODES, false}, {OPTION_JSON, false});
EXITS(stuck_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_INCOMPLETE, CLI_REFUSED);

ABOUT(in_doubt_about,
      "Lists the intents with unknown outcome, oldest first, with the next command. They do not run until they are "
      "decided. Changes nothing.",
      NODES_LISTED, "  pgonce in-doubt");
USES(in_doubt_uses, {OPTION_SCOPE, false}, {OPTION_TENANT, false}, {OPTION_TAKE, false}, {OPTION_DSN, false},
     {OPTION_NODES, false}, {OPTION_JSON, false});
EXITS(in_doubt_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_INCOMPLETE, CLI_REFUSED);

ABOUT(resolve_about,
      "Decides an intent that is in doubt, stale (its lease has passed) or failed retryably, once you have found out "
      "whether its effect happened. It raises the fence, so that the old attempt can no longer report. The decision is "
      "recorded with who, when and why.",
      "It does not guess. Without --as it prints the story, asks the scope's verify function if there is one, says "
      "which decision fits, and changes nothing (2). With --dry-run it shows the intent before and after, and what the "
      "next attempt would get. At a terminal it asks for a missing reason.",
      "After an outage, --all decides all intents of the scope that are in doubt, narrowed by --tenant, --error-code, "
      "--since and --until. With --dry-run it counts them and changes nothing. Each transaction is short, and decides "
      "a few. An intent that another operator decides, or whose attempt is reporting at that moment, is skipped and "
      "counted; the exit code is then 12. If the command was interrupted, or skipped some, run it again.",
      "With --nodes the decision goes to the node that serves the tenant; --key then needs --tenant. --all without "
      "--tenant decides on one node after the other, and exits with 6 if a node is away. It decides nothing while a "
      "slot is open on a node that does not serve it.",
      "  pgonce resolve --scope payments --key p-17 --as succeeded --reason 'found at the provider' --status 201 \\\n"
      "      --body answer.json --headers '{\"Content-Type\": \"application/json\"}' --result charge:17",
      "  pgonce resolve --scope payments --key p-18 --as failed_retryable --reason 'the provider has no trace of it'",
      "  pgonce resolve --scope payments --all --since '2026-01-31 12:00+00' --until '2026-01-31 12:20+00' \\\n"
      "      --as failed_retryable --reason 'the provider was down and took nothing' --dry-run");
USES(resolve_uses, {OPTION_SCOPE, true}, {OPTION_KEY, false}, {OPTION_ALL, false}, {OPTION_TENANT, false},
     {OPTION_ERROR_CODE, false}, {OPTION_SINCE, false}, {OPTION_UNTIL, false}, {OPTION_AS, false},
     {OPTION_REASON, false}, {OPTION_STATUS, false}, {OPTION_BODY, false}, {OPTION_HEADERS, false},
     {OPTION_RESULT, false}, {OPTION_DRY_RUN, false}, {OPTION_DSN, false}, {OPTION_NODES, false}, {OPTION_JSON, false});
EXITS(resolve_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_INCOMPLETE, CLI_REFUSED, CLI_IN_DOUBT);

ABOUT(recover_about,
      "Goes through the stale intents (their lease passed without a report), and judges each by its scope's policy and "
      "verify function. An intent has succeeded, can be retried, is in doubt, or is given up because its attempts are "
      "used up. Prints each decision with its reason, and counts. Each transaction is short; you can interrupt it at "
      "any time, and run it again. pgonce keep does the same continuously.",
      "With --in-doubt it goes through the intents in doubt instead, and asks the scope's verify function. If the "
      "effect happened, the intent has succeeded, with the answer that the function gives. If it did not, the intent "
      "may run again. If the function does not know, nothing changes. The keeper does not do this: it would ask a "
      "function that does not know again and again.",
      "With --nodes it goes through one node after the other, and exits with 6 if a node is away. It decides nothing "
      "while a slot is open on a node that does not serve it.",
      "Exits with 12 if it left an intent in doubt: pgonce in-doubt lists them.", "  pgonce recover --dry-run",
      "  pgonce recover --scope payments", "  pgonce recover --in-doubt");
USES(recover_uses, {OPTION_RECOVER_IN_DOUBT, false}, {OPTION_SCOPE, false}, {OPTION_TENANT, false},
     {OPTION_DRY_RUN, false}, {OPTION_DSN, false}, {OPTION_NODES, false}, {OPTION_JSON, false});
EXITS(recover_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_INCOMPLETE, CLI_REFUSED, CLI_IN_DOUBT);

ABOUT(
    top_about,
    "Prints the contract's current activity: how many attempts in the database were new, replayed, refused "
    "because another is running, failed, or a mismatch, since the counters began; for each scope how many intents run, "
    "are stale and in doubt; the attempts that run longest (LEASE below zero: stale).",
    "It also prints the relays' backlogs, the largest partitions, and when the keeper last succeeded. "
    "It reads only.",
    "  pgonce top", "  watch pgonce top", "  pgonce top --json");
USES(top_uses, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(top_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(
    doctor_about,
    "Checks the installation and says what is wrong and what to do: the server and its settings, the clock, poolers, "
    "the contract (version, owner, grants), whether SQL or pgonce_native answers, partitions, indexes and vacuum, "
    "what holds back vacuum (transactions, slots, standbys), Citus, the slots of a divided node, the keeper, relays, "
    "slots that count as relays, consumers, and keys that look wrong (new for each attempt, or too coarse). Changes "
    "nothing.",
    "A failed check needs repair and makes the exit status 1; a warning does not. Checks that this role may not make "
    "are skipped: the owner of the contract, with pg_monitor, sees everything. Checks that need a keeper's counts "
    "are skipped until it has counted.",
    "With --nodes it compares the nodes that share the tenants: versions, salts, policies, bindings. It names the "
    "slots "
    "that are open nowhere, twice or with an old epoch, a node that is away, copies of a node, and what an unfinished "
    "move has left behind. Each line must name the owner of the node's contract. It reads all intents of each node.",
    "  pgonce doctor --json | jq '.checks[] | select(.level == \"failed\")'");
USES(doctor_uses, {OPTION_NODES, false}, {OPTION_TRANSACTION_MAX, false}, {OPTION_HELD_MAX, false}, {OPTION_DSN, false},
     {OPTION_JSON, false});
EXITS(doctor_exits, CLI_NO_SERVER);

ABOUT(rehome_about,
      "Moves tenants from one node to another, while both work: the memory of each SLOT (0 to 63, or a range 40-47). "
      "It copies the memory, which may take minutes, while the slot is open. Then the slot closes, the last changes "
      "arrive, the relays of the old node deliver its last events, and it opens at the new node: calls for its tenants "
      "get P4097 for some hundredths of a second; retry them. At last the memory at the old node is deleted.",
      "A slot that cannot move within --wait opens again at the old node, and the exit status is 11: transactions of "
      "its tenants are open, a relay is slow, one of its events is parked, or a standby is behind. The other slots "
      "move. No promise depends on this command: it may be killed at any moment. Run it again with the same "
      "nodes, and it finishes what it had begun. Until then a slot may be closed on both nodes; pgonce doctor --nodes "
      "names it.",
      "It needs PostgreSQL 15, wal_level = logical on the old node, a role with REPLICATION there and one that may "
      "create subscriptions on the new node. Both nodes must have the same version, salt, settings, policies and "
      "closed days. Keepers delete nothing on either node meanwhile.",
      "The events of the slots stay at the old node, which delivers them; delayed ones move. The decisions "
      "of operators about parked events and messages stay, too.",
      "  pgonce rehome 17 --from 'host=db1 dbname=app' --to 'host=db2 dbname=app'",
      "  pgonce rehome 32-63 --from 'host=db1 dbname=app' --to 'host=db2 dbname=app' --wait 30s");
USES(rehome_uses, {OPTION_FROM, true}, {OPTION_TO, true}, {OPTION_VIA, false}, {OPTION_WAIT, false},
     {OPTION_JSON, false});
EXITS(rehome_exits, CLI_NO_SERVER, CLI_REFUSED, CLI_ACTIVE);

ABOUT(plan_about,
      "Estimates what a rate of intents needs: rows and bytes per day and in total, WAL, the index that should stay in "
      "memory, partitions, and what a longer retention costs. The estimate comes from PostgreSQL's page layout, and a "
      "test keeps it within 15% of measured tables. It connects to nothing.",
      "  pgonce plan --rate 10000 --retention 7d --body-bytes 2kB",
      "  pgonce plan --rate 500 --retention 30d --body-bytes 600 --header-bytes 120 --key-form uuidv4 --leased");
USES(plan_uses, {OPTION_RATE, true}, {OPTION_RETENTION, false}, {OPTION_BODY_BYTES, false},
     {OPTION_HEADER_BYTES, false}, {OPTION_KEY_FORM, false}, {OPTION_SCOPE_BYTES, false}, {OPTION_TENANT_BYTES, false},
     {OPTION_EVENTS_PER_INTENT, false}, {OPTION_EVENT_BYTES, false}, {OPTION_LEASED, false},
     {OPTION_SAME_TRANSACTION, false}, {OPTION_JSON, false});
EXITS(plan_exits, 0);

ABOUT(version_about, "Prints the versions of the command, of its contract, and of libpq. If a database is named "
                     "(--dsn, or PGHOST and the like), it prints those of the server and of its contract too.");
USES(version_uses, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(version_exits, CLI_NO_SERVER);

ABOUT(
    gateway_about,
    "Makes a service without idempotency support safe to retry: runs nginx with pgonce's module in front of "
    "it, in the foreground. A POST or PATCH with a key runs once, and again only after an answer that asks for another "
    "attempt. Every retry gets the stored answer, byte for byte, "
    "marked Idempotency-Replayed: true. Without --required, a request without a key passes unprotected. "
    "docs/reference/gateway.md has the rules.",
    "It speaks plain HTTP: listen on this machine, behind the proxy that terminates TLS and authenticates callers. "
    "For everything else (TLS, authentication, limits, waiting, the lease, more workers or services) there are nginx's "
    "directives. Print the configuration into a file, edit it, write the connection string into the file that "
    "once_database names, and run nginx on it: nginx -c FILE.",
    "Its workers connect with --dsn and with libpq's environment, service file and password file as found here; --dsn "
    "comes first. If root starts it, the workers run as another user (--user), who must be able to reach the database, "
    "and who gets a copy of root's password file; HUP makes a new copy.",
    "The contract must be in the database (pgonce init). Without the database the gateway starts closed, and answers "
    "503 until the database is back. /once/ready answers 200 or 503. The access log, with a verdict for each request, "
    "goes to standard output, and nginx's messages go to standard error. /once/status, for this machine only, counts "
    "verdicts, batches and latencies.",
    "INT, TERM and QUIT finish the running requests and stop; a second one stops at once. HUP reads the "
    "configuration again.",
    "  pgonce gateway --listen 127.0.0.1:8080 --upstream http://127.0.0.1:3000 --scope payments --required",
    "  pgonce gateway --listen unix:/run/gate.sock --upstream http://unix:/run/app.sock --required --tenant-from "
    "http_x_tenant",
    "  pgonce gateway --upstream http://127.0.0.1:3000 --required --dir /srv/gate --print-config > "
    "/srv/gate/nginx.conf");
USES(gateway_uses, {OPTION_LISTEN, false}, {OPTION_UPSTREAM, true}, {OPTION_SCOPE, false}, {OPTION_REQUIRED, false},
     {OPTION_TENANT_FROM, false}, {OPTION_ON_5XX, false}, {OPTION_USER, false}, {OPTION_PRINT_CONFIG, false},
     {OPTION_NGINX, false}, {OPTION_MODULE, false}, {OPTION_DIR, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(gateway_exits, CLI_NO_SERVER, CLI_CONTRACT);

ABOUT(
    keep_about,
    "Keeps the database in order. It makes the partitions of the coming days, retires passed days, moves rows that "
    "outlive them to the archive, and deletes expired ones. It recovers stale intents by their scope's policy, "
    "and drops days of the outbox that every relay has passed. It works in rounds of short steps, with pauses "
    "between them. A step that fails is recorded and tried again, and holds up no other.",
    "One keeper works at a time, by a lease in the database; others stand by and take over. It can be killed at any "
    "moment: the next one continues. It works through a pooler in transaction mode. The role needs once_keeper. A role "
    "that is also a member of the contract's owner detaches partitions CONCURRENTLY; others take a short exclusive "
    "lock.",
    "--metrics serves the database's figures (attempts by their answer, stale intents and doubts by scope, backlogs, "
    "sizes, days ahead, the state of the steps) and the process's own. INT and TERM stop it at once and return the "
    "lease. A killed keeper holds it for three "
    "times --interval, at least a minute (once.keeper_lease). HUP makes it connect again after the running round, "
    "which reads libpq's files (services, passwords, certificates) again; its options stay. With --once it exits "
    "with 11 if another keeper is at work.",
    "  pgonce keep --metrics 127.0.0.1:9187", "  pgonce keep --once");
USES(keep_uses, {OPTION_ONCE, false}, {OPTION_METRICS, false}, {OPTION_INTERVAL, false}, {OPTION_KEEPER_NAME, false},
     {OPTION_VERBOSE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(keep_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_ACTIVE);

ABOUT(
    console_about,
    "Serves web pages for people who ask \"was this customer charged twice?\": an overview; a search by key, result, "
    "trace, event or error; the story of each intent; the intents in doubt, with a form to decide; parked events and "
    "messages; and the policies. The pages work without JavaScript. Each is also JSON, for clients that accept "
    "application/json. docs/how/console.md describes them.",
    "It connects with its own role, and shows what that role may see (once_reader). With --allow-decisions and a role "
    "in once_admin it decides: each form shows first what it would change. Each decision is recorded with the role, "
    "the reason, and the person, if a proxy names one (--user-header).",
    "It speaks plain HTTP and has no login: anyone who reaches its address sees what its role may see. It listens on "
    "this machine "
    "only, unless --listen says otherwise: put the proxy that terminates TLS and authenticates people in front, and "
    "name its host (--public-host). A request with any other Host is refused (421).",
    "The log has a line for each request: method, page, status, milliseconds and person, never a parameter. /live "
    "answers while the process serves, /ready while it has its database. INT and TERM finish the running requests and "
    "stop. HUP makes it connect again.",
    "  pgonce console", "  pgonce console --allow-decisions --listen 127.0.0.1:9480",
    "  pgonce console --allow-decisions --public-host once.example.com --user-header X-Forwarded-User "
    "--trusted-address 127.0.0.1");
USES(console_uses, {OPTION_LISTEN, false}, {OPTION_ALLOW_DECISIONS, false}, {OPTION_USER_HEADER, false},
     {OPTION_TRUSTED_ADDRESS, false}, {OPTION_PUBLIC_HOST, false}, {OPTION_PROMETHEUS, false},
     {OPTION_PROMETHEUS_JOB, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(console_exits, 0);

ABOUT(
    relay_about,
    "Publishes the events of once.emit. Each [relay NAME] section of the configuration file reads the outbox and "
    "delivers to its sink: Kafka, RabbitMQ, NATS JetStream, SQS, SNS, webhooks, or standard output. Every event "
    "whose effect "
    "is committed is delivered at least once, and events of one aggregate in order. One process is active for each "
    "relay; others stand by and take over within two seconds. Progress is stored after the sink has acknowledged.",
    "An event that the sink refuses blocks its own aggregate only. It is tried again with backoff; after the last "
    "attempt it is dead. Dead events stay visible, and pgonce parked retries or discards them. The relay waits for a "
    "sink that is down. With --once it exits with 1 if events are left parked.",
    "INT and TERM finish what is in flight and stop; a second one stops at once. HUP reads the configuration file "
    "again: the relays finish what is in flight, then the relays of the new file continue, in the same process. A file "
    "with mistakes changes nothing, and the log has each of them. The command line and the environment stay as they "
    "were.",
    "  pgonce relay --config pgonce.conf", "  pgonce relay --config pgonce.conf --check-config");
USES(relay_uses, {OPTION_CONFIG, false}, {OPTION_CHECK_CONFIG, false}, {OPTION_ONCE, false}, {OPTION_METRICS, false},
     {OPTION_VERBOSE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(relay_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED);

ABOUT(
    consume_about,
    "Applies each message once, for as long as the inbox remembers it (7 days, unless the policy of the scope that has "
    "the consumer's name says otherwise). Each [consume NAME] section of the configuration file takes messages from "
    "Kafka, "
    "RabbitMQ, NATS JetStream or SQS. It calls a SQL function with each new message, in the transaction that records "
    "it, and then acknowledges it. Redeliveries, duplicates and rebalances change nothing. Work outside the database "
    "is called as an HTTP endpoint instead, under a lease, with the intent's key.",
    "A message whose handler fails is tried again with backoff; after the last attempt it is dead, and pgonce parked "
    "shows it with its error. Later messages of its key wait behind it; all others continue.",
    "INT and TERM finish the running batch and stop; a second one stops at once. HUP reads the configuration file "
    "again: the consumers finish their work, then the consumers of the new file continue, in the same process. A file "
    "with mistakes changes nothing, and the log has each of them. The command line and the environment stay as they "
    "were.",
    "  pgonce consume --config pgonce.conf", "  pgonce consume --config pgonce.conf --check-config");
USES(consume_uses, {OPTION_CONFIG, false}, {OPTION_CHECK_CONFIG, false}, {OPTION_ONCE, false}, {OPTION_METRICS, false},
     {OPTION_VERBOSE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(consume_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_REFUSED);

ABOUT(
    parked_about,
    "Lists events that the relays have not delivered and messages that the consumers have not applied, and decides "
    "about them. A failed one is parked: retrying, dead after its last attempt, or waiting behind another of its "
    "aggregate or key.",
    "list: first the counts by relay or consumer, topic and state, with the age of the oldest. They include pending "
    "and delayed events, and events that no relay takes. Then the parked events and messages with their errors, the "
    "dead first. Every option below narrows the list; with --tenant, --type, --error or --until the counts are left "
    "out. --state pending and --state delayed list those events. show ID: everything about one event or message.",
    "retry ID: try it again now, with a full set of attempts; a delayed event is due now. discard ID: give it up, so "
    "that the rest of its aggregate or key continues; a delayed event is cancelled, and a message that the broker "
    "delivers "
    "again is a duplicate. If an ID is parked more than once, say which with --relay, --consumer, --tenant or --kind. "
    "Each change is recorded with the role, the time and the reason.",
    "retry and discard without an ID: all that match the options; delayed events only with --state delayed. Without "
    "--yes they are only counted. With --yes the change is made in transactions of at most a thousand, in the order of "
    "each aggregate or key, while relays and consumers continue. A message that its consumer is trying at that moment "
    "is skipped and counted (exit 10). If the command is interrupted, start it again.",
    "replay --since WHEN: a relay delivers again the events emitted since then. --force: also events that consumers "
    "may no longer remember.",
    "  pgonce parked list", "  pgonce parked retry order-17 --consumer stock --reason 'the handler is fixed'",
    "  pgonce parked retry --consumer stock --state dead --error 'no such article'",
    "  pgonce parked discard --kind event --topic mail --state dead --until 2d --yes --reason 'too late for "
    "these'",
    "  pgonce parked replay --relay orders --since '2026-01-31 12:00+00' --reason 'the broker lost its disk'");
USES(parked_uses, {OPTION_KIND, false}, {OPTION_RELAY, false}, {OPTION_CONSUMER, false}, {OPTION_TENANT, false},
     {OPTION_TOPIC, false}, {OPTION_TYPE, false}, {OPTION_ERROR, false}, {OPTION_STATE, false}, {OPTION_UNTIL, false},
     {OPTION_YES, false}, {OPTION_DRY_RUN, false}, {OPTION_SINCE, false}, {OPTION_FORCE, false}, {OPTION_REASON, false},
     {OPTION_TAKE, false}, {OPTION_DSN, false}, {OPTION_JSON, false});
EXITS(parked_exits, CLI_NO_SERVER, CLI_CONTRACT, CLI_NOT_FOUND, CLI_REFUSED);

ABOUT(help_about, "Prints the list of commands, or the help of one.", "  pgonce help run", "  pgonce help --man ./man",
      "  pgonce help --completion bash");
USES(help_uses, {OPTION_MAN, false}, {OPTION_MARKDOWN, false}, {OPTION_COMPLETION, false});
EXITS(help_exits, 0);

/* A command NAME whose texts, options and exit codes are IDENT_about,
 * IDENT_uses and IDENT_exits, run by cli_IDENT. */
#define COMMAND(ident, ...) COMMAND_BY(cli_##ident, ident, NULL, __VA_ARGS__, NULL)
#define COMMAND_STATES(ident, ...) COMMAND_BY(cli_##ident, ident, __VA_ARGS__, NULL)
#define COMMAND_BY(function, ident, states_of, n, o, s, u, h)                                                          \
	{                                                                                                                  \
		.name = (n), .summary = (s), .usage = (u), .about = ident##_about, .uses = ident##_uses,                       \
		.use_count = COUNT(ident##_uses), .states = (states_of), .unknown_hint = (h), .operands = (o),                 \
		.exits = ident##_exits, .run = (function)                                                                      \
	}

const cli_command cli_commands[] = {
    COMMAND(init, "init", OPERANDS_NONE, "install or upgrade the contract in a database", "[--print] [--dsn CONNINFO]"),
    COMMAND(dev, "dev", OPERANDS_NONE, "a private PostgreSQL with the contract, to try things",
            "[--dir DIR] [--detach | --stop | --check] [--no-console]"),
    COMMAND(run, "run", OPERANDS_COMMAND, "run a command to success at most once, and replay its outcome",
            "--scope S --key K [OPTIONS] -- CMD [ARG...]"),
    COMMAND_BY(cli_gateway, gateway, NULL, "gateway", OPERANDS_NONE,
               "nginx with the module in front of a service: its POSTs run once",
               "--upstream URL [--listen ADDRESS] [OPTIONS]",
               "other settings are directives of nginx, such as once_wait, once_fail or worker_processes: write them "
               "into the configuration that --print-config prints, and run nginx on that (docs/reference/gateway.md)"),
    COMMAND(keep, "keep", OPERANDS_NONE, "keep the database in order: retention, recovery, metrics",
            "[--once] [--metrics ADDRESS:PORT] [--interval DURATION] [--name NAME]"),
    COMMAND(console, "console", OPERANDS_NONE, "web pages that show intents, doubts and events, and decide",
            "[--listen ADDRESS:PORT] [--allow-decisions] [OPTIONS]"),
    COMMAND(relay, "relay", OPERANDS_WORDS, "publish the outbox to a broker or webhooks",
            "[NAME...] [--config FILE] [OPTIONS]"),
    COMMAND(consume, "consume", OPERANDS_WORDS, "apply each message of a broker once",
            "[NAME...] [--config FILE] [OPTIONS]"),
    COMMAND_STATES(parked, "pending|waiting|retrying|dead|delayed", "parked", OPERANDS_WORDS,
                   "events that were not delivered, messages that were not applied: list, show, retry, discard, replay",
                   "list | show ID | retry [ID] | discard [ID] | replay --since WHEN [OPTIONS]"),
    COMMAND(show, "show", OPERANDS_NONE, "the story of one intent", "--scope S --key K [--tenant T]"),
    COMMAND_STATES(find, "processing|succeeded|failed_retryable|failed_final|in_doubt", "find", OPERANDS_NONE,
                   "find intents by result, event, trace, tenant, time, state",
                   "[--result TYPE:ID] [--event UUID] [--trace TRACE] [OPTIONS]"),
    COMMAND(stuck, "stuck", OPERANDS_NONE, "intents that do not finish, with the next command",
            "[--scope S] [--tenant T] [--longer-than DURATION]"),
    COMMAND(in_doubt, "in-doubt", OPERANDS_NONE, "intents with unknown outcome", "[--scope S] [--tenant T]"),
    COMMAND(resolve, "resolve", OPERANDS_NONE, "decide an intent that is stale or in doubt, or all in doubt",
            "--scope S (--key K | --all) [--as STATE --reason TEXT] [OPTIONS]"),
    COMMAND(recover, "recover", OPERANDS_NONE,
            "judge all stale intents, or all in doubt, by policy and verify function",
            "[--in-doubt] [--scope S] [--dry-run]"),
    COMMAND(top, "top", OPERANDS_NONE, "the contract's current activity", "[--json]"),
    COMMAND(doctor, "doctor", OPERANDS_NONE, "check the installation, and print what to do",
            "[--transaction-max DURATION] [--held-max N]"),
    COMMAND(rehome, "rehome", OPERANDS_WORDS, "move tenants to another node, while both work",
            "SLOT... --from DSN --to DSN [--wait DURATION]"),
    COMMAND(plan, "plan", OPERANDS_NONE, "estimate what a rate of intents needs: disk, WAL, memory",
            "--rate N [OPTIONS]"),
    COMMAND(version, "version", OPERANDS_NONE, "print versions", "[--dsn CONNINFO]"),
    COMMAND_BY(NULL, help, NULL, "help", OPERANDS_ONE_OPTIONAL, "print help, man pages, or the reference",
               "[COMMAND] [--man DIR | --markdown [configuration] | --completion SHELL]", NULL),
};
const int cli_command_count = COUNT(cli_commands);

const cli_command *cli_find_command(const char *name)
{
	for (int i = 0; i < cli_command_count; i++) {
		if (strcmp(cli_commands[i].name, name) == 0) {
			return &cli_commands[i];
		}
	}
	return NULL;
}

const char *cli_nearest_command(const char *word)
{
	const char *nearest = NULL;
	int least = 3;

	for (int i = 0; i < cli_command_count; i++) {
		int d = value_distance(word, cli_commands[i].name);
		if (d < least && 2 * d <= (int)strlen(word)) {
			least = d;
			nearest = cli_commands[i].name;
		}
	}
	return nearest;
}
