// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.pgonce.Answer;
import io.pgonce.Once;
import io.pgonce.testing.Cases;
import io.pgonce.testing.Child;
import io.pgonce.testing.Server;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.net.URI;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import java.util.stream.Stream;
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
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;

/** A gateway in front, with the same scope: its claim is finished in the transaction of the effect (docs/reference/gateway.md, "In front of a client's middleware"). */
@ExtendWith(OutputCaptureExtension.class)
class GatewayTest {
    private static final HttpClient CLIENT = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static final AtomicInteger RUNS = new AtomicInteger();
    private static final int REPORTS_MAX = 100; // that are tried within the five seconds
    private static Server server;
    private static volatile Handler handler;
    private String key;

    /** What the service does. */
    @FunctionalInterface
    interface Handler {
        void serve(JdbcTemplate jdbc, String body, HttpServletResponse response) throws Exception;
    }

    @RestController
    static class Orders {
        private final JdbcTemplate jdbc;
        private final HttpOnce http;

        Orders(JdbcTemplate jdbc, HttpOnce http) {
            this.jdbc = jdbc;
            this.http = http;
        }

        @PostMapping("/")
        @Idempotent(value = "orders", responseMax = 2000)
        void order(@RequestBody String body, HttpServletResponse response) throws Exception {
            RUNS.incrementAndGet();
            handler.serve(jdbc, body, response);
        }

        @PostMapping("/small-scope")
        @Idempotent("small")
        void small(@RequestBody String body, HttpServletResponse response) throws Exception {
            handler.serve(jdbc, body, response);
        }

        @PostMapping("/charges")
        ResponseEntity<byte[]> charge(HttpServletRequest request, @RequestBody byte[] body) {
            return http.effect("orders", request, body, name -> {
                RUNS.incrementAndGet();
                return switch (new String(body, StandardCharsets.UTF_8)) {
                    case "charged" -> Answer.of(201).text("charged");
                    case "refused" -> throw Answer.of(402).text("no funds").failure("no_funds", null);
                    case "broken" -> throw Answer.of(500).text("for good").failure("broken", null); // by its status alone it would be in doubt
                    case "unsent" -> throw new Once.NothingDone("not sent", null);
                    default -> throw new IllegalStateException("nobody knows");
                };
            });
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import(Orders.class)
    static class Application {
        @Bean
        TenantResolver tenants() {
            return request -> URLDecoder.decode(request.getHeader("X-Tenant"), StandardCharsets.UTF_8);
        }
    }

    @BeforeAll
    static void start() {
        server = new Server();
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    @BeforeEach
    void begin() {
        key = "order:" + UUID.randomUUID();
        RUNS.set(0);
    }

    private static ServletWebServerApplicationContext service(boolean jpa, String... properties) {
        return Apps.run(server, jpa ? Apps.SECURITY : Apps.BOTH, Application.class,
            Stream.concat(Stream.of("logging.level.root=error"), Stream.of(properties)).toArray(String[]::new));
    }

    private static ServletWebServerApplicationContext behindGateway(String... properties) {
        return service(false, Stream.concat(Stream.of("pgonce.gateway=true"), Stream.of(properties)).toArray(String[]::new));
    }

    private static int portOf(ServletWebServerApplicationContext context) {
        return context.getWebServer().getPort();
    }

    /** The port of a gateway before it. Left out where the module is not built. */
    private static int gateway(ServletWebServerApplicationContext context) {
        JsonNode gateway = server.tell("gateway orders " + portOf(context)).path("gateway");
        assumeTrue(gateway.isObject(), "the gateway's module is not built");
        return gateway.get("port").asInt();
    }

    private HttpResponse<String> ask(int port, String path, String body, Map<String, String> more) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path)).timeout(Duration.ofSeconds(60))
            .POST(HttpRequest.BodyPublishers.ofString(body)).header("Content-Type", "text/plain");
        Map<String, String> headers = new LinkedHashMap<>(Map.of("Idempotency-Key", '"' + key + '"', "X-Tenant", "acme"));
        headers.putAll(more);
        headers.forEach(request::header);
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    private HttpResponse<String> ask(int port, String body) throws Exception {
        return ask(port, "/", body, Map.of());
    }

    private void insert(JdbcTemplate jdbc) {
        jdbc.update("INSERT INTO effect (key) VALUES (?)", key);
    }

    private static void answer(HttpServletResponse response, int status, String body) throws Exception {
        response.setStatus(status);
        response.setContentType("text/plain");
        response.getWriter().write(body);
    }

