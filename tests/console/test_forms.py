# SPDX-License-Identifier: PostgreSQL
"""The console's forms without a browser: each is read from its page, filled in and sent, and so is its preview. What a preview announces is done, and
nothing else."""

import html.parser
import urllib.parse

import pytest

from .running import Console
from .shop import IMAGE, KEY, SCRIPT, Shop


class Forms(html.parser.HTMLParser):
    """The forms of a page, as a browser would send them: [{"action", "fields": [(name, value)], "choices": {name: [values]}, "buttons": [words]}]."""

    def __init__(self, text):
        super().__init__()
        self.found, self.by_id, self.form, self.area, self.select, self.button = [], {}, None, None, None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = {name: value or "" for name, value in attributes}
        name = given.get("name")
        if tag == "form":
            self.form = {"method": given.get("method", "get"), "action": given["action"], "fields": [], "choices": {}, "buttons": []}
            self.found.append(self.form)
        elif tag == "input" and name and given.get("form"):  # of a form that comes later
            self.by_id.setdefault(name, []).append(given["value"])
        elif self.form is None:
            return
        elif tag == "button":
            self.button = ""
        elif tag == "input" and given.get("type") in ("radio", "checkbox"):
            self.form["choices"].setdefault(name, []).append(given.get("value", "on"))
        elif tag == "input" and name:
            self.form["fields"].append((name, given.get("value", "")))
        elif tag == "textarea":
            self.area = (name, "")
        elif tag == "select":
            self.select = (name, None)
        elif tag == "option" and self.select and (self.select[1] is None or "selected" in given):
            self.select = (self.select[0], given["value"])

    def handle_endtag(self, tag):
        if tag == "form":
            self.form = None
        elif tag == "textarea" and self.area:
            self.form["fields"].append(self.area)
            self.area = None
        elif tag == "select" and self.select:
            self.form["fields"].append(self.select)
            self.select = None
        elif tag == "button" and self.button is not None:
            self.form["buttons"].append(self.button.strip())
            self.button = None

    def handle_data(self, text):
        if self.area:
            self.area = (self.area[0], self.area[1] + text)
        if self.button is not None:
            self.button += text


class Person:
    """Who opens pages of a console, fills in forms and sends them, with the cookie."""

    def __init__(self, console):
        self.console, self.cookie, self.page = console, None, None

    def take(self, answer, status):
        assert answer.status == status, answer.text
        self.cookie = answer.cookie() or self.cookie
        self.page = answer.text
        return self

    def open(self, path, status=200, **parameters):
        return self.take(self.console.ask(f"{path}?{urllib.parse.urlencode(parameters)}", Cookie=self.cookie), status)

    def form(self, button):
        forms = Forms(self.page)
        found = [form for form in forms.found if form["method"] == "post" and any(word.startswith(button) for word in form["buttons"])]
        assert found, (button, forms.found)
        return found[0], forms

    def send(self, button, *more, expected=200, **fields):
        """more: further (name, value), as of boxes; fields take the place of those that are there."""
        form, _ = self.form(button)
        sent = [(name, value) for name, value in form["fields"] if name not in fields] + list(more) + list(fields.items())
        return self.take(self.console.send(form["action"], sent, Cookie=self.cookie, Origin=f"http://{self.console.host}"), expected)


@pytest.fixture
def shop(server):
    made = Shop(server)
    made.add_hostile()
    yield made
    made.relay.connection.close()
    made.db.drop()


@pytest.fixture
def anna(shop, tmp_path):
    with Console(tmp_path, shop.db.dsn("anna"), "--allow-decisions") as console:
        yield Person(console)


def events(shop, state):
    return {str(row.event_id) for row in shop.db.rows("SELECT event_id FROM once.parked_event WHERE state = %s", state)}


def test_a_doubt_is_decided_as_its_preview_says(anna, shop):
    answer = f'{{"charge": "ch_18",\n "note": "{SCRIPT}"}}'
    anna.open("/doubt", scope="charge", key="doubt-1").send("Preview", decision="happened", status="201", body=answer, result_type="charge", result_id="ch_18",
                                                            reason=f"seen at the provider {IMAGE}")
    assert shop.state("doubt-1") == "in_doubt" and "nothing is decided yet" in anna.page and "ch_18" in anna.page
    anna.send("Decide")
    stored = shop.db.row("SELECT state::text, response_status, convert_from(response_body, 'UTF8') AS body, result_id FROM once.intent WHERE key = 'doubt-1'")
    assert (stored.state, stored.response_status, stored.body, stored.result_id) == ("succeeded", 201, answer, "ch_18")
    reason = shop.db.value("SELECT reason FROM once.decision WHERE key = 'doubt-1' AND kind = 'resolve'")
    assert reason.startswith(f"seen at the provider {IMAGE}")


def test_a_doubt_with_hostile_names_is_decided(anna, shop):
    tenant = shop.db.value("SELECT tenant FROM once.intent WHERE key = %s", KEY)
    anna.open("/doubt", scope=SCRIPT, key=KEY, tenant=tenant).send("Preview", decision="never", reason="a trap").send("Decide")
    assert shop.state(KEY, SCRIPT) == "failed_final"


