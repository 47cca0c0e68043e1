// SPDX-License-Identifier: PostgreSQL

package once

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
)

type middleware[T any] struct {
	client   *Client[T]
	settings HTTP
	kept     *headerNames
	next     http.Handler
	work     func(r *http.Request) (Answer, error) // of an EffectHandler
}

func (m *middleware[T]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	lines := r.Header["Idempotency-Key"]
	if !m.settings.protects(r.Method) || (m.settings.Optional && len(lines) == 0) {
		m.next.ServeHTTP(w, r)
		return
	}
	c := &call{w: w, r: r, scope: m.settings.scope(r)}
	switch {
	case len(lines) == 0:
		m.refuse(c, problemKeyMissing, refusal{})
		return
	case len(lines) > 1:
		m.refuse(c, problemKeyRepeated, refusal{})
		return
	}
	var err error
	if c.key, err = KeyOfHeader(lines[0], m.settings.StrictKeys, m.settings.KeyLengthMax); err != nil {
		m.refuse(c, problemKeyMalformed, refusal{more: errors.Unwrap(err).Error()})
		return
	}
	if !m.settings.SingleTenant {
		if c.tenant = m.settings.Tenant(r); c.tenant == "" {
			m.refuse(c, problemTenantMissing, refusal{})
			return
		}
		if !isName(c.tenant) {
			m.refuse(c, problemTenantMissing, refusal{more: tenantMalformed})
			return
		}
	}
	if fence := fenceOf(r.Header, intent{c.scope, c.key, c.tenant}); m.settings.Gateway {
		c.fence = fence
	} else {
		c.claimed = fence > 0
	}
	if c.fence > 0 && (m.work != nil || m.settings.Mode == LeaseMode) {
		m.handed(c)
		return
	}
	if !m.read(c) {
		return
	}
	c.start(m.settings.HandlerTimeout, func() { m.timedOut(c) })
	defer c.end()
	switch {
	case m.work != nil:
		m.effect(c)
	case m.settings.Mode == LeaseMode:
		m.lease(c)
	default:
		m.transaction(c)
	}
}

var errBodyTaken = errors.New("pgonce: a layer outside of Middleware has read the request's body (ParseForm does), so it cannot be told from another request: put that layer inside of Middleware, or KeepBody outside of both")

// The whole body, or an answer that refuses the request.
func (m *middleware[T]) read(c *call) bool {
	if whole, kept := c.r.Context().Value(bodyKey{}).([]byte); kept {
		c.body = whole
		if len(whole) > m.settings.BodyMax {
			m.refuse(c, problemBodyTooLarge, refusal{})
			return false
		}
		return true
	}
	from := bodyOf(c.r)
	read := wasRead(from)
	body, err := io.ReadAll(io.LimitReader(from, int64(m.settings.BodyMax)+1))
	var limited *http.MaxBytesError
	switch {
	case errors.As(err, &limited) || len(body) > m.settings.BodyMax:
		m.refuse(c, problemBodyTooLarge, refusal{})
	case err != nil:
		// It was cut short: half a request is not a request.
		m.log(c, slog.LevelDebug, "body", "", err)
		c.tell(effectNone)
		http.Error(c.w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
	case isTaken(c.r, len(body), read):
		m.broken(c, errBodyTaken)
	default:
		c.body = body
		return true
	}
	return false
}

// A request that was never sent over a connection may have no value here.
func bodyOf(r *http.Request) io.ReadCloser {
	if r.Body == nil {
		return http.NoBody
	}
	return r.Body
}

// wasRead says whether a body may have been read to its end. Those of net/http know; of any other kind
// nobody does.
func wasRead(body io.Reader) bool {
	at := reflect.ValueOf(body)
	for at.Kind() == reflect.Pointer || at.Kind() == reflect.Interface {
		at = at.Elem()
	}
	if at.Kind() == reflect.Struct {
		if known := at.FieldByName("sawEOF"); known.IsValid() && known.Kind() == reflect.Bool {
			return known.Bool()
		}
	}
	return true
}

// Somebody has read the body, in whole or in part: a whole one is as long as it was declared. Who
// decompresses it changes its length.
func isTaken(r *http.Request, length int, read bool) bool {
	switch {
	case length == 0:
		return r.ContentLength > 0 || r.ContentLength < 0 && read
	case r.ContentLength < 0:
		return r.MultipartForm != nil || len(r.PostForm) > 0
	default:
		return int64(length) < r.ContentLength && r.Header.Get("Content-Encoding") == ""
	}
}

type bodyKey struct{}

// KeepBody reads the body of a request, of bytesMax at most, and keeps it for the Middleware inside, so
// that layers between the two can read it as well: a check of forms against forgery, say.
func KeepBody(bytesMax int64) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(http.MaxBytesReader(w, bodyOf(r), bytesMax))
			var limited *http.MaxBytesError
			switch {
			case errors.As(err, &limited):
				http.Error(w, http.StatusText(http.StatusRequestEntityTooLarge), http.StatusRequestEntityTooLarge)
			case err != nil:
				http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
			default:
				r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
				r.Body = newBody(body)
				next.ServeHTTP(w, r)
			}
		})
	}
}

