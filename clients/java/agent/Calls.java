// SPDX-License-Identifier: PostgreSQL

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.pgonce.Answer;
import io.pgonce.Claim;
import io.pgonce.Event;
import io.pgonce.FinalFailureException;
import io.pgonce.Once;
import io.pgonce.OnceException;
import io.pgonce.Request;
import io.pgonce.SlotClosedException;
import io.pgonce.Tx;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import javax.sql.DataSource;
import org.postgresql.PGConnection;

/** The calls of spec/cases/sql.json and faults.json, and the services of http.json. */
final class Calls {
    /** What an effect throws where it is told to. */
    private static final class Thrown extends Exception {
        private static final long serialVersionUID = 1L;

        Thrown(String message) {
            super(message);
        }
    }

    private static final int PATIENCE_S = 60;

    private Once once;
    private DataSource source;
    private Web web;
    /** Null: one database. */
    private Shared shared;
    private final Map<String, Claim> claims = new HashMap<>();
    /** Says a line, and waits for one. */
    private final Consumer<JsonNode> converse;
    /** The transaction of an effect, after it. */
    private volatile Connection kept;

    private Calls(Once once, DataSource source, Web web, Consumer<JsonNode> converse) {
        this.once = once;
        this.source = source;
        this.web = web;
        this.converse = converse;
    }

    Calls(Once once, DataSource source, Consumer<JsonNode> converse) {
        this(once, source, null, converse);
    }

    Calls(Web web, Consumer<JsonNode> converse) {
        this(web.once(), web.source(), web, converse);
    }

    /** For the orders of the torture. */
    Door door() {
        return web == null ? new Door(source, once) : web.door();
    }

    /** Null where there are none. */
    static byte[] bytes(JsonNode said) {
        if (said.has("text")) {
            return said.get("text").asText().getBytes(StandardCharsets.UTF_8);
        } else if (said.has("base64")) {
            return Base64.getDecoder().decode(said.get("base64").asText());
        } else if (said.has("repeat")) {
            return said.get("repeat").asText().repeat(said.get("count").asInt()).getBytes(StandardCharsets.UTF_8);
        }
        return null;
    }

    private static Request request(JsonNode request) {
        if (request.has("http")) {
            JsonNode http = request.get("http");
            return Request.http(http.get("method").asText(), http.get("target").asText(), http.path("content_type").asText(null),
                http.get("text").asText().getBytes(StandardCharsets.UTF_8), false);
        } else if (request.has("text")) {
            return Request.text(request.get("text").asText());
        }
        return request.has("base64") ? Request.bytes(bytes(request)) : Request.json(request.get("json").toString());
    }

    private static Answer answer(JsonNode said) {
        Answer answer = said.has("status") ? Answer.of(said.get("status").asInt()) : Answer.empty();
        for (Iterator<Map.Entry<String, JsonNode>> each = said.path("headers").fields(); each.hasNext();) {
            Map.Entry<String, JsonNode> header = each.next();
            answer = answer.header(header.getKey(), header.getValue().asText());
        }
        if (said.has("text")) {
            answer = answer.text(said.get("text").asText());
        } else if (said.has("json")) {
            answer = answer.json(said.get("json").toString());
        } else if (bytes(said) != null) {
            answer = answer.bytes(bytes(said));
        }
        return answer.result(said.path("result_type").asText(null), said.path("result_id").asText(null));
    }

    private static Event event(JsonNode said) {
        Event made = new Event(said.get("topic").asText(), said.has("payload") ? said.get("payload").toString() : null, said.path("aggregate_type").asText(null),
            said.path("aggregate_id").asText(null), said.path("event_type").asText(null), said.has("headers") ? said.get("headers").toString() : null);
        return said.has("scope") ? made.causedBy(said.path("tenant").asText(""), said.get("scope").asText(), said.get("key").asText()) : made;
    }

    /** A statement past the client: of the driver's own connection. */
    static void behind(Connection connection, String text) throws SQLException {
        try (Statement statement = ((Connection) connection.unwrap(PGConnection.class)).createStatement()) {
            statement.execute(text);
        }
    }

