// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.multipart;
import static org.springframework.test.web.servlet.request.MockMvcRequestBuilders.post;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.content;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.header;
import static org.springframework.test.web.servlet.result.MockMvcResultMatchers.status;

import io.pgonce.testing.Server;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.Part;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
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
import org.springframework.mock.web.MockMultipartFile;
import org.springframework.mock.web.MockPart;
import org.springframework.test.annotation.DirtiesContext;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;
import org.springframework.test.web.servlet.MockMvc;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RequestPart;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.multipart.MultipartFile;

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

        @PostMapping("/moved")
        @Idempotent("moved")
        void move(HttpServletResponse response) throws IOException {
            response.sendRedirect("/orders/1");
        }

        @PostMapping("/notes")
        @Idempotent("notes")
        String note(@RequestPart Part note, @RequestParam MultipartFile file) throws IOException {
            return new String(note.getInputStream().readAllBytes(), StandardCharsets.UTF_8) + " " + file.getOriginalFilename();
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
    void aRedirectIsAsMockMvcHasIt() throws Exception {
        for (int i = 0; i < 2; i++) {
            mvc.perform(post("/moved").header("Idempotency-Key", "k3")).andExpect(status().isFound()).andExpect(header().string("Location", "/orders/1"));
        }
    }

    @Test
    void partsThatHaveNoBodyReachTheHandler() throws Exception {
        for (int i = 0; i < 2; i++) {
            mvc.perform(multipart("/notes").part(new MockPart("note", "Zoe".getBytes(StandardCharsets.UTF_8))).file(new MockMultipartFile("file", "a.txt", null, new byte[1]))
                .header("Idempotency-Key", "k4")).andExpect(content().string("Zoe a.txt"));
        }
    }

    @Test
    @Order(2)
    void theTestsTransactionIsRolledBackAfterIt() throws Exception {
        assertEquals(0, effects());
        mvc.perform(post("/orders").header("Idempotency-Key", "k1").content("chair")).andExpect(content().string("ordered chair"));
    }
}
