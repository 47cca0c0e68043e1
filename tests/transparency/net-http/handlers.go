// SPDX-License-Identifier: PostgreSQL

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/csrf"
	"github.com/jackc/pgx/v5"
)

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// failed answers an error as a handler does.
func failed(w http.ResponseWriter, err error) bool {
	if err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
	}
	return err != nil
}

var order = struct {
	Order  int     `json:"order"`
	Name   string  `json:"name"`
	Note   string  `json:"note"`
	Amount float64 `json:"amount"`
}{7, "Zoë ☃ 😀", `a/b <c> & "d"`, 12.5}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	alone := func(name string, handler http.HandlerFunc) { mux.HandleFunc("POST /"+name, handler) }
	does := func(name string, handler http.HandlerFunc) {
		alone(name, func(w http.ResponseWriter, r *http.Request) {
			if !failed(w, s.effect(r, name)) {
				handler(w, r)
			}
		})
	}
	s.answers(does)
	s.neighbours(mux, does)
	s.bodies(does)
	s.errors(does)
	s.transactions(alone, does)
	s.ends(does)
	return mux
}

func (s *service) answers(does func(string, http.HandlerFunc)) {
	does("json", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, 201, order) })
	does("text", func(w http.ResponseWriter, r *http.Request) { writeText(w, 200, "Grüße, 世界\n") })
	does("empty", func(w http.ResponseWriter, r *http.Request) {})
	does("no-content", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	does("reset-content", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusResetContent) })
	does("large", func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.FormValue("bytes"))
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.Itoa(size))
		piece := bytes.Repeat([]byte("0123456789abcdef"), 4096)
		for ; size > 0; size -= len(piece) {
			piece = piece[:min(size, len(piece))]
			_, _ = w.Write(piece)
		}
	})
	does("stream-bytes", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		for i := range 5 {
			_, _ = w.Write(bytes.Repeat([]byte{byte(250 + i)}, 1000))
			flush(w)
		}
	})
	does("stream-text", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for _, line := range []string{"eins ä\n", "zwei ☃\n", "drei 😀\n"} {
			_, _ = io.WriteString(w, line)
			flush(w)
		}
	})
	report := filepath.Join(s.files, "report.txt")
	does("file", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, report) })
	does("download", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape("rapport é.txt"))
		http.ServeFile(w, r, report)
	})
	does("redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/json", http.StatusSeeOther) })
	does("redirect-307", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/json", http.StatusTemporaryRedirect)
	})
	does("cookies", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "1", Path: "/", HttpOnly: true})
		http.SetCookie(w, &http.Cookie{Name: "b", Value: "2", Path: "/", SameSite: http.SameSiteLaxMode})
		writeText(w, 200, "cookies")
	})
	does("repeated", func(w http.ResponseWriter, r *http.Request) {
		for _, pair := range [][2]string{{"Link", "</a>; rel=next"}, {"Link", "</b>; rel=last"}, {"X-Part", "one"}, {"X-Part", "two"}, {"Vary", "Origin"}, {"Vary", "Accept"},
			{"Cache-Control", "no-store"}} {
			w.Header().Add(pair[0], pair[1])
		}
		writeText(w, 200, "repeated")
	})
	does("odd", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Odd", "caf\xe9")
		w.Header().Set("X-Empty", "")
		w.Header().Set("X-Long", strings.Repeat("x", 4000))
		w.Header().Set("X-Spaced", "a  b\tc")
		writeText(w, 200, "odd")
	})
	does("close", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		writeText(w, 200, "close")
	})
	does("early-hints", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		writeText(w, 200, "hints")
	})
	does("trailers", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Checksum")
		writeText(w, 200, "with trailers")
		w.Header().Set("X-Checksum", "42")
	})
}