    private String state() {
        List<List<Object>> rows = server.rows("SELECT state FROM once.intent WHERE key = '" + key + "'");
        return rows.isEmpty() ? null : (String) rows.get(0).get(0);
    }

    private static boolean isReplayed(HttpResponse<String> answer) {
        return answer.headers().firstValue("Idempotency-Replayed").isPresent();
    }

    private static String problem(HttpResponse<String> answer) throws Exception {
        return Child.JSON.readTree(answer.body()).get("type").asText().replace("urn:pgonce:problem:", "");
    }

    /** What a gateway says of a claim. */
    private Map<String, String> claimed(String scope, String tenant) {
        Object fence = server.rows("SELECT fence FROM once.claim('" + scope + "', '" + key + "', once.fingerprint('x'::text, '" + tenant + "'), tenant => '" + tenant + "')")
            .get(0).get(0);
        return headers(scope, tenant, fence);
    }

    private Map<String, String> headers(String scope, String tenant, Object fence) {
        return Map.of("Once-Tenant", encoded(tenant), "Once-Scope", scope, "Once-Key", encoded(key), "Once-Fence", String.valueOf(fence));
    }

    private static String encoded(String name) {
        return URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void theEffectAndTheGatewaysIntentCommitTogetherAndRetriesReplay(boolean jpa) throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            assertEquals("processing", state());
            answer(response, 201, "order 7");
        };
        try (ServletWebServerApplicationContext context = service(jpa, "pgonce.gateway=true")) {
            int port = gateway(context);
            HttpResponse<String> first = ask(port, "a");
            assertEquals("order 7", first.body());
            assertTrue(first.statusCode() == 201 && !isReplayed(first) && first.headers().firstValue("Once-Effect").isEmpty());
            assertEquals("succeeded", state());
            assertEquals(1, server.count(key));
            HttpResponse<String> again = ask(port, "a");
            assertEquals("order 7", again.body());
            assertTrue(isReplayed(again));
            assertEquals(422, ask(port, "b").statusCode());
            assertEquals(1, RUNS.get());
        }
    }

