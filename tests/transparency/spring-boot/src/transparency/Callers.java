// SPDX-License-Identifier: PostgreSQL
package transparency;

import com.zaxxer.hikari.HikariDataSource;
import com.zaxxer.hikari.HikariPoolMXBean;
import io.pgonce.spring.Idempotent;
import jakarta.servlet.http.HttpSession;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.util.Map;
import javax.sql.DataSource;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.security.web.csrf.CsrfToken;
import org.springframework.stereotype.Component;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.ResponseStatus;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.context.annotation.RequestScope;

/** What stands under neighbours, and what is not protected. */
@RestController
@Idempotent("transparency")
class Callers {
    private final Effects effects;
    private final HikariDataSource pool;
    private final Counter counter;

    Callers(Effects effects, DataSource source, Counter counter) {
        this.effects = effects;
        this.pool = (HikariDataSource) source;
        this.counter = counter;
    }

    /** One for each request. */
    @Component
    @RequestScope
    static class Counter {
        private int count = 1;

        int count() {
            return count;
        }
    }

    @GetMapping("/-/pool")
    Map<String, Integer> pool() {
        HikariPoolMXBean figures = pool.getHikariPoolMXBean();
        return Map.of("in_use", figures == null ? 0 : figures.getActiveConnections());
    }

    @PostMapping("/cors")
    @ResponseStatus(HttpStatus.CREATED)
    Map<String, Boolean> cors() {
        effects.insert("cors");
        return Map.of("cors", true);
    }

    @PostMapping("/outer")
    @ResponseStatus(HttpStatus.CREATED)
    Map<String, Boolean> outer() {
        effects.insert("outer");
        return Map.of("outer", true);
    }

    @PostMapping("/inner")
    @ResponseStatus(HttpStatus.CREATED)
    Map<String, Boolean> inner() {
        effects.insert("inner");
        return Map.of("inner", true);
    }

    @PostMapping("/auth")
    String auth() {
        effects.insert("auth");
        return "auth";
    }

    @GetMapping("/session")
    Map<String, Integer> begin(HttpSession session) {
        session.setAttribute("visits", 0);
        return Map.of("visits", 0);
    }

    @PostMapping("/session")
    Map<String, Integer> visit(HttpSession session) {
        effects.insert("session");
        int visits = (int) session.getAttribute("visits") + 1;
        session.setAttribute("visits", visits);
        return Map.of("visits", visits);
    }

    @GetMapping("/csrf")
    String token(CsrfToken token) {
        return token.getToken();
    }

    /** Answer of a form. */
    record Form(boolean csrf, String amount) {
    }

    @PostMapping("/csrf")
    @ResponseStatus(HttpStatus.CREATED)
    Form form(@RequestParam String amount) {
        effects.insert("csrf");
        return new Form(true, amount);
    }

    @PostMapping("/sub/json")
    @ResponseStatus(HttpStatus.CREATED)
    Answers.Order sub() {
        effects.insert("sub/json");
        return Answers.ORDER;
    }

    @PostMapping("/scoped")
    String scoped() {
        effects.insert("scoped");
        return counter.count() + " " + counter.count();
    }

    @GetMapping("/cacheable")
    ResponseEntity<String> cacheable() {
        return ResponseEntity.ok().eTag("v1").lastModified(ZonedDateTime.of(2022, 1, 1, 0, 0, 0, 0, ZoneOffset.UTC)).body("cacheable");
    }
}
