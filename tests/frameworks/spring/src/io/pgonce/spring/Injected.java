// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import io.pgonce.Observer;
import io.pgonce.Once;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import java.lang.instrument.Instrumentation;
import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.UUID;
import net.bytebuddy.agent.Installer;
import net.bytebuddy.agent.builder.AgentBuilder;
import net.bytebuddy.asm.Advice;
import net.bytebuddy.matcher.ElementMatchers;
import org.springframework.core.env.StandardEnvironment;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;

/** An agent of the virtual machine: puts our filter behind the filters of each MockMvc that is built, and gives each POST without a key a fresh one. */
public final class Injected {
    private static final String KEY = "Idempotency-Key";

    private Injected() {
    }

    /** Before the tests. */
    public static void premain(String options, Instrumentation machine) {
        Installer.premain(options, machine); // so that Mockito attaches no agent by another virtual machine, which would have this one, too
        new AgentBuilder.Default().type(ElementMatchers.nameEndsWith("MockMvcBuilderSupport"))
            .transform((builder, type, loader, module, domain) -> builder.visit(
                Advice.to(Building.class).on(ElementMatchers.named("createMockMvc").and(ElementMatchers.takesArguments(7)))))
            .installOn(machine);
    }

    /** As MockMvc is built. */
    public static final class Building {
        private Building() {
        }

        @Advice.OnMethodEnter
        static void enter(@Advice.Argument(value = 0, readOnly = false) Filter[] filters) {
            filters = Injected.behind(filters);
        }
    }

    @Idempotent(value = "frameworks", methods = "POST")
    private static final class Wanted {
    }

    /** One for all of them. */
    private static final class Ours {
        static final IdempotencyFilter FILTER = make();

        private static IdempotencyFilter make() {
            HikariConfig config = new HikariConfig();
            config.setJdbcUrl(System.getenv("DATABASE_JDBC"));
            config.setMaximumPoolSize(4);
            HikariDataSource source = new HikariDataSource(config);
            Once once = Once.over(new SpringTransactions(new DataSourceTransactionManager(source), source), Observer.NONE);
            Idempotent wanted = Wanted.class.getAnnotation(Idempotent.class);
            return new IdempotencyFilter(new WebSettings(once, null, new StandardEnvironment(), null, new ErrorPage(null), null), new IdempotentHandlers(null) {
                @Override
                Found of(HttpServletRequest request) {
                    return "POST".equals(request.getMethod()) ? new Found(wanted, null, null, false) : null;
                }
            });
        }
    }

    /** Those of the test, and ours. */
    public static Filter[] behind(Filter[] filters) {
        Filter[] all = Arrays.copyOf(filters, filters.length + 1);
        all[filters.length] = (request, response, chain) -> Ours.FILTER.doFilter(withKey((HttpServletRequest) request), response, chain);
        return all;
    }

    private static HttpServletRequest withKey(HttpServletRequest request) {
        if (!"POST".equals(request.getMethod()) || request.getHeader(KEY) != null) {
            return request;
        }
        String key = UUID.randomUUID().toString();
        return new HttpServletRequestWrapper(request) {
            @Override
            public String getHeader(String name) {
                return KEY.equalsIgnoreCase(name) ? key : super.getHeader(name);
            }

            @Override
            public Enumeration<String> getHeaders(String name) {
                return KEY.equalsIgnoreCase(name) ? Collections.enumeration(List.of(key)) : super.getHeaders(name);
            }
        };
    }
}
