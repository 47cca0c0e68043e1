# SPDX-License-Identifier: PostgreSQL
"""The command line itself: help, usage errors, exit codes, and what is said where there is no server or no contract."""
import json
import re
import shutil
import subprocess

import pytest

from .command import COMMANDS, PROGRAM, Command

NEEDS = {"run": ("--scope", "s", "--key", "k", "--", "true"),
         "show": ("--scope", "s", "--key", "k"), "resolve": ("--scope", "s", "--key", "k", "--as", "succeeded", "--reason", "r"), "gateway": ("--upstream", "http://127.0.0.1:3000")}


def test_the_overview_lists_every_command(offline):
    text = offline("help").stdout.decode()
    assert re.findall(r"^  ([\w-]+) ", text, re.M) == list(COMMANDS)
    bare = subprocess.run([PROGRAM], capture_output=True, check=False)
    assert (bare.returncode, bare.stdout, bare.stderr.decode()) == (2, b"", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(offline, name):
    text = offline("help", name).stdout.decode()
    assert offline(name, "--help").stdout.decode() == offline(name, "-h").stdout.decode() == text
    for part in (f"Usage: pgonce {name}", "Options:", "Exit status:", "--help"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 130


def test_each_filter_of_jq_in_the_help_is_one(offline):
    """Written as the shell would take it; without jq, at least its brackets must pair."""
    filters = [(name, found) for name in COMMANDS for found in re.findall(r"\| jq '([^']*)'", offline("help", name).stdout.decode())]
    assert filters
    for name, found in filters:
        for opening, closing in ("()", "[]", "{}"):
            assert found.count(opening) == found.count(closing), (name, found)
        if shutil.which("jq"):
            done = subprocess.run(["jq", found], input=b'{"checks": [{"level": "failed"}]}', capture_output=True, check=False)
            assert done.returncode == 0 and json.loads(done.stdout) == {"level": "failed"}, (name, done)


def test_the_help_of_keep_promises_the_figures_that_there_are(offline, db):
    text = " ".join(offline("help", "keep").stdout.decode().split())
    assert "attempts by their answer, stale intents and doubts by scope" in text and "counts per scope" not in text
    db.execute("INSERT INTO once.swept VALUES ('payments', 1, 1, now(), now())")
    labels = {name: set(told) for name, told in db.rows("SELECT name, labels FROM once.metrics()")}
    assert labels["pgonce_stale"] == labels["pgonce_in_doubt"] == {"scope"} and labels["pgonce_intents"] == {"verdict"}


def test_man_pages_are_written_and_well_formed(offline, tmp_path):
    assert offline("help", "--man", tmp_path / "man").returncode == 0
    pages = sorted(path.name for path in (tmp_path / "man").iterdir())
    assert pages == sorted(["pgonce.1", "pgonce.conf.5"] + [f"pgonce-{name}.1" for name in COMMANDS])
    for page in pages:
        text = (tmp_path / "man" / page).read_text()
        assert ".SH NAME" in text and (".SH EXIT STATUS" in text or page.endswith(".5"))


def test_markdown_documents_every_command_option_and_code(offline):
    text = offline("help", "--markdown").stdout.decode()
    for name in COMMANDS:
        assert f"## pgonce {name}" in text
        for option in re.findall(r"--[a-z-]+", offline("help", name).stdout.decode().split("Options:")[1]):
            assert f"`{option}" in text
    for code in ("0", "1", "2", "3", "4", "5", "10", "11", "12", "13", "14", "15", "16", "17", "126", "127", "128+n"):
        assert f"| {code} |" in text


@pytest.mark.parametrize("arguments, said", [
    (("shwo",), "did you mean 'show'"), (("nonsense",), "unknown command 'nonsense'"), (("show", "--scop", "s"), "did you mean --scope"),
    (("show", "--nonsense"), "unknown option --nonsense"), (("show", "--scope"), "needs a value"), (("show", "--scope", "s"), "--key KEY is required"),
    (("show", "--scope=s", "--key=k", "stray"), "unexpected argument 'stray'"), (("show", "-x"), "unknown option -x"),
    (("show", "--json=yes", "--scope", "s", "--key", "k"), "takes no value"), (("show", "--scope", "a", "--scope", "b"), "given twice"),
    (("run", "--scope", "s", "--key", "k"), "no command"), (("run", "--scope", "s", "--key", "k", "--"), "no command"),
    (("run", "--scope", "s", "--key", "k", "--lease", "1", "--", "true"), "no duration"),
    (("run", "--scope", "s", "--key", "k", "--lease", "-5s", "--", "true"), "no duration"),
    (("run", "--scope", "s", "--key", "k", "--lease", "99999999999999999999d", "--", "true"), "out of range"),
    (("run", "--scope", "s", "--key", "k", "--lease", "9223372036854775807d", "--", "true"), "out of range"),
    (("run", "--scope", "s", "--key", "k", "--lease", "8d", "--", "true"), "'8d' is out of range: 100ms to 7d (ms, s, m, h, d, w)"),
    (("run", "--scope", "s", "--key", "k", "--retention", "1y", "--", "true"), "'1y' is no duration: 1ms to 36500d (ms, s, m, h, d, w)"),
    (("run", "--scope", "s", "--key", "k", "--output-max", "5G", "--", "true"), "'5G' is out of range: 64 to 64M (B, k, M, G)"),
    (("run", "--scope", "s", "--key", "k", "--output-max", "5T", "--", "true"), "'5T' is no size: 64 to 64M (B, k, M, G)"),
    (("plan", "--rate", "many"), "'many' is no number: "),
    (("run", "--scope", "s", "--key", "k", "--output-max", "1e3", "--", "true"), "no size"),
    (("plan", "--rate", "0"), "out of range"), (("dev", "--stop", "--check"), "only one"),
    (("resolve", "--scope", "s", "--key", "k", "--as", "done", "--reason", "r"), "one of succeeded|failed_retryable|failed_final"),
    (("version", "--dsn", "host='unclosed"), "option --dsn"), (("help", "nonsense"), "unknown command"), (("init", "--dsn", "nonsense=1"), "nonsense"),
])
def test_a_wrong_command_line_is_one_clear_line_and_status_2(arguments, said):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    first, hint = done.stderr.decode().splitlines()
    assert said in first and hint.startswith("hint: pgonce help")


def test_a_word_that_is_half_another_one_is_not_taken_for_a_slip():
    assert b"did you mean" not in subprocess.run([PROGRAM, "foo"], capture_output=True, check=False).stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_takes_an_amount_names_its_range_and_units(offline, name):
    """Whether the unit is unknown, the number too large for the option, or for any."""
    text = offline("help", name).stdout.decode().split("Options:")[1]
    for option, kind in re.findall(r"--([a-z-]+) (DURATION|BYTES|N)\b", text):
        units = {"DURATION": " (ms, s, m, h, d, w)", "BYTES": " (B, k, M, G)", "N": ""}[kind]
        unit = {"DURATION": "w", "BYTES": "G", "N": ""}[kind]
        for value, said in (("7y", "is no "), (f"9999999999{unit}", "is out of range"), (f"9999999999999999999999{unit}", "is out of range")):
            done = offline(name, f"--{option}={value}")
            assert done.returncode == 2 and re.search(rf"option --{option}: '{value}' {said}[^:]*: \d+\w* to \d+\w*{re.escape(units)}\n", done.stderr.decode()), done.stderr


@pytest.mark.parametrize("name", ["init", "run", "show", "find", "stuck", "in-doubt", "resolve", "recover", "top", "doctor", "version"])
def test_without_a_server_one_line_says_which_address_was_tried(tmp_path, name):
    for dsn, address in ((f"host={tmp_path} dbname=x", f"{tmp_path}/.s.PGSQL.5432"), ("host=127.0.0.1 port=1 dbname=x", 'server at "127.0.0.1", port 1')):
        done = Command(dsn, tmp_path)(name, *NEEDS.get(name, ()))
        assert done.returncode == 3, done
        assert len(done.stderr.splitlines()) == 1 and address.encode() in done.stderr and b"--dsn" in done.stderr
    told = json.loads(Command(dsn, tmp_path)(name, "--json", *NEEDS.get(name, ())).stderr)["error"]
    assert told["exit"] == 3 and "127.0.0.1" in told["message"] and told["hint"]


@pytest.mark.parametrize("name", ["run", "show", "find", "stuck", "in-doubt", "resolve", "recover", "top"])
def test_without_the_contract_the_command_names_init(bare, name):
    done = bare(name, *NEEDS.get(name, ()))
    assert done.returncode == 4
    assert b"pgonce init" in done.stderr


@pytest.mark.parametrize("name", ["run", "show", "find", "stuck", "in-doubt", "resolve", "recover", "top"])
def test_a_newer_contract_is_spoken_to(pgonce, db, name):
    """It keeps all that this one has: so that it can be upgraded first."""
    before = pgonce(name, *NEEDS.get(name, ()))
    db.execute("INSERT INTO once.migration (version, name, checksum, pgonce) VALUES (99, '0099_later', 'x', '9.0.0')")
    done = pgonce(name, *NEEDS.get(name, ()))
    assert (done.returncode, done.stderr) == (before.returncode, before.stderr) and done.returncode != 4


def test_a_contract_that_may_not_be_read_has_no_version(db, tmp_path):
    role = f"stranger_{db.name}"
    db.execute(f"CREATE ROLE {role} LOGIN IN ROLE once_app")
    try:
        stranger = Command(db.dsn(role), tmp_path)
        assert b"contract not readable by this role" in stranger("version").stdout
        assert json.loads(stranger("version", "--json").stdout)["database_contract"] is None
    finally:
        db.execute(f"DROP ROLE {role}")


def test_a_full_disk_is_no_success(pgonce):
    pgonce.run("told", "true")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(pgonce.words("show", "--scope", "jobs", "--key", "told"), stdout=full, stderr=subprocess.PIPE, check=False,
                              env=pgonce.environment(None))
    assert done.returncode == 1 and b"No space left" in done.stderr
