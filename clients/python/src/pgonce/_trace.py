# SPDX-License-Identifier: PostgreSQL
"""A span, a count and a duration for each call, where the application has OpenTelemetry's api; nothing elsewhere. With kind, scope
and verdict; never a key, a tenant or a body."""

from __future__ import annotations

import re
import time
from types import TracebackType
from typing import Any, Dict, Optional, Type

from .errors import OnceError

# spec: telemetry
_SPAN_PREFIX = "pgonce."
_KIND_ATTRIBUTE = "pgonce.kind"
_SCOPE_ATTRIBUTE = "pgonce.scope"
_VERDICT_ATTRIBUTE = "pgonce.verdict"
_CALLS_INSTRUMENT = "pgonce.calls"
_CALLS_ABOUT = "Calls, by kind, scope and verdict"
_DURATION_INSTRUMENT = "pgonce.duration"
_DURATION_ABOUT = "How long a call took, its effect included"
_DURATION_UNIT = "s"
# end of spec

try:
    from opentelemetry import metrics as _metrics, trace as _trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator as _Propagator

    _tracer = _trace.get_tracer("pgonce")
    _meter = _metrics.get_meter("pgonce")
    _calls = _meter.create_counter(_CALLS_INSTRUMENT, description=_CALLS_ABOUT)
    _duration = _meter.create_histogram(_DURATION_INSTRUMENT, unit=_DURATION_UNIT, description=_DURATION_ABOUT)
except ImportError:  # pragma: no cover - seen in a process without it
    _trace = None  # type: ignore[assignment]


class span:
    """`with span(kind, scope, traceparent) as within`. within.traceparent goes with the intent: the caller's own, else that of this span. Where the application
    has the api, as FastAPI brings it, and has set up nothing that spans would go to, there is none."""

    __slots__ = ("kind", "scope", "traceparent", "said", "begun", "manager", "made", "open")

    def __init__(self, kind: str, scope: str, traceparent: Optional[str]) -> None:
        self.kind, self.scope, self.traceparent, self.said = kind, scope, traceparent, "error"
        self.manager: Any = None
        self.open = _trace is not None

    def verdict(self, verdict: str) -> None:
        self.said = verdict

    def _labels(self) -> Dict[str, str]:
        return {_KIND_ATTRIBUTE: self.kind, _SCOPE_ATTRIBUTE: self.scope}

    def __enter__(self) -> "span":
        if self.open:
            self.begun = time.monotonic()
            if not isinstance(_trace.get_tracer_provider(), _trace.ProxyTracerProvider) or _trace.get_current_span() is not _trace.INVALID_SPAN:
                self.made = _tracer.start_span(_SPAN_PREFIX + self.kind, attributes=self._labels())
                self.manager = _trace.use_span(self.made, record_exception=False, set_status_on_exception=False)
                self.manager.__enter__()
                carrier: Dict[str, str] = {}
                _Propagator().inject(carrier)
                self.traceparent = self.traceparent or carrier.get("traceparent")
        return self

    def end(self, raised: Optional[BaseException] = None) -> None:
        """The call is over, even if the task continues. Called once, in any task."""
        if not self.open:
            return
        self.open = False
        if isinstance(raised, OnceError):  # its name; of any other error nothing is told
            self.said = re.sub(r"(?<=.)(?=[A-Z])", "_", type(raised).__name__).lower()
        if self.manager is not None:
            if raised is not None:
                self.made.set_status(_trace.StatusCode.ERROR)
            self.made.set_attribute(_VERDICT_ATTRIBUTE, self.said)
            self.made.end()
        labels = {**self._labels(), _VERDICT_ATTRIBUTE: self.said}
        _calls.add(1, labels)
        _duration.record(time.monotonic() - self.begun, labels)

    def __exit__(self, kind: Optional[Type[BaseException]], raised: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.end(raised)
        if self.manager is not None:
            self.manager.__exit__(None, None, None)
