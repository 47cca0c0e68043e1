// SPDX-License-Identifier: PostgreSQL

package once

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"
)

const headersMax = 1024

var keptByDefault = []string{
	// spec: headers-kept
	// By default: what describes the answer and holds for every attempt alike. Names that an application invents are usually X-; those of
	// browsers' access control belong to the answer, or a page could read the first one and not its replay.
	"accept-patch", "accept-post", "access-control-*", "allow", "cache-control", "content-*", "cross-origin-*", "deprecation", "digest", "etag",
	"expires", "last-modified", "link", "location", "permissions-policy", "pragma", "preference-applied", "ratelimit-*", "refresh", "repr-digest",
	"referrer-policy", "request-id", "retry-after", "sunset", "traceparent", "vary", "warning", "x-*",
	// end of spec
}

var neverKept = []string{
	// spec: headers-never
	// Credentials: meant for the client of the first attempt, at that moment.
	"set-cookie", "set-cookie2", "www-authenticate", "authentication-info", "authentication-control", "proxy-authenticate",
	"proxy-authentication-info", "authorization", "proxy-authorization", "clear-site-data", "dpop-nonce", "replay-nonce",
	// Of one connection.
	"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "alt-svc", "http2-settings",
	// Framing, and what the server says anew.
	"content-length", "accept-ranges", "date", "server", "age", "via", "status",
	// Instructions to the proxy.
	"x-accel-*", "x-sendfile",
	// The door's own.
	"idempotency-replayed", "idempotency-traceparent", "idempotency-key", "once-*",
	// end of spec
}

var secretWords = []string{
	// spec: headers-secret
	// Words in the name of a header whose value is a credential, also as a part of a longer name.
	"access-key", "access-token", "api-key", "apikey", "auth-token", "bearer", "credential", "csrf", "id-token", "jwt", "passwd", "password",
	"private-key", "refresh-token", "secret", "security-token", "session-id", "session-token", "xsrf",
	// end of spec
}

// headerNames are names of headers, and prefixes of them, in lower case.
type headerNames struct {
	whole    map[string]bool
	prefixes []string
}

// A pattern that ends in * is a prefix.
func headerNamesOf(patterns []string) *headerNames {
	names := &headerNames{whole: map[string]bool{}}
	for _, pattern := range patterns {
		pattern = strings.ToLower(pattern)
		if prefix, isPrefix := strings.CutSuffix(pattern, "*"); isPrefix {
			names.prefixes = append(names.prefixes, prefix)
		} else {
			names.whole[pattern] = true
		}
	}
	return names
}

func (n *headerNames) has(name string) bool {
	name = strings.ToLower(name)
	if n.whole[name] {
		return true
	}
	for _, prefix := range n.prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// What of an answer's headers is stored.
func (n *headerNames) of(all http.Header) http.Header {
	kept := http.Header{}
	for name, values := range all {
		if name != "" && n.has(name) && !never(name) {
			kept[name] = values
		}
	}
	return kept
}

// A header that is never replayed, even if the list names it.
func never(name string) bool {
	lower := strings.ToLower(name)
	// Access-Control-Allow-Credentials holds none: it says that a page may send them.
	if strings.HasPrefix(lower, "access-control-") {
		return false
	}
	return neverNames.has(name) || slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(lower, word) })
}

var keptNames, neverNames = headerNamesOf(keptByDefault), headerNamesOf(neverKept)

func sendable(name, value string) bool {
	if name == "" || strings.ContainsAny(value, "\x00\r\n") {
		return false
	}
	for i := 0; i < len(name); i++ {
		if name[i] <= ' ' || name[i] > '~' || strings.IndexByte(`"(),/:;<=>?@[\]{}`, name[i]) >= 0 {
			return false
		}
	}
	return true
}

// As the gateway stores them, {"h": [["X-Name", "value"], ["X-Bytes", null, "ff"]]}, in the order of
// their names; nil: none.
func encodeHeaders(header http.Header) (any, error) {
	if len(header) == 0 {
		return nil, nil
	}
	names := make([]string, 0, len(header))
	for name := range header {
		names = append(names, name)
	}
	sort.Strings(names)
	pairs := [][]any{}
	for _, name := range names {
		for _, value := range header[name] {
			if !sendable(name, value) {
				continue
			}
			if isPrintable(value) {
				pairs = append(pairs, []any{name, value})
			} else {
				pairs = append(pairs, []any{name, nil, hex.EncodeToString([]byte(value))})
			}
		}
	}
	if len(pairs) > headersMax {
		return nil, fmt.Errorf("pgonce: an answer has at most %d headers", headersMax)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(map[string]any{"h": pairs}); err != nil {
		return nil, err
	}
	return out.String(), nil
}

func isPrintable(text string) bool {
	for i := 0; i < len(text); i++ {
		if (text[i] < ' ' && text[i] != '\t') || text[i] > '~' {
			return false
		}
	}
	return true
}

var errHeaders = errors.New("pgonce: the stored headers cannot be sent")

// Both forms: pairs, and the flat object that is written by hand in SQL.
func decodeHeaders(text string) (http.Header, error) {
	if text == "" {
		return nil, nil
	}
	var document map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &document) != nil {
		return nil, errHeaders
	}
	header := http.Header{}
	put := func(name, value string) error {
		if !sendable(name, value) {
			return errHeaders
		}
		header.Add(name, value)
		return nil
	}
	var pairs [][]*string
	if raw, ok := document["h"]; ok && len(document) == 1 && json.Unmarshal(raw, &pairs) == nil {
		for _, pair := range pairs {
			if len(pair) < 2 || pair[0] == nil {
				return nil, errHeaders
			}
			value := value(pair[1])
			if pair[1] == nil {
				if len(pair) < 3 {
					return nil, errHeaders
				}
				decoded, err := hex.DecodeString(*pair[2])
				if err != nil {
					return nil, errHeaders
				}
				value = string(decoded)
			}
			if err := put(*pair[0], value); err != nil {
				return nil, err
			}
		}
		return header, nil
	}
	names := make([]string, 0, len(document))
	for name := range document {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		for _, each := range oneOrMany(document[name]) {
			var text *string
			var number json.Number
			switch {
			case json.Unmarshal(each, &text) == nil:
				if text == nil {
					continue
				}
			case json.Unmarshal(each, &number) == nil:
				said := number.String()
				text = &said
			default:
				return nil, errHeaders
			}
			if err := put(name, *text); err != nil {
				return nil, err
			}
		}
	}
	return header, nil
}

func oneOrMany(raw json.RawMessage) []json.RawMessage {
	var many []json.RawMessage
	if len(raw) > 0 && raw[0] == '[' && json.Unmarshal(raw, &many) == nil {
		return many
	}
	return []json.RawMessage{raw}
}
