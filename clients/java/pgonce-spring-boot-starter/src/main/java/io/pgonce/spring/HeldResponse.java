// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Answer;
import io.pgonce.http.Ending;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.springframework.http.HttpStatus;

/** An answer that is held until it is stored: its body here, its headers on the response, which can be put back. */
final class HeldResponse extends HttpServletResponseWrapper {
    static final String TOO_LARGE = "an answer of more than 64 MB cannot be held until it is stored: refer to it instead";
    private static final int HELD_MAX = 64 << 20;
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private final List<Answer.Header> before = new ArrayList<>();
    private final int statusBefore;
    private final List<String> effects = new ArrayList<>();
    private boolean cutOff;
    private ServletOutputStream stream;
    private PrintWriter writer;

    HeldResponse(HttpServletResponse response) {
        super(response);
        statusBefore = response.getStatus();
        for (String name : response.getHeaderNames()) {
            response.getHeaders(name).forEach(value -> before.add(new Answer.Header(name, value)));
        }
    }

    private HttpServletResponse real() {
        return (HttpServletResponse) getResponse();
    }

    /** As it was before the handler ran. */
    void putBack() {
        real().reset();
        real().setStatus(statusBefore);
        before.forEach(each -> real().addHeader(each.name(), each.value()));
        resetBuffer();
        effects.clear();
    }

    /** Null where it is not said, or twice. */
    String effect() {
        return effects.size() == 1 ? effects.get(0) : null;
    }

    boolean isCutOff() {
        return cutOff;
    }

    byte[] bytes() {
        if (writer != null) {
            writer.flush();
        }
        return body.toByteArray();
    }

    /** What the handler has added. */
    List<Answer.Header> added() {
        List<Answer.Header> all = new ArrayList<>();
        if (real().getContentType() != null && real().getHeaders("Content-Type").isEmpty()) {
            all.add(new Answer.Header("Content-Type", real().getContentType()));
        }
        for (String name : real().getHeaderNames()) {
            real().getHeaders(name).forEach(value -> all.add(new Answer.Header(name, value)));
        }
        before.forEach(all::remove);
        return all;
    }

    void send() throws IOException {
        byte[] bytes = bytes();
        if (bytes.length > 0 || getStatus() != HttpServletResponse.SC_NO_CONTENT) {
            real().setContentLength(bytes.length);
        }
        real().getOutputStream().write(bytes);
        real().flushBuffer();
    }

    private boolean takesEffect(String name, String value, boolean again) {
        if (Ending.HEADER.equalsIgnoreCase(name)) {
            if (!again) {
                effects.clear();
            }
            if (value != null) {
                effects.add(value);
            }
            return true;
        }
        return "Content-Length".equalsIgnoreCase(name);
    }

    @Override
    public void setHeader(String name, String value) {
        if (!takesEffect(name, value, false)) {
            super.setHeader(name, value);
        }
    }

    @Override
    public void addHeader(String name, String value) {
        if (!takesEffect(name, value, true)) {
            super.addHeader(name, value);
        }
    }

    @Override
    public void setContentLength(int length) {
        // what is sent has the length that it has
    }

    @Override
    public void setContentLengthLong(long length) {
        // what is sent has the length that it has
    }

    /** The container would make a page of its own, which no retry would get: the answer is a problem document instead. */
    @Override
    public void sendError(int status, String message) throws IOException {
        resetBuffer();
        setStatus(status);
        HttpStatus known = HttpStatus.resolve(status);
        String title = known == null ? "Error" : known.getReasonPhrase();
        setContentType("application/problem+json");
        getOutputStream().write(("{\"type\":\"about:blank\",\"title\":\"" + title + "\",\"status\":" + status + "}").getBytes(StandardCharsets.US_ASCII));
    }

    @Override
    public void sendError(int status) throws IOException {
        sendError(status, null);
    }

    @Override
    public void sendRedirect(String location) {
        resetBuffer();
        setStatus(SC_FOUND);
        setHeader("Location", location);
    }

    @Override
    public void flushBuffer() {
        // held
    }

    @Override
    public boolean isCommitted() {
        return false;
    }

    @Override
    public void resetBuffer() {
        body.reset();
        cutOff = false;
        stream = null;
        writer = null;
    }

    @Override
    public void reset() {
        resetBuffer();
        real().reset();
        effects.clear();
    }

    @Override
    public ServletOutputStream getOutputStream() {
        if (stream == null) {
            stream = new ServletOutputStream() {
                @Override
                public void write(int b) {
                    write(new byte[] {(byte) b}, 0, 1);
                }

                @Override
                public void write(byte[] bytes, int from, int length) {
                    if (body.size() > HELD_MAX - length) {
                        cutOff = true; // the handler may go on as if nothing were missing
                        throw new IllegalStateException(TOO_LARGE);
                    }
                    body.write(bytes, from, length);
                }

                @Override
                public boolean isReady() {
                    return true;
                }

                @Override
                public void setWriteListener(WriteListener listener) {
                    throw new IllegalStateException("an @Idempotent answer cannot be asynchronous");
                }
            };
        }
        return stream;
    }

    @Override
    public PrintWriter getWriter() {
        if (writer == null) {
            String encoding = getCharacterEncoding();
            writer = new PrintWriter(new OutputStreamWriter(getOutputStream(), encoding == null ? StandardCharsets.ISO_8859_1 : Charset.forName(encoding)));
        }
        return writer;
    }
}
