#!/usr/bin/python3
# SPDX-License-Identifier: PostgreSQL
"""What delayed events cost a relay that has nothing else to do: the CPU of the relay and of its backend, without and with many that are not due;
and how long it takes until all of them, due at once, are released and delivered."""

import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
from harness.postgres import Postgres, wait_until  # noqa: E402
from relay.running import Relay  # noqa: E402

EVENTS = 100_000
SECONDS = 20
EMIT = (
    "INSERT INTO once.delayed_event (event_id, not_before, emitted_at, topic, event_type, tenant, payload) SELECT gen_random_uuid(),"
    " now() + interval '1 hour' + g * interval '1 s', now(), 't', 't', '', '{}' FROM generate_series(1, %s) AS g"
)


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(db, relay):
    relay.until("active")
    time.sleep(3)
    pids = relay.process.pid, db.value("SELECT a.pid FROM pg_stat_activity AS a WHERE a.application_name ~ 'relay' LIMIT 1")
    before = [cpu_s(pid) for pid in pids]
    time.sleep(SECONDS)
    used = [(cpu_s(pid) - least) / SECONDS for pid, least in zip(pids, before)]
    print(f"{db.value('SELECT count(*) FROM once.delayed_event')} delayed: relay {used[0]:.2%}, its backend {used[1]:.2%} of a core", flush=True)


def main():
    with Postgres() as server:
        db = server.new_database()
        for count in (0, EVENTS):
            db.execute(EMIT, count)
            db.execute("VACUUM ANALYZE once.delayed_event")
            with tempfile.TemporaryDirectory() as directory, Relay(pathlib.Path(directory), db.dsn()) as relay:
                idle(db, relay)
                relay.stop()
        db.execute("UPDATE once.delayed_event SET not_before = now()")
        with tempfile.TemporaryDirectory() as directory, Relay(pathlib.Path(directory), db.dsn()) as relay:
            begun = time.monotonic()
            wait_until(lambda: db.value("SELECT count(*) FROM once.delayed_event") == 0, "all to be released", 300)
            print(f"{EVENTS} due at once: released in {time.monotonic() - begun:.1f} s", flush=True)
            wait_until(lambda: len(relay.delivered()) >= EVENTS, "all to be delivered", 300)
            print(f"delivered to standard output in {time.monotonic() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