func newBody(body []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }

// As the request line has it, after the host in lower case.
func (m *middleware[T]) target(r *http.Request) string {
	target := r.RequestURI
	if target == "" {
		target = r.URL.RequestURI()
	}
	if _, rest, absolute := strings.Cut(target, "://"); absolute && !strings.HasPrefix(target, "/") {
		target = "/"
		if slash := strings.IndexAny(rest, "/?"); slash >= 0 {
			target = rest[slash:]
		}
	}
	if m.settings.AnyHost {
		return target
	}
	return strings.ToLower(r.Host) + target
}

func (m *middleware[T]) request(c *call) HTTPRequest {
	return HTTPRequest{Method: c.r.Method, Target: m.target(c.r), ContentType: c.r.Header.Get("Content-Type"), Body: c.body, CanonicalJSON: m.settings.CanonicalJSON}
}

func (m *middleware[T]) options(c *call) options {
	traceparent := ""
	if lines := c.r.Header["Traceparent"]; len(lines) == 1 {
		traceparent = lines[0]
	}
	o := m.client.options.with([]Option{Tenant(c.tenant), Wait(m.settings.Wait), Traceparent(traceparent)})
	o.responseMax, o.single, o.connecting = m.settings.AnswerMax, true, c.waiting
	return o
}

// The handler and its answer in one transaction.
func (m *middleware[T]) transaction(c *call) {
	o := m.options(c)
	start := &starter{fence: c.fence}
	if c.fence == 0 {
		var err error
		if start, err = newStarter(c.scope, c.key, m.request(c), o, o.trace(c.r.Context())); err != nil {
			m.failed(c, err)
			return
		}
	}
	returned := false
	defer func() {
		switch { // a panic
		case returned:
		case start.thrown:
			c.tell(effectUnknown)
		default:
			c.tell(effectNone)
		}
	}()
	told := ""
	answer, err := m.client.run(c.ctx, "http", c.scope, c.key, start, o, func(ctx context.Context, held holding[T]) (Answer, ending, error) {
		c.serve(context.WithValue(ctx, transactionKey[T]{m.client}, held.tx), m.next, held.settle, held.abandon)
		if c.isCut || c.ctx.Err() != nil {
			return Answer{}, endAbort, timedOut(context.Cause(c.ctx))
		}
		answer, effect, short, err := c.answer.end(m.kept)
		switch {
		case err != nil:
			return Answer{}, endAbort, err
		case short:
			told = effectNone
			return answer, endRelease, nil
		}
		how := meaning(answer.Status, effect, c.answer.frozen)
		switch {
		case how == endFinal:
			return answer, how, newFinal(reasonRefused.code, reasonRefused.message, answer)
		case how == endDoubt && c.fence > 0:
			told, how = effectUnknown, endRelease // the gateway notes the doubt
		case how == endRelease:
			told = effectNone
		}
		return answer, how, nil
	})
	returned = true
	switch final := asFinal(err); {
	case c.isCut:
	case final != nil && final.Answer.Replayed:
		m.replay(c, final.Answer)
	case err != nil && final == nil:
		m.failed(c, err)
	case answer.Replayed:
		m.replay(c, answer)
	default:
		if c.fence > 0 && told != "" {
			c.answer.frozen.Set(onceEffect, told)
		}
		c.answer.send()
	}
}

