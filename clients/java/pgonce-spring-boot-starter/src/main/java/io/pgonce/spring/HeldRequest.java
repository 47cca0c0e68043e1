// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.MultipartConfigElement;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.Part;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.springframework.web.util.WebUtils;

/** A request whose body was read already; it can be read again. It cannot go asynchronous, but for a stream of events, when its effect is committed. */
final class HeldRequest extends HttpServletRequestWrapper {
    private static final String ASYNCHRONOUS = "the answer of an @Idempotent method is stored in its transaction: it cannot be asynchronous or streamed "
        + "(StreamingResponseBody, Callable, DeferredResult, CompletionStage). A method that gives events declares SseEmitter, or produces = text/event-stream";
    private final byte[] body;
    private final boolean knowsForm;
    private final boolean events;
    private final MultipartConfigElement uploads;
    private List<Part> parts;
    private Map<String, String[]> parameters;
    private HeldAsync async;

    /** knowsForm: what is wrapped has the parameters of a form already; events: it may go asynchronous; uploads: the limits of files, or null. */
    private HeldRequest(HttpServletRequest request, byte[] body, boolean knowsForm, boolean events, MultipartConfigElement uploads) {
        super(request);
        this.body = body;
        this.knowsForm = knowsForm;
        this.events = events;
        this.uploads = uploads;
    }

    /** The whole body; null where it is larger than that. Half of one is refused: it would be another request than the whole one. */
    static HeldRequest read(HttpServletRequest request, int max, boolean events, MultipartConfigElement uploads) throws IOException {
        HeldRequest early = WebUtils.getNativeRequest(request, HeldRequest.class);
        if (early != null) {
            return early.body.length > max ? null : new HeldRequest(request, early.body, true, events, uploads);
        }
        ServletInputStream in = request.getInputStream();
        boolean isOver = isOver(in) && (request.getHeader("Transfer-Encoding") != null || request.getContentLengthLong() > 0);
        byte[] body = in.readNBytes(max + 1);
        if (body.length > max) {
            return null;
        } else if (isOver || (body.length < request.getContentLengthLong() && request.getHeader("Content-Encoding") == null)) {
            throw new IllegalStateException("the body of this request was read before, as by a filter before pgonce's, or it was cut short: another request "
                + "with its key could not be told from it. Put that filter behind pgonce's");
        }
        return new HeldRequest(request, body, false, events, uploads);
    }

    /** For filters that read it before pgonce's, as getParameter does. */
    static HeldRequest early(HttpServletRequest request) throws IOException {
        return new HeldRequest(request, request.getInputStream().readAllBytes(), false, false, null);
    }

    private static boolean isOver(ServletInputStream in) {
        try {
            return in.isFinished();
        } catch (RuntimeException unknown) {
            return false; // a wrapper that does not tell
        }
    }

    byte[] body() {
        return body;
    }

    boolean isAsyncHeld() {
        return async != null;
    }

    /** The effect is committed. */
    void startHeldAsync(HeldResponse held) throws IOException {
        AsyncContext real = super.startAsync(this, held);
        held.pass();
        async.begin(real);
    }

    /** It is not. */
    void failHeldAsync(Throwable failure) {
        if (async != null) {
            async.fail(failure);
        }
    }

    @Override
    public ServletInputStream getInputStream() {
        ByteArrayInputStream in = new ByteArrayInputStream(body);
        return new ServletInputStream() {
            @Override
            public int read() {
                return in.read();
            }

            @Override
            public int read(byte[] bytes, int from, int length) {
                return in.read(bytes, from, length);
            }

            @Override
            public boolean isFinished() {
                return in.available() == 0;
            }

            @Override
            public boolean isReady() {
                return true;
            }

            @Override
            public void setReadListener(ReadListener listener) {
                throw new IllegalStateException(ASYNCHRONOUS);
            }
        };
    }

