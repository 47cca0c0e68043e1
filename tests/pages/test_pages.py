# SPDX-License-Identifier: PostgreSQL
"""Every block of docs/start/, docs/how/ and the README, as printed, in order (runner.py). A page with blocks of a language runs once for each language, on the
machine of that client's tests: PGONCE_PAGES="node go" (or "all") says which; without it, what needs none of them."""

import contextlib
import os
import re

import pytest

from harness.extension import extended_server
from harness.native import library as native_library
from harness.postgres import ROOT, Postgres

from .needs import left_out
from .runner import ELSEWHERE, HERE, Page, PageFailed, Run, beside, pages

VERBOSE = os.environ.get("PGONCE_PAGES_VERBOSE") == "yes"
pytestmark = pytest.mark.plain("what pages type starts nginx and other programs, into which nothing sanitized is loaded")
CHOSEN = os.environ.get("PGONCE_PAGES", "").split()


def cases():
    """(page, language or None)."""
    found = []
    for path in pages():
        try:
            page = Page(path)
        except AssertionError:
            found.append((path, None))  # where it says why
            continue
        wanted = page.languages if "all" in CHOSEN else [language for language in page.languages if language in CHOSEN]
        found += [(path, language) for language in wanted]
        if not CHOSEN and any(block.kind != "output" and not block.shown and not block.language for block in page.blocks):
            found.append((path, None))
    return found


def called(path, language):
    return path.removeprefix("docs/").removesuffix(".md") + (f"-{language}" if language else "")


@pytest.mark.parametrize(("path", "language"), [pytest.param(*case, id=called(*case)) for case in cases()])
def test_the_page(path, language, server):
    try:
        page = Page(path)
        with contextlib.ExitStack() as stack:
            if page.given.EXTENSIONS:
                if not native_library().exists():
                    left_out("pgonce_native is not built")
                server = stack.enter_context(extended_server(native=True))
            elif page.given.SETTINGS:
                server = stack.enter_context(Postgres(settings=page.given.SETTINGS))
            stack.enter_context(Run(page, server, language, verbose=VERBOSE)).all()
        why = None
    except PageFailed as failed:
        why = str(failed)
    if why:
        pytest.fail(why, pytrace=False)


def test_what_is_given_is_given_to_a_page():
    here = {beside("given", page, ".x").with_suffix("") for page in pages()}
    for path in (HERE / "given").rglob("*.*"):
        assert "__pycache__" in path.parts or path.with_suffix("") in here, path


@pytest.mark.parametrize("folder", ELSEWHERE)
def test_a_page_that_is_typed_elsewhere_is(folder):
    test = (ROOT / ELSEWHERE[folder]).read_text()
    for path in (ROOT / folder).glob("*.md"):
        assert f'("{path.stem}", ' in test or f'("{path.stem}",' in test, path


@pytest.mark.parametrize("path", pages())
def test_what_is_only_shown_runs_elsewhere(path):
    """In a test that the reason names."""
    for block in Page(path).blocks:
        if block.shown:
            named = re.findall(r"(?:docs|tests)/[\w./-]*\w", block.shown)
            assert named and all((ROOT / each).exists() for each in named), f"{block}: {block.shown}"
