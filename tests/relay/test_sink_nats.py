# SPDX-License-Identifier: PostgreSQL
"""The sink of NATS JetStream against a real server, without a relay before it."""

import shutil
import time
import uuid

import pytest

from harness.broker import free_port
from harness.nats import Cluster, Nats
from harness.postgres import wait_until

from .sinks import Sink, problem_of, results_of

TIMEOUT_S = 2
BURST = 500
NO_STREAM = "no stream takes this subject: create one, or change the route"


@pytest.fixture(scope="module")
def nats():
    with Nats(more="max_payload: 100000") as server:
        server.add_stream("SHOP", "shop.>")
        yield server


@pytest.fixture
def options(nats):
    return {"sink": "nats", "url": nats.url, "timeout": f"{TIMEOUT_S}s"}


@pytest.fixture
def sink(tmp_path, options):
    with Sink(tmp_path / "conf", options) as opened:
        yield opened


def event_of(message):
    return message.header("Nats-Msg-Id").partition(":")[0]


def test_a_delivered_event_is_in_the_stream_with_its_body_headers_and_ids(nats, sink):
    event_id = str(uuid.uuid4())
    headers = {"Pgonce-Event-Id": event_id, "Pgonce-Key": "größe"}
    result = sink.deliver("shop.orders", '{"total": 1}', event_id=event_id, key="größe", headers=headers)
    assert (result["verdict"], result["problem"]) == ("delivered", "")
    message = nats.messages("SHOP")[-1]
    assert (message.subject, message.data) == ("shop.orders", b'{"total": 1}')
    assert message.header("Nats-Msg-Id") == f"{event_id}:shop.orders"
    assert message.header("Content-Type") == "application/json"
    assert {name: message.header(name) for name in headers} == headers


def test_an_event_that_is_sent_again_is_stored_once(nats, sink):
    before = nats.state("SHOP")["messages"]
    event_id = str(uuid.uuid4())
    for _ in range(2):
        assert sink.deliver("shop.again", event_id=event_id)["verdict"] == "delivered"
    assert nats.state("SHOP")["messages"] == before + 1


def test_an_event_for_two_subjects_of_one_stream_is_stored_for_each(nats, sink):
    """A stream looks for a Nats-Msg-Id among all of its subjects."""
    event_id = str(uuid.uuid4())
    for subject in ("shop.first", "shop.second", "shop.first"):
        assert sink.deliver(subject, event_id=event_id)["verdict"] == "delivered"
    stored = [message.subject for message in nats.messages("SHOP") if event_of(message) == event_id]
    assert stored == ["shop.first", "shop.second"]


def test_a_subject_without_a_stream_is_refused_and_others_flow(sink):
    """JetStream itself says that no stream takes them; nothing waits for that, however many they are."""
    refused = [sink.send(f"nobody.listens.{n % 100}") for n in range(300)]
    delivered = [sink.send("shop.orders") for _ in range(10)]
    results = results_of(sink, 310)
    assert {(results[each]["verdict"], results[each]["problem"]) for each in refused} == {("refused", NO_STREAM)}
    assert {results[each]["verdict"] for each in delivered} == {"delivered"}


def test_a_stream_that_is_deleted_is_the_events_fault_until_it_is_made_again(nats, sink):
    nats.add_stream("SHORT", "short.>")
    assert sink.deliver("short.lived")["verdict"] == "delivered"
    nats.delete_stream("SHORT")
    result = sink.deliver("short.lived")
    assert (result["verdict"], result["problem"]) == ("refused", NO_STREAM)
    nats.add_stream("SHORT", "short.>")
    assert sink.deliver("short.lived")["verdict"] == "delivered"
    nats.delete_stream("SHORT")


def test_events_wait_while_jetstream_is_away_from_a_server_that_is_there(tmp_path):
    """Nobody listens, and the question which stream should is not answered: no event is at fault."""
    with Nats() as server:
        server.add_stream("SHOP", "shop.>")
        with Sink(tmp_path / "conf", {"sink": "nats", "url": server.url, "timeout": "30s"}) as sink:
            assert sink.deliver("shop.orders")["verdict"] == "delivered"
            server.switch(jetstream=False)
            away = [sink.send(subject) for subject in ("shop.orders", "nobody.listens", "shop.orders")]
            results = results_of(sink, 3)
            assert {results[each]["verdict"] for each in away} == {"unavailable"}, results
            assert {"JetStream does not answer" in results[each]["problem"] for each in away} == {True}, results
            server.switch(jetstream=True)
            server.restart()  # this version of the server reads its streams again at its start alone
            wait_until(lambda: sink.deliver("shop.orders")["verdict"] == "delivered", "JetStream's return")


