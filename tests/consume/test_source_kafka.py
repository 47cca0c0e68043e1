# SPDX-License-Identifier: PostgreSQL
"""Messages out of Apache Kafka, from a real broker: in order, again when they were not acknowledged, and not again when they were."""

import contextlib
import re
import subprocess
import time
import uuid

import pytest
from cli.command import PROGRAM
from harness import kafka as harness
from harness.postgres import clean_environment, tied, wait_until
from harness.scrape import address_in, ask, figure, scrape

from .playing import Refused, Source, headers, payloads
from .script import HANDLER


@pytest.fixture(scope="module")
def broker():
    harness.require()
    with harness.Kafka(users={"alice": "right"}) as broker:
        yield broker


@pytest.fixture
def topic(broker):
    """Of this test alone."""
    name = f"orders-{uuid.uuid4().hex[:8]}"
    broker.create_topic(name)
    return name


def texts(first, last):
    return [f"m{i}" for i in range(first, last + 1)]


def fill(broker, topic, first, last, keys=1):
    broker.publish(topic, [(f"k{i % keys}", text) for i, text in zip(range(first, last + 1), texts(first, last))])


def opened(broker, topics, tmp_path, name="stock", **options):
    # As fast as a test wants it: a dead member is noticed after its session.
    fast = {"kafka__session.timeout.ms": 6000, "kafka__heartbeat.interval.ms": 500}
    given = {"url": f"kafka://{broker.servers}", "topics": topics, "group": "g" + topics[-8:], **fast, **options}
    return Source(tmp_path, name=name, source="kafka", **given)


def numbers(messages):
    return [int(text[1:]) for text in payloads(messages)]


def in_order(messages):
    """Of each partition, by what was written into it first."""
    of = {}
    for message in messages:
        of.setdefault(message["coordinates"].rpartition("/")[0], []).append(message)
    return all(numbers(each) == sorted(numbers(each)) for each in of.values())


def test_everything_comes_in_the_partitions_order_with_all_that_belongs_to_it(broker, topic, tmp_path):
    fill(broker, topic, 1, 2500)
    broker.kcat("-P", "-t", topic, "-K", "|", "-H", "Pgonce-Event-Id=e1", "-H", "two=2", data=b'k|{"a": 1}\n')
    with opened(broker, topic, tmp_path, prefetch=3000) as source:
        found = source.collect(2501, most=500)
        assert payloads(found) == [*texts(1, 2500), '{"a": 1}']
        last = found[-1]
        assert (last["topic"], last["key"], last["coordinates"]) == (topic, "k", f"{topic}/0/2500")
        assert headers(last) == {"Pgonce-Event-Id": "e1", "two": "2"}
        assert source.acknowledge()["state"] == "ok"
        source.quiet()


def test_a_message_without_key_and_value_is_none_of_text(broker, topic, tmp_path):
    broker.kcat("-P", "-t", topic, "-Z", "-K", "|", data=b"k|\n")
    broker.kcat("-P", "-t", topic, data=b"v\n")
    with opened(broker, topic, tmp_path) as source:
        assert [(each["key"], each["payload"]) for each in source.collect(2)] == [("k", None), (None, "v")]


@pytest.mark.parametrize("way", ["killed", "closed"])
def test_what_was_acknowledged_never_comes_again_and_the_rest_does(broker, topic, tmp_path, way):
    fill(broker, topic, 1, 100)
    with opened(broker, topic, tmp_path) as source:
        source.acknowledge(source.collect(100)[:60])
        source.quiet()  # the commit has its time
        source.kill() if way == "killed" else source.close()
    with opened(broker, topic, tmp_path) as source:
        assert payloads(source.collect(40)) == texts(61, 100)
        source.quiet()


