#!/usr/bin/env python3
# SPDX-License-Identifier: PostgreSQL
"""Writes the facts of spec/ into the sources that need them, or checks that they are current.

  spec.py            writes them
  spec.py --check    lists the files that would change; exit status 1 if there are any

A source holds a fact between two comments, "spec: NAME" and "end of spec". The text between them is written here, in the source's language, so that
readers find it where it is used. spec/README.md says how to add a fact."""
import argparse
import difflib
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = ROOT / "spec"
MARKED = re.compile(r"^(?P<indent>[ \t]*)(?P<comment>//|#|--|/\*|<!--) spec: (?P<name>[\w-]+)(?: \*/| -->)?\n(?P<body>.*?)(?P<end>^[ \t]*(?://|#|--|/\*|<!--) end of spec(?: \*/| -->)?\n)", re.M | re.S)
COLUMNS = {".c": 100, ".h": 100, ".java": 140, ".sql": 140}  # of wrapped lines; 150 elsewhere

HEADERS = json.loads((SPEC / "headers.json").read_text())
PROBLEMS_FILE = json.loads((SPEC / "problems.json").read_text())
PROBLEMS = PROBLEMS_FILE["problems"]
ERRORS = json.loads((SPEC / "errors.json").read_text())["errors"]
STATUSES = json.loads((SPEC / "statuses.json").read_text())
RETRIES = json.loads((SPEC / "retries.json").read_text())["milliseconds"]
REASONS = json.loads((SPEC / "reasons.json").read_text())["reasons"]
KEYS = json.loads((SPEC / "keys.json").read_text())
KEY_VECTORS = json.loads((ROOT / "spec/vectors/keys.json").read_text())["keys"]
TELEMETRY = json.loads((SPEC / "telemetry.json").read_text())
VERDICTS = json.loads((SPEC / "verdicts.json").read_text())["verdicts"]
NAMES = json.loads((SPEC / "names.json").read_text())
LOST_CLAIM = json.loads((SPEC / "verdicts.json").read_text())["lost_claim"]
STATEMENTS = json.loads((SPEC / "statements.json").read_text())


# ---- how each language writes it ----

def remark(suffix, text, width):
    """A comment, in lines of at most this width."""
    lines = textwrap.wrap(text, width - 6, break_on_hyphens=False)
    if suffix in (".c", ".h"):
        return [f"/* {text} */"] if len(lines) == 1 else ["/*", *(f" * {line}" for line in lines), " */"]
    mark = {".py": "#", ".sql": "--"}.get(suffix, "//")
    return [f"{mark} {line}" for line in lines]


def strings(suffix, names, width, last=True):
    """Literals, several per line. last: nothing follows, so Java allows no comma."""
    quote = "'" if suffix == ".js" else '"'
    lines = textwrap.wrap(" ".join(f"{quote}{name}{quote}," for name in names), width, break_on_hyphens=False)
    if last and suffix == ".java":
        lines[-1] = lines[-1][:-1]
    return lines


def quoted(suffix, text):
    if suffix == ".js":
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if suffix == ".sql":
        return "'" + text.replace("'", "''") + "'"
    return json.dumps(text)


# ---- the facts ----

def kept(suffix, width):
    return remark(suffix, HEADERS["kept"]["about"], width) + strings(suffix, HEADERS["kept"]["names"], width)


def never(suffix, width):
    groups = HEADERS["never"]
    return [line for group in groups for line in remark(suffix, group["about"], width) + strings(suffix, group["names"], width, group is groups[-1])]


def secret(suffix, width):
    return remark(suffix, HEADERS["secret"]["about"], width) + strings(suffix, HEADERS["secret"]["words"], width)


def problems_of(suffix):
    door = "gateway" if suffix in (".c", ".h") else "client"
    return {slug: row for slug, row in PROBLEMS.items() if door in row.get("doors", ("gateway", "client"))}


def constant(slug):
    return slug.upper().replace("-", "_")


def problem_names(suffix, width):
    return [line for slug, row in problems_of(suffix).items() for line in [*remark(suffix, row["about"], width), f"HTTP_PROBLEM_{constant(slug)},"]]


