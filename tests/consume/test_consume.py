# SPDX-License-Identifier: PostgreSQL
"""pgonce consume: the command, with a configuration file and a real broker (NATS JetStream)."""
import json
import random
import signal
import subprocess
import time

import pytest

from cli.command import PROGRAM
from contract.calls import uuid7_days_ago
from harness.nats import Nats
from harness.postgres import clean_environment, tied, wait_until

from .script import HANDLER


@pytest.fixture(scope="module")
def broker():
    with Nats() as server:
        yield server


@pytest.fixture
def nats(broker):
    broker.add_stream("ORDERS", "order.>")
    yield broker
    broker.delete_stream("ORDERS")


@pytest.fixture
def applied(db):
    db.execute(HANDLER)
    return db


def fill(nats, count, first=0, **more):
    nats.publish([(f"order.{n % 7}", json.dumps({"number": n, **more}).encode(),
                   [("Pgonce-Event-Id", f"id-{n}"), ("Pgonce-Key", f"k{n % 13}")]) for n in range(first, first + count)])


def write(tmp_path, nats, dsn, **options):
    path = tmp_path / "pgonce.conf"
    lines = {"source": "nats", "url": nats.url, "stream": "ORDERS", "handler": "apply", "retry_first": "5ms", "retry_most": "20ms", **options}
    path.write_text(f"dsn = {dsn}\n\n[consume stock]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items() if v is not None))
    path.chmod(0o600)
    return path


def run(*words, **more):
    return subprocess.run([PROGRAM, "consume", *map(str, words)], capture_output=True, text=True, env=clean_environment(), timeout=60, check=False, **more)


def start(path, *words):
    return subprocess.Popen(tied([PROGRAM, "consume", "--config", path, *words]), env=clean_environment(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def each_once_in_order(db, count):
    assert db.row("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM applied") == (count, count)
    last = {}
    for row in db.rows("SELECT id, key FROM applied ORDER BY n"):
        assert last.get(row.key, -1) < int(row.id[3:])
        last[row.key] = int(row.id[3:])


def test_once_applies_what_is_there_and_ends(applied, nats, tmp_path):
    fill(nats, 500)
    done = run("--config", write(tmp_path, nats, applied.dsn()), "--once", "-v")
    assert done.returncode == 0, done.stderr
    each_once_in_order(applied, 500)
    assert "event=started source=nats" in done.stderr and "event=batch" in done.stderr
    assert applied.row("SELECT topic, key, headers, body FROM applied WHERE id = 'id-8'") == (
        "order.1", "k8", {"Pgonce-Event-Id": "id-8", "Pgonce-Key": "k8"}, {"number": 8})


@pytest.mark.alone
def test_kill_9_of_the_command_loses_and_repeats_nothing(applied, nats, tmp_path):
    rng = random.Random(11)
    path = write(tmp_path, nats, applied.dsn(), batch=20, ack_wait="1s")
    fill(nats, 3000)
    kills = 0
    while (before := applied.value("SELECT count(*) FROM applied")) < 3000 and kills < 40:
        process = start(path)
        wait_until(lambda: applied.value("SELECT count(*) FROM applied") > before or process.poll() is not None, "progress")
        time.sleep(rng.random() * 0.05)  # a kill at some point: any will do
        process.kill()
        process.communicate()
        kills += 1
    assert kills > 3

    def rest():  # what the last one had comes again after ack_wait, by the broker's clock
        assert run("--config", path, "--once").returncode == 0
        return applied.value("SELECT count(*) FROM applied") >= 3000

    wait_until(rest, "the rest")
    each_once_in_order(applied, 3000)


def test_hang_ups_in_the_middle_of_the_work_lose_and_repeat_nothing(applied, nats, tmp_path):
    """SIGHUP: the batch at work is finished, and the consumer of the file as it is now goes on in the same process."""
    path = write(tmp_path, nats, applied.dsn(), batch=20)
    process = start(path)
    for batch in (30, 40, 50):
        before = applied.value("SELECT count(*) FROM applied")
        fill(nats, 500, first=before)
        wait_until(lambda: applied.value("SELECT count(*) FROM applied") > before or process.poll() is not None, "progress")
        write(tmp_path, nats, applied.dsn(), batch=batch)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: applied.value("SELECT count(*) FROM applied") == before + 500 or process.poll() is not None, "all of them")
    process.terminate()
    out = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 0 and "event=reloaded consumers=stock" in out, out
    each_once_in_order(applied, 1500)


def test_a_dead_message_is_shown_and_retried_by_the_command(applied, nats, tmp_path):
    fill(nats, 1, do="fail")
    fill(nats, 20, first=1)
    path = write(tmp_path, nats, applied.dsn(), attempts=2)
    assert run("--config", path, "--once").returncode == 0
    assert applied.value("SELECT count(*) FROM applied") == 19  # one waits behind it
    assert applied.row("SELECT message_id, state FROM once.parked_message ORDER BY position LIMIT 1") == ("id-0", "dead")


def test_once_ends_with_parked_max_parked_though_it_never_connected(applied, nats, tmp_path):
    fill(nats, 1, do="fail")
    path = write(tmp_path, nats, applied.dsn(), attempts=1, parked_max=1)
    assert run("--config", path, "--once").returncode == 0
    again = run("--config", path, "--once")
    assert again.returncode == 0 and "event=full" in again.stderr and "event=source_away" not in again.stderr, again.stderr


def test_a_new_consumer_of_an_old_stream_applies_each_uuid7_once_and_one_that_died_after_its_retry(applied, nats, tmp_path):
    ids = [uuid7_days_ago(applied, 60, n) for n in range(50)]
    nats.publish([(f"order.{n}", json.dumps({"number": n, **({"do": "fail"} if n == 7 else {})}).encode(), [("Pgonce-Event-Id", id)])
                  for n, id in enumerate(ids)] * 2)
    path = write(tmp_path, nats, applied.dsn(), attempts=1)
    assert run("--config", path, "--once").returncode == 0
    assert sorted(row.id for row in applied.rows("SELECT id FROM applied")) == ids[:7] + ids[8:]
    dead = applied.row("SELECT message_id, state FROM once.parked_message")
    assert dead == (f"pgonce:id:{ids[7]}", "dead")

    applied.execute("CREATE OR REPLACE FUNCTION apply(m once.message) RETURNS void LANGUAGE sql AS 'INSERT INTO applied (id) VALUES (m.id)'")
    retried = subprocess.run([PROGRAM, "parked", "retry", dead.message_id, "--consumer", "stock", "--reason", "mended", "--dsn", applied.dsn()],
                             capture_output=True, text=True, env=clean_environment(), timeout=60, check=False)
    assert retried.returncode == 0, retried.stderr
    assert run("--config", path, "--once").returncode == 0
    nats.publish([("order.7", json.dumps({"number": 7, "do": "fail"}).encode(), [("Pgonce-Event-Id", ids[7])])])
    assert run("--config", path, "--once").returncode == 0
    assert sorted(row.id for row in applied.rows("SELECT id FROM applied")) == ids
    assert applied.value("SELECT count(*) FROM once.parked_message") == 0


def test_ids_are_not_changed_under_an_inbox_that_remembers_some(applied, nats, tmp_path):
    nats.publish([("order.1", b"{}", [("Pgonce-Event-Id", uuid7_days_ago(applied, 0))])])
    assert run("--config", write(tmp_path, nats, applied.dsn()), "--once").returncode == 0
    done = run("--config", write(tmp_path, nats, applied.dsn(), ids="uuidv7"), "--once")
    assert done.returncode != 0 and "under other ids it would apply them again. Set ids = opaque" in done.stderr
    assert run("--config", write(tmp_path, nats, applied.dsn(), ids="opaque"), "--once").returncode == 0
    assert applied.value("SELECT count(*) FROM applied") == 1


@pytest.mark.parametrize("ids", ["opaque", "uuidv7"])
def test_an_inbox_that_remembers_both_kinds_of_ids_is_told_with_what_to_do(applied, nats, tmp_path, ids):
    nats.publish([("order.1", b"{}", [("Pgonce-Event-Id", uuid7_days_ago(applied, 0))])])
    assert run("--config", write(tmp_path, nats, applied.dsn()), "--once").returncode == 0
    applied.execute("SELECT once.receive('stock', %s, once.fingerprint('m'::bytea), birthdays => true)", uuid7_days_ago(applied, 0, 1))
    assert sorted(applied.value("SELECT once.consumer_ids('stock')")) == ["opaque", "uuidv7"]
    done = run("--config", write(tmp_path, nats, applied.dsn(), ids=ids), "--once")
    assert done.returncode != 0 and "under both kinds of ids, opaque and uuidv7" in done.stderr and "give it another name" in done.stderr
    assert "Set ids =" not in done.stderr


RABBITMQ = {"source": "rabbitmq", "url": "amqp://127.0.0.1:1", "stream": None, "queue": "q"}


def test_check_config_connects_to_nothing(nats, tmp_path):
    path = write(tmp_path, nats, "host=/nowhere")
    done = run("--config", path, "--check-config")
    assert done.returncode == 0, done.stderr


def forget(nats, db):
    """The durable consumer is gone, and so are the inbox's rows: their retention is over."""
    with nats.connect() as client:
        client.api("CONSUMER.DELETE.ORDERS.stock")
    db.execute("SELECT once.set_scope('stock', retention => '1 second')")
    db.execute("DELETE FROM once.intent WHERE scope = 'stock'")
    time.sleep(1.1)  # the messages' age is what counts


def stopped(process):
    process.terminate()
    log = process.communicate(timeout=30)[0].decode()
    assert process.returncode == 0, log
    return log


def test_a_durable_consumer_is_not_made_anew_for_messages_that_the_inbox_has_forgotten(nats, applied, tmp_path):
    """It would apply them a second time."""
    fill(nats, 5)
    path = write(tmp_path, nats, applied.dsn())
    process = start(path)
    wait_until(lambda: applied.value("SELECT count(*) FROM applied") == 5, "the first time")
    assert "event=made" in stopped(process)
    forget(nats, applied)
    process = start(path)
    line = next(line for line in process.stdout if b"event=source_away" in line or b"event=made" in line)
    assert b"has lost its durable consumer stock" in line and b"forgotten = apply" in line
    stopped(process)
    assert nats.consumers("ORDERS") == [] and applied.value("SELECT count(*) FROM applied") == 5
    process = start(write(tmp_path, nats, applied.dsn(), forgotten="apply"))
    wait_until(lambda: applied.value("SELECT count(*) FROM applied") == 10, "the second time, as it was told to")
    assert "event=made" in stopped(process)


def test_a_consumer_that_runs_for_the_first_time_forgets_as_well(nats, applied, tmp_path):
    """When it has run for longer than its inbox remembers. Broken on purpose: where only earlier runs count, all is applied a second time."""
    fill(nats, 5)
    applied.execute("SELECT once.set_scope('stock', retention => '1 second')")
    process = start(write(tmp_path, nats, applied.dsn()))
    wait_until(lambda: applied.value("SELECT count(*) FROM applied") == 5, "the first time")
    applied.execute("DELETE FROM once.intent WHERE scope = 'stock'")
    time.sleep(1.1)
    with nats.connect() as client:
        client.api("CONSUMER.DELETE.ORDERS.stock")
    assert any(b"event=source_away" in line for line in process.stdout)
    until = time.monotonic() + 2
    while time.monotonic() < until:  # it has connected anew by then
        assert nats.consumers("ORDERS") == [] and applied.value("SELECT count(*) FROM applied") == 5
    stopped(process)


def test_a_durable_consumer_is_made_anew_where_the_inbox_remembers_all_that_comes_again(nats, applied, tmp_path):
    fill(nats, 5)
    path = write(tmp_path, nats, applied.dsn())
    process = start(path)
    wait_until(lambda: applied.value("SELECT count(*) FROM applied") == 5, "the first time")
    stopped(process)
    with nats.connect() as client:
        client.api("CONSUMER.DELETE.ORDERS.stock")
    fill(nats, 1, first=5)
    process = start(path)
    wait_until(lambda: applied.value("SELECT count(*) FROM applied") == 6, "the new one")
    assert "event=made" in stopped(process)
    assert applied.value("SELECT count(DISTINCT id) FROM applied") == 6


def test_a_consumer_that_never_ran_begins_with_a_stream_of_any_age(nats, applied, tmp_path):
    fill(nats, 5)
    applied.execute("SELECT once.set_scope('stock', retention => '1 second')")
    time.sleep(1.1)
    process = start(write(tmp_path, nats, applied.dsn()))
    wait_until(lambda: applied.value("SELECT count(*) FROM applied") == 5, "all of them")
    stopped(process)


@pytest.mark.parametrize("options, words", [
    ({"source": "carrier-pigeon"}, "source: 'carrier-pigeon' is not one of kafka, rabbitmq, nats, sqs"),
    ({"handler": None}, "one of handler (a SQL function) and endpoint (an HTTP URL) is required"),
    ({"endpoint": "http://127.0.0.1/"}, "not both"),
    ({"handler": None, "endpoint": "ftp://x"}, "endpoint: 'ftp://x' is not a URL"),
    *[({"handler": None, "endpoint": url}, f"endpoint: '{url}' is not a URL") for url in ("http://", "http://h:99999/x", "http://h/x y")],
    ({"handler": None, "endpoint": "https://h/", "endpoint_ca_file": "/nowhere"}, "endpoint_ca_file: cannot read /nowhere: No such file"),
    ({"handler": None, "endpoint": "https://h/", "endpoint_key_file": "/nowhere"}, "endpoint_key_file belong together: give both"),
    ({**RABBITMQ, "bind": "x"}, "bind: the queue is bound only with exchange"),
    ({**RABBITMQ, "queue_type": "quorum"}, "queue_type: the queue is created only with declare = yes"),
    ({"lease": "5s"}, "lease: only with endpoint"),
    ({"id": "key"}, "id: 'key' is not one of header:NAME, json:/pointer, coordinates"),
    ({"id": "json:order"}, "id: 'json:order' is not one of"),
    ({"id": "json:/a~2"}, "id: 'json:/a~2' is not one of"),
    ({"order_by": "coordinates"}, "order_by: 'coordinates' is not one of"),
    ({"batch": "0"}, "batch"),
    ({"batch": "5000"}, "batch: is more than prefetch (2000)"),
    ({"retry_first": "1h"}, "retry_first: is more than retry_most"),
    ({"on_dead": "ignore"}, "on_dead"),
    ({"hander": "x"}, "hander"),
    ({"prepare": "no"}, "prepare: with nats the order of a key is kept by one process at a time"),
])
def test_a_wrong_option_is_named_with_its_line(nats, tmp_path, options, words):
    done = run("--config", write(tmp_path, nats, "dbname=x", **options), "--check-config")
    assert done.returncode == 2 and words in done.stderr and "pgonce.conf:" in done.stderr, done.stderr


def test_the_password_of_an_endpoint_that_is_no_url_is_not_told(nats, tmp_path):
    done = run("--config", write(tmp_path, nats, "dbname=x", handler=None, endpoint="user:hunter2@host/x y"), "--check-config")
    assert done.returncode == 2 and "'host/x y' is not a URL" in done.stderr and "hunter2" not in done.stderr, done.stderr


def test_a_message_with_the_status_header_of_the_server_is_a_message_like_any_other(applied, nats, tmp_path):
    """NATS's library takes one with 503 and no payload for the server's own answer, that nobody is there."""
    statuses = ("503", "404", "408", "409", "100")
    nats.publish([("order.1", b"", [("Status", status), ("Pgonce-Event-Id", f"id-{status}")]) for status in statuses])
    fill(nats, 1)
    done = run("--config", write(tmp_path, nats, applied.dsn()), "--once")
    assert done.returncode == 0, done.stderr
    assert [row.id for row in applied.rows("SELECT id FROM applied ORDER BY n")] == [*(f"id-{status}" for status in statuses), "id-0"]
    assert done.stderr.count("event=connected source=nats") == 1
    assert nats.consumers("ORDERS")[0]["num_ack_pending"] == 0


def test_a_handler_that_takes_longer_than_the_least_ack_wait_has_its_message_once(applied, nats, tmp_path):
    applied.execute("""CREATE FUNCTION slow(m once.message) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(3); INSERT INTO applied (id) VALUES (m.id); END $$""")
    fill(nats, 1)
    done = run("--config", write(tmp_path, nats, applied.dsn(), handler="slow", ack_wait="1s"), "--once")
    assert done.returncode == 0 and "applied=1 duplicates=0" in done.stderr, done.stderr
    consumer, = nats.consumers("ORDERS")
    assert consumer["delivered"]["consumer_seq"] == 1


def test_sections_are_chosen_by_name(nats, tmp_path):
    path = write(tmp_path, nats, "dbname=x")
    done = run("--config", path, "sotck")
    assert done.returncode == 2 and "no [consume sotck]; its consumers: stock" in done.stderr, done.stderr
    done = run("--config", tmp_path / "nosuch.conf")
    assert done.returncode == 2 and "nosuch.conf" in done.stderr


def test_no_server_and_no_handler_have_their_exit_codes(applied, nats, tmp_path):
    done = run("--config", write(tmp_path, nats, "host=/nowhere"), "--once")
    assert done.returncode == 3, done.stderr
    done = run("--config", write(tmp_path, nats, applied.dsn(), handler="nosuch"))
    assert done.returncode == 1 and "[consume stock] there is no function nosuch(once.message)" in done.stderr


def test_one_consumer_that_fails_for_good_ends_them_all(applied, nats, tmp_path):
    path = write(tmp_path, nats, applied.dsn())
    with open(path, "a") as file:
        file.write(f"\n[consume other]\nsource = nats\nurl = {nats.url}\nstream = ORDERS\nhandler = nosuch\n")
    done = run("--config", path)
    assert done.returncode == 1 and "[consume other] there is no function" in done.stderr
    assert run("--config", path, "stock", "--once").returncode == 0


def test_the_inbox_is_told_how_far_the_broker_knows_it(applied, nats, tmp_path):
    """So that nothing is forgotten that may still come again. Broken on purpose: without the report at the end there is no row."""
    fill(nats, 50)
    before = applied.row("SELECT clock_timestamp() - interval '1 minute' AS at").at
    assert run("--config", write(tmp_path, nats, applied.dsn()), "--once").returncode == 0
    row = applied.row("SELECT part, \"position\", \"position\" < clock_timestamp() AS past FROM once.consumer_position WHERE consumer = 'stock'")
    assert row.part == "ORDERS" and row.position > before and row.past


def test_a_role_that_may_not_report_consumes_all_the_same(applied, nats, tmp_path):
    applied.execute("ALTER FUNCTION once.consumer_report RENAME TO gone")
    fill(nats, 50)
    done = run("--config", write(tmp_path, nats, applied.dsn()), "--once")
    assert done.returncode == 0 and done.stderr.count("event=report") == 1, done.stderr
    each_once_in_order(applied, 50)
