# SPDX-License-Identifier: PostgreSQL
"""What an attempt answers, and what goes in: the stored outcome, an effect's outcome, the request that is fingerprinted."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

from .errors import AnswerNotStored, UsageError

Json = Union[None, bool, int, float, str, List[Any], Dict[str, Any]]


# An id as an application has it: integers and UUIDs are written out.
Id = Union[str, int, uuid.UUID]


def name_of(value: Any, parameter: str) -> Any:
    """An id as text. Of a float or a truth value it is not certain which id was meant."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"{parameter} is a str, an int or a UUID, and this is none")


@dataclasses.dataclass(frozen=True)
class Answer:
    """replayed: it was stored before; nothing was run. headers: JSON as it is stored. body: None without a body."""

    replayed: bool
    state: str
    status: Optional[int] = None
    headers: Any = None
    body: Optional[bytes] = None
    result_type: Optional[str] = None
    result_id: Optional[str] = None
    error_code: Optional[str] = None
    error_message: Optional[str] = None
    traceparent: Optional[str] = None
    fence: int = 0

    @property
    def text(self) -> str:
        return (self.body or b"").decode("utf-8")

    def json(self) -> Any:
        """The body, read as JSON; None without a body."""
        return None if self.body is None else json.loads(self.body)


def stored(row: Sequence[Any], *, replayed: bool, fence: int) -> Answer:
    """Of the nine columns that every look-up ends with."""
    state, status, headers, body, result_type, result_id, error_code, error_message, traceparent = row
    return Answer(
        replayed=replayed,
        state=state,
        status=status,
        headers=None if headers is None else json.loads(headers),
        body=None if body is None else bytes(body),
        result_type=result_type,
        result_id=result_id,
        error_code=error_code,
        error_message=error_message,
        traceparent=traceparent,
        fence=fence,
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an effect answers. body: str is stored as text, bytes as bytes, anything else as JSON."""

    status: Optional[int] = None
    body: Any = None
    headers: Any = None
    result_type: Optional[str] = None
    result_id: Optional[Id] = None
    error_code: Optional[str] = None
    error_message: Optional[str] = None

    def result(self) -> Tuple[Optional[str], Optional[str]]:
        return name_of(self.result_type, "result_type"), name_of(self.result_id, "result_id")

    def bodies(self) -> Tuple[Optional[str], Optional[str], Optional[bytes], Optional[str]]:
        """The parameters response_text, response_json, response_body and response_headers: a str is never taken for bytes."""
        headers = None if self.headers is None else dumps(self.headers, AnswerNotStored)
        if self.body is None:
            return None, None, None, headers
        if isinstance(self.body, str):
            return self.body, None, None, headers
        if isinstance(self.body, (bytes, bytearray, memoryview)):
            return None, None, bytes(self.body), headers
        return None, dumps(self.body, AnswerNotStored), None, headers


def outcome_of(result: Any) -> Outcome:
    """An effect returns an Outcome, (status, body), or a body alone."""
    if isinstance(result, Outcome):
        return result
    if isinstance(result, tuple):
        if len(result) == 2 and isinstance(result[0], int) and not isinstance(result[0], bool):
            return Outcome(status=result[0], body=result[1])
        raise AnswerNotStored("an effect returns an Outcome, (status, body), or a body that is no tuple")
    return Outcome(body=result)


def _plain(value: Any) -> Any:
    """Values that JSON has no type for, as they are usually written."""
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # pydantic's
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is no JSON")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode


def dumps(value: Any, refusal: Type[UsageError] = UsageError) -> str:
    """JSON that PostgreSQL accepts, without NaN and Infinity. Raises refusal."""
    try:
        return _encode(value)
    except (TypeError, ValueError) as wrong:
        raise refusal(
            "this is no JSON: give str, bytes, or what json.dumps takes, with Decimal, UUID, date, time, datetime, Enum, dataclasses and pydantic's models"
        ) from wrong


@dataclasses.dataclass(frozen=True)
class HttpRequest:
    """A request as the gateway fingerprints it. target: the host in lower case, then path and query as in the request line."""

    method: str
    target: str
    content_type: str
    body: bytes
    canonical_json: bool = False


Request = Union[HttpRequest, bytes, str, Mapping[str, Any], Sequence[Any], int, float, bool]


def fingerprint_of(request: Any, tenant: str) -> Tuple[str, List[Any]]:
    """The kind, and the parameters that precede those of the call."""
    if request is None:
        raise UsageError("the request is None: pass what distinguishes this request from another with the same key")
    if isinstance(request, HttpRequest):
        return "http", [
            request.body, tenant, request.method, request.target, request.content_type, request.canonical_json,
        ]  # fmt: skip
    if isinstance(request, (bytes, bytearray, memoryview)):
        return "bytes", [bytes(request), tenant]
    if isinstance(request, str):
        return "text", [request, tenant]
    return "json", [dumps(request), tenant]
