// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.zaxxer.hikari.HikariDataSource;
import io.micrometer.observation.tck.TestObservationRegistry;
import io.micrometer.observation.tck.TestObservationRegistryAssert;
import io.pgonce.Answer;
import io.pgonce.Event;
import io.pgonce.InDoubtException;
import io.pgonce.Once;
import io.pgonce.Observer;
import io.pgonce.OnceException;
import io.pgonce.Request;
import io.pgonce.testing.Server;
import jakarta.persistence.Entity;
import jakarta.persistence.EntityManager;
import jakarta.persistence.Id;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.domain.EntityScan;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;
import org.springframework.web.servlet.mvc.method.annotation.SseEmitter;
import org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody;

/** The starter in an application as people write it: annotated controllers, services, Security, JDBC's and JPA's transactions. */
class SpringTest {
    private static Server server;
    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final AtomicInteger RUNS = new AtomicInteger();
    private static final AtomicLong EARLY = new AtomicLong();
    private static final AtomicLong LATE = new AtomicLong();

    @Entity(name = "payment")
    static class Payment {
        @Id
        private String id;

        protected Payment() {
        }

        Payment(String id) {
            this.id = id;
        }

        String id() {
            return id;
        }
    }

    @Component
    static class Payments {
        private final JdbcTemplate jdbc;
        private final ObjectProvider<EntityManager> entities;

        Payments(JdbcTemplate jdbc, ObjectProvider<EntityManager> entities) {
            this.jdbc = jdbc;
            this.entities = entities;
        }

        @Transactional
        public void pay(String id, boolean refuse) {
            EntityManager manager = entities.getIfAvailable();
            if (manager == null) {
                jdbc.update("INSERT INTO payment (id) VALUES (?)", id);
            } else {
                manager.persist(new Payment(id));
            }
            if (refuse) {
                throw new ResponseStatusException(HttpStatus.UNPROCESSABLE_ENTITY, "no funds");
            }
        }

        @OnceEffect(scope = "charges", key = "#id")
        public String charge(String id, int amount) {
            RUNS.incrementAndGet();
            if (amount < 0) {
                throw new IllegalArgumentException("negative");
            }
            return "charged " + amount;
        }

        @OnceEffect(scope = "charges", key = "#id")
        public Object chargeWithoutJson(String id) {
            return new Object();
        }
    }

    @RestController
    static class Controller {
        private final Payments payments;

        Controller(Payments payments) {
            this.payments = payments;
        }

        @PostMapping("/payments")
        @Idempotent("payments")
        ResponseEntity<String> pay(@RequestBody String id, @RequestHeader(name = "X-Refuse", defaultValue = "false") boolean refuse) {
            payments.pay(id, refuse);
            return ResponseEntity.status(201).header("X-Run", String.valueOf(RUNS.incrementAndGet())).body("paid " + id);
        }

        @PostMapping("/forms")
        @Idempotent("forms")
        String form(@RequestParam String name) {
            return "hello " + name + " " + RUNS.incrementAndGet();
        }

        @PostMapping("/bare")
        String bare() {
            return "bare " + RUNS.incrementAndGet();
        }
    }

    @RestController
    static class Streamed {
        @PostMapping("/stream")
        @Idempotent("stream")
        ResponseEntity<StreamingResponseBody> stream() {
            return ResponseEntity.ok(out -> out.write(1));
        }
    }

    @RestController
    static class Later {
        @PostMapping("/later")
        @Idempotent("later")
        Callable<String> later() {
            return () -> "later";
        }
    }

    /** Hides from the look at the start what it gives. */
    @RestController
    static class Hidden {
        @PostMapping("/hidden")
        @Idempotent("hidden")
        Object hidden() {
            return new SseEmitter();
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @EntityScan(basePackageClasses = SpringTest.class)
    @Import({Payments.class, Controller.class, Hidden.class})
    static class Application {
        @Bean
        TestObservationRegistry observations() {
            return TestObservationRegistry.create();
        }

        @Bean
        org.springframework.security.web.SecurityFilterChain security(org.springframework.security.config.annotation.web.builders.HttpSecurity http)
            throws Exception {
            return http.csrf(csrf -> csrf.disable()).authorizeHttpRequests(all -> all.anyRequest().authenticated())
                .httpBasic(basic -> { }).build();
        }
    }

    private static ServletWebServerApplicationContext application(boolean jpa, Class<?>... more) {
        List<Class<?>> sources = Stream.concat(Stream.of(Application.class), Stream.of(more)).toList();
        return Apps.run(server, jpa ? List.of() : Apps.JPA, sources, "spring.security.user.name=ann", "spring.security.user.password=secret");
    }

    @BeforeAll
    static void start() {
        server = new Server();
        server.rows("CREATE TABLE payment (id text PRIMARY KEY)");
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    private static HttpResponse<String> send(ServletWebServerApplicationContext context, String target, String password, String key, String body, String... headers)
        throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + context.getWebServer().getPort() + target))
            .POST(HttpRequest.BodyPublishers.ofString(body)).header("Idempotency-Key", key)
            .header("Authorization", "Basic " + Base64.getEncoder().encodeToString(("ann:" + password).getBytes(StandardCharsets.UTF_8)));
        if (headers.length > 0) {
            request.headers(headers);
        }
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    private static long payments(String id) {
        return ((Number) server.rows("SELECT count(*) FROM payment WHERE id = '" + id + "'").get(0).get(0)).longValue();
    }

