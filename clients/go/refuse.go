// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
)

// refusal has the details of a problem. err: the error that is logged with it.
type refusal struct {
	more, trace string
	err         error
}

// pgonce's own answers keep the headers that the layers outside have set.
func (m *middleware[T]) refuse(c *call, p problem, why refusal) {
	instance := newInstance()
	level := slog.LevelDebug
	if why.err != nil {
		level = slog.LevelError
	}
	m.log(c, level, p.slug, instance, why.err)
	header := c.w.Header()
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")
	if why.trace != "" {
		header.Set("Idempotency-Traceparent", why.trace)
	}
	if p.retryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	sendBody(c.w, p.status, p.document(m.settings.ProblemBase, why.more, instance))
}

func (m *middleware[T]) log(c *call, level slog.Level, problem, instance string, err error) {
	logger := m.settings.Logger
	if logger == nil {
		logger = slog.Default()
	}
	ctx := c.r.Context()
	if !logger.Enabled(ctx, level) {
		return
	}
	attributes := []slog.Attr{slog.String("method", c.r.Method), slog.String("scope", c.scope), slog.String("problem", problem)}
	if instance != "" {
		attributes = append(attributes, slog.String("instance", instanceBase+instance))
	}
	if state := SQLStateOf(err); state != "" {
		attributes = append(attributes, slog.String("sqlstate", state))
	}
	if err != nil {
		attributes = append(attributes, slog.String("error", reasons(err)))
	}
	logger.LogAttrs(ctx, level, "pgonce: the request was refused", attributes...)
}

// An error with its causes, in a line.
func reasons(err error) string {
	text := ""
	for ; err != nil; err = errors.Unwrap(err) {
		more := strings.Join(strings.Fields(err.Error()), " ")
		switch {
		case text == "":
			text = more
		case !strings.Contains(text, more):
			text += ": " + more
		}
	}
	return text
}

