# SPDX-License-Identifier: PostgreSQL
"""Runs the pages of docs/start/ and docs/how/ and the README as a reader types them: each block in order, in one folder, against a private server.

What a block is, is said by its fence and by what stands around it:

- ```sh: typed into one shell of the page (bash, set -e, jobs as %1), which begins in an empty folder; exports and `cd` last. ```console: lines that begin with
  "$ " are typed, the others are their output.
- ```sql: typed into psql -X (default output), one session for the page, begun again where PGHOST, PGDATABASE, ... have been exported anew.
- A block right after one of these (```text, no language, ```json without a name, ```http), with at most a sentence between, is what that command said. It is compared whole
  (standard output and error as a terminal shows them). "..." stands for any text within a line, and alone on a line for any lines. Blanks are squeezed, and what
  differs by itself is alike: times, UUIDs, milliseconds; Date and such headers; command tags (INSERT 0 1) and "(1 row)" that the page leaves out. An SQL block whose
  output has a line "ERROR: ..." is meant to fail.
- A block of any kind with a file's name is that file: "```js orders.js", or the line before the block ends in `orders.js`:, or its first line is a comment that
  begins with the name. "Add to `x`" or "Append" before it: it is appended.
- Without a name: nginx is checked by nginx -t, ini by pgonce relay/consume --check-config, json, yaml and xml are parsed; a piece of a program is a
  failure: make it a file that a command runs.
- A block is typed in a terminal of its own, as it was when the page began, and goes on, if the text right before it says "another terminal". Where the text between two blocks says
  "Ctrl-C", the last such terminal is interrupted. What ends there with a status, or a job of the first terminal that does, is a failure.

Ports that a page prints (PORTS) are replaced by free ones, and back in what is said. `pgonce` is on PATH; sudo, systemctl, kubectl, ... are standins/.
A page's given/FOLDER/PAGE.py says what else is given; tests/pages/README.md lists its names."""

import configparser
import difflib
import functools
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

import psycopg2

from harness.broker import free_port, give_back
from harness.nginx import MODULE, PROGRAM
from harness.postgres import PORT as PG_PORT
from harness.postgres import ROOT, Database, clean_environment, find_bindir, is_running

from . import needs

HERE = pathlib.Path(__file__).parent
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD") or ROOT / "build")
STANDINS = HERE / "standins"
BLOCK_S, FETCHING_S, SETTLED_S = 240, 900, 30  # on a machine that is busy with other tests

COMMANDS = {"sh", "bash", "shell"}
OUTPUT = {"", "text", "txt", "json", "http", "output"}
LANGUAGE = {"js": "node", "javascript": "node", "ts": "node", "typescript": "node", "python": "python", "py": "python", "go": "go", "java": "java"}
TYPED = {"node": "node|npm|npx", "python": r"python3?|pip|\.venv/bin/\w+", "go": "go|gofmt", "java": "java|javac|mvn|gradle"}
DATA = {"ini": "ini", "conf": "ini", "nginx": "nginx", "json": "json", "yaml": "yaml", "yml": "yaml", "xml": "xml", "properties": "properties", "toml": "toml"}
# As programs that the pages name listen by default, or as the examples do.
PORTS = (1883, 3000, 3001, 4222, 5432, 5672, 6379, 6432, 8000, 8001, 8080, 8081, 8082, 8083, 8222, 9092, 9187, 9188, 9189, 9190, 9324, 9480, 15672)

FILE = r"(?:[\w.@-]+/)*(?:[\w.@-]+\.\w+|Makefile|Rakefile|Gemfile|Dockerfile|Containerfile)"
NAMED_BEFORE = re.compile(rf"`({FILE})`[^`]{{0,60}}:$")
NAMED_WITHIN = re.compile(rf"^(?:#|//|--|;|<!--)\s*({FILE})\b")
FENCE = re.compile(r"^( *)(```+|~~~+)\s*([\w+-]*)\s*(.*)$")

# Alike on the page and in what is said.
ALIKE = [
    (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::?\d\d)?)?", "<time>"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
    (r"\b\d+(?:\.\d+)? ?ms\b", "<ms>"),
    (r"-{3,}", "---"),
    (r"[ \t]+", " "),
]
# Left out of what is said where the page does not show such lines.
DROPPED = [
    r"(?:Date|Server|Connection|Keep-Alive|ETag|X-Powered-By|Transfer-Encoding|Content-Length|Vary): .*",
    r"(?:BEGIN|COMMIT|ROLLBACK|SET|RESET|DO|CALL|ANALYZE|VACUUM|LISTEN|NOTIFY|SAVEPOINT|(?:CREATE|ALTER|DROP|GRANT|REVOKE|COMMENT|ALTER DEFAULT|DROP OWNED)(?: [A-Z ]+)?|(?:INSERT 0|UPDATE|DELETE|SELECT|COPY|MERGE) \d+)",
    r"\(\d+ rows?\)",
]


def beside(folder, page, suffix):
    """Of docs/how/keys.md: given/how/keys.py."""
    return HERE / folder / pathlib.Path(page.removeprefix("docs/")).with_suffix(suffix)


