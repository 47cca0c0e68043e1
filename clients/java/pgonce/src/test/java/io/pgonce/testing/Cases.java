// SPDX-License-Identifier: PostgreSQL
package io.pgonce.testing;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Base64;

/** The data that tests share with the other clients. */
public final class Cases {
    private Cases() {
    }

    /** A list of faults.json. */
    public static JsonNode faults(String list) {
        return read(Child.ROOT.resolve("spec/cases/faults.json")).get(list);
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
}
