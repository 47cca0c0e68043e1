// SPDX-License-Identifier: PostgreSQL
package transparency;

import io.pgonce.spring.Idempotent;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.core.io.FileSystemResource;
import org.springframework.core.io.Resource;
import org.springframework.http.ContentDisposition;
import org.springframework.http.HttpHeaders;
import org.springframework.http.HttpStatus;
import org.springframework.http.MediaType;
import org.springframework.http.ResponseCookie;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.PutMapping;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.ResponseStatus;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.servlet.ModelAndView;
import org.springframework.web.servlet.View;
import org.springframework.web.servlet.view.RedirectView;

/** Answers of all kinds. */
@RestController
@Idempotent("transparency")
class Answers {
    static final Order ORDER = new Order(7, "Zoë ☃ 😀", "a/b <c> & \"d\"", 12.50);
    static final String TEXT = "text/plain;charset=utf-8";
    private static final int PIECE = 65536;
    private static final View PAGE = new View() {
        @Override
        public String getContentType() {
            return "text/html;charset=utf-8";
        }

        @Override
        public void render(Map<String, ?> model, HttpServletRequest request, HttpServletResponse response) throws IOException {
            response.setContentType(getContentType());
            response.getWriter().write("<p>" + model.get("name") + "</p>");
        }
    };

    private final Effects effects;
    private final Resource report;

    Answers(Effects effects, @Value("${FILES}") Path files) {
        this.effects = effects;
        this.report = new FileSystemResource(files.resolve("report.txt"));
    }

    /** As JSON. */
    record Order(int order, String name, String note, double amount) {
    }

    @PostMapping("/json")
    @ResponseStatus(HttpStatus.CREATED)
    Order json() {
        effects.insert("json");
        return ORDER;
    }

    @PostMapping(path = "/text", produces = TEXT)
    String text() {
        effects.insert("text");
        return "Grüße, 世界\n";
    }

    @PostMapping("/empty")
    void empty() {
        effects.insert("empty");
    }

    @PostMapping("/no-content")
    ResponseEntity<Void> noContent() {
        effects.insert("no-content");
        return ResponseEntity.noContent().build();
    }

    @PostMapping("/reset-content")
    @ResponseStatus(HttpStatus.RESET_CONTENT)
    void resetContent() {
        effects.insert("reset-content");
    }

    @PostMapping("/large")
    void large(@RequestParam int bytes, HttpServletResponse response) throws IOException {
        effects.insert("large");
        response.setContentType(MediaType.APPLICATION_OCTET_STREAM_VALUE);
        response.setContentLength(bytes);
        byte[] piece = "0123456789abcdef".repeat(PIECE / 16).getBytes(StandardCharsets.US_ASCII);
        for (int left = bytes; left > 0; left -= PIECE) {
            response.getOutputStream().write(piece, 0, Math.min(left, PIECE));
        }
    }

    @PostMapping("/stream-bytes")
    void streamBytes(HttpServletResponse response) throws IOException {
        effects.insert("stream-bytes");
        response.setContentType(MediaType.APPLICATION_OCTET_STREAM_VALUE);
        for (int i = 0; i < 5; i++) {
            byte[] piece = new byte[1000];
            Arrays.fill(piece, (byte) (250 + i));
            response.getOutputStream().write(piece);
            response.getOutputStream().flush();
        }
    }

    @PostMapping("/stream-text")
    void streamText(HttpServletResponse response) throws IOException {
        effects.insert("stream-text");
        response.setContentType(TEXT);
        PrintWriter writer = response.getWriter();
        for (String line : List.of("eins ä\n", "zwei ☃\n", "drei 😀\n")) {
            writer.write(line);
            writer.flush();
        }
    }

    @PostMapping("/async")
    Object async() {
        effects.insert("async");
        return (Callable<String>) () -> "async"; // where the method's type says so, the application does not start
    }

    @PostMapping("/file")
    Resource file() {
        effects.insert("file");
        return report;
    }