class PageFailed(AssertionError):
    """One block did not do what the page says."""


class Given:
    """given/FOLDER/PAGE.py: its names in capitals, each with a default here."""

    NAMES = {
        "DATABASE": "contract",  # or "empty": no contract; None: no database of this name
        "NAME": "app",  # the database's
        "SETTINGS": {},  # of a server of its own
        "EXTENSIONS": False,  # True: on a server of its own, for which CREATE EXTENSION pgonce and pgonce_native work
        "BEFORE": "",  # SQL before the page
        "BEFORE_SH": "",  # typed before the page
        "AFTER_SH": "",  # typed after it, and must succeed: what the page promises
        "ENVIRONMENT": {},
        "NEEDS": (),  # programs and brokers: see needs.py
        "FILES": {},  # in its folder: name -> text, or a path of the tree
        "REPLACE": {},  # printed -> typed
        "PORTS": (),  # more of them
        "ALIKE": [],  # more of them: (pattern, replacement)
        "SHOWN": {},  # piece of a block -> why it is not run
        "FAILS": {},  # piece of a block -> the status that it ends with
        "SAYS": {},  # piece of a block -> a pattern, or some in order, that are found in what it says
        "QUOTED": {},  # piece of a block -> the page whose files have its lines, in this order, and run there
        "OUTPUT": (),  # pieces of blocks that are output although something stands between
        "LANGUAGES": {},  # piece of a block -> the language that it belongs to, "" for none
        "PATIENCE_S": BLOCK_S,
    }

    def __init__(self, page, values=None):
        self.path = beside("given", page, ".py")
        found = dict(values or {})
        if values is None and self.path.exists():
            exec(compile(self.path.read_text(), str(self.path), "exec"), found)  # pylint: disable=exec-used
        names = {name: value for name, value in found.items() if name.isupper()}
        unknown = set(names) - set(self.NAMES)
        if unknown:
            raise PageFailed(f"{self.path}: {', '.join(sorted(unknown))}: no such names; there are {', '.join(self.NAMES)}")
        for name, default in self.NAMES.items():
            setattr(self, name, names.get(name, default))


class Block:
    def __init__(self, page, number, line, kind, info, text, heading, before, between):
        self.page, self.number, self.line, self.kind, self.text, self.heading = page, number, line, kind.lower(), text, heading
        self.before, self.between = before, between  # the last paragraph, and everything since the block before, of the same section
        self.elsewhere = bool(re.search(r"\b(another|other|second|third) terminal\b", before, re.I)) and not re.search(r"\bfirst terminal\b", before, re.I)
        self.file = self._file(info)
        self.appended = bool(self.file and re.search(r"\b([Aa]dd|[Aa]ppend)\b", before))
        self.shown = self.fails = None
        self.says = None  # the block with its output
        self.patterns = ()  # found in its output, in this order
        self.language = LANGUAGE.get(self.kind)

    def _file(self, info):
        named = re.match(rf'(?:title=)?"?({FILE})"?', info)
        if named:
            return named[1]
        last = self.before.rstrip().splitlines()[-1:]
        named = NAMED_BEFORE.search(last[0].strip()) if last else None
        if named and self.kind not in COMMANDS:
            return named[1]
        named = NAMED_WITHIN.match(self.text)
        return named[1] if named and self.kind not in COMMANDS | {"sql", "console"} | OUTPUT else None

    @property
    def is_command(self):
        return not self.file and (self.kind in COMMANDS | {"sql", "console"})

    def __str__(self):
        name = f" `{self.file}`" if self.file else ""
        return f"{self.page}:{self.line} (block {self.number}, {self.kind or 'without a language'}{name}{', under ' + repr(self.heading) if self.heading else ''})"

    def failed(self, what, said="", line=None):
        lines = self.text.splitlines()
        where = f"{self.page}:{self.line + line}: " if line else ""
        shown = "\n".join(
            f"{'>' if line == number else ' '} {self.line + number:5}| {text}" for number, text in enumerate(lines, 1) if line is None or abs(number - line) <= 12
        )
        tail = said[-6000:].rstrip()
        return PageFailed(f"{where}{self}: {what}\n{shown}\n{'--- what was said:' if tail else '--- nothing was said.'}\n{tail}")


