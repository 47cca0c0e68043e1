// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgonce.internal/once"
)

// With a new key a protected handler answers as it does without us, byte for byte.

var likes = map[string]http.HandlerFunc{
	"nothing":      func(w http.ResponseWriter, r *http.Request) {},
	"status-alone": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(202) },
	"no-content":   func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204); _, _ = w.Write([]byte("x")) },
	"sniffed-html": func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html><body>x") },
	"sniffed-text": func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "text") },
	"sniffed-png":  func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "\x89PNG\x0D\x0A\x1A\x0A") },
	"no-type": func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		fmt.Fprint(w, "bytes")
	},
	"json": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		_ = json.NewEncoder(w).Encode(map[string]string{"a": "<&>"})
	},
	"repeated": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Link", "</a>; rel=a")
		w.Header().Add("Link", "</b>; rel=b")
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "1"})
		http.SetCookie(w, &http.Cookie{Name: "b", Value: "2"})
	},
	"large":  func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("large "), 5000)) },
	"pieces": func(w http.ResponseWriter, r *http.Request) { pieces(w) },
	"length": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		fmt.Fprint(w, "12345")
	},
	"too-much": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		if _, err := fmt.Fprint(w, "123456789"); !errors.Is(err, http.ErrContentLength) {
			panic(err)
		}
		fmt.Fprint(w, "12345")
	},
	"just-enough": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "5")
		fmt.Fprint(w, "12345")
		fmt.Fprint(w, "6")
	},
	"flushed": func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "<html>")
		w.(http.Flusher).Flush()
		fmt.Fprint(w, "more")
	},
	"flushed-first": func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(err)
		}
		fmt.Fprint(w, "<html>")
	},
	"redirect":  func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusSeeOther) },
	"error":     func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", 418) },
	"not-found": http.NotFound,
	"failed":    func(w http.ResponseWriter, r *http.Request) { http.Error(w, "broken", 500) },
	"file": func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "a.txt", time.Unix(1e9, 0), strings.NewReader("the bytes of a file"))
	},
	"twice": func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		w.WriteHeader(500)
		w.Header().Set("X-Late", "yes")
		fmt.Fprint(w, "x")
	},
	"compressed": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		out := gzip.NewWriter(w)
		fmt.Fprint(out, "<html>")
		_ = out.Close()
	},
	"trailers": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum, X-Unset")
		fmt.Fprint(w, "summed")
		w.Header().Set("X-Sum", "7")
		w.Header().Set(http.TrailerPrefix+"X-More", "8")
	},
	"hints": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(103)
		w.Header().Set("X-Final", "yes")
		w.WriteHeader(200)
		fmt.Fprint(w, "x")
	},
	"closes": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "x")
	},
	"no-date": func(w http.ResponseWriter, r *http.Request) { w.Header()["Date"] = nil },
	"odd":     func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(299); fmt.Fprint(w, "odd") },
	"empty":   func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(nil) },
	"copied": func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(strings.NewReader("a copy of it"), 6))
	},
	"form": func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.FormValue("amount"), r.ContentLength, r.TransferEncoding)
	},
	"deadlines": deadlines,
	"events": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for i := 0; i < 3; i++ {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
		}
	},
	"outer-gone": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("X-Outer")
		fmt.Fprint(w, w.Header().Get("Vary"))
	},
	"outer-more": func(w http.ResponseWriter, r *http.Request) { w.Header().Add("Vary", "Accept"); fmt.Fprint(w, "x") },
	"outer-type": func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>") },
}

func pieces(w io.Writer) {
	for i := 0; i < 100; i++ {
		fmt.Fprintf(w, "piece %d, ", i)
	}
}

func deadlines(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	if err := errors.Join(control.SetWriteDeadline(time.Now().Add(time.Hour)), control.SetReadDeadline(time.Now().Add(time.Hour)), control.EnableFullDuplex()); err != nil {
		panic(err)
	}
}

// What the layers outside set, some for one answer only.
func around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", r.Header.Get("X-Request"))
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("X-Request"))
		w.Header().Add("Vary", "Origin")
		if strings.HasSuffix(r.URL.Path, "outer-type") {
			w.Header().Set("Content-Type", "application/x-outer")
		}
		next.ServeHTTP(w, r)
	})
}