func (s *service) neighbours(mux *http.ServeMux, does func(string, http.HandlerFunc)) {
	does("compressed", func(w http.ResponseWriter, r *http.Request) {
		writeText(w, 200, strings.Repeat("compress me, please. ", 200))
	})
	does("cors", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, 201, map[string]bool{"cors": true}) })
	does("outer", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, 201, map[string]bool{"outer": true}) })
	does("inner", func(w http.ResponseWriter, r *http.Request) { writeJSON(w, 201, map[string]bool{"inner": true}) })
	does("auth", func(w http.ResponseWriter, r *http.Request) { writeText(w, 200, "auth") })
	mux.HandleFunc("GET /session", func(w http.ResponseWriter, r *http.Request) {
		s.session.Put(r.Context(), "visits", 0)
		writeJSON(w, 200, map[string]int{"visits": 0})
	})
	does("session", func(w http.ResponseWriter, r *http.Request) {
		visits := s.session.GetInt(r.Context(), "visits") + 1
		s.session.Put(r.Context(), "visits", visits)
		writeJSON(w, 200, map[string]int{"visits": visits})
	})
	mux.HandleFunc("GET /csrf", func(w http.ResponseWriter, r *http.Request) { writeText(w, 200, csrf.Token(r)) })
	mux.HandleFunc("GET /csrf/form", func(w http.ResponseWriter, r *http.Request) { writeText(w, 200, url.QueryEscape(csrf.Token(r))) })
	does("csrf", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, 201, map[string]any{"csrf": true, "amount": r.PostFormValue("amount")})
	})
	sub := http.NewServeMux()
	sub.HandleFunc("POST /json", func(w http.ResponseWriter, r *http.Request) {
		if !failed(w, s.effect(r, "sub/json")) {
			writeJSON(w, 201, order)
		}
	})
	mux.Handle("/sub/", http.StripPrefix("/sub", sub))
	mux.Handle("GET /files/", http.StripPrefix("/files", http.FileServer(http.Dir(s.files))))
	mux.HandleFunc("GET /cacheable", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		http.ServeContent(w, r, "", time.Date(2022, 1, 1, 0, 0, 0, 0, time.UTC), strings.NewReader("cacheable"))
	})
}

func (s *service) bodies(does func(string, http.HandlerFunc)) {
	does("form", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, 200, r.PostForm)
	})
	does("read-outside", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, 200, map[string]string{"amount": r.PostFormValue("amount")})
	})
	does("upload", upload)
	does("body", func(w http.ResponseWriter, r *http.Request) {
		var got any
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, 200, map[string]any{"got": got})
	})
	does("valid", func(w http.ResponseWriter, r *http.Request) {
		var got struct {
			Amount int `json:"amount"`
		}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, 200, got)
	})
	does("echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Type", r.Header.Get("Content-Type"))
		w.Header().Set("X-Encoding", r.Header.Get("Content-Encoding"))
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.Copy(w, r.Body)
	})
	does("digest", func(w http.ResponseWriter, r *http.Request) {
		hash := sha256.New()
		size, err := io.Copy(hash, r.Body)
		if !failed(w, err) {
			writeJSON(w, 200, map[string]any{"size": size, "sha256": hex.EncodeToString(hash.Sum(nil))})
		}
	})
	does("request", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, 200, map[string]any{"method": r.Method, "target": r.RequestURI, "host": r.Host, "accept": r.Header["Accept"], "a": r.URL.Query()["a"], "client": r.RemoteAddr != ""})
	})
	does("unread", func(w http.ResponseWriter, r *http.Request) { writeText(w, 200, "unread") })
	does("limited", func(w http.ResponseWriter, r *http.Request) {
		read, err := io.ReadAll(r.Body)
		var limited *http.MaxBytesError
		if errors.As(err, &limited) {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		writeText(w, 200, string(read))
	})
}

func upload(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fields, files := map[string]string{}, [][]any{}
	for name, values := range r.MultipartForm.Value {
		fields[name] = values[0]
	}
	for name, headers := range r.MultipartForm.File {
		for _, header := range headers {
			file, err := header.Open()
			if failed(w, err) {
				return
			}
			hash := sha256.New()
			_, _ = io.Copy(hash, file)
			_ = file.Close()
			files = append(files, []any{name, header.Filename, header.Header.Get("Content-Type"), header.Size, hex.EncodeToString(hash.Sum(nil))})
		}
	}
	writeJSON(w, 200, map[string]any{"fields": fields, "files": files})
}

func (s *service) errors(does func(string, http.HandlerFunc)) {
	panics := func(http.ResponseWriter, *http.Request) { panic(errors.New("thrown")) }
	does("panics", panics)
	does("recovers", panics)
	does("throws-late", func(w http.ResponseWriter, r *http.Request) {
		for _, piece := range []string{"first ", "second "} {
			_, _ = io.WriteString(w, piece)
			flush(w)
		}
		panic(errors.New("thrown late"))
	})
	does("status", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		if r.FormValue("raise") != "" {
			http.Error(w, "sorry", code)
		} else {
			writeJSON(w, code, map[string]int{"code": code})
		}
	})
	does("retry-after", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		writeText(w, 503, "later")
	})
}

