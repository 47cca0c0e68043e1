# SPDX-License-Identifier: PostgreSQL
"""One name, one thing: an option, a letter and a configuration key mean the same wherever they are, and one thing has one name."""
import collections
import re

from harness.postgres import ROOT

ROW = re.compile(r"^\| (?:`-(\w)`, )?`--([\w-]+)(?: ([^`]*))?` \| (.*) \|$", re.M)
# The same meaning in each section, told in its own words: (key) of [relay NAME] and [consume NAME], and of sinks and sources.
CONFIGURED = set("""
    attempts batch ca_file certificate_file dead_topic dsn exchange forgotten in_flight key_file on_dead parked_max queue retry_first retry_most stalled_after
    timeout url
    """.split())

# Options that mean the same, and say more in a command that needs it.
OWN_WORDS = set("dir dry-run listen once scope since tenant until verbose".split())


def options(offline):
    """[(command, letter, name, argument, help)]; help without what each command lets --state be, and whether it must be given."""
    text = offline("help", "--markdown").stdout.decode()
    for section in re.split(r"^## pgonce ", text, flags=re.M)[1:]:
        for letter, name, argument, said in ROW.findall(section):
            yield section.split("\n")[0], letter, name, argument, re.sub(r"; one of \S+| \(required\)", "", said)


def several(pairs):
    """What has more than one of the other."""
    found = collections.defaultdict(set)
    for one, other in pairs:
        found[one].add(other)
    return {one: others for one, others in found.items() if len(others) > 1}


def test_an_option_means_one_thing_in_every_command(offline):
    table = list(options(offline))
    assert len(table) > 100 and len({command for command, *_ in table}) > 10
    assert several((name, (letter, argument, "" if name in OWN_WORDS else said)) for _, letter, name, argument, said in table) == {}
    assert set(several((name, said) for _, _, name, _, said in table)) == OWN_WORDS


def test_one_thing_has_one_option(offline):
    assert several((said, name) for _, _, name, _, said in options(offline)) == {}


def test_a_letter_stands_for_one_option(offline):
    assert several((letter, name) for _, letter, name, _, _ in options(offline) if letter) == {}


def test_no_two_options_of_a_command_have_one_name(offline):
    named = [(command, name) for command, _, name, _, _ in options(offline)]
    assert len(named) == len(set(named))


def test_a_configuration_key_means_one_thing_in_every_section(offline):
    text = offline("help", "--markdown", "configuration").stdout.decode()
    rows = re.findall(r"^\| `([\w.]+)` \| .* \| (.*) \|$", text, re.M)
    assert len(rows) > 60
    assert set(several(rows)) == CONFIGURED, set(several(rows)) ^ CONFIGURED


def test_each_command_line_in_the_documents_and_messages_has_options_that_there_are(offline):
    known = collections.defaultdict(set)
    for command, _, name, _, _ in options(offline):
        known[command].add(name)
    seen, unknown = 0, []
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "clients").glob("*/README.md"), *(ROOT / "examples").rglob("*.md"),
             *(ROOT / "packaging").rglob("*"), ROOT / "dashboards/alerts.yml", *(ROOT / "cli").rglob("*.[ch]"), *(ROOT / "cli").rglob("*.sql")]  # fmt: skip
    for path in paths:
        text = path.read_text(errors="replace") if path.is_file() and path.name != "command.md" else ""
        for command, rest in (re.match(r"([a-z-]*)((?:[^\n`|;#\"]|\\\n)*)", line).groups() for line in text.split("pgonce ")[1:]):
            for word in re.findall(r"(?<![\w-])--([a-z][\w-]*)", rest.split(" -- ")[0]) if command in known else ():
                seen += 1
                if word not in known[command]:
                    unknown.append((path.name, command, word))
    assert seen > 100 and unknown == []
