// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.newKey;

import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.testing.Child;
import io.pgonce.testing.Server;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.InputStream;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.test.system.CapturedOutput;
import org.springframework.boot.test.system.OutputCaptureExtension;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.dao.DataIntegrityViolationException;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.CrossOrigin;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.PutMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.bind.annotation.RestControllerAdvice;
import org.springframework.web.filter.RelativeRedirectFilter;
import org.springframework.web.servlet.mvc.method.annotation.SseEmitter;

/** What stands around a handler in real applications, on Tomcat over real connections: the protected endpoint answers as the unprotected one. */
@ExtendWith(OutputCaptureExtension.class)
class NeighboursTest {
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final AtomicInteger RUNS = new AtomicInteger();
    private static CountDownLatch gate;
    private static CountDownLatch arrived;
    private static volatile String seenPlace;
    private static Server server;
    private static ServletWebServerApplicationContext context;

    @RestController
    static class Controller {
        private final JdbcTemplate jdbc;
        private final DataSource source;

        Controller(JdbcTemplate jdbc, DataSource source) {
            this.jdbc = jdbc;
            this.source = source;
        }

        private void effect(String key) {
            RUNS.incrementAndGet();
            jdbc.update("INSERT INTO effect (key) VALUES (?)", key);
        }

        @PostMapping("/endings")
        @Idempotent("endings")
        String end(@RequestBody String key, @RequestParam String how) {
            effect(key);
            switch (how) {
                case "method" -> jdbc.execute((ConnectionCallback<Void>) connection -> {
                    connection.commit();
                    return null;
                });
                case "text" -> jdbc.execute("COMMIT");
                case "autocommit" -> jdbc.execute((ConnectionCallback<Void>) connection -> {
                    connection.setAutoCommit(true);
                    return null;
                });
                case "behind" -> jdbc.execute((ConnectionCallback<Void>) connection -> {
                    try (var statement = ((Connection) connection.unwrap(org.postgresql.PGConnection.class)).createStatement()) {
                        statement.execute("COMMIT");
                    }
                    return null;
                });
                default -> { }
            }
            return "done";
        }

        @PostMapping("/late")
        @Idempotent("late")
        String late(@RequestBody String key) {
            effect(key);
            jdbc.update("INSERT INTO late VALUES (?), (?)", key, key);
            return "done";
        }

        @PostMapping("/deadlocks")
        @Idempotent("deadlocks")
        String deadlock(@RequestBody String key) {
            effect(key);
            jdbc.execute("DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$");
            return "done";
        }

        @PostMapping("/links")
        @Idempotent("links")
        ResponseEntity<String> links(@RequestBody String key) {
            effect(key);
            return ResponseEntity.status(201).header("Link", "<a>", "<b>").header("X-Many", "2", "1").body("linked");
        }

        @PostMapping("/numbers")
        @Idempotent("numbers")
        void number(@RequestBody String key, @RequestParam int status, @RequestParam String effect, HttpServletResponse response) {
            effect(key);
            response.setStatus(status);
            response.setHeader("Once-Effect", effect);
        }

        @PostMapping({"/moved", "/moved-by-spring"})
        @Idempotent("moved")
        void move(@RequestBody String key, @RequestParam String to, HttpServletResponse response) throws Exception {
            effect(key);
            response.setHeader("Location", "elsewhere");
            response.sendRedirect(to);
            boolean isTold = response.containsHeader("location") && response.getHeaderNames().contains("Location");
            seenPlace = isTold && List.of(response.getHeader("location")).equals(List.copyOf(response.getHeaders("Location"))) ? response.getHeader("location") : null;
        }

        @PutMapping("/put")
        @Idempotent("put")
        String put(@RequestBody String key) {
            effect(key);
            return "put";
        }

        @CrossOrigin(origins = "https://shop.test", exposedHeaders = "Idempotency-Replayed")
        @PostMapping("/cors")
        @Idempotent("cors")
        String cors(@RequestBody String key) {
            effect(key);
            return "shared";
        }

        /** Declares more than it writes. */
        @PostMapping("/short")
        @Idempotent("short")
        void half(@RequestBody String key, HttpServletResponse response) throws Exception {
            effect(key);
            response.setContentLength(95);
            response.getOutputStream().write(new byte[18]);
        }