func (s *service) transactions(alone, does func(string, http.HandlerFunc)) {
	after := func(sql, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if _, err := s.tx(r).Exec(r.Context(), sql); !failed(w, err) {
				writeText(w, 201, text)
			}
		}
	}
	does("deferred", func(w http.ResponseWriter, r *http.Request) {
		if _, err := s.tx(r).Exec(r.Context(), "INSERT INTO taken (id) VALUES (1)"); !failed(w, err) {
			writeJSON(w, 201, map[string]bool{"deferred": true})
		}
	})
	does("deadlock", after("SELECT deadlock()", "deadlock"))
	does("commit", after("COMMIT", "commit"))
	does("swallowed", func(w http.ResponseWriter, r *http.Request) {
		_, _ = s.tx(r).Exec(r.Context(), "SELECT 1/0")
		writeText(w, 201, "swallowed")
	})
	alone("nested", func(w http.ResponseWriter, r *http.Request) {
		if !failed(w, s.nested(r)) {
			writeJSON(w, 201, map[string]bool{"nested": true})
		}
	})
	alone("role", func(w http.ResponseWriter, r *http.Request) {
		if s.on {
			if _, err := s.tx(r).Exec(r.Context(), "SET LOCAL ROLE reader"); failed(w, err) {
				return
			}
		}
		if !failed(w, s.effect(r, "role")) {
			writeText(w, 201, "role")
		}
	})
	does("background", func(w http.ResponseWriter, r *http.Request) {
		go s.elsewhere("background-task")
		writeText(w, 202, "background")
	})
	does("late-tx", func(w http.ResponseWriter, r *http.Request) {
		tx := s.tx(r)
		context.AfterFunc(r.Context(), func() {
			err := errors.New("there is no tx")
			if s.on {
				_, err = tx.Exec(context.Background(), "INSERT INTO effect (name) VALUES ('late-tx-after')")
			}
			if err != nil {
				s.elsewhere("late-tx-refused")
			}
		})
		writeText(w, 202, "late-tx")
	})
	does("second", func(w http.ResponseWriter, r *http.Request) {
		var one int
		if !failed(w, s.pool.QueryRow(r.Context(), "SELECT 1").Scan(&one)) {
			writeJSON(w, 201, map[string]int{"second": one})
		}
	})
}

// Two transactions of pgx's, one in the other, of which the inner one is rolled back.
func (s *service) nested(r *http.Request) error {
	return pgx.BeginFunc(r.Context(), s.tx(r), func(outer pgx.Tx) error {
		_ = pgx.BeginFunc(r.Context(), outer, func(inner pgx.Tx) error {
			_, err := inner.Exec(r.Context(), "INSERT INTO effect (name) VALUES ('nested-inner')")
			return errors.Join(err, errors.New("rolled back"))
		})
		_, err := outer.Exec(r.Context(), "INSERT INTO effect (name) VALUES ('nested')")
		return err
	})
}

func (s *service) ends(does func(string, http.HandlerFunc)) {
	does("two-answers", func(w http.ResponseWriter, r *http.Request) {
		writeText(w, 201, "first")
		writeText(w, 202, "second")
	})
	does("no-answer", func(w http.ResponseWriter, r *http.Request) { select {} })
	does("destroyed", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "half ")
		flush(w)
		panic(http.ErrAbortHandler)
	})
	length := func(length, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", length)
			writeText(w, 200, text)
		}
	}
	does("short", length("10", "short"))
	does("long", length("4", "too long"))
	does("invalid-status", func(w http.ResponseWriter, r *http.Request) { writeText(w, 99, "odd") })
	does("bad-header", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Bad", "a\nb")
		writeText(w, 200, "odd")
	})
	does("events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: one\n\n")
		flush(w)
		if _, err := s.pool.Exec(r.Context(), "SELECT gate()"); err == nil {
			fmt.Fprint(w, "data: two\n\n")
		}
	})
	does("gate", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, "before ")
		flush(w)
		_, err := s.tx(r).Exec(r.Context(), "SELECT gate()")
		if err != nil || r.Context().Err() != nil {
			return
		}
		fmt.Fprint(w, "after")
	})
	does("deadline", func(w http.ResponseWriter, r *http.Request) { writeText(w, 200, "in time") })
	does("controlled", func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		soon := time.Now().Add(time.Minute)
		if !failed(w, errors.Join(control.SetReadDeadline(soon), control.SetWriteDeadline(soon), control.EnableFullDuplex())) {
			writeText(w, 200, "controlled")
		}
	})
	does("copied", func(w http.ResponseWriter, r *http.Request) {
		file, err := os.Open(filepath.Join(s.files, "report.txt"))
		if failed(w, err) {
			return
		}
		defer file.Close()
		_, _ = io.Copy(w, file) // w.ReadFrom, where there is one
	})
	does("hijacked", func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nhijacked")
		_ = conn.Close()
	})
}
