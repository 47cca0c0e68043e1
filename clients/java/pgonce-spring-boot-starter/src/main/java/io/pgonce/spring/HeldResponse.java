// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import io.pgonce.Answer;
import io.pgonce.http.Ending;
import jakarta.servlet.ServletOutputStream;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.ServletResponseWrapper;
import jakarta.servlet.WriteListener;
import jakarta.servlet.http.Cookie;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.HttpServletResponseWrapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * An answer that is held until it is stored: its body here, its headers on the response, which can be put back. To the handler it is as the
 * container's own: after a flush it is committed, and a status that was sent as an error ends it.
 */
final class HeldResponse extends HttpServletResponseWrapper {
    private static final String LOCATION = "Location";
    static final String TOO_LARGE = "an answer of more than 64 MB cannot be held until it is stored: refer to it instead";
    private static final int HELD_MAX = 64 << 20;
    private final ByteArrayOutputStream body = new ByteArrayOutputStream();
    private final List<Answer.Header> before = new ArrayList<>();
    private final int statusBefore;
    private final String typeBefore;
    private final List<String> effects = new ArrayList<>();
    private final Redirects redirects;
    private long declared = -1;
    private boolean committed;
    private boolean ended;
    private boolean cutOff;
    private int errorStatus;
    private String errorMessage;
    /** What setLocale was told, or null. */
    private Locale language;
    /** Where sendRedirect was told to, or null. The container is told when it is sent, since layers outside add headers before that. */
    private String place;
    private ServletOutputStream stream;
    private PrintWriter writer;
    /** What the writer has buffered is fetched, which commits nothing. */
    private boolean fetching;
    /** Null: it is held. */
    private ServletOutputStream passing;

    /** What the container makes of a place that a handler redirects to, and leaves as it is if it is told again; null: that is not known. */
    @FunctionalInterface
    interface Redirects {
        String place(String said);
    }

    HeldResponse(HttpServletResponse response, Redirects redirects) {
        super(response);
        this.redirects = redirects;
        statusBefore = response.getStatus();
        typeBefore = response.getContentType();
        before.addAll(headers(response));
    }

    private HttpServletResponse real() {
        return (HttpServletResponse) getResponse();
    }

    /** In their order; a container names a header once for each of its values, or once. */
    private static List<Answer.Header> headers(HttpServletResponse response) {
        List<Answer.Header> all = new ArrayList<>();
        Collection<String> names = response.getHeaderNames();
        Map<String, Integer> told = new HashMap<>();
        boolean repeats = new LinkedHashSet<>(names.stream().map(name -> name.toLowerCase(Locale.ROOT)).toList()).size() < names.size();
        for (String name : names) {
            List<String> values = List.copyOf(response.getHeaders(name));
            int nth = told.merge(name.toLowerCase(Locale.ROOT), 1, Integer::sum) - 1;
            if (repeats && nth < values.size()) {
                all.add(new Answer.Header(name, values.get(nth)));
            } else if (!repeats) {
                values.forEach(value -> all.add(new Answer.Header(name, value)));
            }
        }
        return all;
    }

    /** As it was before the handler ran. */
    synchronized void putBack() {
        real().reset();
        real().setStatus(statusBefore);
        before.forEach(each -> real().addHeader(each.name(), each.value()));
        if (typeBefore != null) {
            real().setContentType(typeBefore);
        }
        clear();
        effects.clear();
    }

    /** From here on nothing that the handler does to it has an effect: somebody else answers. */
    synchronized void abandon() {
        putBack();
        ended = true;
        setResponse(Nowhere.response());
    }

    private void clear() {
        body.reset();
        cutOff = false;
        committed = false;
        ended = false;
        declared = -1;
        errorStatus = 0;
        errorMessage = null;
        language = null;
        place = null;
        stream = null;
        writer = null;
    }

    /** Null where it is not said, or twice. */
    String effect() {
        return effects.size() == 1 ? effects.get(0) : null;
    }

    /** Throws where what the handler wrote is not a whole answer. */
    synchronized void refuseHalf() {
        fetch();
        if (cutOff) {
            throw new IllegalStateException(TOO_LARGE);
        } else if (declared >= 0 && declared != body.size() && real().getStatus() != SC_NOT_MODIFIED && real().getStatus() != SC_NO_CONTENT) {
            throw new IllegalStateException("the answer has " + body.size() + " bytes and declared " + declared + ": half an answer is not stored");
        }
    }