        /** Fails when a part of its answer is on its way, and an exception handler says 200. */
        @PostMapping("/broken")
        @Idempotent("broken")
        void broken(@RequestBody String key, HttpServletResponse response) throws Exception {
            effect(key);
            response.getOutputStream().write(new byte[18]);
            response.flushBuffer();
            throw new UnsupportedOperationException("half");
        }

        @PostMapping("/slow")
        @Idempotent(value = "slow", handlerMs = 700)
        String slow(@RequestBody String key, @RequestParam String how) throws Exception {
            effect(key);
            switch (how) {
                case "sleep" -> Thread.sleep(60_000);
                case "sql" -> jdbc.queryForList("SELECT pg_sleep(60)");
                case "deaf" -> {
                    while (gate.getCount() > 0) {
                        Thread.onSpinWait();
                    }
                }
                default -> { }
            }
            return "done";
        }

        @PostMapping("/second")
        @Idempotent(value = "second", handlerMs = 20_000)
        String second(@RequestBody String key) throws Exception {
            effect(key);
            try (Connection second = source.getConnection()) {
                return "second " + second.isValid(1);
            }
        }

        @PostMapping("/leased")
        @Idempotent(value = "leased", mode = Idempotent.Mode.LEASE)
        ResponseEntity<String> leased(@RequestBody String key, @RequestParam String how) throws Exception {
            try (Connection own = source.getConnection(); var statement = own.createStatement()) {
                RUNS.incrementAndGet();
                statement.execute("INSERT INTO effect (key) VALUES ('" + key + "')");
            }
            return switch (how) {
                case "throw" -> throw new UnsupportedOperationException("nobody knows");
                case "500" -> ResponseEntity.status(500).body("oops");
                case "again" -> ResponseEntity.status(503).header("Retry-After", "1").body("later");
                case "422" -> ResponseEntity.status(422).body("no");
                default -> ResponseEntity.status(201).body("done " + RUNS.get());
            };
        }

        @PostMapping("/events")
        @Idempotent("events")
        SseEmitter events(@RequestBody String key) throws Exception {
            effect(key);
            SseEmitter emitter = new SseEmitter();
            emitter.send("first");
            new Thread(() -> {
                try {
                    gate.await(60, TimeUnit.SECONDS);
                    emitter.send("second");
                    emitter.complete();
                } catch (Exception failure) {
                    emitter.completeWithError(failure);
                }
            }).start();
            return emitter;
        }

        @PostMapping("/waits")
        @Idempotent("waits")
        String waits(@RequestBody String key) throws Exception {
            effect(key);
            arrived.countDown();
            assertTrue(gate.await(60, TimeUnit.SECONDS));
            return "a whole answer";
        }
    }

    @RestControllerAdvice
    static class Advice {
        @ExceptionHandler(DataIntegrityViolationException.class)
        ResponseEntity<String> violated(DataIntegrityViolationException failure) {
            return ResponseEntity.status(418).body("violated: " + ((SQLException) failure.getMostSpecificCause()).getSQLState());
        }

