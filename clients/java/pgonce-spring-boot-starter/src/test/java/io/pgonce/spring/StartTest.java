// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pgonce.testing.Server;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.data.jpa.JpaRepositoriesAutoConfiguration;
import org.springframework.boot.autoconfigure.orm.jpa.HibernateJpaAutoConfiguration;
import org.springframework.boot.autoconfigure.security.servlet.SecurityAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.stereotype.Component;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;

/** An annotation that would do nothing, or the wrong thing, is an error when the application starts. */
class StartTest {
    private static Server server;

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration(exclude = {HibernateJpaAutoConfiguration.class, JpaRepositoriesAutoConfiguration.class, SecurityAutoConfiguration.class})
    static class Application {
    }

    @Component
    static class Charges {
        @OnceEffect(scope = "charges", key = "#id")
        public String charge(String id) {
            return "charged " + id;
        }
    }

    @Component
    static class CallsItself extends Charges {
        public void chargeAll(List<String> ids) {
            ids.forEach(id -> charge(id));
        }
    }

    @Component
    static class RefersToItself extends Charges {
        public void chargeAll(List<String> ids) {
            ids.forEach(this::charge);
        }
    }

    /** Through Spring's own object of the class. */
    @Component
    static class CallsItsProxy {
        private final ObjectProvider<CallsItsProxy> proxy;

        CallsItsProxy(ObjectProvider<CallsItsProxy> proxy) {
            this.proxy = proxy;
        }

        @OnceEffect(scope = "charges", key = "#id")
        public String charge(String id) {
            return "charged " + id;
        }

        public String both(String id) {
            return proxy.getObject().charge(id) + proxy.getObject().charge(id);
        }
    }

    @Component
    static class Later {
        @OnceEffect(scope = "charges", key = "#id")
        public CompletableFuture<String> charge(String id) {
            return CompletableFuture.completedFuture(id);
        }
    }

    @Component
    static class Hidden {
        @OnceEffect(scope = "charges", key = "#id")
        private String charge(String id) {
            return id;
        }

        public String both(Hidden other) {
            return other.charge("1");
        }
    }

    @Component
    static class NoController {
        @Idempotent("orders")
        public String order() {
            return "ordered";
        }
    }

    @RestController
    static class Reads {
        @GetMapping("/reads")
        @Idempotent("reads")
        String read() {
            return "read";
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class NoDatabase {
        @Bean
        Charges charges() {
            return new Charges();
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

    private static ServletWebServerApplicationContext application(Class<?> more, String... properties) {
        return (ServletWebServerApplicationContext) new SpringApplicationBuilder(Application.class, more).properties(properties).run(
            "--server.port=0", "--server.address=127.0.0.1", "--spring.main.banner-mode=off", "--logging.level.root=off",
            "--spring.datasource.url=" + server.url(), "--spring.datasource.username=postgres");
    }

    @ParameterizedTest
    @ValueSource(classes = {CallsItself.class, RefersToItself.class, Later.class, Hidden.class, NoController.class, Reads.class})
    void whatWouldDoNothingIsRefused(Class<?> bean) {
        Throwable failure = assertThrows(RuntimeException.class, () -> application(bean).close());
        while (failure.getCause() != null) {
            failure = failure.getCause();
        }
        assertTrue(failure.getMessage().contains("would do nothing") || failure.getMessage().contains("does not protect"), failure.toString());
    }

    @ParameterizedTest
    @ValueSource(strings = {"spring.aop.auto=true", "spring.aop.auto=false"})
    void whatWorksStarts(String property) {
        try (ServletWebServerApplicationContext context = application(CallsItsProxy.class, property)) {
            String id = UUID.randomUUID().toString();
            assertEquals(("charged " + id).repeat(2), context.getBean(CallsItsProxy.class).both(id));
            assertEquals(1, server.rows("SELECT 1 FROM once.intent WHERE key = '" + id + "'").size());
        }
    }

    @Test
    void anAnnotationWherePgonceIsNotSetUpIsRefused() {
        Throwable failure = assertThrows(RuntimeException.class, () -> application(NoDatabase.class,
            "spring.autoconfigure.exclude=" + OnceAutoConfiguration.class.getName()).close());
        assertTrue(failure.toString().contains("pgonce is not set up"), failure.toString());
        assertDoesNotThrow(() -> application(Application.class, "spring.autoconfigure.exclude=" + OnceAutoConfiguration.class.getName()).close());
    }
}
