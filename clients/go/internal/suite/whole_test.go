// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgonce.internal/once"
)

// Answers and requests that are whole, or nothing: with clients that leave, and layers around.

func TestAClientThatLeavesFindsTheWholeAnswerLater(t *testing.T) {
	both(t, func(t *testing.T) { leaving(t, newPgx, execPgx) }, func(t *testing.T) { leaving(t, newSQL, execSQL) })
}

func leaving[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	seen := make(chan context.Context, 4)
	begun := make(chan struct{}, 1)
	for _, mode := range []once.Mode{once.TransactionMode, once.LeaseMode} {
		key := fmt.Sprint("left-", mode)
		s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{Mode: mode}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
			if mode == once.TransactionMode {
				s.write(r)
			}
			gone := (<-seen).Done()
			for i := 0; i < 5; i++ {
				select {
				case <-r.Context().Done():
					return // half an answer
				default:
				}
				fmt.Fprintf(w, "piece %d of an answer\n", i)
				if i == 0 {
					begun <- struct{}{}
					<-gone
				}
			}
		}, withLeaving(seen))
		conn := s.opened(key)
		<-begun
		_ = conn.Close()
		whole := "piece 0 of an answer\npiece 1 of an answer\npiece 2 of an answer\npiece 3 of an answer\npiece 4 of an answer\n"
		var got *response
		awaits(t, "the attempt ends", func() bool {
			go func() { <-seen }()
			got = s.post(key, "")
			return got.status != 409
		})
		s.is(got, 200, whole, true)
		s.ran(1)
		if mode == once.TransactionMode {
			s.effects(key, 1)
		}
	}
}

func TestAnAnswerThatIsBrokenOffIsTakenBackAndBreaksAsWithoutUs(t *testing.T) {
	both(t, func(t *testing.T) { broken(t, newPgx, execPgx) }, func(t *testing.T) { broken(t, newSQL, execSQL) })
}

func broken[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	ways := map[string]func(w http.ResponseWriter){
		"short": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "95")
			_, _ = io.WriteString(w, "18 bytes of the 95")
		},
		"abort": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "a part")
			panic(http.ErrAbortHandler)
		},
		"panic": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, "a part")
			panic(errApplication)
		},
		"status": func(w http.ResponseWriter) { w.WriteHeader(99) },
	}
	caughts := make(chan any, 1)
	s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		if s.runs.Load() == 1 {
			ways[r.Header.Get("Idempotency-Key")](w)
		}
		_, _ = io.WriteString(w, "whole")
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if caught := recover(); caught != nil {
					caughts <- caught
					panic(caught)
				}
			}()
			next.ServeHTTP(w, r)
		})
	})
	for way := range ways {
		if got, err := answerOf(s.opened(way)); err == nil {
			t.Fatalf("%s: %d %q", way, got.status, got.body)
		}
		if way != "short" {
			caught := <-caughts
			if (way == "abort" && caught != any(http.ErrAbortHandler)) || (way == "panic" && caught != any(errApplication)) {
				t.Fatalf("%s: outer layers see %v", way, caught)
			}
		}
		s.effects(way, 0)
		s.is(s.post(way, ""), 200, "whole", false)
		s.is(s.post(way, ""), 200, "whole", true)
		s.effects(way, 1)
		s.ran(2)
	}
}

func TestHalfARequestIsNone(t *testing.T) {
	at := newDatabase(t)
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		_, _ = io.Copy(w, r.Body)
	})
	for key, half := range map[string]string{"length": "Content-Length: 20\r\n\r\nhalf a req", "chunked": "Transfer-Encoding: chunked\r\n\r\na\r\nhalf a req\r\n"} {
		conn := s.open("POST /orders HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: %s\r\n%s", s.web.Listener.Addr(), key, half)
		_ = conn.(*net.TCPConn).CloseWrite()
		if got, err := answerOf(conn); err == nil && got.status != 400 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		s.ran(0)
		s.is(s.post(key, "half a request, and half"), 200, "half a request, and half", false)
		s.ran(1)
	}
}