    /** nth: which execution of it this is. */
    private Answer effect(Tx tx, JsonNode effect, int nth) throws Exception {
        for (JsonNode each : effect.path("do")) {
            if (nth > each.path("first").asInt(nth)) {
                continue;
            }
            if (each.has("meanwhile")) {
                converse.accept(Door.JSON.createObjectNode().set("meanwhile", each.get("meanwhile")));
            } else if (each.has("keep")) {
                kept = tx.connection();
            } else if (each.has("emit")) {
                tx.emit(event(each.get("emit")));
            } else if (each.has("emit_bytes")) {
                JsonNode said = each.get("emit_bytes");
                tx.emitBytes(event(said), bytes(said), said.get("content_type").asText());
            } else if (each.has("lock")) {
                JsonNode lock = each.get("lock");
                if (tx.lock(lock.get("resource").asText(), Duration.ofMillis(lock.get("wait_ms").asLong())) != each.get("is").asBoolean()) {
                    throw new IllegalStateException("the lock is not as expected: " + each);
                }
            } else if (each.has("behind")) {
                behind(tx.connection(), each.get("behind").asText());
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
        } else if (effect.has("not_done")) {
            throw new Once.NothingDone(effect.get("not_done").asText(), null);
        } else if (effect.has("fail")) {
            JsonNode fail = effect.get("fail");
            throw answer(fail).failure(fail.get("code").asText(), fail.path("message").asText(null));
        }
        return answer(effect.path("answer"));
    }

    private static ObjectNode said(Answer answer) {
        ObjectNode node = Door.JSON.createObjectNode().put("replayed", answer.replayed()).put("status", answer.status()).put("result_type", answer.resultType())
            .put("result_id", answer.resultId()).put("body", answer.body() == null ? null : Base64.getEncoder().encodeToString(answer.body()));
        ObjectNode headers = node.putObject("headers");
        answer.headers().forEach(each -> headers.put(each.name(), headers.has(each.name()) ? headers.get(each.name()).asText() + ", " + each.value() : each.value()));
        return node;
    }

    private static ObjectNode is(boolean is) {
        return Door.JSON.createObjectNode().put("is", is);
    }

    private ObjectNode claim(Once tenant, JsonNode order) {
        Claim.Options options = new Claim.Options(order.has("lease_ms") ? Duration.ofMillis(order.get("lease_ms").asLong()) : null,
            order.has("retention_ms") ? Duration.ofMillis(order.get("retention_ms").asLong()) : null, "conformance",
            order.has("takeover") ? order.get("takeover").asBoolean() : null, true);
        Claim claim = tenant.claim(order.get("scope").asText(), order.get("key").asText(), request(order.get("request")), options);
        if (!claim.mine()) {
            return said(claim.outcome());
        }
        claims.put(order.get("as").asText(), claim);
        return Door.JSON.createObjectNode().put("verdict", claim.verdict()).put("fence", claim.fence());
    }

    private static boolean failed(Claim claim, JsonNode order) {
        String code = order.path("code").asText(null);
        String message = order.path("message").asText(null);
        return order.get("retryable").isNull() ? claim.doubt(code, message) : order.get("retryable").asBoolean() ? claim.retryable(code, message)
            : claim.fail(answer(order.path("answer")).failure(code, message).answer());
    }

    private ObjectNode received(Once tenant, JsonNode order, AtomicInteger called) throws Exception {
        ObjectNode said = receivedAt(source, tenant, order, called);
        return said.set("again", receivedAt(source, tenant, order, called).get("verdict"));
    }

    private ObjectNode receivedAt(DataSource at, Once tenant, JsonNode order, AtomicInteger called) throws Exception {
        try (Connection connection = at.getConnection()) {
            connection.setAutoCommit(false);
            Tx tx = tenant.in(connection);
            boolean process = tx.receive(order.get("consumer").asText(), order.get("message").asText(), request(order.get("request")));
            if (process) {
                effect(tx, order.path("effect"), called.incrementAndGet());
            }
            connection.commit();
            return Door.JSON.createObjectNode().put("verdict", process ? "process" : "duplicate");
        }
    }

    /** The same where several nodes share the tenants: an application that has its own transactions asks the router itself. */
    private ObjectNode receivedThere(Once tenant, JsonNode order, AtomicInteger called) throws Exception {
        String name = order.path("tenant").asText();
        try {
            return receivedAt(shared.route().node(name, null), tenant, order, called);
        } catch (SlotClosedException closed) {
            return receivedAt(shared.route().node(name, closed), tenant, order, called);
        }
    }

    private ObjectNode share(JsonNode order) {
        if (shared != null) {
            shared.close();
        }
        shared = Shared.of(order);
        if (web == null) {
            once = shared.once();
        } else {
            web = web.over(shared);
            once = web.once();
        }
        return Door.JSON.createObjectNode();
    }

    private Once once(JsonNode order) {
        Once mine = once.tenant(order.path("tenant").asText("")).waiting(Duration.ofMillis(order.path("wait_ms").asLong()));
        mine = order.has("deadline_ms") ? mine.deadline(Duration.ofMillis(order.get("deadline_ms").asLong())) : mine;
        return order.has("isolation") ? mine.isolation(Door.LEVELS.get(order.get("isolation").asText())) : mine;
    }

    /** An interrupt of this thread, which has made the claim, tells that. */
    private static boolean awaitLoss(Claim claim) {
        try {
            TimeUnit.SECONDS.sleep(PATIENCE_S);
        } catch (InterruptedException told) {
            return claim.lost();
        }
        return false;
    }

    /** called: how often the effect was, or the work. */
    private ObjectNode call(JsonNode order, AtomicInteger called) throws Exception {
        String scope = order.path("scope").asText();
        String key = order.path("key").asText();
        Once tenant = once(order);
        Claim of = claims.get(order.path("of").asText());
        switch (order.get("call").asText()) {
            case "run":
                return said(tenant.run(scope, key, request(order.get("request")), tx -> effect(tx, order.get("effect"), called.incrementAndGet())));
            case "effect": {
                String result = Door.JSON.writeValueAsString(new String(bytes(order.get("result")), StandardCharsets.UTF_8));
                return said(tenant.effect(scope, key, request(order.get("request")), () -> {
                    effect(null, order.path("work"), called.incrementAndGet());
                    return Answer.empty().json(result);
                }));
            }
            case "claim":
                return claim(tenant, order);
            case "complete":
                return is(of.complete(answer(order.path("answer"))));
            case "fail":
                return is(failed(of, order));
            case "release":
                return is(of.release());
            case "renew":
                return is(of.renew());
            case "receive":
                return shared == null ? received(tenant, order, called) : receivedThere(tenant, order, called);
            case "nodes":
                return share(order);
            case "routed":
                return shared.routed();
            case "lost":
                return is(awaitLoss(of));
            case "late":
                try (Statement statement = kept.createStatement()) {
                    statement.execute(order.get("sql").asText());
                }
                return Door.JSON.createObjectNode();
            case "forget":
                for (Claim each : claims.values()) {
                    each.release();
                    each.close();
                }
                claims.clear();
                return Door.JSON.createObjectNode();
            default:
                return web.call(order);
        }
    }

    /** As the cases name it. */
    private static String codeOf(OnceException failure) {
        return switch (failure.code()) {
            case "unavailable" -> "connection";
            case "commit_refused" -> "database";
            default -> failure.code();
        };
    }

    private static String sqlStateOf(Throwable failure) {
        for (Throwable each = failure; each != null; each = each.getCause()) {
            if (each instanceof SQLException sql && sql.getSQLState() != null) {
                return sql.getSQLState();
            }
        }
        return null;
    }

    private static ObjectNode refused(OnceException failure) {
        String sqlState = failure.sqlState() == null ? sqlStateOf(failure) : failure.sqlState();
        ObjectNode node = Door.JSON.createObjectNode().put("code", codeOf(failure)).put("sqlstate", sqlState).put("status", failure.status())
            .put("retryable", failure.retryable()).put("text", failure.getMessage());
        if (failure instanceof FinalFailureException fatal) {
            node.set("answer", said(fatal.answer()));
        }
        return node;
    }

    private ObjectNode one(JsonNode order, AtomicInteger called) {
        ObjectNode line = Door.JSON.createObjectNode();
        try {
            line.set("result", call(order, called));
        } catch (Thrown thrown) {
            line.putObject("error").put("code", "application");
        } catch (Once.NothingDone none) {
            line.putObject("error").put("code", "not_done");
        } catch (OnceException failure) {
            line.set("error", refused(failure));
        } catch (Exception failure) {
            String sqlState = sqlStateOf(failure);
            String code = failure instanceof IllegalStateException ? "usage" : sqlState == null ? "none of the client" : "database";
            line.putObject("error").put("code", code).put("sqlstate", sqlState).put("text", failure.toString());
        }
        return line;
    }

    /** A line for a line. */
    ObjectNode answered(JsonNode order) throws Exception {
        AtomicInteger called = new AtomicInteger();
        int callers = order.path("callers").asInt();
        if (callers == 0) {
            return one(order, called).put("calls", called.get());
        }
        ExecutorService threads = Executors.newFixedThreadPool(callers);
        List<Callable<ObjectNode>> each = new ArrayList<>();
        for (int i = 0; i < callers; i++) {
            ObjectNode own = order.deepCopy();
            own.put("tenant", order.path("tenant").asText().replace("{n}", String.valueOf(i)));
            each.add(() -> one(own, called));
        }
        ObjectNode line = Door.JSON.createObjectNode();
        for (Future<ObjectNode> one : threads.invokeAll(each)) {
            line.withArray("each").add(one.get());
        }
        threads.shutdown();
        return line.put("calls", called.get());
    }
}