    static boolean isForm(HttpServletRequest request) {
        String type = request.getContentType();
        return type != null && type.regionMatches(true, 0, "application/x-www-form-urlencoded", 0, 33);
    }

    private Charset charset() {
        return getCharacterEncoding() == null ? StandardCharsets.UTF_8 : Charset.forName(getCharacterEncoding());
    }

    @Override
    public BufferedReader getReader() {
        return new BufferedReader(new InputStreamReader(getInputStream(), charset()));
    }

    /** The container's parameters are those of the query alone: it has no body left to read a form from. */
    @Override
    public Map<String, String[]> getParameterMap() {
        if (parameters == null) {
            Map<String, String[]> all = new LinkedHashMap<>(super.getParameterMap());
            if (isForm(this) && "POST".equals(getMethod()) && !knowsForm) {
                for (String pair : new String(body, StandardCharsets.ISO_8859_1).split("&")) {
                    addPair(all, pair);
                }
            }
            if (HeldParts.isMultipart(getContentType()) && body.length > 0) {
                addFields(all);
            }
            parameters = Collections.unmodifiableMap(all);
        }
        return parameters;
    }

    /** The parts that are no files; those of a body that is no multipart are told by getParts. */
    private void addFields(Map<String, String[]> all) {
        try {
            for (Part each : getParts()) {
                if (each.getSubmittedFileName() == null) {
                    add(all, each.getName(), new String(each.getInputStream().readAllBytes(), charset()));
                }
            }
        } catch (IOException | ServletException | IllegalStateException malformed) {
            return;
        }
    }

    /** Without a body they are those of the container, as with MockMvc. */
    @Override
    public Collection<Part> getParts() throws IOException, ServletException {
        if (body.length == 0) {
            return super.getParts();
        } else if (parts == null) {
            parts = HeldParts.of(getContentType(), body, charset(), uploads);
        }
        return parts;
    }

    @Override
    public Part getPart(String name) throws IOException, ServletException {
        if (body.length == 0) {
            return super.getPart(name);
        }
        return getParts().stream().filter(each -> each.getName().equals(name)).findFirst().orElse(null);
    }

    private static void add(Map<String, String[]> all, String name, String value) {
        String[] values = all.getOrDefault(name, new String[0]);
        String[] more = Arrays.copyOf(values, values.length + 1);
        more[values.length] = value;
        all.put(name, more);
    }

    /** What is no encoding is left out, as containers do. */
    private void addPair(Map<String, String[]> all, String pair) {
        int equals = pair.indexOf('=');
        try {
            String name = URLDecoder.decode(equals < 0 ? pair : pair.substring(0, equals), charset());
            String value = equals < 0 ? "" : URLDecoder.decode(pair.substring(equals + 1), charset());
            if (!pair.isEmpty()) {
                add(all, name, value);
            }
        } catch (IllegalArgumentException malformed) {
            return;
        }
    }

    @Override
    public String getParameter(String name) {
        String[] values = getParameterMap().get(name);
        return values == null ? null : values[0];
    }

    @Override
    public String[] getParameterValues(String name) {
        return getParameterMap().get(name);
    }

    @Override
    public Enumeration<String> getParameterNames() {
        return Collections.enumeration(getParameterMap().keySet());
    }

    @Override
    public boolean isAsyncSupported() {
        return events && super.isAsyncSupported();
    }

    @Override
    public boolean isAsyncStarted() {
        return async != null || super.isAsyncStarted();
    }

    @Override
    public AsyncContext getAsyncContext() {
        return async != null ? async : super.getAsyncContext();
    }

    @Override
    public AsyncContext startAsync() {
        throw new IllegalStateException(ASYNCHRONOUS);
    }

    @Override
    public AsyncContext startAsync(ServletRequest request, ServletResponse response) {
        if (!events) {
            throw new IllegalStateException(ASYNCHRONOUS);
        }
        async = new HeldAsync(request, response);
        return async;
    }
}
