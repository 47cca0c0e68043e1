// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.http.HeaderPolicy;
import jakarta.servlet.http.HttpServletRequest;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionStage;
import java.util.stream.Collectors;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.core.ResolvableType;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.http.MediaType;
import org.springframework.util.ClassUtils;
import org.springframework.web.bind.annotation.RequestMethod;
import org.springframework.web.context.request.async.DeferredResult;
import org.springframework.web.context.request.async.WebAsyncTask;
import org.springframework.web.cors.CorsConfiguration;
import org.springframework.web.cors.CorsConfigurationSource;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.servlet.HandlerExecutionChain;
import org.springframework.web.servlet.HandlerMapping;
import org.springframework.web.servlet.mvc.method.RequestMappingInfo;
import org.springframework.web.servlet.mvc.method.annotation.RequestMappingHandlerMapping;
import org.springframework.web.servlet.mvc.method.annotation.ResponseBodyEmitter;
import org.springframework.web.servlet.mvc.method.annotation.SseEmitter;
import org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody;
import org.springframework.web.util.ServletRequestPathUtils;

/** Which handlers are {@link Idempotent}. Mistakes are reported at startup, not at the first request. */
class IdempotentHandlers implements SmartInitializingSingleton, KnownControllers {
    private static final List<Class<?>> ASYNCHRONOUS = List.of(StreamingResponseBody.class, ResponseBodyEmitter.class, Callable.class, DeferredResult.class,
        WebAsyncTask.class, CompletionStage.class);
    private static final String PUBLISHER = "org.reactivestreams.Publisher";
    private static final Set<String> SAFE = Set.of("GET", "HEAD", "OPTIONS", "TRACE");

    private final RequestMappingHandlerMapping mapping;

    IdempotentHandlers(RequestMappingHandlerMapping mapping) {
        this.mapping = mapping;
    }

    /** The handler of a request; cors null: none is configured in Spring MVC; events: it may give a stream of them. */
    record Found(Idempotent wanted, HandlerMethod handler, CorsConfiguration cors, boolean events) {
    }

    static Idempotent wanted(HandlerMethod method) {
        Idempotent own = AnnotatedElementUtils.findMergedAnnotation(method.getMethod(), Idempotent.class);
        return own != null ? own : AnnotatedElementUtils.findMergedAnnotation(method.getBeanType(), Idempotent.class);
    }

    private static boolean protects(Idempotent wanted, String method) {
        return wanted.methods().length == 0 ? !SAFE.contains(method) : List.of(wanted.methods()).contains(method);
    }

    /** Null: it is not protected. */
    Found of(HttpServletRequest request) {
        try {
            if (!ServletRequestPathUtils.hasParsedRequestPath(request)) {
                ServletRequestPathUtils.parseAndCache(request);
            }
            HandlerExecutionChain chain = mapping.getHandler(request);
            Idempotent wanted = chain != null && chain.getHandler() instanceof HandlerMethod method ? wanted(method) : null;
            return wanted == null || !protects(wanted, request.getMethod()) ? null
                : new Found(wanted, (HandlerMethod) chain.getHandler(), cors(chain, request), givesEvents((HandlerMethod) chain.getHandler(),
                    (Collection<?>) request.getAttribute(HandlerMapping.PRODUCIBLE_MEDIA_TYPES_ATTRIBUTE)));
        } catch (Exception noHandler) {
            return null; // the dispatcher says so
        }
    }

    /** What Spring MVC would put on the answer, inside of this filter. */
    private static CorsConfiguration cors(HandlerExecutionChain chain, HttpServletRequest request) {
        return chain.getInterceptorList().stream().filter(CorsConfigurationSource.class::isInstance)
            .map(each -> ((CorsConfigurationSource) each).getCorsConfiguration(request)).findFirst().orElse(null);
    }

    @Override
    public boolean handles(Class<?> type) {
        return mapping.getHandlerMethods().values().stream().anyMatch(each -> ClassUtils.getUserClass(each.getBeanType()) == type);
    }

    @Override
    public void afterSingletonsInstantiated() {
        mapping.getHandlerMethods().forEach((info, method) -> {
            Idempotent wanted = wanted(method);
            if (wanted != null) {
                new HeaderPolicy(List.of(wanted.headers()));
                refuseAsynchronous(method, info);
                refuseNothing(method, info, wanted);
            }
        });
    }

    /** The type that it gives, and what that is of, as in ResponseEntity. */
    private static List<Class<?>> given(HandlerMethod method) {
        ResolvableType type = ResolvableType.forMethodReturnType(method.getMethod());
        return List.of(type.toClass(), type.getGeneric(0).toClass());
    }

    private static boolean givesEvents(HandlerMethod method, Collection<?> types) {
        return given(method).stream().anyMatch(SseEmitter.class::isAssignableFrom) || (types != null && types.contains(MediaType.TEXT_EVENT_STREAM));
    }

    private static void refuseAsynchronous(HandlerMethod method, RequestMappingInfo info) {
        if (givesEvents(method, info.getProducesCondition().getProducibleMediaTypes())) {
            return;
        }
        for (Class<?> given : given(method)) {
            if (ASYNCHRONOUS.stream().anyMatch(each -> each.isAssignableFrom(given)) || isReactive(given)) {
                throw new IllegalStateException(method.getShortLogMessage() + " is @Idempotent and gives " + given.getSimpleName()
                    + ": an answer that is streamed or asynchronous cannot be stored in its transaction. Return the value itself; "
                    + "a stream of events (SseEmitter, or produces = text/event-stream) passes");
            }
        }
    }

    /** Reactor's and RxJava's types, which need not be on the class path. */
    private static boolean isReactive(Class<?> type) {
        return type.getName().equals(PUBLISHER) || ClassUtils.getAllInterfacesForClassAsSet(type).stream().anyMatch(each -> each.getName().equals(PUBLISHER));
    }

    private static void refuseNothing(HandlerMethod method, RequestMappingInfo info, Idempotent wanted) {
        Set<String> mapped = info.getMethodsCondition().getMethods().stream().map(RequestMethod::name).collect(Collectors.toSet());
        boolean own = AnnotatedElementUtils.hasAnnotation(method.getMethod(), Idempotent.class);
        if (own && !mapped.isEmpty() && mapped.stream().noneMatch(each -> protects(wanted, each))) {
            throw new IllegalStateException(method.getShortLogMessage() + " is @Idempotent and mapped to " + mapped
                + " alone, which it does not protect: name them in its methods, or take the annotation off");
        }
    }
}
