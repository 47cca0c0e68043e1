# SPDX-License-Identifier: PostgreSQL
"""Several nodes that share the tenants, a door before them, and how a slot moves from one to another (what pgonce rehome does)."""

import contextlib
import io
import json

from harness.postgres import wait_until

from .door import HTTP, Door
from .test_status import page

CONFIG = """
    once_tenant $http_x_tenant;
    once required;
    once_scope pay;
    add_header X-Cache "$once_cache" always;
    location /pay { proxy_pass http://app; }
    location /brief { once_lease 1s; proxy_pass http://app; }
    location /wait { once_wait 20s; proxy_pass http://app; }
    location /open { once_fail open; proxy_pass http://app; }
    location = /status.json { once off; once_status json; }
    location = /metrics { once off; once_status metrics; }
    location = /ready { once off; once_status ready; }
"""
NODES_HTTP = HTTP.replace('once_database "@dsn@";', "once_nodes @dir@/nodes;")


def divide(first, *others):
    """The first has all slots open, the others none."""
    first.execute("CALL once.divide(true)")
    node = json.dumps(first.value("SELECT once._node()"))
    for other in others:
        assert other.value("SELECT joined FROM once._join(%s::jsonb)", node) is True
        other.execute("CALL once.divide()")


def tenant_of(database, slot, number=0):
    """The name of a tenant in this slot; others for other numbers."""
    return database.value("SELECT 't' || n FROM generate_series(1, 100000) AS n WHERE once.slot_of('t' || n) = %s ORDER BY n LIMIT 1 OFFSET %s", slot, number)


def epoch_of(database, slot):
    return database.value("SELECT epoch FROM once.slots() WHERE slot = %s", slot)


def close(node, slot):
    assert node.value("SELECT once_job.close_slot(%s)", slot) is True


def open_at(node, slot, epoch):
    node.execute("SELECT once_job.open_slot(%s, %s)", slot, epoch)


def carry(origin, target, slot):
    """The memory of the slot."""
    target.execute("DELETE FROM once.intent WHERE once.slot_of(tenant) = %s", slot)
    text = io.StringIO()
    with origin.connect().cursor() as cursor:
        cursor.copy_expert(f"COPY (SELECT * FROM once.intent WHERE once.slot_of(tenant) = {slot}) TO STDOUT", text)
    text.seek(0)
    with target.connect().cursor() as cursor:
        cursor.copy_expert("COPY once.intent FROM STDIN", text)


def move(origin, target, slot):
    close(origin, slot)
    carry(origin, target, slot)
    open_at(target, slot, max(epoch_of(origin, slot), epoch_of(target, slot)) + 1)


def lines_of(*nodes):
    return "# the nodes\n\n" + "".join(f"  {node.dsn()}\n" for node in nodes)


@contextlib.contextmanager
def opened(nodes, upstream, http="", text=None, connected=None, **options):
    """A door before these nodes. connected: how many of them are there."""
    door = Door(nodes[0], upstream, CONFIG, http, base=NODES_HTTP, **{"workers": 1, **options})
    write(door, text or lines_of(*nodes))
    with door:
        wait_connected(door, len(nodes) if connected is None else connected)
        yield door


def write(door, text):
    path = door.nginx.directory / "nodes"
    path.write_text(text)
    path.chmod(0o644)


def wait_connected(door, count):
    wait_until(lambda: page(door)["connected"] == dict.fromkeys(("claims", "reports"), count * door.nginx.workers), f"{count} nodes")


def ready(door):
    answer = door.nginx.ask("GET", "/ready")
    return answer.status, json.loads(answer.body)


def row(node, key, tenant):
    rows = node.rows("SELECT *, lease_until < clock_timestamp() AS lease_passed FROM once.intent WHERE tenant = %s AND key = %s", tenant, key)
    return rows[0] if rows else None


def state(node, key, tenant):
    found = row(node, key, tenant)
    return found.state if found else None
