// SPDX-License-Identifier: PostgreSQL

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.pgonce.FinalFailureException;
import io.pgonce.Once;
import io.pgonce.spring.HttpOnce;
import io.pgonce.spring.Idempotent;
import io.pgonce.spring.OnceTransaction;
import io.pgonce.spring.TenantResolver;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import javax.sql.DataSource;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.Ordered;
import org.springframework.core.env.Environment;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

/** The Spring Boot starter at work (tests/torture/services.py), with the transactions of JDBC or of JPA (Web.java). */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class Service {
    private static final int CONNECTIONS = 8;
    private static final String RAN = "ran";

    private static JsonNode orderOf(String header) {
        try {
            return Door.JSON.readTree(header);
        } catch (IOException broken) {
            throw new UncheckedIOException(broken);
        }
    }

    @Bean
    DataSource source(Environment environment) {
        return Door.source(CONNECTIONS, environment.getRequiredProperty("torture.dsn"));
    }

    @Bean
    TenantResolver tenants() {
        return request -> orderOf(request.getHeader("X-Orders")).path("tenant").asText();
    }

    /** Says of each answer whether its handler was called: an attempt may leave a doubt, or learn of one. It is outside of pgonce, which answers a doubt anew. */
    @Bean
    FilterRegistrationBean<Filter> telling() {
        FilterRegistrationBean<Filter> registration = new FilterRegistrationBean<>((request, response, chain) ->
            chain.doFilter(request, new HttpServletResponseWrapper((HttpServletResponse) response) {
                @Override
                public void setStatus(int status) {
                    super.setStatus(status);
                    if (request.getAttribute(RAN) != null) {
                        setHeader("X-Ran", "yes");
                    }
                }
            }));
        registration.setOrder(Ordered.HIGHEST_PRECEDENCE);
        return registration;
    }

    /** An answer, and what is around it. */
    private static void answer(HttpServletResponse response, String neighbour, int status, byte[] body) throws Exception {
        response.setStatus(status);
        response.setContentType(MediaType.APPLICATION_OCTET_STREAM_VALUE);
        if ("trailers".equals(neighbour)) {
            response.setHeader("Trailer", "X-Sum");
            response.setTrailerFields(() -> Map.of("X-Sum", String.valueOf(body.length)));
            response.flushBuffer();
        }
        int half = body.length / 2;
        response.getOutputStream().write(body, 0, half);
        switch (neighbour) {
            case "pieces" -> {
                response.flushBuffer();
                Thread.sleep(10);
            }
            case "destroy", "cut" -> {
                response.flushBuffer();
                throw new IOException("broken off, as ordered");
            }
            default -> { }
        }
        response.getOutputStream().write(body, half, body.length - half);
    }

    /** The handlers, which are a bean since they are in here. */
    @RestController
    static class Requests {
        private final OnceTransaction transaction;
        private final HttpOnce http;
        private final DataSource source;

        Requests(OnceTransaction transaction, HttpOnce http, DataSource source) {
            this.transaction = transaction;
            this.http = http;
            this.source = source;
        }

        private static JsonNode orderOf(String orders, byte[] payload) {
            return ((ObjectNode) Service.orderOf(orders)).put("payload", new String(payload, StandardCharsets.UTF_8));
        }

        /** Work of a provider, as it were. */
        @PostMapping("/endpoints")
        ResponseEntity<byte[]> work(HttpServletRequest request, @RequestHeader("X-Orders") String orders, @RequestBody byte[] payload) {
            return http.effect("endpoints", request, payload, key -> {
                request.setAttribute(RAN, true);
                return Door.elsewhere(orderOf(orders, payload), source);
            });
        }

        /** The same under a lease, as an answer that the gateway would read so. */
        @PostMapping("/leases")
        @Idempotent(value = "leases", mode = Idempotent.Mode.LEASE, handlerMs = 4000)
        void lease(HttpServletRequest request, @RequestHeader("X-Orders") String orders, @RequestBody byte[] payload, HttpServletResponse response) throws Exception {
            JsonNode order = orderOf(orders, payload);
            request.setAttribute(RAN, true);
            try {
                answer(response, order.path("neighbour").asText(), 201, Door.elsewhere(order, source).body());
            } catch (FinalFailureException failure) {
                answer(response, "", failure.answer().status(), failure.answer().body());
            } catch (Once.NothingDone failure) {
                response.setHeader("X-Done", "no");
                response.setHeader("Retry-After", "1");
                response.setStatus(503);
            }
        }

        @PostMapping("/requests")
        @Idempotent("requests")
        void place(@RequestHeader("X-Orders") String orders, @RequestBody byte[] payload, HttpServletResponse response) throws Exception {
            JsonNode order = orderOf(orders, payload);
            byte[] body;
            try {
                body = Door.advance(order, transaction.current(order.path("tenant").asText()), source);
            } catch (Door.NotNow notNow) {
                if (order.path("attempt").asInt() % 2 == 1) {
                    response.setHeader("X-Done", "no");
                    response.setStatus(503);
                    return;
                }
                throw notNow;
            }
            boolean isFinal = "final".equals(order.path("end").asText());
            answer(response, order.path("neighbour").asText(), isFinal ? 422 : 201, isFinal ? UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8) : body);
        }
    }

    static void serve(String framework, String dsn, String port) {
        new Web(framework.endsWith("jpa"), dsn, port, Service.class);
    }
}
