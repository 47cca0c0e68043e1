// SPDX-License-Identifier: PostgreSQL
package io.pgonce.testing;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A program of tests/clients: obeys a line at a time, and ends when its standard input is closed. */
public class Child implements AutoCloseable {
    public static final ObjectMapper JSON = new ObjectMapper();
    public static final Path ROOT = root();
    private final Process process;
    private final Writer in;
    private final BufferedReader out;
    public final JsonNode said;

    private static Path root() {
        Path at = Path.of("").toAbsolutePath();
        while (!Files.exists(at.resolve("tests/clients/server.py"))) {
            at = at.getParent();
        }
        return at;
    }

    public Child(String program, String... arguments) {
        List<String> command = new ArrayList<>(List.of(
            Files.exists(Path.of("/usr/bin/python3")) ? "/usr/bin/python3" : "python3", ROOT.resolve("tests/clients/" + program).toString()));
        command.addAll(List.of(arguments));
        try {
            process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        in = new OutputStreamWriter(process.getOutputStream(), StandardCharsets.UTF_8);
        out = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
        said = heard();
    }

    private JsonNode heard() {
        try {
            String line = out.readLine();
            if (line == null) {
                throw new IllegalStateException("the program has ended");
            }
            return JSON.readTree(line);
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    public synchronized JsonNode tell(String line) {
        try {
            in.write(line + "\n");
            in.flush();
            return heard();
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    @Override
    public void close() {
        try {
            in.close();
            process.waitFor();
        } catch (IOException | InterruptedException failure) {
            throw new IllegalStateException(failure);
        }
    }
}