def test_nothing_is_committed_over_what_was_given_back(broker, topic, tmp_path):
    fill(broker, topic, 1, 20)
    with opened(broker, topic, tmp_path) as source:
        found = source.collect(20)
        source.give_back(found[5:10])
        source.acknowledge(found[:5] + found[10:])
        source.close()
    with opened(broker, topic, tmp_path) as source:
        assert payloads(source.collect(15)) == texts(6, 20)


def test_what_is_given_back_comes_again_in_its_order_and_first(broker, topic, tmp_path):
    fill(broker, topic, 1, 30)
    with opened(broker, topic, tmp_path) as source:
        first = source.collect(10, most=10)
        second = source.collect(10, most=10)
        source.give_back(second)
        source.give_back(first)
        assert payloads(source.collect(30)) == texts(1, 30)


@pytest.mark.alone
def test_a_busy_caller_stays_in_the_group_and_takes_no_more_than_the_prefetch(broker, topic, tmp_path):
    """With max.poll.interval at its least; without keeping alive the group would give the partition away."""
    fill(broker, topic, 1, 200)
    with opened(broker, topic, tmp_path, prefetch=50, **{"kafka__max.poll.interval.ms": 6000}) as source:
        source.collect(50, most=50)
        until = time.monotonic() + 9
        while time.monotonic() < until:
            assert source.keep_alive() == {"state": "ok", "problem": "", "messages": []}
            time.sleep(0.5)
        assert source.acknowledge()["state"] == "ok"
        assert payloads(source.collect(150, most=50)) == texts(51, 200)


@pytest.mark.alone
def test_a_busy_caller_lets_a_second_member_in(broker, tmp_path):
    """However much waits: a rebalance is served by keeping alive."""
    topic = f"full-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    fill(broker, topic, 1, 20000, keys=20)
    with opened(broker, topic, tmp_path, prefetch=10) as one:
        one.collect(10, most=10)
        with opened(broker, topic, tmp_path, name="other") as two:
            deadline = time.monotonic() + 20
            while not two.fetch(10)["messages"]:
                one.keep_alive()
                assert time.monotonic() < deadline


def test_what_was_given_back_is_forgotten_where_a_rebalance_takes_it(broker, tmp_path):
    topic = f"held-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    fill(broker, topic, 1, 100, keys=20)
    with opened(broker, topic, tmp_path) as one:
        one.collect(100)
        one.give_back()
        with opened(broker, topic, tmp_path, name="other") as two:
            by_two, deadline = [], time.monotonic() + 60
            while not by_two:
                one.keep_alive()
                by_two = two.fetch()["messages"]
                assert time.monotonic() < deadline
            by_one = one.collect(1)
            assert not {each["coordinates"] for each in by_one} & {each["coordinates"] for each in by_two}


def test_what_was_acknowledged_last_is_committed_at_the_end(broker, topic, tmp_path):
    """One commit is on its way at a time; the second of two acknowledgements waits for the first one's answer, or for the end."""
    fill(broker, topic, 1, 30)
    with opened(broker, topic, tmp_path) as source:
        found = source.collect(30)
        # In one write: no time for an answer between them.
        words = [" ".join(str(each["n"]) for each in part) for part in (found[:10], found[10:20])]
        source.process.stdin.write("".join(f"ack {each}\n" for each in words).encode())
        source.close()
    with opened(broker, topic, tmp_path) as source:
        assert payloads(source.collect(10)) == texts(21, 30)


def test_two_members_share_and_what_the_one_loses_the_other_gets(broker, tmp_path):
    topic = f"shared-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 4)
    fill(broker, topic, 1, 400, keys=40)
    for strategy in ("range,roundrobin", "cooperative-sticky"):
        rebalance(broker, topic, tmp_path, strategy)


