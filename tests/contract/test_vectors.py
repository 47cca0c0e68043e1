# SPDX-License-Identifier: PostgreSQL
"""spec/vectors: keys, canonical forms and fingerprints as data, for every language that speaks the contract. SQL and libpgonce must say
what the files say, and so must docs/reference/fingerprint.md, written down here once more. Where the files end, texts made at random go on."""

import base64
import ctypes
import decimal
import hashlib
import json
import os
import pathlib
import random
import re

import psycopg2
import pytest

from harness.postgres import ROOT

from .calls import code_of, run

VECTORS = ROOT / "spec/vectors"
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
KEYS, CANONICAL, FINGERPRINTS = (json.loads((VECTORS / f"{name}.json").read_text()) for name in ("keys", "canonical", "fingerprints"))
NOT_A_STRING = json.loads((ROOT / "spec/keys.json").read_text())["faults"]["not_a_string"]
BODY_BYTES_MAX = 1 << 20


def body_of(vector):
    """Its bytes: text as UTF-8, or what is no text."""
    return vector["text"].encode() if "text" in vector else base64.b64decode(vector["base64"])


# ---- docs/reference/fingerprint.md once more


def part(value):
    return len(value).to_bytes(8, "big") + value


def salt_of(tenant):
    return hashlib.sha256(bytes.fromhex(FINGERPRINTS["installation_salt"]) + tenant.encode()).digest()


def of_request(vector):
    body = body_of(vector)
    if vector["canonical_json"]:
        form = canonical(body)
        body = body if form is None else form
    parts = (vector["method"].encode(), (vector["content_type"] or "").encode(), body, vector["target"].encode())
    return hashlib.sha256(salt_of(vector["tenant"]) + b"r" + b"".join(map(part, parts))).hexdigest()


def of_bytes(vector):
    return hashlib.sha256(salt_of(vector["tenant"]) + b"b" + body_of(vector)).hexdigest()


def of_json(vector):
    return hashlib.sha256(salt_of(vector["tenant"]) + b"j" + canonical(body_of(vector))).hexdigest()


def plain(number):
    power = re.search(r"[eE][-+]?0*([0-9]*)$", number)
    if len(number) > 100 or (power and len(power[1]) > 2):
        raise ValueError
    with decimal.localcontext(decimal.Context(prec=400)):
        text = format(decimal.Decimal(number).normalize(), "f")
    text = "0" if text == "-0" else text
    if len(text) > 100:
        raise ValueError
    return text


class Number(str):
    pass


def no_json(constant):
    raise ValueError(constant)


def members(pairs):
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


def written(value, depth=0):
    if isinstance(value, Number):
        return plain(value)
    if isinstance(value, str):
        if re.search("[\0\ud800-\udfff]", value):
            raise ValueError
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (dict, list)) and depth == 64:
        raise ValueError
    if isinstance(value, list):
        return "[" + ", ".join(written(each, depth + 1) for each in value) + "]"
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: (len(name.encode("utf-8", "surrogatepass")), name.encode("utf-8", "surrogatepass")))
        return "{" + ", ".join(written(name) + ": " + written(value[name], depth + 1) for name in names) + "}"
    return json.dumps(value)


def canonical(body):
    """The canonical form; None where there is none."""
    try:
        if len(body) > BODY_BYTES_MAX:
            raise ValueError
        value = json.loads(body.decode(), object_pairs_hook=members, parse_int=Number, parse_float=Number, parse_constant=no_json)
        return written(value).encode()
    except (ValueError, decimal.InvalidOperation, RecursionError):
        return None


# ---- libpgonce


class Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class Library:
    """libpgonce.so as a program finds it."""

    def __init__(self):
        self.so = ctypes.CDLL(str(BUILD / "lib/libpgonce.so"))
        for accessor in ("once_error_sqlstate", "once_error_detail", "once_error_message"):
            getattr(self.so, accessor).restype = ctypes.c_char_p
            getattr(self.so, accessor).argtypes = [ctypes.c_void_p]
        self.so.once_error_free.argtypes = [ctypes.c_void_p]
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = [ctypes.c_void_p]

    def call(self, function, *arguments):
        """None, or the error's SQLSTATE, message and detail."""
        error = ctypes.c_void_p()
        if getattr(self.so, function)(*arguments, ctypes.byref(error)) == 0:
            return None
        said = tuple(getattr(self.so, f"once_error_{what}")(error).decode() for what in ("sqlstate", "message", "detail"))
        self.so.once_error_free(error)
        return said

    def key_of_header(self, value, strict=False):
        key = ctypes.create_string_buffer(256)
        failed = self.call("once_key_of_header", Bytes(value, len(value)), ctypes.c_bool(strict), ctypes.c_size_t(255), key)
        return (failed[0], failed[2]) if failed else key.value.decode()

    def canonical(self, body):
        form, length = ctypes.c_void_p(), ctypes.c_size_t()
        assert not self.call("once_json_canonical", Bytes(body, len(body)), ctypes.byref(form), ctypes.byref(length))
        found = None if form.value is None else ctypes.string_at(form, length.value)
        self.free(form)
        return found

    def session(self, dsn):
        session = ctypes.c_void_p()
        assert not self.call("once_session_open", dsn.encode(), ctypes.byref(session))
        return session

    def fingerprint(self, function, *arguments):
        made = ctypes.create_string_buffer(32)
        failed = self.call(function, *arguments, made)
        assert not failed, failed
        return made.raw.hex()


@pytest.fixture(scope="module")
def library():
    return Library()


@pytest.fixture(scope="module")
def salted(server):
    """A database whose salt is that of the vectors."""
    database = server.new_database()
    database.execute("UPDATE once.setting SET salt = %s", bytes.fromhex(FINGERPRINTS["installation_salt"]))
    yield database
    database.drop()


@pytest.fixture(scope="module", params=["on", "off"])
def connection(request, salted):
    """Whatever the session thinks of a backslash in a literal."""
    connection = salted.connect()
    run(connection, f"SET standard_conforming_strings = {request.param}")
    yield connection
    connection.close()


# ---- Keys


def sql_key(connection, header):
    try:
        return run(connection, "SELECT once.key_of_header(%s)", header)[0][0]
    except psycopg2.Error as error:
        return error.pgcode, error.diag.message_detail


def agrees(found, vector):
    if "key" in vector:
        return found == vector["key"]
    return isinstance(found, tuple) and found[0] == "P4001" and found[1].endswith(vector["refused"])


@pytest.mark.parametrize("vector", KEYS["keys"], ids=lambda vector: ascii(vector["header"][:40]))
def test_sql_and_libpgonce_find_the_key_of_a_header_or_say_why_not(connection, library, vector):
    assert agrees(sql_key(connection, vector["header"]), vector)
    assert agrees(library.key_of_header(vector["header"].encode()), vector)
    strict = library.key_of_header(vector["header"].encode(), strict=True)
    quoted = vector["header"].lstrip(" ").startswith('"')
    assert agrees(strict, vector) if quoted else strict[0] == "P4001" and strict[1] in (vector.get("refused"), NOT_A_STRING)


def test_a_key_is_a_string_of_rfc_8941_where_that_is_asked_for(library):
    assert library.key_of_header(b'"abc"', strict=True) == "abc" == library.key_of_header(b"abc")
    assert library.key_of_header(b"abc", strict=True)[0] == "P4001"


def test_no_header_has_no_key_and_start_refuses_that(db):
    assert db.value("SELECT once.key_of_header(NULL)") is None
    assert code_of(lambda: db.execute("SELECT once.start('s', once.key_of_header(NULL), once.fingerprint('a'::text))")) == "P4001"


def random_header(chance):
    pieces = ['"', '"', "\\", '\\"', "\\\\", "a", "abc", "1", "-", ".", "12345678901234567", "1.5", ";", "; ", "=", "q=", "a=?1", "=:YQ==:", ":", "*",
              " ", ",", "~", "\t", "é", "=tok/en", ';x="y"', "k" * 130]  # fmt: skip
    text = "".join(chance.choice(pieces) for _ in range(chance.randrange(9)))
    return f'"{text}' if chance.random() < 0.6 else text


