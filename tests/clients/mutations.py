#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""A client with one of its guarantees taken out, again and again: the test that must notice. Each mutant is a copy of the client beside links to all else, so
that its tests find what they need; first the tests must pass on a copy that was not changed.

    mutations.py LANGUAGE...          what `make test-clients MUTATIONS=yes` runs, after that client's own test.sh, which brings what the tests need
    mutations.py go --only secrets    those whose name has this in it

A mutant whose test does not end has been noticed: it gets a minute, and what all tests took on the copy that was not changed."""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "build/mutants"
LIMIT_S = 3600
CLEAN_UP_S = 20
LEFT_OUT = ("node_modules", ".venv", "__pycache__", ".mypy_cache", "target")
GUARANTEES = (
    "whole-answers", "whole-requests", "clients-that-leave", "transaction-control", "mismatch", "transaction-gone", "pool", "secrets", "time", "repeated-headers", "replay", "event-streams", "gateway",
    "refusals", "lost-claims", "nodes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutation:
    guarantee: str
    file: str  # of the client
    old: str
    new: str
    test: tuple  # what the client's runner is told; see the functions below
    also: tuple = ()  # (file, old, new) of further guards, where several hold and none alone is missed

    @property
    def places(self):
        return ((self.file, self.old, self.new), *self.also)


def node(file, *patterns):
    return (file, "|".join(patterns))


DRIVER = "tests/clients/test_agents.py"


def case(way):
    """A case of spec/cases by the language's agent: LANGUAGE-DRIVER[-FRAMEWORK]-CASE."""
    return (DRIVER, f"[{way}]")


NODE = (
    Mutation("whole-answers", "lib/held.js", "if (!bodiless && declared !== undefined && Number(declared) !== body.length) return this.#guard.refuse(SHORT, reasons.NO_ANSWER);", "void declared;",
             node("answers", "express: an answer that is shorter or longer than it says is refused")),
    Mutation("whole-requests", "lib/body.js", "const brokenOff = () => done(undefined);", "const brokenOff = () => done(Buffer.concat(pieces));",
             node("answers", "express: a request that breaks off is not taken for a whole one"),
             also=(("lib/body.js", "return !req.aborted && !req.stream?.aborted && (body === null || declared === undefined || body.length === Number(declared));", "return body !== declared;"),
                   ("lib/middleware.js", "req.stream.destroyed : req.socket.destroyed === true || req.socket.writableEnded === true);", "req.stream.destroyed : false);"))),
    Mutation("clients-that-leave", "lib/held.js", "destroyed: {get: () => false, set:", "destroyed: {get: () => destroyed, set:",
             node("answers", "express: a client that leaves does not make half an answer of a whole one")),
    Mutation("transaction-control", "lib/lent.js", "if (kind === undefined) return client.query(...args);", "if (kind !== 'begin') return client.query(...args);",
             case("node-pg-an-effect-that-would-end-its-transaction")),
    Mutation("mismatch", "lib/request.js", "req.headers['content-type'] ?? '', body, canonicalJson", "req.headers['content-type'] ?? '', body: Buffer.alloc(0), canonicalJson",
             case("node-pg-express-another-request-is-a-mismatch")),
    Mutation("mismatch", "lib/body.js", "if (req.readableEnded || req.readableDidRead || req._body) throw new Error(READ_BEFORE);", "if (req.readableEnded || req.readableDidRead || req._body) return Buffer.alloc(0);",
             node("neighbours", "a parser before ours keeps the bytes")),
    Mutation("transaction-gone", "lib/guard.js", "if (known.code === 'not_started') return {answer: await this.#doubtful(known)};", "",
             node("effects", "a request whose handler has ended the transaction by itself is in doubt")),
    Mutation("transaction-gone", "lib/transaction.js", "      if (ELSEWHERE.has(error.code)) throw errors.ofSqlstate('P4012');\n", "", case("node-pg-failed-for-good-after-its-transaction")),
    Mutation("transaction-gone", "lib/transaction.js", "if (ELSEWHERE.has(await this.session.close(contract.ROLLBACK_TO))) this.elsewhere = true;", "await this.session.close();",
             case("node-pg-threw-in-another-transaction")),
    Mutation("pool", "lib/session.js", "      late = true;\n      reject(errors.noConnection(pool, ms));", "",
             node("answers", "express: a full pool is waited for as long as the handler may take, and named")),
    Mutation("secrets", "lib/headers.js", "(!control(name) && SECRET.some((word) => name.toLowerCase().includes(word)))", "(!control(name) && false)",
             case("node-pg-express-headers-that-are-kept")),
    Mutation("time", "lib/guard.js", "attempt.session.expired = () => this.#expire();", "attempt.session.expired = () => {};",
             node("answers", "express: a handler that never answers is ended in time")),
    Mutation("repeated-headers", "lib/answer.js", "of[1].push(value);", "of[1] = [value];",
             node("neighbours", "headers that outer middleware has set are on refusals and replays")),
    Mutation("replay", "lib/answer.js", "return [...kept.filter(([name]) => !names.has(name.toLowerCase())), ...own];", "void names;\n  return own;",
             node("neighbours", "headers that outer middleware has set are on refusals and replays")),
    Mutation("replay", "lib/headers.js", "pairs.filter(([name]) => !never(name)) : undefined;", "pairs : undefined;",
             case("node-pg-express-what-was-stored-by-hand")),
    Mutation("event-streams", "lib/held.js", "    if (EVENTS.test(res.getHeader('content-type') ?? '')) this.#settle(this.#guard.stream(this.#head));\n", "",
             case("node-pg-express-event-streams-pass")),
    Mutation("gateway", "lib/handoff.js", "if (results.at(-1).rows[0][0] !== 't') throw errors.ofSqlstate('P4010');", "void results;",
             node("gateway", "two runs under one fence have one effect, though their answers are the same")),
    Mutation("gateway", "lib/handoff.js", "      await this.#free();\n", "      await Promise.resolve();\n", node("gateway", "a COMMIT that is lost under a claim")),
    Mutation("refusals", "lib/lease.js", "return status >= 400 ? 'refused' : 'done';", "return 'done';",
             case("node-pg-express-refused-under-a-lease-then-run")),
    Mutation("refusals", "lib/lease.js", "(answer.resultType ? held.complete(answer) : held.fail(false, {...reasons.REFUSED, answer}))", "held.fail(false, {...reasons.REFUSED, answer})",
             case("node-pg-express-a-refusal-under-a-lease-above-the-limit")),
    Mutation("refusals", "lib/guard.js", "|| status < 200 || status >= 500 ? 'none'", "|| status < 200 || (status >= 500 && status <= 599) ? 'none'",
             case("node-pg-express-a-status-above-599")),
    Mutation("lost-claims", "lib/transaction.js", "      lostBefore ||= mark.lost === true;\n", "", case("node-pg-a-claim-whose-backend-lives-on")),
    Mutation("nodes", "lib/route.js", "if (hasBegun || !(refused instanceof errors.SlotClosed)) throw error;", "if (hasBegun || refused) throw error;", case("node-pg-nodes-a-slot-has-moved")),
    Mutation("nodes", "lib/route.js", "      return tried(await this.poolOf(tenant, refused));", "      return this.at(tenant, attempt);", case("node-pg-nodes-a-slot-is-open-nowhere")),
    Mutation("nodes", "lib/route.js", "      hasBegun = true;\n", "", node("nodes", "a refusal within the effect is the effect's own")),
    Mutation("nodes", "index.js", ".catch((error) => this.#gone(attempt.intent, error, options));",
             ".catch((error) => (error.code === 'P4097' ? this.#attempt(intent, effect, options, settled) : this.#gone(attempt.intent, error, options)));",
             case("node-pg-nodes-finish-is-refused")),
    Mutation("nodes", "lib/nodes.js", "each.epoch > best.epoch ? each : best", "each.epoch < best.epoch ? each : best", case("node-pg-nodes-the-higher-epoch-wins")),
    Mutation("nodes", "lib/nodes.js", "each.open && each.epoch === highest.epoch", "each.open", case("node-pg-nodes-a-higher-epoch-is-closed")),
    Mutation("nodes", "lib/nodes.js", "tries < 2 && !(found.epoch > refused.epoch)", "tries < 2", node("nodes", "what a node said before is valid while it is away")),
    Mutation("nodes", "lib/nodes.js", "    this.#asking ??= Promise.all(", "    this.#asking = Promise.all(", case("node-pg-nodes-many-tenants-share-an-inquiry")),
    Mutation("nodes", "lib/nodes.js", "if (this.#nodes.some(({away}) => away)) return", "if (this.#nodes.every(({away}) => away)) return", case("node-pg-nodes-one-is-away")),
    Mutation("nodes", "lib/nodes.js", "performance.now() - this.#askedAt >= AGAIN_MS", "performance.now() - this.#askedAt >= 0", node("nodes", "a node that is away is named, without its password")),
    Mutation("nodes", "lib/nodes.js", "const {host, port, database} = new pool.Client(pool.options);", "const {password: host, port, database} = new pool.Client(pool.options);",
             node("nodes", "a node that is away is named, without its password")),
    Mutation("nodes", "lib/transaction.js", " && !(known instanceof errors.SlotClosed) &&", " &&", case("node-pg-nodes-a-commit-is-lost-and-the-slot-closes")),
    Mutation("nodes", "lib/transaction.js", " && known.code !== 'contract';", ";", node("vectors", "a database without the contract does not settle what became of a lost COMMIT, and before it nothing was done")),
    Mutation("nodes", "lib/transaction.js", "isReport && known instanceof errors.SlotClosed", "false", case("node-pg-nodes-a-report-meets-a-move")),
    Mutation("nodes", "lib/transaction.js", "const isMoving = isReport && ", "const isMoving = ", case("node-pg-nodes-a-slot-is-open-nowhere")),
    Mutation("nodes", "lib/nodes.js", "this.#nodes.find(({slots}) => others.length > 0 && slots?.length === 0)", "undefined", case("node-pg-nodes-another-that-is-not-divided")),
)  # fmt: skip

