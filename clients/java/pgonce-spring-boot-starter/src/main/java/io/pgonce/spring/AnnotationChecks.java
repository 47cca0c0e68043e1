// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.stream.BaseStream;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.BeanFactory;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.core.annotation.AnnotationUtils;
import org.springframework.util.ClassUtils;

/** An annotation that would do nothing is an error at the start. */
final class AnnotationChecks implements BeanPostProcessor, SmartInitializingSingleton {
    /** What is no result yet. Some of these need not be on the class path. */
    private static final Set<String> LATER = Set.of(Future.class.getName(), CompletionStage.class.getName(), Callable.class.getName(), BaseStream.class.getName(),
        "org.reactivestreams.Publisher", "org.springframework.web.context.request.async.DeferredResult",
        "org.springframework.web.context.request.async.WebAsyncTask", "org.springframework.web.servlet.mvc.method.annotation.ResponseBodyEmitter",
        "org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody");

    private final BeanFactory beans;
    /** Gives null where pgonce has no filter. */
    private final Supplier<Predicate<Class<?>>> controllers;
    private final Map<String, Class<?>> effects = new ConcurrentHashMap<>();
    private final Map<String, Class<?>> idempotent = new ConcurrentHashMap<>();

    AnnotationChecks(BeanFactory beans, Supplier<Predicate<Class<?>>> controllers) {
        this.beans = beans;
        this.controllers = controllers;
    }

    @Override
    public Object postProcessBeforeInitialization(Object bean, String name) {
        Class<?> type = ClassUtils.getUserClass(bean);
        if (Proxy.isProxyClass(type)) {
            return bean;
        }
        if (AnnotationUtils.isCandidateClass(type, OnceEffect.class)) {
            Map<Method, OnceEffect> found = MethodIntrospector.selectMethods(type,
                (MethodIntrospector.MetadataLookup<OnceEffect>) method -> AnnotatedElementUtils.findMergedAnnotation(method, OnceEffect.class));
            found.keySet().forEach(method -> check(type, method));
            if (!found.isEmpty()) {
                SelfCalls.refuse(type, found.keySet());
                effects.put(name, type);
            }
        }
        if (AnnotationUtils.isCandidateClass(type, Idempotent.class) && (AnnotatedElementUtils.hasAnnotation(type, Idempotent.class)
            || !MethodIntrospector.selectMethods(type, (Method method) -> AnnotatedElementUtils.hasAnnotation(method, Idempotent.class)).isEmpty())) {
            idempotent.put(name, type);
        }
        return bean;
    }

    private static void check(Class<?> type, Method method) {
        if ((method.getModifiers() & (Modifier.PRIVATE | Modifier.STATIC | Modifier.FINAL)) != 0 || Modifier.isFinal(type.getModifiers())) {
            throw wrong(method, "is private, static or final, so Spring cannot stand before it");
        }
        for (Class<?> each = method.getReturnType(); each != null; each = each.getSuperclass()) {
            if (LATER.contains(each.getName()) || ClassUtils.getAllInterfacesForClassAsSet(each).stream().anyMatch(one -> LATER.contains(one.getName()))) {
                throw wrong(method, "gives " + method.getReturnType().getSimpleName() + ", which is no result yet: return the value itself");
            }
        }
    }

    static IllegalStateException wrong(Method method, String why) {
        return new IllegalStateException("@OnceEffect on " + method.getDeclaringClass().getName() + "." + method.getName() + " would do nothing, or the wrong thing: it "
            + why);
    }

    @Override
    public void afterSingletonsInstantiated() {
        effects.forEach((name, type) -> {
            if (beans.isSingleton(name) && !AopUtils.isAopProxy(beans.getBean(name))) {
                throw new IllegalStateException("@OnceEffect on " + type.getName() + " would do nothing: pgonce is not set up (it needs one DataSource with its "
                    + "transaction manager; of several the @Primary one), or the bean was made before Spring could stand before it");
            }
        });
        Predicate<Class<?>> known = idempotent.isEmpty() ? null : controllers.get();
        idempotent.forEach((name, type) -> {
            if (known == null || !known.test(type)) {
                throw new IllegalStateException("@Idempotent on " + type.getName() + " would do nothing: " + (known == null
                    ? "pgonce is not set up (it needs Spring MVC and one DataSource with its transaction manager; of several the @Primary one)"
                    : "it is for controllers of Spring MVC. For a method of another bean there is @OnceEffect"));
            }
        });
    }
}
