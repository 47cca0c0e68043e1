# SPDX-License-Identifier: PostgreSQL
"""Random histories of calls of the contract: what several sessions do, one step after another. A seed makes a history; a part of one is a history, too, so
that one that shows a difference can be made smaller. A step is (session, kind, what), plain data that repr() shows as Python reads it."""

import datetime
import random

DAY_MS = 86_400_000
PRINTS = (bytes(range(16)), bytes(range(32)), bytes(range(1, 33)))
ODD_PRINTS = (b"", b"x" * 15, b"x" * 17, b"x" * 65, None)
SCOPES, ODD_SCOPES = ("pay", "brief"), ("", "s" * 256, "s" * 250, "größe", None)
TENANTS, ODD_TENANTS = ("", "a", "b"), ("t" * 256, "ü", None)
TRACES = (None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", "no trace",
          "00-00000000000000000000000000000000-b7ad6b7169203331-01")  # fmt: skip
USERS = ("native_app", "native_app", "native_app", "native_bound", "native_any", "native_none", "postgres")
SESSIONS = 3
ADMIN = "admin"  # a session that is in no transaction
WAYS = ("plain", "plain", "prepared", "prepared", "plpgsql", "caught", "fields", "cursor", "nested", "values")
MANY = ("claim_many", "complete_many", "fail_many", "renew_many", "receive_many")
WEIGHTS = {
    "start": 18, "try_start": 8, "finish": 16, "finish_new": 9, "claim": 10, "complete": 8, "fail": 4, "release": 2, "renew": 3,
    "emit": 8, "emit_bytes": 2, "receive": 7, "claim_many": 5, "complete_many": 5, "fail_many": 2, "renew_many": 2, "receive_many": 4, "peek": 1, "resolve": 1,
}  # fmt: skip