PYTHON = (
    Mutation("whole-answers", "src/pgonce/http.py", "if any(not each.isdigit() or int(each) != length for each in said) and", "if not said and",
             ("tests/test_flask.py", "test_an_answer_that_is_not_whole_is_not_stored")),
    Mutation("whole-requests", "src/pgonce/asgi.py", '            if message["type"] == "http.disconnect":\n                raise _Left()\n', '            if message["type"] == "http.disconnect":\n                break\n',
             ("tests/test_fastapi.py", "test_half_a_request_is_none"),
             also=(("src/pgonce/asgi.py", "if consumed or (length and length[0].isdigit() and int(length[0]) > len(body)):", "if consumed:"),)),
    Mutation("whole-requests", "src/pgonce/_wsgi.py", "return length.isdigit() and len(body) < int(length)", "return False",
             ("tests/test_flask.py", "test_half_a_request_is_none"),
             # Werkzeug's stream refuses a short body too.
             also=(("src/pgonce/flask.py", "    body = request.get_data()\n", '    body = request.environ["wsgi.input"].read(request.content_length or 0)\n'),)),
    Mutation("whole-requests", "src/pgonce/_wsgi.py", "return length.isdigit() and len(body) < int(length)", "return False",
             ("tests/test_django.py", "test_half_a_request_is_none")),
    Mutation("clients-that-leave", "src/pgonce/asgi.py", "        await self.answered.wait()\n", "",
             ("tests/test_fastapi.py", "test_a_client_that_leaves_while_the_handler_streams_has_a_whole_answer_stored")),
    Mutation("transaction-control", "src/pgonce/_control.py", "raise UsageError(REFUSED.format(found.refused))", "pass",
             case("python-psycopg-an-effect-that-would-end-its-transaction")),
    Mutation("mismatch", "src/pgonce/_wsgi.py", 'environ.get("CONTENT_TYPE", ""), body, policy', 'environ.get("CONTENT_TYPE", ""), b"", policy',
             ("tests/test_flask.py", "test_a_form_that_a_csrf_check_has_read_is_compared_all_the_same")),
    Mutation("mismatch", "src/pgonce/asgi.py", "if consumed or (length and length[0].isdigit() and int(length[0]) > len(body)):", "if False and consumed:",
             ("tests/test_fastapi.py", "test_a_body_that_an_outer_layer_has_read_is_refused_before_the_handler")),
    Mutation("transaction-gone", "src/pgonce/_core.py", "parted = kind is Attempt and (yield from parts(attempt, raised, sqlstate, lost))", "parted = False",
             ("tests/test_transactions.py", "test_an_effect_whose_transaction_is_gone_is_in_doubt_and_never_runs_again")),
    Mutation("transaction-gone", "src/pgonce/_gate.py", "attempt.parted = yield from _core.parts(attempt, raised, sqlstate, lost)", "attempt.parted = False",
             ("tests/test_django.py", "test_a_view_whose_transaction_is_gone_is_in_doubt_and_never_runs_again")),
    Mutation("transaction-gone", "src/pgonce/_core.py", "return (attempt.in_effect or swallowed) and (yield from has_left(attempt))", "return False",
             case("python-psycopg-threw-in-another-transaction")),
    Mutation("transaction-gone", "src/pgonce/_gate.py", " or effect == http.NONE and (yield from _core.has_left(attempt))", "",
             case("python-psycopg-flask-a-5xx-in-another-transaction")),
    Mutation("pool", "src/pgonce/_drivers.py", "given.getconn(min(within, given.timeout))", "given.getconn(given.timeout)",
             ("tests/test_transactions.py", "test_a_pool_that_is_full_is_waited_for_as_long_as_the_call_may_take_and_named")),
    Mutation("secrets", "src/pgonce/http.py", ' or (not lower.startswith("access-control-") and any(word in lower for word in _SECRET))', "",
             case("python-psycopg-async-starlette-headers-that-are-kept")),
    Mutation("time", "src/pgonce/asgi.py", "call_later(max(0.0, within), self._cut, task)", "call_later(3600.0, self._cut, task)",
             ("tests/test_fastapi.py", "test_a_handler_that_takes_too_long_is_taken_back_and_its_client_told")),
    Mutation("time", "src/pgonce/_wsgi.py", "with Limit(policy.handler_ms / 1000 - ", "with Limit(3600.0 - ",
             ("tests/test_flask.py", "test_a_handler_that_takes_too_long_loses_its_transaction_and_its_client_is_told")),
    Mutation("repeated-headers", "src/pgonce/http.py", "    for name, value in headers:\n        if _kept", "    for name, value in dict(headers).items():\n        if _kept",
             ("tests/test_flask.py", "test_the_first_answer_is_the_views_own_and_every_answer_bears_the_headers_of_outer_layers")),
    Mutation("replay", "src/pgonce/_gate.py", '    headers.append(("Idempotency-Replayed", "true"))\n', "",
             case("python-psycopg-async-starlette-a-retry-gets-the-first-answer")),
    Mutation("replay", "src/pgonce/_gate.py", "    headers = [(name, value) for name, value in headers if not http.never(name)]\n", "",
             case("python-psycopg-async-starlette-what-was-stored-by-hand")),
    Mutation("event-streams", "src/pgonce/http.py", '.lower() == "text/event-stream" for name', '.lower() == "" for name', case("python-psycopg-async-starlette-event-streams-pass")),
    Mutation("gateway", "src/pgonce/_sql.py", "ELSE CAST(CAST({refused} AS text) AS bytea) END", "ELSE CAST(NULL AS bytea) END",
             ("tests/test_gateway.py", "test_two_runs_under_one_fence_have_one_effect_though_their_answers_are_the_same")),
    Mutation("gateway", "src/pgonce/_gate.py", "undone = yield from attempt.report()", "undone = True", ("tests/test_gateway.py", "test_a_commit_that_is_lost_under_a_claim")),
    Mutation("replay", "src/pgonce/_core.py", 'verdict_of_lost(peeked[13], terms.takeover)', '"new_claim"', case("python-psycopg-a-lost-claim-after-a-failure")),
    Mutation("refusals", "src/pgonce/_lease.py", "yield held.fail(False, outcome, code=_reasons.REFUSED[0], message=_reasons.REFUSED[1]) if refused else held.complete(outcome)", "yield held.complete(outcome)",
             case("python-psycopg-async-starlette-refused-under-a-lease-then-run")),
    Mutation("refusals", "src/pgonce/_lease.py", " and outcome is not without", "", case("python-psycopg-async-starlette-a-refusal-under-a-lease-above-the-limit")),
    Mutation("refusals", "src/pgonce/http.py", "or not 200 <= status <= 499 else DONE", "or 500 <= status <= 599 else DONE", case("python-psycopg-flask-a-status-above-599")),
    Mutation("refusals", "src/pgonce/_gate.py", "http.said_of(answer.headers) is None", "not any(name.lower() == http.EFFECT_HEADER for name, _ in answer.headers)",
             case("python-psycopg-async-starlette-once-effect-of-no-known-value")),
    Mutation("lost-claims", "src/pgonce/_core.py", "                patience = options.deadline\n", "                patience = options.wait\n",
             case("python-asyncpg-a-claim-whose-backend-lives-on")),
    Mutation("nodes", "src/pgonce/_core.py", "isinstance(typed, errors.SlotClosed) and self.source.routes and self.lent is None and self.refused is None", "False",
             case("python-psycopg-nodes-a-slot-has-moved")),
    Mutation("nodes", "src/pgonce/_core.py", " and self.lent is None and self.refused is None", " and self.refused is None", case("python-psycopg-nodes-finish-is-refused")),
    Mutation("nodes", "src/pgonce/_core.py", " and self.lent is None and self.refused is None", " and self.lent is None and attempts_left(self)", case("python-psycopg-nodes-a-slot-is-open-nowhere"),
             also=(("src/pgonce/_core.py", "class Attempt:\n", "def attempts_left(attempt: Any) -> bool:\n    _LEFT.append(attempt)\n    return len(_LEFT) < 5\n\n\n_LEFT: List[Any] = []\n\n\nclass Attempt:\n"),)),
    Mutation("nodes", "src/pgonce/_core.py", "        if not source.routes:\n            raise\n", "        raise\n", case("python-psycopg-nodes-a-slot-has-moved-before-a-claim")),
    Mutation("nodes", "src/pgonce/_core.py", ' and not isinstance(typed, errors.SlotClosed):\n                in_doubt', ":\n                in_doubt",
             case("python-psycopg-nodes-a-commit-is-lost-and-the-slot-closes")),
    Mutation("nodes", "src/pgonce/_core.py", "again = again or report and isinstance(raised, errors.SlotClosed)", "pass", case("python-psycopg-nodes-a-report-meets-a-move")),
    Mutation("nodes", "src/pgonce/_core.py", "again = again or report and isinstance", "again = again or isinstance", case("python-psycopg-nodes-a-slot-is-open-nowhere")),
    Mutation("nodes", "src/pgonce/client.py", "return self._renew(self._options.deadline)", "return self._renew()", case("python-psycopg-nodes-a-report-meets-a-move")),
    Mutation("nodes", "src/pgonce/aio.py", "self._renewing(self._options.deadline)", "self._renewing()", case("python-psycopg-async-nodes-a-report-meets-a-move")),
    Mutation("nodes", "src/pgonce/_gate.py", "if attempt.moves(typed):", "if False:", case("python-asyncpg-fastapi-nodes-behind-a-middleware")),
    Mutation("nodes", "src/pgonce/_nodes.py", "highest = max(place", "highest = min(place", case("python-psycopg-nodes-the-higher-epoch-wins")),
    Mutation("nodes", "src/pgonce/_nodes.py", "if place.slot.is_open and place.slot.epoch == highest]", "if place.slot.is_open]", case("python-psycopg-nodes-a-higher-epoch-is-closed"),
             also=(("src/pgonce/_nodes.py", " if place.slot.epoch == highest)\n", ")\n"),)),
    Mutation("nodes", "src/pgonce/_nodes.py", "if place.fault is None and refused.epoch is not None and place.slot.epoch > refused.epoch:", "if False:",
             ("tests/test_nodes.py", "test_what_a_node_said_before_is_valid_while_it_is_away_unless_another_one_knows_a_higher_epoch")),
    Mutation("nodes", "src/pgonce/_nodes.py", "            under_way = self._under_way.get(name)\n", "            under_way = None\n",
             ("tests/test_nodes.py", "test_a_thousand_tenants_at_once_share_one_inquiry_of_the_slots_and_each_asks_for_its_own_slot_once"),
             also=(("src/pgonce/_nodes.py", "                del self._under_way[name]\n        return mine", "                self._under_way.pop(name, None)\n        return mine"),)),
    Mutation("nodes", "src/pgonce/_nodes.py", "return asyncio.shield(task)", "return task",
             ("tests/test_nodes.py", "test_a_task_that_is_cancelled_does_not_end_the_inquiry_that_others_wait_for")),
    Mutation("nodes", "src/pgonce/_nodes.py", "if not found and any(", "if not found and all(", case("python-psycopg-nodes-one-is-away")),
    Mutation("nodes", "src/pgonce/_nodes.py", ">= AGAIN_S:", ">= 0.0:", ("tests/test_nodes.py", "test_a_node_that_is_away_is_asked_again_after_a_second")),
    Mutation("nodes", "src/pgonce/_nodes.py", "            if node.slots == []:\n                if alone:", "            if node.slots == []:\n                if alone or node:",
             case("python-psycopg-nodes-another-that-is-not-divided")),
)  # fmt: skip