def problems(suffix, width):
    lines = []
    longest = len("problem") + max(len(slug.replace("-", "")) for slug in problems_of(suffix))  # gofmt puts the "=" below each other
    for slug, row in problems_of(suffix).items():
        title, detail, after = quoted(suffix, row["title"]), quoted(suffix, row["detail"]), row["retry_after"]
        if suffix == ".c":
            lines.append(f'[HTTP_PROBLEM_{constant(slug)}] = {{{row["status"]}, "{slug}", {title}, {detail}, {after or 0}, HTTP_EFFECT_{row["effect"].upper()}}},')
        elif suffix == ".js":
            lines.append(f"'{slug}': [{row['status']}, {title}, {detail}{f', {after}' if after else ''}],")
        elif suffix == ".py":
            lines += [f'"{slug}": ({row["status"]}, {title},', f"    {detail}, {after}),"]
        elif suffix == ".go":
            name = "problem" + slug.title().replace("-", "")
            lines.append(f'{name:{longest}} = problem{{"{slug}", {row["status"]}, {title}, {detail}, {after or 0}}}')
        else:
            end = ";" if slug == list(problems_of(suffix))[-1] else ","
            lines += [f"/** {row['about']}. */", f'{constant(slug)}({row["status"]}, "{slug}", {title},', f"    {detail}, {after or 0}){end}"]
    return lines


def c_literal(text):
    """With every byte outside printable ASCII as an octal escape, which, unlike a hexadecimal one, has a fixed length."""
    return '"' + "".join("\\" + chr(byte) if chr(byte) in '"\\' else chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}" for byte in text.encode()) + '"'


def problem_cases(suffix, width):
    return [f'{{HTTP_PROBLEM_{constant(case["problem"])}, {c_literal(case.get("more", ""))}, {c_literal(case["document"])}}},' for case in PROBLEMS_FILE["cases"]]


def problem_base(suffix, width):
    base, longest, refused = PROBLEMS_FILE["type_base"], PROBLEMS_FILE["type_base_max"], quoted(suffix, PROBLEMS_FILE["type_base_refused"])
    if suffix == ".c":
        return [f'#define DEFAULT_BASE "{base}"', f"#define BASE_REFUSED {refused}"]
    if suffix == ".js":
        return [f"const BASE = '{base}';", f"const BASE_MAX = {longest};", f"const BASE_REFUSED = {refused};"]
    if suffix == ".py":
        return [f'PROBLEM_BASE = "{base}"', f"_BASE_MAX = {longest}", f"_BASE_REFUSED = {refused}"]
    if suffix == ".go":
        return [f'problemBase   = "{base}"', f"baseBytesMax  = {longest}", f"refusedInBase = {refused}"]
    return [f'private static final String BASE = "{base}";', f"private static final int BASE_MAX = {longest};", f"private static final String BASE_REFUSED = {refused};"]


def problem_bases(suffix, width):
    """For the C test: each, and whether it is good."""
    bases = PROBLEMS_FILE["type_bases"]
    return [f"{{{c_literal(base)}, {str(known == 'good').lower()}}}," for known in ("good", "bad") for base in bases[known]]


def key_faults(suffix, width):
    """The sentences for a malformed key; the longest one in two pieces."""
    lines = []
    names = {name: "key" + camel(name) for name in KEYS["faults"]}
    longest = max(map(len, names.values()))  # gofmt puts the "=" below each other
    for name, sentence in KEYS["faults"].items():
        text = quoted(suffix, sentence)
        if len(text) > 120 and suffix in (".c", ".java"):
            first, _, rest = sentence.partition("; ")
            joint = "\n                      " if suffix == ".c" else "\n    + "
            text = quoted(suffix, first + "; ") + joint + quoted(suffix, rest)
            text = f"({text})" if suffix == ".c" else text  # else clang asks whether a comma is missing
        if suffix == ".c":
            lines += f"[KEY_{name.upper()}] = {text},".split("\n")
        elif suffix == ".js":
            lines.append(f"{name}: {text},")
        elif suffix == ".py":
            lines.append(f"_{name.upper()} = {text}")
        elif suffix == ".go":
            lines.append(f"{names[name]:{longest}} keyFault = {text}")
        else:
            lines += f"private static final String {name.upper()} = {text};".split("\n")
    if suffix == ".js":
        return lines
    most = KEYS["bytes_max"]
    return lines + {".c": [], ".py": [f"KEY_MAX = {most}"], ".go": ["", f"keyBytesMax = {most}"], ".java": [f"private static final int KEY_MAX = {most};"]}[suffix]


def key_cases(suffix, width):
    """For the C test: the header, its fault where a bare key is taken, and the key."""
    faults = {sentence: f"KEY_{name.upper()}" for name, sentence in KEYS["faults"].items()}
    return [f'{{{c_literal(row["header"])}, {faults[row["refused"]] if "refused" in row else "KEY_GOOD"}, {c_literal(row.get("key", ""))}}},' for row in KEY_VECTORS]


