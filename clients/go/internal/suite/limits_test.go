// SPDX-License-Identifier: PostgreSQL

package suite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
)

// Handlers that take too long, pools that are full, clients that wait for neither.

func TestAHandlerWhoseTimeIsOverIsEndedTakenBackAndItsConnectionReturned(t *testing.T) {
	both(t, func(t *testing.T) { overdue(t, newPgx, execPgx) }, func(t *testing.T) { overdue(t, newSQL, execSQL) })
}

func overdue[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	name := "overdue_" + t.Name()[strings.Index(t.Name(), "/")+1:]
	let := make(chan struct{})
	release := sync.OnceFunc(func() { close(let) })
	late := make(chan error, 1)
	s := newSite(t, at, connect(t, at.URL+"?application_name="+name), exec, once.HTTP{HandlerTimeout: 2 * time.Second}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		if s.runs.Load() > 1 {
			return
		}
		tx := s.client.Tx(r.Context())
		switch r.Header.Get("Idempotency-Key") {
		case "heeds":
			<-r.Context().Done()
			if !errors.Is(context.Cause(r.Context()), once.ErrTimedOut) {
				t.Error(context.Cause(r.Context()))
			}
			fmt.Fprint(w, "half")
		case "queries":
			_ = exec(r.Context(), tx, "SELECT pg_sleep(60)")
		case "reads":
			_ = scan(context.Background(), tx, "SELECT pg_sleep(8)")
		case "ignores":
			<-let
			_, err := fmt.Fprint(w, "late")
			if !errors.Is(err, http.ErrHandlerTimeout) {
				t.Error(err)
			}
			late <- exec(context.Background(), tx, "INSERT INTO effect (key) VALUES ('late')")
		case "stuck":
			_ = exec(context.Background(), tx, "SELECT pg_sleep(8)")
		}
	})
	t.Cleanup(release)
	for _, key := range []string{"heeds", "queries", "ignores", "stuck", "reads"} {
		got := s.post(key, "")
		s.isProblem(got, "timed-out")
		if got.header.Get("Retry-After") != "5" || !s.log.has("ERROR", "HandlerTimeout") {
			t.Fatal(got.header, s.log.out.String())
		}
		s.effects(key, 0)
		awaits(t, "its transaction is over", func() (idle bool) {
			err := s.pool.QueryRow(context.Background(), "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND state <> 'idle')", name).Scan(&idle)
			return err == nil && idle
		})
		s.is(s.post(key, ""), 200, "", false)
		s.effects(key, 1)
		s.ran(2)
	}
	release()
	if err := <-late; err == nil {
		t.Fatal("a handler that was cut off could still write")
	}
	s.effects("late", 0)
}

// scan waits for a row, and not for what sends the question.
func scan[T any](ctx context.Context, tx T, text string) (err error) {
	var nothing string
	switch tx := any(tx).(type) {
	case pgx.Tx:
		return tx.QueryRow(ctx, text).Scan(&nothing)
	case sqlTx:
		return tx.QueryRowContext(ctx, text).Scan(&nothing)
	}
	panic(tx)
}

func TestADeadlineOfALayerOutsideEndsTheHandlerAndItsEffect(t *testing.T) {
	at := newDatabase(t)
	s := newSite(t, at, newPgx(t, at.URL), execPgx, once.HTTP{}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		fmt.Fprint(w, "half")
		if s.runs.Load() == 1 {
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, " and half")
	}, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
			if r.Header.Get("X-Patient") != "" {
				ctx, cancel = context.WithTimeout(r.Context(), patience)
			}
			defer cancel()
			if deadline, has := ctx.Deadline(); !has || deadline.IsZero() {
				t.Error("no deadline")
			}
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	})
	s.isProblem(s.post("late", ""), "timed-out")
	s.effects("late", 0)
	s.is(s.post("late", "", "X-Patient", "yes"), 200, "half and half", false)
	s.effects("late", 1)
}