def test_the_second_decision_is_refused_and_names_the_first(anna, shop):
    second = Person(anna.console)
    second.open("/doubt", scope="charge", key="doubt-2").send("Preview", decision="happened", reason="it did")
    anna.open("/doubt", scope="charge", key="doubt-2").send("Preview", decision="absent", reason="not at the provider").send("Decide")
    second.send("Decide", expected=409)
    assert "Nothing was decided" in second.page and "not at the provider" in second.page and shop.state("doubt-2") == "failed_retryable"


def test_a_dead_event_is_retried_on_its_own_page(anna, shop):
    anna.open("/message", id=shop.dead, kind="event", holder="orders").send("Preview", action="retry", reason="the webhook is back")
    assert events(shop, "dead") == {shop.dead, shop.hostile}
    anna.send("Now retry")
    assert events(shop, "dead") == {shop.hostile}


def test_several_chosen_rows_are_changed_and_no_others(anna, shop):
    third = str(shop.db.value("SELECT once.emit('order.paid', '{}', 'order', '18')"))
    shop.relay.park(third, "dead", "503")
    offered = anna.open("/messages", state="dead").form("Preview")[1].by_id["id"]
    assert set(offered) == {shop.dead, shop.hostile, third}
    anna.send("Preview", ("id", shop.dead), ("id", third), action="discard", reason="no longer wanted")
    assert events(shop, "dead") == set(offered)
    anna.send("Now discard 2")
    assert events(shop, "dead") == {shop.hostile}


def test_a_form_without_a_chosen_row_touches_nothing(anna, shop):
    anna.open("/messages", state="dead").send("Preview", action="discard", reason="by mistake")
    assert "Nothing matches" in anna.page
    assert not any(form["method"] == "post" for form in Forms(anna.page).found), "there is nothing to confirm"
    assert events(shop, "dead") == {shop.dead, shop.hostile}


def test_all_that_match_the_filter_are_changed_and_no_others(anna, shop):
    anna.open("/messages", topic=SCRIPT)
    form = next(form for form in Forms(anna.page).found if "action" in form["choices"])
    assert dict(form["fields"])["topic"] == SCRIPT
    sent = [*form["fields"], ("action", "retry"), ("reason", "again")]
    sent = [(name, value) for name, value in sent if (name, value) != ("reason", "")]
    anna.take(anna.console.send("/messages", sent, Cookie=anna.cookie, Origin=f"http://{anna.console.host}"), 200)
    anna.send("Now retry 1")
    assert events(shop, "dead") == {shop.dead}


def test_a_policy_is_saved_as_its_preview_says(anna, shop):
    anna.open("/scope", scope=SCRIPT).send("Preview", on_stale="takeover", retention="14 days")
    assert "takeover repeats effects" in anna.page and "2.0 times the space" in anna.page
    before = shop.db.row("SELECT on_stale, retention::text FROM once.scope WHERE scope = %s", SCRIPT)
    anna.send("Save")
    after = shop.db.row("SELECT on_stale::text, retention::text FROM once.scope WHERE scope = %s", SCRIPT)
    default = shop.db.row("SELECT on_stale::text, retention::text FROM once.scope WHERE scope = ''")
    assert (before.on_stale, before.retention) == ("in_doubt", "7 days")
    assert (after.on_stale, after.retention) == ("takeover", "14 days") and (default.on_stale, default.retention) == ("in_doubt", "7 days")


@pytest.mark.parametrize("path, parameters", [("/doubt", {"scope": "charge", "key": "doubt-3"}), ("/messages", {}), ("/scope", {"scope": "charge"}), ("/scope", {}),
                                              ("/message", {"kind": "event", "holder": "orders"})])
def test_a_reader_sees_the_same_pages_without_a_form_that_changes_something(shop, tmp_path, path, parameters):
    if path == "/message":
        parameters = {**parameters, "id": shop.dead}
    with Console(tmp_path, shop.db.dsn("vera"), "--allow-decisions") as console:
        vera = Person(console).open(path, **parameters)
        assert not any(form["method"] == "post" for form in Forms(vera.page).found)
        assert "may not" in vera.page


def test_an_intent_s_picture_shows_each_attempt_and_has_no_empty_lane(anna):
    story = anna.console.document("/intent", scope="charge", key="order-17")
    assert [lane["name"] for lane in story["lanes"]] == ["attempts", "events"] and story["picture"]["height"] == 100
    first, second = story["picture"]["spans"]
    assert (first["fence"], second["fence"]) == (1, 2) and first["x"] == 20 and second["x"] == first["x"] + first["width"]
    lanes = {lane["y"] for lane in story["lanes"]}
    drawn = [entry for entry in story["timeline"] if entry["x"] is not None]
    assert {entry["what"] for entry in drawn} >= {"created", "takeover", "event", "delivered", "outcome"} and {entry["y"] for entry in drawn} == lanes
    anna.open("/intent", scope="charge", key="order-17")
    assert anna.page.count('<path class="dot ') == len(drawn) and anna.page.count('<path class="span attempt"') == 2
    assert [entry["what"] for entry in story["timeline"]] == [part.split("</b>")[0] for part in anna.page.split('<ol class="events">')[1].split("<b>")[1:][: len(story["timeline"])]]
