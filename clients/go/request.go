// SPDX-License-Identifier: PostgreSQL

package once

import (
	"encoding/json"
	"errors"
	"fmt"
)

// HTTPRequest is a request as the gateway takes its fingerprint, so that a retry may come by either
// door. Target is the Host in lower case, then path and query: "shop.test/pay?dry=0".
type HTTPRequest struct {
	Method, Target, ContentType string
	Body                        []byte
	// CanonicalJSON: another spelling of the same JSON is the same request.
	CanonicalJSON bool
}

// printed is the kind of a request, and the parameters of the expression with which the database computes
// its fingerprint, in the statement that needs it.
func printed(request any, tenant string) (kind string, args []any, err error) {
	switch given := request.(type) {
	case nil:
		return "", nil, errors.New("pgonce: the request is missing: pass what makes two calls the same request")
	case HTTPRequest:
		body := given.Body
		if body == nil {
			body = []byte{}
		}
		return "http", []any{body, tenant, given.Method, given.Target, given.ContentType, given.CanonicalJSON}, nil
	case string:
		return "text", []any{given, tenant}, nil
	case []byte:
		if given == nil {
			given = []byte{}
		}
		return "bytes", []any{given, tenant}, nil
	default:
		text, err := json.Marshal(request)
		if err != nil {
			return "", nil, fmt.Errorf("pgonce: the request cannot be written as JSON: %w", err)
		}
		return "json", []any{string(text), tenant}, nil
	}
}
