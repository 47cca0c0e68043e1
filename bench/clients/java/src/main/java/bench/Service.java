// SPDX-License-Identifier: PostgreSQL
package bench;

import io.pgonce.spring.Idempotent;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.filter.OncePerRequestFilter;
import org.springframework.web.util.ContentCachingResponseWrapper;

/** One endpoint three times: as it is, with pgonce, and with a filter on Redis as one writes it over Spring Data. */
@SpringBootApplication
@RestController
public class Service {
    record Wanted(String order, int amount) {
    }

    record Placed(long order, String item) {
    }

    private final JdbcTemplate jdbc;

    Service(JdbcTemplate jdbc) {
        this.jdbc = jdbc;
    }

    @PostMapping("/bare")
    @Transactional
    public ResponseEntity<Placed> bare(@RequestBody Wanted wanted) {
        return order(wanted);
    }

    @PostMapping("/pgonce")
    @Idempotent("orders")
    public ResponseEntity<Placed> protectedByPgonce(@RequestBody Wanted wanted) {
        return order(wanted);
    }

    @PostMapping("/redis")
    @Transactional
    public ResponseEntity<Placed> protectedByRedis(@RequestBody Wanted wanted) {
        return order(wanted);
    }

    private ResponseEntity<Placed> order(Wanted wanted) {
        Long id = jdbc.queryForObject("INSERT INTO orders (item, amount) VALUES (?, ?) RETURNING id", Long.class, wanted.order(), wanted.amount());
        return ResponseEntity.status(201).body(new Placed(id, wanted.order()));
    }

    /** SET NX, the handler, SET: two commands for each new key, the least that it can be. */
    static class OnRedis extends OncePerRequestFilter {
        private static final String RUNNING = "running";
        private final StringRedisTemplate redis;

        OnRedis(StringRedisTemplate redis) {
            this.redis = redis;
        }

        @Override
        protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws ServletException, IOException {
            String key = "orders/" + request.getHeader("Idempotency-Key");
            if (!Boolean.TRUE.equals(redis.opsForValue().setIfAbsent(key, RUNNING, Duration.ofDays(1)))) {
                String stored = redis.opsForValue().get(key);
                if (stored == null || stored.equals(RUNNING)) {
                    response.sendError(409);
                    return;
                }
                response.setStatus(Integer.parseInt(stored.substring(0, 3)));
                response.setContentType("application/json");
                response.getOutputStream().write(stored.substring(3).getBytes(StandardCharsets.UTF_8));
                return;
            }
            ContentCachingResponseWrapper held = new ContentCachingResponseWrapper(response);
            chain.doFilter(request, held);
            redis.opsForValue().set(key, held.getStatus() + new String(held.getContentAsByteArray(), StandardCharsets.UTF_8), Duration.ofDays(1));
            held.copyBodyToResponse();
        }
    }

    @Bean
    FilterRegistrationBean<OnRedis> onRedis(StringRedisTemplate redis) {
        FilterRegistrationBean<OnRedis> filter = new FilterRegistrationBean<>(new OnRedis(redis));
        filter.addUrlPatterns("/redis");
        return filter;
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Service.class, arguments);
    }
}
