# SPDX-License-Identifier: PostgreSQL
"""The console in a real browser: three tasks of a new user, decisions by keyboard alone, a narrow window, dark and light, hostile names,
two people at once, a hundred thousand intents, no JavaScript, and a database that goes away. With PGONCE_SCREENSHOTS=DIR it writes the
pictures of docs/how/console.md (make test-console SCREENSHOTS=docs/pictures)."""

import contextlib
import os
import re
import urllib.parse

import pytest

from harness.postgres import Postgres

from . import browser as chromium
from .browser import NARROW, WIDE, Browser
from .running import Console
from .shop import IMAGE, KEY, MANY, SCRIPT, TURNED, Shop

PAGES = ("/", "/find", "/find?q=charge%3Ach_17", "/intent?scope=charge&key=order-17", "/intent?scope=charge&key=order-17&body=1", "/intent?scope=charge&key=never",
         "/doubts", "/doubt?scope=charge&key=doubt-3", "/messages", "/scopes", "/scope?scope=charge", "/nothing", "/find?take=x")


@pytest.fixture(scope="module")
def shop():
    chromium.require()
    with Postgres() as server:
        yield Shop(server)


@pytest.fixture(scope="module")
def consoles(shop, tmp_path_factory):
    """Gives the address of a role's console."""
    made = {}
    with contextlib.ExitStack() as running:

        def console(role, *options):
            if (role, options) not in made:
                made[role, options] = running.enter_context(Console(tmp_path_factory.mktemp("console"), shop.db.dsn(role), *options))
            return f"http://127.0.0.1:{made[role, options].port}"

        yield console


@pytest.fixture(scope="module")
def windows(consoles):
    """Gives a person's window; one a person."""
    made = {}

    def window(role, *options):
        if (role, options) not in made:
            made[role, options] = Browser(consoles(role, *options))
        each = made[role, options]
        each.size(WIDE)
        each.colours("light")
        each.script(True)
        each.complaints()
        return each

    yield window
    for each in made.values():
        each.close()


@pytest.fixture
def anna(windows):
    """May decide."""
    return windows("anna", "--allow-decisions")


@pytest.fixture
def ben(windows):
    return windows("ben", "--allow-decisions")


@pytest.fixture
def vera(windows):
    """May look."""
    return windows("vera")


def address(path, **parameters):
    return f"{path}?{urllib.parse.urlencode(parameters)}"


# ---- three tasks, as a new user would go about them: by keyboard alone

def test_a_charge_is_found_by_its_id_and_its_story_says_that_it_happened_once(anna):
    anna.open("/").press("/")
    assert anna.focus()["type"] == "search"
    anna.press("charge:ch_17").submit()
    rows = anna.all("tbody[data-rows] tr")
    assert len(rows) == 1 and "order-17" in rows[0].text, anna.text()
    anna.tab_to(lambda at: at["text"] == "order-17", "link to the intent").submit()
    assert "It took effect once." in anna.text("main")
    assert "charge:ch_17" in anna.text("#answer")
    assert anna.run("return document.querySelectorAll('.story path.dot').length") >= 3, "the picture"
    assert [entry.text for entry in anna.all("ol.events b")][:1] == ["created"]
    assert anna.complaints() == []
    anna.picture("intent")
    anna.colours("dark")
    anna.size(NARROW)
    anna.picture("intent-narrow")


def test_a_doubt_is_decided_by_keyboard_alone_after_a_preview(anna, shop):
    anna.open("/")
    if "PGONCE_SCREENSHOTS" in os.environ:
        anna.until(lambda: anna.all(".chart polyline"), "the first charts: two samples, ten seconds apart")
    anna.picture("overview")
    anna.tab_to(lambda at: at["href"] == "/doubts" and at["text"] == "In doubt", "link to the doubts").submit()
    anna.tab_to(lambda at: at["text"] == "doubt-1", "link to the doubt").submit()
    anna.tab_to(lambda at: at["name"] == "decision", "choice").press(chromium.Keys.SPACE)
    anna.picture("doubt")
    anna.tab_to(lambda at: at["id"] == "d-status", "status").press("201")
    anna.tab_to(lambda at: at["id"] == "d-id", "result").press("ch_18")
    anna.tab_to(lambda at: at["id"] == "d-reason", "reason").press("seen at the provider")
    anna.tab_to(lambda at: at["text"] == "Preview", "button").submit()
    assert "nothing is decided yet" in anna.text("main") and shop.state("doubt-1") == "in_doubt"
    anna.tab_to(lambda at: at["text"] == "Decide", "button").submit()
    assert shop.state("doubt-1") == "succeeded"
    assert "seen at the provider" in anna.text("main")
    decided = shop.db.row("SELECT decided_by, reason FROM once.decision WHERE key = 'doubt-1' AND kind = 'resolve'")
    assert decided.decided_by == "anna" and decided.reason.startswith("seen at the provider")


