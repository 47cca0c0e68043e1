// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static io.pgonce.testing.Effects.newKey;

import io.pgonce.testing.Server;
import java.lang.reflect.Proxy;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;

/** Claims and work elsewhere, with a real server: how the thread is told, and the reasons that are stored. */
class ClaimsTest extends WithServer {
    @Test
    void aRenewalThatHangsLosesItsOwnLeaseInTimeAndNoOther() throws Exception {
        Claim.Options options = Claim.Options.DEFAULT.lease(Duration.ofMillis(1500));
        String other = newKey();
        CountDownLatch silence = new CountDownLatch(1);
        AtomicBoolean silent = new AtomicBoolean();
        DataSource far = (DataSource) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {DataSource.class}, (proxy, method, arguments) -> {
            if (silent.get()) {
                silence.await();
            }
            return method.invoke(direct, arguments);
        });
        try (Claim healthy = Once.over(direct).claim("pay", other, REQUEST, options);
                Claim hung = Once.over(far).claim("pay", newKey(), REQUEST, options)) {
            silent.set(true);
            try {
                assertThrows(InterruptedException.class, () -> TimeUnit.SECONDS.sleep(20));
            } finally {
                silent.set(false);
                silence.countDown();
            }
            assertTrue(hung.lost());
            assertFalse(healthy.lost());
            await("SELECT lease_until > clock_timestamp() FROM once.peek('pay', '" + other + "')");
            assertTrue(healthy.complete(Answer.of(201)));
        }
        assertFalse(Thread.currentThread().isInterrupted());
    }

    @Test
    void whatWorkThrowsIsTheReasonOfItsDoubt() throws Exception {
        Once once = Once.over(direct);
        String doubt = newKey();
        InDoubtException first = assertThrows(InDoubtException.class, () -> once.effect("pay", doubt, REQUEST, () -> Answer.of(1 / Integer.parseInt("0"))));
        assertInstanceOf(ArithmeticException.class, first.getCause());
        assertEquals(List.of("in_doubt", "ArithmeticException", "/ by zero"), reason(doubt));
        assertThrows(InDoubtException.class, () -> once.effect("pay", doubt, REQUEST, () -> Answer.of(201)));
        String wordy = newKey();
        assertThrows(InDoubtException.class, () -> once.effect("pay", wordy, REQUEST, () -> {
            throw new java.io.IOException("broken \0 off" + "\ud83d\ude00".repeat(2000), new IllegalStateException("beneath"));
        }));
        assertEquals("IOException", reason(wordy).get(1));
        assertTrue(((String) reason(wordy).get(2)).startsWith("broken ? off\ud83d\ude00"));
        assertEquals(1000, ((String) reason(wordy).get(2)).codePointCount(0, ((String) reason(wordy).get(2)).length()));
        String finalOne = newKey();
        for (int i = 0; i < 2; i++) {
            FinalFailureException failure = assertThrows(FinalFailureException.class, () -> once.effect("pay", finalOne, REQUEST, () -> {
                throw Answer.of(402).text("declined").failure("declined", "card declined");
            }));
            assertEquals(List.of("declined", "declined", "card declined", 402, i == 1), List.of(failure.answer().bodyText(), failure.errorCode(),
                failure.getMessage(), failure.status(), failure.answer().replayed()));
        }
        String unreported = newKey();
        once.claim("pay", unreported, REQUEST).close();
        assertThrows(InDoubtException.class, () -> once.claim("pay", unreported, REQUEST));
        assertEquals(List.of("in_doubt", "not_reported", "the attempt ended without a report"), reason(unreported));
    }

    private static List<Object> reason(String key) {
        return server.rows("SELECT state::text, error_code, error_message FROM once.intent WHERE key = '" + key + "'").get(0);
    }

    @Test
    void theFirstAnswerOfWorkHasTheBytesOfEachReplay() throws Exception {
        Once once = Once.over(direct);
        String key = newKey();
        Answer first = once.effect("pay", key, REQUEST, () -> Answer.of(201).json("{\"b\":1,\"a\":[1,2]}"));
        assertEquals(first.bodyText(), once.effect("pay", key, REQUEST, () -> Answer.of(500)).bodyText());
        String failed = newKey();
        List<String> told = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            told.add(assertThrows(FinalFailureException.class, () -> once.effect("pay", failed, REQUEST, () -> {
                throw Answer.of(402).json("{\"b\":1,\"a\":[1,2]}").failure("declined", null);
            })).answer().bodyText());
        }
        assertEquals(told.get(0), told.get(1));
    }

    @Test
    void workThatIsDoneIsNeverReportedAsAnythingElse() throws Exception {
        try (Server.Forwarder forwarder = server.forwarder()) {
            String key = newKey();
            DataSource lossy = Server.plain(server.url("127.0.0.1", forwarder.port()));
            AtomicInteger left = new AtomicInteger(Integer.MAX_VALUE);
            DataSource away = (DataSource) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {DataSource.class}, (proxy, method, given) -> {
                if (left.getAndDecrement() <= 0) {
                    throw new SQLException("away", "08001");
                }
                return method.invoke(lossy, given);
            });
            Once once = Once.over(away).deadline(Duration.ofSeconds(1));
            UnavailableException unknown = assertThrows(UnavailableException.class, () -> once.effect("pay", key, REQUEST, () -> {
                forwarder.lose("lose_answer", "COMMIT");
                left.set(1);
                return Answer.of(201).text("charged");
            }));
            assertTrue(unknown.outcomeUnknown());
            left.set(Integer.MAX_VALUE);
            assertEquals("charged", once.effect("pay", key, REQUEST, () -> Answer.of(500)).bodyText());
        }
    }

    @Test
    void aFailureOfWorkThatCannotBeReportedIsToldBesides() throws Exception {
        String key = newKey();
        LeaseLostException lost = assertThrows(LeaseLostException.class, () -> Once.over(direct).effect("pay", key, REQUEST, () -> {
            server.rows("UPDATE once.intent SET fence = fence + 1 WHERE key = '" + key + "'");
            throw new IllegalArgumentException("of the work");
        }));
        assertEquals("of the work", lost.getSuppressed()[0].getMessage());
    }
}
