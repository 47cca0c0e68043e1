// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.HashSet;
import java.util.Set;
import org.springframework.asm.ClassReader;
import org.springframework.asm.ClassVisitor;
import org.springframework.asm.Handle;
import org.springframework.asm.MethodVisitor;
import org.springframework.asm.Opcodes;
import org.springframework.asm.SpringAsmInfo;
import org.springframework.asm.Type;
import org.springframework.util.ClassUtils;

/**
 * A call from a class to one of its methods bypasses Spring's proxy. It is seen in the class file: in a method that calls one of these and has
 * no other object of the class than {@code this}.
 */
final class SelfCalls {
    private SelfCalls() {
    }

    static void refuse(Class<?> type, Collection<Method> protectedMethods) {
        for (Class<?> each = type; each != null && each != Object.class; each = each.getSuperclass()) {
            String file = ClassUtils.getClassFileName(each);
            try (InputStream in = each.getResourceAsStream(file)) {
                if (in != null) {
                    new ClassReader(in).accept(new Calls(each, type, protectedMethods), ClassReader.SKIP_DEBUG | ClassReader.SKIP_FRAMES);
                }
            } catch (IOException unreadable) {
                throw new IllegalStateException(unreadable);
            }
        }
    }

    private static final class Calls extends ClassVisitor {
        private final Class<?> type;
        private final Collection<Method> methods;
        /** The class, and those above it that a call may name. */
        private final Set<String> own = new HashSet<>();

        Calls(Class<?> read, Class<?> type, Collection<Method> methods) {
            super(SpringAsmInfo.ASM_VERSION);
            this.type = type;
            this.methods = methods;
            for (Class<?> each = read; each != null && each != Object.class; each = each.getSuperclass()) {
                own.add(Type.getInternalName(each));
            }
        }

        @Override
        public MethodVisitor visitMethod(int access, String name, String descriptor, String signature, String[] exceptions) {
            return new MethodVisitor(SpringAsmInfo.ASM_VERSION) {
                private Method called;
                private boolean others = mentions(Type.getArgumentTypes(descriptor));

                private boolean mentions(Type... types) {
                    for (Type each : types) {
                        if (each.getSort() == Type.OBJECT && own.contains(each.getInternalName())) {
                            return true;
                        }
                    }
                    return false;
                }

                private void call(String owner, String method, String of) {
                    others |= mentions(Type.getReturnType(of));
                    if (own.contains(owner)) {
                        methods.stream().filter(each -> each.getName().equals(method) && Type.getMethodDescriptor(each).equals(of)).forEach(each -> called = each);
                    }
                }

                @Override
                public void visitMethodInsn(int opcode, String owner, String method, String of, boolean isInterface) {
                    call(owner, method, of);
                }

                @Override
                public void visitInvokeDynamicInsn(String method, String of, Handle bootstrap, Object... arguments) {
                    for (Object each : arguments) {
                        if (each instanceof Handle handle) {
                            call(handle.getOwner(), handle.getName(), handle.getDesc());
                        }
                    }
                }

                @Override
                public void visitFieldInsn(int opcode, String owner, String field, String of) {
                    others |= mentions(Type.getType(of));
                }

                @Override
                public void visitTypeInsn(int opcode, String of) {
                    others |= (opcode == Opcodes.CHECKCAST || opcode == Opcodes.NEW) && own.contains(of);
                }

                @Override
                public void visitEnd() {
                    if (called != null && !others && (access & Opcodes.ACC_BRIDGE) == 0) {
                        throw AnnotationChecks.wrong(called, "is called by " + type.getSimpleName() + "." + name + ", within its own class, which passes Spring's "
                            + "proxy by. Move it to another bean, inject the bean into itself (@Lazy), or call Once.effect");
                    }
                }
            };
        }
    }
}
