// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.sun.net.httpserver.HttpServer;
import io.pgonce.Answer;
import io.pgonce.Event;
import io.pgonce.Observer;
import io.pgonce.Once;
import io.pgonce.http.Problem;
import io.pgonce.testing.Child;
import io.pgonce.testing.Server;
import jakarta.servlet.Filter;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import javax.sql.DataSource;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.test.system.CapturedOutput;
import org.springframework.boot.test.system.OutputCaptureExtension;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.mock.web.MockHttpServletRequest;
import org.springframework.mock.web.MockHttpServletResponse;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RestController;

/** An endpoint whose effect is elsewhere, as the README shows it; whose events are; what is logged. */
@ExtendWith(OutputCaptureExtension.class)
class HttpOnceTest {
    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final AtomicInteger CALLS = new AtomicInteger();
    private static final AtomicInteger STATUS = new AtomicInteger(201);
    private static final AtomicBoolean LATER = new AtomicBoolean();
    private static final AtomicBoolean HOLD = new AtomicBoolean();
    private static final Semaphore BEGUN = new Semaphore(0);
    private static final Semaphore LET = new Semaphore(0);
    private static Server server;
    private static HttpServer bank;
    private static ServletWebServerApplicationContext context;

    /** A service that knows nothing of keys. */
    @Component
    static class Notices {
        private final OnceTransaction transaction;

        Notices(OnceTransaction transaction) {
            this.transaction = transaction;
        }

        @Transactional
        public void tell(String topic) {
            transaction.current().emit(Event.of(topic, "1"));
        }

        @Transactional
        public void tellAnother(String topic) {
            transaction.current("bob").emit(Event.of(topic, "1"));
        }
    }

    @Component
    static class Numbers {
        private final Notices notices;

        Numbers(Notices notices) {
            this.notices = notices;
        }

        @OnceEffect(scope = "numbered", key = "#id")
        public String numbered(Long id) {
            notices.tell("numbered");
            return "number " + id;
        }
    }

    @RestController
    static class Orders {
        private final Notices notices;

        Orders(Notices notices) {
            this.notices = notices;
        }

