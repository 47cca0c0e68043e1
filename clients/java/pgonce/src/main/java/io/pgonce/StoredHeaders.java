// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Headers as the contract stores them, a JSON object that keeps order, repetition and bytes; lib/http/headers.c writes
 * the same: {"h": [["Content-Type", "text/plain"], ["X-Name", null, "636166e9"]]}. The flat form that hand-written SQL
 * stores is read too: {"Content-Type": "text/plain", "Link": ["a", "b"]}.
 */
final class StoredHeaders {
    private static final String NO_TOKEN = "\"(),/:;<=>?@[\\]{}";
    private static final int HEADERS_MAX = 1024;

    private StoredHeaders() {
    }

    static String write(List<Answer.Header> headers) {
        if (headers.isEmpty()) {
            return null;
        }
        StringBuilder out = new StringBuilder("{\"h\": [");
        String before = "";
        for (Answer.Header header : headers) {
            if (!sendable(header)) {
                throw new IllegalArgumentException("a header's name must be a token, and its value must have no line end");
            }
            out.append(before).append('[');
            quote(out, header.name());
            out.append(", ");
            if (header.value().chars().allMatch(c -> (c >= ' ' && c <= '~') || c == '\t')) {
                quote(out, header.value());
            } else {
                out.append("null, \"");
                for (byte each : header.value().getBytes(StandardCharsets.ISO_8859_1)) {
                    out.append(String.format("%02x", each));
                }
                out.append('"');
            }
            out.append(']');
            before = ", ";
        }
        return out.append("]}").toString();
    }

    private static boolean sendable(Answer.Header header) {
        return !header.name().isEmpty() && header.name().chars().allMatch(c -> c > ' ' && c <= '~' && NO_TOKEN.indexOf(c) < 0)
            && header.value().chars().noneMatch(c -> c == 0 || c == '\r' || c == '\n' || c > 0xff);
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    /** Null where the text is of neither form, or names what cannot be sent as a header: send nothing of it. */
    static List<Answer.Header> read(String json) {
        if (json == null) {
            return List.of();
        }
        try {
            Reader in = new Reader(json);
            in.document();
            return in.headers.size() <= HEADERS_MAX && in.headers.stream().allMatch(StoredHeaders::sendable)
                ? List.copyOf(in.headers) : null;
        } catch (IllegalArgumentException | StringIndexOutOfBoundsException malformed) {
            return null;
        }
    }

    /** Reads what PostgreSQL writes as jsonb, so what is JSON at all is well formed. */
    private static final class Reader {
        private final String text;
        private int at;
        private final List<Answer.Header> headers = new ArrayList<>();

        Reader(String text) {
            this.text = text;
        }

        private boolean take(char wanted) {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            if (at < text.length() && text.charAt(at) == wanted) {
                at++;
                return true;
            }
            return false;
        }

        private void need(char wanted) {
            if (!take(wanted)) {
                throw new IllegalArgumentException();
            }
        }

        private String string() {
            need('"');
            StringBuilder out = new StringBuilder();
            for (char c = text.charAt(at++); c != '"'; c = text.charAt(at++)) {
                if (c == '\\') {
                    c = text.charAt(at++);
                    switch (c) {
                        case 'b' -> c = '\b';
                        case 'f' -> c = '\f';
                        case 'n' -> c = '\n';
                        case 'r' -> c = '\r';
                        case 't' -> c = '\t';
                        case 'u' -> {
                            c = (char) Integer.parseInt(text.substring(at, at + 4), 16);
                            at += 4;
                        }
                        default -> { }
                    }
                }
                out.append(c);
            }
            return out.toString();
        }

        private boolean takeNull() {
            take('\0');
            if (text.startsWith("null", at)) {
                at += 4;
                return true;
            }
            return false;
        }

        /** Text as its UTF-8, one character for each byte, as header values are in Java. */
        private static String bytes(String value) {
            return new String(value.getBytes(StandardCharsets.UTF_8), StandardCharsets.ISO_8859_1);
        }

        private String value() {
            take('\0');
            int start = at;
            while ("-.0123456789".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
            return at > start ? text.substring(start, at) : bytes(string());
        }

        private String hex() {
            String digits = string();
            StringBuilder out = new StringBuilder();
            for (int i = 0; i < digits.length(); i += 2) {
                out.append((char) Integer.parseInt(digits.substring(i, i + 2), 16));
            }
            return out.toString();
        }

        private void pairs() {
            do {
                need('[');
                String name = string();
                need(',');
                if (takeNull()) {
                    need(',');
                    headers.add(new Answer.Header(name, hex()));
                } else {
                    headers.add(new Answer.Header(name, bytes(string())));
                }
                need(']');
            } while (take(','));
            need(']');
        }

        private void values(String name) {
            if (takeNull()) {
                return;
            }
            if (!take('[')) {
                headers.add(new Answer.Header(name, value()));
                return;
            }
            if (take(']')) {
                return;
            }
            do {
                headers.add(new Answer.Header(name, value()));
            } while (take(','));
            need(']');
        }

        void document() {
            need('{');
            if (take('}')) {
                return;
            }
            do {
                String name = string();
                need(':');
                int before = at;
                if ("h".equals(name) && take('[') && (take('[') || take(']'))) {
                    at = before;
                    need('[');
                    if (!take(']')) {
                        pairs();
                    }
                } else {
                    at = before;
                    values(name);
                }
            } while (take(','));
            need('}');
        }
    }
}