var itsDate = regexp.MustCompile("\r\nDate: [^\r]*")

// raw is all bytes of an answer but its date.
func raw(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return itsDate.ReplaceAllString(string(all), "")
}

func TestAProtectedHandlerAnswersAsWithoutUs(t *testing.T) {
	both(t, func(t *testing.T) { transparent(t, newPgx) }, func(t *testing.T) { transparent(t, newSQL) })
}

func transparent[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T]) {
	client := connect(t, newDatabase(t).URL)
	quiet := (&logged{}).logger()
	served := func(layers ...layer) string {
		mux := http.NewServeMux()
		for name, handler := range likes {
			mux.Handle("/"+name, handler)
		}
		var all http.Handler = mux
		for _, each := range layers {
			all = each(all)
		}
		web := httptest.NewUnstartedServer(all)
		web.Config.ErrorLog = (&logged{}).standard()
		web.Start()
		t.Cleanup(web.Close)
		return web.Listener.Addr().String()
	}
	for _, mode := range []once.Mode{once.TransactionMode, once.LeaseMode} {
		settings := once.HTTP{Scope: fmt.Sprint("likes-", mode), SingleTenant: true, Logger: quiet, Mode: mode, Methods: []string{"POST", "HEAD"}, AnyHost: true}
		plain, protected := served(around), served(client.Middleware(settings), around)
		for name := range likes {
			for _, method := range []string{"POST", "HEAD"} {
				for _, version := range []string{"1.1", "1.0"} {
					for _, extra := range []string{"", "Range: bytes=4-8\r\n"} {
						if extra != "" && name != "file" {
							continue
						}
						key := strings.Join([]string{name, method, version, fmt.Sprint(len(extra))}, "/")
						body := "amount=100"
						if method == "HEAD" {
							body = ""
						}
						text := func(request string) string {
							return fmt.Sprintf("%s /%s HTTP/%s\r\nHost: shop.test\r\nConnection: close\r\nX-Request: %s\r\nIdempotency-Key: %s\r\nContent-Type: application/x-www-form-urlencoded\r\n%sContent-Length: %d\r\n\r\n%s",
								method, name, version, request, key, extra, len(body), body)
						}
						want, got := raw(t, plain, text("1")), raw(t, protected, text("1"))
						if want != got {
							t.Errorf("%s: without us\n%q\nwith us\n%q", key, want, got)
						}
						replayed(t, name, method, version, raw(t, protected, text("2")), want)
					}
				}
			}
		}
	}
}

// A replay has the same status, body and headers, but those that the layers outside have set for it, and what is of one answer only.
func replayed(t *testing.T, name, method, version, again, first string) {
	t.Helper()
	if name == "events" || name == "failed" || name == "too-much" {
		return
	}
	read := func(text string) (*http.Response, []byte) {
		in := bufio.NewReader(strings.NewReader(text))
		for {
			got, err := http.ReadResponse(in, &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%s: %v: %q", name, err, text)
			}
			if got.StatusCode >= 200 {
				body, err := io.ReadAll(got.Body)
				if err != nil {
					t.Fatalf("%s: %v: %q", name, err, text)
				}
				return got, body
			}
		}
	}
	one, body := read(first)
	two, same := read(again)
	if two.Header.Get("Idempotency-Replayed") != "true" || one.StatusCode != two.StatusCode || !bytes.Equal(body, same) {
		t.Errorf("%s: %q\n%q", name, first, again)
	}
	for _, header := range []string{"Content-Type", "Content-Encoding", "Link", "Location", "Vary", "X-Content-Type-Options", "Content-Range", "Last-Modified"} {
		if !slices.Equal(one.Header[header], two.Header[header]) {
			t.Errorf("%s: %s is %q, and %q in a replay", name, header, one.Header[header], two.Header[header])
		}
	}
	if got := two.Header.Values("Access-Control-Allow-Origin"); !slices.Equal(got, []string{"2"}) {
		t.Errorf("%s: a replay has lost what the layers outside have set: %q", name, again)
	}
}

