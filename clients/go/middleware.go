// SPDX-License-Identifier: PostgreSQL

package once

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// HTTP says how Middleware protects requests. Scope and Tenant are needed; everything else has the
// gateway's default.
type HTTP struct {
	// Scope names the kind of operation: "orders". ScopeOf decides by the request, in its place.
	Scope   string
	ScopeOf func(*http.Request) string
	// Tenant says whose key it is, as authentication has found: a request's header is no proof. An
	// empty one is refused. SingleTenant in its place says that there is but one caller.
	Tenant       func(*http.Request) string
	SingleTenant bool
	// Optional lets requests without a key pass, unprotected.
	Optional bool
	// Methods that are protected: POST and PATCH unless set. Others pass.
	Methods []string
	// StrictKeys takes keys in quotes only. KeyLengthMax: 255 unless set.
	StrictKeys   bool
	KeyLengthMax int
	// Wait is how long a duplicate waits for its running original; 0: 409 at once.
	Wait time.Duration
	// BodyMax is the largest request body, 16 MiB unless set; a larger one is 413.
	BodyMax int
	// AnswerMax is the largest answer that is kept, 1 MiB unless set. A larger one is sent, and
	// remembered as done; more than 64 MiB is refused.
	AnswerMax int
	// Headers that are stored and replayed, names or prefixes that end in *; nil: the gateway's list.
	Headers []string
	// CanonicalJSON: another spelling of the same JSON is the same request.
	CanonicalJSON bool
	// ProblemBase stands before a problem's name in its type.
	ProblemBase string
	// OnError is told what went wrong, once for a request that it happened to; package log is, unless
	// set. The error's text has the reason, and the instance of the problem document that the client
	// got. It is never told a key.
	OnError func(r *http.Request, err error)
}

const (
	bodyMaxDefault   = 16 << 20
	answerMaxDefault = 1 << 20
	answerHeldMax    = 64 << 20

	storedSentence = "The service answered %d, which does not say whether the effect happened."
)

// ErrStreaming: the answer has no end, or is too large to be held, so that it could not be replayed.
// The effect was rolled back. Serve it outside of Middleware.
var ErrStreaming = &Error{Code: "streaming", Status: 500, Message: "a protected answer cannot be a stream, nor larger than 64 MiB: nothing was done"}

type transactionKey[T any] struct{ client *Client[T] }

// Tx is the transaction that Middleware has opened for this request; what is done in it is committed
// together with the answer. Without one (a request that is not protected) it panics: see TxIn.
func (c *Client[T]) Tx(ctx context.Context) T {
	tx, ok := c.TxIn(ctx)
	if !ok {
		panic("pgonce: this request is not protected, so there is no transaction: ask with TxIn")
	}
	return tx
}

// TxIn is Tx for handlers that also serve requests without a key.
func (c *Client[T]) TxIn(ctx context.Context) (T, bool) {
	tx, ok := ctx.Value(transactionKey[T]{c}).(T)
	return tx, ok
}

