// SPDX-License-Identifier: PostgreSQL

package once

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Answer is what an intent answered: what an effect returns, and what every later attempt gets.
// Text, JSON and Bytes make one.
type Answer struct {
	// Status is one of HTTP's, or a command's; 0: none.
	Status int
	// Header is stored with it, each value in order.
	Header http.Header
	// Body is the answer's bytes, as they are stored.
	Body []byte
	// ResultType and ResultID refer to the result: "order", "17".
	ResultType, ResultID string

	// Replayed: the answer was stored before, and the effect did not run now.
	Replayed bool
	// Traceparent of the first attempt.
	Traceparent string
	// Fence that it was stored under.
	Fence int

	kind bodyKind
}

// Which parameter of once.finish takes the body: PostgreSQL must never read a text as bytea's
// escapes, nor bytes as a text.
type bodyKind int

const (
	asBytes bodyKind = iota
	asText
	asJSON
	asInvalid
)

// Text is an answer whose body is a string: stored by response_text, with no byte changed.
func Text(status int, body string) Answer {
	return Answer{Status: status, Body: []byte(body), kind: asText}
}

// Bytes is an answer whose body is stored as it is, zero bytes and all.
func Bytes(status int, body []byte) Answer {
	return Answer{Status: status, Body: body}
}

// JSON is an answer whose body is encoding/json's of the value, and whose Content-Type says so. The
// bytes that are stored are these, so a replay has them too. What cannot be encoded makes Run fail,
// and rolls the effect back.
func JSON(status int, value any) Answer {
	body, err := json.Marshal(value)
	if err != nil {
		return Answer{Status: status, Body: []byte(err.Error()), kind: asInvalid}
	}
	return Answer{Status: status, Body: body, Header: http.Header{"Content-Type": {"application/json"}}, kind: asText}
}

// Decode reads a JSON body.
func (a Answer) Decode(into any) error { return json.Unmarshal(a.Body, into) }

func (a Answer) invalid() error {
	return fmt.Errorf("pgonce: the answer cannot be written as JSON: %s", a.Body)
}

// The text and the bytes for the contract: exactly one of them, or none.
func (a Answer) body() (text, bytes any) {
	switch {
	case a.Body == nil:
		return nil, nil
	case a.kind == asText:
		return string(a.Body), nil
	default:
		return nil, a.Body
	}
}

// A parameter that is NULL where the text is empty.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// finalStatus returns 0 for a status that is not a final status of HTTP: it is not stored.
func finalStatus(status int) int {
	if status < 200 || status > 599 {
		return 0
	}
	return status
}

func statusOrNull(status int) any {
	if status == 0 {
		return nil
	}
	return int32(status)
}
