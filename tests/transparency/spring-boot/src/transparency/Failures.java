// SPDX-License-Identifier: PostgreSQL
package transparency;

import io.pgonce.spring.Idempotent;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.Map;
import org.springframework.dao.DataAccessException;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.ExceptionHandler;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/** What goes wrong in a handler, or in its answer. */
@RestController
@Idempotent("transparency")
class Failures {
    private final Effects effects;
    private final JdbcTemplate jdbc;

    Failures(Effects effects, JdbcTemplate jdbc) {
        this.effects = effects;
        this.jdbc = jdbc;
    }

    private static final class NoFunds extends RuntimeException {
        private static final long serialVersionUID = 1L;
    }

    @ExceptionHandler
    ResponseEntity<String> refused(NoFunds failure) {
        return ResponseEntity.status(402).body("no funds");
    }

    @PostMapping("/handled")
    String handled() {
        effects.insert("handled");
        throw new NoFunds();
    }

    @PostMapping("/throws")
    String throwing() {
        effects.insert("throws");
        throw new IllegalStateException("thrown");
    }

    private static void flushed(HttpServletResponse response, String... pieces) throws IOException {
        for (String each : pieces) {
            response.getWriter().write(each);
            response.flushBuffer();
        }
    }

    @PostMapping("/throws-late")
    void throwLate(HttpServletResponse response) throws IOException {
        effects.insert("throws-late");
        response.setContentType(Answers.TEXT);
        flushed(response, "first ", "second ");
        throw new IllegalStateException("thrown late");
    }

    @PostMapping("/destroyed")
    void destroy(HttpServletResponse response) throws IOException {
        effects.insert("destroyed");
        response.setContentType(Answers.TEXT);
        flushed(response, "half ");
        throw new IOException("aborted");
    }

    @PostMapping("/status")
    ResponseEntity<Map<String, Integer>> status(@RequestParam int code, @RequestParam(required = false) String raise) {
        effects.insert("status");
        if (raise != null) {
            throw new ResponseStatusException(HttpStatusCode.valueOf(code), "sorry");
        }
        return ResponseEntity.status(code).body(Map.of("code", code));
    }

    @PostMapping("/sent")
    void send(@RequestParam int code, HttpServletResponse response) throws IOException {
        effects.insert("sent");
        response.sendError(code, "sorry");
    }

    @PostMapping("/retry-after")
    ResponseEntity<String> retryAfter() {
        effects.insert("retry-after");
        return ResponseEntity.status(503).header("Retry-After", "7").body("later");
    }

    @PostMapping("/deferred")
    ResponseEntity<Map<String, Boolean>> deferred() {
        effects.insert("deferred");
        jdbc.update("INSERT INTO taken (id) VALUES (1)");
        return ResponseEntity.status(201).body(Map.of("deferred", true));
    }

    private ResponseEntity<String> after(String name, String sql) {
        effects.insert(name);
        jdbc.execute(sql);
        return ResponseEntity.status(201).body(name);
    }

    @PostMapping("/deadlock")
    ResponseEntity<String> deadlock() {
        return after("deadlock", "SELECT deadlock()");
    }

    @PostMapping("/commit")
    ResponseEntity<String> commit() {
        return after("commit", "COMMIT");
    }

    @PostMapping("/swallowed")
    ResponseEntity<String> swallowed() {
        effects.insert("swallowed");
        try {
            jdbc.execute("SELECT 1/0");
        } catch (DataAccessException ignored) {
            // that is the point
        }
        return ResponseEntity.status(201).body("swallowed");
    }

    @PostMapping("/two-answers")
    void twoAnswers(HttpServletResponse response) throws IOException {
        effects.insert("two-answers");
        response.setStatus(201);
        flushed(response, "first");
        response.setStatus(202);
        flushed(response, "second");
    }

    private static void declared(HttpServletResponse response, int length, String text) throws IOException {
        response.setContentLength(length);
        response.getWriter().write(text);
    }

    @PostMapping("/short")
    void tooShort(HttpServletResponse response) throws IOException {
        effects.insert("short");
        declared(response, 10, "short");
    }

    @PostMapping("/long")
    void tooLong(HttpServletResponse response) throws IOException {
        effects.insert("long");
        declared(response, 4, "too long");
    }

    @PostMapping("/invalid-status")
    void invalidStatus(HttpServletResponse response) throws IOException {
        effects.insert("invalid-status");
        response.setStatus(99);
        response.getWriter().write("odd");
    }

    @PostMapping("/bad-header")
    ResponseEntity<String> badHeader() {
        effects.insert("bad-header");
        return ResponseEntity.ok().header("X-Bad", "a\nb").body("odd");
    }
}
