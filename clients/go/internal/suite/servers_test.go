// SPDX-License-Identifier: PostgreSQL

// Package suite has the tests with real servers, through both doors. The cases of spec/cases are run by tests/clients/test_agents.py.
package suite

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"pgonce.internal/once"
	"pgonce.internal/once/oncepgx"
	"pgonce.internal/once/oncesql"
)

var root = func() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
}()

// helper is a program that answers each line with one of JSON, and ends with its input.
type helper struct {
	sync.Mutex
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
}

func startHelper(into any, args ...string) (*helper, error) {
	cmd := exec.Command("/usr/bin/python3", args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	h := &helper{in: in, out: bufio.NewReader(out), cmd: cmd}
	return h, h.read(into)
}

func (h *helper) read(into any) error {
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}

func (h *helper) ask(into any, format string, args ...any) error {
	h.Lock()
	defer h.Unlock()
	if _, err := fmt.Fprintf(h.in, format+"\n", args...); err != nil {
		return err
	}
	return h.read(into)
}

func (h *helper) close() {
	_ = h.in.Close()
	_ = h.cmd.Wait()
}

type place struct {
	Host     string
	Port     int
	User     string
	Database string
	Socket   string
	URL      string
}

var (
	server *helper
	main   place
)

func TestMain(m *testing.M) {
	var err error
	server, err = startHelper(&main, filepath.Join(root, "tests/clients/server.py"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "the private server does not start:", err)
		os.Exit(1)
	}
	code := m.Run()
	server.close()
	os.Exit(code)
}

func newDatabase(t testing.TB) place {
	t.Helper()
	var made place
	if err := server.ask(&made, "database"); err != nil {
		t.Fatal(err)
	}
	return made
}

// owner runs the suite's own SQL.
func owner(t testing.TB, at place) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), at.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newPgx(t testing.TB, url string, opts ...once.Option) *once.Client[pgx.Tx] {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 80
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return oncepgx.New(pool, opts...)
}

func newSQL(t testing.TB, url string, opts ...once.Option) *once.Client[*sql.Tx] {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(80)
	t.Cleanup(func() { _ = db.Close() })
	return oncesql.New(db, opts...)
}

func execPgx(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	_, err := tx.Exec(ctx, sql, args...)
	return err
}

func execSQL(ctx context.Context, tx *sql.Tx, sql string, args ...any) error {
	_, err := tx.ExecContext(ctx, sql, args...)
	return err
}

type sqlTx = *sql.Tx

type execer[T any] func(ctx context.Context, tx T, sql string, args ...any) error

var errApplication = errors.New("out of order")

// transaction runs the work in the caller's own transaction.
func transaction[T any](pool *pgxpool.Pool, at place, work func(tx T) error) error {
	if work, is := any(work).(func(pgx.Tx) error); is {
		return pgx.BeginFunc(context.Background(), pool, work)
	}
	db, err := sql.Open("pgx", at.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := any(work).(func(*sql.Tx) error)(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// both runs a test through both doors.
func both(t *testing.T, pgxTest, sqlTest func(*testing.T)) {
	t.Run("pgx", pgxTest)
	t.Run("sql", sqlTest)
}

// forwarder stands between a client and the server, and loses what it is told to lose.
func forwarder(t *testing.T, at place) (*helper, string) {
	t.Helper()
	var where struct {
		Host string
		Port int
	}
	h, err := startHelper(&where, filepath.Join(root, "tests/clients/forwarder.py"), at.Socket, fmt.Sprint(at.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h, fmt.Sprintf("postgresql://%s@%s:%d/%s", at.User, where.Host, where.Port, at.Database)
}

func (h *helper) rule(t *testing.T, format string, args ...any) int {
	t.Helper()
	var said struct{ Rule int }
	if err := h.ask(&said, format, args...); err != nil || said.Rule == 0 {
		t.Fatal(err, said)
	}
	return said.Rule
}

func (h *helper) fired(t *testing.T, rule int) {
	t.Helper()
	var said struct{ Fired bool }
	if err := h.ask(&said, "wait %d", rule); err != nil || !said.Fired {
		t.Fatalf("the rule did not fire (%v)", err)
	}
}

func effects(t *testing.T, pool *pgxpool.Pool, key string) (count int) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), "SELECT count(*) FROM effect WHERE key = $1", key).Scan(&count); err != nil {
		t.Fatal(err)
	}
	return count
}

// Statements go as text, so that the forwarder knows them by it.
const asText = "?default_query_exec_mode=exec"

type problemRow struct {
	Status     int
	Title      string
	Detail     string
	RetryAfter *int `json:"retry_after"`
}

var problems = func() map[string]problemRow {
	text, err := os.ReadFile(filepath.Join(root, "spec/problems.json"))
	if err != nil {
		panic(err)
	}
	var file struct{ Problems map[string]problemRow }
	if err := json.Unmarshal(text, &file); err != nil {
		panic(err)
	}
	return file.Problems
}()

type response struct {
	status int
	header http.Header
	body   []byte
}

// As a framework answers what a handler throws.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				http.Error(w, "Internal Server Error", 500)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