func TestAnswersOfOursKeepTheHeadersOfTheLayersOutside(t *testing.T) {
	at := newDatabase(t)
	let, begun := make(chan struct{}), make(chan struct{}, 1)
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-let
	}, around)
	go func() { _, _ = s.try("one", "") }()
	<-begun
	keyless, err := http.Post(s.web.URL, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = keyless.Body.Close()
	for _, got := range []*response{{keyless.StatusCode, keyless.Header, nil}, s.post("one", "", "X-Request", "me"), s.post("\"", "", "X-Request", "me")} {
		if got.status < 400 || !slices.Equal(got.header["Vary"], []string{"Origin"}) || len(got.header["Access-Control-Allow-Origin"]) != 1 || got.header.Get("Content-Type") != "application/problem+json" {
			t.Fatal(got.status, got.header)
		}
	}
	close(let)
}

func TestTheLoggerIsToldOfRefusalsAndNeverOfAKey(t *testing.T) {
	at := newDatabase(t)
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {})
	s.post("the-secret-key", "the-secret-body")
	s.isProblem(s.post("the-secret-key", "another"), "mismatch")
	s.isProblem(s.post("a key of four words", ""), "key-malformed")
	if !s.log.has("DEBUG", `"problem":"mismatch"`, `"scope":"web"`, `"instance":"urn:pgonce:request:`) || !s.log.has("DEBUG", "key-malformed") || s.log.has("ERROR", "") ||
		strings.Contains(s.log.out.String(), "secret") {
		t.Fatal(s.log.out.String())
	}
}

func TestTheHostIsNoPartOfTheRequestWhereItIsLeftOut(t *testing.T) {
	at := newDatabase(t)
	for _, any := range []bool{true, false} {
		s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{AnyHost: any}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {})
		var got *response
		for _, host := range []string{"a.test", "b.test"} {
			var err error
			if got, err = answerOf(s.open("POST / HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: host-%v\r\nContent-Length: 0\r\n\r\n", host, any)); err != nil {
				t.Fatal(err)
			}
		}
		if any {
			s.is(got, 200, "", true)
		} else {
			s.isProblem(got, "mismatch")
		}
	}
}

func TestHTTP2AndWhatAConnectionIsTakenOverFor(t *testing.T) {
	at := newDatabase(t)
	client := newPgx(t, at.URL)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, err := http.NewResponseController(w).Hijack(); r.Header.Get("Idempotency-Key") != "" && (err == nil || !strings.Contains(err.Error(), "outside of Middleware")) {
			t.Error(err)
		}
		if pusher, can := w.(http.Pusher); can {
			_ = pusher.Push("/style.css", nil) // this client takes none
		}
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, r.Proto, " and ")
		w.(http.Flusher).Flush()
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("X-Sum", "7")
	})
	ask := func(served http.Handler, key string) (*http.Response, string) {
		web := httptest.NewUnstartedServer(served)
		web.EnableHTTP2 = true
		web.StartTLS()
		defer web.Close()
		request, err := http.NewRequestWithContext(context.Background(), "POST", web.URL, strings.NewReader("a body"))
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			request.Header.Set("Idempotency-Key", key)
		}
		got, err := web.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		body, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		got.Header.Del("Date")
		return got, string(body)
	}
	protected := client.Middleware(once.HTTP{Scope: "two", SingleTenant: true, AnyHost: true})(handler)
	want, wanted := ask(handler, "")
	for _, again := range []bool{false, true} {
		got, body := ask(protected, "two")
		if got.ProtoMajor != 2 || body != "HTTP/2.0 and a body" || body != wanted || got.StatusCode != want.StatusCode || (got.Header.Get("Idempotency-Replayed") != "") != again {
			t.Fatalf("%v %q, want %v %q", got, body, want, wanted)
		}
		if !again && (fmt.Sprint(got.Header) != fmt.Sprint(want.Header) || got.Trailer.Get("X-Sum") != "7" || want.Trailer.Get("X-Sum") != "7") {
			t.Fatal(got.Header, got.Trailer, want.Header, want.Trailer)
		}
	}
}
