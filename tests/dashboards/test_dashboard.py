# SPDX-License-Identifier: PostgreSQL
"""The dashboard's queries and the alerts in a real Prometheus, which scrapes a real keeper and a real relay."""

import contextlib
import json
import re
import subprocess

import pytest
from capture.capturing import end, logical_server
from harness.broker import free_port
from harness.postgres import ROOT, clean_environment, tied, wait_until
from harness.prometheus import Prometheus
from harness.scrape import address_in
from keeper.keeping import Keeper
from relay.running import PROGRAM, Relay

DASHBOARD = json.loads((ROOT / "dashboards/grafana.json").read_text())
ALERTS = (ROOT / "dashboards/alerts.yml").read_text()
METRICS = ("--metrics", "127.0.0.1:0")
PRINT = "'\\x00000000000000000000000000000000'"
OTHER_PRINT = "'\\x11111111111111111111111111111111'"

# Something of everything: intents that end well, again, and otherwise; one in doubt, one stale; events on their way and dead; messages.
HISTORY = [
    "SELECT once.set_scope('unsure', on_stale => 'in_doubt')",
    f"SELECT once.claim('unsure', 'k', {PRINT}, lease => '1 ms')",
    f"SELECT once.claim('stuck', 'k', {PRINT}, lease => '1 ms')",
    "SELECT once.emit('orders', '{}', event_type => 'placed')",
    f"SELECT once.receive('mailer', 'm1', {PRINT})",
    """INSERT INTO once.parked_message (consumer, tenant, message_id, topic, fingerprint, state, next_at, parked_at, updated_at)
       VALUES ('mailer', '', 'm1', 'orders', '\\x00', 'dead', 'infinity', now(), now())""",
]
DEAD_EVENT = """INSERT INTO once.parked_event (relay, id, xid, day, event_id, topic, tenant, state, attempts, next_at, parked_at, updated_at)
    SELECT 'shop', o.id, o.xid, o.day, o.event_id, o.topic, '', 'dead', 9, 'infinity', now(), now() FROM once.outbox AS o LIMIT 1"""

# A slot that counts as a relay; and one after a failover that it did not survive.
SLOT = "SELECT pg_create_logical_replication_slot('shop_live', 'pgoutput'); SELECT once.add_capture('shop_live')"
GONE_SLOT = """INSERT INTO once.relay (relay, seen, started_at, progressed_at) VALUES ('shop_outbox', pg_current_snapshot(), now(), now());
    INSERT INTO once.capture (slot, mark, mark_lsn) VALUES ('shop_outbox', pg_current_snapshot(), '0/0')"""


def expressions():
    """(panel, query) of the dashboard, with its variables filled in."""
    found = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            found.append((panel["title"], target["expr"].replace("$job", ".*").replace("$__rate_interval", "1m")))
    return found


def play(db, number):
    """One more of what counters count."""
    db.execute(f"SELECT once.finish_new('shop', 'k{number}', {PRINT})")
    db.execute(f"SELECT once.start('shop', 'k{number}', {PRINT})")
    try:
        db.execute(f"SELECT once.start('shop', 'k{number}', {OTHER_PRINT})")
    except Exception as refused:  # P4002, which is what is counted
        assert "P4002" in str(getattr(refused, "pgcode", refused))
    db.execute(f"SELECT once.receive('mailer', 'n{number}', {PRINT})")
    db.execute(f"SELECT once.emit('orders', '{{}}', event_type => 't{number}')")


@pytest.fixture(scope="module")
def server():
    with logical_server() as running:
        yield running


