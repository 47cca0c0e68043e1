# SPDX-License-Identifier: PostgreSQL
"""The console's templates as files: what a strict Content-Security-Policy, a keyboard and a screen reader need of each of them. That they
render is in test_render.c and test_console.py; how they look and work, in test_browser.py."""

import html.parser
import pathlib
import re

import pytest

CONSOLE = pathlib.Path(__file__).resolve().parents[2] / "console"
PAGES = sorted((CONSOLE / "pages").glob("*.html"))
WHOLE = [page for page in PAGES if not page.name.startswith("_")]
TAG = re.compile(r"\{\{\s*([#^/>!]?)(.*?)\}\}", re.S)
VOID = {"meta", "link", "input", "br"}
named = pytest.mark.parametrize("page", WHOLE, ids=lambda page: page.stem)


def whole(path, depth=0, open_page=None):
    """A template with its partials in it; comments are left out, every other tag stays as a word, and both sides of a condition."""
    assert depth < 5, path
    open_page = open_page or path.stem

    def instead(tag):
        kind, name = tag.group(1), tag.group(2).strip()
        if kind == ">":
            return whole(path.with_name(f"{name}.html"), depth + 1, open_page)
        return "" if kind in ("#", "^", "/", "!") else f"[{name}]"

    text = path.read_text()
    if depth == 1 and open_page == "find":  # it has the search box itself
        text = re.sub(r"\{\{\^console\.at\.find\}\}.*?\{\{/console\.at\.find\}\}", "", text, flags=re.S)
    return TAG.sub(instead, text)


class Element(dict):
    """Its attributes."""

    def __init__(self, tag, attributes, around):
        super().__init__(attributes)
        self.tag, self.around, self.text = tag, around, ""

    def __repr__(self):
        return f"<{self.tag} {dict(self)}>"


class Reader(html.parser.HTMLParser):
    """The elements of a page, each with its attributes, its text and the elements around it."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(whole(page))
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes if name != "aria-current"]  # one of two, by the page
        assert len(set(names)) == len(names), f"an attribute twice in {tag} {attributes}"
        self.elements.append(Element(tag, attributes, list(self.open)))
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag, attributes):
        self.elements.append(Element(tag, attributes, list(self.open)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1].tag == tag, f"</{tag}> at {self.getpos()} ends {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, text):
        for element in self.open:
            element.text += text

    def all(self, *tags):
        return [element for element in self.elements if element.tag in tags]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_template_has_no_inline_script_or_style(page):
    text = page.read_text()
    assert not re.search(r"<[^>]*\s(?:style|on[a-z]+)\s*=", text), "the Content-Security-Policy forbids style= and on...="
    assert "<style" not in text and not re.search(r"<script(?! src=\"/assets/console\.js\" defer>)", text)
    assert "javascript:" not in text
    assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", text), "an address elsewhere"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_value_is_in_an_attribute_only_in_quotes_and_in_an_address_only_encoded(page):
    text = page.read_text()
    assert not re.search(r"\s[\w-]+=\{\{", text), "an attribute without quotes"
    for address in re.findall(r'(?:href|action)="([^"]*)"', text):
        assert not address.startswith("{{") or address.startswith("{{console.path}}"), f"a value that chooses the scheme: {address}"
        for kind, name in TAG.findall(address):
            assert kind in ("#", "^", "/") or name.endswith("|url") or name == "console.path", f"not encoded in {address}: {name}"


@named
def test_a_page_has_one_heading_a_title_and_the_landmarks(page):
    read = Reader(page)
    assert read.all("html")[0]["lang"] == "en"
    titles = [element for element in read.all("title") if element.around[-1].tag == "head"]  # a picture has others
    assert len(titles) == 1 and titles[0].text.strip().endswith("- pgonce")
    assert len(read.all("h1")) == 1 and len(read.all("main")) == 1 and len(read.all("nav")) == 1 and len(read.all("footer")) == 1
    assert read.all("nav")[0]["aria-label"]
    skip = read.all("a")[0]
    assert skip["href"] == "#main" and read.all("main")[0]["id"] == "main", "the first link skips to the page"
    levels = [int(element.tag[1]) for element in read.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:])), levels


@named
def test_each_field_has_a_label_and_each_button_a_word(page):
    read = Reader(page)
    labels = {element["for"] for element in read.all("label")}
    for field in read.all("input", "select", "textarea"):
        assert field.get("type") == "hidden" or field.get("id") in labels or field.get("aria-label"), field
    for link in read.all("a", "button", "summary"):
        assert link.text.strip() or link.get("aria-label"), link
    ids = [element["id"] for element in read.elements if "id" in element]
    assert len(ids) == len(set(ids)), sorted(name for name in ids if ids.count(name) > 1)
    for element in read.elements:
        for name in ("aria-labelledby", "aria-describedby", "list"):
            assert element.get(name) is None or element[name] in ids, element
        assert element.tag != "label" or element["for"] in ids, element


@named
def test_a_table_has_a_caption_heads_with_a_scope_and_cells_that_know_their_column(page):
    read = Reader(page)
    for table in read.all("table"):
        within = [element for element in read.elements if any(around is table for around in element.around)]
        assert [element.tag for element in within].count("caption") == 1
        heads = [element for element in within if element.tag == "th"]
        assert heads and all("scope" in head or "aria-hidden" in head for head in heads)
        for cell in within:
            assert cell.tag != "td" or "data-label" in cell or cell.get("class") == "none", cell


@named
def test_each_form_that_changes_something_is_posted_with_a_token(page):
    read = Reader(page)
    for form in read.all("form"):
        within = [element for element in read.elements if any(around is form for around in element.around)]
        tokens = [element for element in within if element.get("name") == "token"]
        assert len(tokens) == (form.get("method") == "post"), form
        assert any(element.tag == "button" for element in within), "it needs a button: there may be no script"


def test_a_picture_is_for_eyes_and_its_numbers_are_text_beside_it():
    for page in WHOLE:
        read = Reader(page)
        for picture in read.all("svg"):
            hidden = [picture, *picture.around]
            assert any(element.get("aria-hidden") == "true" for element in hidden), page
    story = (CONSOLE / "pages" / "_timeline.html").read_text()
    assert story.index("<svg") < story.index('<ol class="events">'), "the same as a list"


def test_the_first_page_weighs_less_than_a_hundred_kilobytes():
    """With the largest template; a document's own text comes to that, and is checked in the browser."""
    assets = sum(path.stat().st_size for path in (CONSOLE / "assets").iterdir())
    assert assets + max(len(whole(page)) for page in WHOLE) < 60000