// Middleware makes a handler retry-safe: the first request with a key runs it, in one transaction
// with the answer, and every later one gets that answer. It takes the gateway's decisions, and
// answers with its documents. Put it behind authentication: then replays are behind it too.
//
//	protect := db.Middleware(once.HTTP{Scope: "orders", Tenant: userOf})
//	mux.Handle("/orders", authenticated(protect(placeOrder)))
//
// The handler gets its transaction by Tx. Its answer is held until COMMIT is through. What it means
// is decided as at the gateway: 2xx and 3xx are stored with the effect; a 4xx is stored, and the
// effect taken back; 401, 403, 407, 408, 409, 421, 423, 425, 429, 307 and 308 release the key; 5xx,
// and a panic, roll back. Once-Effect (none, done, unknown) in the answer overrides that. A conflict
// between transactions runs the handler again, with the same body.
//
// The ResponseWriter is no http.Flusher and no http.Hijacker; text/event-stream is refused.
//
// It panics at once if the settings are incomplete.
func (c *Client[T]) Middleware(settings HTTP) func(http.Handler) http.Handler {
	switch {
	case settings.Scope == "" && settings.ScopeOf == nil:
		panic("pgonce: Middleware needs a Scope")
	case settings.Tenant == nil && !settings.SingleTenant:
		panic("pgonce: whose keys are these? Middleware needs Tenant, or SingleTenant if there is only one caller: in a shared key space one client could read another's answer")
	}
	kept := keptNames
	if settings.Headers != nil {
		kept = headerNamesOf(settings.Headers)
	}
	for _, pattern := range settings.Headers {
		if never(strings.TrimSuffix(pattern, "*")) {
			panic("pgonce: " + pattern + " belongs to one answer only, and is never replayed")
		}
	}
	if settings.Methods == nil {
		settings.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if settings.BodyMax <= 0 {
		settings.BodyMax = bodyMaxDefault
	}
	if settings.AnswerMax <= 0 {
		settings.AnswerMax = answerMaxDefault
	}
	if settings.OnError == nil {
		settings.OnError = func(r *http.Request, err error) {
			log.Printf("pgonce: method=%s scope=%s: %v", r.Method, settings.scope(r), err)
		}
	}
	return func(next http.Handler) http.Handler {
		return &middleware[T]{client: c, settings: settings, kept: kept, next: next}
	}
}

// EffectHandler is the endpoint of an effect that is elsewhere (a payment provider): the work runs at
// most once for each key, as Effect runs it, and every request gets its answer or the gateway's
// problem document.
//
//	mux.Handle("/charges", authenticated(db.EffectHandler(once.HTTP{Scope: "charges", Tenant: userOf}, charge)))
//
// The request that the work gets has the lease's context. What it returns is what Effect says: an
// answer is stored, whatever its status; Fail's answer is stored for good; after NotDone the client
// gets 502 with Retry-After, and a retry runs; after any other error it gets 409 in-doubt, as all of its
// retries do until that is decided. There is no transaction, so Tx panics.
//
// It panics at once if the settings are incomplete.
func (c *Client[T]) EffectHandler(settings HTTP, work func(r *http.Request) (Answer, error)) http.Handler {
	unprotected := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := work(r)
		if final := asFinal(err); final != nil {
			answer, err = final.Answer, nil
		}
		if err != nil {
			panic(err) // as any other handler's
		}
		answer.send(w)
	})
	handler := c.Middleware(settings)(unprotected).(*middleware[T])
	handler.work = work
	return handler
}

func (s *HTTP) scope(r *http.Request) string {
	if s.ScopeOf != nil {
		return s.ScopeOf(r)
	}
	return s.Scope
}

func (s *HTTP) protects(method string) bool {
	for _, each := range s.Methods {
		if strings.EqualFold(each, method) {
			return true
		}
	}
	return false
}

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
	switch {
	case len(lines) == 0:
		m.refuse(w, problemKeyMissing, "", "", newInstance())
		return
	case len(lines) > 1:
		m.refuse(w, problemKeyRepeated, "", "", newInstance())
		return
	}
	key, err := KeyOfHeader(lines[0], m.settings.StrictKeys, m.settings.KeyLengthMax)
	if err != nil {
		m.refuse(w, problemKeyMalformed, errors.Unwrap(err).Error(), "", newInstance())
		return
	}
	tenant := ""
	if !m.settings.SingleTenant {
		if tenant = m.settings.Tenant(r); tenant == "" {
			m.refuse(w, problemTenantMissing, "", "", newInstance())
			return
		}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, int64(m.settings.BodyMax)+1))
	if err != nil {
		// The client broke off; there is nobody to answer.
		http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
		return
	}
	if len(body) > m.settings.BodyMax {
		m.refuse(w, problemBodyTooLarge, "", "", newInstance())
		return
	}
	if m.work != nil {
		m.effect(w, r, tenant, key, body)
	} else {
		m.run(w, r, tenant, key, body)
	}
}

// As the request line has it, after the host in lower case.
func targetOf(r *http.Request) string {
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
	return strings.ToLower(r.Host) + target
}

func (m *middleware[T]) request(r *http.Request, body []byte) HTTPRequest {
	return HTTPRequest{Method: r.Method, Target: targetOf(r), ContentType: r.Header.Get("Content-Type"), Body: body, CanonicalJSON: m.settings.CanonicalJSON}
}

func (m *middleware[T]) options(r *http.Request, tenant string) options {
	traceparent := ""
	if lines := r.Header["Traceparent"]; len(lines) == 1 {
		traceparent = lines[0]
	}
	o := m.client.options.with([]Option{Tenant(tenant), Wait(m.settings.Wait), Traceparent(traceparent)})
	o.responseMax = m.settings.AnswerMax
	return o
}

func withBody(r *http.Request, ctx context.Context, body []byte) *http.Request {
	again := r.WithContext(ctx)
	again.Body = io.NopCloser(bytes.NewReader(body))
	again.ContentLength = int64(len(body))
	return again
}

