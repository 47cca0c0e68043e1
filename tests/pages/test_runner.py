# SPDX-License-Identifier: PostgreSQL
"""The runner notices what is wrong with a page, and says where."""

import os

import pytest

from harness.release import VERSION

from .runner import Page, PageFailed, Run, agrees

TICKS = "```"


def page(*blocks, **given):
    """blocks: kind, text in turn, or prose."""
    return Page("docs/how/made-up.md", "# Made up\n\n" + "\n\n".join(blocks) + "\n", given)


def block(kind, text):
    return f"{TICKS}{kind}\n{text}\n{TICKS}"


def run(server, *blocks, **given):
    with Run(page(*blocks, **given), server) as running:
        running.all()


def fails(server, *blocks, **given):
    with pytest.raises(PageFailed) as failed:
        run(server, *blocks, **given)
    return str(failed.value)


def test_a_page_that_is_right(server):
    run(
        server,
        block("sql", "CREATE TABLE orders (id int);\nBEGIN;\nINSERT INTO orders VALUES (7);"),
        block("sql", "COMMIT;\nSELECT id, now() FROM orders;"),
        block("text", " id |              now\n----+-------------------------------\n  7 | 2020-01-01 12:00:00.123456+00"),
        "Write `say.sh`:",
        block("bash", "echo said 3000"),
        block("sh", "export WHAT=world\nmkdir below; cd below"),
        "Here is:",
        block("sh", 'echo "hello $WHAT at 8080"; basename "$PWD"; psql -Atc "SELECT count(*) FROM orders"'),
        block("text", "hello ... at 8080\nbelow\n1"),
        block("console", "$ echo one \\\n  two\none two\n$ echo three >&2\nthree"),
        "In another terminal:",
        block("sh", "sleep 600"),
        block("sql", "SELECT once.no_such_function();"),
        "says:",
        block("text", "ERROR:  function once.no_such_function() does not exist\n..."),
        "Stop it with Ctrl-C.",
        block("sh", "exit 3"),
        FAILS={"exit 3": 3},
    )


def test_a_page_leaves_no_file_open(server):
    run(server, block("sh", "sleep 600 &"))
    before = os.listdir("/proc/self/fd")
    run(server, "In another terminal:", block("sh", "sleep 600"), block("sh", "echo 3000"))
    fails(server, block("sh", "exit 3"))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_command_that_fails(server):
    said = fails(server, block("sh", "echo before\nls /nowhere/at/all\necho after"))
    assert "docs/how/made-up.md:5: " in said and "(block 1, sh" in said and "status 2" in said and "before\n" in said and "after\n" not in said.partition("---")[2]


def test_sql_that_fails(server):
    said = fails(server, block("sql", "SELECT 1;\nSELECT nothing;"))
    assert "docs/how/made-up.md:5: " in said and 'column "nothing" does not exist' in said


def test_sql_that_was_to_fail(server):
    assert "was to fail" in fails(server, block("sql", "SELECT 1;"), block("text", "ERROR:  no"))
    assert "not what was said" in fails(server, block("sql", "SELECT nothing;"), block("text", "ERROR:  no"))


def test_other_output(server):
    said = fails(server, block("sh", "echo one; echo two"), block("text", "one\nthree"))
    assert "-three" in said and "+two" in said and "docs/how/made-up.md:7 (block 2" in said
    fails(server, block("sql", "SELECT 1 AS a;"), block("text", " a\n---\n 2"))
    fails(server, block("console", "$ echo one\ntwo"))
    fails(server, block("sh", "true"), block("text", "one"))
    fails(server, block("sh", "echo one"), block("text", ""))


@pytest.mark.parametrize(("wanted", "came", "equal"), [
    (["a", "...", "d"], ["a", "b", "c", "d"], True), (["a", "...", "d"], ["a", "d"], True), (["a", "..."], ["b"], False), (["a ... c"], ["a b c"], True),
    (["a ... c"], ["a b d"], False), (["a"], ["a", "b"], False), (["a", "b"], ["a"], False), ([], [], True),
])  # fmt: skip
def test_outputs_agree(wanted, came, equal):
    assert agrees(wanted, came) == equal


def test_a_file_that_nothing_uses(server):
    assert "nothing on the page uses this file" in fails(server, "`some.py`:", block("python", "print(1)"), block("sh", "true"), LANGUAGES={"print(1)": ""})
    run(server, "`some.py`:", block("python", "print(1)"), block("sh", "python3 some.py"), LANGUAGES={"print(1)": "", "python3": ""})
    assert "no json" in fails(server, "`some.json`:", block("json", "{"), block("sh", "true"))


def test_a_pattern_that_is_not_found(server):
    assert "SAYS" in fails(server, block("sh", "echo one; echo two"), SAYS={"echo": ["two", "one"]})
    run(server, block("sh", "echo one; echo two"), SAYS={"echo": ["^one$", "^two"]})


def test_a_block_that_does_not_end(server):
    assert "is not over after 1 s" in fails(server, block("sh", "sleep 60"), PATIENCE_S=1)


def test_a_server_that_dies(server):
    assert "ended with status 7" in fails(server, "In another terminal:", block("sh", "sleep 0.2; exit 7"), block("sh", "sleep 1"))
    assert "has ended with status 7" in fails(server, block("sh", "true"), "In another terminal:", block("sh", "sh -c 'sleep 2; exit 7'"), block("sh", "sleep 4"), block("sh", "true"))
    assert "in the background has ended" in fails(server, block("sh", "sh -c 'exit 3' &\nsleep 1"))


