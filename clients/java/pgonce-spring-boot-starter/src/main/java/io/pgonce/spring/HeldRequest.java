// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.AsyncContext;
import jakarta.servlet.ReadListener;
import jakarta.servlet.ServletInputStream;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.Map;

/** A request whose body was read already; it can be read again for each run. It cannot go asynchronous. */
final class HeldRequest extends HttpServletRequestWrapper {
    private static final String ASYNCHRONOUS = "the answer of an @Idempotent method is stored in its transaction: it cannot be asynchronous or streamed "
        + "(StreamingResponseBody, SseEmitter, Callable, DeferredResult, CompletionStage)";
    private final byte[] body;
    private Map<String, String[]> parameters;

    HeldRequest(HttpServletRequest request, byte[] body) {
        super(request);
        this.body = body;
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
            if (isForm(this)) {
                for (String pair : new String(body, StandardCharsets.ISO_8859_1).split("&")) {
                    int equals = pair.indexOf('=');
                    String name = URLDecoder.decode(equals < 0 ? pair : pair.substring(0, equals), charset());
                    if (!pair.isEmpty()) {
                        String[] values = all.getOrDefault(name, new String[0]);
                        String[] more = Arrays.copyOf(values, values.length + 1);
                        more[values.length] = equals < 0 ? "" : URLDecoder.decode(pair.substring(equals + 1), charset());
                        all.put(name, more);
                    }
                }
            }
            parameters = Collections.unmodifiableMap(all);
        }
        return parameters;
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
        return false;
    }

    @Override
    public AsyncContext startAsync() {
        throw new IllegalStateException(ASYNCHRONOUS);
    }

    @Override
    public AsyncContext startAsync(ServletRequest request, ServletResponse response) {
        throw new IllegalStateException(ASYNCHRONOUS);
    }
}
