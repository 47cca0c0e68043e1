// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Answer;
import io.pgonce.FinalFailureException;
import io.pgonce.Once;
import io.pgonce.OnceException;
import io.pgonce.Request;
import io.pgonce.http.Ending;
import io.pgonce.http.HeaderPolicy;
import io.pgonce.http.KeyHeader;
import io.pgonce.http.Problem;
import jakarta.servlet.http.HttpServletRequest;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.UUID;
import org.apache.commons.logging.Log;
import org.apache.commons.logging.LogFactory;
import org.springframework.http.HttpHeaders;
import org.springframework.http.ResponseEntity;

/**
 * For an endpoint whose effect is elsewhere, as at a payment provider: {@link Once#effect} with the gateway's rules and its problem
 * documents. For an effect in the database there is {@link Idempotent}.
 *
 * <pre>{@code
 * @PostMapping("/charges")
 * ResponseEntity<byte[]> charge(HttpServletRequest request, @RequestBody byte[] order) {
 *     return httpOnce.effect("charges", request, order, key -> bank.charge(key, order));
 * }
 * }</pre>
 */
public final class HttpOnce {
    private static final Log LOG = LogFactory.getLog(HttpOnce.class);
    private static final String KEY = "Idempotency-Key";
    // spec: key-max
    static final int KEY_LENGTH = 255;
    // end of spec
    // spec: names
    private static final int NAME_CHARACTERS_MAX = 255;
    private static final String TENANT_MALFORMED = "The tenant must be valid UTF-8 of at most 255 characters, without control characters.";
    // end of spec
    private static final int CAUSES_MAX = 16;

    private final Once once;
    private final TenantResolver tenants;
    private final boolean withHost;
    private final boolean behindGateway;
    private final String problemBase;

    /**
     * Over a door.
     *
     * @param once how long it waits for an attempt that runs, and how large an answer it keeps
     * @param tenants whose keys these are; null: there is but one caller
     */
    public HttpOnce(Once once, TenantResolver tenants) {
        this(once, tenants, true);
    }

    /**
     * Over a door.
     *
     * @param once how long it waits for an attempt that runs, and how large an answer it keeps
     * @param tenants whose keys these are; null: there is but one caller
     * @param withHost is a request to another name of the service another request?
     */
    public HttpOnce(Once once, TenantResolver tenants, boolean withHost) {
        this(once, tenants, withHost, false, Problem.checkBase(null));
    }

    /** behindGateway: a gateway in front, with the same scope, has claimed each key, and reports what the answer says. */
    HttpOnce(Once once, TenantResolver tenants, boolean withHost, boolean behindGateway, String problemBase) {
        this.once = once;
        this.tenants = tenants;
        this.withHost = withHost;
        this.behindGateway = behindGateway;
        this.problemBase = problemBase;
    }

    /** The work that is elsewhere. */
    @FunctionalInterface
    public interface Work {
        /**
         * Does it, at most once for a key.
         *
         * @param key of the request: pass it on, together with the caller's name, where the provider takes one
         * @return the answer, with a status: stored, and given to each retry
         * @throws Exception {@link Answer#failure} (failed for good), {@link Once.NothingDone} (a retry may run), or anything else: in doubt
         */
        Answer call(String key) throws Exception;
    }

    /** A request that cannot be protected. */
    static final class Refused extends Exception {
        private static final long serialVersionUID = 1L;

        final transient Problem problem;

        Refused(Problem problem, String more) {
            super(more, null, false, false);
            this.problem = problem;
        }
    }

    /** Null: the request has no key, and needs none. */
    static String key(HttpServletRequest request, boolean required, boolean strict, int lengthMax) throws Refused {
        List<String> values = Collections.list(request.getHeaders(KEY));
        if (values.isEmpty() && !required) {
            return null;
        } else if (values.size() != 1) {
            throw new Refused(values.isEmpty() ? Problem.KEY_MISSING : Problem.KEY_REPEATED, null);
        }
        try {
            return KeyHeader.parse(values.get(0), strict, lengthMax);
        } catch (KeyHeader.Malformed malformed) {
            throw new Refused(Problem.KEY_MALFORMED, malformed.getMessage());
        }
    }

