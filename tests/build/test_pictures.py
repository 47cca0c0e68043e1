# SPDX-License-Identifier: PostgreSQL
"""tools/pictures.py and tools/record.py: the pictures of the documents are made from their texts, and a change that was not drawn is found."""

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from harness.postgres import ROOT

PICTURES = ROOT / "docs/pictures"


@pytest.fixture
def pictures():
    spec = importlib.util.spec_from_file_location("pictures_under_test", ROOT / "tools/pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts_of(svg):
    return ["".join(each.itertext()) for each in xml.etree.ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_every_picture_is_current():
    done = subprocess.run(["/usr/bin/python3", ROOT / "tools/pictures.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_every_picture_is_xml_says_what_it_shows_and_has_a_source(path):
    root = xml.etree.ElementTree.fromstring(path.read_text())
    sources = [path.with_suffix(end) for end in (".seq", ".lane", ".cast", ".dot") if path.with_suffix(end).exists()]
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert sources or "bench/plots.py" in path.read_text() or path.stem in ("gateway", "latency", "stored", "throughput")
    assert not sources or sources[0].suffix == ".dot" or title.text.strip()


def test_a_sequence_has_its_messages_in_their_order_and_colours(pictures, tmp_path):
    text = tmp_path / "a.seq"
    text.write_text("# x\ntitle: Two <talk>.\npanel: One\nactors: a, b\n{ together\na -> b: first & last\n}\nb -x a: lost\n* b: waits\na !> b: bad\nb => a: good\n= fine\n=! not fine\n")
    svg = pictures.sequence(text)
    assert [each for each in texts_of(svg) if each not in ("One", "a", "b", "together")] == ["first & last", "lost", "waits", "bad", "good", "fine", "not fine"]
    assert svg.count("stroke-dasharray") == 1 and svg.count("<rect") == 3 and "Two &lt;talk&gt;." in svg
    text.write_text("title: x\npanel: One\nactors: a, b\na -> c: who?\n")
    with pytest.raises(ValueError, match="a.seq:4: no such actor"):
        pictures.sequence(text)
    text.write_text("title: x\npanel: One\nactors: a, b\na tells b\n")
    with pytest.raises(ValueError, match="a.seq:4: 'a tells b' is no line of a sequence"):
        pictures.sequence(text)


def test_a_bar_without_room_for_its_text_is_refused(pictures, tmp_path):
    text = tmp_path / "a.lane"
    text.write_text("title: x\nlane: one\nbar: 10 90 blue wide\nmark: 50 now\n= so\n")
    assert texts_of(pictures.lanes(text)) == ["one", "wide", "now", "so"]
    text.write_text("title: x\nlane: one\nbar: 10 12 blue much too long for it\n")
    with pytest.raises(ValueError, match="no room for"):
        pictures.lanes(text)


def test_a_record_shows_every_line_without_its_colours_and_waits(pictures, tmp_path):
    text = tmp_path / "a.cast"
    events = [[0.0, "o", "$ make\r\n"], [100.0, "o", "\x1b[31mone\x1b[0m\r\ntw"], [100.1, "o", "o <&>\r\n"]]
    text.write_text("# x\n" + "\n".join(json.dumps(each) for each in [{"version": 2, "width": 80, "height": 3, "title": "make"}, *events]) + "\n")
    svg = pictures.cast(text)
    assert texts_of(svg) == ["$ make", "one", "two <&>"]
    assert "prefers-reduced-motion" in svg and float(svg.split("animation:up ")[1].split("s")[0]) < 12


def test_a_changed_text_makes_its_picture_stale(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pictures, "HERE", tmp_path)
    monkeypatch.setattr(pictures, "ROOT", tmp_path)
    (tmp_path / "a.lane").write_text("title: x\nlane: one\n")
    (tmp_path / "b.dot").write_text("digraph { a }\n")
    (tmp_path / "b.svg").write_text("<svg>" + pictures.mark(tmp_path / "b.dot") + "</svg>")
    (tmp_path / "a.svg").write_text(pictures.lanes(tmp_path / "a.lane"))
    monkeypatch.setattr(sys, "argv", ["pictures.py", "--check"])

    def checked():
        with pytest.raises(SystemExit) as ended:
            pictures.main()
        return ended.value.code, capsys.readouterr().out

    assert checked() == (0, "")
    (tmp_path / "a.lane").write_text("title: x\nlane: two\n")
    (tmp_path / "b.dot").write_text("digraph { b }\n")
    code, said = checked()
    assert code == 1 and "a.svg is not current: run make docs" in said and "b.dot was changed after its picture was made" in said


def test_what_a_command_prints_is_recorded_and_a_command_that_fails_leaves_nothing(tmp_path):
    record = [sys.executable, ROOT / "tools/record.py", tmp_path / "a.cast", "make it"]
    subprocess.run([*record, "sh", "-c", f"echo one; echo {tmp_path}/two '?access=abc1'; test -t 1 && echo terminal"], cwd=tmp_path, check=True)
    head, *events = [json.loads(line) for line in (tmp_path / "a.cast").read_text().split("\n") if line and not line.startswith("#")]
    assert head["version"] == 2 and head["title"] == "make it"
    assert "".join(text for _, _, text in events) == "$ make it\r\none\r\ntwo ?access=...\r\nterminal\r\n"
    (tmp_path / "a.cast").unlink()
    done = subprocess.run([*record, "sh", "-c", "echo one; exit 3"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ended with 3: nothing is written" in done.stderr and not (tmp_path / "a.cast").exists()
