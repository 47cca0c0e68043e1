# SPDX-License-Identifier: PostgreSQL
"""Runs the cases of spec/cases. Here are plain SQL and the gateway: what these two do is what the cases have to expect. The clients are in agents.py. The
format is described in spec/cases/README.md."""

import base64
import json
import re
import threading

import psycopg2
import psycopg2.extras

from gateway.door import Door
from harness.client import Http1
from harness.postgres import ROOT
from harness.upstream import Answer

SUITE = ROOT / "spec/cases"
PROBLEMS = json.loads((ROOT / "spec/problems.json").read_text())
STATUS = {code: row["status"] for code, row in json.loads((ROOT / "spec/errors.json").read_text())["errors"].items()}
VERDICTS = {verdict: row["code"] for verdict, row in json.loads((ROOT / "spec/verdicts.json").read_text())["verdicts"].items() if "code" in row}
LOCATION = {"once", "scope", "tenant", "wait_ms", "response_max", "body_max", "key_syntax", "key_length", "methods", "headers", "canonical_json", "on_5xx", "release", "database", "mode"}
# What a middleware rolls back for: the default of `release`.
ROLLED_BACK = [*json.loads((ROOT / "spec/statuses.json").read_text())["rolled_back"]["statuses"], 503]
CASE = {"name", "about", "doors", "arrange", "steps", "rows", "location", "service", "runs", "effects", "nodes", "router"}
SERVICE = {"status", "headers", "text", "base64", "repeat", "count", "effect", "pieces", "hold", "throw", "behind"}
REQUEST = {"door", "method", "target", "host", "key", "headers", "body", "expect", "background", "join", "release", "sql"}


def cases(file):
    return json.loads((SUITE / f"{file}.json").read_text())["cases"]


def of_door(file, *doors):
    return [case for case in cases(file) if not case.get("doors") or set(case["doors"]) & set(doors)]


def bytes_of(said):
    """What a member of a case says of bytes; None where it says nothing."""
    if "text" in said:
        return said["text"].encode()
    if "base64" in said:
        return base64.b64decode(said["base64"])
    return (said["repeat"] * said["count"]).encode() if "repeat" in said else None


# ---- plain SQL


class Refused(Exception):
    """What the case calls an error."""

    def __init__(self, code, sqlstate=None, retryable=False, answer=None):
        super().__init__(code)
        stored = (answer or {}).get("status")
        self.said = {"code": code, "sqlstate": sqlstate, "retryable": retryable, "status": stored or STATUS.get(sqlstate), "answer": answer or {}}


class Calls:
    """The steps of a case of calls. A door has `call`, which gives the result or raises Refused. fences: of the claims that were granted."""

    def __init__(self, database, case):
        self.database, self.case, self.fences = database, case, {}

    def filled(self, step):
        """The step, with what it leaves to the format."""
        name = self.case["name"]
        own = {"do": ["insert"], "answer": {"status": 201, "text": "done"}}
        step = {"scope": "conformance", "key": name, "tenant": "", "request": {"json": {"case": name}}, "effect": own, **step}
        insert = {"sql": f"INSERT INTO effect (key) VALUES ('{name}')"}
        return step | {"effect": step["effect"] | {"do": [insert if each == "insert" else each for each in step["effect"].get("do", [])]}}

    def step(self, step):
        expected = step.get("expect", {})
        try:
            result = self.call(step)
        except Refused as refused:
            assert "error" in expected, f"{step}: {refused.said}"
            self.compare(refused.said, expected["error"], step)
            return
        assert "error" not in expected, f"{step}: {result}"
        if "fence" in result:
            self.fences[step["as"]] = result["fence"]
        self.compare(result, expected.get("result", {}), step)

    def compare(self, said, expected, step):
        for name, value in expected.items():
            if name == "answer":
                self.compare(said["answer"], value, step)
            elif name == "fence_above":
                assert said["fence"] > self.fences[value], step
            elif name == "json":
                assert json.loads(said["body"]) == value, step
            elif name in ("text", "base64", "repeat"):
                assert said["body"] == bytes_of(expected), (step, said)
            elif name != "count":
                assert said[name] == value, (step, name, said)


