// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Answer;
import io.pgonce.Doubt;
import io.pgonce.FinalFailureException;
import io.pgonce.Once;
import io.pgonce.OnceException;
import io.pgonce.http.Ending;
import io.pgonce.http.HeaderPolicy;
import io.pgonce.http.Problem;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionStage;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.core.ResolvableType;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.util.StringValueResolver;
import org.springframework.web.context.request.async.DeferredResult;
import org.springframework.web.context.request.async.WebAsyncTask;
import org.springframework.web.filter.OncePerRequestFilter;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.servlet.HandlerExecutionChain;
import org.springframework.web.servlet.mvc.method.annotation.RequestMappingHandlerMapping;
import org.springframework.web.servlet.mvc.method.annotation.ResponseBodyEmitter;
import org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody;
import org.springframework.web.util.ServletRequestPathUtils;

/**
 * What {@link Idempotent} does: the gateway's rules, in one transaction with the effect. It comes late in the chain,
 * behind authentication, so a replay is given to whoever may ask.
 */
class IdempotencyFilter extends OncePerRequestFilter implements SmartInitializingSingleton {
    private static final List<Class<?>> STREAMED = List.of(StreamingResponseBody.class, ResponseBodyEmitter.class, Callable.class, DeferredResult.class,
        WebAsyncTask.class, CompletionStage.class);

    private final Once once;
    private final RequestMappingHandlerMapping mapping;
    private final TenantResolver tenants;
    private final StringValueResolver placeholders;

    /** The answer is passed on, and the transaction rolled back. */
    private static final class Released extends RuntimeException {
        private static final long serialVersionUID = 1L;

        Released() {
            super(null, null, false, false);
        }
    }

    /** tenants null: there is but one caller. */
    IdempotencyFilter(Once once, RequestMappingHandlerMapping mapping, TenantResolver tenants, StringValueResolver placeholders) {
        this.once = once;
        this.mapping = mapping;
        this.tenants = tenants;
        this.placeholders = placeholders;
    }

    private static Idempotent wanted(HandlerMethod method) {
        Idempotent own = AnnotatedElementUtils.findMergedAnnotation(method.getMethod(), Idempotent.class);
        return own != null ? own : AnnotatedElementUtils.findMergedAnnotation(method.getBeanType(), Idempotent.class);
    }

    /** What cannot work is said at the start, and not at the first request. */
    @Override
    public void afterSingletonsInstantiated() {
        for (HandlerMethod method : mapping.getHandlerMethods().values()) {
            Idempotent idempotent = wanted(method);
            if (idempotent == null) {
                continue;
            }
            new HeaderPolicy(List.of(idempotent.headers()));
            ResolvableType type = ResolvableType.forMethodReturnType(method.getMethod());
            for (Class<?> each : STREAMED) {
                if (each.isAssignableFrom(type.toClass()) || each.isAssignableFrom(type.getGeneric(0).toClass())) {
                    throw new IllegalStateException(method.getShortLogMessage() + " is @Idempotent and gives " + each.getSimpleName()
                        + ": an answer that is streamed or asynchronous cannot be stored in its transaction");
                }
            }
        }
    }

    /** What the handler of this request is annotated with; null: nothing. */
    Idempotent wanted(HttpServletRequest request) {
        try {
            if (!ServletRequestPathUtils.hasParsedRequestPath(request)) {
                ServletRequestPathUtils.parseAndCache(request);
            }
            HandlerExecutionChain chain = mapping.getHandler(request);
            return chain != null && chain.getHandler() instanceof HandlerMethod method ? wanted(method) : null;
        } catch (Exception noHandler) {
            return null; // the dispatcher says so
        }
    }

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws ServletException, IOException {
        Idempotent wanted = wanted(request);
        if (wanted == null || !List.of(wanted.methods()).contains(request.getMethod())) {
            chain.doFilter(request, response);
            return;
        }
        String key;
        String tenant;
        try {
            key = HttpOnce.key(request, wanted.required(), wanted.strictKeys(), wanted.keyLength());
            if (key == null) {
                chain.doFilter(request, response);
                return;
            }
            tenant = HttpOnce.tenant(tenants, request);
        } catch (HttpOnce.Refused refused) {
            problem(response, refused.problem, refused.getMessage(), null);
            return;
        }
        byte[] body = request.getInputStream().readNBytes(wanted.bodyMax() + 1);
        if (body.length > wanted.bodyMax()) {
            problem(response, Problem.BODY_TOO_LARGE, null, null);
            return;
        }
        if (body.length == 0 && (request.getContentLengthLong() > 0 || (request.getHeader("Transfer-Encoding") != null && HeldRequest.isForm(request)))) {
            throw new IllegalStateException("the body of this request was read before, as by getParameter in a filter: another request with its key "
                + "could not be told from it. Put that filter behind pgonce's, or send what it looks for (a CSRF token) in a header");
        }
        guard(wanted, key, tenant, new HeldRequest(request, body), body, response, chain);
    }

