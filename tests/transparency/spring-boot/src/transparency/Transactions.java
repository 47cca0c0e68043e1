// SPDX-License-Identifier: PostgreSQL
package transparency;

import io.pgonce.spring.Idempotent;
import jakarta.servlet.ServletRequestEvent;
import jakarta.servlet.ServletRequestListener;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import javax.sql.DataSource;
import org.springframework.context.ApplicationEventPublisher;
import org.springframework.core.task.TaskExecutor;
import org.springframework.http.HttpStatus;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.ConnectionCallback;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.stereotype.Component;
import org.springframework.transaction.support.TransactionTemplate;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.ResponseStatus;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.servlet.mvc.method.annotation.SseEmitter;

/** What handlers do with their transaction, and with other connections. */
@RestController
@Idempotent("transparency")
class Transactions {
    private final Effects effects;
    private final JdbcTemplate jdbc;
    private final DataSource source;
    private final TransactionTemplate transactions;
    private final EffectRepository repository;
    private final ApplicationEventPublisher events;
    private final TaskExecutor executor;

    Transactions(Effects effects, JdbcTemplate jdbc, DataSource source, TransactionTemplate transactions, EffectRepository repository, ApplicationEventPublisher events,
        TaskExecutor executor) {
        this.effects = effects;
        this.jdbc = jdbc;
        this.source = source;
        this.transactions = transactions;
        this.repository = repository;
        this.events = events;
        this.executor = executor;
    }

    /** Runs what a handler has left to be done behind its answer. */
    @Component
    static class Afterwards implements ServletRequestListener {
        private static final String WORK = Afterwards.class.getName();

        static void leave(HttpServletRequest request, Runnable work) {
            request.setAttribute(WORK, work);
        }

        @Override
        public void requestDestroyed(ServletRequestEvent event) {
            if (event.getServletRequest().getAttribute(WORK) instanceof Runnable work) {
                work.run();
            }
        }
    }

    @PostMapping("/nested")
    @ResponseStatus(HttpStatus.CREATED)
    Map<String, Boolean> nested() {
        transactions.executeWithoutResult(status -> jdbc.execute((ConnectionCallback<Void>) connection -> {
            Savepoint outer = connection.setSavepoint();
            Savepoint inner = connection.setSavepoint();
            effects.insert("nested-inner");
            connection.rollback(inner);
            effects.insert("nested");
            connection.releaseSavepoint(outer);
            return null;
        }));
        return Map.of("nested", true);
    }

    @PostMapping("/entity")
    @ResponseStatus(HttpStatus.CREATED)
    Map<String, Boolean> entity() {
        Effect saved = repository.save(new Effect("entity"));
        return Map.of("same", repository.findById("entity").orElseThrow() == saved);
    }

    @PostMapping("/role")
    ResponseEntity<String> role() {
        transactions.executeWithoutResult(status -> {
            jdbc.execute("SET LOCAL ROLE reader");
            effects.insert("role");
        });
        return ResponseEntity.status(201).body("role");
    }

    @PostMapping("/after-commit")
    ResponseEntity<String> afterCommit() {
        transactions.executeWithoutResult(status -> {
            effects.insert("after-commit");
            events.publishEvent(new Effects.Placed("after-commit-hook"));
        });
        return ResponseEntity.status(201).body("after-commit");
    }

    @PostMapping("/background")
    ResponseEntity<String> background() {
        effects.insert("background");
        effects.insertLater("background-task");
        return ResponseEntity.accepted().body("background");
    }

    @PostMapping("/late-tx")
    ResponseEntity<String> lateTx(HttpServletRequest request) {
        effects.insert("late-tx");
        Connection kept = DataSourceUtils.getConnection(source);
        DataSourceUtils.releaseConnection(kept, source);
        Afterwards.leave(request, () -> {
            try (Statement statement = kept.createStatement()) {
                statement.execute("INSERT INTO effect (name) VALUES ('late-tx-after')");
            } catch (SQLException refused) {
                effects.insertElsewhere("late-tx-refused");
            }
        });
        return ResponseEntity.accepted().body("late-tx");
    }

    @PostMapping("/second")
    @ResponseStatus(HttpStatus.CREATED)
    Map<String, Integer> second() throws SQLException {
        effects.insert("second");
        try (Connection own = source.getConnection(); Statement statement = own.createStatement()) {
            statement.execute("SELECT 1");
        }
        return Map.of("second", 1);
    }

    @PostMapping("/no-answer")
    void noAnswer() throws InterruptedException {
        effects.insert("no-answer");
        new CountDownLatch(1).await();
    }

    @PostMapping("/events")
    SseEmitter events() throws IOException {
        effects.insert("events");
        SseEmitter emitter = new SseEmitter();
        emitter.send(" one");
        executor.execute(() -> {
            try {
                jdbc.execute("SELECT gate()");
                emitter.send(" two");
                emitter.complete();
            } catch (IOException gone) {
                emitter.completeWithError(gone);
            }
        });
        return emitter;
    }

    @PostMapping("/gate")
    void gate(HttpServletResponse response) throws IOException {
        effects.insert("gate");
        response.setContentType(Answers.TEXT);
        response.getWriter().write("before ");
        response.flushBuffer();
        jdbc.execute("SELECT gate()");
        response.getWriter().write("after");
    }
}