    @Test
    void workToBeDoneBeforeCommitIsDoneInTheTransaction() {
        try (HikariDataSource pool = Server.pool(server.url(), 1)) {
            Once once = Once.over(new SpringTransactions(new JdbcTransactionManager(pool), pool), Observer.NONE);
            once.run("late", UUID.randomUUID().toString(), Request.text("x"), tx -> {
                TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronization() {
                    @Override
                    public void beforeCommit(boolean readOnly) {
                        LATE.set(new JdbcTemplate(pool).queryForObject("SELECT txid_current()", Long.class));
                    }
                });
                EARLY.set(new JdbcTemplate(pool).queryForObject("SELECT txid_current()", Long.class));
                return Answer.of(201).text("late");
            });
            assertEquals(EARLY.get(), LATE.get());
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void anAnnotatedControllerRunsOnceAndOnlyWhoIsLetInGetsTheReplay(boolean jpa) throws Exception {
        try (ServletWebServerApplicationContext context = application(jpa)) {
            String id = UUID.randomUUID().toString();
            HttpResponse<String> first = send(context, "/payments", "secret", id, id);
            assertEquals(201, first.statusCode());
            assertEquals(401, send(context, "/payments", "wrong", id, id).statusCode());
            HttpResponse<String> second = send(context, "/payments", "secret", id, id);
            assertEquals("true", second.headers().firstValue("Idempotency-Replayed").orElse(null));
            assertEquals(first.body(), second.body());
            assertEquals(first.headers().firstValue("X-Run"), second.headers().firstValue("X-Run"));
            assertEquals(1, payments(id));
            assertEquals("ann", server.rows("SELECT tenant FROM once.intent WHERE key = '" + id + "'").get(0).get(0));
            assertTrue(send(context, "/bare", "secret", "bare", "").body().startsWith("bare"));
            TestObservationRegistryAssert.assertThat(context.getBean(TestObservationRegistry.class)).hasObservationWithNameEqualTo("pgonce.run")
                .that().hasLowCardinalityKeyValue("pgonce.scope", "payments").hasLowCardinalityKeyValue("pgonce.verdict", "proceed");
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aRefusalByAnExceptionOfAServiceTakesTheEffectBackAndIsStored(boolean jpa) throws Exception {
        try (ServletWebServerApplicationContext context = application(jpa)) {
            String id = UUID.randomUUID().toString();
            HttpResponse<String> first = send(context, "/payments", "secret", id, id, "X-Refuse", "true");
            assertEquals(422, first.statusCode());
            assertTrue(first.body().contains("\"path\":\"/payments\""), first.body()); // Spring Boot's own page
            HttpResponse<String> second = send(context, "/payments", "secret", id, id, "X-Refuse", "false");
            assertEquals(422, second.statusCode());
            assertEquals(first.body(), second.body());
            assertEquals("true", second.headers().firstValue("Idempotency-Replayed").orElse(null));
            assertEquals(0, payments(id));
        }
    }

    @Test
    void aViolationThatShowsAtTheFlushIsAnErrorAndNothingIsStored() throws Exception {
        try (ServletWebServerApplicationContext context = application(true)) {
            String id = UUID.randomUUID().toString();
            server.rows("INSERT INTO payment VALUES ('" + id + "')");
            assertEquals(500, send(context, "/payments", "secret", id, id).statusCode());
            server.rows("DELETE FROM payment WHERE id = '" + id + "'");
            assertEquals(201, send(context, "/payments", "secret", id, id).statusCode());
            assertEquals(1, payments(id));
        }
    }

    @Test
    void aFormIsReadAndWhatGoesAsynchronousIsRefused() throws Exception {
        try (ServletWebServerApplicationContext context = application(false)) {
            String key = UUID.randomUUID().toString();
            HttpResponse<String> first = send(context, "/forms", "secret", key, "name=J%C3%B6rg", "Content-Type", "application/x-www-form-urlencoded");
            assertTrue(first.body().startsWith("hello J"), first.body());
            assertEquals(first.body(), send(context, "/forms", "secret", key, "name=J%C3%B6rg", "Content-Type", "application/x-www-form-urlencoded").body());
            assertEquals(500, send(context, "/hidden", "secret", key, "").statusCode());
            assertEquals(0, server.rows("SELECT 1 FROM once.intent WHERE scope = 'hidden'").size());
        }
    }

    @ParameterizedTest
    @ValueSource(classes = {Streamed.class, Later.class})
    void whatIsStreamedIsRefusedWhenTheApplicationStarts(Class<?> controller) {
        IllegalStateException failure = assertThrows(IllegalStateException.class, () -> application(false, controller).close());
        assertTrue(failure.getMessage().contains("cannot be stored in its transaction"), failure.getMessage());
    }

    @Test
    void anAnnotatedEffectRunsOnceAndOneThatThrowsIsInDoubt() {
        try (ServletWebServerApplicationContext context = application(false)) {
            Payments payments = context.getBean(Payments.class);
            int before = RUNS.get();
            String id = UUID.randomUUID().toString();
            assertEquals("charged 5", payments.charge(id, 5));
            assertEquals("charged 5", payments.charge(id, 5));
            assertEquals(before + 1, RUNS.get());
            String bad = UUID.randomUUID().toString();
            assertInstanceOf(IllegalArgumentException.class, assertThrows(InDoubtException.class, () -> payments.charge(bad, -1)).getCause());
            assertThrows(InDoubtException.class, () -> payments.charge(bad, -1));
            String unkept = "unkept-" + UUID.randomUUID();
            assertThrows(InDoubtException.class, () -> payments.chargeWithoutJson(unkept));
            assertEquals(List.of(List.of("in_doubt", "answer_not_stored")), server.rows("SELECT state::text, error_code FROM once.intent WHERE key = '" + unkept + "'"));
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aRecordIsAppliedOnceAndASwallowedErrorIsNoticed(boolean jpa) {
        try (ServletWebServerApplicationContext context = application(jpa)) {
            KafkaOnce kafka = context.getBean(KafkaOnce.class);
            JdbcTemplate jdbc = context.getBean(JdbcTemplate.class);
            String id = UUID.randomUUID().toString();
            ConsumerRecord<String, String> message = new ConsumerRecord<>("orders", 0, 7, "lamp", "{\"n\": 1}");
            message.headers().add(KafkaOnce.ID_HEADER, id.getBytes(StandardCharsets.UTF_8));
            OnceException swallowed = assertThrows(OnceException.class, () -> kafka.apply("stock", message, tx -> {
                jdbc.update("INSERT INTO payment VALUES (?)", id);
                assertThrows(RuntimeException.class, () -> jdbc.queryForObject("SELECT 1/0", Integer.class));
            }));
            assertEquals("swallowed", swallowed.code());
            assertEquals(0, payments(id));
            for (boolean first : List.of(true, false)) {
                assertEquals(first, kafka.apply("stock", message, tx -> {
                    jdbc.update("INSERT INTO payment VALUES (?)", id);
                    tx.emit(Event.of("stock.taken", "{}"));
                }));
            }
            assertEquals(1, payments(id));
        }
    }

    @Test
    void aRecordThatIsNeitherBytesNorTextIsRefusedBeforeItIsApplied() {
        try (ServletWebServerApplicationContext context = application(false)) {
            String id = UUID.randomUUID().toString();
            ConsumerRecord<String, List<String>> message = new ConsumerRecord<>("orders", 0, 7, "lamp", List.of("n"));
            assertThrows(IllegalArgumentException.class, () -> context.getBean(KafkaOnce.class).apply("stock", id, message, tx -> RUNS.incrementAndGet()));
            assertEquals(0, server.rows("SELECT 1 FROM once.intent WHERE key LIKE '%" + id + "'").size());
        }
    }

    @Test
    void runRefusesToNestAndTheTransactionHelperRefusesToBeAlone() {
        try (ServletWebServerApplicationContext context = application(false)) {
            Once once = context.getBean(Once.class);
            assertThrows(IllegalStateException.class, () -> context.getBean(OnceTransaction.class).current());
            assertThrows(IllegalStateException.class, () -> once.run("a", UUID.randomUUID().toString(), Request.json("1"),
                tx -> once.run("b", UUID.randomUUID().toString(), Request.json("1"), inner -> Answer.of(201))));
            assertFalse(once.run("a", UUID.randomUUID().toString(), Request.json("1"), tx -> Answer.of(201)).replayed());
        }
    }
}