    @Test
    void whatIsTakenBackFreesTheKeyThoughA500AloneWouldLeaveADoubt() throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            switch (RUNS.get()) {
                case 1 -> answer(response, 500, "out of order");
                case 2 -> throw new IllegalArgumentException("out of order");
                case 3 -> response.sendError(500);
                default -> answer(response, 201, "done");
            }
        };
        try (ServletWebServerApplicationContext context = behindGateway()) {
            int port = gateway(context);
            for (int i = 0; i < 3; i++) {
                assertEquals(500, ask(port, "a").statusCode());
                assertEquals("failed_retryable", state());
                assertEquals(0, server.count(key));
            }
            assertEquals("done", ask(port, "a").body());
            assertEquals(1, server.count(key));
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aRefusalIsStoredWithoutItsEffectAndSoIsTheEndOfAnAnswerThatIsTooLarge(boolean jpa) throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            answer(response, body.contains("refused") ? 422 : 201, body.contains("large") ? "x".repeat(3000) : "no");
        };
        try (ServletWebServerApplicationContext context = service(jpa, "pgonce.gateway=true")) {
            int port = gateway(context);
            for (String body : List.of("refused", "large", "large and refused")) {
                key = "order:" + UUID.randomUUID();
                HttpResponse<String> first = ask(port, body);
                assertEquals(body.contains("refused") ? 422 : 201, first.statusCode());
                assertEquals(body.equals("large") ? 1 : 0, server.count(key), body);
                HttpResponse<String> again = ask(port, body);
                if (body.equals("refused")) {
                    assertEquals("no", again.body());
                    assertTrue(isReplayed(again));
                } else {
                    assertEquals("too-large", problem(again));
                }
            }
            assertEquals(3, RUNS.get());
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {201, 422})
    void anAnswerThatTheScopeDoesNotKeepIsSentAndItsKeyRememberedAsDone(int status) throws Exception {
        server.rows("SELECT once.set_scope('small', response_bytes_max => 8192)");
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            answer(response, status, "x".repeat(9000));
        };
        try (ServletWebServerApplicationContext context = behindGateway()) {
            HttpResponse<String> answer = ask(portOf(context), "/small-scope", "a", claimed("small", "acme"));
            assertEquals(9000, answer.body().length());
            assertEquals(List.of(List.of("succeeded", Answer.TOO_LARGE)), server.rows("SELECT state, result_type FROM once.intent WHERE key = '" + key + "'"));
            assertEquals(status == 201 ? 1 : 0, server.count(key));
        }
    }

    @Test
    void aHandlerWhoseWordIsUnknownLeavesADoubtAndItsEffectIsTakenBack() throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            response.setHeader("Once-Effect", "unknown");
            answer(response, 502, "");
        };
        try (ServletWebServerApplicationContext context = behindGateway()) {
            int port = gateway(context);
            assertEquals(502, ask(port, "a").statusCode());
            assertEquals("in_doubt", state());
            assertEquals(0, server.count(key));
            assertEquals("in-doubt", problem(ask(port, "a")));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"COMMIT", "ROLLBACK"})
    void aHandlerThatEndsTheTransactionBehindOurBackLeavesADoubt(String how) throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            jdbc.execute((ConnectionCallback<Void>) connection -> {
                try (var statement = ((Connection) connection.unwrap(org.postgresql.PGConnection.class)).createStatement()) {
                    statement.execute(how);
                }
                return null;
            });
            answer(response, 201, "done");
        };
        try (ServletWebServerApplicationContext context = behindGateway()) {
            int port = gateway(context);
            assertEquals("in-doubt", problem(ask(port, "a")));
            assertEquals("in_doubt", state());
            assertEquals("in-doubt", problem(ask(port, "a")));
            assertEquals(1, RUNS.get());
        }
    }

    @Test
    void anErrorOfSqlThatIsSwallowedIsAnErrorAndFreesTheKey() throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            try {
                jdbc.execute("SELECT 1/0");
            } catch (RuntimeException swallowed) {
                answer(response, 201, "done");
            }
        };
        try (ServletWebServerApplicationContext context = behindGateway()) {
            int port = gateway(context);
            assertEquals(500, ask(port, "a").statusCode());
            assertEquals("failed_retryable", state());
            assertEquals(0, server.count(key));
        }
    }

    @Test
    void twoRunsUnderOneFenceHaveOneEffectThoughTheirAnswersAreTheSame() throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            answer(response, 201, "the same");
        };
        try (ServletWebServerApplicationContext context = behindGateway()) {
            int port = portOf(context);
            Map<String, String> claim = claimed("orders", "acme");
            List<CompletableFuture<Integer>> told = IntStream.range(0, 3).mapToObj(i -> CompletableFuture.supplyAsync(() -> {
                try {
                    return ask(port, "/", "a", claim).statusCode();
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            })).toList();
            assertEquals(List.of(201, 409, 409), told.stream().map(CompletableFuture::join).sorted().toList());
            assertEquals(1, server.count(key));
            assertEquals("active", problem(ask(port, "/", "a", headers("orders", "acme", Integer.parseInt(claim.get("Once-Fence")) + 1))));
            assertEquals(1, server.count(key));
        }
    }

    @Test
    void headersThatDoNotNameThisVeryIntentCountForNothing() throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            answer(response, 201, "done");
        };
        try (ServletWebServerApplicationContext context = behindGateway()) {
            int port = portOf(context);
            for (Map<String, String> wrong : List.of(Map.of("Once-Key", "other"), Map.of("Once-Tenant", "zeta"), Map.of("Once-Scope", "others"), Map.of("Once-Fence", "0"),
                Map.of("Once-Fence", "1x"), Map.of("Once-Fence", "2147483648"), Map.of("Once-Key", "%"))) {
                key = "order:" + UUID.randomUUID();
                Map<String, String> all = new LinkedHashMap<>(headers("orders", "acme", 1));
                all.putAll(wrong);
                assertEquals(201, ask(port, "/", "a", all).statusCode());
                assertEquals("succeeded", state(), wrong.toString()); // protected by itself
                assertEquals(1, server.count(key));
            }
            key = "order:" + UUID.randomUUID();
            assertEquals("active", problem(ask(port, "/", "a", headers("orders", "acme", 1)))); // a forger's own key: nothing is done
            assertEquals(null, state());
            assertEquals(0, server.count(key));
        }
    }

    @Test
    void namesAreReadAsTheGatewayWritesThem() throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            answer(response, 201, "done");
        };
        key = "100% +&=;, " + UUID.randomUUID() + " ";
        try (ServletWebServerApplicationContext context = behindGateway()) {
            Map<String, String> all = new LinkedHashMap<>(claimed("orders", "söder & cie "));
            all.put("X-Tenant", encoded("söder & cie "));
            assertEquals(201, ask(portOf(context), "/", "a", all).statusCode());
            assertEquals("succeeded", state());
            assertEquals(1, server.count(key));
        }
    }

    @Test
    void withoutThePropertyTheErrorSaysWhatIsWrong(CapturedOutput output) throws Exception {
        handler = (jdbc, body, response) -> insert(jdbc);
        try (ServletWebServerApplicationContext context = service(false)) {
            int port = gateway(context);
            HttpResponse<String> answer = ask(port, "a");
            assertTrue(answer.statusCode() == 409 || answer.statusCode() == 422, answer.body());
            assertTrue(answer.body().contains("A pgonce gateway in front of this service has claimed this key in the same scope: set the property pgonce.gateway"), answer.body());
            assertTrue(output.getAll().contains("A pgonce gateway in front"), output.getAll());
            assertEquals(0, RUNS.get());
        }
    }

    @Test
    void inModeLeaseTheGatewayAloneClaimsAndReports() throws Exception {
        handler = (jdbc, body, response) -> {
            if (RUNS.get() == 1) {
                response.setHeader("Once-Effect", "none");
                answer(response, 500, "");
            } else {
                answer(response, 201, "charged");
            }
        };
        try (ServletWebServerApplicationContext context = behindGateway("pgonce.mode=lease")) {
            int port = gateway(context);
            assertEquals(500, ask(port, "a").statusCode());
            assertEquals("failed_retryable", state());
            assertEquals("charged", ask(port, "a").body());
            assertTrue(isReplayed(ask(port, "a")));
            assertEquals(2, RUNS.get());
        }
    }

    @Test
    void workThatIsElsewhereIsReportedByTheGateway() throws Exception {
        Map<String, String> states = Map.of("charged", "succeeded", "refused", "failed_final", "broken", "succeeded", "unsent", "failed_retryable", "lost", "in_doubt");
        try (ServletWebServerApplicationContext context = behindGateway()) {
            int port = gateway(context);
            for (Map.Entry<String, String> each : states.entrySet()) {
                key = "order:" + UUID.randomUUID();
                RUNS.set(0);
                HttpResponse<String> first = ask(port, "/charges", each.getKey(), Map.of());
                assertEquals(each.getValue(), state(), each.getKey());
                HttpResponse<String> again = ask(port, "/charges", each.getKey(), Map.of());
                assertEquals("unsent".equals(each.getKey()) ? 2 : 1, RUNS.get());
                if (List.of("succeeded", "failed_final").contains(each.getValue())) {
                    assertEquals(first.body(), again.body());
                    assertTrue(isReplayed(again));
                } else {
                    assertEquals("lost".equals(each.getKey()) ? "in-doubt" : "unreached", problem(again));
                }
            }
        }
    }

    @Test
    void aCommitThatIsLostUnderAClaim() throws Exception {
        handler = (jdbc, body, response) -> {
            insert(jdbc);
            answer(response, 201, "done");
        };
        try (Server.Forwarder forwarder = server.forwarder(); ServletWebServerApplicationContext context = behindGateway(
                "spring.datasource.url=" + server.url("127.0.0.1", forwarder.port()) + "&prepareThreshold=0")) { // a prepared COMMIT has no text
            int port = portOf(context);
            for (JsonNode fault : Cases.faults("commits_under_a_claim")) {
                String name = fault.get("name").asText();
                String state = fault.get("state").asText();
                key = "order:" + UUID.randomUUID();
                Map<String, String> claim = claimed("orders", "acme");
                int rule = forwarder.lose(fault.get("commit").asText(), "COMMIT").get("rule").asInt();
                for (int i = 0; fault.has("reports") && i < REPORTS_MAX; i++) {
                    forwarder.lose(fault.get("reports").asText(), "once.fail");
                }
                assertEquals(fault.get("problem").asText(), problem(ask(port, "/", "a", claim)), name);
                assertTrue(forwarder.tell("wait " + rule).get("fired").asBoolean());
                forwarder.tell("forget");
                assertEquals(state, state(), name);
                assertEquals(fault.get("effects").asInt(), server.count(key), name);
                if (!"processing".equals(state)) {
                    assertEquals("active", problem(ask(port, "/", "a", claim)), name);
                    assertEquals(fault.get("effects").asInt(), server.count(key), name);
                }
                if ("failed_retryable".equals(state)) {
                    assertEquals(201, ask(port, "/", "a", claimed("orders", "acme")).statusCode());
                    assertEquals(1, server.count(key));
                }
            }
        }
    }
}