def test_a_dead_event_is_retried_by_keyboard_alone_after_a_preview(anna, shop):
    anna.open("/")
    anna.tab_to(lambda at: at["href"] and at["href"].startswith("/messages?state=dead"), "link to the dead").submit()
    assert shop.dead[:8] in anna.text("main")
    anna.tab_to(lambda at: at["tag"] == "A" and shop.dead in at["text"], "link to the event").submit()
    assert "503" in anna.text("main")
    anna.tab_to(lambda at: at["name"] == "action", "choice").press(chromium.Keys.SPACE)
    anna.tab_to(lambda at: at["name"] == "reason", "reason").press("the webhook is back")
    anna.tab_to(lambda at: at["text"] == "Preview", "button").submit()
    assert "nothing is changed yet" in anna.text("main")
    assert shop.db.value("SELECT state FROM once.parked_event WHERE event_id = %s", shop.dead) == "dead"
    anna.tab_to(lambda at: at["tag"] == "BUTTON" and at["text"].startswith("Now retry"), "button").submit()
    assert shop.db.value("SELECT state FROM once.parked_event WHERE event_id = %s", shop.dead) == "retrying"


# ---- how it looks and what it says

@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_each_page_fits_can_be_read_and_gives_no_complaint(anna, shop, width, scheme):
    shop.add_hostile()
    anna.size(width)
    anna.colours(scheme)
    for path in PAGES:
        anna.open(path)
        assert anna.run(chromium.TOO_WIDE) == [], path
        assert anna.run(chromium.CONTRAST) == [], path
        ground = anna.run("return getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", ground))) < 60) == (scheme == "dark"), ground
        said = [line for line in anna.complaints() if "Failed to load resource" not in line or "/assets/" in line]  # a 404 is a page here
        assert said == [], path


def test_the_first_page_weighs_less_than_a_hundred_kilobytes(anna):
    anna.open("/")
    assert 10_000 < anna.weight() < 100_000


def test_each_place_that_the_keyboard_reaches_can_be_seen_and_the_first_leads_past_the_head(anna):
    for path in PAGES:
        anna.open(path).press(chromium.Keys.TAB)
        at = anna.focus()
        assert at["href"] == "#main" and at["seen"], (path, at)
        anna.press(chromium.Keys.ENTER)
        assert anna.focus()["id"] == "main", path
        for _ in range(12):
            anna.press(chromium.Keys.TAB)
            at = anna.focus()
            assert at["body"] or at["seen"], (path, at)


def test_hostile_names_are_text_everywhere(anna, shop):
    shop.add_hostile()
    for path in (address("/"), address("/find", q=KEY), address("/find", q=IMAGE), address("/intent", scope=SCRIPT, key=KEY, tenant=TURNED),
                 address("/intent", scope=SCRIPT, key="answered", body=1), address("/doubts"), address("/doubt", scope=SCRIPT, key=KEY, tenant=TURNED),
                 address("/messages"), address("/message", id=shop.hostile, body=1), address("/scopes"), address("/scope", scope=SCRIPT),
                 address("/find", take=IMAGE), address("/find", **{"x" + IMAGE: SCRIPT})):
        anna.open(path)
        assert anna.run("return window.pwned") is None, path
        assert anna.all("main script, main img, [onerror]") == [], path
        assert [line for line in anna.complaints() if "Content Security" in line] == [], path
    for path, words in ((address("/doubts"), (SCRIPT, KEY, IMAGE)), (address("/message", id=shop.hostile), (SCRIPT, IMAGE)),
                        (address("/intent", scope=SCRIPT, key="answered", body=1), (SCRIPT, IMAGE))):
        said = anna.open(path).run("return document.querySelector('main').textContent").replace('\\"', '"')
        assert [word for word in words if word not in said] == [], path