def telemetry(suffix, width, names=()):
    """The names in the telemetry of the clients."""
    kinds, instruments, attributes = TELEMETRY["span"]["kinds"], TELEMETRY["instruments"], TELEMETRY["attributes"]
    prefix = TELEMETRY["span"]["prefix"]
    if suffix == ".md":
        def row(name, what, each):
            return f"| `{name}` | {what} | {each['about']}{' (' + ', '.join(each['by']) + ')' if 'by' in each else ''} |"
        return [
            "", "| name | is | of |", "| --- | --- | --- |",
            *(row(prefix + kind, "span", each) for kind, each in kinds.items()),
            *(row(each["name"], each["type"] + (f" ({each['unit']})" if "unit" in each else ""), each) for each in instruments.values()),
            *(row(each["name"], "attribute", each) for each in attributes.values()),
            "",
        ]  # fmt: skip
    language = {".js": "Node", ".py": "Python", ".go": "Go", ".java": "Java"}[suffix]
    told = [("SPAN_PREFIX", prefix)]
    for group, rows in (("ATTRIBUTE", attributes), ("INSTRUMENT", instruments)):
        for name, each in rows.items():
            if language in each.get("by", [language]):
                told.append((f"{name.upper()}_{group}", each["name"]))
                if group == "INSTRUMENT":
                    told.append((f"{name.upper()}_ABOUT", each["about"]))
                    told += [(f"{name.upper()}_UNIT", each["unit"])] if "unit" in each else []
    if names:
        told = [(name, text) for name, text in told if name in names]
    if suffix == ".go":
        named = [(first.lower() + "".join(map(str.title, rest)), text) for (first, *rest), text in ((name.split("_"), text) for name, text in told)]
        longest = max(len(name) for name, _ in named)  # gofmt puts the "=" below each other
        return [f"{name:{longest}} = {quoted(suffix, text)}" for name, text in named]
    form = {".js": "const {} = {};", ".py": "_{} = {}", ".java": "static final String {} = {};"}[suffix]
    return [form.format(name, quoted(suffix, text)) for name, text in told]


def observation(suffix, width):
    """The names that Micrometer gets, which does the counting."""
    return telemetry(suffix, width, ("SPAN_PREFIX", "SCOPE_ATTRIBUTE", "VERDICT_ATTRIBUTE"))


def camel(name):
    return name.title().replace("_", "")


def go_error(name):
    return "Err" + ("Final" if name == "final_failure" else camel(name))


def literal_sql(text, width):
    """A literal in lines: SQL joins adjacent ones."""
    lines = textwrap.wrap(text.replace("'", "''"), width - 2, drop_whitespace=False, break_on_hyphens=False)
    return [f"'{line}'" for line in lines]


def errors(suffix, width):
    told = ERRORS if suffix in (".sql", ".c") else {code: row for code, row in ERRORS.items() if row["status"]}
    names = {code: go_error(row["name"]) for code, row in told.items()}
    longest = max(map(len, names.values()))  # gofmt puts the "=" below each other
    lines = []
    for code, row in told.items():
        name, status, retry = row["name"], row["status"], str(row["retry"]).lower()
        message = quoted(suffix, row["message"] if suffix == ".sql" else row.get("client", row["message"]))
        if suffix == ".sql":
            hint = literal_sql(row["hint"], width - 3)
            lines += [f"('{code}', '{name}', {retry}, {message},", *(f" {line}" for line in hint)]
            lines[-1] += ")" if code == list(told)[-1] else "),"
        elif suffix == ".c":
            lines.append(f'{{ONCE_{name.upper()}, "{name}", "{code}", {retry}}},')
        elif suffix == ".js":
            slug = f", '{row['problem']}'" if "problem" in row else ""
            lines.append(f"{code}: ['{name}', {status}, {retry}, {message}{slug}],")
        elif suffix == ".py":
            slug = f'"{row["problem"]}"' if "problem" in row else None
            lines.append(f'"{code}": ("{name}", {status}, {row["retry"]}, {message}, {slug}),')
        elif suffix == ".go":
            lines.append(f'{names[code]:{longest}} = ofContract("{name}", "{code}", {status}, {"mayRetry" if row["retry"] else "isFinal"}, {message})')
        else:
            lines.append(f'{name.upper()}("{name}", "{code}", {status}, {retry}, {message}),')
    return lines


def error_problems(suffix, width):
    """The problem that answers each error. C has P4029 elsewhere, since a location may wait for it."""
    told = {code: row for code, row in ERRORS.items() if "problem" in row and not (suffix == ".c" and code == "P4029")}
    lines = []
    if suffix == ".go":
        return [f"{{{go_error(row['name'])}, problem{row['problem'].title().replace('-', '')}}}," for row in told.values()]
    for slug in dict.fromkeys(row["problem"] for row in told.values()):
        names = [row["name"] for row in told.values() if row["problem"] == slug]
        if suffix == ".c":
            lines += [*(f"case ONCE_{name.upper()}:" for name in names), f"\treturn refuse(problem, HTTP_PROBLEM_{constant(slug)});"]
        else:
            lines.append(f"case {', '.join(quoted(suffix, name) for name in names)} -> {constant(slug)};")
    return lines


