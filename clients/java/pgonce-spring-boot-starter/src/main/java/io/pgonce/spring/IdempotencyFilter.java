// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Answer;
import io.pgonce.Doubt;
import io.pgonce.FinalFailureException;
import io.pgonce.InDoubtException;
import io.pgonce.LeaseLostException;
import io.pgonce.Once;
import io.pgonce.OnceException;
import io.pgonce.Request;
import io.pgonce.Tx;
import io.pgonce.http.Ending;
import io.pgonce.http.HeaderPolicy;
import io.pgonce.http.Problem;
import io.pgonce.http.StoredReason;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Arrays;
import org.springframework.http.MediaType;
import org.springframework.web.filter.OncePerRequestFilter;

/**
 * What {@link Idempotent} does: the gateway's rules, in one transaction with the effect or under a lease. It comes late in the chain,
 * behind authentication, so only an authorized client gets a replay.
 */
class IdempotencyFilter extends OncePerRequestFilter {
    private final WebSettings settings;
    private final IdempotentHandlers handlers;
    private final String problemBase;

    /** The answer is passed on, and the transaction rolled back. */
    private static final class Released extends Once.NothingDone {
        private static final long serialVersionUID = 1L;

        Released(int status) {
            super(status);
        }
    }

    /** It took too long, and the client has been told. */
    private static final class TimedOut extends RuntimeException {
        private static final long serialVersionUID = 1L;

        TimedOut() {
            super("it took too long", null, false, false);
        }
    }

    IdempotencyFilter(WebSettings settings, IdempotentHandlers handlers) {
        this.settings = settings;
        this.handlers = handlers;
        this.problemBase = WebSettings.problemBase(settings.environment());
    }

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws ServletException, IOException {
        IdempotentHandlers.Found found = handlers.of(request);
        if (found == null) {
            chain.doFilter(request, response);
            return;
        }
        Idempotent wanted = found.wanted();
        Replies replies = new Replies(request, response, found.cors(), problemBase);
        try {
            String key = HttpOnce.key(request, wanted.required(), wanted.strictKeys(), wanted.keyLength());
            if (key == null) {
                chain.doFilter(request, response);
                return;
            }
            String tenant = HttpOnce.tenant(settings.tenants(), request);
            int fence = Handoff.fence(request, tenant, settings.scope(wanted.value()), key);
            if (fence > 0 && settings.behindGateway() && settings.leases(wanted)) {
                chain.doFilter(request, response); // the gateway reads the answer, and reports it
                return;
            }
            HeldRequest held = HeldRequest.read(request, wanted.bodyMax(), found.events(), settings.uploads());
            if (held == null) {
                throw new HttpOnce.Refused(Problem.BODY_TOO_LARGE, null);
            }
            new Attempt(found, replies, held, response, chain, fence).serve(key, tenant);
        } catch (HttpOnce.Refused refused) {
            logger.debug("pgonce: method=" + request.getMethod() + " refused: " + refused.problem.slug());
            replies.problem(refused.problem, refused.getMessage(), null, HttpOnce.newInstance());
        }
    }

    /** One request. */
    private final class Attempt {
        private final IdempotentHandlers.Found found;
        private final Idempotent wanted;
        private final String scope;
        private final Replies replies;
        private final HeldRequest request;
        private final HttpServletResponse response;
        private final HeldResponse held;
        private final FilterChain chain;
        /** Of a claim that a gateway in front has made; 0: none. */
        private final int fence;
        /** The handler has given a whole answer: what fails from here on it has not seen. */
        private boolean whole;
        /** What the handler threw. */
        private Throwable thrown;

        Attempt(IdempotentHandlers.Found found, Replies replies, HeldRequest request, HttpServletResponse response, FilterChain chain,
                int fence) {
            this.found = found;
            this.wanted = found.wanted();
            this.scope = settings.scope(wanted.value());
            this.replies = replies;
            this.request = request;
            this.response = response;
            this.held = new HeldResponse(response, settings.redirects(request));
            this.chain = chain;
            this.fence = fence;
        }

        private boolean finishesClaim() {
            return fence > 0 && settings.behindGateway();
        }

        /** Of an answer that is not stored here the gateway is told what it means. */
        private void tellGateway(String effect) {
            if (finishesClaim()) {
                response.setHeader(Ending.HEADER, effect);
            }
        }

        void serve(String key, String tenant) throws ServletException, IOException {
            Once once = settings.once().tenant(tenant).waiting(Duration.ofMillis(wanted.waitMs())).keeping(wanted.responseMax())
                .traceparent(request.getHeader("traceparent")).unrepeated();
            if (finishesClaim()) {
                once = once.finishing(fence);
            }
            Request asked = settings.fingerprinted(request, request.body(), wanted.canonicalJson());
            Answer stored; // null: what is held is sent
            try (Deadline deadline = new Deadline(settings.handlerMs(wanted), this::tellTooLate)) {
                try {
                    Answer answer = settings.leases(wanted) ? once.effect(scope, key, asked, () -> handle(null, deadline))
                        : once.<Exception>run(scope, key, asked, tx -> handle(tx, deadline));
                    stored = answer.replayed() ? answer : null;
                } catch (Released | Doubt passedOn) {
                    tellGateway(passedOn instanceof Doubt ? "unknown" : "none");
                    stored = null;
                } catch (FinalFailureException failure) {
                    stored = failure.answer().replayed() ? failure.answer() : null;
                } catch (Exception failure) {
                    if (!deadline.isOver()) {
                        failed(failure);
                    }
                    return;
                }
                if (!deadline.inTime()) {
                    return;
                }
            }
            if (stored == null && request.isAsyncHeld()) {
                request.startHeldAsync(held);
            } else if (stored == null) {
                held.send();
            } else {
                held.putBack();
                replies.stored(stored);
            }
        }

