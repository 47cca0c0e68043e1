// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.http.HttpServletRequest;

/** Whose key it is. A bean of this type replaces the default, which is the name of the request's principal. */
@FunctionalInterface
public interface TenantResolver {
    /**
     * The tenant of a request that has passed authentication.
     *
     * @param request the request
     * @return what proves who the caller is, never what a client can choose freely; null or empty: a 400
     */
    String tenantOf(HttpServletRequest request);
}
