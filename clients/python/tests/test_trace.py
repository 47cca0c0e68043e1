# SPDX-License-Identifier: PostgreSQL
"""What OpenTelemetry is told, where it is there."""

import psycopg
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.background import BackgroundTask

import pgonce

from .test_asgi import Wrapped, placed, served


@pytest.fixture(scope="module")
def told():
    """The providers are the process's, and can be set once."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([reader]))
    return spans, reader


def test_a_call_is_a_span_a_count_and_a_duration_with_its_verdict_and_never_its_key(db, told):
    spans, reader = told

    def run(key, request, effect=lambda tx: (201, "done")):
        return pgonce.run(lambda: psycopg.connect(db.dsn), "traced", key, request, effect)

    def fails(tx):
        raise ValueError("secret")

    run("secret-key", 1)
    run("secret-key", 1)
    with pytest.raises(pgonce.Mismatch):
        run("secret-key", 2)
    with pytest.raises(ValueError):
        run("secret-other", 1, fails)
    with pgonce.claim(lambda: psycopg.connect(db.dsn), "traced", "secret-claim", 1) as held:
        held.release()
    said = [each for each in spans.get_finished_spans() if each.attributes["pgonce.scope"] == "traced"]
    kinds = [("run", "proceed"), ("run", "replay"), ("run", "mismatch"), ("run", "error"), ("claim", "proceed")]
    assert [(each.name, each.attributes["pgonce.verdict"]) for each in said] == [(f"pgonce.{kind}", verdict) for kind, verdict in kinds]
    assert [each.status.is_ok for each in said] == [True, True, False, False, True]
    assert not any("secret" in each.to_json() for each in said)
    stored = db.value("SELECT traceparent FROM once.peek('traced', 'secret-key')")
    assert stored == f"00-{said[0].context.trace_id:032x}-{said[0].context.span_id:016x}-{said[0].context.trace_flags:02x}"
    points = {}
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            if point.attributes["pgonce.scope"] == "traced":
                points[metric.name, point.attributes["pgonce.kind"], point.attributes["pgonce.verdict"]] = point
    assert set(points) == {(name, kind, verdict) for name in ("pgonce.calls", "pgonce.duration") for kind, verdict in kinds}
    assert sum(point.value for (name, *_), point in points.items() if name == "pgonce.calls") == 5


def test_no_span_is_made_where_nothing_is_set_up_that_it_would_go_to(db, told, monkeypatch):
    """As in an application of FastAPI, which brings the api along."""
    spans, _ = told
    before = len(spans.get_finished_spans())
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    assert not pgonce.run(lambda: psycopg.connect(db.dsn), "untraced", "key", 1, lambda tx: None).replayed
    assert len(spans.get_finished_spans()) == before and db.value("SELECT traceparent FROM once.peek('untraced', 'key')") is None


@pytest.mark.parametrize("inner", [None, Wrapped])
def test_a_request_is_a_span_that_ends_with_its_answer_whichever_task_sends_it(db, told, caplog, inner):
    spans, _ = told
    key = f"traced-{inner is None}"
    ended = []

    async def order(request):
        return await placed(request, key, BackgroundTask(lambda: ended.append(spans.get_finished_spans()[-1].name)))

    _, client = served(db.url, order, key, None, inner)
    assert client.status == 201 and ended == ["pgonce.http"]
    last = [each for each in spans.get_finished_spans() if each.name == "pgonce.http"][-1]
    assert last.attributes["pgonce.verdict"] == "proceed"
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]
