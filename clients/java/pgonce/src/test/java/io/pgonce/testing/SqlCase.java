// SPDX-License-Identifier: PostgreSQL
package io.pgonce.testing;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.pgonce.Answer;
import io.pgonce.Claim;
import io.pgonce.Event;
import io.pgonce.FinalFailureException;
import io.pgonce.Once;
import io.pgonce.OnceException;
import io.pgonce.Request;
import io.pgonce.Tx;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import javax.sql.DataSource;

/** Runs the steps of sql.json over the library. */
public final class SqlCase implements AutoCloseable {
    private static final class Thrown extends Exception {
        private static final long serialVersionUID = 1L;

        Thrown(String text) {
            super(text);
        }
    }

    private final Server server;
    private final Once once;
    private final DataSource source;
    private final JsonNode all;
    private final Map<String, Claim> claims = new HashMap<>();
    private final Map<String, Connection> held = new HashMap<>();

    public SqlCase(Server server, Once once, DataSource source, JsonNode all) {
        this.server = server;
        this.once = once;
        this.source = source;
        this.all = all;
    }

    @Override
    public void close() throws SQLException {
        for (Claim claim : claims.values()) {
            claim.close();
        }
        for (Connection connection : held.values()) {
            connection.close();
        }
    }

    private String name() {
        return all.get("name").asText();
    }

    public void run() throws Exception {
        for (JsonNode sql : all.path("arrange")) {
            server.rows(sql.asText());
        }
        for (JsonNode step : all.get("steps")) {
            step(step);
        }
        assertRows(server, all);
    }

    public static void assertRows(Server server, JsonNode all) throws Exception {
        for (JsonNode each : all.path("rows")) {
            JsonNode is = Child.JSON.readTree(Child.JSON.writeValueAsString(server.rows(each.get("sql").asText())));
            assertEquals(each.get("is"), is, each.get("sql").asText());
        }
    }

    private String text(JsonNode step, String member, String otherwise) {
        return step.has(member) ? step.get(member).asText() : otherwise;
    }

    private Request request(JsonNode step) throws Exception {
        JsonNode request = step.path("request");
        if (request.has("http")) {
            JsonNode http = request.get("http");
            return Request.http(http.get("method").asText(), http.get("target").asText(), http.path("content_type").asText(null),
                http.get("text").asText().getBytes(StandardCharsets.UTF_8), false);
        } else if (request.has("text")) {
            return Request.text(request.get("text").asText());
        } else if (request.has("base64")) {
            return Request.bytes(Cases.bytes(request));
        }
        return Request.json(request.has("json") ? Child.JSON.writeValueAsString(request.get("json")) : "{\"case\": \"" + name() + "\"}");
    }

    private static Answer answer(JsonNode said) throws Exception {
        Answer answer = said.has("status") ? Answer.of(said.get("status").asInt()) : Answer.empty();
        for (Iterator<Map.Entry<String, JsonNode>> each = said.path("headers").fields(); each.hasNext();) {
            Map.Entry<String, JsonNode> header = each.next();
            answer = answer.header(header.getKey(), header.getValue().asText());
        }
        if (said.has("text")) {
            answer = answer.text(said.get("text").asText());
        } else if (said.has("json")) {
            answer = answer.json(Child.JSON.writeValueAsString(said.get("json")));
        } else if (Cases.bytes(said) != null) {
            answer = answer.bytes(Cases.bytes(said));
        }
        return answer.result(said.path("result_type").asText(null), said.path("result_id").asText(null));
    }

    private static Event event(JsonNode said) throws Exception {
        Event made = new Event(said.get("topic").asText(), said.has("payload") ? Child.JSON.writeValueAsString(said.get("payload")) : null,
            said.path("aggregate_type").asText(null), said.path("aggregate_id").asText(null), said.path("event_type").asText(null),
            said.has("headers") ? Child.JSON.writeValueAsString(said.get("headers")) : null);
        return said.has("scope") ? made.causedBy(said.path("tenant").asText(""), said.get("scope").asText(), said.get("key").asText()) : made;
    }

