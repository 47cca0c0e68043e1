# SPDX-License-Identifier: PostgreSQL
"""pgonce show, find, stuck, in-doubt, resolve and recover with --nodes: which node is asked, and whether the answer is complete."""

import json
import subprocess

import pytest

from harness.postgres import wait_until
from harness.proxy import Proxy

from .command import PROGRAM, Command, ends
from .test_find import HIDDEN, NAMES, claim, doubt, make_stale

AWAY = "host=/nowhere dbname=app password=hush connect_timeout=2"
BECAUSE = ("--as", "failed_retryable", "--reason", "the provider took nothing")


class Nodes:
    """Two that share the tenants: `first` has all slots open, except those that `move` gives to `second`."""

    def __init__(self, first, second, directory):
        self.first, self.second, self.directory = first, second, directory
        self.file = directory / "nodes"
        self.write(first.dsn(), second.dsn())

    def write(self, *lines):
        self.file.write_text("".join(f"{line}\n" for line in lines))

    def __call__(self, name, *words, **kw):
        done = Command(None, self.directory)(name, "--nodes", self.file, *words, **kw)
        assert b"hush" not in done.stdout + done.stderr
        return done

    def json(self, status, name, *words):
        done = self(name, "--json", *words)
        assert done.returncode == status, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def slot(self, tenant):
        return self.first.value("SELECT once.slot_of(%s)", tenant)

    def close(self, tenant):
        assert self.first.value("SELECT once_job.close_slot(%s)", self.slot(tenant))

    def open(self, tenant, epoch=2):
        self.second.execute("SELECT once_job.open_slot(%s, %s)", self.slot(tenant), epoch)

    def move(self, tenant):
        """Only the slot: what `first` remembers stays there."""
        self.close(tenant)
        self.open(tenant)


@pytest.fixture
def nodes(db, empty, tmp_path):
    db.execute("CALL once.divide(true)")
    done = Command(empty.dsn(), tmp_path)("init", "--join", db.dsn())
    assert done.returncode == 0, done.stderr
    assert db.value("SELECT count(DISTINCT once.slot_of(t)) FROM unnest('{acme,globex,initech}'::text[]) AS t") == 3
    return Nodes(db, empty, tmp_path)


def named(database):
    """The end of a node's name, whose host is the directory of the socket."""
    return f"/{database.name}"


def keys(rows):
    return [row["key"] for row in rows]


# ---- show: one tenant


def show(nodes, key, tenant, *words):
    return nodes("show", "--scope", "pay", "--key", key, "--tenant", tenant, *words)


def test_show_asks_the_node_that_serves_the_tenant_and_never_what_a_move_left_behind(nodes):
    claim(nodes.first, "pay", "k", tenant="acme", owner="before the move")
    claim(nodes.first, "pay", "lost", tenant="acme")
    claim(nodes.first, "pay", "k", tenant="globex", owner="stayed")
    nodes.move("acme")
    claim(nodes.second, "pay", "k", tenant="acme", owner="after the move")
    text = show(nodes, "k", "acme").stdout.decode()
    assert "after the move" in text and "before the move" not in text
    assert text.startswith("node ") and text.splitlines()[0].endswith(named(nodes.second))
    told = json.loads(show(nodes, "k", "acme", "--json").stdout)
    assert told["owner"] == "after the move" and told["node"].endswith(named(nodes.second))
    assert json.loads(show(nodes, "k", "globex", "--json").stdout)["node"].endswith(named(nodes.first))
    lost = show(nodes, "lost", "acme")
    assert (lost.returncode, lost.stdout) == (5, b"") and f"{named(nodes.second)}\n".encode() in lost.stderr


def test_show_has_the_document_of_one_node_and_its_name(nodes):
    nodes.first.execute("SELECT once.claim('pay', 'k', once.fingerprint('r'::bytea, 'acme'), 'w', tenant => 'acme')")
    nodes.first.execute("SELECT once.emit('t', '{\"amount\": 12345678901234567890.10}', scope => 'pay', key => 'k', tenant => 'acme')")
    nodes.first.execute("SELECT once.complete('pay', 'k', 1, 201, tenant => 'acme')")
    one = Command(nodes.first.dsn(), nodes.directory)("show", "--json", "--scope", "pay", "--key", "k", "--tenant", "acme")
    both = show(nodes, "k", "acme", "--json")
    assert {**json.loads(one.stdout), "node": json.loads(both.stdout)["node"]} == json.loads(both.stdout)
    assert b"12345678901234567890.10" in both.stdout


