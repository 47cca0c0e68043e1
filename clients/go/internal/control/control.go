// SPDX-License-Identifier: PostgreSQL

// Package control finds transaction control, and changes of the role, in the text of SQL.
package control

import "strings"

// Kind is what a text does besides reading and writing.
type Kind struct {
	// Ends: it begins or ends a transaction, which an effect's must not: BEGIN, START, COMMIT, END, ROLLBACK,
	// ABORT, PREPARE TRANSACTION. ROLLBACK TO a savepoint does not.
	Ends bool
	// Role: it may set the role.
	Role bool
}

// Of reads a text, which may have several statements. Where it holds a body of SQL (BEGIN ATOMIC) the
// rest is not read.
func Of(text string) (found Kind) {
	in := reader{text}
	for {
		in.skip(";")
		switch first := in.word(); first {
		case "BEGIN", "START", "COMMIT", "END", "ABORT":
			found.Ends = true
		case "PREPARE":
			found.Ends = found.Ends || in.word() == "TRANSACTION"
		case "ROLLBACK":
			next := in.word()
			if next == "WORK" || next == "TRANSACTION" {
				next = in.word()
			}
			found.Ends = found.Ends || next != "TO"
		case "SET":
			found.Role = found.Role || in.has("ROLE", "AUTHORIZATION")
		case "SELECT":
			found.Role = found.Role || in.callsSetConfig()
		case "CREATE":
			if in.has("ATOMIC") {
				return found
			}
		}
		if !in.statement() {
			return found
		}
	}
}

// Most statements are SELECT, so it looks at the underscores alone.
func (in *reader) callsSetConfig() bool {
	const name, before = "SET_CONFIG", 3
	for rest := in.rest; ; {
		at := strings.IndexByte(rest, '_')
		if at < 0 {
			return false
		}
		if from := at - before; from >= 0 && len(rest) >= from+len(name) && strings.EqualFold(rest[from:from+len(name)], name) {
			return true
		}
		rest = rest[at+1:]
	}
}

// Is one of the words, in capitals, in what follows?
func (in *reader) has(words ...string) bool {
	for _, word := range words {
		for at := 0; at+len(word) <= len(in.rest); at++ {
			if strings.EqualFold(in.rest[at:at+len(word)], word) {
				return true
			}
		}
	}
	return false
}

type reader struct{ rest string }

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// Of an identifier, so that a dollar behind it begins no quote.
func isName(c byte) bool { return isLetter(c) || c == '_' || c >= '0' && c <= '9' || c >= 0x80 }

// What means nothing: spaces, comments, and the bytes of also.
func (in *reader) skip(also string) {
	for in.rest != "" {
		c := in.rest[0]
		switch {
		case isSpace(c) || strings.IndexByte(also, c) >= 0:
			in.rest = in.rest[1:]
		case !in.comment():
			return
		}
	}
}

func (in *reader) comment() bool {
	switch {
	case strings.HasPrefix(in.rest, "--"):
		in.after("\n", 2)
	case strings.HasPrefix(in.rest, "/*"):
		in.rest = in.rest[2:]
		for depth := 1; depth > 0 && in.rest != ""; {
			switch {
			case strings.HasPrefix(in.rest, "/*"):
				depth++
				in.rest = in.rest[2:]
			case strings.HasPrefix(in.rest, "*/"):
				depth--
				in.rest = in.rest[2:]
			default:
				in.rest = in.rest[1:]
			}
		}
	default:
		return false
	}
	return true
}

// Continues after the next terminator, or at the end if there is no terminator.
func (in *reader) after(end string, from int) {
	if at := strings.Index(in.rest[from:], end); at >= 0 {
		in.rest = in.rest[from+at+len(end):]
	} else {
		in.rest = ""
	}
}

// The next word, in capitals; "" where something else comes.
func (in *reader) word() string {
	in.skip("")
	n := 0
	for n < len(in.rest) && isLetter(in.rest[n]) {
		n++
	}
	word := in.rest[:n]
	in.rest = in.rest[n:]
	return strings.ToUpper(word)
}

// Continues after the semicolon that ends the statement. false: no semicolon follows.
func (in *reader) statement() bool {
	if strings.IndexByte(in.rest, ';') < 0 {
		return false
	}
	named := true // the last byte was of a name
	for in.rest != "" {
		c := in.rest[0]
		switch {
		case c == ';':
			in.rest = in.rest[1:]
			return true
		case c == '"':
			in.after(`"`, 1)
		case c == '\'':
			in.rest = in.rest[1:]
			in.after("'", 0)
		case (c == 'E' || c == 'e') && !named && len(in.rest) > 1 && in.rest[1] == '\'':
			in.rest = in.rest[2:]
			in.escaped()
		case c == '$' && !named && in.dollars():
		case in.comment():
		default:
			named = isName(c) || c == '$' && named
			in.rest = in.rest[1:]
			continue
		}
		named = false
	}
	return false
}

// A string with backslashes, after its opening quote.
func (in *reader) escaped() {
	for in.rest != "" {
		c := in.rest[0]
		in.rest = in.rest[1:]
		switch {
		case c == '\'':
			return
		case c == '\\' && in.rest != "":
			in.rest = in.rest[1:]
		}
	}
}

// A string in dollars: $$ or $tag$.
func (in *reader) dollars() bool {
	n := 1
	for n < len(in.rest) && isName(in.rest[n]) {
		n++
	}
	if n == len(in.rest) || in.rest[n] != '$' || n > 1 && in.rest[1] >= '0' && in.rest[1] <= '9' {
		return false
	}
	in.after(in.rest[:n+1], n+1)
	return true
}