def parse(page, text=None):
    """The blocks, in order, each with what belongs to it."""
    text = (ROOT / page).read_text() if text is None else text
    blocks, heading, since, lines = [], "", [], text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        fence = FENCE.match(line)
        if fence:
            indent, ticks, kind, info = fence.groups()
            begin, body = number + 1, []
            number += 1
            while number < len(lines) and not re.fullmatch(rf"\s*{ticks[0]}{{{len(ticks)},}}\s*", lines[number]):
                body.append(lines[number].removeprefix(indent))
                number += 1
            if number == len(lines):
                raise PageFailed(f"{page}:{begin}: this block has no end")
            paragraphs = [each for each in re.split(r"\n\s*\n", "\n".join(since).strip()) if each]
            block = Block(page, len(blocks) + 1, begin, kind, info, "".join(each + "\n" for each in body), heading, paragraphs[-1] if paragraphs else "", paragraphs)
            blocks.append(block)
            since = []
        elif re.match(r"#{1,6} ", line):
            heading, since = line.lstrip("# "), []
        elif re.match(r"    ( *)\S", line) and not since and number and not lines[number - 1].strip():
            raise PageFailed(f"{page}:{number + 1}: code that is only indented is not run: put it between ``` lines")
        else:
            if line.startswith("    ") and since and not since[-1].strip() and not any(re.match(r"\s*([-*]|\d+\.) ", each) for each in since):
                raise PageFailed(f"{page}:{number + 1}: code that is only indented is not run: put it between ``` lines")
            since.append(line)
        number += 1
    return blocks


class Page:
    """Its blocks, with what is given for them. blocks without a place in it are faults of the page, which say what to do."""

    def __init__(self, page, text=None, given=None):
        self.page = str(page)
        self.blocks = parse(self.page, text)
        self.given = Given(self.page, given)
        self._assign()
        self._languages()

    def one(self, piece, name):
        found = [block for block in self.blocks if piece in block.text or piece == f"`{block.file}`"]
        if len(found) != 1:
            raise PageFailed(f"{self.given.path}: {name}: {piece!r} is in {len(found)} blocks of {self.page}, and must be in one")
        return found[0]

    def _assign(self):
        for piece, why in self.given.SHOWN.items():
            self.one(piece, "SHOWN").shown = why
        for piece, status in self.given.FAILS.items():
            self.one(piece, "FAILS").fails = status
        for piece, patterns in self.given.SAYS.items():
            self.one(piece, "SAYS").patterns = [patterns] if isinstance(patterns, str) else list(patterns)
        for piece, page in self.given.QUOTED.items():
            self.quoted(self.one(piece, "QUOTED"), page)
        outputs = [self.one(piece, "OUTPUT") for piece in self.given.OUTPUT]
        for before, block in zip([None, *self.blocks], self.blocks):
            if block.shown or block.file or block.kind not in OUTPUT:
                continue
            follows = before is not None and before.is_command and not before.shown and before.says is None and before.heading == block.heading and len(block.between) <= 1
            if block in outputs:
                follows = before is not None and before.is_command
            if follows:
                before.says = block
                block.kind = "output"
            elif block.kind in ("", "text", "txt", "output", "http"):
                raise PageFailed(f"{block}: text that is no command's output: it must follow the command, with at most a paragraph between; otherwise name its file, or say in "
                                 f"{self.given.path.relative_to(ROOT)} SHOWN why it is only shown")
        for printed in self.given.REPLACE:
            if not any(printed in block.text for block in self.blocks):
                raise PageFailed(f"{self.given.path}: REPLACE: {printed!r} is in no block of {self.page}")

    @staticmethod
    def quoted(block, page):
        there = iter([line.strip() for each in parse(page) if each.kind == block.kind for line in each.text.splitlines()])
        for number, line in enumerate(block.text.splitlines(), 1):
            if line.strip() and line.strip() not in there:
                raise block.failed(f"this line is not in {page}, or in another order", line=number)
        block.shown = f"runs as part of {page}"

    def _languages(self):
        """Which client's machine a block needs: that of its kind, of the programs that a shell is told to run, or of the section that is named like it."""
        chosen = {self.one(piece, "LANGUAGES"): language for piece, language in self.given.LANGUAGES.items()}
        for before, block in zip([None, *self.blocks], self.blocks):
            if block in chosen:
                block.language = chosen[block] or None
            elif block.kind in COMMANDS or block.kind == "console":
                typed = {name for name, programs in TYPED.items() if re.search(rf"^\s*(?:\w+=\S+ )*(?:{programs})\b", block.text, re.M)}
                block.language = typed.pop() if len(typed) == 1 else None
            elif block.kind == "output":
                block.language = before.language
            elif block.file and block.file in ("package.json",):
                block.language = "node"
        alone = pathlib.Path(self.page).stem
        for block in self.blocks if alone in LANGUAGE.values() else ():
            block.language = alone  # a page about one language: none of it is anybody else's
        self.languages = sorted({block.language for block in self.blocks if block.language and not block.shown})


# Typed by the test of each tool, in projects of the tool's own, up to an upgrade to a next release.
ELSEWHERE = {"docs/how/migrations": "tests/packages/test_sql_tools.py"}


def pages():
    """All that are run here, as paths of the tree."""
    found = [path.relative_to(ROOT) for folder in ("start", "how") for path in sorted((ROOT / "docs" / folder).rglob("*.md"))]
    found = [path for path in found if str(path.parent) not in ELSEWHERE]
    return ["README.md", *map(str, found)]


def find(piece):
    found = [page for page in pages() if piece in page]
    assert len(found) == 1, found
    return Page(found[0])


