// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.http.HttpServletResponse;
import java.lang.reflect.Proxy;
import java.util.Collection;
import java.util.List;

/** Where the answer of a handler goes that has been answered for. */
final class Nowhere {
    private Nowhere() {
    }

    static HttpServletResponse response() {
        return (HttpServletResponse) Proxy.newProxyInstance(Nowhere.class.getClassLoader(), new Class<?>[] {HttpServletResponse.class},
            (proxy, method, arguments) -> {
                Class<?> type = method.getReturnType();
                return type == int.class ? (Object) HttpServletResponse.SC_OK : type == boolean.class ? (Object) false
                    : Collection.class.isAssignableFrom(type) ? List.of() : null;
            });
    }
}
