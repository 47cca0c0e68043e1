// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Once;
import jakarta.servlet.Filter;
import jakarta.servlet.http.HttpServletRequest;
import java.util.List;
import org.springframework.core.env.StandardEnvironment;

/** A filter for every request, as if its handler had the annotation. */
public final class Filters {
    private Filters() {
    }

    public static Filter of(Once once, TenantResolver tenants, Idempotent wanted) {
        return new IdempotencyFilter(new WebSettings(once, tenants, new StandardEnvironment(), null, new ErrorPage(null), null), new IdempotentHandlers(null) {
            @Override
            Found of(HttpServletRequest request) {
                return List.of(wanted.methods()).contains(request.getMethod()) ? new Found(wanted, null, null, true) : null;
            }
        });
    }
}