class Terminal:
    """A shell, to which blocks are typed as files."""

    def __init__(self, run, name, folder, environment):
        self.run, self.name = run, name
        self.number, self.open = 0, None  # of the last block; the one that goes on
        self.log = run.place / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(["bash", "--norc", "--noprofile"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder, env=environment, start_new_session=True)
        self.write("set -m\n")

    def write(self, text):
        try:
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def file(self, ending):
        return self.run.place / f"{self.name}-{self.number}.{ending}"

    def begin(self, text, may_fail=False):
        self.number += 1
        self.open = True
        self.file("sh").write_text(text if text.endswith("\n") else text + "\n")
        trap = f"trap 'echo $LINENO > {self.file('line')}' ERR"
        source = f"set -eE; {trap}; . {self.file('sh')}"
        source = f"( {source} )" if may_fail else f"{{ {source}\n}}"
        self.write(
            f"{source} > {self.file('out')} 2>&1 < /dev/null; pgonce_page_status=$?; set +eE; trap - ERR; jobs -l > {self.file('jobs')} 2>&1; env -0 > {self.file('env')}; "
            f"pwd > {self.file('pwd')}; echo $pgonce_page_status > {self.file('new')}; mv {self.file('new')} {self.file('status')}\n"
        )

    def is_over(self):
        return self.file("status").exists() or self.process.poll() is not None

    def end(self, patience_s):
        """(status, output, failed line or None). None: it is not over."""
        until = time.monotonic() + patience_s
        while not self.is_over():
            if time.monotonic() > until:
                return None, self.said(), None
            time.sleep(0.01)
        self.open = None
        status = int(self.file("status").read_text()) if self.file("status").exists() else self.process.wait()
        line = self.file("line").read_text().split() if self.file("line").exists() else []
        return status, self.said(), int(line[0]) if line and status else None

    def said(self):
        log = self.log.read_text(errors="replace") if self.process.poll() is not None else ""
        return (self.file("out").read_text(errors="replace") if self.file("out").exists() else "") + log

    def bad_jobs(self):
        """What has ended in the background, with a status that says that it failed."""
        text = self.file("jobs").read_text(errors="replace") if self.file("jobs").exists() else ""
        return [line for line in text.splitlines() if re.search(r"\bExit (?!130\b|143\b)[1-9]", line)]

    def has_jobs(self):
        text = self.file("jobs").read_text(errors="replace") if self.file("jobs").exists() else ""
        return "Running" in text

    def environment(self):
        if not self.number or not self.file("env").exists():
            return None
        return dict(each.split("=", 1) for each in self.file("env").read_text(errors="surrogateescape").split("\0") if "=" in each)

    def folder(self):
        return self.file("pwd").read_text().rstrip("\n") if self.number and self.file("pwd").exists() else None


class Psql:
    """One session, whose blocks are files that it includes: a line of them that fails is named."""

    def __init__(self, run, name, folder, environment):
        self.run, self.name, self.environment = run, name, environment
        self.number, self.begun, self.open = 0, 0, None
        self.out = run.place / f"{name}.out"
        words = (["stdbuf", "-oL"] if shutil.which("stdbuf") else []) + ["psql", "-X", "-v", "ON_ERROR_STOP=1"]
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=folder, env=environment, start_new_session=True)

    def file(self, ending):
        return self.run.place / f"{self.name}-{self.number}.{ending}"

    def begin(self, text, may_fail=False):
        self.number += 1
        self.open = True
        self.begun = self.out.stat().st_size
        self.file("sql").write_text(text)
        strict = "\\set ON_ERROR_STOP off\n" if may_fail else ""
        try:
            self.process.stdin.write(f"{strict}\\i {self.file('sql')}\n\\set ON_ERROR_STOP on\n\\! echo 0 > {self.file('new')}; mv {self.file('new')} {self.file('status')}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def is_over(self):
        return self.file("status").exists() or self.process.poll() is not None

    def end(self, patience_s):
        until = time.monotonic() + patience_s
        while not self.is_over():
            if time.monotonic() > until:
                return None, self.said(), None
            time.sleep(0.01)
        self.open = None
        said = self.said()
        status = 0 if self.file("status").exists() else self.process.wait() or 1
        line = re.search(rf"^psql:{re.escape(str(self.file('sql')))}:(\d+): ERROR", self.said(raw=True), re.M)
        return status, said, int(line[1]) if line and status else None

    def said(self, raw=False):
        text = self.out.read_bytes()[self.begun :].decode(errors="replace")
        return text if raw else re.sub(rf"^psql:{re.escape(str(self.file('sql')))}:\d+: ", "", text, flags=re.M)

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait(10)


def template(server):
    """A database of this server into which the command has put the contract."""
    if not hasattr(server, "template_of_pages"):
        made = server.empty_database()
        done = subprocess.run([BUILD / "cli/pgonce", "init", "--no-native", "--dsn", made.dsn()], capture_output=True, text=True, check=False, env=clean_environment())
        if done.returncode:
            raise PageFailed(f"pgonce init failed:\n{done.stdout}{done.stderr}")
        server.template_of_pages = made.name
    return server.template_of_pages


def link_standins(place):
    """Makes the folder: the programs of standins/, and each name by which one of them is called."""
    place.mkdir()
    named = subprocess.run([STANDINS / "standin"], capture_output=True, text=True, check=True).stdout.split()
    for name in {*named, *(path.name for path in STANDINS.iterdir())} - {"standin"}:
        (place / name).symlink_to(STANDINS / ("standin" if name in named else name))
    return place


class Run:
    """A page in its folder. server: Postgres. language: whose blocks are run besides those that are nobody's."""

    def __init__(self, page, server, language=None, verbose=False):
        self.page, self.server, self.language, self.verbose = page, server, language, verbose
        self.mark = f"PGONCE_PAGE={uuid.uuid4()}"
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-pages-", dir="/tmp"))
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-page-", dir="/tmp"))  # sockets have short paths
        self.folder.chmod(0o755)
        self.ports = {printed: free_port() for printed in (*PORTS, *page.given.PORTS)}
        self.database, self.shell, self.psql, self.others, self.closing = None, None, None, [], []
        self.roles = self.databases = set()

    # What is given

    def begin(self):
        given = self.page.given
        made = self.server.empty_database(template=template(self.server)) if given.DATABASE == "contract" else self.server.empty_database()
        with self.server.connect().cursor() as cursor:
            self.roles, self.databases = self._made(cursor)
            self.databases -= {made.name}
        if given.DATABASE:
            with self.server.connect().cursor() as cursor:
                cursor.execute(f'ALTER DATABASE {made.name} RENAME TO "{given.NAME}"')
            self.database = Database(self.server, given.NAME)
            if given.BEFORE:
                self.database.execute(given.BEFORE)
        kept = {name: value for name, value in clean_environment().items() if not re.match(r"PGONCE$|NODE_(?!EXTRA_CA)|VIRTUAL_ENV|PYTHON|GOFLAGS|MAVEN_|JAVA_TOOL|PORT$|DATABASE", name)}
        path = f"{link_standins(self.place / 'standins')}:{BUILD / 'cli'}:{find_bindir()}:{kept['PATH']}:/usr/local/go/bin:/usr/sbin"
        self.environment = {
            **kept, "PATH": path, "PGHOST": str(self.server.directory), "PGPORT": str(PG_PORT), "PGUSER": "postgres", "PGDATABASE": given.NAME if given.DATABASE else "postgres",
            "PGONCE": str(ROOT), "USER": pwd.getpwuid(os.geteuid()).pw_name, "PWD": str(self.folder), "PGONCE_PAGE": self.mark.partition("=")[2], "PGONCE_PAGES_ROOT": str(ROOT), "PGONCE_PAGES_BUILD": str(BUILD),
            **{name: self.typed(value) for name, value in given.ENVIRONMENT.items()},
        }  # fmt: skip
        if not self.language:
            (self.place / "home").mkdir()
            self.environment["HOME"] = str(self.place / "home")
        for name, what in given.FILES.items():
            there = self.folder / name
            there.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(what, pathlib.Path):
                (shutil.copytree if what.is_dir() else shutil.copy)(what, there)
            else:
                there.write_text(self.typed(what))

    def start(self):
        """After what the page needs has been started, which adds to the environment."""
        given = self.page.given
        self.shell = Terminal(self, "terminal", self.folder, self.environment)
        if given.BEFORE_SH:
            self.shell.begin(given.BEFORE_SH)
            status, said, _ = self.shell.end(given.PATIENCE_S)
            if status != 0:
                raise PageFailed(f"{given.path}: BEFORE_SH ended with {status}\n{said}")

    @staticmethod
    def _made(cursor):
        cursor.execute("SELECT rolname FROM pg_roles")
        roles = {name for (name,) in cursor.fetchall()}
        cursor.execute("SELECT datname FROM pg_database")
        return roles, {name for (name,) in cursor.fetchall()}

    def typed(self, text):
        """As printed, but for ports that others of this machine may have, and for what given/ replaces."""
        for printed, real in self.page.given.REPLACE.items():
            text = text.replace(printed, real)
        return re.sub(r"(?<![\w.,])(?<!\w-)\d{4,5}(?![\w-]|\.\d)", lambda port: str(self.ports.get(int(port[0]), port[0])), text)

    def back(self, text):
        real = {str(port): str(printed) for printed, port in self.ports.items()}
        text = re.sub(r"(?<!\d)\d{5}(?!\d)", lambda port: real.get(port[0], port[0]), text)
        return text.replace(str(self.folder), "/home/you/app").replace(str(self.server.directory), "/run/postgresql")

    # Blocks

    def all(self):
        with needs.servers(self):
            self.start()
            self.go()

    def go(self):
        for block in self.page.blocks:
            if block.shown or block.kind == "output" or (block.language and block.language != self.language):
                continue
            began = time.monotonic()
            if self.verbose:
                print(f"{block} ...", file=sys.stderr, flush=True)
            try:
                self.interrupted(block)
                self.look_after(block)
                self.one(block)
                self.look_after(block)
            except PageFailed as failed:
                others = "".join(f"\n--- the other terminal of line {started.line} said:\n{self.back(terminal.said())[-2000:]}" for started, terminal in self.others if started is not block)
                raise PageFailed(f"{failed}{others}") from None
            if self.verbose:
                print(f"   {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if self.page.given.AFTER_SH:
            self.shell.begin(self.typed(self.page.given.AFTER_SH))
            status, said, line = self.shell.end(self.page.given.PATIENCE_S)
            if status != 0:
                raise PageFailed(f"{self.page.given.path}: AFTER_SH ended with {status}, at its line {line}\n{said}")

    def one(self, block):
        if block.file:
            self.write(block)
        elif block.kind in COMMANDS:
            self.type(block)
        elif block.kind == "console":
            self.converse(block)
        elif block.kind == "sql":
            self.query(block)
        elif block.kind in DATA:
            self.check(block)
        else:
            raise block.failed(f"nobody knows how to run {block.kind or 'this'}: name its file, or say in {self.page.given.path.relative_to(ROOT)} SHOWN why it is only shown")

    def write(self, block):
        if not self.is_used(block):
            if block.kind not in DATA:
                raise block.failed("nothing on the page uses this file: show the command that does, or let AFTER_SH use it")
            self.check(block)
        path = pathlib.Path(self.shell.folder() or self.folder) / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.appended else "w", encoding="utf-8") as file:
            file.write(self.typed(block.text))
        if re.match(r"#!", block.text):
            path.chmod(0o755)

    def is_used(self, block):
        """Does a command, another file, or what is given name it, or run all files of its language?"""
        path, given = pathlib.Path(block.file), self.page.given
        commands = "\n".join([given.AFTER_SH, *(each.text for each in self.page.blocks if each.is_command and not each.shown)])
        files = [text for text in given.FILES.values() if isinstance(text, str)] + [each.text for each in self.page.blocks if each.file and each is not block]
        names = {path.name, path.stem, *(part for part in path.parts[:1] if len(path.parts) > 1)}
        all_of = {"go": r"\bgo (build|run|test|vet)\b", "java": r"\b(mvn|gradle|javac)\b", "xml": r"\bmvn\b", "properties": r"\bmvn\b"}
        named = any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) for name in names for text in [commands, *files])
        return named or re.search(all_of.get(block.kind, r"$^"), commands) is not None

    def patience(self):
        return FETCHING_S if self.language else self.page.given.PATIENCE_S

    def type(self, block):
        terminal = self.shell
        if block.elsewhere:
            terminal = Terminal(self, f"other{len(self.others)}", self.folder, self.environment)
            self.others.append((block, terminal))
        terminal.begin(self.typed(block.text), may_fail=block.fails is not None)
        if block.elsewhere and not self.settled(terminal):
            return
        self.judge(block, *terminal.end(self.patience()))
        if terminal.bad_jobs():
            raise block.failed(f"what it left in the background has ended: {terminal.bad_jobs()}", terminal.said())
        if terminal.has_jobs():
            self.settled(None)

    def converse(self, block):
        """Command by command, each with its output."""
        lines = block.text.splitlines()
        at = 0
        while at < len(lines):
            if not lines[at].startswith("$ "):
                raise block.failed(f"a line of console without a command before it: {lines[at]}")
            begin, command = at, [lines[at][2:]]
            at += 1
            while at < len(lines) and (command[-1].endswith("\\") or lines[at].startswith("> ")):
                command.append(lines[at].removeprefix("> "))
                at += 1
            wanted = []
            while at < len(lines) and not lines[at].startswith("$ "):
                wanted.append(lines[at])
                at += 1
            self.shell.begin(self.typed("\n".join(command)), may_fail=block.fails is not None)
            status, said, _ = self.shell.end(self.patience())
            if status != (block.fails or 0):
                raise block.failed(f"ended with status {status}", self.back(said), begin + 1)
            self.compare(block, "\n".join(wanted), said)

    def query(self, block):
        environment = self.shell.environment() or self.environment
        folder = self.shell.folder() or self.folder
        if block.elsewhere:
            psql = Psql(self, f"psql-other{len(self.others)}", folder, self.environment)
            self.others.append((block, psql))
        else:
            relevant = {name: value for name, value in environment.items() if name.startswith("PG")}
            if self.psql is None or self.psql.process.poll() is not None or relevant != {name: value for name, value in self.psql.environment.items() if name.startswith("PG")}:
                if self.psql is not None:
                    self.psql.close()
                self.closing.append(self.psql)
                self.psql = Psql(self, f"psql{len(self.closing)}", folder, environment)
            psql = self.psql
        wants_error = block.fails is not None or (block.says is not None and re.search(r"^(ERROR|FATAL|PANIC):", block.says.text, re.M))
        psql.begin(self.typed(block.text), may_fail=bool(wants_error))
        if block.elsewhere and not self.settled(psql):
            return
        status, said, line = psql.end(self.patience())
        if wants_error:
            if status == 0 and not re.search(r"^(ERROR|FATAL|PANIC):", said, re.M):
                raise block.failed("was to fail, and did not", self.back(said))
            if block.says:
                self.compare(block, block.says.text, said)
            return
        self.judge(block, status, said, line)

    def judge(self, block, status, said, line):
        if status is None:
            raise block.failed(f"is not over after {self.patience()} s (if it goes on, the text before it says 'another terminal', or the line ends in &)", self.back(said))
        if status != (block.fails or 0):
            raise block.failed(f"ended with status {status}{f', and not {block.fails}' if block.fails else ''}", self.back(said), line)
        if block.says is not None:
            self.compare(block.says, block.says.text, said)
        text, at = self.back(said).replace("\r", ""), 0
        for pattern in block.patterns:
            found = re.compile(pattern, re.M).search(text, at)
            if found is None:
                raise block.failed(f"{pattern!r} is not in what it said{', after what was found before it' if at else ''} ({self.page.given.path.name}: SAYS)", text)
            at = found.end()

    def compare(self, block, wanted, said):
        wanted, came = self.alike(wanted), self.alike(self.back(said))
        dropped = [pattern for pattern in DROPPED if not any(re.fullmatch(pattern, line) for line in wanted)]
        came = [line for line in came if not any(re.fullmatch(pattern, line) for pattern in dropped)]
        if not agrees(wanted, came):
            difference = "\n".join(difflib.unified_diff(wanted, came, "on the page", "what was said", lineterm="", n=20))
            raise block.failed(f"this is not what was said:\n{difference}", self.back(said))

    def alike(self, text):
        for pattern, replacement in [*self.page.given.ALIKE, *ALIKE]:
            text = re.sub(pattern, replacement, text, flags=re.M)
        return [line.strip() for line in text.replace("\r", "").splitlines() if line.strip()]

    def check(self, block):
        """What has no name is not used, but it is to be right."""
        kind, text = DATA[block.kind], self.typed(block.text)
        try:
            if kind == "json":
                json.loads(text)
            elif kind == "yaml":
                import yaml  # pylint: disable=import-outside-toplevel

                list(yaml.safe_load_all(text))
            elif kind == "xml":
                import xml.etree.ElementTree as tree  # pylint: disable=import-outside-toplevel

                tree.fromstring(f"<all>{re.sub(r'<[?].*?[?]>', '', text)}</all>")
            elif kind == "toml":
                import tomllib  # pylint: disable=import-outside-toplevel

                tomllib.loads(text)
        except Exception as problem:  # pylint: disable=broad-except
            raise block.failed(f"is no {kind}: {problem}") from problem
        if kind == "ini":
            self.check_ini(block, text)
        elif kind == "nginx":
            self.check_nginx(block, text)

    def check_ini(self, block, text):
        path = self.place / f"block-{block.number}.conf"
        path.write_text(text)
        jobs = {job for job in ("relay", "consume") if re.search(rf"^\[{job} ", text, re.M)}
        if not jobs and block.file:
            try:
                configparser.ConfigParser(interpolation=None).read_string(text if text.lstrip().startswith("[") else f"[all]\n{text}")
            except configparser.Error as problem:
                raise block.failed(f"is no ini: {problem}") from problem
        elif not jobs:
            raise block.failed("has no section [relay ...] or [consume ...], so nothing reads it: name its file")
        for job in jobs:
            done = subprocess.run([BUILD / "cli/pgonce", job, "--check-config", "--config", path], capture_output=True, text=True, check=False, cwd=self.folder, env=self.environment)
            if done.returncode:
                raise block.failed(f"pgonce {job} --check-config refuses it", done.stdout + done.stderr)

    def check_nginx(self, block, text):
        """As a whole file, as what stands in http {}, in server {}, or in location {}: the first that its words allow."""
        database = "" if re.search(r"\bonce_(database|nodes)\b", text) else 'once_database "dbname=app";\n'
        if not re.search(r"^\s*http\s*{", text, re.M):
            if not re.search(r"^\s*(server|upstream|map|limit_req_zone)\b.*{", text, re.M):
                outer = "".join(re.findall(r"^\s*(?:once_database|once_nodes|log_format|proxy_cache_path)\b[^;]*;\n?", text, re.M))
                text = re.sub(r"^\s*(?:once_database|once_nodes|log_format|proxy_cache_path)\b[^;]*;\n?", "", text, flags=re.M)
                inner = text if re.search(r"^\s*location\b", text, re.M) else f"location / {{\n{text}\n}}"
                text = f"{outer}server {{\nlisten 127.0.0.1:{self.ports[8080]};\n{inner}\n}}"
            text = f"http {{\n{database}{text}\n}}\nevents {{}}\n"
        elif "events" not in text:
            text += "events {}\n"
        text = re.sub(r"^load_module.*\n", "", text, flags=re.M)
        # nginx -t opens logs and makes folders: not those of the system, which are root's.
        folders = "".join(f"{kind}_temp_path {self.place}/nginx-{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        text = re.sub(r"^(\s*)http\s*{", rf"\1http {{\naccess_log off;\n{folders}", text, count=1, flags=re.M)
        head = f"load_module {MODULE};\npid {self.place}/nginx.pid;\nerror_log stderr;\n"
        (self.place / f"block-{block.number}.nginx").write_text(head + text)
        done = subprocess.run([PROGRAM, "-t", "-p", self.folder, "-c", self.place / f"block-{block.number}.nginx", "-e", "stderr"], capture_output=True, text=True, check=False, env=self.environment)
        if done.returncode:
            raise block.failed("nginx -t refuses it", done.stderr)

    # What goes on meanwhile

    def processes(self):
        """Those that this page has started, however far they have gone from it."""
        found, mark = [], self.mark.encode()
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def settled(self, terminal):
        """Waits until what was started has nothing to do for a moment, as a reader does. True: the terminal's block is over."""
        until, quiet, last = time.monotonic() + SETTLED_S, 0, None
        while time.monotonic() < until and quiet < 8:
            if terminal is not None and terminal.is_over():
                return True
            now, busy = [], False
            for pid in self.processes():
                try:
                    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                now.append((pid, words[11], words[12]))
                busy = busy or words[0] in "RD"
            quiet = quiet + 1 if now == last and not busy else 0
            last = now
            time.sleep(0.05)
        return terminal is not None and terminal.is_over()

    def look_after(self, block):
        """Nothing that goes on has died."""
        for started, terminal in list(self.others):
            if terminal.open and terminal.is_over():
                status, said, line = terminal.end(0)
                if terminal not in self.stopped and status != (started.fails or 0):
                    raise started.failed(f"has ended with status {status} before {block.page}:{block.line}", self.back(said), line)
                if started.says is not None:
                    self.compare(started.says, started.says.text, said)

    stopped = ()

    def interrupted(self, block):
        if not re.search(r"\bCtrl[-+]C\b|\^C", "\n".join(block.between)):
            return
        alive = [terminal for _, terminal in self.others if terminal.open and not terminal.is_over()]
        if not alive:
            raise block.failed("the text before it says Ctrl-C, and no other terminal is busy")
        self.stopped = (*self.stopped, alive[-1])
        for child in descendants(alive[-1].process.pid):
            try:
                os.kill(child, signal.SIGINT)
            except ProcessLookupError:
                pass
        until = time.monotonic() + 20
        while not alive[-1].is_over() and time.monotonic() < until:
            time.sleep(0.02)
        if not alive[-1].is_over():
            raise block.failed("what the other terminal runs does not end by Ctrl-C", self.back(alive[-1].said()))

    # The end

    def end(self):
        if (self.folder / ".pgonce").exists():
            subprocess.run([BUILD / "cli/pgonce", "dev", "--stop"], cwd=self.folder, env=self.environment, capture_output=True, check=False, timeout=60)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            left = self.processes()
            for pid in left:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    pass
            until = time.monotonic() + 5
            while any(map(is_running, left)) and time.monotonic() < until:
                time.sleep(0.02)
        for each in [self.shell, self.psql, *self.closing, *(terminal for _, terminal in self.others)]:
            if each is not None:
                each.process.wait(10)
                try:
                    each.process.stdin.close()
                except OSError:
                    pass
        self.tidy_server()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.place, ignore_errors=True)

    def tidy_server(self):
        """The next page finds it as this one has: without the databases, roles, slots and settings that it has made."""
        if self.server.process is None or self.server.process.poll() is not None:
            return
        if self.database is not None:
            self.database.close()
        connection = self.server.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
            cursor.execute("SELECT slot_name FROM pg_replication_slots")
            for (slot,) in cursor.fetchall():
                cursor.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            _, databases = self._made(cursor)
            for name in databases - self.databases:
                cursor.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", (name,))
                for (gid,) in cursor.fetchall():
                    other = self.server.connect(name)
                    other.cursor().execute("ROLLBACK PREPARED %s", (gid,))
                    other.close()
                cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
            roles, _ = self._made(cursor)
            for name in roles - self.roles:
                try:
                    cursor.execute(f'DROP OWNED BY "{name}"')
                    cursor.execute(f'DROP ROLE "{name}"')
                except psycopg2.Error as kept:
                    print(f"{self.page.page}: {kept}", file=sys.stderr)
            cursor.execute("ALTER SYSTEM RESET ALL")
            cursor.execute("SELECT pg_reload_conf()")
        connection.close()

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()
        for port in self.ports.values():
            give_back(port)


def descendants(pid):
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += [*descendants(int(child)), int(child)]
    return found


def agrees(wanted, came):
    """Line by line; "..." stands for any text in a line, or alone for any lines."""

    @functools.lru_cache(maxsize=None)
    def from_(i, j):
        if i == len(wanted):
            return j == len(came)
        if wanted[i] == "...":
            return from_(i + 1, j) or (j < len(came) and from_(i, j + 1))
        if j == len(came):
            return False
        pattern = ".*".join(re.escape(piece) for piece in wanted[i].split("..."))
        return re.fullmatch(pattern, came[j]) is not None and from_(i + 1, j + 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 4 * (len(wanted) + len(came)) + 200))
    try:
        return from_(0, 0)
    finally:
        sys.setrecursionlimit(limit)