    @PostMapping("/download")
    ResponseEntity<Resource> download() {
        effects.insert("download");
        ContentDisposition attachment = ContentDisposition.attachment().filename("rapport é.txt", StandardCharsets.UTF_8).build();
        return ResponseEntity.ok().header(HttpHeaders.CONTENT_DISPOSITION, attachment.toString()).body(report);
    }

    private static RedirectView redirected(HttpStatus status) {
        RedirectView view = new RedirectView("/json");
        view.setStatusCode(status);
        return view;
    }

    @PostMapping("/redirect")
    RedirectView redirect() {
        effects.insert("redirect");
        return redirected(HttpStatus.SEE_OTHER);
    }

    @PostMapping("/redirect-307")
    RedirectView redirect307() {
        effects.insert("redirect-307");
        return redirected(HttpStatus.TEMPORARY_REDIRECT);
    }

    @PostMapping("/moved")
    void moved(HttpServletResponse response) throws IOException {
        effects.insert("moved");
        response.setHeader("X-Before", "one");
        response.sendRedirect("/json");
        response.setHeader("X-After", String.valueOf(response.getHeader("Location")));
    }

    @PostMapping("/cookies")
    ResponseEntity<String> cookies(HttpServletResponse response) {
        effects.insert("cookies");
        Cookie first = new Cookie("a", "1");
        first.setPath("/");
        first.setHttpOnly(true);
        response.addCookie(first);
        return ResponseEntity.ok().header(HttpHeaders.SET_COOKIE, ResponseCookie.from("b", "2").path("/").sameSite("Lax").build().toString()).body("cookies");
    }

    @PostMapping("/repeated")
    ResponseEntity<String> repeated() {
        effects.insert("repeated");
        return ResponseEntity.ok().header("Link", "</a>; rel=next", "</b>; rel=last").header("X-Part", "one", "two").header("Vary", "Origin", "Accept")
            .header("Cache-Control", "no-store").body("repeated");
    }

    @PostMapping("/odd")
    ResponseEntity<String> odd() {
        effects.insert("odd");
        return ResponseEntity.ok().header("X-Odd", "café").header("X-Empty", "").header("X-Long", "x".repeat(4000)).header("X-Spaced", "a  b\tc").body("odd");
    }

    @PostMapping("/close")
    ResponseEntity<String> close() {
        effects.insert("close");
        return ResponseEntity.ok().header("Connection", "close").body("close");
    }

    @PostMapping("/trailers")
    void trailers(HttpServletResponse response) throws IOException {
        effects.insert("trailers");
        response.setContentType("text/plain");
        response.setHeader("Trailer", "X-Checksum");
        response.setTrailerFields(() -> Map.of("X-Checksum", "42"));
        response.getWriter().write("with trailers");
        response.flushBuffer();
    }

    @PostMapping(path = "/compressed", produces = TEXT)
    String compressed() {
        effects.insert("compressed");
        return "compress me, please. ".repeat(200);
    }

    @PostMapping("/view")
    ModelAndView view() {
        effects.insert("view");
        return new ModelAndView(PAGE, "name", "Zoë");
    }

    @PostMapping("/forwarded")
    ModelAndView forwarded() {
        return new ModelAndView("forward:/text");
    }

    @PostMapping("/locale")
    void locale(HttpServletResponse response) throws IOException {
        effects.insert("locale");
        response.setLocale(Locale.GERMAN);
        response.setContentType(TEXT);
        response.getWriter().write("locale");
    }

    @PostMapping("/measured")
    void measured(HttpServletResponse response) throws IOException {
        effects.insert("measured");
        response.setContentLength(4);
        response.getWriter().write(String.valueOf(response.containsHeader("Content-Length")));
    }

    @PostMapping("/etag")
    String etag() {
        effects.insert("etag");
        return "etag";
    }

    @PutMapping("/replaced")
    String replaced() {
        effects.insert("replaced");
        return "replaced";
    }
}