def test_events_wait_where_their_account_has_no_jetstream(tmp_path):
    more = "accounts { A: {jetstream: enabled, users: [{user: a, password: a}]}, B: {users: [{user: b, password: b}]} }"
    with Nats(more=more, login={"user": "a", "pass": "a"}) as server:
        url = server.url.replace("//", "//b:b@")
        with Sink(tmp_path / "conf", {"sink": "nats", "url": url, "timeout": "30s"}) as sink:
            result = sink.deliver("shop.orders")
            assert result["verdict"] == "unavailable" and "JetStream not enabled for account" in result["problem"], result


def test_where_the_user_may_not_ask_an_event_without_a_stream_is_refused_and_the_log_says_so(tmp_path):
    """Else one wrong subject would stop all others for ever."""
    more = 'authorization { users: [{user: a, password: a}, {user: b, password: b, permissions: {publish: {deny: "$JS.API.>"}}}] }'
    with Nats(more=more, login={"user": "a", "pass": "a"}) as server, open(tmp_path / "log", "w+", encoding="utf-8") as log:
        server.add_stream("SHOP", "shop.>")
        url = server.url.replace("//", "//b:b@")
        with Sink(tmp_path / "conf", {"sink": "nats", "url": url, "timeout": "30s"}, log=log) as sink:
            for _ in range(2):
                result = sink.deliver("nobody.listens")
                assert result["verdict"] == "refused" and "$JS.API.STREAM.NAMES" in result["problem"], result
                assert sink.deliver("shop.orders")["verdict"] == "delivered"
        assert (tmp_path / "log").read_text(encoding="utf-8").count("event=sink-may-not-ask") == 1


def test_a_restart_of_the_server_while_events_flow_blames_none(tmp_path):
    with Nats() as server:
        server.add_stream("SHOP", "shop.>")
        with Sink(tmp_path / "conf", {"sink": "nats", "url": server.url, "timeout": "30s"}) as sink:
            for _ in range(3):
                for n in range(BURST):
                    sink.send("shop.orders", "x" * 500)
                sink.result()
                server.restart()
                verdicts = {result["verdict"] for result in results_of(sink, BURST - 1).values()}
                assert verdicts <= {"delivered", "unavailable"}, verdicts
                wait_until(lambda: sink.deliver("shop.orders")["verdict"] == "delivered", "the server's return")


def test_a_server_whose_storage_is_used_up_blames_no_event(tmp_path):
    with Nats(storage_bytes=1_000_000) as server:
        server.add_stream("SHOP", "shop.>")
        with Sink(tmp_path / "conf", {"sink": "nats", "url": server.url, "timeout": "30s"}) as sink:
            results = [sink.deliver("shop.orders", "x" * 300_000) for _ in range(6)]
            assert [result["verdict"] for result in results][:3] == ["delivered"] * 3
            assert results[-1]["verdict"] == "unavailable" and "insufficient resources" in results[-1]["problem"], results[-1]


def test_a_stream_whose_files_are_gone_blames_no_event_until_the_server_knows_of_no_stream(tmp_path):
    with Nats() as server:
        server.add_stream("SHOP", "shop.>")
        with Sink(tmp_path / "conf", {"sink": "nats", "url": server.url, "timeout": "30s"}) as sink:
            assert sink.deliver("shop.orders")["verdict"] == "delivered"
            shutil.rmtree(server.directory / "data/jetstream/$G/streams")
            results = [sink.deliver("shop.orders", "x" * 1_000_000) for _ in range(10)]  # more than fit in a file that is still open
            assert {result["verdict"] for result in results} == {"delivered", "unavailable"}
            assert "no such file" in results[-1]["problem"], results[-1]
            server.restart()
            wait_until(lambda: sink.deliver("shop.orders")["verdict"] == "refused", "the server to say that there is no stream")
            server.add_stream("SHOP", "shop.>")
            assert sink.deliver("shop.orders")["verdict"] == "delivered"


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3) as servers:
        yield servers


