# SPDX-License-Identifier: PostgreSQL
"""The statements of the console's pages, as the server runs them: one line, parameters that are texts, and a transaction that may only read."""

import contextlib
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SQL = ROOT / "console/sql"
# Of each page, in the order of its parameters.
PARAMETERS = {
    "overview": [],
    "sample": [],
    "find": ["q", "scope", "tenant", "state", "since", "until", "after", "take"],
    "intent": ["scope", "key", "tenant", "body"],
    "doubts": ["scope", "tenant", "error", "after", "take"],
    "doubt": ["scope", "key", "tenant"],
    "decide": ["scope", "key", "tenant", "fence", "state", "decision", "status", "body", "result_type", "result_id", "reason", "dry_run"],
    "messages": ["kind", "relay", "consumer", "tenant", "topic", "event_type", "error", "state", "id", "after", "take"],
    "message": ["id", "kind", "holder", "consumer", "tenant", "scope", "key", "body"],
    "change": ["action", "kind", "relay", "consumer", "tenant", "topic", "event_type", "error", "state", "ids", "reason", "since", "force", "after", "dry_run"],
    "scopes": [],
    "scope": ["scope"],
    "set_scope": ["scope", "lease", "retention", "max_attempts", "on_stale", "verify", "response_bytes_max", "event_bytes_max", "dry_run"],
}  # fmt: skip
CHANGES = ("decide", "change", "set_scope")


def text_of(page):
    """As tools/embed_sql.py puts it into the program."""
    return " ".join(re.sub(r"^\s*--.*\n", "", (SQL / f"{page}.sql").read_text(), flags=re.M).split())


@contextlib.contextmanager
def prepared(cursor, page):
    count = len(PARAMETERS[page])
    types = f"({', '.join(['text'] * count)})" if count else ""
    cursor.execute(f"PREPARE page{types} AS {text_of(page)}")
    try:
        yield f"EXECUTE page({', '.join(['%s'] * count)})" if count else "EXECUTE page"
    finally:
        cursor.execute("DEALLOCATE page")


def page(connection, name, **given):
    """The page's document. The connection commits by itself."""
    assert set(given) <= set(PARAMETERS[name]), given
    values = [None if given.get(each) is None else str(given[each]) for each in PARAMETERS[name]]
    with connection.cursor() as cursor:
        with prepared(cursor, name) as statement:
            cursor.execute("BEGIN READ WRITE" if name in CHANGES else "BEGIN READ ONLY")
            try:
                cursor.execute(statement, values or None)
                rows = cursor.fetchall()
                cursor.execute("COMMIT")
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
    assert len(rows) == 1 and len(rows[0]) == 1
    return rows[0][0]


def all_pages(connection, name, rows, between=lambda nth: None, **given):
    """All rows of a list, page after page, and how many pages there were."""
    found, after, nth = [], None, 0
    while True:
        answer = page(connection, name, after=after, **given)
        found += answer[rows]
        nth += 1
        assert answer["done"] == (answer["next"] is None)
        if answer["done"]:
            return found, nth
        assert answer["next"] != after
        after = answer["next"]
        between(nth)