# ---- the statements of the clients ----

LANGUAGES = {".js": "node", ".py": "python", ".go": "go", ".java": "java", ".sql": "sql"}
AS_TEXT = ("jsonb", "timestamptz")  # the client sends it as text, which no driver encodes in another way
CASTS = {".js": "{0}::{1}", ".go": "{0}::{1}", ".sql": "{0}::{1}", ".java": "{0}::{1}", ".py": "CAST({0} AS {1})"}  # SQLAlchemy takes a colon for a name


GRANTED = ", ".join(f"'{word}'" for word, row in VERDICTS.items() if "claim" in row["says"] and row["then"] == "run")


def of_language(language, text):
    return text if isinstance(text, str) else text.get(language, text.get("default"))


def statement(suffix, row, request):
    """A statement's text in a language. request: its kind; None: a statement without [print], or Java's template, where %s stands for that."""
    language, kind = LANGUAGES[suffix], STATEMENTS["requests"].get(request, {"parameters": [], "sql": "%s"})
    fragments = {name: of_language(language, text) for name, text in STATEMENTS["fragments"].items()} | {"print": kind["sql"], "granted": GRANTED}
    numbers = {name: number for number, name in enumerate(dict.fromkeys([*kind["parameters"], *row["parameters"]]), 1)}
    text = of_language(language, row["sql"])
    if unused := set(row["parameters"]) - set(re.findall(r"\{(\w+)\}", re.sub(r"\[(\w+)\]", lambda found: fragments[found[1]], text))):
        sys.exit(f"tools/spec.py: spec/statements.json: a statement of {language} does not use {sorted(unused)}")

    def parameter(found):
        kind, place = STATEMENTS["types"].get(found[1], "text"), "?" if suffix == ".java" else f"${numbers[found[1]]}"
        cast = CASTS[suffix]
        return cast.format(cast.format(place, "text"), kind) if kind in AS_TEXT else cast.format(place, kind)

    return re.sub(r"\{(\w+)\}", parameter, re.sub(r"\[(\w+)\]", lambda found: fragments[found[1]], text))


def pieces(suffix, text, width):
    """The literals of a long statement, one per line, without what joins them."""
    lines = textwrap.wrap(text, width - 12, drop_whitespace=False, break_on_hyphens=False, break_long_words=False)
    return [quoted(suffix, line) for line in lines]


def statements(suffix, width):
    lines, language = [], LANGUAGES[suffix]

    def constant_of(name, text):
        literals = pieces(suffix, text, width)
        if suffix == ".js":
            return [f"{name}: {literals[0]}" + (" +" if len(literals) > 1 else ","), *(f"  {each}{' +' if each is not literals[-1] else ','}" for each in literals[1:])]
        if suffix == ".go":
            return [f"{name} {literals[0]}" + (" +" if len(literals) > 1 else ""), *(f"\t{each}{' +' if each is not literals[-1] else ''}" for each in literals[1:])]
        if suffix == ".py":
            return [f"{name} {literals[0]}"] if len(literals) == 1 else [f"{name} (", *(f"    {each}" for each in literals), ")"]
        return [f"static final String {name} = {literals[0]}" + (";" if len(literals) == 1 else ""), *(f"    + {each}{';' if each is literals[-1] else ''}" for each in literals[1:])]

    if suffix == ".java":
        for kind, row in STATEMENTS["requests"].items():
            lines += ["", *constant_of(f"PRINT_{kind.upper()}", statement(suffix, {"parameters": [], "sql": row["sql"]}, None))]
    for name, row in STATEMENTS["statements"].items():
        if language not in row.get("by", [language]):
            continue
        lines += ["", *remark(suffix, row["about"], width), *remark(suffix, f"Parameters: {', '.join(row['parameters'])}.", width)]
        every = "[print]" in of_language(language, row["sql"])
        if every and suffix != ".java":
            first = name
            lines.append({".js": f"{camel_small(first)}: {{", ".py": f"{first.upper()} = {{", ".go": f"sql{camel(first)} = map[string]string{{"}[suffix])
            for kind in STATEMENTS["requests"]:
                text = statement(suffix, row, kind)
                made = constant_of({".js": kind, ".py": f'"{kind}":', ".go": f'"{kind}":'}[suffix], text)
                if suffix in (".py", ".go"):
                    made[-1] += ","
                lines += [("\t" if suffix == ".go" else "    " if suffix == ".py" else "  ") + each for each in made]
            lines.append({".js": "},", ".py": "}", ".go": "}"}[suffix])
            continue
        text = statement(suffix, row, None)
        lines += constant_of({".js": camel_small(name), ".py": f"{name.upper()} =", ".go": f"sql{camel(name)} =", ".java": name.upper()}[suffix], text)
    return lines[1:]