SUITE = "./internal/suite"
GO = (
    Mutation("whole-answers", "held.go", "short = h.declared >= 0 && ", "short = false && h.declared >= 0 && ", (SUITE, "TestAnAnswerThatIsBrokenOffIsTakenBackAndBreaksAsWithoutUs")),
    Mutation("whole-requests", "middleware.go", "	case err != nil:\n		// It was cut short", "	case err != nil && false:\n		// It was cut short", (SUITE, "TestHalfARequestIsNone")),
    Mutation("clients-that-leave", "call.go", "c.visible.Load() || cause != context.Canceled {", "true {", (SUITE, "TestAClientThatLeavesFindsTheWholeAnswerLater")),
    Mutation("transaction-control", "oncepgx/transaction.go", "		if kind.Ends {\n			return t.refuse()\n		}\n", "", (SUITE, "TestTransactionControlIsRefusedBeforeItIsSent")),
    Mutation("mismatch", "middleware.go", "Body: c.body, CanonicalJSON", "CanonicalJSON", case("go-pgx-net-http-another-request-is-a-mismatch")),
    Mutation("mismatch", "middleware.go", "case isTaken(c.r, len(body), read):", "case false && isTaken(c.r, len(body), read):", (SUITE, "TestABodyThatALayerOutsideHasReadIsRefusedOrKept")),
    Mutation("transaction-gone", "attempt.go", "	a.isGone = session.Gone() || isAnother(session.Undo(closing, undo))\n	return a.isGone\n", "	return session.Gone() || isAnother(session.Undo(closing, undo))\n",
             (SUITE, "TestATransactionThatIsGoneLeavesADoubtAndNoSecondEffect")),
    Mutation("transaction-gone", "attempt.go", "case isAnother(err), errors.Is(", "case isAnother(err) && false, errors.Is(", case("go-sql-failed-for-good-in-another-transaction")),
    Mutation("transaction-gone", "attempt.go", "session):\n		return ErrTransactionEnded.because(undeclared(cause))", "session):\n		return ErrTransactionEnded.because(cause)",
             case("go-pgx-net-http-a-refusal-after-its-transaction")),
    Mutation("transaction-gone", "attempt.go", " || isAnother(session.Undo(closing, undo))", "", case("go-sql-threw-in-another-transaction")),
    Mutation("pool", "attempt.go", "context.WithTimeout(asking, o.within)", "context.WithTimeout(asking, o.within+time.Minute)", (SUITE, "TestAFullPoolIsNamedAndRecovers")),
    Mutation("secrets", "headers.go", "slices.ContainsFunc(secretWords, func", "slices.ContainsFunc(secretWords[:0], func", case("go-pgx-net-http-headers-that-are-kept")),
    Mutation("time", "call.go", "c.timer = time.AfterFunc(limit, func", "c.timer = time.AfterFunc(time.Hour, func", (SUITE, "TestAHandlerWhoseTimeIsOverIsEndedTakenBackAndItsConnectionReturned")),
    Mutation("repeated-headers", "headers.go", "for _, value := range header[name] {", "for _, value := range header[name][:1] {", (".", "TestHeadersComeBackAsTheyWereStored")),
    Mutation("replay", "refuse.go", '	header.Set("Idempotency-Replayed", "true")\n', "", case("go-pgx-net-http-a-retry-gets-the-first-answer")),
    Mutation("replay", "refuse.go", "		if !never(name) {", "		if true {", case("go-pgx-net-http-what-was-stored-by-hand")),
    Mutation("replay", "client.go", "		return ErrOutcomeUnknown.because(err)\n", "		return ErrUnavailable.because(err)\n", case("go-sql-lost-commit-that-cannot-be-asked-for")),
    Mutation("replay", "client.go", "			inDoubt, lostBefore = false, false\n", "", case("go-sql-lost-commit-before-an-error")),
    Mutation("event-streams", "held.go", "case status >= 200 && status < 300 && strings.HasPrefix", "case status < 0 && strings.HasPrefix", case("go-pgx-net-http-event-streams-pass")),
    Mutation("gateway", "handoff.go", '"SELECT 1 / r.stored::integer = 1 FROM ("', '"SELECT r.stored IS NOT NULL FROM ("', (SUITE, "TestTwoRunsUnderOneFenceHaveOneEffect")),
    Mutation("gateway", "handoff.go", "		_, err = insist(context.WithoutCancel(ctx), freeWithin,", "		_, _ = insist(context.WithoutCancel(ctx), freeWithin,",
             (SUITE, "TestACommitUnderAGatewaysClaimThatIsLostFreesTheKeyWhereNothingWasDone")),
    Mutation("refusals", "middleware.go", "return lease.final(c.ctx, newFinal(reasonRefused.code, reasonRefused.message, answer))", "return lease.done(c.ctx, answer)", case("go-pgx-net-http-refused-under-a-lease-then-run")),
    Mutation("refusals", "effect.go", "	case limit > 0:\n", "	case limit < 0:\n", case("go-pgx-net-http-a-refusal-under-a-lease-above-the-limit")),
    Mutation("lost-claims", "lease.go", "errors.Is(err, ErrActive) && (lost || time.Since(began) < o.wait)", "errors.Is(err, ErrActive) && time.Since(began) < o.wait",
             case("go-pgx-a-claim-whose-backend-lives-on")),
    # nodes: several of them share the tenants
    Mutation("nodes", "client.go", "if closed != nil && !rerouted {", "if closed != nil && false {", case("go-pgx-nodes-a-slot-has-moved")),
    Mutation("nodes", "client.go", "		closed = try.refused\n", "		closed = c.refusal(err)\n",
             (SUITE, "TestARefusalOfAnotherCallWithinTheEffectIsTheEffectsOwnError")),
    Mutation("nodes", "client.go", " && known.Code != ErrSlotClosed.Code", "", (SUITE, "TestALostCommitIsNotSettledByARefusal")),
    Mutation("nodes", "attempt.go", "	if !a.proceeded {\n		a.refused =", "	if true {\n		a.refused =", case("go-sql-nodes-finish-is-refused")),
    Mutation("nodes", "lease.go", "closed = c.refusal(err); closed != nil && !rerouted {", "closed = c.refusal(err); closed != nil && false {", case("go-pgx-nodes-a-slot-has-moved-before-a-claim")),
    Mutation("nodes", "lease.go", "own, is := err.(unrouted); is && !errors.Is(own, ErrUnavailable) {", "own, is := err.(unrouted); is && own.error == nil {",
             (SUITE, "TestAnErrorOfTheFunctionComesOutAsItIsAndNothingRuns")),
    Mutation("nodes", "lease.go", " && !isDown(err) && !isClosed(err)) {", " && !isDown(err)) {", case("go-pgx-nodes-a-report-meets-a-move")),
    Mutation("nodes", "lease.go", "isUnknown = isUnknown || !isClosed(err)", "isUnknown = true", case("go-pgx-nodes-a-report-has-a-deadline")),
    Mutation("nodes", "lease.go", "!isClosed(err) || sleep(ctx, backoff(tries)) != nil", "true", case("go-pgx-nodes-a-report-meets-a-move")),
    Mutation("nodes", "nodes.go", "		if closed = n.client.refusal(err); closed == nil {", "		if closed = n.client.refusal(err); true {", case("go-pgx-nodes-a-report-follows-its-intent")),
    Mutation("nodes", "nodes.go", "return one.Epoch < other.Epoch", "return false", case("go-pgx-nodes-the-higher-epoch-wins")),
    Mutation("nodes", "nodes.go", "best >= 0 && len(unheard) == 0:", "best >= 0:", case("go-sql-nodes-one-is-away")),
    Mutation("nodes", "nodes.go", "		case len(n.each) == 1:\n", "		case true:\n", case("go-pgx-nodes-another-that-is-not-divided")),
    Mutation("nodes", "nodes.go", "	if wanted == nil || isNews {\n		if n.next == nil {", "	if wanted == nil || isNews {\n		if true {", case("go-pgx-nodes-many-tenants-share-an-inquiry")),
    Mutation("nodes", "nodes.go", "Epoch > closed.Epoch):", "Epoch > closed.Epoch+100):", (".", "TestARefusalThatIsOlderThanWhatIsKnownAsksNobody")),
    Mutation("nodes", "nodes.go", "len(n.tenants) >= tenantSlotsMax", "false", (".", "TestNoMoreThan10000TenantsAreRemembered")),
    Mutation("nodes", "nodes.go", "	case <-wanted.done:\n		return nil\n	case <-ctx.Done():\n		return context.Cause(ctx)\n	}", "	case <-wanted.done:\n		return nil\n	}",
             (".", "TestACancelledContextEndsTheWaitForAnInquiryAndNotTheInquiry")),
    Mutation("nodes", "nodes.go", "closed == nil && isRecent", "closed == nil && isRecent && false", (".", "TestTheSlotsOfANodeThatIsAwayAreUnknownAndItIsAskedAgain")),
    Mutation("nodes", "nodes.go", "				n.told[i].err = told.err\n", "				n.told[i] = told\n", (".", "TestTheSlotsOfANodeThatIsAwayAreUnknownAndItIsAskedAgain")),
    Mutation("nodes", "nodes.go", "closed == nil && isRecent {", "closed == nil && (isRecent || errors.Is(err, ErrNotDivided)) {", (".", "TestANodeThatIsDividedLateIsAskedAgain")),
    Mutation("nodes", "oncepgx/oncepgx.go", "at.Host, at.Port, at.Database)", "at.Host, at.Port, at.Password)", (SUITE, "TestTheErrorOfANodeThatIsAwaySaysWhereItIsAndNoPassword")),
)  # fmt: skip

