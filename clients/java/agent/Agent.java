// SPDX-License-Identifier: PostgreSQL

import com.fasterxml.jackson.databind.JsonNode;
import io.pgonce.Once;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;
import javax.sql.DataSource;

/**
 * The agent of the Java clients (spec/cases/README.md): Agent CLIENT DRIVER DSN [PORT]. It says `ready`, and answers each line of JSON with another. DRIVER is jdbc, spring
 * or spring-jpa; or hikari (a small pool) or plain (a connection for each transaction). With a PORT it serves HTTP there, for the torture: spring or spring-jpa.
 */
public final class Agent {
    private static final int CONNECTIONS = 8;

    private Agent() {
    }

    private static Calls calls(String driver, String dsn, Consumer<JsonNode> converse) {
        if (driver.startsWith("spring")) {
            return new Calls(new Web(driver.endsWith("jpa"), dsn), converse);
        }
        DataSource source = Door.source(driver.equals("jdbc") ? CONNECTIONS : driver.equals("hikari") ? 4 : 0, dsn);
        return new Calls(Once.over(source), source, converse);
    }

    public static void main(String[] args) throws Exception {
        if (args.length > 3) {
            Service.serve(args[1], args[2], args[3]);
            return;
        }
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // for all other output
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Calls calls = calls(args[1], args[2], said -> {
            out.println(said);
            try {
                lines.readLine();
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        });
        Door door = calls.door();
        out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode order = Door.JSON.readTree(line);
            out.println(order.has("call") ? calls.answered(order).toString() : door.answer(order));
        }
        System.exit(0);
    }
}
