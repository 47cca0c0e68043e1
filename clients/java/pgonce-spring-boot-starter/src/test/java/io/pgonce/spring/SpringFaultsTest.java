// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.newKey;

import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.Answer;
import io.pgonce.Doubt;
import io.pgonce.FinalFailureException;
import io.pgonce.InDoubtException;
import io.pgonce.Observer;
import io.pgonce.Once;
import io.pgonce.Request;
import io.pgonce.testing.Server;
import jakarta.persistence.EntityManager;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.domain.EntityScan;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.stereotype.Component;
import org.springframework.transaction.TransactionDefinition;
import org.springframework.transaction.support.TransactionSynchronization;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;

/** What goes wrong around Spring's transactions and the filter: work that is held back until COMMIT, listeners that throw, COMMITs that fail. */
class SpringFaultsTest {
    private static final Request REQUEST = Request.text("x");
    private static final Duration SOON = Duration.ofSeconds(3);
    private static final HttpClient CLIENT = HttpClient.newHttpClient();
    private static final AtomicInteger RUNS = new AtomicInteger();
    private static Server server;
    private static HikariDataSource pool;
    private static ServletWebServerApplicationContext context;

    @Component
    static class Charges {
        @OnceEffect(scope = "charges", key = "#id")
        public String charge(String id) {
            RUNS.incrementAndGet();
            return "charged " + id;
        }
    }

    @RestController
    static class Controller {
        private final ObjectProvider<EntityManager> entities;

        private final Charges charges;

        Controller(ObjectProvider<EntityManager> entities, Charges charges) {
            this.entities = entities;
            this.charges = charges;
        }

        /** Refuses without an exception, so nothing dooms the transaction. */
        @PostMapping("/refusals")
        @Idempotent("refusals")
        ResponseEntity<String> refuse(@RequestBody String id, @RequestHeader(name = "X-Unknown", defaultValue = "false") boolean unknown) {
            entities.getObject().persist(new SpringTest.Payment(id));
            RUNS.incrementAndGet();
            return unknown ? ResponseEntity.status(500).header("Once-Effect", "unknown").body("who knows") : ResponseEntity.status(422).body("refused " + id);
        }

        /** Says Once-Effect as the request asks for, and fails. */
        @PostMapping("/words")
        @Idempotent("words")
        void say(@RequestBody String id, @RequestHeader("X-Word") String[] words, @RequestHeader("X-Reset") boolean reset, HttpServletResponse response) {
            entities.getObject().persist(new SpringTest.Payment(id));
            RUNS.incrementAndGet();
            for (String word : words) {
                response.addHeader("Once-Effect", word);
            }
            if (reset) {
                response.reset();
            }
            response.setStatus(500);
        }

        @PostMapping("/forms")
        @Idempotent("forms")
        String form(@RequestParam String name) {
            RUNS.incrementAndGet();
            return "hello " + name;
        }

        /** Not protected itself: its EntityManager is open all the while (spring.jpa.open-in-view). */
        @PostMapping("/charges")
        String charge(@RequestBody String id) {
            entities.getObject().find(SpringTest.Payment.class, id);
            return charges.charge(id);
        }

        /** JPA sends it without Spring's connection. */
        @PostMapping("/native")
        @Idempotent("native")
        String commitNatively(@RequestBody String id) {
            RUNS.incrementAndGet();
            entities.getObject().persist(new SpringTest.Payment(id));
            entities.getObject().flush();
            entities.getObject().createNativeQuery("COMMIT").executeUpdate();
            return "committed";
        }

        /** More than can be held; and it goes on as if nothing had happened. */
        @PostMapping("/endless")
        @Idempotent(value = "endless", responseMax = 64 << 20)
        void endless(@RequestBody String id, HttpServletResponse response) throws Exception {
            entities.getObject().persist(new SpringTest.Payment(id));
            byte[] piece = new byte[1 << 20];
            for (int i = 0; i < 65; i++) {
                try {
                    response.getOutputStream().write(piece);
                } catch (IllegalStateException full) {
                    RUNS.incrementAndGet();
                }
            }
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration
    @EntityScan(basePackageClasses = SpringFaultsTest.class)
    @Import({Controller.class, Charges.class})
    static class Application {
        /** As Spring Security's look for a CSRF token in a form. */
        @Bean
        FilterRegistrationBean<Filter> reader() {
            FilterRegistrationBean<Filter> registration = new FilterRegistrationBean<>((request, response, chain) -> {
                request.getParameter("_csrf");
                if (((HttpServletRequest) request).getHeader("X-Read") != null) {
                    request.getInputStream().readAllBytes();
                }
                chain.doFilter(request, response);
            });
            registration.setOrder(0);
            return registration;
        }
    }

    @BeforeAll
    static void start() {
        server = new Server();
        server.rows("CREATE TABLE payment (id text PRIMARY KEY); CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)");
        pool = Server.pool(server.url(), 4);
        context = Apps.run(server, Apps.SECURITY, Application.class, "pgonce.tenant=none");
    }

    @AfterAll
    static void stop() {
        context.close();
        pool.close();
        server.close();
    }

    @BeforeEach
    void count() {
        RUNS.set(0);
    }

    private static Once once(boolean jpa) {
        return (jpa ? context.getBean(Once.class) : Once.over(new SpringTransactions(new JdbcTransactionManager(pool), pool), Observer.NONE)).deadline(SOON);
    }

    private static JdbcTemplate jdbc(boolean jpa) {
        return jpa ? context.getBean(JdbcTemplate.class) : new JdbcTemplate(pool);
    }

    private static void register(TransactionSynchronization synchronization) {
        TransactionSynchronizationManager.registerSynchronization(synchronization);
    }

    private static HttpResponse<String> send(String target, String key, String body, String... headers) throws Exception {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + context.getWebServer().getPort() + target))
            .POST(HttpRequest.BodyPublishers.ofString(body)).header("Idempotency-Key", key);
        if (headers.length > 0) {
            request.headers(headers);
        }
        return CLIENT.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    private static Object one(String sql) {
        return server.rows(sql).get(0).get(0);
    }

