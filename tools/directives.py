# SPDX-License-Identifier: PostgreSQL
"""The page of the gateway's directives and variables, for docs.py. The module's source says which there are, where each may stand, which words it
takes and what it is by default; spec/directives.json has the texts, and what the source cannot say."""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = json.loads((ROOT / "spec/directives.json").read_text())
KEPT = json.loads((ROOT / "spec/headers.json").read_text())["kept"]["names"]
MODULE = (ROOT / "gateway/ngx_http_once_module.c").read_text()
VARIABLES = (ROOT / "gateway/ngx_http_once_variables.c").read_text()
CONTEXTS = {"MAIN_DIRECTIVE": "http", "DIRECTIVE": "http, server, location"}
LETTERS = {"etag": "ETag", "x-*": "X-*"}  # else each word has one capital


def commands():
    """{name: (context, the function that sets it, its field, the name of its list of values)} from the module's table."""
    found = {name: (CONTEXTS[macro], setter, field, post.strip("&"))
             for macro, name, setter, field, post in re.findall(r'^\s+(MAIN_DIRECTIVE|DIRECTIVE)\("(\w+)", \w+, (\w+), (\w+), (&?\w+)\),$', MODULE, re.M)}
    return found | {name: ("location", setter, "", "NULL") for name, setter in re.findall(r'\{ngx_string\("(\w+)"\), NGX_HTTP_LOC_CONF \| [^,]+, (\w+),', MODULE)}


def values(name):
    """[(word, what stands for it in the source)] of a list of values."""
    body = re.search(rf"ngx_conf_enum_t {name}\[\] = \{{(.*?)\{{ngx_null_string", MODULE, re.S)
    return re.findall(r'ngx_string\("(\w+)"\), (\w+)', body[1]) if body else []


def shown(number, units):
    for unit, size in units:
        if number % size == 0 and number >= size:
            return f"{number // size}{unit}"
    return str(number)


def default(field, words):
    """As the code that merges settings has it, or None if that is no literal."""
    found = re.search(rf"ngx_conf_(?:merge|init)_(\w*?)_?value\(conf->{field}, (?:prev->{field}, )?([\w *]+)\);", MODULE)
    if found is None:
        return None
    kind, literal = found[1], found[2]
    if words:
        return dict((code, word) for word, code in words).get(literal)
    if re.fullmatch(r"[\d *]+", literal) is None:
        return None
    number = 1
    for factor in literal.split("*"):
        number *= int(factor)
    if kind == "msec":
        return shown(number, (("s", 1000), ("ms", 1)))
    return shown(number, (("m", 1 << 20), ("k", 1 << 10))) if kind == "size" else str(number)


def row(name, text):
    """(what it takes, its default, its context)"""
    context, setter, field, post = commands()[name]
    words = [("on", "1"), ("off", "0")] if setter == "ngx_conf_set_flag_slot" else values(post)
    taken = ", ".join(word for word, _ in words)
    made = default(field, words)
    if taken and "takes" in text or made is not None and "default" in text:
        sys.exit(f"tools/directives.py: spec/directives.json says of {name} what the source says")
    if not (taken or "takes" in text) or made is None and "default" not in text:
        sys.exit(f"tools/directives.py: spec/directives.json says too little of {name}")
    return taken or text["takes"], made if made is not None else text["default"], context


def kept():
    return " ".join(f"`{LETTERS.get(name) or '-'.join(word.capitalize() for word in name.split('-')).replace('Ratelimit', 'RateLimit')}`" for name in KEPT)


def table(head, *rows):
    return ["| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *rows)]


def document():
    texts = {name: text for group in SPEC["groups"] for name, text in group["directives"].items()}
    variables = re.findall(r'ngx_string\("(once_\w+)"\)', VARIABLES)
    for what, said, declared in (("directives", texts, commands()), ("variables", SPEC["variables"], variables)):
        if set(said) != set(declared):
            sys.exit(f"tools/directives.py: {what} of spec/directives.json and of the gateway's source differ: {sorted(set(said) ^ set(declared))}")
    rows = {name: row(name, text) for name, text in texts.items()}
    out = ["# Directives and variables of the gateway\n",
           "For everyone who writes the nginx configuration: what each directive of the gateway takes, its default, and what it does. [gateway.md](gateway.md) says how requests are decided.\n",
           *table(["directive", "default", "context"], *([f"[{name}](#{name})", by_default, context] for name, (_, by_default, context) in rows.items())), "",
           "[Variables](#variables) for logs and conditions are at the end.\n"]
    for group in SPEC["groups"]:
        out.append(f"## {group['title']}\n")
        out += [group["about"] + "\n"] if "about" in group else []
        for name, text in group["directives"].items():
            takes, by_default, context = rows[name]
            out.append(f"### {name}\n\nTakes: {takes}. Default: {by_default or 'none'}. Context: {context}.\n")
            out += [paragraph.replace("@kept@", kept()) + "\n" for paragraph in text["text"]]
            out += [*table(*text["table"]), ""] if "table" in text else []
    return "\n".join([*out, f"## Variables\n\n{SPEC['variables_about']}\n", *table(["variable", "value"], *([f"`${name}`", SPEC["variables"][name]] for name in SPEC["variables"])), ""])
