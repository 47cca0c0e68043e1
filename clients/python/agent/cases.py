# SPDX-License-Identifier: PostgreSQL
"""The words of spec/cases: what a case says of bytes, requests and answers."""

import base64

import pgonce


def bytes_of(member):
    if "text" in member:
        return member["text"].encode()
    if "base64" in member:
        return base64.b64decode(member["base64"])
    if "repeat" in member:
        return (member["repeat"] * member["count"]).encode()
    return None


def request_of(order):
    given = order["request"]
    if "http" in given:
        http = given["http"]
        return pgonce.HttpRequest(http["method"], http["target"], http.get("content_type", ""), bytes_of(http) or b"")
    if "json" in given:
        return given["json"]
    return given["text"] if "text" in given else bytes_of(given)


def body_of(answer):
    return answer["text"] if "text" in answer else answer["json"] if "json" in answer else bytes_of(answer)


def outcome_of(answer):
    names = ("status", "headers", "result_type", "result_id")
    return pgonce.Outcome(body=body_of(answer), **{name: answer[name] for name in names if name in answer})


def said(answer):
    """Of an answer of the client, as a line has it."""
    names = ("replayed", "status", "headers", "result_type", "result_id")
    return {name: getattr(answer, name) for name in names} | {"body": None if answer.body is None else base64.b64encode(answer.body).decode()}
