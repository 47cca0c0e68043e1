// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Once;
import io.pgonce.OnceException;
import io.pgonce.Request;
import io.pgonce.http.Problem;
import jakarta.servlet.MultipartConfigElement;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.net.URI;
import java.sql.SQLException;
import org.springframework.core.env.Environment;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.support.SQLExceptionSubclassTranslator;
import org.springframework.web.servlet.HandlerExceptionResolver;
import org.springframework.web.servlet.ModelAndView;

/**
 * What the filter takes from the application: its properties, whose key it is, its exception handlers, its error page.
 *
 * @param once the door
 * @param tenants null: there is but one caller
 * @param environment the properties {@code pgonce.mode}, {@code pgonce.handler-ms}, {@code pgonce.host}, {@code pgonce.gateway},
 *     {@code pgonce.problem-base}
 * @param resolver Spring MVC's exception handlers; null: the application has none
 * @param errorPage of the application
 * @param uploads the limits of files; null: none
 */
record WebSettings(Once once, TenantResolver tenants, Environment environment, HandlerExceptionResolver resolver, ErrorPage errorPage,
                   MultipartConfigElement uploads) {
    private static final long HANDLER_MS = 30_000;

    String scope(String said) {
        return environment.resolveRequiredPlaceholders(said);
    }

    boolean leases(Idempotent wanted) {
        return wanted.mode() == Idempotent.Mode.LEASE
            || (wanted.mode() == Idempotent.Mode.DEFAULT && mode() == Idempotent.Mode.LEASE);
    }

    private Idempotent.Mode mode() {
        return environment.getProperty("pgonce.mode", Idempotent.Mode.class, Idempotent.Mode.DEFAULT);
    }

    long handlerMs(Idempotent wanted) {
        return wanted.handlerMs() >= 0 ? wanted.handlerMs() : environment.getProperty("pgonce.handler-ms", Long.class, HANDLER_MS);
    }

    boolean withHost() {
        return withHost(environment);
    }

    static boolean withHost(Environment environment) {
        return environment.getProperty("pgonce.host", Boolean.class, true);
    }

    /** Has a gateway in front, with the same scope, claimed each key? */
    boolean behindGateway() {
        return behindGateway(environment);
    }

    static boolean behindGateway(Environment environment) {
        return environment.getProperty("pgonce.gateway", Boolean.class, false);
    }

    /** What stands before a problem's name in its type. */
    static String problemBase(Environment environment) {
        return Problem.checkBase(environment.getProperty("pgonce.problem-base"));
    }

    /** A property that says nonsense says so at the start. */
    void check() {
        mode();
        environment.getProperty("pgonce.handler-ms", Long.class);
        withHost();
        behindGateway();
    }

    Request fingerprinted(HttpServletRequest request, byte[] body, boolean canonicalJson) {
        return HttpOnce.request(request, body, canonicalJson, withHost());
    }

    /** As the container does it: Tomcat, unless it is told otherwise, and Undertow make it absolute; Jetty and MockMvc leave a whole path. */
    HeldResponse.Redirects redirects(HttpServletRequest request) {
        String server = String.valueOf(request.getServletContext().getServerInfo());
        boolean absolute = server.startsWith("Undertow")
            || (server.startsWith("Apache Tomcat") && !environment.getProperty("server.tomcat.use-relative-redirects", Boolean.class, false));
        return said -> {
            try {
                URI place = URI.create(said);
                if (absolute) {
                    return URI.create(request.getRequestURL().toString()).resolve(place).toString();
                }
                return place.isAbsolute() || (said.startsWith("/") && place.normalize().equals(place)) ? said : null;
            } catch (IllegalArgumentException noPlace) {
                return null;
            }
        };
    }

    /** Of what the database refused at COMMIT, what Spring's own transactions would throw. */
    Exception translated(Exception failure) {
        if (failure instanceof OnceException && failure.getCause() instanceof SQLException refused) {
            DataAccessException known = new SQLExceptionSubclassTranslator().translate("COMMIT", null, refused);
            return known == null ? failure : known;
        }
        return failure;
    }

    /** Has an exception handler of the application's answered? */
    boolean resolves(HttpServletRequest request, HttpServletResponse response, Object handler, Exception failure) {
        ModelAndView answer = resolver == null ? null : resolver.resolveException(request, response, handler, failure);
        return answer != null && answer.isEmpty();
    }
}
