// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.post;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.content;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.header;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.status;

import io.pgonce.testing.Server;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.autoconfigure.data.jpa.JpaRepositoriesAutoConfiguration;
import org.springframework.boot.autoconfigure.orm.jpa.HibernateJpaAutoConfiguration;
import org.springframework.boot.autoconfigure.security.servlet.SecurityAutoConfiguration;
import org.springframework.boot.test.autoconfigure.web.servlet.AutoConfigureMockMvc;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.http.ResponseEntity;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.test.annotation.DirtiesContext;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.test.web.servlet.MockMvc;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;

/** An application's own test, as Spring's documentation has it: in a transaction that is rolled back after each. */
@SpringBootTest(classes = JoinedTest.Application.class, properties = "pgonce.tenant=none")
@AutoConfigureMockMvc
@DirtiesContext
@Transactional
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
class JoinedTest {
    private static final Server SERVER = new Server();

    @Autowired
    private MockMvc mvc;
    @Autowired
    private JdbcTemplate jdbc;

    @RestController
    static class Controller {
        private final JdbcTemplate jdbc;

        Controller(JdbcTemplate jdbc) {
            this.jdbc = jdbc;
        }

        @PostMapping("/orders")
        @Idempotent("orders")
        ResponseEntity<String> order(@RequestBody String item) {
            jdbc.update("INSERT INTO effect (key) VALUES (?)", item);
            return ResponseEntity.status("none".equals(item) ? 422 : 201).body("ordered " + item);
        }
    }

    @Configuration(proxyBeanMethods = false)
    @EnableAutoConfiguration(exclude = {HibernateJpaAutoConfiguration.class, JpaRepositoriesAutoConfiguration.class, SecurityAutoConfiguration.class})
    @Import(Controller.class)
    static class Application {
    }

    @DynamicPropertySource
    static void properties(DynamicPropertyRegistry registry) {
        registry.add("spring.datasource.url", SERVER::url);
        registry.add("spring.datasource.username", () -> "postgres");
    }

    @AfterAll
    static void stop() {
        SERVER.close();
    }

    private int effects() {
        return jdbc.queryForObject("SELECT count(*) FROM effect", Integer.class);
    }

    @Test
    @Order(1)
    void aRequestIsDoneOnceAndATestSeesItsEffect() throws Exception {
        jdbc.update("INSERT INTO effect (key) VALUES ('of the test')");
        mvc.perform(post("/orders").header("Idempotency-Key", "k1").content("lamp")).andExpect(status().isCreated()).andExpect(content().string("ordered lamp"));
        mvc.perform(post("/orders").header("Idempotency-Key", "k1").content("lamp")).andExpect(status().isCreated())
            .andExpect(header().string("Idempotency-Replayed", "true"));
        mvc.perform(post("/orders").header("Idempotency-Key", "k1").content("desk")).andExpect(status().isUnprocessableEntity());
        assertEquals(2, effects());
        mvc.perform(post("/orders").header("Idempotency-Key", "k2").content("none")).andExpect(status().isUnprocessableEntity());
        mvc.perform(post("/orders").header("Idempotency-Key", "k2").content("none")).andExpect(header().string("Idempotency-Replayed", "true"));
        assertEquals(2, effects());
    }

    @Test
    @Order(2)
    void theTestsTransactionIsRolledBackAfterIt() throws Exception {
        assertEquals(0, effects());
        mvc.perform(post("/orders").header("Idempotency-Key", "k1").content("chair")).andExpect(content().string("ordered chair"));
    }
}
