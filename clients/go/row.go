// SPDX-License-Identifier: PostgreSQL

package once

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// row is what is stored of an intent, as try_start (read) and claim (outcome) tell it.
type row struct {
	fingerprint                  []byte
	verdict                      string
	fence, status                *int32
	state, headers               *string
	body                         []byte
	resultType, resultID         *string
	errorCode, errorMessage, tra *string
}

func (r *row) outcome() []any {
	return []any{&r.verdict, &r.fence, &r.state, &r.status, &r.headers, &r.body, &r.resultType, &r.resultID, &r.errorCode, &r.errorMessage, &r.tra}
}

var errRow = errors.New("pgonce: once.try_start has given a row that this client does not know")

// valuesOf takes a row apart that record_send has written: the number of its values; then of each
// its type, its length, which is -1 of NULL, and its bytes.
func valuesOf(sent []byte) (values [][]byte, err error) {
	if len(sent) < 4 {
		return nil, errRow
	}
	count := binary.BigEndian.Uint32(sent)
	for sent = sent[4:]; count > 0; count-- {
		if len(sent) < 8 {
			return nil, errRow
		}
		length := int32(binary.BigEndian.Uint32(sent[4:]))
		sent = sent[8:]
		if length < 0 {
			values = append(values, nil)
			continue
		}
		if int(length) > len(sent) {
			return nil, errRow
		}
		values, sent = append(values, sent[:length:length]), sent[length:]
	}
	return values, nil
}

func textOf(value []byte) *string {
	if value == nil {
		return nil
	}
	text := string(value)
	return &text
}

func integerOf(value []byte) *int32 {
	if len(value) != 4 {
		return nil
	}
	integer := int32(binary.BigEndian.Uint32(value))
	return &integer
}

// read takes a once.started.
func (r *row) read(sent []byte) error {
	values, err := valuesOf(sent)
	if err != nil || len(values) < 11 || values[0] == nil {
		return errRow
	}
	r.verdict, r.state, r.status, r.body = string(values[0]), textOf(values[1]), integerOf(values[2]), values[3]
	if headers := values[4]; len(headers) > 0 {
		r.headers = textOf(headers[1:]) // before a jsonb stands its version
	}
	r.resultType, r.resultID, r.errorCode, r.errorMessage = textOf(values[5]), textOf(values[6]), textOf(values[7]), textOf(values[8])
	r.fence, r.tra = integerOf(values[9]), textOf(values[10])
	return nil
}

func value[V any](pointer *V) V {
	var zero V
	if pointer == nil {
		return zero
	}
	return *pointer
}

func (r *row) answer() (Answer, error) {
	header, err := decodeHeaders(value(r.headers))
	return Answer{Status: int(value(r.status)), Header: header, Body: r.body, ResultType: value(r.resultType), ResultID: value(r.resultID),
		Replayed: true, Traceparent: value(r.tra), Fence: int(value(r.fence))}, err
}

// The stored answer, or the error that the verdict is.
func (r *row) decide() (Answer, error) {
	answer, broken := r.answer()
	verdict := verdicts[r.verdict]
	switch verdict.then {
	case toReplay:
		if broken != nil {
			answer.ResultType, answer.Status, answer.Body = "", 0, nil // no answer that could be sent
		}
		return answer, nil
	case toFail:
		final := newFinal(value(r.errorCode), value(r.errorMessage), answer)
		return Answer{}, final
	case toWait, toRefuse:
		told := verdict.err.because(nil)
		if verdict.err != ErrMismatch {
			told.Traceparent = value(r.tra)
		}
		return Answer{}, told
	}
	return Answer{}, fmt.Errorf("pgonce: the contract answered %q, which this client does not know", r.verdict)
}

func (r *row) trace() any { return orNull(value(r.tra)) }