// What an answer means where all else is rolled back with it. A 4xx with Retry-After asks for the same request later.
func meaning(status int, effect string, header http.Header) ending {
	switch {
	case effect == effectNone:
		return endRelease
	case effect == effectDone:
		return endDone
	case effect == effectUnknown:
		return endDoubt
	case isRefusal(status), status < 200, status >= 500, status >= 400 && header.Get("Retry-After") != "":
		return endRelease
	case status >= 400:
		return endFinal
	default:
		return endDone
	}
}

var refusals = []int{
	// spec: statuses-rolled-back
	// In a transaction of the client's. By HTTP nothing was done, and the same request may well be answered otherwise soon. So is a 4xx with
	// Retry-After, each 5xx, and what is no final status of HTTP (below 200, above 599).
	307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429,
	// end of spec
}

func isRefusal(status int) bool { return slices.Contains(refusals, status) }

// The handler under a lease.
func (m *middleware[T]) lease(c *call) {
	o := m.options(c)
	o.noTakeover = true
	lease, stored, err := m.client.claimed(c.ctx, c.scope, c.key, m.request(c), o)
	switch final := asFinal(err); {
	case final != nil:
		m.replay(c, final.Answer)
		return
	case err != nil:
		m.failed(c, err)
		return
	case stored != nil:
		m.replay(c, *stored)
		return
	}
	if c.ctx.Err() != nil {
		_, err := lease.Release(c.ctx)
		m.failed(c, errors.Join(timedOut(context.Cause(c.ctx)), err))
		return
	}
	var reported atomic.Bool
	report := func(send func() error) (err error, mine bool) {
		if !reported.CompareAndSwap(false, true) {
			return nil, false
		}
		return send(), true
	}
	doubt := func(code, message string, status int) func() error {
		return func() error {
			_, err := lease.fail(c.ctx, nil, code, message, Answer{Status: status})
			return err
		}
	}
	// A report ends the lease's own context, and not the handler's; a loss ends both.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(lease.Context()))
	defer context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })()
	defer context.AfterFunc(lease.Context(), func() {
		if cause := context.Cause(lease.Context()); errors.Is(cause, ErrLeaseLost) {
			c.cancel(cause)
		}
	})()
	defer cancel(context.Canceled)
	begun, returned := false, false
	defer func() {
		if !returned {
			_, _ = report(doubt("panic", "the handler ended with a panic", 0))
		}
	}()
	c.serve(ctx, m.next, func(done Answer) error {
		begun = true
		err, _ := report(func() error { return lease.done(c.ctx, done) })
		return err
	}, func() bool {
		_, mine := report(doubt(reasonNoAnswer.code, ErrTimedOut.Message, 0))
		return mine
	})
	returned = true
	if c.isCut || begun {
		if begun && !c.answer.streaming {
			m.refuse(c, problemNotStored, refusal{err: c.answer.refused})
		}
		return
	}
	if cause := context.Cause(c.ctx); cause != nil {
		_, _ = report(doubt(reasonNoAnswer.code, told(cause.Error()), 0))
		m.refuse(c, problemInDoubt, refusal{err: cause})
		return
	}
	answer, effect, short, err := c.answer.end(m.kept)
	if err != nil {
		_, _ = report(doubt(reasonNotKept.code, told(err.Error()), 0))
		m.refuse(c, problemInDoubt, refusal{err: err})
		return
	}
	err, _ = report(func() error {
		switch how := elsewhere(answer.Status, effect, c.answer.frozen); {
		case short:
			return doubt(reasonNoAnswer.code, "the answer has less than it declared", answer.Status)()
		case how == endRelease:
			again := true
			_, err := lease.fail(c.ctx, &again, reasonAgain.code, reasonAgain.message, Answer{Status: finalStatus(answer.Status)})
			return err
		case how == endDoubt:
			return doubt(reasonUnclear.code, reasonUnclear.message, finalStatus(answer.Status))()
		case how == endFinal:
			return lease.final(c.ctx, newFinal(reasonRefused.code, reasonRefused.message, answer))
		default:
			return lease.done(c.ctx, answer)
		}
	})
	if err != nil {
		m.refuse(c, problemNotStored, refusal{err: err})
		return
	}
	c.answer.send()
}

