// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.fasterxml.jackson.databind.JsonNode;
import io.pgonce.http.Ending;
import io.pgonce.http.KeyHeader;
import io.pgonce.http.Problem;
import io.pgonce.testing.Cases;
import io.pgonce.testing.Child;
import io.pgonce.testing.Server;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.HexFormat;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;

/** spec/vectors: keys and fingerprints are those of every other door. */
class VectorsTest {
    @Test
    void theKeyOfEachHeaderIsThatOfTheVectorsOrItIsRefusedWithTheirSentence() throws Exception {
        JsonNode keys = Cases.read(Child.ROOT.resolve("spec/vectors/keys.json")).get("keys");
        String notAString = Cases.read(Child.ROOT.resolve("spec/keys.json")).at("/faults/not_a_string").asText();
        for (JsonNode each : keys) {
            String header = new String(each.get("header").asText().getBytes(StandardCharsets.UTF_8), StandardCharsets.ISO_8859_1);
            if (!header.stripLeading().startsWith("\"")) {
                String strict = assertThrows(KeyHeader.Malformed.class, () -> KeyHeader.parse(header, true, 255), each.toString()).getMessage();
                assertEquals(true, strict.equals(each.path("refused").asText()) || strict.equals(notAString), each + ": " + strict);
            } else if (each.has("key")) {
                assertEquals(each.get("key").asText(), KeyHeader.parse(header, true, 255), each.toString());
            }
            if (each.has("key")) {
                assertEquals(each.get("key").asText(), KeyHeader.parse(header, false, 255), each.toString());
            } else {
                assertEquals(each.get("refused").asText(),
                    assertThrows(KeyHeader.Malformed.class, () -> KeyHeader.parse(header, false, 255), each.toString()).getMessage());
            }
        }
        assertEquals(true, keys.size() > 50);
    }

    @Test
    void aProblemDocumentIsThatOfAllDoorsByteForByte() {
        JsonNode cases = Cases.read(Child.ROOT.resolve("spec/problems.json")).get("cases");
        for (JsonNode each : cases) {
            Problem problem = Problem.valueOf(each.get("problem").asText().toUpperCase(Locale.ROOT).replace('-', '_'));
            assertEquals(each.get("document").asText(),
                new String(problem.document(each.path("more").asText(null), "0123456789abcdef0123456789abcdef"), StandardCharsets.US_ASCII));
        }
        assertEquals(true, cases.size() > 4);
    }

    @Test
    void aBaseThatWouldBreakTheDocumentIsRefused() {
        JsonNode bases = Cases.read(Child.ROOT.resolve("spec/problems.json")).get("type_bases");
        for (JsonNode good : bases.get("good")) {
            String document = new String(Problem.ACTIVE.document(Problem.checkBase(good.asText()), null, "0"), StandardCharsets.US_ASCII);
            assertEquals(true, document.startsWith("{\"type\":\"" + good.asText() + "active\""), document);
        }
        for (JsonNode bad : bases.get("bad")) {
            assertThrows(IllegalArgumentException.class, () -> Problem.checkBase(bad.asText()), bad.toString());
        }
        assertEquals("urn:pgonce:problem:", Problem.checkBase(null));
    }

    @Test
    void whatAnAnswerSaysOfItsEffectIsWhatTheTableOfAllDoorsSays() throws Exception {
        Map<Ending, String> named = Map.of(Ending.STORED, "stored", Ending.FAILED, "refused", Ending.RELEASED, "released", Ending.IN_DOUBT, "in_doubt");
        JsonNode cases = Cases.read(Child.ROOT.resolve("spec/statuses.json")).get("cases");
        for (JsonNode each : cases) {
            Set<String> headers = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);
            each.path("headers").forEach(name -> headers.add(name.asText()));
            for (JsonNode status : each.get("statuses")) {
                String said = each.path("said").asText(null);
                assertEquals(each.get("transaction").asText(), named.get(Ending.of(status.asInt(), said, name -> headers.contains(name) ? "1" : null)),
                    status + " in the transaction: " + each);
                assertEquals(each.get("elsewhere").asText(), named.get(Ending.ofElsewhere(status.asInt(), said, name -> headers.contains(name) ? "1" : null)),
                    status + " elsewhere: " + each);
            }
        }
        assertEquals(true, cases.size() > 20);
    }

    @Test
    void theFingerprintOfEachRequestIsThatOfTheVectors() throws Exception {
        JsonNode vectors = Cases.read(Child.ROOT.resolve("spec/vectors/fingerprints.json"));
        try (Server server = new Server(); Connection connection = Server.plain(server.url()).getConnection()) {
            server.rows("UPDATE once.setting SET salt = '\\x" + vectors.get("installation_salt").asText() + "'");
            for (JsonNode each : vectors.get("requests")) {
                byte[] body = Cases.bytes(each);
                Request request = Request.http(each.get("method").asText(), each.get("target").asText(), each.path("content_type").asText(null), body,
                    each.path("canonical_json").asBoolean());
                assertEquals(each.get("fingerprint").asText(), of(connection, each, request), each.toString());
                assertEquals(each.path("canonical_json").asBoolean(), request.hashed == null);
                if (request.hashed != null) {
                    assertEquals(each.get("fingerprint").asText(), here(vectors, each, request), each.toString());
                }
            }
            for (JsonNode each : vectors.get("bytes")) {
                assertEquals(each.get("fingerprint").asText(), of(connection, each, Request.bytes(Cases.bytes(each))), each.toString());
                assertEquals(each.get("fingerprint").asText(), here(vectors, each, Request.bytes(Cases.bytes(each))), each.toString());
                if (each.has("text")) {
                    assertEquals(each.get("fingerprint").asText(), of(connection, each, Request.text(each.get("text").asText())), each.toString());
                }
            }
            for (JsonNode each : vectors.get("json")) {
                assertEquals(each.get("fingerprint").asText(), of(connection, each, Request.json(each.get("text").asText())), each.toString());
            }
        }
    }

    private static String here(JsonNode vectors, JsonNode vector, Request request) {
        byte[] salt = HexFormat.of().parseHex(vectors.get("salts").get(vector.path("tenant").asText("")).asText());
        return HexFormat.of().formatHex(Salts.fingerprint(salt, request.hashed));
    }

    private static String of(Connection connection, JsonNode vector, Request request) throws Exception {
        try (PreparedStatement statement = connection.prepareStatement("SELECT " + request.sql)) {
            request.bind(statement, 1, vector.path("tenant").asText(""));
            ResultSet row = statement.executeQuery();
            row.next();
            return HexFormat.of().formatHex(row.getBytes(1));
        }
    }
}