    static String tenant(TenantResolver tenants, HttpServletRequest request) throws Refused {
        if (tenants == null) {
            return "";
        }
        String tenant = tenants.tenantOf(request);
        if (tenant == null || tenant.isEmpty()) {
            throw new Refused(Problem.TENANT_MISSING, null);
        } else if (tenant.codePointCount(0, tenant.length()) > NAME_CHARACTERS_MAX || tenant.chars().anyMatch(c -> c < ' ' || c == 0x7f)
            || !StandardCharsets.UTF_8.newEncoder().canEncode(tenant)) {
            throw new Refused(Problem.TENANT_MISSING, TENANT_MALFORMED);
        }
        return tenant;
    }

    /** withHost: else a retry may come by another name of the service. */
    static Request request(HttpServletRequest request, byte[] body, boolean canonicalJson, boolean withHost) {
        String host = withHost ? request.getHeader("Host") : null;
        String target = (host == null ? "" : host.toLowerCase(Locale.ROOT)) + request.getRequestURI()
            + (request.getQueryString() == null ? "" : "?" + request.getQueryString());
        return Request.http(request.getMethod(), target, request.getHeader("Content-Type"), body, canonicalJson);
    }

    static String newInstance() {
        return UUID.randomUUID().toString().replace("-", "");
    }

    /**
     * Why a request got an answer of ours, or its COMMIT an error (problem null): 5xx and what somebody has to set right as errors, refusals
     * for who debugs. Never a key. The client has its instance.
     */
    static void log(Log log, HttpServletRequest request, String scope, Throwable failure, Problem problem, String instance) {
        String state = sqlState(failure);
        String line = "pgonce: method=" + request.getMethod() + " scope=" + scope + (problem == null ? "" : " problem=" + problem.slug()) + ": "
            + Problem.reason(failure) + (state == null ? "" : " sqlstate=" + state) + (instance == null ? "" : " instance=" + Problem.INSTANCE + instance);
        if (problem == null || problem.status() >= 500 || problem == Problem.REFUSED) {
            log.error(line);
        } else {
            log.debug(line);
        }
    }

    private static String sqlState(Throwable failure) {
        int left = CAUSES_MAX;
        for (Throwable each = failure; each != null && left-- > 0; each = each.getCause()) {
            if (each instanceof SQLException sql && sql.getSQLState() != null) {
                return sql.getSQLState();
            }
        }
        return null;
    }

    /**
     * Runs the work at most once for the request's key.
     *
     * @param scope what the key names an intent of
     * @param request with its Idempotency-Key
     * @param body of the request: with it the request is told from another one with the same key; null: empty
     * @param work that is elsewhere
     * @return the work's answer, the stored one, or a problem document
     */
    public ResponseEntity<byte[]> effect(String scope, HttpServletRequest request, byte[] body, Work work) {
        boolean[] worked = new boolean[1];
        try {
            String key = key(request, true, false, KEY_LENGTH);
            String tenant = tenant(tenants, request);
            if (behindGateway && Handoff.fence(request, tenant, scope, key) > 0) {
                return handed(scope, request, key, work);
            }
            return answer(once.tenant(tenant).traceparent(request.getHeader("traceparent")).effect(scope, key, request(request, body, false, withHost),
                () -> {
                    worked[0] = true;
                    return work.call(key);
                }));
        } catch (Refused refused) {
            return problem(refused.problem, refused.getMessage(), null, newInstance());
        } catch (FinalFailureException failure) {
            return answer(failure.answer());
        } catch (Once.NothingDone failure) {
            return problem(Problem.UNREACHED, null, null, logged(request, scope, failure, Problem.UNREACHED, true));
        } catch (OnceException failure) {
            Problem problem = worked[0] && !"in_doubt".equals(failure.code()) ? Problem.NOT_STORED : Problem.of(failure);
            if (problem == null) {
                throw failure;
            }
            return problem(problem, Problem.more(failure, request.getHeader("Content-Type")), failure.traceparent(),
                logged(request, scope, failure, problem, worked[0]));
        }
    }

