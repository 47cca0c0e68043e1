# SPDX-License-Identifier: PostgreSQL
"""The README stays short, its links lead somewhere, its figures are the measured ones, and what it shows of each door is what runs: SQL and nginx here; each
line of a language is on its page, which tests/pages runs."""

import json
import re
import shutil
import subprocess

import pytest

from gateway.door import Door
from harness.postgres import ROOT, clean_environment
from harness.upstream import Upstream

README = (ROOT / "README.md").read_text()
WORDS_MAX, LINES_MAX = 700, 5
MEASURED = json.loads((ROOT / "bench/measured.json").read_text())
LANGUAGES = ("js", "python", "go", "java")
# What nginx and psql would want that is not protection.
PLAIN = {"nginx": re.compile(r"location |proxy_pass |auth_basic|\}"), "sql": re.compile(r"SET once\.strict|\\(if|else|endif|echo)\b")}


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)


def the_block(language):
    (only,) = blocks(README, language)
    return only


def lines_of(block):
    """As they stand, without indentation and remarks that only the README has."""
    return [line.strip() for line in block.splitlines() if line.strip()]


def anchors(path):
    """As the usual renderers make them of headings."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_the_readme_is_at_most_700_words():
    counted = subprocess.run([ROOT / "tools/pages.py", "--count"], capture_output=True, text=True, check=True).stdout
    assert int(re.search(r"^ *(\d+) .*README\.md$", counted, re.M)[1]) <= WORDS_MAX


def test_the_readme_has_one_picture_and_it_is_there():
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert (ROOT / picture).read_text().lstrip().startswith("<svg")


@pytest.mark.parametrize("page", ["README.md", "docs/start/choose.md", "CONTRIBUTING.md", "docs/why/how-it-works.md"])
def test_each_link_leads_to_a_page_and_to_a_heading_of_it(page):
    path = ROOT / page
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text()):
        there = path if not target else path.parent / target
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("language", [*LANGUAGES, "sql", "nginx"])
def test_a_protected_endpoint_takes_at_most_five_lines(language):
    lines = [line for line in lines_of(the_block(language)) if not (language in PLAIN and PLAIN[language].match(line))]
    assert 1 <= len(lines) <= LINES_MAX


def test_what_is_shown_of_sql_runs_once_and_pasted_again_it_is_replayed(db):
    """Pasted into psql as it stands, where an error does not stop what follows."""
    db.execute("CREATE TABLE orders (item text)")
    psql = shutil.which("psql")
    pasted = [
        subprocess.run([psql, "-X", "-q", "-A", "-t", "-d", db.dsn()], input=the_block("sql"), capture_output=True, text=True, timeout=60, check=True, env=clean_environment())
        for _ in range(2)
    ]
    assert [each.stderr for each in pasted] == ["", ""]
    assert pasted[1].stdout == '{"order": 1}\n'
    assert db.rows("SELECT item FROM orders") == [("lamp",)]


def test_what_is_shown_of_nginx_protects_a_service(server):
    database = server.new_database()
    block = the_block("nginx")
    directive, location = re.fullmatch(r"(once_database [^;]+;)\n(location .*)", block, re.S).groups()
    assert re.fullmatch(r'once_database "[^"]+";', directive)
    location = location.replace("http://127.0.0.1:3000", "http://app")
    with Upstream() as upstream:
        # Who asks is known by authentication there, and by a header here.
        assert re.search(r"auth_basic [^;]+;\s+auth_basic_user_file [^;]+;", location) and "once_tenant $remote_user;" in location
        location = re.sub(r"auth_basic[^;]*;", "", location).replace("$remote_user", "$http_x_tenant")
        with Door(database, upstream, location) as door:
            first, second = (door.attempt("k", target="/payments") for _ in range(2))
            other = door.attempt("k", target="/payments", body=b"{}")
            stranger = door.attempt("k", target="/payments", tenant="other")
            assert door.attempt("k", target="/payments", value="-").status == 400
        assert first.status == second.status == stranger.status and first.body == second.body
        assert second.header("Idempotency-Replayed") == "true" and other.status == 422
        assert upstream.count("k") == 2, "one for each of two callers"
    database.drop()


def test_the_commands_of_the_readme_are_tasks():
    tasks = set(re.findall(r"^([a-z][\w-]*):.*## ", (ROOT / "Makefile").read_text(), re.M))
    # Up to a variable, or the end of the `code`.
    named = {word for told in re.findall(r'\bmake (?:-C "\$PGONCE" )?([a-z -]+)(?=`| [A-Z]|\n)', README) for word in told.split()}
    assert {"run", "sql", "client"} <= named <= tasks


# The rows of the table of speed: of which run, compared with what.
RATIOS = {
    "the bare endpoint": ("clients", r"of bare"),
    "with `pgonce_native`": ("clients_native", r"of bare"),
    "Redis that syncs each write": ("clients", r"of the peer on Redis, always"),
    "Redis that syncs once a second": ("clients", r"of the peer on Redis, everysec"),
}


def shown(run, what, connections=None):
    """A measured ratio as the README writes it: bold if its goal was missed."""
    (goal,) = [goal for goal in MEASURED[run]["goals"] if re.match(what, goal["what"]) and connections in (None, goal.get("connections"))]
    figure = f"{goal['measured']:.2f}"
    return f"**{figure}**" if goal["met"] is False else figure


@pytest.mark.parametrize("row", RATIOS)
def test_a_row_of_the_table_of_speed_is_what_was_measured_and_shows_missed_goals(row):
    header, cells = (re.search(rf"^\| {re.escape(first)} \| (.*) \|$", README, re.M)[1].split(" | ") for first in ("pgonce, of", row))
    run, compared = RATIOS[row]
    assert cells == [shown(run, rf"{language.lower()}: pgonce, {compared}") for language in header]


def test_what_the_readme_says_of_a_hand_written_table_was_measured():
    assert f"Of a hand-written table with events: {shown('results', r'of the pattern written by hand, with its event')}." in README


def test_what_the_readme_says_of_the_gateway_was_measured():
    ratios = {name: shown("gateway", name, 64) for name in ("replays from memory, of plain nginx", "unique keys, of plain nginx", "p99 of unique keys, of plain nginx's")}
    replays, new, p99 = ratios.values()
    assert f"with 64 clients: {replays} for replays from memory, {new} for new keys, with a p99 {p99} times as long." in README
