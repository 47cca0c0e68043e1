// SPDX-License-Identifier: PostgreSQL
package transparency;

import java.util.HashMap;
import java.util.Map;
import org.apache.catalina.connector.Connector;
import org.apache.coyote.http2.Http2Protocol;
import org.springframework.boot.Banner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.web.embedded.tomcat.TomcatServletWebServerFactory;
import org.springframework.boot.web.server.WebServerFactoryCustomizer;
import org.springframework.context.annotation.Bean;
import org.springframework.core.env.Environment;
import org.springframework.scheduling.annotation.EnableAsync;

/** The handlers of cases.json in Spring Boot on Tomcat, with the neighbours that its documentation names: ../../README.md. Without pgonce its starter is not there. */
@SpringBootApplication
@EnableAsync
public class Application {
    /** HTTP/2 without TLS, with prior knowledge. */
    @Bean
    WebServerFactoryCustomizer<TomcatServletWebServerFactory> two(Environment environment) {
        return factory -> {
            Connector connector = new Connector();
            connector.setProperty("address", "127.0.0.1");
            connector.setPort(environment.getRequiredProperty("PORT_HTTP2", Integer.class));
            connector.addUpgradeProtocol(new Http2Protocol());
            factory.addAdditionalTomcatConnectors(connector);
        };
    }

    /** Starts it. */
    public static void main(String[] args) {
        Map<String, Object> properties = new HashMap<>(Map.of(
            "server.address", "127.0.0.1",
            "server.port", System.getenv("PORT"),
            "server.compression.enabled", true,
            "server.shutdown", "immediate",
            "spring.datasource.url", System.getenv("DATABASE_JDBC"),
            "spring.datasource.hikari.maximum-pool-size", 4,
            "spring.datasource.hikari.minimum-idle", 0,
            "pgonce.tenant", "none",
            "pgonce.handler-ms", System.getenv("HANDLER_MS"),
            "logging.level.root", "error"));
        // An answer whose end only the connection's end tells: it comes before the suite's patience is over.
        properties.put("server.tomcat.keep-alive-timeout", "10s");
        if (!"on".equals(System.getenv("PGONCE"))) {
            properties.put("spring.autoconfigure.exclude", "io.pgonce.spring.OnceAutoConfiguration,io.pgonce.spring.OnceChecksAutoConfiguration");
        }
        SpringApplication application = new SpringApplication(Application.class);
        application.setBannerMode(Banner.Mode.OFF);
        application.setDefaultProperties(properties);
        application.run(args);
    }
}
