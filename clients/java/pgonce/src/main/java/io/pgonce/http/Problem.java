// SPDX-License-Identifier: PostgreSQL
package io.pgonce.http;

import io.pgonce.InDoubtException;
import io.pgonce.MismatchException;
import io.pgonce.OnceException;
import io.pgonce.UnavailableException;
import java.nio.charset.StandardCharsets;

/**
 * The answers that a door gives itself, as problem documents (RFC 9457): the gateway's, byte for byte.
 * docs/reference/problems.md has a section for each.
 */
public enum Problem {
    // spec: problems
    /** 400: no key, and one is required. */
    KEY_MISSING(400, "key-missing", "Idempotency-Key is missing",
        "This operation needs an Idempotency-Key header. Nothing was done.", 0),
    /** 400: the header's value is not a key. */
    KEY_MALFORMED(400, "key-malformed", "Idempotency-Key is malformed",
        "Nothing was done.", 0),
    /** 400: more than one header line. */
    KEY_REPEATED(400, "key-repeated", "Idempotency-Key is sent more than once",
        "Send one Idempotency-Key header with one key. Nothing was done.", 0),
    /** 400: the tenant is missing. */
    TENANT_MISSING(400, "tenant-missing", "The request does not say whose key this is",
        "What tells callers apart (a header, a claim, a certificate) is empty. Nothing was done.", 0),
    /** 422: the key of another request. */
    MISMATCH(422, "mismatch", "Idempotency-Key is already used",
        "This key was first used with another request, whose answer is untouched. Use a new key for a new request.", 0),
    /** 409: an attempt is running. */
    ACTIVE(409, "active", "A request with this Idempotency-Key is outstanding",
        "The first request with this key is still running. Send the same request again later.", 1),
    /** 409: it is unknown whether it took effect. */
    IN_DOUBT(409, "in-doubt", "The outcome of this request is unknown",
        "An earlier attempt ended, and it is unknown whether it took effect. A retry does not run until that is known. Do not send it under a new key.", 0),
    /** 409: a key of a retired day. */
    EXPIRED(409, "expired", "Idempotency-Key is too old",
        "This key is older than the keys that are kept, so it is unknown whether it was used. Nothing was done now. Find out before you use a new key.", 0),
    /** 409: done, but its answer was too large to keep. */
    TOO_LARGE(409, "too-large", "Done, but its answer was too large to keep",
        "The request with this key was carried out, and its answer was passed on once. It will not be run again while this key is kept.", 0),
    /** 409: finished for good, with no stored HTTP answer. */
    NO_ANSWER(409, "no-answer", "Finished, without an answer to repeat",
        "The request with this key is finished, and no HTTP answer is stored for it. It will not be run again while this key is kept.", 0),
    /** 413: a request body that is too large to take a fingerprint of. */
    BODY_TOO_LARGE(413, "body-too-large", "The request body is too large",
        "A body of this size cannot be protected here. Nothing was done.", 0),
    /** 403: the tenant or the scope is refused to the door's role. */
    REFUSED(403, "refused", "The tenant or the scope is refused",
        "No key may be kept for this caller. Nothing was done.", 0),
    /** 503: the database cannot be asked. Nothing was done. */
    UNAVAILABLE(503, "unavailable", "Idempotency keys cannot be checked right now",
        "Nothing was done. Send the same request with the same key again later.", 5),
    /** 503: the effect may have happened, and its answer could not be stored. */
    NOT_STORED(503, "not-stored", "The answer could not be stored",
        "The request may have taken effect. Send it again with the same key, never with a new one, to learn its outcome.", 5),
    /** 502, or 504: what is behind the door got nothing of the request. */
    UNREACHED(502, "unreached", "The service could not be reached",
        "Nothing was done. Send the same request with the same key again later.", 5),
    /** 503: a client's middleware ended the attempt in its own transaction. */
    TIMED_OUT(503, "timed-out", "The request took too long",
        "It was stopped, and its changes were rolled back. Nothing was done. Send the same request with the same key again later.", 5);
    // end of spec

    /** The media type of a problem document. */
    public static final String TYPE = "application/problem+json";
    /** In which the instance begins; after it comes the request's id. */
    public static final String INSTANCE = "urn:pgonce:request:";
    // spec: problem-base
    private static final String BASE = "urn:pgonce:problem:";
    private static final int BASE_MAX = 256;
    private static final String BASE_REFUSED = "\"\\<>^`{|}";
    // end of spec
    private static final int DETAIL_MAX = 300;
    private static final int CAUSES_MAX = 8;

    private final int status;
    private final String slug;
    private final String title;
    private final String detail;
    private final int retryAfterS;

    Problem(int status, String slug, String title, String detail, int retryAfterS) {
        this.status = status;
        this.slug = slug;
        this.title = title;
        this.detail = detail;
        this.retryAfterS = retryAfterS;
    }

