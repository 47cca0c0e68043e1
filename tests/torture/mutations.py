# SPDX-License-Identifier: PostgreSQL
"""The system with one guarantee taken out, again and again: what the checker must notice. A mutation of the contract replaces a piece of its
text before it is installed; one of a program replaces a piece of a C file in a copy of the tree, and builds what is made of it; one of a client
(clients/) likewise replaces a piece of that client in a copy.

Where two guards hold a promise, taking one out breaks what that one alone holds: without its advisory lock an attempt waits for another and
is refused at its end, but the primary key still keeps the effect single. So select_then_insert takes the key out, too."""

import dataclasses
import hashlib
import pathlib
import re
import shutil
import subprocess

from harness.mutation import replaced
from harness.postgres import ROOT

from . import languages

PARTS = {  # what a program is made of
    "gateway/ngx_http_once_module.so": ("lib", "include", "gateway"),
    "cli/pgonce": ("lib", "include", "relay", "consume", "keeper", "broker", "runtime", "cli", "contract"),
    "native/pgonce_native.so": ("native", "contract"),
    "tests/torture/torture_client": ("lib", "include", "tests/torture"),
}
LEFT_OUT = {".git", ".pgonce", "build", "build-sanitized", "build-threads", "build-coverage"}
LOCKS = "pg_try_advisory_xact_lock(once._lock_id(tenant, scope, key))"


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    what: str  # is wrong then
    rules: tuple  # of which the checker must find one broken
    doors: tuple  # where it shows
    faults: tuple  # that bring it out
    functions: tuple = ()  # (function of the contract, old, new)
    files: tuple = ()  # (file, old, new)
    target: str = ""  # what is built of them
    language: str = ""  # instead: whose client they are of
    script: str = ""  # SQL that follows the contract
    broker: str = "nats"
    cache: bool = None  # the plan's, where it matters
    scale: float = 3  # so many times the usual number of faults
    topology: str = "single"  # where it shows: run.TOPOLOGIES
    native: bool = False  # likewise: what is taken out of SQL alone would not show in C
    build: pathlib.Path = None  # where the programs are, once it is prepared
    tree: pathlib.Path = None  # likewise the client

    def contract(self, text):
        """The contract's text with the mutation in it."""
        for function, old, new in self.functions:
            text = replace_in_function(text, function, old, new)
        return text + self.script

    def changes(self, text):
        """What makes the mutated contract of one that is installed: far sooner than to install it."""
        mutated = self.contract(text)
        made = [function_in(mutated, function).group() for function in {function: None for function, _, _ in self.functions}]
        return "\n".join(re.sub(r"^CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", each) for each in made) + self.script

    def prepared(self, build, cache):
        """Ready to be run: with its programs, if it has some of its own. build: the ordinary programs; cache: where to keep its own."""
        build, cache = pathlib.Path(build), pathlib.Path(cache)
        if self.language:
            return dataclasses.replace(self, tree=languages.mutated(self.language, self.files, cache / self.name))
        return dataclasses.replace(self, build=overlay(self, build, cache) if self.files else None)


def function_in(text, function):
    """Where the contract has it: a match."""
    found = re.search(rf"^CREATE (?:OR REPLACE )?FUNCTION once(?:_job)?\.{re.escape(function)}\(.*?^(?:END )?\$\$;", text, re.M | re.S)
    if found is None:
        raise LookupError(f"the contract has no function once.{function}")
    return found


def replace_in_function(text, function, old, new):
    found = function_in(text, function)
    return text[: found.start()] + replaced(found.group(), old, new, f"once.{function}") + text[found.end() :]


def overlay(mutation, build, cache):
    """A directory like the ordinary build's, with this mutation's program in place of the ordinary one. Kept for the next time."""
    target = build / mutation.target
    stamp = hashlib.sha256(repr((mutation.files, [(str(path), path.read_bytes()) for path in sources(mutation.target)])).encode()).hexdigest()[:16]
    kept = cache / f"{mutation.name}-{stamp}"
    if not (kept / mutation.target).exists():
        for old in cache.glob(f"{mutation.name}-*"):
            shutil.rmtree(old)
        made = compile_mutant(mutation, cache / f"{mutation.name}-{stamp}-tree")
        for program in (path for folder in ("cli", "gateway", "native", "tests/torture") for path in (build / folder).glob("*") if path.is_file()):
            linked = kept / program.relative_to(build)
            linked.parent.mkdir(parents=True, exist_ok=True)
            linked.symlink_to(program)
        (kept / mutation.target).unlink()
        shutil.copy2(made, kept / target.relative_to(build))
        shutil.rmtree(cache / f"{mutation.name}-{stamp}-tree")
    return kept


