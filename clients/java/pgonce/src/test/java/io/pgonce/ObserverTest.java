// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.metrics.data.LongPointData;
import io.opentelemetry.sdk.testing.exporter.InMemoryMetricReader;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.pgonce.testing.Server;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** What OpenTelemetry is told, where it is there. */
class ObserverTest {
    @AfterEach
    void forget() {
        GlobalOpenTelemetry.resetForTest();
    }

    @Test
    void aCallIsASpanAndACountWithItsVerdictAndNeverItsKey() throws Exception {
        InMemorySpanExporter spans = InMemorySpanExporter.create();
        InMemoryMetricReader metrics = InMemoryMetricReader.create();
        GlobalOpenTelemetry.resetForTest();
        GlobalOpenTelemetry.set(OpenTelemetrySdk.builder()
            .setTracerProvider(SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(spans)).build())
            .setMeterProvider(SdkMeterProvider.builder().registerMetricReader(metrics).build()).build());
        try (Server server = new Server()) {
            Once once = Once.over(Server.plain(server.url()));
            for (int i = 0; i < 2; i++) {
                once.run("orders", "secret-key", Request.text("1"), tx -> Answer.of(201));
            }
            assertThrows(MismatchException.class, () -> once.run("orders", "secret-key", Request.text("2"), tx -> Answer.of(201)));
            assertThrows(IllegalStateException.class, () -> once.run("orders", "secret-other", Request.text("1"), tx -> {
                throw new IllegalStateException("secret");
            }));
            List<String> said = new ArrayList<>();
            for (SpanData each : spans.getFinishedSpanItems()) {
                said.add(each.getName() + " " + each.getAttributes().get(AttributeKey.stringKey("pgonce.scope")) + " "
                    + each.getAttributes().get(AttributeKey.stringKey("pgonce.verdict")));
                assertFalse(each.toString().contains("secret"), each.toString());
            }
            assertEquals(List.of("pgonce.run orders proceed", "pgonce.run orders replay", "pgonce.run orders mismatch", "pgonce.run orders error"), said);
            // The trace of the attempt is stored with the intent.
            assertEquals(spans.getFinishedSpanItems().get(0).getTraceId(),
                server.rows("SELECT substr(traceparent, 4, 32) FROM once.peek('orders', 'secret-key')").get(0).get(0));
        }
        long counted = metrics.collectAllMetrics().stream().filter(each -> "pgonce.calls".equals(each.getName()))
            .flatMap(each -> each.getLongSumData().getPoints().stream()).mapToLong(LongPointData::getValue).sum();
        assertEquals(4, counted);
    }
}
