# SPDX-License-Identifier: PostgreSQL
"""The nodes of nodes.json (spec/cases/README.md, "Nodes"): two databases that share the tenants, and one that is not divided. A client reaches each through a forwarder,
which counts what was sent."""

import re
import threading
import time

from harness.broker import free_port
from harness.proxy import Proxy, Rule

from .agents import AgentCalls
from .faults import MOMENTS, PATIENCE_S, SPELT, Target, until
from .suite import Refused

SLOTS = 64
TEXTS = {**MOMENTS, "slots": "once.slots", "slot_of": "once.slot_of"}


class Counter(Proxy):
    """said: of server.py. What the clients have run, in order."""

    def __init__(self, said):
        super().__init__(Target(said), tcp=free_port())
        self.target = f"{said['socket']}/.s.PGSQL.{said['port']}"
        self.sent = []

    def take(self, direction, kind, body):
        if direction == "frontend" and body:
            self.sent.append(body)
        rule = super().take(direction, kind, body)
        if isinstance(rule, LostCommit):
            rule.first()
        return rule


class LostCommit(Rule):
    """The answer to a COMMIT is lost. first: is called before the connection is."""

    def __init__(self, first):
        super().__init__("backend", "drop", b"COMMIT", b"C")
        self.first = first


class Node:
    def __init__(self, database):
        self.database, self.forwarder = database, Counter(database.said)

    def state(self, slot):
        """(epoch, open)"""
        return tuple(self.database.row("SELECT epoch, open FROM once.slots() WHERE slot = %s", slot))

    def close_slot(self, slot):
        return self.database.value("SELECT once_job.close_slot(%s)", slot)

    def intents(self, slot):
        return [row.row for row in self.database.rows("SELECT to_jsonb(i)::text AS row FROM once.intent AS i WHERE once.slot_of(i.tenant) = %s", slot)]

    def take_over(self, intents):
        for each in intents:
            self.database.execute("INSERT INTO once.intent SELECT r.* FROM jsonb_populate_record(NULL::once.intent, %s::jsonb) AS r", each)

    def forget(self, slot):
        self.database.execute("DELETE FROM once.intent WHERE once.slot_of(tenant) = %s", slot)