@contextlib.contextmanager
def consumer_of_no_broker(directory, db):
    """A consumer whose broker is away: its address."""
    config, log = directory / "consume.conf", directory / "consume.log"
    db.execute("CREATE FUNCTION apply(m once.message) RETURNS void LANGUAGE sql AS 'SELECT'")
    config.write_text(f"dsn = {db.dsn()}\n[consume stock]\nsource = nats\nurl = nats://127.0.0.1:{free_port()}\nstream = ORDERS\nhandler = apply\n")
    config.chmod(0o600)
    with open(log, "wb") as out:
        process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config, *METRICS]), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   env=clean_environment())
    try:
        wait_until(lambda: address_in(log.read_text()), "the consumer's metrics")
        yield address_in(log.read_text())
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def watched(server, tmp_path_factory):
    """(the database, its Prometheus): of alerts, those that wait for hours wait for a second."""
    directory = tmp_path_factory.mktemp("watched")
    db = server.new_database()
    for statement in HISTORY:
        db.execute(statement)
    with (Keeper(directory, db.dsn(), *METRICS) as keeper,
          Relay(directory, db.dsn(), name="shop", arguments=METRICS) as relay,
          consumer_of_no_broker(directory, db) as consumer):
        relay.until_true(lambda: address_in(relay.err.read_text()), "the relay's metrics")
        relay.until_true(lambda: db.value("SELECT count(*) FROM once.relay") == 1, "the relay")
        db.execute(DEAD_EVENT)
        db.execute(GONE_SLOT)
        db.execute(SLOT)
        jobs = {"pgonce": keeper.address(), "pgonce-relay": address_in(relay.err.read_text()), "pgonce-gone": ("127.0.0.1", free_port()),
                "pgonce-consume": consumer}
        rules = re.sub(r"for: \S+", "for: 1s", ALERTS)
        with Prometheus(jobs, rules) as prometheus:
            yield db, prometheus
    end(db)


def test_every_query_of_the_dashboard_gives_data(watched):
    db, prometheus = watched
    waiting = expressions()
    played = 0

    def all_answered():
        nonlocal played
        played += 1
        play(db, played)  # a rate wants counters that move
        waiting[:] = [(title, query) for title, query in waiting if not prometheus.query(query)]
        return not waiting

    try:
        wait_until(all_answered, "data", 120)
    except TimeoutError as late:
        raise AssertionError(f"no data for {waiting}") from late


# What the database of this test suffers from.
FIRING = {"PgonceProcessDown": {"job": "pgonce-gone"}, "PgonceInDoubt": {"scope": "unsure"}, "PgonceDeadEvents": {"relay": "shop"},
          "PgonceDeadMessages": {"consumer": "mailer"}, "PgonceClockHeld": {}, "PgonceConsumeAway": {"consumer": "stock"}, "PgonceCaptureBroken": {"relay": "shop_outbox"}}
SILENT = {"PgonceDatabaseAway", "PgonceKeeperNotRunning", "PgonceKeeperStepFailing", "PgonceDaysRunOut", "PgonceDaysClosing", "PgonceTransactionIds",
          "PgonceLongTransaction", "PgonceStaleOld", "PgonceExpiredKeys", "PgonceCaptureKeepsWal", "PgonceConsumeStalled", "PgonceSinkAway", "PgonceHostHangs", "PgonceParkedFull", "PgonceDeadTopicRefuses",
          "PgoncePermitLate"}


def test_alerts_fire_for_what_is_wrong_and_not_for_what_is_well(watched):
    prometheus = watched[1]

    def fires(alert, labels):
        return any(firing["alertname"] == alert and labels.items() <= firing.items() for firing in prometheus.firing())

    for alert, labels in FIRING.items():
        wait_until(lambda alert=alert, labels=labels: fires(alert, labels), f"{alert} {labels}")
    wait_until(lambda: not SILENT & {firing["alertname"] for firing in prometheus.firing()}, f"silence of {SILENT}")


def test_each_metric_that_an_alert_or_a_panel_names_is_served(watched):
    prometheus = watched[1]
    named = set(re.findall(r"pgonce_\w+", ALERTS + json.dumps([query for _, query in expressions()])))
    assert len(named) > 20
    wait_until(lambda: not missing(prometheus, named), "metrics", 120)


def missing(prometheus, named):
    return {name for name in named if name not in prometheus.ask("/api/v1/label/__name__/values")}