def test_of_two_nodes_that_have_a_slot_open_the_higher_epoch_serves_it(nodes):
    claim(nodes.first, "pay", "k", tenant="acme")
    nodes.open("acme", 2)
    assert show(nodes, "k", "acme").returncode == 5
    claim(nodes.second, "pay", "k", tenant="acme", owner="newer")
    assert json.loads(show(nodes, "k", "acme", "--json").stdout)["owner"] == "newer"


@pytest.mark.parametrize("epoch, then_close", [(1, False), (7, True)], ids=["both of one epoch", "the open one is older"])
def test_show_does_not_guess_which_node_serves_a_tenant(nodes, epoch, then_close):
    claim(nodes.first, "pay", "k", tenant="acme")
    slot = nodes.slot("acme")
    nodes.second.execute(f"SELECT setval('once.slot_{slot}_seq', %s)", 2 * epoch + (0 if then_close else 1))
    done = show(nodes, "k", "acme")
    assert (done.returncode, done.stdout) == (10, b"")
    assert f"slot {slot} ".encode() in done.stderr and f"{named(nodes.first)} (epoch 1)".encode() in done.stderr
    assert (f"{named(nodes.second)} (epoch 1)".encode() in done.stderr) is not then_close


def test_a_slot_that_may_be_open_on_a_node_that_is_away_is_no_not_found(nodes):
    nodes.move("acme")
    claim(nodes.first, "pay", "k", tenant="globex")
    nodes.write(nodes.first.dsn(), AWAY)
    done = show(nodes, "k", "acme")
    assert (done.returncode, done.stdout) == (3, b"")
    assert f"slot {nodes.slot('acme')} of tenant='acme'".encode() in done.stderr and b"/nowhere/app does not answer" in done.stderr
    assert show(nodes, "k", "globex").returncode == 0
    assert show(nodes, "other", "globex").returncode == 5


def test_a_slot_that_is_open_nowhere_is_no_not_found(nodes):
    nodes.close("acme")
    done = show(nodes, "k", "acme")
    assert done.returncode == 10 and b"is open on no node" in done.stderr