func (m *middleware[T]) effect(w http.ResponseWriter, r *http.Request, tenant, key string, body []byte) {
	o := m.options(r, tenant)
	o.noTakeover = true
	worked := false
	first := http.Header{}
	answer, err := m.client.effect(r.Context(), m.settings.scope(r), key, m.request(r, body), func(ctx context.Context) (Answer, error) {
		worked = true
		answer, err := m.work(withBody(r, ctx, body))
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
		m.refuse(w, problemUnreached, "", "", m.log(r, err))
	case errors.Is(err, ErrInDoubt) && worked:
		m.refuse(w, problemInDoubt, "", "", m.log(r, err))
	case errors.Is(err, ErrInDoubt):
		m.refuse(w, problemInDoubt, m.doubtful(r, tenant, key), traceOf(err), newInstance())
	case err != nil && worked:
		m.refuse(w, problemNotStored, "", "", m.log(r, err))
	case err != nil && !worked:
		m.failed(w, r, err)
	case answer.Replayed:
		m.replay(w, answer)
	default:
		answer.Header = first
		answer.send(w)
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

func (m *middleware[T]) run(w http.ResponseWriter, r *http.Request, tenant, key string, body []byte) {
	var last *recorder
	o := m.options(r, tenant)
	start, err := newStarter(m.settings.scope(r), key, m.request(r, body), o, o.trace(r.Context()))
	if err != nil {
		m.failed(w, r, err)
		return
	}
	answer, err := m.client.run(r.Context(), "http", m.settings.scope(r), key, start, o, func(ctx context.Context, tx T) (Answer, ending, error) {
		last = newRecorder()
		m.next.ServeHTTP(last, withBody(r, context.WithValue(ctx, transactionKey[T]{m.client}, tx), body))
		return last.end(m.kept)
	})
	if final := asFinal(err); final != nil {
		answer, err = final.Answer, nil
	}
	switch {
	case errors.Is(err, ErrInDoubt):
		m.refuse(w, problemInDoubt, m.doubtful(r, tenant, key), traceOf(err), newInstance())
	case err != nil:
		m.failed(w, r, err)
	case answer.Replayed:
		m.replay(w, answer)
	default:
		last.send(w)
	}
}

func (m *middleware[T]) replay(w http.ResponseWriter, answer Answer) {
	if answer.ResultType == resultTooLarge {
		m.refuse(w, problemTooLarge, "", answer.Traceparent, newInstance())
		return
	}
	if answer.Status < 200 || answer.Status > 599 {
		m.refuse(w, problemNoAnswer, "", answer.Traceparent, newInstance())
		return
	}
	for name, values := range answer.Header {
		if !never(name) {
			for _, value := range values {
				w.Header().Add(name, value)
			}
		}
	}
	w.Header().Set("Idempotency-Replayed", "true")
	if answer.Traceparent != "" {
		w.Header().Set("Idempotency-Traceparent", answer.Traceparent)
	}
	sendBody(w, answer.Status, answer.Body)
}

func sendBody(w http.ResponseWriter, status int, body []byte) {
	if _, named := w.Header()["Content-Type"]; !named && len(body) == 0 {
		w.Header()["Content-Type"] = nil // or net/http would make one up
	}
	bodiless := status == http.StatusNoContent || status == http.StatusNotModified || status < 200
	if !bodiless {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	if !bodiless {
		_, _ = w.Write(body)
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
func (m *middleware[T]) doubtful(r *http.Request, tenant, key string) string {
	var status *int32
	err := m.client.door.QueryRow(r.Context(), Query{SQL: "SELECT response_status FROM once.peek($1::text, $2::text, $3::text)",
		Args: []any{m.settings.scope(r), key, tenant}}, &status)
	if err != nil || value(status) <= 0 {
		return ""
	}
	return fmt.Sprintf(storedSentence, *status)
}

func (m *middleware[T]) failed(w http.ResponseWriter, r *http.Request, err error) {
	more, trace := "", traceOf(err)
	switch {
	case errors.Is(err, ErrMismatch):
		if strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "multipart/") {
			more = multipartMore
		}
		m.refuse(w, problemMismatch, more, "", newInstance())
	case errors.Is(err, ErrActive):
		m.refuse(w, problemActive, "", trace, newInstance())
	case errors.Is(err, ErrExpired):
		m.refuse(w, problemExpired, "", trace, newInstance())
	case errors.Is(err, ErrKeyMalformed):
		m.refuse(w, problemKeyMalformed, ErrKeyMalformed.Message, "", newInstance())
	case errors.Is(err, ErrScopeRequired), errors.Is(err, ErrRefused):
		m.refuse(w, problemRefused, "", "", m.log(r, err))
	case errors.Is(err, ErrOutcomeUnknown):
		m.refuse(w, problemNotStored, "", "", m.log(r, err))
	case errors.Is(err, ErrSwallowed), errors.Is(err, ErrTransactionEnded), errors.Is(err, ErrStreaming), errors.Is(err, ErrNotStarted):
		// A mistake of the application; a retry will meet it again.
		m.settings.OnError(r, err)
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	default:
		m.refuse(w, problemUnavailable, "", "", m.log(r, err))
	}
}

// failure is what OnError is told.
type failure struct {
	error
	instance string
}

func (f failure) Unwrap() error { return f.error }

func (f failure) Error() string {
	text := oneLine(f.error)
	for cause := errors.Unwrap(f.error); cause != nil; cause = errors.Unwrap(cause) {
		if more := oneLine(cause); !strings.Contains(text, more) {
			text += ": " + more
		}
	}
	return text + " instance=" + instanceBase + f.instance
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// The instance that the client is told with the problem.
func (m *middleware[T]) log(r *http.Request, err error) string {
	instance := newInstance()
	m.settings.OnError(r, failure{err, instance})
	return instance
}

func newInstance() string {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

func (m *middleware[T]) refuse(w http.ResponseWriter, p problem, more, trace, instance string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	if trace != "" {
		w.Header().Set("Idempotency-Traceparent", trace)
	}
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	sendBody(w, p.status, p.document(m.settings.ProblemBase, more, instance))
}

// recorder holds an answer until it is stored. It is no Flusher and no Hijacker on purpose.
type recorder struct {
	header  http.Header
	frozen  http.Header // as they were when the head was written
	status  int
	body    bytes.Buffer
	refused error
}

func newRecorder() *recorder { return &recorder{header: http.Header{}} }

func (rec *recorder) Header() http.Header { return rec.header }

func (rec *recorder) WriteHeader(status int) {
	if rec.status != 0 || (status >= 100 && status < 200 && status != http.StatusSwitchingProtocols) {
		return // interim answers are dropped, as at the gateway
	}
	rec.status = status
	rec.frozen = rec.header.Clone()
	if strings.HasPrefix(strings.ToLower(rec.header.Get("Content-Type")), "text/event-stream") || status == http.StatusSwitchingProtocols {
		rec.refused = ErrStreaming
	}
}

func (rec *recorder) Write(piece []byte) (int, error) {
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if rec.refused == nil && rec.body.Len()+len(piece) > answerHeldMax {
		rec.refused = ErrStreaming
	}
	if rec.refused != nil {
		return 0, rec.refused
	}
	return rec.body.Write(piece)
}

// What the handler's answer means, and what of it is stored.
func (rec *recorder) end(kept *headerNames) (Answer, ending, error) {
	if rec.status == 0 {
		rec.WriteHeader(http.StatusOK)
	}
	if rec.refused != nil {
		return Answer{}, endAbort, rec.refused
	}
	said := rec.frozen["Once-Effect"]
	rec.frozen.Del("Once-Effect")
	if _, named := rec.frozen["Content-Type"]; !named && rec.body.Len() > 0 {
		rec.frozen.Set("Content-Type", http.DetectContentType(rec.body.Bytes()))
	}
	answer := Answer{Status: rec.status, Body: append([]byte{}, rec.body.Bytes()...), Header: kept.of(rec.frozen)}
	effect := ""
	if len(said) == 1 {
		effect = strings.ToLower(said[0])
	}
	switch effect {
	case "none":
		return answer, endRelease, nil
	case "done":
		return answer, endDone, nil
	case "unknown":
		return answer, endDoubt, nil
	}
	switch {
	case isRefusal(rec.status), rec.status >= 500:
		return answer, endRelease, nil
	case rec.status >= 400:
		return answer, endFinal, newFinal("", "", answer)
	default:
		return answer, endDone, nil
	}
}

// By HTTP nothing was done, and the same request may well be answered otherwise soon.
func isRefusal(status int) bool {
	switch status {
	case 307, 308, 401, 403, 407, 408, 409, 421, 423, 425, 429:
		return true
	}
	return false
}

func (rec *recorder) send(w http.ResponseWriter) {
	for name, values := range rec.frozen {
		w.Header()[name] = values
	}
	sendBody(w, rec.status, rec.body.Bytes())
}
