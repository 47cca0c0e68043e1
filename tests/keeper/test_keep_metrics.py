# SPDX-License-Identifier: PostgreSQL
"""The metrics of pgonce keep: what the database says and what the process has done, in one text; also when the database says nothing."""

import math
import socket
import threading

import pytest
from harness.broker import free_port
from harness.postgres import is_running, wait_until
from harness.proxy import Proxy
from harness.scrape import ask, assert_promtool_takes, figure, scrape

from .keeping import NOTHING, STEPS, Keeper, replace_step

METRICS = ("--metrics", "127.0.0.1:0")
LOCK = 4712


def replace_metrics(db, body):
    """once.metrics says something else in this database."""
    db.execute("CREATE OR REPLACE FUNCTION once.metrics() RETURNS TABLE (name text, kind text, help text, labels jsonb, value double precision)"
               f" LANGUAGE plpgsql AS $$ BEGIN {body} END $$")


SAYS = """RETURN QUERY VALUES ('pgonce_intents', 'counter', 'Verdicts.', '{"scope": "a\\"b", "verdict": "new"}'::jsonb, 3::float8),
                            ('pgonce_intents', 'counter', 'Verdicts.', '{"scope": "ä", "verdict": "new"}', 4),
                            ('pgonce_intents', 'counter', 'Verdicts.', '{"scope": "\\u0001", "verdict": "new"}', 1),
                            ('pgonce_intents', 'counter', 'Verdicts.', '{"scope": "\\r", "verdict": "new"}', 2),
                            ('pgonce_odd', 'gauge', 'Odd numbers.', '{"n": "1"}', 'Infinity'), ('pgonce_odd', 'gauge', 'Odd numbers.', '{"n": "2"}', 'NaN'),
                            ('pgonce_odd', 'gauge', 'Odd numbers.', '{"n": "3"}', 1e15), ('pgonce_odd', 'gauge', 'Odd numbers.', '{"n": "3"}', 7),
                            ('pgonce_odd', 'gauge', 'Odd numbers.', '{"n": "4"}', NULL), ('pgonce_odd', 'gauge', 'Odd numbers.', '{"n": 5}', 1),
                            ('pgonce_intents', 'counter', 'Verdicts.', '{"scope": "late", "verdict": "new"}', 5), ('no name', 'gauge', '', '{}', 1),
                            ('pgonce_keeper_active', 'gauge', 'Another.', '{}', 7), ('pgonce_bare', 'gauge', 'Without labels.', NULL, 0.25);"""


def test_what_the_database_says_and_what_the_process_did_come_in_one_text(db, tmp_path):
    replace_metrics(db, SAYS)
    replace_step(db, "purge", "RAISE EXCEPTION 'no';")
    replace_step(db, "archive", "RETURN ROW(5, false, NULL, NULL)::once.kept;")
    with Keeper(tmp_path, db.dsn(), *METRICS) as keeper:
        address = keeper.address()
        keeper.until("step", 2, step="decisions")
        read = scrape(address)
        assert figure(read, "pgonce_up") == 1
        assert figure(read, "pgonce_intents", scope='a"b', verdict="new") == 3
        assert figure(read, "pgonce_intents", scope="ä", verdict="new") == 4
        assert [figure(read, "pgonce_intents", scope=scope, verdict="new") for scope in "\x01\r"] == [1, 2]
        assert figure(read, "pgonce_intents", scope="late", verdict="new") == 5
        assert [figure(read, "pgonce_odd", n=n) for n in "13"] == [math.inf, 7]
        assert math.isnan(figure(read, "pgonce_odd", n="2"))
        assert len(read["pgonce_odd"].samples) == 3
        assert figure(read, "pgonce_bare") == 0.25
        assert figure(read, "pgonce_keeper_active") == 1
        assert figure(read, "pgonce_keeper_rounds") >= 1
        assert figure(read, "pgonce_keeper_connects") == 1
        assert figure(read, "pgonce_keeper_last_round_timestamp_seconds") > 1.7e9
        assert {dict(labels)["step"] for _, labels in read["pgonce_keeper_pieces"].samples} == set(STEPS)
        assert figure(read, "pgonce_keeper_failures", step="purge") >= 1
        assert figure(read, "pgonce_keeper_failures", step="days") == 0
        assert figure(read, "pgonce_keeper_done", step="archive") >= 5
        assert keeper.stop() == 0


