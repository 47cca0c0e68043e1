# SPDX-License-Identifier: PostgreSQL
"""pgonce_native in a server whose processes run under valgrind's memcheck: no value that was never set decides anything in what the library calls, and
nothing is read or written outside. What PostgreSQL itself does (it writes padding that was never set) has no frame of the library on its stack, and does
not count. Debian's PostgreSQL does not tell valgrind of palloc: an overrun within one of its blocks is not seen here."""

import os
import re
import shutil
import subprocess

import pytest

from harness.native import install_native, library, mutant
from harness.postgres import Postgres, clean_environment, private_directory, unprivileged

from . import test_batches
from .sessions import ANSWERED, Days, Session
from .test_native import STORIES

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not library().exists(), reason="native/ is not built: no headers of a server"),
    pytest.mark.plain("a sanitized library does not run under valgrind"),
]
OF_THE_LIBRARY = re.compile(r"pgonce_native\.so|\((hook|known|store|arguments|attempt|claim|batch|reports|outbox|salt)\.c:\d+\)")
OF_SQL = re.compile(r"plpgsql_call_handler|fmgr_security_definer|fmgr_sql")  # from there on a stack only says who has called


class Checked(Postgres):
    """A server that runs under memcheck."""

    def start(self, wait=True):
        valgrind = ["valgrind", "--quiet", "--tool=memcheck", "--trace-children=yes", "--leak-check=no", "--error-limit=no", "--num-callers=40",
                    f"--log-file={self.directory}/memcheck.%p"]  # fmt: skip
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "QUIT", "--", *valgrind, str(self.bindir / "postgres"), "-D", str(self.data)],
                                            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=clean_environment(), cwd="/tmp", **unprivileged()[0])  # fmt: skip
        if wait:
            self.wait_ready()
        return self

    def errors(self):
        """Those with a frame of the library."""
        texts = [path.read_text(errors="replace") for path in self.directory.glob("memcheck.*")]
        return [error for text in texts for error in re.split(r"\n==\d+== \n", text) if OF_THE_LIBRARY.search(OF_SQL.split(error)[0])]


@pytest.fixture
def folder():
    made = private_directory("pgonce-native-")
    yield made
    shutil.rmtree(made)


def checked(path, first=False):
    """What memcheck has found; first: by the first story in which it finds something."""
    assert shutil.which("valgrind"), "run tools/setup.sh"
    with Postgres() as plain:
        template = plain.new_database()
        install_native(template, path)
        template.close()
        with Checked(settings={"statement_timeout": "0"}, copy_of=plain) as server:
            session = Session(template.__class__(server, template.name))
            batches = {**test_batches.STORIES, **test_batches.REPORTS, **test_batches.MESSAGES}
            stories = [*STORIES.values(), *(story for name, story in batches.items() if not name.startswith("as many"))]  # 10,000 take too long here
            for number, story in enumerate(stories):
                days = Days()
                for transaction in story:
                    session("BEGIN")
                    for statement in transaction:
                        if isinstance(session.outcome(days(statement).replace("'s', ", f"'s{number}', ")), tuple):
                            break
                    session("ROLLBACK" if session.connection.info.transaction_status == 3 else "COMMIT")
                if first and server.errors():
                    return server.errors()
            assert session.value(ANSWERED) > 50
            assert "memcheck" in os.readlink(f"/proc/{session.connection.info.backend_pid}/exe")
            session.connection.close()
            server.stop()
            return server.errors()


def test_valgrind_finds_nothing_in_the_library(folder):
    found = checked(mutant(folder))
    assert not found, "\n\n".join(found)[:8000]


def test_valgrind_finds_a_value_that_was_never_set(folder):
    """So that the test above can fail."""
    path = mutant(folder, ("store.c", "memset(row_nulls, true, sizeof(bool) * (size_t)natts);", ""), ("store.c", "row_nulls[at] = nulls[i];", "if (nulls[i]) row_nulls[at] = true;"))
    assert checked(path, first=True)
