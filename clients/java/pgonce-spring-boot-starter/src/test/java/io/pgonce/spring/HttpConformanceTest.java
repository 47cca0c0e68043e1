// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.pgonce.Observer;
import io.pgonce.Once;
import io.pgonce.testing.Cases;
import io.pgonce.testing.Child;
import io.pgonce.testing.Server;
import io.pgonce.testing.SqlCase;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import javax.sql.DataSource;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.AnnotationUtils;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RestController;

/** clients/conformance through the Spring door: HTTP against an embedded server, SQL in Spring's transactions; with JDBC's manager and with JPA's. */
class HttpConformanceTest {
    private static Server server;
    private static final Map<String, Running> RUNNING = new ConcurrentHashMap<>();

    /** One case's service and filter. */
    private static final class Running {
        final JsonNode all;
        final AtomicInteger runs = new AtomicInteger();
        final CountDownLatch release = new CountDownLatch(1);
        final Semaphore begun = new Semaphore(0);
        final Map<String, CompletableFuture<Reply>> background = new HashMap<>();
        IdempotencyFilter filter;

        Running(JsonNode all) {
            this.all = all;
        }
    }

    @RestController
    static class Service {
        private final JdbcTemplate jdbc;

        Service(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        @RequestMapping("/{name}")
        void serve(HttpServletRequest request, HttpServletResponse response) throws Exception {
            String name = request.getRequestURI().substring(1);
            Running running = RUNNING.get(name);
            int run = running.runs.incrementAndGet();
            JsonNode script = running.all.path("service");
            JsonNode said = script.isEmpty() ? Child.JSON.createObjectNode() : script.get(Math.min(run, script.size()) - 1);
            if (said.path("effect").asBoolean(true)) {
                jdbc.update("INSERT INTO effect (key, attempt) VALUES (?, ?)", name, run);
            }
            running.begun.release();
            if (said.path("hold").asBoolean()) {
                assertTrue(running.release.await(30, TimeUnit.SECONDS));
            }
            if (said.has("throw")) {
                throw new IllegalArgumentException(said.get("throw").asText());
            }
            response.setStatus(said.path("status").asInt(201));
            if (said.has("headers")) {
                said.get("headers").forEach(pair -> response.addHeader(pair.get(0).asText(), pair.get(1).asText()));
            } else {
                response.setContentType("application/json");
            }
            byte[] body = Cases.bytes(said);
            body = body == null ? ("{\"execution\": " + run + "}").getBytes(StandardCharsets.UTF_8) : body;
            int pieces = said.path("pieces").asInt(1);
            int size = Math.max(1, (body.length + pieces - 1) / pieces);
            for (int at = 0; at < body.length; at += size) {
                response.getOutputStream().write(body, at, Math.min(size, body.length - at));
                response.flushBuffer();
            }
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @Import(Service.class)
    static class Application {
        /** Each case has a location of its own. */
        @Bean
        FilterRegistrationBean<Filter> locations() {
            FilterRegistrationBean<Filter> registration = new FilterRegistrationBean<>((request, response, chain) -> {
                Running running = RUNNING.get(((HttpServletRequest) request).getRequestURI().substring(1));
                if (running == null) {
                    chain.doFilter(request, response);
                } else {
                    running.filter.doFilter(request, response, chain);
                }
            });
            registration.setOrder(Ordered.LOWEST_PRECEDENCE - 1001);
            return registration;
        }
    }

    @BeforeAll
    static void start() {
        server = new Server("--gateway");
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    private record Door(String name, ServletWebServerApplicationContext context) {
        Once once() {
            return context.getBean(Once.class);
        }
    }

    private static Door door(String name) {
        boolean jpa = name.endsWith("jpa");
        Door door = new Door(name, Apps.run(server, jpa ? Apps.SECURITY : Apps.BOTH, Application.class, "spring.servlet.multipart.enabled=false"));
        assertEquals(jpa, !(door.context.getBean(PlatformTransactionManager.class) instanceof DataSourceTransactionManager));
        return door;
    }

    private static Idempotent annotation(JsonNode location) {
        Map<String, Object> values = new HashMap<>();
        values.put("value", location.path("scope").asText("conformance"));
        values.put("required", location.path("once").asText("required").equals("required"));
        values.put("waitMs", location.path("wait_ms").asLong(0));
        values.put("bodyMax", location.path("body_max").asInt(16 << 20));
        values.put("responseMax", location.path("response_max").asInt(1 << 20));
        values.put("strictKeys", location.path("key_syntax").asText("").equals("strict"));
        values.put("keyLength", location.path("key_length").asInt(255));
        values.put("canonicalJson", location.path("canonical_json").asBoolean());
        values.put("methods", location.has("methods") ? texts(location.get("methods")) : new String[] {"POST", "PATCH"});
        values.put("headers", texts(location.path("headers")));
        values.put("mode", location.path("mode").asText("").equals("lease") ? Idempotent.Mode.LEASE : Idempotent.Mode.TRANSACTION);
        return AnnotationUtils.synthesizeAnnotation(values, Idempotent.class, null);
    }

    private static String[] texts(JsonNode list) {
        List<String> texts = new ArrayList<>();
        list.forEach(each -> texts.add(each.asText()));
        return texts.toArray(new String[0]);
    }

    private static Running begin(Door door, JsonNode all) {
        Running running = new Running(all);
        JsonNode location = all.path("location");
        Idempotent wanted = annotation(location);
        Once once = door.once();
        if (location.path("database").asText().equals("away")) {
            DataSource away = Server.plain(server.url("127.0.0.1", 1));
            once = Once.over(new SpringTransactions(new DataSourceTransactionManager(away), away), Observer.NONE);
        }
        TenantResolver tenants = location.path("tenant").asText().equals("none") ? null : request -> request.getHeader("X-Tenant");
        running.filter = Filters.of(once, tenants, wanted);
        for (JsonNode sql : all.path("arrange")) {
            server.rows(sql.asText());
        }
        RUNNING.put(all.get("name").asText(), running);
        return running;
    }

    private Stream<DynamicTest> http(String name) {
        Door door = door(name);
        return Cases.of("http.json", "java").stream().map(each -> DynamicTest.dynamicTest(each.get("name").asText(), () -> {
            forget();
            Running running = begin(door, each);
            for (JsonNode step : each.get("steps")) {
                step(door, running, step, door.context.getWebServer().getPort());
            }
            finish(running);
            Cases.passed(door.name, "http/" + each.get("name").asText());
        })).onClose(door.context::close);
    }

    /** Both doors run the same cases in one database. */
    private static void forget() {
        server.rows("TRUNCATE once.intent, effect");
    }

    private static void finish(Running running) throws Exception {
        String name = running.all.get("name").asText();
        if (running.all.has("runs")) {
            assertEquals(running.all.get("runs").asInt(), running.runs.get());
        }
        if (running.all.has("effects")) {
            assertEquals(running.all.get("effects").asLong(), server.count(name));
        }
        SqlCase.assertRows(server, running.all);
    }

    @TestFactory
    Stream<DynamicTest> throughSpringWithJdbc() {
        return http("java-spring");
    }

    @TestFactory
    Stream<DynamicTest> throughSpringWithJpa() {
        return http("java-spring-jpa");
    }

    private Stream<DynamicTest> sql(String name) {
        Door door = door(name);
        return Cases.of("sql.json", "java").stream().map(each -> DynamicTest.dynamicTest(each.get("name").asText(), () -> {
            server.rows("TRUNCATE once.intent, once.outbox, effect");
            try (SqlCase running = new SqlCase(server, door.once(), door.context.getBean(DataSource.class), each)) {
                running.run();
            }
            Cases.passed(door.name, "sql/" + each.get("name").asText());
        })).onClose(door.context::close);
    }

    @TestFactory
    Stream<DynamicTest> sqlThroughSpringWithJdbc() {
        return sql("java-spring");
    }

    @TestFactory
    Stream<DynamicTest> sqlThroughSpringWithJpa() {
        return sql("java-spring-jpa");
    }

    @TestFactory
    Stream<DynamicTest> crossed() {
        Door door = door("java-spring");
        JsonNode gateway = server.said.path("gateway");
        return Cases.of("cross.json", "java").stream().filter(each -> gateway.isObject() || !each.get("steps").toString().contains("\"gateway\""))
            .map(each -> DynamicTest.dynamicTest(each.get("name").asText(), () -> {
                forget();
                Running running = begin(door, each);
                try (SqlCase sql = new SqlCase(server, door.once(), door.context.getBean(DataSource.class), each)) {
                    for (JsonNode step : each.get("steps")) {
                        switch (step.get("door").asText()) {
                            case "http" -> step(door, running, step, door.context.getWebServer().getPort());
                            case "gateway" -> step(door, running, step, gateway.get("port").asInt());
                            default -> sql.step(step);
                        }
                    }
                }
                finish(running);
                Cases.passed(door.name, "cross/" + each.get("name").asText());
            })).onClose(door.context::close);
    }

    // ---- a request, byte by byte

    private record Reply(int status, List<String[]> headers, byte[] body) {
        List<String> all(String name) {
            // Tomcat writes a parameter of Content-Type without the space before it.
            return headers.stream().filter(each -> each[0].equalsIgnoreCase(name))
                .map(each -> "Content-Type".equalsIgnoreCase(name) ? each[1].replaceAll(";(?=\\S)", "; ").toLowerCase(Locale.ROOT) : each[1]).toList();
        }
    }

    private static Reply ask(Running running, JsonNode step, int port) {
        String name = running.all.get("name").asText();
        StringBuilder head = new StringBuilder(step.path("method").asText("POST") + " /" + name + step.path("target").asText("") + " HTTP/1.1\r\n");
        head.append("Host: ").append(step.path("host").asText("shop.test")).append("\r\nConnection: close\r\n");
        List<String> own = new ArrayList<>();
        step.path("headers").forEach(pair -> own.add(pair.get(0).asText().toLowerCase(Locale.ROOT)));
        for (String[] pair : new String[][] {{"X-Tenant", "acme"}, {"Content-Type", "application/json"}}) {
            if (!own.contains(pair[0].toLowerCase(Locale.ROOT))) {
                head.append(pair[0]).append(": ").append(pair[1]).append("\r\n");
            }
        }
        step.path("headers").forEach(pair -> {
            if (!pair.get(1).isNull()) {
                head.append(pair.get(0).asText()).append(": ").append(pair.get(1).asText()).append("\r\n");
            }
        });
        if (!step.has("key")) {
            head.append("Idempotency-Key: \"").append(name).append("\"\r\n");
        } else if (step.get("key").isArray()) {
            step.get("key").forEach(key -> head.append("Idempotency-Key: ").append(key.asText()).append("\r\n"));
        } else if (!step.get("key").isNull()) {
            head.append("Idempotency-Key: ").append(step.get("key").asText()).append("\r\n");
        }
        byte[] body = step.has("body") ? Cases.bytes(step.get("body")) : "{\"amount\": 100}".getBytes(StandardCharsets.UTF_8);
        head.append("Content-Length: ").append(body.length).append("\r\n\r\n");
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.setSoTimeout(60_000);
            ByteArrayOutputStream sent = new ByteArrayOutputStream();
            sent.write(head.toString().getBytes(StandardCharsets.ISO_8859_1));
            sent.write(body);
            socket.getOutputStream().write(sent.toByteArray());
            return read(socket.getInputStream());
        } catch (IOException failure) {
            throw new IllegalStateException(failure);
        }
    }

    private static String line(InputStream in) throws IOException {
        StringBuilder line = new StringBuilder();
        for (int c = in.read(); c != '\n'; c = in.read()) {
            if (c < 0) {
                throw new IOException("the answer ended early");
            }
            line.append((char) c);
        }
        return line.toString().stripTrailing();
    }

    private static Reply read(InputStream in) throws IOException {
        int status = Integer.parseInt(line(in).split(" ")[1]);
        List<String[]> headers = new ArrayList<>();
        for (String line = line(in); !line.isEmpty(); line = line(in)) {
            headers.add(line.split(": ?", 2));
        }
        if (headers.stream().noneMatch(each -> each[0].equalsIgnoreCase("Transfer-Encoding"))) {
            return new Reply(status, headers, in.readAllBytes());
        }
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        for (int size = Integer.parseInt(line(in), 16); size > 0; size = Integer.parseInt(line(in), 16)) {
            body.write(in.readNBytes(size));
            line(in);
        }
        return new Reply(status, headers, body.toByteArray());
    }

    private static void step(Door door, Running running, JsonNode step, int port) throws Exception {
        if (step.has("release")) {
            running.release.countDown();
        } else if (step.has("sql")) {
            server.rows(step.get("sql").asText());
        } else if (step.has("join")) {
            compare(running.background.get(step.get("join").asText()).get(60, TimeUnit.SECONDS), step.get("expect"));
        } else if (step.has("background")) {
            boolean first = running.background.isEmpty();
            running.background.put(step.get("background").asText(), CompletableFuture.supplyAsync(() -> ask(running, step, port)));
            if (first && running.all.path("service").path(0).path("hold").asBoolean()) {
                assertTrue(running.begun.tryAcquire(30, TimeUnit.SECONDS));
            }
        } else {
            compare(ask(running, step, port), step.get("expect"));
        }
    }

    private static void compare(Reply reply, JsonNode expected) throws Exception {
        String told = reply.status() + " " + reply.headers().stream().map(Arrays::toString).toList() + " " + new String(reply.body(), StandardCharsets.UTF_8);
        for (Iterator<String> names = expected.fieldNames(); names.hasNext();) {
            String name = names.next();
            JsonNode value = expected.get(name);
            switch (name) {
                case "status" -> assertEquals(value.asInt(), reply.status(), told);
                case "json" -> assertEquals(value, Child.JSON.readTree(reply.body()), told);
                case "replayed" -> assertEquals(value.asBoolean() ? List.of("true") : List.of(), reply.all("Idempotency-Replayed"), told);
                case "headers" -> value.fields().forEachRemaining(each -> assertEquals(List.of(each.getValue().asText()), reply.all(each.getKey()), told));
                case "absent" -> value.forEach(each -> assertEquals(List.of(), reply.all(each.asText()), told));
                case "problem" -> compareProblem(reply, value.asText(), expected.path("more").asText(null), told);
                case "more", "count" -> { }
                default -> assertArrayEquals(Cases.bytes(expected), reply.body(), told);
            }
        }
    }

    private static void compareProblem(Reply reply, String slug, String more, String told) throws Exception {
        JsonNode row = Cases.read(Child.ROOT.resolve("spec/problems.json")).get("problems").get(slug);
        ObjectNode document = (ObjectNode) Child.JSON.readTree(reply.body());
        assertTrue(document.get("instance").asText().matches("urn:pgonce:request:[0-9a-f]{32}"), told);
        // Byte for byte, with the members in the gateway's order.
        String detail = row.get("detail").asText() + (more == null ? "" : " " + more);
        assertEquals("{\"type\":\"urn:pgonce:problem:" + slug + "\",\"title\":\"" + row.get("title").asText() + "\",\"status\":" + row.get("status").asInt()
            + ",\"detail\":" + Child.JSON.writeValueAsString(detail) + ",\"instance\":\"" + document.get("instance").asText() + "\",\"retryable\":"
            + !row.get("retry_after").isNull() + "}", new String(reply.body(), StandardCharsets.UTF_8));
        assertEquals(row.get("status").asInt(), reply.status(), told);
        assertEquals(List.of("application/problem+json"), reply.all("Content-Type"), told);
        assertEquals(List.of("no-store"), reply.all("Cache-Control"), told);
        assertEquals(List.of(), reply.all("Idempotency-Replayed"), told);
        assertEquals(row.get("retry_after").isNull() ? List.of() : List.of(row.get("retry_after").asText()), reply.all("Retry-After"), told);
    }
}