class Plain(Calls):
    """The calls of a case as a user of psycopg2 writes them: BEGIN, once.try_start, the effect, once.finish, COMMIT."""

    def __init__(self, database, case):
        super().__init__(database, case)
        self.errors = {row.code: row for row in database.rows("SELECT * FROM once.errors()")}
        self.claims, self.held = {}, {}

    def refused(self, sqlstate, answer=None):
        known = self.errors[sqlstate]
        return Refused(known.name, sqlstate, known.retry, answer)

    @staticmethod
    def names(step):
        return step["scope"], step["key"], step["tenant"]

    def fingerprint(self, cursor, step):
        request, tenant = step["request"], step["tenant"]
        if "http" in request:
            http = request["http"]
            cursor.execute(
                "SELECT once.request_fingerprint(%s, %s, %s, %s::bytea, %s)",
                (http["method"], http["target"], http["content_type"], http["text"].encode(), tenant),
            )
        elif "json" in request:
            cursor.execute("SELECT once.fingerprint(%s::jsonb, %s)", (json.dumps(request["json"]), tenant))
        else:
            cursor.execute("SELECT once.fingerprint(%s::bytea, %s)", (bytes_of(request), tenant))
        return cursor.fetchone()[0]

    def call(self, step):
        """What the case calls the result."""
        step = self.filled(step)
        connection = self.database.connect(autocommit=False)
        try:
            with connection.cursor() as cursor:
                return getattr(self, step["call"])(connection, cursor, step)
        except psycopg2.Error as failure:
            raise self.refused(failure.pgcode) from failure
        finally:
            if connection not in self.held.values():
                connection.close()

    @staticmethod
    def answered(row, replayed):
        return {
            "replayed": replayed, "status": row.response_status, "headers": row.response_headers, "body": row.response_body,
            "result_type": row.result_type, "result_id": row.result_id,
        }  # fmt: skip

    def looked(self, row):
        """The verdict of start or claim, unless it says to go on."""
        if row.verdict == "replay_success":
            return self.answered(row, True)
        if row.verdict in VERDICTS:
            raise self.refused(VERDICTS[row.verdict], self.answered(row, True) if row.verdict == "final_failure" else None)
        return None

    def effect(self, cursor, effect):
        for each in effect.get("do", []):
            if "sql" in each:
                cursor.execute(each["sql"])
            elif "emit" in each:
                names = {name: json.dumps(value) if name in ("payload", "headers") else value for name, value in each["emit"].items()}
                cursor.execute(f"SELECT once.emit({', '.join(f'{name} => %s' for name in names)})", list(names.values()))
            elif "emit_bytes" in each:
                names = {name: json.dumps(value) if name == "headers" else value for name, value in each["emit_bytes"].items()}
                names["payload"] = bytes_of({"base64": names.pop("base64")})
                cursor.execute(f"SELECT once.emit_bytes({', '.join(f'{name} => %s' for name in names)})", list(names.values()))
            elif "lock" in each:
                cursor.execute("SELECT once.lock(%s, %s * interval '1 millisecond')", (each["lock"]["resource"], each["lock"]["wait_ms"]))
                assert cursor.fetchone()[0] is each["is"]
            else:
                try:
                    cursor.execute(each["swallow"])
                except psycopg2.Error:
                    pass
        if "throw" in effect:
            raise Refused("application")

    @staticmethod
    def outcome(answer):
        """(its expressions as named arguments, their values)"""
        named = {}
        if "status" in answer:
            named["response_status"] = ("%s", answer["status"])
        if "headers" in answer:
            named["response_headers"] = ("%s::jsonb", json.dumps(answer["headers"]))
        if "text" in answer:
            named["response_text"] = ("%s::text", answer["text"])
        elif "json" in answer:
            named["response_json"] = ("%s::jsonb", json.dumps(answer["json"]))
        elif bytes_of(answer) is not None:
            named["response_body"] = ("%s::bytea", bytes_of(answer))
        for name in ("result_type", "result_id"):
            if name in answer:
                named[name] = ("%s", answer[name])
        return "".join(f", {name} => {place}" for name, (place, _) in named.items()), [value for _, value in named.values()]

    def run(self, connection, cursor, step):
        scope, key, tenant = self.names(step)
        fingerprint = self.fingerprint(cursor, step)
        cursor.execute("SELECT * FROM once.try_start(%s, %s, %s, %s)", (scope, key, fingerprint, tenant))
        if known := self.looked(cursor.fetchone()):
            return known
        effect = step["effect"]
        cursor.execute("SAVEPOINT effect")
        self.effect(cursor, effect)
        if connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_INERROR:
            raise Refused("swallowed")
        failed = effect.get("fail")
        more, values = self.outcome(failed or effect.get("answer", {}))
        if failed:
            cursor.execute("ROLLBACK TO effect")
            more += ", state => 'failed_final', error_code => %s, error_message => %s"
            values += [failed["code"], failed["message"]]
        cursor.execute(f"SELECT once.finish(%s, %s, %s, tenant => %s{more})", (scope, key, fingerprint, tenant, *values))
        connection.commit()
        row = self.database.row("SELECT * FROM once.peek(%s, %s, %s)", scope, key, tenant)
        if failed:
            raise self.refused("P4030", self.answered(row, False))
        return self.answered(row, False)

    def claim(self, connection, cursor, step):
        scope, key, tenant = self.names(step)
        cursor.execute(
            "SELECT * FROM once.claim(%s, %s, %s, lease => %s * interval '1 millisecond', retention => %s * interval '1 millisecond', tenant => %s, takeover => %s)",
            (scope, key, self.fingerprint(cursor, step), step.get("lease_ms"), step.get("retention_ms"), tenant, step.get("takeover")),
        )
        row = cursor.fetchone()
        connection.commit()
        if known := self.looked(row):
            return known
        self.claims[step["as"]] = (scope, key, tenant, row.fence)
        return {"verdict": row.verdict, "fence": row.fence}

    def report(self, connection, cursor, step, function, more="", values=()):
        scope, key, tenant, fence = self.claims[step["of"]]
        cursor.execute(f"SELECT {function}(%s, %s, %s, tenant => %s{more})", (scope, key, fence, tenant, *values))
        said = cursor.fetchone()[0]
        connection.commit()
        return {"is": said}

    def complete(self, connection, cursor, step):
        return self.report(connection, cursor, step, "once.complete", *self.outcome(step.get("answer", {})))

    def fail(self, connection, cursor, step):
        more, values = self.outcome(step.get("answer", {}))
        more = ", retryable => %s, error_code => %s, error_message => %s" + more
        return self.report(connection, cursor, step, "once.fail", more, [step["retryable"], step.get("code"), step.get("message"), *values])

    def renew(self, connection, cursor, step):
        return self.report(connection, cursor, step, "once.renew")

    def release(self, connection, cursor, step):
        return self.report(connection, cursor, step, "once.release")

    def receive(self, connection, cursor, step):
        cursor.execute("SELECT once.receive(%s, %s, %s, %s)", (step["consumer"], step["message"], self.fingerprint(cursor, step), step["tenant"]))
        verdict = cursor.fetchone()[0]
        if verdict == "process":
            self.effect(cursor, step["effect"])
        connection.commit()
        return {"verdict": verdict}

    def sql(self, connection, cursor, step):
        cursor.execute(step["sql"])
        connection.commit()
        return {}

    def hold(self, connection, cursor, step):
        scope, key, tenant = self.names(step)
        cursor.execute("SELECT once.start(%s, %s, %s, %s)", (scope, key, self.fingerprint(cursor, step), tenant))
        if "lock" in step:
            cursor.execute("SELECT once.lock(%s, interval '0')", (step["lock"],))
        self.held[step["as"]] = connection
        return {}

    def unhold(self, connection, cursor, step):
        held = self.held.pop(step["of"])
        held.rollback()  # which the server has done when it is over; what `close` says it does later
        held.close()
        return {}