    /**
     * The status of the answer.
     *
     * @return 400 to 503
     */
    public int status() {
        return status;
    }

    /**
     * In which the type ends.
     *
     * @return for example {@code key-missing}
     */
    public String slug() {
        return slug;
    }

    /**
     * Is it worth sending the same request with the same key again, by a program and soon?
     *
     * @return after {@link #retryAfterS()}
     */
    public boolean retryable() {
        return retryAfterS > 0;
    }

    /**
     * The Retry-After header.
     *
     * @return seconds, or 0: no such header
     */
    public int retryAfterS() {
        return retryAfterS;
    }

    /**
     * The document.
     *
     * @param more one sentence more for the detail, or null
     * @param request the request's id, of letters and digits
     * @return application/problem+json
     */
    public byte[] document(String more, String request) {
        return document(BASE, more, request);
    }

    /**
     * The document, with a type that begins with a base of the application's.
     *
     * @param base checked by {@link #checkBase}
     * @param more one sentence more for the detail, or null
     * @param request the request's id, of letters and digits
     * @return application/problem+json
     */
    public byte[] document(String base, String more, String request) {
        String said = more == null || more.isEmpty() ? "" : " " + escape(more);
        return ("{\"type\":\"" + base + slug + "\",\"title\":\"" + title + "\",\"status\":" + status + ",\"detail\":\"" + detail
            + said + "\",\"instance\":\"" + INSTANCE + request + "\",\"retryable\":" + retryable() + "}").getBytes(StandardCharsets.US_ASCII);
    }

    /**
     * What may stand before the slug in a type.
     *
     * @param base the start of a URI, or null: the default
     * @return the base
     * @throws IllegalArgumentException if it would break the document
     */
    public static String checkBase(String base) {
        if (base == null) {
            return BASE;
        }
        if (base.isEmpty() || base.length() > BASE_MAX || base.chars().anyMatch(c -> c < '!' || c > '~' || BASE_REFUSED.indexOf(c) >= 0)) {
            throw new IllegalArgumentException("pgonce: the base of problem types is the start of a URI: 1 to " + BASE_MAX
                + " characters of ASCII, without spaces and " + BASE_REFUSED);
        }
        return base;
    }

    private static String escape(String text) {
        StringBuilder out = new StringBuilder();
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            char c = (char) (each & 0xff);
            String piece = c == '"' || c == '\\' ? "\\" + c : c < ' ' ? String.format("\\u%04x", (int) c) : c <= '~' ? String.valueOf(c) : "?";
            if (out.length() + piece.length() > DETAIL_MAX) {
                break;
            }
            out.append(piece);
        }
        return out.toString();
    }

    /**
     * The problem that an exception is.
     *
     * @param failure of {@link io.pgonce.Once#run}; not a final failure that has an answer
     * @return the problem, or null where it is an error of the application
     */
    public static Problem of(OnceException failure) {
        if (failure instanceof UnavailableException lost) {
            return lost.outcomeUnknown() ? NOT_STORED : UNAVAILABLE;
        }
        return switch (failure.code()) {
            // spec: error-problems
            case "scope_required", "refused" -> REFUSED;
            case "key_malformed" -> KEY_MALFORMED;
            case "mismatch" -> MISMATCH;
            case "already_finished", "final_failure" -> NO_ANSWER;
            case "active" -> ACTIVE;
            case "in_doubt" -> IN_DOUBT;
            case "expired" -> EXPIRED;
            // end of spec
            case "contract", "database", "interrupted", "unknown_state" -> UNAVAILABLE;
            default -> null;
        };
    }

    /**
     * Why there is a problem, for a log: one line, without the DETAIL of the server's, which names a key.
     *
     * @param failure and its causes
     * @return their messages
     */
    public static String reason(Throwable failure) {
        StringBuilder text = new StringBuilder();
        int left = CAUSES_MAX;
        for (Throwable each = failure; each != null && left-- > 0; each = each.getCause()) {
            String line = each.getMessage() == null ? each.getClass().getName() : each.getMessage().lines().findFirst().orElse("");
            if (text.indexOf(line) < 0) {
                text.append(text.length() == 0 ? "" : ": ").append(line);
            }
        }
        return text.toString();
    }

    /**
     * What the problem alone does not tell.
     *
     * @param failure of {@link io.pgonce.Once#run}
     * @param contentType of the request, or null
     * @return one sentence, or null
     */
    public static String more(OnceException failure, String contentType) {
        if (failure instanceof MismatchException && contentType != null && contentType.regionMatches(true, 0, "multipart/", 0, 10)) {
            return "A multipart body that is built again has a new boundary, so it is another request: send the same bytes as the first time.";
        } else if (failure instanceof InDoubtException doubt && doubt.answeredStatus() > 0) {
            return "The service answered " + doubt.answeredStatus() + ", which does not say whether the effect happened.";
        }
        return "key_malformed".equals(failure.code()) ? failure.getMessage() : null;
    }
}