    private void effect(Tx tx, JsonNode effect) throws Exception {
        for (JsonNode each : effect.path("do")) {
            if (each.has("emit")) {
                tx.emit(event(each.get("emit")));
            } else if (each.has("emit_bytes")) {
                JsonNode said = each.get("emit_bytes");
                tx.emitBytes(event(said), Cases.bytes(said), said.get("content_type").asText());
            } else if (each.has("lock")) {
                JsonNode lock = each.get("lock");
                assertEquals(each.get("is").asBoolean(), tx.lock(lock.get("resource").asText(), Duration.ofMillis(lock.get("wait_ms").asLong())));
            } else {
                try (Statement statement = tx.connection().createStatement()) {
                    statement.execute(each.has("sql") ? each.get("sql").asText() : each.get("swallow").asText());
                } catch (SQLException failure) {
                    if (each.has("sql")) {
                        throw failure;
                    }
                }
            }
        }
        if (effect.has("throw")) {
            throw new Thrown(effect.get("throw").asText());
        }
    }

    private Object call(JsonNode step) throws Exception {
        String scope = text(step, "scope", "conformance");
        String key = text(step, "key", name());
        Once tenant = once.tenant(text(step, "tenant", ""));
        JsonNode effect = step.has("effect") ? step.get("effect") : Child.JSON.readTree(
            "{\"do\": [{\"sql\": \"INSERT INTO effect (key) VALUES ('" + name() + "')\"}], \"answer\": {\"status\": 201, \"text\": \"done\"}}");
        switch (step.get("call").asText()) {
            case "run":
                return tenant.run(scope, key, request(step), tx -> {
                    effect(tx, effect);
                    if (effect.has("fail")) {
                        JsonNode fail = effect.get("fail");
                        throw answer(fail).failure(fail.get("code").asText(), fail.path("message").asText(null));
                    }
                    return answer(effect.path("answer"));
                });
            case "effect":
                return tenant.effect(scope, key, request(step), () -> Answer.empty().json(Child.JSON.writeValueAsString(new String(Cases.bytes(step.get("result")), StandardCharsets.UTF_8))));
            case "claim": {
                Claim.Options options = new Claim.Options(step.has("lease_ms") ? Duration.ofMillis(step.get("lease_ms").asLong()) : null,
                    step.has("retention_ms") ? Duration.ofMillis(step.get("retention_ms").asLong()) : null, "conformance",
                    step.has("takeover") ? step.get("takeover").asBoolean() : null, false);
                Claim claim = tenant.claim(scope, key, request(step), options);
                claims.put(step.get("as").asText(), claim);
                return claim.mine() ? claim : claim.outcome();
            }
            case "complete":
                return claims.get(step.get("of").asText()).complete(answer(step.path("answer")));
            case "fail": {
                Claim claim = claims.get(step.get("of").asText());
                String code = step.path("code").asText(null);
                String message = step.path("message").asText(null);
                return step.get("retryable").isNull() ? claim.doubt(code, message) : step.get("retryable").asBoolean() ? claim.retryable(code, message)
                    : claim.fail(answer(step.path("answer")).failure(code, message).answer());
            }
            case "release":
                return claims.get(step.get("of").asText()).release();
            case "renew":
                return claims.get(step.get("of").asText()).renew();
            case "receive":
                try (Connection connection = source.getConnection()) {
                    connection.setAutoCommit(false);
                    Tx tx = tenant.in(connection);
                    boolean process = tx.receive(step.get("consumer").asText(), step.get("message").asText(), request(step));
                    if (process) {
                        effect(tx, effect);
                    }
                    connection.commit();
                    return process ? "process" : "duplicate";
                }
            case "hold": {
                Connection connection = source.getConnection();
                connection.setAutoCommit(false);
                Tx tx = tenant.in(connection);
                assertNull(tx.start(scope, key, request(step)).replay());
                if (step.has("lock")) {
                    assertTrue(tx.lock(step.get("lock").asText(), Duration.ZERO));
                }
                held.put(step.get("as").asText(), connection);
                return null;
            }
            case "unhold":
                held.remove(step.get("of").asText()).close();
                return null;
            case "sql":
                server.rows(step.get("sql").asText());
                return null;
            default:
                throw new IllegalStateException("no such call: " + step);
        }
    }