class Nodes:
    """All of a run: A has every slot open, B has joined it, and `single` is an ordinary installation."""

    def __init__(self, server):
        self.each = {name: Node(server.database(database)) for name, database in (("A", "nodes"), ("B", "nodes B"), ("single", "nodes single"))}
        first, second = self.each["A"].database, self.each["B"].database
        first.execute("CALL once.divide(true)")
        second.execute("SELECT once._join(%s::jsonb)", first.value("SELECT once._node()::text"))
        second.execute("CALL once.divide()")
        self.closings, self.over = [], threading.Event()

    def __getitem__(self, name):
        return self.each[name]

    def slot_of(self, tenant):
        return self["A"].database.value("SELECT once.slot_of(%s)", tenant)

    def reset(self):
        """As at the beginning: nothing is remembered, every slot is open on A, with epoch 1."""
        self.over.set()  # for what a case that has failed has left
        self.join()
        self.over.clear()
        for name, node in self.each.items():
            node.forwarder.back()
            node.forwarder.thaw()
            node.database.clear()
            if name != "single":
                node.database.execute(f"SELECT setval(to_regclass('once.slot_' || n || '_seq'), {3 if name == 'A' else 2}) FROM generate_series(0, {SLOTS - 1}) AS n")

    def addresses(self, names):
        return [self[name].database.address_at(self[name].forwarder.port) for name in names]

    def sharing(self):
        return [self["A"], self["B"]]

    def open_at(self, slot):
        return [node for node in self.sharing() if node.state(slot)[1]]

    # ---- the steps

    def slot(self, step):
        first, last = step.get("slots") or [self.slot_of(step["tenant"])] * 2
        for slot in range(first, last + 1):
            getattr(self, step["slot"])(slot, step)

    def close(self, slot, _step):
        for node in self.open_at(slot):
            assert node.close_slot(slot) is True

    def closing_of(self, node, slot):
        connection = node.database.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT once_job.close_slot(%s, '1 minute')", (slot,))
            assert cursor.fetchone()[0] is True
        connection.close()

    def closing(self, slot, _step):
        """Clients find it closed, while transactions that are inside go on."""
        (node,) = self.open_at(slot)
        thread = threading.Thread(target=self.closing_of, args=(node, slot), daemon=True)
        thread.start()
        self.closings.append(thread)
        until(lambda: not node.state(slot)[1], "the slot closes")

    def close_with_commit(self, slot, _step):
        (node,) = self.open_at(slot)
        node.forwarder._add(LostCommit(lambda: self.closing_of(node, slot)))  # pylint: disable=protected-access

    def open(self, slot, step):
        self.join()
        epoch = step.get("epoch") or 1 + max(node.state(slot)[0] for node in self.sharing())
        self[step["at"]].database.execute("SELECT once_job.open_slot(%s, %s)", slot, epoch)

    def move(self, slot, step):
        to = self[step["to"]]
        for node in self.open_at(slot):
            if node is not to:
                assert node.close_slot(slot) is True
                to.take_over(node.intents(slot))
                to.database.execute("SELECT once_job.open_slot(%s, %s)", slot, 1 + max(each.state(slot)[0] for each in self.sharing()))
                node.forget(slot)

    def moving(self, slot, step):
        """Closed, until the nodes were sent so many statements. Then it is open where it goes."""
        (node,) = self.open_at(slot)
        assert node.close_slot(slot) is True
        ((moment, sent),) = step["until_sent"].items()
        before = self.count(moment)
        thread = threading.Thread(target=self.arrive, args=(slot, node, self[step["to"]], lambda: self.count(moment) - before >= sent), daemon=True)
        thread.start()
        self.closings.append(thread)

    def arrive(self, slot, node, to, arrives):
        while not arrives():
            if self.over.wait(0.01):
                return
        if node is not to:
            to.take_over(node.intents(slot))
            node.forget(slot)
        to.database.execute("SELECT once_job.open_slot(%s, %s)", slot, 1 + max(each.state(slot)[0] for each in self.sharing()))

    def count(self, moment):
        return sum(TEXTS.get(moment, moment).encode() in body for node in self.each.values() for body in node.forwarder.sent)

    def node(self, step):
        getattr(self[step["of"]].forwarder, step["node"])()

    def join(self):
        for thread in self.closings:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self.closings.clear()

    def close_all(self):
        for node in self.each.values():
            node.forwarder.close()


class NodeCalls(AgentCalls):
    """The calls of a case with nodes."""

    def __init__(self, agent, nodes, case, meanwhile):
        super().__init__(agent, case, meanwhile)
        self.nodes = nodes

    def call(self, step):
        if step["call"] == "sql":
            rows = self.nodes[step.get("at", "A")].database.rows(step["sql"])
            return {"rows": [list(row) for row in rows]}
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().call({name: value for name, value in step.items() if name not in ("sent", "most", "while")})
            except Refused as refused:
                if refused.said["code"] != step.get("while") or time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def compare(self, said, expected, step):
        expected = dict(expected)
        if "says_slot_of" in expected:
            assert re.search(rf"\bslot {self.nodes.slot_of(expected.pop('says_slot_of'))}\b", said["text"]), said
        if "says_node" in expected:
            assert re.search(rf"\bnode {expected.pop('says_node')}\b", said["text"]), said
        if "refusals" in expected:
            expected["refusals"] = [[self.nodes.slot_of(each["slot_of"]), each["epoch"]] for each in expected["refusals"]]
        super().compare(said, expected, step)


class Sent:
    """What reaches the nodes during a step."""

    def __init__(self, nodes, language, driver):
        self.nodes = nodes
        self.texts = {**TEXTS, **SPELT.get(language, {}), **SPELT.get(driver, {})}
        self.before = {name: len(node.forwarder.sent) for name, node in nodes.each.items()}

    def count(self, name, moment):
        text = TEXTS.get(moment, moment) if moment in ("claim", "complete", "fail") else self.texts.get(moment, moment)
        return sum(text.encode() in body for body in self.nodes[name].forwarder.sent[self.before[name] :])

    def check(self, step):
        for name, moments in step.get("sent", {}).items():
            found = {moment: self.count(name, moment) for moment in moments}
            assert found == moments, (name, found, step)
        for name, moments in step.get("most", {}).items():
            found = {moment: self.count(name, moment) for moment in moments}
            assert all(found[moment] <= most for moment, most in moments.items()), (name, found, step)
