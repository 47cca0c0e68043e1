// SPDX-License-Identifier: PostgreSQL
package io.pgonce.http;

import io.pgonce.Answer;
import java.util.List;
import java.util.Locale;

/** Which headers of an answer are stored and replayed: the gateway's lists (lib/http/headers.c). */
public final class HeaderPolicy {
    private static final List<String> KEPT = List.of(
        // spec: headers-kept
        // By default: what describes the answer and holds for every attempt alike. Names that an application invents are usually X-;
        // those of browsers' access control belong to the answer, or a page could read the first one and not its replay.
        "accept-patch", "accept-post", "access-control-*", "allow", "cache-control", "content-*", "cross-origin-*", "deprecation", "digest",
        "etag", "expires", "last-modified", "link", "location", "permissions-policy", "pragma", "preference-applied", "ratelimit-*",
        "refresh", "repr-digest", "referrer-policy", "request-id", "retry-after", "sunset", "traceparent", "vary", "warning", "x-*"
        // end of spec
    );
    private static final List<String> NEVER = List.of(
        // spec: headers-never
        // Credentials: meant for the client of the first attempt, at that moment.
        "set-cookie", "set-cookie2", "www-authenticate", "authentication-info", "authentication-control", "proxy-authenticate",
        "proxy-authentication-info", "authorization", "proxy-authorization", "clear-site-data", "dpop-nonce", "replay-nonce",
        // Of one connection.
        "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "alt-svc", "http2-settings",
        // Framing, and what the server says anew.
        "content-length", "accept-ranges", "date", "server", "age", "via", "status",
        // Instructions to the proxy.
        "x-accel-*", "x-sendfile",
        // The door's own.
        "idempotency-replayed", "idempotency-traceparent", "idempotency-key", "once-*"
        // end of spec
    );

    private static final List<String> SECRET = List.of(
        // spec: headers-secret
        // Words in the name of a header whose value is a credential, also as a part of a longer name.
        "access-key", "access-token", "api-key", "apikey", "auth-token", "bearer", "credential", "csrf", "id-token", "jwt", "passwd",
        "password", "private-key", "refresh-token", "secret", "security-token", "session-id", "session-token", "xsrf"
        // end of spec
    );

    private final List<String> allowed;

    /**
     * A policy.
     *
     * @param allowed names, or prefixes that end in *; empty: the built-in list
     */
    public HeaderPolicy(List<String> allowed) {
        this.allowed = allowed.isEmpty() ? KEPT : allowed.stream().map(name -> name.toLowerCase(Locale.ROOT)).toList();
        for (String name : allowed) {
            if (never(name)) {
                throw new IllegalArgumentException("the header " + name + " belongs to one answer only, and is never stored");
            }
        }
    }

    private static boolean matches(String name, List<String> patterns) {
        String lower = name.toLowerCase(Locale.ROOT);
        return patterns.stream().anyMatch(pattern -> pattern.endsWith("*")
            ? lower.startsWith(pattern.substring(0, pattern.length() - 1)) : lower.equals(pattern));
    }

    /**
     * A header that is never replayed, even if the list names it.
     *
     * @param name in any case
     * @return true where naming it is a mistake
     */
    public static boolean never(String name) {
        String lower = name.toLowerCase(Locale.ROOT);
        // Access-Control-Allow-Credentials holds none: it says that a page may send them.
        return matches(name, NEVER) || !lower.startsWith("access-control-") && SECRET.stream().anyMatch(lower::contains);
    }

    /**
     * The headers that are stored.
     *
     * @param headers of the answer
     * @return those of the policy, in their order
     */
    public List<Answer.Header> kept(List<Answer.Header> headers) {
        return headers.stream().filter(each -> !never(each.name()) && matches(each.name(), allowed)).toList();
    }

    /**
     * The headers of a stored answer that may be sent: who completes an intent itself may store anything.
     *
     * @param headers that are stored
     * @return without those that are never replayed
     */
    public static List<Answer.Header> sendable(List<Answer.Header> headers) {
        return headers.stream().filter(each -> !never(each.name())).toList();
    }
}