@pytest.mark.alone
def test_a_stream_whose_server_is_away_is_absence_and_so_is_a_cluster_without_a_leader(cluster, tmp_path):
    first, second, third = cluster.servers
    first.add_stream("HERE", "here.>", placement={"tags": ["n0"]})
    first.add_stream("THERE", "there.>", placement={"tags": ["n1"]})
    with Sink(tmp_path / "conf", {"sink": "nats", "url": first.url, "timeout": "60s"}) as sink:
        for subject in ("here.x", "there.x"):
            assert sink.deliver(subject)["verdict"] == "delivered"
        second.kill()
        cluster.wait_leader(first)
        there, here, nowhere = (sink.send(subject) for subject in ("there.x", "here.x", "nowhere.x"))
        results = results_of(sink, 3)
        assert results[here]["verdict"] == "delivered", results
        assert (results[nowhere]["verdict"], results[nowhere]["problem"]) == ("refused", NO_STREAM)
        assert results[there]["verdict"] == "unavailable" and "THERE accepts nothing now" in results[there]["problem"], results[there]
        third.kill()
        cluster.wait_leader(first, there=False)  # the one that is left leads nothing
        there, nowhere = sink.send("there.x"), sink.send("nowhere.x")
        results = results_of(sink, 2)
        assert {result["verdict"] for result in results.values()} == {"unavailable"}, results
        second.start(wait=False)
        third.start(wait=False)
        cluster.wait_leader(first)
        wait_until(lambda: sink.deliver("there.x")["verdict"] == "delivered", "the stream's return")


@pytest.mark.parametrize("subject", ["", "shop", "shop orders", "shop.*", "shop.>", ".shop", "shop.", "shop..x", "shop.\n", "$JS.API.STREAM.DELETE.SHOP", "_INBOX.x"])
def test_what_is_no_subject_to_publish_to_is_refused(nats, sink, subject):
    result = sink.deliver(subject)
    assert result["verdict"] == "refused"
    assert nats.state("SHOP")["messages"] >= 0  # the stream is still there


@pytest.mark.parametrize("headers", [{"X": "a\r\nNats-Msg-Id: other"}, {"X:Y": "a"}, {"": "a"}, {"a b": "c"}])
def test_a_header_that_would_become_another_is_refused(sink, headers):
    result = sink.deliver("shop.orders", headers=headers)
    assert result["verdict"] == "refused" and "header" in result["problem"]


@pytest.mark.parametrize("case", [{"body": "x" * 100001}, {"body": "x" * 99000, "headers": {"X": "y" * 2000}}])
def test_an_event_beyond_max_payload_is_refused_and_the_connection_lives(sink, case):
    refused = sink.send("shop.large", **case)
    delivered = sink.send("shop.orders")
    results = results_of(sink, 2)
    assert results[refused]["verdict"] == "refused" and "max_payload" in results[refused]["problem"]
    assert results[delivered]["verdict"] == "delivered"


def test_a_full_stream_refuses_with_the_servers_words_until_it_has_room(nats, sink):
    nats.add_stream("FULL", "full", max_msgs=1, discard="new")
    assert sink.deliver("full")["verdict"] == "delivered"
    result = sink.deliver("full")
    assert result["verdict"] == "refused" and "maximum messages exceeded" in result["problem"]
    nats.change_stream("FULL", max_msgs=2)
    assert sink.deliver("full")["verdict"] == "delivered"
    nats.delete_stream("FULL")


def test_a_streams_own_limit_refuses_with_the_servers_words(nats, sink):
    nats.add_stream("SMALL", "small", max_msg_size=300)
    result = sink.deliver("small", "x" * 400)
    assert result["verdict"] == "refused" and "size exceeds" in result["problem"]
    nats.delete_stream("SMALL")


def test_a_destination_that_never_answers_does_not_hold_up_others_for_ever(nats, sink):
    """Somebody listens who is no stream: no answer comes. While later events are delivered, it is this one that is at fault."""
    with nats.connect() as client:
        client.subscribe("silent")
        wait_until(lambda: "delivered" == sink.deliver("shop.orders")["verdict"], "the connection")
        silent = sink.send("silent")
        assert sink.deliver("shop.orders")["verdict"] == "delivered"
        result = sink.result(TIMEOUT_S + 5)
    assert (result["event_id"], result["verdict"]) == (silent, "refused")
    assert "no answer" in result["problem"]


