// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import org.springframework.web.filter.OncePerRequestFilter;

/**
 * Reads the form of a request with an Idempotency-Key before any other filter does, as Spring Security's look for a CSRF token: what they
 * read is then still there to be hashed. Before authentication, so no more than a container reads of a form.
 */
final class EarlyForms extends OncePerRequestFilter {
    private static final long FORM_MAX = 2 << 20;

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws ServletException, IOException {
        long length = request.getContentLengthLong();
        boolean reads = length > 0 && length <= FORM_MAX && HeldRequest.isForm(request) && request.getHeader("Idempotency-Key") != null;
        chain.doFilter(reads ? HeldRequest.early(request) : request, response);
    }
}
