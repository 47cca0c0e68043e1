// SPDX-License-Identifier: PostgreSQL

package once

import (
	"strings"
	"unicode/utf8"
)

// keyFault is the sentence for a malformed key.
type keyFault string

const (
	// spec: key-faults
	keyEmpty        keyFault = "The key is empty."
	keyUnterminated keyFault = "The key begins with a quote and has no closing one."
	keyBadEscape    keyFault = "In a quoted key a backslash must be followed by a quote or a backslash."
	keyBadByte      keyFault = "The key's header holds a control character or one that is not ASCII."
	keyTrailing     keyFault = "After the quoted key comes something that is not a parameter; a list of keys is not allowed."
	keyBadParameter keyFault = "A parameter after the quoted key is malformed."
	keyNotAString   keyFault = "The key must be a quoted string, such as \"8e03978e-40d5-43dd-bc93-6894a57f9324\"; without quotes it holds characters that are not allowed there, or quotes are required."
	keyTooLong      keyFault = "The key is too long."

	keyBytesMax = 255
	// end of spec
)

func (f keyFault) Error() string { return string(f) }

// KeyOfHeader gives the key in the value of an Idempotency-Key header: a Structured Field String
// (RFC 8941) with parameters, or, unless strict, a bare key. lengthMax is 1 to 255; 0: 255. The
// error is ErrKeyMalformed, and says why.
func KeyOfHeader(value string, strict bool, lengthMax int) (string, error) {
	if lengthMax <= 0 || lengthMax > keyBytesMax {
		lengthMax = keyBytesMax
	}
	for i := 0; i < len(value); i++ {
		if value[i] < ' ' || value[i] > '~' {
			return "", ErrKeyMalformed.because(keyBadByte)
		}
	}
	value = strings.Trim(value, " ")
	key, fault := "", keyFault("")
	switch {
	case value == "":
		fault = keyEmpty
	case value[0] == '"':
		reader := keyReader{rest: value[1:]}
		if key, fault = reader.text(lengthMax); fault != "" {
			break
		}
		if !reader.parameters() {
			fault = keyBadParameter
		} else if reader.rest != "" {
			fault = keyTrailing
		}
	case strict:
		fault = keyNotAString
	default:
		for i := 0; i < len(value) && fault == ""; i++ {
			if strings.IndexByte(" \"\\,;", value[i]) >= 0 {
				fault = keyNotAString
			} else if i >= lengthMax {
				fault = keyTooLong
			}
		}
		key = value
	}
	if fault == "" && key == "" {
		fault = keyEmpty
	}
	if fault != "" {
		return "", ErrKeyMalformed.because(fault)
	}
	return key, nil
}

type keyReader struct{ rest string }

func (in *keyReader) next() byte {
	if in.rest == "" {
		return 0
	}
	return in.rest[0]
}

func (in *keyReader) take(wanted byte) bool {
	if in.next() != wanted {
		return false
	}
	in.rest = in.rest[1:]
	return true
}

// After the opening quote, up to and with the closing one. lengthMax 0: any length.
func (in *keyReader) text(lengthMax int) (string, keyFault) {
	var out strings.Builder
	for in.rest != "" {
		c := in.rest[0]
		in.rest = in.rest[1:]
		if c == '"' {
			return out.String(), ""
		}
		if c == '\\' {
			if in.rest == "" {
				return "", keyUnterminated
			}
			c = in.rest[0]
			in.rest = in.rest[1:]
			if c != '"' && c != '\\' {
				return "", keyBadEscape
			}
		}
		if lengthMax > 0 && out.Len() == lengthMax {
			return "", keyTooLong
		}
		out.WriteByte(c)
	}
	return "", keyUnterminated
}

func (in *keyReader) span(allowed func(byte) bool) int {
	n := 0
	for n < len(in.rest) && allowed(in.rest[n]) {
		n++
	}
	in.rest = in.rest[n:]
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isAlpha(c byte) bool { return isLower(c) || (c >= 'A' && c <= 'Z') }
func isOneOf(c byte, set string) bool {
	return c != 0 && strings.IndexByte(set, c) >= 0
}

// RFC 8941 section 4.2.4: at most 15 digits; with a point at most 12 before it, and 1 to 3 after.
func (in *keyReader) number() bool {
	in.take('-')
	whole := in.span(isDigit)
	if !in.take('.') {
		return whole >= 1 && whole <= 15
	}
	fraction := in.span(isDigit)
	return whole >= 1 && whole <= 12 && fraction >= 1 && fraction <= 3
}

// Section 4.2.7, after the opening colon.
func (in *keyReader) byteSequence() bool {
	count := in.span(func(c byte) bool { return isAlpha(c) || isDigit(c) || isOneOf(c, "+/") })
	padding := in.span(func(c byte) bool { return c == '=' })
	return in.take(':') && count%4 != 1 && (padding == 0 || (padding <= 2 && (count+padding)%4 == 0))
}

func (in *keyReader) item() bool {
	c := in.next()
	switch {
	case c == '-' || isDigit(c):
		return in.number()
	case c == '*' || isAlpha(c):
		in.rest = in.rest[1:]
		in.span(func(c byte) bool { return isAlpha(c) || isDigit(c) || isOneOf(c, "!#$%&'*+-.^_`|~:/") })
		return true
	case in.take('"'):
		_, fault := in.text(0)
		return fault == ""
	case in.take(':'):
		return in.byteSequence()
	case in.take('?'):
		return in.take('0') || in.take('1')
	}
	return false
}

func (in *keyReader) parameters() bool {
	for in.take(';') {
		in.span(func(c byte) bool { return c == ' ' })
		if !isLower(in.next()) && in.next() != '*' {
			return false
		}
		in.span(func(c byte) bool { return isLower(c) || isDigit(c) || isOneOf(c, "_-.*") })
		if in.take('=') && !in.item() {
			return false
		}
	}
	return true
}

const (
	// spec: names
	nameCharsMax    = 255
	tenantMalformed = "The tenant must be valid UTF-8 of at most 255 characters, without control characters."
	// end of spec
)

// isName says whether the database takes a text as a tenant.
func isName(text string) bool {
	return utf8.ValidString(text) && utf8.RuneCountInString(text) <= nameCharsMax && strings.IndexFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) < 0
}
