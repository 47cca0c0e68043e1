// SPDX-License-Identifier: PostgreSQL
package io.pgonce;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

/**
 * The answer of an intent: what the effect gave, and what every later attempt gets. Immutable; each method that sets
 * something returns another one. Text stays text: a String goes to {@code response_text} or {@code response_json}, and
 * only bytes go to {@code response_body}.
 */
public final class Answer {
    /**
     * A header of an answer.
     *
     * @param name as it was given
     * @param value one character for each byte
     */
    public record Header(String name, String value) {
        /**
         * Checks that there are both.
         *
         * @param name as it was given
         * @param value one character for each byte
         */
        public Header {
            Objects.requireNonNull(name);
            Objects.requireNonNull(value);
        }
    }

    /** The result type of an answer that was done and passed on, and was too large to keep: see {@link Once#keeping}. */
    public static final String TOO_LARGE = "once.too_large";
    /** Bytes that every scope keeps of an answer. */
    private static final int KEPT_ALWAYS = 8192;

    enum Kind { NONE, TEXT, JSON, BYTES }

    private final int status;
    private final Kind kind;
    private final String text;
    private final byte[] body;
    private final List<Header> headers;
    private final String resultType;
    private final String resultId;
    private final String errorCode;
    private final String errorMessage;
    private final boolean replayed;
    private final String traceparent;

    private Answer(int status, Kind kind, String text, byte[] body, List<Header> headers, String resultType, String resultId,
                   String errorCode, String errorMessage, boolean replayed, String traceparent) {
        this.status = status;
        this.kind = kind;
        this.text = text;
        this.body = body;
        this.headers = headers;
        this.resultType = resultType;
        this.resultId = resultId;
        this.errorCode = errorCode;
        this.errorMessage = errorMessage;
        this.replayed = replayed;
        this.traceparent = traceparent;
    }

    /**
     * An answer with a status of HTTP.
     *
     * @param status 100 to 599
     * @return an answer without a body
     */
    public static Answer of(int status) {
        if (status < 100 || status > 599) {
            throw new IllegalArgumentException("a status is 100 to 599");
        }
        return new Answer(status, Kind.NONE, null, null, List.of(), null, null, null, null, false, null);
    }

    /**
     * An answer without a status, for calls that are not HTTP.
     *
     * @return an answer without a body
     */
    public static Answer empty() {
        return new Answer(0, Kind.NONE, null, null, List.of(), null, null, null, null, false, null);
    }

    /**
     * With a text as its body.
     *
     * @param text stored as UTF-8
     * @return another answer
     */
    public Answer text(String text) {
        return new Answer(status, Kind.TEXT, Objects.requireNonNull(text), null, headers, resultType, resultId, errorCode, errorMessage, false, null);
    }

    /**
     * With JSON as its body: stored as PostgreSQL writes jsonb; under a claim as it is given, since the claim's holder has passed it on.
     *
     * @param json a JSON text
     * @return another answer
     */
    public Answer json(String json) {
        return new Answer(status, Kind.JSON, Objects.requireNonNull(json), null, headers, resultType, resultId, errorCode, errorMessage, false, null);
    }

    /**
     * With bytes as its body.
     *
     * @param body copied
     * @return another answer
     */
    public Answer bytes(byte[] body) {
        return new Answer(status, Kind.BYTES, null, body.clone(), headers, resultType, resultId, errorCode, errorMessage, false, null);
    }

    /**
     * With one header more.
     *
     * @param name a token
     * @param value without line ends
     * @return another answer
     */
    public Answer header(String name, String value) {
        List<Header> more = new ArrayList<>(headers);
        more.add(new Header(name, value));
        return headers(more);
    }

    /**
     * With these headers alone.
     *
     * @param all in their order
     * @return another answer
     */
    public Answer headers(List<Header> all) {
        return new Answer(status, kind, text, body, List.copyOf(all), resultType, resultId, errorCode, errorMessage, false, null);
    }

    /**
     * With a reference to the result, by which {@code pgonce find --result} finds the intent.
     *
     * @param type for example {@code order}
     * @param id its id
     * @return another answer
     */
    public Answer result(String type, String id) {
        return new Answer(status, kind, text, body, headers, type, id, errorCode, errorMessage, false, null);
    }

