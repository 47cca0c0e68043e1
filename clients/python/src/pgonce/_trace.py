# SPDX-License-Identifier: PostgreSQL
"""A span, a count and a duration for each call, where the application has OpenTelemetry's api; nothing elsewhere. With kind, scope
and verdict; never a key, a tenant or a body."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any, Dict, Iterator, Optional

from .errors import OnceError

try:
    from opentelemetry import metrics as _metrics, trace as _trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator as _Propagator

    _meter = _metrics.get_meter("pgonce")
    _calls = _meter.create_counter("pgonce.calls", description="Calls, by kind, scope and verdict")
    _duration = _meter.create_histogram("pgonce.duration", unit="s", description="How long a call took")
except ImportError:  # pragma: no cover - seen in a process without it
    _trace = None  # type: ignore[assignment]


class Span:
    """traceparent: what goes with the intent; the caller's own, else that of this span."""

    def __init__(self, traceparent: Optional[str]) -> None:
        self.traceparent, self.said = traceparent, "error"

    def verdict(self, verdict: str) -> None:
        self.said = verdict

    def of_error(self, raised: BaseException) -> None:
        """The name of the contract's error; of any other nothing is told."""
        if isinstance(raised, OnceError):
            self.said = re.sub(r"(?<=.)(?=[A-Z])", "_", type(raised).__name__).lower()


@contextlib.contextmanager
def span(kind: str, scope: str, traceparent: Optional[str]) -> Iterator[Span]:
    if _trace is None:
        yield Span(traceparent)
        return
    labels = {"pgonce.kind": kind, "pgonce.scope": scope}
    begun = time.monotonic()
    with _trace.get_tracer("pgonce").start_as_current_span(
        f"pgonce.{kind}", attributes=labels, record_exception=False, set_status_on_exception=False
    ) as made:
        carrier: Dict[str, str] = {}
        _Propagator().inject(carrier)
        within = Span(traceparent or carrier.get("traceparent"))
        try:
            yield within
        except BaseException as raised:
            within.of_error(raised)
            made.set_status(_trace.StatusCode.ERROR)
            raise
        finally:
            labels["pgonce.verdict"] = within.said
            made.set_attribute("pgonce.verdict", within.said)
            _calls.add(1, labels)
            _duration.record(time.monotonic() - begun, labels)
