// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Answer;
import io.pgonce.http.HeaderPolicy;
import io.pgonce.http.Problem;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import org.springframework.web.cors.CorsConfiguration;
import org.springframework.web.cors.DefaultCorsProcessor;

/**
 * The answers that are given in the handler's place: stored ones and problem documents, with the headers that outer filters have set, and
 * with those of Spring MVC's CORS, which the handler would have had.
 */
final class Replies {
    /** Of which an answer may have several, each on its own. */
    private static final Set<String> LISTS = Set.of("link", "vary", "warning", "allow", "www-authenticate", "access-control-expose-headers");
    private final HttpServletRequest request;
    private final HttpServletResponse response;
    private final CorsConfiguration cors;

    private final String problemBase;

    /** cors null: Spring MVC has no CORS configuration for this handler. */
    Replies(HttpServletRequest request, HttpServletResponse response, CorsConfiguration cors, String problemBase) {
        this.problemBase = problemBase;
        this.request = request;
        this.response = response;
        this.cors = cors;
    }

    /** False: this origin is refused, and has its answer. */
    private boolean allowsOrigin() throws IOException {
        return cors == null || new DefaultCorsProcessor().processRequest(cors, request, response);
    }

    void stored(Answer answer) throws IOException {
        if (Answer.TOO_LARGE.equals(answer.resultType())) {
            problem(Problem.TOO_LARGE, null, answer.traceparent(), HttpOnce.newInstance());
            return;
        } else if (answer.status() < 200) {
            problem(Problem.NO_ANSWER, null, answer.traceparent(), HttpOnce.newInstance());
            return;
        } else if (!allowsOrigin()) {
            return;
        }
        response.setStatus(answer.status());
        headers(HeaderPolicy.sendable(answer.headers()));
        response.setHeader("Idempotency-Replayed", "true");
        trace(answer.traceparent());
        byte[] body = answer.body();
        if (body != null && answer.status() != HttpServletResponse.SC_NO_CONTENT && answer.status() != HttpServletResponse.SC_NOT_MODIFIED) {
            response.setContentLength(body.length);
            response.getOutputStream().write(body);
        }
        response.flushBuffer();
    }

    /** Besides those that outer filters set for each answer, as for CORS. */
    private void headers(List<Answer.Header> stored) {
        Set<String> seen = new HashSet<>();
        for (Answer.Header each : stored) {
            String name = each.name().toLowerCase(Locale.ROOT);
            if (LISTS.contains(name)) {
                if (!response.getHeaders(name).contains(each.value()) || !"vary".equals(name)) {
                    response.addHeader(each.name(), each.value());
                }
            } else if (!seen.add(name)) {
                response.addHeader(each.name(), each.value());
            } else if (!name.startsWith("access-control-") || !response.containsHeader(name)) {
                response.setHeader(each.name(), each.value());
            }
        }
    }

    private void trace(String traceparent) {
        if (traceparent != null) {
            response.setHeader("Idempotency-Traceparent", traceparent);
        }
    }

    void problem(Problem problem, String more, String traceparent, String instance) throws IOException {
        if (!allowsOrigin()) {
            return;
        }
        byte[] document = problem.document(problemBase, more, instance);
        response.setStatus(problem.status());
        response.setContentType(Problem.TYPE);
        response.setHeader("Cache-Control", "no-store");
        trace(traceparent);
        if (problem.retryAfterS() > 0) {
            response.setIntHeader("Retry-After", problem.retryAfterS());
        }
        response.setContentLength(document.length);
        response.getOutputStream().write(document);
        response.flushBuffer();
    }
}