@pytest.mark.parametrize("answer", [b"thanks", b'{"ok": true}', b'{"stream": "SHOP"}', b'{"stream": "SHOP", "seq": 0}'])
def test_what_answers_and_is_no_stream_is_not_believed(nats, sink, answer):
    with nats.connect() as client:
        client.subscribe("fake")
        client.request("$JS.API.INFO")  # the subscription is there
        event_id = sink.send("fake")
        message = client.next()
        client.publish(message.reply, answer)
        result = sink.result()
        assert (result["event_id"], result["verdict"]) == (event_id, "refused") and "not JetStream" in result["problem"]


def test_a_killed_server_makes_events_unavailable_and_none_is_lost(nats, tmp_path, options):
    with Sink(tmp_path / "conf", options) as sink:
        sent = [sink.send("shop.killed", f'{{"n": {n}}}') for n in range(BURST)]
        first = sink.result()
        nats.kill()
        results = results_of(sink, BURST - 1)
        results[first["event_id"]] = first
        nats.start()
        stored = {event_of(message) for message in nats.messages("SHOP")}
        delivered = {event_id for event_id, result in results.items() if result["verdict"] == "delivered"}
        assert delivered <= stored
        assert {result["verdict"] for result in results.values()} <= {"delivered", "unavailable"}
        wait_until(lambda: sink.deliver("shop.back")["verdict"] == "delivered", "the server's return")
        again = [event_id for event_id in sent if event_id not in delivered]
        for event_id in again:
            sink.send("shop.killed", event_id=event_id)
        assert {result["verdict"] for result in results_of(sink, len(again)).values()} <= {"delivered"}
    stored = [event_of(message) for message in nats.messages("SHOP") if message.subject == "shop.killed"]
    assert sorted(stored) == sorted(sent), "each is stored once: Nats-Msg-Id"


@pytest.mark.alone
def test_a_stuck_server_makes_an_event_unavailable_within_the_timeout_and_later_all_is_well(nats, sink):
    assert sink.deliver("shop.orders")["verdict"] == "delivered"
    nats.pause()
    try:
        start = time.monotonic()
        event_id = str(uuid.uuid4())
        result = sink.deliver("shop.stuck", event_id=event_id)
        assert result["verdict"] == "unavailable" and result["problem"]
        assert time.monotonic() - start < TIMEOUT_S + 1
    finally:
        nats.resume()
    wait_until(lambda: sink.deliver("shop.stuck", event_id=event_id)["verdict"] == "delivered", "the server's return")
    assert [message.subject for message in nats.messages("SHOP")].count("shop.stuck") == 1


@pytest.mark.alone
def test_closing_while_the_server_is_stuck_does_not_wait_for_it(nats, tmp_path, options):
    with Sink(tmp_path / "conf", {**options, "timeout": "60s"}) as sink:
        assert sink.deliver("shop.orders")["verdict"] == "delivered"
        nats.pause()
        try:
            sink.send("shop.orders")
            start = time.monotonic()
            sink.say("close")
            assert sink.process.wait(30) == 0
            assert time.monotonic() - start < 20  # of 60
        finally:
            nats.resume()


def test_a_server_that_comes_later_is_no_failure(tmp_path):
    with Nats() as server:
        server.add_stream("SHOP", "shop.>")
        server.stop()
        options = {"sink": "nats", "url": server.url, "timeout": "2s"}
        with Sink(tmp_path / "conf", options) as sink:
            result = sink.deliver("shop.orders")
            assert result["verdict"] == "unavailable" and f"nats://127.0.0.1:{server.port}" in result["problem"]
            server.start()
            wait_until(lambda: sink.deliver("shop.orders")["verdict"] == "delivered", "a delivery")


def test_of_several_servers_one_that_is_there_is_taken(nats, tmp_path, options):
    url = f"nats://127.0.0.1:{free_port()},127.0.0.1:{nats.port}"
    with Sink(tmp_path / "conf", {**options, "url": url}) as sink:
        assert sink.deliver("shop.orders")["verdict"] == "delivered"