def camel_small(name):
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))


def verdicts(suffix, width):
    told = {word: row for word, row in VERDICTS.items() if row["then"]}
    if suffix == ".md":
        said = {word: ", ".join(f"`{name}`" for name in row["says"]) for word, row in told.items()}
        return ["", "| verdict | returned by | meaning |", "| --- | --- | --- |", *(f"| `{word}` | {said[word]} | {row['about']} |" for word, row in told.items()), ""]
    lines = []
    longest = max(map(len, told)) + 3  # gofmt puts the values below each other
    for word, row in told.items():
        then, code = row["then"], row.get("code")
        name = row.get("told") or ERRORS[code]["name"]
        if suffix == ".js":
            thrown = f", sqlstate: '{code}'" if code else ""
            lines.append(f"{word}: {{then: '{then}', told: '{name}'{thrown}}},")
        elif suffix == ".py":
            lines.append(f'"{word}": Verdict("{then}", "{name}", {quoted(suffix, code) if code else None}),')
        elif suffix == ".go":
            lines.append(f'"{word}":'.ljust(longest) + f" {{to{then.title()}, {go_error(name) if code else 'nil'}}},")
        else:
            end = ";" if word == list(told)[-1] else ","
            reason = f"OnceException.Reason.{name.upper()}" if code else "null"
            lines += [f"/** {row['about'][0].upper()}{row['about'][1:]}. */".replace("`", ""), f'{word.upper()}("{word}", Then.{then.upper()}, "{name}", {reason}){end}']
    return lines


def lost_claim(suffix, width):
    lines = remark(suffix, LOST_CLAIM["about"], width)
    cases = {name: LOST_CLAIM[name] for name in ("first", "without_takeover", "otherwise")}
    longest = max(len("lost" + camel(name)) for name in cases)  # gofmt puts the "=" below each other
    for name, word in cases.items():
        if suffix == ".c":
            lines.append(f"static const once_verdict lost_{name} = {VERDICTS[word]['c'][0]};")
        elif suffix == ".js":
            lines.append(f"const LOST_{name.upper()} = '{word}';")
        elif suffix == ".py":
            lines.append(f'LOST_{name.upper()} = "{word}"')
        elif suffix == ".go":
            lines.append(f'{"lost" + camel(name):{longest}} = "{word}"')
        else:
            lines.append(f"static final Verdict LOST_{name.upper()} = {word.upper()};")
    return lines


def names(suffix, width):
    most, sentence = NAMES["characters_max"], quoted(suffix, NAMES["tenant_malformed"].format(max=NAMES["characters_max"]))
    if suffix == ".c":
        return [f"#define NAME_CHARACTERS_MAX {most}", f"#define TENANT_MALFORMED {sentence}"]
    if suffix == ".go":
        return [f"nameCharsMax    = {most}", f"tenantMalformed = {sentence}"]
    form = {".js": "const {} = {};", ".py": "_{} = {}", ".java": "private static final {} = {};"}[suffix]
    kinds = ("int ", "String ") if suffix == ".java" else ("", "")
    return [form.format(kinds[0] + "NAME_CHARACTERS_MAX", most), form.format(kinds[1] + "TENANT_MALFORMED", sentence)]


def name_bytes(suffix, width):
    return [f"NAME_BYTES_MAX = {NAMES['characters_max']} * 4, /* of a scope or a tenant: its characters in UTF-8 */"]


def owner_max(suffix, width):
    return [f"const OWNER_CHARACTERS_MAX = {NAMES['owner_characters_max']};"]


def key_max(suffix, width):
    return [{".js": "const KEY_MAX = {};", ".java": "static final int KEY_LENGTH = {};"}[suffix].format(KEYS["bytes_max"])]


def verdict_names(suffix, width):
    """The words of the members of once_verdict."""
    return [f'[{row["c"][0]}] = "{word}",' for word, row in VERDICTS.items()]


def verdict_problems(suffix, width):
    """The verdicts that are refused, with the problem for each error."""
    return [line for row in VERDICTS.values() if row["then"] == "refuse"
            for line in (f"case {row['c'][0]}:", f"\treturn refuse(problem, HTTP_PROBLEM_{constant(ERRORS[row['code']]['problem'])});")]  # fmt: skip


def verdicts_shown(suffix, width):
    lines = []
    for word, row in VERDICTS.items():
        if "shown" in row:
            line = f'{{"{word}", {quoted(suffix, row["shown"])}}},'
            lines += [line] if len(line) <= width else [f'{{"{word}",', f' {quoted(suffix, row["shown"])}}},']
    return lines


