// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

/** Apart from {@link IdempotentHandlers}, which needs Spring MVC. */
interface KnownControllers {
    /** Is this the class of a controller? */
    boolean handles(Class<?> type);
}
