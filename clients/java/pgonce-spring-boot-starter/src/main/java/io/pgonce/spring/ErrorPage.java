// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.RequestDispatcher;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.springframework.http.HttpStatus;

/**
 * The page about a status that a handler has sent as an error. The container makes it when the filters have returned, which is too late
 * for an answer that is stored: Spring Boot's renders it before COMMIT; without an error page it is a small problem document.
 */
final class ErrorPage {
    private final String path;

    /** path null: the application has no error page. */
    ErrorPage(String path) {
        this.path = path;
    }

    void render(HttpServletRequest request, HeldResponse held) throws ServletException, IOException {
        int status = held.errorStatus();
        String message = held.errorMessage();
        RequestDispatcher page = path == null ? null : request.getRequestDispatcher(path);
        held.openForError();
        if (page == null) {
            HttpStatus known = HttpStatus.resolve(status);
            String title = known == null ? "Error" : known.getReasonPhrase();
            held.setContentType("application/problem+json");
            held.getOutputStream().write(("{\"type\":\"about:blank\",\"title\":\"" + title + "\",\"status\":" + status + "}").getBytes(StandardCharsets.US_ASCII));
            return;
        }
        Map<String, Object> attributes = new LinkedHashMap<>();
        attributes.put(RequestDispatcher.ERROR_STATUS_CODE, status);
        attributes.put(RequestDispatcher.ERROR_MESSAGE, message == null ? "" : message);
        attributes.put(RequestDispatcher.ERROR_REQUEST_URI, request.getRequestURI());
        attributes.forEach(request::setAttribute);
        try {
            page.forward(request, held);
        } finally {
            attributes.keySet().forEach(request::removeAttribute);
        }
    }
}