def rebalance(broker, topic, tmp_path, strategy):
    options = {"group": f"g-{strategy[:5]}", "kafka__partition.assignment.strategy": strategy}
    with opened(broker, topic, tmp_path, **options) as one:
        held = one.collect(400)
        done = held[:100]
        one.acknowledge(done)
        with opened(broker, topic, tmp_path, name="other", **options) as two:
            has, lost, settled = {one: held[100:], two: []}, False, False
            deadline = time.monotonic() + 60
            while not (settled and lost and len({each["coordinates"] for each in done + has[one] + has[two]}) == 400):
                assert time.monotonic() < deadline, (len(has[one]), len(has[two]), lost)
                settled = True
                for member in (one, two):
                    answer = member.fetch()
                    has[member] += answer["messages"]
                    settled = settled and answer["state"] == "ok" and not answer["messages"]
                    if answer["state"] == "lost":
                        # What is void is freed, the rest comes again. There may be more than one rebalance.
                        member.give_back()
                        has[member] = []
                        lost = lost or member is one
            assert has[two] and in_order(has[two]) and in_order(has[one])
            # Nobody holds what the other does, and nothing that was acknowledged came again.
            assert not {each["coordinates"] for each in has[one]} & {each["coordinates"] for each in has[two]}
            assert not {each["coordinates"] for each in done} & {each["coordinates"] for each in has[one] + has[two]}


def test_acknowledging_what_a_rebalance_took_commits_nothing(broker, tmp_path):
    topic = f"taken-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    fill(broker, topic, 1, 100, keys=20)
    with opened(broker, topic, tmp_path) as one:
        one.collect(100)
        with opened(broker, topic, tmp_path, name="other") as two:
            deadline = time.monotonic() + 60
            while one.fetch()["state"] != "lost":
                two.fetch(1)
                assert time.monotonic() < deadline
            void = one.acknowledge()  # its effects are committed; the offsets are the other one's business
            assert void["state"] == "ok"
            one.close()
            two.kill()
    with opened(broker, topic, tmp_path) as again:
        assert len(again.collect(100)) == 100


def test_a_killed_broker_is_waited_for_and_loses_nothing(tmp_path):
    harness.require()
    with harness.Kafka() as broker:
        broker.create_topic("orders")
        fill(broker, "orders", 1, 100)
        with opened(broker, "orders", tmp_path) as source:
            held = source.collect(100)
            source.acknowledge(held[:50])
            source.quiet()
            broker.kill()
            assert "onnect" in source.until("unavailable")["problem"]
            source.give_back()
            broker.start()
            found = source.collect(50)
            assert payloads(found)[-50:] == texts(51, 100)
            source.acknowledge()
            source.until("ok")
            fill(broker, "orders", 101, 110)
            assert payloads(source.collect(10))[-10:] == texts(101, 110)
            source.acknowledge()
            source.close()
        with opened(broker, "orders", tmp_path) as source:
            source.quiet(10)


def test_a_missing_topic_is_named_and_used_when_it_is_there(broker, tmp_path):
    name = f"late-{uuid.uuid4().hex[:8]}"
    with opened(broker, name, tmp_path, **{"kafka__topic.metadata.refresh.interval.ms": 1000}) as source:
        assert name in source.until("unavailable")["problem"]
        broker.create_topic(name)
        fill(broker, name, 1, 3)
        assert payloads(source.collect(3)) == texts(1, 3)


def test_wrong_credentials_are_named(broker, topic, tmp_path):
    url = f"kafka://{broker.servers_of('SASL_PLAINTEXT')}"
    with opened(broker, topic, tmp_path, url=url, user="alice", password="wrong") as source:
        problem = source.until("unavailable")["problem"]
        assert "uthentication" in problem and "wrong" not in problem, problem
    fill(broker, topic, 1, 1)
    with opened(broker, topic, tmp_path, url=url, user="alice", password="right") as source:
        assert payloads(source.collect(1)) == ["m1"]


