// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// A gateway in front that has claimed the request's intent (docs/reference/gateway.md): its claim is finished in
// the transaction of the effect, under the fence that it has sent.

// What the gateway is told of an answer that is not stored here.
const (
	onceEffect    = "Once-Effect"
	effectNone    = "none"
	effectDone    = "done"
	effectUnknown = "unknown"
)

var errClaimedInFront = errors.New("A pgonce gateway in front of this service has claimed this key in the same scope: set the option Gateway, or give the two different scopes.") //nolint:staticcheck // also a sentence of the problem document

// saidOf gives what the lines of Once-Effect say; "": nothing, or nothing known.
func saidOf(lines []string) string {
	if len(lines) == 1 {
		switch word := strings.ToLower(lines[0]); word {
		case effectNone, effectDone, effectUnknown:
			return word
		}
	}
	return ""
}

// fenceOf gives the fence under which a gateway in front holds this very intent; 0: none does. It
// percent-encodes what a header cannot hold.
func fenceOf(header http.Header, of intent) int32 {
	for name, wanted := range map[string]string{"Once-Tenant": of.tenant, "Once-Scope": of.scope, "Once-Key": of.key} {
		lines := header[name]
		if len(lines) != 1 {
			return 0
		}
		if named, err := url.PathUnescape(lines[0]); err != nil || named != wanted {
			return 0
		}
	}
	lines := header["Once-Fence"]
	if len(lines) != 1 {
		return 0
	}
	fence, err := strconv.ParseInt(lines[0], 10, 32)
	if err != nil || fence < 1 || lines[0][0] < '1' {
		return 0
	}
	return int32(fence)
}

// take begins under a claim that a gateway has made. The contract looks at its fence when the outcome is
// stored.
func (a *attempt[T]) take(asking context.Context, session Session[T]) (*row, error) {
	var begun bool
	if err := session.Open(asking, a.begin, Query{SQL: "SELECT true"}, savepoint, &begun); err != nil {
		return nil, a.failed(asking, session, err)
	}
	return &row{verdict: "proceed", fence: &a.start.fence}, nil
}

// reported is finishQuery under the gateway's claim. A failure for good that is too large to keep is told
// as done, since the contract's fail has no result_type.
func (a *attempt[T]) reported(answer Answer, state, code, message string) (query Query, err error) {
	claim := Lease{scope: a.scope, key: a.key, Fence: int(a.start.fence), options: a.options}
	if state == "failed_final" && answer.ResultType != resultTooLarge {
		query, err = claim.failQuery(false, code, message, answer)
	} else {
		query, err = claim.completeQuery(answer)
	}
	// COMMIT goes with it, and must not follow where the outcome was stored before: another run under this
	// fence has had its effect then.
	query.SQL = "SELECT 1 / r.stored::integer = 1 FROM (" + query.SQL + ") AS r(stored)"
	return query, err
}

const divisionByZero = "22012"

// How long the gateway's claim is told that a lost COMMIT has done nothing: its once_timeout.
const freeWithin = 5 * time.Second

// lostCommit is about a COMMIT whose answer was lost: that nothing was done is stored under the same
// fence. That waits for a COMMIT that is under way, and one that comes later finds the claim taken. If it
// is refused, the outcome is stored, and the gateway sends it; else the outcome is unknown, and the intent is in doubt.
func (a *attempt[T]) lostCommit(ctx context.Context, cause error) error {
	claim := Lease{scope: a.scope, key: a.key, Fence: int(a.start.fence), options: a.options}
	query, err := claim.failQuery(true, reasonCommitLost.code, reasonCommitLost.message, Answer{})
	if err == nil {
		_, err = insist(context.WithoutCancel(ctx), freeWithin, a.client.of(a.options.tenant), query)
	}
	if err != nil {
		return ErrOutcomeUnknown.because(cause)
	}
	return ErrUnavailable.because(cause)
}

// handed runs a handler whose claim is the gateway's, without a transaction: the gateway does all of it.
func (m *middleware[T]) handed(c *call) {
	ctx := within(c.r.Context(), intent{c.scope, c.key, c.tenant})
	if m.work == nil {
		m.next.ServeHTTP(c.w, c.r.WithContext(ctx))
		return
	}
	if !m.read(c) {
		return
	}
	c.start(m.settings.HandlerTimeout, func() {})
	defer c.end()
	returned := false
	defer func() {
		if !returned { // a panic
			c.tell(effectUnknown)
		}
	}()
	answer, err := m.work(c.request(within(c.ctx, intent{c.scope, c.key, c.tenant})))
	returned = true
	final := asFinal(err)
	if final != nil {
		answer, err = final.Answer, nil
	}
	var none notDone
	switch {
	case final != nil && elsewhere(answer.Status, "", answer.Header) == endFinal:
		answer.send(c.w) // the gateway stores it as a failure, unless a header says otherwise
	case errors.As(err, &none):
		c.tell(effectNone)
		m.refuse(c, problemUnreached, refusal{err: err})
	case err != nil:
		c.tell(effectUnknown)
		m.refuse(c, problemInDoubt, refusal{err: err})
	default:
		c.tell(effectDone)
		answer.send(c.w)
	}
}

// tell says to a gateway in front what became of the effect.
func (c *call) tell(effect string) {
	if c.fence > 0 {
		c.w.Header().Set(onceEffect, effect)
	}
}