def uuid(draw, version, ms):
    text = f"{ms:012x}{version}{draw.getrandbits(12):03x}{0x8 | draw.getrandbits(2):x}{draw.getrandbits(60):015x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Maker:
    """now_ms: from which the days of keys are counted."""

    def __init__(self, seed, now_ms):
        self.draw = draw = random.Random(seed)
        days = {"now": 0, "now too": 0, "yesterday": -1, "past": -3, "long ago": -40, "future": 2, "far": 400}
        self.keys = [uuid(draw, 7, now_ms + days[name] * DAY_MS) for name in days] + [uuid(draw, 4, draw.getrandbits(47)), "order-1", "order-2"]
        today = self.keys[0]
        self.weights = [6, 6, 3, 2, 1, 1, 1, 6, 6, 3]
        self.odd_keys = ["", "x" * 255, "x" * 256, "schlüssel", "a\nb", today.upper(), "{" + today + "}", today.replace("-", ""), " " + today, None, "01%"]
        self.users = ["native_app", draw.choice(USERS), draw.choice(USERS)]
        self.depth = [-1] * SESSIONS  # savepoints; -1: no transaction is open

    # Arguments.

    def of(self, plain, odd, share=0.03):
        return self.draw.choice(odd) if self.draw.random() < share else self.draw.choice(plain)

    def key(self):
        return self.draw.choice(self.odd_keys) if self.draw.random() < 0.05 else self.draw.choices(self.keys, self.weights)[0]

    def tenant(self):
        return self.of(("", "", "a", "a", "b"), ODD_TENANTS, 0.02)

    def fence(self):
        """Of the key, as it was told last; or another one."""
        return ("fence", self.draw.choice((0, 0, 0, 0, 0, 1, -1)))

    def maybe(self, arguments, share, **more):
        for name, make in more.items():
            if self.draw.random() < share:
                arguments[name] = make()
        return arguments

    def body(self, arguments):
        kinds = (
            ("response_text", lambda: self.draw.choice((("as", "text", "done"), ("as", "text", ""), ("as", "text", "ü\\x41 'q'"), ("long", 9000)))),
            ("response_json", lambda: ("as", "jsonb", self.draw.choice(('{"a": 1}', "[]", '"t"', "null", '{"b":1,"a":{"c":null}}')))),
            ("response_body", lambda: ("as", self.draw.choice(("bytea", "bytea", "bytea", "text", "integer")), "7")),
        )
        for name, make in self.draw.sample(kinds, self.draw.choices((0, 1, 2), (30, 66, 4))[0]):
            arguments[name] = make()
        return arguments

    def outcome(self, arguments, state=True):
        draw = self.draw
        self.body(arguments)
        self.maybe(arguments, 0.5, response_status=lambda: self.of((200, 201, 404, 0, 999), (-1, 1000, 32768), 0.05))
        self.maybe(arguments, 0.25, response_headers=lambda: ("as", "jsonb", draw.choice(('{"X": "a"}', '{"Set": ["a", "b"]}', "{}", "[]", "null", '{"X": 1}'))))
        self.maybe(arguments, 0.15, result_type=lambda: draw.choice(("order", "", "x" * 300)), result_id=lambda: draw.choice(("17", ("long", 2000))))
        if state:
            self.maybe(arguments, 0.2, state=lambda: self.of(("failed_final", "failed_retryable", "succeeded"), ("processing", "in_doubt", "nonsense", None), 0.2))
            self.maybe(arguments, 0.15, error_code=lambda: "no", error_message=lambda: "not enough")
        return arguments

    def named(self):
        return {"scope": self.of(SCOPES, ODD_SCOPES), "key": self.key()}

    def requested(self):
        return {**self.named(), "fingerprint": self.of((PRINTS[0], PRINTS[1], PRINTS[1], PRINTS[1], PRINTS[2]), ODD_PRINTS)}

    def arguments(self, function):
        draw = self.draw
        if function in MANY:
            return self.batch(function)
        if function in ("start", "try_start"):
            made = self.maybe(self.requested(), 0.3, traceparent=lambda: draw.choice(TRACES))
        elif function in ("finish", "finish_new"):
            made = self.maybe(self.outcome(self.requested()), 0.2, traceparent=lambda: draw.choice(TRACES))
        elif function == "claim":
            made = self.maybe(self.requested(), 0.2, owner=lambda: draw.choice(("me", "", "x" * 300)), lease=lambda: draw.choice(("30 s", "0", "-1 s", "8 days")),
                              retention=lambda: draw.choice(("1 day", "0")), takeover=lambda: draw.random() < 0.5,
                              traceparent=lambda: draw.choice(TRACES))  # fmt: skip
        elif function == "complete":
            made = self.outcome({**self.named(), "fence": self.fence()}, state=False)
        elif function == "fail":
            made = self.body({**self.named(), "fence": self.fence(), "retryable": draw.choice((True, False, None))})
            made = self.maybe(made, 0.3, error_code=lambda: "no", error_message=lambda: "m", redirect=lambda: PRINTS[2])
        elif function in ("release", "renew"):
            made = {**self.named(), "fence": self.fence()}
            made = self.maybe(made, 0.3, lease=lambda: draw.choice(("30 s", "0"))) if function == "renew" else made
        elif function in ("emit", "emit_bytes"):
            made = {"topic": self.of(("orders", "other.topic"), ("", "t" * 300, None)), "payload": ("as", "jsonb", draw.choice(('{"n": 1}', '{"n": 2}', "null")))}
            if function == "emit_bytes":
                made |= {"payload": ("as", "bytea", draw.choice(("\0\x80", ""))), "content_type": self.of(("text/plain", "a/b"), ("", None))}
            if draw.random() < 0.7:
                made |= self.named()
            self.maybe(made, 0.3, aggregate_id=lambda: draw.choice(("7", "")), aggregate_type=lambda: "order", event_type=lambda: draw.choice(("placed", "x" * 300)),
                       headers=lambda: ("as", "jsonb", draw.choice(('{"a": "b"}', "[]"))), traceparent=lambda: draw.choice(TRACES))  # fmt: skip
        elif function == "receive":
            request = self.requested()
            made = {"consumer": request["scope"], "message_id": request["key"], "fingerprint": request["fingerprint"]}
            self.maybe(made, 0.4, birthdays=lambda: draw.choice((True, True, False, None)))
        elif function == "peek":
            made = self.named()
        else:
            made = {**self.named(), "as_state": draw.choice(("succeeded", "failed_final", "failed_retryable")), "reason": "because"}
        return self.maybe(made, 0.6, tenant=self.tenant)

    def batch(self, function):
        draw = self.draw
        size = draw.choices((0, 1, 2, 3, 8, 20), (1, 3, 4, 4, 3, 1))[0]
        plain = [{"scope": draw.choice(SCOPES), "key": draw.choices(self.keys, self.weights)[0], "print": draw.choice(PRINTS[1:])} for _ in range(size)]
        if plain and draw.random() < 0.4:
            for row in draw.sample(plain, max(1, size // 2)):
                row["scope"], row["key"], row["print"] = self.of(SCOPES, ODD_SCOPES, 0.4), self.key(), self.of(PRINTS, ODD_PRINTS, 0.4)
        if len(plain) > 1 and draw.random() < 0.3:
            plain[0] = dict(plain[-1])
        several = lambda type, values: ("as", type + "[]", list(values))  # noqa: E731
        names, prints = several("text", (row["key"] for row in plain)), several("bytea", (row["print"] for row in plain))
        if function == "receive_many":
            made = {"consumer": self.of(SCOPES, ODD_SCOPES), "message_ids": names, "keys": names, "fingerprints": prints}
            self.maybe(made, 0.4, birthdays=lambda: draw.choice((True, True, False, None)))
            return self.maybe(self.maybe(made, 0.3, skip_dead=lambda: draw.random() < 0.5), 0.6, tenant=self.tenant)
        made = {"scope": several("text", (row["scope"] for row in plain)), "key": names}
        if function == "claim_many":
            made["fingerprint"] = prints
            self.maybe(made, 0.2, lease=lambda: draw.choice(("30 s", "0")), owner=lambda: "me")
            self.maybe(made, 0.4, takeover=lambda: draw.choice((True, True, False, None)))
        else:
            made["fence"] = ("fences", [draw.choice((0, 0, 0, 0, 1, -1)) for _ in plain])
        if function == "fail_many":
            made["retryable"] = several("boolean", (draw.choice((True, False)) for _ in plain))
        if function == "complete_many" and draw.random() < 0.7:
            made["response_text"] = several("text", (draw.choice(("done", None, "")) for _ in plain))
            made["response_status"] = several("integer", (draw.choice((200, None, 1000)) for _ in plain))
        if function == "complete_many" and plain and draw.random() < 0.05:
            made["result_id"] = several("text", ["too many"] * (size + 1))
        return self.maybe(made, 0.6, tenant=self.tenant)

    # Steps.

    def history(self, length):
        steps = []
        while len(steps) < length:
            steps += self.step()
        return steps

    def step(self):
        draw = self.draw
        if draw.random() < 0.06:
            return [(ADMIN, "do", self.upkeep())]
        session = draw.randrange(SESSIONS)
        kind = draw.random()
        if self.depth[session] < 0 and kind < 0.4:
            self.depth[session] = 0
            level = draw.choices(("", " ISOLATION LEVEL REPEATABLE READ", " ISOLATION LEVEL SERIALIZABLE", " READ ONLY"), (70, 10, 10, 5))[0]
            return [(session, "do", "BEGIN" + level)]
        if self.depth[session] >= 0 and kind < 0.3:
            return [self.turn(session)]
        if kind < 0.33:
            return [(session, "do", draw.choice(("SET ROLE native_app", "SET ROLE native_bound", *("RESET ROLE",) * 6, "SET ROLE native_none", "SET once.native = off",
                                                  *("SET once.native = on", "RESET once.native") * 2, "DISCARD PLANS", "SET plan_cache_mode = force_custom_plan",
                                                  "SET plan_cache_mode = auto", "SET search_path = once, public", "RESET search_path"))
                     )]  # fmt: skip
        if kind < 0.5 and self.depth[session] >= 0:
            return self.whole(session)
        if kind < 0.53 and self.depth[session] < 0:
            return self.silent(session)
        return [self.call(session)]

    def turn(self, session):
        """Of a transaction."""
        draw, depth = self.draw, self.depth[session]
        how = draw.random()
        if how < 0.45:
            self.depth[session] = -1
            return (session, "do", "COMMIT")
        if how < 0.6:
            self.depth[session] = -1
            return (session, "do", "ROLLBACK")
        if how < 0.8 or depth == 0:
            self.depth[session] += 1
            return (session, "do", f"SAVEPOINT s{depth + 1}")
        back = draw.randint(1, depth)
        self.depth[session] = back if draw.random() < 0.6 else back - 1
        return (session, "do", f"ROLLBACK TO SAVEPOINT s{back}" if self.depth[session] == back else f"RELEASE SAVEPOINT s{back}")

    def call(self, session, function=None, arguments=None):
        draw = self.draw
        function = function or draw.choices(list(WEIGHTS), WEIGHTS.values())[0]
        way = draw.choice(WAYS)
        if draw.random() < 0.03:
            way = "cancelled"
        return (session, "call", (way, function, arguments or self.arguments(function)))

    def whole(self, session):
        """Start, event and finish of one intent, or claim and completion."""
        request = {**self.requested(), "tenant": self.tenant()}
        named = {name: request[name] for name in ("scope", "key", "tenant")}
        if self.draw.random() < 0.5:
            start = self.draw.choice(("start", "try_start"))
            return [self.call(session, start, request), self.call(session, "emit", {"topic": "orders", "payload": ("as", "jsonb", "{}"), **named}),
                    self.call(session, "finish", self.outcome(dict(request)))]  # fmt: skip
        return [self.call(session, "claim", request), self.call(session, "complete", self.outcome({**named, "fence": ("fence", 0)}, state=False))]

    def silent(self, session):
        """A claim whose attempt says nothing more; after its lease a batch meets it, and with it one of another request and a new one."""
        draw = self.draw
        request = {"scope": draw.choice(SCOPES), "key": draw.choice(self.keys[:2] + self.keys[-2:]), "fingerprint": PRINTS[1], "tenant": self.tenant()}
        prints = [PRINTS[1], draw.choice(PRINTS[1:]), PRINTS[1]]
        batch = {"scope": ("as", "text[]", [request["scope"]] * 3), "key": ("as", "text[]", [request["key"], request["key"], draw.choice(self.keys)]),
                 "fingerprint": ("as", "bytea[]", prints), "tenant": request["tenant"]}  # fmt: skip
        self.maybe(batch, 0.7, takeover=lambda: draw.choice((True, True, False, None)))
        lapse = f"UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 hour' WHERE key = '{request['key']}' AND state IN ('processing', 'in_doubt')"
        return [self.call(session, "claim", request), (ADMIN, "do", lapse), self.call(session, "claim_many", batch)]

    def upkeep(self):
        draw, past, key = self.draw, "clock_timestamp() - interval '1 hour'", self.draw.choice(self.keys)
        return draw.choice((
            "SELECT once.add_days()", "SELECT once.add_days(4)", "SELECT once.set_keeping(horizon_days => 2)", "SELECT once.set_keeping(horizon_days => 7)",
            "DAY", "CLOSE", "MISSING", "EVENTS",
            f"UPDATE once.intent SET lease_until = {past} WHERE state IN ('processing', 'in_doubt')",
            f"UPDATE once.intent SET expires_at = {past} WHERE key = '{key}'",
            f"UPDATE once.intent SET state = 'in_doubt', error_code = 'lost' WHERE key = '{key}' AND state = 'processing'",
            f"DELETE FROM once.intent WHERE key = '{key}'",
            "SELECT once.set_scope('brief', lease => '100 s', max_attempts => 2)", "SELECT once.set_scope('pay', on_stale => 'in_doubt')",
            "SELECT once.set_scope('pay', on_stale => 'takeover')", "SELECT once.set_scope('pay', response_bytes_max => 8192)",
            "SELECT once.bind('native_bound', 'a')", "REVOKE EXECUTE ON FUNCTION once.start FROM once_app", "GRANT EXECUTE ON FUNCTION once.start TO once_app",
            "ANALYZE once.intent", "EXTENSION", "EXTENSION", "ALTER FUNCTION once._trace COST 100", "REINDEX TABLE once.intent_d0",
            "VACUUM once.intent_d0", "ALTER TABLE once.intent_d0 SET (fillfactor = 60)", "SELECT once.add_days(9)",
            "ALTER TABLE once.intent_d0 ADD CONSTRAINT x CHECK (key <> '')", "ALTER TABLE once.intent_d0 DROP CONSTRAINT IF EXISTS x",
            "HOLD SHARE", "HOLD ACCESS EXCLUSIVE",
        ))  # fmt: skip


def make(seed, length, now=None):
    """(the users of the sessions, the steps)"""
    now = now or datetime.datetime.now(datetime.timezone.utc)
    maker = Maker(seed, int(now.timestamp() * 1000))
    return maker.users, maker.history(length)