var askingAlways = []int{
	// spec: statuses-asking-always
	// Elsewhere: HTTP itself says of these that the same request is sent again: over another connection (RFC 9110, 15.5.20), or after the
	// handshake (RFC 8470, 5.2).
	421, 425,
	// end of spec
}

var asking = map[int]string{
	// spec: statuses-asking
	// Elsewhere: the header with which a status asks for the same request once more, so that nothing was done. A 4xx or a 503 asks with
	// Retry-After.
	307: "Location",
	308: "Location",
	401: "WWW-Authenticate",
	407: "Proxy-Authenticate",
	// end of spec
}

// What an answer means where nothing is rolled back: lib/http/decide.c has the same.
func elsewhere(status int, effect string, header http.Header) ending {
	has := func(name string) bool { return header.Get(name) != "" }
	switch {
	case effect != "":
		return meaning(status, effect, header)
	case status < 200:
		return endDoubt // no final status of HTTP, as one above 599
	case status < 300:
		return endDone
	case slices.Contains(askingAlways, status), (status < 500 || status == 503) && status >= 400 && has("Retry-After"), has(asking[status]):
		return endRelease
	case status == 408, status >= 500:
		return endDoubt
	case status >= 400:
		return endFinal
	default:
		return endDone
	}
}

// The work of an EffectHandler.
func (m *middleware[T]) effect(c *call) {
	o := m.options(c)
	o.noTakeover = true
	worked := false
	first := http.Header{}
	answer, err := m.client.effect(c.ctx, c.scope, c.key, m.request(c), func(ctx context.Context) (Answer, error) {
		worked = true
		answer, err := m.work(c.request(ctx))
		if final := asFinal(err); final != nil {
			stored := *final
			stored.Answer, first = m.keep(final.Answer)
			return answer, &stored
		}
		answer, first = m.keep(answer)
		return answer, err
	}, o)
	if final := asFinal(err); final != nil {
		answer, err = final.Answer, nil
	}
	var none notDone
	switch {
	case errors.As(err, &none):
		m.refuse(c, problemUnreached, refusal{err: err})
	case errors.Is(err, ErrInDoubt) && worked:
		m.refuse(c, problemInDoubt, refusal{err: err})
	case err != nil && worked:
		m.refuse(c, problemNotStored, refusal{err: err})
	case err != nil:
		m.failed(c, err)
	case answer.Replayed:
		m.replay(c, answer)
	default:
		answer.Header = first
		answer.send(c.w)
	}
}

// What of an answer is stored; and its headers for the client, who gets all of them once.
func (m *middleware[T]) keep(answer Answer) (Answer, http.Header) {
	if answer.Status == 0 {
		answer.Status = http.StatusOK
	}
	all := answer.Header
	answer.Header = m.kept.of(all)
	return answer, all
}

func timedOut(cause error) error {
	var known *Error
	if errors.As(cause, &known) {
		return known
	}
	return ErrTimedOut.because(fmt.Errorf("the request's context ended: %w", cause))
}