def test_user_and_password_are_given_and_wrong_ones_are_said(tmp_path):
    with Nats(user="relay", password="s3cret%/@") as server:
        server.add_stream("SHOP", "shop.>")
        (tmp_path / "password").write_text("s3cret%/@\n")
        base = {"sink": "nats", "url": server.url, "timeout": "2s"}
        for right in (
            {"url": server.url.replace("//", "//relay:s3cret%25%2F%40@")},
            {"user": "relay", "password_file": tmp_path / "password"},
            {"user": "relay", "password": "s3cret%/@"},
        ):
            with Sink(tmp_path / "conf", {**base, **right}) as sink:
                assert sink.deliver("shop.orders")["verdict"] == "delivered"
        for wrong in ({"user": "relay", "password": "other"}, {}):
            with Sink(tmp_path / "conf", {**base, **wrong}) as sink:
                result = sink.deliver("shop.orders")
                assert result["verdict"] == "unavailable" and "Authorization Violation" in result["problem"], result
                assert "other" not in result["problem"]


def test_a_token_is_given(tmp_path):
    with Nats(token="t0ken") as server:
        server.add_stream("SHOP", "shop.>")
        for right in ({"url": server.url, "password": "t0ken"}, {"url": server.url.replace("//", "//t0ken@")}):
            with Sink(tmp_path / "conf", {"sink": "nats", "timeout": "2s", **right}) as sink:
                assert sink.deliver("shop.orders")["verdict"] == "delivered"


def test_tls_checks_the_server_and_shows_the_client(tmp_path):
    with Nats(tls=True, verify=True) as server:
        server.add_stream("SHOP", "shop.>")
        at = server.directory
        base = {"sink": "nats", "timeout": "3s", "ca_file": at / "ca.pem"}
        shown = {"certificate_file": at / "client.pem", "key_file": at / "client.key"}
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            with Sink(tmp_path / "conf", {**base, **shown, "url": url}) as sink:
                assert sink.deliver("shop.orders")["verdict"] == "delivered", url
        for wrong in ({"url": server.url, **shown, "ca_file": at / "other_ca.pem"}, {"url": server.url}):
            with Sink(tmp_path / "conf", {**base, **wrong}) as sink:
                result = sink.deliver("shop.orders")
                assert result["verdict"] == "unavailable" and result["problem"], wrong
        assert server.state("SHOP")["messages"] == 2


def test_tls_refuses_a_certificate_of_another_host(tmp_path):
    with Nats(tls=True, certificate="stranger") as server:
        server.add_stream("SHOP", "shop.>")
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            with Sink(tmp_path / "conf", {"sink": "nats", "url": url, "timeout": "3s", "ca_file": server.directory / "ca.pem"}) as sink:
                assert sink.deliver("shop.orders")["verdict"] == "unavailable", url
        assert server.state("SHOP")["messages"] == 0


def test_a_server_without_tls_gets_nothing_where_tls_is_asked_for(nats, tmp_path, options):
    before = nats.state("SHOP")["messages"]
    with Sink(tmp_path / "conf", {**options, "url": nats.url.replace("nats:", "tls:")}) as sink:
        assert sink.deliver("shop.orders")["verdict"] == "unavailable"
    assert nats.state("SHOP")["messages"] == before


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"url": "127.0.0.1:4222"}, "url"),
        ({"url": "http://127.0.0.1"}, "nats://"),
        ({"url": "nats://"}, "url"),
        ({"url": "nats://h:0"}, "url"),
        ({"url": "nats://h:70000"}, "url"),
        ({"url": "nats://h:4222/path"}, "url"),
        ({"url": "nats://a%zz@h"}, "url"),
        ({"url": "nats://a:b@h", "user": "c"}, "user"),
        ({"url": "nats://a:b@h", "password": "c"}, "twice"),
        ({"url": "nats://h", "user": "a", "password_file": "/nowhere/password"}, "/nowhere/password"),
        ({"url": "nats://h", "ca_file": "/etc/passwd"}, "tls://"),
        ({"url": "tls://h", "ca_file": "/nowhere/ca"}, "/nowhere/ca"),
        ({"url": "tls://h", "key_file": "/etc/passwd"}, "belong together"),
        ({"url": "nats://h", "credentials_file": "/nowhere/creds"}, "/nowhere/creds"),
        ({"url": "nats://a:b@h", "credentials_file": "/etc/passwd"}, "credentials_file"),
    ],
)
def test_wrong_options_are_said_before_anything_is_connected(tmp_path, wrong, said):
    problem = problem_of(tmp_path / "conf", {"sink": "nats", **wrong})
    assert problem is not None and said in problem and "[relay played]" in problem, problem


def test_right_options_are_right_without_a_server(tmp_path):
    assert problem_of(tmp_path / "conf", {"sink": "nats", "url": "nats://a%40b:c@[::1]:4222,h,h2:1"}) is None
