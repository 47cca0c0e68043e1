// SPDX-License-Identifier: PostgreSQL

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.pgonce.spring.Idempotent;
import io.pgonce.spring.OnceAutoConfiguration;
import io.pgonce.spring.OnceTransaction;
import io.pgonce.spring.TenantResolver;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import javax.sql.DataSource;
import org.springframework.boot.Banner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.ImportAutoConfiguration;
import org.springframework.boot.autoconfigure.http.HttpMessageConvertersAutoConfiguration;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.boot.autoconfigure.jdbc.DataSourceTransactionManagerAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.DispatcherServletAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.ServletWebServerFactoryAutoConfiguration;
import org.springframework.boot.autoconfigure.web.servlet.WebMvcAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.env.Environment;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

/** The Spring Boot starter at work (tests/torture/services.py): of what Spring Boot configures by itself only what that needs, so that it starts quickly. */
@Configuration(proxyBeanMethods = false)
@ImportAutoConfiguration({ServletWebServerFactoryAutoConfiguration.class, DispatcherServletAutoConfiguration.class, WebMvcAutoConfiguration.class,
    HttpMessageConvertersAutoConfiguration.class, JacksonAutoConfiguration.class, DataSourceTransactionManagerAutoConfiguration.class,
    OnceAutoConfiguration.class})
public class Service {
    private static final int CONNECTIONS = 8;

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

    /** The handler, which is a bean since it is in here. */
    @RestController
    static class Requests {
        private final OnceTransaction transaction;

        Requests(OnceTransaction transaction) {
            this.transaction = transaction;
        }

        @PostMapping("/requests")
        @Idempotent("requests")
        ResponseEntity<byte[]> place(@RequestHeader("X-Orders") String orders, @RequestBody byte[] payload) throws Exception {
            ObjectNode order = ((ObjectNode) orderOf(orders)).put("payload", new String(payload, StandardCharsets.UTF_8));
            byte[] body;
            try {
                body = Door.advance(order, transaction.current(order.path("tenant").asText()));
            } catch (Door.NotNow notNow) {
                if (order.path("attempt").asInt() % 2 == 1) {
                    return ResponseEntity.status(503).header("X-Done", "no").build();
                }
                throw notNow;
            }
            boolean isFinal = "final".equals(order.path("end").asText());
            return ResponseEntity.status(isFinal ? 422 : 201).contentType(MediaType.APPLICATION_OCTET_STREAM)
                .body(isFinal ? UUID.randomUUID().toString().getBytes(StandardCharsets.UTF_8) : body);
        }
    }

    static void serve(String dsn, String port) {
        SpringApplication service = new SpringApplication(Service.class);
        service.setBannerMode(Banner.Mode.OFF);
        service.setDefaultProperties(Map.of("server.address", "127.0.0.1", "server.port", port, "torture.dsn", dsn));
        service.run();
    }
}