    /** What sendError was told, or 0. */
    int errorStatus() {
        return errorStatus;
    }

    String errorMessage() {
        return errorMessage;
    }

    /** Opens it again, for a page about the error. */
    synchronized void openForError() {
        int status = errorStatus;
        clear();
        real().setStatus(status);
    }

    synchronized byte[] bytes() {
        fetch();
        return body.toByteArray();
    }

    private void fetch() {
        if (writer != null) {
            fetching = true;
            writer.flush();
            fetching = false;
        }
    }

    /** What the handler has added. */
    List<Answer.Header> added() {
        List<Answer.Header> all = headers(real());
        if (real().getContentType() != null && real().getHeaders("Content-Type").isEmpty()) {
            all.add(0, new Answer.Header("Content-Type", real().getContentType()));
        }
        if (language != null && real().getHeaders("Content-Language").isEmpty()) {
            all.add(new Answer.Header("Content-Language", language.toLanguageTag())); // Tomcat makes it when it sends the rest
        }
        if (place != null) {
            all.removeIf(each -> LOCATION.equalsIgnoreCase(each.name()));
            all.add(new Answer.Header(LOCATION, place));
        }
        before.forEach(all::remove);
        return all;
    }

    /** As the handler gave it. */
    synchronized void send() throws IOException {
        if (errorStatus > 0) {
            real().sendError(errorStatus, errorMessage);
            return;
        }
        byte[] bytes = bytes();
        boolean flushed = committed;
        if (declared >= 0) {
            real().setContentLengthLong(declared);
        } else if (flushed) {
            real().flushBuffer(); // its length was not known when it was
        }
        if (place != null) {
            real().sendRedirect(place);
            return;
        }
        if (bytes.length > 0) {
            real().getOutputStream().write(bytes);
        }
        if (flushed) {
            real().flushBuffer();
        }
    }

    /** Sends the held bytes, and passes on later ones at once: a stream, whose effect is committed. */
    synchronized void pass() throws IOException {
        if (place != null) {
            real().sendRedirect(place);
        }
        real().flushBuffer();
        ServletOutputStream out = real().getOutputStream();
        out.write(bytes());
        out.flush();
        body.reset();
        committed = true;
        passing = out;
    }

    private synchronized void change(Runnable change) {
        if (!committed && !ended) {
            change.run();
        }
    }

    private void header(String name, String value, boolean again, Runnable change) {
        change(() -> {
            if (Ending.HEADER.equalsIgnoreCase(name)) {
                if (!again) {
                    effects.clear();
                }
                if (value != null) {
                    effects.add(value);
                }
            } else if ("Content-Length".equalsIgnoreCase(name)) {
                declared = value == null ? -1 : Long.parseLong(value.strip());
            } else {
                change.run();
            }
        });
    }

    @Override
    public void setHeader(String name, String value) {
        header(name, value, false, () -> super.setHeader(name, value));
    }

    @Override
    public void addHeader(String name, String value) {
        header(name, value, true, () -> super.addHeader(name, value));
    }

    @Override
    public void setIntHeader(String name, int value) {
        header(name, String.valueOf(value), false, () -> super.setIntHeader(name, value));
    }

    @Override
    public void addIntHeader(String name, int value) {
        header(name, String.valueOf(value), true, () -> super.addIntHeader(name, value));
    }

    @Override
    public void setDateHeader(String name, long date) {
        change(() -> super.setDateHeader(name, date));
    }

    @Override
    public void addDateHeader(String name, long date) {
        change(() -> super.addDateHeader(name, date));
    }

    @Override
    public void addCookie(Cookie cookie) {
        change(() -> super.addCookie(cookie));
    }

    @Override
    public void setContentType(String type) {
        change(() -> super.setContentType(type));
    }

    @Override
    public void setCharacterEncoding(String charset) {
        change(() -> super.setCharacterEncoding(charset));
    }

    @Override
    public void setLocale(Locale locale) {
        change(() -> {
            super.setLocale(locale);
            language = locale;
        });
    }

    @Override
    public void setStatus(int status) {
        change(() -> super.setStatus(status));
    }

    @Override
    public boolean containsHeader(String name) {
        return "Content-Length".equalsIgnoreCase(name) ? declared >= 0 : isPlace(name) || super.containsHeader(name);
    }

