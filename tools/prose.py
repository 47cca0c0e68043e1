#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Counts turns of phrase that make a text hard to read, in what people read: pages, comments, messages and help. tools/prose.json has
how many there may be; the numbers only go down.

--check fails where one went up, or went down and is not noted. --write notes the present ones, and raises none. --show NAME lists where."""

import argparse
import json
import pathlib
import re
import sys

import check_files

NOTED = check_files.ROOT / "tools" / "prose.json"
# name: (what to write instead, pattern)
PATTERNS = {
    "clause as subject": ("name the thing: 'a message that fails is parked', not 'what fails is parked'",
                          r"(?:^|(?<=[.:;] ))(?:What|Who|Whom|Whose)\b(?! (?:is|are|does|do|to|happens|if)\b[^.]*\?)(?=[^.?\n]*[.,;:\n])"),  # fmt: skip
    "clause as object": ("name the thing: 'of the stored answer', not 'of what is stored'",
                         r"\b(?:of|for|with|by|to|from|on|in|at|than|beside) (?:what|who|whom) (?:is|was|are|were|it|they|has|have|had|there|can|may)\b"),
    "where for if": ("'if' or 'when': 'if there is no scope', not 'where there is no scope'",
                     r"(?:^|(?<=[.:;,] ))[Ww]here (?:it|there|that|this|these|a|an|no|none|one|nobody|nothing|neither|they) "),
    "is none": ("'there is no policy', 'it is not a key'", r"\b(?:is|are|was|be|has|have|had) none\b"),
    "of one's own": ("'its own policy', 'automatically'", r"\bby (?:it|them|him)sel(?:f|ves)\b|\bof (?:one's|its|their|his|your|our) own\b|\bof (?:yours|ours|theirs)\b"),
    "nobody": ("say who: 'no attempt', 'no client'", r"\b[Nn]obody\b"),
    "whoever": ("'a client that', 'any process that'", r"\b(?:[Ww]ho|[Ww]hat|[Ww]hich)ever\b"),
    "he": ("'the user', 'the caller', 'it', 'they'", r"\b(?:[Hh]e|[Hh]im|[Hh]is|[Hh]imself)\b"),
    "is to be": ("'must be', 'should be'", r"\b(?:is|are|was|were) to be\b|\bha(?:s|ve) (?:not )?to look\b|\bwas not to be had\b"),
    "such a one": ("name it", r"\bsuch (?:a )?ones?\b|\bone such\b|\bnone other\b|\bas ever\b|\bso many as\b|\blikewise\b"),
    "one behind a preposition": ("name it: 'a scope without a policy', not 'one without one'", r"\b(?:of|with|without|for|to|by|in) (?:the )?one (?:that|who|which|whose|of|with)\b"),
}  # fmt: skip
CODE = {".c", ".h", ".sql", ".py", ".js", ".ts", ".go", ".java", ".sh", ".json"}
# Tests and measurements are read by those who change them; generated files say what their sources say.
NOT_THESE = ("tests/", "bench/", "model/", "spec/cases/", "spec/vectors/", "docs/why/how-it-is-tested.md", "CHANGELOG.md")
FENCE = re.compile(r"^```.*?^```", re.S | re.M)


def pages(path):
    return path.suffix == ".md"


def prose(path):
    """Its text without what is code in a page."""
    text = (check_files.ROOT / path).read_text(encoding="utf-8")
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)) if pages(path) else text


def counted():
    return [path for path in check_files.listed()
            if (pages(path) and str(path) not in check_files.OTHER_WORDS or path.suffix in CODE) and "/test" not in str(path)
            and not str(path).startswith(NOT_THESE) and path.name not in ("package-lock.json", "prose.json", "prose.py")]  # fmt: skip


def count():
    """{"pages" or "code": {name: how many}}."""
    found = {"pages": dict.fromkeys(PATTERNS, 0), "code": dict.fromkeys(PATTERNS, 0)}
    for path in counted():
        text = prose(path)
        for name, (_, pattern) in PATTERNS.items():
            found["pages" if pages(path) else "code"][name] += len(re.findall(pattern, text, re.M))
    return found


def compare(noted, now):
    """What is wrong, a line each."""
    for kind, counts in now.items():
        for name, number in counts.items():
            most = noted[kind].get(name, 0)
            if number > most:
                yield f"{kind}: {number} times '{name}', and there may be {most}: write {PATTERNS[name][0]} (tools/prose.py --show '{name}')"
            elif number < most:
                yield f"{kind}: '{name}' went down from {most} to {number}: note it with tools/prose.py --write"


def show(name):
    for path in counted():
        text = prose(path)
        for match in re.finditer(PATTERNS[name][1], text, re.M):
            start = text.rfind("\n", 0, match.start()) + 1
            print(f"{path}: {text[start:].partition(chr(10))[0].strip()[:160]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--show", choices=PATTERNS, metavar="NAME")
    options = parser.parse_args()
    if options.show:
        return show(options.show)
    now = count()
    if options.write:
        noted = json.loads(NOTED.read_text(encoding="utf-8")) if NOTED.exists() else now
        now = {kind: {name: min(number, noted[kind].get(name, number)) for name, number in counts.items()} for kind, counts in now.items()}
        NOTED.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
        return None
    if options.check:
        problems = list(compare(json.loads(NOTED.read_text(encoding="utf-8")), now))
        print("\n".join(problems))
        return 1 if problems else 0
    print(json.dumps(now, indent=2))
    return None


if __name__ == "__main__":
    sys.exit(main())