        @ExceptionHandler(UnsupportedOperationException.class)
        ResponseEntity<String> half(UnsupportedOperationException failure) {
            if ("half".equals(failure.getMessage())) {
                return ResponseEntity.ok("handled");
            }
            throw failure;
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({Controller.class, Advice.class})
    static class Application {
        /** As CORS and tracing filters do, it sets headers before the others. */
        @Bean
        FilterRegistrationBean<Filter> outer() {
            FilterRegistrationBean<Filter> registration = new FilterRegistrationBean<>((request, response, chain) -> {
                HttpServletResponse answer = (HttpServletResponse) response;
                if (!((HttpServletRequest) request).getRequestURI().equals("/cors")) {
                    answer.addHeader("Access-Control-Allow-Origin", "https://outer.test");
                }
                answer.addHeader("Link", "<o1>");
                answer.addHeader("Link", "<o2>");
                chain.doFilter(request, response);
            });
            registration.setOrder(0);
            return registration;
        }

        @Bean
        FilterRegistrationBean<RelativeRedirectFilter> relative() {
            FilterRegistrationBean<RelativeRedirectFilter> registration = new FilterRegistrationBean<>(new RelativeRedirectFilter());
            registration.setOrder(0);
            registration.addUrlPatterns("/moved-by-spring");
            return registration;
        }
    }

    @BeforeAll
    static void start() {
        server = new Server();
        server.rows("CREATE TABLE late (id text UNIQUE DEFERRABLE INITIALLY DEFERRED)");
        context = Apps.run(server, Apps.BOTH, Application.class, "logging.level.root=error", "pgonce.tenant=none",
            "spring.datasource.hikari.maximum-pool-size=2", "spring.datasource.hikari.connection-timeout=4000");
    }

    @AfterAll
    static void stop() {
        context.close();
        server.close();
    }

    @BeforeEach
    void count() {
        RUNS.set(0);
        gate = new CountDownLatch(1);
        arrived = new CountDownLatch(1);
    }

    private static URI at(String target) {
        return URI.create("http://127.0.0.1:" + context.getWebServer().getPort() + target);
    }

    private static HttpRequest.Builder request(String target, String key, String... headers) {
        HttpRequest.Builder request = HttpRequest.newBuilder(at(target)).POST(HttpRequest.BodyPublishers.ofString(key)).header("Idempotency-Key", key)
            .header("Content-Type", "text/plain").timeout(Duration.ofSeconds(60));
        return headers.length > 0 ? request.headers(headers) : request;
    }

    private static HttpResponse<String> send(String target, String key, String... headers) throws Exception {
        return CLIENT.send(request(target, key, headers).build(), HttpResponse.BodyHandlers.ofString());
    }

    private static String problem(HttpResponse<String> answer) throws Exception {
        return Child.JSON.readTree(answer.body()).get("type").asText().replace("urn:pgonce:problem:", "");
    }

    private static String replayed(HttpResponse<String> answer) {
        return answer.headers().firstValue("Idempotency-Replayed").orElse("false");
    }

    /** The pool has all of its connections again, and no transaction is open. */
    private static void idle() throws Exception {
        HikariDataSource pool = (HikariDataSource) context.getBean(DataSource.class);
        for (int left = 600; pool.getHikariPoolMXBean().getActiveConnections() > 0; left--) {
            assertTrue(left > 0, "a connection is held");
            TimeUnit.MILLISECONDS.sleep(50);
        }
        for (int left = 600; server.rows("SELECT pid FROM pg_stat_activity WHERE state LIKE 'idle in%' OR (state = 'active' AND pid <> pg_backend_pid())").size() > 0; left--) {
            assertTrue(left > 0, "a transaction is open");
            TimeUnit.MILLISECONDS.sleep(50);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"method", "text", "autocommit"})
    void aHandlerCannotEndTheTransaction(String how) throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals(500, send("/endings?how=" + how, key).statusCode());
        }
        assertEquals(2, RUNS.get());
        assertEquals(0, server.count(key));
        idle();
    }

