// SPDX-License-Identifier: PostgreSQL
package io.pgonce.http;

/**
 * The key in the value of an Idempotency-Key header: a Structured Field String (RFC 8941, section 4.2.5) with
 * parameters, or a bare key. The same grammar as lib/src/key.c and once.key_of_header; spec/vectors/keys.json holds
 * them together. Each way to be malformed is a fault, since a key that was ignored would leave a request unprotected.
 */
public final class KeyHeader {
    // spec: key-faults
    private static final String EMPTY = "The key is empty.";
    private static final String UNTERMINATED = "The key begins with a quote and has no closing one.";
    private static final String BAD_ESCAPE = "In a quoted key a backslash must be followed by a quote or a backslash.";
    private static final String BAD_BYTE = "The key's header holds a control character or one that is not ASCII.";
    private static final String TRAILING = "After the quoted key comes something that is not a parameter; a list of keys is not allowed.";
    private static final String BAD_PARAMETER = "A parameter after the quoted key is malformed.";
    private static final String NOT_A_STRING = "The key must be a quoted string, such as \"8e03978e-40d5-43dd-bc93-6894a57f9324\"; "
        + "without quotes it holds characters that are not allowed there, or quotes are required.";
    private static final String TOO_LONG = "The key is too long.";
    private static final int KEY_MAX = 255;
    // end of spec

    /** A value that is no key. Its message is one sentence, which goes into the problem document; never the value. */
    public static final class Malformed extends Exception {
        private static final long serialVersionUID = 1L;

        Malformed(String sentence) {
            super(sentence, null, false, false);
        }
    }

    private final String text;
    private final int end;
    private int at;

    private KeyHeader(String text, int at, int end) {
        this.text = text;
        this.at = at;
        this.end = end;
    }

    /**
     * The key of a header.
     *
     * @param value one character for each byte
     * @param strict are bare keys refused?
     * @param lengthMax the most characters, at most 255
     * @return 1 to lengthMax characters
     * @throws Malformed if the header has no key
     */
    public static String parse(String value, boolean strict, int lengthMax) throws Malformed {
        int start = 0;
        int end = value.length();
        for (int i = 0; i < end; i++) {
            if (value.charAt(i) < ' ' || value.charAt(i) > '~') {
                throw new Malformed(BAD_BYTE);
            }
        }
        while (start < end && value.charAt(start) == ' ') {
            start++;
        }
        while (end > start && value.charAt(end - 1) == ' ') {
            end--;
        }
        if (start == end) {
            throw new Malformed(EMPTY);
        }
        KeyHeader in = new KeyHeader(value, start, end);
        StringBuilder key = new StringBuilder();
        if (in.take('"')) {
            in.string(key, Math.min(lengthMax, KEY_MAX));
            if (!in.parameters()) {
                throw new Malformed(BAD_PARAMETER);
            }
            if (in.at != end) {
                throw new Malformed(TRAILING);
            }
        } else if (strict) {
            throw notAString();
        } else {
            in.bare(key, Math.min(lengthMax, KEY_MAX));
        }
        if (key.isEmpty()) {
            throw new Malformed(EMPTY);
        }
        return key.toString();
    }

    private static Malformed notAString() {
        return new Malformed(NOT_A_STRING);
    }

    private char next() {
        return at == end ? '\0' : text.charAt(at);
    }

    private boolean take(char wanted) {
        if (next() != wanted) {
            return false;
        }
        at++;
        return true;
    }

    private static void put(StringBuilder out, char c, int lengthMax) throws Malformed {
        if (out.length() == lengthMax) {
            throw new Malformed(TOO_LONG);
        }
        out.append(c);
    }

    private void string(StringBuilder out, int lengthMax) throws Malformed {
        while (at < end) {
            char c = text.charAt(at++);
            if (c == '"') {
                return;
            }
            if (c == '\\') {
                if (at == end) {
                    break;
                }
                c = text.charAt(at++);
                if (c != '"' && c != '\\') {
                    throw new Malformed(BAD_ESCAPE);
                }
            }
            put(out, c, lengthMax);
        }
        throw new Malformed(UNTERMINATED);
    }

    private void bare(StringBuilder out, int lengthMax) throws Malformed {
        for (; at < end; at++) {
            if (" \"\\,;".indexOf(next()) >= 0) {
                throw notAString();
            }
            put(out, next(), lengthMax);
        }
    }

    private static boolean isDigit(char c) {
        return c >= '0' && c <= '9';
    }

    private static boolean isLower(char c) {
        return c >= 'a' && c <= 'z';
    }

    private static boolean isAlpha(char c) {
        return isLower(c) || (c >= 'A' && c <= 'Z');
    }

    private static boolean isOneOf(char c, String set) {
        return c != '\0' && set.indexOf(c) >= 0;
    }

    private int digits() {
        int start = at;
        while (isDigit(next())) {
            at++;
        }
        return at - start;
    }

    /** Section 4.2.4: at most 15 digits; with a point at most 12 before it, and 1 to 3 after. */
    private boolean number() {
        take('-');
        int whole = digits();
        if (!take('.')) {
            return whole >= 1 && whole <= 15;
        }
        int fraction = digits();
        return whole >= 1 && whole <= 12 && fraction >= 1 && fraction <= 3;
    }

    /** Section 4.2.7, after the opening colon. Invalid base64 is refused; missing padding is not. */
    private boolean byteSequence() {
        int count = 0;
        while (isAlpha(next()) || isDigit(next()) || isOneOf(next(), "+/")) {
            at++;
            count++;
        }
        int padding = 0;
        while (take('=')) {
            padding++;
        }
        return take(':') && count % 4 != 1 && (padding == 0 || (padding <= 2 && (count + padding) % 4 == 0));
    }

    private boolean token() {
        at++;
        while (isAlpha(next()) || isDigit(next()) || isOneOf(next(), "!#$%&'*+-.^_`|~:/")) {
            at++;
        }
        return true;
    }

    private boolean item() {
        char c = next();
        if (c == '-' || isDigit(c)) {
            return number();
        }
        if (c == '*' || isAlpha(c)) {
            return token();
        }
        if (take('"')) {
            try {
                string(new StringBuilder(), Integer.MAX_VALUE);
                return true;
            } catch (Malformed bad) {
                return false;
            }
        }
        if (take(':')) {
            return byteSequence();
        }
        return take('?') && (take('0') || take('1'));
    }

    private boolean parameters() {
        while (take(';')) {
            while (take(' ')) {
                // spaces before a name
            }
            if (!isLower(next()) && next() != '*') {
                return false;
            }
            while (isLower(next()) || isDigit(next()) || isOneOf(next(), "_-.*")) {
                at++;
            }
            if (take('=') && !item()) {
                return false;
            }
        }
        return true;
    }
}