func TestABodyThatALayerOutsideHasReadIsRefusedOrKept(t *testing.T) {
	at := newDatabase(t)
	forms := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
				_ = r.ParseMultipartForm(1 << 20)
			} else {
				_ = r.ParseForm()
			}
			next.ServeHTTP(w, r)
		})
	}
	reads := func(bytes int64) layer {
		return func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.CopyN(io.Discard, r.Body, bytes)
				next.ServeHTTP(w, r)
			})
		}
	}
	handler := func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		fmt.Fprint(w, r.FormValue("amount"))
	}
	const form = "application/x-www-form-urlencoded"
	var parts strings.Builder
	writer := multipart.NewWriter(&parts)
	_ = writer.WriteField("amount", "100")
	_ = writer.Close()
	for name, outer := range map[string]layer{"form": forms, "all": reads(1 << 20), "some": reads(3)} {
		s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{}, handler, outer)
		for kind, body := range map[string]string{form: "amount=100", writer.FormDataContentType(): parts.String()} {
			got := s.post(name, body, "Content-Type", kind)
			if got.status != 500 || !s.log.has("ERROR", "KeepBody") {
				t.Fatalf("%s: %d %s\n%s", name, got.status, got.body, s.log.out.String())
			}
		}
		chunked := s.open("POST /orders HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: %s\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\na\r\namount=100\r\n0\r\n\r\n",
			s.web.Listener.Addr(), name, form)
		if got, err := answerOf(chunked); name != "some" && (err != nil || got.status != 500) {
			t.Fatalf("%s: %v %v", name, got, err)
		}
		if name != "some" {
			s.ran(0)
		}
	}
	kept := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{}, handler, once.KeepBody(1<<20), forms)
	kept.is(kept.post("kept", "amount=100", "Content-Type", form), 200, "100", false)
	kept.is(kept.post("kept", "amount=100", "Content-Type", form), 200, "100", true)
	kept.isProblem(kept.post("kept", "amount=999999", "Content-Type", form), "mismatch")
	kept.effects("kept", 1)
	kept.ran(1)
	if got := kept.post("large", strings.Repeat("x", 1<<20+1)); got.status != 413 {
		t.Fatal(got.status)
	}
	// Who reads it and puts it back is as good.
	restores := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{}, handler, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.PostForm, _ = url.ParseQuery(string(body))
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			next.ServeHTTP(w, r)
		})
	})
	restores.is(restores.post("restored", "amount=100", "Content-Type", form), 200, "100", false)
	restores.isProblem(restores.post("restored", "amount=999999", "Content-Type", form), "mismatch")
}

func TestAnErrorAtCommitIsTheApplicationsOwn(t *testing.T) {
	both(t, func(t *testing.T) { atCommit(t, newPgx, execPgx) }, func(t *testing.T) { atCommit(t, newSQL, execSQL) })
}

func atCommit[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	pool := owner(t, at)
	for _, sql := range []string{
		"CREATE TABLE item (id integer PRIMARY KEY)",
		"CREATE TABLE placed (item integer REFERENCES item DEFERRABLE INITIALLY DEFERRED)",
		"CREATE FUNCTION clash() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'clash' USING ERRCODE = '40P01'; END$$",
		"CREATE TABLE clashing (id integer)",
		"CREATE CONSTRAINT TRIGGER clash AFTER INSERT ON clashing DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION clash()",
		"CREATE ROLE no_contract", "GRANT no_contract TO CURRENT_USER",
		"GRANT ALL ON item, placed, clashing, effect TO PUBLIC",
	} {
		if _, err := pool.Exec(context.Background(), sql); err != nil && !strings.Contains(err.Error(), "already exists") {
			t.Fatal(err)
		}
	}
	ways := map[string]string{"deferred": "INSERT INTO placed VALUES (7)", "clash": "INSERT INTO clashing VALUES (1)", "role": "SET LOCAL ROLE no_contract",
		"hidden-role": "DO $$BEGIN EXECUTE 'SET LOCAL ROLE no_contract'; END$$"}
	var told error
	s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
		told = err
		http.Error(w, "mine", 500)
	}}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		if err := exec(r.Context(), s.client.Tx(r.Context()), ways[r.Header.Get("Idempotency-Key")]); err != nil {
			panic(err)
		}
		w.WriteHeader(201)
	})
	s.is(s.post("deferred", ""), 500, "mine\n", false)
	var driver *pgconn.PgError
	if !errors.As(told, &driver) || driver.Code != "23503" || !s.log.has("ERROR", `"sqlstate":"23503"`, "placed_item_fkey") {
		t.Fatalf("%v\n%s", told, s.log.out.String())
	}
	s.is(s.post("hidden-role", ""), 500, "mine\n", false)
	if !s.log.has("ERROR", `"sqlstate":"42501"`, "SET LOCAL ROLE NONE") {
		t.Fatal(s.log.out.String())
	}
	s.ran(2)
	// A conflict is nobody's fault: the same request may come again. But the handler is not run again by us.
	s.isProblem(s.post("clash", ""), "unavailable")
	s.ran(1)
	for key := range ways {
		s.effects(key, 0)
	}
	s.is(s.post("role", ""), 201, "", false)
	s.effects("role", 1)
	if _, err := pool.Exec(context.Background(), "INSERT INTO item VALUES (7); DROP TRIGGER clash ON clashing"); err != nil {
		t.Fatal(err)
	}
	s.is(s.post("deferred", ""), 201, "", false)
	s.is(s.post("clash", ""), 201, "", false)
}

// That no lost connection makes it run again is in spec/cases/faults.json.
func TestADeadlockInAHandlerDoesNotRunItAgain(t *testing.T) {
	both(t, func(t *testing.T) { deadlocked(t, newPgx, execPgx) }, func(t *testing.T) { deadlocked(t, newSQL, execSQL) })
}

func deadlocked[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	deadlocks := 1
	s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		if deadlocks > 0 {
			deadlocks--
			err := s.exec(r.Context(), s.client.Tx(r.Context()), "DO $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END$$")
			http.Error(w, once.SQLStateOf(err), 500)
			return
		}
		w.WriteHeader(201)
	})
	s.is(s.post("deadlock", ""), 500, "40P01\n", false)
	s.ran(1)
	s.is(s.post("deadlock", ""), 201, "", false)
	s.effects("deadlock", 1)
}