func newInstance() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// An error of the application's that came after the handler, or a mistake in how it is put together.
func (m *middleware[T]) broken(c *call, err error) {
	m.log(c, slog.LevelError, "application", "", err)
	c.tell(effectNone)
	if m.settings.ErrorHandler != nil {
		m.settings.ErrorHandler(c.w, c.r, err)
		return
	}
	http.Error(c.w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
}

// Is it about what the handler did? The server's own troubles are not.
func ofApplication(err error) bool {
	for _, mistake := range []error{ErrSwallowed, ErrTransactionControl, ErrStreaming, ErrUnfinished, ErrAlreadyStarted, ErrAnotherFingerprint} {
		if errors.Is(err, mistake) {
			return true
		}
	}
	state := SQLStateOf(err)
	return len(state) == 5 && bySQLState[state] == nil && !isConflict(err) && !isDown(err) && state[:2] != "53" && state[:2] != "58" && state[:2] != "XX"
}

func (m *middleware[T]) timedOut(c *call) {
	if m.settings.Mode == LeaseMode {
		m.refuse(c, problemInDoubt, refusal{err: ErrTimedOut})
	} else {
		c.tell(effectNone)
		m.refuse(c, problemTimedOut, refusal{err: ErrTimedOut})
	}
}

// errorProblems: the problem that answers each error.
var errorProblems = []struct {
	err     *Error
	problem problem
}{
	// spec: error-problems
	{ErrScopeRequired, problemRefused},
	{ErrKeyMalformed, problemKeyMalformed},
	{ErrMismatch, problemMismatch},
	{ErrRefused, problemRefused},
	{ErrAlreadyFinished, problemNoAnswer},
	{ErrActive, problemActive},
	{ErrFinal, problemNoAnswer},
	{ErrInDoubt, problemInDoubt},
	{ErrExpired, problemExpired},
	// end of spec
}

func problemOf(err error) *problem {
	for i := range errorProblems {
		if errors.Is(err, errorProblems[i].err) {
			return &errorProblems[i].problem
		}
	}
	return nil
}

func (m *middleware[T]) failed(c *call, err error) {
	known := problemOf(err)
	ran := c.answer != nil
	isRefused := errors.Is(err, ErrCompletionRefused) || errors.Is(err, ErrFailureRefused)
	switch {
	case isRefused, errors.Is(err, ErrOutcomeUnknown), errors.Is(err, ErrInDoubt): // the gateway reads the problem, and asks the contract
	default:
		c.tell(effectNone)
	}
	switch {
	case c.fence > 0 && isRefused:
		m.refuse(c, problemActive, refusal{}) // another run under this fence has stored its outcome, or the fence is lost
	case c.claimed && (errors.Is(err, ErrActive) || errors.Is(err, ErrMismatch)):
		m.refuse(c, *known, refusal{more: errClaimedInFront.Error(), err: errClaimedInFront})
	case errors.Is(err, ErrInDoubt) && ran:
		m.refuse(c, problemInDoubt, refusal{err: err})
	case errors.Is(err, ErrOutcomeUnknown):
		m.refuse(c, problemNotStored, refusal{err: err})
	case known != nil:
		why := refusal{trace: traceOf(err)}
		switch *known {
		case problemInDoubt:
			why.more = m.doubtful(c)
		case problemMismatch:
			if strings.HasPrefix(strings.ToLower(c.r.Header.Get("Content-Type")), "multipart/") {
				why.more = multipartMore
			}
		case problemKeyMalformed:
			why.more = ErrKeyMalformed.Message
		case problemRefused:
			why.err = err
		}
		m.refuse(c, *known, why)
	case errors.Is(err, errLeft):
		m.refuse(c, problemUnavailable, refusal{}) // the client has left
	case errors.Is(err, ErrTimedOut), errors.Is(err, context.DeadlineExceeded), c.ctx.Err() != nil:
		m.refuse(c, problemTimedOut, refusal{err: err})
	case ran && ofApplication(err):
		if SQLStateOf(err) == "42501" {
			err = fmt.Errorf("the session's role cannot store the answer, or one that a function of the handler's has set: SET LOCAL ROLE NONE before it returns: %w", err)
		}
		m.broken(c, err)
	default:
		m.refuse(c, problemUnavailable, refusal{err: err})
	}
}

func traceOf(err error) string {
	var known *Error
	if errors.As(err, &known) {
		return known.Traceparent
	}
	return ""
}

// Which status left the doubt: try_start does not tell. Without it the document is whole, too.
func (m *middleware[T]) doubtful(c *call) string {
	var status *int32
	err := m.client.of(c.tenant).QueryRow(c.ctx, Query{SQL: sqlPeekStatus, Args: []any{c.scope, c.key, c.tenant}}, &status)
	if err != nil || value(status) <= 0 {
		return ""
	}
	return fmt.Sprintf(storedSentence, *status)
}

func (m *middleware[T]) replay(c *call, answer Answer) {
	switch {
	case answer.ResultType == resultTooLarge:
		m.refuse(c, problemTooLarge, refusal{trace: answer.Traceparent})
		return
	case answer.Status < 200 || answer.Status > 599:
		m.refuse(c, problemNoAnswer, refusal{trace: answer.Traceparent})
		return
	}
	header := c.w.Header()
	for name, values := range answer.Header {
		if !never(name) {
			header[http.CanonicalHeaderKey(name)] = values
		}
	}
	header.Set("Idempotency-Replayed", "true")
	if answer.Traceparent != "" {
		header.Set("Idempotency-Traceparent", answer.Traceparent)
	}
	sendBody(c.w, answer.Status, answer.Body)
}

func (a Answer) send(w http.ResponseWriter) {
	for name, values := range a.Header {
		w.Header()[http.CanonicalHeaderKey(name)] = values
	}
	status := a.Status
	if status == 0 {
		status = http.StatusOK
	}
	sendBody(w, status, a.Body)
}

func sendBody(w http.ResponseWriter, status int, body []byte) {
	if _, named := w.Header()["Content-Type"]; !named {
		w.Header()["Content-Type"] = nil // or net/http would make one up
	}
	if hasBody(status) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if hasBody(status) {
		_, _ = w.Write(body)
	}
}