def test_sql_and_libpgonce_agree_on_headers_at_random(salted, library):
    chance = random.Random(20)
    connection = salted.connect()
    seen = set()
    for _ in range(4000):
        header = random_header(chance)
        found = library.key_of_header(header.encode())
        vector = {"refused": found[1]} if isinstance(found, tuple) else {"key": found}
        seen.add(vector.get("refused"))
        assert agrees(sql_key(connection, header), vector), header
    assert len(seen) == 9


# ---- The canonical form


def sql_canonical(connection, body):
    form = run(connection, "SELECT once._json_body(%s)", psycopg2.Binary(body))[0][0]
    return None if form is None else bytes(form)


@pytest.mark.parametrize("vector", CANONICAL["canonical"], ids=lambda vector: ascii(vector.get("text", vector.get("base64"))[:40]))
def test_sql_and_libpgonce_give_a_json_text_its_canonical_form_or_none(connection, library, vector):
    body, form = body_of(vector), None if vector["canonical"] is None else vector["canonical"].encode()
    assert canonical(body) == form
    assert library.canonical(body) == form
    assert sql_canonical(connection, body) == form
    if form is not None:
        assert library.canonical(form) == form == sql_canonical(connection, form)


@pytest.mark.parametrize("vector", CANONICAL["canonical"], ids=lambda vector: ascii(vector.get("text", vector.get("base64"))[:40]))
def test_jsonb_has_the_same_form(connection, vector):
    if vector["canonical"] is not None:
        assert run(connection, "SELECT once._json_text(%s::jsonb)", vector["text"])[0][0] == vector["canonical"]


def random_json(chance, depth=0):
    kind = chance.randrange(9 if depth < 4 else 6)
    space = chance.choice(["", "", " ", "\n\t"])
    if kind < 3:
        number = chance.choice(["0", "-0", "1", "10", "12050", "-7"]) + chance.choice(["", "", ".0", ".50", ".05", ".000", "."])
        return space + number + chance.choice(["", "", "e0", "E+2", "e-3", "e99", "e100", "e"])
    if kind == 3:
        return space + chance.choice(["true", "false", "null", "nul", "01", "+1", "\ufeff", "\x01", "'a'"])
    if kind < 6:
        pieces = ["a", "é", "\U0001f600", "\\n", "\\u0041", "\\u001F", "\\ud83d\\ude00", '\\"', "\\\\", "/", "\\/", ": 1.50, ", "{", "]", "\x7f", ".0"]
        bad = ["\\ud800", "\\u0000", "\t", "\\x", '"'] if chance.random() < 0.04 else []
        return space + '"' + "".join(chance.choice(pieces + bad) for _ in range(chance.randrange(5))) + '"'
    if kind == 6:
        return space + "[" + ",".join(random_json(chance, depth + 1) for _ in range(chance.randrange(5))) + "]" + space
    names = [chance.choice(['"a"', '"b"', '"aa"', '"\\u0061"', '"é"', '"\\n"', '"!"', '""', '"\U0001f600"', '"ｱ"', '"c d"']) for _ in range(chance.randrange(4))]
    return space + "{" + ",".join(f"{space}{name}{space}:" + random_json(chance, depth + 1) for name in names) + "}"


def test_sql_and_libpgonce_agree_on_json_texts_at_random(salted, library):
    chance = random.Random(21)
    connection = salted.connect()
    forms = 0
    for _ in range(4000):
        body = random_json(chance).encode()
        if chance.random() < 0.2 and body:
            at = chance.randrange(len(body))
            body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
        form = canonical(body)
        forms += form is not None
        assert library.canonical(body) == form, body
        assert sql_canonical(connection, body) == form, body
    assert 1000 < forms < 3500


