// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.insert;
import static io.pgonce.testing.Effects.newKey;

import io.pgonce.testing.Server;
import java.sql.SQLException;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Calls for a middleware: under the claim of a gateway in front, and with answers that are too large to keep. */
class MiddlewareCallsTest extends WithServer {
    @ParameterizedTest
    @CsvSource({"lose_request,once.complete,false", "lose_answer,once.complete,false", "lose_request,COMMIT,false", "lose_answer,COMMIT,true"})
    void underAClaimOfAGatewayALostConnectionIsOneEffectAtMost(String how, String step, boolean unknown) throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            for (boolean unrepeated : new boolean[] {true, false}) {
                String key = newKey();
                int fence = Once.over(direct).claim("orders", key, REQUEST, UNATTENDED).fence();
                int rule = forwarder.lose(how, step).get("rule").asInt();
                Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port()))).finishing(fence);
                boolean commit = "COMMIT".equals(step);
                if (commit || unrepeated) {
                    UnavailableException failure = assertThrows(UnavailableException.class, () -> place(unrepeated ? once.unrepeated() : once, key));
                    assertEquals(unknown, failure.outcomeUnknown());
                } else {
                    assertEquals("placed", place(once, key).bodyText());
                }
                assertTrue(forwarder.tell("wait " + rule).get("fired").asBoolean());
                await("SELECT count(*) = 0 FROM pg_stat_activity WHERE state LIKE 'idle in%'");
                if (commit && !unknown) { // the key is free, and the claim over
                    assertThrows(LeaseLostException.class, () -> place(Once.over(direct).finishing(fence), key));
                    assertEquals(0, server.count(key));
                    assertEquals("placed", place(Once.over(direct), key).bodyText());
                } else if (server.count(key) == 0) {
                    assertEquals("placed", place(Once.over(direct).finishing(fence), key).bodyText());
                }
                assertThrows(LeaseLostException.class, () -> place(Once.over(direct).finishing(fence), key)); // done: what this one does is rolled back
                assertEquals(1, server.count(key));
                assertTrue(place(Once.over(direct), key).replayed());
            }
        }
    }

    @Test
    void underAClaimOfAGatewayAnEffectIsDoneWithItsOutcomeOrNotAtAll() throws Exception {
        String key = newKey();
        int fence = Once.over(direct).claim("orders", key, REQUEST, UNATTENDED).fence();
        assertThrows(IllegalArgumentException.class, () -> Once.over(direct).finishing(0));
        assertThrows(LeaseLostException.class, () -> place(Once.over(direct).finishing(fence + 1), key));
        assertThrows(Doubt.class, () -> Once.over(direct).finishing(fence).run("orders", key, REQUEST, tx -> {
            insert(tx.connection(), key);
            throw new Doubt(502);
        }));
        assertEquals(0, server.count(key));
        assertEquals("processing_active", server.rows("SELECT verdict FROM once.peek('orders', '" + key + "', '')").get(0).get(0)); // the doubt is the gateway's to report
        assertEquals("{\"order\": 1}", Once.over(direct).finishing(fence).run("orders", key, REQUEST, tx -> {
            insert(tx.connection(), key);
            return Answer.of(201).json("{\"order\": 1}");
        }).bodyText());
        assertEquals("{\"order\": 1}", place(Once.over(direct), key).bodyText());
        assertEquals(1, server.count(key));
    }

    @ParameterizedTest
    @ValueSource(strings = {"lose_request", "lose_answer", "lose_connection_after"})
    void aConnectionLostWhileATooLargeAnswerIsMadeSmallerIsOneEffect(String how) throws Exception {
        server.rows("SELECT once.set_scope('kept-8192', response_bytes_max => 8192)");
        try (Server.Forwarder forwarder = server.forwarder()) {
            String key = newKey();
            int rule = forwarder.lose(how, "ROLLBACK TO SAVEPOINT pgonce_store").get("rule").asInt();
            Once once = Once.over(Server.plain(server.url("127.0.0.1", forwarder.port()))).keeping(1 << 20);
            Effect<SQLException> effect = tx -> {
                insert(tx.connection(), key);
                return Answer.of(201).bytes(new byte[8193]);
            };
            Answer first = once.run("kept-8192", key, REQUEST, effect);
            assertTrue(forwarder.tell("wait " + rule).get("fired").asBoolean());
            // It was rolled back with its connection, and made anew.
            assertEquals(8193, first.body().length);
            Answer again = once.run("kept-8192", key, REQUEST, effect);
            assertTrue(again.replayed());
            assertEquals(Answer.TOO_LARGE, again.resultType());
            assertEquals(201, again.status());
            assertEquals(1, server.count(key));
        }
    }

    @Test
    void whatIsKeptOfATextOrOfJsonIsDecidedByItsBytes() throws Exception {
        server.rows("SELECT once.set_scope('kept-8192', response_bytes_max => 8192)");
        Once once = Once.over(direct).keeping(1 << 20);
        // As text 8190 bytes; as jsonb, with a space after each comma, more.
        String json = "[" + "1,".repeat(4094) + "1]";
        // 4097 characters of two bytes.
        String text = "\u00fc".repeat(4097);
        for (Answer large : List.of(Answer.of(201).json(json), Answer.of(201).text(text))) {
            String key = newKey();
            Answer first = once.run("kept-8192", key, REQUEST, tx -> large);
            assertEquals(large.bodyText(), first.bodyText());
            assertEquals(Answer.TOO_LARGE, once.run("kept-8192", key, REQUEST, tx -> large).resultType());
        }
        String key = newKey();
        assertEquals(json, once.run("kept-8192", key, REQUEST, tx -> Answer.of(201).text(json)).bodyText());
        assertEquals(json, once.run("kept-8192", key, REQUEST, tx -> Answer.of(201)).bodyText());
        assertEquals("too_large", assertThrows(OnceException.class,
            () -> Once.over(direct).run("kept-8192", newKey(), REQUEST, tx -> Answer.of(201).text(text))).code());
    }
}