CORE, STARTER = "pgonce", "pgonce-spring-boot-starter"
CORE_SOURCE, STARTER_SOURCE = f"{CORE}/src/main/java/io/pgonce", f"{STARTER}/src/main/java/io/pgonce/spring"
JAVA = (
    Mutation("whole-answers", f"{STARTER_SOURCE}/HeldResponse.java", "} else if (declared >= 0 && declared != body.size()", "} else if (declared >= HELD_MAX && declared != body.size()",
             (STARTER, "NeighboursTest#halfAnAnswerIsNotStored")),
    Mutation("whole-requests", f"{STARTER_SOURCE}/HeldRequest.java", "        byte[] body = in.readNBytes(max + 1);\n",
             "        byte[] body = new byte[max + 1];\n        int size = 0;\n        try {\n            for (int b; size <= max && (b = in.read()) >= 0; size++) {\n                body[size] = (byte) b;\n"
             "            }\n        } catch (IOException brokenOff) {\n            isOver = false;\n        }\n        body = Arrays.copyOf(body, size);\n",
             (STARTER, "NeighboursTest#halfARequestDoesNothing"),
             also=((f"{STARTER_SOURCE}/HeldRequest.java", "(body.length < request.getContentLengthLong() &&", "(body.length < 0 &&"),)),
    Mutation("clients-that-leave", f"{STARTER_SOURCE}/HeldResponse.java", "        } else if (!ended) {\n            committed = true;\n",
             "        } else if (!ended) {\n            committed = true;\n            real().flushBuffer();\n",
             (STARTER, "NeighboursTest#whoLeavesIsNotNoticedByTheHandlerAndGetsTheWholeAnswerLater")),
    Mutation("mismatch", f"{STARTER_SOURCE}/HeldRequest.java", "} else if (isOver || (body.length <", "} else if (max < 0 || isOver && (body.length <",
             (STARTER, "SpringFaultsTest#aBodyThatAFilterHasReadBeforeIsRefusedAndNothingRuns")),
    Mutation("mismatch", f"{STARTER_SOURCE}/HttpOnce.java", 'request.getHeader("Content-Type"), body, canonicalJson)', 'request.getHeader("Content-Type"), new byte[0], canonicalJson)',
             (STARTER, "SpringFaultsTest#aFormThatAFilterHasReadBeforeIsToldFromAnother")),
    Mutation("transaction-control", f"{CORE_SOURCE}/TransactionControl.java", "                throw refusal(first);\n            }\n            changesRole", "                return false;\n            }\n            changesRole",
             (CORE, "TransactionControlTest#aTextIsRefusedHoweverItIsSent")),
    Mutation("transaction-gone", f"{CORE_SOURCE}/Sql.java", "return GONE.contains(String.valueOf(failure.getSQLState()));", "return GONE.isEmpty();",
             (CORE, "TransactionControlTest#whatEndsItsTransactionByItselfLeavesADoubt")),
    Mutation("transaction-gone", f"{CORE_SOURCE}/Execution.java", "            if (other != null) {\n                throw lost(other);", "            if (other != null) {\n                throw lost(null);", case("java-spring-jpa-spring-a-refusal-after-its-transaction")),
    Mutation("transaction-gone", f"{CORE_SOURCE}/Execution.java", "boolean asks = !ended && ", "boolean asks = ended && ", case("java-jdbc-swallowed-in-another-transaction")),
    Mutation("secrets", f"{CORE_SOURCE}/http/HeaderPolicy.java", '!lower.startsWith("access-control-") && SECRET', 'lower.isEmpty() && SECRET',
             case("java-spring-spring-headers-that-are-kept")),
    Mutation("time", f"{STARTER_SOURCE}/Deadline.java", "alarm = ms <= 0 ? null", "alarm = ms >= 0 ? null", (STARTER, "NeighboursTest#anAttemptThatTakesTooLongIsEndedAndTheClientTold")),
    Mutation("repeated-headers", f"{STARTER_SOURCE}/Replies.java", "} else if (!seen.add(name)) {\n                response.addHeader", "} else if (!seen.add(name)) {\n                response.setHeader",
             (STARTER, "NeighboursTest#headersAreAsOftenAndInTheOrderThatTheyWereSetAlsoInAReplay")),
    Mutation("replay", f"{STARTER_SOURCE}/Replies.java", "headers(HeaderPolicy.sendable(answer.headers()));", "headers(answer.headers());",
             case("java-spring-spring-what-was-stored-by-hand")),
    Mutation("replay", f"{STARTER_SOURCE}/Replies.java", '        response.setHeader("Idempotency-Replayed", "true");\n', "", case("java-spring-spring-a-retry-gets-the-first-answer")),
    Mutation("replay", f"{CORE_SOURCE}/Execution.java", "                inDoubt = false;\n                lostBefore = false;\n", "", case("java-jdbc-lost-commit-before-an-error")),
    Mutation("event-streams", f"{STARTER_SOURCE}/IdempotencyFilter.java", "} else if (request.isAsyncHeld() || isEvents(held.getContentType())) {", "} else if (isEvents(null)) {",
             (STARTER, "NeighboursTest#eventsPassAsTheyComeAndTheKeyIsRememberedAsDone")),
    Mutation("gateway", f"{CORE_SOURCE}/Execution.java", "        if (!stored) {\n            throw Reason.COMPLETION_REFUSED", "        if (!stored && !failed && large) {\n            throw Reason.COMPLETION_REFUSED",
             (STARTER, "GatewayTest#twoRunsUnderOneFenceHaveOneEffectThoughTheirAnswersAreTheSame")),
    Mutation("gateway", f"{CORE_SOURCE}/Execution.java", "        } catch (RuntimeException unsaid) {\n            return false;", "        } catch (RuntimeException unsaid) {\n            return true;",
             (STARTER, "GatewayTest#aCommitThatIsLostUnderAClaim")),
    Mutation("refusals", f"{CORE_SOURCE}/http/Ending.java", "IN_DOUBT : status < 400 ? STORED : FAILED;", "IN_DOUBT : STORED;", case("java-spring-spring-refused-under-a-lease-then-run")),
    Mutation("refusals", f"{CORE_SOURCE}/Once.java", "                if (!\"too_large\".equals(failure.code()) || !keepsLess()) {\n", "                if (true) {\n", case("java-spring-spring-a-refusal-under-a-lease-above-the-scopes-limit")),
    Mutation("lost-claims", f"{CORE_SOURCE}/Claim.java", "boolean ourselves = tries[0] > answered && !another[0];", "boolean ourselves = false;",
             case("java-jdbc-a-claim-whose-backend-lives-on")),
    # nodes: several of them share the tenants
    Mutation("nodes", f"{CORE_SOURCE}/Execution.java", "if (closed != null && !rerouted) {", "if (closed != null && false) {", case("java-jdbc-nodes-a-slot-has-moved")),
    Mutation("nodes", f"{CORE_SOURCE}/Execution.java", "closed = starting ? once.refusal(failure) : null;", "closed = once.refusal(failure);", (CORE, "NodesTest#aRefusalOfAnotherCallWithinTheEffectIsTheEffectsOwnException")),
    Mutation("nodes", f"{CORE_SOURCE}/Execution.java", "                starting = false;\n", "", case("java-jdbc-nodes-finish-is-refused")),
    Mutation("nodes", f"{CORE_SOURCE}/Execution.java", "                again = inDoubt; // no verdict", "                inDoubt = false; // no verdict", (CORE, "NodesTest#aLostCommitIsNotSettledByARefusal")),
    Mutation("nodes", f"{CORE_SOURCE}/Execution.java", "if (!routed || (!connected", "if ((!connected", (CORE, "NodesTest#whatTheFunctionThrowsComesOutAsItIsAndNothingRuns")),
    Mutation("nodes", f"{CORE_SOURCE}/Once.java", "!Retries.isRolledBack(state) || moving;", "!Retries.isRolledBack(state);", case("java-jdbc-nodes-a-report-meets-a-move")),
    Mutation("nodes", f"{CORE_SOURCE}/Once.java", "if (!rerouted || moving) {", "if (!rerouted) {", case("java-jdbc-nodes-a-report-meets-a-move")),
    Mutation("nodes", f"{CORE_SOURCE}/Once.java", "boolean moving = report && ", "boolean moving = ", case("java-jdbc-nodes-a-slot-is-open-nowhere")),
    Mutation("nodes", f"{CORE_SOURCE}/Once.java", "if (moving && !sent) {", "if (false) {", case("java-jdbc-nodes-a-report-has-a-deadline")),
    Mutation("nodes", f"{CORE_SOURCE}/Once.java", "                    closed = refusal(failure);\n", "", case("java-jdbc-nodes-a-report-follows-its-intent")),
    Mutation("nodes", f"{CORE_SOURCE}/Once.java", "report && (interrupted || (away && retries.pause()))", "report && away && retries.pause()", (CORE, "NodesTest#anInterruptDoesNotEndTheReportOfAClaimThatAsksTheNodes")),
    Mutation("nodes", f"{CORE_SOURCE}/OnceException.java", "case SLOT_CLOSED -> new SlotClosedException(this, message, cause);", "case SLOT_CLOSED -> new UnavailableException(this, message, cause);",
             (CORE, "NodesTest#aRefusalNamesTheSlotAndItsEpochAndIsCaughtAsItWasBefore")),
    Mutation("nodes", f"{CORE_SOURCE}/SlotClosedException.java", "(\\\\d{1,18})\\\\z", "(\\\\d{1,18})", (CORE, "NodesTest#aRefusalNamesTheSlotAndItsEpochAndIsCaughtAsItWasBefore")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "node.told.epochs[slot] > best.told.epochs[slot]", "false", case("java-jdbc-nodes-the-higher-epoch-wins")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "(best != null && unheard.isEmpty())", "best != null", case("java-jdbc-nodes-one-is-away")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "} else if (nodes.length > 1) {", "} else if (nodes.length < 1) {", case("java-jdbc-nodes-another-that-is-not-divided")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "        if (next == null) {\n", "        if (next == null || true) {\n", case("java-jdbc-nodes-many-tenants-share-an-inquiry")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "return size() > TENANTS_MAX;", "return false;", (CORE, "NodesTest#noMoreThan10000TenantsAreRemembered")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "epochs[slot] > closed.epoch())", "epochs[slot] > closed.epoch() + 100)", (CORE, "NodesTest#noMoreThan10000TenantsAreRemembered")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "if (node.asking == null || node.asking.isDone()) {", "if (true) {", (CORE, "NodesTest#aNodeThatHangsIsWaitedForInTimeAndNamedAndNotAskedBesides")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "return url.group(1);", "return url.group();", (CORE, "NodesTest#ofAUrlNothingIsToldButHostAndDatabase")),
    Mutation("nodes", f"{CORE_SOURCE}/Nodes.java", "            Thread.currentThread().interrupt();\n", "", (CORE, "NodesTest#anInterruptEndsTheWaitForAnInquiryAndNotTheInquiry")),
    Mutation("nodes", f"{CORE_SOURCE}/Execution.java", "        closed = null;\n", "", (STARTER, "NodesDataSourceTest#theFunctionGetsARefusalOnceAndNotWithLaterTransactionsOfTheCall")),
    Mutation("nodes", f"{STARTER_SOURCE}/SpringTransactions.java", "            DataSource outer = nodes.bind(node);\n", "            DataSource outer = node;\n", case("java-spring-spring-nodes-behind-a-middleware")),
    Mutation("nodes", f"{STARTER_SOURCE}/SpringTransactions.java", "                afterwards.run();\n", "", (STARTER, "NodesDataSourceTest#whatAnAttemptDoesOnItsThreadIsDoneAtTheNodeOfItsTenant")),
    Mutation("nodes", f"{STARTER_SOURCE}/SpringTransactions.java", "                if (!begun) {\n", "                if (!begun && isolation < 0) {\n", (STARTER, "NodesDataSourceTest#aNodeThatCannotBeReachedLeavesNothingOnTheThread")),
    Mutation("nodes", f"{STARTER_SOURCE}/NodesDataSource.java", "Once.tenantHere() == null ?", "true ?", (STARTER, "NodesDataSourceTest#whatAnAttemptDoesOnItsThreadIsDoneAtTheNodeOfItsTenant")),
    Mutation("nodes", f"{STARTER_SOURCE}/NodesDataSource.java", "return source.isWrapperFor(NodesDataSource.class) ?", "return source instanceof NodesDataSource ?", (STARTER, "NodesDataSourceTest#aCallThatIsRefusedIsSentOnceMoreAlsoIfTheDataSourceIsWrapped")),
)  # fmt: skip