def test_the_contracts_own_metrics_are_openmetrics_and_tell_of_a_failing_step(db, tmp_path):
    if db.value("SELECT to_regproc('once.metrics') IS NULL"):
        pytest.skip("the contract has none")
    replace_step(db, "purge", "RAISE EXCEPTION USING ERRCODE = '53100', MESSAGE = 'no space left';")
    with Keeper(tmp_path, db.dsn(), *METRICS) as keeper:
        address = keeper.address()
        keeper.until("step", step="decisions")
        read = scrape(address)
        assert figure(read, "pgonce_up") == 1
        assert figure(read, "pgonce_keeper_failing", step="purge") == 1
        assert figure(read, "pgonce_keeper_failing", step="days") == 0
        assert figure(read, "pgonce_keeper_last_success_timestamp_seconds", step="days") > 1.7e9
        assert figure(read, "pgonce_partitions_ahead", table="intent") >= 1
        assert_promtool_takes(address)
        replace_step(db, "purge", NOTHING)
        wait_until(lambda: figure(scrape(address), "pgonce_keeper_failing", step="purge") == 0, "the step to be mended")


def test_without_the_database_the_process_still_answers(server, db, tmp_path):
    replace_metrics(db, SAYS)
    with Proxy(server) as proxy:
        with Keeper(tmp_path, proxy.dsn(db.name), *METRICS) as keeper:
            address = keeper.address()
            keeper.until("step", step="decisions")
            assert figure(scrape(address), "pgonce_up") == 1
            proxy.close()
            wait_until(lambda: figure(scrape(address), "pgonce_up") == 0, "the database to be away")
            read = scrape(address)
            assert "pgonce_intents" not in read
            wait_until(lambda: figure(scrape(address), "pgonce_keeper_active") == 0, "the keeper to see it too")
            assert figure(read, "pgonce_keeper_rounds") >= 1
            assert ask(address, "/health")[0] == 200
            assert len(keeper.log("metrics_failed")) == 1
            assert keeper.stop() == 0


def test_a_connection_that_was_lost_between_two_scrapes_costs_none(db, tmp_path):
    replace_metrics(db, SAYS)
    with Keeper(tmp_path, db.dsn(), *METRICS, interval="1h") as keeper:
        address = keeper.address()
        keeper.until("step", step="decisions")
        for _ in range(2):
            assert figure(scrape(address), "pgonce_up") == 1
            ended = db.rows("SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
            wait_until(lambda ended=ended: not any(is_running(row.pid) for row in ended), "their end")
            # Beyond the second in which an answer is shared.
            threading.Event().wait(1.1)
        assert figure(scrape(address), "pgonce_up") == 1
        assert not keeper.log("metrics_failed")


def test_a_database_that_does_not_answer_holds_up_neither_health_nor_the_keeper_nor_its_end(db, tmp_path):
    replace_metrics(db, f"PERFORM pg_advisory_xact_lock({LOCK}); {SAYS}")
    lock = db.connect()
    lock.cursor().execute(f"SELECT pg_advisory_lock({LOCK})")

    def waiting():
        return db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted", LOCK)

    with Keeper(tmp_path, db.dsn(), *METRICS) as keeper:
        address = keeper.address()
        answers = []
        scrapers = [threading.Thread(target=lambda: answers.append(figure(scrape(address), "pgonce_up"))) for _ in range(3)]
        for each in scrapers:
            each.start()
        wait_until(lambda: waiting() == 1, "the question")
        assert ask(address, "/health")[0] == 200
        assert waiting() <= 1
        rounds = len(keeper.log("step", step="decisions"))
        keeper.until("step", rounds + 1, step="decisions")
        for each in scrapers:
            each.join(120)
        assert 0 in answers and len(answers) == 3
        # An end that comes while one is asked.
        last = threading.Thread(target=lambda: ask_until_gone(address))
        last.start()
        wait_until(lambda: waiting() == 1 or not last.is_alive(), "another question")
        assert keeper.stop() == 0
        last.join(60)
    lock.close()


def ask_until_gone(address):
    try:
        ask(address)
    except OSError:
        pass


def test_a_port_that_is_taken_and_an_address_that_is_not_ours_are_said_so(db, tmp_path):
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        keeper = Keeper(tmp_path, db.dsn(), "--metrics", address)
        assert keeper.once() == 1
        assert f"cannot serve metrics at {address}: Address already in use" in keeper.text()
    keeper = Keeper(tmp_path, db.dsn(), "--metrics", "192.0.2.1:0", name="other")
    assert keeper.once() == 1
    assert "cannot serve metrics at 192.0.2.1:0: Cannot assign requested address" in keeper.text()