def reasons(suffix, width):
    if suffix == ".md":
        lines = ["", "| error_code | state | stored by | meaning |", "| --- | --- | --- | --- |"]
        return [*lines, *(f"| `{row['code']}` | {row['state']} | {', '.join(row['by'])} | {row['about']} |" for row in REASONS.values()), ""]
    told = {name: row for name, row in REASONS.items() if set(row["by"]) & ({"gateway", "consumer"} if suffix == ".h" else {"clients"})}
    longest = len("reason") + max(len(name.replace("-", "")) for name in told)  # gofmt puts the "=" below each other
    lines = []
    for name, row in told.items():
        code, message = quoted(suffix, row["code"]), quoted(suffix, row["message"] or "")
        if suffix == ".h":
            lines += [f"#define HTTP_REASON_{constant(name)} {code}", f"#define HTTP_REASON_{constant(name)}_TEXT {message}"]
        elif suffix == ".js":
            lines.append(f"{constant(name)}: {{code: {code}, message: {message if row['message'] else 'null'}}},")
        elif suffix == ".py":
            lines.append(f"{constant(name)} = ({code}, {message if row['message'] else None})")
        elif suffix == ".go":
            lines.append(f"{'reason' + name.title().replace('-', ''):{longest}} = reason{{{code}, {message}}}")
        else:
            end = ";" if name == list(told)[-1] else ","
            about = textwrap.wrap(f"/** {row['about']} */".replace("`", ""), width)
            lines += [*about[:1], *(f" * {line}" for line in about[1:]), f"{constant(name)}({code}, {message if row['message'] else 'null'}){end}"]
    return lines


def ended(suffix, width):
    row = REASONS["ended"]
    return [f'#define REASON_ENDED {quoted(suffix, row["code"])}', f'#define REASON_ENDED_TEXT {quoted(suffix, row["message"])}']


def doubt(suffix, width):
    """The statement of the clients, for libpgonce."""
    return textwrap.wrap(statement(suffix, STATEMENTS["statements"]["doubt"], None), width - 20, break_on_hyphens=False, break_long_words=False)


def retries(suffix, width):
    lines = []
    longest = max(len(row.get("go", name.replace("_", ""))) for name, row in RETRIES.items())
    for name, row in RETRIES.items():
        value, about = row["value"], row["about"]
        if suffix == ".c":
            lines += [f"/* {about} */", f"{name.upper()}_MS = {value},"]
        elif suffix == ".js":
            lines.append(f"const {name.upper()}_MS = {value}; // {about}")
        elif suffix == ".py":
            lines.append(f"{name.upper()}_S = {value / 1000}  # {about}")
        elif suffix == ".go":
            first, *others = name.split("_")
            name = row.get("go") or first + "".join(map(str.title, others))
            lines.append((f"{name:{longest}} = {value} * time.Millisecond", about))
        else:
            lines += [f"/** {about[0].upper()}{about[1:]}. */", f"static final long {name.upper()}_MS = {value};"]
    if suffix == ".go":  # gofmt puts "=" and comments below each other
        width = max(len(line) for line, _ in lines)
        return [f"{line:{width}} // {about}" for line, about in lines]
    return lines


def numbers(suffix, fact, width):
    listed = textwrap.wrap(", ".join(map(str, fact["statuses"])), width)
    if suffix not in (".java", ".md"):
        listed[-1] += ","  # Java allows no comma after the last
    return remark(suffix, fact["about"], width) + listed


def rolled_back(suffix, width):
    return numbers(suffix, STATUSES["rolled_back"], width)


def asking_always(suffix, width):
    return numbers(suffix, STATUSES["asking_always"], width)


def asking(suffix, width):
    lines = remark(suffix, STATUSES["asking"]["about"], width)
    rows = list(STATUSES["asking"]["headers"].items())
    for status, name in rows:
        if suffix == ".c":
            lines.append(f"{{{status}, {quoted(suffix, name)}}},")
        elif suffix == ".java":
            lines.append(f"Map.entry({status}, {quoted(suffix, name)}){'' if status == rows[-1][0] else ','}")
        else:
            lines.append(f"{status}: {quoted(suffix, name if suffix == '.go' else name.lower())},")
    return lines


