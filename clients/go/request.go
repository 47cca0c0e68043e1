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

// parameters collects a statement's.
type parameters struct{ args []any }

func (p *parameters) add(value any, kind string) string {
	p.args = append(p.args, value)
	return fmt.Sprintf("$%d::%s", len(p.args), kind)
}

// fingerprint is an SQL expression: the database computes it, in the call that needs it, with a salt
// that never leaves it.
func (p *parameters) fingerprint(request any, tenant string) (string, error) {
	switch given := request.(type) {
	case nil:
		return "", errors.New("pgonce: the request is missing: pass what makes two calls the same request")
	case HTTPRequest:
		body := given.Body
		if body == nil {
			body = []byte{}
		}
		return fmt.Sprintf("once.request_fingerprint(%s, %s, %s, %s, %s, %s)", p.add(given.Method, "text"), p.add(given.Target, "text"),
			p.add(given.ContentType, "text"), p.add(body, "bytea"), p.add(tenant, "text"), p.add(given.CanonicalJSON, "boolean")), nil
	case string:
		return fmt.Sprintf("once.fingerprint(%s, %s)", p.add(given, "text"), p.add(tenant, "text")), nil
	case []byte:
		if given == nil {
			given = []byte{}
		}
		return fmt.Sprintf("once.fingerprint(%s, %s)", p.add(given, "bytea"), p.add(tenant, "text")), nil
	default:
		text, err := json.Marshal(request)
		if err != nil {
			return "", fmt.Errorf("pgonce: the request cannot be written as JSON: %w", err)
		}
		return fmt.Sprintf("once.fingerprint(%s::jsonb, %s)", p.add(string(text), "text"), p.add(tenant, "text")), nil
	}
}
