// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.testing.Server;
import java.util.List;
import java.util.stream.Stream;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;

/** The applications of the tests: on a free port of loopback, over a private server. */
final class Apps {
    private static final String AUTO = "org.springframework.boot.autoconfigure.";
    /** What an application is configured without. */
    static final List<String> JPA = List.of(AUTO + "orm.jpa.HibernateJpaAutoConfiguration", AUTO + "data.jpa.JpaRepositoriesAutoConfiguration");
    static final List<String> SECURITY = List.of(AUTO + "security.servlet.SecurityAutoConfiguration", AUTO + "security.servlet.SecurityFilterAutoConfiguration",
        AUTO + "security.servlet.UserDetailsServiceAutoConfiguration");
    static final List<String> BOTH = Stream.concat(JPA.stream(), SECURITY.stream()).toList();

    private Apps() {
    }

    /** It says nothing, unless a property says that it does. */
    static ServletWebServerApplicationContext run(Server server, List<String> without, List<Class<?>> sources, String... properties) {
        return (ServletWebServerApplicationContext) new SpringApplicationBuilder(sources.toArray(new Class<?>[0])).properties(
            "server.port=0", "server.address=127.0.0.1", "spring.main.banner-mode=off", "logging.level.root=off", "spring.datasource.url=" + server.url(),
            "spring.datasource.username=postgres", "spring.autoconfigure.exclude=" + String.join(",", without))
            .run(Stream.of(properties).map(each -> "--" + each).toArray(String[]::new));
    }

    static ServletWebServerApplicationContext run(Server server, List<String> without, Class<?> source, String... properties) {
        return run(server, without, List.of(source), properties);
    }
}