    /** The gateway in front has claimed it: it is told what became of the work. */
    private ResponseEntity<byte[]> handed(String scope, HttpServletRequest request, String key, Work work) {
        try {
            return told("done", answer(Objects.requireNonNull(work.call(key), "the work must return an answer")));
        } catch (FinalFailureException failure) {
            if (!failure.answer().replayed()) {
                return refused(answer(failure.answer()));
            }
            return told("unknown", problem(Problem.IN_DOUBT, null, null, logged(request, scope, failure, Problem.IN_DOUBT, true)));
        } catch (Once.NothingDone failure) {
            return told("none", problem(Problem.UNREACHED, null, null, logged(request, scope, failure, Problem.UNREACHED, true)));
        } catch (Exception failure) {
            if (failure instanceof InterruptedException) {
                Thread.currentThread().interrupt();
            }
            return told("unknown", problem(Problem.IN_DOUBT, null, null, logged(request, scope, failure, Problem.IN_DOUBT, true)));
        }
    }

    /** A failure for good. The gateway stores it as such without being told; if its status means something else, it is stored as done. */
    private static ResponseEntity<byte[]> refused(ResponseEntity<byte[]> answer) {
        return Ending.ofElsewhere(answer.getStatusCode().value(), null, answer.getHeaders()::getFirst) == Ending.FAILED ? answer : told("done", answer);
    }

    private static ResponseEntity<byte[]> told(String effect, ResponseEntity<byte[]> answer) {
        return ResponseEntity.status(answer.getStatusCode()).headers(answer.getHeaders()).header(Ending.HEADER, effect).body(answer.getBody());
    }

    /** worked: it is an error also where its status is not. */
    private static String logged(HttpServletRequest request, String scope, Throwable failure, Problem problem, boolean worked) {
        String instance = newInstance();
        log(LOG, request, scope, failure, worked ? null : problem, instance);
        return instance;
    }

    private ResponseEntity<byte[]> answer(Answer answer) {
        if (Answer.TOO_LARGE.equals(answer.resultType()) && answer.replayed()) {
            return problem(Problem.TOO_LARGE, null, answer.traceparent(), newInstance());
        } else if (answer.status() < 200) {
            return problem(Problem.NO_ANSWER, null, answer.traceparent(), newInstance());
        }
        HttpHeaders headers = new HttpHeaders();
        (answer.replayed() ? HeaderPolicy.sendable(answer.headers()) : answer.headers()).forEach(each -> headers.add(each.name(), each.value()));
        if (answer.replayed()) {
            headers.set("Idempotency-Replayed", "true");
            trace(headers, answer.traceparent());
        }
        return new ResponseEntity<>(answer.body(), headers, answer.status());
    }

    private static void trace(HttpHeaders headers, String traceparent) {
        if (traceparent != null) {
            headers.set("Idempotency-Traceparent", traceparent);
        }
    }

    private ResponseEntity<byte[]> problem(Problem problem, String more, String traceparent, String instance) {
        HttpHeaders headers = new HttpHeaders();
        headers.set("Content-Type", Problem.TYPE);
        headers.set("Cache-Control", "no-store");
        trace(headers, traceparent);
        if (problem.retryAfterS() > 0) {
            headers.set("Retry-After", String.valueOf(problem.retryAfterS()));
        }
        return new ResponseEntity<>(problem.document(problemBase, more, instance), headers, problem.status());
    }
}
