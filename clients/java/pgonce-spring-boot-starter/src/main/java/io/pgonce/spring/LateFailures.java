// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import org.springframework.core.Ordered;
import org.springframework.web.servlet.HandlerExceptionResolver;
import org.springframework.web.servlet.ModelAndView;

/** Notes what a handler has thrown when a part of its answer was written: its exception handlers cannot make an answer of that any more. */
final class LateFailures implements HandlerExceptionResolver, Ordered {
    static final String ATTRIBUTE = LateFailures.class.getName();

    @Override
    public int getOrder() {
        return HIGHEST_PRECEDENCE;
    }

    @Override
    public ModelAndView resolveException(HttpServletRequest request, HttpServletResponse response, Object handler, Exception failure) {
        if (response.isCommitted()) {
            request.setAttribute(ATTRIBUTE, failure);
        }
        return null;
    }
}
