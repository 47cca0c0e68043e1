// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Once;
import jakarta.servlet.http.HttpServletRequest;
import java.util.List;
import org.springframework.mock.env.MockEnvironment;

/** A filter for every request, as if its handler had the annotation. */
final class Filters {
    private Filters() {
    }

    static IdempotencyFilter of(Once once, TenantResolver tenants, Idempotent wanted) {
        return new IdempotencyFilter(new WebSettings(once, tenants, new MockEnvironment(), null, new ErrorPage(null), null), new IdempotentHandlers(null) {
            @Override
            Found of(HttpServletRequest request) {
                return List.of(wanted.methods()).contains(request.getMethod()) ? new Found(wanted, null, null, true) : null;
            }
        });
    }
}