FACTS = {"headers-kept": kept, "headers-never": never, "headers-secret": secret, "problem-names": problem_names, "problems": problems, "problem-base": problem_base, "problem-bases": problem_bases, "problem-cases": problem_cases, "errors": errors, "error-problems": error_problems, "key-faults": key_faults, "key-cases": key_cases, "telemetry": telemetry, "observation": observation, "verdicts": verdicts, "verdict-names": verdict_names, "verdict-problems": verdict_problems, "verdicts-shown": verdicts_shown, "reasons": reasons, "ended": ended, "doubt": doubt, "retries": retries, "statements": statements, "lost-claim": lost_claim, "names": names, "name-bytes": name_bytes, "owner-max": owner_max, "key-max": key_max,
    "statuses-rolled-back": rolled_back, "statuses-asking": asking, "statuses-asking-always": asking_always}
SOURCES = {
    "contract/access/errors.sql": ["errors"],
    "lib/src/error.c": ["errors"],
    "lib/src/doubt.c": ["ended"],
    "lib/src/execute.c": ["retries"],
    "lib/sql/doubt.sql": ["doubt"],
    "lib/src/names.c": ["verdict-names"],
    "lib/src/settle.c": ["lost-claim"],
    "lib/src/internal.h": ["name-bytes"],
    "gateway/ngx_http_once_cache.c": ["name-bytes"],
    "gateway/ngx_http_once_request.c": ["names"],
    "lib/src/key.c": ["key-faults"],
    "clients/node/lib/claim.js": ["owner-max"],
    "clients/node/lib/key.js": ["key-max", "key-faults"],
    "clients/node/lib/request.js": ["names"],
    "clients/go/key.go": ["key-faults", "names"],
    "clients/java/pgonce/src/main/java/io/pgonce/http/KeyHeader.java": ["key-faults"],
    "tests/http/test_key.c": ["key-cases"],
    "lib/http/http.h": ["problem-names"],
    "lib/http/reasons.h": ["reasons"],
    "lib/http/problem.c": ["problem-base", "problems"],
    "lib/http/decide.c": ["error-problems", "verdict-problems", "statuses-asking", "statuses-asking-always"],
    "lib/http/headers.c": ["headers-kept", "headers-never", "headers-secret"],
    "clients/node/lib/errors.js": ["errors"],
    "clients/node/lib/reasons.js": ["reasons"],
    "clients/node/lib/statements.js": ["statements"],
    "clients/python/src/pgonce/_sql.py": ["statements"],
    "clients/go/statements.go": ["statements"],
    "clients/java/pgonce/src/main/java/io/pgonce/Statements.java": ["statements"],
    "clients/node/lib/verdicts.js": ["lost-claim", "verdicts"],
    "clients/node/lib/transaction.js": ["retries"],
    "clients/node/lib/guard.js": ["statuses-rolled-back"],
    "clients/node/lib/lease.js": ["statuses-asking", "statuses-asking-always"],
    "clients/node/lib/headers.js": ["headers-kept", "headers-never", "headers-secret"],
    "clients/node/lib/problem.js": ["problems", "problem-base"],
    "clients/python/src/pgonce/errors.py": ["errors"],
    "clients/python/src/pgonce/_core.py": ["retries"],
    "clients/python/src/pgonce/_reasons.py": ["reasons"],
    "clients/python/src/pgonce/_verdicts.py": ["lost-claim", "verdicts"],
    "clients/python/src/pgonce/_gate.py": ["names"],
    "clients/python/src/pgonce/http.py": ["key-faults", "problem-base", "problems", "headers-kept", "headers-never", "headers-secret", "statuses-rolled-back", "statuses-asking", "statuses-asking-always"],
    "clients/go/errors.go": ["errors"],
    "clients/go/client.go": ["retries"],
    "clients/go/reasons.go": ["reasons"],
    "clients/go/verdicts.go": ["lost-claim", "verdicts"],
    "clients/go/refuse.go": ["error-problems"],
    "clients/go/middleware.go": ["statuses-rolled-back", "statuses-asking-always", "statuses-asking"],
    "clients/go/headers.go": ["headers-kept", "headers-never", "headers-secret"],
    "clients/go/problem.go": ["problems", "problem-base"],
    "clients/java/pgonce/src/main/java/io/pgonce/OnceException.java": ["errors"],
    "clients/java/pgonce/src/main/java/io/pgonce/Retries.java": ["retries"],
    "clients/java/pgonce/src/main/java/io/pgonce/http/Ending.java": ["statuses-rolled-back", "statuses-asking", "statuses-asking-always"],
    "clients/java/pgonce/src/main/java/io/pgonce/http/HeaderPolicy.java": ["headers-kept", "headers-never", "headers-secret"],
    "clients/java/pgonce/src/main/java/io/pgonce/Verdict.java": ["verdicts", "lost-claim"],
    "clients/java/pgonce-spring-boot-starter/src/main/java/io/pgonce/spring/HttpOnce.java": ["key-max", "names"],
    "clients/java/pgonce/src/main/java/io/pgonce/http/Problem.java": ["problems", "problem-base", "error-problems"],
    "clients/java/pgonce/src/main/java/io/pgonce/http/StoredReason.java": ["reasons"],
    "cli/operate/story.c": ["verdicts-shown"],
    "docs/why/concepts.md": ["verdicts"],
    "docs/how/runbook.md": ["reasons"],
    "clients/node/lib/trace.js": ["telemetry"],
    "clients/python/src/pgonce/_trace.py": ["telemetry"],
    "clients/go/onceotel/onceotel.go": ["telemetry"],
    "clients/java/pgonce/src/main/java/io/pgonce/OpenTelemetryObserver.java": ["telemetry"],
    "clients/java/pgonce-spring-boot-starter/src/main/java/io/pgonce/spring/ObservationObserver.java": ["observation"],
    "tests/http/test_problem.c": ["problem-cases", "problem-bases"],
}