// In each way of working. PGONCE_SOAK: how many requests, else a few hundred.
func TestNothingIsLeftOfClientsThatLeave(t *testing.T) {
	at := newDatabase(t)
	const workers = 8
	each := 100
	if asked, err := strconv.Atoi(os.Getenv("PGONCE_SOAK")); err == nil {
		each = asked / workers
	}
	for _, way := range []string{"transaction", "lease", "effect"} {
		pool := poolOf(t, at, 4)
		client := oncepgx.New(pool)
		settings := once.HTTP{Scope: "web"}
		if way == "lease" {
			settings.Mode = once.LeaseMode
		}
		s := newSite(t, at, client, execPgx, settings, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
			if way == "transaction" {
				s.write(r)
			} else if _, err := pool.Exec(r.Context(), "INSERT INTO effect (key) VALUES ($1)", r.Header.Get("Idempotency-Key")); err != nil {
				t.Error(err)
			}
			fmt.Fprint(w, "done")
		})
		if way == "effect" {
			s.web.Config.Handler = client.EffectHandler(once.HTTP{Scope: "web", SingleTenant: true, Logger: s.log.logger()}, func(r *http.Request) (once.Answer, error) {
				_, err := pool.Exec(r.Context(), "INSERT INTO effect (key) VALUES ($1)", r.Header.Get("Idempotency-Key"))
				return once.Text(200, "done"), err
			})
		}
		s.is(s.post(way+"-first", ""), 200, "done", false)
		before := runtime.NumGoroutine()
		var middle, end runtime.MemStats
		var all sync.WaitGroup
		for half, kept := range []*runtime.MemStats{&middle, &end} {
			for worker := 0; worker < workers; worker++ {
				all.Add(1)
				go func(worker int) {
					defer all.Done()
					for i := 0; i < each/2; i++ {
						key := fmt.Sprint(way, "-flat-", half, "-", worker, "-", i)
						if i%20 == 0 {
							conn, err := net.Dial("tcp", s.web.Listener.Addr().String())
							if err != nil {
								t.Error(err)
								return
							}
							fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nContent-Length: 0\r\n\r\n", key)
							_ = conn.Close()
						} else if got, err := s.try(key, ""); err != nil || got.status != 200 {
							t.Error(got, err)
							return
						}
					}
				}(worker)
			}
			all.Wait()
			s.web.Client().CloseIdleConnections()
			awaits(t, "all connections are given back", func() bool { return pool.Stat().AcquiredConns() == 0 })
			awaits(t, "all goroutines end", func() bool { return runtime.NumGoroutine() <= before+10 })
			s.log.forget()
			runtime.GC()
			runtime.ReadMemStats(kept)
		}
		if end.HeapInuse > middle.HeapInuse+8<<20 {
			t.Errorf("%s: the heap has grown from %d to %d bytes", way, middle.HeapInuse, end.HeapInuse)
		}
		var done, double int
		if err := s.pool.QueryRow(context.Background(), "SELECT count(*), count(*) - count(DISTINCT key) FROM effect WHERE key LIKE $1", way+"-flat-%").Scan(&done, &double); err != nil {
			t.Fatal(err)
		}
		if double != 0 || done < workers*each*94/100 || done > workers*each {
			t.Fatal(way, done, double)
		}
		t.Logf("%s: %d requests, %d effects, heap %d to %d KiB, goroutines %d to %d", way, workers*each, done, middle.HeapInuse>>10, end.HeapInuse>>10, before, runtime.NumGoroutine())
		s.web.Close()
	}
}

func TestAFullPoolIsNamedAndRecovers(t *testing.T) {
	at := newDatabase(t)
	pool := poolOf(t, at, 2)
	s := newSite(t, at, oncepgx.New(pool), execPgx, once.HTTP{HandlerTimeout: 2 * time.Second}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {
		s.write(r)
		if r.Header.Get("X-Second") != "" { // waits for a second connection while all are taken by handlers that do
			second, err := pool.Acquire(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			second.Release()
		}
	})
	done := make(chan *response, 4)
	for i := 0; i < 4; i++ {
		go func(i int) {
			got, err := s.try(fmt.Sprint("second-", i), "", "X-Second", "yes")
			if err != nil {
				t.Error(err)
			}
			done <- got
		}(i)
	}
	for i := 0; i < 4; i++ {
		if got := <-done; got.status != 200 {
			s.isProblem(got, "timed-out")
		}
	}
	awaits(t, "the pool is free", func() bool { return pool.Stat().AcquiredConns() == 0 })
	s.is(s.post("after", ""), 200, "", false)

	// Nobody else is to blame here: all connections are taken, and a request finds none.
	var all []interface{ Release() }
	for i := 0; i < 2; i++ {
		taken, err := pool.Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, taken)
	}
	s.ran(s.runs.Load())
	s.isProblem(s.post("none-free", ""), "timed-out")
	if !s.log.has("ERROR", "no connection was free within", "the pool of 2 is full", "LeaseMode") {
		t.Fatal(s.log.out.String())
	}
	began := time.Now()
	if _, err := oncepgx.New(pool).Run(context.Background(), "web", "run", 1, func(context.Context, pgx.Tx) (once.Answer, error) { return once.Answer{}, nil },
		once.Within(300*time.Millisecond)); !errors.Is(err, once.ErrUnavailable) || !strings.Contains(errors.Unwrap(err).Error(), "the pool of 2 is full") {
		t.Fatal(err)
	}
	if _, _, err := oncepgx.New(pool).Claim(context.Background(), "web", "claim", 1, once.Within(300*time.Millisecond)); !errors.Is(err, once.ErrUnavailable) {
		t.Fatal(err)
	}
	if time.Since(began) > 30*time.Second {
		t.Fatal(time.Since(began))
	}
	for _, taken := range all {
		taken.Release()
	}
	s.ran(0)
	s.is(s.post("none-free", ""), 200, "", false)
}