def test_a_slot_that_moves_while_show_asks_is_no_not_found(nodes):
    with nodes.first.connect(autocommit=False).cursor() as holder:
        holder.execute("LOCK TABLE once.intent")
        process = Command(None, nodes.directory).start("show", "--nodes", nodes.file, "--scope", "pay", "--key", "k", "--tenant", "acme")
        wait_until(lambda: nodes.second.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"), "show waits")
        nodes.move("acme")
        holder.connection.rollback()
    status, out, err = ends(process)
    assert (status, out) == (10, b"") and b"P4097" in err


def test_nodes_that_disagree_on_the_slot_are_not_asked(nodes):
    nodes.second.execute("CREATE OR REPLACE FUNCTION once.slot_of(tenant text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1'")
    done = show(nodes, "k", "acme")
    assert done.returncode == 1 and b"do not agree on the slot" in done.stderr


# ---- show: only a key


def show_key(nodes, key, *words):
    return nodes("show", "--scope", "pay", "--key", key, *words)


def test_show_without_a_tenant_finds_the_key_on_any_node(nodes):
    claim(nodes.first, "pay", "k", tenant="acme", owner="left behind")
    nodes.move("acme")
    claim(nodes.second, "pay", "k", tenant="acme", owner="served")
    told = json.loads(show_key(nodes, "k", "--json").stdout)
    assert (told["tenant"], told["owner"]) == ("acme", "served") and told["node"].endswith(named(nodes.second))
    none = show_key(nodes, "other")
    assert (none.returncode, none.stdout) == (5, b"") and b"no tenant" in none.stderr


def test_show_of_a_key_of_several_tenants_says_which(nodes):
    nodes.move("acme")
    claim(nodes.second, "pay", "k", tenant="acme")
    claim(nodes.first, "pay", "k", tenant="globex")
    done = show_key(nodes, "k")
    assert done.returncode == 2 and b"several tenants" in done.stderr
    assert [line.split()[3] for line in done.stdout.decode().splitlines()] == ["--tenant=globex", "--tenant=acme"]
    listed = json.loads(show_key(nodes, "k", "--json").stdout)
    assert [(row["tenant"], row["node"].rsplit("/", 1)[1]) for row in listed] == [("globex", nodes.first.name), ("acme", nodes.second.name)]


def test_a_key_that_a_node_that_is_away_may_have_is_no_not_found(nodes):
    claim(nodes.first, "pay", "k", tenant="globex")
    nodes.write(nodes.first.dsn(), AWAY)
    none, found = show_key(nodes, "other"), show_key(nodes, "k")
    assert none.returncode == found.returncode == 6 and b"tenant='globex'" in found.stdout
    assert all(b"/nowhere/app does not answer" in done.stderr for done in (none, found))


# ---- lists


def age(database, hours):
    """The newest of an hour ago is the first of a list."""
    database.execute("UPDATE once.intent SET created_at = date_trunc('hour', created_at) - %s * interval '1 hour' WHERE key = %s", hours, f"k{hours}")


def test_find_merges_the_nodes_newest_first_and_hides_what_a_move_left_behind(nodes):
    nodes.first.execute(f"ALTER DATABASE {nodes.first.name} SET timezone = 'Asia/Tokyo'")
    nodes.second.execute(f"ALTER DATABASE {nodes.second.name} SET timezone = 'America/New_York'")
    for left in range(40):
        claim(nodes.first, "pay", f"left {left}", tenant="acme")
    nodes.move("acme")
    for hours in range(1, 9):
        node, tenant = (nodes.first, "globex") if hours % 2 else (nodes.second, "acme")
        claim(node, "pay", f"k{hours}", tenant=tenant)
        age(node, hours)
    rows = nodes.json(0, "find")
    assert keys(rows) == [f"k{hours}" for hours in range(1, 9)]
    assert [row["node"].rsplit("/", 1)[1] for row in rows] == [nodes.first.name, nodes.second.name] * 4
    assert keys(nodes.json(0, "find", "--limit", 3)) == ["k1", "k2", "k3"]
    assert keys(nodes.json(0, "find", "--tenant", "acme")) == ["k2", "k4", "k6", "k8"]
    (plain,) = [row for row in json.loads(Command(nodes.second.dsn())("find", "--json").stdout) if row["key"] == "k2"]
    assert list(rows[1]) == [*plain, "node"]
    text = nodes("find", "--limit", 3).stdout.decode().splitlines()
    assert text[0].split()[:3] == ["NODE", "SCOPE", "KEY"] and text[1].split()[0] == rows[0]["node"]


def test_find_reads_on_where_most_of_what_it_asked_for_was_left_behind(nodes):
    """Also past intents of one moment, of which it has shown some."""
    nodes.first.execute("SELECT once.claim('pay', 'k' || n, once.fingerprint('r', 'globex'), tenant => 'globex') FROM generate_series(1, 30) AS n")
    nodes.first.execute("UPDATE once.intent SET created_at = '2026-01-01'")
    for left in range(5):
        claim(nodes.first, "pay", f"left {left}", tenant="acme")
    nodes.move("acme")
    expected = sorted(f"k{n}" for n in range(1, 31))
    for limit in (1, 2, 7, 29, 30, 31, 100):
        assert keys(nodes.json(0, "find", "--limit", limit)) == expected[:limit]


def test_find_of_nothing_names_no_single_node(nodes):
    done = nodes("find", "--owner", "nobody")
    assert done.returncode == 5 and b"on 2 nodes" in done.stderr


@pytest.mark.parametrize("command", ["find", "stuck", "in-doubt"])
def test_a_list_without_a_node_that_is_away_is_shown_and_called_incomplete(nodes, command):
    doubt(nodes.first, "k", tenant="globex")
    nodes.write(AWAY, nodes.first.dsn())
    told = nodes(command, "--json")
    assert told.returncode == 6 and b"/nowhere/app does not answer" in told.stderr
    rows = json.loads(told.stdout)
    assert keys(rows) == ["k"] if command != "stuck" else sorted(rows) == ["active", "parked", "retried", "stale"]
    assert all("note" in json.loads(line) for line in told.stderr.splitlines())
    assert nodes(command, "--tenant", "globex").returncode == 0
    nodes.move("acme")
    assert nodes(command, "--tenant", "acme").returncode == 3


@pytest.mark.parametrize("command", ["find", "stuck", "in-doubt"])
def test_a_list_is_called_incomplete_if_it_is_unknown_who_serves_a_slot(nodes, command):
    nodes.close("acme")
    done = nodes(command)
    assert done.returncode == 6 and f"these slots: {nodes.slot('acme')};".encode() in done.stderr


@pytest.mark.parametrize("of_another", [False, True], ids=["any", "of another tenant"])
@pytest.mark.parametrize("command", ["find", "stuck", "in-doubt"])
def test_a_list_is_called_incomplete_if_a_slot_that_it_is_about_moves_meanwhile(nodes, command, of_another):
    claim(nodes.first, "pay", "k", tenant="globex")
    with nodes.first.connect(autocommit=False).cursor() as holder:
        holder.execute("LOCK TABLE once.intent")
        process = Command(None, nodes.directory).start(command, "--nodes", nodes.file, *(("--tenant", "globex") if of_another else ()))
        wait_until(lambda: nodes.second.value("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'"), f"{command} waits")
        nodes.move("acme")
        holder.connection.rollback()
    status, _, err = ends(process)
    assert (status, b"moved meanwhile" in err) == ((0, False) if of_another else (6, True))


def test_in_doubt_merges_the_oldest_first(nodes):
    for left in range(5):
        doubt(nodes.first, f"left {left}", tenant="acme")
    nodes.move("acme")
    for n in range(1, 7):
        node, tenant = (nodes.first, "globex") if n % 2 else (nodes.second, "acme")
        doubt(node, f"k{n}", tenant=tenant)
    rows = nodes.json(0, "in-doubt")
    assert keys(rows) == [f"k{n}" for n in range(1, 7)] and rows[1]["node"].endswith(named(nodes.second))
    assert keys(nodes.json(0, "in-doubt", "--limit", 2)) == ["k1", "k2"]
    done = nodes("in-doubt", "--limit", 2)
    assert b"only the first 2" in done.stderr
    text = done.stdout.decode()
    assert text.splitlines()[1].split()[0] == "NODE" and f"pgonce resolve --nodes={nodes.file} --tenant=acme --scope=payments --key=k2" in text


def test_stuck_merges_each_of_its_lists(nodes):
    for left in range(5):
        claim(nodes.first, "pay", f"left {left}", tenant="acme")
        claim(nodes.first, "pay", f"left active {left}", tenant="acme")
    make_stale(nodes.first, *(f"left {left}" for left in range(5)))
    nodes.first.execute("UPDATE once.intent SET attempts = 9, created_at = created_at - interval '2 days'")
    nodes.move("acme")
    for n in range(1, 5):
        node, tenant = (nodes.first, "globex") if n % 2 else (nodes.second, "acme")
        claim(node, "pay", f"stale {n}", tenant=tenant)
        node.execute("UPDATE once.intent SET lease_until = clock_timestamp() - interval '1 day' + %s * interval '1 hour', attempts = %s WHERE key = %s",
                     n, n + 3, f"stale {n}")
        claim(node, "pay", f"active {n}", tenant=tenant)
        node.execute("UPDATE once.intent SET created_at = created_at - interval '1 day' + %s * interval '1 hour' WHERE key = %s", n, f"active {n}")
    for node in (nodes.first, nodes.second):
        node.execute("SELECT once.emit('t', '1', scope => 'pay', key => 'active 1', tenant => tenant) FROM once.intent WHERE key IN ('active 1', 'active 2')")
    told = nodes.json(0, "stuck", "--limit", 3)
    assert keys(told["stale"]) == ["stale 1", "stale 2", "stale 3"]
    assert keys(told["active"]) == ["active 1", "active 2", "active 3"]
    assert keys(told["retried"]) == ["stale 4", "stale 3", "stale 2"]
    assert all(row["node"] for rows in told.values() for row in rows)
    text = nodes("stuck").stdout.decode()
    assert text.count("NODE") >= 3 and "left" not in text and f"pgonce resolve --nodes={nodes.file} --tenant=acme --scope=pay --key='stale 2'" in text


def test_a_node_that_is_lost_in_the_middle_of_a_list_is_told(nodes, server):
    for n in range(20):
        claim(nodes.first, "pay", f"key {n}", tenant="globex")
    with Proxy(server) as proxy:
        nodes.write(proxy.dsn(nodes.first.name), nodes.second.dsn())
        proxy.lose_from_server(b"D", b"key 10")
        done = nodes("find")
    assert done.returncode == 3 and b"the list is incomplete" in done.stderr


# ---- decisions


def decisions(database):
    return database.value("SELECT count(*) FROM once.decision")


def test_a_decision_goes_to_the_node_that_serves_the_tenant(nodes):
    doubt(nodes.first, "k", tenant="acme")
    nodes.move("acme")
    doubt(nodes.second, "k", tenant="acme")
    words = ("resolve", "--scope", "payments", "--key", "k", "--tenant", "acme")
    told = nodes(*words, "--json")
    assert told.returncode == 2 and json.loads(told.stdout)["story"]["node"].endswith(named(nodes.second))
    done = nodes.json(0, *words, *BECAUSE)
    assert done["node"].endswith(named(nodes.second)) and done["to"] == "failed_retryable"
    assert (decisions(nodes.first), decisions(nodes.second)) == (0, 1)
    assert nodes(*words, *BECAUSE).returncode == 10
    nodes.write(nodes.first.dsn(), AWAY)
    assert nodes(*words, *BECAUSE).returncode == 3 and decisions(nodes.first) == 0


def test_a_decision_about_one_intent_needs_its_tenant(nodes):
    doubt(nodes.first, "k")
    words = ("resolve", "--scope", "payments", "--key", "k", *BECAUSE)
    done = nodes(*words)
    assert done.returncode == 2 and b"--tenant" in done.stderr and decisions(nodes.first) == 0
    assert nodes(*words, "--tenant", "").returncode == 0 and decisions(nodes.first) == 1


def test_resolve_all_decides_on_each_node_only_what_it_serves(nodes):
    doubt(nodes.first, "left", tenant="acme")
    doubt(nodes.first, "k1", tenant="globex")
    nodes.move("acme")
    doubt(nodes.second, "k2", tenant="acme")
    words = ("resolve", "--scope", "payments", "--all", *BECAUSE)
    assert nodes.json(0, *words, "--dry-run")["decided"] == 2 and decisions(nodes.second) == 0
    done = nodes(*words)
    assert done.returncode == 0 and b": 2 -> failed_retryable" in done.stdout and f"{named(nodes.second)}: timeout".encode() in done.stdout
    assert {row.key: row.state for node in (nodes.first, nodes.second) for row in node.rows("SELECT key, state FROM once.intent")} == {
        "left": "in_doubt", "k1": "failed_retryable", "k2": "failed_retryable"}  # fmt: skip
    doubt(nodes.second, "k3", "k4", tenant="acme")
    told = nodes.json(0, *words, "--tenant", "acme")
    assert [(row["decided"], row["node"].rsplit("/", 1)[1]) for row in told["errors"]] == [(2, nodes.second.name)]


def test_recover_judges_on_each_node_only_what_it_serves(nodes):
    claim(nodes.first, "pay", "left", tenant="acme")
    claim(nodes.first, "pay", "k1", tenant="globex")
    nodes.move("acme")
    claim(nodes.second, "pay", "k2", tenant="acme")
    make_stale(nodes.first, "left", "k1")
    make_stale(nodes.second, "k2")
    told = nodes.json(12, "recover")
    assert [(row["key"], row["node"].rsplit("/", 1)[1]) for row in told["decisions"]] == [("k1", nodes.first.name), ("k2", nodes.second.name)]
    assert told["summary"]["stale"] == 2 and nodes.first.value("SELECT state FROM once.intent WHERE key = 'left'") == "processing"


@pytest.mark.parametrize("words", [("recover",), ("resolve", "--scope", "payments", "--all", *BECAUSE)], ids=["recover", "resolve"])
def test_nothing_is_decided_on_all_nodes_while_two_have_a_slot_open(nodes, words):
    doubt(nodes.first, "k", tenant="globex")
    claim(nodes.first, "payments", "stale", tenant="globex")
    make_stale(nodes.first, "stale")
    nodes.open("acme")
    done = nodes(*words)
    assert done.returncode == 10 and b"nothing was decided" in done.stderr and decisions(nodes.first) == 0
    assert nodes.first.value("SELECT state FROM once.intent WHERE key = 'stale'") == "processing"


@pytest.mark.parametrize("words", [("recover",), ("resolve", "--scope", "payments", "--all", *BECAUSE)], ids=["recover", "resolve"])
def test_a_decision_on_the_nodes_that_answer_is_called_incomplete(nodes, words):
    doubt(nodes.first, "k", tenant="globex")
    nodes.write(nodes.first.dsn(), AWAY)
    assert nodes(*words).returncode == 6


# ---- names and files


@pytest.mark.parametrize("name", [*NAMES.values(), ""], ids=[*NAMES, "none"])
def test_the_line_to_type_finds_the_intent_of_any_tenant_on_its_node(nodes, name):
    nodes.move(name)
    doubt(nodes.second, "k", tenant=name)
    for words in (("find",), ("in-doubt",)):
        shown = nodes(*words).stdout.decode()
        assert not HIDDEN.search(shown)
        line = next(part for part in shown.splitlines() if "--key=k" in part)
        command = line[line.index("pgonce ") :].replace("pgonce ", f"{PROGRAM} ", 1) + " --json"
        done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=nodes.directory, check=False)
        told = json.loads(done.stdout)
        assert (told.get("story") or told)["tenant"] == name, done
    nodes.write(nodes.first.dsn())
    away = show(nodes, "k", name)
    assert away.returncode == 10 and not HIDDEN.search(away.stderr.decode())


