// SPDX-License-Identifier: PostgreSQL

// Package suite runs clients/conformance, and faults of real servers, against both doors.
package suite

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	Gateway  *struct {
		Host string
		Port int
	}
}

var (
	server *helper
	main   place
)

func TestMain(m *testing.M) {
	var err error
	server, err = startHelper(&main, filepath.Join(root, "clients/conformance/server.py"), "--gateway")
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
	made.Gateway = main.Gateway
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

// inSQL runs the work in a transaction of database/sql.
func inSQL(at place, work any) error {
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
	if err := work.(func(*sql.Tx) error)(tx); err != nil {
		return err
	}
	return tx.Commit()
}
