// SPDX-License-Identifier: PostgreSQL

package once

import (
	"fmt"
	"strings"
)

// problem is an answer of the middleware's own: docs/reference/problems.md.
type problem struct {
	slug          string
	status        int
	title, detail string
	retryAfter    int // seconds; 0: the same request will not do better
}

var (
	// spec: problems
	problemKeyMissing    = problem{"key-missing", 400, "Idempotency-Key is missing", "This operation needs an Idempotency-Key header. Nothing was done.", 0}
	problemKeyMalformed  = problem{"key-malformed", 400, "Idempotency-Key is malformed", "Nothing was done.", 0}
	problemKeyRepeated   = problem{"key-repeated", 400, "Idempotency-Key is sent more than once", "Send one Idempotency-Key header with one key. Nothing was done.", 0}
	problemTenantMissing = problem{"tenant-missing", 400, "The request does not say whose key this is", "What tells callers apart (a header, a claim, a certificate) is empty. Nothing was done.", 0}
	problemMismatch      = problem{"mismatch", 422, "Idempotency-Key is already used", "This key was first used with another request, whose answer is untouched. Use a new key for a new request.", 0}
	problemActive        = problem{"active", 409, "A request with this Idempotency-Key is outstanding", "The first request with this key is still running. Send the same request again later.", 1}
	problemInDoubt       = problem{"in-doubt", 409, "The outcome of this request is unknown", "An earlier attempt ended, and it is unknown whether it took effect. A retry does not run until that is known. Do not send it under a new key.", 0}
	problemExpired       = problem{"expired", 409, "Idempotency-Key is too old", "This key is older than the keys that are kept, so it is unknown whether it was used. Nothing was done now. Find out before you use a new key.", 0}
	problemTooLarge      = problem{"too-large", 409, "Done, but its answer was too large to keep", "The request with this key was carried out, and its answer was passed on once. It will not be run again while this key is kept.", 0}
	problemNoAnswer      = problem{"no-answer", 409, "Finished, without an answer to repeat", "The request with this key is finished, and no HTTP answer is stored for it. It will not be run again while this key is kept.", 0}
	problemBodyTooLarge  = problem{"body-too-large", 413, "The request body is too large", "A body of this size cannot be protected here. Nothing was done.", 0}
	problemRefused       = problem{"refused", 403, "The tenant or the scope is refused", "No key may be kept for this caller. Nothing was done.", 0}
	problemUnavailable   = problem{"unavailable", 503, "Idempotency keys cannot be checked right now", "Nothing was done. Send the same request with the same key again later.", 5}
	problemNotStored     = problem{"not-stored", 503, "The answer could not be stored", "The request may have taken effect. Send it again with the same key, never with a new one, to learn its outcome.", 5}
	problemUnreached     = problem{"unreached", 502, "The service could not be reached", "Nothing was done. Send the same request with the same key again later.", 5}
	problemTimedOut      = problem{"timed-out", 503, "The request took too long", "It was stopped, and its changes were rolled back. Nothing was done. Send the same request with the same key again later.", 5}
	// end of spec
)

const (
	// spec: problem-base
	problemBase   = "urn:pgonce:problem:"
	baseBytesMax  = 256
	refusedInBase = "\"\\<>^`{|}"
	// end of spec

	instanceBase  = "urn:pgonce:request:"
	moreBytesMax  = 300
	multipartMore = "A multipart body that is built again has a new boundary, so it is another request: send the same bytes as the first time."
)

// isBase says whether a base may stand in a problem's document as it is.
func isBase(base string) bool {
	for i := 0; i < len(base); i++ {
		if base[i] < '!' || base[i] > '~' || strings.IndexByte(refusedInBase, base[i]) >= 0 {
			return false
		}
	}
	return base != "" && len(base) <= baseBytesMax
}

func (p problem) document(base, more, request string) []byte {
	if base == "" {
		base = problemBase
	}
	detail := p.detail
	if more != "" {
		detail += " " + escapeProblem(more)
	}
	return []byte(fmt.Sprintf(`{"type":"%s%s","title":"%s","status":%d,"detail":"%s","instance":"%s%s","retryable":%t}`,
		base, p.slug, p.title, p.status, detail, instanceBase, request, p.retryAfter > 0))
}

func escapeProblem(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		piece := string(text[i : i+1])
		switch c := text[i]; {
		case c == '"' || c == '\\':
			piece = `\` + piece
		case c < ' ':
			piece = fmt.Sprintf(`\u%04x`, c)
		case c > '~':
			piece = "?"
		}
		if out.Len()+len(piece) > moreBytesMax {
			break
		}
		out.WriteString(piece)
	}
	return out.String()
}
