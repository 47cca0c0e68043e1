# SPDX-License-Identifier: PostgreSQL
"""tools/prose.py: the counted turns of phrase are found, and their number only goes down."""

import json
import re
import sys

import pytest

from harness.postgres import ROOT


@pytest.fixture
def prose(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    # tools/contract.py, not the folder of tests of that name.
    ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "contract"}
    import prose as module

    yield module
    for name in ("prose", "check_files", "contract"):
        sys.modules.pop(name, None)
    sys.modules.update(ours)


@pytest.mark.parametrize("name, text, plain", [
    ("clause as subject", "It stops. What fails is parked.", "It stops. A message that fails is parked. What does it cost? What is lost?"),
    ("clause as object", "a copy of what is stored", "a copy of the stored answer"),
    ("where for if", "Where it has no policy, it waits", "the folder where it lives"),
    ("is none", "the scope has none", "no scope has a policy, none is needed"),
    ("of one's own", "a function of yours", "your function"),
    ("nobody", "it waits for nobody", "it never waits"),
    ("whoever", "whoever holds it", "the process that holds it"),
    ("he", "what he has sent", "what they have sent; the help; this"),
    ("is to be", "its bytes are to be hashed", "its bytes are hashed; it has to be"),
    ("such a one", "a relay has such a one", "a relay has such a table"),
    ("one behind a preposition", "of the one that holds it", "of the process that holds it, one of two"),
])  # fmt: skip
def test_a_turn_of_phrase_is_counted_and_its_plain_form_is_not(prose, name, text, plain):
    pattern = prose.PATTERNS[name][1]
    assert len(re.findall(pattern, text, re.M)) == 1
    assert re.findall(pattern, plain, re.M) == []


def test_the_number_only_goes_down(prose):
    noted = {"pages": {"nobody": 2}, "code": {"nobody": 1}}
    assert list(prose.compare(noted, noted)) == []
    above = list(prose.compare(noted, {"pages": {"nobody": 3}, "code": {"nobody": 1}}))
    assert len(above) == 1 and "3 times 'nobody', and there may be 2" in above[0]
    below = list(prose.compare(noted, {"pages": {"nobody": 2}, "code": {"nobody": 0}}))
    assert len(below) == 1 and "from 1 to 0" in below[0]


def test_code_in_a_page_is_not_counted(prose, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("Say `nobody` here.\n\n```sql\n-- nobody\n```\nnobody\n", encoding="utf-8")
    monkeypatch.setattr(prose.check_files, "ROOT", tmp_path)
    assert prose.prose(page.relative_to(tmp_path)).count("nobody") == 1


def test_writing_raises_no_number(prose, tmp_path, monkeypatch):
    noted = tmp_path / "prose.json"
    monkeypatch.setattr(prose, "NOTED", noted)
    monkeypatch.setattr(prose, "count", lambda: {"pages": {"nobody": 5}, "code": {"nobody": 0}})
    noted.write_text('{"pages": {"nobody": 3}, "code": {"nobody": 4}}', encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["prose.py", "--write"])
    prose.main()
    assert json.loads(noted.read_text(encoding="utf-8")) == {"pages": {"nobody": 3}, "code": {"nobody": 0}}
