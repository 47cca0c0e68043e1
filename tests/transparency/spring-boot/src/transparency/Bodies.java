// SPDX-License-Identifier: PostgreSQL
package transparency;

import com.fasterxml.jackson.databind.JsonNode;
import io.pgonce.spring.Idempotent;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.validation.Valid;
import jakarta.validation.constraints.NotNull;
import java.io.IOException;
import java.io.InputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseEntity;
import org.springframework.util.MultiValueMap;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.multipart.MultipartFile;

/** Requests of all kinds. */
@RestController
@Idempotent("transparency")
class Bodies {
    private final Effects effects;

    Bodies(Effects effects) {
        this.effects = effects;
    }

    @PostMapping(path = "/form", produces = MediaType.APPLICATION_JSON_VALUE)
    MultiValueMap<String, String> form(@RequestParam MultiValueMap<String, String> fields) {
        effects.insert("form");
        return fields;
    }

    @PostMapping("/read-outside")
    Map<String, String> readOutside(@RequestParam String amount) {
        effects.insert("read-outside");
        return Map.of("amount", amount);
    }

    /** What came of a multipart body. */
    record Upload(Map<String, String> fields, List<List<Object>> files) {
    }

    @PostMapping("/upload")
    Upload upload(@RequestParam String note, @RequestParam List<MultipartFile> photo) throws IOException {
        effects.insert("upload");
        List<List<Object>> files = new ArrayList<>();
        for (MultipartFile each : photo) {
            files.add(List.of(each.getName(), Objects.requireNonNull(each.getOriginalFilename()), Objects.requireNonNull(each.getContentType()), each.getSize(),
                hex(sha256().digest(each.getBytes()))));
        }
        return new Upload(Map.of("note", note), files);
    }

    @PostMapping("/body")
    Map<String, JsonNode> body(@RequestBody JsonNode got) {
        effects.insert("body");
        return Map.of("got", got);
    }

    /** A body of JSON. */
    record Amount(@NotNull Integer amount) {
    }

    @PostMapping("/valid")
    Amount valid(@Valid @RequestBody Amount body) {
        effects.insert("valid");
        return body;
    }

    @PostMapping("/echo")
    ResponseEntity<byte[]> echo(InputStream body, HttpServletRequest request) throws IOException {
        effects.insert("echo");
        return ResponseEntity.ok().contentType(MediaType.APPLICATION_OCTET_STREAM).header("X-Type", Objects.requireNonNullElse(request.getHeader("Content-Type"), ""))
            .header("X-Encoding", Objects.requireNonNullElse(request.getHeader("Content-Encoding"), "")).body(body.readAllBytes());
    }

    /** Of a body. */
    record Digest(int size, String sha256) {
    }

    @PostMapping("/digest")
    Digest digest(InputStream body) throws IOException {
        effects.insert("digest");
        MessageDigest digest = sha256();
        byte[] piece = new byte[8192];
        int size = 0;
        for (int read = body.read(piece); read >= 0; read = body.read(piece)) {
            digest.update(piece, 0, read);
            size += read;
        }
        return new Digest(size, hex(digest.digest()));
    }

    /** What a handler sees. */
    record Seen(String method, String target, String host, List<String> accept, List<String> a, boolean client) {
    }

    @PostMapping("/request")
    Seen request(HttpServletRequest request) {
        effects.insert("request");
        return new Seen(request.getMethod(), request.getRequestURI() + "?" + request.getQueryString(), request.getHeader("Host"),
            Collections.list(request.getHeaders("Accept")), List.of(request.getParameterValues("a")), request.getRemoteAddr() != null);
    }

    @PostMapping("/unread")
    String unread() {
        effects.insert("unread");
        return "unread";
    }

    @PostMapping("/cached")
    String cached(@RequestBody String body) {
        effects.insert("cached");
        return body;
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException never) {
            throw new IllegalStateException(never);
        }
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }
}
