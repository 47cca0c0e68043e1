// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.CallableStatement;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Locale;
import java.util.Set;

/**
 * Keeps an effect from ending the transaction that it is in: what was done before would be committed without the memory of it, and
 * done again by the next attempt. A statement that would end it is refused before it is sent, by {@link IllegalStateException}; savepoints are not.
 */
public final class TransactionControl {
    private static final Set<String> REFUSED = Set.of("commit", "close", "abort", "beginRequest", "endRequest");
    private static final Set<String> ENDS = Set.of("BEGIN", "COMMIT", "END", "ABORT");

    private final Connection own;
    private final Connection shown;
    /** Null: the effect has not changed its role. */
    private String role;

    /**
     * Over a connection.
     *
     * @param connection within a transaction that is somebody else's to end
     */
    public TransactionControl(Connection connection) {
        own = connection;
        shown = (Connection) Proxy.newProxyInstance(TransactionControl.class.getClassLoader(), new Class<?>[] {Connection.class}, this::onConnection);
    }

    /**
     * The connection that an effect is shown: it cannot end its transaction, whether by a method or by the text of a statement.
     *
     * @return over the same one
     */
    public Connection connection() {
        return shown;
    }

    /**
     * What is left to do is done as the role that began, also where the effect has changed it (SET LOCAL ROLE).
     *
     * @throws SQLException of the database
     */
    public void restoreRole() throws SQLException {
        if (role != null) {
            try (PreparedStatement statement = own.prepareStatement("SELECT set_config('role', ?, true)")) {
                statement.setString(1, role);
                statement.execute();
            }
        }
    }

    private Object onConnection(Object proxy, Method method, Object[] arguments) throws Throwable {
        String name = method.getName();
        int given = method.getParameterCount();
        if ("equals".equals(name) && given == 1) {
            return proxy == arguments[0];
        } else if (REFUSED.contains(name) || ("rollback".equals(name) && given == 0)
            || ("setAutoCommit".equals(name) && Boolean.TRUE.equals(arguments[0]))) {
            throw refusal(name + "()");
        } else if ("setAutoCommit".equals(name)) {
            return null;
        } else if ("unwrap".equals(name) && arguments[0] == Connection.class) {
            return proxy;
        } else if (given > 0 && arguments[0] instanceof String sql && name.startsWith("prepare")) {
            look(sql);
        }
        return guarded(invoke(own, method, arguments));
    }

    /** Before it is sent. */
    private void look(String sql) throws SQLException {
        if (refuse(sql) && role == null) {
            try (Statement statement = own.createStatement(); ResultSet row = statement.executeQuery("SELECT current_setting('role')")) {
                row.next();
                role = row.getString(1);
            }
        }
    }