def written(path, text):
    """The source with the current facts of spec/."""
    def fill(match):
        indent = match["indent"]
        width = COLUMNS.get(path.suffix, 150) - len(indent.expandtabs(4))
        lines = FACTS[match["name"]](path.suffix, width)
        return text[match.start():match.start("body")] + "".join(f"{indent}{line}\n" if line else "\n" for line in lines) + match["end"]

    found = [match["name"] for match in MARKED.finditer(text)]
    wanted = SOURCES[str(path.relative_to(ROOT))]
    if found != wanted:
        sys.exit(f"tools/spec.py: {path.relative_to(ROOT)} has places for {found}, and SOURCES names {wanted}")
    return MARKED.sub(fill, text)


def sqlstates():
    """Problems with the SQLSTATEs: each one that the contract names must have a row in errors.json, and the contract must raise each row."""
    sources = {path: path.read_text() for folder in ("contract", "native") for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".sql", ".c", ".h")}
    named = {path: set(re.findall(r"\bP4\d{3}\b", text)) for path, text in sources.items()}
    raised = {code for path, text in sources.items() if path.name != "errors.sql" for code in re.findall(r"'(P4\d{3})'", text)}
    return [
        *(f"{path.relative_to(ROOT)}: {code} has no row in spec/errors.json" for path, codes in named.items() for code in sorted(codes - set(ERRORS))),
        *(f"spec/errors.json: {code} is raised nowhere" for code in sorted(set(ERRORS) - raised)),
    ]


def verdict_numbers():
    """What is wrong with once_verdict: it is written by hand, as the rest of the header, and each verdict has its number there."""
    wanted = {row["c"][0]: row["c"][1] for row in VERDICTS.values()}
    enum = re.search(r"ONCE_VERDICT_NONE = 0,(.*?)\} once_verdict;", (ROOT / "include/pgonce.h").read_text(), re.S)[1]
    found = {name: int(number) for name, number in re.findall(r"\b(ONCE_\w+) = (\d+)", enum)}
    most = re.search(r"#define ONCE_KEY_BYTES_MAX (\d+)", (ROOT / "include/pgonce.h").read_text())[1]
    longest = [f"include/pgonce.h: ONCE_KEY_BYTES_MAX is {most}, and spec/keys.json has another bytes_max"] if most != str(KEYS["bytes_max"]) else []
    return longest + [f"include/pgonce.h: {name} is {found.get(name)} in once_verdict, and {wanted.get(name)} in spec/verdicts.json"
            for name in sorted(wanted.keys() | found.keys()) if wanted.get(name) != found.get(name)]  # fmt: skip


def telemetry_written_by_hand():
    """Names of telemetry.json that a client has outside of the generated lines."""
    names = {row["name"] for group in ("instruments", "attributes") for row in TELEMETRY[group].values()} | {TELEMETRY["span"]["prefix"]}
    return [f"{path}: {literal} is written by hand: spec/telemetry.json has it"
            for path, facts in SOURCES.items() if {"telemetry", "observation"} & set(facts)
            for literal in re.findall(r"""["'`](pgonce\.[a-z_]*)""", MARKED.sub("", (ROOT / path).read_text())) if literal in names]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = False
    for name in SOURCES:
        path = ROOT / name
        text = path.read_text()
        made = written(path, text)
        if made == text:
            continue
        stale = True
        if check:
            sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), made.splitlines(True), name, "as spec/ says"))
        else:
            path.write_text(made)
            print(f"wrote {name}")
    wrong = [*sqlstates(), *verdict_numbers(), *telemetry_written_by_hand()]
    for each in wrong:
        print(each)
    if wrong:
        sys.exit("tools/spec.py: a fact of spec/ has another value, or is missing, in a source")
    if check and stale:
        sys.exit("tools/spec.py: a source differs from spec/: run tools/spec.py")


if __name__ == "__main__":
    main()