        @PostMapping("/orders")
        @Idempotent("orders")
        ResponseEntity<String> order() {
            notices.tell("order.placed");
            notices.tellAnother("order.copied");
            return ResponseEntity.status(201).body("placed");
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import({Recipe.class, Notices.class, Numbers.class, Orders.class})
    static class Application {
        @Bean
        org.springframework.security.web.SecurityFilterChain security(org.springframework.security.config.annotation.web.builders.HttpSecurity http)
            throws Exception {
            return http.csrf(csrf -> csrf.disable()).authorizeHttpRequests(all -> all.anyRequest().authenticated())
                .httpBasic(basic -> { }).build();
        }
    }

    @BeforeAll
    static void start() throws Exception {
        server = new Server();
        bank = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        bank.setExecutor(Executors.newCachedThreadPool());
        bank.createContext("/", exchange -> {
            int call = CALLS.incrementAndGet();
            if (HOLD.get()) {
                BEGUN.release();
                LET.acquireUninterruptibly();
            }
            if (STATUS.get() == 0) {
                exchange.close(); // no answer
                return;
            }
            if (LATER.get()) {
                exchange.getResponseHeaders().add("Retry-After", "1");
            }
            exchange.getResponseHeaders().add("Content-Type", "application/json");
            byte[] body = ("{ \"by\": \"" + exchange.getRequestHeaders().getFirst("Idempotency-Key") + "\",  \"call\": " + call + "}").getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(STATUS.get(), body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        bank.start();
        context = application();
    }

    private static ServletWebServerApplicationContext application(String... more) {
        List<String> usual = List.of("logging.level.io.pgonce=error", "bank=http://127.0.0.1:" + bank.getAddress().getPort(),
            "spring.security.user.name=ann", "spring.security.user.password=secret");
        return Apps.run(server, Apps.JPA, Application.class, Stream.concat(usual.stream(), Stream.of(more)).toArray(String[]::new));
    }

    @AfterAll
    static void stop() {
        context.close();
        bank.stop(0);
        server.close();
    }

    private static HttpResponse<byte[]> send(String target, String key, String body) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + context.getWebServer().getPort() + target))
            .POST(HttpRequest.BodyPublishers.ofString(body)).header("Content-Type", "application/json")
            .header("Authorization", "Basic " + Base64.getEncoder().encodeToString("ann:secret".getBytes(StandardCharsets.UTF_8)));
        if (key != null) {
            request.header("Idempotency-Key", key);
        }
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
    }

    private static HttpResponse<byte[]> charge(String key) throws Exception {
        return send("/charges", key, "{}");
    }

    private static boolean replayed(HttpResponse<byte[]> answer) {
        return "true".equals(answer.headers().firstValue("Idempotency-Replayed").orElse(null));
    }

    private static void assertProblem(String slug, HttpResponse<byte[]> answer) throws Exception {
        JsonNode wanted = Child.JSON.readTree(Path.of("../../../spec/problems.json").toFile()).get("problems").get(slug);
        JsonNode document = Child.JSON.readTree(answer.body());
        assertEquals("urn:pgonce:problem:" + slug, document.path("type").asText(), new String(answer.body(), StandardCharsets.UTF_8));
        assertEquals(wanted.get("detail"), document.get("detail"));
        assertEquals(wanted.get("status").asInt(), answer.statusCode());
        assertTrue(document.get("instance").asText().matches("urn:pgonce:request:[0-9a-f]{32}"));
        assertEquals(wanted.get("retry_after").asText("null"), answer.headers().firstValue("Retry-After").orElse("null"));
        assertEquals("application/problem+json", answer.headers().firstValue("Content-Type").orElse(null));
    }

    private static void assertCalls(int wanted) {
        assertEquals(wanted, CALLS.getAndSet(0));
    }

    @Test
    void theRecipeIsTheReadmes() throws Exception {
        String source = Files.readString(Path.of("src/test/java/io/pgonce/spring/Recipe.java"));
        String recipe = source.substring(source.indexOf("Begin of the recipe.\n") + 21, source.indexOf("\n    // End of the recipe.")).stripIndent();
        assertTrue(Files.readString(Path.of("../README.md")).contains(recipe), recipe);
    }

    @Test
    void theBaseOfProblemTypesIsTheApplicationsAndABadOneIsAnErrorAtTheStart() throws Exception {
        ServletWebServerApplicationContext usual = context;
        context = application("pgonce.problem-base=https://shop.test/problems#");
        try {
            for (String target : List.of("/charges", "/orders")) {
                assertEquals("https://shop.test/problems#key-missing", Child.JSON.readTree(send(target, null, "{}").body()).get("type").asText());
            }
        } finally {
            context.close();
            context = usual;
        }
        Throwable refused = assertThrows(RuntimeException.class, () -> application("pgonce.problem-base=a\"b").close());
        while (refused.getCause() != null) {
            refused = refused.getCause();
        }
        assertTrue(refused.getMessage().contains("the base of problem types"), refused.toString());
    }

    @Test
    void aTenantThatIsNoNameIsRefusedBeforeTheDatabaseIsAsked() throws Exception {
        for (String name : List.of("a\u001fb", "a\0b", "a\u007f", "\ud800", "t".repeat(256))) {
            HttpOnce.Refused refused = assertThrows(HttpOnce.Refused.class, () -> HttpOnce.tenant(request -> name, new MockHttpServletRequest()));
            assertEquals(Problem.TENANT_MISSING, refused.problem);
            assertTrue(refused.getMessage().contains("without control characters"), refused.getMessage());
        }
        for (String name : List.of("söder & cie ", "\ud83d\ude00".repeat(255))) {
            assertEquals(name, HttpOnce.tenant(request -> name, new MockHttpServletRequest()));
        }
    }

    @Test
    void anEndpointWhoseEffectIsAtAProviderAnswersAsTheGatewayDoes() throws Exception {
        CALLS.set(0);
        HttpResponse<byte[]> first = charge("done");
        HttpResponse<byte[]> again = charge("done");
        assertEquals(List.of(201, false, 201, true), List.of(first.statusCode(), replayed(first), again.statusCode(), replayed(again)));
        assertArrayEquals(first.body(), again.body());
        assertEquals("application/json", again.headers().firstValue("Content-Type").orElse(null));
        assertTrue(new String(first.body(), StandardCharsets.UTF_8).contains("\"ann/done\""));
        assertProblem("mismatch", send("/charges", "done", "[]"));
        assertProblem("key-missing", charge(null));
        assertProblem("expired", charge("0193b3c8-7000-7000-8000-000000000000"));
        assertCalls(1);

        STATUS.set(402);
        first = charge("declined");
        again = charge("declined");
        assertEquals(List.of(402, false, 402, true), List.of(first.statusCode(), replayed(first), again.statusCode(), replayed(again)));
        assertArrayEquals(first.body(), again.body());
        assertCalls(1);

        for (int status : new int[] {503, 429}) {
            STATUS.set(status);
            LATER.set(true);
            assertProblem("unreached", charge("later-" + status));
            LATER.set(false);
            STATUS.set(201);
            assertEquals(201, charge("later-" + status).statusCode());
            assertCalls(2);
        }
        for (int status : new int[] {503, 500, 408, 0}) {
            STATUS.set(status);
            assertProblem("in-doubt", charge("unclear-" + status));
            STATUS.set(201);
            assertProblem("in-doubt", charge("unclear-" + status));
            List<Object> stored = server.rows("SELECT state::text, error_code, error_message FROM once.intent WHERE key = 'unclear-" + status + "'").get(0);
            assertEquals("in_doubt", stored.get(0));
            assertEquals("IOException", stored.get(1));
            assertFalse(((String) stored.get(2)).isEmpty());
        }
        CALLS.set(0);

        HOLD.set(true);
        CompletableFuture<HttpResponse<byte[]>> running = CompletableFuture.supplyAsync(() -> {
            try {
                return charge("running");
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
        });
        BEGUN.acquire();
        assertProblem("active", charge("running"));
        HOLD.set(false);
        LET.release();
        assertEquals(201, running.get().statusCode());
        assertCalls(1);
    }

    @Test
    void whereTheProviderIsAwayARetryRuns(CapturedOutput output) throws Exception {
        HttpOnce once = context.getBean(HttpOnce.class);
        AtomicInteger runs = new AtomicInteger();
        MockHttpServletRequest request = new MockHttpServletRequest("POST", "/elsewhere");
        request.addHeader("Idempotency-Key", "away");
        request.setRemoteUser("ann");
        request.setUserPrincipal(() -> "ann");
        for (int i = 1; i <= 2; i++) {
            ResponseEntity<byte[]> answer = once.effect("elsewhere", request, null, key -> {
                runs.incrementAndGet();
                throw new Once.NothingDone("the bank cannot be reached", null);
            });
            assertEquals(502, answer.getStatusCode().value());
            String instance = Child.JSON.readTree(answer.getBody()).get("instance").asText();
            assertTrue(output.getAll().contains("scope=elsewhere: the bank cannot be reached instance=" + instance), output.getAll());
            assertEquals(i, runs.get());
        }
        ResponseEntity<byte[]> large = null;
        for (int i = 0; i < 2; i++) {
            large = once.effect("elsewhere", request, null, key -> Answer.of(201).bytes(new byte[(1 << 20) + 1]));
        }
        assertEquals(409, large.getStatusCode().value());
        assertTrue(new String(large.getBody(), StandardCharsets.UTF_8).contains("urn:pgonce:problem:too-large"));
    }

    @Test
    void whatIsUnavailableIsLoggedWithItsReasonAndInstance(CapturedOutput output) throws Exception {
        DataSource away = Server.plain(server.url("127.0.0.1", 1));
        Once once = Once.over(new SpringTransactions(new DataSourceTransactionManager(away), away), Observer.NONE).deadline(Duration.ofSeconds(1));
        Filter filter = Filters.of(once, null, org.springframework.core.annotation.AnnotationUtils.synthesizeAnnotation(
            java.util.Map.of("value", "orders", "methods", new String[] {"POST"}), Idempotent.class, null));
        MockHttpServletRequest request = new MockHttpServletRequest("POST", "/orders");
        request.addHeader("Idempotency-Key", "the-secret-key");
        MockHttpServletResponse response = new MockHttpServletResponse();
        filter.doFilter(request, response, (one, two) -> { });
        ResponseEntity<byte[]> answer = new HttpOnce(once, null).effect("charges", request, null, key -> Answer.of(201));
        for (byte[] document : List.of(response.getContentAsByteArray(), answer.getBody())) {
            JsonNode told = Child.JSON.readTree(document);
            assertEquals("urn:pgonce:problem:unavailable", told.get("type").asText());
            List<String> lines = output.getAll().lines().filter(line -> line.endsWith("instance=" + told.get("instance").asText())).toList();
            assertEquals(1, lines.size(), output.getAll());
            assertTrue(lines.get(0).contains("Connection to 127.0.0.1:1 refused"), lines.get(0));
        }
        assertFalse(output.getAll().contains("the-secret-key"));
    }

    @Test
    void anEventIsOfTheIntentWhoseAttemptItsThreadRuns() throws Exception {
        server.rows("TRUNCATE once.outbox");
        assertEquals(201, send("/orders", "of-a-request", "").statusCode());
        Notices notices = context.getBean(Notices.class);
        Numbers numbers = context.getBean(Numbers.class);
        assertEquals("number 7", numbers.numbered(7L));
        assertEquals("number 7", numbers.numbered(7L));
        String id = UUID.randomUUID().toString();
        assertTrue(context.getBean(KafkaOnce.class).apply("stock", id, new ConsumerRecord<>("orders", 0, 7, "lamp", "1"), tx -> notices.tell("stock.taken")));
        notices.tell("outside");
        assertEquals(List.of(List.of("numbered", " numbered 7"), List.of("order.copied", "bob"), List.of("order.placed", "ann orders of-a-request"),
            List.of("outside", ""), List.of("stock.taken", " stock " + id)),
            server.rows("SELECT topic, concat_ws(' ', tenant, scope, key) FROM once.outbox ORDER BY topic"));
        assertTrue(assertThrows(IllegalArgumentException.class, () -> numbers.numbered(null)).getMessage().contains("the key of @OnceEffect on numbered is null"));
    }
}