    private static Object invoke(Object target, Method method, Object[] arguments) throws Throwable {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException failure) {
            throw failure.getCause();
        }
    }

    /** A statement, guarded; anything else as it is. */
    private Object guarded(Object result) {
        Class<?> kind = result instanceof CallableStatement ? CallableStatement.class : result instanceof PreparedStatement ? PreparedStatement.class
            : result instanceof Statement ? Statement.class : null;
        return kind == null ? result : Proxy.newProxyInstance(TransactionControl.class.getClassLoader(), new Class<?>[] {kind},
            (proxy, method, arguments) -> {
                String name = method.getName();
                if ("equals".equals(name) && method.getParameterCount() == 1) {
                    return proxy == arguments[0];
                } else if ("getConnection".equals(name)) {
                    return shown;
                } else if (arguments != null && arguments[0] instanceof String sql && (name.startsWith("execute") || "addBatch".equals(name))) {
                    look(sql);
                }
                return invoke(result, method, arguments);
            });
    }

    /**
     * Refuses a text that ends a transaction, or begins one.
     *
     * @param sql one statement or several
     * @return whether it changes the role
     */
    public static boolean refuse(String sql) {
        Words words = new Words(sql);
        String first = null;
        String before = null;
        boolean goesBack = false; // ROLLBACK TO a savepoint
        boolean changesRole = false;
        int at = 0;
        int depth = 0; // in BEGIN ATOMIC ... END of a function, and in CASE ... END there
        for (String word = words.next(); word != null; word = words.next()) {
            if (word.equals(";")) {
                if (depth == 0) {
                    refuseRollback(first, goesBack);
                    first = null;
                    goesBack = false;
                    at = 0;
                }
                continue;
            } else if (at++ == 0) {
                first = word;
            }
            if (at == 1 ? ENDS.contains(word) : at == 2 && "TRANSACTION".equals(word) && ("START".equals(first) || "PREPARE".equals(first))) {
                throw refusal(first);
            }
            changesRole |= at <= 3 && "ROLE".equals(word) && ("SET".equals(first) || "RESET".equals(first));
            goesBack |= at <= 3 && "TO".equals(word);
            if (depth > 0) {
                depth += "CASE".equals(word) ? 1 : "END".equals(word) ? -1 : 0;
            } else if ("CREATE".equals(first) && "ATOMIC".equals(word) && "BEGIN".equals(before)) {
                depth = 1;
            }
            before = word;
        }
        refuseRollback(first, goesBack);
        return changesRole;
    }

    private static void refuseRollback(String first, boolean goesBack) {
        if ("ROLLBACK".equals(first) && !goesBack) {
            throw refusal(first);
        }
    }

    private static IllegalStateException refusal(String what) {
        return new IllegalStateException(what + " was refused before it was sent: the effect's transaction is pgonce's to end, together with its answer. "
            + "Throw to roll back, take a savepoint for a part, or protect what has transactions of its own by a lease (mode LEASE, Once.effect)");
    }

    /** The words of a text, in upper case, and its semicolons: those outside of quotes and comments. */
    private static final class Words {
        private final String text;
        private int at;

        Words(String text) {
            this.text = text;
        }

        /** Null: no more. */
        String next() {
            while (at < text.length()) {
                char c = text.charAt(at);
                if (c == ';') {
                    at++;
                    return ";";
                } else if (Character.isLetterOrDigit(c) || c == '_') {
                    int start = at;
                    at = endOfWord(at);
                    boolean escapes = at == start + 1 && (c == 'e' || c == 'E') && at < text.length() && text.charAt(at) == '\'';
                    if (!escapes) {
                        return text.substring(start, at).toUpperCase(Locale.ROOT);
                    }
                    quoted('\'', true);
                } else {
                    skip(c);
                }
            }
            return null;
        }

        private int endOfWord(int from) {
            int end = from;
            while (end < text.length() && (Character.isLetterOrDigit(text.charAt(end)) || text.charAt(end) == '_' || text.charAt(end) == '$')) {
                end++;
            }
            return end;
        }

        /** One character, or all that stands in quotes or in a comment. */
        private void skip(char c) {
            if (c == '\'' || c == '"') {
                quoted(c, false);
            } else if (text.startsWith("--", at)) {
                at = after(text.indexOf('\n', at), 1);
            } else if (text.startsWith("/*", at)) {
                comment();
            } else if (c == '$') {
                dollars();
            } else {
                at++;
            }
        }

        private int after(int found, int length) {
            return found < 0 ? text.length() : found + length;
        }

        private void quoted(char quote, boolean escapes) {
            for (at++; at < text.length() && text.charAt(at) != quote; at++) {
                if (escapes && text.charAt(at) == '\\') {
                    at++;
                }
            }
            at = Math.min(at + 1, text.length());
        }

        private void comment() {
            int open = 0;
            do {
                boolean opens = text.startsWith("/*", at);
                boolean closes = text.startsWith("*/", at);
                open += opens ? 1 : closes ? -1 : 0;
                at += opens || closes ? 2 : 1;
            } while (open > 0 && at < text.length());
        }

        /** $tag$ ... $tag$, or a parameter's $. */
        private void dollars() {
            int end = at + 1;
            while (end < text.length() && (Character.isLetterOrDigit(text.charAt(end)) || text.charAt(end) == '_')) {
                end++;
            }
            boolean quotes = end < text.length() && text.charAt(end) == '$' && (end == at + 1 || !Character.isDigit(text.charAt(at + 1)));
            at = quotes ? after(text.indexOf(text.substring(at, end + 1), end + 1), end + 1 - at) : end;
        }
    }
}
