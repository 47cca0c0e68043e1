// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * The work of this method (a payment call, a tool call of an agent) runs at most once for a key: it is claimed under a
 * lease that renews itself, and what it returns is stored as JSON and returned to every later call. A method that throws
 * leaves the intent in doubt, but for {@link io.pgonce.Answer#failure} and {@link io.pgonce.Once.NothingDone}: the call throws
 * {@link io.pgonce.InDoubtException}, as each retry does, with what the method threw as its cause.
 */
@Documented
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
public @interface OnceEffect {
    /**
     * What the key names an intent of.
     *
     * @return the scope
     */
    String scope();

    /**
     * The key: an expression of SpEL over the method's parameters.
     *
     * @return for example {@code #order.id}; a number is its text
     */
    String key();

    /**
     * The tenant: an expression of SpEL.
     *
     * @return by default the empty one
     */
    String tenant() default "''";
}
