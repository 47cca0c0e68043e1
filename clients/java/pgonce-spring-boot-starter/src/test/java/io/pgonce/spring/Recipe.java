// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Answer;
import io.pgonce.Once;
import jakarta.servlet.http.HttpServletRequest;
import java.io.IOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RestController;

/** What README.md shows under "An endpoint whose effect is at a provider", word for word: a test compares them. */
@RestController
class Recipe {
    private final HttpOnce httpOnce;
    private final HttpClient client = HttpClient.newHttpClient();
    private final URI bank;

    Recipe(HttpOnce httpOnce, @Value("${bank}") URI bank) {
        this.httpOnce = httpOnce;
        this.bank = bank;
    }

    // Begin of the recipe.
    /** Charges at most once for each Idempotency-Key of a user. */
    @PostMapping("/charges")
    ResponseEntity<byte[]> charge(HttpServletRequest request, @RequestBody byte[] order) {
        // The bank knows the key as well, and apart from that of another user.
        return httpOnce.effect("charges", request, order, key -> atTheBank(request.getRemoteUser() + "/" + key, order));
    }

    private Answer atTheBank(String key, byte[] order) throws IOException, InterruptedException {
        HttpResponse<byte[]> reply;
        try {
            reply = client.send(HttpRequest.newBuilder(bank).header("Idempotency-Key", key).POST(HttpRequest.BodyPublishers.ofByteArray(order)).build(),
                HttpResponse.BodyHandlers.ofByteArray());
        } catch (ConnectException unsent) {
            throw new Once.NothingDone("the bank cannot be reached", unsent);
        } // any other exception: sent, and no answer. Nobody knows
        int status = reply.statusCode();
        Answer answer = Answer.of(status).header("Content-Type", reply.headers().firstValue("Content-Type").orElse("text/plain")).bytes(reply.body());
        if (status < 400) {
            return answer; // charged
        } else if (reply.headers().firstValue("Retry-After").isPresent() && (status < 500 || status == 503)) {
            throw new Once.NothingDone("the bank asks for another attempt: " + status, null);
        } else if (status < 500 && status != 408) {
            throw answer.failure("refused", "the bank answered " + status); // not charged, for good
        }
        throw new IOException("the bank does not say whether it has charged: " + status);
    }
    // End of the recipe.
}
