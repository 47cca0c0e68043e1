// SPDX-License-Identifier: PostgreSQL

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.pgonce.Observer;
import io.pgonce.Once;
import io.pgonce.Transactions;
import io.pgonce.spring.Filters;
import io.pgonce.spring.Idempotent;
import io.pgonce.spring.NodesDataSource;
import io.pgonce.spring.OnceTransaction;
import io.pgonce.spring.SpringTransactions;
import io.pgonce.spring.TenantResolver;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.core.Ordered;
import org.springframework.core.annotation.AnnotationUtils;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RestController;

/** The services of spec/cases/http.json behind Spring Boot's starter, with the transactions of JDBC or of JPA. One server has the service of one case after another. */
final class Web {
    private static final String AUTO = "org.springframework.boot.autoconfigure.";
    private static final int PATIENCE_S = 30;
    private static volatile Running running;

    /** Of the application that has several. */
    private static volatile Shared shared;

    private final ServletWebServerApplicationContext context;
    private final boolean isJpa;
    private final String dsn;

    Web(boolean isJpa, String dsn) {
        this(isJpa, dsn, "0", Application.class);
    }

    Web(boolean isJpa, String dsn, String port, Class<?>... parts) {
        this.isJpa = isJpa;
        this.dsn = dsn;
        Map<String, String> said = new HashMap<>();
        for (String pair : dsn.split(" ")) {
            said.put(pair.substring(0, pair.indexOf('=')), pair.substring(pair.indexOf('=') + 1));
        }
        context = (ServletWebServerApplicationContext) new SpringApplicationBuilder(parts).properties(
            "torture.dsn=" + dsn, "server.port=" + port, "server.address=127.0.0.1", "spring.main.banner-mode=off", "logging.level.root=off", "spring.servlet.multipart.enabled=false",
            "spring.datasource.url=jdbc:postgresql://" + said.get("hostaddr") + ":" + said.get("port") + "/" + said.get("dbname") + "?sslmode=disable&gssEncMode=disable",
            "spring.datasource.username=" + said.get("user"), "spring.datasource.hikari.connection-timeout=3000",
            "spring.autoconfigure.exclude=" + (isJpa ? "" : AUTO + "orm.jpa.HibernateJpaAutoConfiguration," + AUTO + "data.jpa.JpaRepositoriesAutoConfiguration")).run();
        if (isJpa == (context.getBean(PlatformTransactionManager.class) instanceof DataSourceTransactionManager)) {
            throw new IllegalStateException("its transactions are not those of " + (isJpa ? "JPA" : "JDBC"));
        }
    }

    /** The same application over several nodes. */
    Web over(Shared nodes) {
        boolean begins = shared == null;
        shared = nodes;
        if (!begins) {
            return this;
        }
        context.close();
        return new Web(isJpa, dsn, "0", Application.class, Several.class);
    }

    Once once() {
        if (shared != null && shared.isPlain()) {
            SpringTransactions all = new SpringTransactions(context.getBean(PlatformTransactionManager.class), source());
            return Once.over((Transactions) all::begin, Observer.NONE);
        }
        return context.getBean(Once.class);
    }

    DataSource source() {
        return context.getBean(DataSource.class);
    }

    /** Whose own transactions are Spring's. */
    Door door() {
        PlatformTransactionManager manager = context.getBean(PlatformTransactionManager.class);
        OnceTransaction transaction = context.getBean(OnceTransaction.class);
        return new Door(source(), once(), (tenant, level, work) -> {
            TransactionTemplate template = new TransactionTemplate(manager);
            template.setIsolationLevel(level);
            template.executeWithoutResult(status -> {
                try {
                    work.in(transaction.current(tenant));
                } catch (RuntimeException failure) {
                    throw failure;
                } catch (Exception failure) {
                    throw new IllegalStateException(failure);
                }
            });
        });
    }

    /** The service of one case, and its filter. */
    private static final class Running {
        final String name;
        final JsonNode script;
        final Filter filter;
        final AtomicInteger runs = new AtomicInteger();
        final CountDownLatch release = new CountDownLatch(1);
        final Semaphore begun = new Semaphore(0);

        Running(JsonNode order, Filter filter) {
            this.name = order.get("name").asText();
            this.script = order.get("service");
            this.filter = filter;
        }
    }

    @RestController
    static class Handler {
        private final JdbcTemplate jdbc;

        Handler(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        @RequestMapping("/{name}")
        void serve(HttpServletResponse response) throws Exception {
            Running now = running;
            int run = now.runs.incrementAndGet();
            JsonNode said = now.script.get(Math.min(run, now.script.size()) - 1);
            if (said.path("effect").asBoolean(true)) {
                jdbc.update("INSERT INTO effect (key, attempt) VALUES (?, ?)", now.name, run);
            }
            for (JsonNode text : said.path("behind")) {
                jdbc.execute((ConnectionCallback<Void>) connection -> {
                    Calls.behind(connection, text.asText());
                    return null;
                });
            }
            if (said.path("hold").asBoolean()) {
                now.begun.release();
                if (!now.release.await(PATIENCE_S, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("it was not let go");
                }
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
            byte[] body = Calls.bytes(said);
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
    @Import(Handler.class)
    static class Application {
        /** Each case has its own location. */
        @Bean
        FilterRegistrationBean<Filter> locations() {
            FilterRegistrationBean<Filter> registration = new FilterRegistrationBean<>((request, response, chain) -> {
                boolean isCase = running != null && ((HttpServletRequest) request).getRequestURI().equals("/" + running.name);
                if (isCase) {
                    running.filter.doFilter(request, response, chain);
                } else {
                    chain.doFilter(request, response);
                }
            });
            registration.setOrder(Ordered.LOWEST_PRECEDENCE - 1001);
            return registration;
        }
    }

    /** Its DataSource has the nodes of the case that runs. */
    @Configuration(proxyBeanMethods = false)
    static class Several {
        private static final String OUTSIDE = "outside";

        @Bean
        DataSource nodes() {
            return new NodesDataSource((tenant, closed) -> tenant.equals(OUTSIDE) ? shared.first() : shared.route().node(tenant, closed), () -> OUTSIDE);
        }
    }

    private static String[] texts(JsonNode list) {
        List<String> texts = new ArrayList<>();
        list.forEach(each -> texts.add(each.asText()));
        return texts.toArray(new String[0]);
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

    private int serve(JsonNode order) {
        JsonNode location = order.get("location");
        Once once = once();
        if (location.path("database").asText().equals("away")) {
            DataSource away = Door.source(0, "hostaddr=127.0.0.1 port=1 dbname=nothing user=postgres");
            once = Once.over(new SpringTransactions(new DataSourceTransactionManager(away), away), Observer.NONE);
        }
        TenantResolver tenants = location.path("tenant").asText().equals("none") ? null : request -> request.getHeader("X-Tenant");
        running = new Running(order, Filters.of(once, tenants, annotation(location)));
        return context.getWebServer().getPort();
    }

    ObjectNode call(JsonNode order) throws InterruptedException {
        ObjectNode said = Door.JSON.createObjectNode();
        switch (order.get("call").asText()) {
            case "serve" -> said.put("port", serve(order));
            case "begun" -> {
                if (!running.begun.tryAcquire(PATIENCE_S, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("no execution has begun");
                }
            }
            case "let" -> running.release.countDown();
            case "stop" -> {
                running.release.countDown();
                said.put("runs", running.runs.get());
            }
            default -> throw new IllegalStateException("no such call: " + order);
        }
        return said;
    }
}
