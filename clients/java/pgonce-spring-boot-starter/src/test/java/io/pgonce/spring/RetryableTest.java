// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static io.pgonce.testing.Effects.newKey;
import static org.junit.jupiter.api.Assertions.assertEquals;

import io.pgonce.testing.Server;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.retry.annotation.EnableRetry;
import org.springframework.retry.annotation.Retryable;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** Spring's own retries within a protected handler: each try is in the one transaction of its answer. JPA's transactions have no savepoints. */
class RetryableTest {
    private static final AtomicInteger TRIES = new AtomicInteger();
    private static Server server;

    static class Service {
        private final JdbcTemplate jdbc;

        Service(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        private void work(String key, boolean sql) {
            jdbc.update("INSERT INTO effect (key) VALUES (?)", key);
            if (TRIES.incrementAndGet() % 2 == 1) {
                if (sql) {
                    jdbc.execute("SELECT 1/0");
                }
                throw new IllegalStateException("again");
            }
        }

        @Retryable
        public void plain(String key, boolean sql) {
            work(key, sql);
        }

        @Retryable
        @Transactional
        public void required(String key, boolean sql) {
            work(key, sql);
        }

        @Retryable
        @Transactional(propagation = Propagation.NESTED)
        public void nested(String key, boolean sql) {
            work(key, sql);
        }
    }

    @RestController
    static class Controller {
        private final Service service;

        Controller(Service service) {
            this.service = service;
        }

        @PostMapping("/orders")
        @Idempotent("orders")
        String order(@RequestBody String key, @RequestParam String how, @RequestParam boolean sql) {
            TRIES.set(0);
            switch (how) {
                case "required" -> service.required(key, sql);
                case "nested" -> service.nested(key, sql);
                default -> service.plain(key, sql);
            }
            return "done";
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @EnableRetry
    @Import({Controller.class, Service.class})
    static class Application {
    }

    @BeforeAll
    static void start() {
        server = new Server();
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    @ParameterizedTest
    @CsvSource({
        "false, plain, false, 200, 2",
        "false, plain, true, 500, 0",
        "false, required, false, 500, 0",
        "false, nested, false, 200, 1",
        "false, nested, true, 200, 1",
        "true, plain, false, 200, 2",
        "true, nested, false, 500, 0",
    })
    void aTryIsTakenBackOnlyByItsSavepoint(boolean jpa, String how, boolean sql, int status, int effects) throws Exception {
        try (ServletWebServerApplicationContext context = Apps.run(server, jpa ? Apps.SECURITY : Apps.BOTH, Application.class, "pgonce.tenant=none")) {
            String key = newKey();
            URI place = URI.create("http://127.0.0.1:" + context.getWebServer().getPort() + "/orders?how=" + how + "&sql=" + sql);
            HttpRequest request = HttpRequest.newBuilder(place).header("Idempotency-Key", key).POST(HttpRequest.BodyPublishers.ofString(key)).build();
            assertEquals(status, HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
            assertEquals(effects, server.rows("SELECT 1 FROM effect WHERE key = '" + key + "'").size());
        }
    }
}
