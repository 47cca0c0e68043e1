# SPDX-License-Identifier: PostgreSQL
"""pgonce rehome between nodes of a Citus cluster: the memory moves, and Citus takes no part in it."""

import pytest
from cli.command import Command
from contract.calls import Once, refused


@pytest.mark.parametrize("anchored", [False, True])
def test_a_slot_moves_between_nodes(nodes, tmp_path, anchored):
    first, second = reversed(nodes)  # the worker's memory goes to the coordinator
    first.install()
    first.execute("CALL once.divide(true)")
    joined = Command(second.dsn(), tmp_path)("init", "--join", first.dsn())
    assert joined.returncode == 0, joined.stderr
    if anchored:
        second.execute("SELECT citus_set_node_property(%s, %s, 'shouldhaveshards', true)", str(second.server.directory), 5432)
        for node in (second, first):
            node.execute("SELECT once.anchor()")
    once = Once(first.connect(), tenant="acme")
    once.finish_new(key="done", response_body=b"kept")
    fence = once.claim(key="running").fence
    slot = first.value("SELECT once.slot_of('acme')")
    for source, target in ((first, second), (second, first)):
        done = Command(None, tmp_path)("rehome", slot, "--from", source.dsn(), "--to", target.dsn())
        assert done.returncode == 0, done.stderr
        assert [node.value("SELECT count(*) FROM once.intent") for node in (source, target)] == [0, 2]
        with refused("P4097"):
            Once(source.connect(), tenant="acme").claim(key="done")
        assert Once(target.connect(), tenant="acme").start(key="done").response_body == b"kept"
        for node in nodes:
            assert not node.value("SELECT once._is_moving()"), "Citus has repeated nothing"
    assert once.complete(key="running", fence=fence) is True