        /** tx null: the handler has no transaction of pgonce. */
        private Answer handle(Tx tx, Deadline deadline) throws Exception {
            deadline.guards(tx);
            try {
                if (deadline.isOver()) {
                    throw new TimedOut();
                }
                chain.doFilter(request, held);
                Answer answer = ending(tx != null);
                whole = true;
                return answer;
            } catch (Released | Doubt | FinalFailureException ending) {
                throw ending;
            } catch (Exception | Error failure) {
                thrown = failure;
                throw failure;
            } finally {
                if (!deadline.inTime()) {
                    throw tx == null ? new Doubt(0) : new TimedOut();
                }
            }
        }

        /** What the handler's whole answer means. */
        private Answer ending(boolean inTransaction) throws ServletException, IOException {
            Throwable late = (Throwable) request.getAttribute(LateFailures.ATTRIBUTE);
            if (late != null && held.isCommitted()) {
                throw new IllegalStateException("the handler failed when a part of its answer was written: half an answer is not stored", late);
            }
            int status = held.getStatus();
            Ending ending = inTransaction ? Ending.of(status, held.effect(), held::getHeader) : Ending.ofElsewhere(status, held.effect(), held::getHeader);
            boolean isStored = ending == Ending.STORED || ending == Ending.FAILED;
            if (held.errorStatus() > 0 && isStored) {
                settings.errorPage().render(request, held);
            }
            held.refuseHalf();
            if (ending == Ending.RELEASED) {
                throw new Released(status);
            } else if (ending == Ending.IN_DOUBT) {
                throw new Doubt(StoredReason.UNCLEAR, Ending.isFinal(status) ? status : 0);
            } else if (!Ending.isFinal(status)) {
                return Answer.empty().tooLarge(); // Once-Effect says that it is done, and nothing of it can be replayed
            } else if (request.isAsyncHeld() || isEvents(held.getContentType())) {
                return Answer.of(status).tooLarge(); // it is sent as it comes, and remembered as done
            }
            Answer answer = Answer.of(status).headers(new HeaderPolicy(Arrays.asList(wanted.headers())).kept(held.added())).bytes(held.bytes());
            if (ending == Ending.FAILED) {
                throw answer.failure(StoredReason.REFUSED.code(), StoredReason.REFUSED.message());
            }
            return answer;
        }

        private static boolean isEvents(String type) {
            return type != null && type.regionMatches(true, 0, MediaType.TEXT_EVENT_STREAM_VALUE, 0, MediaType.TEXT_EVENT_STREAM_VALUE.length());
        }

        private void failed(Exception failure) throws ServletException, IOException {
            request.failHeldAsync(failure);
            held.putBack();
            boolean worked = settings.leases(wanted) && (whole || thrown != null);
            OnceException ours = failure instanceof OnceException known && failure != thrown ? known : null;
            if (worked && thrown != null && failure instanceof InDoubtException) {
                applications(thrown);
                return;
            }
            Problem problem = ours == null ? null : ours instanceof LeaseLostException && finishesClaim() ? Problem.ACTIVE
                : worked ? Problem.NOT_STORED : Problem.of(ours);
            if (problem == null) {
                tellGateway("none");
                applications(failure);
                return;
            }
            if (problem == Problem.IN_DOUBT) {
                tellGateway("unknown");
            }
            String instance = HttpOnce.newInstance();
            HttpOnce.log(logger, request, scope, ours, problem, instance);
            String more = Problem.more(ours, request.getHeader("Content-Type"));
            if (fence > 0 && !settings.behindGateway() && (problem == Problem.ACTIVE || problem == Problem.MISMATCH)) {
                more = Handoff.CLAIMED_IN_FRONT;
                logger.error("pgonce: scope=" + scope + " problem=" + problem.slug() + ": " + more);
            }
            replies.problem(problem, more, ours.traceparent(), instance);
        }

        /** What the handler threw is the framework's already; of what failed at COMMIT its exception handlers are told. */
        private void applications(Throwable failure) throws ServletException, IOException {
            if (whole) {
                Exception told = settings.translated((Exception) failure);
                HttpOnce.log(logger, request, scope, failure, null, null);
                if (settings.resolves(request, response, found.handler(), told)) {
                    return;
                }
                failure = told;
            }
            if (failure instanceof ServletException known) {
                throw known;
            } else if (failure instanceof IOException known) {
                throw known;
            } else if (failure instanceof RuntimeException known) {
                throw known;
            } else if (failure instanceof Error known) {
                throw known;
            }
            throw new ServletException(failure);
        }

        /** On another thread, while the handler runs. */
        private void tellTooLate() {
            Problem problem = settings.leases(wanted) ? Problem.NOT_STORED : Problem.TIMED_OUT;
            String instance = HttpOnce.newInstance();
            HttpOnce.log(logger, request, scope, new TimedOut(), problem, instance);
            held.abandon();
            try {
                replies.problem(problem, null, null, instance);
            } catch (IOException gone) {
                throw new UncheckedIOException(gone);
            }
        }
    }
}
