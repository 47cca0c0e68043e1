# SPDX-License-Identifier: PostgreSQL
"""Workers, the service, PostgreSQL and the network between them fail under load. Whatever happens: no intent runs twice, unless the
location allows it; every answer is the stored one; nobody is stuck for longer than a lease; and nobody is kept waiting without bound."""

import concurrent.futures
import json
import threading
import time

import pytest

from harness.postgres import PATIENCE_S, Postgres, is_running, wait_until
from harness.proxy import Proxy
from harness.upstream import Answer

from .door import Door, assert_problem, assert_replays, assert_replays_soon, at_once, new_key, same_answer, soon, start_soon
from .load import Load

pytestmark = pytest.mark.alone  # leases of a second, and bounds for every answer
LEASE_S = 1
TIMEOUT_S = 1  # of the database
SHUTDOWN_S = 18  # less than after which nginx ends a worker that does not end by itself (worker_shutdown_timeout)
CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    once_lease 1s;
    location /pay { proxy_pass http://app; }
    location /patient { once_lease 60s; proxy_pass http://app; }
    location /wait { once_wait 10s; proxy_pass http://app; }
    location /again { once_in_doubt retry; proxy_pass http://app; }
    location /unread { once_response_max 1k; send_timeout 4s; proxy_pass http://app; }
    location /open { once_fail open; proxy_pass http://app; }
    location = /status { once_status json; }
"""
HTTP = "once_timeout 1s;"
# For what is no outage: nothing may be refused then, and a busy machine can take more than a second.
CALM_LEASE_S = 3
CALM_CONFIG = CONFIG.replace("send_timeout 4s", "send_timeout 20s").replace("once_lease 1s", f"once_lease {CALM_LEASE_S}s")
CALM_HTTP = "once_timeout 5s;"
# The slowest that any answer may be, while the database or the network is away: the timeouts of the claim and the report, three times each.
BOUND_S = 8
# The slowest that an intent may be that waits for the lease of an attempt that is no more. Who is stuck is so for ever.
LEASE_BOUND_S = LEASE_S + BOUND_S


@pytest.fixture
def db(server):
    database = server.new_database()
    yield database
    database.drop()


@pytest.fixture
def service(upstream):
    """Works for a little while, so that there is always something in flight."""
    pause = threading.Event()
    upstream.default = Answer(do=lambda request: pause.wait(0.02) and None)
    yield upstream
    upstream.default = Answer()


@pytest.fixture
def door(db, service):
    with Door(db, service, CONFIG, HTTP) as running:
        yield running


@pytest.fixture
def calm_door(db, service):
    with Door(db, service, CALM_CONFIG, CALM_HTTP) as running:
        yield running


@pytest.fixture(scope="module")
def mortal():
    """A PostgreSQL that may be stopped."""
    with Postgres() as running:
        yield running


@pytest.fixture
def mortal_door(mortal, service):
    """Its database survives its crashes; the server runs again afterwards."""
    database = mortal.new_database()
    with Door(database, service, CONFIG, HTTP) as running:
        yield running
    if mortal.process is None:
        mortal.start()
    database.drop()


@pytest.fixture
def proxied(server, db, service):
    """A door with a proxy between it and the database."""
    with Proxy(server) as proxy:
        with Door(db, service, CONFIG, HTTP, dsn=proxy.dsn(db.name)) as running:
            running.proxy = proxy
            yield running


# ---- Clients.


def test_an_answer_over_the_limit_that_its_client_does_not_read_is_in_doubt(door):
    """nginx breaks it off before its end is seen; one within the limit is stored, whatever its client does."""
    key = new_key()
    door.upstream.script(key, Answer(200, body=b"x" * 20_000_000))
    connection = door.send(key, "/unread")
    try:
        door.wait_state(key, "in_doubt")
    finally:
        connection.close()
    assert_problem(door.attempt(key, "/unread"), 409, "in-doubt")
    assert door.count(key) == 1


# ---- Workers.


def test_a_killed_worker_never_makes_an_intent_run_twice_and_its_keys_are_free_after_their_lease(door):
    with Load(door) as load:
        for _ in range(3):
            load.wait_more(20)
            door.nginx.kill_worker()
        load.wait_more(20)
    load.assert_safe(longest_s=LEASE_BOUND_S)
    # At most what was in flight with each killed worker.
    assert len(load.doubts()) <= 3 * load.clients


def test_the_key_of_a_killed_worker_is_running_until_its_lease_ends_and_then_in_doubt(door):
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key)
    door.upstream.wait(key)
    for pid in sorted(door.nginx.worker_pids()):
        door.nginx.kill_worker(pid)
    with pytest.raises(ConnectionError):
        original.result()
    until = door.stored(key).lease_until
    deadline = time.monotonic() + PATIENCE_S
    while (problem := door.attempt(key).problem) != "in-doubt":
        assert problem in ("active", "unavailable") and time.monotonic() < deadline
        if problem == "active":
            until = door.stored(key).lease_until
    assert door.database.value("SELECT clock_timestamp() >= %s", until)
    hold.set()
    assert_problem(door.attempt(key), 409, "in-doubt")
    assert door.count(key) == 1 and door.state(key) == "in_doubt"


def test_a_killed_worker_costs_nothing_but_time_where_the_upstream_is_idempotent_itself(door):
    with Load(door, "/again") as load:
        for _ in range(2):
            load.wait_more(20)
            door.nginx.kill_worker()
        load.wait_more(20)
    # Each kill can make an intent run once more.
    load.assert_safe(doubt=False, executions=3, longest_s=LEASE_BOUND_S)


def test_a_reload_loses_no_request(calm_door):
    door = calm_door
    with Load(door) as load:
        for _ in range(3):
            load.wait_more(20)
            door.nginx.reload()
        load.wait_more(20)
    load.assert_nothing_lost()


def test_the_old_workers_end_after_a_reload(door):
    key = new_key()
    first = door.attempt(key)
    old = door.nginx.reload()
    wait_until(lambda: not any(map(is_running, old)), "the old workers to end", SHUTDOWN_S)
    assert_replays_soon(door, key, first)


def test_a_reload_waits_for_requests_that_are_running_and_for_duplicates_that_wait_for_them(calm_door):
    door = calm_door
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(hold=hold))
    original = door.start(key, "/wait")
    door.upstream.wait(key)
    duplicates = [door.start(key, "/wait") for _ in range(10)]
    wait_until(lambda: json.loads(door.nginx.ask("GET", "/status").body)["waiting"] == 10, "the duplicates to wait")
    old = door.nginx.reload()
    time.sleep(2 * CALM_LEASE_S)  # the old worker renews the lease still
    hold.set()
    first = original.result()
    assert first.status == 201 and door.count(key) == 1
    for duplicate in duplicates:
        answer = duplicate.result()
        assert same_answer(first, answer) and answer.replayed
    wait_until(lambda: not any(map(is_running, old)), "the old workers to end", SHUTDOWN_S)


def test_a_graceful_stop_answers_what_is_running_and_stores_it(door):
    holds = {new_key(): threading.Event() for _ in range(20)}
    for key, hold in holds.items():
        door.upstream.script(key, Answer(hold=hold))
    attempts = {key: door.start(key) for key in holds}
    for key in holds:
        door.upstream.wait(key)
    stopping = threading.Thread(target=door.nginx.stop, kwargs={"graceful": True})
    stopping.start()
    wait_until(lambda: not door.nginx.h1.exists() or not can_connect(door), "nginx to close its door")
    for hold in holds.values():
        hold.set()
    for key, attempt in attempts.items():
        answer = attempt.result()
        assert answer.status == 201 and answer.body == door.stored(key).response_body
    stopping.join(SHUTDOWN_S)
    assert not stopping.is_alive()
    assert not door.nginx.bad_lines()


def can_connect(door):
    from harness.nginx import answers

    return answers(door.nginx.h1)


# ---- The service.


def test_a_service_that_crashes_and_returns_under_load_runs_no_intent_twice(door):
    with Load(door) as load:
        for _ in range(3):
            load.wait_more(20)
            door.upstream.refuse()
            time.sleep(0.2)
            door.upstream.accept()
        load.wait_more(20)
    load.assert_safe(longest_s=LEASE_BOUND_S)
    assert len(load.doubts()) <= 3 * load.clients


def test_a_service_that_fails_at_random_under_load_runs_no_intent_twice(door):
    """Whatever it does after it was asked, except to say that it did nothing, which allows another try."""
    endings = [Answer(), Answer(close=True), Answer(200, body=b"x" * 100, cut=50), Answer(reset=True), Answer(500), Answer(framing="chunked")]
    turn = iter(range(1_000_000))
    door.upstream.default = Answer(do=lambda request: endings[next(turn) % len(endings)])
    with Load(door) as load:
        load.wait_more(300)
    load.assert_safe(longest_s=LEASE_BOUND_S)
    assert len(load.doubts()) >= 50


# ---- PostgreSQL.


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_postgresql_that_crashes_and_restarts_under_load_loses_no_answer(mortal, mortal_door, mode):
    door = mortal_door
    outages = []
    with Load(door) as load:
        for _ in range(2):
            load.wait_more(30)
            began = time.monotonic()
            mortal.restart(mode)
            outages.append(time.monotonic() - began)
        load.wait_more(30)
    load.assert_safe(longest_s=BOUND_S + sum(outages))


def test_while_postgresql_is_down_nothing_runs_and_every_request_is_answered_soon(mortal, mortal_door):
    """With a lease that outlives the outage, so that no claim or report that is late for it puts an intent in doubt."""
    door = mortal_door
    before = new_key()
    first = door.attempt(before, "/patient")
    mortal.stop("immediate")
    keys = [new_key() for _ in range(30)]
    began = time.monotonic()
    while time.monotonic() - began < 3 * TIMEOUT_S:
        started = time.monotonic()
        for answer in at_once(30, lambda index: door.attempt(keys[index], "/patient")):
            assert_problem(answer, 503, "unavailable")
            assert int(answer.header("Retry-After")) >= 1
        assert time.monotonic() - started < BOUND_S
    # What needs no look-up is refused all the same.
    assert_problem(door.attempt(keys[0], "/patient", value='"'), 400, "key-malformed")
    assert_problem(door.attempt(keys[0], "/patient", value="-"), 400, "key-missing")
    assert_problem(door.attempt(before, "/patient"), 503, "unavailable")
    assert [door.count(key) for key in keys] == [0] * 30 and door.count(before) == 1
    mortal.start()
    answers = at_once(30, lambda index: soon(door, keys[index], target="/patient"))
    assert [answer.status for answer in answers] == [201] * 30
    assert [door.count(key) for key in keys] == [1] * 30
    assert_replays_soon(door, before, first, "/patient")
    assert door.count(before) == 1


def test_other_methods_and_locations_pass_while_postgresql_is_down(mortal, mortal_door):
    door = mortal_door
    mortal.stop("immediate")
    key = new_key()
    assert door.attempt(key, method="GET", body=None).status == 201
    assert door.attempt(key, method="DELETE", body=None).status == 201


def test_a_location_that_fails_open_passes_requests_without_the_database_and_protects_them_with_it(mortal, mortal_door):
    door = mortal_door
    key = new_key()
    first = door.attempt(key, "/open")
    assert_replays(door, key, first, "/open")
    mortal.stop("immediate")
    began = time.monotonic()
    passed = door.attempt(key, "/open")
    assert passed.status == 201 and not passed.replayed and door.count(key) == 2
    assert time.monotonic() - began < BOUND_S
    # It is not handed a fence that does not exist.
    assert door.upstream.seen(key)[1].header("Once-Fence") is None
    assert_problem(door.attempt(key, "/open", value='"'), 400, "key-malformed")
    mortal.start()
    assert same_answer(soon_replayed(door, key, "/open"), first)


def soon_replayed(door, key, target):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = door.attempt(key, target)
        if answer.replayed or time.monotonic() > deadline:
            return answer
        time.sleep(0.1)


def test_an_answer_that_cannot_be_stored_is_not_given_and_its_intent_never_runs_again(mortal, mortal_door):
    door = mortal_door
    key, hold = new_key(), threading.Event()
    door.upstream.script(key, Answer(201, body=b"charged", hold=hold))
    original = door.start(key)
    door.upstream.wait(key)
    mortal.stop("immediate")
    began = time.monotonic()
    hold.set()
    assert_problem(original.result(), 503, "not-stored")
    assert time.monotonic() - began < BOUND_S
    mortal.start()
    answer = soon(door, key)
    # Either the report came through after all, or nobody can know.
    if answer.status == 201:
        assert answer.replayed and answer.body == b"charged"
    else:
        assert_problem(answer, 409, "in-doubt")
    assert door.count(key) == 1


def test_an_answer_that_waits_for_a_short_outage_is_given_after_it(mortal, mortal_door):
    door = mortal_door
    for _ in range(3):
        key, hold = new_key(), threading.Event()
        door.upstream.script(key, Answer(201, body=b"charged", hold=hold))
        original = start_soon(door, key)
        mortal.stop("immediate")
        hold.set()
        mortal.start()
        answer = original.result()
        assert (answer.status, answer.body) == (201, b"charged") or answer.problem == "not-stored"
        last = soon(door, key)
        assert last.body == b"charged" or last.problem == "in-doubt"
        assert last.problem is None or answer.status != 201
        assert door.count(key) == 1


def test_a_gateway_that_starts_without_postgresql_works_when_it_is_there(mortal, service):
    database = mortal.new_database()
    mortal.stop("fast")
    try:
        with Door(database, service, CONFIG, HTTP) as door:
            key = new_key()
            assert_problem(door.attempt(key), 503, "unavailable")
            mortal.start()
            answer = soon(door, key)
            assert answer.status == 201 and door.count(key) == 1
    finally:
        if mortal.process is None:
            mortal.start()
        database.drop()


def test_a_database_without_the_contract_is_said_to_be_unavailable_and_nothing_runs(server, service):
    database = server.empty_database()
    try:
        with Door(database, service, CONFIG, HTTP) as door:
            key = new_key()
            assert_problem(door.attempt(key), 503, "unavailable")
            assert door.count(key) == 0
            assert "pgonce init" in door.nginx.log()
            database.install()
            assert soon(door, key).status == 201
    finally:
        database.drop()


def test_a_backend_that_is_terminated_under_load_loses_no_answer(door):
    with Load(door) as load:
        for _ in range(8):
            load.wait_more(10)
            door.database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        load.wait_more(20)
    load.assert_safe(longest_s=BOUND_S)


def test_a_statement_of_the_gateway_that_is_cancelled_under_load_loses_no_answer(door):
    with Load(door) as load:
        for _ in range(30):
            load.wait_more(3)
            door.database.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        load.wait_more(20)
    load.assert_safe(longest_s=BOUND_S)


# ---- The network between the gateway and PostgreSQL.


@pytest.mark.parametrize("directions", [(), ("frontend",), ("backend",)], ids=["both ways", "requests", "answers"])
def test_a_partition_under_load_runs_nothing_twice_keeps_nobody_waiting_and_heals(proxied, directions):
    with Load(proxied) as load:
        load.wait_more(30)
        proxied.proxy.freeze(*directions)
        began = time.monotonic()
        lonely = new_key()
        assert_problem(proxied.attempt(lonely), 503, "unavailable")
        assert time.monotonic() - began < BOUND_S
        with pytest.raises(AssertionError):
            load.wait_more(100, patience_s=max(0.1, 3 * TIMEOUT_S - (time.monotonic() - began)))
        proxied.proxy.thaw()
        healed = time.monotonic()
        load.wait_more(30)
        assert time.monotonic() - healed < BOUND_S
    load.assert_safe(longest_s=3 * TIMEOUT_S + BOUND_S)
    assert proxied.count(lonely) == 0
    assert soon(proxied, lonely).status in (201, 409) and proxied.count(lonely) <= 1


def test_a_short_stall_of_the_network_is_waited_out(server, db, service):
    with Proxy(server) as proxy, Door(db, service, CALM_CONFIG, CALM_HTTP, dsn=proxy.dsn(db.name)) as door:
        with Load(door) as load:
            for _ in range(3):
                load.wait_more(20)
                proxy.freeze()
                time.sleep(TIMEOUT_S / 3)
                proxy.thaw()
            load.wait_more(20)
        load.assert_nothing_lost()


@pytest.mark.parametrize("loss", ["lose_request", "lose_connection_after", "lose_answer"])
@pytest.mark.parametrize("step", ["once.claim", "once.complete"])
def test_a_connection_lost_at_any_step_is_one_execution_and_its_answer(proxied, loss, step):
    warm = new_key()
    assert proxied.attempt(warm).status == 201
    key = new_key()
    rule = getattr(proxied.proxy, loss)(step)
    answer = proxied.attempt(key)
    assert rule.fired.wait(PATIENCE_S)  # the gateway may have heard of it first, and asked by another connection
    if answer.status != 201:
        assert answer.problem in ("unavailable", "not-stored"), answer
        answer = soon(proxied, key)
    # The gateway asks what became of a claim, and sends a report again: neither leaves doubt.
    assert answer.status == 201, answer
    assert proxied.count(key) == 1
    row = proxied.stored(key)
    assert (row.state, row.response_body) == ("succeeded", answer.body)
    assert_replays_soon(proxied, key, answer)


def test_an_attempt_that_lost_its_lease_in_a_partition_neither_overwrites_nor_answers_for_another(server, db, service):
    """Two gateways: the one that is cut off cannot renew; the other sees the stale lease, and does not run it."""
    with Proxy(server) as proxy, Door(db, service, CONFIG, HTTP, dsn=proxy.dsn(db.name)) as cut_off, Door(db, service, CONFIG, HTTP) as other:
        key, hold = new_key(), threading.Event()
        service.script(key, Answer(201, body=b"late", hold=hold), Answer(201, body=b"second"))
        original = cut_off.start(key)
        service.wait(key)
        assert_problem(other.attempt(key), 409, "active")
        proxy.freeze()
        assert soon(other, key).problem == "in-doubt"
        assert other.stored(key).error_code == "stale"  # the lease of the first had passed
        hold.set()
        proxy.thaw()
        answer = original.result()
        last = soon(other, key)
        if answer.status == 201:
            # The attempt itself knew: its report ended the doubt.
            assert answer.body == last.body == b"late" and last.replayed
        else:
            assert answer.problem in ("not-stored", "in-doubt"), answer
            assert last.problem == "in-doubt" or last.body == b"late"
        assert service.count(key) == 1


@pytest.mark.parametrize("directions", [(), ("frontend",), ("backend",)], ids=["both ways", "requests", "answers"])
def test_a_claim_that_comes_late_over_a_lost_attempt_does_not_give_it_back_as_if_nothing_had_run(server, db, service, directions):
    """The late claim takes the stale lease over, when nobody waits for its answer any more. That nothing ran under its own fence says
    nothing of the attempt before."""
    with Proxy(server) as proxy, Door(db, service, CONFIG, HTTP) as lost, Door(db, service, CONFIG, HTTP, dsn=proxy.dsn(db.name), workers=1) as late:
        assert late.attempt(new_key()).status == 201
        key = new_key()
        service.script(key, Answer(hold=threading.Event()), Answer(201, body=b"second"))
        original = lost.start(key)
        service.wait(key)
        for pid in sorted(lost.nginx.worker_pids()):
            lost.nginx.kill_worker(pid)
        with pytest.raises(ConnectionError):
            original.result()
        wait_until(lambda: lost.stored(key).lease_passed, "the lease to pass")
        proxy.freeze(*directions)
        assert_problem(late.attempt(key), 503, "unavailable")
        proxy.thaw()
        # What the late claim leaves behind is settled within a lease.
        deadline = time.monotonic() + 2 * LEASE_S
        while time.monotonic() < deadline:
            assert late.attempt(key).problem in ("unavailable", "active", "in-doubt")
            assert service.count(key) == 1
        assert_problem(soon(late, key), 409, "in-doubt")


# ---- Several gateways.


def test_two_gateways_before_one_database_run_an_intent_once(db, service):
    with Door(db, service, CALM_CONFIG, CALM_HTTP) as one, Door(db, service, CALM_CONFIG, CALM_HTTP) as two:
        key = new_key()
        answers = at_once(100, lambda index: (one, two)[index % 2].attempt(key, "/wait"))
        assert one.count(key) == 1
        assert {(answer.status, answer.body) for answer in answers} == {(201, one.stored(key).response_body)}
        with Load(one, doors=[one, two]) as load:
            load.wait_more(100)
        load.assert_nothing_lost()


def test_everything_at_once(server, db, service):
    """Workers killed, reloads, the network stalled and cut, the service gone: together, under load."""
    with Proxy(server) as proxy, Door(db, service, CONFIG, HTTP, dsn=proxy.dsn(db.name)) as door:
        stop = threading.Event()

        def repeat(action, pause_s):
            while not stop.wait(pause_s):
                action()

        def stall():
            proxy.freeze()
            stop.wait(0.2)
            proxy.thaw()

        def vanish():
            service.refuse()
            stop.wait(0.1)
            service.accept()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            with Load(door) as load:
                load.wait_more(10)
                chaos = [
                    pool.submit(repeat, action, pause_s)
                    for action, pause_s in (
                        (stall, 0.7),
                        (vanish, 0.9),
                        (lambda: proxy.lose_answer("once."), 0.3),
                        (lambda: (door.nginx.kill_worker(), stop.wait(0.3), door.nginx.reload()), 1.3),
                    )
                ]
                stop.wait(5)
                stop.set()
                for each in chaos:
                    each.result(30)
                load.wait_more(20)
            load.assert_safe(longest_s=20)