func TestARequestWhoseClientHasLeftTakesNoConnection(t *testing.T) {
	at := newDatabase(t)
	for _, mode := range []once.Mode{once.TransactionMode, once.LeaseMode} {
		pool := poolOf(t, at, 1)
		seen := make(chan context.Context, 4)
		returned := make(chan struct{}, 4)
		s := newSite(t, at, oncepgx.New(pool), execPgx, once.HTTP{Mode: mode}, func(s *site[pgx.Tx], w http.ResponseWriter, r *http.Request) {},
			withLeaving(seen), func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(w, r)
					returned <- struct{}{}
				})
			})
		taken, err := pool.Acquire(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint("left-", mode)
		conn := s.opened(key)
		<-seen
		_ = conn.Close()
		<-returned // though the pool is as full as before
		taken.Release()
		s.ran(0)
		if !s.log.has("DEBUG", "unavailable") || s.log.has("ERROR", "") {
			t.Fatal(s.log.out.String())
		}
		s.is(s.post(key, ""), 200, "", false)
		<-returned
	}
}

func TestAnEventStreamPassesAndItsKeyIsDone(t *testing.T) {
	both(t, func(t *testing.T) { stream(t, newPgx, execPgx) }, func(t *testing.T) { stream(t, newSQL, execSQL) })
}

func stream[T any](t *testing.T, connect func(testing.TB, string, ...once.Option) *once.Client[T], exec execer[T]) {
	at := newDatabase(t)
	for _, mode := range []once.Mode{once.TransactionMode, once.LeaseMode} {
		key := fmt.Sprint("stream-", mode)
		next, ended := make(chan struct{}), make(chan error, 1)
		s := newSite(t, at, connect(t, at.URL), exec, once.HTTP{Mode: mode, HandlerTimeout: 4 * time.Second}, func(s *site[T], w http.ResponseWriter, r *http.Request) {
			tx, within := s.client.TxIn(r.Context())
			if within {
				s.write(r)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for i := 1; i <= 2; i++ {
				fmt.Fprintf(w, "data: %d\n\n", i)
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
				if r.Header.Get("X-Leaves") == "" {
					<-next
				}
			}
			if within && exec(r.Context(), tx, "SELECT 1") == nil {
				t.Error("there is a transaction after its COMMIT")
			}
			if r.Header.Get("X-Leaves") != "" {
				<-r.Context().Done()
				ended <- context.Cause(r.Context())
			}
		})
		conn := s.opened(key)
		read := bufio.NewReader(conn)
		got, err := http.ReadResponse(read, nil)
		if err != nil || got.Header.Get("Content-Type") != "text/event-stream" || got.StatusCode != 200 {
			t.Fatal(got, err)
		}
		events := bufio.NewReader(got.Body)
		for i := 1; i <= 2; i++ {
			line, err := events.ReadString('\n')
			blank, _ := events.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) || blank != "\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if mode == once.TransactionMode {
				s.effects(key, 1) // with the head
			}
			s.isProblem(s.post(key, ""), "too-large")
			next <- struct{}{}
		}
		if rest, err := io.ReadAll(events); err != nil || len(rest) > 0 {
			t.Fatal(rest, err)
		}
		s.ran(1)
		// Its handler learns that the client leaves, and its time is not limited.
		leaves := s.open("POST /orders HTTP/1.1\r\nHost: %s\r\nIdempotency-Key: %s-left\r\nX-Leaves: yes\r\nContent-Length: 0\r\n\r\n", s.web.Listener.Addr(), key)
		if _, err := http.ReadResponse(bufio.NewReader(leaves), nil); err != nil {
			t.Fatal(err)
		}
		select {
		case cause := <-ended:
			t.Fatal(cause)
		case <-time.After(4500 * time.Millisecond):
		}
		_ = leaves.Close()
		if cause := <-ended; !errors.Is(cause, context.Canceled) {
			t.Fatal(cause)
		}
		s.isProblem(s.post(key+"-left", ""), "too-large")
	}
}