    @Test
    void aTransactionThatIsEndedBehindOurBackIsADoubt() throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals("in-doubt", problem(send("/endings?how=behind", key)));
        }
        assertEquals(1, RUNS.get());
        assertEquals(1, server.count(key));
        idle();
    }

    @Test
    void anErrorAtCommitGoesToTheApplicationsExceptionHandlerAndIsLogged(CapturedOutput output) throws Exception {
        String key = newKey();
        HttpResponse<String> answer = send("/late", key);
        assertEquals(418, answer.statusCode());
        assertEquals("violated: 23505", answer.body());
        assertEquals(0, server.count(key));
        assertTrue(output.getAll().contains("sqlstate=23505"), output.getAll());
        assertEquals(418, send("/late", key).statusCode());
        assertTrue(!output.getAll().contains(key), "a key is logged");
        idle();
    }

    @Test
    void aDeadlockOfTheHandlersOwnIsItsOwnAndItIsCalledOnce() throws Exception {
        assertEquals(500, send("/deadlocks", newKey()).statusCode());
        assertEquals(1, RUNS.get());
    }

    @Test
    void headersAreAsOftenAndInTheOrderThatTheyWereSetAlsoInAReplay() throws Exception {
        String key = newKey();
        for (String replayed : List.of("false", "true")) {
            HttpResponse<String> answer = send("/links", key);
            assertEquals(replayed, replayed(answer));
            assertEquals(List.of("<o1>", "<o2>", "<a>", "<b>"), answer.headers().allValues("Link"));
            assertEquals(List.of("https://outer.test"), answer.headers().allValues("Access-Control-Allow-Origin"));
            assertEquals(List.of("2", "1"), answer.headers().allValues("X-Many"));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"/moved?to=/links", "/moved?to=links", "/moved?to=/a%20b", "/moved?to=//other.test/x", "/moved?to=https://other.test", "/moved?to=",
        "/moved-by-spring?to=/links"})
    void aReplayGoesWhereTheRedirectWent(String target) throws Exception {
        String key = newKey();
        HttpResponse<String> first = send(target, key);
        HttpResponse<String> again = send(target, key);
        assertEquals(List.of("false", "true"), List.of(replayed(first), replayed(again)));
        assertEquals(List.of(302, 302), List.of(first.statusCode(), again.statusCode()));
        assertEquals(List.of(seenPlace), first.headers().allValues("Location"));
        assertEquals(List.of(seenPlace), again.headers().allValues("Location"));
    }

    @Test
    void ourOwnAnswersKeepTheHeadersOfOuterFilters() throws Exception {
        String key = newKey();
        send("/links", key);
        HttpResponse<String> mismatch = send("/links?other=1", key);
        HttpResponse<String> malformed = CLIENT.send(request("/links", "a,b").build(), HttpResponse.BodyHandlers.ofString());
        for (HttpResponse<String> each : List.of(mismatch, malformed)) {
            assertTrue(each.statusCode() == 422 || each.statusCode() == 400);
            assertEquals(List.of("https://outer.test"), each.headers().allValues("Access-Control-Allow-Origin"));
            assertEquals(List.of("<o1>", "<o2>"), each.headers().allValues("Link"));
        }
    }

    @Test
    void ourOwnAnswersHaveTheCorsOfSpringMvc() throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            HttpResponse<String> answer = send("/cors", key, "Origin", "https://shop.test");
            assertEquals(List.of("https://shop.test"), answer.headers().allValues("Access-Control-Allow-Origin"));
            assertEquals(List.of("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"), answer.headers().allValues("Vary"));
        }
        HttpResponse<String> mismatch = send("/cors?other=1", key, "Origin", "https://shop.test");
        assertEquals(422, mismatch.statusCode());
        assertEquals(List.of("https://shop.test"), mismatch.headers().allValues("Access-Control-Allow-Origin"));
        assertEquals(1, RUNS.get());
    }

    @Test
    void aStatusThatIsNoneOfHttpIsRolledBackUnlessTheServiceSaysThatItIsDone() throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals(600, send("/numbers?status=600&effect=", key).statusCode());
        }
        assertEquals(0, server.count(key));
        String done = newKey();
        assertEquals(600, send("/numbers?status=600&effect=done", done).statusCode());
        assertEquals("too-large", problem(send("/numbers?status=600&effect=done", done)));
        assertEquals(1, server.count(done));
        String doubtful = newKey();
        assertEquals(600, send("/numbers?status=600&effect=unknown", doubtful).statusCode());
        assertEquals("in-doubt", problem(send("/numbers?status=600&effect=unknown", doubtful)));
        assertEquals(0, server.count(doubtful));
        idle();
    }

    @Test
    void whatIsMappedToPutIsProtected() throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals("put", CLIENT.send(request("/put", key).PUT(HttpRequest.BodyPublishers.ofString(key)).build(), HttpResponse.BodyHandlers.ofString()).body());
        }
        assertEquals(1, RUNS.get());
    }

    @ParameterizedTest
    @ValueSource(strings = {"/short", "/broken"})
    void halfAnAnswerIsNotStored(String target) throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals(500, send(target, key).statusCode());
        }
        assertEquals(2, RUNS.get());
        assertEquals(0, server.count(key));
        idle();
    }

    @Test
    void halfARequestDoesNothing() throws Exception {
        String key = newKey();
        for (String half : List.of("Content-Length: 36\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")) {
            try (Socket socket = new Socket("127.0.0.1", context.getWebServer().getPort())) {
                socket.setSoTimeout(60_000);
                socket.getOutputStream().write(("POST /links HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nIdempotency-Key: " + key + "\r\n" + half)
                    .getBytes(StandardCharsets.US_ASCII));
                socket.shutdownOutput();
                socket.getInputStream().readAllBytes();
            }
        }
        assertEquals(0, RUNS.get());
        assertEquals(201, send("/links", key).statusCode());
    }

    @Test
    void whoLeavesIsNotNoticedByTheHandlerAndGetsTheWholeAnswerLater() throws Exception {
        String key = newKey();
        try (Socket socket = new Socket("127.0.0.1", context.getWebServer().getPort())) {
            socket.getOutputStream().write(("POST /waits HTTP/1.1\r\nHost: 127.0.0.1:" + context.getWebServer().getPort() + "\r\nContent-Type: text/plain\r\n"
                + "Idempotency-Key: " + key + "\r\nContent-Length: " + key.length() + "\r\n\r\n" + key).getBytes(StandardCharsets.US_ASCII));
            assertTrue(arrived.await(60, TimeUnit.SECONDS));
            socket.setSoLinger(true, 0);
        }
        gate.countDown();
        idle();
        HttpResponse<String> retry = send("/waits", key);
        assertEquals("a whole answer", retry.body());
        assertEquals("true", replayed(retry));
        assertEquals(1, server.count(key));
    }

    @ParameterizedTest
    @ValueSource(strings = {"sleep", "sql", "deaf"})
    void anAttemptThatTakesTooLongIsEndedAndTheClientTold(String how) throws Exception {
        String key = newKey();
        HttpResponse<String> answer = send("/slow?how=" + how, key);
        assertEquals("timed-out", problem(answer));
        assertEquals("5", answer.headers().firstValue("Retry-After").orElse(null));
        assertEquals(List.of("<o1>", "<o2>"), answer.headers().allValues("Link"));
        idle(); // also while a handler does not heed it
        gate.countDown();
        assertEquals(0, server.count(key));
        assertEquals("done", send("/slow?how=no", newKey()).body());
    }

    @Test
    void aFullPoolIsNamedAndRecovers(CapturedOutput output) throws Exception {
        var waiting = java.util.stream.IntStream.range(0, 4).mapToObj(i -> CLIENT.sendAsync(request("/second", newKey()).build(), HttpResponse.BodyHandlers.ofString())).toList();
        for (var each : waiting) {
            assertTrue(each.get(60, TimeUnit.SECONDS).statusCode() >= 200);
        }
        assertTrue(output.getAll().contains("the pool is full") || output.getAll().contains("Connection is not available"), output.getAll());
        idle();
        assertEquals("second true", send("/second", newKey()).body());
    }

    @ParameterizedTest
    @ValueSource(strings = {"ok", "422", "500", "again", "throw"})
    void underALeaseTheHandlerHasItsOwnTransactionsAndTheAnswerSaysWhatBecameOfThem(String how) throws Exception {
        String key = newKey();
        HttpResponse<String> first = send("/leased?how=" + how, key);
        HttpResponse<String> second = send("/leased?how=" + how, key);
        switch (how) {
            case "ok", "422" -> {
                assertEquals("true", replayed(second));
                assertEquals(first.body(), second.body());
            }
            case "again" -> assertEquals("later", second.body());
            default -> {
                assertEquals(500, first.statusCode());
                assertEquals("in-doubt", problem(second));
            }
        }
        assertEquals("again".equals(how) ? 2 : 1, server.count(key));
    }

    @Test
    void eventsPassAsTheyComeAndTheKeyIsRememberedAsDone() throws Exception {
        String key = newKey();
        HttpResponse<InputStream> stream = CLIENT.send(request("/events", key).build(), HttpResponse.BodyHandlers.ofInputStream());
        assertEquals(200, stream.statusCode());
        assertEquals("text/event-stream", stream.headers().firstValue("Content-Type").orElse(null));
        byte[] first = stream.body().readNBytes("data:first\n\n".length());
        assertEquals("data:first\n\n", new String(first, StandardCharsets.UTF_8));
        assertEquals(1, server.count(key)); // it is committed while the stream goes on
        idle();
        assertEquals("too-large", problem(send("/events", key)));
        gate.countDown();
        assertEquals("data:second\n\n", new String(stream.body().readAllBytes(), StandardCharsets.UTF_8));
        assertEquals(1, RUNS.get());
    }
}
