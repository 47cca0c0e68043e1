// SPDX-License-Identifier: PostgreSQL

package once

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const answerHeldMax = 64 << 20

// ErrStreaming: the answer is too large to be held, or switches to another protocol. It was taken back.
// Serve it outside of Middleware.
var ErrStreaming = &Error{Code: "streaming", Status: 500, Message: "a protected answer cannot switch protocols, nor be larger than 64 MiB: serve it outside of Middleware"}

// held is the ResponseWriter of a protected handler. It holds the answer until that is stored, and then
// writes it as the handler did. Interim answers (1xx) pass at once. An event stream passes as it is
// written, from its head on, which is when begin has committed.
type held struct {
	w     http.ResponseWriter
	r     *http.Request
	begin func(Answer) error

	mu             sync.Mutex // a handler that is waited for no longer may write still
	header         http.Header
	outer, frozen  http.Header // as the layers outside have set them; as they were when the head was written
	status         int
	explicit, body bool // WriteHeader was called; Write was
	flushedAt      int  // how much had been written when it was flushed first; -1: it was not
	declared       int64
	overrun        bool // more was written than declared, which ends the connection
	bytes          bytes.Buffer
	streaming      bool
	refused        error
}

func newHeld(w http.ResponseWriter, r *http.Request, begin func(Answer) error) *held {
	outer := w.Header().Clone()
	if outer == nil {
		outer = http.Header{}
	}
	return &held{w: w, r: r, begin: begin, outer: outer, header: outer.Clone(), flushedAt: -1, declared: -1}
}

func (h *held) Header() http.Header { return h.header }

func (h *held) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status)) // as net/http does
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.status != 0 || h.refused != nil:
	case status < 200 && status != http.StatusSwitchingProtocols:
		before := h.w.Header().Clone()
		replace(h.w.Header(), h.header)
		h.w.WriteHeader(status)
		replace(h.w.Header(), before)
	default:
		h.explicit = true
		h.head(status)
	}
}

func (h *held) head(status int) {
	h.status, h.frozen = status, h.header.Clone()
	if text := h.frozen.Get("Content-Length"); text != "" {
		if length, err := strconv.ParseInt(text, 10, 64); err == nil && length >= 0 {
			h.declared = length
		} else {
			h.frozen.Del("Content-Length") // as net/http does
		}
	}
	switch {
	case status == http.StatusSwitchingProtocols:
		h.refused = ErrStreaming
	case status >= 200 && status < 300 && strings.HasPrefix(strings.ToLower(h.frozen.Get("Content-Type")), "text/event-stream"):
		if h.refused = h.begin(Answer{Status: status, ResultType: resultTooLarge}); h.refused == nil {
			h.streaming = true
			h.frozen.Del(onceEffect)
			replace(h.w.Header(), h.frozen)
			h.w.WriteHeader(status)
		}
	}
}

func (h *held) Write(piece []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status == 0 && h.refused == nil {
		h.head(http.StatusOK)
	}
	switch {
	case h.refused != nil:
		return 0, h.refused
	case h.streaming:
		return h.w.Write(piece)
	case !hasBody(h.status):
		return 0, http.ErrBodyNotAllowed
	case h.overrun || (h.declared >= 0 && int64(h.bytes.Len()+len(piece)) > h.declared):
		h.overrun = true
		return 0, http.ErrContentLength
	case h.bytes.Len()+len(piece) > answerHeldMax:
		h.refused = ErrStreaming
		return 0, h.refused
	}
	h.body = true
	return h.bytes.Write(piece)
}

// Flush says that the head is written; the answer is held all the same, unless it is an event stream.
func (h *held) Flush() { _ = h.FlushError() }

// FlushError is Flush, for http.ResponseController.
func (h *held) FlushError() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status == 0 && h.refused == nil {
		h.head(http.StatusOK)
	}
	if h.streaming {
		return http.NewResponseController(h.w).Flush()
	}
	if h.flushedAt < 0 {
		h.flushedAt = h.bytes.Len()
	}
	return h.refused
}