    @Override
    public void setContentLength(int length) {
        setContentLengthLong(length);
    }

    @Override
    public void setContentLengthLong(long length) {
        change(() -> declared = length);
    }

    /** The page about it is the container's, and a stored one is made before COMMIT: see {@link ErrorPage}. */
    @Override
    public synchronized void sendError(int status, String message) {
        resetBuffer();
        setStatus(status);
        errorStatus = status;
        errorMessage = message;
        ended = true;
    }

    @Override
    public void sendError(int status) {
        sendError(status, null);
    }

    @Override
    public synchronized void sendRedirect(String location) {
        resetBuffer();
        setStatus(SC_FOUND);
        String known = answersRedirects() ? null : redirects.place(location);
        if (known == null) {
            setHeader(LOCATION, location);
        } else {
            place = known;
        }
        ended = true;
    }

    /** Spring's RelativeRedirectFilter is outside, which gives another status than the one that is stored. */
    private boolean answersRedirects() {
        ServletResponse each = getResponse();
        while (each instanceof ServletResponseWrapper wrapper && !"RelativeRedirectResponseWrapper".equals(each.getClass().getSimpleName())) {
            each = wrapper.getResponse();
        }
        return each instanceof ServletResponseWrapper;
    }

    private boolean isPlace(String name) {
        return place != null && LOCATION.equalsIgnoreCase(name);
    }

    @Override
    public String getHeader(String name) {
        return isPlace(name) ? place : super.getHeader(name);
    }

    @Override
    public Collection<String> getHeaders(String name) {
        return isPlace(name) ? List.of(place) : super.getHeaders(name);
    }

    @Override
    public Collection<String> getHeaderNames() {
        List<String> names = new ArrayList<>(super.getHeaderNames());
        if (place != null && !super.containsHeader(LOCATION)) {
            names.add(LOCATION);
        }
        return names;
    }

    @Override
    public synchronized void flushBuffer() throws IOException {
        fetch();
        flushed();
    }

    private void flushed() throws IOException {
        if (passing != null) {
            passing.flush();
        } else if (!ended) {
            committed = true;
        }
    }

    @Override
    public boolean isCommitted() {
        return committed || ended;
    }

    @Override
    public synchronized void resetBuffer() {
        if (isCommitted()) {
            throw new IllegalStateException("the answer is committed");
        }
        fetch();
        body.reset();
        cutOff = false;
    }

    @Override
    public synchronized void reset() {
        resetBuffer();
        clear();
        real().reset();
        effects.clear();
    }

    private synchronized void write(byte[] bytes, int from, int length) throws IOException {
        if (passing != null) {
            passing.write(bytes, from, length);
        } else if (!ended) {
            if (body.size() > HELD_MAX - length) {
                cutOff = true; // the handler may go on as if nothing were missing
                throw new IllegalStateException(TOO_LARGE);
            }
            body.write(bytes, from, length);
            committed |= body.size() > getBufferSize();
        }
    }

    @Override
    public synchronized ServletOutputStream getOutputStream() {
        if (writer != null) {
            throw new IllegalStateException("getWriter() has been called for this answer");
        }
        if (stream == null) {
            stream = new Out();
        }
        return stream;
    }

    @Override
    public synchronized PrintWriter getWriter() {
        if (writer == null) {
            if (stream != null) {
                throw new IllegalStateException("getOutputStream() has been called for this answer");
            }
            String encoding = getCharacterEncoding() == null ? StandardCharsets.ISO_8859_1.name() : getCharacterEncoding();
            setCharacterEncoding(encoding); // as containers do: it is said from here on
            writer = new PrintWriter(new OutputStreamWriter(new Out(), Charset.forName(encoding)));
        }
        return writer;
    }

    /** What the handler writes to. */
    private final class Out extends ServletOutputStream {
        @Override
        public void write(int b) throws IOException {
            write(new byte[] {(byte) b}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int from, int length) throws IOException {
            HeldResponse.this.write(bytes, from, length);
        }

        @Override
        public void flush() throws IOException {
            if (!fetching) {
                flushed();
            }
        }

        @Override
        public boolean isReady() {
            return true;
        }

        @Override
        public void setWriteListener(WriteListener listener) {
            throw new IllegalStateException("an @Idempotent answer cannot be asynchronous");
        }
    }
}