def assert_rows(database, case):
    for each in case.get("rows", []):
        assert [list(row) for row in database.rows(each["sql"])] == each["is"], each["sql"]


# ---- the gateway


def location_of(case):
    """The gateway's directives for what the case says of its location."""
    said = {"once": "required", "scope": "conformance", "tenant": "header", "on_5xx": "release", "release": ROLLED_BACK, **case.get("location", {})}
    assert set(said) <= LOCATION, case["name"]
    lines = [f"once {said['once']};", f"once_scope {said['scope']};", f"once_on_5xx {said['on_5xx']};"]
    lines.append("once_tenant none;" if said["tenant"] == "none" else "once_tenant $http_x_tenant;")
    for name, directive in (("response_max", "response_max"), ("body_max", "body_max"), ("key_syntax", "key_syntax"), ("key_length", "key_length")):
        if name in said:
            lines.append(f"once_{directive} {said[name]};")
    for name, directive in (("methods", "methods"), ("headers", "headers"), ("release", "release")):
        if said.get(name):
            lines.append(f"once_{directive} {' '.join(map(str, said[name]))};")
    if "wait_ms" in said:
        lines.append(f"once_wait {said['wait_ms']}ms;")
    if said.get("canonical_json"):
        lines.append("once_canonical_json on;")
    return f"location = /{case['name']} {{ {' '.join(lines)} proxy_pass http://app; }}"


def config_of(listed):
    return "\n".join(map(location_of, listed))


