#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Checks that no compiler makes: one SPDX line per file, the rules of contract/ and lib/sql/, no SQL in C strings, the width of
comments, links and words in documents, conflict markers of a merge, symbolic links."""
import pathlib
import re
import subprocess
import sys

import contract

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {".c", ".h", ".sql", ".py", ".sh", ".build", ".txt", ".jsonl", ".js", ".ts", ".go", ".java"}
# Functions that may catch errors, which starts a subtransaction, with the reason.
MAY_CATCH = {
    "close_slot": "a slot that cannot close opens again",
    "_move_publish": "a slot_of that no row filter can use needs an advice",
    "lock": "a wait that ends is an answer",
    "keep": "a step of the keeper that fails must not stop the others",
    "set_scope": "only the table itself knows its checks, and a dry run changes nothing",
    "readable": "only a cast tells whether bytes are text, and text is JSON",
    "_archived": "the table of a closed day may be dropped while one waits to look into it",
    "_find_native": "a library that cannot be loaded must not break a call, and is tried once a session",
    "_make_days": "a day that cannot be made now must not break the call that noticed it, once a day",
    "_wait_for_days": "a wait that ends is an answer, and the lock is given back",
    "_ask": "a verify function that raises must not stop the recovery of the others",
}
# Folders in which comments may be wider: they show the output of programs.
WIDE_COMMENTS = ("tests/",)
COMMENT_COLUMNS = 100
# Words that handwritten pages and the help do not use, with their replacements.
WORDS = {"forgotten": "deleted", "mend": "fix", "mended": "fixed", "can not": "cannot", "as installed": "by default", "of which nobody knows": "with unknown outcome"}
# Pages generated from other folders, or history.
OTHER_WORDS = ("docs/reference/c.md", "docs/reference/configuration.md", "docs/why/how-it-is-tested.md", "docs/reference/metrics.md", "docs/reference/problems.md", "docs/reference/sql.md")
# Files that may look into the text of a message, with the reason.
MAY_READ_MESSAGES = {
    "cli/gateway/nginx.c": "nginx's messages: another program, without codes",
    "cli/report.c": "drops the contract's name before a message that it prints",
    "lib/src/session.c": "libpq gives the SQLSTATE of a refused connection only in its text",
}
# Searching a text, or comparing it with a literal.
COMPARES = re.compile(r"\bstr(?:case)?str\(\s*([^;]*?),|\bstrn?(?:case)?cmp\(\s*([^;]*?),\s*\"")
MESSAGE = re.compile(r"[eE]rrorMessage\(|PG_DIAG_MESSAGE|once_error_(?:message|detail|hint)\(|failure(?:->|\.)text|(?:message|problem|said|hint)$")
problems = []


def problem(path, text):
    problems.append(f"{path}: {text}")


def listed():
    """All files that are committed, or could be."""
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    return [pathlib.Path(name) for name in dict.fromkeys(out.split("\0")) if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink())]


# The lines that git writes around the sides of a conflict. A line of = is not included: it is a heading in some texts, and always between two of these.
MARKER = re.compile(rb"^(?:<{7}|\|{7}|>{7})(?: .*)?\r?$", re.M)


def check_markers(path, content):
    """In files of any kind: JSON with a marker fails far from its cause, and a corpus does not fail at all."""
    for found in MARKER.finditer(content):
        line = content.count(b"\n", 0, found.start()) + 1
        problem(f"{path}:{line}", "has a conflict marker of a merge")


def check_head(path, text):
    if path.suffix in CODE - {".jsonl"} and path.name not in ("requests.txt",):
        if "SPDX-License-Identifier: PostgreSQL" not in "\n".join(text.split("\n")[:3]):
            problem(path, "no SPDX line in its first three lines")


def check_literals(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("--") and any("\\" in literal for literal in re.findall(r"(?<![eE\w])'[^']*'", line)):
            problem(f"{path}:{number}", "a backslash in a literal has another meaning if standard_conforming_strings is off: write E'...'")


def check_function(path, text):
    names = set(re.findall(r"^CREATE (?:FUNCTION|PROCEDURE) once(?:_job)?\.(\w+)\(", text, re.M))
    # bind and unbind count as one function, and so do the three forms of fingerprint.
    if len(names) != 1 and names != {"bind", "unbind"}:
        problem(path, f"holds {sorted(names)}: one function per file")
    elif path.stem not in names:
        problem(path, "is not named after its function")
    schema = contract.schema_of(text)
    if not re.search(rf"^-- {schema}\.", text, re.M):
        problem(path, "has no block comment that begins with the function's name")
    if schema != "once" and path.stem.startswith("_"):
        problem(path, "is private, and all private functions are in schema once")
    for body in re.findall(r"CREATE (?:FUNCTION|PROCEDURE).*?(?=^CREATE FUNCTION|\Z)", text, re.S | re.M):
        if "SECURITY DEFINER" in body and "SET search_path = pg_catalog, pg_temp" not in body:
            problem(path, "SECURITY DEFINER without a fixed search_path")
        if re.search(r"\bEXCEPTION\s+WHEN\b", body) and path.stem not in MAY_CATCH:
            problem(path, "an EXCEPTION block starts a subtransaction")
    # Without COLLATE "C" a comparison of a key column does not use the index.
    for column in ("tenant", "scope", "key"):
        for line in re.findall(rf"\b[ia]\.{column} = (?!p\.|d\.|stored\.)([^\n]*)", text):
            if not re.match(r"[\w.\[\]]+ COLLATE \"C\"", line):
                problem(path, f"compares {column} without COLLATE \"C\": {line[:60]}")


def check_names(path, text):
    """In a CREATE FUNCTION of a plain dump, psql takes the word begin for the start of a body, and reads the rest of the dump as one statement."""
    text = re.sub(r"\$\$.*?\$\$|--[^\n]*|'[^']*'", "", text, flags=re.S)      # bodies, comments and literals are ignored
    for word in re.findall(r"\b(begin|end|case|atomic)\b(?=\s*\(|\s+[a-z])", re.sub(r"\b(CASE|END)\b", "", text)):
        problem(path, f"names something {word}: psql cannot read a dump of that")


def check_c(path, text):
    if str(path).startswith(("tests/", "examples/", "bench/")):
        return
    for number, line in enumerate(text.split("\n"), 1):
        # Commands that begin or end transactions, and DEALLOCATE, have no parameters and are allowed.
        if re.search(r'(?<!\\)"\s*(SELECT|INSERT|UPDATE|DELETE|MERGE|WITH|CREATE(?! EXTENSION pgonce)|ALTER(?! EXTENSION pgonce)|DROP|SET|LOCK|GRANT|CALL|COPY|DO)\s', line):
            problem(f"{path}:{number}", "SQL in a C string: its home is a .sql file")


def check_comments(path, text):
    if str(path).startswith(WIDE_COMMENTS):
        return
    # Literals first, so that a literal with comment characters is not taken for a comment.
    for match in re.finditer(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/', text, re.S):
        start = text.rfind("\n", 0, match.start()) + 1
        for line in text[start:match.end()].expandtabs(4).split("\n"):
            if match[0].startswith("/*") and len(line) > COMMENT_COLUMNS:
                problem(f"{path}:{text.count(chr(10), 0, match.start()) + 1}", f"a comment of more than {COMMENT_COLUMNS} columns")
                break


def check_words(path, text):
    if path.parts[0] != "docs" or str(path) in OTHER_WORDS:
        return
    for word in re.findall(rf"\b({'|'.join(WORDS)})\b", re.sub(r"`[^`\n]*`", "", text)):
        problem(path, f"says {word!r}: write {WORDS[word]!r}")


def check_messages(path, text):
    """A program must not decide by the wording or language of a message: there are codes for that."""
    if str(path).startswith(("tests/", "examples/", "bench/")) or str(path) in MAY_READ_MESSAGES:
        return
    for found in COMPARES.finditer(text):
        if MESSAGE.search((found[1] or found[2] or "").strip()):
            number = text.count("\n", 0, found.start()) + 1
            problem(f"{path}:{number}", "decides by the text of a message: use its code, or say in tools/check_files.py why not")


# What one file of the gateway decides: who else set it would decide a second time. By member of gate_attempt.
DECIDED_IN = {
    "step": "gateway/ngx_http_once_step.c",
    "problem": "gateway/ngx_http_once_step.c",
    "report.kind": "gateway/ngx_http_once_report.c",
    "report.decided": "gateway/ngx_http_once_report.c",
}


def check_decided(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        for member, home in DECIDED_IN.items():
            if str(path) != home and re.search(rf"\battempt->{re.escape(member)}\s*=[^=]|&attempt->{re.escape(member)}\b", line):
                problem(f"{path}:{number}", f"sets an attempt's {member}: only {home} does")


def check_document(path, text):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        if not (ROOT / path.parent / target).exists():
            problem(path, f"links to {target}, which is not there")


def check_claims(path, text):
    """The tests (tests/x.py::test_y) and sources that a document names must exist."""
    for file, _, name in re.findall(r"`((?:tests/[\w/]+|(?:contract|lib|gateway|relay|consume)/[\w/]+(?=\.))(?:\.\w+)?)(::(\w+))?`", text):
        if not (ROOT / file).exists():
            problem(path, f"names {file}, which is not there")
        elif name and not re.search(rf"\b{name}\(", (ROOT / file).read_text()):
            problem(path, f"names {file}::{name}, which is not there")
    # For clients, also a case of the suite, or a test whose name is a sentence.
    for file, name in re.findall(r"`((?:clients|spec)/[\w/.-]+\.(?:py|go|java|js|json))::([^`]+)`", text):
        if not (ROOT / file).exists() or not re.search(rf"\b{re.escape(name)}(?![\w-])", (ROOT / file).read_text()):
            problem(path, f"names {file}::{name}, which is not there")


def main():
    for path in listed():
        if (ROOT / path).is_symlink():
            problem(path, "is a symbolic link, which some archives and systems turn into a file with the name of its target: make it where it is needed")
            continue
        content = (ROOT / path).read_bytes()
        check_markers(path, content)
        # A fuzz target's corpus is bytes, not text.
        if path.name == "LICENSE" or path.suffix in (".png", ".json") or str(path).startswith("tests/fuzz/corpus/"):
            continue
        text = content.decode()
        check_head(path, text)
        if path.suffix == ".sql" and path.parts[0] not in ("tests", "bench", "examples"):
            check_literals(path, text)
        if ROOT / path in contract.functions():
            check_function(path, text)
        if path.parts[0] == "contract" and path.suffix == ".sql":
            check_names(path, text)
        if path.suffix in (".c", ".h"):
            check_c(path, text)
            check_comments(path, text)
            check_messages(path, text)
            if path.parts[0] == "gateway":
                check_decided(path, text)
        if path.suffix == ".md":
            check_document(path, text)
            check_claims(path, text)
            check_words(path, text)
        for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X "):
            if word in text:
                problem(path, f"holds an unfinished place ({word.strip()})")
        # tests/contract/upgrade/ holds the tagged versions of the contract, byte for byte.
        if path.suffix == ".sql" and not str(path).startswith("tests/contract/upgrade/") and any(len(line) > 140 for line in text.split("\n")):
            problem(path, "has lines of more than 140 characters")
    for each in problems:
        print(each)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
