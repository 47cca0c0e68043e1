// SPDX-License-Identifier: PostgreSQL
package io.pgonce.testing;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The files of clients/conformance, and what came of each case. */
public final class Cases {
    private static final Map<String, Map<String, String>> RESULTS = new TreeMap<>();

    private Cases() {
    }

    public static List<JsonNode> of(String file, String door) {
        List<JsonNode> cases = new ArrayList<>();
        for (JsonNode each : read(Child.ROOT.resolve("clients/conformance/" + file)).get("cases")) {
            JsonNode doors = each.get("doors");
            boolean ours = doors == null;
            for (int i = 0; doors != null && i < doors.size(); i++) {
                ours |= List.of("client", "java", door).contains(doors.get(i).asText());
            }
            if (ours) {
                cases.add(each);
            }
        }
        return cases;
    }

    /** A list of faults.json. */
    public static JsonNode faults(String list) {
        return read(Child.ROOT.resolve("clients/conformance/faults.json")).get(list);
    }

    public static JsonNode read(Path file) {
        try {
            return Child.JSON.readTree(file.toFile());
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** Null where there is no body. */
    public static byte[] bytes(JsonNode said) {
        if (said.has("text")) {
            return said.get("text").asText().getBytes(StandardCharsets.UTF_8);
        } else if (said.has("base64")) {
            return Base64.getDecoder().decode(said.get("base64").asText());
        } else if (said.has("repeat")) {
            return said.get("repeat").asText().repeat(said.get("count").asInt()).getBytes(StandardCharsets.UTF_8);
        }
        return null;
    }

    /** Written where PGONCE_CONFORMANCE_RESULTS says, for the matrix. */
    public static synchronized void passed(String door, String name) {
        String directory = System.getenv("PGONCE_CONFORMANCE_RESULTS");
        if (directory == null) {
            return;
        }
        Map<String, String> results = RESULTS.computeIfAbsent(door, any -> new TreeMap<>());
        results.put(name, "pass");
        ObjectNode document = Child.JSON.createObjectNode().put("door", door);
        document.set("results", Child.JSON.valueToTree(results));
        try {
            Files.writeString(Path.of(directory, door + ".json"), document.toPrettyString());
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