var errHijack = errors.New("pgonce: the connection of a protected request cannot be taken over, since its answer is to be stored: serve it outside of Middleware")

// Hijack is refused.
func (h *held) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errHijack }

func (h *held) Push(target string, opts *http.PushOptions) error {
	if pusher, ok := h.w.(http.Pusher); ok {
		return pusher.Push(target, opts)
	}
	return http.ErrNotSupported
}

// What else http.ResponseController does. Unwrap would let it flush past what is held.
func (h *held) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(h.w).SetReadDeadline(t)
}
func (h *held) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(h.w).SetWriteDeadline(t)
}
func (h *held) EnableFullDuplex() error { return http.NewResponseController(h.w).EnableFullDuplex() }

// cutOff: the client no longer waits for the answer.
func (h *held) cutOff() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = http.ErrHandlerTimeout
}

func replace(into, with http.Header) {
	for name := range into {
		if _, stays := with[name]; !stays {
			delete(into, name)
		}
	}
	maps.Copy(into, with)
}

func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// end takes the answer, which is short where it has less than it declared. effect: what the answer says
// of it (Once-Effect).
func (h *held) end(kept *headerNames) (answer Answer, effect string, short bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused != nil {
		return Answer{}, "", false, h.refused
	}
	if h.status == 0 {
		h.head(http.StatusOK)
	}
	effect = saidOf(h.frozen[onceEffect])
	h.frozen.Del(onceEffect)
	short = h.declared >= 0 && h.r.Method != http.MethodHead && hasBody(h.status) && int64(h.bytes.Len()) < h.declared
	// A body of no bytes is not nil, which is stored as none.
	return Answer{Status: h.status, Body: append([]byte{}, h.bytes.Bytes()...), Header: kept.of(h.own())}, effect, short, nil
}

// net/http writes no line's end within a value.
var lines = strings.NewReplacer("\n", " ", "\r", " ")

// The headers that are the handler's: those that the layers outside have set are set again, for each
// replay. But the type goes with the body.
func (h *held) own() http.Header {
	own := http.Header{}
	for name, values := range h.frozen {
		if name == "Content-Type" || !slices.Equal(values, h.outer[name]) {
			own[name] = nil
			for _, value := range values {
				own[name] = append(own[name], strings.TrimSpace(lines.Replace(value)))
			}
		}
	}
	// As net/http finds it, from the first bytes that are written.
	first := h.bytes.Bytes()
	if h.flushedAt >= 0 {
		first = first[:h.flushedAt]
	}
	if _, named := own["Content-Type"]; !named && len(first) > 0 && h.frozen.Get("Content-Encoding") == "" {
		own.Set("Content-Type", http.DetectContentType(first))
	}
	return own
}

// send writes the answer as the handler did.
func (h *held) send() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.streaming {
		replace(h.w.Header(), h.frozen)
		if h.explicit {
			h.w.WriteHeader(h.status)
		}
		body := h.bytes.Bytes()
		if h.flushedAt > 0 {
			_, _ = h.w.Write(body[:h.flushedAt])
		}
		if h.flushedAt >= 0 {
			_ = http.NewResponseController(h.w).Flush()
			body = body[h.flushedAt:]
		}
		if h.body && (h.flushedAt < 0 || len(body) > 0) {
			_, _ = h.w.Write(body)
		}
		if h.overrun {
			_, _ = h.w.Write(make([]byte, h.declared+1))
		}
	}
	// Trailers: announced, or by their prefix.
	for _, names := range h.frozen["Trailer"] {
		for _, name := range strings.Split(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			if values, set := h.header[name]; set {
				h.w.Header()[name] = values
			}
		}
	}
	for name, values := range h.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			h.w.Header()[name] = values
		}
	}
}
