# SPDX-License-Identifier: PostgreSQL
"""One rule of order from the outbox to the handler, on real brokers: a message that fails holds up its aggregate, which is a tenant, a type
and an id, and neither `order 1` of another tenant nor `invoice 1` of its own. A consumer that orders by less, or by nothing, is noticed."""

import subprocess

import pytest

from end_to_end.parts import PROGRAM, open_broker, write_config
from harness.postgres import clean_environment, tied, wait_until
from harness.webhook import Answer, Webhook

from .mutant import mutant

# Poison until it is mended.
HANDLER = """
CREATE TABLE applied (n bigserial, event text);
CREATE TABLE mended (event text);
CREATE FUNCTION apply(m once.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF m.body ->> 'event' = 'poison' AND NOT EXISTS (SELECT FROM mended WHERE event = 'poison') THEN
        RAISE 'poison';
    END IF;
    INSERT INTO applied (event) VALUES (m.body ->> 'event');
END $$;
"""
EVENTS = [  # (tenant, aggregate type, aggregate id, event)
    ("a", "order", "1", "poison"), ("b", "order", "1", "another tenant's"), ("a", "invoice", "1", "another type's"), ("a", "order", "2", "another id's"),
    ("a", "order", "1", "behind it"), ("b", "order", "1", "the other tenant's next"),
]  # fmt: skip
FREE = ["another id's", "another tenant's", "another type's", "the other tenant's next"]
ALL = sorted(event for *_, event in EVENTS)


class OutOfLine(Exception):
    """Something waits that need not, or does not wait that must."""


class BySql:
    """The handler is a function."""

    options = ("handler = apply",)

    def __init__(self, db):
        self.db = db

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def applied(self):
        return [row.event for row in self.db.rows("SELECT event FROM applied ORDER BY n")]

    def mend(self):
        self.db.execute("INSERT INTO mended VALUES ('poison')")


class ByHttp:
    """The handler is an endpoint."""

    def __init__(self, _):
        self.done, self.poison = [], True
        self.hook = Webhook(self.answer)
        self.options = (f"endpoint = {self.hook.url}apply",)

    def __enter__(self):
        self.hook.__enter__()
        return self

    def __exit__(self, *of):
        self.hook.__exit__(*of)

    def answer(self, request):
        event = request.json["event"]
        if event == "poison" and self.poison:
            return Answer(500, (), b"poison")
        self.done.append(event)
        return Answer()

    def applied(self):
        return list(self.done)

    def mend(self):
        self.poison = False


@pytest.fixture(scope="module", params=["nats", "rabbitmq"])
def broker(request):
    broker, relay, consumer = open_broker(request.param)
    yield broker, relay, consumer
    broker.destroy()


@pytest.fixture(params=[BySql, ByHttp], ids=["function", "endpoint"])
def way(db, request):
    db.execute(HANDLER)
    with request.param(db) as way:
        yield way


def parked(db):
    return [tuple(row) for row in db.rows("SELECT key, state FROM once.parked_message WHERE consumer = 'warehouse' ORDER BY position")]


def one_holds_up_its_own_aggregate_alone(db, way, broker, tmp_path, program=PROGRAM):
    _, relay, consumer = broker
    # As many tries as may be: it is not to die while the others are looked at.
    config = write_config(tmp_path, relay, [*consumer, *way.options, "attempts = 1000", "retry_first = 200ms", "retry_most = 200ms"])
    config.write_text(f"dsn = {db.dsn()}\n" + config.read_text())
    config.chmod(0o600)
    for tenant, kind, id, event in EVENTS:
        db.execute("SELECT once.emit('order.placed', %s::jsonb, %s, %s, tenant => %s)", f'{{"event": "{event}"}}', kind, id, tenant)
    log = tmp_path / "log"
    with open(log, "wb") as file:
        relayed = subprocess.run(tied([program, "relay", "--config", config, "--once"]), env=clean_environment(), stdout=file, stderr=file, timeout=60, check=False)
        assert relayed.returncode == 0, log.read_text()
        process = subprocess.Popen(tied([program, "consume", "--config", config]), env=clean_environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        wait_until(lambda: len(way.applied()) + len(parked(db)) == len(EVENTS) or process.poll() is not None, "all to be applied or parked")
        assert process.poll() is None, log.read_text()
        if (sorted(way.applied()), parked(db)) != (FREE, [("a/order/1", "retrying"), ("a/order/1", "waiting")]):
            raise OutOfLine(way.applied(), parked(db))
        way.mend()
        wait_until(lambda: (sorted(way.applied()), parked(db)) == (ALL, []) or process.poll() is not None, "the rest")
        assert way.applied()[-2:] == ["poison", "behind it"]
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        left(broker)


def left(broker):
    """What a failed run has not acknowledged is no business of the next one."""
    server = broker[0]
    if server.name == "rabbitmq":
        server.take("orders")
    else:
        server.delete_stream("ORDERS")
        server.add_stream("ORDERS", "order.>")


def test_what_fails_holds_up_its_aggregate_and_no_other_of_its_id(db, way, broker, tmp_path):
    one_holds_up_its_own_aggregate_alone(db, way, broker, tmp_path)


BROKEN = {
    "the id alone": ("line.c", "if (found.tenant == NULL && found.type == NULL) {", "if (true) {"),
    "type and id": ("line.c", "aggregate plain = {.tenant = find(headers, count, \"Pgonce-\", \"Tenant\"),", "aggregate plain = {.tenant = NULL,"),
    "tenant and id": ("line.c", ".type = find(headers, count, \"Pgonce-\", \"Aggregate-Type\")};", ".type = NULL};"),
    "nothing": ("line.c", "return arena_format(arena, \"%s%s%s/%s\",", "return NULL; return arena_format(arena, \"%s%s%s/%s\","),
}


@pytest.fixture(scope="module", params=BROKEN)
def broken(request):
    name, old, new = BROKEN[request.param]
    with mutant(name, (old, new)) as program:
        yield program


@pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
def test_a_consumer_that_orders_by_less_is_noticed(db, way, broker, tmp_path, broken):
    with pytest.raises(OutOfLine):
        one_holds_up_its_own_aggregate_alone(db, way, broker, tmp_path, broken)
