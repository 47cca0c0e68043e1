// SPDX-License-Identifier: PostgreSQL
package payments;

import io.pgonce.Event;
import io.pgonce.spring.Idempotent;
import io.pgonce.spring.OnceTransaction;
import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;

/** A payment service: each Idempotency-Key moves money once, announces it once, and gets one answer. */
@SpringBootApplication
@RestController
public class Payments {
    /** What a client asks for. */
    record Payment(String account, int amount) {
    }

    private final JdbcTemplate jdbc;
    private final OnceTransaction transaction;

    Payments(JdbcTemplate jdbc, OnceTransaction transaction) {
        this.jdbc = jdbc;
        this.transaction = transaction;
    }

    /** Takes the money and emits the event in one transaction with the stored answer; without funds a 422 for good. */
    @PostMapping("/payments")
    @Idempotent(value = "payments", waitMs = 5000)
    ResponseEntity<Map<String, Object>> pay(@RequestBody Payment payment) {
        int moved = jdbc.update("UPDATE account SET balance = balance - ? WHERE name = ? AND balance >= ?",
            payment.amount(), payment.account(), payment.amount());
        if (moved == 0) {
            throw new ResponseStatusException(HttpStatus.UNPROCESSABLE_ENTITY, "no funds");
        }
        Long id = jdbc.queryForObject("INSERT INTO payment (account, amount) VALUES (?, ?) RETURNING id", Long.class,
            payment.account(), payment.amount());
        transaction.current().emit(Event.of("payment.made", "{\"payment\": " + id + ", \"amount\": " + payment.amount() + "}")
            .about("payment", String.valueOf(id)).typed("payment.made/" + id));
        return ResponseEntity.status(201).body(Map.of("payment", id));
    }

    /** Starts the service. */
    public static void main(String[] arguments) {
        SpringApplication.run(Payments.class, arguments);
    }
}