COMMANDS = [("show", "--scope", "s", "--key", "k"), ("find",), ("stuck",), ("in-doubt",), ("recover",), ("doctor",),
            ("resolve", "--scope", "s", "--key", "k", "--tenant", "")]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_file_that_makes_no_sense_is_a_usage_error_of_each_command(nodes, words):
    for lines, told in [
        (["hots=db"], "line 1"),
        ([], "names no node"),
        ([nodes.first.dsn(), nodes.second.dsn(), f"{nodes.first.dsn()} application_name=again"], "lines 1 and 3"),
    ]:
        nodes.write(*lines)
        done = nodes(*words)
        assert (done.returncode, done.stdout) == (2, b"") and told in done.stderr.decode()
    both = nodes(*words, "--dsn", nodes.first.dsn())
    assert (both.returncode, both.stdout) == (2, b"") and b"only one of --dsn and --nodes" in both.stderr


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] != "doctor"], ids=lambda words: words[0])
def test_a_node_that_serves_every_tenant_cannot_share_them(nodes, server, words):
    plain = server.new_database()
    nodes.write(nodes.first.dsn(), plain.dsn())
    done = nodes(*words)
    assert (done.returncode, done.stdout) == (2, b"") and f"{named(plain)} is not divided".encode() in done.stderr
    plain.drop()


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] != "doctor"], ids=lambda words: words[0])
def test_without_any_node_there_is_no_server(nodes, words):
    nodes.write(AWAY, AWAY.replace("/nowhere", "/else"))
    done = nodes(*words)
    assert (done.returncode, done.stdout) == (3, b"") and b"/nowhere/app" in done.stderr and b"/else/app" in done.stderr


def test_nodes_of_one_name_are_told_apart_by_their_ports(nodes):
    nodes.write(nodes.first.dsn(), f"{AWAY} port=1", f"{AWAY} port=2")
    done = nodes("find")
    assert done.returncode == 6 and b"/nowhere/app does not" in done.stderr and b"/nowhere:2/app does not" in done.stderr


def test_a_database_without_the_contract_is_a_node_that_does_not_answer(nodes, server):
    bare = server.empty_database()
    nodes.write(nodes.first.dsn(), bare.dsn())
    done = nodes("find")
    assert done.returncode == 6 and f"{named(bare)} does not answer".encode() in done.stderr
    bare.drop()


def test_one_node_that_is_not_divided_is_asked_as_with_dsn(db, tmp_path):
    claim(db, "pay", "k", tenant="acme")
    nodes = Nodes(db, db, tmp_path)
    nodes.write(db.dsn())
    assert keys(nodes.json(0, "find")) == ["k"]
    assert show(nodes, "k", "acme").returncode == 0 and show_key(nodes, "k").returncode == 0
