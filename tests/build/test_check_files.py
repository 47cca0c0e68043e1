# SPDX-License-Identifier: PostgreSQL
"""tools/check_files.py: what `make lint` finds without a compiler."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def check_files(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    # tools/contract.py, not the folder of tests of that name.
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "contract"}
    import check_files as module

    monkeypatch.setattr(module, "problems", [])
    yield module
    sys.modules.pop("check_files", None)
    sys.modules.pop("contract", None)
    sys.modules.update(ours)


@pytest.mark.parametrize("decision", [
    'if (strstr(failure.text, "pgonce init") != NULL)',
    'if (strstr(PQerrorMessage(made), ":  ") != NULL)',
    'if (strcmp(PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY), "deadlock detected") == 0)',
    'if (hint == NULL || strstr(hint, "pgonce init") == NULL)',
    'if (strcasestr(once_error_message(error), "once.") != NULL)',
    'if (strstr(said, remedies[i].said) != NULL)',
    'bool gone = strncmp(error->message,\n\t\t"server closed", 13) == 0;',
])  # fmt: skip
def test_a_decision_by_a_messages_text_is_found(check_files, decision):
    check_files.check_messages("relay/pipeline.c", f"\n{decision}\n")
    assert len(check_files.problems) == 1 and check_files.problems[0].startswith("relay/pipeline.c:2: decides by the text")
    check_files.check_messages("cli/gateway/nginx.c", decision)
    assert len(check_files.problems) == 1


@pytest.mark.parametrize("comparison", [
    'if (strcmp(failure->sqlstate, "P4080") == 0)',
    'if (strncmp(message->id, "opaque:", 7) == 0)',
    'if (strcmp(problem, consumer->away_problem) != 0)',
    'log("problem=%s", problem); if (strcmp(text, "yes") == 0)',
])  # fmt: skip
def test_what_is_no_message_may_be_compared(check_files, comparison):
    check_files.check_messages("relay/pipeline.c", comparison)
    assert check_files.problems == []


@pytest.mark.parametrize("line", [
    "\tattempt->step = HTTP_PASS;",
    "\tgate_fill(&attempt->problem);",
    "\tattempt->report.kind = HTTP_REPORT_COMPLETE;",
])  # fmt: skip
def test_a_step_or_a_report_that_another_file_sets_is_found(check_files, line):
    check_files.check_decided("gateway/ngx_http_once_claim.c", f"\n{line}\n")
    assert len(check_files.problems) == 1 and check_files.problems[0].startswith("gateway/ngx_http_once_claim.c:2: sets an attempt's")
    check_files.check_decided("gateway/ngx_http_once_claim.c", "if (attempt->step == HTTP_PASS && attempt->report.kind == HTTP_REPORT_FINAL)")
    assert len(check_files.problems) == 1


def test_each_file_that_decides_for_an_attempt_does_so(check_files):
    for member, home in check_files.DECIDED_IN.items():
        assert f"attempt->{member} =" in (ROOT / home).read_text()
        check_files.check_decided(home, (ROOT / home).read_text())
    assert check_files.problems == []


def test_each_exception_is_one(check_files):
    """A file that no longer looks into a message loses its leave."""
    for path in list(check_files.MAY_READ_MESSAGES):
        text = (ROOT / path).read_text()
        check_files.check_messages(f"{path}.other", text)
        assert any(problem.startswith(f"{path}.other") for problem in check_files.problems), path


@pytest.mark.parametrize("text, found", [
    ('PQexec(connection, "SELECT 1");', True),
    ('const char *one = "SET LOCAL search_path = pg_catalog, pg_temp";', True),
    ('PQexec(connection, "CALL once.keep()");', True),
    ('PQexec(connection, "BEGIN ISOLATION LEVEL READ COMMITTED");', False),
    ('PQexec(connection, "COMMIT");', False),
    ('hint = "set pool_mode = transaction (or session) for this database";', False),
    ('hint = "ALTER EXTENSION pgonce UPDATE";', False),
])  # fmt: skip
def test_sql_in_a_c_string_is_found_and_what_begins_or_ends_a_transaction_is_none(check_files, text, found):
    check_files.check_c(pathlib.PurePath("cli/install/install.c"), text)
    assert check_files.problems == (["cli/install/install.c:1: SQL in a C string: its home is a .sql file"] if found else [])


@pytest.mark.parametrize("name, is_there", [
    ("tests/build/test_check_files.py::test_a_test_that_a_document_names_is_looked_for", True),
    ("tests/build/test_check_files.py::test_of_nothing", False),
    ("spec/cases/http.json::tenants-share-no-keys", True),
    ("spec/cases/http.json::tenants-share-no", False),
    ("clients/node/test/effects.test.js::an effect that ends the transaction by itself is in doubt, and does not run again", True),
    ("clients/node/test/effects.test.js::an effect that ends nothing", False),
])  # fmt: skip
def test_a_test_that_a_document_names_is_looked_for(check_files, name, is_there):
    check_files.check_claims("docs/why/threat-model.md", f"| it cannot | because | `{name}` |")
    assert (check_files.problems == []) is is_there


@pytest.mark.parametrize("line, found", [
    ("<" * 7 + " HEAD", True), (">" * 7 + " 1e202ff (Relay: fence)", True), ("|" * 7 + " 13cad8f", True), ("<" * 7, True), (">" * 7 + " work\r", True),
    ("=" * 7, False), ("<" * 8 + " HEAD", False), ("text " + "<" * 7 + " HEAD", False), (">" * 7 + "HEAD", False),
])  # fmt: skip
def test_what_a_merge_has_left_is_found(check_files, line, found):
    check_files.check_markers("clients/x.json", b"{\n\xff\n" + line.encode() + b"\n}\n")
    assert check_files.problems == (["clients/x.json:3: has a conflict marker of a merge"] if found else [])


@pytest.mark.parametrize("target", ["there", "nowhere", "."])
def test_a_symbolic_link_is_found(check_files, monkeypatch, tmp_path, capsys, target):
    """An archive or a checkout without them has files with the names of their targets, and nothing says so but what then fails."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "there").write_text("# SPDX-License-Identifier: PostgreSQL\n")
    (tmp_path / "link").symlink_to(target)
    monkeypatch.setattr(check_files, "ROOT", tmp_path)
    monkeypatch.setattr(check_files.contract, "functions", list)
    with pytest.raises(SystemExit) as ended:
        check_files.main()
    assert ended.value.code == 1 and "link: is a symbolic link" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["new.json", "new.png", "LICENSE", "tests/fuzz/corpus/new", "docs/a b.md", "new"])
def test_what_a_merge_has_left_is_found_in_each_kind_of_file(check_files, monkeypatch, tmp_path, capsys, name):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<" * 7 + " HEAD\n")
    monkeypatch.setattr(check_files, "ROOT", tmp_path)
    monkeypatch.setattr(check_files.contract, "functions", list)
    with pytest.raises(SystemExit) as ended:
        check_files.main()
    assert ended.value.code == 1 and f"{name}:1: has a conflict marker" in capsys.readouterr().out