def test_a_text_of_more_than_a_mebibyte_has_no_canonical_form_and_is_hashed_as_it_is(salted, library):
    connection = salted.connect()
    body = b"[" + b" " * (BODY_BYTES_MAX - 2) + b"]"
    assert library.canonical(body) == b"[]" == sql_canonical(connection, body)
    assert library.canonical(body + b" ") is None is sql_canonical(connection, body + b" ")
    query = "SELECT once.request_fingerprint('POST', '/', '', %s, canonical_json => %s)"
    longer = psycopg2.Binary(body + b" ")
    assert run(connection, query, longer, True) == run(connection, query, longer, False)
    session = library.session(salted.dsn())
    arguments = (session, None, b"POST", b"/", None, Bytes(body + b" ", len(body) + 1))
    assert library.fingerprint("once_fingerprint_request", *arguments, True) == library.fingerprint("once_fingerprint_request", *arguments, False)
    library.so.once_session_close(session)


# ---- Fingerprints


def test_the_files_say_what_the_specification_says():
    assert FINGERPRINTS["salts"] == {tenant: salt_of(tenant).hex() for tenant in FINGERPRINTS["salts"]}
    for vectors, formula in (("requests", of_request), ("bytes", of_bytes), ("json", of_json)):
        for vector in FINGERPRINTS[vectors]:
            assert vector["fingerprint"] == formula(vector), vector


def sql_print(connection, query, *values):
    return bytes(run(connection, query, *values)[0][0]).hex()


def text_of(body):
    """None where no text of PostgreSQL has these bytes."""
    try:
        return None if b"\0" in body else body.decode()
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("vector", FINGERPRINTS["requests"], ids=lambda vector: vector["fingerprint"][:8])
def test_sql_gives_a_request_the_fingerprint_of_the_vector_as_bytes_and_as_text(connection, vector):
    query = "SELECT once.request_fingerprint(%s, %s, %s, %s, %s, %s)"
    said = vector["method"], vector["target"], vector["content_type"]
    options = vector["tenant"], vector["canonical_json"]
    assert sql_print(connection, query, *said, psycopg2.Binary(body_of(vector)), *options) == vector["fingerprint"]
    if text_of(body_of(vector)) is not None:
        assert sql_print(connection, query, *said, text_of(body_of(vector)), *options) == vector["fingerprint"]


@pytest.mark.parametrize("vector", FINGERPRINTS["bytes"], ids=lambda vector: vector["fingerprint"][:8])
def test_sql_gives_bytes_and_their_text_the_fingerprint_of_the_vector(connection, vector):
    assert sql_print(connection, "SELECT once.fingerprint(%s, %s)", psycopg2.Binary(body_of(vector)), vector["tenant"]) == vector["fingerprint"]
    if text_of(body_of(vector)) is not None:
        assert sql_print(connection, "SELECT once.fingerprint(%s::text, %s)", text_of(body_of(vector)), vector["tenant"]) == vector["fingerprint"]


@pytest.mark.parametrize("vector", FINGERPRINTS["json"], ids=lambda vector: vector["fingerprint"][:8])
def test_sql_gives_jsonb_the_fingerprint_of_the_vector(connection, vector):
    assert sql_print(connection, "SELECT once.fingerprint(%s::jsonb, %s)", vector["text"], vector["tenant"]) == vector["fingerprint"]


def test_libpgonce_gives_each_vector_its_fingerprint(salted, library):
    session = library.session(salted.dsn())
    for vector in FINGERPRINTS["requests"]:
        body, tenant = body_of(vector), vector["tenant"].encode()
        kind = vector["content_type"] and vector["content_type"].encode()
        said = vector["method"].encode(), vector["target"].encode(), kind
        made = library.fingerprint("once_fingerprint_request", session, tenant, *said, Bytes(body, len(body)), vector["canonical_json"])
        assert made == vector["fingerprint"], vector
    for vector in FINGERPRINTS["bytes"]:
        body = body_of(vector)
        assert library.fingerprint("once_fingerprint_bytes", session, vector["tenant"].encode(), Bytes(body, len(body))) == vector["fingerprint"]
    for vector in FINGERPRINTS["json"]:
        assert library.fingerprint("once_fingerprint_json", session, vector["tenant"].encode(), vector["text"].encode()) == vector["fingerprint"]
    library.so.once_session_close(session)