MUTATIONS = {"node": NODE, "python": PYTHON, "go": GO, "java": JAVA}


class Wrong(Exception):
    """A mutation cannot be made, or does not compile."""


def grouped(tests):
    """The names of each place, in their order."""
    places = {}
    for place, name in tests:
        places.setdefault(place, []).append(name)
    return places.items()


def commands(language, tests):
    """What runs these tests in the copy, in as few programs as it takes."""
    if any(place == DRIVER for place, _ in tests):
        own = [each for each in tests if each[0] != DRIVER]
        wanted = " or ".join(name for place, name in tests if place == DRIVER)
        return [*(commands(language, own) if own else ()), ["/usr/bin/python3", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(ROOT / DRIVER), "-k", wanted]]
    if language == "node":
        return [["node", "--test", f"--test-name-pattern={'|'.join(names)}", f"test/{file}.test.js"] for file, names in grouped(tests)]
    if language == "python":
        python = os.environ.get("PGONCE_VENV", str(ROOT / "clients/python/.venv")) + "/bin/python"
        return [[python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(file for file, _ in grouped(tests)), "-k", " or ".join(name for _, name in tests)]]
    if language == "go":
        # The last part of a name differs: TestOne, or one within it.
        whole = [((package, name.rpartition("/")[0]), name.rpartition("/")[2]) for package, name in tests]
        runs = [(package, "/".join([*(f"^{part}$" for part in path.split("/") if part), f"^({'|'.join(names)})$"])) for (package, path), names in grouped(whole)]
        return [["go", "test", "-count=1", "-timeout", f"{LIMIT_S}s", "-run", pattern, package] for package, pattern in runs]
    modules = CORE if all(module == CORE for module, _ in tests) else f"{CORE},{STARTER}"
    methods = grouped(name.split("#") for _, name in tests)
    chosen = ",".join(f"{name}#{'+'.join(dict.fromkeys(some))}" for name, some in methods)
    return [["mvn", "-q", "-B", "-T1", "test", "-pl", modules, f"-Dtest={chosen}", "-Dsurefire.failIfNoSpecifiedTests=false"]]


