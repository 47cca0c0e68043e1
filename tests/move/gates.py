# SPDX-License-Identifier: PostgreSQL
"""A function of the contract that waits, before or after its work, until the test lets it go on: a chosen moment of a run."""

import contextlib

from harness.postgres import wait_until

GATES = iter(range(4711, 1 << 30))  # advisory locks


def signature(node, name):
    return node.row("SELECT p.oid::regprocedure::text AS called, pg_get_functiondef(p.oid) AS text FROM pg_proc AS p WHERE p.proname = %s", name)


@contextlib.contextmanager
def gate(node, name, when):
    """Inside, once.NAME waits. Yields (reached, release): reached() waits until a call is there."""
    lock = next(GATES)
    original = signature(node, name)
    arguments = node.value("SELECT pg_get_function_arguments(p.oid) FROM pg_proc AS p WHERE p.proname = %s", name)
    returns = node.value("SELECT pg_get_function_result(p.oid) FROM pg_proc AS p WHERE p.proname = %s", name)
    names = node.value("SELECT coalesce(array_to_string(ARRAY(SELECT p.proargnames[n] FROM generate_subscripts(p.proargnames, 1) AS n "
                       "WHERE coalesce(p.proargmodes[n], 'i') IN ('i', 'b')), ', '), '') FROM pg_proc AS p WHERE p.proname = %s", name)  # fmt: skip
    holder = node.connect()
    with holder.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", (lock,))
    table = returns.startswith(("SETOF", "TABLE", "record"))
    node.execute(original.text.replace(f"once.{name}(", f"once.{name}_inner(", 1))
    # plpgsql: each statement has its own snapshot, as in the function itself.
    body = [f"PERFORM pg_advisory_xact_lock({lock});"] if when == "before" else []
    if returns == "void":
        body.append(f"PERFORM once.{name}_inner({names});")
    elif table:
        outs = node.value("SELECT array_to_string(ARRAY(SELECT p.proargnames[n] FROM generate_subscripts(p.proargnames, 1) AS n "
                          "WHERE p.proargmodes[n] IN ('o', 'b')), ', ') FROM pg_proc AS p WHERE p.proname = %s", name)  # fmt: skip
        passed = ", ".join(f"{name}.{word}" for word in names.split(", "))
        body.append(f"SELECT f.* INTO {outs} FROM once.{name}_inner({passed}) AS f;")
    else:
        body.append(f"result := once.{name}_inner({names});")
    body += [f"PERFORM pg_advisory_xact_lock({lock});"] if when == "after" else []
    declare = "" if returns == "void" or table else f"DECLARE result {returns};"
    result = "" if returns == "void" or table else "RETURN result;"
    node.execute(f"CREATE OR REPLACE FUNCTION once.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql AS $gate$ {declare} BEGIN {' '.join(body)} {result} END $gate$")
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
    try:
        yield lambda: wait_until(lambda: node.value(waiting, lock) > 0, f"a call of once.{name}"), holder.close
    finally:
        holder.close()
        wait_until(lambda: node.value(waiting, lock) == 0, "the gate to be free")
        take_down(node)


def take_down(node):
    """All gates of a node."""
    for row in node.rows("SELECT p.oid::regprocedure::text AS called, p.proname AS name, pg_get_functiondef(p.oid) AS text FROM pg_proc AS p WHERE p.proname LIKE %s", "%\\_inner"):
        name = row.name.removesuffix("_inner")
        node.execute(row.text.replace(f"once.{row.name}(", f"once.{name}(", 1))
        node.execute(f"DROP FUNCTION {row.called}")
