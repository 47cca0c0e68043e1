// SPDX-License-Identifier: PostgreSQL

package onceotel

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"pgonce.internal/once"
)

func TestACallIsASpanAndACountWithItsVerdict(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	reader := sdkmetric.NewManualReader()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	observer := New()

	ctx, end := observer.Begin(context.Background(), "run", "orders")
	if trace := observer.Traceparent(ctx); len(trace) != 55 || !strings.HasPrefix(trace, "00-") {
		t.Fatalf("traceparent %q", trace)
	}
	end(once.Observed{Verdict: "mismatch", Attempts: 2, Err: errors.New("secret")})

	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Name() != "pgonce.run" {
		t.Fatalf("%v", ended)
	}
	said := map[string]string{}
	for _, each := range ended[0].Attributes() {
		said[string(each.Key)] = each.Value.Emit()
	}
	if said["pgonce.verdict"] != "mismatch" || said["pgonce.scope"] != "orders" || said["pgonce.attempts"] != "2" {
		t.Fatalf("%v", said)
	}
	if strings.Contains(ended[0].Status().Description, "secret") {
		t.Fatal("the span has the error's text")
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int64{}
	for _, each := range all.ScopeMetrics[0].Metrics {
		if sum, ok := each.Data.(metricdata.Sum[int64]); ok {
			counts[each.Name] = sum.DataPoints[0].Value
		}
	}
	if counts["pgonce.calls"] != 1 || counts["pgonce.attempts"] != 2 {
		t.Fatalf("%v", counts)
	}
}
