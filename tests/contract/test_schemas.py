# SPDX-License-Identifier: PostgreSQL
"""Two schemas: once has what applications and people call, and once_job what only daemons call."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from harness.postgres import ROOT, clean_environment

from .calls import Once, refused, run
from .logins import LOGINS, make_logins

SHOWN = set("""
    start finish try_start finish_new claim complete fail renew release claim_many complete_many fail_many renew_many peek_many peek story find errors
    contract_version key_of_header request_fingerprint fingerprint salt receive receive_many consumer_ids consumer_report emit emit_bytes emit_later
    cancel_event outbox_summary outbox_untaken outbox_delayed parked_summary parked_list parked_show parked_retry parked_discard parked_retry_many
    parked_discard_many parked_replay add_capture capture_list try_lock lock keep keeper_status
    keeper_lease recover retention_held set_keeping counts attempt_counts count_cached metrics top find_part
    scope_list consumer_list latency readable doubts_part ask resolve_seen outline
    parked_outline verify resolve resolve_many set_scope bind unbind any_tenant add_days
    retire_day retire_outbox relay_adopt drop_relay slot_of slots divide undivide anchor
    """.split())
OF_JOBS = set("""
    relay_take relay_look relay_flush relay_list relay_fetch relay_due relay_settle relay_parked relay_release
    message_park message_due message_applied message_look message_count consumer_remembers
    keep_steps keep_take keep_step keep_failed keep_release
    close_slot open_slot
    """.split())
DAEMONS = {"relay", "consumer", "keeper", "admin"}


def functions(db, schema):
    return {row.proname for row in db.rows("SELECT DISTINCT p.proname FROM pg_proc AS p WHERE p.pronamespace = %s::regnamespace", schema)}


def test_each_function_is_in_the_schema_of_those_who_call_it(db):
    assert {name for name in functions(db, "once") if not name.startswith("_")} == SHOWN
    assert functions(db, "once_job") == OF_JOBS


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not here")
def test_psql_lists_the_functions_of_applications_and_people_as_the_reference_says(db):
    pattern = re.search(r"`(\\df \S+)` in psql", (ROOT / "docs/reference/sql.md").read_text())[1]
    done = subprocess.run([shutil.which("psql"), "-X", "-q", "-A", "-t", "-d", db.dsn(), "-c", pattern], capture_output=True, text=True, check=True, timeout=60,
                          env=clean_environment())  # fmt: skip
    assert {line.split("|")[1] for line in done.stdout.splitlines() if line.startswith("once|")} == SHOWN


def test_nothing_but_functions_is_in_the_schema_of_the_jobs(db):
    assert db.value("SELECT count(*) FROM pg_class WHERE relnamespace = 'once_job'::regnamespace") == 0
    assert db.value("SELECT count(*) FROM pg_type WHERE typnamespace = 'once_job'::regnamespace") == 0
    assert db.value("SELECT pg_get_userbyid(j.nspowner) = pg_get_userbyid(o.nspowner) AND obj_description(j.oid, 'pg_namespace') IS NOT NULL"
                    " FROM pg_namespace AS j, pg_namespace AS o WHERE j.nspname = 'once_job' AND o.nspname = 'once'")  # fmt: skip


@pytest.mark.parametrize("login", LOGINS)
def test_only_daemons_and_administrators_may_use_the_schema_of_the_jobs(db, login):
    make_logins(db)
    assert db.value("SELECT has_schema_privilege(%s, 'once_job', 'usage')", login) is (login in DAEMONS)
    assert db.value("SELECT has_schema_privilege(%s, 'once_job', 'create')", login) is False
    may = {row.proname for row in db.rows("SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'once_job'::regnamespace"
                                          " AND has_function_privilege(%s, p.oid, 'execute')", login)}  # fmt: skip
    assert bool(may) is (login in DAEMONS)
    if login not in DAEMONS:
        for call in ("relay_take('r')", "keep_take('k')", "message_count('c', '')"):
            with refused("42501"):
                run(db.connect(login), f"SELECT once_job.{call}")


def test_no_client_and_no_door_of_an_application_calls_a_function_of_the_jobs():
    seen = 0
    for folder in ("clients", "lib", "gateway", "native", "spec", "include"):
        for place, folders, files in os.walk(ROOT / folder):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in ("node_modules", "target", "build", "test", "tests")]
            for name in files:
                if not name.endswith("_test.go") and name.endswith((".c", ".h", ".sql", ".js", ".py", ".go", ".java", ".json", ".md")):
                    text = (pathlib.Path(place) / name).read_text(errors="replace")
                    assert "once_job." not in text, (place, name)
                    seen += "once." in text
    assert seen > 20


def test_what_the_manual_says_removes_all_of_it_and_it_can_be_installed_again(server):
    command = re.search(r"^(DROP SCHEMA .*?;)", (ROOT / "docs/how/services.md").read_text(), re.M)[1]
    db = server.new_database()
    Once(db.connect()).finish_new(key="k")
    db.execute(command)
    assert db.rows("SELECT nspname FROM pg_namespace WHERE nspname ~ '^once'") == []
    assert db.value("SELECT count(*) FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
                    " WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') AND p.prosrc ~ 'once'") == 0  # fmt: skip
    db.install()
    assert Once(db.connect()).start(key="k").verdict == "proceed"
    db.drop()
