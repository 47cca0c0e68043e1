// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.pgonce.Answer;
import io.pgonce.Once;
import io.pgonce.Request;
import java.lang.reflect.Method;
import java.util.function.Supplier;
import org.aopalliance.intercept.MethodInterceptor;
import org.aopalliance.intercept.MethodInvocation;
import org.springframework.aop.support.AopUtils;
import org.springframework.context.expression.MethodBasedEvaluationContext;
import org.springframework.core.DefaultParameterNameDiscoverer;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.expression.EvaluationContext;
import org.springframework.expression.spel.standard.SpelExpressionParser;

/** What {@link OnceEffect} does. The request is the method's arguments as JSON. */
final class OnceEffectInterceptor implements MethodInterceptor {
    private final Supplier<Once> once;
    private final ObjectMapper json;
    private final SpelExpressionParser parser = new SpelExpressionParser();
    private final DefaultParameterNameDiscoverer names = new DefaultParameterNameDiscoverer();

    OnceEffectInterceptor(Supplier<Once> once, ObjectMapper json) {
        this.once = once;
        this.json = json;
    }

    /** An id that is a number is its text. */
    private String value(String expression, String what, Method method, EvaluationContext context) {
        String value = parser.parseExpression(expression).getValue(context, String.class);
        if (value == null) {
            throw new IllegalArgumentException("the " + what + " of @OnceEffect on " + method.getName() + " is null: " + expression);
        }
        return value;
    }

    @Override
    public Object invoke(MethodInvocation invocation) throws Throwable {
        Method method = AopUtils.getMostSpecificMethod(invocation.getMethod(), invocation.getThis().getClass());
        OnceEffect wanted = AnnotatedElementUtils.findMergedAnnotation(method, OnceEffect.class);
        EvaluationContext context = new MethodBasedEvaluationContext(invocation.getThis(), method, invocation.getArguments(), names);
        String key = value(wanted.key(), "key", method, context);
        String tenant = value(wanted.tenant(), "tenant", method, context);
        Answer answer = once.get().tenant(tenant).effect(wanted.scope(), key, Request.json(json.writeValueAsString(invocation.getArguments())), () -> {
            Object result;
            try {
                result = invocation.proceed();
            } catch (Exception | Error failure) {
                throw failure;
            } catch (Throwable failure) {
                throw new IllegalStateException(failure);
            }
            try {
                return Answer.empty().text(json.writeValueAsString(result));
            } catch (JsonProcessingException failure) {
                throw new Once.NotKept(failure);
            }
        });
        return method.getReturnType() == void.class ? null
            : json.readValue(answer.body(), json.constructType(method.getGenericReturnType()));
    }
}
