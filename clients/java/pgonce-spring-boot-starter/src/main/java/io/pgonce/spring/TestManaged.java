// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;

/** Is the open transaction that of a test (Spring's @Transactional on its class or method), which rolls it back? A run joins it there. */
final class TestManaged {
    private static final MethodHandle ACTIVE = find();

    private TestManaged() {
    }

    /** Null outside of tests. */
    private static MethodHandle find() {
        try {
            return MethodHandles.publicLookup().findStatic(Class.forName("org.springframework.test.context.transaction.TestTransaction"), "isActive",
                MethodType.methodType(boolean.class));
        } catch (ReflectiveOperationException | LinkageError absent) {
            return null;
        }
    }

    static boolean isActive() {
        try {
            return ACTIVE != null && (boolean) ACTIVE.invokeExact();
        } catch (Throwable none) {
            return false;
        }
    }
}