    private void guard(Idempotent wanted, String key, String tenant, HeldRequest request, byte[] body, HttpServletResponse response, FilterChain chain)
        throws ServletException, IOException {
        String scope = placeholders.resolveStringValue(wanted.value());
        HeldResponse held = new HeldResponse(response);
        boolean[] ran = new boolean[1];
        Answer stored; // null: what is held is sent
        try {
            Answer answer = once.tenant(tenant).waiting(Duration.ofMillis(wanted.waitMs())).keeping(wanted.responseMax())
                .traceparent(request.getHeader("traceparent")).<Exception>run(scope, key, HttpOnce.request(request, body, wanted.canonicalJson()), tx -> {
                    if (ran[0]) {
                        held.putBack();
                    }
                    ran[0] = true;
                    chain.doFilter(request, held);
                    return ending(wanted, held);
                });
            stored = answer.replayed() ? answer : null;
        } catch (Released | Doubt passedOn) {
            stored = null;
        } catch (FinalFailureException failure) {
            stored = failure.answer().replayed() ? failure.answer() : null;
        } catch (OnceException failure) {
            Problem problem = Problem.of(failure);
            held.putBack();
            if (problem == null) {
                throw failure;
            }
            String instance = HttpOnce.newInstance();
            if (problem.status() >= 500 || problem == Problem.REFUSED) {
                HttpOnce.log(logger, request, scope, failure, instance);
            }
            problem(response, problem, Problem.more(failure, request.getHeader("Content-Type")), failure.traceparent(), instance);
            return;
        } catch (ServletException | IOException | RuntimeException failure) {
            held.putBack(); // the error page is the framework's
            throw failure;
        } catch (Exception failure) {
            throw new ServletException(failure);
        }
        if (stored != null) {
            replay(held, stored);
        } else {
            held.send();
        }
    }

    /** What the handler's whole answer means. */
    private static Answer ending(Idempotent wanted, HeldResponse held) {
        int status = held.getStatus();
        String type = held.getContentType();
        if (type != null && type.regionMatches(true, 0, "text/event-stream", 0, 17)) {
            throw new IllegalStateException("a stream of events has no end that could be stored: it cannot be @Idempotent");
        }
        if (held.isCutOff()) {
            throw new IllegalStateException(HeldResponse.TOO_LARGE);
        }
        Answer answer = Answer.of(status).headers(new HeaderPolicy(Arrays.asList(wanted.headers())).kept(held.added())).bytes(held.bytes());
        return switch (Ending.of(status, held.effect())) {
            case STORED -> answer;
            case FAILED -> throw answer.failure("refused", null);
            case RELEASED -> throw new Released();
            case IN_DOUBT -> throw new Doubt(status);
        };
    }

    private static void replay(HeldResponse held, Answer answer) throws IOException {
        held.putBack();
        HttpServletResponse response = (HttpServletResponse) held.getResponse();
        if (Answer.TOO_LARGE.equals(answer.resultType())) {
            problem(response, Problem.TOO_LARGE, null, answer.traceparent());
            return;
        } else if (answer.status() < 200) {
            problem(response, Problem.NO_ANSWER, null, answer.traceparent());
            return;
        }
        response.setStatus(answer.status());
        HeaderPolicy.sendable(answer.headers()).forEach(each -> response.addHeader(each.name(), each.value()));
        response.setHeader("Idempotency-Replayed", "true");
        trace(response, answer.traceparent());
        byte[] body = answer.body();
        if (body != null && answer.status() != HttpServletResponse.SC_NO_CONTENT && answer.status() != HttpServletResponse.SC_NOT_MODIFIED) {
            response.setContentLength(body.length);
            response.getOutputStream().write(body);
        }
        response.flushBuffer();
    }

    private static void trace(HttpServletResponse response, String traceparent) {
        if (traceparent != null) {
            response.setHeader("Idempotency-Traceparent", traceparent);
        }
    }

    private static void problem(HttpServletResponse response, Problem problem, String more, String traceparent) throws IOException {
        problem(response, problem, more, traceparent, HttpOnce.newInstance());
    }

    private static void problem(HttpServletResponse response, Problem problem, String more, String traceparent, String instance) throws IOException {
        byte[] document = problem.document(more, instance);
        response.setStatus(problem.status());
        response.setContentType(Problem.TYPE);
        response.setHeader("Cache-Control", "no-store");
        trace(response, traceparent);
        if (problem.retryAfterS() > 0) {
            response.setIntHeader("Retry-After", problem.retryAfterS());
        }
        response.setContentLength(document.length);
        response.getOutputStream().write(document);
        response.flushBuffer();
    }
}