def test_times_are_local_with_utc_as_their_title(anna):
    anna.open("/intent?scope=charge&key=order-17")
    shown = anna.run("const time = document.querySelector('main time'); return [time.textContent, time.title, time.dateTime]")
    hour = anna.run("return new Date(arguments[0]).getHours()", shown[2])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", shown[0]) and int(shown[0][11:13]) == hour
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", shown[1])
    assert "Europe/Berlin" in anna.text("#zone")


# ---- people

def test_the_second_of_two_people_sees_the_decision_of_the_first(anna, ben, shop):
    for person in (anna, ben):
        person.open("/doubt?scope=charge&key=doubt-2")
        person.one("#d-absent" if person is anna else "#d-happened").click()
        person.one("#d-reason").send_keys("anna looked first" if person is anna else "ben thinks so")
        person.one("#decide button.main").click()
        person.until_says("nothing is decided yet", "main")
    anna.one("main button.main").click()
    anna.until(lambda: shop.state("doubt-2") == "failed_retryable", "anna's decision")
    ben.one("main button.main").click()
    ben.until_says("anna", "main")
    assert "anna looked first" in ben.text("main") and "Nothing was decided" in ben.text("main")
    assert shop.state("doubt-2") == "failed_retryable"


def test_a_person_who_may_only_look_finds_no_form(vera, shop):
    for path in ("/doubt?scope=charge&key=doubt-3", "/messages", "/scope?scope=charge"):
        vera.open(path)
        assert vera.all("form[method=post] button") == [], path
        assert "may not" in vera.text("main"), path
    assert shop.state("doubt-3") == "in_doubt"


def test_the_verify_function_is_asked_and_fills_in_the_form(anna):
    anna.open("/doubt?scope=refund&key=refund-1")
    assert "happened" in anna.text("[aria-labelledby=h-verify]")
    assert anna.one("#d-id").get_attribute("value") == "rf_1" and "rf_1" in anna.one("#d-body").get_attribute("value")


# ---- without JavaScript, and without a database

def test_without_javascript_a_doubt_is_found_and_decided(anna, shop):
    anna.script(False)
    anna.open("/doubts")
    anna.one("a[href*='key=doubt-4']").click()
    anna.one("#d-never").click()
    anna.one("#d-reason").send_keys("the order was cancelled")
    anna.one("#decide button.main").click()
    anna.until_says("nothing is decided yet", "main")
    anna.one("main button.main").click()
    anna.until(lambda: shop.state("doubt-4") == "failed_final", "the decision")
    anna.open("/intent?scope=charge&key=doubt-4")
    assert re.search(r"\d\d:\d\d:\d\dZ", anna.text("main")), "without the script times are UTC"


def test_among_a_hundred_thousand_intents_a_search_goes_on_by_itself_until_it_has_read_all(anna, shop):
    shop.fill()
    anna.open("/find?scope=bulk&take=50")
    assert len(anna.all("tbody[data-rows] tr")) == 50
    anna.run("document.querySelector('a[rel=next]').focus()")
    anna.submit()
    assert len(anna.all("tbody[data-rows] tr")) == 50
    anna.open(f"/find?q=bulk:b_{MANY}")
    anna.until_says(f"bulk-{MANY}", "tbody[data-rows]")
    anna.until_says("everything was read", "[data-progress]")
    assert len(anna.all("tbody[data-rows] tr")) == 1


def test_a_database_that_is_away_is_stated_and_the_page_recovers_without_a_reload(anna, shop):
    anna.open("/")
    anna.run("window.same = true")
    shop.relay.connection.close()
    shop.db.close()
    shop.server.stop("immediate")
    try:
        anna.until(lambda: anna.one("#away").is_displayed(), "the banner")
        assert "Attempts" in anna.text("main"), "what was known stays on the page"
        anna.until(lambda: anna.run("return document.getElementById('said').textContent") != "", "what a screen reader hears")
    finally:
        shop.server.start()
    anna.until(lambda: not anna.one("#away").is_displayed(), "the end of the banner")
    assert anna.run("return window.same"), "without a reload"
    newest = "return document.querySelector('main time').dateTime"
    before = anna.run(newest)
    anna.until(lambda: anna.run(newest) != before, "a newer page")


def test_a_page_that_was_opened_while_the_database_was_away_becomes_the_page_that_was_wanted(anna, shop):
    shop.db.close()
    shop.server.stop("immediate")
    try:
        anna.open("/doubts")
        assert "away" in anna.text("h1")
    finally:
        shop.server.start()
    anna.until(lambda: anna.text("h1") == "In doubt", "the doubts")
    assert not anna.one("#away").is_displayed()
