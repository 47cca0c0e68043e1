# SPDX-License-Identifier: PostgreSQL
"""make site: every page is in it and in its search, links lead somewhere, and a browser fetches nothing from elsewhere."""

import html.parser
import json
import shutil
import subprocess
import urllib.parse

import pytest

from harness.postgres import ROOT

pytestmark = pytest.mark.skipif(shutil.which("mkdocs") is None, reason="there is no MkDocs here")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.leads, self.loads, self.ids = [], [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs["id"]} if attrs.get("id") else set()
        self.leads += [attrs["href"]] if tag == "a" and attrs.get("href") else []
        self.loads += [attrs[name] for name in ("src", "href") if tag in ("script", "img", "link", "iframe") and attrs.get(name)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    subprocess.run(["/usr/bin/python3", ROOT / "tools/site.py", place], check=True, timeout=300)
    return place


@pytest.fixture(scope="module")
def made(site):
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_in_the_site_and_in_its_search(site, made):
    found = {entry["location"].partition("#")[0] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    for page in PAGES:
        name = page.relative_to(ROOT).with_suffix(".html") if page.name != "README.md" else page.relative_to(ROOT).with_name("index.html")
        assert site / name in made, name
        assert str(name) in found, name
    assert len(PAGES) > 40


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor(site, made):
    for path, page in made.items():
        for link in page.leads:
            place = urllib.parse.urlsplit(link)
            if place.scheme or place.netloc:
                continue
            there = (path.parent / urllib.parse.unquote(place.path)).resolve() if place.path else path
            there = there / "index.html" if there.is_dir() else there
            assert there.exists(), f"{path.relative_to(site)}: {link}"
            if place.fragment and there in made and not place.fragment.startswith("__"):
                assert urllib.parse.unquote(place.fragment) in made[there].ids, f"{path.relative_to(site)}: {link}"


def test_a_browser_fetches_nothing_from_elsewhere(made):
    for path, page in made.items():
        for link in page.loads:
            place = urllib.parse.urlsplit(link)
            assert not place.netloc and (path.parent / place.path).exists(), f"{path}: {link}"


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path):
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    for name in listed:
        if name and (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs/why/faq.md"
    page.write_text(page.read_text() + "\n[nowhere](nowhere.md)\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    done = subprocess.run(["/usr/bin/python3", tmp_path / "tools/site.py", tmp_path / "site"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1 and "nowhere.md" in done.stderr and "faq.md" in done.stderr
