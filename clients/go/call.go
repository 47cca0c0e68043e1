// SPDX-License-Identifier: PostgreSQL

package once

import (
	"context"
	"log"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// call is one protected request: whose it is, and how long anybody waits for it.
type call struct {
	w           http.ResponseWriter
	r           *http.Request
	scope       string
	tenant, key string
	fence       int32 // of the gateway in front that has claimed it, and whose claim is finished here; 0: none has
	claimed     bool  // a gateway in front has claimed it, and the settings do not say that its claim is finished here
	body        []byte

	// ctx is the handler's. That the client leaves does not end it, so the answer is finished, and stored.
	// Its time does, and what else ends the request's.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// waiting is for a connection. A client that has left needs none.
	waiting context.Context
	visible atomic.Bool // the client's leaving
	timer   *time.Timer
	stop    []func()

	answer   *held // the handler's; nil: it did not run
	mu       sync.Mutex
	abandon  func() bool // while the handler runs: ends its attempt from another goroutine
	returned chan struct{}
	isCut    bool // the attempt was ended so, and the client has been told
}

// What a handler gets to see the end of its time, before its connection is taken away.
const grace = 250 * time.Millisecond

var (
	// ErrTimedOut is the cause of a handler's context, and of the problem timed-out.
	ErrTimedOut = &Error{Code: "timed_out", Status: 503, Retryable: true, Message: "the time of the request is over (HandlerTimeout)"}

	errLeft = &Error{Code: "left", Status: 503, Retryable: true, Message: "the client has left"}
)

// start begins its time. told answers a request whose handler does not return.
func (c *call) start(limit time.Duration, told func()) {
	outer := c.r.Context()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(outer))
	c.ctx, c.cancel, c.returned = ctx, cancel, make(chan struct{})
	c.stop = append(c.stop, func() { cancel(context.Canceled) })
	if deadline, has := outer.Deadline(); has {
		var stop context.CancelFunc
		c.ctx, stop = context.WithDeadline(ctx, deadline)
		c.stop = append(c.stop, stop)
	}
	waiting, leave := context.WithCancelCause(c.ctx)
	c.waiting = waiting
	c.stop = append(c.stop, func() { leave(context.Canceled) })
	unwatch := context.AfterFunc(outer, func() {
		leave(errLeft)
		// net/http cancels it when the client leaves; a layer outside has a deadline, or says why.
		if cause := context.Cause(outer); c.visible.Load() || cause != context.Canceled {
			cancel(cause)
		}
	})
	c.timer = time.AfterFunc(limit, func() { c.cutOff(told) })
	c.stop = append(c.stop, func() { unwatch(); c.timer.Stop() })
}

func (c *call) end() {
	for _, stop := range c.stop {
		stop()
	}
}

// cutOff ends the attempt of a handler whose time is over. A handler that heeds its context returns early.
func (c *call) cutOff(told func()) {
	c.cancel(ErrTimedOut)
	select {
	case <-c.returned:
		return
	case <-time.After(grace):
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandon == nil || !c.abandon() {
		return // it waits for the database, whose time is bounded
	}
	c.isCut = true
	defer func() {
		if caught := recover(); caught != nil {
			c.complain("pgonce: panic as a request was ended, %s %s: %v", c.r.Method, c.scope, caught)
		}
	}()
	c.answer.cutOff()
	if c.r.ProtoMajor == 1 {
		c.w.Header().Set("Connection", "close") // it serves no other request until the handler returns
	}
	told()
	_ = http.NewResponseController(c.w).Flush()
}

// complain logs as net/http does of a handler's panic. A layer outside, or the Logger, may panic where
// net/http does not catch it.
func (c *call) complain(format string, args ...any) {
	if server, there := c.r.Context().Value(http.ServerContextKey).(*http.Server); there && server.ErrorLog != nil {
		server.ErrorLog.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}

// serve runs the handler. It returns, or panics, when nothing else uses the call any longer.
func (c *call) serve(ctx context.Context, next http.Handler, begin func(Answer) error, abandon func() bool) {
	c.mu.Lock()
	c.abandon = abandon
	c.answer = newHeld(c.w, c.r, func(done Answer) error {
		err := begin(done)
		if err == nil {
			c.reveal()
		}
		return err
	})
	c.mu.Unlock()
	again := c.request(ctx)
	defer func() {
		close(c.returned)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.abandon = nil
		// The layers outside see what the handler has made of the request, a form or the mux's pattern, and
		// net/http deletes the files of the form.
		body := c.r.Body
		*c.r = *again.WithContext(c.r.Context())
		c.r.Body = body
	}()
	next.ServeHTTP(c.answer, again)
}

// An event stream has no end in time, and ends when the client leaves.
func (c *call) reveal() {
	c.timer.Stop()
	c.visible.Store(true)
	if outer := c.r.Context(); outer.Err() != nil {
		c.cancel(context.Cause(outer))
	}
}

// The request as the handler gets it: its body can be read again.
func (c *call) request(ctx context.Context) *http.Request {
	again := c.r.WithContext(ctx)
	again.Body = newBody(c.body)
	return again
}
