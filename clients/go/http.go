// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
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
	// AnyHost leaves the host out of the fingerprint, for a service that is reached by several names. The
	// gateway's once_fingerprint method target content_type body is the same.
	AnyHost bool
	// Gateway says that every request comes through a pgonce gateway with the same scope, which has claimed
	// it already. Its claim is finished in the transaction of the effect; in LeaseMode, and by an
	// EffectHandler, the gateway does all of it. Without a gateway in front a client could write its headers.
	Gateway bool
	// Mode is TransactionMode, or LeaseMode.
	Mode Mode
	// HandlerTimeout ends an attempt, 30 s after it began to wait for a connection unless set: the client
	// gets the problem timed-out, and what was done is taken back (LeaseMode: in doubt). The handler's
	// context ends; one that goes on can do nothing any more with its transaction or its answer.
	HandlerTimeout time.Duration
	// ProblemBase stands before a problem's name in its type: the start of a URI, "urn:pgonce:problem:" unless set.
	ProblemBase string
	// Logger is told of requests that were refused (debug), and of what went wrong (error): with the
	// SQLSTATE, the cause and the instance of the problem document that the client got. It is never told
	// a key. slog.Default() unless set.
	Logger *slog.Logger
	// ErrorHandler answers an error of the application that came when the handler had returned: a deferred
	// constraint that fails at COMMIT, a Commit of its own. Nothing was done. 500 unless set.
	ErrorHandler func(w http.ResponseWriter, r *http.Request, err error)
}

// Mode says what a protected handler works in.
type Mode int

const (
	// TransactionMode: in a transaction, which is committed with its answer. It holds a connection of the
	// pool meanwhile, so it must not wait for a second one of the same pool.
	TransactionMode Mode = iota
	// LeaseMode: under a lease, and without a connection of ours. For effects elsewhere, and for handlers
	// with transactions of their own. What its answer means is decided as at the gateway: a 5xx, 408, a
	// panic, or a process that ends leave a doubt, and nothing runs until that is decided.
	LeaseMode
)

const (
	bodyMaxDefault        = 16 << 20
	answerMaxDefault      = 1 << 20
	handlerTimeoutDefault = 30 * time.Second

	storedSentence = "The service answered %d, which does not say whether the effect happened."
)

type transactionKey[T any] struct{ client *Client[T] }

// Tx is the transaction that Middleware has opened for this request; what is done in it is committed
// together with the answer. Without one (a request that is not protected) it panics: see TxIn.
func (c *Client[T]) Tx(ctx context.Context) T {
	tx, ok := c.TxIn(ctx)
	if !ok {
		panic("pgonce: this request is not protected, or runs in LeaseMode, so there is no transaction: ask with TxIn")
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
// and a panic, roll back. Once-Effect (none, done, unknown) in the answer overrides that. The handler is
// never run twice by one request.
//
// A client that leaves does not end the handler's context: the answer is finished, and stored for its
// retry. An answer with less than its Content-Length is taken back. Flush does nothing while an answer is
// held, but an event stream (text/event-stream) passes as it is written: its transaction is committed with
// its head, Tx refuses afterwards, and a retry is told that it was done (too-large). Hijack is an error.
//
// It panics at once if the settings are incomplete.
func (c *Client[T]) Middleware(settings HTTP) func(http.Handler) http.Handler {
	switch {
	case settings.Scope == "" && settings.ScopeOf == nil:
		panic("pgonce: Middleware needs a Scope")
	case settings.Tenant == nil && !settings.SingleTenant:
		panic("pgonce: whose keys are these? Middleware needs Tenant, or SingleTenant if there is only one caller: in a shared key space one client could read another's answer")
	}
	if settings.ProblemBase != "" && !isBase(settings.ProblemBase) {
		panic(fmt.Sprintf("pgonce: ProblemBase is the start of a URI: 1 to %d characters of ASCII, without spaces and %s", baseBytesMax, refusedInBase))
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
	if settings.HandlerTimeout <= 0 {
		settings.HandlerTimeout = handlerTimeoutDefault
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
// The request that the work gets has the lease's context, which ends after HandlerTimeout. What it returns is what Effect says: an
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