@pytest.mark.parametrize(
    "option, said",
    [
        ({"kafka__enable.auto.commit": "true"}, "when its effect has committed"),
        ({"kafka__enable.auto.offset.store": "true"}, "when its effect has committed"),
        ({"kafka__group.id": "mine"}, "the option group"),
        ({"kafka__no.such": "1"}, "No such configuration property"),
        ({"topics": " , "}, "names no topic"),
        ({"topics": "shop, graves", "dead_topic": "graves"}, "'graves' is also read, by topics: .* would die there again"),
        ({"topics": r"shop, ^orders[.-]", "dead_topic": "orders.dead"}, "'orders.dead' is also read, by topics"),
    ],
)
def test_what_would_break_the_promise_is_refused_at_the_start(broker, tmp_path, option, said):
    with pytest.raises(Refused, match=said):
        opened(broker, **{"topics": "orders-x", "tmp_path": tmp_path, **option}).fetch()


@pytest.mark.parametrize(
    "option",
    [
        {"topics": "shop", "dead_topic": "shop.dead"},
        {"topics": "^shop$", "dead_topic": "shop.dead"},
        {"topics": "^shop", "dead_topic": "shop.dead", "kafka__topic.blacklist": r"other, ^shop\.dead$"},
    ],
)
def test_a_dead_topic_beside_what_is_read_is_taken(broker, tmp_path, option):
    with opened(broker, tmp_path=tmp_path, **option) as source:
        assert "state" in source.fetch()


def test_a_copy_is_published_with_its_headers_and_waited_for(broker, topic, tmp_path):
    broker.create_topic(f"dead-{topic}")
    broker.kcat("-P", "-t", topic, "-K", "|", "-H", "Pgonce-Event-Id=e1", data=b"k|bad\n")
    with opened(broker, topic, tmp_path) as source:
        message = source.collect(1)[0]
        assert source.publish(f"dead-{topic}", message)["state"] == "ok"
        copy, = broker.messages(f"dead-{topic}")
        assert (copy["key"], copy["payload"], copy["headers"]) == ("k", "bad", {"Pgonce-Event-Id": "e1", "why": "dead"})
        answer = source.publish(f"nowhere-{topic}", message)
        assert answer["state"] == "unavailable" and "topic" in answer["problem"], answer


def test_a_position_is_the_time_below_which_nothing_comes_again(broker, topic, tmp_path):
    fill(broker, topic, 1, 3)
    after_3 = time.time() * 1000
    fill(broker, topic, 4, 10)
    part = f"{topic}/0"
    with opened(broker, topic, tmp_path) as source:
        found = source.collect(10)
        source.acknowledge(found[4:8])  # not the next: those before them may come again
        source.keep_alive()
        assert part not in source.positions()
        source.acknowledge(found[:3])
        at_ms, _ = source.until_at(part, lambda position: position is not None)
        assert 0 < at_ms <= after_3
        source.acknowledge()
        assert source.until_at(part, lambda position: position[0] is None) == (None, 0)
        source.close()
    with opened(broker, topic, tmp_path) as source:  # nothing comes, and the group has all
        source.keep_alive()
        assert source.until_at(part, lambda position: position is not None) == (None, 0)


def goes_and_returns(broker, topic, one, full, **options):
    """A second member takes a partition while the first is busy (full), or just after, and goes again. What the first had before is acknowledged."""
    done = one.collect(10, most=10)
    one.keep_alive()
    with opened(broker, topic, one.directory, name="other", **options) as two:
        deadline = time.monotonic() + 30
        while not two.fetch(10)["messages"]:
            one.keep_alive()
            assert time.monotonic() < deadline
        if not full:
            done += one.fetch(10)["messages"]
        one.acknowledge()
        two.close()
    while full and one.log.read_text().count("now=2") < 2:
        one.keep_alive()
        assert time.monotonic() < deadline
    return done


