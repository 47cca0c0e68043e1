# SPDX-License-Identifier: PostgreSQL
"""A span for each run, where the application has OpenTelemetry's api; nothing elsewhere. Never a key, a tenant or a body."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional

try:
    from opentelemetry import trace as _trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator as _Propagator
except ImportError:  # pragma: no cover - seen in a process without it
    _trace = None  # type: ignore[assignment]


class Span:
    """traceparent: what goes with the intent; the caller's own, else that of this span."""

    def __init__(self, span: Any, traceparent: Optional[str]) -> None:
        self.span, self.traceparent = span, traceparent

    def verdict(self, verdict: str) -> None:
        if self.span is not None:
            self.span.set_attribute("once.verdict", verdict)

    def of_error(self, raised: BaseException) -> None:
        self.verdict(type(raised).__name__)


@contextlib.contextmanager
def span(name: str, scope: str, traceparent: Optional[str]) -> Iterator[Span]:
    if _trace is None:
        yield Span(None, traceparent)
        return
    with _trace.get_tracer("pgonce").start_as_current_span(
        name, attributes={"once.scope": scope}, record_exception=False, set_status_on_exception=False
    ) as made:
        carrier: Dict[str, str] = {}
        _Propagator().inject(carrier)
        within = Span(made, traceparent or carrier.get("traceparent"))
        try:
            yield within
        except BaseException as raised:
            within.of_error(raised)
            raise