    @Test
    void whatJpaHasNotSentYetIsTakenBackWithTheRest() throws Exception {
        String refused = newKey();
        HttpResponse<String> first = send("/refusals", refused, refused);
        HttpResponse<String> second = send("/refusals", refused, refused);
        assertEquals(422, first.statusCode());
        assertEquals(first.body(), second.body());
        assertEquals("true", second.headers().firstValue("Idempotency-Replayed").orElse(null));
        assertEquals(1, RUNS.get());
        assertEquals(0L, one("SELECT count(*) FROM payment WHERE id = '" + refused + "'"));

        String unknown = newKey();
        assertEquals(500, send("/refusals", unknown, unknown, "X-Unknown", "true").statusCode());
        assertEquals(409, send("/refusals", unknown, unknown, "X-Unknown", "true").statusCode());
        assertEquals(2, RUNS.get());
        assertEquals(0L, one("SELECT count(*) FROM payment WHERE id = '" + unknown + "'"));
        assertEquals("in_doubt", one("SELECT state::text FROM once.peek('refusals', '" + unknown + "')"));
    }

    @ParameterizedTest
    @CsvSource({"'done', false, 1", "'done,done', false, 2", "'unknown,done', false, 2", "'done', true, 2"})
    void aWordAboutTheEffectCountsIfItIsSaidOnceAndNotTakenBack(String words, boolean reset, int runs) throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals(500, send("/words", key, key, "X-Word", words, "X-Reset", String.valueOf(reset)).statusCode());
        }
        assertEquals(runs, RUNS.get());
        assertEquals(runs == 1 ? 1L : 0L, one("SELECT count(*) FROM payment WHERE id = '" + key + "'"));
    }

    /** JPA has no nested transactions with Hibernate; JDBC has. */
    @Test
    void aNestedTransactionIsTakenBackAlone() {
        TransactionTemplate nested = new TransactionTemplate(new JdbcTransactionManager(pool));
        nested.setPropagationBehavior(TransactionDefinition.PROPAGATION_NESTED);
        String key = newKey();
        once(false).run("nested", key, REQUEST, tx -> {
            assertThrows(IllegalArgumentException.class, () -> nested.executeWithoutResult(inner -> {
                jdbc(false).update("INSERT INTO payment VALUES (?)", key + "-inner");
                throw new IllegalArgumentException("rolled back");
            }));
            nested.executeWithoutResult(outer -> jdbc(false).update("INSERT INTO payment VALUES (?)", key));
            return Answer.of(201);
        });
        assertEquals(List.of(List.of((Object) key)), server.rows("SELECT id FROM payment WHERE id LIKE '" + key + "%'"));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void whatWasPlannedForAfterCommitDoesNotHappenWhereTheEffectIsTakenBack(boolean jpa) {
        AtomicInteger sent = new AtomicInteger();
        TransactionSynchronization mail = new TransactionSynchronization() {
            @Override
            public void afterCommit() {
                sent.incrementAndGet();
            }
        };
        String refused = newKey();
        for (int i = 0; i < 2; i++) {
            FinalFailureException failure = assertThrows(FinalFailureException.class, () -> once(jpa).run("planned", refused, REQUEST, tx -> {
                RUNS.incrementAndGet();
                register(mail);
                throw Answer.of(422).text("no funds").failure("no_funds", null);
            }));
            assertEquals("no funds", failure.answer().bodyText());
        }
        String unknown = newKey();
        assertThrows(Doubt.class, () -> once(jpa).run("planned", unknown, REQUEST, tx -> {
            RUNS.incrementAndGet();
            register(mail);
            throw new Doubt(500);
        }));
        assertThrows(InDoubtException.class, () -> once(jpa).run("planned", unknown, REQUEST, tx -> Answer.of(201)));
        assertEquals(2, RUNS.get());
        assertEquals(0, sent.get());
        once(jpa).run("planned", newKey(), REQUEST, tx -> {
            register(mail);
            return Answer.of(201);
        });
        assertEquals(1, sent.get());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void whatThrowsBeforeCommitIsTheApplicationsAndIsNotRunAgain(boolean jpa) {
        String key = newKey();
        IllegalArgumentException failure = assertThrows(IllegalArgumentException.class, () -> once(jpa).run("listened", key, REQUEST, tx -> {
            RUNS.incrementAndGet();
            jdbc(jpa).update("INSERT INTO payment VALUES (?)", key);
            register(new TransactionSynchronization() {
                @Override
                public void beforeCommit(boolean readOnly) {
                    throw new IllegalArgumentException("not so");
                }
            });
            return Answer.of(201);
        }));
        assertEquals("not so", failure.getMessage());
        assertEquals(1, RUNS.get());
        assertEquals(0L, one("SELECT count(*) FROM payment WHERE id = '" + key + "'"));
        assertFalse(once(jpa).run("listened", key, REQUEST, tx -> Answer.of(201)).replayed());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void whatThrowsAfterCommitDoesNotMakeItUndone(boolean jpa) {
        String key = newKey();
        Answer answer = once(jpa).run("listened", key, REQUEST, tx -> {
            RUNS.incrementAndGet();
            jdbc(jpa).update("INSERT INTO payment VALUES (?)", key);
            register(new TransactionSynchronization() {
                @Override
                public void afterCommit() {
                    throw new IllegalArgumentException("too late");
                }
            });
            return Answer.of(201).text("made");
        });
        assertEquals("made", answer.bodyText());
        assertEquals(1, RUNS.get());
        assertEquals(1L, one("SELECT count(*) FROM payment WHERE id = '" + key + "'"));
    }

    @Test
    void aConstraintThatFailsInACommitThatIsListenedToIsAnErrorAndNoDoubt() {
        String key = newKey();
        Throwable failure = assertThrows(Exception.class, () -> once(false).run("late", key, REQUEST, tx -> {
            RUNS.incrementAndGet();
            jdbc(false).update("INSERT INTO late VALUES (1), (1)");
            register(new TransactionSynchronization() { });
            return Answer.of(201);
        }));
        Throwable cause = failure;
        while (cause.getCause() != null && !(cause instanceof SQLException sql && sql.getSQLState() != null)) {
            cause = cause.getCause();
        }
        assertEquals("23505", ((SQLException) cause).getSQLState(), failure.toString());
        assertEquals(1, RUNS.get());
        assertFalse(once(false).run("late", key, REQUEST, tx -> Answer.of(201)).replayed());
    }

    @Test
    void anEffectElsewhereIsReportedAlsoWhereTheRequestsEntityManagerIsOpen() throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals("charged " + key, send("/charges", key, key, "Content-Type", "text/plain").body());
        }
        assertEquals(1, RUNS.get());
        assertEquals("succeeded", one("SELECT state::text FROM once.peek('charges', '" + key + "')"));
    }

    @Test
    void jpaCannotEndTheTransactionByAText() throws Exception {
        String key = newKey();
        for (int i = 0; i < 2; i++) {
            assertEquals(500, send("/native", key, key, "Content-Type", "text/plain").statusCode());
        }
        assertEquals(2, RUNS.get());
        assertEquals(0L, one("SELECT count(*) FROM payment WHERE id = '" + key + "'"));
    }

    /** Its fingerprint would be that of an empty body: another form would get this one's answer. */
    @Test
    void aFormThatAFilterHasReadBeforeIsToldFromAnother() throws Exception {
        String key = newKey();
        String form = "application/x-www-form-urlencoded";
        assertEquals("hello ann", send("/forms", key, "name=ann", "Content-Type", form).body());
        assertEquals(422, send("/forms", key, "name=bob", "Content-Type", form).statusCode());
        assertEquals("hello ann", send("/forms", key, "name=ann", "Content-Type", form).body());
        assertEquals(1, RUNS.get());
        assertEquals(422, send("/refusals", newKey(), "a text is left alone", "Content-Type", "text/plain").statusCode());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aBodyThatAFilterHasReadBeforeIsRefusedAndNothingRuns(boolean chunked) throws Exception {
        String key = newKey();
        HttpRequest.BodyPublisher body = chunked ? HttpRequest.BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(key.getBytes(StandardCharsets.UTF_8)))
            : HttpRequest.BodyPublishers.ofString(key);
        assertEquals(500, CLIENT.send(HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + context.getWebServer().getPort() + "/refusals")).POST(body)
            .header("Idempotency-Key", key).header("X-Read", "yes").build(), HttpResponse.BodyHandlers.ofString()).statusCode());
        assertEquals(0, RUNS.get());
        assertEquals(0L, one("SELECT count(*) FROM once.intent WHERE key = '" + key + "'"));
    }

    @Test
    void anAnswerThatIsCutOffIsNeverStoredAlsoWhereTheHandlerGoesOn() throws Exception {
        String key = newKey();
        assertEquals(500, send("/endless", key, key, "Content-Type", "text/plain").statusCode());
        assertEquals(1, RUNS.get());
        assertEquals(0L, one("SELECT count(*) FROM payment WHERE id = '" + key + "'"));
        assertEquals(0L, one("SELECT count(*) FROM once.intent WHERE scope = 'endless'"));
    }
}
