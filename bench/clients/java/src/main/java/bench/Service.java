// SPDX-License-Identifier: PostgreSQL
package bench;

import io.github.arun0009.idempotent.redis.RedisConfig;
import io.pgonce.spring.Idempotent;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Import;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;

/** One endpoint three times: as it is, with pgonce, and with idempotent-redis, whose aspect has the transaction within it. */
@SpringBootApplication
@Import(RedisConfig.class)
@RestController
public class Service {
    record Wanted(String order, int amount) {
    }

    record Placed(long order, String item) {
    }

    private final JdbcTemplate jdbc;
    private final TransactionTemplate transactions;

    Service(JdbcTemplate jdbc, TransactionTemplate transactions) {
        this.jdbc = jdbc;
        this.transactions = transactions;
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
    @io.github.arun0009.idempotent.core.annotation.Idempotent(duration = "PT24H")
    public ResponseEntity<Placed> protectedByRedis(@RequestBody Wanted wanted) {
        return transactions.execute(status -> order(wanted));
    }

    private ResponseEntity<Placed> order(Wanted wanted) {
        Long id = jdbc.queryForObject("INSERT INTO orders (item, amount) VALUES (?, ?) RETURNING id", Long.class, wanted.order(), wanted.amount());
        return ResponseEntity.status(201).body(new Placed(id, wanted.order()));
    }

    public static void main(String[] arguments) {
        SpringApplication.run(Service.class, arguments);
    }
}
