// SPDX-License-Identifier: PostgreSQL
package transparency;

import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.scheduling.annotation.Async;
import org.springframework.stereotype.Component;
import org.springframework.transaction.annotation.Propagation;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.event.TransactionPhase;
import org.springframework.transaction.event.TransactionalEventListener;

/** What handlers leave in the database. */
@Component
class Effects {
    private final JdbcTemplate jdbc;

    Effects(JdbcTemplate jdbc) {
        this.jdbc = jdbc;
    }

    /** Something was ordered. */
    record Placed(String name) {
    }

    /** In the transaction that is open, where one is. */
    void insert(String name) {
        jdbc.update("INSERT INTO effect (name) VALUES (?)", name);
    }

    @Transactional(propagation = Propagation.REQUIRES_NEW)
    void insertElsewhere(String name) {
        insert(name);
    }

    @Async
    @Transactional
    void insertLater(String name) {
        insert(name);
    }

    @TransactionalEventListener(phase = TransactionPhase.AFTER_COMMIT)
    @Transactional(propagation = Propagation.REQUIRES_NEW)
    void placed(Placed event) {
        insert(event.name());
    }
}