def test_what_is_meant_to_be_interrupted_must_run(server):
    assert "no other terminal is busy" in fails(server, block("sh", "true"), "Press Ctrl-C:", block("sh", "true"))


def test_text_without_a_command():
    with pytest.raises(PageFailed, match="no command's output"):
        page(block("text", "alone"))
    page(block("text", "alone"), SHOWN={"alone": "why"})


def test_code_that_is_only_indented():
    with pytest.raises(PageFailed, match="only indented"):
        page("Text:", "    echo not run", "more")
    page("- item\n\n    its second paragraph")


def test_a_block_without_an_end():
    with pytest.raises(PageFailed, match="no end"):
        page(f"{TICKS}sh\ntrue")


def test_a_piece_of_a_program(server):
    with Run(page(block("js", "x = 1")), server, "node") as running, pytest.raises(PageFailed, match="nobody knows how to run js"):
        running.all()


def test_what_is_wrong_with_files_that_nobody_reads(server):
    assert "no json" in fails(server, block("json", "{"))
    assert "no yaml" in fails(server, block("yaml", "a: [")) and "no xml" in fails(server, block("xml", "<a>"))
    assert "refuses it" in fails(server, block("ini", "[relay orders]\nsink = nowhere"))
    assert "names" not in fails(server, block("ini", "[other]"))
    assert "nginx -t refuses it" in fails(server, block("nginx", "location / { once maybe; }"))
    run(server, block("nginx", "location / {\n  once required;\n  once_tenant none;\n  once_scope orders;\n  proxy_pass http://127.0.0.1:3000;\n}"), block("ini", "[relay orders]\nsink = stdout"))


def test_a_line_that_another_page_does_not_have():
    with pytest.raises(PageFailed, match="is not in docs/start/node.md"):
        page(block("js", "const app = express();\nconst app2 = express();"), QUOTED={"app2": "docs/start/node.md"})
    page(block("js", "const app = express();"), QUOTED={"app": "docs/start/node.md"})


def test_what_is_given_and_not_used():
    for given in ({"SHOWN": {"no such": "why"}}, {"SAYS": {"no such": "why"}}, {"QUOTED": {"no such": "docs/start/node.md"}}, {"FAILS": {"no such": 1}}, {"REPLACE": {"no such": "1"}}, {"LANGUAGES": {"no such": "node"}}, {"NO_SUCH": 1}, {"OUTPUT": ("no such",)}):
        with pytest.raises(PageFailed):
            page(block("sh", "true"), **given)


def test_a_page_leaves_nothing(server):
    run(server, block("sql", "CREATE ROLE made_by_a_page; CREATE DATABASE made_by_a_page OWNER made_by_a_page; ALTER SYSTEM SET work_mem = '5MB';"), block("sh", "sleep 987654 &"))
    with server.connect().cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = 'made_by_a_page' UNION ALL SELECT 1 FROM pg_database WHERE datname IN ('made_by_a_page', 'app')")
        assert cursor.fetchall() == []


@pytest.mark.parametrize("words", [
    "systemctl enable --now pgonce-nothing", "systemctl frobnicate nginx", "sudo shutdown", "sudo", "apt install no-such-package", "apt install ./dist/other_*.deb", "kubectl frobnicate", "kubectl apply -f none.yaml",
    "kubectl create secret generic shop --from-file=none.conf", "helm install shop elsewhere.tgz", f"helm install shop dist/pgonce-chart-{VERSION}.tgz -f none.yaml", "docker run nothing:1", f"docker run pgonce:{VERSION} frobnicate",
    f"docker run pgonce:{VERSION} keep --frobnicate", "docker compose up nothing", "make frobnicate", "make install FROBNICATE=1", "journalctl -u pgonce-nothing", "timedatectl frobnicate", "chronyc frobnicate",
    f"echo 'image: 7' > v.yaml; helm install shop dist/pgonce-chart-{VERSION}.tgz -f v.yaml",
])  # fmt: skip
def test_a_stand_in_refuses(server, words):
    assert "stand-in" in fails(server, block("sh", words), DATABASE=None)


def test_stand_ins_take_what_there_is(server):
    run(
        server,
        block("sh", "sudo systemctl enable --now pgonce-keep pgonce-relay@orders\nsystemctl reload nginx\njournalctl -u pgonce-keep -n 20 --no-pager\ntimedatectl; chronyc tracking"),
        block("sh", "sudo apt update; sudo apt install ./dist/*.deb nginx\nmake build && sudo make install\nmake install PREFIX=$HOME/.local"),
        block("sh", "sudo -u postgres createuser somebody; sudo -u postgres createdb --owner somebody theirs\necho keep | sudo tee /etc/pgonce/made-up.conf"),
        block("text", "keep"),
        block("sh", f"touch keeper.conf; kubectl create secret generic shop --from-file=keeper.conf\nhelm install shop dist/pgonce-chart-{VERSION}.tgz -f values.yaml\nhelm test shop; kubectl get pods; kubectl logs -f deploy/shop"),
        block("sh", f"docker compose up -d; podman-compose up -d --no-build; docker run --read-only --cap-drop ALL -v ./s:/run/secrets/pgonce:ro pgonce:{VERSION} keep --metrics 0.0.0.0:9187"),
        DATABASE=None, FILES={"values.yaml": "image: {repository: registry.example/pgonce}\n"},
    )  # fmt: skip