class Requests:
    """The HTTP steps of a case. A door has `send`, which gives the answer to a request; `wait`, which waits until so many executions that are held have begun; and
    `let_go`, which lets them answer."""

    def __init__(self, database, case):
        assert set(case) <= CASE, set(case) - CASE
        self.database, self.case, self.name = database, case, case["name"]
        self.script = case.get("service", [{}])
        assert all(set(each) <= SERVICE for each in self.script), self.name
        self.background = {}
        self.begun = 0

    def request(self, step):
        """(method, target, headers, body)"""
        own = step.get("headers", [])
        given = {name.lower() for name, _ in own}
        headers = [("Host", step.get("host", "shop.test"))]
        headers += [pair for pair in (("X-Tenant", "acme"), ("Content-Type", "application/json")) if pair[0].lower() not in given]
        headers += [(name, value) for name, value in own if value is not None]
        keys = step.get("key", f'"{self.name}"')
        headers += [("Idempotency-Key", key) for key in ([] if keys is None else keys if isinstance(keys, list) else [keys])]
        body = bytes_of(step.get("body", {"text": '{"amount": 100}'}))
        return step.get("method", "POST"), f"/{self.name}{step.get('target', '')}", headers, body

    def step(self, step):
        assert set(step) <= REQUEST, (self.name, set(step) - REQUEST)
        if "release" in step:
            self.let_go()
        elif "sql" in step:
            self.database.execute(step["sql"])
        elif "join" in step:
            thread, answers = self.background[step["join"]]
            thread.join(60)
            self.compare(answers[0], step["expect"])
        elif "background" in step:
            answers = []
            thread = threading.Thread(target=lambda: answers.append(self.send(step, *self.request(step))), daemon=True)
            thread.start()
            self.background[step["background"]] = thread, answers
            if self.begun < len(self.script) and self.script[self.begun].get("hold"):
                self.begun += 1
                self.wait(self.begun)
        else:
            self.compare(self.send(step, *self.request(step)), step.get("expect", {}))

    def compare(self, answer, expected):
        for name, value in expected.items():
            if name == "problem":
                self.compare_problem(answer, value, expected.get("more"))
            elif name == "headers":
                for header, text in value.items():
                    assert answer.all(header) == [text], (self.name, header, answer)
            elif name == "absent":
                assert not [header for header in value if answer.all(header)], (self.name, answer)
            elif name == "json":
                assert json.loads(answer.body) == value, (self.name, answer)
            elif name in ("text", "base64", "repeat"):
                assert answer.body == bytes_of(expected), (self.name, answer)
            elif name not in ("count", "more"):
                assert getattr(answer, name) == value, (self.name, name, answer)

    def compare_problem(self, answer, slug, more):
        row = PROBLEMS["problems"][slug]
        assert answer.header("Content-Type") == "application/problem+json", (self.name, answer)
        assert answer.header("Cache-Control") == "no-store"
        assert answer.header("Retry-After") == (None if row["retry_after"] is None else str(row["retry_after"]))
        assert not answer.all("Idempotency-Replayed")
        instance = json.loads(answer.body)["instance"]
        assert re.fullmatch("urn:pgonce:request:[0-9a-f]{32}", instance), (self.name, answer.body)
        detail = row["detail"] + (f" {more}" if more else "")
        expected = {"type": PROBLEMS["type_base"] + slug, "title": row["title"], "status": row["status"], "detail": detail, "instance": instance, "retryable": row["retry_after"] is not None}
        assert answer.body == json.dumps(expected, separators=(",", ":")).encode(), (self.name, answer.body)
        assert answer.status == row["status"]

class Gateway(Requests):
    def __init__(self, door: Door, case):
        super().__init__(door.database, case)
        self.door = door
        self.release = threading.Event()
        door.upstream.script(self.name, *map(self.answer, self.script))

    def answer(self, said):
        def do(_request):
            body = bytes_of(said)
            if body is None:
                body = json.dumps({"execution": self.door.count(self.name)}).encode()
            headers = [tuple(pair) for pair in said.get("headers", [["Content-Type", "application/json"]])]
            pieces = said.get("pieces", 1)
            return Answer(
                status=said.get("status", 201), headers=tuple(headers), body=body, hold=self.release if said.get("hold") else None,
                framing="chunked" if pieces > 1 else "length", piece=-(-len(body) // pieces) if pieces > 1 else None,
            )  # fmt: skip

        return Answer(do=do)

    def send(self, _step, method, target, headers, body):
        with Http1(self.door.nginx.h1) as connection:
            return connection.send(method, target, [*headers, ("X-Test", self.name)], body, close=True).receive(method)

    def wait(self, number):
        self.door.upstream.wait(self.name, number)

    def let_go(self):
        self.release.set()

    def runs(self):
        assert self.door.count(self.name) == self.case["runs"], self.name
