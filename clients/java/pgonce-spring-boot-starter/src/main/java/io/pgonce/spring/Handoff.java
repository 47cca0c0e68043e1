// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.http.HttpServletRequest;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.regex.Pattern;
import org.springframework.web.util.UriUtils;

/** The claim of a gateway in front, which tells it in headers (docs/reference/gateway.md, "In front of a client's middleware"). */
final class Handoff {
    static final String CLAIMED_IN_FRONT = "A pgonce gateway in front of this service has claimed this key in the same scope: set the property pgonce.gateway, "
        + "or give the two different scopes.";
    private static final Pattern FENCE = Pattern.compile("[1-9][0-9]{0,9}");

    private Handoff() {
    }

    /** The fence under which a gateway holds this very intent; 0: none does. */
    static int fence(HttpServletRequest request, String tenant, String scope, String key) {
        String fence = only(request, "Once-Fence");
        boolean ours = names(request, "Once-Tenant", tenant) && names(request, "Once-Scope", scope) && names(request, "Once-Key", key);
        if (!ours || fence == null || !FENCE.matcher(fence).matches() || Long.parseLong(fence) > Integer.MAX_VALUE) {
            return 0;
        }
        return Integer.parseInt(fence);
    }

    private static String only(HttpServletRequest request, String header) {
        List<String> values = Collections.list(request.getHeaders(header));
        return values.size() == 1 ? values.get(0) : null;
    }

    /** The gateway percent-encodes what a header cannot hold. */
    private static boolean names(HttpServletRequest request, String header, String wanted) {
        String said = only(request, header);
        try {
            return said != null && UriUtils.decode(said, StandardCharsets.UTF_8).equals(wanted);
        } catch (IllegalArgumentException malformed) {
            return false;
        }
    }
}