    /**
     * What an effect throws to fail for good with this answer.
     *
     * @param code for programs, for example {@code card_declined}
     * @param message for people, or null
     * @return to be thrown
     */
    public FinalFailureException failure(String code, String message) {
        return new FinalFailureException(
            new Answer(status, kind, text, body, headers, resultType, resultId, code, message, false, null), null, null, true);
    }

    /**
     * The status.
     *
     * @return a status of HTTP, or 0 without a status
     */
    public int status() {
        return status;
    }

    /**
     * The body: the stored bytes, or, before the answer is stored, the given body in UTF-8.
     *
     * @return a copy, or null without a body
     */
    public byte[] body() {
        return body != null ? body.clone() : text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    /**
     * The body as UTF-8.
     *
     * @return a text, or null if it is not set
     */
    public String bodyText() {
        return body == null ? text : new String(body, StandardCharsets.UTF_8);
    }

    /**
     * The headers, in their order.
     *
     * @return an unmodifiable list
     */
    public List<Header> headers() {
        return headers;
    }

    /**
     * The first header of this name.
     *
     * @param name in any case
     * @return its value, or null
     */
    public String header(String name) {
        return headers.stream().filter(each -> each.name().equalsIgnoreCase(name)).map(Header::value).findFirst().orElse(null);
    }

    /**
     * What was made: its type.
     *
     * @return the type, or null
     */
    public String resultType() {
        return resultType;
    }

    /**
     * What was made: its id.
     *
     * @return the id, or null
     */
    public String resultId() {
        return resultId;
    }

    /**
     * Was it stored before this call? Also where this very call stored it, and had to ask since COMMIT's answer was lost.
     *
     * @return false where the effect of this call made it
     */
    public boolean replayed() {
        return replayed;
    }

    /**
     * The trace that the intent was first attempted in.
     *
     * @return a traceparent, or null
     */
    public String traceparent() {
        return traceparent;
    }

    String errorCode() {
        return errorCode;
    }

    String errorMessage() {
        return errorMessage;
    }

    String textOf(Kind wanted) {
        return kind == wanted ? text : null;
    }

    byte[] bytesOrNull() {
        return kind == Kind.BYTES ? body : null;
    }

    /** Its JSON, if that is what it has, as the text that it was given as. */
    Answer asGiven() {
        return kind == Kind.JSON
            ? new Answer(status, Kind.TEXT, text, null, headers, resultType, resultId, errorCode, errorMessage, false, null) : this;
    }

    boolean isLargerThan(int bytes) {
        return body != null ? body.length > bytes : text != null && text.getBytes(StandardCharsets.UTF_8).length > bytes;
    }

    /** May the contract keep less? Of JSON only the database knows how long it becomes. */
    boolean mayBeTooLarge() {
        String written = StoredHeaders.write(headers);
        return kind == Kind.JSON || isLargerThan(KEPT_ALWAYS) || (written != null && written.length() > KEPT_ALWAYS);
    }

    /**
     * What is stored in its place where it cannot be kept, being too large or a stream: it is remembered as done.
     *
     * @return an answer without body and headers, whose result type is {@link #TOO_LARGE}
     */
    public Answer tooLarge() {
        return new Answer(status, Kind.NONE, null, null, List.of(), TOO_LARGE, null, errorCode, errorMessage, false, null);
    }

    /** As it was stored just now: body is what the contract made of it. */
    Answer stored(byte[] storedBody, String trace) {
        return new Answer(status, storedBody == null ? Kind.NONE : Kind.BYTES, null, storedBody, headers, resultType, resultId,
            errorCode, errorMessage, false, trace);
    }

    static Answer replay(int status, byte[] body, List<Header> headers, String resultType, String resultId, String errorCode,
                         String errorMessage, String traceparent) {
        return new Answer(status, body == null ? Kind.NONE : Kind.BYTES, null, body, headers, resultType, resultId, errorCode,
            errorMessage, true, traceparent);
    }
}
