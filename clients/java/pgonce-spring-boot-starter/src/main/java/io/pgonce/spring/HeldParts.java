// SPDX-License-Identifier: PostgreSQL
package io.pgonce.spring;

import jakarta.servlet.MultipartConfigElement;
import jakarta.servlet.http.Part;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import org.springframework.http.ContentDisposition;
import org.springframework.http.InvalidMediaTypeException;
import org.springframework.http.MediaType;

/** The parts of a multipart body that was read already (RFC 7578): the container has nothing left to take apart. */
final class HeldParts {
    private static final byte[] HEAD_END = {'\r', '\n', '\r', '\n'};
    private final byte[] body;
    private final Charset charset;

    private HeldParts(byte[] body, Charset charset) {
        this.body = body;
        this.charset = charset;
    }

    static boolean isMultipart(String contentType) {
        return contentType != null && contentType.regionMatches(true, 0, "multipart/form-data", 0, 19);
    }

    /** limits null: none. */
    static List<Part> of(String contentType, byte[] body, Charset charset, MultipartConfigElement limits) throws IOException {
        String boundary;
        try {
            boundary = MediaType.parseMediaType(contentType).getParameter("boundary");
        } catch (InvalidMediaTypeException malformed) {
            boundary = null;
        }
        if (boundary == null) {
            throw new IOException("the request was rejected because no multipart boundary was found");
        }
        if (limits != null && limits.getMaxRequestSize() >= 0 && body.length > limits.getMaxRequestSize()) {
            throw new IllegalStateException("the request exceeds its maximum permitted size of " + limits.getMaxRequestSize() + " bytes");
        }
        String bare = boundary.startsWith("\"") && boundary.endsWith("\"") && boundary.length() > 1 ? boundary.substring(1, boundary.length() - 1) : boundary;
        List<Part> parts = new HeldParts(body, charset).take(("\r\n--" + bare).getBytes(StandardCharsets.ISO_8859_1));
        for (Part each : parts) {
            if (limits != null && limits.getMaxFileSize() >= 0 && each.getSubmittedFileName() != null && each.getSize() > limits.getMaxFileSize()) {
                throw new IllegalStateException("the field " + each.getName() + " exceeds its maximum permitted size of " + limits.getMaxFileSize() + " bytes");
            }
        }
        return parts;
    }

    private List<Part> take(byte[] delimiter) throws IOException {
        List<Part> parts = new ArrayList<>();
        byte[] first = Arrays.copyOfRange(delimiter, 2, delimiter.length);
        int at = Arrays.equals(body, 0, Math.min(first.length, body.length), first, 0, first.length) ? first.length : after(delimiter, 0);
        while (at >= 0 && !(at + 1 < body.length && body[at] == '-' && body[at + 1] == '-')) {
            int head = find(new byte[] {'\r', '\n'}, at);
            int text = head < 0 ? -1 : find(HEAD_END, head);
            int end = text < 0 ? -1 : find(delimiter, text + 2);
            if (end < 0) {
                at = -1;
            } else {
                int from = Math.min(text + HEAD_END.length, end);
                Held part = new Held(new String(body, head + 2, Math.max(0, text - head - 2), charset), Arrays.copyOfRange(body, from, end));
                if (part.getName() != null) {
                    parts.add(part);
                }
                at = end + delimiter.length;
            }
        }
        if (at < 0) {
            throw new IOException("Stream ended unexpectedly");
        }
        return parts;
    }

    private int after(byte[] wanted, int from) {
        int found = find(wanted, from);
        return found < 0 ? -1 : found + wanted.length;
    }

    private int find(byte[] wanted, int from) {
        for (int at = from; at <= body.length - wanted.length; at++) {
            if (body[at] == wanted[0] && Arrays.equals(body, at, at + wanted.length, wanted, 0, wanted.length)) {
                return at;
            }
        }
        return -1;
    }

    /** One. */
    private static final class Held implements Part {
        private final List<String[]> headers = new ArrayList<>();
        private final byte[] content;
        private final ContentDisposition disposition;

        Held(String head, byte[] content) {
            this.content = content;
            for (String line : head.replaceAll("\r\n[ \t]+", " ").split("\r\n")) {
                int colon = line.indexOf(':');
                if (colon > 0) {
                    headers.add(new String[] {line.substring(0, colon).strip(), line.substring(colon + 1).strip()});
                }
            }
            disposition = parsed(getHeader("Content-Disposition"));
        }

        private static ContentDisposition parsed(String header) {
            try {
                return header == null ? ContentDisposition.empty() : ContentDisposition.parse(header);
            } catch (IllegalArgumentException malformed) {
                return ContentDisposition.empty();
            }
        }

        @Override
        public InputStream getInputStream() {
            return new ByteArrayInputStream(content);
        }

        @Override
        public String getContentType() {
            return getHeader("Content-Type");
        }

        @Override
        public String getName() {
            return disposition.getName();
        }

        @Override
        public String getSubmittedFileName() {
            return disposition.getFilename();
        }

        @Override
        public long getSize() {
            return content.length;
        }

        @Override
        public void write(String file) throws IOException {
            Files.write(Path.of(file), content);
        }

        @Override
        public void delete() {
            // it is in memory
        }

        @Override
        public String getHeader(String name) {
            return headers.stream().filter(each -> each[0].equalsIgnoreCase(name)).map(each -> each[1]).findFirst().orElse(null);
        }

        @Override
        public Collection<String> getHeaders(String name) {
            return headers.stream().filter(each -> each[0].equalsIgnoreCase(name)).map(each -> each[1]).toList();
        }

        @Override
        public Collection<String> getHeaderNames() {
            return headers.stream().map(each -> each[0]).distinct().toList();
        }
    }
}