@pytest.mark.parametrize("strategy", ["range,roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("full", [False, True])
def test_a_partition_that_went_to_another_member_meanwhile_is_read_when_it_returns(broker, tmp_path, strategy, full):
    topic = f"back-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    fill(broker, topic, 1, 400, keys=20)
    options = {"kafka__partition.assignment.strategy": strategy, "kafka__queued.min.messages": 10}
    with opened(broker, topic, tmp_path, prefetch=10, **options) as one:
        seen = {each["coordinates"] for each in goes_and_returns(broker, topic, one, full, **options)}
        deadline = time.monotonic() + 30
        while len(seen) < 400:
            seen |= {each["coordinates"] for each in one.fetch(100)["messages"]}
            one.acknowledge()
            assert time.monotonic() < deadline, sorted(seen)


TINY = {"kafka__message.max.bytes": 2000, "kafka__fetch.max.bytes": 4000, "kafka__receive.message.max.bytes": 5000}


def test_a_partition_that_has_messages_and_gives_none_is_stalled_until_it_gives_some(broker, tmp_path):
    """A record that is larger than what the client takes: librdkafka asks for it for ever."""
    topic = f"stuck-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic)
    fill(broker, topic, 1, 3)
    broker.publish(topic, [("k", "x" * 20000)])
    broker.publish(topic, [("k", "m5")])
    with opened(broker, topic, tmp_path, stalled_after="2s", **TINY) as source:
        assert payloads(source.collect(3)) == texts(1, 3)
        began, deadline = time.monotonic(), time.monotonic() + 30
        while source.stalled() is None:
            source.fetch()
            assert time.monotonic() < deadline
        assert time.monotonic() - began >= 2
        assert source.stalled() == f"{topic}/0 has messages up to the offset 5, but delivers none from 3 on"
        broker.delete_records(topic, 0, 4)
        assert payloads(source.collect(1)) == ["m5"]
        assert source.stalled() is None
        assert losses(source.log) == [(topic, "0", "3", "4", "1")]


def losses(log):
    """What is said to be deleted before it was read: topic, partition, from, to, count."""
    return re.findall(r"level=error .*event=lost-to-retention topic=(\S+) partition=(\d+) from=(\d+) to=(\d+) count=(\d+) ", log.read_text())


def test_what_is_empty_at_its_end_or_waits_with_the_caller_is_not_stalled(broker, tmp_path):
    """Transactions end with records that no consumer gets; what was deleted is above what the group has read."""
    topic = f"calm-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 4)
    broker.kcat("-P", "-t", topic, "-p", 1, "-X", "transactional.id=calm", data=b"m1\nm2\n")
    broker.kcat("-P", "-t", topic, "-p", 2, data=b"m3\nm4\n")
    broker.delete_records(topic, 2, 2)
    broker.kcat("-P", "-t", topic, "-p", 3, data=b"m5\nm6\n")
    with opened(broker, topic, tmp_path, stalled_after="1s") as source:
        source.collect(4)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            source.fetch()
            assert source.stalled() is None


def test_a_handler_that_takes_long_makes_no_partition_stalled(broker, tmp_path):
    """What was fetched from one partition waits before what came from another."""
    topic = f"slow-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, 2)
    broker.kcat("-P", "-t", topic, "-p", 0, data="".join(f"m{i}\n" for i in range(50)).encode())
    with opened(broker, topic, tmp_path, stalled_after="1s") as source:
        source.collect(1, most=1)
        broker.kcat("-P", "-t", topic, "-p", 1, data=b"late\n")
        found = []
        while "late" not in found:
            found += payloads(source.fetch(1)["messages"])
            assert source.stalled() is None
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                source.keep_alive()
                time.sleep(0.02)  # the handler's work


@contextlib.contextmanager
def consuming(broker, topic, db, tmp_path, **options):
    """pgonce consume: (the address of its metrics, its log)."""
    db.execute(HANDLER)
    config, log = tmp_path / "pgonce.conf", tmp_path / "log"
    given = {"source": "kafka", "url": f"kafka://{broker.servers}", "topics": topic, "handler": "apply", "id": "coordinates", **options}
    lines = "".join(f"{name.replace('__', '.')} = {value}\n" for name, value in given.items())
    config.write_text(f"dsn = {db.dsn()}\n[consume stock]\n{lines}")
    process = subprocess.Popen(tied([PROGRAM, "consume", "--config", config, "--metrics", "127.0.0.1:0"]), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=open(log, "wb"), env=clean_environment())
    try:
        wait_until(lambda: address_in(log.read_text()), "the address")
        yield address_in(log.read_text()), log
        process.terminate()
        assert process.wait(60) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait(60)


def test_a_stalled_partition_is_said_by_the_log_a_metric_and_ready(broker, topic, db, tmp_path):
    """And a poison message that is parked is none: it is acknowledged."""
    def stalled():
        return figure(scrape(address), "pgonce_consume_stalled", consumer="stock")

    broker.publish(topic, [("k", '{"do": "fail"}')])
    with consuming(broker, topic, db, tmp_path, stalled_after="2s", retry_first="100ms", attempts=2, **TINY) as (address, log):
        wait_until(lambda: figure(scrape(address), "pgonce_consume_parked", consumer="stock", state="dead") == 1, "the poison to be dead")
        until = time.monotonic() + 5
        while time.monotonic() < until:
            assert ask(address, "/once/ready")[0] == 200 and stalled() == 0
        broker.publish(topic, [("k", '"' + "x" * 20000 + '"')])
        broker.publish(topic, [("j", '{"number": 3}')])
        wait_until(lambda: stalled() == 1, "the alarm")
        status, _, text = ask(address, "/once/ready")
        assert (status, text) == (503, "a consumer's source has messages but delivers none: the log names it\n")
        assert f"event=stalled problem=\"{topic}/0 has messages up to the offset 3, but delivers none from 1 on\"" in log.read_text()
        broker.delete_records(topic, 0, 2)
        wait_until(lambda: stalled() == 0, "the end of the alarm")
        wait_until(lambda: db.value("SELECT count(*) FROM applied") == 1, "the next message")
        assert ask(address, "/once/ready")[0] == 200
    assert log.read_text().count("event=stalled") == 1 and log.read_text().count("event=not_stalled") == 1


def figure_of(address, name):
    return figure(scrape(address), f"pgonce_consume_{name}", consumer="stock")


def applied(db):
    return db.value("SELECT count(*) FROM applied")


def lines(first, last):
    return [("k", f'{{"number": {n}}}') for n in range(first, last + 1)]


def test_what_retention_deleted_while_the_consumer_was_away_is_said_and_counted(broker, topic, db, tmp_path):
    """Once: the group goes on behind it, also where nothing is left. Broken on purpose: without the offset that is committed then it is said again."""
    broker.publish(topic, lines(1, 10))
    with consuming(broker, topic, db, tmp_path) as (address, log):
        wait_until(lambda: applied(db) == 10, "the first ones")
        assert figure_of(address, "lost") == 0
    assert losses(log) == []
    broker.publish(topic, lines(11, 20))
    broker.delete_records(topic, 0, 15)
    with consuming(broker, topic, db, tmp_path) as (address, log):
        wait_until(lambda: applied(db) == 15, "those that are left")
        assert figure_of(address, "lost") == 5
    assert losses(log) == [(topic, "0", "10", "15", "5")]
    broker.publish(topic, lines(21, 23))
    broker.delete_records(topic, 0, 23)
    for lost in ([(topic, "0", "20", "23", "3")], []):
        with consuming(broker, topic, db, tmp_path) as (address, log):
            wait_until(lambda: "event=assigned" in log.read_text(), "the partition")
            if lost:
                wait_until(lambda: figure_of(address, "lost") == 3, "the loss of all")
                wait_until(lambda: broker.committed("stock", topic, 1) == {0: 23}, "the group's offset")
            else:
                broker.publish(topic, lines(24, 24))
                wait_until(lambda: applied(db) == 16, "the next")
        assert losses(log) == lost


def test_what_the_client_skips_to_the_end_is_lost_too(broker, topic, tmp_path):
    fill(broker, topic, 1, 20)
    broker.delete_records(topic, 0, 10)
    broker.commit("late", topic, 0, 5)
    with opened(broker, topic, tmp_path, group="late", **{"kafka__auto.offset.reset": "latest"}) as source:
        wait_until(lambda: source.fetch() and losses(source.log) == [(topic, "0", "5", "20", "15")], "the loss")
        fill(broker, topic, 21, 21)
        assert payloads(source.collect(1)) == ["m21"]


@pytest.mark.parametrize("strategy", ["range,roundrobin", "cooperative-sticky"])
def test_what_is_read_goes_on_where_it_is_while_another_partition_finds_its_place(broker, tmp_path, strategy):
    """What was taken from the first partition is not void, and does not come again."""
    topic, options = f"two-{uuid.uuid4().hex[:8]}", {"kafka__partition.assignment.strategy": strategy}
    broker.create_topic(topic, 2)
    for partition, first, last in ((0, 1, 3000), (1, 3001, 3020)):
        broker.kcat("-P", "-t", topic, "-p", partition, data="".join(f"{each}\n" for each in texts(first, last)).encode())
    broker.delete_records(topic, 1, 10)
    broker.commit(topic, topic, 0, 0)
    broker.commit(topic, topic, 1, 5)
    with opened(broker, topic, tmp_path, group=topic, prefetch=4000, **options) as source:
        found = source.collect(3010, most=100)
        source.quiet()
        assert sorted(payloads(found)) == sorted(texts(1, 3000) + texts(3011, 3020)) and in_order(found)
        assert losses(source.log) == [(topic, "1", "5", "10", "5")]
        source.acknowledge()
        broker.kcat("-P", "-t", topic, "-p", 1, data=b"m3021\n")
        assert payloads(source.collect(1)) == ["m3021"]
        source.acknowledge()
        source.close()
    assert broker.committed(topic, topic, 2) == {0: 3000, 1: 21}


def test_a_gap_that_a_transaction_leaves_is_no_loss(broker, topic, tmp_path):
    for n in range(3):
        broker.kcat("-P", "-t", topic, "-X", "transactional.id=gaps", data=f"m{2 * n + 1}\nm{2 * n + 2}\n".encode())
    with opened(broker, topic, tmp_path) as source:
        assert payloads(source.collect(6)) == texts(1, 6)
        source.acknowledge()
        broker.delete_records(topic, 0, 8)  # with it goes nothing that was not read
        broker.kcat("-P", "-t", topic, "-X", "transactional.id=gaps", data=b"m7\n")
        assert payloads(source.collect(1)) == ["m7"]
        assert losses(source.log) == []


def forgotten(broker, db):
    """The group's offsets are gone, and so are the inbox's rows: their retention is over."""
    broker.forget("stock")
    db.execute("SELECT once.set_scope('stock', retention => '1 second')")
    db.execute("DELETE FROM once.intent WHERE scope = 'stock'")
    time.sleep(1.1)  # the messages' age is what counts


@pytest.mark.parametrize("strategy", ["range,roundrobin", "cooperative-sticky"])
def test_a_group_without_its_offset_does_not_begin_with_what_the_inbox_has_forgotten(broker, db, tmp_path, strategy):
    """It would apply them a second time. The other partition is read."""
    topic, options = f"old-{uuid.uuid4().hex[:8]}", {"kafka__partition.assignment.strategy": strategy}
    broker.create_topic(topic, 2)
    broker.kcat("-P", "-t", topic, "-p", 0, data="".join(f"{text}\n" for _, text in lines(1, 5)).encode())
    with consuming(broker, topic, db, tmp_path, **options) as (address, log):
        wait_until(lambda: applied(db) == 5, "the first time")
    forgotten(broker, db)
    with consuming(broker, topic, db, tmp_path, forgotten="refuse", **options) as (address, log):
        wait_until(lambda: "event=refused" in log.read_text(), "the refusal")
        broker.kcat("-P", "-t", topic, "-p", 1, data=b'{"number": 6}\n')
        wait_until(lambda: applied(db) == 6, "the other partition")
        wait_until(lambda: figure_of(address, "stalled") == 1, "the alarm")
        assert ask(address, "/once/ready")[0] == 503
        said, = re.findall(r"level=error .*event=refused .*", log.read_text())
        assert f'topic={topic} partition=0 offset=-1 group="stock"' in said and "forgotten = apply" in said
        assert f"event=stalled problem=\"{topic}/0 is not read:" in log.read_text()
    assert applied(db) == 6 and broker.committed("stock", topic, 2) == {0: 0, 1: 1}
    with consuming(broker, topic, db, tmp_path, forgotten="apply", **options) as (address, log):
        wait_until(lambda: applied(db) == 11, "the second time, as it was told to")
        assert figure_of(address, "stalled") == 0
    assert f"event=begun topic={topic} partition=0 offset=0" in log.read_text()
    forgotten(broker, db)
    broker.commit("stock", topic, 0, 5)
    broker.commit("stock", topic, 1, 1)
    broker.publish(topic, lines(7, 7))
    with consuming(broker, topic, db, tmp_path, **options) as (address, log):
        wait_until(lambda: applied(db) == 12, "what comes after the offset that somebody has set")


def test_a_group_whose_partitions_are_all_refused_is_away(broker, topic, db, tmp_path):
    """The same where its offset is beyond the end: of a topic that was made anew. librdkafka would begin at its start."""
    broker.publish(topic, lines(1, 5))
    with consuming(broker, topic, db, tmp_path) as (address, log):
        wait_until(lambda: applied(db) == 5, "the first time")
    forgotten(broker, db)
    broker.commit("stock", topic, 0, 1000)
    with consuming(broker, topic, db, tmp_path) as (address, log):
        wait_until(lambda: figure_of(address, "source_away") == 1, "the alarm")
        assert applied(db) == 5
    assert "event=source_away" in log.read_text() and "event=refused" in log.read_text()


def test_a_group_without_its_offset_begins_anew_where_the_inbox_remembers_all(broker, topic, db, tmp_path):
    broker.publish(topic, lines(1, 5))
    with consuming(broker, topic, db, tmp_path) as (address, log):
        wait_until(lambda: applied(db) == 5, "the first time")
    broker.forget("stock")
    broker.publish(topic, lines(6, 6))
    with consuming(broker, topic, db, tmp_path) as (address, log):
        wait_until(lambda: applied(db) == 6, "the new one")
        assert figure_of(address, "duplicates") == 5
    assert "event=refused" not in log.read_text()


def test_a_consumer_that_never_ran_begins_with_a_topic_of_any_age(broker, topic, db, tmp_path):
    broker.publish(topic, lines(1, 5))
    db.execute("SELECT once.set_scope('stock', retention => '1 second')")
    time.sleep(1.1)
    with consuming(broker, topic, db, tmp_path) as (address, log):
        wait_until(lambda: applied(db) == 5, "all")


def test_a_group_that_has_begun_has_an_offset_before_anything_is_done(broker, topic, tmp_path):
    """So that the next member, or start, goes on from there, however old the messages are."""
    fill(broker, topic, 1, 5)
    broker.delete_records(topic, 0, 2)
    with opened(broker, topic, tmp_path, group="begun") as source:
        source.collect(3)
        wait_until(lambda: source.keep_alive() and broker.committed("begun", topic, 1) == {0: 2}, "the offset")
