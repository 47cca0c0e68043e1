# SPDX-License-Identifier: PostgreSQL
"""A strict reader of OpenMetrics text (version 1.0.0): whatever it lets through, a scraper takes."""

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
ESCAPED = r'(?:[^"\\\n]|\\["\\n])*'
NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|Inf)|NaN"
META = re.compile(rf"# (TYPE|HELP|UNIT) ({NAME}) (.*)")
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL}=\"{ESCAPED}\",?)*)\}})? ({NUMBER})")
SUFFIXES = {
    "counter": ("_total", "_created"),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "info": ("_info",),
    "stateset": ("",),
    "unknown": ("",),
}


class Family:
    def __init__(self, name):
        self.name, self.type, self.help, self.unit = name, "unknown", None, None
        self.samples = {}  # (suffix, labels as a sorted tuple of pairs) -> value


def labels_of(text):
    pairs = re.findall(rf'({LABEL})="({ESCAPED})"', text or "")
    rebuilt = ",".join(f'{name}="{value}"' for name, value in pairs)
    assert rebuilt == (text or ""), f"labels: {text}"
    assert len({name for name, _ in pairs}) == len(pairs), f"a label twice: {text}"
    unescape = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
    return tuple(sorted((name, re.sub(r"\\.", lambda m: unescape[m.group()], value)) for name, value in pairs))


def read(text):
    """{family's name: Family}. AssertionError at the first thing that is not as the specification says."""
    assert text.endswith("# EOF\n"), "it must end in # EOF and a line feed"
    assert "\r" not in re.sub(r'"[^"\n]*"', "", text)
    lines = text[: -len("# EOF\n")].split("\n")
    assert lines.pop() == ""
    families, current = {}, None
    for line in lines:
        assert line and line.strip() == line, f"an empty line, or spaces around: {line!r}"
        if line.startswith("#"):
            meta = META.fullmatch(line)
            assert meta, line
            kind, name, value = meta.groups()
            if current is None or current.name != name:
                assert name not in families, f"{name} comes in two pieces"
                current = families[name] = Family(name)
            assert not current.samples, f"{kind} of {name} after its samples"
            field = kind.lower()
            assert field != "type" or value in SUFFIXES, line
            assert field != "unit" or name.endswith("_" + value), line
            setattr(current, field, value)
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        name, labels, value = sample.groups()
        assert current is not None and name.startswith(current.name), f"a sample of no family: {line}"
        suffix = name[len(current.name) :]
        assert suffix in SUFFIXES[current.type], f"{name} is no {current.type}"
        place = (suffix, labels_of(labels))
        assert place not in current.samples, f"twice: {line}"
        current.samples[place] = float(value)
        assert current.type != "counter" or float(value) >= 0, line
    for family in families.values():
        assert family.type != "unknown" and family.help, f"{family.name} has no TYPE or no HELP"
        if family.type == "histogram":
            check_histogram(family)
    return families


def check_histogram(family):
    groups = {}
    for (suffix, labels), value in family.samples.items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        groups.setdefault(rest, {}).setdefault(suffix, []).append((dict(labels).get("le"), value))
    for labels, group in groups.items():
        buckets = group["_bucket"]
        bounds = [float(bound.replace("+Inf", "inf")) for bound, _ in buckets]
        counts = [count for _, count in buckets]
        assert bounds == sorted(bounds) and bounds[-1] == float("inf"), f"{family.name}{labels}: {bounds}"
        assert counts == sorted(counts), f"{family.name}{labels} is not cumulative"
        assert group["_count"][0][1] == counts[-1], f"{family.name}{labels}: _count is not the last bucket"
        assert "_sum" in group