def sources(target):
    return sorted(path for folder in PARTS[target] for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in (".c", ".h", ".build", ".sql"))


def compile_mutant(mutation, tree):
    """The mutated program, built in a copy of the tree."""
    shutil.copytree(ROOT, tree, symlinks=True, ignore=lambda folder, names: LEFT_OUT.intersection(names) if folder == str(ROOT) else ())
    for file, old, new in mutation.files:
        (tree / file).write_text(replaced((tree / file).read_text(), old, new, file))
    run(["tools/build.sh", "mutant", "--", mutation.target], tree)
    return tree / "mutant" / mutation.target


def run(command, directory):
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


MUTATIONS = {
    mutation.name: mutation
    for mutation in (
        Mutation(
            "no_advisory_lock",
            "attempts at one intent are not kept apart by their lock",
            rules=("told_at_once", "at_most_one"),
            doors=("sql", "lib"),
            faults=("delay:client-pg",),
            functions=tuple((function, LOCKS, "true") for function in ("start", "try_start", "finish_new", "_check_and_lock", "_start_over", "_claim")),
        ),
        Mutation(
            "native_without_lock",
            "pgonce_native keeps attempts at one intent not apart by their lock",
            rules=("told_at_once", "at_most_one"),
            doors=("sql", "lib"),
            faults=("delay:client-pg",),
            files=(("native/store.c", "if (held_already) {", "if (true) { return true;"),),
            target="native/pgonce_native.so",
            native=True,
        ),
        Mutation(
            "no_fence_check",
            "reports are taken under any fence",
            rules=("under_its_fence", "at_most_one"),
            doors=("sql/fenced", "lib/fenced", "http/handoff"),
            faults=("pause:client", "pause:handoff", "pause:gateway*", "half_open:client-pg", "half_open:handoff-pg"),
            functions=(("_report", "AND i.fence = fence AND ", "AND "),),
        ),
        Mutation(
            "fence_repeats",
            "a new intent begins at fence 1, whatever fences its key had before it was deleted",
            rules=("fences_rise",),
            doors=("sql",),
            faults=("delay:client-pg",),
            functions=(("_first_fence", "coalesce(pg_sequence_last_value('once.fence_floor_seq'), 0)::integer + 1", "1"),),
        ),
        Mutation(
            "try_start_proceeds",
            "once.try_start lets everybody in, whatever is stored",
            rules=("told_at_once",),
            doors=("sql",),
            faults=("delay:client-pg",),
            functions=(("_start_over", "IF code IS NULL AND judged <> 'replay_success' THEN", "IF NOT raising OR (code IS NULL AND judged <> 'replay_success') THEN"),),
        ),
        Mutation(
            "select_then_insert",
            "an attempt looks whether there is an outcome, and stores one in the end, and nothing else keeps it single",
            rules=("at_most_one",),
            doors=("sql", "lib"),
            faults=("delay:client-pg",),
            functions=tuple((function, LOCKS, "true") for function in ("start", "try_start", "finish_new", "_check_and_lock", "_start_over", "_claim")),
            script="\nALTER TABLE once.intent DROP CONSTRAINT intent_pkey;\n",
        ),
        Mutation(
            "finish_unstarted",
            "once.finish takes what its transaction has not started",
            rules=("one_effect_per_acknowledged",),
            doors=("sql",),
            faults=("delay:client-pg",),
            functions=(
                ("finish", "once._noted_start(tenant, scope, key, fingerprint)", "coalesce(once._noted_start(tenant, scope, key, fingerprint), once._first_fence())"),
                ("finish", "once._has_started(tenant, scope, key, fingerprint)", "true"),
            ),
        ),
        Mutation(
            "text_as_bytea",
            "an answer that is given as text is read as bytea's escapes",
            rules=("same_bytes",),
            doors=("sql",),
            faults=("delay:client-pg",),
            functions=(("_body_of", "convert_to(coalesce(response_text, response_json::text), 'UTF8')", "coalesce(response_text, response_json::text)::bytea"),),
        ),
        Mutation(
            "verify_asked_early",
            "a claim asks verify about a doubt whose attempt still has its lease",
            rules=("asked_in_time",),
            doors=("sql/asked",),
            faults=("delay:client-pg",),
            functions=(("_claim", "AND (stored.lease_until > now) IS NOT TRUE AND", "AND"),),
        ),
        Mutation(
            "recover_asks_early",
            "once.recover asks verify about a doubt whose attempt still has its lease",
            rules=("asked_in_time",),
            doors=("sql/asked",),
            faults=("delay:client-pg",),
            functions=(("_recover_doubt", "IF (doubt.stored).lease_until > clock_timestamp() THEN", "IF false THEN"),),
        ),
        Mutation(
            "verify_inverted",
            "a claim takes what verify says for its opposite",
            rules=("at_most_one", "one_effect_per_acknowledged"),
            doors=("sql/asked",),
            faults=("delay:client-pg",),
            functions=(
                ("_take_over", "IF verified.answer = 'happened' THEN", "IF verified.answer = 'absent' THEN"),
                ("_take_over", "ELSIF verified.answer = 'absent' AND exhausted", "ELSIF verified.answer = 'happened' AND exhausted"),
            ),
        ),
        Mutation(
            "completion_before_commit",
            "the library says that it is done when the outcome is written, whatever COMMIT says",
            rules=("one_effect_per_acknowledged", "same_bytes"),
            doors=("lib",),
            faults=("cut:client-pg", "loss:client-pg", "delay:client-pg", "kill:primary"),
            files=(
                (
                    "lib/src/execute.c",
                    "pipeline_call(&pipeline, &finish); pipeline_command(&pipeline, SQL_COMMIT); return run_pipeline(run, &pipeline);",
                    "pipeline_call(&pipeline, &finish); once_code code = run_pipeline(run, &pipeline);"
                    " PQclear(PQexec(run->session->connection, \"COMMIT\")); return code;",
                ),
            ),
            target="tests/torture/torture_client",
        ),
        Mutation(
            "answer_before_store",
            "the gateway passes the service's answer on and stores it afterwards",
            rules=("same_bytes",),
            doors=("http",),
            faults=("kill:gateway*", "delay:gateway-pg", "cut:gateway-pg"),
            files=(
                ("gateway/ngx_http_once_report.c", "if (!is_for_good(attempt)", "if (1 || !is_for_good(attempt)"),
                (
                    "gateway/ngx_http_once_report.c",
                    "ask(attempt); return; } gate_route_find(attempt, send_report); }",
                    "ask(attempt); return; } gate_event_init(&attempt->report.timer, on_retry); ngx_add_timer(&attempt->report.timer, 50); }",
                ),
            ),
            target="gateway/ngx_http_once_module.so",
        ),
        Mutation(
            "half_is_whole",
            "the gateway takes an answer that broke off for a whole one",
            rules=("whole_answers",),
            doors=("http",),
            faults=(),  # it needs none
            files=(("gateway/ngx_http_once_answer.c", "return end_answer(attempt, r, !truncated && is_whole(", "return end_answer(attempt, r, truncated || is_whole("),),
            target="gateway/ngx_http_once_module.so",
        ),
        Mutation(
            "cache_survives_failover",
            "the gateway keeps its copies of answers though it has lost the server that they are of",
            rules=("asked_anew",),
            doors=("http",),
            faults=("failover",),
            files=(
                ("gateway/ngx_http_once_cache.c", "static void on_lost(void) { lock(); throw_away(); unlock(); }", "static void on_lost(void) { lock(); unlock(); }"),
                ("gateway/ngx_http_once_cache.c", "if (cache.zone->servers[node] != server) {", "if (cache.zone->servers[node] == 0) {"),
            ),
            target="gateway/ngx_http_once_module.so",
            cache=True,
        ),
        Mutation(
            "released_5xx",
            "the gateway takes a service's 500 for a promise that nothing was done",
            rules=("at_most_one",),
            doors=("http",),
            faults=("delay:client-gateway",),
            files=(
                (
                    "lib/http/decide.c",
                    "return policy->server_errors;",
                    "return HTTP_EFFECT_NONE;",
                ),
            ),
            target="gateway/ngx_http_once_module.so",
        ),
        Mutation(
            "relay_by_sequence",
            "the relay takes the events whose numbers are above the highest that it has published",
            rules=("order_per_aggregate", "nothing_lost"),
            doors=("sql", "lib"),
            faults=("delay:client-pg",),
            functions=(
                (
                    "relay_list",
                    "above bigint := coalesce(after_id, 0);",
                    "above bigint := greatest(coalesce(after_id, 0), (SELECT max(o.id) FROM once.outbox AS o WHERE pg_visible_in_snapshot(o.xid, before)));",
                ),
            ),
        ),
        Mutation(
            "no_permit",
            "a relay sends what it has in its hands without asking whether its session is still there",
            rules=("sleeper_is_silent",),
            doors=("sql", "lib"),
            faults=("takeover",),
            files=(
                ("relay/pipeline.c", "if (now - reader_proved_ms(pipeline->reader) > PERMIT_MS / 2) {", "if (false) {"),
                ("relay/pipeline.c", "until_ms = reader_proved_ms(pipeline->reader) + PERMIT_MS;", "until_ms = now + 1000 * PERMIT_MS;"),
            ),
            target="cli/pgonce",
        ),
        Mutation(
            "message_id_without_subject",
            "the relay gives NATS the event's id alone to tell repeats by, which the stream looks for under all of its subjects",
            rules=("published_in_order", "each_relay_whole"),
            doors=("sql", "lib"),
            faults=("delay:client-pg",),
            files=(("relay/sinks/nats.c", 'asprintf(&id, "%s:%s", message->event_id, message->destination)', 'asprintf(&id, "%s", message->event_id)'),),
            target="cli/pgonce",
        ),
        Mutation(
            "ids_without_the_salt",
            "the id of an intent's event comes from the intent's name alone, and is another database's, too",
            rules=("databases_apart", "order_per_aggregate", "none_buried"),
            doors=("sql", "lib"),
            faults=("delay:client-pg",),
            functions=(("_derived_id", "sha256(salt || convert_to(tenant, 'UTF8'))", "''::bytea"),),
            native=False,
        ),
        Mutation(
            "batch_blames_its_events",
            "the relay counts an attempt for each event of a batch that Kafka refuses",
            rules=("none_blamed",),
            doors=("sql", "lib"),
            faults=("refuse",),
            files=(("relay/sinks/kafka_results.c", "case INVALID_DIFFERENT_RECORD: return true;", "case INVALID_DIFFERENT_RECORD: return false;"),),
            target="cli/pgonce",
            broker="kafka",
        ),
        Mutation(
            "function_called_begin",
            "a function's name is `begin`, for which psql takes all that follows in a dump for its body",
            rules=("dumps_restore",),
            doors=("sql",),
            faults=("delay:client-pg",),
            script="\nALTER FUNCTION once.top() RENAME TO begin;\n",
        ),
        Mutation(
            "copied_progress",
            "a relay takes progress that came with a dump for its own",
            rules=("dumps_restore",),
            doors=("sql",),
            faults=("delay:client-pg",),
            functions=(("_relay_own", "r.written_by = r.xmin", "true"),),
        ),
        Mutation(
            "ids_of_their_days",
            "the consumer takes a message's id for the key of its day, and what is older than that for too late",
            rules=("none_buried",),
            doors=("message",),
            faults=("delay:client-broker",),
            files=(("consume/identify.c", "opaque && may_be_uuidv7(bytes) ?", "opaque && may_be_uuidv7(bytes) && false ?"),),
            target="cli/pgonce",
        ),
        Mutation(
            "ack_before_commit",
            "the consumer acknowledges a message whatever its COMMIT says",
            rules=("order_per_aggregate", "nothing_lost"),
            doors=("sql", "lib", "message"),
            faults=("cut:consumer-pg", "loss:consumer-pg", "delay:consumer-pg", "kill:warehouse"),
            files=(("runtime/database.c", "PQclear(result); return committed; }", "PQclear(result); return committed || true; }"),),
            target="cli/pgonce",
        ),
        Mutation(
            "partition_stays_paused",
            "a partition that goes to another consumer is paused, and is not read when it comes back",
            rules=("partitions_read",),
            doors=("sql", "lib", "message"),
            faults=("churn:consume-b",),
            files=(
                (
                    "consume/sources/kafka.c",
                    "lose_partitions(source, partitions); if (incremental) {",
                    "lose_partitions(source, partitions); (void)rd_kafka_pause_partitions(source->client, partitions); if (incremental) {",
                ),
            ),
            target="cli/pgonce",
            broker="kafka",
            scale=0.005,  # once: what the next one takes away may come back to a process that reads it
        ),
        Mutation(
            "retention_by_wall_clock",
            "what the clock says is believed at once",
            rules=("at_most_one", "same_bytes"),
            doors=("sql", "lib"),
            faults=("clock",),
            functions=(("_clock_held", "RETURN CASE WHEN clock.read_at IS NULL THEN 'no keeper has read the clock yet' ELSE format('the clock is not steady yet: %s at %s', clock.why, clock.unsteady_since) END;",
                        "RETURN NULL;"),),
        ),
        Mutation(
            "guard_lets_in",
            "the guard of a divided node does not look whether the slot is open",
            rules=("at_most_one",),
            doors=("sql/accounts", "sql/fenced", "lib/accounts"),
            faults=("move",),
            functions=(("_guard", "pg_sequence_last_value((%L::regclass[])[once.slot_of(tenant)]) %% 2 = 1", "true"),),
            topology="servers",
        ),
        Mutation(
            "opens_before_it_closes",
            "pgonce rehome opens a slot at the new node while it is open at the old one",
            rules=("open_on_one_node", "at_most_one"),
            doors=("sql/accounts", "sql/fenced", "lib/accounts"),
            faults=("move",),
            functions=(
                ("_move_close", "NOT once_job.close_slot(slot, wait)", "false"),
                ("_move_hand_over", " AND state = (epoch - 1) * 2", ""),
                ("_move_hand_over", "PERFORM setval(to_regclass('once.slot_' || slot || '_seq'), epoch * 2);", ""),
            ),
            topology="servers",
        ),
        Mutation(
            "no_anchor",
            "the anchor of a node of Citus changes no shard: the node with the effect commits before the memory, by itself",
            rules=("at_most_one", "one_effect_per_acknowledged"),
            doors=("sql/accounts", "sql/fenced", "lib/accounts"),
            faults=("move", "kill", "backend"),
            functions=(("anchor", "DELETE FROM public.once_anchor AS a WHERE a.n = %s;", "PERFORM %s;"),),
            topology="citus",
        ),
        Mutation(
            "node_commit_believed",
            "the Node client takes a COMMIT whose answer is lost for a success, and asks nobody",
            rules=("one_effect_per_acknowledged", "same_bytes"),
            doors=("node/transaction",),
            faults=("cut:client-pg", "loss:client-pg", "delay:client-pg", "kill:primary"),
            files=(
                (
                    "clients/node/lib/transaction.js",
                    "throw marked(error, {lost: session.lost, unanswered: this.commitSent && session.lost});",
                    "if (!(this.commitSent && session.lost)) throw error;",
                ),
            ),
            language="node",
        ),
        Mutation(
            "python_error_swallowed",
            "the Python client says that it is done where a statement had failed, so that COMMIT rolled back",
            rules=("one_effect_per_acknowledged", "same_bytes"),
            doors=("python/transaction",),
            faults=(),  # it needs none
            files=(
                (
                    "clients/python/src/pgonce/_core.py",
                    "typed = typed_of(raised, sqlstate, attempt.committing)",
                    "typed = typed_of(raised, sqlstate, attempt.committing)\n"
                    "            if isinstance(typed, errors.SwallowedError):\n"
                    "                return Answer(replayed=False, state='succeeded', status=201, body=b'')",
                ),
            ),
            language="python",
        ),
        Mutation(
            "go_failure_keeps_effect",
            "the Go client stores a failure for good and does not take its effect back",
            rules=("one_effect_per_acknowledged",),
            doors=("go/transaction",),
            faults=(),  # it needs none
            files=(("clients/go/attempt.go", "commands = append(commands, undo)", "_ = undo"),),
            language="go",
        ),
        Mutation(
            "java_claims_anothers",
            "the Java client takes the lease of whoever is at work for its own",
            rules=("at_most_one", "same_bytes"),
            doors=("java/doubtful", "java/verified"),
            faults=(),  # it needs none
            files=(("clients/java/pgonce/src/main/java/io/pgonce/Claim.java", " && owner.equals(there.owner())", ""),),
            language="java",
        ),
        Mutation(
            "java_commit_denied",
            "the Java client says of a COMMIT whose answer is lost that nothing was committed, and asks nobody",
            rules=("none_for_refused",),
            doors=("java/transaction",),
            faults=("half_open:client-pg", "cut:client-pg", "kill:primary"),
            files=(
                (
                    "clients/java/pgonce/src/main/java/io/pgonce/Execution.java",
                    "inDoubt = inDoubt || (commitSent && (lost || !Retries.isRolledBack(sqlState)));",
                    "inDoubt = false;",
                ),
                (
                    "clients/java/pgonce/src/main/java/io/pgonce/Execution.java",
                    "(connected ? lost || (commitSent && inDoubt) : inDoubt || lostBefore);",
                    "(connected ? lost && !commitSent : lostBefore);",
                ),
            ),
            language="java",
        ),
        Mutation(
            "node_http_stores_apart",
            "the Node middleware commits the effect, and stores its answer in a transaction of its own",
            rules=("at_most_one", "none_for_refused"),
            doors=("node/http",),
            faults=("delay:client-pg", "cut:client-pg", "kill:node-service"),
            files=(
                (
                    "clients/node/lib/guard.js",
                    "if (effect === 'done') return this.attempt.finish(stored, large);",
                    "if (effect === 'done') {\n"
                    "      return this.attempt.commit([]).then(() => Attempt.begin(this.pool, this.attempt.intent)).then(({attempt}) => attempt.finish(stored));\n"
                    "    }",
                ),
            ),
            language="node",
        ),
        Mutation(
            "node_half_is_stored",
            "the Node middleware stores what there is of an answer that its handler broke off, with the effect",
            rules=("nothing_of_the_broken", "whole_answers"),
            doors=("node/http",),
            faults=(),  # it needs none
            files=(("clients/node/lib/held.js", "this.#guard.broken();", "if (this.#head) this.#guard.end(this.#head, Buffer.concat(this.#pieces));"),),
            language="node",
        ),
        Mutation(
            "fastify_answers_at_once",
            "the plugin for Fastify lets the answer through as it comes, and neither commits its effect nor stores it",
            rules=("one_effect_per_acknowledged",),
            doors=("node/http/fastify",),
            faults=(),  # it needs none
            files=(("clients/node/lib/fastify.js", "new Held(req, reply.raw, guard, {outer: outerOf(reply), failed});", "if (!Held) failed();"),),
            language="node",
        ),
        Mutation(
            "go_http_answers_unheard",
            "the Go middleware sends the handler's answer, whatever became of its transaction",
            rules=("one_effect_per_acknowledged", "same_bytes"),
            doors=("go/http",),
            faults=("cut:client-pg", "loss:client-pg", "delay:client-pg", "kill:primary"),
            files=(("clients/go/middleware.go", "case err != nil && final == nil: m.failed(c, err)", "case err != nil && final == nil && c.answer == nil:\n\t\tm.failed(c, err)"),),
            language="go",
        ),
        Mutation(
            "go_doubt_is_denied",
            "the Go middleware says of a handler under a lease whose end it does not know that nothing was done",
            rules=("at_most_one",),
            doors=("go/leased",),
            faults=(),  # it needs none
            files=(("clients/go/middleware.go", "lease.fail(c.ctx, nil, code, message, Answer{Status: status})", "lease.fail(c.ctx, true, code, message, Answer{Status: status})"),),
            language="go",
        ),
        Mutation(
            "python_commit_is_sent",
            "the Python client sends an effect's COMMIT, though it would part it from its outcome",
            rules=("nothing_of_the_broken",),
            doors=("python/transaction",),
            faults=(),  # it needs none
            files=(("clients/python/src/pgonce/_control.py", "raise UsageError(REFUSED.format(found.refused))", "pass"),),
            language="python",
        ),
        Mutation(
            "python_receive_commits",
            "the Python client's receive commits the memory of a message before its effect",
            rules=("one_effect_per_acknowledged",),
            doors=("python/receive",),
            faults=(),  # it needs none
            files=(
                (
                    "clients/python/src/pgonce/client.py",
                    "return bool( drive(_core.within(_own(tx), _sql.RECEIVE[kind], [*arguments, consumer, message_id, traceparent])) == \"process\" )",
                    "told = drive(_core.within(_own(tx), _sql.RECEIVE[kind], [*arguments, consumer, message_id, traceparent])) == 'process'\n"
                    "    tx.commit()\n"
                    "    tx.execute('SELECT')\n"
                    "    return told",
                ),
            ),
            language="python",
        ),
        Mutation(
            "sqlalchemy_failure_keeps_effect",
            "the Python client stores a failure for good through a session of SQLAlchemy, and does not take its effect back",
            rules=("one_effect_per_acknowledged",),
            doors=("python/transaction/sqlalchemy-psycopg",),
            faults=(),  # it needs none
            files=(
                (
                    "clients/python/src/pgonce/_alchemy.py",
                    "row = [self._row(self.tx.execute(*self._spelled(each))) for each in statements][-1]",
                    "row = [self._row(self.tx.execute(*self._spelled(each))) for each in statements if each[0] != _sql.ROLLBACK_TO_SAVEPOINT][-1]",
                ),
            ),
            language="python",
        ),
        Mutation(
            "django_half_is_stored",
            "the middleware for Django takes what there is of an answer that its view broke off for a whole one",
            rules=("nothing_of_the_broken", "whole_answers"),
            doors=("python/http/django",),
            faults=(),  # it needs none
            files=(
                (
                    "clients/python/src/pgonce/django.py",
                    "found, pieces = held(request.method, answer.status_code, headers, said, answer)",
                    "def forgiving(stream: Any) -> Any:\n"
                    "        try:\n"
                    "            yield from stream\n"
                    "        except Exception:\n"
                    "            pass\n\n"
                    "    found, pieces = held(request.method, answer.status_code, headers, forgiving(said), answer)",
                ),
            ),
            language="python",
        ),
        Mutation(
            "fastapi_half_is_stored",
            "the middleware for ASGI takes what there is of an answer that its application broke off for a whole one",
            rules=("nothing_of_the_broken", "whole_answers"),
            doors=("python/http/fastapi-psycopg-async",),
            faults=(),  # it needs none
            files=(
                (
                    "clients/python/src/pgonce/asgi.py",
                    "timer.cancel() told = await self._ended(raised, task)",
                    "timer.cancel()\n"
                    "            if self.pieces and not self.settled:\n"
                    "                await self._whole()\n"
                    "            told = await self._ended(raised, task)",
                ),
            ),
            language="python",
        ),
        Mutation(
            "jpa_forgets_commit",
            "the Spring Boot starter does not commit the transactions of JPA's manager",
            rules=("one_effect_per_acknowledged",),
            doors=("java/http/spring-jpa",),
            faults=(),  # it needs none
            files=(
                (
                    "clients/java/pgonce-spring-boot-starter/src/main/java/io/pgonce/spring/SpringTransactions.java",
                    "manager.commit(status);",
                    "if (manager instanceof DataSourceTransactionManager) {\n                    manager.commit(status);\n                }",
                ),
            ),
            language="java",
        ),
        Mutation(
            "java_receive_remembers_nothing",
            "the Java client's receive says of each message that it is new, whatever the contract says",
            rules=("at_most_one",),
            doors=("java/receive",),
            faults=(),  # it needs none
            files=(
                (
                    "clients/java/pgonce/src/main/java/io/pgonce/Tx.java",
                    'return Sql.receive(connection, name, Objects.requireNonNull(payload, "payload"), traceparent);',
                    "Sql.receive(connection, name, payload, traceparent);\n            return true;",
                ),
            ),
            language="java",
        ),
    )
}  # fmt: skip
