# SPDX-License-Identifier: PostgreSQL
"""docs/how/citus.md, typed as it is printed on a coordinator and a worker."""

from pages.runner import Page, Run


def test_the_page_runs_as_printed(servers, cluster):
    coordinator, worker, _ = cluster
    # Without a port, which PGPORT says: one that is printed is taken for a port of the page.
    there = [f"host={server.directory} dbname={database.name}" for server, database in zip(servers, cluster)]
    page = Page(
        "docs/how/citus.md",
        given={
            "DATABASE": None,
            "REPLACE": {"host=coordinator dbname=app": there[0], "host=worker1 dbname=app": there[1]},
            "AFTER_SH": """test "$(psql -d "$WORKER" -Atc 'SELECT item FROM orders')" = lamp""",
        },
    )
    try:
        with Run(page, servers[0]) as run:
            run.all()
        assert worker.value("SELECT state::text FROM once.intent WHERE tenant = 'acme'") == "succeeded"
        assert worker.value("SELECT count(*) FROM pg_trigger WHERE tgname = 'anchor'") > 0
    finally:
        coordinator.execute("DROP TABLE IF EXISTS public.orders")