    public void step(JsonNode step) throws Exception {
        JsonNode expected = step.path("expect");
        Object result;
        try {
            result = call(step);
        } catch (Thrown thrown) {
            assertEquals("application", expected.path("error").path("code").asText(), step.toString());
            return;
        } catch (OnceException failure) {
            if (!expected.has("error")) {
                throw failure;
            }
            compare(failure, expected.get("error"), step);
            return;
        }
        assertNull(expected.get("error"), step + ": " + result);
        compare(result, expected.path("result"), step);
    }

    private static void compare(OnceException failure, JsonNode expected, JsonNode step) throws Exception {
        for (Iterator<String> names = expected.fieldNames(); names.hasNext();) {
            String name = names.next();
            switch (name) {
                case "code" -> assertEquals(expected.get(name).asText(), failure.code(), step.toString());
                case "sqlstate" -> assertEquals(expected.get(name).asText(), failure.sqlState(), step.toString());
                case "status" -> assertEquals(expected.get(name).asInt(), failure.status(), step.toString());
                case "retryable" -> assertEquals(expected.get(name).asBoolean(), failure.retryable(), step.toString());
                case "answer" -> compare(((FinalFailureException) failure).answer(), expected.get(name), step);
                default -> throw new IllegalStateException("no such member: " + name);
            }
        }
    }

    private void compareClaim(Claim claim, JsonNode expected, JsonNode step) {
        for (Iterator<String> names = expected.fieldNames(); names.hasNext();) {
            String name = names.next();
            switch (name) {
                case "verdict" -> assertEquals(expected.get(name).asText(), claim.verdict(), step.toString());
                case "fence_above" -> assertTrue(claim.fence() > claims.get(expected.get(name).asText()).fence(), step.toString());
                default -> throw new IllegalStateException("no such member: " + name);
            }
        }
    }

    private void compare(Object result, JsonNode expected, JsonNode step) throws Exception {
        if (result instanceof Answer answer) {
            compare(answer, expected, step);
        } else if (result instanceof Claim claim) {
            compareClaim(claim, expected, step);
        } else if (result instanceof Boolean is) {
            assertEquals(expected.get("is").asBoolean(), is, step.toString());
        } else if (result instanceof String verdict) {
            assertEquals(expected.get("verdict").asText(), verdict, step.toString());
        }
    }

    private static void compare(Answer answer, JsonNode expected, JsonNode step) throws Exception {
        assertNotNull(answer);
        for (Iterator<String> names = expected.fieldNames(); names.hasNext();) {
            String name = names.next();
            switch (name) {
                case "replayed" -> assertEquals(expected.get(name).asBoolean(), answer.replayed(), step.toString());
                case "status" -> assertEquals(expected.get(name).asInt(), answer.status(), step.toString());
                case "json" -> assertEquals(expected.get(name), Child.JSON.readTree(answer.body()), step.toString());
                case "headers" -> {
                    List<Answer.Header> headers = answer.headers();
                    assertEquals(expected.get(name).size(), headers.size(), step.toString());
                    for (Answer.Header each : headers) {
                        assertEquals(expected.get(name).path(each.name()).asText(), each.value(), step.toString());
                    }
                }
                case "result_type" -> assertEquals(expected.get(name).asText(), answer.resultType(), step.toString());
                case "result_id" -> assertEquals(expected.get(name).asText(), answer.resultId(), step.toString());
                case "count" -> { }
                default -> assertArrayEquals(Cases.bytes(expected), answer.body(), step.toString());
            }
        }
    }
}
