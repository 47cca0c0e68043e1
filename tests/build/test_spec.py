# SPDX-License-Identifier: PostgreSQL
"""tools/spec.py: what `make lint` finds where a source and spec/ do not agree."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path):
    """The sources that hold facts, and all SQL, where they may be changed."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "spec", "tools/spec.py", "contract", "native", "lib", "clients", "docs", "tests/http", "include", "cli/operate", "gateway"], capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if pathlib.Path(name).suffix in (".json", ".py", ".sql", ".c", ".h", ".js", ".go", ".java", ".md"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def check(copy):
    done = subprocess.run([sys.executable, copy / "tools/spec.py", "--check"], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_is_current_passes(copy):
    assert check(copy) == (0, "")


def test_a_source_that_differs_is_found(copy):
    change(copy / "clients/go/errors.go", '"P4012", 500', '"P4012", 501')
    code, said = check(copy)
    assert code == 1 and "clients/go/errors.go" in said and "run tools/spec.py" in said


@pytest.mark.parametrize("file, old, new", [
    ("contract/start/_start_over.sql", "'P4029'", "'P4028'"),
    ("native/refuse.c", None, 'refuse("P4095");'),
    ("contract/access/lock.sql", None, "SELECT once._refuse('P4096', NULL, NULL, NULL);"),
])  # fmt: skip
def test_a_sqlstate_without_a_row_is_found(copy, file, old, new):
    path = copy / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if old is None:
        path.write_text(new + "\n")
    else:
        change(path, old, new)
    code, said = check(copy)
    assert code == 1 and f"{file}: {new[new.index('P40'):][:5]} has no row in spec/errors.json" in said


def test_a_row_that_nothing_raises_is_found(copy):
    path = copy / "spec/errors.json"
    data = json.loads(path.read_text())
    data["errors"]["P4094"] = {"name": "nothing", "retry": False, "status": 500, "message": "m", "hint": "h"}
    path.write_text(json.dumps(data))
    code, said = check(copy)
    assert code == 1 and "P4094 is raised nowhere" in said


@pytest.mark.parametrize("file, old, new", [
    ("include/pgonce.h", "ONCE_EXPIRED_KEY = 9", "ONCE_EXPIRED_KEY = 16"),
    ("include/pgonce.h", "ONCE_VERDICT_NONE = 0,", "ONCE_VERDICT_NONE = 0, ONCE_NOVEL = 17,"),
    ("spec/verdicts.json", '["ONCE_ABSENT", 12]', '["ONCE_ABSENT", 18]'),
])  # fmt: skip
def test_a_verdict_with_another_number_is_found(copy, file, old, new):
    change(copy / file, old, new)
    code, said = check(copy)
    assert code == 1 and "in once_verdict, and" in said


@pytest.mark.parametrize("file, old, new", [
    ("clients/node/lib/trace.js", "SPAN_PREFIX + kind", "`pgonce.${kind}`"),
    ("clients/go/onceotel/onceotel.go", "attribute.String(scopeAttribute", 'attribute.String("pgonce.scope"'),
])  # fmt: skip
def test_a_name_of_a_span_that_is_written_by_hand_is_found(copy, file, old, new):
    change(copy / file, old, new)
    code, said = check(copy)
    assert code == 1 and f"{file}: pgonce." in said and "is written by hand" in said


def test_each_row_is_in_the_reference_with_its_whole_hint():
    page = (ROOT / "docs/reference/sql.md").read_text()
    for code, row in json.loads((ROOT / "spec/errors.json").read_text())["errors"].items():
        assert f"| {code} | {row['name']} | {'yes' if row['retry'] else 'no'} | {row['message']} | {row['hint']} |" in page


def test_a_parameter_that_a_statement_does_not_use_is_found(copy):
    change(copy / "spec/statements.json", "once.release({scope}, {key}, {fence}, {tenant})", "once.release({scope}, {key}, {fence}, '')")
    code, said = check(copy)
    assert code == 1 and "does not use ['tenant']" in said


def test_a_statement_that_is_changed_by_hand_is_found(copy):
    change(copy / "clients/node/lib/statements.js", "once.release($1::text", "once.release($2::text")
    code, said = check(copy)
    assert code == 1 and "clients/node/lib/statements.js" in said


def test_the_longest_key_of_the_header_is_compared(copy):
    change(copy / "include/pgonce.h", "#define ONCE_KEY_BYTES_MAX 255", "#define ONCE_KEY_BYTES_MAX 254")
    code, said = check(copy)
    assert code == 1 and "ONCE_KEY_BYTES_MAX is 254" in said