# A run that failed for one of these has noticed nothing.
NO_RUN = re.compile(
    r"(?m)\[build failed\]|\[setup failed\]|COMPILATION ERROR|^(?:E +)?SyntaxError: |no tests ran|no tests to run|ERROR collecting|No tests were executed|Could not resolve dependencies"
)


def ended(command, here, environment, limit_s):
    """(its exit status, what it has said); (None, ...) where it did not end in time. It ends with all that it has started: runners have a program per file or module."""
    with subprocess.Popen(command, cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
            return process.returncode, said
        except BaseException as why:  # of Ctrl-C, too, they would not hear
            os.killpg(process.pid, signal.SIGINT)
            if not isinstance(why, subprocess.TimeoutExpired):
                raise
        try:  # their servers are taken down
            process.communicate(timeout=CLEAN_UP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        return None, ""


def run(language, tree, tests, limit_s=LIMIT_S):
    """(do they pass, what they have said)."""
    here = tree / "clients" / language
    environment = {**os.environ, "PGONCE_BUILD": os.environ.get("PGONCE_BUILD", str(ROOT / "build")), "PYTHONPATH": str(here / "src"), "PYTHONDONTWRITEBYTECODE": "1",
                   "PGONCE_CLIENT_DOORS": language, "PGONCE_CLIENT_TREE": str(tree)}  # fmt: skip
    environment["PATH"] += ":/usr/local/go/bin"
    environment.setdefault("MAVEN_OPTS", "-Xmx512m")
    environment.pop("PGONCE_CONFORMANCE_RESULTS", None)
    said = ""
    for command in commands(language, tests):
        status, spoken = ended(command, here, environment, limit_s)
        said += spoken
        if status is None:
            return False, f"{said}it did not end within {limit_s:.0f} s"
        if NO_RUN.search(said):
            raise Wrong(f"{' '.join(command)}:\n{said[-3000:]}")
        if status != 0:
            return False, said
    return True, said


def plant(language):
    """The tree with a copy of the client."""
    tree = PLACE / language
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "clients").mkdir(parents=True)
    for each in ROOT.iterdir():
        if each.name not in ("clients", ".git"):
            (tree / each.name).symlink_to(each)
    for each in (ROOT / "clients").iterdir():
        if each.name != language:
            (tree / "clients" / each.name).symlink_to(each)
    own = tree / "clients" / language
    shutil.copytree(ROOT / "clients" / language, own, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    if language == "node":
        (own / "node_modules").symlink_to(ROOT / "clients/node/node_modules")
    return tree


def mutated(here, mutation):
    """{path: its text with the guards taken out} of what a client's folder holds."""
    texts = {}
    for file, old, new in mutation.places:
        path = here / file
        text = texts.get(path) or path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise Wrong(f"{file} has this {text.count(old)} times: {old}")
        texts[path] = text.replace(old, new)
    return texts


def check(language, only):
    chosen = [each for each in MUTATIONS[language] if only in f"{each.guarantee} {each.file}"]
    tree = plant(language)
    began = time.monotonic()
    passes, said = run(language, tree, list(dict.fromkeys(each.test for each in chosen)))
    limit_s = 60 + time.monotonic() - began
    if not passes:
        print(f"{language}: these tests fail on a client that was not changed:\n{said[-5000:]}")
        return False
    unnoticed = 0
    for each in chosen:
        texts = mutated(tree / "clients" / language, each)
        sources = {path: path.read_text(encoding="utf-8") for path in texts}
        began = time.monotonic()
        try:
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
            passes, _ = run(language, tree, [each.test], limit_s)
        finally:
            for path, text in sources.items():
                path.write_text(text, encoding="utf-8")
        unnoticed += passes
        print(f"{language}: {each.guarantee}: {each.file}: {'NOBODY NOTICES' if passes else 'noticed'} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{language}: {len(chosen) - unnoticed} of {len(chosen)} mutations are noticed", flush=True)
    shutil.rmtree(tree)
    return unnoticed == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", nargs="+", choices=sorted(MUTATIONS))
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    sys.exit(0 if all([check(language, given.only) for language in given.language]) else 1)


if __name__ == "__main__":
    main()
